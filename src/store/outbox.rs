//! Clean-up and the outbox.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{ContextLimits, ContextRow, SandboxRef, StoreError};
use crate::domain::{ContextId, TenantId};

/// A sandbox that must die: an entry of the outbox.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingKill {
    /// The entry.
    pub id: i64,
    /// The context it belonged to.
    pub context: ContextId,
    /// The epoch of its creator.
    pub epoch: i64,
    /// The sandbox and how to reach its provider; `None` means "whatever the provider lists under the context's
    /// id and epoch".
    pub sandbox: Option<SandboxRef>,
    /// Why.
    pub reason: String,
    /// How often it was tried.
    pub attempts: i32,
}

/// What a clean-up pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reaped {
    /// Contexts that expired.
    pub expired: u32,
    /// Creators whose lease ran out.
    pub abandoned: u32,
    /// Runs whose replica died.
    pub interrupted: u32,
    /// Ended rows that retention removed.
    pub deleted: u32,
}

/// Clean-up: what is due, the outbox of sandboxes that must die, and the comparison with the provider's list.
#[async_trait]
pub trait Outbox: Send + Sync {
    /// Ends what has expired and frees what dead replicas held, at most `batch`; several replicas at once do not
    /// meet on a row. Ended rows older than `retention` are removed.
    async fn reap(
        &self,
        batch: u32,
        retention: Duration,
        limits: &ContextLimits,
    ) -> Result<Reaped, StoreError>;

    /// Claims entries of the outbox; they come back after `visibility` if no one reports.
    async fn claim_kills(&self, batch: u32, visibility: Duration) -> Result<Vec<PendingKill>, StoreError>;

    /// The sandbox is gone.
    async fn kill_done(&self, entry: i64) -> Result<(), StoreError>;

    /// The kill failed; the entry is tried again after a growing pause.
    async fn kill_failed(&self, entry: i64, error: &str) -> Result<(), StoreError>;

    /// Of these (context, epoch) pairs, the ones that no live row owns: the provider's list against ours. Only
    /// the owner's own question; it changes nothing.
    async fn unowned(&self, tags: &[(ContextId, i64)]) -> Result<Vec<(ContextId, i64)>, StoreError>;

    /// Live contexts with their sandboxes, for the other direction of the same comparison: whose sandbox is
    /// gone; of one tenant or of all. Only rows that have been ready for at least `min_age`, by id; `after` the last one of the page before.
    async fn owned(
        &self,
        tenant: Option<&TenantId>,
        min_age: Duration,
        after: Option<ContextId>,
        limit: u32,
    ) -> Result<Vec<ContextRow>, StoreError>;
}
