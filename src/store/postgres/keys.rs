//! API keys of HTTP callers.

use async_trait::async_trait;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::rows::Cells;
use crate::domain::{ApiKey, from_kept, to_kept};
use crate::store::{Keys, StoreError, measure::measure};

#[async_trait]
impl Keys for PgStore {
    async fn add_api_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        self.call(measure!("add_api_key"), || async {
            sqlx::query("select pathbox.add_api_key_v1($1, $2, $3)")
                .bind(&key.id)
                .bind(key.hash.as_slice())
                .bind(to_kept(key))
                .execute(&self.pool())
                .await
                .map(|_| ())
        })
        .await
    }

    async fn api_key(&self, id: &str) -> Result<Option<ApiKey>, StoreError> {
        Ok(self.select_api_keys(Some(id)).await?.pop())
    }

    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.select_api_keys(None).await
    }

    async fn revoke_api_key(&self, id: &str) -> Result<bool, StoreError> {
        let revoked: Option<bool> = self
            .call(measure!("revoke_api_key"), || async {
                sqlx::query_scalar("select pathbox.revoke_api_key_v1($1)")
                    .bind(id)
                    .fetch_one(&self.pool())
                    .await
            })
            .await?;
        Ok(revoked.unwrap_or(false))
    }

    fn keys_gone(&self) -> Option<u64> {
        Some(self.signals.keys_gone())
    }
}

impl PgStore {
    /// `None`: all of them, newest first.
    async fn select_api_keys(&self, id: Option<&str>) -> Result<Vec<ApiKey>, StoreError> {
        let rows = self
            .call(measure!("api_keys"), || async {
                sqlx::query("select id, hash, key, revoked_at from pathbox.api_keys_v1($1)")
                    .bind(id)
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        rows.iter().map(api_key).collect()
    }
}

fn api_key(row: &PgRow) -> Result<ApiKey, StoreError> {
    let id: &str = row.try_get("id").unwrap_or("?");
    let cells = Cells::new(row, "api_keys", id);
    let mut key: ApiKey = from_kept(cells.get::<Value>("key")?).map_err(|error| cells.corrupt(error))?;
    key.hash = cells.get::<&[u8]>("hash")?.try_into().map_err(|error| cells.corrupt(error))?;
    key.revoked_at = cells.get("revoked_at")?;
    Ok(key)
}
