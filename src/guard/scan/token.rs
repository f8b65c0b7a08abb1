//! Long words: tokens of providers, JSON web tokens, and random text beside a telling name.

use super::{Scanner, is_word};
use crate::guard::rule::Check;

impl Scanner<'_> {
    /// Looks at a run of at least sixteen word characters.
    pub(super) fn long_word(&mut self, at: usize) {
        let end = self.word_end(at);
        // A token may have short parts before this one: `SG.x`, `hvs.x`.
        let mut start = at;
        if self.byte_before(at) == b'.' {
            let back = self.before(at, 32);
            start -= back.iter().rev().take_while(|byte| is_word(**byte) || **byte == b'.').count();
        }
        while start < end && matches!(self.text[start], b'-' | b'_' | b'.') {
            start += 1;
        }
        if self.token(start) || (start < at && self.token(at)) {
            return;
        }
        if self.text[start..].starts_with(b"eyJ") {
            self.jwt(start);
        }
    }

    /// A token rule that matches at `start`.
    fn token(&mut self, start: usize) -> bool {
        for (rule, pattern) in self.rules.tokens(self.byte(start), self.byte(start + 1)) {
            let Some(end) = pattern.find(self.text, start) else { continue };
            let fits = match self.rules.list[usize::from(*rule)].check {
                Check::None => true,
                Check::Random => is_random(&self.text[start..end]),
                Check::Context => self.rules.has_context(*rule, self.before(start, 64)),
            };
            if fits {
                self.hit(*rule, start, end);
                return true;
            }
        }
        false
    }

    /// `eyJ...` (a JSON object's beginning in base64url), a dot, and more.
    fn jwt(&mut self, start: usize) {
        let part = |from: usize| {
            self.text[from..].iter().take_while(|byte| is_word(**byte) || **byte == b'=').count()
        };
        let head = part(start);
        let mut end = start + head;
        if head < 16 || self.byte(end) != b'.' {
            return;
        }
        let mut parts = 0;
        while parts < 4 && self.byte(end) == b'.' {
            let len = part(end + 1);
            if len == 0 && parts != 0 {
                break;
            }
            end += 1 + len;
            parts += 1;
        }
        if end - start >= head + 8 {
            self.hit(self.rules.id("jwt"), start, end);
        }
    }
}

/// Letters and digits in a mix that words joined by dashes do not have.
pub(super) fn is_random(token: &[u8]) -> bool {
    let digits = token.iter().filter(|byte| byte.is_ascii_digit()).count();
    let letters = token.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    digits >= 2 && letters >= 2
}
