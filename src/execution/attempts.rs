//! Work on a sandbox that may turn out to be gone: it is resumed or replaced, and the work is tried again. Runs and file
//! operations share this one way, and so what is true of one is true of the other: what was not done is taken back.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::acquire::{Acquisition, Held, Sandboxes, Wait};
use super::{ExecutionError, ProgressSender};
use crate::domain::{EndReason, SandboxState};
use crate::e2b::E2bError;
use crate::store::{Acquire, ExecutionRow, ExecutionStatus};

/// A sandbox that is lost before the work was done is replaced so often, then it is an error.
const REPLACEMENTS: u32 = 2;

/// Why work has no outcome.
pub(super) enum Fault {
    /// The sandbox is gone and the work was not done.
    Lost,
    /// The provider failed and the work was not done.
    Sandbox(E2bError),
    /// The work was not begun: the context may be another run's by now, so the turn has to be waited for again.
    Stale,
    /// The call may not be done on this sandbox, and the work was not begun.
    Refused(ExecutionError),
}

impl Fault {
    /// What an error before the work was done means. A local host that does not answer, or no longer knows its own key,
    /// died with its process: the sandbox is lost with it.
    pub(super) fn of(held: &Held, error: E2bError) -> Self {
        let is_silent = error.is_unreachable() || matches!(error, E2bError::Unauthenticated(_));
        let key = held.row.sandbox.as_ref().and_then(|sandbox| sandbox.host_key.as_ref());
        let host_gone = is_silent && key.is_some_and(|key| held.hosts.is_dead_when_silent(key));
        if error.is_lost() || host_gone { Self::Lost } else { Self::Sandbox(error) }
    }
}

/// What is to be done on a sandbox. A trait and no closure: only so can it be said that its futures are `Send`.
pub(super) trait Work {
    /// What it comes to.
    type Done: Send;

    /// Does it, from its beginning.
    fn on(&self, held: &Held) -> impl Future<Output = Result<Self::Done, Fault>> + Send;
}

/// What came of an ask.
pub(super) enum Attempted<T> {
    /// The work was done, on this sandbox.
    Done(Box<Held>, T),
    /// It was done before, under the same idempotency key.
    Before(Box<ExecutionRow>),
}

impl Sandboxes {
    /// Waits for the ask's turn and does the work on its sandbox.
    ///
    /// # Errors
    /// When the work was not done; its place and its idempotency key are free again.
    pub(super) async fn on_sandbox<W: Work>(
        &self,
        ask: &Acquire,
        patience: Duration,
        progress: &ProgressSender,
        cancel: &CancellationToken,
        work: W,
    ) -> Result<Attempted<W::Done>, ExecutionError> {
        let mut found = None;
        let mut began = Instant::now();
        let mut replacements = 0;
        while replacements <= REPLACEMENTS {
            let wait = Wait { began, patience, cancel };
            let mut held = match self.acquire(ask, &wait, found, progress).await? {
                Acquisition::Held(held) => held,
                Acquisition::Replay(row) => return Ok(Attempted::Before(row)),
            };
            let mut done = self.announcing(&held, ask, work.on(&held)).await;
            if matches!(done, Err(Fault::Lost)) {
                done = match self.revive(&mut held).await {
                    Ok(true) => self.announcing(&held, ask, work.on(&held)).await,
                    Ok(false) => done,
                    Err(error) => Err(Fault::Sandbox(error)),
                };
            }
            if done.is_err() && self.0.shutdown.is_cancelled() {
                let ended = ExecutionError::ShuttingDown;
                self.abandon(ask, ExecutionStatus::Cancelled, ended.code().as_str()).await;
                return Err(ended);
            }
            match done {
                Ok(done) => return Ok(Attempted::Done(held, done)),
                Err(Fault::Stale) => {
                    if held.state != SandboxState::Kept {
                        found = Some((held.state, held.reason));
                    }
                }
                Err(Fault::Lost) => {
                    if let Err(error) = self.0.mark_lost(&held.row).await {
                        self.abandon(ask, ExecutionStatus::Failed, "sandbox_lost").await;
                        return Err(error.into());
                    }
                    self.0.kills.notify_one();
                    found = Some((SandboxState::Reset, Some(EndReason::Lost)));
                    replacements += 1;
                    began = Instant::now();
                }
                Err(Fault::Sandbox(error)) => {
                    self.abandon(ask, ExecutionStatus::Failed, "sandbox_failed").await;
                    return Err(ExecutionError::Sandbox(error));
                }
                Err(Fault::Refused(error)) => {
                    self.abandon(ask, ExecutionStatus::Failed, error.code().as_str()).await;
                    return Err(error);
                }
            }
        }
        self.abandon(ask, ExecutionStatus::Failed, "sandbox_lost").await;
        Err(ExecutionError::LostAgain(REPLACEMENTS + 1))
    }
}
