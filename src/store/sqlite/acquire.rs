//! Acquire, as steps under the file's write lock: the run, its idempotency key, the path, then the context.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::rows::{self, Cells};
use super::writer::Bound;
use super::{SqliteStore, failure, time};
use crate::domain::usage::{Use, midnight};
use crate::domain::{ContextId, ContextStatus, EndReason, ExecutionId, Quota, QuotaReached};
use crate::store::bind::BindKey;
use crate::store::{
    Acquire, Acquired, Claim, ContextLimits, ContextRow, ExecutionRow, ExecutionStatus, Keyring,
    LimitReached, PathStatus, Placeholders, QUEUE_LEASE, StoreError, measure::measure, millis, storable,
};

/// A run's row, as far as the queue is concerned.
struct Place {
    seq: i64,
    status: ExecutionStatus,
    context: Option<ContextId>,
    lease_expires_at: i64,
}

/// A context as `acquire` sees it: besides the row, whose creation it is and until when.
struct Live {
    row: ContextRow,
    creator: ExecutionId,
    lease_expires_at: Option<i64>,
}

/// Runs that were answered to wait. A later one may take a place; then the earlier one's next ask takes a step more.
#[derive(Debug, Clone)]
pub(super) struct Waiting(Arc<[AtomicU64; 1024]>);

impl Default for Waiting {
    fn default() -> Self {
        Self(Arc::new([const { AtomicU64::new(0) }; 1024]))
    }
}

impl Waiting {
    /// The random half of an id, and its place.
    fn place(&self, id: ExecutionId) -> (u64, &AtomicU64) {
        let (_, random) = id.0.as_u64_pair();
        (random, &self.0[(random % 1024) as usize])
    }

    pub(super) fn put(&self, id: ExecutionId) {
        let (random, place) = self.place(id);
        place.store(random, Ordering::Relaxed);
    }

    pub(super) fn has(&self, id: ExecutionId) -> bool {
        let (random, place) = self.place(id);
        place.load(Ordering::Relaxed) == random
    }
}

/// The usual case: the run is new and has no idempotency key, its context is ready and idle, this process holds it, and no
/// run waits. Otherwise it does nothing and gives no row. The statuses are named as the index names them. With `$` a number
/// means the same argument in both statements.
macro_rules! usual {
    ($condition:literal) => {
        concat!(
            "INSERT INTO executions (status, context_id, owner, lease_expires_at, started_at, id, tenant_id,
                 owner_principal, conversation_id, path_id, tool, language, purpose, code_sha256, principal, trace_id,
                 run_lease_ms, created_at, queued_ms)
             SELECT 'running', c.id, $5, $6 + $15, $6, $8, $1, $2, $3, $4, $9, $10, $11, $12, $13, $14, $15, $6, 0
               FROM execution_contexts c
              WHERE c.tenant_id = $1 AND c.owner_principal = $2 AND c.conversation_id = $3 AND c.path_id = $4
                AND c.status IN ('creating', 'ready') AND c.status = 'ready' AND c.lease_owner = $5
                AND c.expires_at > $6 AND c.execution_count < $7
                AND NOT EXISTS (SELECT 1 FROM executions x WHERE x.id = $8)
                AND NOT EXISTS (SELECT 1 FROM executions q
                                 WHERE q.tenant_id = $1 AND q.owner_principal = $2 AND q.conversation_id = $3
                                   AND q.path_id = $4 AND q.status IN ('queued', 'running'))
                AND NOT EXISTS (SELECT 1 FROM conversation_paths p
                                 WHERE p.tenant_id = $1 AND p.owner_principal = $2 AND p.conversation_id = $3
                                   AND p.path_id = $4 AND p.status <> 'active') ",
            $condition,
            ";
             SELECT c.*, (SELECT json_group_array(json_array(n.kind, n.value_hash, n.number))
                            FROM (SELECT kind, value_hash, number FROM placeholders
                                   WHERE tenant_id = $1 AND owner_principal = $2 AND conversation_id = $3 AND path_id = $4
                                   ORDER BY kind, number) n) AS placeholders
               FROM execution_contexts c
              WHERE changes() > 0 AND c.tenant_id = $1 AND c.owner_principal = $2 AND c.conversation_id = $3
                AND c.path_id = $4 AND c.status IN ('creating', 'ready');"
        )
    };
}

fn bind_usual<'q>(query: Bound<'q>, ask: &'q Acquire, limits: &ContextLimits, now: i64) -> Bound<'q> {
    let run = &ask.execution;
    query
        .bind_key(&ask.key)
        .bind(storable(&ask.owner))
        .bind(now)
        .bind(limits.max_executions)
        .bind(run.id.to_string())
        .bind(storable(&run.tool))
        .bind(run.language.as_str())
        .bind(run.purpose.as_deref().map(storable))
        .bind(storable(&run.code_sha256))
        .bind(run.principal.as_deref().map(storable))
        .bind(run.trace_id.as_deref().map(storable))
        .bind(millis(run.lease))
}

/// What the usual case gives. `None`: the context's tokens do not open, so the run has to be taken back, and the long way
/// replaces the context.
fn usual_in(
    row: &SqliteRow,
    keyring: &Keyring,
    now: i64,
) -> Result<Option<(ContextRow, Placeholders)>, StoreError> {
    let Ok(context) = rows::context_with_sandbox(row, keyring, now) else { return Ok(None) };
    let cells = Cells::new(row, "execution_contexts", "id");
    let numbers = serde_json::from_str(cells.get("placeholders")?).map_err(|error| cells.corrupt(error))?;
    Ok(Some((context, numbers)))
}

impl SqliteStore {
    /// The usual case for a tenant without a quota, in one trip. `None`: nothing was done.
    pub(super) async fn at_once(
        &self,
        ask: &Acquire,
        limits: &ContextLimits,
    ) -> Result<Option<Acquired>, StoreError> {
        if ask.execution.idempotency.is_some() || limits.quota.is_limited() {
            return Ok(None);
        }
        let write = self.turn_to_write(measure!("acquire", ask.key.tenant)).await?;
        let now = write.now;
        let query = sqlx::query(concat!(
            "BEGIN IMMEDIATE; ",
            usual!("AND NOT EXISTS (SELECT 1 FROM tenant_quotas u WHERE u.tenant_id = $1)"),
            "COMMIT"
        ));
        let rows = write.all_at_once(bind_usual(query, ask, limits, now)).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let Some((context, numbers)) = usual_in(row, &self.keyring, now)? else {
            self.forget(ask, ExecutionStatus::Running).await?;
            return Ok(None);
        };
        if !is_local(&context) {
            self.wal.sync().await?;
        }
        Ok(Some(Acquired::Ready(Box::new(context), numbers)))
    }

    /// Whatever the case is.
    pub(super) async fn decide(&self, ask: &Acquire, limits: &ContextLimits) -> Result<Acquired, StoreError> {
        let (is_known, quota) = self.known(ask, limits).await?;
        if is_known && let Some(waits) = self.still_waits(ask).await? {
            return Ok(waits);
        }
        // A run that has a row, or may have one under its idempotency key, may be counted already.
        if let Some(quota) = &quota
            && !is_known
            && ask.execution.idempotency.is_none()
            && let Some(reached) = self.surely_over(quota, ask, limits).await?
        {
            return Ok(Acquired::Quota(reached));
        }
        let mut transaction = self.write(measure!("acquire", ask.key.tenant)).await?;
        let mut asking = Asking {
            store: self,
            connection: &mut transaction,
            now: self.now_ms(),
            ask,
            limits,
            has_quota: quota.is_some(),
        };
        let before = if quota.is_some() { asking.place().await? } else { None };
        let acquired = asking.decide().await?;
        if let Some(quota) = &quota
            && before.as_ref().is_none_or(|place| place.status != ExecutionStatus::Running)
            && acquired.asks()
            && let Some(reached) = asking.over(quota).await?
        {
            // What was decided is taken back, with the place that this run may have had.
            drop(transaction);
            if before.is_some() {
                self.forget(ask, ExecutionStatus::Queued).await?;
            }
            return Ok(Acquired::Quota(reached));
        }
        // What a loss of power may take back: a place in the queue, and a run in a sandbox that ends with this machine.
        let must_last = ask.execution.idempotency.is_some()
            || match &acquired {
                Acquired::Create(_) => true,
                Acquired::Ready(row, _) => !is_local(row),
                _ => false,
            };
        if must_last {
            transaction.commit().await?;
        } else {
            transaction.commit_lightly().await?;
        }
        Ok(acquired)
    }

    /// Whether this run has a row, and its tenant's quota, if it has one.
    async fn known(
        &self,
        ask: &Acquire,
        limits: &ContextLimits,
    ) -> Result<(bool, Option<Quota>), StoreError> {
        let tenant = &ask.key.tenant;
        let row = sqlx::query(
            "SELECT EXISTS (SELECT 1 FROM executions WHERE id = ?1) AS is_known, q.*
               FROM (SELECT 1) LEFT JOIN tenant_quotas q ON q.tenant_id = ?2",
        )
        .bind(ask.execution.id.to_string())
        .bind(tenant.as_str())
        .fetch_one(&mut *self.read(measure!("known", tenant)).await?)
        .await
        .map_err(failure)?;
        let is_known = Cells::named(&row, "executions", ask.execution.id.to_string()).get("is_known")?;
        let quota = limits.quota.or(&super::ledger::own_quota_in(&row, tenant.as_str())?);
        Ok((is_known, Some(quota).filter(Quota::is_limited)))
    }

    /// The quota, when it has no room for one more run whatever is decided: without the write lock, so that a crowd that
    /// is refused does not slow down those that are not.
    async fn surely_over(
        &self,
        quota: &Quota,
        ask: &Acquire,
        limits: &ContextLimits,
    ) -> Result<Option<QuotaReached>, StoreError> {
        let now = self.now_ms();
        let mut reader = self.read(measure!("use", ask.key.tenant)).await?;
        let mut used = used(&mut reader, ask.key.tenant.as_str(), quota, limits, now).await?;
        used.asked += 1;
        Ok(quota.reached(&used, &limits.prices, time(now)))
    }

    /// A refused ask leaves no row, if the run has not gone on from where it was.
    async fn forget(&self, ask: &Acquire, was: ExecutionStatus) -> Result<(), StoreError> {
        let mut transaction = self.write(measure!("forget", ask.key.tenant)).await?;
        sqlx::query("DELETE FROM executions WHERE id = ? AND tenant_id = ? AND status = ?")
            .bind(ask.execution.id.to_string())
            .bind(ask.key.tenant.as_str())
            .bind(was.as_str())
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit_lightly().await
    }

    /// The answer for a run whose place is safe and whose turn has not come: without the write lock, because a crowd
    /// that waits must not slow down the run that it waits for. `None`: ask properly.
    async fn still_waits(&self, ask: &Acquire) -> Result<Option<Acquired>, StoreError> {
        let now = self.now_ms();
        let mut reader = self.read(measure!("place", ask.key.tenant)).await?;
        let dead = dead_processes(self, &mut reader, &ask.owner).await?;
        let row = sqlx::query(
            "WITH dead AS (SELECT value AS id FROM json_each(?8))
             SELECT x.id, c.status, c.lease_expires_at AS creating_until, c.creator_execution = x.id AS is_creator,
                    (SELECT count(*) FROM executions q
                      WHERE q.tenant_id = x.tenant_id AND q.owner_principal = x.owner_principal
                        AND q.conversation_id = x.conversation_id AND q.path_id = x.path_id
                        AND q.lease_expires_at > ?1 AND NOT EXISTS (SELECT 1 FROM dead d WHERE d.id = q.owner)
                        AND (q.status = 'queued' AND q.seq < x.seq
                             OR q.status = 'running' AND q.context_id = c.id)) AS ahead
               FROM executions x
               LEFT JOIN execution_contexts c
                 ON c.tenant_id = x.tenant_id AND c.owner_principal = x.owner_principal
                AND c.conversation_id = x.conversation_id AND c.path_id = x.path_id
                AND c.status IN ('creating', 'ready') AND NOT EXISTS (SELECT 1 FROM dead d WHERE d.id = c.lease_owner)
              WHERE x.id = ?2 AND x.tenant_id = ?3 AND x.owner_principal = ?4 AND x.conversation_id = ?5
                AND x.path_id = ?6 AND x.status = 'queued' AND x.lease_expires_at > ?7
                AND NOT EXISTS (SELECT 1 FROM conversation_paths p
                                 WHERE p.tenant_id = x.tenant_id AND p.owner_principal = x.owner_principal
                                   AND p.conversation_id = x.conversation_id AND p.path_id = x.path_id
                                   AND p.status <> 'active')",
        )
        .bind(now)
        .bind(ask.execution.id.to_string())
        .bind_key(&ask.key)
        .bind(now + millis(QUEUE_LEASE) / 2)
        .bind(json!(dead).to_string())
        .fetch_optional(&mut *reader)
        .await
        .map_err(failure)?;
        let Some(row) = row else { return Ok(None) };
        let cells = Cells::new(&row, "executions", "id");
        let status: Option<ContextStatus> = cells.parse_optional("status")?;
        let lease_left = cells.get::<Option<i64>>("creating_until")?.unwrap_or(0) - now;
        let position: u32 = cells.get("ahead")?;
        Ok(match status {
            Some(ContextStatus::Creating) if lease_left > 0 => {
                let is_creator = cells.get::<Option<bool>>("is_creator")?.unwrap_or(false);
                let lease_left = Duration::from_millis(u64::try_from(lease_left).unwrap_or(0));
                (!is_creator).then_some(Acquired::WaitForCreator { lease_left })
            }
            _ => (position > 0).then_some(Acquired::Queued { position }),
        })
    }
}

/// Whether the context's sandbox ends with this machine.
fn is_local(context: &ContextRow) -> bool {
    context.sandbox.as_ref().is_some_and(|sandbox| sandbox.host_url.is_some())
}

/// One ask, under the write lock.
struct Asking<'a> {
    store: &'a SqliteStore,
    connection: &'a mut SqliteConnection,
    now: i64,
    ask: &'a Acquire,
    limits: &'a ContextLimits,
    /// Whether its tenant has a quota.
    has_quota: bool,
}

impl Asking<'_> {
    async fn decide(&mut self) -> Result<Acquired, StoreError> {
        if self.has_quota
            && let Some(ready) = self.usual().await?
        {
            return Ok(ready);
        }
        let mut mine = None;
        if let Some(run) = self.run(self.ask.execution.id).await? {
            if run.key != self.ask.key {
                return Err(StoreError::NotFound);
            }
            match run.status {
                ExecutionStatus::Queued | ExecutionStatus::Running => mine = self.place().await?,
                // It lost its place; it gets one at the queue's end.
                ExecutionStatus::Interrupted if run.started_at.is_none() => self.forget_mine().await?,
                ExecutionStatus::Interrupted => return Ok(Acquired::Interrupted(Box::new(run))),
                _ => return Ok(Acquired::Replay(Box::new(run))),
            }
        }
        if mine.is_none()
            && let Some(answer) = self.same_key().await?
        {
            return Ok(answer);
        }
        if let Some(closed) = self.closed_path().await? {
            self.forget_mine().await?;
            return Ok(Acquired::PathClosed(closed));
        }
        let live = self.live().await?;
        match live {
            Some(live) if live.row.status == ContextStatus::Creating => self.while_creating(mine, live).await,
            Some(live) => self.on_ready(mine, live).await,
            None => self.create(mine).await,
        }
    }

    /// The usual case for a tenant with a quota.
    async fn usual(&mut self) -> Result<Option<Acquired>, StoreError> {
        if self.ask.execution.idempotency.is_some() {
            return Ok(None);
        }
        let query = bind_usual(sqlx::query(usual!("")), self.ask, self.limits, self.now);
        let rows = query.fetch_all(&mut *self.connection).await.map_err(failure)?;
        let Some(row) = rows.first() else { return Ok(None) };
        if let Some((context, numbers)) = usual_in(row, &self.store.keyring, self.now)? {
            return Ok(Some(Acquired::Ready(Box::new(context), numbers)));
        }
        sqlx::query("DELETE FROM executions WHERE id = ?")
            .bind(self.ask.execution.id.to_string())
            .execute(&mut *self.connection)
            .await
            .map_err(failure)?;
        Ok(None)
    }

    /// Another run's row holds this run's idempotency key: the answer is about that one.
    async fn same_key(&mut self) -> Result<Option<Acquired>, StoreError> {
        let Some(once) = &self.ask.execution.idempotency else { return Ok(None) };
        let row = sqlx::query(
            "SELECT id, owner, args_sha256, status, created_at, lease_expires_at FROM executions
              WHERE tenant_id = ? AND owner_principal = ? AND idempotency_key = ?",
        )
        .bind(self.ask.key.tenant.as_str())
        .bind(self.ask.key.owner.as_str())
        .bind(storable(&once.key))
        .fetch_optional(&mut *self.connection)
        .await
        .map_err(failure)?;
        let Some(row) = row else { return Ok(None) };
        let cells = Cells::new(&row, "executions", "id");
        let id: ExecutionId = cells.parse("id")?;
        let status: ExecutionStatus = cells.parse("status")?;
        let lease: Option<i64> = cells.get("lease_expires_at")?;
        let is_dead =
            lease.is_some_and(|until| until <= self.now) || self.is_dead(cells.get("owner")?).await?;
        let is_old = lease.is_none()
            && cells.get::<i64>("created_at")? <= self.now - millis(self.limits.idempotency_ttl);
        if is_old || (status == ExecutionStatus::Queued && is_dead) {
            // Expired, or its caller went away before it began: the key is free.
            sqlx::query(
                "UPDATE executions
                    SET idempotency_key = NULL, args_sha256 = NULL, lease_expires_at = NULL,
                        status = CASE status WHEN 'queued' THEN 'interrupted' ELSE status END,
                        finished_at = coalesce(finished_at, ?)
                  WHERE id = ?",
            )
            .bind(self.now)
            .bind(id.to_string())
            .execute(&mut *self.connection)
            .await
            .map_err(failure)?;
            return Ok(None);
        }
        if cells.get::<&str>("args_sha256")? != storable(&once.args_sha256) {
            return Ok(Some(Acquired::KeyConflict(id)));
        }
        if status == ExecutionStatus::Running && is_dead {
            self.interrupt(id).await?;
        } else if lease.is_some() {
            return Ok(Some(Acquired::InFlight(id)));
        }
        let Some(run) = self.run(id).await? else { return Ok(None) };
        Ok(Some(match run.status {
            ExecutionStatus::Interrupted => Acquired::Interrupted(Box::new(run)),
            _ => Acquired::Replay(Box::new(run)),
        }))
    }

    /// Someone is making the sandbox, or was.
    async fn while_creating(&mut self, mine: Option<Place>, live: Live) -> Result<Acquired, StoreError> {
        let lease_left = match self.is_dead(&live.row.owner).await? {
            true => 0,
            false => live.lease_expires_at.unwrap_or(0) - self.now,
        };
        let is_mine = live.creator == self.ask.execution.id
            && mine.as_ref().is_some_and(|place| place.status == ExecutionStatus::Queued);
        if lease_left > 0 && is_mine {
            // The answer was lost; the lease is still this run's.
            self.lease_context(&live.row, live.row.epoch).await?;
            return self.claimed(mine, live.row.id, live.row.epoch).await;
        }
        if lease_left > 0 {
            self.keep_place(mine).await?;
            let lease_left = Duration::from_millis(u64::try_from(lease_left).unwrap_or(0));
            return Ok(Acquired::WaitForCreator { lease_left });
        }
        let position = self.queued_before(&mine).await?;
        if position > 0 {
            self.keep_place(mine).await?;
            return Ok(Acquired::Queued { position });
        }
        // Its creator died: take over. What it may have made goes to the outbox by its tag.
        sqlx::query(
            "INSERT INTO doomed_sandboxes (tenant_id, context_id, epoch, reason, not_before, created_at)
             VALUES (?, ?, ?, 'its creator is gone', ?, ?)",
        )
        .bind(self.ask.key.tenant.as_str())
        .bind(live.row.id.to_string())
        .bind(live.row.epoch)
        .bind(self.now + millis(self.limits.create_timeout))
        .bind(self.now)
        .execute(&mut *self.connection)
        .await
        .map_err(failure)?;
        let epoch = live.row.epoch + 1;
        self.lease_context(&live.row, epoch).await?;
        self.claimed(mine, live.row.id, epoch).await
    }

    /// There is a sandbox: run on it, wait for those before, or replace it when its time is up.
    async fn on_ready(&mut self, mine: Option<Place>, live: Live) -> Result<Acquired, StoreError> {
        let runs_already = mine.as_ref().is_some_and(|place| {
            place.status == ExecutionStatus::Running && place.context == Some(live.row.id)
        });
        if !runs_already {
            let mut position = self.queued_before(&mine).await? + self.running_on(live.row.id).await?;
            if self.is_anothers(&live.row.owner).await? {
                // Another process holds the context and may be using it out of our sight: it is asked to let go.
                self.want(live.row.id).await?;
                position = position.max(1);
            }
            if position > 0 {
                self.keep_place(mine).await?;
                return Ok(Acquired::Queued { position });
            }
            let is_expired = live.row.expires_at.is_some_and(|at| at.timestamp_millis() <= self.now);
            if is_expired || live.row.execution_count >= i64::from(self.limits.max_executions) {
                let reason = if is_expired { EndReason::Expired } else { EndReason::Rotated };
                super::contexts::end_live(self.connection, live.row.id, reason, None, self.now, self.limits)
                    .await?;
                return self.create(mine).await;
            }
        }
        let lease = millis(self.ask.execution.lease);
        self.write_place(mine, ExecutionStatus::Running, Some(live.row.id), lease).await?;
        let mut row = live.row;
        if row.owner != self.ask.owner {
            self.take(row.id).await?;
            row.owner.clone_from(&self.ask.owner);
        }
        let numbers = super::audit::load(&mut *self.connection, &self.ask.key).await?;
        Ok(Acquired::Ready(Box::new(row), numbers))
    }

    /// There is no context: make one, within the limits, when this run is first in the queue.
    async fn create(&mut self, mine: Option<Place>) -> Result<Acquired, StoreError> {
        let position = self.queued_before(&mine).await?;
        if position > 0 {
            self.keep_place(mine).await?;
            return Ok(Acquired::Queued { position });
        }
        if self.limit_reached().await?.is_some() {
            // Contexts that have ended but are not yet swept must not block it.
            let tenant = Some(&self.ask.key.tenant);
            super::outbox::end_due(self.connection, tenant, 1000, self.now, self.limits).await?;
            if let Some(reached) = self.limit_reached().await? {
                self.forget_mine().await?;
                return Ok(Acquired::Limit(reached));
            }
        }
        let id = self.unused_id().await?;
        sqlx::query(
            "INSERT INTO execution_contexts (id, tenant_id, owner_principal, conversation_id, path_id, lease_owner,
                 lease_expires_at, due_at, creator_execution, created_at, last_used_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?9, ?9)",
        )
        .bind(id.to_string())
        .bind_key(&self.ask.key)
        .bind(storable(&self.ask.owner))
        .bind(self.now + millis(self.limits.create_lease))
        .bind(self.ask.execution.id.to_string())
        .bind(self.now)
        .execute(&mut *self.connection)
        .await
        .map_err(failure)?;
        self.claimed(mine, id, 1).await
    }

    /// The claim, with this run's row kept for as long as the lease.
    async fn claimed(
        &mut self,
        mine: Option<Place>,
        context: ContextId,
        epoch: i64,
    ) -> Result<Acquired, StoreError> {
        let lease = millis(self.limits.create_lease);
        self.write_place(mine, ExecutionStatus::Queued, Some(context), lease).await?;
        let key = &self.ask.key;
        let previous: Option<(String, Option<String>)> = sqlx::query_as(
            "SELECT end_reason, template FROM execution_contexts
              WHERE tenant_id = ? AND owner_principal = ? AND conversation_id = ?
                AND path_id = ? AND ended_at IS NOT NULL
                AND ready_at IS NOT NULL
              ORDER BY ended_at DESC LIMIT 1",
        )
        .bind_key(key)
        .fetch_optional(&mut *self.connection)
        .await
        .map_err(failure)?;
        let (previous, template) = previous.unzip();
        let template = template.flatten();
        let previous =
            previous.map(|reason: String| reason.parse::<EndReason>()).transpose().map_err(|problem| {
                StoreError::Corrupt { table: "execution_contexts", id: context.to_string(), problem }
            })?;
        Ok(Acquired::Create(Claim {
            context,
            key: key.clone(),
            epoch,
            previous,
            template,
            read_at: time(self.now),
        }))
    }

    /// The lease on a context that is being made.
    async fn lease_context(&mut self, context: &ContextRow, epoch: i64) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE execution_contexts
                SET lease_epoch = ?, lease_owner = ?, lease_expires_at = ?, creator_execution = ?, updated_at = ?
              WHERE id = ?",
        )
        .bind(epoch)
        .bind(storable(&self.ask.owner))
        .bind(self.now + millis(self.limits.create_lease))
        .bind(self.ask.execution.id.to_string())
        .bind(self.now)
        .bind(context.id.to_string())
        .execute(&mut *self.connection)
        .await
        .map(drop)
        .map_err(failure)
    }

    /// Runs of the key that asked before this one and still wait.
    async fn queued_before(&mut self, mine: &Option<Place>) -> Result<u32, StoreError> {
        sqlx::query_scalar(
            "SELECT count(*) FROM executions
              WHERE tenant_id = ? AND owner_principal = ? AND conversation_id = ?
                AND path_id = ? AND status = 'queued'
                AND lease_expires_at > ? AND id <> ? AND seq < ?
                AND owner NOT IN (SELECT value FROM json_each(?))",
        )
        .bind_key(&self.ask.key)
        .bind(self.now)
        .bind(self.ask.execution.id.to_string())
        .bind(mine.as_ref().map_or(i64::MAX, |place| place.seq))
        .bind(json!(self.dead().await?).to_string())
        .fetch_one(&mut *self.connection)
        .await
        .map_err(failure)
    }

    /// 1 when a run holds the context. One whose replica died is marked and holds nothing.
    async fn running_on(&mut self, context: ContextId) -> Result<u32, StoreError> {
        let row = sqlx::query(
            "SELECT id, owner, lease_expires_at FROM executions WHERE context_id = ? AND status = 'running'",
        )
        .bind(context.to_string())
        .fetch_optional(&mut *self.connection)
        .await
        .map_err(failure)?;
        let Some(row) = row else { return Ok(0) };
        let cells = Cells::new(&row, "executions", "id");
        if cells.get::<i64>("lease_expires_at")? > self.now && !self.is_dead(cells.get("owner")?).await? {
            return Ok(1);
        }
        self.interrupt(cells.parse("id")?).await?;
        Ok(0)
    }

    async fn interrupt(&mut self, id: ExecutionId) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE executions SET status = 'interrupted', finished_at = ?, lease_expires_at = NULL
              WHERE id = ? AND status = 'running'",
        )
        .bind(self.now)
        .bind(id.to_string())
        .execute(&mut *self.connection)
        .await
        .map(drop)
        .map_err(failure)
    }

    /// Which limit prevents one more context.
    async fn limit_reached(&mut self) -> Result<Option<LimitReached>, StoreError> {
        let key = &self.ask.key;
        let overrides =
            sqlx::query("SELECT per_tenant, per_conversation FROM tenant_limits WHERE tenant_id = ?")
                .bind(key.tenant.as_str())
                .fetch_optional(&mut *self.connection)
                .await
                .map_err(failure)?;
        let overridden = |column| -> Option<u32> { overrides.as_ref()?.try_get(column).ok().flatten() };
        let per_tenant = overridden("per_tenant").unwrap_or(self.limits.per_tenant);
        let per_conversation = overridden("per_conversation").unwrap_or(self.limits.per_conversation);
        let (of_tenant, of_conversation): (u32, u32) = sqlx::query_as(
            "SELECT count(*), coalesce(sum(owner_principal = ? AND conversation_id = ?), 0) FROM execution_contexts
              WHERE tenant_id = ? AND status IN ('creating', 'ready')",
        )
        .bind(key.owner.as_str())
        .bind(key.conversation.as_str())
        .bind(key.tenant.as_str())
        .fetch_one(&mut *self.connection)
        .await
        .map_err(failure)?;
        let (scope, limit) = if of_conversation >= per_conversation {
            ("conversation", per_conversation)
        } else if of_tenant >= per_tenant {
            ("tenant", per_tenant)
        } else {
            return Ok(None);
        };
        let rows = sqlx::query(
            "SELECT tenant_id, owner_principal, conversation_id, path_id,
                    coalesce(expires_at, lease_expires_at) AS over_at
               FROM execution_contexts
              WHERE tenant_id = ?1 AND status IN ('creating', 'ready')
                AND (?2 OR owner_principal = ?3 AND conversation_id = ?4)
              ORDER BY last_used_at",
        )
        .bind(key.tenant.as_str())
        .bind(scope == "tenant")
        .bind(key.owner.as_str())
        .bind(key.conversation.as_str())
        .fetch_all(&mut *self.connection)
        .await
        .map_err(failure)?;
        let mut reached = LimitReached { scope, limit, holders: Vec::new(), others: 0, frees_in: None };
        for row in &rows {
            let cells = Cells::new(row, "execution_contexts", "path_id");
            let held = cells.key()?;
            let left = u64::try_from(cells.get::<i64>("over_at")? - self.now).unwrap_or(0);
            let left = Duration::from_millis(left);
            reached.frees_in = Some(reached.frees_in.map_or(left, |first| first.min(left)));
            match self.ask.sees_tenant || held.owner == key.owner {
                true => reached.holders.push(held),
                false => reached.others += 1,
            }
        }
        Ok(Some(reached))
    }

    /// The quota, when what is used and reserved, this run included, goes beyond it.
    async fn over(&mut self, quota: &Quota) -> Result<Option<QuotaReached>, StoreError> {
        let tenant = self.ask.key.tenant.as_str();
        let used = used(self.connection, tenant, quota, self.limits, self.now).await?;
        Ok(quota.reached(&used, &self.limits.prices, time(self.now)))
    }

    /// Other processes that have ended.
    async fn dead(&mut self) -> Result<Vec<String>, StoreError> {
        dead_processes(self.store, self.connection, &self.ask.owner).await
    }

    async fn is_dead(&mut self, process: &str) -> Result<bool, StoreError> {
        Ok(self.dead().await?.iter().any(|dead| dead == process))
    }

    /// Whether another process holds a lease. One without a row holds nothing.
    async fn is_anothers(&mut self, holder: &str) -> Result<bool, StoreError> {
        if holder == self.ask.owner {
            return Ok(false);
        }
        let known: i64 = sqlx::query_scalar("SELECT count(*) FROM replicas WHERE id = ?")
            .bind(holder)
            .fetch_one(&mut *self.connection)
            .await
            .map_err(failure)?;
        Ok(known > 0 && !self.is_dead(holder).await?)
    }

    async fn want(&mut self, context: ContextId) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE execution_contexts SET lease_wanted_at = ? WHERE id = ? AND lease_wanted_at IS NULL",
        )
        .bind(self.now)
        .bind(context.to_string())
        .execute(&mut *self.connection)
        .await
        .map(drop)
        .map_err(failure)
    }

    async fn take(&mut self, context: ContextId) -> Result<(), StoreError> {
        sqlx::query("UPDATE execution_contexts SET lease_owner = ?, lease_wanted_at = NULL WHERE id = ?")
            .bind(storable(&self.ask.owner))
            .bind(context.to_string())
            .execute(&mut *self.connection)
            .await
            .map(drop)
            .map_err(failure)
    }

    /// The id that was asked for; the same ask may come twice in the life of a key, and an id is used once.
    async fn unused_id(&mut self) -> Result<ContextId, StoreError> {
        let used: i64 = sqlx::query_scalar("SELECT count(*) FROM execution_contexts WHERE id = ?")
            .bind(self.ask.new_context.to_string())
            .fetch_one(&mut *self.connection)
            .await
            .map_err(failure)?;
        Ok(match used {
            0 => self.ask.new_context,
            _ => ContextId::mint(&self.store.clock, self.store.keyring.entropy()),
        })
    }

    async fn closed_path(&mut self) -> Result<Option<PathStatus>, StoreError> {
        let key = &self.ask.key;
        let row = sqlx::query(
            "SELECT path_id, status FROM conversation_paths
              WHERE tenant_id = ? AND owner_principal = ? AND conversation_id = ?
                AND path_id = ? AND status <> 'active'",
        )
        .bind_key(key)
        .fetch_optional(&mut *self.connection)
        .await
        .map_err(failure)?;
        row.map(|row| Cells::new(&row, "conversation_paths", "path_id").parse("status")).transpose()
    }

    /// The key's live context. One whose tokens do not open is lost, and gone before anyone sees it.
    async fn live(&mut self) -> Result<Option<Live>, StoreError> {
        let key = &self.ask.key;
        let row = sqlx::query(
            "SELECT * FROM execution_contexts
              WHERE tenant_id = ? AND owner_principal = ? AND conversation_id = ?
                AND path_id = ? AND status IN ('creating', 'ready')",
        )
        .bind_key(key)
        .fetch_optional(&mut *self.connection)
        .await
        .map_err(failure)?;
        let Some(row) = row else { return Ok(None) };
        let cells = Cells::new(&row, "execution_contexts", "id");
        match rows::context_with_sandbox(&row, &self.store.keyring, self.now) {
            Ok(context) => Ok(Some(Live {
                row: context,
                creator: cells.parse("creator_execution")?,
                lease_expires_at: cells.get("lease_expires_at")?,
            })),
            Err(why) => {
                let id: ContextId = cells.parse("id")?;
                super::contexts::end_unreadable(self.connection, id, &why, self.now, self.limits).await?;
                Ok(None)
            }
        }
    }

    async fn run(&mut self, id: ExecutionId) -> Result<Option<ExecutionRow>, StoreError> {
        let row = sqlx::query("SELECT * FROM executions WHERE tenant_id = ? AND id = ?")
            .bind(self.ask.key.tenant.as_str())
            .bind(id.to_string())
            .fetch_optional(&mut *self.connection)
            .await
            .map_err(failure)?;
        row.as_ref().map(rows::execution).transpose()
    }

    /// This run's row while it waits or runs. One that runs was admitted before, and its caller did not get the answer.
    async fn place(&mut self) -> Result<Option<Place>, StoreError> {
        let row = sqlx::query(
            "SELECT id, seq, status, context_id, lease_expires_at FROM executions
              WHERE id = ? AND status IN ('queued', 'running')",
        )
        .bind(self.ask.execution.id.to_string())
        .fetch_optional(&mut *self.connection)
        .await
        .map_err(failure)?;
        let Some(row) = row else { return Ok(None) };
        let cells = Cells::new(&row, "executions", "id");
        Ok(Some(Place {
            seq: cells.get("seq")?,
            status: cells.parse("status")?,
            context: cells.parse_optional("context_id")?,
            lease_expires_at: cells.get("lease_expires_at")?,
        }))
    }

    /// A refused ask leaves no row.
    async fn forget_mine(&mut self) -> Result<(), StoreError> {
        sqlx::query("DELETE FROM executions WHERE id = ? AND started_at IS NULL")
            .bind(self.ask.execution.id.to_string())
            .execute(&mut *self.connection)
            .await
            .map(drop)
            .map_err(failure)
    }

    /// This run's place in the queue; nothing is written while it is safe for long enough.
    async fn keep_place(&mut self, mine: Option<Place>) -> Result<(), StoreError> {
        let lease = millis(QUEUE_LEASE);
        if let Some(place) = &mine
            && place.status == ExecutionStatus::Queued
            && place.lease_expires_at > self.now + lease / 2
        {
            return Ok(());
        }
        self.write_place(mine, ExecutionStatus::Queued, None, lease).await
    }

    /// This run's row: new, or the one it has.
    async fn write_place(
        &mut self,
        mine: Option<Place>,
        status: ExecutionStatus,
        context: Option<ContextId>,
        lease: i64,
    ) -> Result<(), StoreError> {
        let run = &self.ask.execution;
        let started = (status == ExecutionStatus::Running).then_some(self.now);
        let query = if mine.is_some() {
            sqlx::query(
                "UPDATE executions
                    SET status = ?1, context_id = ?2, owner = ?3, lease_expires_at = ?4,
                        started_at = CASE WHEN ?5 IS NULL THEN NULL ELSE coalesce(started_at, ?5) END,
                        queued_ms = ?5 - created_at
                  WHERE id = ?6",
            )
        } else {
            sqlx::query(
                "INSERT INTO executions (status, context_id, owner, lease_expires_at, started_at, id, tenant_id,
                     owner_principal, conversation_id, path_id, tool, language, purpose, code_sha256, principal,
                     trace_id, idempotency_key, args_sha256, run_lease_ms, created_at, queued_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
                     ?5 - ?20)",
            )
        };
        let query = query
            .bind(status.as_str())
            .bind(context.map(|id| id.to_string()))
            .bind(storable(&self.ask.owner))
            .bind(self.now + lease)
            .bind(started)
            .bind(run.id.to_string());
        let query = if mine.is_some() {
            query
        } else {
            query
                .bind_key(&self.ask.key)
                .bind(storable(&run.tool))
                .bind(run.language.as_str())
                .bind(run.purpose.as_deref().map(storable))
                .bind(storable(&run.code_sha256))
                .bind(run.principal.as_deref().map(storable))
                .bind(run.trace_id.as_deref().map(storable))
                .bind(run.idempotency.as_ref().map(|once| storable(&once.key)))
                .bind(run.idempotency.as_ref().map(|once| storable(&once.args_sha256)))
                .bind(millis(run.lease))
                .bind(self.now)
        };
        query.execute(&mut *self.connection).await.map(drop).map_err(failure)
    }
}

/// Processes other than this one that have ended and not cleared up after yet.
pub(super) async fn dead_processes(
    store: &SqliteStore,
    connection: &mut SqliteConnection,
    own: &str,
) -> Result<Vec<String>, StoreError> {
    let others: Vec<String> = sqlx::query_scalar("SELECT id FROM replicas WHERE id <> ?")
        .bind(storable(own))
        .fetch_all(connection)
        .await
        .map_err(failure)?;
    Ok(others.into_iter().filter(|process| store.processes.is_dead(process)).collect())
}

/// What a tenant has used in the quota's period, and what is reserved: each run that has asked, and of each sandbox all the
/// time that it may still take.
async fn used(
    connection: &mut SqliteConnection,
    tenant: &str,
    quota: &Quota,
    limits: &ContextLimits,
    now: i64,
) -> Result<Use, StoreError> {
    let start = quota.period.start(time(now));
    let [executions, sandbox_ms, asked, held_ms]: [i64; 4] = sqlx::query_as::<_, (i64, i64, i64, i64)>(
        "SELECT coalesce(sum(u.executions), 0), coalesce(sum(u.sandbox_ms), 0),
                (SELECT count(*) FROM executions WHERE tenant_id = ?1 AND status IN ('queued', 'running')),
                (SELECT coalesce(sum(CASE c.status
                    WHEN 'ready' THEN
                      max(0, max(c.expires_at, coalesce((SELECT x.lease_expires_at + ?2 FROM executions x
                                                          WHERE x.context_id = c.id AND x.status = 'running'), 0))
                             - max(c.ready_at, ?3))
                    ELSE ?2 + coalesce((SELECT x.run_lease_ms FROM executions x WHERE x.id = c.creator_execution), 0)
                    END), 0)
                   FROM execution_contexts c WHERE c.tenant_id = ?1 AND c.status IN ('creating', 'ready'))
           FROM usage_days u WHERE u.tenant_id = ?1 AND u.day >= ?4",
    )
    .bind(tenant)
    .bind(millis(limits.ttl))
    .bind(midnight(start).timestamp_millis())
    .bind(start.to_string())
    .fetch_one(connection)
    .await
    .map_err(failure)?
    .into();
    let whole = |number: i64| u64::try_from(number).unwrap_or(0);
    Ok(Use {
        executions: whole(executions),
        asked: whole(asked),
        sandbox_ms: whole(sandbox_ms),
        held_ms: whole(held_ms),
    })
}
