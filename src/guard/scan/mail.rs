//! E-mail addresses (RFC 5322 in the form that people use, with the letters of any script: RFC 6531).

use super::flag::is_address;
use super::{Scanner, first_line};
use crate::guard::classes::alphanumeric_or;
use crate::guard::rule::pattern;

/// How far around its `[at]` an address may be.
const MAX_WRITTEN: usize = 64;

/// The longest local part (RFC 5321 section 4.5.3.1).
const MAX_LOCAL: usize = 64;
const MAX_DOMAIN: usize = 253;

impl Scanner<'_> {
    /// The address that people write against collectors: `bob [at] example [dot] org`; the bracket is at `at`.
    pub(super) fn written_mail(&mut self, at: usize) {
        let after = first_line(&self.text[at..self.to.min(at + MAX_WRITTEN)]);
        let domain = pattern!(
            r"(?i)^\[at\] ?[a-z0-9-]+(?:(?:\.| ?\[dot\] ?)[a-z0-9-]+)*(?:\.| ?\[dot\] ?)[a-z]{2,}\b"
        );
        let local = pattern!(r"(?i)[a-z0-9_][a-z0-9._%+-]*(?: ?\[dot\] ?[a-z0-9._%+-]+)* ?$");
        let before = self.before(at, MAX_WRITTEN.min(at - self.from));
        if let (Some(domain), Some(local)) = (domain.find(after), local.find(before)) {
            self.hit(self.ids.email, at - local.len(), at + domain.end());
        }
    }

    /// Examines the address around an `@`.
    #[inline(never)]
    pub(super) fn mail(&mut self, at: usize) {
        let Some(start) = self.local_part(at) else { return };
        if b":/!#$^&*?~".contains(&self.byte_before(start)) && self.login(at) {
            return;
        }
        let Some(end) = self.domain(at + 1).or_else(|| self.address_literal(at + 1)) else { return };
        self.hit(self.ids.email, start, end);
    }

    /// The end of an address in place of a domain (RFC 5321 section 4.1.3): `[192.0.2.1]`.
    fn address_literal(&self, from: usize) -> Option<usize> {
        let rest = self.text[from..self.to.min(from + 17)].strip_prefix(b"[")?;
        let len = memchr::memchr(b']', rest)?;
        is_address(&rest[..len]).then_some(from + len + 2)
    }

    fn local_part(&self, at: usize) -> Option<usize> {
        let back = self.before(at, MAX_LOCAL);
        let taken = back.iter().rev().take_while(|byte| is_local(**byte)).count();
        let mut start = at - taken;
        match self.byte_before(start) {
            b'"' if taken == 0 => return self.quoted_local_part(at),
            ..0x80 if taken == 0 => return None,
            0x80.. => start = self.local_part_abroad(at),
            _ => {}
        }
        while start < at
            && !matches!(self.text[start], b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | 0x80..)
        {
            start += 1;
        }
        (start < at && self.byte_before(at) != b'.').then_some(start)
    }

    /// `"john..doe"@example.org`: the second quote comes before `at`.
    #[inline(never)]
    fn quoted_local_part(&self, at: usize) -> Option<usize> {
        let back = self.before(at, MAX_LOCAL + 1);
        // Other text between two strings of a program: `"", x="@example.org"`.
        let quoted = pattern!(r#""[A-Za-z0-9](?:[A-Za-z0-9._%+' !#@-]*[A-Za-z0-9])?"$"#).find(back)?;
        let start = at - quoted.len();
        (!is_local(self.byte_before(start))).then_some(start)
    }

    /// The start of a local part with non-ASCII letters. In scripts without spaces between words it has only those,
    /// or the sentence before it would be included.
    #[inline(never)]
    fn local_part_abroad(&self, at: usize) -> usize {
        let back = String::from_utf8_lossy(self.before(at, MAX_LOCAL));
        let apart = !back.ends_with(|c: char| c.is_ascii());
        let local = |c: &char| match u8::try_from(*c) {
            Ok(byte) if byte.is_ascii() => is_local(byte),
            _ => c.is_alphabetic() && (apart || has_blanks(*c)),
        };
        let taken: String = back.chars().rev().take_while(local).collect();
        at - taken.len()
    }

    /// The end of a domain of at least two labels, the last one of letters.
    pub(super) fn domain(&self, from: usize) -> Option<usize> {
        let limit = self.to.min(from + MAX_DOMAIN);
        let mut end = from;
        while end < limit && (self.text[end].is_ascii_alphanumeric() || matches!(self.text[end], b'-' | b'.'))
        {
            end += 1;
        }
        let found = self.ascii_domain(from, end);
        match self.byte(end) {
            0x80.. => self.domain_abroad(from, found.is_some()).or(found),
            _ => found,
        }
    }

    /// The end of a domain with non-ASCII letters; where it would `end` without them, only with those of scripts that put
    /// spaces between words.
    #[inline(never)]
    fn domain_abroad(&self, from: usize, ends: bool) -> Option<usize> {
        let rest = String::from_utf8_lossy(&self.text[from..self.to.min(from + MAX_DOMAIN)]);
        let part = |c: char| match c {
            '-' | '.' => true,
            _ => c.is_alphanumeric() && (c.is_ascii() || !ends || has_blanks(c)),
        };
        let domain = rest[..rest.find(|c| !part(c)).unwrap_or(rest.len())].trim_end_matches(['-', '.']);
        let (labels, last) = domain.rsplit_once('.')?;
        let whole = !labels.is_empty() && !domain.starts_with('.') && !domain.contains("..");
        let letters = last.chars().all(char::is_alphabetic) && last.chars().nth(1).is_some();
        (whole && (letters || last.starts_with("xn--"))).then_some(from + domain.len())
    }

    /// The end of the ASCII domain in the run from `from` to `end`.
    fn ascii_domain(&self, from: usize, end: usize) -> Option<usize> {
        let mut end = end;
        while end > from && matches!(self.text[end - 1], b'-' | b'.') {
            end -= 1;
        }
        let domain = &self.text[from..end];
        let dot = domain.iter().rposition(|byte| *byte == b'.')?;
        let last = &domain[dot + 1..];
        let letters = last.iter().all(u8::is_ascii_alphabetic) || last.starts_with(b"xn--");
        let whole = dot > 0 && domain[0] != b'.' && !domain.windows(2).any(|pair| pair == b"..");
        (letters && last.len() >= 2 && whole).then_some(end)
    }
}

/// Whether a letter is of a script that puts spaces between words: all before Thai, and Georgian, Hangul and the like.
fn has_blanks(letter: char) -> bool {
    matches!(letter, ..'\u{0e00}' | '\u{10a0}'..'\u{1780}' | '\u{1e00}'..'\u{2000}' | '\u{ac00}'..'\u{d7b0}')
}

fn is_local(byte: u8) -> bool {
    static LOCAL: [bool; 256] = alphanumeric_or(b"._%+'-");
    LOCAL[usize::from(byte)]
}
