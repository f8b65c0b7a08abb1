//! Contexts: the creator's calls, the end, lists.

use std::time::Duration;

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::rows::{self, Cells};
use super::{SqliteStore, failure};
use crate::domain::{
    ContextEvent, ContextId, ContextKey, ContextStatus, ConversationId, EndReason, ExecutionId, TenantId,
};
use crate::store::{
    Claim, ContextFilter, ContextRow, End, Limits, QUEUE_LEASE, SandboxRef, StoreError, millis, storable,
};

impl SqliteStore {
    pub(super) async fn ready_context(
        &self,
        claim: &Claim,
        execution: ExecutionId,
        sandbox: &SandboxRef,
        limits: &Limits,
    ) -> Result<Option<ContextRow>, StoreError> {
        let sealed = self.keyring.seal_tokens(&claim.key.tenant, claim.context, sandbox);
        let mut transaction = self.write().await?;
        let now = self.now();
        let updated = sqlx::query(
            "UPDATE execution_contexts
                SET status = 'ready', sandbox_id = ?, sandbox_domain = ?, host_url = ?, host_key_enc = ?,
                    envd_token_enc = ?, traffic_token_enc = ?, mcp_url = ?, mcp_token_enc = ?, provider_ends_at = ?,
                    ready_at = ?, last_used_at = ?, updated_at = ?, expires_at = ?, lease_expires_at = NULL
              WHERE id = ? AND tenant_id = ? AND status = 'creating' AND lease_epoch = ? AND lease_expires_at > ?",
        )
        .bind(sandbox.sandbox_id.as_str())
        .bind(sandbox.domain.as_deref())
        .bind(sandbox.host_url.as_deref())
        .bind(sealed.host_key.as_deref())
        .bind(sealed.envd_token.as_deref())
        .bind(sealed.traffic_token.as_deref())
        .bind(sandbox.mcp_url.as_deref())
        .bind(sealed.mcp_token.as_deref())
        .bind(sandbox.provider_ends_at.map(|at| at.timestamp_millis()))
        .bind(now)
        .bind(now)
        .bind(now)
        .bind(now + millis(limits.ttl))
        .bind(claim.context.to_string())
        .bind(claim.key.tenant.as_str())
        .bind(claim.epoch)
        .bind(now)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        if updated.rows_affected() > 0 {
            sqlx::query(
                "UPDATE executions
                    SET status = 'running', context_id = ?1, started_at = ?2, queued_ms = ?2 - created_at,
                        lease_expires_at = ?2 + run_lease_ms
                  WHERE id = ?3 AND tenant_id = ?4 AND status = 'queued'",
            )
            .bind(claim.context.to_string())
            .bind(now)
            .bind(execution.to_string())
            .bind(claim.key.tenant.as_str())
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        }
        // Said twice, the same sandbox is taken once.
        let row = sqlx::query(
            "SELECT * FROM execution_contexts
              WHERE id = ? AND tenant_id = ? AND status = 'ready' AND lease_epoch = ? AND sandbox_id = ?",
        )
        .bind(claim.context.to_string())
        .bind(claim.key.tenant.as_str())
        .bind(claim.epoch)
        .bind(sandbox.sandbox_id.as_str())
        .fetch_optional(&mut *transaction)
        .await
        .map_err(failure)?;
        if row.is_none() {
            sqlx::query(
                "INSERT INTO doomed_sandboxes (tenant_id, context_id, epoch, sandbox_id, sandbox_domain, host_url,
                     host_key_enc, reason, not_before, created_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'its creator was too slow', ?8, ?8)",
            )
            .bind(claim.key.tenant.as_str())
            .bind(claim.context.to_string())
            .bind(claim.epoch)
            .bind(sandbox.sandbox_id.as_str())
            .bind(sandbox.domain.as_deref())
            .bind(sandbox.host_url.as_deref())
            .bind(sealed.host_key.as_deref())
            .bind(now)
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        }
        let context = row.map(|row| rows::context(&row, now)).transpose()?;
        transaction.commit().await.map_err(failure)?;
        Ok(context.map(|context| ContextRow { sandbox: Some(sandbox.clone()), ..context }))
    }

    pub(super) async fn renew_claim(&self, claim: &Claim, limits: &Limits) -> Result<bool, StoreError> {
        let mut transaction = self.write().await?;
        let now = self.now();
        let until = now + millis(limits.create_lease);
        let renewed = sqlx::query(
            "UPDATE execution_contexts SET lease_expires_at = ?
              WHERE id = ? AND tenant_id = ? AND status = 'creating' AND lease_epoch = ? AND lease_expires_at > ?",
        )
        .bind(until)
        .bind(claim.context.to_string())
        .bind(claim.key.tenant.as_str())
        .bind(claim.epoch)
        .bind(now)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?
        .rows_affected();
        if renewed > 0 {
            sqlx::query(
                "UPDATE executions SET lease_expires_at = ? WHERE context_id = ? AND status = 'queued'",
            )
            .bind(until)
            .bind(claim.context.to_string())
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        }
        transaction.commit().await.map_err(failure)?;
        Ok(renewed > 0)
    }

    pub(super) async fn end_context(&self, end: &End, limits: &Limits) -> Result<bool, StoreError> {
        let mut transaction = self.write().await?;
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
        let ended = end_live(&mut transaction, end.context, end.reason, error, self.now(), limits).await?;
        transaction.commit().await.map_err(failure)?;
        Ok(ended)
    }

    pub(super) async fn one_context(
        &self,
        tenant: &TenantId,
        id: ContextId,
    ) -> Result<Option<ContextRow>, StoreError> {
        let row = sqlx::query("SELECT * FROM execution_contexts WHERE id = ? AND tenant_id = ?")
            .bind(id.to_string())
            .bind(tenant.as_str())
            .fetch_optional(&self.readers)
            .await
            .map_err(failure)?;
        row.map(|row| rows::context(&row, self.now())).transpose()
    }

    pub(super) async fn live_context(&self, key: &ContextKey) -> Result<Option<ContextRow>, StoreError> {
        let row = sqlx::query(
            "SELECT * FROM execution_contexts
              WHERE tenant_id = ? AND conversation_id = ? AND path_id = ? AND status IN ('creating', 'ready')",
        )
        .bind(key.tenant.as_str())
        .bind(key.conversation.as_str())
        .bind(key.path.as_str())
        .fetch_optional(&self.readers)
        .await
        .map_err(failure)?;
        row.map(|row| rows::context(&row, self.now())).transpose()
    }

    pub(super) async fn list_contexts(&self, filter: &ContextFilter) -> Result<Vec<ContextRow>, StoreError> {
        let found = sqlx::query(
            "SELECT * FROM execution_contexts
              WHERE tenant_id = coalesce(?, tenant_id) AND conversation_id = coalesce(?, conversation_id)
                AND (? OR status IN ('creating', 'ready'))
              ORDER BY created_at DESC, id DESC LIMIT ?",
        )
        .bind(filter.tenant.as_ref().map(TenantId::as_str))
        .bind(filter.conversation.as_ref().map(ConversationId::as_str))
        .bind(filter.ended)
        .bind(filter.limit.unwrap_or(100))
        .fetch_all(&self.readers)
        .await
        .map_err(failure)?;
        let now = self.now();
        found.iter().map(|row| rows::context(row, now)).collect()
    }

    pub(super) async fn count_live_contexts(&self) -> Result<u64, StoreError> {
        let count: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM execution_contexts WHERE status IN ('creating', 'ready')",
        )
        .fetch_one(&self.readers)
        .await
        .map_err(failure)?;
        Ok(u64::try_from(count).unwrap_or_default())
    }

    pub(super) async fn owned_contexts(
        &self,
        min_age: Duration,
        after: Option<ContextId>,
        limit: u32,
    ) -> Result<Vec<ContextRow>, StoreError> {
        let now = self.now();
        let found: Vec<SqliteRow> = sqlx::query(
            "SELECT * FROM execution_contexts
              WHERE status = 'ready' AND ready_at <= ? AND id > coalesce(?, '') ORDER BY id LIMIT ?",
        )
        .bind(now - millis(min_age))
        .bind(after.map(|id| id.to_string()))
        .bind(limit)
        .fetch_all(&self.readers)
        .await
        .map_err(failure)?;
        let mut owned = Vec::with_capacity(found.len());
        for row in &found {
            match rows::context_with_sandbox(row, &self.keyring, now) {
                Ok(context) => owned.push(context),
                Err(why) => {
                    let id = Cells::new(row, "execution_contexts", "id").parse("id")?;
                    let mut transaction = self.write().await?;
                    end_unreadable(&mut transaction, id, &why, now, &Limits::default()).await?;
                    transaction.commit().await.map_err(failure)?;
                }
            }
        }
        Ok(owned)
    }

    pub(super) async fn unowned_tags(
        &self,
        tags: &[(ContextId, i64)],
    ) -> Result<Vec<(ContextId, i64)>, StoreError> {
        let mut transaction = self.read().await?;
        let mut unowned = Vec::new();
        for (id, epoch) in tags {
            let owners: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM execution_contexts WHERE id = ? AND lease_epoch = ? AND ended_at IS NULL",
            )
            .bind(id.to_string())
            .bind(epoch)
            .fetch_one(&mut *transaction)
            .await
            .map_err(failure)?;
            if owners == 0 {
                unowned.push((*id, *epoch));
            }
        }
        Ok(unowned)
    }

    pub(super) async fn override_limits(
        &self,
        tenant: &TenantId,
        per_tenant: Option<u32>,
        per_conversation: Option<u32>,
    ) -> Result<(), StoreError> {
        let mut transaction = self.write().await?;
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
        transaction.commit().await.map_err(failure)
    }
}

/// Ends a live context and puts its sandbox into the outbox. The only place that does either. `false`: it had ended.
pub(super) async fn end_live(
    connection: &mut SqliteConnection,
    id: ContextId,
    reason: EndReason,
    error: Option<&str>,
    now: i64,
    limits: &Limits,
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
    // A sandbox in the making may still appear for as long as the provider's request may be in flight.
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
    .execute(&mut *connection)
    .await
    .map_err(failure)?;
    sqlx::query(
        "UPDATE execution_contexts
            SET status = ?1, end_reason = ?2, last_error = coalesce(?3, last_error), ended_at = ?4, updated_at = ?4,
                lease_expires_at = NULL, host_key_enc = NULL, envd_token_enc = NULL, traffic_token_enc = NULL,
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

/// Tokens that do not open mean that the sandbox cannot be reached any more: it is lost, and replaced.
pub(super) async fn end_unreadable(
    connection: &mut SqliteConnection,
    id: ContextId,
    why: &StoreError,
    now: i64,
    limits: &Limits,
) -> Result<(), StoreError> {
    tracing::warn!(context.id = %id, error = %why, "a context's tokens do not open; it is replaced");
    let error = Some("its tokens do not open with the keys of this server");
    end_live(connection, id, EndReason::Lost, error, now, limits).await.map(drop)
}
