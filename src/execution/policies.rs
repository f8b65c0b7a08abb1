//! Which guard looks at whose output: the deployment's policy, tightened or loosened by the tenant's as far as it may.

use std::collections::BTreeSet;

use crate::domain::TenantId;
use crate::guard::{Guard, Kind, PolicyError, PolicyFile};

/// The guards of a deployment.
#[derive(Debug)]
pub struct Policies {
    file: PolicyFile,
    base: Guard,
}

impl Policies {
    /// The guards that a policy file describes.
    ///
    /// # Errors
    /// [`PolicyError`] when the base policy or a tenant's does not work.
    pub fn new(file: PolicyFile) -> Result<Self, PolicyError> {
        for tenant in file.tenants.keys() {
            Guard::new(file.resolve(Some(tenant), None, None))?;
        }
        let base = Guard::new(file.resolve(None, None, None))?;
        Ok(Self { file, base })
    }

    /// The kinds that some policy turns into sealed tokens.
    pub fn tokenized(&self) -> BTreeSet<Kind> {
        let tenants = self.file.tenants.keys().map(|tenant| self.file.resolve(Some(tenant), None, None));
        let policies = tenants.chain([self.base.policy().clone()]);
        policies.flat_map(|policy| policy.tokenized().collect::<Vec<_>>()).collect()
    }

    /// The guard for texts that belong to no tenant.
    pub fn base(&self) -> &Guard {
        &self.base
    }

    /// The guard for a tenant's output.
    pub fn of(&self, tenant: &TenantId) -> Guard {
        if !self.file.tenants.contains_key(tenant.as_str()) {
            return self.base.clone();
        }
        // It was built once when the file was read, so it can be built again; the base is the stricter way out.
        Guard::new(self.file.resolve(Some(tenant.as_str()), None, None)).unwrap_or_else(|_| self.base.clone())
    }
}
