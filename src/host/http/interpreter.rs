//! A sandbox's code interpreter, port 49999.

use axum::Json;
use axum::Router;
use axum::routing::get;

pub(crate) fn router() -> Router {
    Router::new().route("/health", get(async || Json("OK")))
}
