//! The use case behind `run_code`: acquire, extend the provider's life if need be, stream through the guard,
//! record. Straight from top to bottom.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::field::Empty;
use tracing::{Instrument, Span, instrument};

use crate::domain::{
    CodeError, CodeRequest, ContextId, ContextKey, EndReason, Ended, ExecutionId, Language, Outcome,
    OutputChunk, SandboxState, StopReason, hex,
};
use crate::e2b::Deadlines;
use crate::guard::{
    Guard, Guarded, Limits as GuardLimits, Numbering, OutcomeGuard, Picture, Report, Sanitized,
};
use crate::store::{
    Acquire, ExecutionRow, ExecutionStatus, FinishedExecution, Idempotency, NewExecution, Placeholders,
};
use crate::telemetry::metrics;
use crate::telemetry::trace::{self, Trace};

use super::acquire::Held;
use super::attempts::{Attempted, Fault, Work};
use super::backlog::Late;
use super::interpret::{Aftermath, Cut, News, Run};
use super::outputs::{Artifact, Spool};
use super::recall::Begun;
use super::{Call, CrashAt, ExecutionError, ExecutionService, Finished, Progress, ProgressSender, Record};
use crate::telemetry::chain;

/// The client's own clock ends so much later than the run's, which is the one that callers are told about.
const CLOSING: Duration = Duration::from_secs(5);

/// What is kept of a run so that the same idempotency key gives the same result.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) outcome: Outcome,
}

/// A run that has been through its sandbox.
pub(super) struct Ran {
    pub(super) outcome: Sanitized<Outcome>,
    pub(super) report: Report,
    pub(super) artifacts: Vec<Artifact>,
    pub(super) state: SandboxState,
    pub(super) state_reason: Option<String>,
    /// When the provider ends the sandbox by itself, if that was moved for this run.
    pub(super) moved_end: Option<DateTime<Utc>>,
}

impl ExecutionService {
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
        self.begin_code(call, request, progress, cancel).finished().await
    }

    /// Begins a run and returns at once.
    pub fn begin_code(
        &self,
        call: Call,
        request: CodeRequest,
        progress: ProgressSender,
        cancel: CancellationToken,
    ) -> Begun {
        self.begin("run_code", call, request, progress, cancel)
    }

    /// [`Self::begin_code`] for any tool that comes down to code; the record names the tool.
    pub(super) fn begin(
        &self,
        tool: &'static str,
        mut call: Call,
        request: CodeRequest,
        progress: ProgressSender,
        cancel: CancellationToken,
    ) -> Begun {
        let service = self.clone();
        let around = tracing::Span::current();
        let (span, trace) = self.open_call(tool, &mut call, request.language);
        let ask = self.ask(tool, &call, &request);
        let (execution, language) = (ask.execution.id, request.language);
        span.record("execution.id", tracing::field::display(execution));
        let handle = self.mint_handle(&call.key, call.principal.as_deref());
        let known = self.0.stoppable.know(execution, &call, cancel.clone());
        let run = async move {
            let _known = known;
            let work = service.run(call, request, ask, progress, cancel);
            let result = trace::within(trace, work).await;
            count(language, &result);
            close_call(&result);
            result
        };
        Begun {
            execution,
            handle,
            language,
            task: self.0.runs.spawn(run.instrument(span).instrument(around)),
        }
    }

    /// Opens the span of a call, in its caller's trace, and notes that trace in the call.
    pub(super) fn open_call(&self, tool: &str, call: &mut Call, language: Language) -> (Span, Trace) {
        let span = tracing::debug_span!(
            "execution.call", otel.kind = "server", tool.name = tool,
            app.tenant.id = %call.key.tenant, app.conversation.id = %call.key.conversation,
            app.path.id = %call.key.path, code.language = %language,
            execution.id = Empty, error.type = Empty, otel.status_code = Empty);
        let trace = Trace::begin(&span, call.trace, self.0.parts.entropy.bytes());
        call.trace = Some(trace);
        (span, trace)
    }

    async fn run(
        &self,
        call: Call,
        request: CodeRequest,
        ask: Acquire,
        progress: ProgressSender,
        cancel: CancellationToken,
    ) -> Result<Finished, ExecutionError> {
        let guard = self.guard_for(&call);
        let work = CodeRun {
            service: self,
            ask: &ask,
            request: &request,
            guard: &guard,
            progress: &progress,
            cancel: &cancel,
        };
        match self.on_sandbox(&ask, request.timeout.get(), &progress, &cancel, work).await? {
            Attempted::Done(held, ran) => self.finish(&call, request.language, &ask, &held, ran).await,
            Attempted::Before(row) => self.replay(&call, &request, *row).await,
        }
    }

    pub(super) fn ask(&self, tool: &str, call: &Call, request: &CodeRequest) -> Acquire {
        let parts = &self.0.parts;
        let arguments = [
            tool,
            request.language.as_str(),
            request.code.as_str(),
            call.key.conversation.as_str(),
            call.key.path.as_str(),
        ];
        Acquire {
            key: call.key.clone(),
            new_context: ContextId::mint(&parts.clock, &parts.entropy),
            owner: parts.owner.clone(),
            execution: NewExecution {
                id: ExecutionId::mint(&parts.clock, &parts.entropy),
                tool: tool.into(),
                language: request.language,
                purpose: request.purpose.as_deref().map(|text| self.guard_for(call).line(text).into_inner()),
                code_sha256: hash(&[request.code.as_str()]),
                principal: call.principal.clone(),
                trace_id: call.trace.map(|trace| trace.to_string()),
                idempotency: call
                    .idempotency_key
                    .clone()
                    .map(|key| Idempotency { key, args_sha256: hash(&arguments) }),
                lease: request.timeout.get() + self.options().margin,
            },
        }
    }

    /// Makes sure that the provider does not end the sandbox before the run's deadline or before the context's own
    /// time to live. Costs no request when it already holds. Gives the new end when it was moved.
    pub(super) async fn extend_life(
        &self,
        held: &Held,
        timeout: Duration,
    ) -> Result<Option<DateTime<Utc>>, Fault> {
        let Some(ends_at) = held.row.sandbox.as_ref().and_then(|sandbox| sandbox.provider_ends_at) else {
            return Ok(None);
        };
        let now = held.now();
        let left = (ends_at - now).to_std().unwrap_or_default();
        if left >= (timeout + self.options().margin).max(self.options().limits.ttl) {
            return Ok(None);
        }
        let life = self.sandbox_life().max(timeout + self.options().margin);
        self.0.parts.crash.at("run.before_extend");
        // The provider may cut it, and says to what.
        let life =
            held.client.set_timeout(&held.access.id, life).await.map_err(|error| Fault::of(held, error))?;
        self.0.parts.crash.at("run.extended");
        Ok(Some(now + life))
    }

    pub(super) async fn finish(
        &self,
        call: &Call,
        language: Language,
        ask: &Acquire,
        held: &Held,
        ran: Ran,
    ) -> Result<Finished, ExecutionError> {
        let record = Record {
            state: ran.state,
            state_reason: ran.state_reason,
            guard: ran.report,
            artifacts: ran.artifacts,
            queued_ms: u64::try_from(held.queued.as_millis()).unwrap_or(u64::MAX),
        };
        metrics::QUEUE_WAIT.record(&[], held.queued);
        metrics::CODE_DURATION.record(&[language.as_str()], ran.outcome.duration);
        for (kind, found) in record.guard.by_kind() {
            metrics::GUARD_FINDINGS.add(&[kind.as_str()], found);
        }
        let outcome = &ran.outcome;
        metrics::GUARD_BYTES.add(&[], outcome.stdout.total_bytes() + outcome.stderr.total_bytes());
        let stored = Stored { record: record.clone(), outcome: Outcome::clone(outcome) };
        let finished = FinishedExecution {
            id: ask.execution.id,
            tenant: ask.key.tenant.clone(),
            context: held.row.id,
            status: match outcome.ended {
                Ended::Completed => ExecutionStatus::Completed,
                Ended::TimedOut => ExecutionStatus::TimedOut,
                Ended::Cancelled => ExecutionStatus::Cancelled,
                Ended::Died => ExecutionStatus::Died,
            },
            exit_code: Some(outcome.exit_code()),
            error: None,
            duration_ms: i64::try_from(outcome.duration.as_millis()).unwrap_or(i64::MAX),
            queued_ms: i64::try_from(record.queued_ms).unwrap_or(i64::MAX),
            output_bytes: i64::try_from(outcome.stdout.total_bytes() + outcome.stderr.total_bytes())
                .unwrap_or(i64::MAX),
            findings: serde_json::to_value(&record.guard).unwrap_or_default(),
            result: serde_json::to_value(&stored).ok(),
            provider_ends_at: ran.moved_end,
            ended_at: None,
            unasked: held.is_unasked.then(|| Box::new(ask.clone())),
        };
        self.0.parts.crash.at("record.before");
        self.remember_use(held, ran.moved_end);
        self.record(finished, ask.execution.idempotency.is_some()).await;
        self.0.parts.crash.at("finish.before_answer");
        Ok(Finished {
            execution: ask.execution.id,
            tool: ask.execution.tool.clone(),
            key: call.key.clone(),
            handle: self.mint_handle(&call.key, call.principal.as_deref()),
            language,
            record,
            outcome: ran.outcome,
            replayed: false,
        })
    }

    /// What the next run should find if the database is away then. A context that the run has lost is not served again.
    fn remember_use(&self, held: &Held, moved_end: Option<DateTime<Utc>>) {
        let mut row = held.row.clone();
        row.read_at = held.now();
        if let (Some(sandbox), Some(_)) = (&mut row.sandbox, moved_end) {
            sandbox.provider_ends_at = moved_end;
        }
        self.0.remembered.used(row);
    }

    /// Writes the run's record. When the database is away the result still goes out, and the record follows when
    /// the database is back.
    async fn record(&self, finished: FinishedExecution, has_key: bool) {
        let ended = Instant::now();
        match self.store().record(&finished, &self.options().limits).await {
            Ok(_) => self.0.parts.crash.at("record.written"),
            Err(error) if error.is_retryable() => {
                tracing::warn!(error = %error, execution.id = %finished.id, "a record waits for the database");
                self.tell_later(Late::Record { finished: Box::new(finished), ended, has_key });
            }
            Err(error) => {
                tracing::error!(error = %chain(&error), execution.id = %finished.id, "a run could not be recorded");
            }
        }
    }

    async fn replay(
        &self,
        call: &Call,
        request: &CodeRequest,
        row: ExecutionRow,
    ) -> Result<Finished, ExecutionError> {
        let stored: Option<Stored> = row.result.and_then(|value| serde_json::from_value(value).ok());
        let Some(Stored { record, outcome }) = stored else {
            return Err(ExecutionError::Internal(format!("execution {} has no recorded result", row.id)));
        };
        let (record, outcome) = self.guard_again(call, record, outcome).await;
        Ok(Finished {
            execution: row.id,
            tool: row.tool,
            key: call.key.clone(),
            handle: self.mint_handle(&call.key, call.principal.as_deref()),
            language: request.language,
            record,
            outcome,
            replayed: true,
        })
    }

    /// A recorded outcome once more through the guard, under today's policy; the record tells of that one.
    pub(super) async fn guard_again(
        &self,
        call: &Call,
        record: Record,
        outcome: Outcome,
    ) -> (Record, Sanitized<Outcome>) {
        let numbering = self.numbering(&call.key).await;
        let (outcome, guard) = self.guard_for(call).recorded(outcome, &record.guard, numbering);
        (Record { guard, ..record }, outcome)
    }

    /// The guard for what comes of a call.
    pub(super) fn guard_for(&self, call: &Call) -> Guard {
        self.0.parts.policies.for_call(&call.key, call.guard.as_ref())
    }

    pub(super) fn guard_limits(&self) -> GuardLimits {
        GuardLimits { max_chars: self.options().output_chars, max_results: self.options().max_results }
    }

    pub(super) async fn numbering(&self, key: &ContextKey) -> Numbering {
        let told = self.store().placeholders(key).await.unwrap_or_else(|error| {
            tracing::warn!(error = %error, "placeholder numbers are the ones last seen");
            Vec::new()
        });
        self.numbering_from(key, told)
    }

    /// The numbering for a run that holds its context. The store gave the numbers together with the turn, and whoever
    /// adds some holds the turn too, so they are the last ones; what this replica has yet to tell is added here.
    pub(super) async fn numbering_of(&self, held: &Held) -> Numbering {
        match &held.numbers {
            Some(told) => self.numbering_from(&held.row.key, told.clone()),
            None => self.numbering(&held.row.key).await,
        }
    }

    fn numbering_from(&self, key: &ContextKey, told: Placeholders) -> Numbering {
        let secret = self.0.parts.handles.placeholder_key(key);
        let rows = self.0.remembered.merge_numbers(key, told);
        Numbering::new(secret, rows).sealing(self.sealer(key))
    }

    pub(super) async fn save_numbering(&self, held: &Held, mut numbering: Numbering) {
        let new = numbering.take_fresh();
        if new.is_empty() {
            return;
        }
        let key = &held.row.key;
        self.0.remembered.add_numbers(key, &new);
        match self.store().save_placeholders(key, &new).await {
            Ok(()) => {}
            Err(error) if error.is_retryable() => {
                self.tell_later(Late::Numbers { key: key.clone(), numbers: new });
            }
            Err(error) => tracing::warn!(error = %error, "placeholder numbers could not be kept"),
        }
    }

    /// Keeps pictures and documents as files, so that each can be read alone.
    fn keep_pictures(&self, id: ExecutionId, outcome: &Sanitized<Outcome>) -> Vec<Artifact> {
        let keep = |picture: Picture| {
            let name = format!("result-{}.{}", picture.result, picture.extension);
            let kept = self.0.parts.outputs.put(id, &name, picture.mime_type, &picture.bytes);
            kept.inspect_err(
                |error| tracing::warn!(error = %error, execution.id = %id, "a picture could not be kept"),
            )
            .ok()
        };
        outcome.pictures().into_iter().filter_map(keep).collect()
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
}

/// One run's output on its way out.
struct Stream<'a> {
    guard: OutcomeGuard,
    stdout: Spool,
    stderr: Spool,
    progress: &'a ProgressSender,
    crash: &'a CrashAt,
}

impl Stream<'_> {
    /// Takes events until the run ends, one way or another.
    async fn pump(
        &mut self,
        held: &Held,
        run: &mut Run,
        deadline: Instant,
        cancel: &CancellationToken,
        shutdown: &CancellationToken,
    ) -> Result<(Ended, Option<Platform>), Fault> {
        loop {
            let next = tokio::select! {
                biased;
                () = cancel.cancelled() => return Ok((Ended::Cancelled, None)),
                () = shutdown.cancelled() => return Ok((Ended::Cancelled, None)),
                () = tokio::time::sleep_until(deadline) => return Ok((Ended::TimedOut, None)),
                next = run.next() => next,
            };
            match next {
                Ok(Some(chunk)) => {
                    self.take(chunk);
                    self.crash.at("run.first_output");
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
            emit(chunk, &mut self.stdout, &mut self.stderr, self.progress);
        }
    }

    /// The end of the output: what was held back goes the same way as the rest.
    fn finish(self, ended: Ended, stops: Vec<StopReason>, duration: Duration) -> (Guarded, [Spool; 2]) {
        let Self { guard, mut stdout, mut stderr, progress, .. } = self;
        let mut guarded = guard.finish(ended, stops, duration);
        for chunk in std::mem::take(&mut guarded.rest) {
            emit(chunk, &mut stdout, &mut stderr, progress);
        }
        (guarded, [stdout, stderr])
    }
}

/// One guarded chunk to its spool and to whoever watches.
fn emit(chunk: Sanitized<OutputChunk>, stdout: &mut Spool, stderr: &mut Spool, progress: &ProgressSender) {
    match &*chunk {
        OutputChunk::Stdout(_) => stdout.push(&chunk),
        OutputChunk::Stderr(_) => stderr.push(&chunk),
        OutputChunk::Result(_) | OutputChunk::Error(_) => return,
    }
    let _ = progress.try_send(Progress::Output(chunk));
}

/// The work of a run: sends the code to the sandbox and guards what comes back.
struct CodeRun<'a> {
    service: &'a ExecutionService,
    ask: &'a Acquire,
    request: &'a CodeRequest,
    guard: &'a Guard,
    progress: &'a ProgressSender,
    cancel: &'a CancellationToken,
}

impl Work for CodeRun<'_> {
    type Done = Ran;

    #[instrument(name = "execution_context.execute_code", skip_all, fields(
        app.tenant.id = %held.row.key.tenant, app.conversation.id = %held.row.key.conversation,
        app.path.id = %held.row.key.path, code.language = %self.request.language,
        context.id = %held.row.id, execution.id = %self.ask.execution.id))]
    async fn on(&self, held: &Held) -> Result<Ran, Fault> {
        let Self { service, ask, request, guard, progress, cancel } = *self;
        service.0.parts.crash.at("run.held");
        let moved_end = service.extend_life(held, request.timeout.get()).await?;
        service.keep_lease(held, ask).await?;
        let id = ask.execution.id;
        let _ = progress.try_send(Progress::Running);
        let began = Instant::now();
        let deadline = began + request.timeout.get();
        let deadlines =
            Deadlines { start: request.timeout.get(), ..Deadlines::overall(request.timeout.get() + CLOSING) };
        let running = tracing::debug_span!("sandbox.run");
        let mut run =
            Run::start(&held.client, &held.access, request.language, request.code.as_str(), deadlines)
                .instrument(running.clone())
                .await
                .map_err(|error| Fault::of(held, error))?;

        service.0.parts.crash.at("run.sent");
        let numbering = service.numbering_of(held).await;
        let mut stream = Stream {
            guard: OutcomeGuard::new(guard, numbering, service.guard_limits()),
            stdout: service.0.parts.outputs.spool(id, "stdout", service.options().output_chars),
            stderr: service.0.parts.outputs.spool(id, "stderr", service.options().output_chars),
            progress,
            crash: &service.0.parts.crash,
        };
        let pumping = stream.pump(held, &mut run, deadline, cancel, &service.0.shutdown);
        let (ended, platform) = pumping.instrument(running).await?;
        service.0.parts.crash.at("run.ended");
        let stops = run.stops().to_vec();
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
        if ended != Ended::Completed && !lost && !service.0.shutdown.is_cancelled() {
            match run.interrupt().await {
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
        service.0.parts.crash.at("run.interrupted");
        if lost {
            // Also when it only does not answer: what was given up in it may run on, so nothing is sent there again.
            state = (SandboxState::Reset, Some(reason_text(EndReason::Lost)));
            if let Err(error) = service.mark_lost(&held.row).await {
                tracing::warn!(error = %error, context.id = %held.row.id, "a lost context could not be closed");
            }
        }
        let ended_error = explain(ended, platform.as_ref(), request.timeout.get());
        if let Some(error) = ended_error {
            stream.take(OutputChunk::Error(error));
        }
        let guarding = tracing::debug_span!("guard.sanitize", guard.findings = Empty, guard.bytes = Empty);
        let (guarded, spools) = guarding.in_scope(|| stream.finish(ended, stops, began.elapsed()));
        if !guarding.is_disabled() {
            let bytes = guarded.outcome.stdout.total_bytes() + guarded.outcome.stderr.total_bytes();
            guarding.record("guard.findings", guarded.report.total()).record("guard.bytes", bytes);
        }
        drop(guarding);
        let Guarded { outcome, report, numbering, .. } = guarded;
        service.0.parts.crash.at("run.before_numbers");
        service.save_numbering(held, numbering).await;
        service.0.parts.crash.at("run.numbers_saved");
        let mut artifacts: Vec<Artifact> = spools.into_iter().filter_map(Spool::finish).collect();
        artifacts.extend(service.keep_pictures(id, &outcome));
        service.0.parts.crash.at("run.artifacts_kept");
        Ok(Ran { outcome, report, artifacts, state: state.0, state_reason: state.1, moved_end })
    }
}

/// What is always true of code that was cut off.
const EFFECTS: &str = "the code may have had effects and is not run again by itself";

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
        EndReason::Rotated => "the context had served its number of runs",
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

/// Tells the span of a call whether it could be done. A program that fails is no error of the call.
pub(super) fn close_call<T>(result: &Result<T, ExecutionError>) {
    if let Err(error) = result {
        Span::current().record("error.type", error.code().as_str()).record("otel.status_code", "ERROR");
    }
}

/// Counts a run that ended, one way or another.
fn count(language: Language, result: &Result<Finished, ExecutionError>) {
    let how = match result {
        Ok(finished) if finished.replayed => return,
        Ok(finished) => match finished.outcome.ended {
            Ended::Completed if !finished.outcome.success() => "failed",
            ended => ended.as_str(),
        },
        Err(error) => {
            metrics::CODE_ERRORS.add(&[error.code().as_str()], 1);
            "refused"
        }
    };
    metrics::CODE_EXECUTIONS.add(&[language.as_str(), how], 1);
}

/// SHA-256 over length-prefixed parts, hex: no two lists of parts give one text.
fn hash(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    hex(&digest.finalize())
}
