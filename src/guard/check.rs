//! A text as a compliance officer sees it: what would be replaced, where, by which rule and why.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Action, Guard, Kind, Numbering, Report, Sanitized, StreamGuard, rules};

/// One finding, without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// First byte.
    pub start: usize,
    /// First byte behind.
    pub end: usize,
    /// What it is.
    pub kind: Kind,
    /// The rule that found it.
    pub rule: String,
    /// Why that rule is sure.
    pub why: String,
    /// What the policy does with it.
    pub action: Action,
    /// Whether it was visible only after decoding.
    pub decoded: bool,
}

/// What the guard makes of a text.
#[derive(Debug, Clone, Serialize)]
pub struct Checked {
    /// What was found, in order, at most [`Checker::MAX_FINDINGS`].
    pub findings: Vec<Found>,
    /// How many findings more there were.
    pub left_out: u64,
    /// The counts.
    pub report: Report,
    /// The text as it would go out; of a [`Checker`], what of it had not gone out by the end.
    pub text: Sanitized<String>,
}

/// Looks at a text that comes in pieces, however long, and says what would be replaced and why.
#[derive(Debug)]
pub struct Checker {
    guard: Guard,
    stream: StreamGuard,
    numbering: Numbering,
    findings: Vec<Found>,
    left_out: u64,
    place: Place,
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
    /// Goes on to `to`, through text that begins at `base`.
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
    /// Findings that are kept; the report counts the rest.
    pub const MAX_FINDINGS: usize = 10_000;

    /// For a text under this guard's policy.
    pub fn new(guard: &Guard) -> Self {
        Self {
            guard: guard.clone(),
            stream: StreamGuard::seen(guard.clone()),
            numbering: Numbering::alone(),
            findings: Vec::new(),
            left_out: 0,
            place: Place { at: 0, line: 1, column: 0 },
        }
    }

    /// Takes a piece; what of the text would go out by now.
    pub fn push(&mut self, piece: &str) -> Sanitized<String> {
        self.take(piece, false)
    }

    /// What was found so far.
    pub(super) fn report(&self) -> &Report {
        self.stream.report()
    }

    /// The end of the text: the rest of what would go out, and what was found.
    pub fn finish(mut self) -> Checked {
        let text = self.take("", true);
        let Self { stream, findings, left_out, .. } = self;
        Checked { findings, left_out, report: stream.report().clone(), text }
    }

    fn take(&mut self, piece: &str, last: bool) -> Sanitized<String> {
        let Self { guard, stream, numbering, findings, left_out, place } = self;
        stream.push_seen(piece, last, numbering, &mut |text, base, come, found| {
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

impl Guard {
    /// Looks at a whole text and says what would be replaced and why.
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

/// The built-in rules and those of the policy as a table for people, with the action that a policy takes.
pub fn rules_table(guard: &Guard) -> String {
    let mut out = format!("{:<28} {:<16} {:<8}  what\n", "rule", "kind", "action");
    for rule in rules() {
        let action = super::report::action_name(guard.action(rule.kind));
        let _ = writeln!(out, "{:<28} {:<16} {action:<8}  {}", rule.id, rule.kind.as_str(), rule.what);
    }
    for rule in &guard.policy().rules {
        let action = super::report::action_name(guard.action(rule.kind));
        let _ = writeln!(out, "{:<28} {:<16} {action:<8}  {}", rule.id, rule.kind.as_str(), rule.what);
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
    fn findings_without_end_are_counted() {
        let text = "bob@example.com\n".repeat(Checker::MAX_FINDINGS + 3);
        let checked = Guard::default().check(&text);
        assert_eq!((checked.findings.len(), checked.left_out), (Checker::MAX_FINDINGS, 3));
        assert_eq!(checked.report.total(), checked.findings.len() as u64 + 3);
    }
}
