//! MCP over HTTP+SSE, the transport of revision 2024-11-05: `GET /sse` opens a stream, `POST /messages` speaks on it.
//!
//! Deprecated, and still what some clients have. It stands alone so that it can go: nothing else uses it. The stream is
//! the session; when the client closes it, its calls are cancelled.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Query, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::{StreamExt, stream};
use http::{HeaderValue, StatusCode, request};
use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, ClientNotification, ErrorData, JsonRpcMessage};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage, serve_server_with_ct};
use rmcp::transport::Transport;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::domain::{Entropy, Principal};
use crate::mcp::McpServer;
use crate::mcp::caller::ProtocolSession;

use super::{BodyError, InFlight, json_rpc_error, read_body, refusal};

/// Messages that wait for a slow reader; the handler of that session then waits with them.
const OUTBOX: usize = 64;
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Numbers of this door.
#[derive(Debug, Clone)]
pub struct Options {
    /// The largest message, in bytes.
    pub max_body_bytes: usize,
    /// Open streams at most.
    pub max_sessions: usize,
    /// What stands before `/messages` as the client sees it, e.g. `/pathbox`; empty when nothing does.
    pub base_path: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_body_bytes: 4 * 1024 * 1024, max_sessions: 2_000, base_path: String::new() }
    }
}

#[derive(Clone)]
struct Door {
    server: McpServer,
    options: Options,
    entropy: Entropy,
    shutdown: CancellationToken,
    sessions: Sessions,
}

type Sessions = Arc<Mutex<HashMap<String, Session>>>;

#[derive(Clone)]
struct Session {
    owner: String,
    inbox: mpsc::Sender<RxJsonRpcMessage<RoleServer>>,
    outbox: mpsc::Sender<TxJsonRpcMessage<RoleServer>>,
    in_flight: InFlight,
}

fn lock(sessions: &Sessions) -> std::sync::MutexGuard<'_, HashMap<String, Session>> {
    sessions.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the session when the stream is dropped: no further messages, and its calls are cancelled.
struct Open {
    id: String,
    sessions: Sessions,
    _calls: DropGuard,
}

impl Drop for Open {
    fn drop(&mut self) {
        lock(&self.sessions).remove(&self.id);
    }
}

/// The handler's end of a session.
struct Channel {
    inbox: mpsc::Receiver<RxJsonRpcMessage<RoleServer>>,
    outbox: mpsc::Sender<TxJsonRpcMessage<RoleServer>>,
    in_flight: InFlight,
}

impl Transport<RoleServer> for Channel {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.in_flight.answered(&message);
        let outbox = self.outbox.clone();
        async move { outbox.send(message).await.map_err(io::Error::other) }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        self.inbox.recv().await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.inbox.close();
        Ok(())
    }
}

/// The routes of this door. Whoever mounts them has checked the caller and put a [`Principal`] into the request.
pub fn router(server: McpServer, options: Options, entropy: Entropy, shutdown: CancellationToken) -> Router {
    let door = Door { server, options, entropy, shutdown, sessions: Sessions::default() };
    Router::new().route("/sse", get(open)).route("/messages", post(message)).with_state(door)
}

async fn open(State(door): State<Door>, Extension(principal): Extension<Principal>) -> Response {
    let id = door.entropy.hex::<16>();
    let (inbox, messages) = mpsc::channel(16);
    let (outbox, mut answers) = mpsc::channel(OUTBOX);
    let in_flight = InFlight::default();
    let calls = door.shutdown.child_token();
    {
        let mut sessions = lock(&door.sessions);
        if sessions.len() >= door.options.max_sessions {
            return (StatusCode::SERVICE_UNAVAILABLE, "too many open streams; try again later")
                .into_response();
        }
        let session =
            Session { owner: principal.name, inbox, outbox: outbox.clone(), in_flight: in_flight.clone() };
        sessions.insert(id.clone(), session);
    }
    let open =
        Open { id: id.clone(), sessions: Arc::clone(&door.sessions), _calls: calls.clone().drop_guard() };
    let transport = Channel { inbox: messages, outbox, in_flight };
    let (server, ended) = (door.server.clone(), calls.clone());
    tokio::spawn(async move {
        match serve_server_with_ct(server, transport, ended).await {
            Ok(running) => drop(running.waiting().await),
            Err(error) => tracing::debug!(error = %error, "an SSE client left before it had begun"),
        }
    });
    // The path is relative to the origin: clients refuse another one.
    let endpoint = format!("{}/messages?session_id={id}", door.options.base_path);
    let first = Event::default().event("endpoint").data(endpoint);
    let events = stream::poll_fn(move |context| {
        // Lives as long as the body of the answer.
        let _ = &open;
        answers.poll_recv(context)
    })
    .map(|message| {
        let text = serde_json::to_string(&message).unwrap_or_default();
        Event::default().event("message").data(text)
    });
    let events =
        stream::iter([first]).chain(events).take_until(calls.cancelled_owned()).map(Ok::<_, Infallible>);
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

#[derive(serde::Deserialize)]
struct Target {
    #[serde(alias = "sessionId")]
    session_id: String,
}

async fn message(
    State(door): State<Door>,
    Extension(principal): Extension<Principal>,
    Query(target): Query<Target>,
    mut parts: request::Parts,
    body: Body,
) -> Response {
    let found = lock(&door.sessions).get(&target.session_id).cloned();
    // For anybody but its owner the session does not exist.
    let Some(session) = found.filter(|session| session.owner == principal.name) else {
        return (StatusCode::NOT_FOUND, "unknown session: open /sse again").into_response();
    };
    let body = match read_body(body, door.options.max_body_bytes).await {
        Ok(body) => body,
        Err(BodyError::TooLarge) => return StatusCode::PAYLOAD_TOO_LARGE.into_response(),
        Err(BodyError::Slow) => return StatusCode::REQUEST_TIMEOUT.into_response(),
    };
    let mut message: ClientJsonRpcMessage = match serde_json::from_slice(&body) {
        Ok(message) => message,
        Err(error) => {
            let (id, error) = refusal(&body, &error);
            return json_rpc_error(StatusCode::BAD_REQUEST, id, error);
        }
    };
    match &message {
        JsonRpcMessage::Request(request) => {
            if let Err(problem) = session.in_flight.begin(&request.id) {
                let refused = TxJsonRpcMessage::<RoleServer>::error(
                    ErrorData::invalid_request(problem, None),
                    Some(request.id.clone()),
                );
                return match session.outbox.send(refused).await {
                    Ok(()) => StatusCode::ACCEPTED.into_response(),
                    Err(_) => StatusCode::NOT_FOUND.into_response(),
                };
            }
        }
        // rmcp ends the session on a notification that comes first; clients do send them.
        _ if !session.in_flight.has_begun() => return StatusCode::ACCEPTED.into_response(),
        JsonRpcMessage::Notification(notification) => {
            if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                && let Some(id) = &cancelled.params.request_id
            {
                session.in_flight.end(id);
            }
        }
        _ => {}
    }
    parts.extensions.insert(ProtocolSession(target.session_id));
    message.insert_extension(parts);
    match session.inbox.send(message).await {
        Ok(()) => (StatusCode::ACCEPTED, "Accepted").into_response(),
        Err(_) => (StatusCode::NOT_FOUND, "the session has ended").into_response(),
    }
}
