//! Languages: the code contexts of one sandbox, each an interpreter with its own variables.
//!
//! It builds on the sandbox's [agent](super::agent), which only knows processes. What an execution says comes as a
//! stream of the wire protocol's events; to drop that stream is to interrupt the execution.

mod bash;
mod cells;
mod complaints;
mod context;
mod driver;
mod interpreters;
mod node;
mod output;
mod protocol;
mod python;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use tokio::sync::{mpsc, oneshot};

pub(super) use self::cells::program;
use self::context::{Job, Order, SharedEnv, Worker};
use self::driver::{Driver, StartError};
pub use self::interpreters::{Interpreters, Language, Problem, Search, python_of};
use super::agent::AgentHandle;
use super::credit::THING;
use crate::domain::{Clock, Entropy, lock};
use crate::wire::interpreter::{CodeContext, Event, ExecuteRequest};

/// Executions that may wait for their turn in one context.
const QUEUE_MAX: usize = 256;
/// Events between a context and the reader of an execution.
const EVENTS_MAX: usize = 4;
/// Longest name and value of an environment variable together, in bytes.
const ENV_MAX: usize = 64 << 10;

/// How code contexts behave. The same for all sandboxes of a host.
#[derive(Debug, Clone)]
pub struct Options {
    /// The interpreters of this machine.
    pub interpreters: Interpreters,
    /// What one execution may print, in bytes of text; more is dropped and counted.
    pub max_output_bytes: u64,
    /// Displays of one execution; more are dropped and counted.
    pub max_results: u32,
    /// Code contexts of one sandbox, the default ones included.
    pub max_contexts: usize,
    /// Silence after which a running execution shows that it lives.
    pub keepalive: Duration,
    /// How long an interrupted interpreter may go on before it is killed.
    pub grace: Duration,
    /// How long until an interrupt is repeated within [`Options::grace`].
    pub interrupt_again: Duration,
    /// Memory of a Python interpreter, in bytes, up to which a copy of it is made after each cell; it goes on should
    /// the next cell kill the interpreter. What a cell then changes exists twice. 0 makes none.
    pub checkpoint_bytes: u64,
    /// Threads that numeric libraries of Python start with. More than 1 leaves nothing to make a checkpoint of.
    pub numeric_threads: u32,
    /// Modules that a Python interpreter imports before its first cell. One that cannot be imported is logged.
    pub preload: Vec<String>,
    /// Tells the time.
    pub clock: Clock,
    /// Makes ids.
    pub entropy: Entropy,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interpreters: Interpreters::default(),
            max_output_bytes: 64 << 20,
            max_results: 10_000,
            max_contexts: 64,
            keepalive: Duration::from_secs(5),
            grace: Duration::from_secs(2),
            interrupt_again: Duration::from_millis(500),
            checkpoint_bytes: 300 << 20,
            numeric_threads: 1,
            preload: Vec::new(),
            clock: Clock::system(),
            entropy: Entropy::system(),
        }
    }
}

/// The code contexts of one sandbox. Cheap to clone; when the last clone is gone, its interpreters are ended.
#[derive(Debug, Clone)]
pub struct Kernels {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    agent: AgentHandle,
    options: Arc<Options>,
    env: SharedEnv,
    /// In the order of creation.
    entries: Mutex<Vec<Entry>>,
}

#[derive(Debug, Clone)]
struct Entry {
    context: CodeContext,
    /// Whether executions that name only its language come here.
    is_default: bool,
    jobs: mpsc::Sender<Job>,
    orders: mpsc::Sender<Order>,
}

/// A request that cannot be served. [`KernelError::status`] and `Display` are what E2B answers.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Both fields select where the code should run.
    #[error("Only one of context_id or language can be provided")]
    ContextAndLanguage,
    /// No such context.
    #[error("Context {0} not found")]
    NotFound(String),
    /// A language that no one here runs, or whose interpreter is missing on this machine.
    #[error("Failed to create context: {}", unknown_language(.language, .missing.as_ref()))]
    Language {
        /// As it was asked for.
        language: String,
        /// What would have to be installed.
        missing: Option<Problem>,
    },
    /// The interpreter did not start; the text gives what is known.
    #[error("Failed to create context: {0}")]
    Start(String),
    /// A name or value that no environment can hold: empty name, `=` in a name, NUL, or too long.
    #[error("Environment variable {0:?} is not valid")]
    EnvVar(String),
    /// Too many contexts or too many executions wait; try again later.
    #[error("Too many {0} in this sandbox")]
    TooMany(&'static str),
}

impl KernelError {
    /// The HTTP status that goes with it.
    pub fn status(&self) -> u16 {
        match self {
            Self::ContextAndLanguage | Self::EnvVar(_) => 400,
            Self::NotFound(_) => 404,
            Self::TooMany(_) => 429,
            Self::Language { .. } | Self::Start(_) => 500,
        }
    }
}

/// The words of the Jupyter server inside E2B's sandboxes, and what to do when it can be helped.
fn unknown_language(language: &str, missing: Option<&Problem>) -> String {
    let advice = missing.map(|problem| format!(" ({problem})")).unwrap_or_default();
    format!(
        "{{\"message\": \"The '{language}' kernel is not available. Please pick another suitable kernel instead, or \
         install that kernel.{advice}\", \"short_message\": \"{language} not found\"}}"
    )
}

/// What an execution says, ending with [`Event::EndOfExecution`]. A stream that ends without it was broken off: the
/// sandbox is gone. Dropping it interrupts the execution, or takes it out of the queue; variables are kept.
#[derive(Debug)]
pub struct EventStream {
    events: mpsc::Receiver<Event>,
}

impl Stream for EventStream {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(cx)
    }
}

impl Kernels {
    /// The code contexts of a new sandbox. The default Python interpreter is started at once, so that the first
    /// execution does not wait for it; [`Kernels::ready`] waits until it is ready.
    pub fn new(agent: AgentHandle, options: Arc<Options>) -> Self {
        let shared = Shared { agent, options, env: SharedEnv::default(), entries: Mutex::default() };
        let kernels = Self { shared: Arc::new(shared) };
        // As at E2B, where these two exist from the start.
        for (language, name) in [(Language::Python, "python"), (Language::JavaScript, "javascript")] {
            if Driver::of(language).is_some() && kernels.shared.options.interpreters.program(language).is_ok()
            {
                // With an empty list and an available interpreter this cannot be refused.
                let _ = kernels.add(language, name, None, true);
            }
        }
        kernels
    }

    /// Sets what every program of the sandbox finds in its environment. Interpreters that run already get it before
    /// their next execution.
    ///
    /// # Errors
    /// [`KernelError::EnvVar`] names a variable that cannot be; nothing was set.
    pub fn set_env(&self, env: BTreeMap<String, String>) -> Result<(), KernelError> {
        check_env(&env)?;
        let mut shared = lock(&self.shared.env);
        *shared = (shared.0 + 1, env);
        Ok(())
    }

    /// Waits until the default Python interpreter runs.
    ///
    /// # Errors
    /// [`KernelError::Language`] when there is no Python, [`KernelError::Start`] when it does not start.
    pub async fn ready(&self) -> Result<(), KernelError> {
        let entry = self.default_context("python")?;
        started(&entry, Order::Start).await
    }

    /// Every context, oldest first.
    pub fn contexts(&self) -> Vec<CodeContext> {
        self.entries().iter().map(|entry| entry.context.clone()).collect()
    }

    /// Makes a context and starts its interpreter. Python and the home directory when nothing else is asked for; a
    /// directory that does not exist is not an error.
    ///
    /// # Errors
    /// [`KernelError::Language`], [`KernelError::Start`], [`KernelError::TooMany`].
    pub async fn create(
        &self,
        language: Option<&str>,
        cwd: Option<&str>,
    ) -> Result<CodeContext, KernelError> {
        let name = language.filter(|name| !name.is_empty()).unwrap_or("python");
        let (language, name) = parse(name)?;
        let entry = self.add(language, name, cwd.filter(|cwd| !cwd.is_empty()), false)?;
        match started(&entry, Order::Start).await {
            Ok(()) => Ok(entry.context),
            Err(error) => {
                let _ = self.remove(&entry.context.id).await;
                Err(error)
            }
        }
    }

    /// Gives a context a new interpreter; a running execution is broken off and reports it.
    ///
    /// # Errors
    /// [`KernelError::NotFound`], [`KernelError::Start`].
    pub async fn restart(&self, id: &str) -> Result<(), KernelError> {
        let entry = self.find(id)?;
        started(&entry, Order::Restart).await
    }

    /// Interrupts what a context runs, no matter who began it; its answer breaks off. `false`: nothing ran.
    ///
    /// # Errors
    /// [`KernelError::NotFound`].
    pub async fn interrupt(&self, id: &str) -> Result<bool, KernelError> {
        let entry = self.find(id)?;
        let (reply, ran) = oneshot::channel();
        let gone = || KernelError::NotFound(id.to_owned());
        entry.orders.send(Order::Interrupt(reply)).await.map_err(|_| gone())?;
        ran.await.map_err(|_| gone())
    }

    /// Ends a context; a running execution is broken off and reports it.
    ///
    /// # Errors
    /// [`KernelError::NotFound`].
    pub async fn remove(&self, id: &str) -> Result<(), KernelError> {
        let entry = self.find(id)?;
        self.entries().retain(|entry| entry.context.id != id);
        let (reply, removed) = oneshot::channel();
        if entry.orders.send(Order::Remove(reply)).await.is_ok() {
            let _ = removed.await;
        }
        Ok(())
    }

    /// Queues an execution. It runs when those before it in its context have ended.
    ///
    /// # Errors
    /// What E2B refuses before it answers: see [`KernelError`].
    pub fn execute(&self, request: ExecuteRequest) -> Result<EventStream, KernelError> {
        let context_id = request.context_id.filter(|id| !id.is_empty());
        let language = request.language.filter(|name| !name.is_empty());
        let env = request.env_vars.unwrap_or_default();
        check_env(&env)?;
        let entry = match (context_id, language) {
            (Some(_), Some(_)) => return Err(KernelError::ContextAndLanguage),
            (Some(id), None) => self.find(&id)?,
            (None, language) => self.default_context(language.as_deref().unwrap_or("python"))?,
        };
        let (events, stream) = mpsc::channel(EVENTS_MAX);
        let bytes =
            env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() + request.code.len();
        let paid = self.shared.agent.credit(THING + bytes);
        let paid = paid.ok_or(KernelError::TooMany("bytes of waiting executions"))?;
        entry
            .jobs
            .try_send(Job { code: request.code, env, events, _paid: paid })
            .map_err(|_| KernelError::TooMany("waiting executions"))?;
        Ok(EventStream { events: stream })
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        lock(&self.shared.entries)
    }

    fn find(&self, id: &str) -> Result<Entry, KernelError> {
        let entries = self.entries();
        let found = entries.iter().find(|entry| entry.context.id == id);
        found.cloned().ok_or_else(|| KernelError::NotFound(id.to_owned()))
    }

    fn default_context(&self, name: &str) -> Result<Entry, KernelError> {
        let (language, name) = parse(name)?;
        self.add(language, name, None, true)
    }

    /// Adds a context; a default one only if its language has none yet.
    fn add(
        &self,
        language: Language,
        name: &str,
        cwd: Option<&str>,
        is_default: bool,
    ) -> Result<Entry, KernelError> {
        let Shared { agent, options, env, .. } = &*self.shared;
        let unknown = |missing| KernelError::Language { language: name.to_owned(), missing };
        let driver = Driver::of(language).ok_or_else(|| unknown(None))?;
        options.interpreters.program(language).map_err(|problem| unknown(Some(problem.clone())))?;
        let mut entries = self.entries();
        if is_default && let Some(entry) = entries.iter().find(|e| e.is_default && e.context.language == name)
        {
            return Ok(entry.clone());
        }
        if entries.len() >= options.max_contexts {
            return Err(KernelError::TooMany("contexts"));
        }
        let context = CodeContext {
            id: options.entropy.uuid_v7(&options.clock).to_string(),
            language: name.to_owned(),
            cwd: cwd.unwrap_or_else(|| agent.home()).to_owned(),
        };
        let (jobs, waiting) = mpsc::channel(QUEUE_MAX);
        let (orders, ordered) = mpsc::channel(8);
        let worker = Worker {
            agent: agent.clone(),
            options: options.clone(),
            driver,
            cwd: context.cwd.clone(),
            env: env.clone(),
            jobs: waiting,
            orders: ordered,
            news: None,
        };
        // It ends with the senders in `entry`.
        tokio::spawn(worker.run());
        let entry = Entry { context, is_default, jobs, orders };
        entries.push(entry.clone());
        Ok(entry)
    }
}

fn parse(name: &str) -> Result<(Language, &'static str), KernelError> {
    // What was asked for is repeated in the answer, but not without end.
    let shown = || name.trim().to_lowercase().chars().filter(|c| !c.is_control()).take(100).collect();
    Language::parse(name).ok_or_else(|| KernelError::Language { language: shown(), missing: None })
}

async fn started(
    entry: &Entry,
    order: impl FnOnce(oneshot::Sender<Result<(), StartError>>) -> Order,
) -> Result<(), KernelError> {
    let (reply, started) = oneshot::channel();
    let removed = || KernelError::NotFound(entry.context.id.clone());
    entry.orders.send(order(reply)).await.map_err(|_| removed())?;
    match started.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(KernelError::Start(error.to_event().value)),
        Err(_) => Err(removed()),
    }
}

/// Whether a process can have these in its environment, whatever its language.
fn check_env(env: &BTreeMap<String, String>) -> Result<(), KernelError> {
    let fits = |name: &str, value: &str| {
        !name.is_empty()
            && !name.contains(['=', '\0'])
            && !value.contains('\0')
            && name.len() + value.len() <= ENV_MAX
    };
    match env.iter().find(|(name, value)| !fits(name, value)) {
        Some((name, _)) => Err(KernelError::EnvVar(name.chars().take(100).collect())),
        None => Ok(()),
    }
}
