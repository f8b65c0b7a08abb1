//! envd on port 49983: processes and files, as the proto3 JSON of its Connect services, and its plain HTTP bodies.
//!
//! proto3 JSON has three habits to know: bytes are base64, 64-bit integers are texts, and a member with its default
//! value may be missing (an `end` without `exitCode` means 0).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::nullable;

/// Bytes, base64 on the wire.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Base64(pub Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
        BASE64_STANDARD.decode(text.as_bytes()).map(Self).map_err(serde::de::Error::custom)
    }
}

impl std::fmt::Debug for Base64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Base64({} bytes)", self.0.len())
    }
}

/// A message without members, `{}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Empty {}

/// Connect paths of the `process.Process` service.
pub mod process {
    /// Server stream: [`StartRequest`](super::StartRequest) to [`ProcessResponse`](super::ProcessResponse)s.
    pub const START: &str = "/process.Process/Start";
    /// Server stream: [`ProcessRequest`](super::ProcessRequest) to [`ProcessResponse`](super::ProcessResponse)s.
    pub const CONNECT: &str = "/process.Process/Connect";
    /// Unary: [`Empty`](super::Empty) to [`ProcessList`](super::ProcessList).
    pub const LIST: &str = "/process.Process/List";
    /// Unary: [`SendInput`](super::SendInput).
    pub const SEND_INPUT: &str = "/process.Process/SendInput";
    /// Client stream of input.
    pub const STREAM_INPUT: &str = "/process.Process/StreamInput";
    /// Unary: [`SendSignal`](super::SendSignal).
    pub const SEND_SIGNAL: &str = "/process.Process/SendSignal";
    /// Unary: [`UpdateProcess`](super::UpdateProcess).
    pub const UPDATE: &str = "/process.Process/Update";
    /// Unary: [`ProcessRequest`](super::ProcessRequest).
    pub const CLOSE_STDIN: &str = "/process.Process/CloseStdin";
}

/// Connect paths of the `filesystem.Filesystem` service.
pub mod filesystem {
    /// Unary: [`PathRequest`](super::PathRequest) to [`EntryResponse`](super::EntryResponse).
    pub const STAT: &str = "/filesystem.Filesystem/Stat";
    /// Unary: [`PathRequest`](super::PathRequest) to [`EntryResponse`](super::EntryResponse).
    pub const MAKE_DIR: &str = "/filesystem.Filesystem/MakeDir";
    /// Unary: [`MoveRequest`](super::MoveRequest) to [`EntryResponse`](super::EntryResponse).
    pub const MOVE: &str = "/filesystem.Filesystem/Move";
    /// Unary: [`ListDirRequest`](super::ListDirRequest) to [`EntriesResponse`](super::EntriesResponse).
    pub const LIST_DIR: &str = "/filesystem.Filesystem/ListDir";
    /// Unary: [`PathRequest`](super::PathRequest) to [`Empty`](super::Empty).
    pub const REMOVE: &str = "/filesystem.Filesystem/Remove";
    /// Server stream: [`WatchRequest`](super::WatchRequest) to [`WatchResponse`](super::WatchResponse)s.
    pub const WATCH_DIR: &str = "/filesystem.Filesystem/WatchDir";
    /// Unary: [`WatchRequest`](super::WatchRequest) to [`Watcher`](super::Watcher).
    pub const CREATE_WATCHER: &str = "/filesystem.Filesystem/CreateWatcher";
    /// Unary: [`Watcher`](super::Watcher) to [`WatcherEvents`](super::WatcherEvents).
    pub const GET_WATCHER_EVENTS: &str = "/filesystem.Filesystem/GetWatcherEvents";
    /// Unary: [`Watcher`](super::Watcher) to [`Empty`](super::Empty).
    pub const REMOVE_WATCHER: &str = "/filesystem.Filesystem/RemoveWatcher";
}

/// What to run.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessConfig {
    /// The program.
    pub cmd: String,
    /// Its arguments, without the program's name.
    #[serde(default, deserialize_with = "nullable")]
    pub args: Vec<String>,
    /// Added to the environment.
    #[serde(default, deserialize_with = "nullable")]
    pub envs: BTreeMap<String, String>,
    /// Working directory; the user's home when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Arguments and environment may hold code and secrets, so the debug form says only how many.
impl std::fmt::Debug for ProcessConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProcessConfig")
            .field("cmd", &self.cmd)
            .field("args", &self.args.len())
            .field("envs", &self.envs.len())
            .field("cwd", &self.cwd)
            .finish()
    }
}

/// A terminal's size in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PtySize {
    /// Columns.
    #[serde(default)]
    pub cols: u32,
    /// Rows.
    #[serde(default)]
    pub rows: u32,
}

/// A terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Pty {
    /// Its size.
    #[serde(default, deserialize_with = "nullable")]
    pub size: PtySize,
}

/// `Start`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StartRequest {
    /// What to run.
    pub process: ProcessConfig,
    /// With a terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// A name to find it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether input will be sent; an old client that leaves it out means yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
}

/// Which process: by one of the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Selector {
    /// By its process id.
    Pid(u32),
    /// By the tag given at start.
    Tag(String),
}

/// `Connect`, `CloseStdin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessRequest {
    /// Which process.
    pub process: Selector,
}

/// One message of the streams of `Start` and `Connect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessResponse {
    /// What happened.
    pub event: ProcessEvent,
}

/// What happened to a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProcessEvent {
    /// It runs.
    Start(Started),
    /// It wrote.
    Data(ProcessOutput),
    /// It ended.
    End(ProcessEnd),
    /// Nothing, for the sake of the connection.
    Keepalive(Empty),
}

/// The first event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Started {
    /// Process id inside the sandbox.
    #[serde(default)]
    pub pid: u32,
}

/// What a process wrote, cut anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessOutput {
    /// On standard output.
    Stdout(Base64),
    /// On standard error.
    Stderr(Base64),
    /// On its terminal.
    Pty(Base64),
}

/// The last event.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessEnd {
    /// The exit status; -1 when a signal ended it.
    #[serde(default)]
    pub exit_code: i32,
    /// Whether it ended by itself.
    #[serde(default)]
    pub exited: bool,
    /// `exit status 3`, `signal: killed`.
    #[serde(default)]
    pub status: String,
    /// The status again when it is a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Signals by their numbers on Linux, with the names after `signal: ` in [`ProcessEnd::status`].
const SIGNALS: [(i32, &str); 16] = [
    (1, "hangup"),
    (2, "interrupt"),
    (3, "quit"),
    (4, "illegal instruction"),
    (5, "trace/breakpoint trap"),
    (6, "aborted"),
    (7, "bus error"),
    (8, "floating point exception"),
    (9, "killed"),
    (11, "segmentation fault"),
    (13, "broken pipe"),
    (14, "alarm clock"),
    (15, "terminated"),
    (24, "CPU time limit exceeded"),
    (25, "file size limit exceeded"),
    (31, "bad system call"),
];

/// How a status says that a signal ended the process.
pub fn signal_status(number: i32) -> String {
    let known = SIGNALS.iter().find(|known| known.0 == number);
    known.map_or_else(|| format!("signal: signal {number}"), |(_, name)| format!("signal: {name}"))
}

/// The number of the signal that a status names.
pub fn signal_in(status: &str) -> Option<i32> {
    let said = status.strip_prefix("signal: ")?;
    // Go and the local host say more in parentheses: `(core dumped)`, `(out of memory)`.
    let name = said.split_once(" (").map_or(said, |(name, _)| name);
    let known = SIGNALS.iter().find(|known| known.1 == name);
    known.map(|known| known.0).or_else(|| name.strip_prefix("signal ")?.parse().ok())
}

/// `List`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessList {
    /// The processes that run.
    #[serde(default, deserialize_with = "nullable")]
    pub processes: Vec<ProcessInfo>,
}

/// A process that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// What was asked for.
    pub config: ProcessConfig,
    /// Process id.
    #[serde(default)]
    pub pid: u32,
    /// Its tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Input to a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessInput {
    /// To its standard input.
    Stdin(Base64),
    /// To its terminal.
    Pty(Base64),
}

/// `SendInput`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendInput {
    /// Which process.
    pub process: Selector,
    /// What to write.
    pub input: ProcessInput,
}

/// One message of `StreamInput`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamInput {
    /// The first message: which process.
    Start(ProcessRequest),
    /// What to write.
    Data(StreamInputData),
    /// Nothing, for the sake of the connection.
    Keepalive(Empty),
}

/// A piece of input in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamInputData {
    /// What to write.
    pub input: ProcessInput,
}

/// The two signals that envd sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Signal {
    /// Please end.
    #[serde(rename = "SIGNAL_SIGTERM")]
    Term,
    /// End.
    #[serde(rename = "SIGNAL_SIGKILL")]
    Kill,
}

/// `SendSignal`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendSignal {
    /// Which process; only it, never its children.
    pub process: Selector,
    /// Which signal.
    pub signal: Signal,
}

/// `Update`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateProcess {
    /// Which process.
    pub process: Selector,
    /// The terminal's new size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

/// `Stat`, `MakeDir`, `Remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRequest {
    /// Relative ones start at the user's home.
    pub path: String,
}

/// `Move`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRequest {
    /// From.
    pub source: String,
    /// To.
    pub destination: String,
}

/// `ListDir`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDirRequest {
    /// A directory.
    pub path: String,
    /// How many levels, 1 for its entries only.
    #[serde(default)]
    pub depth: u32,
}

/// The answer of `Stat`, `MakeDir`, `Move`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EntryResponse {
    /// The file or directory.
    pub entry: EntryInfo,
}

/// The answer of `ListDir`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EntriesResponse {
    /// The entries.
    #[serde(default, deserialize_with = "nullable")]
    pub entries: Vec<EntryInfo>,
}

/// What kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum FileType {
    /// A file.
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    /// A directory.
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    /// A symbolic link.
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
    /// Something else.
    #[default]
    #[serde(rename = "FILE_TYPE_UNSPECIFIED", other)]
    Unspecified,
}

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EntryInfo {
    /// The last part of its path.
    pub name: String,
    /// What it is.
    #[serde(rename = "type")]
    pub file_type: FileType,
    /// The whole path.
    pub path: String,
    /// Bytes; a text on the wire.
    #[serde(with = "int64")]
    pub size: i64,
    /// Permission bits.
    pub mode: u32,
    /// The same as `ls` writes them.
    pub permissions: String,
    /// User.
    pub owner: String,
    /// Group.
    pub group: String,
    /// Last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_time: Option<DateTime<Utc>>,
    /// Where a link points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    /// Pairs attached at upload.
    #[serde(deserialize_with = "nullable", skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

mod int64 {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &i64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
        let value = serde_json::Value::deserialize(from)?;
        let read = value.as_i64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
        read.ok_or_else(|| serde::de::Error::custom("expected a 64-bit integer, as a number or a text"))
    }
}

/// `WatchDir`, `CreateWatcher`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchRequest {
    /// A directory.
    pub path: String,
    /// With all below it.
    #[serde(default)]
    pub recursive: bool,
    /// Tell about the file too, not only its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include_entry: Option<bool>,
    /// Also on network mounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_network_mounts: Option<bool>,
}

/// One message of `WatchDir`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchResponse {
    /// The watch is set.
    Start(Empty),
    /// Something changed.
    Filesystem(Box<FileEvent>),
    /// Nothing, for the sake of the connection.
    Keepalive(Empty),
}

/// A change to a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileEvent {
    /// Relative to the watched directory.
    #[serde(default)]
    pub name: String,
    /// What changed.
    #[serde(rename = "type", default)]
    pub kind: FileEventType,
    /// The file, when asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// What changed about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum FileEventType {
    /// It is new.
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    /// Its content.
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    /// It is gone.
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    /// Its name.
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    /// Its permissions.
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
    /// Something else.
    #[default]
    #[serde(rename = "EVENT_TYPE_UNSPECIFIED", other)]
    Unspecified,
}

/// A watcher that is polled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Watcher {
    /// Its id.
    pub watcher_id: String,
}

/// `GetWatcherEvents`: what changed since the last call.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WatcherEvents {
    /// The changes.
    #[serde(default, deserialize_with = "nullable")]
    pub events: Vec<FileEvent>,
}

/// One entry of the answer to `POST /files`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    /// The whole path.
    pub path: String,
    /// Its last part.
    pub name: String,
    /// `file`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// `GET /metrics` on envd.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EnvdMetrics {
    /// Unix seconds.
    pub ts: i64,
    /// Virtual processors.
    pub cpu_count: u32,
    /// Load in percent.
    pub cpu_used_pct: f64,
    /// Memory in all, bytes.
    pub mem_total: u64,
    /// Memory used, bytes.
    pub mem_used: u64,
    /// Page cache, bytes.
    pub mem_cache: u64,
    /// Memory in all, MiB.
    pub mem_total_mib: u64,
    /// Memory used, MiB.
    pub mem_used_mib: u64,
    /// Disk used, bytes.
    pub disk_used: u64,
    /// Disk in all, bytes.
    pub disk_total: u64,
}

/// The signature of a `/files` URL that needs no header: who knows the sandbox's token vouches for path and operation.
///
/// `operation` is `read` or `write`; `user` is empty when the URL names none; `expires` is in Unix seconds.
///
/// ```
/// use pathbox::wire::envd::file_signature;
/// assert_eq!(
///     file_signature("/home/user/a.txt", "read", "user", "tok-envd", Some(1_700_000_060)),
///     "v1_n67FOOtfDHc8p0z540B2OYCv9S8BAy5pGoNk/ICjacQ"
/// );
/// ```
pub fn file_signature(path: &str, operation: &str, user: &str, token: &str, expires: Option<i64>) -> String {
    use sha2::Digest as _;
    let mut raw = format!("{path}:{operation}:{user}:{token}");
    if let Some(expires) = expires {
        raw.push_str(&format!(":{expires}"));
    }
    let digest = sha2::Sha256::digest(raw.as_bytes());
    format!("v1_{}", base64::prelude::BASE64_STANDARD_NO_PAD.encode(digest))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn signatures_are_those_of_the_official_sdks() {
        let sign = |path, op, user| file_signature(path, op, user, "tok-envd", None);
        assert_eq!(sign("/home/user/a.txt", "read", ""), "v1_OHjUK6av8krcZG622B18mGU+DWDQvCHamqqb/+hN+c8");
        assert_eq!(sign("a b.txt", "write", "root"), "v1_YPBPvigX3zbnzz/qdXMI2/Xnh95j/U/lrAOZ24+eKe8");
    }

    #[test]
    fn process_messages_are_those_of_the_wire() {
        for (message, event) in [
            (json!({"event": {"start": {"pid": 77}}}), ProcessEvent::Start(Started { pid: 77 })),
            (json!({"event": {"keepalive": {}}}), ProcessEvent::Keepalive(Empty {})),
            (
                json!({"event": {"data": {"stdout": "b3V0OiBlY2hvIGhpCg=="}}}),
                ProcessEvent::Data(ProcessOutput::Stdout(Base64(b"out: echo hi\n".to_vec()))),
            ),
            (
                json!({"event": {"end": {"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"}}}),
                ProcessEvent::End(ProcessEnd {
                    exit_code: 3,
                    exited: true,
                    status: "exit status 3".into(),
                    error: Some("exit status 3".into()),
                }),
            ),
        ] {
            assert_eq!(serde_json::from_value::<ProcessResponse>(message.clone()).unwrap().event, event);
            assert_eq!(serde_json::to_value(ProcessResponse { event }).unwrap(), message);
        }
        let end: ProcessResponse = serde_json::from_str(r#"{"event":{"end":{"exited":true}}}"#).unwrap();
        assert!(matches!(end.event, ProcessEvent::End(ProcessEnd { exit_code: 0, exited: true, .. })));
        let tag: ProcessRequest = serde_json::from_str(r#"{"process":{"tag":"t"}}"#).unwrap();
        assert_eq!(tag.process, Selector::Tag("t".into()));
        let signal = SendSignal { process: Selector::Pid(5), signal: Signal::Kill };
        assert_eq!(
            serde_json::to_string(&signal).unwrap(),
            r#"{"process":{"pid":5},"signal":"SIGNAL_SIGKILL"}"#
        );
        let start: StartRequest =
            serde_json::from_str(r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","x"]},"stdin":false}"#)
                .unwrap();
        assert_eq!((start.process.args.len(), start.stdin), (3, Some(false)));
    }

    #[test]
    fn file_messages_are_those_of_the_wire() {
        let entry: EntryInfo = serde_json::from_str(
            r#"{"name":"f","type":"FILE_TYPE_FILE","path":"/home/user/f","size":"12","mode":420,"permissions":"-rw-r--r--",
            "owner":"user","group":"user","modifiedTime":"2026-01-01T00:00:00.5Z","symlinkTarget":"/x","isSymlink":true}"#,
        )
        .unwrap();
        assert_eq!((entry.size, entry.file_type), (12, FileType::File));
        assert!(serde_json::to_string(&entry).unwrap().contains(r#""size":"12""#));
        let number: EntryInfo =
            serde_json::from_str(r#"{"name":"f","size":12,"type":"FILE_TYPE_SOCKET"}"#).unwrap();
        assert_eq!((number.size, number.file_type), (12, FileType::Unspecified));
        let change: WatchResponse =
            serde_json::from_str(r#"{"filesystem":{"name":"a/b","type":"EVENT_TYPE_RENAME"}}"#).unwrap();
        assert!(matches!(change, WatchResponse::Filesystem(event) if event.kind == FileEventType::Rename));
    }
}
