//! Wakes tasks that wait for a context, so that they do not poll the database.
//!
//! A signal is a hint: a task that is woken asks the database, and one that is not asks a little later anyway.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::domain::{ContextKey, hex, lock};

/// Who waits for what, in this process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Signals(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    waiting: Mutex<HashMap<String, Arc<Notify>>>,
    wanted: Notify,
    /// How often keys were said to be gone.
    keys: AtomicU64,
    /// How often to ask while signals arrive, and while they may not.
    pace: Mutex<Duration>,
}

/// A task that listens for other processes; it ends with the last store that knows it.
#[derive(Debug)]
pub(super) struct Listener(pub(super) tokio::task::JoinHandle<()>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A key that is waited for, until this is dropped. Made before the database is asked, so that no signal is missed.
#[derive(Debug)]
pub struct Waiting {
    signals: Signals,
    key: String,
    notify: Arc<Notify>,
}

impl Signals {
    pub(super) fn new(pace: Duration) -> Self {
        Self(Arc::new(Inner {
            waiting: Mutex::new(HashMap::new()),
            wanted: Notify::new(),
            keys: AtomicU64::new(0),
            pace: Mutex::new(pace),
        }))
    }

    /// The name of a key in a signal: a hash, which gives no identifier away.
    pub(super) fn name(key: &ContextKey) -> String {
        let text = format!("{}/{}/{}/{}", key.tenant, key.conversation, key.path, key.owner.as_str());
        hex(&Sha256::digest(text.as_bytes()))
    }

    /// Waits for a key from now on.
    pub fn watch(&self, key: &ContextKey) -> Waiting {
        let key = Self::name(key);
        let mut waiting = lock(&self.0.waiting);
        let notify = waiting.entry(key.clone()).or_default().clone();
        Waiting { signals: self.clone(), key, notify }
    }

    /// Waits until another replica wants a context of this one.
    pub async fn wanted(&self) {
        self.0.wanted.notified().await;
    }

    /// A key may be free.
    pub(super) fn wake(&self, name: &str) {
        let waiting = lock(&self.0.waiting);
        if let Some(notify) = waiting.get(name) {
            notify.notify_one();
            notify.notify_waiters();
        }
    }

    /// Others want contexts of this replica.
    pub(super) fn want(&self) {
        self.0.wanted.notify_one();
    }

    /// API keys were revoked or erased, or may have been while no signals arrived.
    pub(super) fn lose_keys(&self) {
        self.0.keys.fetch_add(1, Ordering::SeqCst);
    }

    /// How often that was so.
    pub(super) fn keys_gone(&self) -> u64 {
        self.0.keys.load(Ordering::SeqCst)
    }

    /// Signals of other processes arrive from now on, or do not: how long to wait for one at most.
    pub(super) fn set_pace(&self, pace: Duration) {
        *lock(&self.0.pace) = pace;
        let waiting = lock(&self.0.waiting);
        waiting.values().for_each(|notify| notify.notify_waiters());
    }
}

impl Waiting {
    /// Waits for as many signals as there are others before this one, or for as long as one may be missing: so a crowd
    /// that waits for one key does not ask all at once.
    pub async fn wait(&self, position: u32) {
        let pace = *lock(&self.signals.0.pace);
        let _ = tokio::time::timeout(pace, async {
            for _ in 0..position.max(1) {
                self.notify.notified().await;
            }
        })
        .await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiting = lock(&self.signals.0.waiting);
        // one in the map, one here
        if Arc::strong_count(&self.notify) <= 2 {
            waiting.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::domain::{ConversationId, Owner, PathId, TenantId};

    fn key(conversation: &str) -> ContextKey {
        ContextKey {
            tenant: TenantId::parse("t").unwrap(),
            owner: Owner::tenant(),
            conversation: ConversationId::parse(conversation).unwrap(),
            path: PathId::main(),
        }
    }

    #[tokio::test]
    async fn a_signal_between_the_question_and_the_wait_is_not_missed_and_only_its_key_wakes() {
        let signals = Signals::new(Duration::from_secs(3600));
        let (mine, other) = (signals.watch(&key("a")), signals.watch(&key("b")));
        signals.wake(&Signals::name(&key("a")));
        assert!(mine.wait(1).now_or_never().is_some());
        assert!(mine.wait(1).now_or_never().is_none(), "one signal wakes once");
        assert!(other.wait(1).now_or_never().is_none());
        signals.wake(&Signals::name(&key("b")));
        assert!(other.wait(2).now_or_never().is_none(), "there is one before it");
        drop((mine, other));
        assert!(signals.0.waiting.lock().unwrap().is_empty());
    }
}
