//! Text that comes in pieces cut anywhere goes out as soon as nothing that follows can change it.
//!
//! The unit is the line: no rule looks over a line feed to the right. A private key is the one thing that spans
//! lines and is held until it ends. A line without end is cut at a place that its own content decides, so the same
//! text gives the same output however it was cut on its way here.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::pem::{self, Extent};
use super::policy::Mode;
use super::redact::{redact, settle};
use super::rule::RuleId;
use super::scan::{Finding, LEFT, Scratch, scan};
use super::{Guard, Kind, Numbering, Report, Sanitized};

/// The longest line that is looked at whole.
const WINDOW: usize = 16 * 1024;
/// In a longer line, what is this near to the end of the window is looked at again with what follows.
const OVERLAP: usize = 2 * 1024;

/// What stands in place of a piece that the guard could not look at.
const FAULT: &str = "[GUARD_ERROR]";

/// Guards one stream of text.
#[derive(Debug)]
pub struct StreamGuard {
    guard: Guard,
    /// Up to [`LEFT`] bytes that went out before, then what is waiting.
    text: String,
    /// Where the waiting text begins.
    start: usize,
    scratch: Scratch,
    report: Report,
    /// Bytes that were dropped from the front of `text`.
    dropped: usize,
    /// Where findings are, when somebody wants to know.
    pub(super) places: Option<Vec<Place>>,
}

/// Where a finding was in the whole stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: Kind,
    pub(super) rule: RuleId,
    pub(super) decoded: bool,
}

impl StreamGuard {
    pub(super) fn new(guard: Guard) -> Self {
        let report = guard.report();
        Self {
            guard,
            text: String::new(),
            start: 0,
            scratch: Scratch::default(),
            report,
            dropped: 0,
            places: None,
        }
    }

    /// Takes a piece and gives back what is ready to go out, perhaps nothing.
    pub fn push(&mut self, piece: &str, numbering: &mut Numbering) -> Sanitized<String> {
        self.report.bytes_in += piece.len() as u64;
        self.text.push_str(piece);
        let mut out = String::new();
        self.drain(false, numbering, &mut out);
        self.forget();
        self.release(out)
    }

    /// Ends the stream: gives back the rest and what was found in all.
    pub fn finish(self, numbering: &mut Numbering) -> (Sanitized<String>, Report) {
        let (rest, report, _) = self.finish_with_places(numbering);
        (Sanitized::vouch(rest), report)
    }

    /// As [`StreamGuard::finish`], with the places that were asked for.
    pub(super) fn finish_with_places(mut self, numbering: &mut Numbering) -> (String, Report, Vec<Place>) {
        let mut out = String::new();
        self.drain(true, numbering, &mut out);
        let out = self.release(out).into_inner();
        (out, self.report, self.places.unwrap_or_default())
    }

    /// What was found so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    fn release(&mut self, out: String) -> Sanitized<String> {
        let out = if self.report.blocked { String::new() } else { out };
        self.report.bytes_out += out.len() as u64;
        Sanitized::vouch(out)
    }

    /// Drops what went out, but for the context that the rest may need.
    fn forget(&mut self) {
        if self.start > 4 * WINDOW || self.start == self.text.len() {
            let mut keep = self.start.saturating_sub(LEFT);
            while !self.text.is_char_boundary(keep) {
                keep -= 1;
            }
            self.text.drain(..keep);
            self.start -= keep;
            self.dropped += keep;
        }
    }

    fn drain(&mut self, last: bool, numbering: &mut Numbering, out: &mut String) {
        if self.report.mode == Mode::Off {
            out.push_str(&self.text[self.start..]);
            self.start = self.text.len();
            return;
        }
        while let Some(step) = self.next_step(last) {
            match step {
                Step::Lines(end) => self.pass(end, numbering, out),
                Step::Key(end) => {
                    let finding = pem::finding(self.start, end);
                    self.emit(end, &[finding], numbering, out);
                }
                Step::LongLine(end) => self.pass_part(end, numbering, out),
            }
        }
    }

    /// What can be decided now, without anything that is still to come.
    fn next_step(&self, last: bool) -> Option<Step> {
        let bytes = self.text.as_bytes();
        let waiting = &bytes[self.start..];
        let window = &waiting[..waiting.len().min(WINDOW)];
        let (end, long) = match memchr::memrchr(b'\n', window) {
            Some(at) => (self.start + at + 1, false),
            None if waiting.len() >= WINDOW => {
                (self.start + floor_char(&self.text[self.start..], WINDOW), true)
            }
            None if last && !waiting.is_empty() => (self.text.len(), false),
            None => return None,
        };
        let mut from = self.start;
        while let Some(begin) = pem::begin(&bytes[from..end]) {
            match pem::extent(&bytes[from + begin..], last) {
                // What stands before the key is a piece of its own.
                Extent::Ends(_) | Extent::Open if begin + from > self.start => {
                    return Some(Step::Lines(from + begin));
                }
                Extent::Ends(len) => return Some(Step::Key(self.start + len)),
                Extent::Open => return None,
                Extent::NoKey(len) => from += begin + len,
            }
            if from >= end {
                break;
            }
        }
        Some(if long { Step::LongLine(end) } else { Step::Lines(end) })
    }

    /// Looks at whole lines and lets them out.
    fn pass(&mut self, end: usize, numbering: &mut Numbering, out: &mut String) {
        let findings = self.find(end);
        match findings {
            Some(findings) => {
                self.emit(end, &findings, numbering, out);
                self.scratch.findings = findings;
            }
            None => self.withhold(end, out),
        }
    }

    /// Looks at a window of a line that is longer, and lets out what the rest of the line cannot change.
    fn pass_part(&mut self, end: usize, numbering: &mut Numbering, out: &mut String) {
        let Some(mut findings) = self.find(end) else { return self.withhold(end, out) };
        let bytes = self.text.as_bytes();
        let half = self.start + (end - self.start) / 2;
        let mut cut = end - OVERLAP;
        // A place between words; a run of more than half a window without one is cut where it stands.
        if let Some(at) =
            bytes[half..cut].iter().rposition(|byte| byte.is_ascii_whitespace() || b",;\"'<>".contains(byte))
        {
            cut = half + at + 1;
        }
        if let Some(finding) = findings.iter().find(|finding| finding.start < cut && finding.end > cut) {
            // Not through the middle of a finding, unless it fills the window.
            cut = if finding.start > half { finding.start } else { finding.end };
        }
        while !self.text.is_char_boundary(cut) {
            cut -= 1;
        }
        findings.retain(|finding| finding.end <= cut);
        self.emit(cut, &findings, numbering, out);
        self.scratch.findings = findings;
    }

    /// The settled findings between here and `end`; nothing when the guard itself failed.
    fn find(&mut self, end: usize) -> Option<Vec<Finding>> {
        let (bytes, start, scratch) = (self.text.as_bytes(), self.start, &mut self.scratch);
        let done = catch_unwind(AssertUnwindSafe(|| {
            scan(bytes, start, end, scratch);
            settle(&mut scratch.findings);
        }));
        done.ok().map(|()| std::mem::take(&mut self.scratch.findings))
    }

    fn emit(&mut self, end: usize, findings: &[Finding], numbering: &mut Numbering, out: &mut String) {
        let span = (self.start, end);
        let mut taken = Vec::new();
        redact(&self.guard, &self.text, span, findings, numbering, &mut self.report, out, &mut taken);
        if let Some(places) = &mut self.places {
            places.extend(taken.iter().map(|finding| Place {
                start: finding.start + self.dropped,
                end: finding.end + self.dropped,
                kind: finding.kind,
                rule: finding.rule,
                decoded: finding.decoded,
            }));
        }
        self.start = end;
    }

    /// The guard failed on this piece: it does not go out.
    fn withhold(&mut self, end: usize, out: &mut String) {
        self.report.errors += 1;
        out.push_str(FAULT);
        self.start = end;
    }
}

enum Step {
    /// Text up to a line feed, or to the end of the stream.
    Lines(usize),
    /// A private key up to its end.
    Key(usize),
    /// The first window of a longer line.
    LongLine(usize),
}

fn floor_char(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
