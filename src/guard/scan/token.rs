//! Long words: tokens of providers, JSON web tokens, and random text beside a context word.

use super::excuse::Candidate;
use super::natural_language::is_path;
use super::{Finding, MAX_DEPTH, Scanner, Scratch, is_word, last_line, next_bit, scan_between, wide};
use crate::guard::{encoded, pem};
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::guard::classes::{Block, alphanumeric_or, only};
use crate::guard::confirm::varied;
use crate::guard::rule::{Check, RuleId, pattern};
use crate::guard::words::{EndingWord, Endings, Nearby, WORDS};

/// This many base64 digits before a place mean that it is inside a run.
const DEEP: usize = 96;
/// The longest line of base64.
const MAX_LINE: usize = 76;

fn is_base64(byte: u8) -> bool {
    static DIGIT: [bool; 256] = alphanumeric_or(b"+/");
    DIGIT[usize::from(byte)]
}

impl Scanner<'_> {
    /// Examines a run of at least sixteen word characters.
    #[inline(never)]
    pub(super) fn long_word(&mut self, at: usize) {
        let end = self.word_end(at);
        if let Some(line_end) = self.line_of_base64(at) {
            if !self.token(at) && !self.encoded(at, end) {
                self.words_done = line_end;
            }
            return;
        }
        if self.is_within_base64(at) {
            if !self.encoded(at, end) {
                self.words_done = end;
            }
            return;
        }
        // A token may have short parts before this one: `SG.x`, `1//0x`, `110201543:x`.
        let mut start = at;
        if matches!(self.byte_before(at), b'.' | b':' | b'/' | b'$' | b'!' | b'+' | b'~' | b'|') {
            let joint = |byte: &&u8| {
                is_word(**byte) || matches!(**byte, b'.' | b':' | b'/' | b'$' | b'!' | b'+' | b'~' | b'|')
            };
            start -= self.before(at, 40).iter().rev().take_while(joint).count();
        }
        while start < end && matches!(self.text[start], b'-' | b'_' | b'.' | b'/' | b':') {
            start += 1;
        }
        if start == end {
            self.words_done = end;
            return;
        }
        if self.token(start)
            || start < at && (self.token(at) || self.hashed(start, at))
            || self.formed((start, at, end), false)
        {
            return;
        }
        // Logs are full of UUIDs, and no other token has their form.
        if end - at == 36 && self.byte_before(at) != b'.' && shape_of(&self.text[at..end]) == Shape::Uuid {
            if self.is_named(at) && matches!(self.byte(end), b'"' | b'\'') {
                self.words_done = end;
                return;
            }
            return self.near_keyword(at, end);
        }
        let start = self.dotted_start(at).min(end);
        if !self.prefixed(start, end) {
            self.near_keyword(start, end);
        }
    }

    /// Whether a place is inside base64, such as a file in a script: deep in a run, or in one full line below another. Nothing
    /// begins there except in its decoded text.
    fn is_within_base64(&self, at: usize) -> bool {
        if !matches!(self.byte_before(at), b'+' | b'/') {
            return false;
        }
        let before = self.before(at, DEEP).iter().rev().take_while(|byte| is_base64(**byte)).count();
        before == DEEP || self.line_of_base64(at - before).is_some()
    }

    /// The end of the full line of base64 that begins here, below another.
    fn line_of_base64(&self, start: usize) -> Option<usize> {
        if self.byte_before(start) != b'\n' || start < self.from {
            return None;
        }
        let near = self.bits(start, |block| block.run).trailing_ones() as usize;
        let rest = || self.bits(start + 64, |block| block.run).trailing_ones() as usize;
        let end = start + if near < 64 || start + 64 >= self.to { near } else { 64 + rest() };
        self.is_line_of_base64(start, end).then_some(end)
    }

    /// Random text that no name is joined to by `:` or `=`, with a context word close before it:
    /// `the api key 5d41...`, `splunk-SECRET 8gNf...`, `gitter-secret-abcd...`.
    fn near_keyword(&mut self, start: usize, end: usize) {
        let (from, to) = (start, end);
        let end = self.joined_end(start, end);
        self.words_done = end;
        let start = self.joined_start(start, end);
        let word = &self.text[start..end.min(start + 256)];
        let counts = counts(word);
        let (shape, [digits, upper, lower, ..]) = (shape_by(word, counts), counts);
        // No text is words without digits in base64, base32 or hexadecimal digits.
        let words = digits == 0 && lower > 0 && (upper == 0 || shape != Shape::Random);
        let named = words && (start, end) == (from, to) && !matches!(self.byte_before(start), b'+' | b'/');
        if shape != Shape::Uuid && (!named && self.encoded(start, end) || self.keyword_inside(start, end)) {
            return;
        }
        let long_enough = match shape {
            Shape::Random => word.len() >= 16,
            Shape::Hex | Shape::Uuid => true,
            Shape::Letters => word.len() >= 20 && !is_wordlike(word),
            Shape::Digits => (20..=48).contains(&word.len()),
            _ => false,
        };
        if !long_enough || !self.letters_before(start, 48) || shape == Shape::Uuid && self.is_named(start) {
            return;
        }
        let labelled_above = self.depth == 0
            && self.is_labelled_above(start, |line| {
                let (found, against) = last_words(&ENDINGS, line, u64::MAX, false);
                against.is_none() && found == Some((line.len(), true))
            });
        let near = |rule| Candidate::new(rule, start, end).by(start, start + word.len(), false);
        if labelled_above
            && !self.is_named_otherwise(start)
            && !self.ends_path(start, end, false)
            && self.propose(near(self.ids.secret_near_word))
        {
            return;
        }
        let line = last_line(self.before(start, 48));
        let (found, against) =
            last_words(&ENDINGS, line, self.word_ends(start - line.len(), line.len()), false);
        let by_word = found.is_some_and(|(at, sure)| {
            against.is_none_or(|against| against < at)
                && !self.names.denies(&line[..at])
                && self.word_tells(&line[at..], word, shape, sure, || {
                    against.is_none() && self.rules.has_context(self.ids.secret_near_vendor, line)
                })
        });
        let hook = || memchr::memmem::find(self.before(start, 48), b"hook").is_some();
        let rule = if by_word {
            self.ids.secret_near_word
        } else if against.is_none() && self.vendor_tells(line, word, shape, || !hook() && self.is_part(start))
        {
            self.ids.secret_near_vendor
        } else {
            return;
        };
        if !self.is_named_otherwise(start) && !self.ends_path(start, end, hook()) {
            self.propose(near(rule));
        }
    }

    /// The end of a run of base64 or of joined parts.
    fn joined_end(&self, start: usize, end: usize) -> usize {
        let mut end = end;
        if matches!(self.byte(end), b'+' | b'/' | b'=' | b'.' | b'~') {
            static JOINED: [bool; 256] = alphanumeric_or(b"_-+/=.~");
            let rest = &self.text[end..self.to.min(end + 512)];
            end += rest.iter().take_while(|byte| JOINED[usize::from(**byte)]).count();
            while end > start && matches!(self.text[end - 1], b'.' | b'-' | b'/') {
                end -= 1;
            }
        }
        end
    }

    /// The start of base64 whose first character is close before this word.
    fn joined_start(&self, start: usize, end: usize) -> usize {
        if matches!(self.byte_before(start), b'+' | b'/') {
            let digit = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(**byte, b'+' | b'/');
            let head = self.before(start, 64).iter().rev().take_while(digit).count();
            let run = &self.text[start - head..end];
            if run.contains(&b'+') && run.len() >= 24 && shape_of(run) == Shape::Random {
                return start - head;
            }
        }
        start
    }

    /// A run that contains a context word: the text after that is the value.
    fn keyword_inside(&mut self, start: usize, end: usize) -> bool {
        let word = &self.text[start..end.min(start + 256)];
        if memchr::memchr2(b'-', b'_', &word[..word.len().min(48)]).is_none() {
            return false;
        }
        let (inside, _) = last_words(
            &ENDINGS,
            &word[..word.len().min(64)],
            self.word_ends(start, word.len().min(64)),
            true,
        );
        let Some((after, sure)) = inside else { return false };
        let value = &word[after..];
        let value = value.strip_prefix(b"-").or(value.strip_prefix(b"_")).unwrap_or(value);
        let fits = match shape_of(value) {
            Shape::Random | Shape::Hex => true,
            Shape::Uuid => sure || after >= 6,
            _ => false,
        };
        if value.len() >= 16 && fits && !self.names.denies(&word[..after]) {
            let from = start + word.len() - value.len();
            let candidate = Candidate::new(self.ids.secret_near_word, from, end);
            self.propose(candidate.by(from, start + word.len(), false));
        }
        true
    }

    /// Whether a context word, perhaps a `sure` one, applies to a random text that comes after it and `between`.
    fn word_tells(
        &self,
        between: &[u8],
        word: &[u8],
        shape: Shape,
        sure: bool,
        vendor: impl FnOnce() -> bool,
    ) -> bool {
        // Only a few short words and punctuation between.
        let ends = between.iter().any(|byte| matches!(byte, b'{' | b'}' | b'<'));
        // OpenPGP identifies keys by the last 16 of 40 hexadecimal digits.
        let key_id =
            shape == Shape::Hex && matches!(word.len(), 16 | 40) && !word.iter().any(u8::is_ascii_lowercase);
        let fits = || shape != Shape::Digits && !key_id && (shape != Shape::Uuid || vendor());
        !ends && between.len() <= 24 && (sure || fits())
    }

    /// Whether the name of a provider in the line before applies to a random text.
    fn vendor_tells(&self, line: &[u8], word: &[u8], shape: Shape, joined: impl FnOnce() -> bool) -> bool {
        let vendor = self.ids.secret_near_vendor;
        let rich = shape == Shape::Random && word.len() >= 20 || shape == Shape::Hex && word.len() >= 32;
        // An identifier must follow at once.
        let at_once = |rest: &[u8]| rest.len() <= 4 && rest.iter().all(|byte| b" :=-_\"'".contains(byte));
        rich && !joined() && self.rules.has_whole_context(vendor, line)
            || shape == Shape::Uuid && self.rules.behind_context(vendor, line).is_some_and(at_once)
    }

    /// Whether this is the last part of a path: `exports/2026/11/x.parquet`. In the address of a web `hook` the path is the
    /// secret.
    fn ends_path(&self, start: usize, end: usize, hook: bool) -> bool {
        let before = self.before(start, 64);
        let whole = before.iter().rev().take_while(|byte| !byte.is_ascii_whitespace()).count();
        !hook && self.byte_before(start) == b'/' && is_path(&self.text[start - whole..end])
    }

    /// `"reqId":"0198..."`: the name has been judged, and a common form of ids needs more than a word nearby.
    fn is_named(&self, start: usize) -> bool {
        matches!(self.byte_before(start), b'"' | b'\'')
            && matches!(self.byte_before(start - 1), b':' | b'=' | b' ')
    }

    /// Whether the text here is part of an address, a path, a version or a URN: `//host/x`, `pkg@x`, `a:b:x`,
    /// `?list=x`.
    fn is_part(&self, start: usize) -> bool {
        pattern!(r#"(?:[/@#.\\]|://[^\s"]*=|:[A-Za-z]+:)$"#).is_match(self.before(start, 64))
    }

    /// The ends of words with a context word's ending in `len` (at most 64) bytes from a place on, as bits.
    fn word_ends(&self, from: usize, len: usize) -> u64 {
        if from < self.from {
            return u64::MAX;
        }
        let bits = |mask: fn(&Block) -> u64| self.bits(from, mask) & last_bits(len);
        word_ends(bits(|block| block.alpha), bits(|block| block.digit))
    }

    /// A run that is base64 or hex of a text with a finding: the whole run is hidden.
    pub(super) fn encoded(&mut self, start: usize, end: usize) -> bool {
        if self.depth >= MAX_DEPTH {
            return false;
        }
        if start < self.encoded_done {
            return false;
        }
        // The run may begin before and continue beyond the word.
        static PART: [bool; 256] = alphanumeric_or(b"_-+/");
        let part = |byte: &&u8| PART[usize::from(**byte)];
        let start = start - self.before(start, 64).iter().rev().take_while(part).count();
        let end = end + self.text[end..].iter().take_while(part).count();
        let end = end + self.text[end..].iter().take(6).take_while(|byte| **byte == b'=').count();
        self.encoded_done = end;
        if self.formed((start, start, end), true) {
            return true;
        }
        let mut found = false;
        if let Some(text) = encoded::decode(&self.text[start..end]) {
            found = self.decoded(&text, start, end);
        } else if self.is_joined(start, end)
            && has_long_part(&self.text[start..end])
            && !self.is_full_line(start, end)
        {
            // Joined to something: a path, a name, a signature.
            let run = &self.text[start..end];
            let long = parts(run).filter(|(_, len)| (encoded::SHORTEST_PART..run.len()).contains(len));
            for (at, len) in long.take(MAX_PARTS) {
                if let Some(text) = encoded::decode(&self.text[start + at..start + at + len]) {
                    found |= self.decoded(&text, start + at, start + at + len);
                }
            }
        }
        if found {
            self.words_done = end;
        }
        found
    }

    /// Whether a run may have parts: it is long, or has more than letters and digits.
    fn is_joined(&self, start: usize, end: usize) -> bool {
        let signs = |block: &Block| !(block.alpha | block.digit);
        start < self.from || end - start > 64 || self.bits(start, signs) & last_bits(end - start) != 0
    }

    /// Scans texts whose bytes are listed: as pairs of hexadecimal digits, as numbers in a bracket.
    pub(super) fn listings(&mut self) {
        if self.depth >= MAX_DEPTH {
            return;
        }
        let mut done = self.from;
        for at in 0..self.blocks.len() - 1 {
            let joint = |block: &Block| block.sep | block.mark;
            let (here, next) = (joint(&self.blocks[at]), joint(&self.blocks[at + 1]));
            // Four of eight are in one block.
            let four = |blanks: u64| {
                let last = blanks & !(blanks >> 1);
                last & blanks >> 3 & last >> 6 & blanks >> 9
            };
            // `0x73, 0x61` without a bracket.
            let six = here & here >> 6 & here >> 12 & here >> 18;
            let blank = self.from + at * 64 + six.trailing_zeros() as usize;
            if six != 0 && blank >= done + 5 && self.text[blank - 5..].starts_with(b"0x") {
                let items =
                    self.text[done..blank + 1].rchunks_exact(6).take_while(|item| item.starts_with(b"0x"));
                let start = blank + 1 - 6 * items.count();
                done = self.listing(start, encoded::listed_numbers).unwrap_or(blank + 1);
            }
            if four(here) | four(next) == 0 {
                continue;
            }
            let mut blanks = wide(here, next);
            // Eight characters with two bytes between, the first of them something else.
            blanks &= blanks >> 3 & !(blanks >> 1);
            blanks &= blanks >> 6;
            blanks &= blanks >> 12;
            let mut blanks = blanks as u64;
            while let Some(bit) = next_bit(&mut blanks) {
                let blank = self.from + at * 64 + bit;
                let pair =
                    matches!(self.before(blank, 2), [a, b] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit());
                let start = if pair { blank - 2 } else { blank + 1 };
                if start >= done {
                    done = self.listing(start, encoded::listed_pairs).unwrap_or(blank + 1);
                }
            }
        }
        for open in memchr::memchr_iter(b'[', &self.text[self.from..]) {
            let inner = self.from + open + 1;
            if matches!(self.byte(inner), b'a' | b'A') {
                self.written_mail(inner - 1);
            }
            let start = inner + self.text[inner..].iter().take(2).take_while(|byte| **byte == b' ').count();
            if self.byte(start).is_ascii_digit() && start >= done {
                done = self.listing(start, encoded::listed_numbers).unwrap_or(start);
            }
        }
    }

    fn listing(&mut self, start: usize, decode: fn(&[u8]) -> Option<encoded::Listed>) -> Option<usize> {
        let (text, len) = decode(&self.text[start..])?;
        self.decoded(&text, start, start + len);
        Some(start + len)
    }

    /// Scans the decoded text of the run from `start` to `end`; a finding in it hides the whole run.
    fn decoded(&mut self, text: &[u8], start: usize, end: usize) -> bool {
        if end <= self.from {
            return false;
        }
        let mut scratch = Scratch::default();
        scan_between(text, 0, self.depth + 1, self.watch, &mut scratch);
        self.watch.known.find(text, (0, text.len()), &mut scratch.findings);
        let key =
            pem::begins(text).find(|at| matches!(pem::extent(&text[*at..], true), pem::Extent::Ends(_)));
        scratch.findings.extend(key.map(|at| pem::finding(at, text.len())));
        let Some(first) = scratch.findings.iter().min_by_key(|finding| (finding.kind, finding.rule)) else {
            return false;
        };
        self.out.push(Finding { start: start.max(self.from), end, decoded: true, ..*first });
        true
    }

    /// The start of a run of words joined by dots.
    fn dotted_start(&self, at: usize) -> usize {
        let mut start = at;
        if self.byte_before(at) == b'.' {
            start -=
                self.before(at, 32).iter().rev().take_while(|byte| is_word(**byte) || **byte == b'.').count();
        }
        while matches!(self.byte(start), b'-' | b'_' | b'.') {
            start += 1;
        }
        start
    }

    /// Tokens by their form: of a word at `at..end` in a run that begins at `start`, or of a run of base64.
    fn formed(&mut self, (start, at, end): (usize, usize, usize), base64: bool) -> bool {
        let forms = self.rules.forms(end - at, base64).iter();
        let found = forms.filter(|(_, row)| row.may_be(self.text, start, at)).find_map(|(rule, row)| {
            let found = row.find(self.text, (start, at, end))?;
            self.passes(*rule, row.check, at, found.1).then_some((*rule, found))
        });
        let Some((rule, (start, end))) = found else { return false };
        self.hit(rule, start, end);
        self.words_done = end;
        true
    }

    /// The output of crypt(3) for a password, after a user name or alone.
    fn hashed(&mut self, start: usize, at: usize) -> bool {
        memchr::memchr(b'$', &self.text[start..at]).is_some_and(|dollar| self.token(start + dollar))
    }

    /// A short prefix, `_` or `-`, and thirty characters in a mix of capitals, lowercase letters and digits, or 32 hexadecimal
    /// ones after `live` and the like: the forms that most new providers use.
    fn prefixed(&mut self, start: usize, end: usize) -> bool {
        let word = &self.text[start..end.min(start + 256)];
        // No part after a later joint is longer than that after the first.
        let first = memchr::memchr2(b'_', b'-', word);
        if first.is_none_or(|first| word.len() <= first + SHUFFLED) {
            return false;
        }
        let joints = [memchr::memrchr(b'_', word), memchr::memrchr2(b'_', b'-', word), first];
        let found = joints.into_iter().flatten().any(|at| {
            let (prefix, body) = (&word[..at], &word[at + 1..]);
            body.len() >= SHUFFLED
                && is_prefix(prefix)
                && (is_shuffled(body)
                    || says_live(prefix) && body.len() >= 32 && shape_of(body) == Shape::Hex)
        });
        if found {
            // A second part after a dot, as in signed tokens.
            let part = self.text[end..].iter().skip(1).take(2000).take_while(|byte| is_word(**byte)).count();
            let more = self.byte(end) == b'.'
                && part >= 20
                && shape_of(&self.text[end + 1..end + 1 + part]) == Shape::Random;
            let end = end + if more { 1 + part } else { 0 };
            self.hit(self.ids.prefixed_random, start, end);
            self.words_done = self.words_done.max(end);
        }
        found
    }

    /// A token rule that matches at `start`.
    fn token(&mut self, start: usize) -> bool {
        for token in self.rules.tokens(self.byte(start), self.byte(start + 1)) {
            let Some(end) = token.find(self.text, start) else { continue };
            if self.passes(token.rule, self.rules.list[usize::from(token.rule)].check, start, end)
                && !is_crossed_out(&self.text[start..end])
                && self.propose(Candidate::new(token.rule, start, end))
            {
                self.words_done = self.words_done.max(end);
                return true;
            }
        }
        false
    }

    /// Whether a token meets its rule's further condition.
    fn passes(&self, rule: RuleId, check: Check, start: usize, end: usize) -> bool {
        let token = &self.text[start..end];
        match check {
            Check::None => true,
            Check::Random => is_random(token) && !self.is_line_of_base64(start, end),
            Check::Shuffled => is_shuffled(token.rsplit(|byte| *byte == b'-').next().unwrap_or_default()),
            Check::Context => self.rules.has_context(rule, self.label(start, 64)),
            Check::Number => self.rules.passes(rule, token),
        }
    }

    /// Whether this is a line of a certificate or a file in base64: the line before is as long and full.
    fn is_line_of_base64(&self, start: usize, end: usize) -> bool {
        let len = end - start;
        let above = |above: usize| {
            // By the masks of its beginning and its end, where there are any.
            let full = |at: usize| self.bits(at, |block| block.run).trailing_ones() as usize >= len.min(64);
            match above >= self.from {
                true => full(above) && full(above + len - len.min(64)),
                false => self.text[above..above + len].iter().all(|byte| is_base64(*byte)),
            }
        };
        let before = || start.checked_sub(len + 1).filter(|at| self.byte_before(*at) == b'\n');
        self.is_full_line(start, end) && before().is_some_and(above)
    }

    /// Whether this is a line as long as those of base64 are.
    fn is_full_line(&self, start: usize, end: usize) -> bool {
        matches!(end - start, 60 | 64 | 72 | MAX_LINE)
            && self.byte_before(start) == b'\n'
            && self.byte(end) == b'\n'
    }
}

/// The most parts of a run that are examined.
const MAX_PARTS: usize = 6;

/// What may join a part of a run to its neighbour. Base64 has some of these among its digits.
static JOINT: [bool; 256] = only(b"/_-.~");

/// Whether any part of a longer run may be long enough to be decoded. Checks from the end, in steps of that length.
fn has_long_part(run: &[u8]) -> bool {
    let mut at = 0;
    while let Some(part) = run.get(at..at + encoded::SHORTEST_PART) {
        match part.iter().rposition(|byte| JOINT[usize::from(*byte)]) {
            Some(joint) => at += joint + 1,
            None => return run.len() > encoded::SHORTEST_PART,
        }
    }
    false
}

/// The starts and lengths of the parts of a run.
fn parts(run: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let mut next = 0;
    run.split(|byte| JOINT[usize::from(*byte)]).map(move |part| {
        let at = next;
        next += part.len() + 1;
        (at, part.len())
    })
}

/// The shape of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Letters and digits mixed as in no word.
    Random,
    /// An even number of hexadecimal digits, at least sixteen.
    Hex,
    /// `8-4-4-4-12` hexadecimal digits.
    Uuid,
    /// Letters only.
    Letters,
    /// Digits only.
    Digits,
    /// Anything else: words, phrases, paths, code.
    Other,
}

/// What each byte adds to the counts of digits, capitals, lowercase letters, joints and hexadecimal digits, in twelve bits
/// each: at most [`MAX_LOOK`] bytes are counted.
static COUNTS: [u64; 256] = {
    let mut counts = [0; 256];
    let mut at = 0;
    while at < 256 {
        let byte = at as u8;
        counts[at] = match byte {
            b'0'..=b'9' => 1,
            b'A'..=b'Z' => 1 << 12,
            b'a'..=b'z' => 1 << 24,
            b'-' | b'_' | b'.' | b'+' | b'/' | b'=' | b':' | b'~' => 1 << 36,
            _ => 0,
        } + (byte.is_ascii_hexdigit() as u64) * (1 << 48);
        at += 1;
    }
    counts
};

/// The most bytes of a value that are examined, as many as twelve bits can count.
const MAX_LOOK: usize = 4_095;

/// The shape of a value, by its beginning if it is long.
pub(super) fn shape_of(value: &[u8]) -> Shape {
    let value = &value[..value.len().min(MAX_LOOK)];
    shape_by(value, counts(value))
}

/// How many digits, capitals, lowercase letters, joints and hexadecimal digits a value has.
fn counts(value: &[u8]) -> [usize; 5] {
    let counts = value.iter().fold(0, |counts, byte| counts + COUNTS[usize::from(*byte)]);
    [0, 1, 2, 3, 4].map(|field| (counts >> (12 * field)) as usize & 0xfff)
}

fn shape_by(value: &[u8], [digits, upper, lower, joints, hex]: [usize; 5]) -> Shape {
    let others = value.len() - digits - upper - lower - joints;
    let letters = upper + lower;
    if value.len() == 36 && joints == 4 && hex == 32 && [8, 13, 18, 23].iter().all(|at| value[*at] == b'-') {
        return Shape::Uuid;
    }
    if hex == value.len() && letters > 0 && digits > 0 && value.len() >= 16 {
        return Shape::Hex;
    }
    if letters == value.len() {
        return if mixed_case(value) && value.len() >= 16 { Shape::Random } else { Shape::Letters };
    }
    if digits == value.len() {
        return Shape::Digits;
    }
    if others > 0 || letters == 0 {
        return Shape::Other;
    }
    if digits == 0 {
        let random = value.len() >= 20 && mixed_case(value) && (joints <= 3 || varied(value, 20));
        return if random { Shape::Random } else { Shape::Other };
    }
    // Versions, dates and paths have many joints and short parts.
    let long_part = || value.split(|byte| !byte.is_ascii_alphanumeric()).any(|part| part.len() >= 8);
    let spread = joints * 6 <= value.len() || long_part();
    if spread && (digits >= 2 || value.len() >= 16) && varied(value, 6) {
        Shape::Random
    } else {
        Shape::Other
    }
}

/// Whether letters are mixed as in words: about two vowels in five.
fn is_wordlike(word: &[u8]) -> bool {
    let vowels = word.iter().filter(|byte| b"aeiou".contains(&byte.to_ascii_lowercase())).count();
    vowels * 100 > word.len() * 28
}

/// Whether there are capitals where words do not have them.
pub(super) fn mixed_case(value: &[u8]) -> bool {
    let changes =
        value.windows(2).filter(|pair| pair[0].is_ascii_lowercase() != pair[1].is_ascii_lowercase()).count();
    changes * 3 >= value.len() && value.iter().any(u8::is_ascii_lowercase)
}

/// Prefixes as providers use them: lowercase letters, and not the usual prefixes of hashes, files and messages.
fn is_prefix(text: &[u8]) -> bool {
    (2..=24).contains(&text.len())
        && text[0].is_ascii_lowercase()
        && text.iter().all(|b| b.is_ascii_lowercase() || matches!(b, b'_' | b'-') || b.is_ascii_digit())
        && !WORDS.list.no_prefix.iter().any(|other| text.starts_with(other.as_bytes()))
}

/// Whether a word of the prefix marks a live secret.
fn says_live(prefix: &[u8]) -> bool {
    prefix.split(|byte| matches!(byte, b'_' | b'-')).any(|part| WORDS.list.live.holds(part))
}

/// The shortest random part after a prefix.
const SHUFFLED: usize = 30;

/// Thirty characters or more that switch between capitals, lowercase letters and digits as only random ones do.
fn is_shuffled(body: &[u8]) -> bool {
    let count = |test: fn(&u8) -> bool| body.iter().filter(|byte| test(byte)).count();
    let joints = count(|byte| matches!(byte, b'_' | b'-'));
    let sort = |byte: u8| (byte.is_ascii_digit(), byte.is_ascii_uppercase());
    let changes = body.windows(2).filter(|pair| sort(pair[0]) != sort(pair[1])).count();
    (SHUFFLED..=200).contains(&body.len())
        && joints * 12 <= body.len()
        && count(u8::is_ascii_digit) >= 3
        && count(u8::is_ascii_uppercase) >= 3
        && count(u8::is_ascii_lowercase) >= 3
        && changes * 5 >= body.len() * 2
        && body.windows(2).filter(|pair| pair[0].is_ascii_digit() && !pair[1].is_ascii_digit()).count() >= 2
        && varied(body, 16)
}

/// Whether all of a token after its prefix is the letter x: `ghp_xxxxxxxxxxxx`.
fn is_crossed_out(token: &[u8]) -> bool {
    let body = token.rsplit(|byte| matches!(byte, b'_' | b'-')).next().unwrap_or_default();
    body.len() >= 12 && body.iter().all(|byte| matches!(byte, b'x' | b'X'))
}

/// Letters and digits in a mix that words joined by dashes do not have.
pub(super) fn is_random(token: &[u8]) -> bool {
    let digits = token.iter().filter(|byte| byte.is_ascii_digit()).count();
    let letters = token.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    // Zeros in base64 are a long run of one letter.
    digits >= 2 && letters >= 2 && (token.len() < 40 || varied(token, 8))
}

/// Checks the ends of words that `ends` has a bit for; finds the last context word of a line (where it ends, and whether it is
/// a sure one), and the last contradicting word, `past` which others may be looked for.
///
/// A word may be glued to another on its left (`vatlayerTOKEN`), a short one only at a change of case; nothing but a non-letter
/// may follow.
fn last_words(
    words: &Endings<Nearby>,
    line: &[u8],
    ends: u64,
    past: bool,
) -> (Option<(usize, bool)>, Option<usize>) {
    let (mut found, mut against) = (None, None);
    let mut ends = ends & last_bits(line.len());
    while ends != 0 {
        let end = 64 - ends.leading_zeros() as usize;
        ends &= !(1 << (end - 1));
        let follows = line.get(end).copied().unwrap_or(0);
        if !follows.is_ascii_alphabetic() {
            for word in words.of(&line[..end]).filter(|word| word.is_apart(&line[..end])) {
                match word.says {
                    // At the same place a sure word counts for more.
                    Nearby::Sure if found.is_none_or(|(at, _)| at == end) => found = Some((end, true)),
                    Nearby::Key if found.is_none() => found = Some((end, false)),
                    Nearby::Against if against.is_none() => against = Some(end),
                    _ => {}
                }
            }
            if against.is_some() && (found.is_some() || !past) {
                break;
            }
        }
    }
    (found, against)
}

/// The possible ends of context words, as bits: two letters with no letter after, or the last of some digits.
fn word_ends(letters: u64, digits: u64) -> u64 {
    !(letters >> 1) & (letters & letters << 1 | digits & !(digits >> 1))
}

/// The lowest `len` (at most 64) bits.
fn last_bits(len: usize) -> u64 {
    u64::MAX.checked_shr(64 - len as u32).unwrap_or(0)
}

static ENDINGS: LazyLock<Endings<Nearby>> = LazyLock::new(|| Endings::new(nearby()));

fn nearby() -> impl Iterator<Item = EndingWord<Nearby>> {
    let word = |says, word: &'static String| EndingWord { says, word, whole: word.len() <= 4 };
    WORDS.near.iter().flat_map(move |group| group.words.iter().map(move |each| word(group.says, each)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_any_one_of_the_words_some_line_would_be_judged_otherwise() {
        let idle: Vec<&str> = nearby()
            .filter(|word| {
                let without = Endings::new(nearby().filter(|other| other != word));
                let word = word.word;
                let lines = [format!("{word} "), format!("x{word} "), format!("key {word} ")];
                lines.iter().map(String::as_bytes).all(|line| {
                    let bits = |test: fn(&u8) -> bool| {
                        line.iter().rev().fold(0, |bits, byte| bits << 1 | u64::from(test(byte)))
                    };
                    let ends = word_ends(bits(u8::is_ascii_alphabetic), bits(u8::is_ascii_digit));
                    last_words(&ENDINGS, line, ends, true) == last_words(&without, line, ends, true)
                })
            })
            .map(|word| word.word)
            .collect();
        assert!(idle.is_empty(), "{idle:?}");
    }
}
