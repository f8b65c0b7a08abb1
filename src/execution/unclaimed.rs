//! Unclaimed contexts: of a call that named no conversation and had no default one, until its handle is used.
//! They live two minutes, and make room for others when a limit is reached, the one that was idle for longest first. Those of a
//! workflow's tasks are the workflow's.

use std::time::Duration;

use super::Core;
use super::workflows::is_of_workflow;
use crate::domain::{ContextKey, ContextStatus, EndReason};
use crate::store::{ContextFilter, ContextLimits, ContextRow, End, ExecutionFilter, ExecutionStatus};
use crate::telemetry::chain;

/// How long one lives after its run.
const TTL: Duration = Duration::from_secs(2 * 60);
/// Live contexts of a tenant that are looked through.
const LOOKED_AT: u32 = 1000;

fn may_be_unclaimed(key: &ContextKey) -> bool {
    key.conversation.is_of_one_call() && !is_of_workflow(&key.path)
}

impl Core {
    /// The limits of a new context: one of a single call is unclaimed.
    pub(super) fn limits_of(&self, key: &ContextKey) -> ContextLimits {
        let limits = self.options().limits.clone();
        match may_be_unclaimed(key) {
            true => ContextLimits { ttl: TTL.min(limits.ttl), ..limits },
            false => limits,
        }
    }

    /// The limits that hold for the record of a run: a context's first run in a conversation of one call claims nothing.
    pub(super) fn limits_after(&self, row: &ContextRow) -> ContextLimits {
        if row.execution_count == 0 { self.limits_of(&row.key) } else { self.options().limits.clone() }
    }

    /// Ends the unclaimed context of the key's tenant that was idle for longest. `false`: there is none.
    pub(super) async fn evict_unclaimed(&self, key: &ContextKey) -> bool {
        let filter = ContextFilter {
            tenant: Some(key.tenant.clone()),
            limit: Some(LOOKED_AT),
            ..ContextFilter::default()
        };
        let rows = match self.store().contexts(&filter).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "unclaimed contexts could not be looked for");
                return false;
            }
        };
        let mut unclaimed: Vec<ContextRow> = rows
            .into_iter()
            .filter(|row| row.status == ContextStatus::Ready && row.execution_count == 1)
            .filter(|row| may_be_unclaimed(&row.key) && row.key != *key)
            .collect();
        unclaimed.sort_by_key(|row| row.last_used_at);
        for row in unclaimed {
            if self.is_used(&row).await {
                continue;
            }
            let end = End {
                tenant: row.key.tenant,
                context: row.id,
                epoch: Some(row.epoch),
                reason: EndReason::Expired,
                error: None,
            };
            match self.store().end(&end, &self.options().limits).await {
                Ok(true) => {
                    self.kills.notify_one();
                    return true;
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "an unclaimed context could not be ended")
                }
            }
        }
        false
    }

    /// Whether a run holds it or waits for it; when that is unknown, it counts as used.
    async fn is_used(&self, row: &ContextRow) -> bool {
        let filter = ExecutionFilter {
            tenant: Some(row.key.tenant.clone()),
            conversation: Some(row.key.conversation.clone()),
            limit: Some(10),
            ..ExecutionFilter::default()
        };
        match self.store().executions(&filter).await {
            Ok(runs) => runs
                .iter()
                .any(|run| matches!(run.status, ExecutionStatus::Queued | ExecutionStatus::Running)),
            Err(_) => true,
        }
    }
}
