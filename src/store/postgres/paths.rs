//! The host application's conversation tree.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::rows::Cells;
use crate::domain::{ContextKey, ConversationKey, PathId, TenantId};
use crate::store::bind::BindKey;
use crate::store::{
    ContextLimits, PathChange, PathError, PathRow, Paths, StoreError, measure::measure, millis, storable,
};

#[async_trait]
impl Paths for PgStore {
    async fn change_path(
        &self,
        key: &ContextKey,
        change: &PathChange,
        expected: Option<i64>,
        limits: &ContextLimits,
    ) -> Result<PathRow, PathError> {
        let (name, other, message) = change.parts();
        loop {
            let row = self
                .call(measure!("change_path", key.tenant), || async {
                    sqlx::query(
                        "select c.outcome, c.problem, c.problem_status, (c.path).* \
                           from pathbox.change_path_v2($1, $2, $3, $4, $5, $6, $7, $8, $9) c",
                    )
                    .bind_key(key)
                    .bind(name)
                    .bind(other.map(PathId::as_str))
                    .bind(message.map(storable))
                    .bind(expected)
                    .bind(millis(limits.create_timeout))
                    .fetch_one(&self.pool())
                    .await
                })
                .await?;
            let cells = Cells::new(&row, "conversation_paths", &key.path);
            return match cells.get::<&str>("outcome")? {
                "again" => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                }
                "ok" => Ok(path_row(&row)?),
                "unknown" => Err(PathError::Unknown(cells.parse("problem")?)),
                "not_active" => Err(PathError::NotActive {
                    path: cells.parse("problem")?,
                    status: cells.parse("problem_status")?,
                }),
                "differs" => Err(PathError::Differs(key.path.clone())),
                "cycle" => Err(PathError::Cycle(key.path.clone())),
                "stale" => Err(PathError::Stale {
                    path: key.path.clone(),
                    found: cells.get::<Option<i64>>("version")?.unwrap_or(0),
                    expected: expected.unwrap_or(0),
                }),
                other => Err(PathError::Store(cells.corrupt(format_args!("outcome `{other}`")))),
            };
        }
    }

    async fn path(&self, key: &ContextKey) -> Result<Option<PathRow>, StoreError> {
        let found = self
            .call(measure!("path", key.tenant), || async {
                sqlx::query("select * from pathbox.path_v1($1, $2, $3, $4)")
                    .bind_key(key)
                    .fetch_optional(&self.pool())
                    .await
            })
            .await?;
        found.as_ref().map(path_row).transpose()
    }

    async fn paths(&self, conversation: &ConversationKey, deleted: bool) -> Result<Vec<PathRow>, StoreError> {
        let found = self
            .call(measure!("paths", conversation.tenant), || async {
                sqlx::query("select * from pathbox.paths_v2($1, $2, $3, $4)")
                    .bind_conversation(conversation)
                    .bind(deleted)
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        found.iter().map(path_row).collect()
    }

    async fn share(
        &self,
        conversation: &ConversationKey,
        principal: &str,
        given: bool,
    ) -> Result<bool, StoreError> {
        self.call(measure!("share", conversation.tenant), || async {
            sqlx::query_scalar("select pathbox.share_v1($1, $2, $3, $4, $5)")
                .bind_conversation(conversation)
                .bind(storable(principal))
                .bind(given)
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    async fn shared_with(&self, conversation: &ConversationKey) -> Result<Vec<String>, StoreError> {
        self.call(measure!("shared_with", conversation.tenant), || async {
            sqlx::query_scalar("select principal from pathbox.shares_v1($1, $2, $3, null)")
                .bind_conversation(conversation)
                .fetch_all(&self.pool())
                .await
        })
        .await
    }

    async fn is_shared_with(&self, of: &ConversationKey, principal: &str) -> Result<bool, StoreError> {
        self.call(measure!("is_shared_with", of.tenant), || async {
            sqlx::query_scalar("select exists (select from pathbox.shares_v1($1, $2, $3, $4))")
                .bind_conversation(of)
                .bind(storable(principal))
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    async fn shared_to(
        &self,
        tenant: &TenantId,
        principal: &str,
    ) -> Result<Vec<ConversationKey>, StoreError> {
        let found = self
            .call(measure!("shared_to", tenant), || async {
                sqlx::query("select * from pathbox.shares_v1($1, null, null, $2)")
                    .bind(tenant.as_str())
                    .bind(storable(principal))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let read = |row: &PgRow| Cells::new(row, "conversation_shares", "?").conversation();
        found.iter().map(read).collect()
    }
}

fn path_row(row: &PgRow) -> Result<PathRow, StoreError> {
    let id: String = Cells::new(row, "conversation_paths", "?").get("path_id")?;
    let cells = Cells::new(row, "conversation_paths", id);
    Ok(PathRow {
        path: cells.parse("path_id")?,
        parent: cells.parse_optional("parent_id")?,
        branched_at_message: cells.get("branched_at_message")?,
        merged_into: cells.parse_optional("merged_into")?,
        status: cells.parse("status")?,
        version: cells.get("version")?,
        created_at: cells.get("created_at")?,
        updated_at: cells.get("updated_at")?,
    })
}
