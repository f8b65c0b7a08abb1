//! Runs code in a conversation path's own sandbox: find or create it, run, guard the output, record.
//!
//! One call is one straight line through here: [`Runs::run_code`] acquires the context from the store (`acquire`), sends
//! the code to its sandbox (`run_code`), and hands out only what the guard has seen. Callers get the part that they use:
//! [`Runs`], [`Files`], [`Reads`], [`Contexts`], [`Paths`], [`Credentials`], [`Cleanup`], [`Health`]. What these share is
//! private, so no door reaches the store or the provider.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bridge::Bridge;
use crate::domain::{Clock, ContextKey, Entropy, ExecutionId, Language, Outcome, OutputChunk, SandboxState};
use crate::e2b::E2bClient;
use crate::guard::{Overlay, Report, Sanitized};
use crate::store::{ContextLimits, DynStore, Secret};
use crate::telemetry::trace::Trace;
use remembered::Remembered;
use write_behind::WriteBehind;

pub mod acquire;
mod attempts;
pub mod contexts;
pub mod crash;
pub mod error;
pub mod files;
mod guarding;
pub mod handle;
pub mod health;
pub mod hosts;
mod interpret;
pub mod outputs;
pub mod packs;
pub mod paths;
pub mod policies;
mod prelude;
mod provider;
pub mod reaper;
pub mod recall;
pub mod recipe;
mod record;
mod relay;
mod remembered;
mod remembered_tools;
mod replica;
mod resolve;
pub mod reveal;
mod revive;
pub mod run_analysis;
pub mod run_code;
pub mod sessions;
pub mod startup;
mod stop;
pub mod tools;
pub mod transfers;
mod unclaimed;
pub mod usage;
pub mod workflows;
mod write_behind;

pub use contexts::Contexts;
pub use crash::CrashAt;
pub use error::ExecutionError;
pub use files::Files;
pub use handle::HandleKey;
pub use health::{Checked, Health};
pub use hosts::Hosts;
pub use outputs::{Artifact, Outputs};
pub use packs::{Packs, PacksError};
pub use paths::{ClosedPath, Paths};
pub use reaper::Cleanup;
pub use recall::{Begun, Reads, Recalled, Requester};
pub use recipe::{Recipe, Recipes};

pub use crate::store::{ContextRow, ExecutionRow, ExecutionStatus, WorkflowRow};
pub use policies::Policies;
pub use remembered_tools::StoredTools;
pub use reveal::{Credentials, Revealed, TokenKey};
pub use run_analysis::{Analysed, AnalysisRequest};
pub use sessions::SessionFacts;
pub use startup::{Starting, Startup};
pub use usage::Usage;

pub use tools::{Decision, Person, Question, ToolCall};
pub use transfers::Transfers;
pub use workflows::{Approver, Control, Flow, WorkflowError, Workflows};

/// Numbers of this component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Limits and life of contexts.
    pub limits: ContextLimits,
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
    /// How long entries of the audit chain are kept.
    pub audit_retention: Duration,
    /// Whether workflows are offered and driven here.
    pub workflows: bool,
    /// Bytes of a tenant's kept results of hermetic tasks; 0 keeps none.
    pub cache_bytes: u64,
    /// How long such a result is used.
    pub cache_age: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: ContextLimits::default(),
            recipes: Recipes::default(),
            sandbox_timeout: Duration::from_secs(600),
            margin: Duration::from_secs(30),
            output_chars: 50_000,
            max_results: 64,
            cleanup_interval: Duration::from_secs(3600),
            retention: Duration::from_secs(30 * 86_400),
            audit_retention: Duration::from_secs(400 * 86_400),
            workflows: false,
            cache_bytes: 256 << 20,
            cache_age: Duration::from_secs(7 * 86_400),
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
    /// Tells which local hosts live.
    pub hosts: Hosts,
    /// The egress guards.
    pub policies: Policies,
    /// Signs and opens handles.
    pub handles: HandleKey,
    /// Makes the guard's sealed tokens, where there is a key that every replica has.
    pub tokens: Option<TokenKey>,
    /// Keeps whole outputs.
    pub outputs: Outputs,
    /// Whether they are in this replica's data directory, and replicas elsewhere keep theirs in their own.
    pub are_outputs_apart: bool,
    /// Other servers, whose tools programs may call.
    pub bridge: Option<Bridge>,
    /// What time it is.
    pub clock: Clock,
    /// Randomness.
    pub entropy: Entropy,
    /// This replica's name, for operators.
    pub owner: String,
    /// Where a test lets this process die.
    pub crash: CrashAt,
}

/// A running service: its parts, each with what one kind of caller needs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Execution {
    /// Begins and stops runs.
    pub runs: Runs,
    /// Files of sandboxes.
    pub files: Files,
    /// Addresses of files.
    pub transfers: Transfers,
    /// Runs after they were begun, and what they left.
    pub reads: Reads,
    /// Live contexts and their handles.
    pub contexts: Contexts,
    /// The conversation tree.
    pub paths: Paths,
    /// API keys and sealed tokens.
    pub credentials: Credentials,
    /// Tasks as a graph.
    pub workflows: Workflows,
    /// Ends expired contexts.
    pub cleanup: Cleanup,
    /// Facts about protocol sessions.
    pub sessions: SessionFacts,
    /// Whether database and provider answer.
    pub health: Health,
    /// What was used.
    pub usage: Usage,
    /// The guards, for texts that do not come from a run.
    pub policies: Policies,
    /// Other servers, whose tools programs may call.
    pub bridge: Option<Bridge>,
    core: Arc<Core>,
}

/// Runs code. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Runs(Arc<Core>);

/// What the parts share. Only they see it: no door reaches the store or the provider.
#[derive(Debug)]
struct Core {
    parts: Parts,
    runs: TaskTracker,
    background: TaskTracker,
    shutdown: CancellationToken,
    /// Something was put into the outbox.
    kills: Notify,
    /// For the time when the database is away.
    remembered: Remembered,
    /// What the database could not take yet.
    write_behind: WriteBehind,
    /// Runs of this replica that can be stopped.
    stoppable: stop::Stoppable,
    /// Ways of tool calls out of sandboxes.
    tools: tools::ToolRooms,
    /// Workflows that this replica drives.
    flows: workflows::Flows,
    /// Until when no other replica takes what this one holds.
    lease: replica::Lease,
    /// What the last writes found.
    room: health::Room,
}

/// Who calls and for what.
#[derive(Debug, Clone)]
pub struct Call {
    /// The context's key.
    pub key: ContextKey,
    /// Who calls.
    pub requester: Requester,
    /// The caller's trace.
    pub trace: Option<Trace>,
    /// Run at most once under this key.
    pub idempotency_key: Option<String>,
    /// What the call asks of the guard; it may tighten, and loosen as far as the levels above allow.
    pub guard: Option<Overlay>,
    /// Where a person can be asked whether a program may call a tool.
    pub person: Option<Person>,
    /// Whether its conversation was made up for the call, its session or its process. The same call again is then in
    /// another one, and is the same call still.
    pub is_made_up: bool,
}

impl Call {
    /// A call on a context that it names.
    pub fn on(key: ContextKey, requester: Requester) -> Self {
        Self {
            key,
            requester,
            trace: None,
            idempotency_key: None,
            guard: None,
            person: None,
            is_made_up: false,
        }
    }

    /// What of its context is an argument of the call.
    fn place(&self) -> [&str; 2] {
        let conversation = if self.is_made_up { "" } else { self.key.conversation.as_str() };
        [conversation, self.key.path.as_str()]
    }
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
    /// How far a workflow is.
    Tasks {
        /// Tasks that have ended.
        over: usize,
        /// Tasks in all.
        of: usize,
        /// Ids of those that run.
        running: Vec<String>,
    },
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
    /// The tools of other servers that the program called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Signatures of tools that the caller asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<String>,
}

impl Execution {
    /// Puts the service together. Its tasks end when `shutdown` is cancelled.
    pub fn new(parts: Parts, shutdown: CancellationToken) -> Self {
        let (policies, bridge) = (parts.policies.clone(), parts.bridge.clone());
        let lease = replica::Lease::new(parts.clock.clone());
        let room = health::Room::new(parts.clock.clone());
        let core = Arc::new(Core {
            parts,
            runs: TaskTracker::new(),
            background: TaskTracker::new(),
            shutdown,
            kills: Notify::new(),
            remembered: Remembered::default(),
            write_behind: WriteBehind::default(),
            stoppable: stop::Stoppable::default(),
            tools: tools::ToolRooms::default(),
            flows: workflows::Flows::default(),
            lease,
            room,
        });
        Self {
            runs: Runs(Arc::clone(&core)),
            files: Files(Arc::clone(&core)),
            transfers: Transfers(Arc::clone(&core)),
            reads: Reads(Arc::clone(&core)),
            contexts: Contexts(Arc::clone(&core)),
            paths: Paths(Arc::clone(&core)),
            credentials: Credentials(Arc::clone(&core)),
            workflows: Workflows(Arc::clone(&core)),
            cleanup: Cleanup(Arc::clone(&core)),
            sessions: SessionFacts(Arc::clone(&core)),
            health: Health(Arc::clone(&core)),
            usage: Usage(Arc::clone(&core)),
            policies,
            bridge,
            core,
        }
    }

    /// Starts the background tasks; they end at shutdown.
    pub fn start(&self) {
        self.core.start_heartbeat();
        self.runs.start_stopping();
        self.cleanup.start();
        self.workflows.start();
    }

    /// From now on readiness says that this process ends.
    pub fn leave(&self) {
        self.core.runs.close();
    }

    /// Waits until every run has been recorded. Background tasks go on.
    pub async fn drain(&self) {
        self.leave();
        self.core.runs.wait().await;
    }

    /// Ends the tool servers.
    pub async fn close_tools(&self) {
        self.core.tools.leave_all();
        if let Some(bridge) = &self.core.parts.bridge {
            bridge.close().await;
        }
    }

    /// Waits until the background tasks have ended; they do once shutdown is asked for.
    pub async fn ended(&self) {
        self.core.runs.close();
        self.core.background.close();
        self.core.background.wait().await;
    }
}

impl Core {
    fn options(&self) -> &Options {
        &self.parts.options
    }

    fn store(&self) -> &DynStore {
        &self.parts.store
    }

    fn outputs(&self) -> &Outputs {
        &self.parts.outputs
    }

    fn provider(&self) -> Result<&E2bClient, ExecutionError> {
        self.parts.provider.as_ref().map_err(|why| ExecutionError::NoProvider(why.clone()))
    }

    /// A handle to a context, for a result to this caller; others cannot use it.
    fn mint_handle(&self, key: &ContextKey, principal: &str) -> String {
        self.parts.handles.mint(key, principal)
    }
}
