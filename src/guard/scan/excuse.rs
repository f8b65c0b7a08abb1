//! The one place where a candidate becomes a finding or is excused.
//!
//! A detector proposes a [`Candidate`]: a span, a rule, and the evidence for it. The rows of `rules/excuses.toml` give
//! each evidence a weight, say what excuses a candidate, and set the threshold of a policy's profile. The remaining sum is
//! compared with the threshold.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

use regex::bytes::{RegexSet, RegexSetBuilder};
use serde::{Deserialize, Serialize};

use super::expression::is_expression;
use super::natural_language::{is_natural_language, is_path};
use super::number::{runs, value};
use super::placeholder::{
    is_empty_word, is_filled, is_identifier, is_mask, is_names, is_scoped, names_itself,
};
pub use super::token::Shape;
use super::token::shape_of;
use super::{Finding, LEFT, Scanner, first_line, last_line};
use crate::guard::Kind;
use crate::guard::rule::{LazyRegex, RULES, RuleId};

/// How much of a line on each side of a candidate a row may examine.
const AROUND: usize = 96;

/// Evidence for a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// The form of its kind, which other things have too.
    Form,
    /// A form that hardly anything else has.
    RareForm,
    /// A check digit or an issued number range.
    Check,
    /// A mark of its own: a provider's prefix, `+`, `@`, a scheme.
    Mark,
    /// A word beside it that names its kind.
    Word,
    /// A word beside it that has other meanings too.
    WeakWord,
    /// The head of its column, or its key.
    Head,
    /// The groups in which its kind is printed.
    Grouped,
    /// Nothing like it on its line.
    Alone,
    /// Prose around it.
    Prose,
    /// Numbers like it on its line, all of which pass the check.
    Likes,
}

/// How much evidence a policy requires, and which excuses apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Better one number too many than one value missed.
    Strict,
    /// Suitable for most outputs.
    #[default]
    Balanced,
    /// For sandboxes that mostly print programs: a form alone is not enough.
    Code,
}

impl Profile {
    pub(in super::super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// `NAME=value`.
    Env,
    /// A part of JSON.
    Json,
    /// `name: value`.
    Yaml,
    /// A time or a level, then a message.
    Log,
    /// Cells.
    Table,
    /// Elements.
    Markup,
    /// The outline of a drawing.
    Path,
    /// One run of base64.
    Base64,
    /// Numbers only.
    Numbers,
    /// A program.
    Code,
    /// Words.
    Prose,
    /// None of these.
    Other,
}

/// The form of a whole value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Words, by their pairs of letters.
    NaturalLanguage,
    /// Directories and a file.
    Path,
    /// An expression of a program.
    Expression,
    /// A text with placeholders to fill in, or with spelled-out characters.
    Filled,
    /// Names joined by `::`.
    Scoped,
    /// The name of a type or a variable in a program.
    Identifier,
    /// The result of masking.
    Mask,
    /// One character many times.
    OneSign,
    /// A power of two, or one less.
    PowerOfTwo,
    /// Groups of digits that count up.
    Rising,
    /// A word for a secret itself.
    SecretWord,
    /// One of the words that are written in place of a value.
    NoValue,
}

/// A reason to reject a candidate: a row of `rules/excuses.toml`. All its conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Excuse {
    /// Its name, as `guard check --explain` shows it.
    pub id: String,
    /// The rules, kinds or groups of rules whose candidates it excuses.
    pub applies: Vec<String>,
    /// One line for people.
    pub what: String,
    /// A pattern of the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<LazyRegex>,
    /// A pattern that the value must not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unless_value: Option<LazyRegex>,
    /// A pattern of the line before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<LazyRegex>,
    /// A pattern that the line before must not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unless_before: Option<LazyRegex>,
    /// A pattern of the line after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<LazyRegex>,
    /// Whether one of `before` and `behind` is enough.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub either: bool,
    /// A pattern of the line from the value on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub onward: Option<LazyRegex>,
    /// Whether the group of the value's pattern that matched (or all of it) is words as in names, joined by these characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
    /// The form of the whole value (or of that group); any of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub form: Vec<Form>,
    /// The shape of the value; any of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<Shape>,
    /// Whether the value is in quotes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quoted: Option<bool>,
    /// Evidence that is required.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
    /// Evidence that must be absent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<Evidence>,
    /// Kinds that its line must not have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unless_carrier: Vec<Carrier>,
    /// The number of bytes before it within which a context word of the rule is required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// Whether a number of the same length above it fails the check.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub column: bool,
    /// The profiles in which it applies; all by default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<Profile>,
    /// Whether it is switched off in every profile.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub off: bool,
    /// Texts that it lets pass.
    pub examples: Vec<String>,
    /// Similar texts in which something is found all the same.
    pub counter_examples: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    threshold: BTreeMap<Profile, u32>,
    evidence: BTreeMap<Evidence, u32>,
    group: BTreeMap<String, Vec<String>>,
    carrier: Vec<Line>,
    excuse: Vec<Excuse>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    is: Carrier,
    line: String,
}

/// Patterns that are matched together; built on first use.
struct Patterns {
    texts: Vec<String>,
    built: OnceLock<RegexSet>,
}

impl Patterns {
    fn of<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        Self { texts: texts.map(str::to_owned).collect(), built: OnceLock::new() }
    }

    #[expect(clippy::expect_used, reason = "the texts are part of the program; a test builds every pattern")]
    fn get(&self) -> &RegexSet {
        self.built.get_or_init(|| {
            RegexSetBuilder::new(&self.texts)
                .unicode(false)
                .build()
                .expect("the patterns of the excuses build")
        })
    }
}

/// The rows that some rules have in common.
struct Panel {
    rows: Vec<usize>,
    /// The rows with a pattern of the value, in the order of the set.
    valued: Vec<usize>,
    values: Patterns,
}

/// The table of excuses.
pub(in super::super) struct Excuses {
    pub(in super::super) list: Vec<Excuse>,
    threshold: BTreeMap<Profile, u32>,
    worth: BTreeMap<Evidence, u32>,
    carriers: (Patterns, Vec<Carrier>),
    panels: Vec<Panel>,
    /// By rule, its panel.
    by_rule: Vec<usize>,
    /// By rule, the weight of its own evidence.
    own: Vec<u32>,
}

/// The built-in rows; parsed once.
#[expect(clippy::expect_used, reason = "the file is part of the program; every test reads it")]
pub(in super::super) static EXCUSES: LazyLock<Excuses> =
    LazyLock::new(|| Excuses::parse(include_str!("../rules/excuses.toml")).expect("the excuses parse"));

impl Excuses {
    fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let File { threshold, evidence: worth, group, carrier, excuse: list } = toml::from_str(text)?;
        let applies = |row: &Excuse, id: &str, kind: &str| {
            row.applies.iter().any(|name| {
                name == id || name == kind || group.get(name).is_some_and(|ids| ids.iter().any(|of| of == id))
            })
        };
        let (mut panels, mut by_rule): (Vec<Panel>, _) = (Vec::new(), Vec::new());
        for rule in &RULES.list {
            let rows: Vec<usize> =
                (0..list.len()).filter(|at| applies(&list[*at], &rule.id, rule.kind.as_str())).collect();
            let known = panels.iter().position(|panel| panel.rows == rows);
            by_rule.push(known.unwrap_or(panels.len()));
            if known.is_none() {
                let valued: Vec<usize> =
                    rows.iter().copied().filter(|row| list[*row].value.is_some()).collect();
                let values = Patterns::of(
                    valued.iter().filter_map(|row| list[*row].value.as_ref().map(LazyRegex::as_str)),
                );
                panels.push(Panel { rows, valued, values });
            }
        }
        let sum = |evidence: &[Evidence]| evidence.iter().filter_map(|one| worth.get(one)).sum();
        let own = RULES.list.iter().map(|rule| sum(&rule.evidence)).collect();
        let carriers = (
            Patterns::of(carrier.iter().map(|line| line.line.as_str())),
            carrier.iter().map(|line| line.is).collect(),
        );
        Ok(Self { list, threshold, worth, carriers, panels, by_rule, own })
    }

    /// The kind of a line.
    pub(in super::super) fn carrier(&self, line: &[u8]) -> Carrier {
        self.carriers.0.get().matches(line).iter().next().map_or(Carrier::Other, |at| self.carriers.1[at])
    }
}

/// The excuses that apply under a policy, and how much evidence it requires.
#[derive(Debug, Clone)]
pub(in super::super) struct Criteria {
    on: Vec<bool>,
    threshold: u32,
}

impl Criteria {
    /// The rows of a profile except for those that are switched `off`.
    pub(in super::super) fn new(profile: Profile, off: &[String]) -> Self {
        let counts = |row: &Excuse| {
            let here = row.profiles.is_empty() || row.profiles.contains(&profile);
            here && !row.off && !off.contains(&row.id)
        };
        Self {
            on: EXCUSES.list.iter().map(counts).collect(),
            threshold: EXCUSES.threshold.get(&profile).copied().unwrap_or_default(),
        }
    }
}

/// A detector's proposal.
#[derive(Debug, Clone)]
pub(in super::super) struct Candidate {
    rule: RuleId,
    start: usize,
    end: usize,
    /// What is judged of it.
    value: (usize, usize),
    quoted: bool,
    evidence: Vec<Evidence>,
    /// How many groups of digits may have a word before them that has not been looked for yet.
    groups: usize,
    check: Option<fn(&[u8]) -> bool>,
}

impl Candidate {
    pub(super) fn new(rule: RuleId, start: usize, end: usize) -> Self {
        let evidence = Vec::new();
        Self { rule, start, end, value: (start, end), quoted: false, evidence, groups: 0, check: None }
    }

    /// A candidate that is judged by a part of it.
    pub(super) fn by(self, start: usize, end: usize, quoted: bool) -> Self {
        Self { value: (start, end), quoted, ..self }
    }

    pub(super) fn with(mut self, evidence: Evidence) -> Self {
        self.evidence.push(evidence);
        self
    }

    /// A number of this many groups, which may have a word before it.
    pub(super) fn in_groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// A number that passes a check.
    pub(super) fn checked(self, check: fn(&[u8]) -> bool) -> Self {
        Self { check: Some(check), ..self }
    }
}

/// How a candidate was judged.
#[derive(Debug, Clone)]
pub(in super::super) struct Judged {
    pub(in super::super) finding: Finding,
    pub(in super::super) evidence: Vec<Evidence>,
    pub(in super::super) carrier: Carrier,
    /// The weight of its evidence, and the threshold.
    pub(in super::super) sum: u32,
    pub(in super::super) threshold: u32,
    /// The row that excused it.
    pub(in super::super) excuse: Option<usize>,
}

impl Judged {
    /// A finding without a detector's proposal: a cell under a head, or a mark of its own without a head.
    pub(in super::super) fn unproposed(finding: Finding) -> Self {
        let headed = usize::from(finding.rule) < RULES.list.len() && finding.kind != Kind::PrivateKey;
        let evidence = vec![if headed { Evidence::Head } else { Evidence::Mark }];
        let sum = EXCUSES.worth.get(&evidence[0]).copied().unwrap_or_default();
        let carrier = if headed { Carrier::Table } else { Carrier::Other };
        Self { finding, evidence, carrier, sum, threshold: sum, excuse: None }
    }
}

impl Scanner<'_> {
    /// Judges a candidate; whether it is a finding.
    pub(super) fn propose(&mut self, mut candidate: Candidate) -> bool {
        let Candidate { rule, end, .. } = candidate;
        debug_assert!(candidate.start < end && end <= self.to);
        let start = candidate.start.max(self.from);
        if start >= end {
            return false;
        }
        let worth: u32 = candidate.evidence.iter().filter_map(|one| EXCUSES.worth.get(one)).sum();
        let sum = EXCUSES.own[usize::from(rule)] + worth;
        let threshold = self.criteria.threshold;
        let excuse = match sum >= threshold {
            true => self.excused(&mut candidate),
            false => None,
        };
        let row = &self.rules.list[usize::from(rule)];
        let finding = Finding { start, end, kind: row.kind, rule, decoded: false };
        if self.verdicts.is_some() {
            let carrier = EXCUSES.carrier(self.line(candidate.start, end));
            let evidence = row.evidence.iter().chain(&candidate.evidence).copied().collect();
            let judged = Judged { finding, evidence, carrier, sum, threshold, excuse };
            self.verdicts.iter_mut().for_each(|all| all.push(judged.clone()));
        }
        let found = sum >= threshold && excuse.is_none();
        if found {
            self.out.push(finding);
        }
        found
    }

    /// The first row that excuses a candidate.
    #[inline(never)]
    fn excused(&self, candidate: &mut Candidate) -> Option<usize> {
        let panel = &EXCUSES.panels[EXCUSES.by_rule[usize::from(candidate.rule)]];
        if panel.rows.is_empty() {
            return None;
        }
        let value = &self.text[candidate.value.0..candidate.value.1];
        let values = panel.values.get();
        let matched = values.is_match(value).then(|| values.matches(value));
        let around = self.line_around((candidate.start, candidate.end), AROUND);
        panel.rows.iter().copied().find(|row| {
            let excuse = &EXCUSES.list[*row];
            self.criteria.on[*row]
                && (excuse.value.is_none()
                    || matched.as_ref().is_some_and(|matched| {
                        panel.valued.binary_search(row).is_ok_and(|at| matched.matched(at))
                    }))
                && self.holds(excuse, candidate, value, around)
        })
    }

    /// Whether a row's conditions hold, apart from the pattern of the value: the cheap ones first. The line around the candidate goes
    /// from `from` to `to`.
    fn holds(
        &self,
        excuse: &Excuse,
        candidate: &mut Candidate,
        value: &[u8],
        (from, to): (usize, usize),
    ) -> bool {
        let (start, end) = (candidate.start, candidate.end);
        if excuse.quoted.is_some_and(|quoted| quoted != candidate.quoted)
            || !excuse.shape.is_empty() && !excuse.shape.contains(&shape_of(value))
            || !excuse.evidence.iter().all(|one| candidate.evidence.contains(one))
        {
            return false;
        }
        let (before, behind) = (&self.text[from..start], &self.text[end..to]);
        let onward = || &self.text[candidate.value.0..to];
        let is_before = || excuse.before.as_ref().is_none_or(|pattern| pattern.is_match(before));
        let is_behind = || excuse.behind.as_ref().is_none_or(|pattern| pattern.is_match(behind));
        let beside = if excuse.either { is_before() || is_behind() } else { is_before() && is_behind() };
        if !beside
            || excuse.unless_before.as_ref().is_some_and(|never| never.is_match(before))
            || excuse.onward.as_ref().is_some_and(|pattern| !pattern.is_match(onward()))
            || excuse.unless_value.as_ref().is_some_and(|never| never.is_match(value))
        {
            return false;
        }
        let part = || {
            let groups = excuse.value.as_ref().and_then(|pattern| pattern.get().captures(value));
            let group = groups.and_then(|groups| groups.iter().skip(1).flatten().next());
            group.map_or(value, |part| part.as_bytes())
        };
        if excuse.words.as_ref().is_some_and(|joints| !is_names(part(), joints.as_bytes()))
            || !excuse.form.is_empty() && !excuse.form.iter().any(|form| self.has_form(*form, part()))
        {
            return false;
        }
        let carrier = || EXCUSES.carrier(self.line(start, end));
        if !excuse.unless_carrier.is_empty() && excuse.unless_carrier.contains(&carrier())
            || excuse.context.is_some_and(|len| !self.labelled(candidate.rule, start, len))
            || excuse.column && !self.column_fails(candidate, value)
        {
            return false;
        }
        // A word is the most expensive to look for.
        if candidate.groups > 0 && excuse.without.contains(&Evidence::Word) {
            if self.phone_label(start, candidate.groups) {
                candidate.evidence.push(Evidence::Word);
            }
            candidate.groups = 0;
        }
        !excuse.without.iter().any(|one| candidate.evidence.contains(one))
    }

    /// The line around a span, up to a limit on each side. A string with more than the span in it is a text of its own, and an
    /// escaped line feed in it ends a line.
    fn line_around(&self, (start, end): (usize, usize), limit: usize) -> (usize, usize) {
        const FEED: &[u8] = b"\\n";
        let before = last_line(self.before(start, limit));
        let behind = first_line(&self.text[end..self.to.min(end + limit)]);
        let (mut from, mut to) = (start - before.len(), end + behind.len());
        let unescaped = |text: &[u8]| text.iter().rposition(|byte| *byte != b'\\').map_or(0, |last| last + 1);
        if let Some(open) = before.iter().rposition(|byte| b"\"'".contains(byte))
            && open + 1 < before.len()
            && before[..unescaped(&before[..open])].last().is_none_or(|byte| b" [({,:=\"'".contains(byte))
        {
            let close = memchr::memchr(before[open], behind);
            if close.is_none_or(|at| behind.get(at + 1).is_none_or(|next| b",;)]}:\\\"'\r".contains(next))) {
                (from, to) = (from + open + 1, close.map_or(to, |at| end + unescaped(&behind[..at])));
            }
        }
        from = memchr::memmem::rfind(&self.text[from..start], FEED).map_or(from, |at| from + at + FEED.len());
        let feed = memchr::memmem::find(&self.text[end..to], FEED);
        to = feed.map_or(to, |at| end + unescaped(&self.text[end..end + at]));
        (from, to)
    }

    /// The same, as text.
    fn line(&self, start: usize, end: usize) -> &[u8] {
        let (from, to) = self.line_around((start, end), LEFT);
        &self.text[from..to]
    }

    fn has_form(&self, form: Form, value: &[u8]) -> bool {
        match form {
            Form::NaturalLanguage => is_natural_language(value),
            Form::Path => is_path(value),
            Form::Expression => {
                let start = self.place_of(value);
                let (from, to) = self.line_around((start, start), LEFT);
                is_expression(
                    &self.text[from.max(start.saturating_sub(AROUND))..start],
                    &self.text[start..to],
                    value.len(),
                )
            }
            Form::Filled => is_filled(value),
            Form::Scoped => is_scoped(value),
            Form::Identifier => !value.is_empty() && is_identifier(value),
            Form::Mask => is_mask(value),
            Form::OneSign => value.iter().all(|byte| *byte == value[0]),
            Form::PowerOfTwo => is_power_of_two(value),
            Form::Rising => rises(value),
            Form::SecretWord => names_itself(value),
            Form::NoValue => {
                let word = &value[value.iter().take_while(|byte| b"&*(".contains(byte)).count()..];
                is_empty_word(word.strip_suffix(b":").unwrap_or(word))
            }
        }
    }

    /// Whether a number above, with as many digits in as many groups, fails the check.
    fn column_fails(&self, candidate: &Candidate, value: &[u8]) -> bool {
        let Some(check) = candidate.check else { return false };
        let near = self.before(candidate.start, LEFT);
        let above = &near[..near.len() - last_line(near).len()];
        let lens: Vec<usize> = runs(value).map(<[u8]>::len).collect();
        match lens[..] {
            [len] => runs(above).any(|run| run.len() == len && !check(run)),
            _ => above.split(|byte| *byte == b'\n').any(|line| {
                let runs: Vec<&[u8]> = runs(line).collect();
                runs.iter().map(|run| run.len()).eq(lens.iter().copied()) && !check(&runs.concat())
            }),
        }
    }
}

/// The limits of integers in programs.
fn is_power_of_two(digits: &[u8]) -> bool {
    let number = str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok());
    number.is_some_and(|number| number.is_power_of_two() || number.wrapping_add(1).is_power_of_two())
}

/// `5211 5212 5213 5214`: each group a little larger than the one before.
fn rises(groups: &[u8]) -> bool {
    let groups: Vec<&[u8]> = runs(groups).collect();
    groups.len() > 1
        && groups.windows(2).all(|pair| {
            pair[0].len() == pair[1].len() && (1..=3).contains(&value(pair[1]).wrapping_sub(value(pair[0])))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_builds() {
        EXCUSES.carrier(b"");
        EXCUSES.panels.iter().for_each(|panel| assert_eq!(panel.values.get().len(), panel.valued.len()));
        for row in &EXCUSES.list {
            [&row.unless_value, &row.before, &row.unless_before, &row.behind, &row.onward, &row.value]
                .into_iter()
                .flatten()
                .for_each(|pattern| assert!(pattern.get().captures_len() > 0));
        }
    }

    #[test]
    fn each_row_applies_to_a_rule_and_asks_for_something() {
        let mut ids: Vec<&str> = EXCUSES.list.iter().map(|row| row.id.as_str()).collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "{ids:?}");
        for (at, row) in EXCUSES.list.iter().enumerate() {
            assert!(
                EXCUSES.panels.iter().any(|panel| panel.rows.contains(&at)),
                "{} excuses nothing",
                row.id
            );
            assert!(!row.what.is_empty() && !row.examples.is_empty(), "{} has no example", row.id);
        }
    }
}
