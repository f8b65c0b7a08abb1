//! `search_tools`: finds tools of other servers for a program to call. It is there only where such servers are.

use rmcp::RoleServer;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bridge::types::{Style, documentation, signature};
use crate::bridge::{Need, PATIENCE};
use crate::domain::Scope;
use crate::mcp::{McpServer, ToolError, schema};

/// The tool's name.
pub const NAME: &str = "search_tools";

/// What the tool takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// What is to be done, in words: one step, not a whole task.
    query: String,
    /// Tools at most, 1 to 20; 5 when left out.
    #[serde(default)]
    #[schemars(range(min = 1, max = 20))]
    limit: Option<u64>,
    /// How much to tell: `names`, `signatures` (when left out), or `full` with what each parameter means.
    #[serde(default)]
    detail: Option<Detail>,
    /// The language of the signatures; python when left out.
    #[serde(default)]
    language: Option<SignatureLanguage>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Detail {
    Names,
    Signatures,
    Full,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum SignatureLanguage {
    Python,
    Javascript,
    Typescript,
    Bash,
}

/// What the tool gives back as structured content.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Output {
    /// The tools that fit best, best first.
    pub tools: Vec<Found>,
    /// Servers that could not be reached, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// A tool that was found.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Found {
    /// What a program writes: `server.tool`.
    pub tool: String,
    /// What it takes and gives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// What it does, as its server says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether a person is asked before it is called.
    pub asks: bool,
}

/// The tool as it is listed.
pub fn tool(servers: &[String]) -> Tool {
    let named = if servers.is_empty() { String::new() } else { format!(" ({})", servers.join(", ")) };
    let description = format!(
        "Find tools of the connected servers{named} by what they do. They are not called one by one: write a program with run_code \
         that does `from tools import <server>` and calls them, so that intermediate results stay in the sandbox."
    );
    Tool::new(NAME, description, schema::arguments::<Input>())
        .with_title("Search tools")
        .with_raw_output_schema(schema::output::<Output>())
        .with_annotations(
            ToolAnnotations::with_title("Search tools")
                .read_only(true)
                .destructive(false)
                .idempotent(true)
                .open_world(false),
        )
}

impl McpServer {
    pub(in crate::mcp) async fn search_tools(
        &self,
        arguments: JsonObject,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ToolError> {
        let input: Input = self.parse(NAME, arguments)?;
        let caller = self.caller(&context)?;
        caller.needs(Scope::Run)?;
        let service = self.service().await?;
        let guard = service.policies.of(&caller.tenant);
        let Some(bridge) = service.bridge.as_ref().filter(|bridge| bridge.serves(&caller.tenant)) else {
            return Err(ToolError::not_found("No tool server is configured for you", "Use run_code only."));
        };
        let limit = match input.limit {
            None => 5,
            Some(limit @ 1..=20) => limit as usize,
            Some(_) => return Err(ToolError::argument("argument `limit`: allowed is 1 to 20")),
        };
        let style = match input.language {
            None | Some(SignatureLanguage::Python) => Style::Python,
            Some(_) => Style::TypeScript,
        };
        let detail = input.detail.unwrap_or(Detail::Signatures);
        let catalog = bridge.catalog_for(&caller.tenant, Some(PATIENCE), |_, _| Need::Any).await;
        let shown = |text: &str| guard.line(text).into_inner();
        let tools: Vec<Found> = bridge
            .search(&catalog, &input.query, limit)
            .await
            .into_iter()
            .map(|tool| Found {
                tool: shown(&tool.callable()),
                signature: (detail != Detail::Names).then(|| shown(&signature(tool, style))),
                description: match detail {
                    Detail::Names => None,
                    Detail::Signatures => {
                        let first: String =
                            tool.description.lines().next().unwrap_or_default().chars().take(240).collect();
                        Some(shown(&first))
                    }
                    Detail::Full => Some(shown(&documentation(tool))),
                },
                asks: tool.asks,
            })
            .collect();
        let fatal = catalog.problems.iter().filter(|problem| problem.fatal);
        let problems =
            fatal.map(|problem| shown(&format!("{}: {}", problem.server, problem.problem))).collect();
        let output = Output { tools, problems };
        let mut result = CallToolResult::success(vec![ContentBlock::text(output.text())]);
        result.is_error = None;
        result.structured_content = serde_json::to_value(&output).ok();
        Ok(result)
    }
}

impl Output {
    /// The same for who reads text.
    fn text(&self) -> String {
        let mut text = String::new();
        for found in &self.tools {
            text.push_str(found.signature.as_deref().unwrap_or(&found.tool));
            if found.asks {
                text.push_str("  (asks a person first)");
            }
            if let Some(description) = &found.description {
                text.push_str(&format!("\n    {}", description.replace('\n', "\n    ")));
            }
            text.push('\n');
        }
        if self.tools.is_empty() {
            text.push_str("No tool matches these words; try other ones.\n");
        }
        for problem in &self.problems {
            text.push_str(&format!("not reachable: {problem}\n"));
        }
        text
    }
}
