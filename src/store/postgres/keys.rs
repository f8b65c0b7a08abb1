//! API keys of HTTP callers.

use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::rows::Cells;
use crate::domain::ApiKey;
use crate::store::StoreError;

impl PgStore {
    pub(super) async fn insert_api_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        self.call(|| async {
            sqlx::query("select pathbox.add_api_key_v1($1, $2, $3)")
                .bind(&key.id)
                .bind(key.hash.as_slice())
                .bind(serde_json::to_value(key).unwrap_or_default())
                .execute(&self.pool())
                .await
                .map(|_| ())
        })
        .await
    }

    /// `None`: all of them, newest first.
    pub(super) async fn select_api_keys(&self, id: Option<&str>) -> Result<Vec<ApiKey>, StoreError> {
        let rows = self
            .call(|| async {
                sqlx::query("select id, hash, key, revoked_at from pathbox.api_keys_v1($1)")
                    .bind(id)
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        rows.iter().map(api_key).collect()
    }

    pub(super) async fn mark_api_key_revoked(&self, id: &str) -> Result<bool, StoreError> {
        let revoked: Option<bool> = self
            .call(|| async {
                sqlx::query_scalar("select pathbox.revoke_api_key_v1($1)")
                    .bind(id)
                    .fetch_one(&self.pool())
                    .await
            })
            .await?;
        Ok(revoked.unwrap_or(false))
    }
}

fn api_key(row: &PgRow) -> Result<ApiKey, StoreError> {
    let id: &str = row.try_get("id").unwrap_or("?");
    let cells = Cells::new(row, "api_keys", id);
    let mut key: ApiKey =
        serde_json::from_value(cells.get::<Value>("key")?).map_err(|error| cells.corrupt(error))?;
    key.hash = cells.get::<&[u8]>("hash")?.try_into().map_err(|error| cells.corrupt(error))?;
    key.revoked_at = cells.get("revoked_at")?;
    Ok(key)
}
