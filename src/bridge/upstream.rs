//! The connection to one server: made when it is first needed, made again after it broke (not at once, if that fails), and
//! asked for its tools again when it says that they changed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as SyncMutex};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientConfig, ClientRequest,
    ContentBlock, Implementation, ListToolsRequest, PaginatedRequestParams, ProtocolVersion,
    RequestMetaObject, ServerResult, SubscriptionFilter,
};
use rmcp::service::ClientServiceExt;
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, NotificationContext, RunningService, ServiceError,
};
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError};
use rmcp::transport::{DynamicTransportError, StreamableHttpClientTransport};
use rmcp::{ClientHandler, RoleClient};
use serde_json::{Map, Value};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::child::ServerProcess;
use super::oauth::{Authorized, Tokens};
use super::pins::ToolStore;
use super::{BridgeError, Era, Server, Transport};
use crate::domain::lock;
use crate::telemetry::chain;

/// Pages of a list, and tools in all; a list that goes on is cut there.
const MAX_PAGES: usize = 1_000;
const MAX_TOOLS: usize = 20_000;
/// The first pause after a failed start; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long a server has to take a `server/discover` or `initialize` before the other is tried.
const FIRST_TRY: Duration = Duration::from_secs(8);

/// What a call came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Whether the tool says that it failed.
    pub is_error: bool,
    /// What it gave.
    pub content: Content,
    /// Bytes of it.
    pub bytes: u64,
}

/// What a tool gives back.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// A value, from its structured content.
    Value(Value),
    /// One text. Where it is JSON, the program reads it: numbers and the order of members stay as they came.
    Text(String),
    /// Anything else: blocks of content as MCP has them.
    Blocks(Vec<Value>),
}

/// The list of a server's tools as it came, and what was left out of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Listing {
    /// Counts listings; equal means the same list.
    pub(super) version: u64,
    pub(super) tools: Vec<Map<String, Value>>,
    pub(super) warnings: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) server: Server,
    environment: Arc<BTreeMap<String, String>>,
    state: Mutex<State>,
    permits: Semaphore,
    tokens: Option<Arc<Tokens>>,
    versions: AtomicU64,
    known: SyncMutex<Known>,
}

/// What can be said of a server without waiting for it.
#[derive(Debug, Default)]
struct Known {
    /// Its last list, and over which connection it came.
    listing: Option<(Arc<Listing>, Arc<Connection>)>,
    /// Whether it is being started, or asked again.
    is_asked: bool,
    /// Why its last start, or list, failed.
    failed: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Arc<Connection>>,
    listing: Option<Arc<Listing>>,
    failures: u32,
    not_before: Option<Instant>,
    why: String,
    /// What it was found to speak.
    era: Option<Era>,
}

/// A running server.
#[derive(Debug)]
struct Connection {
    client: SyncMutex<Option<RunningService<RoleClient, Handler>>>,
    peer: rmcp::Peer<RoleClient>,
    process: SyncMutex<Option<ServerProcess>>,
    changed: Arc<AtomicBool>,
}

/// What we do when a server speaks first: note that its tools changed. It gets no model, no files and no person to ask;
/// its capabilities say so.
#[derive(Debug, Clone)]
struct Handler {
    changed: Arc<AtomicBool>,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(
            ClientCapabilities::default(),
            Implementation::new("pathbox", env!("CARGO_PKG_VERSION")),
        )
        .with_protocol_version(ProtocolVersion::V_2025_11_25)
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changed.store(true, Ordering::Release);
    }
}

impl Upstream {
    pub(super) fn new(
        server: Server,
        environment: Arc<BTreeMap<String, String>>,
        store: Option<Arc<dyn ToolStore>>,
    ) -> Self {
        let permits = Semaphore::new(server.concurrency);
        let tokens = match &server.transport {
            Transport::Http { url, oauth: Some(oauth), .. } => {
                Some(Arc::new(Tokens::new(oauth.clone(), url.clone(), store)))
            }
            _ => None,
        };
        Self {
            server,
            environment,
            state: Mutex::default(),
            permits,
            tokens,
            versions: AtomicU64::new(1),
            known: SyncMutex::default(),
        }
    }

    /// Its tools, if it runs and has said nothing of a change.
    pub(super) fn at_hand(&self) -> Option<Arc<Listing>> {
        let known = lock(&self.known);
        let (listing, connection) = known.listing.as_ref()?;
        let is_stale = known.is_asked || connection.changed.load(Ordering::Acquire);
        (!is_stale && !connection.peer.is_transport_closed()).then(|| Arc::clone(listing))
    }

    /// Whether its last start, or list, failed.
    pub(super) fn has_failed(&self) -> bool {
        lock(&self.known).failed.is_some()
    }

    /// Its last list, while there may be another; else why there is none.
    pub(super) fn so_far(&self) -> Result<Arc<Listing>, BridgeError> {
        let known = lock(&self.known);
        known.listing.as_ref().map(|(listing, _)| Arc::clone(listing)).ok_or_else(|| BridgeError::Start {
            server: self.server.name.clone(),
            why: match &known.failed {
                Some(why) => why.clone(),
                None if known.is_asked => "it is still starting".to_owned(),
                None => "it is not started: name it in the code, or in `tools`".to_owned(),
            },
            retry_in: Duration::ZERO,
        })
    }

    /// The server's tools; of a running one that has said nothing of a change, those that it listed before.
    pub(super) async fn listing(&self, shutdown: &CancellationToken) -> Result<Arc<Listing>, BridgeError> {
        let mut state = self.state.lock().await;
        if let Some(listing) = self.at_hand() {
            return Ok(listing);
        }
        lock(&self.known).is_asked = true;
        let connection = self.connected(&mut state, shutdown).await.inspect_err(|_| {
            lock(&self.known).is_asked = false;
        })?;
        connection.changed.store(false, Ordering::Release);
        let list = tokio::time::timeout(self.server.start_timeout, list(&connection.peer));
        let listed = match list.await {
            Ok(Ok(listed)) => Ok(listed),
            Ok(Err(error)) => Err(self.hide(&connection.describe(&error).await)),
            Err(_) => {
                Err(format!("it did not list its tools within {} s", self.server.start_timeout.as_secs()))
            }
        };
        match listed {
            Ok(mut listing) => {
                listing.version = self.versions.fetch_add(1, Ordering::Relaxed);
                for warning in &mut listing.warnings {
                    *warning = self.hide(warning);
                    tracing::warn!(tool.server = %self.server.name, "{warning}");
                }
                let listing = Arc::new(listing);
                state.listing = Some(Arc::clone(&listing));
                let known = Some((Arc::clone(&listing), connection));
                *lock(&self.known) = Known { listing: known, ..Known::default() };
                Ok(listing)
            }
            Err(why) => {
                if let Some(connection) = state.connection.take() {
                    tokio::spawn(async move { connection.end().await });
                }
                Err(self.failed(&mut state, why))
            }
        }
    }

    pub(super) async fn call(
        &self,
        tool: &str,
        arguments: Map<String, Value>,
        meta: Map<String, Value>,
        deadline: Instant,
        shutdown: &CancellationToken,
    ) -> Result<Answer, BridgeError> {
        let began = Instant::now();
        let deadline = deadline.min(began + self.server.timeout);
        let timed_out = || BridgeError::TimedOut { server: self.server.name.clone(), after: began.elapsed() };
        let work = async {
            let connection = {
                let mut state = self.state.lock().await;
                self.connected(&mut state, shutdown).await?
            };
            let _permit = self.permits.acquire().await.map_err(|_| self.broken("it was closed"))?;
            let mut params = CallToolRequestParams::new(tool.to_owned());
            params.arguments = Some(arguments);
            params.meta = Some(RequestMetaObject(rmcp::model::MetaObject(meta)));
            // Dropping the future, at the deadline or because the run was cancelled, sends the cancellation.
            let answer = connection.peer.call_tool_once(params).await;
            match answer {
                Ok(CallToolResponse::Complete(result)) => Ok(Answer::of(result)),
                Ok(CallToolResponse::InputRequired(_)) => {
                    Err(BridgeError::Asks { server: self.server.name.clone(), what: "input of a person" })
                }
                // A task, or what a later version brings: none of it was offered.
                Ok(_) => {
                    Err(BridgeError::Asks { server: self.server.name.clone(), what: "a task to be followed" })
                }
                Err(ServiceError::McpError(error)) => {
                    Err(BridgeError::Refused { message: self.hide(&error.message) })
                }
                Err(error) => Err(self.broken(&connection.describe(&error).await)),
            }
        };
        tokio::time::timeout_at(deadline, work).await.unwrap_or_else(|_| Err(timed_out()))
    }

    pub(super) async fn close(&self) {
        self.permits.close();
        let connection = self.state.lock().await.connection.take();
        if let Some(connection) = connection {
            connection.end().await;
        }
    }

    /// The connection; a new one if none works.
    async fn connected(
        &self,
        state: &mut State,
        shutdown: &CancellationToken,
    ) -> Result<Arc<Connection>, BridgeError> {
        if let Some(connection) = &state.connection {
            if !connection.peer.is_transport_closed() {
                return Ok(Arc::clone(connection));
            }
            if let Some(connection) = state.connection.take() {
                tracing::warn!(tool.server = %self.server.name, "a tool server ended and is started again");
                tokio::spawn(async move { connection.end().await });
            }
            state.listing = None;
        }
        let rest = state.not_before.and_then(|at| at.checked_duration_since(Instant::now()));
        if let Some(retry_in) = rest.filter(|rest| !rest.is_zero()) {
            return Err(BridgeError::Start {
                server: self.server.name.clone(),
                why: state.why.clone(),
                retry_in,
            });
        }
        let starting = tokio::time::timeout(self.server.start_timeout, self.start(state.era));
        let started = tokio::select! {
            started = starting => started.unwrap_or_else(|_| {
                Err(format!("it did not answer within {} s", self.server.start_timeout.as_secs()))
            }),
            () = shutdown.cancelled() => Err("this server is shutting down".to_owned()),
        };
        match started {
            Ok((connection, era)) => {
                let connection = Arc::new(connection);
                (state.failures, state.not_before, state.era) = (0, None, Some(era));
                state.connection = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(why) => Err(self.failed(state, why)),
        }
    }

    fn failed(&self, state: &mut State, why: String) -> BridgeError {
        let pause = FIRST_PAUSE.saturating_mul(1 << state.failures.min(10)).min(LONGEST_PAUSE);
        state.failures += 1;
        state.not_before = Some(Instant::now() + pause);
        state.listing = None;
        state.why.clone_from(&why);
        *lock(&self.known) = Known { failed: Some(why.clone()), ..Known::default() };
        tracing::warn!(tool.server = %self.server.name, "a tool server could not be started: {why}");
        BridgeError::Start { server: self.server.name.clone(), why, retry_in: pause }
    }

    async fn start(&self, known: Option<Era>) -> Result<(Connection, Era), String> {
        let eras: &[Era] = match known.unwrap_or(self.server.era) {
            Era::Auto => &[Era::Handshake, Era::Stateless],
            Era::Handshake => &[Era::Handshake],
            Era::Stateless => &[Era::Stateless],
        };
        let mut why = Vec::new();
        for era in eras {
            let trying = self.open(*era);
            let tried = match eras.len() {
                1 => trying.await,
                _ => tokio::time::timeout(FIRST_TRY.max(self.server.start_timeout / 2), trying)
                    .await
                    .unwrap_or_else(|_| Err("it did not answer".to_owned())),
            };
            match tried {
                Ok(connection) => return Ok((connection, *era)),
                Err(problem) => why.push(problem),
            }
        }
        why.dedup();
        let mut why = why.join("; then, as 2026-07-28 has it: ");
        if matches!(&self.server.transport, Transport::Http { url, .. } if url.trim_end_matches('/').ends_with("/sse"))
        {
            why.push_str(
                ". The address looks like the old HTTP+SSE transport, which is not supported here: use the server's Streamable \
                 HTTP address (often /mcp), or a proxy of that transport as `command`",
            );
        }
        Err(self.hide(&why))
    }

    async fn open(&self, era: Era) -> Result<Connection, String> {
        let mode = match era {
            Era::Stateless => {
                ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
            }
            Era::Auto | Era::Handshake => ClientLifecycleMode::Initialize,
        };
        let changed = Arc::new(AtomicBool::new(false));
        let handler = Handler { changed: Arc::clone(&changed) };
        let (client, process) = match &self.server.transport {
            Transport::Stdio { command, args, env, cwd } => {
                let (mut process, pipes) =
                    ServerProcess::start(command, args, env, cwd.as_deref(), &self.environment)
                        .map_err(|error| format!("the program {command:?} could not be started ({error})"))?;
                match apart(handler.serve_with_lifecycle(pipes, mode)).await? {
                    Ok(client) => (client, Some(process)),
                    Err(error) => {
                        // What it wrote on its way out arrives a moment later than its end.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        return Err(format!("{} ({})", refusal(&error), process.complaint()));
                    }
                }
            }
            Transport::Http { url, headers, .. } => {
                let transport = http(url, headers, self.tokens.clone())?;
                let client = apart(handler.serve_with_lifecycle(transport, mode)).await?;
                (client.map_err(|error| refusal(&error))?, None)
            }
        };
        let peer = client.peer().clone();
        if era == Era::Stateless {
            tokio::spawn(follow_changes(peer.clone(), Arc::clone(&changed)));
        }
        Ok(Connection {
            client: SyncMutex::new(Some(client)),
            peer,
            process: SyncMutex::new(process),
            changed,
        })
    }

    fn broken(&self, why: &str) -> BridgeError {
        BridgeError::Broken { server: self.server.name.clone(), why: self.hide(why) }
    }

    /// A text of the server without the secrets that it was given.
    fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        let granted = self.tokens.as_ref().map(|tokens| tokens.secrets()).unwrap_or_default();
        for secret in self.server.secrets().chain(&granted) {
            let parts = std::iter::once(secret.expose()).chain(secret.expose().split_whitespace());
            for part in parts.filter(|part| part.len() >= 6) {
                text = text.replace(part, "[secret]");
            }
        }
        text
    }
}

impl Connection {
    /// What an error of rmcp's means, with what the process said. Its end is known, and its last lines are read, a moment after
    /// its pipe broke.
    async fn describe(&self, error: &ServiceError) -> String {
        match error {
            ServiceError::TransportClosed | ServiceError::Cancelled { .. } => {}
            ServiceError::TransportSend(error) => return carried(error),
            other => return other.to_string(),
        }
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(25)).await;
            match lock(&self.process).as_mut() {
                Some(process) => {
                    if process.is_over() {
                        break;
                    }
                }
                None => break,
            }
        }
        match lock(&self.process).as_mut() {
            Some(process) => process.complaint(),
            None => error.to_string(),
        }
    }

    async fn end(&self) {
        let client = lock(&self.client).take();
        let process = lock(&self.process).take();
        if let Some(mut client) = client {
            drop(client.close_with_timeout(Duration::from_secs(1)).await);
        }
        if let Some(process) = process {
            process.end().await;
        }
    }
}

/// Does work in a task of its own: what it spawns would else keep the first caller's span open for as long as the
/// connection lasts.
async fn apart<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T, String> {
    AbortOnDropHandle::new(tokio::spawn(work)).await.map_err(|error| error.to_string())
}

/// The stream on which a server of 2026-07-28 tells that its tools changed. Without it no change is noticed.
async fn follow_changes(peer: rmcp::Peer<RoleClient>, changed: Arc<AtomicBool>) {
    let mut filter = SubscriptionFilter::default();
    filter.tools_list_changed = Some(true);
    let Ok(mut changes) = peer.listen(filter).await else { return };
    while let Ok(Some(_)) = changes.next().await {
        changed.store(true, Ordering::Release);
    }
    // What was missed since is not known.
    changed.store(true, Ordering::Release);
}

fn refusal(error: &ClientInitializeError) -> String {
    if error.is_authorization_required() {
        return "it requires authorization: set its token in `headers`, or `oauth` to obtain one".to_owned();
    }
    match error {
        ClientInitializeError::TransportError { error, .. } => carried(error),
        other => chain(other),
    }
}

/// Why nothing was carried, without the names of types and the address, which are for the log and the settings.
fn carried(error: &DynamicTransportError) -> String {
    match error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::Client(error)) => {
            std::error::Error::source(error).map_or_else(|| chain(error), chain)
        }
        _ => chain(error.error.as_ref()),
    }
}

fn http(
    url: &str,
    headers: &BTreeMap<String, crate::wire::Secret>,
    tokens: Option<Arc<Tokens>>,
) -> Result<StreamableHttpClientTransport<Authorized>, String> {
    // Fails when one is installed already, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .connect_timeout(Duration::from_secs(10))
        .tcp_nodelay(true)
        // A redirect would carry the credentials to wherever it points.
        .redirect(reqwest::redirect::Policy::none())
        .user_agent(concat!("pathbox/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| format!("no HTTP client: {error}"))?;
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    let mut custom = std::collections::HashMap::new();
    for (name, value) in headers {
        let name = http::HeaderName::try_from(name.as_str())
            .map_err(|_| format!("{name:?} is not a header name"))?;
        let mut value = http::HeaderValue::try_from(value.expose())
            .map_err(|_| format!("the value of the header {name} holds what a header cannot"))?;
        value.set_sensitive(true);
        custom.insert(name, value);
    }
    config.custom_headers = custom;
    Ok(StreamableHttpClientTransport::with_client(Authorized { http: client, tokens }, config))
}

/// Asks for all pages and reads them tool by tool. The result arrives raw where rmcp cannot read it whole.
async fn list(peer: &rmcp::Peer<RoleClient>) -> Result<Listing, ServiceError> {
    let mut listing = Listing::default();
    let mut cursor: Option<String> = None;
    for page in 0.. {
        let params = PaginatedRequestParams::default().with_cursor(cursor.clone());
        let request = ClientRequest::ListToolsRequest(ListToolsRequest {
            method: Default::default(),
            params: Some(params),
            extensions: Default::default(),
        });
        let raw = match peer.send_request(request).await? {
            ServerResult::ListToolsResult(result) => serde_json::to_value(result).unwrap_or_default(),
            ServerResult::CustomResult(result) => result.0,
            _ => return Err(ServiceError::UnexpectedResponse),
        };
        let Some(tools) = raw.get("tools").and_then(Value::as_array) else {
            return Err(ServiceError::UnexpectedResponse);
        };
        for tool in tools {
            match tool.as_object() {
                Some(tool) => listing.tools.push(tool.clone()),
                None => {
                    listing.warnings.push("a tool of its list is not an object and was left out".to_owned())
                }
            }
        }
        let next = raw.get("nextCursor").and_then(Value::as_str).filter(|next| !next.is_empty());
        match next {
            None => break,
            Some(next) if cursor.as_deref() == Some(next) => {
                listing.warnings.push("its list repeats a page and was cut there".to_owned());
                break;
            }
            Some(_) if page + 1 >= MAX_PAGES || listing.tools.len() >= MAX_TOOLS => {
                listing.warnings.push(format!("its list was cut after {} tools", listing.tools.len()));
                break;
            }
            Some(next) => cursor = Some(next.to_owned()),
        }
    }
    if listing.tools.len() > MAX_TOOLS {
        listing.tools.truncate(MAX_TOOLS);
        listing.warnings.push(format!("its list was cut after {MAX_TOOLS} tools"));
    }
    Ok(listing)
}

impl Answer {
    fn of(result: CallToolResult) -> Self {
        let is_error = result.is_error == Some(true);
        let text = |block: &ContentBlock| block.as_text().map(|text| text.text.clone());
        let content = match (result.structured_content, result.content.as_slice()) {
            // The text of a failure is for the reader.
            (Some(value), _) if !is_error => Content::Value(value),
            (_, [block]) if text(block).is_some() => Content::Text(text(block).unwrap_or_default()),
            (Some(value), []) => Content::Value(value),
            (_, blocks)
                if !blocks.is_empty() && blocks.iter().all(|block| text(block).is_some()) && is_error =>
            {
                Content::Text(blocks.iter().filter_map(text).collect::<Vec<_>>().join("\n"))
            }
            (_, blocks) => {
                Content::Blocks(blocks.iter().filter_map(|block| serde_json::to_value(block).ok()).collect())
            }
        };
        let bytes = match &content {
            Content::Value(value) => value.to_string().len(),
            Content::Text(text) => text.len(),
            Content::Blocks(blocks) => blocks.iter().map(|block| block.to_string().len()).sum(),
        };
        Self { is_error, content, bytes: bytes as u64 }
    }
}
