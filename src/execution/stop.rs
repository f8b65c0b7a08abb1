//! Stopping a run from wherever one is asked to. A run is stopped by the replica that has it; any other writes the request
//! into the store, and every replica looks once a second whether one of its own runs is among those, but only for runs that have lasted
//! as long, so that a short run costs the database nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::recall::Requester;
use super::{Call, ExecutionError, Runs};
use crate::domain::{ContextKey, ExecutionId, OutputChunk, lock};
use crate::guard::Sanitized;
use crate::telemetry::chain;

/// How often a replica looks for requests to stop.
const LOOK: Duration = Duration::from_secs(1);

/// Runs of this replica that can be stopped.
#[derive(Debug, Clone, Default)]
pub(super) struct Stoppable(Arc<Mutex<HashMap<ExecutionId, Stop>>>);

#[derive(Debug)]
struct Stop {
    key: ContextKey,
    principal: String,
    cancel: CancellationToken,
    since: Instant,
    printed: Printed,
    /// Cancelled once the run is written down, where every replica finds it.
    written: CancellationToken,
    /// The run under the same idempotency key that it waits for.
    in_flight: Arc<OnceLock<ExecutionId>>,
}

/// Bytes of output that can be read while a run goes on.
const PRINTED: usize = 32 * 1024;

/// What a run has printed lately.
#[derive(Debug, Clone, Default)]
pub(super) struct Printed(Arc<Mutex<Tail>>);

#[derive(Debug, Default)]
struct Tail {
    chunks: VecDeque<Sanitized<OutputChunk>>,
    bytes: usize,
}

impl Printed {
    /// Adds what has just gone through the guard, and lets go of what is long past.
    pub(super) fn push(&self, chunk: &Sanitized<OutputChunk>) {
        let len = |chunk: &OutputChunk| match chunk {
            OutputChunk::Stdout(text) | OutputChunk::Stderr(text) => text.len(),
            OutputChunk::Result(_) | OutputChunk::Error(_) => 0,
        };
        let added = len(chunk);
        if added == 0 {
            return;
        }
        let mut tail = lock(&self.0);
        tail.bytes += added;
        tail.chunks.push_back(chunk.clone());
        while tail.bytes > PRINTED && tail.chunks.len() > 1 {
            let gone = tail.chunks.pop_front().map_or(0, |chunk| len(&chunk));
            tail.bytes -= gone;
        }
    }
}

impl Stoppable {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ExecutionId, Stop>> {
        lock(&self.0)
    }

    /// Knows a run until the guard is dropped. The token is cancelled once the run is written down, or the one under the
    /// same idempotency key that it waits for is known.
    pub(super) fn know(
        &self,
        id: ExecutionId,
        call: &Call,
        cancel: CancellationToken,
    ) -> (Known, CancellationToken, Arc<OnceLock<ExecutionId>>) {
        let (key, principal) = (call.key.clone(), call.requester.principal.clone());
        let (written, in_flight) = (CancellationToken::new(), Arc::default());
        let (since, printed) = (Instant::now(), Printed::default());
        let stop = Stop {
            key,
            principal,
            cancel,
            since,
            printed,
            written: written.clone(),
            in_flight: Arc::clone(&in_flight),
        };
        self.lock().insert(id, stop);
        (Known(self.clone(), id), written, in_flight)
    }

    /// Where the output of a run goes that is read while it goes on.
    pub(super) fn printed(&self, id: ExecutionId) -> Printed {
        self.lock().get(&id).map(|run| run.printed.clone()).unwrap_or_default()
    }

    /// A run is written down.
    pub(super) fn is_written(&self, id: ExecutionId) {
        if let Some(run) = self.lock().get(&id) {
            run.written.cancel();
        }
    }

    /// A run waits for another under the same idempotency key.
    pub(super) fn waits_for(&self, id: ExecutionId, other: ExecutionId) {
        if let Some(run) = self.lock().get(&id) {
            let _ = run.in_flight.set(other);
            run.written.cancel();
        }
    }

    fn stop(&self, id: ExecutionId) {
        if let Some(run) = self.lock().get(&id) {
            run.cancel.cancel();
        }
    }

    /// Those that have lasted and were not stopped yet.
    fn long(&self) -> Vec<ExecutionId> {
        let runs = self.lock();
        let long = runs.iter().filter(|(_, run)| run.since.elapsed() >= LOOK && !run.cancel.is_cancelled());
        long.map(|(id, _)| *id).collect()
    }
}

pub(super) struct Known(Stoppable, ExecutionId);

impl Drop for Known {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl Runs {
    /// Whether a run of the requester's is in the hands of this replica, also when it is not written down yet.
    pub fn runs_here(&self, requester: &Requester, id: ExecutionId) -> bool {
        let runs = self.0.stoppable.lock();
        runs.get(&id).is_some_and(|run| {
            run.key.tenant == requester.tenant && requester.may_see(&run.key.owner, Some(&run.principal))
        })
    }

    /// What a run of the requester's has printed lately, if it is in the hands of this replica.
    pub fn printed(&self, requester: &Requester, id: ExecutionId) -> Option<Vec<Sanitized<OutputChunk>>> {
        if !self.runs_here(requester, id) {
            return None;
        }
        let printed = self.0.stoppable.printed(id);
        let tail = lock(&printed.0);
        Some(tail.chunks.iter().cloned().collect())
    }

    /// Asks a run to stop, on whichever replica it is; it does so within about two seconds. Nothing happens to a run
    /// that has ended.
    ///
    /// # Errors
    /// [`ExecutionError::UnknownExecution`] when the requester has no such run, or the store's.
    pub async fn stop_run(&self, requester: &Requester, id: ExecutionId) -> Result<(), ExecutionError> {
        if self.runs_here(requester, id) {
            self.0.stoppable.stop(id);
            return Ok(());
        }
        self.0.row_for(requester, id).await?.ok_or(ExecutionError::UnknownExecution(id))?;
        self.0.store().ask_to_stop(&requester.tenant, id).await?;
        Ok(())
    }

    /// Looks for requests to stop from other replicas until shutdown.
    pub(super) fn start_stopping(&self) {
        let service = self.clone();
        self.0.background.spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => {}
                    () = service.0.shutdown.cancelled() => return,
                }
                let long = service.0.stoppable.long();
                if long.is_empty() {
                    continue;
                }
                match service.0.store().stops(&long).await {
                    Ok(asked) => asked.into_iter().for_each(|id| service.0.stoppable.stop(id)),
                    Err(error) => {
                        tracing::debug!(error = %chain(&error), "requests to stop could not be read")
                    }
                }
            }
        });
    }
}
