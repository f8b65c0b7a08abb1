//! Limits of the sandbox, recognised in error messages of programs.
//!
//! A shell, and any program that another has started, reports a full disk or a failed fork only in a sentence of the
//! C library's. So what a failed execution wrote is read for those, line by line. A program that prints such a line without
//! having met the limit misleads only the reader of its own execution's result.

/// The end of a line that is looked at, in bytes.
const TAIL_MAX: usize = 512;
/// Shorter lines cannot be a complaint.
const TAIL_MIN: usize = "MemoryError".len();

/// The complaints so far.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    /// The line that has not ended, or its end.
    line: String,
    found: Vec<&'static str>,
}

impl Complaints {
    /// Reads more output.
    pub(super) fn read(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            if self.line.is_empty() && piece.len() < TAIL_MIN && piece.ends_with('\n') {
                continue; // a flood is often one of short lines
            }
            let tail = &piece[piece.floor_char_boundary(piece.len().saturating_sub(TAIL_MAX))..];
            let is_whole = piece.ends_with('\n');
            if is_whole && self.line.is_empty() {
                self.add(limit_in(tail));
                continue;
            }
            if self.line.len() > TAIL_MAX {
                self.line.drain(..self.line.floor_char_boundary(self.line.len() - TAIL_MAX));
            }
            self.line.push_str(tail);
            if is_whole {
                let line = std::mem::take(&mut self.line);
                self.add(limit_in(&line));
            }
        }
    }

    /// The limits that were named, as the reasons of a result.
    pub(super) fn found(&mut self) -> &[&'static str] {
        self.add(limit_in(&self.line));
        &self.found
    }

    fn add(&mut self, reason: Option<&'static str>) {
        if let Some(reason) = reason.filter(|reason| !self.found.contains(reason)) {
            self.found.push(reason);
        }
    }
}

/// The limit that a line complains of: GNU programs and shells, Python and Node.js as someone's child.
fn limit_in(line: &str) -> Option<&'static str> {
    let line = line.trim_end();
    if line.len() < TAIL_MIN {
        return None;
    }
    let ends = |all: &[&str]| all.iter().any(|end| line.ends_with(end));
    let has = |text: &str| line.contains(text);
    if ends(&["No space left on device", "Disk quota exceeded", "File too large"]) || has("Error: ENOSPC:") {
        return Some("disk_full");
    }
    let fork_failed = ends(&["Cannot fork", "can't start new thread"])
        || ends(&["Resource temporarily unavailable"]) && has("fork")
        || has("spawn ") && ends(&["EAGAIN"]);
    if fork_failed {
        return Some("too_many_processes");
    }
    let no_memory = ends(&["Cannot allocate memory", "memory exhausted", "std::bad_alloc"])
        || ends(&["MemoryError"]) && !has(" ")
        || has("JavaScript heap out of memory")
        || has("alloc: cannot allocate ") && ends(&[" bytes"]);
    no_memory.then_some("oom")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_messages_of_programs_about_a_limit_are_recognised() {
        for (line, limit) in [
            ("head: error writing 'standard output': No space left on device", Some("disk_full")),
            ("bash: echo: write error: No space left on device\r", Some("disk_full")),
            ("OSError: [Errno 27] File too large", Some("disk_full")),
            ("Error: ENOSPC: no space left on device, write", Some("disk_full")),
            ("/bin/sh: 0: Cannot fork", Some("too_many_processes")),
            ("bash: fork: retry: Resource temporarily unavailable", Some("too_many_processes")),
            ("RuntimeError: can't start new thread", Some("too_many_processes")),
            ("Error: spawn sleep EAGAIN", Some("too_many_processes")),
            ("bash: xrealloc: cannot allocate 56000128 bytes", Some("oom")),
            ("MemoryError", Some("oom")),
            ("sort: memory exhausted", Some("oom")),
            ("  what():  std::bad_alloc", Some("oom")),
            (
                "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
                Some("oom"),
            ),
            ("read: Resource temporarily unavailable", None),
            ("No space left on device was logged yesterday", None),
            ("catch MemoryError", None),
            ("", None),
        ] {
            assert_eq!(limit_in(line), limit, "{line}");
        }
    }

    #[test]
    fn a_complaint_is_found_however_the_output_is_cut() {
        let text = format!("é\n{}: No space left on device\nx: Cannot fork", "é".repeat(2000));
        let chars: Vec<char> = text.chars().collect();
        for every in [1, 2, 3, 7, 100, 511, 4000] {
            let mut complaints = Complaints::default();
            for piece in chars.chunks(every) {
                complaints.read(&piece.iter().collect::<String>());
            }
            assert_eq!(complaints.found(), ["disk_full", "too_many_processes"], "{every}");
            assert!(complaints.line.len() <= 3 * TAIL_MAX);
        }
    }
}
