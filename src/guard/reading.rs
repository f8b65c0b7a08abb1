//! A line as the table reader sees it: with its findings replaced, and then decoded.
//!
//! This module decides what ends a line of a table: anything that a program or a person may end one with. A line of the stream
//! ends with a line feed alone, so a table's line never continues past the end of one of those.

use super::redact::{Quotes, push_quote, whole};
use super::scan::Finding;
use super::view;

/// Characters that end a line of a table, besides a carriage return without a line feed after it.
const ENDS: [char; 6] = ['\n', '\u{b}', '\u{c}', '\u{85}', '\u{2028}', '\u{2029}'];

/// The end of the table line that begins at `from`, within a line that ends at `end`; its terminator included.
pub(super) fn line_end(text: &str, from: usize, end: usize) -> usize {
    let bytes = text.as_bytes();
    let mut at = from;
    let abroad = !bytes[from..end].is_ascii();
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

/// A line of a table without its terminator.
pub(super) fn without_end(line: &str) -> &str {
    match line.as_bytes() {
        // The usual case.
        [.., b' '..=b'~', b'\n'] => &line[..line.len() - 1],
        _ => line.trim_end_matches(ENDS),
    }
}

/// A rewritten line, with the way back. Refilled for each line, so that its memory is reused.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) text: String,
    /// The parts that it is made of, in order; one more for the end.
    parts: Vec<Part>,
    /// For each byte of a decoded `text` its place before; one more for the end.
    shown: Vec<u32>,
    pub(super) decoded: bool,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    /// Where it begins.
    at: usize,
    /// Where its source begins.
    from: usize,
    /// Whether it is copied, byte by byte.
    same: bool,
}

impl Reading {
    /// Becomes a line of a text with its findings replaced; they are in order and apart, by places in the line.
    pub(super) fn fill(&mut self, text: &str, (start, end): (usize, usize), hidden: &[Finding]) {
        self.clear();
        let (line, mut done, mut quotes) = (&text[start..end], 0, Quotes::from(start));
        for finding in hidden {
            let mut finding = Finding { start: start + finding.start, end: start + finding.end, ..*finding };
            whole(text, &mut finding);
            if finding.start.max(start + done) >= finding.end {
                continue;
            }
            let quote = quotes.around(text.as_bytes(), &mut finding, end);
            let (from, to) = ((finding.start - start).max(done), (finding.end - start).min(line.len()));
            self.push(&line[done..from], done, true);
            self.parts.push(Part { at: self.text.len(), from, same: false });
            push_quote(quote, &mut self.text);
            self.text.extend(["[", finding.kind.as_str(), "]"]);
            push_quote(quote, &mut self.text);
            done = to;
        }
        self.push(&line[done..], done, true);
        self.ends(line.len());
    }

    fn clear(&mut self) {
        self.text.clear();
        self.parts.clear();
        self.shown.clear();
        self.decoded = false;
    }

    /// Becomes the decoded line, without invisible characters.
    pub(super) fn show(&mut self) {
        if !view::reads_as_it_is(self.text.as_bytes()) {
            let view = view::shown(self.text.as_bytes());
            if let Ok(text) = String::from_utf8(view.text) {
                (self.text, self.shown, self.decoded) = (text, view.source, true);
            }
        }
    }

    /// Becomes the strings of a line, each on lines of its own, with `\n` in them as a line end.
    pub(super) fn fill_strings(&mut self, line: &str) {
        self.clear();
        self.decoded = true;
        let bytes = line.as_bytes();
        let (mut at, mut done, mut json) = (0, 0, false);
        while let (next, len, Some(end)) = next_quote(bytes, at) {
            at = next + len;
            let becomes = match bytes[at - 1] {
                // In JSON that Python prints, a quote is JSON's.
                b'"' if json && end => continue,
                sign if end => {
                    json = !json && sign == b'\'' && matches!(bytes.get(at), Some(b'[' | b'{'));
                    "\n"
                }
                b'"' => "\"",
                b'n' if len > 1 => "\n",
                b'r' if len > 1 => "\r",
                b't' if len > 1 => "\t",
                b'\'' if len > 1 => "'",
                _ => continue,
            };
            self.push(&line[done..next], done, true);
            self.push(becomes, next, false);
            done = at;
        }
        self.push(&line[done..], done, true);
        self.ends(line.len());
    }

    /// Appends the text for `from` in the line: copied, or its replacement.
    fn push(&mut self, text: &str, from: usize, same: bool) {
        if !text.is_empty() {
            self.parts.push(Part { at: self.text.len(), from, same });
            self.text.push_str(text);
        }
    }

    fn ends(&mut self, len: usize) {
        self.parts.push(Part { at: self.text.len(), from: len, same: false });
    }

    /// The place in the original line.
    pub(super) fn place(&self, at: usize) -> usize {
        let at = self.shown.get(at).map_or(at, |at| *at as usize);
        let part = self.parts[self.parts.partition_point(|part| part.at <= at) - 1];
        part.from + if part.same { at - part.at } else { 0 }
    }

    /// Moves a finding to its place in the original line.
    pub(super) fn back(&self, finding: &mut Finding) {
        (finding.start, finding.end) = (self.place(finding.start), self.place(finding.end));
        finding.decoded |= self.decoded;
    }
}

/// The next quote or escape from a place on: where it begins, how long it is, and whether it is a quote at the end of a string;
/// the end of the line where there is none.
pub(super) fn next_quote(bytes: &[u8], at: usize) -> (usize, usize, Option<bool>) {
    let Some(next) = memchr::memchr3(b'\\', b'"', b'\'', &bytes[at..]).map(|len| at + len) else {
        return (bytes.len(), 0, None);
    };
    let slashes = bytes[next..].iter().take_while(|byte| **byte == b'\\').count();
    let letter = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_alphanumeric);
    match (slashes, bytes.get(next + slashes)) {
        // An apostrophe in a word.
        (0, Some(b'\'')) if letter(next.wrapping_sub(1)) && letter(next + 1) => (next, 1, Some(false)),
        // A quote in a field of CSV is doubled.
        (0, _) if bytes[next..].starts_with(b"\"\"") => (next, 2, Some(false)),
        (0, _) => (next, 1, Some(true)),
        (_, Some(b'"' | b'n' | b'r' | b't' | b'\'')) => (next, slashes + 1, Some(false)),
        _ => (next, slashes, Some(false)),
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
