//! The guard's numbering of what it took out.

use sqlx::Row;

use super::{PgStore, failure};
use crate::domain::ContextKey;
use crate::store::{Placeholders, StoreError};

impl PgStore {
    pub(super) async fn load_placeholders(&self, key: &ContextKey) -> Result<Placeholders, StoreError> {
        let found = self
            .call(|| async {
                sqlx::query("select kind, value_hash, number from pathbox.placeholders_v1($1, $2, $3)")
                    .bind(key.tenant.as_str())
                    .bind(key.conversation.as_str())
                    .bind(key.path.as_str())
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        found
            .iter()
            .map(|row| {
                let number: i32 = row.try_get("number")?;
                Ok((row.try_get("kind")?, row.try_get("value_hash")?, number.unsigned_abs()))
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(failure)
    }

    pub(super) async fn add_placeholders(
        &self,
        key: &ContextKey,
        new: &[(String, String, u32)],
    ) -> Result<(), StoreError> {
        if new.is_empty() {
            return Ok(());
        }
        let kinds: Vec<&str> = new.iter().map(|(kind, ..)| kind.as_str()).collect();
        let hashes: Vec<&str> = new.iter().map(|(_, hash, _)| hash.as_str()).collect();
        let numbers: Vec<i32> =
            new.iter().map(|(.., number)| i32::try_from(*number).unwrap_or(i32::MAX)).collect();
        self.call(|| async {
            sqlx::query("select pathbox.save_placeholders_v1($1, $2, $3, $4, $5, $6)")
                .bind(key.tenant.as_str())
                .bind(key.conversation.as_str())
                .bind(key.path.as_str())
                .bind(&kinds)
                .bind(&hashes)
                .bind(&numbers)
                .execute(&self.pool())
                .await
                .map(|_| ())
        })
        .await
    }
}
