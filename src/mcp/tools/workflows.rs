//! `run_workflow`, `get_workflow`, `control_workflow`: tasks as a graph. They are there only where `workflows.enabled` is set:
//! in a list of tools every word costs each conversation.

use std::collections::BTreeMap;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    CallToolResponse, CallToolResult, ContentBlock, InputResponses, JsonObject, Tool, ToolAnnotations,
};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::arguments::source;
use super::run_code::Common;
use crate::domain::{Language, Scope};
use crate::execution::{Approver, Control, Flow, Progress, ProgressSender};
use crate::mcp::confirm::{self, Pending};
use crate::mcp::{McpServer, ToolError, progress, schema};
use crate::workflow::{Decision, Phase, Plan, State, Task, picture};

/// Begins one.
pub const RUN: &str = "run_workflow";
/// Shows one.
pub const GET: &str = "get_workflow";
/// Steers one.
pub const CONTROL: &str = "control_workflow";

/// Tasks side by side by default.
const WIDTH: u32 = 3;
/// How long a workflow may take by default, an hour.
const TIMEOUT_MS: u64 = 3_600_000;
/// How long a call waits at most.
const MAX_WAIT_MS: u64 = 55_000;
/// Characters of results in one answer.
const MAX_SHOWN: usize = 40_000;
/// Workflows in a list.
const LISTED: u32 = 50;

/// What `run_workflow` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunInput {
    /// 1 to 200 tasks.
    tasks: Vec<Task>,
    /// Tasks side by side, 1 to 16; 3 when left out.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16))]
    width: Option<u32>,
    /// Of the whole, waiting included, 1,000 to 86,400,000; an hour when left out.
    #[serde(default)]
    timeout_ms: Option<u64>,
    /// Answer when it has ended, or after this many ms (0 to 55,000); at once when left out.
    #[serde(default)]
    wait_ms: Option<u64>,
    /// As in run_code.
    #[serde(default)]
    purpose: Option<String>,
    /// As in run_code.
    #[serde(default)]
    context: Option<String>,
    /// The same key gives the same workflow.
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// What `get_workflow` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetInput {
    /// Of run_workflow; left out, your latest are listed.
    #[serde(default)]
    workflow_id: Option<String>,
    /// Answer when it has ended or waits for you, or after this many ms (0 to 55,000).
    #[serde(default)]
    wait_ms: Option<u64>,
    /// The whole result of this task.
    #[serde(default)]
    task: Option<String>,
    /// With `task`: only this part, a JSON pointer.
    #[serde(default)]
    pointer: Option<String>,
    /// Also what happened behind this event, by number; 0 for all.
    #[serde(default)]
    events_after: Option<u64>,
    /// Also a picture of the graph in Mermaid.
    #[serde(default)]
    mermaid: bool,
}

/// What is done to a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputAction {
    Pause,
    Resume,
    Abort,
    Approve,
    Refuse,
    Retry,
    Accept,
    GiveUp,
    Replan,
}

/// What `control_workflow` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ControlInput {
    /// Of run_workflow.
    workflow_id: String,
    /// pause, resume, abort; approve or refuse a task in `approval`; retry, accept or give_up a task that is `unknown`; replan:
    /// add, replace or drop tasks that have not begun.
    pub(crate) action: InputAction,
    /// For approve, refuse, retry, accept, give_up.
    #[serde(default)]
    pub(crate) task: Option<String>,
    /// For accept: its result; null when left out.
    #[serde(default)]
    pub(crate) result: Option<Value>,
    /// For replan: new tasks, and ones instead of those of the same id.
    #[serde(default)]
    pub(crate) tasks: Vec<Task>,
    /// For replan: ids of tasks that go.
    #[serde(default)]
    pub(crate) drop: Vec<String>,
}

impl ControlInput {
    /// What it comes down to.
    ///
    /// # Errors
    /// Which argument is missing.
    pub(crate) fn control(self, approver: Approver) -> Result<Control, String> {
        let task = |task: Option<String>| task.ok_or_else(|| "argument `task` is missing".to_owned());
        Ok(match self.action {
            InputAction::Pause => Control::Pause,
            InputAction::Resume => Control::Resume,
            InputAction::Abort => Control::Abort,
            InputAction::Approve => Control::Approve(task(self.task)?, approver),
            InputAction::Refuse => Control::Refuse(task(self.task)?),
            InputAction::Retry => Control::Decide(task(self.task)?, Decision::Retry, None),
            InputAction::Accept => Control::Decide(task(self.task)?, Decision::Accept, self.result),
            InputAction::GiveUp => Control::Decide(task(self.task)?, Decision::GiveUp, None),
            InputAction::Replan if self.tasks.is_empty() && self.drop.is_empty() => {
                return Err("argument `tasks` or `drop` is missing".to_owned());
            }
            InputAction::Replan => Control::Replan { tasks: understood(self.tasks), drop: self.drop },
        })
    }
}

/// A task in a result.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskView {
    /// Its name.
    id: String,
    /// pending, approval, running, unknown, succeeded, failed, skipped, aborted.
    state: String,
    /// Tasks that end before it.
    after: Vec<String>,
    /// Runs so far.
    attempt: u32,
    /// Why it failed, was skipped or is unknown, or that its sandbox had lost its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Bytes of its result.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// Items of a `for_each`, and how many have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    items: Option<String>,
    /// The run that computed its result; look at it with get_execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_id: Option<String>,
    /// The result of an equal task was used.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cached: bool,
    /// Files that it left, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    artifacts: BTreeMap<String, String>,
}

/// What all three give back of one workflow.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Its id.
    workflow_id: String,
    /// running, waiting (for a decision of yours), pausing, paused, aborting, completed, failed, aborted.
    status: String,
    /// The number of its last event.
    seq: i64,
    /// The plan, and how far it is.
    tasks: Vec<TaskView>,
    /// Results by task; those left out are had with get_workflow `task`.
    results: Map<String, Value>,
    /// What happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<Vec<Map<String, Value>>>,
    /// The graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    mermaid: Option<String>,
}

fn annotated(tool: Tool, read_only: bool, destructive: bool) -> Tool {
    let annotations = ToolAnnotations::new()
        .read_only(read_only)
        .destructive(destructive)
        .idempotent(read_only)
        .open_world(false);
    tool.with_annotations(annotations)
}

/// The tools as they are listed.
pub fn tools() -> Vec<Tool> {
    let run = "Run several tasks as a graph: code, analyses and tools of other servers. Results go from task to task as data \
        (`inputs`: {\"rows\": {\"from\": \"fetch\", \"pointer\": \"/rows\"}}; code finds `data[\"rows\"]`) without passing through \
        you; what does not depend on each other runs side by side. Each result is a checkpoint: it survives a crash of the \
        server. Returns at once with an id; follow it with get_workflow. Code prints its result as JSON on its last line.";
    let get =
        "Show a workflow: the state of each task, results, events. Without an id: your latest workflows.";
    let control = "Control a workflow: pause, resume, abort, approve, decide about an unknown task, replan tasks that have not begun.";
    vec![
        annotated(
            schema::tool::<RunInput>(RUN, "Run workflow", run)
                .with_raw_output_schema(schema::output::<Output>()),
            false,
            false,
        ),
        annotated(schema::tool::<GetInput>(GET, "Get workflow", get), true, false),
        annotated(schema::tool::<ControlInput>(CONTROL, "Control workflow", control), false, true),
    ]
}

/// The tasks of a state, in the plan's order.
pub(crate) fn task_views(state: &State) -> Vec<TaskView> {
    let needs = state.plan.needs();
    let view = |task: &Task| {
        let at = state.tasks.get(&task.id)?;
        let over = (0..at.items)
            .filter(|item| {
                state.tasks.get(&format!("{}[{item}]", task.id)).is_some_and(|item| item.phase.is_over())
            })
            .count();
        Some(TaskView {
            id: task.id.clone(),
            state: at.phase.as_str().to_owned(),
            after: needs.get(task.id.as_str()).into_iter().flatten().map(|need| (*need).to_owned()).collect(),
            attempt: at.attempt,
            reason: at.reason.clone(),
            bytes: (at.bytes > 0).then_some(at.bytes),
            items: (at.items > 0).then(|| format!("{over} of {}", at.items)),
            execution_id: at.execution.map(|execution| execution.to_string()),
            cached: at.cached,
            artifacts: at.artifacts.clone(),
        })
    };
    state.plan.tasks.iter().filter_map(view).collect()
}

/// A plan out of what a caller gave.
pub(crate) fn plan(tasks: Vec<Task>, width: Option<u32>, timeout_ms: Option<u64>) -> Plan {
    Plan {
        tasks: understood(tasks),
        width: width.unwrap_or(WIDTH),
        timeout_ms: timeout_ms.unwrap_or(TIMEOUT_MS),
    }
}

/// Their code as `run_code` understands it.
fn understood(mut tasks: Vec<Task>) -> Vec<Task> {
    for task in &mut tasks {
        let language = task.language.unwrap_or(Language::Python).as_str();
        task.code = task.code.take().map(|code| source(code, language).0);
    }
    tasks
}

fn wait_of(wait_ms: Option<u64>) -> Result<Option<Duration>, ToolError> {
    match wait_ms {
        Some(ms) if ms > MAX_WAIT_MS => {
            Err(ToolError::argument(format!("argument `wait_ms`: allowed is 0 to {MAX_WAIT_MS}")))
        }
        ms => Ok(ms.filter(|ms| *ms > 0).map(Duration::from_millis)),
    }
}

fn id_of(text: &str) -> Result<Uuid, ToolError> {
    text.trim().parse().map_err(|_| {
        ToolError::argument("argument `workflow_id`: not a workflow id; use the `workflowId` of run_workflow")
    })
}

/// Whether there is nothing to wait for: it has ended, or someone has to decide.
fn is_settled(state: &State) -> bool {
    state.status.is_over() || matches!(state.shown_status(), "waiting" | "paused")
}

/// How far it is, for one who waits.
fn how_far(state: &State) -> Progress {
    let tasks = || state.plan.tasks.iter().filter_map(|task| Some((task, state.tasks.get(&task.id)?)));
    Progress::Tasks {
        over: tasks().filter(|(_, at)| at.phase.is_over()).count(),
        of: state.plan.tasks.len(),
        running: tasks()
            .filter(|(_, at)| at.phase.as_str() == "running")
            .map(|(task, _)| task.id.clone())
            .collect(),
    }
}

impl McpServer {
    pub(in crate::mcp) async fn run_workflow(
        &self,
        arguments: JsonObject,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ToolError> {
        let input: RunInput = self.parse(RUN, arguments)?;
        let wait = wait_of(input.wait_ms)?;
        let common = Common {
            purpose: input.purpose,
            timeout_ms: None,
            context: input.context,
            idempotency_key: input.idempotency_key,
        };
        let (call, purpose, _) = self.common(common, &context).await?;
        let (requester, service, news) =
            (call.requester.clone(), self.service().await?, progress::reporter(&context));
        let flow =
            service.workflows.begin(call, purpose, plan(input.tasks, input.width, input.timeout_ms)).await?;
        let flow = self.settled(&requester, flow, wait, &news).await?;
        self.flow_result(&flow, None, false).await
    }

    pub(in crate::mcp) async fn get_workflow(
        &self,
        arguments: JsonObject,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ToolError> {
        let input: GetInput = self.parse(GET, arguments)?;
        let wait = wait_of(input.wait_ms)?;
        let caller = self.caller(&context)?;
        caller.needs(Scope::Read)?;
        let (requester, workflows) = (caller.requester(), self.service().await?.workflows);
        let Some(id) = input.workflow_id else {
            let rows = workflows.list(&requester, false, LISTED).await?;
            let listed = rows.iter().map(|row| {
                json!({"workflowId": row.id, "status": row.status, "purpose": row.purpose,
                    "createdAt": row.created_at.to_rfc3339(), "finishedAt": row.finished_at.map(|at| at.to_rfc3339())})
            });
            return Ok(plain(json!({"workflows": listed.collect::<Vec<_>>()}), None));
        };
        let id = id_of(&id)?;
        let flow = workflows.look(&requester, id).await?;
        let flow = self.settled(&requester, flow, wait, &progress::reporter(&context)).await?;
        if let Some(task) = input.task {
            let results = workflows.results(&flow, Some(std::slice::from_ref(&task))).await?;
            let Some(result) = results.get(&task) else {
                let state = flow.state.tasks.get(&task).map_or("not in the plan", |task| task.phase.as_str());
                return Err(ToolError::not_found(
                    format!("task `{task}` has no result: it is {state}"),
                    "See its state with get_workflow.",
                ));
            };
            let part = result.pointer(input.pointer.as_deref().unwrap_or_default());
            let part =
                part.ok_or_else(|| ToolError::argument("argument `pointer`: there is no such part"))?;
            if part.to_string().len() > 20 * MAX_SHOWN {
                return Err(ToolError::argument(format!(
                    "the result has {} bytes; ask for a part with `pointer`",
                    part.to_string().len()
                )));
            }
            return Ok(plain(json!({"workflowId": id, "task": task, "result": part}), None));
        }
        let events = match input.events_after {
            Some(after) => {
                Some(workflows.events(&requester, id, i64::try_from(after).unwrap_or(i64::MAX), 500).await?)
            }
            None => None,
        };
        self.flow_result(&flow, events, input.mermaid).await
    }

    /// `state`: of the call that was answered with a question, with the person's answer.
    pub(in crate::mcp) async fn control_workflow(
        &self,
        arguments: JsonObject,
        state: Option<(String, InputResponses)>,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ToolError> {
        let given = arguments.clone();
        let input: ControlInput = self.parse(CONTROL, arguments)?;
        let caller = self.caller(&context)?;
        caller.needs(Scope::Run)?;
        let id = id_of(&input.workflow_id)?;
        let (mut approval, questions) = match state {
            Some((state, responses)) => {
                match self.take_input(&state, &responses, (CONTROL, &given), &context)? {
                    Pending::Approval(approval) => (approval, None),
                    Pending::Run { .. } => {
                        return Err(ToolError::internal("an approval waits as something else"));
                    }
                }
            }
            None => {
                let (person, questions) = confirm::person(&context);
                let control = input.control(Approver::Model(person)).map_err(ToolError::argument)?;
                let (workflows, requester) = (self.service().await?.workflows, caller.requester());
                let steered = async move { workflows.control(&requester, id, &control).await };
                (tokio::spawn(steered), questions)
            }
        };
        let asked = async {
            match questions {
                Some(mut questions) => questions.recv().await,
                None => std::future::pending().await,
            }
        };
        let flow = tokio::select! {
            flow = &mut approval => flow.map_err(|error| ToolError::internal(error.to_string()))??,
            Some(question) = asked => {
                return self.ask_for_input(question, Pending::Approval(approval), (CONTROL, given), &context);
            }
        };
        Ok(self.flow_result(&flow, None, false).await?.into())
    }

    /// The workflow once there is nothing to wait for, or after `wait`. Meanwhile `news` hears how far it is.
    async fn settled(
        &self,
        requester: &crate::execution::Requester,
        mut flow: Flow,
        wait: Option<Duration>,
        news: &ProgressSender,
    ) -> Result<Flow, ToolError> {
        let Some(wait) = wait else { return Ok(flow) };
        let workflows = self.service().await?.workflows;
        let deadline = tokio::time::Instant::now() + wait;
        while !is_settled(&flow.state) {
            let _ = news.try_send(how_far(&flow.state));
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() {
                break;
            }
            flow = workflows.wait(requester, flow.row.id, flow.state.seq, left).await?;
        }
        Ok(flow)
    }

    async fn flow_result(
        &self,
        flow: &Flow,
        events: Option<Vec<Value>>,
        mermaid: bool,
    ) -> Result<CallToolResult, ToolError> {
        let workflows = self.service().await?.workflows;
        // Results of items stand in the list of their task.
        let whole: Vec<String> = flow.state.plan.tasks.iter().map(|task| task.id.clone()).collect();
        let small = |id: &String| flow.state.tasks.get(id).is_some_and(|task| task.bytes <= MAX_SHOWN as u64);
        let wanted: Vec<String> = whole.into_iter().filter(small).collect();
        let mut found: BTreeMap<String, Value> = workflows.results(flow, Some(&wanted)).await?;
        let mut results = Map::new();
        let mut room = MAX_SHOWN;
        // The last ones are those that a caller asked for.
        for id in wanted.iter().rev() {
            let Some(value) = found.remove(id) else { continue };
            let size = value.to_string().len();
            if size <= room {
                room -= size;
                results.insert(id.clone(), value);
            }
        }
        let results: Map<String, Value> = results.into_iter().rev().collect();
        let status = flow.state.shown_status();
        let mut text = format!("workflow {} is {status}\n{}", flow.row.id, flow.picture());
        for task in &flow.state.plan.tasks {
            let state = flow.state.tasks.get(&task.id).filter(|state| state.phase == Phase::Succeeded);
            match (results.get(&task.id), state) {
                (Some(value), _) => text.push_str(&format!("{} = {value}\n", task.id)),
                (None, Some(state)) => text.push_str(&format!(
                    "{} has a result of {} bytes, which is not shown: get_workflow with `task` gives it\n",
                    task.id, state.bytes
                )),
                (None, None) => {}
            }
        }
        let output = Output {
            workflow_id: flow.row.id.to_string(),
            status: status.to_owned(),
            seq: flow.state.seq,
            tasks: task_views(&flow.state),
            results,
            events: events
                .map(|events| events.into_iter().filter_map(|event| event.as_object().cloned()).collect()),
            mermaid: mermaid.then(|| picture::mermaid(&flow.state)),
        };
        Ok(plain(serde_json::to_value(&output).unwrap_or_default(), Some(text)))
    }
}

fn plain(structured: Value, text: Option<String>) -> CallToolResult {
    let mut result =
        CallToolResult::success(vec![ContentBlock::text(text.unwrap_or_else(|| format!("{structured:#}")))]);
    result.is_error = None;
    result.structured_content = Some(structured);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_schemas_hold_nothing_that_strict_hosts_refuse() {
        for tool in tools() {
            let tool = serde_json::to_value(tool).unwrap();
            assert_eq!(
                schema::refused(&tool["inputSchema"]),
                Vec::<String>::new(),
                "{}",
                tool["inputSchema"]
            );
            assert_eq!(tool["inputSchema"]["type"], "object");
        }
    }
}
