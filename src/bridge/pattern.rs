//! Patterns over `server.tool`, with `*` for any number of characters.

/// A pattern. One without a dot is over the tools of the server that it stands at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is about this tool: over its own name, or over the server's name, a dot, and its own.
    pub fn matches(&self, server: &str, tool: &str) -> bool {
        glob(self.0.as_bytes(), tool.as_bytes())
            || glob(self.0.as_bytes(), format!("{server}.{tool}").as_bytes())
    }
}

/// Linear in the product of the lengths: a `*` goes back to itself only.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            p += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            p = at + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_over_the_tools_name_or_over_both() {
        let matches = |pattern: &str| Pattern::new(pattern).matches("github", "delete_repo");
        for yes in
            ["delete_repo", "delete_*", "*", "github.*", "github.delete_repo", "*.delete*", "*_repo", "d*e*o"]
        {
            assert!(matches(yes), "{yes}");
        }
        for no in ["", "delete", "gitlab.*", "github", "Delete_repo", "delete_repo.", "*x*"] {
            assert!(!matches(no), "{no}");
        }
    }
}
