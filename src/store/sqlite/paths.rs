//! The host application's conversation tree.

use std::borrow::Cow;

use async_trait::async_trait;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::rows::Cells;
use super::{SqliteStore, contexts, failure};
use crate::domain::{ContextId, ContextKey, ConversationKey, EndReason, PathId, TenantId};
use crate::store::bind::BindKey;
use crate::store::{
    ContextLimits, PathChange, PathError, PathRow, PathStatus, Paths, StoreError, measure::measure, storable,
};

#[async_trait]
impl Paths for SqliteStore {
    async fn change_path(
        &self,
        key: &ContextKey,
        change: &PathChange,
        expected: Option<i64>,
        limits: &ContextLimits,
    ) -> Result<PathRow, PathError> {
        let (path, (_, other_id, message)) = (&key.path, change.parts());
        if other_id == Some(path) {
            return Err(PathError::Cycle(path.clone()));
        }
        let mut transaction = self.write(measure!("change_path", key.tenant)).await?;
        let now = self.now_ms();
        let row = load(&mut transaction, key, path).await?;
        let closed = match change {
            PathChange::Register { .. } | PathChange::Edit => None,
            PathChange::Merge { .. } => Some((PathStatus::Merged, EndReason::Merged)),
            PathChange::Archive => Some((PathStatus::Archived, EndReason::Archived)),
            PathChange::Delete => Some((PathStatus::Deleted, EndReason::Deleted)),
        };

        if let Some(same) = check(row.as_ref(), key, change, closed, expected)? {
            return Ok(same);
        }
        if let Some(other_id) = other_id {
            match load(&mut transaction, key, other_id).await? {
                None => return Err(PathError::Unknown(other_id.clone())),
                Some(other) if other.status != PathStatus::Active => {
                    return Err(PathError::NotActive { path: other_id.clone(), status: other.status });
                }
                Some(_) => {}
            }
        }
        let word = match row {
            None => message.map(storable),
            Some(_) => closed.map(|(status, _)| status.as_str().into()),
        };
        let changed = write(&mut transaction, key, row.is_none(), other_id, word, now).await?;
        if let Some((_, reason)) = closed
            && let Some(live) = live(&mut transaction, key).await?
        {
            contexts::end_live(&mut transaction, live, reason, None, now, limits).await?;
        }
        transaction.commit().await?;
        Ok(changed)
    }

    async fn path(&self, key: &ContextKey) -> Result<Option<PathRow>, StoreError> {
        load(&mut *self.read(measure!("path", key.tenant)).await?, key, &key.path).await
    }

    async fn paths(&self, conversation: &ConversationKey, deleted: bool) -> Result<Vec<PathRow>, StoreError> {
        let found = sqlx::query(
            "SELECT * FROM conversation_paths
              WHERE tenant_id = ? AND owner_principal = ? AND conversation_id = ? AND (? OR status <> 'deleted') ORDER BY rowid",
        )
        .bind_conversation(conversation)
        .bind(deleted)
        .fetch_all(&mut *self.read(measure!("paths", conversation.tenant)).await?)
        .await
        .map_err(failure)?;
        found.iter().map(path_row).collect()
    }

    async fn share(
        &self,
        conversation: &ConversationKey,
        principal: &str,
        given: bool,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.write(measure!("share", conversation.tenant)).await?;
        let query = match given {
            true => sqlx::query(
                "INSERT INTO conversation_shares (tenant_id, owner_principal, conversation_id, principal, created_at)
                 VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
            ),
            false => sqlx::query(
                "DELETE FROM conversation_shares
                  WHERE tenant_id = ?1 AND owner_principal = ?2 AND conversation_id = ?3 AND principal = ?4 AND ?5 = ?5",
            ),
        };
        let changed = query
            .bind_conversation(conversation)
            .bind(storable(principal))
            .bind(self.now_ms())
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit().await?;
        Ok(changed.rows_affected() > 0)
    }

    async fn shared_with(&self, conversation: &ConversationKey) -> Result<Vec<String>, StoreError> {
        sqlx::query_scalar(
            "SELECT principal FROM conversation_shares
              WHERE tenant_id = ? AND owner_principal = ? AND conversation_id = ? ORDER BY created_at, principal
              LIMIT 1000",
        )
        .bind_conversation(conversation)
        .fetch_all(&mut *self.read(measure!("shared_with", conversation.tenant)).await?)
        .await
        .map_err(failure)
    }

    async fn is_shared_with(&self, of: &ConversationKey, principal: &str) -> Result<bool, StoreError> {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM conversation_shares
              WHERE tenant_id = ? AND owner_principal = ? AND conversation_id = ? AND principal = ?)",
        )
        .bind_conversation(of)
        .bind(storable(principal))
        .fetch_one(&mut *self.read(measure!("is_shared_with", of.tenant)).await?)
        .await
        .map_err(failure)
    }

    async fn shared_to(
        &self,
        tenant: &TenantId,
        principal: &str,
    ) -> Result<Vec<ConversationKey>, StoreError> {
        let found = sqlx::query(
            "SELECT tenant_id, owner_principal, conversation_id FROM conversation_shares
              WHERE tenant_id = ? AND principal = ? ORDER BY created_at LIMIT 1000",
        )
        .bind(tenant.as_str())
        .bind(storable(principal))
        .fetch_all(&mut *self.read(measure!("shared_to", tenant)).await?)
        .await
        .map_err(failure)?;
        let read = |row| Cells::new(row, "conversation_shares", "conversation_id").conversation();
        found.iter().map(read).collect()
    }
}

/// Whether a path may change so. Gives the row when the change has been made before: the same answer, whatever version
/// the caller expects.
fn check(
    row: Option<&PathRow>,
    key: &ContextKey,
    change: &PathChange,
    closed: Option<(PathStatus, EndReason)>,
    expected: Option<i64>,
) -> Result<Option<PathRow>, PathError> {
    let (path, (_, other_id, message)) = (&key.path, change.parts());
    let registers = matches!(change, PathChange::Register { .. });
    match row {
        Some(row) if registers => {
            let same = row.parent.as_ref() == other_id && row.branched_at_message.as_deref() == message;
            return if same { Ok(Some(row.clone())) } else { Err(PathError::Differs(path.clone())) };
        }
        Some(row) => {
            let same_target = other_id.is_none() || row.merged_into.as_ref() == other_id;
            if closed.is_some_and(|(status, _)| row.status == status) && same_target {
                return Ok(Some(row.clone()));
            }
        }
        None if registers => {}
        None => return Err(PathError::Unknown(path.clone())),
    }
    let found = row.map_or(0, |row| row.version);
    if let Some(expected) = expected.filter(|expected| *expected != found) {
        return Err(PathError::Stale { path: path.clone(), found, expected });
    }
    match row {
        Some(row) if row.status != PathStatus::Active && *change != PathChange::Delete => {
            Err(PathError::NotActive { path: path.clone(), status: row.status })
        }
        _ => Ok(None),
    }
}

/// Writes a new path, with the path and the message where it branches off, or the next version of one, with its target and
/// its status.
async fn write(
    connection: &mut SqliteConnection,
    key: &ContextKey,
    is_new: bool,
    other: Option<&PathId>,
    word: Option<Cow<'_, str>>,
    now: i64,
) -> Result<PathRow, StoreError> {
    let sql = match is_new {
        true => {
            "INSERT INTO conversation_paths (tenant_id, owner_principal, conversation_id, path_id, parent_id,
                 branched_at_message, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7) RETURNING *"
        }
        false => {
            "UPDATE conversation_paths
                SET version = version + 1, updated_at = ?7, status = coalesce(?6, status),
                    merged_into = coalesce(?5, merged_into)
              WHERE tenant_id = ?1 AND owner_principal = ?2 AND conversation_id = ?3 AND path_id = ?4 RETURNING *"
        }
    };
    let row = sqlx::query(sql)
        .bind_key(key)
        .bind(other.map(PathId::as_str))
        .bind(word)
        .bind(now)
        .fetch_one(connection)
        .await
        .map_err(failure)?;
    path_row(&row)
}

pub(super) async fn load(
    connection: &mut SqliteConnection,
    key: &ContextKey,
    path: &PathId,
) -> Result<Option<PathRow>, StoreError> {
    let row = sqlx::query(
        "SELECT * FROM conversation_paths
          WHERE tenant_id = ? AND owner_principal = ? AND conversation_id = ? AND path_id = ?",
    )
    .bind(key.tenant.as_str())
    .bind(key.owner.as_str())
    .bind(key.conversation.as_str())
    .bind(path.as_str())
    .fetch_optional(connection)
    .await
    .map_err(failure)?;
    row.as_ref().map(path_row).transpose()
}

async fn live(connection: &mut SqliteConnection, key: &ContextKey) -> Result<Option<ContextId>, StoreError> {
    let row = sqlx::query(
        "SELECT id FROM execution_contexts
          WHERE tenant_id = ? AND owner_principal = ? AND conversation_id = ? AND path_id = ?
            AND status IN ('creating', 'ready')",
    )
    .bind_key(key)
    .fetch_optional(connection)
    .await
    .map_err(failure)?;
    row.map(|row| Cells::new(&row, "execution_contexts", "id").parse("id")).transpose()
}

fn path_row(row: &SqliteRow) -> Result<PathRow, StoreError> {
    let cells = Cells::new(row, "conversation_paths", "path_id");
    Ok(PathRow {
        path: cells.parse("path_id")?,
        parent: cells.parse_optional("parent_id")?,
        branched_at_message: cells.get("branched_at_message")?,
        merged_into: cells.parse_optional("merged_into")?,
        status: cells.parse("status")?,
        version: cells.get("version")?,
        created_at: cells.time("created_at")?,
        updated_at: cells.time("updated_at")?,
    })
}
