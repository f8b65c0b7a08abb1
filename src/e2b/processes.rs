//! Processes in a sandbox, through envd.
//!
//! Three rules of envd that surprise: the deadline of the call that starts a process is the process's life time; a client
//! that leaves does not stop it; and a signal reaches the process alone, never its children. So a process is started with
//! the life time that was asked for and with no other, and [`Processes::kill_all`] finds children by a mark in their
//! environment.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};

use super::rpc::{Envd, RpcStream};
use super::{E2bClient, E2bError, SandboxAccess, Subject};
use crate::wire::Secret;
use crate::wire::connect::Envelope;
use crate::wire::envd::{
    Base64, Empty, ProcessConfig, ProcessEvent, ProcessInfo, ProcessInput, ProcessList, ProcessOutput,
    ProcessRequest, ProcessResponse, Pty, PtySize, Selector, SendInput, SendSignal, Signal, StartRequest,
    StreamInput, StreamInputData, UpdateProcess, process,
};
use crate::wire::text::Utf8Decoder;

/// The variable that marks a process and all that it starts.
const MARK: &str = "PATHBOX_RUN";
/// The tag of a shell's command.
pub(super) const SHELL_TAG: &str = "pathbox-shell";

/// The processes of one sandbox.
#[derive(Debug, Clone)]
pub struct Processes {
    pub(super) envd: Envd,
}

/// The program to start.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// The program.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Added to its environment.
    pub envs: BTreeMap<String, Secret>,
    /// Working directory; the user's home when left out.
    pub cwd: Option<String>,
    /// A name to find it by.
    pub tag: Option<String>,
    /// Whether [`Processes::send_stdin`] will be used; otherwise its input is empty.
    pub stdin: bool,
    /// It is killed after this long; never when left out, which is what a background job needs.
    pub life: Option<Duration>,
    /// With a terminal of this size. What it writes there comes as [`ProcessUpdate::Stdout`]; write to it with
    /// [`Processes::send_terminal`].
    pub terminal: Option<PtySize>,
}

impl Command {
    /// A line for a login shell, as `commands.run` of the official SDKs does it.
    pub fn shell(line: impl Into<String>) -> Self {
        let args = vec!["-l".to_owned(), "-c".to_owned(), line.into()];
        Self { program: "/bin/bash".to_owned(), args, ..Self::default() }
    }

    /// A login shell at a terminal, as `pty.create` of the official SDKs does it.
    pub fn terminal(size: PtySize) -> Self {
        let envs = [("TERM", "xterm-256color"), ("LANG", "C.UTF-8"), ("LC_ALL", "C.UTF-8")];
        Self {
            program: "/bin/bash".to_owned(),
            args: vec!["-i".to_owned(), "-l".to_owned()],
            envs: envs.map(|(name, value)| (name.to_owned(), Secret::new(value))).into(),
            stdin: true,
            terminal: Some(size),
            ..Self::default()
        }
    }
}

/// The events of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessUpdate {
    /// It wrote to standard output, or to its terminal.
    Stdout(String),
    /// It wrote to standard error.
    Stderr(String),
    /// It ended.
    Ended {
        /// Its exit status; -1 when a signal ended it.
        exit_code: i32,
        /// Envd's words, like `exit status 3` or `signal: killed`.
        status: String,
    },
}

/// A finished command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// Its exit status; -1 when a signal ended it.
    pub exit_code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl E2bClient {
    /// The processes of a sandbox, as its default user.
    pub fn processes(&self, access: &SandboxAccess) -> Processes {
        Processes { envd: Envd { client: self.clone(), access: access.clone(), user: None } }
    }
}

impl Processes {
    /// The same as another Linux user.
    pub fn as_user(&self, user: impl Into<String>) -> Self {
        Self { envd: Envd { user: Some(user.into()), ..self.envd.clone() } }
    }

    /// Starts a process and waits until it runs.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost); [`E2bError::Rpc`] with `invalid_argument` for a directory that does not exist.
    pub async fn start(&self, command: &Command) -> Result<Process, E2bError> {
        let mut envs: BTreeMap<String, String> =
            command.envs.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect();
        let mark = self.envd.client.shared.entropy.hex::<16>();
        envs.insert(MARK.to_owned(), mark.clone());
        let request = StartRequest {
            process: ProcessConfig {
                cmd: command.program.clone(),
                args: command.args.clone(),
                envs,
                cwd: command.cwd.clone(),
            },
            pty: command.terminal.map(|size| Pty { size }),
            tag: command.tag.clone(),
            stdin: Some(command.stdin),
        };
        let stream = self.envd.stream(process::START, &request, Subject::Process, command.life).await?;
        Process::open(stream, Some(mark)).await
    }

    /// Runs a command to its end, keeping at most `max_bytes` of each output.
    ///
    /// # Errors
    /// Those of [`Processes::start`]; a status other than 0 is not an error. [`E2bError::TooLarge`] beyond the limit.
    pub async fn run(&self, command: &Command, max_bytes: usize) -> Result<CommandOutput, E2bError> {
        let mut process = self.start(command).await?;
        let mut output = CommandOutput { exit_code: 0, stdout: String::new(), stderr: String::new() };
        while let Some(update) = process.next().await? {
            match update {
                ProcessUpdate::Stdout(text) => output.stdout.push_str(&text),
                ProcessUpdate::Stderr(text) => output.stderr.push_str(&text),
                ProcessUpdate::Ended { exit_code, .. } => output.exit_code = exit_code,
            }
            if output.stdout.len().max(output.stderr.len()) > max_bytes {
                self.kill_all(&process).await?;
                return Err(E2bError::TooLarge { what: "the output of a command", limit_bytes: max_bytes });
            }
        }
        Ok(output)
    }

    /// Attaches to a process that runs. Only what it writes from now on is seen.
    ///
    /// # Errors
    /// [`E2bError::NotFound`] when there is no such process; its end is kept for about 30 s.
    pub async fn attach(&self, selector: Selector) -> Result<Process, E2bError> {
        let request = ProcessRequest { process: selector };
        let stream = self.envd.stream(process::CONNECT, &request, Subject::Process, None).await?;
        Process::open(stream, None).await
    }

    /// All processes that were started through envd and run.
    ///
    /// # Errors
    /// [`is_lost`](E2bError::is_lost), and those of any call to envd.
    pub async fn list(&self) -> Result<Vec<ProcessInfo>, E2bError> {
        let list: ProcessList = self.envd.unary(process::LIST, &Empty {}, Subject::Process).await?;
        Ok(list.processes)
    }

    /// Writes to a process's standard input; it must have been started with [`Command::stdin`].
    ///
    /// # Errors
    /// [`E2bError::NotFound`] when it has ended.
    pub async fn send_stdin(&self, pid: u32, bytes: &[u8]) -> Result<(), E2bError> {
        self.send_input(pid, ProcessInput::Stdin(Base64(bytes.to_vec()))).await
    }

    /// Types at a process's terminal; it must have been started with [`Command::terminal`](struct@Command).
    ///
    /// # Errors
    /// [`E2bError::NotFound`] when it has ended.
    pub async fn send_terminal(&self, pid: u32, bytes: &[u8]) -> Result<(), E2bError> {
        self.send_input(pid, ProcessInput::Pty(Base64(bytes.to_vec()))).await
    }

    async fn send_input(&self, pid: u32, input: ProcessInput) -> Result<(), E2bError> {
        let request = SendInput { process: Selector::Pid(pid), input };
        self.envd.unary::<Empty>(process::SEND_INPUT, &request, Subject::Process).await.map(drop)
    }

    /// Changes the size of a process's terminal.
    ///
    /// # Errors
    /// [`E2bError::NotFound`] when it has ended.
    pub async fn resize(&self, pid: u32, size: PtySize) -> Result<(), E2bError> {
        let request = UpdateProcess { process: Selector::Pid(pid), pty: Some(Pty { size }) };
        self.envd.unary::<Empty>(process::UPDATE, &request, Subject::Process).await.map(drop)
    }

    /// Writes pieces to a process's standard input as they come, in one request, until `pieces` ends. The input itself
    /// stays open; see [`Processes::close_stdin`].
    ///
    /// # Errors
    /// [`E2bError::NotFound`] when it has ended. Some pieces may have been written.
    pub async fn stream_stdin(
        &self,
        pid: u32,
        pieces: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Result<(), E2bError> {
        let start = StreamInput::Start(ProcessRequest { process: Selector::Pid(pid) });
        let pieces = pieces.map(|piece| {
            let input = ProcessInput::Stdin(Base64(piece.to_vec()));
            StreamInput::Data(StreamInputData { input })
        });
        let messages = futures::stream::once(std::future::ready(start)).chain(pieces);
        let envelopes = messages.map(|message| Envelope::message(&message).map(|envelope| envelope.encode()));
        self.envd.send_stream::<Empty>(process::STREAM_INPUT, envelopes, Subject::Process).await.map(drop)
    }

    /// Ends a process's standard input.
    ///
    /// # Errors
    /// [`E2bError::NotFound`] when it has ended; `unimplemented` before envd 0.5.2.
    pub async fn close_stdin(&self, pid: u32) -> Result<(), E2bError> {
        let request = ProcessRequest { process: Selector::Pid(pid) };
        self.envd.unary::<Empty>(process::CLOSE_STDIN, &request, Subject::Process).await.map(drop)
    }

    /// Sends a signal to a process, not to its children; `false` when it has ended.
    ///
    /// # Errors
    /// Those of any call to envd.
    pub async fn signal(&self, pid: u32, signal: Signal) -> Result<bool, E2bError> {
        let request = SendSignal { process: Selector::Pid(pid), signal };
        match self.envd.unary::<Empty>(process::SEND_SIGNAL, &request, Subject::Process).await {
            Ok(_) => Ok(true),
            Err(E2bError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Kills a process that this client started, and everything that it started, daemons included.
    ///
    /// # Errors
    /// Those of any call to envd.
    pub async fn kill_all(&self, started: &Process) -> Result<(), E2bError> {
        self.kill_marked(started.pid, started.mark.as_deref()).await
    }

    /// Kills the commands of shells, whichever client began them. Gives how many there were.
    pub(super) async fn kill_shells(&self) -> Result<usize, E2bError> {
        let listed = self.list().await?.into_iter();
        let shells: Vec<ProcessInfo> = listed.filter(|it| it.tag.as_deref() == Some(SHELL_TAG)).collect();
        for shell in &shells {
            self.kill_marked(shell.pid, shell.config.envs.get(MARK).map(String::as_str)).await?;
        }
        Ok(shells.len())
    }

    async fn kill_marked(&self, pid: u32, mark: Option<&str>) -> Result<(), E2bError> {
        if let Some(mark) = mark {
            let sweep = Command {
                program: "/bin/bash".to_owned(),
                args: vec!["-c".to_owned(), SWEEP.to_owned(), "sweep".to_owned(), format!("{MARK}={mark}")],
                life: Some(Duration::from_secs(10)),
                ..Command::default()
            };
            // The sweep is marked by a run of its own, so it does not find itself.
            let mut sweep = self.start(&sweep).await?;
            while sweep.next().await?.is_some() {}
        }
        self.signal(pid, Signal::Kill).await.map(drop)
    }
}

/// Kills every process whose environment holds the mark, until none is left: one may start another meanwhile.
const SWEEP: &str = r#"for round in 1 2 3 4 5; do
  found=
  for dir in /proc/[0-9]*; do
    if grep -qzxF -- "$1" "$dir/environ" 2>/dev/null; then kill -KILL "${dir#/proc/}" 2>/dev/null && found=1; fi
  done
  [ -z "$found" ] && exit 0
  sleep 0.05
done"#;

/// A process and what it writes. Dropping it leaves the process running.
#[derive(Debug)]
pub struct Process {
    stream: RpcStream<ProcessResponse>,
    pid: u32,
    mark: Option<String>,
    stdout: Utf8Decoder,
    stderr: Utf8Decoder,
    pending: Vec<ProcessUpdate>,
    ended: bool,
}

impl Process {
    async fn open(mut stream: RpcStream<ProcessResponse>, mark: Option<String>) -> Result<Self, E2bError> {
        loop {
            match stream.next().await?.map(|message| message.event) {
                Some(ProcessEvent::Start(started)) => {
                    return Ok(Self {
                        stream,
                        pid: started.pid,
                        mark,
                        stdout: Utf8Decoder::default(),
                        stderr: Utf8Decoder::default(),
                        pending: Vec::new(),
                        ended: false,
                    });
                }
                Some(ProcessEvent::Keepalive(_)) => {}
                Some(_) | None => {
                    return Err(E2bError::Protocol { what: "the start of a process", source: None });
                }
            }
        }
    }

    /// Its process id inside the sandbox.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The next thing that happens; `None` after its end. Safe to cancel.
    ///
    /// # Errors
    /// [`E2bError::Incomplete`] when the stream breaks off without the process's end; it may run on.
    pub async fn next(&mut self) -> Result<Option<ProcessUpdate>, E2bError> {
        loop {
            if let Some(update) = self.pending.pop() {
                return Ok(Some(update));
            }
            if self.ended {
                return Ok(None);
            }
            let text = match self.stream.next().await?.map(|message| message.event) {
                None => return Err(E2bError::Incomplete { events: 0 }),
                Some(ProcessEvent::Start(_) | ProcessEvent::Keepalive(_)) => continue,
                Some(ProcessEvent::Data(ProcessOutput::Stdout(bytes) | ProcessOutput::Pty(bytes))) => {
                    ProcessUpdate::Stdout(self.stdout.push(&bytes.0))
                }
                Some(ProcessEvent::Data(ProcessOutput::Stderr(bytes))) => {
                    ProcessUpdate::Stderr(self.stderr.push(&bytes.0))
                }
                Some(ProcessEvent::End(end)) => {
                    self.ended = true;
                    // Last in, first out: halves of characters before the end.
                    self.pending.push(ProcessUpdate::Ended { exit_code: end.exit_code, status: end.status });
                    let rest = [
                        ProcessUpdate::Stderr(self.stderr.finish()),
                        ProcessUpdate::Stdout(self.stdout.finish()),
                    ];
                    self.pending.extend(rest.into_iter().filter(|update| !update.is_blank()));
                    continue;
                }
            };
            if !text.is_blank() {
                return Ok(Some(text));
            }
        }
    }
}

impl ProcessUpdate {
    fn is_blank(&self) -> bool {
        matches!(self, Self::Stdout(text) | Self::Stderr(text) if text.is_empty())
    }
}
