//! Records of runs, the guard's numbering, and who opened which kind of sealed token.

use async_trait::async_trait;
use serde_json::Value;
use sqlx::SqliteConnection;

use super::rows::{self, Cells};
use super::{SqliteStore, failure, time};
use crate::domain::{ContextId, ContextKey, ConversationId, ExecutionId, Owner, TenantId};
use crate::store::audit::{MAX_RESOLVES, MAX_VALUES, value_column};
use crate::store::bind::BindKey;
use crate::store::secrets::Place;
use crate::store::{
    Audit, ExecutionFilter, ExecutionRow, KeptValue, NewReveal, Placeholders, RevealRow, StoreError,
    measure::measure,
};

#[async_trait]
impl Audit for SqliteStore {
    async fn execution(
        &self,
        tenant: &TenantId,
        id: ExecutionId,
    ) -> Result<Option<ExecutionRow>, StoreError> {
        let row = sqlx::query("SELECT * FROM executions WHERE id = ? AND tenant_id = ?")
            .bind(id.to_string())
            .bind(tenant.as_str())
            .fetch_optional(&mut *self.read(measure!("execution", tenant)).await?)
            .await
            .map_err(failure)?;
        row.as_ref().map(rows::execution).transpose()
    }

    async fn executions(&self, filter: &ExecutionFilter) -> Result<Vec<ExecutionRow>, StoreError> {
        let found = sqlx::query(
            "SELECT id, context_id, tenant_id, owner_principal, conversation_id, path_id, tool, language, purpose,
                    code_sha256, principal, trace_id, status, exit_code, error, created_at, started_at, finished_at,
                    duration_ms, output_bytes, findings, NULL AS result
               FROM executions
              WHERE tenant_id = coalesce(?1, tenant_id) AND conversation_id = coalesce(?2, conversation_id)
                AND (?3 IS NULL OR context_id = ?3) AND (?5 IS NULL OR owner_principal = ?5 OR principal = ?6)
              ORDER BY created_at DESC, seq DESC LIMIT ?4",
        )
        .bind(filter.tenant.as_ref().map(TenantId::as_str))
        .bind(filter.conversation.as_ref().map(ConversationId::as_str))
        .bind(filter.context.map(|id| id.to_string()))
        .bind(filter.limit.unwrap_or(100))
        .bind(filter.owner.as_ref().map(Owner::as_str))
        .bind(&filter.principal)
        .fetch_all(&mut *self.read(measure!("executions")).await?)
        .await
        .map_err(failure)?;
        found.iter().map(rows::execution).collect()
    }

    async fn artifacts(&self, tenant: &TenantId, filter: &ExecutionFilter) -> Result<Vec<Value>, StoreError> {
        let found = sqlx::query(
            "SELECT id, json_object('format', coalesce(json_extract(result, '$.format'), 1), 'record',
                        json_object('artifacts', json(coalesce(json_extract(result, '$.record.artifacts'), '[]')))) AS kept
               FROM (SELECT id, result, created_at, seq FROM executions
                      WHERE tenant_id = ?1 AND (?2 IS NULL OR conversation_id = ?2)
                        AND (?4 IS NULL OR owner_principal = ?4 OR principal = ?5)
                      ORDER BY created_at DESC, seq DESC LIMIT ?3)
              WHERE result IS NOT NULL ORDER BY created_at DESC, seq DESC",
        )
        .bind(tenant.as_str())
        .bind(filter.conversation.as_ref().map(ConversationId::as_str))
        .bind(filter.limit.unwrap_or(100))
        .bind(filter.owner.as_ref().map(Owner::as_str))
        .bind(&filter.principal)
        .fetch_all(&mut *self.read(measure!("artifacts", tenant)).await?)
        .await
        .map_err(failure)?;
        let read = |row| Cells::new(row, "executions", "id").json("kept");
        found.iter().filter_map(|row| read(row).transpose()).collect()
    }

    async fn placeholders(&self, key: &ContextKey) -> Result<Placeholders, StoreError> {
        load(&mut *self.read(measure!("placeholders", key.tenant)).await?, key).await
    }

    async fn save_placeholders(
        &self,
        key: &ContextKey,
        new: &[(String, String, u32)],
    ) -> Result<(), StoreError> {
        if new.is_empty() {
            return Ok(());
        }
        let mut transaction = self.write(measure!("save_placeholders", key.tenant)).await?;
        let now = self.now_ms();
        for (kind, hash, number) in new {
            sqlx::query(
                "INSERT INTO placeholders (tenant_id, owner_principal, conversation_id, path_id, kind, value_hash, number,
                     created_at)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            )
            .bind_key(key)
            .bind(kind)
            .bind(hash)
            .bind(number)
            .bind(now)
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        }
        transaction.commit().await
    }

    async fn keep_values(
        &self,
        tenant: &TenantId,
        context: ContextId,
        values: &[KeptValue],
    ) -> Result<(), StoreError> {
        let row = context.to_string();
        let mut transaction = self.write(measure!("keep_values", tenant)).await?;
        let live: Option<i64> = sqlx::query_scalar(
            "SELECT (SELECT count(*) FROM placeholder_values WHERE context_id = ?1)
               FROM execution_contexts WHERE id = ?1 AND tenant_id = ?2 AND ended_at IS NULL",
        )
        .bind(&row)
        .bind(tenant.as_str())
        .fetch_optional(&mut *transaction)
        .await
        .map_err(failure)?;
        let Some(count) = live else { return Ok(()) };
        let mut left = u64::from(MAX_VALUES).saturating_sub(count.unsigned_abs());
        for (kind, number, value) in values {
            if left == 0 {
                break;
            }
            let place = Place { tenant, row: &row, column: &value_column(kind, *number) };
            let kept = sqlx::query(
                "INSERT INTO placeholder_values (tenant_id, context_id, kind, number, sealed)
                 VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            )
            .bind(tenant.as_str())
            .bind(&row)
            .bind(kind)
            .bind(number)
            .bind(self.keyring.seal(place, value))
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
            left -= kept.rows_affected().min(left);
        }
        transaction.commit().await
    }

    async fn take_values(
        &self,
        tenant: &TenantId,
        context: ContextId,
        wanted: &[(String, u32)],
    ) -> Result<Option<Vec<KeptValue>>, StoreError> {
        let row = context.to_string();
        let mut transaction = self.write(measure!("take_values", tenant)).await?;
        let before: i64 = sqlx::query_scalar(
            "SELECT coalesce(sum(resolved), 0) FROM placeholder_values WHERE context_id = ? AND tenant_id = ?",
        )
        .bind(&row)
        .bind(tenant.as_str())
        .fetch_one(&mut *transaction)
        .await
        .map_err(failure)?;
        if before.unsigned_abs() + wanted.len() as u64 > u64::from(MAX_RESOLVES) {
            return Ok(None);
        }
        let mut values = Vec::new();
        for (kind, number) in wanted {
            let sealed: Option<Vec<u8>> = sqlx::query_scalar(
                "UPDATE placeholder_values SET resolved = resolved + 1
                  WHERE context_id = ? AND tenant_id = ? AND kind = ? AND number = ? RETURNING sealed",
            )
            .bind(&row)
            .bind(tenant.as_str())
            .bind(kind)
            .bind(number)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(failure)?;
            let place = Place { tenant, row: &row, column: &value_column(kind, *number) };
            // One whose key is gone is as one that was not kept.
            let value = sealed.and_then(|sealed| self.keyring.open_sealed(place, &sealed).ok());
            values.extend(value.map(|value| (kind.clone(), *number, value)));
        }
        transaction.commit().await?;
        Ok(Some(values))
    }

    async fn record_reveal(&self, reveal: &NewReveal) -> Result<(), StoreError> {
        let mut transaction = self.write(measure!("record_reveal")).await?;
        sqlx::query(
            "INSERT INTO reveals (id, tenant_id, conversation_id, path_id, kind, principal, opened, at)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        )
        .bind(&reveal.id)
        .bind(reveal.key.tenant.as_str())
        .bind(reveal.key.conversation.as_str())
        .bind(reveal.key.path.as_str())
        .bind(&reveal.kind)
        .bind(&reveal.principal)
        .bind(reveal.opened)
        .bind(self.now_ms())
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await
    }

    async fn reveals(&self, tenant: Option<&TenantId>, limit: u32) -> Result<Vec<RevealRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, tenant_id, conversation_id, path_id, kind, principal, opened, at FROM reveals
              WHERE ?1 IS NULL OR tenant_id = ?1 ORDER BY at DESC, rowid DESC LIMIT ?2",
        )
        .bind(tenant.map(TenantId::as_str))
        .bind(limit)
        .fetch_all(&mut *self.read(measure!("reveals")).await?)
        .await
        .map_err(failure)?;
        let read = |row| {
            let cells = Cells::new(row, "reveals", "id");
            Ok(RevealRow {
                reveal: NewReveal {
                    id: cells.get("id")?,
                    key: cells.key_of_tenant()?,
                    kind: cells.get("kind")?,
                    principal: cells.get("principal")?,
                    opened: cells.get("opened")?,
                },
                at: time(cells.get("at")?),
            })
        };
        rows.iter().map(read).collect()
    }
}

/// A key's numbers, over a reader or within a transaction.
pub(super) async fn load(from: &mut SqliteConnection, key: &ContextKey) -> Result<Placeholders, StoreError> {
    sqlx::query_as(
        "SELECT kind, value_hash, number FROM placeholders
          WHERE tenant_id = ? AND owner_principal = ? AND conversation_id = ?
                AND path_id = ? ORDER BY kind, number",
    )
    .bind_key(key)
    .fetch_all(from)
    .await
    .map_err(failure)
}
