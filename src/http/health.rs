//! `/healthz`: this process lives. `/readyz`: this process can serve, or why not; and how what it depends on is.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::StatusCode;
use serde_json::json;

use crate::execution::{Health, Starting, Startup};

/// The routes. They need no caller and tell a stranger nothing but words.
pub fn router(health: Starting<Health>) -> Router {
    Router::new().route("/healthz", get(async || "ok")).route("/readyz", get(ready)).with_state(health)
}

async fn ready(State(health): State<Starting<Health>>) -> Response {
    let health = match health.now() {
        Startup::Ready(health) => health,
        Startup::Starting => return not_ready("starting"),
        Startup::Failed(_) => return not_ready("the start failed and is tried again"),
    };
    let checks = health.checks().await;
    // After the checks, which take a moment: nothing that is answered later may say that this process stays.
    if health.is_draining() {
        return not_ready("shutting down");
    }
    if health.provider_problem().is_some() {
        let body = json!({ "ready": false, "why": "no sandbox provider", "checks": checks });
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    }
    // Both may be away for all replicas at once. Do not take all of them out of service for that: contexts that are held go on,
    // and every other call gets an error that says what is the matter.
    let state = |name| checks.iter().find(|check| check.name == name).map(|check| check.state);
    let (database, provider) = (state("database"), state("provider"));
    Json(json!({ "ready": true, "database": database, "provider": provider, "checks": checks }))
        .into_response()
}

fn not_ready(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "ready": false, "why": why }))).into_response()
}
