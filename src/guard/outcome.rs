//! The guard over one run: raw chunks in, guarded chunks out as soon as they are safe, and the guarded outcome at
//! the end.
//!
//! Standard output, standard error, results and errors share one numbering, so the same value is the same
//! placeholder wherever the program showed it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::{Guard, Numbering, Report, Sanitized, StreamGuard, picture};
use crate::domain::{Capture, CodeError, Ended, Outcome, OutputChunk, RichResult, StopReason};

/// How much of a run is kept in its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Characters of standard output, and of standard error; the middle is left out.
    pub max_chars: usize,
    /// Results; later ones are counted.
    pub max_results: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_chars: 50_000, max_results: 100 }
    }
}

/// Guards the output of one run.
#[derive(Debug)]
pub struct OutcomeGuard {
    guard: Guard,
    numbering: Numbering,
    limits: Limits,
    stdout: Stream,
    stderr: Stream,
    results: Vec<RichResult>,
    results_dropped: u64,
    error: Option<CodeError>,
    report: Report,
}

#[derive(Debug)]
struct Stream {
    guard: StreamGuard,
    capture: Capture,
}

/// What [`OutcomeGuard::finish`] gives.
#[derive(Debug)]
pub struct Guarded {
    /// The chunks that were still held back.
    pub rest: Vec<Sanitized<OutputChunk>>,
    /// The whole.
    pub outcome: Sanitized<Outcome>,
    /// What was found.
    pub report: Report,
    /// The numbering, with what it newly handed out.
    pub numbering: Numbering,
}

impl OutcomeGuard {
    /// A guard for one run.
    pub fn new(guard: &Guard, numbering: Numbering, limits: Limits) -> Self {
        let stream = || Stream { guard: guard.stream(), capture: Capture::new(limits.max_chars) };
        Self {
            guard: guard.clone(),
            numbering,
            limits,
            stdout: stream(),
            stderr: stream(),
            results: Vec::new(),
            results_dropped: 0,
            error: None,
            report: guard.report(),
        }
    }

    /// Takes a chunk and gives back what is ready to go out: for progress and for the spool.
    pub fn push(&mut self, chunk: OutputChunk) -> Vec<Sanitized<OutputChunk>> {
        let ready = match chunk {
            OutputChunk::Stdout(text) => {
                self.stdout.push(&text, &mut self.numbering).map(OutputChunk::Stdout)
            }
            OutputChunk::Stderr(text) => {
                self.stderr.push(&text, &mut self.numbering).map(OutputChunk::Stderr)
            }
            OutputChunk::Result(_) if self.results.len() >= self.limits.max_results => {
                self.results_dropped += 1;
                None
            }
            OutputChunk::Result(result) => {
                let result = self.result(result);
                self.results.push(result.clone());
                Some(OutputChunk::Result(result))
            }
            OutputChunk::Error(error) => {
                let error = self.error(error);
                // The first error is the cause; later ones are its echoes.
                self.error.get_or_insert_with(|| error.clone());
                Some(OutputChunk::Error(error))
            }
        };
        if self.is_blocked() {
            return Vec::new();
        }
        ready.map(Sanitized::vouch).into_iter().collect()
    }

    /// Whether a finding's action withholds the whole result. The run may as well be ended.
    pub fn is_blocked(&self) -> bool {
        self.report.blocked || self.stdout.guard.report().blocked || self.stderr.guard.report().blocked
    }

    /// Ends the run. A blocked outcome keeps how it ended and nothing of what it said.
    pub fn finish(mut self, ended: Ended, stops: Vec<StopReason>, duration: Duration) -> Guarded {
        let mut rest = Vec::new();
        let (stdout, text, found) = self.stdout.finish(&mut self.numbering);
        rest.extend(text.map(OutputChunk::Stdout));
        self.report.absorb(&found);
        let (stderr, text, found) = self.stderr.finish(&mut self.numbering);
        rest.extend(text.map(OutputChunk::Stderr));
        self.report.absorb(&found);
        let mut outcome = Outcome {
            stdout,
            stderr,
            results: self.results,
            results_dropped: self.results_dropped,
            error: self.error,
            ended,
            stops,
            duration,
        };
        if self.report.blocked {
            rest.clear();
            outcome.results_dropped += outcome.results.len() as u64;
            outcome.results.clear();
            (outcome.stdout, outcome.stderr) = (Capture::default(), Capture::default());
            outcome.error = outcome.error.map(|error| CodeError { name: error.name, ..CodeError::default() });
        }
        Guarded {
            rest: rest.into_iter().map(Sanitized::vouch).collect(),
            outcome: Sanitized::vouch(outcome),
            report: self.report,
            numbering: self.numbering,
        }
    }

    fn text(&mut self, text: &str) -> String {
        let mut report = self.guard.report();
        let out = self.guard.run(text, &mut self.numbering, &mut report);
        self.report.absorb(&report);
        out
    }

    fn error(&mut self, error: CodeError) -> CodeError {
        CodeError {
            name: self.text(&error.name),
            message: self.text(&error.message),
            traceback: self.text(&error.traceback),
        }
    }

    fn result(&mut self, result: RichResult) -> RichResult {
        let mut formats = BTreeMap::new();
        for (format, content) in result.formats {
            let content = self.content(&format, content);
            formats.insert(self.text(&format), content);
        }
        RichResult { formats, is_main: result.is_main }
    }

    /// One form of a result, as what it is: a picture loses its text parts, everything else is text or JSON.
    fn content(&mut self, format: &str, content: Value) -> Value {
        let on = self.report.mode == super::Mode::Enforce;
        if let (Some(kind), Value::String(base64), true) = (picture::Format::of(format), &content, on) {
            return Value::String(match picture::strip(kind, base64) {
                Some(clean) => clean,
                None => {
                    self.report.withheld += 1;
                    picture::WITHHELD.to_owned()
                }
            });
        }
        let (value, report) = self.guard.json(content, &mut self.numbering);
        self.report.absorb(&report);
        value.into_inner()
    }
}

impl Guard {
    /// Guards an outcome that was guarded before and kept: with the same numbering it stays as it is.
    pub fn recorded(&self, outcome: Outcome, numbering: Numbering) -> Sanitized<Outcome> {
        let mut guard = OutcomeGuard::new(self, numbering, Limits::default());
        let stdout = outcome.stdout.map(|text| guard.text(text));
        let stderr = outcome.stderr.map(|text| guard.text(text));
        let results = outcome.results.into_iter().map(|result| guard.result(result)).collect();
        let error = outcome.error.map(|error| guard.error(error));
        Sanitized::vouch(Outcome { stdout, stderr, results, error, ..outcome })
    }
}

impl Stream {
    fn push(&mut self, text: &str, numbering: &mut Numbering) -> Option<String> {
        let ready = self.guard.push(text, numbering).into_inner();
        self.capture.push(&ready);
        (!ready.is_empty()).then_some(ready)
    }

    fn finish(self, numbering: &mut Numbering) -> (Capture, Option<String>, Report) {
        let Self { guard, mut capture } = self;
        let (rest, report) = guard.finish(numbering);
        capture.push(&rest);
        (capture, Some(rest.into_inner()).filter(|rest| !rest.is_empty()), report)
    }
}
