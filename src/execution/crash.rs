//! Places where a process may die, by name, so that a test can let it die at each.
//!
//! Only builds with debug assertions do anything here: `PATHBOX_CRASH_AT=<name>` aborts the process the first time that
//! it comes to that place. No destructor runs and nothing is flushed, as under `kill -9`.

/// Every place, in the order in which a call comes by.
pub const POINTS: &[&str] = &[
    "acquire.before",
    "acquire.answered",
    "create.claimed",
    "create.made",
    "create.before_ready",
    "create.reported",
    "create.failed",
    "run.held",
    "run.before_extend",
    "run.extended",
    "run.sent",
    "run.first_output",
    "run.ended",
    "run.interrupted",
    "run.before_numbers",
    "run.numbers_saved",
    "run.artifacts_kept",
    "record.before",
    "record.written",
    "finish.before_answer",
    "lost.before",
    "lost.marked",
    "end.before",
    "end.written",
    "reap.before",
    "reap.ended",
    "kill.claimed",
    "kill.sent",
    "kill.recorded",
    "reconcile.listed",
    "reconcile.compared",
    "reconcile.killed",
];

/// Places of a workflow's driver.
pub const WORKFLOW_POINTS: &[&str] = &[
    "workflow.claimed",
    "workflow.started",
    "workflow.ran",
    "workflow.kept",
    "workflow.recorded",
    "workflow.ended",
];

/// Where this process is to die, if anywhere.
#[derive(Debug, Clone, Default)]
pub struct CrashAt(Option<&'static str>);

impl CrashAt {
    /// Dies at the named place; an unknown name, or a build without debug assertions, never dies.
    pub fn named(name: Option<&str>) -> Self {
        if !cfg!(debug_assertions) {
            return Self(None);
        }
        Self(name.and_then(|name| all().find(|point| *point == name)))
    }

    /// Comes by a place; [`crash_point`] calls it.
    pub(super) fn at(&self, point: &'static str) {
        debug_assert!(all().any(|known| known == point), "{point} is not in the list");
        if self.0 == Some(point) {
            std::process::abort();
        }
    }
}

fn all() -> impl Iterator<Item = &'static str> {
    POINTS.iter().chain(WORKFLOW_POINTS).copied()
}

/// A place where a test lets this process die. Nothing is left of it in a release build.
macro_rules! crash_point {
    ($core:expr, $point:literal) => {
        if cfg!(debug_assertions) {
            $core.parts.crash.at($point);
        }
    };
}
pub(super) use crash_point;

#[cfg(test)]
mod tests {
    use super::*;

    /// A place that is listed and nowhere passed would be tested without being there.
    #[test]
    fn every_listed_place_is_passed_exactly_once_in_the_source() {
        let sources = [
            include_str!("acquire.rs"),
            include_str!("contexts.rs"),
            include_str!("provider.rs"),
            include_str!("reaper.rs"),
            include_str!("record.rs"),
            include_str!("run_code.rs"),
            include_str!("workflows/drive.rs"),
        ]
        .concat();
        for point in all() {
            assert_eq!(sources.matches(&format!(", \"{point}\")")).count(), 1, "{point}");
        }
    }
}
