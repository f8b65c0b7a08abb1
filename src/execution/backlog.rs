//! What the database has to be told once it is back: the ends of runs, in order, each once.
//!
//! One task tells it, and only while there is something to tell. The surprise: times are the database's, and the clocks
//! of replicas are never compared with it. So the task asks for the database's time once it is back and counts back
//! from there, by the same reading for all records: their order and their distances stay what they were.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

use crate::domain::{ContextKey, ExecutionId, TenantId};
use crate::store::{
    ExecutionStatus, FinishedExecution, MAX_REPLAY_BYTES, MAX_RESULT_BYTES, Placeholders, StoreError,
};
use crate::telemetry::metrics;

use super::Core;
use crate::telemetry::chain;

/// Bytes of results, as JSON, that wait with their records. A record itself always waits: without its result it is small.
const MAX_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// Between tries.
const PAUSE: Duration = Duration::from_millis(500);

/// One thing to tell.
#[derive(Debug)]
pub(super) enum Late {
    /// A run's end.
    Record {
        finished: Box<FinishedExecution>,
        /// When it ended.
        ended: Instant,
        /// Whether it has an idempotency key, so that its result will be asked for again.
        has_key: bool,
    },
    /// A run that did not start; see [`crate::store::ContextStore::abandon`].
    Abandon { tenant: TenantId, execution: ExecutionId, status: ExecutionStatus, error: String },
    /// Placeholder numbers that a run gave out.
    Numbers { key: ContextKey, numbers: Placeholders },
}

#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    late: VecDeque<Late>,
    is_told: bool,
    /// Of all results in `late`.
    result_bytes: usize,
}

impl Waiting {
    /// Puts one more at the end. When the results become too many bytes, the oldest ones that no idempotency key can ask
    /// for are dropped; when that is not enough, the new one is. Gives how many were.
    fn push(&mut self, mut late: Late) -> usize {
        let mut dropped = 0;
        if let Late::Record { finished, has_key, .. } = &mut late {
            let limit = if *has_key { MAX_REPLAY_BYTES } else { MAX_RESULT_BYTES };
            if result_bytes(finished) > limit {
                finished.result = None; // nor would the database keep it
            }
            let more = result_bytes(finished);
            let mut others = self.late.iter_mut();
            while self.result_bytes + more > MAX_WAITING_BYTES
                && let Some(other) = others.next()
            {
                if let Late::Record { finished, has_key: false, .. } = other
                    && finished.result.is_some()
                {
                    self.result_bytes -= result_bytes(finished);
                    finished.result = None;
                    dropped += 1;
                }
            }
            if self.result_bytes + more > MAX_WAITING_BYTES {
                finished.result = None;
                dropped += 1;
            }
        }
        self.result_bytes += late.result_bytes();
        self.late.push_back(late);
        dropped
    }

    fn pop(&mut self) -> Option<Late> {
        let first = self.late.pop_front()?;
        self.result_bytes -= first.result_bytes();
        Some(first)
    }

    /// Puts back what could not be told.
    fn put_back(&mut self, first: Late) {
        self.result_bytes += first.result_bytes();
        self.late.push_front(first);
    }
}

fn result_bytes(finished: &FinishedExecution) -> usize {
    finished.result.as_ref().map_or(0, |result| result.to_string().len())
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// Whether the database has yet to be told something.
    pub(super) fn is_behind(&self) -> bool {
        self.backlog.lock().is_told
    }

    /// The database could not be told; it will be.
    pub(super) fn tell_later(self: &Arc<Self>, late: Late) {
        let mut waiting = self.backlog.lock();
        let dropped = waiting.push(late);
        if dropped > 0 {
            metrics::RESULTS_DROPPED.add(&[], dropped as u64);
            tracing::warn!(
                dropped,
                "results are not kept, only their records: too many bytes wait for the database"
            );
        }
        if !std::mem::replace(&mut waiting.is_told, true) {
            let core = Arc::clone(self);
            self.runs.spawn(async move { core.tell_all().await });
        }
    }

    async fn tell_all(&self) {
        let mut reading = None;
        loop {
            let first = {
                let mut waiting = self.backlog.lock();
                let first = waiting.pop();
                waiting.is_told = first.is_some();
                first
            };
            let Some(mut first) = first else { return };
            match self.tell(&mut first, &mut reading).await {
                Ok(()) => {}
                Err(error) if error.is_retryable() && !self.shutdown.is_cancelled() => {
                    self.backlog.lock().put_back(first);
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE) => {}
                        () = self.shutdown.cancelled() => {}
                    }
                }
                Err(error) => tracing::error!(error = %chain(&error), lost = ?first.id(), "a record is lost"),
            }
        }
    }

    async fn tell(&self, late: &mut Late, reading: &mut Option<Reading>) -> Result<(), StoreError> {
        match late {
            Late::Record { finished, ended, .. } => {
                let reading = match reading {
                    Some(reading) => *reading,
                    None => *reading.insert(self.read_time().await?),
                };
                finished.ended_at = Some(reading.time_of(*ended));
                self.store().record(finished, &self.options().limits).await.map(drop)
            }
            Late::Abandon { tenant, execution, status, error } => {
                self.store().abandon(tenant, *execution, *status, Some(error)).await.map(drop)
            }
            Late::Numbers { key, numbers } => self.store().save_placeholders(key, numbers).await,
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

impl Late {
    fn result_bytes(&self) -> usize {
        match self {
            Self::Record { finished, .. } => result_bytes(finished),
            Self::Abandon { .. } | Self::Numbers { .. } => 0,
        }
    }

    fn id(&self) -> Option<ExecutionId> {
        match self {
            Self::Record { finished, .. } => Some(finished.id),
            Self::Abandon { execution, .. } => Some(*execution),
            Self::Numbers { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::domain::{Clock, ContextId, Entropy, TenantId};

    /// A record whose result has so many bytes.
    fn record(bytes: usize, has_key: bool) -> Late {
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
            unasked: None,
        };
        Late::Record { finished: Box::new(finished), ended: Instant::now(), has_key }
    }

    fn sizes(waiting: &Waiting) -> Vec<usize> {
        waiting.late.iter().map(Late::result_bytes).collect()
    }

    #[test]
    fn the_oldest_results_without_a_key_are_dropped_first_and_no_record_is() {
        const MIB: usize = 1024 * 1024;
        let mut waiting = Waiting::default();
        assert_eq!(
            waiting.push(record(MAX_RESULT_BYTES + 1, false)),
            0,
            "the database would not keep it either"
        );
        assert_eq!(waiting.push(record(MAX_RESULT_BYTES + 1, true)), 0);
        assert_eq!(sizes(&waiting), [0, MIB + 1]);
        for _ in 0..6 {
            assert_eq!(waiting.push(record(8 * MIB, true)), 0);
        }
        for _ in 0..14 {
            assert_eq!(waiting.push(record(MIB, false)), 0);
        }
        assert_eq!(waiting.push(record(MIB - 1, false)), 0, "64 MiB to the byte");
        let whole = sizes(&waiting);
        assert_eq!(waiting.push(record(8 * MIB, true)), 8, "eight without a key make room for one with");
        assert_eq!(sizes(&waiting)[8..16], [0; 8]);
        assert_eq!(sizes(&waiting)[..8], whole[..8], "results with a key stay");
        assert_eq!(
            waiting.push(record(8 * MIB, true)),
            8,
            "the other seven are not enough, so the new one goes"
        );
        assert_eq!(waiting.late.len(), whole.len() + 2, "no record is dropped");
        assert!(waiting.result_bytes <= MAX_WAITING_BYTES);

        let first = waiting.pop().unwrap();
        waiting.put_back(first);
        while waiting.pop().is_some() {}
        assert_eq!(waiting.result_bytes, 0);
    }
}
