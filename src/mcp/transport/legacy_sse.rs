//! MCP over HTTP+SSE, the transport of revision 2024-11-05: `GET /sse` opens a stream, `POST /messages` speaks on it.
//!
//! Deprecated, and still what some clients have. It stands alone so that it can go: nothing else uses it. The stream is
//! the session; when the client closes it, its calls are cancelled. Messages must reach the replica that has the stream:
//! a proxy before several replicas needs sticky sessions for both routes. When the listener closes no further message
//! can come, so the stream then ends with the last answer, and the client opens another one elsewhere.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
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
use rmcp::model::{ClientJsonRpcMessage, ErrorData, JsonRpcMessage};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage, serve_server_with_ct};
use rmcp::transport::Transport;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::domain::{Entropy, Principal, lock};
use crate::mcp::McpServer;
use crate::mcp::caller::ProtocolSession;

use super::chats::{self, Chat, Other, Sign};
use super::{InFlight, batch, is_array, json_rpc_error, read_body, refusal, scopes};

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
    ends: Ends,
    sessions: Sessions,
    /// What session ids of this replica begin with.
    replica: String,
}

/// When the streams of this door end.
#[derive(Debug, Clone)]
pub struct Ends {
    /// The listener has closed: each ends when its calls have been answered.
    pub listening: CancellationToken,
    /// All end.
    pub streams: CancellationToken,
}

type Sessions = Arc<Mutex<HashMap<String, Session>>>;

#[derive(Clone)]
struct Session {
    owner: String,
    inbox: mpsc::Sender<RxJsonRpcMessage<RoleServer>>,
    outbox: mpsc::Sender<TxJsonRpcMessage<RoleServer>>,
    in_flight: InFlight,
    talk: Arc<Mutex<Talk>>,
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
    listening: CancellationToken,
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
        let last_answer = async {
            self.listening.cancelled().await;
            self.in_flight.all_answered().await;
        };
        tokio::select! {
            biased;
            Some(message) = self.inbox.recv() => return Some(message),
            () = last_answer => self.inbox.close(),
        }
        // What came meanwhile is answered too.
        let last = self.inbox.recv().await;
        if last.is_none() {
            self.in_flight.all_answered().await;
        }
        last
    }

    async fn close(&mut self) -> io::Result<()> {
        self.inbox.close();
        Ok(())
    }
}

/// The routes of this door. The code that mounts them has checked the caller and put a [`Principal`] into the request.
pub fn router(server: McpServer, options: Options, entropy: Entropy, ends: Ends) -> Router {
    let replica = entropy.hex::<4>();
    let door = Door { server, options, entropy, ends, sessions: Sessions::default(), replica };
    Router::new().route("/sse", get(open)).route("/messages", post(message)).with_state(door)
}

async fn open(State(door): State<Door>, Extension(principal): Extension<Principal>) -> Response {
    let id = format!("{}{}", door.replica, door.entropy.hex::<16>());
    let (inbox, messages) = mpsc::channel(16);
    let (outbox, mut answers) = mpsc::channel(OUTBOX);
    let in_flight = InFlight::default();
    let calls = door.ends.streams.child_token();
    if door.ends.listening.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "this server ends; open the stream again").into_response();
    }
    {
        let mut sessions = lock(&door.sessions);
        if sessions.len() >= door.options.max_sessions {
            return (StatusCode::SERVICE_UNAVAILABLE, "too many open streams; try again later")
                .into_response();
        }
        let talk = Arc::new(Mutex::new(Talk { chat: None, calls: 0, last_used: Instant::now() }));
        let (outbox, in_flight) = (outbox.clone(), in_flight.clone());
        let session = Session { owner: principal.name, inbox, outbox, in_flight, talk };
        sessions.insert(id.clone(), session);
    }
    let open =
        Open { id: id.clone(), sessions: Arc::clone(&door.sessions), _calls: calls.clone().drop_guard() };
    let listening = door.ends.listening.clone();
    let transport = Channel { inbox: messages, outbox, in_flight, listening };
    // Of its own: the handler cancels it at its end, and what it said last has yet to go out.
    let (server, ended) = (door.server.clone(), calls.child_token());
    let (sessions, ends) = (Arc::clone(&door.sessions), id.clone());
    tokio::spawn(async move {
        match serve_server_with_ct(server, transport, ended).await {
            Ok(running) => drop(running.waiting().await),
            Err(error) => {
                tracing::debug!(error = %error, "an SSE client disconnected before it had initialized")
            }
        }
        // With its last sender gone the stream ends, after what is in it.
        lock(&sessions).remove(&ends);
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
    // For anyone but its owner the session does not exist.
    let Some(session) = found.filter(|session| session.owner == principal.name) else {
        if !target.session_id.starts_with(&door.replica) {
            tracing::warn!(
                "a message for a stream of another replica, or from before a restart; a proxy needs sticky sessions for /sse and \
                 /messages"
            );
        }
        let text = "this replica has no such stream: open /sse again; with several replicas the proxy needs sticky sessions \
                    for /sse and /messages";
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    let body = match read_body(body, door.options.max_body_bytes).await {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    if let Some(refused) = scopes::refusal(&principal, &body) {
        return refused;
    }
    let is_kept = door.chat(&target.session_id, &session, &body) == Chat::Own;
    parts.extensions.insert(ProtocolSession { id: target.session_id, is_kept });
    if !(is_array(&body) && session.in_flight.takes_batches()) {
        return session.take(&body, &parts).await;
    }
    let messages = match batch(&body) {
        Ok(messages) => messages,
        Err(problem) => {
            let error = ErrorData::invalid_request(problem, None);
            return json_rpc_error(StatusCode::BAD_REQUEST, None, error);
        }
    };
    for message in messages {
        let taken = session.take(message.get().as_bytes(), &parts).await;
        if taken.status() != StatusCode::ACCEPTED {
            return taken;
        }
    }
    StatusCode::ACCEPTED.into_response()
}

impl Door {
    /// What a session is to its client, after this message of it.
    fn chat(&self, id: &str, session: &Session, message: &[u8]) -> Chat {
        if session.talk().chat == Some(Chat::Own) {
            return Chat::Own;
        }
        let sign = chats::sign(message);
        {
            let mut talk = session.talk();
            talk.last_used = Instant::now();
            talk.calls += u64::from(sign == Some(Sign::Calls));
            if let Some(chat) = talk.chat {
                return chat;
            }
        }
        let Some(sign) = sign else { return Chat::Own };
        let others: Vec<Session> = {
            let all = lock(&self.sessions);
            let others = all.iter().filter(|(other, it)| *other != id && it.owner == session.owner);
            others.map(|(_, session)| session.clone()).collect()
        };
        let chat = chats::decide(sign, others.iter().map(Session::as_other));
        *session.talk().chat.get_or_insert(chat)
    }
}

/// What has been said in a session so far.
#[derive(Debug)]
struct Talk {
    chat: Option<Chat>,
    calls: u64,
    last_used: Instant,
}

impl Session {
    fn talk(&self) -> std::sync::MutexGuard<'_, Talk> {
        lock(&self.talk)
    }

    fn as_other(&self) -> Other {
        let talk = self.talk();
        let is_running = self.in_flight.is_running();
        Other { chat: talk.chat, is_running, calls: talk.calls, unused_for: talk.last_used.elapsed() }
    }

    /// Hands one message to the session's handler.
    async fn take(&self, body: &[u8], parts: &request::Parts) -> Response {
        let mut message: ClientJsonRpcMessage = match serde_json::from_slice(body) {
            Ok(message) => message,
            Err(error) => {
                let (id, error) = refusal(body, &error);
                return json_rpc_error(StatusCode::BAD_REQUEST, id, error);
            }
        };
        match self.in_flight.admit(&message) {
            Ok(true) => {}
            Ok(false) => return StatusCode::ACCEPTED.into_response(),
            Err((id, error)) => {
                let refused = TxJsonRpcMessage::<RoleServer>::error(error, Some(id));
                return match self.outbox.send(refused).await {
                    Ok(()) => StatusCode::ACCEPTED.into_response(),
                    Err(_) => StatusCode::NOT_FOUND.into_response(),
                };
            }
        }
        message.insert_extension(parts.clone());
        match self.inbox.send(message).await {
            Ok(()) => (StatusCode::ACCEPTED, "Accepted").into_response(),
            Err(mpsc::error::SendError(message)) => {
                if let JsonRpcMessage::Request(request) = &message {
                    self.in_flight.end(&request.id);
                }
                (StatusCode::NOT_FOUND, "the session has ended: open /sse again").into_response()
            }
        }
    }
}
