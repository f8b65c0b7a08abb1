//! Workflows, the pure part: what a client may ask for, and what follows from what has happened.
//!
//! A workflow is a log of events. [`State`] is their fold, [`State::due`] what has to be done next. No clock, no I/O: the
//! driver of a workflow (`execution::workflows`) says what time it is and writes what happened. An event that cannot happen in a
//! state is refused, so the log of a workflow is consistent, however many replicas write it.

pub mod graph;
pub mod machine;
pub mod picture;

pub use graph::{Effects, Input, Lane, OnError, Plan, PlanError, Retry, Task, TaskKind, When};
pub use machine::{Action, Decision, Event, Phase, Refused, Running, State, Status, TaskState};
