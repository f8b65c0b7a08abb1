//! The host application's conversation tree.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{ContextLimits, StoreError};
use crate::domain::{ContextKey, ConversationKey, PathId, TenantId};

crate::domain::context::text_enum! {
    /// Where a registered path is in its life.
    PathStatus {
        /// In use.
        Active = "active",
        /// Merged into another path.
        Merged = "merged",
        /// Put away.
        Archived = "archived",
        /// Deleted; the row stays for audit.
        Deleted = "deleted",
    }
}

/// A registered path of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRow {
    /// The path.
    pub path: PathId,
    /// The path it branched from.
    pub parent: Option<PathId>,
    /// The host application's message that it branched at.
    pub branched_at_message: Option<String>,
    /// The path it was merged into.
    pub merged_into: Option<PathId>,
    /// Where it is.
    pub status: PathStatus,
    /// Rises with each change; the ETag.
    pub version: i64,
    /// When it was registered.
    pub created_at: DateTime<Utc>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
}

/// A change of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathChange {
    /// Registers the path (idempotent with the same parent and message).
    Register {
        /// The path it branches from.
        parent: Option<PathId>,
        /// The message it branches at.
        message: Option<String>,
    },
    /// A message was edited: the context is kept, the version rises.
    Edit,
    /// The path is merged into `target`: its sandbox ends, the target's is untouched.
    Merge {
        /// The path that stays.
        target: PathId,
    },
    /// Puts the path away; its sandbox ends.
    Archive,
    /// Deletes the path; its sandbox ends.
    Delete,
}

impl PathChange {
    /// The change's name, the other path it names, and the message, as both databases take them.
    pub(super) fn parts(&self) -> (&'static str, Option<&PathId>, Option<&str>) {
        match self {
            Self::Register { parent, message } => ("register", parent.as_ref(), message.as_deref()),
            Self::Edit => ("edit", None, None),
            Self::Merge { target } => ("merge", Some(target), None),
            Self::Archive => ("archive", None, None),
            Self::Delete => ("delete", None, None),
        }
    }
}

/// A change of a path that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The database's.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The path is not registered.
    #[error("path {0} is not registered")]
    Unknown(PathId),
    /// The parent or the target is not registered or not active.
    #[error("path {path} is {status}")]
    NotActive {
        /// Which path.
        path: PathId,
        /// Where it is.
        status: PathStatus,
    },
    /// Registered before with another parent or message.
    #[error("path {0} is registered with another parent or message")]
    Differs(PathId),
    /// A path cannot be its own parent or target, and no chain may lead back.
    #[error("path {0} would become its own ancestor")]
    Cycle(PathId),
    /// The version is not the expected one any more.
    #[error("path {path} is at version {found}, not {expected}")]
    Stale {
        /// Which path.
        path: PathId,
        /// The version it has.
        found: i64,
        /// The version that the caller had read.
        expected: i64,
    },
}

/// The host application's conversation tree.
#[async_trait]
pub trait Paths: Send + Sync {
    /// Registers or changes a path. With `expected`, only if its version is still that one.
    async fn change_path(
        &self,
        key: &ContextKey,
        change: &PathChange,
        expected: Option<i64>,
        limits: &ContextLimits,
    ) -> Result<PathRow, PathError>;

    /// A registered path.
    async fn path(&self, key: &ContextKey) -> Result<Option<PathRow>, StoreError>;

    /// The registered paths of a conversation, oldest first; deleted ones only when asked for.
    async fn paths(&self, conversation: &ConversationKey, deleted: bool) -> Result<Vec<PathRow>, StoreError>;

    /// Shares a conversation with a principal, or takes that back. `false`: it was so before.
    async fn share(
        &self,
        conversation: &ConversationKey,
        principal: &str,
        given: bool,
    ) -> Result<bool, StoreError>;

    /// Whom a conversation is shared with, oldest first.
    async fn shared_with(&self, conversation: &ConversationKey) -> Result<Vec<String>, StoreError>;

    /// Whether a conversation is shared with a principal.
    async fn is_shared_with(&self, of: &ConversationKey, principal: &str) -> Result<bool, StoreError>;

    /// The conversations of a tenant that others share with a principal.
    async fn shared_to(&self, tenant: &TenantId, principal: &str)
    -> Result<Vec<ConversationKey>, StoreError>;
}
