//! The contract of the store, independent of the database.
//!
//! Two stores keep this contract, held to it by one suite (`tests/it/store_contract.rs`): SQLite under the data
//! directory, and Postgres 15 or later. The protocol in one paragraph: a caller asks [`Leases::acquire`].
//! For a live context it gets [`Acquired::Ready`] and its run is already recorded as running. For a new key exactly
//! one caller gets [`Acquired::Create`], a lease with an epoch; it makes the sandbox (tagged with context id and
//! epoch), then [`Leases::ready`]. The epoch is the fencing token: a creator that was too slow is refused,
//! and its sandbox goes to the outbox of sandboxes that must die, in the same transaction. Everyone else waits.
//! Whatever ends a context writes the sandbox into that outbox, so a crash leaves nothing without an owner.
//!
//! Runs on one key go one at a time, in the order in which they first asked; asking again with the same execution id
//! keeps the place, and a caller that stops asking for [`QUEUE_LEASE`] loses it. A run that never started leaves its
//! idempotency key free; one that started and whose replica died is `interrupted` and never repeated by itself.
//!
//! The surprise: times are the *database's*. Replicas compare durations only, never their own wall clocks.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};

mod audit;
mod availability;
mod bind;
mod cells;
mod contexts;
mod error;
mod keys;
mod leases;
mod ledger;
mod measure;
mod migrations;
mod outbox;
mod paths;
pub mod postgres;
pub mod secrets;
mod sessions;
mod signals;
pub mod sqlite;
mod state;
mod tools;
pub mod workflows;

pub use crate::domain::Secret;
pub use audit::{
    Audit, ExecutionFilter, ExecutionRow, ExecutionStatus, KeptValue, NewReveal, Placeholders, RevealRow,
};
pub use contexts::{ContextFilter, ContextRow, Contexts, End, SandboxRef};
pub use error::StoreError;
pub use keys::Keys;
pub use leases::{
    Acquire, Acquired, Claim, ContextLimits, FinishedExecution, Idempotency, Leases, LimitReached,
    MAX_REPLAY_BYTES, MAX_RESULT_BYTES, NewExecution, QUEUE_LEASE, SandboxPlace,
};
pub use ledger::{Chain, ChainEntry, ChainHead, Fault, Ledger, UsageFilter, verify};
pub use migrations::MigrationStatus;
pub use outbox::{Outbox, PendingKill, Reaped};
pub use paths::{PathChange, PathError, PathRow, PathStatus, Paths};
pub use postgres::{PgOptions, PgStore};
pub use secrets::{KEY_FILE, Keyring};
pub use sessions::Sessions;
pub use signals::{Signals, Waiting};
pub use sqlite::{DATABASE_FILE, SqliteOptions, SqliteStore};
pub use state::{Cause, DatabaseState};
pub use tools::{ToolMemory, ToolPermit, ToolPins};
pub use workflows::{WorkflowRow, Workflows};

/// A store, whichever it is.
pub type DynStore = Arc<dyn ContextStore>;

/// The whole contract. Each method is one transaction and safe to call twice. A caller names the part that it needs.
#[async_trait]
pub trait ContextStore:
    Leases
    + Contexts
    + Outbox
    + Paths
    + Keys
    + Audit
    + Ledger
    + Sessions
    + ToolMemory
    + Workflows
    + std::fmt::Debug
{
    /// `sqlite` or `postgres`, for logs and `doctor`.
    fn kind(&self) -> &'static str;

    /// Asks the database for an answer; for readiness.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Asks whether the database does what a run needs: it can be reached and takes a write.
    async fn examine(&self) -> Result<(), StoreError>;

    /// The database's time.
    async fn now(&self) -> Result<DateTime<Utc>, StoreError>;
}

/// Makes a directory that only its owner may enter; one that exists stays as it is.
fn make_private_dir(dir: &std::path::Path) -> Result<(), StoreError> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
        .create(dir)
        .map_err(|source| StoreError::DataDir { problem: format!("cannot create {}", dir.display()), source })
}

/// Text as both databases can hold it: Postgres refuses a NUL character.
fn storable(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// Whole milliseconds, as the databases count.
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
