//! Addresses with colons: IPv6 (RFC 4291), hardware.

use std::net::Ipv6Addr;

use super::Scanner;
use super::excuse::Candidate;

/// Eight groups, a dotted IPv4 tail.
const MAX: usize = 46;
/// This many groups are an address in any block.
const WHOLE: usize = 6;
/// How far before an address its label may be.
const LABEL: usize = 16;

impl Scanner<'_> {
    /// Examines the address around the first of its colons.
    #[inline(never)]
    #[expect(clippy::too_many_lines, reason = "the conditions of an address, in the order of their cost")]
    pub(super) fn ipv6(&mut self, at: usize) {
        if at < self.addresses_done {
            return;
        }
        // Two colons side by side, or five with up to four digits between: the minimum for an address.
        let marks = self.bits(at, |block| block.mark) & (u64::MAX >> (64 - MAX));
        if marks & marks >> 1 == 0 {
            let gap = (marks >> 1).trailing_zeros();
            let third = (marks >> 2).checked_shr(gap).unwrap_or(0);
            if gap > 4 || third.trailing_zeros() > 4 || marks.count_ones() < 5 {
                return;
            }
        }
        let back = self.before(at, MAX).iter().rev().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let start = at - back;
        let outside = self.byte_before(start);
        if outside.is_ascii_alphanumeric() || matches!(outside, b'_' | b':' | b'.') {
            return;
        }
        let (mut end, mut colons, mut gap) = (at, 0, false);
        while end < self.to.min(at + MAX) {
            match self.text[end] {
                b':' => {
                    colons += 1;
                    gap |= end > at && self.text[end - 1] == b':';
                }
                byte if byte.is_ascii_hexdigit() || byte == b'.' => {}
                _ => break,
            }
            end += 1;
        }
        self.addresses_done = end;
        if !gap && colons < 5 {
            return;
        }
        while end > start
            && (self.text[end - 1] == b'.'
                || self.text[end - 1] == b':' && !self.text[..end].ends_with(b"::"))
        {
            end -= 1;
        }
        if self.byte(end).is_ascii_alphanumeric() || self.byte(end) == b'_' {
            return;
        }
        let Ok(text) = std::str::from_utf8(&self.text[start..end]) else { return };
        if text.len() == 17 && colons == 5 && text.split(':').all(|pair| pair.len() == 2) {
            let extreme = text.bytes().all(|byte| matches!(byte, b':' | b'0'))
                || text.eq_ignore_ascii_case("ff:ff:ff:ff:ff:ff");
            if !extreme {
                self.hit(self.ids.mac, start, end);
            }
            return;
        }
        // `std::fs`, `Ada::Bed`: without a digit it is a path in a program.
        let Some(address) = text.parse().ok().filter(|_| text.bytes().any(|byte| byte.is_ascii_digit()))
        else {
            return;
        };
        let whole = text.split(':').filter(|group| !group.is_empty()).count() >= WHOLE || text.contains('.');
        if !whole && !is_assigned(address) && !self.labelled(self.ids.ipv6, start, LABEL) {
            return;
        }
        let candidate = Candidate::new(self.ids.ipv6, start, self.suffix(end)).by(start, end, false);
        self.propose(candidate);
    }

    /// A zone (`%eth0`) and a prefix length (`/64`) belong to it.
    pub(super) fn suffix(&self, end: usize) -> usize {
        let mut end = end;
        if self.byte(end) == b'%' {
            let zone =
                self.text[end + 1..].iter().take(16).take_while(|byte| byte.is_ascii_alphanumeric()).count();
            if zone > 0 {
                end += 1 + zone;
            }
        }
        if self.byte(end) == b'/' {
            let digits = self.text[end + 1..].iter().take(4).take_while(|byte| byte.is_ascii_digit()).count();
            if (1..=3).contains(&digits) && !super::is_word(self.byte(end + 1 + digits)) {
                end += 1 + digits;
            }
        }
        end
    }
}

/// Whether an address is in a block in use (IANA, "Internet Protocol Version 6 Address Space"). In all others, few groups
/// are the slice of an array (`[::2]`, `[1::]`), a time or a path.
fn is_assigned(address: Ipv6Addr) -> bool {
    let first = address.segments()[0];
    matches!(first, 0x64 | 0x2000..=0x3fff | 0xfc00..=0xfdff | 0xfe80..=0xfebf | 0xff00..)
        || address.is_loopback()
        || address.to_ipv4_mapped().is_some()
}

#[cfg(test)]
mod tests {
    use crate::guard::Guard;

    #[test]
    fn an_address_in_brackets_after_a_host_is_not_a_slice() {
        let guard = Guard::default();
        for (text, clean) in [
            ("connect from mail.example.com[2a02:8084:20::442]", "connect from mail.example.com[[IP_1]]"),
            ("relay=mx.example.net[2a02:8084:85a3::8a2e:370:7334]:25", "relay=mx.example.net[[IP_1]]:25"),
            ("from unknown[2a02:8084:85a3:8d3:1319:8a2e:370:7348]", "from unknown[[IP_1]]"),
            ("from unknown[2a02:8084::]", "from unknown[[IP_1]]"),
            ("?2a02:8084::1", "?[IP_1]"),
        ] {
            assert_eq!(*guard.check(text).text, *clean);
        }
        for text in [
            "rows[::2]",
            "sparse[1::2]",
            "toks2[::2]",
            "children()[::2]",
            "connect from localhost[::1]",
            "grid[0][::2]",
            "(?::0*?",
        ] {
            assert_eq!(*guard.check(text).text, *text);
        }
        for text in ["x[:, ::2, 1::3]", "c::B110", "F32::<BE>", "+12::34", "dead:beef::1"] {
            assert_eq!(*guard.check(text).text, *text);
        }
        assert_eq!(*guard.check(&"2a02::3[".repeat(40)).text, *"[IP_1][".repeat(40));
    }
}
