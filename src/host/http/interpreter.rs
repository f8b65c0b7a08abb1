//! A sandbox's code interpreter, port 49999: `/execute` as a stream of lines, and the code contexts.
//!
//! A client ends an execution by closing its connection: that drops the stream, and the kernel interrupts. So the
//! stream has no content type, no length and no buffer, and ends cleanly only after `end_of_execution`; when the
//! sandbox ends first it breaks off, which tells clients apart from success.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use futures::{StreamExt, stream};
use http::{StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{api_error, read_body};
use crate::host::auth;
use crate::host::kernel::{EventStream, KernelError};
use crate::host::sandbox::Sandbox;
use crate::wire::header::ACCESS_TOKEN;
use crate::wire::interpreter::{CodeContext, CreateContext, Event, ExecuteRequest};

type Box = Extension<Arc<Sandbox>>;

/// The largest accepted request: source text with what it carries along.
const BODY_LIMIT: usize = 16 * 1024 * 1024;

pub(crate) fn router() -> Router {
    let detail = |status: StatusCode, text: &'static str| (status, Json(json!({ "detail": text })));
    Router::new()
        .route("/execute", post(execute))
        .route("/contexts", get(contexts).post(create))
        .route("/contexts/{id}", axum::routing::delete(remove))
        .route("/contexts/{id}/restart", post(restart))
        // Ours: at E2B, Jupyter's own server does this.
        .route("/contexts/{id}/interrupt", post(interrupt))
        .fallback(async move || detail(StatusCode::NOT_FOUND, "Not Found"))
        .method_not_allowed_fallback(async move || {
            detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
        })
        .route("/health", get(async || Json("OK")))
        .layer(middleware::from_fn(check_token))
}

/// No token is asked for, as at E2B; a wrong one is someone's mistake or probe.
async fn check_token(Extension(sandbox): Box, request: Request, next: Next) -> Response {
    match (&sandbox.access_token, request.headers().get(ACCESS_TOKEN)) {
        (Some(token), Some(sent)) if !auth::opens(token, sent) => api_error(
            StatusCode::UNAUTHORIZED,
            "the X-Access-Token header does not hold this sandbox's token",
        ),
        _ => next.run(request).await,
    }
}

/// A request that is refused before anything runs.
#[derive(Debug)]
enum Refusal {
    Kernel(KernelError),
    /// In the form of the server that E2B runs.
    Invalid(Value),
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        match self {
            Self::Kernel(error) => {
                let status =
                    StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], error.to_string())
                    .into_response()
            }
            Self::Invalid(detail) => {
                (StatusCode::UNPROCESSABLE_ENTITY, Json(json!({ "detail": [detail] }))).into_response()
            }
        }
    }
}

impl From<KernelError> for Refusal {
    fn from(error: KernelError) -> Self {
        Self::Kernel(error)
    }
}

async fn read<T: DeserializeOwned>(body: Body) -> Result<T, Refusal> {
    let invalid = |kind: &str, message: String| {
        Refusal::Invalid(json!({ "type": kind, "loc": ["body"], "msg": message, "input": null }))
    };
    let no_json = |error: serde_json::Error| {
        let words = error.to_string();
        let words = words.split(" at line ").next().unwrap_or_default();
        Refusal::Invalid(
            json!({ "type": "json_invalid", "loc": ["body", error.column()], "msg": "JSON decode error",
            "input": {}, "ctx": { "error": words } }),
        )
    };
    let bytes = read_body(body, BODY_LIMIT).await.map_err(|error| invalid("too_large", error.to_string()))?;
    let bytes = if bytes.is_empty() { &b"{}"[..] } else { &bytes[..] };
    let value: Value = serde_json::from_slice(bytes).map_err(no_json)?;
    serde_json::from_value(value.clone()).map_err(|error| {
        let message = error.to_string();
        match message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
            Some(field) => Refusal::Invalid(
                json!({ "type": "missing", "loc": ["body", field], "msg": "Field required", "input": value }),
            ),
            None => invalid("value_error", message),
        }
    })
}

async fn execute(Extension(sandbox): Box, body: Body) -> Result<Response, Refusal> {
    let request: ExecuteRequest = read(body).await?;
    let events = sandbox.kernels.execute(request)?;
    Ok(Response::new(Body::from_stream(lines(events, sandbox))))
}

/// The lines of an execution, one chunk each.
fn lines(events: EventStream, sandbox: Arc<Sandbox>) -> impl stream::Stream<Item = io::Result<Bytes>> {
    stream::unfold(Some((events, sandbox)), async |state| {
        let (mut events, sandbox) = state?;
        let event = tokio::select! {
            biased;
            event = events.next() => event,
            () = sandbox.ending.cancelled() => None,
        };
        match event {
            Some(event) => {
                let is_last = matches!(event, Event::EndOfExecution);
                Some((Ok(event.write().into()), (!is_last).then_some((events, sandbox))))
            }
            None => Some((Err(io::Error::other("the sandbox ended during an execution")), None)),
        }
    })
}

async fn contexts(Extension(sandbox): Box) -> Json<Vec<CodeContext>> {
    Json(sandbox.kernels.contexts())
}

async fn create(Extension(sandbox): Box, body: Body) -> Result<Json<CodeContext>, Refusal> {
    let CreateContext { language, cwd } = read(body).await?;
    Ok(Json(sandbox.kernels.create(language.as_deref(), cwd.as_deref()).await?))
}

async fn restart(Extension(sandbox): Box, Path(id): Path<String>) -> Result<Json<()>, Refusal> {
    Ok(Json(sandbox.kernels.restart(&id).await?))
}

async fn interrupt(Extension(sandbox): Box, Path(id): Path<String>) -> Result<Json<bool>, Refusal> {
    Ok(Json(sandbox.kernels.interrupt(&id).await?))
}

async fn remove(Extension(sandbox): Box, Path(id): Path<String>) -> Result<Json<()>, Refusal> {
    Ok(Json(sandbox.kernels.remove(&id).await?))
}
