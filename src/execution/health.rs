//! What a readiness probe, the metrics and `doctor` ask of a running service.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::domain::{Clock, lock};
use crate::e2b::{CircuitState, ListFilter};
use crate::store::{DatabaseState, StoreError};
use crate::telemetry::metrics;

use super::{Core, ExecutionError};

/// How long a readiness probe waits for the database.
const MOMENT: Duration = Duration::from_secs(1);
/// How long the database may take to count what lives.
const COUNTING: Duration = Duration::from_secs(2);

/// Writes to the database, by how much room they take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Write {
    /// That this replica lives.
    Live,
    /// That a run begins.
    Begin,
    /// What a run came to.
    Record,
}

/// The last write for which the disk under the database had no room, unless one that takes as much has found some since. A
/// probe does not write, and a database on a full disk answers: so this is all that is known, and the checks show its time.
#[derive(Debug)]
pub(super) struct Room {
    clock: Clock,
    failed: Mutex<Option<(Write, DateTime<Utc>)>>,
}

impl Room {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, failed: Mutex::default() }
    }

    /// Notes whether a write found room. One that failed for another reason says nothing about that.
    pub(super) fn note(&self, write: Write, error: Option<&StoreError>) {
        let is_full = error.is_some_and(|error| error.state() == Some(DatabaseState::Full));
        let mut failed = lock(&self.failed);
        let largest = failed.map_or(write, |(before, _)| before.max(write));
        if is_full {
            *failed = Some((largest, self.clock.now()));
        } else if error.is_none() && write == largest {
            *failed = None;
        }
    }

    /// As [`Self::note`], and gives back what became of the write.
    pub(super) fn noted<T>(&self, write: Write, written: Result<T, StoreError>) -> Result<T, StoreError> {
        self.note(write, written.as_ref().err());
        written
    }

    /// When a write last found none.
    fn full_at(&self) -> Option<DateTime<Utc>> {
        lock(&self.failed).map(|(_, at)| at)
    }
}

/// How the service is. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Health(pub(super) Arc<Core>);

/// One thing that a running service depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// What: `database`, `migrations`, `provider`, `isolation`, `policy`, `outputs`.
    pub name: &'static str,
    /// Whether it does its part.
    pub ok: bool,
    /// How it is, in a word or a few that tell a stranger nothing.
    pub state: &'static str,
    /// What does not work meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<&'static str>,
    /// When that was found out, if not just now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<DateTime<Utc>>,
}

impl Health {
    /// What this service depends on, for a readiness probe, the console and `doctor`. Nothing here asks the provider.
    pub async fn checks(&self) -> Vec<Checked> {
        let (database, full_at) = (self.database().await, self.0.room.full_at());
        let checked = |name, ok, state| Checked { name, ok, state, effect: None, at: None };
        // A start without them is refused.
        let migrations = checked("migrations", true, "applied");
        let provider = match (self.provider_problem().is_some(), self.provider_rests_for().is_some()) {
            (true, _) => checked("provider", false, "none"),
            (false, true) => checked("provider", false, "away"),
            (false, false) => checked("provider", true, "serves"),
        };
        let isolation = match (&self.0.parts.local, self.provider_problem().is_some()) {
            (Some(_), _) => checked("isolation", true, "this machine's kernel"),
            (None, true) => checked("isolation", false, "cannot be had here"),
            (None, false) => checked("isolation", true, "the provider's"),
        };
        let policy = match self.0.parts.policies.is_stale() {
            false => checked("policy", true, "loaded"),
            true => checked("policy", false, "the changed file is invalid; the previous one is still in use"),
        };
        let outputs = match (self.0.outputs().lost_at(), self.0.parts.are_outputs_apart) {
            (at @ Some(_), _) => Checked {
                at,
                effect: Some(
                    "results have no complete outputs, pictures and files; a full disk, or a bucket that is away",
                ),
                ..checked("outputs", false, "not kept")
            },
            (None, true) => {
                checked("outputs", false, "kept on this machine alone, while others have replicas")
            }
            (None, false) => checked("outputs", true, "found by every replica"),
        };
        let at = full_at.filter(|_| database == DatabaseState::Full.as_str());
        let database =
            Checked { effect: effect(database), at, ..checked("database", database == "serves", database) };
        vec![database, migrations, provider, isolation, policy, outputs]
    }

    /// What the database says within a moment: `serves`, its state, or that it has not said anything yet. It goes on being
    /// asked, so that a later call knows. That its disk is full is known by the last writes.
    pub async fn database(&self) -> &'static str {
        let store = Arc::clone(self.0.store());
        let asked = tokio::spawn(async move { store.ping().await });
        match tokio::time::timeout(MOMENT, asked).await {
            Ok(Ok(Ok(()))) if self.0.room.full_at().is_some() => DatabaseState::Full.as_str(),
            Ok(Ok(Ok(()))) => "serves",
            Ok(Ok(Err(error))) => error.state().map_or("refuses", DatabaseState::as_str),
            Ok(Err(_)) | Err(_) => "no answer yet",
        }
    }

    /// Whether this process takes no new runs because it ends.
    pub fn is_draining(&self) -> bool {
        self.0.runs.is_closed() || self.0.shutdown.is_cancelled()
    }

    /// Why no sandbox can be made, if so.
    pub fn provider_problem(&self) -> Option<&str> {
        self.0.parts.provider.as_ref().err().map(String::as_str)
    }

    /// How long the provider's control plane is left alone because it is down; `None` when it is not.
    fn provider_rests_for(&self) -> Option<Duration> {
        match self.0.parts.provider.as_ref().ok()?.circuit() {
            CircuitState::Open { retry_after } => Some(retry_after).filter(|rest| !rest.is_zero()),
            CircuitState::HalfOpen | CircuitState::Closed { .. } => None,
        }
    }

    /// Makes the metrics say whether the provider is left alone.
    pub fn note_provider(&self) {
        let up = self.provider_problem().is_none() && self.provider_rests_for().is_none();
        metrics::PROVIDER_UP.set(Some(u64::from(up)));
    }

    /// Asks the provider for something small, with the key. Gives how long the answer took.
    ///
    /// # Errors
    /// [`ExecutionError::NoProvider`], or [`ExecutionError::Sandbox`] with what it said.
    pub async fn ask_provider(&self) -> Result<Duration, ExecutionError> {
        let began = tokio::time::Instant::now();
        let filter = ListFilter { limit: Some(1), ..ListFilter::default() };
        self.0.provider()?.list(&filter).await.map_err(ExecutionError::Sandbox)?;
        Ok(began.elapsed())
    }

    /// How many contexts live in the whole deployment.
    ///
    /// # Errors
    /// The store's.
    pub async fn active_contexts(&self) -> Result<u64, ExecutionError> {
        Ok(self.0.store().count_live().await?)
    }

    /// Keeps the number of live contexts current until the end, for the exporter that reads the metrics each `every`.
    pub async fn count_active(&self, every: Duration, shutdown: &CancellationToken) {
        while !shutdown.is_cancelled() {
            let active = tokio::time::timeout(COUNTING, self.active_contexts()).await.ok();
            metrics::CONTEXTS_ACTIVE.set(active.and_then(Result::ok));
            self.note_provider();
            tokio::select! {
                () = tokio::time::sleep((every / 4).max(Duration::from_secs(1))) => {}
                () = shutdown.cancelled() => {}
            }
        }
    }
}

/// What does not work while a database is so.
fn effect(state: &str) -> Option<&'static str> {
    let state = state.parse::<DatabaseState>().ok()?;
    Some(match state {
        DatabaseState::Away => {
            "calls are refused (store_unavailable), except on contexts that this process holds"
        }
        DatabaseState::ReadOnly => "calls that have to be recorded are refused (store_read_only)",
        DatabaseState::Full => {
            "calls that have to be recorded are refused (store_full); ends of runs are recorded when there is room"
        }
        DatabaseState::Busy | DatabaseState::Slow => "calls wait, or are refused (store_busy)",
    })
}
