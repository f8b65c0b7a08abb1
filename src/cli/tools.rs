//! `tools`: lists the tool servers of the settings, searches and calls their tools, and accepts changes.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::contexts::open;
use super::{load, table};
use crate::bridge::types::{Style, signature};
use crate::bridge::{Bridge, Catalog, Content, Need, Tool, is_of};
use crate::config::{Config, Sources};
use crate::domain::TenantId;

#[derive(Debug, Subcommand)]
pub(super) enum ToolsCommand {
    /// List the tools that programs may call.
    Ls {
        /// Only the tools of this server.
        server: Option<String>,
        #[command(flatten)]
        whose: Whose,
    },
    /// Find tools by what they do.
    Search {
        /// What the tool should do, in words.
        query: String,
        /// Maximum number of tools.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
        limit: u16,
        #[command(flatten)]
        whose: Whose,
    },
    /// Call one tool.
    Call {
        /// `server.tool`.
        tool: String,
        /// Its arguments, a JSON object.
        #[arg(default_value = "{}")]
        arguments: String,
        /// Confirm the call of a tool that needs confirmation.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        whose: Whose,
    },
    /// Start each server, and report problems and changes since its tools were accepted.
    Check {
        #[command(flatten)]
        whose: Whose,
    },
    /// Accept the tools of a server as they are now.
    Accept {
        /// The server.
        server: String,
        #[command(flatten)]
        whose: Whose,
    },
}

#[derive(Debug, Args)]
pub(super) struct Whose {
    /// The tenant; `identity.tenant` when not set.
    #[arg(long, value_name = "ID")]
    tenant: Option<TenantId>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn tools(command: ToolsCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    if load(&sources)?.0.bridge.servers.is_empty() {
        let none = "no tool server is configured; write `[[tools.server]]` into the settings file (docs/code-mode.md)";
        match &command {
            ToolsCommand::Call { .. } | ToolsCommand::Accept { .. } => bail!(none),
            ToolsCommand::Ls { whose, .. }
            | ToolsCommand::Search { whose, .. }
            | ToolsCommand::Check { whose } => {
                if !whose.json {
                    say!("{none}");
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
    }
    let (config, store) = open(&sources).await?;
    let bridge = crate::app::bridge(&config, store, CancellationToken::new())?;
    let done = run(command, &config, &bridge).await;
    bridge.close().await;
    done
}

impl ToolsCommand {
    /// The server, or a tool of it, that the command is about; `None`: all of them.
    fn server(&self) -> Option<&String> {
        match self {
            Self::Ls { server, .. } => server.as_ref(),
            Self::Call { tool: name, .. } | Self::Accept { server: name, .. } => Some(name),
            Self::Search { .. } | Self::Check { .. } => None,
        }
    }
}

/// What a command that is about one server, or about all, needs of a server.
fn need(named: Option<&String>, server: &str, module: &str) -> Need {
    match named {
        Some(name) if !is_of(name, server, module) => Need::Nothing,
        _ => Need::Named,
    }
}

async fn run(command: ToolsCommand, config: &Config, bridge: &Bridge) -> anyhow::Result<ExitCode> {
    let (ToolsCommand::Ls { whose, .. }
    | ToolsCommand::Search { whose, .. }
    | ToolsCommand::Call { whose, .. }
    | ToolsCommand::Check { whose }
    | ToolsCommand::Accept { whose, .. }) = &command;
    let (tenant, as_json) = (whose.tenant.clone().unwrap_or_else(|| config.tenant.clone()), whose.json);
    let is_named =
        |name: &&String| bridge.modules(&tenant).iter().any(|(of, module)| is_of(name, of, module));
    let named = command.server().filter(is_named);
    let catalog = bridge.catalog_for(&tenant, None, |server, module| need(named, server, module)).await;
    let found: Vec<&Tool> = match &command {
        ToolsCommand::Ls { server, .. } => catalog
            .tools
            .iter()
            .filter(|tool| server.as_ref().is_none_or(|name| *name == tool.server))
            .collect(),
        ToolsCommand::Search { query, limit, .. } => {
            bridge.search(&catalog, query, usize::from(*limit)).await
        }
        ToolsCommand::Call { tool, arguments, yes, .. } => {
            return call(config, bridge, &catalog, &tenant, (tool, arguments, *yes)).await;
        }
        ToolsCommand::Check { .. } => return check(bridge, &catalog, &tenant, as_json).await,
        ToolsCommand::Accept { server, .. } => {
            if bridge.server(&tenant, server).is_none() {
                bail!("there is no tool server {server:?}; there are: {}", bridge.names().join(", "));
            }
            if let Some(problem) = catalog.problems.iter().find(|p| p.fatal && p.server == *server) {
                bail!("{server} cannot be checked: {}", problem.problem);
            }
            let accepted = bridge.accept(&tenant, server).await.map_err(anyhow::Error::msg)?;
            say!("accepted {accepted} tools of {server}");
            return Ok(ExitCode::SUCCESS);
        }
    };
    if as_json {
        let rows: Vec<Value> = found.iter().map(|tool| row(tool)).collect();
        say!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        let first_line =
            |text: &str| text.lines().next().unwrap_or_default().chars().take(80).collect::<String>();
        let rows: Vec<[String; 3]> = found
            .iter()
            .map(|tool| {
                let note = if tool.asks { "asks" } else { "" };
                [tool.full_name(), note.to_owned(), first_line(&tool.description)]
            })
            .collect();
        table(&["tool", "", "what it does"], &rows);
        let is_asked_about = |server: &str| named.is_none_or(|name| is_of(name, server, server));
        for problem in catalog.problems.iter().filter(|p| p.fatal && is_asked_about(&p.server)) {
            say!("{}: {}", problem.server, problem.problem);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(tool: &Tool) -> Value {
    json!({
        "tool": tool.full_name(), "python": signature(tool, Style::Python), "typescript": signature(tool, Style::TypeScript),
        "description": tool.description, "asks": tool.asks, "readOnly": tool.read_only,
    })
}

/// Applies the same checks as to a call from a program: arguments and confirmation.
async fn call(
    config: &Config,
    bridge: &Bridge,
    catalog: &Catalog,
    tenant: &TenantId,
    (name, arguments, yes): (&str, &str, bool),
) -> anyhow::Result<ExitCode> {
    let Some(tool) = catalog.find(name) else {
        if let Some(down) = catalog.down(name) {
            bail!("the tool server {} is not available: {}", down.server, down.problem);
        }
        let near: Vec<String> = catalog.search(name, 3).iter().map(|tool| tool.full_name()).collect();
        let near = if near.is_empty() {
            "`pathbox tools ls` lists all".to_owned()
        } else {
            format!("similar names: {}", near.join(", "))
        };
        bail!("there is no tool {name:?}; {near}");
    };
    let arguments: Map<String, Value> =
        serde_json::from_str(arguments).context("the arguments are not a JSON object")?;
    if let Err(problem) = tool.check(&Value::Object(arguments.clone())) {
        bail!("the arguments do not fit: {problem}\n{}", signature(tool, Style::TypeScript));
    }
    if tool.asks && !yes {
        bail!("{name} needs confirmation; call it with --yes");
    }
    let deadline = Instant::now() + Duration::from_secs(600);
    let answer = bridge.call(tenant, tool, arguments, Map::new(), deadline).await?;
    let text = match answer.content {
        Content::Value(value) => serde_json::to_string_pretty(&value)?,
        Content::Text(text) => text,
        Content::Blocks(blocks) => serde_json::to_string_pretty(&blocks)?,
    };
    let guard = crate::app::policies(config)?.of(tenant);
    say!("{}", guard.line(&text).get());
    Ok(ExitCode::from(u8::from(answer.is_error)))
}

async fn check(
    bridge: &Bridge,
    catalog: &Catalog,
    tenant: &TenantId,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let changes = bridge.changes(tenant).await;
    let is_well =
        !catalog.problems.iter().any(|problem| problem.fatal) && changes.iter().all(|change| !change.blocked);
    if as_json {
        let servers: Vec<Value> = catalog
            .servers()
            .iter()
            .map(|(name, module, count)| json!({"server": name, "module": module, "tools": count}))
            .collect();
        say!(
            "{}",
            serde_json::to_string_pretty(
                &json!({"servers": servers, "problems": catalog.problems, "changes": changes})
            )?
        );
        return Ok(ExitCode::from(u8::from(!is_well)));
    }
    let servers = catalog.servers();
    let rows: Vec<[String; 3]> = bridge
        .names()
        .into_iter()
        .filter(|name| bridge.server(tenant, name).is_some())
        .map(|name| {
            let count =
                servers.iter().find(|(server, _, _)| *server == name).map_or(0, |(_, _, count)| *count);
            let problems: Vec<&str> =
                catalog.problems.iter().filter(|p| p.server == name).map(|p| p.problem.as_str()).collect();
            [
                name.to_owned(),
                count.to_string(),
                if problems.is_empty() { "ok".to_owned() } else { problems.join("; ") },
            ]
        })
        .collect();
    table(&["server", "tools", "result"], &rows);
    for change in &changes {
        let blocked = if change.blocked { ", blocked until it is accepted" } else { "" };
        say!("{}.{} is {}{blocked}", change.server, change.tool, change.what);
    }
    Ok(ExitCode::from(u8::from(!is_well)))
}
