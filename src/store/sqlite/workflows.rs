//! Workflows, their events and results.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use uuid::Uuid;

use super::rows::Cells;
use super::{SqliteStore, failure, paths};
use crate::domain::{ExecutionId, Owner, TenantId};
use crate::store::measure::measure;
use crate::store::workflows::{
    Append, Appended, CacheEntry, Created, HeldWorkflow, MAX_LIVE_WORKFLOWS, NewCached, NewWorkflow,
    StoredEvent, TaskResult, WorkflowRow, Workflows,
};
use crate::store::{PathStatus, StoreError, millis};

/// What is due, or held by one whose lease has expired.
const DUE: &str = "finished_at IS NULL AND (lease_owner IS NULL AND wake_at <= ?1 OR lease_expires_at <= ?1)";

#[async_trait]
impl Workflows for SqliteStore {
    async fn create_workflow(&self, new: &NewWorkflow) -> Result<Created, StoreError> {
        let now = self.now_ms();
        let mut transaction = self.write(measure!("create_workflow", new.key.tenant)).await?;
        let known = sqlx::query(
            "SELECT * FROM workflows WHERE id = ?1 OR tenant_id = ?2 AND owner_principal = ?3 AND idempotency_key = ?4",
        )
        .bind(new.id.to_string())
        .bind(new.key.tenant.as_str())
        .bind(new.key.owner.as_str())
        .bind(&new.idempotency_key)
        .fetch_optional(&mut *transaction)
        .await
        .map_err(failure)?;
        if let Some(row) = &known {
            let known = workflow(row)?;
            let cells = Cells::new(row, "workflows", "id");
            return Ok(match cells.get::<&str>("args_sha256")? {
                _ if known.id == new.id => Created::New,
                args if args == new.args_sha256 => Created::Known(known.id),
                _ => Created::Conflict(known.id),
            });
        }
        let path = paths::load(&mut transaction, &new.key, &new.key.path).await?;
        if let Some(path) = path.filter(|path| path.status != PathStatus::Active) {
            return Ok(Created::PathClosed(path.status));
        }
        let live: i64 =
            sqlx::query_scalar("SELECT count(*) FROM workflows WHERE tenant_id = ? AND finished_at IS NULL")
                .bind(new.key.tenant.as_str())
                .fetch_one(&mut *transaction)
                .await
                .map_err(failure)?;
        if live >= i64::from(MAX_LIVE_WORKFLOWS) {
            return Ok(Created::Limit);
        }
        sqlx::query(
            "INSERT INTO workflows (id, tenant_id, owner_principal, principal, sees_tenant, conversation_id, path_id, purpose, \
             trace_id, idempotency_key, args_sha256, wake_at, created_at, updated_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?12, ?12)",
        )
        .bind(new.id.to_string())
        .bind(new.key.tenant.as_str())
        .bind(new.key.owner.as_str())
        .bind(&new.principal)
        .bind(new.sees_tenant)
        .bind(new.key.conversation.as_str())
        .bind(new.key.path.as_str())
        .bind(&new.purpose)
        .bind(&new.trace_id)
        .bind(&new.idempotency_key)
        .bind(&new.args_sha256)
        .bind(now)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        event(&mut transaction, new.id, 1, now, &new.event).await?;
        transaction.commit().await?;
        Ok(Created::New)
    }

    async fn workflow(&self, tenant: &TenantId, id: Uuid) -> Result<Option<WorkflowRow>, StoreError> {
        let row = sqlx::query("SELECT * FROM workflows WHERE tenant_id = ? AND id = ?")
            .bind(tenant.as_str())
            .bind(id.to_string())
            .fetch_optional(&mut *self.read(measure!("workflow", tenant)).await?)
            .await
            .map_err(failure)?;
        row.as_ref().map(workflow).transpose()
    }

    async fn workflows(
        &self,
        tenant: Option<&TenantId>,
        owner: Option<&Owner>,
        live: bool,
        limit: u32,
    ) -> Result<Vec<WorkflowRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT * FROM workflows WHERE (?1 IS NULL OR tenant_id = ?1) AND (?2 IS NULL OR owner_principal = ?2) \
             AND (NOT ?3 OR finished_at IS NULL) ORDER BY created_at DESC, id DESC LIMIT ?4",
        )
        .bind(tenant.map(TenantId::as_str))
        .bind(owner.map(Owner::as_str))
        .bind(live)
        .bind(limit)
        .fetch_all(&mut *self.read(measure!("workflows")).await?)
        .await
        .map_err(failure)?;
        rows.iter().map(workflow).collect()
    }

    async fn workflow_events(
        &self,
        id: Uuid,
        after: i64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let rows = sqlx::query(
            "SELECT seq, at, body FROM workflow_events WHERE workflow_id = ? AND seq > ? ORDER BY seq LIMIT ?",
        )
        .bind(id.to_string())
        .bind(after)
        .bind(limit)
        .fetch_all(&mut *self.read(measure!("workflow_events")).await?)
        .await
        .map_err(failure)?;
        let event = |row: &SqliteRow| {
            let cells = Cells::new(row, "workflow_events", "seq");
            let body = cells.get::<&str>("body")?.to_owned();
            Ok(StoredEvent { seq: cells.get("seq")?, at: cells.time("at")?, body })
        };
        rows.iter().map(event).collect()
    }

    async fn workflow_results(&self, id: Uuid, tasks: &[String]) -> Result<Vec<TaskResult>, StoreError> {
        let wanted = serde_json::to_string(tasks).unwrap_or_default();
        let rows = sqlx::query(
            "SELECT task, generation, body, bytes FROM workflow_results \
             WHERE workflow_id = ? AND task IN (SELECT value FROM json_each(?)) ORDER BY generation",
        )
        .bind(id.to_string())
        .bind(wanted)
        .fetch_all(&mut *self.read(measure!("workflow_results")).await?)
        .await
        .map_err(failure)?;
        let result = |row: &SqliteRow| {
            let cells = Cells::new(row, "workflow_results", "task");
            Ok(TaskResult {
                task: cells.get::<&str>("task")?.to_owned(),
                generation: cells.get("generation")?,
                body: cells.get::<Option<&str>>("body")?.map(str::to_owned),
                bytes: cells.get::<i64>("bytes")?.unsigned_abs(),
            })
        };
        rows.iter().map(result).collect()
    }

    async fn append_workflow(&self, append: &Append) -> Result<Appended, StoreError> {
        let now = self.now_ms();
        let id = append.id.to_string();
        let mut transaction = self.write(measure!("append_workflow")).await?;
        let row = sqlx::query("SELECT * FROM workflows WHERE id = ?")
            .bind(&id)
            .fetch_optional(&mut *transaction)
            .await
            .map_err(failure)?;
        let Some(row) = row.as_ref().map(workflow).transpose()? else { return Ok(Appended::Fenced) };
        let holds = |(holder, epoch): &(String, i64)| {
            row.lease_owner.as_ref() == Some(holder) && row.lease_epoch == *epoch
        };
        if append.lease.as_ref().is_some_and(|lease| !holds(lease)) {
            return Ok(Appended::Fenced);
        }
        if row.seq != append.seq || row.finished_at.is_some() {
            return Ok(Appended::Stale);
        }
        let mut seq = append.seq;
        for body in &append.events {
            seq += 1;
            event(&mut transaction, append.id, seq, now, body).await?;
        }
        put_results(&mut transaction, &id, append).await?;
        let over = ["completed", "failed", "aborted"].contains(&append.status);
        let free = over || append.release.is_some();
        // (whether it changes, to what)
        let wake = match (over, &append.lease, append.release) {
            (true, ..) => (true, None),
            (_, None, _) => (true, Some(now)),
            (_, _, Some(wait)) => (true, wait.map(|wait| now.saturating_add(millis(wait)))),
            _ => (false, None),
        };
        sqlx::query(
            "UPDATE workflows SET seq = ?2, status = ?3, updated_at = ?4, finished_at = CASE WHEN ?5 THEN ?4 END, \
             lease_owner = CASE WHEN ?6 THEN NULL ELSE lease_owner END, \
             lease_expires_at = CASE WHEN ?6 THEN NULL ELSE lease_expires_at END, \
             wake_at = CASE WHEN ?7 THEN ?8 ELSE wake_at END WHERE id = ?1",
        )
        .bind(&id)
        .bind(seq)
        .bind(append.status)
        .bind(now)
        .bind(over)
        .bind(free)
        .bind(wake.0)
        .bind(wake.1)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await?;
        Ok(Appended::Done)
    }

    async fn claim_workflows(
        &self,
        holder: &str,
        lease: Duration,
        most: u32,
    ) -> Result<Vec<WorkflowRow>, StoreError> {
        let now = self.now_ms();
        // A look without the lock first: an idle process writes nothing.
        let due: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
            "SELECT EXISTS (SELECT 1 FROM workflows WHERE {DUE})"
        )))
        .bind(now)
        .fetch_one(&mut *self.read(measure!("due_workflows")).await?)
        .await
        .map_err(failure)?;
        if due == 0 {
            return Ok(Vec::new());
        }
        let mut transaction = self.write(measure!("claim_workflows")).await?;
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "UPDATE workflows SET lease_owner = ?2, lease_epoch = lease_epoch + 1, lease_expires_at = ?1 + ?3 \
             WHERE id IN (SELECT id FROM workflows WHERE {DUE} ORDER BY wake_at LIMIT ?4) RETURNING *"
        )))
        .bind(now)
        .bind(holder)
        .bind(millis(lease))
        .bind(most)
        .fetch_all(&mut *transaction)
        .await
        .map_err(failure)?;
        let claimed = rows.iter().map(workflow).collect::<Result<_, _>>()?;
        transaction.commit_lightly().await?;
        Ok(claimed)
    }

    async fn renew_workflows(&self, holder: &str, lease: Duration) -> Result<Vec<HeldWorkflow>, StoreError> {
        let now = self.now_ms();
        let mut transaction = self.write(measure!("renew_workflows")).await?;
        let rows = sqlx::query(
            "UPDATE workflows SET lease_expires_at = ?1 + ?3 WHERE lease_owner = ?2 AND lease_expires_at > ?1 \
             RETURNING id, lease_epoch, seq",
        )
        .bind(now)
        .bind(holder)
        .bind(millis(lease))
        .fetch_all(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit_lightly().await?;
        let held = |row: &SqliteRow| {
            let cells = Cells::new(row, "workflows", "id");
            Ok(HeldWorkflow {
                id: cells.parse("id")?,
                epoch: cells.get("lease_epoch")?,
                seq: cells.get("seq")?,
            })
        };
        rows.iter().map(held).collect()
    }

    async fn forget_workflows(&self, retention: Duration, batch: u32) -> Result<u32, StoreError> {
        let before = self.now_ms() - millis(retention);
        let mut transaction = self.write(measure!("forget_workflows")).await?;
        let gone = sqlx::query(
            "DELETE FROM workflows WHERE id IN \
             (SELECT id FROM workflows WHERE finished_at < ? ORDER BY finished_at LIMIT ?)",
        )
        .bind(before)
        .bind(batch)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit_lightly().await?;
        Ok(u32::try_from(gone.rows_affected()).unwrap_or(u32::MAX))
    }

    async fn cached(
        &self,
        tenant: &TenantId,
        key: &str,
        age: Duration,
    ) -> Result<Option<(String, ExecutionId)>, StoreError> {
        let now = self.now_ms();
        let mut transaction = self.write(measure!("cached", tenant)).await?;
        let row = sqlx::query(
            "UPDATE task_cache SET hits = hits + 1, used_at = ?1 WHERE tenant_id = ?2 AND key = ?3 AND created_at > ?1 - ?4 \
             RETURNING body, execution_id, key",
        )
        .bind(now)
        .bind(tenant.as_str())
        .bind(key)
        .bind(millis(age))
        .fetch_optional(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit_lightly().await?;
        let Some(row) = row else { return Ok(None) };
        let cells = Cells::new(&row, "task_cache", "key");
        Ok(Some((cells.get::<&str>("body")?.to_owned(), cells.parse("execution_id")?)))
    }

    async fn cache(&self, tenant: &TenantId, new: &NewCached, most: u64) -> Result<(), StoreError> {
        let now = self.now_ms();
        let mut transaction = self.write(measure!("cache", tenant)).await?;
        sqlx::query(
            "INSERT OR REPLACE INTO task_cache (tenant_id, key, owner_principal, execution_id, language, body, bytes, \
             created_at, used_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)",
        )
        .bind(tenant.as_str())
        .bind(&new.key)
        .bind(new.owner.as_str())
        .bind(new.execution.to_string())
        .bind(new.language.as_str())
        .bind(&new.body)
        .bind(i64::try_from(new.body.len()).unwrap_or(i64::MAX))
        .bind(now)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        sqlx::query(
            "DELETE FROM task_cache WHERE tenant_id = ?1 AND key IN (SELECT key FROM \
             (SELECT key, sum(bytes) OVER (ORDER BY used_at DESC, key) AS upto FROM task_cache WHERE tenant_id = ?1) \
             WHERE upto > ?2)",
        )
        .bind(tenant.as_str())
        .bind(i64::try_from(most).unwrap_or(i64::MAX))
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        // What is lost with the power is computed again.
        transaction.commit_lightly().await
    }

    async fn cache_entries(&self, tenant: &TenantId, limit: u32) -> Result<Vec<CacheEntry>, StoreError> {
        let rows = sqlx::query(
            "SELECT key, owner_principal, execution_id, language, bytes, hits, created_at, used_at FROM task_cache \
             WHERE tenant_id = ? ORDER BY used_at DESC, key LIMIT ?",
        )
        .bind(tenant.as_str())
        .bind(limit)
        .fetch_all(&mut *self.read(measure!("cache_entries", tenant)).await?)
        .await
        .map_err(failure)?;
        let entry = |row: &SqliteRow| {
            let cells = Cells::new(row, "task_cache", "key");
            Ok(CacheEntry {
                key: cells.get::<&str>("key")?.to_owned(),
                owner: cells.parse("owner_principal")?,
                execution: cells.parse("execution_id")?,
                language: cells.parse("language")?,
                bytes: cells.get::<i64>("bytes")?.unsigned_abs(),
                hits: cells.get::<i64>("hits")?.unsigned_abs(),
                created_at: cells.time("created_at")?,
                used_at: cells.time("used_at")?,
            })
        };
        rows.iter().map(entry).collect()
    }

    async fn clear_cache(&self, tenant: &TenantId) -> Result<u64, StoreError> {
        let mut transaction = self.write(measure!("clear_cache", tenant)).await?;
        let gone = sqlx::query("DELETE FROM task_cache WHERE tenant_id = ?")
            .bind(tenant.as_str())
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit().await?;
        Ok(gone.rows_affected())
    }

    async fn forget_cached(&self, age: Duration, batch: u32) -> Result<u32, StoreError> {
        let before = self.now_ms() - millis(age);
        let mut transaction = self.write(measure!("forget_cached")).await?;
        let gone = sqlx::query(
            "DELETE FROM task_cache WHERE rowid IN (SELECT rowid FROM task_cache WHERE created_at <= ? LIMIT ?)",
        )
        .bind(before)
        .bind(batch)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit_lightly().await?;
        Ok(u32::try_from(gone.rows_affected()).unwrap_or(u32::MAX))
    }
}

async fn put_results(connection: &mut SqliteConnection, id: &str, append: &Append) -> Result<(), StoreError> {
    for result in &append.results {
        sqlx::query(
            "INSERT INTO workflow_results (workflow_id, task, generation, body, bytes) VALUES (?, ?, ?, ?, ?)",
        )
        .bind(id)
        .bind(&result.task)
        .bind(result.generation)
        .bind(&result.body)
        .bind(i64::try_from(result.bytes).unwrap_or(i64::MAX))
        .execute(&mut *connection)
        .await
        .map_err(failure)?;
    }
    Ok(())
}

async fn event(
    connection: &mut SqliteConnection,
    id: Uuid,
    seq: i64,
    at: i64,
    body: &str,
) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO workflow_events (workflow_id, seq, at, body) VALUES (?, ?, ?, ?)")
        .bind(id.to_string())
        .bind(seq)
        .bind(at)
        .bind(body)
        .execute(connection)
        .await
        .map(drop)
        .map_err(failure)
}

fn workflow(row: &SqliteRow) -> Result<WorkflowRow, StoreError> {
    let cells = Cells::new(row, "workflows", "id");
    let text = |column| Ok::<_, StoreError>(cells.get::<Option<&str>>(column)?.map(str::to_owned));
    Ok(WorkflowRow {
        id: cells.parse("id")?,
        key: cells.key()?,
        principal: cells.get::<&str>("principal")?.to_owned(),
        sees_tenant: cells.get("sees_tenant")?,
        purpose: text("purpose")?,
        trace_id: text("trace_id")?,
        status: cells.get::<&str>("status")?.to_owned(),
        seq: cells.get("seq")?,
        lease_owner: text("lease_owner")?,
        lease_epoch: cells.get("lease_epoch")?,
        created_at: cells.time("created_at")?,
        finished_at: cells.time_optional("finished_at")?,
    })
}
