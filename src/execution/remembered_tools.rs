//! What the store remembers of the tools of other servers, as the bridge and a run ask for it.

use async_trait::async_trait;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::bridge::ToolStore;
use crate::domain::{Secret, TenantId};
use crate::store::secrets::Place;
use crate::store::{DynStore, Keyring, ToolPermit};
use crate::telemetry::chain;

use super::Core;

/// The server under which refresh tokens are kept.
const REFRESH: &str = "refresh_token";

/// What the bridge remembers, in the store. A refresh token is kept as pins are, in a scope outside of the tenants.
#[derive(Debug)]
pub struct StoredTools {
    store: DynStore,
    keyring: Keyring,
    /// The scope of the operator's own secrets, outside of the tenants.
    operator: TenantId,
}

impl StoredTools {
    /// In this store, with refresh tokens sealed by these keys.
    pub fn new(store: DynStore, keyring: Keyring) -> Self {
        #[expect(clippy::expect_used, reason = "a fixed text within the set")]
        let operator = TenantId::parse("operator").expect("a tenant id");
        Self { store, keyring, operator }
    }
}

#[async_trait]
impl ToolStore for StoredTools {
    async fn pins(
        &self,
        scope: &str,
        server: &str,
        known: Option<&str>,
    ) -> Result<Option<(String, Option<String>)>, String> {
        let found = self.store.tool_pins(scope, server, known).await.map_err(|error| chain(&error))?;
        Ok(found.map(|found| (found.digest, found.pins)))
    }

    async fn pin(&self, scope: &str, server: &str, pins: &str, replace: bool) -> Result<String, String> {
        self.store.pin_tools(scope, server, pins, replace).await.map_err(|error| chain(&error))
    }

    async fn refresh_token(&self, name: &str) -> Result<Option<Secret>, String> {
        let row = format!("oauth/{name}");
        let found = self.store.tool_pins(&row, REFRESH, None).await.map_err(|error| chain(&error))?;
        let Some(text) = found.and_then(|found| found.pins) else { return Ok(None) };
        let sealed = STANDARD.decode(text).map_err(|error| error.to_string())?;
        let place = Place { tenant: &self.operator, row: &row, column: "pins" };
        // Sealed with a key that is gone, it is as good as never kept.
        Ok(self.keyring.open_sealed(place, &sealed).ok())
    }

    async fn keep_refresh_token(&self, name: &str, token: &Secret) -> Result<(), String> {
        let row = format!("oauth/{name}");
        let place = Place { tenant: &self.operator, row: &row, column: "pins" };
        let sealed = STANDARD.encode(self.keyring.seal(place, token));
        self.store.pin_tools(&row, REFRESH, &sealed, true).await.map(drop).map_err(|error| chain(&error))
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
