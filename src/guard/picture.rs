//! Pictures and documents: the text that travels inside a PNG or JPEG is taken out, the pixels stay.
//!
//! Pixels are not read: a number drawn into a plot goes out. `docs/guard.md` says so.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// What stands in place of binary content that is not what it says.
pub(super) const WITHHELD: &str = "[WITHHELD]";

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
}

/// The same picture without comments, EXIF and other text, as base64; `None` when it is not what it says.
pub(super) fn strip(format: Format, base64: &str) -> Option<String> {
    let compact: Vec<u8> = base64.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let bytes = STANDARD.decode(compact).ok()?;
    let clean = match format {
        Format::Png => png(&bytes)?,
        Format::Jpeg => jpeg(&bytes)?,
        Format::Pdf => bytes.starts_with(b"%PDF-").then_some(bytes)?,
    };
    Some(STANDARD.encode(clean))
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
