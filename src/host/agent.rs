//! The agent: the first process of a sandbox, and the host's client to it.
//!
//! It is a process table and a file server and knows nothing of languages. The client side treats every
//! byte as hostile: a frame has a largest size, ids that were never given out end the sandbox, and what a
//! program prints is bounded by credit that only the reader of [`Process::events`] gives back.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

/// The async client of one sandbox's agent. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AgentHandle;

/// A program to start.
#[derive(Debug, Clone, Default)]
pub struct ProcessSpec {
    /// The program, found on `PATH` when it has no slash, and its arguments.
    pub argv: Vec<String>,
    /// Added to the sandbox's environment; a later entry of the same name wins.
    pub env: Vec<(String, String)>,
    /// Where it starts; the home directory when absent. Relative paths start at the home directory.
    pub cwd: Option<String>,
    /// What it reads.
    pub stdin: Stdin,
    /// Columns and rows of a terminal to run it on. Output then comes as [`ProcessEvent::Pty`], and
    /// [`ProcessHandle::stdin`] types.
    pub pty: Option<(u16, u16)>,
    /// Whether descriptor 3 is a stream socket to [`ProcessHandle::control`] and [`ProcessEvent::Control`].
    pub control: bool,
}

/// What a program reads from descriptor 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Stdin {
    /// Nothing: the end at once.
    #[default]
    Null,
    /// What [`ProcessHandle::stdin`] writes.
    Pipe,
}

/// A started program: what it says, and the handle to speak to it. Dropping it does not end the program;
/// output that nobody receives any more is thrown away.
#[derive(Debug)]
pub struct Process {
    /// Speaks to it; cheap to clone.
    pub handle: ProcessHandle,
    /// What it says, bounded: a slow reader slows the program. `Exited` is the last event. The channel ends
    /// without one when the sandbox ends.
    pub events: mpsc::Receiver<ProcessEvent>,
}

/// Speaks to a started program. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ProcessHandle {
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

/// What is at a path.
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
    /// What happened.
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
    /// The kernel refused, inside the sandbox. `source.kind()` tells not found, exists, full and so on apart.
    #[error("{doing}")]
    Refused {
        /// What was being attempted.
        doing: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The request does not fit into a message: arguments and environment together are limited to 128 KiB.
    #[error("request too large")]
    TooLarge,
}

/// Largest number of bytes that one [`AgentHandle::read_file`] returns.
pub const READ_MAX: usize = 256 * 1024;

impl AgentHandle {
    /// Starts a program.
    ///
    /// # Errors
    /// [`AgentError::Refused`] when it cannot be executed or no process can be made.
    pub async fn start(&self, _spec: ProcessSpec) -> Result<Process, AgentError> {
        unimplemented!("lands next")
    }

    /// The home directory inside: `/home/user`, or where the weaker tiers put it.
    pub fn home(&self) -> &str {
        unimplemented!("lands next")
    }

    /// What is at `path`; a link at its end is not followed.
    pub async fn stat(&self, _path: &str) -> Result<FileInfo, AgentError> {
        unimplemented!("lands next")
    }

    /// What is in a directory, down to `depth` levels (1: only itself), at most 10 000 entries; links are not followed.
    pub async fn list_dir(&self, _path: &str, _depth: u32) -> Result<Vec<FileInfo>, AgentError> {
        unimplemented!("lands next")
    }

    /// Makes a directory and its parents; says whether it was new.
    pub async fn make_dir(&self, _path: &str) -> Result<bool, AgentError> {
        unimplemented!("lands next")
    }

    /// Gives a file or directory another path; parents are made.
    pub async fn rename(&self, _from: &str, _to: &str) -> Result<(), AgentError> {
        unimplemented!("lands next")
    }

    /// Removes a file, a link or a whole directory.
    pub async fn remove(&self, _path: &str) -> Result<(), AgentError> {
        unimplemented!("lands next")
    }

    /// At most `len` bytes (and [`READ_MAX`]) of a regular file from `offset`; fewer only at its end.
    pub async fn read_file(&self, _path: &str, _offset: u64, _len: usize) -> Result<Bytes, AgentError> {
        unimplemented!("lands next")
    }

    /// Writes at `offset`; `truncate` first makes the file (and its parents) new and empty.
    pub async fn write_file(
        &self,
        _path: &str,
        _offset: u64,
        _truncate: bool,
        _bytes: Bytes,
    ) -> Result<(), AgentError> {
        unimplemented!("lands next")
    }

    /// Changes below a directory, until the receiver is dropped.
    pub async fn watch(
        &self,
        _path: &str,
        _recursive: bool,
    ) -> Result<mpsc::Receiver<WatchEvent>, AgentError> {
        unimplemented!("lands next")
    }
}

impl ProcessHandle {
    /// Writes to its input; returns when the agent has room for more.
    pub async fn stdin(&self, _bytes: Bytes) -> Result<(), AgentError> {
        unimplemented!("lands next")
    }

    /// Ends its input. On a terminal: types control-D.
    pub async fn close_stdin(&self) -> Result<(), AgentError> {
        unimplemented!("lands next")
    }

    /// Writes to its descriptor 3; returns when the agent has room for more.
    pub async fn control(&self, _bytes: Bytes) -> Result<(), AgentError> {
        unimplemented!("lands next")
    }

    /// Sends a signal, to it alone or to its whole process group. Nothing happens when it has ended.
    pub async fn signal(&self, _signal: i32, _group: bool) -> Result<(), AgentError> {
        unimplemented!("lands next")
    }

    /// Changes the size of its terminal.
    pub async fn resize(&self, _cols: u16, _rows: u16) -> Result<(), AgentError> {
        unimplemented!("lands next")
    }
}
