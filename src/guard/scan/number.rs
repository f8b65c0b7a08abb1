//! Numbers in groups: cards, social security numbers, telephone numbers, IPv4 addresses, PPSNs.

use std::sync::LazyLock;

use super::name::ends;
use super::token::{Look, look};
use super::{LEFT, Scanner, first_line, last_line};
use crate::guard::confirm::{self, CardRange};
use crate::guard::rule::{RULES, RuleId};

/// How many groups of digits are looked at together. A longer chain (a row of numbers) is taken in steps.
const MAX_GROUPS: usize = 24;
/// How many groups the longest number can have: what is looked at again in the next step.
const LONGEST: usize = 6;
/// How far before or behind a number its label may stand, at most.
const FAR_LABEL: usize = 40;
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

/// The longest identifier of digits.
const LONGEST_ID: usize = 18;

type Identifier = (RuleId, fn(&[u8]) -> bool);

/// Identifiers that a check and a word beside them make sure, by how many characters they have.
static IDENTIFIERS: LazyLock<[Vec<Identifier>; LONGEST_ID + 1]> = LazyLock::new(|| {
    let ids = &RULES.detectors;
    let all: [(usize, Identifier); 33] = [
        (8, (ids.cl_rut, confirm::rut)),
        (9, (ids.cl_rut, confirm::rut)),
        (9, (ids.ca_sin, confirm::luhn)),
        (9, (ids.us_routing, confirm::aba)),
        (9, (ids.nl_bsn, confirm::bsn)),
        (9, (ids.au_tfn, confirm::tfn)),
        (9, (ids.pt_nif, confirm::pt_nif)),
        (9, (ids.il_identity, confirm::luhn)),
        (10, (ids.uk_nhs, confirm::nhs)),
        (10, (ids.us_npi, confirm::npi)),
        (10, (ids.se_personnummer, confirm::luhn)),
        (10, (ids.uk_utr, confirm::utr)),
        (10, (ids.dk_cpr, confirm::cpr)),
        (10, (ids.cz_birth_number, confirm::cz_birth_number)),
        (11, (ids.pl_pesel, confirm::pesel)),
        (11, (ids.de_tax_id, confirm::de_tax_id)),
        (11, (ids.br_cpf, confirm::cpf)),
        (11, (ids.au_abn, confirm::abn)),
        (11, (ids.no_birth_number, confirm::no_birth_number)),
        (11, (ids.be_register, confirm::be_register)),
        (11, (ids.tr_identity, confirm::tr_identity)),
        (11, (ids.hr_oib, confirm::hr_oib)),
        (11, (ids.baltic_code, confirm::baltic_code)),
        (11, (ids.gr_amka, confirm::gr_amka)),
        (11, (ids.ar_cuit, confirm::ar_cuit)),
        (12, (ids.in_aadhaar, confirm::aadhaar)),
        (12, (ids.jp_my_number, confirm::jp_my_number)),
        (12, (ids.se_personnummer, |digits| confirm::luhn(&digits[2..]))),
        (13, (ids.ro_cnp, confirm::ro_cnp)),
        (13, (ids.za_identity, confirm::za_identity)),
        (13, (ids.ch_ahv, confirm::ch_ahv)),
        (15, (ids.fr_nir, confirm::nir)),
        (18, (ids.cn_identity, confirm::cn_identity)),
    ];
    let mut by_len = [const { Vec::new() }; LONGEST_ID + 1];
    for (len, identifier) in all {
        by_len[len].push(identifier);
    }
    by_len
});

impl Scanner<'_> {
    /// Looks at the chain of numbers around `at`.
    #[inline(never)]
    pub(super) fn number(&mut self, at: usize) {
        let floor = at.saturating_sub(BACK).max(self.numbers_done);
        let mut start = at;
        while start > floor && (self.text[start - 1].is_ascii_digit() || is_joint(self.text[start - 1])) {
            start -= 1;
        }
        while start < self.to && !self.text[start].is_ascii_digit() {
            start += 1;
        }
        let mut groups = std::mem::take(self.groups);
        self.chain(start, &mut groups);
        self.numbers(at, start, &groups);
        *self.groups = groups;
    }

    /// Looks at each group of a chain.
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
        // What is known of the next `known` bytes.
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

    /// Tries each kind of number on the groups from `index`; how many groups were taken.
    fn number_at(&mut self, groups: &[Group], index: usize) -> usize {
        let here = groups[index];
        let before = self.byte_before(here.start);
        if before.is_ascii_alphabetic() && matches!(here.len, 7 | 8) && self.letter_before(here) {
            return 1;
        }
        // `card_4111111111111111`
        if before == b'_' && here.len == 7 && self.letter_behind(here) {
            return 1;
        }
        if before == b'_' && here.len >= 12 && self.labelled(self.ids.card_labelled, here.start, 12) {
            return self.card(groups, index);
        }
        if before.is_ascii_alphabetic() || before == b'_' || before >= 0x80 && self.glued(here.start) {
            return 0;
        }
        if index > 0 && before == b'.' {
            return 0;
        }
        if matches!(here.len, 7 | 8) && self.letter_behind(here) {
            return 1;
        }
        // One of many small numbers in a row, and no country's.
        let one = here.len == 1
            && self.text[here.start] == b'1'
            && groups.get(index + 1).is_some_and(|group| group.len == 3);
        let sign = matches!(before, b'(' | b'+') || self.text[here.start] == b'0' || one;
        if self.unlabelled && here.len < 3 && !sign && self.byte(here.end()) == b' ' {
            return 0;
        }
        // What a group's length rules out is not tried.
        let mut taken = 0;
        if matches!(here.len, 1..=3) {
            taken = self.ipv4(groups, index);
        }
        if taken == 0 && here.len == 2 {
            taken = self.spaced_nino(groups, index);
        }
        if taken == 0 && matches!(here.len, 1 | 2 | 4) {
            taken = self.date(groups, index);
        }
        if taken == 0 && matches!(here.len, 4 | 6 | 12..=19) {
            taken = self.card(groups, index);
        }
        if taken == 0 {
            taken = self.labelled_id(groups, index);
        }
        if taken == 0 && matches!(here.len, 3 | 9) {
            taken = self.ssn(groups, index);
        }
        if taken == 0 { self.phone(groups, index) } else { taken }
    }

    /// Whether a letter beyond ASCII stands before.
    fn glued(&self, at: usize) -> bool {
        let before = String::from_utf8_lossy(self.before(at, 4));
        before.chars().next_back().is_some_and(char::is_alphabetic)
    }

    /// Seven digits and one or two letters: PPSN. Eight and one, beside a word that says so: a Spanish NIF.
    fn letter_behind(&mut self, group: Group) -> bool {
        let blank = usize::from(group.len == 7 && self.byte(group.end()) == b' ');
        let letters = self.text[self.to.min(group.end() + blank)..]
            .iter()
            .take(3)
            .take_while(|b| b.is_ascii_alphabetic())
            .count();
        let end = group.end() + blank + letters;
        if blank > 0 {
            return self.spaced_ppsn(group, end);
        }
        if group.len == 8 && self.byte(group.end()) == b'-' {
            return self.dashed_nif(group);
        }
        // `form11_3632383U_2024.pdf`
        let within = self.byte(end) == b'_' && self.byte(end - 1).is_ascii_uppercase();
        if !(1..=2).contains(&letters) || is_word_byte(self.byte(end)) && !within {
            return false;
        }
        let text = &self.text[group.start..end];
        // The first part of a UUID may have the form by chance.
        let goes_on = self.byte(end) == b'-' && is_word_byte(self.byte(end + 1));
        let rule = match group.len {
            // Eight hexadecimal digits are an identifier or a short hash more often.
            7 if !goes_on && !matches!(text[7..], [b'a'..=b'f']) && confirm::ppsn(text) => self.ids.ppsn,
            7 if letters == 1 && self.labelled(self.ids.ppsn_labelled, group.start, 24) => {
                self.ids.ppsn_labelled
            }
            8 if confirm::nif(text) && self.labelled(self.ids.es_nif, group.start, FAR_LABEL) => {
                self.ids.es_nif
            }
            _ => return false,
        };
        self.hit(rule, group.start, end);
        true
    }

    /// `12345678-Z`, beside a word that says so.
    fn dashed_nif(&mut self, group: Group) -> bool {
        let end = group.end() + 2;
        let found = end <= self.to && !is_word_byte(self.byte(end)) && {
            let mut text = [0u8; 9];
            text[..8].copy_from_slice(&self.text[group.start..group.end()]);
            text[8] = self.text[end - 1];
            confirm::nif(&text) && self.labelled(self.ids.es_nif, group.start, FAR_LABEL)
        };
        if found {
            self.hit(self.ids.es_nif, group.start, end);
        }
        found
    }

    /// `1234567 TW`, beside a word that says so.
    fn spaced_ppsn(&mut self, group: Group, end: usize) -> bool {
        let mut text = [0u8; 9];
        let letters = &self.text[group.end() + 1..end];
        if !(1..=2).contains(&letters.len()) || is_word_byte(self.byte(end)) {
            return false;
        }
        text[..7].copy_from_slice(&self.text[group.start..group.end()]);
        text[7..7 + letters.len()].copy_from_slice(letters);
        let found = confirm::ppsn(&text[..7 + letters.len()])
            && self.labelled(self.ids.ppsn_labelled, group.start, 24);
        if found {
            self.hit(self.ids.ppsn_labelled, group.start, end);
        }
        found
    }

    /// A letter and seven or eight digits beside a word that says so: a foreigner's number in Spain, a passport, an
    /// Austrian VAT number.
    fn letter_before(&mut self, group: Group) -> bool {
        let letters =
            self.before(group.start, 4).iter().rev().take_while(|b| b.is_ascii_alphabetic()).count();
        let start = group.start - letters;
        let tail = self.text[group.end()..].iter().take(2).take_while(|b| b.is_ascii_alphabetic()).count();
        let end = group.end() + tail;
        if is_word_byte(self.byte_before(start)) || is_word_byte(self.byte(end)) {
            return false;
        }
        let rule = match (&self.text[start..group.start], group.len, tail) {
            ([first], 7, 1) if self.is_nie(*first, group.start, end) => self.ids.es_nif,
            ([b'A'..=b'Z'], 7 | 8, 0) => self.ids.passport,
            (b"ATU", 8, 0) => self.ids.eu_vat,
            _ => return false,
        };
        let found = self.labelled(rule, start, FAR_LABEL);
        if found {
            self.hit(rule, start, end);
        }
        found
    }

    /// `X`, `Y` or `Z` stand for 0, 1, 2 before the seven digits of a number that is checked like any NIF.
    fn is_nie(&self, first: u8, digits: usize, end: usize) -> bool {
        let first = first.to_ascii_uppercase();
        let mut text = [0u8; 9];
        text[0] = first.wrapping_sub(b'X').wrapping_add(b'0');
        text[1..].copy_from_slice(&self.text[digits..end]);
        matches!(first, b'X'..=b'Z') && confirm::nif(&text)
    }

    /// Whether a context word of the rule stands within `len` bytes before.
    fn labelled(&self, rule: RuleId, at: usize, len: usize) -> bool {
        if self.unlabelled || !self.letters_before(at, len) {
            return false;
        }
        self.rules.has_context(rule, self.label(at, len))
    }

    /// Whether a context word of the rule names this very number: nothing but words like `number is` stand between.
    fn names(&self, rule: RuleId, at: usize, len: usize) -> bool {
        let between = self.rules.behind_context(rule, self.label(at, len));
        between.is_some_and(|between| only_words(between, &NAMING_WORDS))
    }

    /// Whether a word that says telephone reaches this number: no other label and no end of a thought between.
    fn phone_label(&self, at: usize, groups: usize) -> bool {
        if self.unlabelled || !self.letters_before(at, 32) {
            return false;
        }
        let between = self.rules.behind_context(self.ids.phone_labelled, self.label(at, 32));
        between.is_some_and(|between| {
            let other = between.trim_ascii_end().ends_with(b":") && between.iter().any(u8::is_ascii_digit);
            // `television` is no `tel`.
            let longer = between.first().is_some_and(u8::is_ascii_lowercase);
            !other && !longer && !between.contains(&b';') && (groups > 1 || only_words(between, &PHONE_WORDS))
        })
    }

    /// Dates take their groups, so that nothing else is made of them; a date of birth is found by its label.
    fn date(&mut self, groups: &[Group], index: usize) -> usize {
        let Some([a, b, c]) = groups.get(index..index + 3) else { return 0 };
        let joint = self.byte(a.end());
        if !matches!(joint, b'-' | b'/' | b'.')
            || b.start != a.end() + 1
            || c.start != b.end() + 1
            || self.byte(b.end()) != joint
        {
            return 0;
        }
        // `06.12.34.56.78` goes on: a French telephone number.
        if joint == b'.'
            && groups
                .get(index + 3)
                .is_some_and(|d| d.len == 2 && d.start == c.end() + 1 && self.byte(c.end()) == b'.')
        {
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
        self.text[group.start..group.end()]
            .iter()
            .take(9)
            .fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'))
    }

    /// Identifiers that only a check digit and a word beside them make sure.
    fn labelled_id(&mut self, groups: &[Group], index: usize) -> usize {
        let start = groups[index].start;
        if self.unlabelled || !self.letters_before(start, FAR_LABEL) {
            return 0;
        }
        let mut text = [0u8; LONGEST_ID];
        let mut len = 0;
        for (taken, group) in groups[index..].iter().enumerate().take(7) {
            let digits = &self.text[group.start..group.end()];
            if len + digits.len() > text.len() {
                break;
            }
            text[len..len + digits.len()].copy_from_slice(digits);
            len += digits.len();
            // A check digit that is a letter: `12.531.909-K`, `11010519491231002X`.
            let dash = usize::from(self.byte(group.end()) == b'-');
            let letter = self.byte(group.end() + dash);
            let lettered = matches!(letter, b'K' | b'k' | b'X' | b'x') && len < LONGEST_ID;
            let (end, have) = match lettered {
                true => (group.end() + dash + 1, len + 1),
                false => (group.end(), len),
            };
            if lettered {
                text[len] = letter;
            }
            if have < 8 || is_word_byte(self.byte(end)) {
                continue;
            }
            // Only these two end in letters; the other checks take digits.
            let takes = |rule: RuleId| !lettered || rule == self.ids.cl_rut || rule == self.ids.cn_identity;
            let found = IDENTIFIERS[have].iter().find(|(rule, check)| {
                takes(*rule) && check(&text[..have]) && self.labelled(*rule, start, FAR_LABEL)
            });
            if let Some((rule, _)) = found {
                self.hit(*rule, start, end);
                return taken + 1;
            }
        }
        0
    }

    /// 3-2-4 digits. Dashes say enough; spaces when nothing else is in the chain; dots and none beside a word.
    fn ssn(&mut self, groups: &[Group], index: usize) -> usize {
        let here = groups[index];
        if here.len == 9 && !is_word_byte(self.byte(here.end())) {
            let value = self.digits_value(here);
            let valid = confirm::ssn(value / 1_000_000, value / 10_000 % 100, value % 10_000);
            if valid && self.names(self.ids.ssn_labelled, here.start, FAR_LABEL) {
                self.hit(self.ids.ssn_labelled, here.start, here.end());
                return 1;
            }
            // Most countries' passports have nine digits.
            if self.names(self.ids.passport, here.start, FAR_LABEL) {
                self.hit(self.ids.passport, here.start, here.end());
                return 1;
            }
            return 0;
        }
        let Some([a, b, c]) = groups.get(index..index + 3) else { return 0 };
        if (a.len, b.len, c.len) != (3, 2, 4)
            || is_word_byte(self.byte(c.end()))
            || self.byte_before(a.start) == b'-'
        {
            return 0;
        }
        let joint = self.byte(a.end());
        let even = b.start == a.end() + 1 && c.start == b.end() + 1 && self.byte(b.end()) == joint;
        let values = (self.digits_value(*a), self.digits_value(*b), self.digits_value(*c));
        if !even || !confirm::ssn(values.0, values.1, values.2) || self.byte(c.end()) == b'-' {
            return 0;
        }
        let alone = groups.len() == 3;
        let rule = match joint {
            b'-' => self.ids.ssn,
            b' ' if alone && !self.in_row(a.start) => self.ids.ssn,
            b' ' | b'.' if self.labelled(self.ids.ssn_labelled, a.start, FAR_LABEL) => self.ids.ssn_labelled,
            _ => return 0,
        };
        self.hit(rule, a.start, c.end());
        3
    }

    /// Whether the number stands in a row of numbers: a table, an array.
    fn in_row(&self, start: usize) -> bool {
        match self.byte_before(start) {
            b'[' | b'(' | b'|' | b',' => true,
            b' ' => matches!(self.byte_before(start - 1), b' ' | b'[' | b'|' | b'0'..=b'9' | b','),
            _ => false,
        }
    }

    /// Telephone numbers: with a country code, in a national form, or after a word that says so.
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
        if self.is_rest(groups, index, start) {
            return 0;
        }
        let plus = self.text[start..here.start].contains(&b'+');
        // `353871234567.0`, as tables of numbers print it.
        let whole = here.len >= 9
            && self.text[here.end()..].starts_with(b".0")
            && !self.goes_on_as_number(here.end() + 2);
        let rest = if whole { &groups[index..=index] } else { &groups[index..] };
        // The label is looked for last: it costs most.
        let mut label = false;
        let mut taken =
            if plus { self.international(rest, false) } else { self.national(rest, groups.len()) };
        if taken == 0 {
            taken = if plus { self.international(rest, true) } else { self.any_phone(rest) };
            label = taken > 0 && (self.phone_label(start, taken) || self.label_behind(rest[taken - 1].end()));
            if !label {
                return 0;
            }
        }
        let end = self.extension(rest[taken - 1].end());
        let number = &rest[..taken];
        if self.is_amount(number, label)
            || !label
                && (self.is_postcode(number) || !plus && end == number[taken - 1].end() && self.goes_on(end))
            || self.is_long_year(number, plus)
            || taken == 1 && self.is_power_of_two(here)
            || !label && self.is_employer(number) && !self.phone_label(start, taken)
        {
            return 0;
        }
        // `Artikel 089-123-4567`: another word says what it is.
        if !plus
            && !label
            && self.labelled(self.ids.phone_national, start, 16)
            && !self.phone_label(start, taken)
        {
            return 0;
        }
        let end = if whole { end + 2 } else { end };
        if self.goes_on_as_number(end) {
            return 0;
        }
        let rule = match (plus, label) {
            (true, _) => self.ids.phone_international,
            (_, true) => self.ids.phone_labelled,
            _ => self.ids.phone_national,
        };
        self.hit(rule, start, end);
        taken
    }

    /// Whether what begins at `start`, signs before the group included, is the rest of something longer.
    fn is_rest(&self, groups: &[Group], index: usize, start: usize) -> bool {
        let (here, outside) = (groups[index], self.byte_before(start));
        // Part of an identifier (`INV-1470326168`, `1e+12`), or of a decimal number.
        // The tail of a longer grouped number (`DE99 3704 0044 0532 0130 00`) is none either.
        // But what is behind a number that has been found stands alone once that is replaced.
        let tail = index > 0
            && groups[index - 1].len >= 3
            && groups[index - 1].end() != self.number_found
            && here.start - groups[index - 1].end() == 1
            && start == here.start;
        let inner = is_word_byte(outside) && start != self.number_found
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

    /// Whether what ends here is a part of a longer word or number.
    fn goes_on_as_number(&self, end: usize) -> bool {
        let next = self.byte(end);
        is_word_byte(next) || next == b'.' && self.byte(end + 1).is_ascii_digit()
    }

    /// `Téléphonie mobile : 5 412 331 abonnements`: groups of thousands, and a small word for what is counted.
    fn is_amount(&self, groups: &[Group], label: bool) -> bool {
        let [first, others @ .., last] = groups else { return false };
        let joint = self.byte(first.end());
        // Three groups of three and none before may be a telephone number in Spain or Poland.
        let before = first.start.saturating_sub(1);
        let behind_group = self.byte(before) == joint && self.byte_before(before).is_ascii_digit();
        let thousands = (first.len < 3 || first.len == 3 && behind_group)
            && self.text[first.start] != b'0'
            && others.iter().chain([last]).all(|group| group.len == 3)
            && groups
                .windows(2)
                .all(|pair| pair[1].start == pair[0].end() + 1 && self.byte(pair[0].end()) == joint);
        let rest = &self.text[last.end()..self.to.min(last.end() + 24)];
        let word = rest
            .get(1..)
            .unwrap_or_default()
            .iter()
            .take_while(|byte| byte.is_ascii_lowercase() || **byte >= 0x80);
        label
            && thousands
            && matches!(joint, b' ' | b'.')
            && rest.first() == Some(&b' ')
            && word.count() >= 5
            && !self.label_behind(last.end())
    }

    /// `04-1234567 (I.R.S. Employer Identification No.)`: an employer in the United States, whose number has the form of
    /// some telephone numbers. Only words of the same line say so.
    fn is_employer(&self, groups: &[Group]) -> bool {
        const WORDS: [&[u8]; 6] =
            [b"Employer Identification", b"employer identification", b"EIN", b"I.R.S.", b"IRS", b"Tax ID"];
        let [office, number] = groups else { return false };
        let says = |text: &[u8]| {
            WORDS.iter().any(|word| {
                memchr::memmem::find_iter(text, word).any(|at| {
                    let behind = &text[at + word.len()..];
                    let next = behind.first().copied().unwrap_or_default();
                    // `EIN ANRUF`: German.
                    let shouted = *word == b"EIN"
                        && matches!(behind, [b' ', a, b, ..] if a.is_ascii_uppercase() && b.is_ascii_uppercase());
                    !(at > 0 && (is_word_byte(text[at - 1]) || text[at - 1] >= 0x80))
                        && !(is_word_byte(next) || next >= 0x80 || shouted)
                })
            })
        };
        (office.len, number.len, self.byte(office.end())) == (2, 7, b'-')
            && (says(last_line(self.before(office.start, 80)))
                || says(first_line(&self.text[number.end()..self.to.min(number.end() + 160)])))
    }

    /// `MA 02110-1301`, `94103-1234 USA`: a postcode of the United States and its add-on.
    fn is_postcode(&self, groups: &[Group]) -> bool {
        let [zip, more] = groups else { return false };
        if (zip.len, more.len, self.byte(zip.end())) != (5, 4, b'-') {
            return false;
        }
        let before = self.before(zip.start, 8).trim_ascii_end();
        let state = before.len() < 8.min(zip.start)
            && before.len() >= 2
            && before[before.len() - 2..].iter().all(u8::is_ascii_uppercase)
            && !before[..before.len() - 2].last().is_some_and(u8::is_ascii_alphabetic);
        let behind = first_line(&self.text[more.end()..self.to.min(more.end() + 8)]).trim_ascii_start();
        let behind = behind.strip_prefix(b",").unwrap_or(behind).trim_ascii_start();
        state || behind.starts_with(b"USA") || behind.starts_with(b"U.S.A")
    }

    /// Whether a number goes on behind what would be a telephone number: `401-555-1234-56`, `212-555-0123-A`.
    fn goes_on(&self, end: usize) -> bool {
        let next = self.byte(end + 1);
        let letter = next.is_ascii_alphabetic() && !self.byte(end + 2).is_ascii_alphabetic();
        self.byte(end) == b'-' && (next.is_ascii_digit() || letter)
    }

    /// `2147483648`, `4294967295`: limits of numbers in programs.
    fn is_power_of_two(&self, group: Group) -> bool {
        let digits = std::str::from_utf8(&self.text[group.start..group.end()]).unwrap_or_default();
        group.len >= 9
            && digits
                .parse::<u64>()
                .is_ok_and(|value| value.is_power_of_two() || (value + 1).is_power_of_two())
    }

    /// `2011-2022` of years, `+12345-03-04` of ISO 8601 with a year of five digits and more.
    fn is_long_year(&self, groups: &[Group], plus: bool) -> bool {
        let value = |group: &Group| self.digits_value(*group);
        match groups {
            [from, to] => {
                let year = |group| group_is_year(group, value(group));
                !plus && year(from) && year(to)
            }
            [year, month, day] => {
                plus && year.len >= 5
                    && (month.len, day.len) == (2, 2)
                    && (1..=12).contains(&value(month))
                    && (1..=31).contains(&value(day))
            }
            _ => false,
        }
    }

    /// A cheap look: a telephone number has a sign or a zero before, begins with a group of three, or stands by a word.
    fn may_be_phone(&self, here: Group) -> bool {
        matches!(self.byte_before(here.start), b'(' | b'+')
            || self.text[here.start] == b'0' && here.len > 1
            || here.len == 3
            || here.len == 1 && self.text[here.start] == b'1'
            || !self.unlabelled
                && (self.letters_before(here.start, 32) || self.letters_behind(here.end(), 24))
    }

    /// `+` and 8 to 15 digits (ITU-T E.164); 6 after a label. How many groups.
    fn international(&self, rest: &[Group], label: bool) -> usize {
        let first = self.byte(rest[0].start);
        if first == b'0' {
            return 0;
        }
        let limit = if first == b'1' { 11 } else { 15 };
        let (mut digits, mut taken) = (0, 0);
        for group in rest {
            if digits + group.len > limit || taken > 0 && digits >= 8 && group.len > 5 {
                break;
            }
            digits += group.len;
            taken += 1;
        }
        let decimal = taken == 2 && self.byte(rest[0].end()) == b'.';
        let enough = digits >= if label { 6 } else { 8 };
        if enough && !decimal { taken } else { 0 }
    }

    /// Whether a country's code stands behind `00` (ITU-T E.164).
    fn is_country(&self, here: Group) -> bool {
        let code = self.digits_value(here);
        match here.len - 2 {
            1 => matches!(code, 1 | 7),
            2 => matches!(
                code,
                20 | 27 | 30..=34 | 36 | 39..=41 | 43..=49 | 51..=58 | 60..=66 | 81 | 82 | 84 | 86 | 90..=95 | 98
            ),
            _ => matches!(
                code / 10,
                21..=26 | 29 | 35 | 37 | 38 | 42 | 50 | 59 | 67..=69 | 80 | 85 | 87 | 88 | 96 | 97 | 99
            ),
        }
    }

    /// The forms in which countries print their own numbers: how many groups.
    fn national(&self, rest: &[Group], chain: usize) -> usize {
        let taken = self.mobile(rest[0]);
        let taken = taken.or_else(|| self.north_american(rest, chain));
        let taken = taken.or_else(|| self.bracketed(rest));
        let taken = taken.or_else(|| self.abroad(rest));
        taken.or_else(|| self.with_zero(rest)).unwrap_or(0)
    }

    /// Mobile numbers without a space: Ireland (10 digits), United Kingdom (11).
    fn mobile(&self, here: Group) -> Option<usize> {
        let digit = |at: usize| self.byte(at);
        let second = digit(here.start + 1);
        if digit(here.start) == b'0' && !is_word_byte(digit(here.end())) {
            let third = digit(here.start + 2);
            let irish = here.len == 10 && second == b'8' && matches!(third, b'3' | b'5'..=b'7' | b'9');
            let british = here.len == 11 && second == b'7' && third != b'0';
            if irish || british {
                return Some(1);
            }
        }
        None
    }

    /// North America: 3-3-4, perhaps with a 1 before.
    fn north_american(&self, rest: &[Group], chain: usize) -> Option<usize> {
        let here = rest[0];
        let digit = |at: usize| self.byte(at);
        let starts = |group: &Group| (b'2'..=b'9').contains(&self.byte(group.start));
        let skip = usize::from(here.len == 1 && digit(here.start) == b'1');
        if let Some([a, b, c]) = rest.get(skip..skip + 3)
            && (a.len, b.len, c.len) == (3, 3, 4)
            && starts(a)
            && (starts(b) || digit(a.end()) == b'-' && self.digits_value(*b) > 0)
        {
            let (one, two) = (digit(a.end()), digit(b.end()));
            let sure = match (one, two) {
                (b'-' | b'/' | b')', b'-' | b' ') => true,
                (b'.', b'.') => true,
                (b' ', b' ' | b'-') => chain == skip + 3 && !self.in_row(here.start),
                _ => false,
            };
            if sure {
                return Some(skip + 3);
            }
        }
        None
    }

    /// `(415) 6667777`, `(01) 634 5000`
    fn bracketed(&self, rest: &[Group]) -> Option<usize> {
        let here = rest[0];
        let digit = |at: usize| self.byte(at);
        if self.byte_before(here.start) == b'(' && (2..=5).contains(&here.len) && digit(here.end()) == b')' {
            let (mut digits, mut taken) = (here.len, 1);
            while let Some(group) = rest.get(taken)
                && digits + group.len <= 11
            {
                digits += group.len;
                taken += 1;
            }
            // `(17)181119(37)18`, `(7007)181119`: what stands on a parcel (GS1). Four digits there begin with no zero.
            let zero = digit(here.start) == b'0';
            let parcel =
                here.len == 4 && !zero && rest.get(1).is_some_and(|group| group.start == here.end() + 1)
                    || (here.len == 2 || !zero)
                        && rest[1..taken].iter().any(|group| self.byte_before(group.start) == b'(');
            if taken > 1 && (9..=11).contains(&digits) && rest[1].len <= 8 && !parcel {
                return Some(taken);
            }
        }
        None
    }

    /// `00353 1 234 5678`: a code for calls abroad, a country's, the number.
    fn abroad(&self, rest: &[Group]) -> Option<usize> {
        let here = rest[0];
        let digit = |at: usize| self.byte(at);
        let starts = |group: &Group| (b'2'..=b'9').contains(&self.byte(group.start));
        let second = digit(here.start + 1);
        if digit(here.start) == b'0' && second == b'0' && (3..=5).contains(&here.len) && self.is_country(here)
        {
            let (mut digits, mut taken) = (here.len - 2, 1);
            while let Some(group) = rest.get(taken)
                && digits + group.len <= 13
                && matches!(digit(rest[taken - 1].end()), b' ' | b'-')
                && group.start == rest[taken - 1].end() + 1
                && group.len <= 5
            {
                digits += group.len;
                taken += 1;
            }
            let american = here.len != 3 || rest.get(1).is_some_and(starts);
            // `0046 0066 0069`: characters of Unicode.
            let characters = rest.get(1).is_some_and(|group| self.text[group.start..].starts_with(b"00"));
            if taken >= 3 && digits >= 10 && american && !characters && !self.in_row(here.start) {
                return Some(taken);
            }
        }
        None
    }

    /// A leading zero and 9 to 11 digits in groups: Ireland, United Kingdom, France, Germany, ...
    fn with_zero(&self, rest: &[Group]) -> Option<usize> {
        let here = rest[0];
        let digit = |at: usize| self.byte(at);
        let second = digit(here.start + 1);
        if digit(here.start) == b'0' && second != b'0' && (2..=5).contains(&here.len) {
            let (mut digits, mut taken, joint) = (here.len, 1, digit(here.end()));
            while let Some(group) = rest.get(taken)
                && digits + group.len <= 11
                && digit(rest[taken - 1].end()) == joint
                && group.start == rest[taken - 1].end() + 1
            {
                digits += group.len;
                taken += 1;
            }
            let french = joint == b'.' && taken == 5 && rest[..5].iter().all(|group| group.len == 2);
            let listed = rest[..taken].windows(2).all(|pair| {
                pair[0].len == pair[1].len && self.digits_value(pair[1]) == self.digits_value(pair[0]) + 1
            });
            // A date and a time, a row of bytes: `04 000047 33`, `a0 08 07 06 05 04 03`.
            // `01 02 2026`, `02 2026 03`
            let year = |group: &Group| group_is_year(group, self.digits_value(*group));
            let dated = taken > 2
                && rest[..taken].iter().all(|group| group.len == 2 || year(group))
                && rest[1..taken].iter().any(year);
            let long = taken > 2 && rest[1..taken].iter().any(|group| group.len > 5);
            let shape = (matches!(joint, b' ' | b'-') || french)
                && !long
                && !dated
                && !self.is_row_of_bytes(&rest[..taken]);
            if shape && taken > 1 && (9..=11).contains(&digits) && !listed && rest[1].len > 1 {
                return Some(taken);
            }
        }
        None
    }

    /// Whether groups of one length stand in a row of more: bytes in hexadecimal, in decimal with zeros.
    fn is_row_of_bytes(&self, groups: &[Group]) -> bool {
        let len = groups[0].len;
        // `de 9h` is none.
        let byte = |at: usize| {
            (at..at + len).all(|at| self.byte(at).is_ascii_hexdigit())
                && (at..at + len).any(|at| self.byte(at).is_ascii_digit())
                && !is_word_byte(self.byte_before(at))
                && !is_word_byte(self.byte(at + len))
        };
        let (start, end) = (groups[0].start, groups[groups.len() - 1].end());
        (2..=3).contains(&len)
            && groups.iter().all(|group| group.len == len)
            && (self.byte(end) == b' ' && byte(end + 1)
                || start > len && self.byte(start - 1) == b' ' && byte(start - 1 - len))
    }

    /// After a label any 6 to 15 digits will do that are no date and no decimal.
    fn any_phone(&self, rest: &[Group]) -> usize {
        let (mut digits, mut taken) = (0, 0);
        for group in rest {
            if digits + group.len > 15 || digits >= 7 && group.len > 4 {
                break;
            }
            digits += group.len;
            taken += 1;
        }
        let decimal = taken == 2 && self.byte(rest[0].end()) == b'.';
        let spelled = rest[..taken].iter().all(|group| group.len == 1);
        if digits >= if spelled { 9 } else { 6 } && !decimal { taken } else { 0 }
    }

    /// `28-64-66-98 office`, `085 175 7641-Fax`.
    fn label_behind(&self, end: usize) -> bool {
        const WORDS: [&[u8]; 8] = [b"office", b"fax", b"mobile", b"cell", b"phone", b"tel", b"home", b"work"];
        let rest = &self.text[end..self.to.min(end + 10)];
        let signs = rest.iter().take_while(|byte| matches!(**byte, b' ' | b'-' | b'(')).count();
        let word = &rest[signs..];
        (1..=2).contains(&signs)
            && WORDS
                .iter()
                .any(|label| word.len() >= label.len() && word[..label.len()].eq_ignore_ascii_case(label))
    }

    /// `x12`, `ext. 12` behind a number.
    fn extension(&self, end: usize) -> usize {
        let rest = &self.text[end..self.to.min(end + 16)];
        let blank = rest.iter().take_while(|byte| **byte == b' ').count();
        let word: usize = [&b"extension"[..], b"ext.", b"ext", b"x", b"#"]
            .iter()
            .find(|word| {
                rest[blank..].len() > word.len() && rest[blank..][..word.len()].eq_ignore_ascii_case(word)
            })
            .map_or(0, |word| word.len());
        if word == 0 {
            return end;
        }
        let tail = &rest[blank + word..];
        let gap = tail.iter().take_while(|byte| **byte == b' ').count();
        let digits = tail[gap..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if (1..=6).contains(&digits) { end + blank + word + gap + digits } else { end }
    }

    /// A card number in one group or in the groups that networks print.
    fn card(&mut self, groups: &[Group], index: usize) -> usize {
        let rest = &groups[index..];
        let whole: &[usize] = &[rest[0].len];
        // The groups that networks print, by the second of them; the longest first, for what is left over would stay.
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
            // Twelve digits are no network's usual length: only a label makes a card of them.
            if self.unlabelled && form.iter().sum::<usize>() == 12 {
                continue;
            }
            let (start, end) = (taken[0].start, taken[form.len() - 1].end());
            if is_word_byte(self.byte(end)) || !self.same_joint(taken) || self.is_float(end) {
                continue;
            }
            let (mut digits, mut len) = ([0u8; 32], 0);
            for group in taken {
                // A copy of a fixed length costs least; what is too much is written over.
                match self.text[group.start..].first_chunk::<8>() {
                    Some(eight) if group.len <= 8 => digits[len..len + 8].copy_from_slice(eight),
                    _ => digits[len..len + group.len].copy_from_slice(&self.text[group.start..group.end()]),
                }
                len += group.len;
            }
            let digits = &digits[..len];
            if !confirm::luhn(digits) {
                // A number that the networks' grouping and a label call a card is hidden though it is none.
                if *form == [4, 4, 4, 4]
                    && self.labelled(self.ids.card_labelled, start, 24)
                    && !self.is_list_of_codes(taken)
                {
                    self.hit(self.ids.card_labelled, start, end);
                    return 4;
                }
                continue;
            }
            let labelled = self.ids.card_labelled;
            let rule = match confirm::card_range(digits) {
                CardRange::Usual => self.ids.card,
                CardRange::Rare if self.rules.has_context(labelled, self.label(start, FAR_LABEL)) => labelled,
                CardRange::Rare | CardRange::None => continue,
            };
            let reason = rule == labelled || self.has_reason(groups, (index, form.len()));
            if !reason || taken.len() == 4 && self.is_list_of_codes(taken) || self.ends_uuid(start, end) {
                continue;
            }
            self.hit(rule, start, end);
            return form.len();
        }
        0
    }

    /// Whether more than its digits speaks for a card: a word, the networks' groups, prose around it, or that it stands alone.
    /// In a row of numbers it is one of them, and so it is below a similar number that is not a card.
    fn has_reason(&self, groups: &[Group], (index, len): (usize, usize)) -> bool {
        let (first, last) = (groups[index], groups[index + len - 1]);
        let (start, end) = (first.start, last.end());
        if self.rules.has_context(self.ids.card_labelled, self.label(start, FAR_LABEL)) {
            return true;
        }
        let near = self.before(start, LEFT);
        let before = last_line(near);
        let above = &near[..near.len() - before.len()];
        let after = first_line(&self.text[end..self.to.min(end + LEFT)]);
        let no_card =
            |digits: &[u8]| !confirm::luhn(digits) || confirm::card_range(digits) == CardRange::None;
        if len > 1 {
            let lens: Vec<usize> = groups[index..index + len].iter().map(|group| group.len).collect();
            let beside = index > 0 || groups.len() > index + len;
            // A row of as many numbers of the same lengths.
            let row = |line: &[u8]| {
                let runs: Vec<&[u8]> = runs(line).collect();
                runs.iter().map(|run| run.len()).eq(lens.iter().copied()) && no_card(&runs.concat())
            };
            let dashed = self.byte(first.end()) == b'-';
            return dashed || !beside && !above.split(|byte| *byte == b'\n').any(row);
        }
        let like = |run: &&[u8]| run.len() == first.len;
        if before.ends_with(b".") || runs(above).filter(like).any(no_card) {
            return false;
        }
        let others: Vec<&[u8]> = runs(before).chain(runs(after)).filter(|run| run.len() > 2).collect();
        // Similar numbers that are all cards are not there by chance.
        let likes = || others.iter().filter(|run| run.len() == first.len);
        let all =
            likes().all(|run| !no_card(run)) && (likes().count() == others.len() || likes().count() > 1);
        let prose = |text: &[u8]| {
            let letters = |five: &[u8]| five.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
            text.windows(5).any(|five| five[2] == b' ' && letters(five) == 4)
        };
        all || others.len() < 2 && (prose(before) || prose(after))
    }

    /// Whether these are the last twelve digits of a UUID.
    fn ends_uuid(&self, start: usize, end: usize) -> bool {
        end - start == 12 && start >= 24 && look(&self.text[start - 24..end]) == Look::Uuid
    }

    /// `5211 5212 5213 5214`, `7922 7925 7923 792A`: numbers that count up, or stand beside one with hexadecimal letters.
    fn is_list_of_codes(&self, groups: &[Group]) -> bool {
        let rises = groups.windows(2).all(|pair| {
            let step = self.digits_value(pair[1]).wrapping_sub(self.digits_value(pair[0]));
            (1..=3).contains(&step)
        });
        let (start, end) = (groups[0].start, groups[groups.len() - 1].end());
        // `CARD ADDED` and `DEC2026` are words.
        let hex = |at: usize| {
            let code = self.text.get(at..at + 4).unwrap_or_default();
            code.iter().all(|byte| byte.is_ascii_digit() || (b'A'..=b'F').contains(byte))
                && code.iter().any(u8::is_ascii_digit)
                && code.iter().any(u8::is_ascii_uppercase)
                && !is_word_byte(self.byte_before(at))
                && !is_word_byte(self.byte(at + 4))
        };
        let follows = self.byte(end) == b' ' && hex(end + 1);
        let precedes = start >= 5 && self.byte(start - 1) == b' ' && hex(start - 5);
        rises || follows || precedes
    }

    fn ipv4(&mut self, groups: &[Group], index: usize) -> usize {
        let rest = &groups[index..];
        if rest.len() < 4 || self.byte(rest[0].end()) != b'.' || rest[..4].iter().any(|group| group.len > 3) {
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
        let version = after == b'-' && self.byte(end + 1).is_ascii_alphabetic() || is_word_byte(after);
        if matches!(before, b'.' | b'-' | b'_') || more || version {
            return 0;
        }
        let rule = self.ids.ipv4;
        if self.rules.has_context(rule, self.label(start, 16)) || self.is_cited(end) {
            return 4;
        }
        let alone = !matches!(after, b':' | b'/');
        let parts = [0, 1, 2, 3].map(|part| self.digits_value(rest[part]));
        if alone && (is_object_id(parts) || is_small(parts) && self.is_versioned(start, end, parts)) {
            return 4;
        }
        let end = self.suffix(end);
        self.hit(rule, start, end);
        4
    }

    /// Whether four small numbers are a version or a section, by what stands around them: `rails (= 7.0.8.1)`,
    /// `nginx/1.25.3.1`, `Git 1.8.1.6 Release Notes`, `8.2.4.45 Markup declaration state`.
    fn is_versioned(&self, start: usize, end: usize, parts: [u32; 4]) -> bool {
        let before = last_line(self.before(start, 48));
        let rest = first_line(&self.text[end..self.to.min(end + 24)]);
        // The heading of a section stands at the beginning of its line, behind the sign of a comment at most.
        let begins = before.len() < 48 && before.iter().all(|byte| b" \t#/*\"".contains(byte));
        // One word alone may be what a machine is called: `5.9.11.22 Mailserver`.
        let title = rest.strip_prefix(b".").unwrap_or(rest).strip_prefix(b" ").unwrap_or_default();
        let second = title.iter().position(|byte| *byte == b' ').and_then(|blank| title.get(blank + 1));
        let titled = matches!(title, [first, second, ..] if first.is_ascii_uppercase() && second.is_ascii_lowercase())
            && second.map_or(rest.len() == 24, u8::is_ascii_alphabetic);
        if begins && titled && parts.iter().all(|part| *part < 50) && parts[1] != parts[0] {
            return true;
        }
        // How long the name of a program is that a text ends in.
        let name = |text: &[u8]| {
            let name = text.iter().rev().take_while(|byte| is_word_byte(**byte) || **byte == b'-').count();
            let apart = text.len() == name || b" \t\"(".contains(&text[text.len() - name - 1]);
            (apart && text.last().is_some_and(u8::is_ascii_alphabetic)).then_some(name)
        };
        let compared = [&b"=="[..], b">=", b"<=", b"~>", b"(="];
        let compared = compared.iter().any(|sign| {
            before.trim_ascii_end().strip_suffix(*sign).is_some_and(|text| !names_host(text.trim_ascii_end()))
        });
        // `Bump rails from 7.0.8.1 to 7.1.3.4`
        let raised = [&b"pgrad"[..], b"pdat", b"Bump ", b"bump "];
        let raised = raised.iter().any(|word| memchr::memmem::find(before, word).is_some())
            && match before.strip_suffix(b" from ") {
                Some(_) => matches!(rest, [b' ', b't', b'o', b' ', b'0'..=b'9', ..]),
                None => before.strip_suffix(b" to ").is_some_and(ends_in_version),
            };
        // `§ 4.1.3.2`, `S. 4.1.3.2`
        let cited = match before.trim_ascii_end() {
            [.., sign, b's' | b'S', b'.'] => b" \t('\"".contains(sign),
            text => text.ends_with("§".as_bytes()),
        };
        let follows = before.strip_suffix(b" -> ").is_some_and(ends_in_version);
        let of_program = before.strip_suffix(b"/").is_some_and(|text| name(text).is_some());
        // `    rails (7.0.8.1)`: a line of a lock file.
        let locked = rest == b")"
            && before.strip_suffix(b" (").is_some_and(|text| {
                let indent = name(text).map_or(0, |name| text.len() - name);
                indent >= 4 && text[..indent].iter().all(|byte| *byte == b' ')
            });
        let installed = [&b"Using "[..], b"Installing ", b"Fetching "].iter().any(|verb| {
            let rest = before.strip_prefix(*verb).and_then(|rest| rest.strip_suffix(b" "));
            rest.is_some_and(|rest| name(rest) == Some(rest.len()))
        });
        let released = [&b" Release Notes"[..], b" documentation"];
        let released = released.iter().any(|word| rest.starts_with(word))
            && before.strip_suffix(b" ").is_some_and(|text| name(text).is_some());
        // Few programs have come so far; many machines are called so: `db-primary/24.16.77.10`.
        let low = parts[0] <= 9;
        !is_well_known(parts)
            && (compared
                || cited
                || low && (raised || follows || of_program || locked || installed || released))
    }

    /// Whether a number, or the list that it begins, is of a text: `4.2.1.3 and 10.1.1.2 of the guidance`.
    fn is_cited(&self, end: usize) -> bool {
        const WHOLE: [&[u8]; 6] =
            [b"of the ", b"of this ", b"of that ", b"of Annex", b"of Schedule", b"thereof"];
        let mut rest = &self.text[end..self.to.min(end + 80)];
        loop {
            let signs =
                rest.iter().take_while(|byte| byte.is_ascii_digit() || b".,() ".contains(byte)).count();
            rest = &rest[signs..];
            match [&b"and "[..], b"or ", b"to "].iter().find_map(|word| rest.strip_prefix(*word)) {
                Some(more) => rest = more,
                None => return signs > 0 && WHOLE.iter().any(|word| rest.starts_with(word)),
            }
        }
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

    /// Two letters and two digits at the start of a word: IBAN, UK national insurance number, VAT number, MRZ.
    #[inline(never)]
    pub(super) fn letter_pair(&mut self, at: usize) {
        if self.iban(at) {
            return;
        }
        let end = self.word_end(at);
        let word = &self.text[at..end.min(at + 16)];
        if word.len() == 9 && confirm::nino(word) {
            return self.hit(self.ids.uk_nino, at, end);
        }
        let body = word.get(2..).unwrap_or_default();
        let digits = body.iter().filter(|byte| byte.is_ascii_digit()).count();
        let vat = word[..2].iter().all(u8::is_ascii_uppercase)
            && (8..=12).contains(&body.len())
            && digits + 2 >= body.len()
            && body.iter().all(u8::is_ascii_alphanumeric);
        if vat && confirm::may_be_vat(word) && self.labelled(self.ids.eu_vat, at, 32) {
            return self.hit(self.ids.eu_vat, at, end);
        }
        let capitals = word[..2].iter().all(u8::is_ascii_uppercase) && self.byte_before(at) != b'-';
        if capitals && (6..=9).contains(&word.len()) && self.labelled(self.ids.passport, at, 32) {
            self.hit(self.ids.passport, at, end);
        }
    }

    fn iban(&mut self, at: usize) -> bool {
        let Some(len) = confirm::iban_len([self.text[at], self.text[at + 1]]) else { return false };
        // Most words that begin so end soon, or go on with the wrong sort of character.
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
            } else if !(matches!(byte, b' ' | b'-') && self.byte(end + 1).is_ascii_alphanumeric()) {
                return false;
            }
            end += 1;
        }
        let found = have == len && !self.byte(end).is_ascii_alphanumeric() && confirm::iban(&text[..len]);
        if found {
            // Handbooks show the form by accounts that nobody has; beside a word it may be somebody's all the same.
            let rule = match confirm::counts_up(&text[4..len]) {
                false => Some(self.ids.iban),
                true => {
                    self.labelled(self.ids.iban_labelled, at, FAR_LABEL).then_some(self.ids.iban_labelled)
                }
            };
            if let Some(rule) = rule {
                self.hit(rule, at, end);
            }
            self.numbers_done = self.numbers_done.max(end);
        }
        found
    }

    /// `QQ 12 34 56 C`: three pairs of digits between two letters and one.
    fn spaced_nino(&mut self, groups: &[Group], index: usize) -> usize {
        let Some(pairs @ [a, _, c]) = groups.get(index..index + 3) else { return 0 };
        let joint = self.byte(a.end());
        if a.start < 3
            || !self.text[a.start - 2].is_ascii_alphabetic()
            || self.text[a.start - 1] != joint
            || pairs.iter().any(|group| group.len != 2)
            || !self.same_joint(pairs)
            || self.byte(c.end()) != joint
            || is_word_byte(self.byte(c.end() + 2))
        {
            return 0;
        }
        let (start, end) = (a.start - 3, c.end() + 2);
        if end > self.to || is_word_byte(self.byte_before(start)) {
            return 0;
        }
        let text: Vec<u8> = self.text[start..end].iter().copied().filter(|byte| *byte != joint).collect();
        if !confirm::nino(&text) {
            return 0;
        }
        self.hit(self.ids.uk_nino, start, end);
        3
    }
}

/// What may stand between a word that names a number and the number.
const NAMING_WORDS: [&[u8]; 16] = [
    b"number", b"numbers", b"no", b"nr", b"num", b"is", b"was", b"id", b"of", b"the", b"my", b"his", b"her",
    b"for", b"code", b"tin",
];
/// The same for telephone numbers in one group.
const PHONE_WORDS: [&[u8]; 30] = [
    b"number", b"numbers", b"no", b"nr", b"num", b"is", b"was", b"at", b"on", b"me", b"us", b"my", b"our",
    b"his", b"her", b"the", b"home", b"work", b"office", b"mobile", b"direct", b"line", b"or", b"and", b"to",
    b"for", b"via", b"fax", b"e", b"kom",
];

/// Whether all words in a text are of these.
fn only_words(text: &[u8], known: &[&[u8]]) -> bool {
    text.split(|byte| !(byte.is_ascii_alphabetic() || *byte >= 0x80))
        .all(|word| word.is_empty() || known.iter().any(|known| known.eq_ignore_ascii_case(word)))
}

/// `2.5.4.3`, `2.5.29.15`, `1.3.101.112`: what certificates name attributes, extensions and curves by (X.520, RFC 5280,
/// RFC 8410).
fn is_object_id(parts: [u32; 4]) -> bool {
    matches!(parts, [2, 5, 4 | 29, _] | [1, 3, 101, 110..=113])
}

/// Whether four numbers are as small as versions and sections have them, and few addresses.
fn is_small([first, rest @ ..]: [u32; 4]) -> bool {
    matches!(first, 0..=9 | 11..=25) && rest.iter().all(|part| *part < 100)
}

/// Whether a text ends in a version: two numbers or more, as small as [`is_small`] wants them, the first below ten.
fn ends_in_version(text: &[u8]) -> bool {
    let len = text.iter().rev().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
    let mut parts = text[text.len() - len..].split(|byte| *byte == b'.');
    let first = parts.next().is_some_and(|part| part.len() == 1);
    let rest = parts.clone().count();
    first && rest > 0 && parts.all(|part| matches!(part.len(), 1 | 2))
}

/// Whether a text ends in a name for an address, as filters and conditions have it: `ip.src`, `remote_addr`.
fn names_host(text: &[u8]) -> bool {
    const NAMES: [&[u8]; 8] = [b"ip", b"src", b"dst", b"host", b"addr", b"address", b"peer", b"source"];
    NAMES.iter().any(|name| ends(text, name))
}

/// `8.8.8.8`, `1.2.3.4`: addresses that everybody writes.
fn is_well_known(parts: [u32; 4]) -> bool {
    parts.iter().all(|part| *part == parts[0])
        || matches!(parts, [1, 2, 3, 4] | [8, 8, 4, 4] | [1, 0, 0, 1] | [4, 2, 2, _])
}

fn group_is_year(group: &Group, value: u32) -> bool {
    group.len == 4 && (1900..=2100).contains(&value)
}

/// Runs of digits.
fn runs(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| !byte.is_ascii_digit()).filter(|run| !run.is_empty())
}

fn is_joint(byte: u8) -> bool {
    matches!(byte, b' ' | b'-' | b'.' | b'/' | b'(' | b')')
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use crate::guard::Guard;

    fn hides(text: &str, value: &str) {
        let checked = Guard::default().check(text);
        assert!(!checked.text.contains(value), "{text:?} -> {:?}", *checked.text);
    }

    fn leaves(text: &str) {
        assert_eq!(*Guard::default().check(text).text, *text);
    }

    #[test]
    fn an_employer_is_told_by_words_of_its_line() {
        for (text, value) in [
            ("Mary 01-6781234\nJohn 01-6781299\nEmployer: Acme\n", "678"),
            ("name,employer,phone\nbob,Acme,01-6781234", "6781234"),
            ("EIN and name\nbob 01-6781234", "6781234"),
            ("employer 01-6781234", "6781234"),
            ("VEREIN 01-6781234", "6781234"),
            ("01-6781234\nKEIN Problem", "6781234"),
            ("01-6781234\nI.R.S. office", "6781234"),
            ("01-6781234 KEIN Problem", "6781234"),
            ("EIN ANRUF UNTER 01-6781234", "6781234"),
        ] {
            hides(text, value);
        }
        leaves("04-2209186   (State of incorporation)   (I.R.S. Employer Identification No.)");
        leaves("Employer Identification Number (EIN) 06-0493340");
        leaves("06-0493340 (EIN)");
    }

    #[test]
    fn a_code_in_brackets_with_a_zero_is_no_parcel() {
        for (text, value) in [
            ("(0711)619997", "619997"),
            ("Büro: (0711)619997", "619997"),
            ("(0161)1830669", "1830669"),
            ("(0341)3232174", "3232174"),
            ("Mary,(0161)3686594,Dublin", "3686594"),
            ("(030)123456(12)", "123456"),
        ] {
            hides(text, value);
        }
        assert_eq!(*Guard::default().check(&"(0711)619997".repeat(9)).text, *"[PHONE_1]".repeat(9));
        leaves("(7007)181119 (01)58425876097843(10)123456 (17)181119(37)18");
        leaves("(01) 2026 (02) 2026");
    }

    #[test]
    fn addresses_of_machines_are_no_versions() {
        for (text, value) in [
            ("Last update from 24.16.77.10", "24.16.77.10"),
            ("DNS update from client 24.16.77.10 accepted", "24.16.77.10"),
            ("DNS update from 24.16.77.10 to 24.16.77.12", "24.16.77.1"),
            ("Upgrade server 24.16.77.10 tonight", "24.16.77.10"),
            ("lease 24.16.77.10 released", "24.16.77.10"),
            ("192.168.1.5 -> 24.16.77.10 ICMP", "24.16.77.10"),
            ("192.168.1.5 -> 5.9.11.22 ICMP", "5.9.11.22"),
            ("24.16.77.10 -> 5.9.11.22 ICMP", "5.9.11.22"),
            ("if ip == 24.16.77.10", "24.16.77.10"),
            ("ip.src==24.16.77.10", "24.16.77.10"),
            ("remote_addr == 5.9.11.22", "5.9.11.22"),
            ("failed to connect to db-primary/24.16.77.10", "24.16.77.10"),
            ("    bastion (24.16.77.10)", "24.16.77.10"),
            ("Using proxy 24.16.77.10", "24.16.77.10"),
            ("5.9.11.22 Mailserver", "5.9.11.22"),
            ("5.9.11.22 Mailserver # old", "5.9.11.22"),
        ] {
            hides(text, value);
        }
        for text in [
            "Bump rails from 7.0.8.1 to 7.1.3.4",
            "Bundled gem rails 7.1.2 -> 7.1.3.4",
            "Git 1.8.1.6 Release Notes",
            "    actioncable (7.0.8.1)",
            "pypdf==3.17.4.1",
            "Server: nginx/1.25.3.1",
            "8.2.4.45 Markup declaration open state",
        ] {
            leaves(text);
        }
    }
}
