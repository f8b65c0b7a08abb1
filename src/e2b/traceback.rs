//! Puts back the line breaks that the hosted server loses when it joins the parts of a traceback.
//!
//! A traceback that has them is left as it is, so this may see a text twice.

use std::borrow::Cow;

const HEAD: &str = "Traceback (most recent call last)";

/// The traceback with its lines. `name` and `value` are the error's own, whose line always stands alone.
///
/// ```
/// # use pathbox::e2b::rebuild_traceback;
/// let glued = "-----KeyError       Traceback (most recent call last)Cell In[1], line 1\n----> 1 {}['k']\nKeyError: 'k'";
/// assert_eq!(
///     rebuild_traceback(glued, "KeyError", "'k'"),
///     "-----\nKeyError       Traceback (most recent call last)\nCell In[1], line 1\n----> 1 {}['k']\nKeyError: 'k'"
/// );
/// ```
pub fn rebuild(glued: &str, name: &str, value: &str) -> String {
    if glued.contains("    at ") && !glued.contains(HEAD) {
        return rebuild_javascript(glued, name, value);
    }
    let mut text = Cow::Borrowed(glued);
    let dashes = text.len() - text.trim_start_matches('-').len();
    if dashes > 3 && !text[dashes..].starts_with('\n') {
        text.to_mut().insert(dashes, '\n');
    }
    // What follows the head is a place: `Cell In[3], line 1` or `File /usr/lib/…`.
    let mut from = 0;
    while let Some(at) = text[from..].find(HEAD) {
        from += at + HEAD.len();
        if text[from..].starts_with("Cell In[") || text[from..].starts_with("File ") {
            text.to_mut().insert(from, '\n');
        }
    }
    let last = if value.is_empty() { format!("{name}: ") } else { format!("{name}: {value}") };
    if let Some(before) = text.strip_suffix(last.as_str())
        && !name.is_empty()
        && !before.is_empty()
        && !before.ends_with(['\n', ' '])
    {
        let at = before.len();
        text.to_mut().insert(at, '\n');
    }
    text.into_owned()
}

/// Node's: a place, the line, a caret, the error, and `    at` for each frame.
fn rebuild_javascript(glued: &str, name: &str, value: &str) -> String {
    if glued.contains('\n') {
        return glued.to_owned();
    }
    let (head, frames) = glued.split_at(glued.find("    at ").unwrap_or(glued.len()));
    let error = format!("{name}: {value}");
    let mut out = match head.strip_suffix(error.as_str()) {
        Some(place) if !place.is_empty() => format!("{}\n{error}", split_place(place)),
        _ => head.to_owned(),
    };
    out.push_str(&frames.replace("    at ", "\n    at "));
    out
}

/// `evalmachine.<anonymous>:2throw new Error('boom');^` as its three lines.
fn split_place(place: &str) -> String {
    let (code, caret) = match place.trim_end_matches('^') {
        code if code.len() < place.len() => (code, &place[code.len()..]),
        code => (code, ""),
    };
    let mut out = String::with_capacity(place.len() + 3);
    let after_number = code.find(':').map(|colon| {
        let digits = code[colon + 1..].bytes().take_while(u8::is_ascii_digit).count();
        colon + 1 + digits
    });
    match after_number {
        Some(at) if at < code.len() && !code[..at].ends_with(':') => {
            out.push_str(&code[..at]);
            out.push('\n');
            out.push_str(&code[at..]);
        }
        _ => out.push_str(code),
    }
    if !caret.is_empty() {
        out.push('\n');
        out.push_str(caret);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_exceptions_has_a_line_for_each_part() {
        let glued = "---------------------------------------------------------------------------KeyError                                  Traceback (most recent call last)Cell In[29], line 4\n      2     {}['k']\n----> 4     raise ValueError('wrapped') from e\nKeyError: 'k'\nThe above exception was the direct cause of the following exception:\nValueError                                Traceback (most recent call last)File /x.py, line 4\n      1 try:\nValueError: wrapped";
        let lines = rebuild(glued, "ValueError", "wrapped");
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines[0], "-".repeat(75));
        assert!(lines[1].starts_with("KeyError   ") && lines[1].ends_with("(most recent call last)"));
        assert_eq!((lines[2], lines[5]), ("Cell In[29], line 4", "KeyError: 'k'"));
        assert_eq!((lines[8], lines[10]), ("File /x.py, line 4", "ValueError: wrapped"));
    }

    #[test]
    fn a_javascript_stack_has_a_line_for_each_frame() {
        let glued = "evalmachine.<anonymous>:2throw new Error('boom');^Error: boom    at evalmachine.<anonymous>:2:7    at Script.run (node:vm:137:12)";
        assert_eq!(
            rebuild(glued, "Error", "boom"),
            "evalmachine.<anonymous>:2\nthrow new Error('boom');\n^\nError: boom\n    at evalmachine.<anonymous>:2:7\n    at Script.run (node:vm:137:12)"
        );
    }

    #[test]
    fn a_traceback_with_line_breaks_is_unchanged() {
        for (whole, name, value) in [
            (
                "Traceback (most recent call last):\n  File \"<cell>\", line 1\nKeyError: 'k'",
                "KeyError",
                "'k'",
            ),
            (
                "  Cell In[16], line 1\n    print('x'\n         ^\nSyntaxError: never closed\n",
                "SyntaxError",
                "never closed",
            ),
            ("Error: boom\n    at x\n    at y", "Error", "boom"),
            ("", "ContextRestarting", "Context was restarted"),
            ("E: v", "E", "v"),
            ("", "", "1"),
        ] {
            assert_eq!(rebuild(whole, name, value), whole);
        }
    }

    proptest::proptest! {
        #[test]
        fn twice_is_once(text in "[-E: v\n]{0,20}(Traceback \\(most recent call last\\))?(Cell In\\[1\\])?[E: v\n]{0,9}") {
            let once = rebuild(&text, "E", "v");
            proptest::prop_assert_eq!(rebuild(&once, "E", "v"), once);
        }
    }
}
