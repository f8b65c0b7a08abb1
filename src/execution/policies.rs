//! Which guard looks at whose output: the deployment's policy, then the tenant's, the conversation's and the call's wishes,
//! each as far as it may.

use std::collections::BTreeSet;

use crate::domain::{ContextKey, TenantId};
use crate::guard::{Guard, Kind, Known, Overlay, PolicyError, PolicyFile};

/// The guards of a deployment.
#[derive(Debug, Clone)]
pub struct Policies {
    file: PolicyFile,
    known: Known,
    base: Guard,
}

impl Policies {
    /// The guards that a policy file describes; all of them find what is `known` to be secret.
    ///
    /// # Errors
    /// [`PolicyError`] when the base policy or a tenant's does not work.
    pub fn new(file: PolicyFile, known: Known) -> Result<Self, PolicyError> {
        for tenant in file.tenants.keys() {
            Guard::new(file.resolve(Some(tenant), None, None))?;
        }
        for (name, overlay) in &file.conversations {
            Guard::new(file.resolve(name.split_once('/').map(|(tenant, _)| tenant), Some(overlay), None))?;
        }
        let base = Guard::knowing(file.resolve(None, None, None), &known)?;
        Ok(Self { file, known, base })
    }

    /// The kinds that some policy turns into sealed tokens.
    pub fn tokenized(&self) -> BTreeSet<Kind> {
        let tenants = self.file.tenants.keys().map(|tenant| self.file.resolve(Some(tenant), None, None));
        let conversations = self.file.conversations.iter().map(|(name, overlay)| {
            self.file.resolve(name.split_once('/').map(|(tenant, _)| tenant), Some(overlay), None)
        });
        let policies = tenants.chain(conversations).chain([self.base.policy().clone()]);
        policies.flat_map(|policy| policy.tokenized().collect::<Vec<_>>()).collect()
    }

    /// The guard for texts that belong to no tenant.
    pub fn base(&self) -> &Guard {
        &self.base
    }

    /// The guard for what a tenant is shown that comes from no run.
    pub fn of(&self, tenant: &TenantId) -> Guard {
        self.resolved(tenant, None, None)
    }

    /// Whether a call may loosen what stands above it: base, tenant and conversation all say so.
    pub fn call_may_loosen(&self, key: &ContextKey) -> bool {
        let tenant = self.file.tenants.get(key.tenant.as_str());
        let conversation = self.file.conversations.get(&format!("{}/{}", key.tenant, key.conversation));
        self.file.allow_off && [tenant, conversation].iter().all(|level| level.is_some_and(|it| it.allow_off))
    }

    /// The guard for the output of a call.
    pub fn for_call(&self, key: &ContextKey, call: Option<&Overlay>) -> Guard {
        let name = format!("{}/{}", key.tenant, key.conversation);
        self.resolved(&key.tenant, self.file.conversations.get(&name), call)
    }

    fn resolved(&self, tenant: &TenantId, conversation: Option<&Overlay>, call: Option<&Overlay>) -> Guard {
        let tenant = Some(tenant.as_str()).filter(|tenant| self.file.tenants.contains_key(*tenant));
        if tenant.is_none() && conversation.is_none() && call.is_none() {
            return self.base.clone();
        }
        // Each entry was tried where it was read, so this works; the base is the stricter way out.
        let policy = self.file.resolve(tenant, conversation, call);
        Guard::knowing(policy, &self.known).unwrap_or_else(|_| self.base.clone())
    }
}
