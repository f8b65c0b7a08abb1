//! What a readiness probe, the metrics and `doctor` ask of a running service.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::e2b::{CircuitState, ListFilter};
use crate::store::StoreError;
use crate::telemetry::metrics;

use super::{Core, ExecutionError};

/// How long a readiness probe waits for the database.
const MOMENT: Duration = Duration::from_secs(1);
/// How long the database may take to count what lives.
const COUNTING: Duration = Duration::from_secs(2);

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
}

impl Health {
    /// What this service depends on, for a readiness probe, the console and `doctor`. Nothing here asks the provider.
    pub async fn checks(&self) -> Vec<Checked> {
        let database = self.database().await;
        let checked = |name, ok, state| Checked { name, ok, state };
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
        let outputs = match self.0.parts.are_outputs_apart {
            false => checked("outputs", true, "found by every replica"),
            true => checked("outputs", false, "kept on this machine alone, while others have replicas"),
        };
        let database = checked("database", database == "serves", database);
        vec![database, migrations, provider, isolation, policy, outputs]
    }

    /// Asks the database for something small.
    ///
    /// # Errors
    /// The store's.
    async fn ping_store(&self) -> Result<(), StoreError> {
        self.0.store().ping().await
    }

    /// What the database says within a moment: `serves`, its state, or that it has not said anything yet. It goes on being
    /// asked, so that a later call knows.
    pub async fn database(&self) -> &'static str {
        let health = self.clone();
        let asked = tokio::spawn(async move { health.ping_store().await });
        match tokio::time::timeout(MOMENT, asked).await {
            Ok(Ok(Ok(()))) => "serves",
            Ok(Ok(Err(error))) => error.state().map_or("refuses", crate::store::DatabaseState::as_str),
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
