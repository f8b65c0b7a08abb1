//! A line as tables see it: with what is hidden in it replaced, and then as people read it.
//!
//! Here it is decided what ends a line of a table: whatever a program or a person may end one with. A line of the stream ends
//! with a line feed alone, so a table's line never goes over the end of one of those.

use super::redact::{Quotes, whole};
use super::scan::Finding;
use super::view;

/// What ends a line of a table, besides a carriage return that no line feed follows.
pub(super) const ENDS: [char; 6] = ['\n', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}'];

/// Where the line of a table ends that begins at `from`, in a line that ends at `end`; what ends it included.
pub(super) fn line_end(text: &str, from: usize, end: usize) -> usize {
    let bytes = text.as_bytes();
    let mut at = from;
    let abroad = !text[from..end].is_ascii();
    let may_end = |byte: &u8| matches!(byte, b'\r' | 0xb | 0xc | 0xc2 | 0xe2);
    let find = |rest: &[u8]| match abroad {
        true => rest.iter().position(may_end),
        false => memchr::memchr3(b'\r', 0xb, 0xc, rest),
    };
    while let Some(next) = find(&bytes[at..end]).map(|len| at + len) {
        at = next + 1;
        if bytes[next] == b'\r' {
            at += bytes[at..end].iter().take_while(|byte| **byte == b'\r').count();
            if bytes[at..end].first() != Some(&b'\n') {
                return at;
            }
        } else if let Some(sign) = text[next..end].chars().next().filter(|sign| ENDS.contains(sign)) {
            return next + sign.len_utf8();
        }
    }
    end
}

/// A line in another reading, with the way back.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) text: String,
    /// For each byte of `text`, where its source begins; one more for the end.
    source: Vec<usize>,
    decoded: bool,
}

impl Reading {
    /// A line of a text with findings in it replaced, which are in order and apart, by places in the line.
    pub(super) fn of(text: &str, (start, end): (usize, usize), hidden: &[Finding]) -> Self {
        let mut reading =
            Self { text: String::with_capacity(end - start), source: Vec::new(), decoded: false };
        let (line, mut done, mut quotes) = (&text[start..end], 0, Quotes::from(start));
        for finding in hidden {
            let mut finding = Finding { start: start + finding.start, end: start + finding.end, ..*finding };
            whole(text, &mut finding);
            if finding.start.max(start + done) >= finding.end {
                continue;
            }
            let quote = quotes.around(text.as_bytes(), &mut finding, end);
            let (from, to) = ((finding.start - start).max(done), (finding.end - start).min(line.len()));
            reading.push(&line[done..from], done, true);
            let quote = quote.map(|slashes| "\\".repeat(slashes) + "\"").unwrap_or_default();
            reading.push(&format!("{quote}[{}]{quote}", finding.kind.as_str()), from, false);
            done = to;
        }
        reading.push(&line[done..], done, true);
        reading.source.push(line.len());
        reading
    }

    /// The same as people read it, without what nobody sees.
    pub(super) fn shown(mut self) -> Self {
        if !view::reads_as_it_is(self.text.as_bytes()) {
            let view = view::shown(self.text.as_bytes());
            if let Ok(text) = String::from_utf8(view.text) {
                self.source = view.source.iter().map(|at| self.source[*at as usize]).collect();
                (self.text, self.decoded) = (text, true);
            }
        }
        self
    }

    /// The strings of a line, each on lines of its own, with `\n` in them as the end of one.
    pub(super) fn of_strings(line: &str) -> Self {
        let mut reading = Self { text: String::with_capacity(line.len()), source: Vec::new(), decoded: true };
        let bytes = line.as_bytes();
        let (mut at, mut done) = (0, 0);
        let letter = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphanumeric);
        while let Some(next) = memchr::memchr3(b'\\', b'"', b'\'', &bytes[at..]).map(|len| at + len) {
            let slashes = bytes[next..].iter().take_while(|byte| **byte == b'\\').count();
            // A quote in a field of CSV is doubled.
            let doubled = usize::from(bytes[next..].starts_with(b"\"\""));
            at = next + slashes + 1 + doubled;
            let becomes = match (slashes, bytes.get(next + slashes)) {
                // An apostrophe is in a word.
                (0, Some(b'\'')) if letter(next.wrapping_sub(1)) && letter(next + 1) => continue,
                (0, _) if doubled == 0 => "\n",
                (0, _) | (_, Some(b'"')) => "\"",
                (_, Some(b'n')) => "\n",
                (_, Some(b'r')) => "\r",
                (_, Some(b't')) => "\t",
                (_, Some(b'\'')) => "'",
                _ => {
                    at = next + slashes;
                    continue;
                }
            };
            reading.push(&line[done..next], done, true);
            reading.push(becomes, next, false);
            done = at;
        }
        reading.push(&line[done..], done, true);
        reading.source.push(line.len());
        reading
    }

    /// Appends what stands at `from` in the line, as it is there or in its place.
    fn push(&mut self, text: &str, from: usize, same: bool) {
        self.text.push_str(text);
        match same {
            true => self.source.extend(from..from + text.len()),
            false => self.source.extend(std::iter::repeat_n(from, text.len())),
        }
    }

    /// Where in the line a place is.
    pub(super) fn place(&self, at: usize) -> usize {
        self.source[at]
    }

    /// Moves a finding to where it is in the line.
    pub(super) fn back(&self, finding: &mut Finding) {
        (finding.start, finding.end) = (self.source[finding.start], self.source[finding.end]);
        finding.decoded |= self.decoded;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_table_ends_where_people_see_it_end() {
        let text = "a\rb\r\r\nc\u{b}d\u{c}e\u{85}f\u{2028}é\u{2029}…\r";
        let mut lines = Vec::new();
        let mut from = 0;
        while from < text.len() {
            let feed = text[from..].find('\n').map_or(text.len(), |len| from + len + 1);
            let end = line_end(text, from, feed);
            lines.push(&text[from..end]);
            from = end;
        }
        let want = ["a\r", "b\r\r\n", "c\u{b}", "d\u{c}", "e\u{85}", "f\u{2028}", "é\u{2029}", "…\r"];
        assert_eq!(lines, want);
    }
}
