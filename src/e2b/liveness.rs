//! Is it there, and can it run code? The data plane says "was not found" for a sandbox that was killed, crashed, expired or
//! only paused, so the truth takes a second question.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::{E2bClient, E2bError, SandboxAccess};
use crate::domain::SandboxId;
use crate::wire::control::State;
use crate::wire::{ENVD_PORT, INTERPRETER_PORT};

/// What a sandbox is, distinguished by what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It runs and its interpreter answers.
    Running {
        /// When the provider will end it.
        ends_at: DateTime<Utc>,
    },
    /// It is kept on disk: [`E2bClient::connect`] resumes it.
    Paused,
    /// It is gone for good: make a new one, the state is lost.
    Gone,
    /// The provider says that it runs and its data plane does not know it (yet): try again shortly.
    Unreachable {
        /// When the provider will end it.
        ends_at: DateTime<Utc>,
    },
    /// It runs and no interpreter listens: it is starting, or its template has none; see [`E2bClient::ready`].
    NoInterpreter {
        /// When the provider will end it.
        ends_at: DateTime<Utc>,
    },
}

/// The state of a new sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Its interpreter answers, after this long.
    Ready {
        /// From the first question.
        after: Duration,
    },
    /// Files and processes work and the interpreter's port stayed closed: the template was built without its start command.
    /// Shell commands can be run, code cannot.
    NoInterpreter,
    /// Nothing in it answers.
    Silent,
}

impl E2bClient {
    /// Asks both planes about a sandbox; at most two requests.
    ///
    /// # Errors
    /// Those of a control-plane call; never because the sandbox is not there.
    pub async fn liveness(&self, access: &SandboxAccess) -> Result<Liveness, E2bError> {
        let detail = match self.get(&access.id).await {
            Ok(detail) => detail,
            Err(error) if error.is_lost() => return Ok(Liveness::Gone),
            Err(error) => return Err(error),
        };
        let ends_at = detail.end_at;
        if detail.state == State::Paused {
            return Ok(Liveness::Paused);
        }
        Ok(match self.health(access).await {
            Ok(()) => Liveness::Running { ends_at },
            Err(E2bError::PortClosed { .. }) => Liveness::NoInterpreter { ends_at },
            Err(_) => Liveness::Unreachable { ends_at },
        })
    }

    /// How much of its life a sandbox had left by the provider's own account; `None` when it has no account of it.
    ///
    /// For a message like "ended early, 272 s before its time" instead of a guess about time-outs.
    pub async fn time_left(&self, id: &SandboxId) -> Option<Duration> {
        let detail = self.get(id).await.ok()?;
        (detail.end_at - self.shared.clock.now()).to_std().ok()
    }

    /// Waits until a new sandbox can run code.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost) when it is gone.
    pub async fn ready(&self, access: &SandboxAccess, within: Duration) -> Result<Readiness, E2bError> {
        let begun = Instant::now();
        let mut pause = Duration::from_millis(50);
        let mut lost = None;
        loop {
            let left = within.saturating_sub(begun.elapsed()).max(Duration::from_millis(100));
            match self.port_health(access, INTERPRETER_PORT, left.min(Duration::from_secs(5))).await {
                Ok(()) => return Ok(Readiness::Ready { after: begun.elapsed() }),
                // The data plane may learn of a new sandbox a moment after the control plane made it, so only the
                // last answer counts; a later attempt that had no time left to be answered proves nothing.
                Err(E2bError::TimedOut { .. }) => {}
                Err(error) => lost = error.is_lost().then_some(error),
            }
            if begun.elapsed() + pause >= within {
                if let Some(error) = lost {
                    return Err(error);
                }
                break;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        match self.port_health(access, ENVD_PORT, Duration::from_secs(5)).await {
            Ok(()) => Ok(Readiness::NoInterpreter),
            Err(error) if error.is_lost() => Err(error),
            Err(_) => Ok(Readiness::Silent),
        }
    }
}
