//! Runs that outlast their caller's patience. They go on, and the caller gets something to follow them by: a task where
//! it knows tasks (SEP-2663, extension `io.modelcontextprotocol/tasks`), else the run's id for `get_execution`.
//!
//! A task's id is the run's own id and its state is the run's record. So nothing about tasks is kept in memory, and any
//! replica can answer for one.

use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    CallToolResponse, CallToolResult, ContentBlock, CreateTaskResult, DetailedTask, ErrorData, JsonObject,
    MetaObject, ProtocolVersion, Task, TaskPayload, TaskStatus,
};
use rmcp::service::RequestContext;
use rmcp::task_manager::current_timestamp;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::domain::{Ended, ErrorCode, ExecutionId, Scope};
use crate::execution::{Begun, ExecutionError, ExecutionRow, ExecutionStatus, Finished, Recalled};

use super::tools::run_analysis;
use super::{McpServer, ToolError, links};

/// A client that knows tasks gets one after this long: polling for what has ended at once would only cost it a request.
const TASK_AFTER: Duration = Duration::from_secs(2);
/// How long a run that is to be handed over is waited for that is not written down yet: the database is slow, or away.
const WRITING: Duration = Duration::from_secs(5);
/// How often a client is advised to poll its task.
const POLL_MS: u64 = 1_000;

/// How long a client may say that it waits, in milliseconds.
const PATIENCE_MS: std::ops::RangeInclusive<u64> = 50..=3_600_000;

type Context = RequestContext<RoleServer>;

impl McpServer {
    /// How long this request may take before its run is handed over: what the client says, else what is set, less what
    /// the answer needs to arrive.
    pub(super) fn wait(&self, context: &Context) -> Result<Duration, ToolError> {
        let patience = match context.meta.0.get("dev.pathbox/patienceMs") {
            None | Some(Value::Null) => self.0.options.patience,
            Some(value) => match value.as_u64().filter(|millis| PATIENCE_MS.contains(millis)) {
                Some(millis) => Duration::from_millis(millis),
                None => {
                    return Err(ToolError::argument(format!(
                        "`_meta` key `dev.pathbox/patienceMs`: allowed is {} to {} milliseconds",
                        PATIENCE_MS.start(),
                        PATIENCE_MS.end()
                    )));
                }
            },
        };
        let wait = patience - (patience / 10).min(Duration::from_secs(5));
        Ok(if knows_tasks(context) { wait.min(TASK_AFTER) } else { wait })
    }

    /// Waits for a run's end; `None` when the wait ends first. A cancelled request stops its run.
    pub(super) async fn follow(
        &self,
        begun: &mut Begun,
        wait: Duration,
        cancel: &CancellationToken,
        context: &Context,
    ) -> Result<Option<Finished>, ToolError> {
        let written = begun.written();
        // Its id must mean something at every replica by the time that the client has it.
        let over = async {
            tokio::time::sleep(wait).await;
            let _ = tokio::time::timeout(WRITING, written).await;
        };
        tokio::select! {
            finished = begun.finished() => Ok(Some(finished?)),
            () = over => Ok(None),
            () = context.ct.cancelled() => {
                cancel.cancel();
                Ok(Some(begun.finished().await?))
            }
        }
    }

    /// `tasks/get`: where a run that was handed over is.
    pub(super) async fn task(&self, id: &str, context: &Context) -> Result<DetailedTask, ErrorData> {
        let looked = async {
            let caller = self.caller(context)?;
            caller.needs(Scope::Read)?;
            let (service, requester) = (self.service().await?, caller.requester());
            let run = run_id(id)?;
            let (row, payload) = match service.reads.recall(&requester, run).await {
                // It was begun a moment ago and is not written down yet.
                Err(ExecutionError::UnknownExecution(_)) if service.runs.runs_here(&requester, run) => {
                    return Ok(DetailedTask::new(begun_now(id), TaskPayload::Working));
                }
                Err(error) => return Err(error.into()),
                Ok(Recalled::Running(row)) => (row, TaskPayload::Working),
                Ok(Recalled::Over(row)) if row.status == ExecutionStatus::Cancelled => {
                    (row, TaskPayload::Cancelled)
                }
                Ok(Recalled::Over(row)) => {
                    let result = object(&left_nothing(&row).into_result());
                    (row, TaskPayload::Completed { result })
                }
                Ok(Recalled::Finished(finished, row)) if finished.outcome.ended == Ended::Cancelled => {
                    (*row, TaskPayload::Cancelled)
                }
                Ok(Recalled::Finished(finished, row)) => {
                    let mut result = self.recalled(*finished, context).await?;
                    if !links::are_taken(context) {
                        links::write_out(&mut result);
                    }
                    (*row, TaskPayload::Completed { result: object(&result) })
                }
            };
            let at = row.finished_at.or(row.started_at).unwrap_or(row.created_at);
            let kept = service.reads.retention();
            let task = Task::new(id, payload.status(), row.created_at.to_rfc3339(), at.to_rfc3339())
                .with_ttl_ms(u64::try_from(kept.as_millis()).unwrap_or(u64::MAX))
                .with_poll_interval_ms(POLL_MS);
            Ok::<_, ToolError>(DetailedTask::new(task, payload))
        };
        looked.await.map_err(task_error)
    }

    /// `tasks/cancel`: asks a run to stop. It may have ended: the answer is the same, and the task says what came of it.
    pub(super) async fn cancel_run(&self, id: &str, context: &Context) -> Result<(), ErrorData> {
        let asked = async {
            let caller = self.caller(context)?;
            caller.needs(Scope::Run)?;
            let (service, requester, run) = (self.service().await?, caller.requester(), run_id(id)?);
            service.runs.stop_run(&requester, run).await?;
            Ok::<_, ToolError>(())
        };
        asked.await.map_err(task_error)
    }

    /// The result of a run that ended earlier, as the tool that began it gives it.
    pub(super) async fn recalled(
        &self,
        finished: Finished,
        context: &Context,
    ) -> Result<CallToolResult, ToolError> {
        if finished.tool == run_analysis::NAME {
            let analysed = self.service().await?.runs.analysed_earlier(finished).await;
            return self.analysis_result("", "", analysed, context).await;
        }
        Ok(self.result(finished, Vec::new(), context).await)
    }
}

/// Whether the client can follow a task. Some declare so in sessions of older revisions too, in which a call has no such answer.
fn knows_tasks(context: &Context) -> bool {
    let has_tasks =
        context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28);
    has_tasks && context.client_capabilities().is_some_and(|capabilities| capabilities.supports_tasks())
}

/// What a caller gets for a run that goes on: a task, else `structured` with how to follow it.
pub(super) fn handed_over(
    begun: &Begun,
    text: String,
    structured: Option<Value>,
    context: &Context,
) -> CallToolResponse {
    let mut meta = Map::new();
    meta.insert("dev.pathbox/context".into(), json!(begun.handle));
    let status = if begun.is_running() { "running" } else { "queued" };
    meta.insert("dev.pathbox/status".into(), json!(status));
    let meta = Some(MetaObject(meta));
    if knows_tasks(context) {
        let mut created = CreateTaskResult::new(begun_now(&begun.execution().to_string()));
        created.meta = meta;
        return CallToolResponse::Task(created);
    }
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.is_error = None;
    result.structured_content = structured;
    result.meta = meta;
    result.into()
}

/// How to follow a run by its id.
pub(super) fn how_to_follow(begun: &Begun, what: &str) -> String {
    let how = if begun.is_running() {
        "is still running and goes on"
    } else {
        "has not begun: it waits for its context (other runs hold it, or its sandbox is being made) and runs when its turn comes"
    };
    format!(
        "{what} {how}. Call get_execution with execution_id {} (wait_ms to wait for the end, \
         cancel to stop it).",
        begun.execution()
    )
}

/// Why a run that has ended has no result.
pub(super) fn left_nothing(row: &ExecutionRow) -> ToolError {
    let advice = match row.started_at {
        Some(_) => "Check its effects before you run it again.",
        None => "Its code was not run. Send the call again.",
    };
    ToolError::not_found(format!("The run ended as {} and left no result", row.status), advice)
}

fn begun_now(id: &str) -> Task {
    let now = current_timestamp();
    Task::new(id, TaskStatus::Working, now.clone(), now).with_poll_interval_ms(POLL_MS)
}

fn run_id(id: &str) -> Result<ExecutionId, ToolError> {
    id.parse().map_err(|_| ToolError::not_found("There is no such task", "Use the taskId as it was given."))
}

/// `tasks/*` says "unknown" as it says every wrong parameter.
fn task_error(error: ToolError) -> ErrorData {
    match error.code() {
        ErrorCode::NotFound => ErrorData::invalid_params("unknown task", None),
        _ => error.into_protocol_error(),
    }
}

fn object(result: &CallToolResult) -> JsonObject {
    match serde_json::to_value(result) {
        Ok(Value::Object(object)) => object,
        _ => JsonObject::new(),
    }
}
