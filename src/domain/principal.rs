//! Who stands at a door: a person's machine, a user, or a service that acts for many tenants.
//!
//! A principal is made where a credential was checked. What it may name is decided here, so that no door can
//! forget it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::context::text_enum;
use super::{Entropy, Kept, TenantId, same_bytes};

text_enum! {
    /// What kind of caller a credential represents.
    PrincipalKind {
        /// This machine's own user: stdio, or loopback without a credential.
        Local = "local",
        /// One user or application of one tenant.
        User = "user",
        /// An application that may name the tenant in each call, out of those that its credential lists.
        Service = "service",
    }
}

text_enum! {
    /// What a credential is good for.
    Scope {
        /// Run code and change contexts.
        Run = "run",
        /// Look at executions, outputs and artifacts.
        Read = "read",
        /// Change the paths of conversations over `/v1`.
        Paths = "paths",
        /// Look at what spans callers: usage, clean-up.
        Admin = "admin",
        /// Open sealed tokens of the guard. Only a credential that names it grants it.
        Reveal = "reveal",
    }
}

/// Tenants that a service may name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tenants {
    /// These.
    Only(BTreeSet<TenantId>),
    /// Every one. Only an operator can make such a credential.
    Any,
}

text_enum! {
    /// Who may enter the contexts of a tenant.
    Sharing {
        /// The principal whose call made them, and whom it shares them with.
        Principal = "principal",
        /// Every principal of the tenant: contexts belong to the tenant.
        Tenant = "tenant",
    }
}

/// Who may enter contexts, for each tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharingRules {
    /// What holds for a tenant that has no rule of its own.
    pub base: Sharing,
    /// Tenants' own rules.
    pub tenants: BTreeMap<TenantId, Sharing>,
}

impl Default for SharingRules {
    fn default() -> Self {
        Self { base: Sharing::Principal, tenants: BTreeMap::new() }
    }
}

impl SharingRules {
    /// A tenant's rule.
    pub fn of(&self, tenant: &TenantId) -> Sharing {
        self.tenants.get(tenant).copied().unwrap_or(self.base)
    }
}

/// Whom a context belongs to: the principal whose call made it, or the tenant as a whole. A part of a context's key: an
/// equal conversation id of two owners names two conversations.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Owner(String);

impl Owner {
    /// The tenant itself: what service credentials make.
    pub fn tenant() -> Self {
        Self::default()
    }

    /// One principal, by its name.
    pub fn principal(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// As stored in the database: the principal's name, or nothing for the tenant.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for Owner {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

/// The longest name of a principal, in bytes. It is part of rows and handles.
pub const MAX_PRINCIPAL: usize = 1024;

/// A caller whose credential has been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Who it is, for the audit and for rate limits: `local`, `key:<id>`, `oauth:<issuer>|<subject>`.
    pub name: String,
    /// What kind it is.
    pub kind: PrincipalKind,
    /// The tenant of a call that names none. A service may have none.
    pub tenant: Option<TenantId>,
    /// What a service may name besides.
    pub tenants: Tenants,
    /// What it may do.
    pub scopes: BTreeSet<Scope>,
}

/// What a door puts into its refusal when the credential lacks a scope; the one that checked the credential makes the
/// challenge of it (RFC 6750, section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingScope(pub Scope);

/// Why a principal may not act for a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TenantRefused {
    /// It names one that is not its own.
    #[error("this caller may not act for another tenant")]
    Foreign,
    /// It has none of its own and names none.
    #[error("the call names no tenant and the credential has none of its own")]
    Missing,
}

impl Principal {
    /// This machine's own user.
    pub fn local(tenant: TenantId) -> Self {
        Self {
            name: "local".to_owned(),
            kind: PrincipalKind::Local,
            tenant: Some(tenant),
            tenants: Tenants::Only(BTreeSet::new()),
            scopes: Scope::ALL.iter().copied().filter(|scope| *scope != Scope::Reveal).collect(),
        }
    }

    /// The tenant that a call is for. Naming one's own is always fine; only a service may name others.
    ///
    /// # Errors
    /// [`TenantRefused`] when the named tenant is not this principal's, or there is none.
    pub fn tenant_for(&self, named: Option<&TenantId>) -> Result<TenantId, TenantRefused> {
        let Some(named) = named else { return self.tenant.clone().ok_or(TenantRefused::Missing) };
        let own = self.tenant.as_ref() == Some(named);
        let listed = match &self.tenants {
            Tenants::Only(list) => list.contains(named),
            Tenants::Any => true,
        };
        if own || (self.kind == PrincipalKind::Service && listed) {
            return Ok(named.clone());
        }
        Err(TenantRefused::Foreign)
    }

    /// Whom the contexts that its calls make belong to. A service acts for its tenant.
    pub fn owner(&self, sharing: Sharing) -> Owner {
        match (self.kind, sharing) {
            (PrincipalKind::Service, _) | (_, Sharing::Tenant) => Owner::tenant(),
            (PrincipalKind::Local | PrincipalKind::User, Sharing::Principal) => {
                Owner::principal(self.name.clone())
            }
        }
    }

    /// Whether it sees whatever its tenant has, and not only what is its own.
    pub fn sees_tenant(&self) -> bool {
        self.kind == PrincipalKind::Service
    }

    /// Whether it may do this.
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }
}

/// An API key as it is kept: everything but the key itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    /// The public part, 12 hex digits; it is part of the key itself.
    pub id: String,
    /// What its maker called it.
    pub name: String,
    /// SHA-256 of the whole key. The key is 256 random bits, so a slow hash would add nothing.
    #[serde(skip)]
    pub hash: [u8; 32],
    /// What it represents.
    pub kind: PrincipalKind,
    /// Its own tenant.
    pub tenant: Option<TenantId>,
    /// What a service may name besides.
    pub tenants: Tenants,
    /// What it may do.
    pub scopes: BTreeSet<Scope>,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it stops working.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was revoked.
    pub revoked_at: Option<DateTime<Utc>>,
}

impl Kept for ApiKey {
    const WHAT: &'static str = "an API key";
    const FORMAT: u64 = 1;
}

/// What every key starts with, so that secret scanners know one when they see it.
const PREFIX: &str = "pbx_";
const ID_LEN: usize = 12;

/// A key's text, shown once.
pub struct KeyText(String);

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyText(…)")
    }
}

impl KeyText {
    /// A new key, `pbx_<id>_<64 hex digits>`.
    pub fn mint(entropy: &Entropy) -> Self {
        Self(format!("{PREFIX}{}_{}", entropy.hex::<6>(), entropy.hex::<32>()))
    }

    /// The text, for the one who made it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The public part.
    pub fn id(&self) -> &str {
        &self.0[PREFIX.len()..PREFIX.len() + ID_LEN]
    }

    /// What is kept of it.
    pub fn hash(&self) -> [u8; 32] {
        hash(&self.0)
    }
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

impl ApiKey {
    /// The public part of a presented credential, if it has the shape of a key.
    pub fn id_of(presented: &str) -> Option<&str> {
        let (id, secret) = presented.strip_prefix(PREFIX)?.split_once('_')?;
        let hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
        (id.len() == ID_LEN && hex(id) && secret.len() == 64 && hex(secret)).then_some(id)
    }

    /// Whether it is neither revoked nor expired.
    pub fn is_good(&self, now: DateTime<Utc>) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| now < at)
    }

    /// The public part in the name of a key's principal.
    pub fn id_in(principal: &str) -> Option<&str> {
        principal.strip_prefix("key:")
    }

    /// The principal behind a presented key, if it is this one and still good. Takes the same time whether the
    /// first or the last byte differs.
    pub fn opens(&self, presented: &str, now: DateTime<Utc>) -> Option<Principal> {
        let theirs = hash(presented);
        (same_bytes(&self.hash, &theirs) && self.is_good(now)).then(|| Principal {
            name: format!("key:{}", self.id),
            kind: self.kind,
            tenant: self.tenant.clone(),
            tenants: self.tenants.clone(),
            scopes: self.scopes.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    fn principal(kind: PrincipalKind, own: Option<&str>, tenants: Tenants) -> Principal {
        Principal { kind, tenant: own.map(tenant), tenants, ..Principal::local(tenant("x")) }
    }

    #[test]
    fn only_a_service_names_other_tenants_and_only_listed_ones() {
        let listed = || Tenants::Only([tenant("b")].into());
        let user = principal(PrincipalKind::User, Some("a"), listed());
        assert_eq!(user.tenant_for(None), Ok(tenant("a")));
        assert_eq!(user.tenant_for(Some(&tenant("a"))), Ok(tenant("a")));
        assert_eq!(
            user.tenant_for(Some(&tenant("b"))),
            Err(TenantRefused::Foreign),
            "a list makes no service"
        );
        let service = principal(PrincipalKind::Service, None, listed());
        assert_eq!(service.tenant_for(Some(&tenant("b"))), Ok(tenant("b")));
        assert_eq!(service.tenant_for(Some(&tenant("a"))), Err(TenantRefused::Foreign));
        assert_eq!(service.tenant_for(None), Err(TenantRefused::Missing));
        let any = principal(PrincipalKind::Service, None, Tenants::Any);
        assert_eq!(any.tenant_for(Some(&tenant("z"))), Ok(tenant("z")));
    }

    #[test]
    fn a_key_opens_itself_alone_and_only_while_it_is_good() {
        let text = KeyText::mint(&Entropy::seeded(1));
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let key = ApiKey {
            id: text.id().to_owned(),
            name: "test".into(),
            hash: text.hash(),
            kind: PrincipalKind::User,
            tenant: Some(tenant("a")),
            tenants: Tenants::Only(BTreeSet::new()),
            scopes: [Scope::Run].into(),
            created_at: now,
            expires_at: Some(now + chrono::Duration::seconds(10)),
            revoked_at: None,
        };
        assert_eq!(ApiKey::id_of(text.expose()), Some(text.id()));
        assert_eq!(key.opens(text.expose(), now).unwrap().name, format!("key:{}", text.id()));
        assert!(key.opens(KeyText::mint(&Entropy::seeded(2)).expose(), now).is_none());
        assert!(key.opens(text.expose(), now + chrono::Duration::seconds(10)).is_none(), "expired");
        assert!(ApiKey { revoked_at: Some(now), ..key }.opens(text.expose(), now).is_none(), "revoked");
        for bad in
            ["", "pbx_", "pbx_aaaaaaaaaaaa_", "bearer", &text.expose()[1..], &format!("{}0", text.expose())]
        {
            assert_eq!(ApiKey::id_of(bad), None, "{bad}");
        }
        assert!(!format!("{text:?}").contains(text.id()));
    }
}
