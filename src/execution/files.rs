//! Files of a context's sandbox: in by value, out through the guard.
//!
//! A file operation waits its turn like a run, makes or replaces the sandbox like one and is recorded like one. What may
//! surprise: a file never leaves as it is. It goes through the guard as printed output does, and what came through is
//! kept under the operation's id. So each `get` is a version of its own, which stays when the file changes.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::domain::terminal::one_line;
use crate::domain::{
    Code, CodeError, CodeRequest, ContextKey, Ended, ErrorCode, Inputs, Language, OutputChunk, Timeout, hex,
};
use crate::e2b::{E2bError, Files as SandboxFiles, Subject};
use crate::guard::{FileKind, Guard, Guarded, OutcomeGuard, Sanitized};
use crate::store::Acquire;
use crate::telemetry::{chain, trace};
use crate::wire::envd::{EntryInfo, FileType};

use super::acquire::{Held, Sandboxes};
use super::attempts::{Attempted, Fault, Work};
use super::record::{Ran, close_call};
use super::run_code::reason_text;
use super::transfers::MAX_UPLOADING;
use super::{Artifact, Call, Core, ExecutionError, Finished};

pub mod spooled;

pub use spooled::Content;
use spooled::{Broken, Passed, Spooled, pieces};

/// The name of the tool in records.
pub const TOOL: &str = "files";
/// The largest file that goes in or out, in bytes.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024 * 1024;
/// The largest file that the guard looks at whole, in bytes; longer ones are looked at as text, line by line.
pub const MAX_WHOLE_BYTES: usize = 32 * 1024 * 1024;
/// Entries of a directory that are listed.
const MAX_ENTRIES: usize = 500;

/// The longest path, in bytes.
const MAX_PATH: usize = 1024;

/// A path inside a sandbox: absolute, or from the user's home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePath(String);

impl FilePath {
    /// Takes a path of 1 to 1024 bytes without control characters.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: impl Into<String>) -> Result<Self, &'static str> {
        let text = text.into();
        if text.is_empty() || text.len() > MAX_PATH {
            return Err("must have 1 to 1024 bytes");
        }
        if text.chars().any(char::is_control) {
            return Err("holds a control character");
        }
        Ok(Self(text))
    }

    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn name(&self) -> &str {
        self.0.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
    }
}

/// What is to be done.
#[derive(Debug, Clone)]
pub enum FileAction {
    /// Write a file; its directories are made.
    Put {
        /// Where.
        path: FilePath,
        /// What, at most [`MAX_FILE_BYTES`].
        content: Content,
        /// The version that must be there now; an empty text means no file at all.
        expected: Option<String>,
    },
    /// The entries of a directory.
    List {
        /// Which.
        path: FilePath,
    },
    /// Take a version of a file out.
    Get {
        /// Which.
        path: FilePath,
    },
}

impl FileAction {
    fn path(&self) -> &FilePath {
        match self {
            Self::Put { path, .. } | Self::List { path } | Self::Get { path } => path,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Put { path, .. } => format!("put {}", path.as_str()),
            Self::List { path } => format!("list {}", path.as_str()),
            Self::Get { path } => format!("get {}", path.as_str()),
        }
    }
}

/// What came of it. Names have been through the guard.
#[derive(Debug, Clone)]
pub enum FileAnswer {
    /// The file is there.
    Put {
        /// Its version now.
        version: String,
        /// The version that was there before.
        replaced: Option<String>,
    },
    /// The directory's entries by name, at most 500, and how many there are.
    Listed(Vec<FileEntry>, usize),
    /// The file's version, and where what the guard let pass can be read.
    Got {
        /// Which version it is of.
        version: String,
        /// The kept copy.
        artifact: Artifact,
    },
}

/// An entry of a directory.
#[derive(Debug, Clone)]
pub struct FileEntry {
    /// Its name.
    pub name: Sanitized<String>,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Bytes.
    pub bytes: u64,
    /// Last change.
    pub modified: Option<DateTime<Utc>>,
}

impl FileEntry {
    /// As every door lists it.
    pub fn shown(&self) -> Value {
        json!({
            "name": self.name,
            "type": if self.is_dir { "directory" } else { "file" },
            "bytes": self.bytes,
            "modifiedAt": self.modified.map(|at| at.to_rfc3339()),
        })
    }
}

/// A file operation that was done.
#[derive(Debug, Clone)]
pub struct Filed {
    /// The path, as it may be shown.
    pub path: Sanitized<String>,
    /// Its record: which context served it and what the guard did.
    pub finished: Finished,
    /// What came of it.
    pub answer: FileAnswer,
}

/// What a caller asked for and cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileProblem {
    /// There is no such file.
    #[error("there is no file of this name")]
    Missing,
    /// It is a directory where a file is needed, or the other way round.
    #[error("the path is not of the kind that this action needs")]
    WrongKind,
    /// It is too large.
    #[error("the file is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    /// The sandbox's user may not do this there.
    #[error("the sandbox does not allow this for this path")]
    Forbidden,
    /// The sandbox's disk is full.
    #[error("the sandbox's disk is full")]
    DiskFull,
    /// The server could not keep the copy that is handed out; nothing is wrong with the sandbox.
    #[error("the server could not keep a copy of the file")]
    NotKept,
    /// Another version is there than was expected.
    #[error("the file has another version: {}", .0.as_deref().unwrap_or("there is none"))]
    Changed(Option<String>),
    /// The guard cannot look into it.
    #[error("the egress guard cannot scan a file of this format")]
    Opaque,
    /// It is too long to be looked at whole, and no text.
    #[error("the egress guard scans files of at most {MAX_WHOLE_BYTES} bytes, unless they are text in UTF-8")]
    LongOpaque,
    /// The guard would have to replace something in a format in which nothing can be.
    #[error("the file holds personal data or secrets, and in its format they cannot be replaced")]
    Holds,
    /// The address of an upload has been used for another file.
    #[error("this address has taken another file")]
    Taken,
    /// Uploads that are not complete hold too much.
    #[error("the tenant's uploads that are not complete hold {MAX_UPLOADING} bytes, the most they may")]
    Uploads,
    /// The sandbox has no service for files.
    #[error("this sandbox offers no file service (envd)")]
    NoFiles,
}

impl FileProblem {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Missing => ErrorCode::NotFound,
            Self::Opaque | Self::LongOpaque | Self::Holds => ErrorCode::Blocked,
            Self::NotKept => ErrorCode::StoreUnavailable,
            Self::Uploads => ErrorCode::LimitReached,
            Self::WrongKind
            | Self::TooLarge
            | Self::Forbidden
            | Self::DiskFull
            | Self::NoFiles
            | Self::Taken
            | Self::Changed(_) => ErrorCode::InvalidArgument,
        }
    }

    /// What the caller should do next.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Missing => "Use action `list` to see what is there.",
            Self::WrongKind => "`put` and `get` need a file, `list` a directory.",
            Self::TooLarge => "Split or compress it in the sandbox with run_code.",
            Self::Forbidden => "Use a path below the user's home or /tmp.",
            Self::DiskFull => "Remove files with run_code, or reset the context.",
            Self::NotKept => "The file in the sandbox is unchanged. Try again in a few seconds.",
            Self::Uploads => {
                "Complete one (POST with `?parts=N`), or try again later: parts go half an hour after they were sent."
            }
            Self::Taken => "Request a new address for this one.",
            Self::Changed(_) => "Get it, then put with its current version.",
            Self::Opaque => {
                "Write it in the sandbox as text, CSV, JSON, HTML, xlsx, docx, zip, SQLite, npy, PNG, JPEG, GIF, WebP or PDF; \
                 or the operator lets such files out (policy key `opaque_files`)."
            }
            Self::LongOpaque => {
                "Split it in the sandbox, or write it as CSV or JSON; or the operator lets such files out (policy key \
                 `opaque_files`)."
            }
            Self::Holds => {
                "Remove them in the sandbox, or write the file as text, CSV, JSON or HTML, where they are replaced."
            }
            Self::NoFiles => "Read and write files with run_code.",
        }
    }
}

/// Why an operation did not come to its end.
enum Stopped {
    Problem(FileProblem),
    Fault(Fault),
}

/// The work of a file operation.
struct FileWork<'a> {
    files: &'a Files,
    ask: &'a Acquire,
    action: &'a FileAction,
    guard: &'a Guard,
}

impl Work for FileWork<'_> {
    type Done = Result<(Ran, FileAnswer), FileProblem>;

    async fn on(&self, held: &Held) -> Result<Self::Done, Fault> {
        // On the heap, as all that is awaited here: such a future lies in its caller's, and a stack is short.
        let done = Box::pin(self.files.do_on(held, self.ask, self.action, self.guard));
        match self.files.0.settling(self.ask, done).await {
            Ok(done) => Ok(Ok(done)),
            Err(Stopped::Problem(problem)) => Ok(Err(problem)),
            Err(Stopped::Fault(fault)) => Err(fault),
        }
    }
}

/// Files of sandboxes, in and out.
#[derive(Debug, Clone)]
pub struct Files(pub(super) Arc<Core>);

impl Files {
    fn sandboxes(&self) -> Sandboxes {
        Sandboxes(Arc::clone(&self.0))
    }

    /// Does something with the files of the call's context.
    ///
    /// # Errors
    /// [`ExecutionError::File`] for what the caller can put right, else as [`Runs::run_code`](super::Runs::run_code).
    pub async fn run(
        &self,
        call: Call,
        action: FileAction,
        cancel: CancellationToken,
    ) -> Result<Filed, ExecutionError> {
        self.run_in(None, call, action, cancel).await
    }

    /// The same in a sandbox of the template that is named, as for code.
    ///
    /// # Errors
    /// As [`Files::run`], and those of a template.
    pub async fn run_in(
        &self,
        template: Option<String>,
        call: Call,
        action: FileAction,
        cancel: CancellationToken,
    ) -> Result<Filed, ExecutionError> {
        let (service, mut call) = (self.clone(), call);
        let (span, trace) = self.0.open_call(TOOL, &mut call, Language::Bash);
        // On a task of its own: what was begun is recorded, also when the caller is gone.
        let work = async move {
            let result = trace::within(trace, service.do_files(template, call, action, cancel)).await;
            close_call(&result);
            result
        };
        let joined = self.0.runs.spawn(work.instrument(span)).await;
        joined.unwrap_or_else(|error| Err(ExecutionError::of_task(&error)))
    }

    async fn do_files(
        &self,
        template: Option<String>,
        call: Call,
        action: FileAction,
        cancel: CancellationToken,
    ) -> Result<Filed, ExecutionError> {
        // Records have a language: here it is the one of the shell that such work is usually done in.
        let request = CodeRequest {
            language: Language::Bash,
            code: Code::of_program(action.describe()),
            purpose: Some(action.describe()),
            timeout: Timeout::default(),
            inputs: Inputs { template, ..Inputs::default() },
        };
        let ask = self.0.ask(TOOL, &call, &request);
        self.0.check_template(&ask)?;
        let (progress, _) = mpsc::channel(1);
        let guard = self.0.guard_for(&call);
        let sandboxes = self.sandboxes();
        let work = FileWork { files: self, ask: &ask, action: &action, guard: &guard };
        let (held, done) =
            match Box::pin(sandboxes.on_sandbox(&ask, request.timeout.get(), &progress, &cancel, work))
                .await?
            {
                Attempted::Done(held, done) => (held, done),
                Attempted::Before(_) => {
                    return Err(ExecutionError::Internal("a file operation has no idempotency key".into()));
                }
            };
        let (ran, answer) = match done {
            Ok((ran, answer)) => (ran, Ok(answer)),
            Err(problem) => {
                (Box::pin(self.failed(&held, &problem, &guard)).await, Err(ExecutionError::File(problem)))
            }
        };
        let blocked = ran.report.blocked;
        let finish = Box::pin(self.0.finish(&call, request.language, &ask, &held, ran));
        let finished = self.0.settling(&ask, finish).await?;
        match answer? {
            _ if blocked => Err(ExecutionError::Blocked),
            answer => {
                let path = guard.line(action.path().as_str());
                Ok(Filed { path, finished, answer })
            }
        }
    }

    async fn do_on(
        &self,
        held: &Held,
        ask: &Acquire,
        action: &FileAction,
        policy: &Guard,
    ) -> Result<(Ran, FileAnswer), Stopped> {
        let began = Instant::now();
        let moved_end =
            self.sandboxes().extend_life(held, Timeout::default().get()).await.map_err(Stopped::Fault)?;
        self.sandboxes().keep_lease(held, ask).await.map_err(Stopped::Fault)?;
        let files = held.client.files(&held.access);
        let numbering = self.0.numbering_of(held, policy).await;
        let guard = Box::new(OutcomeGuard::new(policy, numbering, self.0.guard_limits()));
        let done = |guard: Box<OutcomeGuard>| guard.finish(Ended::Completed, Vec::new(), began.elapsed());
        let (answer, guarded, artifacts) = match action {
            FileAction::Put { path, content, expected } => {
                let replaced = self.version_at(held, &files, path).await?;
                if expected.as_ref().is_some_and(|expected| *expected != replaced.clone().unwrap_or_default())
                {
                    return Err(Stopped::Problem(FileProblem::Changed(replaced)));
                }
                let written = match content {
                    Content::Bytes(bytes) => files.write(path.as_str(), bytes.clone()).await,
                    Content::File(file, bytes) => {
                        files.write_file(path.as_str(), Arc::clone(file), *bytes).await
                    }
                };
                written.map_err(|error| stopped(held, error))?;
                let mut digest = self.digest(&held.row.key);
                content.digest(&mut digest).map_err(not_kept)?;
                (FileAnswer::Put { version: version(digest), replaced }, done(guard), Vec::new())
            }
            FileAction::List { path } => {
                let entries = files.list(path.as_str(), 1).await.map_err(|error| stopped(held, error))?;
                (listed(policy, entries), done(guard), Vec::new())
            }
            FileAction::Get { path } => {
                let (guarded, version, artifact) =
                    Box::pin(self.take_out(held, ask, &files, path, (policy, guard, began))).await?;
                (FileAnswer::Got { version, artifact: artifact.clone() }, guarded, vec![artifact])
            }
        };
        self.0.save_numbering(held, guarded.numbering).await;
        let ran = Ran {
            outcome: guarded.outcome,
            report: guarded.report,
            artifacts,
            state: held.state,
            state_reason: held.reason.map(reason_text),
            moved_end,
            cut_off: false,
            tool_calls: Vec::new(),
            signatures: Vec::new(),
        };
        Ok((ran, answer))
    }

    /// The record of an operation that could not be done.
    async fn failed(&self, held: &Held, problem: &FileProblem, policy: &Guard) -> Ran {
        let mut guard =
            OutcomeGuard::new(policy, self.0.numbering_of(held, policy).await, self.0.guard_limits());
        guard.push(OutputChunk::Error(CodeError {
            name: "FileError".to_owned(),
            message: problem.to_string(),
            traceback: String::new(),
        }));
        let guarded = guard.finish(Ended::Completed, Vec::new(), std::time::Duration::ZERO);
        Ran {
            outcome: guarded.outcome,
            report: guarded.report,
            artifacts: Vec::new(),
            state: held.state,
            state_reason: held.reason.map(reason_text),
            moved_end: None,
            cut_off: false,
            tool_calls: Vec::new(),
            signatures: Vec::new(),
        }
    }

    /// Takes a file out through the guard and keeps what came through.
    async fn take_out(
        &self,
        held: &Held,
        ask: &Acquire,
        files: &SandboxFiles,
        path: &FilePath,
        (policy, guard, began): (&Guard, Box<OutcomeGuard>, Instant),
    ) -> Result<(Guarded, String, Artifact), Stopped> {
        let outputs = self.0.outputs();
        let scratch = || outputs.scratch().map_err(not_kept);
        let download = files.open(path.as_str()).await.map_err(|error| stopped(held, error))?;
        let mut digest = self.digest(&held.row.key);
        let spooled = Spooled::take(download, scratch()?, &mut digest).await;
        let spooled = spooled.map_err(|broken| broken_off(held, broken))?;
        let (guard, kind, passed) = spooled.guarded(guard, scratch()?).await.map_err(Stopped::Problem)?;
        let guarded = guard.finish(Ended::Completed, Vec::new(), began.elapsed());
        let passed = if guarded.report.blocked { Passed::Whole(Sanitized::default()) } else { passed };
        let (version, shown) = (version(digest), policy.line(path.name()).map(|name| one_line(&name)));
        let name = artifact_name(shown.get(), &version);
        let (id, mime_type) = (ask.execution.id, mime_type(kind, &name));
        let kept = match passed {
            Passed::Whole(bytes) => outputs.put(id, &name, mime_type, &bytes).await,
            Passed::Long(file) => outputs.put_file(id, &name, mime_type, file).await,
        };
        let artifact = kept.map_err(|error| {
            tracing::warn!(error = %chain(&error), execution.id = %id, "a file could not be kept");
            Stopped::Problem(FileProblem::NotKept)
        })?;
        // Its own name is for people; the version is in its address.
        Ok((guarded, version, Artifact { name: shown.into_inner(), ..artifact }))
    }

    async fn version_at(
        &self,
        held: &Held,
        files: &SandboxFiles,
        path: &FilePath,
    ) -> Result<Option<String>, Stopped> {
        let mut digest = self.digest(&held.row.key);
        let read = match files.open(path.as_str()).await {
            Ok(download) => {
                pieces(download, |piece| {
                    digest.update(piece);
                    Ok(())
                })
                .await
            }
            Err(error) => Err(Broken::Sandbox(error)),
        };
        match read {
            Ok(_) => Ok(Some(version(digest))),
            Err(Broken::Sandbox(E2bError::NotFound { what: Subject::File, .. })) => Ok(None),
            Err(Broken::TooLarge) => Ok(Some("too-large".to_owned())),
            Err(broken) => Err(broken_off(held, broken)),
        }
    }

    /// What a version's name is made of: equal contents of one context have the same. Keyed, for a plain hash of a short
    /// secret gives the secret away.
    fn digest(&self, key: &ContextKey) -> Sha256 {
        Sha256::new_with_prefix(self.0.parts.handles.placeholder_key(key))
    }

    /// The version that a content will have in a context.
    pub(super) async fn version_of(
        &self,
        key: &ContextKey,
        content: Content,
    ) -> Result<String, ExecutionError> {
        let mut digest = self.digest(key);
        let read = tokio::task::spawn_blocking(move || content.digest(&mut digest).map(|()| version(digest)));
        read.await.map_err(|error| ExecutionError::of_task(&error))?.map_err(|error| {
            tracing::warn!(%error, "an upload could not be read again");
            ExecutionError::File(FileProblem::NotKept)
        })
    }

    /// A path as it may be shown to the caller.
    pub(super) fn shown(&self, call: &Call, path: &FilePath) -> Sanitized<String> {
        self.0.guard_for(call).line(path.as_str())
    }
}

fn version(digest: Sha256) -> String {
    hex(&digest.finalize()[..8])
}

/// A file that could not be written to or read from this machine's disk.
fn not_kept(error: std::io::Error) -> Stopped {
    tracing::warn!(%error, "a file in transit could not be kept");
    Stopped::Problem(FileProblem::NotKept)
}

fn broken_off(held: &Held, broken: Broken) -> Stopped {
    match broken {
        Broken::Sandbox(error) => stopped(held, error),
        Broken::TooLarge => Stopped::Problem(FileProblem::TooLarge),
        Broken::Here(error) => not_kept(error),
    }
}

fn listed(policy: &Guard, entries: Vec<EntryInfo>) -> FileAnswer {
    let total = entries.len();
    let mut entries: Vec<FileEntry> = entries
        .into_iter()
        .map(|entry| FileEntry {
            name: policy.line(&entry.name).map(|name| one_line(&name)),
            is_dir: entry.file_type == FileType::Directory,
            bytes: u64::try_from(entry.size).unwrap_or(0),
            modified: entry.modified_time,
        })
        .collect();
    entries.sort_by(|a, b| a.name.get().cmp(b.name.get()));
    entries.truncate(MAX_ENTRIES);
    FileAnswer::Listed(entries, total)
}

/// The media type of a file, by its content and, for text, by its name.
fn mime_type(kind: FileKind, name: &str) -> &'static str {
    let extension = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    match (kind, extension.as_str()) {
        (FileKind::Form(format), _) => format.mime_type(),
        (FileKind::Binary, "csv") => "text/csv",
        (FileKind::Binary, "txt") => "text/plain",
        (FileKind::Binary, "xlsx") => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        (FileKind::Binary, "docx") => {
            "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
        }
        (FileKind::Binary, "pptx") => {
            "application/vnd.openxmlformats-officedocument.presentationml.presentation"
        }
        (FileKind::Binary, "zip") => "application/zip",
        (FileKind::Binary, "sqlite" | "sqlite3" | "db") => "application/vnd.sqlite3",
        (FileKind::Binary, "parquet") => "application/vnd.apache.parquet",
        (FileKind::Binary, _) => "application/octet-stream",
        (FileKind::Text, "csv") => "text/csv",
        (FileKind::Text, "json") => "application/json",
        (FileKind::Text, "md") => "text/markdown",
        (FileKind::Text, "html" | "htm") => "text/html",
        (FileKind::Text, "svg") => "image/svg+xml",
        (FileKind::Text, _) => "text/plain",
    }
}

/// The name under which a version is kept: plain characters, with the version before the extension.
fn artifact_name(name: &str, version: &str) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    let plain = plain.trim_start_matches(['.', '-']);
    let (stem, extension) = match plain.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() && extension.len() <= 10 => (stem, extension),
        _ => (plain, ""),
    };
    let stem = if stem.is_empty() { "file" } else { &stem[..stem.len().min(32)] };
    match extension {
        "" => format!("{stem}-{version}"),
        extension => format!("{stem}-{version}.{extension}"),
    }
}

/// What a failed request means: something about the file, or about its sandbox.
fn stopped(held: &Held, error: E2bError) -> Stopped {
    match &error {
        E2bError::NotFound { what: Subject::File, .. } => Stopped::Problem(FileProblem::Missing),
        E2bError::PortClosed { .. } => Stopped::Problem(FileProblem::NoFiles),
        E2bError::Refused { .. } => Stopped::Problem(FileProblem::WrongKind),
        E2bError::Rpc { code: crate::wire::connect::Code::InvalidArgument, .. } => {
            Stopped::Problem(FileProblem::WrongKind)
        }
        E2bError::TooLarge { .. } => Stopped::Problem(FileProblem::TooLarge),
        E2bError::Forbidden(_) => Stopped::Problem(FileProblem::Forbidden),
        E2bError::Failed { status: 507, .. } => Stopped::Problem(FileProblem::DiskFull),
        _ => Stopped::Fault(Fault::of(held, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_copy_has_a_plain_name_with_its_version() {
        let name = |text: &str| artifact_name(text, "0123456789abcdef");
        assert_eq!(name("data.csv"), "data-0123456789abcdef.csv");
        assert_eq!(name("a b/[EMAIL].tar.gz"), "a-b--EMAIL-.tar-0123456789abcdef.gz");
        assert_eq!(name(".hidden"), "hidden-0123456789abcdef");
        assert_eq!(name("…"), "file-0123456789abcdef");
        assert!(name(&"x".repeat(500)).len() <= 64);
    }

    #[test]
    fn a_path_is_text_of_a_sane_length() {
        for good in ["a", "/tmp/a b.csv", "ü/€.txt", "../up"] {
            assert_eq!(FilePath::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "a\0b", "a\nb", &"x".repeat(MAX_PATH + 1)] {
            assert!(FilePath::parse(bad).is_err(), "{bad:?}");
        }
    }
}
