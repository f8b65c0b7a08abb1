//! A text as a compliance officer sees it: what would be replaced, where, by which rule and why.

use std::fmt::Write as _;

use serde::Serialize;

use super::stream::Engine;
use super::{Action, Guard, Kind, Numbering, Report, Sanitized, rule::RULES, rules};

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
    pub rule: &'static str,
    /// Why that rule is sure.
    pub why: &'static str,
    /// What the policy does with it.
    pub action: Action,
    /// Whether it was visible only after decoding.
    pub decoded: bool,
}

/// What the guard makes of a text.
#[derive(Debug, Clone, Serialize)]
pub struct Checked {
    /// What was found, in order.
    pub findings: Vec<Found>,
    /// The counts.
    pub report: Report,
    /// The text as it would go out.
    pub text: Sanitized<String>,
}

impl Guard {
    /// Looks at a text and says what would be replaced and why.
    pub fn check(&self, text: &str) -> Checked {
        let mut numbering = Numbering::alone();
        let mut engine = Engine::new(self.clone());
        engine.places = Some(Vec::new());
        let out = engine.whole(text, &mut numbering);
        let (places, report) = (engine.places.unwrap_or_default(), engine.report);
        let (mut line, mut line_start, mut seen) = (1, 0, 0);
        let mut findings = Vec::new();
        for place in places {
            for at in memchr::memchr_iter(b'\n', &text.as_bytes()[seen..place.start]) {
                line += 1;
                line_start = seen + at + 1;
            }
            seen = place.start;
            let rule = &RULES.list[usize::from(place.rule)];
            findings.push(Found {
                line,
                column: text[line_start..place.start].chars().count() + 1,
                start: place.start,
                end: place.end,
                kind: place.kind,
                rule: &rule.id,
                why: &rule.what,
                action: self.policy().action(place.kind),
                decoded: place.decoded,
            });
        }
        Checked { findings, report, text: Sanitized::vouch(out) }
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
        out
    }
}

/// The built-in rules as a table for people, with the action that a policy takes.
pub fn rules_table(guard: &Guard) -> String {
    let mut out = format!("{:<28} {:<16} {:<8}  what\n", "rule", "kind", "action");
    for rule in rules() {
        let action = super::report::action_name(guard.policy().action(rule.kind));
        let _ = writeln!(out, "{:<28} {:<16} {action:<8}  {}", rule.id, rule.kind.as_str(), rule.what);
    }
    out
}
