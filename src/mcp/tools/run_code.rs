//! `run_code`: runs code in the conversation path's sandbox.

use std::sync::Arc;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::model::{
    CallToolResponse, CallToolResult, ContentBlock, InputResponses, JsonObject, MetaObject, Tool,
    ToolAnnotations,
};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::arguments::{source, understand};
use crate::domain::terminal::visible;
use crate::domain::{
    Capture, Code, CodeRequest, EXIT_STATUS, Inputs, Language, Misfit, Outcome, Reading, SandboxState, Scope,
    Timeout, ToolsWanted, from_value,
};
use crate::execution::{Artifact, Begun, Call, Finished, Question, ToolCall};
use crate::guard::{self, Report, Sanitized};
use crate::mcp::confirm::{self, Pending};
use crate::mcp::long_runs::{handed_over, how_to_follow};
use crate::mcp::resources::resource;
use crate::mcp::{InlineImages, McpServer, Offered, ToolError, caller, images, progress, schema, trace};

/// The tool's name.
pub const NAME: &str = "run_code";

/// Characters of all displays together that are shown; the default of what is shown of standard output.
const OUTPUT_CHARS: usize = 50_000;

/// The longest accepted purpose, in characters.
const MAX_PURPOSE: usize = 500;
/// Bytes of base64 pictures in one result; hosts refuse results of 1 MB.
const MAX_PICTURE_BYTES: usize = 600 * 1024;

/// Clients that show a model no picture beside structured content; `get_artifact` is for them.
const DROPS_PICTURES: [&str; 1] = ["claude-code"];

/// What the tool takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The source, at most 100 KB. Print what you want to see; the value of the last expression is returned too.
    code: String,
    /// JavaScript and TypeScript share variables; the others do not.
    language: InputLanguage,
    /// One line: what this computes. Goes to the audit record.
    #[serde(default)]
    purpose: Option<String>,
    /// Milliseconds the run may take; 60000 when absent.
    #[serde(default)]
    #[schemars(range(min = 1000, max = 600_000))]
    timeout_ms: Option<u64>,
    /// Handle of an earlier result, to work in that result's context; this conversation's own when absent.
    #[serde(default)]
    context: Option<String>,
    /// Runs at most once under this key: a repeated call returns the recorded result.
    #[serde(default)]
    idempotency_key: Option<String>,
    /// JSON that the code finds as the variable `data` (in Bash as text), up to 5 MB.
    #[serde(default)]
    data: Option<Value>,
    /// Tools of other servers whose signatures the result should tell: names, or `{"intent": "what for", "limit": 5}`.
    #[serde(default)]
    tools: Option<Value>,
    /// Template of the sandbox. Only for a context's first run, or as the context already has it.
    #[serde(default)]
    template: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum InputLanguage {
    Python,
    Javascript,
    Typescript,
    Bash,
}

impl From<InputLanguage> for Language {
    fn from(language: InputLanguage) -> Self {
        match language {
            InputLanguage::Python => Self::Python,
            InputLanguage::Javascript => Self::Javascript,
            InputLanguage::Typescript => Self::Typescript,
            InputLanguage::Bash => Self::Bash,
        }
    }
}

/// What the tool gives back as structured content. Complete on its own: some hosts show a model nothing else. What is empty is
/// left out, but for the texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// `finished`, or `running`: then follow it with `get_execution`.
    pub status: String,
    /// Whether the program did what it was asked to; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    /// The exit code: 0 success, 124 time-out, 130 cancelled; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Standard output as a terminal leaves it, cut in the middle when long.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
    /// The displays in order, the value of the last expression among them.
    pub output: String,
    /// What `output` is: `text`, `json` (exactly one value), `table`; `error` when the program failed.
    pub output_type: String,
    /// Why the program failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<OutputError>,
    /// Milliseconds from sending the code to its end.
    pub execution_time_ms: u64,
    /// Whether something was cut; the whole is then among the artifacts.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// What became of earlier state: `fresh`, `kept`, `reset`, or `rolled_back` (variables are as before this run);
    /// `pending` while it runs.
    pub state: String,
    /// Why the state was reset or rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<String>,
    /// A handle to the context that served the call, unless its state was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// The run's id.
    pub execution_id: String,
    /// Whole outputs, pictures and other forms of displays, readable as resources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<OutputArtifact>,
    /// Limits of the sandbox that were met, e.g. `oom`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped_by: Vec<String>,
    /// Whether this is the recorded result of an earlier call under the same idempotency key.
    #[serde(default, skip_serializing_if = "is_false")]
    pub replayed: bool,
    /// What a reader should know: what was left out, hidden, understood.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What the egress guard did.
    pub guard: OutputGuard,
    /// The tools of other servers that the program called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<OutputToolCall>,
    /// Signatures of the tools that were asked for with `tools`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
}

/// One call of a tool of another server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OutputToolCall {
    /// `server.tool`.
    pub name: String,
    /// Milliseconds.
    pub ms: u64,
    /// Bytes of arguments and result.
    pub bytes: u64,
    /// `ok`, `error`, or why it was not made.
    pub outcome: String,
    /// How many calls this sums up, in a run with many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Why a program failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OutputError {
    /// The exception's class, or `timeout`.
    pub name: String,
    /// Its message.
    pub message: String,
    /// The traceback with the program's own lines.
    pub traceback: String,
}

/// Calls that are listed one by one; of more, those of one tool with one outcome are one line.
const MOST_CALLS: usize = 20;

impl OutputToolCall {
    fn all(calls: &[ToolCall]) -> Vec<Self> {
        let mut out: Vec<Self> = Vec::new();
        for call in calls {
            let alike = |line: &&mut Self| line.name == call.tool && line.outcome == call.outcome;
            match out.iter_mut().find(alike).filter(|_| calls.len() > MOST_CALLS) {
                Some(line) => {
                    line.ms += call.ms;
                    line.bytes += call.bytes;
                    line.calls = Some(line.calls.unwrap_or(1) + 1);
                }
                None => out.push(Self {
                    name: call.tool.clone(),
                    ms: call.ms,
                    bytes: call.bytes,
                    outcome: call.outcome.clone(),
                    calls: None,
                }),
            }
        }
        out
    }
}

/// Something that can be read as a resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputArtifact {
    /// Its URI.
    pub uri: String,
    /// Its name.
    pub name: String,
    /// Its media type.
    pub mime_type: String,
    /// Its size in bytes.
    pub bytes: u64,
}

impl OutputArtifact {
    fn of(artifact: &Artifact) -> Self {
        let Artifact { uri, name, mime_type, bytes, .. } = artifact.clone();
        Self { uri, name, mime_type, bytes }
    }
}

/// What the egress guard did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OutputGuard {
    /// `enforce`, `report_only` or `off`; `pending` while it runs.
    pub mode: String,
    /// The version of the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Kind of finding to how many.
    pub findings: std::collections::BTreeMap<String, u64>,
}

impl OutputGuard {
    /// What a report says of one result.
    pub(in crate::mcp) fn of(report: &Report) -> Self {
        let findings = report.by_kind().into_iter().map(|(kind, n)| (kind.as_str().to_owned(), n)).collect();
        Self { mode: report.mode.as_str().to_owned(), policy: Some(report.policy.clone()), findings }
    }

    /// The end of a line that says what happened; empty when nothing was found.
    pub(in crate::mcp) fn note(&self) -> String {
        match self.findings.values().sum::<u64>() {
            0 => String::new(),
            1 => format!("; guard ({}): 1 finding", self.mode),
            found => format!("; guard ({}): {found} findings", self.mode),
        }
    }
}

/// The tool as it is listed; code that reaches a network has an open world.
pub fn tool(network: bool, tools: bool, templates: Option<&[Offered]>) -> Tool {
    let description = "Run code in an isolated sandbox of this conversation path. Variables, imports and files are kept \
        between calls. Returns what was printed, the value of the last expression, displays and pictures of open plots, \
        and a traceback when the code fails. The network is closed except for hosts that the operator allows. Personal data and \
        secrets in the output are replaced by placeholders like [EMAIL_1].";
    let mut meta = Map::new();
    meta.insert("anthropic/maxResultSizeChars".into(), json!(200_000));
    let mut input = schema::arguments::<Input>();
    let mut description = description.to_owned();
    let properties = Arc::make_mut(&mut input).get_mut("properties").and_then(Value::as_object_mut);
    if let Some(properties) = properties {
        match templates {
            Some(offered) => describe_templates(properties, offered),
            None => drop(properties.shift_remove("template")),
        }
        if !tools {
            properties.shift_remove("tools");
        }
    }
    if tools {
        description.push_str(" Programs can call tools of other servers: `from tools import <server>` (`search_tools` finds them).");
    }
    Tool::new(NAME, description, input)
        .with_title("Run code")
        .with_raw_output_schema(schema::output::<Output>())
        .with_annotations(
            ToolAnnotations::new().read_only(false).destructive(false).idempotent(false).open_world(network),
        )
        .with_meta(MetaObject(meta))
}

/// Says which templates there are.
fn describe_templates(properties: &mut Map<String, Value>, offered: &[Offered]) {
    let names = offered.iter().map(|template| template.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(Value::String(text)) =
        properties.get_mut("template").and_then(|one| one.get_mut("description"))
        && !names.is_empty()
    {
        text.push_str(&format!(" One of: {names}."));
    }
}

impl McpServer {
    /// Reads the arguments of a call by the tool's schema; an error names the argument.
    pub(in crate::mcp) fn parse<T: for<'de> Deserialize<'de>>(
        &self,
        tool: &str,
        arguments: JsonObject,
    ) -> Result<T, ToolError> {
        let tool = self.tools().iter().find(|listed| listed.name == tool);
        let arguments = match tool {
            Some(tool) => understand(&tool.input_schema, arguments).map_err(ToolError::argument)?,
            None => arguments,
        };
        parse(arguments)
    }
}

/// Makes arguments that the schema allows into what the tool works with.
fn parse<T: for<'de> Deserialize<'de>>(arguments: JsonObject) -> Result<T, ToolError> {
    from_value(&Value::Object(arguments)).map_err(|Misfit { path, problem }| match path.as_str() {
        "." | "?" => ToolError::argument(format!("bad arguments: {problem}")),
        path => ToolError::argument(format!("argument `{path}`: {problem}")),
    })
}

/// The largest `data`, as JSON.
const MAX_DATA_BYTES: usize = 5 << 20;

fn data(given: Option<Value>) -> Result<Option<Arc<str>>, ToolError> {
    let Some(text) = given.map(|value| value.to_string()) else { return Ok(None) };
    if text.len() > MAX_DATA_BYTES {
        let size = text.len();
        return Err(ToolError::argument(format!(
            "argument `data`: it has {size} bytes as JSON, allowed are {MAX_DATA_BYTES}; put it into a file with the `files` tool"
        )));
    }
    Ok(Some(text.into()))
}

/// Which tools a caller asks: a name, names, or what for. Also as JSON text, as some clients send it.
fn wanted(given: Value) -> Result<ToolsWanted, ToolError> {
    let wrong = || {
        ToolError::argument(
            "argument `tools`: allowed is a list of names like \"github.list_commits\", or {\"intent\": \"what for\", \"limit\": 5}",
        )
    };
    match given {
        Value::String(text) if text.trim_start().starts_with(['[', '{']) => {
            wanted(serde_json::from_str(&text).map_err(|_| wrong())?)
        }
        Value::String(name) => Ok(ToolsWanted { names: vec![name], intent: None }),
        Value::Array(names) => {
            let names = names.into_iter().map(|name| name.as_str().map(str::to_owned).ok_or_else(wrong));
            Ok(ToolsWanted { names: names.collect::<Result<_, _>>()?, intent: None })
        }
        Value::Object(members) => {
            if members.keys().any(|name| name != "intent" && name != "limit") {
                return Err(wrong());
            }
            let intent = members.get("intent").and_then(Value::as_str).ok_or_else(wrong)?.to_owned();
            let limit = match members.get("limit") {
                None | Some(Value::Null) => 5,
                Some(limit) => limit.as_u64().filter(|n| (1..=20).contains(n)).ok_or_else(wrong)? as usize,
            };
            Ok(ToolsWanted { names: Vec::new(), intent: Some((intent, limit)) })
        }
        _ => Err(wrong()),
    }
}

/// The arguments that every tool takes that runs something.
pub(in crate::mcp) struct Common {
    pub(in crate::mcp) purpose: Option<String>,
    pub(in crate::mcp) timeout_ms: Option<u64>,
    pub(in crate::mcp) context: Option<String>,
    pub(in crate::mcp) idempotency_key: Option<String>,
}

impl McpServer {
    pub(in crate::mcp) async fn run_code(
        &self,
        arguments: JsonObject,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ToolError> {
        let news = progress::reporter(&context);
        let given = arguments.clone();
        let input: Input = self.parse(NAME, arguments)?;
        let (mut call, request, notes) = self.call(input, &context).await?;
        let (person, questions) = confirm::person(&context);
        call.person = person;
        // What may refuse the call comes before the run: one that has begun would go on without a caller.
        let (wait, cancel) = (self.wait(&context)?, CancellationToken::new());
        let begun = self.service().await?.runs.begin_code(call, request, news, cancel.clone());
        self.until_it_ends((begun, cancel, questions), given, notes, wait, &context).await
    }

    /// The second half of a call that was sent away with a question.
    pub(in crate::mcp) async fn go_on(
        &self,
        state: &str,
        responses: InputResponses,
        arguments: &JsonObject,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ToolError> {
        let wait = self.wait(&context)?;
        let pending = self.take_input(state, &responses, (NAME, arguments), &context)?;
        let Pending::Run { begun, cancel, questions } = pending else {
            return Err(ToolError::internal("a run waits as something else"));
        };
        let run = (begun, cancel, Some(questions));
        self.until_it_ends(run, arguments.clone(), Vec::new(), wait, &context).await
    }

    /// Waits for the run's end, for the end of the caller's patience, or for a question that this request has to carry.
    async fn until_it_ends(
        &self,
        (mut begun, cancel, mut questions): (Begun, CancellationToken, Option<mpsc::Receiver<Question>>),
        arguments: JsonObject,
        notes: Vec<String>,
        wait: Duration,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ToolError> {
        let asked = async {
            match &mut questions {
                Some(questions) => questions.recv().await,
                None => None,
            }
        };
        let finished = tokio::select! {
            finished = self.follow(&mut begun, wait, &cancel, context) => finished?,
            Some(question) = asked => {
                let Some(questions) = questions else { return Err(ToolError::internal("a question without a way")) };
                let pending = Pending::Run { begun, cancel, questions };
                return self.ask_for_input(question, pending, (NAME, arguments), context);
            }
        };
        Ok(match finished {
            Some(finished) => self.result(finished, notes, context).await.into(),
            None => {
                let text = how_to_follow(&begun, begun.language.as_str());
                let output = serde_json::to_value(running(&begun, &text)).ok();
                handed_over(&begun, text, output, context)
            }
        })
    }

    /// The call, what it runs, and what its writer should know of how it was understood.
    async fn call(
        &self,
        input: Input,
        context: &RequestContext<RoleServer>,
    ) -> Result<(Call, CodeRequest, Vec<String>), ToolError> {
        let common = Common {
            purpose: input.purpose,
            timeout_ms: input.timeout_ms,
            context: input.context,
            idempotency_key: input.idempotency_key,
        };
        let language = Language::from(input.language);
        let (code, notes) = source(input.code, language.as_str());
        let mut notes: Vec<String> = notes.into_iter().map(str::to_owned).collect();
        let (call, purpose, timeout) = self.common(common, context).await?;
        let text = match guard::first_placeholder(&code) {
            Some(placeholder) if self.service().await?.runs.leaves_as_text(&call, placeholder) => {
                Some(placeholder)
            }
            _ => None,
        };
        notes.extend(text.map(|placeholder| {
            format!(
                "the code holds {placeholder}; in the sandbox that is only this text, not the value it replaced: compare \
                 and select by other columns or values, or by the data itself"
            )
        }));
        let code = Code::parse(code)?;
        let inputs = Inputs {
            data: data(input.data)?,
            tools: input.tools.map(wanted).transpose()?,
            template: input.template.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()),
        };
        Ok((call, CodeRequest { language, code, purpose, timeout, inputs }, notes))
    }

    /// Who calls, for what, and how long it may take: the same in every tool that runs something.
    pub(in crate::mcp) async fn common(
        &self,
        input: Common,
        context: &RequestContext<RoleServer>,
    ) -> Result<(Call, Option<String>, Timeout), ToolError> {
        let caller = self.caller(context)?;
        caller.needs(Scope::Run)?;
        let purpose = input.purpose.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        if purpose.as_ref().is_some_and(|text| text.chars().count() > MAX_PURPOSE || text.contains('\n')) {
            return Err(ToolError::argument(format!(
                "argument `purpose`: allowed is one line of at most {MAX_PURPOSE} characters"
            )));
        }
        let timeout = match input.timeout_ms {
            Some(millis) => Timeout::from_millis(millis)?,
            None => Timeout::default(),
        };
        let key = self.key(&caller, input.context.as_deref()).await?;
        let may_loosen = self.service().await?.policies.call_may_loosen(&key);
        let idempotency_key = caller::idempotency_key(input.idempotency_key.as_deref(), &context.meta.0)?;
        let call = Call {
            trace: trace(context),
            idempotency_key,
            guard: caller::overlay(&context.meta.0, may_loosen)?,
            is_made_up: input.context.is_none() && caller.is_made_up(),
            ..Call::on(key, caller.requester())
        };
        Ok((call, purpose, timeout))
    }

    /// The only place where a run becomes a result. It takes guarded output and nothing else.
    pub(in crate::mcp) async fn result(
        &self,
        finished: Finished,
        notes: Vec<String>,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResult {
        let (pictures, left_out) = self.pictures(&finished.outcome, context).await;
        let mut output = structured(&finished);
        output.notes.extend(left_out);
        output.notes.extend(notes);
        let mut content = vec![ContentBlock::text(text_block(&finished, &output))];
        content.extend(pictures);
        content.extend(
            finished.record.artifacts.iter().map(|artifact| ContentBlock::resource_link(resource(artifact))),
        );
        let mut result = CallToolResult::success(content);
        result.is_error = None;
        result.structured_content = serde_json::to_value(&output).ok();
        result.meta = Some(served_by(&finished));
        result
    }

    /// The pictures of a result, each once, and a note about those that did not fit.
    pub(in crate::mcp) async fn pictures(
        &self,
        outcome: &Sanitized<Outcome>,
        context: &RequestContext<RoleServer>,
    ) -> (Vec<ContentBlock>, Option<String>) {
        let inline = match self.0.options.inline_images {
            InlineImages::Always => true,
            InlineImages::Never => false,
            InlineImages::Auto => {
                let client = context.client_info().map(|client| client.name.to_ascii_lowercase());
                !client.is_some_and(|name| DROPS_PICTURES.contains(&name.as_str()))
            }
        };
        let mut texts: Vec<String> = Vec::new();
        for result in outcome.results.iter().filter(|_| inline) {
            let form = |name: &&str| result.formats.get(*name).and_then(Value::as_str);
            if let Some(text) = ["png", "image/png", "jpeg", "image/jpeg"].iter().find_map(form)
                && !texts.iter().any(|before| before == text)
            {
                texts.push(text.to_owned());
            }
        }
        if texts.is_empty() {
            return (Vec::new(), None);
        }
        // Decoding is work, and no other call should wait for it.
        let fitted = tokio::task::spawn_blocking(move || {
            let mut fitter = images::Fitter::new(MAX_PICTURE_BYTES);
            texts.iter().map(|text| fitter.fit(text)).collect::<Vec<_>>()
        });
        let fitted = fitted.await.unwrap_or_default();
        let left_out = fitted.iter().filter(|picture| picture.is_none()).count();
        let blocks = fitted.into_iter().flatten();
        let blocks = blocks.map(|picture| ContentBlock::image(picture.base64, picture.mime_type)).collect();
        let note = (left_out > 0).then(|| {
            format!("{left_out} pictures are linked and not shown, because they are too large or too many; get_artifact shows one")
        });
        (blocks, note)
    }
}

/// Which context served a call, for the result's `_meta`.
pub(in crate::mcp) fn served_by(finished: &Finished) -> MetaObject {
    let mut meta = Map::new();
    meta.insert("dev.pathbox/conversationId".into(), json!(finished.key.conversation));
    meta.insert("dev.pathbox/pathId".into(), json!(finished.key.path));
    meta.insert("dev.pathbox/context".into(), json!(finished.handle));
    meta.insert("dev.pathbox/state".into(), json!(finished.record.state));
    MetaObject(meta)
}

/// The structured content of a run that has finished; `pathbox run --json` prints the same.
pub(crate) fn structured(finished: &Finished) -> Output {
    let outcome = &finished.outcome;
    let (output, output_type) = displays(outcome);
    let truncated = outcome.stdout.is_truncated() || outcome.stderr.is_truncated() || output.is_truncated();
    let state = finished.record.state;
    Output {
        status: "finished".to_owned(),
        success: Some(outcome.success()),
        exit_code: Some(outcome.exit_code()),
        stdout: outcome.stdout.text(),
        stderr: outcome.stderr.text(),
        output: output.text(),
        output_type: output_type.to_owned(),
        error: outcome.error.as_ref().filter(|_| !outcome.success()).map(|error| OutputError {
            name: if error.name.is_empty() { EXIT_STATUS.to_owned() } else { error.name.clone() },
            message: error.message.clone(),
            traceback: error.traceback.clone(),
        }),
        execution_time_ms: u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX),
        truncated,
        state: state.to_string(),
        state_reason: finished.record.state_reason.clone(),
        context: (state != SandboxState::Kept).then(|| finished.handle.clone()),
        execution_id: finished.execution.to_string(),
        artifacts: finished.record.artifacts.iter().map(OutputArtifact::of).collect(),
        stopped_by: outcome.stops.iter().map(ToString::to_string).collect(),
        replayed: finished.replayed,
        notes: notes(finished),
        guard: OutputGuard::of(&finished.record.guard),
        tool_calls: OutputToolCall::all(&finished.record.tool_calls),
        tools: finished.record.signatures.clone(),
    }
}

/// What is said of a run that goes on.
pub(in crate::mcp) fn running(begun: &Begun, text: &str) -> Output {
    Output {
        status: "running".to_owned(),
        success: None,
        exit_code: None,
        stdout: String::new(),
        stderr: String::new(),
        output: text.to_owned(),
        output_type: "text".to_owned(),
        error: None,
        execution_time_ms: 0,
        truncated: false,
        state: "pending".to_owned(),
        state_reason: None,
        context: Some(begun.handle.clone()),
        execution_id: begun.execution().to_string(),
        artifacts: Vec::new(),
        stopped_by: Vec::new(),
        replayed: false,
        notes: Vec::new(),
        guard: OutputGuard {
            mode: "pending".to_owned(),
            policy: None,
            findings: std::collections::BTreeMap::new(),
        },
        tool_calls: Vec::new(),
        tools: Vec::new(),
    }
}

/// All displays as text, and what that is.
fn displays(outcome: &Outcome) -> (Capture, &'static str) {
    let failed = outcome.error.is_some() && !outcome.success();
    let mut shown = Capture::new(OUTPUT_CHARS);
    let Some((text, kind)) = outcome.reading() else {
        return (shown, if failed { "error" } else { "text" });
    };
    shown.push(&visible(&text));
    let kind = match kind {
        _ if failed => "error",
        Reading::Json if shown.is_truncated() => Reading::Text.as_str(),
        kind => kind.as_str(),
    };
    (shown, kind)
}

/// What else a reader should know: what is missing, and why.
fn notes(finished: &Finished) -> Vec<String> {
    let (outcome, mut notes) = (&finished.outcome, Vec::new());
    let is_silent = outcome.stdout.total_chars() == 0 && outcome.stderr.total_chars() == 0;
    if is_silent && outcome.results.is_empty() && outcome.success() && !finished.record.guard.blocked {
        notes.push(
            "nothing was printed, and the code does not end in a value; print what you want to see"
                .to_owned(),
        );
    }
    if outcome.rewritten {
        notes.push(
            "output that overwrites itself is shown as a terminal would show it; the complete output is linked"
                .to_owned(),
        );
    }
    if outcome.results_dropped > 0 {
        notes.push(format!("{} more displays were left out", outcome.results_dropped));
    }
    let guard = &finished.record.guard;
    if guard.withheld > 0 {
        notes.push(format!("{} parts were withheld by the guard, which cannot scan them", guard.withheld));
    }
    if guard.blocked {
        let kinds: Vec<_> = guard.findings.keys().map(|kind| kind.as_str()).collect();
        notes.push(format!(
            "nothing of this result is shown: the policy blocks results with these findings ({})",
            kinds.join(", ")
        ));
    }
    if !guard.refused.is_empty() {
        notes.push(format!(
            "the guard ignored a requested change, because the level above does not say `allow_off = true`: {}",
            guard.refused.join(", ")
        ));
    }
    notes
}

/// The whole result for a reader of text, in one block, for some clients read no more than the first: what ran and how it
/// ended, what it printed, its displays, why it failed, and notes.
fn text_block(finished: &Finished, output: &Output) -> String {
    let mut text = head(finished, output);
    let mut part = |mark: &str, part: &str| {
        if !part.is_empty() {
            if !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(mark);
            text.push_str(part);
        }
    };
    part("", &output.stdout);
    part("", &output.output);
    part("[stderr]\n", &output.stderr);
    if let Some(error) = finished.outcome.exception() {
        let line = format!("{}: {}", error.name, error.message);
        part("[error]\n", if error.traceback.is_empty() { &line } else { &error.traceback });
    }
    for note in &output.notes {
        part("[note] ", note);
    }
    text
}

/// One line: what ran, in what state, how it ended.
fn head(finished: &Finished, output: &Output) -> String {
    let mut line = format!(
        "{} {} in {} ms; exit {}; state {}",
        finished.language,
        if finished.outcome.success() { "finished" } else { "failed" },
        output.execution_time_ms,
        finished.outcome.exit_code(),
        output.state,
    );
    if let Some(reason) = &output.state_reason {
        line.push_str(&format!(" ({reason})"));
    }
    line.push_str(&way_back(output.context.as_deref()));
    if output.truncated {
        let outcome = &finished.outcome;
        let displays = displays(outcome).0;
        let parts = [("stdout", &outcome.stdout), ("stderr", &outcome.stderr), ("displays", &displays)];
        let cut: Vec<_> = parts.into_iter().filter(|(_, shown)| shown.is_truncated()).collect();
        let kept = |what: &str| finished.record.artifacts.iter().any(|kept| kept.name == what && !kept.cut);
        let is_whole = cut.iter().all(|(what, _)| *what == "displays" || kept(what));
        let cut: Vec<_> =
            cut.iter().map(|(what, shown)| format!("{what} {} characters", shown.total_chars())).collect();
        let whole = if is_whole { "is linked below" } else { "was not kept" };
        line.push_str(&format!("; output cut: {}, the whole {whole}", cut.join(", ")));
    }
    for stop in &output.stopped_by {
        line.push_str(&format!("; limit met: {stop}"));
    }
    if output.replayed {
        line.push_str("; recorded result of an earlier call with this idempotency key");
    }
    line.push_str(&tools_note(&output.tool_calls));
    line.push_str(&output.guard.note());
    for signature in &output.tools {
        line.push('\n');
        line.push_str(signature);
    }
    line
}

/// What a program called, in short; a failure among it is named.
fn tools_note(calls: &[OutputToolCall]) -> String {
    if calls.is_empty() {
        return String::new();
    }
    let bytes: u64 = calls.iter().map(|call| call.bytes).sum();
    let count: u64 = calls.iter().map(|call| call.calls.unwrap_or(1)).sum();
    let what = if count == 1 { "tool call" } else { "tool calls" };
    let mut note = format!("; {count} {what}, {bytes} bytes");
    for call in calls.iter().filter(|call| call.outcome != "ok").take(5) {
        note.push_str(&format!("; {} {}", call.name, call.outcome));
    }
    note
}

/// How to come back to a state that has just begun. Many frameworks show a model the text alone, and some of them open
/// a new session for every call: without the handle in the text, their models could never see a variable again.
pub(in crate::mcp) fn way_back(handle: Option<&str>) -> String {
    handle.map_or_else(String::new, |handle| format!("; to keep it, pass context {handle}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_schemas_hold_nothing_that_strict_hosts_refuse() {
        let tool = serde_json::to_value(tool(false, false, None)).unwrap();
        for which in ["inputSchema", "outputSchema"] {
            assert_eq!(schema::refused(&tool[which]), Vec::<String>::new(), "{which}: {}", tool[which]);
            assert_eq!(tool[which]["type"], "object");
        }
        assert_eq!(tool["inputSchema"]["required"], json!(["code", "language"]));
        assert_eq!(
            tool["inputSchema"]["properties"]["language"]["enum"],
            json!(["python", "javascript", "typescript", "bash"])
        );
    }

    fn problem(arguments: Value) -> String {
        let schema = tool(false, false, None).input_schema;
        understand(&schema, arguments.as_object().unwrap().clone()).unwrap_err()
    }

    #[test]
    fn a_wrong_argument_is_named() {
        let text = problem(json!({"code": "1", "language": "cobol"}));
        assert!(text.contains("argument `language`") && text.contains("`python`"), "{text}");
        let text = problem(json!({"code": 1, "language": "python"}));
        assert!(text.contains("argument `code`"), "{text}");
        let text = problem(json!({"language": "python"}));
        assert!(text.contains("argument `code` is missing"), "{text}");
        let text = problem(json!({"code": "1", "language": "python", "timeout": 5}));
        assert!(text.contains("unknown argument `timeout`"), "{text}");
    }
}
