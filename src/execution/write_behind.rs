//! Write-behind: ends of runs that the database could not take, each written once, in order, when it can.
//!
//! There is one queue for each context key, and one task for each queue that is not empty: a record that cannot be written
//! holds up the runs of its own key, which would find the database without it, and no others.
//!
//! The surprise: times are the database's, and the clocks of replicas are never compared with it. So the task asks for the
//! database's time when it writes and counts back from there, by the same reading for all records of a queue: their order
//! and their distances stay what they were.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use crate::domain::{ContextKey, ExecutionId, lock};
use crate::store::{
    Cause, DatabaseState, ExecutionStatus, FinishedExecution, MAX_REPLAY_BYTES, MAX_RESULT_BYTES,
    Placeholders, StoreError,
};
use crate::telemetry::metrics;

use super::Core;
use super::health::Write;
use crate::telemetry::chain;

/// Bytes of results, as JSON, that wait with their records. A record itself always waits: without its result it is small.
const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// Queues that are written at a time; the rest of the pool is for callers.
const WRITERS: usize = 4;

/// Between tries.
const PAUSE: Duration = Duration::from_millis(500);

/// How long after the begin of a shutdown a record is still tried again.
const LAST_TRIES: Duration = Duration::from_secs(3);

/// One thing to write.
#[derive(Debug)]
pub(super) enum Deferred {
    /// A run's end.
    Record {
        finished: Box<FinishedExecution>,
        /// When it ended.
        ended: Instant,
        /// Whether it has an idempotency key, so that its result will be asked for again.
        has_key: bool,
    },
    /// A run that did not start; see [`crate::store::Leases::abandon`].
    Abandon { execution: ExecutionId, status: ExecutionStatus, error: String },
    /// Placeholder numbers that a run gave out.
    Numbers(Placeholders),
}

/// All queues.
#[derive(Debug)]
pub(super) struct WriteBehind {
    queues: Mutex<Queues>,
    writers: Semaphore,
}

impl Default for WriteBehind {
    fn default() -> Self {
        Self { queues: Mutex::default(), writers: Semaphore::new(WRITERS) }
    }
}

#[derive(Debug, Default)]
struct Queues {
    by_key: HashMap<ContextKey, Queue>,
    /// Of all results in all queues.
    result_bytes: usize,
    /// Numbers the entries, so that the oldest one is known.
    next: u64,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// Why the last try failed; sent with each.
    failed: watch::Sender<Option<DatabaseState>>,
    /// Someone waits for the queue: it is tried now.
    wake: Arc<Notify>,
}

/// One thing to write, in the order of all.
#[derive(Debug)]
struct Entry {
    number: u64,
    /// Of its result.
    bytes: usize,
    deferred: Deferred,
}

impl Queues {
    /// Puts one more at the end of its queue. Gives whether the queue is new, and how many results had to go.
    fn push(&mut self, key: &ContextKey, mut deferred: Deferred) -> (bool, usize) {
        let (mut dropped, mut bytes) = (0, 0);
        if let Deferred::Record { finished, has_key, .. } = &mut deferred {
            bytes = finished.result.as_ref().map_or(0, |result| result.to_string().len());
            let limit = if *has_key { MAX_REPLAY_BYTES } else { MAX_RESULT_BYTES };
            if bytes > limit {
                (finished.result, bytes) = (None, 0); // nor would the database keep it
            }
            dropped += self.make_room(bytes);
            if self.result_bytes + bytes > MAX_WAITING_BYTES {
                (finished.result, bytes) = (None, 0);
                dropped += 1;
            }
        }
        self.result_bytes += bytes;
        let entry = Entry { number: self.next, bytes, deferred };
        self.next += 1;
        let is_new = !self.by_key.contains_key(key);
        self.by_key.entry(key.clone()).or_default().entries.push_back(entry);
        (is_new, dropped)
    }

    /// Drops the oldest results that no idempotency key can ask for, as many as it takes. Gives how many.
    fn make_room(&mut self, more: usize) -> usize {
        let mut dropped = 0;
        if self.result_bytes + more <= MAX_WAITING_BYTES {
            return dropped;
        }
        let entries = self.by_key.values_mut().flat_map(|queue| &mut queue.entries);
        let may_go = |entry: &&mut Entry| {
            entry.bytes > 0 && matches!(entry.deferred, Deferred::Record { has_key: false, .. })
        };
        let mut candidates: Vec<&mut Entry> = entries.filter(may_go).collect();
        candidates.sort_by_key(|entry| entry.number);
        for entry in candidates {
            if self.result_bytes + more <= MAX_WAITING_BYTES {
                break;
            }
            if let Deferred::Record { finished, .. } = &mut entry.deferred {
                finished.result = None;
            }
            self.result_bytes -= std::mem::take(&mut entry.bytes);
            dropped += 1;
        }
        dropped
    }

    /// The next one of a queue, which stays until it is written. `None` ends the queue.
    fn first(&mut self, key: &ContextKey) -> Option<Entry> {
        let first = self.by_key.get_mut(key).and_then(|queue| queue.entries.pop_front());
        match &first {
            Some(entry) => self.result_bytes -= entry.bytes,
            None => drop(self.by_key.remove(key)),
        }
        first
    }

    /// Puts back what could not be written. Gives what wakes the queue's task.
    fn put_back(&mut self, key: &ContextKey, first: Entry, why: Option<DatabaseState>) -> OwnedNotified {
        self.result_bytes += first.bytes;
        let queue = self.by_key.entry(key.clone()).or_default();
        queue.entries.push_front(first);
        let wake = Arc::clone(&queue.wake).notified_owned();
        queue.failed.send_replace(why);
        wake
    }
}

impl WriteBehind {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        lock(&self.queues)
    }

    /// Whether anything of any key has yet to be written.
    pub(super) fn is_behind(&self) -> bool {
        !self.lock().by_key.is_empty()
    }

    /// Whether anything of this key has yet to be written.
    pub(super) fn is_behind_on(&self, key: &ContextKey) -> bool {
        self.lock().by_key.contains_key(key)
    }

    /// Waits until everything of a key is written.
    ///
    /// # Errors
    /// The state in which a try found the database meanwhile, unless it is one that passes soon; busy at the deadline.
    pub(super) async fn settled(&self, key: &ContextKey, deadline: Instant) -> Result<(), StoreError> {
        loop {
            let queue =
                self.lock().by_key.get(key).map(|queue| (queue.failed.subscribe(), queue.wake.clone()));
            let Some((mut failed, wake)) = queue else { return Ok(()) };
            wake.notify_waiters();
            match tokio::time::timeout_at(deadline, failed.changed()).await {
                Err(_) => return Err(StoreError::State(DatabaseState::Busy, Cause::Known)),
                Ok(Err(_)) => {} // the queue is over
                Ok(Ok(())) => match *failed.borrow() {
                    Some(state) if !state.passes_soon() => {
                        return Err(StoreError::State(state, Cause::Known));
                    }
                    _ => {}
                },
            }
        }
    }
}

impl Core {
    /// The database could not take this; it will be written once it can.
    pub(super) fn write_later(self: &Arc<Self>, key: &ContextKey, entry: Deferred) {
        let (is_new, dropped) = self.write_behind.lock().push(key, entry);
        if dropped > 0 {
            metrics::RESULTS_DROPPED.add(&[], dropped as u64);
            tracing::warn!(
                dropped,
                "results are not kept, only their records: too many bytes wait for the database"
            );
        }
        if is_new {
            let (core, key) = (Arc::clone(self), key.clone());
            self.runs.spawn(async move { core.write_queue(&key).await });
        }
    }

    async fn write_queue(&self, key: &ContextKey) {
        let mut reading = None;
        let mut last_try = None;
        loop {
            let Some(mut first) = self.write_behind.lock().first(key) else { return };
            let written = {
                // It is never closed.
                let _permit = self.write_behind.writers.acquire().await;
                self.write(key, &mut first.deferred, &mut reading).await
            };
            let Err(error) = written else { continue };
            if self.shutdown.is_cancelled() {
                last_try.get_or_insert_with(|| Instant::now() + LAST_TRIES);
            }
            if !error.is_retryable() || last_try.is_some_and(|last| Instant::now() >= last) {
                tracing::error!(error = %chain(&error), lost = ?first.deferred.id(), "a record is lost");
                continue;
            }
            reading = None;
            let wake = self.write_behind.lock().put_back(key, first, error.state());
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = wake => tokio::time::sleep(PAUSE / 50).await,
                () = self.shutdown.cancelled(), if last_try.is_none() => {}
            }
        }
    }

    async fn write(
        &self,
        key: &ContextKey,
        entry: &mut Deferred,
        reading: &mut Option<Reading>,
    ) -> Result<(), StoreError> {
        match entry {
            Deferred::Record { finished, ended, .. } => {
                let reading = match reading {
                    Some(reading) => *reading,
                    None => *reading.insert(self.read_time().await?),
                };
                finished.ended_at = Some(reading.time_of(*ended));
                self.room
                    .noted(Write::Record, self.store().record(finished, &self.options().limits).await)
                    .map(drop)
            }
            Deferred::Abandon { execution, status, error } => {
                self.store().abandon(&key.tenant, *execution, *status, Some(error)).await.map(drop)
            }
            Deferred::Numbers(numbers) => self.store().save_placeholders(key, numbers).await,
        }
    }
}

/// The database's time at a moment of this process.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Instant,
    time: DateTime<Utc>,
}

impl Reading {
    fn time_of(&self, moment: Instant) -> DateTime<Utc> {
        let passed = |from: Instant, to: Instant| {
            TimeDelta::from_std(to.saturating_duration_since(from)).unwrap_or_default()
        };
        self.time - passed(moment, self.at) + passed(self.at, moment)
    }
}

impl Core {
    /// The quickest of three readings, which is the most exact.
    async fn read_time(&self) -> Result<Reading, StoreError> {
        let mut best = self.read_time_once().await?;
        for _ in 0..2 {
            let next = self.read_time_once().await?;
            if next.0 < best.0 {
                best = next;
            }
        }
        Ok(best.1)
    }

    async fn read_time_once(&self) -> Result<(Duration, Reading), StoreError> {
        let asked = Instant::now();
        let time = self.store().now().await?;
        let took = asked.elapsed();
        Ok((took, Reading { at: asked + took / 2, time }))
    }
}

impl Deferred {
    fn id(&self) -> Option<ExecutionId> {
        match self {
            Self::Record { finished, .. } => Some(finished.id),
            Self::Abandon { execution, .. } => Some(*execution),
            Self::Numbers(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::domain::{Clock, ContextId, ConversationId, Entropy, PathId, TenantId};

    /// A record whose result has this many bytes.
    fn record(bytes: usize, has_key: bool) -> Deferred {
        let (clock, entropy) = (Clock::system(), Entropy::system());
        let finished = FinishedExecution {
            id: ExecutionId::mint(&clock, &entropy),
            tenant: TenantId::parse("acme").unwrap(),
            context: ContextId::mint(&clock, &entropy),
            status: ExecutionStatus::Completed,
            exit_code: Some(0),
            error: None,
            duration_ms: 1,
            queued_ms: 0,
            output_bytes: 0,
            findings: Value::Null,
            result: Some(Value::String("x".repeat(bytes - 2))),
            provider_ends_at: None,
            ended_at: None,
            offline: None,
            asked: None,
        };
        Deferred::Record { finished: Box::new(finished), ended: Instant::now(), has_key }
    }

    fn key(path: &str) -> ContextKey {
        ContextKey {
            tenant: TenantId::parse("acme").unwrap(),
            owner: crate::domain::Owner::tenant(),
            conversation: ConversationId::parse("c").unwrap(),
            path: PathId::parse(path).unwrap(),
        }
    }

    /// Bytes of results, oldest first.
    fn sizes(queues: &Queues) -> Vec<usize> {
        let entries = queues.by_key.values().flat_map(|queue| &queue.entries);
        let mut sizes: Vec<_> = entries.map(|entry| (entry.number, entry.bytes)).collect();
        sizes.sort_unstable();
        sizes.into_iter().map(|(_, bytes)| bytes).collect()
    }

    #[test]
    fn the_oldest_results_without_a_key_are_dropped_first_and_no_record_is() {
        const MIB: usize = 1024 * 1024;
        let mut queues = Queues::default();
        let mut path = 0;
        let mut push = |queues: &mut Queues, bytes, has_key| {
            path += 1;
            let (is_new, dropped) = queues.push(&key(&format!("p{}", path % 3)), record(bytes, has_key));
            assert_eq!(is_new, path <= 3);
            dropped
        };
        assert_eq!(
            push(&mut queues, MAX_RESULT_BYTES + 1, false),
            0,
            "the database would not keep it either"
        );
        assert_eq!(push(&mut queues, MAX_RESULT_BYTES + 1, true), 0);
        assert_eq!(sizes(&queues), [0, MIB + 1]);
        for _ in 0..6 {
            assert_eq!(push(&mut queues, 8 * MIB, true), 0);
        }
        for _ in 0..14 {
            assert_eq!(push(&mut queues, MIB, false), 0);
        }
        assert_eq!(push(&mut queues, MIB - 1, false), 0, "64 MiB to the byte");
        let whole = sizes(&queues);
        assert_eq!(push(&mut queues, 8 * MIB, true), 8, "eight without a key make room for one with");
        assert_eq!(sizes(&queues)[8..16], [0; 8]);
        assert_eq!(sizes(&queues)[..8], whole[..8], "results with a key stay");
        assert_eq!(
            push(&mut queues, 8 * MIB, true),
            8,
            "the other seven are not enough, so the new one goes"
        );
        assert_eq!(sizes(&queues).len(), whole.len() + 2, "no record is dropped");
        assert!(queues.result_bytes <= MAX_WAITING_BYTES);

        let first = queues.first(&key("p1")).unwrap();
        drop(queues.put_back(&key("p1"), first, Some(DatabaseState::Full)));
        for path in ["p0", "p1", "p2"] {
            while queues.first(&key(path)).is_some() {}
        }
        assert!(queues.by_key.is_empty());
        assert_eq!(queues.result_bytes, 0);
    }

    #[tokio::test]
    async fn a_waiter_for_a_key_gets_the_outcome_of_its_own_queue_only() {
        let waiting = WriteBehind::default();
        let soon = Instant::now() + Duration::from_millis(50);
        let far = Instant::now() + Duration::from_secs(600);
        waiting.lock().push(&key("stuck"), record(10, false));
        waiting.settled(&key("other"), far).await.unwrap();
        let busy = waiting.settled(&key("stuck"), soon).await.unwrap_err();
        assert_eq!(busy.state(), Some(DatabaseState::Busy));

        let stuck = key("stuck");
        let mut found = std::pin::pin!(waiting.settled(&stuck, far));
        assert!(futures::poll!(&mut found).is_pending());
        for (state, ends) in [(DatabaseState::Busy, false), (DatabaseState::Full, true)] {
            let first = waiting.lock().first(&key("stuck")).unwrap();
            drop(waiting.lock().put_back(&key("stuck"), first, Some(state)));
            match futures::poll!(&mut found) {
                std::task::Poll::Pending => assert!(!ends),
                std::task::Poll::Ready(found) => assert_eq!(found.unwrap_err().state(), Some(state)),
            }
        }

        let mut settled = std::pin::pin!(waiting.settled(&stuck, far));
        assert!(futures::poll!(&mut settled).is_pending());
        while waiting.lock().first(&key("stuck")).is_some() {}
        settled.await.unwrap();
    }
}
