//! What the store remembers about the tools of other servers, for every replica and across restarts.

use async_trait::async_trait;

use super::StoreError;
use crate::domain::ConversationKey;

/// What was accepted of a server's tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolPins {
    /// SHA-256 of the whole text, hex.
    pub digest: String,
    /// A JSON object of tools and the hashes of their definitions; `None` where the requester has it already.
    pub pins: Option<String>,
}

/// "Yes, for this conversation": who said it, where, and to which tool as it was defined then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolPermit {
    /// Where.
    pub conversation: ConversationKey,
    /// Who.
    pub principal: String,
    /// `server.tool`.
    pub tool: String,
    /// SHA-256 of its definition, hex.
    pub definition: String,
}

/// What is remembered of the tools of other servers.
#[async_trait]
pub trait ToolMemory: Send + Sync {
    /// What was accepted of a server, without the text where its digest is `known`. `scope` is empty for a server that every
    /// tenant has, else the tenant.
    async fn tool_pins(
        &self,
        scope: &str,
        server: &str,
        known: Option<&str>,
    ) -> Result<Option<ToolPins>, StoreError>;

    /// Keeps what a server's tools are. The first list stays, unless it is to be replaced. Gives the text that holds then.
    async fn pin_tools(
        &self,
        scope: &str,
        server: &str,
        pins: &str,
        replace: bool,
    ) -> Result<String, StoreError>;

    /// The refresh token that was kept last under this name, sealed, in base64.
    async fn refresh_token(&self, name: &str) -> Result<Option<String>, StoreError>;

    /// Keeps a refresh token instead of the one before.
    async fn keep_refresh_token(&self, name: &str, sealed: &str) -> Result<(), StoreError>;

    /// Remembers a permit, for 30 days.
    async fn permit_tool(&self, permit: &ToolPermit) -> Result<(), StoreError>;

    /// Whether such a permit was given. A tool that is defined otherwise by now is another tool.
    async fn tool_permitted(&self, permit: &ToolPermit) -> Result<bool, StoreError>;
}
