//! `guard`: try a policy on a file, and see what is looked for. Nothing is stored and no server is needed.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::json;

use super::{Identity, load};
use crate::config::Sources;
use crate::domain::{ContextKey, Entropy, TenantId};
use crate::guard::{Guard, PolicyFile, rules, rules_table};
use crate::store::{NewReveal, RevealRow};

#[derive(Debug, Subcommand)]
pub(super) enum GuardCommand {
    /// Show what would be replaced in a file, where, and why; the values themselves are not shown.
    Check {
        /// The file; `-` for standard input.
        file: PathBuf,
        #[command(flatten)]
        policy: PolicyArgs,
        /// Print the text as it would go out instead.
        #[arg(long, conflicts_with = "json")]
        text: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Open a sealed token, for somebody who holds the installation's key. It is written down.
    Reveal {
        /// The token, as it stands in an output; `-` reads it from standard input.
        token: String,
        #[command(flatten)]
        identity: Identity,
    },
    /// List who opened, or tried to open, a sealed token, newest first.
    Reveals {
        /// Only this tenant's; every tenant's when not set.
        #[arg(long, value_name = "ID")]
        tenant: Option<TenantId>,
        /// At most so many.
        #[arg(long, default_value_t = 100)]
        limit: u32,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the rules and what the policy does with what they find.
    Rules {
        #[command(flatten)]
        policy: PolicyArgs,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct PolicyArgs {
    /// A policy file (TOML) instead of the built-in policy.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The tenant whose overlay counts.
    #[arg(long, value_name = "TENANT")]
    policy_tenant: Option<String>,
}

impl PolicyArgs {
    fn guard(&self) -> anyhow::Result<Guard> {
        let file = match &self.policy {
            None => PolicyFile::default(),
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
                toml::from_str(&text).with_context(|| format!("{} is no policy", path.display()))?
            }
        };
        Ok(Guard::new(file.resolve(self.policy_tenant.as_deref(), None, None))?)
    }
}

/// Runs the command. Exit code 1 says that `check` found something.
pub(super) async fn guard(command: GuardCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    match command {
        GuardCommand::Reveal { token, identity } => reveal(token, identity, sources).await,
        GuardCommand::Reveals { tenant, limit, json } => reveals(tenant, limit, json, &sources).await,
        GuardCommand::Check { file, policy, text, json } => {
            let bytes = if file.as_os_str() == "-" {
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes)
                    .context("reading standard input")?;
                bytes
            } else {
                std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?
            };
            let checked = policy.guard()?.check(&String::from_utf8_lossy(&bytes));
            if text {
                super::write_out(&checked.text);
            } else if json {
                let report = serde_json::json!({ "findings": checked.findings, "report": checked.report });
                say!("{}", serde_json::to_string_pretty(&report)?);
            } else {
                super::write_out(&checked.table());
            }
            Ok(if checked.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
        }
        GuardCommand::Rules { policy, json } => {
            let guard = policy.guard()?;
            if json {
                say!("{}", serde_json::to_string_pretty(rules())?);
            } else {
                super::write_out(&rules_table(&guard));
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn reveal(token: String, identity: Identity, mut sources: Sources) -> anyhow::Result<ExitCode> {
    identity.into_flags(&mut sources.flags);
    let (config, _) = load(&sources)?;
    let entropy = Entropy::system();
    let keyring = crate::app::keyring(&config, &entropy)?;
    let Some(tokens) = crate::app::token_key(&config, &keyring) else {
        bail!("there is no key for tokens of this database: set PATHBOX_SECRET_KEYS as the servers have it");
    };
    let Some(conversation) = config.conversation.clone() else {
        bail!("--conversation is missing: a token opens only in the context that it came from");
    };
    let key = ContextKey { tenant: config.tenant.clone(), conversation, path: config.path.clone() };
    let store = crate::app::open_store(&config, keyring).await?;
    let token = match token.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()).context("reading standard input")?,
        _ => token,
    };
    let revealed = tokens.reveal(&store, &key, "cli", token.trim(), &entropy).await;
    let revealed = revealed.map_err(|error| anyhow::anyhow!("{error}. {}", error.advice()))?;
    super::write_out(&format!("{}\n", *revealed.value));
    Ok(ExitCode::SUCCESS)
}

async fn reveals(
    tenant: Option<TenantId>,
    limit: u32,
    as_json: bool,
    sources: &Sources,
) -> anyhow::Result<ExitCode> {
    let (config, _) = load(sources)?;
    let keyring = crate::app::keyring(&config, &Entropy::system())?;
    let rows = crate::app::open_store(&config, keyring).await?.reveals(tenant.as_ref(), limit).await?;
    if as_json {
        let view = |row: &RevealRow| {
            let NewReveal { key, kind, principal, opened, .. } = &row.reveal;
            json!({ "at": row.at, "principal": principal, "tenant": key.tenant, "conversation": key.conversation,
                "path": key.path, "opened": opened, "kind": kind })
        };
        say!("{}", serde_json::to_string_pretty(&rows.iter().map(view).collect::<Vec<_>>())?);
        return Ok(ExitCode::SUCCESS);
    }
    let line = |RevealRow { reveal, at }: &RevealRow| {
        let NewReveal { key, kind, principal, .. } = reveal;
        [
            at.format("%Y-%m-%d %H:%M:%S").to_string(),
            principal.clone(),
            key.tenant.to_string(),
            key.conversation.to_string(),
            key.path.to_string(),
            kind.clone().unwrap_or_else(|| "refused".to_owned()),
        ]
    };
    let headings = ["when", "who", "tenant", "conversation", "path", "kind"];
    super::table(&headings, &rows.iter().map(line).collect::<Vec<_>>());
    Ok(ExitCode::SUCCESS)
}
