//! A code context that stays sound: one run at a time, and after an abort it is settled before the next run.
//!
//! The hosted server has a race: code sent within half a second of an abort hangs forever, and code that was given up may
//! run later, unseen. So an aborted context is left alone for a moment, probed with a trivial cell, and restarted when the
//! probe does not answer. [`Settled`] is the outcome.
//!
//! Environment variables of one run are set by a cell of their own and taken back after it, also after an abort. The
//! protocol's own `env_vars` pastes them into the caller's source: a quote breaks it, and tracebacks show the values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde::Deserialize;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::cells::{self, Kernel};
use super::endpoint::check_id;
use super::{Deadlines, E2bClient, E2bError, Execution, ProviderText, SandboxAccess, Subject, traceback};
use crate::domain::SandboxId;
use crate::wire::interpreter::{
    AFTER_INTERRUPT, CodeContext, CreateContext, Event, ExecuteRequest, Output, kernel_state, platform_error,
};
use crate::wire::{INTERPRETER_PORT, JUPYTER_PORT, Secret};

/// How long an aborted context is left alone: below half a second the next cell may hang forever.
const LEAVE_ALONE: Duration = Duration::from_millis(600);
/// How long a probe may take to be taken by the kernel.
const PROBE_START: Duration = Duration::from_secs(3);
/// The same for a host of our kind.
const HOST_PROBE_START: Duration = Duration::from_secs(40);
/// How long the first cell after a restart may take.
const RESTART_START: Duration = Duration::from_secs(15);

/// Which code context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The default context of a language.
    Language(String),
    /// One that was made with [`E2bClient::create_code_context`].
    Context {
        /// Its id.
        id: String,
        /// Its language.
        language: String,
    },
}

/// What has to be in a context before the caller's code runs. It is put back after the kernel died.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setup {
    /// Working directory.
    pub cwd: Option<String>,
    /// Environment variables.
    pub envs: BTreeMap<String, Secret>,
}

/// The state of a context after an abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The interpreter answers; variables are there.
    Kept,
    /// The interpreter died of the abort; variables are what they were before the aborted run.
    RolledBack,
    /// The interpreter runs again; variables are gone, and nothing of the aborted code runs any more.
    StateLost,
}

/// One run.
#[derive(Debug, Clone, Default)]
pub struct RunRequest {
    /// The source.
    pub code: String,
    /// Environment variables of this run only.
    pub envs: BTreeMap<String, Secret>,
    /// Its clocks.
    pub deadlines: Deadlines,
}

impl RunRequest {
    /// Code with the default deadlines.
    pub fn new(code: impl Into<String>) -> Self {
        Self { code: code.into(), ..Self::default() }
    }
}

/// A handle to one code context. Clones share its queue.
///
/// ```no_run
/// # use pathbox::e2b::*;
/// # async fn example(client: E2bClient, access: SandboxAccess) -> Result<(), E2bError> {
/// let python = client.interpreter(&access, Target::Language("python".into()));
/// let mut run = python.run(&RunRequest::new("while True: pass")).await?;
/// while let Ok(Some(event)) = run.next().await {
///     println!("{event:?}");
/// }
/// // Timed out: bring the context back, and learn whether its variables are still there.
/// assert_eq!(run.settle().await?, Settled::Kept);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Interpreter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: E2bClient,
    access: SandboxAccess,
    target: Target,
    kernel: Kernel,
    state: Arc<Mutex<State>>,
}

/// What the next run has to know. Owned by the call that holds the turn.
#[derive(Debug, Default)]
struct State {
    /// A run was cut off, and the context has not been probed since.
    aborted_at: Option<Instant>,
    /// Variables of a run are still set in the kernel.
    envs_set: bool,
    /// What to put back after the kernel died.
    setup: Setup,
    /// The kernel is new and has not been set up.
    needs_setup: bool,
    /// Reported to the next run.
    state_lost: bool,
    /// What the run that was cut off said afterwards, as the probe heard.
    last_words: Option<String>,
}

impl E2bClient {
    /// A handle to one code context of a sandbox. Keep it for as long as the sandbox: it is the queue.
    pub fn interpreter(&self, access: &SandboxAccess, target: Target) -> Interpreter {
        let language = match &target {
            Target::Language(language) | Target::Context { language, .. } => language,
        };
        let kernel = Kernel::of(language);
        let inner =
            Inner { client: self.clone(), access: access.clone(), target, kernel, state: Arc::default() };
        Interpreter { inner: Arc::new(inner) }
    }

    /// Makes a code context: a kernel of its own. Takes seconds at the hosted server.
    ///
    /// # Errors
    /// [`E2bError::UnknownLanguage`]; a working directory that does not exist is not an error there.
    pub async fn create_code_context(
        &self,
        access: &SandboxAccess,
        create: &CreateContext,
    ) -> Result<CodeContext, E2bError> {
        let body = serde_json::to_vec(create).map_err(|error| E2bError::protocol("a request", error))?;
        self.contexts(access, Method::POST, "/contexts", Some(body)).await?.json("a code context")
    }

    /// All code contexts, the default ones first.
    ///
    /// # Errors
    /// Those of any request to a sandbox.
    pub async fn list_code_contexts(&self, access: &SandboxAccess) -> Result<Vec<CodeContext>, E2bError> {
        self.contexts(access, Method::GET, "/contexts", None).await?.json("a list of code contexts")
    }

    /// Starts the kernel of a context again: variables, working directory and environment are gone.
    ///
    /// # Errors
    /// [`E2bError::NotFound`] for the context.
    pub async fn restart_code_context(&self, access: &SandboxAccess, id: &str) -> Result<(), E2bError> {
        let path = format!("/contexts/{}/restart", context_id(id)?);
        self.contexts(access, Method::POST, &path, None).await.map(drop)
    }

    /// Ends a context; `false` when there was none.
    ///
    /// # Errors
    /// Those of any request to a sandbox.
    pub async fn remove_code_context(&self, access: &SandboxAccess, id: &str) -> Result<bool, E2bError> {
        match self.contexts(access, Method::DELETE, &format!("/contexts/{}", context_id(id)?), None).await {
            Ok(_) => Ok(true),
            Err(E2bError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Stops what other clients may have left running in a sandbox: cells in its code contexts, and commands of
    /// [`Shell`](super::Shell)s. What is idle is left alone. Gives how many were stopped; interpreters end their cells
    /// in a moment, before the next cell.
    ///
    /// # Errors
    /// Those of any request to a sandbox.
    pub async fn stop_runs(&self, access: &SandboxAccess) -> Result<usize, E2bError> {
        let mut stopped = 0;
        for CodeContext { id, language, .. } in self.list_code_contexts(access).await? {
            let target = Target::Context { id, language };
            stopped += usize::from(self.interpreter(access, target).interrupt().await?);
        }
        if !self.endpoint.is_one_address() {
            stopped += self.processes(access).kill_shells().await?;
        }
        Ok(stopped)
    }

    async fn contexts(
        &self,
        access: &SandboxAccess,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<super::send::Answer, E2bError> {
        let mut request = self.data(method, access, INTERPRETER_PORT, path)?;
        if let Some(body) = body {
            request = request.header(reqwest::header::CONTENT_TYPE, "application/json").body(body);
        }
        let options = self.options();
        let (limit, within) = (options.max_answer_bytes, options.request_timeout);
        self.data_once(request, access, INTERPRETER_PORT, Subject::CodeContext, limit, within).await
    }
}

/// A context id goes into a path.
fn context_id(id: &str) -> Result<&str, E2bError> {
    let problem = || E2bError::Setting { what: "code context id", problem: "is none".to_owned() };
    check_id(&SandboxId::parse(id).map_err(|_| problem())?).map_err(|_| problem())?;
    Ok(id)
}

impl Interpreter {
    /// Takes the turn on the context, settles what an earlier abort left, and sends the code.
    ///
    /// The turn is kept until the run has ended or dropped; others wait in order of arrival. Waiting does not count for the
    /// deadlines. A warm run is one request, with [`RunRequest::envs`] three.
    ///
    /// # Errors
    /// Those of [`E2bClient::execute`]. The code was not sent when settling failed.
    pub async fn run(&self, request: &RunRequest) -> Result<Run, E2bError> {
        let mut state = Arc::clone(&self.inner.state).lock_owned().await;
        self.settle_if_aborted(&mut state).await?;
        if state.needs_setup {
            self.apply_setup(&mut state).await?;
        }
        let state_lost = std::mem::take(&mut state.state_lost);
        if !request.envs.is_empty() {
            let cell = self.inner.kernel.set_envs(&request.envs)?;
            // From here on the variables may be in the kernel, whatever the answer is.
            state.envs_set = true;
            state.aborted_at = Some(Instant::now());
            self.cell(&mut state, &cell, "setting environment variables", Duration::from_secs(10)).await?;
        }
        state.aborted_at = Some(Instant::now());
        let sent = self.execute(&request.code, request.deadlines).await;
        let execution = match sent {
            Ok(execution) => execution,
            Err(error) => {
                if !error.may_have_run() {
                    state.aborted_at = None;
                }
                return Err(error);
            }
        };
        Ok(Run {
            interpreter: self.clone(),
            execution: Some(execution),
            state,
            state_lost,
            rolled_back: false,
            loss_reported: false,
        })
    }

    /// Puts a working directory and environment variables into the context now, and again whenever its kernel died.
    ///
    /// # Errors
    /// [`E2bError::Command`] when the directory does not exist.
    pub async fn set_up(&self, setup: Setup) -> Result<(), E2bError> {
        let mut state = Arc::clone(&self.inner.state).lock_owned().await;
        self.settle_if_aborted(&mut state).await?;
        state.setup = setup;
        self.apply_setup(&mut state).await
    }

    /// Makes the context fit for the next run now, if a run before was cut off, and returns what is left of its state.
    ///
    /// # Errors
    /// When the context cannot be brought back; the sandbox is better replaced then.
    pub async fn settle(&self) -> Result<Settled, E2bError> {
        let mut state = Arc::clone(&self.inner.state).lock_owned().await;
        self.settle_if_aborted(&mut state).await?;
        Ok(if std::mem::take(&mut state.state_lost) { Settled::StateLost } else { Settled::Kept })
    }

    /// What the run that was cut off last printed once it was interrupted, and where that was. A host of our kind reports it.
    pub async fn take_last_words(&self) -> Option<String> {
        self.inner.state.lock().await.last_words.take()
    }

    /// Tells what is in the context already, so that it can be put back.
    pub async fn remember(&self, setup: Setup) {
        self.inner.state.lock().await.setup = setup;
    }

    async fn apply_setup(&self, state: &mut State) -> Result<(), E2bError> {
        if let Some(cell) = self.inner.kernel.set_up(&state.setup)? {
            self.cell(state, &cell, "setting up the interpreter", RESTART_START).await?;
        }
        state.needs_setup = false;
        Ok(())
    }

    /// Runs a cell of ours that must succeed. Its output is dropped.
    async fn cell(
        &self,
        state: &mut State,
        code: &str,
        what: &'static str,
        within: Duration,
    ) -> Result<Probe, E2bError> {
        state.aborted_at = Some(Instant::now());
        let deadlines =
            Deadlines { start: within, overall: within + Duration::from_secs(5), ..Deadlines::default() };
        let mut execution = self.execute(code, deadlines).await?;
        let mut probe = Probe::default();
        let mut failure = None;
        while let Some(event) = execution.next().await? {
            match event {
                // The first cell of a kernel: the one before is gone.
                Event::NumberOfExecutions { execution_count: 1 } => probe.is_first = true,
                Event::PathboxState { state, .. } => probe.rolled_back = state == kernel_state::ROLLED_BACK,
                Event::Stderr(output) if output.text.starts_with(AFTER_INTERRUPT) => {
                    state.last_words = Some(output.text);
                }
                Event::Error(error) => {
                    probe.restarted |= error.name == platform_error::CONTEXT_RESTARTING;
                    // The message may repeat what was set, so only the kind of failure is reported.
                    failure = Some(
                        error.name.chars().filter(char::is_ascii_alphanumeric).take(40).collect::<String>(),
                    );
                }
                _ => {}
            }
        }
        state.aborted_at = None;
        match failure {
            Some(_) if probe.restarted => Ok(probe),
            Some(kind) => {
                let message = ProviderText::from_kind(&kind);
                Err(E2bError::Command { what, exit_code: 1, message })
            }
            None => Ok(probe),
        }
    }

    async fn execute(&self, code: &str, deadlines: Deadlines) -> Result<Execution, E2bError> {
        let inner = &self.inner;
        let request = match &inner.target {
            Target::Language(language) => ExecuteRequest::in_language(code, language),
            Target::Context { id, .. } => ExecuteRequest::in_context(code, id),
        };
        inner.client.execute(&inner.access, &request, deadlines).await
    }

    async fn settle_if_aborted(&self, state: &mut State) -> Result<(), E2bError> {
        if state.aborted_at.is_some() || state.envs_set {
            self.settle_now(state).await?;
        }
        Ok(())
    }

    /// Abort, settle, probe, restart: see the head of this file.
    #[tracing::instrument(name = "e2b.settle", skip_all)]
    async fn settle_now(&self, state: &mut State) -> Result<Settled, E2bError> {
        state.last_words = None;
        for attempt in 0..2 {
            if let Some(at) = state.aborted_at {
                tokio::time::sleep_until(at + LEAVE_ALONE).await;
            }
            // A host of our kind itself ends an interpreter that does not listen, later on a busy machine.
            let start =
                if self.inner.client.endpoint.is_one_address() { HOST_PROBE_START } else { PROBE_START };
            match self.probe(state, start).await {
                Ok(probe) => {
                    let settled = if probe.restarted || probe.is_first || self.loses_state_on_interrupt() {
                        Settled::StateLost
                    } else if probe.rolled_back {
                        Settled::RolledBack
                    } else {
                        Settled::Kept
                    };
                    return Ok(self.settled(state, settled));
                }
                Err(error) if error.clock().is_none() && !matches!(error, E2bError::Incomplete { .. }) => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(kind = error.kind(), attempt, "an aborted code context does not answer");
                }
            }
            // The earlier code still runs: it caught the interrupt. A second one often does.
            if attempt == 0 && self.kernel_is_busy().await == Some(true) {
                self.interrupt_kernel().await;
            }
        }
        self.restart(state).await?;
        Ok(self.settled(state, Settled::StateLost))
    }

    /// The hosted JavaScript kernel answers an interrupt by starting its session again, and counts on. A host of our kind,
    /// known by its one address for everything, keeps it.
    fn loses_state_on_interrupt(&self) -> bool {
        self.inner.kernel == Kernel::Javascript && !self.inner.client.endpoint.is_one_address()
    }

    fn settled(&self, state: &mut State, settled: Settled) -> Settled {
        state.aborted_at = None;
        state.envs_set = false;
        if settled == Settled::StateLost {
            state.state_lost = true;
            state.needs_setup = state.setup != Setup::default();
        }
        settled
    }

    async fn probe(&self, state: &mut State, within: Duration) -> Result<Probe, E2bError> {
        let cell = if state.envs_set { self.inner.kernel.unset_envs() } else { self.inner.kernel.nothing() };
        self.cell(state, cell, "probing the interpreter", within).await
    }

    async fn restart(&self, state: &mut State) -> Result<(), E2bError> {
        let id = self.context_id().await?.ok_or_else(|| E2bError::NotFound {
            what: Subject::CodeContext,
            message: ProviderText::default(),
        })?;
        let inner = &self.inner;
        tracing::warn!("restarting a code context that does not answer");
        inner.client.restart_code_context(&inner.access, &id).await?;
        state.envs_set = false;
        self.probe(state, RESTART_START).await.map(drop)
    }

    /// The context's id; for a default context the first of its language.
    async fn context_id(&self) -> Result<Option<String>, E2bError> {
        let inner = &self.inner;
        match &inner.target {
            Target::Context { id, .. } => Ok(Some(id.clone())),
            Target::Language(language) => {
                let contexts = inner.client.list_code_contexts(&inner.access).await?;
                let same = |context: &CodeContext| context.language.eq_ignore_ascii_case(language);
                Ok(contexts.into_iter().find(same).map(|context| context.id))
            }
        }
    }

    /// Jupyter's state of the kernel, where it can be asked at all.
    async fn kernel_is_busy(&self) -> Option<bool> {
        #[derive(Deserialize)]
        struct KernelModel {
            execution_state: String,
        }
        let answer = self.jupyter(Method::GET, "").await?;
        let model: KernelModel = answer.json("a kernel").ok()?;
        Some(model.execution_state == "busy")
    }

    /// Interrupts what runs in the context, no matter who began it. `false`: nothing did, or it cannot be known.
    async fn interrupt(&self) -> Result<bool, E2bError> {
        let inner = &self.inner;
        if inner.client.endpoint.is_one_address() {
            let Some(id) = self.context_id().await? else { return Ok(false) };
            let path = format!("/contexts/{}/interrupt", context_id(&id)?);
            let answer = inner.client.contexts(&inner.access, Method::POST, &path, None).await?;
            return answer.json("whether something was interrupted");
        }
        let busy = self.kernel_is_busy().await == Some(true);
        if busy {
            self.interrupt_kernel().await;
        }
        Ok(busy)
    }

    async fn interrupt_kernel(&self) {
        let _ = self.jupyter(Method::POST, "/interrupt").await;
    }

    async fn jupyter(&self, method: Method, action: &str) -> Option<super::send::Answer> {
        let id = self.context_id().await.ok()??;
        let inner = &self.inner;
        let path = format!("/api/kernels/{}{action}", context_id(&id).ok()?);
        let request = inner.client.data(method, &inner.access, JUPYTER_PORT, &path).ok()?;
        let within = Duration::from_secs(3);
        let sent = inner.client.data_once(
            request,
            &inner.access,
            JUPYTER_PORT,
            Subject::CodeContext,
            64 << 10,
            within,
        );
        sent.await.ok()
    }
}

/// What a cell of ours found.
#[derive(Debug, Default)]
struct Probe {
    /// The kernel died under it.
    restarted: bool,
    /// No other cell ran in this kernel.
    is_first: bool,
    /// The host went back to the state before the last cell.
    rolled_back: bool,
}

/// A run in progress. Dropping it interrupts the code and leaves the settling to the next run.
#[derive(Debug)]
pub struct Run {
    interpreter: Interpreter,
    /// `None` once it has ended.
    execution: Option<Execution>,
    state: OwnedMutexGuard<State>,
    state_lost: bool,
    /// What the host said last of the variables.
    rolled_back: bool,
    /// Whether lost output was reported.
    loss_reported: bool,
}

impl Run {
    /// Whether the context lost its variables since the run before: its kernel died or had to be restarted.
    pub fn state_was_lost(&self) -> bool {
        self.state_lost
    }

    /// The next event; `None` at the end. Tracebacks have their line breaks back, and the server's own noise is left out.
    ///
    /// # Errors
    /// Those of [`Execution::next`], and [`E2bError::Interrupted`] when the platform lost the kernel in mid-run. The code
    /// is interrupted then; call [`Run::settle`], or drop the run and the next one settles.
    pub async fn next(&mut self) -> Result<Option<Event>, E2bError> {
        loop {
            let Some(execution) = &mut self.execution else { return Ok(None) };
            match execution.next().await {
                Ok(Some(Event::Error(error)))
                    if error.is_platforms(platform_error::WEB_SOCKET)
                        || error.is_platforms(platform_error::UNEXPECTED_END) =>
                {
                    self.execution = None;
                    self.state.aborted_at = Some(Instant::now());
                    return Err(E2bError::Interrupted);
                }
                Ok(Some(Event::Error(mut error))) => {
                    if error.is_platforms(platform_error::CONTEXT_RESTARTING) && !self.rolled_back {
                        self.lose_state();
                    }
                    error.traceback = traceback::rebuild(&error.traceback, &error.name, &error.value);
                    return Ok(Some(Event::Error(error)));
                }
                Ok(Some(Event::Stderr(output))) if cells::is_noise(&output.text) => {
                    if !std::mem::replace(&mut self.loss_reported, true) {
                        let text = cells::OUTPUT_LOST.to_owned();
                        return Ok(Some(Event::Stderr(Output { text, ..output })));
                    }
                }
                Ok(Some(Event::PathboxState { state, status })) => {
                    self.rolled_back = state == kernel_state::ROLLED_BACK;
                    if state == kernel_state::LOST {
                        self.lose_state();
                    }
                    return Ok(Some(Event::PathboxState { state, status }));
                }
                Ok(Some(event)) => return Ok(Some(event)),
                Ok(None) => {
                    self.execution = None;
                    self.state.aborted_at = None;
                    if self.state.envs_set {
                        let interpreter = self.interpreter.clone();
                        // The run itself has ended well. What could not be taken back now is, before the next run.
                        if let Err(error) = interpreter.settle_now(&mut self.state).await {
                            tracing::warn!(
                                kind = error.kind(),
                                "variables of a run could not be removed yet"
                            );
                        }
                    }
                    return Ok(None);
                }
                Err(error) => {
                    self.execution = None;
                    self.state.aborted_at = Some(Instant::now());
                    return Err(error);
                }
            }
        }
    }

    fn lose_state(&mut self) {
        self.state.state_lost = true;
        self.state.envs_set = false;
        self.state.needs_setup = self.state.setup != Setup::default();
    }

    /// Ends the run now if it has not ended, and makes the context fit for the next one.
    ///
    /// Takes about 0.6 s when the code was interrupted, a few seconds when the kernel had to be restarted, and no time when
    /// the run had come to its end.
    ///
    /// # Errors
    /// When the context cannot be brought back; the sandbox is better replaced then.
    pub async fn settle(mut self) -> Result<Settled, E2bError> {
        if self.execution.take().is_some() {
            self.state.aborted_at = Some(Instant::now());
        }
        if self.state.aborted_at.is_none() && !self.state.envs_set {
            return Ok(match (self.state.state_lost, self.rolled_back) {
                (true, _) => Settled::StateLost,
                (false, true) => Settled::RolledBack,
                (false, false) => Settled::Kept,
            });
        }
        let interpreter = self.interpreter.clone();
        let mut settled = interpreter.settle_now(&mut self.state).await?;
        if settled == Settled::Kept && self.rolled_back {
            settled = Settled::RolledBack;
        }
        // The caller knows it now; the next run need not report it again.
        self.state.state_lost = false;
        Ok(settled)
    }

    /// Whether the interpreter took the code.
    pub fn started(&self) -> bool {
        self.execution.as_ref().is_some_and(Execution::started)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.execution.is_some() {
            self.state.aborted_at = Some(Instant::now());
        }
    }
}
