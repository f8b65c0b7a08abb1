//! The meaning of a column's head, or of a field's name, for the values under it: `rules/heads.toml`, compiled.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{LazyLock, OnceLock};

use aho_corasick::packed;
use regex::{Regex, RegexBuilder};
use serde::Deserialize;

use super::classes::{Block, HIGH, Work, classify, equal, in_range};
use super::kind::Kind;
use super::nested::{SHORT, is_tag, opens_only};
use super::policy::Action;
use super::rule::{RULES, RuleId};
use super::scan::{holds_placeholder, is_natural_language, next_bit, placeholder_around};
use super::view;
use super::words::Set;

/// Longer texts are not heads, and longer ones not values.
const LONGEST_HEAD: usize = 48;
pub(super) const LONGEST_VALUE: usize = 512;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    qualifiers: Set,
    beside: Vec<String>,
    same: Vec<Vec<String>>,
    about: Set,
    no_secret: Set,
    spelled: Vec<String>,
    anyone: Vec<String>,
    head: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    rule: String,
    #[serde(default)]
    form: String,
    /// Whether the form is enough on a line of its own, where there is no check digit.
    #[serde(default)]
    line: bool,
    shape: Option<Shape>,
    words: Vec<String>,
    #[serde(default)]
    weak: Vec<String>,
}

/// The shape that a value must have where its form is not evidence enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Shape {
    Phone,
    Password,
    Secret,
    /// Digits in the row's form.
    Pin,
    Name,
    Address,
}

impl Shape {
    fn is_secret(self) -> bool {
        matches!(self, Self::Password | Self::Secret | Self::Pin)
    }
}

/// How much a head proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// It names such a value and nothing else.
    Sure,
    /// It contains the name, and words that the list does not have.
    Qualified,
    /// It has other meanings too.
    Weak,
}

/// One possible meaning of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sense {
    column: u16,
    trust: Trust,
}

/// All possible meanings of a head; empty for most.
pub(super) type Meaning = &'static [Sense];

struct Column {
    rule: RuleId,
    form: String,
    compiled: OnceLock<Option<Regex>>,
    shape: Option<Shape>,
    line: bool,
}

/// Words of a head, and what they mean.
type Phrase = (String, Vec<Sense>);

struct Heads {
    qualifiers: Set,
    /// Words with several spellings, each with the spelling that the list uses.
    same: HashMap<String, String, BuildHasherDefault<Fnv>>,
    about: Set,
    no_secret: Set,
    columns: Vec<Column>,
    by_words: HashMap<String, Vec<Sense>, BuildHasherDefault<Fnv>>,
    /// Phrases that have a meaning among other words too, by their first word: identifiers whose form or check digit is enough,
    /// and secrets.
    anywhere: HashMap<String, Vec<Phrase>, BuildHasherDefault<Fnv>>,
    /// Those in scripts without spaces between words.
    abroad: Vec<String>,
    /// The longest of them, in bytes.
    longest: usize,
    gate: Gate,
}

#[expect(clippy::expect_used, reason = "the file is part of the program; every test reads it")]
static HEADS: LazyLock<Heads> = LazyLock::new(|| {
    Heads::new(toml::from_str(include_str!("rules/heads.toml")).expect("heads.toml parses"))
});

/// FNV-1a: the keys are our own and short.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Heads {
    fn new(file: File) -> Self {
        let mut heads = Self {
            qualifiers: file.qualifiers,
            same: HashMap::default(),
            about: file.about,
            no_secret: file.no_secret,
            columns: Vec::new(),
            by_words: HashMap::default(),
            anywhere: HashMap::default(),
            gate: Gate::new(HashMap::new()),
            abroad: Vec::new(),
            longest: 0,
        };
        for words in file.same {
            let first = words[0].clone();
            heads.same.extend(words.into_iter().skip(1).map(|word| (word, first.clone())));
        }
        for row in file.head {
            heads.add(row, &file.anyone);
        }
        let joint = |word: &&String| word.chars().all(joins_words);
        heads.abroad = heads.by_words.keys().filter(joint).cloned().collect();
        heads.longest = heads.by_words.keys().map(String::len).max().unwrap_or(0);
        heads.gate = heads.gate(&file.spelled, &file.beside);
        heads
    }

    /// Adds the meaning of a row's words.
    fn add(&mut self, row: Row, anyone: &[String]) {
        let column = self.columns.len() as u16;
        for (words, trust) in [(&row.words, Trust::Sure), (&row.weak, Trust::Weak)] {
            for word in words {
                let words = self.canonical(word).into_owned();
                let known = self.by_words.entry(words).or_default();
                if !known.iter().any(|sense| sense.column == column) {
                    known.push(Sense { column, trust });
                }
            }
        }
        let rule = RULES.list.iter().position(|rule| rule.id == row.rule);
        let rule = rule.unwrap_or_default() as RuleId;
        let secret = row.shape.is_some_and(Shape::is_secret) && row.shape != Some(Shape::Pin);
        let sure =
            row.shape.is_none() && (row.line || RULES.has_check_digit(rule) || RULES.has_letters(rule));
        let kind = RULES.list[usize::from(rule)].kind;
        let phone = row.shape == Some(Shape::Phone);
        if sure || secret || phone || kind == Kind::Passport {
            // A passport's check digit proves no more than its form.
            let trust = if kind == Kind::Passport { Trust::Sure } else { Trust::Qualified };
            let alone = |word: &&String| row.shape != Some(Shape::Secret) || word.contains(' ');
            // A check digit is enough, whatever else the word means.
            let checked = row.shape.is_none() && RULES.has_check_digit(rule);
            let weak = row.weak.iter().filter(|_| checked).map(|word| (word, Trust::Weak));
            let words = row.words.iter().filter(alone).map(|word| (word, trust)).chain(weak);
            for (word, trust) in words.filter(|(word, _)| word.len() > 2) {
                let sense = Sense { column, trust };
                let word = self.canonical(word).into_owned();
                let first = word.split(' ').next().unwrap_or_default().to_owned();
                let known = self.anywhere.entry(first).or_default();
                match known.iter_mut().find(|(known, _)| *known == word) {
                    Some((_, senses)) => senses.push(sense),
                    None => known.push((word, vec![sense])),
                }
            }
        }
        if sure && kind == Kind::NationalId {
            for word in anyone {
                let words = self.canonical(word).into_owned();
                let sense = Sense { column, trust: Trust::Weak };
                self.by_words.entry(words).or_default().push(sense);
            }
        }
        let (form, compiled) = (row.form, OnceLock::new());
        self.columns.push(Column { rule, form, compiled, shape: row.shape, line: row.line });
    }

    /// The words that trigger a look at a line: the last word of a head, except for words that mean nothing by themselves.
    fn gate(&self, spelled: &[String], beside: &[String]) -> Gate {
        let mut words: HashMap<Vec<u8>, Known> = HashMap::new();
        let mut add = |word: &[u8], sort: u16| words.entry(word.to_vec()).or_default().sort |= sort;
        let mut pairs = vec![("create", "table"), ("list", "table")];
        for (head, senses) in &self.by_words {
            let all: Vec<&str> = head.split(' ').collect();
            let meaningful = all.iter().rposition(|word| !self.qualifiers.holds(word.as_bytes()));
            let at = meaningful.unwrap_or(all.len() - 1);
            let column = |sense: &Sense| &self.columns[usize::from(sense.column)];
            let off = senses.iter().all(|sense| {
                RULES.list[usize::from(column(sense).rule)].kind.default_action() == Action::Allow
            });
            let sort = if off { OFF } else { HEAD };
            let open = senses
                .iter()
                .any(|sense| !column(sense).is_secret() || column(sense).shape == Some(Shape::Pin));
            for word in self.spellings(all[0]) {
                add(word.as_bytes(), BEGINS);
            }
            for word in self.spellings(all[at]) {
                if open {
                    add(word.as_bytes(), if at + 1 < all.len() { BEFORE } else { OPEN });
                }
                // Many words that end a head of several mean nothing by themselves.
                if at > 0 && !off {
                    pairs.extend(self.spellings(all[at - 1]).map(|before| (before, word)));
                } else {
                    add(word.as_bytes(), sort);
                }
            }
            // `CreditCard` is in the list as one word too, but `said` is a word of its own.
            let (last, before) = all.split_last().unwrap_or((&"", &[]));
            let ends = ["nummer", "nr"].into_iter().filter(|_| *last == NUMBER);
            // The last non-ASCII word triggers as well.
            let ends = self.spellings(last).chain(ends).filter(|_| head.is_ascii() || all.len() == 1);
            let joined = ends.map(|word| [&before.concat(), word].concat());
            for word in joined.filter(|word| all.len() == 1 || word.len() > 4) {
                add(word.as_bytes(), if open { sort | OPEN } else { sort });
            }
        }
        for word in self.qualifiers.words() {
            let behind = word.len() > 3 || ["id", "no", "nr", "num", "nbr"].contains(&word);
            add(word.as_bytes(), if behind { QUALIFIES | QUALIFIER } else { QUALIFIES });
        }
        for word in beside {
            add(word.as_bytes(), QUALIFIES);
        }
        for word in spelled {
            add(word.as_bytes(), HEAD | OPEN);
        }
        for word in super::nested::COLUMNS {
            add(word.rsplit('_').next().unwrap_or(word).as_bytes(), COLUMNS);
        }
        for (before, word) in pairs {
            words.entry([before, word].concat().into_bytes()).or_default().sort |= PAIR;
            let known = words.entry(word.as_bytes().to_vec()).or_default();
            known.sort |= PAIRED;
            known.before |= before.as_bytes().last().map_or(0, |last| Gate::letter(*last));
        }
        Gate::new(words)
    }

    /// How a word is written.
    fn spellings<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a str> {
        let others = self.same.iter().filter(move |(_, first)| *first == word);
        std::iter::once(word).chain(others.map(|(other, _)| other.as_str()))
    }

    /// Words in the list's spelling: `soc sec nbr` as `social security number`, `personnr` as `person number`.
    fn canonical<'a>(&self, words: &'a str) -> Cow<'a, str> {
        fn compound(word: &str) -> Option<&str> {
            let stem = word.strip_suffix("nummer").or_else(|| word.strip_suffix("nr"));
            stem.filter(|stem| stem.len() > 2)
        }
        let known = |word: &str| self.same.contains_key(word) || compound(word).is_some();
        if !words.split(' ').any(known) {
            return words.into();
        }
        let mut out = String::with_capacity(words.len() + 16);
        for word in words.split(' ') {
            push_blank(&mut out);
            match (self.same.get(word), compound(word)) {
                (Some(same), _) => out.push_str(same),
                (None, Some(stem)) => out.extend([stem, " ", NUMBER]),
                (None, None) => out.push_str(word),
            }
        }
        out.into()
    }

    /// The meaning of words: all of them, the last ones without qualifiers after them, the first ones with nothing but
    /// qualifiers after them, or all joined into one; with others on both sides only what a check digit confirms.
    fn meaning(&self, words: &str) -> Option<&Vec<Sense>> {
        let words = &*self.canonical(words);
        if let Some(found) = self.by_words.get(words) {
            return Some(found);
        }
        let all: Vec<&str> = words.split(' ').collect();
        let sorts: Vec<u16> = all.iter().map(|word| self.gate.sort(word.as_bytes())).collect();
        let qualifies = |sort: &u16| sort & QUALIFIES != 0;
        let kept = all.len() - sorts.iter().rev().take_while(|sort| qualifies(sort)).count();
        let secret = |found: &&Vec<Sense>| {
            found.iter().any(|sense| self.columns[usize::from(sense.column)].is_secret())
        };
        let place = |word: &str| word.as_ptr() as usize - words.as_ptr() as usize;
        // Some of them, with the spaces between.
        let joined = |from: usize, to: usize| {
            let begins = sorts[from] & BEGINS != 0;
            let range = || place(all[from])..place(all[to - 1]) + all[to - 1].len();
            begins.then(|| self.by_words.get(&words[range()])).flatten()
        };
        // `USER0_RSA_ID`: an apparent qualifier is part of the head.
        let whole = (2..=all.len().min(4)).rev().find_map(|count| joined(all.len() - count, all.len()));
        if whole.is_some() {
            return whole;
        }
        let last = (1..=kept.min(4)).rev().find_map(|count| joined(kept - count, kept));
        let counts = all.last().is_some_and(|word| ["id", "ids", "number", "count", "code"].contains(word));
        if let Some(found) = last {
            return (!(counts && kept < all.len() && secret(&found))).then_some(found);
        }
        let first = (1..=all.len().min(5))
            .rev()
            .find_map(|count| joined(0, count).filter(|_| sorts[count..].iter().all(qualifies)));
        // `AHVN13`
        let unnumbered = || words.trim_end_matches(|c: char| c.is_ascii_digit());
        let anywhere = || {
            all.iter().zip(&sorts).filter(|(_, sort)| *sort & BEGINS != 0).find_map(|(word, _)| {
                let rest = &words[place(word)..];
                let begins = |known: &&Phrase| {
                    rest.strip_prefix(&*known.0).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
                };
                let (_, found) = self.anywhere.get(*word)?.iter().find(begins)?;
                let unchecked = |sense: &Sense| {
                    self.columns[usize::from(sense.column)].shape.is_some() || sense.trust != Trust::Qualified
                };
                let about = || all.iter().any(|word| self.about.holds(word.as_bytes()));
                (!(found.iter().any(unchecked) && about())).then_some(found)
            })
        };
        let one = || (all.len() > 1).then(|| self.by_words.get(&all.concat())).flatten();
        // Scripts without spaces: `社員マイナンバー`.
        let joint = || {
            let known = self.abroad.iter().filter(|word| words.ends_with(&***word));
            known.max_by_key(|word| word.len()).and_then(|word| self.by_words.get(word))
        };
        let found = first.or_else(one).or_else(|| self.by_words.get(unnumbered())).or_else(joint);
        found.or_else(anywhere)
    }
}

/// The list's spelling of the words for a number.
const NUMBER: &str = "number";

/// What a word is, as bits: the last of a head, the same of a kind that is allowed by default, a qualifier after one, and
/// a name of something that holds the names of columns.
const HEAD: u16 = 1;
const OFF: u16 = 2;
const QUALIFIER: u16 = 4;
const COLUMNS: u16 = 8;
/// Ends a head of several words, after the word before it.
const PAIRED: u16 = 16;
/// Two words that end a head, as one.
const PAIR: u16 = 32;
/// Ends a head that is not a secret's; ends any where a qualifier follows.
const OPEN: u16 = 64;
const BEFORE: u16 = 128;
/// Begins a head.
const BEGINS: u16 = 256;
/// May follow a head, whether a capital separates it or not.
const QUALIFIES: u16 = 512;

/// A bit for each hash of some letters.
type Ends = [u64; 512];

#[inline]
fn holds(ends: &Ends, place: usize) -> bool {
    ends[place / 64] >> (place % 64) & 1 == 1
}

/// Mixes the bits of a hash.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The most separators between two words of a head.
const LONGEST_BETWEEN: usize = 3;
/// The longest word with accents that is looked at, in bytes.
const LONGEST_ACCENTED: usize = 48;

/// A word that the gate knows.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    hash: u64,
    /// The last letters of the words that make it a head when they come before it, as bits.
    before: u32,
    sort: u16,
}

/// Finds the words that a head may end in, in text in which hardly any word is one.
struct Gate {
    /// Words by their hash, in the first free place from there on.
    words: Box<[Known; Self::PLACES]>,
    /// The groups of letters that a head ends in: its last four, or all of a shorter one. First for the heads that count by
    /// default, then for all.
    heads: [Box<Ends>; 2],
    /// The same for heads and qualifiers.
    either: [Box<Ends>; 2],
    /// The last six letters of each longer word.
    sixes: Box<Ends>,
    abroad: Option<packed::Searcher>,
}

impl Gate {
    /// Few enough to stay in the cache; a test checks that at most half are used.
    const PLACES: usize = 8192;

    fn new(words: HashMap<Vec<u8>, Known>) -> Self {
        let ends = words.iter().filter(|(_, known)| known.sort & (HEAD | OFF | COLUMNS | PAIRED) != 0);
        let abroad =
            ends.filter_map(|(word, _)| std::str::from_utf8(word).ok().filter(|word| !word.is_ascii()));
        // The first letter may be a capital, so the end of the word is matched without it.
        let behind = |word: &str| match word.char_indices().nth(1) {
            Some((second, _)) if word.chars().count() > 3 && word.to_uppercase() != word => {
                word[second..].to_owned()
            }
            _ => word.to_owned(),
        };
        // A word within another triggers as well; the searcher takes few words.
        let abroad: BTreeSet<String> =
            abroad.map(behind).flat_map(|word| [word.to_uppercase(), word]).collect();
        let within = |word: &&String| !abroad.iter().any(|other| other != *word && word.contains(&**other));
        let abroad: Vec<&String> = abroad.iter().filter(within).collect();
        let abroad = packed::Config::new().builder().extend(abroad).build();
        let mut gate = Self {
            words: Box::new([Known::default(); Self::PLACES]),
            heads: [(); 2].map(|()| Box::new([0; 512])),
            either: [(); 2].map(|()| Box::new([0; 512])),
            sixes: Box::new([0; 512]),
            abroad,
        };
        for (word, known) in words {
            let place = gate.place(&word);
            gate.words[place] = Known { hash: Self::hash(&word), ..known };
            let sort = known.sort;
            let end = Self::end(Self::last(&word), word.len());
            let heads = [HEAD | COLUMNS | PAIRED, HEAD | COLUMNS | PAIRED | OFF];
            let sorts = heads.into_iter().chain(heads.map(|heads| heads | QUALIFIER));
            let all = gate.heads.iter_mut().chain(&mut gate.either);
            for (ends, sorts) in all.zip(sorts) {
                ends[end / 64] |= u64::from(sort & sorts != 0) << (end % 64);
            }
            if let Some([a, b, c, d, e, f]) = word.last_chunk() {
                let place = Self::six(u64::from_le_bytes([*a, *b, *c, *d, *e, *f, 0, 0]));
                gate.sixes[place / 64] |= 1 << (place % 64);
            }
        }
        gate
    }

    /// A letter as a bit, in any case.
    fn letter(byte: u8) -> u32 {
        1 << (byte & 0x1f)
    }

    /// A hash of a word in any case.
    fn hash(word: &[u8]) -> u64 {
        word.chunks(8).fold(word.len() as u64, |hash, part| {
            let letters = match (part.first_chunk::<4>(), part.last_chunk::<4>()) {
                (Some(first), Some(last)) => {
                    u64::from(u32::from_le_bytes(*first)) << 32 | u64::from(u32::from_le_bytes(*last))
                }
                _ => part.iter().fold(0, |letters, byte| letters << 8 | u64::from(*byte)),
            };
            (hash.rotate_left(5) ^ (letters | 0x2020_2020_2020_2020)).wrapping_mul(MIX)
        })
    }

    /// The slot of a word, or the one that it would take.
    fn place(&self, word: &[u8]) -> usize {
        let hash = Self::hash(word);
        let mut place = hash as usize / (usize::MAX / Self::PLACES + 1);
        while self.words[place].hash != 0 && self.words[place].hash != hash {
            place = (place + 1) % Self::PLACES;
        }
        place
    }

    /// What a word is, in any case.
    fn sort(&self, word: &[u8]) -> u16 {
        self.words[self.place(word)].sort
    }

    /// The last four bytes of a text.
    #[inline]
    fn last(text: &[u8]) -> u32 {
        match text.last_chunk::<4>() {
            Some(last) => u32::from_le_bytes(*last),
            None => text.iter().fold(0, |last, byte| last >> 8 | u32::from(*byte) << 24),
        }
    }

    /// The bit for a word of `len` letters with this ending.
    #[inline]
    fn end(last: u32, len: usize) -> usize {
        let letters = !0 << (32 - 8 * len.min(4));
        (((last | 0x2020_2020) & letters).wrapping_mul(0x9e37_79b1) >> 17) as usize
    }

    /// The bit of six letters.
    #[inline]
    fn six(letters: u64) -> usize {
        (letters.wrapping_mul(MIX) >> 49) as usize
    }

    /// Whether a word that ends in six lowercase letters may be one by these. Part of a shorter word may be escaped.
    #[inline]
    fn may_be_long(&self, text: &[u8]) -> bool {
        let Some(near) = text.last_chunk::<14>() else { return true };
        let six = |eight: Option<&[u8; 8]>| eight.map_or(0, |eight| u64::from_le_bytes(*eight)) >> 16;
        let (before, letters) = (six(near.first_chunk()), six(near.last_chunk()));
        holds(&self.sixes, Self::six(letters))
            || !in_range(letters, b'a', b'z') & HIGH >> 16 != 0
            || equal(before, b'\\') & HIGH != 0
    }

    /// Whether a word of `len` letters (at most four count) that ends at a place may be one by its ending, or ends in one of its own.
    fn may_end(&self, text: &[u8], end: usize, len: usize, all: bool) -> bool {
        if len > 3 && !self.may_be_long(&text[..end]) {
            return false;
        }
        let last = Self::last(&text[..end]);
        let head = |len| holds(&self.heads[usize::from(all)], Self::end(last, len));
        let either = |len| holds(&self.either[usize::from(all)], Self::end(last, len));
        if head(len) {
            return true;
        }
        if len < 4 {
            return false;
        }
        // `userSSN`, `phoneNr` and `phoneNumber` end in a word of their own, which has a capital.
        let upper = |at: u32| last >> (8 * at) & 0x20 == 0;
        let hump = |at: u32| upper(at) && (!upper(at - 1) || !upper(at + 1));
        let capital =
            |within: usize| text[end.saturating_sub(within)..end].iter().any(|byte| byte & 0x20 == 0);
        hump(1) && either(3) || hump(2) && either(2) || either(4) && capital(8)
    }

    /// Letters with dots between them, up to a place: `N.I.E`.
    fn initials(&self, text: &[u8], end: usize) -> bool {
        let (mut word, mut from, mut at) = ([0; 6], 6, end);
        while from > 0 {
            let one = at > 0 && text[at - 1].is_ascii_alphabetic();
            if !one || at > 1 && text[at - 2].is_ascii_alphanumeric() {
                break;
            }
            from -= 1;
            word[from] = text[at - 1];
            if at < 2 || text[at - 2] != b'.' {
                break;
            }
            at -= 2;
        }
        from < 5 && self.sort(&word[from..]) & HEAD != 0
    }

    /// Words of up to three letters after an accented or escaped letter, which may be the end of one.
    fn accented(&self, text: &[u8], (base, mut starts): (usize, u64), all: bool, places: &mut Vec<usize>) {
        while starts != 0 {
            let at = base + starts.trailing_zeros() as usize;
            starts &= starts - 1;
            let len = text[at..].iter().take(4).take_while(|byte| byte.is_ascii_alphabetic()).count();
            let escaped = text[..at].last_chunk::<6>().is_some_and(|six| six.starts_with(b"\\u"));
            if len < 4 && (escaped || text[at - 1] >= 0x80) && self.ends(text, at + len, all) {
                places.push(at + len);
            }
        }
    }

    /// Whether the word before another makes it a head.
    fn paired(&self, text: &[u8], (start, end): (usize, usize), letters: u32) -> bool {
        let between = |byte: &&u8| !byte.is_ascii_alphanumeric() && **byte < 0x80;
        let gap = text[..start].iter().rev().take(LONGEST_BETWEEN).take_while(between).count();
        let before = &text[..start - gap];
        if before.last().is_none_or(|last| *last < 0x80 && letters & Self::letter(*last) == 0) {
            return false;
        }
        let escaped = before.last_chunk::<6>().is_some_and(|six| six.starts_with(b"\\u"));
        if escaped || before.last().is_some_and(|byte| *byte >= 0x80) {
            return true;
        }
        let letters = before.iter().rev().take(32).take_while(|byte| byte.is_ascii_alphabetic()).count();
        let word = &before[before.len() - letters..];
        let hump =
            |at: &usize| word[*at].is_ascii_uppercase() && (gap == 0 || word[at - 1].is_ascii_lowercase());
        let from = (1..letters).rev().find(hump).unwrap_or(0);
        let mut pair = [0; 64];
        let len = letters - from;
        pair[..len].copy_from_slice(&word[from..]);
        pair[len..][..end - start].copy_from_slice(&text[start..end]);
        self.sort(&pair[..len + end - start]) & PAIR != 0
    }

    /// Whether a word with accents is one without them.
    fn ends_without_accents(&self, text: &[u8], all: bool) -> bool {
        let ends = |word: &[u8]| {
            let sort = self.sort(word);
            sort & (HEAD | QUALIFIER | COLUMNS | PAIRED) != 0 || all && sort & OFF != 0
        };
        if let Some(word) = bare_word(text, &mut [0; LONGEST_ACCENTED]) {
            return ends(word);
        }
        let letter = |byte: &&u8| byte.is_ascii_alphabetic() || **byte >= 0x80;
        let len = text.iter().rev().take(LONGEST_ACCENTED).take_while(letter).count();
        let Ok(word) = str::from_utf8(&text[text.len() - len..]) else { return true };
        // Invisible characters may be between the letters.
        if !word.chars().all(char::is_alphabetic) {
            return true;
        }
        len == LONGEST_ACCENTED || ends(plain(word).rsplit(' ').next().unwrap_or_default().as_bytes())
    }

    /// Whether it is one, given what follows it.
    fn ends(&self, text: &[u8], end: usize, all: bool) -> bool {
        let letters = text[..end].iter().rev().take(32).take_while(|byte| byte.is_ascii_alphabetic()).count();
        let start = end - letters;
        // A word that is escaped, or has an accent.
        if start > 0 && text[start.saturating_sub(6)..start].starts_with(b"\\u") {
            return true;
        }
        if start > 0 && text[start - 1] >= 0x80 {
            return self.ends_without_accents(&text[..end], all);
        }
        // `1cc` is one word.
        let joined = start > 0 && text[start - 1].is_ascii_digit();
        let is = |from: usize, to: usize| {
            let Known { sort, before, .. } = self.words[self.place(&text[start + from..start + to])];
            let listed = sort & COLUMNS != 0 && text.get(end).is_some_and(|byte| b"\"':".contains(byte));
            let paired = || sort & PAIRED != 0 && self.paired(text, (start + from, start + to), before);
            (sort & HEAD != 0 || all && sort & OFF != 0 || listed || paired(), sort & QUALIFIER != 0)
        };
        if !joined && is(0, letters).0 {
            return true;
        }
        if !text[start + 1..end].iter().any(u8::is_ascii_uppercase) {
            return false;
        }
        // By humps, as in `clientPhoneNumber`, from the end.
        let mut to = letters;
        let hump = |at: &usize| {
            let at = start + at;
            let (before, here, behind) = (text[at - 1], text[at], text.get(at + 1));
            here.is_ascii_uppercase()
                && (before.is_ascii_lowercase() || behind.is_some_and(u8::is_ascii_lowercase))
        };
        while let Some(from) = (1..to).rev().find(hump) {
            let (head, qualifies) = is(from, to);
            if head {
                return true;
            }
            if !qualifies {
                return false;
            }
            to = from;
        }
        to < letters && is(0, to).0
    }
}

/// The places in a line that may carry meaning.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The places after words that a head may end in.
    pub(super) places: Vec<usize>,
    /// The starts of lines that open a bracket and hold nothing else.
    pub(super) openers: Vec<usize>,
    /// Places that may hold a tag of an HTML table, or the mark that begins an AsciiDoc or MediaWiki table.
    pub(super) tags: Vec<usize>,
    /// Line feeds after which a line may name a `Series`: with a mark after four letters.
    pub(super) named: Vec<usize>,
    blocks: Vec<Block>,
    likely: Likely,
}

impl Words {
    /// Finds them in `text[start..end]`; those of kinds that are allowed by default only with `all`.
    ///
    /// `blocks` are those of the same bytes or of more before them, if already computed, and where they begin.
    pub(super) fn fill(
        &mut self,
        text: &[u8],
        (start, end): (usize, usize),
        all: bool,
        blocks: Option<(usize, &[Block])>,
    ) {
        self.places.clear();
        self.openers.clear();
        self.tags.clear();
        self.named.clear();
        let gate = &HEADS.gate;
        let (from, blocks) = blocks.unwrap_or_else(|| {
            classify(&text[start..end], &mut self.blocks);
            (start, &self.blocks)
        });
        let (places, openers, tags) = (&mut self.places, &mut self.openers, &mut self.tags);
        let (named, likely) = (&mut self.named, &mut self.likely);
        Fill { text, start: from, all, blocks, places, openers, tags, named, likely }.done();
        if from < start {
            places.retain(|at| *at > start);
            openers.retain(|at| *at >= start);
            tags.retain(|at| *at >= start);
            named.retain(|at| *at >= start);
        }
        if let Some(abroad) = gate.abroad.as_ref().filter(|_| !text[start..end].is_ascii()) {
            self.places.extend(abroad.find_iter(&text[start..end]).map(|found| start + found.end()));
        }
        // The letter of an escape (`\n`) and the last of a terminal command are not part of the word after them.
        for at in memchr::memchr2_iter(0x1b, b'\\', &text[start..end]).map(|at| start + at) {
            let escape = match text[at..end] {
                [0x1b, ..] => view::escape_len(&text[at..end]),
                [_, b'n' | b'r' | b't', ..] => 2,
                _ => continue,
            };
            let from = (at + escape).min(end);
            let letter = |byte: &&u8| byte.is_ascii_alphabetic() || **byte >= 0x80;
            let len = text[from..end].iter().take(LONGEST_ACCENTED).take_while(letter).count();
            if len > 1 && gate.ends(&text[from..end], len, all) {
                self.places.push(from + len);
            }
        }
        // The name of a kind in a placeholder is not a head.
        let named = |at: &usize| {
            text.get(*at).is_some_and(|sign| b"]_~:".contains(sign))
                && placeholder_around(text, *at).is_some()
        };
        self.places.retain(|at| !named(at));
        if !self.places.is_sorted() {
            self.places.sort_unstable();
        }
    }
}

/// The state while [`Words`] is filled.
struct Fill<'a> {
    text: &'a [u8],
    start: usize,
    all: bool,
    blocks: &'a [Block],
    places: &'a mut Vec<usize>,
    openers: &'a mut Vec<usize>,
    tags: &'a mut Vec<usize>,
    named: &'a mut Vec<usize>,
    likely: &'a mut Likely,
}

impl Work for Fill<'_> {
    #[inline(always)]
    fn work(&mut self) {
        let Self { text, start, all, blocks, places, openers: opening, tags, named, likely } = self;
        let (text, start, all, gate) = (*text, *start, *all, &HEADS.gate);
        // The start of the text is the start of a line.
        let (mut base, mut before, mut odd, mut digit, mut feed, mut run) = (start, 0, 0, 0, 1 << 63, 0);
        let (mut singles, mut dots, mut edge) = (0, 0, [0; 67]);
        let [heads, either] = [&gate.heads, &gate.either].map(|ends| &*ends[usize::from(all)]);
        for pair in blocks.windows(2) {
            let here = pair[0].alpha;
            let last = here & !(here >> 1 | pair[1].alpha << 63 | long_runs(&pair[0], &pair[1], &mut run));
            let behind = |by: u32| here << by | before >> (64 - by);
            let two = behind(1);
            let four = two & behind(2) & behind(3);
            // Letters with dots between.
            let single = last & !two;
            let mut dotted = single & (single << 2 | singles >> 62) & (pair[0].dot << 1 | dots >> 63);
            (singles, dots) = (single, pair[0].dot);
            while let Some(bit) = next_bit(&mut dotted) {
                if gate.initials(text, base + bit + 1) {
                    places.push(base + bit + 1);
                }
            }
            let mut brief = last & two & !four;
            if pair[0].odd | odd != 0 {
                let accented = (pair[0].odd << 1 | odd >> 63 | pair[0].digit << 1) & here & !two;
                gate.accented(text, (base, accented), all, places);
            } else if (pair[0].digit | digit) != 0 {
                // `4bf92`: no head begins after a digit, except after an escape.
                let digits = |by: u32| pair[0].digit << by | digit >> (64 - by);
                brief &= !(!behind(2) & digits(2) | behind(2) & digits(3));
            }
            let near = around(text, base, &mut edge);
            let (mut long, three) = (last & four, behind(2));
            while let Some(bit) = next_bit(&mut long) {
                let four = letters(near, bit);
                // A capital may begin a word of its own.
                let capital = !four & 0x0020_2000 != 0;
                likely.add(base + bit + 1, 4, holds(either, Gate::end(four, 4)) | capital);
            }
            while let Some(bit) = next_bit(&mut brief) {
                let len = 2 + (three >> bit & 1) as usize;
                likely.add(base + bit + 1, len, holds(heads, Gate::end(letters(near, bit), len)));
            }
            (before, odd, digit) = (here, pair[0].odd, pair[0].digit);
            if likely.len > Likely::FULL {
                likely.judge(text, all, places);
            }
            signs(text, (start, base), (&pair[0], &pair[1]), feed, (opening, named, tags));
            feed = pair[0].feed;
            base += 64;
        }
        likely.judge(text, all, places);
    }
}

/// Adds the places of a block that carry meaning without a word: short lines, names of a `Series`, tags.
#[inline(always)]
fn signs(
    text: &[u8],
    (start, base): (usize, usize),
    (here, next): (&Block, &Block),
    feed: u64,
    (opening, named, tags): (&mut Vec<usize>, &mut Vec<usize>, &mut Vec<usize>),
) {
    let feeds = |by: usize| here.feed << by | feed >> (64 - by);
    let brief = (2..=SHORT).fold(0, |short, len| short | feeds(len)) & here.feed & !feeds(1);
    if brief != 0 {
        openers(text, (start, base), brief, opening);
    }
    let ahead = |here: u64, next: u64, by: u32| here >> by | next << (64 - by);
    let mut names = here.feed & ahead(here.mark, next.mark, 5) & ahead(here.alpha, next.alpha, 4);
    while let Some(bit) = next_bit(&mut names) {
        named.push(base + bit);
    }
    let mut cells = here.cell;
    while let Some(bit) = next_bit(&mut cells) {
        if may_be_tag(text, base + bit) {
            tags.push(base + bit);
        }
    }
}

/// Whether a `<` or `|` may belong to a tag of an HTML table, or begin an AsciiDoc or MediaWiki table.
fn may_be_tag(text: &[u8], at: usize) -> bool {
    match text[at] {
        b'<' => is_tag(text, at),
        _ => at > 0 && text[at - 1] == b'{' || text[at..].starts_with(b"|==="),
    }
}

/// The bits of a block in words and base64 that cross its border and are longer than any head, so that no head ends in
/// them. `before` is the length of such a run so far.
#[inline(always)]
fn long_runs(here: &Block, next: &Block, before: &mut u32) -> u64 {
    let (bits, next) = (here.word | here.run, next.word | next.run);
    let (lead, tail) = (bits.trailing_ones(), bits.leading_ones());
    let mut long = 0;
    if *before + lead > LONGEST_HEAD as u32 {
        long |= u64::MAX.checked_shr(64 - lead).unwrap_or(0);
    }
    if tail + next.trailing_ones() > LONGEST_HEAD as u32 {
        long |= u64::MAX.checked_shl(64 - tail).unwrap_or(0);
    }
    *before = if bits == u64::MAX { LONGEST_HEAD as u32 } else { tail };
    long
}

/// A block's bytes and the three before them; 0 outside the text.
#[inline(always)]
fn around<'a>(text: &'a [u8], base: usize, edge: &'a mut [u8; 67]) -> &'a [u8; 67] {
    let from = base.saturating_sub(3);
    text[from..].first_chunk().filter(|_| base >= 3).unwrap_or_else(|| {
        let part = &text[from..text.len().min(base + 64)];
        edge.fill(0);
        edge[from + 3 - base..][..part.len()].copy_from_slice(part);
        edge
    })
}

/// The four bytes up to a place in a block.
#[inline(always)]
fn letters(near: &[u8; 67], bit: usize) -> u32 {
    near[bit % 64..].first_chunk().map_or(0, |four| u32::from_le_bytes(*four))
}

/// Words that may be one of a head by their endings, still to be looked up. They are added without a branch that depends on the
/// text, which no predictor could guess.
#[derive(Debug)]
struct Likely {
    /// The places after them, each with the number of letters, of which at most four count.
    list: [(usize, usize); Self::FULL + 64],
    len: usize,
}

impl Default for Likely {
    fn default() -> Self {
        Self { list: [(0, 0); Self::FULL + 64], len: 0 }
    }
}

impl Likely {
    /// How many are judged at once.
    const FULL: usize = 192;

    #[inline(always)]
    fn add(&mut self, at: usize, len: usize, fits: bool) {
        self.list[self.len % (Self::FULL + 64)] = (at, len);
        self.len += usize::from(fits);
    }

    /// Adds those that a head may end in.
    fn judge(&mut self, text: &[u8], all: bool, out: &mut Vec<usize>) {
        let gate = &HEADS.gate;
        let known = &self.list[..std::mem::take(&mut self.len)];
        let fits =
            |(at, len): &&(usize, usize)| gate.may_end(text, *at, *len, all) && gate.ends(text, *at, all);
        out.extend(known.iter().filter(fits).map(|(at, _)| at));
    }
}

/// Adds those of the short lines with line feeds at some bits.
fn openers(text: &[u8], (start, base): (usize, usize), mut feeds: u64, out: &mut Vec<usize>) {
    while let Some(bit) = next_bit(&mut feeds) {
        let end = base + bit;
        let line = end - text[start..end].iter().rev().take_while(|byte| **byte != b'\n').count();
        if opens_only(&text[line..end]) {
            out.push(line);
        }
    }
}

/// Whether the word that ends at a place ends only heads of secrets.
pub(super) fn ends_secret(text: &[u8], end: usize) -> bool {
    let gate = &HEADS.gate;
    let letters = |byte: &&u8| byte.is_ascii_alphanumeric();
    let len = text[..end].iter().rev().take(LONGEST_HEAD).take_while(letters).count();
    let ends = gate.sort(&text[end - len..end]);
    let qualified = || {
        let between = |byte: &&u8| !byte.is_ascii_alphanumeric();
        let rest = &text[end..];
        let rest = &rest[rest.iter().take(LONGEST_BETWEEN).take_while(between).count()..];
        let word = &rest[..rest.iter().take(LONGEST_HEAD).take_while(letters).count()];
        gate.sort(word) & QUALIFIER != 0
    };
    ends & (HEAD | PAIRED) != 0 && ends & OPEN == 0 && !(ends & BEFORE != 0 && qualified())
}

/// Whether a text contains a word that a head may end in.
pub(super) fn may_be_head(text: &str) -> bool {
    let (bytes, mut letters) = (text.as_bytes(), 0);
    !text.is_ascii()
        || bytes.iter().enumerate().any(|(at, byte)| {
            letters = if byte.is_ascii_alphabetic() { letters + 1 } else { 0 };
            letters == 1 && at > 1 && bytes[at - 1] == b'.' && HEADS.gate.initials(bytes, at + 1)
                || letters > 1
                    && !bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic)
                    && HEADS.gate.may_end(bytes, at + 1, letters.min(4), true)
                    && HEADS.gate.ends(bytes, at + 1, true)
        })
}

/// The meaning of a head. The same heads are looked up again and again.
pub(super) fn meaning(head: &str) -> Meaning {
    if head.is_empty() || head.len() > LONGEST_HEAD {
        return &[];
    }
    ASKED.with_borrow_mut(|asked| asked.meaning(head))
}

thread_local! {
    static ASKED: RefCell<Asked> = RefCell::default();
}

/// A cache of the heads looked up last, each in its one slot.
#[derive(Default)]
struct Asked {
    heads: Vec<(String, Meaning)>,
}

impl Asked {
    const PLACES: usize = 256;

    fn meaning(&mut self, head: &str) -> Meaning {
        let bytes = head.as_bytes();
        let (first, last) = (Gate::last(&bytes[..bytes.len().min(4)]), Gate::last(bytes));
        let mixed = (u64::from(first) << 32 | u64::from(last)) ^ bytes.len() as u64;
        let place = (mixed.wrapping_mul(MIX) >> 32) as usize % Self::PLACES;
        self.heads.resize(Self::PLACES, (String::new(), &[]));
        let (known, meant) = &mut self.heads[place];
        if known != head {
            known.clear();
            known.push_str(head);
            *meant = look_up(head);
        }
        meant
    }
}

fn look_up(head: &str) -> Meaning {
    if !may_be_head(head) || !is_unmasked(head) || holds_placeholder(head) {
        return &[];
    }
    let words = plain(head);
    if words.is_empty() || words.bytes().filter(|byte| *byte == b' ').count() > 5 {
        return &[];
    }
    HEADS.meaning(&words).map_or(&[], Vec::as_slice)
}

/// Whether a word beside one of a head has no meaning of its own.
pub(super) fn is_qualifier(word: &str) -> bool {
    HEADS.gate.sort(word.as_bytes()) & QUALIFIES != 0
}

/// Whether a name is not masked: it has stars around all of it, as in Markdown, or none.
pub(super) fn is_unmasked(name: &str) -> bool {
    let inner = name.trim_matches('*');
    !inner.contains('*') && name.starts_with('*') == name.ends_with('*')
}

/// Whether the list contains a head exactly, and not only after words were removed.
pub(super) fn is_whole(head: &str) -> bool {
    // Each letter and digit counts in the list too.
    head.bytes().filter(u8::is_ascii_alphanumeric).count() <= HEADS.longest
        && may_be_head(head)
        && HEADS.by_words.contains_key(&plain(head))
}

/// A head in lowercase letters without accents, its words with one space between.
fn plain(head: &str) -> String {
    if head.bytes().all(|byte| byte.is_ascii_lowercase()) {
        return head.to_owned();
    }
    let mut out = String::with_capacity(head.len());
    let mut chars = head.chars().peekable();
    // Whether the last word is made of letters with dots between.
    let mut initials = true;
    let mut before = ' ';
    while let Some(c) = chars.next() {
        initials &= c == '.' || !before.is_alphabetic();
        let mut ahead = chars.clone();
        let one =
            ahead.next().is_some_and(char::is_alphabetic) && !ahead.next().is_some_and(char::is_alphabetic);
        if c == '.' && initials && before.is_alphabetic() && one {
            before = c;
            continue;
        }
        initials |= !c.is_alphabetic();
        let hump = c.is_uppercase()
            && (before.is_lowercase()
                || before.is_uppercase() && chars.peek().is_some_and(|next| next.is_lowercase()));
        if hump
            || before.is_ascii_digit() != c.is_ascii_digit() && before.is_lowercase() && c.is_ascii_digit()
        {
            push_blank(&mut out);
        }
        before = c;
        match c {
            'a'..='z' | '0'..='9' => out.push(c),
            'A'..='Z' => out.push(c.to_ascii_lowercase()),
            'ß' => out.push_str("ss"),
            'æ' | 'Æ' => out.push('a'),
            'œ' | 'Œ' => out.push_str("oe"),
            'º' | '°' => push_blank(&mut out),
            c if c.is_alphabetic() => out.extend(c.to_lowercase().map(bare)),
            '\u{300}'..='\u{36f}' => {}
            _ => push_blank(&mut out),
        }
    }
    out.truncate(out.trim_end_matches(' ').len());
    out
}

/// Appends a space unless there is one.
fn push_blank(out: &mut String) {
    if !out.is_empty() && !out.ends_with(' ') {
        out.push(' ');
    }
}

/// The word of lowercase Latin letters at the end of a text, without its accents; `None` where it contains other letters or a
/// capital, which may begin a word of its own.
fn bare_word<'a>(text: &[u8], word: &'a mut [u8; LONGEST_ACCENTED]) -> Option<&'a [u8]> {
    let (mut from, mut at) = (word.len(), text.len());
    loop {
        let (letter, bytes) = match text[..at] {
            [.., letter @ b'a'..=b'z'] => (letter, 1),
            [.., lead @ 0xc3..=0xc5, tail @ 0x80..=0xbf] => {
                let letter = BARE[usize::from(lead & 3) << 6 | usize::from(tail & 0x3f)];
                (Some(letter).filter(u8::is_ascii_lowercase)?, 2)
            }
            [.., b'A'..=b'Z' | 0x80..=0xff] => return None,
            _ => return Some(&word[from..]),
        };
        from = from.checked_sub(1)?;
        word[from] = letter;
        at -= bytes;
    }
}

/// The lowercase letters from U+0080 to U+017F without their accents; 0 for more than one letter, a capital, or no letter.
static BARE: LazyLock<[u8; 256]> = LazyLock::new(|| {
    let mut letters = [0; 256];
    for letter in ('\u{c0}'..'\u{180}').filter(|letter| letter.is_lowercase()) {
        let at = letter as usize;
        letters[(at >> 6 & 3) << 6 | at & 0x3f] = u8::try_from(bare(letter)).unwrap_or(0);
    }
    letters
});

/// A lowercase letter without its accent.
fn bare(letter: char) -> char {
    match letter {
        'à'..='å' | 'ā' | 'ă' | 'ą' => 'a',
        'ç' | 'ć' | 'č' => 'c',
        'ď' | 'đ' => 'd',
        'è'..='ë' | 'ē' | 'ė' | 'ę' | 'ě' => 'e',
        'ğ' => 'g',
        'ì'..='ï' | 'ī' | 'į' | 'ı' => 'i',
        'ł' => 'l',
        'ñ' | 'ń' | 'ň' => 'n',
        'ò'..='ö' | 'ø' | 'ő' => 'o',
        'ř' => 'r',
        'ś' | 'ş' | 'š' | 'ș' => 's',
        'ţ' | 'ť' | 'ț' => 't',
        'ù'..='ü' | 'ū' | 'ů' | 'ű' | 'ų' => 'u',
        'ý' | 'ÿ' => 'y',
        'ź' | 'ż' | 'ž' => 'z',
        other => other,
    }
}

/// How much the place of a value adds to the head itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A column or a field among others.
    Wide,
    /// A column alone: too little for a secret.
    Alone,
    /// A line `name: value`: too little for an identifier without a check that passes.
    Line,
    /// A name and a value with a space or a verb between: enough for an identifier with such a check, or with a distinctive
    /// form.
    Sentence,
    /// The same with other words between: enough for an identifier with a check digit, or letters in its form.
    Apart,
    /// The same, the last of them a verb or with a colon: enough for a password that looks like one, and for digits.
    Introduced,
}

/// The range of a cell's value that fits the meaning of its head, and the rule.
pub(super) fn cell(meant: Meaning, text: &str, place: Place) -> Option<((usize, usize), RuleId)> {
    if meant.is_empty() || text.len() > LONGEST_VALUE + 64 {
        return None;
    }
    let value = bare_value(text);
    if value.is_empty() || value.len() > LONGEST_VALUE || holds_placeholder(value) {
        return None;
    }
    let start = value.as_ptr() as usize - text.as_ptr() as usize;
    let whole = value.strip_suffix(".0").filter(|whole| whole.bytes().all(|byte| byte.is_ascii_digit()));
    meant.iter().find_map(|sense| {
        let column = &HEADS.columns[usize::from(sense.column)];
        let fits = match column.shape {
            None => {
                let apart = matches!(place, Place::Apart | Place::Introduced);
                let line = apart || matches!(place, Place::Line | Place::Sentence);
                let sure = RULES.has_check_digit(column.rule) || RULES.has_letters(column.rule);
                (!apart || sure && sense.trust == Trust::Sure)
                    && (!line || column.line || RULES.has_check(column.rule))
                    && column.fits(whole.unwrap_or(value), sense.trust != Trust::Sure || line && !column.line)
            }
            Some(Shape::Password) if place == Place::Introduced => is_secret(value, true, Trust::Weak),
            Some(_) if place == Place::Apart => false,
            Some(shape) if place == Place::Introduced && shape != Shape::Pin => false,
            Some(Shape::Phone) if place == Place::Sentence => {
                sense.trust == Trust::Sure && is_phone(value, true) && is_parted(value)
            }
            Some(Shape::Pin) if sense.trust == Trust::Weak => {
                matches!(place, Place::Sentence | Place::Introduced) && column.fits(value, false)
            }
            Some(Shape::Pin) => place != Place::Alone && column.fits(value, false),
            Some(_) if place == Place::Sentence => false,
            Some(Shape::Phone) if sense.trust == Trust::Qualified => {
                is_phone(value, true) && is_parted(value)
            }
            Some(Shape::Phone) => is_phone(whole.unwrap_or(value), sense.trust != Trust::Sure),
            Some(Shape::Secret) if place == Place::Alone => {
                let sign = |byte: u8| byte.is_ascii_alphanumeric() || b"_-+/=".contains(&byte);
                sense.trust == Trust::Sure
                    && value.len() >= 24
                    && value.bytes().all(sign)
                    && is_secret(value, false, Trust::Weak)
            }
            Some(shape @ (Shape::Password | Shape::Secret)) => {
                place != Place::Alone && is_secret(value, shape == Shape::Password, sense.trust)
            }
            Some(Shape::Name) => place != Place::Line && is_name(value),
            Some(Shape::Address) => place != Place::Line && is_address(value),
        };
        fits.then_some(((start, start + value.len()), column.rule))
    })
}

/// A value without its markup: quotes, tags, the marks of Textile and Jira.
fn bare_value(text: &str) -> &str {
    let blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{a0}');
    let mut value = text.trim_matches(blank);
    for sign in ["<. ", ">. ", "=. "] {
        value = value.strip_prefix(sign).map_or(value, |rest| rest.trim_matches(blank));
    }
    if value.starts_with('<') {
        value = within_tags(value).trim_matches(blank);
    }
    for quote in ["\\\"", "\"", "'", "`", "&quot;", "&#39;", "**"] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner.trim_matches(blank);
        }
    }
    value
}

/// The text between an opening and a closing tag, if there is nothing else.
fn within_tags(text: &str) -> &str {
    let inner = || text.strip_prefix('<')?.strip_suffix('>')?.split_once('>')?.1.rsplit_once("</");
    inner().map_or(text, |(inner, _)| within_tags(inner.trim()))
}

/// Whether every value under a head has digits.
pub(super) fn needs_digits(meant: Meaning) -> bool {
    let shape = |sense: &Sense| HEADS.columns[usize::from(sense.column)].shape;
    meant.iter().all(|sense| matches!(shape(sense), None | Some(Shape::Phone)))
}

/// Whether a head is enough for a column that stands alone.
pub(super) fn speaks_alone(meant: Meaning) -> bool {
    meant.iter().any(|sense| HEADS.columns[usize::from(sense.column)].speaks_alone(sense))
}

/// Whether a head has one meaning only.
pub(super) fn is_sure(meant: Meaning) -> bool {
    meant.iter().any(|sense| sense.trust == Trust::Sure)
}

/// Whether a head can only mean a secret.
pub(super) fn only_secret(meant: Meaning) -> bool {
    meant.iter().all(|sense| HEADS.columns[usize::from(sense.column)].is_secret())
}

/// Whether the form is enough on a line, where there is no check digit.
pub(super) fn needs_no_verb(meant: Meaning) -> bool {
    meant.iter().any(|sense| HEADS.columns[usize::from(sense.column)].line)
}

/// Whether a head can only mean the digits of a PIN.
pub(super) fn only_pin(meant: Meaning) -> bool {
    meant.iter().all(|sense| HEADS.columns[usize::from(sense.column)].shape == Some(Shape::Pin))
}

impl Column {
    fn speaks_alone(&self, sense: &Sense) -> bool {
        !self.is_secret() || self.shape == Some(Shape::Secret) && sense.trust == Trust::Sure
    }

    fn is_secret(&self) -> bool {
        self.shape.is_some_and(Shape::is_secret)
    }

    fn fits(&self, value: &str, weak: bool) -> bool {
        if value.len() > 64 {
            return false;
        }
        let form = self.compiled.get_or_init(|| {
            let whole = format!("^(?:{})$", self.form);
            RegexBuilder::new(&whole).case_insensitive(true).unicode(false).build().ok()
        });
        if !form.as_ref().is_some_and(|form| form.is_match(value)) {
            return false;
        }
        if !weak || self.line {
            return true;
        }
        let plain: Vec<u8> = value.bytes().filter(u8::is_ascii_alphanumeric).collect();
        // The separator of a Finnish code gives the century.
        RULES.passes(self.rule, &plain) || RULES.passes(self.rule, value.as_bytes())
    }
}

/// 6 to 15 digits with the separators of telephone numbers. Digits alone may be a count: such a value needs a leading
/// zero, or more digits than counts have.
fn is_phone(value: &str, weak: bool) -> bool {
    let text: String =
        value.chars().map(|c| if matches!(c, '\u{a0}' | '\u{202f}') { ' ' } else { c }).collect();
    let text = text.split_once(['x', 'e']).map_or(&*text, |(number, _)| number.trim_end());
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    let rest = text.strip_prefix('+').unwrap_or(text);
    let signs = |c: char| c.is_ascii_digit() || matches!(c, ' ' | '(' | ')' | '.' | '/' | '-' | '\u{2011}');
    let numeric = rest.starts_with(|c: char| c.is_ascii_digit() || c == '(')
        && rest.ends_with(|c: char| c.is_ascii_digit())
        && rest.chars().all(signs);
    if !numeric || !(6..=15).contains(&digits) || text.contains(" -") || text.len() > 32 {
        return false;
    }
    let bytes = text.as_bytes();
    // A date; a decimal number.
    if bytes.len() >= 10 && bytes[4] == b'-' && bytes[7] == b'-' && matches!(&bytes[..2], b"19" | b"20") {
        return false;
    }
    let points = bytes.iter().filter(|byte| **byte == b'.').count();
    // No decimal number begins with a zero and another digit.
    let zero = bytes[0] == b'0' && bytes[1].is_ascii_digit();
    if points == 1 && digits + 1 == bytes.len() && !zero {
        return false;
    }
    if digits < bytes.len() || bytes[0] == b'0' {
        return true;
    }
    if weak { (9..=13).contains(&digits) } else { (8..=13).contains(&digits) }
}

/// Whether a value is written as only telephone numbers are: with a leading plus or zero, or with spaces and hyphens within.
fn is_parted(value: &str) -> bool {
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    digits >= 8 && (value.starts_with(['+', '0', '(']) || value.contains([' ', '-']))
}

/// The form of a password or key whose only evidence is its head: no word, path, template, date, number, call.
fn is_secret(value: &str, password: bool, trust: Trust) -> bool {
    let bytes = value.as_bytes();
    if bytes.len() < 6 || bytes.iter().any(u8::is_ascii_whitespace) || HEADS.no_secret.holds(bytes) {
        return false;
    }
    let count = |test: fn(&u8) -> bool| bytes.iter().filter(|byte| test(byte)).count();
    let (lower, upper, digit) =
        (count(u8::is_ascii_lowercase), count(u8::is_ascii_uppercase), count(u8::is_ascii_digit));
    let joint = count(|byte| b"_.-/:|".contains(byte));
    let other = bytes.len() - value.bytes().filter(u8::is_ascii).count();
    let symbol = bytes.len() - lower - upper - digit - joint - other;
    // Two stars are left by a mask, whatever is next to them.
    let masked =
        value.contains("**") || count(|byte| b"*xX.-#".contains(byte)) == bytes.len() || other == bytes.len();
    let around = [("[", "]"), ("<", ">"), ("${", "}"), ("{{", "}}"), ("%", "%"), ("(", ")"), ("^", "$")];
    let escaped = value.contains("\\u");
    let template = around.iter().any(|(open, close)| value.starts_with(open) && value.ends_with(close))
        || value.starts_with('$') && symbol == 1;
    let code = value.contains("=>")
        || value.contains("://")
        || ["--", "arn:", "#/"].iter().any(|start| value.starts_with(start))
        || (value.contains('(') || value.contains('[')) && value.ends_with([')', ']', ',', ';']);
    let uuid = bytes.len() == 36 && count(|byte| *byte == b'-') == 4 && count(u8::is_ascii_hexdigit) == 32;
    let number = lower + upper == 0 && symbol == 0 || value.parse::<f64>().is_ok();
    let path = joint > 0 && value.contains(['/', '\\']) && (digit == 0 || upper == 0);
    if masked || escaped || template || code || uuid && (password || trust != Trust::Sure) || number || path {
        return false;
    }
    // Words with separators between them, at most one number after each: `customer_segment_2024`.
    let worded = symbol == 0
        && value.split(['_', '.', '-', '/', ':', '|']).all(|part| {
            part.chars().all(char::is_alphabetic)
                || part.len() <= 4 && part.bytes().all(|byte| byte.is_ascii_digit())
        });
    if worded {
        // `tiger-blue-63`, `WkWqiftL`
        let phrase = joint > 1 && digit > 0 && joint == count(|byte| *byte == b'-');
        let looks = match password {
            true => joint == 0 && (lower == bytes.len() || is_mixed(bytes)) || phrase,
            false => joint == 0 && bytes.len() >= 16 && is_mixed(bytes),
        };
        return trust == Trust::Sure && looks;
    }
    let classes = [lower, upper, digit, symbol].iter().filter(|count| **count > 0).count();
    let random = classes >= 3 || bytes.len() >= 20 && digit > 0 && lower + upper > 0;
    match trust {
        Trust::Sure => classes >= 2 || bytes.len() >= 16,
        Trust::Qualified if password => bytes.len() >= 8 && classes >= 2 && digit + symbol > 0,
        Trust::Qualified | Trust::Weak => bytes.len() >= 8 && random,
    }
}

/// Whether a letter belongs to a script without spaces between words: Japanese, Chinese.
pub(super) fn joins_words(letter: char) -> bool {
    matches!(letter, '\u{3040}'..='\u{30ff}' | '\u{4e00}'..='\u{9fff}')
}

/// Whether there are capitals among the letters as in no name of several words.
fn is_mixed(text: &[u8]) -> bool {
    let long = text.len() >= 10;
    if long && text.iter().any(u8::is_ascii_uppercase) && !is_natural_language(text) {
        return text.iter().any(u8::is_ascii_lowercase);
    }
    let capitals = |word: &[u8]| !long && word.len() > 2 && word[..2].iter().all(u8::is_ascii_uppercase);
    let mut words = text.chunk_by(|a, b| !(a.is_ascii_lowercase() && b.is_ascii_uppercase()));
    let count = words.clone().count();
    count > 1 && words.any(|word| count > 2 && word.len() < 3 || capitals(word))
}

/// Two to five words that begin with a capital.
fn is_name(value: &str) -> bool {
    let words: Vec<&str> = value.split(' ').filter(|word| !word.is_empty()).collect();
    let lettered =
        |word: &str| word.chars().all(|c| c.is_alphabetic() || matches!(c, '\'' | '’' | '-' | '.'));
    (1..=5).contains(&words.len())
        && words.iter().all(|word| lettered(word))
        && words.iter().filter(|word| word.starts_with(char::is_uppercase)).count() * 2 > words.len()
        && value.chars().any(char::is_lowercase)
}

/// Words with a short number before or after.
fn is_address(value: &str) -> bool {
    let numbered = value.split([' ', ',']).any(|word| {
        word.len() <= 5
            && word.starts_with(|c: char| c.is_ascii_digit())
            && word.chars().all(char::is_alphanumeric)
    });
    numbered && value.contains(' ') && value.chars().filter(|c| c.is_alphabetic()).count() >= 5
}

/// Whether any head uses this rule.
#[cfg(test)]
pub(super) fn has_rule(id: &str) -> bool {
    HEADS.columns.iter().any(|column| RULES.list[usize::from(column.rule)].id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(head: &str) -> Vec<&str> {
        let rule = |sense: &Sense| {
            let rule = HEADS.columns[usize::from(sense.column)].rule;
            RULES.list[usize::from(rule)].id.as_str()
        };
        meaning(head).iter().map(rule).collect()
    }

    #[test]
    fn a_head_is_read_by_its_last_words_or_its_first_ones() {
        for (head, rule) in [
            ("bsn", "nl-bsn"),
            ("client_home_phone", "phone-labelled"),
            ("numéro contribuinte", "pt-nif"),
            ("nhsNumber", "uk-nhs"),
            ("phone_1", "phone-labelled"),
            ("Fødselsnummer", "no-birth-number"),
            ("DB_PASSWORD", "password"),
            ("nationalRegisterNumber", "be-register"),
            ("N° SS", "fr-nir"),
            ("soc_sec_nbr", "ssn"),
            ("N.I.E.", "es-nif"),
            ("Kennwort (vom Kunden)", "password"),
        ] {
            assert_eq!(rules(head).first(), Some(&rule), "{head}");
        }
        for head in [
            "phone_model",
            "phone_sales",
            "password_policy",
            "card_count",
            "password_changed_at",
            "email_open_rate",
            "token_id",
            "amount",
            "",
        ] {
            assert_eq!(rules(head), Vec::<&str>::new(), "{head}");
        }
    }

    #[test]
    fn a_word_within_a_word_is_seen_by_its_capital() {
        for text in ["userSSN", "phoneNr", "clientPhoneNumber", "phoneNrID", "theSsn", "myIban", "PhoneNO"] {
            assert!(may_be_head(text) && !meaning(text).is_empty(), "{text}");
        }
        for text in ["ENOENT", "classNames", "bandSpan", "sins"] {
            assert!(!may_be_head(text), "{text}");
        }
        assert!(HEADS.gate.abroad.is_some());
        let taken = HEADS.gate.words.iter().filter(|known| known.hash != 0).count();
        assert!(taken * 2 < Gate::PLACES, "{taken}");
    }

    #[test]
    fn every_row_names_a_rule_and_compiles_and_weak_words_have_a_check() {
        for column in &HEADS.columns {
            let rule = &RULES.list[usize::from(column.rule)].id;
            let form = RegexBuilder::new(&column.form).unicode(false).build();
            assert!(form.is_ok() && (column.shape.is_some() || !column.form.is_empty()), "{rule}");
        }
        let file: File = toml::from_str(include_str!("rules/heads.toml")).unwrap();
        for row in &file.head {
            assert!(RULES.list.iter().any(|rule| rule.id == row.rule), "{}", row.rule);
            let checked = RULES.list.iter().any(|rule| rule.id == row.rule && !rule.number.is_empty());
            assert!(row.weak.is_empty() || checked || row.shape.is_some() || row.line, "{}", row.rule);
            for word in row.words.iter().chain(&row.weak) {
                assert!(plain(word) == *word && may_be_head(word), "{word}");
            }
        }
    }

    #[test]
    fn a_cell_needs_the_form_and_under_a_weak_head_the_check() {
        let found = |head: &str, value: &str| cell(meaning(head), value, Place::Wide).is_some();
        for (head, value) in [
            ("bsn", "163270703.0"),
            ("phone", "087 123 4567"),
            ("phone", "030.243033"),
            ("mobile", "353871234567"),
            ("card", "4111111111111111"),
            ("password", "swordfish"),
            ("api_key", "kQ9x00017Lm2Tz8Rw"),
        ] {
            assert!(found(head, value), "{head} {value}");
        }
        for (head, value) in [
            ("bsn", "1632.70"),
            ("phone", "2024-01-02"),
            ("mobile", "4123314"),
            ("card", "4111111111111112"),
            ("sin", "0.841471"),
            ("token", "hello_world"),
            ("token", "swordfish"),
            ("password", "${DB_PASSWORD}"),
            ("key", "order.total"),
        ] {
            assert!(!found(head, value), "{head} {value}");
        }
        assert!(cell(meaning("password"), "swordfish", Place::Alone).is_none());
    }
}
