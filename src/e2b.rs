//! A client for E2B sandboxes: the cloud's, a self-hosted provider's, or a local host's, through one protocol.
//!
//! It knows sandboxes and code interpreters but not their users. What it adds to the plain protocol is what
//! the protocol's users keep running into: every failure has a type that says what to do, whether the code may have run
//! and which clock ended; a stream without its end is never taken for success; nothing unsafe is ever sent twice; and
//! no error, log or debug text holds a key, a token or a sandbox's address.
//!
//! ```no_run
//! use std::time::Duration;
//! use pathbox::domain::{Clock, Entropy};
//! use pathbox::e2b::{CreateSandbox, Deadlines, E2bClient, Endpoint, Options};
//! use pathbox::wire::{Secret, interpreter::{Event, ExecuteRequest}};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let options = Options { endpoint: Endpoint::cloud(Secret::new("e2b_…")), ..Options::default() };
//! let client = E2bClient::new(options, Clock::system(), Entropy::system())?;
//!
//! let sandbox = client.create(&CreateSandbox { timeout: Duration::from_secs(300), ..Default::default() }).await?;
//! let access = sandbox.access();
//! let mut run = client
//!     .execute(&access, &ExecuteRequest::in_language("print('hi'); 6 * 7", "python"), Deadlines::default())
//!     .await?;
//! while let Some(event) = run.next().await? {
//!     match event {
//!         Event::Stdout(output) => print!("{}", output.text),
//!         Event::Result(result) => println!("= {}", result.text.unwrap_or_default()),
//!         _ => {}
//!     }
//! }
//! client.kill(&sandbox.id).await?;
//! # Ok(()) }
//! ```
//!
//! [`E2bClient::execute`] is one request and its events. [`Interpreter`] is what to build on when runs are timed out or
//! cancelled: it keeps one run at a time on a context and makes the context sound again after an abort.
//!
//! # Files, processes, a shell
//!
//! ```no_run
//! # use std::time::Duration;
//! # use pathbox::e2b::{Command, E2bClient, E2bError, ProcessUpdate, RunRequest, SandboxAccess};
//! # async fn example(client: E2bClient, access: SandboxAccess) -> Result<(), E2bError> {
//! let files = client.files(&access);
//! files.write("data/in.csv", "a,b\n1,2\n").await?;
//! let mut watch = files.watch("data", true).await?;
//!
//! // A command with both outputs and its status; at most 1 MiB of each is kept.
//! let processes = client.processes(&access);
//! let sort = Command { life: Some(Duration::from_secs(30)), ..Command::shell("sort data/in.csv > data/out.csv") };
//! assert_eq!(processes.run(&sort, 1 << 20).await?.exit_code, 0);
//! println!("{:?} changed", watch.next().await?.map(|event| event.name));
//! println!("{} bytes", files.read("data/out.csv", 1 << 20).await?.len());
//!
//! // A background job lives until it is killed, and with it all that it started.
//! let mut job = processes.start(&Command::shell("python3 -m http.server 8000")).await?;
//! while let Some(ProcessUpdate::Stderr(line)) = job.next().await? {
//!     if line.contains("GET") { break; }
//! }
//! processes.kill_all(&job).await?;
//!
//! // A shell whose directory, variables and functions last from one command to the next.
//! let shell = client.shell(&access, None);
//! for line in ["cd data", "pwd"] {
//!     let mut run = shell.run(&RunRequest::new(line)).await?;
//!     while let Some(event) = run.next().await? { println!("{event:?}"); }
//! }
//! # Ok(()) }
//! ```
//!
//! # The life of a sandbox
//!
//! A new sandbox is closed in both directions: [`NetworkPolicy`] opens what its programs may reach, and no one reaches its
//! ports without the traffic token. It ends at its time, unless that is moved.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use pathbox::e2b::{CreateSandbox, E2bClient, E2bError, ListFilter, Liveness, NetworkPolicy, Readiness};
//! # async fn example(client: E2bClient) -> Result<(), E2bError> {
//! let create = CreateSandbox {
//!     network: NetworkPolicy::AllowList(vec!["pypi.org".into(), "files.pythonhosted.org".into()]),
//!     metadata: [("session".to_owned(), "42".to_owned())].into(),
//!     pause_on_timeout: true,
//!     ..CreateSandbox::default()
//! };
//! let sandbox = client.create(&create).await?;
//! let access = sandbox.access();
//! if client.ready(&access, Duration::from_secs(10)).await? == Readiness::NoInterpreter {
//!     println!("the template {} was built without its start command", sandbox.template_id);
//! }
//! client.set_timeout(&sandbox.id, Duration::from_secs(3600)).await?;
//!
//! // Much later, perhaps in another process that kept `access`:
//! match client.liveness(&access).await? {
//!     Liveness::Running { ends_at } => println!("there, until {ends_at}"),
//!     Liveness::Paused => drop(client.connect(&sandbox.id, Duration::from_secs(3600)).await?),
//!     Liveness::Gone => println!("gone for good"),
//!     Liveness::Unreachable { .. } => println!("try again shortly"),
//!     Liveness::NoInterpreter { .. } => println!("starting, or a template without an interpreter"),
//! }
//! let filter = ListFilter { metadata: create.metadata.clone(), ..ListFilter::default() };
//! for listed in client.list(&filter).await? {
//!     println!("{} {:?}", listed.sandbox_id, listed.state);
//! }
//! # Ok(()) }
//! ```
//!
//! # When something goes wrong
//!
//! Every call gives an [`E2bError`]. Its variants tell what a caller can do; three questions answer most of it:
//! [`is_lost`](E2bError::is_lost) (make a new sandbox), [`is_retryable`](E2bError::is_retryable) (later) and
//! [`may_have_run`](E2bError::may_have_run) (never send the code again). [`advice`](E2bError::advice) is a sentence for people.
//!
//! | error | when | then |
//! | --- | --- | --- |
//! | [`Setting`](E2bError::Setting) | a setting or an argument cannot work; nothing was sent | correct it |
//! | [`Unauthenticated`](E2bError::Unauthenticated), [`Forbidden`](E2bError::Forbidden) | 401, 403 | check the key |
//! | [`Refused`](E2bError::Refused), [`Conflict`](E2bError::Conflict), [`NotFound`](E2bError::NotFound) | 400, 404, 409, 422 | the same request fails again |
//! | [`RateLimited`](E2bError::RateLimited), [`Busy`](E2bError::Busy), [`Failed`](E2bError::Failed) | 429, 502 to 504, 500, after repetitions where those are safe | later; a create in doubt is found by its metadata |
//! | [`CircuitOpen`](E2bError::CircuitOpen), [`CreateQueueFull`](E2bError::CreateQueueFull) | nothing was sent: the provider is down, or too much waits | later |
//! | [`Lost`](E2bError::Lost) | the sandbox is gone or paused | [`liveness`](E2bClient::liveness) says which |
//! | [`PortClosed`](E2bError::PortClosed) | the sandbox runs without an interpreter | another template |
//! | [`TimedOut`](E2bError::TimedOut) | one of our clocks ended; [`Deadline`] says which | settle, then go on |
//! | [`Broken`](E2bError::Broken), [`Incomplete`](E2bError::Incomplete), [`Interrupted`](E2bError::Interrupted) | an answer broke off; the code may have run | settle; look before running it again |
//! | [`Protocol`](E2bError::Protocol), [`TooLarge`](E2bError::TooLarge) | an answer that is none, or without end | as above |
//! | [`Rpc`](E2bError::Rpc), [`Command`](E2bError::Command) | envd or a program in the sandbox said no | look at its words |
//!
//! Every known fault of the provider, and how it is handled, is listed in `docs/e2b-faults.md`.
//!
//! # Other providers
//!
//! Another provider is another [`Endpoint`]; [`E2bClient::at`] shares the connection pool with it:
//!
//! ```no_run
//! # fn example(client: pathbox::e2b::E2bClient) -> Result<(), pathbox::e2b::E2bError> {
//! use pathbox::e2b::Endpoint;
//! use pathbox::wire::Secret;
//! let local = client.at(&Endpoint::local("http://127.0.0.1:3900", Secret::new("e2b_local")))?;
//! # Ok(()) }
//! ```

mod cells;
mod circuit;
mod endpoint;
mod error;
mod execute;
mod files;
mod gateway;
mod interpreter;
mod liveness;
mod processes;
mod rpc;
mod sandboxes;
mod send;
mod shell;
mod traceback;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

pub use circuit::CircuitState;
pub use endpoint::{CLOUD_DOMAIN, Endpoint, is_domain};
pub use error::{Deadline, E2bError, ProviderText, Subject};
pub use execute::{Deadlines, Execution};
pub use files::{Download, FileWatch, Files};
pub use gateway::{McpGateway, McpServers};
pub use interpreter::{Interpreter, Run, RunRequest, Settled, Setup, Target};
pub use liveness::{Liveness, Readiness};
pub use processes::{Command, CommandOutput, Process, ProcessUpdate, Processes};
pub use sandboxes::{CreateSandbox, ListFilter, NetworkPolicy, Sandbox, SandboxAccess};
pub use shell::{Shell, ShellRun};
pub use traceback::rebuild as rebuild_traceback;

pub use crate::wire::control::MCP_TEMPLATE;

use crate::domain::{Clock, Entropy, lock};
use crate::wire;
use circuit::EndpointState;

/// How the client behaves. The defaults suit E2B's cloud.
#[derive(Debug, Clone)]
pub struct Options {
    /// The provider that is used unless [`E2bClient::at`] names another.
    pub endpoint: Endpoint,
    /// The template of new sandboxes, unless the create names another.
    pub template: String,
    /// How long a TCP and TLS handshake may take.
    pub connect_timeout: Duration,
    /// How long a control-plane or file request may take, with its repetitions.
    pub request_timeout: Duration,
    /// The requests that are retried, and how often.
    pub retry: RetryOptions,
    /// How fast sandboxes may be asked for.
    pub creates: CreateLimits,
    /// When a dead provider is left alone.
    pub circuit: CircuitOptions,
    /// The longest line of an execution's answer that is kept, in bytes. What is beyond is dropped and counted.
    pub max_line_bytes: usize,
    /// How long a stream of processes or file changes may be silent. Envd is asked for a keepalive every 10 s.
    pub stream_stall: Duration,
    /// The largest answer of a request that is not a stream, in bytes. Downloads name their own limit.
    pub max_answer_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            endpoint: Endpoint::default(),
            template: wire::control::CODE_INTERPRETER_TEMPLATE.to_owned(),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
            retry: RetryOptions::default(),
            creates: CreateLimits::default(),
            circuit: CircuitOptions::default(),
            max_line_bytes: 16 << 20,
            stream_stall: Duration::from_secs(35),
            max_answer_bytes: 16 << 20,
        }
    }
}

/// Repetition of requests that are safe to repeat: exponential, with jitter, never beyond the request's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryOptions {
    /// How often a request is sent again after the first time.
    pub retries: u32,
    /// The first pause; each further one is twice as long. A `Retry-After` of the provider replaces it.
    pub base: Duration,
    /// The longest pause.
    pub max: Duration,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self { retries: 3, base: Duration::from_millis(100), max: Duration::from_secs(10) }
    }
}

/// How fast and how many at once sandboxes are asked for. Applies to custom endpoints too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CreateLimits {
    /// Creates a second. E2B allows 1 on the free plan and 5 on the paid one.
    pub per_second: Option<f64>,
    /// Creates that have not been answered.
    pub in_flight: Option<usize>,
    /// How long a create may wait for its turn before it is refused.
    pub max_wait: Duration,
}

impl Default for CreateLimits {
    fn default() -> Self {
        Self { per_second: None, in_flight: Some(32), max_wait: Duration::from_secs(30) }
    }
}

/// When a provider counts as down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitOptions {
    /// This many consecutive failures open the circuit.
    pub failures: u32,
    /// How long nothing is sent then.
    pub open_for: Duration,
}

impl Default for CircuitOptions {
    fn default() -> Self {
        Self { failures: 8, open_for: Duration::from_secs(10) }
    }
}

/// A client for one [`Endpoint`]. Clones are cheap and share everything.
#[derive(Debug, Clone)]
pub struct E2bClient {
    shared: Arc<Shared>,
    endpoint: Arc<Endpoint>,
    state: Arc<EndpointState>,
}

/// The state that the clients of all endpoints share.
#[derive(Debug)]
struct Shared {
    options: Options,
    http: send::Http,
    clock: Clock,
    entropy: Entropy,
    endpoints: Mutex<HashMap<String, Arc<EndpointState>>>,
}

impl E2bClient {
    /// A client for the endpoint in `options`. Opens no connection.
    ///
    /// # Errors
    /// [`E2bError::Setting`] names the setting that cannot work.
    pub fn new(options: Options, clock: Clock, entropy: Entropy) -> Result<Self, E2bError> {
        if options.creates.per_second.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            let problem = "must be a rate above 0".to_owned();
            return Err(E2bError::Setting { what: "creates.per_second", problem });
        }
        let endpoint = options.endpoint.clone();
        let http = send::Http::new(options.connect_timeout);
        let shared = Shared { options, http, clock, entropy, endpoints: Mutex::default() };
        Self::with(Arc::new(shared), &endpoint)
    }

    /// A client for another endpoint, with the same options and the same connection pool.
    ///
    /// # Errors
    /// [`E2bError::Setting`] names the part of the endpoint that cannot work.
    pub fn at(&self, endpoint: &Endpoint) -> Result<Self, E2bError> {
        if *endpoint == *self.endpoint {
            return Ok(self.clone());
        }
        Self::with(Arc::clone(&self.shared), endpoint)
    }

    fn with(shared: Arc<Shared>, endpoint: &Endpoint) -> Result<Self, E2bError> {
        endpoint.check()?;
        let state = {
            let mut endpoints = lock(&shared.endpoints);
            // States of endpoints that no client uses any more are forgotten.
            endpoints.retain(|_, state| Arc::strong_count(state) > 1);
            let options = &shared.options;
            let state = endpoints
                .entry(endpoint.name())
                .or_insert_with(|| Arc::new(EndpointState::new(options.circuit, options.creates)));
            Arc::clone(state)
        };
        Ok(Self { shared, endpoint: Arc::new(endpoint.clone()), state })
    }

    /// The provider this client talks to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether requests go to the provider's control plane, or fail at once because it is down.
    pub fn circuit(&self) -> CircuitState {
        self.state.circuit.state(Instant::now())
    }

    /// The longest life time that the provider allows, once a refusal has taught it.
    pub fn learned_timeout_cap(&self) -> Option<Duration> {
        self.state.cap()
    }

    fn options(&self) -> &Options {
        &self.shared.options
    }
}
