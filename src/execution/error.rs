//! Why a run did not happen, or did not come to a result. A user's program that fails is not in here.

use crate::domain::usage::decimal;
use crate::domain::{ContextKey, ErrorCode, ExecutionId, KeptError, QuotaKind, QuotaReached};
use crate::e2b::E2bError;
use crate::objects::ObjectError;
use crate::store::{DatabaseState, LimitReached, StoreError};

use super::paths::ClosedPath;

/// What the tool could not do.
#[derive(Debug, thiserror::Error)]
pub enum ExecutionError {
    /// The tenant or the conversation holds as many contexts as it may.
    #[error("the {} limit of {} live contexts is reached", .0.scope, .0.limit)]
    Limit(LimitReached),
    /// The tenant has used and reserved as much as it may in this period.
    #[error("the tenant's quota of {} is used up: {}", .0.kind.words(), amounts(.0))]
    Quota(QuotaReached),
    /// The path is merged, archived or deleted.
    #[error("the path is {0}")]
    PathClosed(ClosedPath),
    /// No such template, or the tenant may not name it.
    #[error("the template {name:?} is not allowed here")]
    UnknownTemplate {
        /// What was asked for.
        name: String,
        /// What may be named.
        allowed: Vec<String>,
    },
    /// The context has a sandbox of another template.
    #[error("the context's sandbox was made from the template {has:?}, not {asked:?}")]
    TemplateConflict {
        /// What was asked for.
        asked: String,
        /// What there is.
        has: String,
    },
    /// A placeholder in the code cannot become the value that it replaced.
    #[error("the placeholder {placeholder} in line {line} of the code cannot be resolved: {why}")]
    Unresolved {
        /// Without its brackets.
        placeholder: String,
        /// Where it stands first, from 1.
        line: usize,
        /// Why not.
        why: String,
    },
    /// The idempotency key was used with other arguments.
    #[error("this idempotency key was used with other arguments (execution {0})")]
    KeyConflict(ExecutionId),
    /// The run under this idempotency key was cut off.
    #[error("the run under this idempotency key was interrupted (execution {0})")]
    Interrupted(ExecutionId),
    /// The run's turn did not come in time.
    #[error("the context is busy: position {position} after {waited_ms} ms")]
    QueueTimeout {
        /// Where the run stood.
        position: u32,
        /// How long it waited.
        waited_ms: u64,
    },
    /// The caller cancelled before the run began.
    #[error("cancelled before the run began")]
    Cancelled,
    /// The server ended before the run began.
    #[error("the server ended before the run began")]
    ShuttingDown,
    /// The store does not answer yet; the start is tried again in the background.
    #[error("the server has not started: {0}")]
    NotStarted(String),
    /// There is no sandbox provider that could work here.
    #[error("no sandbox provider: {0}")]
    NoProvider(String),
    /// The provider did not make a sandbox.
    #[error("a sandbox could not be made")]
    Create(#[source] E2bError),
    /// The provider failed in a run, and nothing was run.
    #[error("the sandbox failed before the code ran")]
    Sandbox(#[source] E2bError),
    /// The sandbox was replaced again and again.
    #[error("the sandbox was lost {0} times in a row")]
    LostAgain(u32),
    /// The database.
    #[error("{}", .0.state().map_or("the context store failed", crate::store::DatabaseState::words))]
    Store(#[from] StoreError),
    /// A kept output, picture or file could not be read or kept.
    #[error("a kept output cannot be read")]
    Objects(#[source] crate::objects::ObjectError),
    /// What was recorded of a run cannot be read: a newer version wrote it, or someone changed it.
    #[error(transparent)]
    Kept(#[from] KeptError),
    /// The handle is not one of ours, or not this tenant's.
    #[error("unknown context handle")]
    UnknownHandle,
    /// The tenant has no such run.
    #[error("unknown execution {0}")]
    UnknownExecution(ExecutionId),
    /// The tenant has no such output or picture, or it is no longer kept.
    #[error("unknown artifact {0:?}")]
    UnknownArtifact(String),
    /// What is recorded as kept is not there.
    #[error("{0} is not available here")]
    NotHere(String),
    /// It is not a token of this context, or was altered, or its key is gone.
    #[error("not a token of this context")]
    UnknownToken,
    /// What was asked for of a file cannot be had.
    #[error("{0}")]
    File(super::files::FileProblem),
    /// A policy withholds the result.
    #[error("the egress policy withholds this result")]
    Blocked,
    /// A bug here.
    #[error("internal fault: {0}")]
    Internal(String),
}

impl ExecutionError {
    /// What became of a run whose task is gone. A panic's own words stay here: they may quote what was at hand.
    pub(super) fn of_task(error: &tokio::task::JoinError) -> Self {
        let what = if error.is_panic() { "the run's task panicked" } else { "the run's task was dropped" };
        Self::Internal(what.to_owned())
    }

    /// Why an object cannot be read whose name is recorded.
    pub(super) fn of_object(name: &str, error: ObjectError) -> Self {
        match error {
            ObjectError::Missing => Self::NotHere(name.to_owned()),
            error => Self::Objects(error),
        }
    }

    /// The stable code of `docs/errors.md`.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Limit(_) => ErrorCode::LimitReached,
            Self::Quota(_) => ErrorCode::QuotaReached,
            Self::PathClosed(_) => ErrorCode::PathClosed,
            Self::UnknownTemplate { .. } => ErrorCode::InvalidArgument,
            Self::TemplateConflict { .. } => ErrorCode::TemplateConflict,
            Self::Unresolved { .. } => ErrorCode::PlaceholderUnresolved,
            Self::KeyConflict(_) => ErrorCode::IdempotencyConflict,
            Self::Interrupted(_) => ErrorCode::Interrupted,
            Self::QueueTimeout { .. } => ErrorCode::QueueTimeout,
            Self::Cancelled => ErrorCode::Cancelled,
            Self::ShuttingDown => ErrorCode::ShuttingDown,
            Self::NoProvider(_) | Self::Create(_) => ErrorCode::SandboxUnavailable,
            Self::Sandbox(_) | Self::LostAgain(_) => ErrorCode::SandboxFailed,
            Self::NotStarted(_) => ErrorCode::StoreUnavailable,
            Self::Store(error) => match error.state() {
                Some(DatabaseState::Away) => ErrorCode::StoreUnavailable,
                Some(DatabaseState::Busy | DatabaseState::Slow) => ErrorCode::StoreBusy,
                Some(DatabaseState::ReadOnly) => ErrorCode::StoreReadOnly,
                Some(DatabaseState::Full) => ErrorCode::StoreFull,
                None => ErrorCode::Internal,
            },
            Self::Objects(error) if error.is_retryable() => ErrorCode::StoreUnavailable,
            Self::Objects(_) => ErrorCode::Internal,
            Self::Kept(_) | Self::Internal(_) => ErrorCode::Internal,
            Self::UnknownHandle
            | Self::UnknownExecution(_)
            | Self::UnknownArtifact(_)
            | Self::NotHere(_)
            | Self::UnknownToken => ErrorCode::NotFound,
            Self::File(problem) => problem.code(),
            Self::Blocked => ErrorCode::Blocked,
        }
    }

    /// What the caller should do next, in one or two sentences.
    #[expect(clippy::too_many_lines, reason = "a table: the errors in their order, none left out")]
    pub fn advice(&self) -> String {
        match self {
            Self::Limit(limit) => {
                let holders = limit.holders.iter().map(place).collect::<Vec<_>>().join(", ");
                let frees = match limit.frees_in {
                    Some(left) => format!(" The first of them ends in {} s unless it is used.", left.as_secs()),
                    None => String::new(),
                };
                let others = match (limit.holders.is_empty(), limit.others) {
                    (_, 0) => String::new(),
                    (true, others) => format!("{others} of other callers"),
                    (false, others) => format!(" and {others} of other callers"),
                };
                let end = match limit.holders.is_empty() {
                    true => " Try again then.",
                    false => " End one that is no longer needed, or use one of them.",
                };
                format!("Held by: {holders}{others}.{frees}{end}")
            }
            Self::Quota(quota) => {
                let comes_back = quota.kind != QuotaKind::Executions && quota.used < quota.limit;
                let reserved = match comes_back {
                    true => " Reservations are released when runs end and sandboxes end early; end a context that is no longer needed.",
                    false => "",
                };
                let (period, left) = (quota.period, quota.resets_in.as_secs());
                format!(
                    "Nothing was run. The next {period} begins in {left} s.{reserved} The operator of the server can raise the quota with `pathbox usage quota`."
                )
            }
            Self::PathClosed(closed) => closed.advice(),
            Self::UnknownTemplate { allowed, .. } if allowed.is_empty() => {
                "Leave `template` out. The operator allows templates with `e2b.templates`, or `templates` in a tenant's table."
                    .into()
            }
            Self::UnknownTemplate { allowed, .. } => {
                format!("Use one of {}, or leave `template` out.", allowed.join(", "))
            }
            Self::TemplateConflict { .. } => {
                "Nothing was run. Leave `template` out to work in this sandbox; run on another path; or end the context with \
                 `manage_context` (its variables and files are then gone) and name the template again."
                    .into()
            }
            Self::Unresolved { .. } => {
                "Nothing was run. Put it into a plain string literal of its own, print the value again so that it is kept, or let the code read the value from its source."
                    .into()
            }
            Self::KeyConflict(_) => "Use a new idempotency key for other arguments.".into(),
            Self::Interrupted(_) => {
                "The server died in mid-run, so the code may have had effects. Check them first; a new idempotency key runs it again."
                    .into()
            }
            Self::QueueTimeout { .. } => {
                "Another run holds this context. Wait for it, cancel it, or use another path.".into()
            }
            Self::Cancelled => "Nothing was run.".into(),
            Self::ShuttingDown => {
                "Nothing was run. Send the call again, with the same idempotency key if it has one.".into()
            }
            Self::NotStarted(_) => {
                "Nothing was run. The start is tried again every few seconds; `pathbox doctor` on the server says more.".into()
            }
            Self::NoProvider(_) => "Run `pathbox doctor` on the server; it says what is missing.".into(),
            Self::LostAgain(_) => {
                "Nothing was run. Try again in a few seconds; `pathbox doctor` on the server says more.".into()
            }
            Self::Create(error) => {
                let is_answered = matches!(error, E2bError::Command { .. });
                let advice = match error.may_have_run() && !is_answered {
                    // A sandbox that was made all the same is ended by the reconciler.
                    true => "Try again; if it persists, check E2B_DOMAIN, E2B_API_URL and the provider's status.",
                    false => error.advice(),
                };
                format!("Nothing was run. {advice} `pathbox doctor` on the server says more.")
            }
            Self::Sandbox(error) => format!("Nothing was run. {}", error.advice()),
            Self::Store(error) if error.state() == Some(DatabaseState::Full) => {
                "Nothing was run. It is the server's disk, not the sandbox's: keep the context, and ask the operator of the \
                 server to free space."
                    .into()
            }
            Self::Store(error) if error.is_retryable() => "Nothing was run. Try again in a few seconds.".into(),
            Self::Objects(error) if error.is_retryable() => "Try again in a few seconds.".into(),
            Self::Store(_) | Self::Objects(_) | Self::Internal(_) => "This is a fault of the server; its log has the cause.".into(),
            Self::Kept(KeptError::Newer { .. }) => {
                "The record is kept. Ask again, since another replica may have the newer version, or use a newer version of the server."
                    .into()
            }
            Self::Kept(KeptError::Malformed { .. }) => "The server's log has the cause; the record is unchanged.".into(),
            Self::UnknownHandle => "Leave `context` out to use this conversation's own context.".into(),
            Self::UnknownExecution(_) => "Use the `executionId` of a result.".into(),
            Self::UnknownArtifact(_) => "Use a `uri` out of a result's `artifacts`.".into(),
            Self::NotHere(_) => {
                "It was kept on the disk of another replica, or was removed since. With several replicas, the operator has to set `objects.url`, so that each can read what the others keep."
                    .into()
            }
            Self::UnknownToken => "Name the tenant, conversation and path that the token came from.".into(),
            Self::File(problem) => problem.advice().into(),
            Self::Blocked => "Print less: the result contained something that must not leave the sandbox.".into(),
        }
    }
}

fn amounts(quota: &QuotaReached) -> String {
    let show = |amount| match quota.kind {
        QuotaKind::Money => decimal(amount),
        QuotaKind::Executions | QuotaKind::SandboxSeconds => amount.to_string(),
    };
    let (used, reserved, limit) = (show(quota.used), show(quota.reserved), show(quota.limit));
    format!("{used} used and {reserved} reserved of {limit} in this {}", quota.period)
}

fn place(key: &ContextKey) -> String {
    format!("conversation {} path {}", key.conversation, key.path)
}
