//! What was known of each server's tools, as hashes: a server may change what its tools say of themselves after someone looked.
//!
//! The first list of a server is taken as it is. A tool that says something else later, or was not there, is a change: it is
//! logged, and blocks the tool until it is accepted where the server is `pinned`. The set is pinned and not only each tool:
//! else a tool under a new name would be no one's change. All of it is kept where every replica finds it; where it cannot be
//! read, nothing of a `pinned` server can be called that was not known here before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Server;
use crate::domain::{Secret, TenantId, hex, lock};

/// Tool to hash.
pub(super) type Hashes = BTreeMap<String, String>;

/// Where what is remembered of servers is kept: hashes of their tools, and refresh tokens that replaced those of the settings.
/// `scope` is empty for a server that every tenant has, else the tenant.
#[async_trait]
pub trait ToolStore: Send + Sync + std::fmt::Debug {
    /// What was accepted of a server: its digest, and the text unless that digest is `known`.
    ///
    /// # Errors
    /// Why it cannot be read.
    async fn pins(
        &self,
        scope: &str,
        server: &str,
        known: Option<&str>,
    ) -> Result<Option<(String, Option<String>)>, String>;

    /// Keeps the first list of a server, or the one that replaces it. Gives what holds then.
    ///
    /// # Errors
    /// Why it cannot be written.
    async fn pin(&self, scope: &str, server: &str, pins: &str, replace: bool) -> Result<String, String>;

    /// The refresh token that was kept last under this name.
    ///
    /// # Errors
    /// Why it cannot be read.
    async fn refresh_token(&self, name: &str) -> Result<Option<Secret>, String>;

    /// Keeps a refresh token, sealed, instead of the one before.
    ///
    /// # Errors
    /// Why it cannot be written.
    async fn keep_refresh_token(&self, name: &str, token: &Secret) -> Result<(), String>;
}

/// A tool that is not as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Its server.
    pub server: String,
    /// The tool.
    pub tool: String,
    /// `new`, `changed` or `gone`.
    pub what: &'static str,
    /// Whether it is blocked until it is accepted.
    pub blocked: bool,
}

/// What was accepted of a server.
#[derive(Debug, Clone)]
pub(super) struct Pinned {
    hashes: Arc<Hashes>,
    pub(super) digest: String,
}

impl Pinned {
    fn read(text: &str) -> Self {
        Self {
            hashes: Arc::new(serde_json::from_str(text).unwrap_or_default()),
            digest: hex(&Sha256::digest(text)),
        }
    }

    /// What has changed.
    pub(super) fn compare(&self, server: &Server, now: &Hashes) -> Vec<Change> {
        let change = |tool: &String, what, blocked| Change {
            server: server.name.clone(),
            tool: tool.clone(),
            what,
            blocked,
        };
        let appeared = now.iter().filter_map(|(tool, hash)| match self.hashes.get(tool) {
            None => Some(change(tool, "new", server.pinned)),
            Some(old) if old != hash => Some(change(tool, "changed", server.pinned)),
            Some(_) => None,
        });
        let gone = self.hashes.keys().filter(|tool| !now.contains_key(*tool));
        appeared.chain(gone.map(|tool| change(tool, "gone", false))).collect()
    }
}

/// What is known here, and where it is kept.
#[derive(Debug)]
pub(super) struct Pins {
    store: Option<Arc<dyn ToolStore>>,
    known: Mutex<BTreeMap<(String, String), Pinned>>,
}

impl Pins {
    pub(super) fn new(store: Option<Arc<dyn ToolStore>>) -> Self {
        Self { store, known: Mutex::default() }
    }

    /// What was accepted of a server; `None`: it was never listed. Of one that is not `pinned` what is known here will do:
    /// its changes block nothing.
    pub(super) async fn of(&self, server: &Server, tenant: &TenantId) -> Result<Option<Pinned>, String> {
        let key = key(server, tenant);
        let known = lock(&self.known).get(&key).cloned();
        let Some(store) = &self.store else { return Ok(known) };
        if known.is_some() && !server.pinned {
            return Ok(known);
        }
        match store.pins(&key.0, &key.1, known.as_ref().map(|known| known.digest.as_str())).await {
            Ok(Some((_, Some(text)))) => Ok(Some(self.keep(key, &text))),
            Ok(Some((_, None))) => Ok(known),
            Ok(None) => Ok(None),
            Err(why) if known.is_none() => Err(why),
            Err(why) => {
                tracing::warn!(tool.server = %server.name, error = %why, "accepted tools cannot be read; those known before stay accepted");
                Ok(known)
            }
        }
    }

    /// Keeps a server's tools: its first list, or one that replaces what was.
    pub(super) async fn pin(
        &self,
        server: &Server,
        tenant: &TenantId,
        now: &Hashes,
        replace: bool,
    ) -> Result<Pinned, String> {
        let key = key(server, tenant);
        let text = serde_json::to_string(now).map_err(|error| error.to_string())?;
        let holds = match &self.store {
            Some(store) => store.pin(&key.0, &key.1, &text, replace).await?,
            None => text,
        };
        Ok(self.keep(key, &holds))
    }

    fn keep(&self, key: (String, String), text: &str) -> Pinned {
        let pinned = Pinned::read(text);
        lock(&self.known).insert(key, pinned.clone());
        pinned
    }
}

/// Scope and name of a server. Servers of one name for several tenants are several servers.
fn key(server: &Server, tenant: &TenantId) -> (String, String) {
    let scope = if server.tenants.is_empty() { String::new() } else { tenant.to_string() };
    (scope, server.name.clone())
}

/// The hash of a tool's own description, whatever the order of its members.
pub(super) fn hash(parts: &[&Value]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        let text = sorted(part).to_string();
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text.as_bytes());
    }
    hex(&digest.finalize())
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members: BTreeMap<&String, Value> =
                members.iter().map(|(name, value)| (name, sorted(value))).collect();
            Value::Object(members.into_iter().map(|(name, value)| (name.clone(), value)).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(of: &[(&str, &str)]) -> Hashes {
        of.iter().map(|(tool, hash)| ((*tool).to_owned(), (*hash).to_owned())).collect()
    }

    #[tokio::test]
    async fn the_first_list_is_taken_and_each_later_change_is_named_until_it_is_accepted() {
        let (server, tenant) =
            (Server { pinned: true, ..Server::any("a") }, TenantId::parse("acme").unwrap());
        let pins = Pins::new(None);
        assert!(pins.of(&server, &tenant).await.unwrap().is_none(), "never listed");
        let first = hashes(&[("x", "1"), ("y", "1")]);
        assert!(pins.pin(&server, &tenant, &first, false).await.unwrap().compare(&server, &first).is_empty());
        let now = hashes(&[("x", "2"), ("z", "1")]);
        let seen = pins.of(&server, &tenant).await.unwrap().unwrap().compare(&server, &now);
        let seen: Vec<_> = seen.into_iter().map(|c| (c.tool, c.what, c.blocked)).collect();
        let expected =
            [("x".into(), "changed", true), ("z".into(), "new", true), ("y".into(), "gone", false)];
        assert_eq!(seen, expected);
        pins.pin(&server, &tenant, &now, true).await.unwrap();
        assert!(pins.of(&server, &tenant).await.unwrap().unwrap().compare(&server, &now).is_empty());
    }

    /// A store that has an entry and then breaks.
    #[derive(Debug, Default)]
    struct Breaks(Mutex<Option<String>>);

    #[async_trait]
    impl ToolStore for Breaks {
        async fn pins(
            &self,
            _: &str,
            _: &str,
            _: Option<&str>,
        ) -> Result<Option<(String, Option<String>)>, String> {
            let text = lock(&self.0).take().ok_or("the database is away")?;
            Ok(Some(("d".repeat(64), Some(text))))
        }

        async fn pin(&self, _: &str, _: &str, _: &str, _: bool) -> Result<String, String> {
            Err("the database is away".to_owned())
        }

        async fn refresh_token(&self, _: &str) -> Result<Option<Secret>, String> {
            Err("the database is away".to_owned())
        }

        async fn keep_refresh_token(&self, _: &str, _: &Secret) -> Result<(), String> {
            Err("the database is away".to_owned())
        }
    }

    #[tokio::test]
    async fn with_the_store_away_known_pins_hold_and_unknown_ones_are_an_error() {
        let (server, tenant) =
            (Server { pinned: true, ..Server::any("a") }, TenantId::parse("acme").unwrap());
        let first = hashes(&[("x", "1")]);
        let pins = Pins::new(Some(Arc::new(Breaks(Mutex::new(serde_json::to_string(&first).ok())))));
        for _ in 0..2 {
            let known = pins.of(&server, &tenant).await.unwrap().unwrap();
            assert!(known.compare(&server, &first).is_empty());
        }
        let unknown = Pins::new(Some(Arc::new(Breaks::default())));
        assert!(unknown.of(&server, &tenant).await.is_err());
    }
}
