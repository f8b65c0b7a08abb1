//! The guard's numbering of what it took out.

use sqlx::{Executor, Sqlite};

use super::{SqliteStore, failure};
use crate::domain::ContextKey;
use crate::store::{Placeholders, StoreError};

/// A key's numbers, over a reader or within a transaction.
pub(super) async fn load<'c>(
    from: impl Executor<'c, Database = Sqlite>,
    key: &ContextKey,
) -> Result<Placeholders, StoreError> {
    sqlx::query_as(
        "SELECT kind, value_hash, number FROM placeholders
          WHERE tenant_id = ? AND conversation_id = ? AND path_id = ? ORDER BY kind, number",
    )
    .bind(key.tenant.as_str())
    .bind(key.conversation.as_str())
    .bind(key.path.as_str())
    .fetch_all(from)
    .await
    .map_err(failure)
}

impl SqliteStore {
    pub(super) async fn load_placeholders(&self, key: &ContextKey) -> Result<Placeholders, StoreError> {
        load(&self.readers, key).await
    }

    pub(super) async fn add_placeholders(
        &self,
        key: &ContextKey,
        new: &[(String, String, u32)],
    ) -> Result<(), StoreError> {
        if new.is_empty() {
            return Ok(());
        }
        let mut transaction = self.write().await?;
        let now = self.now();
        for (kind, hash, number) in new {
            sqlx::query(
                "INSERT INTO placeholders (tenant_id, conversation_id, path_id, kind, value_hash, number, created_at)
                 VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            )
            .bind(key.tenant.as_str())
            .bind(key.conversation.as_str())
            .bind(key.path.as_str())
            .bind(kind)
            .bind(hash)
            .bind(number)
            .bind(now)
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        }
        transaction.commit().await.map_err(failure)
    }
}
