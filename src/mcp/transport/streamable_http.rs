//! MCP over Streamable HTTP at `/mcp`: one handler for the stateless revision (2026-07-28) and for the older ones with
//! sessions.
//!
//! rmcp's service does the protocol; what stands around it here is what clients need besides: the caller must be the
//! one who opened the session, broken messages are answered as JSON-RPC says, and a stateless call shows a sign of life
//! at once even when its first message is long in coming.

mod sessions;
mod shared;
mod ticket;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, request};
use rmcp::ServerHandler;
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, ErrorData, ProtocolVersion};
use rmcp::transport::streamable_http_server::session::SessionStore;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio_util::sync::CancellationToken;

use crate::domain::{Clock, Entropy, Principal};
use crate::execution::Starting;
use crate::mcp::Service;
use crate::mcp::caller::ProtocolSession;

use super::chats::Chat;
use super::{batch, is_array, json_rpc_error, read_body, refusal, scopes};
use sessions::{OPENING, Opening, Sessions};
use shared::{LOOK, Shared};
use ticket::Tickets;

/// How often the sessions are looked through.
const SWEEP: Duration = Duration::from_secs(15);
/// How long a call may be silent before its answer is begun without it.
const FIRST_BYTE: Duration = Duration::from_millis(30);
/// Between two signs of life on an open stream; proxies give up after a minute or less.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The header that names a session.
const SESSION_ID: &str = "mcp-session-id";
const PROTOCOL_VERSION: &str = "mcp-protocol-version";
const LAST_EVENT_ID: &str = "last-event-id";
const EVENT_STREAM: &str = "text/event-stream";

/// Numbers of this door.
#[derive(Debug, Clone)]
pub struct Options {
    /// The largest message, in bytes.
    pub max_body_bytes: usize,
    /// Sessions in memory at most.
    pub max_sessions: usize,
    /// How long a session may be unused before it is put away. It is opened again when it is used.
    pub session_idle: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_body_bytes: 4 * 1024 * 1024, max_sessions: 10_000, session_idle: Duration::from_secs(600) }
    }
}

#[derive(Clone)]
struct Door<H> {
    service: StreamableHttpService<H, Sessions>,
    sessions: Sessions,
    max_body_bytes: usize,
}

/// The routes of this door. The code that mounts them has checked the caller and put a [`Principal`] into the request.
///
/// `handler` answers; what the door keeps of sessions is in the store of `execution`. `key` seals session ids; replicas
/// with the same key take over each other's sessions. `shutdown` ends all streams.
pub fn router<H: ServerHandler + Clone>(
    handler: H,
    execution: &Starting<Service>,
    key: [u8; 32],
    options: &Options,
    clock: &Clock,
    entropy: &Entropy,
    shutdown: &CancellationToken,
) -> Router {
    let tickets = Tickets::new(key, clock.clone(), entropy.clone());
    let shared = Shared(execution.clone());
    let sessions = Sessions::new(tickets, shared.clone(), options.max_sessions, options.session_idle);
    let mut config = StreamableHttpServerConfig::default()
        // Host and Origin are checked before any route, this one too.
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_sse_keep_alive(Some(KEEP_ALIVE))
        .with_sse_retry(None)
        .with_max_request_body_bytes(options.max_body_bytes)
        .with_cancellation_token(shutdown.clone());
    config.session_store = Some(Arc::new(sessions.clone()) as Arc<dyn SessionStore>);
    let service = StreamableHttpService::new(move || Ok(handler.clone()), Arc::new(sessions.clone()), config);
    let (swept, ended) = (sessions.clone(), shutdown.clone());
    tokio::spawn(async move {
        let sweeping = async {
            loop {
                tokio::time::sleep(SWEEP).await;
                swept.sweep();
            }
        };
        let looking = async {
            loop {
                tokio::time::sleep(LOOK).await;
                if swept.len() > 0 {
                    swept.apply(shared.recent_events().await).await;
                }
            }
        };
        ended.run_until_cancelled(async { tokio::join!(sweeping, looking) }).await;
        tracing::debug!(sessions = swept.len(), "the sessions end");
    });
    let door = Door { service, sessions, max_body_bytes: options.max_body_bytes };
    Router::new().route("/mcp", any(handle::<H>)).with_state(door)
}

async fn handle<H: ServerHandler + Clone>(
    State(door): State<Door<H>>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Response {
    let (mut parts, body) = request.into_parts();
    be_lenient(&mut parts.headers);
    let body = match read_body(body, door.max_body_bytes).await {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    // After the body has been read: a refusal before it would cost the client its connection.
    if let Err(refused) = door.check_session(&parts, &principal).await {
        return refused;
    }
    if let Some(refused) = scopes::refusal(&principal, &body) {
        return refused;
    }
    if let Some(id) = parts.headers.get(SESSION_ID).and_then(|id| id.to_str().ok()) {
        let is_kept = door.sessions.chat(id, &body).await == Chat::Own;
        let session = ProtocolSession { id: id.to_owned(), is_kept };
        parts.extensions.insert(session);
    }
    if parts.method == Method::POST && is_array(&body) && door.takes_batches(&parts) {
        return door.handle_batch(parts, &body).await;
    }
    let method = parts.method.clone();
    let stateless = method == Method::POST && is_stateless(&parts.headers);
    let is_json = parts.headers.get(header::CONTENT_TYPE).is_some_and(is_json);
    let opening = match opening(&parts, &body, principal) {
        Some(_) if !door.sessions.has_room() => return no_room(),
        opening => opening,
    };
    let request = Request::from_parts(parts, Body::from(body.clone()));
    let answer = async move {
        let answer = match opening {
            Some(opening) => OPENING.scope(opening, door.service.handle(request)).await,
            None => door.service.handle(request).await,
        };
        let answer = answer.map(Body::new);
        mend(&method, is_json.then_some(&body), answer)
    };
    if stateless { begin_early(answer).await } else { answer.await }
}

impl<H: ServerHandler + Clone> Door<H> {
    /// A session belongs to the caller that opened it. For others it does not exist.
    async fn check_session(&self, parts: &request::Parts, principal: &Principal) -> Result<(), Response> {
        let Some(id) = parts.headers.get(SESSION_ID) else { return Ok(()) };
        let id = id.to_str().unwrap_or_default();
        if self.sessions.owner(id).await.as_deref() != Some(principal.name.as_str()) {
            return Err((StatusCode::NOT_FOUND, "unknown session: initialize a new one").into_response());
        }
        if let (&Method::GET, Some(event)) = (&parts.method, parts.headers.get(LAST_EVENT_ID))
            && !self.sessions.can_resume(id, event.to_str().unwrap_or_default())
        {
            // An empty stream would make clients come back for more of it, again and again.
            return Err((StatusCode::NOT_FOUND, "this replica does not have the stream of that event: call again with the same idempotency key, or ask \
                 `get_execution` for the run's result").into_response());
        }
        Ok(())
    }
}

impl<H: ServerHandler + Clone> Door<H> {
    /// Whether the session is of the one revision that has batches.
    fn takes_batches(&self, parts: &request::Parts) -> bool {
        let id = parts.headers.get(SESSION_ID).and_then(|id| id.to_str().ok());
        id.and_then(|id| self.sessions.protocol(id)) == Some(ProtocolVersion::V_2025_03_26)
    }

    /// Answers the requests of a batch on one stream.
    async fn handle_batch(&self, mut parts: request::Parts, body: &Bytes) -> Response {
        let messages = match batch(body) {
            Ok(messages) => messages,
            Err(problem) => {
                let error = ErrorData::invalid_request(problem, None);
                return json_rpc_error(StatusCode::BAD_REQUEST, None, error);
            }
        };
        parts.headers.remove(header::CONTENT_LENGTH);
        let mut answers = Vec::new();
        for message in messages {
            let body = Bytes::copy_from_slice(message.get().as_bytes());
            let request = Request::from_parts(parts.clone(), Body::from(body.clone()));
            let answer = mend(&Method::POST, Some(&body), self.service.handle(request).await.map(Body::new));
            match answer.status() {
                StatusCode::ACCEPTED => {}
                _ if is_event_stream(&answer) => answers.push(answer.into_body().into_data_stream().boxed()),
                _ => answers.push(as_event(answer.into_body()).await.into_data_stream().boxed()),
            }
        }
        if answers.is_empty() {
            return StatusCode::ACCEPTED.into_response();
        }
        event_stream(futures::stream::select_all(answers))
    }
}

fn is_event_stream(answer: &Response) -> bool {
    answer.headers().get(header::CONTENT_TYPE).is_some_and(|content_type| content_type == EVENT_STREAM)
}

fn event_stream<S>(events: S) -> Response
where
    S: Stream<Item = Result<Bytes, axum::Error>> + Send + 'static,
{
    let headers = [
        (header::CONTENT_TYPE, EVENT_STREAM),
        (header::CACHE_CONTROL, "no-cache"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(events)).into_response()
}

/// `curl` and many libraries accept anything; that includes both forms of an answer.
fn be_lenient(headers: &mut HeaderMap) {
    let anything = match headers.get(header::ACCEPT) {
        None => true,
        Some(accept) => {
            accept.to_str().is_ok_and(|text| text.split(',').any(|part| part.trim().starts_with("*/*")))
        }
    };
    if anything {
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    }
}

/// Whether the message is of the revision without sessions.
fn is_stateless(headers: &HeaderMap) -> bool {
    let version = headers.get(PROTOCOL_VERSION).and_then(|value| value.to_str().ok());
    version.is_some_and(|version| version >= ProtocolVersion::V_2026_07_28.as_str())
}

/// Who opens a session with this message, if it does.
fn opening(parts: &request::Parts, body: &Bytes, principal: Principal) -> Option<Opening> {
    let may_be = parts.method == Method::POST
        && !parts.headers.contains_key(SESSION_ID)
        && memchr::memmem::find(body, b"initialize").is_some();
    if !may_be {
        return None;
    }
    match serde_json::from_slice(body).ok()? {
        ClientJsonRpcMessage::Request(request) => match request.request {
            ClientRequest::InitializeRequest(initialize) => {
                Some(Opening { owner: principal.name, initialize: initialize.params })
            }
            _ => None,
        },
        _ => None,
    }
}

fn no_room() -> Response {
    let mut response =
        (StatusCode::SERVICE_UNAVAILABLE, "too many sessions; try again later").into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
    response
}

fn is_json(content_type: &HeaderValue) -> bool {
    let essence = content_type.to_str().ok().and_then(|text| text.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// Puts right what rmcp answers otherwise than clients expect. `json` is the message, if it says that it is JSON.
fn mend(method: &Method, json: Option<&Bytes>, answer: Response) -> Response {
    match (answer.status(), json) {
        (StatusCode::ACCEPTED, _) if method == Method::DELETE => StatusCode::NO_CONTENT.into_response(),
        // The type was right, so it is the message that cannot be read.
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, Some(json)) if method == Method::POST => {
            match serde_json::from_slice::<ClientJsonRpcMessage>(json) {
                Ok(_) => answer,
                Err(error) => {
                    let (id, error) = refusal(json, &error);
                    json_rpc_error(StatusCode::BAD_REQUEST, id, error)
                }
            }
        }
        (StatusCode::INTERNAL_SERVER_ERROR, _) => {
            let error = ErrorData::internal_error("the server could not answer; its log says more", None);
            json_rpc_error(StatusCode::INTERNAL_SERVER_ERROR, None, error)
        }
        _ => answer,
    }
}

/// The answer, or the beginning of a stream that will carry it when it is not there soon. Dropping the stream drops
/// the call, which is how this revision cancels.
async fn begin_early(answer: impl Future<Output = Response> + Send + 'static) -> Response {
    let mut answer = Box::pin(answer);
    match tokio::time::timeout(FIRST_BYTE, answer.as_mut()).await {
        Ok(answer) => answer,
        Err(_) => event_stream(signs_of_life(answer)),
    }
}

const SIGN: &[u8] = b":\n\n";

enum Late<F> {
    Begin(F),
    Waiting(F),
    Open(axum::body::BodyDataStream),
}

fn signs_of_life<F>(answer: F) -> impl Stream<Item = Result<Bytes, axum::Error>> + Send
where
    F: Future<Output = Response> + Send + Unpin + 'static,
{
    futures::stream::unfold(Late::Begin(answer), async |state| {
        let sign = Ok(Bytes::from_static(SIGN));
        match state {
            Late::Begin(answer) => Some((sign, Late::Waiting(answer))),
            Late::Waiting(mut answer) => match tokio::time::timeout(KEEP_ALIVE, &mut answer).await {
                Err(_) => Some((sign, Late::Waiting(answer))),
                Ok(answer) => {
                    let mut body = match is_event_stream(&answer) {
                        true => answer.into_body(),
                        false => as_event(answer.into_body()).await,
                    }
                    .into_data_stream();
                    let first = body.next().await?;
                    Some((first, Late::Open(body)))
                }
            },
            Late::Open(mut body) => Some((body.next().await?, Late::Open(body))),
        }
    })
}

/// A whole JSON answer as one event.
async fn as_event(body: Body) -> Body {
    let json = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    let mut event = b"data: ".to_vec();
    event.extend_from_slice(&json);
    event.extend_from_slice(b"\n\n");
    Body::from(event)
}
