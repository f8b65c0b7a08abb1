//! The tools, one file each.

use rmcp::model::{JsonObject, Tool};

use super::Options;
use crate::domain::Scope;

mod arguments;
pub mod files;
pub mod get_analysis_help;
pub mod get_artifact;
pub mod get_execution;
pub mod manage_context;
pub mod run_analysis;
pub mod run_code;
pub mod search_tools;
pub mod workflows;

/// Every tool, in the order in which clients see them. The order is part of the contract: it keeps prompts stable.
/// `servers`: whether the caller has tool servers.
pub fn list(options: &Options, servers: bool) -> Vec<Tool> {
    let mut all = vec![
        run_code::tool(options.network, servers, options.templates.as_deref()),
        run_analysis::tool(),
        get_analysis_help::tool(),
        manage_context::tool(),
        get_execution::tool(),
        get_artifact::tool(),
        files::tool(),
    ];
    all.extend(options.tool_servers.as_ref().filter(|_| servers).map(|all| search_tools::tool(&all.names)));
    if options.workflows {
        all.extend(workflows::tools());
    }
    all
}

/// The scope that a call needs. Each handler checks it as well.
pub fn scope_of(name: &str, arguments: Option<&JsonObject>) -> Scope {
    let says = |key: &str| arguments.and_then(|arguments| arguments.get(key));
    match name {
        manage_context::NAME => match says("action").and_then(|action| action.as_str()) {
            Some("reset" | "end" | "branch") => Scope::Run,
            _ => Scope::Read,
        },
        get_execution::NAME => match says("cancel").and_then(|cancel| cancel.as_bool()) {
            Some(true) => Scope::Run,
            _ => Scope::Read,
        },
        get_artifact::NAME | get_analysis_help::NAME | workflows::GET => Scope::Read,
        _ => Scope::Run,
    }
}
