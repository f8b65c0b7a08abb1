//! The agent: the first process of a sandbox, and the host's client to it.
//!
//! It is a process table and a file server and knows nothing of languages. The client side treats every
//! byte as hostile: a frame has a largest size, ids that were never given out end the sandbox, and what a
//! program prints is bounded by credit that only the reader of [`Process::events`] gives back.

mod files;
pub(crate) mod init;
mod link;
pub(crate) mod protocol;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, mpsc};

pub(crate) use self::link::Link;
use self::protocol::{
    CHUNK, Call, Exit, FIRST_WINDOW, Failure, FromAgent, Hello, MAX_FRAME, Start, ToAgent, WINDOW, Write,
    charge,
};
use super::credit::{Account, Credit, HELD, Held, THING};
use super::jail::{JailError, Usage, sys};
use super::journal::{Journal, Level};
use crate::domain::lock;

/// The async client of one sandbox's agent. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AgentHandle {
    connection: Arc<Connection>,
    home: Arc<str>,
    env: Arc<[(String, String)]>,
}

/// A program to start.
#[derive(Debug, Clone, Default)]
pub struct ProcessSpec {
    /// The program, found on `PATH` when it has no slash, and its arguments.
    pub argv: Vec<String>,
    /// Added to the sandbox's environment; a later entry of the same name wins.
    pub env: Vec<(String, String)>,
    /// Where it starts; the home directory when absent. Relative paths start at the home directory.
    pub cwd: Option<String>,
    /// Its standard input.
    pub stdin: Stdin,
    /// Columns and rows of a terminal to run it on. Output then comes as [`ProcessEvent::Pty`], and
    /// [`ProcessHandle::stdin`] types.
    pub pty: Option<(u16, u16)>,
    /// Whether descriptor 3 is a stream socket to [`ProcessHandle::control`] and [`ProcessEvent::Control`].
    pub control: bool,
}

/// A program's descriptor 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Stdin {
    /// Nothing: the end at once.
    #[default]
    Null,
    /// What [`ProcessHandle::stdin`] writes.
    Pipe,
}

/// A started program: its output, and the handle to write to it. Dropping it does not end the program;
/// output that no one receives any more is thrown away.
#[derive(Debug)]
pub struct Process {
    /// Speaks to it; cheap to clone.
    pub handle: ProcessHandle,
    /// Its output, bounded: a slow reader slows the program. `Exited` is the last event. The channel ends
    /// without one when the sandbox ends.
    pub events: mpsc::Receiver<ProcessEvent>,
}

/// Speaks to a started program. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ProcessHandle {
    connection: Arc<Connection>,
    /// Room at the agent for its two inputs, as it is charged.
    rooms: [Arc<Semaphore>; 2],
    /// The agent's number for it, never given twice in a sandbox.
    pub id: u32,
    /// Its process number inside the sandbox.
    pub pid: i32,
}

/// Something a program did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessEvent {
    /// Bytes on descriptor 1, at most 64 KiB.
    Stdout(Bytes),
    /// Bytes on descriptor 2, at most 64 KiB.
    Stderr(Bytes),
    /// Bytes on its terminal, at most 64 KiB.
    Pty(Bytes),
    /// Bytes on descriptor 3, at most 64 KiB, cut anywhere. They come after all output that was written
    /// before them.
    Control(Bytes),
    /// It ended, and its [successor](ProcessHandle::successor) is the program now. All that it had written came first; nothing
    /// that was written to its descriptor 3 before may be relied on to have arrived.
    Replaced {
        /// As in [`ProcessEvent::Exited`].
        code: Option<i32>,
        /// As in [`ProcessEvent::Exited`].
        signal: Option<i32>,
        /// As in [`ProcessEvent::Exited`].
        oom: bool,
    },
    /// It ended; output that it had written before came first.
    Exited {
        /// Its exit code, when it exited.
        code: Option<i32>,
        /// The signal that ended it, when one did.
        signal: Option<i32>,
        /// Whether the sandbox's memory limit was the reason.
        oom: bool,
    },
}

/// The entry at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Last part of the path.
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// What it is; a link is not followed.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Time of the last change, in milliseconds since 1970.
    pub modified_ms: i64,
    /// Where a link points.
    pub target: Option<String>,
}

impl FileInfo {
    /// Bytes of its texts.
    fn text_bytes(&self) -> usize {
        self.name.len() + self.path.len() + self.target.as_ref().map_or(0, String::len)
    }

    /// Its cost while it is kept.
    fn cost(&self) -> usize {
        size_of::<Self>() + THING + self.text_bytes()
    }
}

/// Kinds of things at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A pipe, socket or device. It can be seen and removed, not read or written.
    Other,
}

/// Something changed below a watched path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// Path relative to the watched directory.
    pub name: String,
    /// The change.
    pub kind: WatchKind,
}

/// Kinds of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchKind {
    /// Appeared.
    Create,
    /// Its content changed.
    Write,
    /// Vanished.
    Remove,
    /// Got another name.
    Rename,
    /// Its permissions or times changed.
    Chmod,
}

/// The agent did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The sandbox has ended.
    #[error("the sandbox has ended")]
    Gone,
    /// The kernel refused, inside the sandbox. `source.kind()` distinguishes not found, exists, full and so on.
    #[error("{doing}")]
    Refused {
        /// The attempted operation.
        doing: String,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
    /// The request does not fit into a message: arguments and environment together are limited to 128 KiB.
    #[error("request too large")]
    TooLarge,
}

/// Largest number of bytes that one [`AgentHandle::read_file`] returns.
pub const READ_MAX: usize = 256 * 1024;
/// Largest number of entries that one [`AgentHandle::list_dir`] returns.
pub const LIST_MAX: usize = 10_000;
/// Bytes of names, paths and targets in one such list; what goes beyond is left out.
pub const LIST_BYTES_MAX: usize = 16 << 20;
/// The longest path that an agent reports, in bytes: the kernel's longest, a name after it, and non-text bytes tripled.
const TOLD_PATH_MAX: usize = 3 * (4096 + 256);
/// Programs, requests and watches at one time in one sandbox.
const AT_ONCE: usize = 1024;
/// Pieces of output between the agent's credit and the reader.
const EVENTS: usize = 4;
/// Changes that a watcher may be behind before the oldest are dropped.
const CHANGES: usize = 1024;

/// The host's end of the socket and what is in progress on it.
struct Connection {
    socket: AsyncFd<OwnedFd>,
    state: Mutex<State>,
    /// Pays for the sandbox's data that is kept.
    account: Account,
    /// Processes that the kernel has ended so far because memory ran out.
    oom_kills: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Events in the sandbox.
    journal: Arc<Journal>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("socket", &self.socket).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    gone: bool,
    last_id: u32,
    programs: HashMap<u32, Program>,
    /// Programs that the agent was asked to start.
    starting: HashMap<u32, mpsc::Sender<Result<i32, Failure>>>,
    calls: HashMap<u32, Answer>,
    watchers: HashMap<u32, mpsc::Sender<Held<WatchEvent>>>,
    usage: Usage,
    /// The peak memory, in bytes, and the CPU time, in microseconds, as reported; kept after the end.
    account: (u64, u64),
    /// Processes that the agent has killed because memory was full.
    memory_kills: u64,
}

struct Program {
    /// To the task that hands events to the reader; holds no more than the credit that was given.
    events: mpsc::UnboundedSender<ProcessEvent>,
    /// What the agent may still send, as it is charged.
    credit: Arc<Mutex<usize>>,
    rooms: [Arc<Semaphore>; 2],
    oom_kills_before: u64,
    /// A connection whose other end has not said yet that it sends no more.
    may_end: bool,
    /// Whether a successor was announced to the agent, and so may report that it took over.
    has_successor: bool,
}

/// A request's answer as it comes in.
struct Answer {
    bytes: BytesMut,
    entries: Vec<FileInfo>,
    /// Bytes in the entries.
    entry_bytes: usize,
    credit: Option<Credit>,
    /// Absent when there was no credit for it: the rest is thrown away.
    done: Option<tokio::sync::oneshot::Sender<Result<Answered, Failure>>>,
}

/// The outcome of a request.
#[derive(Debug)]
struct Answered {
    bytes: Bytes,
    entries: Held<Vec<FileInfo>>,
}

impl Answer {
    fn add_bytes(&mut self, bytes: &[u8], account: &Account) -> Result<(), protocol::Malformed> {
        if self.bytes.len() + bytes.len() > READ_MAX {
            return Err(protocol::Malformed);
        }
        if self.pay(account, bytes.len()) {
            self.bytes.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn add_entries(&mut self, entries: Vec<FileInfo>, account: &Account) -> Result<(), protocol::Malformed> {
        self.entry_bytes += entries.iter().map(FileInfo::text_bytes).sum::<usize>();
        if self.entries.len() + entries.len() > LIST_MAX || self.entry_bytes > LIST_BYTES_MAX {
            return Err(protocol::Malformed);
        }
        if self.pay(account, entries.iter().map(FileInfo::cost).sum()) {
            self.entries.extend(entries);
        }
        Ok(())
    }

    /// It is complete: to the requester, which keeps the credit with it.
    fn give(self) {
        let answered = if self.bytes.is_empty() {
            Answered { bytes: Bytes::new(), entries: Held::new(self.entries, self.credit) }
        } else {
            let bytes = Bytes::from_owner(Held::new(self.bytes, self.credit));
            Answered { bytes, entries: Held::new(Vec::new(), None) }
        };
        let _ = self.done.map(|done| done.send(Ok(answered)));
    }

    /// Pays for another part; `false` when it is not to be kept.
    fn pay(&mut self, account: &Account, bytes: usize) -> bool {
        let Some(done) = self.done.take() else { return false };
        match (account.take(bytes), &mut self.credit) {
            (Some(more), Some(credit)) => credit.add(more),
            (Some(more), credit) => *credit = Some(more),
            (None, _) => {
                let _ = done.send(Err(no_room()));
                (self.bytes, self.entries, self.credit) = (BytesMut::new(), Vec::new(), None);
                return false;
            }
        }
        self.done = Some(done);
        true
    }
}

/// Whether a program, or the shell around it, ended as the kernel ends what takes too much memory.
fn was_killed(code: Option<i32>, signal: Option<i32>) -> bool {
    signal == Some(libc::SIGKILL) || code == Some(128 + libc::SIGKILL)
}

/// The account is empty.
fn no_room() -> Failure {
    let doing = "keeping more of what this sandbox says: read or close what is open".to_owned();
    Failure { doing, errno: libc::EAGAIN }
}

const STDIN: usize = 0;
const CONTROL: usize = 1;

/// Hands events to their reader and gives credit back as they are taken; when the reader has gone, goes on taking them for it.
async fn hand_on(
    connection: Arc<Connection>,
    id: u32,
    mut queue: mpsc::UnboundedReceiver<ProcessEvent>,
    reader: mpsc::Sender<ProcessEvent>,
    credit: Arc<Mutex<usize>>,
    _paid: Credit,
) {
    while let Some(event) = queue.recv().await {
        let charge = event.charge();
        let _ = reader.send(event).await;
        if charge > 0 {
            *lock(&credit) += charge;
            let _ = connection.send(id, &ToAgent::Taken(charge as u32)).await;
        }
    }
}

impl AgentHandle {
    /// Takes over the connection to a sandbox's first process, once it reports that the sandbox is complete.
    ///
    /// `oom_kills` counts what the kernel has ended for lack of memory; the agent cannot know.
    pub(crate) async fn connect(
        socket: OwnedFd,
        env: Vec<(String, String)>,
        oom_kills: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<Self, JailError> {
        let at = |step: &str| {
            let step = step.to_owned();
            move |source| JailError::Setup { step, source }
        };
        let socket = sys::register(socket).map_err(at("connecting to the agent"))?;
        let connection = Arc::new(Connection {
            socket,
            state: Mutex::default(),
            account: Account::default(),
            oom_kills: Box::new(oom_kills),
            journal: Arc::default(),
        });
        let mut buffer = vec![0; MAX_FRAME];
        let Hello { home, tmp } = match connection.receive(&mut buffer).await {
            Ok(Some((_, FromAgent::Ready(hello)))) => hello,
            Ok(Some((_, FromAgent::SetupFailed(failure)))) => {
                return Err(at(&failure.shown())(std::io::Error::from_raw_os_error(failure.errno)));
            }
            Ok(_) => return Err(at("hearing from the agent")(std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) => return Err(at("hearing from the agent")(error)),
        };
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in
            [("HOME", home.as_str()), ("LANG", "C.UTF-8"), ("USER", "user"), ("LOGNAME", "user")]
        {
            all.insert(name.to_owned(), value.to_owned());
        }
        if tmp != "/tmp" {
            all.insert("TMPDIR".to_owned(), tmp);
        }
        all.extend(env);
        tokio::spawn(listen(Arc::clone(&connection), buffer));
        Ok(Self { connection, home: home.into(), env: all.into_iter().collect() })
    }

    /// Starts a program.
    ///
    /// # Errors
    /// [`AgentError::Refused`] when it cannot be executed or no process can be made.
    pub async fn start(&self, spec: ProcessSpec) -> Result<Process, AgentError> {
        let start = Start {
            argv: spec.argv,
            env: self.env.iter().cloned().chain(spec.env).collect(),
            cwd: spec.cwd,
            stdin: spec.stdin,
            pty: spec.pty,
            control: spec.control,
        };
        self.begin(&ToAgent::Start(start)).await
    }

    /// Asks for something that reads and writes, and waits until it has begun.
    async fn begin(&self, message: &ToAgent) -> Result<Process, AgentError> {
        let (started, mut pid) = mpsc::channel(1);
        let (sender, queue) = mpsc::unbounded_channel();
        // What may be in progress is paid for as long as there may be some of it: much while there is much left.
        let account = &self.connection.account;
        let wide = if account.left() > HELD / 2 { account.take(WINDOW) } else { None };
        let (window, paid) = match wide {
            Some(paid) => (WINDOW, paid),
            None => (FIRST_WINDOW, account.take(FIRST_WINDOW).ok_or_else(no_room)?),
        };
        let credit = Arc::new(Mutex::new(FIRST_WINDOW));
        let rooms = [0, 0].map(|_| Arc::new(Semaphore::new(WINDOW)));
        let oom_kills_before = (self.connection.oom_kills)();
        let id = {
            let mut state = self.connection.state();
            let id = state.new_id()?;
            let program = Program {
                events: sender,
                credit: Arc::clone(&credit),
                rooms: rooms.clone(),
                oom_kills_before,
                may_end: matches!(message, ToAgent::Accept | ToAgent::Connect { .. }),
                has_successor: false,
            };
            state.programs.insert(id, program);
            state.starting.insert(id, started);
            id
        };
        if let Err(error) = self.connection.send(id, message).await {
            self.connection.state().forget(id);
            return Err(error);
        }
        let (events_sender, events) = mpsc::channel(EVENTS);
        let given = Arc::clone(&credit);
        tokio::spawn(hand_on(Arc::clone(&self.connection), id, queue, events_sender, credit, paid));
        match pid.recv().await {
            Some(Ok(pid)) => {
                let connection = Arc::clone(&self.connection);
                if window > FIRST_WINDOW {
                    let more = window - FIRST_WINDOW;
                    *lock(&given) += more;
                    self.connection.send(id, &ToAgent::Taken(more as u32)).await?;
                }
                Ok(Process { handle: ProcessHandle { connection, rooms, id, pid }, events })
            }
            Some(Err(failure)) => Err(failure.into()),
            None => Err(AgentError::Gone),
        }
    }

    /// Sends a signal to every program and all that they started. Without a namespace of their own, what left its
    /// program's process group is not reached.
    ///
    /// # Errors
    /// [`AgentError::Gone`].
    pub async fn signal_all(&self, signal: i32) -> Result<(), AgentError> {
        self.connection.send(0, &ToAgent::SignalAll { signal, hold: true }).await
    }

    /// The sandbox's life, to be added to.
    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.connection.journal
    }

    /// Stops all programs once, or lets them go on. What is started after it runs.
    pub(crate) async fn halt(&self, yes: bool) -> Result<(), AgentError> {
        let signal = if yes { libc::SIGSTOP } else { libc::SIGCONT };
        self.connection.send(0, &ToAgent::SignalAll { signal, hold: false }).await
    }

    /// The home directory inside: `/home/user`, or where the weaker tiers put it.
    pub fn home(&self) -> &str {
        &self.home
    }

    /// Processes that were killed so far because memory was full, by the kernel or by the agent.
    pub(crate) fn memory_kills(&self) -> u64 {
        (self.connection.oom_kills)().saturating_add(self.connection.state().memory_kills)
    }

    /// Room for this many bytes in the sandbox's account, if there is some.
    pub(crate) fn credit(&self, bytes: usize) -> Option<Credit> {
        self.connection.account.take(bytes)
    }

    /// What the sandbox uses, as last reported by the agent; known only where there are no control groups.
    pub(crate) fn usage(&self) -> Usage {
        self.connection.state().usage
    }

    /// The peak memory, in bytes, and the CPU time, in microseconds, that the agent reported; zeros where there are control
    /// groups.
    pub(crate) fn account(&self) -> (u64, u64) {
        self.connection.state().account
    }

    /// What is at `path`; a link at its end is not followed.
    pub async fn stat(&self, path: &str) -> Result<FileInfo, AgentError> {
        let answered = self.call(ToAgent::Call(Call::Stat { path: path.into() })).await?;
        answered.entries.first().cloned().ok_or(AgentError::Gone)
    }

    /// What is in a directory, down to `depth` levels (1: only itself), at most [`LIST_MAX`] entries, by path; links
    /// are not followed. Fewer when their paths are very long ([`LIST_BYTES_MAX`]).
    pub async fn list_dir(&self, path: &str, depth: u32) -> Result<Held<Vec<FileInfo>>, AgentError> {
        let call = Call::List { path: path.into(), depth };
        self.call(ToAgent::Call(call)).await.map(|answered| answered.entries)
    }

    /// Makes a directory and its parents; returns whether it was new.
    pub async fn make_dir(&self, path: &str) -> Result<bool, AgentError> {
        let answered = self.call(ToAgent::Call(Call::MakeDir { path: path.into() })).await?;
        Ok(&answered.bytes[..] == b"new")
    }

    /// Gives a file or directory another path; parents are made.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), AgentError> {
        let call = Call::Rename { from: from.into(), to: to.into() };
        self.call(ToAgent::Call(call)).await.map(drop)
    }

    /// Removes a file, a link or a whole directory.
    pub async fn remove(&self, path: &str) -> Result<(), AgentError> {
        self.call(ToAgent::Call(Call::Remove { path: path.into() })).await.map(drop)
    }

    /// At most `len` bytes (and [`READ_MAX`]) of a regular file from `offset`; fewer only at its end.
    pub async fn read_file(&self, path: &str, offset: u64, len: usize) -> Result<Bytes, AgentError> {
        let call = Call::Read { path: path.into(), offset, len: len as u64 };
        self.call(ToAgent::Call(call)).await.map(|answered| answered.bytes)
    }

    /// Writes at `offset`; `truncate` first makes the file (and its parents) new and empty.
    pub async fn write_file(
        &self,
        path: &str,
        offset: u64,
        truncate: bool,
        bytes: Bytes,
    ) -> Result<(), AgentError> {
        let mut rest = bytes;
        let mut at = offset;
        let mut first = true;
        while first || !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(CHUNK));
            let length = piece.len() as u64;
            let write = Write { path: path.into(), offset: at, truncate: truncate && first };
            self.call(ToAgent::Write(write, piece)).await?;
            at += length;
            first = false;
        }
        Ok(())
    }

    /// Changes below a directory, until the receiver is dropped. A reader that falls far behind misses some.
    pub async fn watch(
        &self,
        path: &str,
        recursive: bool,
    ) -> Result<mpsc::Receiver<Held<WatchEvent>>, AgentError> {
        let (sender, receiver) = mpsc::channel(CHANGES);
        let (connection, dropped) = (Arc::clone(&self.connection), sender.clone());
        let id = {
            let mut state = connection.state();
            let id = state.new_id()?;
            state.watchers.insert(id, sender);
            id
        };
        // The receiver is dropped too when this call fails or is given up.
        tokio::spawn(async move {
            dropped.closed().await;
            connection.state().watchers.remove(&id);
            let _ = connection.send(id, &ToAgent::Call(Call::Unwatch)).await;
        });
        let call = Call::Watch { path: path.into(), recursive };
        self.call_as(id, ToAgent::Call(call)).await.map(|_| receiver)
    }

    async fn call(&self, message: ToAgent) -> Result<Answered, AgentError> {
        let id = self.connection.state().new_id()?;
        self.call_as(id, message).await
    }

    async fn call_as(&self, id: u32, message: ToAgent) -> Result<Answered, AgentError> {
        let (done, answer) = tokio::sync::oneshot::channel();
        let waiting = Answer {
            bytes: BytesMut::new(),
            entries: Vec::new(),
            entry_bytes: 0,
            credit: None,
            done: Some(done),
        };
        self.connection.state().calls.insert(id, waiting);
        if let Err(error) = self.connection.send(id, &message).await {
            self.connection.state().calls.remove(&id);
            return Err(error);
        }
        answer.await.map_err(|_| AgentError::Gone)?.map_err(AgentError::from)
    }
}

impl ProcessHandle {
    /// Pays for the sandbox's data that is kept.
    pub(crate) fn account(&self) -> &Account {
        &self.connection.account
    }

    /// Writes to its input; returns when the agent has room for more.
    pub async fn stdin(&self, bytes: Bytes) -> Result<(), AgentError> {
        self.feed(STDIN, bytes).await
    }

    /// Ends its input. On a terminal: types control-D.
    pub async fn close_stdin(&self) -> Result<(), AgentError> {
        self.connection.send(self.id, &ToAgent::CloseStdin).await
    }

    /// Writes to its descriptor 3; returns when the agent has room for more.
    pub async fn control(&self, bytes: Bytes) -> Result<(), AgentError> {
        self.feed(CONTROL, bytes).await
    }

    /// Sends a signal, to it alone or to its whole process group. Nothing happens when it has ended.
    pub async fn signal(&self, signal: i32, group: bool) -> Result<(), AgentError> {
        self.connection.send(self.id, &ToAgent::Signal { signal, group }).await
    }

    /// Names the process that is the program when it ends: one that it made, that has its descriptors, and that
    /// has no parent but the agent. 0 takes the name back. One that does not exist then is none.
    pub async fn successor(&self, pid: i32) -> Result<(), AgentError> {
        if let Some(program) = self.connection.state().programs.get_mut(&self.id) {
            program.has_successor = true;
        }
        self.connection.send(self.id, &ToAgent::Successor(pid)).await
    }

    /// Changes the size of its terminal.
    pub async fn resize(&self, cols: u16, rows: u16) -> Result<(), AgentError> {
        self.connection.send(self.id, &ToAgent::Resize { cols, rows }).await
    }

    async fn feed(&self, which: usize, mut bytes: Bytes) -> Result<(), AgentError> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(CHUNK));
            let room = self.rooms[which].acquire_many(charge(&piece) as u32);
            let room = room.await.map_err(|_| AgentError::Gone)?;
            let message = if which == STDIN { ToAgent::Stdin(piece) } else { ToAgent::Control(piece) };
            self.connection.send(self.id, &message).await?;
            room.forget(); // not before: who stops waiting here has sent nothing
        }
        Ok(())
    }
}

impl ProcessEvent {
    /// What counts against the credit.
    fn charge(&self) -> usize {
        match self {
            Self::Stdout(bytes) | Self::Stderr(bytes) | Self::Pty(bytes) | Self::Control(bytes) => {
                charge(bytes)
            }
            Self::Replaced { .. } | Self::Exited { .. } => 0,
        }
    }
}

impl From<Failure> for AgentError {
    fn from(failure: Failure) -> Self {
        Self::Refused {
            doing: failure.shown(),
            source: std::io::Error::from_raw_os_error(failure.errno), // any number will do
        }
    }
}

impl State {
    fn new_id(&mut self) -> Result<u32, AgentError> {
        if self.gone {
            return Err(AgentError::Gone);
        }
        if self.programs.len() + self.calls.len() + self.watchers.len() >= AT_ONCE {
            return Err(AgentError::Refused {
                doing: "taking another request".into(),
                source: std::io::Error::from_raw_os_error(libc::EAGAIN),
            });
        }
        self.last_id += 1;
        Ok(self.last_id)
    }

    /// Takes a program off the books; anyone who waits to feed it stops waiting.
    fn forget(&mut self, id: u32) -> Option<Program> {
        self.starting.remove(&id);
        let program = self.programs.remove(&id)?;
        program.rooms.iter().for_each(|room| room.close());
        Some(program)
    }
}

impl Connection {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    async fn send(&self, id: u32, message: &ToAgent) -> Result<(), AgentError> {
        let bytes = message.encode(id);
        if bytes.len() > MAX_FRAME {
            return Err(AgentError::TooLarge);
        }
        let send = self.socket.async_io(Interest::WRITABLE, |socket| sys::send(socket.as_fd(), &bytes, &[]));
        send.await.map_err(|_| AgentError::Gone)
    }

    /// The next message; `None` at the end. What is too long or malformed is an error.
    async fn receive(&self, buffer: &mut [u8]) -> std::io::Result<Option<(u32, FromAgent)>> {
        let receive = self.socket.async_io(Interest::READABLE, |socket| sys::receive(socket.as_fd(), buffer));
        let (length, _) = receive.await?;
        if length == 0 {
            return Ok(None);
        }
        FromAgent::decode(&buffer[..length]).map(Some).map_err(std::io::Error::other)
    }

    /// Ends the conversation; the agent takes that as its end.
    fn close(&self) {
        sys::hang_up(self.socket.get_ref());
        let ended = {
            let mut state = self.state();
            for program in state.programs.values() {
                program.rooms.iter().for_each(|room| room.close());
            }
            let account = state.account;
            std::mem::replace(&mut *state, State { gone: true, account, ..State::default() })
        };
        drop(ended); // outside the lock: wakes all waiters
    }

    fn note_memory(&self, is_full: bool) {
        if is_full {
            self.journal.note(Level::Warn, "a program was ended because the sandbox's memory was full");
        }
    }

    /// Hands one message to anyone who waits for it. An error is a sandbox that does not keep the rules.
    #[expect(clippy::too_many_lines, reason = "an arm for each kind of message")]
    fn dispatch(&self, id: u32, message: FromAgent) -> Result<(), protocol::Malformed> {
        let malformed = protocol::Malformed;
        let mut state = self.state();
        match message {
            FromAgent::Started { pid } => {
                let waiting = state.starting.remove(&id).ok_or(malformed)?;
                let _ = waiting.try_send(Ok(pid));
            }
            FromAgent::Stdout(bytes) => state.output(id, ProcessEvent::Stdout(bytes))?,
            FromAgent::Stderr(bytes) => state.output(id, ProcessEvent::Stderr(bytes))?,
            FromAgent::Pty(bytes) => state.output(id, ProcessEvent::Pty(bytes))?,
            FromAgent::Control(bytes) => state.output(id, ProcessEvent::Control(bytes))?,
            FromAgent::TookStdin(count) => state.give_room(id, STDIN, count)?,
            FromAgent::TookControl(count) => state.give_room(id, CONTROL, count)?,
            FromAgent::Exited(Exit { code, signal, oom }) => {
                let program = state.forget(id).ok_or(malformed)?;
                let oom = oom || was_killed(code, signal) && (self.oom_kills)() > program.oom_kills_before;
                self.note_memory(oom);
                let _ = program.events.send(ProcessEvent::Exited { code, signal, oom });
            }
            FromAgent::Replaced(Exit { code, signal, oom }) => {
                let kills = (self.oom_kills)();
                let program = state.programs.get_mut(&id).filter(|program| program.has_successor);
                let program = program.ok_or(malformed)?;
                program.has_successor = false;
                let oom = oom || was_killed(code, signal) && kills > program.oom_kills_before;
                program.oom_kills_before = kills;
                self.note_memory(oom);
                let _ = program.events.send(ProcessEvent::Replaced { code, signal, oom });
            }
            FromAgent::Bytes(bytes) => {
                state.calls.get_mut(&id).ok_or(malformed)?.add_bytes(&bytes, &self.account)?;
            }
            FromAgent::Entries(entries) => {
                state.calls.get_mut(&id).ok_or(malformed)?.add_entries(entries, &self.account)?;
            }
            FromAgent::Done => state.calls.remove(&id).ok_or(malformed)?.give(),
            FromAgent::Failed(failure) => {
                if let Some(answer) = state.calls.remove(&id) {
                    let _ = answer.done.map(|done| done.send(Err(failure)));
                } else {
                    let waiting = state.starting.remove(&id).ok_or(malformed)?;
                    state.forget(id);
                    let _ = waiting.try_send(Err(failure));
                }
            }
            FromAgent::Changed(event) if event.name.len() > TOLD_PATH_MAX => return Err(malformed),
            FromAgent::Changed(event) => {
                // One that is already in the socket when its watch ends has no receiver.
                if let Some(watcher) = state.watchers.get(&id)
                    && let Some(credit) =
                        self.account.take(size_of::<WatchEvent>() + THING + event.name.len())
                {
                    let _ = watcher.try_send(Held::new(event, Some(credit)));
                }
            }
            FromAgent::Ended => {
                let program =
                    state.programs.get_mut(&id).filter(|program| program.may_end).ok_or(malformed)?;
                program.may_end = false;
                let _ = program.events.send(ProcessEvent::Stdout(Bytes::new()));
            }
            FromAgent::Usage(usage) => {
                state.account.0 = state.account.0.max(usage.memory_bytes);
                state.account.1 = state.account.1.max(usage.cpu_micros);
                state.usage = usage;
            }
            FromAgent::MemoryKill => state.memory_kills = state.memory_kills.saturating_add(1),
            FromAgent::Ready(_) | FromAgent::SetupFailed(_) => return Err(malformed),
        }
        Ok(())
    }
}

impl State {
    fn output(&mut self, id: u32, event: ProcessEvent) -> Result<(), protocol::Malformed> {
        let program = self.programs.get(&id).ok_or(protocol::Malformed)?;
        let charge = event.charge();
        let mut credit = lock(&program.credit);
        *credit = credit.checked_sub(charge).filter(|_| charge > 0).ok_or(protocol::Malformed)?;
        let _ = program.events.send(event);
        Ok(())
    }

    fn give_room(&mut self, id: u32, which: usize, count: u32) -> Result<(), protocol::Malformed> {
        let room = &self.programs.get(&id).ok_or(protocol::Malformed)?.rooms[which];
        if room.available_permits() + count as usize > WINDOW {
            return Err(protocol::Malformed);
        }
        room.add_permits(count as usize);
        Ok(())
    }
}

/// Hands out the agent's messages until it is gone or breaks a rule.
async fn listen(connection: Arc<Connection>, mut buffer: Vec<u8>) {
    while let Ok(Some((id, message))) = connection.receive(&mut buffer).await {
        if connection.dispatch(id, message).is_err() {
            break;
        }
    }
    connection.close();
}

#[cfg(test)]
mod tests {
    //! The agent of these tests is a fake, because the real one does not break rules on demand.

    use std::io::ErrorKind;
    use std::time::Duration;

    use super::protocol::LEAST;
    use super::*;

    /// A handle, and the other end of its socket.
    async fn connected() -> (AgentHandle, OwnedFd) {
        let (ours, theirs) = sys::packet_pair().expect("sockets");
        say(&theirs, 0, &FromAgent::Ready(Hello { home: "/home/user".into(), tmp: "/tmp".into() }));
        let handle = AgentHandle::connect(ours, vec![], || 0).await.expect("connects");
        (handle, theirs)
    }

    fn say(socket: &OwnedFd, id: u32, message: &FromAgent) {
        sys::send(socket.as_fd(), &message.encode(id), &[]).expect("sends");
    }

    /// The same for many, which wait until they are read.
    async fn say_all(socket: &OwnedFd, id: u32, messages: Vec<FromAgent>) {
        let socket = socket.try_clone().expect("copies");
        let all = move || messages.iter().for_each(|message| say(&socket, id, message));
        tokio::task::spawn_blocking(all).await.expect("is not hung up on");
    }

    fn next(socket: &OwnedFd) -> (u32, ToAgent) {
        let mut buffer = vec![0; MAX_FRAME];
        let (length, _) = sys::receive(socket.as_fd(), &mut buffer).expect("receives");
        ToAgent::decode(&buffer[..length]).expect("well formed")
    }

    /// The same, without blocking who is to send it.
    async fn next_when_ready(socket: &OwnedFd) -> (u32, ToAgent) {
        while !matches!(sys::poll(&mut [sys::poll_fd(socket, true, false)], 0), Ok(1..)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        next(socket)
    }

    /// A program that this fake has "started".
    async fn program(handle: &AgentHandle, socket: &OwnedFd) -> Process {
        let spec = ProcessSpec { argv: vec!["x".into()], ..ProcessSpec::default() };
        let (started, ()) = tokio::join!(handle.start(spec), async {
            let (id, message) = next_when_ready(socket).await;
            assert!(matches!(message, ToAgent::Start(_)));
            say(socket, id, &FromAgent::Started { pid: 2 });
            let (_, more) = next_when_ready(socket).await;
            assert_eq!(more, ToAgent::Taken((WINDOW - FIRST_WINDOW) as u32));
        });
        started.expect("starts")
    }

    async fn assert_ended(handle: &AgentHandle) {
        let answer =
            tokio::time::timeout(Duration::from_secs(5), handle.stat("/")).await.expect("does not hang");
        assert!(matches!(answer, Err(AgentError::Gone)), "{answer:?}");
    }

    #[tokio::test]
    async fn a_message_that_breaks_a_rule_ends_the_sandbox() {
        let failure = || Failure { doing: "x".into(), errno: 1 };
        let forged = [
            FromAgent::Stdout(Bytes::from_static(b"x")).encode(77),
            FromAgent::Exited(Exit { code: Some(0), signal: None, oom: false }).encode(77),
            FromAgent::Replaced(Exit { code: Some(0), signal: None, oom: false }).encode(77),
            FromAgent::Started { pid: 1 }.encode(77),
            FromAgent::TookStdin(1).encode(77),
            FromAgent::Bytes(Bytes::from_static(b"x")).encode(77),
            FromAgent::Done.encode(77),
            FromAgent::Failed(failure()).encode(77),
            FromAgent::Ready(Hello { home: "/".into(), tmp: "/".into() }).encode(0),
            FromAgent::SetupFailed(failure()).encode(0),
            vec![1, 0],
            vec![200, 0, 0, 0, 0],
            b"\x0c\0\0\0\0[[[[[[".to_vec(),
            vec![4; MAX_FRAME + 1],
        ];
        for message in forged {
            let (handle, socket) = connected().await;
            sys::send(socket.as_fd(), &message, &[]).expect("sends");
            assert_ended(&handle).await;
        }
    }

    #[tokio::test]
    async fn output_beyond_the_credit_ends_the_sandbox_and_is_not_kept() {
        let (handle, socket) = connected().await;
        let mut process = program(&handle, &socket).await;
        let id = process.handle.id;
        for _ in 0..=WINDOW / CHUNK + EVENTS + 2 {
            let message = FromAgent::Stdout(vec![0; CHUNK].into()).encode(id);
            if sys::send(socket.as_fd(), &message, &[]).is_err() {
                break; // hung up on already
            }
            tokio::task::yield_now().await;
        }
        assert_ended(&handle).await;
        let mut kept = 0;
        while let Some(event) = process.events.recv().await {
            kept += event.charge();
        }
        assert!(kept <= WINDOW + (EVENTS + 2) * CHUNK, "{kept}");
    }

    #[tokio::test]
    async fn output_byte_by_byte_ends_the_sandbox_before_it_costs_many_times_what_it_holds() {
        let (handle, socket) = connected().await;
        let mut process = program(&handle, &socket).await;
        let message = FromAgent::Stdout(Bytes::from_static(b"x")).encode(process.handle.id);
        let most = WINDOW / LEAST + EVENTS + 2;
        let said = std::thread::spawn(move || {
            (0..).take(2 * most).take_while(|_| sys::send(socket.as_fd(), &message, &[]).is_ok()).count()
        });
        assert_ended(&handle).await;
        said.join().expect("is hung up on");
        let mut kept = 0;
        while process.events.recv().await.is_some() {
            kept += 1;
        }
        assert!(kept <= most, "{kept}");
    }

    #[tokio::test]
    async fn input_byte_by_byte_waits_as_if_it_were_more() {
        let (handle, socket) = connected().await;
        let process = program(&handle, &socket).await;
        let reader = std::thread::spawn(move || {
            (0..WINDOW / LEAST).for_each(|_| drop(next(&socket)));
            socket
        });
        let byte = Bytes::from_static(b"x");
        for _ in 0..WINDOW / LEAST {
            process.handle.stdin(byte.clone()).await.expect("fits");
        }
        let socket = reader.join().expect("reads");
        let feeding = process.handle.stdin(byte);
        tokio::pin!(feeding);
        assert!(futures::poll!(feeding.as_mut()).is_pending());
        say(&socket, process.handle.id, &FromAgent::TookStdin(LEAST as u32));
        feeding.await.expect("there is room again");
    }

    #[tokio::test]
    async fn an_answer_of_many_long_entries_is_cut_short() {
        let (handle, socket) = connected().await;
        let (answer, ()) = tokio::join!(handle.list_dir("/", 9), async {
            let (id, _) = next_when_ready(&socket).await;
            let entry = FileInfo {
                name: "x".repeat(MAX_FRAME - 1000),
                path: "/".into(),
                kind: FileKind::File,
                size: 0,
                mode: 0,
                modified_ms: 0,
                target: None,
            };
            let piece = FromAgent::Entries(vec![entry]).encode(id);
            tokio::task::spawn_blocking(move || {
                for _ in 0..LIST_BYTES_MAX / MAX_FRAME * 2 {
                    if sys::send(socket.as_fd(), &piece, &[]).is_err() {
                        return;
                    }
                }
                // No one was hung up on: an end, so that the test has one.
                say(&socket, id, &FromAgent::Done);
            })
            .await
            .expect("is hung up on");
        });
        assert!(matches!(answer, Err(AgentError::Gone)), "{} entries", answer.map_or(0, |all| all.len()));
    }

    /// Many unread answers: each is within its own bounds.
    #[tokio::test]
    async fn unread_answers_are_kept_up_to_the_sandbox_s_account() {
        let (handle, socket) = connected().await;
        let entry = |n: usize| FileInfo {
            name: n.to_string(),
            path: "x".repeat(3000),
            kind: FileKind::File,
            size: 0,
            mode: 0,
            modified_ms: 0,
            target: None,
        };
        let (mut kept, mut refused) = (Vec::new(), 0);
        while refused < 3 {
            let asking = handle.list_dir("/", 9);
            let (answer, ()) = tokio::join!(asking, async {
                let (id, _) = next_when_ready(&socket).await;
                let pieces = (0..50).map(|_| FromAgent::Entries((0..40).map(entry).collect()));
                say_all(&socket, id, pieces.chain([FromAgent::Done]).collect()).await;
            });
            match answer {
                Ok(entries) => kept.push(entries),
                Err(AgentError::Refused { source, .. }) => {
                    assert_eq!(source.raw_os_error(), Some(libc::EAGAIN));
                    refused += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        let bytes: usize = kept.iter().flat_map(|entries| entries.iter()).map(FileInfo::cost).sum();
        assert!((HELD / 4..HELD).contains(&bytes), "{bytes} bytes in {} answers", kept.len());
        drop(kept);
        assert_eq!(handle.connection.account.left(), HELD, "all of it is back");
    }

    #[tokio::test]
    async fn unfetched_changes_are_kept_up_to_the_sandbox_s_account() {
        let (handle, socket) = connected().await;
        let mut watches = Vec::new();
        for _ in 0..20 {
            let (watch, ()) = tokio::join!(handle.watch("/", true), async {
                let (id, _) = next_when_ready(&socket).await;
                say(&socket, id, &FromAgent::Done);
            });
            watches.push(watch.expect("watches"));
        }
        let ids: Vec<u32> = handle.connection.state().watchers.keys().copied().collect();
        for id in ids {
            let change = || {
                let name = "x".repeat(4000);
                FromAgent::Changed(WatchEvent { name, kind: WatchKind::Write })
            };
            say_all(&socket, id, (0..CHANGES).map(|_| change()).collect()).await;
        }
        let (stat, ()) = tokio::join!(handle.stat("/"), async {
            let (id, _) = next_when_ready(&socket).await;
            say(&socket, id, &FromAgent::Failed(Failure { doing: "x".into(), errno: libc::ENOENT }));
        });
        assert!(matches!(stat, Err(AgentError::Refused { .. })), "the sandbox lives: {stat:?}");
        let kept: usize = watches.iter().map(|watch| watch.len() * 4000).sum();
        assert!((HELD / 2..HELD).contains(&kept), "{kept}");
        drop(watches);
        assert_eq!(handle.connection.account.left(), HELD, "all of it is back");
    }

    #[tokio::test]
    async fn a_change_with_an_endless_name_ends_the_sandbox() {
        let (handle, socket) = connected().await;
        let watching = handle.watch("/", false);
        let (watch, ()) = tokio::join!(watching, async {
            let (id, _) = next_when_ready(&socket).await;
            say(&socket, id, &FromAgent::Done);
        });
        let mut watch = watch.expect("watches");
        let id = *handle.connection.state().watchers.keys().next().expect("one");
        let change = |length: usize| {
            FromAgent::Changed(WatchEvent { name: "x".repeat(length), kind: WatchKind::Write })
        };
        say(&socket, id, &change(TOLD_PATH_MAX));
        assert_eq!(watch.recv().await.map(|change| change.name.len()), Some(TOLD_PATH_MAX));
        say(&socket, id, &change(TOLD_PATH_MAX + 1));
        assert_ended(&handle).await;
    }

    #[tokio::test]
    async fn a_program_is_replaced_only_by_a_successor_that_was_named() {
        let (handle, socket) = connected().await;
        let mut process = program(&handle, &socket).await;
        process.handle.successor(7).await.expect("is sent");
        let (id, message) = next(&socket);
        assert_eq!(message, ToAgent::Successor(7));
        let replaced = FromAgent::Replaced(Exit { code: Some(3), signal: None, oom: false });
        say(&socket, id, &replaced);
        let event = process.events.recv().await;
        assert_eq!(event, Some(ProcessEvent::Replaced { code: Some(3), signal: None, oom: false }));
        say(&socket, id, &replaced);
        assert_ended(&handle).await;
    }

    /// The other side takes what fits into the window and reads nothing.
    #[tokio::test]
    async fn a_dropped_link_is_closed_even_if_unread_and_counts_until_it_is_gone() {
        use tokio::io::AsyncWriteExt;
        const PATIENCE: Duration = Duration::from_secs(20);
        let (handle, socket) = connected().await;
        let process = program(&handle, &socket).await;
        let places = Arc::new(Semaphore::new(1));
        let place = Arc::clone(&places).acquire_owned().await.expect("is open");
        let mut link = link::link(process, place, Duration::from_millis(10));
        let (hung_up, mut is_hung_up) = tokio::sync::oneshot::channel();
        let theirs = socket.try_clone().expect("copies");
        std::thread::spawn(move || {
            loop {
                if let (id, ToAgent::HangUp) = next(&theirs) {
                    return hung_up.send(id);
                }
            }
        });
        link.write_all(&vec![0; WINDOW + CHUNK]).await.expect("goes out or waits");
        tokio::task::yield_now().await;
        assert!(is_hung_up.try_recv().is_err());
        drop(link);
        let id = tokio::time::timeout(PATIENCE, is_hung_up).await.expect("is hung up").expect("by name");
        assert_eq!(places.available_permits(), 0);
        say(&socket, id, &FromAgent::Exited(Exit { code: None, signal: None, oom: false }));
        let place = tokio::time::timeout(PATIENCE, places.acquire()).await.expect("is free");
        drop(place);
    }

    #[tokio::test]
    async fn room_that_was_never_taken_is_not_given_back() {
        let (handle, socket) = connected().await;
        let process = program(&handle, &socket).await;
        say(&socket, process.handle.id, &FromAgent::TookStdin(u32::MAX));
        assert_ended(&handle).await;
        assert!(matches!(process.handle.stdin(Bytes::from_static(b"x")).await, Err(AgentError::Gone)));
    }

    #[tokio::test]
    async fn an_answer_without_end_is_cut_short() {
        let (handle, socket) = connected().await;
        let read = handle.read_file("/x", 0, 10);
        let (answer, ()) = tokio::join!(read, async {
            let (id, _) = next_when_ready(&socket).await;
            let piece = FromAgent::Bytes(vec![0; CHUNK].into()).encode(id);
            for _ in 0..READ_MAX / CHUNK + 2 {
                let _ = sys::send(socket.as_fd(), &piece, &[]);
                tokio::task::yield_now().await;
            }
        });
        assert!(matches!(answer, Err(AgentError::Gone)), "{answer:?}");
    }

    #[tokio::test]
    async fn an_end_in_the_middle_wakes_every_waiter() {
        let (handle, socket) = connected().await;
        let mut process = program(&handle, &socket).await;
        let reader = {
            let socket = socket.try_clone().expect("copies");
            std::thread::spawn(move || (0..WINDOW / CHUNK).for_each(|_| drop(next(&socket))))
        };
        process.handle.stdin(vec![0; WINDOW].into()).await.expect("fits");
        reader.join().expect("reads");
        let feeding = process.handle.stdin(Bytes::from_static(b"more than fits"));
        let (fed, stat, ()) = tokio::join!(feeding, handle.stat("/"), async { drop(socket) });
        assert!(matches!((fed, stat), (Err(AgentError::Gone), Err(AgentError::Gone))));
        assert_eq!(process.events.recv().await, None);
    }

    #[tokio::test]
    async fn a_sandbox_that_was_not_completed_says_which_step_failed() {
        let (ours, theirs) = sys::packet_pair().expect("sockets");
        say(&theirs, 0, &FromAgent::SetupFailed(Failure { doing: "mounting".into(), errno: libc::EPERM }));
        match AgentHandle::connect(ours, vec![], || 0).await {
            Err(JailError::Setup { step, source }) => {
                assert_eq!((step.as_str(), source.kind()), ("mounting", ErrorKind::PermissionDenied));
            }
            other => panic!("{other:?}"),
        }
    }

    /// Messages of every kind, for whom they are not, in any order, well formed or not, while much is in progress.
    #[tokio::test]
    async fn no_conversation_at_random_harms_or_holds_the_host() {
        for seed in 1..=100_u64 {
            let (handle, socket) = connected().await;
            let mut process = program(&handle, &socket).await;
            let asking = handle.clone();
            let waiting = tokio::spawn(async move {
                let spec = ProcessSpec { argv: vec!["x".into()], ..ProcessSpec::default() };
                let (stat, list) = (asking.stat("/x"), asking.list_dir("/", 9));
                let (read, watch) = (asking.read_file("/x", 0, 9), asking.watch("/", true));
                drop(tokio::join!(stat, list, read, watch, asking.listen(), asking.start(spec)));
            });
            let said = tokio::task::spawn_blocking(move || {
                let mut random = Random(seed);
                while random.below(60) > 0 && sys::send(socket.as_fd(), &random.message(), &[]).is_ok() {}
            });
            let end = async {
                said.await.expect("does not panic");
                waiting.await.expect("does not panic");
                while process.events.recv().await.is_some() {}
            };
            tokio::time::timeout(Duration::from_secs(30), end).await.expect("the wait ends");
            assert_ended(&handle).await;
        }
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, end: u64) -> u64 {
            // xorshift64
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % end
        }

        fn bytes(&mut self) -> Bytes {
            let length = self.below(300);
            (0..length).map(|_| self.below(256) as u8).collect()
        }

        fn message(&mut self) -> Vec<u8> {
            // Of seven that were given out, and some that were not.
            let id = self.below(10) as u32;
            let number = if self.below(9) == 0 { u32::MAX } else { self.below(2000) as u32 };
            let exit = Exit { code: Some(number as i32), signal: None, oom: self.below(2) == 0 };
            let text = String::from_utf8_lossy(&self.bytes()).into_owned();
            let bytes = self.bytes();
            match self.below(16) {
                0 => return bytes.to_vec(),
                1 => return [&[number as u8], &id.to_le_bytes()[..], &bytes].concat(),
                2 => FromAgent::Started { pid: number as i32 },
                3 => FromAgent::Stdout(bytes),
                4 => FromAgent::Stderr(bytes),
                5 => FromAgent::Control(bytes),
                6 => FromAgent::TookStdin(number),
                7 => FromAgent::TookControl(number),
                8 => FromAgent::Exited(exit),
                9 => FromAgent::Replaced(exit),
                10 => FromAgent::Bytes(bytes),
                11 => FromAgent::Entries(vec![]),
                12 => FromAgent::Changed(WatchEvent { name: text, kind: WatchKind::Create }),
                13 => FromAgent::Done,
                14 => FromAgent::Failed(Failure { doing: text, errno: number as i32 }),
                _ => FromAgent::Ended,
            }
            .encode(id)
        }
    }

    #[tokio::test]
    async fn words_of_a_sandbox_are_short_and_have_no_control_characters() {
        let (handle, socket) = connected().await;
        let (answer, ()) = tokio::join!(handle.stat("/x"), async {
            let (id, _) = next_when_ready(&socket).await;
            let doing = format!("reading\nFATAL \u{1b}]0;x\u{7}\u{9b}2J{}", "y".repeat(9000));
            say(&socket, id, &FromAgent::Failed(Failure { doing, errno: i32::MIN }));
        });
        let Err(AgentError::Refused { doing, .. }) = answer else { panic!("{answer:?}") };
        assert!(doing.starts_with("reading\u{fffd}FATAL "), "{doing}");
        assert!(doing.chars().count() == 500 && !doing.contains(char::is_control), "{doing}");
    }

    #[tokio::test]
    async fn a_request_that_does_not_fit_is_refused_here() {
        let (handle, _socket) = connected().await;
        let spec = ProcessSpec { argv: vec!["x".repeat(MAX_FRAME)], ..ProcessSpec::default() };
        assert!(matches!(handle.start(spec).await, Err(AgentError::TooLarge)));
    }
}
