//! `/metrics`: what is counted, for Prometheus. It says how busy every tenant together is, so it needs a caller with the
//! scope `admin`.

use std::time::Duration;

use axum::Router;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::{HeaderMap, StatusCode, header};

use crate::domain::principal::MissingScope;
use crate::domain::{Principal, Scope};
use crate::execution::{Health, Starting, Startup};
use crate::telemetry::metrics;

/// How long the database may take to count what lives; the rest is answered without it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The route. The router that mounts it has authenticated the caller and put a [`Principal`] into the request.
pub fn router(health: Starting<Health>) -> Router {
    Router::new().route("/metrics", get(show)).with_state(health)
}

async fn show(
    State(health): State<Starting<Health>>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
) -> Response {
    if !principal.may(Scope::Admin) {
        let mut refused = (StatusCode::FORBIDDEN, "this credential has no scope `admin`").into_response();
        refused.extensions_mut().insert(MissingScope(Scope::Admin));
        return refused;
    }
    let active = match health.now() {
        Startup::Ready(health) => tokio::time::timeout(PATIENCE, health.active_contexts()).await.ok(),
        Startup::Starting | Startup::Failed(_) => None,
    };
    if let Startup::Ready(health) = health.now() {
        health.note_provider();
    }
    metrics::CONTEXTS_ACTIVE.set(active.and_then(Result::ok));
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = metrics::Format::accepted(accept);
    ([(header::CONTENT_TYPE, format.content_type())], metrics::render(format)).into_response()
}
