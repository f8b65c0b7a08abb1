//! Contexts that this replica served lately, for the time when the database is away.
//!
//! A hint, never the truth: while the database answers, nothing here is looked at. When it does not, a context that
//! this replica has served within its time to live goes on being served by it; no other replica can serve it either.
//! One run at a time holds here as well, by a lock for each key.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::domain::ContextKey;
use crate::store::ContextRow;

/// Contexts that are remembered at most; the one longest unused goes first.
const MAX: usize = 1_000;

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct Remembered(Mutex<HashMap<ContextKey, Entry>>);

#[derive(Debug)]
struct Entry {
    row: ContextRow,
    used: Instant,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Remembered {
    /// A run has just been served on this context.
    pub(super) fn keep(&self, row: &ContextRow) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= MAX
            && !entries.contains_key(&row.key)
            && let Some(oldest) =
                entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone())
        {
            entries.remove(&oldest);
        }
        let turn = entries.get(&row.key).map(|entry| entry.turn.clone()).unwrap_or_default();
        entries.insert(row.key.clone(), Entry { row: row.clone(), used: Instant::now(), turn });
    }

    /// The context is over.
    pub(super) fn forget(&self, key: &ContextKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// The context of a key that was used within `ttl`, with the right to run on it; waits for its turn.
    pub(super) async fn take(
        &self,
        key: &ContextKey,
        ttl: Duration,
    ) -> Option<(ContextRow, OwnedMutexGuard<()>)> {
        let (row, turn) = {
            let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = entries.get(key).filter(|entry| entry.used.elapsed() < ttl)?;
            (entry.row.clone(), entry.turn.clone())
        };
        Some((row, turn.lock_owned().await))
    }
}
