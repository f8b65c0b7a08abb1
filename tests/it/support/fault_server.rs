//! A server that misbehaves on demand. It is a fake: for faults that a real provider does not produce when asked, and for
//! counting requests. What a healthy provider does is tested against the real local host.
//!
//! It speaks HTTP/1.1 on a bare socket, so that it can break what a proper server cannot: end a body early, never end it,
//! cut a character in two, or fall silent.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

// The path is spelled out because a benchmark includes this file from elsewhere.
#[path = "fault_server/healthy.rs"]
mod healthy;

use pathbox::domain::{Clock, Entropy};
use pathbox::e2b::{E2bClient, Endpoint, Options, RetryOptions, SandboxAccess};
use pathbox::wire::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A secret that must never be seen in an error, a log or a debug text.
pub(crate) const API_KEY: &str = "e2b_0123456789012345678901234567890123planted";
pub(crate) const ENVD_TOKEN: &str = "envd-token-planted";
pub(crate) const TRAFFIC_TOKEN: &str = "traffic-token-planted";
pub(crate) const SANDBOX_ID: &str = "i7c0q2m5x9d1k4w8t3r6u";

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// With the query, as on the wire.
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(crate) fn port(&self) -> Option<u16> {
        self.header("e2b-sandbox-port")?.parse().ok()
    }

    /// Method and path, as tests write them.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// What to do with the body.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// One chunk.
    Send(Vec<u8>),
    /// Silence.
    Wait(Duration),
    /// The same chunk for ever.
    Repeat(Vec<u8>, Duration),
    /// Silence until the client leaves.
    Hang,
    /// Close the connection without ending the body.
    Cut,
}

#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) steps: Vec<Step>,
}

impl Reply {
    pub(crate) fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), steps: Vec::new() }
    }

    pub(crate) fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) fn send(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.steps.push(Step::Send(bytes.into()));
        self
    }

    pub(crate) fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    pub(crate) fn json(status: u16, body: serde_json::Value) -> Self {
        Self::new(status).header("content-type", "application/json").send(body.to_string())
    }

    /// An error of the control plane.
    pub(crate) fn error(status: u16, message: &str) -> Self {
        Self::json(status, serde_json::json!({"code": status, "message": message}))
    }

    /// A whole answer to `/execute`.
    pub(crate) fn events(lines: &[&str]) -> Self {
        let mut reply = Self::new(200);
        for line in lines {
            reply = reply.send(format!("{line}\n"));
        }
        reply
    }

    pub(crate) fn sandbox_not_found() -> Self {
        Self::json(
            502,
            serde_json::json!({"sandboxId": SANDBOX_ID, "message": "The sandbox was not found", "code": 502}),
        )
    }

    pub(crate) fn port_not_open(port: u16) -> Self {
        let message = "The sandbox is running but port is not open";
        Self::json(
            502,
            serde_json::json!({"sandboxId": SANDBOX_ID, "message": message, "port": port, "code": 502}),
        )
    }

    /// No answer at all: the connection closes.
    pub(crate) fn nothing() -> Self {
        Self::new(0)
    }

    /// No answer at all: the connection stays open.
    pub(crate) fn silence() -> Self {
        Self::new(0).step(Step::Hang)
    }
}

pub(crate) const COUNT: &str = r#"{"type": "number_of_executions", "execution_count": 1}"#;
pub(crate) const KEEPALIVE: &str = r#"{"type": "keepalive"}"#;
pub(crate) const END: &str = r#"{"type": "end_of_execution"}"#;

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// The server; it ends with the test's runtime.
pub(crate) struct FaultServer {
    pub(crate) addr: SocketAddr,
    state: Arc<State>,
}

struct State {
    handler: Box<Handler>,
    requests: Mutex<Vec<Request>>,
    /// Paths of requests whose client left before the answer had ended.
    left: Mutex<Vec<String>>,
    connections: AtomicUsize,
}

impl FaultServer {
    pub(crate) async fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let state = Arc::new(State {
            handler: Box::new(handler),
            requests: Mutex::default(),
            left: Mutex::default(),
            connections: AtomicUsize::new(0),
        });
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let state = Arc::clone(&shared);
                tokio::spawn(async move {
                    let _ = serve(stream, &state).await;
                });
            }
        });
        Self { addr, state }
    }

    /// A server without faults, as far as a fake can be one: its interpreter knows the few programs of the contract suite
    /// by heart.
    pub(crate) async fn healthy() -> Self {
        let world = Mutex::new(healthy::World::default());
        Self::start(move |request| world.lock().unwrap().answer(request)).await
    }

    /// Always the same reply.
    pub(crate) async fn always(reply: Reply) -> Self {
        Self::start(move |_| reply.clone()).await
    }

    /// One reply after the other, the last one for ever.
    pub(crate) async fn sequence(replies: Vec<Reply>) -> Self {
        let next = AtomicUsize::new(0);
        Self::start(move |_| {
            let at = next.fetch_add(1, Ordering::SeqCst).min(replies.len() - 1);
            replies[at].clone()
        })
        .await
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::local(format!("http://{}", self.addr), Secret::new(API_KEY))
    }

    /// A client with short pauses.
    pub(crate) fn client(&self) -> E2bClient {
        self.client_with(|_| {})
    }

    pub(crate) fn client_with(&self, change: impl FnOnce(&mut Options)) -> E2bClient {
        let mut options = Options {
            endpoint: self.endpoint(),
            retry: RetryOptions {
                retries: 3,
                base: Duration::from_millis(2),
                max: Duration::from_millis(20),
            },
            request_timeout: Duration::from_secs(5),
            ..Options::default()
        };
        change(&mut options);
        E2bClient::new(options, Clock::system(), Entropy::seeded(1)).unwrap()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }

    /// The requests as `METHOD path`.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.requests().iter().map(Request::line).collect()
    }

    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// Waits until a client has left in the middle of an answer to `path`.
    pub(crate) async fn wait_for_leaving(&self, path: &str) {
        for _ in 0..500 {
            if self.state.left.lock().unwrap().iter().any(|left| left == path) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("nobody left {path}");
    }
}

/// A sandbox with every secret planted.
pub(crate) fn access() -> SandboxAccess {
    SandboxAccess {
        id: SANDBOX_ID.parse().unwrap(),
        domain: None,
        envd_token: Some(Secret::new(ENVD_TOKEN)),
        traffic_token: Some(Secret::new(TRAFFIC_TOKEN)),
        envd_version: None,
    }
}

/// Fails when any text that an error offers holds a planted secret, the sandbox's id or an address.
pub(crate) fn assert_tells_no_secret(error: &(dyn std::error::Error + 'static)) {
    let mut texts = vec![format!("{error:?}")];
    let mut next = Some(error);
    while let Some(error) = next {
        texts.push(error.to_string());
        next = error.source();
    }
    for text in &texts {
        for secret in [API_KEY, ENVD_TOKEN, TRAFFIC_TOKEN, "planted", SANDBOX_ID] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
    let shown = error.to_string();
    assert!(!shown.contains("127.0.0.1") && !shown.contains("http://"), "an address in {shown}");
}

async fn serve(mut stream: TcpStream, state: &State) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut buffer).await? {
        state.requests.lock().unwrap().push(request.clone());
        let reply = (state.handler)(&request);
        if !write_reply(&mut stream, &reply, &request, state).await? {
            return Ok(());
        }
    }
    Ok(())
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<Request>> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    buffer.drain(..head_end);
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut body = Vec::new();
    if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
        loop {
            let line = take_line(stream, buffer).await?;
            let size = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
            let chunk = take(stream, buffer, size + 2).await?;
            if size == 0 {
                break;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    } else if let Some(length) = headers.get("content-length").and_then(|length| length.parse().ok()) {
        body = take(stream, buffer, length).await?;
    }
    Ok(Some(Request { method: method.to_owned(), path: path.to_owned(), headers, body }))
}

async fn take(stream: &mut TcpStream, buffer: &mut Vec<u8>, length: usize) -> std::io::Result<Vec<u8>> {
    while buffer.len() < length {
        if stream.read_buf(buffer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(buffer.drain(..length).collect())
}

async fn take_line(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<String> {
    loop {
        if let Some(at) = buffer.windows(2).position(|two| two == b"\r\n") {
            let line = buffer.drain(..at + 2).collect::<Vec<_>>();
            return Ok(String::from_utf8_lossy(&line).into_owned());
        }
        if stream.read_buf(buffer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Whether the connection may serve another request.
async fn write_reply(
    stream: &mut TcpStream,
    reply: &Reply,
    request: &Request,
    state: &State,
) -> std::io::Result<bool> {
    if reply.status != 0 {
        let mut head = format!("HTTP/1.1 {} Whatever\r\n", reply.status);
        for (name, value) in &reply.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if reply.status != 204 {
            head.push_str("transfer-encoding: chunked\r\n");
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).await?;
    }
    let (mut reader, mut writer) = stream.split();
    for step in &reply.steps {
        match step {
            Step::Send(bytes) if bytes.is_empty() => {}
            Step::Send(bytes) => send_chunk(&mut writer, bytes).await?,
            Step::Cut => return Ok(false),
            Step::Wait(pause) => {
                if leaves_within(&mut reader, *pause).await {
                    state.left.lock().unwrap().push(request.path.clone());
                    return Ok(false);
                }
            }
            Step::Hang => {
                while !leaves_within(&mut reader, Duration::from_secs(1)).await {}
                state.left.lock().unwrap().push(request.path.clone());
                return Ok(false);
            }
            Step::Repeat(bytes, pause) => loop {
                if leaves_within(&mut reader, *pause).await || send_chunk(&mut writer, bytes).await.is_err() {
                    state.left.lock().unwrap().push(request.path.clone());
                    return Ok(false);
                }
            },
        }
    }
    match reply.status {
        0 => return Ok(false),
        204 => {}
        _ => writer.write_all(b"0\r\n\r\n").await?,
    }
    Ok(true)
}

async fn send_chunk(writer: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    writer.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).await?;
    writer.write_all(bytes).await?;
    writer.write_all(b"\r\n").await?;
    writer.flush().await
}

/// Whether the client closes the connection before the time is up.
async fn leaves_within(reader: &mut (impl AsyncReadExt + Unpin), pause: Duration) -> bool {
    let mut byte = [0; 1];
    matches!(tokio::time::timeout(pause, reader.read(&mut byte)).await, Ok(Ok(0) | Err(_)))
}
