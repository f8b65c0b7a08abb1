//! Runs: record, abandon, lists.

use sqlx::SqliteConnection;

use super::{SqliteStore, failure, rows};
use crate::domain::{ConversationId, ExecutionId, TenantId};
use crate::store::{
    Acquire, ExecutionFilter, ExecutionRow, ExecutionStatus, FinishedExecution, Limits, StoreError, millis,
    storable, storable_result,
};

impl SqliteStore {
    pub(super) async fn record_execution(
        &self,
        finished: &FinishedExecution,
        limits: &Limits,
    ) -> Result<bool, StoreError> {
        let (result, small) = storable_result(finished);
        let mut transaction = self.write().await?;
        let now = self.now();
        let ended = finished.ended_at.map_or(now, |at| at.timestamp_millis());
        if let Some(ask) = finished.unasked.as_deref() {
            insert_unasked(&mut transaction, ask, finished, ended).await?;
        }
        let recorded = sqlx::query(
            "UPDATE executions
                SET status = ?1, context_id = ?2, exit_code = ?3, error = ?4, duration_ms = ?5, queued_ms = ?6,
                    output_bytes = ?7, findings = ?8,
                    result = CASE WHEN ?9 OR idempotency_key IS NOT NULL THEN ?10 END,
                    lease_expires_at = NULL, finished_at = ?11,
                    created_at = CASE WHEN ?14 THEN ?11 - ?5 - ?6 ELSE created_at END,
                    started_at = CASE WHEN ?14 THEN ?11 - ?5 ELSE coalesce(started_at, ?11) END
              WHERE id = ?12 AND tenant_id = ?13
                AND (status IN ('queued', 'running') OR (status = 'interrupted' AND ?1 <> 'interrupted'))",
        )
        .bind(finished.status.as_str())
        .bind(finished.context.to_string())
        .bind(finished.exit_code)
        .bind(finished.error.as_deref().map(storable))
        .bind(finished.duration_ms)
        .bind(finished.queued_ms)
        .bind(finished.output_bytes)
        .bind(finished.findings.to_string())
        .bind(small)
        .bind(result)
        .bind(ended)
        .bind(finished.id.to_string())
        .bind(finished.tenant.as_str())
        .bind(finished.unasked.is_some())
        .execute(&mut *transaction)
        .await
        .map_err(failure)?
        .rows_affected();
        if recorded == 0 {
            return Ok(false);
        }
        sqlx::query(
            "UPDATE execution_contexts
                SET execution_count = execution_count + 1, total_execution_ms = total_execution_ms + ?1,
                    last_used_at = max(last_used_at, ?2), updated_at = ?11, expires_at = max(expires_at, ?2 + ?3),
                    provider_ends_at = coalesce(?4, provider_ends_at),
                    last_error = CASE WHEN ?5 THEN coalesce(?6, last_error) ELSE last_error END,
                    resource_usage = json_object(
                        'output_bytes', coalesce(resource_usage->>'output_bytes', 0) + ?7,
                        'queued_ms', coalesce(resource_usage->>'queued_ms', 0) + ?8)
              WHERE id = ?9 AND tenant_id = ?10 AND status = 'ready'",
        )
        .bind(finished.duration_ms)
        .bind(ended)
        .bind(millis(limits.ttl))
        .bind(finished.provider_ends_at.map(|at| at.timestamp_millis()))
        .bind(finished.status == ExecutionStatus::Failed)
        .bind(finished.error.as_deref().map(storable))
        .bind(finished.output_bytes)
        .bind(finished.queued_ms)
        .bind(finished.context.to_string())
        .bind(finished.tenant.as_str())
        .bind(now)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await.map_err(failure)?;
        Ok(true)
    }

    pub(super) async fn abandon_execution(
        &self,
        tenant: &TenantId,
        execution: ExecutionId,
        status: ExecutionStatus,
        error: Option<&str>,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.write().await?;
        // A claim that the run held is over with it: the next in the queue takes it over at once.
        sqlx::query(
            "UPDATE execution_contexts SET lease_expires_at = ?1
              WHERE id = (SELECT context_id FROM executions WHERE id = ?2 AND tenant_id = ?3)
                AND status = 'creating' AND creator_execution = ?2",
        )
        .bind(self.now())
        .bind(execution.to_string())
        .bind(tenant.as_str())
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        let abandoned = sqlx::query(
            "UPDATE executions
                SET status = ?1, error = ?2, finished_at = ?3, lease_expires_at = NULL,
                    idempotency_key = CASE WHEN ?1 = 'interrupted' THEN idempotency_key END,
                    args_sha256 = CASE WHEN ?1 = 'interrupted' THEN args_sha256 END
              WHERE id = ?4 AND tenant_id = ?5 AND status IN ('queued', 'running')",
        )
        .bind(status.as_str())
        .bind(error.map(storable))
        .bind(self.now())
        .bind(execution.to_string())
        .bind(tenant.as_str())
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await.map_err(failure)?;
        Ok(abandoned.rows_affected() > 0)
    }

    pub(super) async fn ask_execution_to_stop(
        &self,
        tenant: &TenantId,
        id: ExecutionId,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.write().await?;
        let asked = sqlx::query(
            "UPDATE executions SET stop_asked_at = coalesce(stop_asked_at, ?1)
              WHERE id = ?2 AND tenant_id = ?3 AND status IN ('queued', 'running')",
        )
        .bind(self.now())
        .bind(id.to_string())
        .bind(tenant.as_str())
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await.map_err(failure)?;
        Ok(asked.rows_affected() > 0)
    }

    pub(super) async fn executions_to_stop(
        &self,
        ids: &[ExecutionId],
    ) -> Result<Vec<ExecutionId>, StoreError> {
        let mut found = Vec::new();
        for id in ids {
            let asked: Option<i64> =
                sqlx::query_scalar("SELECT 1 FROM executions WHERE id = ? AND stop_asked_at IS NOT NULL")
                    .bind(id.to_string())
                    .fetch_optional(&self.readers)
                    .await
                    .map_err(failure)?;
            found.extend(asked.map(|_| *id));
        }
        Ok(found)
    }

    pub(super) async fn one_execution(
        &self,
        tenant: &TenantId,
        id: ExecutionId,
    ) -> Result<Option<ExecutionRow>, StoreError> {
        let row = sqlx::query("SELECT * FROM executions WHERE id = ? AND tenant_id = ?")
            .bind(id.to_string())
            .bind(tenant.as_str())
            .fetch_optional(&self.readers)
            .await
            .map_err(failure)?;
        row.as_ref().map(rows::execution).transpose()
    }

    pub(super) async fn list_executions(
        &self,
        filter: &ExecutionFilter,
    ) -> Result<Vec<ExecutionRow>, StoreError> {
        let found = sqlx::query(
            "SELECT * FROM executions
              WHERE tenant_id = coalesce(?1, tenant_id) AND conversation_id = coalesce(?2, conversation_id)
                AND (?3 IS NULL OR context_id = ?3)
              ORDER BY created_at DESC, seq DESC LIMIT ?4",
        )
        .bind(filter.tenant.as_ref().map(TenantId::as_str))
        .bind(filter.conversation.as_ref().map(ConversationId::as_str))
        .bind(filter.context.map(|id| id.to_string()))
        .bind(filter.limit.unwrap_or(100))
        .fetch_all(&self.readers)
        .await
        .map_err(failure)?;
        found.iter().map(rows::execution).collect()
    }
}

/// The row of a run that was never acquired; nothing when it is there. An idempotency key that is another run's is
/// left out.
async fn insert_unasked(
    connection: &mut SqliteConnection,
    ask: &Acquire,
    finished: &FinishedExecution,
    ended: i64,
) -> Result<(), StoreError> {
    let run = &ask.execution;
    let mut once = run.idempotency.as_ref();
    if let Some(key) = once {
        let taken: i64 =
            sqlx::query_scalar("SELECT count(*) FROM executions WHERE tenant_id = ? AND idempotency_key = ?")
                .bind(finished.tenant.as_str())
                .bind(storable(&key.key))
                .fetch_one(&mut *connection)
                .await
                .map_err(failure)?;
        once = (taken == 0).then_some(key);
    }
    let started = ended - finished.duration_ms;
    sqlx::query(
        "INSERT INTO executions (id, tenant_id, conversation_id, path_id, context_id, owner, tool, language, purpose,
             code_sha256, principal, trace_id, idempotency_key, args_sha256, status, run_lease_ms, finished_at,
             created_at, started_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'interrupted', ?, ?, ?, ?)
         ON CONFLICT DO NOTHING",
    )
    .bind(finished.id.to_string())
    .bind(finished.tenant.as_str())
    .bind(ask.key.conversation.as_str())
    .bind(ask.key.path.as_str())
    .bind(finished.context.to_string())
    .bind(storable(&ask.owner))
    .bind(storable(&run.tool))
    .bind(run.language.as_str())
    .bind(run.purpose.as_deref().map(storable))
    .bind(storable(&run.code_sha256))
    .bind(run.principal.as_deref().map(storable))
    .bind(run.trace_id.as_deref().map(storable))
    .bind(once.map(|once| storable(&once.key)))
    .bind(once.map(|once| storable(&once.args_sha256)))
    .bind(millis(run.lease))
    .bind(ended)
    .bind(started - finished.queued_ms)
    .bind(started)
    .execute(connection)
    .await
    .map(drop)
    .map_err(failure)
}
