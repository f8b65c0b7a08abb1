//! Contexts as rows.

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::{ContextLimits, StoreError};
use crate::domain::{
    ContextId, ContextKey, ContextStatus, ConversationId, EndReason, Owner, SandboxId, Secret, TenantId,
};

/// Where a sandbox is and what opens it. Tokens are encrypted at rest, bound to the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRef {
    /// The provider's name for it.
    pub sandbox_id: SandboxId,
    /// The domain the provider named for it, if any.
    pub domain: Option<String>,
    /// Control plane and data plane of a local host, e.g. `http://127.0.0.1:40001`; `None` means the configured
    /// provider.
    pub host_url: Option<String>,
    /// The key of that local host.
    pub host_key: Option<Secret>,
    /// E2B's `envdAccessToken`.
    pub envd_token: Option<Secret>,
    /// E2B's `trafficAccessToken`.
    pub traffic_token: Option<Secret>,
    /// Where the MCP gateway inside the sandbox listens.
    pub mcp_url: Option<String>,
    /// Its bearer token.
    pub mcp_token: Option<Secret>,
    /// When the provider ends the sandbox by itself, as last asked for.
    pub provider_ends_at: Option<DateTime<Utc>>,
}

/// A live or ended context: a row.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextRow {
    /// Its id.
    pub id: ContextId,
    /// What it belongs to.
    pub key: ContextKey,
    /// Where it is in its life.
    pub status: ContextStatus,
    /// Why it ended.
    pub end_reason: Option<EndReason>,
    /// The fencing token: rises with each creator.
    pub epoch: i64,
    /// Which replica is making its sandbox, or holds it; empty when none does.
    pub owner: String,
    /// What its sandbox was made from, where a call named it; `None`: the tenant's own template.
    pub template: Option<String>,
    /// The sandbox, once there is one. `None` in listings, which never carry credentials.
    pub sandbox: Option<SandboxRef>,
    /// When the row was written.
    pub created_at: DateTime<Utc>,
    /// When the sandbox was ready.
    pub ready_at: Option<DateTime<Utc>>,
    /// Last use.
    pub last_used_at: DateTime<Utc>,
    /// When it expires unless it is used.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// Runs so far.
    pub execution_count: i64,
    /// Milliseconds of all runs.
    pub total_execution_ms: i64,
    /// The last failure of the platform, cleaned. User errors are not here.
    pub last_error: Option<String>,
    /// The database's time when the row was read, so that callers can count in durations.
    pub read_at: DateTime<Utc>,
}

/// Ends a context.
#[derive(Debug, Clone)]
pub struct End {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub context: ContextId,
    /// Only if the fencing token is still this one; `None` ends it in any case.
    pub epoch: Option<i64>,
    /// Why.
    pub reason: EndReason,
    /// A clean message for `last_error`.
    pub error: Option<String>,
}

/// What to list.
#[derive(Debug, Clone, Default)]
pub struct ContextFilter {
    /// Only this tenant's; `None` is every tenant's, for operators.
    pub tenant: Option<TenantId>,
    /// With a tenant: only this owner's; `None` is every owner's.
    pub owner: Option<Owner>,
    /// Only this conversation's.
    pub conversation: Option<ConversationId>,
    /// Ended ones too.
    pub ended: bool,
    /// At most this many (100).
    pub limit: Option<u32>,
}

/// Contexts as rows: to look at, to end, to limit.
#[async_trait]
pub trait Contexts: Send + Sync {
    /// One context of a tenant, without credentials.
    async fn context(&self, tenant: &TenantId, id: ContextId) -> Result<Option<ContextRow>, StoreError>;

    /// The live context of a key, without credentials.
    async fn live(&self, key: &ContextKey) -> Result<Option<ContextRow>, StoreError>;

    /// Contexts, newest first, without credentials.
    async fn contexts(&self, filter: &ContextFilter) -> Result<Vec<ContextRow>, StoreError>;

    /// How many contexts live, of all tenants together.
    async fn count_live(&self) -> Result<u64, StoreError>;

    /// Ends a live context and puts its sandbox into the outbox. `false`: it had ended, or the epoch has moved on.
    async fn end(&self, end: &End, limits: &ContextLimits) -> Result<bool, StoreError>;

    /// Overrides a tenant's limits of live contexts; `None` means the default of [`ContextLimits`].
    async fn set_tenant_limits(
        &self,
        tenant: &TenantId,
        per_tenant: Option<u32>,
        per_conversation: Option<u32>,
    ) -> Result<(), StoreError>;
}
