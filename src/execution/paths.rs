//! The paths of a conversation, as the host application reports them: branch, edit, merge, archive, delete.
//!
//! A path that was not registered works as an independent one; registering adds lineage and lets it be closed. Whatever
//! closes a path ends its context, and the sandbox goes the usual way through the outbox.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
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

/// A path on which nothing runs any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedPath {
    /// How it was closed.
    pub status: PathStatus,
    /// What it was merged into.
    pub into: Option<PathId>,
    /// Where what was merged has come to in the end, if that path is open.
    pub goes_on: Option<PathId>,
}

impl From<PathStatus> for ClosedPath {
    fn from(status: PathStatus) -> Self {
        Self { status, into: None, goes_on: None }
    }
}

impl fmt::Display for ClosedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.into {
            Some(into) => write!(f, "{} into {into}", self.status),
            None => write!(f, "{}", self.status),
        }
    }
}

impl ClosedPath {
    /// What to do instead.
    pub fn advice(&self) -> String {
        match &self.goes_on {
            Some(path) => format!("Run on the path {path} of the conversation."),
            None => "Run on another path of the conversation.".into(),
        }
    }
}

/// Merges of merges that are followed to where they lead.
const MAX_MERGES: usize = 50;

impl Core {
    /// What has become of a path, if nothing runs on it any more.
    pub(super) async fn closed_path(&self, key: &ContextKey) -> Result<Option<ClosedPath>, StoreError> {
        let Some(row) = self.store().path(key).await?.filter(|row| row.status != PathStatus::Active) else {
            return Ok(None);
        };
        // One that was merged and deleted later goes on nowhere.
        let merged_into = |row: PathRow| row.merged_into.filter(|_| row.status == PathStatus::Merged);
        let mut closed = ClosedPath::from(row.status);
        let mut next = merged_into(row);
        closed.into.clone_from(&next);
        for _ in 0..MAX_MERGES {
            let Some(path) = next.take() else { break };
            match self.store().path(&key.of_conversation().path(path)).await? {
                Some(row) if row.status == PathStatus::Active => closed.goes_on = Some(row.path),
                row => next = row.and_then(merged_into),
            }
        }
        Ok(Some(closed))
    }
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

    /// A registered path.
    ///
    /// # Errors
    /// The store's.
    pub async fn look(&self, key: &ContextKey) -> Result<Option<PathRow>, StoreError> {
        self.0.store().path(key).await
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

    /// The same as a tree. A path whose parent is not in the list, or that is more than 50 levels deep, stands at the top.
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

/// Levels of a tree that are nested. The depth of lineage is the callers' to choose, and that of a stack and of a JSON reader
/// is not.
const MAX_LEVELS: usize = 50;

fn tree(rows: Vec<PathRow>) -> Vec<PathNode> {
    let names: BTreeSet<PathId> = rows.iter().map(|row| row.path.clone()).collect();
    let mut by_parent: BTreeMap<Option<PathId>, Vec<PathRow>> = BTreeMap::new();
    for row in rows {
        let parent = row.parent.clone().filter(|parent| names.contains(parent));
        by_parent.entry(parent).or_default().push(row);
    }
    let (mut nodes, mut tops) = (Vec::new(), vec![None]);
    while let Some(top) = tops.pop() {
        nodes.extend(grow(top, MAX_LEVELS, &mut by_parent, &mut tops));
    }
    nodes
}

/// The branches of `parent`. Those that would be too deep are left, and their parents added to `tops`. Each row is taken out
/// once.
fn grow(
    parent: Option<PathId>,
    levels: usize,
    by_parent: &mut BTreeMap<Option<PathId>, Vec<PathRow>>,
    tops: &mut Vec<Option<PathId>>,
) -> Vec<PathNode> {
    if levels == 0 {
        tops.push(parent);
        return Vec::new();
    }
    let rows = by_parent.remove(&parent).unwrap_or_default();
    rows.into_iter()
        .map(|row| {
            let children = grow(Some(row.path.clone()), levels - 1, by_parent, tops);
            PathNode { row, children }
        })
        .collect()
}
