//! Pictures and documents: the text inside a PNG or JPEG is removed, the pixels stay.
//!
//! Pixels are not read: a number drawn into a plot goes out. A PDF passes whole or not at all, because its parts are
//! found by their offsets; its plain bytes and deflated streams are scanned. See `docs/guard.md`.

mod pdf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use memchr::memmem;

use super::check::Checker;
use super::embedded::LENIENT;
use super::{Guard, Report};

/// The most bytes that the streams of all PDFs of a run may inflate to; a PDF that exceeds this is withheld.
pub(super) const MAX_INFLATED: u64 = 32 * 1024 * 1024;
/// How much of a PDF is scanned at once.
const PIECE: usize = 64 * 1024;
/// A shorter text is scanned as text, whatever its characters decode to.
const SHORTEST: usize = 64;

/// The state for inspecting binary formats.
pub(super) struct Inspector<'a> {
    pub(super) guard: &'a Guard,
    /// How many bytes PDFs may still inflate to.
    pub(super) left: &'a mut u64,
    /// Receives the findings in them.
    pub(super) report: &'a mut Report,
}

impl Inspector<'_> {
    /// Whether anything is found in a text that is not shown as text.
    pub(super) fn has_findings(&mut self, text: &str) -> bool {
        let mut checker = Checker::new(self.guard);
        checker.push(text);
        let report = checker.finish().report;
        let found = report.total() > 0 || report.errors > 0 || report.withheld > 0;
        self.report.absorb(&report);
        found
    }
}

/// A binary format of a result or a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A PNG picture.
    Png,
    /// A JPEG picture.
    Jpeg,
    /// A GIF picture.
    Gif,
    /// A WebP picture.
    Webp,
    /// A PDF document.
    Pdf,
}

impl Format {
    const ALL: [Self; 5] = [Self::Png, Self::Jpeg, Self::Gif, Self::Webp, Self::Pdf];

    /// Its media type.
    pub fn mime_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
            Self::Pdf => "application/pdf",
        }
    }

    /// The binary format for a format name or MIME type.
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            "png" => Some(Self::Png),
            "jpeg" | "jpg" => Some(Self::Jpeg),
            "pdf" => Some(Self::Pdf),
            _ => Self::ALL.into_iter().find(|format| format.mime_type() == name),
        }
    }

    /// The binary format, judging by the first bytes.
    pub(super) fn sniff(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x89, b'P', b'N', b'G', ..] => Some(Self::Png),
            [0xff, 0xd8, 0xff, ..] => Some(Self::Jpeg),
            [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(Self::Gif),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::Webp),
            _ if bytes.starts_with(PDF) => Some(Self::Pdf),
            _ => None,
        }
    }
}

const PDF: &[u8] = b"%PDF-";

/// Whether a text is a PDF whose streams are written in ASCII. Readers accept its first line anywhere in the first 1,024
/// bytes; a text that only mentions such a line has no objects.
pub(super) fn is_pdf_in_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut lines = memmem::find_iter(&bytes[..bytes.len().min(1024)], PDF);
    lines.any(|at| bytes[..at].trim_ascii_end().is_empty() || bytes[at - 1] == b'\n')
        && memmem::find(bytes, b" obj").is_some()
}

/// What a text that is meant to be read may hold instead.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Text; it is scanned as such.
    Text,
    /// A binary format in base64, without its text.
    Clean(String),
    /// Something that cannot be inspected.
    Opaque,
}

/// Formats that a front end shows as text, whatever they hold.
const TEXTS: [&str; 5] = ["text", "html", "markdown", "latex", "svg"];

/// The content of a result's format that is not known to be binary: by its own bytes, because a name proves little.
pub(super) fn content(inspector: &mut Inspector<'_>, name: &str, text: &str) -> Content {
    if TEXTS.contains(&name) || name.starts_with("text/") {
        return Content::Text;
    }
    let Some(bytes) = decoded(text) else { return Content::Text };
    match Format::sniff(&bytes) {
        Some(format) => in_base64(clean(inspector, format, &bytes)).map_or(Content::Opaque, Content::Clean),
        // Text in base64. The rules do not see everything that a reader of it would.
        None => match std::str::from_utf8(&bytes) {
            Ok(inner) if !inspector.has_findings(inner) => Content::Text,
            _ => Content::Opaque,
        },
    }
}

/// The decoded bytes of a text that is base64 from end to end and not short.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_ascii();
    let words = text.lines().any(|line| line.trim_ascii().bytes().any(|byte| byte.is_ascii_whitespace()));
    if text.len() < SHORTEST || words || text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut compact: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(&compact).ok().or_else(|| {
        // In the other alphabet or without padding it could be a path or an identifier; those are less mixed.
        let mixed = [u8::is_ascii_uppercase, u8::is_ascii_lowercase, u8::is_ascii_digit];
        if !mixed.iter().all(|class| compact.iter().any(class)) {
            return None;
        }
        for byte in &mut compact {
            *byte = match *byte {
                b'-' => b'+',
                b'_' => b'/',
                same => same,
            };
        }
        LENIENT.decode(compact).ok()
    })
}

/// A binary format without its text, as base64; `None` when the data does not match the format.
pub(super) fn strip(inspector: &mut Inspector<'_>, format: Format, base64: &str) -> Option<String> {
    let compact: Vec<u8> = base64.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    in_base64(clean(inspector, format, &STANDARD.decode(compact).ok()?))
}

fn in_base64(bytes: Option<Vec<u8>>) -> Option<String> {
    bytes.map(|bytes| STANDARD.encode(bytes))
}

/// A binary format without its text; `None` when the data does not match the format.
pub(super) fn clean(inspector: &mut Inspector<'_>, format: Format, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let keep = |keep: bool, part: &[u8]| out.extend_from_slice(if keep { part } else { b"" });
    match format {
        Format::Png => png(bytes, keep)?,
        Format::Jpeg => jpeg(bytes, keep)?,
        Format::Gif => gif(bytes, keep)?,
        Format::Webp => return webp(bytes),
        Format::Pdf => return pdf::clean(inspector, bytes).map(<[u8]>::to_vec),
    };
    Some(out)
}

/// How many of the bytes belong to the format, as far as its end can be seen; what follows is something else.
pub(super) fn length(format: Format, bytes: &[u8]) -> usize {
    let end = match format {
        Format::Png => png(bytes, |_, _| ()),
        Format::Jpeg => jpeg(bytes, |_, _| ()),
        Format::Gif => gif(bytes, |_, _| ()),
        Format::Webp => riff_end(bytes),
        Format::Pdf => memmem::rfind(bytes, b"%%EOF").map(|at| at + b"%%EOF".len()),
    };
    end.unwrap_or(bytes.len())
}

// The readers of pictures show each part to `see`, with whether it is needed to draw the picture, and return where the picture
// ends. `None`: it is broken.

/// Chunks of a PNG that make up the picture (W3C PNG section 11); everything else is dropped, including what follows `IEND`.
const PNG_KEEP: &[&[u8; 4]] = &[
    b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS", b"cHRM", b"gAMA", b"sBIT", b"sRGB", b"cICP", b"bKGD",
    b"pHYs", b"acTL", b"fcTL", b"fdAT",
];

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

fn png<'a>(png: &'a [u8], mut see: impl FnMut(bool, &'a [u8])) -> Option<usize> {
    let mut rest = png.strip_prefix(SIGNATURE)?;
    see(true, SIGNATURE);
    loop {
        let length = u32::from_be_bytes(*rest.first_chunk()?) as usize;
        let (chunk, after) = rest.split_at_checked(length.checked_add(12)?)?;
        let name = &chunk[4..8];
        see(PNG_KEEP.iter().any(|keep| name == *keep), chunk);
        if name == b"IEND" {
            return Some(png.len() - after.len());
        }
        rest = after;
    }
}

/// Segments (ITU-T T.81, B.1.1), and the data of each scan.
fn jpeg<'a>(jpeg: &'a [u8], mut see: impl FnMut(bool, &'a [u8])) -> Option<usize> {
    if !jpeg.starts_with(b"\xff\xd8") {
        return None;
    }
    see(true, &jpeg[..2]);
    let mut at = 2;
    loop {
        // Any number of these may come before a marker.
        let fill = jpeg[at..].iter().take_while(|byte| **byte == 0xff).count();
        at += fill.checked_sub(1)?;
        let marker = *jpeg.get(at + 1)?;
        match marker {
            0xd9 => {
                see(true, &jpeg[at..at + 2]);
                return Some(at + 2);
            }
            // These have no length and do not belong here.
            0..=1 | 0xd0..=0xd8 => return None,
            _ => {}
        }
        let length = jpeg.get(at + 2..at + 4)?;
        let segment = jpeg.get(at..at + 2 + usize::from(u16::from_be_bytes([length[0], length[1]])))?;
        if segment.len() < 4 {
            return None;
        }
        see(is_picture(marker, segment), segment);
        at += segment.len();
        if marker == 0xda {
            let data = &jpeg[at..];
            let in_data = |next: Option<&u8>| matches!(next, Some(0 | 0xff | 0xd0..=0xd7));
            let end = memchr::memchr_iter(0xff, data).find(|at| !in_data(data.get(at + 1)))?;
            let data = &data[..end];
            let fill = data.iter().rev().take_while(|byte| **byte == 0xff).count();
            see(true, &data[..end - fill]);
            at += end - fill;
        }
    }
}

/// Whether a segment of a JPEG is needed to draw it. Of the application segments only the two that define the meaning of its
/// numbers are, and only if they contain nothing more.
fn is_picture(marker: u8, segment: &[u8]) -> bool {
    match marker {
        0xc0..=0xc7 | 0xc9..=0xcf | 0xda..=0xdf => true,
        0xe0 => segment.len() == 18 && segment[4..].starts_with(b"JFIF\0"),
        0xee => segment.len() == 16 && segment[4..].starts_with(b"Adobe"),
        _ => false,
    }
}

/// The parts of a GIF (GIF89a, section 10). Comments, plain text and application data except the loop count are dropped.
fn gif<'a>(gif: &'a [u8], mut see: impl FnMut(bool, &'a [u8])) -> Option<usize> {
    let table = |packed: u8| if packed & 0x80 == 0 { 0 } else { 3 << ((packed & 7) + 1) };
    let mut at = 13 + table(*gif.get(10)?);
    see(true, gif.get(..at)?);
    loop {
        let begin = at;
        let label = match *gif.get(at)? {
            0x3b => {
                see(true, &gif[at..=at]);
                return Some(at + 1);
            }
            0x2c => {
                at += 11 + table(*gif.get(at + 9)?);
                None
            }
            0x21 => {
                at += 2;
                Some(*gif.get(at - 1)?)
            }
            _ => return None,
        };
        // Blocks with their length before them, up to an empty one.
        loop {
            let length = usize::from(*gif.get(at)?);
            at += 1 + length;
            if length == 0 {
                break;
            }
        }
        let part = gif.get(begin..at)?;
        let drawn = match label {
            None => true,
            // How long a frame is shown.
            Some(0xf9) => part.len() == 8,
            // Netscape's block: how often the frames are repeated, and nothing else.
            Some(0xff) => part.len() == 19 && part[3..].starts_with(b"NETSCAPE2.0\x03\x01"),
            Some(_) => false,
        };
        see(drawn, part);
    }
}

/// Chunks of a WebP that make up the picture; EXIF, XMP, a colour profile and unknown chunks are dropped.
const WEBP_KEEP: &[&[u8; 4]] = &[b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ANIM", b"ANMF"];

fn webp(bytes: &[u8]) -> Option<Vec<u8>> {
    let end = riff_end(bytes)?;
    let mut out = bytes.get(..12)?.to_vec();
    let mut rest = bytes.get(12..end)?;
    while !rest.is_empty() {
        let (head, _) = rest.split_first_chunk::<8>()?;
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let total = 8usize.checked_add(length)?.checked_add(length % 2)?;
        let (chunk, after) = rest.split_at_checked(total)?;
        if WEBP_KEEP.iter().any(|keep| chunk.starts_with(*keep)) {
            out.extend_from_slice(chunk);
            if chunk.starts_with(b"VP8X") && length >= 10 {
                // The flags of the remaining chunks: no profile, EXIF and XMP any more.
                let flags = out.len() - total + 8;
                out[flags] &= !0b0010_1100;
            }
        }
        rest = after;
    }
    let size = u32::try_from(out.len() - 8).ok()?;
    out[4..8].copy_from_slice(&size.to_le_bytes());
    Some(out)
}

/// The end of a RIFF file according to its header.
fn riff_end(bytes: &[u8]) -> Option<usize> {
    let length: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
    let end = 8usize.checked_add(u32::from_le_bytes(length) as usize)?;
    (end >= 12 && end <= bytes.len()).then_some(end)
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write as _;

    use super::pdf::Reader;
    use super::*;
    use crate::guard::{Action, Kind, Numbering, OutcomeGuard, OutputLimits, Policy};

    /// With its own guard, budget and report.
    fn with<T>(see: impl FnOnce(&mut Inspector<'_>) -> T) -> (T, Report) {
        let guard = Guard::default();
        let mut report = guard.report();
        let seen =
            see(&mut Inspector { guard: &guard, left: &mut MAX_INFLATED.clone(), report: &mut report });
        (seen, report)
    }

    fn deflated(text: impl AsRef<[u8]>) -> Vec<u8> {
        let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(text.as_ref()).unwrap();
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

    pub(in crate::guard) fn document(body: &[u8]) -> Vec<u8> {
        [b"%PDF-1.4\n%\xb5\xb5\n1 0 obj <</Length 9>> stream\n", body, b"\nendstream endobj\n%%EOF"].concat()
    }

    #[test]
    fn a_pdf_passes_whole_unless_its_plain_or_deflated_text_has_findings() {
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
            let kept = with(|inspector| strip(inspector, Format::Pdf, &STANDARD.encode(&document))).0;
            assert_eq!(
                kept,
                passes.then(|| STANDARD.encode(&document)),
                "{}",
                String::from_utf8_lossy(&body)
            );
        }
        for text in ["%PDF-\nbob@example.com", "%PDF-1.4 stream bob@example.com"] {
            assert_eq!(
                with(|inspector| strip(inspector, Format::Pdf, &STANDARD.encode(text))).0,
                None,
                "{text}"
            );
        }
    }

    #[test]
    fn a_stream_that_inflates_without_end_is_withheld() {
        let bomb = deflated(" ".repeat(usize::try_from(MAX_INFLATED).unwrap() + 1));
        assert_eq!(
            with(|inspector| strip(inspector, Format::Pdf, &STANDARD.encode(document(&bomb)))).0,
            None
        );
    }

    fn passes(document: &[u8]) -> bool {
        with(|inspector| clean(inspector, Format::Pdf, document)).0.is_some()
    }

    /// A document of one stream under a dictionary.
    fn with_stream(dictionary: &str, body: &[u8]) -> Vec<u8> {
        let head = format!("%PDF-1.4\n1 0 obj <<{dictionary}>> stream\n");
        [head.as_bytes(), body, b"\nendstream endobj\ntrailer <</Size 2>>\n%%EOF"].concat()
    }

    #[test]
    fn a_pdf_whose_streams_are_not_read_is_withheld() {
        let page = "BT (ask the office) Tj ET";
        let picture = jpeg_that_says("made on a Monday");
        let comment = jpeg_that_says("made by bob@example.com");
        let address = in_ascii85(b"BT (ask bob@example.com) Tj ET");
        let hidden = [b"2 0 obj <<>> stream\n", &*deflated("ask bob@example.com")].concat();
        for (dictionary, body, expected) in [
            ("/Filter /FlateDecode", deflated(page), true),
            ("/Filter /LZWDecode", vec![0x80, 0x0b, 0x60], false),
            ("/Filter [/ASCIIHexDecode]", b"61736b20626f62".to_vec(), false),
            ("/Filter /RunLengthDecode", vec![2, b'a', b'b', b'c'], false),
            ("/Subtype /Image /Filter /LZWDecode", vec![0x80, 0x0b, 0x60], true),
            ("/Filter /ASCII85Decode", in_ascii85(page.as_bytes()), true),
            ("/Filter /ASCII85Decode", address, false),
            ("/Subtype /Image /Filter /DCTDecode", picture, true),
            ("/Subtype /Image /Filter /DCTDecode", comment, false),
            ("/Type /EmbeddedFile /Filter /FlateDecode", deflated("<invoice/>"), true),
            ("/Type /EmbeddedFile", b"<invoice/>".to_vec(), true),
            ("/Type /EmbeddedFile", b"PK\x03\x04\xff\xfe".to_vec(), false),
            // A stream that begins after a word that begins none.
            (">> % stream", hidden, false),
        ] {
            assert_eq!(passes(&with_stream(dictionary, &body)), expected, "{dictionary} {body:?}");
        }
        let zip = deflated(b"PK\x03\x04\xff\xfe");
        assert!(!passes(&with_stream("/Type /EmbeddedFile /Filter /FlateDecode", &zip)));
        assert!(passes(&with_stream("/Filter /FlateDecode", &zip)));
        let mut sealed = with_stream("", b"x");
        assert!(passes(&sealed));
        sealed.extend_from_slice(b"\ntrailer <</Size 2 /Encrypt 5 0 R>>");
        assert!(!passes(&sealed));
    }

    #[test]
    fn strings_and_names_of_a_pdf_are_read_as_they_are_escaped() {
        let clean = deflated("BT (ask the office) Tj ET");
        let twice = deflated(deflated("BT (ask bob@example.com) Tj ET"));
        let rows = deflated(b"\x02ask\x02\0\0\0");
        for (dictionary, body, expected) in [
            (r"/Author (the office \(2nd floor\), \101\12)", clean.clone(), true),
            (r"/Author (alice\100example.com)", clean.clone(), false),
            (r"/Author (alice\100example\56com)", clean.clone(), false),
            ("/Author (alice@exam\\\r\nple.com)", clean.clone(), false),
            (r"/Phone (\(555\) 123-4567)", clean.clone(), false),
            (
                r"/Author (\376\377\000a\000l\000i\000c\000e\000@\000e\000x\000a\000m\000p\000l\000e\000.\000c\000o\000m)",
                clean.clone(),
                false,
            ),
            ("", deflated(r"BT (alice\100example.com) Tj ET"), false),
            ("", in_ascii85(&deflated(r"BT (alice\100example.com) Tj ET")), false),
            ("/Filter /LZ#57Decode", clean.clone(), false),
            ("/Encr#79pt 5 0 R", clean.clone(), false),
            ("/Type /Embedded#46ile", b"PK\x03\x04\xff\xfe".to_vec(), false),
            ("/Names /EmbeddedFiles", b"PK\x03\x04\xff\xfe".to_vec(), true),
            ("/ProcSet [/PDF /ImageB] /Filter /LZWDecode", clean.clone(), false),
            // Chains of filters that are not undone, and a filter elsewhere.
            ("/Filter [/FlateDecode /FlateDecode]", twice.clone(), false),
            ("/Filter[/Fl/Fl]", twice, false),
            ("/Filter [/ASCII85Decode /ASCII85Decode]", in_ascii85(b"ask"), false),
            ("/Filter [/FlateDecode /ASCII85Decode]", deflated(in_ascii85(b"ask")), false),
            ("/Filter [/ASCII85Decode /FlateDecode]", in_ascii85(&clean), true),
            ("/Filter 7 0 R", clean.clone(), false),
            ("/Filter [7 0 R]", clean.clone(), false),
            ("/Filter/LZW", clean.clone(), false),
            // Rows from which each has the one above taken away.
            ("/Filter /FlateDecode /DecodeParms <</Predictor 12 /Columns 3>>", rows.clone(), false),
            ("/Filter /FlateDecode /DecodeParms <</Predictor 1>>", clean.clone(), true),
            ("/Type /XRef /Filter /FlateDecode /DecodeParms <</Columns 3/Predictor 12>>", rows.clone(), true),
            ("/Subtype /Image /Filter /FlateDecode /DecodeParms <</Predictor 15>>", rows, true),
        ] {
            assert_eq!(passes(&with_stream(dictionary, &body)), expected, "{dictionary}");
        }
        for at in PIECE - 24..PIECE {
            let page = " ".repeat(at) + r"(alice\100example.com)";
            assert!(!passes(&document(&deflated(&page))), "{at}");
        }
    }

    #[test]
    fn a_pdf_in_ascii_is_not_text() {
        let guard = Guard::default();
        let file = |bytes: &[u8]| {
            let mut run = OutcomeGuard::new(&guard, Numbering::alone(), OutputLimits::default());
            run.file(bytes).ok().map(|out| String::from_utf8(out.into_inner()).unwrap())
        };
        let document = |head: &str, page: &str| {
            let dictionary = "1 0 obj\n<< /Filter [/ASCII85Decode /FlateDecode] >>\nstream\n";
            let body = String::from_utf8(in_ascii85(&deflated(page))).unwrap();
            format!("{head}%PDF-1.4\n{dictionary}{body}\nendstream\nendobj\ntrailer <<>>\n%%EOF\n")
        };
        for head in ["", "\n", "\u{feff}\n", "made here\n"] {
            let clean = document(head, "BT (ask the office) Tj ET");
            assert_eq!(file(clean.as_bytes()), Some(clean));
            assert_eq!(file(document(head, "BT (ask bob@example.com) Tj ET").as_bytes()), None, "{head:?}");
        }
        let hexadecimal =
            "%PDF-1.4\n%âãÏÓ\n1 0 obj\n<< /Filter /ASCIIHexDecode >>\nstream\n61736b>\nendstream";
        assert_eq!(file(hexadecimal.as_bytes()), None);
        // Text about PDFs is not a document.
        for text in ["%PDF-1.7\nbob@example.com\n", "a line like %PDF-1.7 and 1 0 obj\nbob@example.com\n"] {
            assert_eq!(file(text.as_bytes()), Some(text.replace("bob@example.com", "[EMAIL_1]")));
        }
    }

    fn jpeg_that_says(text: &str) -> Vec<u8> {
        let length = u16::try_from(text.len() + 2).unwrap().to_be_bytes();
        let comment = [b"\xff\xfe", &length[..], text.as_bytes()].concat();
        [b"\xff\xd8".to_vec(), comment, b"\xff\xda\x00\x02 \xff\xd9".to_vec()].concat()
    }

    #[test]
    fn only_the_picture_of_a_jpeg_is_kept() {
        let segment = |marker: u8, body: &[u8]| {
            let length = u16::try_from(body.len() + 2).unwrap().to_be_bytes();
            [&[0xff, marker], &length[..], body].concat()
        };
        let jfif = segment(0xe0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0");
        let adobe = segment(0xee, b"Adobe\0\x64\0\0\0\0\x01");
        let comment = segment(0xfe, b"ask bob@example.com");
        let exif = segment(0xe1, b"Exif\0\0bob@example.com");
        let scan = [segment(0xda, b"\x01\x01\0\0\x3f\0"), b"ab\xff\0c\xff\xd0d".to_vec()].concat();
        let join = |parts: &[&[u8]]| [b"\xff\xd8", &*parts.concat()].concat();
        let (end, table) = (&b"\xff\xd9"[..], segment(0xc4, b"\0table"));
        let rest = [&*table, &scan, &table, &scan, end].concat();
        let picture = join(&[&jfif, &adobe, &rest]);
        let cleaned = |bytes: &[u8]| with(|inspector| clean(inspector, Format::Jpeg, bytes)).0;
        let in_pdf = |bytes: &[u8]| passes(&with_stream("/Subtype /Image /Filter /DCTDecode", bytes));
        assert_eq!(cleaned(&picture).as_deref(), Some(&*picture));
        assert_eq!(length(Format::Jpeg, &picture), picture.len());
        assert!(in_pdf(&picture));
        for dirty in [
            join(&[&jfif, &exif, &adobe, &rest]),
            join(&[&jfif, &adobe, &table, &scan, &comment, &table, &scan, end]),
            join(&[&jfif, &adobe, &table, &scan, &table, &scan, &exif, end]),
            // Any marker may have more of its first byte before it.
            join(&[&jfif, &adobe, b"\xff\xff", &exif, &table, &scan, b"\xff", &comment, &table, &scan, end]),
            [&picture, &b"alice@example.com\xff\xd9"[..]].concat(),
            // As cameras append a second picture.
            [&*picture, &join(&[&exif, &rest])].concat(),
            join(&[&jfif, &segment(0xe0, b"JFXX bob@example.com"), &adobe, &rest]),
            join(&[&jfif, &adobe, &segment(0xee, b"bob@example.com"), &rest]),
            join(&[&jfif, &adobe, &segment(0xf3, b"bob@example.com"), &rest]),
        ] {
            let shown = String::from_utf8_lossy(&dirty);
            assert_eq!(cleaned(&dirty).as_deref(), Some(&*picture), "{shown}");
            assert!(!in_pdf(&dirty), "{shown}");
        }
        for broken in [&picture[..picture.len() - 2], &picture[..40], b"\xff\xd8\xff", b"\xff\xd8\xffbob"] {
            assert_eq!(cleaned(broken), None);
            assert_eq!(length(Format::Jpeg, broken), broken.len());
        }
        assert!(!in_pdf(b"\xff\xd8\xff broken, ask bob@example.com"));
    }

    #[test]
    fn decoded_ascii85_counts_against_the_budget() {
        let zeros = usize::try_from(MAX_INFLATED).unwrap() / 4;
        assert!(passes(&document("z".repeat(zeros / 2).as_bytes())));
        assert!(!passes(&document("z".repeat(zeros + 1).as_bytes())));
    }

    #[test]
    fn many_words_that_begin_no_stream_are_read_once() {
        assert!(passes(&document("stream words ".repeat(60_000).as_bytes())));
        // Each could be ASCII85 to the end, and that is more than is decoded.
        assert!(!passes(&document("stream ".repeat(60_000).as_bytes())));
    }

    #[test]
    fn the_pdfs_of_a_run_share_one_budget() {
        let half = document(&deflated(" \n".repeat(usize::try_from(MAX_INFLATED).unwrap() / 4)));
        let (passed, _) = with(|inspector| [0; 3].map(|_| clean(inspector, Format::Pdf, &half).is_some()));
        assert_eq!(passed, [true, true, false]);
    }

    #[test]
    fn findings_in_a_pdf_are_counted_and_may_block() {
        let page = "é".repeat(PIECE) + " carol@example.com, ask bob@example.com";
        let document = document(&deflated(&page));
        let (kept, report) = with(|inspector| clean(inspector, Format::Pdf, &document));
        assert_eq!((kept, report.total(), report.blocked), (None, 2, false));

        let mut policy = Policy::default();
        policy.actions.insert(Kind::Email, Action::Block);
        let guard = Guard::new(policy).unwrap();
        let mut run = OutcomeGuard::new(&guard, Numbering::alone(), OutputLimits::default());
        assert!(run.file(&document).is_err() && run.is_blocked());
    }

    #[test]
    fn a_character_across_two_pieces_is_one_and_other_bytes_are_one_mark_each() {
        for at in PIECE - 4..PIECE + 4 {
            let page = " ".repeat(at) + "\ncontraseña: Hunter2!x";
            let (kept, _) = with(|inspector| clean(inspector, Format::Pdf, &document(&deflated(&page))));
            assert_eq!(kept, None, "{at}");
        }
        let mut reader = Reader::new(&Guard::default());
        reader.push(b"a\xe2\x82b\xffc").unwrap();
        assert_eq!(reader.text, "a??b?c");
    }

    #[test]
    fn a_format_is_recognised_by_its_bytes() {
        let guard = Guard::default();
        let inspector =
            &mut Inspector { guard: &guard, left: &mut MAX_INFLATED.clone(), report: &mut guard.report() };
        let png = png_with_text();
        let Content::Clean(clean) = content(inspector, "application/x", &STANDARD.encode(&png)) else {
            panic!("no picture")
        };
        assert!(!STANDARD.decode(clean).unwrap().windows(3).any(|part| part == b"bob"));
        assert_eq!(content(inspector, "application/x", &STANDARD.encode([0xfe; 60])), Content::Opaque);
        for (text, expected) in [
            ("ask the office about the figures of this year and of the next", Content::Text),
            ("спросите в конторе о числах этого и следующего года", Content::Text),
            ("ask bob@example.com about the figures of this year", Content::Opaque),
            ("спросите у bob@example.com о числах этого года", Content::Opaque),
            ("ask bob&#64;example.com about the figures of this year", Content::Opaque),
            ("ask bob%40example.com about the figures of this year", Content::Opaque),
        ] {
            assert_eq!(content(inspector, "application/x", &STANDARD.encode(text)), expected, "{text}");
        }
        // However it is written.
        let mixed: Vec<u8> = (0u8..61).map(|at| at.wrapping_mul(37) | 0x80).collect();
        let archive = STANDARD.encode([&b"PK\x03\x04\x14\x00"[..], &mixed].concat());
        let bare = archive.trim_end_matches('=');
        let url = archive.replace('+', "-").replace('/', "_");
        let lines = format!("  {}\n  {}", &archive[..40], &archive[40..]);
        for text in [
            &*archive,
            &format!(" {archive}"),
            &format!("{archive}\t\n"),
            bare,
            &url,
            url.trim_end_matches('='),
            &lines,
        ] {
            assert_eq!(content(inspector, "application/x", text), Content::Opaque, "{text}");
        }
        let digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(content(inspector, "text", &STANDARD.encode([0xfe; 60])), Content::Text);
        for text in [
            "",
            "PK",
            "a table, then words",
            "QUJD",
            digest,
            "a list of words without any sign among them that is more than so long",
            "usr/local/share/documents/packages/alpha/beta/gamma/delta/epsilon",
            "the-figures-of-the-second-quarter-and-what-they-mean-for-all-of-us",
        ] {
            assert_eq!(content(inspector, "application/x", text), Content::Text, "{text}");
        }
    }

    pub(in crate::guard) fn png_with_text() -> Vec<u8> {
        let chunk = |name: &[u8; 4], data: &[u8]| {
            [&u32::try_from(data.len()).unwrap().to_be_bytes()[..], name, data, &[0; 4]].concat()
        };
        let text = chunk(b"tEXt", b"Author\0bob@example.com, who made this picture");
        [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &[0; 13]), text, chunk(b"IEND", b"")].concat()
    }
}
