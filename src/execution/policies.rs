//! Which guard looks at whose output: the deployment's policy, then the tenant's, the conversation's and the call's requests,
//! each as far as it may.
//!
//! The guards of a policy file are made when it is loaded. Another file takes their place by one pointer: a call goes on
//! with the guard that it began with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::domain::{ContextKey, TenantId};
use crate::guard::{Guard, Kind, Known, Overlay, PolicyError, PolicyFile};

/// The guards of a deployment. Clones share them.
#[derive(Debug, Clone)]
pub struct Policies(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    now: RwLock<Arc<Loaded>>,
    /// Whether the file has changed since into one that does not work.
    stale: AtomicBool,
}

/// A policy file and its guards.
#[derive(Debug)]
struct Loaded {
    file: PolicyFile,
    base: Guard,
    tenants: BTreeMap<String, Guard>,
    /// By `tenant/conversation`.
    conversations: BTreeMap<String, Guard>,
}

impl Policies {
    /// The guards that a policy file describes; all of them find what is `known` to be secret.
    ///
    /// # Errors
    /// [`PolicyError`] when the base policy, a tenant's or a conversation's does not work.
    pub fn new(file: PolicyFile, known: Known) -> Result<Self, PolicyError> {
        let base = Guard::knowing(file.resolve(None, None, None), &known)?;
        let tenants = file.tenants.keys().map(|tenant| {
            let policy = file.resolve(Some(tenant), None, None);
            Ok((tenant.clone(), Guard::knowing(policy, base.known())?))
        });
        let tenants = tenants.collect::<Result<BTreeMap<_, _>, PolicyError>>()?;
        let conversations = file.conversations.iter().map(|(name, overlay)| {
            let tenant = name.split_once('/').map(|(tenant, _)| tenant);
            let above = tenant.and_then(|tenant| tenants.get(tenant)).unwrap_or(&base);
            let policy = file.resolve(tenant, Some(overlay), None);
            Ok((name.clone(), Guard::knowing(policy, above.known())?))
        });
        let conversations = conversations.collect::<Result<BTreeMap<_, _>, PolicyError>>()?;
        let loaded = Arc::new(Loaded { file, base, tenants, conversations });
        Ok(Self(Arc::new(Shared { now: RwLock::new(loaded), stale: AtomicBool::new(false) })))
    }

    fn now(&self) -> Arc<Loaded> {
        Arc::clone(&self.0.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the guards of `fresh` for what begins from now on.
    pub fn swap(&self, fresh: &Self) {
        *self.0.now.write().unwrap_or_else(PoisonError::into_inner) = fresh.now();
        self.0.stale.store(false, Ordering::Relaxed);
    }

    /// Notes that the file as it is does not work: the guards stay.
    pub fn keep(&self) {
        self.0.stale.store(true, Ordering::Relaxed);
    }

    /// Whether the file has changed into one that does not work.
    pub fn is_stale(&self) -> bool {
        self.0.stale.load(Ordering::Relaxed)
    }

    /// The version of the policy.
    pub fn version(&self) -> String {
        self.now().base.policy().version.clone()
    }

    /// The kinds that some policy turns into sealed tokens.
    pub fn tokenized(&self) -> BTreeSet<Kind> {
        let now = self.now();
        let guards = now.tenants.values().chain(now.conversations.values()).chain([&now.base]);
        guards.flat_map(|guard| guard.policy().tokenized()).collect()
    }

    /// Whether some policy lets placeholders in code become their values.
    pub fn resolve_any(&self) -> bool {
        let now = self.now();
        let mut guards = now.tenants.values().chain(now.conversations.values()).chain([&now.base]);
        guards.any(|guard| guard.policy().resolves().is_some())
    }

    /// The guard for what a tenant is shown that comes from no run.
    pub fn of(&self, tenant: &TenantId) -> Guard {
        let now = self.now();
        now.tenants.get(tenant.as_str()).unwrap_or(&now.base).clone()
    }

    /// Whether a call may loosen what stands above it: base, tenant and conversation all say so.
    pub fn call_may_loosen(&self, key: &ContextKey) -> bool {
        let file = &self.now().file;
        let tenant = file.tenants.get(key.tenant.as_str());
        let conversation = file.conversations.get(&name(key));
        file.allow_off && [tenant, conversation].iter().all(|level| level.is_some_and(|it| it.allow_off))
    }

    /// The guard for the output of a call.
    pub fn for_call(&self, key: &ContextKey, call: Option<&Overlay>) -> Guard {
        let now = self.now();
        let (tenant, name) = (key.tenant.as_str(), name(key));
        let above = now.conversations.get(&name).or_else(|| now.tenants.get(tenant)).unwrap_or(&now.base);
        if call.is_none() {
            return above.clone();
        }
        // Each entry was tried where it was read, so this works; what stands above is the stricter way out.
        let policy = now.file.resolve(Some(tenant), now.file.conversations.get(&name), call);
        Guard::knowing(policy, above.known()).unwrap_or_else(|_| above.clone())
    }
}

/// How a policy file names a conversation.
fn name(key: &ContextKey) -> String {
    format!("{}/{}", key.tenant, key.conversation)
}
