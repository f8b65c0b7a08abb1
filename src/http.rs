//! The HTTP listener and the checks before every route: Host and Origin, the caller, rates and sizes.
//!
//! Routes come from elsewhere as plain routers: those that need a caller, and those that do not (health, metadata).
//! The surprise: the listener is ours and not axum's, which does not bound connections or close those that say nothing, and
//! does not switch Nagle's algorithm off, so that each event of a stream waits 40 ms for the client's delayed ACK.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use http::{HeaderValue, Method, Request, StatusCode, Version, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Body as _;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::domain::ErrorCode;
use crate::guard::own_words;

pub mod auth;
mod connections;
pub mod health;
pub mod layers;
pub mod metrics;
pub mod shares;
pub mod transfers;
pub mod v1;

pub use auth::{Authenticator, Unauthenticated};
use connections::{Connections, Holding, Seat};
pub use layers::{LocalAddress, PeerAddress, Places};
pub use shares::Shares;

/// How long a connection may have no request in progress: for the head of one to arrive, and between two.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection may have no request once the server ends. A client that goes from call to call has sent its next by
/// then, and learns from the answer that the connection closes; one that is closed under a request may not send it again.
const LINGER: Duration = Duration::from_secs(2);
/// The largest head of a request, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// Requests that one HTTP/2 connection may have in progress.
const MAX_STREAMS: u32 = 128;
/// Bytes of a body that no handler wants which are read, and for how long.
const MAX_UNREAD: usize = 256 * 1024;
const UNREAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Numbers of the listener.
#[derive(Debug, Clone)]
pub struct Options {
    /// The prefix of every path, e.g. `/pathbox`; may be empty.
    pub base_path: String,
    /// Connections at a time. Beyond it, one without a request makes room; when there is none, the answer is 503.
    pub max_connections: usize,
    /// How long a connection may have no request in progress.
    pub idle_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { base_path: String::new(), max_connections: 4096, idle_timeout: IDLE_TIMEOUT }
    }
}

/// What a listener serves.
#[derive(Debug, Clone)]
pub struct Routes {
    all: Router,
    /// For connections that come when every place is taken.
    crowded: Router,
}

/// All routes behind what every request passes. `known` need a caller and find a [`crate::domain::Principal`] in the
/// request; `open` do not; `health` is answered even when there is no room for anything else.
pub fn router(
    options: &Options,
    places: Places,
    auth: Authenticator,
    known: Router,
    open: Router,
    health: Router,
) -> Routes {
    let known = known.route_layer(from_fn_with_state(auth, auth::check_caller));
    let places = Arc::new(places);
    let behind = |routes: Router| {
        let routes = match options.base_path.as_str() {
            "" => routes,
            base => Router::new().nest(base, routes),
        };
        routes
            .layer(from_fn_with_state(Arc::clone(&places), layers::check_place))
            .layer(from_fn(layers::catch_panic))
    };
    let crowded = behind(health.clone().fallback(no_room));
    Routes { all: behind(known.merge(open).merge(health).fallback(no_route)), crowded }
}

async fn no_room() -> Response {
    crate::telemetry::metrics::HTTP_REFUSED.add(&["connections"], 1);
    let headers = [(header::RETRY_AFTER, "2"), (header::CONNECTION, "close")];
    let text = "every connection of this server is in use; try again in a moment (`http.max_connections`)";
    (headers, problem(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::LimitReached, text)).into_response()
}

async fn no_route() -> Response {
    problem(StatusCode::NOT_FOUND, ErrorCode::NotFound, "not found")
}

/// A refusal of any door: a stable code and a sentence, which may quote a stranger and so goes through the guard.
fn problem(status: StatusCode, code: ErrorCode, message: impl AsRef<str>) -> Response {
    let message = own_words(message.as_ref());
    let body = json!({ "error": { "code": code, "message": message, "retryable": code.is_retryable() } });
    (status, Json(body)).into_response()
}

/// A listener that serves.
#[derive(Debug)]
pub struct Serving {
    /// Where it listens; the port is the real one.
    pub address: SocketAddr,
    connections: Connections,
    tasks: TaskTracker,
    task: tokio::task::JoinHandle<()>,
}

impl Serving {
    /// Waits until every request is answered and no client has a connection that it could use for the next; the listener's
    /// token must have been cancelled. GET is not waited for: its answer may be a stream that the server ends.
    pub async fn settled(&self) {
        self.connections.settled().await;
    }

    /// Waits until every connection has ended; the listener's token must have been cancelled.
    pub async fn ended(self) {
        drop(self.task.await);
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Serves until `stop`; then no connection is accepted, and each ends with an answer that says so, or when it has had no
/// request for two seconds.
///
/// # Errors
/// When the listener's own address cannot be read.
pub fn serve(
    listener: TcpListener,
    routes: Routes,
    options: &Options,
    stop: CancellationToken,
) -> std::io::Result<Serving> {
    let address = listener.local_addr()?;
    let (connections, tasks) = (Connections::new(options.max_connections), TaskTracker::new());
    let idle = options.idle_timeout;
    let task = tokio::spawn(accept(listener, routes, idle, stop, connections.clone(), tasks.clone()));
    Ok(Serving { address, connections, tasks, task })
}

async fn accept(
    listener: TcpListener,
    routes: Routes,
    idle_timeout: Duration,
    stop: CancellationToken,
    connections: Connections,
    tasks: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        match accepted {
            Ok((stream, peer)) => match connections.admit(peer.ip()) {
                Some(seat) => {
                    let routes = if seat.is_reserved { &routes.crowded } else { &routes.all };
                    tasks.spawn(connection(stream, seat, routes.clone(), idle_timeout, stop.clone()));
                }
                None => crate::telemetry::metrics::HTTP_REFUSED.add(&["connections"], 1),
            },
            // Out of descriptors, most likely. Trying again at once would spin.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Reads a body that no handler wants, if it is short: what is left of it would cost the client its connection, and the end
/// of a long answer with it.
async fn discard(body: Body) {
    drop(tokio::time::timeout(UNREAD_TIMEOUT, Limited::new(body, MAX_UNREAD).collect()).await);
}

/// The request without a body where its method has none here.
async fn without_unused_body(request: Request<Body>) -> Request<Body> {
    let has_use = !matches!(*request.method(), Method::GET | Method::HEAD | Method::DELETE | Method::OPTIONS);
    if has_use || request.body().is_end_stream() {
        return request;
    }
    let (parts, body) = request.into_parts();
    discard(body).await;
    Request::from_parts(parts, Body::empty())
}

/// Switches Nagle's algorithm off: with it, each event of a stream waits for the client's delayed acknowledgement.
fn send_at_once(stream: &TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
}

async fn connection(
    stream: TcpStream,
    seat: Seat,
    routes: Router,
    idle_timeout: Duration,
    stop: CancellationToken,
) {
    send_at_once(&stream);
    let local = stream.local_addr().ok().map(LocalAddress);
    let requests = seat.requests();
    let peer = stream.peer_addr().ok().map(PeerAddress);
    let speaks_http2 = CancellationToken::new();
    let (is_http2, stopping) = (speaks_http2.clone(), stop.clone());
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let (routes, running, stopping) =
            (routes.clone(), requests.begin(request.method()), stopping.clone());
        let says_close = request.version() < Version::HTTP_2;
        if !says_close {
            is_http2.cancel();
        }
        let mut request = request.map(Body::new);
        if let Some(local) = local {
            request.extensions_mut().insert(local);
        }
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        async move {
            let Ok(mut response) = routes.oneshot(without_unused_body(request).await).await;
            if says_close && stopping.is_cancelled() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response.map(|body| Holding::body(body, running)))
        }
    });
    // A head has its time by `idle_timeout`, in both protocols.
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().max_buf_size(MAX_HEAD);
    builder.http2().max_concurrent_streams(MAX_STREAMS).max_header_list_size(MAX_HEAD as u32);
    let served = builder.serve_connection(TokioIo::new(stream), service);
    let closed = async {
        tokio::select! {
            () = seat.closed(idle_timeout) => {}
            () = stop.cancelled() => seat.closed(LINGER).await,
        }
    };
    // HTTP/2 can say between requests that no more are taken (GOAWAY), HTTP/1 only in an answer: there hyper would close.
    let goes_away = async {
        stop.cancelled().await;
        speaks_http2.cancelled().await;
    };
    tokio::pin!(served, closed, goes_away);
    let mut has_said_so = false;
    let result = loop {
        tokio::select! {
            result = served.as_mut() => break result,
            () = closed.as_mut() => return,
            () = goes_away.as_mut(), if !has_said_so => {
                has_said_so = true;
                served.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_that_is_sent_waits_for_an_acknowledgement() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        assert!(!accepted.nodelay().unwrap(), "by itself it would");
        send_at_once(&accepted);
        assert!(accepted.nodelay().unwrap());
    }
}
