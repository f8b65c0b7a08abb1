//! What was used, what it costs, and how much of a quota is left.

use std::sync::Arc;

use chrono::NaiveDate;

use crate::domain::usage::{Quota, UsageBy, UsageLine, report};
use crate::domain::{Owner, TenantId};
use crate::store::UsageFilter;

use super::{Core, ExecutionError};

/// Reads what was used. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Usage(pub(super) Arc<Core>);

impl Usage {
    /// What was used from one day to another, both included; of one owner or of the whole tenant, of one tenant or of all.
    ///
    /// # Errors
    /// The store's.
    pub async fn report(
        &self,
        tenant: Option<&TenantId>,
        owner: Option<&Owner>,
        days: (NaiveDate, NaiveDate),
        by: UsageBy,
    ) -> Result<Vec<UsageLine>, ExecutionError> {
        let (from, to) = days;
        let filter = UsageFilter { tenant: tenant.cloned(), owner: owner.cloned(), from, to };
        let rows = self.0.store().usage(&filter).await?;
        Ok(report(&rows, by, &self.0.options().limits.prices))
    }

    /// A tenant's quota: its own, and the configured one where that is open.
    ///
    /// # Errors
    /// The store's.
    pub async fn quota(&self, tenant: &TenantId) -> Result<Quota, ExecutionError> {
        let own = self.0.store().own_quota(tenant).await?;
        Ok(self.0.options().limits.quota.or(&own))
    }

    /// The currency of costs.
    pub fn currency(&self) -> &str {
        &self.0.options().limits.prices.currency
    }

    /// Today, and the day on which this month began, by this process's clock.
    pub fn this_month(&self) -> (NaiveDate, NaiveDate) {
        let now = self.0.parts.clock.now();
        (crate::domain::Period::Month.start(now), now.date_naive())
    }
}
