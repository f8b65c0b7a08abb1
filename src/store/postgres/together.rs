//! Calls of one kind that share a transaction. A call that finds fewer than two in flight goes at once and alone; calls that
//! arrive meanwhile gather, and go together as soon as fewer than two are in flight. So two callers never wait, and a crowd
//! costs the database little more than a few callers do: a statement's start costs as much for one row as for thirty.
//!
//! The surprise: nothing here may make a call wait for another one that is stuck. One that takes long gives up its turn and
//! goes on without it.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::domain::lock;

/// Others wait for this many calls of a group, whether each goes alone or several do together: of two callers one may wait for the
/// database's disk while the other one is worked on. With more, less goes together, and the sessions drive each other out of the
/// processor's caches.
const UNDER_WAY: usize = 2;
/// Calls that go together at most.
const MOST: usize = 64;
/// Calls do not wait for one that takes longer. On a disk as slow as that, more of them share a sync.
const PATIENCE: Duration = Duration::from_millis(20);

/// What may go together.
pub(super) trait Calls: 'static {
    /// What calls have in common that go together.
    type Group: Eq + Hash + Clone + Send;
    /// A call.
    type Ask: Send;
    /// What it gives.
    type Answer: Send;
}

/// Does calls together: an answer each, or `None` for one that has to go alone.
type Go<C> = Arc<
    dyn Fn(Vec<<C as Calls>::Ask>) -> BoxFuture<'static, Vec<Option<<C as Calls>::Answer>>> + Send + Sync,
>;

/// Calls of one kind, in groups whose calls may go together. Cheap to clone.
pub(super) struct Together<C: Calls>(Arc<Mutex<HashMap<C::Group, Group<C>>>>);

type Waiting<C> = (<C as Calls>::Ask, oneshot::Sender<Answer<C>>);

struct Group<C: Calls> {
    /// Calls, not transactions.
    under_way: usize,
    waiting: Vec<Waiting<C>>,
}

enum Answer<C: Calls> {
    Done(C::Answer),
    Alone(Option<Turn<C>>),
}

/// The right to be on the way. When it is dropped, those that wait go together.
pub(super) struct Turn<C: Calls> {
    calls: Together<C>,
    group: C::Group,
    go: Go<C>,
    /// The number of calls that share it.
    count: usize,
}

impl<C: Calls> Together<C> {
    /// The answer to a call that went together with others.
    ///
    /// # Errors
    /// It has to go alone, with its turn if it has one.
    pub(super) async fn join(
        &self,
        group: C::Group,
        ask: C::Ask,
        go: Go<C>,
    ) -> Result<C::Answer, Option<Turn<C>>> {
        let answer = {
            let mut groups = lock(&self.0);
            let calls =
                groups.entry(group.clone()).or_insert_with(|| Group { under_way: 0, waiting: Vec::new() });
            if calls.under_way < UNDER_WAY {
                calls.under_way += 1;
                None
            } else {
                let (sender, answer) = oneshot::channel();
                calls.waiting.push((ask, sender));
                Some(answer)
            }
        };
        let Some(answer) = answer else {
            return Err(Some(Turn { calls: self.clone(), group, go, count: 1 }));
        };
        match answer.await {
            Ok(Answer::Done(done)) => Ok(done),
            Ok(Answer::Alone(turn)) => Err(turn),
            Err(_) => Err(None),
        }
    }

    /// Takes note that `back` calls have returned. Takes those that wait and whose callers are still there, unless enough are on their way.
    fn next(&self, group: &C::Group, back: usize) -> Vec<Waiting<C>> {
        let mut groups = lock(&self.0);
        let Some(calls) = groups.get_mut(group) else { return Vec::new() };
        calls.under_way -= back;
        let mut taken = Vec::new();
        if calls.under_way < UNDER_WAY {
            calls.waiting.retain(|(_, answer)| !answer.is_closed());
            taken.extend(calls.waiting.drain(..calls.waiting.len().min(MOST)));
            calls.under_way += taken.len();
        }
        if calls.under_way == 0 {
            groups.remove(group);
        }
        taken
    }
}

impl<C: Calls> Turn<C> {
    /// Waits for a call that has its turn, and gives the turn up when that takes long.
    pub(super) async fn during<T>(turn: Option<Self>, call: impl Future<Output = T>) -> T {
        let Some(turn) = turn else { return call.await };
        tokio::pin!(call);
        tokio::select! {
            biased;
            done = &mut call => done,
            () = tokio::time::sleep(PATIENCE) => {
                drop(turn);
                call.await
            }
        }
    }

    async fn all(self, waiting: Vec<Waiting<C>>) {
        let (asks, answers): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
        let work = (self.go)(asks);
        let mut done = Self::during(Some(self), work).await.into_iter();
        // The next ones go first, before the callers of these take the processor.
        tokio::task::yield_now().await;
        for answer in answers {
            let said = done.next().flatten().map_or(Answer::Alone(None), Answer::Done);
            let _ = answer.send(said);
        }
    }
}

impl<C: Calls> Drop for Turn<C> {
    fn drop(&mut self) {
        let mut waiting = self.calls.next(&self.group, self.count);
        if waiting.is_empty() {
            return;
        }
        let (calls, group, go) = (self.calls.clone(), self.group.clone(), self.go.clone());
        let turn = Self { calls, group, go, count: waiting.len() };
        if waiting.len() > 1 {
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(turn.all(waiting));
            }
            return;
        }
        if let Some((_, answer)) = waiting.pop() {
            let _ = answer.send(Answer::Alone(Some(turn)));
        }
    }
}

impl<C: Calls> Clone for Together<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: Calls> Default for Together<C> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<C: Calls> fmt::Debug for Together<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Together").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    struct Doubling;

    impl Calls for Doubling {
        type Group = &'static str;
        type Ask = u32;
        type Answer = u32;
    }

    fn go(sizes: Arc<Mutex<Vec<usize>>>) -> Go<Doubling> {
        Arc::new(move |asks: Vec<u32>| {
            lock(&sizes).push(asks.len());
            let doubled = asks.into_iter().map(|ask| (ask != 13).then_some(ask * 2)).collect();
            std::future::ready(doubled).boxed()
        })
    }

    type Turns = Vec<Turn<Doubling>>;

    /// As many as may be on their way.
    async fn all_turns(calls: &Together<Doubling>, go: &Go<Doubling>) -> Turns {
        let mut turns = Vec::new();
        for ask in 0..UNDER_WAY as u32 {
            turns.extend(calls.join("a", ask, go.clone()).await.unwrap_err());
        }
        assert_eq!(turns.len(), UNDER_WAY, "each goes alone");
        turns
    }

    #[tokio::test]
    async fn calls_that_arrive_while_enough_are_in_flight_are_batched() {
        let (calls, sizes) = (Together::<Doubling>::default(), Arc::default());
        let go = go(Arc::clone(&sizes));
        let mut turns = all_turns(&calls, &go).await;
        let other = calls.join("b", 3, go.clone()).await.unwrap_err();
        assert!(other.is_some(), "another group has turns of its own");
        let mut waiting: Vec<_> = (10..15).map(|ask| Box::pin(calls.join("a", ask, go.clone()))).collect();
        for one in &mut waiting {
            assert!(futures::poll!(one).is_pending());
        }
        drop(waiting.pop()); // its caller has gone
        drop(turns.pop());
        let mut said = Vec::new();
        for one in waiting {
            said.push(one.await.map_err(|turn| turn.is_some()));
        }
        assert_eq!(said, [Ok(20), Ok(22), Ok(24), Err(false)], "one of them has to go alone");
        assert_eq!(*lock(&sizes), [4]);
        // One alone gets the turn itself.
        turns.extend(calls.join("a", 4, go.clone()).await.unwrap_err());
        assert_eq!(turns.len(), UNDER_WAY);
        let mut alone = Box::pin(calls.join("a", 5, go.clone()));
        assert!(futures::poll!(&mut alone).is_pending());
        drop(turns.pop());
        let alone = alone.await.unwrap_err();
        assert!(alone.is_some());
        drop((turns, alone, other));
        assert!(lock(&calls.0).is_empty());
        assert_eq!(*lock(&sizes), [4]);
    }

    #[tokio::test]
    async fn calls_gather_while_a_batch_is_in_flight() {
        let (calls, sizes) = (Together::<Doubling>::default(), Arc::default());
        let go = go(Arc::clone(&sizes));
        let mut turns = all_turns(&calls, &go).await;
        let mut waiting: Vec<_> = (20..25).map(|ask| Box::pin(calls.join("a", ask, go.clone()))).collect();
        for one in &mut waiting[..3] {
            assert!(futures::poll!(one).is_pending());
        }
        // The three are on their way from here on, and begin when this test waits.
        drop(turns.pop());
        drop(turns);
        for one in &mut waiting[3..] {
            assert!(futures::poll!(one).is_pending(), "three are on their way");
        }
        let mut said = Vec::new();
        for one in waiting {
            said.push(one.await.map_err(|turn| turn.is_some()));
        }
        assert_eq!(said, [40, 42, 44, 46, 48].map(Ok));
        assert_eq!(*lock(&sizes), [3, 2]);
        assert!(lock(&calls.0).is_empty());
    }

    #[tokio::test]
    async fn calls_that_are_stuck_hold_up_no_other() {
        let calls = Together::<Doubling>::default();
        let go = go(Arc::default());
        let turns = all_turns(&calls, &go).await;
        let stuck: Vec<_> = turns
            .into_iter()
            .map(|turn| tokio::spawn(Turn::during(Some(turn), std::future::pending::<()>())))
            .collect();
        let (one, two) = tokio::join!(calls.join("a", 3, go.clone()), calls.join("a", 4, go.clone()));
        let said = [one, two].map(|said| said.map_err(|turn| turn.is_some()));
        assert_eq!(said, [Ok(6), Ok(8)]);
        stuck.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
