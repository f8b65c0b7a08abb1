//! What the database has to be told once it is back: the ends of runs, in order, each once.
//!
//! One task tells it, and only while there is something to tell. The surprise: times are the database's, and the clocks
//! of replicas are never compared with it. So the task asks for the database's time once it is back and counts back
//! from there, by the same reading for all records: their order and their distances stay what they were.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

use crate::domain::{ContextKey, ExecutionId, TenantId};
use crate::store::{ExecutionStatus, FinishedExecution, Placeholders, StoreError};

use super::ExecutionService;
use super::error::chain;

/// Records that wait with their results; those that come after wait without, so that a long outage does not fill the
/// memory.
const MAX_RESULTS: usize = 1_000;

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
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExecutionService {
    /// Whether the database has yet to be told something.
    pub(super) fn is_behind(&self) -> bool {
        self.0.backlog.lock().is_told
    }

    /// The database could not be told; it will be.
    pub(super) fn tell_later(&self, mut late: Late) {
        let mut waiting = self.0.backlog.lock();
        if let Late::Record { finished, .. } = &mut late
            && waiting.late.len() >= MAX_RESULTS
        {
            finished.result = None;
        }
        waiting.late.push_back(late);
        if !std::mem::replace(&mut waiting.is_told, true) {
            let service = self.clone();
            self.0.runs.spawn(async move { service.tell_all().await });
        }
    }

    async fn tell_all(&self) {
        let mut reading = None;
        loop {
            let first = {
                let mut waiting = self.0.backlog.lock();
                let first = waiting.late.pop_front();
                waiting.is_told = first.is_some();
                first
            };
            let Some(mut first) = first else { return };
            match self.tell(&mut first, &mut reading).await {
                Ok(()) => {}
                Err(error) if error.is_retryable() && !self.0.shutdown.is_cancelled() => {
                    self.0.backlog.lock().late.push_front(first);
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE) => {}
                        () = self.0.shutdown.cancelled() => {}
                    }
                }
                Err(error) => tracing::error!(error = %chain(&error), lost = ?first.id(), "a record is lost"),
            }
        }
    }

    async fn tell(&self, late: &mut Late, reading: &mut Option<Reading>) -> Result<(), StoreError> {
        match late {
            Late::Record { finished, ended } => {
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

impl ExecutionService {
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
    fn id(&self) -> Option<ExecutionId> {
        match self {
            Self::Record { finished, .. } => Some(finished.id),
            Self::Abandon { execution, .. } => Some(*execution),
            Self::Numbers { .. } => None,
        }
    }
}
