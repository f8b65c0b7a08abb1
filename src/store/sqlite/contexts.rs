//! Contexts as rows: looks, lists, the end.

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::rows::{self};
use super::{SqliteStore, failure};
use crate::domain::{
    ContextEvent, ContextId, ContextKey, ContextStatus, ConversationId, EndReason, Owner, TenantId,
};
use crate::store::bind::BindKey;
use crate::store::{
    ContextFilter, ContextLimits, ContextRow, Contexts, End, QUEUE_LEASE, StoreError, measure::measure,
    millis, storable,
};

#[async_trait]
impl Contexts for SqliteStore {
    async fn context(&self, tenant: &TenantId, id: ContextId) -> Result<Option<ContextRow>, StoreError> {
        let row = sqlx::query("SELECT * FROM execution_contexts WHERE id = ? AND tenant_id = ?")
            .bind(id.to_string())
            .bind(tenant.as_str())
            .fetch_optional(&mut *self.read(measure!("context", tenant)).await?)
            .await
            .map_err(failure)?;
        row.map(|row| rows::context(&row, self.now_ms())).transpose()
    }

    async fn live(&self, key: &ContextKey) -> Result<Option<ContextRow>, StoreError> {
        let row = sqlx::query(
            "SELECT * FROM execution_contexts
              WHERE tenant_id = ? AND owner_principal = ? AND conversation_id = ?
                AND path_id = ? AND status IN ('creating', 'ready')",
        )
        .bind_key(key)
        .fetch_optional(&mut *self.read(measure!("live", key.tenant)).await?)
        .await
        .map_err(failure)?;
        row.map(|row| rows::context(&row, self.now_ms())).transpose()
    }

    async fn contexts(&self, filter: &ContextFilter) -> Result<Vec<ContextRow>, StoreError> {
        let found = sqlx::query(
            "SELECT * FROM execution_contexts
              WHERE tenant_id = coalesce(?, tenant_id) AND owner_principal = coalesce(?, owner_principal)
                AND conversation_id = coalesce(?, conversation_id)
                AND (? OR status IN ('creating', 'ready'))
              ORDER BY created_at DESC, id DESC LIMIT ?",
        )
        .bind(filter.tenant.as_ref().map(TenantId::as_str))
        .bind(filter.owner.as_ref().map(Owner::as_str))
        .bind(filter.conversation.as_ref().map(ConversationId::as_str))
        .bind(filter.ended)
        .bind(filter.limit.unwrap_or(100))
        .fetch_all(&mut *self.read(measure!("contexts")).await?)
        .await
        .map_err(failure)?;
        let now = self.now_ms();
        found.iter().map(|row| rows::context(row, now)).collect()
    }

    async fn count_live(&self) -> Result<u64, StoreError> {
        let count: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM execution_contexts WHERE status IN ('creating', 'ready')",
        )
        .fetch_one(&mut *self.read(measure!("count_live")).await?)
        .await
        .map_err(failure)?;
        Ok(u64::try_from(count).unwrap_or_default())
    }

    async fn end(&self, end: &End, limits: &ContextLimits) -> Result<bool, StoreError> {
        let mut transaction = self.write(measure!("end")).await?;
        let found: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM execution_contexts
              WHERE id = ? AND tenant_id = ? AND ended_at IS NULL AND lease_epoch = coalesce(?, lease_epoch)",
        )
        .bind(end.context.to_string())
        .bind(end.tenant.as_str())
        .bind(end.epoch)
        .fetch_one(&mut *transaction)
        .await
        .map_err(failure)?;
        if found == 0 {
            return Ok(false);
        }
        let error = end.error.as_deref();
        let ended = end_live(&mut transaction, end.context, end.reason, error, self.now_ms(), limits).await?;
        transaction.commit().await?;
        Ok(ended)
    }

    async fn set_tenant_limits(
        &self,
        tenant: &TenantId,
        per_tenant: Option<u32>,
        per_conversation: Option<u32>,
    ) -> Result<(), StoreError> {
        let mut transaction = self.write(measure!("set_tenant_limits", tenant)).await?;
        sqlx::query(
            "INSERT INTO tenant_limits (tenant_id, per_tenant, per_conversation) VALUES (?, ?, ?)
             ON CONFLICT (tenant_id) DO UPDATE
                SET per_tenant = excluded.per_tenant, per_conversation = excluded.per_conversation",
        )
        .bind(tenant.as_str())
        .bind(per_tenant)
        .bind(per_conversation)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await
    }
}

/// Ends a live context and puts its sandbox into the outbox. The only place that does either. `false`: it had ended.
pub(super) async fn end_live(
    connection: &mut SqliteConnection,
    id: ContextId,
    reason: EndReason,
    error: Option<&str>,
    now: i64,
    limits: &ContextLimits,
) -> Result<bool, StoreError> {
    let status: Option<String> =
        sqlx::query_scalar("SELECT status FROM execution_contexts WHERE id = ? AND ended_at IS NULL")
            .bind(id.to_string())
            .fetch_optional(&mut *connection)
            .await
            .map_err(failure)?;
    let Some(status) = status else { return Ok(false) };
    // An illegal step goes on to the table, whose guard refuses it.
    let after = status
        .parse::<ContextStatus>()
        .ok()
        .and_then(|status| status.after(ContextEvent::End(reason)).ok())
        .unwrap_or(ContextStatus::Error);
    doom(connection, id, reason, now, limits).await?;
    sqlx::query(
        "UPDATE execution_contexts
            SET status = ?1, end_reason = ?2, last_error = coalesce(?3, last_error), ended_at = ?4, updated_at = ?4,
                lease_expires_at = NULL, lease_wanted_at = NULL, host_key_enc = NULL, envd_token_enc = NULL, traffic_token_enc = NULL,
                mcp_token_enc = NULL
          WHERE id = ?5",
    )
    .bind(after.as_str())
    .bind(reason.as_str())
    .bind(error.map(storable))
    .bind(now)
    .bind(id.to_string())
    .execute(&mut *connection)
    .await
    .map_err(failure)?;
    // The creator's run keeps its place only as long as any other in the queue.
    sqlx::query(
        "UPDATE executions SET lease_expires_at = min(lease_expires_at, ?) WHERE context_id = ? AND status = 'queued'",
    )
    .bind(now + millis(QUEUE_LEASE))
    .bind(id.to_string())
    .execute(connection)
    .await
    .map_err(failure)?;
    Ok(true)
}

/// Puts a context's sandbox into the outbox. One in the making may still appear for as long as the provider's request may
/// be in flight.
async fn doom(
    connection: &mut SqliteConnection,
    id: ContextId,
    reason: EndReason,
    now: i64,
    limits: &ContextLimits,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO doomed_sandboxes (tenant_id, context_id, epoch, sandbox_id, sandbox_domain, host_url, host_key_enc,
             reason, not_before, created_at)
         SELECT tenant_id, id, lease_epoch, sandbox_id, sandbox_domain, host_url, host_key_enc, ?1,
                CASE WHEN sandbox_id IS NULL THEN ?2 + ?3 ELSE ?2 END, ?2
           FROM execution_contexts WHERE id = ?4",
    )
    .bind(reason.as_str())
    .bind(now)
    .bind(millis(limits.create_timeout))
    .bind(id.to_string())
    .execute(connection)
    .await
    .map(drop)
    .map_err(failure)
}

/// Tokens that do not open mean that the sandbox cannot be reached any more: it is lost, and replaced.
pub(super) async fn end_unreadable(
    connection: &mut SqliteConnection,
    id: ContextId,
    why: &StoreError,
    now: i64,
    limits: &ContextLimits,
) -> Result<(), StoreError> {
    tracing::warn!(context.id = %id, error = %why, "a context's tokens do not open; it is replaced");
    let error = Some("its tokens do not open with the keys of this server");
    end_live(connection, id, EndReason::Lost, error, now, limits).await.map(drop)
}
