//! A tool server as a child process: a clean environment, a process group of its own, bounded lines, and an end.
//!
//! `npx` and `uvx` start the server as a child of theirs, so the group is what is ended and not the process.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rmcp::RoleClient;
use rmcp::transport::async_rw::AsyncRwTransport;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader, ReadBuf};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::domain::lock;
use crate::wire::Secret;

/// The longest line that a server may write.
pub(super) const MAX_LINE_BYTES: usize = 16 << 20;
/// How much of its standard error is kept, for errors.
const MAX_COMPLAINT_CHARS: usize = 1_500;
/// Lines of it.
const COMPLAINT_LINES: usize = 8;
/// How long a server may take to end once its input is closed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What rmcp speaks over.
pub(super) type Pipes = AsyncRwTransport<RoleClient, Bounded<ChildStdout>, ChildStdin>;

/// A server's process. Dropping it kills its group.
#[derive(Debug)]
pub(super) struct ServerProcess {
    child: Child,
    group: Option<u32>,
    complaints: Arc<Mutex<VecDeque<String>>>,
    overlong: Arc<Mutex<bool>>,
}

impl ServerProcess {
    /// Starts it.
    pub(super) fn start(
        command: &str,
        args: &[String],
        env: &BTreeMap<String, Secret>,
        cwd: Option<&Path>,
        base: &BTreeMap<String, String>,
    ) -> io::Result<(Self, Pipes)> {
        let mut starting = Command::new(command);
        starting.args(args).env_clear().envs(base);
        starting.envs(env.iter().map(|(name, value)| (name, value.expose())));
        starting.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        if let Some(cwd) = cwd {
            starting.current_dir(cwd);
        }
        #[cfg(unix)]
        starting.process_group(0);
        let mut child = starting.spawn()?;
        let missing = || io::Error::other("a standard stream is missing");
        let (stdin, stdout) =
            (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
        let complaints = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(drain(stderr, Arc::clone(&complaints)));
        }
        let overlong = Arc::new(Mutex::new(false));
        let bounded = Bounded { read: stdout, line: 0, overlong: Arc::clone(&overlong) };
        let pipes = AsyncRwTransport::new_client(bounded, stdin).with_max_line_length(usize::MAX);
        let group = child.id();
        Ok((Self { child, group, complaints, overlong }, pipes))
    }

    /// Whether more is not to be learned of its end.
    pub(super) fn is_over(&mut self) -> bool {
        *lock(&self.overlong) || matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Why it ended, as far as that is known: a line that was too long, its status, its last lines on standard error.
    pub(super) fn complaint(&mut self) -> String {
        if *lock(&self.overlong) {
            return format!("it wrote a line of more than {MAX_LINE_BYTES} bytes");
        }
        let ended = match self.child.try_wait() {
            Ok(Some(status)) => format!("it ended with {status}"),
            _ => "its connection broke".to_owned(),
        };
        let lines = lock(&self.complaints);
        let words = lines.iter().map(String::as_str).collect::<Vec<_>>().join(" | ");
        if words.is_empty() { ended } else { format!("{ended}; its last output: {words}") }
    }

    /// Ends it. Its input has been closed: it may go by itself, then it is killed, and with it what it started.
    pub(super) async fn end(mut self) {
        drop(tokio::time::timeout(LAST_WORDS, self.child.wait()).await);
        self.kill();
        drop(tokio::time::timeout(LAST_WORDS, self.child.wait()).await);
    }

    fn kill(&mut self) {
        if let Some(group) = self.group.take() {
            kill_group(group);
        }
    }
}

/// Ends the process that leads a group, and with it what it started. Not there any more is what is wanted.
#[cfg(unix)]
fn kill_group(leader: u32) {
    if let Some(group) = i32::try_from(leader).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// The same on Windows, whose own program knows the tree of processes.
#[cfg(windows)]
fn kill_group(leader: u32) {
    let mut end = std::process::Command::new("taskkill");
    end.args(["/T", "/F", "/PID", &leader.to_string()]);
    drop(end.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status());
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads standard error to its end, whatever it holds: a child that no one reads from stops.
async fn drain(stderr: impl AsyncRead + Unpin, into: Arc<Mutex<VecDeque<String>>>) {
    let mut read = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without end is taken in pieces.
        let taken = match read.fill_buf().await {
            Ok([]) | Err(_) => return,
            Ok(bytes) => {
                let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
                line.extend_from_slice(&bytes[..end]);
                end
            }
        };
        read.consume(taken);
        let text: String = String::from_utf8_lossy(&line).trim().chars().take(MAX_COMPLAINT_CHARS).collect();
        if text.is_empty() {
            continue;
        }
        let mut lines = lock(&into);
        lines.push_back(text);
        while lines.len() > COMPLAINT_LINES
            || lines.iter().map(String::len).sum::<usize>() > 4 * MAX_COMPLAINT_CHARS
        {
            lines.pop_front();
        }
    }
}

/// A reader that fails at a line that is too long. rmcp drops such a line, and then anyone who called waits for ever.
#[derive(Debug)]
pub(super) struct Bounded<R> {
    read: R,
    line: usize,
    overlong: Arc<Mutex<bool>>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Bounded<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.read).poll_read(cx, buf))?;
        let new = &buf.filled()[before..];
        match memchr::memrchr(b'\n', new) {
            // Lines within one read are short of any limit.
            Some(at) => self.line = new.len() - at - 1,
            None => self.line += new.len(),
        }
        if self.line > MAX_LINE_BYTES {
            *lock(&self.overlong) = true;
            return Poll::Ready(Err(io::Error::other("a line of the tool server is too long")));
        }
        Poll::Ready(Ok(()))
    }
}
