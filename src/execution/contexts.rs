//! The live contexts, for whoever lists and ends them, and their handles.

use std::sync::Arc;

use crate::domain::{ContextKey, ConversationId, EndReason, TenantId};
use crate::store::{ContextFilter, ContextRow, End};

use super::crash::crash_point;
use super::{Core, ExecutionError};

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

    /// The live contexts of a conversation, newest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn of_conversation(
        &self,
        tenant: &TenantId,
        conversation: &ConversationId,
    ) -> Result<Vec<ContextRow>, ExecutionError> {
        let filter = ContextFilter {
            tenant: Some(tenant.clone()),
            conversation: Some(conversation.clone()),
            ..ContextFilter::default()
        };
        Ok(self.0.store().contexts(&filter).await?)
    }

    /// A handle to a context, for a result to this caller; nobody else can use it.
    pub fn mint_handle(&self, key: &ContextKey, principal: Option<&str>) -> String {
        self.0.mint_handle(key, principal)
    }

    /// Opens a handle that came with a call.
    ///
    /// # Errors
    /// [`ExecutionError::UnknownHandle`] for anything that this installation did not mint for this caller.
    pub fn open_handle(
        &self,
        handle: &str,
        tenant: &TenantId,
        principal: &str,
    ) -> Result<ContextKey, ExecutionError> {
        self.0.parts.handles.open(handle, tenant, principal).ok_or(ExecutionError::UnknownHandle)
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
        self.0.doomed.notify_one();
        Ok(ended)
    }
}
