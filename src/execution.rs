//! Runs code in a conversation path's own sandbox: find or make it, run, guard what comes out, record.
//!
//! One call is one straight line through here: [`ExecutionService::run_code`] acquires the context from the store
//! (`acquire`), sends the code to its sandbox (`run_code`), and hands out only what the guard has seen. No truth is
//! kept in memory: any replica can serve the next call.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::{
    Clock, ContextKey, EndReason, Entropy, ExecutionId, Language, Outcome, OutputChunk, SandboxState,
};
use crate::e2b::{CircuitState, E2bClient, ListFilter};
use crate::guard::{Overlay, Report, Sanitized};
use crate::store::{DynStore, End, Limits, Secret};
use crate::telemetry::trace::Trace;
use backlog::Backlog;
use remembered::Remembered;

pub mod acquire;
mod attempts;
mod backlog;
pub mod crash;
pub mod error;
pub mod files;
pub mod handle;
mod interpret;
pub mod outputs;
pub mod paths;
pub mod policies;
pub mod reaper;
pub mod recall;
pub mod recipe;
mod remembered;
pub mod reveal;
mod revive;
pub mod run_analysis;
pub mod run_code;
pub mod startup;
mod stop;

pub use crash::CrashAt;
pub use error::ExecutionError;
pub use handle::HandleKey;
pub use outputs::{Artifact, Outputs};
pub use recall::{Asker, Begun, Recalled};
pub use recipe::{Recipe, Recipes};

pub use crate::store::{ContextRow, ExecutionRow, ExecutionStatus};
pub use policies::Policies;
pub use reveal::{Revealed, TokenKey};
pub use run_analysis::{Analysed, AnalysisRequest};
pub use startup::{Starting, Startup};

/// Numbers of this component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Limits and life of contexts.
    pub limits: Limits,
    /// What sandboxes are made with.
    pub recipes: Recipes,
    /// The least life time that a new sandbox gets from its provider.
    pub sandbox_timeout: Duration,
    /// How far the provider's own end must lie behind a run's deadline.
    pub margin: Duration,
    /// Characters of stdout and of stderr in a result.
    pub output_chars: usize,
    /// Rich results in an outcome at most.
    pub max_results: usize,
    /// Between two clean-up passes.
    pub cleanup_interval: Duration,
    /// How long ended rows are kept.
    pub retention: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            recipes: Recipes::default(),
            sandbox_timeout: Duration::from_secs(600),
            margin: Duration::from_secs(30),
            output_chars: 50_000,
            max_results: 64,
            cleanup_interval: Duration::from_secs(3600),
            retention: Duration::from_secs(30 * 86_400),
        }
    }
}

/// A local sandbox host: where it listens and what opens it.
#[derive(Debug, Clone)]
pub struct LocalHost {
    /// Its base URL.
    pub url: String,
    /// Its API key.
    pub key: Secret,
}

/// What the service works with; `app` puts it together.
#[derive(Debug)]
pub struct Parts {
    /// Numbers.
    pub options: Options,
    /// Where contexts are kept.
    pub store: DynStore,
    /// The sandbox provider, or why there is none.
    pub provider: Result<E2bClient, String>,
    /// Set when the provider is the host inside this process.
    pub local: Option<LocalHost>,
    /// The egress guards.
    pub policies: Policies,
    /// Signs and opens handles.
    pub handles: HandleKey,
    /// Makes the guard's sealed tokens, where there is a key that every replica has.
    pub tokens: Option<TokenKey>,
    /// Keeps whole outputs.
    pub outputs: Outputs,
    /// What time it is.
    pub clock: Clock,
    /// Randomness.
    pub entropy: Entropy,
    /// This replica's name, for operators.
    pub owner: String,
    /// Where a test lets this process die.
    pub crash: CrashAt,
}

/// Runs code. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ExecutionService(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    parts: Parts,
    runs: TaskTracker,
    background: TaskTracker,
    shutdown: CancellationToken,
    /// Something was put into the outbox.
    doomed: Notify,
    /// For the time when the database is away.
    remembered: Remembered,
    /// What the database has to be told once it is back.
    backlog: Backlog,
    /// Runs of this replica that can be stopped.
    stoppable: stop::Stoppable,
}

/// Who calls and for what.
#[derive(Debug, Clone)]
pub struct Call {
    /// The context's key.
    pub key: ContextKey,
    /// The caller as the door knows it, for the audit.
    pub principal: Option<String>,
    /// The caller's trace.
    pub trace: Option<Trace>,
    /// Run at most once under this key.
    pub idempotency_key: Option<String>,
    /// What the call wishes of the guard; it may tighten, and loosen as far as the levels above allow.
    pub guard: Option<Overlay>,
}

/// What happens while a call is served. All text has been guarded.
#[derive(Debug, Clone)]
pub enum Progress {
    /// Waiting for other runs on the context.
    Queued {
        /// 1 is next.
        position: u32,
    },
    /// A sandbox is being made.
    Creating,
    /// The code was sent.
    Running,
    /// It printed something.
    Output(Sanitized<OutputChunk>),
}

/// Where progress goes. Bounded; a slow reader misses some.
pub type ProgressSender = mpsc::Sender<Progress>;

/// A run that came to a result.
#[derive(Debug, Clone)]
pub struct Finished {
    /// Its id.
    pub execution: ExecutionId,
    /// Which tool began it.
    pub tool: String,
    /// The context that served it.
    pub key: ContextKey,
    /// A handle to that context.
    pub handle: String,
    /// The language.
    pub language: Language,
    /// What it came to.
    pub record: Record,
    /// What it gave out.
    pub outcome: Sanitized<Outcome>,
    /// Whether this is a recorded result of an earlier call under the same idempotency key.
    pub replayed: bool,
}

/// The part of a result that is ours, as it is also kept for replay.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// What the run found of earlier state.
    pub state: SandboxState,
    /// Why it was reset.
    pub state_reason: Option<String>,
    /// What the guard found: kinds and counts.
    pub guard: Report,
    /// Pictures, files and whole outputs that can be read as resources.
    pub artifacts: Vec<Artifact>,
    /// Milliseconds in the queue.
    pub queued_ms: u64,
}

impl ExecutionService {
    /// Puts the service together. Its tasks end when `shutdown` is cancelled.
    pub fn new(parts: Parts, shutdown: CancellationToken) -> Self {
        Self(Arc::new(Inner {
            parts,
            runs: TaskTracker::new(),
            background: TaskTracker::new(),
            shutdown,
            doomed: Notify::new(),
            remembered: Remembered::default(),
            backlog: Backlog::default(),
            stoppable: stop::Stoppable::default(),
        }))
    }

    /// The numbers it works with.
    pub fn options(&self) -> &Options {
        &self.0.parts.options
    }

    /// The store, for listings.
    pub fn store(&self) -> &DynStore {
        &self.0.parts.store
    }

    /// The guards, for texts that do not come from a run.
    pub fn policies(&self) -> &Policies {
        &self.0.parts.policies
    }

    /// The whole outputs that are kept.
    pub fn outputs(&self) -> &Outputs {
        &self.0.parts.outputs
    }

    /// Why no sandbox can be made, if so.
    pub fn provider_problem(&self) -> Option<&str> {
        self.0.parts.provider.as_ref().err().map(String::as_str)
    }

    /// How long the provider's control plane is left alone because it is down; `None` when it is not.
    pub fn provider_rests_for(&self) -> Option<Duration> {
        match self.0.parts.provider.as_ref().ok()?.circuit() {
            CircuitState::Open { retry_after } => Some(retry_after).filter(|rest| !rest.is_zero()),
            CircuitState::HalfOpen | CircuitState::Closed { .. } => None,
        }
    }

    /// Asks the provider for something small, with the key. Gives how long the answer took.
    ///
    /// # Errors
    /// [`ExecutionError::NoProvider`], or [`ExecutionError::Sandbox`] with what it said.
    pub async fn ask_provider(&self) -> Result<Duration, ExecutionError> {
        let began = tokio::time::Instant::now();
        let filter = ListFilter { limit: Some(1), ..ListFilter::default() };
        self.provider()?.list(&filter).await.map_err(ExecutionError::Sandbox)?;
        Ok(began.elapsed())
    }

    /// A handle to a context, for a result to this caller; nobody else can use it.
    pub fn mint_handle(&self, key: &ContextKey, principal: Option<&str>) -> String {
        self.0.parts.handles.mint(key, principal.unwrap_or_default(), &self.0.parts.entropy)
    }

    /// Opens a handle that came with a call.
    ///
    /// # Errors
    /// [`ExecutionError::UnknownHandle`] for anything that this installation did not mint for this caller.
    pub fn open_handle(
        &self,
        handle: &str,
        tenant: &crate::domain::TenantId,
        principal: &str,
    ) -> Result<ContextKey, ExecutionError> {
        self.0.parts.handles.open(handle, tenant, principal).ok_or(ExecutionError::UnknownHandle)
    }

    /// Ends the live context of a key, if there is one. Its sandbox dies in the background.
    ///
    /// # Errors
    /// The store's.
    pub async fn end_context(&self, key: &ContextKey) -> Result<bool, ExecutionError> {
        let Some(row) = self.store().live(key).await? else { return Ok(false) };
        let end = End {
            tenant: key.tenant.clone(),
            context: row.id,
            epoch: None,
            reason: EndReason::Manual,
            error: None,
        };
        self.0.parts.crash.at("end.before");
        let ended = self.store().end(&end, &self.options().limits).await?;
        self.0.parts.crash.at("end.written");
        self.0.remembered.forget(key);
        self.0.doomed.notify_one();
        Ok(ended)
    }

    /// Waits until every run has been recorded. Background tasks go on.
    pub async fn drain(&self) {
        self.0.runs.close();
        self.0.runs.wait().await;
    }

    /// Waits until the background tasks have ended; they do once shutdown is asked for.
    pub async fn ended(&self) {
        self.0.background.close();
        self.0.background.wait().await;
    }

    fn provider(&self) -> Result<&E2bClient, ExecutionError> {
        self.0.parts.provider.as_ref().map_err(|why| ExecutionError::NoProvider(why.clone()))
    }
}
