//! Pictures as hosts and models take them: PNG or JPEG, at most 1,568 pixels on the long side, a few hundred
//! kilobytes. Larger ones are scaled down; what cannot be read as a picture is left to its link.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{DynamicImage, ImageFormat, ImageReader, Limits};

/// The long side beyond which models scale down anyway.
const MAX_SIDE: u32 = 1568;
/// The largest encoded picture in bytes.
const MAX_BYTES: usize = 500 * 1024;
/// The most that is decoded for one result, in pixels: half a second of work. A picture is a few hundred thousand.
const MAX_PIXELS: u64 = 64_000_000;
/// The largest picture that is decoded, in pixels.
const MAX_PICTURE_PIXELS: u64 = 32_000_000;

/// A picture for an image block: base64 text and its media type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Standard base64.
    pub base64: String,
    /// `image/png` or `image/jpeg`.
    pub mime_type: &'static str,
}

/// Fits pictures into one result: bytes that go out and pixels that are decoded are counted over all of them.
#[derive(Debug)]
pub struct Fitter {
    bytes: usize,
    pixels: u64,
}

impl Fitter {
    /// For a result that may hold this many bytes of base64 in pictures.
    pub fn new(bytes: usize) -> Self {
        Self { bytes, pixels: MAX_PIXELS }
    }

    /// Fits a base64 picture for an image block. `None`: it is not a PNG or JPEG, or too much for this result.
    pub fn fit(&mut self, text: &str) -> Option<Picture> {
        let bytes = STANDARD.decode(text.trim()).ok()?;
        let reader = || ImageReader::new(Cursor::new(&bytes)).with_guessed_format().ok();
        let mime_type = match reader()?.format()? {
            ImageFormat::Png => "image/png",
            ImageFormat::Jpeg => "image/jpeg",
            _ => return None,
        };
        let (width, height) = reader()?.into_dimensions().ok()?;
        let picture = if width.max(height) <= MAX_SIDE && bytes.len() <= MAX_BYTES {
            Picture { base64: STANDARD.encode(&bytes), mime_type }
        } else {
            let pixels = u64::from(width) * u64::from(height);
            if pixels > MAX_PICTURE_PIXELS.min(self.pixels) {
                return None;
            }
            self.pixels -= pixels;
            let mut reader = reader()?;
            let mut limits = Limits::default();
            limits.max_alloc = Some(8 * MAX_PICTURE_PIXELS);
            reader.limits(limits);
            scaled(&reader.decode().ok()?, MAX_SIDE.min(width.max(height)))?
        };
        self.bytes = self.bytes.checked_sub(picture.base64.len())?;
        Some(picture)
    }
}

/// A picture made smaller until it fits.
fn scaled(picture: &DynamicImage, side: u32) -> Option<Picture> {
    let mut side = side;
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

    fn fit(text: &str) -> Option<Picture> {
        Fitter::new(usize::MAX).fit(text)
    }

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
    fn decoding_for_one_result_is_bounded_for_any_number_of_pictures() {
        let flat = |side: u32| {
            let mut out = Cursor::new(Vec::new());
            image::GrayImage::new(side, side).write_to(&mut out, ImageFormat::Png).unwrap();
            STANDARD.encode(out.get_ref())
        };
        let (large, huge) = (flat(4000), flat(6000));
        let mut fitter = Fitter::new(usize::MAX);
        assert_eq!(fitter.fit(&huge), None, "more than one picture may have");
        let fitted = (0..80).filter(|_| fitter.fit(&large).is_some()).count();
        assert_eq!(fitted, 4, "64 million pixels and no more");
        assert!(fitter.fit(&flat(100)).is_some(), "what needs no decoding still passes");
    }

    #[test]
    fn a_result_has_a_byte_limit_for_pictures() {
        let small = png(20, 10);
        let mut fitter = Fitter::new(2 * small.len());
        assert_eq!((0..5).filter(|_| fitter.fit(&small).is_some()).count(), 2);
    }

    #[test]
    fn data_that_is_not_a_picture_is_only_linked() {
        for text in ["", "not base64!", &STANDARD.encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>")] {
            assert_eq!(fit(text), None);
        }
    }
}
