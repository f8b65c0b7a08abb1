//! API keys of HTTP callers.

use sqlx::sqlite::SqliteRow;

use super::rows::Cells;
use super::{SqliteStore, failure, time};
use crate::domain::ApiKey;
use crate::store::StoreError;

impl SqliteStore {
    pub(super) async fn insert_api_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        let mut transaction = self.write().await?;
        sqlx::query("INSERT INTO api_keys (id, hash, key, created_at) VALUES (?, ?, ?, ?)")
            .bind(&key.id)
            .bind(key.hash.as_slice())
            .bind(serde_json::to_string(key).unwrap_or_default())
            .bind(self.now())
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit().await.map_err(failure)
    }

    /// `None`: all of them, newest first.
    pub(super) async fn select_api_keys(&self, id: Option<&str>) -> Result<Vec<ApiKey>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, hash, key, revoked_at FROM api_keys WHERE ?1 IS NULL OR id = ?1 ORDER BY created_at DESC, id",
        )
        .bind(id)
        .fetch_all(&self.readers)
        .await
        .map_err(failure)?;
        rows.iter().map(api_key).collect()
    }

    pub(super) async fn mark_api_key_revoked(&self, id: &str) -> Result<bool, StoreError> {
        let mut transaction = self.write().await?;
        let done = sqlx::query("UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?")
            .bind(self.now())
            .bind(id)
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit().await.map_err(failure)?;
        Ok(done.rows_affected() > 0)
    }
}

fn api_key(row: &SqliteRow) -> Result<ApiKey, StoreError> {
    let cells = Cells::new(row, "api_keys", "id");
    let mut key: ApiKey = serde_json::from_str(cells.get("key")?).map_err(|error| cells.corrupt(error))?;
    key.hash = cells.get::<&[u8]>("hash")?.try_into().map_err(|error| cells.corrupt(error))?;
    key.revoked_at = cells.get::<Option<i64>>("revoked_at")?.map(time);
    Ok(key)
}
