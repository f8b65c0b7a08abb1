//! What ends joins the audit chain and the counts in the transaction that ends it. Triggers note it; this takes the notes
//! up just before a commit, because SQLite has no SHA-256.

use sqlx::SqliteConnection;

use super::rows::Cells;
use super::{failure, time};
use crate::domain::ContextKey;
use crate::domain::usage::by_day;
use crate::store::StoreError;
use crate::store::ledger::{entry_hash, sha256};

/// A run as the chain has it, out of the table named `x`, but for the hash of its result. Times in milliseconds.
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

/// Takes up what has ended since the last commit, at `now`.
pub(super) async fn take_up(connection: &mut SqliteConnection, now: i64) -> Result<(), StoreError> {
    let (runs, contexts): (i64, i64) =
        sqlx::query_as("SELECT count(execution_id), count(context_id) FROM ended")
            .fetch_one(&mut *connection)
            .await
            .map_err(failure)?;
    if runs > 0 {
        take_up_runs(connection, now).await?;
    }
    if contexts > 0 {
        take_up_contexts(connection).await?;
    }
    if runs + contexts == 0 {
        return Ok(());
    }
    sqlx::query("DELETE FROM ended").execute(connection).await.map(drop).map_err(failure)
}

async fn take_up_runs(connection: &mut SqliteConnection, now: i64) -> Result<(), StoreError> {
    let runs = sqlx::query(concat!(
        "SELECT e.executions, e.run_ms AS more_ms, e.output_bytes AS more_bytes, x.result, x.id, x.tenant_id,
                x.owner_principal, x.conversation_id, x.path_id, x.finished_at, ",
        body!(),
        " AS body FROM ended e JOIN executions x ON x.id = e.execution_id ORDER BY e.seq"
    ))
    .fetch_all(&mut *connection)
    .await
    .map_err(failure)?;
    for row in &runs {
        let cells = Cells::new(row, "executions", "id");
        let key = cells.key()?;
        let body = with_result(cells.get("body")?, cells.get::<Option<&str>>("result")?);
        append(connection, key.tenant.as_str(), cells.get("id")?, &body, now).await?;
        let day = time(cells.get("finished_at")?).date_naive().to_string();
        let counted: i64 = cells.get("executions")?;
        let (ms, bytes): (i64, i64) = (cells.get("more_ms")?, cells.get("more_bytes")?);
        if counted != 0 || ms != 0 || bytes != 0 {
            add(connection, &key, &day, [counted, ms, 0, bytes]).await?;
        }
    }
    Ok(())
}

async fn take_up_contexts(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let contexts = sqlx::query(
        "SELECT c.id, c.tenant_id, c.owner_principal, c.conversation_id, c.path_id, c.ready_at, c.ended_at
           FROM ended e JOIN execution_contexts c ON c.id = e.context_id",
    )
    .fetch_all(&mut *connection)
    .await
    .map_err(failure)?;
    for row in &contexts {
        let cells = Cells::new(row, "execution_contexts", "id");
        let key = cells.key()?;
        for (day, ms) in by_day(cells.time("ready_at")?, cells.time("ended_at")?) {
            add(connection, &key, &day.to_string(), [0, 0, i64::try_from(ms).unwrap_or(i64::MAX), 0]).await?;
        }
    }
    Ok(())
}

/// Adds runs, their milliseconds, milliseconds of the sandbox, and bytes of output to a day.
async fn add(
    connection: &mut SqliteConnection,
    key: &ContextKey,
    day: &str,
    [executions, run_ms, sandbox_ms, output_bytes]: [i64; 4],
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO usage_days AS u (tenant_id, owner_principal, conversation_id, path_id, day, executions, run_ms,
             sandbox_ms, output_bytes)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (tenant_id, day, owner_principal, conversation_id, path_id) DO UPDATE
            SET executions = u.executions + excluded.executions, run_ms = u.run_ms + excluded.run_ms,
                sandbox_ms = u.sandbox_ms + excluded.sandbox_ms, output_bytes = u.output_bytes + excluded.output_bytes",
    )
    .bind(key.tenant.as_str())
    .bind(key.owner.as_str())
    .bind(key.conversation.as_str())
    .bind(key.path.as_str())
    .bind(day)
    .bind(executions)
    .bind(run_ms)
    .bind(sandbox_ms)
    .bind(output_bytes)
    .execute(connection)
    .await
    .map(drop)
    .map_err(failure)
}

/// There is one writer, so a chain has one lane.
pub(super) const LANE: i16 = 0;

/// Adds an entry to a tenant's chain.
pub(super) async fn append(
    connection: &mut SqliteConnection,
    tenant: &str,
    execution: Option<&str>,
    body: &str,
    now: i64,
) -> Result<(), StoreError> {
    let head: Option<(i64, String)> = sqlx::query_as("SELECT n, hash FROM audit_heads WHERE tenant_id = ?")
        .bind(tenant)
        .fetch_optional(&mut *connection)
        .await
        .map_err(failure)?;
    let (n, previous) = head.unwrap_or_else(|| (0, "0".repeat(64)));
    let body_sha256 = sha256(body);
    let hash = entry_hash(&previous, tenant, LANE, n + 1, &body_sha256);
    sqlx::query(
        "INSERT INTO audit_log (tenant_id, n, at, execution_id, body, body_sha256, hash) VALUES (?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(tenant)
    .bind(n + 1)
    .bind(now)
    .bind(execution)
    .bind(body)
    .bind(body_sha256)
    .bind(&hash)
    .execute(&mut *connection)
    .await
    .map_err(failure)?;
    sqlx::query(
        "INSERT INTO audit_heads (tenant_id, n, hash) VALUES (?, ?, ?)
         ON CONFLICT (tenant_id) DO UPDATE SET n = excluded.n, hash = excluded.hash",
    )
    .bind(tenant)
    .bind(n + 1)
    .bind(&hash)
    .execute(connection)
    .await
    .map(drop)
    .map_err(failure)
}
