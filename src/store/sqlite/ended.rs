//! Ended rows join the audit chain and the usage counters in the transaction that ends them. Triggers note it; this takes the
//! notes up just before a commit, because SQLite has no SHA-256.

use std::collections::HashMap;

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::rows::Cells;
use super::writer::Bound;
use super::{failure, time};
use crate::domain::usage::by_day;
use crate::domain::{ContextKey, TenantId};
use crate::store::StoreError;
use crate::store::bind::BindKey;
use crate::store::ledger::{entry_hash, sha256};

/// A run as the chain has it, out of the table named `x`, without the hash of its result. Times in milliseconds.
macro_rules! body {
    () => {
        "json_object('execution', x.id, 'owner', x.owner_principal, 'conversation', x.conversation_id, 'path', x.path_id,
            'context', x.context_id, 'tool', x.tool, 'language', x.language, 'purpose', x.purpose,
            'codeSha256', x.code_sha256, 'principal', x.principal, 'traceId', x.trace_id, 'status', x.status,
            'exitCode', x.exit_code, 'error', x.error, 'createdAt', x.created_at, 'startedAt', x.started_at,
            'finishedAt', x.finished_at, 'durationMs', x.duration_ms, 'queuedMs', x.queued_ms,
            'outputBytes', x.output_bytes, 'findings', x.findings)"
    };
}
pub(super) use body;

/// The body with the hash of the result.
pub(super) fn with_result(body: &str, result: Option<&str>) -> String {
    let hash = result.map_or("null".to_owned(), |result| format!("\"{}\"", sha256(result)));
    format!("{},\"resultSha256\":{hash}}}", body.strip_suffix('}').unwrap_or(body))
}

/// The last entry of a tenant's chain: its number and hash.
type Head = (i64, String);

/// Finds what has ended since the last commit.
macro_rules! what_ended {
    () => {
        concat!(
            "SELECT e.seq AS place, e.context_id AS ended_context, e.executions, e.run_ms AS more_ms,
                    e.output_bytes AS more_bytes, x.result, x.id, x.tenant_id, x.owner_principal, x.conversation_id,
                    x.path_id, x.finished_at, h.n AS head_n, h.hash AS head_hash, ",
            $crate::store::sqlite::ended::body!(),
            " AS body FROM ended e LEFT JOIN executions x ON x.id = e.execution_id
               LEFT JOIN audit_heads h ON h.tenant_id = x.tenant_id ORDER BY e.seq"
        )
    };
}
pub(super) use what_ended;

/// The rows that [`take_up_and_commit`] takes.
pub(super) async fn find(connection: &mut SqliteConnection) -> Result<Vec<SqliteRow>, StoreError> {
    sqlx::query(what_ended!()).fetch_all(connection).await.map_err(failure)
}

/// Takes up what has ended since the last commit, at `now`, and commits. A statement here is a trip to another thread, which
/// costs more than what it does: so one query with several statements writes all of a run, and the last commits too.
pub(super) async fn take_up_and_commit(
    connection: &mut SqliteConnection,
    ended: &[SqliteRow],
    now: i64,
) -> Result<(), StoreError> {
    let mut heads: HashMap<TenantId, Head> = HashMap::new();
    let (mut contexts, mut runs) = (false, Vec::new());
    for row in ended {
        let cells = Cells::new(row, "executions", "id");
        contexts |= cells.get::<Option<&str>>("ended_context")?.is_some();
        if cells.get::<Option<&str>>("id")?.is_some() {
            runs.push(cells);
        }
    }
    // Only runs, each of which takes its own note away.
    let is_plain = !runs.is_empty() && runs.len() == ended.len();
    for (at, cells) in runs.iter().enumerate() {
        let is_last = is_plain && at + 1 == runs.len();
        take_up_run(connection, cells, &mut heads, now, is_last).await?;
    }
    if contexts {
        take_up_contexts(connection).await?;
    }
    if !is_plain && !ended.is_empty() {
        sqlx::query("DELETE FROM ended").execute(&mut *connection).await.map_err(failure)?;
    }
    if !is_plain {
        sqlx::query("COMMIT").execute(connection).await.map_err(failure)?;
    }
    Ok(())
}

/// The next entry of a tenant's chain, whose head becomes its own.
macro_rules! entry {
    () => {
        "INSERT INTO audit_log (tenant_id, n, at, execution_id, body, body_sha256, hash) VALUES (?, ?, ?, ?, ?, ?, ?);
         INSERT INTO audit_heads (tenant_id, n, hash) VALUES (?, ?, ?)
         ON CONFLICT (tenant_id) DO UPDATE SET n = excluded.n, hash = excluded.hash;"
    };
}

/// Binds what `entry!` takes, and moves the head on.
fn bind_entry<'q>(
    query: Bound<'q>,
    tenant: &'q str,
    execution: Option<&'q str>,
    body: &'q str,
    head: &mut Head,
    now: i64,
) -> Bound<'q> {
    let body_sha256 = sha256(body);
    let hash = entry_hash(&head.1, tenant, LANE, head.0 + 1, &body_sha256);
    *head = (head.0 + 1, hash);
    query
        .bind(tenant)
        .bind(head.0)
        .bind(now)
        .bind(execution)
        .bind(body)
        .bind(body_sha256)
        .bind(head.1.clone())
        .bind(tenant)
        .bind(head.0)
        .bind(head.1.clone())
}

/// What a run writes.
macro_rules! run {
    () => {
        concat!(
            entry!(),
            "INSERT INTO usage_days AS u (tenant_id, owner_principal, conversation_id, path_id, day, executions, run_ms,
                 output_bytes)
             SELECT ?, ?, ?, ?, ?, ?, ?, ? WHERE ?
             ON CONFLICT (tenant_id, day, owner_principal, conversation_id, path_id) DO UPDATE
                SET executions = u.executions + excluded.executions, run_ms = u.run_ms + excluded.run_ms,
                    output_bytes = u.output_bytes + excluded.output_bytes;
             DELETE FROM ended WHERE seq = ?;"
        )
    };
}

async fn take_up_run(
    connection: &mut SqliteConnection,
    cells: &Cells<'_>,
    heads: &mut HashMap<TenantId, Head>,
    now: i64,
    commits: bool,
) -> Result<(), StoreError> {
    let key = cells.key()?;
    let body = with_result(cells.get("body")?, cells.get::<Option<&str>>("result")?);
    let day = time(cells.get("finished_at")?).date_naive().to_string();
    let (counted, ms, bytes): (i64, i64, i64) =
        (cells.get("executions")?, cells.get("more_ms")?, cells.get("more_bytes")?);
    let found = cells.get::<Option<i64>>("head_n")?.zip(cells.get::<Option<String>>("head_hash")?);
    let head = heads.entry(key.tenant.clone()).or_insert_with(|| found.unwrap_or_else(no_head));
    let query = sqlx::query(if commits { concat!(run!(), "COMMIT") } else { run!() });
    bind_entry(query, key.tenant.as_str(), Some(cells.get("id")?), &body, head, now)
        .bind_key(&key)
        .bind(day)
        .bind(counted)
        .bind(ms)
        .bind(bytes)
        .bind(counted != 0 || ms != 0 || bytes != 0)
        .bind(cells.get::<i64>("place")?)
        .execute(connection)
        .await
        .map(drop)
        .map_err(failure)
}

fn no_head() -> Head {
    (0, "0".repeat(64))
}

async fn take_up_contexts(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let contexts = sqlx::query(
        // After a night without a server the sandbox had ended by itself long before its row.
        "SELECT c.id, c.tenant_id, c.owner_principal, c.conversation_id, c.path_id, c.ready_at,
                min(c.ended_at, max(c.expires_at, coalesce(c.provider_ends_at, 0))) AS until
           FROM ended e JOIN execution_contexts c ON c.id = e.context_id",
    )
    .fetch_all(&mut *connection)
    .await
    .map_err(failure)?;
    for row in &contexts {
        let cells = Cells::new(row, "execution_contexts", "id");
        let key = cells.key()?;
        for (day, ms) in by_day(cells.time("ready_at")?, cells.time("until")?) {
            let ms = i64::try_from(ms).unwrap_or(i64::MAX);
            add_sandbox(connection, &key, &day.to_string(), ms).await?;
        }
    }
    Ok(())
}

/// Adds milliseconds of a sandbox to a day.
async fn add_sandbox(
    connection: &mut SqliteConnection,
    key: &ContextKey,
    day: &str,
    sandbox_ms: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO usage_days AS u (tenant_id, owner_principal, conversation_id, path_id, day, sandbox_ms)
         VALUES (?, ?, ?, ?, ?, ?)
         ON CONFLICT (tenant_id, day, owner_principal, conversation_id, path_id) DO UPDATE
            SET sandbox_ms = u.sandbox_ms + excluded.sandbox_ms",
    )
    .bind_key(key)
    .bind(day)
    .bind(sandbox_ms)
    .execute(connection)
    .await
    .map(drop)
    .map_err(failure)
}

/// There is one writer, so a chain has one lane.
pub(super) const LANE: i16 = 0;

/// Adds an entry to a tenant's chain that is about no run.
pub(super) async fn append(
    connection: &mut SqliteConnection,
    tenant: &str,
    body: &str,
    now: i64,
) -> Result<(), StoreError> {
    let head: Option<Head> = sqlx::query_as("SELECT n, hash FROM audit_heads WHERE tenant_id = ?")
        .bind(tenant)
        .fetch_optional(&mut *connection)
        .await
        .map_err(failure)?;
    let mut head = head.unwrap_or_else(no_head);
    let query = bind_entry(sqlx::query(entry!()), tenant, None, body, &mut head, now);
    query.execute(connection).await.map(drop).map_err(failure)
}
