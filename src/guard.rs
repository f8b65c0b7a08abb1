//! The egress guard: text or JSON in, [`Sanitized`] out.
//!
//! All output of a sandbox passes through here before a model, a log or a client sees it. Pure code: no I/O, no clock, no
//! async. `docs/guard.md` describes what is found, how, and what is not.
//!
//! ```
//! use pathbox::guard::{Guard, Numbering};
//! let guard = Guard::default();
//! let mut numbering = Numbering::alone();
//! let (text, report) = guard.text("pay DE89 3704 0044 0532 0130 00, ask bob@example.com", &mut numbering);
//! assert_eq!(*text, "pay [IBAN_1], ask [EMAIL_1]");
//! assert_eq!(report.total(), 2);
//! ```

mod allow;
mod check;
#[macro_use]
mod classes;
mod confirm;
mod container;
mod embedded;
mod encoded;
mod excluded;
mod heads;
mod identifier;
mod kind;
mod known;
mod literal;
mod nested;
mod numbering;
mod outcome;
mod own;
mod pem;
mod picture;
mod policy;
mod reading;
mod redact;
mod report;
mod rule;
mod sanitized;
mod scan;
mod seal;
mod simd;
mod stream;
mod table;
mod view;
mod walk;
mod words;

use std::ops::Range;
use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::Value;
use zeroize::Zeroizing;

pub use check::{Candidate, Checked, Checker, Found, Outcome, excuses_table, rules_table};
pub use kind::{Kind, UnknownKind};
pub use known::Known;
pub use literal::{Lexer, Unresolved};
pub use numbering::{Numbering, Row};
pub use outcome::{FileKind, Guarded, Kept, OutcomeGuard, OutputLimits, Refused};
pub use own::{OwnCheck, OwnRule};
pub use picture::Format;
pub use policy::{
    Action, AllowList, KnownNames, Mode, OpaqueFiles, Overlay, Placeholders, Policy, PolicyFile, Resolving,
    Scope,
};
pub use report::{Report, Tally};
pub use rule::{Check, Rule};
pub use sanitized::Sanitized;
pub use scan::excuse::{Carrier, Evidence, Excuse, Form, Profile, Shape};
pub use seal::{SealError, Sealer};
pub use stream::StreamGuard;

/// The policy is invalid.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A pattern of an allow-list is not a valid regular expression, or it is too large.
    #[error("allow-list pattern {index} does not compile")]
    Pattern {
        /// Which pattern, from 0.
        index: usize,
        /// What is wrong with it.
        #[source]
        source: regex::Error,
    },
    /// A network of an allow-list does not parse.
    #[error("allow-list network {index} is not an address or address/prefix")]
    Network {
        /// Which network, from 0.
        index: usize,
    },
    /// A rule of the policy is invalid.
    #[error("the rule `{id}` {problem}")]
    Rule {
        /// Its id.
        id: String,
        /// What is wrong with it, and how to fix it.
        problem: String,
    },
}

impl From<(String, String)> for PolicyError {
    fn from((id, problem): (String, String)) -> Self {
        Self::Rule { id: id.chars().take(64).collect(), problem }
    }
}

/// Guards output under one policy. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Guard(Arc<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    policy: Policy,
    fingerprint: String,
    allowed: allow::Allowed,
    known: Known,
    /// The excuses that apply under the policy.
    criteria: scan::excuse::Criteria,
    /// The policy's action for each kind, in the order of [`Kind::ALL`].
    actions: Vec<Action>,
    /// Whether the policy looks for a kind that is allowed by default.
    wants_all: bool,
}

impl Default for Guard {
    /// The built-in policy: enforce, redact.
    fn default() -> Self {
        Self::with(Policy::default(), allow::Allowed::default(), Known::default())
    }
}

impl Guard {
    /// A guard that follows `policy`.
    ///
    /// # Errors
    /// [`PolicyError`] when the policy does not compile; report it to its author.
    pub fn new(policy: Policy) -> Result<Self, PolicyError> {
        Self::knowing(policy, &Known::default())
    }

    /// The same, which also finds known secret values. The policy's own rules are compiled and tried on their
    /// examples, unless `known` comes from a guard with the same rules.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn knowing(policy: Policy, known: &Known) -> Result<Self, PolicyError> {
        let allowed = allow::Allowed::new(&policy.allow)?;
        let (known, new) = known.with_rules(&policy.rules)?;
        let guard = Self::with(policy, allowed, known);
        if new && let Some(own) = guard.0.known.rules() {
            own.try_examples(&guard.enforcing())?;
        }
        Ok(guard)
    }

    /// What this guard looks for besides the built-in rules.
    pub fn known(&self) -> &Known {
        &self.0.known
    }

    /// The same guard, which also finds the values that a run's code received for placeholders, in every form in which known
    /// values are looked for, and writes the same placeholder.
    pub fn resolving<'a>(&self, values: impl IntoIterator<Item = (Kind, u32, &'a str)>) -> Self {
        Self::with(self.policy().clone(), self.0.allowed.clone(), self.0.known.resolving(values))
    }

    /// The same guard in enforce mode, whatever the policy's mode is: for examples.
    fn enforcing(&self) -> Self {
        let policy = Policy { mode: Mode::Enforce, ..self.policy().clone() };
        Self::with(policy, self.0.allowed.clone(), self.0.known.clone())
    }

    /// Whether the policy leaves values of a kind unchanged.
    fn leaves(&self, kind: Kind) -> bool {
        self.action(kind) == Action::Allow
    }

    /// The name and description of a rule, for people.
    fn described(&self, id: rule::RuleId) -> (&str, &str) {
        match self.0.known.rules().and_then(|own| own.rule(id)) {
            Some(own) if own.what.is_empty() => (&own.id, "a rule of the policy"),
            Some(own) => (&own.id, &own.what),
            None => rule::described(id),
        }
    }

    fn with(policy: Policy, allowed: allow::Allowed, known: Known) -> Self {
        let fingerprint = policy.fingerprint();
        let actions = Kind::ALL.iter().map(|kind| policy.action(*kind)).collect();
        let off = |kind: &&Kind| kind.default_action() == Action::Allow;
        let wants_all = Kind::ALL.iter().filter(off).any(|kind| policy.action(*kind) != Action::Allow);
        let criteria = scan::excuse::Criteria::new(policy.profile, &policy.excuses_off);
        Self(Arc::new(Inner { policy, fingerprint, allowed, known, criteria, actions, wants_all }))
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// An empty report that carries this guard's policy and mode: for an output in which nothing was found.
    pub fn report(&self) -> Report {
        Report::new(&self.0.policy, &self.0.fingerprint)
    }

    /// Guards a whole text.
    pub fn text(&self, text: &str, numbering: &mut Numbering) -> (Sanitized<String>, Report) {
        let mut report = self.report();
        let out = self.run(text, numbering, &mut report);
        (Sanitized::vouch(out), report)
    }

    /// Guards one line of our own that may quote untrusted text: an error message, a purpose, a file name, a log
    /// line. Placeholders carry no numbers, because there is no context to count in.
    pub fn line(&self, text: &str) -> Sanitized<String> {
        let mut engine = stream::Engine::new(self.clone());
        engine.numbered = false;
        Sanitized::vouch(engine.whole(text, &mut Numbering::alone()))
    }

    /// Guards a JSON value: keys and values. The result is JSON of the same shape; a number that had to be
    /// replaced becomes a string.
    pub fn json(&self, value: Value, numbering: &mut Numbering) -> (Sanitized<Value>, Report) {
        let mut left = picture::MAX_INFLATED;
        self.json_within("", value, numbering, &mut left)
    }

    /// The same for a named media type, with a limit on the bytes that PDFs may inflate to.
    fn json_within(
        &self,
        name: &str,
        value: Value,
        numbering: &mut Numbering,
        left: &mut u64,
    ) -> (Sanitized<Value>, Report) {
        let mut report = self.report();
        let value = if report.mode == Mode::Off {
            value
        } else {
            walk::Walk { guard: self, numbering, report: &mut report, left }.value(name, value)
        };
        (Sanitized::vouch(value), report)
    }

    /// Guards text that comes in pieces.
    pub fn stream(&self) -> StreamGuard {
        StreamGuard::new(self.clone())
    }

    /// Guards one text and adds to a running report.
    fn run(&self, text: &str, numbering: &mut Numbering, report: &mut Report) -> String {
        let mut engine = stream::Engine::new(self.clone());
        let out = engine.whole(text, numbering);
        report.absorb(&engine.report);
        out
    }

    /// Guards one value, given its name or `""`.
    fn run_named(&self, name: &str, text: &str, numbering: &mut Numbering, report: &mut Report) -> String {
        let mut engine = stream::Engine::new(self.clone());
        let out = match name {
            "" => engine.whole(text, numbering),
            _ => engine.named(name, text, numbering),
        };
        report.absorb(&engine.report);
        out
    }

    /// The policy's action for a kind.
    fn action(&self, kind: Kind) -> Action {
        self.0.actions[kind as usize]
    }

    /// Whether an allow-list contains this value, or it is a special-purpose address.
    fn lets_through(&self, kind: Kind, value: &str) -> bool {
        let special = || kind == Kind::Ip && !self.0.policy.every_address && allow::is_special_purpose(value);
        kind != Kind::KnownSecret && (self.0.allowed.lets_through(kind, value) || special())
    }
}

/// Guards the program's own messages where they may quote untrusted text: an error, a log line. Applies whatever the
/// policy says, because no value is needed there. Addresses of this machine and of private networks stay, for operators.
pub fn own_words(text: &str) -> Sanitized<String> {
    static GUARD: LazyLock<Guard> = LazyLock::new(|| own_guard(&Known::default()));
    OWN.get().unwrap_or(&GUARD).line(text)
}

/// Keeps known secrets out of [`own_words`] too, from here on. The first call wins: a process has one set of them.
pub fn never_say(known: &Known) {
    OWN.get_or_init(|| own_guard(known));
}

/// The guard of [`own_words`], once there are secrets to know. Static, because a log line written anywhere has no other
/// way to reach it.
static OWN: OnceLock<Guard> = OnceLock::new();

fn own_guard(known: &Known) -> Guard {
    Guard::with(Policy::default(), allow::Allowed::default(), known.clone())
}

/// The first placeholder in a text, such as `[EMAIL_1]`: somebody copied it as if it were the value.
pub fn first_placeholder(text: &str) -> Option<&str> {
    let numbered = |at: usize| {
        let placeholder = &text[at..at + scan::placeholder_len(&text.as_bytes()[at..])?];
        placeholder.trim_end_matches(']').ends_with(|c: char| c.is_ascii_digit()).then_some(placeholder)
    };
    memchr::memchr_iter(b'[', text.as_bytes()).find_map(numbered)
}

/// The built-in excuses, for people who want to know what is not reported.
pub fn excuses() -> &'static [Excuse] {
    &scan::excuse::EXCUSES.list
}

/// The numbered placeholders in a program outside its comments, in order: place, kind and number.
pub fn placeholders_in(lexer: Lexer, code: &str) -> Vec<(Range<usize>, Kind, u32)> {
    let numbered = |at: usize| {
        let span = at..at + scan::placeholder_len(&code.as_bytes()[at..])?;
        let (kind, number) = code[at + 1..span.end - 1].rsplit_once('_')?;
        Some((span, Kind::named(kind.as_bytes())?, number.parse().ok()?))
    };
    let all = memchr::memchr_iter(b'[', code.as_bytes()).filter_map(numbered).collect();
    literal::outside_comments(lexer, code, all)
}

/// The program with each such placeholder replaced by its value, where there is one. Line numbers do not change.
///
/// # Errors
/// The first placeholder that no value can replace.
pub fn put_in(
    lexer: Lexer,
    code: &str,
    found: &[(Range<usize>, Option<&str>)],
) -> Result<Zeroizing<String>, Unresolved> {
    literal::put_in(lexer, code, found)
}

/// The built-in rules, for people who want to know what is looked for.
pub fn rules() -> &'static [Rule] {
    &rule::RULES.list
}
