//! A text as a compliance officer sees it: what would be replaced, where, by which rule and why.

use std::fmt::Write as _;

use serde::Serialize;

use super::scan::Finding;
use super::scan::excuse::{EXCUSES, Judged};
use super::{Action, Carrier, Evidence, Guard, Kind, Numbering, Report, Sanitized, StreamGuard, rules};

/// One finding, without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// First byte.
    pub start: usize,
    /// First byte after it.
    pub end: usize,
    /// What it is.
    pub kind: Kind,
    /// The rule that found it.
    pub rule: String,
    /// Why that rule is certain.
    pub why: String,
    /// The policy's action.
    pub action: Action,
    /// Whether it was visible only after decoding.
    pub decoded: bool,
}

/// A candidate, without its text: the evidence for it, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Candidate {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// First byte.
    pub start: usize,
    /// First byte after it.
    pub end: usize,
    /// What kind it would be.
    pub kind: Kind,
    /// The rule that proposed it.
    pub rule: String,
    /// The evidence for it.
    pub evidence: Vec<Evidence>,
    /// What kind of line it is on.
    pub carrier: Carrier,
    /// The weight of its evidence.
    pub sum: u32,
    /// The weight that the policy's profile requires.
    pub threshold: u32,
    /// What became of it.
    pub outcome: Outcome,
    /// The excuse that applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excuse: Option<&'static str>,
}

/// What became of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is a finding, or part of one.
    Found,
    /// An excuse applied.
    Excused,
    /// Its evidence weighs less than the profile requires.
    TooLittle,
    /// The policy allows its kind, or this value.
    LetThrough,
}

/// The result of checking a text.
#[derive(Debug, Clone, Serialize)]
pub struct Checked {
    /// What was found, in order, at most [`Checker::MAX_FINDINGS`].
    pub findings: Vec<Found>,
    /// How many more findings there were.
    pub left_out: u64,
    /// The candidates in order, if requested; the same limit as for findings.
    pub candidates: Vec<Candidate>,
    /// The counts.
    pub report: Report,
    /// The text as it would go out; from a [`Checker`], the part that had not gone out by the end.
    pub text: Sanitized<String>,
}

/// Checks a text of any length that comes in pieces: what would be replaced, and why.
#[derive(Debug)]
pub struct Checker {
    guard: Guard,
    stream: StreamGuard,
    numbering: Numbering,
    findings: Vec<Found>,
    left_out: u64,
    /// Whether candidates are kept, and the candidates.
    explain: bool,
    candidates: Vec<Candidate>,
    place: Place,
    /// The same for candidates.
    candidate_place: Place,
}

/// How far lines and columns have been counted.
#[derive(Debug)]
struct Place {
    at: usize,
    line: usize,
    /// Characters since the line began.
    column: usize,
}

impl Place {
    /// Advances to `to`, through text that begins at `base`.
    fn advance(&mut self, text: &str, base: usize, to: usize) {
        let passed = &text[self.at - base..to - base];
        match memchr::memrchr(b'\n', passed.as_bytes()) {
            Some(feed) => {
                self.line += memchr::memchr_iter(b'\n', passed.as_bytes()).count();
                self.column = passed[feed + 1..].chars().count();
            }
            None => self.column += passed.chars().count(),
        }
        self.at = to;
    }
}

impl Checker {
    /// The most findings that are kept; the report counts the rest.
    pub const MAX_FINDINGS: usize = 10_000;

    /// A checker for a text under this guard's policy.
    pub fn new(guard: &Guard) -> Self {
        Self {
            guard: guard.clone(),
            stream: StreamGuard::seen(guard.clone()),
            numbering: Numbering::alone(),
            findings: Vec::new(),
            left_out: 0,
            explain: false,
            candidates: Vec::new(),
            place: Place { at: 0, line: 1, column: 0 },
            candidate_place: Place { at: 0, line: 1, column: 0 },
        }
    }

    /// The same, which also gives each candidate's evidence and outcome.
    pub fn explaining(guard: &Guard) -> Self {
        Self { stream: StreamGuard::explained(guard.clone()), explain: true, ..Self::new(guard) }
    }

    /// Takes a piece; returns the part of the text that is ready to go out.
    pub fn push(&mut self, piece: &str) -> Sanitized<String> {
        self.take(piece, false)
    }

    /// What was found so far.
    pub(super) fn report(&self) -> &Report {
        self.stream.report()
    }

    /// Ends the text: the rest of what would go out, and what was found.
    pub fn finish(mut self) -> Checked {
        let text = self.take("", true);
        let Self { stream, findings, left_out, candidates, .. } = self;
        Checked { findings, left_out, candidates, report: stream.report().clone(), text }
    }

    fn take(&mut self, piece: &str, last: bool) -> Sanitized<String> {
        let Self {
            guard,
            stream,
            numbering,
            findings,
            left_out,
            explain,
            candidates,
            place,
            candidate_place,
        } = self;
        stream.push_seen(piece, last, numbering, &mut |text, base, come, found, judged| {
            let room = if *explain { Self::MAX_FINDINGS - candidates.len() } else { 0 };
            for judged in in_order(judged, found).into_iter().take(room) {
                candidate_place.advance(text, base, base + judged.finding.start);
                candidates.push(candidate(guard, &judged, base, candidate_place, found));
            }
            candidate_place.advance(text, base, base + come);
            for finding in found {
                if findings.len() == Self::MAX_FINDINGS {
                    *left_out += 1;
                    continue;
                }
                place.advance(text, base, base + finding.start);
                let (rule, why) = guard.described(finding.rule);
                findings.push(Found {
                    line: place.line,
                    column: place.column + 1,
                    start: base + finding.start,
                    end: base + finding.end,
                    kind: finding.kind,
                    rule: rule.to_owned(),
                    why: why.to_owned(),
                    action: guard.action(finding.kind),
                    decoded: finding.decoded,
                });
            }
            place.advance(text, base, base + come);
        })
    }
}

/// Candidates in the order of the text, each once.
fn in_order(judged: &[Judged], found: &[Finding]) -> Vec<Judged> {
    let mut all = judged.to_vec();
    // Findings from a head alone, a key's armour, a known value or a policy's rule had no candidate.
    let known = |one: &&Finding| judged.iter().all(|judged| !overlap(&judged.finding, one));
    all.extend(found.iter().filter(known).map(|finding| Judged::unproposed(*finding)));
    all.sort_by_key(|one| (one.finding.start, one.finding.end, one.finding.rule));
    all.dedup_by_key(|one| (one.finding.start, one.finding.end, one.finding.rule));
    all
}

fn overlap(a: &Finding, b: &Finding) -> bool {
    a.start < b.end && b.start < a.end
}

fn candidate(guard: &Guard, judged: &Judged, base: usize, place: &Place, found: &[Finding]) -> Candidate {
    let finding = &judged.finding;
    let outcome = match judged.excuse {
        Some(_) => Outcome::Excused,
        None if judged.sum < judged.threshold => Outcome::TooLittle,
        None if found.iter().any(|found| overlap(found, finding)) => Outcome::Found,
        None => Outcome::LetThrough,
    };
    Candidate {
        line: place.line,
        column: place.column + 1,
        start: base + finding.start,
        end: base + finding.end,
        kind: finding.kind,
        rule: guard.described(finding.rule).0.to_owned(),
        evidence: judged.evidence.clone(),
        carrier: judged.carrier,
        sum: judged.sum,
        threshold: judged.threshold,
        outcome,
        excuse: judged.excuse.map(|row| EXCUSES.list[row].id.as_str()),
    }
}

impl Guard {
    /// Checks a whole text: what would be replaced, and why.
    pub fn check(&self, text: &str) -> Checked {
        let mut checker = Checker::new(self);
        let begun = checker.push(text).into_inner();
        let mut checked = checker.finish();
        let text = if checked.report.blocked { String::new() } else { begun + &checked.text };
        checked.text = Sanitized::vouch(text);
        checked
    }
}

impl Checked {
    /// The findings as a table for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        let mode = self.report.mode.as_str();
        let (version, fingerprint) = (&self.report.policy, &self.report.policy_fingerprint);
        let _ = writeln!(out, "policy {version} ({fingerprint}), mode {mode}");
        if self.findings.is_empty() {
            out.push_str("nothing found\n");
            return out;
        }
        let _ = writeln!(
            out,
            "{:>6} {:>5} {:>5}  {:<16} {:<8}  rule: why",
            "line", "col", "bytes", "kind", "action"
        );
        for found in &self.findings {
            let bytes = found.end - found.start;
            let action = super::report::action_name(found.action);
            let decoded = if found.decoded { " (after decoding)" } else { "" };
            let _ = writeln!(
                out,
                "{:>6} {:>5} {bytes:>5}  {:<16} {action:<8}  {}: {}{decoded}",
                found.line,
                found.column,
                found.kind.as_str(),
                found.rule,
                found.why
            );
        }
        if self.left_out > 0 {
            let _ = writeln!(out, "{:>6} more", self.left_out);
        }
        out
    }
}

impl Checked {
    /// The candidates as a table for people.
    pub fn explanation(&self) -> String {
        let mut out = format!(
            "{:>6} {:>5} {:>5}  {:<16} {:<20} {:<11} evidence\n",
            "line", "col", "bytes", "kind", "rule", "outcome"
        );
        for one in &self.candidates {
            let evidence: Vec<String> = one.evidence.iter().map(name).collect();
            let excuse = one.excuse.map(|id| format!(", excuse {id}")).unwrap_or_default();
            let _ = writeln!(
                out,
                "{:>6} {:>5} {:>5}  {:<16} {:<20} {:<11} {} = {} of {} in {}{excuse}",
                one.line,
                one.column,
                one.end - one.start,
                one.kind.as_str(),
                one.rule,
                name(&one.outcome).replace('_', " "),
                evidence.join(" + "),
                one.sum,
                one.threshold,
                name(&one.carrier),
            );
        }
        out
    }
}

/// A name as it appears in data.
fn name(one: &impl Serialize) -> String {
    let value = serde_json::to_value(one).ok();
    value.and_then(|value| Some(value.as_str()?.to_owned())).unwrap_or_default()
}

/// The built-in excuses as a table for people.
pub fn excuses_table() -> String {
    let mut out = format!("{:<26} {:<30}  what\n", "excuse", "applies to");
    for excuse in super::excuses() {
        let _ = writeln!(out, "{:<26} {:<30}  {}", excuse.id, excuse.applies.join(", "), excuse.what);
    }
    out
}

/// The built-in rules and those of the policy as a table for people, with the action that a policy takes.
pub fn rules_table(guard: &Guard) -> String {
    let mut out = format!("{:<28} {:<16} {:<8}  what\n", "rule", "kind", "action");
    let own = guard.policy().rules.iter().map(|rule| (&rule.id, rule.kind, &rule.what));
    for (id, kind, what) in rules().iter().map(|rule| (&rule.id, rule.kind, &rule.what)).chain(own) {
        let action = super::report::action_name(guard.action(kind));
        let _ = writeln!(out, "{id:<28} {:<16} {action:<8}  {what}", kind.as_str());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_the_same_however_the_text_comes() {
        let guard = Guard::default();
        let text = format!(
            "é\n{}, ask bob@example.com\nand {} carol@example.com",
            "x".repeat(99),
            "word ".repeat(9_000)
        );
        let whole = guard.check(&text);
        let places: Vec<_> = whole
            .findings
            .iter()
            .map(|found| (found.line, found.column, &text[found.start..found.end]))
            .collect();
        assert_eq!(places, [(2, 106, "bob@example.com"), (3, 45_006, "carol@example.com")]);
        for step in [1, 5_000, 40_000] {
            let mut checker = Checker::new(&guard);
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(
                    (step..)
                        .find(|at| *at >= rest.len() || rest.is_char_boundary(*at))
                        .unwrap()
                        .min(rest.len()),
                );
                checker.push(piece);
                rest = after;
            }
            assert_eq!(checker.finish().findings, whole.findings, "{step}");
        }
    }

    #[test]
    fn findings_beyond_the_limit_are_counted() {
        let text = "bob@example.com\n".repeat(Checker::MAX_FINDINGS + 3);
        let checked = Guard::default().check(&text);
        assert_eq!((checked.findings.len(), checked.left_out), (Checker::MAX_FINDINGS, 3));
        assert_eq!(checked.report.total(), checked.findings.len() as u64 + 3);
    }
}
