//! `audit` and `tenants`: verifying, exporting and erasing the record of runs.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context, bail};
use chrono::NaiveDate;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::contexts::{open, print, show};
use crate::config::Sources;
use crate::domain::{Clock, EndReason, TenantId};
use crate::execution::transfers::LIFE;
use crate::objects::Objects;
use crate::store::{Chain, ChainHead, ContextFilter, DynStore, End, Fault, UsageFilter, verify};

#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Check each tenant's chain, and that no ended run was changed. Exits with 1 and names the
    /// place when something was changed.
    Verify {
        /// Only this tenant's; every tenant's when not set.
        #[arg(long, value_name = "ID")]
        tenant: Option<TenantId>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write the entries as JSON lines. An entry's hash is the SHA-256 of the hash before it in its lane, the tenant, the
    /// lane, n and the SHA-256 of its body, each as text on a line.
    Export {
        /// Only this tenant's; every tenant's when not set.
        #[arg(long, value_name = "ID")]
        tenant: Option<TenantId>,
        /// Only entries after these: the last n of each lane that an earlier export has. Needs `--tenant`.
        #[arg(long, value_name = "LANE:N", value_delimiter = ',', requires = "tenant", value_parser = parse_place)]
        after: Vec<(i16, i64)>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum TenantsCommand {
    /// Erase the data of a tenant, or of one of its users, and print what was erased. Live contexts end. The audit
    /// chain keeps hashes instead of the erased text, and an entry about the erasure.
    Erase(Erase),
}

#[derive(Debug, Args)]
pub(super) struct Erase {
    /// The tenant.
    #[arg(long, value_name = "ID")]
    tenant: TenantId,
    /// Only data that belongs to this principal or was run by it, as `executions show` names it.
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Confirm: erasing cannot be undone.
    #[arg(long)]
    yes: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

fn parse_place(text: &str) -> Result<(i16, i64), String> {
    let place = text.split_once(':').and_then(|(lane, n)| Some((lane.parse().ok()?, n.parse().ok()?)));
    place.ok_or_else(|| "give a lane and the number of an entry in it, for example 0:120".to_owned())
}

/// The tenants that have a chain, or should have one because they have usage; always the tenant that is named.
async fn chains(store: &DynStore, tenant: Option<&TenantId>) -> anyhow::Result<BTreeSet<TenantId>> {
    if let Some(tenant) = tenant {
        return Ok(BTreeSet::from([tenant.clone()]));
    }
    let today = store.now().await?.date_naive();
    let ever = UsageFilter { tenant: None, owner: None, from: NaiveDate::default(), to: today };
    let mut tenants: BTreeSet<TenantId> =
        store.usage(&ever).await?.into_iter().map(|row| row.key.tenant).collect();
    tenants.extend(store.chain_heads().await?.into_iter().map(|head| head.tenant));
    Ok(tenants)
}

pub(super) async fn audit(command: AuditCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    let (_, store) = open(&sources).await?;
    match command {
        AuditCommand::Verify { tenant, json } => {
            let mut sound = true;
            let mut found = Vec::new();
            for tenant in chains(&store, tenant.as_ref()).await? {
                let chain = verify(&*store, &tenant, |_, _| {}).await?;
                sound &= chain.faults.is_empty();
                if json {
                    found.push(chain_json(&chain));
                } else {
                    print_chain(&chain);
                }
            }
            if json {
                print(&json!({ "sound": sound, "chains": found }))?;
            } else if sound {
                say!("sound");
            }
            Ok(ExitCode::from(u8::from(!sound)))
        }
        AuditCommand::Export { tenant, after } => {
            for tenant in chains(&store, tenant.as_ref()).await? {
                verify(&*store, &tenant, |previous, entry| {
                    if after.iter().any(|(lane, n)| *lane == entry.lane && entry.n <= *n) {
                        return;
                    }
                    let line = json!({
                        "tenant": tenant, "lane": entry.lane, "n": entry.n, "at": entry.at,
                        "execution": entry.execution, "previous": previous, "hash": entry.hash,
                        "bodySha256": entry.body_sha256, "body": entry.body,
                    });
                    say!("{line}");
                })
                .await?;
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn chain_json(chain: &Chain) -> Value {
    let lane = |head: &ChainHead| json!({ "lane": head.lane, "from": head.anchor_n + 1, "to": head.n, "hash": head.hash });
    let fault = |fault: &Fault| {
        let (lane, n) = fault.place.unzip();
        json!({ "lane": lane, "n": n, "execution": fault.execution, "what": fault.what })
    };
    json!({
        "tenant": chain.tenant, "lanes": chain.lanes.iter().map(lane).collect::<Vec<_>>(), "entries": chain.entries,
        "erased": chain.erased, "faults": chain.faults.iter().map(fault).collect::<Vec<_>>(),
    })
}

fn print_chain(chain: &Chain) {
    let erased = if chain.erased > 0 { format!(", {} erased", chain.erased) } else { String::new() };
    say!("{}: {} entries{erased}", chain.tenant, chain.entries);
    for head in &chain.lanes {
        say!("  lane {}: from {}, head {} {}", head.lane, head.anchor_n + 1, head.n, head.hash);
    }
    for fault in &chain.faults {
        let place = fault.place.map_or(String::new(), |(lane, n)| format!("lane {lane}, entry {n}: "));
        let run = fault.execution.map_or(String::new(), |id| format!(" (execution {id})"));
        say!("  {place}{}{run}", fault.what);
    }
}

pub(super) async fn tenants(command: TenantsCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    let TenantsCommand::Erase(Erase { tenant, principal, yes, json }) = command;
    if !yes {
        bail!("this cannot be undone; say --yes to erase it");
    }
    let (config, store) = open(&sources).await?;
    let filter =
        ContextFilter { tenant: Some(tenant.clone()), limit: Some(100_000), ..ContextFilter::default() };
    let mut ended = 0;
    for row in store.contexts(&filter).await? {
        if principal.as_ref().is_some_and(|principal| row.key.owner.as_str() != principal) {
            continue;
        }
        let reason = EndReason::Manual;
        let end = End { tenant: tenant.clone(), context: row.id, epoch: None, reason, error: None };
        ended += u32::from(store.end(&end, &config.limits).await?);
    }
    let objects = Objects::open(&config.objects)?;
    let results = results_of_workflows(&objects, &store, &tenant, principal.as_deref());
    let results =
        results.await.context("nothing was erased; repeat the command when the object store answers")?;
    let body = store.erase(&tenant, principal.as_deref()).await?;
    let mut answer: Value = serde_json::from_str(&body)?;
    let answer = answer["erasure"].take();
    let outputs = objects_of_the_erased(&objects, &store, &tenant).await.context(
        "the rows are erased, and some of their outputs and files are left; repeat the command when the object store answers",
    )?;
    let expired = objects.remove_parts_before(Clock::system().now() - LIFE).await.context(
        "the rows are erased, and parts of uploads may be left; repeat the command when the object store answers",
    )?;
    let objects = results + outputs;
    let answer = json!({
        "tenant": tenant, "ended": ended, "erased": answer, "objects": objects, "expiredUploadParts": expired,
    });
    show(&answer, json)?;
    Ok(ExitCode::SUCCESS)
}

/// Removes the large results of workflows, which nothing refers to once their rows are erased; returns how many.
async fn results_of_workflows(
    objects: &Objects,
    store: &DynStore,
    tenant: &TenantId,
    principal: Option<&str>,
) -> anyhow::Result<usize> {
    let mut removed = 0;
    for row in store.workflows(Some(tenant), None, false, u32::MAX).await? {
        if principal.is_none_or(|name| row.principal == name || row.key.owner.as_str() == name) {
            removed += objects.remove_below(&row.id.to_string()).await?;
        }
    }
    Ok(removed)
}

/// Removes the objects of runs whose entries were erased, now or before; returns how many. The chain still names those runs.
async fn objects_of_the_erased(
    objects: &Objects,
    store: &DynStore,
    tenant: &TenantId,
) -> anyhow::Result<usize> {
    let mut removed = 0;
    let mut heads = store.chain_heads().await?;
    heads.retain(|head| head.tenant == *tenant);
    for head in heads {
        let mut after = head.anchor_n;
        loop {
            let entries = store.chain(tenant, head.lane, after, 500).await?;
            let Some(last) = entries.last() else { break };
            after = last.n;
            for execution in
                entries.iter().filter(|entry| entry.body.is_none()).filter_map(|entry| entry.execution)
            {
                removed += objects.remove_below(&execution.to_string()).await?;
            }
        }
    }
    Ok(removed)
}
