//! Runs after they were begun: where one is and what it came to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::domain::{
    ConversationId, ExecutionId, Kept, KeptError, Language, Owner, TenantId, check_form, from_kept,
    from_value,
};
use crate::guard::Sanitized;
use crate::objects::ObjectError;
use crate::store::{ExecutionFilter, ExecutionRow, ExecutionStatus};

use super::record::Stored;
use super::run_analysis;
use super::{Artifact, Call, Core, ExecutionError, Finished};

/// The longest kept file that is looked at again after the policy has changed; what is longer is taken out again.
const MAX_AGAIN: u64 = 64 * 1024 * 1024;

/// A run that has begun and may outlive its caller.
#[derive(Debug)]
pub struct Begun {
    pub(super) execution: ExecutionId,
    /// The run under the same idempotency key that it waits for, which is the one to follow.
    pub(super) in_flight: Arc<OnceLock<ExecutionId>>,
    /// The context that serves it, as a handle.
    pub handle: String,
    /// The language.
    pub language: Language,
    pub(super) sent: Arc<AtomicBool>,
    pub(super) written: CancellationToken,
    pub(super) task: JoinHandle<Result<Finished, ExecutionError>>,
}

impl Begun {
    /// The id to follow it by.
    pub fn execution(&self) -> ExecutionId {
        self.in_flight.get().copied().unwrap_or(self.execution)
    }

    /// Whether the code runs. Until then it waits for its context.
    pub fn is_running(&self) -> bool {
        self.sent.load(Ordering::Relaxed) || self.in_flight.get().is_some()
    }

    /// Waits until it is written down, so that every replica can be asked for it.
    pub fn written(&self) -> impl Future<Output = ()> + use<> {
        self.written.clone().cancelled_owned()
    }

    /// Waits for its end. Dropping the future does not stop the run; its cancellation token does.
    ///
    /// # Errors
    /// As [`Runs::run_code`](super::Runs::run_code).
    pub async fn finished(&mut self) -> Result<Finished, ExecutionError> {
        let joined = (&mut self.task).await;
        joined.unwrap_or_else(|error| Err(ExecutionError::of_task(&error)))
    }
}

/// What is known of a run.
#[derive(Debug, Clone)]
pub enum Recalled {
    /// It waits or runs.
    Running(ExecutionRow),
    /// It came to a result, which was kept.
    Finished(Box<Finished>, Box<ExecutionRow>),
    /// It came to an end without one: the platform failed, or the result was too large to keep.
    Over(ExecutionRow),
}

/// The principal behind a request about contexts and runs. What is neither its own nor shared with it does not exist for it.
#[derive(Debug, Clone)]
pub struct Requester {
    /// Its tenant.
    pub tenant: TenantId,
    /// The owner of the contexts that its calls make.
    pub owner: Owner,
    /// Its name.
    pub principal: String,
    /// Whether it acts for the whole tenant.
    pub sees_tenant: bool,
}

impl Requester {
    /// Whether it may see a run on a context of `owner` that `principal` asked for.
    pub(super) fn may_see(&self, owner: &Owner, principal: Option<&str>) -> bool {
        self.sees_tenant || self.owner == *owner || principal == Some(self.principal.as_str())
    }

    /// The owner whose things it lists; `None` is every owner's.
    pub(super) fn lists(&self) -> Option<Owner> {
        (!self.sees_tenant).then(|| self.owner.clone())
    }
}

impl Core {
    /// The row of a run, if the requester may see it.
    pub(super) async fn row_for(
        &self,
        requester: &Requester,
        id: ExecutionId,
    ) -> Result<Option<ExecutionRow>, ExecutionError> {
        let row = self.store().execution(&requester.tenant, id).await?;
        Ok(row.filter(|row| requester.may_see(&row.key.owner, row.principal.as_deref())))
    }
}

/// Looks up runs after they were begun, and what they left. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reads(pub(super) Arc<Core>);

impl Reads {
    /// How long a run can be looked up after its end.
    pub fn retention(&self) -> Duration {
        self.0.options().retention
    }

    /// The latest runs of a tenant, or of all, newest first, without their results.
    ///
    /// # Errors
    /// The store's.
    pub async fn latest(
        &self,
        tenant: Option<&TenantId>,
        limit: u32,
    ) -> Result<Vec<ExecutionRow>, ExecutionError> {
        let filter =
            ExecutionFilter { tenant: tenant.cloned(), limit: Some(limit), ..ExecutionFilter::default() };
        Ok(self.0.store().executions(&filter).await?)
    }

    /// Where a run is and what it came to. Only the requester's own runs exist.
    ///
    /// # Errors
    /// [`ExecutionError::UnknownExecution`], or the store's.
    pub async fn recall(&self, requester: &Requester, id: ExecutionId) -> Result<Recalled, ExecutionError> {
        let row = self.0.row_for(requester, id).await?.ok_or(ExecutionError::UnknownExecution(id))?;
        if matches!(row.status, ExecutionStatus::Queued | ExecutionStatus::Running) {
            return Ok(Recalled::Running(row));
        }
        let Some(kept) = row.result.clone() else { return Ok(Recalled::Over(row)) };
        let Stored { record, outcome } = from_kept(kept)?;
        let kept = Box::new(ExecutionRow { result: None, ..row.clone() });
        let call = asking(requester, &row);
        let (record, outcome) = self.0.guard_again(&call, record, outcome).await;
        let finished = Box::new(Finished {
            execution: row.id,
            tool: row.tool,
            handle: self.0.mint_handle(&row.key, &call.requester.principal),
            language: row.language,
            record,
            outcome,
            key: row.key,
            replayed: false,
        });
        Ok(Recalled::Finished(finished, kept))
    }

    /// A part of a kept output or picture, with its description and whole length.
    ///
    /// # Errors
    /// [`ExecutionError::UnknownArtifact`] when the requester has no such thing, or the store's.
    pub async fn artifact(
        &self,
        requester: &Requester,
        uri: &str,
        offset: u64,
        limit: usize,
    ) -> Result<(Artifact, Vec<u8>), ExecutionError> {
        let unknown = || ExecutionError::UnknownArtifact(uri.chars().take(200).collect());
        let (id, name) = super::Outputs::parse_uri(uri).ok_or_else(unknown)?;
        let row = self.0.row_for(requester, id).await?.ok_or_else(unknown)?;
        let known = row
            .result
            .as_ref()
            .map(artifacts)
            .transpose()?
            .unwrap_or_default()
            .into_iter()
            .find(|artifact: &Artifact| artifact.uri == uri);
        let report = (row.tool == run_analysis::TOOL && name == run_analysis::FILE)
            .then(|| run_analysis::report_file(id, 0));
        if known.is_none() && report.is_none() {
            return Err(unknown());
        }
        let failed = |error| match error {
            ObjectError::Missing if known.is_none() => unknown(),
            error => ExecutionError::of_object(&format!("the file {uri}"), error),
        };
        let (bytes, total) = match self.guarded_now(requester, &row, name).await.map_err(failed)? {
            Guarded::AsKept => {
                let (page, total) = self.0.outputs().read(id, name, offset, limit).await.map_err(failed)?;
                (page.to_vec(), total)
            }
            Guarded::Withheld => return Err(unknown()),
            Guarded::Again(whole) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(whole.len());
                let to = from.saturating_add(limit).min(whole.len());
                (whole[from..to].to_vec(), whole.len() as u64)
            }
        };
        let artifact = known.or(report).ok_or_else(unknown)?;
        Ok((Artifact { bytes: total, ..artifact }, bytes))
    }

    /// What today's policy makes of a kept file, if it is another than that of the run: of the whole file, for a page may
    /// begin in the middle of a value.
    async fn guarded_now(
        &self,
        requester: &Requester,
        row: &ExecutionRow,
        name: &str,
    ) -> Result<Guarded, ObjectError> {
        let guard = self.0.guard_for(&asking(requester, row));
        let then = row.result.as_ref().map(|result| &result["record"]["guard"]["policy_fingerprint"]);
        if then.is_some_and(|then| *then == guard.report().policy_fingerprint) {
            return Ok(Guarded::AsKept);
        }
        let (_, total) = self.0.outputs().read(row.id, name, 0, 1).await?;
        if total > MAX_AGAIN {
            return Ok(Guarded::Withheld);
        }
        let numbering = self.0.numbering(&row.key).await;
        let is_output = ["stdout", "stderr"].contains(&name);
        let (whole, _) = self.0.outputs().read(row.id, name, 0, usize::MAX).await?;
        // Tens of megabytes take a second.
        let again = tokio::task::spawn_blocking(move || {
            guard.recorded_file(&whole, is_output, numbering).map(Sanitized::into_inner)
        });
        Ok(again.await.ok().flatten().map_or(Guarded::Withheld, Guarded::Again))
    }

    /// What a conversation's latest runs left to be read.
    ///
    /// # Errors
    /// The store's.
    pub async fn artifacts_of(
        &self,
        requester: &Requester,
        conversation: &ConversationId,
        runs: u32,
    ) -> Result<Vec<Artifact>, ExecutionError> {
        let filter = ExecutionFilter {
            tenant: Some(requester.tenant.clone()),
            owner: requester.lists(),
            principal: Some(requester.principal.clone()),
            conversation: Some(conversation.clone()),
            limit: Some(runs),
            ..ExecutionFilter::default()
        };
        let mut found = Vec::new();
        for kept in self.0.store().artifacts(&requester.tenant, &filter).await? {
            found.extend(artifacts(&kept)?);
        }
        Ok(found)
    }
}

/// A kept file under today's policy.
enum Guarded {
    /// The policy is still the one that it was kept under.
    AsKept,
    /// It may not go out.
    Withheld,
    /// It goes out like this.
    Again(Vec<u8>),
}

/// The call that asks for what a run left.
fn asking(requester: &Requester, row: &ExecutionRow) -> Call {
    Call::on(row.key.clone(), requester.clone())
}

/// What a run left, by its record alone: the outcome beside it may be megabytes.
fn artifacts(kept: &Value) -> Result<Vec<Artifact>, KeptError> {
    check_form::<Stored>(kept)?;
    let read = from_value::<Option<Vec<Artifact>>>(&kept["record"]["artifacts"]);
    read.map(Option::unwrap_or_default).map_err(|source| KeptError::Malformed { what: Stored::WHAT, source })
}
