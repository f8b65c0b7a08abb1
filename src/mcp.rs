//! The MCP server: its tools, and how a message becomes a call.
//!
//! One handler serves every door and both protocol eras. Two things that rmcp leaves to its users are done here: a
//! tool that panics is answered and logged, and a failed tool call is a result that a model can act on, never a
//! protocol error (that is kept for unknown tools and broken messages).

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams, CompleteResult,
    CustomRequest, CustomResult, ErrorCode, ErrorData, GetPromptRequestParams, GetPromptResponse,
    GetTaskParams, GetTaskResult, Implementation, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams,
    ReadResourceResponse, ServerCapabilities, ServerConfig, Tool, UpdateTaskParams,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde_json::Value;

use crate::bridge::Bridge;
use crate::domain::{ContextKey, TenantId};
use crate::execution::{
    Contexts, Execution, Files, Packs, Policies, Reads, Runs, SessionFacts, Starting, Startup, Transfers,
    Workflows,
};
use crate::guard::Guard;
use crate::telemetry::trace::Trace;

pub mod caller;
mod confirm;
pub mod error;
pub mod images;
mod links;
mod long_runs;
pub mod manifest;
pub mod progress;
mod prompts;
mod resources;
pub mod schema;
pub mod tools;
pub mod transport;

use caller::Caller;
pub use error::ToolError;

/// How long a call waits for a server that is still starting.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// What of the running service the MCP door uses.
#[derive(Debug, Clone)]
pub struct Service {
    runs: Runs,
    files: Files,
    transfers: Transfers,
    reads: Reads,
    contexts: Contexts,
    sessions: SessionFacts,
    policies: Policies,
    workflows: Workflows,
    bridge: Option<Bridge>,
}

impl Service {
    /// Its parts of a running service.
    pub fn of(execution: &Execution) -> Self {
        Self {
            runs: execution.runs.clone(),
            files: execution.files.clone(),
            transfers: execution.transfers.clone(),
            reads: execution.reads.clone(),
            contexts: execution.contexts.clone(),
            sessions: execution.sessions.clone(),
            policies: execution.policies.clone(),
            workflows: execution.workflows.clone(),
            bridge: execution.bridge.clone(),
        }
    }
}

/// A template that a call may name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offered {
    /// Its name.
    pub name: String,
    /// Packages that programs find in it, with their versions, as far as they are known.
    pub packages: Vec<String>,
}

/// The settings of this component.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether the execution tools exist.
    pub code_execution: bool,
    /// Whether some sandboxes reach hosts outside: then code has an open world.
    pub network: bool,
    /// Whether workflows are offered.
    pub workflows: bool,
    /// The servers whose tools programs may call; `None` where there are none.
    pub tool_servers: Option<ToolServers>,
    /// Templates that calls may name, each with what is known of it; `None` where no caller may name one.
    pub templates: Option<Vec<Offered>>,
    /// Packages that programs find beside the standard library, with their versions.
    pub packages: Vec<String>,
    /// When pictures are sent as image blocks.
    pub inline_images: InlineImages,
    /// Rule packs that `run_analysis` may name.
    pub packs: Packs,
    /// How long a client waits for a result when it does not say; shortly before, a run is handed over.
    pub patience: Duration,
    /// Where clients reach the server over HTTP.
    pub own_url: crate::domain::OwnUrl,
    /// The door of the handler.
    pub door: caller::Door,
    /// Who may enter contexts.
    pub sharing: crate::domain::SharingRules,
}

/// Servers whose tools programs may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolServers {
    /// Names of those that every tenant has; the names of the others are their tenants' matter.
    pub names: Vec<String>,
    /// The tenants that have servers, where not every tenant has one.
    pub only: Vec<TenantId>,
}

impl ToolServers {
    /// Whether a tenant has a server. A service that names no tenant may act for one that has.
    fn serve(&self, tenant: Option<&TenantId>) -> bool {
        !self.names.is_empty() || tenant.is_none_or(|tenant| self.only.contains(tenant))
    }
}

/// When pictures are sent as image blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InlineImages {
    /// Unless the client is known to drop or choke on them.
    Auto,
    /// Always.
    Always,
    /// Never: links only.
    Never,
}

/// The handler. Cheap to clone; every connection gets a clone.
#[derive(Debug, Clone)]
pub struct McpServer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: Options,
    execution: Starting<Service>,
    tools: Vec<Tool>,
    /// The same for a tenant without tool servers.
    tools_alone: Vec<Tool>,
    waiting: confirm::Waiting,
}

/// Requests that rmcp knows.
const STANDARD_REQUESTS: [&str; 18] = [
    "initialize",
    "ping",
    "server/discover",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "resources/templates/list",
    "subscriptions/listen",
    "tools/call",
    "tools/list",
    "completion/complete",
    "logging/setLevel",
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
];

/// Of those, the ones that 2026-07-28 no longer has: the answer to one must not ask for other parameters.
const REMOVED_REQUESTS: [&str; 5] =
    ["initialize", "ping", "resources/subscribe", "resources/unsubscribe", "logging/setLevel"];

const INSTRUCTIONS: &str = "Pathbox runs code in an isolated sandbox that belongs to this conversation path. Use \
`run_code` whenever an exact computation, a data transformation or a plot is needed instead of working it out in \
words. Use `run_analysis` for taxes, compliance, eligibility, deadlines, comparisons, scenarios and data: it checks the \
parameters and computes in exact decimals; `get_analysis_help` says what a type takes. Variables, imports and files are kept between calls (the result's `state` says `fresh`, `kept`, `reset` or `rolled_back`). \
Print what you want to see; the value of the last expression comes back too. The network is closed but for hosts that the operator allows, \
and there is no input(). \
Personal data and secrets in the output are replaced by placeholders such as [EMAIL_1]; the same placeholder always \
has the same value behind it. A run that takes longer than `timeout_ms` is interrupted; variables survive where possible. A result that says \
`status: running` was handed over: follow it with `get_execution`. Long output is cut in the middle; read the whole \
with `get_execution` (stream, offset). If a plot was not shown, `get_artifact` shows it alone.";

impl McpServer {
    /// A handler over a service that may still be starting.
    pub fn new(options: Options, execution: Starting<Service>) -> Self {
        let [tools, tools_alone] = [options.tool_servers.is_some(), false]
            .map(|servers| if options.code_execution { tools::list(&options, servers) } else { Vec::new() });
        Self(Arc::new(Inner { options, execution, tools, tools_alone, waiting: confirm::Waiting::default() }))
    }

    /// A view of the service that may still be starting.
    pub fn execution(&self) -> &Starting<Service> {
        &self.0.execution
    }

    /// The tools, in their fixed order.
    pub fn tools(&self) -> &[Tool] {
        &self.0.tools
    }

    async fn dispatch(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !self.0.tools.iter().any(|tool| tool.name == request.name) {
            let known: Vec<&str> = self.0.tools.iter().map(|tool| &*tool.name).collect();
            let text = format!("unknown tool; this server offers: {}", known.join(", "));
            return Err(ErrorData::invalid_params(text, None));
        }
        let arguments = request.arguments.unwrap_or_default();
        let called = match &*request.name {
            tools::run_code::NAME => match request.request_state {
                None => self.run_code(arguments, context).await,
                Some(state) => {
                    self.go_on(&state, request.input_responses.unwrap_or_default(), &arguments, context).await
                }
            },
            tools::run_analysis::NAME => self.run_analysis(arguments, context).await,
            tools::get_analysis_help::NAME => self.get_analysis_help(arguments).map(Into::into),
            tools::manage_context::NAME => self.manage_context(arguments, context).await.map(Into::into),
            tools::get_execution::NAME => self.get_execution(arguments, context).await.map(Into::into),
            tools::files::NAME => self.files(arguments, context).await.map(Into::into),
            tools::workflows::RUN => self.run_workflow(arguments, context).await.map(Into::into),
            tools::workflows::GET => self.get_workflow(arguments, context).await.map(Into::into),
            tools::workflows::CONTROL => {
                let state = request.request_state.zip(Some(request.input_responses.unwrap_or_default()));
                self.control_workflow(arguments, state, context).await
            }
            tools::search_tools::NAME => self.search_tools(arguments, context).await.map(Into::into),
            tools::get_artifact::NAME => self.get_artifact(arguments, context).await.map(Into::into),
            name => Err(ToolError::internal(format!("no handler for {name}"))),
        };
        Ok(called.unwrap_or_else(|error| error.into_result().into()))
    }

    /// Who sends this request.
    fn caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ToolError> {
        let parts = context.extensions.get::<http::request::Parts>();
        Ok(Caller::of(&self.0.options.door, &self.0.options.sharing, &context.meta.0, parts)?)
    }

    /// The context that a call is for: what the caller names, and the handle in its arguments.
    async fn key(&self, caller: &Caller, handle: Option<&str>) -> Result<ContextKey, ToolError> {
        let handle = match handle {
            Some(handle) => {
                let contexts = self.service().await?.contexts;
                Some(contexts.open_handle(handle, &caller.tenant, &caller.requester()).await?)
            }
            None => None,
        };
        Ok(caller.key(handle))
    }

    /// The guard for what a caller is shown that comes from no run.
    fn guard_of(&self, context: &RequestContext<RoleServer>) -> Guard {
        match (self.0.execution.now(), self.caller(context)) {
            (Startup::Ready(service), Ok(caller)) => service.policies.of(&caller.tenant),
            _ => Guard::default(),
        }
    }

    fn prompts(&self) -> ListPromptsResult {
        let mut listed = prompts::list();
        // A prompt asks for the tool of its name.
        let tool_of = |prompt: &str| if prompt == "use_tools" { "search_tools" } else { prompt }.to_owned();
        listed.prompts.retain(|prompt| self.0.tools.iter().any(|tool| tool.name == tool_of(&prompt.name)));
        listed
    }

    async fn service(&self) -> Result<Service, ToolError> {
        Ok(self.0.execution.service(START_PATIENCE).await?)
    }
}

/// Every list is one page, so no cursor has been given to anyone.
fn one_page(request: Option<PaginatedRequestParams>) -> Result<(), ErrorData> {
    match request.and_then(|request| request.cursor) {
        None => Ok(()),
        Some(_) => Err(ErrorData::invalid_params("unknown cursor: list again without one", None)),
    }
}

/// The W3C trace of a request: from `_meta`, else from the HTTP header.
fn trace(context: &RequestContext<RoleServer>) -> Option<Trace> {
    let parts = context.extensions.get::<http::request::Parts>();
    let meta = |name: &str| context.meta.0.get(name).and_then(Value::as_str);
    let header =
        |name: &str| parts.and_then(|parts| parts.headers.get(name)).and_then(|value| value.to_str().ok());
    match meta("traceparent") {
        Some(parent) => Some(Trace::read(parent)?.with_state(meta("tracestate"))),
        None => Some(Trace::read(header("traceparent")?)?.with_state(header("tracestate"))),
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools();
        let capabilities = match self.0.options.code_execution {
            true => {
                capabilities.enable_resources().enable_prompts().enable_completions().enable_tasks().build()
            }
            false => capabilities.build(),
        };
        let mut info = ServerConfig::new(capabilities);
        info.server_info = Implementation::new("pathbox", env!("CARGO_PKG_VERSION"));
        info.server_info.title = Some("Pathbox".into());
        let mut instructions = format!("{INSTRUCTIONS} {}", self.0.options.door.of_conversations());
        if let [_, ..] = self.0.options.packages[..] {
            instructions
                .push_str(&format!(" Python has these packages: {}.", self.0.options.packages.join(", ")));
        }
        for template in self.0.options.templates.iter().flatten().filter(|one| !one.packages.is_empty()) {
            let Offered { name, packages } = template;
            instructions.push_str(&format!(" With `template` {name} it has these: {}.", packages.join(", ")));
        }
        let servers = self.0.options.tool_servers.as_ref().filter(|_| self.0.options.code_execution);
        if let Some(servers) = servers.map(|servers| &servers.names).filter(|names| !names.is_empty()) {
            instructions.push_str(&format!(
                " Programs can call the tools of these servers: {}. When a task needs several calls or large results, write one \
                 program: find the tools with `search_tools` (once a step), then in run_code `from tools import <server>`, call \
                 them, filter there, and print only what matters. `help(<server>.<tool>)` says what one takes; a failed call \
                 raises ToolError with the server's message.",
                servers.join(", ")
            ));
        }
        info.instructions = Some(instructions);
        info
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        one_page(request)?;
        let parts = context.extensions.get::<http::request::Parts>();
        let (principal, tenant) = Caller::identity(&self.0.options.door, &context.meta.0, parts)
            .map_err(|error| ToolError::from(error).into_protocol_error())?;
        let allowed = |tool: &&Tool| principal.may(tools::scope_of(&tool.name, None));
        let servers = self.0.options.tool_servers.as_ref();
        let all = match servers.is_none_or(|servers| servers.serve(tenant.as_ref())) {
            true => &self.0.tools,
            false => &self.0.tools_alone,
        };
        Ok(ListToolsResult::with_all_items(all.iter().filter(allowed).cloned().collect()))
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        one_page(request)?;
        self.resources(&context).await
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        one_page(request)?;
        Ok(resources::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        Ok(self.read(&request.uri, &context).await?.into())
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        one_page(request)?;
        Ok(self.prompts())
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        Ok(prompts::get(&request, &self.guard_of(&context))?.into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        prompts::complete(&request, &self.prompts().prompts)
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        Ok(GetTaskResult::new(self.task(&request.task_id, &context).await?))
    }

    /// No run asks its client for anything, so there is nothing to take; only the task must be there.
    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.task(&request.task_id, &context).await.map(drop)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.cancel_run(&request.task_id, &context).await
    }

    /// rmcp passes requests here that it does not know, and known ones whose parameters do not parse.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let is_stateless =
            context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
        let is_gone = is_stateless && REMOVED_REQUESTS.contains(&&*request.method);
        if !is_gone && STANDARD_REQUESTS.contains(&&*request.method) {
            let text = format!("the parameters of {} do not have the right shape", request.method);
            return Err(ErrorData::invalid_params(text, None));
        }
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.0.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        mut context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let (name, id) = (Cow::clone(&request.name), context.id.clone());
        let takes_links = links::are_taken(&context);
        let reporting = progress::Reporting::begin(&mut context);
        let called = AssertUnwindSafe(self.dispatch(request, context)).catch_unwind().await;
        reporting.settle().await;
        match called {
            Ok(Ok(CallToolResponse::Complete(mut result))) if !takes_links => {
                links::write_out(&mut result);
                Ok(result.into())
            }
            Ok(response) => response,
            Err(_) => {
                tracing::error!(mcp.tool = %name, mcp.request_id = %id, "a tool panicked; the call is answered");
                let error = ToolError::internal("the tool failed with an internal error");
                Ok(error.into_result().into())
            }
        }
    }
}
