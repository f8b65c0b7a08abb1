//! The suite's fixtures for tasks (SEP-2663): tools that work, fail, ask and are cancelled while a task.
//!
//! The product's own tasks are runs and never ask anything; so these have a store of their own.

use std::time::Duration;

use futures::future::try_join;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock,
    CreateTaskResult, ErrorData, Tool,
};
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use serde_json::{Value, json};

use crate::fixtures::{Context, form, object, one_name, rounds, text, typed};

/// Tools that can be tasks, and the one that never is.
const NAMES: [&str; 7] = [
    "greet",
    "slow_compute",
    "failing_job",
    "protocol_error_job",
    "confirm_delete",
    "multi_input",
    "test_tool_with_task",
];

pub(crate) fn tools() -> impl Iterator<Item = Tool> {
    NAMES
        .into_iter()
        .map(|name| Tool::new(name, "A fixture of the conformance suite.", object(json!({"type": "object"}))))
}

/// Calls a fixture; `None` when the name is none.
pub(crate) async fn call(
    tasks: &TaskManager,
    request: &CallToolRequestParams,
    context: &Context,
) -> Option<Result<CallToolResponse, ErrorData>> {
    let name = NAMES.into_iter().find(|name| *name == request.name)?;
    Some(answer(tasks, name, request, context).await)
}

async fn answer(
    tasks: &TaskManager,
    name: &'static str,
    request: &CallToolRequestParams,
    context: &Context,
) -> Result<CallToolResponse, ErrorData> {
    let argument =
        |name: &str| request.arguments.as_ref().and_then(|all| all.get(name)).cloned().unwrap_or_default();
    let seconds = argument("seconds").as_f64().unwrap_or(0.0);
    if name == "greet" {
        return Ok(text(format!("Hello, {}!", argument("name").as_str().unwrap_or_default())));
    }
    let knows_tasks = context.client_capabilities().is_some_and(|all| all.supports_tasks());
    if name == "slow_compute" && !knows_tasks {
        tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        return Ok(text("computed"));
    }
    if !knows_tasks {
        let needed: ClientCapabilities = typed(json!({"extensions": {"io.modelcontextprotocol/tasks": {}}}))?;
        return Err(ErrorData::missing_required_client_capability(needed));
    }
    let said = request.input_responses.clone().unwrap_or_default();
    let user = said.get("user_name").and_then(|said| said["content"]["name"].as_str()).map(str::to_owned);
    if name == "test_tool_with_task" && user.is_none() {
        return rounds(request, &[one_name("user_name", "What is your name?")], false);
    }
    let task = tasks.spawn(TaskOptions::new().with_poll_interval_ms(200), move |task| {
        Box::pin(async move {
            match name {
                "slow_compute" => slowly(&task, seconds).await,
                "failing_job" => {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Ok(CallToolResult::error(vec![ContentBlock::text("the job failed")]))
                }
                "protocol_error_job" => Err(ErrorData::internal_error("the job broke", None).into()),
                "confirm_delete" => ask(&task, "confirm").await.map(|said| done(&said)),
                "multi_input" => {
                    let (first, second) = try_join(ask(&task, "first"), ask(&task, "second")).await?;
                    Ok(done(&json!([first, second])))
                }
                _ => Ok(done(&json!(user))),
            }
        })
    });
    Ok(CallToolResponse::Task(CreateTaskResult::new(task)))
}

async fn slowly(task: &TaskContext, seconds: f64) -> Result<CallToolResult, TaskExit> {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_secs_f64(seconds)) => Ok(done(&json!("computed"))),
        () = task.cancelled() => Err(TaskExit::Cancelled),
    }
}

/// Asks the client for a confirmation in the middle of a task.
async fn ask(task: &TaskContext, key: &str) -> Result<Value, TaskExit> {
    let question = form("Are you sure?", json!({"confirm": {"type": "boolean"}}), json!(["confirm"]));
    task.request_input(key, typed(question)?).await
}

fn done(said: &Value) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(said.to_string())])
}
