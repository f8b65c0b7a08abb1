//! One pass over a piece of text: bit masks, then candidates, then confirmation.
//!
//! [`classify`] gives each byte its classes. Bit arithmetic finds the places where something can begin: seven digits
//! in a row, three groups of digits, sixteen word characters, an `@`, a `:`. Only those trigger code that looks at
//! bytes, and each such step is bounded by a constant or by how far it advances. So time is linear in the text,
//! whatever the text is.
//!
//! No decision about a line depends on the text after its line feed, and none looks further than [`LEFT`] to the left. That is
//! why text may be guarded line by line with the same result as all at once.

mod address;
mod context;
pub(super) mod excuse;
mod expression;
mod flag;
mod key_value;
mod mail;
mod name;
mod natural_language;
mod number;
mod placeholder;
mod token;
mod url;

use std::borrow::Cow;
use std::sync::LazyLock;

use aho_corasick::packed;

use excuse::{Candidate, Criteria, Judged};
pub(super) use natural_language::is_natural_language;

use super::classes::{Block, Work, alphanumeric_or, classify, only};
use super::heads;
use super::rule::{Detectors, RULES, RuleId, Rules};
use super::table;
use super::view;
use super::words::{ContextWord, Name, WORDS};
use super::{Kind, Known};

/// How many bytes to the left of a position may affect it.
pub(super) const LEFT: usize = 160;

/// The shortest possible finding: `::1`.
const SHORTEST: usize = 3;

/// The only words that are looked for everywhere: their values may follow in plain prose.
static CONTEXT_WORDS: LazyLock<ContextWords> = LazyLock::new(|| ContextWords::new(|_| true));
/// Those in ASCII: few enough for a faster search.
static ASCII_WORDS: LazyLock<ContextWords> = LazyLock::new(|| ContextWords::new(str::is_ascii));

struct ContextWords {
    searcher: packed::Searcher,
    /// The words, by pattern.
    says: Vec<ContextWord>,
}

impl ContextWords {
    #[expect(clippy::expect_used, reason = "a few constant words; every test uses them")]
    fn new(fits: fn(&str) -> bool) -> Self {
        let words = WORDS.context.iter().flat_map(|group| group.words.iter().map(|word| (word, group.says)));
        let (words, says): (Vec<_>, _) = words.filter(|(word, _)| fits(word)).unzip();
        let searcher = packed::Config::new().builder().extend(words).build().expect("a few short words");
        Self { searcher, says }
    }
}

/// A range of the text that must not be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: Kind,
    pub(super) rule: RuleId,
    /// Visible only after decoding.
    pub(super) decoded: bool,
}

/// The parts of a policy that a scan needs: the known values, and the excuses that apply.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watch<'a> {
    pub(super) known: &'a Known,
    pub(super) criteria: &'a Criteria,
}

/// Memory that is reused from piece to piece.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The masks of the text between these places, where it has no placeholder in it.
    pub(super) blocks: Vec<Block>,
    pub(super) classified: (usize, usize),
    groups: Vec<number::Group>,
    /// Whether the text begins after a placeholder.
    walled: bool,
    /// Whether there was no placeholder in the last text.
    pub(super) plain: bool,
    pub(super) findings: Vec<Finding>,
    /// How each candidate was judged, if requested.
    pub(super) judged: Option<Vec<Judged>>,
}

/// Scans `text[from..to]` and leaves its findings in `scratch.findings`, in no order and perhaps overlapping.
///
/// `text[..from]` is context that has been scanned before: nothing is found there. Where the piece `goes_on` with a line,
/// the end of that context is scanned once more, because a label there may belong to a value here.
///
/// `known` values are looked for only in the decoded form of a line; the caller finds their plain form.
pub(super) fn scan(
    text: &[u8],
    from: usize,
    to: usize,
    goes_on: bool,
    watch: Watch<'_>,
    scratch: &mut Scratch,
) {
    scratch.findings.clear();
    scratch.classified = (0, 0);
    let context = behind_placeholder(&text[near(&text[..from]).1..from]);
    scratch.walled = context.len() < from.min(LEFT);
    let (mut left, mut start) = (from - context.len(), from);
    if goes_on {
        start -= last_line(context).len();
    }
    scratch.plain = true;
    while start < to {
        let (end, next) = next_placeholder(&text[..to], start).unwrap_or((to, to));
        scratch.plain &= next == end;
        if start < end && end - left >= SHORTEST {
            let (before, seen) = (scratch.findings.len(), scratch.judged.as_ref().map_or(0, Vec::len));
            scan_between(&text[left..end], start - left, 0, watch, scratch);
            scratch.classified = (start, end);
            let judged = scratch.judged.iter_mut().flat_map(|all| &mut all[seen..]);
            for finding in scratch.findings[before..].iter_mut().chain(judged.map(|one| &mut one.finding)) {
                (finding.start, finding.end) = (finding.start + left, finding.end + left);
            }
        }
        (left, start) = (next, next);
        scratch.walled = true;
    }
    if goes_on {
        scratch.findings.retain_mut(|finding| {
            finding.start = finding.start.max(from);
            finding.start < finding.end
        });
    }
}

/// Scans `text[from..]`, which contains no placeholder: no rule looks past a replaced value, so that the rest is
/// scanned the same however often it is guarded.
///
/// Text that hides something is scanned in its decoded form too, recursively up to [`MAX_DEPTH`].
fn scan_between(text: &[u8], from: usize, depth: u8, watch: Watch<'_>, scratch: &mut Scratch) {
    let to = text.len();
    scan_at(text, from, to, depth, watch, scratch);
    if depth == MAX_DEPTH {
        return;
    }
    let mut near: Option<(usize, usize)> = None;
    let mut line_end = from;
    for at in 0..scratch.blocks.len() {
        let mut veil = scratch.blocks[at].veil;
        while let Some(bit) = next_bit(&mut veil) {
            let place = from + at * 64 + bit;
            let (start, end) = near.unwrap_or((from, from));
            let known = place < end && (place + NEAR <= end || end == line_end);
            if known || !view::hides(text, place) {
                continue;
            }
            let before = &text[end..place.max(end)];
            let floor = memchr::memrchr(b'\n', before).map_or(end, |feed| end + feed + 1);
            if place >= line_end {
                line_end = memchr::memchr(b'\n', &text[place..]).map_or(to, |feed| place + feed + 1);
            }
            let (first, last) = near_hidden(text, (floor, line_end), place);
            if first > end {
                scan_view(text, (start, end), depth, watch, scratch);
            }
            near = Some((if first > end { first } else { start }, last));
        }
    }
    if let Some(near) = near {
        scan_view(text, near, depth, watch, scratch);
    }
}

/// The longest line that is decoded whole.
const LONG: usize = 2048;
/// How far hidden text affects a longer line: further than a rule looks, and longer than most values.
const NEAR: usize = 512;

/// The part of a line that is decoded for a place: in a long line the neighbourhood, up to characters that no value contains.
fn near_hidden(text: &[u8], (floor, end): (usize, usize), place: usize) -> (usize, usize) {
    if end - floor <= LONG {
        return (floor, end);
    }
    let apart = |byte: &u8| b"\"'`<>;{}".contains(byte);
    let from = place.saturating_sub(NEAR).max(floor);
    let start = text[floor..from].iter().rposition(apart).map_or(floor, |at| floor + at + 1);
    let to = (place + NEAR).min(end);
    (start, text[to..end].iter().position(apart).map_or(end, |at| to + at + 1))
}

/// Scans lines that hide something in their decoded form. Only such lines, and no label from the line before:
/// the findings in a line must not depend on which other lines came with it.
fn scan_view(text: &[u8], (start, end): (usize, usize), depth: u8, watch: Watch<'_>, scratch: &mut Scratch) {
    if start == end {
        return;
    }
    // A line that began before this piece affects the rest of it.
    let context = &text[start.saturating_sub(LEFT)..start];
    let context = match memchr::memrchr(b'\n', context) {
        Some(feed) => context.len() - feed - 1,
        None => context.len(),
    };
    let view = view::view(text, start - context, end);
    let begin = view.source.partition_point(|source| (*source as usize) < start);
    let begin = begin.min(view.text.len());
    if view.text == text[start - context..end] {
        return;
    }
    let mut inner = Scratch { judged: scratch.judged.as_ref().map(|_| Vec::new()), ..Scratch::default() };
    let mut at = 0;
    while at < view.text.len() {
        // Each line by itself, as if it came alone.
        let from = at.max(begin);
        let end = memchr::memchr(b'\n', &view.text[from..]).map_or(view.text.len(), |feed| from + feed + 1);
        let (before, seen) = (inner.findings.len(), inner.judged.as_ref().map_or(0, Vec::len));
        scan_between(&view.text[at..end], from - at, depth + 1, watch, &mut inner);
        let judged = inner.judged.iter_mut().flat_map(|all| &mut all[seen..]).map(|one| &mut one.finding);
        for finding in inner.findings[before..].iter_mut().chain(judged) {
            (finding.start, finding.end) = (finding.start + at, finding.end + at);
        }
        at = end;
    }
    watch.known.find(&view.text, (begin, view.text.len()), &mut inner.findings);
    let source = |finding: Finding| Finding {
        start: view.source[finding.start] as usize,
        end: view.source[finding.end] as usize,
        decoded: true,
        ..finding
    };
    scratch.findings.extend(inner.findings.iter().copied().map(source));
    if let (Some(all), Some(inner)) = (&mut scratch.judged, inner.judged) {
        all.extend(inner.into_iter().map(|one| Judged { finding: source(one.finding), ..one }));
    }
}

/// Whether a name gives its value a kind.
pub(super) fn names_a_kind(name: &str) -> bool {
    use super::words::Name::{Named, Other, Worded};
    name.len() <= 64 && !matches!(name::NAMES.kind(plain_name(name).as_bytes()), Named | Other | Worded)
        || !heads::meaning(name).is_empty()
}

/// A name without its surroundings: `user[password]`, `Password:`, with an invisible character inside.
fn plain_name(name: &str) -> Cow<'_, str> {
    let plain = |byte: u8| is_word(byte) || matches!(byte, b'.' | b' ');
    if name.bytes().all(plain) && !name.ends_with(' ') {
        return Cow::Borrowed(name);
    }
    let view = view::view(name.as_bytes(), 0, name.len());
    let read = String::from_utf8_lossy(behind_placeholder(&view.text));
    let around = |c: char| c.is_whitespace() || matches!(c, ':' | '*' | '[' | ']');
    Cow::Owned(read.trim_end_matches(around).to_owned())
}

/// The findings in a value that depend on its name alone, in no order.
pub(super) fn named_value(name: &str, text: &str, from: usize, criteria: &Criteria) -> Vec<Finding> {
    use super::words::Name::{Address, Authorization, Cookie, Key, Password, Person, Pin, Secret};
    let name = plain_name(name);
    let kind = name::NAMES.kind(name.as_bytes());
    let meant = heads::meaning(&name);
    if let Some(((start, end), rule)) =
        heads::cell(meant, &text[from..], heads::Place::Wide).filter(|_| !heads::only_secret(meant))
    {
        return vec![table::finding(from + start, from + end, rule)];
    }
    if ![Password, Secret, Key, Pin, Person, Address, Authorization, Cookie].contains(&kind) {
        return Vec::new();
    }
    let judged = |text: &str| {
        let mut scratch = Scratch::default();
        let known = Known::default();
        let watch = Watch { known: &known, criteria };
        let mut scanner = Scanner::new(text.as_bytes(), from, text.len(), MAX_DEPTH, watch, &mut scratch);
        match kind {
            Authorization => scanner.authorization(from, text.len()),
            Cookie => scanner.cookie(from, text.len()),
            _ => scanner.value(kind, name.to_ascii_lowercase().contains("aws"), from, text.len(), true),
        }
        scratch.findings
    };
    // A forged placeholder that was made invalid is treated as a placeholder, or a second pass would find what the first left.
    const FORGED: &str = "\u{200b}]";
    let before = || format!("{}{}", &text[..from], text[from..].replace(FORGED, "]"));
    if text[from..].contains(FORGED) && judged(&before()).is_empty() {
        return Vec::new();
    }
    judged(text)
}

/// How often text is decoded within decoded text.
const MAX_DEPTH: u8 = 2;

fn scan_at(text: &[u8], from: usize, to: usize, depth: u8, watch: Watch<'_>, scratch: &mut Scratch) {
    classify(&text[from..to], &mut scratch.blocks);
    let mut scanner = Scanner::new(text, from, to, depth, watch, scratch);
    scanner.done();
    scanner.listings();
    // A word on the line above may label the beginning of this piece.
    let above = if depth == 0 { from.saturating_sub(context::ABOVE) } else { from };
    let words = if text[above..to].is_ascii() { &ASCII_WORDS } else { &CONTEXT_WORDS };
    for found in words.searcher.find_iter(&text[above..to]) {
        let (says, end) = (words.says[found.pattern().as_usize()], above + found.end());
        if end > from {
            scanner.context_word(says, end);
        }
        scanner.value_below(says, end);
    }
}

struct Scanner<'a> {
    /// Ends at `to`.
    text: &'a [u8],
    from: usize,
    to: usize,
    blocks: &'a [Block],
    rules: &'static Rules,
    ids: &'static Detectors,
    names: &'static name::Names,
    watch: Watch<'a>,
    criteria: &'a Criteria,
    verdicts: &'a mut Option<Vec<Judged>>,
    groups: &'a mut Vec<number::Group>,
    walled: bool,
    out: &'a mut Vec<Finding>,
    /// How often this text has been decoded.
    depth: u8,
    /// Numbers before this place have been examined.
    numbers_done: usize,
    /// The end of the last number that was found.
    number_found: usize,
    /// Whether no letter is near the current numbers, so that nothing can be their label.
    unlabelled: bool,
    /// Values before this place have been judged; how many names were looked up for the long rest of the last one.
    judged: usize,
    nested: u8,
    /// Cookies before this place have been examined.
    cookies_done: usize,
    /// The last name, and its meaning.
    last_name: (usize, usize, Name),
    /// The last value without quotes, as far as it has been read.
    bare: (usize, usize),
    /// Colons before this place have been examined.
    addresses_done: usize,
    /// Long words before this place have been examined.
    words_done: usize,
    /// Runs before this place have been decoded.
    encoded_done: usize,
    commands: flag::Seen,
}

/// The lowest set bit's number, taken out of the mask.
#[inline]
pub(super) fn next_bit(mask: &mut u64) -> Option<usize> {
    if *mask == 0 {
        return None;
    }
    let at = mask.trailing_zeros() as usize;
    *mask &= *mask - 1;
    Some(at)
}

impl<'a> Scanner<'a> {
    fn new(
        text: &'a [u8],
        from: usize,
        to: usize,
        depth: u8,
        watch: Watch<'a>,
        scratch: &'a mut Scratch,
    ) -> Self {
        let rules = &*RULES;
        Self {
            text: &text[..to],
            from,
            to,
            blocks: &scratch.blocks,
            rules,
            ids: &rules.detectors,
            names: &name::NAMES,
            watch,
            criteria: watch.criteria,
            verdicts: &mut scratch.judged,
            groups: &mut scratch.groups,
            walled: scratch.walled,
            out: &mut scratch.findings,
            depth,
            numbers_done: from,
            number_found: from,
            unlabelled: false,
            judged: from,
            nested: 0,
            cookies_done: from,
            last_name: (from, from, Name::Other),
            bare: (from, from),
            addresses_done: from,
            words_done: from,
            encoded_done: from,
            commands: flag::Seen::default(),
        }
    }
}

impl Work for Scanner<'_> {
    /// Examines everything that begins in the text, block by block.
    #[inline(always)]
    fn work(&mut self) {
        let before = |mask: fn(u8) -> bool| self.from > 0 && mask(self.text[self.from - 1]);
        // The last byte before a block, as bits: whether it is a word character, an alphanumeric, a digit.
        let mut word_carry = u64::from(before(is_word));
        let mut alnum_carry = u64::from(before(|b| b.is_ascii_alphanumeric()));
        let mut digit_carry = u64::from(before(|b| b.is_ascii_digit()));
        let mut mark_carry = u64::from(before(|b| matches!(b, b':' | b'=')));
        // The last three, for a group of three digits that crosses a block's border.
        let mut digit_tail = (1..=3)
            .filter(|back| self.from >= *back && self.text[self.from - back].is_ascii_digit())
            .fold(0u128, |tail, back| tail | 1 << (3 - back));
        // A run that began before this piece may hide something in this part of it.
        if before(is_word) {
            self.encoded(self.from, self.from);
        }
        for at in 0..self.blocks.len() - 1 {
            let (here, next) = (self.blocks[at], self.blocks[at + 1]);
            let base = self.from + at * 64;

            let alnum = here.alpha | here.digit;
            let word_starts = here.word & !(here.word << 1 | word_carry);
            let alnum_starts = alnum & !(alnum << 1 | alnum_carry);
            let digits = wide(here.digit, next.digit);
            let before_digit = (digits << 1) | u128::from(digit_carry);
            (word_carry, alnum_carry, digit_carry) = (here.word >> 63, alnum >> 63, here.digit >> 63);

            let tail = u128::from(here.digit >> 61);
            if here.digit | next.digit != 0 {
                let pairs = alnum_starts & letter_pairs(&here, &next);
                let plus = opening(&here, &next);
                if pairs | plus != 0 || may_hold_number(&here, &next, before_digit as u64) {
                    self.numbers_in(base, (here, next), (digits, before_digit, digit_tail), (plus, pairs));
                }
            }
            digit_tail = tail;
            let mut long = runs(wide(here.word, next.word), 16) as u64 & word_starts;
            while let Some(bit) = next_bit(&mut long) {
                if base + bit >= self.words_done {
                    self.long_word(base + bit);
                }
            }
            // A dash or a slash, after a blank, before a letter.
            let blank = here.sep & !(here.word | here.run | here.plus);
            let slash = here.sep & here.run & (blank << 1 | 1) & (here.alpha >> 1 | 1 << 63);
            let mut flags = word_starts & !alnum | slash;
            while let Some(bit) = next_bit(&mut flags) {
                self.flag(base + bit);
            }
            // In `::`, `:=`, `==` only the first counts, except for `=::1` and where a slash may make it a URL.
            let goes_on = (here.sep | here.mark) >> 1 | (next.sep | next.mark) << 63;
            let more = (here.mark << 1 | mark_carry) & !goes_on;
            let mut marks = here.mark & !more;
            mark_carry = here.mark >> 63;
            while let Some(bit) = next_bit(&mut marks) {
                let at = base + bit;
                if !(self.text[at] == b':' && self.colon(at)) && self.may_be_named(at) {
                    self.named_pair(at);
                }
            }
            let mut ats = here.at;
            while let Some(bit) = next_bit(&mut ats) {
                self.mail(base + bit);
            }
        }
    }
}

impl Scanner<'_> {
    /// Examines the numbers that begin in a block, and the pairs of letters before digits. `digits` are given for the
    /// block, for the places after a digit, and for the last of the block before.
    #[inline(always)]
    fn numbers_in(
        &mut self,
        base: usize,
        (here, next): (Block, Block),
        (digits, before_digit, digit_tail): (u128, u128, u128),
        (plus, pairs): (u64, u64),
    ) {
        // Seven digits in a row that are not decimal places.
        let places = wide(here.dot, next.dot) << 1 & before_digit << 1;
        let seven = runs(digits, 7) as u64 & !((before_digit | places) as u64);
        let joins = before_digit & (digits >> 1);
        let mut numbers = seven | plus;
        let joined = joins & wide(here.sep, next.sep);
        if joined != 0 {
            // Three digits, a separator, four digits: a short telephone number after its label.
            let three = (digits << 1 | digit_tail >> 2)
                & (digits << 2 | digit_tail >> 1)
                & (digits << 3 | digit_tail);
            numbers |= (chained(joined, digits) | joined & three & runs(digits, 4) >> 1) as u64;
        }
        numbers |= chained(joins & wide(here.dot, next.dot), digits) as u64;
        // In the order of the text, because the digits of an IBAN are not a number of their own.
        let mut either = numbers | pairs;
        while let Some(bit) = next_bit(&mut either) {
            if pairs >> bit & 1 == 1 {
                self.letter_pair(base + bit);
            } else if base + bit >= self.numbers_done {
                self.number(base + bit);
            }
        }
    }

    /// A `:` in a URL, or in an address; whether it is in a URL.
    #[inline(always)]
    fn colon(&mut self, at: usize) -> bool {
        let (before, after) = (self.byte_before(at), self.byte(at + 1));
        if after == b'/' && self.byte(at + 2) == b'/' {
            self.url(at);
            return true;
        }
        if after == b':' && !OUTSIDE[usize::from(before)]
            || before.is_ascii_hexdigit() && after.is_ascii_hexdigit()
        {
            self.ipv6(at);
        }
        false
    }

    /// Proposes a candidate that is judged by itself.
    fn hit(&mut self, rule: RuleId, start: usize, end: usize) {
        self.propose(Candidate::new(rule, start, end));
    }

    /// The byte at a place, 0 outside the text.
    fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(0)
    }

    /// The byte before a place, 0 where there is none.
    fn byte_before(&self, at: usize) -> u8 {
        at.checked_sub(1).map_or(0, |at| self.byte(at))
    }

    /// Up to `len` bytes before a place.
    fn before(&self, at: usize, len: usize) -> &[u8] {
        &self.text[at.saturating_sub(len)..at]
    }

    /// Where a part of the text begins.
    fn place_of(&self, part: &[u8]) -> usize {
        part.as_ptr() as usize - self.text.as_ptr() as usize
    }

    /// A mask's bits from a place in `from..=to` on.
    fn bits(&self, at: usize, mask: fn(&Block) -> u64) -> u64 {
        let offset = at - self.from;
        let (index, shift) = (offset / 64, offset % 64);
        let next = self.blocks.get(index + 1).map_or(0, mask);
        (wide(mask(&self.blocks[index]), next) >> shift) as u64
    }

    /// Whether any letter is within `len` (at most 64) bytes before a place: what a label is made of.
    fn letters_before(&self, at: usize, len: usize) -> bool {
        at < self.from + len || self.letters_behind(at - len, len)
    }

    /// Whether two letters are next to each other within `len` (at most 64) bytes before a place: no label has fewer.
    fn word_before(&self, at: usize, len: usize) -> bool {
        if at < self.from + len {
            return true;
        }
        let letters = self.bits(at - len, |block| block.alpha | block.odd) & (u64::MAX >> (64 - len));
        letters & letters >> 1 != 0
    }

    /// Whether no letter is between two places, the first in `from..=to`.
    fn no_letters(&self, start: usize, end: usize) -> bool {
        let len = |at: usize| (end - at).min(64);
        (start..end).step_by(64).take_while(|at| *at < self.to).all(|at| !self.letters_behind(at, len(at)))
    }

    /// Whether any letter is within `len` (at most 64) bytes from a place on.
    fn letters_behind(&self, at: usize, len: usize) -> bool {
        // A label may be Greek or Japanese.
        self.bits(at, |block| block.alpha | block.odd) & (u64::MAX >> (64 - len)) != 0
    }

    /// Up to `len` bytes before a place, as far as they can be its label.
    fn label(&self, at: usize, len: usize) -> &[u8] {
        let mut label = self.before(at, len);
        // A label on the line before applies to the beginning of this line: `Phone:` and below it the number.
        if let Some(line) = memchr::memrchr(b'\n', label)
            && (self.depth > 0
                || label[line + 1..].iter().any(|byte| !matches!(byte, b' ' | b'\t' | b'+' | b'(')))
        {
            label = &label[line + 1..];
        }
        label
    }

    /// The end of the run of word characters that begins at `at`, by the masks.
    fn word_end(&self, at: usize) -> usize {
        let offset = at - self.from;
        let (mut index, shift) = (offset / 64, offset % 64);
        let ones = (!(self.blocks[index].word >> shift)).trailing_zeros() as usize;
        if ones < 64 - shift {
            return at + ones;
        }
        // The last block is empty, so this ends.
        loop {
            index += 1;
            let ones = (!self.blocks[index].word).trailing_zeros() as usize;
            if ones < 64 {
                return (self.from + index * 64 + ones).min(self.to);
            }
        }
    }
}

/// Two blocks' masks as one.
fn wide(here: u64, next: u64) -> u128 {
    u128::from(here) | u128::from(next) << 64
}

/// Two letters followed by two digits: at the start of a word an IBAN, a UK NINO.
#[inline(always)]
fn letter_pairs(here: &Block, next: &Block) -> u64 {
    let behind = |here: u64, next: u64, by: u32| here >> by | next << (64 - by);
    here.alpha
        & behind(here.alpha, next.alpha, 1)
        & behind(here.digit, next.digit, 2)
        & behind(here.digit, next.digit, 3)
}

/// Characters that a telephone number can begin with, before a digit: all of them, or none where each has only one short
/// group of digits beside it.
#[inline(always)]
fn opening(here: &Block, next: &Block) -> u64 {
    let digit = here.digit;
    let opens = here.plus & (digit >> 1 | next.digit << 63);
    if opens == 0 {
        return 0;
    }
    // After the digits, the separators that join them to others.
    let joints = (opens << 1).wrapping_add(digit) & !digit & (here.sep | here.dot);
    let others = joints << 1 | joints << 2 | joints << 3 | opens >> 1 | opens >> 2 | opens >> 3;
    let edge = digit >> 63 | opens >> 63 | joints >> 61 | opens & 7;
    if others & digit | edge != 0 { opens } else { 0 }
}

/// Whether a number may begin in a block without a leading character or letters: four digits in a row, a separator between two
/// of them, or two dots. `before` has the places after a digit.
#[inline(always)]
fn may_hold_number(here: &Block, next: &Block, before: u64) -> bool {
    let digit = here.digit;
    let behind = |by: u32| digit >> by | next.digit << (64 - by);
    let (joins, dots) = (before & behind(1), before & behind(1) & here.dot);
    let four = digit & behind(1) & behind(2) & behind(3);
    four | joins & here.sep | dots & dots.wrapping_sub(1) | dots >> 57 != 0
}

/// The places where at least `len` set bits begin. `len` is at most 64.
fn runs(mask: u128, len: u32) -> u128 {
    let (mut mask, mut have) = (mask, 1);
    while have < len {
        let step = have.min(len - have);
        mask &= mask >> step;
        have += step;
    }
    mask
}

/// The joins (one separator between two digits) that are followed by the next join with only digits between: three
/// groups of digits, the middle one of one to six.
fn chained(joins: u128, digits: u128) -> u128 {
    // A chain needs two joins.
    if joins & joins.wrapping_sub(1) == 0 {
        return 0;
    }
    // `between` grows with the gap: digits at all places except the two next to the joins themselves.
    let (mut found, mut between) = (joins >> 2 | joins >> 3, !0);
    for gap in 4..=7 {
        between &= digits >> (gap - 2);
        found |= joins >> gap & between;
    }
    joins & found
}

/// The longest name of a placeholder, with room for a number.
const NAMED: usize = 48;
/// The longest placeholder, with room to spare: a sealed token.
const PLACEHOLDER: usize = NAMED + *super::seal::LETTERS.end();

/// The replacements of whole pieces that are not shown.
const WITHHELD: [&str; 3] = [super::stream::WITHHELD, super::stream::FAULT, super::walk::TOO_DEEP];

/// The length of our own placeholder that begins at a `[`: `[EMAIL_1]`, `[EMAIL]`, `[EMAIL:bfcadpomeghi]`, or a
/// sealed token `[EMAIL~...]`. A forged one that was made invalid counts too: it does not contain anything to find.
pub(super) fn placeholder_len(text: &[u8]) -> Option<usize> {
    if !text.get(1)?.is_ascii_uppercase() {
        return None;
    }
    let mark = memchr::memchr2(b']', b'~', &text[..text.len().min(NAMED)])?;
    let close = mark + memchr::memchr(b']', &text[mark..text.len().min(mark + PLACEHOLDER)])?;
    let inner = &text[1..close];
    let inner = inner.strip_suffix("\u{200b}".as_bytes()).unwrap_or(inner);
    let name = inner.iter().take_while(|byte| byte.is_ascii_uppercase() || **byte == b'_').count();
    let (name, rest) = inner.split_at(name);
    let well_formed = match rest {
        [b'~', letters @ ..] => super::seal::is_text(letters),
        [b':', hash @ ..] => hash.len() == 12 && hash.iter().all(|byte| matches!(byte, b'a'..=b'p')),
        // The most digits that a context needs. With more digits a telephone number could pass for one.
        number => number.len() <= 6 && number.iter().all(u8::is_ascii_digit),
    };
    let name = name.strip_suffix(b"_").unwrap_or(name);
    let withheld = || WITHHELD.iter().any(|whole| whole.trim_matches(['[', ']']).as_bytes() == name);
    let known = Kind::named(name).is_some() || rest.is_empty() && withheld();
    (well_formed && known).then_some(close + 1)
}

/// Whether the text is a placeholder and nothing else.
fn is_placeholder(text: &[u8]) -> bool {
    text.first() == Some(&b'[') && placeholder_len(text) == Some(text.len())
}

/// Whether a placeholder is in a text.
pub(super) fn holds_placeholder(text: &str) -> bool {
    next_placeholder(text.as_bytes(), 0).is_some()
}

/// Where the next placeholder begins and ends.
pub(super) fn next_placeholder(text: &[u8], from: usize) -> Option<(usize, usize)> {
    memchr::memchr_iter(b'[', &text[from..])
        .find_map(|at| placeholder_len(&text[from + at..]).map(|len| (from + at, from + at + len)))
}

/// The placeholder that a place is in, if it is in one.
pub(super) fn placeholder_around(text: &[u8], at: usize) -> Option<(usize, usize)> {
    let floor = at.saturating_sub(PLACEHOLDER);
    let open = floor + memchr::memrchr(b'[', &text[floor..at])?;
    placeholder_len(&text[open..]).map(|len| (open, open + len)).filter(|(_, end)| *end > at)
}

/// Where the last [`LEFT`] bytes of a text begin; a placeholder that crosses that place is left out.
pub(super) fn near(text: &[u8]) -> (usize, usize) {
    let at = text.len().saturating_sub(LEFT);
    placeholder_around(text, at).unwrap_or((at, at))
}

/// The text after the last placeholder.
pub(super) fn behind_placeholder(text: &[u8]) -> &[u8] {
    memchr::memrchr_iter(b'[', text)
        .find_map(|open| placeholder_len(&text[open..]).map(|len| &text[open + len..]))
        .unwrap_or(text)
}

/// The text after the last line feed.
fn last_line(text: &[u8]) -> &[u8] {
    memchr::memrchr(b'\n', text).map_or(text, |feed| &text[feed + 1..])
}

/// The text before the first line feed.
fn first_line(text: &[u8]) -> &[u8] {
    memchr::memchr(b'\n', text).map_or(text, |feed| &text[..feed])
}

fn is_word(byte: u8) -> bool {
    WORD[usize::from(byte)]
}

static WORD: [bool; 256] = alphanumeric_or(b"_-");

/// What an address does not follow, besides hexadecimal digits.
static OUTSIDE: [bool; 256] = only(b"_:.ghijklmnopqrstuvwxyzGHIJKLMNOPQRSTUVWXYZ");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_over_the_border_of_two_blocks() {
        let mask = wide(0xff << 56, 0xff);
        assert_eq!(runs(mask, 16), 1 << 56);
        assert_eq!(runs(mask, 17), 0);
        assert_eq!(runs(0b0111_1111, 7), 1);
    }
}
