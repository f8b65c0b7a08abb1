//! The way of tool calls out of a sandbox: one process in it, started through envd, that carries lines between the programs'
//! named pipes and its own standard streams. The same at the cloud and at a local host; no network in the sandbox.
//!
//! A line from the sandbox is believed for the run's secret in it and for nothing else: every program there can write what the
//! relay writes. What only the relay says (what was taken, who is gone) can therefore harm only the sandbox itself.
//! Lines are numbered and acknowledged, so a connection that breaks loses none. One writer sends to the relay, in order:
//! envd mixes what is sent side by side. An answer goes in pieces, no more of them than the program has taken.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::domain::{Entropy, lock};
use crate::e2b::{Command, E2bClient, E2bError, Process, ProcessUpdate, Processes, SandboxAccess};
use crate::telemetry::chain;
use crate::wire::envd::Selector;
use crate::wire::json::to_ascii;

/// The program.
const SOURCE: &str = include_str!("relay/relay.py");
/// How long it may take to be ready.
const START: Duration = Duration::from_secs(20);
/// How long one write to it may take.
const WRITE: Duration = Duration::from_secs(30);
/// Bytes of one write; envd takes 8 MB of base64.
const BATCH: usize = 1 << 20;
/// Bytes of one piece of an answer.
const PIECE: usize = 48 << 10;
/// Bytes of one answer that the program has not taken.
const WINDOW: usize = 1 << 20;
/// The longest line that it has reason to write.
const MAX_LINE: usize = 64 << 10;
/// Broken connections in a row that are made again.
const REATTACHES: u32 = 5;

/// What a program asks of a run, as it came out of the sandbox.
#[derive(Debug)]
pub(super) enum Frame {
    /// A piece of a call's message.
    Piece { program: String, call: u64, last: bool, text: String },
    /// The program does not want the answer any more.
    Cancel { program: String, call: u64 },
    /// The program is gone, with all its calls.
    Gone { program: String },
}

/// A relay in a sandbox. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Relay {
    /// Its directory in the sandbox, where the pipes are.
    pub(super) home: String,
    /// Where the programs' libraries are.
    pub(super) library: String,
    link: Link,
    /// The version of the catalog that was put there.
    pub(super) catalog: Mutex<String>,
}

#[derive(Debug, Clone)]
struct Link {
    lines: mpsc::Sender<String>,
    shared: Arc<Shared>,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct Shared {
    run: Mutex<Option<Attached>>,
    windows: Mutex<HashMap<(String, u64), Arc<Semaphore>>>,
    pongs: Mutex<HashMap<String, oneshot::Sender<()>>>,
}

#[derive(Debug, Clone)]
struct Attached {
    secret: String,
    frames: mpsc::Sender<Frame>,
}

#[derive(Debug, Deserialize)]
struct Ready {
    home: String,
    library: String,
}

impl Relay {
    /// Starts one, and waits until it is ready.
    ///
    /// # Errors
    /// Those of starting a process; [`E2bError::Command`] with what it said when it ended at once.
    pub(super) async fn start(
        client: &E2bClient,
        access: &SandboxAccess,
        entropy: &Entropy,
    ) -> Result<Self, E2bError> {
        let processes = client.processes(access);
        let command = Command {
            program: "python3".to_owned(),
            args: ["-I", "-S", "-c", SOURCE, &entropy.hex::<8>()].map(str::to_owned).to_vec(),
            tag: Some("pathbox-tools".to_owned()),
            stdin: true,
            ..Command::default()
        };
        let mut process = processes.start(&command).await?;
        let mut lines = Lines::default();
        let ready = timeout(START, ready(&mut process, &mut lines)).await.unwrap_or_else(|_| {
            Err(E2bError::Command {
                what: "the tools relay did not start",
                exit_code: -1,
                message: Default::default(),
            })
        })?;
        let (sender, receiver) = mpsc::channel(256);
        let link = Link { lines: sender, shared: Arc::default(), closed: CancellationToken::new() };
        tokio::spawn(write(processes.clone(), process.pid(), receiver, link.closed.clone()));
        tokio::spawn(read(processes, process, lines, link.clone()));
        Ok(Self { home: ready.home, library: ready.library, link, catalog: Mutex::default() })
    }

    /// Whether it is of no use any more.
    pub(super) fn is_closed(&self) -> bool {
        self.link.closed.is_cancelled()
    }

    /// Ends it.
    pub(super) fn close(&self) {
        self.link.closed.cancel();
    }

    /// Waits until it is of no use any more.
    pub(super) async fn closed(&self) {
        self.link.closed.cancelled().await;
    }

    /// Puts a file into the programs' library.
    pub(super) async fn file(&self, path: &str, text: &str) {
        self.send(format!("file {path} {}", to_ascii(&text).unwrap_or_default())).await;
    }

    /// Waits until everything that was sent has been obeyed; `false` when that does not happen.
    pub(super) async fn settle(&self, entropy: &Entropy) -> bool {
        let word = entropy.hex::<8>();
        let (sender, pong) = oneshot::channel();
        lock(&self.link.shared.pongs).insert(word.clone(), sender);
        self.send(format!("ping {word}")).await;
        let came = tokio::select! {
            came = timeout(START, pong) => matches!(came, Ok(Ok(()))),
            () = self.closed() => false,
        };
        lock(&self.link.shared.pongs).remove(&word);
        came
    }

    /// Hands the calls that carry this secret to a run, until [`Relay::detach`].
    pub(super) fn attach(&self, secret: String) -> mpsc::Receiver<Frame> {
        let (frames, receiver) = mpsc::channel(256);
        *lock(&self.link.shared.run) = Some(Attached { secret, frames });
        receiver
    }

    /// From now on calls are refused.
    pub(super) fn detach(&self) {
        *lock(&self.link.shared.run) = None;
        lock(&self.link.shared.windows).clear();
    }

    /// Sends an answer, at the pace of the program that waits for it.
    pub(super) async fn answer(&self, program: &str, call: u64, answer: &Value) {
        self.link.answer(program, call, answer).await;
    }

    async fn send(&self, line: String) {
        self.link.send(line).await;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.link.closed.cancel();
    }
}

impl Link {
    async fn answer(&self, program: &str, call: u64, answer: &Value) {
        // In ASCII, so that it can be cut anywhere.
        let text = to_ascii(answer).unwrap_or_default();
        let key = (program.to_owned(), call);
        let window = Arc::new(Semaphore::new(WINDOW));
        lock(&self.shared.windows).insert(key.clone(), Arc::clone(&window));
        let mut rest = text.as_str();
        loop {
            let (piece, after) = rest.split_at(rest.len().min(PIECE));
            let mark = if after.is_empty() { '.' } else { '+' };
            // As the relay counts: the call, a space, the mark, the piece, a line end.
            let size = u32::try_from(call.to_string().len() + piece.len() + 3).unwrap_or(u32::MAX);
            tokio::select! {
                permit = window.acquire_many(size) => match permit {
                    Ok(permit) => permit.forget(),
                    Err(_) => break,
                },
                () = self.closed.cancelled() => break,
            }
            if self.lines.send(format!("to {program} {call} {mark}{piece}")).await.is_err()
                || after.is_empty()
            {
                break;
            }
            rest = after;
        }
        lock(&self.shared.windows).remove(&key);
    }

    /// Sends a line once there is room. The reader may wait here too: the relay reads whether or not its output is taken.
    async fn send(&self, line: String) {
        let _ = self.lines.send(line).await;
    }

    /// One line of the sandbox.
    async fn take(&self, line: &str) {
        if let Some(words) = line.strip_prefix("! ") {
            return self.note(words).await;
        }
        let mut parts = line.splitn(4, ' ');
        let (Some(secret), Some(program), Some(call), Some(piece)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return;
        };
        let (Ok(call), true) = (call.parse::<u64>(), is_name(program)) else { return };
        let attached = lock(&self.shared.run).clone();
        let Some(attached) = attached.filter(|attached| same(&attached.secret, secret)) else {
            if piece.starts_with('.') {
                self.send(format!("to {program} {call} .{STALE}")).await;
            }
            return;
        };
        let program = program.to_owned();
        let frame = match piece.split_at_checked(1) {
            Some(("x", _)) => Frame::Cancel { program, call },
            Some((mark @ ("+" | "."), text)) => {
                Frame::Piece { program, call, last: mark == ".", text: text.to_owned() }
            }
            _ => return,
        };
        // A run that has as much as it can hold is waited for: then nothing is acknowledged, and programs wait.
        let _ = attached.frames.send(frame).await;
    }

    async fn note(&self, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        match words.as_slice() {
            ["taken", program, call, bytes] => {
                let (Ok(call), Ok(bytes)) = (call.parse(), bytes.parse::<usize>()) else { return };
                let window = lock(&self.shared.windows).get(&((*program).to_owned(), call)).cloned();
                if let Some(window) = window
                    && bytes <= WINDOW.saturating_sub(window.available_permits())
                {
                    window.add_permits(bytes);
                }
            }
            ["gone", program] => {
                for (_, window) in lock(&self.shared.windows).iter().filter(|((of, _), _)| of == program) {
                    window.close();
                }
                let attached = lock(&self.shared.run).clone();
                if let Some(attached) = attached {
                    let _ = attached.frames.send(Frame::Gone { program: (*program).to_owned() }).await;
                }
            }
            ["pong", word] => {
                if let Some(pong) = lock(&self.shared.pongs).remove(*word) {
                    let _ = pong.send(());
                }
            }
            _ => {}
        }
    }
}

/// The answer to a call that belongs to no run that is in progress.
const STALE: &str = r#"{"ok":false,"kind":"refused","message":"the run that this call belongs to has ended; call tools in the code of the run under way"}"#;

/// Numbered lines out of pieces of text.
#[derive(Debug)]
struct Lines {
    rest: String,
    next: u64,
    asked_again: bool,
}

impl Default for Lines {
    fn default() -> Self {
        Self { rest: String::new(), next: 1, asked_again: false }
    }
}

impl Lines {
    /// The lines that come next in order, each once, and whether some are missing.
    fn push(&mut self, text: &str) -> (Vec<String>, bool) {
        self.rest.push_str(text);
        let mut out = Vec::new();
        let mut missing = false;
        let mut from = 0;
        while let Some(end) = self.rest[from..].find('\n') {
            let line = &self.rest[from..from + end];
            from += end + 1;
            let Some((number, line)) = line.split_once(' ') else { continue };
            match number.parse::<u64>() {
                Ok(number) if number == self.next => {
                    self.next += 1;
                    self.asked_again = false;
                    out.push(line.to_owned());
                }
                Ok(number) if number > self.next && !self.asked_again => {
                    self.asked_again = true;
                    missing = true;
                }
                _ => {}
            }
        }
        self.rest.drain(..from);
        if self.rest.len() > MAX_LINE {
            // Nothing that the relay writes is so long: a program has written here.
            self.rest.clear();
        }
        (out, missing)
    }
}

async fn ready(process: &mut Process, lines: &mut Lines) -> Result<Ready, E2bError> {
    let mut complaint = String::new();
    loop {
        match process.next().await? {
            Some(ProcessUpdate::Stdout(text)) => {
                for line in lines.push(&text).0 {
                    if let Some(ready) =
                        line.strip_prefix("! ready ").and_then(|text| serde_json::from_str(text).ok())
                    {
                        return Ok(ready);
                    }
                }
            }
            Some(ProcessUpdate::Stderr(text)) if complaint.len() < 2_000 => complaint.push_str(&text),
            Some(ProcessUpdate::Stderr(_)) => {}
            Some(ProcessUpdate::Ended { exit_code, .. }) => {
                tracing::warn!(exit_code, "the tools relay ended at its start");
                return Err(E2bError::Command {
                    what: "the tools relay (python3 in the sandbox)",
                    exit_code,
                    message: Default::default(),
                });
            }
            None => return Err(E2bError::Incomplete { events: 0 }),
        }
    }
}

/// Sends lines in order, many in one request.
async fn write(processes: Processes, pid: u32, mut lines: mpsc::Receiver<String>, closed: CancellationToken) {
    let mut batch = Vec::new();
    'lines: loop {
        let line = tokio::select! {
            biased;
            () = closed.cancelled() => break,
            line = lines.recv() => line,
        };
        let Some(line) = line else { break };
        batch.extend_from_slice(line.as_bytes());
        batch.push(b'\n');
        while batch.len() < BATCH {
            let Ok(line) = lines.try_recv() else { break };
            batch.extend_from_slice(line.as_bytes());
            batch.push(b'\n');
        }
        for piece in batch.chunks(BATCH) {
            // Whether it arrived is not known, and it must not arrive twice: the relay ends, and its programs learn it.
            match timeout(WRITE, processes.send_stdin(pid, piece)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(error = %chain(&error), "the tools relay does not accept input");
                    break 'lines;
                }
                Err(_) => {
                    tracing::warn!("the tools relay does not accept input in time");
                    break 'lines;
                }
            }
        }
        batch.clear();
    }
    closed.cancel();
    lines.close();
    // On a line of its own, whatever came before.
    let _ = timeout(WRITE, processes.send_stdin(pid, b"\nquit\n")).await;
}

/// Reads what the relay writes, over as many connections as it takes.
async fn read(processes: Processes, mut process: Process, mut lines: Lines, link: Link) {
    let pid = process.pid();
    let mut broken = 0;
    let _ends = link.closed.clone().drop_guard();
    loop {
        let update = tokio::select! {
            update = process.next() => update,
            () = link.closed.cancelled() => return,
        };
        match update {
            Ok(Some(ProcessUpdate::Stdout(text))) => {
                broken = 0;
                let (new, missing) = lines.push(&text);
                for line in &new {
                    link.take(line).await;
                }
                if !new.is_empty() {
                    link.send(format!("ack {}", lines.next - 1)).await;
                }
                if missing {
                    link.send(format!("again {}", lines.next)).await;
                }
            }
            Ok(Some(ProcessUpdate::Stderr(_))) => {}
            Ok(Some(ProcessUpdate::Ended { .. }) | None) => return,
            Err(_) if link.closed.is_cancelled() => return,
            // Without a run it is not missed: sandboxes end, here and by other replicas.
            Err(error) if error.is_lost() || broken == REATTACHES => {
                if lock(&link.shared.run).is_some() {
                    tracing::warn!(error = %chain(&error), "the tools relay is gone while a run needs it");
                } else {
                    tracing::debug!(error = %chain(&error), "the tools relay is gone");
                }
                return;
            }
            Err(_) => {
                broken += 1;
                tokio::time::sleep(Duration::from_millis(50 << broken)).await;
                match processes.attach(Selector::Pid(pid)).await {
                    Ok(attached) => {
                        process = attached;
                        lines.rest.clear();
                        link.send(format!("again {}", lines.next)).await;
                    }
                    Err(E2bError::NotFound { .. }) => return,
                    Err(_) => {}
                }
            }
        }
    }
}

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Without telling by its time how much of it fits.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_once_and_in_order_whatever_is_sent_again() {
        let mut lines = Lines::default();
        assert_eq!(lines.push("1 a\n2 b"), (vec!["a".into()], false));
        assert_eq!(lines.push("b\n1 a\n2 bb\n"), (vec!["bb".into()], false));
        assert_eq!(lines.push("5 e\n6 f\n"), (vec![], true), "3 and 4 are missing");
        assert_eq!(lines.push("7 g\n"), (vec![], false), "asked for once");
        assert_eq!(lines.push("3 c\n4 d\n5 e\n"), (vec!["c".into(), "d".into(), "e".into()], false));
        assert_eq!(lines.push("forged\nx y\n 6 f\n6 f\n"), (vec!["f".into()], false));
        assert_eq!(lines.push(&"z".repeat(MAX_LINE + 1)).0.len(), 0);
        assert_eq!(lines.rest, "");
    }

    #[test]
    fn a_secret_fits_only_whole() {
        assert!(same("abc", "abc") && !same("abc", "abd") && !same("abc", "ab") && !same("", "a"));
    }
}
