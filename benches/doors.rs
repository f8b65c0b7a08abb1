//! What a tool call costs at the doors, beside other servers in one run: `cargo bench --bench doors`.
//!
//! Each server answers a tool that does nothing worth naming, so that what is measured is protocol: Pathbox mints a handle
//! for a branch (`manage_context`), the others echo. The baseline is a bare rmcp server inside this program. The official
//! TypeScript and Python servers are measured when `scripts/test` has installed them. Figures are the machine's; the
//! ratios to the baseline are what to compare.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Calls one after another, for latency and CPU time.
const CALLS: usize = 2_000;
/// Calls that are in flight at a time over standard input.
const WINDOW: usize = 32;
/// Connections at a time over HTTP.
const CONNECTIONS: usize = 16;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("--list") => return,
        Some("noop-stdio") => return noop::stdio(),
        Some("noop-http") => return noop::http(&arguments[2]),
        _ => {}
    }
    println!(
        "{:26} {:>9} {:>9} {:>9} {:>11} {:>8} {:>9} {:>9}",
        "", "calls/s", "p50 us", "p99 us", "cpu us/call", "RSS MiB", "p50 ratio", "cpu ratio"
    );
    let data = tempfile::tempdir().expect("a directory");
    for (door, measure) in
        [("stdio", over_stdio as fn(Command, &Tool) -> Option<Figures>), ("http", over_http)]
    {
        let mut baseline = None;
        for server in servers(door, data.path()) {
            let name = format!("{door}: {}", server.name);
            let Some(command) = server.command else {
                println!("{name:26} skipped: not installed under target/test-env");
                continue;
            };
            let Some(figures) = measure(command, &server.tool) else {
                println!("{name:26} skipped: it did not come up");
                continue;
            };
            let baseline = *baseline.get_or_insert(figures);
            println!(
                "{name:26} {:9.0} {:9.1} {:9.1} {:11.1} {:8.1} {:9.2} {:9.2}",
                figures.per_second,
                figures.p50_us,
                figures.p99_us,
                figures.cpu_us,
                figures.rss_mib,
                figures.p50_us / baseline.p50_us,
                figures.cpu_us / baseline.cpu_us
            );
        }
    }
    first_bytes(data.path());
    with_a_key(data.path());
}

/// What an API key adds to a warm run over HTTP: runs with and without one take turns at one server.
fn with_a_key(data: &Path) {
    let pathbox = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pathbox"));
        command.env("PATHBOX_DATA_DIR", data).env("PATHBOX_LOG", "error");
        command.env("PATHBOX_HTTP_REQUESTS_PER_MINUTE", "0");
        command
    };
    let made = pathbox().args(["keys", "add", "--json", "--name", "bench", "--tenant", "local"]).output();
    let made: Value = serde_json::from_slice(&made.expect("a key").stdout).expect("JSON");
    let key = made["key"].as_str().expect("a key").to_owned();
    let mut command = pathbox();
    command.args(["serve", "--http"]);
    let Some((_running, mut without, address)) = open_http(command) else {
        return println!("with a key: skipped, the server did not come up");
    };
    let mut with = Client::open(&address, Some(key)).expect("a client with a key");
    let tool = Tool { name: "run_code", arguments: json!({"language": "python", "code": "1"}) };
    let mut samples = [Vec::new(), Vec::new()];
    for id in 0..CALLS {
        for (client, samples) in [&mut without, &mut with].into_iter().zip(&mut samples) {
            let began = Instant::now();
            let answer = client.post(&message(id, &tool)).expect("an answer");
            samples.push(began.elapsed().as_secs_f64() * 1e6);
            assert_done(&answer);
        }
    }
    let [without, with] = samples.map(|mut samples| {
        samples.drain(..100);
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    });
    println!(
        "a warm run over HTTP: p50 {without:.0} us, with an API key {with:.0} us, {:.2} x",
        with / without
    );
}

/// How long a caller over HTTP waits for the first byte of an answer that takes a while itself.
fn first_bytes(data: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pathbox"));
    command.env("PATHBOX_DATA_DIR", data).env("PATHBOX_LOG", "error").args(["serve", "--http"]);
    let Some((_running, mut client, _)) = open_http(command) else {
        return println!("first byte: skipped, the server did not come up");
    };
    let code = "import time; time.sleep(.2)";
    let tool = Tool { name: "run_code", arguments: json!({"language": "python", "code": code}) };
    let mut samples: Vec<f64> = (0..40)
        .map(|id| {
            assert_done(&client.post(&message(id, &tool)).expect("an answer"));
            client.first_byte.as_secs_f64() * 1e3
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    println!(
        "\nfirst byte of a run of 200 ms over HTTP: p50 {:.1} ms, p99 {:.1} ms",
        samples[20], samples[39]
    );
}

/// What is called.
struct Tool {
    name: &'static str,
    arguments: Value,
}

struct Server {
    name: &'static str,
    /// `None` when it is not installed. A server over HTTP gets its port as the last argument.
    command: Option<Command>,
    tool: Tool,
}

#[derive(Debug, Clone, Copy)]
struct Figures {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
    rss_mib: f64,
}

fn servers(door: &'static str, data: &Path) -> Vec<Server> {
    let http = door == "http";
    let echo = || Tool { name: "echo", arguments: json!({"text": "x"}) };
    let mut baseline = Command::new(std::env::current_exe().expect("this program"));
    baseline.arg(if http { "noop-http" } else { "noop-stdio" });
    let mut own = Command::new(env!("CARGO_BIN_EXE_pathbox"));
    own.env("PATHBOX_DATA_DIR", data)
        .env("PATHBOX_HOST_POOL", "0")
        .env("PATHBOX_LOG", "error")
        .env("PATHBOX_HTTP_REQUESTS_PER_MINUTE", "0")
        .args(if http { &["serve", "--http"][..] } else { &["serve"][..] });
    let branch = Tool { name: "manage_context", arguments: json!({"action": "branch", "path": "what-if"}) };
    vec![
        Server { name: "rmcp, nothing else", command: Some(baseline), tool: echo() },
        Server { name: "pathbox", command: Some(own), tool: branch },
        Server { name: "TypeScript sdk", command: typescript(http), tool: echo() },
        Server { name: "Python mcp 1", command: python("mcp-1", PYTHON_1, http), tool: echo() },
        Server { name: "Python mcp 2", command: python("mcp-2", PYTHON_2, http), tool: echo() },
    ]
}

fn installed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-env").join(name)
}

const TYPESCRIPT: &str = r#"
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import { createServer } from "node:http";
import { randomUUID } from "node:crypto";
import { z } from "zod";
const make = () => {
  const server = new McpServer({ name: "noop", version: "0" });
  server.registerTool("echo", { inputSchema: { text: z.string() } },
    async ({ text }) => ({ content: [{ type: "text", text }] }));
  return server;
};
const address = process.argv[2];
if (!address) {
  await make().connect(new StdioServerTransport());
} else {
  const [host, port] = address.split(":");
  const open = new Map();
  createServer(async (request, response) => {
    let transport = open.get(request.headers["mcp-session-id"]);
    if (!transport) {
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID, onsessioninitialized: (id) => open.set(id, transport) });
      await make().connect(transport);
    }
    await transport.handleRequest(request, response);
  }).listen(Number(port), host);
}
"#;

fn typescript(http: bool) -> Option<Command> {
    let dir = installed("mcp-js");
    if !dir.join("node_modules/@modelcontextprotocol/sdk").is_dir() {
        return None;
    }
    let script = dir.join(if http { "noop-http.mjs" } else { "noop-stdio.mjs" });
    std::fs::write(&script, TYPESCRIPT).ok()?;
    let mut command = Command::new("node");
    command.arg(script).current_dir(dir);
    Some(command)
}

const PYTHON_1: &str = r#"
import sys
from mcp.server.fastmcp import FastMCP
http = len(sys.argv) > 1
host, port = sys.argv[1].split(":") if http else ("127.0.0.1", "0")
server = FastMCP("noop", host=host, port=int(port), log_level="ERROR")
@server.tool()
def echo(text: str) -> str:
    return text
server.run(transport="streamable-http" if http else "stdio")
"#;

const PYTHON_2: &str = r#"
import sys
from mcp.server import MCPServer
server = MCPServer("noop", log_level="ERROR")
@server.tool()
def echo(text: str) -> str:
    return text
if len(sys.argv) > 1:
    host, port = sys.argv[1].split(":")
    server.run(transport="streamable-http", host=host, port=int(port))
else:
    server.run(transport="stdio")
"#;

fn python(environment: &str, script: &str, _http: bool) -> Option<Command> {
    let python = installed(environment).join("bin/python");
    if !python.exists() {
        return None;
    }
    let file = installed(environment).join("noop.py");
    std::fs::write(&file, script).ok()?;
    let mut command = Command::new(python);
    command.arg(file);
    Some(command)
}

/// Ends the process that it holds.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// User and system time so far, in microseconds.
    fn cpu_us(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        // The name in brackets may hold anything; fields 14 and 15 of proc(5) come after it.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        ticks * 10_000.0
    }

    fn rss_mib(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
        let kib: f64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or_default();
        kib / 1024.0
    }
}

fn message(id: usize, tool: &Tool) -> String {
    let params = json!({"name": tool.name, "arguments": tool.arguments});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

fn hello() -> String {
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "bench", "version": "0"}});
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).to_string()
}

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

fn assert_done(answer: &str) {
    assert!(answer.contains("\"result\"") && !answer.contains("\"isError\":true"), "{answer}");
}

fn figures(mut samples: Vec<f64>, cpu_us: f64, per_second: f64, rss_mib: f64) -> Figures {
    samples.sort_by(f64::total_cmp);
    let at = |share: f64| samples[((samples.len() - 1) as f64 * share) as usize];
    Figures { per_second, p50_us: at(0.5), p99_us: at(0.99), cpu_us: cpu_us / CALLS as f64, rss_mib }
}

fn line(reader: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    assert!(reader.read_line(&mut line).expect("a line") > 0, "the server ended");
    line
}

fn say(writer: &mut ChildStdin, text: &str) {
    writer.write_all(format!("{text}\n").as_bytes()).expect("written");
}

fn over_stdio(mut command: Command, tool: &Tool) -> Option<Figures> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let (mut writer, mut reader) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
    let running = Running(child);
    say(&mut writer, &hello());
    let mut first = String::new();
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    say(&mut writer, INITIALIZED);
    for id in 1..200 {
        say(&mut writer, &message(id, tool));
        assert_done(&line(&mut reader));
    }
    let cpu = running.cpu_us();
    let samples = (0..CALLS).map(|id| {
        let began = Instant::now();
        say(&mut writer, &message(1_000 + id, tool));
        line(&mut reader);
        began.elapsed().as_secs_f64() * 1e6
    });
    let samples: Vec<f64> = samples.collect();
    let cpu = running.cpu_us() - cpu;
    let began = Instant::now();
    for id in 0..CALLS + WINDOW {
        if id < CALLS {
            say(&mut writer, &message(10_000 + id, tool));
        }
        if id >= WINDOW {
            line(&mut reader);
        }
    }
    let per_second = CALLS as f64 / began.elapsed().as_secs_f64();
    Some(figures(samples, cpu, per_second, running.rss_mib()))
}

/// A kept connection with a session of its own.
struct Client {
    stream: TcpStream,
    address: String,
    session: Option<String>,
    key: Option<String>,
    /// From the last request to the first byte of its answer.
    first_byte: Duration,
}

impl Client {
    fn open(address: &str, key: Option<String>) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
        let mut client =
            Self { stream, address: address.to_owned(), session: None, key, first_byte: Duration::ZERO };
        let head = client.post(&hello())?;
        client.session = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("mcp-session-id").then(|| value.to_owned())
        });
        client.post(INITIALIZED)?;
        Some(client)
    }

    /// Sends a message and reads the whole answer, head and all.
    fn post(&mut self, body: &str) -> Option<String> {
        let header = |name: &str, value: &Option<String>| {
            value.as_ref().map_or(String::new(), |value| format!("{name}{value}\r\n"))
        };
        let session =
            header("Mcp-Session-Id: ", &self.session) + &header("Authorization: Bearer ", &self.key);
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAccept: application/json, \
             text/event-stream\r\nMCP-Protocol-Version: 2025-06-18\r\n{session}Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let sent = Instant::now();
        self.stream.write_all(request.as_bytes()).ok()?;
        let mut seen = Vec::new();
        let mut chunk = [0; 16 * 1024];
        loop {
            let n = self.stream.read(&mut chunk).ok().filter(|n| *n > 0)?;
            if seen.is_empty() {
                self.first_byte = sent.elapsed();
            }
            seen.extend_from_slice(&chunk[..n]);
            let Some(end) = seen.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&seen[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let whole = match length.and_then(|text| text.trim().parse::<usize>().ok()) {
                Some(length) => seen.len() >= end + 4 + length,
                None if head.contains("transfer-encoding: chunked") => seen.ends_with(b"0\r\n\r\n"),
                None => true,
            };
            if whole {
                return Some(String::from_utf8_lossy(&seen).into_owned());
            }
        }
    }
}

/// A server on a free port, and a client of it.
fn open_http(mut command: Command) -> Option<(Running, Client, String)> {
    let address = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.to_string();
    let child = command.arg(&address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let running = Running(child.spawn().ok()?);
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match Client::open(&address, None) {
            Some(client) => return Some((running, client, address)),
            None if Instant::now() > until => return None,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn over_http(command: Command, tool: &Tool) -> Option<Figures> {
    let (running, mut client, address) = open_http(command)?;
    for id in 1..200 {
        assert_done(&client.post(&message(id, tool))?);
    }
    let cpu = running.cpu_us();
    let mut samples = Vec::with_capacity(CALLS);
    for id in 0..CALLS {
        let began = Instant::now();
        client.post(&message(1_000 + id, tool))?;
        samples.push(began.elapsed().as_secs_f64() * 1e6);
    }
    let cpu = running.cpu_us() - cpu;
    let clients: Vec<Client> = (0..CONNECTIONS).filter_map(|_| Client::open(&address, None)).collect();
    let (each, began) = (CALLS / CONNECTIONS, Instant::now());
    std::thread::scope(|scope| {
        for mut client in clients {
            scope.spawn(move || {
                for id in 0..each {
                    client.post(&message(id, tool)).expect("an answer");
                }
            });
        }
    });
    let per_second = (each * CONNECTIONS) as f64 / began.elapsed().as_secs_f64();
    Some(figures(samples, cpu, per_second, running.rss_mib()))
}

/// rmcp with a tool that echoes, and nothing around it.
mod noop {
    use std::sync::Arc;

    use axum::serve::ListenerExt;
    use rmcp::model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, ServerCapabilities,
        ServerConfig,
    };
    use rmcp::service::RequestContext;
    use rmcp::transport::io::stdio_pipes;
    use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
    use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
    use rmcp::{RoleServer, ServerHandler, ServiceExt};

    #[derive(Clone)]
    struct Echo;

    impl ServerHandler for Echo {
        fn get_info(&self) -> ServerConfig {
            ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
        }

        async fn call_tool(
            &self,
            request: CallToolRequestParams,
            _context: RequestContext<RoleServer>,
        ) -> Result<CallToolResponse, ErrorData> {
            let text = request.arguments.unwrap_or_default()["text"].to_string();
            Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
    }

    pub(super) fn stdio() {
        runtime().block_on(async {
            let running = Echo.serve(stdio_pipes()).await.expect("a client");
            let _ = running.waiting().await;
        });
    }

    pub(super) fn http(address: &str) {
        runtime().block_on(async {
            let service = StreamableHttpService::new(
                || Ok(Echo),
                Arc::new(LocalSessionManager::default()),
                StreamableHttpServerConfig::default(),
            );
            let listener = tokio::net::TcpListener::bind(address).await.expect("the address");
            let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
            let routes = axum::Router::new().nest_service("/mcp", service);
            axum::serve(listener, routes).await.expect("it serves");
        });
    }
}
