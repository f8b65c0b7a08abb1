//! Messages between the host and an agent: one socket message each, `kind, id, body`.
//!
//! The socket keeps message boundaries, so nothing can be half there; what is longer than [`MAX_FRAME`] is refused.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{FileInfo, Stdin, WatchEvent};
use crate::host::jail::Usage;

/// Longest message in bytes. A socket buffer (208 KiB unless the machine is configured otherwise) must hold it.
pub(crate) const MAX_FRAME: usize = 160 * 1024;
/// Longest piece of a program's input or output or of a file in one message.
pub(crate) const CHUNK: usize = 64 * 1024;
/// Bytes that may be in progress in one direction of one program before the receiver has said that it took some, each
/// piece [counted](charge) as no less than [`LEAST`].
pub(crate) const WINDOW: usize = 512 * 1024;
/// What of that a program may send before the host has said how much more.
pub(crate) const FIRST_WINDOW: usize = 64 * 1024;

/// What a message counts at least against [`WINDOW`] and credit: about what it costs to keep one, however little is in
/// it. Counted by its bytes alone, output that comes byte by byte would take eighty times as much as it may.
pub(crate) const LEAST: usize = 256;

/// What a piece of input or output counts.
pub(crate) fn charge(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { bytes.len().max(LEAST) }
}

const HEADER: usize = 5;

/// A message that is not one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub(crate) struct Malformed;

/// Host to agent. `id` names a program or a request; the host chooses it.
#[derive(Debug, PartialEq)]
pub(crate) enum ToAgent {
    Start(Start),
    Stdin(Bytes),
    CloseStdin,
    Control(Bytes),
    Signal {
        signal: i32,
        group: bool,
    },
    Resize {
        cols: u16,
        rows: u16,
    },
    /// The reader took output that was charged this much.
    Taken(u32),
    Call(Call),
    Write(Write, Bytes),
    /// To every program and all that it started; the id means nothing. When it stops them and `hold`, again and again, until
    /// they are to go on: also what starts meanwhile.
    SignalAll {
        signal: i32,
        hold: bool,
    },
    /// Opens the proxy port, once; the answer is its number, two bytes.
    Listen,
    /// The next connection to the sandbox's proxy port gets this id. From then on it is like a program that reads and
    /// writes: `Started`, `Stdout`, `Stdin`, `CloseStdin`, `Exited`.
    Accept,
    /// A connection to a port of the sandbox, which gets this id.
    Connect {
        port: u16,
    },
    /// Closes a connection, or takes an `Accept` back, at once.
    HangUp,
    /// When the program ends, this process is to go on in its place, with its descriptors; 0 for none.
    Successor(i32),
}

/// Agent to host.
#[derive(Debug, PartialEq)]
pub(crate) enum FromAgent {
    /// The sandbox is complete. First message, unless [`FromAgent::SetupFailed`].
    Ready(Hello),
    SetupFailed(Failure),
    Started {
        pid: i32,
    },
    Stdout(Bytes),
    Stderr(Bytes),
    Pty(Bytes),
    Control(Bytes),
    /// The program took all of what was charged this much of its input, or of its control stream.
    TookStdin(u32),
    TookControl(u32),
    Exited(Exit),
    /// It ended, and the process that [`ToAgent::Successor`] named is the program now.
    Replaced(Exit),
    /// A part of an answer.
    Bytes(Bytes),
    Entries(Vec<FileInfo>),
    Changed(WatchEvent),
    /// The answer is complete.
    Done,
    Failed(Failure),
    Usage(Usage),
    /// The other end of a connection will send no more.
    Ended,
    /// A process was killed because the sandbox's memory was full.
    MemoryKill,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Start {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: Option<String>,
    pub stdin: Stdin,
    pub pty: Option<(u16, u16)>,
    pub control: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Call {
    Stat { path: String },
    List { path: String, depth: u32 },
    MakeDir { path: String },
    Rename { from: String, to: String },
    Remove { path: String },
    Read { path: String, offset: u64, len: u64 },
    Watch { path: String, recursive: bool },
    Unwatch,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Write {
    pub path: String,
    pub offset: u64,
    pub truncate: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub home: String,
    /// Where temporary files go.
    pub tmp: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub oom: bool,
}

/// What did not work, and the kernel's number for why.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub doing: String,
    pub errno: i32,
}

impl Failure {
    pub(crate) fn new(doing: impl Into<String>, error: &std::io::Error) -> Self {
        Self { doing: doing.into(), errno: error.raw_os_error().unwrap_or(libc::EINVAL) }
    }

    /// The words as they may be shown and logged: they come from a sandbox, so they are short and on one line.
    pub(crate) fn shown(&self) -> String {
        let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
        self.doing.chars().take(500).map(shown).collect()
    }
}

impl ToAgent {
    pub(crate) fn encode(&self, id: u32) -> Vec<u8> {
        match self {
            Self::Start(start) => json(1, id, start),
            Self::Stdin(bytes) => frame(2, id, bytes),
            Self::CloseStdin => frame(3, id, &[]),
            Self::Control(bytes) => frame(4, id, bytes),
            Self::Signal { signal, group } => json(5, id, &(signal, group)),
            Self::Resize { cols, rows } => json(6, id, &(cols, rows)),
            Self::Taken(count) => frame(7, id, &count.to_le_bytes()),
            Self::Call(call) => json(8, id, call),
            Self::Write(write, bytes) => {
                let head = serde_json::to_vec(write).unwrap_or_default();
                let mut body = Vec::with_capacity(4 + head.len() + bytes.len());
                body.extend_from_slice(&(head.len() as u32).to_le_bytes());
                body.extend_from_slice(&head);
                body.extend_from_slice(bytes);
                frame(9, id, &body)
            }
            Self::SignalAll { signal, hold } => json(10, id, &(signal, hold)),
            Self::Accept => frame(11, id, &[]),
            Self::Connect { port } => json(12, id, port),
            Self::HangUp => frame(13, id, &[]),
            Self::Successor(pid) => json(14, id, pid),
            Self::Listen => frame(15, id, &[]),
        }
    }

    pub(crate) fn decode(message: &[u8]) -> Result<(u32, Self), Malformed> {
        let (kind, id, body) = split(message)?;
        let bytes = || Bytes::copy_from_slice(body);
        let decoded = match kind {
            1 => Self::Start(parse(body)?),
            2 => Self::Stdin(bytes()),
            3 => Self::CloseStdin,
            4 => Self::Control(bytes()),
            5 => {
                let (signal, group) = parse(body)?;
                Self::Signal { signal, group }
            }
            6 => {
                let (cols, rows) = parse(body)?;
                Self::Resize { cols, rows }
            }
            7 => Self::Taken(number(body)?),
            8 => Self::Call(parse(body)?),
            9 => {
                let (length, rest) = body.split_at_checked(4).ok_or(Malformed)?;
                let (head, data) = rest.split_at_checked(number(length)? as usize).ok_or(Malformed)?;
                Self::Write(parse(head)?, Bytes::copy_from_slice(data))
            }
            10 => {
                let (signal, hold) = parse(body)?;
                Self::SignalAll { signal, hold }
            }
            11 => Self::Accept,
            12 => Self::Connect { port: parse(body)? },
            13 => Self::HangUp,
            14 => Self::Successor(parse(body)?),
            15 => Self::Listen,
            _ => return Err(Malformed),
        };
        Ok((id, decoded))
    }
}

impl FromAgent {
    pub(crate) fn encode(&self, id: u32) -> Vec<u8> {
        match self {
            Self::Ready(hello) => json(1, id, hello),
            Self::SetupFailed(failure) => json(2, id, failure),
            Self::Started { pid } => json(3, id, pid),
            Self::Stdout(bytes) => frame(4, id, bytes),
            Self::Stderr(bytes) => frame(5, id, bytes),
            Self::Pty(bytes) => frame(6, id, bytes),
            Self::Control(bytes) => frame(7, id, bytes),
            Self::TookStdin(count) => frame(8, id, &count.to_le_bytes()),
            Self::TookControl(count) => frame(9, id, &count.to_le_bytes()),
            Self::Exited(exit) => json(10, id, exit),
            Self::Bytes(bytes) => frame(11, id, bytes),
            Self::Entries(entries) => json(12, id, entries),
            Self::Changed(event) => json(13, id, event),
            Self::Done => frame(14, id, &[]),
            Self::Failed(failure) => json(15, id, failure),
            Self::Usage(usage) => json(16, id, usage),
            Self::Ended => frame(17, id, &[]),
            Self::Replaced(exit) => json(18, id, exit),
            Self::MemoryKill => frame(19, id, &[]),
        }
    }

    pub(crate) fn decode(message: &[u8]) -> Result<(u32, Self), Malformed> {
        let (kind, id, body) = split(message)?;
        let bytes = || Bytes::copy_from_slice(body);
        let decoded = match kind {
            1 => Self::Ready(parse(body)?),
            2 => Self::SetupFailed(parse(body)?),
            3 => Self::Started { pid: parse(body)? },
            4 => Self::Stdout(bytes()),
            5 => Self::Stderr(bytes()),
            6 => Self::Pty(bytes()),
            7 => Self::Control(bytes()),
            8 => Self::TookStdin(number(body)?),
            9 => Self::TookControl(number(body)?),
            10 => Self::Exited(parse(body)?),
            11 => Self::Bytes(bytes()),
            12 => Self::Entries(parse(body)?),
            13 => Self::Changed(parse(body)?),
            14 => Self::Done,
            15 => Self::Failed(parse(body)?),
            16 => Self::Usage(parse(body)?),
            17 => Self::Ended,
            18 => Self::Replaced(parse(body)?),
            19 => Self::MemoryKill,
            _ => return Err(Malformed),
        };
        Ok((id, decoded))
    }
}

fn frame(kind: u8, id: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + body.len());
    out.push(kind);
    out.extend_from_slice(&id.to_le_bytes());
    out.extend_from_slice(body);
    out
}

fn json(kind: u8, id: u32, body: &impl Serialize) -> Vec<u8> {
    // Plain structures of strings and numbers always serialise; an empty body would be refused as malformed.
    frame(kind, id, &serde_json::to_vec(body).unwrap_or_default())
}

fn split(message: &[u8]) -> Result<(u8, u32, &[u8]), Malformed> {
    let (header, body) = message.split_at_checked(HEADER).ok_or(Malformed)?;
    Ok((header[0], number(&header[1..])?, body))
}

fn number(bytes: &[u8]) -> Result<u32, Malformed> {
    bytes.try_into().map(u32::from_le_bytes).map_err(|_| Malformed)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Malformed> {
    serde_json::from_slice(body).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_message_comes_out_as_it_went_in() {
        let write = Write { path: "/tmp/ü".into(), offset: 7, truncate: true };
        let message = ToAgent::Write(write, Bytes::from_static(b"\0\xff"));
        assert_eq!(ToAgent::decode(&message.encode(9)), Ok((9, message)));
        let message = FromAgent::Exited(Exit { code: None, signal: Some(9), oom: true });
        assert_eq!(FromAgent::decode(&message.encode(u32::MAX)), Ok((u32::MAX, message)));
    }

    #[test]
    fn a_length_that_lies_is_malformed() {
        let mut message = frame(9, 1, &u32::MAX.to_le_bytes());
        message.extend_from_slice(b"{}");
        assert_eq!(ToAgent::decode(&message), Err(Malformed));
        assert_eq!(FromAgent::decode(&[7, 0, 0]), Err(Malformed));
        assert_eq!(FromAgent::decode(&[8, 0, 0, 0, 0, 1, 2]), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(message in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = FromAgent::decode(&message);
            let _ = ToAgent::decode(&message);
        }

        #[test]
        fn messages_round_trip(id: u32, body in proptest::collection::vec(any::<u8>(), 0..99)) {
            let message = FromAgent::Stdout(body.into());
            prop_assert_eq!(FromAgent::decode(&message.encode(id)), Ok((id, message)));
        }
    }
}
