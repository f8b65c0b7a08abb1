//! The host application's conversation tree.

use async_trait::async_trait;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::rows::Cells;
use super::{SqliteStore, contexts, failure};
use crate::domain::{ContextId, ConversationId, EndReason, PathId, TenantId};
use crate::store::{
    Limits, PathChange, PathError, PathRow, PathStatus, Paths, StoreError, measure::measure, storable,
};

#[async_trait]
impl Paths for SqliteStore {
    async fn change_path(
        &self,
        tenant: &TenantId,
        conversation: &ConversationId,
        path: &PathId,
        change: &PathChange,
        expected: Option<i64>,
        limits: &Limits,
    ) -> Result<PathRow, PathError> {
        let (_, other_id, message) = change.parts();
        if other_id == Some(path) {
            return Err(PathError::Cycle(path.clone()));
        }
        let mut transaction = self.write(measure!("change_path", tenant)).await?;
        let now = self.now_ms();
        let row = load(&mut transaction, tenant, conversation, path).await?;
        let closed = match change {
            PathChange::Register { .. } | PathChange::Edit => None,
            PathChange::Merge { .. } => Some((PathStatus::Merged, EndReason::Merged)),
            PathChange::Archive => Some((PathStatus::Archived, EndReason::Archived)),
            PathChange::Delete => Some((PathStatus::Deleted, EndReason::Deleted)),
        };

        // Said before: the same answer, whatever version the caller expects.
        if let Some(row) = &row {
            if matches!(change, PathChange::Register { .. }) {
                let same = row.parent.as_ref() == other_id && row.branched_at_message.as_deref() == message;
                return if same { Ok(row.clone()) } else { Err(PathError::Differs(path.clone())) };
            }
            let same_target = other_id.is_none() || row.merged_into.as_ref() == other_id;
            if closed.is_some_and(|(status, _)| row.status == status) && same_target {
                return Ok(row.clone());
            }
        } else if !matches!(change, PathChange::Register { .. }) {
            return Err(PathError::Unknown(path.clone()));
        }

        let found = row.as_ref().map_or(0, |row| row.version);
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(PathError::Stale { path: path.clone(), found, expected });
        }
        if let Some(row) = &row
            && row.status != PathStatus::Active
            && *change != PathChange::Delete
        {
            return Err(PathError::NotActive { path: path.clone(), status: row.status });
        }
        if let Some(other_id) = other_id {
            match load(&mut transaction, tenant, conversation, other_id).await? {
                None => return Err(PathError::Unknown(other_id.clone())),
                Some(other) if other.status != PathStatus::Active => {
                    return Err(PathError::NotActive { path: other_id.clone(), status: other.status });
                }
                Some(_) => {}
            }
        }

        let query = if row.is_none() {
            sqlx::query(
                "INSERT INTO conversation_paths (tenant_id, conversation_id, path_id, parent_id, branched_at_message,
                     created_at, updated_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6) RETURNING *",
            )
            .bind(tenant.as_str())
            .bind(conversation.as_str())
            .bind(path.as_str())
            .bind(other_id.map(PathId::as_str))
            .bind(message.map(storable))
            .bind(now)
        } else {
            sqlx::query(
                "UPDATE conversation_paths
                    SET version = version + 1, updated_at = ?6, status = coalesce(?5, status),
                        merged_into = coalesce(?4, merged_into)
                  WHERE tenant_id = ?1 AND conversation_id = ?2 AND path_id = ?3 RETURNING *",
            )
            .bind(tenant.as_str())
            .bind(conversation.as_str())
            .bind(path.as_str())
            .bind(other_id.map(PathId::as_str))
            .bind(closed.map(|(status, _)| status.as_str()))
            .bind(now)
        };
        let changed = path_row(&query.fetch_one(&mut *transaction).await.map_err(failure)?)?;
        if let Some((_, reason)) = closed
            && let Some(live) = live(&mut transaction, tenant, conversation, path).await?
        {
            contexts::end_live(&mut transaction, live, reason, None, now, limits).await?;
        }
        transaction.commit().await?;
        Ok(changed)
    }

    async fn paths(
        &self,
        tenant: &TenantId,
        conversation: &ConversationId,
        deleted: bool,
    ) -> Result<Vec<PathRow>, StoreError> {
        let found = sqlx::query(
            "SELECT * FROM conversation_paths
              WHERE tenant_id = ? AND conversation_id = ? AND (? OR status <> 'deleted') ORDER BY rowid",
        )
        .bind(tenant.as_str())
        .bind(conversation.as_str())
        .bind(deleted)
        .fetch_all(&mut *self.read(measure!("paths", tenant)).await?)
        .await
        .map_err(failure)?;
        found.iter().map(path_row).collect()
    }
}

async fn load(
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    conversation: &ConversationId,
    path: &PathId,
) -> Result<Option<PathRow>, StoreError> {
    let row = sqlx::query(
        "SELECT * FROM conversation_paths WHERE tenant_id = ? AND conversation_id = ? AND path_id = ?",
    )
    .bind(tenant.as_str())
    .bind(conversation.as_str())
    .bind(path.as_str())
    .fetch_optional(connection)
    .await
    .map_err(failure)?;
    row.as_ref().map(path_row).transpose()
}

async fn live(
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    conversation: &ConversationId,
    path: &PathId,
) -> Result<Option<ContextId>, StoreError> {
    let row = sqlx::query(
        "SELECT id FROM execution_contexts
          WHERE tenant_id = ? AND conversation_id = ? AND path_id = ? AND status IN ('creating', 'ready')",
    )
    .bind(tenant.as_str())
    .bind(conversation.as_str())
    .bind(path.as_str())
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
