//! This replica among the others: it says that it is alive, and lets go of contexts that others wait for.
//!
//! What it holds is its own for [`ContextLimits::replica_lease`](crate::store::ContextLimits) after each time that the database heard
//! of it. What counts here is the local time, from *before* the database was asked: so this replica stops believing in its
//! leases before any other does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::Core;
use super::health::Write;
use crate::domain::{Clock, ContextId, ContextKey, lock};
use crate::store::Acquire;
use crate::telemetry::chain;

/// Between looks at whether a context that another replica waits for is idle.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Between two renewals of a run whose result is being put away.
const SETTLING_PAUSE: Duration = Duration::from_secs(5);

/// How often a run looks whether the lease has expired: a machine that slept moves the wall clock and no timer.
const LOOK: Duration = Duration::from_secs(1);

/// How long the database may take to say that a run is still this replica's.
const CONFIRMING: Duration = Duration::from_secs(1);

/// Until when no other replica takes what this one holds.
///
/// By two clocks, whichever is over first: the monotonic one stands still while a machine sleeps, and a wall clock may be
/// set back.
#[derive(Debug)]
pub(super) struct Lease {
    clock: Clock,
    until: Mutex<Option<(Instant, DateTime<Utc>)>>,
}

impl Lease {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, until: Mutex::default() }
    }

    /// It lasts for this long from a moment before now.
    fn renew(&self, from: (Instant, DateTime<Utc>), lease: Duration) {
        *lock(&self.until) = Some((from.0 + lease, from.1 + lease));
    }

    fn now(&self) -> (Instant, DateTime<Utc>) {
        (Instant::now(), self.clock.now())
    }

    /// How long it lasts yet. `None`: there never was one.
    fn left_of_one(&self) -> Option<Duration> {
        let (until, wall) = (*lock(&self.until))?;
        let (now, wall_now) = self.now();
        Some(until.saturating_duration_since(now).min((wall - wall_now).to_std().unwrap_or_default()))
    }

    /// How long it lasts yet.
    pub(super) fn left(&self) -> Duration {
        self.left_of_one().unwrap_or_default()
    }
}

impl Core {
    /// How long the contexts that this replica has served and not released stay its own, though it does not reach the
    /// database. Work without the database must be over by then.
    pub(super) fn lease_left(&self) -> Duration {
        self.lease.left()
    }

    /// Waits until other replicas may take this run's context. A process that only stood still, and whose database says
    /// that the run is its own, goes on.
    pub(super) async fn lease_over(&self, ask: &Acquire) {
        loop {
            match self.lease.left_of_one() {
                Some(Duration::ZERO) => {}
                Some(left) => {
                    tokio::time::sleep(left.min(LOOK)).await;
                    continue;
                }
                None => {
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
            }
            let ours = self.store().renew_run(&ask.key.tenant, ask.execution.id);
            if !matches!(tokio::time::timeout(CONFIRMING, ours).await, Ok(Ok(true))) {
                return;
            }
            tokio::time::sleep(CONFIRMING / 4).await;
        }
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
            core.lease.renew(core.lease.now(), Duration::ZERO);
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
        let (asked, lease) = (self.lease.now(), self.options().limits.replica_lease);
        match self.room.noted(Write::Live, self.store().heartbeat(&self.parts.owner, lease).await) {
            Ok(now_wanted) => {
                if self.lease.left().is_zero() {
                    self.remembered.lost_its_lease();
                }
                // A tenth is left for clocks that do not go alike.
                self.lease.renew(asked, lease * 9 / 10);
                *wanted = now_wanted;
            }
            Err(error) => {
                tracing::debug!(error = %chain(&error), "the heartbeat of this replica failed")
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
                tracing::debug!(error = %chain(&error), context.id = %id, "a context could not be released yet");
            }
        }
        *wanted = busy;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_lasts_from_before_the_database_was_asked_and_ends_with_the_replica() {
        let lease = Lease::new(Clock::system());
        assert_eq!(lease.left_of_one(), None);
        assert_eq!(lease.left(), Duration::ZERO);
        lease.renew(lease.now(), Duration::from_secs(10));
        assert!(lease.left() > Duration::from_secs(5) && lease.left() <= Duration::from_secs(10));
        lease.renew(lease.now(), Duration::ZERO);
        assert_eq!(lease.left(), Duration::ZERO);
    }

    #[test]
    fn a_machine_that_slept_has_lost_its_lease_and_a_clock_set_back_gives_none() {
        let clock = Clock::manual(Clock::system().now());
        let lease = Lease::new(clock.clone());
        lease.renew(lease.now(), Duration::from_secs(10));
        clock.advance(Duration::from_secs(600)); // the monotonic clock stood still
        assert_eq!(lease.left(), Duration::ZERO);
        let begun = Instant::now().checked_sub(Duration::from_secs(11)).unwrap();
        lease.renew((begun, clock.now()), Duration::from_secs(10)); // the wall clock stands still, as one set back
        assert_eq!(lease.left(), Duration::ZERO);
    }
}
