//! Records of runs, of the guard's numbering and of opened tokens.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde_json::Value;

use super::{Secret, StoreError};
use crate::domain::{ContextId, ContextKey, ConversationId, ExecutionId, Language, Owner, TenantId};

crate::domain::context::text_enum! {
    /// Where a run is.
    ExecutionStatus {
        /// Waits for its turn.
        Queued = "queued",
        /// Runs.
        Running = "running",
        /// Ended by itself, well or with an exception.
        Completed = "completed",
        /// Met its deadline.
        TimedOut = "timed_out",
        /// Was cancelled.
        Cancelled = "cancelled",
        /// The interpreter or the sandbox died.
        Died = "died",
        /// The platform failed before or during the run.
        Failed = "failed",
        /// The replica that ran it died; whether it had effects is unknown.
        Interrupted = "interrupted",
    }
}

/// A run, as recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecutionRow {
    /// Its id.
    pub id: ExecutionId,
    /// The context, once it had one.
    pub context: Option<ContextId>,
    /// The key that it ran for.
    pub key: ContextKey,
    /// Which tool.
    pub tool: String,
    /// Which language.
    pub language: Language,
    /// The guarded purpose.
    pub purpose: Option<String>,
    /// SHA-256 of the source.
    pub code_sha256: String,
    /// Who called.
    pub principal: Option<String>,
    /// W3C trace id.
    pub trace_id: Option<String>,
    /// Where it is.
    pub status: ExecutionStatus,
    /// Exit code.
    pub exit_code: Option<i32>,
    /// The platform's failure.
    pub error: Option<String>,
    /// When it was asked for.
    pub created_at: DateTime<Utc>,
    /// When it began to run.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// Milliseconds of the run.
    pub duration_ms: Option<i64>,
    /// Bytes of output.
    pub output_bytes: Option<i64>,
    /// Guard findings by kind.
    pub findings: Value,
    /// The guarded result, for replay.
    pub result: Option<Value>,
}

/// Which executions to list, newest first.
#[derive(Debug, Clone, Default)]
pub struct ExecutionFilter {
    /// Only this tenant's.
    pub tenant: Option<TenantId>,
    /// With a tenant: only runs on this owner's contexts; `None` is every owner's.
    pub owner: Option<Owner>,
    /// With an owner: and runs that this principal asked for.
    pub principal: Option<String>,
    /// Only this conversation's.
    pub conversation: Option<ConversationId>,
    /// Only this context's.
    pub context: Option<ContextId>,
    /// At most this many (100).
    pub limit: Option<u32>,
}

/// Placeholder numbers of the guard: kind, keyed hash of what was taken out, number.
pub type Placeholders = Vec<(String, String, u32)>;

/// What a placeholder represents: kind, number, value.
pub type KeptValue = (String, u32, Secret);

/// The most values that a context keeps.
pub(super) const MAX_VALUES: u32 = 10_000;

/// How often values of a context may be put into code: a placeholder of a call once.
pub(super) const MAX_RESOLVES: u32 = 1_000;

/// The column that such a value is sealed for, of its context's row.
pub(super) fn value_column(kind: &str, number: u32) -> String {
    format!("placeholder {kind} {number}")
}

/// Someone opens a sealed token. What it denotes is not in here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReveal {
    /// Random, so that the record is written once however often it is sent.
    pub id: String,
    /// The context that the token was said to be of.
    pub key: ContextKey,
    /// The guard's kind, when the token opened.
    pub kind: Option<String>,
    /// Who asked.
    pub principal: String,
    /// Whether it opened.
    pub opened: bool,
}

/// The record of such an opening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevealRow {
    /// What was asked.
    pub reveal: NewReveal,
    /// When.
    pub at: DateTime<Utc>,
}

/// What runs left behind: their records, the guard's numbering, and who opened sealed tokens.
#[async_trait]
pub trait Audit: Send + Sync {
    /// One run of a tenant.
    async fn execution(&self, tenant: &TenantId, id: ExecutionId)
    -> Result<Option<ExecutionRow>, StoreError>;

    /// Runs, newest first, without their results.
    async fn executions(&self, filter: &ExecutionFilter) -> Result<Vec<ExecutionRow>, StoreError>;

    /// What a tenant's latest runs left to be read, newest first: of each result that was kept its form and the
    /// `artifacts` of its record, and nothing that is large.
    async fn artifacts(&self, tenant: &TenantId, filter: &ExecutionFilter) -> Result<Vec<Value>, StoreError>;

    /// Placeholder numbers of the guard that a context key has handed out.
    async fn placeholders(&self, key: &ContextKey) -> Result<Placeholders, StoreError>;

    /// Adds placeholder numbers `(kind, keyed hash, number)`; ones that exist are left as they are.
    async fn save_placeholders(
        &self,
        key: &ContextKey,
        new: &[(String, String, u32)],
    ) -> Result<(), StoreError>;

    /// Keeps, sealed, what placeholders of a context represent until the context ends: 10,000 values at most, and the first of
    /// each number. Nothing is kept of a context that has ended.
    async fn keep_values(
        &self,
        tenant: &TenantId,
        context: ContextId,
        values: &[KeptValue],
    ) -> Result<(), StoreError>;

    /// The values of those placeholders of a context that have one, counted; `None`: more than 1,000 would have been
    /// taken of it.
    async fn take_values(
        &self,
        tenant: &TenantId,
        context: ContextId,
        wanted: &[(String, u32)],
    ) -> Result<Option<Vec<KeptValue>>, StoreError>;

    /// Writes down that someone opened, or tried to open, a sealed token of the guard.
    async fn record_reveal(&self, reveal: &NewReveal) -> Result<(), StoreError>;

    /// Such records, newest first; of one tenant or of all.
    async fn reveals(&self, tenant: Option<&TenantId>, limit: u32) -> Result<Vec<RevealRow>, StoreError>;
}
