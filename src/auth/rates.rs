//! How often someone may do something: a token bucket each, in memory, so the limit holds per replica. Time is the
//! process's monotonic clock: a wall clock that is set back gives no one a pause.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::lock;

/// Buckets that are kept at a time; beyond it full ones are forgotten, and then any.
const MAX_BUCKETS: usize = 10_000;
/// Between two looks for full ones.
const SWEEP: Duration = Duration::from_secs(1);

/// The buckets. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Rates<K>(Arc<Inner<K>>);

#[derive(Debug)]
struct Inner<K> {
    burst: f64,
    per_second: f64,
    buckets: Mutex<Buckets<K>>,
}

#[derive(Debug)]
struct Buckets<K> {
    all: HashMap<K, Bucket>,
    swept: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl<K: Hash + Eq + Clone> Rates<K> {
    /// `per_minute` in the long run, and as many at once. 0 does not count at all.
    pub fn new(per_minute: u32) -> Self {
        let burst = f64::from(per_minute);
        let buckets = Mutex::new(Buckets { all: HashMap::new(), swept: None });
        Self(Arc::new(Inner { burst, per_second: burst / 60.0, buckets }))
    }

    fn lock(&self) -> MutexGuard<'_, Buckets<K>> {
        lock(&self.0.buckets)
    }

    fn refilled(&self, bucket: &Bucket, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        (bucket.tokens + passed * self.0.per_second).min(self.0.burst)
    }

    /// Takes one.
    ///
    /// # Errors
    /// How long to wait when there have been too many.
    pub fn take(&self, key: &K) -> Result<(), Duration> {
        self.take_at(key, Instant::now())
    }

    fn take_at(&self, key: &K, now: Instant) -> Result<(), Duration> {
        if self.0.burst == 0.0 {
            return Ok(());
        }
        let mut buckets = self.lock();
        if buckets.all.len() >= MAX_BUCKETS && !buckets.all.contains_key(key) {
            self.make_room(&mut buckets, now);
        }
        let bucket = buckets.all.entry(key.clone()).or_insert(Bucket { tokens: self.0.burst, at: now });
        let tokens = self.refilled(bucket, now);
        if tokens < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - tokens) / self.0.per_second));
        }
        *bucket = Bucket { tokens: tokens - 1.0, at: now };
        Ok(())
    }

    fn make_room(&self, buckets: &mut Buckets<K>, now: Instant) {
        if buckets.swept.is_none_or(|at| now.saturating_duration_since(at) >= SWEEP) {
            buckets.swept = Some(now);
            buckets.all.retain(|_, bucket| self.refilled(bucket, now) < self.0.burst);
        }
        if buckets.all.len() >= MAX_BUCKETS
            && let Some(any) = buckets.all.keys().next().cloned()
        {
            buckets.all.remove(&any);
        }
    }

    /// Gives one back that was taken for nothing.
    pub fn give_back(&self, key: &K) {
        if let Some(bucket) = self.lock().all.get_mut(key) {
            bucket.tokens = (bucket.tokens + 1.0).min(self.0.burst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate_per_minute_applies() {
        let (rates, begin) = (Rates::new(60), Instant::now());
        for _ in 0..60 {
            rates.take_at(&"a", begin).unwrap();
        }
        let wait = rates.take_at(&"a", begin).unwrap_err();
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
        assert!(rates.take_at(&"b", begin).is_ok(), "everybody has a bucket of their own");
        let later = begin + Duration::from_secs(2);
        assert!(rates.take_at(&"a", later).is_ok() && rates.take_at(&"a", later).is_ok());
        assert!(rates.take_at(&"a", later).is_err());
        rates.give_back(&"a");
        assert!(rates.take_at(&"a", later).is_ok(), "one that was given back counts");
        let uncounted = Rates::new(0);
        assert!((0..1000).all(|_| uncounted.take_at(&"a", begin).is_ok()), "0 does not count");
    }

    #[test]
    fn the_buckets_of_any_number_of_strangers_take_a_bounded_space() {
        let (rates, now) = (Rates::new(60), Instant::now());
        for stranger in 0..MAX_BUCKETS * 3 {
            rates.take_at(&stranger, now).unwrap();
        }
        assert!(rates.lock().all.len() <= MAX_BUCKETS);
    }
}
