//! A `pathbox serve` process, spoken to in raw JSON-RPC lines.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long a test waits for an answer before it gives up. Generous: it bounds a hang, it measures nothing.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running server over standard input and output.
pub(crate) struct Server {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    next_id: u64,
    /// Everything that came and was not waited for.
    pub(crate) seen: Vec<Value>,
}

/// A `pathbox` command with a clean environment and its own data directory.
pub(crate) fn command(data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pathbox"));
    command.env_clear();
    for name in ["PATH", "HOME", "TMPDIR"] {
        #[expect(clippy::disallowed_methods, reason = "a test hands its own environment on")]
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.env("PATHBOX_DATA_DIR", data);
    command
}

impl Server {
    /// Starts a server and does the handshake of 2025-11-25.
    pub(crate) fn start(data: &Path) -> Self {
        Self::start_with(command(data).arg("serve"))
    }

    /// Starts a server from a prepared command and does the handshake.
    pub(crate) fn start_with(command: &mut Command) -> Self {
        let mut server = Self::raw(command);
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}
        });
        let answer = server.request("initialize", hello);
        assert_eq!(answer["result"]["serverInfo"]["name"], "pathbox", "{answer}");
        server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        server
    }

    /// Starts a server and sends nothing yet.
    pub(crate) fn raw(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines, next_id: 0, seen: Vec::new() }
    }

    /// Sends one message.
    pub(crate) fn send(&mut self, message: &Value) {
        self.send_line(&message.to_string());
    }

    /// Sends one message to a process that may be gone. `false`: it is.
    pub(crate) fn try_send(&mut self, message: &Value) -> bool {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{message}\n").as_bytes()).and_then(|()| stdin.flush()).is_ok()
    }

    /// Sends one line as it is.
    pub(crate) fn send_line(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(line.as_bytes()).unwrap();
        stdin.write_all(b"\n").unwrap();
        stdin.flush().unwrap();
    }

    /// The next message; every line must be JSON.
    pub(crate) fn next(&mut self, patience: Duration) -> Option<Value> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => {
                Some(serde_json::from_str(&line).unwrap_or_else(|_| panic!("not JSON on stdout: {line}")))
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Sends a request and returns its id.
    pub(crate) fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// Waits for the answer to a request.
    pub(crate) fn answer(&mut self, id: u64) -> Value {
        let until = Instant::now() + PATIENCE;
        if let Some(at) =
            self.seen.iter().position(|message| message["id"] == id && message.get("method").is_none())
        {
            return self.seen.remove(at);
        }
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let message =
                self.next(left).unwrap_or_else(|| panic!("no answer to request {id}; seen: {:?}", self.seen));
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
            self.seen.push(message);
        }
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let id = self.begin(method, params);
        self.answer(id)
    }

    /// Calls `run_code` with Python on the default context.
    pub(crate) fn python(&mut self, code: &str) -> Value {
        self.call(json!({"code": code, "language": "python"}), json!({}))
    }

    /// Calls `run_code`; the whole result.
    pub(crate) fn call(&mut self, arguments: Value, meta: Value) -> Value {
        let params = json!({"name": "run_code", "arguments": arguments, "_meta": meta});
        let mut answer = self.request("tools/call", params);
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].take()
    }

    /// Closes the server's standard input.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin.take();
    }

    /// Waits for the process to end.
    pub(crate) fn wait(&mut self, patience: Duration) -> Option<std::process::ExitStatus> {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stdin.take();
        if self.wait(Duration::from_secs(5)).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Processes whose command line or environment holds `needle`, as `/proc` shows them.
pub(crate) fn processes_of(parent: u32) -> Vec<u32> {
    fn parent_of(pid: u32) -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    }
    let all: Vec<u32> = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    let mut tree = vec![parent];
    loop {
        let more: Vec<u32> = all
            .iter()
            .copied()
            .filter(|pid| !tree.contains(pid) && parent_of(*pid).is_some_and(|up| tree.contains(&up)))
            .collect();
        if more.is_empty() {
            tree.retain(|pid| *pid != parent);
            return tree;
        }
        tree.extend(more);
    }
}

/// Whether a process still runs (a zombie does not).
pub(crate) fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z')))
}
