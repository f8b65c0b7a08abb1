//! E-mail addresses (RFC 5322 in the form that people use).

use super::Scanner;
use crate::guard::classes::alphanumeric_or;

/// The longest local part (RFC 5321 section 4.5.3.1).
const MAX_LOCAL: usize = 64;
const MAX_DOMAIN: usize = 253;

/// What stands behind the last dot of `logo@2x.png` and `a@b.T()`, and is no top-level domain.
const FILE_ENDINGS: &[&[u8]] =
    &[b"png", b"jpg", b"jpeg", b"gif", b"svg", b"webp", b"css", b"js", b"ts", b"json", b"html", b"tgz"];

/// What stands behind the last dot and before a `(` where matrices are multiplied.
const METHODS: &[&[u8]] = &[
    b"dot",
    b"sum",
    b"mean",
    b"max",
    b"min",
    b"reshape",
    b"transpose",
    b"astype",
    b"copy",
    b"item",
    b"flatten",
    b"ravel",
    b"tolist",
    b"inv",
    b"all",
    b"any",
    b"std",
    b"conj",
    b"round",
    b"clip",
    b"view",
    b"numpy",
    b"cpu",
    b"to",
];

impl Scanner<'_> {
    /// Looks at the address around an `@`.
    #[inline(never)]
    pub(super) fn mail(&mut self, at: usize) {
        let Some(start) = self.local_part(at) else { return };
        if b":/!#$^&*?~".contains(&self.byte_before(start)) && self.login(at) {
            return;
        }
        let Some(end) = self.domain(at + 1) else { return };
        let local = &self.text[start..at];
        // `git@host:path`, `ssh://git@host/path` is where a repository is.
        if local == b"git" && (self.byte(end) == b':' || self.text[..start].ends_with(b"://")) {
            return;
        }
        self.hit(self.ids.email, start, end);
    }

    fn local_part(&self, at: usize) -> Option<usize> {
        let back = self.before(at, MAX_LOCAL);
        let taken = back.iter().rev().take_while(|byte| is_local(**byte)).count();
        let mut start = at - taken;
        while start < at && !self.text[start].is_ascii_alphanumeric() && self.text[start] != b'_' {
            start += 1;
        }
        (start < at && self.byte_before(at) != b'.').then_some(start)
    }

    /// The end of a domain of at least two labels, the last one of letters.
    pub(super) fn domain(&self, from: usize) -> Option<usize> {
        let limit = self.to.min(from + MAX_DOMAIN);
        let mut end = from;
        while end < limit && (self.text[end].is_ascii_alphanumeric() || matches!(self.text[end], b'-' | b'.'))
        {
            end += 1;
        }
        while end > from && matches!(self.text[end - 1], b'-' | b'.') {
            end -= 1;
        }
        let domain = &self.text[from..end];
        let dot = domain.iter().rposition(|byte| *byte == b'.')?;
        let last = &domain[dot + 1..];
        let letters = last.iter().all(u8::is_ascii_alphabetic) || last.starts_with(b"xn--");
        let whole = dot > 0 && domain[0] != b'.' && !domain.windows(2).any(|pair| pair == b"..");
        // `.py` is Paraguay too, where addresses end in `.com.py`.
        let file = FILE_ENDINGS.contains(&last) || last == b"py" && !domain[..dot].contains(&b'.');
        let code = self.byte(end) == b'(' && METHODS.contains(&last) || file;
        (letters && last.len() >= 2 && whole && !code).then_some(end)
    }
}

fn is_local(byte: u8) -> bool {
    static LOCAL: [bool; 256] = alphanumeric_or(b"._%+'-");
    LOCAL[usize::from(byte)]
}
