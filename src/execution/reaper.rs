//! Ends contexts that are no longer used, kills sandboxes without an owner.
//!
//! Three jobs, each safe to run on every replica at once: `reap` ends expired contexts and frees what dead replicas
//! held; `kill_pending` kills the sandboxes in the outbox; `reconcile` compares the provider's list with the rows both ways.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use serde::Serialize;
use tracing::instrument;

use crate::domain::{ContextId, EndReason, SandboxId};
use crate::e2b::{E2bClient, ListFilter};
use crate::store::{PendingKill, StoreError};
use crate::telemetry::metrics;

use super::Core;
use super::crash::crash_point;
use super::provider::{CONTEXT_ID, EPOCH, access_of};
use super::transfers::LIFE;
use crate::telemetry::chain;

/// Rows in one pass.
const BATCH: u32 = 50;
/// After an outage of the database nothing expires for this long: servers first report what they used meanwhile.
/// They begin within a second, and report a few hundred uses a second.
const REPORTING: Duration = Duration::from_secs(60);
/// How long a claimed entry of the outbox stays hidden from other replicas.
const VISIBILITY: Duration = Duration::from_secs(120);

/// What a clean-up came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Cleaned {
    /// Contexts that were ended.
    pub cleaned: u32,
    /// Things that could not be done now and will be tried again.
    pub errors: u32,
}

/// Ends expired contexts and kills sandboxes without an owner. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Cleanup(pub(super) Arc<Core>);

impl Cleanup {
    /// Starts the background task; it ends at shutdown.
    pub(super) fn start(&self) {
        let service = self.clone();
        self.0.background.spawn(async move {
            service.0.release_dead_hosts(None).await;
            let mut due = tokio::time::Instant::now();
            let mut begin = due;
            loop {
                let now = tokio::time::Instant::now();
                let last = due + REPORTING * 10; // a record that cannot be written does not put it off for ever
                if now >= begin && (now >= last || !service.0.write_behind.is_behind()) {
                    due = now + service.0.options().cleanup_interval;
                    begin = due;
                    let cleaned = service.run_once().await;
                    if cleaned != Cleaned::default() {
                        tracing::info!(cleaned = cleaned.cleaned, errors = cleaned.errors, "clean-up");
                    }
                } else if service.0.write_behind.is_behind() || service.0.store().ping().await.is_err() {
                    begin = begin.max(now + REPORTING).min(last);
                } else {
                    service.kill_pending().await;
                }
                tokio::select! {
                    () = service.0.kills.notified() => {}
                    () = tokio::time::sleep(Duration::from_secs(30)) => {}
                    () = service.0.shutdown.cancelled() => return,
                }
            }
        });
    }

    /// One whole clean-up pass: reap until nothing is left, kill what is pending, reconcile, remove old outputs.
    #[instrument(name = "execution_context.cleanup", skip_all)]
    pub async fn run_once(&self) -> Cleaned {
        let mut done = Cleaned::default();
        loop {
            crash_point!(self.0, "reap.before");
            match self.0.store().reap(BATCH, self.0.options().retention, &self.0.options().limits).await {
                Ok(reaped) => {
                    crash_point!(self.0, "reap.ended");
                    done.cleaned += reaped.expired + reaped.abandoned;
                    if reaped.expired + reaped.abandoned + reaped.interrupted + reaped.deleted == 0 {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "expired contexts could not be ended");
                    done.errors += 1;
                    break;
                }
            }
        }
        let (store, options) = (self.0.store(), self.0.options());
        done.errors +=
            forget("entries of the audit chains", || store.prune_chain(options.audit_retention, BATCH)).await;
        done.errors += forget("workflows", || store.forget_workflows(options.retention, BATCH)).await;
        done.errors += forget("cached results", || store.forget_cached(options.cache_age, BATCH)).await;
        done.cleaned += self.0.release_dead_hosts(None).await;
        done.errors += self.kill_pending().await;
        done.errors += self.reconcile().await;
        // The last part may come as the address expires, and is then joined.
        self.0.outputs().remove_parts_before(self.0.parts.clock.now() - LIFE * 2).await;
        let kept = TimeDelta::from_std(self.0.options().retention).unwrap_or(TimeDelta::MAX);
        if let Some(cutoff) = self.0.parts.clock.now().checked_sub_signed(kept) {
            self.0.outputs().remove_before(cutoff).await;
        }
        done
    }

    /// Kills the sandboxes in the outbox. Returns how many could not be killed now.
    async fn kill_pending(&self) -> u32 {
        let mut failed = 0;
        loop {
            let pending = match self.0.store().claim_kills(BATCH, VISIBILITY).await {
                Ok(pending) => pending,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "the outbox cannot be read");
                    return failed + 1;
                }
            };
            if pending.is_empty() {
                return failed;
            }
            crash_point!(self.0, "kill.claimed");
            for entry in pending {
                if let Err(why) = self.kill_one(&entry).await {
                    failed += 1;
                    metrics::KILLS_FAILED.add(&[], 1);
                    tracing::warn!(context.id = %entry.context, reason = %entry.reason, error = %why, "a sandbox could not be killed");
                    let _ = self.0.store().kill_failed(entry.id, &why).await;
                    continue;
                }
                crash_point!(self.0, "kill.sent");
                let reason = entry.reason.parse().map_or("unknown", EndReason::as_str);
                metrics::CONTEXTS_TERMINATED.add(&[reason], 1);
                if let Err(error) = self.0.store().kill_done(entry.id).await {
                    tracing::warn!(error = %chain(&error), "a killed sandbox could not be removed from the outbox");
                    failed += 1;
                }
                crash_point!(self.0, "kill.recorded");
            }
        }
    }

    /// "Not found" counts as success: dead is what it should be.
    #[instrument(level = "debug", name = "sandbox.kill", skip_all, fields(context.id = %entry.context))]
    async fn kill_one(&self, entry: &PendingKill) -> Result<(), String> {
        match &entry.sandbox {
            Some(sandbox) => {
                self.0.tools.leave(sandbox.sandbox_id.as_str());
                let client = self.0.client_of(sandbox).map_err(|error| error.to_string())?;
                match client.kill(&access_of(sandbox).id).await {
                    Ok(_) => Ok(()),
                    // A local host that does not answer died with its process, and its sandboxes with it.
                    Err(error) if error.is_unreachable() && self.0.host_is_dead_when_silent(sandbox) => {
                        Ok(())
                    }
                    Err(error) => Err(chain(&error)),
                }
            }
            None => {
                let Ok(client) = self.0.provider() else { return Ok(()) };
                for id in self.tagged(client, entry.context, entry.epoch).await? {
                    client.kill(&id).await.map_err(|error| chain(&error))?;
                }
                Ok(())
            }
        }
    }

    async fn tagged(
        &self,
        client: &E2bClient,
        context: ContextId,
        epoch: i64,
    ) -> Result<Vec<SandboxId>, String> {
        let filter = ListFilter { metadata: self.0.tag(context, epoch), ..ListFilter::default() };
        let listed = client.list(&filter).await.map_err(|error| chain(&error))?;
        Ok(listed.into_iter().filter_map(|sandbox| sandbox.sandbox_id.parse().ok()).collect())
    }

    /// The provider's list against the rows: what no row owns is killed, unless it is so young that its creator may
    /// not have reported it yet. Returns the number of errors.
    #[instrument(name = "sandbox.reconcile", skip_all)]
    pub async fn reconcile(&self) -> u32 {
        let Ok(client) = self.0.provider() else { return 0 };
        let filter = ListFilter { metadata: self.0.own_tag(), ..ListFilter::default() };
        let listed = match client.list(&filter).await {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the provider's list cannot be read");
                return 1;
            }
        };
        crash_point!(self.0, "reconcile.listed");
        let there: BTreeSet<SandboxId> =
            listed.iter().filter_map(|sandbox| sandbox.sandbox_id.parse().ok()).collect();
        let young = self.0.options().limits.create_timeout * 2;
        let now = self.0.parts.clock.now();
        let tagged: Vec<((ContextId, i64), SandboxId)> = listed
            .into_iter()
            .filter(|sandbox| (now - sandbox.started_at).to_std().unwrap_or_default() > young)
            .filter_map(|sandbox| {
                let context = sandbox.metadata.get(CONTEXT_ID)?.parse().ok()?;
                let epoch = sandbox.metadata.get(EPOCH)?.parse().ok()?;
                Some(((context, epoch), sandbox.sandbox_id.parse().ok()?))
            })
            .collect();
        let tags: Vec<(ContextId, i64)> = tagged.iter().map(|(tag, _)| *tag).collect();
        let unowned = match self.0.store().unowned(&tags).await {
            Ok(unowned) => unowned,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the rows cannot be compared");
                return 1;
            }
        };
        crash_point!(self.0, "reconcile.compared");
        let mut errors = 0;
        for (tag, id) in tagged.into_iter().filter(|(tag, _)| unowned.contains(tag)) {
            tracing::warn!(context.id = %tag.0, "a sandbox without an owner is killed");
            metrics::SANDBOXES_LEAKED.add(&[], 1);
            if let Err(error) = client.kill(&id).await {
                tracing::warn!(error = %chain(&error), "it could not be killed");
                errors += 1;
            }
            crash_point!(self.0, "reconcile.killed");
        }
        errors + self.mark_vanished(there).await
    }

    /// Rows against the provider: a ready context whose sandbox is gone is ended as lost. `there`: what the configured
    /// provider has listed. A local host is asked for its list once; only what no list has is asked for by itself.
    async fn mark_vanished(&self, there: BTreeSet<SandboxId>) -> u32 {
        let mut errors = 0;
        let mut after = None;
        let mut lists = BTreeMap::from([(None, there)]);
        loop {
            let min_age = self.0.options().limits.create_timeout;
            let rows = match self.0.store().owned(None, min_age, after, BATCH).await {
                Ok(rows) if rows.is_empty() => return errors,
                Ok(rows) => rows,
                Err(_) => return errors + 1,
            };
            for row in rows {
                after = Some(row.id);
                let Some(sandbox) = &row.sandbox else { continue };
                let Ok(client) = self.0.client_of(sandbox) else { continue };
                if !lists.contains_key(&sandbox.host_url) {
                    lists.insert(sandbox.host_url.clone(), self.listed_at(&client).await);
                }
                if lists.get(&sandbox.host_url).is_some_and(|list| list.contains(&sandbox.sandbox_id)) {
                    continue;
                }
                let gone = match client.get(&sandbox.sandbox_id).await {
                    Ok(_) => false,
                    Err(error) if error.is_lost() => true,
                    Err(error) => error.is_unreachable() && self.0.host_is_dead_when_silent(sandbox),
                };
                if gone && self.0.mark_lost(&row).await.is_err() {
                    errors += 1;
                }
            }
        }
    }

    /// What one provider lists; nothing when it does not answer.
    async fn listed_at(&self, client: &E2bClient) -> BTreeSet<SandboxId> {
        let filter = ListFilter { metadata: self.0.own_tag(), ..ListFilter::default() };
        let listed = client.list(&filter).await.unwrap_or_default();
        listed.iter().filter_map(|sandbox| sandbox.sandbox_id.parse().ok()).collect()
    }

    /// Ends the contexts whose sandboxes live in this process, before it goes: nothing is left that another process
    /// would have to find out about.
    pub async fn release_own_host(&self) {
        let Some(local) = self.0.parts.local.as_ref() else { return };
        let mut after = None;
        while let Ok(rows) = self.0.store().owned(None, Duration::ZERO, after, BATCH).await {
            if rows.is_empty() {
                return;
            }
            for row in rows {
                after = Some(row.id);
                if row.sandbox.as_ref().and_then(|s| s.host_url.as_deref()) == Some(local.url.as_str()) {
                    let _ = self.0.mark_lost(&row).await;
                }
            }
        }
    }
}

/// Removes what is too old, batch by batch. Returns how many times that failed.
async fn forget<F, N>(what: &str, batch: impl Fn() -> F) -> u32
where
    F: Future<Output = Result<N, StoreError>>,
    N: Into<u64>,
{
    loop {
        match batch().await.map(Into::into) {
            Ok(0_u64) => return 0,
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(error = %chain(&error), "old {what} could not be removed");
                return 1;
            }
        }
    }
}
