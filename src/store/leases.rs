//! Leases: acquire, the creator's report, the run's record.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    ContextRow, ExecutionRow, ExecutionStatus, PathStatus, Placeholders, SandboxRef, Signals, StoreError,
};
use crate::domain::{
    ContextId, ContextKey, EndReason, ExecutionId, Language, Prices, Quota, QuotaReached, TenantId,
};

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

/// Where a replica's sandboxes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxPlace {
    /// Whether they are in a host inside its process, which is reached from its own place alone.
    pub is_local: bool,
    /// The machine and network in which the replica runs.
    pub place: String,
}

/// Numbers that `acquire` holds to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContextLimits {
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
    /// How long a replica that says nothing keeps what it holds, and may use it without the database (15 s). A replica
    /// that died is noticed a third later.
    pub replica_lease: Duration,
    /// How much a tenant may use in a period (as much as it likes), unless `tenant_quotas` has a row for it.
    pub quota: Quota,
    /// What that costs.
    pub prices: Prices,
}

impl Default for ContextLimits {
    fn default() -> Self {
        Self {
            per_tenant: 10,
            per_conversation: 5,
            max_executions: 100,
            ttl: Duration::from_secs(30 * 60),
            create_lease: Duration::from_secs(90),
            create_timeout: Duration::from_secs(60),
            idempotency_ttl: Duration::from_secs(24 * 3600),
            replica_lease: Duration::from_secs(15),
            quota: Quota::default(),
            prices: Prices::default(),
        }
    }
}

/// "I want to run on this key."
///
/// Safe to send again with the same execution id: the answer is about the same run.
#[derive(Debug, Clone)]
pub struct Acquire {
    /// The key.
    pub key: ContextKey,
    /// The id that a new context will have.
    pub new_context: ContextId,
    /// Which replica asks.
    pub owner: String,
    /// The template that the call names.
    pub template: Option<String>,
    /// Whether the caller may enter whatever its tenant has, so that a refusal names every holder of a limit.
    pub sees_tenant: bool,
    /// The run.
    pub execution: NewExecution,
}

/// What `acquire` answers.
#[derive(Debug, Clone)]
pub enum Acquired {
    /// The context is live, its sandbox exists, and the run is recorded as running on it. With it come the placeholder
    /// numbers of its key, which only a run that holds the context adds to.
    Ready(Box<ContextRow>, Placeholders),
    /// The caller holds the lease: make the sandbox, then [`Leases::ready`] or [`Contexts::end`](super::Contexts::end).
    Create(Claim),
    /// Someone else is making the sandbox. Ask again after this long.
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
    /// The tenant has used and reserved as much as it may in this period.
    Quota(QuotaReached),
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

impl Acquired {
    /// Whether the run has a place now, running or waiting.
    pub(super) fn asks(&self) -> bool {
        matches!(self, Self::Ready(..) | Self::Create(_) | Self::WaitForCreator { .. } | Self::Queued { .. })
    }
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
    /// What the key's previous sandbox was made from, where a call had named it. The maker of another one puts here what
    /// that is made from, and [`Leases::ready`] records it.
    pub template: Option<String>,
    /// The database's time when it was given.
    pub read_at: DateTime<Utc>,
}

/// Which limit, who holds it, and when one frees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitReached {
    /// `tenant` or `conversation`.
    pub scope: &'static str,
    /// How many are allowed.
    pub limit: u32,
    /// The contexts that hold it, as far as the caller may enter them.
    pub holders: Vec<ContextKey>,
    /// How many others hold it.
    pub others: u32,
    /// When the first of them expires if no one uses it.
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
    pub offline: Option<Box<Acquire>>,
    /// The ask of a run that was acquired, if it is at hand. A crash of the database may have taken the run's row, which
    /// is then written again.
    pub asked: Option<Box<Acquire>>,
}

/// Results up to this many bytes are kept with every run.
pub const MAX_RESULT_BYTES: usize = 1024 * 1024;
/// Results up to this many bytes are kept with a run that has an idempotency key, so that it can be replayed.
pub const MAX_REPLAY_BYTES: usize = 8 * 1024 * 1024;
/// A caller in the queue that does not ask again for this long loses its place.
pub const QUEUE_LEASE: Duration = Duration::from_secs(10);

/// A finished run's result as it is stored, and whether to keep it without an idempotency key.
pub(super) fn storable_result(finished: &FinishedExecution) -> (Option<String>, bool) {
    let text = finished.result.as_ref().map(Value::to_string);
    let text = text.filter(|text| text.len() <= MAX_REPLAY_BYTES);
    let small = text.as_ref().is_none_or(|text| text.len() <= MAX_RESULT_BYTES);
    (text, small)
}

/// The right to run: who makes a sandbox, whose run is next, and how a run ended.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Finds, claims, queues or refuses; see the module's first paragraph. One round trip.
    async fn acquire(&self, ask: &Acquire, limits: &ContextLimits) -> Result<Acquired, StoreError>;

    /// The creator reports its sandbox; the run of `execution` is then recorded as running on it. `None`: the
    /// claim was fenced off, and the sandbox is already in the outbox.
    async fn ready(
        &self,
        claim: &Claim,
        execution: ExecutionId,
        sandbox: &SandboxRef,
        limits: &ContextLimits,
    ) -> Result<Option<ContextRow>, StoreError>;

    /// Keeps a creator's lease alive. `false`: it is gone.
    async fn renew(&self, claim: &Claim, limits: &ContextLimits) -> Result<bool, StoreError>;

    /// Records a run's end, frees its context for the next in the queue and slides the time to live. `false`: the
    /// run was already recorded. A run that was given up as `interrupted` takes its record after all: its replica
    /// was only cut off.
    async fn record(&self, finished: &FinishedExecution, limits: &ContextLimits) -> Result<bool, StoreError>;

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

    /// A run goes on, or its result is being put away: its lease is renewed. `false`: the run has ended.
    async fn renew_run(&self, tenant: &TenantId, execution: ExecutionId) -> Result<bool, StoreError>;

    /// A replica begins, before it makes its first sandbox: from now on it lives for `lease`. `true`: every living
    /// replica is known to be of its place, so no local host of another place is in use any more.
    ///
    /// # Errors
    /// [`StoreError::OtherPlace`]: replicas elsewhere could not reach its sandboxes, or it could not reach theirs.
    async fn join(&self, replica: &str, place: &SandboxPlace, lease: Duration) -> Result<bool, StoreError>;

    /// Whether a run on this context was given up because its replica was gone, and none has been recorded since: its
    /// code may go on in the sandbox.
    async fn left_running(&self, tenant: &TenantId, context: ContextId) -> Result<bool, StoreError>;

    /// This replica lives for `lease` more from when the database reads this, and the contexts that it holds are its
    /// own for as long. Gives those that others wait for; [`release`](Self::release) lets go of one. A replica that was
    /// alive before and still is also clears up after those whose time has run out: their runs are `interrupted`.
    /// A `lease` of zero says goodbye.
    async fn heartbeat(
        &self,
        replica: &str,
        lease: Duration,
    ) -> Result<Vec<(ContextId, ContextKey)>, StoreError>;

    /// Lets go of a context, which the replica must have forgotten before: from now on others run on it. `false`: it
    /// was not this replica's.
    async fn release(&self, tenant: &TenantId, context: ContextId, replica: &str)
    -> Result<bool, StoreError>;

    /// What wakes those who wait for a context, or a replica that others wait for.
    fn signals(&self) -> &Signals;

    /// Of these runs, which the caller has in hand, those that shall stop.
    async fn stops(&self, executions: &[ExecutionId]) -> Result<Vec<ExecutionId>, StoreError>;
}
