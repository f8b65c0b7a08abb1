//! How often one principal may ask: a token bucket each, in memory, so the limit holds per replica.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::domain::Clock;

/// Principals that are counted at a time; beyond it those whose buckets are full are forgotten.
const MAX_BUCKETS: usize = 10_000;

/// The buckets. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Rates(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    burst: f64,
    per_second: f64,
    clock: Clock,
    buckets: Mutex<HashMap<String, Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: DateTime<Utc>,
}

impl Rates {
    /// `per_minute` requests in the long run, and as many at once. 0 does not count at all.
    pub fn new(per_minute: u32, clock: Clock) -> Self {
        let burst = f64::from(per_minute);
        Self(Arc::new(Inner { burst, per_second: burst / 60.0, clock, buckets: Mutex::default() }))
    }

    /// Takes one request of a principal.
    ///
    /// # Errors
    /// How long to wait when there have been too many.
    pub fn take(&self, principal: &str) -> Result<(), Duration> {
        let Inner { burst, per_second, clock, buckets } = &*self.0;
        if *burst == 0.0 {
            return Ok(());
        }
        let now = clock.now();
        let refilled = |bucket: &Bucket| {
            (bucket.tokens + (now - bucket.at).to_std().unwrap_or_default().as_secs_f64() * per_second)
                .min(*burst)
        };
        let mut buckets = buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(principal) {
            buckets.retain(|_, bucket| refilled(bucket) < *burst);
        }
        let bucket = buckets.entry(principal.to_owned()).or_insert(Bucket { tokens: *burst, at: now });
        let tokens = refilled(bucket);
        if tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - tokens) / per_second));
        }
        *bucket = Bucket { tokens: tokens - 1.0, at: now };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_so_many_a_minute() {
        let clock = Clock::manual(DateTime::from_timestamp(1_800_000_000, 0).unwrap());
        let rates = Rates::new(60, clock.clone());
        for _ in 0..60 {
            rates.take("a").unwrap();
        }
        let wait = rates.take("a").unwrap_err();
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
        assert!(rates.take("b").is_ok(), "everybody has a bucket of their own");
        clock.advance(Duration::from_secs(2));
        assert!(rates.take("a").is_ok() && rates.take("a").is_ok());
        assert!(rates.take("a").is_err());
        let uncounted = Rates::new(0, clock);
        assert!((0..1000).all(|_| uncounted.take("a").is_ok()), "0 does not count");
    }
}
