//! The other ports of a sandbox: requests go to whatever server listens there, on the sandbox's own loopback.

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, Version, header, request};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio_util::sync::CancellationToken;

use super::proxy_error;
use crate::host::agent::AgentError;
use crate::host::sandbox::Sandbox;
use crate::telemetry::metrics::HOST_LIMITS;
use crate::wire::Secret;
use crate::wire::error::ProxyError;
use crate::wire::header::{ACCESS_TOKEN, API_KEY, SANDBOX_ID, SANDBOX_PORT, TRAFFIC_TOKEN};

/// Longest head of an answer. The server is as hostile as everything else in there.
const HEAD_MAX: usize = 64 * 1024;
/// Requests to the ports of one sandbox at a time. What keeps one open must not use up what its files and programs need.
pub(crate) const AT_ONCE: usize = 128;

/// Passes a request on to a port of a sandbox, and the answer back. Switched protocols (WebSocket) are carried too.
pub(crate) async fn forward(
    sandbox: &Arc<Sandbox>,
    port: u16,
    mut request: Request<Body>,
    api_key: &Secret,
) -> Response {
    let closed = || proxy_error(ProxyError::port_not_open(sandbox.id.clone(), port));
    // The way out is for what is inside.
    if sandbox.egress_port() == Some(port) {
        return closed();
    }
    let Ok(place) = Arc::clone(&sandbox.port_places).try_acquire_owned() else {
        HOST_LIMITS.add(&["ports"], 1);
        let message = format!(
            "The sandbox's ports have {AT_ONCE} concurrent requests, which is the maximum; close some or try again"
        );
        let sandbox_id = sandbox.id.clone();
        return proxy_error(ProxyError { sandbox_id, message, port: Some(port), code: 503 });
    };
    let link = match sandbox.agent.connect_port(port, place).await {
        Ok(link) => link,
        Err(AgentError::Gone) => return proxy_error(ProxyError::sandbox_not_found(sandbox.id.clone())),
        Err(_) => return closed(),
    };
    let asks_to_switch = request.headers().contains_key(header::UPGRADE);
    let upgrade = hyper::upgrade::on(&mut request);
    let connected = async {
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(HEAD_MAX)
            .handshake(TokioIo::new(link))
            .await?;
        // Ends with the answer's body; the sandbox's end takes it along.
        tokio::spawn(connection.with_upgrades());
        sender.send_request(onward(sandbox, port, request, api_key)).await
    };
    let mut answer = tokio::select! {
        answer = connected => match answer {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(%error, "a server in a sandbox did not answer");
                return (StatusCode::BAD_GATEWAY, "the server in the sandbox did not answer\n").into_response();
            }
        },
        () = sandbox.ending.cancelled() => {
            return proxy_error(ProxyError::sandbox_not_found(sandbox.id.clone()));
        }
    };
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        if !asks_to_switch {
            return (
                StatusCode::BAD_GATEWAY,
                "the server in the sandbox switches protocols without being asked\n",
            )
                .into_response();
        }
        tokio::spawn(carry(upgrade, hyper::upgrade::on(&mut answer), sandbox.ending.clone()));
    }
    let (mut head, body) = answer.into_parts();
    keep_upgrade(&mut head.headers);
    head.version = Version::HTTP_11;
    head.extensions = http::Extensions::new();
    Response::from_parts(head, Body::new(body))
}

/// Carries what goes over a connection that has switched protocols, as long as the sandbox lives.
async fn carry(near: OnUpgrade, far: OnUpgrade, ending: CancellationToken) {
    let both = async {
        let (Ok(near), Ok(far)) = tokio::join!(near, far) else { return };
        let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(near), &mut TokioIo::new(far)).await;
    };
    tokio::select! {
        () = both => {}
        () = ending.cancelled() => {}
    }
}

/// The request as the server sees it: by its path, without what was meant for this host.
fn onward(sandbox: &Sandbox, port: u16, request: Request<Body>, api_key: &Secret) -> Request<Body> {
    let (mut head, body) = request.into_parts();
    keep_upgrade(&mut head.headers);
    drop_credentials(sandbox, api_key, &mut head.headers);
    if let Some(mask) = &sandbox.mask_host
        && let Ok(host) = HeaderValue::from_str(&mask.replace("${PORT}", &port.to_string()))
    {
        head.headers.insert(header::HOST, host);
    }
    from_here(&mut head);
    Request::from_parts(head, body)
}

/// Removes what opens this host's doors: anyone who serves in a sandbox is hostile. An `Authorization` is the server's own unless it
/// holds one of our secrets, or is how clients name envd's user.
fn drop_credentials(sandbox: &Sandbox, api_key: &Secret, headers: &mut HeaderMap) {
    for name in [SANDBOX_ID, SANDBOX_PORT, TRAFFIC_TOKEN, API_KEY, ACCESS_TOKEN] {
        headers.remove(name);
    }
    let is_ours = |value: &HeaderValue| {
        let text = String::from_utf8_lossy(value.as_bytes());
        let secret = text.split_once(' ').map_or(&*text, |(_, secret)| secret.trim());
        let holds = |own: &Option<Secret>| own.as_ref().is_some_and(|own| own.matches(secret));
        api_key.matches(secret)
            || secret.starts_with("e2b_")
            || secret.starts_with("sk_e2b_")
            || holds(&sandbox.access_token)
            || holds(&sandbox.traffic_token)
    };
    if headers.get_all(header::AUTHORIZATION).iter().any(is_ours) {
        headers.remove(header::AUTHORIZATION);
    }
}

/// Makes a request one of this host's own: by its path, framed by its body alone, since two framings that disagree are how
/// requests are smuggled.
pub(crate) fn from_here(head: &mut request::Parts) {
    head.headers.remove(header::CONTENT_LENGTH);
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    head.version = Version::HTTP_11;
    head.extensions = http::Extensions::new();
}

/// Removes hop-by-hop headers, except a request to switch protocols.
fn keep_upgrade(headers: &mut HeaderMap) {
    let upgrade = headers.get(header::UPGRADE).cloned();
    drop_hops(headers);
    if let Some(upgrade) = upgrade {
        headers.insert(header::UPGRADE, upgrade);
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    }
}

/// Removes what belongs to one hop (RFC 9110 section 7.6.1), and a length that a coding contradicts (RFC 9112 section 6.3).
pub(crate) fn drop_hops(headers: &mut HeaderMap) {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    let listed: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_ascii_lowercase()))
        .filter(|name| name != "host")
        .collect();
    for name in listed.iter().map(String::as_str).chain([
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ]) {
        headers.remove(name);
    }
}
