//! API keys of HTTP callers.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;

use super::rows::Cells;
use super::{SqliteStore, failure, time};
use crate::domain::{ApiKey, from_kept, to_kept};
use crate::store::{Keys, StoreError, measure::measure};

#[async_trait]
impl Keys for SqliteStore {
    async fn add_api_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        let mut transaction = self.write(measure!("add_api_key")).await?;
        sqlx::query("INSERT INTO api_keys (id, hash, key, created_at) VALUES (?, ?, ?, ?)")
            .bind(&key.id)
            .bind(key.hash.as_slice())
            .bind(to_kept(key).to_string())
            .bind(self.now_ms())
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit().await
    }

    async fn api_key(&self, id: &str) -> Result<Option<ApiKey>, StoreError> {
        Ok(self.select_api_keys(Some(id)).await?.pop())
    }

    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.select_api_keys(None).await
    }

    async fn revoke_api_key(&self, id: &str) -> Result<bool, StoreError> {
        let mut transaction = self.write(measure!("revoke_api_key")).await?;
        let done = sqlx::query("UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?")
            .bind(self.now_ms())
            .bind(id)
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit().await?;
        Ok(done.rows_affected() > 0)
    }

    /// The command that revokes is another process, and the file is at hand.
    fn keys_gone(&self) -> Option<u64> {
        None
    }
}

impl SqliteStore {
    /// `None`: all of them, newest first.
    async fn select_api_keys(&self, id: Option<&str>) -> Result<Vec<ApiKey>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, hash, key, revoked_at FROM api_keys WHERE ?1 IS NULL OR id = ?1 ORDER BY created_at DESC, id",
        )
        .bind(id)
        .fetch_all(&mut *self.read(measure!("api_keys")).await?)
        .await
        .map_err(failure)?;
        rows.iter().map(api_key).collect()
    }
}

fn api_key(row: &SqliteRow) -> Result<ApiKey, StoreError> {
    let cells = Cells::new(row, "api_keys", "id");
    let kept = cells.json("key")?.unwrap_or_default();
    let mut key: ApiKey = from_kept(kept).map_err(|error| cells.corrupt(error))?;
    key.hash = cells.get::<&[u8]>("hash")?.try_into().map_err(|error| cells.corrupt(error))?;
    key.revoked_at = cells.get::<Option<i64>>("revoked_at")?.map(time);
    Ok(key)
}
