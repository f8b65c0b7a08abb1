//! Workflows, their events and results.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::rows::Cells;
use super::{PgStore, failure};
use crate::domain::{ExecutionId, Owner, TenantId};
use crate::store::workflows::{
    Append, Appended, CacheEntry, Created, HeldWorkflow, MAX_LIVE_WORKFLOWS, NewCached, NewWorkflow,
    StoredEvent, TaskResult, WorkflowRow, Workflows,
};
use crate::store::{StoreError, measure::measure, millis, storable};

fn most(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[async_trait]
impl Workflows for PgStore {
    async fn create_workflow(&self, new: &NewWorkflow) -> Result<Created, StoreError> {
        let row = self
            .call(measure!("create_workflow", new.key.tenant), || async {
                sqlx::query(
                    "select outcome, id, path_status from pathbox.create_workflow_v2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
                )
                .bind(new.id)
                .bind(new.key.tenant.as_str())
                .bind(new.key.owner.as_str())
                .bind(&new.principal)
                .bind(new.sees_tenant)
                .bind(new.key.conversation.as_str())
                .bind(new.key.path.as_str())
                .bind(new.purpose.as_deref().map(storable))
                .bind(&new.trace_id)
                .bind(new.idempotency_key.as_deref().map(storable))
                .bind(&new.args_sha256)
                .bind(&new.event)
                .bind(most(MAX_LIVE_WORKFLOWS))
                .fetch_one(&self.pool())
                .await
            })
            .await?;
        let outcome: String = row.try_get("outcome").map_err(failure)?;
        let id: Option<Uuid> = row.try_get("id").map_err(failure)?;
        let id = id.unwrap_or(new.id);
        Ok(match outcome.as_str() {
            "created" => Created::New,
            // Of this very ask, whose answer was lost.
            "known" if id == new.id => Created::New,
            "known" => Created::Known(id),
            "conflict" => Created::Conflict(id),
            "path_closed" => Created::PathClosed(
                Cells::new(&row, "conversation_paths", &new.key.path).parse("path_status")?,
            ),
            _ => Created::Limit,
        })
    }

    async fn workflow(&self, tenant: &TenantId, id: Uuid) -> Result<Option<WorkflowRow>, StoreError> {
        let row = self
            .call(measure!("workflow", tenant), || async {
                sqlx::query("select * from pathbox.workflow_v1($1, $2)")
                    .bind(tenant.as_str())
                    .bind(id)
                    .fetch_optional(&self.pool())
                    .await
            })
            .await?;
        row.as_ref().map(workflow).transpose()
    }

    async fn workflows(
        &self,
        tenant: Option<&TenantId>,
        owner: Option<&Owner>,
        live: bool,
        limit: u32,
    ) -> Result<Vec<WorkflowRow>, StoreError> {
        let rows = self
            .call(measure!("workflows"), || async {
                sqlx::query("select * from pathbox.workflows_v1($1, $2, $3, $4)")
                    .bind(tenant.map(TenantId::as_str))
                    .bind(owner.map(Owner::as_str))
                    .bind(live)
                    .bind(most(limit))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        rows.iter().map(workflow).collect()
    }

    async fn workflow_events(
        &self,
        id: Uuid,
        after: i64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, StoreError> {
        let rows = self
            .call(measure!("workflow_events"), || async {
                sqlx::query("select seq, at, body from pathbox.workflow_events_v1($1, $2, $3)")
                    .bind(id)
                    .bind(after)
                    .bind(most(limit))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let event = |row: &PgRow| {
            let cells = Cells::new(row, "workflow_events", id);
            Ok(StoredEvent { seq: cells.get("seq")?, at: cells.get("at")?, body: cells.get("body")? })
        };
        rows.iter().map(event).collect()
    }

    async fn workflow_results(&self, id: Uuid, tasks: &[String]) -> Result<Vec<TaskResult>, StoreError> {
        let rows = self
            .call(measure!("workflow_results"), || async {
                sqlx::query("select task, generation, body, bytes from pathbox.workflow_results_v1($1, $2)")
                    .bind(id)
                    .bind(tasks)
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let result = |row: &PgRow| {
            let cells = Cells::new(row, "workflow_results", id);
            Ok(TaskResult {
                task: cells.get("task")?,
                generation: cells.get::<i32>("generation")?.unsigned_abs(),
                body: cells.get("body")?,
                bytes: cells.get::<i64>("bytes")?.unsigned_abs(),
            })
        };
        rows.iter().map(result).collect()
    }

    async fn append_workflow(&self, append: &Append) -> Result<Appended, StoreError> {
        let tasks: Vec<&str> = append.results.iter().map(|result| result.task.as_str()).collect();
        let generations: Vec<i32> = append.results.iter().map(|result| most(result.generation)).collect();
        let bodies: Vec<Option<&str>> = append.results.iter().map(|result| result.body.as_deref()).collect();
        let sizes: Vec<i64> =
            append.results.iter().map(|result| i64::try_from(result.bytes).unwrap_or(i64::MAX)).collect();
        let outcome: String = self
            .call(measure!("append_workflow"), || async {
                sqlx::query_scalar(
                    "select pathbox.append_workflow_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
                )
                .bind(append.id)
                .bind(append.seq)
                .bind(append.lease.as_ref().map(|(holder, _)| holder.as_str()))
                .bind(append.lease.as_ref().map(|(_, epoch)| *epoch))
                .bind(append.status)
                .bind(append.release.is_some())
                .bind(append.release.flatten().map(millis))
                .bind(&append.events)
                .bind(&tasks)
                .bind(&generations)
                .bind(&bodies)
                .bind(&sizes)
                .fetch_one(&self.pool())
                .await
            })
            .await?;
        Ok(match outcome.as_str() {
            "done" => Appended::Done,
            "stale" => Appended::Stale,
            _ => Appended::Fenced,
        })
    }

    async fn claim_workflows(
        &self,
        holder: &str,
        lease: Duration,
        limit: u32,
    ) -> Result<Vec<WorkflowRow>, StoreError> {
        let rows = self
            .call(measure!("claim_workflows"), || async {
                sqlx::query("select * from pathbox.claim_workflows_v1($1, $2, $3)")
                    .bind(holder)
                    .bind(millis(lease))
                    .bind(most(limit))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        rows.iter().map(workflow).collect()
    }

    async fn renew_workflows(&self, holder: &str, lease: Duration) -> Result<Vec<HeldWorkflow>, StoreError> {
        let rows = self
            .call(measure!("renew_workflows"), || async {
                sqlx::query("select id, lease_epoch, seq from pathbox.renew_workflows_v1($1, $2)")
                    .bind(holder)
                    .bind(millis(lease))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let held = |row: &PgRow| {
            let cells = Cells::new(row, "workflows", "?");
            Ok(HeldWorkflow {
                id: cells.get("id")?,
                epoch: cells.get("lease_epoch")?,
                seq: cells.get("seq")?,
            })
        };
        rows.iter().map(held).collect()
    }

    async fn forget_workflows(&self, retention: Duration, batch: u32) -> Result<u32, StoreError> {
        let gone: i32 = self
            .call(measure!("forget_workflows"), || async {
                sqlx::query_scalar("select pathbox.forget_workflows_v1($1, $2)")
                    .bind(millis(retention))
                    .bind(most(batch))
                    .fetch_one(&self.pool())
                    .await
            })
            .await?;
        Ok(gone.unsigned_abs())
    }

    async fn cached(
        &self,
        tenant: &TenantId,
        key: &str,
        age: Duration,
    ) -> Result<Option<(String, ExecutionId)>, StoreError> {
        let row = self
            .call(measure!("cached", tenant), || async {
                sqlx::query("select body, execution_id from pathbox.cached_v1($1, $2, $3)")
                    .bind(tenant.as_str())
                    .bind(key)
                    .bind(millis(age))
                    .fetch_optional(&self.pool())
                    .await
            })
            .await?;
        let Some(row) = row else { return Ok(None) };
        let cells = Cells::new(&row, "task_cache", key);
        Ok(Some((cells.get("body")?, ExecutionId(cells.get("execution_id")?))))
    }

    async fn cache(&self, tenant: &TenantId, new: &NewCached, most: u64) -> Result<(), StoreError> {
        self.call(measure!("cache", tenant), || async {
            sqlx::query("select pathbox.cache_v1($1, $2, $3, $4, $5, $6, $7, $8)")
                .bind(tenant.as_str())
                .bind(&new.key)
                .bind(new.owner.as_str())
                .bind(new.execution.0)
                .bind(new.language.as_str())
                .bind(&new.body)
                .bind(i64::try_from(new.body.len()).unwrap_or(i64::MAX))
                .bind(i64::try_from(most).unwrap_or(i64::MAX))
                .execute(&self.pool())
                .await
                .map(drop)
        })
        .await
    }

    async fn cache_entries(&self, tenant: &TenantId, limit: u32) -> Result<Vec<CacheEntry>, StoreError> {
        let rows = self
            .call(measure!("cache_entries", tenant), || async {
                sqlx::query("select * from pathbox.cache_entries_v1($1, $2)")
                    .bind(tenant.as_str())
                    .bind(most(limit))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let entry = |row: &PgRow| {
            let cells = Cells::new(row, "task_cache", tenant);
            Ok(CacheEntry {
                key: cells.get("key")?,
                owner: cells.parse("owner_principal")?,
                execution: ExecutionId(cells.get("execution_id")?),
                language: cells.parse("language")?,
                bytes: cells.get::<i64>("bytes")?.unsigned_abs(),
                hits: cells.get::<i64>("hits")?.unsigned_abs(),
                created_at: cells.get("created_at")?,
                used_at: cells.get("used_at")?,
            })
        };
        rows.iter().map(entry).collect()
    }

    async fn clear_cache(&self, tenant: &TenantId) -> Result<u64, StoreError> {
        let gone: i64 = self
            .call(measure!("clear_cache", tenant), || async {
                sqlx::query_scalar("select pathbox.clear_cache_v1($1)")
                    .bind(tenant.as_str())
                    .fetch_one(&self.pool())
                    .await
            })
            .await?;
        Ok(gone.unsigned_abs())
    }

    async fn forget_cached(&self, age: Duration, batch: u32) -> Result<u32, StoreError> {
        let gone: i32 = self
            .call(measure!("forget_cached"), || async {
                sqlx::query_scalar("select pathbox.forget_cached_v1($1, $2)")
                    .bind(millis(age))
                    .bind(most(batch))
                    .fetch_one(&self.pool())
                    .await
            })
            .await?;
        Ok(gone.unsigned_abs())
    }
}

fn workflow(row: &PgRow) -> Result<WorkflowRow, StoreError> {
    let id: Uuid = Cells::new(row, "workflows", "?").get("id")?;
    let cells = Cells::new(row, "workflows", id);
    Ok(WorkflowRow {
        id,
        key: cells.key()?,
        principal: cells.get("principal")?,
        sees_tenant: cells.get("sees_tenant")?,
        purpose: cells.get("purpose")?,
        trace_id: cells.get("trace_id")?,
        status: cells.get("status")?,
        seq: cells.get("seq")?,
        lease_owner: cells.get("lease_owner")?,
        lease_epoch: cells.get("lease_epoch")?,
        created_at: cells.get("created_at")?,
        finished_at: cells.get("finished_at")?,
    })
}
