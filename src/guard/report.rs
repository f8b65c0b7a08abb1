//! What was found: kinds, counts, lengths, rule ids. Never the text, nor a part or plain hash of it.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::domain::Kept;

use super::policy::{Mode, Policy, Scope};
use super::rule::RuleId;
use super::scan::Finding;
use super::{Action, Guard, Kind};

/// How often a kind was found, and the total length of its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Findings.
    pub count: u64,
    /// Bytes of the replaced values in total.
    pub bytes: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

/// Findings of one rule with the same action.
pub(super) struct Found {
    rule: RuleId,
    kind: Kind,
    action: Action,
    tally: Tally,
    decoded: u64,
}

impl Found {
    /// One finding of this many bytes.
    pub(super) fn one(finding: &Finding, action: Action, bytes: usize) -> Self {
        let tally = Tally { count: 1, bytes: bytes as u64 };
        Self { rule: finding.rule, kind: finding.kind, action, tally, decoded: finding.decoded.into() }
    }

    /// Adds what `other` counts, if it has the same rule and action.
    pub(super) fn take(&mut self, other: &Self) -> bool {
        let same = (self.rule, self.action) == (other.rule, other.action);
        if same {
            self.tally += other.tally;
            self.decoded += other.decoded;
        }
        same
    }
}

/// What the guard did with one output. Safe to store, log and show.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Report {
    /// Version of the policy.
    pub policy: String,
    /// Fingerprint of the policy.
    pub policy_fingerprint: String,
    /// The effective mode.
    pub mode: Mode,
    /// The requested mode.
    pub requested: Mode,
    /// The level that decided the mode.
    pub decided_by: Scope,
    /// What was replaced, by kind.
    pub findings: BTreeMap<Kind, Tally>,
    /// What would have been replaced in `report_only`.
    pub would_redact: BTreeMap<Kind, Tally>,
    /// What was let through by allow-lists.
    pub allowed: BTreeMap<Kind, u64>,
    /// How often each rule fired.
    pub rules: BTreeMap<String, u64>,
    /// How often each action was taken.
    pub actions: BTreeMap<String, u64>,
    /// Findings that were visible only after decoding (base64, hex, percent, escapes, invisible characters).
    pub decoded: u64,
    /// Placeholders that the output tried to forge.
    pub forged: u64,
    /// JSON numbers that became text.
    pub type_changed: u64,
    /// Parts that were dropped because they could not be inspected: deep nesting, unknown binary.
    pub withheld: u64,
    /// Failures of the guard itself; the segment was withheld.
    pub errors: u64,
    /// Whether a finding's action withholds the whole result.
    pub blocked: bool,
    /// Settings that a level of the policy requested and that were refused, because the level above does not allow them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// Bytes scanned.
    pub bytes_in: u64,
    /// Bytes let out.
    pub bytes_out: u64,
}

impl Kept for Report {
    const WHAT: &'static str = "a report of the guard";
    const FORMAT: u64 = 1;
}

impl Report {
    /// An empty report for a policy.
    pub(super) fn new(policy: &Policy, fingerprint: &str) -> Self {
        Self {
            policy: policy.version.clone(),
            policy_fingerprint: fingerprint.to_owned(),
            mode: policy.mode,
            requested: policy.requested,
            decided_by: policy.decided_by,
            refused: policy
                .refused
                .iter()
                .map(|(scope, what)| format!("{what} ({})", format!("{scope:?}").to_lowercase()))
                .collect(),
            ..Self::default()
        }
    }

    /// Counts findings.
    pub(super) fn found(&mut self, found: Found, guard: &Guard) {
        let Found { rule, kind, action, tally, decoded } = found;
        let (rule, _) = guard.described(rule);
        let tallies = if self.mode == Mode::Enforce { &mut self.findings } else { &mut self.would_redact };
        *tallies.entry(kind).or_default() += tally;
        self.decoded += decoded;
        add(&mut self.rules, rule, tally.count);
        if self.mode == Mode::Enforce {
            add(&mut self.actions, action_name(action), tally.count);
            self.blocked |= action == Action::Block;
        }
    }

    /// Adds what another report of the same policy counted.
    pub fn absorb(&mut self, other: &Self) {
        for (mine, theirs) in
            [(&mut self.findings, &other.findings), (&mut self.would_redact, &other.would_redact)]
        {
            theirs.iter().for_each(|(kind, tally)| *mine.entry(*kind).or_default() += *tally);
        }
        for (kind, count) in &other.allowed {
            *self.allowed.entry(*kind).or_default() += count;
        }
        for (mine, theirs) in [(&mut self.rules, &other.rules), (&mut self.actions, &other.actions)] {
            theirs.iter().for_each(|(name, count)| add(mine, name, *count));
        }
        self.decoded += other.decoded;
        self.forged += other.forged;
        self.type_changed += other.type_changed;
        self.withheld += other.withheld;
        self.errors += other.errors;
        self.blocked |= other.blocked;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }

    /// The report of an output that was guarded before, as reported in `before`, and now again under another policy: values
    /// replaced then cannot be found again.
    pub(super) fn after(mut self, before: &Self) -> Self {
        if self.policy_fingerprint == before.policy_fingerprint {
            return Self { blocked: self.blocked || before.blocked, ..before.clone() };
        }
        let replaced = Self { findings: before.findings.clone(), blocked: before.blocked, ..Self::default() };
        self.absorb(&replaced);
        self
    }

    /// Findings of all kinds, replaced or only counted.
    pub fn total(&self) -> u64 {
        self.findings.values().chain(self.would_redact.values()).map(|tally| tally.count).sum()
    }

    /// Findings by kind, replaced or only counted: what results and the store keep.
    pub fn by_kind(&self) -> BTreeMap<Kind, u64> {
        let mut counts = BTreeMap::new();
        for (kind, tally) in self.findings.iter().chain(&self.would_redact) {
            *counts.entry(*kind).or_default() += tally.count;
        }
        counts
    }
}

/// Counts without allocating a new key each time.
fn add(counts: &mut BTreeMap<String, u64>, name: &str, more: u64) {
    match counts.get_mut(name) {
        Some(count) => *count += more,
        None => {
            counts.insert(name.to_owned(), more);
        }
    }
}

pub(super) fn action_name(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Mask => "mask",
        Action::Hash => "hash",
        Action::Tokenize => "tokenize",
        Action::Redact => "redact",
        Action::Block => "block",
    }
}
