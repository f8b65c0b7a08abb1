//! `manage_context`: see which sandboxes a conversation holds, start one afresh, end one, branch.

use rmcp::RoleServer;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::domain::{ContextKey, Entropy, PathId, Scope};
use crate::execution::{ClosedPath, ContextRow, ExecutionError};
use crate::mcp::{McpServer, ToolError, schema};

/// The tool's name.
pub const NAME: &str = "manage_context";

/// What the tool takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// `reset` and `end`: variables and files are gone; `branch`: a handle to a new path with a fresh sandbox.
    action: Action,
    /// As in run_code.
    #[serde(default)]
    context: Option<String>,
    /// Name of the new path; made up when absent.
    #[serde(default)]
    path: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Action {
    Show,
    List,
    Reset,
    End,
    Branch,
}

/// The tool as it is listed.
pub fn tool() -> Tool {
    let description = "Sandboxes: show this conversation's, list the caller's own (those of the conversation of `context` when \
        given), reset or end one, or branch: get a handle to a fresh sandbox that does not see this one's state.";
    schema::tool::<Input>(NAME, "Manage contexts", description).with_annotations(
        ToolAnnotations::new().read_only(false).destructive(true).idempotent(true).open_world(false),
    )
}

impl McpServer {
    pub(in crate::mcp) async fn manage_context(
        &self,
        arguments: JsonObject,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ToolError> {
        let input: Input = self.parse(NAME, arguments)?;
        let caller = self.caller(&context)?;
        let needed =
            if matches!(input.action, Action::Show | Action::List) { Scope::Read } else { Scope::Run };
        caller.needs(needed)?;
        let key = self.key(&caller, input.context.as_deref()).await?;
        let service = self.service().await?;
        let mint = |key: &ContextKey| service.contexts.mint_handle(key, &caller.principal.name);
        let structured = match input.action {
            Action::Show => {
                let live = service.contexts.live(&key).await?;
                let mut shown = match &live {
                    Some(live) => row(live),
                    None => closed_or_none(&key, service.contexts.closed(&key).await?, &mint),
                };
                shown["context"] = json!(mint(&key));
                shown
            }
            Action::List => {
                let named = input.context.as_ref().map(|_| &key);
                let rows = service.contexts.listed(&caller.requester(), named, &key).await?;
                let listed = rows.iter().map(|one| {
                    let mut shown = row(one);
                    if one.key == key {
                        shown["current"] = json!(true);
                    }
                    shown["context"] = json!(mint(&one.key));
                    shown
                });
                json!({ "contexts": listed.collect::<Vec<_>>() })
            }
            Action::Reset | Action::End => {
                let ended = service.contexts.end(&key).await?;
                let mut shown = closed_or_none(&key, service.contexts.closed(&key).await?, &mint);
                shown["ended"] = json!(ended);
                shown["context"] = json!(mint(&key));
                shown
            }
            Action::Branch => {
                let branch = branch_of(&key, input.path)?;
                if let Some(closed) = service.contexts.closed(&branch).await? {
                    return Err(ExecutionError::PathClosed(closed).into());
                }
                let mut shown = nothing(&branch);
                shown["branchedFrom"] = json!(key.path);
                shown["context"] = json!(mint(&branch));
                shown
            }
        };
        let mut result = CallToolResult::success(vec![ContentBlock::text(format!("{structured:#}"))]);
        result.is_error = None;
        result.structured_content = Some(structured);
        Ok(result)
    }
}

/// A context on another path of the same conversation.
fn branch_of(key: &ContextKey, path: Option<String>) -> Result<ContextKey, ToolError> {
    let path = match path {
        Some(path) => {
            PathId::parse(path).map_err(|error| ToolError::argument(format!("argument `path`: {error}")))?
        }
        None => made_up(),
    };
    match path == key.path {
        true => Err(ToolError::argument("argument `path`: names the path that this is")),
        false => Ok(ContextKey { path, ..key.clone() }),
    }
}

fn made_up() -> PathId {
    #[expect(clippy::expect_used, reason = "a fixed prefix and hex digits are within the set")]
    PathId::parse(format!("branch-{}", Entropy::system().hex::<6>())).expect("a valid path id")
}

/// What is shown of a context. Never where its sandbox is.
fn row(row: &ContextRow) -> Value {
    let left = row.expires_at.map(|at| (at - row.read_at).num_seconds().max(0));
    let mut shown = json!({
        "conversation": row.key.conversation,
        "path": row.key.path,
        "status": row.status.as_str(),
        "runs": row.execution_count,
        "createdAt": row.created_at.to_rfc3339(),
        "lastUsedAt": row.last_used_at.to_rfc3339(),
        "secondsUntilExpiry": left,
    });
    if let Some(template) = &row.template {
        shown["template"] = json!(template);
    }
    shown
}

/// A path without a live context: what has become of it, and where to go on.
fn closed_or_none(
    key: &ContextKey,
    closed: Option<ClosedPath>,
    mint: &dyn Fn(&ContextKey) -> String,
) -> Value {
    let mut shown = nothing(key);
    let Some(closed) = closed else { return shown };
    shown["status"] = json!(closed.status);
    shown["next"] = json!(format!("The path is {closed}; runs on it are refused. {}", closed.advice()));
    if let Some(into) = &closed.into {
        shown["mergedInto"] = json!(into);
    }
    if let Some(path) = closed.goes_on {
        let context = mint(&ContextKey { path: path.clone(), ..key.clone() });
        shown["goesOn"] = json!({ "path": path, "context": context });
    }
    shown
}

fn nothing(key: &ContextKey) -> Value {
    json!({ "conversation": key.conversation, "path": key.path, "status": "none" })
}
