//! The guard of a call, and the placeholder numbers of a context: what the store knows and what it has yet to be told.

use std::sync::Arc;

use crate::domain::{ContextKey, Outcome};
use crate::guard::{Guard, Limits as GuardLimits, Numbering, Sanitized, Sealer};
use crate::store::Placeholders;

use super::acquire::Held;
use super::write_behind::Deferred;
use super::{Call, Core, Record};

impl Core {
    /// A recorded outcome once more through the guard, under today's policy; the record tells of that one.
    pub(super) async fn guard_again(
        &self,
        call: &Call,
        record: Record,
        outcome: Outcome,
    ) -> (Record, Sanitized<Outcome>) {
        let numbering = self.numbering(&call.key).await;
        let (outcome, guard) = self.guard_for(call).recorded(outcome, &record.guard, numbering);
        (Record { guard, ..record }, outcome)
    }

    /// The guard for what comes of a call.
    pub(super) fn guard_for(&self, call: &Call) -> Guard {
        self.parts.policies.for_call(&call.key, call.guard.as_ref())
    }

    pub(super) fn guard_limits(&self) -> GuardLimits {
        GuardLimits { max_chars: self.options().output_chars, max_results: self.options().max_results }
    }

    pub(super) async fn numbering(&self, key: &ContextKey) -> Numbering {
        let told = self.store().placeholders(key).await.unwrap_or_else(|error| {
            tracing::warn!(error = %error, "placeholder numbers are the ones last seen");
            Vec::new()
        });
        self.numbering_from(key, told)
    }

    /// The numbering for a run that holds its context. The store gave the numbers together with the turn, and whoever
    /// adds some holds the turn too, so they are the last ones; what this replica has yet to tell is added here.
    pub(super) async fn numbering_of(&self, held: &Held) -> Numbering {
        match &held.numbers {
            Some(told) => self.numbering_from(&held.row.key, told.clone()),
            None => self.numbering(&held.row.key).await,
        }
    }

    fn numbering_from(&self, key: &ContextKey, told: Placeholders) -> Numbering {
        let secret = self.parts.handles.placeholder_key(key);
        let rows = self.remembered.merge_numbers(key, told);
        Numbering::new(secret, rows).sealing(self.sealer(key))
    }

    pub(super) async fn save_numbering(self: &Arc<Self>, held: &Held, mut numbering: Numbering) {
        let new = numbering.take_fresh();
        if new.is_empty() {
            return;
        }
        let key = &held.row.key;
        self.remembered.add_numbers(key, &new);
        match self.store().save_placeholders(key, &new).await {
            Ok(()) => {}
            Err(error) if error.is_retryable() => {
                self.write_later(key, Deferred::Numbers(new));
            }
            Err(error) => tracing::warn!(error = %error, "placeholder numbers could not be kept"),
        }
    }

    /// What makes and opens a context's tokens, where there is a key for them.
    fn sealer(&self, key: &ContextKey) -> Option<Sealer> {
        self.parts.tokens.as_ref().map(|tokens| tokens.sealer(key))
    }
}
