//! The guard of a call, and the placeholder numbers of a context: what the store has and what is still to be written.

use std::sync::Arc;

use crate::domain::{ContextKey, Outcome, Secret};
use crate::guard::{Guard, Numbering, OutputLimits, Sanitized, Sealer};
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

    pub(super) fn guard_limits(&self) -> OutputLimits {
        OutputLimits { max_chars: self.options().output_chars, max_results: self.options().max_results }
    }

    pub(super) async fn numbering(&self, key: &ContextKey) -> Numbering {
        let stored = self.store().placeholders(key).await.unwrap_or_else(|error| {
            tracing::warn!(error = %error, "placeholder numbers are the ones last seen");
            Vec::new()
        });
        self.numbering_from(key, stored)
    }

    /// The numbering for a run that holds its context. The store gave the numbers together with the turn, and only the
    /// holder of the turn adds some, so they are the latest; what this replica has not written yet is added here.
    pub(super) async fn numbering_of(&self, held: &Held, guard: &Guard) -> Numbering {
        let numbering = match &held.numbers {
            Some(stored) => self.numbering_from(&held.row.key, stored.clone()),
            None => self.numbering(&held.row.key).await,
        };
        match guard.policy().resolves() {
            Some(resolving) => numbering.keeping(&resolving.kinds),
            None => numbering,
        }
    }

    fn numbering_from(&self, key: &ContextKey, stored: Placeholders) -> Numbering {
        let secret = self.parts.handles.placeholder_key(key);
        let rows = self.remembered.merge_numbers(key, stored);
        Numbering::new(secret, rows).sealing(self.sealer(key))
    }

    /// Keeps what a run has found: the numbers that it gave, and where the policy resolves placeholders the values behind them.
    pub(super) async fn save_numbering(self: &Arc<Self>, held: &Held, mut numbering: Numbering) {
        let values = numbering.take_values();
        if !values.is_empty() {
            let values = values
                .into_iter()
                .map(|(kind, number, value)| (kind.as_str().to_owned(), number, Secret::new(value.as_str())));
            let values: Vec<_> = values.collect();
            // They do not wait for a database that is away: a placeholder without its value is refused, and says so.
            if let Err(error) = self.store().keep_values(&held.row.key.tenant, held.row.id, &values).await {
                tracing::warn!(error = %error, "values of placeholders could not be kept");
            }
        }
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
