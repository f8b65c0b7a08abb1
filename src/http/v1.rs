//! `/v1`: the host application reports changes of its conversation tree, and a scheduler requests clean-up.
//!
//! Every change is safe to repeat. A path's version is its ETag; with `If-Match` a change is made only if no one else
//! has changed the path since it was read (RFC 9110, section 13). `/v1/openapi.json` describes all of it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use chrono::NaiveDate;
use http::header::{AUTHORIZATION, CACHE_CONTROL, ETAG, IF_MATCH, RETRY_AFTER, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::domain::principal::{MissingScope, Owner, Principal, Scope, SharingRules};
use crate::domain::usage::{UsageBy, decimal};
use crate::domain::{
    ContextKey, ConversationId, ConversationKey, ErrorCode, InvalidId, MAX_PRINCIPAL, OwnUrl, PathId, Period,
    TenantId, same_bytes,
};
use crate::execution::files::Files;
use crate::execution::paths::{PathChange, PathError, PathNode, PathRow, StoreError};
use crate::execution::{
    Cleanup, Credentials, Execution, ExecutionError, Paths, Requester, Starting, Transfers, Usage, Workflows,
};
use crate::guard::{Sanitized, own_words};

mod files;
mod openapi;
mod workflows;

pub use openapi::openapi;

/// What of the running service the routes use.
#[derive(Debug, Clone)]
pub struct Service {
    paths: Paths,
    credentials: Credentials,
    cleanup: Cleanup,
    usage: Usage,
    files: Files,
    transfers: Transfers,
    workflows: Workflows,
}

impl Service {
    /// Their parts of a running service.
    pub fn of(execution: &Execution) -> Self {
        let Execution { paths, credentials, cleanup, usage, files, transfers, workflows, .. } =
            execution.clone();
        Self { paths, credentials, cleanup, usage, files, transfers, workflows }
    }
}

/// What the routes work with.
#[derive(Debug, Clone)]
pub struct V1(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    execution: Starting<Service>,
    /// SHA-256 of the clean-up secret, so that comparing takes the same time for every wrong one.
    cron: Option<[u8; 32]>,
    /// Who may enter contexts.
    sharing: SharingRules,
    /// Where clients reach this server.
    own_url: OwnUrl,
}

/// How long a request waits for a server that is still starting.
const PATIENCE: Duration = Duration::from_secs(10);

impl V1 {
    /// Routes over a service that may still be starting.
    pub fn new(
        execution: Starting<Service>,
        cron_secret: Option<&str>,
        sharing: SharingRules,
        own_url: OwnUrl,
    ) -> Self {
        let cron = cron_secret.map(|secret| Sha256::digest(secret.as_bytes()).into());
        Self(Arc::new(Inner { execution, cron, sharing, own_url }))
    }

    /// Routes that need a caller.
    pub fn known(&self) -> Router {
        let at = "/v1/conversations/{conversation}";
        Router::new()
            .route(&format!("{at}/paths"), get(list).post(register))
            .route(&format!("{at}/tree"), get(tree))
            .route(&format!("{at}/paths/{{path}}"), get(show).delete(delete))
            .route(&format!("{at}/paths/{{path}}/branch"), post(branch))
            .route(&format!("{at}/paths/{{path}}/edit"), post(edit))
            .route(&format!("{at}/paths/{{path}}/merge"), post(merge))
            .route(&format!("{at}/paths/{{path}}/archive"), post(archive))
            .route(&format!("{at}/paths/{{path}}/files"), get(files::list).post(files::address))
            .route(&format!("{at}/shares"), get(shares))
            .route(&format!("{at}/shares/{{principal}}"), put(share).delete(unshare))
            .route("/v1/shared", get(shared))
            .route("/v1/reveal", post(reveal))
            .route("/v1/usage", get(usage))
            .merge(workflows::routes())
            .with_state(self.clone())
    }

    /// Routes that check for themselves who may use them.
    pub fn open(&self) -> Router {
        Router::new()
            .route("/v1/cleanup", post(cleanup))
            .route("/v1/openapi.json", get(async || Json(openapi())))
            .with_state(self.clone())
    }

    async fn service(&self) -> Result<Service, Problem> {
        Ok(self.0.execution.service(PATIENCE).await?)
    }
}

/// A refusal: a status, a stable code and a sentence, which may quote a stranger and so has been through the guard.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    code: ErrorCode,
    message: Sanitized<String>,
    missing: Option<MissingScope>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: ErrorCode, message: impl AsRef<str>) -> Self {
        Self { status, code, message: own_words(message.as_ref()), missing: None }
    }

    pub(super) fn argument(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorCode::InvalidArgument, message)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = super::problem(self.status, self.code, self.message.into_inner());
        if let Some(missing) = self.missing {
            response.extensions_mut().insert(missing);
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("2"));
        }
        response
    }
}

impl From<ExecutionError> for Problem {
    fn from(error: ExecutionError) -> Self {
        let status = match error.code() {
            ErrorCode::StoreUnavailable
            | ErrorCode::StoreBusy
            | ErrorCode::StoreReadOnly
            | ErrorCode::StoreFull
            | ErrorCode::SandboxUnavailable
            | ErrorCode::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::NotFound | ErrorCode::Disabled => StatusCode::NOT_FOUND,
            ErrorCode::Forbidden => StatusCode::FORBIDDEN,
            ErrorCode::LimitReached | ErrorCode::QuotaReached | ErrorCode::QueueTimeout => {
                StatusCode::TOO_MANY_REQUESTS
            }
            ErrorCode::PathClosed
            | ErrorCode::TemplateConflict
            | ErrorCode::IdempotencyConflict
            | ErrorCode::Interrupted
            | ErrorCode::Cancelled
            | ErrorCode::WorkflowState => StatusCode::CONFLICT,
            ErrorCode::Blocked | ErrorCode::InvalidArgument | ErrorCode::PlaceholderUnresolved => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            ErrorCode::SandboxFailed | ErrorCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.code(), format!("{error}. {}", error.advice()))
    }
}

impl From<PathError> for Problem {
    fn from(error: PathError) -> Self {
        let message = error.to_string();
        match error {
            PathError::Store(error) => ExecutionError::Store(error).into(),
            PathError::Unknown(_) => Self::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, message),
            PathError::NotActive { .. } => Self::new(StatusCode::CONFLICT, ErrorCode::PathClosed, message),
            PathError::Differs(_) | PathError::Cycle(_) => {
                Self::new(StatusCode::CONFLICT, ErrorCode::InvalidArgument, message)
            }
            PathError::Stale { .. } => {
                Self::new(StatusCode::PRECONDITION_FAILED, ErrorCode::InvalidArgument, message)
            }
        }
    }
}

impl From<InvalidId> for Problem {
    fn from(error: InvalidId) -> Self {
        Self::argument(error.to_string())
    }
}

/// What every request about paths says: whose conversation, which path if one, and what it expects to find there.
struct Ask {
    paths: Paths,
    conversation: ConversationKey,
    path: Option<PathId>,
    /// Another principal, in a route about shares.
    principal: Option<String>,
    expected: Option<i64>,
}

/// The variable parts of a route.
#[derive(Debug, Deserialize)]
struct Place {
    conversation: String,
    path: Option<String>,
    principal: Option<String>,
}

/// A caller, as contexts and runs know it.
fn requester(v1: &V1, principal: &Principal, tenant: TenantId) -> Requester {
    Requester {
        owner: principal.owner(v1.0.sharing.of(&tenant)),
        tenant,
        principal: principal.name.clone(),
        sees_tenant: principal.sees_tenant(),
    }
}

/// Who asks, and for which tenant; who lacks the scope is refused.
fn caller(parts: &Parts, scope: Scope) -> Result<(&Principal, TenantId), Problem> {
    let forbidden = |message: &str| Problem::new(StatusCode::FORBIDDEN, ErrorCode::Forbidden, message);
    let principal =
        parts.extensions.get::<Principal>().ok_or_else(|| forbidden("the caller is not known"))?;
    if !principal.may(scope) {
        let missing = Some(MissingScope(scope));
        return Err(Problem { missing, ..forbidden(&format!("the credential lacks the scope `{scope}`")) });
    }
    let named = match parts.headers.get("x-tenant-id") {
        None => None,
        Some(value) => {
            let text = value.to_str().map_err(|_| Problem::argument("X-Tenant-Id is not text"))?;
            Some(text.parse::<TenantId>()?)
        }
    };
    let tenant = principal.tenant_for(named.as_ref()).map_err(|error| forbidden(&error.to_string()))?;
    Ok((principal, tenant))
}

impl FromRequestParts<V1> for Ask {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, v1: &V1) -> Result<Self, Problem> {
        let (principal, tenant) = caller(parts, Scope::Paths)?;
        let owner = principal.owner(v1.0.sharing.of(&tenant));
        let expected = expected_version(&parts.headers)?;
        let Path(place) = Path::<Place>::from_request_parts(parts, v1)
            .await
            .map_err(|error| Problem::argument(error.body_text()))?;
        let paths = v1.service().await?.paths;
        let path = place.path.map(|path| path.parse()).transpose()?;
        let conversation = ConversationKey { tenant, owner, conversation: place.conversation.parse()? };
        Ok(Self { paths, conversation, path, principal: place.principal, expected })
    }
}

impl Ask {
    /// The path of a route that has one.
    fn path(&self) -> Result<&PathId, Problem> {
        self.path.as_ref().ok_or_else(|| Problem::argument("the path is missing"))
    }
}

/// The version in `If-Match`; `*` and none at all are any.
fn expected_version(headers: &HeaderMap) -> Result<Option<i64>, Problem> {
    let Some(tag) = headers.get(IF_MATCH) else { return Ok(None) };
    let tag = tag.to_str().map_err(|_| Problem::argument("If-Match is not text"))?.trim();
    if tag == "*" {
        return Ok(None);
    }
    let quoted =
        tag.strip_prefix("W/").unwrap_or(tag).strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    let digits = quoted.unwrap_or(tag);
    let is_number = (1..=18).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let version = if is_number { digits.parse().ok() } else { None };
    version
        .map(Some)
        .ok_or_else(|| Problem::argument("If-Match is not a version of a path: send an ETag unchanged"))
}

/// A body of JSON; an empty one is an empty object. Errors name the field.
fn body<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Problem> {
    let bytes: &[u8] = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes };
    // A list would be read as the fields in their order.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(Problem::argument("body: it has to be a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let at = Some(error.path().to_string()).filter(|path| !["?", "."].contains(&path.as_str()));
        let at = at.map_or_else(|| "body".to_owned(), |path| format!("body, `{path}`"));
        Problem::argument(format!("{at}: {}", error.into_inner()))
    })?;
    json.end().map_err(|error| Problem::argument(format!("body: {error}")))?;
    Ok(read)
}

/// A query that does not fit, by the name of its parameter.
fn misread(error: &QueryRejection) -> Problem {
    let text = error.body_text();
    Problem::argument(format!("query, {}", text.split_once(": ").map_or(text.as_str(), |(_, what)| what)))
}

/// A path with its version as ETag.
fn answer(status: StatusCode, row: &PathRow) -> Response {
    let mut response = (status, Json(view(row))).into_response();
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", row.version)) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}

fn view(row: &PathRow) -> Value {
    json!({
        "path": row.path, "parent": row.parent, "branchedAtMessage": row.branched_at_message,
        "mergedInto": row.merged_into, "status": row.status, "version": row.version,
        "createdAt": row.created_at, "updatedAt": row.updated_at,
    })
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Register {
    path: Option<PathId>,
    parent: Option<PathId>,
    branched_at_message: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Branch {
    path: PathId,
    #[serde(default)]
    branched_at_message: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Merge {
    target: PathId,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Edit {
    /// The edited message; the host application's own record.
    message: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ListQuery {
    deleted: bool,
}

const MAX_MESSAGE: usize = 256;

fn message(text: Option<String>) -> Result<Option<String>, Problem> {
    match &text {
        Some(text) if text.is_empty() || text.chars().count() > MAX_MESSAGE => {
            Err(Problem::argument(format!("`branchedAtMessage` has 1 to {MAX_MESSAGE} characters")))
        }
        _ => Ok(text),
    }
}

async fn register(ask: Ask, bytes: Bytes) -> Result<Response, Problem> {
    let Register { path, parent, branched_at_message } = body(&bytes)?;
    let path = path.ok_or_else(|| Problem::argument("body, `path`: missing"))?;
    let change = PathChange::Register { parent, message: message(branched_at_message)? };
    change_path(&ask, &path, &change, StatusCode::CREATED).await
}

async fn branch(ask: Ask, bytes: Bytes) -> Result<Response, Problem> {
    let Branch { path, branched_at_message } = body(&bytes)?;
    let parent = Some(ask.path()?.clone());
    let change = PathChange::Register { parent, message: message(branched_at_message)? };
    change_path(&ask, &path, &change, StatusCode::CREATED).await
}

async fn edit(ask: Ask, bytes: Bytes) -> Result<Response, Problem> {
    let Edit { .. } = body(&bytes)?;
    change_path(&ask, ask.path()?, &PathChange::Edit, StatusCode::OK).await
}

async fn merge(ask: Ask, bytes: Bytes) -> Result<Response, Problem> {
    let Merge { target } = body(&bytes)?;
    change_path(&ask, ask.path()?, &PathChange::Merge { target }, StatusCode::OK).await
}

async fn archive(ask: Ask) -> Result<Response, Problem> {
    change_path(&ask, ask.path()?, &PathChange::Archive, StatusCode::OK).await
}

async fn delete(ask: Ask) -> Result<Response, Problem> {
    change_path(&ask, ask.path()?, &PathChange::Delete, StatusCode::OK).await
}

async fn change_path(
    ask: &Ask,
    path: &PathId,
    change: &PathChange,
    status: StatusCode,
) -> Result<Response, Problem> {
    let row = ask.paths.change(&ask.conversation.path(path.clone()), change, ask.expected).await?;
    Ok(answer(status, &row))
}

async fn list(ask: Ask, uri: Uri) -> Result<Response, Problem> {
    let query =
        Query::<ListQuery>::try_from_uri(&uri).map_err(|error| Problem::argument(error.body_text()))?;
    let rows = ask.paths.list(&ask.conversation, query.deleted).await.map_err(ExecutionError::Store)?;
    let paths: Vec<Value> = rows.iter().map(view).collect();
    Ok(Json(json!({ "paths": paths })).into_response())
}

async fn show(ask: Ask) -> Result<Response, Problem> {
    let path = ask.path()?;
    let row = ask.paths.look(&ask.conversation.path(path.clone())).await.map_err(ExecutionError::Store)?;
    Ok(answer(StatusCode::OK, &row.ok_or_else(|| PathError::Unknown(path.clone()))?))
}

async fn tree(ask: Ask) -> Result<Response, Problem> {
    let tree = ask
        .paths
        .tree(&ask.conversation)
        .await
        .map_err(|error| Problem::from(ExecutionError::Store(error)))?;
    Ok(Json(json!({ "tree": tree.iter().map(branches).collect::<Vec<_>>() })).into_response())
}

/// A path with all that branched from it.
fn branches(node: &PathNode) -> Value {
    let mut shown = view(&node.row);
    shown["children"] = node.children.iter().map(branches).collect();
    shown
}

impl Ask {
    /// The principal of a route that names one.
    fn principal(&self) -> Result<&str, Problem> {
        match self.principal.as_deref() {
            Some(name) if (1..=MAX_PRINCIPAL).contains(&name.len()) => Ok(name),
            _ => Err(Problem::argument(format!("the principal has 1 to {MAX_PRINCIPAL} bytes"))),
        }
    }
}

fn store_problem(error: StoreError) -> Problem {
    ExecutionError::Store(error).into()
}

/// Whom the caller shares a conversation of its own with.
async fn shares(ask: Ask) -> Result<Response, Problem> {
    let principals = ask.paths.shared_with(&ask.conversation).await.map_err(store_problem)?;
    Ok(Json(json!({ "principals": principals })).into_response())
}

async fn share(ask: Ask) -> Result<Response, Problem> {
    ask.paths.share(&ask.conversation, ask.principal()?, true).await.map_err(store_problem)?;
    shares(ask).await
}

async fn unshare(ask: Ask) -> Result<Response, Problem> {
    ask.paths.share(&ask.conversation, ask.principal()?, false).await.map_err(store_problem)?;
    shares(ask).await
}

/// Who asks for what others share with it.
struct Guest {
    paths: Paths,
    tenant: TenantId,
    principal: String,
}

impl FromRequestParts<V1> for Guest {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, v1: &V1) -> Result<Self, Problem> {
        let (principal, tenant) = caller(parts, Scope::Run)?;
        let principal = principal.name.clone();
        Ok(Self { paths: v1.service().await?.paths, tenant, principal })
    }
}

/// The conversations that others share with the caller. A handle is the way in: a name alone is the caller's own.
async fn shared(by: Guest) -> Result<Response, Problem> {
    let found = by.paths.shared_to(&by.tenant, &by.principal).await.map_err(store_problem)?;
    let view = |(key, handle): &(ConversationKey, String)| json!({ "owner": key.owner.as_str(), "conversation": key.conversation, "context": handle });
    Ok(Json(json!({ "conversations": found.iter().map(view).collect::<Vec<_>>() })).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    /// `[EMAIL~...]`, as it appears in an output.
    token: String,
    conversation: ConversationId,
    #[serde(default = "PathId::main")]
    path: PathId,
}

/// Who asks for what a sealed token represents.
struct Revealer {
    credentials: Credentials,
    tenant: TenantId,
    principal: String,
}

impl FromRequestParts<V1> for Revealer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, v1: &V1) -> Result<Self, Problem> {
        let (principal, tenant) = caller(parts, Scope::Reveal)?;
        let principal = principal.name.clone();
        Ok(Self { credentials: v1.service().await?.credentials, tenant, principal })
    }
}

/// What a sealed token of the guard represents. Each asking is written down before it is answered.
async fn reveal(by: Revealer, bytes: Bytes) -> Result<Response, Problem> {
    let Sealed { token, conversation, path } = body(&bytes)?;
    // The scope is the tenant's: it opens tokens of any of its principals.
    let key = ContextKey { tenant: by.tenant, owner: Owner::tenant(), conversation, path };
    let revealed = by.credentials.reveal(&key, &by.principal, &token).await?;
    let answer = Json(json!({ "kind": revealed.kind, "value": revealed.value.as_str() }));
    Ok(([(CACHE_CONTROL, "no-store")], answer).into_response())
}

/// Who asks what was used.
struct Accountant {
    usage: Usage,
    tenant: TenantId,
    /// Whose use the caller sees; `None` is the whole tenant's.
    owner: Option<Owner>,
}

impl FromRequestParts<V1> for Accountant {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, v1: &V1) -> Result<Self, Problem> {
        let (principal, tenant) = caller(parts, Scope::Read)?;
        let sees_all = principal.may(Scope::Admin) || principal.sees_tenant();
        let owner = (!sees_all).then(|| principal.owner(v1.0.sharing.of(&tenant)));
        Ok(Self { usage: v1.service().await?.usage, tenant, owner })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Span {
    from: Option<NaiveDate>,
    to: Option<NaiveDate>,
    #[serde(default = "by_conversation")]
    by: UsageBy,
}

fn by_conversation() -> UsageBy {
    UsageBy::Conversation
}

/// What was used, this month unless the query says otherwise.
async fn usage(by: Accountant, query: Result<Query<Span>, QueryRejection>) -> Result<Response, Problem> {
    let Query(span) = query.map_err(|error| misread(&error))?;
    let to = span.to.unwrap_or_else(|| by.usage.this_month().1);
    let from = span.from.unwrap_or_else(|| Period::Month.first(to));
    if from > to {
        return Err(Problem::argument(format!("query, from: {from} is after `to`, {to}")));
    }
    let lines = by.usage.report(Some(&by.tenant), by.owner.as_ref(), (from, to), span.by).await?;
    let quota = by.usage.quota(&by.tenant).await?;
    let answer = json!({
        "from": from, "to": to, "currency": by.usage.currency(), "lines": lines,
        "quota": {
            "period": quota.period, "sandboxSeconds": quota.sandbox_seconds, "executions": quota.executions,
            "money": quota.money_micros.map(decimal),
        },
    });
    Ok(Json(answer).into_response())
}

/// Ends expired contexts once. For a scheduler, with a secret of its own.
async fn cleanup(State(v1): State<V1>, headers: HeaderMap) -> Result<Response, Problem> {
    let Some(cron) = &v1.0.cron else {
        let message = "clean-up over HTTP is closed: CRON_SECRET is not set";
        return Err(Problem::new(StatusCode::NOT_FOUND, ErrorCode::Disabled, message));
    };
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|text| text.strip_prefix("Bearer ")).unwrap_or_default();
    let theirs: [u8; 32] = Sha256::digest(given.as_bytes()).into();
    if !same_bytes(cron, &theirs) {
        let message = "the bearer token is not CRON_SECRET";
        let mut response =
            Problem::new(StatusCode::UNAUTHORIZED, ErrorCode::Forbidden, message).into_response();
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return Ok(response);
    }
    Ok(Json(v1.service().await?.cleanup.run_once().await).into_response())
}
