//! What the database promises, independent of which one it is.
//!
//! Two stores keep this contract, held to it by one suite (`tests/it/store_contract.rs`): SQLite under the data
//! directory, and Postgres 15 or later. The protocol in one paragraph: a caller asks [`ContextStore::acquire`].
//! For a live context it gets [`Acquired::Ready`] and its run is already recorded as running. For a new key exactly
//! one caller gets [`Acquired::Create`], a lease with an epoch; it makes the sandbox (tagged with context id and
//! epoch), then [`ContextStore::ready`]. The epoch is the fencing token: a creator that was too slow is told so,
//! and its sandbox goes to the outbox of sandboxes that must die, in the same transaction. Everybody else waits.
//! Whatever ends a context writes the sandbox into that outbox, so a crash leaves nothing without an owner.
//!
//! Runs on one key go one at a time, in the order in which they first asked; asking again with the same execution id
//! keeps the place, and whoever stops asking for [`QUEUE_LEASE`] loses it. A run that never started leaves its
//! idempotency key free; one that started and whose replica died is `interrupted` and never repeated by itself.
//!
//! The surprise: times are the *database's*. Replicas compare durations only, never their own wall clocks.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::domain::{
    ApiKey, ContextId, ContextKey, ContextStatus, ConversationId, EndReason, ExecutionId, Language, PathId,
    SandboxId, TenantId,
};

mod cells;
pub mod measured;
mod migrations;
pub mod postgres;
mod pulse;
pub mod secrets;
pub mod sqlite;

pub use migrations::MigrationStatus;
pub use postgres::{PgOptions, PgStore};
pub use secrets::Keyring;
pub use sqlite::{SqliteOptions, SqliteStore};

/// A store, whichever it is.
pub type DynStore = Arc<dyn ContextStore>;

/// A store call did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database does not answer, or not in time. Try again later.
    #[error("the database does not answer")]
    Unavailable(#[source] sqlx::Error),
    /// The disk under the database is full. What was recorded is safe; free some space and try again.
    #[error("the disk that holds the database is full")]
    DiskFull(#[source] sqlx::Error),
    /// The URL cannot be read. Its text is not repeated: it holds a password.
    #[error("DATABASE_URL is not a Postgres URL (postgres://user:password@host:port/database)")]
    Url(#[source] sqlx::Error),
    /// User, password or database name are wrong.
    #[error("the database refused the login: check user, password and database name in DATABASE_URL")]
    Login(#[source] sqlx::Error),
    /// The database refused a statement: a bug here, or a schema that somebody changed.
    #[error("the database refused a statement")]
    Refused(#[source] sqlx::Error),
    /// The database was migrated by a newer Pathbox. Use that version, or restore an older database.
    #[error("the database has migration {found}, newer than this program's {known}")]
    TooNew {
        /// The newest migration in the database.
        found: i64,
        /// The newest one that this program has.
        known: i64,
    },
    /// Migrations are missing and may not be applied by themselves. Run `pathbox migrate`.
    #[error("the database lacks {0} migration(s); run `pathbox migrate`")]
    NotMigrated(usize),
    /// A migration failed; the database is as it was before it.
    #[error("migration {version} failed")]
    Migrate {
        /// Which one.
        version: i64,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
    /// A migration in the database is not the one of this program: a file was edited after it was applied.
    #[error("migration {0} in the database differs from this program's")]
    Edited(i64),
    /// A stored value does not decode. Names the table and row.
    #[error("row {id} of `{table}` does not decode: {problem}")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The row's key.
        id: String,
        /// What does not fit.
        problem: String,
    },
    /// A value that the caller gave was changed by somebody else since it was read.
    #[error("version {expected} was expected, the row has another")]
    Conflict {
        /// What the caller had read.
        expected: i64,
    },
    /// The row does not exist for this tenant.
    #[error("not found")]
    NotFound,
    /// The data directory or the key file cannot be used.
    #[error("the data directory cannot be used: {problem}")]
    DataDir {
        /// What is wrong and where.
        problem: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The keys for tokens at rest cannot be used: malformed, too short, or the same id twice.
    #[error("the secret keys cannot be used: {0}")]
    Keys(String),
}

impl StoreError {
    /// Whether the same call may succeed a little later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::DiskFull(_))
    }
}

/// A text that must not be printed: tokens and keys. Wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(zeroize::Zeroizing<String>);

impl Secret {
    /// Takes a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(zeroize::Zeroizing::new(text.into()))
    }

    /// The text itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Where a sandbox is and what opens it. Tokens are encrypted at rest, bound to the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRef {
    /// The provider's name for it.
    pub sandbox_id: SandboxId,
    /// The domain the provider named for it, if any.
    pub domain: Option<String>,
    /// Control plane and data plane of a local host, e.g. `http://127.0.0.1:40001`; `None` means the configured
    /// provider.
    pub host_url: Option<String>,
    /// The key of that local host.
    pub host_key: Option<Secret>,
    /// E2B's `envdAccessToken`.
    pub envd_token: Option<Secret>,
    /// E2B's `trafficAccessToken`.
    pub traffic_token: Option<Secret>,
    /// Where the MCP gateway inside the sandbox listens.
    pub mcp_url: Option<String>,
    /// Its bearer token.
    pub mcp_token: Option<Secret>,
    /// When the provider ends the sandbox by itself, as last asked for.
    pub provider_ends_at: Option<DateTime<Utc>>,
}

/// A live or ended context: a row.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextRow {
    /// Its id.
    pub id: ContextId,
    /// What it belongs to.
    pub key: ContextKey,
    /// Where it is in its life.
    pub status: ContextStatus,
    /// Why it ended.
    pub end_reason: Option<EndReason>,
    /// The fencing token: rises with each creator.
    pub epoch: i64,
    /// Which replica made its sandbox, or is making it.
    pub owner: String,
    /// The sandbox, once there is one. `None` in listings, which never carry credentials.
    pub sandbox: Option<SandboxRef>,
    /// When the row was written.
    pub created_at: DateTime<Utc>,
    /// When the sandbox was ready.
    pub ready_at: Option<DateTime<Utc>>,
    /// Last use.
    pub last_used_at: DateTime<Utc>,
    /// When it expires unless it is used.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// Runs so far.
    pub execution_count: i64,
    /// Milliseconds of all runs.
    pub total_execution_ms: i64,
    /// The last failure of the platform, cleaned. User errors are not here.
    pub last_error: Option<String>,
    /// The database's time when the row was read, so that callers can count in durations.
    pub read_at: DateTime<Utc>,
}

/// A run that is about to start.
#[derive(Debug, Clone)]
pub struct NewExecution {
    /// Its id.
    pub id: ExecutionId,
    /// `run_code`, `run_analysis`, ...
    pub tool: String,
    /// The language.
    pub language: Language,
    /// One guarded line for the audit.
    pub purpose: Option<String>,
    /// SHA-256 of the source, hex.
    pub code_sha256: String,
    /// Who calls, as the door knows it (a key's name, a subject); for the audit.
    pub principal: Option<String>,
    /// W3C trace id, hex.
    pub trace_id: Option<String>,
    /// The key under which the run happens at most once, with a hash of all arguments.
    pub idempotency: Option<Idempotency>,
    /// How long the run may hold its context before another replica may assume that this one is dead:
    /// the time-out plus a margin.
    pub lease: Duration,
}

/// At most one run for this key and these arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The caller's key, 1 to 255 characters.
    pub key: String,
    /// SHA-256 over tool, context key and arguments, hex.
    pub args_sha256: String,
}

/// Numbers that `acquire` holds to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Live contexts a tenant may have (10), unless `tenant_limits` has a row for it.
    pub per_tenant: u32,
    /// Live contexts a conversation may have (5).
    pub per_conversation: u32,
    /// Runs after which a context is rotated (100).
    pub max_executions: u32,
    /// Sliding time to live (30 minutes).
    pub ttl: Duration,
    /// How long a creator may take before another may take over (90 s).
    pub create_lease: Duration,
    /// How long a provider request to create may be in flight (60 s).
    pub create_timeout: Duration,
    /// How long idempotency keys are kept (24 h).
    pub idempotency_ttl: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_tenant: 10,
            per_conversation: 5,
            max_executions: 100,
            ttl: Duration::from_secs(30 * 60),
            create_lease: Duration::from_secs(90),
            create_timeout: Duration::from_secs(60),
            idempotency_ttl: Duration::from_secs(24 * 3600),
        }
    }
}

/// Placeholder numbers of the guard: kind, keyed hash of what was taken out, number.
pub type Placeholders = Vec<(String, String, u32)>;

/// "I want to run on this key."
///
/// Safe to send again with the same execution id: the answer is about the same run.
#[derive(Debug, Clone)]
pub struct Acquire {
    /// The key.
    pub key: ContextKey,
    /// The id that a new context will have.
    pub new_context: ContextId,
    /// Which replica asks; shown to operators.
    pub owner: String,
    /// The run.
    pub execution: NewExecution,
}

/// What `acquire` answers.
#[derive(Debug, Clone)]
pub enum Acquired {
    /// The context is live, its sandbox exists, and the run is recorded as running on it. With it come the placeholder
    /// numbers of its key, which only a run that holds the context adds to.
    Ready(Box<ContextRow>, Placeholders),
    /// The caller holds the lease: make the sandbox, then [`ContextStore::ready`] or [`ContextStore::end`].
    Create(Claim),
    /// Somebody else is making the sandbox. Ask again after so long.
    WaitForCreator {
        /// When the creator's lease ends.
        lease_left: Duration,
    },
    /// Other runs hold the context; this one is queued in order of arrival. Ask again soon.
    Queued {
        /// Runs before this one, the running one included; 1 is next.
        position: u32,
    },
    /// A limit is reached.
    Limit(LimitReached),
    /// The path is merged, archived or deleted.
    PathClosed(PathStatus),
    /// This key and these arguments have run: the record.
    Replay(Box<ExecutionRow>),
    /// The same key and arguments are running now under this id: wait for it.
    InFlight(ExecutionId),
    /// The key was used with other arguments.
    KeyConflict(ExecutionId),
    /// The run under this key was cut off by a crash.
    Interrupted(Box<ExecutionRow>),
}

/// The right to make one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The context that the sandbox is for.
    pub context: ContextId,
    /// Whose.
    pub key: ContextKey,
    /// The fencing token. The sandbox carries it as metadata.
    pub epoch: i64,
    /// How the key's previous context that had a sandbox ended, if there was one: the caller's state is `reset`,
    /// not `fresh`.
    pub previous: Option<EndReason>,
}

/// Which limit, who holds it, and when one frees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitReached {
    /// `tenant` or `conversation`.
    pub scope: &'static str,
    /// How many are allowed.
    pub limit: u32,
    /// The contexts that hold it.
    pub holders: Vec<ContextKey>,
    /// When the first of them expires if nobody uses it.
    pub frees_in: Option<Duration>,
}

/// How a run ended, for the record.
#[derive(Debug, Clone)]
pub struct FinishedExecution {
    /// Which run.
    pub id: ExecutionId,
    /// Whose.
    pub tenant: TenantId,
    /// On which context.
    pub context: ContextId,
    /// `completed`, `timed_out`, `cancelled`, `died`, `failed` (the platform's fault) or `interrupted`.
    pub status: ExecutionStatus,
    /// The exit code.
    pub exit_code: Option<i32>,
    /// A stable code and a clean message when the platform failed.
    pub error: Option<String>,
    /// Milliseconds from send to end.
    pub duration_ms: i64,
    /// Milliseconds in the queue.
    pub queued_ms: i64,
    /// Bytes of output.
    pub output_bytes: i64,
    /// Findings of the guard, kind to count.
    pub findings: Value,
    /// The guarded result as the client got it. Kept when it is at most [`MAX_RESULT_BYTES`] of JSON, or when the
    /// run has an idempotency key and it is at most [`MAX_REPLAY_BYTES`]; the record says `None` otherwise.
    pub result: Option<Value>,
    /// When the provider ends the sandbox by itself, if that was moved.
    pub provider_ends_at: Option<DateTime<Utc>>,
    /// When the run ended, by the database's time, if the record had to wait for the database. `None`: just now.
    pub ended_at: Option<DateTime<Utc>>,
    /// The ask, for a run that began while the database was away and so was never acquired: its row is then
    /// written here. `None` otherwise.
    pub unasked: Option<Box<Acquire>>,
}

/// Results up to so many bytes are kept with every run.
pub const MAX_RESULT_BYTES: usize = 1024 * 1024;
/// Results up to so many bytes are kept with a run that has an idempotency key, so that it can be replayed.
pub const MAX_REPLAY_BYTES: usize = 8 * 1024 * 1024;
/// A caller in the queue that does not ask again for so long loses its place.
pub const QUEUE_LEASE: Duration = Duration::from_secs(10);

crate::domain::context::text_enum! {
    /// Where a run is.
    ExecutionStatus {
        /// Waits for its turn.
        Queued = "queued",
        /// Runs.
        Running = "running",
        /// Ended by itself, well or with an exception.
        Completed = "completed",
        /// Met its deadline.
        TimedOut = "timed_out",
        /// Was cancelled.
        Cancelled = "cancelled",
        /// The interpreter or the sandbox died.
        Died = "died",
        /// The platform failed before or during the run.
        Failed = "failed",
        /// The replica that ran it died; whether it had effects is unknown.
        Interrupted = "interrupted",
    }
}

/// A run, as recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecutionRow {
    /// Its id.
    pub id: ExecutionId,
    /// The context, once it had one.
    pub context: Option<ContextId>,
    /// The key that it ran for.
    pub key: ContextKey,
    /// Which tool.
    pub tool: String,
    /// Which language.
    pub language: Language,
    /// The guarded purpose.
    pub purpose: Option<String>,
    /// SHA-256 of the source.
    pub code_sha256: String,
    /// Who called.
    pub principal: Option<String>,
    /// W3C trace id.
    pub trace_id: Option<String>,
    /// Where it is.
    pub status: ExecutionStatus,
    /// Exit code.
    pub exit_code: Option<i32>,
    /// The platform's failure.
    pub error: Option<String>,
    /// When it was asked for.
    pub created_at: DateTime<Utc>,
    /// When it began to run.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// Milliseconds of the run.
    pub duration_ms: Option<i64>,
    /// Bytes of output.
    pub output_bytes: Option<i64>,
    /// Guard findings by kind.
    pub findings: Value,
    /// The guarded result, for replay.
    pub result: Option<Value>,
}

/// Somebody opens a sealed token. What it stands for is not in here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReveal {
    /// Random, so that the record is written once however often it is sent.
    pub id: String,
    /// The context that the token was said to be of.
    pub key: ContextKey,
    /// The guard's kind, when the token opened.
    pub kind: Option<String>,
    /// Who asked.
    pub principal: String,
    /// Whether it opened.
    pub opened: bool,
}

/// The record of such an opening.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevealRow {
    /// What was asked.
    pub reveal: NewReveal,
    /// When.
    pub at: DateTime<Utc>,
}

/// Ends a context.
#[derive(Debug, Clone)]
pub struct End {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub context: ContextId,
    /// Only if the fencing token is still this one; `None` ends it in any case.
    pub epoch: Option<i64>,
    /// Why.
    pub reason: EndReason,
    /// A clean message for `last_error`.
    pub error: Option<String>,
}

/// What to list.
#[derive(Debug, Clone, Default)]
pub struct ContextFilter {
    /// Only this tenant's; `None` is every tenant's, for operators.
    pub tenant: Option<TenantId>,
    /// Only this conversation's.
    pub conversation: Option<ConversationId>,
    /// Ended ones too.
    pub ended: bool,
    /// At most so many (100).
    pub limit: Option<u32>,
}

/// Which executions to list, newest first.
#[derive(Debug, Clone, Default)]
pub struct ExecutionFilter {
    /// Only this tenant's.
    pub tenant: Option<TenantId>,
    /// Only this conversation's.
    pub conversation: Option<ConversationId>,
    /// Only this context's.
    pub context: Option<ContextId>,
    /// At most so many (100).
    pub limit: Option<u32>,
}

/// A sandbox that must die: an entry of the outbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Doomed {
    /// The entry.
    pub id: i64,
    /// The context it belonged to.
    pub context: ContextId,
    /// The epoch of its creator.
    pub epoch: i64,
    /// The sandbox and how to reach its provider; `None` means "whatever the provider lists under the context's
    /// id and epoch".
    pub sandbox: Option<SandboxRef>,
    /// Why.
    pub reason: String,
    /// How often it was tried.
    pub attempts: i32,
}

/// What a clean-up pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reaped {
    /// Contexts that expired.
    pub expired: u32,
    /// Creators whose lease ran out.
    pub abandoned: u32,
    /// Runs whose replica died.
    pub interrupted: u32,
    /// Ended rows that retention removed.
    pub deleted: u32,
}

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
    fn parts(&self) -> (&'static str, Option<&PathId>, Option<&str>) {
        match self {
            Self::Register { parent, message } => ("register", parent.as_ref(), message.as_deref()),
            Self::Edit => ("edit", None, None),
            Self::Merge { target } => ("merge", Some(target), None),
            Self::Archive => ("archive", None, None),
            Self::Delete => ("delete", None, None),
        }
    }
}

/// The contract. Each method is one transaction and safe to call twice.
#[async_trait]
pub trait ContextStore: Send + Sync + std::fmt::Debug {
    /// `sqlite` or `postgres`, for logs and `doctor`.
    fn kind(&self) -> &'static str;

    /// Asks the database for an answer; for readiness.
    async fn ping(&self) -> Result<(), StoreError>;

    /// The database's time.
    async fn now(&self) -> Result<DateTime<Utc>, StoreError>;

    /// Finds, claims, queues or refuses; see the module's first paragraph. One round trip.
    async fn acquire(&self, ask: &Acquire, limits: &Limits) -> Result<Acquired, StoreError>;

    /// The creator reports its sandbox; the run of `execution` is then recorded as running on it. `None`: the
    /// claim was fenced off, and the sandbox is already in the outbox.
    async fn ready(
        &self,
        claim: &Claim,
        execution: ExecutionId,
        sandbox: &SandboxRef,
        limits: &Limits,
    ) -> Result<Option<ContextRow>, StoreError>;

    /// Keeps a creator's lease alive. `false`: it is gone.
    async fn renew(&self, claim: &Claim, limits: &Limits) -> Result<bool, StoreError>;

    /// Ends a live context and puts its sandbox into the outbox. `false`: it had ended, or the epoch has moved on.
    async fn end(&self, end: &End, limits: &Limits) -> Result<bool, StoreError>;

    /// Records a run's end, frees its context for the next in the queue and slides the time to live. `false`: the
    /// run was already recorded. A run that was given up as `interrupted` takes its record after all: its replica
    /// was only cut off.
    async fn record(&self, finished: &FinishedExecution, limits: &Limits) -> Result<bool, StoreError>;

    /// Takes a queued run out of the queue, or marks a running one as failed before it reached the sandbox. Either
    /// way the code never ran, so the run's idempotency key is free again; a claim that it held is free for the next
    /// in the queue. `false`: there was nothing to abandon.
    async fn abandon(
        &self,
        tenant: &TenantId,
        execution: ExecutionId,
        status: ExecutionStatus,
        error: Option<&str>,
    ) -> Result<bool, StoreError>;

    /// Writes down that a run shall stop; the replica that has it finds it by [`stops`](Self::stops). `false`: it had
    /// ended, or there is no such run.
    async fn ask_to_stop(&self, tenant: &TenantId, execution: ExecutionId) -> Result<bool, StoreError>;

    /// Of these runs, which the caller has in hand, those that shall stop.
    async fn stops(&self, executions: &[ExecutionId]) -> Result<Vec<ExecutionId>, StoreError>;

    /// One run of a tenant.
    async fn execution(&self, tenant: &TenantId, id: ExecutionId)
    -> Result<Option<ExecutionRow>, StoreError>;

    /// Runs, newest first.
    async fn executions(&self, filter: &ExecutionFilter) -> Result<Vec<ExecutionRow>, StoreError>;

    /// One context of a tenant, without credentials.
    async fn context(&self, tenant: &TenantId, id: ContextId) -> Result<Option<ContextRow>, StoreError>;

    /// The live context of a key, without credentials.
    async fn live(&self, key: &ContextKey) -> Result<Option<ContextRow>, StoreError>;

    /// Contexts, newest first, without credentials.
    async fn contexts(&self, filter: &ContextFilter) -> Result<Vec<ContextRow>, StoreError>;

    /// How many contexts live, of all tenants together.
    async fn count_live(&self) -> Result<u64, StoreError>;

    /// Ends what has expired and frees what dead replicas held, at most `batch`; several replicas at once do not
    /// meet on a row. Ended rows older than `retention` are removed.
    async fn reap(&self, batch: u32, retention: Duration, limits: &Limits) -> Result<Reaped, StoreError>;

    /// Claims entries of the outbox; they come back after `visibility` if nobody reports.
    async fn doomed(&self, batch: u32, visibility: Duration) -> Result<Vec<Doomed>, StoreError>;

    /// The sandbox is gone.
    async fn buried(&self, entry: i64) -> Result<(), StoreError>;

    /// The kill failed; the entry is tried again after a growing pause.
    async fn bury_failed(&self, entry: i64, error: &str) -> Result<(), StoreError>;

    /// Of these (context, epoch) pairs, the ones that no live row owns: the provider's list against ours. Only
    /// the owner's own question; it changes nothing.
    async fn unowned(&self, tags: &[(ContextId, i64)]) -> Result<Vec<(ContextId, i64)>, StoreError>;

    /// Live contexts with their sandboxes, for the other direction of the same comparison: whose sandbox is
    /// gone. Only rows that have been ready for at least `min_age`, by id; `after` the last one of the page before.
    async fn owned(
        &self,
        min_age: Duration,
        after: Option<ContextId>,
        limit: u32,
    ) -> Result<Vec<ContextRow>, StoreError>;

    /// Overrides a tenant's limits of live contexts; `None` means the default of [`Limits`].
    async fn set_tenant_limits(
        &self,
        tenant: &TenantId,
        per_tenant: Option<u32>,
        per_conversation: Option<u32>,
    ) -> Result<(), StoreError>;

    /// Registers or changes a path. With `expected`, only if its version is still that one.
    async fn change_path(
        &self,
        tenant: &TenantId,
        conversation: &ConversationId,
        path: &PathId,
        change: &PathChange,
        expected: Option<i64>,
        limits: &Limits,
    ) -> Result<PathRow, PathError>;

    /// The registered paths of a conversation, oldest first; deleted ones only when asked for.
    async fn paths(
        &self,
        tenant: &TenantId,
        conversation: &ConversationId,
        deleted: bool,
    ) -> Result<Vec<PathRow>, StoreError>;

    /// Placeholder numbers of the guard that a context key has handed out.
    async fn placeholders(&self, key: &ContextKey) -> Result<Placeholders, StoreError>;

    /// Adds placeholder numbers `(kind, keyed hash, number)`; ones that exist are left as they are.
    async fn save_placeholders(
        &self,
        key: &ContextKey,
        new: &[(String, String, u32)],
    ) -> Result<(), StoreError>;

    /// Writes down that somebody opened, or tried to open, a sealed token of the guard.
    async fn record_reveal(&self, reveal: &NewReveal) -> Result<(), StoreError>;

    /// Such records, newest first; of one tenant or of all.
    async fn reveals(&self, tenant: Option<&TenantId>, limit: u32) -> Result<Vec<RevealRow>, StoreError>;

    /// Keeps a new API key.
    async fn add_api_key(&self, key: &ApiKey) -> Result<(), StoreError>;

    /// The API key with this public part, revoked ones too.
    async fn api_key(&self, id: &str) -> Result<Option<ApiKey>, StoreError>;

    /// All API keys, newest first.
    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError>;

    /// Revokes a key, for good. `false`: there is none.
    async fn revoke_api_key(&self, id: &str) -> Result<bool, StoreError>;
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

/// A finished run's result as it is stored, and whether to keep it without an idempotency key.
fn storable_result(finished: &FinishedExecution) -> (Option<String>, bool) {
    let text = finished.result.as_ref().map(Value::to_string);
    let text = text.filter(|text| text.len() <= MAX_REPLAY_BYTES);
    let small = text.as_ref().is_none_or(|text| text.len() <= MAX_RESULT_BYTES);
    (text, small)
}
