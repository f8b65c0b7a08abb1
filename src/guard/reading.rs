//! A line as the table reader sees it: with its findings replaced, and then decoded.
//!
//! This module decides what ends a line of a table: anything that a program or a person may end one with. A line of the stream
//! ends with a line feed alone, so a table's line never continues past the end of one of those.

use super::redact::{Quotes, Strings, push_quote, whole};
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
    /// Becomes a line of a text with its findings replaced; they are in order and apart, by places in the line, which begins in
    /// these strings.
    pub(super) fn fill(
        &mut self,
        text: &str,
        (start, end): (usize, usize),
        strings: Strings,
        hidden: &[Finding],
    ) {
        self.clear();
        let (line, mut done, mut quotes) = (&text[start..end], 0, Quotes::from(start, strings));
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

    /// Becomes the strings of a line, each on lines of its own, with `\n` in them as a line end; a list of lines as these lines.
    /// The line may begin in a string with this `open` quote, and continue the one read last. Returns the quote of the string that
    /// its end is in.
    pub(super) fn fill_strings(&mut self, line: &str, continues: bool, open: Option<u8>) -> Option<u8> {
        self.clear();
        self.decoded = true;
        let mut done = 0;
        let mut marks = Marks::of(line.as_bytes(), open);
        let mut inside = marks.open.is_some();
        while let Some(Mark { start, end, slashes, becomes, .. }) = marks.next() {
            let between = &line[done..start];
            done = end;
            let fed = if self.text.is_empty() { continues } else { self.text.ends_with('\n') };
            let joint = between == "," || between == ", " || between.is_empty() && fed;
            let within = std::mem::replace(&mut inside, marks.open.is_some());
            if becomes == Becomes::Border && slashes == 0 && joint {
                continue;
            }
            // Nothing outside of strings belongs to a table in one.
            if within {
                self.push(between, start - between.len(), true);
            }
            self.push(&line[start..start + slashes], start, true);
            match becomes {
                Becomes::Nothing => {}
                Becomes::Border => self.push("\n", start + slashes, false),
                Becomes::Letter(letter) => {
                    self.push(letter.encode_utf8(&mut [0; 4]), start + slashes, false);
                }
            }
        }
        if inside {
            self.push(&line[done..], done, true);
        }
        self.ends(line.len());
        marks.open
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

/// The borders of the strings in a line, and what is escaped in them.
pub(super) struct Marks<'a> {
    line: &'a [u8],
    at: usize,
    /// The quote that ends the string; none outside of strings.
    open: Option<u8>,
}

pub(super) struct Mark {
    pub(super) start: usize,
    pub(super) end: usize,
    /// The byte after its backslashes.
    pub(super) byte: u8,
    /// How many backslashes are left: each level of strings doubles them.
    slashes: usize,
    /// What comes after these.
    pub(super) becomes: Becomes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Becomes {
    /// The border of a string.
    Border,
    Letter(char),
    Nothing,
}

impl<'a> Marks<'a> {
    /// Those of a line that begins in a string with this quote at its end, or outside of strings.
    pub(super) fn of(line: &'a [u8], open: Option<u8>) -> Self {
        Self { line, at: 0, open }
    }

    /// The end of the line, as the border of a string.
    pub(super) fn last(line: &[u8]) -> Mark {
        Mark { start: line.len(), end: line.len(), byte: 0, slashes: 0, becomes: Becomes::Border }
    }

    /// The word before a place if it may be the prefix of a string (`rb'`): at most two letters or digits.
    fn prefix(&self, at: usize) -> Option<&[u8]> {
        let word = self.line[..at].iter().rev().take(3).take_while(|byte| byte.is_ascii_alphanumeric());
        let len = word.count();
        (len < 3).then(|| &self.line[at - len..at])
    }

    /// Reads a quote without a backslash of its own: the length of what it stands in, and whether that is a border.
    fn quote(&mut self, at: usize, quote: u8) -> (usize, Option<Becomes>) {
        let letter = |at: usize| self.line.get(at).is_some_and(u8::is_ascii_alphanumeric);
        let doubled = quote == b'"' && self.line.get(at + 1) == Some(&quote);
        let in_word = quote == b'\'' && letter(at.wrapping_sub(1)) && letter(at + 1);
        // `b'id,ssn'` of Python.
        let is_literal = |prefix: &[u8]| prefix.iter().all(|byte| b"bBrRuUfF".contains(byte));
        match self.open {
            // The other quote, and an apostrophe in a word.
            Some(open) if open != quote => (1, None),
            open if in_word && (open.is_some() || !self.prefix(at).is_some_and(is_literal)) => (1, None),
            // In a field of CSV; outside, an empty string.
            Some(_) if doubled => (2, Some(Becomes::Letter('"'))),
            None if doubled => (2, None),
            Some(_) => {
                self.open = None;
                (1, Some(Becomes::Border))
            }
            None => {
                // A quote behind a word begins no string (`users'`). The string may end in the next part of the line.
                let rest = &self.line[at + 1..];
                let closes = || !rest.ends_with(b"\n") || memchr::memchr(quote, rest).is_some();
                self.open = (self.prefix(at).is_some() && closes()).then_some(quote);
                (1, Some(Becomes::Border))
            }
        }
    }
}

impl Iterator for Marks<'_> {
    type Item = Mark;

    fn next(&mut self) -> Option<Mark> {
        let line = self.line;
        loop {
            let start = self.at + memchr::memchr3(b'\\', b'"', b'\'', &line[self.at..])?;
            let slashes = line[start..].iter().take_while(|byte| **byte == b'\\').count();
            let at = start + slashes;
            let byte = line.get(at).copied().unwrap_or_default();
            let escaped = slashes % 2 == 1;
            let (len, becomes) = match byte {
                b'"' | b'\'' if escaped || slashes > 0 && self.open != Some(byte) => {
                    (1, Some(Becomes::Letter(char::from(byte))))
                }
                b'"' | b'\'' => self.quote(at, byte),
                b'n' if escaped => (1, Some(Becomes::Letter('\n'))),
                b'r' if escaped => (1, Some(Becomes::Letter('\r'))),
                b't' if escaped => (1, Some(Becomes::Letter('\t'))),
                _ if escaped => match view::code(&line[at - 1..]) {
                    Some((len, Some(letter))) => (len - 1, Some(Becomes::Letter(letter))),
                    _ => (0, None),
                },
                _ => (0, None),
            };
            let end = at + len;
            self.at = end;
            let kept = if escaped && becomes.is_none() { slashes / 2 + 1 } else { slashes / 2 };
            if becomes.is_some() || kept < slashes {
                // A byte that is not part of a mark stays as it is.
                let (end, becomes) = becomes.map_or((at, Becomes::Nothing), |becomes| (end, becomes));
                return Some(Mark { start, end, byte, slashes: kept, becomes });
            }
        }
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
