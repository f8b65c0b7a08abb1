//! A sandbox's file and process service, port 49983: what E2B calls envd.
//!
//! There is one user in a sandbox. Everything done to files is done inside it, by its agent, so that no link and no
//! `..` leads anywhere else; paths are only completed here, never opened.

mod files;
mod filesystem;
mod multipart;
mod process;
mod rpc;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{any, get};
use axum::{Extension, Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, StatusCode, header};

use super::api_error;
use crate::host::auth;
use crate::host::registry::Registry;
use crate::host::sandbox::Sandbox;
use crate::wire::connect::{Code, RpcError};
use crate::wire::envd::EnvdMetrics;
use crate::wire::header::ACCESS_TOKEN;

/// The one user of a sandbox.
const USER: &str = "user";

pub(crate) fn router() -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/envs", get(envs))
        .merge(process::router())
        .merge(filesystem::router())
        .merge(files::router())
        .fallback(async || api_error(StatusCode::NOT_FOUND, "there is no such route"))
        .method_not_allowed_fallback(async || {
            api_error(StatusCode::METHOD_NOT_ALLOWED, "this route does not take this method")
        })
        .layer(middleware::from_fn(check_token))
        // Outside the check: clients ask it to learn whether a sandbox lives.
        .route("/health", any(async || StatusCode::NO_CONTENT))
}

/// The sandbox whose token signed a `/files` address that names none.
pub(crate) fn sandbox_of_signature(registry: &Registry, request: &Request<Body>) -> Option<String> {
    let address = files::Address::of(request)?;
    registry.find(|sandbox| address.is_signed_by(sandbox))
}

/// Whether a request is for `/files` and carries a signature.
pub(crate) fn is_signed(request: &Request<Body>) -> bool {
    files::Address::of(request).is_some_and(|address| address.is_signed())
}

async fn check_token(request: Request, next: Next) -> Response {
    let Some(sandbox) = request.extensions().get::<Arc<Sandbox>>() else {
        return api_error(StatusCode::INTERNAL_SERVER_ERROR, "no sandbox was chosen");
    };
    let opened = match (&sandbox.access_token, request.headers().get(ACCESS_TOKEN)) {
        (None, _) => true,
        (Some(token), Some(sent)) => auth::opens(token, sent),
        (Some(_), None) => match files::Address::of(&request) {
            Some(address) if address.has_expired(sandbox.now()) => {
                return api_error(StatusCode::UNAUTHORIZED, "signature is already expired; make a new URL");
            }
            Some(address) => address.is_signed_by(sandbox),
            None => false,
        },
    };
    if opened {
        return next.run(request).await;
    }
    api_error(
        StatusCode::UNAUTHORIZED,
        "unauthorized access, please provide a valid access token or method signing if supported",
    )
}

async fn metrics(Extension(sandbox): Extension<Arc<Sandbox>>) -> Json<EnvdMetrics> {
    const MIB: u64 = 1024 * 1024;
    let point = sandbox.metrics().await;
    Json(EnvdMetrics {
        ts: sandbox.now().timestamp(),
        cpu_count: point.cpu_count,
        cpu_used_pct: point.cpu_used_percent,
        mem_total: point.memory_total_bytes,
        mem_used: point.memory_used_bytes,
        mem_cache: 0,
        mem_total_mib: point.memory_total_bytes / MIB,
        mem_used_mib: point.memory_used_bytes / MIB,
        disk_used: point.disk_used_bytes,
        disk_total: point.disk_total_bytes,
    })
}

async fn envs(Extension(sandbox): Extension<Arc<Sandbox>>) -> Json<BTreeMap<String, String>> {
    Json(sandbox.env())
}

/// The user that a call names by HTTP basic authentication with an empty password; there is only one.
fn check_user(headers: &HeaderMap) -> Result<(), RpcError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(()) };
    let decoded = value.to_str().ok().and_then(|value| value.strip_prefix("Basic "));
    let decoded = decoded.and_then(|text| String::from_utf8(STANDARD.decode(text).ok()?).ok());
    check_user_name(decoded.as_deref().and_then(|pair| pair.split(':').next()).unwrap_or(""))
}

fn check_user_name(name: &str) -> Result<(), RpcError> {
    match name {
        "" | USER => Ok(()),
        other => {
            let message = format!("invalid username: '{other}'; a sandbox of this host has only '{USER}'");
            Err(RpcError::new(Code::Unauthenticated, message))
        }
    }
}

/// A path as clients write it, made absolute: relative ones and `~` start at the home directory.
fn home_path(home: &str, path: &str) -> String {
    match path.strip_prefix('~') {
        Some("") => home.to_owned(),
        Some(rest) if rest.starts_with('/') => format!("{home}{rest}"),
        _ if path.starts_with('/') => path.to_owned(),
        _ if path.is_empty() => home.to_owned(),
        _ => format!("{home}/{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_start_at_home_unless_they_start_at_the_root() {
        for (path, absolute) in [
            ("", "/home/user"),
            ("a b.txt", "/home/user/a b.txt"),
            ("./x", "/home/user/./x"),
            ("/etc/hosts", "/etc/hosts"),
            ("~", "/home/user"),
            ("~/x", "/home/user/x"),
            ("~root/x", "/home/user/~root/x"),
        ] {
            assert_eq!(home_path("/home/user", path), absolute);
        }
    }

    #[test]
    fn there_is_one_user() {
        let headers = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(check_user(&HeaderMap::new()), Ok(()));
        assert_eq!(check_user(&headers("Basic dXNlcjo=")), Ok(()));
        let root = check_user(&headers("Basic cm9vdDo=")).unwrap_err();
        assert_eq!(root.code, Code::Unauthenticated);
        assert!(root.message.starts_with("invalid username: 'root'"));
    }
}
