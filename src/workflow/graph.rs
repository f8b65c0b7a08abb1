//! Plans: tasks, their dependencies, and the checks that a plan passes before anything runs.
//!
//! Note: tasks that share a sandbox need an order, or timing would decide what they find there. Two of one lane
//! that nothing orders run in the order of the plan ([`Plan::needs`]).

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::domain::{Language, PathId, Timeout};

/// Tasks of a plan at most.
const MAX_TASKS: usize = 200;
/// Tasks in a chain at most.
pub const MAX_DEPTH: usize = 50;
/// Edges of a plan at most.
const MAX_EDGES: usize = 1_000;
/// Bytes of a plan as JSON at most.
const MAX_PLAN_BYTES: usize = 1 << 20;
/// Characters of a JSON pointer at most.
const MAX_POINTER: usize = 1_024;
/// Items of a `for_each` at most.
pub const MAX_ITEMS: usize = 1_000;
/// Runs of a task at most.
const MAX_ATTEMPTS: u32 = 10;
/// The longest pause before a retry.
const MAX_BACKOFF_MS: u64 = 300_000;
/// The longest a workflow may take, 24 hours.
const MAX_WORKFLOW_MS: u64 = 86_400_000;
/// Files that a task passes on at most.
const MAX_FILES: usize = 20;
/// Tasks side by side at most.
const MAX_WIDTH: u32 = 16;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The tasks, in the order in which they were written.
    pub tasks: Vec<Task>,
    /// Tasks side by side at most.
    pub width: u32,
    /// How long the whole may take, waiting included.
    pub timeout_ms: u64,
}

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// Runs `code`.
    CodeExecution,
    /// Calls `tool` of another server with `arguments`.
    McpTool,
    /// Computes `analysis_type` from `parameters`.
    Analysis,
}

impl TaskKind {
    /// The word in plans.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CodeExecution => "code_execution",
            Self::McpTool => "mcp_tool",
            Self::Analysis => "analysis",
        }
    }
}

/// What a failed task does to the workflow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Nothing more begins, and the workflow fails.
    #[default]
    Fail,
    /// The others go on; its result is null.
    Continue,
}

/// What running a task twice would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effects {
    /// Nothing outside of its result.
    None,
    /// The same as running it once.
    Idempotent,
    /// Something else: it is never run again by itself.
    Other,
}

/// A value for a task: `value`, or a part of an earlier result (`from`, `pointer`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// The task whose result it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Where in the result: a JSON pointer such as `/rows/0/name`; the whole when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// Used when there is no such part, or the task has no result. Without it the task is skipped, or fails.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// Instead of `pointer`: a file that the task left, by name. The code finds the path of a copy of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<String>,
    /// A constant, instead of `from`.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// A condition on an earlier result. Exactly one of `present`, `equals`, `greater`, `less`, `is_true`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// The task.
    pub from: String,
    /// Where in its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pointer: Option<String>,
    /// Whether the part is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
    /// The part is this value.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub equals: Option<Value>,
    /// The part is a number above this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greater: Option<f64>,
    /// The part is a number below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub less: Option<f64>,
    /// The part is `true` (or is not, with false).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_true: Option<bool>,
}

/// How often a failed task is tried, and after which pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Runs in all, 1 to 10.
    pub max_attempts: u32,
    /// Before the second run; doubled before each later one. 0 to 300,000; 1,000 when left out.
    #[serde(default = "one_second")]
    pub backoff_ms: u64,
}

fn one_second() -> u64 {
    1_000
}

/// A language by any of its usual names; an empty text is none.
fn language<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Language>, D::Error> {
    let text = Option::<String>::deserialize(from)?.unwrap_or_default().trim().to_ascii_lowercase();
    match Language::named(&text) {
        None if text.is_empty() => Ok(None),
        None => text.parse().map(Some).map_err(serde::de::Error::custom),
        named => Ok(named),
    }
}

/// One task. Fields beside `id` and `type` belong to one type or have a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Its name: letters, digits, `_`, `-`, at most 64.
    pub id: String,
    /// What it does.
    #[serde(rename = "type")]
    pub kind: TaskKind,
    /// code_execution: python (when left out), javascript, typescript, bash.
    #[serde(default, deserialize_with = "language", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub language: Option<Language>,
    /// code_execution: finds its inputs as `data`, an object by their names. Its result is the JSON that it prints last on a
    /// line of its own, else the last expression, else its output as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// mcp_tool: `server.tool`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// mcp_tool: its arguments; inputs are added by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Map<String, Value>>,
    /// analysis: as in run_analysis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis_type: Option<String>,
    /// analysis: as in run_analysis; inputs are added by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Map<String, Value>>,
    /// Tasks that end before it begins, beside those that it refers to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    /// Values by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, Input>,
    /// It is skipped unless this holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
    /// Run once for each item of this list, which the code finds as `data["item"]`, its place as `data["index"]`. The result is
    /// the list of results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_each: Option<Input>,
    /// code_execution and analysis: `own` (when left out: the workflow's sandbox, whose state later tasks see), `fresh`, or
    /// the name of a path of this conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// code_execution: template of its sandbox, as in run_code. Tasks that share a sandbox name the same one or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// code_execution: files that it writes and later tasks need (`artifact`), at most 20 paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// code_execution: its result depends on code and inputs alone. It runs in a fresh sandbox, and one like it gets the same
    /// result without running.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hermetic: bool,
    /// Tried again when it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// Of one run, 1,000 to 600,000; 60,000 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// When it fails for good.
    #[serde(default)]
    pub on_error: OnError,
    /// What running it twice would do. Left out: none for an analysis and code in a fresh sandbox, else other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effects: Option<Effects>,
    /// Wait for control_workflow `approve` before it begins.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approve: bool,
}

/// A value that is there, `null` included.
fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// Which sandbox a task runs in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// None, or one of its own.
    Alone,
    /// The workflow's.
    Own,
    /// That of a path of the conversation.
    Named(String),
}

/// Why a plan is refused; names the task.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", .task.as_ref().map_or(String::new(), |task| format!("task `{task}`: ")))]
pub struct PlanError {
    /// Which task, unless it is about the plan.
    pub task: Option<String>,
    /// What is wrong, and what is allowed.
    pub problem: String,
}

impl PlanError {
    fn of(task: &str, problem: impl Into<String>) -> Self {
        Self { task: Some(task.chars().take(64).collect()), problem: problem.into() }
    }

    fn plan(problem: impl Into<String>) -> Self {
        Self { task: None, problem: problem.into() }
    }
}

impl Task {
    /// Which sandbox it runs in.
    pub fn lane(&self) -> Lane {
        match (self.kind, self.path.as_deref()) {
            (TaskKind::McpTool, _) | (_, Some("fresh")) => Lane::Alone,
            _ if self.hermetic => Lane::Alone,
            (_, None | Some("own")) => Lane::Own,
            (_, Some(path)) => Lane::Named(path.to_owned()),
        }
    }

    /// What running it twice would do.
    pub fn effects(&self) -> Effects {
        let pure = match self.kind {
            TaskKind::Analysis => true,
            TaskKind::CodeExecution => self.lane() == Lane::Alone,
            TaskKind::McpTool => false,
        };
        self.effects.unwrap_or(if pure { Effects::None } else { Effects::Other })
    }

    /// How often it may run.
    pub fn max_attempts(&self) -> u32 {
        self.retry.as_ref().map_or(1, |retry| retry.max_attempts)
    }

    /// The pause after a failed attempt, counted from 1.
    pub fn backoff_ms(&self, attempt: u32) -> u64 {
        let first = self.retry.as_ref().map_or(0, |retry| retry.backoff_ms);
        first.saturating_mul(1 << attempt.saturating_sub(1).min(20)).min(MAX_BACKOFF_MS)
    }

    /// The tasks whose results it refers to, with the pointer into each.
    fn references(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let inputs = self.inputs.values().chain(&self.for_each);
        let inputs = inputs.filter_map(|input| Some((input.from.as_deref()?, input.pointer.as_deref())));
        inputs.chain(self.when.iter().map(|when| (when.from.as_str(), when.pointer.as_deref())))
    }

    /// Each path is named once, and a name says which.
    fn check_files(&self) -> Result<(), PlanError> {
        let no = |problem: String| Err(PlanError::of(&self.id, problem));
        if !self.files.is_empty() && self.kind != TaskKind::CodeExecution {
            return no("`files` is for code".into());
        }
        if self.files.len() > MAX_FILES {
            return no(format!("{} `files`; at most {MAX_FILES}", self.files.len()));
        }
        if self.for_each.is_some()
            && (!self.files.is_empty() || self.for_each.iter().any(|list| list.artifact.is_some()))
        {
            return no("`for_each` cannot be combined with `files`, or with an `artifact` as its list".into());
        }
        let mut names = BTreeSet::new();
        for path in &self.files {
            let name = file_name(path);
            if path.len() > 1_024 || path.chars().any(char::is_control) || !is_file_name(name) {
                return no(
                    "`files`: a path ends in a name of 1 to 100 letters, digits, `.`, `_` and `-`".into()
                );
            }
            if !names.insert(name) {
                return no(format!("`files`: two are called {name}"));
            }
        }
        Ok(())
    }

    /// Checks what can be said of a task alone: first what it is, then what it may say.
    fn check(&self) -> Result<(), PlanError> {
        self.check_kind()?;
        self.check_files()?;
        self.check_way()?;
        self.check_inputs()
    }

    fn check_kind(&self) -> Result<(), PlanError> {
        let no = |problem: String| Err(PlanError::of(&self.id, problem));
        let named = (1..=64).contains(&self.id.len())
            && self.id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if !named {
            return no("`id` is 1 to 64 letters, digits, `_` and `-`".into());
        }
        let fields = [
            ("code", self.code.is_some(), TaskKind::CodeExecution),
            ("language", self.language.is_some(), TaskKind::CodeExecution),
            ("template", self.template.is_some(), TaskKind::CodeExecution),
            ("tool", self.tool.is_some(), TaskKind::McpTool),
            ("arguments", self.arguments.is_some(), TaskKind::McpTool),
            ("analysis_type", self.analysis_type.is_some(), TaskKind::Analysis),
            ("parameters", self.parameters.is_some(), TaskKind::Analysis),
        ];
        if let Some((name, ..)) = fields.iter().find(|(_, there, kind)| *there && *kind != self.kind) {
            return no(format!("`{name}` is for another `type`"));
        }
        let (needed, there) = match self.kind {
            TaskKind::CodeExecution => {
                ("code", self.code.as_ref().is_some_and(|code| !code.trim().is_empty()))
            }
            TaskKind::McpTool => ("tool", self.tool.is_some()),
            TaskKind::Analysis => ("analysis_type", self.analysis_type.is_some()),
        };
        if !there {
            return no(format!("`{needed}` is missing"));
        }
        if self.kind == TaskKind::McpTool && self.path.is_some() {
            return no("a tool of another server has no `path`".into());
        }
        if self.hermetic
            && (self.kind != TaskKind::CodeExecution
                || self.path.as_deref().is_some_and(|path| path != "fresh"))
        {
            return no("`hermetic` is for code in a fresh sandbox".into());
        }
        Ok(())
    }

    /// Where it runs, how long and how often.
    fn check_way(&self) -> Result<(), PlanError> {
        let no = |problem: String| Err(PlanError::of(&self.id, problem));
        if let Lane::Named(path) = self.lane()
            && let Err(error) = PathId::parse(path)
        {
            return no(format!("`path` is `own`, `fresh` or a path: {error}"));
        }
        if let Some(ms) = self.timeout_ms
            && let Err(error) = Timeout::from_millis(ms)
        {
            return no(error.to_string());
        }
        if let Some(retry) = &self.retry {
            if !(1..=MAX_ATTEMPTS).contains(&retry.max_attempts) {
                return no(format!("`retry.max_attempts` is 1 to {MAX_ATTEMPTS}"));
            }
            if retry.backoff_ms > MAX_BACKOFF_MS {
                return no(format!("`retry.backoff_ms` is 0 to {MAX_BACKOFF_MS}"));
            }
        }
        Ok(())
    }

    /// What it takes from other tasks.
    fn check_inputs(&self) -> Result<(), PlanError> {
        let no = |problem: String| Err(PlanError::of(&self.id, problem));
        for (name, input) in self.inputs.iter().chain(self.for_each.iter().map(|list| (for_each(), list))) {
            match (&input.from, &input.value) {
                (Some(_), Some(_)) => return no(format!("input `{name}` has both `from` and `value`")),
                (None, None) => return no(format!("input `{name}` needs `from` or `value`")),
                (None, Some(_))
                    if input.pointer.is_some() || input.default.is_some() || input.artifact.is_some() =>
                {
                    return no(format!("input `{name}`: `pointer`, `artifact` and `default` need `from`"));
                }
                _ if input.artifact.is_some() && input.pointer.is_some() => {
                    return no(format!("input `{name}` has both `pointer` and `artifact`"));
                }
                _ if input.artifact.is_some() && self.kind != TaskKind::CodeExecution => {
                    return no(format!("input `{name}`: only code takes an `artifact`"));
                }
                _ => {}
            }
        }
        if let Some(when) = &self.when {
            let tests = [
                when.present.is_some(),
                when.equals.is_some(),
                when.greater.is_some(),
                when.less.is_some(),
                when.is_true.is_some(),
            ];
            if tests.into_iter().filter(|test| *test).count() != 1 {
                return no(
                    "`when` needs exactly one of `present`, `equals`, `greater`, `less`, `is_true`".into()
                );
            }
        }
        for (_, pointer) in self.references() {
            if let Some(pointer) = pointer
                && let Err(problem) = check_pointer(pointer)
            {
                return no(problem);
            }
        }
        Ok(())
    }
}

/// The name by which later tasks refer to a file of a task.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The name under which errors tell of the list of a `for_each`.
fn for_each() -> &'static String {
    static NAME: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| "for_each".to_owned());
    &NAME
}

/// What is safe as the last part of a path.
fn is_file_name(name: &str) -> bool {
    (1..=100).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// RFC 6901.
fn check_pointer(pointer: &str) -> Result<(), String> {
    let no = |problem: &str| {
        Err(format!("the pointer {:?} {problem}", pointer.chars().take(100).collect::<String>()))
    };
    if pointer.len() > MAX_POINTER {
        return no("is longer than 1,024 bytes");
    }
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return no("is a JSON pointer: it begins with `/`, such as `/rows/0/name`");
    }
    let bytes = pointer.as_bytes();
    let lone = |at: usize| bytes[at] == b'~' && !matches!(bytes.get(at + 1), Some(b'0' | b'1'));
    if (0..bytes.len()).any(lone) {
        return no("holds a `~` that is neither `~0` (a tilde) nor `~1` (a slash)");
    }
    Ok(())
}

impl Plan {
    /// Checks a plan as a whole.
    ///
    /// # Errors
    /// [`PlanError`], which names the task: correct it and ask again.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.tasks.is_empty() || self.tasks.len() > MAX_TASKS {
            return Err(PlanError::plan(format!(
                "there are {} tasks; allowed are 1 to {MAX_TASKS}",
                self.tasks.len()
            )));
        }
        if !(1..=MAX_WIDTH).contains(&self.width) {
            return Err(PlanError::plan(format!("`width` is 1 to {MAX_WIDTH}")));
        }
        if !(1_000..=MAX_WORKFLOW_MS).contains(&self.timeout_ms) {
            return Err(PlanError::plan(format!(
                "`timeout_ms` of the workflow is 1000 to {MAX_WORKFLOW_MS}"
            )));
        }
        let bytes = serde_json::to_vec(self).map_or(usize::MAX, |bytes| bytes.len());
        if bytes > MAX_PLAN_BYTES {
            return Err(PlanError::plan(format!("the plan has {bytes} bytes; allowed are {MAX_PLAN_BYTES}")));
        }
        let mut ids = BTreeSet::new();
        for task in &self.tasks {
            task.check()?;
            if !ids.insert(task.id.as_str()) {
                return Err(PlanError::of(&task.id, "this `id` occurs twice"));
            }
        }
        for task in &self.tasks {
            let referred = task.references().map(|(id, _)| id);
            for id in task.depends_on.iter().map(String::as_str).chain(referred) {
                if id == task.id {
                    return Err(PlanError::of(&task.id, "it depends on itself"));
                }
                if !ids.contains(id) {
                    let shown: String = id.chars().take(64).collect();
                    return Err(PlanError::of(
                        &task.id,
                        format!("it needs `{shown}`, and there is no such task"),
                    ));
                }
            }
        }
        self.check_templates()?;
        let order = self.order()?;
        let needs = self.needs_in(&order);
        let edges: usize = needs.values().map(BTreeSet::len).sum();
        if edges > MAX_EDGES {
            return Err(PlanError::plan(format!("there are {edges} edges; allowed are {MAX_EDGES}")));
        }
        self.check_depth(&order)
    }

    /// The order of tasks within one sandbox does not count as depth.
    fn check_depth(&self, order: &[&str]) -> Result<(), PlanError> {
        let mut depth: BTreeMap<&str, usize> = BTreeMap::new();
        for id in order {
            let below = self.written(id).into_iter().map(|need| depth.get(need).copied().unwrap_or(0)).max();
            let own = below.unwrap_or(0) + 1;
            if own > MAX_DEPTH {
                return Err(PlanError::of(id, format!("its chain of tasks is longer than {MAX_DEPTH}")));
            }
            depth.insert(id, own);
        }
        Ok(())
    }

    /// A sandbox is made once, so it is made from one template.
    fn check_templates(&self) -> Result<(), PlanError> {
        let mut made: BTreeMap<Lane, (&str, &str)> = BTreeMap::new();
        for task in self.tasks.iter().filter(|task| task.lane() != Lane::Alone) {
            let Some(template) = task.template.as_deref() else { continue };
            let (first, other) = *made.entry(task.lane()).or_insert((&task.id, template));
            if other != template {
                let problem = format!(
                    "it shares a sandbox with `{first}`, whose `template` is another; give it `path` \"fresh\" or another path"
                );
                return Err(PlanError::of(&task.id, problem));
            }
        }
        Ok(())
    }

    /// A task by its id; of one item of a `for_each` (`id[3]`), that task.
    pub fn task(&self, id: &str) -> Option<&Task> {
        let id = id.split_once('[').map_or(id, |(whole, _)| whole);
        self.tasks.iter().find(|task| task.id == id)
    }

    /// What the plan says that a task needs.
    fn written(&self, id: &str) -> BTreeSet<&str> {
        let Some(task) = self.task(id) else { return BTreeSet::new() };
        task.depends_on.iter().map(String::as_str).chain(task.references().map(|(id, _)| id)).collect()
    }

    /// The ids so that each stands behind what it needs; equal ones in the plan's order.
    fn order(&self) -> Result<Vec<&str>, PlanError> {
        let mut order: Vec<&str> = Vec::with_capacity(self.tasks.len());
        let mut left: Vec<(&str, BTreeSet<&str>)> =
            self.tasks.iter().map(|task| (task.id.as_str(), self.written(&task.id))).collect();
        while !left.is_empty() {
            let Some(at) = left.iter().position(|(_, needs)| needs.is_empty()) else {
                return Err(ring(&left));
            };
            let (id, _) = left.remove(at);
            order.push(id);
            for (_, needs) in &mut left {
                needs.remove(id);
            }
        }
        Ok(order)
    }

    /// What each task waits for: what the plan says, and the one before it in its lane unless something orders them.
    pub fn needs(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        self.needs_in(&self.order().unwrap_or_default())
    }

    fn needs_in<'a>(&'a self, order: &[&'a str]) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
        let mut needs: BTreeMap<&str, BTreeSet<&str>> =
            self.tasks.iter().map(|task| (task.id.as_str(), self.written(&task.id))).collect();
        let mut last: BTreeMap<Lane, &str> = BTreeMap::new();
        for id in order {
            let Some(task) = self.task(id) else { continue };
            if task.lane() == Lane::Alone {
                continue;
            }
            if let Some(before) = last.insert(task.lane(), id)
                && let Some(own) = needs.get_mut(id)
            {
                own.insert(before);
            }
        }
        needs
    }

    /// The tasks whose results a task refers to.
    pub fn sources(&self, id: &str) -> BTreeSet<&str> {
        self.task(id).into_iter().flat_map(|task| task.references().map(|(id, _)| id)).collect()
    }
}

/// A cycle among what is left, as `a -> b -> a`.
fn ring(left: &[(&str, BTreeSet<&str>)]) -> PlanError {
    let mut path: Vec<&str> = Vec::new();
    let mut at = left.first().map_or("", |(id, _)| id);
    while !path.contains(&at) {
        path.push(at);
        let needs = left.iter().find(|(id, _)| *id == at).map(|(_, needs)| needs);
        // Each that is left needs one that is left.
        let next = needs.into_iter().flatten().find(|need| left.iter().any(|(id, _)| id == *need));
        at = next.copied().unwrap_or(at);
    }
    let from = path.iter().position(|id| *id == at).unwrap_or(0);
    let mut shown = path[from..].to_vec();
    shown.push(at);
    PlanError::of(at, format!("it depends on itself in a cycle: {}", shown.join(" -> ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn plan(tasks: Value) -> Plan {
        Plan { tasks: serde_json::from_value(tasks).unwrap(), width: 4, timeout_ms: 60_000 }
    }

    fn code(id: &str, more: Value) -> Value {
        let mut task = json!({"id": id, "type": "code_execution", "code": "1"});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    }

    #[test]
    fn an_error_names_the_task_and_what_is_wrong() {
        let from = |id: &str| json!({"inputs": {"x": {"from": id}}});
        let cases = [
            (
                json!([code("a", json!({"depends_on": ["b"]}))]),
                "task `a`: it needs `b`, and there is no such task",
            ),
            (json!([code("a", from("a"))]), "task `a`: it depends on itself"),
            (json!([code("a", json!({})), code("a", json!({}))]), "task `a`: this `id` occurs twice"),
            (
                json!([code("a", from("c")), code("b", from("a")), code("c", from("b"))]),
                "task `a`: it depends on itself in a cycle: a -> c -> b -> a",
            ),
            (
                json!([
                    code("a", json!({})),
                    code("b", json!({"inputs": {"x": {"from": "a", "pointer": "rows"}}}))
                ]),
                "task `b`: the pointer \"rows\" is a JSON pointer: it begins with `/`, such as `/rows/0/name`",
            ),
            (json!([code("a", json!({"inputs": {"x": {}}}))]), "task `a`: input `x` needs `from` or `value`"),
            (json!([code("a", json!({"tool": "x.y"}))]), "task `a`: `tool` is for another `type`"),
            (
                json!([{"id": "t", "type": "mcp_tool", "tool": "x.y", "template": "x"}]),
                "task `t`: `template` is for another `type`",
            ),
            (
                json!([
                    code("a", json!({"template": "x"})),
                    code("free", json!({"template": "y", "path": "fresh"})),
                    code("same", json!({"template": "x"})),
                    code("b", json!({"template": "y"}))
                ]),
                "task `b`: it shares a sandbox with `a`, whose `template` is another",
            ),
            (json!([code("a b", json!({}))]), "task `a b`: `id` is 1 to 64 letters, digits, `_` and `-`"),
            (json!([code("a", json!({"path": "a/b"}))]), "`path` is `own`, `fresh` or a path"),
            (json!([{"id": "t", "type": "mcp_tool"}]), "task `t`: `tool` is missing"),
            (json!([code("a", json!({"retry": {"max_attempts": 99}}))]), "`retry.max_attempts` is 1 to 10"),
            (json!([]), "there are 0 tasks; allowed are 1 to 200"),
        ];
        for (tasks, problem) in cases {
            let error = plan(tasks.clone()).check().unwrap_err().to_string();
            assert!(error.contains(problem), "{error}\nis not\n{problem}");
        }
    }

    #[test]
    fn limits_of_depth_and_bytes_hold() {
        let chain = |n: usize| {
            let task = |i: usize| {
                let needs = if i == 0 { json!({}) } else { json!({"depends_on": [format!("t{}", i - 1)]}) };
                code(&format!("t{i}"), needs)
            };
            plan((0..n).map(task).collect())
        };
        assert_eq!(chain(MAX_DEPTH).check(), Ok(()));
        assert_eq!(chain(MAX_DEPTH + 1).check().unwrap_err().task.as_deref(), Some("t50"));
        let wide = plan((0..MAX_TASKS).map(|i| code(&format!("t{i}"), json!({}))).collect());
        assert_eq!(wide.check(), Ok(()), "the order within a sandbox does not count as depth");
        let large = plan(json!([code("a", json!({"code": "x".repeat(MAX_PLAN_BYTES)}))]));
        assert!(large.check().unwrap_err().to_string().contains("bytes"));
    }

    #[test]
    fn tasks_of_one_sandbox_run_in_the_plans_order() {
        let plan = plan(json!([
            code("late", json!({"depends_on": ["early"]})),
            code("free", json!({"path": "fresh"})),
            code("early", json!({})),
            code("named", json!({"path": "p"})),
            code("last", json!({})),
        ]));
        plan.check().unwrap();
        let needs = plan.needs();
        assert_eq!(needs["early"], BTreeSet::new());
        assert_eq!(needs["late"], BTreeSet::from(["early"]));
        assert_eq!(needs["last"], BTreeSet::from(["late"]));
        assert!(needs["free"].is_empty() && needs["named"].is_empty());
    }

    #[test]
    fn a_null_is_a_value() {
        let task: Task =
            serde_json::from_value(code("a", json!({"inputs": {"x": {"value": null}}}))).unwrap();
        assert_eq!(task.inputs["x"].value, Some(Value::Null));
        assert_eq!(plan(json!([serde_json::to_value(&task).unwrap()])).check(), Ok(()));
    }
}
