//! The programs that keep an interpreter's state: how each is started, given cells, interrupted and replaced.
//!
//! A driver's source is part of this binary and reaches the interpreter over the control socket, so that nothing
//! has to be installed in a sandbox.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::cells::{self, Source};
use super::context::Job;
use super::interpreters::{Language, Problem};
use super::output::{Answer, Late};
use super::protocol::{FRAME_MAX, Frame, FrameError, FrameKind, Frames, Hello, Request, frame, framed};
use super::{Options, bash, node, python};
use crate::host::agent::{AgentError, AgentHandle, Process, ProcessEvent, ProcessHandle, ProcessSpec, Stdin};
use crate::host::credit::{Credit, Held};
use crate::wire::interpreter::{Event, ExecutionError, kernel_state, platform_error};

/// How long an interpreter may take to get ready. A busy machine starts Node.js in seconds.
const START_WAIT: Duration = Duration::from_secs(60);
/// How long a copy may take until it goes on in the place of an interpreter that died.
const RESUME_WAIT: Duration = Duration::from_secs(10);
/// How long a long frame may wait until there is room for it.
const ROOM_WAIT: Duration = Duration::from_secs(30);
/// Up to here a frame is paid for by the window that it came through, and parsed where it arrives.
const SHORT_FRAME: usize = 64 << 10;
/// What is kept of the words of an interpreter that does not start.
const LAST_WORDS_MAX: usize = 2000;

/// One of the driver programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Driver {
    /// `drivers/python*.py`.
    Python,
    /// `drivers/node.js`.
    JavaScript,
    /// The same, with types taken away first.
    TypeScript,
    /// `drivers/bash.sh`.
    Bash,
}

/// An interpreter that runs, with its driver.
#[derive(Debug)]
pub(super) struct Interpreter {
    pub(super) handle: ProcessHandle,
    pub(super) events: mpsc::Receiver<ProcessEvent>,
    frames: Frames,
    /// For the long frame that has begun.
    room: Option<Credit>,
    /// Whether it waits for a cell. [`FrameKind::Rest`] reports it again after each.
    pub(super) at_rest: bool,
    /// The number that wakes the copy that takes over when it dies.
    resume: String,
    /// Which state of the sandbox's environment it has.
    pub(super) env_version: u64,
    /// The output since the last cell.
    pub(super) late: Late,
}

/// The interpreter died; what became of its variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aftermath {
    /// They are what they were before the cell.
    RolledBack,
    /// They are gone.
    Lost,
}

impl Aftermath {
    /// The event that reports it, with how it ended if that was in this execution.
    pub(super) fn to_event(self, exit: Option<&Exit>) -> Event {
        let state = match self {
            Self::RolledBack => kernel_state::ROLLED_BACK,
            Self::Lost => kernel_state::LOST,
        };
        Event::PathboxState { state: state.to_owned(), status: exit.and_then(Exit::status) }
    }
}

/// An interpreter did not start.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("{0}")]
    Missing(Problem),
    #[error("the interpreter could not be started")]
    Agent(#[from] AgentError),
    #[error("the interpreter ended before it was ready ({exit}): {words}")]
    Ended { exit: Exit, words: String },
    #[error("the interpreter was not ready after {} s", START_WAIT.as_secs())]
    Late,
}

impl StartError {
    /// The error of an execution that needed it.
    pub(super) fn to_event(&self) -> ExecutionError {
        use std::error::Error;
        let cause = self.source().map(|source| format!(": {source}")).unwrap_or_default();
        ExecutionError {
            name: "ContextStartError".to_owned(),
            value: format!("{self}{cause}"),
            traceback: String::new(),
        }
    }
}

/// How an interpreter ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) oom: bool,
}

impl Exit {
    /// The status as a shell has it.
    fn status(&self) -> Option<i32> {
        self.signal.map(|number| 128 + number).or(self.code)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.oom {
            return write!(f, "the sandbox's memory was full");
        }
        match (self.signal, self.code) {
            (Some(number), _) => {
                let name = match number {
                    libc::SIGSEGV => " (SIGSEGV, a crash in native code)",
                    libc::SIGABRT => " (SIGABRT)",
                    libc::SIGKILL => " (SIGKILL)",
                    libc::SIGTERM => " (SIGTERM)",
                    libc::SIGBUS => " (SIGBUS)",
                    libc::SIGFPE => " (SIGFPE)",
                    libc::SIGILL => " (SIGILL)",
                    libc::SIGXFSZ => " (SIGXFSZ, a file became too large)",
                    libc::SIGSYS => " (SIGSYS, a forbidden system call)",
                    _ => "",
                };
                write!(f, "signal {number}{name}")
            }
            (None, Some(code)) => write!(f, "exit code {code}"),
            (None, None) => write!(f, "unknown reason"),
        }
    }
}

/// Bytes for an interpreter.
#[derive(Debug, Default)]
pub(super) struct Writes {
    control: Bytes,
    stdin: Bytes,
    /// What is written again after each interrupt.
    pub(super) again: Bytes,
}

impl Writes {
    /// Writes them; takes as long as the interpreter takes to read.
    pub(super) async fn write(self, handle: ProcessHandle) -> Result<(), AgentError> {
        // The shell reads its line first, and then the code that did not fit into the socket at once.
        if !self.stdin.is_empty() {
            handle.stdin(self.stdin).await?;
        }
        if !self.control.is_empty() {
            handle.control(self.control).await?;
        }
        Ok(())
    }
}

impl Driver {
    /// The driver for a language.
    pub(super) fn of(language: Language) -> Option<Self> {
        match language {
            Language::Python => Some(Self::Python),
            Language::JavaScript => Some(Self::JavaScript),
            Language::TypeScript => cfg!(feature = "typescript").then_some(Self::TypeScript),
            Language::Bash => Some(Self::Bash),
        }
    }

    fn language(self) -> Language {
        match self {
            Self::Python => Language::Python,
            Self::JavaScript => Language::JavaScript,
            Self::TypeScript => Language::TypeScript,
            Self::Bash => Language::Bash,
        }
    }

    fn argv(self, program: &Path) -> Vec<String> {
        let program = program.to_string_lossy().into_owned();
        match self {
            Self::Python => python::argv(program),
            Self::JavaScript | Self::TypeScript => node::argv(program),
            Self::Bash => bash::argv(program),
        }
    }

    fn hello(self, options: &Options, cwd: &str, resume: &str) -> Writes {
        let (source, parts) = match self {
            Self::Python => (python::DRIVER, python::parts()),
            Self::JavaScript | Self::TypeScript => (node::DRIVER, BTreeMap::new()),
            Self::Bash => {
                let lines = format!("{}{}", bash::change_dir(cwd), bash::DRIVER);
                return Writes { stdin: lines.into(), ..Writes::default() };
            }
        };
        let hello = frame(&Hello {
            parts,
            results: options.max_results,
            frame_max: FRAME_MAX,
            cwd,
            checkpoint: options.checkpoint_bytes,
            resume,
            preload: &options.preload,
        });
        Writes { control: [framed(source.as_bytes()), hello].concat().into(), ..Writes::default() }
    }

    /// Its environment unless the sandbox's overrides it.
    fn env(self, options: &Options) -> Vec<(String, String)> {
        // Numeric libraries make a thread for each processor of the machine, whatever the sandbox may use of them.
        let threads = ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"];
        let number = options.numeric_threads.to_string();
        let threads = threads.into_iter().map(|name| (name, &*number)).filter(|_| self == Self::Python);
        // Without a network a package cannot be fetched, however often that is tried.
        let installers = [
            ("PIP_RETRIES", "1"),
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
            ("npm_config_fetch_retries", "1"),
            ("npm_config_fetch_retry_mintimeout", "100"),
            ("npm_config_update_notifier", "false"),
        ];
        threads.chain(installers).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// What runs one cell; an error is the cell's result instead.
    pub(super) async fn request(
        self,
        agent: &AgentHandle,
        id: &str,
        job: &Job,
        number: u64,
        base_env: &BTreeMap<String, String>,
    ) -> Result<Writes, ExecutionError> {
        let Job { code, env, .. } = job;
        let request = Request { id, code, source: None, lines: &[], n: number, env, base_env };
        Ok(match self {
            Self::Python => Writes { control: frame(&request), ..Writes::default() },
            Self::JavaScript | Self::TypeScript => {
                let source = if self == Self::TypeScript { Source::TypeScript } else { Source::JavaScript };
                let prepared = cells::prepare(agent, code, &source)
                    .await
                    .map_err(|refused| node::syntax_error(&refused, code, number))?;
                let request =
                    Request { code: &prepared.code, source: Some(code), lines: &prepared.lines, ..request };
                Writes { control: frame(&request), ..Writes::default() }
            }
            Self::Bash => {
                let lines = bash::run(id, code, env, base_env);
                Writes {
                    control: bash::code(code).into(),
                    stdin: format!("{}{}", lines.run, lines.end).into(),
                    again: lines.end.into(),
                }
            }
        })
    }

    /// Asks the running cell to stop.
    pub(super) async fn interrupt(self, interpreter: &Interpreter) {
        // One that is gone needs none.
        let _ = interpreter.handle.signal(libc::SIGINT, true).await;
    }

    /// Whether it reports when it waits for the next cell.
    pub(super) fn tells_rest(self) -> bool {
        self == Self::Python
    }

    /// Whether it is a shell, which writes its own messages where programs write theirs.
    pub(super) fn is_shell(self) -> bool {
        self == Self::Bash
    }

    /// Whether an empty cell is not a cell and has no number.
    pub(super) fn skips_blank(self) -> bool {
        self == Self::Python
    }

    /// Says that the interpreter ended while it ran a cell.
    pub(super) fn report_death(self, answer: &mut Answer, exit: &Exit, aftermath: Aftermath) {
        let exit = Exit { oom: answer.died_of_memory() || exit.oom, ..*exit };
        if exit.oom {
            answer.stop("oom");
        }
        if exit.signal == Some(libc::SIGXFSZ) {
            answer.stop("disk_full");
        }
        answer.say(aftermath.to_event(Some(&exit)));
        if let (Self::Bash, Some(status)) = (self, exit.code) {
            // `exit` in a shell is an ordinary way to end, and its status that of the execution.
            if status != 0 {
                let said =
                    "The shell ended. The next execution has a new one: variables are gone; files stay.";
                let words = answer.words(&status.to_string());
                answer.error("", &status.to_string(), format!("{words}\n{said}").trim_start());
            }
            return;
        }
        let left = match aftermath {
            Aftermath::RolledBack => {
                "Its variables are what they were before this execution; files stay as they are"
            }
            Aftermath::Lost => "Its variables are gone; files stay",
        };
        answer.error(
            platform_error::CONTEXT_RESTARTING,
            platform_error::CONTEXT_RESTARTING_VALUE,
            &format!("The interpreter ended: {exit}. {left}."),
        );
    }
}

impl Interpreter {
    /// Starts one and waits until it is ready.
    pub(super) async fn start(
        agent: &AgentHandle,
        driver: Driver,
        options: &Options,
        env: BTreeMap<String, String>,
        env_version: u64,
        cwd: &str,
    ) -> Result<Self, StartError> {
        let program = options
            .interpreters
            .program(driver.language())
            .map_err(|problem| StartError::Missing(problem.clone()))?;
        let own = driver.env(options).into_iter();
        let spec = ProcessSpec {
            argv: driver.argv(program),
            env: own.chain(env).collect(),
            stdin: if driver == Driver::Bash { Stdin::Pipe } else { Stdin::Null },
            control: true,
            ..ProcessSpec::default()
        };
        let Process { handle, events } = agent.start(spec).await?;
        let resume = options.entropy.hex::<16>();
        let hello = driver.hello(options, cwd, &resume);
        let late = Late::default();
        let mut interpreter = Self {
            handle,
            events,
            frames: Frames::default(),
            room: None,
            at_rest: true,
            resume,
            env_version,
            late,
        };
        let ready = async {
            hello.write(interpreter.handle.clone()).await?;
            interpreter.ready().await.map(drop)
        };
        let outcome = tokio::time::timeout(START_WAIT, ready).await.unwrap_or(Err(StartError::Late));
        if outcome.is_err() {
            let _ = interpreter.handle.signal(libc::SIGKILL, true).await;
        }
        outcome.map(|()| interpreter)
    }

    /// It waits for the next cell; `successor` goes on if it dies there.
    pub(super) async fn rests(&mut self, successor: i32) -> Result<(), AgentError> {
        self.handle.successor(successor).await?;
        self.at_rest = true;
        Ok(())
    }

    /// Wakes the copy that has taken over and waits until it is ready. It knows nothing of what its original was
    /// given since the last cell, the environment included.
    pub(super) async fn resume(&mut self) -> Result<(), StartError> {
        self.forget_frames();
        self.env_version = u64::MAX;
        let resumed = async {
            self.handle.control(Bytes::from(self.resume.clone())).await?;
            let successor = self.ready().await?;
            Ok(self.rests(successor).await?)
        };
        let outcome = tokio::time::timeout(RESUME_WAIT, resumed).await.unwrap_or(Err(StartError::Late));
        if outcome.is_err() {
            self.end().await;
        }
        outcome
    }

    /// Adds what came over the control socket.
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        self.frames.push(bytes);
    }

    /// Drops what has come of a frame.
    pub(super) fn forget_frames(&mut self) {
        (self.frames, self.room) = (Frames::default(), None);
    }

    /// Bytes that have to be paid for before more of the frame that has begun is read: of a long one, all at once. Until then
    /// the program waits.
    pub(super) fn owes(&self) -> Option<usize> {
        let announced = self.frames.announced().ok()?;
        announced.filter(|len| *len > SHORT_FRAME && self.room.is_none())
    }

    /// Pays what is [owed](Self::owes).
    pub(super) fn pay(&mut self, credit: Credit) {
        self.room = Some(credit);
    }

    /// The next whole frame, if there is one, with what pays for keeping it. A long one is parsed aside, where no other
    /// waits for it.
    pub(super) async fn next_frame(&mut self) -> Result<Option<Held<Frame>>, FrameError> {
        let Some(whole) = self.frames.whole()? else { return Ok(None) };
        let frame = if whole.len() > SHORT_FRAME {
            let parsed = tokio::task::spawn_blocking(move || Frame::parse(&whole)).await;
            parsed.map_err(|error| FrameError::Malformed(serde::de::Error::custom(error)))??
        } else {
            Frame::parse(&whole)?
        };
        Ok(Some(Held::new(frame, self.room.take())))
    }

    /// The same where nothing else has to go on meanwhile.
    pub(super) async fn next_paid_frame(&mut self) -> Result<Option<Held<Frame>>, FrameError> {
        if let Some(bytes) = self.owes() {
            let room = tokio::time::timeout(ROOM_WAIT, self.handle.account().wait(bytes)).await;
            self.pay(room.map_err(|_| FrameError::NoRoom(bytes))?);
        }
        self.next_frame().await
    }

    /// Kills it for good, and its copy with it.
    pub(super) async fn end(&self) {
        // A sandbox that is gone has no interpreter.
        let _ = self.handle.successor(0).await;
        let _ = self.handle.signal(libc::SIGKILL, true).await;
    }

    /// Waits until it is ready; returns the process that takes over when it dies.
    async fn ready(&mut self) -> Result<i32, StartError> {
        let mut words = Vec::new();
        while let Some(event) = self.events.recv().await {
            match event {
                ProcessEvent::Control(bytes) => {
                    self.hear(&bytes);
                    while let Ok(Some(frame)) = self.next_paid_frame().await {
                        if frame.t == FrameKind::Ready {
                            log_failed(&frame.failed);
                            return Ok(frame.successor);
                        }
                    }
                }
                ProcessEvent::Stdout(bytes) | ProcessEvent::Stderr(bytes) | ProcessEvent::Pty(bytes) => {
                    let room = LAST_WORDS_MAX.saturating_sub(words.len());
                    words.extend_from_slice(&bytes[..bytes.len().min(room)]);
                }
                ProcessEvent::Exited { code, signal, oom } | ProcessEvent::Replaced { code, signal, oom } => {
                    let words = String::from_utf8_lossy(&words).into_owned();
                    return Err(StartError::Ended { exit: Exit { code, signal, oom }, words });
                }
            }
        }
        Err(AgentError::Gone.into())
    }
}

/// The names and words come from the sandbox: few of them, short ones, and as quoted text, which has no line breaks.
fn log_failed(failed: &BTreeMap<String, String>) {
    const MODULES: usize = 32;
    const LENGTH: usize = 200;
    let short = |text: &String| text.chars().take(LENGTH).collect::<String>();
    for (module, error) in failed.iter().take(MODULES) {
        let (module, error) = (short(module), short(error));
        tracing::warn!(?module, ?error, "a module could not be imported ahead of time");
    }
}
