//! Sessions of the protocol revisions that have them (2025-03-26 to 2025-11-25), with streams that can be resumed.
//!
//! rmcp brings a manager of its own; this one differs where clients got hurt. Each request's answers go to a log, and
//! anyone who reads the HTTP stream follows it: a slow reader blocks no one, a result that was ready while the client was
//! away is still there, and a resumed stream goes on strictly after the event that the client names, in its own session
//! only. A session with a call in flight is never idle, and one that was put away is opened again from its own id.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::Stream;
use futures::stream;
use rmcp::RoleServer;
use rmcp::model::{
    CancelledNotificationParam, ClientJsonRpcMessage, ClientNotification, ErrorData, GetExtensions, GetMeta,
    InitializeRequestParams, JsonRpcMessage, Notification, ProgressToken, ProtocolVersion, RequestId,
    ServerJsonRpcMessage, ServerNotification,
};
use rmcp::service::OriginatingRequestId;
use rmcp::transport::Transport;
use rmcp::transport::streamable_http_server::session::{
    RestoreOutcome, ServerSseMessage, SessionId, SessionManager, SessionState, SessionStore,
    SessionStoreError,
};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::shared::{self, Key, SessionEvent, Shared};
use super::ticket::{Ticket, Tickets};
use crate::domain::lock;
use crate::mcp::transport::chats::{self, Chat, Other, Sign};

/// Requests that one session may have in flight.
const MAX_IN_FLIGHT: usize = 128;
/// Events that a log holds; beyond them the oldest progress goes first.
const MAX_EVENTS: usize = 256;
/// Progress that no one has read yet; beyond it new progress is left out.
const MAX_UNREAD_PROGRESS: usize = 64;
/// How long an answered request's log can be resumed.
const KEEP_ANSWERED: Duration = Duration::from_secs(60);
/// Bytes of answers that one session keeps for resumption.
const MAX_ANSWERED_BYTES: usize = 4 * 1024 * 1024;
/// Bytes of answers that all sessions together keep.
const MAX_ALL_ANSWERED_BYTES: usize = 128 * 1024 * 1024;
/// How long a client is asked to wait before it reconnects.
const RETRY: Duration = Duration::from_secs(1);
/// Ended sessions that are remembered so that they are not opened again from their ids.
const MAX_ENDED: usize = 10_000;

tokio::task_local! {
    /// Who opens a session, while `initialize` is served: rmcp asks for a session without saying for whom.
    pub(super) static OPENING: Opening;
}

/// Who opens a session and how.
#[derive(Debug, Clone)]
pub(super) struct Opening {
    pub(super) owner: String,
    pub(super) initialize: InitializeRequestParams,
}

/// Why a session cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error("unknown session")]
    Unknown,
    #[error("too many sessions")]
    Full,
    #[error("the event to resume after is unknown")]
    UnknownEvent,
}

/// The sessions of this process. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Sessions(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tickets: Tickets,
    shared: Shared,
    max: usize,
    idle: Duration,
    live: Mutex<HashMap<SessionId, Arc<Session>>>,
    ended: Mutex<Ended>,
    answered_bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Ended {
    ids: HashSet<SessionId>,
    order: VecDeque<SessionId>,
}

impl Sessions {
    pub(super) fn new(tickets: Tickets, shared: Shared, max: usize, idle: Duration) -> Self {
        Self(Arc::new(Inner {
            tickets,
            shared,
            max,
            idle,
            live: Mutex::default(),
            ended: Mutex::default(),
            answered_bytes: Arc::default(),
        }))
    }

    /// The principal that opened the session of this id, whether it is in memory or not; none when it has ended.
    pub(super) async fn owner(&self, id: &str) -> Option<String> {
        if let Some(session) = lock(&self.0.live).get(id) {
            return Some(session.owner.clone());
        }
        if lock(&self.0.ended).ids.contains(id) {
            return None;
        }
        let owner = self.0.tickets.read(id)?.owner;
        // It is new to this replica.
        match self.0.shared.of(id).await.has_ended {
            true => None,
            false => Some(owner),
        }
    }

    /// Applies what other replicas recorded.
    pub(super) async fn apply(&self, events: Vec<(Key, SessionEvent)>) {
        if events.is_empty() {
            return;
        }
        let live: HashMap<Key, SessionId> =
            lock(&self.0.live).keys().map(|id| (shared::key(id), Arc::clone(id))).collect();
        for (session, event) in events {
            let Some(id) = live.get(&session) else { continue };
            match event {
                SessionEvent::Ended => {
                    drop(self.close_session(id).await);
                    self.remember_end(id);
                }
                SessionEvent::Cancelled(request) if self.is_running(id, &request) => {
                    let cancelled = CancelledNotificationParam::new(Some(request), None);
                    let notification =
                        ClientNotification::CancelledNotification(Notification::new(cancelled));
                    let message = JsonRpcMessage::notification(notification);
                    drop(self.accept_message(id, message).await);
                }
                SessionEvent::Cancelled(_) => {}
            }
        }
    }

    fn is_running(&self, id: &str, request: &RequestId) -> bool {
        let session = lock(&self.0.live).get(id).cloned();
        session.is_some_and(|session| lock(&session.state).requests.contains_key(request))
    }

    fn remember_end(&self, id: &str) {
        let mut ended = lock(&self.0.ended);
        let id: SessionId = id.into();
        if ended.ids.insert(Arc::clone(&id)) {
            ended.order.push_back(id);
        }
        if ended.order.len() > MAX_ENDED
            && let Some(oldest) = ended.order.pop_front()
        {
            ended.ids.remove(&oldest);
        }
    }

    /// Whether one more session can be opened.
    pub(super) fn has_room(&self) -> bool {
        let live = lock(&self.0.live);
        live.len() < self.0.max || live.values().any(|session| session.is_idle(Duration::ZERO))
    }

    /// The protocol revision of the session of this id.
    pub(super) fn protocol(&self, id: &str) -> Option<ProtocolVersion> {
        if let Some(session) = lock(&self.0.live).get(id) {
            return Some(session.protocol.clone());
        }
        self.0.tickets.read(id).map(|ticket| ticket.initialize.protocol_version)
    }

    /// What a session is to its client, after this message of it.
    pub(super) async fn chat(&self, id: &str, message: &[u8]) -> Chat {
        let session = lock(&self.0.live).get(id).cloned();
        let decided = session.as_ref().and_then(|session| lock(&session.state).chat);
        if decided == Some(Chat::Own) {
            return Chat::Own;
        }
        let sign = chats::sign(message);
        if let (Some(session), Some(Sign::Calls)) = (&session, sign) {
            lock(&session.state).calls += 1;
        }
        if let Some(chat) = decided {
            return chat;
        }
        let Some(sign) = sign else {
            return self.0.shared.of(id).await.chat.unwrap_or(Chat::Own);
        };
        let owner = session.as_ref().map(|session| session.owner.clone());
        let others: Vec<Arc<Session>> = {
            let live = lock(&self.0.live);
            let others =
                live.iter().filter(|(other, it)| ***other != *id && Some(&it.owner) == owner.as_ref());
            others.map(|(_, session)| Arc::clone(session)).collect()
        };
        let found = chats::decide(sign, others.iter().map(|other| other.as_other()));
        let chat = self.0.shared.decide(id, sign, found).await;
        if let Some(session) = session {
            lock(&session.state).chat = Some(chat);
        }
        chat
    }

    /// Whether a stream can be resumed after this event.
    pub(super) fn can_resume(&self, id: &str, event: &str) -> bool {
        let Some(session) = lock(&self.0.live).get(id).cloned() else { return false };
        session.log_of(event).is_some()
    }

    /// Sessions in memory.
    pub(super) fn len(&self) -> usize {
        lock(&self.0.live).len()
    }

    /// Puts idle sessions away and lets old answers go. To be called now and then.
    pub(super) fn sweep(&self) {
        let mut live = lock(&self.0.live);
        live.retain(|_, session| {
            lock(&session.state).let_old_answers_go(&self.0.answered_bytes);
            let idle = session.is_idle(self.0.idle);
            if idle {
                session.close();
            }
            !idle
        });
        if live.capacity() > 4 * live.len() + 64 {
            live.shrink_to_fit();
        }
    }

    fn get(&self, id: &SessionId) -> Result<Arc<Session>, SessionError> {
        let session = lock(&self.0.live).get(id).cloned().ok_or(SessionError::Unknown)?;
        lock(&session.state).last_used = Instant::now();
        Ok(session)
    }

    fn log(&self) -> Arc<Log> {
        Arc::new(Log { name: self.0.tickets.stream_name(), events: Mutex::default(), more: Notify::new() })
    }

    fn open(
        &self,
        id: SessionId,
        owner: String,
        protocol: &ProtocolVersion,
    ) -> Result<SessionTransport, SessionError> {
        let mut live = lock(&self.0.live);
        if live.len() >= self.0.max {
            let idlest = live
                .iter()
                .filter(|(_, session)| session.is_idle(Duration::ZERO))
                .min_by_key(|(_, session)| lock(&session.state).last_used)
                .map(|(id, _)| Arc::clone(id))
                .ok_or(SessionError::Full)?;
            if let Some(session) = live.remove(&idlest) {
                session.close();
            }
        }
        let (sender, inbox) = mpsc::channel(16);
        let session = Arc::new(Session {
            owner,
            protocol: protocol.clone(),
            inbox: Mutex::new(Some(sender)),
            answered_bytes: Arc::clone(&self.0.answered_bytes),
            common: self.log(),
            state: Mutex::new(State {
                first: None,
                next: 1,
                logs: HashMap::new(),
                requests: HashMap::new(),
                tokens: HashMap::new(),
                answered: VecDeque::new(),
                last_used: Instant::now(),
                chat: None,
                calls: 0,
            }),
        });
        live.insert(id, Arc::clone(&session));
        Ok(SessionTransport { session, inbox })
    }
}

/// One client's session.
#[derive(Debug)]
struct Session {
    owner: String,
    protocol: ProtocolVersion,
    inbox: Mutex<Option<mpsc::Sender<ClientJsonRpcMessage>>>,
    answered_bytes: Arc<AtomicUsize>,
    /// What belongs to no request.
    common: Arc<Log>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Who waits for the answer to `initialize`.
    first: Option<oneshot::Sender<ServerJsonRpcMessage>>,
    next: u64,
    logs: HashMap<u64, Arc<Log>>,
    /// Requests in flight and where their answers go.
    requests: HashMap<RequestId, u64>,
    tokens: HashMap<ProgressToken, u64>,
    /// Answered requests' logs, oldest first, with when and how large.
    answered: VecDeque<(u64, Instant, usize)>,
    last_used: Instant,
    /// What the session is to its client, once that can be said.
    chat: Option<Chat>,
    /// Calls of tools.
    calls: u64,
}

impl State {
    fn answer_ended(&mut self, id: &RequestId, bytes: usize, all: &AtomicUsize) {
        let Some(number) = self.requests.remove(id) else { return };
        self.tokens.retain(|_, stream| *stream != number);
        self.answered.push_back((number, Instant::now(), bytes));
        all.fetch_add(bytes, Ordering::Relaxed);
        self.let_old_answers_go(all);
    }

    fn let_old_answers_go(&mut self, all: &AtomicUsize) {
        let mut kept: usize = self.answered.iter().map(|(_, _, bytes)| bytes).sum();
        while let Some((number, at, bytes)) = self.answered.front().copied() {
            let crowded = kept > MAX_ANSWERED_BYTES || all.load(Ordering::Relaxed) > MAX_ALL_ANSWERED_BYTES;
            if !crowded && at.elapsed() < KEEP_ANSWERED {
                return;
            }
            // Anyone who still reads it holds it; it can only not be resumed any more.
            self.answered.pop_front();
            self.logs.remove(&number);
            kept -= bytes;
            all.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let kept = lock(&self.state).answered.iter().map(|(_, _, bytes)| bytes).sum();
        self.answered_bytes.fetch_sub(kept, Ordering::Relaxed);
    }
}

impl Session {
    fn as_other(&self) -> Other {
        let state = lock(&self.state);
        Other {
            chat: state.chat,
            is_running: !state.requests.is_empty(),
            calls: state.calls,
            unused_for: state.last_used.elapsed(),
        }
    }

    fn is_idle(&self, patience: Duration) -> bool {
        let state = lock(&self.state);
        state.requests.is_empty()
            && state.first.is_none()
            && state.last_used.elapsed() >= patience
            && !self.common.is_read()
            && state.logs.values().all(|log| !log.is_read())
    }

    /// Ends the session: its handler sees the end of input, its readers the end of their streams.
    fn close(&self) {
        lock(&self.inbox).take();
        self.common.end();
        lock(&self.state).logs.values().for_each(|log| log.end());
    }

    async fn push(&self, message: ClientJsonRpcMessage) -> Result<(), SessionError> {
        let sender = lock(&self.inbox).clone().ok_or(SessionError::Unknown)?;
        sender.send(message).await.map_err(|_| SessionError::Unknown)
    }

    /// The log that an event id names and the number of the event. Logs have names of their own, so an event of another
    /// replica or of the time before a restart names none.
    fn log_of(&self, event: &str) -> Option<(u64, Arc<Log>, u64)> {
        let (name, event) = event.split_once('-')?;
        let event: u64 = event.parse().ok()?;
        let (stream, log) = match name == self.common.name {
            true => (0, Arc::clone(&self.common)),
            false => {
                let state = lock(&self.state);
                let (stream, log) = state.logs.iter().find(|(_, log)| log.name == name)?;
                (*stream, Arc::clone(log))
            }
        };
        let known = event < lock(&log.events).next;
        known.then_some((stream, log, event))
    }

    /// Where a message of the server belongs.
    fn route(&self, message: ServerJsonRpcMessage) {
        let mut state = lock(&self.state);
        if matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_))
            && let Some(first) = state.first.take()
        {
            drop(first.send(message));
            return;
        }
        let (stream, answered) = match &message {
            JsonRpcMessage::Response(response) => {
                (state.requests.get(&response.id), Some(response.id.clone()))
            }
            JsonRpcMessage::Error(error) => {
                (error.id.as_ref().and_then(|id| state.requests.get(id)), error.id.clone())
            }
            JsonRpcMessage::Request(request) => {
                let origin = request.request.extensions().get::<OriginatingRequestId>();
                (origin.and_then(|origin| state.requests.get(&origin.0)), None)
            }
            JsonRpcMessage::Notification(notification) => match &notification.notification {
                ServerNotification::ProgressNotification(progress) => {
                    // Progress of a request that has been answered is dropped: clients fall over it.
                    let Some(stream) = state.tokens.get(&progress.params.progress_token) else { return };
                    (Some(stream), None)
                }
                _ => (None, None),
            },
        };
        let log = stream.and_then(|number| state.logs.get(number)).cloned();
        match (log, answered) {
            // The request was cancelled or is long answered.
            (None, Some(_)) => {}
            (Some(log), Some(id)) => {
                let bytes = size(&message);
                log.push(message, false);
                log.end();
                state.answer_ended(&id, bytes, &self.answered_bytes);
            }
            (log, None) => {
                let may_be_left_out = matches!(&message, JsonRpcMessage::Notification(_));
                log.as_ref().unwrap_or(&self.common).push(message, may_be_left_out);
            }
        }
    }
}

/// The length of a message as JSON.
fn size(message: &ServerJsonRpcMessage) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    drop(serde_json::to_writer(&mut count, message));
    count.0
}

/// What was said on one stream. Written without waiting, followed by anyone who reads.
#[derive(Debug)]
struct Log {
    /// Random: no other log of any replica has it, and event ids begin with it.
    name: String,
    events: Mutex<Events>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Events {
    /// Number, message (none in a priming event), and whether it may be left out.
    list: VecDeque<(u64, Option<Arc<ServerJsonRpcMessage>>, bool)>,
    next: u64,
    /// The first event that no reader has taken.
    unread: u64,
    ended: bool,
    /// The newest reader; earlier ones get nothing more.
    reader: u64,
    readers: usize,
}

impl Log {
    fn push(&self, message: ServerJsonRpcMessage, may_be_left_out: bool) {
        self.add(Some(Arc::new(message)), may_be_left_out);
    }

    fn add(&self, message: Option<Arc<ServerJsonRpcMessage>>, may_be_left_out: bool) {
        let mut events = lock(&self.events);
        let unread = events.next - events.unread;
        if events.ended || (may_be_left_out && unread >= MAX_UNREAD_PROGRESS as u64) {
            return;
        }
        let number = events.next;
        events.next += 1;
        events.list.push_back((number, message, may_be_left_out));
        if events.list.len() > MAX_EVENTS {
            let oldest = events.list.iter().position(|(_, _, may_go)| *may_go).unwrap_or(0);
            events.list.remove(oldest);
        }
        drop(events);
        self.more.notify_waiters();
    }

    fn end(&self) {
        lock(&self.events).ended = true;
        self.more.notify_waiters();
    }

    fn is_read(&self) -> bool {
        lock(&self.events).readers > 0
    }

    /// Follows the log to its end, from the event after `last`, or from the first one that no one has read.
    fn follow(
        self: Arc<Self>,
        number: u64,
        last: Option<u64>,
    ) -> impl Stream<Item = ServerSseMessage> + Send + Sync {
        let mut events = lock(&self.events);
        events.reader += 1;
        events.readers += 1;
        let reader = Reader {
            number,
            me: events.reader,
            at: last.map_or(events.unread, |last| last + 1),
            log: Arc::clone(&self),
        };
        drop(events);
        stream::unfold(reader, async |mut reader| {
            let event = reader.next().await?;
            Some((event, reader))
        })
    }
}

struct Reader {
    log: Arc<Log>,
    number: u64,
    me: u64,
    at: u64,
}

impl Drop for Reader {
    fn drop(&mut self) {
        lock(&self.log.events).readers -= 1;
    }
}

impl Reader {
    async fn next(&mut self) -> Option<ServerSseMessage> {
        let log = Arc::clone(&self.log);
        loop {
            let more = log.more.notified();
            tokio::pin!(more);
            more.as_mut().enable();
            {
                let mut events = lock(&log.events);
                // A newer reader has taken over, and nothing is delivered twice. A request's stream ends then; the one
                // that belongs to no request stays open and silent, or two readers would push each other out forever.
                let superseded = events.reader != self.me;
                if superseded && self.number != 0 {
                    return None;
                }
                let found = events.list.iter().find(|(number, _, _)| *number >= self.at && !superseded);
                if let Some((number, message, _)) = found {
                    let mut event = ServerSseMessage::default();
                    event.event_id = Some(format!("{}-{number}", log.name));
                    event.message = message.clone();
                    event.retry = message.is_none().then_some(RETRY);
                    self.at = number + 1;
                    events.unread = events.unread.max(self.at);
                    return Some(event);
                }
                if events.ended {
                    return None;
                }
            }
            more.await;
        }
    }
}

/// The handler's end of a session.
#[derive(Debug)]
pub(super) struct SessionTransport {
    session: Arc<Session>,
    inbox: mpsc::Receiver<ClientJsonRpcMessage>,
}

impl Transport<RoleServer> for SessionTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.session.route(message);
        std::future::ready(Ok(()))
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        self.inbox.recv().await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.session.close();
        Ok(())
    }
}

impl SessionManager for Sessions {
    type Error = SessionError;
    type Transport = SessionTransport;

    async fn create_session(&self) -> Result<(SessionId, SessionTransport), SessionError> {
        let opening = OPENING.try_with(Clone::clone).map_err(|_| SessionError::Unknown)?;
        let id: SessionId = self.0.tickets.write(&opening.owner, &opening.initialize).into();
        let transport = self.open(Arc::clone(&id), opening.owner, &opening.initialize.protocol_version)?;
        Ok((id, transport))
    }

    async fn restore_session(&self, id: SessionId) -> Result<RestoreOutcome<SessionTransport>, SessionError> {
        if lock(&self.0.live).contains_key(&id) {
            return Ok(RestoreOutcome::AlreadyPresent);
        }
        let Ticket { owner, initialize, .. } = self.0.tickets.read(&id).ok_or(SessionError::Unknown)?;
        Ok(RestoreOutcome::Restored(self.open(id, owner, &initialize.protocol_version)?))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, SessionError> {
        let session = self.get(id)?;
        let (sender, answer) = oneshot::channel();
        lock(&session.state).first = Some(sender);
        session.push(message).await?;
        answer.await.map_err(|_| SessionError::Unknown)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, SessionError> {
        Ok(lock(&self.0.live).contains_key(id))
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), SessionError> {
        let session = lock(&self.0.live).remove(id);
        if let Some(session) = session {
            session.close();
        }
        Ok(())
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionError> {
        let session = self.get(id)?;
        let JsonRpcMessage::Request(request) = &message else { return Err(SessionError::Unknown) };
        let log = self.log();
        let (number, refusal) = {
            let mut state = lock(&session.state);
            let refusal = if state.requests.contains_key(&request.id) {
                Some("a request with this id is still running")
            } else if state.requests.len() >= MAX_IN_FLIGHT {
                Some("too many requests of this session are running")
            } else {
                None
            };
            let number = state.next;
            state.next += 1;
            if refusal.is_none() {
                state.requests.insert(request.id.clone(), number);
                if let Some(token) = request.request.get_meta().get_progress_token() {
                    state.tokens.insert(token, number);
                }
                state.logs.insert(number, Arc::clone(&log));
            }
            (number, refusal)
        };
        if let Some(text) = refusal {
            log.push(
                ServerJsonRpcMessage::error(ErrorData::invalid_request(text, None), Some(request.id.clone())),
                false,
            );
            log.end();
            return Ok(log.follow(number, None));
        }
        // Older clients take an event without data for a broken message.
        if session.protocol >= ProtocolVersion::V_2025_11_25 {
            log.add(None, false);
        }
        session.push(message).await?;
        Ok(log.follow(number, None))
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), SessionError> {
        let session = self.get(id)?;
        if let JsonRpcMessage::Notification(notification) = &message
            && let ClientNotification::CancelledNotification(cancelled) = &notification.notification
            && let Some(request) = &cancelled.params.request_id
        {
            if !self.is_running(id, request) {
                self.0.shared.cancel(id, request).await;
            }
            // A cancelled request is not answered: its stream ends here and its id is free again.
            let mut state = lock(&session.state);
            if let Some(log) = state.requests.get(request).and_then(|number| state.logs.get(number)) {
                log.end();
            }
            state.answer_ended(request, 0, &self.0.answered_bytes);
        }
        session.push(message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionError> {
        Ok(Arc::clone(&self.get(id)?.common).follow(0, None))
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionError> {
        let session = self.get(id)?;
        let (number, log, last) = session.log_of(&last_event_id).ok_or(SessionError::UnknownEvent)?;
        Ok(log.follow(number, Some(last)))
    }
}

/// Sessions that are not in memory are opened again from their ids; ended ones are not.
#[async_trait::async_trait]
impl SessionStore for Sessions {
    async fn load(&self, id: &str) -> Result<Option<SessionState>, SessionStoreError> {
        if lock(&self.0.ended).ids.contains(id) {
            return Ok(None);
        }
        Ok(self.0.tickets.read(id).map(|ticket| SessionState::new(ticket.initialize)))
    }

    async fn store(&self, _id: &str, _state: &SessionState) -> Result<(), SessionStoreError> {
        Ok(())
    }

    async fn delete(&self, id: &str) -> Result<(), SessionStoreError> {
        self.remember_end(id);
        self.0.shared.end(id).await;
        Ok(())
    }
}
