//! `contexts` and `executions`: list and show contexts and runs, and end contexts.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{explain, load, table};
use crate::config::{Config, Sources};
use crate::domain::{ContextId, ConversationId, EndReason, Entropy, ExecutionId, TenantId};
use crate::store::{ContextFilter, ContextRow, DynStore, End, ExecutionFilter, ExecutionRow};

#[derive(Debug, Subcommand)]
pub(super) enum ContextsCommand {
    /// List contexts, newest first.
    Ls {
        #[command(flatten)]
        filter: Filter,
        /// Include ended ones.
        #[arg(long)]
        all: bool,
    },
    /// Show one context.
    Show {
        /// Its id.
        id: ContextId,
        #[command(flatten)]
        output: Output,
    },
    /// End a live context; its sandbox dies.
    End {
        /// Its id.
        id: ContextId,
        #[command(flatten)]
        output: Output,
    },
    /// Set a tenant's own limits, on every replica from the next call on. Options that are not given fall back to the
    /// settings `contexts.per_tenant` and `contexts.per_conversation`.
    Limit {
        /// Maximum number of live contexts of the tenant; 0 locks it out.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
        per_tenant: Option<u32>,
        /// Maximum number of live contexts of each of its conversations.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
        per_conversation: Option<u32>,
        /// Remove the tenant's own limits, so that the settings apply.
        #[arg(long, conflicts_with_all = ["per_tenant", "per_conversation"],
              required_unless_present_any = ["per_tenant", "per_conversation"])]
        reset: bool,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ExecutionsCommand {
    /// List runs, newest first.
    Ls {
        #[command(flatten)]
        filter: Filter,
        /// Only this context's.
        #[arg(long, value_name = "ID")]
        context: Option<ContextId>,
    },
    /// Show one run.
    Show {
        /// Its id.
        id: ExecutionId,
        /// Explain where its time went, and why it ended.
        #[arg(long)]
        explain: bool,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Args)]
pub(super) struct Output {
    /// The tenant that owns it; `local` when not set.
    #[arg(long, value_name = "ID")]
    pub(super) tenant: Option<TenantId>,
    /// As JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Filter {
    /// Only this tenant's; every tenant's when not set.
    #[arg(long, value_name = "ID")]
    tenant: Option<TenantId>,
    /// Only this conversation's.
    #[arg(long, value_name = "ID")]
    conversation: Option<ConversationId>,
    /// Maximum number of rows.
    #[arg(long, default_value_t = 100)]
    limit: u32,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn open(sources: &Sources) -> anyhow::Result<(Config, DynStore)> {
    let (config, _) = load(sources)?;
    let keyring = crate::app::keyring(&config, &Entropy::system())?;
    let store = crate::app::open_store(&config, keyring).await?;
    Ok((config, store))
}

pub(super) async fn contexts(command: ContextsCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    let (config, store) = open(&sources).await?;
    match command {
        ContextsCommand::Ls { filter, all } => {
            let wanted = ContextFilter {
                tenant: filter.tenant,
                owner: None,
                conversation: filter.conversation,
                ended: all,
                limit: Some(filter.limit),
            };
            let rows = store.contexts(&wanted).await?;
            if filter.json {
                print(&rows.iter().map(context_json).collect::<Vec<_>>().into())?;
            } else {
                let headings =
                    ["id", "tenant", "conversation", "path", "status", "runs", "last used", "ends"];
                table(&headings, &rows.iter().map(context_line).collect::<Vec<_>>());
            }
        }
        ContextsCommand::Show { id, output } => {
            let tenant = output.tenant.unwrap_or(config.tenant);
            let Some(row) = store.context(&tenant, id).await? else {
                bail!("tenant {tenant} has no context {id}")
            };
            show(&context_json(&row), output.json)?;
        }
        ContextsCommand::End { id, output } => {
            let tenant = output.tenant.unwrap_or(config.tenant);
            let end = End {
                tenant: tenant.clone(),
                context: id,
                epoch: None,
                reason: EndReason::Manual,
                error: None,
            };
            if !store.end(&end, &config.limits).await? {
                bail!("tenant {tenant} has no live context {id}");
            }
            // The sandbox is in the outbox; a running server kills it within moments, and so does `cleanup`.
            show(&json!({ "id": id, "ended": true }), output.json)?;
        }
        ContextsCommand::Limit { per_tenant, per_conversation, reset: _, output } => {
            let tenant = output.tenant.unwrap_or(config.tenant);
            store.set_tenant_limits(&tenant, per_tenant, per_conversation).await?;
            let limits = &config.limits;
            let in_force = json!({
                "tenant": tenant,
                "perTenant": per_tenant.unwrap_or(limits.per_tenant),
                "perConversation": per_conversation.unwrap_or(limits.per_conversation),
            });
            show(&in_force, output.json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn executions(command: ExecutionsCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    let (config, store) = open(&sources).await?;
    match command {
        ExecutionsCommand::Ls { filter, context } => {
            let wanted = ExecutionFilter {
                tenant: filter.tenant,
                owner: None,
                principal: None,
                conversation: filter.conversation,
                context,
                limit: Some(filter.limit),
            };
            let rows = store.executions(&wanted).await?;
            if filter.json {
                print(&rows.iter().map(execution_json).collect::<Vec<_>>().into())?;
            } else {
                let headings =
                    ["id", "tenant", "conversation", "path", "tool", "status", "exit", "ms", "started"];
                table(&headings, &rows.iter().map(execution_line).collect::<Vec<_>>());
            }
        }
        ExecutionsCommand::Show { id, explain, output } => {
            let tenant = output.tenant.unwrap_or(config.tenant);
            let Some(row) = store.execution(&tenant, id).await? else {
                bail!("tenant {tenant} has no execution {id}")
            };
            if explain {
                let context = match row.context {
                    Some(context) => store.context(&tenant, context).await?,
                    None => None,
                };
                let explained = explain::explain(&row, context.as_ref(), store.now().await?);
                show(&explained, output.json)?;
            } else {
                show(&execution_json(&row), output.json)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn print(value: &Value) -> anyhow::Result<()> {
    say!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// One object as JSON, or a line for each of its fields.
pub(super) fn show(value: &Value, json: bool) -> anyhow::Result<()> {
    if json {
        return print(value);
    }
    let rows: Vec<[String; 2]> = value
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| [key.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned)])
        .collect();
    table(&["field", "value"], &rows);
    Ok(())
}

fn time(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%S").to_string()
}

fn context_line(row: &ContextRow) -> [String; 8] {
    let left = row.expires_at.map(|at| (at - row.read_at).to_std().unwrap_or(Duration::ZERO));
    [
        row.id.to_string(),
        row.key.tenant.to_string(),
        row.key.conversation.to_string(),
        row.key.path.to_string(),
        row.end_reason.map_or_else(|| row.status.to_string(), |reason| format!("{} ({reason})", row.status)),
        row.execution_count.to_string(),
        time(row.last_used_at),
        match (row.ended_at, left) {
            (Some(at), _) => time(at),
            (None, Some(left)) => format!("in {} s unless used", left.as_secs()),
            (None, None) => "–".into(),
        },
    ]
}

fn context_json(row: &ContextRow) -> Value {
    json!({
        "id": row.id, "tenant": row.key.tenant, "conversation": row.key.conversation, "path": row.key.path,
        "status": row.status, "endReason": row.end_reason, "createdAt": row.created_at, "readyAt": row.ready_at,
        "lastUsedAt": row.last_used_at, "expiresAt": row.expires_at, "endedAt": row.ended_at,
        "executionCount": row.execution_count, "totalExecutionMs": row.total_execution_ms, "owner": row.owner,
        "lastError": row.last_error, "template": row.template,
    })
}

fn execution_line(row: &ExecutionRow) -> [String; 9] {
    [
        row.id.to_string(),
        row.key.tenant.to_string(),
        row.key.conversation.to_string(),
        row.key.path.to_string(),
        row.tool.clone(),
        row.status.to_string(),
        row.exit_code.map_or_else(|| "–".into(), |code| code.to_string()),
        row.duration_ms.map_or_else(|| "–".into(), |ms| ms.to_string()),
        row.started_at.map_or_else(|| "–".into(), time),
    ]
}

fn execution_json(row: &ExecutionRow) -> Value {
    json!({
        "id": row.id, "context": row.context, "tenant": row.key.tenant, "conversation": row.key.conversation,
        "path": row.key.path, "tool": row.tool, "language": row.language, "purpose": row.purpose,
        "codeSha256": row.code_sha256, "principal": row.principal, "traceId": row.trace_id, "status": row.status,
        "exitCode": row.exit_code, "error": row.error, "createdAt": row.created_at, "startedAt": row.started_at,
        "finishedAt": row.finished_at, "durationMs": row.duration_ms, "outputBytes": row.output_bytes,
        "findings": super::shape::members(row.findings.clone()),
    })
}
