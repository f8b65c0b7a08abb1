//! Whether the database answers.
//!
//! A database that is down refuses; one that is frozen, or behind a broken wire, says nothing and lets every call
//! hang. So a call that takes long is not given up for that alone: a second look at the database, over a connection of
//! its own, decides. Once the database is found away, calls fail at once instead of waiting one after the other, and a
//! task looks until it is back.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};

/// How soon to look, and how long.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// A call that takes longer is looked into.
    patience: Duration,
    /// How long a look may take. Generous: a busy machine is not an absent database.
    look: Duration,
    /// Between looks while the database is away.
    pause: Duration,
}

const PACE: Pace = Pace {
    patience: Duration::from_millis(1500),
    look: Duration::from_millis(2500),
    pause: Duration::from_millis(250),
};

/// One look at the database: whether it serves.
type Look = Box<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// What is known about the database. Cheap to clone.
#[derive(Clone)]
pub(super) struct Pulse(Arc<Inner>);

struct Inner {
    away: watch::Sender<bool>,
    look: Look,
    pace: Pace,
    /// When somebody looked last and what they saw: a crowd of slow calls looks once.
    seen: Mutex<Option<(Instant, bool)>>,
}

/// The database is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Away {
    /// Whether it was this call that found out.
    pub(super) just_found: bool,
}

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulse").field("away", &self.is_away()).finish_non_exhaustive()
    }
}

impl Pulse {
    /// `look` asks the database, on a way of its own, whether it serves.
    pub(super) fn new<F>(look: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        Self::paced(PACE, look)
    }

    fn paced<F>(pace: Pace, look: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = bool> + Send + 'static,
    {
        let look: Look = Box::new(move || Box::pin(look()));
        Self(Arc::new(Inner { away: watch::Sender::new(false), look, pace, seen: Mutex::new(None) }))
    }

    /// Whether the database was found away and has not come back since.
    pub(super) fn is_away(&self) -> bool {
        *self.0.away.borrow()
    }

    /// Waits for a call for as long as the database answers, and looks when it takes long.
    ///
    /// # Errors
    /// [`Away`]: it does not answer.
    pub(super) async fn while_it_beats<T>(&self, call: impl Future<Output = T>) -> Result<T, Away> {
        if self.is_away() {
            return Err(Away { just_found: false });
        }
        let mut call = pin!(call);
        loop {
            tokio::select! {
                biased;
                done = &mut call => return Ok(done),
                () = sleep(self.0.pace.patience) => {}
            }
            let beats = tokio::select! {
                biased;
                done = &mut call => return Ok(done),
                beats = self.0.look() => beats,
            };
            if !beats {
                return Err(Away { just_found: self.lost() });
            }
        }
    }

    /// Waits for a call until somebody finds the database away.
    ///
    /// # Errors
    /// [`Away`]: it was.
    pub(super) async fn until_lost<T>(&self, call: impl Future<Output = T>) -> Result<T, Away> {
        let mut away = self.0.away.subscribe();
        tokio::select! {
            biased;
            _ = away.wait_for(|away| *away) => Err(Away { just_found: false }),
            done = call => Ok(done),
        }
    }

    /// The database is away: says so from now on, until a look finds it back. `false`: that was known.
    pub(super) fn lost(&self) -> bool {
        if self.0.away.send_replace(true) {
            return false;
        }
        tracing::warn!("the database does not answer; calls that need it are refused until it does");
        tokio::spawn(until_back(Arc::downgrade(&self.0)));
        true
    }
}

impl Inner {
    async fn look(&self) -> bool {
        let asked = Instant::now();
        let mut seen = self.seen.lock().await;
        if let Some((at, beats)) = *seen
            && at >= asked
        {
            return beats;
        }
        let beats = timeout(self.pace.look, (self.look)()).await.unwrap_or(false);
        *seen = Some((Instant::now(), beats));
        beats
    }
}

/// Looks until the database is back, or nobody is left to care.
async fn until_back(pulse: Weak<Inner>) {
    loop {
        let Some(pause) = pulse.upgrade().map(|pulse| pulse.pace.pause) else { return };
        sleep(pause).await;
        let Some(pulse) = pulse.upgrade() else { return };
        if pulse.look().await {
            pulse.away.send_replace(false);
            tracing::info!("the database answers again");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    const FAST: Pace = Pace {
        patience: Duration::from_millis(20),
        look: Duration::from_millis(100),
        pause: Duration::from_millis(10),
    };

    /// A pulse whose database is what the test says, and how often it was looked at.
    fn pulse(serves: &Arc<AtomicBool>) -> (Pulse, Arc<AtomicU32>) {
        let looks = Arc::new(AtomicU32::new(0));
        let (serves, counted) = (serves.clone(), looks.clone());
        let pulse = Pulse::paced(FAST, move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let serves = serves.clone();
            async move {
                if !serves.load(Ordering::SeqCst) {
                    std::future::pending::<()>().await;
                }
                true
            }
        });
        (pulse, looks)
    }

    #[tokio::test]
    async fn a_slow_call_to_a_database_that_answers_is_waited_for() {
        let (pulse, looks) = pulse(&Arc::new(AtomicBool::new(true)));
        let seen = looks.clone();
        let slow = async {
            while seen.load(Ordering::SeqCst) < 3 {
                sleep(Duration::from_millis(1)).await;
            }
            7
        };
        assert_eq!(pulse.while_it_beats(slow).await, Ok(7));
        assert!(!pulse.is_away());
    }

    #[tokio::test]
    async fn calls_to_a_frozen_database_fail_and_the_next_at_once_until_it_is_back() {
        let serves = Arc::new(AtomicBool::new(false));
        let (pulse, looks) = pulse(&serves);
        let crowd: Vec<_> = (0..50)
            .map(|_| {
                let pulse = pulse.clone();
                tokio::spawn(async move { pulse.while_it_beats(std::future::pending::<()>()).await })
            })
            .collect();
        let mut found = 0;
        for call in crowd {
            found += u32::from(call.await.unwrap().unwrap_err().just_found);
        }
        assert_eq!(found, 1, "one call finds out");
        assert!(looks.load(Ordering::SeqCst) < 10, "a crowd does not look one by one: {looks:?}");
        let polled = AtomicBool::new(false);
        let next = pulse.while_it_beats(async { polled.store(true, Ordering::SeqCst) }).await;
        assert_eq!(next, Err(Away { just_found: false }));
        assert!(!polled.load(Ordering::SeqCst), "it was not even begun");

        serves.store(true, Ordering::SeqCst);
        while pulse.is_away() {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(pulse.while_it_beats(async { 1 }).await, Ok(1));
    }

    #[tokio::test]
    async fn whoever_waits_is_told_when_somebody_else_finds_the_database_away() {
        let (pulse, _) = pulse(&Arc::new(AtomicBool::new(false)));
        let waiting = tokio::spawn({
            let pulse = pulse.clone();
            async move { pulse.until_lost(std::future::pending::<()>()).await }
        });
        assert!(pulse.lost() && !pulse.lost());
        assert_eq!(waiting.await.unwrap(), Err(Away { just_found: false }));
    }
}
