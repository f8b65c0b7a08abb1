//! Workflows: begins, shows and steers them. `drive` lets them go on, `task` runs one task.
//!
//! A workflow is its log of events in the store; [`State`] is their fold. A caller who steers it writes an event; the replica
//! that drives it holds the workflow's lease and does what is due. Both compare the number of the last event that they know, so
//! two that act at once do not contradict each other: the later one looks again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use uuid::Uuid;

use crate::analysis::Kind;
use crate::domain::{Code, ErrorCode, ExecutionId, PathId, TenantId, hex, lock};
use crate::guard::Sanitized;
use crate::store::workflows::{
    Append, Appended, Created, MAX_LIVE_WORKFLOWS, NewWorkflow, StoredEvent, TaskResult,
};
use crate::store::{DynStore, StoreError, WorkflowRow};
use crate::telemetry::trace::Trace;
use crate::workflow::{Decision, Event, Plan, Refused, State, Task, TaskKind};

use super::record::own_key;
use super::{Call, Core, ExecutionError, Person, Requester};

mod drive;
mod task;

/// Bytes of a result that is kept in the store; a larger one is an object.
const INLINE: usize = 64 << 10;
/// Bytes of a result at most.
const MAX_RESULT: usize = 64 << 20;
/// Events in one page.
const PAGE: u32 = 1_000;
/// Between two looks for what another replica wrote.
const LOOK: Duration = Duration::from_millis(250);

/// What the paths of workflows' own sandboxes begin with.
const OWN: &str = "wf.";

/// Whether a path is one of a workflow's own.
pub(super) fn is_of_workflow(path: &PathId) -> bool {
    path.as_str().starts_with(OWN)
}

/// Begins, shows and steers workflows. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Workflows(pub(super) Arc<Core>);

/// A workflow and where it is.
#[derive(Debug, Clone)]
pub struct Flow {
    /// Its row.
    pub row: WorkflowRow,
    /// The fold of its events.
    pub state: State,
}

/// Who approves a task whose tool asks a person.
#[derive(Debug, Clone)]
pub enum Approver {
    /// A program of the host application, which speaks for its user.
    Application,
    /// A model: the person at its client is asked, if there is a way to.
    Model(Option<Person>),
}

/// What someone wants of a workflow.
#[derive(Debug, Clone)]
pub enum Control {
    /// Nothing more begins.
    Pause,
    /// It goes on.
    Resume,
    /// Running tasks are stopped, and the workflow ends.
    Abort,
    /// A task that waits for approval may begin.
    Approve(String, Approver),
    /// It may not.
    Refuse(String),
    /// What becomes of a task that is unknown; with the result of one that is accepted.
    Decide(String, Decision, Option<Value>),
    /// Tasks that have not begun are added, replaced and dropped.
    Replan {
        /// New ones, and ones instead of those of the same id.
        tasks: Vec<Task>,
        /// Those that go.
        drop: Vec<String>,
    },
}

/// What a workflow could not do.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowError {
    /// The plan does not hold.
    #[error("{0}")]
    Plan(String),
    /// It does not fit the state.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// No person has confirmed what a task's tool asks for.
    #[error("{0}")]
    NotConfirmed(String),
    /// The requester has no such workflow.
    #[error("unknown workflow {0}")]
    Unknown(Uuid),
    /// The idempotency key was used with other arguments.
    #[error("this idempotency key was used with other arguments (workflow {0})")]
    KeyConflict(Uuid),
    /// The tenant has too many that are not over.
    #[error("the tenant has {MAX_LIVE_WORKFLOWS} live workflows")]
    Limit,
    /// They are switched off.
    #[error("workflows are switched off")]
    Off,
    /// As in a run.
    #[error(transparent)]
    Execution(#[from] ExecutionError),
}

impl From<StoreError> for WorkflowError {
    fn from(error: StoreError) -> Self {
        Self::Execution(error.into())
    }
}

impl WorkflowError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Plan(_) => ErrorCode::InvalidArgument,
            Self::Refused(_) => ErrorCode::WorkflowState,
            Self::NotConfirmed(_) => ErrorCode::Forbidden,
            Self::Unknown(_) => ErrorCode::NotFound,
            Self::KeyConflict(_) => ErrorCode::IdempotencyConflict,
            Self::Limit => ErrorCode::LimitReached,
            Self::Off => ErrorCode::Disabled,
            Self::Execution(error) => error.code(),
        }
    }

    /// What the caller should do next.
    pub fn advice(&self) -> String {
        match self {
            Self::Plan(_) => "Nothing was started. Correct the plan and call again.".into(),
            Self::Refused(_) => "Nothing was changed. get_workflow shows its state.".into(),
            Self::NotConfirmed(_) => {
                "Nothing was changed. The host application can approve the task over /v1/workflows/{id}/control.".into()
            }
            Self::Unknown(_) => {
                "Use the `workflowId` of run_workflow, or list yours with get_workflow.".into()
            }
            Self::KeyConflict(_) => "Use a new idempotency key for other arguments.".into(),
            Self::Limit => "Wait for one, or abort one with control_workflow.".into(),
            Self::Off => "Ask the operator of the server to set workflows.enabled = true.".into(),
            Self::Execution(error) => error.advice(),
        }
    }
}

/// The workflows that this replica drives.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// One is due.
    due: Notify,
    /// Something was written to one.
    changed: Notify,
    held: Mutex<HashMap<Uuid, Held>>,
}

/// A workflow that this replica drives.
#[derive(Debug, Clone)]
struct Held {
    epoch: i64,
    /// Someone wrote to it.
    wake: Arc<Notify>,
    /// The lease is another's.
    lost: CancellationToken,
}

impl Flows {
    fn wrote(&self, id: Uuid) {
        if let Some(held) = lock(&self.held).get(&id) {
            held.wake.notify_one();
        }
        self.due.notify_one();
        self.changed.notify_waiters();
    }
}

impl Workflows {
    /// Begins a workflow, and returns at once.
    ///
    /// # Errors
    /// [`WorkflowError`] when the plan does not hold, or for what kept it from beginning.
    pub async fn begin(
        &self,
        call: Call,
        purpose: Option<String>,
        plan: Plan,
    ) -> Result<Flow, WorkflowError> {
        if !self.is_on() {
            return Err(WorkflowError::Off);
        }
        check(&plan)?;
        let parts = &self.0.parts;
        let event = serde_json::to_string(&Event::Planned { plan }).map_err(|error| internal(&error))?;
        let key = &call.key;
        let id = parts.entropy.uuid_v7(&parts.clock);
        let span = tracing::debug_span!(
            "workflow.begin", otel.kind = "server", workflow.id = %id, app.tenant.id = %key.tenant,
            app.conversation.id = %key.conversation, app.path.id = %key.path);
        // It ends at once; its tasks, on whatever replica, are its children.
        let trace = Trace::begin(&span, call.trace.clone(), parts.entropy.bytes());
        let trace = trace.below(&span, parts.entropy.bytes());
        let mut hash = Sha256::new();
        let [conversation, path] = call.place();
        for part in [conversation, path, &event] {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
        let new = NewWorkflow {
            id,
            key: key.clone(),
            principal: call.requester.principal.clone(),
            sees_tenant: call.requester.sees_tenant,
            purpose: purpose.map(|text| self.0.guard_for(&call).line(&text).into_inner()),
            trace_id: Some(trace.parent()),
            idempotency_key: call.idempotency_key.clone().map(|key| own_key(&call, key)),
            args_sha256: hex(&hash.finalize()),
            event,
        };
        let id = match self.0.store().create_workflow(&new).instrument(span).await? {
            Created::New => new.id,
            Created::Known(id) => id,
            Created::Conflict(id) => return Err(WorkflowError::KeyConflict(id)),
            Created::PathClosed(status) => {
                let closed = self.0.closed_path(key).await?.unwrap_or_else(|| status.into());
                return Err(ExecutionError::PathClosed(closed).into());
            }
            Created::Limit => return Err(WorkflowError::Limit),
        };
        tracing::info!(workflow.id = %id, "a workflow was begun");
        self.0.flows.wrote(id);
        self.look(&call.requester, id).await
    }

    /// A workflow and where it is. Only the requester's own exist.
    ///
    /// # Errors
    /// [`WorkflowError::Unknown`], or the store's.
    pub async fn look(&self, requester: &Requester, id: Uuid) -> Result<Flow, WorkflowError> {
        let row = self.0.store().workflow(&requester.tenant, id).await?;
        let row = row.filter(|row| requester.may_see(&row.key.owner, Some(&row.principal)));
        let row = row.ok_or(WorkflowError::Unknown(id))?;
        let state = self.0.fold(id).await?;
        Ok(Flow { row, state })
    }

    /// As [`Self::look`], once something has happened behind event `after`, it has ended, or `patience` is.
    ///
    /// # Errors
    /// As [`Self::look`].
    pub async fn wait(
        &self,
        requester: &Requester,
        id: Uuid,
        after: i64,
        patience: Duration,
    ) -> Result<Flow, WorkflowError> {
        let deadline = Instant::now() + patience;
        loop {
            let changed = self.0.flows.changed.notified();
            let row = self.0.store().workflow(&requester.tenant, id).await?;
            let is_news = row.is_none_or(|row| row.seq > after || row.finished_at.is_some());
            if is_news || Instant::now() >= deadline || self.0.shutdown.is_cancelled() {
                return self.look(requester, id).await;
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(deadline.min(Instant::now() + LOOK)) => {}
                () = self.0.shutdown.cancelled() => {}
            }
        }
    }

    /// The requester's workflows, the latest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn list(
        &self,
        requester: &Requester,
        live: bool,
        limit: u32,
    ) -> Result<Vec<WorkflowRow>, WorkflowError> {
        Ok(self.0.store().workflows(Some(&requester.tenant), requester.lists().as_ref(), live, limit).await?)
    }

    /// The latest workflows of a tenant, or of every one.
    ///
    /// # Errors
    /// The store's.
    pub async fn latest(
        &self,
        tenant: Option<&TenantId>,
        limit: u32,
    ) -> Result<Vec<WorkflowRow>, ExecutionError> {
        Ok(self.0.store().workflows(tenant, None, false, limit).await?)
    }

    /// Whether workflows are offered here.
    pub fn is_on(&self) -> bool {
        self.0.options().workflows
    }

    /// Whether this server ends.
    pub fn is_ending(&self) -> bool {
        self.0.shutdown.is_cancelled()
    }

    /// The events after event `after`, as programs read them.
    ///
    /// # Errors
    /// As [`Self::look`].
    pub async fn events(
        &self,
        requester: &Requester,
        id: Uuid,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Value>, WorkflowError> {
        let row = self.0.store().workflow(&requester.tenant, id).await?;
        row.filter(|row| requester.may_see(&row.key.owner, Some(&row.principal)))
            .ok_or(WorkflowError::Unknown(id))?;
        let events = self.0.store().workflow_events(id, after, limit).await?;
        events.iter().map(|event| Ok(view(event, &read(id, event)?))).collect()
    }

    /// Results of tasks that have one: all, or of these.
    ///
    /// # Errors
    /// The store's.
    pub async fn results(
        &self,
        flow: &Flow,
        tasks: Option<&[String]>,
    ) -> Result<BTreeMap<String, Value>, WorkflowError> {
        let wanted: Vec<String> = flow
            .state
            .tasks
            .keys()
            .filter(|id| tasks.is_none_or(|tasks| tasks.contains(id)))
            .cloned()
            .collect();
        self.0.results(flow.row.id, &flow.state, &wanted).await
    }

    /// Steers a workflow.
    ///
    /// # Errors
    /// [`WorkflowError::Refused`] when it does not fit the state, [`WorkflowError::Plan`], or as [`Self::look`].
    pub async fn control(
        &self,
        requester: &Requester,
        id: Uuid,
        control: &Control,
    ) -> Result<Flow, WorkflowError> {
        let confirmed = match control {
            Control::Approve(task, approver) => self.confirmed(requester, id, task, approver).await?,
            _ => None,
        };
        loop {
            let mut flow = self.look(requester, id).await?;
            let seq = flow.state.seq;
            let (event, results) =
                self.steering_event(requester, &flow, control, confirmed.as_deref()).await?;
            let now = self.0.parts.clock.now().timestamp_millis();
            flow.state.apply(&event, now)?;
            let append = Append {
                id,
                seq,
                lease: None,
                events: vec![serde_json::to_string(&event).map_err(|error| internal(&error))?],
                results,
                status: flow.state.status.as_str(),
                release: None,
            };
            match self.0.store().append_workflow(&append).await? {
                Appended::Done => {
                    self.0.flows.wrote(id);
                    return Ok(flow);
                }
                Appended::Stale => {}
                Appended::Fenced => return Err(WorkflowError::Unknown(id)),
            }
        }
    }

    /// The definition of a task's tool that its approval confirms, where the tool asks a person.
    async fn confirmed(
        &self,
        requester: &Requester,
        id: Uuid,
        task: &str,
        approver: &Approver,
    ) -> Result<Option<String>, WorkflowError> {
        let Flow { row, state } = self.look(requester, id).await?;
        // A person is asked about what can be approved.
        state.clone().apply(&approved(requester, task, None), 0)?;
        let planned = state.plan.task(task).filter(|task| task.kind == TaskKind::McpTool);
        let Some((planned, name)) = planned.and_then(|task| Some((task, task.tool.as_deref()?))) else {
            return Ok(None);
        };
        let call = Call::on(row.key.clone(), task::requester(&row));
        let Approver::Model(person) = approver else {
            let found = self.0.to_confirm(&call, name, Some(crate::bridge::PATIENCE)).await;
            return Ok(found.map(|(definition, _)| definition));
        };
        let sources: Vec<String> = state.plan.sources(task).into_iter().map(str::to_owned).collect();
        let values = self.0.results(id, &state, &sources).await?;
        let mut arguments = planned.arguments.clone().unwrap_or_default();
        let who = match task::prepare(&state, task, &values) {
            task::Prepared::Ready(inputs) => {
                arguments.extend(inputs);
                "A task of a workflow".to_owned()
            }
            task::Prepared::Items(items) => format!("A task of a workflow, once for each of {items} items,"),
            task::Prepared::Skip(_) | task::Prepared::Unusable(_) => return Ok(None),
        };
        let call = Call { person: person.clone(), ..call };
        let asked = self.0.ask_about_task(&call, name, &Value::Object(arguments), who).await;
        asked.map_err(WorkflowError::NotConfirmed)
    }

    /// The event that a control comes down to. `confirmed` is the definition of the tool that an approval confirms.
    async fn steering_event(
        &self,
        requester: &Requester,
        flow: &Flow,
        control: &Control,
        confirmed: Option<&str>,
    ) -> Result<(Event, Vec<TaskResult>), WorkflowError> {
        let by = requester.principal.clone();
        let event = match control.clone() {
            Control::Pause => Event::Paused { by },
            Control::Resume => Event::Resumed { by },
            Control::Abort => Event::Aborting { by },
            Control::Approve(task, _) => approved(requester, &task, confirmed),
            Control::Refuse(task) => Event::Refused { task, by },
            Control::Decide(task, decision, result) => {
                let generation = flow.state.tasks.get(&task).map_or(0, |task| task.generation);
                let event = Event::Decided { task: task.clone(), decision, by };
                if decision != Decision::Accept {
                    return Ok((event, Vec::new()));
                }
                let value = self.0.guarded(&flow.row, result.unwrap_or(Value::Null)).await;
                let kept = self.0.keep(flow.row.id, &task, generation, &value).await?;
                return Ok((event, vec![kept]));
            }
            Control::Replan { tasks, drop } => {
                let mut plan = flow.state.plan.clone();
                for id in &drop {
                    if plan.tasks.iter().all(|task| task.id != *id) {
                        return Err(WorkflowError::Plan(format!("there is no task `{id}` to drop")));
                    }
                }
                plan.tasks.retain(|task| !drop.contains(&task.id));
                for task in tasks {
                    match plan.tasks.iter_mut().find(|old| old.id == task.id) {
                        Some(old) => *old = task,
                        None => plan.tasks.push(task),
                    }
                }
                check(&plan)?;
                Event::Replanned { plan, by }
            }
        };
        Ok((event, Vec::new()))
    }
}

fn approved(requester: &Requester, task: &str, confirmed: Option<&str>) -> Event {
    let confirmed = confirmed.map(str::to_owned);
    Event::Approved { task: task.to_owned(), by: requester.principal.clone(), confirmed }
}

/// The state of a workflow, from its events.
///
/// # Errors
/// [`WorkflowError::Unknown`] when there are none, or the store's.
pub async fn fold(store: &DynStore, id: Uuid) -> Result<State, WorkflowError> {
    let mut state: Option<State> = None;
    loop {
        let after = state.as_ref().map_or(0, |state| state.seq);
        let events = store.workflow_events(id, after, PAGE).await?;
        let last = events.len() < PAGE as usize;
        for stored in &events {
            let (event, at) = (read(id, stored)?, stored.at.timestamp_millis());
            match &mut state {
                None => state = Some(State::begin(&event, at)?),
                Some(state) => state.apply(&event, at)?,
            }
        }
        if last {
            return state.ok_or(WorkflowError::Unknown(id));
        }
    }
}

impl Core {
    async fn fold(&self, id: Uuid) -> Result<State, WorkflowError> {
        fold(self.store(), id).await
    }

    /// Results of tasks that succeeded.
    async fn results(
        &self,
        id: Uuid,
        state: &State,
        tasks: &[String],
    ) -> Result<BTreeMap<String, Value>, WorkflowError> {
        let mut found = BTreeMap::new();
        for result in self.store().workflow_results(id, tasks).await? {
            let of = state.tasks.get(&result.task);
            let counts = of.is_some_and(|of| {
                of.generation == result.generation && of.phase == crate::workflow::Phase::Succeeded
            });
            if !counts {
                continue;
            }
            let value = match &result.body {
                Some(body) => serde_json::from_str(body),
                None => {
                    let name = object(&result.task, result.generation);
                    let read = self.outputs().read(ExecutionId(id), &name, 0, MAX_RESULT).await;
                    let failed =
                        |error| ExecutionError::of_object(&format!("the result of `{}`", result.task), error);
                    serde_json::from_slice(&read.map_err(failed)?.0)
                }
            };
            found.insert(result.task, value.map_err(|error| internal(&error))?);
        }
        Ok(found)
    }

    /// Makes a result ready to be written; a large one is an object from here on.
    async fn keep(
        &self,
        id: Uuid,
        task: &str,
        generation: u32,
        value: &Sanitized<Value>,
    ) -> Result<TaskResult, WorkflowError> {
        let body = value.to_string();
        let (bytes, task) = (body.len(), task.to_owned());
        if bytes <= INLINE {
            return Ok(TaskResult { task, generation, body: Some(body), bytes: bytes as u64 });
        }
        if bytes > MAX_RESULT {
            return Err(WorkflowError::Plan(format!(
                "the result of task `{task}` has {bytes} bytes; at most {MAX_RESULT} are kept: write it to a file"
            )));
        }
        let whole = value.clone().map(|value| value.to_string().into_bytes());
        let name = object(&task, generation);
        let kept = self.outputs().put(ExecutionId(id), &name, "application/json", &whole).await;
        kept.map_err(ExecutionError::Objects)?;
        Ok(TaskResult { task, generation, body: None, bytes: bytes as u64 })
    }

    /// A value of no run, guarded as one of the workflow's own path.
    async fn guarded(&self, row: &WorkflowRow, value: Value) -> Sanitized<Value> {
        let key = task::own_path(row);
        let mut numbering = self.numbering(&key).await;
        let (value, _) = self.parts.policies.of(&row.key.tenant).json(value, &mut numbering);
        let new = numbering.take_fresh();
        if !new.is_empty()
            && let Err(error) = self.store().save_placeholders(&key, &new).await
        {
            tracing::warn!(error = %error, "placeholder numbers could not be kept");
        }
        value
    }
}

/// The name of a result that is an object.
fn object(task: &str, generation: u32) -> String {
    format!("{}.json", hex(&Sha256::digest(format!("{task}\0{generation}"))[..16]))
}

fn internal(error: &serde_json::Error) -> WorkflowError {
    ExecutionError::Internal(format!("a workflow's record does not decode: {error}")).into()
}

fn read(id: Uuid, stored: &StoredEvent) -> Result<Event, WorkflowError> {
    serde_json::from_str(&stored.body).map_err(|error| {
        let problem = error.to_string();
        StoreError::Corrupt { table: "workflow_events", id: format!("{id}/{}", stored.seq), problem }.into()
    })
}

/// An event as programs read it: `seq`, `at`, `event`, and what it is about. Plans and results are elsewhere.
fn view(stored: &StoredEvent, event: &Event) -> Value {
    let mut shown = json!({"seq": stored.seq, "at": stored.at.to_rfc3339()});
    let Ok(Value::Object(whole)) = serde_json::to_value(event) else { return shown };
    for (name, fields) in whole {
        shown["event"] = json!(name);
        let Value::Object(fields) = fields else { continue };
        for (field, value) in fields {
            match field.as_str() {
                "plan" => shown["tasks"] = json!(value["tasks"].as_array().map_or(0, Vec::len)),
                "run" => {
                    shown["task"] = value["task"].clone();
                    shown["attempt"] = value["attempt"].clone();
                }
                _ => shown[field] = value,
            }
        }
    }
    shown
}

/// The checks of a plan that need more than the plan.
fn check(plan: &Plan) -> Result<(), WorkflowError> {
    plan.check().map_err(|error| WorkflowError::Plan(error.to_string()))?;
    for task in &plan.tasks {
        let no = |problem: String| Err(WorkflowError::Plan(format!("task `{}`: {problem}", task.id)));
        match task.kind {
            TaskKind::CodeExecution => {
                if let Err(error) = Code::parse(task.code.clone().unwrap_or_default()) {
                    return no(error.to_string());
                }
            }
            TaskKind::Analysis => {
                let Some(kind) = kind(task) else {
                    let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
                    return no(format!("`analysis_type` is one of {}", known.join(", ")));
                };
                // What refers to results can be checked only once they are there.
                if task.inputs.is_empty() && task.for_each.is_none() {
                    let parameters = Value::Object(task.parameters.clone().unwrap_or_default());
                    if let Err(error) = crate::analysis::check(kind, &parameters) {
                        return no(format!("`parameters`: {error}"));
                    }
                }
            }
            TaskKind::McpTool => {
                if !task.tool.as_ref().is_some_and(|tool| tool.contains('.')) {
                    return no("`tool` is `server.tool`, as search_tools gives it".into());
                }
            }
        }
        if let crate::workflow::Lane::Named(path) = task.lane()
            && let Err(error) = PathId::parse(path)
        {
            return no(error.to_string());
        }
    }
    Ok(())
}

/// Which analysis a task is.
fn kind(task: &Task) -> Option<Kind> {
    Kind::deserialize(Value::String(task.analysis_type.clone()?)).ok()
}
