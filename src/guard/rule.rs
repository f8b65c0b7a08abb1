//! The rules, as data. Each has examples that it must match and counter-examples that it must not; tests run them.
//!
//! Two sorts share one form. A *token rule* has patterns and needs no code: most providers' keys are of this sort. A
//! *detector* is code in [`super::scan`] that a rule describes: its kind, context words and examples.

use std::collections::{BTreeSet, HashMap};
use std::sync::{LazyLock, OnceLock};

use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::hir::literal::Extractor;
use serde::{Deserialize, Serialize};

use super::identifier::{Identifier, Number};
use super::{Evidence, Kind};

const FILES: &[&str] = &[
    include_str!("rules/personal.toml"),
    include_str!("rules/network.toml"),
    include_str!("rules/credentials.toml"),
    include_str!("rules/providers.toml"),
];

/// A rule as it appears in its file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Stable name, as reports show it.
    pub id: String,
    /// What it finds.
    pub kind: Kind,
    /// One line for people: what it is and how it is verified.
    pub what: String,
    /// Regular expressions of tokens at the start of a word, each with two literals or more first; empty for a detector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<String>,
    /// A further condition on a token.
    #[serde(default)]
    pub check: Check,
    /// Forms of its tokens that need no fixed prefix: any of these.
    #[serde(default, skip_serializing)]
    pub form: Vec<TokenForm>,
    /// The forms of its identifiers: any of these.
    #[serde(default, skip_serializing)]
    pub number: Vec<Number>,
    /// The evidence for every candidate of the rule; a detector may add to it.
    #[serde(default = "form_and_word")]
    pub evidence: Vec<Evidence>,
    /// Words that must or may come before the value; the detector decides which.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<String>,
    /// Texts in which it must find something. A `·` is removed first: it keeps other scanners quiet about this
    /// repository.
    pub examples: Vec<String>,
    /// Texts in which it must find nothing.
    #[serde(default)]
    pub counter_examples: Vec<String>,
}

/// A further condition on a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// None: the prefix is evidence enough.
    #[default]
    None,
    /// At least a letter and a digit, and not a word with dashes: the prefix is short.
    Random,
    /// The part after its last dash switches between uppercase letters, lowercase letters and digits as only random text does.
    Shuffled,
    /// One of the rule's context words is within the 64 characters before it.
    Context,
    /// It is one of the rule's identifiers.
    Number,
}

/// A token that is recognised by its middle, its end or what is joined to it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenForm {
    /// Where it begins.
    #[serde(default)]
    pub(super) place: Place,
    /// The minimum and maximum length of its word (or its run of base64).
    len: [usize; 2],
    /// Characters one of which is at an offset in it, and a fixed text at another: they are checked first.
    #[serde(default)]
    sign: Option<(usize, Bytes)>,
    #[serde(default)]
    mark: Option<(usize, String)>,
    /// The character right before it, and a regular expression of the text before that; its group is part of the token.
    #[serde(default)]
    behind: Option<(char, LazyRegex)>,
    /// A regular expression for the whole, and what it begins with.
    form: LazyRegex,
    #[serde(skip)]
    first: Option<Bytes>,
    /// A further condition on the word.
    #[serde(default)]
    pub(super) check: Check,
}

/// A set of bytes.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(from = "String")]
pub(super) struct Bytes([u64; 4]);

impl Bytes {
    /// Those that a match of a built-in pattern may begin with, unless it may begin with any.
    pub(super) fn first(pattern: &str) -> Option<Self> {
        let hir =
            regex_syntax::ParserBuilder::new().unicode(false).utf8(false).build().parse(pattern).ok()?;
        let mut extractor = Extractor::new();
        let begins =
            extractor.limit_class(255).limit_repeat(1).limit_literal_len(1).limit_total(255).extract(&hir);
        begins.literals()?.iter().map(|begin| begin.as_bytes().first().copied()).collect()
    }

    #[inline]
    pub(super) fn holds(&self, byte: Option<&u8>) -> bool {
        byte.is_some_and(|byte| self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1)
    }
}

impl FromIterator<u8> for Bytes {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Self {
        let mut set = [0; 4];
        bytes.into_iter().for_each(|byte| set[usize::from(byte >> 6)] |= 1 << (byte & 63));
        Self(set)
    }
}

impl From<String> for Bytes {
    fn from(signs: String) -> Self {
        signs.bytes().collect()
    }
}

/// Where a token begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Place {
    /// At a word of letters, digits, `_` and `-`.
    #[default]
    Word,
    /// At the first of the words that `.`, `:`, `/`, `~` and the like join to it.
    Run,
    /// At a run of base64.
    Base64,
}

impl TokenForm {
    /// How far before a word its other part may begin.
    const BEFORE: usize = 64;
    /// How many bytes are searched from the beginning of a text.
    const LONGEST: usize = 512;

    fn begin(&self, start: usize, at: usize) -> usize {
        if self.place == Place::Run { start } else { at }
    }

    /// Whether a few characters fit at a word in a run that begins at `start`; nearly always one does not.
    #[inline]
    pub(super) fn may_be(&self, text: &[u8], start: usize, at: usize) -> bool {
        let here = &text[self.begin(start, at)..];
        self.first.is_none_or(|first| first.holds(here.first()))
            && self.sign.is_none_or(|(at, signs)| signs.holds(here.get(at)))
            && self.behind.as_ref().is_none_or(|(sign, _)| text[..at].ends_with(&[*sign as u8]))
            && self.mark.as_ref().is_none_or(|(at, mark)| {
                here.get(*at..).is_some_and(|rest| rest.starts_with(mark.as_bytes()))
            })
    }

    /// The start and end of the token whose word is at `at..end` in a run that begins at `start`, where one may be.
    pub(super) fn find(
        &self,
        text: &[u8],
        (start, at, end): (usize, usize, usize),
    ) -> Option<(usize, usize)> {
        let begin = self.begin(start, at);
        let here = &text[begin..text.len().min(begin + Self::LONGEST)];
        let mut from = begin;
        if let Some((_, before)) = &self.behind {
            let left = &text[(at - 1).saturating_sub(Self::BEFORE)..at - 1];
            let groups = before.get().captures(left)?;
            from -= groups.get(1).map_or(0, |group| left.len() - group.start() + 1);
        }
        let to = begin + self.form.get().find(here)?.end();
        (to >= end || self.place == Place::Run).then_some((from, to))
    }
}

/// A regular expression over bytes that is built on first use: most programs use few of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct LazyRegex {
    text: String,
    built: OnceLock<Regex>,
}

/// A regular expression over bytes that is part of the program.
#[expect(clippy::expect_used, reason = "the text is part of the program; a test uses every pattern")]
pub(super) fn regex(text: &str) -> Regex {
    RegexBuilder::new(text).unicode(false).build().expect("a built-in pattern builds")
}

/// A regular expression over bytes, built on first use.
macro_rules! pattern {
    ($text:expr) => {{
        static PATTERN: std::sync::LazyLock<regex::bytes::Regex> =
            std::sync::LazyLock::new(|| $crate::guard::rule::regex($text));
        &*PATTERN
    }};
}
pub(super) use pattern;

impl LazyRegex {
    pub(super) fn get(&self) -> &Regex {
        self.built.get_or_init(|| regex(&self.text))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn is_match(&self, text: &[u8]) -> bool {
        self.get().is_match(text)
    }
}

impl From<String> for LazyRegex {
    fn from(text: String) -> Self {
        Self { text, built: OnceLock::new() }
    }
}

impl From<LazyRegex> for String {
    fn from(pattern: LazyRegex) -> Self {
        pattern.text
    }
}

impl PartialEq for LazyRegex {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for LazyRegex {}

fn form_and_word() -> Vec<Evidence> {
    vec![Evidence::Form, Evidence::Word]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    rule: Vec<Rule>,
}

/// Number of a rule in [`Rules::list`].
pub(super) type RuleId = u16;

/// The rule of known values: no pattern and no example, because its values come from the server and the policy.
pub(super) const KNOWN: RuleId = RuleId::MAX;

/// The rule of values that a run's code received for placeholders.
pub(super) const RESOLVED: RuleId = KNOWN - 1;

/// Name and description of the rule of a finding.
pub(super) fn described(id: RuleId) -> (&'static str, &'static str) {
    match id {
        KNOWN => (
            "known-secret",
            "a value that the server holds or that the policy names, in one of several forms",
        ),
        RESOLVED => (
            "resolved-value",
            "a value that the run's code was given for a placeholder, in one of several forms",
        ),
        _ => (&RULES.list[usize::from(id)].id, &RULES.list[usize::from(id)].what),
    }
}

macro_rules! detectors {
    ($($field:ident)*) => {
        /// The rules that the code names, by their ids with `_` for `-`.
        #[derive(Debug)]
        pub(super) struct Detectors { $(pub(super) $field: RuleId,)* }

        impl Detectors {
            #[cfg(test)]
            const ALL: &'static [&'static str] = &[$(stringify!($field),)*];

            fn new(by_id: &HashMap<String, RuleId>) -> Self {
                let find = |field: &str| by_id.get(&field.replace('_', "-")).copied().unwrap_or_default();
                Self { $($field: find(stringify!($field)),)* }
            }
        }
    };
}

detectors! {
    address aws_secret basic_header bearer birth_date card card_labelled command_line_user cookie database_url
    email iban iban_labelled ipv4 ipv6 mac
    person password password_told phone_international phone_labelled phone_national pin
    prefixed_random private_key secret secret_near_vendor secret_near_word ssn ssn_labelled
    url_credentials web_hook
}

/// All rules, compiled.
pub(super) struct Rules {
    pub(super) list: Vec<Rule>,
    pub(super) detectors: Detectors,
    tokens: Vec<Token>,
    /// By the first two bytes of a token: range of `tokens`.
    by_start: Vec<(u16, u16)>,
    /// By rule, its context words.
    words: Vec<Words>,
    /// The context words of all identifiers.
    of_identifiers: Words,
    /// By the length of a word, up to [`LONGEST_FORM`], the forms of tokens that it may have; then those of a run of base64.
    forms: [Vec<Vec<(RuleId, TokenForm)>>; 2],
    /// By rule, its identifiers.
    identifiers: Vec<Vec<Identifier>>,
    /// By length, the identifiers that are looked for: the rule, and the index in it.
    by_len: Vec<Vec<(RuleId, usize)>>,
}

/// Words of at least this length all have the same forms of tokens.
const LONGEST_FORM: usize = 96;
/// The longest identifier that is looked for among digits.
pub(super) const LONGEST_NUMBER: usize = 18;

/// The built-in rules; parsed once.
pub(super) static RULES: LazyLock<Rules> = LazyLock::new(Rules::load);

impl Rules {
    #[expect(clippy::expect_used, reason = "the files are part of the program; a test loads them")]
    fn load() -> Self {
        let mut list = Vec::new();
        for file in FILES {
            list.extend(toml::from_str::<RuleFile>(file).expect("a built-in rule file parses").rule);
        }
        let mut tokens = Vec::new();
        let mut by_id = HashMap::new();
        for (at, rule) in list.iter().enumerate() {
            let id = at as RuleId;
            by_id.insert(rule.id.clone(), id);
            tokens.extend(rule.patterns.iter().map(|pattern| Token::new(id, pattern)));
        }
        tokens.sort_by_key(Token::place);
        let mut by_start = vec![(0, 0); 1 << 14];
        for (at, token) in tokens.iter().enumerate() {
            let range: &mut (u16, u16) = &mut by_start[token.place()];
            if range.1 == 0 {
                range.0 = at as u16;
            }
            range.1 = at as u16 + 1;
        }
        let words = list.iter().map(|rule| Words::new(&rule.context)).collect();
        let named = list.iter().filter(|rule| !rule.number.is_empty());
        let named: BTreeSet<&String> = named.flat_map(|rule| &rule.context).collect();
        let of_identifiers = Words::new(named);
        let identifiers = list.iter().map(|rule| rule.number.iter().map(Identifier::new).collect()).collect();
        let mut by_len = vec![Vec::new(); LONGEST_NUMBER + 1];
        for (rule, id) in list.iter().zip(0..) {
            for (at, row) in rule.number.iter().enumerate() {
                (row.len..=row.longest.max(row.len)).for_each(|len| by_len[len].push((id, at)));
            }
        }
        let mut forms = [(); 2].map(|()| vec![Vec::new(); LONGEST_FORM + 1]);
        for (rule, id) in list.iter().zip(0..) {
            for mut form in rule.form.iter().cloned() {
                form.first = Bytes::first(&form.form.text);
                let lengths = form.len[0]..=form.len[1].min(LONGEST_FORM);
                let forms = &mut forms[usize::from(form.place == Place::Base64)];
                lengths.for_each(|len| forms[len].push((id, form.clone())));
            }
        }
        let detectors = Detectors::new(&by_id);
        Self { list, detectors, tokens, by_start, words, of_identifiers, forms, identifiers, by_len }
    }

    /// Whether letters and digits are an identifier of a rule.
    pub(super) fn passes(&self, rule: RuleId, text: &[u8]) -> bool {
        self.identifiers[usize::from(rule)].iter().any(|one| one.passes(text))
    }

    /// Whether a rule has a check beyond the form.
    pub(super) fn has_check(&self, rule: RuleId) -> bool {
        !self.identifiers[usize::from(rule)].is_empty()
    }

    /// Whether a rule has a check digit.
    pub(super) fn has_check_digit(&self, rule: RuleId) -> bool {
        self.has_check(rule) && self.identifiers[usize::from(rule)].iter().all(Identifier::has_check_digit)
    }

    /// Whether letters are in the form of a rule where other numbers have digits.
    pub(super) fn has_letters(&self, rule: RuleId) -> bool {
        self.has_check(rule) && self.identifiers[usize::from(rule)].iter().all(Identifier::has_letters)
    }

    /// The rules that accept these digits and letters as an identifier, and their rows.
    pub(super) fn numbers<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (RuleId, &'a Number)> + 'a {
        let known = self.by_len[text.len()].iter();
        let known = known.map(|(rule, at)| (*rule, &self.identifiers[usize::from(*rule)][*at]));
        known.filter(|(_, row)| row.passes(text)).map(|(rule, row)| (rule, &row.row))
    }

    /// The forms of tokens that a word (or a run of base64) of a length may have.
    #[inline]
    pub(super) fn forms(&self, len: usize, base64: bool) -> &[(RuleId, TokenForm)] {
        &self.forms[usize::from(base64)][len.min(LONGEST_FORM)]
    }

    /// The token rules whose pattern can begin with these two bytes.
    pub(super) fn tokens(&self, first: u8, second: u8) -> &[Token] {
        if first >= 0x80 || second >= 0x80 {
            return &[];
        }
        let (from, to) = self.by_start[usize::from(first) << 7 | usize::from(second)];
        &self.tokens[usize::from(from)..usize::from(to)]
    }

    /// Whether a context word of `rule` is in `before`, not as the tail of a longer word.
    pub(super) fn has_context(&self, rule: RuleId, before: &[u8]) -> bool {
        self.words[usize::from(rule)].stands_in(before)
    }

    /// Whether a context word of any identifier is in `before`.
    pub(super) fn may_name_identifier(&self, before: &[u8]) -> bool {
        self.of_identifiers.stands_in(before)
    }

    /// The same, but not as the head of a longer word either: `googletest` is not `google`.
    pub(super) fn has_whole_context(&self, rule: RuleId, before: &[u8]) -> bool {
        let mut found = false;
        self.words[usize::from(rule)].places_in(before, |_, end| {
            found = !before.get(end).is_some_and(u8::is_ascii_lowercase);
            !found
        });
        found
    }

    /// The text after the last context word of `rule` in `before`.
    pub(super) fn behind_context<'a>(&self, rule: RuleId, before: &'a [u8]) -> Option<&'a [u8]> {
        let mut last = None;
        self.words[usize::from(rule)].places_in(before, |_, end| {
            last = last.max(Some(end));
            true
        });
        last.map(|end| &before[end..])
    }

    /// The place of the first context word of `rule` in `text`.
    pub(super) fn context(&self, rule: RuleId, text: &[u8]) -> Option<(usize, usize)> {
        let mut found = None;
        self.words[usize::from(rule)].places_in(text, |start, end| {
            found = Some((start, end));
            false
        });
        found
    }
}

/// Context words.
struct Words {
    /// Sorted by their first bytes; a word that is shorter than [`BEGIN`] once for each byte that may follow.
    list: Vec<(usize, String)>,
    /// A bit for each pair of a word's first three bytes: the first and second, the second and third, the third and first.
    pairs: [[u32; 32]; 3],
}

/// How many bytes are compared first.
const BEGIN: usize = 3;

impl Words {
    fn new<'a>(words: impl IntoIterator<Item = &'a String>) -> Self {
        let mut list: Vec<(usize, String)> = words
            .into_iter()
            .flat_map(|word| {
                let open = 1 << (5 * BEGIN.saturating_sub(word.len()));
                let begin =
                    word.bytes().take(BEGIN).fold(0, |begin, byte| begin << 5 | usize::from(byte & 31));
                (0..open).map(move |behind| (begin * open + behind, word.clone()))
            })
            .collect();
        list.sort_unstable();
        let mut pairs = [[0; 32]; 3];
        for (begin, _) in &list {
            for ((first, second), pairs) in Self::pairs(*begin).into_iter().zip(&mut pairs) {
                pairs[first] |= 1 << second;
            }
        }
        Self { list, pairs }
    }

    fn pairs(begin: usize) -> [(usize, usize); 3] {
        let [a, b, c] = [begin >> 10, begin >> 5 & 31, begin & 31];
        [(a, b), (b, c), (c, a)]
    }

    /// Whether any is in a text.
    #[inline]
    fn stands_in(&self, text: &[u8]) -> bool {
        let mut found = false;
        self.places_in(text, |_, _| {
            found = true;
            false
        });
        found
    }

    /// The places of those that are in a text, except for tails of longer words; `each` says whether to go on.
    #[inline]
    fn places_in(&self, text: &[u8], mut each: impl FnMut(usize, usize) -> bool) {
        let mut begin = 0;
        let mut ahead = text.iter().map(|byte| usize::from(byte & 31)).chain([0; BEGIN - 1]);
        ahead.by_ref().take(BEGIN - 1).for_each(|byte| begin = begin << 5 | byte);
        for (at, byte) in ahead.enumerate() {
            begin = (begin << 5 | byte) & 0x7fff;
            let there =
                |((first, second), pairs): ((usize, usize), &[u32; 32])| pairs[first] >> second & 1 == 1;
            if !Self::pairs(begin).into_iter().zip(&self.pairs).all(there) || is_glued(text, at) {
                continue;
            }
            let first = self.list.partition_point(|(other, _)| *other < begin);
            for (_, word) in self.list[first..].iter().take_while(|(other, _)| *other == begin) {
                let there = text.get(at..at + word.len());
                let there = there.is_some_and(|there| there.eq_ignore_ascii_case(word.as_bytes()));
                if there && !each(at, at + word.len()) {
                    return;
                }
            }
        }
    }
}

/// Whether the word that begins here is the tail of a longer one: `hotel` is not `tel`, `userTel` is.
pub(super) fn is_glued(text: &[u8], start: usize) -> bool {
    let Some(left) = start.checked_sub(1).map(|at| text[at]) else { return false };
    left.is_ascii_alphabetic() && !(left.is_ascii_lowercase() && text[start].is_ascii_uppercase())
}

/// A token that is recognised by its beginning.
pub(super) struct Token {
    pub(super) rule: RuleId,
    /// The literal text that it begins with.
    begin: String,
    form: LazyRegex,
}

impl Token {
    fn new(rule: RuleId, pattern: &str) -> Self {
        let len = pattern.find(['[', '(', '{', '?', '*', '+', '|']).unwrap_or(pattern.len());
        let (begin, form) = (pattern[..len].replace('\\', ""), format!("^(?:{pattern})").into());
        Self { rule, begin, form }
    }

    /// The place of its first two bytes in [`Rules::by_start`].
    fn place(&self) -> usize {
        self.begin.bytes().take(2).fold(0, |place, byte| place << 7 | usize::from(byte))
    }

    /// The end of the token that begins at `from`, which ends a word.
    pub(super) fn find(&self, text: &[u8], from: usize) -> Option<usize> {
        let here = Some(&text[from..]).filter(|here| here.starts_with(self.begin.as_bytes()))?;
        let end = self.form.get().find(here)?.end();
        let ends = here.get(end).is_none_or(|next| !next.is_ascii_alphanumeric() && *next != b'_');
        ends.then_some(from + end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex_syntax::ParserBuilder;
    use regex_syntax::hir::{Class, Hir, HirKind};

    #[test]
    fn every_rule_without_patterns_is_one_that_the_code_or_a_head_names() {
        let coded = RULES.list.iter().filter(|rule| rule.patterns.is_empty() && rule.form.is_empty());
        let described: Vec<&str> = coded.map(|rule| rule.id.as_str()).collect();
        let detectors: Vec<String> = Detectors::ALL.iter().map(|field| field.replace('_', "-")).collect();
        for id in &described {
            let known = detectors.iter().any(|detector| detector == id)
                || crate::guard::heads::has_rule(id)
                || RULES.by_len.iter().flatten().any(|(rule, _)| super::described(*rule).0 == *id);
            assert!(known, "no code and no head for rule `{id}`");
        }
        for id in &detectors {
            assert!(described.contains(&id.as_str()), "no rule for detector `{id}`");
        }
    }

    /// A text that matches the pattern, deterministic by seed; of maximum length if `long`.
    fn sample(pattern: &str, seed: usize, long: bool) -> String {
        fn write(hir: &Hir, at: &mut usize, (odd, long): (bool, bool), out: &mut Vec<u8>) {
            let mut next = |count: usize| {
                *at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (*at >> 33) % count
            };
            match hir.kind() {
                HirKind::Literal(text) => out.extend(&text.0),
                HirKind::Class(Class::Bytes(class)) => {
                    let set: Vec<u8> =
                        class.ranges().iter().flat_map(|range| range.start()..=range.end()).collect();
                    let plain: Vec<u8> = set.iter().copied().filter(u8::is_ascii_alphanumeric).collect();
                    let set = if plain.is_empty() || odd { set } else { plain };
                    out.push(set[next(set.len())]);
                }
                HirKind::Repetition(repeat) => {
                    let most = repeat.max.unwrap_or(repeat.min + 1);
                    for _ in 0..if long { most } else { repeat.min } {
                        write(&repeat.sub, at, (odd, long), out);
                    }
                }
                HirKind::Concat(parts) => parts.iter().for_each(|part| write(part, at, (odd, long), out)),
                HirKind::Alternation(ways) => {
                    let way = next(ways.len());
                    write(&ways[way], at, (odd, long), out);
                }
                other => panic!("{other:?} is not sampled"),
            }
        }
        let hir = ParserBuilder::new().unicode(false).utf8(false).build().parse(pattern).unwrap();
        let mut out = Vec::new();
        write(&hir, &mut seed.clone(), (seed % 2 == 1, long), &mut out);
        String::from_utf8(out).unwrap()
    }

    fn find(pattern: &str, text: &str) -> Option<usize> {
        Token::new(0, pattern).find(text.as_bytes(), 0)
    }

    #[test]
    fn a_token_ends_where_a_word_ends() {
        assert_eq!(find("ghp_[A-Za-z0-9]{4}", "ghp_aZ09"), Some(8));
        assert_eq!(find("ghp_[A-Za-z0-9]{4}", "ghp_aZ09x"), None);
        assert_eq!(find("ab-?[0-9]{1,3}", "ab-123 "), Some(6));
        assert_eq!(find("ab[0-9]{2}", "ab12é"), Some(4));
    }

    #[test]
    fn every_token_begins_with_two_literals_or_more() {
        for pattern in RULES.list.iter().flat_map(|rule| &rule.patterns) {
            let begin = Token::new(0, pattern).begin;
            assert!(begin.len() >= 2, "{pattern}");
            assert!((0..4).all(|seed| sample(pattern, seed, false).starts_with(&begin)), "{pattern}");
        }
    }

    #[test]
    fn a_token_of_a_form_begins_with_one_of_its_first_bytes() {
        let forms = RULES.list.iter().flat_map(|rule| &rule.form).map(|form| form.form.as_str());
        assert!(forms.clone().filter_map(Bytes::first).count() > 10);
        for pattern in forms {
            let plain = pattern.trim_matches(['^', '$']).replace(r"\b", "");
            let begins = |first: Bytes| {
                (0..20).all(|seed| first.holds(sample(&plain, 2 * seed, false).as_bytes().first()))
            };
            assert!(Bytes::first(pattern).is_none_or(begins), "{pattern}");
        }
    }

    #[test]
    fn every_pattern_is_reached_by_a_text_of_its_form() {
        let guard = crate::guard::Guard::default();
        let mut never = Vec::new();
        for rule in &RULES.list {
            let context =
                if rule.check == Check::Context { format!("{} ", rule.context[0]) } else { String::new() };
            for text in &rule.patterns {
                let reached = (0..20).any(|seed| {
                    let text = format!("{context}{}", sample(text, seed, false));
                    let (_, report) = guard.text(&text, &mut crate::guard::Numbering::alone());
                    report.rules.contains_key(&rule.id)
                });
                if !reached {
                    never.push(format!("{}: {text}", rule.id));
                }
            }
        }
        assert!(never.is_empty(), "{never:#?}");
    }

    #[test]
    fn no_pattern_is_covered_by_another_of_its_rule() {
        let mut idle = Vec::new();
        for rule in &RULES.list {
            for (at, pattern) in rule.patterns.iter().enumerate() {
                let covered = |text: &String| {
                    rule.patterns
                        .iter()
                        .enumerate()
                        .any(|(other_at, other)| other_at != at && find(other, text) == Some(text.len()))
                };
                let mut texts = (0..20).map(|seed| sample(pattern, seed, seed % 4 > 1));
                if texts.all(|text| covered(&text)) {
                    idle.push(format!("{}: {}", rule.id, rule.patterns[at]));
                }
            }
        }
        assert!(idle.is_empty(), "{idle:#?}");
    }

    #[test]
    fn ids_are_unique_and_short() {
        let mut ids: Vec<&str> = RULES.list.iter().map(|rule| rule.id.as_str()).collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(
            ids.iter().all(|id| id.len() <= 40 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
        );
    }
}
