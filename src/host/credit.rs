//! Credit for data from sandboxes that the host buffers: nothing is kept without credit, which is returned when the data is
//! dropped.
//!
//! A sandbox decides how much it sends and its owner how much of that is read, so the data waiting in between is bounded in one
//! place, whatever it is: output on its way, answers and listings, changes of files, frames of interpreters. A credit lives
//! inside of what it pays for. Each sandbox has some room that no other can take, and beyond it what all of them share.

use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes kept of one sandbox.
pub(crate) const HELD: usize = 64 << 20;
/// Of these, what is left for what waits for its turn, so that everything else can never keep it out.
pub(crate) const WAITING: usize = 16 << 20;
/// Of these, what is the sandbox's whatever others do.
const OWN: usize = 8 << 20;
/// Bytes kept of all sandboxes beyond what is their own.
const SHARED: usize = 512 << 20;
/// What a thing costs besides its bytes.
pub(crate) const THING: usize = 64;

static FOR_ALL: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(SHARED)));

/// The account of one sandbox. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    held: Arc<Semaphore>,
    shared: Arc<Semaphore>,
}

/// Room for some bytes, until it is dropped.
#[derive(Debug)]
pub(crate) struct Credit {
    held: OwnedSemaphorePermit,
    shared: Option<OwnedSemaphorePermit>,
}

/// Something with the credit for it.
#[derive(Debug)]
pub struct Held<T> {
    value: T,
    credit: Option<Credit>,
}

impl Default for Account {
    fn default() -> Self {
        Self::sharing(Arc::clone(&FOR_ALL))
    }
}

impl Account {
    fn sharing(shared: Arc<Semaphore>) -> Self {
        Self { held: Arc::new(Semaphore::new(HELD)), shared }
    }

    /// Bytes that are not lent.
    pub(crate) fn left(&self) -> usize {
        self.held.available_permits()
    }

    /// Room for this many bytes, if there is some now.
    pub(crate) fn take(&self, bytes: usize) -> Option<Credit> {
        if self.left() < bytes + WAITING {
            return None;
        }
        let held = Arc::clone(&self.held).try_acquire_many_owned(count(bytes)).ok()?;
        let shared = match self.is_own() {
            true => None,
            false => Some(Arc::clone(&self.shared).try_acquire_many_owned(count(bytes)).ok()?),
        };
        Some(Credit { held, shared })
    }

    /// Room for this many bytes, at most [`WAITING`], when there is some. A caller may not wait while it holds a part of what is
    /// waited for: a whole thing is paid at once.
    pub(crate) async fn wait(&self, bytes: usize) -> Credit {
        // Neither is ever closed.
        let acquire = async |from: &Arc<Semaphore>| loop {
            if let Ok(permit) = Arc::clone(from).acquire_many_owned(count(bytes)).await {
                return permit;
            }
        };
        let held = acquire(&self.held).await;
        let shared = if self.is_own() { None } else { Some(acquire(&self.shared).await) };
        Credit { held, shared }
    }

    fn is_own(&self) -> bool {
        self.left() >= HELD - OWN
    }
}

impl Credit {
    /// Adds another one of the same account.
    pub(crate) fn add(&mut self, more: Self) {
        self.held.merge(more.held);
        match (&mut self.shared, more.shared) {
            (Some(shared), Some(more)) => shared.merge(more),
            (shared, more @ Some(_)) => *shared = more,
            (_, None) => {}
        }
    }
}

impl<T> Held<T> {
    /// With its credit, or without one for what costs nothing.
    pub(crate) fn new(value: T, credit: Option<Credit>) -> Self {
        Self { value, credit }
    }

    /// Without its credit: it is kept no longer, or someone else pays.
    pub(crate) fn into_inner(self) -> T {
        self.value
    }

    /// The two of it.
    pub(crate) fn into_parts(self) -> (T, Option<Credit>) {
        (self.value, self.credit)
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl AsRef<[u8]> for Held<bytes::BytesMut> {
    fn as_ref(&self) -> &[u8] {
        &self.value
    }
}

fn count(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_of_a_sandbox_is_returned_when_its_account_ends() {
        let account = Account::sharing(Arc::new(Semaphore::new(SHARED)));
        let mut held = account.take(HELD - WAITING).expect("fits");
        assert!(account.take(1).is_none(), "the rest is for what waits");
        assert!(futures::FutureExt::now_or_never(account.wait(WAITING)).is_some());
        drop(std::mem::replace(&mut held, account.take(0).expect("nothing costs nothing")));
        let (first, second) = (account.take(9).expect("fits"), account.take(1).expect("fits"));
        held.add(first);
        held.add(second);
        assert_eq!(account.left(), HELD - 10);
        drop(held);
        assert_eq!(account.left(), HELD);
    }

    #[test]
    fn other_sandboxes_can_take_only_shared_credit() {
        let shared = Arc::new(Semaphore::new(HELD));
        let [greedy, other, third] = [0; 3].map(|_| Account::sharing(Arc::clone(&shared)));
        let held: Vec<Credit> = std::iter::from_fn(|| greedy.take(1 << 20)).collect();
        let more: Vec<Credit> = std::iter::from_fn(|| other.take(1 << 20)).collect();
        assert_eq!(held.len(), (HELD - WAITING) >> 20);
        assert_eq!(more.len(), (OWN + HELD - (HELD - WAITING - OWN)) >> 20, "its own, and what was left");
        let own: Vec<Credit> = std::iter::from_fn(|| third.take(1 << 20)).collect();
        assert_eq!(own.len(), OWN >> 20);
        drop((held, more, own));
        assert_eq!(shared.available_permits(), HELD);
    }

    #[tokio::test]
    async fn a_waiter_continues_when_credit_is_returned() {
        let account = Account::sharing(Arc::new(Semaphore::new(SHARED)));
        let held = account.wait(HELD - 1).await;
        let next = account.wait(2);
        tokio::pin!(next);
        assert!(futures::poll!(next.as_mut()).is_pending());
        drop(held);
        next.await;
    }
}
