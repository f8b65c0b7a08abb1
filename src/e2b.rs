//! A client for E2B sandboxes: the cloud's, a self-hosted provider's, or a local host's, through one protocol.
//!
//! It knows sandboxes and code interpreters and nothing of who uses them. What it adds to the plain protocol is what
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
//! cancelled: it keeps one run at a time on a context and makes the context sound again after an abort. Files and
//! processes are [`E2bClient::files`] and [`E2bClient::processes`].
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
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub use circuit::CircuitState;
pub use endpoint::{CLOUD_DOMAIN, Endpoint};
pub use error::{Deadline, E2bError, ProviderText, Subject};
pub use execute::{Deadlines, Execution};
pub use files::{FileWatch, Files};
pub use gateway::{McpGateway, McpServers};
pub use interpreter::{Interpreter, Run, RunRequest, Settled, Setup, Target};
pub use liveness::{Liveness, Readiness};
pub use processes::{Command, CommandOutput, Process, ProcessUpdate, Processes};
pub use sandboxes::{CreateSandbox, ListFilter, NetworkPolicy, Sandbox, SandboxAccess};
pub use shell::{EXIT_STATUS, Shell, ShellRun};
pub use traceback::rebuild as rebuild_traceback;

pub use crate::wire::control::MCP_TEMPLATE;

use crate::domain::{Clock, Entropy};
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
    /// What is tried again, and how often.
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
    /// So many failures in a row open the circuit.
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

/// What the clients of all endpoints have in common.
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
            let mut endpoints = shared.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
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
