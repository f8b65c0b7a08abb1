//! Runs after they were begun: where one is, what it came to, and how to stop it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::domain::{ContextKey, ConversationId, ExecutionId, Language, TenantId};
use crate::store::{ContextFilter, ContextRow, ExecutionFilter, ExecutionRow, ExecutionStatus};

use super::run_code::Stored;
use super::{Artifact, Call, ExecutionError, ExecutionService, Finished};

/// A run that has begun and may outlive whoever began it.
#[derive(Debug)]
pub struct Begun {
    /// Its id.
    pub execution: ExecutionId,
    /// The context that serves it, as a handle.
    pub handle: String,
    /// The language.
    pub language: Language,
    pub(super) task: JoinHandle<Result<Finished, ExecutionError>>,
}

impl Begun {
    /// Waits for its end. Dropping the future does not stop the run; its cancellation token does.
    ///
    /// # Errors
    /// As [`ExecutionService::run_code`].
    pub async fn finished(&mut self) -> Result<Finished, ExecutionError> {
        let joined = (&mut self.task).await;
        joined.unwrap_or_else(|error| Err(ExecutionError::Internal(format!("the run's task ended: {error}"))))
    }
}

/// What is known of a run.
#[derive(Debug, Clone)]
pub enum Recalled {
    /// It waits or runs.
    Running(ExecutionRow),
    /// It came to a result, which was kept.
    Finished(Box<Finished>),
    /// It came to an end without one: the platform failed, or the result was too large to keep.
    Over(ExecutionRow),
}

/// Runs of this replica that can be stopped.
#[derive(Debug, Clone, Default)]
pub(super) struct Stoppable(Arc<Mutex<HashMap<ExecutionId, (TenantId, CancellationToken)>>>);

impl Stoppable {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ExecutionId, (TenantId, CancellationToken)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Knows a run until the guard is dropped.
    pub(super) fn know(&self, id: ExecutionId, tenant: TenantId, cancel: CancellationToken) -> Known {
        self.lock().insert(id, (tenant, cancel));
        Known(self.clone(), id)
    }
}

pub(super) struct Known(Stoppable, ExecutionId);

impl Drop for Known {
    fn drop(&mut self) {
        self.0.lock().remove(&self.1);
    }
}

impl ExecutionService {
    /// Where a run is and what it came to. Only the tenant's own runs exist.
    ///
    /// # Errors
    /// [`ExecutionError::UnknownExecution`], or the store's.
    pub async fn recall(&self, tenant: &TenantId, id: ExecutionId) -> Result<Recalled, ExecutionError> {
        let row = self.store().execution(tenant, id).await?.ok_or(ExecutionError::UnknownExecution(id))?;
        if matches!(row.status, ExecutionStatus::Queued | ExecutionStatus::Running) {
            return Ok(Recalled::Running(row));
        }
        let stored: Option<Stored> = row.result.clone().and_then(|value| serde_json::from_value(value).ok());
        let Some(Stored { record, outcome }) = stored else { return Ok(Recalled::Over(row)) };
        let call = Call { key: row.key.clone(), principal: None, trace_id: None, idempotency_key: None };
        Ok(Recalled::Finished(Box::new(Finished {
            execution: row.id,
            handle: self.mint_handle(&row.key),
            language: row.language,
            record,
            outcome: self.guard_again(&call, outcome).await,
            key: row.key,
            replayed: false,
        })))
    }

    /// Stops a run of this replica. `false`: it does not run here.
    pub fn stop_run(&self, tenant: &TenantId, id: ExecutionId) -> bool {
        let runs = self.0.stoppable.lock();
        match runs.get(&id) {
            Some((owner, cancel)) if owner == tenant => {
                cancel.cancel();
                true
            }
            _ => false,
        }
    }

    /// A part of a kept output or picture, with its description and whole length.
    ///
    /// # Errors
    /// [`ExecutionError::UnknownArtifact`] when the tenant has no such thing, or the store's.
    pub async fn artifact(
        &self,
        tenant: &TenantId,
        uri: &str,
        offset: u64,
        limit: usize,
    ) -> Result<(Artifact, Vec<u8>), ExecutionError> {
        let unknown = || ExecutionError::UnknownArtifact(uri.chars().take(200).collect());
        let (id, name) = super::Outputs::parse_uri(uri).ok_or_else(unknown)?;
        let row = self.store().execution(tenant, id).await?.ok_or_else(unknown)?;
        let known = artifacts(&row).into_iter().find(|artifact| artifact.name == name);
        let artifact = known.ok_or_else(unknown)?;
        let (bytes, total) = self.outputs().read(id, name, offset, limit).map_err(|_| unknown())?;
        Ok((Artifact { bytes: total, ..artifact }, bytes))
    }

    /// The live context of a key, without its sandbox.
    ///
    /// # Errors
    /// The store's.
    pub async fn live_context(&self, key: &ContextKey) -> Result<Option<ContextRow>, ExecutionError> {
        Ok(self.store().live(key).await?)
    }

    /// The live contexts of a conversation, newest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn contexts_of(
        &self,
        tenant: &TenantId,
        conversation: &ConversationId,
    ) -> Result<Vec<ContextRow>, ExecutionError> {
        let filter = ContextFilter {
            tenant: Some(tenant.clone()),
            conversation: Some(conversation.clone()),
            ..ContextFilter::default()
        };
        Ok(self.store().contexts(&filter).await?)
    }

    /// What a conversation's latest runs left to be read.
    ///
    /// # Errors
    /// The store's.
    pub async fn artifacts_of(
        &self,
        tenant: &TenantId,
        conversation: &ConversationId,
        runs: u32,
    ) -> Result<Vec<Artifact>, ExecutionError> {
        let filter = ExecutionFilter {
            tenant: Some(tenant.clone()),
            conversation: Some(conversation.clone()),
            limit: Some(runs),
            ..ExecutionFilter::default()
        };
        let mut found = Vec::new();
        for row in self.store().executions(&filter).await? {
            // Listings may come without results.
            let row =
                if row.result.is_some() { Some(row) } else { self.store().execution(tenant, row.id).await? };
            found.extend(row.iter().flat_map(artifacts));
        }
        Ok(found)
    }
}

fn artifacts(row: &ExecutionRow) -> Vec<Artifact> {
    let found = row.result.as_ref().map(|result| result["record"]["artifacts"].clone());
    found.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
}
