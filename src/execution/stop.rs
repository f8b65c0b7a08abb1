//! Stopping a run from wherever one is asked to. A run is stopped by the replica that has it; any other writes the wish
//! down, and every replica looks once a second whether one of its own is among those, but only for runs that have lasted
//! as long, so that a short run costs the database nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::recall::Asker;
use super::{Call, ExecutionError, Runs};
use crate::domain::{ContextKey, ExecutionId, lock};
use crate::telemetry::chain;

/// How often a replica looks for wishes.
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
}

impl Stoppable {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ExecutionId, Stop>> {
        lock(&self.0)
    }

    /// Knows a run until the guard is dropped.
    pub(super) fn know(&self, id: ExecutionId, call: &Call, cancel: CancellationToken) -> Known {
        let (key, principal) = (call.key.clone(), call.asker.principal.clone());
        self.lock().insert(id, Stop { key, principal, cancel, since: Instant::now() });
        Known(self.clone(), id)
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
    /// Whether a run of the asker's is in the hands of this replica, also when it is not written down yet.
    pub fn runs_here(&self, asker: &Asker, id: ExecutionId) -> bool {
        let runs = self.0.stoppable.lock();
        runs.get(&id).is_some_and(|run| {
            run.key.tenant == asker.tenant && asker.may_see(&run.key.owner, Some(&run.principal))
        })
    }

    /// Asks a run to stop, on whichever replica it is; it does so within about two seconds. Nothing happens to a run
    /// that is over.
    ///
    /// # Errors
    /// [`ExecutionError::UnknownExecution`] when the asker has no such run, or the store's.
    pub async fn stop_run(&self, asker: &Asker, id: ExecutionId) -> Result<(), ExecutionError> {
        if self.runs_here(asker, id) {
            self.0.stoppable.stop(id);
            return Ok(());
        }
        self.0.row_for(asker, id).await?.ok_or(ExecutionError::UnknownExecution(id))?;
        self.0.store().ask_to_stop(&asker.tenant, id).await?;
        Ok(())
    }

    /// Looks for wishes of other replicas until shutdown.
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
                    Err(error) => tracing::debug!(error = %chain(&error), "wishes to stop could not be read"),
                }
            }
        });
    }
}
