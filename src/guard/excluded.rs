//! Parts of SVG and HTML that are drawn or run and that people do not read: the outlines of a path, the code of a library.
//!
//! A glyph's outline is a row of numbers, and now and then one of them passes for a card number; a library of four megabytes
//! contains something that looks like anything. Both break when a number in them is replaced. So both are set aside while the
//! rest is scanned, and are searched for secrets only.

use memchr::memmem;

use super::picture::Inspector;
use super::{Action, Guard, Kind, Numbering, Report};

/// Marks the place of a part. A text that already contains this character is left as it is.
const MARK: &str = "\u{f8ff}";
/// A shorter outline is scanned like any other text.
const SHORTEST: usize = 16;
/// A shorter script is scanned like any other text: it may be somebody's data.
const LIBRARY: usize = 32 * 1024;
/// The kinds that are looked for in parts that are set aside.
const SECRETS: [Kind; 8] = [
    Kind::KnownSecret,
    Kind::PrivateKey,
    Kind::Jwt,
    Kind::ApiKey,
    Kind::AwsAccessKey,
    Kind::AwsSecret,
    Kind::DatabaseUrl,
    Kind::Email,
];

/// A text without its drawn parts, and the parts.
#[derive(Debug)]
pub(super) struct Excluded<'a> {
    /// The remaining text, with a mark for each part.
    pub(super) text: String,
    parts: Vec<&'a str>,
}

impl<'a> Excluded<'a> {
    /// Sets aside the drawn and run parts; `None`: there are none.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        if !text.contains('<') || text.contains(MARK) {
            return None;
        }
        let (mut left, mut parts, mut done) = (String::new(), Vec::new(), 0);
        let mut at = 0;
        while let Some(next) = next_part(text, at) {
            let (start, end) = next;
            left.push_str(&text[done..start]);
            left.push_str(MARK);
            parts.push(&text[start..end]);
            (done, at) = (end, end);
        }
        (!parts.is_empty()).then(|| Self { text: left + &text[done..], parts })
    }

    /// Puts the parts back, without the secrets in them. `None`: a mark was lost, and the text must be scanned whole.
    pub(super) fn put_back(
        self,
        text: &str,
        guard: &Guard,
        numbering: &mut Numbering,
        report: &mut Report,
    ) -> Option<String> {
        if text.matches(MARK).count() != self.parts.len() {
            return None;
        }
        let guard = secrets_only(guard);
        let (mut out, mut pieces) = (String::new(), text.split(MARK));
        out.push_str(pieces.next().unwrap_or_default());
        for (part, piece) in self.parts.iter().zip(pieces) {
            // An outline can hold nothing but a secret made of digits.
            match part.len() < LIBRARY && !guard.0.known.any() {
                true => out.push_str(part),
                false => out.push_str(&guard.run(part, numbering, report)),
            }
            out.push_str(piece);
        }
        Some(out)
    }
}

/// Whether anything is found in a text that passes whole or not at all; drawn and run parts are searched for secrets
/// only.
pub(super) fn has_findings(inspector: &mut Inspector<'_>, text: &str) -> bool {
    let Some(aside) = Excluded::of(text) else { return inspector.has_findings(text) };
    let (guard, known) = (secrets_only(inspector.guard), inspector.guard.0.known.any());
    let mut found = inspector.has_findings(&aside.text);
    for part in aside.parts.iter().filter(|part| part.len() >= LIBRARY || known) {
        let mut inside =
            Inspector { guard: &guard, left: &mut *inspector.left, report: &mut *inspector.report };
        found |= inside.has_findings(part);
    }
    found
}

fn secrets_only(guard: &Guard) -> Guard {
    let mut inner = super::Inner { wants_all: false, ..(*guard.0).clone() };
    for kind in Kind::ALL.iter().filter(|kind| !SECRETS.contains(kind)) {
        inner.actions[*kind as usize] = Action::Allow;
    }
    Guard(std::sync::Arc::new(inner))
}

/// The next part from `at` on.
fn next_part(text: &str, at: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let mut at = at;
    loop {
        let found = at + memchr::memchr2(b'=', b'<', &bytes[at..])?;
        at = found + 1;
        let part = match bytes[found] {
            b'=' => outline(bytes, found),
            _ => library(bytes, found),
        };
        match part {
            Some(Ok(part)) => return Some(part),
            // A whole script that is not a library: anything in it that looks like an outline belongs to it.
            Some(Err(end)) => at = end,
            None => {}
        }
    }
}

/// The value of an attribute `d` or `points` whose `=` is at `equals`, if it is an outline and nothing else.
fn outline(bytes: &[u8], equals: usize) -> Option<Result<(usize, usize), usize>> {
    let before = &bytes[..equals];
    let named =
        [&b" d"[..], b"\nd", b"\td", b" points", b"\npoints"].iter().any(|name| before.ends_with(name));
    if !named {
        return None;
    }
    let slashes = bytes[equals + 1..].iter().take_while(|byte| **byte == b'\\').count();
    let quote = *bytes.get(equals + 1 + slashes).filter(|byte| matches!(byte, b'"' | b'\''))?;
    let start = equals + 2 + slashes;
    let length = bytes[start..].iter().take_while(|byte| is_drawn(**byte)).count();
    let end = start + length;
    // Within a string of JSON line feeds and quotes are escaped.
    let closes = bytes.get(end..).is_some_and(|rest| {
        let rest = &rest[rest.iter().take_while(|byte| **byte == b'\\').count()..];
        rest.first() == Some(&quote)
    });
    let value = bytes[start..end].trim_ascii();
    let is_path = before.ends_with(b"points") || matches!(value.first(), Some(b'M' | b'm'));
    (closes && is_path && length >= SHORTEST).then_some(Ok((start, end)))
}

/// Numbers and the letters of path commands (SVG 2, section 9.3).
fn is_drawn(byte: u8) -> bool {
    byte.is_ascii_digit() || byte.is_ascii_whitespace() || b"+-.,eEMmLlHhVvCcSsQqTtAaZz".contains(&byte)
}

/// The body of a script that begins at `open`, if it is a library; `Err` with its end if it is another script.
fn library(bytes: &[u8], open: usize) -> Option<Result<(usize, usize), usize>> {
    let name = bytes.get(open + 1..open + 7)?;
    if !name.eq_ignore_ascii_case(b"script") {
        return None;
    }
    let start = open + memchr::memchr(b'>', &bytes[open..])? + 1;
    let end = memmem::find(&bytes[start..], b"</script").map_or(bytes.len(), |len| start + len);
    let body = &bytes[start..end];
    if body.len() < LIBRARY {
        return Some(Err(end));
    }
    // Code has these words everywhere, data only now and then.
    let words = [&b"function"[..], b"return", b"=>", b"var ", b"this."];
    let hits: usize = words.iter().map(|word| memmem::find_iter(body, *word).count()).sum();
    Some(if hits > body.len() / 512 { Ok((start, end)) } else { Err(end) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: &str = "4111 1111 1111 1111";

    fn parts(text: &str) -> Vec<&str> {
        Excluded::of(text).map(|aside| aside.parts).unwrap_or_default()
    }

    fn guarded(text: &str) -> String {
        let guard = Guard::default();
        let value = serde_json::json!({ "x": text });
        guard.json(value, &mut Numbering::alone()).0.into_inner()["x"].as_str().unwrap().to_owned()
    }

    #[test]
    fn an_outline_is_set_aside_and_nothing_else() {
        let path = "M 2531 2678 \nQ 2531 2678 2651 2914 z\n";
        for (text, set_aside) in [
            (format!("<path id=\"a\" d=\"{path}\" transform=\"scale(0.1)\"/>"), vec![path]),
            (format!("<path d='{path}'/><path d='{path}'/>"), vec![path, path]),
            (
                format!("{{\"svg\": \"<path d=\\\"{}\\\"/>\"}}", "M 2531 2678 Q 2531 2678 2651 2914"),
                vec!["M 2531 2678 Q 2531 2678 2651 2914"],
            ),
            (format!("<path d=\"{CARD}\"/>"), vec![]),
            (format!("<p id=\"{path}\">"), vec![]),
            (format!("<path d=\"{path} bob@example.com\"/>"), vec![]),
            ("<path d=\"M 1 2\"/>".to_owned(), vec![]),
            (format!("x d=\"{path}\""), vec![]),
        ] {
            assert_eq!(parts(&text), set_aside, "{text}");
        }
    }

    #[test]
    fn a_glyph_with_a_number_like_a_card_comes_out_as_it_was() {
        // The digits of a card that passes its check, as matplotlib writes the figure 3.
        let svg =
            format!("<svg><text>{CARD}</text><path d=\"M 4111 1111 \nQ 4111 1111 1111 1111 z\"/></svg>");
        let out = guarded(&svg);
        assert!(out.contains("<path d=\"M 4111 1111 \nQ 4111 1111 1111 1111 z\"/>"), "{out}");
        assert!(out.contains("<text>[CREDIT_CARD"), "{out}");
    }

    #[test]
    fn a_library_keeps_its_numbers_and_loses_its_secrets_and_data_is_looked_at() {
        let code =
            "function f(){return this.x=>4111111111111111};var card='4111 1111 1111 1111';".repeat(600);
        let key = "AKIAIOSFODNN7EXAMPLE".replace("EXAMPLE", "Q3Z7K2M");
        let data = format!("Plotly.newPlot('a', [{{x: ['{CARD}']}}])");
        let html = format!("<script>{code}</script><script>k='{key}';{code}</script><script>{data}</script>");
        let out = guarded(&html);
        assert!(out.starts_with(&format!("<script>{code}</script>")), "the library is as it was");
        assert!(!out.contains(&key), "a secret is found everywhere");
        let last = &out[out.rfind("<script>").unwrap()..];
        assert!(last.contains("Plotly.newPlot") && !last.contains(CARD), "data is looked at: {last}");
    }
}
