//! This replica among the others: it says that it is alive, and lets go of contexts that others wait for.
//!
//! What it holds is its own for [`Limits::replica_lease`](crate::store::Limits) after each time that the database heard
//! of it. The clock that counts here is the local monotonic one, from *before* the database was asked: so this replica
//! stops believing in its leases before any other does.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Core;
use crate::domain::{ContextId, ContextKey};
use crate::store::Acquire;
use crate::telemetry::chain;

/// Between looks at whether a context that another replica waits for is idle.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Between two renewals of a run whose result is being put away.
const SETTLING_PAUSE: Duration = Duration::from_secs(5);

/// Until when no other replica takes what this one holds.
#[derive(Debug, Default)]
pub(super) struct Lease(Mutex<Option<Instant>>);

impl Lease {
    fn renew(&self, until: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    /// How long it lasts yet.
    pub(super) fn left(&self) -> Duration {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }
}

impl Core {
    /// How long the contexts that this replica has served and not let go of stay its own, though it does not reach the
    /// database. Work without the database must be over by then.
    pub(super) fn lease_left(&self) -> Duration {
        self.lease.left()
    }

    /// Says that this replica is alive until shutdown and the end of its runs, then that it goes.
    pub(super) fn start_heartbeat(self: &Arc<Self>) {
        let core = Arc::clone(self);
        self.background.spawn(async move {
            let mut wanted = Vec::new();
            loop {
                core.heartbeat(&mut wanted).await;
                let next = Instant::now() + core.options().limits.replica_lease / 3;
                while !wanted.is_empty() && Instant::now() < next {
                    core.let_go(&mut wanted).await;
                    if !wanted.is_empty() {
                        tokio::time::sleep(BUSY_PAUSE).await;
                    }
                }
                tokio::select! {
                    () = tokio::time::sleep_until(next) => {}
                    () = core.store().signals().wanted() => {}
                    () = core.over() => break,
                }
            }
            core.lease.renew(Instant::now());
            let goodbye = core.store().heartbeat(&core.parts.owner, Duration::ZERO);
            let _ = tokio::time::timeout(Duration::from_millis(300), goodbye).await;
        });
    }

    /// Does what is left of a run after its code has ended. The run keeps its context however long that takes.
    pub(super) async fn settling<T>(&self, ask: &Acquire, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(SETTLING_PAUSE) => {
                    if let Err(error) = self.store().renew_run(&ask.key.tenant, ask.execution.id).await {
                        tracing::debug!(error = %chain(&error), "a run's lease could not be renewed");
                    }
                }
            }
        }
    }

    /// Waits until nothing more is run here.
    async fn over(&self) {
        self.shutdown.cancelled().await;
        self.runs.wait().await;
    }

    async fn heartbeat(&self, wanted: &mut Vec<(ContextId, ContextKey)>) {
        let (asked, lease) = (Instant::now(), self.options().limits.replica_lease);
        match self.store().heartbeat(&self.parts.owner, lease).await {
            Ok(now_wanted) => {
                // A tenth is left for clocks that do not go alike.
                self.lease.renew(asked + lease * 9 / 10);
                *wanted = now_wanted;
            }
            Err(error) => {
                tracing::debug!(error = %chain(&error), "the database did not hear of this replica")
            }
        }
    }

    /// Lets go of those that are idle here; the others stay.
    async fn let_go(&self, wanted: &mut Vec<(ContextId, ContextKey)>) {
        let mut busy = Vec::new();
        for (id, key) in wanted.drain(..) {
            // Forgotten first: from then on nothing is run on it here without asking the database.
            if self.write_behind.is_behind_on(&key) || !self.remembered.let_go(&key, id) {
                busy.push((id, key));
                continue;
            }
            if let Err(error) = self.store().release(&key.tenant, id, &self.parts.owner).await {
                tracing::debug!(error = %chain(&error), context.id = %id, "a context could not be let go of yet");
            }
        }
        *wanted = busy;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_was_never_given_or_is_over_is_worth_nothing() {
        let lease = Lease::default();
        assert_eq!(lease.left(), Duration::ZERO);
        lease.renew(Instant::now() + Duration::from_secs(3600));
        assert!(lease.left() > Duration::ZERO);
        lease.renew(Instant::now());
        assert_eq!(lease.left(), Duration::ZERO);
    }
}
