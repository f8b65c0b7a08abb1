//! One run on a sandbox's interpreter: wire events in, output chunks out, and the truth about the state afterwards.

use crate::domain::{CodeError, EXIT_STATUS, Language, OutputChunk, RichResult, StopReason};
use crate::e2b::{
    self, Deadline, Deadlines, E2bClient, E2bError, Interpreter, RunRequest, SandboxAccess, Settled,
    ShellRun, Target,
};
use crate::telemetry::chain;
use crate::wire::interpreter::{Event, kernel_state, platform_error};

/// What is left after a run was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aftermath {
    /// The interpreter answers and remembers.
    StateKept,
    /// The interpreter answers, and remembers what was before the run.
    RolledBack,
    /// The interpreter answers, as a new one.
    StateLost,
    /// Nothing answers.
    SandboxLost,
}

/// What an error of the client means for a run whose code was on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// The code did not run and will not.
    NotRun,
    /// The run's own time was over.
    TimedOut,
    /// The interpreter died or was cut off; the sandbox lives.
    Interpreter,
    /// The answer broke off, fell silent or made no sense; the sandbox may be well.
    Connection,
    /// The sandbox is gone, and all that was in it.
    Sandbox,
}

impl Cut {
    /// Reads an error.
    pub(super) fn by(error: &E2bError) -> Self {
        match error {
            error if !error.may_have_run() => Self::NotRun,
            error if error.is_lost() => Self::Sandbox,
            error if matches!(error.clock(), Some(Deadline::Overall | Deadline::Start)) => Self::TimedOut,
            E2bError::Interrupted | E2bError::Incomplete { .. } => Self::Interpreter,
            _ => Self::Connection,
        }
    }
}

/// A run whose events have not all come.
#[derive(Debug)]
pub(super) struct Run {
    flow: Flow,
    /// Why the answer never began, though the code may have arrived.
    failed: Option<E2bError>,
    stops: Vec<StopReason>,
    died: bool,
    /// What the host said of an interpreter that ended: whether its variables are those of before.
    news: Option<News>,
    /// The status that it ended with, if the host said so.
    status: Option<i32>,
    /// What the program said once it was interrupted, and where that was.
    last_words: Option<String>,
}

/// What became of the variables of an interpreter that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// They are what they were before the run in which it ended.
    RolledBack,
    /// They are gone.
    Lost,
}

/// Where the events come from.
#[derive(Debug)]
enum Flow {
    /// A kernel; `None` once it was stopped or when its answer never began.
    Kernel(Interpreter, Option<Box<e2b::Run>>),
    /// Processes of envd; likewise.
    Shell(Option<Box<ShellRun>>),
}

impl Run {
    /// Sends the code. A hosted provider's Bash kernel mixes standard error into standard output and has no exit status,
    /// so there shell code runs as processes.
    ///
    /// # Errors
    /// When the code did certainly not run. Any other failure is the run's, and comes out of [`Run::next`].
    pub(super) async fn start(
        client: &E2bClient,
        access: &SandboxAccess,
        language: Language,
        code: &str,
        deadlines: Deadlines,
    ) -> Result<Self, E2bError> {
        let request = RunRequest { deadlines, ..RunRequest::new(code) };
        let (flow, failed) = if language == Language::Bash && !client.endpoint().is_one_address() {
            let (run, failed) = begun(client.shell(access, None).run(&request).await)?;
            (Flow::Shell(run.map(Box::new)), failed)
        } else {
            let interpreter = client.interpreter(access, Target::Language(language.as_str().to_owned()));
            let (run, failed) = begun(interpreter.run(&request).await)?;
            (Flow::Kernel(interpreter, run.map(Box::new)), failed)
        };
        Ok(Self { flow, failed, stops: Vec::new(), died: false, news: None, status: None, last_words: None })
    }

    /// The next piece of output; `None` at the end. Safe to cancel.
    pub(super) async fn next(&mut self) -> Result<Option<OutputChunk>, E2bError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        loop {
            let event = match &mut self.flow {
                Flow::Kernel(_, Some(run)) => run.next().await?,
                Flow::Shell(Some(run)) => run.next().await?,
                Flow::Kernel(_, None) | Flow::Shell(None) => None,
            };
            let Some(event) = event else { return Ok(None) };
            match event {
                Event::Stdout(output) => return Ok(Some(OutputChunk::Stdout(output.text))),
                Event::Stderr(output) => return Ok(Some(OutputChunk::Stderr(output.text))),
                Event::Result(result) => {
                    let is_main = result.is_main_result;
                    let formats = result.into_formats().collect();
                    let mut result = RichResult { formats, is_main };
                    result.read_html();
                    return Ok(Some(OutputChunk::Result(result)));
                }
                Event::Error(error) => {
                    // A local host says more than the cloud: first what became of the variables, then why it died.
                    let told = self.news.is_some() && error.name == platform_error::CONTEXT_RESTARTING;
                    self.died |= told || platform_error::ALL.iter().any(|name| error.is_platforms(name));
                    let (name, message) = match self.status {
                        Some(status) if told => (EXIT_STATUS.to_owned(), status.to_string()),
                        _ => (error.name, error.value),
                    };
                    return Ok(Some(OutputChunk::Error(CodeError {
                        name,
                        message,
                        traceback: error.traceback,
                    })));
                }
                Event::PathboxStop { reason, .. } => {
                    if let Ok(reason) = reason.parse() {
                        self.stops.push(reason);
                    }
                }
                Event::PathboxState { state, status } => {
                    self.status = status;
                    self.news = match state.as_str() {
                        kernel_state::ROLLED_BACK => Some(News::RolledBack),
                        kernel_state::LOST => Some(News::Lost),
                        _ => self.news,
                    };
                }
                _ => {}
            }
        }
    }

    /// Limits of the sandbox that were met.
    pub(super) fn stops(&self) -> &[StopReason] {
        &self.stops
    }

    /// What the host said about an interpreter that ended in this run or, unless [`Run::died`], before it.
    pub(super) fn news(&self) -> Option<News> {
        self.news
    }

    /// What the program said once it was interrupted, and where that was.
    pub(super) fn take_last_words(&mut self) -> Option<String> {
        self.last_words.take()
    }

    /// Whether the interpreter died, or was restarted under the run.
    pub(super) fn died(&self) -> bool {
        self.died
    }

    /// Stops the run, lets the interpreter settle, and says what is left. What a shell kept is as it was before the run.
    pub(super) async fn interrupt(&mut self) -> Aftermath {
        let settled = match &mut self.flow {
            Flow::Kernel(interpreter, run) => {
                let settled = match run.take() {
                    Some(run) => run.settle().await,
                    None => interpreter.settle().await,
                };
                self.last_words = interpreter.take_last_words().await;
                settled
            }
            Flow::Shell(run) => {
                if let Some(mut run) = run.take() {
                    run.stop().await;
                }
                Ok(Settled::Kept)
            }
        };
        match settled {
            Ok(Settled::Kept) => Aftermath::StateKept,
            Ok(Settled::RolledBack) => Aftermath::RolledBack,
            Ok(Settled::StateLost) => Aftermath::StateLost,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "an interrupted interpreter does not answer");
                Aftermath::SandboxLost
            }
        }
    }
}

/// What began, or why it did not though the code may have arrived.
fn begun<R>(sent: Result<R, E2bError>) -> Result<(Option<R>, Option<E2bError>), E2bError> {
    match sent {
        Ok(run) => Ok((Some(run), None)),
        Err(error) if error.may_have_run() => Ok((None, Some(error))),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::e2b::Subject;
    use crate::wire::connect::Code;

    /// Every error that the client has, with what it means in mid-run. A new variant does not compile until it is here.
    fn expected(error: &E2bError) -> Cut {
        match error {
            E2bError::Setting { .. }
            | E2bError::Unauthenticated(_)
            | E2bError::Forbidden(_)
            | E2bError::Refused { .. }
            | E2bError::TimeoutTooLong { .. }
            | E2bError::NotFound { .. }
            | E2bError::Conflict { .. }
            | E2bError::RateLimited { .. }
            | E2bError::Busy { status: 503, .. }
            | E2bError::Lost { may_have_run: false }
            | E2bError::PortClosed { .. }
            | E2bError::Unreachable(_)
            | E2bError::UnknownLanguage(_)
            | E2bError::Rpc { code: Code::InvalidArgument, .. }
            | E2bError::CircuitOpen { .. }
            | E2bError::CreateQueueFull { .. } => Cut::NotRun,
            E2bError::Lost { may_have_run: true } => Cut::Sandbox,
            E2bError::TimedOut { clock: Deadline::Overall | Deadline::Start, .. } => Cut::TimedOut,
            E2bError::Incomplete { .. } | E2bError::Interrupted => Cut::Interpreter,
            E2bError::Busy { .. }
            | E2bError::Failed { .. }
            | E2bError::Broken { .. }
            | E2bError::TimedOut { .. }
            | E2bError::Protocol { .. }
            | E2bError::TooLarge { .. }
            | E2bError::Rpc { .. }
            | E2bError::Command { .. } => Cut::Connection,
        }
    }

    #[test]
    fn each_error_of_the_client_has_its_one_meaning_in_mid_run() {
        let message = Default::default;
        let second = Duration::from_secs(1);
        let timed_out = |clock| E2bError::TimedOut { clock, after: second, may_have_run: true };
        let busy =
            |status| E2bError::Busy { status, error_code: None, retry_after: None, message: message() };
        let rpc = |code| E2bError::Rpc { code, message: message() };
        let all = [
            E2bError::Setting { what: "x", problem: String::new() },
            E2bError::Unauthenticated(message()),
            E2bError::Forbidden(message()),
            E2bError::Refused { status: 400, message: message() },
            E2bError::TimeoutTooLong { cap: second },
            E2bError::NotFound { what: Subject::CodeContext, message: message() },
            E2bError::Conflict { what: Subject::Sandbox, error_code: None, message: message() },
            E2bError::RateLimited { retry_after: None, message: message() },
            busy(502),
            busy(503),
            busy(504),
            E2bError::Failed { status: 500, message: message() },
            E2bError::Lost { may_have_run: false },
            E2bError::Lost { may_have_run: true },
            E2bError::PortClosed { port: 49999 },
            timed_out(Deadline::Connect),
            timed_out(Deadline::Start),
            timed_out(Deadline::Stall),
            timed_out(Deadline::Overall),
            timed_out(Deadline::Request),
            E2bError::Incomplete { events: 0 },
            E2bError::Interrupted,
            E2bError::UnknownLanguage(message()),
            E2bError::Protocol { what: "x", source: None },
            E2bError::TooLarge { what: "x", limit_bytes: 1 },
            rpc(Code::InvalidArgument),
            rpc(Code::Unavailable),
            E2bError::Command { what: "x", exit_code: 1, message: message() },
            E2bError::CircuitOpen { retry_after: second },
            E2bError::CreateQueueFull { wait: second },
        ];
        for error in &all {
            assert_eq!(Cut::by(error), expected(error), "{error:?}");
            assert_eq!(error.may_have_run(), Cut::by(error) != Cut::NotRun, "{error:?}");
        }
        let kinds: std::collections::BTreeSet<_> = all.iter().map(E2bError::kind).collect();
        // The two transport errors cannot be made without a transport; the fault server makes them.
        assert_eq!(kinds.len() + 2, 24, "{kinds:?}");
    }
}
