//! A store that tells how long each of its calls takes, and does nothing else.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::domain::{ApiKey, ContextId, ContextKey, ConversationId, ExecutionId, PathId, TenantId};
use crate::telemetry::metrics::DB_CLIENT;

use super::{
    Acquire, Acquired, Claim, ContextFilter, ContextRow, ContextStore, Doomed, DynStore, End,
    ExecutionFilter, ExecutionRow, ExecutionStatus, FinishedExecution, Limits, NewReveal, PathChange,
    PathError, PathRow, Placeholders, Reaped, RevealRow, SandboxRef, StoreError,
};

/// Measures the store inside.
#[derive(Debug)]
pub struct Measured(pub DynStore);

#[async_trait::async_trait]
impl ContextStore for Measured {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let _timed = DB_CLIENT.time(&["ping"]);
        self.0.ping().await
    }

    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        let _timed = DB_CLIENT.time(&["now"]);
        self.0.now().await
    }

    async fn acquire(&self, ask: &Acquire, limits: &Limits) -> Result<Acquired, StoreError> {
        let _timed = DB_CLIENT.time(&["acquire"]);
        self.0.acquire(ask, limits).await
    }

    async fn ready(
        &self,
        claim: &Claim,
        execution: ExecutionId,
        sandbox: &SandboxRef,
        limits: &Limits,
    ) -> Result<Option<ContextRow>, StoreError> {
        let _timed = DB_CLIENT.time(&["ready"]);
        self.0.ready(claim, execution, sandbox, limits).await
    }

    async fn renew(&self, claim: &Claim, limits: &Limits) -> Result<bool, StoreError> {
        let _timed = DB_CLIENT.time(&["renew"]);
        self.0.renew(claim, limits).await
    }

    async fn end(&self, end: &End, limits: &Limits) -> Result<bool, StoreError> {
        let _timed = DB_CLIENT.time(&["end"]);
        self.0.end(end, limits).await
    }

    async fn record(&self, finished: &FinishedExecution, limits: &Limits) -> Result<bool, StoreError> {
        let _timed = DB_CLIENT.time(&["record"]);
        self.0.record(finished, limits).await
    }

    async fn abandon(
        &self,
        tenant: &TenantId,
        execution: ExecutionId,
        status: ExecutionStatus,
        error: Option<&str>,
    ) -> Result<bool, StoreError> {
        let _timed = DB_CLIENT.time(&["abandon"]);
        self.0.abandon(tenant, execution, status, error).await
    }

    async fn ask_to_stop(&self, tenant: &TenantId, execution: ExecutionId) -> Result<bool, StoreError> {
        let _timed = DB_CLIENT.time(&["ask_to_stop"]);
        self.0.ask_to_stop(tenant, execution).await
    }

    async fn stops(&self, executions: &[ExecutionId]) -> Result<Vec<ExecutionId>, StoreError> {
        let _timed = DB_CLIENT.time(&["stops"]);
        self.0.stops(executions).await
    }

    async fn execution(
        &self,
        tenant: &TenantId,
        id: ExecutionId,
    ) -> Result<Option<ExecutionRow>, StoreError> {
        let _timed = DB_CLIENT.time(&["execution"]);
        self.0.execution(tenant, id).await
    }

    async fn executions(&self, filter: &ExecutionFilter) -> Result<Vec<ExecutionRow>, StoreError> {
        let _timed = DB_CLIENT.time(&["executions"]);
        self.0.executions(filter).await
    }

    async fn context(&self, tenant: &TenantId, id: ContextId) -> Result<Option<ContextRow>, StoreError> {
        let _timed = DB_CLIENT.time(&["context"]);
        self.0.context(tenant, id).await
    }

    async fn live(&self, key: &ContextKey) -> Result<Option<ContextRow>, StoreError> {
        let _timed = DB_CLIENT.time(&["live"]);
        self.0.live(key).await
    }

    async fn contexts(&self, filter: &ContextFilter) -> Result<Vec<ContextRow>, StoreError> {
        let _timed = DB_CLIENT.time(&["contexts"]);
        self.0.contexts(filter).await
    }

    async fn count_live(&self) -> Result<u64, StoreError> {
        let _timed = DB_CLIENT.time(&["count_live"]);
        self.0.count_live().await
    }

    async fn reap(&self, batch: u32, retention: Duration, limits: &Limits) -> Result<Reaped, StoreError> {
        let _timed = DB_CLIENT.time(&["reap"]);
        self.0.reap(batch, retention, limits).await
    }

    async fn doomed(&self, batch: u32, visibility: Duration) -> Result<Vec<Doomed>, StoreError> {
        let _timed = DB_CLIENT.time(&["doomed"]);
        self.0.doomed(batch, visibility).await
    }

    async fn buried(&self, entry: i64) -> Result<(), StoreError> {
        let _timed = DB_CLIENT.time(&["buried"]);
        self.0.buried(entry).await
    }

    async fn bury_failed(&self, entry: i64, error: &str) -> Result<(), StoreError> {
        let _timed = DB_CLIENT.time(&["bury_failed"]);
        self.0.bury_failed(entry, error).await
    }

    async fn unowned(&self, tags: &[(ContextId, i64)]) -> Result<Vec<(ContextId, i64)>, StoreError> {
        let _timed = DB_CLIENT.time(&["unowned"]);
        self.0.unowned(tags).await
    }

    async fn owned(
        &self,
        min_age: Duration,
        after: Option<ContextId>,
        limit: u32,
    ) -> Result<Vec<ContextRow>, StoreError> {
        let _timed = DB_CLIENT.time(&["owned"]);
        self.0.owned(min_age, after, limit).await
    }

    async fn set_tenant_limits(
        &self,
        tenant: &TenantId,
        per_tenant: Option<u32>,
        per_conversation: Option<u32>,
    ) -> Result<(), StoreError> {
        let _timed = DB_CLIENT.time(&["set_tenant_limits"]);
        self.0.set_tenant_limits(tenant, per_tenant, per_conversation).await
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
        let _timed = DB_CLIENT.time(&["change_path"]);
        self.0.change_path(tenant, conversation, path, change, expected, limits).await
    }

    async fn paths(
        &self,
        tenant: &TenantId,
        conversation: &ConversationId,
        deleted: bool,
    ) -> Result<Vec<PathRow>, StoreError> {
        let _timed = DB_CLIENT.time(&["paths"]);
        self.0.paths(tenant, conversation, deleted).await
    }

    async fn placeholders(&self, key: &ContextKey) -> Result<Placeholders, StoreError> {
        let _timed = DB_CLIENT.time(&["placeholders"]);
        self.0.placeholders(key).await
    }

    async fn save_placeholders(
        &self,
        key: &ContextKey,
        new: &[(String, String, u32)],
    ) -> Result<(), StoreError> {
        let _timed = DB_CLIENT.time(&["save_placeholders"]);
        self.0.save_placeholders(key, new).await
    }

    async fn record_reveal(&self, reveal: &NewReveal) -> Result<(), StoreError> {
        let _timed = DB_CLIENT.time(&["record_reveal"]);
        self.0.record_reveal(reveal).await
    }

    async fn reveals(&self, tenant: Option<&TenantId>, limit: u32) -> Result<Vec<RevealRow>, StoreError> {
        let _timed = DB_CLIENT.time(&["reveals"]);
        self.0.reveals(tenant, limit).await
    }

    async fn add_api_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        let _timed = DB_CLIENT.time(&["add_api_key"]);
        self.0.add_api_key(key).await
    }

    async fn api_key(&self, id: &str) -> Result<Option<ApiKey>, StoreError> {
        let _timed = DB_CLIENT.time(&["api_key"]);
        self.0.api_key(id).await
    }

    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        let _timed = DB_CLIENT.time(&["api_keys"]);
        self.0.api_keys().await
    }

    async fn revoke_api_key(&self, id: &str) -> Result<bool, StoreError> {
        let _timed = DB_CLIENT.time(&["revoke_api_key"]);
        self.0.revoke_api_key(id).await
    }
}
