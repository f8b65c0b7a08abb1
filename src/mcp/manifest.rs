//! Renders `mcp-manifest.json`, an MCPB 0.3 manifest out of the tools themselves, so that it cannot say anything else than
//! the server does, and `server.json`, the entry of the MCP registry (schema of 2025-12-11).

use serde_json::{Value, json};

use super::McpServer;

/// The manifest. A test fails when the file at the top of the repository differs.
pub fn manifest(server: &McpServer) -> Value {
    let tools: Vec<Value> = server
        .tools()
        .iter()
        .map(|tool| json!({ "name": tool.name, "description": tool.description }))
        .collect();
    json!({
        "manifest_version": "0.3",
        "name": "pathbox",
        "display_name": "Pathbox",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "Runs a language model's code in sandboxes that follow the conversation's path.",
        "long_description": "Stateful Python in an isolated sandbox on this machine, with nothing to configure: \
            state is kept between calls, plots come back as pictures, personal data and secrets in the output are \
            redacted before a model sees them. Set E2B_API_KEY to use E2B's cloud instead.",
        "author": { "name": "The Pathbox authors" },
        "license": env!("CARGO_PKG_LICENSE"),
        "server": {
            "type": "binary",
            "entry_point": "server/pathbox",
            "mcp_config": {
                "command": "${__dirname}/server/pathbox",
                "args": ["serve"],
                "env": {
                    "PATHBOX_DATA_DIR": "${user_config.data_dir}",
                    "E2B_API_KEY": "${user_config.e2b_api_key}"
                }
            }
        },
        "tools": tools,
        "keywords": ["code execution", "sandbox", "python", "e2b", "data analysis"],
        "compatibility": { "platforms": ["linux"] },
        "user_config": {
            "data_dir": {
                "type": "directory",
                "title": "Data directory",
                "description": "Where Pathbox keeps its database and outputs; leave empty for the usual place",
                // A variable in a default is not replaced by every host. Empty, the server's own default counts.
                "default": "",
                "required": false
            },
            "e2b_api_key": {
                "type": "string",
                "title": "E2B API key",
                "description": "Leave empty to run code in sandboxes on this machine",
                "default": "",
                "sensitive": true,
                "required": false
            }
        }
    })
}

/// The entry of the MCP registry.
pub fn registry_entry() -> Value {
    let package = |registry: &str, runtime: &str| {
        json!({
            "registryType": registry,
            "identifier": "pathbox",
            "version": env!("CARGO_PKG_VERSION"),
            "runtimeHint": runtime,
            "transport": { "type": "stdio" },
            "packageArguments": [{ "type": "positional", "value": "serve" }],
            "environmentVariables": [
                { "name": "PATHBOX_DATA_DIR", "description": "Where Pathbox keeps its database and outputs", "isRequired": false },
                { "name": "E2B_API_KEY", "description": "Runs code in E2B's cloud instead of on this machine",
                  "isRequired": false, "isSecret": true },
            ],
        })
    };
    json!({
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": "io.github.pathbox/pathbox",
        "title": "Pathbox",
        "description": "Runs a language model's code in sandboxes that follow the conversation's path.",
        "version": env!("CARGO_PKG_VERSION"),
        "packages": [package("npm", "npx"), package("pypi", "uvx")],
    })
}

/// A document as its file holds it.
pub fn text(document: &Value) -> String {
    format!("{document:#}\n")
}
