//! Finds a context's sandbox or makes it, once, under concurrency and over replicas.
//!
//! The store decides who makes a sandbox; here is the loop around its answers. What may surprise: the creator's
//! deadline is counted on the local monotonic clock from *before* the claim was asked for, so that a process that
//! was paused past its lease does not start a provider request whose sandbox would have no owner.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::instrument;

use crate::domain::{ContextId, ContextStatus, EndReason, ExecutionId, SandboxState};
use crate::e2b::{CreateSandbox, E2bClient, E2bError, McpGateway, Sandbox, SandboxAccess};
use crate::guard::own_words;
use crate::store::{
    Acquire, Acquired, Claim, ContextRow, DatabaseState, End, ExecutionRow, ExecutionStatus, Placeholders,
    SandboxRef, StoreError,
};
use crate::telemetry::metrics;

use super::attempts::Fault;
use super::crash::crash_point;
use super::health::Write;
use super::provider::access_of;
use super::write_behind::Deferred;
use super::{Core, ExecutionError, Hosts, Progress, ProgressSender};
use crate::telemetry::chain;

/// Between looks at a run elsewhere under the same idempotency key.
const IN_FLIGHT_PAUSE: Duration = Duration::from_millis(100);
/// With less of its lease left no run is begun without the database.
const LEAST_LEASE: Duration = Duration::from_millis(500);
/// Between tries while the database is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Between tries to announce a running run to a database that was away.
const ANNOUNCE_PAUSE: Duration = Duration::from_millis(250);

/// A context that this run holds.
#[derive(Debug)]
pub(super) struct Held {
    pub row: ContextRow,
    /// From when on the row is true and the run's lease runs: just before the store was asked.
    pub since: Instant,
    pub state: SandboxState,
    pub reason: Option<EndReason>,
    /// The guard's placeholder numbers of the key, when the store gave them with the row.
    pub numbers: Option<Placeholders>,
    pub queued: Duration,
    pub client: E2bClient,
    pub access: SandboxAccess,
    pub hosts: Hosts,
    /// The database was away: the run is not recorded yet.
    pub is_offline: bool,
    /// Keeps other runs of this replica off the context.
    pub _turn: OwnedMutexGuard<()>,
}

impl Held {
    /// The database's time, as far as it is known here.
    pub(super) fn now(&self) -> DateTime<Utc> {
        self.row.read_at + self.since.elapsed()
    }
}

/// What a run finds of earlier state, and why it was reset.
type Found = (SandboxState, Option<EndReason>);

/// How long a run may wait, since when it does, and what ends the waiting early.
pub(super) struct Wait<'a> {
    pub began: Instant,
    pub patience: Duration,
    pub cancel: &'a CancellationToken,
}

impl Wait<'_> {
    fn timed_out(&self, position: u32) -> ExecutionError {
        let waited_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        ExecutionError::QueueTimeout { position, waited_ms }
    }
}

/// A context that the store, or memory, has given to this run.
struct Hold {
    row: ContextRow,
    since: Instant,
    found: Found,
    numbers: Option<Placeholders>,
    is_offline: bool,
}

/// What acquiring came to.
#[derive(Debug)]
pub(super) enum Acquisition {
    Held(Box<Held>),
    /// Nothing is to be run: the record of an earlier run under the same idempotency key.
    Replay(Box<ExecutionRow>),
}

/// An ask that has not come to its end.
struct Asking<'a> {
    ask: &'a Acquire,
    wait: &'a Wait<'a>,
    /// What an earlier attempt of the same run has found.
    found: Option<Found>,
    progress: &'a ProgressSender,
    /// What is true of the sandbox that this ask has made.
    made: Option<Found>,
    tried_again_at_limit: bool,
}

/// What an answer of the store comes to.
enum Answered {
    Acquired(Acquisition),
    AskAgain,
    /// The turn has to be waited for, and asked for again after this long.
    Wait {
        position: u32,
        at_most: Duration,
    },
}

/// Gives runs and file operations their context's sandbox.
#[derive(Debug, Clone)]
pub(super) struct Sandboxes(pub(super) Arc<Core>);

impl Sandboxes {
    /// Waits for this run's turn on its context, making the sandbox if need be. `found` is what an earlier attempt of
    /// the same run has found out about the state.
    #[instrument(name = "execution_context.get_or_create", skip_all, fields(
        app.tenant.id = %ask.key.tenant, app.conversation.id = %ask.key.conversation, app.path.id = %ask.key.path,
        execution.id = %ask.execution.id))]
    pub(super) async fn acquire(
        &self,
        ask: &Acquire,
        wait: &Wait<'_>,
        found: Option<Found>,
        progress: &ProgressSender,
    ) -> Result<Acquisition, ExecutionError> {
        // As after a crash: a sandbox that is made in vain is found by its tag.
        let result = tokio::select! {
            biased;
            result = self.acquire_loop(ask, wait, found, progress) => result,
            () = self.0.shutdown.cancelled() => Err(ExecutionError::ShuttingDown),
        };
        if let Err(error) = &result {
            let status = match error {
                ExecutionError::Cancelled | ExecutionError::ShuttingDown => ExecutionStatus::Cancelled,
                _ => ExecutionStatus::Failed,
            };
            // Refusals leave no row; for everything else the place in the queue is given up.
            self.abandon(ask, status, error.code().as_str()).await;
        }
        result
    }

    /// The run did not start: its place, its claim and its idempotency key are free again. A database that cannot
    /// take that now may have done what it was asked without an answer: it is written later.
    pub(super) async fn abandon(&self, ask: &Acquire, status: ExecutionStatus, why: &str) {
        let (tenant, id) = (&ask.key.tenant, ask.execution.id);
        match self.0.store().abandon(tenant, id, status, Some(why)).await {
            Ok(_) => {}
            Err(error) if error.is_retryable() => {
                let entry = Deferred::Abandon { execution: id, status, error: why.to_owned() };
                self.0.write_later(&ask.key, entry);
            }
            Err(error) => {
                tracing::warn!(error = %error, execution.id = %id, "a run that did not start could not be withdrawn");
            }
        }
    }

    async fn acquire_loop(
        &self,
        ask: &Acquire,
        wait: &Wait<'_>,
        found: Option<Found>,
        progress: &ProgressSender,
    ) -> Result<Acquisition, ExecutionError> {
        let Wait { began, patience, cancel } = *wait;
        let limits = &self.0.options().limits;
        let mut asking = Asking { ask, wait, found, progress, made: None, tried_again_at_limit: false };
        loop {
            if cancel.is_cancelled() {
                return Err(ExecutionError::Cancelled);
            }
            // A database that is back gets first what has run meanwhile: it would take those runs for cut off, and the
            // contexts that they used for expired.
            if self.0.write_behind.is_behind_on(&ask.key) {
                let settled = tokio::select! {
                    settled = self.0.write_behind.settled(&ask.key, began + patience) => settled,
                    () = cancel.cancelled() => continue,
                };
                if let Err(error) = settled {
                    return self.without_store(ask, error, wait).await;
                }
            }
            let waiting = self.0.store().signals().watch(&ask.key);
            let asked = Instant::now();
            crash_point!(self.0, "acquire.before");
            let answer = self.0.store().acquire(ask, limits).await;
            // The other answers are read, not written.
            if matches!(answer, Err(_) | Ok(Acquired::Ready(..) | Acquired::Create(_))) {
                self.0.room.note(Write::Begin, answer.as_ref().err());
            }
            let answer = match answer {
                Ok(answer) => answer,
                // Someone is in the way, for as long as this call may wait: the same run keeps its place.
                Err(error)
                    if error.state().is_some_and(DatabaseState::passes_soon)
                        && began.elapsed() < patience =>
                {
                    self.pause_or_cancel(cancel, BUSY_PAUSE).await;
                    continue;
                }
                Err(error) => return self.without_store(ask, error, wait).await,
            };
            crash_point!(self.0, "acquire.answered");
            if let Acquired::Ready(..)
            | Acquired::Create(_)
            | Acquired::Queued { .. }
            | Acquired::WaitForCreator { .. } = answer
            {
                self.0.stoppable.is_written(ask.execution.id);
            }
            let (position, pause) = match self.answered(answer, asked, &mut asking).await? {
                Answered::Acquired(acquisition) => return Ok(acquisition),
                Answered::AskAgain => continue,
                Answered::Wait { position, at_most } => (position, at_most.min(patience)),
            };
            if began.elapsed() >= patience {
                return Err(wait.timed_out(position));
            }
            let pause = pause.min(patience.saturating_sub(began.elapsed()));
            tokio::select! {
                () = waiting.wait(position) => {}
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => {}
            }
        }
    }

    /// Does what one answer of the store asks for.
    async fn answered(
        &self,
        answer: Acquired,
        asked: Instant,
        asking: &mut Asking<'_>,
    ) -> Result<Answered, ExecutionError> {
        let Asking { ask, wait, found, progress, .. } = *asking;
        match answer {
            Acquired::Ready(row, numbers) => {
                let found = asking.made.or(found).unwrap_or((SandboxState::Kept, None));
                let hold = Hold { row: *row, since: asked, found, numbers: Some(numbers), is_offline: false };
                self.hold(ask, hold, wait).await.map(Answered::Acquired)
            }
            Acquired::Create(mut claim) => {
                let recipes = &self.0.options().recipes;
                let before = claim.template.filter(|name| recipes.may_name(&ask.key.tenant, name));
                claim.template = ask.template.clone().or(before);
                let _ = progress.try_send(Progress::Creating);
                let Some((row, since)) = self.create(&claim, ask.execution.id, asked).await? else {
                    return Ok(Answered::AskAgain);
                };
                let found = match claim.previous {
                    Some(reason) => (SandboxState::Reset, Some(reason)),
                    None => found.unwrap_or((SandboxState::Fresh, None)),
                };
                if row.status == ContextStatus::Ready {
                    let hold = Hold { row, since, found, numbers: None, is_offline: false };
                    return self.hold(ask, hold, wait).await.map(Answered::Acquired);
                }
                asking.made = Some(found);
                Ok(Answered::AskAgain)
            }
            Acquired::WaitForCreator { .. } => Ok(Answered::Wait { position: 0, at_most: Duration::MAX }),
            Acquired::Queued { position } => {
                let _ = progress.try_send(Progress::Queued { position });
                Ok(Answered::Wait { position, at_most: Duration::MAX })
            }
            // A run elsewhere under the same idempotency key, whose end wakes no waiter here.
            Acquired::InFlight(other) => {
                self.0.stoppable.waits_for(ask.execution.id, other);
                Ok(Answered::Wait { position: 1, at_most: IN_FLIGHT_PAUSE })
            }
            Acquired::Limit(_) | Acquired::Quota(_) if self.frees_dead_hosts(asking).await => {
                Ok(Answered::AskAgain)
            }
            Acquired::Limit(_) if self.0.evict_unclaimed(&ask.key).await => Ok(Answered::AskAgain),
            Acquired::Limit(limit) => Err(ExecutionError::Limit(limit)),
            Acquired::Quota(quota) => Err(ExecutionError::Quota(quota)),
            Acquired::PathClosed(status) => {
                let closed = self.0.closed_path(&asking.ask.key).await.ok().flatten();
                Err(ExecutionError::PathClosed(closed.unwrap_or_else(|| status.into())))
            }
            Acquired::Replay(row) => Ok(Answered::Acquired(Acquisition::Replay(row))),
            Acquired::KeyConflict(id) => Err(ExecutionError::KeyConflict(id)),
            Acquired::Interrupted(row) => Err(ExecutionError::Interrupted(row.id)),
        }
    }

    /// Contexts of a local host that died with its process hold places until someone looks. Whether there were any; a
    /// call looks until it has found some.
    async fn frees_dead_hosts(&self, asking: &mut Asking<'_>) -> bool {
        if !asking.tried_again_at_limit {
            asking.tried_again_at_limit = self.0.release_dead_hosts(Some(&asking.ask.key.tenant)).await > 0;
            return asking.tried_again_at_limit;
        }
        false
    }

    /// Waits for once to twice as long, and no longer than the caller.
    async fn pause_or_cancel(&self, cancel: &CancellationToken, pause: Duration) {
        let base = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        tokio::select! {
            () = tokio::time::sleep(pause + Duration::from_millis(self.0.parts.entropy.below(base))) => {}
            () = cancel.cancelled() => {}
        }
    }

    /// Takes the context, once no other run of this replica is on it.
    async fn hold(&self, ask: &Acquire, hold: Hold, wait: &Wait<'_>) -> Result<Acquisition, ExecutionError> {
        let Hold { row, since, found: (mut state, mut reason), numbers, is_offline } = hold;
        self.0.has_template(&row, ask)?;
        let Some(sandbox) = &row.sandbox else {
            return Err(ExecutionError::Internal(format!("context {} is ready without a sandbox", row.id)));
        };
        let (client, access) = (self.0.client_of(sandbox)?, access_of(sandbox));
        let turn = self.0.remembered.keep(&row, is_offline);
        let turn = tokio::select! {
            biased;
            turn = turn.lock_owned() => turn,
            () = wait.cancel.cancelled() => return Err(ExecutionError::Cancelled),
            () = tokio::time::sleep_until(wait.began + wait.patience) => {
                return Err(wait.timed_out(1));
            }
        };
        if state != SandboxState::Kept {
            self.0.remembered.is_alone_on(row.id);
        } else if !is_offline && self.0.remembered.may_be_shared(row.id) {
            self.stop_left_running(&row, &client, &access).await?;
        }
        let replaced = self.0.remembered.take_replaced(&row.key);
        if let (SandboxState::Kept, Some(before)) = (state, replaced) {
            // Another replica took this one's context away while its use could not be written to the database.
            let ended = self.0.store().context(&row.key.tenant, before).await.ok().flatten();
            state = SandboxState::Reset;
            reason = Some(ended.and_then(|row| row.end_reason).unwrap_or(EndReason::Lost));
        }
        let queued = wait.began.elapsed();
        Ok(Acquisition::Held(Box::new(Held {
            row,
            since,
            state,
            reason,
            numbers,
            queued,
            client,
            access,
            hosts: self.0.parts.hosts.clone(),
            is_offline,
            _turn: turn,
        })))
    }

    /// A context that was another replica's: when that was gone before its run was over, the code may go on.
    async fn stop_left_running(
        &self,
        row: &ContextRow,
        client: &E2bClient,
        access: &SandboxAccess,
    ) -> Result<(), ExecutionError> {
        if self.0.store().left_running(&row.key.tenant, row.id).await? {
            match client.stop_runs(access).await {
                Ok(stopped) => {
                    tracing::info!(context.id = %row.id, stopped, "stopped code that a dead replica had left running");
                }
                // A provider that has no such request, or a sandbox that is gone, which the run will find out.
                Err(error) => {
                    tracing::warn!(error = %chain(&error), context.id = %row.id,
                        "code that a dead replica had left running could not be stopped");
                }
            }
        }
        self.0.remembered.is_alone_on(row.id);
        Ok(())
    }

    /// The database did not answer. When it is away, and only then, a context that this replica holds goes on; everything
    /// else is refused. A run under an idempotency key is refused too: it may have run before.
    async fn without_store(
        &self,
        ask: &Acquire,
        error: StoreError,
        wait: &Wait<'_>,
    ) -> Result<Acquisition, ExecutionError> {
        if error.state() != Some(DatabaseState::Away) || ask.execution.idempotency.is_some() {
            return Err(error.into());
        }
        // Past its lease another replica may have it.
        let left = self.0.lease_left();
        match self.0.remembered.recall(&ask.key, self.0.options().limits.ttl) {
            Some(row) if left >= LEAST_LEASE => {
                tracing::warn!(context.id = %row.id, execution.id = %ask.execution.id, lease_left_ms = left.as_millis(),
                    "the database is away: a run begins under the lease on its context");
                metrics::RUNS_OFFLINE.add(&[], 1);
                let found = (SandboxState::Kept, None);
                let hold = Hold { row, since: Instant::now(), found, numbers: None, is_offline: true };
                self.hold(ask, hold, wait).await
            }
            _ => Err(error.into()),
        }
    }

    /// The last thing before anything is sent: makes sure that no other replica can take the context while the run is
    /// on it. Waiting for the turn, for a sandbox to come back or for the provider may have used up the run's lease; then
    /// the store is asked again, which is a round trip more.
    ///
    /// # Errors
    /// [`Fault::Stale`]: it is not certain any more that the context is this run's.
    pub(super) async fn keep_lease(&self, held: &Held, ask: &Acquire) -> Result<(), Fault> {
        if held.since.elapsed() < self.0.options().margin / 2 {
            return Ok(());
        }
        if held.is_offline {
            // Once the database is back, it has its say.
            let away =
                self.0.store().ping().await.is_err_and(|error| error.state() == Some(DatabaseState::Away));
            return if away { Ok(()) } else { Err(Fault::Stale) };
        }
        match self.0.store().acquire(ask, &self.0.options().limits).await {
            Ok(Acquired::Ready(row, _)) if (row.id, row.epoch) == (held.row.id, held.row.epoch) => Ok(()),
            _ => Err(Fault::Stale),
        }
    }

    /// Makes sure that the provider does not end the sandbox before the run's deadline or before the context's own
    /// time to live. Costs no request when it already holds. Gives the new end when it was moved.
    pub(super) async fn extend_life(
        &self,
        held: &Held,
        timeout: Duration,
    ) -> Result<Option<DateTime<Utc>>, Fault> {
        let Some(ends_at) = held.row.sandbox.as_ref().and_then(|sandbox| sandbox.provider_ends_at) else {
            return Ok(None);
        };
        let now = held.now();
        let left = (ends_at - now).to_std().unwrap_or_default();
        if left >= (timeout + self.0.options().margin).max(self.0.options().limits.ttl) {
            return Ok(None);
        }
        let life = self.0.sandbox_life().max(timeout + self.0.options().margin);
        crash_point!(self.0, "run.before_extend");
        // The provider may cut it, and says to what.
        let life =
            held.client.set_timeout(&held.access.id, life).await.map_err(|error| Fault::of(held, error))?;
        crash_point!(self.0, "run.extended");
        Ok(Some(now + life))
    }

    /// Does the work of a run. One that began while the database was away is made known as soon as it is back, so that no
    /// other replica takes its context meanwhile.
    pub(super) async fn announcing<T>(&self, held: &Held, ask: &Acquire, work: impl Future<Output = T>) -> T {
        if !held.is_offline {
            return work.await;
        }
        tokio::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => done,
            () = self.announce(held, ask) => work.await,
        }
    }

    async fn announce(&self, held: &Held, ask: &Acquire) {
        loop {
            tokio::time::sleep(ANNOUNCE_PAUSE).await;
            // What has ended is written first, or the database would take the context for expired.
            if self.0.write_behind.is_behind_on(&ask.key) || self.0.store().ping().await.is_err() {
                continue;
            }
            // The work may end at any moment and this future with it; what the store gives must be given back even then.
            let (service, ask, ours) = (self.clone(), ask.clone(), held.row.id);
            let done = self.0.background.spawn(async move { service.announce_once(ours, &ask).await });
            if done.await.unwrap_or(true) {
                return;
            }
        }
    }

    /// Whether there is nothing more to announce.
    async fn announce_once(&self, ours: ContextId, ask: &Acquire) -> bool {
        let limits = &self.0.options().limits;
        match self.0.store().acquire(ask, limits).await {
            Ok(Acquired::Ready(row, _)) if row.id == ours => true,
            // The context was ended meanwhile. This run has its sandbox for as long as that lives, and makes no other.
            Ok(Acquired::Create(claim)) => {
                let end = End {
                    tenant: claim.key.tenant,
                    context: claim.context,
                    epoch: Some(claim.epoch),
                    reason: EndReason::Error,
                    error: Some("no sandbox was needed".to_owned()),
                };
                if let Err(error) = self.0.store().end(&end, limits).await {
                    tracing::warn!(error = %error, context.id = %end.context, "a claim could not be given back");
                }
                true
            }
            Ok(Acquired::Ready(..) | Acquired::Queued { .. } | Acquired::WaitForCreator { .. }) => {
                tracing::warn!(context.id = %ours, "another run was admitted to a context in use");
                true
            }
            Ok(_) => true, // the path was closed meanwhile: the run is recorded when it ends
            Err(error) if error.is_retryable() => false,
            Err(error) => {
                tracing::warn!(error = %chain(&error), execution.id = %ask.execution.id, "a running run could not be recorded");
                true
            }
        }
    }

    /// Makes the sandbox of a claim. Gives the row and since when the run's lease runs. `None`: the claim was lost
    /// meanwhile; ask again.
    #[instrument(name = "sandbox.create", skip_all, fields(context.id = %claim.context, epoch = claim.epoch))]
    async fn create(
        &self,
        claim: &Claim,
        execution: ExecutionId,
        asked: Instant,
    ) -> Result<Option<(ContextRow, Instant)>, ExecutionError> {
        let limits = &self.0.options().limits;
        if asked.elapsed() + limits.create_timeout > limits.create_lease {
            return Ok(None);
        }
        crash_point!(self.0, "create.claimed");
        let life = self.0.sandbox_life();
        let recipe = self.0.options().recipes.of(&claim.key.tenant);
        let request = recipe.create(claim.template.as_deref(), life, self.0.tag(claim.context, claim.epoch));
        let (sandbox, gateway) = match self.make_in_time(claim, &request).await {
            Ok(made) => made,
            Err(error) => {
                self.give_up(claim, &error).await;
                return Err(error);
            }
        };
        crash_point!(self.0, "create.made");
        let local = self.0.parts.local.as_ref();
        let reference = SandboxRef {
            sandbox_id: sandbox.id,
            domain: sandbox.domain,
            host_url: local.map(|host| host.url.clone()),
            host_key: local.map(|host| host.key.clone()),
            envd_token: sandbox.envd_token,
            traffic_token: sandbox.traffic_token,
            mcp_url: gateway.as_ref().map(|gateway| gateway.url.expose().to_owned()),
            mcp_token: gateway.map(|gateway| gateway.token),
            provider_ends_at: Some(claim.read_at + asked.elapsed() + sandbox.timeout),
        };
        crash_point!(self.0, "create.before_ready");
        let since = Instant::now();
        let row = self.0.store().ready(claim, execution, &reference, &self.0.limits_of(&claim.key)).await?;
        crash_point!(self.0, "create.reported");
        match row {
            Some(_) => metrics::CONTEXTS_CREATED.add(&[], 1),
            None => self.0.kills.notify_one(),
        }
        Ok(row.map(|row| (row, since)))
    }

    /// Has the provider make a sandbox, within the time that a claim gives it.
    async fn make_in_time(
        &self,
        claim: &Claim,
        request: &CreateSandbox,
    ) -> Result<(Sandbox, Option<McpGateway>), ExecutionError> {
        let patience = self.0.options().limits.create_timeout;
        let client = self.0.provider()?;
        let began = Instant::now();
        let created = self.keeping_lease(claim, tokio::time::timeout(patience, make(client, request))).await;
        let outcome = if matches!(created, Ok(Ok(_))) { "ok" } else { "error" };
        metrics::SANDBOX_CREATE.record(&[outcome], began.elapsed());
        match created {
            Ok(made) => made.map_err(ExecutionError::Create),
            Err(_) => Err(ExecutionError::NoProvider(format!("no answer within {} s", patience.as_secs()))),
        }
    }

    /// Waits for the provider while the lease is renewed each third of its length.
    async fn keeping_lease<F: Future>(&self, claim: &Claim, work: F) -> F::Output {
        let limits = &self.0.options().limits;
        tokio::pin!(work);
        loop {
            tokio::select! {
                output = &mut work => return output,
                () = tokio::time::sleep(limits.create_lease / 3) => {
                    if let Err(error) = self.0.store().renew(claim, limits).await {
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
            error: Some(own_words(&chain(error)).into_inner()),
        };
        crash_point!(self.0, "create.failed");
        if let Err(error) = self.0.store().end(&end, &self.0.options().limits).await {
            tracing::warn!(error = %error, context.id = %claim.context, "a failed context could not be closed");
        }
        self.0.kills.notify_one();
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
