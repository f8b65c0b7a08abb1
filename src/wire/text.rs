//! Bytes that arrive cut anywhere, as text and as lines.
//!
//! A chunk may end inside a character, so nothing may be decoded chunk by chunk; and a line may be larger than memory,
//! so its length is bounded while it is read.

use bytes::Bytes;

/// Decodes UTF-8 that is cut anywhere. Bytes that are not UTF-8 become U+FFFD, as in [`String::from_utf8_lossy`].
///
/// ```
/// let mut decoder = pathbox::wire::text::Utf8Decoder::default();
/// assert_eq!(decoder.push(b"caf\xc3"), "caf");
/// assert_eq!(decoder.push(b"\xa9"), "é");
/// assert_eq!(decoder.finish(), "");
/// ```
#[derive(Debug, Default)]
pub struct Utf8Decoder {
    /// The first bytes of a character whose rest has not come: at most three.
    cut: Vec<u8>,
}

impl Utf8Decoder {
    /// Adds bytes; gives the text that is complete.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        let mut whole = std::mem::take(&mut self.cut);
        whole.extend_from_slice(bytes);
        let end = whole.len() - unfinished(&whole);
        self.cut = whole.split_off(end);
        match String::from_utf8(whole) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }

    /// Ends the text; half a character gives U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.cut)).into_owned()
    }
}

/// How many bytes at the end are the start of a character that may still be completed.
fn unfinished(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    loop {
        match std::str::from_utf8(rest) {
            Ok(_) => return 0,
            Err(error) => match error.error_len() {
                None => return rest.len() - error.valid_up_to(),
                // Only the last three bytes can be unfinished; jump there past what is plainly broken.
                Some(len) => rest = &rest[error.valid_up_to() + len..],
            },
        }
    }
}

/// One line out of [`Lines`].
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A line without its line feed.
    Whole(Bytes),
    /// A line beyond the limit: its beginning, and how many bytes were dropped.
    Cut {
        /// The first bytes, as many as the limit allows.
        head: Bytes,
        /// How many more bytes the line had.
        dropped_bytes: u64,
    },
}

/// Cuts a byte stream into lines at 0x0A and nowhere else. Empty lines are left out.
///
/// Holds at most `max_bytes` of an unfinished line, plus the chunk it was last given.
///
/// ```
/// use pathbox::wire::text::{Line, Lines};
/// let mut lines = Lines::new(8);
/// lines.push("a\u{2028}b\nlong long line\n".into());
/// assert_eq!(lines.next(), Some(Line::Whole("a\u{2028}b".into())));
/// assert_eq!(lines.next(), Some(Line::Cut { head: "long lon".into(), dropped_bytes: 6 }));
/// assert_eq!(lines.next(), None);
/// ```
#[derive(Debug)]
pub struct Lines {
    max_bytes: usize,
    chunk: Bytes,
    partial: Vec<u8>,
    dropped_bytes: u64,
}

impl Lines {
    /// A cutter for lines of at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, chunk: Bytes::new(), partial: Vec::new(), dropped_bytes: 0 }
    }

    /// Adds a chunk. All lines of the one before must have been taken, else their rest is joined by a copy.
    pub fn push(&mut self, chunk: Bytes) {
        if self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            self.chunk = [&self.chunk[..], &chunk[..]].concat().into();
        }
    }

    /// The next line that is complete.
    #[expect(clippy::should_implement_trait, reason = "it ends for now and goes on after `push`")]
    pub fn next(&mut self) -> Option<Line> {
        loop {
            let Some(at) = memchr::memchr(b'\n', &self.chunk) else {
                let rest = std::mem::take(&mut self.chunk);
                self.keep(&rest);
                return None;
            };
            let piece = self.chunk.split_to(at);
            let _ = self.chunk.split_to(1);
            if self.partial.is_empty() && self.dropped_bytes == 0 && piece.len() <= self.max_bytes {
                if piece.is_empty() {
                    continue;
                }
                return Some(Line::Whole(piece));
            }
            self.keep(&piece);
            return self.take();
        }
    }

    /// The last line, when the stream ends without a line feed.
    pub fn finish(&mut self) -> Option<Line> {
        let rest = std::mem::take(&mut self.chunk);
        self.keep(&rest);
        self.take()
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = self.max_bytes - self.partial.len();
        let kept = piece.len().min(room);
        self.partial.extend_from_slice(&piece[..kept]);
        self.dropped_bytes += (piece.len() - kept) as u64;
    }

    fn take(&mut self) -> Option<Line> {
        let head = Bytes::from(std::mem::take(&mut self.partial));
        match std::mem::take(&mut self.dropped_bytes) {
            0 if head.is_empty() => None,
            0 => Some(Line::Whole(head)),
            dropped_bytes => Some(Line::Cut { head, dropped_bytes }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(bytes: &[u8], size: usize, max: usize) -> Vec<Line> {
        let mut lines = Lines::new(max);
        let mut out = Vec::new();
        for chunk in bytes.chunks(size) {
            lines.push(Bytes::copy_from_slice(chunk));
            while let Some(line) = lines.next() {
                out.push(line);
            }
        }
        out.extend(lines.finish());
        out
    }

    #[test]
    fn only_the_line_feed_ends_a_line() {
        let text = "a\u{2028}b\u{2029}c\u{85}d\u{b}e\u{c}f\rg\r\n\n\nend";
        for size in 1..12 {
            assert_eq!(
                cut(text.as_bytes(), size, 100),
                [
                    Line::Whole("a\u{2028}b\u{2029}c\u{85}d\u{b}e\u{c}f\rg\r".into()),
                    Line::Whole("end".into())
                ]
            );
        }
    }

    #[test]
    fn a_line_of_exactly_the_limit_is_whole() {
        for size in 1..12 {
            assert_eq!(
                cut(b"1234\n12345\n", size, 4),
                [Line::Whole("1234".into()), Line::Cut { head: "1234".into(), dropped_bytes: 1 }]
            );
        }
    }

    proptest! {
        #[test]
        fn text_cut_anywhere_is_the_same_text(
            bytes in prop_oneof![any::<String>().prop_map(String::into_bytes), any::<Vec<u8>>()],
            size in 1_usize..9,
        ) {
            let mut decoder = Utf8Decoder::default();
            let mut out = String::new();
            for chunk in bytes.chunks(size) {
                out.push_str(&decoder.push(chunk));
            }
            out.push_str(&decoder.finish());
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn lines_cut_anywhere_are_the_same_lines(bytes in "[ab\n]{0,40}", size in 1_usize..9, max in 1_usize..9) {
            prop_assert_eq!(cut(bytes.as_bytes(), size, max), cut(bytes.as_bytes(), 1000, max));
        }
    }
}
