//! What the store remembers of the tools of other servers, as the bridge and a run ask for it.

use async_trait::async_trait;

use crate::bridge::PinStore;
use crate::store::{DynStore, ToolPermit};
use crate::telemetry::chain;

use super::Core;

/// Hashes of tools in the store.
#[derive(Debug)]
pub struct StoredPins(pub DynStore);

#[async_trait]
impl PinStore for StoredPins {
    async fn pins(
        &self,
        scope: &str,
        server: &str,
        known: Option<&str>,
    ) -> Result<Option<(String, Option<String>)>, String> {
        let found = self.0.tool_pins(scope, server, known).await.map_err(|error| chain(&error))?;
        Ok(found.map(|found| (found.digest, found.pins)))
    }

    async fn pin(&self, scope: &str, server: &str, pins: &str, replace: bool) -> Result<String, String> {
        self.0.pin_tools(scope, server, pins, replace).await.map_err(|error| chain(&error))
    }
}

impl Core {
    /// Whether a person allowed a tool for this conversation. A store that does not answer allows nothing.
    pub(super) async fn was_permitted(&self, permit: &ToolPermit) -> bool {
        self.store().tool_permitted(permit).await.unwrap_or_else(|error| {
            tracing::warn!(error = %chain(&error), "what a person allowed for this conversation cannot be read");
            false
        })
    }

    /// Remembers that a person allowed a tool for this conversation.
    pub(super) async fn permit(&self, permit: &ToolPermit) {
        if let Err(error) = self.store().permit_tool(permit).await {
            tracing::warn!(error = %chain(&error), "what a person allowed for this conversation cannot be kept; it holds for this run");
        }
    }
}
