//! `/console`: a page on which an operator sees what lives, what runs and what it costs, and can end it.
//!
//! The page, its style and its script are embedded; there is nothing to build or to install, and its policy lets it load
//! nothing else. What it shows comes from `state`, which needs a caller with the scope `admin` and shows that caller's
//! tenants. Output in it has been through the guard; of findings it has the rule and the number.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use futures::Stream;
use http::{StatusCode, header, request::Parts};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::domain::principal::MissingScope;
use crate::domain::usage::UsageBy;
use crate::domain::{
    ContextKey, ConversationId, ErrorCode, ExecutionId, OutputChunk, Owner, PathId, Principal, Scope,
    TenantId, Tenants,
};
use crate::execution::paths::{PathChange, PathError, PathRow};
use crate::execution::{
    ContextRow, Contexts, Control, Execution, ExecutionError, ExecutionRow, ExecutionStatus, Health, Paths,
    Reads, Requester, Runs, Starting, Usage, WorkflowError, WorkflowRow, Workflows,
};
use crate::guard::own_words;

const PAGE: &str = include_str!("console/page.html");
const STYLE: &str = include_str!("console/style.css");
const SCRIPT: &str = include_str!("console/script.js");

/// The page may load its own style and script, talk to its own server, and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// How often a page that is open gets what has changed.
const PACE: Duration = Duration::from_secs(1);
/// How long a stream lasts: the page asks again, and its credential is looked at again.
const STREAM: Duration = Duration::from_secs(60);
/// Runs that are shown besides those that go on.
const RECENT: u32 = 40;
/// Conversations whose registered paths are shown.
const CONVERSATIONS: usize = 50;
/// Characters of a run's output that are shown while it goes on.
const TAIL: usize = 2000;

/// What of the running service the console uses.
#[derive(Debug, Clone)]
pub struct Service {
    runs: Runs,
    reads: Reads,
    contexts: Contexts,
    paths: Paths,
    usage: Usage,
    health: Health,
    workflows: Workflows,
    bridge: Option<crate::bridge::Bridge>,
}

impl Service {
    /// Its parts of a running service.
    pub fn of(execution: &Execution) -> Self {
        let Execution { runs, reads, contexts, paths, usage, health, workflows, bridge, .. } =
            execution.clone();
        Self { runs, reads, contexts, paths, usage, health, workflows, bridge }
    }
}

/// The console.
#[derive(Debug, Clone)]
pub struct Console(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    execution: Starting<Service>,
    streams: CancellationToken,
}

impl Console {
    /// Over a service that may still be starting. Streams end with the token.
    pub fn new(execution: Starting<Service>, streams: CancellationToken) -> Self {
        Self(Arc::new(Inner { execution, streams }))
    }

    /// The page itself, which reveals nothing about this server and needs no caller.
    pub fn open(&self) -> Router {
        let page = async || {
            let headers = [
                (header::CONTENT_TYPE, "text/html; charset=utf-8"),
                (header::CONTENT_SECURITY_POLICY, POLICY),
                (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (header::REFERRER_POLICY, "no-referrer"),
                (header::CACHE_CONTROL, "no-cache"),
            ];
            (headers, PAGE)
        };
        let asset = |kind: &'static str, text: &'static str| {
            get(async move || {
                let headers = [
                    (header::CONTENT_TYPE, kind),
                    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
                    (header::CACHE_CONTROL, "no-cache"),
                ];
                (headers, text)
            })
        };
        Router::new()
            .route("/console", get(page))
            .route("/console/style.css", asset("text/css; charset=utf-8", STYLE))
            .route("/console/script.js", asset("text/javascript; charset=utf-8", SCRIPT))
    }

    /// What it shows and does, for callers with the scope `admin`.
    pub fn known(&self) -> Router {
        Router::new()
            .route("/console/state", get(show))
            .route("/console/live", get(live))
            .route("/console/interrupt", post(interrupt))
            .route("/console/end", post(end))
            .route("/console/branch", post(branch))
            .route("/console/workflow", post(steer))
            .with_state(self.clone())
    }

    async fn service(&self) -> Result<Service, Refusal> {
        Ok(self.0.execution.service(Duration::from_secs(10)).await?)
    }
}

/// Why something was not shown or done.
#[derive(Debug)]
struct Refusal(StatusCode, ErrorCode, String, Option<MissingScope>);

impl From<ExecutionError> for Refusal {
    fn from(error: ExecutionError) -> Self {
        let status = match error.code() {
            ErrorCode::NotFound => StatusCode::NOT_FOUND,
            ErrorCode::PathClosed => StatusCode::CONFLICT,
            code if code.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.code(), format!("{error}. {}", error.advice()), None)
    }
}

impl From<WorkflowError> for Refusal {
    fn from(error: WorkflowError) -> Self {
        match error {
            WorkflowError::Execution(error) => error.into(),
            error => {
                let status = match error.code() {
                    ErrorCode::NotFound | ErrorCode::Disabled => StatusCode::NOT_FOUND,
                    _ => StatusCode::CONFLICT,
                };
                Self(status, error.code(), format!("{error}. {}", error.advice()), None)
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, code, message, missing) = self;
        let error = json!({ "code": code, "message": own_words(&message), "retryable": code.is_retryable() });
        let mut response = (status, Json(json!({ "error": error }))).into_response();
        if let Some(missing) = missing {
            response.extensions_mut().insert(missing);
        }
        response
    }
}

/// An operator, and the tenants that it sees; `None` is every one.
#[derive(Debug, Clone)]
struct Operator {
    name: String,
    tenants: Option<BTreeSet<TenantId>>,
}

impl<S: Send + Sync> FromRequestParts<S> for Operator {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let forbidden = |text: &str, missing| {
            Refusal(StatusCode::FORBIDDEN, ErrorCode::Forbidden, text.to_owned(), missing)
        };
        let Extension(principal) = Extension::<Principal>::from_request_parts(parts, state)
            .await
            .map_err(|_| forbidden("the caller is not known", None))?;
        if !principal.may(Scope::Admin) {
            let missing = Some(MissingScope(Scope::Admin));
            return Err(forbidden("the console needs a credential with the scope `admin`", missing));
        }
        let tenants = match principal.tenants {
            Tenants::Any => None,
            Tenants::Only(mut tenants) => {
                tenants.extend(principal.tenant);
                Some(tenants)
            }
        };
        Ok(Self { name: principal.name, tenants })
    }
}

impl Operator {
    /// Each tenant that it sees, or `None` once for all.
    fn each(&self) -> Vec<Option<&TenantId>> {
        self.tenants.as_ref().map_or(vec![None], |tenants| tenants.iter().map(Some).collect())
    }

    fn requester(&self, tenant: &TenantId) -> Result<Requester, Refusal> {
        if self.tenants.as_ref().is_some_and(|tenants| !tenants.contains(tenant)) {
            let text = format!("this credential may not act for tenant {tenant}");
            return Err(Refusal(StatusCode::FORBIDDEN, ErrorCode::Forbidden, text, None));
        }
        let (tenant, principal) = (tenant.clone(), self.name.clone());
        Ok(Requester { tenant, owner: Owner::tenant(), principal, sees_tenant: true })
    }
}

async fn show(State(console): State<Console>, by: Operator) -> Result<Response, Refusal> {
    let state = state(&console.service().await?, &by).await?;
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(state)).into_response())
}

/// The same again whenever it has changed.
async fn live(
    State(console): State<Console>,
    by: Operator,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let service = console.service().await?;
    let until = tokio::time::Instant::now() + STREAM;
    let began = (None::<Value>, service, by, console);
    let stream = futures::stream::unfold(began, move |(mut last, service, by, console)| async move {
        loop {
            if last.is_some() {
                tokio::select! {
                    () = tokio::time::sleep(PACE) => {}
                    () = console.0.streams.cancelled() => return None,
                }
            }
            if tokio::time::Instant::now() >= until {
                return None;
            }
            let Ok(now) = state(&service, &by).await else { return None };
            if last.as_ref() != Some(&now) {
                let event = Event::default().data(now.to_string());
                last = Some(now);
                return Some((Ok(event), (last, service, by, console)));
            }
        }
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

/// Everything that the page shows. It has times and no ages, so that it is equal when nothing has happened.
async fn state(service: &Service, by: &Operator) -> Result<Value, ExecutionError> {
    let (mut contexts, mut runs, mut cost) = (Vec::new(), Vec::new(), Vec::new());
    let mut flows = Vec::new();
    for tenant in by.each() {
        contexts.extend(service.contexts.all(tenant).await?);
        runs.extend(service.reads.latest(tenant, RECENT).await?);
        if service.workflows.is_on() {
            flows.extend(service.workflows.latest(tenant, RECENT).await?.iter().map(workflow));
        }
        cost.extend(service.usage.report(tenant, None, service.usage.this_month(), UsageBy::Tenant).await?);
    }
    let mut findings: BTreeMap<String, u64> = BTreeMap::new();
    for (kind, count) in runs.iter().filter_map(|run| run.findings["rules"].as_object()).flatten() {
        *findings.entry(kind.clone()).or_default() += count.as_u64().unwrap_or(0);
    }
    let tenants: BTreeSet<TenantId> = contexts.iter().map(|row| row.key.tenant.clone()).collect();
    Ok(json!({
        "paths": registered(service, &contexts).await?,
        "version": env!("CARGO_PKG_VERSION"),
        "checks": service.health.checks().await,
        "contexts": contexts.iter().map(context).collect::<Vec<_>>(),
        "workflows": flows,
        "runs": runs.iter().map(|row| run(service, by, row)).collect::<Vec<_>>(),
        "findings": findings,
        "cost": { "currency": service.usage.currency(), "lines": cost },
        "tools": tools(service, &tenants),
    }))
}

/// The registered paths of the conversations that have a context, up to a number of those.
async fn registered(service: &Service, contexts: &[ContextRow]) -> Result<Vec<Value>, ExecutionError> {
    let conversations: BTreeSet<_> = contexts.iter().map(|row| row.key.of_conversation()).collect();
    let mut found = Vec::new();
    for conversation in conversations.into_iter().take(CONVERSATIONS) {
        let view = |row: &PathRow| {
            json!({ "tenant": conversation.tenant, "owner": conversation.owner,
                    "conversation": conversation.conversation, "path": row.path, "parent": row.parent, "status": row.status,
                    "mergedInto": row.merged_into })
        };
        found.extend(service.paths.list(&conversation, false).await?.iter().map(view));
    }
    Ok(found)
}

fn context(row: &ContextRow) -> Value {
    json!({
        "id": row.id, "tenant": row.key.tenant, "owner": row.key.owner, "conversation": row.key.conversation,
        "path": row.key.path, "status": row.status, "createdAt": row.created_at, "lastUsedAt": row.last_used_at,
        "expiresAt": row.expires_at, "executions": row.execution_count,
    })
}

fn workflow(row: &WorkflowRow) -> Value {
    json!({
        "id": row.id, "tenant": row.key.tenant, "owner": row.key.owner, "conversation": row.key.conversation,
        "path": row.key.path, "purpose": row.purpose, "status": row.status, "createdAt": row.created_at,
        "finishedAt": row.finished_at, "isDriven": row.lease_owner.is_some(), "events": row.seq,
    })
}

fn run(service: &Service, by: &Operator, row: &ExecutionRow) -> Value {
    let lives = matches!(row.status, ExecutionStatus::Queued | ExecutionStatus::Running);
    let tail = (lives && row.status == ExecutionStatus::Running).then(|| tail(service, by, row)).flatten();
    json!({
        "id": row.id, "tenant": row.key.tenant, "owner": row.key.owner, "conversation": row.key.conversation,
        "path": row.key.path, "context": row.context, "tool": row.tool, "language": row.language, "purpose": row.purpose,
        "status": row.status, "lives": lives, "exitCode": row.exit_code, "error": row.error, "createdAt": row.created_at,
        "startedAt": row.started_at, "durationMs": row.duration_ms, "findings": row.findings["rules"], "tail": tail,
    })
}

/// The end of what a run has printed, when this replica has it.
fn tail(service: &Service, by: &Operator, row: &ExecutionRow) -> Option<String> {
    let requester = by.requester(&row.key.tenant).ok()?;
    let mut text = String::new();
    for chunk in service.runs.printed(&requester, row.id)? {
        if let OutputChunk::Stdout(more) | OutputChunk::Stderr(more) = chunk.into_inner() {
            text.push_str(&more);
        }
    }
    let skip = text.chars().count().saturating_sub(TAIL);
    Some(text.chars().skip(skip).collect())
}

/// Tools that are not as they were accepted, of servers that have listed theirs. The page starts none and waits for none.
fn tools(service: &Service, tenants: &BTreeSet<TenantId>) -> Vec<Value> {
    let Some(bridge) = &service.bridge else { return Vec::new() };
    let mut found = Vec::new();
    for tenant in tenants.iter().take(20) {
        let changes = bridge.known_changes(tenant).into_iter();
        found.extend(changes.map(|change| {
            json!({ "tenant": tenant, "server": change.server, "tool": change.tool, "what": change.what,
                    "blocked": change.blocked })
        }));
    }
    found
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    tenant: TenantId,
    execution: ExecutionId,
}

async fn interrupt(
    State(console): State<Console>,
    by: Operator,
    Json(run): Json<Run>,
) -> Result<Response, Refusal> {
    let requester = by.requester(&run.tenant)?;
    console.service().await?.runs.stop_run(&requester, run.execution).await?;
    tracing::info!(execution.id = %run.execution, operator = %by.name, "an operator asked a run to stop");
    Ok(Json(json!({ "asked": true })).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Steered {
    tenant: TenantId,
    workflow: Uuid,
    action: Action,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Pause,
    Resume,
    Abort,
}

/// Pauses, resumes or aborts a workflow. The event of it has the operator's name.
async fn steer(
    State(console): State<Console>,
    by: Operator,
    Json(Steered { tenant, workflow, action }): Json<Steered>,
) -> Result<Response, Refusal> {
    let requester = by.requester(&tenant)?;
    let control = match action {
        Action::Pause => Control::Pause,
        Action::Resume => Control::Resume,
        Action::Abort => Control::Abort,
    };
    let flow = console.service().await?.workflows.control(&requester, workflow, &control).await?;
    tracing::info!(workflow.id = %workflow, operator = %by.name, ?action, "an operator controlled a workflow");
    Ok(Json(json!({ "status": flow.state.status.as_str() })).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    tenant: TenantId,
    owner: Owner,
    conversation: ConversationId,
    path: PathId,
    /// The name of a new path.
    branch: Option<PathId>,
}

impl Place {
    fn key(&self) -> ContextKey {
        let Self { tenant, owner, conversation, path, .. } = self;
        ContextKey {
            tenant: tenant.clone(),
            owner: owner.clone(),
            conversation: conversation.clone(),
            path: path.clone(),
        }
    }
}

async fn end(
    State(console): State<Console>,
    by: Operator,
    Json(place): Json<Place>,
) -> Result<Response, Refusal> {
    by.requester(&place.tenant)?;
    let ended = console.service().await?.contexts.end(&place.key()).await?;
    tracing::info!(operator = %by.name, ended, "an operator ended a context");
    Ok(Json(json!({ "ended": ended })).into_response())
}

/// Registers a path that branches from this one. It starts without a sandbox.
async fn branch(
    State(console): State<Console>,
    by: Operator,
    Json(place): Json<Place>,
) -> Result<Response, Refusal> {
    by.requester(&place.tenant)?;
    let key = place.key();
    let Some(branch) = place.branch else {
        let text = "the name of the new path is missing".to_owned();
        return Err(Refusal(StatusCode::BAD_REQUEST, ErrorCode::InvalidArgument, text, None));
    };
    let paths = console.service().await?.paths;
    let new = ContextKey { path: branch, ..key.clone() };
    let register = |parent| PathChange::Register { parent, message: None };
    let mut made = paths.change(&new, &register(Some(key.path.clone())), None).await;
    if let Err(PathError::Unknown(_)) = made {
        // The path has run and was never registered.
        paths.change(&key, &register(None), None).await.map_err(refused)?;
        made = paths.change(&new, &register(Some(key.path)), None).await;
    }
    let row = made.map_err(refused)?;
    Ok((StatusCode::CREATED, Json(json!({ "path": row.path, "parent": row.parent }))).into_response())
}

fn refused(error: PathError) -> Refusal {
    match error {
        PathError::Store(error) => ExecutionError::Store(error).into(),
        error => Refusal(StatusCode::CONFLICT, ErrorCode::InvalidArgument, error.to_string(), None),
    }
}
