//! Private keys in armour: `-----BEGIN ... PRIVATE KEY-----` to its end, and PuTTY's. The only finding that spans lines, and
//! programs print things between its lines: quotes, terminal codes, tags, a frame.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::Kind;
use super::classes::alphanumeric_or;
use super::rule::RULES;
use super::scan::Finding;
use super::view;

static BEGIN: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"BEGIN"));
static PUTTY_BEGIN: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(PUTTY));

/// The length of the marker at the beginning.
const START: usize = 10;
/// How PuTTY's keys begin, the line before their key material, and their last line.
const PUTTY: &[u8] = b"PuTTY-User-Key-File-";
const PUTTY_LINES: &[u8] = b"Public-Lines:";
const PUTTY_END: &[u8] = b"Private-MAC:";
/// How far after the beginning that line is.
const PUTTY_HEAD: usize = 512;
/// Lines before the key material that may hold anything.
const HEADERS: [&[u8]; 2] = [b"Comment:", b"Version:"];
const MAX_HEADER: usize = 256;

/// The longest key that is held back; an RSA key of 16,384 bits has 13 KB.
const MAX: usize = 16 * 1024;
/// The longest line with the label.
const MAX_LABEL: usize = 80;

/// Where keys may begin in a piece. Each part of it is looked at once.
pub(super) fn begins(text: &[u8]) -> impl Iterator<Item = usize> {
    let mut from = 0;
    let mut armours = BEGIN
        .find_iter(text)
        .filter_map(|at| at.checked_sub(5))
        .filter(|at| armour(&text[*at..]).is_some())
        .peekable();
    std::iter::from_fn(move || {
        let to = armours.peek().copied().unwrap_or(text.len());
        if let Some(at) = text
            .get(from..to)
            .filter(|between| between.len() >= PUTTY.len())
            .and_then(|between| PUTTY_BEGIN.find(between))
        {
            from += at + PUTTY.len();
            return Some(from - PUTTY.len());
        }
        from = to + START;
        armours.next()
    })
}

/// How the first line of an armoured key ends, and how the last begins: PEM (RFC 7468), and the commercial SSH's.
fn armour(text: &[u8]) -> Option<(&'static [u8], &'static [u8])> {
    match text.first_chunk::<START>()? {
        b"-----BEGIN" => Some((b"-----", b"-----END")),
        b"---- BEGIN" => Some((b"----", b"---- END")),
        _ => None,
    }
}

/// The extent of a key.
pub(super) enum Extent {
    /// This many bytes, including the end line if there is one.
    Ends(usize),
    /// It may continue in text that is still to come.
    Open,
    /// This is not a private key.
    NoKey,
}

/// The extent of the key at the start of `text`. `last` means that no more text will come.
pub(super) fn extent(text: &[u8], last: bool) -> Extent {
    let Some((close, end)) = armour(text) else { return putty(text, last) };
    let label_end = text.len().min(START + MAX_LABEL);
    let Some(len) = memchr::memmem::find(&text[START..label_end], close) else {
        let undecided = text.len() < START + MAX_LABEL && !last;
        return if undecided { Extent::Open } else { Extent::NoKey };
    };
    if !is_private(&text[START..START + len]) {
        return Extent::NoKey;
    }
    body(text, START + len + close.len(), end, last, |line| {
        let len = memchr::memmem::find(line, close)?;
        Some(len + close.len())
    })
}

fn putty(text: &[u8], last: bool) -> Extent {
    let head = &text[..text.len().min(PUTTY_HEAD)];
    match memchr::memmem::find(head, PUTTY_LINES) {
        Some(lines) => body(text, lines, PUTTY_END, last, |line| {
            let blanks = line.iter().take_while(|byte| **byte == b' ').count();
            let code = line[blanks..].iter().position(|byte| !byte.is_ascii_hexdigit());
            code.map(|len| blanks + len).or((last || line.len() == MAX_LABEL).then_some(line.len()))
        }),
        None if head.len() < PUTTY_HEAD && !last => Extent::Open,
        None => Extent::NoKey,
    }
}

/// Whether a label is a private key's, with or without terminal codes and percent signs in it.
fn is_private(label: &[u8]) -> bool {
    if memchr::memmem::find(label, b"PRIVATE").is_none() {
        return false;
    }
    let mut at = 0;
    while at < label.len() {
        at += match label[at] {
            b'A'..=b'Z' | b'0'..=b'9' | b' ' | b'+' => 1,
            _ => match view::code(&label[at..]) {
                Some((len, None | Some(' '))) => len,
                _ => return false,
            },
        };
    }
    true
}

/// The extent of a key whose material begins at `start`. `ends` gives the length of the rest of the line that begins with
/// `end`.
fn body(text: &[u8], start: usize, end: &[u8], last: bool, ends: impl Fn(&[u8]) -> Option<usize>) -> Extent {
    let limit = text.len().min(MAX);
    // Whether the last `len` bytes may still continue.
    let undecided = |at: usize, len: usize| !last && limit - at < len && text.len() < MAX;
    let mut at = start;
    let mut material = 0;
    while at < limit {
        let rest = &text[at..limit];
        if rest.get(end.len() - 1) == end.last() && rest.starts_with(end) {
            let behind = at + end.len();
            let label = &text[behind..text.len().min(behind + MAX_LABEL)];
            let line = &label[..memchr::memchr(b'\n', label).map_or(label.len(), |feed| feed + 1)];
            return match ends(line) {
                Some(len) => finish(material, behind + len),
                None if !last && label.len() < MAX_LABEL && !line.ends_with(b"\n") => Extent::Open,
                None => finish(material, at),
            };
        }
        if matches!(rest[0], b'C' | b'V') && HEADERS.iter().any(|header| rest.starts_with(header)) {
            match memchr::memchr2(b'\n', b'\\', &rest[..rest.len().min(MAX_HEADER)]) {
                Some(len) => at += len,
                None if undecided(at, MAX_HEADER) => return Extent::Open,
                None => return finish(material, at),
            }
            continue;
        }
        let digits = rest.iter().take_while(|byte| is_digit(**byte)).count();
        (at, material) = (at + digits, material + digits);
        at += match &rest[digits..] {
            _ if digits > 0 => 0,
            [b'\\', b'n' | b'r' | b't', ..] => 2,
            // White space, header lines (`Proc-Type: 4,ENCRYPTED`), the syntax between string pieces in source code.
            [
                b'\r' | b'\n' | b' ' | b'\t' | b'\\' | b':' | b',' | b'-' | b'.' | b'|' | b'#' | b'>' | b'*',
                ..,
            ] => 1,
            // The next line is not decided yet.
            _ if undecided(at, MAX_LOOK) => return Extent::Open,
            _ => match digit_len(rest) {
                Some(len) => {
                    material += 1;
                    len
                }
                None => match goes_on(rest, end) {
                    Some(len) => len,
                    None => return finish(material, at),
                },
            },
        };
    }
    match text.len() < MAX && !last {
        true => Extent::Open,
        false => finish(material, limit),
    }
}

fn is_digit(byte: u8) -> bool {
    static DIGIT: [bool; 256] = alphanumeric_or(b"+/=");
    DIGIT[usize::from(byte)]
}

/// The length of the digit that a text begins with, which may be written as `%2B`.
fn digit_len(rest: &[u8]) -> Option<usize> {
    if is_digit(*rest.first()?) {
        return Some(1);
    }
    view::code(rest)
        .filter(|(_, c)| c.is_some_and(|c| u8::try_from(c).is_ok_and(is_digit)))
        .map(|(len, _)| len)
}

/// How much may come between two lines of a key: quotes of source code, terminal codes, tags, the frame of a table.
const MAX_GLUE: usize = 96;
/// How much of the next line shows that the key continues.
const LINE: usize = 16;
/// How many short words may come between: the end of a key, a line number.
const SHORT: usize = 3;
/// How far the next line is searched for.
const MAX_LOOK: usize = (MAX_GLUE + LINE) * (SHORT + 1);

/// The length of the text between one line of a key and the next, or the line that ends it; `None` if there is no next line.
fn goes_on(rest: &[u8], end: &[u8]) -> Option<usize> {
    let rest = &rest[..rest.len().min(MAX_LOOK)];
    let first = glue(rest)?;
    let mut at = first;
    for _ in 0..=SHORT {
        let line = &rest[at..];
        let (mut len, mut digits) = (0, 0);
        while digits < LINE
            && let Some(digit) = digit_len(&line[len..])
        {
            (len, digits) = (len + digit, digits + 1);
        }
        let word = || line[..len].iter().all(|byte| byte.is_ascii_lowercase());
        if line.starts_with(end) || digits == LINE && !word() {
            return Some(first);
        }
        at += len + glue(&line[len..])?;
    }
    None
}

/// The length of a piece of syntax between key lines; `None` when a string begins there and does not end, or ends and none
/// begins.
fn glue(rest: &[u8]) -> Option<usize> {
    let rest = &rest[..rest.len().min(MAX_GLUE)];
    let (mut at, mut quotes) = (0, 0);
    while at < rest.len() {
        at += match &rest[at..] {
            [b'"' | b'\'', ..] => {
                quotes += 1;
                1
            }
            [b'\n' | b'\r' | b' ' | b'\t' | b',' | b'|' | b'>', ..] => 1,
            // Between two strings.
            [b'+' | b'\\', ..] if quotes % 2 == 1 => 1,
            // The frame of a table (U+2500 to U+257F).
            [0xe2, 0x94 | 0x95, _, ..] => 3,
            [b'<', b'/' | b'a'..=b'z' | b'A'..=b'Z', tag @ ..] => {
                3 + memchr::memchr2(b'>', b'\n', tag).filter(|end| tag[*end] == b'>')?
            }
            other => match view::code(other) {
                Some((len, None | Some(' '))) => len,
                _ => break,
            },
        };
    }
    (quotes % 2 == 0).then_some(at)
}

/// A key needs material: a heading alone is text about keys.
fn finish(material: usize, len: usize) -> Extent {
    if material >= 24 { Extent::Ends(len) } else { Extent::NoKey }
}

pub(super) fn finding(start: usize, end: usize) -> Finding {
    Finding { start, end, kind: Kind::PrivateKey, rule: RULES.detectors.private_key, decoded: false }
}

#[cfg(test)]
mod tests {
    use crate::guard::{Guard, Numbering};

    const LINE: &str = "TfrXFCegrrP+PwW8WXK25cuiwJq5WpF8C3PDV5a1qbMgGtIZ61k9YvL0aQe7BnR4";
    const LAST: &str = "Kq8x";

    fn hidden(text: &str) {
        let guard = Guard::default();
        let (out, _) = guard.text(&format!("a {text} z\n"), &mut Numbering::alone());
        assert!(
            out.starts_with("a ") && out.ends_with(" z\n") && out.contains("[PRIVATE_KEY_1]"),
            "{}",
            *out
        );
        assert!(!out.contains("Tfr") && !out.contains("25cui") && !out.contains(LAST), "{text}\n{}", *out);
        // The result is the same wherever the text is cut.
        for size in [1, 7, 50] {
            let (mut stream, mut numbering, mut parts) = (guard.stream(), Numbering::alone(), String::new());
            let whole = format!("a {text} z\n");
            for piece in whole.chars().collect::<Vec<_>>().chunks(size) {
                parts.push_str(&stream.push(&piece.iter().collect::<String>(), &mut numbering));
            }
            parts.push_str(&stream.finish(&mut numbering).0);
            assert_eq!(parts, *out, "{size}");
        }
    }

    fn joined(between: &str) -> String {
        ["-----BEGIN PRIVATE KEY-----", LINE, LINE, LAST, "-----END PRIVATE KEY-----"].join(between)
    }

    #[test]
    fn a_key_is_hidden_whatever_is_between_its_lines() {
        for between in [
            "\n",
            "\\n",
            "\r\n",
            "\x1b[0m\n",
            "\x1b[0m\r\n\x1b[33m",
            " │\n│ ",
            "│\n│   12 │ ",
            "<br>",
            "<br/>\n",
            "</p>\n<p class=\"x\">",
            "&#13;\n",
            "&#10;",
            "&#xA;",
            "%0A",
            "%0D%0A",
            "\u{a0}\n",
            "\\n\"\n + \"",
            "\x1b[33m\"\x1b[0m\n\x1b[33m\"",
        ] {
            hidden(&joined(between));
        }
        let quoted = joined("\n").replace('+', "%2B").replace('/', "%2F").replace('\n', "%0A");
        hidden(&quoted.replace(' ', "%20"));
        hidden(&quoted.replace(' ', "+"));
        hidden(&format!(
            "\x1b[1m-----BEGIN\x1b[0m PRIVATE KEY-----\n{LINE}\n{LAST}\n-----END PRIVATE KEY-----"
        ));
    }

    #[test]
    fn a_key_in_another_form_is_hidden_too() {
        hidden(&format!(
            "PuTTY-User-Key-File-2: ssh-ed25519\nEncryption: none\nComment: bob@x (1)\nPublic-Lines: 1\n{LINE}\n\
             Private-Lines: 1\n{LINE}\nPrivate-MAC: 0123456789abcdef0123456789abcdef01234567"
        ));
        hidden(&format!(
            "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: \"rsa (2)\"\n{LINE}\n{LAST}\n\
             ---- END SSH2 ENCRYPTED PRIVATE KEY ----"
        ));
        hidden(&format!(
            "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: GnuPG v2 (GNU/Linux)\n\n{LINE}\n=Kq8x\n\
             -----END PGP PRIVATE KEY BLOCK-----"
        ));
    }

    #[test]
    fn text_about_keys_is_not_a_key() {
        for text in [
            "<code>-----BEGIN PRIVATE KEY-----</code> is how it begins, and not internationalisation.",
            "It stands between <b>-----BEGIN PRIVATE KEY-----</b> and <b>-----END PRIVATE KEY-----</b>.",
            "pem = \"-----BEGIN PRIVATE KEY-----\\n\" + privateKeyBase64Encoded + \"\\n-----END PRIVATE KEY-----\"",
            "---- BEGIN SSH2 PUBLIC KEY ----\nComment: \"x\"\nAAAAB3NzaC1yc2EAAAABIwAAAIEA1on8gxCGJJWSRT4uOrR13mUaUk0h\n",
            "BEGIN; END; -BEGIN -----BEGIN TRANSACTION",
        ] {
            let (out, _) = Guard::default().text(text, &mut Numbering::alone());
            assert_eq!(*out, text);
        }
    }
}
