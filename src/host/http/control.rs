//! The control plane: create, connect, list, extend, pause and kill sandboxes.
//!
//! The two generations of routes differ in defaults only. What this host cannot do (memory in snapshots, building
//! templates, volumes) is refused in words rather than ignored, unless ignoring it is the safer reading: asking for the
//! internet is common in older clients' defaults and opens it only where the host's owner has said so.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, RawQuery, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post, put};
use axum::{Json, Router};
use chrono::DateTime;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use self::queries::{LogQuery, parse_query, read_cursor, write_cursor};
use super::{BodyError, api_error, read_body};
use crate::host::auth;
use crate::host::jail::JailError;
use crate::host::journal::{Level, Line};
use crate::host::network::{Asked, Policy};
use crate::host::registry::{
    CreateError, Cursor, Entry, Full, Key, Label, Move, New, Paused, Query, Registry,
};
use crate::host::sandbox::MachineError;
use crate::host::snapshots::{Snapshot, SnapshotError, Wanted};
use crate::host::templates::{OWN_NAMES, Template, TemplateError};
use crate::wire::control::{
    ConnectSandbox, CreateSandbox, CreateSnapshot, DEFAULT_TIMEOUT_V1_S, DEFAULT_TIMEOUT_V2_S, Fork, Forked,
    Lifecycle, ListedSandbox, Metric, Network, Pause, Refresh, Sandbox, SandboxDetail, SetTimeout,
    State as Life, UpdateNetwork,
};
use crate::wire::error::{ApiError, error_code};
use crate::wire::header::{API_KEY, IDEMPOTENCY_KEY, NEXT_TOKEN};
use crate::wire::{ENVD_VERSION, Secret};

mod queries;

/// The largest accepted body. Create carries environment variables and metadata; nothing here is big.
const BODY_LIMIT: usize = 1024 * 1024;
/// Deprecated by E2B and still required by its clients.
const CLIENT_ID: &str = "pathbox";
const TOTAL_RUNNING: &str = "x-total-running";
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

pub(crate) fn router(registry: Registry, api_key: Secret) -> Router {
    let guarded = Router::new()
        .route("/v2/sandboxes", post(create_v2).get(list_v2))
        .route("/sandboxes", post(create_v1).get(list_v1))
        .route("/v2/sandboxes/{id}/connect", post(connect_v2))
        .route("/sandboxes/{id}/connect", post(connect_v1))
        .route("/sandboxes/{id}/resume", post(resume))
        .route("/sandboxes/metrics", get(metrics_of_many))
        .route(
            "/metrics",
            get(async || crate::telemetry::metrics::render(crate::telemetry::metrics::Format::Prometheus)),
        )
        .route("/sandboxes/{id}", get(detail))
        .route("/sandboxes/{id}", delete(kill))
        .route("/sandboxes/{id}/timeout", post(set_timeout))
        .route("/sandboxes/{id}/refreshes", post(refresh))
        .route("/sandboxes/{id}/pause", post(pause))
        .route("/sandboxes/{id}/metrics", get(metrics))
        .route("/sandboxes/{id}/snapshots", post(create_snapshot))
        .route("/sandboxes/{id}/fork", post(fork))
        .route("/snapshots", get(snapshots))
        .route("/sandboxes/{id}/logs", get(logs_v1))
        .route("/v2/sandboxes/{id}/logs", get(logs_v2))
        .route("/templates", get(templates).post(no_builds))
        .route("/v2/templates", get(templates).post(no_builds))
        .route("/v3/templates", any(no_builds))
        .route("/templates/{*rest}", delete(remove_snapshot).fallback(no_builds))
        .route("/sandboxes/{id}/network", put(set_network))
        .fallback(async || api_error(StatusCode::NOT_FOUND, "there is no such route"))
        .method_not_allowed_fallback(async || {
            api_error(StatusCode::METHOD_NOT_ALLOWED, "this route does not take this method")
        })
        .layer(middleware::from_fn_with_state(api_key, check_key))
        .with_state(registry.clone());
    Router::new().route("/health", get(health).with_state(registry)).merge(guarded)
}

/// Ready when sandboxes can be made.
async fn health(State(registry): State<Registry>) -> StatusCode {
    if registry.is_up() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn check_key(State(api_key): State<Secret>, request: Request, next: Next) -> Response {
    match request.headers().get(API_KEY) {
        Some(sent) if auth::opens(&api_key, sent) => next.run(request).await,
        Some(_) => {
            Refusal::Unauthorized("the X-API-Key header does not hold this host's key").into_response()
        }
        None => Refusal::Unauthorized("the X-API-Key header is missing").into_response(),
    }
}

/// Why a call is not done.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Unauthorized(&'static str),
    #[error("{0}")]
    Invalid(String),
    #[error("Sandbox \"{0}\" doesn't exist or you don't have access to it")]
    NoSandbox(String),
    #[error("template '{0}' not found; this host has {1}")]
    NoTemplate(String, String),
    #[error("{0}")]
    Conflict(String, Option<&'static str>),
    #[error("you have reached the maximum number of concurrent E2B sandboxes ({}); the next ends in {} s", .0.limit, .0.next_end_secs)]
    Full(Full),
    #[error("the sandbox could not be started; the host's log says why")]
    NotStarted,
    #[error(transparent)]
    Snapshot(SnapshotError),
    #[error("this host cannot make sandboxes at the moment; try again")]
    Down,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, body) = self.body();
        let mut response = (status, Json(body)).into_response();
        // A client that may wait for a place does; one that would wait for minutes is refused.
        let (name, value) = match self {
            Self::Full(Full { next_end_secs: secs @ 0..=30, .. }) => (header::RETRY_AFTER, secs.to_string()),
            Self::Full(_) | Self::Snapshot(_) => (SHOULD_RETRY, "false".to_owned()),
            _ => return response,
        };
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl Refusal {
    fn body(&self) -> (StatusCode, ApiError) {
        let (status, error_code) = match self {
            Self::Unauthorized(_) => (StatusCode::UNAUTHORIZED, None),
            Self::Invalid(_) => (StatusCode::BAD_REQUEST, None),
            Self::NoSandbox(_) | Self::NoTemplate(..) => (StatusCode::NOT_FOUND, None),
            Self::Conflict(_, code) => (StatusCode::CONFLICT, *code),
            Self::Full(_) => (StatusCode::TOO_MANY_REQUESTS, Some(error_code::CAPACITY_UNAVAILABLE)),
            Self::Snapshot(error) => (snapshot_status(error), None),
            Self::NotStarted => (StatusCode::INTERNAL_SERVER_ERROR, Some("sandbox_create_failed")),
            Self::Down => (StatusCode::SERVICE_UNAVAILABLE, Some(error_code::CAPACITY_UNAVAILABLE)),
        };
        let body = ApiError {
            code: status.as_u16(),
            message: self.to_string(),
            error_code: error_code.map(str::to_owned),
        };
        (status, body)
    }
}

fn snapshot_status(error: &SnapshotError) -> StatusCode {
    match error {
        SnapshotError::NoSandbox => StatusCode::NOT_FOUND,
        SnapshotError::Paused => StatusCode::CONFLICT,
        SnapshotError::Unsupported => StatusCode::NOT_IMPLEMENTED,
        SnapshotError::Name(_) | SnapshotError::Tar { .. } => StatusCode::BAD_REQUEST,
        SnapshotError::Full | SnapshotError::Disk(_) => StatusCode::INSUFFICIENT_STORAGE,
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// Reads a JSON object; an empty body is `{}`.
async fn read<T: DeserializeOwned>(body: Body) -> Result<T, Refusal> {
    parse(&read_body(body, BODY_LIMIT).await?)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes)
        .map_err(|error| Refusal::Invalid(format!("the body does not parse: {error}")))
}

async fn create_v2(
    State(registry): State<Registry>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let bytes = read_body(body, BODY_LIMIT).await?;
    let key = headers.get(IDEMPOTENCY_KEY).map(|key| idempotency_key(key, &bytes)).transpose()?;
    create(registry, parse(&bytes)?, DEFAULT_TIMEOUT_V2_S, true, key).await
}

fn idempotency_key(key: &HeaderValue, request: &[u8]) -> Result<Key, Refusal> {
    let is_key = |key: &&str| {
        (1..=255).contains(&key.len())
            && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    let key = key.to_str().ok().filter(is_key);
    let text = key.ok_or_else(|| Refusal::Invalid("Idempotency-Key is not 1 to 255 of a-z 0-9 -".into()))?;
    Ok(Key { text: text.to_owned(), request: Sha256::digest(request).into() })
}

async fn create_v1(State(registry): State<Registry>, body: Body) -> Result<Response, Refusal> {
    let asked: CreateSandbox = read(body).await?;
    let secure = asked.secure.unwrap_or(false);
    create(registry, asked, DEFAULT_TIMEOUT_V1_S, secure, None).await
}

async fn create(
    registry: Registry,
    asked: CreateSandbox,
    default_secs: u64,
    secure: bool,
    key: Option<Key>,
) -> Result<Response, Refusal> {
    let life = registry_life(&registry, asked.timeout.unwrap_or(default_secs.cast_signed()))?;
    let new = new_sandbox(&registry, asked, life, secure)?;
    let made = match key {
        Some(key) => registry.create_once(new, &key).await,
        None => registry.create(new).await,
    };
    let entry = made.map_err(|error| not_made(&registry, error))?;
    Ok((StatusCode::CREATED, Json(sandbox(&entry))).into_response())
}

fn not_made(registry: &Registry, error: CreateError) -> Refusal {
    match error {
        CreateError::Template(TemplateError::NotFound(name)) => {
            let made = registry.templates().into_iter().map(|template| template.name);
            let all: Vec<String> = OWN_NAMES.iter().map(|name| (*name).to_owned()).chain(made).collect();
            Refusal::NoTemplate(name, all.join(", "))
        }
        CreateError::Template(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "a template cannot be used");
            Refusal::NotStarted
        }
        CreateError::Env(error) => Refusal::Invalid(format!("envVars: {error}")),
        CreateError::Full(full) => Refusal::Full(full),
        CreateError::Snapshot(error) => refused_snapshot(error, ""),
        error @ CreateError::UnderWay => {
            Refusal::Conflict(error.to_string(), Some(error_code::IDEMPOTENCY_IN_PROGRESS))
        }
        error @ CreateError::OtherRequest => {
            Refusal::Conflict(error.to_string(), Some(error_code::IDEMPOTENCY_MISMATCH))
        }
        error @ CreateError::MadeAndEnded => {
            Refusal::Conflict(error.to_string(), Some(error_code::IDEMPOTENCY_UNKNOWN))
        }
        CreateError::Machine(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "a sandbox could not be started");
            match error {
                MachineError::Jail(JailError::SpawnerGone) => Refusal::Down,
                _ => Refusal::NotStarted,
            }
        }
    }
}

/// What is asked of this host, or which part of it cannot be had here. Members of no effect are ignored.
fn new_sandbox(
    registry: &Registry,
    asked: CreateSandbox,
    life: Duration,
    secure: bool,
) -> Result<New, Refusal> {
    let template = asked.template_id.split(':').next().unwrap_or("").to_owned();
    let network = asked.network.unwrap_or_default();
    let unsupported = [
        (is_something(&asked.mcp), "mcp: there is no MCP gateway in its sandboxes"),
        (is_something(&asked.iam), "iam: it issues no workload tokens"),
        (!asked.volume_mounts.is_empty(), "volumeMounts: it has no volumes"),
        (asked.auto_pause_memory == Some(false), "autoPauseMemory false: a pause here keeps everything"),
        (
            network.dns_servers.as_ref().is_some_and(|list| !list.is_empty()),
            "network.dnsServers: it resolves names itself",
        ),
    ];
    refuse(&unsupported)?;
    check_egress(&network.rules, &network.egress_proxy)?;
    let public = network.allow_public_traffic.unwrap_or(true);
    if !public && !secure {
        return Err(Refusal::Invalid("network.allowPublicTraffic false needs secure true".into()));
    }
    let policy = policy(
        registry,
        Asked {
            allow_out: network.allow_out.unwrap_or_default(),
            deny_out: network.deny_out.unwrap_or_default(),
            internet: asked.allow_internet_access,
            https_ports: network.https_ports.unwrap_or_default(),
        },
    )?;
    Ok(New {
        network: policy,
        mask_host: network.mask_request_host,
        label: Label {
            template,
            metadata: asked.metadata,
            auto_pause: asked.auto_pause.unwrap_or(false),
            auto_resume: asked.auto_resume.is_some_and(|resume| resume.enabled),
        },
        env: asked.env_vars,
        snapshot: None,
        life,
        secure,
        public,
    })
}

fn check_egress(rules: &Option<Value>, egress_proxy: &Option<Value>) -> Result<(), Refusal> {
    refuse(&[
        (is_something(rules), "network.rules: it does not inspect encrypted requests"),
        (is_something(egress_proxy), "network.egressProxy: it connects directly"),
    ])
}

/// The first of these that was asked for, as what this host cannot do.
fn refuse(unsupported: &[(bool, &str)]) -> Result<(), Refusal> {
    match unsupported.iter().find(|(asked, _)| *asked) {
        Some((_, what)) => Err(Refusal::Invalid(format!("this host cannot do {what}"))),
        None => Ok(()),
    }
}

/// What a sandbox may reach. Where it has no network of its own, an allow list could not be kept, so it is refused.
fn policy(registry: &Registry, asked: Asked) -> Result<Policy, Refusal> {
    match registry.network() {
        Some(options) => {
            Policy::new(asked, options.open).map_err(|error| Refusal::Invalid(format!("network.{error}")))
        }
        None if asked.allow_out.is_empty() => Ok(Policy::closed()),
        None => Err(Refusal::Invalid(
            "network.allowOut: this host runs without network namespaces, so it cannot open a network to some addresses \
             only; start it with full isolation"
                .into(),
        )),
    }
}

async fn set_network(
    State(registry): State<Registry>,
    Path(id): Path<String>,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let asked: UpdateNetwork = read(body).await?;
    check_egress(&asked.rules, &asked.egress_proxy)?;
    let entry = registry.get(known(&id)).ok_or(Refusal::NoSandbox(id))?;
    if entry.state == Life::Paused {
        return Err(Refusal::Conflict("the sandbox is paused; connect to it first".into(), None));
    }
    let policy = policy(
        &registry,
        Asked {
            allow_out: asked.allow_out.unwrap_or_default(),
            deny_out: asked.deny_out.unwrap_or_default(),
            internet: asked.allow_internet_access,
            https_ports: entry.sandbox.network().asked().https_ports.clone(),
        },
    )?;
    entry.sandbox.set_network(policy).await.map_err(|error| {
        tracing::warn!(error = &error as &dyn std::error::Error, "a network policy could not be opened");
        Refusal::NotStarted
    })?;
    entry.sandbox.note(Level::Info, "its network policy was replaced");
    Ok(StatusCode::NO_CONTENT)
}

/// Neither left out nor null nor empty.
fn is_something(value: &Option<Value>) -> bool {
    value.as_ref().is_some_and(|value| !value.is_null() && *value != json!({}))
}

/// A life time as the API takes it: whole seconds, above 0, at most the host's longest.
fn registry_life(registry: &Registry, secs: i64) -> Result<Duration, Refusal> {
    let longest = registry.max_life();
    match u64::try_from(secs) {
        Ok(0) | Err(_) => Err(Refusal::Invalid("Timeout must be greater than 0".into())),
        Ok(secs) if Duration::from_secs(secs) > longest => Err(Refusal::Invalid(format!(
            "Timeout cannot be greater than {} hours",
            longest.as_secs_f64() / 3600.0
        ))),
        Ok(secs) => Ok(Duration::from_secs(secs)),
    }
}

async fn connect_v2(
    State(registry): State<Registry>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let asked: ConnectSandbox = read(body).await?;
    connect(registry, id, asked.timeout.unwrap_or(DEFAULT_TIMEOUT_V2_S.cast_signed())).await
}

async fn connect_v1(
    State(registry): State<Registry>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let asked: ConnectSandbox = read(body).await?;
    let secs = asked.timeout.ok_or_else(|| Refusal::Invalid("timeout is missing".into()))?;
    connect(registry, id, secs).await
}

async fn connect(registry: Registry, id: String, secs: i64) -> Result<Response, Refusal> {
    let life = registry_life(&registry, secs)?;
    let (entry, woken) = registry.connect(known(&id), life).await.ok_or(Refusal::NoSandbox(id))?;
    let status = if woken { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(sandbox(&entry))).into_response())
}

async fn resume(
    State(registry): State<Registry>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let asked: ConnectSandbox = read(body).await?;
    let entry = registry.get(known(&id)).ok_or_else(|| Refusal::NoSandbox(id.clone()))?;
    if entry.state == Life::Running {
        return Err(Refusal::Conflict("the sandbox is already running".into(), None));
    }
    connect(registry, id, asked.timeout.unwrap_or(DEFAULT_TIMEOUT_V1_S.cast_signed())).await
}

async fn detail(
    State(registry): State<Registry>,
    Path(id): Path<String>,
) -> Result<Json<SandboxDetail>, Refusal> {
    let entry = registry.get(known(&id)).ok_or(Refusal::NoSandbox(id))?;
    let listed = listed(&entry);
    let policy = entry.sandbox.network();
    let some_of = |rules: &[String]| (!rules.is_empty()).then(|| rules.to_vec());
    Ok(Json(SandboxDetail {
        template_id: listed.template_id,
        alias: listed.alias,
        sandbox_id: listed.sandbox_id,
        client_id: listed.client_id,
        started_at: listed.started_at,
        end_at: listed.end_at,
        envd_version: listed.envd_version,
        envd_access_token: entry.sandbox.access_token.clone(),
        domain: None,
        cpu_count: listed.cpu_count,
        memory_mb: listed.memory_mb,
        disk_size_mb: listed.disk_size_mb,
        state: listed.state,
        metadata: listed.metadata,
        allow_internet_access: Some(policy.is_open()),
        network: Some(Network {
            allow_public_traffic: Some(entry.sandbox.traffic_token.is_none()),
            allow_out: some_of(&policy.asked().allow_out),
            deny_out: some_of(&policy.asked().deny_out),
            ..Network::default()
        }),
        lifecycle: Some(Lifecycle {
            auto_resume: entry.label.auto_resume,
            on_timeout: if entry.label.auto_pause { "pause" } else { "kill" }.to_owned(),
        }),
        volume_mounts: Vec::new(),
    }))
}

async fn list_v2(State(registry): State<Registry>, RawQuery(query): RawQuery) -> Result<Response, Refusal> {
    list(&registry, parse_query(query.as_deref().unwrap_or(""))?)
}

/// The deprecated form: running ones only.
async fn list_v1(State(registry): State<Registry>, RawQuery(query): RawQuery) -> Result<Response, Refusal> {
    let query = parse_query(query.as_deref().unwrap_or(""))?;
    list(&registry, Query { state: Some(Life::Running), ..query })
}

fn list(registry: &Registry, query: Query) -> Result<Response, Refusal> {
    let (page, next) = registry.list(&query);
    let page: Vec<ListedSandbox> = page.iter().map(listed).collect();
    let response = ([(TOTAL_RUNNING, registry.running().to_string())], Json(page)).into_response();
    Ok(with_next(response, next))
}

/// With the token of the next page, if there is one.
fn with_next(mut response: Response, next: Option<Cursor>) -> Response {
    if let Some(token) = next.and_then(|cursor| write_cursor(&cursor).parse().ok()) {
        response.headers_mut().insert(NEXT_TOKEN, token);
    }
    response
}

async fn kill(State(registry): State<Registry>, Path(id): Path<String>) -> Result<StatusCode, Refusal> {
    match registry.kill(known(&id)).await {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Refusal::NoSandbox(id)),
    }
}

async fn set_timeout(
    State(registry): State<Registry>,
    Path(id): Path<String>,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let asked: SetTimeout = read(body).await?;
    let life = registry_life(&registry, asked.timeout)?;
    registry.move_end(known(&id), life, Move::Set).ok_or(Refusal::NoSandbox(id))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn refresh(
    State(registry): State<Registry>,
    Path(id): Path<String>,
    body: Body,
) -> Result<StatusCode, Refusal> {
    const SHORTEST: i64 = 15;
    const LONGEST: i64 = 3600;
    let asked: Refresh = read(body).await?;
    let secs = asked.duration.unwrap_or(SHORTEST).max(SHORTEST);
    if secs > LONGEST {
        return Err(Refusal::Invalid("Max instance length exceeded".into()));
    }
    let life = Duration::from_secs(secs.unsigned_abs());
    registry.move_end(known(&id), life, Move::Extend).ok_or(Refusal::NoSandbox(id))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn pause(
    State(registry): State<Registry>,
    Path(id): Path<String>,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let asked: Pause = read(body).await?;
    if asked.memory == Some(false) {
        return Err(Refusal::Invalid("this host keeps memory when it pauses; leave memory out".into()));
    }
    match registry.pause(known(&id)).await {
        Some(Paused::Now) => Ok(StatusCode::NO_CONTENT),
        Some(Paused::Already) => Err(Refusal::Conflict("the sandbox is already paused".into(), None)),
        None => Err(Refusal::NoSandbox(id)),
    }
}

/// One point, measured now: the history that E2B keeps is not kept here. Nothing for a time that has ended.
async fn metrics(
    State(registry): State<Registry>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Vec<Metric>>, Refusal> {
    let entry = registry.get(known(&id)).ok_or(Refusal::NoSandbox(id))?;
    let (mut start, mut end) = (None, None);
    for (name, value) in form_urlencoded::parse(query.as_deref().unwrap_or("").as_bytes()) {
        let slot = match name.as_ref() {
            "start" => &mut start,
            "end" => &mut end,
            _ => continue,
        };
        let second = value.parse::<i64>().ok().filter(|second| *second >= 0);
        *slot =
            Some(second.ok_or_else(|| {
                Refusal::Invalid(format!("{name} {value:?} is not a Unix time in seconds"))
            })?);
    }
    if let (Some(start), Some(end)) = (start, end)
        && start > end
    {
        return Err(Refusal::Invalid("start is after end".into()));
    }
    let now = registry.now();
    let second = now.timestamp();
    if start.is_some_and(|start| start > second) || end.is_some_and(|end| end < second) {
        return Ok(Json(Vec::new()));
    }
    Ok(Json(vec![point(&entry, now).await]))
}

/// The latest point of each of several sandboxes; those that do not live are left out.
async fn metrics_of_many(
    State(registry): State<Registry>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refusal> {
    const MOST: usize = 100;
    let pairs = form_urlencoded::parse(query.as_deref().unwrap_or("").as_bytes());
    let ids: Vec<String> = pairs
        .filter(|(name, _)| name == "sandbox_ids")
        .flat_map(|(_, value)| value.split(',').map(str::to_owned).collect::<Vec<_>>())
        .filter(|id| !id.is_empty())
        .collect();
    if ids.is_empty() || ids.len() > MOST {
        return Err(Refusal::Invalid(format!(
            "sandbox_ids names 1 to {MOST} sandboxes, with commas between"
        )));
    }
    let now = registry.now();
    let found = ids.into_iter().filter_map(|id| Some((registry.get(known(&id))?, id)));
    let measured = found.map(|(entry, id)| async move { (id, json!(point(&entry, now).await)) });
    let points: serde_json::Map<String, Value> =
        futures::future::join_all(measured).await.into_iter().collect();
    Ok(Json(json!({ "sandboxes": points })))
}

async fn point(entry: &Entry, now: DateTime<chrono::Utc>) -> Metric {
    let point = entry.sandbox.metrics().await;
    Metric {
        timestamp: now,
        timestamp_unix: now.timestamp(),
        cpu_count: point.cpu_count,
        cpu_used_pct: point.cpu_used_percent,
        mem_used: point.memory_used_bytes,
        mem_total: point.memory_total_bytes,
        mem_cache: 0,
        disk_used: point.disk_used_bytes,
        disk_total: point.disk_total_bytes,
    }
}

/// Keeps the files; at E2B the default keeps memory, too, which is not available here.
async fn create_snapshot(
    State(registry): State<Registry>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    let asked: CreateSnapshot = read(body).await?;
    if asked.memory == Some(true) {
        let words =
            "a snapshot of this host keeps files and no memory; leave the mode out, or ask for `filesystem`";
        return Err(Refusal::Invalid(words.into()));
    }
    let made = registry.snapshot(known(&id), asked.name).await;
    let snapshot = made.map_err(|error| refused_snapshot(error, &id))?;
    Ok((StatusCode::CREATED, Json(snapshot_body(&snapshot))).into_response())
}

fn refused_snapshot(error: SnapshotError, id: &str) -> Refusal {
    match error {
        SnapshotError::NoSandbox => Refusal::NoSandbox(id.to_owned()),
        SnapshotError::Disk(cause) => {
            tracing::warn!(
                error = &cause as &dyn std::error::Error,
                "a snapshot could not be written or read"
            );
            Refusal::Snapshot(SnapshotError::Disk(cause))
        }
        error => Refusal::Snapshot(error),
    }
}

fn snapshot_body(snapshot: &Snapshot) -> Value {
    let names: Vec<&String> = snapshot.name.iter().collect();
    json!({ "snapshotID": snapshot.id, "names": names, "memory": false })
}

async fn snapshots(State(registry): State<Registry>, RawQuery(query): RawQuery) -> Result<Response, Refusal> {
    let mut wanted = Wanted { sandbox: None, name: None, limit: 100, after: None };
    let bad = |what: &str, value: &str| Refusal::Invalid(format!("{what} {value:?} is not understood"));
    for (name, value) in form_urlencoded::parse(query.as_deref().unwrap_or("").as_bytes()) {
        match name.as_ref() {
            "sandboxID" => wanted.sandbox = Some(known(&value).to_owned()),
            "name" => wanted.name = Some(value.into_owned()),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=100).contains(limit));
                wanted.limit = limit.ok_or_else(|| bad("limit", &value))?;
            }
            "nextToken" if value.is_empty() => {}
            "nextToken" => wanted.after = Some(read_cursor(&value).ok_or_else(|| bad("nextToken", &value))?),
            _ => {}
        }
    }
    let (page, next) = registry.snapshots(&wanted);
    let page: Vec<Value> = page.iter().map(|snapshot| snapshot_body(snapshot)).collect();
    Ok(with_next(Json(page).into_response(), next))
}

/// The copies begin with the files of the sandbox; each has its own answer.
async fn fork(
    State(registry): State<Registry>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Refusal> {
    const MOST: u32 = 100;
    let asked: Fork = read(body).await?;
    if !(1..=MOST).contains(&asked.count) {
        return Err(Refusal::Invalid(format!("count is not 1 to {MOST}")));
    }
    let life = registry_life(&registry, asked.timeout.unwrap_or(DEFAULT_TIMEOUT_V1_S.cast_signed()))?;
    let made = registry.fork(known(&id), asked.count, life).await;
    let made = made.map_err(|error| refused_snapshot(error, &id))?;
    let answers: Vec<Forked> = made
        .into_iter()
        .map(|made| match made {
            Ok(entry) => Forked::Sandbox(sandbox(&entry)),
            Err(error) => Forked::Error(not_made(&registry, error).body().1),
        })
        .collect();
    Ok((StatusCode::CREATED, Json(answers)).into_response())
}

fn logs(registry: &Registry, id: String, query: Option<&str>) -> Result<Vec<Line>, Refusal> {
    let query = LogQuery::parse(query.unwrap_or(""))?;
    let mut lines = registry.journal(known(&id)).ok_or(Refusal::NoSandbox(id))?.lines();
    lines.retain(|line| query.wants(line));
    if query.newest_first {
        lines.reverse();
    }
    lines.truncate(query.limit);
    Ok(lines)
}

fn log_entry(line: &Line) -> Value {
    json!({ "timestamp": line.at, "level": line.level.name(), "message": line.text, "fields": {} })
}

async fn logs_v1(
    State(registry): State<Registry>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refusal> {
    let lines = logs(&registry, id, query.as_deref())?;
    let plain: Vec<Value> =
        lines.iter().map(|line| json!({ "timestamp": line.at, "line": line.text })).collect();
    let entries: Vec<Value> = lines.iter().map(log_entry).collect();
    Ok(Json(json!({ "logs": plain, "logEntries": entries })))
}

/// What the host knows of a sandbox's life; what programs print goes to the client that started them.
async fn logs_v2(
    State(registry): State<Registry>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Refusal> {
    let lines = logs(&registry, id, query.as_deref())?;
    Ok(Json(json!({ "logs": lines.iter().map(log_entry).collect::<Vec<_>>() })))
}

/// A missing one is not deleted, as at E2B: its clients return `false`.
async fn remove_snapshot(State(registry): State<Registry>, Path(id): Path<String>) -> Response {
    match registry.remove_snapshot(id.split(':').next().unwrap_or("")) {
        true => StatusCode::NO_CONTENT.into_response(),
        false => api_error(
            StatusCode::NOT_FOUND,
            "there is no such snapshot; `pathbox templates rm` removes a template",
        ),
    }
}

async fn no_builds() -> Response {
    api_error(
        StatusCode::NOT_IMPLEMENTED,
        "this host builds no templates over its API: its owner makes them with `pathbox templates add`",
    )
}

/// What the host's owner has made, in the form of E2B's list.
async fn templates(State(registry): State<Registry>) -> Json<Value> {
    let listed = |template: &Template| {
        json!({
            "templateID": template.name,
            "aliases": [template.name],
            "names": [template.name],
            "buildID": template.name,
            "buildStatus": "ready",
            "buildCount": 1,
            "spawnCount": 0,
            "lastSpawnedAt": null,
            "createdBy": null,
            "public": false,
            "createdAt": template.created,
            "updatedAt": template.created,
            "envdVersion": ENVD_VERSION,
            "cpuCount": 1,
            "memoryMB": 0,
            "diskSizeMB": 0,
        })
    };
    Json(registry.templates().iter().map(listed).collect())
}

/// Ids of older clients have a client id after a dash.
fn known(id: &str) -> &str {
    id.split('-').next().unwrap_or("")
}

/// The answer of create and connect.
fn sandbox(entry: &Entry) -> Sandbox {
    Sandbox {
        template_id: entry.label.template.clone(),
        sandbox_id: entry.id.clone(),
        client_id: CLIENT_ID.to_owned(),
        alias: Some(entry.label.template.clone()),
        envd_version: ENVD_VERSION.to_owned(),
        envd_access_token: entry.sandbox.access_token.clone(),
        traffic_access_token: entry.sandbox.traffic_token.clone(),
        domain: None,
    }
}

fn listed(entry: &Entry) -> ListedSandbox {
    const MIB: u64 = 1024 * 1024;
    let limits = &entry.sandbox.limits;
    ListedSandbox {
        template_id: entry.label.template.clone(),
        alias: Some(entry.label.template.clone()),
        sandbox_id: entry.id.clone(),
        client_id: CLIENT_ID.to_owned(),
        started_at: entry.started_at,
        end_at: entry.end_at,
        envd_version: ENVD_VERSION.to_owned(),
        cpu_count: limits.cpu_percent.div_ceil(100).max(1),
        memory_mb: limits.memory_bytes / MIB,
        disk_size_mb: (limits.home_bytes + limits.tmp_bytes) / MIB,
        state: entry.state,
        metadata: entry.label.metadata.clone(),
        volume_mounts: Vec::new(),
    }
}
