//! Pictures and documents: the text that travels inside a PNG or JPEG is taken out, the pixels stay.
//!
//! Pixels are not read: a number drawn into a plot goes out. A PDF is passed whole or not at all, for its parts are
//! found by their offsets; what it says in plain bytes or in deflated streams is looked at. `docs/guard.md` says so.

use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memmem;

use super::Guard;

/// What stands in place of binary content that is not what it says.
pub(super) const WITHHELD: &str = "[WITHHELD]";

/// The most that the streams of a PDF may inflate to, in bytes; a larger one is withheld.
const MAX_INFLATED: u64 = 64 * 1024 * 1024;
/// A text shorter than this is looked at as text, whatever its characters decode to.
const SHORTEST: usize = 64;

/// A binary form of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Png,
    Jpeg,
    Pdf,
}

impl Format {
    /// The binary form behind a format name or MIME type.
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            "png" | "image/png" => Some(Self::Png),
            "jpeg" | "jpg" | "image/jpeg" => Some(Self::Jpeg),
            "pdf" | "application/pdf" => Some(Self::Pdf),
            _ => None,
        }
    }

    /// The binary form that bytes begin like.
    pub(super) fn sniff(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x89, b'P', b'N', b'G', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'%', b'P', b'D', b'F', b'-', ..] => Some(Self::Pdf),
            _ => None,
        }
    }
}

/// What a text that is meant to be read may hold instead.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Text; it is looked at as such.
    Text,
    /// A binary form in base64, without its text.
    Clean(String),
    /// Something that cannot be looked into.
    Opaque,
}

/// Forms that a front end shows as text, whatever they hold.
const TEXTS: [&str; 5] = ["text", "html", "markdown", "latex", "svg"];

/// What the content of a result's form is that is not known to be binary: by its own bytes, for a name says little.
pub(super) fn content(guard: &Guard, name: &str, text: &str) -> Content {
    if TEXTS.contains(&name) || name.starts_with("text/") {
        return Content::Text;
    }
    let Some(bytes) = decoded(text) else { return Content::Text };
    match Format::sniff(&bytes) {
        Some(format) => in_base64(clean(guard, format, &bytes)).map_or(Content::Opaque, Content::Clean),
        // Text in base64: the rules see through it.
        None if std::str::from_utf8(&bytes).is_ok() => Content::Text,
        None => Content::Opaque,
    }
}

/// The bytes behind a text that is base64 from end to end and not short.
fn decoded(text: &str) -> Option<Vec<u8>> {
    if text.len() < SHORTEST || text.contains(' ') || text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let compact: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(compact).ok()
}

/// A binary form without its text, as base64; `None` when it is not what it says.
pub(super) fn strip(guard: &Guard, format: Format, base64: &str) -> Option<String> {
    let compact: Vec<u8> = base64.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    in_base64(clean(guard, format, &STANDARD.decode(compact).ok()?))
}

fn in_base64(bytes: Option<Vec<u8>>) -> Option<String> {
    bytes.map(|bytes| STANDARD.encode(bytes))
}

/// A binary form without its text; `None` when it is not what it says.
pub(super) fn clean(guard: &Guard, format: Format, bytes: &[u8]) -> Option<Vec<u8>> {
    match format {
        Format::Png => png(bytes),
        Format::Jpeg => jpeg(bytes),
        Format::Pdf => pdf(guard, bytes).map(<[u8]>::to_vec),
    }
}

/// Text with the pictures of its `data:` URLs cleaned like any other. What such a URL carries that is neither text nor
/// a picture is left out. `None`: there is none to change. The count is of what was left out.
pub(super) fn data_urls(guard: &Guard, text: &str) -> Option<(String, u64)> {
    const MARK: &str = ";base64,";
    let mut out = String::new();
    let (mut done, mut withheld) = (0, 0);
    for at in memmem::find_iter(text.as_bytes(), MARK) {
        let start = at + MARK.len();
        let name = text[..at].len().saturating_sub(100);
        if start < done
            || !text.as_bytes()[name..at].windows(5).any(|five| five.eq_ignore_ascii_case(b"data:"))
        {
            continue;
        }
        let run = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(**byte, b'+' | b'/' | b'=');
        let end = start + text.as_bytes()[start..].iter().take_while(run).count();
        let Ok(bytes) = STANDARD.decode(&text[start..end]) else { continue };
        let new = match Format::sniff(&bytes) {
            Some(format) => in_base64(clean(guard, format, &bytes)),
            None if std::str::from_utf8(&bytes).is_ok() => continue,
            None => None,
        };
        withheld += u64::from(new.is_none());
        out.push_str(&text[done..start]);
        out.push_str(&new.unwrap_or_default());
        done = end;
    }
    (done > 0).then(|| (out + &text[done..], withheld))
}

/// Chunks of a PNG that make the picture (W3C PNG section 11); everything else is dropped, as is what follows `IEND`.
const PNG_KEEP: &[&[u8; 4]] = &[
    b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"cHRM", b"gAMA", b"sBIT", b"sRGB", b"cICP", b"bKGD",
    b"pHYs", b"acTL", b"fcTL", b"fdAT",
];

fn png(bytes: &[u8]) -> Option<Vec<u8>> {
    const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
    let mut rest = bytes.strip_prefix(SIGNATURE)?;
    let mut out = Vec::with_capacity(bytes.len());
    out.extend_from_slice(SIGNATURE);
    loop {
        let (length, _) = rest.split_first_chunk::<4>()?;
        let total = 12usize.checked_add(u32::from_be_bytes(*length) as usize)?;
        let (chunk, after) = rest.split_at_checked(total)?;
        let name = &chunk[4..8];
        if PNG_KEEP.iter().any(|keep| name == *keep) {
            out.extend_from_slice(chunk);
        }
        if name == b"IEND" {
            return Some(out);
        }
        rest = after;
    }
}

fn jpeg(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut rest = bytes.strip_prefix(b"\xff\xd8")?;
    let mut out = b"\xff\xd8".to_vec();
    loop {
        let [0xff, marker, high, low, ..] = *rest else { return None };
        let total = 2 + usize::from(u16::from_be_bytes([high, low]));
        let (segment, after) = rest.split_at_checked(total)?;
        // APP1 to APP15 but for Adobe's colour transform (APP14), and comments.
        let text = matches!(marker, 0xe1..=0xed | 0xef | 0xfe);
        if !text {
            out.extend_from_slice(segment);
        }
        if marker == 0xda {
            // The picture's data runs to the end marker; what follows it is no picture.
            let end = after.windows(2).rposition(|pair| pair == b"\xff\xd9")?;
            out.extend_from_slice(&after[..end + 2]);
            return Some(out);
        }
        rest = after;
    }
}

/// A PDF in which nothing is found: neither in its plain bytes nor in its streams (ISO 32000-1, 7.3.8) once inflated.
/// Text that it draws letter by letter or by a font's own numbers is not seen.
fn pdf<'a>(guard: &Guard, bytes: &'a [u8]) -> Option<&'a [u8]> {
    bytes.strip_prefix(b"%PDF-")?;
    let (mut plain, mut budget) = (String::new(), MAX_INFLATED);
    let mut rest = bytes;
    while let Some(at) = memmem::find(rest, b"stream") {
        let (head, tail) = rest.split_at(at + 6);
        let begin = tail.iter().take(2).take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let end = memmem::find(tail, b"endstream").unwrap_or(tail.len());
        let body = &tail[begin.min(end)..end];
        plain.push_str(&String::from_utf8_lossy(head));
        plain.push('\n');
        match inflated(body, budget)? {
            Some(inflated) => {
                budget -= inflated.len() as u64;
                plain.push_str(&String::from_utf8_lossy(&inflated));
            }
            // Pictures are pixels; everything else is looked at as it is.
            None if body.starts_with(b"\xff\xd8\xff") => {}
            None => plain.push_str(&String::from_utf8_lossy(body)),
        }
        plain.push('\n');
        rest = tail[end..].strip_prefix(b"endstream").unwrap_or_default();
    }
    plain.push_str(&String::from_utf8_lossy(rest));
    guard.check(&plain).findings.is_empty().then_some(bytes)
}

/// What a deflated stream holds, also one written in ASCII85; `None` inside: it is not deflated. `None` outside: it is
/// too large to be looked at.
fn inflated(body: &[u8], budget: u64) -> Option<Option<Vec<u8>>> {
    let ascii;
    let body = match zlib(body) {
        true => body,
        false => {
            ascii = ascii85(body);
            match ascii.as_deref().filter(|bytes| zlib(bytes)) {
                Some(bytes) => bytes,
                None => return Some(None),
            }
        }
    };
    let mut out = Vec::new();
    // A broken end is a reader's to mend: what came before it counts.
    let _ = flate2::read::ZlibDecoder::new(body).take(budget + 1).read_to_end(&mut out);
    (out.len() as u64 <= budget).then_some(Some(out).filter(|out| !out.is_empty()))
}

/// Whether bytes begin as zlib's do (RFC 1950, section 2.2).
fn zlib(bytes: &[u8]) -> bool {
    matches!(bytes, [method, flags, ..] if method & 15 == 8 && (u16::from(*method) << 8 | u16::from(*flags)) % 31 == 0)
}

/// ASCII85 as PDF writes it (ISO 32000-1, 7.4.3); `None` when it is something else.
fn ascii85(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut group = Vec::with_capacity(5);
    let push = |group: &[u8], keep: usize, out: &mut Vec<u8>| {
        let value =
            (0..5).fold(0u64, |sum, at| sum * 85 + group.get(at).map_or(84, |digit| u64::from(*digit)));
        out.extend_from_slice(&(value as u32).to_be_bytes()[..keep]);
    };
    for byte in text.iter().filter(|byte| !byte.is_ascii_whitespace()) {
        match byte {
            b'~' => break,
            b'z' if group.is_empty() => out.extend_from_slice(&[0; 4]),
            b'!'..=b'u' => group.push(byte - b'!'),
            _ => return None,
        }
        if group.len() == 5 {
            push(&group, 4, &mut out);
            group.clear();
        }
    }
    if group.len() > 1 {
        push(&group, group.len() - 1, &mut out);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn deflated(text: &str) -> Vec<u8> {
        let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(text.as_bytes()).unwrap();
        out.finish().unwrap()
    }

    fn in_ascii85(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for chunk in bytes.chunks(4) {
            let mut four = [0; 4];
            four[..chunk.len()].copy_from_slice(chunk);
            let mut value = u32::from_be_bytes(four);
            let mut group = [0; 5];
            for digit in group.iter_mut().rev() {
                *digit = (value % 85) as u8 + b'!';
                value /= 85;
            }
            out.extend_from_slice(&group[..chunk.len() + 1]);
        }
        out.extend_from_slice(b"~>");
        out
    }

    fn document(body: &[u8]) -> Vec<u8> {
        [b"%PDF-1.4\n%\xb5\xb5\n1 0 obj <</Length 9>> stream\n", body, b"\nendstream endobj\n%%EOF"].concat()
    }

    #[test]
    fn a_pdf_passes_whole_unless_it_says_something_in_plain_or_deflated_text() {
        let guard = Guard::default();
        let page = "BT /F1 12 Tf (ask bob@example.com) Tj ET";
        let clean = "BT /F1 12 Tf (ask the office) Tj ET";
        for (body, passes) in [
            (clean.as_bytes().to_vec(), true),
            (deflated(clean), true),
            (in_ascii85(&deflated(clean)), true),
            (page.as_bytes().to_vec(), false),
            (deflated(page), false),
            (in_ascii85(&deflated(page)), false),
        ] {
            let document = document(&body);
            let kept = strip(&guard, Format::Pdf, &STANDARD.encode(&document));
            assert_eq!(
                kept,
                passes.then(|| STANDARD.encode(&document)),
                "{}",
                String::from_utf8_lossy(&body)
            );
        }
        for text in ["%PDF-\nbob@example.com", "%PDF-1.4 stream bob@example.com"] {
            assert_eq!(strip(&guard, Format::Pdf, &STANDARD.encode(text)), None, "{text}");
        }
    }

    #[test]
    fn a_stream_that_inflates_without_end_is_withheld() {
        let bomb = deflated(&" ".repeat(usize::try_from(MAX_INFLATED).unwrap() + 1));
        assert_eq!(strip(&Guard::default(), Format::Pdf, &STANDARD.encode(document(&bomb))), None);
    }

    #[test]
    fn what_a_text_holds_is_told_by_its_bytes() {
        let guard = Guard::default();
        let png = png_with_text();
        let Content::Clean(clean) = content(&guard, "application/x", &STANDARD.encode(&png)) else {
            panic!("no picture")
        };
        assert!(!STANDARD.decode(clean).unwrap().windows(3).any(|part| part == b"bob"));
        assert_eq!(content(&guard, "application/x", &STANDARD.encode([0xfe; 60])), Content::Opaque);
        assert_eq!(
            content(
                &guard,
                "application/x",
                &STANDARD.encode("ask bob@example.com about the figures of this year".repeat(2))
            ),
            Content::Text
        );
        let digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(content(&guard, "text", &STANDARD.encode([0xfe; 60])), Content::Text);
        for text in ["", "PK", "a table, then words", "QUJD", digest] {
            assert_eq!(content(&guard, "application/x", text), Content::Text, "{text}");
        }
    }

    #[test]
    fn pictures_in_data_urls_lose_their_text_and_what_is_opaque_goes() {
        let guard = Guard::default();
        let html = format!("<img src=\"data:image/png;base64,{}\"> end", STANDARD.encode(png_with_text()));
        let (clean, withheld) = data_urls(&guard, &html).unwrap();
        assert!(
            clean.starts_with("<img src=\"data:image/png;base64,iVBOR") && clean.ends_with("\"> end"),
            "{clean}"
        );
        assert!(clean.len() < html.len() && withheld == 0);
        let html = format!("<a href='data:application/zip;base64,{}'>", STANDARD.encode([0xfe; 60]));
        assert_eq!(data_urls(&guard, &html), Some(("<a href='data:application/zip;base64,'>".to_owned(), 1)));
        for text in ["no url", "data:text/plain;base64,aGVsbG8gd29ybGQ=", "x;base64,iVBOR"] {
            assert_eq!(data_urls(&guard, text), None, "{text}");
        }
    }

    fn png_with_text() -> Vec<u8> {
        let chunk = |name: &[u8; 4], data: &[u8]| {
            [&u32::try_from(data.len()).unwrap().to_be_bytes()[..], name, data, &[0; 4]].concat()
        };
        let text = chunk(b"tEXt", b"Author\0bob@example.com, who made this picture");
        [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &[0; 13]), text, chunk(b"IEND", b"")].concat()
    }
}
