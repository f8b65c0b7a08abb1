//! Numbers in groups: cards, social security numbers, telephone numbers, IPv4 addresses, PPSNs.

use super::Scanner;
use crate::guard::confirm::{self, CardRange};

/// How many groups of digits are looked at together. A longer chain (a row of numbers) is taken in steps.
const MAX_GROUPS: usize = 24;
/// How many groups the longest number can have: what is looked at again in the next step.
const LONGEST: usize = 6;
/// How far a chain may begin before the place that woke us.
const BACK: usize = 48;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Group {
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Group {
    pub(super) fn end(self) -> usize {
        self.start + self.len
    }
}

/// Groups of digits with one separator (or two, as in `) `) between each.
#[derive(Debug)]
pub(super) struct Chain {
    groups: [Group; MAX_GROUPS],
    len: usize,
}

impl Chain {
    pub(super) fn groups(&self) -> &[Group] {
        &self.groups[..self.len]
    }
}

impl Scanner<'_> {
    /// Looks at the chain of numbers around `at`.
    pub(super) fn number(&mut self, at: usize) {
        let floor = at.saturating_sub(BACK).max(self.numbers_done);
        let mut start = at;
        while start > floor && (self.text[start - 1].is_ascii_digit() || is_joint(self.text[start - 1])) {
            start -= 1;
        }
        while start < self.to && !self.text[start].is_ascii_digit() {
            start += 1;
        }
        let chain = self.chain(start);
        let groups = chain.groups();
        let Some(last) = groups.last() else {
            self.numbers_done = at + 1;
            return;
        };
        self.numbers_done = if groups.len() == MAX_GROUPS {
            groups[MAX_GROUPS - LONGEST].start
        } else {
            last.end().max(at + 1)
        };
        let mut index = 0;
        while index < groups.len() {
            index += self.number_at(groups, index).max(1);
        }
    }

    /// The chain of groups that begins at a digit.
    fn chain(&self, start: usize) -> Chain {
        let mut chain = Chain { groups: [Group::default(); MAX_GROUPS], len: 0 };
        let mut at = start;
        while chain.len < MAX_GROUPS {
            let len = self.text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            if len == 0 {
                break;
            }
            chain.groups[chain.len] = Group { start: at, len };
            chain.len += 1;
            at += len;
            let joints = self.text[at..].iter().take(3).take_while(|byte| is_joint(**byte)).count();
            if joints == 0 || joints > 2 {
                break;
            }
            at += joints;
        }
        chain
    }

    /// Tries each kind of number on the groups from `index`; how many groups were taken.
    fn number_at(&mut self, groups: &[Group], index: usize) -> usize {
        let here = groups[index];
        let before = self.byte_before(here.start);
        if before.is_ascii_alphabetic() || before == b'_' {
            return 0;
        }
        let fraction = before == b'.' && index > 0;
        if fraction {
            return 0;
        }
        if here.len == 7 && self.ppsn(here) {
            return 1;
        }
        for count in [self.card(groups, index), self.ipv4(groups, index)] {
            if count > 0 {
                return count;
            }
        }
        0
    }

    fn ppsn(&mut self, group: Group) -> bool {
        let letters = self.text[group.end()..].iter().take(3).take_while(|b| b.is_ascii_alphabetic()).count();
        let end = group.end() + letters;
        if !(1..=2).contains(&letters) || is_word_byte(self.byte(end)) {
            return false;
        }
        if confirm::ppsn(&self.text[group.start..end]) {
            self.hit(self.rules.id("ppsn"), group.start, end);
            return true;
        }
        false
    }

    /// A card number in one group or in the groups that networks print.
    fn card(&mut self, groups: &[Group], index: usize) -> usize {
        const FORMS: &[&[usize]] = &[&[4, 4, 4, 4], &[4, 6, 5], &[4, 6, 4], &[4, 4, 4, 4, 3], &[4, 5, 6]];
        let rest = &groups[index..];
        let whole: &[usize] = &[rest[0].len];
        let single = (12..=19).contains(&rest[0].len).then_some(whole);
        let grouped = FORMS.iter().copied().filter(|form| {
            rest.len() >= form.len() && form.iter().zip(rest).all(|(len, group)| *len == group.len)
        });
        for form in single.into_iter().chain(grouped) {
            let taken = &rest[..form.len()];
            let (start, end) = (taken[0].start, taken[form.len() - 1].end());
            if is_word_byte(self.byte(end)) || !self.same_joint(taken) || self.is_float(end) {
                continue;
            }
            let mut digits = [0u8; 19];
            let mut len = 0;
            for byte in self.text[start..end].iter().filter(|byte| byte.is_ascii_digit()) {
                digits[len] = *byte;
                len += 1;
            }
            let digits = &digits[..len];
            if !confirm::luhn(digits) {
                continue;
            }
            let rule = match confirm::card_range(digits) {
                CardRange::Usual => self.rules.id("card"),
                CardRange::Rare | CardRange::None => {
                    let rule = self.rules.id("card-labelled");
                    if confirm::card_range(digits) == CardRange::None
                        || !self.rules.has_context(rule, self.before(start, 40))
                    {
                        continue;
                    }
                    rule
                }
            };
            self.hit(rule, start, end);
            return form.len();
        }
        0
    }

    fn ipv4(&mut self, groups: &[Group], index: usize) -> usize {
        let rest = &groups[index..];
        if rest.len() < 4 || rest[..4].iter().any(|group| group.len > 3) {
            return 0;
        }
        let octet = |group: &Group| {
            let digits = &self.text[group.start..group.end()];
            let value = digits.iter().fold(0u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
            (value <= 255 && (digits.len() == 1 || digits[0] != b'0')).then_some(value)
        };
        let dotted = rest[..4]
            .windows(2)
            .all(|pair| pair[1].start == pair[0].end() + 1 && self.byte(pair[0].end()) == b'.');
        if !dotted || !rest[..4].iter().all(|group| octet(group).is_some()) {
            return 0;
        }
        let (start, end) = (rest[0].start, rest[3].end());
        let (before, after) = (self.byte_before(start), self.byte(end));
        let more = after == b'.' && self.byte(end + 1).is_ascii_digit();
        let version =
            after == b'-' && self.byte(end + 1).is_ascii_alphabetic() || is_word_byte(after) && after != b'-';
        if matches!(before, b'.' | b'-' | b'_') || more || version {
            return 0;
        }
        let rule = self.rules.id("ipv4");
        if self.rules.has_context(rule, self.before(start, 16)) {
            return 0;
        }
        self.hit(rule, start, end);
        4
    }

    /// Whether all groups are joined by the same single character, a space or a dash.
    fn same_joint(&self, groups: &[Group]) -> bool {
        let mut joints =
            groups.windows(2).map(|pair| (pair[1].start - pair[0].end(), self.byte(pair[0].end())));
        let Some(first) = joints.next() else { return true };
        first.0 == 1 && matches!(first.1, b' ' | b'-') && joints.all(|joint| joint == first)
    }

    /// Whether what ends here goes on as a decimal fraction other than `.0`.
    fn is_float(&self, end: usize) -> bool {
        self.byte(end) == b'.'
            && self.byte(end + 1).is_ascii_digit()
            && (self.byte(end + 1) != b'0' || self.byte(end + 2).is_ascii_digit())
    }

    /// Two letters and two digits at the start of a word: an IBAN.
    pub(super) fn letter_pair(&mut self, at: usize) {
        let Some(len) = confirm::iban_len([self.text[at], self.text[at + 1]]) else { return };
        let mut text = [0u8; 34];
        let (mut have, mut end) = (0, at);
        while have < len && end < self.to {
            let byte = self.text[end];
            if byte.is_ascii_alphanumeric() {
                text[have] = byte;
                have += 1;
            } else if !(matches!(byte, b' ' | b'-') && self.byte(end + 1).is_ascii_alphanumeric()) {
                return;
            }
            end += 1;
        }
        if have == len && !self.byte(end).is_ascii_alphanumeric() && confirm::iban(&text[..len]) {
            self.hit(self.rules.id("iban"), at, end);
            self.numbers_done = self.numbers_done.max(end);
        }
    }
}

fn is_joint(byte: u8) -> bool {
    matches!(byte, b' ' | b'-' | b'.' | b'/' | b'(' | b')')
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}
