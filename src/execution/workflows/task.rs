//! One run of one task: what it refers to is looked up, bound as data, and run; its value is what later tasks refer to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use tracing::field::Empty;

use crate::analysis::OutputFormat;
use crate::domain::{
    Code, CodeRequest, ContextKey, Ended, ExecutionId, Inputs, Language, Outcome, PathId, QuotaKind,
    QuotaReached, SandboxState, Timeout, hex,
};
use crate::e2b::NetworkPolicy;
use crate::guard::Sanitized;
use crate::store::WorkflowRow;
use crate::store::workflows::NewCached;
use crate::telemetry::trace::{self, Trace};
use crate::telemetry::{chain, metrics};
use crate::workflow::graph::file_name;
use crate::workflow::{Input, Lane, Phase, Running, State, Task, TaskKind, When};

use super::{Core, OWN, kind};
use crate::execution::files::{Content, FileAction, FileAnswer, FilePath, Filed};
use crate::execution::{
    AnalysisRequest, Call, Contexts, ExecutionError, Files, Finished, Outputs, ProgressSender, Requester,
    Runs,
};

/// Bytes of what one task is given.
const MAX_DATA: usize = 5 << 20;
/// Bytes of a result in the cache at most.
const MAX_CACHED: usize = 1 << 20;
/// Characters of an error in an event.
const MAX_ERROR: usize = 2_000;
/// How long a run that could not begin (a limit, a provider or a database that is away) is asked for again.
const PATIENCE: Duration = Duration::from_secs(600);

/// What is to become of a task, by what it refers to.
pub(super) enum Prepared {
    /// It can run, with these values by name.
    Ready(Map<String, Value>),
    /// It is a list of this length.
    Items(u32),
    Skip(String),
    Unusable(String),
}

/// What a run made.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) value: Sanitized<Value>,
    /// It is one of the cache.
    pub(super) cached: bool,
    /// The run that computed it, where there is a record of one.
    pub(super) execution: Option<ExecutionId>,
    /// Where its files are kept, by name.
    pub(super) artifacts: BTreeMap<String, String>,
    /// That its sandbox had lost its state, and why.
    pub(super) lost: Option<String>,
}

impl Made {
    fn of(value: Sanitized<Value>, finished: Option<&Finished>) -> Self {
        let kept = finished.into_iter().flat_map(|finished| &finished.record.artifacts);
        let artifacts = kept.map(|kept| (kept.name.clone(), kept.uri.clone())).collect();
        let (execution, lost) = (finished.map(|finished| finished.execution), finished.and_then(lost_state));
        Self { value, cached: false, execution, artifacts, lost }
    }
}

/// That a run did not find the state of the one before it, and why.
fn lost_state(finished: &Finished) -> Option<String> {
    let record = &finished.record;
    let is_lost = matches!(record.state, SandboxState::Reset | SandboxState::RolledBack);
    is_lost.then(|| format!("state {}: {}", record.state, record.state_reason.as_deref().unwrap_or_default()))
}

/// How a run came out.
#[derive(Debug, Clone)]
pub(super) enum Came {
    Done(Made),
    Failed {
        error: String,
        retry: bool,
    },
    /// It was cut off in the middle.
    Interrupted,
    /// It was stopped for us.
    Stopped,
    /// This process ends, or the workflow is another's: nothing can be said.
    Gone,
}

/// Whom a workflow acts for.
pub(super) fn requester(row: &WorkflowRow) -> Requester {
    Requester {
        tenant: row.key.tenant.clone(),
        owner: row.key.owner.clone(),
        principal: row.principal.clone(),
        sees_tenant: row.sees_tenant,
    }
}

/// The path of the workflow's own sandbox.
pub(super) fn own_path(row: &WorkflowRow) -> ContextKey {
    at_path(row, format!("{OWN}{}", row.id))
}

fn at_path(row: &WorkflowRow, path: String) -> ContextKey {
    // Ids of workflows and tasks are of the set, and short.
    let path = PathId::parse(path).unwrap_or_else(|_| row.key.path.clone());
    ContextKey { path, ..row.key.clone() }
}

/// Looks up what a task refers to. `values`: the results of the tasks that it refers to.
pub(super) fn prepare(state: &State, id: &str, values: &BTreeMap<String, Value>) -> Prepared {
    let Some(task) = state.plan.task(id) else { return Prepared::Unusable("it is not in the plan".into()) };
    let item: Option<usize> =
        id.split_once('[').and_then(|(_, rest)| rest.trim_end_matches(']').parse().ok());
    if item.is_none()
        && let Some(when) = &task.when
        && !holds(when, values)
    {
        return Prepared::Skip("`when` does not hold".into());
    }
    let mut inputs = Map::new();
    for (name, input) in &task.inputs {
        match resolve_in(state, input, values) {
            Ok(value) => inputs.insert(name.clone(), value),
            Err(Missing::Task(from)) => {
                return Prepared::Skip(format!("`{from}` has no result for input `{name}`"));
            }
            Err(Missing::Part(problem)) => return Prepared::Unusable(format!("input `{name}`: {problem}")),
        };
    }
    let Some(list) = &task.for_each else { return Prepared::Ready(inputs) };
    let list = match resolve(list, values) {
        Ok(Value::Array(list)) => list,
        Ok(other) => return Prepared::Unusable(format!("for_each: {} is not a list", type_of(&other))),
        Err(Missing::Task(from)) => return Prepared::Skip(format!("`{from}` has no result for for_each")),
        Err(Missing::Part(problem)) => return Prepared::Unusable(format!("for_each: {problem}")),
    };
    let most = crate::workflow::graph::MAX_ITEMS;
    match item {
        None if list.len() > most => {
            Prepared::Unusable(format!("for_each: {} items; at most {most}", list.len()))
        }
        None => Prepared::Items(u32::try_from(list.len()).unwrap_or(u32::MAX)),
        Some(index) => {
            inputs.insert("item".into(), list.get(index).cloned().unwrap_or(Value::Null));
            inputs.insert("index".into(), json!(index));
            Prepared::Ready(inputs)
        }
    }
}

enum Missing {
    /// The task has no result.
    Task(String),
    /// Its result has no such part.
    Part(String),
}

/// As [`resolve`], for a file too: its value is the path of the copy.
fn resolve_in(state: &State, input: &Input, values: &BTreeMap<String, Value>) -> Result<Value, Missing> {
    let (Some(from), Some(artifact)) = (&input.from, &input.artifact) else { return resolve(input, values) };
    let there = state.tasks.get(from).filter(|from| from.phase == Phase::Succeeded);
    let found = match there {
        None => Err(Missing::Task(from.clone())),
        Some(there) if there.artifacts.contains_key(artifact) => Ok(json!(copy_path(from, artifact))),
        Some(there) => {
            let names: Vec<&str> = there.artifacts.keys().take(10).map(String::as_str).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Err(Missing::Part(format!("`{from}` left no file {artifact:?}; it left {names}")))
        }
    };
    match (found, &input.default) {
        (Err(_), Some(default)) => Ok(default.clone()),
        (found, _) => found,
    }
}

/// Where a later task finds the copy of a file.
fn copy_path(from: &str, artifact: &str) -> String {
    format!("/tmp/inputs/{from}/{artifact}")
}

/// The files that a task is given: where each is kept, and where it goes.
pub(super) fn files_for(state: &State, id: &str) -> Vec<(String, String)> {
    let inputs = state.plan.task(id).into_iter().flat_map(|task| task.inputs.values());
    let file = |input: &Input| {
        let (from, artifact) = (input.from.as_deref()?, input.artifact.as_deref()?);
        let uri = state.tasks.get(from)?.artifacts.get(artifact)?;
        Some((uri.clone(), copy_path(from, artifact)))
    };
    inputs.filter_map(file).collect()
}

fn resolve(input: &Input, values: &BTreeMap<String, Value>) -> Result<Value, Missing> {
    let Some(from) = &input.from else { return Ok(input.value.clone().unwrap_or(Value::Null)) };
    let pointer = input.pointer.as_deref().unwrap_or_default();
    let found = match values.get(from) {
        None => Err(Missing::Task(from.clone())),
        Some(value) => {
            value.pointer(pointer).cloned().ok_or_else(|| Missing::Part(no_part(from, value, pointer)))
        }
    };
    match (found, &input.default) {
        (Err(_), Some(default)) => Ok(default.clone()),
        (found, _) => found,
    }
}

/// Why a part is missing: how far the pointer leads, and what is there. Keys only: values may be anything.
fn no_part(from: &str, value: &Value, pointer: &str) -> String {
    let mut reached = String::new();
    for part in pointer.split('/').skip(1) {
        let next = format!("{reached}/{part}");
        if value.pointer(&next).is_none() {
            break;
        }
        reached = next;
    }
    let there = value.pointer(&reached).unwrap_or(value);
    let keys = match there {
        Value::Object(fields) => {
            let keys: Vec<&str> = fields.keys().take(10).map(String::as_str).collect();
            format!(" with {}", if keys.is_empty() { "nothing in it".to_owned() } else { keys.join(", ") })
        }
        Value::Array(list) => format!(" of {}", list.len()),
        _ => String::new(),
    };
    let at = if reached.is_empty() { "the result".to_owned() } else { format!("{reached:?}") };
    format!("`{from}` has no {pointer:?}: {at} is {}{keys}", type_of(there))
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn holds(when: &When, values: &BTreeMap<String, Value>) -> bool {
    let part =
        values.get(&when.from).and_then(|value| value.pointer(when.pointer.as_deref().unwrap_or_default()));
    let number = part.and_then(Value::as_f64);
    if let Some(wanted) = when.present {
        return part.is_some() == wanted;
    }
    if let Some(wanted) = &when.equals {
        return part == Some(wanted);
    }
    if let Some(above) = when.greater {
        return number.is_some_and(|number| number > above);
    }
    if let Some(below) = when.less {
        return number.is_some_and(|number| number < below);
    }
    when.is_true.is_some_and(|wanted| (part == Some(&Value::Bool(true))) == wanted)
}

/// A run of a task.
pub(super) struct Work {
    pub(super) core: Arc<Core>,
    pub(super) row: WorkflowRow,
    pub(super) task: Task,
    pub(super) run: Running,
    pub(super) generation: u32,
    pub(super) inputs: Map<String, Value>,
    /// The definition of its tool that a person has confirmed.
    pub(super) confirmed: Option<String>,
    pub(super) cancel: CancellationToken,
    pub(super) lost: CancellationToken,
    /// Files of earlier tasks: where each is kept, and where it goes.
    pub(super) files: Vec<(String, String)>,
    /// Filled as it begins.
    pub(super) trace: Option<Trace>,
}

impl Work {
    /// Runs it to its end, as a child of the span that began the workflow.
    pub(super) async fn done(mut self) -> Came {
        let key = &self.row.key;
        let span = tracing::debug_span!(
            "workflow.task", workflow.id = %self.row.id, workflow.task = %self.run.task,
            workflow.attempt = self.run.attempt, workflow.outcome = Empty, app.tenant.id = %key.tenant,
            app.conversation.id = %key.conversation, app.path.id = %key.path);
        let began = self.row.trace_id.as_deref().and_then(Trace::read);
        let entropy = &self.core.parts.entropy;
        let trace = Trace::begin(&span, began, entropy.bytes());
        self.trace = Some(trace.below(&span, entropy.bytes()));
        trace::within(trace, self.named().instrument(span)).await
    }

    /// Runs it, and says so in the log.
    async fn named(self) -> Came {
        tracing::info!(
            workflow.id = %self.row.id, task = %self.run.task, attempt = self.run.attempt, "code_execution_started"
        );
        let began = Instant::now();
        let came = match self.task.kind {
            TaskKind::McpTool => self.call_tool().await,
            TaskKind::CodeExecution | TaskKind::Analysis => self.run_keyed().await,
        };
        let (event, outcome) = match &came {
            Came::Done(_) => ("code_execution_completed", "completed"),
            Came::Failed { .. } => ("code_execution_failed", "failed"),
            _ => ("code_execution_interrupted", "interrupted"),
        };
        tracing::Span::current().record("workflow.outcome", outcome);
        metrics::WORKFLOW_TASK_DURATION.record(&[self.task.kind.as_str()], began.elapsed());
        tracing::info!(
            workflow.id = %self.row.id, task = %self.run.task, attempt = self.run.attempt, "{event}"
        );
        came
    }

    /// The same for every ask for this run, on whatever replica.
    fn key(&self) -> String {
        format!("wf/{}/{}/{}/{}", self.row.id, self.run.task, self.generation, self.run.attempt)
    }

    fn call(&self) -> Call {
        let path = match self.task.lane() {
            Lane::Own => own_path(&self.row),
            Lane::Named(path) => at_path(&self.row, path),
            Lane::Alone => {
                let task = self.run.task.replace('[', ".").replace(']', "");
                at_path(
                    &self.row,
                    format!("{OWN}{}.{task}.{}.{}", self.row.id.simple(), self.generation, self.run.attempt),
                )
            }
        };
        let idempotency_key = Some(self.key());
        Call { trace: self.trace.clone(), idempotency_key, ..Call::on(path, requester(&self.row)) }
    }

    fn timeout(&self) -> Timeout {
        self.task.timeout_ms.and_then(|ms| Timeout::from_millis(ms).ok()).unwrap_or_default()
    }

    /// Runs code or an analysis under its key, and asks again while nothing could be begun.
    async fn run_keyed(&self) -> Came {
        let runs = Runs(Arc::clone(&self.core));
        let data = Value::Object(self.inputs.clone()).to_string();
        if data.len() > MAX_DATA {
            let error = format!("its inputs have {} bytes; at most {MAX_DATA} can be given", data.len());
            return Came::Failed { error, retry: false };
        }
        let files = match self.read_files().await {
            Ok(files) => files,
            Err(error) => return Came::Failed { error, retry: true },
        };
        let key = self.cache_key(&data, &files);
        if let Some(key) = &key
            && let Some(kept) = self.cached(key).await
        {
            return kept;
        }
        let deadline = Instant::now() + PATIENCE;
        let mut pause = Duration::from_millis(200);
        let came = loop {
            let error = match self.attempt(&runs, &data, &files, key.as_deref()).await {
                Ok(came) => break came,
                Err(error) => error,
            };
            let over = self.cancel.is_cancelled();
            match error {
                ExecutionError::Interrupted(_) => break Came::Interrupted,
                ExecutionError::Cancelled if over => break Came::Stopped,
                ExecutionError::Cancelled | ExecutionError::ShuttingDown => break Came::Gone,
                error if error.code().is_retryable() && Instant::now() < deadline => {
                    tracing::debug!(workflow.id = %self.row.id, task = %self.run.task, error = %error, "a task is asked for again");
                }
                ExecutionError::Quota(quota) if self.may_fit(&quota) && Instant::now() < deadline => {
                    tracing::info!(workflow.id = %self.row.id, task = %self.run.task, "a task waits for what is reserved of a quota");
                }
                error => {
                    let (code, retry) = (error.code(), !error.code().is_final());
                    break Came::Failed {
                        error: cut(&format!("{error}. {} (code: {code})", error.advice())),
                        retry,
                    };
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(5)),
                () = self.cancel.cancelled() => break Came::Stopped,
                () = self.core.shutdown.cancelled() => break Came::Gone,
                () = self.lost.cancelled() => break Came::Gone,
            }
        };
        let stays = matches!(came, Came::Gone) || self.task.lane() != Lane::Alone;
        if !stays && let Err(error) = Contexts(Arc::clone(&self.core)).end(&self.call().key).await {
            tracing::debug!(error = %error, "a task's sandbox ends by its time to live");
        }
        if self.core.shutdown.is_cancelled() && matches!(came, Came::Stopped) && !self.cancel.is_cancelled() {
            return Came::Gone;
        }
        came
    }

    /// Whether the run fits into what is left of a quota once others have given back what they have reserved.
    fn may_fit(&self, quota: &QuotaReached) -> bool {
        let limits = &self.core.options().limits;
        let held = self.timeout().get() + self.core.options().margin + limits.ttl;
        let needed = match quota.kind {
            // A run that is reserved ends as one that is used.
            QuotaKind::Executions => return false,
            QuotaKind::SandboxSeconds => held.as_secs(),
            QuotaKind::Money => {
                limits.prices.cost_micros(u64::try_from(held.as_millis()).unwrap_or(u64::MAX), 1)
            }
        };
        quota.used.saturating_add(needed) <= quota.limit
    }

    async fn attempt(
        &self,
        runs: &Runs,
        data: &str,
        files: &[(FilePath, Bytes)],
        cache_key: Option<&str>,
    ) -> Result<Came, ExecutionError> {
        // No caller watches a single run's progress.
        let (news, _) = mpsc::channel(1);
        let purpose = Some(format!("workflow {} task {}", self.row.id, self.run.task));
        if self.task.kind == TaskKind::Analysis {
            return self.analyse(runs, purpose, news).await;
        }
        let (call, timeout, cancel) = (self.call(), self.timeout(), self.cancel.clone());
        let mut lost = None;
        for (path, content) in files {
            let (path, content) = (path.clone(), Content::Bytes(content.clone()));
            let put = self.file(FileAction::Put { path, content, expected: None }).await?;
            lost = lost.or(lost_state(&put.finished));
        }
        let code = Code::parse(self.task.code.clone().unwrap_or_default())
            .map_err(|error| ExecutionError::Internal(error.to_string()))?;
        let data = (!self.inputs.is_empty()).then(|| Arc::from(data));
        let language = self.task.language.unwrap_or(Language::Python);
        let template = self.template();
        let request = CodeRequest {
            language,
            code,
            purpose,
            timeout,
            inputs: Inputs { data, template, ..Inputs::default() },
        };
        let finished = runs.run_code(call, request, news, cancel).await?;
        if !finished.outcome.success() {
            return Ok(self.failed(&finished, lost));
        }
        let mut made = match self.printed_last(&finished).await? {
            Some(printed) => Made::of(printed, Some(&finished)),
            None => Made::of(finished.outcome.clone().map(value), Some(&finished)),
        };
        made.lost = made.lost.or(lost);
        // The line that was its result may be the one that was cut.
        if finished.outcome.stdout.is_truncated() && !keeps_stdout(&finished) && made.value.is_string() {
            let error = "its output was truncated, and the server could not keep all of it".to_owned();
            return Ok(Came::Failed { error, retry: true });
        }
        let made = self.with_files(made).await?;
        if let Some(key) = cache_key {
            self.cache(key, &finished, &made).await;
        }
        Ok(Came::Done(made))
    }

    /// The JSON that a program printed last, out of the whole output where the result has only its ends.
    async fn printed_last(&self, finished: &Finished) -> Result<Option<Sanitized<Value>>, ExecutionError> {
        if !finished.outcome.stdout.is_truncated() || !keeps_stdout(finished) {
            return Ok(None);
        }
        let whole = self.core.outputs().read(finished.execution, "stdout", 0, super::MAX_RESULT).await;
        let whole = whole.map_err(ExecutionError::Objects)?.0;
        let whole = String::from_utf8_lossy(&whole);
        let last = whole.trim_end().lines().next_back().unwrap_or_default();
        let Ok(printed) = serde_json::from_str(last) else { return Ok(None) };
        // It was guarded as it was kept; once more, so that the type says so.
        Ok(Some(self.core.guarded(&self.row, printed).await))
    }

    async fn analyse(
        &self,
        runs: &Runs,
        purpose: Option<String>,
        news: ProgressSender,
    ) -> Result<Came, ExecutionError> {
        let mut parameters = self.task.parameters.clone().unwrap_or_default();
        parameters.extend(self.inputs.clone());
        let wrong = |error: String| Ok(Came::Failed { error: cut(&error), retry: false });
        let Some(kind) = kind(&self.task) else { return wrong("there is no such analysis".into()) };
        let checked = match crate::analysis::check(kind, &Value::Object(parameters)) {
            Ok(checked) => checked,
            Err(error) => return wrong(format!("`parameters`: {error}")),
        };
        let request =
            AnalysisRequest { checked, format: OutputFormat::Json, purpose, timeout: self.timeout() };
        let analysed = runs.run_analysis(self.call(), request, news, self.cancel.clone()).await?;
        if !analysed.finished.outcome.success() {
            return Ok(self.failed(&analysed.finished, None));
        }
        if let Err(error) = &analysed.report {
            return wrong(error.to_string());
        }
        let value = analysed.finished.outcome.clone().map(report);
        Ok(Came::Done(Made::of(value, Some(&analysed.finished))))
    }

    async fn file(&self, action: FileAction) -> Result<Filed, ExecutionError> {
        let call = Call { idempotency_key: None, ..self.call() };
        Files(Arc::clone(&self.core)).run_in(self.template(), call, action, self.cancel.clone()).await
    }

    /// The template that the plan names for it.
    fn template(&self) -> Option<String> {
        let named = self.task.template.as_deref().map(str::trim);
        named.filter(|name| !name.is_empty()).map(str::to_owned)
    }

    /// Takes out the files that later tasks refer to.
    async fn with_files(&self, mut made: Made) -> Result<Made, ExecutionError> {
        for path in &self.task.files {
            let parsed = FilePath::parse(path.as_str());
            let path_in = parsed.map_err(|error| ExecutionError::Internal(error.to_owned()))?;
            if let FileAnswer::Got { artifact, .. } =
                self.file(FileAction::Get { path: path_in }).await?.answer
            {
                made.artifacts.insert(file_name(path).to_owned(), artifact.uri);
            }
        }
        Ok(made)
    }

    /// The files that it is given, from where they are kept.
    async fn read_files(&self) -> Result<Vec<(FilePath, Bytes)>, String> {
        let mut files = Vec::new();
        for (uri, path) in &self.files {
            let path = FilePath::parse(path.as_str()).map_err(str::to_owned)?;
            let Some((execution, name)) = Outputs::parse_uri(uri) else {
                return Err(format!("{uri} is not an artifact"));
            };
            let read = self.core.outputs().read(execution, name, 0, super::MAX_RESULT).await;
            let (bytes, whole) = read.map_err(|error| format!("{uri}: {}", chain(&error)))?;
            if whole > bytes.len() as u64 {
                return Err(format!("{uri} has {whole} bytes; at most {} are passed on", super::MAX_RESULT));
            }
            files.push((path, bytes));
        }
        Ok(files)
    }

    /// A hash of all that the result of a hermetic task depends on; `None` where nothing is cached. Tenant and owner are part
    /// of it, so none is ever another's.
    fn cache_key(&self, data: &str, files: &[(FilePath, Bytes)]) -> Option<String> {
        let (parts, options, tenant) = (&self.core.parts, self.core.options(), &self.row.key.tenant);
        let recipe = options.recipes.of(tenant);
        // What reaches a network depends on more than its inputs; files that a task leaves are not kept with its result.
        let is_closed = recipe.network == NetworkPolicy::Closed && recipe.mcp.is_none();
        if !self.task.hermetic || options.cache_bytes == 0 || !is_closed || !self.task.files.is_empty() {
            return None;
        }
        let guard = self.core.guard_for(&self.call()).report().policy_fingerprint;
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        for part in [
            "1",
            tenant.as_str(),
            self.row.key.owner.as_str(),
            self.task.language.unwrap_or(Language::Python).as_str(),
            env!("CARGO_PKG_VERSION"),
            if parts.local.is_some() { "local" } else { "provider" },
            self.template().as_deref().unwrap_or(recipe.template.as_deref().unwrap_or_default()),
            &guard,
            self.task.code.as_deref().unwrap_or_default(),
            data,
        ] {
            add(part.as_bytes());
        }
        for (path, content) in files {
            add(path.as_str().as_bytes());
            add(content);
        }
        Some(hex(&hash.finalize()))
    }

    /// The kept result of an equal task. A cache that does not answer is as good as none.
    async fn cached(&self, key: &str) -> Option<Came> {
        let found = self.core.store().cached(&self.row.key.tenant, key, self.core.options().cache_age).await;
        let found = found.unwrap_or_else(|error| {
            tracing::warn!(error = %chain(&error), "the cache of results was not asked");
            None
        });
        let kept = found.and_then(|(body, execution)| Some((serde_json::from_str(&body).ok()?, execution)));
        metrics::WORKFLOW_CACHE.add(&[if kept.is_some() { "hit" } else { "miss" }], 1);
        let (value, execution) = kept?;
        // What the guard knows now counts, not what it knew then.
        let value = self.core.guarded(&self.row, value).await;
        Some(Came::Done(Made {
            value,
            cached: true,
            execution: Some(execution),
            artifacts: BTreeMap::new(),
            lost: None,
        }))
    }

    /// Keeps a result in which the guard found nothing: numbers of placeholders are those of one path.
    async fn cache(&self, key: &str, finished: &Finished, made: &Made) {
        let report = &finished.record.guard;
        let is_clean =
            report.findings.is_empty() && report.withheld + report.errors + report.type_changed == 0;
        let body = made.value.to_string();
        if !is_clean || finished.outcome.stdout.is_truncated() || body.len() > MAX_CACHED {
            return;
        }
        let new = NewCached {
            key: key.to_owned(),
            owner: self.row.key.owner.clone(),
            execution: finished.execution,
            language: finished.language,
            body,
        };
        let kept = self.core.store().cache(&self.row.key.tenant, &new, self.core.options().cache_bytes).await;
        if let Err(error) = kept {
            tracing::warn!(error = %chain(&error), "a result was not kept in the cache");
        }
    }

    /// A run that ended without doing what it should. `lost`: what an earlier look at its sandbox has said of its state.
    fn failed(&self, finished: &Finished, lost: Option<String>) -> Came {
        let outcome = &finished.outcome;
        match outcome.ended {
            Ended::Cancelled if self.cancel.is_cancelled() => return Came::Stopped,
            Ended::Cancelled if self.core.shutdown.is_cancelled() => return Came::Gone,
            Ended::Cancelled => return Came::Failed { error: "it was cancelled".into(), retry: false },
            Ended::TimedOut => {
                let error = format!("it did not end within {} ms", self.timeout().get().as_millis());
                return Came::Failed { error, retry: true };
            }
            Ended::Completed | Ended::Died => {}
        }
        let error = match &outcome.error {
            Some(error) => format!("{}: {}", error.name, error.message),
            None => format!("exit code {}", outcome.exit_code()),
        };
        let lost = lost_state(finished).or(lost).map(|lost| format!("; {lost}")).unwrap_or_default();
        let error = cut(&format!("{error} (execution {}){lost}", finished.execution));
        Came::Failed { error, retry: true }
    }

    async fn call_tool(&self) -> Came {
        let mut arguments = self.task.arguments.clone().unwrap_or_default();
        arguments.extend(self.inputs.clone());
        let name = self.task.tool.clone().unwrap_or_default();
        let call = self.call();
        // Without the attempt: a server that knows the key does a repeated call once.
        let key = format!("wf/{}/{}/{}", self.row.id, self.run.task, self.generation);
        let confirmed = self.confirmed.clone();
        let calling = self.core.call_tool(&call, &name, arguments, key, confirmed, self.timeout().get());
        let called = tokio::select! {
            called = calling => called,
            () = self.cancel.cancelled() => return Came::Stopped,
            () = self.core.shutdown.cancelled() => return Came::Gone,
        };
        match called {
            Ok(value) => Came::Done(Made::of(self.core.guarded(&self.row, value).await, None)),
            Err((kind, message)) => {
                let message = self.core.guard_for(&call).line(&message).into_inner();
                let retry = ["tool", "timeout", "unavailable"].contains(&kind);
                Came::Failed { error: cut(&format!("{kind}: {message}")), retry }
            }
        }
    }
}

fn keeps_stdout(finished: &Finished) -> bool {
    finished.record.artifacts.iter().any(|kept| kept.name == "stdout")
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_ERROR).collect()
}

/// The report of an analysis as a value.
fn report(outcome: Outcome) -> Value {
    let report = crate::analysis::Report::recorded(&outcome.results).ok();
    report.and_then(|report| serde_json::to_value(report).ok()).unwrap_or(Value::Null)
}

/// The value of a program: the JSON that it printed last on a line of its own, else its last expression, else its output.
fn value(outcome: Outcome) -> Value {
    let stdout = outcome.stdout.text();
    let last = stdout.trim_end().lines().next_back().unwrap_or_default();
    if let Ok(printed) = serde_json::from_str(last) {
        return printed;
    }
    let main = outcome.results.iter().find(|result| result.is_main).or(outcome.results.last());
    if let Some(json) = main.and_then(|main| main.formats.get("json")) {
        return json.clone();
    }
    match main.and_then(|main| main.text()) {
        Some(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())),
        None if stdout.is_empty() => Value::Null,
        None => Value::String(stdout.trim_end_matches('\n').to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::workflow::{Event, Plan};

    fn prepared(task: Value, of_a: Option<Value>) -> Prepared {
        let mut b = json!({"id": "b", "type": "code_execution", "code": "1"});
        b.as_object_mut().unwrap().extend(task.as_object().unwrap().clone());
        let tasks = json!([{"id": "a", "type": "code_execution", "code": "1", "on_error": "continue"}, b]);
        let plan = Plan { tasks: serde_json::from_value(tasks).unwrap(), width: 1, timeout_ms: 1_000 };
        let state = State::begin(&Event::Planned { plan }, 0).unwrap();
        prepare(&state, "b", &of_a.map(|value| ("a".to_owned(), value)).into_iter().collect())
    }

    fn shown(prepared: Prepared) -> String {
        match prepared {
            Prepared::Ready(inputs) => format!("ready {}", Value::Object(inputs)),
            Prepared::Items(items) => format!("items {items}"),
            Prepared::Skip(why) => format!("skip {why}"),
            Prepared::Unusable(why) => format!("unusable {why}"),
        }
    }

    #[test]
    fn references_are_values_and_a_missing_part_says_how_far_it_resolved() {
        let x = |input: Value| json!({"inputs": {"x": input}});
        let rows = json!({"rows": [{"n": 9007199254740993_u64, "t": "'; drop"}]});
        let cases = [
            (
                x(json!({"from": "a", "pointer": "/rows/0/n"})),
                Some(rows.clone()),
                r#"ready {"x":9007199254740993}"#,
            ),
            (x(json!({"from": "a", "pointer": "/rows/0/t"})), Some(rows.clone()), r#"ready {"x":"'; drop"}"#),
            (x(json!({"value": null})), None, r#"ready {"x":null}"#),
            (x(json!({"from": "a"})), None, "skip `a` has no result for input `x`"),
            (x(json!({"from": "a", "default": 1})), None, r#"ready {"x":1}"#),
            (
                x(json!({"from": "a", "pointer": "/rows/0/z"})),
                Some(rows.clone()),
                r#"unusable input `x`: `a` has no "/rows/0/z": "/rows/0" is an object with n, t"#,
            ),
            (json!({"for_each": {"from": "a", "pointer": "/rows"}}), Some(rows.clone()), "items 1"),
            (
                json!({"for_each": {"from": "a"}}),
                Some(rows.clone()),
                "unusable for_each: an object is not a list",
            ),
            (
                json!({"when": {"from": "a", "pointer": "/rows/0/n", "greater": 1}}),
                Some(rows.clone()),
                "ready {}",
            ),
            (
                json!({"when": {"from": "a", "pointer": "/ok", "is_true": true}}),
                Some(rows),
                "skip `when` does not hold",
            ),
            (json!({"when": {"from": "a", "present": false}}), None, "ready {}"),
        ];
        for (task, of_a, expected) in cases {
            assert_eq!(shown(prepared(task.clone(), of_a)), expected, "{task}");
        }
    }
}
