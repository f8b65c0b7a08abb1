//! Whether the database serves, and if not, why.
//!
//! A database that is down refuses; one that is frozen, or behind a broken wire, does not answer and lets every call hang.
//! So neither a slow call nor an error decides: a probe on a connection of its own does. A state that holds for everyone
//! is kept until a probe finds it changed; calls then fail at once instead of one after the other.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};

use super::StoreError;
use super::state::{Cause, DatabaseState};
use crate::telemetry::metrics;

/// How soon to look, and how often.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// A call that takes longer is looked into.
    patience: Duration,
    /// Between probes while the database does not serve.
    pause: Duration,
}

const PACE: Pace = Pace { patience: Duration::from_millis(1500), pause: Duration::from_millis(250) };

/// What a probe found to be in the way.
#[derive(Debug, Clone)]
pub(super) struct Finding {
    pub(super) state: DatabaseState,
    pub(super) cause: Cause,
}

impl Finding {
    pub(super) fn new(state: DatabaseState, cause: impl Into<Cause>) -> Self {
        Self { state, cause: cause.into() }
    }

    fn into_error(self) -> StoreError {
        StoreError::State(self.state, self.cause)
    }
}

/// Asks the database what a run needs; bounds its own time. `None`: nothing is in the way.
type Probe = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Option<Finding>> + Send>> + Send + Sync>;

/// What is known about the database. Cheap to clone.
#[derive(Clone)]
pub(super) struct Availability(Arc<Inner>);

struct Inner {
    lasting: watch::Sender<Option<DatabaseState>>,
    probe: Probe,
    pace: Pace,
    /// The last probe: a crowd of slow calls shares one.
    last: Mutex<Option<(Instant, Option<Finding>)>>,
}

impl fmt::Debug for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Availability").field("lasting", &self.lasting()).finish_non_exhaustive()
    }
}

impl Availability {
    pub(super) fn new<F>(probe: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<Finding>> + Send + 'static,
    {
        Self::paced(PACE, probe)
    }

    fn paced<F>(pace: Pace, probe: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Option<Finding>> + Send + 'static,
    {
        let probe: Probe = Box::new(move || Box::pin(probe()));
        metrics::DATABASE_UP.set(1);
        Self(Arc::new(Inner { lasting: watch::Sender::new(None), probe, pace, last: Mutex::new(None) }))
    }

    /// The state that the database was found in and has not left since.
    pub(super) fn lasting(&self) -> Option<DatabaseState> {
        *self.0.lasting.borrow()
    }

    /// # Errors
    /// The state that the database was found in and has not left since.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.lasting().map_or(Ok(()), |state| Err(Finding::new(state, Cause::Known).into_error()))
    }

    /// Waits for a call for as long as the database serves, and probes when it takes long.
    ///
    /// # Errors
    /// It is away or read-only.
    pub(super) async fn while_it_serves<T>(&self, call: impl Future<Output = T>) -> Result<T, StoreError> {
        self.check()?;
        let mut lasting = self.0.lasting.subscribe();
        let mut call = pin!(call);
        loop {
            tokio::select! {
                biased;
                done = &mut call => return Ok(done),
                _ = lasting.wait_for(Option::is_some) => self.check()?,
                () = sleep(self.0.pace.patience) => {}
            }
            let found = tokio::select! {
                biased;
                done = &mut call => return Ok(done),
                found = self.0.probe() => found,
            };
            if let Some(found) = found.filter(|found| found.state.is_lasting()) {
                self.report(&found);
                return Err(found.into_error());
            }
        }
    }

    /// Waits for a call until someone reports a state that lasts.
    ///
    /// # Errors
    /// It was reported.
    pub(super) async fn until_lost<T>(&self, call: impl Future<Output = T>) -> Result<T, StoreError> {
        let mut lasting = self.0.lasting.subscribe();
        tokio::select! {
            biased;
            _ = lasting.wait_for(Option::is_some) => {}
            done = call => return Ok(done),
        }
        self.check()?;
        // It has changed back in the same moment.
        Err(Finding::new(DatabaseState::Busy, Cause::Known).into_error())
    }

    /// Asks the database now.
    ///
    /// # Errors
    /// What is in the way, whether it lasts or not.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        let Some(found) = self.0.probe().await else { return Ok(()) };
        if found.state.is_lasting() {
            self.report(&found);
        }
        Err(found.into_error())
    }

    /// The database is in this state from now on, until a probe finds that changed.
    pub(super) fn report(&self, found: &Finding) {
        if self.0.set(Some(found.state)).is_none() {
            tracing::warn!(state = %found.state, cause = %found.cause, "{}; calls that need it are refused until that changes", found.state.words());
            tokio::spawn(until_back(Arc::downgrade(&self.0)));
        }
    }
}

impl Inner {
    /// Gives the state before.
    fn set(&self, state: Option<DatabaseState>) -> Option<DatabaseState> {
        metrics::DATABASE_UP.set(u64::from(state.is_none()));
        self.lasting.send_replace(state)
    }

    /// A probe that began after this was called.
    async fn probe(&self) -> Option<Finding> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((began, found)) = &*last
            && *began >= asked
        {
            return found.clone();
        }
        let began = Instant::now();
        let found = (self.probe)().await;
        *last = Some((began, found.clone()));
        found
    }
}

/// Probes until the database serves, or no one uses it any more.
async fn until_back(availability: Weak<Inner>) {
    loop {
        let Some(pause) = availability.upgrade().map(|inner| inner.pace.pause) else { return };
        sleep(pause).await;
        let Some(inner) = availability.upgrade() else { return };
        let before = *inner.lasting.borrow();
        let found = inner.probe().await;
        let now = found.filter(|found| found.state.is_lasting() || Some(found.state) == before);
        match now {
            None => {
                inner.set(None);
                tracing::info!("the database serves again");
                return;
            }
            Some(found) if Some(found.state) != before => {
                inner.set(Some(found.state));
                tracing::warn!(state = %found.state, cause = %found.cause, "{}", found.state.words());
            }
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const FAST: Pace = Pace { patience: Duration::from_millis(20), pause: Duration::from_millis(10) };

    /// A database that is what the test sets, and how often it was probed.
    fn database(state: &Arc<watch::Sender<Option<DatabaseState>>>) -> (Availability, Arc<AtomicU32>) {
        let probes = Arc::new(AtomicU32::new(0));
        let (state, counted) = (state.clone(), probes.clone());
        let availability = Availability::paced(FAST, move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let state = *state.borrow();
            async move {
                sleep(Duration::from_millis(5)).await;
                state.map(|state| Finding::new(state, Cause::Said("the test says so")))
            }
        });
        (availability, probes)
    }

    fn state_of<T: fmt::Debug>(result: Result<T, StoreError>) -> Option<DatabaseState> {
        result.unwrap_err().state()
    }

    #[tokio::test]
    async fn a_slow_call_is_waited_for_while_the_database_answers_also_when_it_is_busy() {
        for state in [None, Some(DatabaseState::Busy), Some(DatabaseState::Slow), Some(DatabaseState::Full)] {
            let (availability, probes) = database(&Arc::new(watch::Sender::new(state)));
            let slow = async {
                while probes.load(Ordering::SeqCst) < 3 {
                    sleep(Duration::from_millis(1)).await;
                }
                7
            };
            assert_eq!(availability.while_it_serves(slow).await.unwrap(), 7, "{state:?}");
            assert_eq!(availability.lasting(), None);
        }
    }

    #[tokio::test]
    async fn calls_fail_once_a_probe_finds_the_database_away_and_the_next_at_once_until_it_is_back() {
        let state = Arc::new(watch::Sender::new(Some(DatabaseState::Away)));
        let (availability, probes) = database(&state);
        let crowd: Vec<_> = (0..50)
            .map(|_| {
                let availability = availability.clone();
                tokio::spawn(async move { availability.while_it_serves(std::future::pending::<()>()).await })
            })
            .collect();
        for call in crowd {
            assert_eq!(state_of(call.await.unwrap()), Some(DatabaseState::Away));
        }
        assert!(probes.load(Ordering::SeqCst) < 20, "a crowd does not probe one by one: {probes:?}");
        let unpolled = availability.while_it_serves(async { panic!("it was begun") });
        assert_eq!(state_of::<()>(unpolled.await), Some(DatabaseState::Away));

        // It comes back as a standby, and is promoted.
        state.send_replace(Some(DatabaseState::ReadOnly));
        let mut lasting = availability.0.lasting.subscribe();
        lasting.wait_for(|state| *state == Some(DatabaseState::ReadOnly)).await.unwrap();
        assert_eq!(state_of(availability.while_it_serves(async {}).await), Some(DatabaseState::ReadOnly));
        state.send_replace(None);
        lasting.wait_for(Option::is_none).await.unwrap();
        assert_eq!(availability.while_it_serves(async { 1 }).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn a_waiter_learns_a_state_that_another_caller_reports() {
        let state = Arc::new(watch::Sender::new(Some(DatabaseState::Busy)));
        let (availability, _) = database(&state);
        let waiting = tokio::spawn({
            let availability = availability.clone();
            async move { availability.until_lost(std::future::pending::<()>()).await }
        });
        availability.report(&Finding::new(DatabaseState::Busy, Cause::Said("the test says so")));
        assert_eq!(state_of(waiting.await.unwrap()), Some(DatabaseState::Busy));
        state.send_replace(None);
        availability.0.lasting.subscribe().wait_for(Option::is_none).await.unwrap();
    }
}
