//! The MCP gateway in a sandbox: servers of the Docker MCP catalog behind one URL and one token.
//!
//! The provider only keeps the settings that a create names; it is the client that starts the gateway, as root, the way
//! the official SDKs do it. The servers' settings are on the gateway's command line and are as visible inside the
//! sandbox as its template lets them be, so give each server a key of its own that opens nothing else.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{Command, E2bClient, E2bError, SandboxAccess};
use crate::wire::{MCP_PORT, Secret};

/// How long the gateway's starter may take; it fetches what its servers need and returns.
const START: Duration = Duration::from_secs(120);
/// How much of the starter's output is read.
const MAX_OUTPUT: usize = 1 << 20;

/// MCP servers by name, with their settings. Any text in a setting may be a key, so the debug form shows names only.
///
/// ```
/// use pathbox::e2b::McpServers;
/// let servers = McpServers::new(serde_json::json!({"exa": {"apiKey": "k-123"}}).as_object().unwrap().clone());
/// assert_eq!(format!("{servers:?}"), r#"McpServers({"exa"})"#);
/// ```
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct McpServers(Map<String, Value>);

impl McpServers {
    /// Servers by name: `{"exa": {"apiKey": "…"}}`, or `"github/<owner>/<repository>"` with `runCmd`, `installCmd`, `envs`.
    pub fn new(servers: Map<String, Value>) -> Self {
        Self(servers)
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn to_value(&self) -> Value {
        Value::Object(self.0.clone())
    }

    /// Every text in the settings, the longest first, so that none hides the end of another.
    fn secrets(&self) -> Vec<&str> {
        let mut found = Vec::new();
        let mut left: Vec<&Value> = self.0.values().collect();
        while let Some(value) = left.pop() {
            match value {
                Value::String(text) if text.len() > 3 => found.push(text.as_str()),
                Value::Array(items) => left.extend(items),
                Value::Object(members) => left.extend(members.values()),
                _ => {}
            }
        }
        found.sort_unstable_by_key(|text| std::cmp::Reverse(text.len()));
        found
    }
}

impl fmt::Debug for McpServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Names<'a>(&'a Map<String, Value>);
        impl fmt::Debug for Names<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_set().entries(self.0.keys()).finish()
            }
        }
        f.debug_tuple("McpServers").field(&Names(&self.0)).finish()
    }
}

/// An MCP gateway that runs in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpGateway {
    /// Where MCP clients outside find it (Streamable HTTP). Names the sandbox: keep it as a secret.
    pub url: Secret,
    /// Their bearer token.
    pub token: Secret,
}

impl E2bClient {
    /// Starts the MCP gateway of a sandbox whose template has one, as [`MCP_TEMPLATE`](super::MCP_TEMPLATE) has.
    ///
    /// Give the same servers to [`CreateSandbox::mcp`](super::CreateSandbox::mcp). Their traffic is the sandbox's: what
    /// they talk to must be in its network policy.
    ///
    /// # Errors
    /// [`E2bError::Command`] with the gateway's words; the sandbox is of no use then and should be killed.
    pub async fn start_mcp_gateway(
        &self,
        access: &SandboxAccess,
        servers: &McpServers,
    ) -> Result<McpGateway, E2bError> {
        let json = serde_json::to_string(servers).map_err(|error| E2bError::protocol("a request", error))?;
        let token = uuid::Builder::from_random_bytes(self.shared.entropy.bytes()).into_uuid();
        let token = Secret::new(token.to_string());
        let command = Command {
            envs: BTreeMap::from([("GATEWAY_ACCESS_TOKEN".to_owned(), token.clone())]),
            life: Some(START),
            ..Command::shell(format!("mcp-gateway --config {}", shell_quote(&json)))
        };
        let processes = self.processes(access).as_user("root");
        let output = processes.run(&command, MAX_OUTPUT).await?;
        if output.exit_code != 0 {
            let mut said = output.stderr.replace(token.expose(), "[secret]");
            for secret in servers.secrets() {
                said = said.replace(secret, "[secret]");
            }
            let message = processes.envd.hide().text(said.as_bytes());
            return Err(E2bError::Command { what: "mcp-gateway", exit_code: output.exit_code, message });
        }
        let base = self.endpoint.direct_base(&access.id, access.domain.as_deref(), MCP_PORT);
        Ok(McpGateway { url: Secret::new(format!("{base}/mcp")), token })
    }
}

/// A text quoted as one word for a shell.
fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_text_is_one_word_and_runs_nothing() {
        for text in ["", "a b", "it's", "'; touch /tmp/x; '", "$(id) `id` \\ \"", "a\nb"] {
            let script = format!("printf %s {}", shell_quote(text));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), text);
        }
    }

    #[test]
    fn all_texts_of_a_gateways_settings_count_as_secrets_and_none_is_shown() {
        let servers = serde_json::json!({"a": {"apiKey": "k-123", "deep": [{"t": "k-123-456"}]}, "b": {}});
        let servers = McpServers::new(servers.as_object().unwrap().clone());
        assert_eq!(servers.secrets(), ["k-123-456", "k-123"]);
        assert_eq!(format!("{servers:?}"), r#"McpServers({"a", "b"})"#);
    }
}
