//! Rows of SQLite -> values of the contract. A value that does not fit is `Corrupt`, with table and row.

use chrono::{DateTime, Utc};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::time;
use crate::domain::ExecutionId;
use crate::store::secrets::SealedTokens;
use crate::store::{ContextRow, ExecutionRow, Keyring, SandboxRef, StoreError, cells};

/// A row of SQLite.
pub(super) type Cells<'r> = cells::Cells<'r, SqliteRow>;

impl<'r> Cells<'r> {
    /// `key` is the column that names the row in errors.
    pub(super) fn new(row: &'r SqliteRow, table: &'static str, key: &'static str) -> Self {
        let id = row
            .try_get::<String, _>(key)
            .or_else(|_| row.try_get::<i64, _>(key).map(|id| id.to_string()))
            .unwrap_or_else(|_| "?".to_owned());
        Self::named(row, table, id)
    }

    /// A column of milliseconds as a time.
    pub(super) fn time(&self, column: &'static str) -> Result<DateTime<Utc>, StoreError> {
        self.get(column).map(time)
    }

    /// The same, where NULL is `None`.
    pub(super) fn time_optional(&self, column: &'static str) -> Result<Option<DateTime<Utc>>, StoreError> {
        Ok(self.get::<Option<i64>>(column)?.map(time))
    }
}

/// A context without its sandbox, read at `now`.
pub(super) fn context(row: &SqliteRow, now: i64) -> Result<ContextRow, StoreError> {
    let cells = Cells::new(row, "execution_contexts", "id");
    Ok(ContextRow {
        id: cells.parse("id")?,
        key: cells.key()?,
        status: cells.parse("status")?,
        end_reason: cells.parse_optional("end_reason")?,
        epoch: cells.get("lease_epoch")?,
        owner: cells.get("lease_owner")?,
        template: cells.get("template")?,
        sandbox: None,
        created_at: cells.time("created_at")?,
        ready_at: cells.time_optional("ready_at")?,
        last_used_at: cells.time("last_used_at")?,
        expires_at: cells.time_optional("expires_at")?,
        ended_at: cells.time_optional("ended_at")?,
        execution_count: cells.get("execution_count")?,
        total_execution_ms: cells.get("total_execution_ms")?,
        last_error: cells.get("last_error")?,
        read_at: time(now),
    })
}

/// The same with its sandbox. `Corrupt` when the tokens do not open.
pub(super) fn context_with_sandbox(
    row: &SqliteRow,
    keyring: &Keyring,
    now: i64,
) -> Result<ContextRow, StoreError> {
    let mut context = context(row, now)?;
    let cells = Cells::new(row, "execution_contexts", "id");
    let Some(sandbox_id) = cells.parse_optional("sandbox_id")? else { return Ok(context) };
    let mut sandbox = SandboxRef {
        sandbox_id,
        domain: cells.get("sandbox_domain")?,
        host_url: cells.get("host_url")?,
        host_key: None,
        envd_token: None,
        traffic_token: None,
        mcp_url: cells.get("mcp_url")?,
        mcp_token: None,
        provider_ends_at: cells.time_optional("provider_ends_at")?,
    };
    let sealed = SealedTokens {
        host_key: cells.get("host_key_enc")?,
        envd_token: cells.get("envd_token_enc")?,
        traffic_token: cells.get("traffic_token_enc")?,
        mcp_token: cells.get("mcp_token_enc")?,
    };
    keyring
        .open_tokens(&context.key.tenant, context.id, &sealed, &mut sandbox)
        .map_err(|error| cells.corrupt(format_args!("token {error}")))?;
    context.sandbox = Some(sandbox);
    Ok(context)
}

/// A run.
pub(super) fn execution(row: &SqliteRow) -> Result<ExecutionRow, StoreError> {
    let cells = Cells::new(row, "executions", "id");
    Ok(ExecutionRow {
        id: cells.parse::<ExecutionId>("id")?,
        context: cells.parse_optional("context_id")?,
        key: cells.key()?,
        tool: cells.get("tool")?,
        language: cells.parse("language")?,
        purpose: cells.get("purpose")?,
        code_sha256: cells.get("code_sha256")?,
        principal: cells.get("principal")?,
        trace_id: cells.get("trace_id")?,
        status: cells.parse("status")?,
        exit_code: cells.get("exit_code")?,
        error: cells.get("error")?,
        created_at: cells.time("created_at")?,
        started_at: cells.time_optional("started_at")?,
        finished_at: cells.time_optional("finished_at")?,
        duration_ms: cells.get("duration_ms")?,
        output_bytes: cells.get("output_bytes")?,
        findings: cells.json("findings")?.unwrap_or_default(),
        result: cells.json("result")?,
    })
}
