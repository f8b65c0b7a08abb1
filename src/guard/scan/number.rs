//! Numbers in groups: cards, social security numbers, telephone numbers, IPv4 addresses, PPSNs.

use super::excuse::{Candidate, Evidence};
use super::{LEFT, Scanner, first_line, last_line};
use crate::guard::confirm::{self, CardRange, is_card};
use crate::guard::heads;
use crate::guard::rule::{LONGEST_NUMBER, RuleId, pattern};
use crate::guard::words::{Set, WORDS};

/// How many groups of digits are examined together. A longer chain (a row of numbers) is processed in steps.
const MAX_GROUPS: usize = 24;
/// How many groups the longest number can have: they are examined again in the next step.
const LONGEST: usize = 6;
/// The most parts of an identifier. Without a word beside it, an identifier has one part or more than [`MANY_PARTS`].
const MOST_PARTS: usize = 7;
const MANY_PARTS: usize = 4;
/// The fewest digits (one letter included) of an identifier that begins with them.
const SHORTEST_ID: usize = 8;
/// How far before or after a number its label may be, at most.
const FAR_LABEL: usize = 40;
/// How far a chain may begin before the place that triggered the search.
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

impl Scanner<'_> {
    /// Examines the chain of numbers around `at`.
    #[inline(never)]
    pub(super) fn number(&mut self, at: usize) {
        let floor = at.saturating_sub(BACK).max(self.numbers_done);
        // No further than a chain reaches from there.
        let (mut start, mut gap) = (at, 0);
        while start > floor && gap < 3 {
            match self.text[start - 1] {
                byte if byte.is_ascii_digit() => gap = 0,
                byte if is_joint(byte) => gap += 1,
                _ => break,
            }
            start -= 1;
            gap = if gap == 3 && self.text[start..].starts_with(b" / ") { 0 } else { gap };
        }
        while start < self.to && !self.text[start].is_ascii_digit() {
            start += 1;
        }
        let mut groups = std::mem::take(self.groups);
        self.chain(start, &mut groups);
        self.numbers(at, start, &groups);
        *self.groups = groups;
    }

    /// Examines each group of a chain.
    fn numbers(&mut self, at: usize, start: usize, groups: &[Group]) {
        let Some(last) = groups.last() else {
            self.numbers_done = at + 1;
            return;
        };
        self.numbers_done = if groups.len() == MAX_GROUPS {
            groups[MAX_GROUPS - LONGEST].start
        } else {
            last.end().max(at + 1)
        };
        self.unlabelled =
            start >= self.from + FAR_LABEL && self.no_letters(start - FAR_LABEL, last.end() + FAR_LABEL);
        let mut index = 0;
        while index < groups.len() {
            let known = self.out.len();
            index += self.number_at(groups, index).max(1);
            if self.out.len() > known {
                self.number_found = self.out[known].end;
            }
        }
        self.unlabelled = false;
    }

    /// The chain that begins at a digit: groups of digits with one separator (or two, as in `) `) between each.
    fn chain(&self, start: usize, groups: &mut Vec<Group>) {
        groups.clear();
        let masks = |at| (self.bits(at, |block| block.digit), self.bits(at, |block| block.sep | block.dot));
        let mut at = start;
        // The masks of the next `known` bytes.
        let ((mut digits, mut joints), mut known) = (masks(at), 64);
        while groups.len() < MAX_GROUPS {
            let mut len = digits.trailing_ones();
            if len + 3 > known {
                ((digits, joints), known) = (masks(at), 64);
                len = digits.trailing_ones();
            }
            if len > 60 {
                let len = self.text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                groups.push(Group { start: at, len });
                at += len;
                ((digits, joints), known) = (masks(at), 64);
            } else if len > 0 {
                groups.push(Group { start: at, len: len as usize });
                at += len as usize;
                (digits, joints, known) = (digits >> len, joints >> len, known - len);
            } else {
                break;
            }
            let gap = joints.trailing_ones().min(3);
            if gap == 0 || gap == 3 && !self.text[at..].starts_with(b" / ") {
                break;
            }
            at += gap as usize;
            (digits, joints, known) = (digits >> gap, joints >> gap, known - gap);
        }
    }

    /// Tries each kind of number on the groups from `index`; returns how many groups were taken.
    fn number_at(&mut self, groups: &[Group], index: usize) -> usize {
        let here = groups[index];
        let before = self.byte_before(here.start);
        if self.unlabelled && self.is_plain(groups, index) {
            return 0;
        }
        let digits = || groups[index..].iter().take(MOST_PARTS).map(|group| group.len).sum::<usize>();
        let lead = self.lead(here).filter(|_| digits() >= SHORTEST_ID - 2);
        if let Some(end) = lead.and_then(|start| self.identifier(start)) {
            return until(groups, index, end);
        }
        if before == b'_' {
            return self.joined(groups, index);
        }
        if before.is_ascii_alphabetic() || before >= 0x80 && self.glued(here.start) {
            return 0;
        }
        if index > 0 && before == b'.' {
            return 0;
        }
        // Kinds that a group's length rules out are not tried.
        let mut taken = 0;
        if matches!(here.len, 1..=3) {
            taken = self.ipv4(groups, index);
        }
        if taken == 0 && matches!(here.len, 1 | 2 | 4) {
            taken = self.date(groups, index);
        }
        if taken == 0 && matches!(here.len, 4 | 6 | 12..=19) {
            taken = self.card(groups, index);
        }
        if taken == 0 && digits() + 1 >= SHORTEST_ID && self.may_be_labelled(groups, index) {
            taken = self.identifier(here.start).map_or(0, |end| until(groups, index, end));
        }
        if taken == 0 && here.len == 3 {
            taken = self.ssn(groups, index);
        }
        if taken == 0 { self.phone(groups, index) } else { taken }
    }

    /// `bsn_437483393.csv`, `card_no_4111111111111111`: a number that is joined to its name.
    fn joined(&mut self, groups: &[Group], index: usize) -> usize {
        let here = groups[index];
        if here.len >= 12 && self.names(self.ids.card_labelled, here.start) {
            return self.card(groups, index);
        }
        if here.len == 3 && self.names(self.ids.ssn_labelled, here.start) {
            return self.ssn(groups, index);
        }
        if let Some(end) = self.identifier(here.start) {
            return until(groups, index, end);
        }
        // `cell_1234567` is a cell.
        let dialled = here.len > 9 || here.len == 9 && self.text[here.start] == b'0';
        let fits = dialled && here.len <= LONGEST_NUMBER && !self.byte(here.end()).is_ascii_alphanumeric();
        let phone = self.ids.phone_labelled;
        let found = fits && self.names(phone, here.start) && self.any_phone(&groups[index..=index]) > 0;
        if found {
            self.hit(phone, here.start, here.end());
        }
        usize::from(found)
    }

    /// Whether no number can begin with a group of this length that has no letter nearby: one of many numbers in a row.
    #[inline]
    fn is_plain(&self, groups: &[Group], index: usize) -> bool {
        let here = groups[index];
        let next = groups.get(index + 1).map_or(0, |next| next.len);
        let too_short = || {
            self.byte(here.end()) == b' ' && !(here.len == 1 && next == 3 && self.text[here.start] == b'1')
        };
        let fits_none = match here.len {
            1 | 2 => too_short(),
            5 | 7..=11 => true,
            6 => next != 13,
            _ => false,
        };
        fits_none && self.text[here.start] != b'0' && !matches!(self.byte_before(here.start), b'(' | b'+')
    }

    /// Whether a non-ASCII letter comes before it, of a script that puts spaces between words.
    fn glued(&self, at: usize) -> bool {
        let before = String::from_utf8_lossy(self.before(at, 4));
        let last = before.chars().next_back();
        last.is_some_and(|last| last.is_alphabetic() && !heads::joins_words(last))
    }

    /// Where an identifier begins that has letters before these digits (`X1234567L`, `AB 12 34 56 C`), or joined to them behind a
    /// name: `form11_3632383U_2024.pdf`.
    fn lead(&self, group: Group) -> Option<usize> {
        let before = self.byte_before(group.start);
        let long = group.len >= SHORTEST_ID - 2;
        if before == b'_' {
            return (long && self.byte(group.end()).is_ascii_alphabetic()).then_some(group.start);
        }
        let apart = usize::from(matches!(before, b' ' | b'-'));
        let before = self.before(group.start - apart, 4);
        let letters = before.iter().rev().take_while(|byte| byte.is_ascii_alphabetic()).count();
        let start = group.start - apart - letters;
        let fits = if long { (1..=3 - apart).contains(&letters) } else { apart == 1 && letters == 2 };
        (fits && !is_word_byte(self.byte_before(start))).then_some(start)
    }

    /// An identifier by its row, in parts with separators between; returns where it ends.
    pub(super) fn identifier(&mut self, start: usize) -> Option<usize> {
        let mut text = [0u8; LONGEST_NUMBER];
        let (mut len, mut end) = (0, start);
        for parts in 1..=MOST_PARTS {
            let rest = self.text[end..].iter().take(LONGEST_NUMBER + 1);
            let part = rest.take_while(|byte| byte.is_ascii_alphanumeric()).count();
            if len + part > text.len() {
                break;
            }
            text[len..len + part].copy_from_slice(&self.text[end..end + part]);
            (len, end) = (len + part, end + part);
            // `form11_3632383U_2024.pdf`
            let within = parts == 1 && text[len.saturating_sub(1)].is_ascii_uppercase();
            // Eight characters before a dash may begin a UUID.
            let begins = len == 8 && self.byte(end) == b'-' && is_word_byte(self.byte(end + 1));
            let alone = (parts == 1 || parts > MANY_PARTS) && !begins;
            // A row of amounts has more parts.
            let mut rows = self.rules.numbers(&text[..len]).filter(|_| 2 * parts <= len + 1);
            let found = rows.find(|(rule, row)| {
                let labelled = match row.close {
                    true => self.names(*rule, start),
                    false => self.labelled(*rule, start, FAR_LABEL),
                };
                row.alone && alone || labelled || self.is_labelled_behind(*rule, end)
            });
            if let Some((rule, _)) = found.filter(|_| self.byte(end) != b'_' || within) {
                self.hit(rule, start, end);
                return Some(end);
            }
            let joint = self.text[end..].iter().take(3).take_while(|byte| is_joint(**byte)).count();
            if joint == 0 || joint == 3 && !self.text[end..].starts_with(b" / ") {
                break;
            }
            end += joint;
        }
        None
    }

    /// Whether a context word of the rule is within `len` bytes before.
    pub(super) fn labelled(&self, rule: RuleId, at: usize, len: usize) -> bool {
        if self.unlabelled || !self.letters_before(at, len) {
            return false;
        }
        self.rules.has_context(rule, self.label(at, len))
    }

    /// Whether a context word of the rule names this very number: only words like `number is` are between.
    fn names(&self, rule: RuleId, at: usize) -> bool {
        let between = self.rules.behind_context(rule, self.label(at, FAR_LABEL));
        between.is_some_and(|between| only_words(between, &WORDS.list.naming))
    }

    /// Whether a word for telephone reaches this number: no other label and no end of a sentence between.
    pub(super) fn phone_label(&self, at: usize, groups: usize) -> bool {
        if self.unlabelled || !self.letters_before(at, 32) {
            return false;
        }
        if self.is_signed(at) {
            return true;
        }
        if !self.word_before(at, 32) {
            return false;
        }
        let between = self.rules.behind_context(self.ids.phone_labelled, self.label(at, 32));
        between.is_some_and(|between| {
            let other = between.trim_ascii_end().ends_with(b":") && between.iter().any(u8::is_ascii_digit);
            // `television` is not `tel`.
            let longer = between.first().is_some_and(u8::is_ascii_lowercase);
            // `TEL;TYPE=WORK:` of vCard.
            let typed = between.starts_with(b";TYPE=") || between.starts_with(b";VALUE=");
            !other
                && !longer
                && (typed || !between.contains(&b';'))
                && (groups > 1 || only_words(between, &WORDS.list.calling))
        })
    }

    /// `T 020 7946 0958 | M 07700 900123`, as signatures have it: one capital, and a zero before.
    #[inline(never)]
    fn is_signed(&self, at: usize) -> bool {
        self.byte(at) == b'0' && pattern!(r"(?:^|[\n|]) *[TMFP][:.]?\s$").is_match(self.before(at, 8))
    }

    /// Dates take their groups, so that no other kind is tried on them; a date of birth is found by its label.
    fn date(&mut self, groups: &[Group], index: usize) -> usize {
        let Some(three @ [a, b, c]) = groups.get(index..index + 3) else { return 0 };
        let Some(joint @ (b'-' | b'/' | b'.')) = self.joint(three) else { return 0 };
        // `06.12.34.56.78` continues: a French telephone number.
        let four = groups.get(index..index + 4).filter(|four| joint == b'.' && four[3].len == 2);
        if four.is_some_and(|four| self.joint(four).is_some()) {
            return 0;
        }
        let value = |group: &Group| self.digits_value(*group);
        let year = |group: &Group| group.len == 4 && (1800..=2199).contains(&value(group));
        let (month, day) = (
            |g: &Group| g.len <= 2 && (1..=12).contains(&value(g)),
            |g: &Group| g.len <= 2 && (1..=31).contains(&value(g)),
        );
        let short_year = |group: &Group| group.len == 2 && a.len <= 2 && b.len <= 2;
        let is_date = year(a) && month(b) && day(c)
            || (year(c) || short_year(c)) && (day(a) && month(b) || month(a) && day(b));
        if !is_date {
            return 0;
        }
        if self.labelled(self.ids.birth_date, a.start, 32) {
            self.hit(self.ids.birth_date, a.start, c.end());
        }
        3
    }

    fn digits_value(&self, group: Group) -> u32 {
        value(&self.text[group.start..group.end()])
    }

    /// Whether a label may be before or after these groups.
    fn may_be_labelled(&self, groups: &[Group], index: usize) -> bool {
        let (start, end) = (groups[index].start, groups[groups.len() - 1].end());
        // In a long row of groups each may be the last of a number.
        let row = groups[index..].len() > 2;
        let named = |text: &[u8]| self.rules.may_name_identifier(text);
        !self.unlabelled
            && (self.word_before(start, FAR_LABEL) && (!row || named(self.label(start, FAR_LABEL)))
                || groups.len() - index <= MOST_PARTS
                    && self.letters_behind(end, 16)
                    && named(self.behind(end)))
    }

    /// The rest of the line, as far as a label may be; it is behind a blank.
    fn behind(&self, end: usize) -> &[u8] {
        let blank = self.text[end..].iter().take(2).any(|byte| *byte == b' ');
        first_line(&self.text[end..self.to.min(end + if blank { FAR_LABEL } else { 0 })])
    }

    /// Whether a word of the rule after a number names it, and nothing after that: `(CPF)`, `is my Aadhaar number.`
    fn is_labelled_behind(&self, rule: RuleId, end: usize) -> bool {
        let rest = self.behind(end);
        self.rules.context(rule, rest).is_some_and(|(from, to)| {
            let names_next = |byte: &u8| matches!(byte, b':' | b'=' | b'0'..=b'9');
            only_words(&rest[..from], &WORDS.list.naming) && !rest[to..].iter().any(names_next)
        })
    }

    /// 3-2-4 digits. Dashes are enough; spaces if nothing else is in the chain; dots and no separator beside a word.
    fn ssn(&mut self, groups: &[Group], index: usize) -> usize {
        let Some(three @ [a, b, c]) = groups.get(index..index + 3) else { return 0 };
        if (a.len, b.len, c.len) != (3, 2, 4)
            || is_word_byte(self.byte(c.end()))
            || self.byte_before(a.start) == b'-' && !self.names(self.ids.ssn_labelled, a.start)
        {
            return 0;
        }
        let Some(joint) = self.joint(three) else { return 0 };
        let [area, group, serial] = [a, b, c].map(|group| self.digits_value(*group));
        if !confirm::ssn(area, group, serial) || self.byte(c.end()) == b'-' {
            return 0;
        }
        let alone = groups.len() == 3;
        let found = (joint == b'-' || joint == b' ' && alone)
            && self.propose(Candidate::new(self.ids.ssn, a.start, c.end()))
            || matches!(joint, b' ' | b'.')
                && self.labelled(self.ids.ssn_labelled, a.start, FAR_LABEL)
                && self.propose(Candidate::new(self.ids.ssn_labelled, a.start, c.end()));
        if found { 3 } else { 0 }
    }

    /// Telephone numbers: with a country code, in a national form, or after a word for one.
    fn phone(&mut self, groups: &[Group], index: usize) -> usize {
        let here = groups[index];
        if here.len > 15 || !self.may_be_phone(here) {
            return 0;
        }
        let (mut start, before) = (here.start, self.byte_before(here.start));
        if matches!(before, b'(' | b'+') {
            start -= 1;
        }
        if before == b'(' && self.byte_before(start) == b'+' {
            start -= 1;
        }
        if self.is_rest(groups, index, start) || start == here.start && self.numbers_a_row(&groups[index..]) {
            return 0;
        }
        let plus = self.text[start..here.start].contains(&b'+');
        // `353871234567.0`, as tables of numbers print it.
        let whole = here.len >= 9
            && self.text[here.end()..].starts_with(b".0")
            && !self.goes_on_as_number(here.end() + 2);
        let rest = if whole { &groups[index..=index] } else { &groups[index..] };
        let propose = |this: &mut Self, rule: RuleId, taken: usize| {
            let end = this.extension(rest[taken - 1].end()) + if whole { 2 } else { 0 };
            let candidate = Candidate::new(rule, start, end).in_groups(taken);
            !this.goes_on_as_number(end) && this.propose(candidate)
        };
        let (rule, taken) = match plus {
            true => (self.ids.phone_international, self.international(rest, false)),
            false => (self.ids.phone_national, self.national(rest)),
        };
        if taken > 0 && propose(self, rule, taken) {
            return taken;
        }
        // The label is looked for last: it is the most expensive.
        let taken = if plus { self.international(rest, true) } else { self.any_phone(rest) };
        let labelled = || self.phone_label(start, taken) || self.label_behind(rest[taken - 1].end());
        let rule = if plus { rule } else { self.ids.phone_labelled };
        if taken > 0 && labelled() && propose(self, rule, taken) { taken } else { 0 }
    }

    /// Whether the text at `start`, including punctuation before the group, is the rest of something longer.
    fn is_rest(&self, groups: &[Group], index: usize, start: usize) -> bool {
        let (here, outside) = (groups[index], self.byte_before(start));
        // Part of an identifier (`INV-1470326168`, `1e+12`), or of a decimal number.
        // The tail of a longer grouped number (`DE99 3704 0044 0532 0130 00`) is not one either.
        // But text after a number that was found stands alone once that is replaced.
        let tail = index > 0
            && groups[index - 1].len >= 3
            && groups[index - 1].end() != self.number_found
            && here.start - groups[index - 1].end() == 1
            && start == here.start;
        let inner = is_word_byte(outside) && start != self.number_found
            // `08:01 4699305`
            || outside == b':' && self.byte_before(start - 1).is_ascii_digit()
            || tail
            || matches!(outside, b'.' | b'#' | b'$')
            || matches!(outside, b'-' | b'/') && is_word_byte(self.byte_before(start - 1));
        // The tail of an amount: `1,234.50`.
        let amount = outside == b','
            && here.len == 3
            && start == here.start
            && start > 1
            && self.byte_before(start - 1).is_ascii_digit()
            && (matches!(self.byte(here.end()), b',' | b')' | b' ')
                || self.byte(here.end()) == b'.' && groups.get(index + 1).is_none_or(|group| group.len != 3));
        inner || amount
    }

    /// `1 0171 2345678`, `1  415-555-0132`: a row number, and the row's first value.
    fn numbers_a_row(&self, groups: &[Group]) -> bool {
        let [row, next, ..] = groups else { return false };
        let between = &self.text[row.end()..next.start];
        row.len < 3 && (between == b"  " || between == b" " && next.len > 2 && self.text[next.start] == b'0')
    }

    /// Whether a number that ends here is part of a longer word or number.
    fn goes_on_as_number(&self, end: usize) -> bool {
        let next = self.byte(end);
        is_word_byte(next) || next == b'.' && self.byte(end + 1).is_ascii_digit()
    }

    /// A cheap check: a telephone number has punctuation or a zero before it, begins with a group of three, or is near a word.
    fn may_be_phone(&self, here: Group) -> bool {
        matches!(self.byte_before(here.start), b'(' | b'+')
            || self.text[here.start] == b'0' && here.len > 1
            || here.len == 3
            || here.len == 1 && self.text[here.start] == b'1'
            || !self.unlabelled
                && (self.letters_before(here.start, 32) || self.letters_behind(here.end(), 24))
    }

    /// `+` and 8 to 15 digits (ITU-T E.164); 6 after a label. Returns how many groups.
    fn international(&self, rest: &[Group], label: bool) -> usize {
        let first = self.byte(rest[0].start);
        if first == b'0' {
            return 0;
        }
        // No North American area code begins with 0 or 1.
        let area = if rest[0].len > 1 {
            rest[0].start + 1
        } else {
            rest.get(1).map_or(rest[0].end(), |next| next.start)
        };
        if first == b'1' && matches!(self.byte(area), b'0' | b'1') {
            return 0;
        }
        let limit = if first == b'1' { 11 } else { 15 };
        let (digits, taken) = gather(rest, limit, |digits, _, next| {
            // `(2 min 14 s)`
            let opens = self.byte_before(next.start) == b'(' && self.byte(next.end()) != b')';
            !opens && (digits < 8 || next.len <= 5)
        });
        let enough = (if label { 6 } else { 8 }..=limit).contains(&digits);
        if enough && !self.is_decimal(rest, taken) { taken } else { 0 }
    }

    /// Whether the groups taken are a decimal number. None begins with a zero and another digit: `030.123456`.
    fn is_decimal(&self, rest: &[Group], taken: usize) -> bool {
        let zero = rest[0].len > 1 && self.byte(rest[0].start) == b'0';
        taken == 2 && !zero && self.byte(rest[0].end()) == b'.'
    }

    /// Whether a country code comes after `00` (ITU-T E.164).
    fn is_country(&self, here: Group) -> bool {
        let codes = pattern!(concat!(
            "^00(?:[17]|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]",
            "|(?:2[1-69]|3[578]|42|5[09]|6[7-9]|8[0578]|9[679])[0-9])$"
        ));
        codes.is_match(&self.text[here.start..here.end()])
    }

    /// The forms in which countries print their own numbers, one after the other. Returns how many groups.
    fn national(&self, rest: &[Group]) -> usize {
        let here = rest[0];
        let [first, second, third] = [0, 1, 2].map(|at| self.byte(here.start + at));
        let (before, joint) = (self.byte_before(here.start), self.byte(here.end()));
        let close = |last: &Group, next: &Group| next.start == last.end() + 1;
        let starts = |group: &Group| (b'2'..=b'9').contains(&self.byte(group.start));
        // Mobile numbers without a space: Ireland (10 digits), United Kingdom (11).
        let irish = here.len == 10 && second == b'8' && matches!(third, b'3' | b'5'..=b'7' | b'9');
        let british = here.len == 11 && second == b'7' && third != b'0';
        if first == b'0' && !is_word_byte(joint) && (irish || british) {
            return 1;
        }
        // North America: 3-3-4, perhaps with a 1 before.
        let one = usize::from(here.len == 1 && first == b'1');
        if let Some([a, b, c]) = rest.get(one..one + 3)
            && (a.len, b.len, c.len) == (3, 3, 4)
            && starts(a)
            && (starts(b) || self.byte(a.end()) == b'-' && self.digits_value(*b) > 0)
            && matches!(
                (self.byte(a.end()), self.byte(b.end())),
                (b'-' | b'/' | b')', b'-' | b' ') | (b'.', b'.') | (b' ', b' ' | b'-')
            )
        {
            return one + 3;
        }
        // `(415) 6667777`, `(01) 634 5000`
        if before == b'(' && (2..=5).contains(&here.len) && joint == b')' {
            let (digits, taken) = gather(rest, 11, |_, _, _| true);
            if taken > 1 && digits >= 9 && rest[1].len <= 8 {
                return taken;
            }
        }
        // `00353 1 234 5678`: an international prefix, a country code, the number.
        if (first, second) == (b'0', b'0') && (3..=5).contains(&here.len) && self.is_country(here) {
            let (digits, taken) = gather(rest, 15, |_, last, next| {
                matches!(self.byte(last.end()), b' ' | b'-') && close(last, next) && next.len <= 8
            });
            if taken >= 3 && digits >= 12 && (here.len != 3 || starts(&rest[1])) {
                return taken;
            }
        }
        // A leading zero and 9 to 11 digits in groups: Ireland, United Kingdom, France, Germany, ...
        if first == b'0' && second != b'0' && (2..=5).contains(&here.len) {
            let (digits, taken) =
                gather(rest, 11, |_, last, next| self.byte(last.end()) == joint && close(last, next));
            let french = joint == b'.' && taken == 5 && rest[..5].iter().all(|group| group.len == 2);
            let short = taken == 2 || rest[1..taken].iter().all(|group| group.len <= 5);
            if taken > 1
                && digits >= 9
                && rest[1].len > 1
                && short
                && (french || matches!(joint, b' ' | b'-'))
            {
                return taken;
            }
        }
        0
    }

    /// After a label any 6 to 15 digits that are not a date or a decimal number.
    fn any_phone(&self, rest: &[Group]) -> usize {
        let (digits, taken) = gather(rest, 15, |digits, _, next| digits < 7 || next.len <= 4);
        let spelled = rest[..taken].iter().all(|group| group.len == 1);
        if digits >= if spelled { 9 } else { 6 } && !self.is_decimal(rest, taken) { taken } else { 0 }
    }

    /// `28-64-66-98 office`, `085 175 7641-Fax`.
    fn label_behind(&self, end: usize) -> bool {
        let rest = &self.text[end..self.to.min(end + 10)];
        let signs = rest.iter().take_while(|byte| matches!(**byte, b' ' | b'-' | b'(')).count();
        let word = &rest[signs..];
        // A label for what follows refers to that.
        let ends = |label: &&String| !matches!(self.byte(end + signs + label.len()), b'_' | b'=' | b':');
        let begins = |label: &&String| {
            word.get(..label.len()).is_some_and(|word| word.eq_ignore_ascii_case(label.as_bytes()))
        };
        let labels = &WORDS.list.behind_phone;
        (1..=2).contains(&signs) && labels.iter().any(|label| begins(&label) && ends(&label))
    }

    /// `x12`, `ext. 12` after a number.
    #[inline(never)]
    fn extension(&self, end: usize) -> usize {
        let rest = &self.text[end..self.to.min(end + 16)];
        let found = pattern!(r"(?i)^ *(?:extension|ext\.?|x|#) *[0-9]{1,6}(?:[^0-9]|$)").find(rest);
        found
            .map_or(end, |found| end + found.as_bytes().iter().rposition(u8::is_ascii_digit).unwrap_or(0) + 1)
    }

    /// A card number in one group or in the groups that networks print.
    fn card(&mut self, groups: &[Group], index: usize) -> usize {
        let rest = &groups[index..];
        let whole: &[usize] = &[rest[0].len];
        // The groups that networks print, by the second of them; the longest first, or a rest would stay visible.
        let forms: &[&[usize]] = match rest {
            [first, ..] if (12..=19).contains(&first.len) => &[whole],
            [first, second, _, ..] if first.len == 4 => match second.len {
                3 => &[&[4, 3, 3, 3]],
                4 => &[&[4, 4, 4, 4, 3], &[4, 4, 4, 4], &[4, 4, 4]],
                5 => &[&[4, 5, 6]],
                6 => &[&[4, 6, 5], &[4, 6, 4]],
                _ => return 0,
            },
            [first, second, ..] if (first.len, second.len) == (6, 13) => &[&[6, 13]],
            _ => return 0,
        };
        let first = [self.byte(rest[0].start), self.byte(rest[0].start + 1)];
        if self.unlabelled && !confirm::may_be_card(first) {
            return 0;
        }
        for form in forms {
            let Some(taken) = rest.get(..form.len()) else { continue };
            if form.iter().zip(taken).any(|(len, group)| *len != group.len) {
                continue;
            }
            let (start, end) = (taken[0].start, taken[form.len() - 1].end());
            let joined = form.len() == 1 || matches!(self.joint(taken), Some(b' ' | b'-'));
            if is_word_byte(self.byte(end)) || !joined {
                continue;
            }
            let (mut digits, mut len) = ([0u8; 32], 0);
            for group in taken {
                digits[len..len + group.len].copy_from_slice(&self.text[group.start..group.end()]);
                len += group.len;
            }
            let digits = &digits[..len];
            let labelled = self.ids.card_labelled;
            let word = || self.labelled(labelled, start, FAR_LABEL) || self.card_data_behind(end);
            let (rule, evidence) = match (confirm::luhn(digits), confirm::card_range(digits)) {
                // A number that both its grouping and a label call a card number is hidden even if it fails the check.
                (false, _) if *form == [4, 4, 4, 4] && self.labelled(labelled, start, 24) => (labelled, None),
                (false, _) | (_, CardRange::None) => continue,
                (_, CardRange::Usual) if word() => (self.ids.card, Some(Evidence::Word)),
                (_, CardRange::Usual) => (self.ids.card, self.card_evidence(groups, (index, form.len()))),
                (_, CardRange::Rare) if word() => (labelled, None),
                (_, CardRange::Rare) => continue,
            };
            let candidate = Candidate::new(rule, start, end).checked(is_card);
            if self.propose(evidence.into_iter().fold(candidate, Candidate::with)) {
                return form.len();
            }
        }
        0
    }

    /// Whether the other data of a card follow: `","exp_month":4`, ` exp 12/27 cvv 123`.
    fn card_data_behind(&self, end: usize) -> bool {
        let rest = first_line(&self.text[end..self.to.min(end + LEFT)]);
        pattern!(
            r"(?i)^.{0,8}\b(?:exp|expires|expiry) \d\d/\d|\b(?:cvv|cvc)|\bexp(?:iry|iration)?_?(?:month|year)"
        )
        .is_match(rest)
    }

    /// The evidence for a card beyond its digits: the networks' groups, prose around it, or that it stands alone or among
    /// similar numbers.
    fn card_evidence(&self, groups: &[Group], (index, len): (usize, usize)) -> Option<Evidence> {
        let (first, last) = (groups[index], groups[index + len - 1]);
        if len > 1 {
            let beside = index > 0 || groups.len() > index + len;
            return (self.byte(first.end()) == b'-' || !beside).then_some(Evidence::Grouped);
        }
        let before = last_line(self.before(first.start, LEFT));
        let after = first_line(&self.text[last.end()..self.to.min(last.end() + LEFT)]);
        let others: Vec<&[u8]> = runs(before).chain(runs(after)).filter(|run| run.len() > 2).collect();
        if others.is_empty() {
            return Some(Evidence::Alone);
        }
        // Similar numbers that are all cards are not a coincidence.
        let likes = || others.iter().filter(|run| run.len() == first.len);
        if likes().all(|run| is_card(run)) && (likes().count() == others.len() || likes().count() > 1) {
            return Some(Evidence::Likes);
        }
        let prose = |text: &[u8]| {
            let letters = |five: &[u8]| five.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
            text.windows(5).any(|five| five[2] == b' ' && letters(five) == 4)
        };
        (others.len() < 2 && (prose(before) || prose(after))).then_some(Evidence::Prose)
    }

    fn ipv4(&mut self, groups: &[Group], index: usize) -> usize {
        let Some(four) = groups.get(index..index + 4) else { return 0 };
        if self.byte(four[0].end()) != b'.' || four.iter().any(|group| group.len > 3) {
            return 0;
        }
        let octet = |group: &Group| {
            self.digits_value(*group) <= 255 && (group.len == 1 || self.text[group.start] != b'0')
        };
        if self.joint(four).is_none() || !four.iter().all(octet) {
            return 0;
        }
        let (start, end) = (four[0].start, four[3].end());
        let (before, after) = (self.byte_before(start), self.byte(end));
        let more = after == b'.' && self.byte(end + 1).is_ascii_digit();
        let version = after == b'-' && self.byte(end + 1).is_ascii_alphabetic() || is_word_byte(after);
        if matches!(before, b'.' | b'-' | b'_') || more || version {
            return 0;
        }
        let candidate = Candidate::new(self.ids.ipv4, start, self.suffix(end)).by(start, end, false);
        self.propose(candidate);
        4
    }

    /// The single character that joins each of some groups to the next.
    fn joint(&self, groups: &[Group]) -> Option<u8> {
        let joint = self.byte(groups[0].end());
        let joined = |pair: &[Group]| pair[1].start == pair[0].end() + 1 && self.byte(pair[0].end()) == joint;
        groups.windows(2).all(joined).then_some(joint)
    }

    /// Two letters and two digits at the start of a word: IBAN, UK national insurance number, VAT number, MRZ.
    #[inline(never)]
    pub(super) fn letter_pair(&mut self, at: usize) {
        if self.iban(at) {
            return;
        }
        if self.bits(at + 2, |block| block.digit).trailing_ones() >= 4 {
            self.identifier(at);
        }
    }

    fn iban(&mut self, at: usize) -> bool {
        let Some(len) = confirm::iban_len([self.text[at], self.text[at + 1]]) else { return false };
        // Most words with this beginning end soon, or continue with the wrong class of character.
        let next = if is_joint(self.byte(at + 4)) { at + 5 } else { at + 4 };
        if at + len > self.to || !confirm::iban_begins([self.text[at], self.text[at + 1]], self.byte(next)) {
            return false;
        }
        let mut text = [0u8; 34];
        let (mut have, mut end) = (0, at);
        while have < len && end < self.to {
            let byte = self.text[end];
            if byte.is_ascii_alphanumeric() {
                text[have] = byte;
                have += 1;
            } else if !(matches!(byte, b' ' | b'-' | b'.') && self.byte(end + 1).is_ascii_alphanumeric()) {
                return false;
            }
            end += 1;
        }
        let found = have == len && !self.byte(end).is_ascii_alphanumeric() && confirm::iban(&text[..len]);
        if found {
            // Handbooks show the form with accounts that do not exist; beside a context word it may be a real one.
            if !confirm::counts_up(&text[4..len]) {
                self.hit(self.ids.iban, at, end);
            } else if self.labelled(self.ids.iban_labelled, at, FAR_LABEL) {
                self.hit(self.ids.iban_labelled, at, end);
            }
            self.numbers_done = self.numbers_done.max(end);
        }
        found
    }
}

/// How many groups begin before a place.
fn until(groups: &[Group], index: usize, end: usize) -> usize {
    groups[index..].iter().take_while(|group| group.start < end).count()
}

/// How many digits and groups the first groups have, at most `most` digits, as long as `joins` accepts the next: by the
/// digits before, the last group and the next.
fn gather(rest: &[Group], most: usize, joins: impl Fn(usize, &Group, &Group) -> bool) -> (usize, usize) {
    let (mut digits, mut taken) = (rest[0].len, 1);
    while let Some(next) = rest.get(taken)
        && digits + next.len <= most
        && joins(digits, &rest[taken - 1], next)
    {
        (digits, taken) = (digits + next.len, taken + 1);
    }
    (digits, taken)
}

/// Whether all words in a text are of these.
fn only_words(text: &[u8], known: &Set) -> bool {
    text.split(|byte| !(byte.is_ascii_alphabetic() || *byte >= 0x80))
        .all(|word| word.is_empty() || known.holds(word))
}

/// The value of the first nine digits.
pub(super) fn value(digits: &[u8]) -> u32 {
    digits.iter().take(9).fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'))
}

/// Runs of digits.
pub(super) fn runs(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| !byte.is_ascii_digit()).filter(|run| !run.is_empty())
}

fn is_joint(byte: u8) -> bool {
    matches!(byte, b' ' | b'-' | b'.' | b'/' | b'(' | b')')
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}
