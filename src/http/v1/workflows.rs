//! `/v1/workflows`: the host application begins workflows, looks at them, steers them, and follows their events.
//!
//! Events are numbered without a gap, and the number is the id on the stream: a client that reconnects sends the last one that
//! it has (`Last-Event-ID`, or `after`) and misses nothing. Only events have ids.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, body::Bytes, routing::get, routing::post};
use futures::stream;
use http::StatusCode;
use http::request::Parts;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Problem, V1, body, caller, misread, requester};
use crate::domain::principal::Scope;
use crate::domain::{ContextKey, ConversationId, ErrorCode, PathId, from_value};
use crate::execution::{Approver, Call, Flow, Requester, WorkflowError, Workflows};
use crate::mcp::caller::IDEMPOTENCY_KEY;
use crate::mcp::tools::workflows::{ControlInput, plan, task_views};
use crate::telemetry::trace::Trace;
use crate::workflow::{Task, picture};

/// Workflows in a list.
const LISTED: u32 = 200;
/// Events in one look.
const PAGE: u32 = 200;
/// How long a look for news waits.
const LOOK: Duration = Duration::from_secs(15);

/// The routes.
pub(super) fn routes() -> Router<V1> {
    Router::new()
        .route("/v1/workflows", get(list).post(begin))
        .route("/v1/workflows/{workflow}", get(show))
        .route("/v1/workflows/{workflow}/results", get(results))
        .route("/v1/workflows/{workflow}/control", post(control))
        .route("/v1/workflows/{workflow}/events", get(events))
}

impl From<WorkflowError> for Problem {
    fn from(error: WorkflowError) -> Self {
        let status = match &error {
            WorkflowError::Execution(_) => None,
            WorkflowError::Plan(_) => Some(StatusCode::UNPROCESSABLE_ENTITY),
            WorkflowError::Refused(_) | WorkflowError::KeyConflict(_) => Some(StatusCode::CONFLICT),
            WorkflowError::NotConfirmed(_) => Some(StatusCode::FORBIDDEN),
            WorkflowError::Unknown(_) => Some(StatusCode::NOT_FOUND),
            WorkflowError::Limit => Some(StatusCode::TOO_MANY_REQUESTS),
            WorkflowError::Off => Some(StatusCode::NOT_FOUND),
        };
        match (status, error) {
            (None, WorkflowError::Execution(error)) => error.into(),
            (status, error) => {
                let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Self::new(status, error.code(), format!("{error}. {}", error.advice()))
            }
        }
    }
}

/// Who asks about workflows.
struct By {
    workflows: Workflows,
    requester: Requester,
}

/// The id in a route.
#[derive(Debug, Deserialize)]
struct Place {
    workflow: Option<String>,
}

struct Of {
    by: By,
    id: Uuid,
}

impl FromRequestParts<V1> for By {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, v1: &V1) -> Result<Self, Problem> {
        let scope = if parts.method == http::Method::GET { Scope::Read } else { Scope::Run };
        let (principal, tenant) = caller(parts, scope)?;
        let requester = requester(v1, principal, tenant);
        let workflows = v1.service().await?.workflows;
        if !workflows.is_on() {
            return Err(WorkflowError::Off.into());
        }
        Ok(Self { workflows, requester })
    }
}

impl FromRequestParts<V1> for Of {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, v1: &V1) -> Result<Self, Problem> {
        let by = By::from_request_parts(parts, v1).await?;
        let Path(place) = Path::<Place>::from_request_parts(parts, v1)
            .await
            .map_err(|error| Problem::argument(error.body_text()))?;
        let id = place.workflow.unwrap_or_default();
        let unknown =
            || Problem::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, "there is no such workflow");
        Ok(Self { by, id: id.parse().map_err(|_| unknown())? })
    }
}

/// A workflow and its progress.
fn view(flow: &Flow) -> Value {
    json!({
        "workflowId": flow.row.id,
        "status": flow.state.shown_status(),
        "seq": flow.state.seq,
        "purpose": flow.row.purpose,
        "createdAt": flow.row.created_at.to_rfc3339(),
        "finishedAt": flow.row.finished_at.map(|at| at.to_rfc3339()),
        "tasks": task_views(&flow.state),
        "mermaid": picture::mermaid(&flow.state),
    })
}

async fn list(by: By) -> Result<Response, Problem> {
    let rows = by.workflows.list(&by.requester, false, LISTED).await?;
    let rows = rows.iter().map(|row| {
        json!({"workflowId": row.id, "status": row.status, "seq": row.seq, "purpose": row.purpose,
            "createdAt": row.created_at.to_rfc3339(), "finishedAt": row.finished_at.map(|at| at.to_rfc3339())})
    });
    Ok(Json(json!({ "workflows": rows.collect::<Vec<_>>() })).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Begin {
    tasks: Vec<Value>,
    #[serde(default, deserialize_with = "whole")]
    width: Option<u64>,
    #[serde(default, deserialize_with = "whole")]
    timeout_ms: Option<u64>,
    purpose: Option<String>,
    conversation: ConversationId,
    #[serde(default = "PathId::main")]
    path: PathId,
    idempotency_key: Option<String>,
}

/// An integer as JSON Schema has it: 10.0 is one.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let number = serde_json::Number::deserialize(from)?;
    let whole = number.as_u64().or_else(|| number.as_f64()?.to_string().parse().ok());
    whole.map(Some).ok_or_else(|| D::Error::custom(format!("{number} is not a whole number of 0 or more")))
}

/// What the document does not say in full: which tasks hold together.
fn unusable(message: impl AsRef<str>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::InvalidArgument, message)
}

fn tasks(given: Vec<Value>) -> Result<Vec<Task>, Problem> {
    let task = |(at, task): (usize, Value)| {
        from_value(&task).map_err(|error| unusable(format!("body, `tasks[{at}]`: {error}")))
    };
    given.into_iter().enumerate().map(task).collect()
}

async fn begin(by: By, headers: http::HeaderMap, bytes: Bytes) -> Result<Response, Problem> {
    let ask: Begin = body(&bytes)?;
    if ask.idempotency_key.as_ref().is_some_and(|key| !IDEMPOTENCY_KEY.contains(&key.chars().count())) {
        return Err(unusable("body, `idempotency_key`: must have 1 to 255 characters"));
    }
    let key = ContextKey {
        tenant: by.requester.tenant.clone(),
        owner: by.requester.owner.clone(),
        conversation: ask.conversation,
        path: ask.path,
    };
    let call = Call {
        trace: headers.get("traceparent").and_then(|parent| parent.to_str().ok()).and_then(Trace::read),
        idempotency_key: ask.idempotency_key,
        ..Call::on(key, by.requester)
    };
    // One that is too large is refused with the plan.
    let width = ask.width.map(|width| u32::try_from(width).unwrap_or(u32::MAX));
    let purpose = ask.purpose.map(|text| text.chars().take(200).collect());
    let flow = by.workflows.begin(call, purpose, plan(tasks(ask.tasks)?, width, ask.timeout_ms)).await?;
    Ok((StatusCode::CREATED, Json(view(&flow))).into_response())
}

async fn show(of: Of) -> Result<Response, Problem> {
    Ok(Json(view(&of.by.workflows.look(&of.by.requester, of.id).await?)).into_response())
}

#[derive(Debug, Deserialize)]
struct Which {
    task: Option<String>,
}

async fn results(of: Of, which: Result<Query<Which>, QueryRejection>) -> Result<Response, Problem> {
    let Query(which) = which.map_err(|error| misread(&error))?;
    let flow = of.by.workflows.look(&of.by.requester, of.id).await?;
    let tasks = match &which.task {
        Some(task) => vec![task.clone()],
        None => flow.state.plan.tasks.iter().map(|task| task.id.clone()).collect(),
    };
    Ok(Json(json!({ "results": of.by.workflows.results(&flow, Some(&tasks)).await? })).into_response())
}

async fn control(of: Of, bytes: Bytes) -> Result<Response, Problem> {
    // As the tool takes it, where the workflow is an argument.
    let mut input: serde_json::Map<String, Value> = body(&bytes)?;
    if let Some(Value::Array(given)) = input.get("tasks") {
        tasks(given.clone())?;
    }
    input.insert("workflow_id".into(), json!(of.id));
    let input: ControlInput = body(&Value::Object(input).to_string().into())?;
    let control = input.control(Approver::Application).map_err(unusable)?;
    Ok(Json(view(&of.by.workflows.control(&of.by.requester, of.id, &control).await?)).into_response())
}

#[derive(Debug, Deserialize)]
struct After {
    after: Option<String>,
}

/// What is left of a stream.
struct Following {
    of: Of,
    after: i64,
    ready: VecDeque<Value>,
    over: bool,
}

impl Following {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.after = event["seq"].as_i64().unwrap_or(self.after);
                let name = event["event"].as_str().unwrap_or("event").to_owned();
                let sent = Event::default().id(self.after.to_string()).event(name).data(event.to_string());
                return Some((Ok(sent), self));
            }
            if self.over {
                return None;
            }
            let by = &self.of.by;
            // A client whose stream breaks comes again with the last id.
            let found = by.workflows.events(&by.requester, self.of.id, self.after, PAGE).await.ok()?;
            if found.is_empty() {
                let flow = by.workflows.wait(&by.requester, self.of.id, self.after, LOOK).await.ok()?;
                self.over = flow.state.status.is_over() && flow.state.seq <= self.after;
                // The server ends, and says so by ending the stream.
                if flow.state.seq <= self.after && by.workflows.is_ending() {
                    return None;
                }
            }
            self.ready = found.into();
        }
    }
}

async fn events(
    of: Of,
    query: Result<Query<After>, QueryRejection>,
    headers: http::HeaderMap,
) -> Result<Response, Problem> {
    let Query(query) = query.map_err(|error| misread(&error))?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let after = match last.or(query.after) {
        None => 0,
        Some(text) => text
            .parse::<i64>()
            .ok()
            .filter(|after| *after >= 0)
            .ok_or_else(|| Problem::argument("`after` and Last-Event-ID are the number of an event"))?,
    };
    of.by.workflows.look(&of.by.requester, of.id).await?;
    let following = Following { of, after, ready: VecDeque::new(), over: false };
    let stream = stream::unfold(following, Following::next);
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(LOOK)).into_response())
}

/// Their part of the document, under the same names.
#[expect(clippy::too_many_lines, reason = "it is data")]
pub(super) fn document(
    paths: &mut Value,
    refusals: impl Fn(Value, &[(&str, &str)]) -> Value,
    tenant: &Value,
) {
    let workflow = json!({ "name": "workflow", "in": "path", "required": true, "schema": { "type": "string", "format": "uuid" } });
    let answer = |what: &str| {
        json!({ "description": what, "content": { "application/json": { "schema": { "type": "object",
            "required": ["workflowId", "status", "seq", "tasks"], "properties": {
                "workflowId": { "type": "string", "format": "uuid" },
                "status": { "type": "string", "enum": ["running", "waiting", "pausing", "paused", "aborting", "completed", "failed", "aborted"] },
                "seq": { "type": "integer" }, "tasks": { "type": "array", "items": { "type": "object" } },
                "mermaid": { "type": "string" } } } } } })
    };
    let object = |what: &str| json!({ "description": what, "content": { "application/json": { "schema": { "type": "object" } } } });
    let unknown = [("404", "The caller has no such workflow, or workflows are switched off.")];
    let tasks = json!({ "type": "array", "items": { "type": "object" }, "maxItems": 200 });
    let id = json!({ "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9_.:@-]+$" });
    let operation = |id: &str, summary: &str, parameters: Vec<&Value>, responses: Value| {
        json!({ "operationId": id, "summary": summary, "parameters": parameters, "responses": responses,
            "security": [{ "bearer": [] }] })
    };
    let with = |mut operation: Value, schema: Value| {
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        operation
    };
    let after = json!({ "name": "after", "in": "query", "required": false, "schema": { "type": "integer", "minimum": 0, "maximum": i64::MAX } });
    let task = json!({ "name": "task", "in": "query", "required": false, "schema": { "type": "string" } });
    let conflict = [
        unknown[0],
        ("422", "The tasks do not fit together, or an argument that the action needs is missing."),
        (
            "409",
            "The state of the workflow or task does not allow this, or the key was used with other arguments.",
        ),
    ];
    paths["/v1/workflows"] = json!({
        "get": operation("listWorkflows", "The caller's workflows, the latest first", vec![tenant],
            refusals(json!({ "200": object("They, as `workflows`.") }), &unknown)),
        "post": with(operation("beginWorkflow", "Begins a workflow", vec![tenant],
            refusals(json!({ "201": answer("It, with its plan.") }), &conflict)),
            json!({ "type": "object", "additionalProperties": false, "required": ["tasks", "conversation"], "properties": {
                "tasks": tasks, "width": { "type": "integer", "minimum": 1, "maximum": 16 },
                "timeout_ms": { "type": "integer", "minimum": 1000, "maximum": 86_400_000 }, "purpose": { "type": "string" },
                "conversation": id, "path": id, "idempotency_key": {
                    "type": "string", "minLength": IDEMPOTENCY_KEY.start(), "maxLength": IDEMPOTENCY_KEY.end() } } })),
    });
    paths["/v1/workflows/{workflow}"] = json!({
        "get": operation("showWorkflow", "A workflow and its progress", vec![&workflow, tenant],
            refusals(json!({ "200": answer("It.") }), &unknown)),
    });
    paths["/v1/workflows/{workflow}/results"] = json!({
        "get": operation("workflowResults", "Results of its tasks", vec![&workflow, tenant, &task],
            refusals(json!({ "200": object("The results, as `results` by task.") }), &unknown)),
    });
    paths["/v1/workflows/{workflow}/control"] = json!({
        "post": with(operation("controlWorkflow", "Pauses, resumes, aborts, approves, decides, replans; as control_workflow", vec![&workflow, tenant],
            refusals(json!({ "200": answer("It, after that.") }), &conflict)),
            json!({ "type": "object", "additionalProperties": false, "required": ["action"], "properties": {
                "action": { "type": "string", "enum": ["pause", "resume", "abort", "approve", "refuse", "retry", "accept", "give_up", "replan"] },
                "task": { "type": "string" }, "result": {}, "tasks": tasks, "drop": { "type": "array", "items": { "type": "string" } } } })),
    });
    paths["/v1/workflows/{workflow}/events"] = json!({
        "get": operation("workflowEvents", "What happens, as server-sent events. The id is the number of the event; Last-Event-ID resumes",
            vec![&workflow, tenant, &after],
            refusals(json!({ "200": { "description": "The stream; it ends with the workflow.", "content": { "text/event-stream": { "schema": { "type": "string" } } } } }), &unknown)),
    });
}
