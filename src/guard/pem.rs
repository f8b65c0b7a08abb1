//! Private keys in armour: `-----BEGIN ... PRIVATE KEY-----` to its end. The one thing that spans lines.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::Kind;
use super::rule::RULES;
use super::scan::Finding;

static BEGIN: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"-----BEGIN"));

/// The longest key that is held back; an RSA key of 16,384 bits has 13 KB.
const MAX: usize = 16 * 1024;
/// The longest line with the label.
const MAX_LABEL: usize = 64;

/// The first beginning in a piece.
pub(super) fn begin(text: &[u8]) -> Option<usize> {
    BEGIN.find(text)
}

/// How far a key goes.
pub(super) enum Extent {
    /// So many bytes, the end line included when there is one.
    Ends(usize),
    /// It may go on with what is still to come.
    Open,
    /// This is no private key; looking goes on after so many bytes.
    NoKey(usize),
}

/// How far the key goes that begins at the start of `text`. `last` says that nothing more will come.
pub(super) fn extent(text: &[u8], last: bool) -> Extent {
    const START: usize = b"-----BEGIN".len();
    let label_end = text.len().min(START + MAX_LABEL);
    let Some(dashes) = memchr::memmem::find(&text[START..label_end], b"-----") else {
        let undecided = text.len() < START + MAX_LABEL && !last;
        return if undecided { Extent::Open } else { Extent::NoKey(START) };
    };
    let label = &text[START..START + dashes];
    if memchr::memmem::find(label, b"PRIVATE").is_none()
        || !label.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b' ')
    {
        return Extent::NoKey(START);
    }
    let body_start = START + dashes + 5;
    let limit = text.len().min(MAX);
    let mut at = body_start;
    let mut material = 0;
    while at < limit {
        match text[at] {
            b'-' if text[at..].starts_with(b"-----END") => {
                let rest = &text[at + 8..text.len().min(at + 8 + MAX_LABEL)];
                let line = &rest[..memchr::memchr(b'\n', rest).unwrap_or(rest.len())];
                let Some(close) = memchr::memmem::find(line, b"-----") else {
                    if !last && rest.len() < MAX_LABEL && line.len() == rest.len() {
                        return Extent::Open;
                    }
                    return finish(material, at);
                };
                return finish(material, at + 8 + close + 5);
            }
            byte if byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=') => material += 1,
            // White space, `\n` in escaped text, header lines (`Proc-Type: 4,ENCRYPTED`), string pieces in source.
            b'\r' | b'\n' | b' ' | b'\t' | b'\\' | b':' | b',' | b'-' | b'.' | b'|' | b'#' | b'>' | b'*' => {}
            // What makes the next line out is still to come.
            b'"' | b'\'' if !last && text.len() - at < MAX_GLUE + LINE && text.len() < MAX => {
                return Extent::Open;
            }
            b'"' | b'\'' if is_continued(&text[at..limit]) => {}
            _ => return finish(material, at),
        }
        at += 1;
    }
    match text.len() < MAX && !last {
        true => Extent::Open,
        false => finish(material, limit),
    }
}

/// How much may stand between two lines of a key in source text, both quotes included.
const MAX_GLUE: usize = 26;
/// How much of the next line shows that the key goes on.
const LINE: usize = 16;

/// A quote that ends one line of a key in source text and begins the next.
fn is_continued(rest: &[u8]) -> bool {
    let glue = rest
        .iter()
        .skip(1)
        .take(MAX_GLUE - 2)
        .take_while(|b| matches!(**b, b'\n' | b'\r' | b' ' | b'\t' | b'+' | b',' | b'\\'))
        .count();
    let Some((b'"' | b'\'', line)) = rest[1 + glue..].split_first() else { return false };
    line.starts_with(b"-----END")
        || line.len() >= LINE
            && line[..LINE].iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'='))
}

/// A key needs material: a heading alone is talk about keys.
fn finish(material: usize, len: usize) -> Extent {
    if material >= 24 { Extent::Ends(len) } else { Extent::NoKey(10) }
}

pub(super) fn finding(start: usize, end: usize) -> Finding {
    Finding { start, end, kind: Kind::PrivateKey, rule: RULES.detectors.private_key, decoded: false }
}
