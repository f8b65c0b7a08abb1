//! PDF documents: their plain bytes and their streams are read as text.

use std::borrow::Cow;
use std::io::Read as _;

use memchr::memmem;

use super::{Inspector, PDF, PIECE};
use crate::guard::check::Checker;
use crate::guard::{Action, Guard};

/// The text of a JPEG beside its picture; all of one that is broken.
fn text_segments(jpeg: &[u8]) -> Vec<&[u8]> {
    let mut segments = Vec::new();
    let end = super::jpeg(jpeg, |drawn, part| segments.extend(Some(part).filter(|_| !drawn)));
    match end {
        Some(end) => segments.push(&jpeg[end..]),
        None => segments = vec![jpeg],
    }
    segments
}

/// A PDF without findings: neither in its plain bytes nor in its inflated streams (ISO 32000-1, 7.3.8), with
/// its strings and names decoded. Text that it draws letter by letter or by a font's own numbers is not seen.
pub(super) fn clean<'a>(inspector: &mut Inspector<'_>, bytes: &'a [u8]) -> Option<&'a [u8]> {
    memmem::find(&bytes[..bytes.len().min(1024)], PDF)?;
    let mut reader = Reader::new(inspector.guard);
    let whole = reader.document(bytes, inspector.left).is_some();
    let checked = reader.checker.finish();
    let report = &checked.report;
    let clean = checked.findings.is_empty() && report.errors == 0 && report.withheld == 0;
    inspector.report.absorb(report);
    (whole && clean).then_some(bytes)
}

/// Reads a PDF as text, piece by piece.
pub(super) struct Reader {
    checker: Checker,
    /// Whether the first finding decides.
    any: bool,
    pub(super) text: String,
}

impl Reader {
    pub(super) fn new(guard: &Guard) -> Self {
        let any = !guard.policy().actions.values().any(|action| *action == Action::Block);
        Self { checker: Checker::new(guard), any, text: String::new() }
    }

    /// Scans a document; `None`: something is found, or it cannot be inspected.
    fn document(&mut self, bytes: &[u8], left: &mut u64) -> Option<()> {
        let (mut at, mut end) = (0, 0);
        while let Some(word) = memmem::find(&bytes[at..], b"stream") {
            let start = at + word + b"stream".len();
            let head = &bytes[at..start];
            self.plain(head)?;
            if end < start {
                end = memmem::find(&bytes[start..], b"endstream").map_or(bytes.len(), |len| start + len);
            }
            let feeds = bytes[start..end].iter().take(2).take_while(|byte| matches!(byte, b'\r' | b'\n'));
            let body = &bytes[start + feeds.count()..end];
            let dictionary = Dictionary::before(head);
            if dictionary.hides() {
                return None;
            }
            if self.read(body, &dictionary, left)? {
                at = bytes.len().min(end + b"endstream".len());
            } else if dictionary.attached() && std::str::from_utf8(body).is_err() {
                return None;
            } else {
                // It is scanned as it is. The word may have been in a comment, with the stream beginning after it.
                at = start;
            }
            self.push(b"\n")?;
        }
        self.plain(&bytes[at..])?;
        self.flush()
    }

    /// The text outside streams. `None`: something is found, or the document is encrypted.
    fn plain(&mut self, bytes: &[u8]) -> Option<()> {
        let names = named(bytes);
        let ends = |at: usize| !names.get(at + 8).is_some_and(u8::is_ascii_alphanumeric);
        if memmem::find_iter(&names, b"/Encrypt").any(ends) {
            return None;
        }
        self.push(&unescaped(bytes))?;
        self.push(b"\n")
    }

    /// Scans the content of a stream; `Some(false)`: it needs no decoding.
    fn read(&mut self, body: &[u8], dictionary: &Dictionary<'_>, left: &mut u64) -> Option<bool> {
        if body.starts_with(b"\xff\xd8\xff") {
            for text in text_segments(body) {
                self.push(text)?;
                self.push(b"\n")?;
            }
            return Some(true);
        }
        if zlib(body) {
            return self.inflated(body, dictionary.attached(), left);
        }
        let Some(ascii) = ascii85(body, left)? else { return Some(false) };
        if zlib(&ascii) {
            return self.inflated(&ascii, dictionary.attached(), left);
        }
        if dictionary.ways().starts_with('a') {
            self.push(&unescaped(&ascii))?;
            self.push(b"\n")?;
        }
        Some(false)
    }

    /// Takes bytes as text, with a `?` for each that is not.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<()> {
        for piece in bytes.utf8_chunks() {
            let mut valid = piece.valid();
            while !valid.is_empty() {
                let (now, later) = valid.split_at(valid.floor_char_boundary(PIECE));
                self.text.push_str(now);
                valid = later;
                if self.text.len() >= PIECE {
                    self.flush()?;
                }
            }
            self.text.extend(piece.invalid().iter().map(|_| '?'));
            if self.text.len() >= PIECE {
                self.flush()?;
            }
        }
        Some(())
    }

    fn flush(&mut self) -> Option<()> {
        self.checker.push(&self.text);
        self.text.clear();
        let report = self.checker.report();
        let found = report.blocked || report.errors > 0 || self.any && report.total() > 0;
        (!found).then_some(())
    }

    /// Takes the content of a deflated stream; whether it is one. `attached` content must be text.
    fn inflated(&mut self, body: &[u8], attached: bool, left: &mut u64) -> Option<bool> {
        let mut stream = flate2::bufread::ZlibDecoder::new(body);
        let mut piece = vec![0; PIECE];
        let (mut kept, mut any) = (0, false);
        loop {
            // Readers repair a broken end: the bytes before it count.
            let read = stream.read(&mut piece[kept..]).unwrap_or(0);
            spend(left, read)?;
            let have = kept + read;
            let end = if read == 0 { have } else { have - begun(&piece[..have]) };
            if attached && std::str::from_utf8(&piece[..end]).is_err() {
                return None;
            }
            let seen = if attached { Cow::Borrowed(&piece[..end]) } else { unescaped(&piece[..end]) };
            self.push(&seen)?;
            piece.copy_within(end..have, 0);
            kept = have - end;
            any |= read > 0;
            if read == 0 {
                return Some(any);
            }
        }
    }
}

/// Spends part of the inflation budget; `None`: it is exhausted.
fn spend(left: &mut u64, bytes: usize) -> Option<()> {
    let rest = left.checked_sub(bytes as u64);
    *left = rest.unwrap_or(0);
    rest.map(|_| ())
}

/// The dictionary before a stream, which says how to read it (ISO 32000-1, 7.3.8).
struct Dictionary<'a>(Cow<'a, [u8]>);

impl<'a> Dictionary<'a> {
    fn before(head: &'a [u8]) -> Self {
        const MAX: usize = 4096;
        if head.ends_with(b"end") {
            return Self(Cow::Borrowed(b""));
        }
        let near = &head[head.len().saturating_sub(MAX)..];
        Self(named(&near[memmem::rfind(near, b"obj").unwrap_or(0)..]))
    }

    /// Its names, each with what comes before the next.
    fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let ends = |byte: &u8| byte.is_ascii_whitespace() || b"\0()<>[]{}%".contains(byte);
        self.0.split(|byte| *byte == b'/').skip(1).map(move |entry| {
            let (name, value) = entry.split_at(entry.iter().position(ends).unwrap_or(entry.len()));
            (name, value.trim_ascii_start())
        })
    }

    fn names(&self, name: &[u8]) -> bool {
        self.entries().any(|(known, _)| known == name)
    }

    /// Whether the stream is a file of its own.
    fn attached(&self) -> bool {
        self.names(b"EmbeddedFile")
    }

    /// Its encodings, a letter for each filter: `a` for ASCII85, `f` for deflate, `?` for one that is not supported.
    fn ways(&self) -> String {
        let way = |(name, _): (&[u8], &[u8])| match name {
            b"ASCII85Decode" | b"A85" => Some('a'),
            b"FlateDecode" | b"Fl" => Some('f'),
            b"LZWDecode" | b"LZW" | b"RunLengthDecode" | b"RL" | b"ASCIIHexDecode" | b"AHx" | b"Crypt" => {
                Some('?')
            }
            _ => None,
        };
        self.entries().filter_map(way).collect()
    }

    /// Whether its encoding is not supported, and it is not a picture.
    fn hides(&self) -> bool {
        let first = |value: &[u8]| value.iter().find(|byte| **byte != b'[' && **byte != b' ').copied();
        let elsewhere = |(name, value): (&[u8], &[u8])| match name {
            b"Filter" | b"DecodeParms" => first(value).is_some_and(|byte| byte.is_ascii_digit()),
            // The numbers of an object table are not text; 1 is none.
            b"Predictor" => {
                !self.names(b"XRef") && value.split(|byte| !byte.is_ascii_digit()).next() != Some(b"1")
            }
            _ => false,
        };
        !self.names(b"Image")
            && (!["", "a", "f", "af"].contains(&&*self.ways()) || self.entries().any(elsewhere))
    }
}

/// Bytes with their names (ISO 32000-1, 7.3.5) decoded: `/Encr#79pt`.
fn named(bytes: &[u8]) -> Cow<'_, [u8]> {
    decoding(bytes, b'#', |rest| {
        let digit = |at: usize| char::from(*rest.get(at)?).to_digit(16);
        Some((2, Some((digit(0)? << 4 | digit(1)?) as u8)))
    })
}

/// Bytes with their strings (ISO 32000-1, 7.3.4.2) decoded: `\100`, `\(`, a continued line.
fn unescaped(bytes: &[u8]) -> Cow<'_, [u8]> {
    decoding(bytes, b'\\', |rest| {
        let octal = rest.iter().take(3).take_while(|byte| matches!(byte, b'0'..=b'7'));
        let (digits, code) =
            octal.fold((0, 0), |(digits, code), byte| (digits + 1, code << 3 | u32::from(byte - b'0')));
        match rest {
            _ if digits > 0 => Some((digits, Some(code as u8))),
            [byte @ (b'(' | b')'), ..] => Some((1, Some(*byte))),
            [b'\r', b'\n', ..] => Some((2, None)),
            [b'\r' | b'\n', ..] => Some((1, None)),
            _ => None,
        }
    })
}

/// Bytes with each escape that begins with `sign` decoded: `code` gives the length after the sign, and the decoded bytes.
fn decoding(bytes: &[u8], sign: u8, code: impl Fn(&[u8]) -> Option<(usize, Option<u8>)>) -> Cow<'_, [u8]> {
    let (mut out, mut done) = (Vec::new(), 0);
    for at in memchr::memchr_iter(sign, bytes) {
        let Some((len, byte)) = code(&bytes[at + 1..]).filter(|_| at >= done) else { continue };
        out.extend_from_slice(&bytes[done..at]);
        out.extend(byte);
        done = at + 1 + len;
    }
    if done == 0 {
        return Cow::Borrowed(bytes);
    }
    out.extend_from_slice(&bytes[done..]);
    Cow::Owned(out)
}

/// How many bytes at the end begin an unfinished character or escape.
fn begun(bytes: &[u8]) -> usize {
    let last = bytes.iter().rev().zip(1..=3);
    let begins = |byte: u8, back: u32| byte == b'\\' || byte.leading_ones() > back;
    last.filter(|(byte, back)| begins(**byte, *back)).map(|(_, back)| back as usize).last().unwrap_or(0)
}

/// Whether bytes begin like a zlib stream (RFC 1950, section 2.2).
fn zlib(bytes: &[u8]) -> bool {
    matches!(bytes, [method, flags, ..] if method & 15 == 8 && (u16::from(*method) << 8 | u16::from(*flags)) % 31 == 0)
}

/// ASCII85 as in PDF (ISO 32000-1, 7.4.3); `Some(None)` when it is something else, `None` when it decodes to more than
/// the budget allows.
fn ascii85(text: &[u8], left: &mut u64) -> Option<Option<Vec<u8>>> {
    let mut out = Vec::new();
    let mut group = Vec::with_capacity(5);
    let push = |group: &[u8], keep: usize, out: &mut Vec<u8>| {
        let value =
            (0..5).fold(0u64, |sum, at| sum * 85 + group.get(at).map_or(84, |digit| u64::from(*digit)));
        out.extend_from_slice(&(value as u32).to_be_bytes()[..keep]);
    };
    for byte in text.iter().filter(|byte| !byte.is_ascii_whitespace()) {
        match byte {
            b'~' => break,
            b'z' if group.is_empty() => {
                spend(left, 4)?;
                out.extend_from_slice(&[0; 4]);
            }
            b'!'..=b'u' => group.push(byte - b'!'),
            _ => return Some(None),
        }
        if group.len() == 5 {
            spend(left, 4)?;
            push(&group, 4, &mut out);
            group.clear();
        }
    }
    if group.len() > 1 {
        push(&group, group.len() - 1, &mut out);
    }
    Some(Some(out))
}
