//! One run on a sandbox's interpreter: wire events in, output chunks out, and the truth about the state afterwards.

use super::error::chain;
use crate::domain::{CodeError, Language, OutputChunk, RichResult, StopReason};
use crate::e2b::{self, Deadlines, E2bClient, E2bError, RunRequest, SandboxAccess, Settled, Target};
use crate::wire::interpreter::{Event, platform_error};

/// What is left after a run was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aftermath {
    /// The interpreter answers and remembers.
    StateKept,
    /// The interpreter answers, as a new one.
    StateLost,
    /// Nothing answers.
    SandboxLost,
}

/// A run whose events have not all come.
#[derive(Debug)]
pub(super) struct Run {
    run: Option<e2b::Run>,
    stops: Vec<StopReason>,
    died: bool,
}

impl Run {
    /// Sends the code.
    pub(super) async fn start(
        client: &E2bClient,
        access: &SandboxAccess,
        language: Language,
        code: &str,
        deadlines: Deadlines,
    ) -> Result<Self, E2bError> {
        let interpreter = client.interpreter(access, Target::Language(language.as_str().to_owned()));
        let run = interpreter.run(&RunRequest { deadlines, ..RunRequest::new(code) }).await?;
        Ok(Self { run: Some(run), stops: Vec::new(), died: false })
    }

    /// The next piece of output; `None` at the end. Safe to cancel.
    pub(super) async fn next(&mut self) -> Result<Option<OutputChunk>, E2bError> {
        let Some(run) = &mut self.run else { return Ok(None) };
        while let Some(event) = run.next().await? {
            match event {
                Event::Stdout(output) => return Ok(Some(OutputChunk::Stdout(output.text))),
                Event::Stderr(output) => return Ok(Some(OutputChunk::Stderr(output.text))),
                Event::Result(result) => {
                    let is_main = result.is_main_result;
                    let formats = result.into_formats().collect();
                    return Ok(Some(OutputChunk::Result(RichResult { formats, is_main })));
                }
                Event::Error(error) => {
                    let platform = [
                        platform_error::CONTEXT_RESTARTING,
                        platform_error::WEB_SOCKET,
                        platform_error::UNEXPECTED_END,
                        platform_error::ABORTED,
                    ];
                    self.died |= platform.contains(&error.name.as_str());
                    return Ok(Some(OutputChunk::Error(CodeError {
                        name: error.name,
                        message: error.value,
                        traceback: error.traceback,
                    })));
                }
                Event::PathboxStop { reason, .. } => {
                    if let Ok(reason) = reason.parse() {
                        self.stops.push(reason);
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Limits of the sandbox that were met.
    pub(super) fn stops(&self) -> &[StopReason] {
        &self.stops
    }

    /// Whether the interpreter died, or was restarted under the run.
    pub(super) fn died(&self) -> bool {
        self.died
    }

    /// Stops the run by closing its connection, lets the interpreter settle, and says what is left.
    pub(super) async fn interrupt(&mut self) -> Aftermath {
        let Some(run) = self.run.take() else { return Aftermath::StateKept };
        match run.settle().await {
            Ok(Settled::Kept) => Aftermath::StateKept,
            Ok(Settled::StateLost) => Aftermath::StateLost,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "an interrupted interpreter does not answer");
                Aftermath::SandboxLost
            }
        }
    }
}
