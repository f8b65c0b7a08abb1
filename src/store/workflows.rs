//! Workflows: a log of events for each, the lease of its driver, and the results of its tasks.
//!
//! A state follows from the events alone, and `workflow` folds them. So the store compares and sets: events are
//! numbered from 1 without a gap, and a number is written once. The driver of a workflow holds its lease; what it writes under
//! a lease that another has taken is refused. Results are written with the event that says that they are there.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{PathStatus, StoreError};
use crate::domain::{ContextKey, ExecutionId, Language, Owner, TenantId};

/// Workflows of a tenant that are not over at most.
pub const MAX_LIVE_WORKFLOWS: u32 = 20;

/// A workflow to be made.
#[derive(Debug, Clone)]
pub struct NewWorkflow {
    /// Its id.
    pub id: Uuid,
    /// Whose it is, and the path that asked for it.
    pub key: ContextKey,
    /// Who asked.
    pub principal: String,
    /// Whether that one acts for the whole tenant.
    pub sees_tenant: bool,
    /// One line: what for.
    pub purpose: Option<String>,
    /// The trace of the call.
    pub trace_id: Option<String>,
    /// The same key gives the same workflow.
    pub idempotency_key: Option<String>,
    /// What was asked for, hashed.
    pub args_sha256: String,
    /// Its first event.
    pub event: String,
}

/// What became of an ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It is new.
    New,
    /// It was made earlier under the same key.
    Known(Uuid),
    /// The key was used with other arguments.
    Conflict(Uuid),
    /// Its path is closed.
    PathClosed(PathStatus),
    /// The tenant has [`MAX_LIVE_WORKFLOWS`] that are not over.
    Limit,
}

/// A workflow.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkflowRow {
    /// Its id.
    pub id: Uuid,
    /// Whose it is, and the path that asked for it.
    pub key: ContextKey,
    /// Who asked.
    pub principal: String,
    /// Whether that one acts for the whole tenant.
    pub sees_tenant: bool,
    /// One line: what for.
    pub purpose: Option<String>,
    /// The trace of the call.
    pub trace_id: Option<String>,
    /// `running`, `paused`, `aborting`, `completed`, `failed`, `aborted`.
    pub status: String,
    /// The number of its last event.
    pub seq: i64,
    /// Who drives it.
    pub lease_owner: Option<String>,
    /// How often it was taken.
    pub lease_epoch: i64,
    /// When it was asked for.
    pub created_at: DateTime<Utc>,
    /// When it was over.
    pub finished_at: Option<DateTime<Utc>>,
}

/// An event of a workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its number.
    pub seq: i64,
    /// When it was written.
    pub at: DateTime<Utc>,
    /// What it says, as JSON.
    pub body: String,
}

/// The result of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskResult {
    /// The task, or one item of it.
    pub task: String,
    /// The version of the plan that the task comes from.
    pub generation: u32,
    /// JSON; `None`: it is an object.
    pub body: Option<String>,
    /// Its bytes.
    pub bytes: u64,
}

/// Events to be written.
#[derive(Debug, Clone)]
pub struct Append {
    /// The workflow.
    pub id: Uuid,
    /// The number of the last event that the writer knows.
    pub seq: i64,
    /// The lease that the writer drives it by: holder and epoch. `None` for a caller who steers it; it is due then.
    pub lease: Option<(String, i64)>,
    /// The events.
    pub events: Vec<String>,
    /// Results that came with them.
    pub results: Vec<TaskResult>,
    /// Its status after them.
    pub status: &'static str,
    /// Whether the lease is released, and when the workflow is due again if no other event comes first.
    pub release: Option<Option<Duration>>,
}

/// What became of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// They are written.
    Done,
    /// Others were written in their place: read them first.
    Stale,
    /// The writer does not hold the lease any more.
    Fenced,
}

/// A workflow that is held: its id, the epoch of the lease, the number of its last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldWorkflow {
    /// Which.
    pub id: Uuid,
    /// Its lease.
    pub epoch: i64,
    /// Its last event.
    pub seq: i64,
}

/// A result of a hermetic task that is kept for the next one like it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCached {
    /// A hash of all that the result depends on.
    pub key: String,
    /// Whose task computed it.
    pub owner: Owner,
    /// The run that did.
    pub execution: ExecutionId,
    /// Its language.
    pub language: Language,
    /// The result, as JSON.
    pub body: String,
}

/// A kept result, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheEntry {
    /// Its key.
    pub key: String,
    /// Whose task computed it.
    pub owner: Owner,
    /// The run that did.
    pub execution: ExecutionId,
    /// Its language.
    pub language: Language,
    /// Bytes of the result.
    pub bytes: u64,
    /// How often it was used.
    pub hits: u64,
    /// When it was computed.
    pub created_at: DateTime<Utc>,
    /// When it was last used.
    pub used_at: DateTime<Utc>,
}

/// Workflows and their events.
#[async_trait]
pub trait Workflows: Send + Sync {
    /// Makes a workflow, which is due at once.
    async fn create_workflow(&self, new: &NewWorkflow) -> Result<Created, StoreError>;

    /// A workflow of a tenant.
    async fn workflow(&self, tenant: &TenantId, id: Uuid) -> Result<Option<WorkflowRow>, StoreError>;

    /// Workflows of a tenant or of every one, the latest first; of one owner or of all.
    async fn workflows(
        &self,
        tenant: Option<&TenantId>,
        owner: Option<&Owner>,
        live: bool,
        limit: u32,
    ) -> Result<Vec<WorkflowRow>, StoreError>;

    /// Events after number `after`, in order.
    async fn workflow_events(&self, id: Uuid, after: i64, limit: u32)
    -> Result<Vec<StoredEvent>, StoreError>;

    /// Results of these tasks, as far as there are.
    async fn workflow_results(&self, id: Uuid, tasks: &[String]) -> Result<Vec<TaskResult>, StoreError>;

    /// Writes events after the last one that the writer knows, all or none.
    async fn append_workflow(&self, append: &Append) -> Result<Appended, StoreError>;

    /// Takes workflows that are due and have no driver, or whose driver's lease has expired.
    async fn claim_workflows(
        &self,
        holder: &str,
        lease: Duration,
        most: u32,
    ) -> Result<Vec<WorkflowRow>, StoreError>;

    /// Renews all leases of a holder.
    async fn renew_workflows(&self, holder: &str, lease: Duration) -> Result<Vec<HeldWorkflow>, StoreError>;

    /// A tenant's kept result that is younger than `age`, and the run that computed it. It counts as used.
    async fn cached(
        &self,
        tenant: &TenantId,
        key: &str,
        age: Duration,
    ) -> Result<Option<(String, ExecutionId)>, StoreError>;

    /// Keeps a result; the tenant's least recently used ones beyond `most` bytes go.
    async fn cache(&self, tenant: &TenantId, new: &NewCached, most: u64) -> Result<(), StoreError>;

    /// A tenant's kept results, the last used first.
    async fn cache_entries(&self, tenant: &TenantId, limit: u32) -> Result<Vec<CacheEntry>, StoreError>;

    /// Drops all kept results of a tenant. Gives their number.
    async fn clear_cache(&self, tenant: &TenantId) -> Result<u64, StoreError>;

    /// Drops kept results that are older than `age`, at most `batch`.
    async fn forget_cached(&self, age: Duration, batch: u32) -> Result<u32, StoreError>;

    /// Removes workflows that were over before `retention`, at most `batch`.
    async fn forget_workflows(&self, retention: Duration, batch: u32) -> Result<u32, StoreError>;
}
