//! Acquire, the creator's calls, the run's record.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use sqlx::{Row, SqliteConnection};

use super::acquire::dead_processes;
use super::ended::what_ended;
use super::rows::{self, Cells};
use super::writer::Bound;
use super::{SqliteStore, failure};
use crate::domain::{ContextId, ContextKey, ExecutionId, TenantId};
use crate::store::bind::BindKey;
use crate::store::{
    Acquire, Acquired, Claim, ContextLimits, ContextRow, ExecutionStatus, FinishedExecution, Leases,
    SandboxPlace, SandboxRef, Signals, StoreError, leases::storable_result, measure::measure, millis,
    storable,
};

/// A run's end: its row, then its context, whose time to live it slides, if the row took it; and what of that has ended.
/// With `$` a number means the same argument in each of the statements.
macro_rules! record {
    () => {
        concat!(
            "UPDATE executions
                SET status = $1, context_id = $2, exit_code = $3, error = $4, duration_ms = $5, queued_ms = $6,
                    output_bytes = $7, findings = $8,
                    result = CASE WHEN $9 OR idempotency_key IS NOT NULL THEN $10 END,
                    lease_expires_at = NULL, finished_at = $11,
                    created_at = CASE WHEN $12 THEN $11 - $5 - $6 ELSE created_at END,
                    started_at = CASE WHEN $12 THEN $11 - $5 ELSE coalesce(started_at, $11) END
              WHERE id = $13 AND tenant_id = $14
                AND (status IN ('queued', 'running') OR (status = 'interrupted' AND $1 <> 'interrupted'))
             RETURNING id AS recorded, tenant_id, owner_principal, conversation_id, path_id;
             UPDATE execution_contexts
                SET execution_count = execution_count + 1, total_execution_ms = total_execution_ms + $5,
                    last_used_at = max(last_used_at, $11), updated_at = $15, expires_at = max(expires_at, $11 + $16),
                    provider_ends_at = coalesce($17, provider_ends_at),
                    last_error = CASE WHEN $1 = 'failed' THEN coalesce($4, last_error) ELSE last_error END,
                    resource_usage = json_object(
                        'output_bytes', coalesce(resource_usage->>'output_bytes', 0) + $7,
                        'queued_ms', coalesce(resource_usage->>'queued_ms', 0) + $6)
              WHERE changes() > 0 AND id = $2 AND tenant_id = $14 AND status = 'ready';",
            what_ended!()
        )
    };
}

fn bind_record<'q>(
    query: Bound<'q>,
    finished: &'q FinishedExecution,
    limits: &ContextLimits,
    now: i64,
) -> Bound<'q> {
    let (result, small) = storable_result(finished);
    query
        .bind(finished.status.as_str())
        .bind(finished.context.to_string())
        .bind(finished.exit_code)
        .bind(finished.error.as_deref().map(storable))
        .bind(finished.duration_ms)
        .bind(finished.queued_ms)
        .bind(finished.output_bytes)
        .bind(finished.findings.to_string())
        .bind(small)
        .bind(result)
        .bind(finished.ended_at.map_or(now, |at| at.timestamp_millis()))
        .bind(finished.offline.is_some())
        .bind(finished.id.to_string())
        .bind(finished.tenant.as_str())
        .bind(now)
        .bind(millis(limits.ttl))
        .bind(finished.provider_ends_at.map(|at| at.timestamp_millis()))
}

#[async_trait]
impl Leases for SqliteStore {
    async fn acquire(&self, ask: &Acquire, limits: &ContextLimits) -> Result<Acquired, StoreError> {
        // A waiting caller asks again and again: that must not slow down the run that it waits for.
        let id = ask.execution.id;
        if !self.waiting.has(id)
            && let Some(ready) = self.at_once(ask, limits).await?
        {
            return Ok(ready);
        }
        let acquired = self.decide(ask, limits).await?;
        if let Acquired::Queued { .. } | Acquired::WaitForCreator { .. } = acquired {
            self.waiting.put(id);
        }
        Ok(acquired)
    }

    async fn ready(
        &self,
        claim: &Claim,
        execution: ExecutionId,
        sandbox: &SandboxRef,
        limits: &ContextLimits,
    ) -> Result<Option<ContextRow>, StoreError> {
        let sealed = self.keyring.seal_tokens(&claim.key.tenant, claim.context, sandbox);
        let mut transaction = self.write(measure!("ready")).await?;
        let now = self.now_ms();
        let updated = sqlx::query(
            "UPDATE execution_contexts
                SET status = 'ready', sandbox_id = ?, sandbox_domain = ?, host_url = ?, host_key_enc = ?,
                    envd_token_enc = ?, traffic_token_enc = ?, mcp_url = ?, mcp_token_enc = ?, provider_ends_at = ?,
                    template = ?, ready_at = ?, last_used_at = ?, updated_at = ?, expires_at = ?, lease_expires_at = NULL
              WHERE id = ? AND tenant_id = ? AND status = 'creating' AND lease_epoch = ? AND lease_expires_at > ?",
        )
        .bind(sandbox.sandbox_id.as_str())
        .bind(sandbox.domain.as_deref())
        .bind(sandbox.host_url.as_deref())
        .bind(sealed.host_key.as_deref())
        .bind(sealed.envd_token.as_deref())
        .bind(sealed.traffic_token.as_deref())
        .bind(sandbox.mcp_url.as_deref())
        .bind(sealed.mcp_token.as_deref())
        .bind(sandbox.provider_ends_at.map(|at| at.timestamp_millis()))
        .bind(claim.template.as_deref())
        .bind(now)
        .bind(now)
        .bind(now)
        .bind(now + millis(limits.ttl))
        .bind(claim.context.to_string())
        .bind(claim.key.tenant.as_str())
        .bind(claim.epoch)
        .bind(now)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        if updated.rows_affected() > 0 {
            begin_run(&mut transaction, claim, execution, now).await?;
        }
        // Said twice, the same sandbox is taken once.
        let row = sqlx::query(
            "SELECT * FROM execution_contexts
              WHERE id = ? AND tenant_id = ? AND status = 'ready' AND lease_epoch = ? AND sandbox_id = ?",
        )
        .bind(claim.context.to_string())
        .bind(claim.key.tenant.as_str())
        .bind(claim.epoch)
        .bind(sandbox.sandbox_id.as_str())
        .fetch_optional(&mut *transaction)
        .await
        .map_err(failure)?;
        if row.is_none() {
            doom_late_sandbox(&mut transaction, claim, sandbox, sealed.host_key.as_deref(), now).await?;
        }
        let context = row.map(|row| rows::context(&row, now)).transpose()?;
        transaction.commit().await?;
        Ok(context.map(|context| ContextRow { sandbox: Some(sandbox.clone()), ..context }))
    }

    async fn renew(&self, claim: &Claim, limits: &ContextLimits) -> Result<bool, StoreError> {
        let mut transaction = self.write(measure!("renew")).await?;
        let now = self.now_ms();
        let until = now + millis(limits.create_lease);
        let renewed = sqlx::query(
            "UPDATE execution_contexts SET lease_expires_at = ?
              WHERE id = ? AND tenant_id = ? AND status = 'creating' AND lease_epoch = ? AND lease_expires_at > ?",
        )
        .bind(until)
        .bind(claim.context.to_string())
        .bind(claim.key.tenant.as_str())
        .bind(claim.epoch)
        .bind(now)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?
        .rows_affected();
        if renewed > 0 {
            sqlx::query(
                "UPDATE executions SET lease_expires_at = ? WHERE context_id = ? AND status = 'queued'",
            )
            .bind(until)
            .bind(claim.context.to_string())
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        }
        transaction.commit().await?;
        Ok(renewed > 0)
    }

    async fn record(&self, finished: &FinishedExecution, limits: &ContextLimits) -> Result<bool, StoreError> {
        let mut write = self.turn_to_write(measure!("record", finished.tenant)).await?;
        let rows = match finished.offline.as_deref() {
            None => {
                let query = sqlx::query(concat!("BEGIN IMMEDIATE; ", record!()));
                let query = bind_record(query, finished, limits, write.now);
                write.begin(query).await?
            }
            Some(ask) => {
                write.begin(sqlx::query("BEGIN IMMEDIATE")).await?;
                let ended = finished.ended_at.map_or(write.now, |at| at.timestamp_millis());
                insert_offline(&mut write, ask, finished, ended).await?;
                let query = bind_record(sqlx::query(record!()), finished, limits, write.now);
                query.fetch_all(&mut *write).await.map_err(failure)?
            }
        };
        let Some((recorded, ended)) =
            rows.split_first().filter(|(row, _)| row.try_column("recorded").is_ok())
        else {
            return Ok(false);
        };
        let key = Cells::new(recorded, "executions", "recorded").key()?;
        write.commit_with(ended).await?.sync().await?;
        self.signals.wake(&Signals::name(&key));
        Ok(true)
    }

    async fn abandon(
        &self,
        tenant: &TenantId,
        execution: ExecutionId,
        status: ExecutionStatus,
        error: Option<&str>,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.write(measure!("abandon", tenant)).await?;
        // A claim that the run held is over with it: the next in the queue takes it over at once.
        sqlx::query(
            "UPDATE execution_contexts SET lease_expires_at = ?1, due_at = ?1
              WHERE id = (SELECT context_id FROM executions WHERE id = ?2 AND tenant_id = ?3)
                AND status = 'creating' AND creator_execution = ?2",
        )
        .bind(self.now_ms())
        .bind(execution.to_string())
        .bind(tenant.as_str())
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        let abandoned = sqlx::query(
            "UPDATE executions
                SET status = ?1, error = ?2, finished_at = ?3, lease_expires_at = NULL,
                    idempotency_key = CASE WHEN ?1 = 'interrupted' THEN idempotency_key END,
                    args_sha256 = CASE WHEN ?1 = 'interrupted' THEN args_sha256 END
              WHERE id = ?4 AND tenant_id = ?5 AND status IN ('queued', 'running')
             RETURNING id, tenant_id, owner_principal, conversation_id, path_id",
        )
        .bind(status.as_str())
        .bind(error.map(storable))
        .bind(self.now_ms())
        .bind(execution.to_string())
        .bind(tenant.as_str())
        .fetch_optional(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await?;
        let Some(abandoned) = abandoned else { return Ok(false) };
        self.signals.wake(&Signals::name(&Cells::new(&abandoned, "executions", "id").key()?));
        Ok(true)
    }

    async fn ask_to_stop(&self, tenant: &TenantId, id: ExecutionId) -> Result<bool, StoreError> {
        let mut transaction = self.write(measure!("ask_to_stop", tenant)).await?;
        let asked = sqlx::query(
            "UPDATE executions SET stop_asked_at = coalesce(stop_asked_at, ?1)
              WHERE id = ?2 AND tenant_id = ?3 AND status IN ('queued', 'running')",
        )
        .bind(self.now_ms())
        .bind(id.to_string())
        .bind(tenant.as_str())
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await?;
        Ok(asked.rows_affected() > 0)
    }

    async fn renew_run(&self, tenant: &TenantId, execution: ExecutionId) -> Result<bool, StoreError> {
        let mut transaction = self.write(measure!("renew_run", tenant)).await?;
        let renewed = sqlx::query(
            "UPDATE executions SET lease_expires_at = max(lease_expires_at, ? + 60000)
              WHERE id = ? AND tenant_id = ? AND status = 'running'",
        )
        .bind(self.now_ms())
        .bind(execution.to_string())
        .bind(tenant.as_str())
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await?;
        Ok(renewed.rows_affected() > 0)
    }

    async fn join(&self, _: &str, _: &SandboxPlace, _: Duration) -> Result<bool, StoreError> {
        // The file is on one machine, and there the locks of hosts on the data directory say who may begin.
        Ok(false)
    }

    async fn left_running(&self, tenant: &TenantId, context: ContextId) -> Result<bool, StoreError> {
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM execution_contexts c JOIN executions x ON x.context_id = c.id
                             WHERE c.id = ? AND c.tenant_id = ? AND x.status = 'interrupted'
                               AND x.started_at IS NOT NULL AND x.finished_at > c.last_used_at)",
        )
        .bind(context.to_string())
        .bind(tenant.as_str())
        .fetch_one(&mut *self.read(measure!("left_running", tenant)).await?)
        .await
        .map_err(failure)
    }

    async fn heartbeat(
        &self,
        replica: &str,
        lease: Duration,
    ) -> Result<Vec<(ContextId, ContextKey)>, StoreError> {
        match lease.is_zero() {
            true => self.processes.end(replica),
            false => self.processes.begin(replica)?,
        }
        self.listen_as(replica);
        let mut reader = self.read(measure!("heartbeat")).await?;
        let known: i64 = sqlx::query_scalar("SELECT count(*) FROM replicas WHERE id = ?")
            .bind(storable(replica))
            .fetch_one(&mut *reader)
            .await
            .map_err(failure)?;
        let dead = dead_processes(self, &mut reader, replica).await?;
        // The lock says that this process lives: nothing is written for that alone.
        if known == 0 || !dead.is_empty() {
            self.begin_and_clear_up(replica, lease, &dead).await?;
        }
        let wanted = sqlx::query(
            "SELECT id, tenant_id, owner_principal, conversation_id, path_id FROM execution_contexts
              WHERE lease_owner = ? AND lease_wanted_at IS NOT NULL LIMIT 1000",
        )
        .bind(storable(replica))
        .fetch_all(&mut *reader)
        .await
        .map_err(failure)?;
        let read = |row| {
            let cells = Cells::new(row, "execution_contexts", "id");
            Ok((cells.parse("id")?, cells.key()?))
        };
        wanted.iter().map(read).collect()
    }

    async fn release(
        &self,
        tenant: &TenantId,
        context: ContextId,
        replica: &str,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.write(measure!("release", tenant)).await?;
        let released = sqlx::query(
            "UPDATE execution_contexts SET lease_owner = '', lease_wanted_at = NULL
              WHERE id = ? AND tenant_id = ? AND status = 'ready' AND lease_owner = ?",
        )
        .bind(context.to_string())
        .bind(tenant.as_str())
        .bind(storable(replica))
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await?;
        Ok(released.rows_affected() > 0)
    }

    fn signals(&self) -> &Signals {
        &self.signals
    }

    async fn stops(&self, ids: &[ExecutionId]) -> Result<Vec<ExecutionId>, StoreError> {
        let found = sqlx::query(
            "SELECT id FROM executions
              WHERE id IN (SELECT value FROM json_each(?)) AND stop_asked_at IS NOT NULL",
        )
        .bind(json!(ids).to_string())
        .fetch_all(&mut *self.read(measure!("stops")).await?)
        .await
        .map_err(failure)?;
        found.iter().map(|row| Cells::new(row, "executions", "id").parse("id")).collect()
    }
}

/// The run that a sandbox was made for begins on it.
async fn begin_run(
    connection: &mut SqliteConnection,
    claim: &Claim,
    execution: ExecutionId,
    now: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE executions
            SET status = 'running', context_id = ?1, started_at = ?2, queued_ms = ?2 - created_at,
                lease_expires_at = ?2 + run_lease_ms
          WHERE id = ?3 AND tenant_id = ?4 AND status = 'queued'",
    )
    .bind(claim.context.to_string())
    .bind(now)
    .bind(execution.to_string())
    .bind(claim.key.tenant.as_str())
    .execute(connection)
    .await
    .map(drop)
    .map_err(failure)
}

/// A sandbox whose claim was lost meanwhile must die.
async fn doom_late_sandbox(
    connection: &mut SqliteConnection,
    claim: &Claim,
    sandbox: &SandboxRef,
    host_key: Option<&[u8]>,
    now: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO doomed_sandboxes (tenant_id, context_id, epoch, sandbox_id, sandbox_domain, host_url,
             host_key_enc, reason, not_before, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'its creator was too slow', ?8, ?8)",
    )
    .bind(claim.key.tenant.as_str())
    .bind(claim.context.to_string())
    .bind(claim.epoch)
    .bind(sandbox.sandbox_id.as_str())
    .bind(sandbox.domain.as_deref())
    .bind(sandbox.host_url.as_deref())
    .bind(host_key)
    .bind(now)
    .execute(connection)
    .await
    .map(drop)
    .map_err(failure)
}

/// The row of a run that was never acquired, as one that waits, for its end comes in the same transaction; nothing when it
/// is there. An idempotency key that is another run's is left out.
async fn insert_offline(
    connection: &mut SqliteConnection,
    ask: &Acquire,
    finished: &FinishedExecution,
    ended: i64,
) -> Result<(), StoreError> {
    let run = &ask.execution;
    let mut once = run.idempotency.as_ref();
    if let Some(key) = once {
        let taken: i64 =
            sqlx::query_scalar("SELECT count(*) FROM executions WHERE tenant_id = ? AND owner_principal = ? AND idempotency_key = ?")
                .bind(finished.tenant.as_str())
                .bind(ask.key.owner.as_str())
                .bind(storable(&key.key))
                .fetch_one(&mut *connection)
                .await
                .map_err(failure)?;
        once = (taken == 0).then_some(key);
    }
    let started = ended - finished.duration_ms;
    sqlx::query(
        "INSERT INTO executions (id, tenant_id, owner_principal, conversation_id, path_id, context_id, owner, tool, language, purpose,
             code_sha256, principal, trace_id, idempotency_key, args_sha256, status, run_lease_ms, lease_expires_at,
             created_at, started_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?)
         ON CONFLICT DO NOTHING",
    )
    .bind(finished.id.to_string())
    .bind_key(&ask.key)
    .bind(finished.context.to_string())
    .bind(storable(&ask.owner))
    .bind(storable(&run.tool))
    .bind(run.language.as_str())
    .bind(run.purpose.as_deref().map(storable))
    .bind(storable(&run.code_sha256))
    .bind(run.principal.as_deref().map(storable))
    .bind(run.trace_id.as_deref().map(storable))
    .bind(once.map(|once| storable(&once.key)))
    .bind(once.map(|once| storable(&once.args_sha256)))
    .bind(millis(run.lease))
    .bind(ended)
    .bind(started - finished.queued_ms)
    .bind(started)
    .execute(connection)
    .await
    .map(drop)
    .map_err(failure)
}

impl SqliteStore {
    /// Writes down that a process lives, and clears up after those that have ended.
    async fn begin_and_clear_up(
        &self,
        process: &str,
        lease: Duration,
        dead: &[String],
    ) -> Result<(), StoreError> {
        let mut transaction = self.write(measure!("clear_up")).await?;
        let now = self.now_ms();
        sqlx::query(
            "INSERT INTO replicas (id, version, started_at, alive_until) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (id) DO UPDATE SET alive_until = excluded.alive_until",
        )
        .bind(storable(process))
        .bind(env!("CARGO_PKG_VERSION"))
        .bind(now)
        .bind(now + millis(lease))
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        clear_up_after(&mut transaction, dead, now).await?;
        transaction.commit().await?;
        dead.iter().for_each(|process| self.processes.clear(process));
        Ok(())
    }
}

/// What processes that have ended had in progress: their runs are interrupted, what they were making is free, and so are
/// their contexts, for a process without a row holds nothing.
async fn clear_up_after(
    connection: &mut SqliteConnection,
    dead: &[String],
    now: i64,
) -> Result<(), StoreError> {
    if dead.is_empty() {
        return Ok(());
    }
    for sql in [
        "UPDATE execution_contexts SET lease_expires_at = ?1, due_at = ?1
          WHERE status = 'creating' AND lease_owner IN (SELECT value FROM json_each(?2))",
        "UPDATE executions
            SET finished_at = ?1, lease_expires_at = NULL, status = 'interrupted',
                idempotency_key = CASE status WHEN 'running' THEN idempotency_key END,
                args_sha256 = CASE status WHEN 'running' THEN args_sha256 END
          WHERE status IN ('queued', 'running') AND owner IN (SELECT value FROM json_each(?2))",
        "DELETE FROM replicas WHERE ?1 = ?1 AND id IN (SELECT value FROM json_each(?2))",
    ] {
        sqlx::query(sql)
            .bind(now)
            .bind(json!(dead).to_string())
            .execute(&mut *connection)
            .await
            .map_err(failure)?;
    }
    Ok(())
}
