//! Finds a context's sandbox or makes it, once, under concurrency and over replicas.
//!
//! The store decides who makes a sandbox; here is the loop around its answers. What may surprise: the creator's
//! deadline is counted on the local monotonic clock from *before* the claim was asked for, so that a process that
//! was paused past its lease does not start a provider request whose sandbox nobody would own.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::instrument;

use crate::domain::{ContextId, ContextStatus, EndReason, ExecutionId, SandboxState};
use crate::e2b::{CreateSandbox, E2bClient, E2bError, Endpoint, McpGateway, Sandbox, SandboxAccess};
use crate::guard::own_words;
use crate::store::{
    Acquire, Acquired, Claim, ContextRow, End, ExecutionRow, ExecutionStatus, SandboxRef, Secret, StoreError,
};

use crate::telemetry::metrics;

use super::backlog::Late;
use super::{ExecutionError, ExecutionService, Progress, ProgressSender};

/// Between looks at whether the database has been told everything.
const BEHIND_PAUSE: Duration = Duration::from_millis(50);

/// Metadata that each of our sandboxes carries at its provider, so that the reconciler can tell whose it is.
pub const APP: (&str, &str) = ("app", "pathbox");
/// Metadata key of the installation: several may share one provider account, and none may reap another's sandboxes.
pub const INSTALLATION: &str = "pathbox_installation";
/// Metadata key of the context's id.
pub const CONTEXT_ID: &str = "pathbox_context";
/// Metadata key of the creator's epoch.
pub const EPOCH: &str = "pathbox_epoch";

/// A context that this run holds.
#[derive(Debug)]
pub(super) struct Held {
    pub row: ContextRow,
    /// When the row was read.
    pub since: Instant,
    pub state: SandboxState,
    pub reason: Option<EndReason>,
    pub queued: Duration,
    pub client: E2bClient,
    pub access: SandboxAccess,
    /// The database was away: the run is not recorded yet.
    pub is_unasked: bool,
    /// Keeps other runs of this replica off the context.
    pub _turn: OwnedMutexGuard<()>,
}

/// How long a run may wait, since when it does, and what ends the waiting early.
struct Wait<'a> {
    began: Instant,
    patience: Duration,
    cancel: &'a CancellationToken,
}

impl Wait<'_> {
    fn timed_out(&self, position: u32) -> ExecutionError {
        let waited_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        ExecutionError::QueueTimeout { position, waited_ms }
    }
}

/// What acquiring came to.
#[derive(Debug)]
pub(super) enum Acquisition {
    Held(Box<Held>),
    /// Nothing is to be run: the record of an earlier run under the same idempotency key.
    Replay(Box<ExecutionRow>),
}

impl ExecutionService {
    /// Waits for this run's turn on its context, making the sandbox if need be.
    #[instrument(name = "execution_context.get_or_create", skip_all, fields(execution.id = %ask.execution.id))]
    pub(super) async fn acquire(
        &self,
        ask: &Acquire,
        patience: Duration,
        replaced: Option<EndReason>,
        progress: &ProgressSender,
        cancel: &CancellationToken,
    ) -> Result<Acquisition, ExecutionError> {
        let began = Instant::now();
        let wait = Wait { began, patience, cancel };
        let result = self.acquire_loop(ask, &wait, replaced, progress).await;
        if let Err(error) = &result {
            let status = match error {
                ExecutionError::Cancelled => ExecutionStatus::Cancelled,
                _ => ExecutionStatus::Failed,
            };
            // Refusals leave no row; for everything else the place in the queue is given up.
            self.abandon(ask, status, error.code().as_str()).await;
        }
        result
    }

    /// The run did not start: its place, its claim and its idempotency key are free again. While the database is away
    /// it cannot be told, and may have done what it was asked without an answer: it is told later.
    pub(super) async fn abandon(&self, ask: &Acquire, status: ExecutionStatus, why: &str) {
        let (tenant, id) = (&ask.key.tenant, ask.execution.id);
        match self.store().abandon(tenant, id, status, Some(why)).await {
            Ok(_) => {}
            Err(error) if error.is_retryable() => self.tell_later(Late::Abandon {
                tenant: tenant.clone(),
                execution: id,
                status,
                error: why.to_owned(),
            }),
            Err(error) => {
                tracing::warn!(error = %error, execution.id = %id, "a run that did not start could not be taken back");
            }
        }
    }

    async fn acquire_loop(
        &self,
        ask: &Acquire,
        wait: &Wait<'_>,
        replaced: Option<EndReason>,
        progress: &ProgressSender,
    ) -> Result<Acquisition, ExecutionError> {
        let Wait { began, patience, cancel } = *wait;
        let limits = &self.options().limits;
        let mut tried_again_at_limit = false;
        let mut made: Option<(SandboxState, Option<EndReason>)> = None;
        loop {
            if cancel.is_cancelled() {
                return Err(ExecutionError::Cancelled);
            }
            // A database that is back is told first what has run meanwhile: it would take those runs for cut off, and
            // the contexts that they used for expired.
            if self.is_behind() {
                if let Err(error) = self.store().ping().await {
                    return self.without_store(ask, error, wait).await;
                }
                if began.elapsed() >= patience {
                    return Err(wait.timed_out(1));
                }
                tokio::time::sleep(BEHIND_PAUSE).await;
                continue;
            }
            let asked = Instant::now();
            let mut position = 0;
            self.0.parts.crash.at("acquire.before");
            let answer = match self.store().acquire(ask, limits).await {
                Ok(answer) => answer,
                Err(error) => return self.without_store(ask, error, wait).await,
            };
            self.0.parts.crash.at("acquire.answered");
            match answer {
                Acquired::Ready(row) => {
                    let (state, reason) = made.take().unwrap_or(match replaced {
                        Some(reason) => (SandboxState::Reset, Some(reason)),
                        None => (SandboxState::Kept, None),
                    });
                    return self.hold(*row, state, reason, wait, false).await;
                }
                Acquired::Create(claim) => {
                    let _ = progress.try_send(Progress::Creating);
                    if let Some(row) = self.create(&claim, ask.execution.id, asked).await? {
                        let (state, reason) = match (claim.previous, replaced) {
                            (Some(reason), _) | (None, Some(reason)) => (SandboxState::Reset, Some(reason)),
                            (None, None) => (SandboxState::Fresh, None),
                        };
                        if row.status == ContextStatus::Ready {
                            return self.hold(row, state, reason, wait, false).await;
                        }
                        made = Some((state, reason));
                    }
                    continue;
                }
                Acquired::WaitForCreator { .. } => {}
                Acquired::Queued { position: at } => {
                    position = at;
                    let _ = progress.try_send(Progress::Queued { position });
                }
                Acquired::InFlight(_) => position = 1,
                Acquired::Limit(limit) => {
                    // Contexts of a local host that died with its process hold places until somebody looks.
                    if !tried_again_at_limit && self.release_dead_hosts().await > 0 {
                        tried_again_at_limit = true;
                        continue;
                    }
                    return Err(ExecutionError::Limit(limit));
                }
                Acquired::PathClosed(status) => return Err(ExecutionError::PathClosed(status)),
                Acquired::Replay(row) => return Ok(Acquisition::Replay(row)),
                Acquired::KeyConflict(id) => return Err(ExecutionError::KeyConflict(id)),
                Acquired::Interrupted(row) => return Err(ExecutionError::Interrupted(row.id)),
            }
            if began.elapsed() >= patience {
                return Err(wait.timed_out(position));
            }
            let base = if began.elapsed() < Duration::from_millis(500) { 10 } else { 60 };
            let pause = Duration::from_millis(base + self.0.parts.entropy.below(base));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => {}
            }
        }
    }

    /// Takes the context, once no other run of this replica is on it.
    async fn hold(
        &self,
        row: ContextRow,
        state: SandboxState,
        reason: Option<EndReason>,
        wait: &Wait<'_>,
        is_unasked: bool,
    ) -> Result<Acquisition, ExecutionError> {
        let Some(sandbox) = &row.sandbox else {
            return Err(ExecutionError::Internal(format!("context {} is ready without a sandbox", row.id)));
        };
        let (client, access) = (self.client_of(sandbox)?, access_of(sandbox));
        let since = Instant::now();
        let turn = self.0.remembered.keep(&row).lock_owned();
        let turn = tokio::select! {
            biased;
            turn = turn => turn,
            () = wait.cancel.cancelled() => return Err(ExecutionError::Cancelled),
            () = tokio::time::sleep_until(wait.began + wait.patience) => {
                return Err(wait.timed_out(1));
            }
        };
        let queued = wait.began.elapsed();
        Ok(Acquisition::Held(Box::new(Held {
            row,
            since,
            state,
            reason,
            queued,
            client,
            access,
            is_unasked,
            _turn: turn,
        })))
    }

    /// The database is away: a context that this replica holds goes on, everything else is told to come back. A run
    /// under an idempotency key is too: nobody could tell whether it has run before.
    async fn without_store(
        &self,
        ask: &Acquire,
        error: StoreError,
        wait: &Wait<'_>,
    ) -> Result<Acquisition, ExecutionError> {
        if !error.is_retryable() || ask.execution.idempotency.is_some() {
            return Err(error.into());
        }
        match self.0.remembered.recall(&ask.key, self.options().limits.ttl) {
            Some(row) => self.hold(row, SandboxState::Kept, None, wait, true).await,
            None => Err(error.into()),
        }
    }

    /// The client for a sandbox's provider: the configured one, or the local host that the row names.
    pub(super) fn client_of(&self, sandbox: &SandboxRef) -> Result<E2bClient, ExecutionError> {
        let client = self.provider()?;
        Ok(match (&sandbox.host_url, &sandbox.host_key) {
            (Some(url), Some(key)) => {
                client.at(&Endpoint::local(url.as_str(), wire_secret(key))).map_err(ExecutionError::Create)?
            }
            _ => client.clone(),
        })
    }

    /// Makes the sandbox of a claim. `None`: the claim was lost meanwhile; ask again.
    #[instrument(name = "sandbox.create", skip_all, fields(context.id = %claim.context, epoch = claim.epoch))]
    async fn create(
        &self,
        claim: &Claim,
        execution: ExecutionId,
        asked: Instant,
    ) -> Result<Option<ContextRow>, ExecutionError> {
        let limits = &self.options().limits;
        if asked.elapsed() + limits.create_timeout > limits.create_lease {
            return Ok(None);
        }
        self.0.parts.crash.at("create.claimed");
        let life = self.sandbox_life();
        let recipe = self.options().recipes.of(&claim.key.tenant);
        let request = recipe.create(life, self.tag(claim.context, claim.epoch));
        let client = match self.provider() {
            Ok(client) => client,
            Err(error) => {
                self.give_up(claim, &error).await;
                return Err(error);
            }
        };
        let began = Instant::now();
        let created = tokio::time::timeout(limits.create_timeout, make(client, &request));
        let created = self.keeping_lease(claim, created).await;
        let outcome = if matches!(created, Ok(Ok(_))) { "ok" } else { "error" };
        metrics::SANDBOX_CREATE.record(&[outcome], began.elapsed());
        let (sandbox, gateway) = match created {
            Ok(Ok(sandbox)) => sandbox,
            Ok(Err(source)) => {
                let error = ExecutionError::Create(source);
                self.give_up(claim, &error).await;
                return Err(error);
            }
            Err(_) => {
                let why = format!("no answer within {} s", limits.create_timeout.as_secs());
                let error = ExecutionError::NoProvider(why);
                self.give_up(claim, &error).await;
                return Err(error);
            }
        };
        self.0.parts.crash.at("create.made");
        let local = self.0.parts.local.as_ref();
        let reference = SandboxRef {
            sandbox_id: sandbox.id.clone(),
            domain: sandbox.domain.clone(),
            host_url: local.map(|host| host.url.clone()),
            host_key: local.map(|host| host.key.clone()),
            envd_token: sandbox.envd_token.as_ref().map(|token| Secret::new(token.expose())),
            traffic_token: sandbox.traffic_token.as_ref().map(|token| Secret::new(token.expose())),
            mcp_url: gateway.as_ref().map(|gateway| gateway.url.expose().to_owned()),
            mcp_token: gateway.as_ref().map(|gateway| Secret::new(gateway.token.expose())),
            provider_ends_at: Some(self.0.parts.clock.now() + sandbox.timeout),
        };
        self.0.parts.crash.at("create.before_ready");
        let row = self.store().ready(claim, execution, &reference, limits).await?;
        self.0.parts.crash.at("create.reported");
        match row {
            Some(_) => metrics::CONTEXTS_CREATED.add(&[], 1),
            None => self.0.doomed.notify_one(),
        }
        Ok(row)
    }

    /// Waits for the provider while the lease is renewed each third of its length.
    async fn keeping_lease<F: Future>(&self, claim: &Claim, work: F) -> F::Output {
        let limits = &self.options().limits;
        tokio::pin!(work);
        loop {
            tokio::select! {
                output = &mut work => return output,
                () = tokio::time::sleep(limits.create_lease / 3) => {
                    if let Err(error) = self.store().renew(claim, limits).await {
                        tracing::warn!(error = %error, context.id = %claim.context, "a lease could not be renewed");
                    }
                }
            }
        }
    }

    async fn give_up(&self, claim: &Claim, error: &ExecutionError) {
        let end = End {
            tenant: claim.key.tenant.clone(),
            context: claim.context,
            epoch: Some(claim.epoch),
            reason: EndReason::Error,
            error: Some(own_words(&error.to_string()).into_inner()),
        };
        self.0.parts.crash.at("create.failed");
        if let Err(error) = self.store().end(&end, &self.options().limits).await {
            tracing::warn!(error = %error, context.id = %claim.context, "a failed context could not be closed");
        }
        self.0.doomed.notify_one();
    }

    /// The metadata that all sandboxes of this installation carry.
    pub(super) fn own_tag(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (APP.0.to_owned(), APP.1.to_owned()),
            (INSTALLATION.to_owned(), self.0.parts.handles.installation()),
        ])
    }

    /// The metadata of a context's sandbox.
    pub(super) fn tag(&self, context: ContextId, epoch: i64) -> BTreeMap<String, String> {
        let mut tag = self.own_tag();
        tag.insert(CONTEXT_ID.to_owned(), context.to_string());
        tag.insert(EPOCH.to_owned(), epoch.to_string());
        tag
    }

    /// How long a new or extended sandbox should live at its provider: past the context's own time to live, so
    /// that a row never says ready for a sandbox that the provider has ended.
    pub(super) fn sandbox_life(&self) -> Duration {
        let options = self.options();
        options.sandbox_timeout.max(options.limits.ttl * 2)
    }

    /// Ends a context whose sandbox is gone.
    pub(super) async fn mark_lost(&self, row: &ContextRow) -> Result<(), StoreError> {
        let end = End {
            tenant: row.key.tenant.clone(),
            context: row.id,
            epoch: Some(row.epoch),
            reason: EndReason::Lost,
            error: Some("the provider no longer knows the sandbox".into()),
        };
        self.0.remembered.forget(&row.key);
        self.0.parts.crash.at("lost.before");
        let ended = self.store().end(&end, &self.options().limits).await;
        if let Ok(true) = ended {
            metrics::CONTEXTS_LOST.add(&[], 1);
        }
        self.0.parts.crash.at("lost.marked");
        ended.map(drop)
    }
}

/// A sandbox, and its MCP gateway when its recipe has servers. A sandbox whose gateway does not start is ended at once;
/// when that fails too, it is found by its tag later.
async fn make(
    client: &E2bClient,
    request: &CreateSandbox,
) -> Result<(Sandbox, Option<McpGateway>), E2bError> {
    let sandbox = client.create(request).await?;
    let Some(servers) = &request.mcp else { return Ok((sandbox, None)) };
    match client.start_mcp_gateway(&sandbox.access(), servers).await {
        Ok(gateway) => Ok((sandbox, Some(gateway))),
        Err(error) => {
            if let Err(error) = client.kill(&sandbox.id).await {
                tracing::warn!(kind = error.kind(), "a sandbox without its gateway could not be ended yet");
            }
            Err(error)
        }
    }
}

/// What the client needs to reach a sandbox's data plane.
pub(super) fn access_of(sandbox: &SandboxRef) -> SandboxAccess {
    SandboxAccess {
        id: sandbox.sandbox_id.clone(),
        domain: sandbox.domain.clone(),
        envd_token: sandbox.envd_token.as_ref().map(wire_secret),
        traffic_token: sandbox.traffic_token.as_ref().map(wire_secret),
        envd_version: None,
    }
}

/// A stored token as the client wants it.
pub(super) fn wire_secret(secret: &Secret) -> crate::wire::Secret {
    crate::wire::Secret::new(secret.expose())
}
