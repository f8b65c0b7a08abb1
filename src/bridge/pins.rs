//! What was known of each server's tools, as hashes: a server may change what its tools say of themselves after somebody looked.
//!
//! The first list of a server is taken as it is. A tool that says something else later, or was not there, is a change: it is
//! logged, and blocks the tool until it is accepted where the server is `pinned`. The set is pinned and not only each tool:
//! else a tool under a new name would be no one's change.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::domain::hex;

/// Server to tool to hash.
type Known = BTreeMap<String, BTreeMap<String, String>>;

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

#[derive(Debug)]
pub(super) struct Pins {
    file: Option<PathBuf>,
    known: Mutex<Known>,
}

impl Pins {
    pub(super) fn at(file: Option<PathBuf>) -> Self {
        Self { file, known: Mutex::default() }
    }

    /// What is not as it was. A server that was never seen is known from now on.
    pub(super) fn compare(&self, server: &str, now: BTreeMap<String, String>, pinned: bool) -> Vec<Change> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.read(&mut known);
        let Some(before) = known.get(server) else {
            known.insert(server.to_owned(), now);
            if let Err(error) = self.write(&known) {
                tracing::warn!(error = %error, "hashes of tool descriptions could not be kept");
            }
            return Vec::new();
        };
        let change = |tool: &String, what, blocked| Change {
            server: server.to_owned(),
            tool: tool.clone(),
            what,
            blocked,
        };
        let appeared = now.iter().filter_map(|(tool, hash)| match before.get(tool) {
            None => Some(change(tool, "new", pinned)),
            Some(old) if old != hash => Some(change(tool, "changed", pinned)),
            Some(_) => None,
        });
        let gone =
            before.keys().filter(|tool| !now.contains_key(*tool)).map(|tool| change(tool, "gone", false));
        appeared.chain(gone).collect()
    }

    /// Takes a server's tools as they are now.
    pub(super) fn accept(&self, server: &str, now: BTreeMap<String, String>) -> std::io::Result<usize> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        self.read(&mut known);
        let count = now.len();
        known.insert(server.to_owned(), now);
        self.write(&known)?;
        Ok(count)
    }

    /// The file decides: another process may have accepted something.
    fn read(&self, known: &mut Known) {
        let text = self.file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        if let Some(read) = text.and_then(|text| serde_json::from_str(&text).ok()) {
            *known = read;
        }
    }

    fn write(&self, known: &Known) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if let Some(dir) = file.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let part = file.with_extension(format!("part-{}", std::process::id()));
        std::fs::write(&part, serde_json::to_vec_pretty(known)?)?;
        std::fs::rename(&part, file)
    }
}

/// The hash of what a tool says of itself, whatever the order of its members.
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

    fn tools(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(tool, hash)| ((*tool).to_owned(), (*hash).to_owned())).collect()
    }

    #[test]
    fn the_first_list_is_taken_and_each_later_change_is_named_until_it_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pins.json");
        let pins = Pins::at(Some(file.clone()));
        assert!(pins.compare("a", tools(&[("x", "1"), ("y", "1")]), true).is_empty());
        let now = tools(&[("x", "2"), ("z", "1")]);
        let seen = |pins: &Pins| {
            let changes = pins.compare("a", now.clone(), true);
            changes.into_iter().map(|c| (c.tool, c.what, c.blocked)).collect::<Vec<_>>()
        };
        let expected =
            [("x".into(), "changed", true), ("z".into(), "new", true), ("y".into(), "gone", false)];
        assert_eq!(seen(&pins), expected);
        assert_eq!(seen(&Pins::at(Some(file.clone()))), expected, "after a restart too");
        Pins::at(Some(file)).accept("a", now.clone()).unwrap();
        assert_eq!(seen(&pins), [], "accepted by another process");
    }
}
