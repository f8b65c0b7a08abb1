//! The live contexts, listed and ended, and their handles.

use std::sync::Arc;

use crate::domain::{ContextKey, EndReason, TenantId};
use crate::store::{ContextFilter, ContextRow, End};

use super::crash::crash_point;
use super::{ClosedPath, Core, ExecutionError, Requester};

/// Lists and ends contexts, makes and opens their handles. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Contexts(pub(super) Arc<Core>);

impl Contexts {
    /// The live context of a key, without its sandbox.
    ///
    /// # Errors
    /// The store's.
    pub async fn live(&self, key: &ContextKey) -> Result<Option<ContextRow>, ExecutionError> {
        Ok(self.0.store().live(key).await?)
    }

    /// What has become of a path, if nothing runs on it any more.
    ///
    /// # Errors
    /// The store's.
    pub async fn closed(&self, key: &ContextKey) -> Result<Option<ClosedPath>, ExecutionError> {
        Ok(self.0.closed_path(key).await?)
    }

    /// The live contexts that the requester may enter, newest first: those of the `named` context's conversation; without one,
    /// its own in every conversation. A caller who acts for the tenant gets those of the call's own.
    ///
    /// # Errors
    /// The store's.
    pub async fn listed(
        &self,
        requester: &Requester,
        named: Option<&ContextKey>,
        own: &ContextKey,
    ) -> Result<Vec<ContextRow>, ExecutionError> {
        if named.is_none() && !requester.sees_tenant {
            let filter = ContextFilter {
                tenant: Some(requester.tenant.clone()),
                owner: Some(requester.owner.clone()),
                ..ContextFilter::default()
            };
            return Ok(self.0.store().contexts(&filter).await?);
        }
        let key = named.unwrap_or(own);
        // A shared conversation is its owner's; without a named one a caller that acts for the tenant sees every owner's.
        let owner = if key.owner == requester.owner { requester.lists() } else { Some(key.owner.clone()) };
        let filter = ContextFilter {
            tenant: Some(key.tenant.clone()),
            owner,
            conversation: Some(key.conversation.clone()),
            ..ContextFilter::default()
        };
        Ok(self.0.store().contexts(&filter).await?)
    }

    /// The live contexts of a tenant, or of all, newest first, up to a thousand.
    ///
    /// # Errors
    /// The store's.
    pub async fn all(&self, tenant: Option<&TenantId>) -> Result<Vec<ContextRow>, ExecutionError> {
        let filter = ContextFilter { tenant: tenant.cloned(), limit: Some(1000), ..ContextFilter::default() };
        Ok(self.0.store().contexts(&filter).await?)
    }

    /// A handle to a context, for a result to this caller; others cannot use it.
    pub fn mint_handle(&self, key: &ContextKey, principal: &str) -> String {
        self.0.mint_handle(key, principal)
    }

    /// Opens a handle that came with a call. One to a conversation of another principal opens for as long as that one
    /// shares it.
    ///
    /// # Errors
    /// [`ExecutionError::UnknownHandle`] for anything that this installation did not mint for this caller, or the
    /// store's.
    pub async fn open_handle(
        &self,
        handle: &str,
        tenant: &TenantId,
        requester: &Requester,
    ) -> Result<ContextKey, ExecutionError> {
        let key = self.0.parts.handles.open(handle, tenant, &requester.principal, &requester.owner);
        let key = key.ok_or(ExecutionError::UnknownHandle)?;
        if requester.sees_tenant || key.owner == requester.owner {
            return Ok(key);
        }
        let shared = self.0.store().is_shared_with(&key.of_conversation(), &requester.principal).await?;
        if shared { Ok(key) } else { Err(ExecutionError::UnknownHandle) }
    }

    /// Ends the live context of a key, if there is one. Its sandbox dies in the background.
    ///
    /// # Errors
    /// The store's.
    pub async fn end(&self, key: &ContextKey) -> Result<bool, ExecutionError> {
        let Some(row) = self.0.store().live(key).await? else { return Ok(false) };
        let end = End {
            tenant: key.tenant.clone(),
            context: row.id,
            epoch: None,
            reason: EndReason::Manual,
            error: None,
        };
        crash_point!(self.0, "end.before");
        let ended = self.0.store().end(&end, &self.0.options().limits).await?;
        crash_point!(self.0, "end.written");
        self.0.remembered.forget(key);
        self.0.kills.notify_one();
        Ok(ended)
    }
}
