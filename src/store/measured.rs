//! A store that tells how long each of its calls takes, and does nothing else.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tracing::Instrument;

use crate::domain::{ApiKey, ContextId, ContextKey, ConversationId, ExecutionId, PathId, TenantId};
use crate::telemetry::metrics::DB_CLIENT;

use super::{
    Acquire, Acquired, Claim, ContextFilter, ContextRow, ContextStore, Doomed, DynStore, End,
    ExecutionFilter, ExecutionRow, ExecutionStatus, FinishedExecution, Limits, NewReveal, PathChange,
    PathError, PathRow, Placeholders, Reaped, RevealRow, SandboxRef, StoreError,
};

/// Waits for a call of the store, as a span of its own, and takes note of its duration. Last may stand whose call it is.
macro_rules! timed {
    ($operation:literal, $call:expr $(, $tenant:expr)?) => {{
        let _timed = DB_CLIENT.time(&[$operation]);
        let span = tracing::debug_span!(concat!("db.", $operation) $(, app.tenant.id = %$tenant)?);
        $call.instrument(span).await
    }};
}

/// Measures the store inside.
#[derive(Debug)]
pub struct Measured(pub DynStore);

#[async_trait::async_trait]
impl ContextStore for Measured {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    async fn ping(&self) -> Result<(), StoreError> {
        timed!("ping", self.0.ping())
    }

    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        timed!("now", self.0.now())
    }

    async fn acquire(&self, ask: &Acquire, limits: &Limits) -> Result<Acquired, StoreError> {
        timed!("acquire", self.0.acquire(ask, limits), ask.key.tenant)
    }

    async fn ready(
        &self,
        claim: &Claim,
        execution: ExecutionId,
        sandbox: &SandboxRef,
        limits: &Limits,
    ) -> Result<Option<ContextRow>, StoreError> {
        timed!("ready", self.0.ready(claim, execution, sandbox, limits))
    }

    async fn renew(&self, claim: &Claim, limits: &Limits) -> Result<bool, StoreError> {
        timed!("renew", self.0.renew(claim, limits))
    }

    async fn end(&self, end: &End, limits: &Limits) -> Result<bool, StoreError> {
        timed!("end", self.0.end(end, limits))
    }

    async fn record(&self, finished: &FinishedExecution, limits: &Limits) -> Result<bool, StoreError> {
        timed!("record", self.0.record(finished, limits), finished.tenant)
    }

    async fn abandon(
        &self,
        tenant: &TenantId,
        execution: ExecutionId,
        status: ExecutionStatus,
        error: Option<&str>,
    ) -> Result<bool, StoreError> {
        timed!("abandon", self.0.abandon(tenant, execution, status, error), tenant)
    }

    async fn ask_to_stop(&self, tenant: &TenantId, execution: ExecutionId) -> Result<bool, StoreError> {
        timed!("ask_to_stop", self.0.ask_to_stop(tenant, execution), tenant)
    }

    async fn stops(&self, executions: &[ExecutionId]) -> Result<Vec<ExecutionId>, StoreError> {
        timed!("stops", self.0.stops(executions))
    }

    async fn execution(
        &self,
        tenant: &TenantId,
        id: ExecutionId,
    ) -> Result<Option<ExecutionRow>, StoreError> {
        timed!("execution", self.0.execution(tenant, id), tenant)
    }

    async fn executions(&self, filter: &ExecutionFilter) -> Result<Vec<ExecutionRow>, StoreError> {
        timed!("executions", self.0.executions(filter))
    }

    async fn context(&self, tenant: &TenantId, id: ContextId) -> Result<Option<ContextRow>, StoreError> {
        timed!("context", self.0.context(tenant, id), tenant)
    }

    async fn live(&self, key: &ContextKey) -> Result<Option<ContextRow>, StoreError> {
        timed!("live", self.0.live(key), key.tenant)
    }

    async fn contexts(&self, filter: &ContextFilter) -> Result<Vec<ContextRow>, StoreError> {
        timed!("contexts", self.0.contexts(filter))
    }

    async fn count_live(&self) -> Result<u64, StoreError> {
        timed!("count_live", self.0.count_live())
    }

    async fn reap(&self, batch: u32, retention: Duration, limits: &Limits) -> Result<Reaped, StoreError> {
        timed!("reap", self.0.reap(batch, retention, limits))
    }

    async fn doomed(&self, batch: u32, visibility: Duration) -> Result<Vec<Doomed>, StoreError> {
        timed!("doomed", self.0.doomed(batch, visibility))
    }

    async fn buried(&self, entry: i64) -> Result<(), StoreError> {
        timed!("buried", self.0.buried(entry))
    }

    async fn bury_failed(&self, entry: i64, error: &str) -> Result<(), StoreError> {
        timed!("bury_failed", self.0.bury_failed(entry, error))
    }

    async fn unowned(&self, tags: &[(ContextId, i64)]) -> Result<Vec<(ContextId, i64)>, StoreError> {
        timed!("unowned", self.0.unowned(tags))
    }

    async fn owned(
        &self,
        min_age: Duration,
        after: Option<ContextId>,
        limit: u32,
    ) -> Result<Vec<ContextRow>, StoreError> {
        timed!("owned", self.0.owned(min_age, after, limit))
    }

    async fn set_tenant_limits(
        &self,
        tenant: &TenantId,
        per_tenant: Option<u32>,
        per_conversation: Option<u32>,
    ) -> Result<(), StoreError> {
        timed!("set_tenant_limits", self.0.set_tenant_limits(tenant, per_tenant, per_conversation), tenant)
    }

    async fn change_path(
        &self,
        tenant: &TenantId,
        conversation: &ConversationId,
        path: &PathId,
        change: &PathChange,
        expected: Option<i64>,
        limits: &Limits,
    ) -> Result<PathRow, PathError> {
        timed!(
            "change_path",
            self.0.change_path(tenant, conversation, path, change, expected, limits),
            tenant
        )
    }

    async fn paths(
        &self,
        tenant: &TenantId,
        conversation: &ConversationId,
        deleted: bool,
    ) -> Result<Vec<PathRow>, StoreError> {
        timed!("paths", self.0.paths(tenant, conversation, deleted), tenant)
    }

    async fn placeholders(&self, key: &ContextKey) -> Result<Placeholders, StoreError> {
        timed!("placeholders", self.0.placeholders(key), key.tenant)
    }

    async fn save_placeholders(
        &self,
        key: &ContextKey,
        new: &[(String, String, u32)],
    ) -> Result<(), StoreError> {
        timed!("save_placeholders", self.0.save_placeholders(key, new), key.tenant)
    }

    async fn record_reveal(&self, reveal: &NewReveal) -> Result<(), StoreError> {
        timed!("record_reveal", self.0.record_reveal(reveal))
    }

    async fn reveals(&self, tenant: Option<&TenantId>, limit: u32) -> Result<Vec<RevealRow>, StoreError> {
        timed!("reveals", self.0.reveals(tenant, limit))
    }

    async fn add_api_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        timed!("add_api_key", self.0.add_api_key(key))
    }

    async fn api_key(&self, id: &str) -> Result<Option<ApiKey>, StoreError> {
        timed!("api_key", self.0.api_key(id))
    }

    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        timed!("api_keys", self.0.api_keys())
    }

    async fn revoke_api_key(&self, id: &str) -> Result<bool, StoreError> {
        timed!("revoke_api_key", self.0.revoke_api_key(id))
    }
}
