//! The use case behind `run_analysis`: a program of ours with the caller's data, run as code of the context is, and
//! its report read out of what the guard let pass.

use tokio_util::sync::CancellationToken;

use crate::analysis::{AnalysisError, Checked, OutputFormat, Program, Report};
use crate::domain::{Code, CodeRequest, ExecutionId, Inputs, Language, Outcome, Timeout};
use crate::telemetry::chain;

use super::{Artifact, Begun, Call, ExecutionError, Finished, Outputs, ProgressSender, Runs};

/// The name of the tool in records.
pub const TOOL: &str = "run_analysis";

/// The name under which a large report is kept. It is written after the run's record, which does not name it.
pub(super) const FILE: &str = "report.json";

/// A report above this many bytes of JSON is also kept as a file.
const LARGE_REPORT: usize = 256 * 1024;

/// What a caller wants analysed.
#[derive(Debug, Clone)]
pub struct AnalysisRequest {
    /// Which analysis, with parameters of the right form.
    pub checked: Checked,
    /// How the report's text is written.
    pub format: OutputFormat,
    /// One line for the audit record.
    pub purpose: Option<String>,
    /// How long the run may take.
    pub timeout: Timeout,
}

/// An analysis that ran.
#[derive(Debug)]
pub struct Analysed {
    /// The run. All in it has been guarded.
    pub finished: Finished,
    /// The guarded report, or why there is none; a run that did not complete says more in its outcome.
    pub report: Result<Report, AnalysisError>,
    /// The whole report as a file, when it is too large for a message.
    pub file: Option<Artifact>,
}

impl Runs {
    /// Runs an analysis on the call's context.
    ///
    /// # Errors
    /// [`ExecutionError`] for what kept it from running. Parameters that contradict themselves are in the report.
    pub async fn run_analysis(
        &self,
        call: Call,
        request: AnalysisRequest,
        progress: ProgressSender,
        cancel: CancellationToken,
    ) -> Result<Analysed, ExecutionError> {
        let (checked, format) = (request.checked.clone(), request.format);
        let finished = self.begin_analysis(call, request, progress, cancel).finished().await?;
        Ok(self.analysed(finished, &checked, format).await)
    }

    /// Begins an analysis and returns at once; [`Self::analysed`] reads what it comes to.
    pub fn begin_analysis(
        &self,
        call: Call,
        request: AnalysisRequest,
        progress: ProgressSender,
        cancel: CancellationToken,
    ) -> Begun {
        let AnalysisRequest { checked, format, purpose, timeout } = request;
        let code = Code::of_program(Program::new(&checked, format).code);
        let request =
            CodeRequest { language: Language::Python, code, purpose, timeout, inputs: Inputs::default() };
        self.begin(TOOL, call, request, progress, cancel)
    }

    /// The report of an analysis that has run, held against what was asked for.
    pub async fn analysed(&self, finished: Finished, checked: &Checked, format: OutputFormat) -> Analysed {
        let report = Report::read(checked, format, &finished.outcome.results);
        self.with_file(finished, report).await
    }

    /// The same for a run that is recalled: what was asked for is in the report alone.
    pub async fn analysed_earlier(&self, finished: Finished) -> Analysed {
        let report = Report::recorded(&finished.outcome.results);
        self.with_file(finished, report).await
    }

    async fn with_file(&self, finished: Finished, report: Result<Report, AnalysisError>) -> Analysed {
        let file = match &report {
            Ok(report) => self.keep_large(&finished, report).await,
            Err(_) => None,
        };
        Analysed { finished, report, file }
    }

    async fn keep_large(&self, finished: &Finished, report: &Report) -> Option<Artifact> {
        serde_json::to_vec(report).ok().filter(|bytes| bytes.len() > LARGE_REPORT)?;
        // Once more out of the guarded outcome, so that the type says where it comes from.
        let bytes = finished.outcome.clone().map(report_bytes);
        let artifact = report_file(finished.execution, bytes.len() as u64);
        let kept = self.0.outputs().put(finished.execution, FILE, &artifact.mime_type, &bytes).await;
        kept.inspect_err(|error| tracing::warn!(error = %chain(&error), execution.id = %finished.execution, "a report could not be kept"))
            .ok()
    }
}

fn report_bytes(outcome: Outcome) -> Vec<u8> {
    let report = Report::recorded(&outcome.results).ok();
    report.and_then(|report| serde_json::to_vec(&report).ok()).unwrap_or_default()
}

/// The summary of a kept report.
pub(super) fn report_file(execution: ExecutionId, bytes: u64) -> Artifact {
    Artifact {
        uri: Outputs::uri(execution, FILE),
        name: FILE.to_owned(),
        mime_type: "application/json".to_owned(),
        bytes,
        cut: false,
    }
}
