//! The life of a sandbox as the host saw it, for the logs of the API: never the output of programs, and no secret.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use chrono::{DateTime, TimeDelta, Utc};

use crate::domain::lock;

/// The latest that is kept.
const KEPT: usize = 200;

/// The events of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    /// A moment on two clocks, from when it was someone's.
    began: OnceLock<(Instant, DateTime<Utc>)>,
    notes: Mutex<VecDeque<Note>>,
}

#[derive(Debug, Clone)]
struct Note {
    at: Instant,
    level: Level,
    text: String,
}

/// One line.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) at: DateTime<Utc>,
    pub(crate) level: Level,
    pub(crate) text: String,
}

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

impl Level {
    pub(crate) const ALL: [Self; 4] = [Self::Debug, Self::Info, Self::Warn, Self::Error];

    /// As the API names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

impl Journal {
    /// From now on entries have times.
    pub(crate) fn begin(&self, now: DateTime<Utc>) {
        let _ = self.began.set((Instant::now(), now));
    }

    pub(crate) fn note(&self, level: Level, text: impl Into<String>) {
        let note = Note { at: Instant::now(), level, text: text.into() };
        let mut notes = lock(&self.notes);
        if notes.len() == KEPT {
            notes.pop_front();
        }
        notes.push_back(note);
    }

    /// The entries, oldest first.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let Some((began, clock)) = self.began.get().copied() else { return Vec::new() };
        let since = |at: Instant| match at.checked_duration_since(began) {
            Some(after) => TimeDelta::from_std(after).unwrap_or_default(),
            None => -TimeDelta::from_std(began.duration_since(at)).unwrap_or_default(),
        };
        let notes = lock(&self.notes).clone();
        notes
            .into_iter()
            .map(|Note { at, level, text }| Line { at: clock + since(at), level, text })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_lines_are_kept_in_their_order() {
        let journal = Journal::default();
        journal.note(Level::Warn, "before it was somebody's");
        assert!(journal.lines().is_empty());
        let now = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
        journal.begin(now);
        for n in 0..=KEPT {
            journal.note(Level::Info, n.to_string());
        }
        let lines = journal.lines();
        assert_eq!((lines.len(), &*lines[0].text, &*lines[KEPT - 1].text), (KEPT, "1", "200"));
        assert!(lines.is_sorted_by_key(|line| line.at) && lines[0].at >= now);
    }
}
