//! `usage`: usage, cost and quotas.

use std::process::ExitCode;

use chrono::NaiveDate;
use clap::{Args, Subcommand};
use serde_json::json;

use super::contexts::{open, print, show};
use super::table;
use crate::config::Sources;
use crate::domain::usage::{UsageBy, UsageLine, decimal, micros, report};
use crate::domain::{OwnQuota, Period, TenantId};
use crate::store::UsageFilter;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct UsageArgs {
    #[command(subcommand)]
    command: Option<UsageCommand>,
    #[command(flatten)]
    span: Span,
}

#[derive(Debug, Args)]
struct Span {
    /// Only this tenant's; every tenant's when not set.
    #[arg(long, value_name = "ID")]
    tenant: Option<TenantId>,
    /// From this day on, UTC; the first of the month of --to when not set.
    #[arg(long, value_name = "YYYY-MM-DD")]
    from: Option<NaiveDate>,
    /// Up to this day, which is included; today when not set.
    #[arg(long, value_name = "YYYY-MM-DD")]
    to: Option<NaiveDate>,
    /// Group by tenant, conversation, path or day.
    #[arg(long, value_name = "WHAT", default_value = "tenant")]
    by: UsageBy,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum UsageCommand {
    /// Set a tenant's own quota, on every replica from the next call on. Options that are not given fall back to the
    /// settings `usage.quota_*`. Without any, show it.
    Quota {
        /// The tenant; `local` when not set.
        #[arg(long, value_name = "ID")]
        tenant: Option<TenantId>,
        /// Sandbox seconds in a period.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000_000))]
        sandbox_seconds: Option<u64>,
        /// Runs in a period.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000_000))]
        executions: Option<u64>,
        /// Money in a period, by the price table.
        #[arg(long, value_name = "AMOUNT", value_parser = amount)]
        money: Option<u64>,
        /// When the quota starts again: day or month.
        #[arg(long, value_name = "PERIOD")]
        period: Option<Period>,
        /// Only show the quota, as without any option.
        #[arg(long, conflicts_with_all = ["sandbox_seconds", "executions", "money", "period", "reset"])]
        show: bool,
        /// Remove the tenant's own quota, so that the settings apply.
        #[arg(long, conflicts_with_all = ["sandbox_seconds", "executions", "money", "period"])]
        reset: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

fn amount(text: &str) -> Result<u64, String> {
    let found = micros(text).filter(|micros| *micros <= 1_000_000_000_000);
    found.ok_or_else(|| "expected 0 to 1000000 with at most six decimal places".to_owned())
}

pub(super) async fn usage(args: UsageArgs, sources: Sources) -> anyhow::Result<ExitCode> {
    let (config, store) = open(&sources).await?;
    let prices = &config.limits.prices;
    match args.command {
        None => {
            let now = store.now().await?;
            let Span { tenant, from, to, by, json } = args.span;
            let to = to.unwrap_or(now.date_naive());
            let from = from.unwrap_or_else(|| Period::Month.first(to));
            if from > to {
                anyhow::bail!("--from {from} is after --to {to}");
            }
            let rows = store.usage(&UsageFilter { tenant, owner: None, from, to }).await?;
            let lines = report(&rows, by, prices);
            if json {
                print(&json!({ "from": from, "to": to, "currency": prices.currency, "lines": lines }))?;
            } else {
                print_table(&lines, &prices.currency);
            }
        }
        Some(UsageCommand::Quota {
            tenant,
            sandbox_seconds,
            executions,
            money,
            period,
            show: _,
            reset,
            json,
        }) => {
            let tenant = tenant.unwrap_or(config.tenant);
            let is_named =
                [sandbox_seconds, executions, money].iter().any(Option::is_some) || period.is_some();
            if is_named || reset {
                let own = OwnQuota { period, sandbox_seconds, executions, money_micros: money };
                store.set_own_quota(&tenant, &own).await?;
            }
            let quota = config.limits.quota.or(&store.own_quota(&tenant).await?);
            let in_force = json!({
                "tenant": tenant, "period": quota.period, "sandboxSeconds": quota.sandbox_seconds,
                "executions": quota.executions, "money": quota.money_micros.map(decimal),
            });
            show(&in_force, json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_table(lines: &[UsageLine], currency: &str) {
    let cell = |text: Option<String>| text.unwrap_or_else(|| "–".into());
    let rows: Vec<[String; 9]> = lines
        .iter()
        .map(|line| {
            [
                line.tenant.to_string(),
                cell(line.owner.as_ref().map(|owner| owner.as_str().to_owned())),
                cell(line.conversation.as_ref().map(ToString::to_string)),
                cell(line.path.as_ref().map(ToString::to_string)),
                cell(line.day.map(|day| day.to_string())),
                line.executions.to_string(),
                line.sandbox_ms.div_ceil(1000).to_string(),
                line.output_bytes.to_string(),
                format!("{} {currency}", line.cost),
            ]
        })
        .collect();
    let headings =
        ["tenant", "owner", "conversation", "path", "day", "runs", "sandbox seconds", "output bytes", "cost"];
    table(&headings, &rows);
}
