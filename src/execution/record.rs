//! What a run and a file operation have in common: how a call is opened and asked for, and how its end is recorded.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tracing::Span;
use tracing::field::Empty;

use crate::domain::{
    CodeRequest, ContextId, ContextKey, Ended, ExecutionId, Kept, Language, Outcome, SandboxState, hex,
    to_kept,
};
use crate::guard::{Report, Sanitized};
use crate::store::{Acquire, ContextLimits, ExecutionStatus, FinishedExecution, Idempotency, NewExecution};
use crate::telemetry::trace::Trace;
use crate::telemetry::{chain, metrics};

use super::acquire::Held;
use super::crash::crash_point;
use super::health::Write;
use super::outputs::Artifact;
use super::write_behind::Deferred;
use super::{Call, Core, ExecutionError, Finished, Record, ToolCall};

/// What is kept of a run so that the same idempotency key gives the same result.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) outcome: Outcome,
}

impl Kept for Stored {
    const WHAT: &'static str = "the record of a run";
    const FORMAT: u64 = 1;
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
    /// The end of this server cut it off: the caller did not ask for that, and the same key must not replay it.
    pub(super) cut_off: bool,
    pub(super) tool_calls: Vec<ToolCall>,
    pub(super) signatures: Vec<String>,
}

impl Core {
    /// Opens the span of a call, in its caller's trace, and notes that trace in the call.
    pub(super) fn open_call(&self, tool: &str, call: &mut Call, language: Language) -> (Span, Trace) {
        let span = tracing::debug_span!(
            "execution.call", otel.kind = "server", tool.name = tool,
            app.tenant.id = %call.key.tenant, app.conversation.id = %call.key.conversation,
            app.path.id = %call.key.path, code.language = %language,
            execution.id = Empty, error.type = Empty, otel.status_code = Empty);
        let trace = Trace::begin(&span, call.trace.take(), self.parts.entropy.bytes());
        call.trace = Some(trace.clone());
        (span, trace)
    }

    pub(super) fn ask(&self, tool: &str, call: &Call, request: &CodeRequest) -> Acquire {
        let parts = &self.parts;
        let [conversation, path] = call.place();
        let arguments = [tool, request.language.as_str(), request.code.as_str(), conversation, path];
        // A call without `data` and `template` has the hash that it always had.
        let mut arguments: Vec<&str> = arguments.into_iter().chain(request.inputs.data.as_deref()).collect();
        if let Some(template) = &request.inputs.template {
            arguments.extend(["template", template]);
        }
        Acquire {
            key: call.key.clone(),
            new_context: ContextId::mint(&parts.clock, &parts.entropy),
            owner: parts.owner.clone(),
            template: request.inputs.template.clone(),
            sees_tenant: call.requester.sees_tenant,
            execution: NewExecution {
                id: ExecutionId::mint(&parts.clock, &parts.entropy),
                tool: tool.into(),
                language: request.language,
                purpose: request.purpose.as_deref().map(|text| self.guard_for(call).line(text).into_inner()),
                code_sha256: hash(&[request.code.as_str()]),
                principal: Some(call.requester.principal.clone()),
                trace_id: call.trace.as_ref().map(ToString::to_string),
                idempotency: call
                    .idempotency_key
                    .clone()
                    .map(|key| Idempotency { key: own_key(call, key), args_sha256: hash(&arguments) }),
                lease: request.timeout.get() + self.options().margin,
            },
        }
    }

    pub(super) async fn finish(
        self: &Arc<Self>,
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
            tool_calls: ran.tool_calls,
            signatures: ran.signatures,
        };
        metrics::QUEUE_WAIT.record(&[], held.queued);
        let outcome = &ran.outcome;
        self.measure(language, ask, outcome, &record);
        let stored = Stored { record: record.clone(), outcome: Outcome::clone(outcome) };
        let finished = FinishedExecution {
            id: ask.execution.id,
            tenant: ask.key.tenant.clone(),
            context: held.row.id,
            status: match outcome.ended {
                Ended::Completed => ExecutionStatus::Completed,
                Ended::TimedOut => ExecutionStatus::TimedOut,
                Ended::Cancelled if ran.cut_off => ExecutionStatus::Interrupted,
                Ended::Cancelled => ExecutionStatus::Cancelled,
                Ended::Died => ExecutionStatus::Died,
            },
            exit_code: Some(outcome.exit_code()),
            error: None,
            duration_ms: i64::try_from(outcome.duration.as_millis()).unwrap_or(i64::MAX),
            queued_ms: i64::try_from(record.queued_ms).unwrap_or(i64::MAX),
            output_bytes: i64::try_from(outcome.stdout.total_bytes() + outcome.stderr.total_bytes())
                .unwrap_or(i64::MAX),
            findings: to_kept(&record.guard),
            result: Some(to_kept(&stored)),
            provider_ends_at: ran.moved_end,
            ended_at: None,
            offline: held.is_offline.then(|| Box::new(ask.clone())),
            asked: (!held.is_offline).then(|| Box::new(ask.clone())),
        };
        crash_point!(self, "record.before");
        self.remember_use(held, ran.moved_end);
        let limits = self.limits_after(&held.row);
        self.record(&ask.key, finished, &limits, ask.execution.idempotency.is_some()).await;
        crash_point!(self, "finish.before_answer");
        Ok(Finished {
            execution: ask.execution.id,
            tool: ask.execution.tool.clone(),
            key: call.key.clone(),
            handle: self.mint_handle(&call.key, &call.requester.principal),
            language,
            record,
            outcome: ran.outcome,
            replayed: false,
        })
    }

    fn measure(&self, language: Language, ask: &Acquire, outcome: &Outcome, record: &Record) {
        let (labels, took) = ([language.as_str()], outcome.duration);
        match &ask.execution.trace_id {
            Some(trace) => {
                metrics::CODE_DURATION.record_in(&labels, took, trace.clone(), self.parts.clock.now());
            }
            None => metrics::CODE_DURATION.record(&labels, took),
        }
        for (kind, found) in record.guard.by_kind() {
            metrics::GUARD_FINDINGS.add(&[kind.as_str()], found);
        }
        metrics::GUARD_BYTES.add(&[], outcome.stdout.total_bytes() + outcome.stderr.total_bytes());
    }

    /// What the next run should find if the database is away then. A context that the run has lost is not served again.
    fn remember_use(&self, held: &Held, moved_end: Option<DateTime<Utc>>) {
        let mut row = held.row.clone();
        row.read_at = held.now();
        if let (Some(sandbox), Some(_)) = (&mut row.sandbox, moved_end) {
            sandbox.provider_ends_at = moved_end;
        }
        self.remembered.used(row);
    }

    /// Writes the run's record. When the database cannot take it now, the result still goes out and the record follows.
    async fn record(
        self: &Arc<Self>,
        key: &ContextKey,
        finished: FinishedExecution,
        limits: &ContextLimits,
        has_key: bool,
    ) {
        let ended = Instant::now();
        match self.room.noted(Write::Record, self.store().record(&finished, limits).await) {
            Ok(_) => crash_point!(self, "record.written"),
            Err(error) if error.is_retryable() => {
                tracing::warn!(error = %error, execution.id = %finished.id, "a record waits for the database");
                let entry = Deferred::Record { finished: Box::new(finished), ended, has_key };
                self.write_later(key, entry);
            }
            Err(error) => {
                tracing::error!(error = %chain(&error), execution.id = %finished.id, "a run could not be recorded");
            }
        }
    }
}

/// Marks the span of a call by whether it could be done. A program that fails is not an error of the call.
pub(super) fn close_call<T>(result: &Result<T, ExecutionError>) {
    if let Err(error) = result {
        Span::current().record("error.type", error.code().as_str()).record("otel.status_code", "ERROR");
    }
}

/// Counts a run that ended, one way or another.
pub(super) fn count(language: Language, result: &Result<Finished, ExecutionError>) {
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

/// The idempotency key of a call, where those of the context's owner are kept. On a context that another shares it is
/// the caller's own still.
pub(super) fn own_key(call: &Call, key: String) -> String {
    match call.requester.sees_tenant || call.requester.owner == call.key.owner {
        true => key,
        false => format!("by {}", hash(&[call.requester.owner.as_str(), &key])),
    }
}
