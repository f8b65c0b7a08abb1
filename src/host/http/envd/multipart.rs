//! `multipart/form-data` (RFC 7578), read in pieces as the bytes arrive, so that a file is never whole in memory.

use bytes::{Buf, Bytes, BytesMut};
use memchr::memmem;

/// The longest head of one part.
const HEAD_LIMIT: usize = 16 * 1024;
/// The longest boundary, from RFC 2046.
const BOUNDARY_LIMIT: usize = 70;

/// The next piece of the body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A part begins.
    Part { name: String, filename: Option<String> },
    /// Some of its bytes.
    Data(Bytes),
    /// The last part has ended.
    End,
}

/// Bytes that are not a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("the form has no usable boundary")]
    Boundary,
    #[error("a part of the form has no usable head")]
    Head,
    #[error("the form ends in the middle")]
    Cut,
}

/// Reads a form out of bytes that arrive cut anywhere.
#[derive(Debug)]
pub(super) struct Multipart {
    buffer: BytesMut,
    /// Line break, two dashes, boundary: what ends a part.
    delimiter: Vec<u8>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first delimiter; bytes there are ignored.
    Preamble,
    /// Right after a delimiter.
    Delimiter,
    Data,
    End,
}

impl Multipart {
    /// A reader for the boundary that a content type names.
    pub(super) fn new(content_type: &str) -> Result<Self, Malformed> {
        let boundary = parameter(content_type, "boundary").ok_or(Malformed::Boundary)?;
        if boundary.is_empty() || boundary.len() > BOUNDARY_LIMIT {
            return Err(Malformed::Boundary);
        }
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        // The first delimiter has no line break before it when nothing else comes first.
        Ok(Self { buffer: BytesMut::from("\r\n"), delimiter, state: State::Preamble })
    }

    /// Adds bytes.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        if self.state != State::End {
            self.buffer.extend_from_slice(chunk);
        }
    }

    /// The next piece, once it has arrived.
    pub(super) fn next(&mut self) -> Result<Option<Piece>, Malformed> {
        loop {
            match self.state {
                State::Preamble => match self.take_to_delimiter() {
                    (_, true) => self.state = State::Delimiter,
                    (_, false) => return Ok(None),
                },
                State::Delimiter => return self.head(),
                State::Data => {
                    let (data, ended) = self.take_to_delimiter();
                    if ended {
                        self.state = State::Delimiter;
                    }
                    match (data.is_empty(), ended) {
                        (false, _) => return Ok(Some(Piece::Data(data))),
                        (true, true) => {}
                        (true, false) => return Ok(None),
                    }
                }
                State::End => {
                    self.buffer.clear();
                    return Ok(Some(Piece::End));
                }
            }
        }
    }

    /// Everything up to the next delimiter, or as much as cannot be part of one; and whether it was found.
    fn take_to_delimiter(&mut self) -> (Bytes, bool) {
        if let Some(at) = memmem::find(&self.buffer, &self.delimiter) {
            let data = self.buffer.split_to(at).freeze();
            self.buffer.advance(self.delimiter.len());
            return (data, true);
        }
        let safe = self.buffer.len().saturating_sub(self.delimiter.len() - 1);
        (self.buffer.split_to(safe).freeze(), false)
    }

    fn head(&mut self) -> Result<Option<Piece>, Malformed> {
        if self.buffer.starts_with(b"--") {
            self.state = State::End;
            return Ok(Some(Piece::End));
        }
        let Some(end) = memmem::find(&self.buffer, b"\r\n\r\n") else {
            return if self.buffer.len() > HEAD_LIMIT { Err(Malformed::Head) } else { Ok(None) };
        };
        if end > HEAD_LIMIT {
            return Err(Malformed::Head);
        }
        let head = self.buffer.split_to(end);
        self.buffer.advance(4);
        let head = std::str::from_utf8(&head).map_err(|_| Malformed::Head)?;
        let mut lines = head.split("\r\n");
        // What is left of the delimiter's own line: padding at most.
        if lines.next().is_none_or(|rest| !rest.trim_matches([' ', '\t']).is_empty()) {
            return Err(Malformed::Head);
        }
        let disposition = lines
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"))
            .map(|(_, value)| value.trim())
            .ok_or(Malformed::Head)?;
        let name = parameter(disposition, "name").ok_or(Malformed::Head)?;
        self.state = State::Data;
        Ok(Some(Piece::Part { name, filename: parameter(disposition, "filename") }))
    }
}

/// A parameter of a header value: `text; name=value; name="quoted \" value"`.
fn parameter(value: &str, wanted: &str) -> Option<String> {
    let mut rest = value.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (text, after) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => {
                let (text, after) = unquote(quoted)?;
                (text, after.split_once(';').map_or("", |(_, after)| after))
            }
            None => {
                let (text, after) = after.split_once(';').unwrap_or((after, ""));
                (text.trim().to_owned(), after)
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(text);
        }
        rest = after;
    }
}

/// The text up to the closing quote, and the text after it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((out, &text[at + 1..])),
            '\\' => out.push(chars.next()?.1),
            c => out.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Part = (String, Option<String>, Vec<u8>);

    fn read(content_type: &str, bytes: &[u8], cut: usize) -> Result<Vec<Part>, Malformed> {
        let mut form = Multipart::new(content_type)?;
        let mut parts: Vec<Part> = Vec::new();
        for chunk in bytes.chunks(cut.max(1)) {
            form.push(chunk);
            while let Some(piece) = form.next()? {
                match piece {
                    Piece::Part { name, filename } => parts.push((name, filename, Vec::new())),
                    Piece::Data(data) => parts.last_mut().unwrap().2.extend_from_slice(&data),
                    Piece::End => return Ok(parts),
                }
            }
        }
        Err(Malformed::Cut)
    }

    #[test]
    fn a_form_of_the_python_client_reads_the_same_however_it_is_cut() {
        let body =
            b"--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/a \\\"b\\\".txt\"\r\n\
            Content-Type: application/octet-stream\r\n\r\n--b0\r\n-\r\n--b\r\n--b0--\r\n";
        for cut in 1..body.len() {
            assert_eq!(
                read("multipart/form-data; boundary=b0", body, cut).unwrap(),
                [("file".into(), Some("/tmp/a \"b\".txt".into()), b"--b0\r\n-\r\n--b".to_vec())]
            );
        }
    }

    #[test]
    fn a_malformed_form_is_refused() {
        let form = "multipart/form-data; boundary=b";
        assert_eq!(read("multipart/form-data", b"", 1), Err(Malformed::Boundary));
        assert_eq!(read("multipart/form-data; boundary=\"\"", b"", 1), Err(Malformed::Boundary));
        assert_eq!(read(form, b"--b\r\nContent-Type: x\r\n\r\nx\r\n--b--", 9), Err(Malformed::Head));
        assert_eq!(read(form, b"--bx\r\n\r\n", 9), Err(Malformed::Head));
        assert_eq!(
            read(form, &[b"--b\r\n".as_slice(), &[b'x'; HEAD_LIMIT + 9]].concat(), 64),
            Err(Malformed::Head)
        );
        assert_eq!(
            read(form, b"--b\r\nContent-Disposition: form-data; name=f\r\n\r\nabc", 9),
            Err(Malformed::Cut)
        );
    }

    proptest! {
        /// Every byte of every file comes back, unless it holds the delimiter itself.
        #[test]
        fn a_written_form_reads_back(
            files in proptest::collection::vec(("[a-z/ é]{1,8}", proptest::collection::vec(any::<u8>(), 0..200)), 0..4),
            cut in 1usize..50,
        ) {
            let mut body = Vec::new();
            for (name, bytes) in &files {
                body.extend_from_slice(format!(
                    "--XyZ\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n"
                ).as_bytes());
                body.extend_from_slice(bytes);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"--XyZ--\r\n");
            let parts = read("multipart/form-data; boundary=\"XyZ\"", &body, cut).unwrap();
            let expected: Vec<Part> =
                files.into_iter().map(|(name, bytes)| ("file".to_owned(), Some(name), bytes)).collect();
            prop_assert_eq!(parts, expected);
        }

        /// Whatever comes, it is refused or read, and what is held back stays small.
        #[test]
        fn any_bytes_are_taken(bytes in "(--b|\r\n|Content-Disposition: form-data; name=|\"|;|=|x){0,60}", cut in 1usize..9) {
            let mut form = Multipart::new("multipart/form-data; boundary=b").unwrap();
            'all: for chunk in bytes.as_bytes().chunks(cut) {
                form.push(chunk);
                loop {
                    match form.next() {
                        Ok(Some(Piece::End)) | Err(_) => break 'all,
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                    }
                }
                prop_assert!(form.buffer.len() <= HEAD_LIMIT + cut);
            }
        }
    }
}
