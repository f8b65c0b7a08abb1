//! The use case behind `run_code`: acquire, extend the provider's life if need be, stream through the guard,
//! record. Straight from top to bottom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::field::Empty;
use tracing::{Instrument, instrument};

use crate::domain::{
    CodeError, CodeRequest, EndReason, Ended, ExecutionId, Outcome, OutputChunk, SandboxState, StopReason,
    from_kept,
};
use crate::e2b::Deadlines;
use crate::guard::{Guard, Guarded, Kept, OutcomeGuard, Sanitized};
use crate::store::{Acquire, ExecutionRow};
use crate::telemetry::trace;

use super::acquire::{Held, Sandboxes};
use super::attempts::{Attempted, Fault, Work};
use super::crash::crash_point;
use super::interpret::{Aftermath, Cut, News, Run};
use super::outputs::{Artifact, Spool};
use super::prelude;
use super::recall::Begun;
use super::record::{Ran, Stored, close_call, count};
use super::stop::Printed;
use super::tools::Prepared;
use super::{Call, Core, ExecutionError, Finished, Progress, ProgressSender, Runs};
use crate::telemetry::chain;

/// How much later the client's own time-out ends than the run's, which is the one that callers see.
const CLOSING: Duration = Duration::from_secs(5);
/// How long an interpreter may take to stop once this server ends.
const LAST_INTERRUPT: Duration = Duration::from_secs(2);

impl Runs {
    /// Runs code on the call's context and returns what it came to.
    ///
    /// The run goes on to its end and is recorded even when the returned future is dropped; `cancel` stops it.
    ///
    /// # Errors
    /// [`ExecutionError`] for what kept the code from running. A program that fails is not an error.
    pub async fn run_code(
        &self,
        call: Call,
        request: CodeRequest,
        progress: ProgressSender,
        cancel: CancellationToken,
    ) -> Result<Finished, ExecutionError> {
        self.begin("run_code", call, request, progress, cancel).finished().await
    }

    /// Begins a run and returns at once. Here a policy may let placeholders in the code become their values.
    pub fn begin_code(
        &self,
        call: Call,
        request: CodeRequest,
        progress: ProgressSender,
        cancel: CancellationToken,
    ) -> Begun {
        self.begin_with("run_code", true, call, request, progress, cancel)
    }

    /// [`Self::begin_code`] for any tool that comes down to code; the record names the tool.
    pub(super) fn begin(
        &self,
        tool: &'static str,
        call: Call,
        request: CodeRequest,
        progress: ProgressSender,
        cancel: CancellationToken,
    ) -> Begun {
        self.begin_with(tool, false, call, request, progress, cancel)
    }

    fn begin_with(
        &self,
        tool: &'static str,
        resolves: bool,
        mut call: Call,
        request: CodeRequest,
        progress: ProgressSender,
        cancel: CancellationToken,
    ) -> Begun {
        let service = self.clone();
        let around = tracing::Span::current();
        let (span, trace) = self.0.open_call(tool, &mut call, request.language);
        let ask = self.0.ask(tool, &call, &request);
        let (execution, language) = (ask.execution.id, request.language);
        span.record("execution.id", tracing::field::display(execution));
        let handle = self.0.mint_handle(&call.key, &call.requester.principal);
        let (known, written, in_flight) = self.0.stoppable.know(execution, &call, cancel.clone());
        let sent = Arc::new(AtomicBool::new(false));
        let was_sent = Arc::clone(&sent);
        let run = async move {
            let _known = known;
            let work = service.run(call, (request, resolves), ask, progress, cancel, &sent);
            let result = trace::within(trace, work).await;
            count(language, &result);
            close_call(&result);
            result
        };
        Begun {
            execution,
            in_flight,
            handle,
            language,
            sent: was_sent,
            written,
            task: self.0.runs.spawn(run.instrument(span).instrument(around)),
        }
    }

    async fn run(
        &self,
        call: Call,
        (request, resolves): (CodeRequest, bool),
        ask: Acquire,
        progress: ProgressSender,
        cancel: CancellationToken,
        sent: &AtomicBool,
    ) -> Result<Finished, ExecutionError> {
        self.0.check_template(&ask)?;
        let guard = self.0.guard_for(&call);
        let sandboxes = Sandboxes(Arc::clone(&self.0));
        let work = CodeRun {
            core: &self.0,
            sandboxes: &sandboxes,
            call: &call,
            ask: &ask,
            request: &request,
            resolves,
            guard: &guard,
            progress: &progress,
            cancel: &cancel,
            sent,
        };
        match sandboxes.on_sandbox(&ask, request.timeout.get(), &progress, &cancel, work).await? {
            Attempted::Done(held, ran) => {
                let finish = self.0.finish(&call, request.language, &ask, &held, ran);
                self.0.settling(&ask, finish).await
            }
            Attempted::Before(row) => self.replay(&call, &request, *row).await,
        }
    }

    async fn replay(
        &self,
        call: &Call,
        request: &CodeRequest,
        row: ExecutionRow,
    ) -> Result<Finished, ExecutionError> {
        let Some(kept) = row.result else {
            return Err(ExecutionError::Internal(format!("execution {} has no recorded result", row.id)));
        };
        let Stored { record, outcome } = from_kept(kept)?;
        let (record, outcome) = self.0.guard_again(call, record, outcome).await;
        Ok(Finished {
            execution: row.id,
            tool: row.tool,
            handle: self.0.mint_handle(&row.key, &call.requester.principal),
            key: row.key,
            language: request.language,
            record,
            outcome,
            replayed: true,
        })
    }
}

/// What the platform, not the program, did to a run that had begun.
enum Platform {
    /// The interpreter said so itself, in an error of its own.
    InterpreterDied,
    /// The interpreter died without a word, in the client's words.
    InterpreterGone(String),
    /// The answer broke off, in the client's words.
    ConnectionBroke(String),
    SandboxLost,
    /// This server ends.
    ShutDown,
    /// This server did not reach the database for as long as its lease lasts: another may run on the context now.
    LeaseOver,
}

/// One run's output on its way out.
struct Stream<'a> {
    guard: OutcomeGuard,
    stdout: Spool,
    stderr: Spool,
    progress: &'a ProgressSender,
    printed: Printed,
    core: &'a Core,
}

impl Stream<'_> {
    /// Takes events until the run ends, one way or another.
    async fn pump(
        &mut self,
        held: &Held,
        ask: &Acquire,
        run: &mut Run,
        deadline: Instant,
        cancel: &CancellationToken,
    ) -> Result<(Ended, Option<Platform>), Fault> {
        let core = self.core;
        let lease_over = core.lease_over(ask);
        tokio::pin!(lease_over);
        loop {
            let next = tokio::select! {
                biased;
                () = cancel.cancelled() => return Ok((Ended::Cancelled, None)),
                () = core.shutdown.cancelled() => return Ok((Ended::Cancelled, Some(Platform::ShutDown))),
                () = &mut lease_over => {
                    tracing::warn!(execution.id = %ask.execution.id, "a run is interrupted: the lease on its context has expired");
                    return Ok((Ended::Cancelled, Some(Platform::LeaseOver)));
                }
                () = tokio::time::sleep_until(deadline) => return Ok((Ended::TimedOut, None)),
                next = run.next() => next,
            };
            match next {
                Ok(Some(chunk)) => {
                    self.take(chunk);
                    crash_point!(self.core, "run.first_output");
                }
                Ok(None) if run.died() => return Ok((Ended::Died, Some(Platform::InterpreterDied))),
                Ok(None) => return Ok((Ended::Completed, None)),
                Err(error) => {
                    let platform = match Cut::by(&error) {
                        Cut::TimedOut => return Ok((Ended::TimedOut, None)),
                        Cut::NotRun => return Err(Fault::of(held, error)),
                        Cut::Interpreter => Platform::InterpreterGone(error.to_string()),
                        Cut::Connection => Platform::ConnectionBroke(error.to_string()),
                        Cut::Sandbox => Platform::SandboxLost,
                    };
                    tracing::warn!(error = %chain(&error), "a run was cut off by its platform");
                    return Ok((Ended::Died, Some(platform)));
                }
            }
        }
    }

    fn take(&mut self, chunk: OutputChunk) {
        for chunk in self.guard.push(chunk) {
            self.printed.push(&chunk);
            emit(chunk, &mut self.stdout, &mut self.stderr, self.progress);
        }
    }

    /// The end of the output: what was held back goes the same way as the rest.
    fn finish(self, ended: Ended, stops: Vec<StopReason>, duration: Duration) -> (Guarded, [Spool; 2]) {
        let Self { guard, mut stdout, mut stderr, progress, .. } = self;
        let span = tracing::debug_span!("guard.sanitize", guard.findings = Empty, guard.bytes = Empty);
        let mut guarded = span.in_scope(|| guard.finish(ended, stops, duration));
        if !span.is_disabled() {
            let bytes = guarded.outcome.stdout.total_bytes() + guarded.outcome.stderr.total_bytes();
            span.record("guard.findings", guarded.report.total()).record("guard.bytes", bytes);
        }
        for chunk in std::mem::take(&mut guarded.rest) {
            emit(chunk, &mut stdout, &mut stderr, progress);
        }
        (guarded, [stdout, stderr])
    }
}

/// Sends one guarded chunk to its spool and to the watchers.
fn emit(chunk: Sanitized<OutputChunk>, stdout: &mut Spool, stderr: &mut Spool, progress: &ProgressSender) {
    match &*chunk {
        OutputChunk::Stdout(_) => stdout.push(&chunk),
        OutputChunk::Stderr(_) => stderr.push(&chunk),
        OutputChunk::Result(_) | OutputChunk::Error(_) => return,
    }
    let _ = progress.try_send(Progress::Output(chunk));
}

/// Keeps as files what a result does not show as text: output that was long or drawn over itself, pictures, files.
async fn keep_artifacts(
    core: &Core,
    id: ExecutionId,
    outcome: &Sanitized<Outcome>,
    spools: impl Iterator<Item = (Spool, bool)>,
) -> Vec<Artifact> {
    let mut artifacts = Vec::new();
    for (mut spool, rewritten) in spools {
        // Of what was drawn over itself the result has what is left; the whole is in the file.
        if rewritten {
            spool.keep();
        }
        artifacts.extend(spool.finish().await);
    }
    for Kept { name, mime_type, bytes } in outcome.attachments(core.options().output_chars) {
        match core.parts.outputs.put(id, &name, &mime_type, &bytes).await {
            Ok(artifact) => artifacts.push(artifact),
            Err(error) => {
                tracing::warn!(error = %chain(&error), execution.id = %id, "a part of a result could not be kept");
            }
        }
    }
    artifacts
}

/// The work of a run: sends the code to the sandbox and guards what comes back.
struct CodeRun<'a> {
    core: &'a Arc<Core>,
    sandboxes: &'a Sandboxes,
    call: &'a Call,
    ask: &'a Acquire,
    request: &'a CodeRequest,
    /// Whether placeholders in the code may become their values.
    resolves: bool,
    guard: &'a Guard,
    progress: &'a ProgressSender,
    cancel: &'a CancellationToken,
    /// Whether the code has been sent.
    sent: &'a AtomicBool,
}

impl Work for CodeRun<'_> {
    type Done = Ran;

    #[instrument(name = "execution_context.execute_code", skip_all, fields(
        app.tenant.id = %held.row.key.tenant, app.conversation.id = %held.row.key.conversation,
        app.path.id = %held.row.key.path, code.language = %self.request.language,
        context.id = %held.row.id, execution.id = %self.ask.execution.id))]
    #[expect(
        clippy::too_many_lines,
        reason = "one run from its first step to its last, in the order of the crash points"
    )]
    async fn on(&self, held: &Held) -> Result<Ran, Fault> {
        let Self { core, sandboxes, call, ask, request, resolves, guard, progress, cancel, sent } = *self;
        crash_point!(core, "run.held");
        let moved_end = sandboxes.extend_life(held, request.timeout.get()).await?;
        sandboxes.keep_lease(held, ask).await?;
        let id = ask.execution.id;
        let _ = progress.try_send(Progress::Running);
        let deadlines =
            Deadlines { start: request.timeout.get(), ..Deadlines::overall(request.timeout.get() + CLOSING) };
        let numbering = core.numbering_of(held, guard).await;
        let resolved = match resolves {
            true => core.resolve(held, request, guard, &numbering).await?,
            false => None,
        };
        let (code, guard) = match &resolved {
            Some(resolved) => (resolved.code.as_str(), &resolved.guard),
            None => (request.code.as_str(), guard),
        };
        let Prepared { run: tools, signatures } =
            core.prepare_tools(held, call, request, id, guard, cancel).await?;
        prelude::bind(held, request, id, tools.as_ref(), deadlines).await?;
        sent.store(true, Ordering::Relaxed);
        let began = Instant::now();
        let deadline = began + request.timeout.get();
        let running = tracing::debug_span!("sandbox.run");
        let mut run = Run::start(&held.client, &held.access, request.language, code, deadlines)
            .instrument(running.clone())
            .await
            .map_err(|error| Fault::of(held, error))?;

        crash_point!(core, "run.sent");
        let mut stream = Stream {
            guard: OutcomeGuard::new(guard, numbering, core.guard_limits()),
            stdout: core.parts.outputs.spool(id, "stdout", core.options().output_chars),
            stderr: core.parts.outputs.spool(id, "stderr", core.options().output_chars),
            progress,
            printed: core.stoppable.printed(id),
            core,
        };
        let pumping = stream.pump(held, ask, &mut run, deadline, cancel);
        let (ended, platform) = pumping.instrument(running).await?;
        crash_point!(core, "run.ended");
        let tool_calls = match tools {
            Some(tools) => tools.finish().await,
            None => Vec::new(),
        };
        let stops = run.stops().to_vec();
        let state = state_after(core, held, &mut run, ended, platform.as_ref()).await;
        if let Some(words) = run.take_last_words() {
            stream.take(OutputChunk::Stderr(words));
        }
        if let Some(error) = explain(ended, platform.as_ref(), request.timeout.get()) {
            stream.take(OutputChunk::Error(error));
        }
        let (guarded, spools) = stream.finish(ended, stops, began.elapsed());
        let Guarded { outcome, report, numbering, rewritten, .. } = guarded;
        crash_point!(core, "run.before_numbers");
        core.save_numbering(held, numbering).await;
        crash_point!(core, "run.numbers_saved");
        let artifacts = keep_artifacts(core, id, &outcome, spools.into_iter().zip(rewritten)).await;
        crash_point!(core, "run.artifacts_kept");
        let cut_off = matches!(platform, Some(Platform::ShutDown | Platform::LeaseOver));
        Ok(Ran {
            outcome,
            report,
            artifacts,
            state: state.0,
            state_reason: state.1,
            moved_end,
            cut_off,
            tool_calls,
            signatures,
        })
    }
}

/// What a run leaves of its context's state. One that did not come to its end by itself is stopped first, and a sandbox
/// that does not answer then is given up.
async fn state_after(
    core: &Core,
    held: &Held,
    run: &mut Run,
    ended: Ended,
    platform: Option<&Platform>,
) -> (SandboxState, Option<String>) {
    let mut state = (held.state, held.reason.map(reason_text));
    match run.news() {
        Some(News::RolledBack) if !run.died() => {
            let reason = "the interpreter ended in the run before; variables are those from before that run, files are as it left them";
            state = (SandboxState::RolledBack, Some(reason.into()));
        }
        Some(News::Lost) if !run.died() => {
            state = (SandboxState::Reset, Some(restarted("the interpreter ended and was restarted")));
        }
        _ => {}
    }
    let mut lost = matches!(platform, Some(Platform::SandboxLost));
    if ended != Ended::Completed && !lost {
        match interrupt(run, &core.shutdown).await {
            Aftermath::StateKept => {}
            Aftermath::RolledBack => {
                let what = if ended == Ended::Died { "died" } else { "did not stop and was ended" };
                let reason = format!(
                    "the interpreter {what}; variables are those from before this run, files are as it left them"
                );
                state = (SandboxState::RolledBack, Some(reason));
            }
            Aftermath::StateLost => {
                let why = match ended {
                    Ended::Died => "the interpreter died and was restarted",
                    _ => "the interpreter was restarted",
                };
                state = (SandboxState::Reset, Some(restarted(why)));
            }
            Aftermath::SandboxLost => lost = true,
        }
    }
    crash_point!(core, "run.interrupted");
    if lost {
        // Also when it only does not answer: what was given up in it may run on, so nothing is sent there again.
        state = (SandboxState::Reset, Some(reason_text(EndReason::Lost)));
        if let Err(error) = core.mark_lost(&held.row).await {
            tracing::warn!(error = %error, context.id = %held.row.id, "a lost context could not be closed");
        }
    }
    state
}

/// Stops a run. At the end of this server there is not much time: a sandbox that does not answer in it counts as lost, so
/// that no other replica sends anything where the run may go on.
async fn interrupt(run: &mut Run, shutdown: &CancellationToken) -> Aftermath {
    let stopping = run.interrupt();
    tokio::pin!(stopping);
    tokio::select! {
        biased;
        aftermath = &mut stopping => return aftermath,
        () = shutdown.cancelled() => {}
    }
    tokio::time::timeout(LAST_INTERRUPT, stopping).await.unwrap_or(Aftermath::SandboxLost)
}

/// What is always true of code that was cut off.
const EFFECTS: &str = "the code may have had effects and is not retried automatically";

/// The error that a caller sees for an end that the program itself did not bring about.
fn explain(ended: Ended, platform: Option<&Platform>, timeout: Duration) -> Option<CodeError> {
    let (name, message) = match (ended, platform) {
        (Ended::TimedOut, _) => {
            let text = format!(
                "the run did not end within {} ms (timeout_ms) and was interrupted; use a larger timeout_ms or less work",
                timeout.as_millis()
            );
            ("timeout", text)
        }
        (Ended::Cancelled, Some(Platform::ShutDown)) => {
            ("interrupted", format!("the server shut down while the code ran; {EFFECTS}"))
        }
        (Ended::Cancelled, Some(Platform::LeaseOver)) => (
            "interrupted",
            format!(
                "the server did not reach its database for longer than its lease on the context; {EFFECTS}"
            ),
        ),
        (Ended::Cancelled, _) => ("cancelled", "the caller cancelled the run; it was interrupted".to_owned()),
        (Ended::Died, Some(Platform::SandboxLost)) => {
            ("sandbox_lost", format!("the sandbox was lost while the code ran; {EFFECTS}"))
        }
        (Ended::Died, Some(Platform::InterpreterGone(how))) => {
            ("interpreter_died", format!("the interpreter died while the code ran ({how}); {EFFECTS}"))
        }
        (Ended::Died, Some(Platform::ConnectionBroke(how))) => {
            ("connection_lost", format!("the run was cut off ({how}); {EFFECTS}"))
        }
        _ => return None,
    };
    Some(CodeError { name: name.to_owned(), message, traceback: String::new() })
}

/// Why the sandbox is another one, and what that means.
pub(super) fn reason_text(reason: EndReason) -> String {
    let why = match reason {
        EndReason::Expired => "the context had expired",
        EndReason::Rotated => "the context had reached its maximum number of runs",
        EndReason::Lost => "the sandbox was lost",
        EndReason::Manual => "the context was ended by a caller",
        other => return format!("the context had ended ({other}); {GONE}"),
    };
    format!("{why}; {GONE}")
}

/// What a new sandbox means.
const GONE: &str = "earlier variables and files are gone";

/// What a new interpreter in the same sandbox means.
fn restarted(why: &str) -> String {
    format!("{why}; earlier variables are gone, files are kept")
}
