//! Files that are neither UTF-8 text nor a picture and can still be inspected: text in other encodings, archives and the
//! office documents that are archives, databases, arrays of numbers.
//!
//! Text in another encoding has its findings replaced, as any text has. The others pass whole or not at all, because their parts
//! are found by their offsets.

use std::io::Read as _;

use flate2::read::DeflateDecoder;
use memchr::memmem;

use super::excluded;
use super::picture::{self, Format, Inspector};

/// How deep archives may nest.
const MAX_DEPTH: u8 = 2;
/// The most members of an archive.
const MAX_MEMBERS: usize = 20_000;

/// How a text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Two bytes a unit, the low byte first, with a byte order mark.
    Utf16Le,
    /// The same, the high byte first.
    Utf16Be,
    /// One byte a character, whichever alphabet the upper half holds.
    OneByte,
}

/// A text that is not in UTF-8, as Unicode; `None`: it is not text.
pub(super) fn decode(bytes: &[u8]) -> Option<(Encoding, String)> {
    let units = |read: fn([u8; 2]) -> u16| -> Option<String> {
        let (pairs, rest) = bytes.as_chunks::<2>();
        let units: Vec<u16> = pairs.iter().map(|pair| read(*pair)).collect();
        rest.is_empty().then(|| String::from_utf16(&units).ok()).flatten()
    };
    match bytes {
        [0xff, 0xfe, 0, 0, ..] => None,
        [0xff, 0xfe, ..] => Some((Encoding::Utf16Le, units(u16::from_le_bytes)?)),
        [0xfe, 0xff, ..] => Some((Encoding::Utf16Be, units(u16::from_be_bytes)?)),
        _ => {
            let is_control = |byte: &u8| *byte < 0x20 && !b"\t\n\r\x0c".contains(byte) || *byte == 0x7f;
            let is_text = !bytes.iter().any(is_control) && !bytes.starts_with(b"%PDF-");
            // Random bytes have a control character among the first few dozen.
            let ascii = bytes.iter().filter(|byte| byte.is_ascii()).count();
            let is_sure = bytes.len() >= 64 || 2 * ascii >= bytes.len();
            (is_text && is_sure)
                .then(|| (Encoding::OneByte, bytes.iter().map(|byte| char::from(*byte)).collect()))
        }
    }
}

/// A changed text in its own encoding, or in UTF-8 where one byte a character cannot hold it (the mark in a forged placeholder)
/// or too little is left to be taken for text.
pub(super) fn encode(encoding: Encoding, text: &str) -> Vec<u8> {
    match encoding {
        Encoding::Utf16Le => text.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        Encoding::Utf16Be => text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        Encoding::OneByte => {
            let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
            bytes.filter(|bytes| decode(bytes).is_some()).unwrap_or_else(|| text.as_bytes().to_vec())
        }
    }
}

/// The result of inspecting a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// All of it was read, and nothing was found.
    Clean,
    /// Something was found; the report says what.
    Holds,
    /// Not all of it could be read.
    Opaque,
}

/// Inspects a file that is not text.
pub(super) fn look(inspector: &mut Inspector<'_>, bytes: &[u8]) -> Seen {
    look_at(inspector, bytes, 0)
}

fn look_at(inspector: &mut Inspector<'_>, bytes: &[u8], depth: u8) -> Seen {
    if bytes.is_empty() {
        return Seen::Clean;
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && !text.contains('\0')
    {
        return if excluded::has_findings(inspector, text) { Seen::Holds } else { Seen::Clean };
    }
    if let Some(format) = Format::sniff(bytes) {
        return match picture::clean(inspector, format, bytes) {
            Some(clean) if clean == bytes => Seen::Clean,
            // Embedded metadata is removed from a picture alone, but not from one in an archive.
            Some(_) => scan_text(inspector, &readable(bytes)),
            None => Seen::Opaque,
        };
    }
    if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06") {
        return if depth < MAX_DEPTH {
            archive(inspector, bytes, depth).unwrap_or(Seen::Opaque)
        } else {
            Seen::Opaque
        };
    }
    if bytes.starts_with(b"SQLite format 3\0") {
        return scan_text(inspector, &readable(bytes));
    }
    if let Some(rest) = bytes.strip_prefix(b"\x93NUMPY") {
        return array(inspector, rest);
    }
    match decode(bytes) {
        Some((_, text)) => scan_text(inspector, &text),
        None => Seen::Opaque,
    }
}

fn scan_text(inspector: &mut Inspector<'_>, text: &str) -> Seen {
    if inspector.has_findings(text) { Seen::Holds } else { Seen::Clean }
}

/// The readable text in some bytes, one line for each piece.
fn readable(bytes: &[u8]) -> String {
    let mut out = String::new();
    for piece in bytes.utf8_chunks() {
        out.extend(piece.valid().chars().map(|c| if c.is_control() { '\n' } else { c }));
        if !out.ends_with('\n') {
            out.push('\n');
        }
    }
    out
}

/// A NumPy array: numbers are ignored, texts are read.
fn array(inspector: &mut Inspector<'_>, rest: &[u8]) -> Seen {
    let head = &rest[..rest.len().min(4096)];
    let Some(at) = memmem::find(head, b"'descr': '") else { return Seen::Opaque };
    let kind = head[at + 10..].iter().find(|byte| !b"<>|=".contains(byte));
    match kind {
        Some(b'f' | b'i' | b'u' | b'b' | b'c' | b'm' | b'M') => Seen::Clean,
        Some(b'U') => {
            let start = memchr::memchr(b'\n', head).map_or(head.len(), |at| at + 1);
            let signs = rest[start..].as_chunks::<4>().0.iter();
            let text: String = signs
                .map(|unit| {
                    char::from_u32(u32::from_le_bytes(*unit)).filter(|c| !c.is_control()).unwrap_or('\n')
                })
                .collect();
            scan_text(inspector, &text)
        }
        Some(b'S') => scan_text(inspector, &readable(rest)),
        _ => Seen::Opaque,
    }
}

/// An archive (APPNOTE 6.3): names, comments and members, by its directory. `None`: it is broken, or part of it is unreadable.
fn archive(inspector: &mut Inspector<'_>, bytes: &[u8], depth: u8) -> Option<Seen> {
    let tail = bytes.len().saturating_sub(65_557);
    let end = tail + memmem::rfind(&bytes[tail..], b"PK\x05\x06")?;
    let number = |at: usize, len: usize| -> Option<usize> {
        let raw = bytes.get(at..at + len)?;
        Some(raw.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    };
    let (count, mut at) = (number(end + 10, 2)?, number(end + 16, 4)?);
    if count > MAX_MEMBERS || count == 0xffff {
        return None;
    }
    let mut seen = scan_text(inspector, &readable(bytes.get(end..)?));
    for _ in 0..count {
        if !bytes.get(at..)?.starts_with(b"PK\x01\x02") {
            return None;
        }
        let (flags, method, packed) = (number(at + 8, 2)?, number(at + 10, 2)?, number(at + 20, 4)?);
        let (name, extra, comment) = (number(at + 28, 2)?, number(at + 30, 2)?, number(at + 32, 2)?);
        let words = bytes.get(at + 46..at + 46 + name + extra + comment)?;
        let local = number(at + 42, 4)?;
        if flags & 1 == 1 || !bytes.get(local..)?.starts_with(b"PK\x03\x04") {
            return None;
        }
        let start = local + 30 + number(local + 26, 2)? + number(local + 28, 2)?;
        let body = bytes.get(start..start.checked_add(packed)?)?;
        let member = match method {
            0 => body.to_vec(),
            8 => {
                let mut member = Vec::new();
                let most = *inspector.left + 1;
                DeflateDecoder::new(body).take(most).read_to_end(&mut member).ok()?;
                *inspector.left = inspector.left.checked_sub(member.len() as u64)?;
                member
            }
            _ => return None,
        };
        for now in [scan_text(inspector, &readable(words)), look_at(inspector, &member, depth + 1)] {
            match now {
                Seen::Opaque => return Some(Seen::Opaque),
                Seen::Holds => seen = Seen::Holds,
                Seen::Clean => {}
            }
        }
        at += 46 + name + extra + comment;
    }
    Some(seen)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::DeflateEncoder;

    use super::*;
    use crate::guard::Guard;

    fn seen(bytes: &[u8]) -> Seen {
        let guard = Guard::default();
        let look_with = &mut Inspector { guard: &guard, left: &mut 1_000_000, report: &mut guard.report() };
        look(look_with, bytes)
    }

    /// An archive of these members.
    fn zip(members: &[(&str, &[u8], bool)]) -> Vec<u8> {
        let (mut out, mut directory) = (Vec::new(), Vec::new());
        for (name, content, packed) in members {
            let body = match packed {
                true => {
                    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
                    encoder.write_all(content).unwrap();
                    encoder.finish().unwrap()
                }
                false => content.to_vec(),
            };
            let at = out.len() as u32;
            let mut head = vec![20, 0, 0, 0, if *packed { 8 } else { 0 }, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            head.extend((body.len() as u32).to_le_bytes());
            head.extend((content.len() as u32).to_le_bytes());
            head.extend((name.len() as u16).to_le_bytes());
            head.extend([0, 0]);
            out.extend(b"PK\x03\x04");
            out.extend(&head);
            out.extend(name.as_bytes());
            out.extend(&body);
            directory.extend(b"PK\x01\x02\x14\0");
            directory.extend(&head);
            directory.extend([0; 10]);
            directory.extend(at.to_le_bytes());
            directory.extend(name.as_bytes());
        }
        let (at, count) = (out.len() as u32, members.len() as u16);
        out.extend(&directory);
        out.extend(b"PK\x05\x06\0\0\0\0");
        out.extend(count.to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend((directory.len() as u32).to_le_bytes());
        out.extend(at.to_le_bytes());
        out.extend([0, 0]);
        out
    }

    #[test]
    fn text_in_any_encoding_reads_and_is_written_back() {
        let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        for bytes in [
            utf16("\u{feff}Zoë,bob@example.com\n"),
            b"Zo\xeb,bob@example.com\n".to_vec(),
            b"\xfe\xff\0Z\0\n".to_vec(),
        ] {
            let (encoding, text) = decode(&bytes).unwrap_or_else(|| panic!("{bytes:?}"));
            assert_eq!(encode(encoding, &text), bytes);
        }
        for bytes in [&b"\x80\x03}q\0."[..], b"\xff\xfe\0\0a\0\0\0", b"\xff\xfea", b"\x89\xff\xfe\xfd"] {
            assert_eq!(decode(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn an_archive_is_read_member_by_member() {
        let mail = b"<si><t>bob@example.com</t></si>";
        let inner = zip(&[("a.txt", mail, true)]);
        let drawn = b"<svg><path d=\"M 1 2 Q 4111 1111 1111 1111 z\"/><text>42</text></svg>";
        for (bytes, expected) in [
            (zip(&[("chart.svg", drawn, true)]), Seen::Clean),
            (zip(&[("chart.svg", &[&drawn[..], mail].concat(), true)]), Seen::Holds),
            (zip(&[]), Seen::Clean),
            (zip(&[("xl/sheet.xml", b"<v>42</v>", true), ("empty", b"", false)]), Seen::Clean),
            (zip(&[("xl/sharedStrings.xml", mail, true)]), Seen::Holds),
            (zip(&[("a.txt", mail, false)]), Seen::Holds),
            (zip(&[("bob@example.com.txt", b"x", false)]), Seen::Holds),
            (zip(&[("a.zip", &inner, false)]), Seen::Holds),
            (zip(&[("a.bin", b"\0\x01\xfe\xff", false)]), Seen::Opaque),
            (zip(&[("a.txt", &vec![b'x'; 2_000_000], true)]), Seen::Opaque),
            (b"PK\x03\x04\0\0 and no more".to_vec(), Seen::Opaque),
            (inner[..inner.len() / 2].to_vec(), Seen::Opaque),
        ] {
            assert_eq!(
                seen(&bytes),
                expected,
                "{:?}",
                String::from_utf8_lossy(&bytes[..bytes.len().min(80)])
            );
        }
    }

    #[test]
    fn databases_and_arrays_are_read() {
        let sqlite =
            |text: &str| [&b"SQLite format 3\0\x10\0\x01\x01"[..], text.as_bytes(), &[0, 0xff]].concat();
        let array = |kind: &str, data: &[u8]| {
            [
                &b"\x93NUMPY\x01\0v\0"[..],
                format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': (1,), }}\n").as_bytes(),
                data,
            ]
            .concat()
        };
        let wide: Vec<u8> = "bob@example.com".chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
        for (bytes, expected) in [
            (sqlite("\x07hello"), Seen::Clean),
            (sqlite("\x07bob@example.com"), Seen::Holds),
            (array("<f8", &[0, 0x7f, 0xff]), Seen::Clean),
            (array("<U15", &wide), Seen::Holds),
            (array("|O", b"\x80\x04bob"), Seen::Opaque),
            (b"PAR1\x15\x04\0\xff".to_vec(), Seen::Opaque),
        ] {
            assert_eq!(seen(&bytes), expected, "{:?}", String::from_utf8_lossy(&bytes));
        }
    }
}
