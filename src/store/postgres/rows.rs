//! Rows of Postgres -> values of the contract. A value that does not fit is `Corrupt`, with table and row.

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::domain::{ContextId, ExecutionId};
use crate::store::secrets::SealedTokens;
use crate::store::{ContextRow, ExecutionRow, Keyring, SandboxRef, StoreError, cells};

/// Columns of a context, without its sandbox; the argument is the prefix of each, e.g. `"c."`.
macro_rules! context_columns {
    ($of:literal) => {
        concat!(
            $of,
            "id, ",
            $of,
            "tenant_id, ",
            $of,
            "owner_principal, ",
            $of,
            "conversation_id, ",
            $of,
            "path_id, ",
            $of,
            "status, ",
            $of,
            "end_reason, ",
            $of,
            "lease_owner, ",
            $of,
            "lease_epoch, ",
            $of,
            "created_at, ",
            $of,
            "ready_at, ",
            $of,
            "last_used_at, ",
            $of,
            "expires_at, ",
            $of,
            "ended_at, ",
            $of,
            "execution_count, ",
            $of,
            "total_execution_ms, ",
            $of,
            "last_error, ",
            $of,
            "template"
        )
    };
}

/// Columns of a sandbox.
macro_rules! sandbox_columns {
    ($of:literal) => {
        concat!(
            $of,
            "sandbox_id, ",
            $of,
            "sandbox_domain, ",
            $of,
            "host_url, ",
            $of,
            "host_key_enc, ",
            $of,
            "envd_token_enc, ",
            $of,
            "traffic_token_enc, ",
            $of,
            "mcp_url, ",
            $of,
            "mcp_token_enc, ",
            $of,
            "provider_ends_at"
        )
    };
}
pub(super) use {context_columns, sandbox_columns};

/// A row of Postgres.
pub(super) type Cells<'r> = cells::Cells<'r, PgRow>;

impl<'r> Cells<'r> {
    /// A row that errors name by `id`.
    pub(super) fn new(row: &'r PgRow, table: &'static str, id: impl ToString) -> Self {
        Self::named(row, table, id.to_string())
    }
}

/// A context without its sandbox, from `context_columns` and `read_at`. `None` when its id is NULL.
pub(super) fn context(row: &PgRow) -> Result<Option<ContextRow>, StoreError> {
    let cells = Cells::new(row, "execution_contexts", "?");
    let Some(id) = cells.get::<Option<Uuid>>("id")? else { return Ok(None) };
    let cells = Cells::new(row, "execution_contexts", id);
    Ok(Some(ContextRow {
        id: ContextId(id),
        key: cells.key()?,
        status: cells.parse("status")?,
        end_reason: cells.parse_optional("end_reason")?,
        epoch: cells.get("lease_epoch")?,
        owner: cells.get("lease_owner")?,
        template: cells.get("template")?,
        sandbox: None,
        created_at: cells.get("created_at")?,
        ready_at: cells.get("ready_at")?,
        last_used_at: cells.get("last_used_at")?,
        expires_at: cells.get("expires_at")?,
        ended_at: cells.get("ended_at")?,
        execution_count: cells.get("execution_count")?,
        total_execution_ms: cells.get("total_execution_ms")?,
        last_error: cells.get("last_error")?,
        read_at: cells.get::<DateTime<Utc>>("read_at")?,
    }))
}

/// The same with its sandbox, from `sandbox_columns` too. `Corrupt` when the tokens do not open.
pub(super) fn context_with_sandbox(row: &PgRow, keyring: &Keyring) -> Result<Option<ContextRow>, StoreError> {
    let Some(mut context) = context(row)? else { return Ok(None) };
    let cells = Cells::new(row, "execution_contexts", context.id);
    let Some(sandbox_id) = cells.parse_optional("sandbox_id")? else { return Ok(Some(context)) };
    let mut sandbox = SandboxRef {
        sandbox_id,
        domain: cells.get("sandbox_domain")?,
        host_url: cells.get("host_url")?,
        host_key: None,
        envd_token: None,
        traffic_token: None,
        mcp_url: cells.get("mcp_url")?,
        mcp_token: None,
        provider_ends_at: cells.get("provider_ends_at")?,
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
    Ok(Some(context))
}

/// Selects runs from a function.
macro_rules! execution_query {
    ($from:literal, $result:literal) => {
        concat!(
            "select x.id, x.tenant_id, x.owner_principal, x.conversation_id, x.path_id, x.context_id, x.tool, x.language, x.purpose, \
             x.code_sha256, x.principal, x.trace_id, x.status, x.exit_code, x.error, x.created_at, x.started_at, \
             x.finished_at, x.duration_ms, x.output_bytes, x.findings::text as findings, ",
            $result,
            " as result from ",
            $from,
            " x"
        )
    };
}
pub(super) use execution_query;

/// A run.
pub(super) fn execution(row: &PgRow) -> Result<ExecutionRow, StoreError> {
    let id: Uuid = Cells::new(row, "executions", "?").get("id")?;
    let cells = Cells::new(row, "executions", id);
    Ok(ExecutionRow {
        id: ExecutionId(id),
        context: cells.get::<Option<Uuid>>("context_id")?.map(ContextId),
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
        created_at: cells.get("created_at")?,
        started_at: cells.get("started_at")?,
        finished_at: cells.get("finished_at")?,
        duration_ms: cells.get("duration_ms")?,
        output_bytes: cells.get("output_bytes")?,
        findings: cells.json("findings")?.unwrap_or_default(),
        result: cells.json("result")?,
    })
}
