//! What time it is, as an argument: the system's clock, or one that a test moves by hand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};

/// A source of wall-clock time. Cheap to clone; clones of a manual clock move together.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    System,
    Manual(Arc<Mutex<DateTime<Utc>>>),
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands at `start` until [`Clock::advance`] moves it.
    pub fn manual(start: DateTime<Utc>) -> Self {
        Self(Source::Manual(Arc::new(Mutex::new(start))))
    }

    /// The time now.
    pub fn now(&self) -> DateTime<Utc> {
        match &self.0 {
            #[expect(clippy::disallowed_methods, reason = "the one place that asks the system")]
            Source::System => Utc::now(),
            Source::Manual(at) => *super::lock(at),
        }
    }

    /// Moves a manual clock forward. Does nothing to the system's.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(at) = &self.0 {
            *super::lock(at) += by;
        }
    }
}
