//! The server with the fixtures of the official conformance suite at `/mcp`: the suite looks for tools, prompts and
//! resources of fixed names, which the product does not have. Doors, limits and sessions are the server's own.
//!
//! Settings come from the environment; it serves at a free port of this machine until a signal.
#![expect(deprecated, reason = "the suite tests what older clients still use: logging")]

mod fixtures;
mod tasks;

use std::net::SocketAddr;
use std::sync::Arc;

use pathbox::app::{App, shutdown};
use pathbox::config::{Sources, Values};
use pathbox::mcp::McpServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams, CompleteResult,
    CustomRequest, CustomResult, ErrorData, GetPromptRequestParams, GetPromptResponse, GetTaskParams,
    GetTaskResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, Reference, ServerConfig,
    SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
    UpdateTaskParams,
};
use rmcp::service::RequestContext;
use rmcp::task_manager::TaskManager;
use rmcp::{RoleServer, ServerHandler};

type Context = RequestContext<RoleServer>;

/// Answers for the fixtures; everything else is the server's.
#[derive(Clone)]
struct WithFixtures {
    server: McpServer,
    tasks: Arc<TaskManager>,
}

impl ServerHandler for WithFixtures {
    fn get_info(&self) -> ServerConfig {
        let mut info = self.server.get_info();
        info.capabilities.logging = Some(Default::default());
        if let Some(resources) = &mut info.capabilities.resources {
            resources.subscribe = Some(true);
        }
        info
    }

    async fn list_tools(
        &self,
        page: Option<PaginatedRequestParams>,
        context: Context,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut listed = self.server.list_tools(page, context).await?;
        listed.tools.extend(fixtures::tools());
        Ok(listed)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.server.get_tool(name).or_else(|| fixtures::tools().into_iter().find(|tool| tool.name == name))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: Context,
    ) -> Result<CallToolResponse, ErrorData> {
        match fixtures::call(&self.tasks, &request, &context).await {
            Some(answer) => answer,
            None => self.server.call_tool(request, context).await,
        }
    }

    async fn list_resources(
        &self,
        page: Option<PaginatedRequestParams>,
        context: Context,
    ) -> Result<ListResourcesResult, ErrorData> {
        let mut listed = self.server.list_resources(page, context).await?;
        listed.resources.extend(fixtures::resources());
        Ok(listed)
    }

    async fn list_resource_templates(
        &self,
        page: Option<PaginatedRequestParams>,
        context: Context,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let mut listed = self.server.list_resource_templates(page, context).await?;
        listed.resource_templates.push(fixtures::template());
        Ok(listed)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: Context,
    ) -> Result<ReadResourceResponse, ErrorData> {
        match fixtures::resource(&request.uri) {
            Some(fixture) => Ok(fixture.into()),
            None => self.server.read_resource(request, context).await,
        }
    }

    async fn list_prompts(
        &self,
        page: Option<PaginatedRequestParams>,
        context: Context,
    ) -> Result<ListPromptsResult, ErrorData> {
        let mut listed = self.server.list_prompts(page, context).await?;
        listed.prompts.extend(fixtures::prompts()?);
        Ok(listed)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: Context,
    ) -> Result<GetPromptResponse, ErrorData> {
        match fixtures::prompt(&request) {
            Some(fixture) => fixture,
            None => self.server.get_prompt(request, context).await,
        }
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        context: Context,
    ) -> Result<CompleteResult, ErrorData> {
        let fixtures = fixtures::prompts()?;
        match &request.r#ref {
            Reference::Prompt(asked) if fixtures.iter().any(|prompt| prompt.name == asked.name) => {
                Ok(CompleteResult::default())
            }
            _ => self.server.complete(request, context).await,
        }
    }

    async fn set_level(&self, _: SetLevelRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn subscribe(&self, _: SubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(&self, _: UnsubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn get_task(&self, request: GetTaskParams, context: Context) -> Result<GetTaskResult, ErrorData> {
        match self.tasks.get_task(&request.task_id) {
            Ok(fixture) => Ok(GetTaskResult::new(fixture)),
            Err(_) => self.server.get_task(request, context).await,
        }
    }

    async fn update_task(&self, request: UpdateTaskParams, context: Context) -> Result<(), ErrorData> {
        match self.tasks.update_task(&request.task_id, request.input_responses.clone()) {
            Ok(_) => Ok(()),
            Err(_) => self.server.update_task(request, context).await,
        }
    }

    async fn cancel_task(&self, request: CancelTaskParams, context: Context) -> Result<(), ErrorData> {
        match self.tasks.cancel_task(&request.task_id) {
            Ok(_) => Ok(()),
            Err(_) => self.server.cancel_task(request, context).await,
        }
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: Context,
    ) -> Result<CustomResult, ErrorData> {
        self.server.on_custom_request(request, context).await
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let sources = Sources::from_process();
    let config = Values::read(&sources)?.config(&sources.environment)?;
    let grace = config.shutdown_grace;
    let app = App::start(config)?;
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let doors = app.open_http_with(address, |server| WithFixtures { server, tasks: Arc::default() }).await?;
    eprintln!("serving MCP at http://{}/mcp", doors.address());
    shutdown::asked().await?;
    doors.close(app, grace).await;
    Ok(())
}
