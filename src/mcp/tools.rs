//! The tools, one file each.

use rmcp::model::Tool;

pub mod files;
pub mod get_artifact;
pub mod get_execution;
pub mod manage_context;
pub mod run_analysis;
pub mod run_code;

/// Every tool, in the order in which clients see them. The order is part of the contract: it keeps prompts stable.
/// `network`: whether some sandboxes reach hosts outside.
pub fn list(network: bool) -> Vec<Tool> {
    vec![
        run_code::tool(network),
        run_analysis::tool(),
        manage_context::tool(),
        get_execution::tool(),
        get_artifact::tool(),
        files::tool(),
    ]
}
