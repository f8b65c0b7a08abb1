//! Which sandboxes live, until when, and who may have one more. Pure: the time is an argument, and what a sandbox
//! *is* does not matter here.
//!
//! A sandbox has one absolute end; requests to it never move that. Past its end it is gone for every reader at
//! once, whether or not the sweep has come by: expiry does not depend on a timer being punctual.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::wire::control::State;

/// What a caller said about a sandbox when creating it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    /// The template asked for, as asked.
    pub(crate) template: String,
    /// Free pairs, for the list filter.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Pause instead of kill at the end.
    pub(crate) auto_pause: bool,
    /// Traffic to the paused sandbox wakes it.
    pub(crate) auto_resume: bool,
}

/// One live sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Entry<S> {
    pub(crate) id: String,
    pub(crate) label: Label,
    pub(crate) started_at: DateTime<Utc>,
    /// When it ends (running) or when it is forgotten (paused).
    pub(crate) end_at: DateTime<Utc>,
    /// A paused one is stopped in memory and holds its place in the capacity.
    pub(crate) state: State,
    pub(crate) sandbox: S,
}

/// How a new end relates to the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Move {
    /// Now plus so much, be that earlier or later than before.
    Set,
    /// Now plus so much, but never earlier than before.
    Extend,
}

/// The numbers that bound all sandboxes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Live sandboxes at a time, those being made included.
    pub(crate) max_sandboxes: usize,
    /// From start to end, whatever is asked in between.
    pub(crate) max_life: Duration,
    /// How long a paused one is kept.
    pub(crate) max_pause: Duration,
    /// Of all snapshots.
    pub(crate) snapshot_bytes: u64,
}

/// As many sandboxes live as may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{limit} sandboxes live already; the next end frees one in {next_end_secs} s")]
pub(crate) struct Full {
    pub(crate) limit: usize,
    /// Seconds, at least 1.
    pub(crate) next_end_secs: u64,
}

/// The sandboxes that are due at a moment.
#[derive(Debug)]
pub(crate) struct Due<S> {
    /// Taken out of the ledger; to be killed.
    pub(crate) ended: Vec<Entry<S>>,
    /// Still in the ledger, now marked paused; to be stopped.
    pub(crate) paused: Vec<(String, S)>,
}

/// Which sandboxes a list call wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Query {
    /// All of these pairs must match.
    pub(crate) metadata: Vec<(String, String)>,
    /// `None` is both.
    pub(crate) state: Option<State>,
    pub(crate) template: Option<String>,
    pub(crate) started_after: Option<DateTime<Utc>>,
    pub(crate) ascending: bool,
    /// 1 to 100.
    pub(crate) limit: usize,
    /// Where the page before ended.
    pub(crate) after: Option<Cursor>,
}

/// The last entry of a page: start and id. Pages stay right while sandboxes come and go.
pub(crate) type Cursor = (DateTime<Utc>, String);

/// The table of live sandboxes.
#[derive(Debug)]
pub(crate) struct Ledger<S> {
    bounds: Bounds,
    entries: BTreeMap<String, Entry<S>>,
    /// Places promised to sandboxes that are being made.
    reserved: usize,
}

impl<S: Clone> Ledger<S> {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, entries: BTreeMap::new(), reserved: 0 }
    }

    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Promises a place. Every `Ok` is followed by [`Ledger::insert`] or [`Ledger::release`].
    pub(crate) fn reserve(&mut self, now: DateTime<Utc>) -> Result<(), Full> {
        if self.entries.len() + self.reserved < self.bounds.max_sandboxes {
            self.reserved += 1;
            return Ok(());
        }
        let next = self.entries.values().map(|entry| entry.end_at).min();
        let wait = next.map_or(1, |end| (end - now).num_seconds().max(0) + 1);
        Err(Full { limit: self.bounds.max_sandboxes, next_end_secs: wait.unsigned_abs().max(1) })
    }

    /// Gives a promised place back.
    pub(crate) fn release(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// Fills a promised place. Returns the end.
    pub(crate) fn insert(
        &mut self,
        id: String,
        label: Label,
        sandbox: S,
        now: DateTime<Utc>,
        life: Duration,
    ) -> Entry<S> {
        self.release();
        let end_at = now + life.min(self.bounds.max_life);
        let entry = Entry { id: id.clone(), label, started_at: now, end_at, state: State::Running, sandbox };
        self.entries.insert(id, entry.clone());
        entry
    }

    /// A sandbox that lives. One past its end is gone, unless it pauses at its end.
    pub(crate) fn get(&self, id: &str, now: DateTime<Utc>) -> Option<&Entry<S>> {
        self.entries.get(id).filter(|entry| !entry.is_over(now))
    }

    /// The id of the first sandbox that a test picks out.
    pub(crate) fn find(&self, is_it: impl Fn(&Entry<S>) -> bool) -> Option<String> {
        self.entries.values().find(|entry| is_it(entry)).map(|entry| entry.id.clone())
    }

    /// Takes a sandbox out, whatever its state.
    pub(crate) fn remove(&mut self, id: &str) -> Option<Entry<S>> {
        self.entries.remove(id)
    }

    /// Moves the end of a running sandbox; never past its start plus the longest life.
    pub(crate) fn move_end(
        &mut self,
        id: &str,
        now: DateTime<Utc>,
        life: Duration,
        how: Move,
    ) -> Option<Entry<S>> {
        let last = self.bounds.max_life;
        let entry = self.entries.get_mut(id).filter(|entry| !entry.is_over(now))?;
        if entry.state == State::Paused {
            return None;
        }
        let asked = (now + life).min(entry.started_at + last);
        entry.end_at = match how {
            Move::Set => asked,
            Move::Extend => asked.max(entry.end_at),
        };
        Some(entry.clone())
    }

    /// Marks a running sandbox paused. `None` when it does not exist; `Some(None)` when it is paused already.
    pub(crate) fn pause(&mut self, id: &str, now: DateTime<Utc>) -> Option<Option<S>> {
        let keep = self.bounds.max_pause;
        let entry = self.entries.get_mut(id).filter(|entry| !entry.is_over(now))?;
        if entry.state == State::Paused {
            return Some(None);
        }
        entry.state = State::Paused;
        entry.end_at = now + keep;
        Some(Some(entry.sandbox.clone()))
    }

    /// Marks a paused sandbox running again. A pause does not count as life, so its longest life starts again.
    pub(crate) fn resume(&mut self, id: &str, now: DateTime<Utc>, life: Duration) -> Option<Entry<S>> {
        let life = life.min(self.bounds.max_life);
        let entry = self.entries.get_mut(id).filter(|entry| !entry.is_over(now))?;
        entry.state = State::Running;
        entry.started_at = now;
        entry.end_at = now + life;
        Some(entry.clone())
    }

    /// Sorts out everything whose end has come.
    pub(crate) fn sweep(&mut self, now: DateTime<Utc>) -> Due<S> {
        let mut due = Due { ended: Vec::new(), paused: Vec::new() };
        let over: Vec<String> =
            self.entries.values().filter(|entry| entry.end_at <= now).map(|entry| entry.id.clone()).collect();
        for id in over {
            match self.pause_at_end(&id, now) {
                Some(sandbox) => due.paused.push((id, sandbox)),
                None => due.ended.extend(self.entries.remove(&id)),
            }
        }
        due
    }

    fn pause_at_end(&mut self, id: &str, now: DateTime<Utc>) -> Option<S> {
        let pauses = self.entries.get(id).is_some_and(|e| e.label.auto_pause && e.state == State::Running);
        if pauses { self.pause(id, now).flatten() } else { None }
    }

    /// When the next sweep has something to do.
    pub(crate) fn next_end(&self) -> Option<DateTime<Utc>> {
        self.entries.values().map(|entry| entry.end_at).min()
    }

    /// One page and, unless it is the last, where the next begins.
    pub(crate) fn list(&self, query: &Query, now: DateTime<Utc>) -> (Vec<Entry<S>>, Option<Cursor>) {
        let mut found: Vec<&Entry<S>> =
            self.entries.values().filter(|entry| !entry.is_over(now) && query.wants(entry)).collect();
        found.sort_by_key(|entry| entry.cursor());
        if !query.ascending {
            found.reverse();
        }
        if let Some(after) = &query.after {
            found.retain(|entry| match query.ascending {
                true => entry.cursor() > *after,
                false => entry.cursor() < *after,
            });
        }
        let more = found.len() > query.limit;
        let page: Vec<Entry<S>> = found.into_iter().take(query.limit).cloned().collect();
        let next = page.last().filter(|_| more).map(Entry::cursor);
        (page, next)
    }

    /// How many serve requests now.
    pub(crate) fn running(&self, now: DateTime<Utc>) -> usize {
        self.entries.values().filter(|entry| entry.state == State::Running && !entry.is_over(now)).count()
    }

    /// How many live, and how many of them are paused.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let paused = self.entries.values().filter(|entry| entry.state == State::Paused).count();
        (self.entries.len(), paused)
    }

    /// Takes everything out.
    pub(crate) fn drain(&mut self) -> Vec<Entry<S>> {
        std::mem::take(&mut self.entries).into_values().collect()
    }
}

impl<S> Entry<S> {
    /// Past its end, and not about to be paused instead.
    fn is_over(&self, now: DateTime<Utc>) -> bool {
        let pauses = self.label.auto_pause && self.state == State::Running;
        self.end_at <= now && !pauses
    }

    /// Running, and its end has not come. One that is due to pause no longer serves.
    pub(crate) fn serves(&self, now: DateTime<Utc>) -> bool {
        self.state == State::Running && self.end_at > now
    }

    fn cursor(&self) -> Cursor {
        (self.started_at, self.id.clone())
    }
}

impl Query {
    fn wants<S>(&self, entry: &Entry<S>) -> bool {
        self.metadata.iter().all(|(key, value)| entry.label.metadata.get(key) == Some(value))
            && self.state.is_none_or(|state| entry.state == state)
            && self.template.as_ref().is_none_or(|template| entry.label.template == *template)
            && self.started_after.is_none_or(|after| entry.started_at > after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds {
        max_sandboxes: 3,
        max_life: Duration::from_secs(3600),
        max_pause: Duration::from_secs(7200),
        snapshot_bytes: 0,
    };

    fn at(secs: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_700_000_000 + secs, 0).unwrap()
    }

    fn label() -> Label {
        Label { template: "t".into(), metadata: BTreeMap::new(), auto_pause: false, auto_resume: false }
    }

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn add(ledger: &mut Ledger<u32>, id: &str, label: Label, now: i64, life: u64) {
        ledger.reserve(at(now)).unwrap();
        ledger.insert(id.into(), label, 0, at(now), secs(life));
    }

    fn all() -> Query {
        Query {
            metadata: Vec::new(),
            state: None,
            template: None,
            started_after: None,
            ascending: false,
            limit: 100,
            after: None,
        }
    }

    #[test]
    fn places_being_made_count_and_a_failed_one_gives_its_place_back() {
        let mut ledger = Ledger::<u32>::new(BOUNDS);
        add(&mut ledger, "a", label(), 0, 10);
        ledger.reserve(at(0)).unwrap();
        ledger.reserve(at(0)).unwrap();
        assert_eq!(ledger.reserve(at(4)), Err(Full { limit: 3, next_end_secs: 7 }));
        ledger.release();
        assert_eq!(ledger.reserve(at(4)), Ok(()));
    }

    #[test]
    fn a_sandbox_past_its_end_is_gone_before_any_sweep() {
        let mut ledger = Ledger::new(BOUNDS);
        add(&mut ledger, "a", label(), 0, 10);
        assert!(ledger.get("a", at(9)).is_some());
        assert!(ledger.get("a", at(10)).is_none());
        assert!(ledger.move_end("a", at(10), secs(60), Move::Extend).is_none());
        assert!(ledger.list(&all(), at(10)).0.is_empty());
        assert_eq!(ledger.sweep(at(10)).ended.len(), 1);
        assert_eq!(ledger.next_end(), None);
    }

    #[test]
    fn connect_only_extends_and_timeout_sets_and_neither_passes_the_longest_life() {
        let mut ledger = Ledger::new(BOUNDS);
        add(&mut ledger, "a", label(), 0, 100);
        assert_eq!(ledger.move_end("a", at(1), secs(5), Move::Extend).unwrap().end_at, at(100));
        assert_eq!(ledger.move_end("a", at(1), secs(5), Move::Set).unwrap().end_at, at(6));
        assert_eq!(ledger.move_end("a", at(1), secs(9_999), Move::Set).unwrap().end_at, at(3600));
    }

    #[test]
    fn a_pause_keeps_the_sandbox_and_a_resume_starts_a_new_life() {
        let mut ledger = Ledger::new(BOUNDS);
        add(&mut ledger, "a", label(), 0, 10);
        assert_eq!(ledger.pause("a", at(1)), Some(Some(0)));
        assert_eq!(ledger.pause("a", at(1)), Some(None));
        assert_eq!(ledger.pause("b", at(1)), None);
        assert_eq!(ledger.get("a", at(5000)).unwrap().state, State::Paused);
        assert!(ledger.move_end("a", at(2), secs(5), Move::Set).is_none());
        let entry = ledger.resume("a", at(5000), secs(20)).unwrap();
        assert_eq!((entry.state, entry.end_at), (State::Running, at(5020)));
    }

    #[test]
    fn auto_pause_pauses_once_and_a_forgotten_pause_ends() {
        let mut ledger = Ledger::new(BOUNDS);
        add(&mut ledger, "a", Label { auto_pause: true, ..label() }, 0, 10);
        assert!(!ledger.get("a", at(10)).unwrap().serves(at(10)));
        let due = ledger.sweep(at(10));
        assert_eq!((due.paused.len(), due.ended.len()), (1, 0));
        assert_eq!(ledger.get("a", at(11)).unwrap().state, State::Paused);
        assert_eq!(ledger.sweep(at(10 + 7200)).ended.len(), 1);
    }

    #[test]
    fn a_list_filters_by_every_pair_state_and_template() {
        let mut ledger = Ledger::new(BOUNDS);
        let pairs = |pairs: &[(&str, &str)]| Label {
            metadata: pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            ..label()
        };
        add(&mut ledger, "a", pairs(&[("user", "1"), ("x", "y")]), 0, 100);
        add(&mut ledger, "b", pairs(&[("user", "1")]), 1, 100);
        ledger.pause("b", at(2));
        let ids = |query: Query| -> Vec<String> {
            ledger.list(&query, at(3)).0.into_iter().map(|entry| entry.id).collect()
        };
        let user = ("user".to_owned(), "1".to_owned());
        assert_eq!(ids(Query { metadata: vec![user.clone()], ..all() }), ["b", "a"]);
        assert_eq!(ids(Query { metadata: vec![user, ("x".into(), "y".into())], ..all() }), ["a"]);
        assert_eq!(ids(Query { state: Some(State::Running), ..all() }), ["a"]);
        assert_eq!(ids(Query { template: Some("other".into()), ..all() }), [""; 0]);
        assert_eq!(ids(Query { started_after: Some(at(0)), ..all() }), ["b"]);
    }

    proptest! {
        /// Pages cut anywhere, in either order, with a sandbox killed between two of them, list each one once.
        #[test]
        fn pages_together_are_the_list(
            starts in proptest::collection::vec(0i64..5, 1..12),
            limit in 1usize..5,
            ascending: bool,
            kill in 0usize..12,
        ) {
            let mut ledger = Ledger::new(Bounds { max_sandboxes: 100, ..BOUNDS });
            for (n, start) in starts.iter().enumerate() {
                add(&mut ledger, &format!("id{n:02}"), label(), *start, 100);
            }
            let query = Query { ascending, ..all() };
            let mut whole: Vec<String> =
                ledger.list(&query, at(5)).0.into_iter().map(|entry| entry.id).collect();
            let mut seen = Vec::new();
            let mut after = None;
            loop {
                let (page, next) = ledger.list(&Query { limit, after, ..query.clone() }, at(5));
                seen.extend(page.into_iter().map(|entry| entry.id));
                if let Some(id) = whole.get(kill).filter(|id| !seen.contains(id)).cloned() {
                    ledger.remove(&id);
                    whole.retain(|other| *other != id);
                }
                match next {
                    Some(cursor) => after = Some(cursor),
                    None => break,
                }
            }
            prop_assert_eq!(seen, whole);
        }
    }
}
