//! The tools, one file each.

use rmcp::model::Tool;

pub mod run_analysis;
pub mod run_code;

/// Every tool, in the order in which clients see them. The order is part of the contract: it keeps prompts stable.
pub fn list() -> Vec<Tool> {
    vec![run_code::tool(), run_analysis::tool()]
}
