//! The sandbox provider as the rooms use it: which client reaches a sandbox, what its sandboxes are tagged with, and what
//! happens to a context whose sandbox or whole local host is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::{ContextId, EndReason, TenantId};
use crate::e2b::{E2bClient, Endpoint, ListFilter, SandboxAccess};
use crate::store::{Acquire, ContextRow, End, SandboxRef, Secret, StoreError};
use crate::telemetry::metrics;

use super::crash::crash_point;
use super::hosts::HostState;
use super::{Core, ExecutionError};

/// Rows that are read at a time.
const BATCH: u32 = 50;

/// Metadata that each of our sandboxes carries at its provider, so that the reconciler can tell whose it is.
pub(super) const APP: (&str, &str) = ("app", "pathbox");
/// Metadata key of the installation: several may share one provider account, and none may reap another's sandboxes.
pub(super) const INSTALLATION: &str = "pathbox_installation";
/// Metadata key of the context's id.
pub(super) const CONTEXT_ID: &str = "pathbox_context";
/// Metadata key of the creator's epoch.
pub(super) const EPOCH: &str = "pathbox_epoch";

impl Core {
    /// The client for a sandbox's provider: the configured one, or the local host that the row names.
    pub(super) fn client_of(&self, sandbox: &SandboxRef) -> Result<E2bClient, ExecutionError> {
        let client = self.provider()?;
        Ok(match (&sandbox.host_url, &sandbox.host_key) {
            (Some(url), Some(key)) => {
                client.at(&Endpoint::local(url.as_str(), key.clone())).map_err(ExecutionError::Create)?
            }
            _ => client.clone(),
        })
    }

    /// Whether a call may name the template that it names.
    pub(super) fn check_template(&self, ask: &Acquire) -> Result<(), ExecutionError> {
        let recipes = &self.options().recipes;
        match &ask.template {
            Some(name) if !recipes.may_name(&ask.key.tenant, name) => Err(ExecutionError::UnknownTemplate {
                name: name.clone(),
                allowed: recipes.of(&ask.key.tenant).templates.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether a context has the template that a call names.
    pub(super) fn has_template(&self, row: &ContextRow, ask: &Acquire) -> Result<(), ExecutionError> {
        let has =
            row.template.as_deref().unwrap_or_else(|| self.options().recipes.template_of(&row.key.tenant));
        match &ask.template {
            Some(asked) if asked != has => {
                Err(ExecutionError::TemplateConflict { asked: asked.clone(), has: has.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// The metadata that all sandboxes of this installation carry.
    pub(super) fn own_tag(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (APP.0.to_owned(), APP.1.to_owned()),
            (INSTALLATION.to_owned(), self.parts.handles.installation()),
        ])
    }

    /// The metadata of a context's sandbox.
    pub(super) fn tag(&self, context: ContextId, epoch: i64) -> BTreeMap<String, String> {
        let mut tag = self.own_tag();
        tag.insert(CONTEXT_ID.to_owned(), context.to_string());
        tag.insert(EPOCH.to_owned(), epoch.to_string());
        tag
    }

    /// How long a new or extended sandbox should live at its provider: past the context's own time to live, so
    /// that a row never says ready for a sandbox that the provider has ended.
    pub(super) fn sandbox_life(&self) -> Duration {
        let options = self.options();
        options.sandbox_timeout.max(options.limits.ttl * 2)
    }

    /// Ends a context whose sandbox is gone.
    pub(super) async fn mark_lost(&self, row: &ContextRow) -> Result<(), StoreError> {
        let end = End {
            tenant: row.key.tenant.clone(),
            context: row.id,
            epoch: Some(row.epoch),
            reason: EndReason::Lost,
            error: Some("the provider no longer knows the sandbox".into()),
        };
        self.remembered.forget(&row.key);
        crash_point!(self, "lost.before");
        let ended = self.store().end(&end, &self.options().limits).await;
        if let Ok(true) = ended {
            metrics::CONTEXTS_LOST.add(&[], 1);
        }
        crash_point!(self, "lost.marked");
        ended.map(drop)
    }

    /// Whether a sandbox is one of a local host that is dead when it does not answer.
    pub(super) fn host_is_dead_when_silent(&self, sandbox: &SandboxRef) -> bool {
        sandbox.host_key.as_ref().is_some_and(|key| self.parts.hosts.is_dead_when_silent(key))
    }

    /// Ends contexts whose local host no longer answers: their process has died and the sandboxes with it. Returns
    /// how many; of one tenant or of all. Other processes' hosts that answer are left alone.
    pub(super) async fn release_dead_hosts(&self, tenant: Option<&TenantId>) -> u32 {
        let mut released = 0;
        let mut after = None;
        let mut known: BTreeMap<String, bool> = BTreeMap::new();
        loop {
            let Ok(rows) = self.store().owned(tenant, Duration::ZERO, after, BATCH).await else {
                return released;
            };
            if rows.is_empty() {
                return released;
            }
            for row in rows {
                after = Some(row.id);
                let Some((url, key)) =
                    row.sandbox.as_ref().and_then(|s| s.host_url.as_ref().zip(s.host_key.as_ref()))
                else {
                    continue;
                };
                let dead = match known.get(url) {
                    Some(dead) => *dead,
                    None => {
                        let dead = match (self.parts.hosts.state(key), self.provider()) {
                            (HostState::Dead, _) => true,
                            (HostState::Ask, Ok(client)) => host_is_dead(client, url, key).await,
                            (HostState::Alive | HostState::Elsewhere | HostState::Ask, _) => false,
                        };
                        known.insert(url.clone(), dead);
                        dead
                    }
                };
                if dead && self.mark_lost(&row).await.is_ok() {
                    released += 1;
                }
            }
        }
    }
}

/// What the client needs to reach a sandbox's data plane.
pub(super) fn access_of(sandbox: &SandboxRef) -> SandboxAccess {
    SandboxAccess {
        id: sandbox.sandbox_id.clone(),
        domain: sandbox.domain.clone(),
        envd_token: sandbox.envd_token.clone(),
        traffic_token: sandbox.traffic_token.clone(),
        envd_version: None,
    }
}

/// Whether nothing answers at a local host's address, or something that does not know its key: the port may have gone
/// to another program since.
async fn host_is_dead(client: &E2bClient, url: &str, key: &Secret) -> bool {
    let Ok(client) = client.at(&Endpoint::local(url, key.clone())) else { return true };
    match client.list(&ListFilter { limit: Some(1), ..ListFilter::default() }).await {
        Ok(_) => false,
        Err(error) => error.is_unreachable() || matches!(error, crate::e2b::E2bError::Unauthenticated(_)),
    }
}
