//! `guard`: try a policy on a file, and see what is looked for. Nothing is stored and no server is needed.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;

use crate::guard::{Guard, PolicyFile, rules, rules_table};

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
pub(super) fn guard(command: GuardCommand) -> anyhow::Result<ExitCode> {
    match command {
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
