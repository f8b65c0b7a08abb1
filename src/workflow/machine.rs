//! From what has happened to what is to be done: [`State`] is the fold of a workflow's events, [`State::due`] the next actions.
//!
//! An ended task never changes. A task with other effects is started a second time only by a decision. What a
//! replica says of a task counts while the task is on the attempt, and under the epoch, that this replica began.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::ExecutionId;

use super::graph::{Effects, Lane, MAX_ITEMS, OnError, Plan, TaskKind};

/// How often a task may be cut off before a decision is needed.
const MAX_INTERRUPTIONS: u32 = 10;

/// Where a workflow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Tasks begin as they become ready.
    Running,
    /// None begins.
    Paused,
    /// What runs is being stopped.
    Aborting,
    /// Every task has ended.
    Completed,
    /// A task failed whose `on_error` is `fail`.
    Failed,
    /// It was stopped.
    Aborted,
}

impl Status {
    /// The word in rows and results.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Aborting => "aborting",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
        }
    }

    /// Whether nothing can happen any more.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Aborted)
    }
}

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It waits for what it needs, for a place, or for a retry.
    Pending,
    /// It waits for a person's approval.
    Approval,
    /// It is in progress.
    Running,
    /// Its items are.
    Expanded,
    /// It was cut off, and what it did is not known: it waits for a decision.
    Unknown,
    /// It has a result.
    Succeeded,
    /// It has none.
    Failed,
    /// It was not needed, or could not be had.
    Skipped,
    /// The workflow was stopped.
    Aborted,
}

impl Phase {
    /// Whether it stays so.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Skipped | Self::Aborted)
    }

    /// Whether it can no longer be replaced or dropped.
    pub fn has_begun(self) -> bool {
        !matches!(self, Self::Pending | Self::Approval)
    }

    /// The word in results.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approval => "approval",
            Self::Running => "running",
            Self::Expanded => "running",
            Self::Unknown => "unknown",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Aborted => "aborted",
        }
    }
}

/// A task, as far as it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskState {
    /// Where it is.
    pub phase: Phase,
    /// The plan's version that it comes from: a replaced task is another one.
    pub generation: u32,
    /// Runs that were begun.
    pub attempt: u32,
    /// Of these, the ones that failed.
    pub failures: u32,
    /// Of these, the ones that were cut off.
    pub interruptions: u32,
    /// The lease of its driver.
    pub epoch: i64,
    /// Not before this time, in milliseconds since 1970.
    pub not_before: i64,
    /// Whether a person has approved it.
    pub approved: bool,
    /// The definition of its tool that a person has confirmed, where the tool asks for that.
    pub confirmed: Option<String>,
    /// The items of a `for_each`.
    pub items: u32,
    /// Why it was skipped, failed or is unknown, or that its sandbox had lost its state.
    pub reason: Option<String>,
    /// When its phase last changed, in milliseconds since 1970.
    pub at: i64,
    /// Bytes of its result.
    pub bytes: u64,
    /// Its result is one of the cache.
    pub cached: bool,
    /// The run that computed its result.
    pub execution: Option<ExecutionId>,
    /// Files that it left: where each is kept, by name.
    pub artifacts: BTreeMap<String, String>,
}

/// What one task is on: a report about it names the run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Running {
    /// The task, or one item of it.
    pub task: String,
    /// Which run.
    pub attempt: u32,
    /// Under which lease.
    pub epoch: i64,
}

/// What becomes of a task that is `unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// It is run again.
    Retry,
    /// It did what it should; the result came with the decision.
    Accept,
    /// It failed.
    GiveUp,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The workflow was asked for. Always the first.
    Planned {
        /// The plan.
        plan: Plan,
    },
    /// A run of a task began.
    Started {
        /// Which.
        run: Running,
    },
    /// A replica goes on with a run that another began.
    Adopted {
        /// The task.
        task: String,
        /// The new lease.
        epoch: i64,
    },
    /// A `for_each` became its items.
    Expanded {
        /// The task.
        task: String,
        /// How many.
        items: u32,
    },
    /// A task has a result.
    Completed {
        /// Which run; of a `for_each` the whole, attempt 0.
        run: Running,
        /// Bytes of the result.
        bytes: u64,
        /// It is one of the cache.
        #[serde(default)]
        cached: bool,
        /// The run that computed it, where there is a record of one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        execution: Option<ExecutionId>,
        /// Files that it left: where each is kept, by name.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        artifacts: BTreeMap<String, String>,
        /// What became of the state that it should have found in its sandbox, if it was lost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A run failed.
    Failed {
        /// Which.
        run: Running,
        /// Why.
        error: String,
        /// Whether another run could do better.
        retry: bool,
    },
    /// A run was cut off: its replica died, or ended.
    Interrupted {
        /// Which.
        run: Running,
    },
    /// A run was stopped.
    Stopped {
        /// Which.
        run: Running,
    },
    /// A task waits for a person.
    Waiting {
        /// The task.
        task: String,
        /// What for, unless the plan says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A task that could begin waits for something else, such as a tool server that is starting.
    Delayed {
        /// The task.
        task: String,
        /// For what.
        reason: String,
    },
    /// A person approved it.
    Approved {
        /// The task.
        task: String,
        /// Who.
        by: String,
        /// The definition of its tool, where the tool asks a person.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        confirmed: Option<String>,
    },
    /// A person refused it.
    Refused {
        /// The task.
        task: String,
        /// Who.
        by: String,
    },
    /// A person decided about a task that is unknown.
    Decided {
        /// The task.
        task: String,
        /// What.
        decision: Decision,
        /// Who.
        by: String,
    },
    /// A task is not needed, or a value that it refers to is not there.
    Skipped {
        /// The task.
        task: String,
        /// Why.
        reason: String,
    },
    /// A task cannot run: what it refers to is not of the right form.
    Unusable {
        /// The task.
        task: String,
        /// Why.
        reason: String,
    },
    /// Nothing begins any more.
    Paused {
        /// Who.
        by: String,
    },
    /// It goes on.
    Resumed {
        /// Who.
        by: String,
    },
    /// It is being stopped.
    Aborting {
        /// Who, or the time limit.
        by: String,
    },
    /// What has not begun was changed.
    Replanned {
        /// The whole new plan.
        plan: Plan,
        /// Who.
        by: String,
    },
    /// It has ended.
    Ended {
        /// How.
        status: Status,
    },
}

/// An event that cannot happen now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Look at what it refers to, and begin it, skip it, or ask.
    Begin(String),
    /// A run of another lease: go on with it, or say that it was cut off.
    Adopt(Running),
    /// All items have ended: put their results together.
    Collect(String),
    /// Stop a run.
    Stop(Running),
    /// The time limit has ended.
    Abort,
    /// Report that it has ended.
    End(Status),
    /// Nothing before this time, in milliseconds since 1970.
    Wait(i64),
}

/// The fold of a workflow's events.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// Where it is.
    pub status: Status,
    /// What is to be done in all.
    pub plan: Plan,
    /// How often it was changed, from 1.
    pub version: u32,
    /// How far each task is; items of a `for_each` as `id[0]`.
    pub tasks: BTreeMap<String, TaskState>,
    /// When it has to be over, in milliseconds since 1970.
    pub deadline: i64,
    /// The number of events.
    pub seq: i64,
}

fn refuse<T>(problem: String) -> Result<T, Refused> {
    Err(Refused(problem))
}

fn new_task(generation: u32, at: i64) -> TaskState {
    TaskState {
        phase: Phase::Pending,
        generation,
        attempt: 0,
        failures: 0,
        interruptions: 0,
        epoch: 0,
        not_before: 0,
        approved: false,
        confirmed: None,
        items: 0,
        reason: None,
        at,
        bytes: 0,
        cached: false,
        execution: None,
        artifacts: BTreeMap::new(),
    }
}

impl State {
    /// The state after the first event.
    ///
    /// # Errors
    /// [`Refused`] when it is not [`Event::Planned`] with a plan that holds.
    pub fn begin(event: &Event, at: i64) -> Result<Self, Refused> {
        let Event::Planned { plan } = event else { return refuse("a workflow begins with its plan".into()) };
        plan.check().map_err(|error| Refused(error.to_string()))?;
        let tasks = plan.tasks.iter().map(|task| (task.id.clone(), new_task(1, at))).collect();
        let deadline = at.saturating_add(i64::try_from(plan.timeout_ms).unwrap_or(i64::MAX));
        Ok(Self { status: Status::Running, plan: plan.clone(), version: 1, tasks, deadline, seq: 1 })
    }

    /// Takes an event that happened at `at`. On an error the state is as before.
    ///
    /// # Errors
    /// [`Refused`] names the state that the event does not fit.
    #[expect(clippy::too_many_lines, reason = "a table: each event, and what it does")]
    pub fn apply(&mut self, event: &Event, at: i64) -> Result<(), Refused> {
        if self.status.is_over() {
            return refuse(format!("the workflow is {}", self.status.as_str()));
        }
        match event {
            Event::Planned { .. } => return refuse("a workflow is planned once".into()),
            Event::Started { run } => self.started(run, at)?,
            Event::Adopted { task, epoch } => {
                let state = self.in_phase(task, &[Phase::Running])?;
                if *epoch <= state.epoch {
                    return refuse(format!("task `{task}` is under lease {}", state.epoch));
                }
                state.epoch = *epoch;
            }
            Event::Expanded { task, items } => self.expanded(task, *items, at)?,
            Event::Completed { run, bytes, cached, execution, artifacts, reason } => {
                let whole = self.in_phase(&run.task, &[Phase::Running, Phase::Expanded])?;
                if whole.phase == Phase::Expanded {
                    self.all_items_over(&run.task)?;
                } else {
                    self.on_run(run)?;
                }
                let state = self.to(&run.task, Phase::Succeeded, at)?;
                (state.bytes, state.cached, state.execution) = (*bytes, *cached, *execution);
                state.artifacts.clone_from(artifacts);
                state.reason.clone_from(reason);
            }
            Event::Failed { run, error, retry } => self.failed(run, error, *retry, at)?,
            Event::Interrupted { run } => self.interrupted(run, at)?,
            Event::Stopped { run } => {
                if self.status != Status::Aborting {
                    return refuse(format!("the workflow is {}", self.status.as_str()));
                }
                self.on_run(run)?;
                self.to(&run.task, Phase::Aborted, at)?;
            }
            Event::Waiting { task, reason } => {
                self.in_phase(task, &[Phase::Pending])?;
                self.to(task, Phase::Approval, at)?.reason.clone_from(reason);
            }
            Event::Delayed { task, reason } => {
                self.in_phase(task, &[Phase::Pending])?.reason = Some(reason.clone());
            }
            Event::Approved { task, confirmed, .. } => {
                self.in_phase(task, &[Phase::Approval])?;
                let state = self.to(task, Phase::Pending, at)?;
                (state.approved, state.reason) = (true, None);
                state.confirmed.clone_from(confirmed);
            }
            Event::Refused { task, by } => {
                self.in_phase(task, &[Phase::Approval])?;
                self.to(task, Phase::Failed, at)?.reason = Some(format!("refused by {by}"));
            }
            Event::Decided { task, decision, by } => {
                self.in_phase(task, &[Phase::Unknown])?;
                let (phase, reason) = match decision {
                    Decision::Retry => (Phase::Pending, None),
                    Decision::Accept => (Phase::Succeeded, Some(format!("accepted by {by}"))),
                    Decision::GiveUp => (Phase::Failed, Some(format!("given up by {by}"))),
                };
                let state = self.to(task, phase, at)?;
                (state.reason, state.interruptions) = (reason, 0);
            }
            Event::Skipped { task, reason } => {
                self.in_phase(task, &[Phase::Pending])?;
                self.to(task, Phase::Skipped, at)?.reason = Some(reason.clone());
            }
            Event::Unusable { task, reason } => {
                self.in_phase(task, &[Phase::Pending, Phase::Expanded])?;
                self.to(task, Phase::Failed, at)?.reason = Some(reason.clone());
            }
            Event::Paused { .. } => self.switch(&[Status::Running], Status::Paused)?,
            Event::Resumed { .. } => self.switch(&[Status::Paused], Status::Running)?,
            Event::Aborting { .. } => {
                self.switch(&[Status::Running, Status::Paused], Status::Aborting)?;
            }
            Event::Replanned { plan, .. } => self.replanned(plan, at)?,
            Event::Ended { status } => self.ended(*status, at)?,
        }
        self.seq += 1;
        Ok(())
    }

    fn task_mut(&mut self, task: &str) -> Result<&mut TaskState, Refused> {
        self.tasks.get_mut(task).ok_or_else(|| Refused(format!("there is no task `{}`", shown(task))))
    }

    fn in_phase(&mut self, task: &str, phases: &[Phase]) -> Result<&mut TaskState, Refused> {
        let state = self.task_mut(task)?;
        if phases.contains(&state.phase) {
            return Ok(state);
        }
        refuse(format!("task `{task}` is {}", state.phase.as_str()))
    }

    fn to(&mut self, task: &str, phase: Phase, at: i64) -> Result<&mut TaskState, Refused> {
        let state = self.task_mut(task)?;
        (state.phase, state.at) = (phase, at);
        Ok(state)
    }

    fn switch(&mut self, from: &[Status], to: Status) -> Result<(), Refused> {
        if !from.contains(&self.status) {
            return refuse(format!("the workflow is {}", self.status.as_str()));
        }
        self.status = to;
        Ok(())
    }

    /// The state of the run that someone reports about, if that is the one in progress.
    fn on_run(&mut self, run: &Running) -> Result<&mut TaskState, Refused> {
        let state = self.in_phase(&run.task, &[Phase::Running])?;
        if (state.attempt, state.epoch) != (run.attempt, run.epoch) {
            return refuse(format!(
                "task `{}` is on run {} under lease {}",
                run.task, state.attempt, state.epoch
            ));
        }
        Ok(state)
    }

    fn started(&mut self, run: &Running, at: i64) -> Result<(), Refused> {
        if self.status != Status::Running {
            return refuse(format!("the workflow is {}", self.status.as_str()));
        }
        if !self.is_ready(&run.task, i64::MAX) || !self.lane_is_free(&run.task) {
            return refuse(format!("task `{}` is not ready", shown(&run.task)));
        }
        let state = self.in_phase(&run.task, &[Phase::Pending])?;
        if run.attempt != state.attempt + 1 {
            return refuse(format!("the next run of task `{}` is {}", run.task, state.attempt + 1));
        }
        (state.attempt, state.epoch, state.reason) = (run.attempt, run.epoch, None);
        self.to(&run.task, Phase::Running, at)?;
        Ok(())
    }

    fn expanded(&mut self, task: &str, items: u32, at: i64) -> Result<(), Refused> {
        if self.status != Status::Running || !self.is_ready(task, i64::MAX) {
            return refuse(format!("task `{}` is not ready", shown(task)));
        }
        let of_list = self.plan.task(task).is_some_and(|task| task.for_each.is_some());
        if !of_list || task.contains('[') || items as usize > MAX_ITEMS {
            return refuse(format!("task `{task}` has no list of {items} items"));
        }
        self.to(task, Phase::Expanded, at)?.items = items;
        let whole = self.tasks.get(task).cloned().unwrap_or_else(|| new_task(1, at));
        for item in 0..items {
            let (approved, confirmed) = (whole.approved, whole.confirmed.clone());
            let state = TaskState { approved, confirmed, ..new_task(whole.generation, at) };
            self.tasks.insert(format!("{task}[{item}]"), state);
        }
        Ok(())
    }

    fn all_items_over(&self, task: &str) -> Result<(), Refused> {
        let items = self.tasks.get(task).map_or(0, |state| state.items);
        let over =
            |item: u32| self.tasks.get(&format!("{task}[{item}]")).is_some_and(|item| item.phase.is_over());
        match (0..items).find(|item| !over(*item)) {
            Some(item) => refuse(format!("item `{task}[{item}]` has not ended")),
            None => Ok(()),
        }
    }

    fn failed(&mut self, run: &Running, error: &str, retry: bool, at: i64) -> Result<(), Refused> {
        let failures = self.on_run(run)?.failures + 1;
        let task = self.plan.task(&run.task);
        let (most, backoff) = task.map_or((1, 0), |task| (task.max_attempts(), task.backoff_ms(failures)));
        let again = self.status != Status::Aborting;
        let state = self.on_run(run)?;
        state.failures = failures;
        state.reason = Some(error.to_owned());
        let again = again && retry && failures < most;
        if again {
            state.not_before = at.saturating_add(i64::try_from(backoff).unwrap_or(i64::MAX));
        }
        self.to(&run.task, if again { Phase::Pending } else { Phase::Failed }, at)?;
        Ok(())
    }

    /// What is known to do no harm is run again, a task with other effects waits for a decision.
    fn interrupted(&mut self, run: &Running, at: i64) -> Result<(), Refused> {
        let effects = self.plan.task(&run.task).map_or(Effects::Other, super::Task::effects);
        let aborting = self.status == Status::Aborting;
        let state = self.on_run(run)?;
        state.interruptions += 1;
        let phase = match effects {
            Effects::Other => Phase::Unknown,
            _ if aborting => Phase::Aborted,
            _ if state.interruptions > MAX_INTERRUPTIONS => Phase::Unknown,
            _ => Phase::Pending,
        };
        if phase == Phase::Unknown {
            state.reason = Some("it was cut off, and its effects are unknown".into());
        }
        self.to(&run.task, phase, at)?;
        Ok(())
    }

    /// What has begun stays as it is, in the plan too.
    fn replanned(&mut self, plan: &Plan, at: i64) -> Result<(), Refused> {
        if self.status == Status::Aborting {
            return refuse("the workflow is aborting".into());
        }
        plan.check().map_err(|error| Refused(error.to_string()))?;
        for task in &self.plan.tasks {
            let begun =
                self.tasks.get(&task.id).is_some_and(|state| state.phase.has_begun() || state.attempt > 0);
            let same = plan.task(&task.id) == Some(task);
            if begun && !same {
                return refuse(format!("task `{}` has begun and cannot be changed", task.id));
            }
        }
        // The order within a sandbox follows from the plan: what has begun must not have to wait for what has not.
        let needs = plan.needs();
        for (id, state) in &self.tasks {
            let waits_for = needs.get(id.as_str()).into_iter().flatten();
            let mut new =
                waits_for.filter(|need| !self.tasks.get(**need).is_some_and(|need| need.phase.has_begun()));
            if state.phase.has_begun()
                && let Some(need) = new.next()
            {
                return refuse(format!("task `{id}` has begun, and would now need `{need}`"));
            }
        }
        self.version += 1;
        let mut tasks = BTreeMap::new();
        for task in &plan.tasks {
            let kept = self.tasks.get(&task.id).filter(|_| self.plan.task(&task.id) == Some(task));
            tasks.insert(task.id.clone(), kept.cloned().unwrap_or_else(|| new_task(self.version, at)));
            for item in 0..kept.map_or(0, |state| state.items) {
                let id = format!("{}[{item}]", task.id);
                tasks.extend(self.tasks.get(&id).cloned().map(|state| (id, state)));
            }
        }
        let lasts = i64::try_from(plan.timeout_ms).unwrap_or(i64::MAX)
            - i64::try_from(self.plan.timeout_ms).unwrap_or(i64::MAX);
        self.deadline = self.deadline.saturating_add(lasts);
        (self.plan, self.tasks) = (plan.clone(), tasks);
        Ok(())
    }

    fn ended(&mut self, status: Status, at: i64) -> Result<(), Refused> {
        if self.end() != Some(status) {
            return refuse("the workflow has not ended".into());
        }
        let rest = if status == Status::Aborted { Phase::Aborted } else { Phase::Skipped };
        for state in self.tasks.values_mut() {
            if matches!(state.phase, Phase::Pending | Phase::Approval | Phase::Expanded) {
                (state.phase, state.at) = (rest, at);
            }
        }
        self.status = status;
        Ok(())
    }

    /// How it has ended, if it is.
    fn end(&self) -> Option<Status> {
        let any = |phase: Phase| self.tasks.values().any(|task| task.phase == phase);
        if any(Phase::Running) {
            return None;
        }
        match self.status {
            Status::Aborting => Some(Status::Aborted),
            _ if self.has_failed() => Some(Status::Failed),
            _ if self.tasks.values().all(|task| task.phase.is_over()) => Some(Status::Completed),
            _ => None,
        }
    }

    /// Whether a task failed that takes the workflow with it.
    fn has_failed(&self) -> bool {
        let fails = |id: &str| self.plan.task(id).is_none_or(|task| task.on_error == OnError::Fail);
        self.tasks.iter().any(|(id, state)| state.phase == Phase::Failed && fails(id))
    }

    /// Whether what a task needs has ended, and no pause is left.
    fn is_ready(&self, id: &str, now: i64) -> bool {
        let Some(state) = self.tasks.get(id) else { return false };
        if state.phase != Phase::Pending || state.not_before > now {
            return false;
        }
        let over = |need: &str| self.tasks.get(need).is_some_and(|need| need.phase.is_over());
        match id.split_once('[') {
            Some((whole, _)) => self.tasks.get(whole).is_some_and(|whole| whole.phase == Phase::Expanded),
            None => self.plan.needs().get(id).into_iter().flatten().all(|need| over(need)),
        }
    }

    fn lane_is_free(&self, id: &str) -> bool {
        let lane = |id: &str| self.plan.task(id).map_or(Lane::Alone, super::Task::lane);
        let own = lane(id);
        own == Lane::Alone
            || !self.tasks.iter().any(|(other, state)| state.phase == Phase::Running && lane(other) == own)
    }

    /// What is to be done now, by the holder of the lease `epoch`. Empty: nothing until something else happens.
    pub fn due(&self, now: i64, epoch: i64) -> Vec<Action> {
        self.due_without(now, epoch, |_| false)
    }

    /// As [`Self::due`], as if tasks that are `held` could not begin yet: they take no place of others.
    pub fn due_without(&self, now: i64, epoch: i64, held: impl Fn(&str) -> bool) -> Vec<Action> {
        if self.status.is_over() {
            return Vec::new();
        }
        let running: Vec<Running> = self
            .tasks
            .iter()
            .filter(|(_, state)| state.phase == Phase::Running)
            .map(|(id, state)| Running { task: id.clone(), attempt: state.attempt, epoch: state.epoch })
            .collect();
        let mut due: Vec<Action> =
            running.iter().filter(|run| run.epoch != epoch).cloned().map(Action::Adopt).collect();
        if self.status == Status::Aborting {
            due.extend(running.iter().filter(|run| run.epoch == epoch).cloned().map(Action::Stop));
        }
        if let Some(status) = self.end() {
            due.push(Action::End(status));
            return due;
        }
        if self.status != Status::Aborting {
            if now >= self.deadline {
                due.push(Action::Abort);
                return due;
            }
            let expanded = self.tasks.iter().filter(|(_, state)| state.phase == Phase::Expanded);
            due.extend(
                expanded
                    .filter(|(id, _)| self.all_items_over(id).is_ok())
                    .map(|(id, _)| Action::Collect(id.clone())),
            );
        }
        if self.status == Status::Running && !self.has_failed() {
            due.extend(self.beginnings(now, running.len(), held).into_iter().map(Action::Begin));
        }
        if due.is_empty() && self.status != Status::Aborting {
            due.push(Action::Wait(self.next_time(now)));
        }
        due
    }

    /// The tasks that may begin now, in the plan's order, as far as there are places.
    fn beginnings(&self, now: i64, running: usize, held: impl Fn(&str) -> bool) -> Vec<String> {
        let needs = self.plan.needs();
        let over = |need: &str| self.tasks.get(need).is_some_and(|need| need.phase.is_over());
        let is_due = |id: &str| {
            self.tasks.get(id).is_some_and(|state| state.phase == Phase::Pending && state.not_before <= now)
        };
        let mut places = (self.plan.width as usize).saturating_sub(running);
        let mut lanes: Vec<Lane> = Vec::new();
        let mut begin = Vec::new();
        for task in &self.plan.tasks {
            let items = self.tasks.get(&task.id).map_or(0, |state| state.items);
            let whole = std::iter::once(task.id.clone())
                .filter(|id| needs.get(id.as_str()).into_iter().flatten().all(|need| over(need)));
            for id in whole.chain((0..items).map(|item| format!("{}[{item}]", task.id))) {
                if places == 0 {
                    return begin;
                }
                if !is_due(&id) || held(&id) || lanes.contains(&task.lane()) || !self.lane_is_free(&id) {
                    continue;
                }
                if task.lane() != Lane::Alone {
                    lanes.push(task.lane());
                }
                places -= 1;
                begin.push(id);
            }
        }
        begin
    }

    /// When something becomes due by itself.
    fn next_time(&self, now: i64) -> i64 {
        let pauses =
            self.tasks.values().filter(|state| state.phase == Phase::Pending).map(|state| state.not_before);
        let pauses = pauses.filter(|at| *at > now && self.status == Status::Running);
        pauses.min().map_or(self.deadline, |at| at.min(self.deadline))
    }

    /// `running`, or what a person would say: `waiting` when nothing runs and someone has to decide, `pausing` while a task
    /// still runs.
    pub fn shown_status(&self) -> &'static str {
        let any = |phases: &[Phase]| self.tasks.values().any(|task| phases.contains(&task.phase));
        match self.status {
            Status::Paused if any(&[Phase::Running]) => "pausing",
            Status::Running if !any(&[Phase::Running]) && any(&[Phase::Approval, Phase::Unknown]) => {
                "waiting"
            }
            status => status.as_str(),
        }
    }

    /// Whether a run may be begun again under its own idempotency key: code and analyses are recorded under it.
    pub fn is_keyed(&self, task: &str) -> bool {
        self.plan.task(task).is_some_and(|task| task.kind != TaskKind::McpTool)
    }
}

fn shown(task: &str) -> String {
    task.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const EPOCH: i64 = 1;

    fn planned(tasks: Value, width: u32) -> State {
        let plan = Plan { tasks: serde_json::from_value(tasks).unwrap(), width, timeout_ms: 1_000_000 };
        State::begin(&Event::Planned { plan }, 0).unwrap()
    }

    fn run(state: &State, task: &str) -> Running {
        let of = &state.tasks[task];
        Running { task: task.into(), attempt: of.attempt, epoch: of.epoch }
    }

    fn next_run(state: &State, task: &str) -> Running {
        Running { task: task.into(), attempt: state.tasks[task].attempt + 1, epoch: EPOCH }
    }

    fn completed(run: Running) -> Event {
        Event::Completed {
            run,
            bytes: 1,
            cached: false,
            execution: None,
            artifacts: BTreeMap::new(),
            reason: None,
        }
    }

    /// Each event that could be thought of in a state, fitting or not.
    fn events(state: &State) -> Vec<Event> {
        let by = || "p".to_owned();
        let mut all = vec![
            Event::Planned { plan: state.plan.clone() },
            Event::Paused { by: by() },
            Event::Resumed { by: by() },
            Event::Aborting { by: by() },
        ];
        all.extend(
            [Status::Completed, Status::Failed, Status::Aborted, Status::Running]
                .map(|status| Event::Ended { status }),
        );
        for (id, of) in &state.tasks {
            let (now, task) = (run(state, id), id.clone());
            let stale = Running { epoch: now.epoch - 1, ..now.clone() };
            all.extend([
                Event::Started { run: next_run(state, id) },
                Event::Adopted { task: task.clone(), epoch: of.epoch + 1 },
                Event::Expanded { task: task.clone(), items: 1 },
                completed(now.clone()),
                completed(stale.clone()),
                Event::Failed { run: now.clone(), error: "e".into(), retry: true },
                Event::Failed { run: now.clone(), error: "e".into(), retry: false },
                Event::Interrupted { run: now.clone() },
                Event::Interrupted { run: stale },
                Event::Stopped { run: now },
                Event::Waiting { task: task.clone(), reason: None },
                Event::Delayed { task: task.clone(), reason: "r".into() },
                Event::Approved { task: task.clone(), by: by(), confirmed: None },
                Event::Refused { task: task.clone(), by: by() },
                Event::Skipped { task: task.clone(), reason: "r".into() },
                Event::Unusable { task: task.clone(), reason: "r".into() },
            ]);
            all.extend(
                [Decision::Retry, Decision::Accept, Decision::GiveUp].map(|decision| Event::Decided {
                    task: task.clone(),
                    decision,
                    by: by(),
                }),
            );
        }
        all
    }

    /// Drives a state to its end as an engine and a patient person do.
    fn drive(mut state: State) -> State {
        let mut now = 0;
        for _ in 0..10_000 {
            let epoch = state.tasks.values().map(|task| task.epoch).max().unwrap_or(0).max(EPOCH);
            let due = state.due(now, epoch);
            let event = match due.first() {
                _ if state.status.is_over() => return state,
                Some(Action::Wait(at)) if *at < state.deadline => {
                    now = *at;
                    continue;
                }
                Some(Action::Begin(task))
                    if !state.tasks[task].approved && state.plan.task(task).unwrap().approve =>
                {
                    Event::Waiting { task: task.clone(), reason: None }
                }
                Some(Action::Begin(task))
                    if state.plan.task(task).unwrap().for_each.is_some() && !task.contains('[') =>
                {
                    Event::Expanded { task: task.clone(), items: 2 }
                }
                Some(Action::Begin(task)) => {
                    Event::Started { run: Running { epoch, ..next_run(&state, task) } }
                }
                Some(Action::Adopt(run)) => Event::Adopted { task: run.task.clone(), epoch },
                Some(Action::Collect(task)) => completed(run(&state, task)),
                Some(Action::Stop(run)) => Event::Stopped { run: run.clone() },
                Some(Action::Abort) => Event::Aborting { by: "time".into() },
                Some(Action::End(status)) => Event::Ended { status: *status },
                _ => {
                    let (id, of) = state
                        .tasks
                        .iter()
                        .find(|(_, of)| matches!(of.phase, Phase::Running | Phase::Unknown | Phase::Approval))
                        .map_or((String::new(), None), |(id, of)| (id.clone(), Some(of.phase)));
                    match of {
                        Some(Phase::Running) => completed(run(&state, &id)),
                        Some(Phase::Unknown) => {
                            Event::Decided { task: id, decision: Decision::GiveUp, by: "p".into() }
                        }
                        Some(_) => Event::Approved { task: id, by: "p".into(), confirmed: None },
                        None => Event::Resumed { by: "p".into() },
                    }
                }
            };
            state.apply(&event, now).unwrap_or_else(|error| panic!("{event:?}: {error}\n{state:#?}"));
        }
        panic!("no end: {state:#?}");
    }

    fn graphs() -> Vec<State> {
        let mut all = Vec::new();
        let options = [
            json!({"path": "fresh"}),
            json!({"path": "own"}),
            json!({"path": "own", "effects": "idempotent", "retry": {"max_attempts": 2}}),
            json!({"path": "fresh", "on_error": "continue"}),
            json!({"path": "own", "approve": true}),
            json!({"path": "fresh", "for_each": {"value": [1]}}),
        ];
        let task = |id: &str, more: &Value, needs: &[&str]| {
            let mut task = json!({"id": id, "type": "code_execution", "code": "1", "depends_on": needs});
            task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            task
        };
        for one in &options {
            all.push(planned(json!([task("a", one, &[])]), 2));
            for two in &options {
                for needs in [&[][..], &["a"][..]] {
                    all.push(planned(json!([task("a", one, &[]), task("b", two, needs)]), 2));
                }
            }
        }
        all
    }

    /// All graphs of one and two tasks over six kinds of task, each event in each state that five events lead to.
    #[test]
    fn every_state_reaches_an_end_and_ended_tasks_stay_ended() {
        let (mut states, mut pairs) = (0_u64, 0_u64);
        for first in graphs() {
            let mut known = BTreeSet::new();
            let mut queue = VecDeque::from([(first, 0)]);
            while let Some((state, depth)) = queue.pop_front() {
                if !known.insert(format!("{:?} {:?}", state.status, state.tasks)) {
                    continue;
                }
                states += 1;
                if !state.status.is_over() && known.len() % 7 == 0 {
                    assert!(drive(state.clone()).status.is_over());
                }
                for event in events(&state) {
                    pairs += 1;
                    let mut next = state.clone();
                    if next.apply(&event, 0).is_err() {
                        assert_eq!(next.tasks, state.tasks, "{event:?}");
                        assert_eq!(next.status, state.status, "{event:?}");
                        continue;
                    }
                    check_step(&state, &event, &next);
                    if depth < 4 {
                        queue.push_back((next, depth + 1));
                    }
                }
            }
        }
        assert!(states > 5_000 && pairs > 100_000, "{states} states, {pairs} pairs");
        println!("{states} states, {pairs} pairs");
    }

    fn check_step(before: &State, event: &Event, after: &State) {
        for (id, old) in &before.tasks {
            let new = &after.tasks[id];
            if old.phase.is_over() {
                assert_eq!(old, new, "{event:?} changed an ended task");
            }
            let is_other = before.plan.task(id).unwrap().effects() == Effects::Other;
            if is_other && old.phase == Phase::Running && new.phase == Phase::Pending {
                assert!(
                    matches!(event, Event::Failed { .. }),
                    "{event:?} lets a task with effects run again"
                );
            }
            if new.attempt > old.attempt {
                assert!(matches!(old.phase, Phase::Pending), "{event:?}");
                assert_eq!(before.status, Status::Running);
            }
        }
        let in_own = |state: &State| {
            state
                .tasks
                .iter()
                .filter(|(id, of)| {
                    of.phase == Phase::Running && state.plan.task(id).unwrap().lane() == Lane::Own
                })
                .count()
        };
        assert!(in_own(after) <= 1, "{event:?} lets two tasks into one sandbox");
    }

    #[test]
    fn a_cut_off_task_with_effects_waits_for_a_decision_and_others_run_again() {
        for (effects, phase) in
            [("other", Phase::Unknown), ("idempotent", Phase::Pending), ("none", Phase::Pending)]
        {
            let mut state =
                planned(json!([{"id": "a", "type": "mcp_tool", "tool": "s.t", "effects": effects}]), 1);
            state.apply(&Event::Started { run: next_run(&state, "a") }, 0).unwrap();
            assert_eq!(state.due(0, 2), [Action::Adopt(run(&state, "a"))]);
            state.apply(&Event::Interrupted { run: run(&state, "a") }, 0).unwrap();
            assert_eq!(state.tasks["a"].phase, phase);
        }
    }

    #[test]
    fn a_failed_run_is_tried_again_after_a_growing_pause() {
        let task = json!([{"id": "a", "type": "code_execution", "code": "1", "retry": {"max_attempts": 3, "backoff_ms": 100}}]);
        let mut state = planned(task, 1);
        for pause in [100, 200] {
            state.apply(&Event::Started { run: next_run(&state, "a") }, 0).unwrap();
            state.apply(&Event::Failed { run: run(&state, "a"), error: "e".into(), retry: true }, 0).unwrap();
            assert_eq!(state.due(0, EPOCH), [Action::Wait(pause)]);
        }
        state.apply(&Event::Started { run: next_run(&state, "a") }, 0).unwrap();
        state.apply(&Event::Failed { run: run(&state, "a"), error: "e".into(), retry: true }, 0).unwrap();
        assert_eq!(state.due(0, EPOCH), [Action::End(Status::Failed)]);
    }

    #[test]
    fn a_report_of_a_lost_lease_is_refused() {
        let mut state = planned(json!([{"id": "a", "type": "code_execution", "code": "1"}]), 1);
        state.apply(&Event::Started { run: next_run(&state, "a") }, 0).unwrap();
        let late = run(&state, "a");
        state.apply(&Event::Adopted { task: "a".into(), epoch: 2 }, 0).unwrap();
        assert!(state.apply(&completed(late), 0).is_err());
        state.apply(&completed(run(&state, "a")), 0).unwrap();
    }

    #[test]
    fn items_are_places_of_their_own_and_end_before_the_whole() {
        let list = json!([{"id": "a", "type": "code_execution", "code": "1", "path": "fresh", "for_each": {"value": [1, 2, 3]}}]);
        let mut state = planned(list, 2);
        assert_eq!(state.due(0, EPOCH), [Action::Begin("a".into())]);
        state.apply(&Event::Expanded { task: "a".into(), items: 3 }, 0).unwrap();
        assert_eq!(state.due(0, EPOCH), [Action::Begin("a[0]".into()), Action::Begin("a[1]".into())]);
        assert!(state.apply(&completed(run(&state, "a")), 0).is_err());
        assert_eq!(drive(state).status, Status::Completed);
    }

    #[test]
    fn events_are_read_back_as_they_were_written() {
        let state = planned(
            json!([{"id": "a", "type": "code_execution", "code": "1", "inputs": {"x": {"value": null}},
            "when": {"from": "b", "greater": 1.5}}, {"id": "b", "type": "mcp_tool", "tool": "s.t"}]),
            1,
        );
        let mut all = events(&state);
        all.push(Event::Planned { plan: state.plan.clone() });
        for event in all {
            let text = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Any valid graph ends, and every task of it has run.
        #[test]
        fn any_graph_ends(edges in proptest::collection::vec((0_usize..12, 0_usize..12), 0..30), lanes in 0_u32..4096, width in 1_u32..5) {
            let tasks: Vec<Value> = (0..12).map(|i| {
                let needs: BTreeSet<String> = edges.iter().filter(|(a, b)| *b == i && a < b).map(|(a, _)| format!("t{a}")).collect();
                json!({"id": format!("t{i}"), "type": "code_execution", "code": "1", "depends_on": needs,
                    "path": if lanes >> i & 1 == 1 { "own" } else { "fresh" }})
            }).collect();
            let end = drive(planned(Value::Array(tasks), width));
            prop_assert_eq!(end.status, Status::Completed);
            prop_assert!(end.tasks.values().all(|task| task.attempt == 1));
        }

        /// A replan leaves what has begun as it is, or is refused.
        #[test]
        fn replan_never_changes_tasks_that_have_begun(steps in proptest::collection::vec(0_usize..100, 0..20), keep in 0_u32..64, changed in 0_u32..64) {
            let tasks: Vec<Value> = (0..6).map(|i| {
                let needs: Vec<String> = (i % 2..i).step_by(2).map(|n| format!("t{n}")).collect();
                json!({"id": format!("t{i}"), "type": "code_execution", "code": "1", "depends_on": needs})
            }).collect();
            let mut state = planned(Value::Array(tasks), 2);
            for step in steps {
                let all = events(&state);
                let _ = state.apply(&all[step % all.len()], 0);
            }
            let mut plan = state.plan.clone();
            plan.tasks.retain(|task| keep >> task.id[1..].parse::<u32>().unwrap() & 1 == 1);
            for task in &mut plan.tasks {
                if changed >> task.id[1..].parse::<u32>().unwrap() & 1 == 1 {
                    task.code = Some("2".into());
                }
            }
            let before = state.clone();
            if state.apply(&Event::Replanned { plan, by: "p".into() }, 0).is_ok() {
                for (id, old) in before.tasks.iter().filter(|(_, old)| old.phase.has_begun()) {
                    prop_assert_eq!(Some(old), state.tasks.get(id));
                    prop_assert_eq!(before.plan.task(id), state.plan.task(id));
                }
                prop_assert!(drive(state).status.is_over());
            } else {
                prop_assert_eq!(before, state);
            }
        }
    }
}
