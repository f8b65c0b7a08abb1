//! `workflows`: list, show, resume and abort. Works on the store, next to the server that drives the workflows.

use std::process::ExitCode;

use anyhow::bail;
use clap::Subcommand;
use serde_json::json;
use uuid::Uuid;

use super::contexts::{Output, open};
use super::table;
use crate::config::Sources;
use crate::domain::TenantId;
use crate::execution::workflows::fold;
use crate::store::DynStore;
use crate::store::workflows::{Append, Appended};
use crate::workflow::{Event, picture};

#[derive(Debug, Subcommand)]
pub(super) enum WorkflowsCommand {
    /// List workflows, newest first.
    Ls {
        #[command(flatten)]
        output: Output,
        /// Include ended ones.
        #[arg(long)]
        all: bool,
    },
    /// Show a workflow: its graph and its progress.
    Show {
        /// Its id.
        id: Uuid,
        #[command(flatten)]
        output: Output,
        /// Print the graph in Mermaid.
        #[arg(long, conflicts_with = "json")]
        mermaid: bool,
    },
    /// Resume a paused workflow.
    Resume {
        /// Its id.
        id: Uuid,
        #[command(flatten)]
        output: Output,
    },
    /// Abort a workflow. The server that drives it stops its running tasks.
    Abort {
        /// Its id.
        id: Uuid,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum CacheCommand {
    /// List a tenant's cached results, most recently used first.
    Ls {
        #[command(flatten)]
        output: Output,
    },
    /// Clear all cached results of a tenant.
    Clear {
        #[command(flatten)]
        output: Output,
    },
}

/// Cached results in one list.
const LISTED: u32 = 1_000;

pub(super) async fn cache(command: CacheCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    let (config, store) = open(&sources).await?;
    let tenant = |output: &Output| output.tenant.clone().unwrap_or_else(|| config.tenant.clone());
    match command {
        CacheCommand::Ls { output } => {
            let entries = store.cache_entries(&tenant(&output), LISTED).await?;
            if output.json {
                let entries: Vec<_> = entries
                    .iter()
                    .map(|entry| {
                        json!({"key": entry.key, "owner": entry.owner.as_str(), "executionId": entry.execution,
                            "language": entry.language, "bytes": entry.bytes, "hits": entry.hits,
                            "createdAt": entry.created_at.to_rfc3339(), "usedAt": entry.used_at.to_rfc3339()})
                    })
                    .collect();
                super::contexts::print(&entries.into())?;
                return Ok(ExitCode::SUCCESS);
            }
            let rows: Vec<[String; 6]> = entries
                .iter()
                .map(|entry| {
                    [
                        entry.key.chars().take(12).collect(),
                        entry.language.to_string(),
                        entry.bytes.to_string(),
                        entry.hits.to_string(),
                        entry.used_at.format("%F %T").to_string(),
                        entry.execution.to_string(),
                    ]
                })
                .collect();
            table(&["key", "language", "bytes", "hits", "used", "execution"], &rows);
        }
        CacheCommand::Clear { output } => {
            let dropped = store.clear_cache(&tenant(&output)).await?;
            if output.json {
                super::contexts::print(&json!({ "dropped": dropped }))?;
            } else {
                say!("{dropped} results dropped");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

const BY: &str = "the operator";

pub(super) async fn workflows(command: WorkflowsCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    let (config, store) = open(&sources).await?;
    let tenant = |output: &Output| output.tenant.clone().unwrap_or_else(|| config.tenant.clone());
    match command {
        WorkflowsCommand::Ls { output, all } => {
            let rows = store.workflows(Some(&tenant(&output)), None, !all, 200).await?;
            if output.json {
                let rows: Vec<_> = rows
                    .iter()
                    .map(|row| {
                        json!({"id": row.id, "status": row.status, "purpose": row.purpose, "owner": row.key.owner.as_str(),
                            "conversation": row.key.conversation, "events": row.seq, "driver": row.lease_owner,
                            "createdAt": row.created_at.to_rfc3339(), "finishedAt": row.finished_at.map(|at| at.to_rfc3339())})
                    })
                    .collect();
                super::contexts::print(&rows.into())?;
            } else {
                let rows: Vec<[String; 6]> = rows
                    .iter()
                    .map(|row| {
                        let purpose = row.purpose.clone().unwrap_or_default();
                        let created = row.created_at.format("%F %T").to_string();
                        let driver = row.lease_owner.clone().unwrap_or_default();
                        [
                            row.id.to_string(),
                            row.status.clone(),
                            row.seq.to_string(),
                            driver,
                            created,
                            purpose,
                        ]
                    })
                    .collect();
                table(&["id", "status", "events", "driver", "created", "purpose"], &rows);
            }
        }
        WorkflowsCommand::Show { id, output, mermaid } => {
            show(&store, &tenant(&output), id, output.json, mermaid).await?
        }
        WorkflowsCommand::Resume { id, output } => {
            steer(&store, &tenant(&output), id, Event::Resumed { by: BY.into() }).await?;
            show(&store, &tenant(&output), id, output.json, false).await?;
        }
        WorkflowsCommand::Abort { id, output } => {
            steer(&store, &tenant(&output), id, Event::Aborting { by: BY.into() }).await?;
            show(&store, &tenant(&output), id, output.json, false).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(
    store: &DynStore,
    tenant: &TenantId,
    id: Uuid,
    as_json: bool,
    mermaid: bool,
) -> anyhow::Result<()> {
    let Some(row) = store.workflow(tenant, id).await? else { bail!("tenant {tenant} has no workflow {id}") };
    let state = fold(store, id).await?;
    let text = match (as_json, mermaid) {
        (true, _) => {
            let tasks = serde_json::to_value(crate::mcp::tools::workflows::task_views(&state))?;
            let shown = json!({"id": id, "status": state.shown_status(), "events": row.seq, "driver": row.lease_owner, "tasks": tasks});
            return super::contexts::print(&shown);
        }
        (_, true) => picture::mermaid(&state),
        _ => format!("workflow {id} is {}\n{}", state.shown_status(), picture::text(&state)),
    };
    say!("{}", text.trim_end());
    Ok(())
}

async fn steer(store: &DynStore, tenant: &TenantId, id: Uuid, event: Event) -> anyhow::Result<()> {
    loop {
        let Some(row) = store.workflow(tenant, id).await? else {
            bail!("tenant {tenant} has no workflow {id}")
        };
        let mut state = fold(store, id).await?;
        let seq = state.seq;
        state.apply(&event, row.created_at.timestamp_millis())?;
        let append = Append {
            id,
            seq,
            lease: None,
            events: vec![serde_json::to_string(&event)?],
            results: Vec::new(),
            status: state.status.as_str(),
            release: None,
        };
        match store.append_workflow(&append).await? {
            Appended::Done => return Ok(()),
            Appended::Stale => {}
            Appended::Fenced => bail!("tenant {tenant} has no workflow {id}"),
        }
    }
}
