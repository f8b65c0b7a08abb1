//! The live sandboxes and the pool of ready ones: assignment, lifetime, and end.
//!
//! A ready sandbox has no owner and is assigned once; it never returns to the pool. Making one takes far longer than
//! handing one over, so the pool is refilled in the background, and only while no one waits for a sandbox.

mod ledger;
mod repeats;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::join_all;
use futures::{StreamExt, stream};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::{Clock, Entropy, lock};
use crate::telemetry::metrics::{self, POOL_SIZE};

use super::auth;
use super::jail::Control;
use super::journal::{Journal, Level};
use super::kernel::KernelError;
use super::network::{self, Policy};
use super::sandbox::{Environment, Identity, Machine, MachineError, Maker, Reason, Sandbox};
use super::snapshots::{Snapshot, SnapshotError, Snapshots, Wanted};
use super::templates::{OWN_NAMES, Template, TemplateError};
use crate::wire::control::State;
use ledger::Ledger;
pub(crate) use ledger::{Bounds, Cursor, Full, Label, Move, Query};
use repeats::{Repeats, Turn};

/// How long a burst of creates is waited out before the pool is refilled.
const QUIET: Duration = Duration::from_millis(100);
/// The longest sleep of the sweep: it also bounds what a jump of the wall clock can do.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// After a machine could not be made for the pool.
const REFILL_PAUSE: Duration = Duration::from_secs(5);

/// The pair of a creator's metadata that names a tenant; for the log.
const TENANT: &str = "tenant";

/// One live sandbox with what was said about it.
pub(crate) type Entry = ledger::Entry<Arc<Sandbox>>;

/// A cheap handle on the live sandboxes.
#[derive(Debug, Clone)]
pub(crate) struct Registry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: Mutex<Ledger<Arc<Sandbox>>>,
    repeats: Mutex<Repeats>,
    /// By the name of what they were made from.
    ready: Mutex<BTreeMap<String, VecDeque<Machine>>>,
    /// The latest ends, and how they were.
    ended: Mutex<VecDeque<Ended>>,
    ready_size: usize,
    /// Creates that wait for a machine of their own.
    waiting: AtomicUsize,
    maker: Maker,
    snapshots: Snapshots,
    clock: Clock,
    entropy: Entropy,
    /// An end moved, or came to be.
    ends_changed: Notify,
    /// A ready machine was taken.
    taken: Notify,
    shutdown: CancellationToken,
}

/// The record of a sandbox that has ended.
#[derive(Debug)]
struct Ended {
    id: String,
    how: &'static str,
    /// Kept of the latest.
    journal: Option<Arc<Journal>>,
}

/// The settings of a new sandbox.
#[derive(Debug)]
pub(crate) struct New {
    pub(crate) label: Label,
    pub(crate) env: BTreeMap<String, String>,
    /// What it begins with, where its label does not say it.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    pub(crate) life: Duration,
    /// Its network access.
    pub(crate) network: Policy,
    /// The `Host` that its servers see.
    pub(crate) mask_host: Option<String>,
    /// Envd requires a token.
    pub(crate) secure: bool,
    /// The other ports require no token.
    pub(crate) public: bool,
}

/// No sandbox was made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    #[error(transparent)]
    Full(#[from] Full),
    #[error("the sandbox could not be started")]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Env(#[from] KernelError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("the first request with this idempotency key has not been answered yet")]
    UnderWay,
    #[error("this idempotency key came with another request before")]
    OtherRequest,
    #[error("the sandbox that this idempotency key made has ended")]
    MadeAndEnded,
}

/// Makes a create safe to send again: the same key and request give the same sandbox.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) text: String,
    /// A digest of the request.
    pub(crate) request: [u8; 32],
}

/// No such sandbox, or one that is paused for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotServing;

/// The result of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paused {
    Now,
    Already,
}

impl Registry {
    /// Starts filling the pool and watching the ends, on `tasks`, until `shutdown`; then every sandbox is ended.
    pub(crate) fn start(
        maker: Maker,
        bounds: Bounds,
        ready_size: usize,
        (clock, entropy): (Clock, Entropy),
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Self {
        let registry = Self(Arc::new(Inner {
            ledger: Mutex::new(Ledger::new(bounds)),
            repeats: Mutex::default(),
            ready: Mutex::default(),
            ended: Mutex::default(),
            ready_size,
            waiting: AtomicUsize::new(0),
            maker,
            snapshots: Snapshots::new(bounds.snapshot_bytes),
            clock,
            entropy,
            ends_changed: Notify::new(),
            taken: Notify::new(),
            shutdown: shutdown.clone(),
        }));
        tasks.spawn(registry.clone().run());
        registry
    }

    async fn run(self) {
        tokio::select! {
            () = self.keep_ready() => {}
            () = self.watch_ends() => {}
            () = self.0.shutdown.cancelled() => {}
        }
        lock(&self.0.ready).clear();
        let left = lock(&self.0.ledger).drain();
        join_all(left.iter().map(|entry| entry.sandbox.end(Reason::Killed))).await;
    }

    /// As [`Registry::create`], and once only for a key.
    pub(crate) async fn create_once(&self, new: New, key: &Key) -> Result<Entry, CreateError> {
        let turn = lock(&self.0.repeats).turn(&key.text, key.request, self.now());
        match turn {
            Turn::Made(id) => return self.get(&id).ok_or(CreateError::MadeAndEnded),
            Turn::UnderWay => return Err(CreateError::UnderWay),
            Turn::Other => return Err(CreateError::OtherRequest),
            Turn::First => {}
        }
        // Does nothing once the sandbox is made; otherwise, also when this future is dropped, frees the key.
        let _free_again = FreeAgain { repeats: &self.0.repeats, key: &key.text };
        let entry = self.create(new).await?;
        lock(&self.0.repeats).made(&key.text, &entry.id);
        Ok(entry)
    }

    /// Makes a sandbox, or hands over one that is ready.
    ///
    /// Dropping the future takes everything back.
    pub(crate) async fn create(&self, new: New) -> Result<Entry, CreateError> {
        let place = Place::reserve(self).inspect_err(|_| metrics::HOST_LIMITS.add(&["sandboxes"], 1))?;
        let (environment, snapshot) = match new.snapshot {
            Some(snapshot) => (self.0.maker.environment(&snapshot.template).await?, Some(snapshot)),
            None => self.begin_with(&new.label.template).await?,
        };
        let mut env = snapshot.as_ref().map(|snapshot| snapshot.env.clone()).unwrap_or_default();
        env.extend(new.env);
        let machine = self.take_machine(&environment).await?;
        let entropy = &self.0.entropy;
        let id = auth::sandbox_id(entropy);
        let identity = Identity {
            id: id.clone(),
            template: new.label.template.clone(),
            tenant: new.label.metadata.get(TENANT).cloned(),
            access_token: new.secure.then(|| auth::token(entropy)),
            traffic_token: (!new.public).then(|| auth::token(entropy)),
            env,
            clock: self.0.clock.clone(),
            network: self.0.maker.network.clone(),
            look_ups: self.0.maker.look_ups.clone(),
            mask_host: new.mask_host,
        };
        let (registry, dead) = (Arc::downgrade(&self.0), id.clone());
        let sandbox = Sandbox::new(machine, identity, move || {
            if let Some(inner) = registry.upgrade() {
                let entry = lock(&inner.ledger).remove(&dead);
                let registry = Self(inner);
                if let Some(entry) = entry {
                    registry.remember_end(&entry, Level::Error, "its first process ended");
                }
                registry.count();
            }
        })?;
        let unknown = sandbox.end_on_drop();
        if let Err(error) = sandbox.set_network(new.network).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a sandbox has no access to the network"
            );
            sandbox.end(Reason::Killed).await;
            return Err(CreateError::Machine(MachineError::Died));
        }
        if let Some(snapshot) = snapshot
            && let Err(error) = snapshot.unpack(&sandbox.agent).await
        {
            sandbox.end(Reason::Killed).await;
            return Err(error.into());
        }
        unknown.keep();
        sandbox.note(Level::Info, format!("the sandbox was created from template {}", new.label.template));
        let entry = place.fill(id, new.label, sandbox, new.life);
        self.count();
        // It may have died, or the host may have ended all it knew, between the two steps above.
        if entry.sandbox.has_ended() || self.0.shutdown.is_cancelled() {
            self.kill(&entry.id).await;
            return Err(CreateError::Machine(MachineError::Died));
        }
        Ok(entry)
    }

    /// What a template or snapshot has a sandbox begin with.
    async fn begin_with(
        &self,
        template: &str,
    ) -> Result<(Arc<Environment>, Option<Arc<Snapshot>>), TemplateError> {
        match (self.0.maker.environment(template).await, self.0.snapshots.find(template)) {
            (Err(TemplateError::NotFound(_)), Some(snapshot)) => {
                Ok((self.0.maker.environment(&snapshot.template).await?, Some(snapshot)))
            }
            (environment, _) => Ok((environment?, None)),
        }
    }

    /// Makes a snapshot of a running sandbox and keeps it.
    pub(crate) async fn snapshot(
        &self,
        id: &str,
        name: Option<String>,
    ) -> Result<Arc<Snapshot>, SnapshotError> {
        if let Some(name) = &name {
            let is_name = (1..=128).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
            if !is_name {
                return Err(SnapshotError::Name("the name is not 1 to 128 of A-Z a-z 0-9 . _ -".into()));
            }
            if OWN_NAMES.contains(&&**name) || self.templates().iter().any(|template| template.name == *name)
            {
                return Err(SnapshotError::Name(format!("the name {name} is a template's")));
            }
        }
        let (_, snapshot) = self.take_snapshot(id, name).await?;
        self.0.snapshots.add(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// In a task of its own: it runs to its end even when the caller has gone.
    async fn take_snapshot(
        &self,
        id: &str,
        name: Option<String>,
    ) -> Result<(Entry, Arc<Snapshot>), SnapshotError> {
        let (registry, id) = (self.clone(), id.to_owned());
        let taken = tokio::spawn(async move {
            let entry = registry.get(&id).ok_or(SnapshotError::NoSandbox)?;
            if registry.network().is_none() || !registry.0.snapshots.exist() {
                return Err(SnapshotError::Unsupported);
            }
            let _turn = entry.sandbox.turn.lock().await;
            let entry = registry.get(&id).ok_or(SnapshotError::NoSandbox)?;
            if !entry.serves(registry.now()) {
                return Err(SnapshotError::Paused);
            }
            let tenant = entry.label.metadata.get(TENANT).cloned();
            let called = (auth::sandbox_id(&registry.0.entropy), name);
            let taken = registry.0.snapshots.take(&entry.sandbox, tenant, called).await;
            // Why not is the answer's: it names files.
            match taken.is_ok() {
                true => entry.sandbox.note(Level::Info, "its files were kept for a snapshot or forks"),
                false => {
                    entry.sandbox.note(Level::Warn, "its files could not be kept for a snapshot or forks")
                }
            }
            let snapshot = taken?;
            Ok((entry, snapshot))
        });
        taken.await.unwrap_or(Err(SnapshotError::NoSandbox))
    }

    /// Makes sandboxes that begin with the files of a running one as they are now, and with all that was said of it.
    pub(crate) async fn fork(
        &self,
        id: &str,
        count: u32,
        life: Duration,
    ) -> Result<Vec<Result<Entry, CreateError>>, SnapshotError> {
        const AT_ONCE: usize = 4;
        let (entry, snapshot) = self.take_snapshot(id, None).await?;
        let Entry { label, sandbox, .. } = &entry;
        let new = |_| New {
            label: label.clone(),
            env: BTreeMap::new(),
            snapshot: Some(Arc::clone(&snapshot)),
            life,
            network: Policy::clone(&sandbox.network()),
            mask_host: sandbox.mask_host.clone(),
            secure: sandbox.access_token.is_some(),
            public: sandbox.traffic_token.is_none(),
        };
        let made = stream::iter((0..count).map(new).map(|new| self.create(new)));
        Ok(made.buffered(AT_ONCE).collect().await)
    }

    pub(crate) fn snapshots(&self, wanted: &Wanted) -> (Vec<Arc<Snapshot>>, Option<Cursor>) {
        self.0.snapshots.list(wanted)
    }

    /// Whether there was one of this id or name.
    pub(crate) fn remove_snapshot(&self, key: &str) -> bool {
        self.0.snapshots.remove(key)
    }

    async fn take_machine(&self, environment: &Arc<Environment>) -> Result<Machine, MachineError> {
        loop {
            let ready = lock(&self.0.ready).get_mut(&environment.name).and_then(VecDeque::pop_front);
            self.tell_pool();
            self.0.taken.notify_one();
            match ready {
                Some(machine) if machine.is_alive() && machine.is_from(environment) => return Ok(machine),
                Some(_dead_or_old) => {}
                None => break,
            }
        }
        let _waiting = Waiting::on(&self.0.waiting);
        self.0.maker.make(environment, false).await
    }

    /// A sandbox that lives, running or paused.
    pub(crate) fn get(&self, id: &str) -> Option<Entry> {
        lock(&self.0.ledger).get(id, self.now()).cloned()
    }

    /// A sandbox that can serve a request now; wakes one that was made to wake on traffic.
    pub(crate) async fn serving(&self, id: &str) -> Result<Arc<Sandbox>, NotServing> {
        let entry = self.get(id).ok_or(NotServing)?;
        if entry.serves(self.now()) {
            return Ok(entry.sandbox);
        }
        if !entry.label.auto_resume {
            return Err(NotServing);
        }
        const LIFE_AFTER_WAKING: Duration = Duration::from_secs(300);
        self.connect(id, LIFE_AFTER_WAKING).await.map(|(entry, _)| entry.sandbox).ok_or(NotServing)
    }

    /// Makes sure that a sandbox runs for `life` from now. Says whether it had been paused.
    pub(crate) async fn connect(&self, id: &str, life: Duration) -> Option<(Entry, bool)> {
        let sandbox = self.get(id)?.sandbox;
        let _turn = sandbox.turn.lock().await;
        let now = self.now();
        let extended = lock(&self.0.ledger).move_end(id, now, life, Move::Extend);
        let (entry, woken) = match extended {
            Some(entry) => (entry, false),
            None => {
                sandbox.thaw().await;
                sandbox.note(Level::Info, "the sandbox was resumed");
                (lock(&self.0.ledger).resume(id, self.now(), life)?, true)
            }
        };
        self.count();
        self.0.ends_changed.notify_one();
        Some((entry, woken))
    }

    /// Moves the end of a running sandbox.
    pub(crate) fn move_end(&self, id: &str, life: Duration, how: Move) -> Option<Entry> {
        let moved = lock(&self.0.ledger).move_end(id, self.now(), life, how);
        self.0.ends_changed.notify_one();
        moved
    }

    /// Pauses a sandbox in memory. `None` when it does not exist.
    pub(crate) async fn pause(&self, id: &str) -> Option<Paused> {
        let sandbox = self.get(id)?.sandbox;
        let _turn = sandbox.turn.lock().await;
        let found = lock(&self.0.ledger).pause(id, self.now())?;
        self.0.ends_changed.notify_one();
        match found {
            None => Some(Paused::Already),
            Some(sandbox) => {
                sandbox.freeze().await;
                sandbox.note(Level::Info, "the sandbox was paused by a request");
                self.count();
                Some(Paused::Now)
            }
        }
    }

    /// Ends a sandbox, running or paused, and returns when nothing of it is left. `false` when it does not exist.
    pub(crate) async fn kill(&self, id: &str) -> bool {
        let removed = {
            let mut ledger = lock(&self.0.ledger);
            let lives = ledger.get(id, self.now()).is_some();
            ledger.remove(id).map(|entry| (entry, lives))
        };
        let Some((entry, lives)) = removed else { return false };
        self.remember_end(&entry, Level::Info, "it was killed by a request");
        entry.sandbox.end(Reason::Killed).await;
        self.count();
        lives
    }

    /// The running sandbox that a test picks out.
    pub(crate) fn find(&self, is_it: impl Fn(&Sandbox) -> bool) -> Option<String> {
        let now = self.now();
        lock(&self.0.ledger).find(|entry| entry.serves(now) && is_it(&entry.sandbox))
    }

    /// One page of the live sandboxes and where the next begins.
    pub(crate) fn list(&self, query: &Query) -> (Vec<Entry>, Option<Cursor>) {
        lock(&self.0.ledger).list(query, self.now())
    }

    /// How sandboxes reach the network; `None` where they have none of their own that could be limited.
    pub(crate) fn network(&self) -> Option<&network::Options> {
        Some(&self.0.maker.network).filter(|_| self.0.maker.has_network())
    }

    /// The longest life that may be asked for.
    pub(crate) fn max_life(&self) -> Duration {
        lock(&self.0.ledger).bounds().max_life
    }

    /// How many sandboxes serve requests.
    pub(crate) fn running(&self) -> usize {
        lock(&self.0.ledger).running(self.now())
    }

    pub(crate) fn now(&self) -> DateTime<Utc> {
        self.0.clock.now()
    }

    /// Whether sandboxes can be made now.
    pub(crate) fn is_up(&self) -> bool {
        self.0.maker.is_up()
    }

    /// How a sandbox ended, as far as is remembered: a sentence without a subject's name.
    pub(crate) fn how_it_ended(&self, id: &str) -> Option<&'static str> {
        lock(&self.0.ended).iter().rev().find(|ended| ended.id == id).map(|ended| ended.how)
    }

    /// The life of a sandbox that lives or is one of the latest that ended.
    pub(crate) fn journal(&self, id: &str) -> Option<Arc<Journal>> {
        if let Some(entry) = self.get(id) {
            return Some(Arc::clone(entry.sandbox.agent.journal()));
        }
        lock(&self.0.ended).iter().rev().find(|ended| ended.id == id)?.journal.clone()
    }

    fn remember_end(&self, entry: &Entry, level: Level, how: &'static str) {
        const REMEMBERED: usize = 1000;
        const JOURNALS: usize = 100;
        entry.sandbox.note(level, format!("the sandbox ended: {how}"));
        let mut ended = lock(&self.0.ended);
        if ended.len() == REMEMBERED {
            ended.pop_front();
        }
        let journal = Some(Arc::clone(entry.sandbox.agent.journal()));
        ended.push_back(Ended { id: entry.id.clone(), how, journal });
        if let Some(old) = ended.len().checked_sub(JOURNALS + 1) {
            ended[old].journal = None;
        }
    }

    /// Sets the gauges.
    fn count(&self) {
        let (live, paused) = lock(&self.0.ledger).counts();
        metrics::HOST_LIVE.set(live as u64);
        metrics::HOST_PAUSED.set(paused as u64);
        metrics::HOST_CGROUPS.set(match self.0.maker.control() {
            Control::V1 => 1,
            Control::V2 => 2,
            Control::None => 0,
        });
        let files = std::fs::read_to_string("/proc/sys/fs/file-nr").ok();
        metrics::HOST_FILES.set(files.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok()));
    }

    fn tell_pool(&self) {
        POOL_SIZE.set(lock(&self.0.ready).values().map(VecDeque::len).sum::<usize>() as u64);
    }

    /// Keeps the pool full; runs forever.
    async fn keep_ready(&self) {
        let mut spawner = self.0.maker.changes();
        loop {
            let environments = self.0.maker.environments();
            lock(&self.0.ready).retain(|_, machines| {
                machines.retain(|machine| {
                    machine.is_alive() && environments.iter().any(|environment| machine.is_from(environment))
                });
                !machines.is_empty()
            });
            self.tell_pool();
            for environment in &environments {
                // A template that was asked for is likely to be asked for again.
                let is_base = environment.name == self.0.maker.base().name;
                let size = if is_base { self.0.ready_size } else { self.0.ready_size.min(1) };
                self.fill(environment, size).await;
            }
            tokio::select! {
                () = self.0.taken.notified() => {}
                () = spawner.next() => {}
            }
            // Anyone who took one is about to run code: do not compete for the processor with the first cell.
            tokio::time::sleep(QUIET).await;
        }
    }

    /// Makes machines until this many are ready, or a caller waits for one.
    async fn fill(&self, environment: &Arc<Environment>, size: usize) {
        let ready = || lock(&self.0.ready).get(&environment.name).map_or(0, VecDeque::len);
        if size == 0 || environment.name != self.0.maker.base().name && ready() >= size {
            return;
        }
        self.0.maker.prepare(environment).await;
        while self.0.waiting.load(Ordering::Relaxed) == 0 && ready() < size {
            match self.0.maker.make(environment, true).await {
                Ok(machine) => {
                    machine.warm().await;
                    lock(&self.0.ready).entry(environment.name.clone()).or_default().push_back(machine);
                    self.tell_pool();
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "no sandbox could be added to the pool"
                    );
                    tokio::time::sleep(REFILL_PAUSE).await;
                }
            }
        }
    }

    /// What can be asked for besides the host's own environment.
    pub(crate) fn templates(&self) -> Vec<Template> {
        self.0.maker.templates()
    }

    /// Ends and pauses sandboxes when their time has come; runs forever.
    async fn watch_ends(&self) {
        loop {
            let due = lock(&self.0.ledger).sweep(self.now());
            for entry in due.ended {
                self.remember_end(&entry, Level::Info, "its timeout was reached");
                tokio::spawn(async move { entry.sandbox.end(Reason::Expired).await });
            }
            self.count();
            for (id, sandbox) in due.paused {
                let registry = self.clone();
                tokio::spawn(async move {
                    let _turn = sandbox.turn.lock().await;
                    // Someone may have connected meanwhile.
                    if registry.get(&id).is_some_and(|entry| entry.state == State::Paused) {
                        sandbox.freeze().await;
                        sandbox.note(Level::Info, "the sandbox was paused at its timeout");
                    }
                });
            }
            let next = lock(&self.0.ledger).next_end();
            let changed = self.0.ends_changed.notified();
            match next {
                None => changed.await,
                Some(end) => {
                    let wait = (end - self.now()).to_std().unwrap_or_default().min(SWEEP_INTERVAL);
                    let _ = tokio::time::timeout(wait, changed).await;
                }
            }
        }
    }
}

/// A promised place in the ledger; given back on drop unless filled.
struct Place<'a>(Option<&'a Registry>);

impl<'a> Place<'a> {
    fn reserve(registry: &'a Registry) -> Result<Self, Full> {
        lock(&registry.0.ledger).reserve(registry.now())?;
        Ok(Self(Some(registry)))
    }

    fn fill(mut self, id: String, label: Label, sandbox: Arc<Sandbox>, life: Duration) -> Entry {
        let Some(registry) = self.0.take() else { unreachable!("a place is filled once") };
        let entry = lock(&registry.0.ledger).insert(id, label, sandbox, registry.now(), life);
        registry.0.ends_changed.notify_one();
        entry
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(registry) = self.0 {
            lock(&registry.0.ledger).release();
        }
    }
}

/// Frees a key on drop unless it made a sandbox.
struct FreeAgain<'a> {
    repeats: &'a Mutex<Repeats>,
    key: &'a str,
}

impl Drop for FreeAgain<'_> {
    fn drop(&mut self) {
        lock(self.repeats).forget(self.key);
    }
}

/// Counts a create while it makes its own machine.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn on(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
