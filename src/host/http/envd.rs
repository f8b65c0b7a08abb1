//! A sandbox's file and process service, port 49983.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};

use crate::host::registry::Registry;

pub(crate) fn router() -> Router {
    Router::new().route("/health", get(async || StatusCode::NO_CONTENT))
}

/// The sandbox whose token signed a `/files` address that names none.
pub(crate) fn sandbox_of_signature(_registry: &Registry, _request: &Request<Body>) -> Option<String> {
    None
}
