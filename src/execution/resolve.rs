//! Placeholders in the code of a call: in the sandbox, and only there, each is the value that it replaced in this context.
//!
//! The values are put in just before the code goes to the provider. What is recorded, hashed and logged of a call is the code
//! as it was sent, and the run's guard knows the values: whatever quotes the code says the placeholders again.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use super::acquire::Held;
use super::attempts::Fault;
use super::{Call, Core, ExecutionError, Runs};
use crate::domain::{CodeRequest, Secret};
use crate::e2b::NetworkPolicy;
use crate::guard::{Guard, Kind, Lexer, Numbering, placeholders_in, put_in};

/// What runs in the place of the code that was sent.
pub(super) struct Resolved {
    pub(super) code: Zeroizing<String>,
    /// Knows what was put in.
    pub(super) guard: Guard,
}

impl Runs {
    /// Whether a placeholder in the code of a call is text in the sandbox too, whatever it represents.
    pub fn leaves_as_text(&self, call: &Call, placeholder: &str) -> bool {
        let kind =
            placeholder.trim_matches(['[', ']']).rsplit_once('_').and_then(|(kind, _)| kind.parse().ok());
        let guard = self.0.guard_for(call);
        !guard.policy().resolves().zip(kind).is_some_and(|(resolving, kind)| resolving.kinds.contains(&kind))
    }
}

impl Core {
    /// The code with the values of its placeholders; `None`: it has none that becomes a value, and runs as it was sent.
    pub(super) async fn resolve(
        &self,
        held: &Held,
        request: &CodeRequest,
        guard: &Guard,
        numbering: &Numbering,
    ) -> Result<Option<Resolved>, Fault> {
        let Some(policy) = guard.policy().resolves() else { return Ok(None) };
        let (lexer, code) = (Lexer::from(request.language), request.code.as_str());
        let mut found = placeholders_in(lexer, code);
        found.retain(|(_, kind, number)| policy.kinds.contains(kind) && numbering.issued(*kind, *number));
        let Some((first, kind, number)) = found.first() else { return Ok(None) };
        let refused = |why: &str| {
            let line = 1 + code[..first.start].matches('\n').count();
            let placeholder = format!("{kind}_{number}");
            Fault::Refused(ExecutionError::Unresolved { placeholder, line, why: why.to_owned() })
        };
        let tenant = &held.row.key.tenant;
        if !policy.open_network && self.options().recipes.of(tenant).network != NetworkPolicy::Closed {
            return Err(refused(
                "its sandbox may reach a network, and the policy does not say `placeholders_open_network = true`",
            ));
        }
        let mut wanted: Vec<(String, u32)> =
            found.iter().map(|(_, kind, number)| (kind.as_str().to_owned(), *number)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let taken = self.store().take_values(tenant, held.row.id, &wanted).await;
        let taken = taken.map_err(|error| Fault::Refused(error.into()))?;
        let Some(taken) = taken else {
            return Err(refused("this context has reached its limit of resolved values"));
        };
        let values: BTreeMap<(Kind, u32), Secret> = taken
            .into_iter()
            .filter_map(|(kind, number, value)| Some(((kind.parse().ok()?, number), value)))
            .collect();
        let places: Vec<_> = found
            .iter()
            .map(|(span, kind, number)| (span.clone(), values.get(&(*kind, *number)).map(Secret::expose)))
            .collect();
        let code = put_in(lexer, code, &places).map_err(|unresolved| {
            let placeholder = unresolved.placeholder.trim_matches(['[', ']']).to_owned();
            let (line, why) = (unresolved.line, unresolved.why.to_owned());
            Fault::Refused(ExecutionError::Unresolved { placeholder, line, why })
        })?;
        let known = values.iter().map(|((kind, number), value)| (*kind, *number, value.expose()));
        Ok(Some(Resolved { code, guard: guard.resolving(known) }))
    }
}
