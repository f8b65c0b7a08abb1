//! Clean-up: what is due, and the outbox of sandboxes that must die.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::rows::{self, Cells};
use super::{SqliteStore, contexts, failure};
use crate::domain::{ContextId, ContextKey, ContextStatus, EndReason, TenantId};
use crate::store::bind::BindKey;
use crate::store::{
    ContextLimits, ContextRow, Keyring, Outbox, PendingKill, Reaped, SandboxRef, StoreError,
    measure::measure, millis, secrets::SealedTokens, storable,
};

#[async_trait]
impl Outbox for SqliteStore {
    async fn reap(
        &self,
        batch: u32,
        retention: Duration,
        limits: &ContextLimits,
    ) -> Result<Reaped, StoreError> {
        let mut transaction = self.write(measure!("reap")).await?;
        let now = self.now_ms();
        let old = now.saturating_sub(millis(retention));
        // Runs whose replica is gone; one that never started leaves its key free.
        let interrupted = sqlx::query(
            "UPDATE executions
                SET finished_at = ?1, lease_expires_at = NULL, status = 'interrupted',
                    idempotency_key = CASE status WHEN 'running' THEN idempotency_key END,
                    args_sha256 = CASE status WHEN 'running' THEN args_sha256 END
              WHERE seq IN (SELECT seq FROM executions
                             WHERE status IN ('queued', 'running') AND lease_expires_at <= ?1 LIMIT ?2)",
        )
        .bind(now)
        .bind(batch)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?
        .rows_affected();
        let mut reaped = end_due(&mut transaction, None, batch, now, limits).await?;
        let gone = sqlx::query(
            "DELETE FROM execution_contexts
              WHERE rowid IN (SELECT rowid FROM execution_contexts WHERE ended_at < ?1 LIMIT ?2)
             RETURNING id, tenant_id, owner_principal, conversation_id, path_id",
        )
        .bind(old)
        .bind(batch)
        .fetch_all(&mut *transaction)
        .await
        .map_err(failure)?;
        for row in &gone {
            let key = Cells::new(row, "execution_contexts", "id").key()?;
            forget_numbers(&mut transaction, &key).await?;
        }
        let deleted = gone.len() as u64
            + sqlx::query(
                "DELETE FROM executions
                  WHERE seq IN (SELECT seq FROM executions
                                 WHERE finished_at < ?1 AND (idempotency_key IS NULL OR created_at < ?3) LIMIT ?2)",
            )
            .bind(old)
            .bind(batch)
            .bind(now - millis(limits.idempotency_ttl))
            .execute(&mut *transaction)
            .await
            .map_err(failure)?
            .rows_affected();
        transaction.commit().await?;
        reaped.interrupted = u32::try_from(interrupted).unwrap_or(u32::MAX);
        reaped.deleted = u32::try_from(deleted).unwrap_or(u32::MAX);
        Ok(reaped)
    }

    async fn claim_kills(&self, batch: u32, visibility: Duration) -> Result<Vec<PendingKill>, StoreError> {
        let mut transaction = self.write(measure!("claim_kills")).await?;
        let now = self.now_ms();
        let found = sqlx::query(
            "UPDATE doomed_sandboxes SET attempts = attempts + 1, not_before = ?1 + ?2
              WHERE id IN (SELECT id FROM doomed_sandboxes WHERE not_before <= ?1 ORDER BY not_before LIMIT ?3)
             RETURNING *",
        )
        .bind(now)
        .bind(millis(visibility))
        .bind(batch)
        .fetch_all(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await?;
        found.iter().map(|row| pending_kill(row, &self.keyring)).collect()
    }

    async fn kill_done(&self, entry: i64) -> Result<(), StoreError> {
        let mut transaction = self.write(measure!("kill_done")).await?;
        sqlx::query("DELETE FROM doomed_sandboxes WHERE id = ?")
            .bind(entry)
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit().await
    }

    // 5 s after the first try, doubling up to 10 minutes.
    async fn kill_failed(&self, entry: i64, error: &str) -> Result<(), StoreError> {
        let mut transaction = self.write(measure!("kill_failed")).await?;
        sqlx::query(
            "UPDATE doomed_sandboxes
                SET last_error = ?, not_before = ? + min(600000, 5000 << min(max(attempts - 1, 0), 10))
              WHERE id = ?",
        )
        .bind(storable(error))
        .bind(self.now_ms())
        .bind(entry)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await
    }

    async fn unowned(&self, tags: &[(ContextId, i64)]) -> Result<Vec<(ContextId, i64)>, StoreError> {
        let found = sqlx::query(
            "SELECT t.value->>0 AS id, t.value->>1 AS epoch FROM json_each(?) t
              WHERE NOT EXISTS (SELECT 1 FROM execution_contexts c
                                 WHERE c.id = t.value->>0 AND c.lease_epoch = t.value->>1 AND c.ended_at IS NULL)",
        )
        .bind(json!(tags).to_string())
        .fetch_all(&mut *self.read(measure!("unowned")).await?)
        .await
        .map_err(failure)?;
        let tag = |row| {
            let cells = Cells::new(row, "execution_contexts", "id");
            Ok((cells.parse("id")?, cells.get("epoch")?))
        };
        found.iter().map(tag).collect()
    }

    async fn owned(
        &self,
        tenant: Option<&TenantId>,
        min_age: Duration,
        after: Option<ContextId>,
        limit: u32,
    ) -> Result<Vec<ContextRow>, StoreError> {
        let now = self.now_ms();
        let found: Vec<SqliteRow> = sqlx::query(
            "SELECT * FROM execution_contexts
              WHERE status = 'ready' AND tenant_id = coalesce(?, tenant_id) AND ready_at <= ? AND id > coalesce(?, '')
              ORDER BY id LIMIT ?",
        )
        .bind(tenant.map(TenantId::as_str))
        .bind(now - millis(min_age))
        .bind(after.map(|id| id.to_string()))
        .bind(limit)
        .fetch_all(&mut *self.read(measure!("owned")).await?)
        .await
        .map_err(failure)?;
        let mut owned = Vec::with_capacity(found.len());
        for row in &found {
            match rows::context_with_sandbox(row, &self.keyring, now) {
                Ok(context) => owned.push(context),
                Err(why) => {
                    let id = Cells::new(row, "execution_contexts", "id").parse("id")?;
                    let mut transaction = self.write(measure!("owned")).await?;
                    contexts::end_unreadable(&mut transaction, id, &why, now, &ContextLimits::default())
                        .await?;
                    transaction.commit().await?;
                }
            }
        }
        Ok(owned)
    }
}

/// Ends contexts whose time is up and creators that are gone, a tenant's or everyone's.
pub(super) async fn end_due(
    connection: &mut SqliteConnection,
    tenant: Option<&TenantId>,
    batch: u32,
    now: i64,
    limits: &ContextLimits,
) -> Result<Reaped, StoreError> {
    let due = sqlx::query(
        "SELECT id, status, CASE status WHEN 'ready' THEN expires_at ELSE lease_expires_at END AS over_at,
                EXISTS (SELECT 1 FROM executions x WHERE x.context_id = c.id AND x.status = 'running') AS is_used
           FROM execution_contexts c
          WHERE status IN ('creating', 'ready') AND due_at <= ?2 AND (?1 IS NULL OR tenant_id = ?1)
          ORDER BY due_at LIMIT ?3",
    )
    .bind(tenant.map(TenantId::as_str))
    .bind(now)
    .bind(batch)
    .fetch_all(&mut *connection)
    .await
    .map_err(failure)?;
    let mut reaped = Reaped::default();
    for row in &due {
        let cells = Cells::new(row, "execution_contexts", "id");
        let id: ContextId = cells.parse("id")?;
        let over_at: i64 = cells.get("over_at")?;
        if over_at > now || cells.get("is_used")? {
            sqlx::query("UPDATE execution_contexts SET due_at = ? WHERE id = ?")
                .bind(over_at.max(now + 5000))
                .bind(id.to_string())
                .execute(&mut *connection)
                .await
                .map_err(failure)?;
            continue;
        }
        let (reason, error) = if cells.parse::<ContextStatus>("status")? == ContextStatus::Ready {
            reaped.expired += 1;
            (EndReason::Expired, None)
        } else {
            reaped.abandoned += 1;
            (EndReason::Error, Some("the replica that was making the sandbox is gone"))
        };
        contexts::end_live(connection, id, reason, error, now, limits).await?;
    }
    Ok(reaped)
}

fn pending_kill(row: &SqliteRow, keyring: &Keyring) -> Result<PendingKill, StoreError> {
    let cells = Cells::new(row, "doomed_sandboxes", "id");
    let id: i64 = cells.get("id")?;
    let context: ContextId = cells.parse("context_id")?;
    let sandbox = match cells.parse_optional("sandbox_id")? {
        None => None,
        Some(sandbox_id) => {
            let mut sandbox = SandboxRef {
                sandbox_id,
                domain: cells.get("sandbox_domain")?,
                host_url: cells.get("host_url")?,
                host_key: None,
                envd_token: None,
                traffic_token: None,
                mcp_url: None,
                mcp_token: None,
                provider_ends_at: None,
            };
            let sealed = SealedTokens {
                host_key: cells.get("host_key_enc")?,
                envd_token: None,
                traffic_token: None,
                mcp_token: None,
            };
            if let Err(error) =
                keyring.open_tokens(&cells.parse("tenant_id")?, context, &sealed, &mut sandbox)
            {
                tracing::warn!(entry = id, %error, "the key of the host of a sandbox to kill does not open");
            }
            Some(sandbox)
        }
    };
    Ok(PendingKill {
        id,
        context,
        epoch: cells.get("epoch")?,
        sandbox,
        reason: cells.get("reason")?,
        attempts: cells.get("attempts")?,
    })
}

/// With the last context of a key go its placeholder numbers.
async fn forget_numbers(connection: &mut SqliteConnection, key: &ContextKey) -> Result<(), StoreError> {
    sqlx::query(
        "DELETE FROM placeholders
          WHERE tenant_id = ?1 AND owner_principal = ?2 AND conversation_id = ?3 AND path_id = ?4
            AND NOT EXISTS (SELECT 1 FROM execution_contexts c
                             WHERE c.tenant_id = ?1 AND c.owner_principal = ?2 AND c.conversation_id = ?3
                               AND c.path_id = ?4)",
    )
    .bind_key(key)
    .execute(connection)
    .await
    .map(drop)
    .map_err(failure)
}
