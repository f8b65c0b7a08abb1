//! The audit chain, what was used, and quotas.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::ended::{LANE, append, body, with_result};
use super::rows::Cells;
use super::{SqliteStore, failure, time};
use crate::domain::usage::UsageRow;
use crate::domain::{ExecutionId, OwnQuota, Owner, TenantId};
use crate::store::ledger::{sha256, with_living};
use crate::store::{
    ChainEntry, ChainHead, Ledger, StoreError, UsageFilter, measure::measure, millis, storable,
};

#[async_trait]
impl Ledger for SqliteStore {
    async fn chain_heads(&self) -> Result<Vec<ChainHead>, StoreError> {
        let rows = sqlx::query("SELECT * FROM audit_heads ORDER BY tenant_id")
            .fetch_all(&mut *self.read(measure!("chain_heads")).await?)
            .await
            .map_err(failure)?;
        rows.iter()
            .map(|row| {
                let cells = Cells::new(row, "audit_heads", "tenant_id");
                Ok(ChainHead {
                    tenant: cells.parse("tenant_id")?,
                    lane: LANE,
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
        if lane != LANE {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(concat!(
            "SELECT a.n, a.at, a.execution_id, a.body, a.body_sha256, a.hash, x.result, ",
            "CASE WHEN x.id IS NOT NULL THEN ",
            body!(),
            " END AS row_now
               FROM (SELECT * FROM audit_log WHERE tenant_id = ?1 AND n > ?2 ORDER BY n LIMIT ?3) a
               LEFT JOIN executions x
                 ON x.id = a.execution_id AND x.finished_at IS NOT NULL
                AND NOT EXISTS (SELECT 1 FROM audit_log b
                                 WHERE b.execution_id = a.execution_id AND b.tenant_id = a.tenant_id AND b.n > a.n)
              ORDER BY a.n"
        ))
        .bind(tenant.as_str())
        .bind(after)
        .bind(limit)
        .fetch_all(&mut *self.read(measure!("chain", tenant)).await?)
        .await
        .map_err(failure)?;
        rows.iter()
            .map(|row| {
                let cells = Cells::new(row, "audit_log", "n");
                let row_now = cells.get::<Option<&str>>("row_now")?;
                let result = cells.get::<Option<&str>>("result")?;
                Ok(ChainEntry {
                    lane,
                    n: cells.get("n")?,
                    at: time(cells.get("at")?),
                    execution: cells.parse_optional("execution_id")?,
                    body: cells.get("body")?,
                    body_sha256: cells.get("body_sha256")?,
                    hash: cells.get("hash")?,
                    row_now: row_now.map(|row| with_result(row, result)),
                })
            })
            .collect()
    }

    async fn unchained(&self, tenant: &TenantId) -> Result<Vec<ExecutionId>, StoreError> {
        let rows = sqlx::query(
            "SELECT x.id FROM executions x
              WHERE x.tenant_id = ?1 AND x.finished_at IS NOT NULL
                AND NOT EXISTS (SELECT 1 FROM audit_log a WHERE a.execution_id = x.id)
                AND NOT EXISTS (SELECT 1 FROM ended e WHERE e.execution_id = x.id)
                AND (NOT EXISTS (SELECT 1 FROM audit_heads h WHERE h.tenant_id = ?1 AND h.anchor_n > 0)
                     OR x.finished_at > (SELECT min(a.at) FROM audit_log a WHERE a.tenant_id = ?1))
              ORDER BY x.seq LIMIT 1000",
        )
        .bind(tenant.as_str())
        .fetch_all(&mut *self.read(measure!("unchained", tenant)).await?)
        .await
        .map_err(failure)?;
        rows.iter().map(|row| Cells::new(row, "executions", "id").parse("id")).collect()
    }

    async fn prune_chain(&self, retention: Duration, batch: u32) -> Result<u64, StoreError> {
        let mut transaction = self.write(measure!("prune_chain")).await?;
        let old = self.now_ms().saturating_sub(millis(retention));
        sqlx::query(
            "UPDATE audit_heads AS h SET (anchor_n, anchor_hash) =
                (SELECT l.n, l.hash FROM audit_log l
                  WHERE l.tenant_id = h.tenant_id AND l.n <= h.anchor_n + ?1 AND l.at < ?2 ORDER BY l.n DESC LIMIT 1)
              WHERE EXISTS (SELECT 1 FROM audit_log l WHERE l.tenant_id = h.tenant_id AND l.n = h.anchor_n + 1 AND l.at < ?2)",
        )
        .bind(batch)
        .bind(old)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        let gone = sqlx::query(
            "DELETE FROM audit_log
              WHERE n <= (SELECT h.anchor_n FROM audit_heads h WHERE h.tenant_id = audit_log.tenant_id)",
        )
        .execute(&mut *transaction)
        .await
        .map_err(failure)?
        .rows_affected();
        transaction.commit().await?;
        Ok(gone)
    }

    async fn usage(&self, filter: &UsageFilter) -> Result<Vec<UsageRow>, StoreError> {
        let mut reader = self.read(measure!("usage")).await?;
        let rows = sqlx::query(
            "SELECT tenant_id, owner_principal, conversation_id, path_id, day, executions, run_ms, sandbox_ms,
                    output_bytes, NULL AS since, NULL AS until
               FROM usage_days
              WHERE day BETWEEN ?1 AND ?2 AND conversation_id <> 'pathbox:erased' AND (?3 IS NULL OR tenant_id = ?3) AND (?4 IS NULL OR owner_principal = ?4)
             UNION ALL
             SELECT tenant_id, owner_principal, conversation_id, path_id, '', 0, 0, 0, 0, ready_at,
                    min(?5, max(expires_at, coalesce(provider_ends_at, 0)))
               FROM execution_contexts
              WHERE status = 'ready' AND (?3 IS NULL OR tenant_id = ?3) AND (?4 IS NULL OR owner_principal = ?4)",
        )
        .bind(filter.from.to_string())
        .bind(filter.to.to_string())
        .bind(filter.tenant.as_ref().map(TenantId::as_str))
        .bind(filter.owner.as_ref().map(Owner::as_str))
        .bind(self.now_ms())
        .fetch_all(&mut *reader)
        .await
        .map_err(failure)?;
        let (mut days, mut living) = (Vec::new(), Vec::new());
        for row in &rows {
            let cells = Cells::new(row, "usage_days", "path_id");
            let count = |column| cells.get::<i64>(column).map(|it| u64::try_from(it).unwrap_or(0));
            match cells.time_optional("since")? {
                Some(since) => living.push((cells.key()?, since, cells.time("until")?)),
                None => days.push(UsageRow {
                    key: cells.key()?,
                    day: cells.parse("day")?,
                    executions: count("executions")?,
                    run_ms: count("run_ms")?,
                    sandbox_ms: count("sandbox_ms")?,
                    output_bytes: count("output_bytes")?,
                }),
            }
        }
        Ok(with_living(days, living, filter))
    }

    async fn own_quota(&self, tenant: &TenantId) -> Result<OwnQuota, StoreError> {
        let row = sqlx::query("SELECT * FROM tenant_quotas WHERE tenant_id = ?")
            .bind(tenant.as_str())
            .fetch_optional(&mut *self.read(measure!("own_quota", tenant)).await?)
            .await
            .map_err(failure)?;
        row.map_or_else(|| Ok(OwnQuota::default()), |row| own_quota_in(&row, tenant.as_str()))
    }

    async fn set_own_quota(&self, tenant: &TenantId, quota: &OwnQuota) -> Result<(), StoreError> {
        let count = |number: Option<u64>| number.map(|it| i64::try_from(it).unwrap_or(i64::MAX));
        let mut transaction = self.write(measure!("set_own_quota", tenant)).await?;
        sqlx::query(
            "INSERT INTO tenant_quotas (tenant_id, period, sandbox_seconds, executions, money_micros) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (tenant_id) DO UPDATE SET period = excluded.period, executions = excluded.executions,
                 sandbox_seconds = excluded.sandbox_seconds, money_micros = excluded.money_micros",
        )
        .bind(tenant.as_str())
        .bind(quota.period.map(crate::domain::Period::as_str))
        .bind(count(quota.sandbox_seconds))
        .bind(count(quota.executions))
        .bind(count(quota.money_micros))
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        transaction.commit().await
    }

    async fn erase(&self, tenant: &TenantId, principal: Option<&str>) -> Result<String, StoreError> {
        let mut transaction = self.write(measure!("erase", tenant)).await?;
        let principal = principal.map(storable);
        let mut counts = serde_json::Map::new();
        keep_totals(&mut transaction, tenant, principal.as_deref()).await?;
        for &(what, sql) in ERASE {
            let gone = sqlx::query(sql)
                .bind(tenant.as_str())
                .bind(principal.as_deref())
                .execute(&mut *transaction)
                .await
                .map_err(failure)?
                .rows_affected();
            counts.insert(what.to_owned(), gone.into());
        }
        let places: Vec<i64> = sqlx::query_scalar(
            "UPDATE audit_log SET body = NULL
              WHERE tenant_id = ?1 AND body IS NOT NULL AND execution_id IS NOT NULL
                AND (?2 IS NULL OR body->>'owner' = ?2 OR body->>'principal' = ?2)
             RETURNING n",
        )
        .bind(tenant.as_str())
        .bind(principal.as_deref())
        .fetch_all(&mut *transaction)
        .await
        .map_err(failure)?;
        counts.insert("entries".into(), json!(ranges(places)));
        counts.insert("principalSha256".into(), json!(principal.as_deref().map(sha256)));
        let body = json!({ "erasure": counts }).to_string();
        let now = self.now_ms();
        append(&mut transaction, tenant.as_str(), &body, now).await?;
        transaction.commit().await?;
        self.keys_gone.change();
        // Deleted rows are still in free pages and in the log.
        let mut emptied = self.turn_to_write(measure!("vacuum")).await?;
        let vacuum = sqlx::raw_sql("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)");
        vacuum.execute(&mut *emptied).await.map_err(failure)?;
        Ok(body)
    }
}

/// What an erasure takes, and what it is called in the entry about it.
const ERASE: &[(&str, &str)] = &[
    (
        "executions",
        "DELETE FROM executions WHERE tenant_id = ?1 AND finished_at IS NOT NULL
            AND (?2 IS NULL OR owner_principal = ?2 OR principal = ?2)",
    ),
    (
        "contexts",
        "DELETE FROM execution_contexts WHERE tenant_id = ?1 AND ended_at IS NOT NULL
            AND (?2 IS NULL OR owner_principal = ?2)",
    ),
    ("paths", "DELETE FROM conversation_paths WHERE tenant_id = ?1 AND (?2 IS NULL OR owner_principal = ?2)"),
    (
        "placeholders",
        "DELETE FROM placeholders WHERE tenant_id = ?1 AND (?2 IS NULL OR owner_principal = ?2)",
    ),
    (
        "shares",
        "DELETE FROM conversation_shares WHERE tenant_id = ?1
            AND (?2 IS NULL OR owner_principal = ?2 OR principal = ?2)",
    ),
    ("reveals", "DELETE FROM reveals WHERE tenant_id = ?1 AND (?2 IS NULL OR principal = ?2)"),
    // Those in progress too: the driver of one finds it gone, and what it has begun ends as any run does.
    (
        "workflows",
        "DELETE FROM workflows WHERE tenant_id = ?1 AND (?2 IS NULL OR owner_principal = ?2 OR principal = ?2)",
    ),
    ("keys", "DELETE FROM api_keys WHERE key->>'tenant' = ?1 AND (?2 IS NULL OR 'key:' || id = ?2)"),
    (
        "toolPermits",
        "DELETE FROM tool_permits WHERE tenant_id = ?1 AND (?2 IS NULL OR owner_principal = ?2 OR principal = ?2)",
    ),
    ("cached", "DELETE FROM task_cache WHERE tenant_id = ?1 AND (?2 IS NULL OR owner_principal = ?2)"),
    (
        "usageRows",
        "DELETE FROM usage_days WHERE tenant_id = ?1 AND conversation_id <> 'pathbox:erased' AND (?2 IS NULL OR owner_principal = ?2)",
    ),
];

/// What the erased rows of use add up to counts on against the tenant's quota, in a row for each day that names no one and
/// no conversation. Programs of an earlier version show that row.
async fn keep_totals(
    connection: &mut SqliteConnection,
    tenant: &TenantId,
    principal: Option<&str>,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO usage_days AS u (tenant_id, owner_principal, conversation_id, path_id, day, executions, sandbox_ms)
         SELECT tenant_id, '', 'pathbox:erased', 'pathbox:erased', day, sum(executions), sum(sandbox_ms) FROM usage_days
          WHERE tenant_id = ?1 AND conversation_id <> 'pathbox:erased' AND (?2 IS NULL OR owner_principal = ?2) GROUP BY day
         ON CONFLICT (tenant_id, day, owner_principal, conversation_id, path_id) DO UPDATE
            SET executions = u.executions + excluded.executions, sandbox_ms = u.sandbox_ms + excluded.sandbox_ms",
    )
    .bind(tenant.as_str())
    .bind(principal)
    .execute(connection)
    .await
    .map(drop)
    .map_err(failure)
}

/// Places as ranges of the lane, both ends included.
fn ranges(mut places: Vec<i64>) -> Vec<(i16, i64, i64)> {
    places.sort_unstable();
    let mut ranges: Vec<(i16, i64, i64)> = Vec::new();
    for n in places {
        match ranges.last_mut() {
            Some((_, _, high)) if *high + 1 == n => *high = n,
            _ => ranges.push((LANE, n, n)),
        }
    }
    ranges
}

/// A tenant's own quota, in a row that may have none.
pub(super) fn own_quota_in(row: &SqliteRow, tenant: &str) -> Result<OwnQuota, StoreError> {
    let cells = Cells::named(row, "tenant_quotas", tenant.to_owned());
    let count = |column| cells.get::<Option<i64>>(column).map(|it| it.and_then(|it| u64::try_from(it).ok()));
    Ok(OwnQuota {
        period: cells.parse_optional("period")?,
        sandbox_seconds: count("sandbox_seconds")?,
        executions: count("executions")?,
        money_micros: count("money_micros")?,
    })
}
