//! Runs: record, abandon, lists.

use serde_json::json;

use super::PgStore;
use super::rows;
use crate::domain::{ConversationId, ExecutionId, TenantId};
use crate::store::{
    Acquire, ExecutionFilter, ExecutionRow, ExecutionStatus, FinishedExecution, Limits, StoreError, millis,
    storable, storable_result,
};

impl PgStore {
    pub(super) async fn record_execution(
        &self,
        finished: &FinishedExecution,
        limits: &Limits,
    ) -> Result<bool, StoreError> {
        let (result, small) = storable_result(finished);
        let findings = finished.findings.to_string();
        let unasked = finished.unasked.as_deref().map(unasked_as_json);
        self.call(|| async {
            sqlx::query_scalar(
                "select pathbox.record_v1($1,$2,$3,$4,$5,$6,$7,$8,$9,$10::text::json,$11::text::json,$12,$13,$14,\
                 $15,$16::text::jsonb)",
            )
            .bind(finished.tenant.as_str())
            .bind(finished.id.0)
            .bind(finished.context.0)
            .bind(finished.status.as_str())
            .bind(finished.exit_code)
            .bind(finished.error.as_deref().map(storable))
            .bind(finished.duration_ms)
            .bind(finished.queued_ms)
            .bind(finished.output_bytes)
            .bind(&findings)
            .bind(&result)
            .bind(small)
            .bind(finished.provider_ends_at)
            .bind(millis(limits.ttl))
            .bind(finished.ended_at)
            .bind(&unasked)
            .fetch_one(&self.pool())
            .await
        })
        .await
    }

    pub(super) async fn abandon_execution(
        &self,
        tenant: &TenantId,
        execution: ExecutionId,
        status: ExecutionStatus,
        error: Option<&str>,
    ) -> Result<bool, StoreError> {
        self.call(|| async {
            sqlx::query_scalar("select pathbox.abandon_v1($1, $2, $3, $4)")
                .bind(tenant.as_str())
                .bind(execution.0)
                .bind(status.as_str())
                .bind(error.map(storable))
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    pub(super) async fn ask_execution_to_stop(
        &self,
        tenant: &TenantId,
        id: ExecutionId,
    ) -> Result<bool, StoreError> {
        self.call(|| async {
            sqlx::query_scalar("select pathbox.ask_to_stop_v1($1, $2)")
                .bind(tenant.as_str())
                .bind(id.0)
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    pub(super) async fn executions_to_stop(
        &self,
        ids: &[ExecutionId],
    ) -> Result<Vec<ExecutionId>, StoreError> {
        let ids: Vec<_> = ids.iter().map(|id| id.0).collect();
        let found = self
            .call(|| async {
                sqlx::query_scalar("select pathbox.all_stops_v1($1)").bind(&ids).fetch_all(&self.pool()).await
            })
            .await?;
        Ok(found.into_iter().map(ExecutionId).collect())
    }

    pub(super) async fn one_execution(
        &self,
        tenant: &TenantId,
        id: ExecutionId,
    ) -> Result<Option<ExecutionRow>, StoreError> {
        let sql = rows::execution_query!("pathbox.execution_v1($1, $2)");
        let row = self
            .call(|| async {
                sqlx::query(sql).bind(tenant.as_str()).bind(id.0).fetch_optional(&self.pool()).await
            })
            .await?;
        row.as_ref().map(rows::execution).transpose()
    }

    pub(super) async fn list_executions(
        &self,
        filter: &ExecutionFilter,
    ) -> Result<Vec<ExecutionRow>, StoreError> {
        let found = self
            .call(|| async {
                match &filter.tenant {
                    Some(tenant) => {
                        sqlx::query(rows::execution_query!("pathbox.executions_v1($1, $2, $3, $4)"))
                            .bind(tenant.as_str())
                    }
                    None => sqlx::query(rows::execution_query!("pathbox.all_executions_v1($1, $2, $3)")),
                }
                .bind(filter.conversation.as_ref().map(ConversationId::as_str))
                .bind(filter.context.map(|id| id.0))
                .bind(i32::try_from(filter.limit.unwrap_or(100)).unwrap_or(i32::MAX))
                .fetch_all(&self.pool())
                .await
            })
            .await?;
        found.iter().map(rows::execution).collect()
    }
}

/// The ask of a run that was never acquired, as `record_v1` reads it.
fn unasked_as_json(ask: &Acquire) -> String {
    let run = &ask.execution;
    json!({
        "conversation": ask.key.conversation,
        "path": ask.key.path,
        "owner": storable(&ask.owner),
        "tool": storable(&run.tool),
        "language": run.language.as_str(),
        "purpose": run.purpose.as_deref().map(storable),
        "code_sha256": storable(&run.code_sha256),
        "principal": run.principal.as_deref().map(storable),
        "trace_id": run.trace_id.as_deref().map(storable),
        "key": run.idempotency.as_ref().map(|once| storable(&once.key)),
        "args_sha256": run.idempotency.as_ref().map(|once| storable(&once.args_sha256)),
        "run_lease_ms": millis(run.lease),
    })
    .to_string()
}
