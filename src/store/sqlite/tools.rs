//! What the store remembers about the tools of other servers.

use async_trait::async_trait;

use super::rows::Cells;
use super::{SqliteStore, failure};
use crate::store::bind::BindKey;
use crate::store::ledger::sha256;
use crate::store::{StoreError, ToolMemory, ToolPermit, ToolPins, measure::measure, storable};

/// Milliseconds that a permit is good for.
const PERMIT_MS: i64 = 30 * 24 * 3_600_000;

#[async_trait]
impl ToolMemory for SqliteStore {
    async fn tool_pins(
        &self,
        scope: &str,
        server: &str,
        known: Option<&str>,
    ) -> Result<Option<ToolPins>, StoreError> {
        let row = sqlx::query(
            "SELECT server, digest, CASE WHEN digest IS NOT ?3 THEN pins END AS pins
               FROM tool_pins WHERE scope = ?1 AND server = ?2",
        )
        .bind(scope)
        .bind(server)
        .bind(known)
        .fetch_optional(&mut *self.read(measure!("tool_pins")).await?)
        .await
        .map_err(failure)?;
        let Some(row) = row else { return Ok(None) };
        let cells = Cells::new(&row, "tool_pins", "server");
        Ok(Some(ToolPins { digest: cells.get("digest")?, pins: cells.get("pins")? }))
    }

    async fn pin_tools(
        &self,
        scope: &str,
        server: &str,
        pins: &str,
        replace: bool,
    ) -> Result<String, StoreError> {
        let mut transaction = self.write(measure!("pin_tools")).await?;
        sqlx::query(
            "INSERT INTO tool_pins (scope, server, digest, pins, at) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET digest = excluded.digest, pins = excluded.pins, at = excluded.at WHERE ?6",
        )
        .bind(scope)
        .bind(server)
        .bind(sha256(pins))
        .bind(pins)
        .bind(self.now_ms())
        .bind(replace)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        let holds = sqlx::query_scalar("SELECT pins FROM tool_pins WHERE scope = ? AND server = ?")
            .bind(scope)
            .bind(server)
            .fetch_one(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit().await?;
        Ok(holds)
    }

    async fn refresh_token(&self, name: &str) -> Result<Option<String>, StoreError> {
        sqlx::query_scalar("SELECT sealed FROM refresh_tokens WHERE name = ?")
            .bind(name)
            .fetch_optional(&mut *self.read(measure!("refresh_token")).await?)
            .await
            .map_err(failure)
    }

    async fn keep_refresh_token(&self, name: &str, sealed: &str) -> Result<(), StoreError> {
        let mut transaction = self.write(measure!("keep_refresh_token")).await?;
        sqlx::query(
            "INSERT INTO refresh_tokens (name, sealed, at) VALUES (?, ?, ?)
             ON CONFLICT DO UPDATE SET sealed = excluded.sealed, at = excluded.at",
        )
        .bind(name)
        .bind(sealed)
        .bind(self.now_ms())
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await
    }

    async fn permit_tool(&self, permit: &ToolPermit) -> Result<(), StoreError> {
        let now = self.now_ms();
        let mut transaction = self.write(measure!("permit_tool", permit.conversation.tenant)).await?;
        sqlx::query("DELETE FROM tool_permits WHERE at <= ?")
            .bind(now - PERMIT_MS)
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        sqlx::query(
            "INSERT INTO tool_permits (tenant_id, owner_principal, conversation_id, principal, tool, definition, at)
             VALUES (?, ?, ?, ?, ?, ?, ?)
             ON CONFLICT DO UPDATE SET definition = excluded.definition, at = excluded.at",
        )
        .bind_conversation(&permit.conversation)
        .bind(storable(&permit.principal))
        .bind(storable(&permit.tool))
        .bind(&permit.definition)
        .bind(now)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await
    }

    async fn tool_permitted(&self, permit: &ToolPermit) -> Result<bool, StoreError> {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM tool_permits
              WHERE tenant_id = ? AND owner_principal = ? AND conversation_id = ? AND principal = ? AND tool = ?
                AND definition = ? AND at > ?)",
        )
        .bind_conversation(&permit.conversation)
        .bind(storable(&permit.principal))
        .bind(storable(&permit.tool))
        .bind(&permit.definition)
        .bind(self.now_ms() - PERMIT_MS)
        .fetch_one(&mut *self.read(measure!("tool_permitted", permit.conversation.tenant)).await?)
        .await
        .map_err(failure)
    }
}
