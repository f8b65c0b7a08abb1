//! Pictures as hosts and models take them: PNG or JPEG, at most 1,568 pixels on the long side, a few hundred
//! kilobytes. Larger ones are scaled down; what cannot be read as a picture is left to its link.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{ImageFormat, ImageReader, Limits};

/// The long side beyond which models scale down anyway.
const MAX_SIDE: u32 = 1568;
/// The largest encoded picture in bytes.
const MAX_BYTES: usize = 500 * 1024;
/// The largest picture that is decoded at all, in bytes of memory.
const MAX_DECODED: u64 = 256 * 1024 * 1024;

/// A picture for an image block: base64 text and its media type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Standard base64.
    pub base64: String,
    /// `image/png` or `image/jpeg`.
    pub mime_type: &'static str,
}

/// Fits a base64 picture for an image block. `None`: it is no PNG or JPEG, or too large to be touched.
pub fn fit(text: &str) -> Option<Picture> {
    let bytes = STANDARD.decode(text.trim()).ok()?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_DECODED);
    limits.max_image_width = Some(20_000);
    limits.max_image_height = Some(20_000);
    let mut reader = ImageReader::new(Cursor::new(&bytes)).with_guessed_format().ok()?;
    let format = reader.format()?;
    let mime_type = match format {
        ImageFormat::Png => "image/png",
        ImageFormat::Jpeg => "image/jpeg",
        _ => return None,
    };
    let (width, height) =
        ImageReader::new(Cursor::new(&bytes)).with_guessed_format().ok()?.into_dimensions().ok()?;
    if width.max(height) <= MAX_SIDE && bytes.len() <= MAX_BYTES {
        return Some(Picture { base64: STANDARD.encode(&bytes), mime_type });
    }
    reader.limits(limits);
    let picture = reader.decode().ok()?;
    let mut side = MAX_SIDE.min(width.max(height));
    while side >= 64 {
        let scaled = picture.thumbnail(side, side);
        let mut out = Cursor::new(Vec::new());
        scaled.write_to(&mut out, ImageFormat::Png).ok()?;
        if out.get_ref().len() <= MAX_BYTES {
            return Some(Picture { base64: STANDARD.encode(out.get_ref()), mime_type: "image/png" });
        }
        side = side * 3 / 4;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(width: u32, height: u32) -> String {
        let noise = image::RgbImage::from_fn(width, height, |x, y| {
            let n = x.wrapping_mul(2_654_435_761).wrapping_add(y.wrapping_mul(40_503)) >> 7;
            image::Rgb([n as u8, (n >> 8) as u8, (n >> 16) as u8])
        });
        let mut out = Cursor::new(Vec::new());
        noise.write_to(&mut out, ImageFormat::Png).unwrap();
        STANDARD.encode(out.get_ref())
    }

    #[test]
    fn a_small_picture_goes_through_as_it_is() {
        let text = png(20, 10);
        assert_eq!(fit(&text), Some(Picture { base64: text, mime_type: "image/png" }));
    }

    #[test]
    fn a_large_picture_is_scaled_until_it_fits() {
        let picture = fit(&png(2000, 1500)).unwrap();
        let bytes = STANDARD.decode(picture.base64).unwrap();
        assert!(bytes.len() <= MAX_BYTES);
        let decoded = image::load_from_memory(&bytes).unwrap();
        assert!(decoded.width() <= MAX_SIDE && decoded.width() > decoded.height());
    }

    #[test]
    fn what_is_no_picture_is_left_to_its_link() {
        for text in ["", "not base64!", &STANDARD.encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>")] {
            assert_eq!(fit(text), None);
        }
    }
}
