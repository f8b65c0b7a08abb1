//! Lets workflows go on: takes the ones that are due, does what their state asks for, and writes down what came of it.
//!
//! One replica drives a workflow at a time, by a lease on it. What it does for a task is written before it is begun and after
//! it has ended, each fenced by the lease. A replica that takes a workflow over goes on with its tasks: code and analyses are
//! asked for again under the same idempotency key, so one that has ended gives its record, one that runs on is waited for,
//! and one that was cut off says so.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::{ApiKey, lock};
use crate::store::workflows::{Append, Appended, TaskResult};
use crate::store::{StoreError, WorkflowRow};
use crate::telemetry::{chain, metrics};
use crate::workflow::{Action, Event, Running, State, Status, TaskKind};

use super::task::{Came, Made, Prepared, Work};
use super::{Core, Flow, Held, WorkflowError, Workflows};
use crate::execution::crash::crash_point;
use crate::execution::{Call, ExecutionError};

/// Time between two renewals; changes by others show at the next one.
const RENEW: Duration = Duration::from_millis(500);
/// Between two looks for workflows that are due.
const POLL: Duration = Duration::from_secs(1);
/// Workflows that are taken at once.
const MOST: u32 = 8;
/// Workflows that one replica drives at a time.
const MAX_HELD: usize = 64;
/// Between two looks whether a workflow may still run code, while its tasks run; before each task there is one.
const VOUCHED: Duration = Duration::from_secs(15);
/// A pause up to this long is waited for with the lease in hand.
const SHORT: Duration = Duration::from_secs(2);

impl Workflows {
    /// Starts to drive workflows; ends at shutdown.
    pub(in crate::execution) fn start(&self) {
        if !self.0.options().workflows {
            return;
        }
        let core = Arc::clone(&self.0);
        self.0.background.spawn(async move { claiming(core).await });
        let core = Arc::clone(&self.0);
        self.0.background.spawn(async move { renewing(core).await });
    }
}

async fn claiming(core: Arc<Core>) {
    loop {
        let has_room = lock(&core.flows.held).len() < MAX_HELD;
        if has_room && !core.runs.is_closed() {
            match core
                .store()
                .claim_workflows(&core.parts.owner, core.options().limits.replica_lease, MOST)
                .await
            {
                Ok(rows) => rows.into_iter().for_each(|row| take(&core, row)),
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "workflows that are due could not be looked for")
                }
            }
        }
        tokio::select! {
            () = core.flows.due.notified() => {}
            () = tokio::time::sleep(POLL) => {}
            () = core.shutdown.cancelled() => return,
        }
    }
}

fn take(core: &Arc<Core>, row: WorkflowRow) {
    crash_point!(core, "workflow.claimed");
    let held = Held { epoch: row.lease_epoch, wake: Arc::new(Notify::new()), lost: CancellationToken::new() };
    let before = {
        let mut all = lock(&core.flows.held);
        let before = all.insert(row.id, held.clone());
        metrics::WORKFLOWS_DRIVEN.set(all.len() as u64);
        before
    };
    if let Some(before) = before {
        before.lost.cancel();
    }
    let core = Arc::clone(core);
    let on = core.background.clone();
    on.spawn(async move {
        let (id, epoch) = (row.id, row.lease_epoch);
        drive(Arc::clone(&core), row, held).await;
        let mut all = lock(&core.flows.held);
        if all.get(&id).is_some_and(|held| held.epoch == epoch) {
            all.remove(&id);
        }
        metrics::WORKFLOWS_DRIVEN.set(all.len() as u64);
    });
}

async fn renewing(core: Arc<Core>) {
    let mut seen: HashMap<uuid::Uuid, i64> = HashMap::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(RENEW) => {}
            () = core.shutdown.cancelled() => return,
        }
        if lock(&core.flows.held).is_empty() {
            seen.clear();
            continue;
        }
        let before = lock(&core.flows.held).clone();
        match core.store().renew_workflows(&core.parts.owner, core.options().limits.replica_lease).await {
            Ok(renewed) => {
                for (id, held) in &before {
                    let now = renewed.iter().find(|now| now.id == *id && now.epoch == held.epoch);
                    match now {
                        Some(now) if seen.insert(*id, now.seq) != Some(now.seq) => held.wake.notify_one(),
                        Some(_) => {}
                        None => held.lost.cancel(),
                    }
                }
            }
            Err(error) => tracing::warn!(error = %chain(&error), "leases of workflows could not be renewed"),
        }
    }
}

/// Why a step did not come about.
enum Fault {
    /// The lease is another's.
    Lost,
    Store(WorkflowError),
}

impl From<WorkflowError> for Fault {
    fn from(error: WorkflowError) -> Self {
        Self::Store(error)
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Store(error.into())
    }
}

enum Step {
    /// Something was written: look again.
    Again,
    /// Nothing is due before this time.
    Idle(Option<Duration>),
    Over,
}

#[derive(PartialEq, Eq)]
enum Wrote {
    Done,
    /// It does not fit what happened meanwhile.
    Refused,
    /// Others wrote first; that has been read.
    Stale,
}

/// What goes on beside the driver and has come to its end.
enum Joined {
    Ran(Running, Came),
    /// A task's tool, whether it asks a person.
    Found(String, Option<Confirm>),
}

/// The definition that a person has to confirm, and what to call it.
type Confirm = (String, String);

/// Whether the tool of a task asks a person.
enum Asked {
    /// Its server is asked, which may have to start first: nothing else waits for that.
    Asking,
    Known(Option<Confirm>),
}

struct Driver {
    core: Arc<Core>,
    row: WorkflowRow,
    state: State,
    held: Held,
    /// The database's time less ours, in milliseconds.
    skew: i64,
    live: BTreeMap<Running, CancellationToken>,
    joins: JoinSet<Joined>,
    /// What is known of the tools of tasks that are about to begin.
    tools: BTreeMap<String, Asked>,
    /// What has ended and is not written yet.
    reports: VecDeque<(Running, Came)>,
    /// When its path was last found open, and the credential of its principal good.
    vouched: Option<Instant>,
}

async fn drive(core: Arc<Core>, row: WorkflowRow, held: Held) {
    let (state, now) = match tokio::join!(core.fold(row.id), core.store().now()) {
        (Ok(state), Ok(now)) => (state, now),
        (Err(error), _) => {
            return tracing::error!(workflow.id = %row.id, error = %error, "a workflow cannot be read");
        }
        (_, Err(error)) => return tracing::warn!(error = %chain(&error), "a workflow is driven later"),
    };
    let skew = now.timestamp_millis() - core.parts.clock.now().timestamp_millis();
    let mut driver = Driver {
        core,
        row,
        state,
        held,
        skew,
        live: BTreeMap::new(),
        joins: JoinSet::new(),
        tools: BTreeMap::new(),
        reports: VecDeque::new(),
        vouched: None,
    };
    driver.go().await;
}

impl Driver {
    fn now(&self) -> i64 {
        self.core.parts.clock.now().timestamp_millis() + self.skew
    }

    async fn go(&mut self) {
        loop {
            if self.held.lost.is_cancelled() {
                tracing::warn!(workflow.id = %self.row.id, "the lease on a workflow has expired; another replica continues it");
                return;
            }
            if self.core.shutdown.is_cancelled() {
                let release = self.write(Vec::new(), Vec::new(), Some(Some(Duration::ZERO)));
                drop(tokio::time::timeout(Duration::from_millis(300), release).await);
                return;
            }
            let wait = match self.step().await {
                Ok(Step::Again) => continue,
                Ok(Step::Over) | Err(Fault::Lost) => return,
                Ok(Step::Idle(wait)) => wait,
                Err(Fault::Store(error)) => {
                    tracing::warn!(workflow.id = %self.row.id, error = %chain(&error), "a step of a workflow is tried again");
                    if !error.code().is_retryable() {
                        return;
                    }
                    Some(Duration::from_millis(500))
                }
            };
            let is_short = wait.is_some_and(|wait| wait <= SHORT);
            if self.joins.is_empty() && self.reports.is_empty() && !is_short {
                match self.write(Vec::new(), Vec::new(), Some(wait)).await {
                    Ok(Wrote::Done) | Err(Fault::Lost) => return,
                    Ok(_) | Err(Fault::Store(_)) => continue,
                }
            }
            tokio::select! {
                Some(ended) = self.joins.join_next() => self.take(ended),
                () = self.held.wake.notified() => {
                    if let Err(Fault::Store(error)) = self.refresh().await {
                        tracing::warn!(workflow.id = %self.row.id, error = %chain(&error), "a workflow could not be read again");
                    }
                }
                () = tokio::time::sleep(wait.unwrap_or(SHORT).min(SHORT)) => {}
                () = self.held.lost.cancelled() => {}
                () = self.core.shutdown.cancelled() => {}
            }
        }
    }

    fn take(&mut self, ended: Result<Joined, tokio::task::JoinError>) {
        match ended {
            Ok(Joined::Ran(run, came)) => self.reports.push_back((run, came)),
            Ok(Joined::Found(task, found)) => drop(self.tools.insert(task, Asked::Known(found))),
            Err(error) => {
                tracing::error!(workflow.id = %self.row.id, error = %error, "a task of a workflow is gone")
            }
        }
    }

    async fn step(&mut self) -> Result<Step, Fault> {
        if let Some((run, came)) = self.reports.front().cloned() {
            if self.report(&run, came).await? != Wrote::Stale {
                self.live.remove(&run);
                self.reports.pop_front();
            }
            return Ok(Step::Again);
        }
        let now = self.now();
        if self.state.status != Status::Running {
            // Much may change until it goes on.
            self.tools.retain(|_, asked| matches!(asked, Asked::Asking));
        }
        let is_held = |task: &str| matches!(self.tools.get(task), Some(Asked::Asking));
        let due = self.state.due_without(now, self.held.epoch, is_held);
        if self.needs_voucher(&due)
            && let Some(by) = self.not_allowed().await?
        {
            self.write(vec![Event::Aborting { by }], Vec::new(), None).await?;
            return Ok(Step::Again);
        }
        for action in due {
            if let Action::Wait(at) = action {
                return Ok(Step::Idle(Some(Duration::from_millis(u64::try_from(at - now).unwrap_or(0)))));
            }
            if self.act(action).await? {
                return Ok(if self.state.status.is_over() { Step::Over } else { Step::Again });
            }
        }
        Ok(if self.state.status.is_over() { Step::Over } else { Step::Idle(None) })
    }

    /// Whether it has to be known that it may still run code: before a task begins, and now and then while one runs.
    fn needs_voucher(&self, due: &[Action]) -> bool {
        let begins = due.iter().any(|action| matches!(action, Action::Begin(_)));
        let is_old = self.vouched.is_none_or(|at| at.elapsed() >= VOUCHED);
        matches!(self.state.status, Status::Running | Status::Paused)
            && (begins || !self.live.is_empty() && is_old)
    }

    /// Why it may run nothing any more: its path is closed, or who began it may not. An API key can be asked about; a token's
    /// user cannot.
    async fn not_allowed(&mut self) -> Result<Option<String>, Fault> {
        if let Some(closed) = self.core.closed_path(&self.row.key).await? {
            tracing::info!(workflow.id = %self.row.id, status = %closed.status, "a workflow is aborted: its path is closed");
            return Ok(Some(format!("the server: path {} is {closed}", self.row.key.path)));
        }
        if let Some(id) = ApiKey::id_in(&self.row.principal) {
            let key = self.core.store().api_key(id).await?;
            if key.is_none_or(|key| !key.is_good(self.core.parts.clock.now())) {
                tracing::warn!(workflow.id = %self.row.id, "a workflow is aborted: the API key that began it is revoked or expired");
                return Ok(Some(format!("the server: API key {id} is revoked or expired")));
            }
        }
        self.vouched = Some(Instant::now());
        Ok(None)
    }

    /// Writes down how a run came out.
    async fn report(&mut self, run: &Running, came: Came) -> Result<Wrote, Fault> {
        crash_point!(self.core, "workflow.ran");
        let run = run.clone();
        let generation = self.state.tasks.get(&run.task).map_or(1, |task| task.generation);
        let mut results = Vec::new();
        let event = match came {
            Came::Done(made) => match self.core.keep(self.row.id, &run.task, generation, &made.value).await {
                Ok(kept) => {
                    crash_point!(self.core, "workflow.kept");
                    let bytes = kept.bytes;
                    results.push(kept);
                    let Made { cached, execution, artifacts, lost, .. } = made;
                    Event::Completed { run, bytes, cached, execution, artifacts, reason: lost }
                }
                Err(WorkflowError::Plan(error)) => Event::Failed { run, error, retry: false },
                Err(error) => return Err(error.into()),
            },
            Came::Failed { error, retry } => Event::Failed { run, error, retry },
            Came::Interrupted => Event::Interrupted { run },
            Came::Stopped if self.state.status == Status::Aborting => Event::Stopped { run },
            Came::Stopped => Event::Failed { run, error: "it was cancelled".into(), retry: false },
            // The replica that takes the workflow over finds the run under its key.
            Came::Gone if self.core.shutdown.is_cancelled() || self.held.lost.is_cancelled() => {
                return Ok(Wrote::Refused);
            }
            Came::Gone => Event::Interrupted { run },
        };
        let name = match &event {
            Event::Completed { .. } => "completed",
            Event::Stopped { .. } => "stopped",
            Event::Interrupted { .. } => "interrupted",
            _ => "failed",
        };
        let wrote = self.write(vec![event], results, None).await?;
        if wrote == Wrote::Done {
            crash_point!(self.core, "workflow.recorded");
            metrics::WORKFLOW_TASKS.add(&[name], 1);
        }
        Ok(wrote)
    }

    /// Does what is due. Says whether something was written.
    async fn act(&mut self, action: Action) -> Result<bool, Fault> {
        match action {
            Action::Begin(_) if self.core.runs.is_closed() => Ok(false),
            Action::Begin(task) => self.begin(task).await,
            Action::Adopt(run) if self.state.is_keyed(&run.task) => {
                let adopted = Event::Adopted { task: run.task.clone(), epoch: self.held.epoch };
                if self.write(vec![adopted], Vec::new(), None).await? == Wrote::Done {
                    let run = Running { epoch: self.held.epoch, ..run };
                    match self.prepare(&run.task).await? {
                        Prepared::Ready(inputs) => self.spawn(run, inputs),
                        _ => self.reports.push_back((run, Came::Interrupted)),
                    }
                }
                Ok(true)
            }
            Action::Adopt(run) => {
                self.write(vec![Event::Interrupted { run }], Vec::new(), None).await.map(|_| true)
            }
            Action::Collect(task) => self.collect(&task).await.map(|()| true),
            Action::Stop(run) => match self.live.get(&run) {
                Some(cancel) => {
                    cancel.cancel();
                    Ok(false)
                }
                None => self.write(vec![Event::Stopped { run }], Vec::new(), None).await.map(|_| true),
            },
            Action::Abort => {
                let by = "the time limit of the workflow".to_owned();
                self.write(vec![Event::Aborting { by }], Vec::new(), None).await.map(|_| true)
            }
            Action::End(status) => self.end(status).await.map(|()| true),
            Action::Wait(_) => Ok(false),
        }
    }

    async fn prepare(&self, task: &str) -> Result<Prepared, Fault> {
        let sources: Vec<String> = self.state.plan.sources(task).into_iter().map(str::to_owned).collect();
        Ok(match self.results(&sources).await? {
            Ok(values) => super::task::prepare(&self.state, task, &values),
            Err(reason) => Prepared::Unusable(reason),
        })
    }

    /// Results of earlier tasks; `Err` in it: why they will not be had.
    async fn results(&self, tasks: &[String]) -> Result<Result<BTreeMap<String, Value>, String>, Fault> {
        match self.core.results(self.row.id, &self.state, tasks).await {
            Err(WorkflowError::Execution(error @ ExecutionError::NotHere(_))) => {
                Ok(Err(format!("{error}. {}", error.advice())))
            }
            found => Ok(Ok(found?)),
        }
    }

    /// Begins a task, or says why not. Says whether something was written.
    async fn begin(&mut self, task: String) -> Result<bool, Fault> {
        let prepared = self.prepare(&task).await?;
        if matches!(prepared, Prepared::Items(_) | Prepared::Ready(_)) {
            if self.asks_about(&task) {
                return self.delayed(task).await;
            }
            if let Some(reason) = self.waits_for_approval(&task) {
                return self
                    .write(vec![Event::Waiting { task, reason }], Vec::new(), None)
                    .await
                    .map(|_| true);
            }
        }
        let attempt = self.state.tasks.get(&task).map_or(1, |state| state.attempt + 1);
        let (event, inputs) = match prepared {
            Prepared::Skip(reason) => (Event::Skipped { task, reason }, None),
            Prepared::Unusable(reason) => (Event::Unusable { task, reason }, None),
            Prepared::Items(items) => (Event::Expanded { task, items }, None),
            Prepared::Ready(inputs) => {
                let run = Running { task, attempt, epoch: self.held.epoch };
                (Event::Started { run: run.clone() }, Some((run, inputs)))
            }
        };
        let wrote = self.write(vec![event], Vec::new(), None).await?;
        if let Some((run, inputs)) = inputs.filter(|_| wrote == Wrote::Done) {
            crash_point!(self.core, "workflow.started");
            self.spawn(run, inputs);
        }
        Ok(true)
    }

    /// The tool that a task calls.
    fn tool(&self, id: &str) -> Option<&str> {
        self.state.plan.task(id).filter(|task| task.kind == TaskKind::McpTool)?.tool.as_deref()
    }

    /// Whether it has to be found out first whether the tool of a task asks a person. Begins to.
    fn asks_about(&mut self, id: &str) -> bool {
        let Some(name) = self.tool(id).filter(|_| !self.tools.contains_key(id)).map(str::to_owned) else {
            return false;
        };
        let (core, task) = (Arc::clone(&self.core), id.to_owned());
        let call = Call::on(self.row.key.clone(), super::task::requester(&self.row));
        self.joins.spawn(async move {
            let found =
                std::panic::AssertUnwindSafe(core.to_confirm(&call, &name, None)).catch_unwind().await;
            Joined::Found(task, found.unwrap_or_default())
        });
        self.tools.insert(id.to_owned(), Asked::Asking);
        true
    }

    /// Says that a task waits for its tool's server, if that has to start. Says whether something was written.
    async fn delayed(&mut self, task: String) -> Result<bool, Fault> {
        let Some(name) = self.tool(&task) else { return Ok(false) };
        if self.core.tool_is_at_hand(&self.row.key.tenant, name) {
            return Ok(false);
        }
        let server = name.split_once('.').map_or(name, |(server, _)| server);
        let reason = format!("waits for the tool server {server}, which is starting");
        self.write(vec![Event::Delayed { task, reason }], Vec::new(), None).await.map(|_| true)
    }

    /// Whether a task has to be approved before it begins, and why, unless its plan says so.
    fn waits_for_approval(&mut self, id: &str) -> Option<Option<String>> {
        let found = match self.tools.remove(id) {
            Some(Asked::Known(found)) => found,
            Some(Asked::Asking) | None => None,
        };
        let (task, state) = (self.state.plan.task(id)?, self.state.tasks.get(id)?);
        match found {
            Some((definition, name)) if state.confirmed.as_ref() != Some(&definition) => {
                Some(Some(format!("{name} needs a person's confirmation: approve this task")))
            }
            _ => (task.approve && !state.approved).then_some(None),
        }
    }

    fn spawn(&mut self, run: Running, inputs: serde_json::Map<String, Value>) {
        let Some(task) = self.state.plan.task(&run.task).cloned() else { return };
        let state = self.state.tasks.get(&run.task);
        let generation = state.map_or(1, |task| task.generation);
        let confirmed = state.and_then(|task| task.confirmed.clone());
        let cancel = CancellationToken::new();
        self.live.insert(run.clone(), cancel.clone());
        let work = Work {
            core: Arc::clone(&self.core),
            row: self.row.clone(),
            task,
            run: run.clone(),
            generation,
            inputs,
            confirmed,
            cancel,
            lost: self.held.lost.clone(),
            files: super::task::files_for(&self.state, &run.task),
            trace: None,
        };
        self.joins.spawn(async move {
            let came = std::panic::AssertUnwindSafe(work.done()).catch_unwind().await;
            let fault = || Came::Failed {
                error: "internal fault; the server's log has the cause".into(),
                retry: false,
            };
            Joined::Ran(run, came.unwrap_or_else(|_| fault()))
        });
    }

    /// The results of all items as one list.
    async fn collect(&mut self, task: &str) -> Result<(), Fault> {
        let state = self.state.tasks.get(task);
        let (items, generation) = state.map_or((0, 1), |state| (state.items, state.generation));
        let ids: Vec<String> = (0..items).map(|item| format!("{task}[{item}]")).collect();
        let mut values = match self.results(&ids).await? {
            Ok(values) => values,
            Err(reason) => {
                let unusable = Event::Unusable { task: task.to_owned(), reason };
                return self.write(vec![unusable], Vec::new(), None).await.map(drop);
            }
        };
        let list: Vec<Value> = ids.iter().map(|id| values.remove(id).unwrap_or(Value::Null)).collect();
        // Each was guarded when it came; the guard leaves its own placeholders as they are.
        let list = self.core.guarded(&self.row, Value::Array(list)).await;
        let kept = self.core.keep(self.row.id, task, generation, &list).await?;
        let run = Running { task: task.to_owned(), attempt: 0, epoch: self.held.epoch };
        let artifacts = BTreeMap::new();
        let bytes = kept.bytes;
        let event = Event::Completed { run, bytes, cached: false, execution: None, artifacts, reason: None };
        self.write(vec![event], vec![kept], None).await.map(drop)
    }

    async fn end(&mut self, status: Status) -> Result<(), Fault> {
        // Its own sandbox ends with it: nothing leads there any more, and it would hold a place of the conversation. Nothing of a
        // stopped task is left in it either.
        let contexts = crate::execution::Contexts(Arc::clone(&self.core));
        contexts.end(&super::task::own_path(&self.row)).await.map_err(WorkflowError::from)?;
        if self.write(vec![Event::Ended { status }], Vec::new(), None).await? == Wrote::Done {
            crash_point!(self.core, "workflow.ended");
            metrics::WORKFLOWS.add(&[status.as_str()], 1);
            let lasted = self.now() - self.row.created_at.timestamp_millis();
            let lasted = Duration::from_millis(u64::try_from(lasted).unwrap_or(0));
            metrics::WORKFLOW_DURATION.record(&[status.as_str()], lasted);
            tracing::info!(workflow.id = %self.row.id, status = status.as_str(), "a workflow is over");
        }
        Ok(())
    }

    /// Writes events, if they fit what has happened so far.
    async fn write(
        &mut self,
        events: Vec<Event>,
        results: Vec<TaskResult>,
        release: Option<Option<Duration>>,
    ) -> Result<Wrote, Fault> {
        let mut next = self.state.clone();
        let now = self.now();
        for event in &events {
            if let Err(refused) = next.apply(event, now) {
                tracing::debug!(workflow.id = %self.row.id, %refused, "an event came too late");
                return Ok(Wrote::Refused);
            }
        }
        let bodies: Result<Vec<String>, _> = events.iter().map(serde_json::to_string).collect();
        let append = Append {
            id: self.row.id,
            seq: self.state.seq,
            lease: Some((self.core.parts.owner.clone(), self.held.epoch)),
            events: bodies.map_err(|error| super::internal(&error))?,
            results,
            status: next.status.as_str(),
            release,
        };
        match self.core.store().append_workflow(&append).await? {
            Appended::Done => {
                self.state = next;
                self.core.flows.changed.notify_waiters();
                Ok(Wrote::Done)
            }
            Appended::Stale => {
                self.refresh().await?;
                Ok(Wrote::Stale)
            }
            Appended::Fenced => Err(Fault::Lost),
        }
    }

    /// Reads what others wrote.
    async fn refresh(&mut self) -> Result<(), Fault> {
        for stored in self.core.store().workflow_events(self.row.id, self.state.seq, super::PAGE).await? {
            let event = super::read(self.row.id, &stored)?;
            self.state.apply(&event, stored.at.timestamp_millis()).map_err(WorkflowError::from)?;
        }
        Ok(())
    }
}

impl Flow {
    /// How far each task is, for people and models.
    pub fn picture(&self) -> String {
        crate::workflow::picture::text(&self.state)
    }
}
