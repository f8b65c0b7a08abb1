//! Policies as data: what is done with each kind of finding, for whom, and who may loosen it.
//!
//! Four levels apply in turn: base, tenant, conversation, call. Each may tighten what is above it. Loosening (a
//! weaker mode, a weaker action, a longer allow-list) is ignored, and noted, unless the level directly above says
//! `allow_off = true`. So a tool call that a model wrote can never switch the guard off.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{DeserializeSeed, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};

use super::{Kind, OwnRule, Profile, allow, excuses};
use crate::domain::hex;

/// Whether findings change the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nothing is scanned; the report says so.
    Off,
    /// Everything is scanned and counted, nothing is changed.
    ReportOnly,
    /// Findings are replaced.
    #[default]
    Enforce,
}

impl Mode {
    /// The name as it appears in policies and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::ReportOnly => "report_only",
            Self::Enforce => "enforce",
        }
    }
}

/// The action for a finding. The order is from loosest to tightest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Left as it is and not counted.
    Allow,
    /// All but the last few letters and digits become `*`.
    Mask,
    /// A keyed fingerprint: `[EMAIL:1f2e3d4c5b6a]`.
    Hash,
    /// A sealed token that a caller with the right can open: `[EMAIL~...]`. Redacted where no key is configured.
    Tokenize,
    /// A numbered placeholder: `[EMAIL_1]`.
    Redact,
    /// The whole result is withheld.
    Block,
}

/// What happens to a placeholder in the code of a later call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placeholders {
    /// It stays text.
    #[default]
    Text,
    /// In the sandbox it becomes the value that it replaced in this context.
    Resolve,
}

/// Which placeholders become their values again in the code of a later call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resolving {
    /// Whether any do.
    pub placeholders: Placeholders,
    /// Placeholders of these kinds.
    pub kinds: BTreeSet<Kind>,
    /// Whether also in a sandbox with network access.
    pub open_network: bool,
}

impl Resolving {
    fn is_off(&self) -> bool {
        self.placeholders == Placeholders::Text
    }
}

/// Whether a value of a kind may be kept and become part of code again at all.
fn may_resolve(kind: Kind) -> bool {
    !matches!(kind, Kind::KnownSecret | Kind::PrivateKey | Kind::Secret)
}

/// The kinds whose values describe a person and open nothing.
fn personal() -> BTreeSet<Kind> {
    use Kind::{
        Address, BirthDate, CreditCard, Email, EuVat, Iban, Ip, Mac, NationalId, Passport, Person, Phone,
        Ppsn, Ssn, UkNhs, UkNino,
    };
    BTreeSet::from([
        CreditCard, Iban, Ppsn, Ssn, UkNino, UkNhs, NationalId, Passport, EuVat, Email, Ip, Mac, Phone,
        BirthDate, Person, Address,
    ])
}

/// The kinds of a file's `placeholders_kinds`. A kind that may never be resolved is an error at its place.
fn resolvable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BTreeSet<Kind>>, D::Error> {
    let kinds = BTreeSet::<Kind>::deserialize(deserializer)?;
    match kinds.iter().find(|kind| !may_resolve(**kind)) {
        Some(kind) => {
            Err(serde::de::Error::custom(format!("{kind} never becomes its value again: leave it out")))
        }
        None => Ok(Some(kinds)),
    }
}

/// Which level decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The deployment's policy.
    #[default]
    Base,
    /// The tenant's.
    Tenant,
    /// The conversation's.
    Conversation,
    /// The single call's.
    Call,
}

/// Values that are let through although a rule finds them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AllowList {
    /// Whole values, compared literally, ignoring ASCII case.
    pub exact: Vec<String>,
    /// Regular expressions that must match the whole value.
    #[serde(deserialize_with = "entries::<_, allow::Pattern>")]
    pub patterns: Vec<String>,
    /// Domains (and their subdomains) of e-mail addresses and URLs.
    pub domains: Vec<String>,
    /// IP networks as `10.0.0.0/8`, `fd00::/8` or a single address.
    #[serde(deserialize_with = "entries::<_, allow::Network>")]
    pub networks: Vec<String>,
}

/// Entries of an allow-list, each checked when it is read, so that an error has its place in the file.
fn entries<'de, D: Deserializer<'de>, E: Deserialize<'de> + Into<String>>(
    deserializer: D,
) -> Result<Vec<String>, D::Error> {
    Ok(Vec::<E>::deserialize(deserializer)?.into_iter().map(Into::into).collect())
}

/// Whether a policy may set this at all: nothing of a known secret is shown, not even sealed.
fn may_be(kind: Kind, action: Action) -> bool {
    kind != Kind::KnownSecret || matches!(action, Action::Hash | Action::Redact | Action::Block)
}

/// The actions of a file's base level. An action that is not allowed is an error at its place, so that its author sees it.
fn kinds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<Kind, Action>, D::Error> {
    struct Kinds;
    struct For(Kind);
    impl<'de> Visitor<'de> for Kinds {
        type Value = BTreeMap<Kind, Action>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("kinds with their actions")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut kinds = BTreeMap::new();
            while let Some(kind) = map.next_key()? {
                kinds.insert(kind, map.next_value_seed(For(kind))?);
            }
            Ok(kinds)
        }
    }
    impl<'de> DeserializeSeed<'de> for For {
        type Value = Action;
        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Action, D::Error> {
            let action = Action::deserialize(deserializer)?;
            if may_be(self.0, action) {
                return Ok(action);
            }
            let kind = self.0;
            Err(serde::de::Error::custom(format!("{kind} is never shown: write redact, hash or block")))
        }
    }
    deserializer.deserialize_map(Kinds)
}

/// Ids of excuses, each of which must exist, so that an error has its place in the file.
fn excuse_ids<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let ids = Vec::<String>::deserialize(deserializer)?;
    match ids.iter().find(|id| excuses().iter().all(|excuse| excuse.id != **id)) {
        Some(id) => Err(serde::de::Error::custom(format!(
            "{id:?} is not an excuse: see `pathbox guard rules --excuses`"
        ))),
        None => Ok(ids),
    }
}

impl AllowList {
    /// A requested list that could not be read: it lets nothing through, because no value is empty.
    pub fn unread() -> Self {
        Self { exact: vec![String::new()], ..Self::default() }
    }

    fn is_empty(&self) -> bool {
        self == &Self::default()
    }
}

/// The settings of one level. Everything that it does not set is inherited.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Overlay {
    /// The requested mode.
    pub mode: Option<Mode>,
    /// Whether the level below may loosen.
    pub allow_off: bool,
    /// Requested actions.
    pub kinds: BTreeMap<Kind, Action>,
    /// Additional entries of the allow-list.
    pub allow: AllowList,
    /// What happens to a placeholder in the code of a later call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placeholders: Option<Placeholders>,
    /// The kinds that `placeholders` applies to.
    #[serde(deserialize_with = "resolvable", skip_serializing_if = "Option::is_none")]
    pub placeholders_kinds: Option<BTreeSet<Kind>>,
    /// Whether they become their values also in a sandbox with network access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placeholders_open_network: Option<bool>,
    /// Additional rules; a call may not add any.
    #[serde(rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<OwnRule>,
}

/// Values that must never leave, by name: a policy does not contain them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KnownNames {
    /// Variables of the server's environment whose values are secret.
    pub env: Vec<String>,
}

/// A policy file: the base level and the tenants' overlays (TOML or any other serde format).
///
/// ```
/// let file: pathbox::guard::PolicyFile = toml::from_str(r#"
///     version = "2026-11"
///     [kinds]
///     PERSON = "redact"
///     PRIVATE_KEY = "block"
///     [allow]
///     domains = ["example.com"]
///     [tenants.acme]
///     mode = "report_only"      # ignored: the base does not say allow_off
/// "#).unwrap();
/// let policy = file.resolve(Some("acme"), None, None);
/// assert_eq!(policy.mode, pathbox::guard::Mode::Enforce);
/// assert_eq!(policy.requested, pathbox::guard::Mode::ReportOnly);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyFile {
    /// The version that reports carry, at most 64 characters; `unnamed-` and 12 hex digits of its hash if a file gives none.
    #[serde(default = "unnamed")]
    pub version: String,
    /// The mode of the deployment.
    pub mode: Mode,
    /// Whether tenants may loosen.
    pub allow_off: bool,
    /// Actions that differ from the built-in ones.
    #[serde(deserialize_with = "kinds")]
    pub kinds: BTreeMap<Kind, Action>,
    /// What is let through everywhere.
    pub allow: AllowList,
    /// Values that are secret whatever they look like.
    pub known: KnownNames,
    /// Rules besides the built-in ones.
    #[serde(rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<OwnRule>,
    /// How many letters and digits `mask` keeps at the end, 0 to 8.
    pub mask_keep: u8,
    /// Whether placeholders carry numbers: `[EMAIL_1]` or `[EMAIL]`.
    pub numbered: bool,
    /// Whether special-purpose addresses are found: loopback, private, documentation, masks.
    pub every_address: bool,
    /// How much evidence is required, and which excuses apply.
    pub profile: Profile,
    /// Excuses that do not apply, by their ids.
    #[serde(deserialize_with = "excuse_ids")]
    pub excuses_off: Vec<String>,
    /// What happens to files that the guard cannot inspect.
    pub opaque_files: OpaqueFiles,
    /// What happens to a placeholder in the code of a later call: `text`, or with `resolve` it becomes the value that it
    /// replaced.
    pub placeholders: Placeholders,
    /// The kinds that `placeholders` applies to; personal ones by default.
    #[serde(deserialize_with = "resolvable", skip_serializing_if = "Option::is_none")]
    pub placeholders_kinds: Option<BTreeSet<Kind>>,
    /// Whether they become their values also in a sandbox with network access.
    pub placeholders_open_network: bool,
    /// Overlays by tenant.
    pub tenants: BTreeMap<String, Overlay>,
    /// Overlays by `tenant/conversation`.
    pub conversations: BTreeMap<String, Overlay>,
}

/// What happens to files that the guard cannot inspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpaqueFiles {
    /// They stay in the sandbox.
    #[default]
    Refuse,
    /// They go out as they are, and the report counts them.
    LetOut,
}

impl OpaqueFiles {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

fn unnamed() -> String {
    "unnamed".to_owned()
}

impl Default for PolicyFile {
    fn default() -> Self {
        Self {
            version: "builtin-1".to_owned(),
            mode: Mode::Enforce,
            allow_off: false,
            kinds: BTreeMap::new(),
            allow: AllowList::default(),
            known: KnownNames::default(),
            rules: Vec::new(),
            mask_keep: 4,
            numbered: true,
            every_address: false,
            profile: Profile::default(),
            excuses_off: Vec::new(),
            opaque_files: OpaqueFiles::default(),
            placeholders: Placeholders::default(),
            placeholders_kinds: None,
            placeholders_open_network: false,
            tenants: BTreeMap::new(),
            conversations: BTreeMap::new(),
        }
    }
}

/// The policy after all levels are applied: the one that a [`Guard`](super::Guard) follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// The file's version.
    pub version: String,
    /// The effective mode.
    pub mode: Mode,
    /// The mode requested by the last level that set one.
    pub requested: Mode,
    /// The level that `mode` comes from.
    pub decided_by: Scope,
    /// An action for each kind.
    pub actions: BTreeMap<Kind, Action>,
    /// What is let through.
    pub allow: AllowList,
    /// How many characters `mask` keeps.
    pub mask_keep: u8,
    /// Whether placeholders carry numbers.
    pub numbered: bool,
    /// Whether special-purpose addresses are found.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub every_address: bool,
    /// How much evidence is required, and which excuses apply.
    #[serde(skip_serializing_if = "Profile::is_default")]
    pub profile: Profile,
    /// Excuses that do not apply, by their ids.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excuses_off: Vec<String>,
    /// What happens to files that the guard cannot inspect.
    #[serde(skip_serializing_if = "OpaqueFiles::is_default")]
    pub opaque_files: OpaqueFiles,
    /// Which placeholders become their values again.
    #[serde(skip_serializing_if = "Resolving::is_off")]
    pub resolving: Resolving,
    /// Rules besides the built-in ones.
    #[serde(rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<OwnRule>,
    /// Requests that were refused because the level above does not allow loosening: the level and the setting.
    pub refused: Vec<(Scope, String)>,
}

impl Default for Policy {
    fn default() -> Self {
        PolicyFile::default().resolve(None, None, None)
    }
}

impl Policy {
    /// The action for a kind.
    pub fn action(&self, kind: Kind) -> Action {
        self.actions.get(&kind).copied().unwrap_or_else(|| kind.default_action())
    }

    /// Twelve hex digits that change with anything in the policy except `[known]`: known values never show in it.
    pub fn fingerprint(&self) -> String {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        hex(&Sha256::digest(&bytes)[..6])
    }

    /// The kinds that become sealed tokens.
    pub fn tokenized(&self) -> impl Iterator<Item = Kind> {
        self.actions.iter().filter(|(_, action)| **action == Action::Tokenize).map(|(kind, _)| *kind)
    }

    /// Which placeholders become their values again, if any: only where placeholders are written and have numbers.
    pub fn resolves(&self) -> Option<&Resolving> {
        let writes = self.mode == Mode::Enforce && self.numbered;
        (writes && !self.resolving.is_off()).then_some(&self.resolving)
    }

    /// Applies a level's settings for placeholders. A call can only switch them off.
    fn apply_resolving(&mut self, scope: Scope, overlay: &Overlay, may_loosen: bool) {
        let may = may_loosen && scope != Scope::Call;
        let now = &mut self.resolving;
        if let Some(wish) = overlay.placeholders {
            match may || wish <= now.placeholders {
                true => now.placeholders = wish,
                false => self.refused.push((scope, "placeholders".to_owned())),
            }
        }
        if let Some(kinds) = &overlay.placeholders_kinds {
            match may || kinds.is_subset(&now.kinds) {
                true => now.kinds = kinds.iter().copied().filter(|kind| may_resolve(*kind)).collect(),
                false => self.refused.push((scope, "placeholders_kinds".to_owned())),
            }
        }
        if let Some(open) = overlay.placeholders_open_network {
            match may || open <= now.open_network {
                true => now.open_network = open,
                false => self.refused.push((scope, "placeholders_open_network".to_owned())),
            }
        }
    }

    fn apply(&mut self, scope: Scope, overlay: &Overlay, may_loosen: bool) {
        self.apply_resolving(scope, overlay, may_loosen);
        if let Some(mode) = overlay.mode {
            self.requested = mode;
            if mode >= self.mode || may_loosen {
                if mode != self.mode {
                    self.decided_by = scope;
                }
                self.mode = mode;
            } else {
                self.refused.push((scope, format!("mode {}", mode.as_str())));
            }
        }
        for (kind, action) in &overlay.kinds {
            if may_be(*kind, *action) && (*action >= self.action(*kind) || may_loosen) {
                self.actions.insert(*kind, *action);
            } else {
                self.refused.push((scope, format!("action for {kind}")));
            }
        }
        match scope {
            // They are compiled when the policy is loaded.
            Scope::Call if !overlay.rules.is_empty() => self.refused.push((scope, "rules".to_owned())),
            _ => self.rules.extend(overlay.rules.iter().cloned()),
        }
        if overlay.allow.is_empty() {
            return;
        }
        if !may_loosen {
            self.refused.push((scope, "allow-list".to_owned()));
            return;
        }
        let more = overlay.allow.clone();
        self.allow.exact.extend(more.exact);
        self.allow.patterns.extend(more.patterns);
        self.allow.domains.extend(more.domains);
        self.allow.networks.extend(more.networks);
    }
}

impl PolicyFile {
    /// Reads a policy file (TOML). A file without a version gets its hash as one, so that two files do not look alike in
    /// reports.
    ///
    /// # Errors
    /// The place and kind of the error in the file.
    pub fn read(text: &str) -> Result<Self, toml::de::Error> {
        let mut file: Self = toml::from_str(text)?;
        if file.version == unnamed() {
            file.version = format!("{}-{}", unnamed(), hex(&Sha256::digest(text.as_bytes())[..6]));
        }
        Ok(file)
    }

    /// The policy for a call: base, then tenant, conversation and call, each within its permission.
    pub fn resolve(
        &self,
        tenant: Option<&str>,
        conversation: Option<&Overlay>,
        call: Option<&Overlay>,
    ) -> Policy {
        let mut actions: BTreeMap<Kind, Action> =
            Kind::ALL.iter().map(|kind| (*kind, kind.default_action())).collect();
        let (stated, refused): (Vec<_>, Vec<_>) =
            self.kinds.iter().partition(|(kind, action)| may_be(**kind, **action));
        actions.extend(stated);
        let refused = refused.iter().map(|(kind, _)| (Scope::Base, format!("action for {kind}")));
        let mut policy = Policy {
            version: self.version.chars().take(64).collect(),
            mode: self.mode,
            requested: self.mode,
            decided_by: Scope::Base,
            actions,
            allow: self.allow.clone(),
            mask_keep: self.mask_keep.min(8),
            numbered: self.numbered,
            every_address: self.every_address,
            profile: self.profile,
            excuses_off: self.excuses_off.clone(),
            opaque_files: self.opaque_files,
            resolving: Resolving {
                placeholders: self.placeholders,
                kinds: match &self.placeholders_kinds {
                    Some(kinds) => kinds.iter().copied().filter(|kind| may_resolve(*kind)).collect(),
                    None => personal(),
                },
                open_network: self.placeholders_open_network,
            },
            rules: self.rules.clone(),
            refused: refused.collect(),
        };
        let tenant = tenant.and_then(|name| self.tenants.get(name));
        let levels = [(Scope::Tenant, tenant), (Scope::Conversation, conversation), (Scope::Call, call)];
        // A level that grants nothing passes nothing on: permission goes from one level to the next only.
        let mut may_loosen = self.allow_off;
        for (scope, overlay) in levels {
            match overlay {
                Some(overlay) => {
                    policy.apply(scope, overlay, may_loosen);
                    may_loosen = may_loosen && overlay.allow_off;
                }
                None => may_loosen = false,
            }
        }
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(mode: Mode, allow_off: bool) -> Overlay {
        Overlay { mode: Some(mode), allow_off, ..Overlay::default() }
    }

    fn with_tenant(allow_off: bool, tenant: Overlay) -> PolicyFile {
        PolicyFile { allow_off, tenants: BTreeMap::from([("t".to_owned(), tenant)]), ..PolicyFile::default() }
    }

    #[test]
    fn a_call_cannot_switch_the_guard_off() {
        let policy = PolicyFile::default().resolve(None, None, Some(&overlay(Mode::Off, true)));
        assert_eq!(
            (policy.mode, policy.requested, policy.decided_by),
            (Mode::Enforce, Mode::Off, Scope::Base)
        );
        assert_eq!(policy.refused.len(), 1);
    }

    #[test]
    fn permission_to_loosen_goes_one_level_down_only() {
        let file = with_tenant(true, overlay(Mode::ReportOnly, false));
        let policy =
            file.resolve(Some("t"), Some(&overlay(Mode::Off, true)), Some(&overlay(Mode::Off, true)));
        assert_eq!((policy.mode, policy.decided_by), (Mode::ReportOnly, Scope::Tenant));

        let file = with_tenant(true, overlay(Mode::ReportOnly, true));
        let policy = file.resolve(Some("t"), Some(&overlay(Mode::Off, false)), None);
        assert_eq!((policy.mode, policy.decided_by), (Mode::Off, Scope::Conversation));

        // The base allows tenants, but this tenant grants nothing: the call has no permission from it.
        let policy = PolicyFile { allow_off: true, ..PolicyFile::default() };
        assert_eq!(policy.resolve(None, None, Some(&overlay(Mode::Off, false))).mode, Mode::Enforce);
    }

    #[test]
    fn tightening_is_always_allowed() {
        let mut call = overlay(Mode::Enforce, false);
        call.kinds.insert(Kind::Person, Action::Redact);
        call.kinds.insert(Kind::Email, Action::Allow);
        call.kinds.insert(Kind::PrivateKey, Action::Block);
        let file = PolicyFile { mode: Mode::ReportOnly, ..PolicyFile::default() };
        let policy = file.resolve(None, None, Some(&call));
        assert_eq!(policy.mode, Mode::Enforce);
        assert_eq!(policy.action(Kind::Person), Action::Redact);
        assert_eq!(policy.action(Kind::PrivateKey), Action::Block);
        assert_eq!(policy.action(Kind::Email), Action::Redact);
    }

    #[test]
    fn no_level_loosens_what_is_done_with_a_known_secret() {
        let tenant = |action| {
            let kinds = BTreeMap::from([(Kind::KnownSecret, action)]);
            with_tenant(true, Overlay { kinds, ..Overlay::default() }).resolve(Some("t"), None, None)
        };
        for action in [Action::Allow, Action::Mask, Action::Tokenize] {
            let policy = tenant(action);
            assert_eq!(policy.action(Kind::KnownSecret), Action::Redact);
            assert_eq!(policy.refused, [(Scope::Tenant, "action for KNOWN_SECRET".to_owned())]);
            let kinds = BTreeMap::from([(Kind::KnownSecret, action)]);
            let policy = PolicyFile { kinds, ..PolicyFile::default() }.resolve(None, None, None);
            assert_eq!(policy.action(Kind::KnownSecret), Action::Redact);
            assert_eq!(policy.refused, [(Scope::Base, "action for KNOWN_SECRET".to_owned())]);
        }
        for action in [Action::Hash, Action::Redact, Action::Block] {
            assert_eq!(tenant(action).action(Kind::KnownSecret), action);
        }
        let file = "version = \"1\"\n[kinds]\nEMAIL = \"mask\"\nKNOWN_SECRET = \"allow\"\n";
        let error = toml::from_str::<PolicyFile>(file).unwrap_err().to_string();
        assert!(error.contains("line 4") && error.contains("redact, hash or block"), "{error}");
    }

    #[test]
    fn an_allow_list_from_below_needs_permission() {
        let allow = AllowList { domains: vec!["evil.example".to_owned()], ..AllowList::default() };
        let call = Overlay { allow, ..Overlay::default() };
        assert!(PolicyFile::default().resolve(None, None, Some(&call)).allow.domains.is_empty());
        let file = with_tenant(true, call.clone());
        assert_eq!(file.resolve(Some("t"), None, None).allow.domains.len(), 1);
    }

    #[test]
    fn a_level_may_only_switch_placeholders_off_unless_the_one_above_lets_it_loosen() {
        let read = |text: &str| PolicyFile::read(text).unwrap();
        let of = |file: &PolicyFile| file.resolve(Some("t"), None, None);
        let on =
            |policy: &Policy| policy.resolves().map(|it| (it.kinds.contains(&Kind::Email), it.open_network));
        assert_eq!(on(&of(&read(""))), None);
        assert_eq!(on(&of(&read("placeholders = \"resolve\""))), Some((true, false)));
        for without in ["numbered = false", "mode = \"report_only\""] {
            assert_eq!(on(&of(&read(&format!("placeholders = \"resolve\"\n{without}")))), None, "{without}");
        }
        let off = read("placeholders = \"resolve\"\n[tenants.t]\nplaceholders = \"text\"");
        assert_eq!(on(&of(&off)), None);
        let wishes = "[tenants.t]\nplaceholders = \"resolve\"\nplaceholders_kinds = [\"IP\", \"JWT\"]\n\
                      placeholders_open_network = true";
        let refused = of(&read(wishes));
        assert_eq!((on(&refused), refused.refused.len()), (None, 3));
        assert_eq!(refused.fingerprint(), {
            let mut plain = of(&read(""));
            plain.refused = refused.refused.clone();
            plain.version = refused.version.clone();
            plain.fingerprint()
        });
        assert_eq!(on(&of(&read(&format!("allow_off = true\n{wishes}")))), Some((false, true)));
        let call = Overlay { placeholders: Some(Placeholders::Resolve), ..Overlay::default() };
        let open = read("allow_off = true\n[tenants.t]\nallow_off = true");
        let between = Overlay { allow_off: true, ..Overlay::default() };
        assert_eq!(on(&open.resolve(Some("t"), Some(&between), Some(&call))), None);
        for never in ["SECRET", "PRIVATE_KEY", "KNOWN_SECRET"] {
            let error = PolicyFile::read(&format!("version = \"1\"\nplaceholders_kinds = [\"{never}\"]"))
                .unwrap_err();
            assert!(
                error.to_string().contains("line 2") && error.to_string().contains("leave it out"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_unknown_key_in_a_policy_is_an_error() {
        for bad in [
            "mod = \"off\"",
            "[kinds]\nEMIAL = \"redact\"",
            "[kinds]\nEMAIL = \"delete\"",
            "[tenants.a]\nx = 1",
        ] {
            assert!(toml::from_str::<PolicyFile>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_fingerprint_changes_with_the_policy() {
        let mut other = Policy::default();
        assert_eq!(other.fingerprint(), Policy::default().fingerprint());
        other.actions.insert(Kind::Email, Action::Hash);
        assert_ne!(other.fingerprint(), Policy::default().fingerprint());
    }
}
