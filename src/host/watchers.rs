//! Watches on directories whose changes a client fetches now and then, instead of listening to a stream.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;

use super::agent::WatchEvent;
use super::credit::Held;
use crate::domain::lock;

/// Watches of one sandbox at a time.
const MAX_WATCHERS: usize = 64;
/// Changes kept for one that is not fetched; older ones are dropped.
const MAX_CHANGES: usize = 10_000;

/// The watches of one sandbox. Dropping it ends them.
#[derive(Debug, Default)]
pub(crate) struct Watchers(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    watchers: BTreeMap<String, Watcher>,
}

#[derive(Debug)]
struct Watcher {
    path: String,
    with_entry: bool,
    changes: VecDeque<Held<WatchEvent>>,
    task: tokio::task::AbortHandle,
}

/// The changes since the last time.
#[derive(Debug)]
pub(crate) struct Drained {
    pub(crate) path: String,
    pub(crate) with_entry: bool,
    pub(crate) changes: VecDeque<Held<WatchEvent>>,
}

/// As many watches as may be.
#[derive(Debug, thiserror::Error)]
#[error("{MAX_WATCHERS} directories are watched already; remove a watcher first")]
pub(crate) struct WatchersFull;

impl Watchers {
    /// Keeps the changes of a watch until they are fetched. Returns the watcher's id.
    pub(crate) fn add(
        &self,
        path: String,
        with_entry: bool,
        mut changes: mpsc::Receiver<Held<WatchEvent>>,
    ) -> Result<String, WatchersFull> {
        let mut table = lock(&self.0);
        if table.watchers.len() >= MAX_WATCHERS {
            return Err(WatchersFull);
        }
        table.next += 1;
        let id = format!("w{}", table.next);
        let (kept, own) = (Arc::downgrade(&self.0), id.clone());
        let task = tokio::spawn(async move {
            while let Some(change) = changes.recv().await {
                let Some(kept) = kept.upgrade() else { return };
                let mut table = lock(&kept);
                let Some(watcher) = table.watchers.get_mut(&own) else { return };
                if watcher.changes.len() == MAX_CHANGES {
                    watcher.changes.pop_front();
                }
                watcher.changes.push_back(change);
            }
        });
        let task = task.abort_handle();
        table.watchers.insert(id.clone(), Watcher { path, with_entry, changes: VecDeque::new(), task });
        Ok(id)
    }

    /// Takes what a watch has seen.
    pub(crate) fn drain(&self, id: &str) -> Option<Drained> {
        let mut table = lock(&self.0);
        let watcher = table.watchers.get_mut(id)?;
        let changes = std::mem::take(&mut watcher.changes);
        Some(Drained { path: watcher.path.clone(), with_entry: watcher.with_entry, changes })
    }

    /// Ends a watch; `false` when there is no watch with this id.
    pub(crate) fn remove(&self, id: &str) -> bool {
        lock(&self.0).watchers.remove(id).is_some()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}
