//! A `pathbox serve --http` process, spoken to in raw HTTP/1.1: nothing between the test and the bytes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::server::command;

/// How long a test waits for bytes before it gives up. Generous: it bounds a hang, it measures nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running server over HTTP.
pub(crate) struct HttpServer {
    pub(crate) child: Child,
    pub(crate) address: String,
    log: Arc<Mutex<Vec<String>>>,
}

impl HttpServer {
    /// Starts a server on a free loopback port.
    pub(crate) fn start(data: &Path) -> Self {
        Self::start_with(&mut command(data))
    }

    /// The same from a command with settings; the subcommand is added here.
    pub(crate) fn start_with(command: &mut Command) -> Self {
        // How many requests a quick machine sends is not what a test is about, but where it says so.
        const RATE: &str = "PATHBOX_HTTP_REQUESTS_PER_MINUTE";
        if !command.get_envs().any(|(name, _)| name == RATE) {
            command.env(RATE, "0");
        }
        command.args(["serve", "--http", "127.0.0.1:0"]);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let (sender, address) = std::sync::mpsc::channel();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("serving MCP at http://") {
                    let _ = sender.send(rest.split('/').next().unwrap().to_owned());
                }
                lines.lock().unwrap().push(line);
            }
        });
        let address = address
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("the server does not come up: {:?}", log.lock().unwrap()));
        Self { child, address, log }
    }

    /// A view of what listens at an address, such as a proxy before servers.
    pub(crate) fn elsewhere(address: &str) -> Self {
        let child = Command::new("true").spawn().unwrap();
        Self { child, address: address.to_owned(), log: Arc::default() }
    }

    /// What the server logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// Sends a request whose head is given line by line; `Host` and `Content-Length` are added when they are missing.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let has = |name: &str| headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !has("host") {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        if !has("content-length") {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("Connection: close\r\n\r\n");
        let mut stream = self.connect();
        stream.write_all(head.as_bytes()).unwrap();
        let _ = stream.write_all(body);
        Reply::read(stream)
    }

    /// A connection that sends nothing yet.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends one JSON-RPC message to `/mcp`.
    pub(crate) fn post(&self, headers: &[(&str, &str)], message: &Value) -> Reply {
        self.post_text(headers, &message.to_string())
    }

    /// Sends a text to `/mcp`.
    pub(crate) fn post_text(&self, headers: &[(&str, &str)], text: &str) -> Reply {
        let mut all =
            vec![("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")];
        all.extend(headers);
        self.send("POST", "/mcp", &all, text.as_bytes())
    }

    /// Opens a session of 2025-11-25.
    pub(crate) fn session(&self, headers: &[(&str, &str)]) -> Session<'_> {
        let mut reply = self.post(headers, &initialize("2025-11-25"));
        reply.expect_ok();
        let id = reply.header("mcp-session-id").unwrap().to_owned();
        let answer = reply.answer();
        assert_eq!(answer["result"]["serverInfo"]["name"], "pathbox", "{answer}");
        let headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let mut session = Session { server: self, id, headers, next: 1 };
        let reply = session.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        assert_eq!(reply.status, 202);
        // As every client does that keeps its session.
        session.request("tools/list", json!({}));
        session
    }

    /// Calls a tool without a session, as 2026-07-28 does. The whole JSON-RPC answer.
    pub(crate) fn stateless(
        &self,
        headers: &[(&str, &str)],
        tool: &str,
        arguments: Value,
        meta: Value,
    ) -> Reply {
        let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
        self.modern(headers, "tools/call", Some(tool), params)
    }

    /// Sends any request as 2026-07-28 does; `name` is what `Mcp-Name` has to repeat.
    pub(crate) fn modern(
        &self,
        headers: &[(&str, &str)],
        method: &str,
        name: Option<&str>,
        mut params: Value,
    ) -> Reply {
        params["_meta"] = modern_meta(params["_meta"].take());
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let mut all = vec![("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method)];
        all.extend(name.map(|name| ("Mcp-Name", name)));
        all.extend(headers);
        self.post(&all, &message)
    }

    /// Asks the process to end.
    pub(crate) fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    /// Waits for the process to end.
    pub(crate) fn wait(&mut self, patience: Duration) -> Option<std::process::ExitStatus> {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.terminate();
            if self.wait(Duration::from_secs(10)).is_none() {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
    }
}

/// The `initialize` request of a client.
pub(crate) fn initialize(version: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}})
}

/// `_meta` of a request of 2026-07-28, with more in it.
pub(crate) fn modern_meta(mut meta: Value) -> Value {
    meta["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    if meta["io.modelcontextprotocol/clientCapabilities"].is_null() {
        meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
    }
    meta["io.modelcontextprotocol/clientInfo"] = json!({"name": "test", "version": "0"});
    meta
}

/// An MCP session over HTTP.
pub(crate) struct Session<'s> {
    pub(crate) server: &'s HttpServer,
    pub(crate) id: String,
    pub(crate) headers: Vec<(String, String)>,
    next: u64,
}

impl<'s> Session<'s> {
    /// A session that was opened before, perhaps elsewhere.
    pub(crate) fn continued(server: &'s HttpServer, id: &str) -> Self {
        Self { server, id: id.to_owned(), headers: Vec::new(), next: 1_000 }
    }

    /// The headers of this session's requests.
    pub(crate) fn headers(&self) -> Vec<(&str, &str)> {
        let mut all: Vec<(&str, &str)> = self.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        all.extend([("Mcp-Session-Id", self.id.as_str()), ("MCP-Protocol-Version", "2025-11-25")]);
        all
    }

    /// Sends a message.
    pub(crate) fn post(&mut self, message: &Value) -> Reply {
        self.server.post(&self.headers(), message)
    }

    /// Sends a request; its answer comes on the reply's stream.
    pub(crate) fn begin(&mut self, method: &str, params: Value) -> (u64, Reply) {
        let id = self.next;
        self.next += 1;
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        (id, self.post(&message))
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let (_, mut reply) = self.begin(method, params);
        reply.expect_ok();
        reply.answer()
    }

    /// Calls a tool; the whole result.
    pub(crate) fn call(&mut self, tool: &str, arguments: Value, meta: Value) -> Value {
        let mut answer =
            self.request("tools/call", json!({"name": tool, "arguments": arguments, "_meta": meta}));
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].take()
    }

    /// Calls `run_code` with Python.
    pub(crate) fn python(&mut self, code: &str) -> Value {
        self.call("run_code", json!({"code": code, "language": "python"}), json!({}))
    }

    /// Opens the stream of what belongs to no request, or resumes one.
    pub(crate) fn listen(&self, last_event: Option<&str>) -> Reply {
        let mut headers = self.headers();
        headers.push(("Accept", "text/event-stream"));
        if let Some(event) = last_event {
            headers.push(("Last-Event-ID", event));
        }
        self.server.send("GET", "/mcp", &headers, b"")
    }
}

/// An answer whose body may still be coming.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    body: Body,
}

struct Body {
    stream: BufReader<TcpStream>,
    chunked: bool,
    left: usize,
    /// Decoded and not yet taken.
    buffer: Vec<u8>,
    ended: bool,
}

/// One event of a stream.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    pub(crate) data: String,
    pub(crate) retry: Option<String>,
    /// Only a comment, as signs of life are.
    pub(crate) comment: bool,
}

impl Event {
    /// The JSON in it.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

impl Reply {
    /// Reads the head of the next answer on a connection.
    pub(crate) fn read(stream: TcpStream) -> Self {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let status =
            line.split(' ').nth(1).unwrap_or_else(|| panic!("no status line: {line:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            line.clear();
            stream.read_line(&mut line).unwrap();
            match line.trim_end().split_once(':') {
                Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
                None => break,
            }
        }
        let find = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        let chunked = find("transfer-encoding").is_some_and(|coding| coding.contains("chunked"));
        let left =
            find("content-length").map_or(if chunked { 0 } else { usize::MAX }, |n| n.parse().unwrap());
        let none = status == 204 || status == 304;
        let body = Body { stream, chunked, left, buffer: Vec::new(), ended: none };
        Self { status, headers, body }
    }

    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Fails with what the server says unless it says 200.
    pub(crate) fn expect_ok(&mut self) {
        let status = self.status;
        assert!(status == 200, "{status}: {}", self.text());
    }

    /// The whole body, whatever it is.
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        while self.body.more() {}
        std::mem::take(&mut self.body.buffer)
    }

    /// The whole body.
    pub(crate) fn text(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// The next event of a stream; `None` at its end.
    pub(crate) fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(at) = self.body.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let text: Vec<u8> = self.body.buffer.drain(..at + 2).collect();
                return Some(parse_event(std::str::from_utf8(&text).unwrap()));
            }
            if !self.body.more() {
                return None;
            }
        }
    }

    /// The next event that carries a message.
    pub(crate) fn message(&mut self) -> Option<Event> {
        std::iter::from_fn(|| self.event()).find(|event| !event.data.is_empty())
    }

    /// The answer to the request, whether it comes as JSON or at the end of a stream.
    pub(crate) fn answer(&mut self) -> Value {
        if self.header("content-type").is_some_and(|t| t.starts_with("application/json")) {
            let text = self.text();
            return serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
        }
        loop {
            let event = self.message().expect("the stream ends without an answer");
            let message = event.json();
            if message.get("id").is_some() && message.get("method").is_none() {
                return message;
            }
        }
    }
}

fn parse_event(text: &str) -> Event {
    let mut event = Event { comment: true, ..Event::default() };
    for line in text.lines() {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "" => continue,
            "id" => event.id = Some(value.to_owned()),
            "event" => event.event = Some(value.to_owned()),
            "retry" => event.retry = Some(value.to_owned()),
            "data" => event.data.push_str(value),
            other => panic!("unknown field {other:?} in {text:?}"),
        }
        event.comment = false;
    }
    event
}

impl Body {
    /// Reads some more; `false` at the end.
    fn more(&mut self) -> bool {
        if self.ended {
            return false;
        }
        if self.chunked && self.left == 0 {
            let mut line = String::new();
            if self.stream.read_line(&mut line).unwrap_or(0) == 0 {
                self.ended = true;
                return false;
            }
            if line.trim().is_empty() {
                return true;
            }
            self.left =
                usize::from_str_radix(line.trim(), 16).unwrap_or_else(|_| panic!("no chunk: {line:?}"));
            if self.left == 0 {
                // The empty line that ends it, before the next answer on this connection.
                let _ = self.stream.read_line(&mut line);
                self.ended = true;
                return false;
            }
        }
        if self.left == 0 {
            self.ended = true;
            return false;
        }
        let mut bytes = vec![0; self.left.min(64 * 1024)];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.ended = true,
            Ok(n) => {
                self.buffer.extend_from_slice(&bytes[..n]);
                self.left -= n;
            }
            Err(error) => panic!("nothing came for a long time: {error}"),
        }
        !self.ended
    }
}
