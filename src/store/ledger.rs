//! The audit chain, what was used, and quotas.
//!
//! Each end of a run is an entry of its tenant's chain, written in the transaction that ends the run. An entry's hash
//! covers the one before it, so that anyone who changes, removes or inserts one changes every hash after it; [`verify`] finds
//! the place. Somebody who may write to the whole database can also compute a chain anew: compare with an export that is
//! kept elsewhere.

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
    /// Its place, from 1.
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

/// Where a tenant's chain begins and ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainHead {
    /// Whose.
    pub tenant: TenantId,
    /// The last entry; 0 when there was none yet.
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
    /// Each tenant's chain, by tenant.
    async fn chain_heads(&self) -> Result<Vec<ChainHead>, StoreError>;

    /// Entries of a tenant after entry `after`, in order.
    async fn chain(&self, tenant: &TenantId, after: i64, limit: u32) -> Result<Vec<ChainEntry>, StoreError>;

    /// Runs that have ended and that no entry is about: no one but a stranger to Pathbox writes those.
    async fn unchained(&self, tenant: &TenantId) -> Result<Vec<ExecutionId>, StoreError>;

    /// Takes entries that are older than that from the beginning of each chain, at most `batch` of each. The rest still
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
pub(super) fn entry_hash(previous: &str, tenant: &str, n: i64, body_sha256: &str) -> String {
    sha256(&format!("{previous}\n{tenant}\n{n}\n{body_sha256}"))
}

pub(super) fn sha256(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

/// What a walk over one chain found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Where it begins and ends.
    pub head: ChainHead,
    /// Entries that were looked at.
    pub entries: u64,
    /// Entries whose bodies an erasure took.
    pub erased: u64,
    /// What is not as it was written, in order.
    pub faults: Vec<Fault>,
}

/// A place where a chain is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The entry; `None` when it is about no entry.
    pub n: Option<i64>,
    /// The run, if the place is about one.
    pub execution: Option<ExecutionId>,
    /// What is wrong, for people.
    pub what: String,
}

/// Entries that are read at a time.
const PAGE: u32 = 1000;
/// Faults that are said; anyone who changed more than those is found out by them.
const MOST_FAULTS: usize = 100;

/// Walks a tenant's chain from where it begins to its end. `each` gets every entry with the hash before it.
///
/// # Errors
/// The store's.
pub async fn verify(
    store: &dyn super::ContextStore,
    head: ChainHead,
    mut each: impl FnMut(&str, &ChainEntry),
) -> Result<Chain, StoreError> {
    let mut walk = Walk::new(&head);
    loop {
        let page = store.chain(&head.tenant, walk.n, PAGE).await?;
        let Some(last) = page.last().map(|entry| entry.n) else { break };
        for entry in &page {
            each(&walk.hash.clone(), entry);
            walk.look_at(head.tenant.as_str(), entry);
        }
        walk.n = last;
    }
    // The head again: while this walked, the chain grew.
    let now = store.chain_heads().await?.into_iter().find(|it| it.tenant == head.tenant);
    walk.end(&head, now.as_ref());
    for execution in store.unchained(&head.tenant).await? {
        walk.fault(None, Some(execution), "this run has ended and no entry is about it".to_owned());
    }
    walk.faults.truncate(MOST_FAULTS);
    Ok(Chain { head, entries: walk.entries, erased: walk.erased.len() as u64, faults: walk.faults })
}

struct Walk {
    n: i64,
    hash: String,
    entries: u64,
    /// Places without a body, and those that erasures name.
    erased: Vec<i64>,
    named: Vec<(i64, i64)>,
    faults: Vec<Fault>,
    /// The hash of the entry that the head spoke of when the walk began.
    at_head: Option<String>,
    head_n: i64,
}

#[derive(Deserialize)]
struct ErasureBody {
    erasure: Erasure,
}

#[derive(Deserialize)]
struct Erasure {
    entries: Vec<(i64, i64)>,
}

impl Walk {
    fn new(head: &ChainHead) -> Self {
        Self {
            n: head.anchor_n,
            hash: head.anchor_hash.clone(),
            entries: 0,
            erased: Vec::new(),
            named: Vec::new(),
            faults: Vec::new(),
            at_head: (head.n == head.anchor_n).then(|| head.anchor_hash.clone()),
            head_n: head.n,
        }
    }

    fn fault(&mut self, n: Option<i64>, execution: Option<ExecutionId>, what: String) {
        self.faults.push(Fault { n, execution, what });
    }

    fn look_at(&mut self, tenant: &str, entry: &ChainEntry) {
        let (n, run) = (Some(entry.n), entry.execution);
        self.entries += 1;
        if entry.n != self.n + 1 {
            let (from, to) = (self.n + 1, entry.n - 1);
            self.fault(Some(from), None, format!("entries {from} to {to} are missing"));
        } else if entry_hash(&self.hash, tenant, entry.n, &entry.body_sha256) != entry.hash {
            self.fault(n, run, "its hash does not follow from the entry before it".to_owned());
        }
        match &entry.body {
            None => self.erased.push(entry.n),
            Some(body) if sha256(body) != entry.body_sha256 => {
                self.fault(n, run, "what it says was changed".to_owned());
            }
            Some(body) => {
                if run.is_none()
                    && let Ok(said) = serde_json::from_str::<ErasureBody>(body)
                {
                    self.named.extend(said.erasure.entries);
                }
                if entry.row_now.as_ref().is_some_and(|row| row != body) {
                    let fields = changed(body, entry.row_now.as_deref().unwrap_or_default());
                    self.fault(n, run, format!("the run's row was changed since: {fields}"));
                }
            }
        }
        (self.n, self.hash) = (entry.n, entry.hash.clone());
        if entry.n == self.head_n {
            self.at_head = Some(self.hash.clone());
        }
    }

    fn end(&mut self, head: &ChainHead, now: Option<&ChainHead>) {
        match &self.at_head {
            None if now.is_some_and(|now| now.anchor_n >= head.n) => {}
            None => {
                let (end, n) = (self.n, head.n);
                self.fault(Some(end), None, format!("the chain ends here, and its head says {n}"));
            }
            Some(hash) if *hash != head.hash => {
                self.fault(Some(head.n), None, "its hash is not the one that the head has".to_owned());
            }
            Some(_) => {}
        }
        let unnamed: Vec<i64> = self
            .erased
            .iter()
            .copied()
            .filter(|n| !self.named.iter().any(|(low, high)| (low..=high).contains(&n)))
            .collect();
        for n in unnamed {
            self.fault(Some(n), None, "what it says is gone, and no erasure names it".to_owned());
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
