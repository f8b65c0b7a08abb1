//! Renders `mcp-manifest.json`: an MCPB 0.3 manifest out of the tools themselves, so that it cannot say anything
//! else than the server does.

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
                "description": "Where Pathbox keeps its database and outputs",
                "default": "${HOME}/.local/share/pathbox",
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

/// The manifest as the file holds it.
pub fn text(server: &McpServer) -> String {
    format!("{:#}\n", manifest(server))
}
