//! Rules that a policy adds: an operator's patterns, bounded in size and time.
//!
//! One automaton looks for the literals of all rules. Only near a literal does a rule's pattern see the text: the rest of
//! the line up to [`BEFORE`] bytes before and [`BEHIND`] after. Windows that touch are merged, so no rule sees a byte twice.
//! A pattern is a table of states, built when the policy is loaded: each byte costs one step, whatever the text is.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex_automata::dfa::{StartKind, dense, regex::Regex};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::{Input, MatchKind};
use regex_syntax::hir::literal::Extractor;
use regex_syntax::hir::{Class, Hir, HirKind, Repetition};
use serde::{Deserialize, Serialize};

use super::rule::{RuleId, is_glued, pattern};
use super::scan::{Finding, behind_placeholder, near, next_placeholder};
use super::{Guard, Kind, confirm};

/// How far before a literal its rule looks, in bytes.
pub(super) const BEFORE: usize = 64;
/// How far after it.
pub(super) const BEHIND: usize = 192;
/// The most rules that one policy has, all levels together.
const MAX_RULES: usize = 200;
/// The longest value that a rule may find, in bytes.
const MAX_LEN: usize = 256;
/// The longest pattern, word and example, in bytes.
const MAX_TEXT: usize = 4096;
/// The most memory for the program of a pattern, before it becomes a table.
const PROGRAM: usize = 256 * 1024;
/// The most memory for the table of a pattern, in each direction.
const TABLE: usize = 1024 * 1024;
/// The most memory for all tables of a policy.
const TABLES: usize = 32 * 1024 * 1024;
const NESTING: u32 = 32;
/// The shortest literal: a shorter one would match everywhere.
const LITERAL: usize = 3;
/// The most literals that one pattern may begin with, counting alternatives and letters of either case.
const LITERALS: usize = 64;
/// The number of the first own rule; the built-in ones have smaller numbers.
const FIRST: RuleId = 0x8000;

/// A rule of a policy (`[[rule]]`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnRule {
    /// Its name in reports: lowercase letters, digits and dashes, at most 64.
    pub id: String,
    /// What it finds: the word of the placeholder, and the key of the policy's actions.
    pub kind: Kind,
    /// One line for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
    /// A regular expression for the value. `\d`, `\w`, `\s` and `.` are ASCII.
    pub pattern: String,
    /// Words of at least 3 bytes in any case. Where there are some, one must be near the value on its line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    /// A further condition on the value.
    #[serde(default)]
    pub check: OwnCheck,
    /// The most bytes of a value, 1 to 256; only that many bytes of a longer one are replaced.
    #[serde(default = "longest")]
    pub max_len: usize,
    /// Whether the pattern's classes and `(?i)` follow Unicode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unicode: bool,
    /// Texts in which it must find something, at least one.
    #[serde(default)]
    pub examples: Vec<String>,
    /// Texts in which it must find nothing.
    #[serde(default)]
    pub counter_examples: Vec<String>,
}

/// A further condition on a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnCheck {
    /// None.
    #[default]
    None,
    /// Its digits pass the Luhn check (ISO/IEC 7812-1).
    Luhn,
    /// Its letters and digits, read as one number, leave 1 when divided by 97 (ISO/IEC 7064, MOD 97-10).
    Mod97,
    /// It has at least two letters and two digits.
    Random,
}

fn longest() -> usize {
    MAX_LEN
}

impl OwnCheck {
    fn passes(self, value: &[u8]) -> bool {
        let only = |keep: fn(&u8) -> bool| value.iter().copied().filter(keep).collect::<Vec<u8>>();
        match self {
            Self::None => true,
            Self::Luhn => {
                let digits: Vec<u8> = only(u8::is_ascii_digit);
                !digits.is_empty() && confirm::luhn(&digits)
            }
            Self::Mod97 => confirm::mod97(only(u8::is_ascii_alphanumeric).into_iter()) == 1,
            Self::Random => only(u8::is_ascii_digit).len() >= 2 && only(u8::is_ascii_alphabetic).len() >= 2,
        }
    }
}

/// A policy's own rules, compiled.
pub(super) struct OwnRules {
    rules: Vec<Compiled>,
    finder: AhoCorasick,
    /// By literal: the rule, and whether the literal is a word.
    wakes: Vec<(u16, bool)>,
}

struct Compiled {
    rule: OwnRule,
    pattern: Regex,
}

impl std::fmt::Debug for OwnRules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.rules.iter().map(|own| &own.rule.id)).finish()
    }
}

/// The index of an own rule, from its number.
fn place(id: RuleId) -> Option<usize> {
    (FIRST..RuleId::MAX).contains(&id).then(|| usize::from(id - FIRST))
}

impl OwnRules {
    /// Compiles the rules of a policy; `None` if there are none.
    ///
    /// # Errors
    /// The rule that is invalid, and how to fix it.
    pub(super) fn new(rules: &[OwnRule]) -> Result<Option<Arc<Self>>, (String, String)> {
        if rules.is_empty() {
            return Ok(None);
        }
        if rules.len() > MAX_RULES {
            let problem =
                format!("is one of {}: a policy has at most {MAX_RULES} rules for a tenant", rules.len());
            return Err((rules[MAX_RULES].id.clone(), problem));
        }
        let (mut compiled, mut literals, mut wakes) = (Vec::new(), Vec::new(), Vec::new());
        let mut tables = 0;
        for (at, rule) in rules.iter().enumerate() {
            let fail = |problem: String| (rule.id.clone(), problem);
            if rules[..at].iter().any(|before| before.id == rule.id) {
                return Err(fail(
                    "is there twice: each rule needs an id of its own, in all levels".to_owned(),
                ));
            }
            let (pattern, wake) = compile(rule).map_err(fail)?;
            tables += pattern.forward().memory_usage() + pattern.reverse().memory_usage();
            if tables > TABLES {
                let problem = format!(
                    "does not fit: all rules together take {} MiB at most; write shorter repeats",
                    TABLES >> 20
                );
                return Err(fail(problem));
            }
            wakes.extend(wake.iter().map(|_| (at as u16, !rule.words.is_empty())));
            literals.extend(wake);
            compiled.push(Compiled { rule: rule.clone(), pattern });
        }
        let fast = literals.iter().map(Vec::len).sum::<usize>() <= 16 * 1024;
        let finder = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .kind(fast.then_some(AhoCorasickKind::DFA))
            .build(&literals)
            .map_err(|error| (rules[0].id.clone(), format!("does not fit with the others: {error}")))?;
        Ok(Some(Arc::new(Self { rules: compiled, finder, wakes })))
    }

    /// Whether these are the rules of a policy.
    pub(super) fn are(&self, rules: &[OwnRule]) -> bool {
        self.rules.iter().map(|own| &own.rule).eq(rules)
    }

    /// The rule of a finding, if it is one of these.
    pub(super) fn rule(&self, id: RuleId) -> Option<&OwnRule> {
        self.rules.get(place(id)?).map(|own| &own.rule)
    }

    /// Adds the findings in `text[from..to]`; text before it on the same line may hold a word.
    pub(super) fn find(&self, text: &[u8], (from, to): (usize, usize), findings: &mut Vec<Finding>) {
        let text = &text[..to];
        let left = from - behind_placeholder(&text[near(&text[..from]).1..from]).len();
        let mut windows = Vec::new();
        let mut walls: Option<Vec<(usize, usize)>> = None;
        for found in self.finder.find_overlapping_iter(&text[left..]) {
            let (rule, word) = self.wakes[found.pattern().as_usize()];
            let (start, end) = (left + found.start(), left + found.end());
            if word && is_glued(text, start) {
                continue;
            }
            let walls = walls.get_or_insert_with(|| placeholders(text, left));
            if let Some(window) = window(text, left, (start, end), walls) {
                windows.push((rule, window));
            }
        }
        windows.sort_unstable();
        let mut windows = windows.into_iter().peekable();
        while let Some((rule, (start, mut end))) = windows.next() {
            while let Some((_, more)) = windows.next_if(|(other, more)| *other == rule && more.0 <= end) {
                end = end.max(more.1);
            }
            self.look(rule, text, (start, end), from, findings);
        }
    }

    /// Looks for one rule's values in a part of a line.
    fn look(
        &self,
        rule: u16,
        text: &[u8],
        (start, end): (usize, usize),
        from: usize,
        findings: &mut Vec<Finding>,
    ) {
        let Compiled { rule: own, pattern } = &self.rules[usize::from(rule)];
        // No value crosses a quotation mark: JSON stays JSON.
        let mut at = start;
        while at < end {
            let stop = text[at..end].iter().position(|byte| *byte == b'"' || *byte < b' ' && *byte != b'\t');
            let stop = stop.map_or(end, |len| at + len);
            while let Some(found) = pattern.find(Input::new(text).range(at..stop)) {
                let end = found.end().min(found.start() + own.max_len);
                at = end.max(at + 1);
                let value = &text[found.start()..end];
                if end <= from || !own.check.passes(value) {
                    continue;
                }
                for (first, last) in parts(value) {
                    let (start, end) = ((found.start() + first).max(from), found.start() + last);
                    if start < end {
                        findings.push(Finding {
                            start,
                            end,
                            kind: own.kind,
                            rule: FIRST + rule,
                            decoded: false,
                        });
                    }
                }
            }
            at = stop + 1;
        }
    }

    /// Tries each rule on its examples: alone, and together with everything else that the guard finds.
    ///
    /// # Errors
    /// The rule whose example or counter-example has the wrong result.
    pub(super) fn try_examples(&self, guard: &Guard) -> Result<(), (String, String)> {
        self.rules.iter().enumerate().try_for_each(|(at, own)| {
            self.try_rule(at, &own.rule, guard).map_err(|problem| (own.rule.id.clone(), problem))
        })
    }

    fn try_rule(&self, at: usize, rule: &OwnRule, guard: &Guard) -> Result<(), String> {
        let id = FIRST + at as RuleId;
        let alone = |text: &str| {
            let mut findings = Vec::new();
            self.find(text.as_bytes(), (0, text.len()), &mut findings);
            findings.iter().any(|finding| finding.rule == id)
        };
        if rule.examples.is_empty() {
            return Err("has no example: write `examples = [\"...\"]` with a text in which it finds a value"
                .to_owned());
        }
        for (number, text) in (1..).zip(&rule.examples) {
            if !alone(text) {
                return Err(format!(
                    "finds nothing in example {number}: a value has no quotation mark in it, stands on one line with a word or a \
                     literal of the pattern (at most {BEFORE} bytes before or {BEHIND} behind), and passes `check`"
                ));
            }
            if guard.leaves(rule.kind) {
                continue;
            }
            let checked = guard.check(text);
            let found = |checked: &super::Checked| checked.report.rules.contains_key(&rule.id);
            if !found(&checked) && checked.report.allowed.is_empty() {
                let others: Vec<_> = checked.report.rules.keys().map(|id| format!("`{id}`")).collect();
                return Err(match others.as_slice() {
                    [] => format!("finds nothing in example {number} with the whole policy"),
                    _ => format!(
                        "does not get example {number}: {} finds it first. Drop the rule, or give it an example that only it finds",
                        others.join(", ")
                    ),
                });
            }
        }
        for (number, text) in (1..).zip(&rule.counter_examples) {
            if alone(text) {
                return Err(format!(
                    "finds something in counter-example {number}: narrow the pattern or its words"
                ));
            }
            if guard.check(text).report.rules.contains_key(&rule.id) {
                return Err(format!(
                    "finds something in counter-example {number} once other rules have replaced their values: narrow the pattern"
                ));
            }
        }
        Ok(())
    }
}

/// The placeholders from a place on: no rule looks past them.
fn placeholders(text: &[u8], from: usize) -> Vec<(usize, usize)> {
    std::iter::successors(next_placeholder(text, from), |(_, end)| next_placeholder(text, *end)).collect()
}

/// The text that a rule sees around a literal; `None` for one that is part of a placeholder.
fn window(
    text: &[u8],
    left: usize,
    (start, end): (usize, usize),
    walls: &[(usize, usize)],
) -> Option<(usize, usize)> {
    let at = walls.partition_point(|wall| wall.1 <= start);
    let right = walls.get(at).map_or(text.len(), |wall| wall.0);
    if right < end {
        return None;
    }
    let left = at.checked_sub(1).map_or(left, |before| left.max(walls[before].1));
    let (first, last) = (left.max(start.saturating_sub(BEFORE)), right.min(end + BEHIND));
    let first = memchr::memrchr(b'\n', &text[first..start]).map_or(first, |feed| first + feed + 1);
    let last = memchr::memchr(b'\n', &text[end..last]).map_or(last, |feed| end + feed);
    Some((first, last))
}

/// The parts of a value that are replaced: the whole, or each part if it could be several JSON numbers.
fn parts(value: &[u8]) -> Vec<(usize, usize)> {
    if !pattern!(r"^[0-9+.eE \t-]*[,\[\]{}][0-9+.eE \t,\[\]{}-]*$").is_match(value) {
        return vec![(0, value.len())];
    }
    let numbers = pattern!(r"[^ \t,\[\]{}](?:[^,\[\]{}]*[^ \t,\[\]{}])?").find_iter(value);
    numbers.map(|number| (number.start(), number.end())).collect()
}

/// A rule's pattern as a table, and the literals that trigger it.
fn compile(rule: &OwnRule) -> Result<(Regex, Vec<Vec<u8>>), String> {
    shape(rule)?;
    let hir = regex_syntax::ParserBuilder::new()
        .unicode(rule.unicode)
        .utf8(false)
        .nest_limit(NESTING)
        .multi_line(true)
        .build()
        .parse(&rule.pattern)
        .map_err(|error| {
            let problem = match &error {
                regex_syntax::Error::Parse(error) => error.kind().to_string(),
                regex_syntax::Error::Translate(error) => error.kind().to_string(),
                other => other.to_string(),
            };
            format!("has a pattern that does not parse: {problem}. Classes are ASCII unless the rule says `unicode = true`")
        })?;
    if hir.properties().minimum_len().is_none_or(|len| len == 0) {
        return Err("has a pattern that matches nothing at all: write at least one sign that must be there"
            .to_owned());
    }
    if is_open(&hir, true) || is_open(&hir, false) {
        return Err("has a pattern that begins or ends with any signs without a bound (`.*`): leave that out, or name the signs of \
                    the value (`[A-Z0-9]{4,12}`)"
            .to_owned());
    }
    let wake = if rule.words.is_empty() {
        required(&hir).ok_or_else(|| {
            format!("has no literal of {LITERAL} bytes that each match holds: add one to the pattern, or `words` that stand near")
        })?
    } else {
        rule.words.iter().map(|word| word.clone().into_bytes()).collect()
    };
    let pattern = table(&bounded(hir, rule.max_len as u32)).map_err(|problem| {
        format!(
            "has a pattern that is too large ({problem}): write shorter repeats{}",
            if rule.unicode { ", or ASCII classes without `unicode = true`" } else { "" }
        )
    })?;
    Ok((pattern, wake))
}

/// Checks everything about a rule except its pattern.
fn shape(rule: &OwnRule) -> Result<(), String> {
    let named = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if rule.id.is_empty() || rule.id.len() > 64 || !rule.id.bytes().all(named) {
        return Err("has an id that is none: write 1 to 64 small letters, digits and dashes".to_owned());
    }
    if super::rules().iter().any(|built_in| built_in.id == rule.id)
        || ["known-secret", "resolved-value"].contains(&&*rule.id)
    {
        return Err("has the id of a built-in rule: choose another".to_owned());
    }
    if rule.kind == Kind::KnownSecret {
        return Err(
            "is of the kind KNOWN_SECRET, which is for values that the server holds: choose another kind"
                .to_owned(),
        );
    }
    if !(1..=MAX_LEN).contains(&rule.max_len) {
        return Err(format!("has a `max_len` of {}: write 1 to {MAX_LEN}", rule.max_len));
    }
    if rule.words.len() > LITERALS {
        return Err(format!("has {} words: write at most {LITERALS}", rule.words.len()));
    }
    if let Some(word) = rule.words.iter().find(|word| word.len() < LITERAL || word.len() > BEFORE) {
        return Err(format!("has a word of {} bytes: write {LITERAL} to {BEFORE}", word.len()));
    }
    let texts = rule.examples.iter().chain(&rule.counter_examples).chain([&rule.pattern, &rule.what]);
    if texts.clone().count() > 2 * LITERALS {
        return Err(format!("has more than {} examples and counter-examples", 2 * LITERALS - 2));
    }
    if let Some(long) = texts.map(String::len).find(|len| *len > MAX_TEXT) {
        return Err(format!("has a text of {long} bytes: write at most {MAX_TEXT}"));
    }
    Ok(())
}

fn table(hir: &Hir) -> Result<Regex, String> {
    let build = |reverse: bool, config: dense::Config| {
        let program = thompson::Config::new()
            .utf8(false)
            .reverse(reverse)
            .which_captures(WhichCaptures::None)
            .nfa_size_limit(Some(PROGRAM));
        let nfa =
            thompson::Compiler::new().configure(program).build_from_hir(hir).map_err(|it| it.to_string())?;
        let config = config.dfa_size_limit(Some(TABLE)).determinize_size_limit(Some(TABLE));
        dense::Builder::new().configure(config).build_from_nfa(&nfa).map_err(|it| it.to_string())
    };
    let forward = build(false, dense::Config::new())?;
    let back = dense::Config::new().start_kind(StartKind::Anchored).match_kind(MatchKind::All);
    Ok(Regex::builder().build_from_dfas(forward, build(true, back)?))
}

/// The same pattern with every repeat bounded.
fn bounded(hir: Hir, most: u32) -> Hir {
    match hir.into_kind() {
        HirKind::Repetition(Repetition { min, max, greedy, sub }) => {
            let sub = Box::new(bounded(*sub, most));
            Hir::repetition(Repetition { min, max: Some(max.unwrap_or(most.max(min))), greedy, sub })
        }
        HirKind::Capture(capture) => bounded(*capture.sub, most),
        HirKind::Concat(parts) => Hir::concat(parts.into_iter().map(|part| bounded(part, most)).collect()),
        HirKind::Alternation(parts) => {
            Hir::alternation(parts.into_iter().map(|part| bounded(part, most)).collect())
        }
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(class) => Hir::class(class),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Empty => Hir::empty(),
    }
}

/// Whether a pattern ends (or begins, if not `behind`) with an unbounded repeat of nearly any character.
fn is_open(hir: &Hir, behind: bool) -> bool {
    let holds = |class: &Class, byte: u8| match class {
        Class::Unicode(class) => {
            class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&char::from(byte)))
        }
        Class::Bytes(class) => {
            class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&byte))
        }
    };
    match hir.kind() {
        HirKind::Repetition(Repetition { max: None, sub, .. }) => match sub.kind() {
            HirKind::Class(class) => b" a0,".iter().all(|byte| holds(class, *byte)),
            _ => is_open(sub, behind),
        },
        HirKind::Repetition(repetition) => is_open(&repetition.sub, behind),
        HirKind::Capture(capture) => is_open(&capture.sub, behind),
        HirKind::Concat(parts) => {
            let edge = if behind { parts.last() } else { parts.first() };
            edge.is_some_and(|part| is_open(part, behind))
        }
        HirKind::Alternation(parts) => parts.iter().any(|part| is_open(part, behind)),
        _ => false,
    }
}

/// Literals of at least [`LITERAL`] bytes, one of which is in each match; lowercase letters match either case. Digits are
/// expanded only as a last resort.
fn required(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    [9, LITERALS].into_iter().find_map(|class| required_with(hir, class))
}

/// The same, expanding classes of at most `class` characters.
fn required_with(hir: &Hir, class: usize) -> Option<Vec<Vec<u8>>> {
    let required = |hir: &Hir| required_with(hir, class);
    let shortest = |all: &Vec<Vec<u8>>| all.iter().map(Vec::len).min().unwrap_or(0);
    let mut extractor = Extractor::new();
    extractor.limit_class(class).limit_total(LITERALS).limit_repeat(BEFORE).limit_literal_len(BEFORE);
    let begins = |hir: &Hir| {
        let found = extractor.extract(hir);
        let literals = found.literals()?.iter();
        let mut all: Vec<Vec<u8>> = literals.map(|literal| literal.as_bytes().to_ascii_lowercase()).collect();
        all.sort_unstable();
        all.dedup();
        Some(all).filter(|all| shortest(all) >= LITERAL)
    };
    let within: Vec<Vec<Vec<u8>>> = match hir.kind() {
        HirKind::Capture(capture) => required(&capture.sub).into_iter().collect(),
        HirKind::Repetition(repetition) if repetition.min > 0 => {
            required(&repetition.sub).into_iter().collect()
        }
        HirKind::Alternation(parts) => {
            let all: Option<Vec<_>> = parts.iter().map(required).collect();
            all.map(|all| all.concat()).filter(|all| all.len() <= LITERALS).into_iter().collect()
        }
        HirKind::Concat(parts) => {
            let from = |at: usize| Hir::concat(parts[at..parts.len().min(at + BEFORE)].to_vec());
            (0..parts.len()).flat_map(|at| [begins(&from(at)), required(&parts[at])]).flatten().collect()
        }
        _ => Vec::new(),
    };
    begins(hir).into_iter().chain(within).max_by_key(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Action, Mode, Numbering, Policy, PolicyError};

    fn rule(id: &str, kind: Kind, pattern: &str, example: &str) -> OwnRule {
        OwnRule {
            id: id.to_owned(),
            kind,
            what: String::new(),
            pattern: pattern.to_owned(),
            words: Vec::new(),
            check: OwnCheck::None,
            max_len: MAX_LEN,
            unicode: false,
            examples: vec![example.to_owned()],
            counter_examples: Vec::new(),
        }
    }

    fn guard(rules: Vec<OwnRule>) -> Result<Guard, PolicyError> {
        Guard::new(Policy { rules, ..Policy::default() })
    }

    fn shown(guard: &Guard, text: &str) -> String {
        guard.text(text, &mut Numbering::alone()).0.into_inner()
    }

    fn refused(rule: OwnRule) -> String {
        guard(vec![rule]).unwrap_err().to_string()
    }

    fn employee() -> OwnRule {
        rule("employee", Kind::NationalId, r"\bEMP-\d{6}\b", "EMP-123456 did it")
    }

    fn customer() -> OwnRule {
        let words = vec!["Kundennummer".to_owned(), "customer".to_owned()];
        OwnRule { words, ..rule("customer", Kind::Secret, r"\b\d{8}\b", "Kundennummer 48213377") }
    }

    #[test]
    fn a_value_is_found_anywhere_and_counted_under_the_rules_id() {
        let guard = guard(vec![employee(), customer()]).unwrap();
        for (text, becomes) in [
            ("ask EMP-123456.", "ask [NATIONAL_ID_1]."),
            ("ask EMP-1234567, xEMP-123456", "ask EMP-1234567, xEMP-123456"),
            ("a customer, 48213377 or 48213378", "a customer, [SECRET_1] or [SECRET_2]"),
            ("48213377 is the CUSTOMER", "[SECRET_1] is the CUSTOMER"),
            ("precustomer 48213377\n48213377", "precustomer 48213377\n48213377"),
            ("customer\n48213377", "customer\n48213377"),
            (
                r#"{"customer": 48213377, "n": [48213378,1]}"#,
                r#"{"customer": "[SECRET_1]", "n": ["[SECRET_2]",1]}"#,
            ),
            ("EMP%2D123456", "[NATIONAL_ID_1]"),
            // EMP-123456, in base64 with text around it.
            ("the text c2VlIEVNUC0xMjM0NTYgbm93 is it", "the text [NATIONAL_ID_1] is it"),
        ] {
            assert_eq!(shown(&guard, text), becomes, "{text}");
        }
        let (_, report) = guard.text("EMP-123456 and EMP-123457", &mut Numbering::alone());
        assert_eq!(report.rules["employee"], 2);
        let checked = guard.check("EMP-123456");
        assert_eq!((checked.findings[0].rule.as_str(), checked.findings[0].start), ("employee", 0));
        assert_ne!(guard.report().policy_fingerprint, Guard::default().report().policy_fingerprint);
    }

    #[test]
    fn json_stays_json_whatever_a_pattern_takes() {
        let pairs = OwnRule {
            words: vec!["point".to_owned()],
            ..rule("pairs", Kind::Address, r"-?\d\d\.\d{2,9}, ?-?\d\d\.\d{2,9}", "point 53.3498, -16.2603")
        };
        let any = rule("any", Kind::Address, r"note.{1,200}", "note: x y");
        let mut policy = Policy { rules: vec![pairs, any], ..Policy::default() };
        policy.actions.insert(Kind::Address, Action::Redact);
        let guard = Guard::new(policy).unwrap();
        for text in [
            r#"{"point": [53.3498, -16.2603], "b": [{"x":1}]}"#,
            r#"{"a": "note \"x\" \\", "b": ["note\u00e9\n", {"c": [1,2], "note": null}]}"#,
            r#"["note",1,[2,{"note":3}],"note"]"#,
            r#"{"s": "{\"note\": \"x\", \"point\": [53.3498,-16.2603]}"}"#,
        ] {
            let mut numbering = Numbering::alone();
            let out = guard.text(text, &mut numbering).0.into_inner();
            assert!(serde_json::from_str::<serde_json::Value>(&out).is_ok(), "{text} becomes {out}");
            assert_eq!(*guard.text(&out, &mut numbering).0, out, "{text}");
        }
        assert_eq!(shown(&guard, "point 53.3498, -16.2603"), "point [ADDRESS_1], \"[ADDRESS_2]\"");
    }

    #[test]
    fn a_check_decides_and_a_long_value_is_cut() {
        let with = |check, pattern: &str, example: &str| OwnRule {
            check,
            ..rule("own", Kind::Secret, pattern, example)
        };
        let luhn = guard(vec![with(OwnCheck::Luhn, r"REF\d{9}", "REF123456782")]).unwrap();
        assert_eq!(shown(&luhn, "REF123456782 REF123456783"), "[SECRET_1] REF123456783");
        let mod97 = guard(vec![with(OwnCheck::Mod97, r"RF-?\d{2,12}ABC", "RF-13ABC")]);
        assert!(mod97.unwrap_err().to_string().contains("example 1"));
        let random = guard(vec![with(OwnCheck::Random, r"acme_\w{8,40}", "acme_a8Kd93kQ02")]).unwrap();
        assert_eq!(shown(&random, "acme_a8Kd93kQ02 acme_settings_file"), "[SECRET_1] acme_settings_file");
        let long = OwnRule { max_len: 20, ..rule("own", Kind::Secret, r"KEY:[a-z]+", "KEY:abc") };
        let out = shown(&guard(vec![long]).unwrap(), &format!("KEY:{} x", "a".repeat(50)));
        assert_eq!(out, format!("[SECRET_1]{} x", "a".repeat(34)));
    }

    #[test]
    fn a_rule_that_is_too_large_too_wide_or_wrong_is_refused_with_advice() {
        let own = |pattern: &str| rule("own", Kind::Secret, pattern, "x");
        for (pattern, problem) in [
            ("x*", "matches nothing"),
            ("(?:EMP-1)?", "matches nothing"),
            (r"\d{4}-[A-Z]{2}", "no literal of 3 bytes"),
            (r"a\d+", "no literal of 3 bytes"),
            ("EMP.*", "without a bound"),
            ("(x|EMP[^,;]*)", "no literal"),
            (".+EMP", "without a bound"),
            (r"EMP-\d{6}(", "does not parse"),
            (r"EMP-\p{L}", "unicode = true"),
            ("EMP(?:a{1,90}){1,90}x", "too large"),
            (r"EMP(?:\w{1,30}){1,30}", "too large"),
            (&"(".repeat(40), "does not parse"),
            (&format!("{}EMP{}", "(".repeat(40), ")".repeat(40)), "does not parse"),
            (&"x".repeat(5000), "5000 bytes"),
        ] {
            let error = refused(own(pattern));
            assert!(error.starts_with("the rule `own` ") && error.contains(problem), "{pattern}: {error}");
        }
        let unicode = OwnRule { unicode: true, ..own(r"EMP\p{L}{1,200}-\d{3}") };
        assert!(refused(unicode).contains("without `unicode = true`"));
        for (wrong, problem) in [
            (OwnRule { id: "Über".to_owned(), ..employee() }, "small letters"),
            (OwnRule { id: "email".to_owned(), ..employee() }, "built-in rule"),
            (OwnRule { kind: Kind::KnownSecret, ..employee() }, "another kind"),
            (OwnRule { max_len: 0, ..employee() }, "1 to 256"),
            (OwnRule { max_len: 257, ..employee() }, "1 to 256"),
            (OwnRule { words: vec!["ab".to_owned()], ..employee() }, "word of 2 bytes"),
            (OwnRule { examples: Vec::new(), ..employee() }, "has no example"),
            (OwnRule { examples: vec!["EMP-12345".to_owned()], ..employee() }, "finds nothing in example 1"),
            (OwnRule { counter_examples: vec!["EMP-123456".to_owned()], ..employee() }, "counter-example 1"),
        ] {
            let error = refused(wrong);
            assert!(error.contains(problem), "{error}");
        }
        let mail = rule("mail", Kind::Phone, r"\w{1,20}@acme\.example", "to bob@acme.example");
        assert!(refused(mail).contains("`email` finds it first"));
        assert!(guard(vec![employee(), employee()]).unwrap_err().to_string().contains("twice"));
        let many = |count| (0..count).map(|at| OwnRule { id: format!("r{at}"), ..employee() }).collect();
        let problem = guard(many(201)).unwrap_err().to_string();
        assert!(problem.contains("at most 200"), "{problem}");
        // Equal rules at one place: the first counts, so each other one fails its example.
        assert!(guard(many(2)).unwrap_err().to_string().contains("`r0` finds it first"));
    }

    #[test]
    fn each_rule_sees_each_byte_once() {
        // A text of nothing but literals: the windows are merged.
        let own = OwnRules::new(&[rule("own", Kind::Secret, r"(?:abc){1,3}X", "abcX")]).unwrap().unwrap();
        let text = "abc".repeat(5000) + "X";
        let mut findings = Vec::new();
        own.find(text.as_bytes(), (0, text.len()), &mut findings);
        let places: Vec<_> = findings.iter().map(|found| (found.start, found.end)).collect();
        assert_eq!(places, [(text.len() - 10, text.len())]);
    }

    #[test]
    fn literals_are_found_in_any_form_of_a_pattern() {
        let of = |pattern: &str| {
            let hir = regex_syntax::ParserBuilder::new().unicode(false).utf8(false).build().parse(pattern);
            required(&hir.unwrap())
                .map(|all| all.iter().map(|one| String::from_utf8_lossy(one).into_owned()).collect())
        };
        let some = |all: &[&str]| Some(all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
        for (pattern, all) in [
            (r"\bEMP-\d{6}", some(&["emp-"])),
            (r"(?i)kd-nr\W{0,3}\d{8}", some(&["kd-nr"])),
            (r"(?:abc|de)\d{3}-xyzw", some(&["-xyzw"])),
            (r"(?:abc|def)\d{9}", some(&["abc", "def"])),
            (r"(abcd)+\d", some(&["abcd"])),
            (r"[AB]12[xy]", some(&["a12x", "a12y", "b12x", "b12y"])),
            (r"a?b?c?\d{3}", None),
            (r"(?:abc)?\d", None),
        ] {
            assert_eq!(of(pattern), all, "{pattern}");
        }
    }

    #[test]
    fn report_only_counts_findings_and_replaces_nothing() {
        let policy = Policy { rules: vec![employee()], mode: Mode::ReportOnly, ..Policy::default() };
        let guard = Guard::new(policy).unwrap();
        let (text, report) = guard.text("EMP-123456", &mut Numbering::alone());
        assert_eq!((&**text, report.total(), report.rules["employee"]), ("EMP-123456", 1, 1));
    }
}
