//! JSON the way Python's `json.dumps` writes it: a space after `:` and `,`, everything outside printable ASCII
//! escaped.
//!
//! Both official SDKs break on anything else: the Python one splits lines at U+2028 and its kin, the JavaScript one
//! decodes each network chunk on its own. And Python's writer goes beyond JSON in two ways, which [`mend`] repairs.

use std::io;

use serde::Serialize;
use serde_json::ser::Formatter;

/// Writes a value as one line of pure ASCII, without a line feed at the end.
///
/// ```
/// let line = pathbox::wire::json::to_ascii(&serde_json::json!({"a": ["é", "😀", "\u{2028}", "\n"]})).unwrap();
/// assert_eq!(line, r#"{"a": ["\u00e9", "\ud83d\ude00", "\u2028", "\n"]}"#);
/// ```
///
/// # Errors
/// When the value does not serialize, for instance a map whose keys are not texts.
pub fn to_ascii(value: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut out = Vec::with_capacity(128);
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Ascii))?;
    Ok(String::from_utf8(out).unwrap_or_default())
}

struct Ascii;

impl Formatter for Ascii {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(|c: char| !(' '..='~').contains(&c)) {
            writer.write_all(&rest.as_bytes()[..at])?;
            let Some(found) = rest[at..].chars().next() else { break };
            for unit in found.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &rest[at + found.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

/// What [`mend`] puts in the place of a number that JSON does not have, in the values of a display.
pub(super) const NOT_A_NUMBER: &str = "\0not a number";
/// The same for infinities.
pub(super) const INFINITE: &str = "\0infinite";

/// Repairs what Python writes and JSON does not have: bare `NaN`, `Infinity` and `-Infinity` become marks that stand in no
/// value, so that a reader can tell them from a null; half a surrogate pair becomes U+FFFD, and bytes that are not
/// UTF-8 likewise.
///
/// `None` when there was nothing to repair. Costs a copy, so it is for texts that did not parse.
///
/// ```
/// let line = br#"{"text": "NaN \ud800!", "json": [NaN, -Infinity]}"#;
/// let mended = pathbox::wire::json::mend(line).unwrap();
/// assert_eq!(mended, r#"{"text": "NaN \ufffd!", "json": ["\u0000not a number", "\u0000infinite"]}"#);
/// ```
pub fn mend(line: &[u8]) -> Option<String> {
    let (nan, infinity) = (r#""\u0000not a number""#, r#""\u0000infinite""#);
    let text = String::from_utf8_lossy(line);
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let (mut kept, mut at, mut in_string) = (0, 0, false);
    while at < bytes.len() {
        let (skip, put) = match bytes[at] {
            b'"' => {
                in_string = !in_string;
                (1, None)
            }
            b'\\' if in_string => match unit(bytes, at) {
                Some(0xD800..=0xDBFF) if matches!(unit(bytes, at + 6), Some(0xDC00..=0xDFFF)) => (12, None),
                Some(0xD800..=0xDFFF) => (6, Some("\\ufffd")),
                _ => (2, None),
            },
            b'N' | b'I' | b'-' if !in_string => {
                match ["NaN", "-Infinity", "Infinity"].iter().find(|word| text[at..].starts_with(**word)) {
                    Some(&"NaN") => ("NaN".len(), Some(nan)),
                    Some(word) => (word.len(), Some(infinity)),
                    None => (1, None),
                }
            }
            _ => (1, None),
        };
        if let Some(put) = put {
            out.push_str(&text[kept..at]);
            out.push_str(put);
            kept = at + skip;
        }
        at += skip;
    }
    if kept == 0 && matches!(text, std::borrow::Cow::Borrowed(_)) {
        return None;
    }
    out.push_str(&text[kept..]);
    Some(out)
}

/// The UTF-16 unit that `\uXXXX` at `at` denotes.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_written_as_python_writes_it() {
        let value =
            json!({"a": [], "e": {}, "n": [1, null, true, 1.5], "text": "\u{7f}\u{1b}[0m\t\"\\/é\u{85}"});
        assert_eq!(
            to_ascii(&value).unwrap(),
            r#"{"a": [], "e": {}, "n": [1, null, true, 1.5], "text": "\u007f\u001b[0m\t\"\\/\u00e9\u0085"}"#
        );
    }

    #[test]
    fn a_sound_text_needs_no_mending() {
        for sound in [r#"{"a": "NaN \\ud800 \ud83d\ude00", "b": [-1, null]}"#, "", "{", r#""\"#] {
            assert_eq!(mend(sound.as_bytes()), None, "{sound}");
        }
    }

    #[test]
    fn halves_of_pairs_and_bad_bytes_are_replaced() {
        assert_eq!(
            mend(br#""\udc00\ud800\ud83d\ude00\ud83d""#).unwrap(),
            r#""\ufffd\ufffd\ud83d\ude00\ufffd""#
        );
        assert_eq!(mend(b"\"a\xff\"").unwrap(), "\"a\u{fffd}\"");
        assert_eq!(
            mend(br#"[-Infinity,NaN,{"x": Infinity}]"#).unwrap(),
            r#"["\u0000infinite","\u0000not a number",{"x": "\u0000infinite"}]"#
        );
    }

    proptest! {
        #[test]
        fn written_json_is_ascii_and_reads_back(text in any::<String>()) {
            let line = to_ascii(&text).unwrap();
            prop_assert!(line.is_ascii() && !line.contains(char::is_control));
            prop_assert_eq!(serde_json::from_str::<String>(&line).unwrap(), text);
        }

        #[test]
        fn mending_takes_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(mended) = mend(&bytes) {
                prop_assert_eq!(mend(mended.as_bytes()), None);
            }
        }
    }
}
