//! `executions show --explain`: where a run's time went and why it ended, from its row and its context's.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::store::{ContextRow, ExecutionRow, ExecutionStatus};

/// Times in milliseconds, by the database's clock. Unknown times are left out.
pub(super) fn explain(row: &ExecutionRow, context: Option<&ContextRow>, now: DateTime<Utc>) -> Value {
    let until = |from: DateTime<Utc>, to: Option<DateTime<Utc>>| {
        to.map(|to| (to - from).max(TimeDelta::zero()).num_milliseconds())
    };
    let waited = until(row.created_at, row.started_at.or(row.finished_at).or(Some(now)));
    // A sandbox that became ready between the ask and the start was made or waited for by this run.
    let made = context.filter(|context| context.ready_at.is_some_and(|at| at > row.created_at));
    let making = made.and_then(|made| {
        let ready = made.ready_at.filter(|at| row.started_at.is_none_or(|started| *at <= started))?;
        until(made.created_at.max(row.created_at), Some(ready))
    });
    let over = row.started_at.and_then(|started| until(started, row.finished_at.or(Some(now))));
    let after = over.zip(row.duration_ms).map(|(over, ran)| (over - ran).max(0));
    let longest = [
        ("waiting for its turn on the context", waited.map(|waited| waited - making.unwrap_or(0))),
        ("waiting for a sandbox to be made", making),
        ("running in the sandbox", row.duration_ms.or(over)),
        ("sending, guarding and recording", after),
    ];
    let longest = longest.into_iter().filter_map(|(what, ms)| Some((what, ms?))).max_by_key(|(_, ms)| *ms);
    json!({
        "status": row.status,
        "waitedMs": waited.map(|waited| waited - making.unwrap_or(0)),
        "makingSandboxMs": making,
        "ranMs": row.duration_ms,
        "aroundItMs": after,
        "mostOfIt": longest.map(|(what, _)| what),
        "why": why(row),
        "error": row.error,
        "exitCode": row.exit_code,
        "contextNow": context.map(|context| match context.end_reason {
            Some(reason) => format!("{} ({reason})", context.status),
            None => context.status.to_string(),
        }),
        "contextError": context.and_then(|context| context.last_error.clone()),
        "traceId": row.trace_id,
    })
}

fn why(row: &ExecutionRow) -> String {
    let code = row.exit_code.unwrap_or(0);
    match row.status {
        ExecutionStatus::Queued => "It waits: another run holds the context, or its sandbox is being made.".into(),
        ExecutionStatus::Running => "It runs.".into(),
        ExecutionStatus::Completed if code == 0 => "The code ended well.".into(),
        ExecutionStatus::Completed => format!("The code itself failed, with exit code {code}; its output says more."),
        ExecutionStatus::TimedOut => {
            "The code reached its deadline and was interrupted; the call can set a longer timeout_ms.".into()
        }
        ExecutionStatus::Cancelled if row.started_at.is_none() => "Its caller disconnected before it began.".into(),
        ExecutionStatus::Cancelled => "Its caller, or an operator, asked for it to stop.".into(),
        ExecutionStatus::Died => {
            "The interpreter or the sandbox ended during the run: out of memory, killed by the code, or gone with its host.".into()
        }
        ExecutionStatus::Failed => "Pathbox could not carry it out; docs/errors.md explains the code in `error`.".into(),
        ExecutionStatus::Interrupted if row.started_at.is_none() => {
            "Its caller cancelled it before its turn came; it never ran.".into()
        }
        ExecutionStatus::Interrupted => {
            "The replica that ran it died or was cut off; the code may have had effects and was not repeated.".into()
        }
    }
}
