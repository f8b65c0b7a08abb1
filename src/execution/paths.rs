//! The paths of a conversation, as the host application tells about them: branch, edit, merge, archive, delete.
//!
//! A path that was not registered works as an independent one; registering adds lineage and lets it be closed. Whatever
//! closes a path ends its context, and the sandbox goes the usual way through the outbox.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Core;
use crate::domain::{ContextKey, ConversationKey, PathId, TenantId};
pub use crate::store::{PathChange, PathError, PathRow, PathStatus, StoreError};

/// A path and the paths that branched from it.
#[derive(Debug)]
pub struct PathNode {
    /// The path itself.
    pub row: PathRow,
    /// Its branches, oldest first.
    pub children: Vec<PathNode>,
}

/// Registers and changes paths. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Paths(pub(super) Arc<Core>);

impl Paths {
    /// Registers or changes a path; see [`PathChange`]. Safe to repeat.
    ///
    /// # Errors
    /// [`PathError`] for what the caller can do something about.
    pub async fn change(
        &self,
        key: &ContextKey,
        change: &PathChange,
        expected: Option<i64>,
    ) -> Result<PathRow, PathError> {
        let limits = &self.0.options().limits;
        let row = self.0.store().change_path(key, change, expected, limits).await?;
        if row.status != PathStatus::Active {
            self.0.kills.notify_one();
        }
        Ok(row)
    }

    /// The registered paths of a conversation, oldest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn list(
        &self,
        conversation: &ConversationKey,
        deleted: bool,
    ) -> Result<Vec<PathRow>, StoreError> {
        self.0.store().paths(conversation, deleted).await
    }

    /// The same as a tree. A path whose parent is not in the list stands at the top.
    ///
    /// # Errors
    /// The store's.
    pub async fn tree(&self, conversation: &ConversationKey) -> Result<Vec<PathNode>, StoreError> {
        Ok(tree(self.list(conversation, false).await?))
    }

    /// Shares a conversation with a principal of the tenant, or takes that back. `false`: it was so before.
    ///
    /// # Errors
    /// The store's.
    pub async fn share(
        &self,
        conversation: &ConversationKey,
        principal: &str,
        given: bool,
    ) -> Result<bool, StoreError> {
        self.0.store().share(conversation, principal, given).await
    }

    /// Whom a conversation is shared with.
    ///
    /// # Errors
    /// The store's.
    pub async fn shared_with(&self, conversation: &ConversationKey) -> Result<Vec<String>, StoreError> {
        self.0.store().shared_with(conversation).await
    }

    /// The conversations that others share with a principal, each with a handle to its main path for that principal.
    ///
    /// # Errors
    /// The store's.
    pub async fn shared_to(
        &self,
        tenant: &TenantId,
        principal: &str,
    ) -> Result<Vec<(ConversationKey, String)>, StoreError> {
        let found = self.0.store().shared_to(tenant, principal).await?;
        let handle = |key: ConversationKey| {
            let handle = self.0.mint_handle(&key.path(PathId::main()), principal);
            (key, handle)
        };
        Ok(found.into_iter().map(handle).collect())
    }
}

fn tree(rows: Vec<PathRow>) -> Vec<PathNode> {
    let names: Vec<PathId> = rows.iter().map(|row| row.path.clone()).collect();
    let mut by_parent: BTreeMap<Option<PathId>, Vec<PathRow>> = BTreeMap::new();
    for row in rows {
        let parent = row.parent.clone().filter(|parent| names.contains(parent));
        by_parent.entry(parent).or_default().push(row);
    }
    grow(None, &mut by_parent)
}

/// The store keeps lineage free of cycles, so this ends; each row is taken out once in any case.
fn grow(parent: Option<PathId>, by_parent: &mut BTreeMap<Option<PathId>, Vec<PathRow>>) -> Vec<PathNode> {
    let rows = by_parent.remove(&parent).unwrap_or_default();
    rows.into_iter()
        .map(|row| {
            let children = grow(Some(row.path.clone()), by_parent);
            PathNode { row, children }
        })
        .collect()
}
