//! `run_analysis`: one of eight computations over parameters that are checked first.
//!
//! The published schema leaves `parameters` open, because unions are refused by many hosts; what each analysis takes is told
//! by `get_analysis_help`, and a wrong field is answered with its path and what was expected.

use rmcp::RoleServer;
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::run_code::{Common, Output as Run, running, served_by, structured, way_back};
use crate::analysis::{self, AnalysisError, Kind, OutputFormat, Report};
use crate::domain::Capture;
use crate::execution::{Analysed, AnalysisRequest};
use crate::mcp::long_runs::{handed_over, how_to_follow};
use crate::mcp::resources::resource;
use crate::mcp::{McpServer, ToolError, progress, schema};

/// The tool's name.
pub const NAME: &str = "run_analysis";

/// Characters of a report's text in a result.
const TEXT_CHARS: usize = 50_000;

/// What the tool takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Which analysis.
    analysis_type: InputKind,
    /// Its parameters, see get_analysis_help; with a pack, those that the pack leaves open.
    parameters: Map<String, Value>,
    /// A rule pack by name and version; get_analysis_help lists them.
    #[serde(default)]
    pack: Option<String>,
    /// How the text of the result is written; `json` when absent.
    #[serde(default)]
    output_format: InputFormat,
    /// As in run_code.
    #[serde(default)]
    purpose: Option<String>,
    /// As in run_code.
    #[serde(default)]
    #[schemars(range(min = 1000, max = 600_000))]
    timeout_ms: Option<u64>,
    /// As in run_code.
    #[serde(default)]
    context: Option<String>,
    /// As in run_code.
    #[serde(default)]
    idempotency_key: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::mcp) enum InputKind {
    TaxCalculation,
    ComplianceCheck,
    Eligibility,
    Timeline,
    Comparison,
    Scenario,
    DataAnalysis,
    Custom,
}

impl From<InputKind> for Kind {
    fn from(kind: InputKind) -> Self {
        match kind {
            InputKind::TaxCalculation => Self::TaxCalculation,
            InputKind::ComplianceCheck => Self::ComplianceCheck,
            InputKind::Eligibility => Self::Eligibility,
            InputKind::Timeline => Self::Timeline,
            InputKind::Comparison => Self::Comparison,
            InputKind::Scenario => Self::Scenario,
            InputKind::DataAnalysis => Self::DataAnalysis,
            InputKind::Custom => Self::Custom,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum InputFormat {
    #[default]
    Json,
    Table,
    Summary,
}

impl From<InputFormat> for OutputFormat {
    fn from(format: InputFormat) -> Self {
        match format {
            InputFormat::Json => Self::Json,
            InputFormat::Table => Self::Table,
            InputFormat::Summary => Self::Summary,
        }
    }
}

/// What the tool gives back as structured content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Whether it was computed; a custom analysis whose code fails was not.
    pub success: bool,
    /// Which analysis.
    pub analysis_type: String,
    /// How `text` is written.
    pub output_format: String,
    /// The figures; amounts are decimal text. Empty when there is no report, or when it is among the artifacts only.
    pub output: Map<String, Value>,
    /// The same for reading, where it is not the figures as JSON once more.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The sources that came with the rules.
    pub sources: Vec<String>,
    /// How numbers were computed and rounded.
    pub arithmetic: String,
    /// What the reader should know besides.
    pub notes: Vec<String>,
    /// That this is a computation and no advice.
    pub disclaimer: String,
    /// The rule pack that it rests on: name, SHA-256, validity, sources, how many examples came out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack: Option<Map<String, Value>>,
    /// The run itself, as run_code gives it: what it printed, why it failed, its context, what the guard did.
    #[schemars(with = "Map<String, Value>")]
    pub run: Run,
}

/// The tool as it is listed.
pub fn tool() -> Tool {
    let description = "Compute an answer in exact decimals from rules and figures that you pass: taxes, compliance, eligibility, \
        deadlines, comparisons, scenarios (with break-even), statistics of data, or your own Python. No rate or rule is built \
        in: pass them, each with a `source`. Unknown where a fact is missing. A computation, not advice.";
    schema::tool::<Input>(NAME, "Run analysis", description)
        .with_raw_output_schema(schema::output::<Output>())
        .with_annotations(
            ToolAnnotations::new().read_only(false).destructive(false).idempotent(false).open_world(false),
        )
}

impl McpServer {
    pub(in crate::mcp) async fn run_analysis(
        &self,
        arguments: JsonObject,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ToolError> {
        let news = progress::reporter(&context);
        let input: Input = self.parse(NAME, arguments)?;
        let kind = Kind::from(input.analysis_type);
        let checked = match &input.pack {
            Some(name) => self.0.options.packs.complete(name, kind, &input.parameters)?,
            None => analysis::check(kind, &Value::Object(input.parameters))?,
        };
        let format = OutputFormat::from(input.output_format);
        let common = Common {
            purpose: input.purpose,
            timeout_ms: input.timeout_ms,
            context: input.context,
            idempotency_key: input.idempotency_key,
        };
        let (call, purpose, timeout) = self.common(common, &context).await?;
        let (wait, cancel) = (self.wait(&context)?, CancellationToken::new());
        let service = self.service().await?;
        let request = AnalysisRequest { checked: checked.clone(), format, purpose, timeout };
        let mut begun = service.runs.begin_analysis(call, request, news, cancel.clone());
        let finished = self.follow(&mut begun, wait, &cancel, &context).await;
        match finished? {
            Some(finished) => {
                let analysed = service.runs.analysed(finished, &checked, format).await;
                Ok(self.analysis_result(kind.as_str(), format.as_str(), analysed, &context).await?.into())
            }
            None => {
                let text = how_to_follow(&begun, kind.as_str());
                let mut output = output(kind.as_str(), format.as_str(), None, false, running(&begun, &text));
                output.text.clone_from(&text);
                Ok(handed_over(&begun, text, serde_json::to_value(&output).ok(), &context))
            }
        }
    }

    /// `kind` and `format` are said of a run that has no report; one that has says them itself.
    pub(in crate::mcp) async fn analysis_result(
        &self,
        kind: &str,
        format: &str,
        analysed: Analysed,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ToolError> {
        let Analysed { finished, report, file } = analysed;
        let mut run = structured(&finished);
        let report = match report {
            Ok(report) => Some(report),
            // the run did not come to its end: that is a normal result, as in run_code
            Err(AnalysisError::NoReport) if !finished.outcome.success() => None,
            Err(error) => return Err(error.into()),
        };
        // The report stands beside it.
        run.output = String::new();
        run.notes = Vec::new();
        let (pictures, left_out) = self.pictures(&finished.outcome, context).await;
        run.notes.extend(left_out);
        let shown = report.as_ref().map_or(kind, |report| &report.analysis_type);
        let computed = report.as_ref().is_some_and(|report| !code_failed(report));
        let mut text = format!(
            "{shown} {} in {} ms; state {}{}{}",
            if computed { "finished" } else { "failed" },
            run.execution_time_ms,
            run.state,
            way_back(run.context.as_deref()),
            run.guard.note(),
        );
        let mut output = output(kind, format, report, file.is_some(), run);
        let mut parts = vec![("", &output.text), ("[stdout]\n", &output.run.stdout)];
        let is_json = output.output_format == OutputFormat::Json.as_str();
        if is_json {
            // The other formats say these themselves.
            parts.extend(output.notes.iter().chain([&output.disclaimer]).map(|note| ("[note] ", note)));
        }
        parts.extend(output.run.notes.iter().map(|note| ("[note] ", note)));
        for (mark, part) in parts {
            if !part.is_empty() {
                text.push_str(&format!("\n{mark}{}", part.trim_end_matches('\n')));
            }
        }
        if is_json && !output.output.is_empty() {
            output.text.clear();
        }
        let mut content = vec![ContentBlock::text(text)];
        content.extend(pictures);
        content.extend(
            finished
                .record
                .artifacts
                .iter()
                .chain(&file)
                .map(|artifact| ContentBlock::resource_link(resource(artifact))),
        );
        let mut result = CallToolResult::success(content);
        result.is_error = None;
        result.structured_content = serde_json::to_value(&output).ok();
        result.meta = Some(served_by(&finished));
        Ok(result)
    }
}

/// Whether a custom analysis says that its code raised.
fn code_failed(report: &Report) -> bool {
    report.output.get("success") == Some(&Value::Bool(false))
}

/// Complete on its own, unless the report is so large that hosts would refuse the message: then it is a file.
fn output(kind: &str, format: &str, report: Option<Report>, in_file: bool, run: Run) -> Output {
    let failure =
        run.error.as_ref().map_or_else(String::new, |error| format!("{}: {}", error.name, error.message));
    let report = report.unwrap_or_else(|| Report {
        analysis_type: kind.to_string(),
        output_format: format.to_string(),
        output: Value::Null,
        text: failure,
        sources: Vec::new(),
        arithmetic: String::new(),
        notes: Vec::new(),
        disclaimer: analysis::DISCLAIMER.to_owned(),
        pack: None,
    });
    let code_failed = code_failed(&report);
    let figures = match report.output {
        Value::Object(figures) if !in_file => figures,
        _ => Map::new(),
    };
    let mut text = Capture::new(TEXT_CHARS);
    text.push(&report.text);
    let mut notes = report.notes;
    if in_file {
        notes.push("The report is too large for a message; the whole is linked as report.json.".to_owned());
    }
    Output {
        success: run.success == Some(true) && !code_failed,
        analysis_type: report.analysis_type,
        output_format: report.output_format,
        output: figures,
        text: text.text(),
        sources: report.sources,
        arithmetic: report.arithmetic,
        notes,
        disclaimer: report.disclaimer,
        pack: report.pack.and_then(|pack| serde_json::to_value(pack).ok()?.as_object().cloned()),
        run,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn published_schemas_hold_nothing_that_strict_hosts_refuse() {
        let tool = serde_json::to_value(tool()).unwrap();
        for which in ["inputSchema", "outputSchema"] {
            assert_eq!(schema::refused(&tool[which]), Vec::<String>::new(), "{which}: {}", tool[which]);
            assert_eq!(tool[which]["type"], "object");
        }
        let kinds: Vec<_> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(tool["inputSchema"]["properties"]["analysis_type"]["enum"], json!(kinds));
        assert_eq!(tool["inputSchema"]["required"], json!(["analysis_type", "parameters"]));
    }
}
