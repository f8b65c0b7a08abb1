//! The audit chain, what was used, and quotas.
//!
//! Each end of a run is an entry of its tenant's chain, written in the transaction that ends the run. A chain has lanes, so
//! that ends of one tenant need not wait for each other. An entry's hash covers the one before it in its lane, so that
//! anyone who changes, removes or inserts one changes every hash after it; [`verify`] finds the place. Someone who may write to
//! the whole database can also compute a chain again: compare with an export that is kept elsewhere.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, NaiveDate, Utc};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::StoreError;
use crate::domain::usage::UsageRow;
use crate::domain::{ContextKey, ExecutionId, OwnQuota, Owner, TenantId, hex};

/// An entry of a tenant's audit chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainEntry {
    /// Its lane.
    pub lane: i16,
    /// Its place in the lane, from 1.
    pub n: i64,
    /// When it was written.
    pub at: DateTime<Utc>,
    /// The run that it is about; `None` for an erasure.
    pub execution: Option<ExecutionId>,
    /// What it says, as JSON; `None` once erased.
    pub body: Option<String>,
    /// SHA-256 of the body, hex.
    pub body_sha256: String,
    /// Its hash, hex.
    pub hash: String,
    /// What the run's row says now, written like the body, when the row is still there and no later entry is about it.
    pub row_now: Option<String>,
}

/// Where a lane of a tenant's chain begins and ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainHead {
    /// Whose.
    pub tenant: TenantId,
    /// Which lane: 0 for a tenant whose runs ended one after the other.
    pub lane: i16,
    /// The last entry.
    pub n: i64,
    /// Its hash.
    pub hash: String,
    /// The last entry that retention took; 0 for none.
    pub anchor_n: i64,
    /// Its hash.
    pub anchor_hash: String,
}

/// Which days of use to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageFilter {
    /// Only this tenant's.
    pub tenant: Option<TenantId>,
    /// Only this owner's.
    pub owner: Option<Owner>,
    /// From this day on, UTC.
    pub from: NaiveDate,
    /// Up to this day, which is included.
    pub to: NaiveDate,
}

/// The audit chain, what was used, and quotas.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// The lanes of each tenant's chain, by tenant and lane.
    async fn chain_heads(&self) -> Result<Vec<ChainHead>, StoreError>;

    /// Entries of a tenant's lane after entry `after`, in order.
    async fn chain(
        &self,
        tenant: &TenantId,
        lane: i16,
        after: i64,
        limit: u32,
    ) -> Result<Vec<ChainEntry>, StoreError>;

    /// Runs that have ended and that no entry is about: no one but a stranger to Pathbox writes those.
    async fn unchained(&self, tenant: &TenantId) -> Result<Vec<ExecutionId>, StoreError>;

    /// Takes entries that are older than that from the beginning of each lane, at most `batch` of each. The rest still
    /// verifies. Says how many.
    async fn prune_chain(&self, retention: Duration, batch: u32) -> Result<u64, StoreError>;

    /// What was used, and what lives uses up to now.
    async fn usage(&self, filter: &UsageFilter) -> Result<Vec<UsageRow>, StoreError>;

    /// What a tenant's own quota says.
    async fn own_quota(&self, tenant: &TenantId) -> Result<OwnQuota, StoreError>;

    /// Gives a tenant a quota of its own, on every replica from the next call on.
    async fn set_own_quota(&self, tenant: &TenantId, quota: &OwnQuota) -> Result<(), StoreError>;

    /// Erases what a tenant, or one principal of it, has left behind; what lives must be ended before. The answer is the
    /// JSON of the entry that says so in the chain.
    async fn erase(&self, tenant: &TenantId, principal: Option<&str>) -> Result<String, StoreError>;
}

/// The hash of an entry.
pub(super) fn entry_hash(previous: &str, tenant: &str, lane: i16, n: i64, body_sha256: &str) -> String {
    sha256(&format!("{previous}\n{tenant}\n{lane}\n{n}\n{body_sha256}"))
}

pub(super) fn sha256(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

/// What a walk over one tenant's chain found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Whose.
    pub tenant: TenantId,
    /// Where each of its lanes begins and ends.
    pub lanes: Vec<ChainHead>,
    /// Entries that were looked at.
    pub entries: u64,
    /// Entries whose bodies an erasure took.
    pub erased: u64,
    /// What was changed, in order.
    pub faults: Vec<Fault>,
}

/// A place where a chain is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The lane and the entry in it; `None` when it is about no entry.
    pub place: Option<(i16, i64)>,
    /// The run, if the place is about one.
    pub execution: Option<ExecutionId>,
    /// What is wrong, for people.
    pub what: String,
}

/// Entries that are read at a time.
const PAGE: u32 = 1000;
/// Faults that are said; anyone who changed more than those is found out by them.
const MOST_FAULTS: usize = 100;

/// Walks a tenant's chain, each lane from where it begins to its end. `each` gets every entry with the hash before it.
///
/// # Errors
/// The store's.
pub async fn verify(
    store: &dyn super::ContextStore,
    tenant: &TenantId,
    mut each: impl FnMut(&str, &ChainEntry),
) -> Result<Chain, StoreError> {
    let mut walk = Walk::default();
    // Runs end while this walks, and an erasure in one lane takes bodies of others: what has come since is read, too.
    loop {
        let before = walk.entries;
        for head in heads(store, tenant).await? {
            let mut lane = walk.lanes.remove(&head.lane).unwrap_or_else(|| Lane::new(head));
            loop {
                let page = store.chain(tenant, lane.head.lane, lane.n, PAGE).await?;
                for entry in &page {
                    each(&lane.hash, entry);
                    walk.look_at(&mut lane, entry);
                }
                if page.len() < PAGE as usize {
                    break;
                }
            }
            walk.lanes.insert(lane.head.lane, lane);
        }
        if walk.entries == before || walk.unnamed().is_empty() {
            break;
        }
    }
    walk.end(&heads(store, tenant).await?);
    for execution in store.unchained(tenant).await? {
        walk.fault(None, Some(execution), "this run has ended and has no entry".to_owned());
    }
    walk.faults.truncate(MOST_FAULTS);
    Ok(Chain {
        tenant: tenant.clone(),
        entries: walk.entries,
        erased: walk.erased.len() as u64,
        faults: walk.faults,
        lanes: walk.lanes.into_values().map(|lane| lane.head).collect(),
    })
}

async fn heads(store: &dyn super::ContextStore, tenant: &TenantId) -> Result<Vec<ChainHead>, StoreError> {
    let mut heads = store.chain_heads().await?;
    heads.retain(|head| head.tenant == *tenant);
    Ok(heads)
}

#[derive(Default)]
struct Walk {
    lanes: BTreeMap<i16, Lane>,
    entries: u64,
    /// Places without a body, and those that erasures name: a lane, and the first and the last in it.
    erased: Vec<(i16, i64)>,
    named: Vec<(i16, i64, i64)>,
    gaps: Vec<Gap>,
    faults: Vec<Fault>,
}

/// Entries that were not there when the walk came by, and the one after them: retention may have taken them since the head
/// was read, and the head then says so by now.
struct Gap {
    lane: i16,
    from: i64,
    after: (i64, String, String),
}

/// How far one lane has been walked.
struct Lane {
    /// As it was when the walk came to it.
    head: ChainHead,
    n: i64,
    hash: String,
    /// The hash of the entry that the head points to.
    at_head: Option<String>,
}

impl Lane {
    fn new(head: ChainHead) -> Self {
        let at_head = (head.n == head.anchor_n).then(|| head.anchor_hash.clone());
        Self { n: head.anchor_n, hash: head.anchor_hash.clone(), at_head, head }
    }
}

#[derive(Deserialize)]
struct ErasureBody {
    erasure: Erasure,
}

#[derive(Deserialize)]
struct Erasure {
    entries: Vec<(i16, i64, i64)>,
}

impl Walk {
    fn fault(&mut self, place: Option<(i16, i64)>, execution: Option<ExecutionId>, what: String) {
        self.faults.push(Fault { place, execution, what });
    }

    fn look_at(&mut self, lane: &mut Lane, entry: &ChainEntry) {
        let (place, run) = (Some((entry.lane, entry.n)), entry.execution);
        let tenant = lane.head.tenant.as_str();
        self.entries += 1;
        if entry.n != lane.n + 1 {
            let after = (entry.n, entry.body_sha256.clone(), entry.hash.clone());
            self.gaps.push(Gap { lane: entry.lane, from: lane.n + 1, after });
        } else if entry_hash(&lane.hash, tenant, entry.lane, entry.n, &entry.body_sha256) != entry.hash {
            self.fault(place, run, "its hash does not follow from the entry before it".to_owned());
        }
        match &entry.body {
            None => self.erased.push((entry.lane, entry.n)),
            Some(body) if sha256(body) != entry.body_sha256 => {
                self.fault(place, run, "its content was changed".to_owned());
            }
            Some(body) => {
                if run.is_none()
                    && let Ok(said) = serde_json::from_str::<ErasureBody>(body)
                {
                    self.named.extend(said.erasure.entries);
                }
                if entry.row_now.as_ref().is_some_and(|row| row != body) {
                    let fields = changed(body, entry.row_now.as_deref().unwrap_or_default());
                    self.fault(place, run, format!("the run's row was changed since: {fields}"));
                }
            }
        }
        (lane.n, lane.hash) = (entry.n, entry.hash.clone());
        if entry.n == lane.head.n {
            lane.at_head = Some(lane.hash.clone());
        }
    }

    /// Places without a body that no erasure names.
    fn unnamed(&self) -> Vec<(i16, i64)> {
        let is_named = |&(lane, n): &(i16, i64)| {
            self.named.iter().any(|(at, low, high)| *at == lane && (low..=high).contains(&&n))
        };
        self.erased.iter().copied().filter(|place| !is_named(place)).collect()
    }

    /// Holds the ends against the heads: as they were, and as they are now that retention may have taken entries.
    fn end(&mut self, now: &[ChainHead]) {
        let mut faults = Vec::new();
        for Gap { lane, from, after: (n, body_sha256, hash) } in std::mem::take(&mut self.gaps) {
            let (to, head) = (n - 1, now.iter().find(|now| now.lane == lane));
            match head.filter(|head| head.anchor_n >= to) {
                None => faults.push(((lane, from), format!("entries {from} to {to} are missing"))),
                Some(head) if head.anchor_n == to => {
                    if entry_hash(&head.anchor_hash, head.tenant.as_str(), lane, n, &body_sha256) != hash {
                        let what = "its hash does not follow from the entries that retention removed";
                        faults.push(((lane, n), what.to_owned()));
                    }
                }
                Some(_) => {} // what came after is gone, too
            }
        }
        for Lane { head, n, at_head, .. } in self.lanes.values() {
            let (lane, said) = (head.lane, head.n);
            match at_head {
                None if now.iter().any(|now| now.lane == lane && now.anchor_n >= said) => {}
                None => {
                    faults.push(((lane, *n), format!("the lane ends here, but its head says {said}")));
                }
                Some(hash) if *hash != head.hash => {
                    faults.push(((lane, said), "its hash differs from the head's".to_owned()));
                }
                Some(_) => {}
            }
        }
        let gone = "its content is missing, and no erasure entry names it";
        faults.extend(self.unnamed().into_iter().map(|place| (place, gone.to_owned())));
        for (place, what) in faults {
            self.fault(Some(place), None, what);
        }
    }
}

/// The names of the fields that differ.
fn changed(then: &str, now: &str) -> String {
    let read =
        |text| serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text).unwrap_or_default();
    let (then, now) = (read(then), read(now));
    let fields: Vec<&str> = then
        .iter()
        .filter(|(name, value)| now.get(*name) != Some(value))
        .map(|(name, _)| name.as_str())
        .collect();
    fields.join(", ")
}

/// Rows of days and of what lives, as days.
pub(super) fn with_living(
    mut days: Vec<UsageRow>,
    living: Vec<(ContextKey, DateTime<Utc>, DateTime<Utc>)>,
    filter: &UsageFilter,
) -> Vec<UsageRow> {
    for (key, since, now) in living {
        for (day, sandbox_ms) in crate::domain::usage::by_day(since, now) {
            if day < filter.from || day > filter.to {
                continue;
            }
            match days.iter_mut().find(|row| row.day == day && row.key == key) {
                Some(row) => row.sandbox_ms += sandbox_ms,
                None => days.push(UsageRow {
                    key: key.clone(),
                    day,
                    executions: 0,
                    run_ms: 0,
                    sandbox_ms,
                    output_bytes: 0,
                }),
            }
        }
    }
    days
}
