//! A sandbox's code interpreter, port 49999.

use axum::Router;
use axum::routing::get;
use axum::Json;

pub(crate) fn router() -> Router {
    Router::new().route("/health", get(async || Json("OK")))
}
