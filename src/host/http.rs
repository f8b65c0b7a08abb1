//! The host's one port: E2B's control plane, and behind it the ports of every sandbox.
//!
//! One address serves them all, because the official clients can be pointed at one: a request that names a sandbox
//! and a port, in two headers or in the first label of its host, goes to that sandbox; one that names none is for
//! the control plane. HTTP/1.1 only, on purpose: closing the connection of a running `/execute` is how a client
//! interrupts it, and a closed HTTP/2 stream does not always get that far.

pub(crate) mod control;
pub(crate) mod envd;
pub(crate) mod interpreter;
pub(crate) mod ports;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures::FutureExt;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::auth;
use super::registry::{NotServing, Registry};
use super::sandbox::Sandbox;
use crate::domain::lock;
use crate::telemetry::metrics::HOST_LIMITS;
use crate::telemetry::trace::Trace;
use crate::wire::error::{ApiError, ProxyError};
use crate::wire::header::{SANDBOX_ID, SANDBOX_PORT, TRACEPARENT, TRACESTATE, TRAFFIC_TOKEN};
use crate::wire::{ENVD_PORT, INTERPRETER_PORT, Secret};

/// For a whole body that is read into memory.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// What is still read of a body that no handler wants, in bytes and in time.
const REST_LIMIT: usize = 1024 * 1024;
const REST_TIMEOUT: Duration = Duration::from_secs(2);
/// How long open answers may take to end once the host shuts down.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The doors and the services behind them.
pub(crate) struct Doors {
    pub(crate) registry: Registry,
    control: Router,
    envd: Router,
    interpreter: Router,
    /// The control plane's API key; no server in a sandbox gets to see it.
    api_key: Secret,
}

impl Doors {
    pub(crate) fn new(registry: Registry, api_key: Secret) -> Self {
        Self {
            control: control::router(registry.clone(), api_key.clone()),
            api_key,
            envd: envd::router(),
            interpreter: interpreter::router(),
            registry,
        }
    }
}

/// How much malicious clients can hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    pub(crate) max_connections: usize,
    pub(crate) head_timeout: Duration,
}

/// Connections that are open. Those without a request in progress make room for new ones, so that anyone who opens many and says
/// nothing keeps no one else away.
#[derive(Debug, Default)]
struct Open {
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    /// One has ended, or has nothing more to do.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Connection {
    /// Requests whose answers have not ended: one at most, in HTTP/1.1.
    under_way: AtomicUsize,
    /// Has had a request.
    has_asked: AtomicBool,
    /// Cancelled when its place is given to another.
    evicted: CancellationToken,
}

impl Open {
    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Connection>>> {
        lock(&self.connections)
    }

    /// Waits until there are fewer than `most`, which the oldest idle one makes sure of.
    async fn make_room(&self, most: usize) {
        loop {
            let freed = self.freed.notified();
            {
                let mut table = self.table();
                if table.len() < most {
                    return;
                }
                let idle = |asked| {
                    let is_idle = |connection: &Connection| {
                        connection.under_way.load(Ordering::Relaxed) == 0
                            && connection.has_asked.load(Ordering::Relaxed) == asked
                    };
                    table.iter().find(|(_, connection)| is_idle(connection)).map(|(id, _)| *id)
                };
                if let Some(evicted) = idle(false).or_else(|| idle(true)).and_then(|id| table.remove(&id)) {
                    evicted.evicted.cancel();
                    HOST_LIMITS.add(&["connections"], 1);
                    return;
                }
            }
            freed.await;
        }
    }
}

/// Counts an answer until all of it is sent.
struct UnderWay(Arc<Connection>, Arc<Open>);

impl UnderWay {
    fn on(connection: &Arc<Connection>, open: &Arc<Open>) -> Self {
        connection.has_asked.store(true, Ordering::Relaxed);
        connection.under_way.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(connection), Arc::clone(open))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
        self.1.freed.notify_one();
    }
}

/// Serves until `shutdown`, then gives open answers a moment to end.
pub(crate) async fn serve(
    listener: TcpListener,
    doors: Arc<Doors>,
    limits: ConnectionLimits,
    shutdown: CancellationToken,
) {
    let connections = TaskTracker::new();
    let open = Arc::new(Open::default());
    for id in 0.. {
        let accepted = async {
            let accepted = listener.accept().await;
            open.make_room(limits.max_connections).await;
            accepted
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = Arc::new(Connection::default());
                open.table().insert(id, Arc::clone(&connection));
                let (doors, shutdown, open) = (Arc::clone(&doors), shutdown.clone(), Arc::clone(&open));
                connections.spawn(async move {
                    let evicted = connection.evicted.clone();
                    tokio::select! {
                        () = serve_one(stream, doors, (connection, &open), limits.head_timeout, shutdown) => {}
                        () = evicted.cancelled() => {}
                    }
                    open.table().remove(&id);
                    open.freed.notify_one();
                });
            }
            // Out of descriptors, most likely. Trying again at once would spin.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                let now_open = open.table().len();
                open.make_room(now_open.max(1)).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(DRAIN_TIMEOUT, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "connections were still open at the end");
    }
}

async fn serve_one(
    stream: TcpStream,
    doors: Arc<Doors>,
    (connection, open): (Arc<Connection>, &Arc<Open>),
    head_timeout: Duration,
    shutdown: CancellationToken,
) {
    // Answers are many small writes; Nagle's algorithm would hold each back for the client's delayed ACK.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let service = service_fn(move |request: Request<Incoming>| {
        let doors = Arc::clone(&doors);
        let under_way = UnderWay::on(&connection, open);
        let span = span_of(request.headers());
        let answer = answer(doors, request.map(|body| Body::new(ReadToEnd(Some(body)))));
        async move {
            let answer = answer.instrument(span.clone()).await;
            Ok::<_, Infallible>(answer.map(|body| Counted { body, _under_way: under_way, _span: span }))
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(256 * 1024)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = shutdown.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// The span of a request that its caller traces; it ends with the answer's body.
fn span_of(headers: &HeaderMap) -> Span {
    let value = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(caller) = value(TRACEPARENT).and_then(Trace::read) else { return Span::none() };
    let span =
        tracing::debug_span!("host.request", otel.kind = "server", host.door = Empty, sandbox.id = Empty);
    Trace::begin(&span, Some(caller.with_state(value(TRACESTATE))), [0; 16]);
    span
}

/// An answer's body, which counts until it has ended.
struct Counted {
    body: Body,
    _under_way: UnderWay,
    _span: Span,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request's body that is read to its end even when the handler did not care for it. A connection with unread bytes
/// on it has to be closed, and a client that already sends its next request there would see that fail.
#[derive(Debug)]
struct ReadToEnd(Option<Incoming>);

impl HttpBody for ReadToEnd {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for ReadToEnd {
    fn drop(&mut self) {
        let Some(mut body) = self.0.take().filter(|body| !body.is_end_stream()) else { return };
        tokio::spawn(tokio::time::timeout(REST_TIMEOUT, async move {
            let mut rest = 0;
            while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
                && rest < REST_LIMIT
            {
                rest += frame.data_ref().map_or(0, Bytes::len);
            }
        }));
    }
}

/// Answers one request; a panic in a handler is answered too, and ends nothing else.
async fn answer(doors: Arc<Doors>, request: Request<Body>) -> Response {
    match AssertUnwindSafe(dispatch(&doors, request)).catch_unwind().await {
        Ok(response) => response,
        Err(_) => {
            tracing::error!("a request handler panicked");
            api_error(StatusCode::INTERNAL_SERVER_ERROR, "the host failed; its log says more")
        }
    }
}

/// Lets a browser's scripts call from any origin, as E2B does: what opens a door is a header that no browser adds by itself.
fn let_browsers(response: &mut Response) {
    const ANY: HeaderValue = HeaderValue::from_static("*");
    let headers = response.headers_mut();
    // The headers of a server in a sandbox about its own origins stay.
    if !headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ANY);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, ANY);
    }
}

/// A browser's question before it sends a request; it comes without the headers that the request will have.
fn preflight(request: &Request<Body>) -> Option<Response> {
    let headers = request.headers();
    let asks = *request.method() == Method::OPTIONS
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    asks.then(|| {
        let mut response = StatusCode::NO_CONTENT.into_response();
        let allowed = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
        // `*` covers no `Authorization`, so what is asked for is named.
        let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        let answer = response.headers_mut();
        answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, allowed);
        answer.insert(
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            asked.unwrap_or_else(|| HeaderValue::from_static("*")),
        );
        answer.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
        response
    })
}

async fn dispatch(doors: &Doors, request: Request<Body>) -> Response {
    let is_browser = request.headers().contains_key(header::ORIGIN);
    let mut response = answer_to(doors, request).await;
    if is_browser {
        let_browsers(&mut response);
    }
    response
}

async fn answer_to(doors: &Doors, mut request: Request<Body>) -> Response {
    let (id, port) = match Target::of(request.headers(), request.uri()) {
        // Servers in a sandbox answer for themselves.
        Ok(Target::Sandbox { id, port }) if ![ENVD_PORT, INTERPRETER_PORT].contains(&port) => (id, port),
        Ok(_) if let Some(answer) = preflight(&request) => return answer,
        Ok(Target::Sandbox { id, port }) => (id, port),
        Ok(Target::Control) => match envd::sandbox_of_signature(&doors.registry, &request) {
            Some(id) => (id, ENVD_PORT),
            None if envd::is_signed(&request) => {
                return api_error(
                    StatusCode::UNAUTHORIZED,
                    "the signature of this URL is that of no running sandbox: it was changed, or its sandbox has ended",
                );
            }
            None => {
                Span::current().record("host.door", "control");
                return forward(&doors.control, request).await;
            }
        },
        Err(bad) => return api_error(StatusCode::BAD_REQUEST, bad.to_string()),
    };
    let sandbox = match doors.registry.serving(&id).await {
        Ok(sandbox) => sandbox,
        Err(NotServing) => {
            let mut error = ProxyError::sandbox_not_found(id.as_str());
            if let Some(how) = doors.registry.how_it_ended(&id) {
                error.message = format!("{}: {how}", error.message);
            }
            return proxy_error(error);
        }
    };
    if port != ENVD_PORT
        && let Some(refusal) = refuse_traffic(&sandbox, request.headers())
    {
        return refusal;
    }
    let (door, router) = match port {
        ENVD_PORT => ("envd", Some(&doors.envd)),
        INTERPRETER_PORT => ("interpreter", Some(&doors.interpreter)),
        _ => ("port", None),
    };
    Span::current().record("host.door", door).record("sandbox.id", id.as_str());
    let Some(router) = router else {
        return ports::forward(&sandbox, port, request, &doors.api_key).await;
    };
    request.extensions_mut().insert(sandbox);
    forward(router, request).await
}

async fn forward(router: &Router, request: Request<Body>) -> Response {
    match router.clone().oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Whom a request is for.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Control,
    Sandbox { id: String, port: u16 },
}

/// A request that names its sandbox in a way that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum BadTarget {
    #[error("Missing header: {0}")]
    MissingHeader(&'static str),
    #[error("Invalid sandbox ID")]
    Id,
    #[error("Invalid sandbox port")]
    Port,
}

impl Target {
    fn of(headers: &HeaderMap, uri: &Uri) -> Result<Self, BadTarget> {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or(""));
        match (text(SANDBOX_ID), text(SANDBOX_PORT)) {
            (Some(id), Some(port)) => Self::sandbox(id, port),
            (Some(_), None) => Err(BadTarget::MissingHeader("E2b-Sandbox-Port")),
            (None, Some(_)) => Err(BadTarget::MissingHeader("E2b-Sandbox-Id")),
            (None, None) => {
                let host = uri.host().or_else(|| text(header::HOST.as_str())).unwrap_or("");
                let label = host.split_once('.').map_or("", |(label, _)| label);
                match label.split_once('-') {
                    // Only a label that starts with a number is meant as `<port>-<id>`.
                    Some((port, id)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
                        Self::sandbox(id, port)
                    }
                    _ => Ok(Self::Control),
                }
            }
        }
    }

    /// Ids of older clients have a client id after a dash.
    fn sandbox(id: &str, port: &str) -> Result<Self, BadTarget> {
        let id = id.split('-').next().unwrap_or("");
        if !auth::is_sandbox_id(id) {
            return Err(BadTarget::Id);
        }
        let port = port.parse().ok().filter(|port| *port != 0).ok_or(BadTarget::Port)?;
        Ok(Self::Sandbox { id: id.to_owned(), port })
    }
}

/// The refusal of a request without the traffic token of a sandbox that has one.
fn refuse_traffic(sandbox: &Sandbox, headers: &HeaderMap) -> Option<Response> {
    let token = sandbox.traffic_token.as_ref()?;
    let problem = match headers.get(TRAFFIC_TOKEN) {
        Some(sent) if auth::opens(token, sent) => return None,
        Some(_) => "is invalid",
        None => "is missing",
    };
    let message = format!(
        "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' {problem}"
    );
    let sandbox_id = sandbox.id.clone();
    Some(proxy_error(ProxyError { sandbox_id, message, port: None, code: 403 }))
}

/// An answer of the proxy in front of the sandboxes, as JSON whatever the client accepts.
fn proxy_error(error: ProxyError) -> Response {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::BAD_GATEWAY);
    (status, Json(error)).into_response()
}

/// The error body of control plane and envd: an integer `code` equal to the status, and a `message`.
fn api_error(status: StatusCode, message: impl Into<String>) -> Response {
    (status, Json(ApiError::new(status.as_u16(), message))).into_response()
}

/// A body that could not be read into memory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the body did not arrive within {} s", BODY_TIMEOUT.as_secs())]
    Slow,
    #[error("the body broke off or is framed wrongly")]
    Broken,
}

/// Reads a whole body, bounded in size and time. The declared type is not looked at: clients differ.
async fn read_body(body: Body, limit: usize) -> Result<Bytes, BodyError> {
    match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, limit).collect()).await {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge(limit)),
        Ok(Err(_)) => Err(BodyError::Broken),
        Err(_) => Err(BodyError::Slow),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(headers: &[(&'static str, &str)], uri: &str) -> Result<Target, BadTarget> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        Target::of(&map, &uri.parse().unwrap())
    }

    fn sandbox(id: &str, port: u16) -> Result<Target, BadTarget> {
        Ok(Target::Sandbox { id: id.into(), port })
    }

    #[test]
    fn headers_name_a_sandbox_and_so_does_the_first_label_of_the_host() {
        let both = [(SANDBOX_ID, "iabc1"), (SANDBOX_PORT, "49983")];
        assert_eq!(target(&both, "/health"), sandbox("iabc1", 49983));
        assert_eq!(target(&[("host", "49999-iabc1.e2b.app")], "/execute"), sandbox("iabc1", 49999));
        assert_eq!(target(&[("host", "49999-iabc1.localhost:3900")], "/"), sandbox("iabc1", 49999));
        assert_eq!(target(&[], "http://8000-iabc1.test/x"), sandbox("iabc1", 8000));
        let old = [(SANDBOX_ID, "iabc1-6532622b"), (SANDBOX_PORT, "1")];
        assert_eq!(target(&old, "/"), sandbox("iabc1", 1));
    }

    #[test]
    fn a_request_that_names_no_sandbox_is_for_the_control_plane() {
        for host in ["127.0.0.1:3900", "localhost", "api.e2b.app", "my-host.test", "[::1]:80", ""] {
            assert_eq!(target(&[("host", host)], "/sandboxes"), Ok(Target::Control), "{host}");
        }
        assert_eq!(target(&[], "/sandboxes"), Ok(Target::Control));
    }

    #[test]
    fn half_a_name_or_a_bad_one_is_refused_and_never_falls_through_to_the_control_plane() {
        assert_eq!(target(&[(SANDBOX_ID, "iabc")], "/"), Err(BadTarget::MissingHeader("E2b-Sandbox-Port")));
        assert_eq!(target(&[(SANDBOX_PORT, "1")], "/"), Err(BadTarget::MissingHeader("E2b-Sandbox-Id")));
        for (id, port, problem) in [
            ("../x", "1", BadTarget::Id),
            ("", "1", BadTarget::Id),
            ("ABC", "1", BadTarget::Id),
            ("iabc", "0", BadTarget::Port),
            ("iabc", "65536", BadTarget::Port),
            ("iabc", "x", BadTarget::Port),
        ] {
            assert_eq!(target(&[(SANDBOX_ID, id), (SANDBOX_PORT, port)], "/"), Err(problem), "{id} {port}");
        }
        assert_eq!(target(&[("host", "99999-iabc.test")], "/"), Err(BadTarget::Port));
        assert_eq!(target(&[("host", "80-.test")], "/"), Err(BadTarget::Id));
    }
}
