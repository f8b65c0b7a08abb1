//! The state of one provider: whether it answers, how fast sandboxes may be requested, how long they may live.
//!
//! All clients of one endpoint share it, so that a dead provider is asked once and not once a caller.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{CircuitOptions, CreateLimits, E2bError};
use crate::domain::lock;

/// Whether requests go to the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CircuitState {
    /// They do. This many in a row have failed.
    Closed {
        /// Failures since the last success.
        failures: u32,
    },
    /// They fail at once.
    Open {
        /// Until the next attempt.
        retry_after: Duration,
    },
    /// One request is out to see whether the provider is back; the others fail at once.
    HalfOpen,
}

impl CircuitState {
    /// A name for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed { .. } => "closed",
            Self::Open { .. } => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

#[derive(Debug)]
enum State {
    Closed { failures: u32 },
    Open { until: Instant },
    HalfOpen { since: Instant },
}

#[derive(Debug)]
pub(super) struct Circuit {
    options: CircuitOptions,
    state: Mutex<State>,
}

impl Circuit {
    fn new(options: CircuitOptions) -> Self {
        Self { options, state: Mutex::new(State::Closed { failures: 0 }) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn state(&self, now: Instant) -> CircuitState {
        match *self.lock() {
            State::Closed { failures } => CircuitState::Closed { failures },
            State::Open { until } => CircuitState::Open { retry_after: until - now },
            State::HalfOpen { .. } => CircuitState::HalfOpen,
        }
    }

    /// Asks to send one request; [`Circuit::record`] must follow.
    pub(super) fn enter(&self, now: Instant) -> Result<(), E2bError> {
        let mut state = self.lock();
        match *state {
            State::Closed { .. } => Ok(()),
            State::Open { until } if now < until => Err(E2bError::CircuitOpen { retry_after: until - now }),
            // A probe whose caller went away must not hold the circuit open forever.
            State::HalfOpen { since } if now < since + self.options.open_for => {
                Err(E2bError::CircuitOpen { retry_after: since + self.options.open_for - now })
            }
            State::Open { .. } | State::HalfOpen { .. } => {
                *state = State::HalfOpen { since: now };
                Ok(())
            }
        }
    }

    /// Tells how a request went: whether the provider answered like one that works.
    pub(super) fn record(&self, alive: bool, now: Instant) {
        let mut state = self.lock();
        *state = match (alive, &*state) {
            (true, State::Closed { .. }) => State::Closed { failures: 0 },
            (true, _) => {
                tracing::info!(circuit = "closed", "sandbox provider answers again");
                State::Closed { failures: 0 }
            }
            (false, State::Closed { failures }) if failures + 1 < self.options.failures => {
                State::Closed { failures: failures + 1 }
            }
            (false, before) => {
                if matches!(before, State::Closed { .. }) {
                    tracing::warn!(
                        circuit = "open",
                        "sandbox provider is down, requests fail at once for a while"
                    );
                }
                State::Open { until: now + self.options.open_for }
            }
        };
    }
}

/// Lets creates through at the rate and in the number that the provider allows.
#[derive(Debug)]
pub(super) struct CreateQueue {
    limits: CreateLimits,
    in_flight: Semaphore,
    next: Mutex<Option<Instant>>,
}

impl CreateQueue {
    fn new(limits: CreateLimits) -> Self {
        let in_flight = limits.in_flight.unwrap_or(Semaphore::MAX_PERMITS).clamp(1, Semaphore::MAX_PERMITS);
        Self { limits, in_flight: Semaphore::new(in_flight), next: Mutex::new(None) }
    }

    /// Waits for a turn; hold what comes back while the create is out.
    pub(super) async fn turn(&self) -> Result<tokio::sync::SemaphorePermit<'_>, E2bError> {
        let full = |wait| E2bError::CreateQueueFull { wait };
        let begun = Instant::now();
        let permit = tokio::time::timeout(self.limits.max_wait, self.in_flight.acquire())
            .await
            .map_err(|_| full(self.limits.max_wait))?
            .map_err(|_| full(Duration::ZERO))?;
        tokio::time::sleep_until(self.reserve(begun, Instant::now())?).await;
        Ok(permit)
    }

    /// When one that came at `begun` may go, seen from `now`.
    fn reserve(&self, begun: Instant, now: Instant) -> Result<Instant, E2bError> {
        let mut next = lock(&self.next);
        let at = next.unwrap_or(now).max(now);
        if at - begun > self.limits.max_wait {
            return Err(E2bError::CreateQueueFull { wait: at - begun });
        }
        let interval = self
            .limits
            .per_second
            .and_then(|rate| Duration::try_from_secs_f64(1.0 / rate).ok())
            .unwrap_or(Duration::ZERO);
        *next = Some(at + interval);
        Ok(at)
    }

    /// The provider asked for a pause: no one's turn comes before it ends.
    pub(super) fn pause(&self, pause: Duration, now: Instant) {
        let until = now + pause.min(Duration::from_secs(60));
        let mut next = lock(&self.next);
        *next = Some(next.map_or(until, |next| next.max(until)));
    }
}

/// What is known about one provider.
#[derive(Debug)]
pub(super) struct EndpointState {
    pub(super) circuit: Circuit,
    pub(super) creates: CreateQueue,
    /// Seconds; 0 while nothing is known.
    cap_s: AtomicU64,
    /// Whether the provider knows only the first version of create: 0 unknown or no, 1 yes.
    v1: AtomicU64,
}

impl EndpointState {
    pub(super) fn new(circuit: CircuitOptions, creates: CreateLimits) -> Self {
        Self {
            circuit: Circuit::new(circuit),
            creates: CreateQueue::new(creates),
            cap_s: AtomicU64::new(0),
            v1: AtomicU64::new(0),
        }
    }

    pub(super) fn cap(&self) -> Option<Duration> {
        match self.cap_s.load(Ordering::Relaxed) {
            0 => None,
            secs => Some(Duration::from_secs(secs)),
        }
    }

    pub(super) fn learn_cap(&self, cap: Duration) {
        self.cap_s.store(cap.as_secs().max(1), Ordering::Relaxed);
    }

    pub(super) fn is_v1(&self) -> bool {
        self.v1.load(Ordering::Relaxed) == 1
    }

    pub(super) fn learn_v1(&self) {
        self.v1.store(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    #[test]
    fn the_circuit_opens_lets_one_through_and_closes() {
        let circuit = Circuit::new(CircuitOptions { failures: 3, open_for: TEN });
        let now = Instant::now();
        for failures in 0..3 {
            assert_eq!(circuit.state(now), CircuitState::Closed { failures });
            circuit.enter(now).unwrap();
            circuit.record(false, now);
        }
        assert_eq!(circuit.state(now), CircuitState::Open { retry_after: TEN });
        assert!(matches!(circuit.enter(now), Err(E2bError::CircuitOpen { .. })));
        let now = now + TEN;
        circuit.enter(now).unwrap();
        assert_eq!(circuit.state(now), CircuitState::HalfOpen);
        assert!(circuit.enter(now).is_err(), "only one probe");
        circuit.record(false, now);
        assert!(matches!(circuit.state(now), CircuitState::Open { .. }));
        let now = now + TEN;
        circuit.enter(now).unwrap();
        circuit.record(true, now);
        assert_eq!(circuit.state(now), CircuitState::Closed { failures: 0 });
    }

    #[test]
    fn a_probe_whose_caller_left_does_not_block_the_next_one() {
        let circuit = Circuit::new(CircuitOptions { failures: 1, open_for: TEN });
        let now = Instant::now();
        circuit.record(false, now);
        circuit.enter(now + TEN).unwrap();
        assert!(circuit.enter(now + TEN).is_err());
        circuit.enter(now + TEN + TEN).unwrap();
    }

    #[test]
    fn creates_go_out_at_the_rate_and_a_long_queue_is_refused() {
        let queue = CreateQueue::new(CreateLimits {
            per_second: Some(2.0),
            in_flight: None,
            max_wait: Duration::from_secs(2),
        });
        let now = Instant::now();
        for n in 0..5 {
            assert_eq!(queue.reserve(now, now).unwrap() - now, Duration::from_millis(500 * n));
        }
        assert!(matches!(queue.reserve(now, now), Err(E2bError::CreateQueueFull { .. })));
        let later = now + TEN;
        assert_eq!(
            queue.reserve(later, later).unwrap(),
            later,
            "an idle queue lets the next through at once"
        );
        queue.pause(Duration::from_secs(1), later);
        assert_eq!(queue.reserve(later, later).unwrap(), later + Duration::from_secs(1));
    }

    #[tokio::test]
    async fn no_more_creates_are_in_flight_than_allowed() {
        let limits =
            CreateLimits { per_second: None, in_flight: Some(1), max_wait: Duration::from_millis(50) };
        let queue = CreateQueue::new(limits);
        let held = queue.turn().await.unwrap();
        assert!(matches!(queue.turn().await, Err(E2bError::CreateQueueFull { .. })));
        drop(held);
        assert!(queue.turn().await.is_ok());
    }
}
