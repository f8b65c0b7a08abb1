//! The audit chain, what was used, and quotas. Triggers of the schema write the first two.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::rows::Cells;
use crate::domain::usage::UsageRow;
use crate::domain::{ExecutionId, OwnQuota, Owner, TenantId};
use crate::store::ledger::with_living;
use crate::store::{
    ChainEntry, ChainHead, Ledger, StoreError, UsageFilter, measure::measure, millis, storable,
};

#[async_trait]
impl Ledger for PgStore {
    async fn chain_heads(&self) -> Result<Vec<ChainHead>, StoreError> {
        let rows = self
            .call(measure!("chain_heads"), || async {
                sqlx::query("select * from pathbox.all_chain_heads_v1()").fetch_all(&self.pool()).await
            })
            .await?;
        rows.iter()
            .map(|row| {
                let cells = Cells::new(row, "audit_heads", "?");
                Ok(ChainHead {
                    tenant: cells.parse("tenant_id")?,
                    lane: cells.get("lane")?,
                    n: cells.get("n")?,
                    hash: cells.get("hash")?,
                    anchor_n: cells.get("anchor_n")?,
                    anchor_hash: cells.get("anchor_hash")?,
                })
            })
            .collect()
    }

    async fn chain(
        &self,
        tenant: &TenantId,
        lane: i16,
        after: i64,
        limit: u32,
    ) -> Result<Vec<ChainEntry>, StoreError> {
        let rows = self
            .call(measure!("chain", tenant), || async {
                sqlx::query("select * from pathbox.all_chain_v1($1, $2, $3, $4)")
                    .bind(tenant.as_str())
                    .bind(lane)
                    .bind(after)
                    .bind(i32::try_from(limit).unwrap_or(i32::MAX))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let read = |row: &PgRow| {
            let cells = Cells::new(row, "audit_log", "?");
            Ok(ChainEntry {
                lane,
                n: cells.get("n")?,
                at: cells.get("at")?,
                execution: cells.get::<Option<uuid::Uuid>>("execution_id")?.map(ExecutionId),
                body: cells.get("body")?,
                body_sha256: cells.get("body_sha256")?,
                hash: cells.get("hash")?,
                row_now: cells.get("row_now")?,
            })
        };
        rows.iter().map(read).collect()
    }

    async fn unchained(&self, tenant: &TenantId) -> Result<Vec<ExecutionId>, StoreError> {
        let found = self
            .call(measure!("unchained", tenant), || async {
                sqlx::query_scalar("select pathbox.all_unchained_v1($1)")
                    .bind(tenant.as_str())
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        Ok(found.into_iter().map(ExecutionId).collect())
    }

    async fn prune_chain(&self, retention: Duration, batch: u32) -> Result<u64, StoreError> {
        let gone: i64 = self
            .call(measure!("prune_chain"), || async {
                sqlx::query_scalar("select pathbox.all_prune_chain_v1($1, $2)")
                    .bind(millis(retention))
                    .bind(i32::try_from(batch).unwrap_or(i32::MAX))
                    .fetch_one(&self.pool())
                    .await
            })
            .await?;
        Ok(u64::try_from(gone).unwrap_or(0))
    }

    async fn usage(&self, filter: &UsageFilter) -> Result<Vec<UsageRow>, StoreError> {
        let rows = self
            .call(measure!("usage"), || async {
                sqlx::query("select * from pathbox.all_usage_v1($1, $2, $3, $4)")
                    .bind(filter.tenant.as_ref().map(TenantId::as_str))
                    .bind(filter.owner.as_ref().map(Owner::as_str))
                    .bind(filter.from)
                    .bind(filter.to)
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        let (mut days, mut living) = (Vec::new(), Vec::new());
        for row in &rows {
            let cells = Cells::new(row, "usage_days", "?");
            let count = |column| cells.get::<i64>(column).map(|it| u64::try_from(it).unwrap_or(0));
            match cells.get::<Option<_>>("day")? {
                Some(day) => days.push(UsageRow {
                    key: cells.key()?,
                    day,
                    executions: count("executions")?,
                    run_ms: count("run_ms")?,
                    sandbox_ms: count("sandbox_ms")?,
                    output_bytes: count("output_bytes")?,
                }),
                None => living.push((cells.key()?, cells.get("since")?, cells.get("read_at")?)),
            }
        }
        Ok(with_living(days, living, filter))
    }

    async fn own_quota(&self, tenant: &TenantId) -> Result<OwnQuota, StoreError> {
        let row = self
            .call(measure!("own_quota", tenant), || async {
                sqlx::query("select * from pathbox.all_quota_v1($1)")
                    .bind(tenant.as_str())
                    .fetch_optional(&self.pool())
                    .await
            })
            .await?;
        let Some(row) = row else { return Ok(OwnQuota::default()) };
        let cells = Cells::new(&row, "tenant_quotas", tenant);
        let count =
            |column| cells.get::<Option<i64>>(column).map(|it| it.and_then(|it| u64::try_from(it).ok()));
        Ok(OwnQuota {
            period: cells.parse_optional("period")?,
            sandbox_seconds: count("sandbox_seconds")?,
            executions: count("executions")?,
            money_micros: count("money_micros")?,
        })
    }

    async fn set_own_quota(&self, tenant: &TenantId, quota: &OwnQuota) -> Result<(), StoreError> {
        let count = |number: Option<u64>| number.map(|it| i64::try_from(it).unwrap_or(i64::MAX));
        self.call(measure!("set_own_quota", tenant), || async {
            sqlx::query("select pathbox.all_set_quota_v1($1, $2, $3, $4, $5)")
                .bind(tenant.as_str())
                .bind(quota.period.map(crate::domain::Period::as_str))
                .bind(count(quota.sandbox_seconds))
                .bind(count(quota.executions))
                .bind(count(quota.money_micros))
                .execute(&self.pool())
                .await
                .map(drop)
        })
        .await
    }

    async fn erase(&self, tenant: &TenantId, principal: Option<&str>) -> Result<String, StoreError> {
        self.call(measure!("erase", tenant), || async {
            sqlx::query_scalar("select pathbox.all_erase_v1($1, $2)")
                .bind(tenant.as_str())
                .bind(principal.map(storable))
                .fetch_one(&self.pool())
                .await
        })
        .await
    }
}
