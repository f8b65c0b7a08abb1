//! Clean-up: what is due, and the outbox of sandboxes that must die.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::rows::{self, Cells, context_columns, sandbox_columns};
use super::{PgStore, failure};
use crate::domain::{ContextId, TenantId};
use crate::store::{
    ContextLimits, ContextRow, Keyring, Outbox, PendingKill, Reaped, SandboxRef, StoreError,
    measure::measure, millis, secrets::SealedTokens, storable,
};

const OWNED: &str = concat!(
    "select clock_timestamp() as read_at, ",
    context_columns!("c."),
    ", ",
    sandbox_columns!("c."),
    " from pathbox.owned_v2($1, $2, $3, $4) c"
);

#[async_trait]
impl Outbox for PgStore {
    async fn reap(
        &self,
        batch: u32,
        retention: Duration,
        limits: &ContextLimits,
    ) -> Result<Reaped, StoreError> {
        let row = self
            .call(measure!("reap"), || async {
                sqlx::query(
                    "select expired, abandoned, interrupted, deleted from pathbox.reap_v2($1, $2, $3, $4)",
                )
                .bind(i32::try_from(batch).unwrap_or(i32::MAX))
                .bind(millis(retention))
                .bind(millis(limits.create_timeout))
                .bind(millis(limits.idempotency_ttl))
                .fetch_one(&self.pool())
                .await
            })
            .await?;
        let count = |column| row.try_get::<i32, _>(column).map(i32::unsigned_abs).map_err(failure);
        Ok(Reaped {
            expired: count("expired")?,
            abandoned: count("abandoned")?,
            interrupted: count("interrupted")?,
            deleted: count("deleted")?,
        })
    }

    async fn claim_kills(&self, batch: u32, visibility: Duration) -> Result<Vec<PendingKill>, StoreError> {
        let found = self.call(measure!("claim_kills"), || async {
                sqlx::query(
                    "select id, tenant_id, context_id, epoch, sandbox_id, sandbox_domain, host_url, host_key_enc, \
                            reason, attempts from pathbox.doomed_v1($1, $2)",
                )
                .bind(i32::try_from(batch).unwrap_or(i32::MAX))
                .bind(millis(visibility))
                .fetch_all(&self.pool())
                .await
            })
            .await?;
        found.iter().map(|row| pending_kill(row, &self.keyring)).collect()
    }

    async fn kill_done(&self, entry: i64) -> Result<(), StoreError> {
        self.call(measure!("kill_done"), || async {
            sqlx::query("select pathbox.buried_v1($1)").bind(entry).execute(&self.pool()).await.map(|_| ())
        })
        .await
    }

    async fn kill_failed(&self, entry: i64, error: &str) -> Result<(), StoreError> {
        self.call(measure!("kill_failed"), || async {
            sqlx::query("select pathbox.bury_failed_v1($1, $2)")
                .bind(entry)
                .bind(storable(error))
                .execute(&self.pool())
                .await
                .map(|_| ())
        })
        .await
    }

    async fn unowned(&self, tags: &[(ContextId, i64)]) -> Result<Vec<(ContextId, i64)>, StoreError> {
        let (ids, epochs): (Vec<Uuid>, Vec<i64>) = tags.iter().map(|(id, epoch)| (id.0, *epoch)).unzip();
        let found = self
            .call(measure!("unowned"), || async {
                sqlx::query("select id, epoch from pathbox.unowned_v1($1, $2)")
                    .bind(&ids)
                    .bind(&epochs)
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        found
            .iter()
            .map(|row| Ok((ContextId(row.try_get("id")?), row.try_get("epoch")?)))
            .collect::<Result<_, sqlx::Error>>()
            .map_err(failure)
    }

    async fn owned(
        &self,
        tenant: Option<&TenantId>,
        min_age: Duration,
        after: Option<ContextId>,
        limit: u32,
    ) -> Result<Vec<ContextRow>, StoreError> {
        let found = self
            .call(measure!("owned"), || async {
                sqlx::query(OWNED)
                    .bind(tenant.map(TenantId::as_str))
                    .bind(millis(min_age))
                    .bind(after.map(|id| id.0))
                    .bind(i32::try_from(limit).unwrap_or(i32::MAX))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let mut owned = Vec::with_capacity(found.len());
        for row in &found {
            match rows::context_with_sandbox(row, &self.keyring) {
                Ok(context) => owned.extend(context),
                Err(error) => self.give_up_unreadable(row, &error).await?,
            }
        }
        Ok(owned)
    }
}

fn pending_kill(row: &PgRow, keyring: &Keyring) -> Result<PendingKill, StoreError> {
    let id: i64 = Cells::new(row, "doomed_sandboxes", "?").get("id")?;
    let cells = Cells::new(row, "doomed_sandboxes", id);
    let context = ContextId(cells.get::<Uuid>("context_id")?);
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
