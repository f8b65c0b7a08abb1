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

/// What the bridge remembers, in the store.
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

    fn place<'p>(&'p self, row: &'p str) -> Place<'p> {
        Place { tenant: &self.operator, row, column: "pins" }
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
        let Some(text) = self.store.refresh_token(name).await.map_err(|error| chain(&error))? else {
            return Ok(None);
        };
        let sealed = STANDARD.decode(text).map_err(|error| error.to_string())?;
        let row = refresh_row(name);
        // Sealed with a key that is gone, it is as good as never kept.
        Ok(self.keyring.open_sealed(self.place(&row), &sealed).ok())
    }

    async fn keep_refresh_token(&self, name: &str, token: &Secret) -> Result<(), String> {
        let row = refresh_row(name);
        let sealed = STANDARD.encode(self.keyring.seal(self.place(&row), token));
        self.store.keep_refresh_token(name, &sealed).await.map_err(|error| chain(&error))
    }
}

/// The place that a refresh token is sealed for: since before it had a table of its own.
fn refresh_row(name: &str) -> String {
    format!("oauth/{name}")
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
