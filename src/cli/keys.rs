//! `keys`: API keys of callers over HTTP. A key is shown once, when it is created; only a hash is kept.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context, bail};
use chrono::{DateTime, TimeDelta, Utc};
use clap::{Args, Subcommand};
use serde_json::json;

use super::{load, table};
use crate::config::Sources;
use crate::domain::{ApiKey, Clock, Entropy, KeyText, PrincipalKind, Scope, TenantId, Tenants};
use crate::store::DynStore;

#[derive(Debug, Subcommand)]
pub(super) enum KeysCommand {
    /// Create a key and print it; it is shown only once.
    Add(Add),
    /// List keys.
    Ls {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key. This cannot be undone.
    Revoke {
        /// Its id, as `ls` shows it.
        id: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct Add {
    /// A label for people: what the key is for.
    #[arg(long)]
    name: String,
    /// The tenant of its calls. A service's key can do without, and name one in each call.
    #[arg(long, value_name = "ID")]
    tenant: Option<TenantId>,
    /// Make it a service's key: it may act for these tenants, named in each call.
    #[arg(long, value_name = "ID,ID", value_delimiter = ',')]
    tenants: Vec<TenantId>,
    /// Make it a service's key for every present and future tenant.
    #[arg(long, conflicts_with = "tenants")]
    any_tenant: bool,
    /// What it may do: run, read, paths, admin, reveal.
    #[arg(long, value_name = "SCOPE,SCOPE", value_delimiter = ',', default_value = "run,read")]
    scopes: Vec<Scope>,
    /// Days until it expires; never when not set.
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=3650))]
    expires_in_days: Option<u32>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn keys(command: KeysCommand, sources: Sources) -> anyhow::Result<ExitCode> {
    let (config, _) = load(&sources)?;
    let keyring = crate::app::keyring(&config, &Entropy::system())?;
    let store = crate::app::open_store(&config, keyring).await?;
    match command {
        KeysCommand::Add(add) => add_key(&store, add).await?,
        KeysCommand::Ls { json } => list(&store, json).await?,
        KeysCommand::Revoke { id } => {
            if !store.revoke_api_key(&id).await? {
                bail!("there is no key {id}; `pathbox keys ls` lists them");
            }
            say!("revoked {id}; servers notice within seconds");
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn add_key(store: &DynStore, add: Add) -> anyhow::Result<()> {
    let service = add.any_tenant || !add.tenants.is_empty();
    if add.tenant.is_none() && !service {
        bail!("a key needs --tenant, or --tenants or --any-tenant for a service");
    }
    let now = Clock::system().now();
    let text = KeyText::mint(&Entropy::system());
    let key = ApiKey {
        id: text.id().to_owned(),
        name: add.name,
        hash: text.hash(),
        kind: if service { PrincipalKind::Service } else { PrincipalKind::User },
        tenant: add.tenant,
        tenants: match add.any_tenant {
            true => Tenants::Any,
            false => Tenants::Only(add.tenants.into_iter().collect()),
        },
        scopes: add.scopes.into_iter().collect(),
        created_at: now,
        expires_at: add.expires_in_days.map(|days| now + TimeDelta::days(days.into())),
        revoked_at: None,
    };
    store.add_api_key(&key).await.context("the key was not kept")?;
    if add.json {
        say!("{}", json!({ "id": key.id, "key": text.expose() }));
    } else {
        say!("{}", text.expose());
    }
    Ok(())
}

async fn list(store: &DynStore, as_json: bool) -> anyhow::Result<()> {
    let keys = store.api_keys().await?;
    if as_json {
        say!("{}", serde_json::to_string_pretty(&super::shape::shape(&keys)?)?);
        return Ok(());
    }
    let now = Clock::system().now();
    let rows: Vec<[String; 7]> = keys.iter().map(|key| row(key, now)).collect();
    table(&["id", "name", "kind", "tenants", "scopes", "expires", "state"], &rows);
    Ok(())
}

fn row(key: &ApiKey, now: DateTime<Utc>) -> [String; 7] {
    let tenants = match &key.tenants {
        Tenants::Any => "any".to_owned(),
        Tenants::Only(listed) => {
            let all: BTreeSet<&str> = key.tenant.iter().chain(listed).map(TenantId::as_str).collect();
            all.into_iter().collect::<Vec<_>>().join(",")
        }
    };
    let scopes: Vec<&str> = key.scopes.iter().map(|scope| scope.as_str()).collect();
    let state = match (key.revoked_at, key.expires_at) {
        (Some(_), _) => "revoked",
        (None, Some(at)) if at <= now => "expired",
        _ => "good",
    };
    [
        key.id.clone(),
        key.name.clone(),
        key.kind.to_string(),
        tenants,
        scopes.join(","),
        key.expires_at.map_or_else(|| "never".to_owned(), |at| at.format("%Y-%m-%d").to_string()),
        state.to_owned(),
    ]
}
