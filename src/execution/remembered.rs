//! Contexts that this replica serves or served lately, for the time when the database is away.
//!
//! A hint, never the truth: while the database answers, only the turns here count. When it does not, a context that
//! this replica has served within its time to live goes on being served by it; no other replica can ask for it either.
//! Every run of this replica holds its key's turn, so that runs the database knows of and runs it does not know of yet
//! go one at a time too.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chrono::TimeDelta;
use tokio::time::Instant;

use crate::domain::{ContextId, ContextKey, lock};
use crate::store::{ContextRow, Placeholders};

/// Contexts that are remembered at most; the one longest unused goes first.
const MAX: usize = 1_000;

/// Contexts that are known to be this replica's alone. Beyond this many, all are looked at again.
const MAX_ALONE: usize = 100_000;

/// The right to run on a key, within this replica.
pub(super) type Turn = Arc<tokio::sync::Mutex<()>>;

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    entries: Mutex<HashMap<ContextKey, Entry>>,
    /// Contexts that have been this replica's alone since it made sure that nothing of another's runs in them.
    alone: Mutex<HashSet<ContextId>>,
}

#[derive(Debug)]
struct Entry {
    row: ContextRow,
    used: Instant,
    /// The database does not know of the last use: what it says next may come as a surprise to those who used it.
    is_offline: bool,
    /// Such a context that another replaced, until a caller has been notified.
    replaced: Option<ContextId>,
    /// The context has ended.
    is_gone: bool,
    turn: Turn,
    numbers: Placeholders,
}

impl Remembered {
    fn lock(&self) -> MutexGuard<'_, HashMap<ContextKey, Entry>> {
        lock(&self.entries)
    }

    /// Whether code of another replica may run in this context's sandbox, as far as this one knows.
    pub(super) fn may_be_shared(&self, context: ContextId) -> bool {
        !lock(&self.alone).contains(&context)
    }

    /// This replica made the sandbox, or has made sure that nothing else runs in it.
    pub(super) fn is_alone_on(&self, context: ContextId) {
        let mut alone = lock(&self.alone);
        if alone.len() >= MAX_ALONE {
            alone.clear();
        }
        alone.insert(context);
    }

    /// Other replicas may have taken what was this one's.
    pub(super) fn lost_its_lease(&self) {
        lock(&self.alone).clear();
    }

    /// A run is served on this context, or has just been; `is_offline`: without a lease from the database. Gives the turn of
    /// its key.
    pub(super) fn keep(&self, row: &ContextRow, is_offline: bool) -> Turn {
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(&row.key) {
            if entry.row.id != row.id {
                entry.numbers.clear();
                if entry.is_offline {
                    entry.replaced = Some(entry.row.id);
                }
            }
            (entry.row, entry.used) = (row.clone(), Instant::now());
            (entry.is_offline, entry.is_gone) = (is_offline, false);
            return entry.turn.clone();
        }
        if entries.len() >= MAX {
            let idle = entries.iter().filter(|(_, entry)| Arc::strong_count(&entry.turn) == 1);
            if let Some(oldest) = idle.min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone()) {
                entries.remove(&oldest);
            }
        }
        let turn = Turn::default();
        let entry = Entry {
            row: row.clone(),
            used: Instant::now(),
            is_offline,
            replaced: None,
            is_gone: false,
            turn: turn.clone(),
            numbers: Placeholders::new(),
        };
        entries.insert(row.key.clone(), entry);
        turn
    }

    /// The context that this replica used last, of which the database does not know, if another has replaced it: for
    /// the holder of the context, once.
    pub(super) fn take_replaced(&self, key: &ContextKey) -> Option<ContextId> {
        self.lock().get_mut(key)?.replaced.take()
    }

    /// A run on this context is over. A context that the run has lost stays forgotten.
    pub(super) fn used(&self, row: ContextRow) {
        if let Some(entry) = self.lock().get_mut(&row.key)
            && entry.row.id == row.id
            && !entry.is_gone
        {
            (entry.row, entry.used) = (row, Instant::now());
        }
    }

    /// The context has ended. That it was used without a lease from the database is kept until a caller has been notified.
    pub(super) fn forget(&self, key: &ContextKey) {
        let mut entries = self.lock();
        match entries.get_mut(key) {
            Some(entry) if entry.is_offline || entry.replaced.is_some() => entry.is_gone = true,
            _ => drop(entries.remove(key)),
        }
    }

    /// Forgets a context, unless a run of this replica is on it. `false`: one is.
    pub(super) fn let_go(&self, key: &ContextKey, context: ContextId) -> bool {
        let mut entries = self.lock();
        match entries.get_mut(key) {
            Some(entry) if Arc::strong_count(&entry.turn) > 1 => return false,
            Some(entry) if entry.row.id == context => entry.is_gone = true,
            _ => {}
        }
        lock(&self.alone).remove(&context);
        true
    }

    /// The context of a key that was used within `ttl`, as if it had been read now.
    pub(super) fn recall(&self, key: &ContextKey, ttl: Duration) -> Option<ContextRow> {
        let entries = self.lock();
        let entry = entries.get(key).filter(|entry| !entry.is_gone && entry.used.elapsed() < ttl)?;
        let mut row = entry.row.clone();
        row.read_at += TimeDelta::from_std(entry.used.elapsed()).unwrap_or_default();
        Some(row)
    }

    /// The placeholder numbers of a key: what the database has, and what is still to be written.
    pub(super) fn merge_numbers(&self, key: &ContextKey, mut numbers: Placeholders) -> Placeholders {
        if let Some(entry) = self.lock().get_mut(key) {
            if entry.numbers.len() > numbers.len() {
                let known: HashSet<(&str, &str)> =
                    numbers.iter().map(|(kind, hash, _)| (kind.as_str(), hash.as_str())).collect();
                let untold = |(kind, hash, _): &&(String, String, u32)| {
                    !known.contains(&(kind.as_str(), hash.as_str()))
                };
                let untold: Placeholders = entry.numbers.iter().filter(untold).cloned().collect();
                numbers.extend(untold);
            }
            entry.numbers.clone_from(&numbers);
        }
        numbers
    }

    /// A run gave out new placeholder numbers.
    pub(super) fn add_numbers(&self, key: &ContextKey, fresh: &[(String, String, u32)]) {
        if let Some(entry) = self.lock().get_mut(key) {
            entry.numbers.extend_from_slice(fresh);
        }
    }
}
