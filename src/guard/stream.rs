//! Text that arrives in arbitrary pieces goes out as soon as nothing that follows can change it.
//!
//! The unit is the line: no rule looks past a line feed to the right. A private key is the only finding that spans
//! lines, and is held until it ends. An endless line is cut at a place that depends on its own content, so the same
//! text gives the same output however it was split on its way here.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::classes::{self, only};
use super::encoded::is_run;
use super::pem::{self, Extent};
use super::policy::{Action, Mode};
use super::redact::{Strings, Tools, redact, settle};
use super::scan::excuse::Judged;
use super::scan::{Finding, LEFT, Scratch, Watch, named_value, near, placeholder_around, scan};
use super::table::{self, Tables};
use super::{Guard, Numbering, Report, Sanitized};

/// A callback that sees text before it is dropped: the kept text, the offset of its start in the stream, how far into
/// it the output has come, the findings, and how each candidate was judged if that is requested.
pub(super) type Seen<'a> = dyn FnMut(&str, usize, usize, &[Finding], &[Judged]) + 'a;

/// The longest line that is scanned whole.
pub(super) const WINDOW: usize = 16 * 1024;
/// In a longer line, the text this near to the end of the window is scanned again with what follows.
const OVERLAP: usize = 2 * 1024;

/// How often a line is scanned again after something was replaced in it. Each round replaces more of it, and one
/// more is nearly always the last; a line crafted to need more than this is withheld.
const ROUNDS: usize = 32;

/// The replacement of a piece on which the guard failed.
pub(super) const FAULT: &str = "[GUARD_ERROR]";
/// The replacement of a line that needs too many rounds, and of binary content that does not match its format.
pub(super) const WITHHELD: &str = "[WITHHELD]";
/// The replacement of everything once a finding blocks the whole output.
const BLOCKED: &str = "";

/// Guards one stream of text.
#[derive(Debug)]
pub struct StreamGuard {
    engine: Engine,
    /// Up to [`LEFT`] bytes that went out before, then the waiting text.
    text: String,
    /// Where the waiting text begins.
    start: usize,
    /// How many bytes of the stream come before the kept text.
    forgotten: usize,
}

/// The state that processes a stream's text, wherever that is kept.
#[derive(Debug)]
pub(super) struct Engine {
    guard: Guard,
    scratch: Scratch,
    pub(super) report: Report,
    /// The last [`LEFT`] bytes that went out.
    tail: String,
    /// How many bytes went out since something was replaced; from [`LEFT`] on, the tail equals the original text.
    unchanged: usize,
    /// The same with the text that goes out next, to be scanned again.
    again: String,
    /// Whether the piece that goes out now contains no placeholder.
    plain: bool,
    /// Where the last finding that was replaced ended.
    replaced_to: usize,
    /// Whether the last replacement continues: a run longer than the window is hidden to its end.
    swallowing: bool,
    /// Whether the next text continues a line that was longer than the window.
    goes_on: bool,
    /// Whether the next text continues the line on which a private key ended.
    behind_key: bool,
    /// The JSON strings that are open at the end of the last piece.
    strings: Strings,
    /// The tables that are open.
    tables: Tables,
    /// Whether placeholders carry numbers.
    pub(super) numbered: bool,
    /// The places of findings, if requested.
    pub(super) places: Option<Vec<Finding>>,
    /// How the candidates were judged, if requested.
    judged: Vec<Judged>,
}

impl StreamGuard {
    pub(super) fn new(guard: Guard) -> Self {
        Self { engine: Engine::new(guard), text: String::new(), start: 0, forgotten: 0 }
    }

    /// A stream that passes each finding to the callback of [`Self::push_seen`].
    pub(super) fn seen(guard: Guard) -> Self {
        let mut stream = Self::new(guard);
        stream.engine.places = Some(Vec::new());
        stream
    }

    /// The same, with how each candidate was judged.
    pub(super) fn explained(guard: Guard) -> Self {
        let mut stream = Self::seen(guard);
        stream.engine.scratch.judged = Some(Vec::new());
        stream
    }

    /// Like [`Self::push`], or like [`Self::finish`] with the `last` piece. `see` is called before the text is dropped.
    pub(super) fn push_seen(
        &mut self,
        piece: &str,
        last: bool,
        numbering: &mut Numbering,
        see: &mut Seen<'_>,
    ) -> Sanitized<String> {
        self.engine.report.bytes_in += piece.len() as u64;
        self.text.push_str(piece);
        let mut out = String::new();
        self.start = self.engine.drain(&self.text, self.start, last, numbering, &mut out);
        let found = self.engine.places.as_mut().map(std::mem::take).unwrap_or_default();
        let judged = std::mem::take(&mut self.engine.judged);
        see(&self.text, self.forgotten, self.start, &found, &judged);
        self.forget();
        self.engine.release(out)
    }

    /// Takes a piece and returns what is ready to go out, perhaps nothing.
    pub fn push(&mut self, piece: &str, numbering: &mut Numbering) -> Sanitized<String> {
        self.push_seen(piece, false, numbering, &mut |_, _, _, _, _| ())
    }

    /// Ends the stream: returns the rest and everything that was found.
    pub fn finish(mut self, numbering: &mut Numbering) -> (Sanitized<String>, Report) {
        let out = self.push_seen("", true, numbering, &mut |_, _, _, _, _| ());
        (out, self.engine.report)
    }

    /// What was found so far.
    pub fn report(&self) -> &Report {
        &self.engine.report
    }

    /// Drops what went out, except for the context that the rest may need.
    fn forget(&mut self) {
        if self.start > 4 * WINDOW || self.start == self.text.len() {
            let keep = self.text.floor_char_boundary(self.start.saturating_sub(LEFT));
            self.text.drain(..keep);
            self.start -= keep;
            self.forgotten += keep;
        }
    }
}

impl Engine {
    pub(super) fn new(guard: Guard) -> Self {
        let report = guard.report();
        let numbered = guard.policy().numbered;
        Self {
            guard,
            scratch: Scratch::default(),
            report,
            tail: String::new(),
            again: String::new(),
            unchanged: LEFT,
            plain: false,
            replaced_to: 0,
            swallowing: false,
            goes_on: false,
            behind_key: false,
            strings: Strings::default(),
            tables: Tables::default(),
            numbered,
            places: None,
            judged: Vec::new(),
        }
    }

    /// Guards a whole text that has a name: a JSON value under its key.
    pub(super) fn named(&mut self, name: &str, text: &str, numbering: &mut Numbering) -> String {
        self.report.bytes_in += text.len() as u64;
        let mut out = self.named_once(name, text, numbering);
        // The text next to a placeholder may be the value that the name labels.
        if self.report.mode == Mode::Enforce && self.report.total() > 0 {
            let settled = (0..ROUNDS).any(|_| {
                let again = self.named_once(name, &out, numbering);
                let settled = again == out;
                out = again;
                settled
            });
            if !settled {
                self.report.withheld += 1;
                out = WITHHELD.to_owned();
            }
        }
        self.release(out).into_inner()
    }

    fn named_once(&mut self, name: &str, text: &str, numbering: &mut Numbering) -> String {
        let mut out = String::with_capacity(text.len());
        if self.report.mode == Mode::Off {
            out.push_str(text);
            return out;
        }
        (self.unchanged, self.goes_on, self.behind_key, self.swallowing) = (LEFT, false, false, false);
        (self.strings, self.tables) = (Strings::default(), Tables::default());
        self.tail.clear();
        let tail = name.char_indices().rev().take(64).last().map_or(0, |(at, _)| at);
        // The name as if it went out before, so that rules see it as a label.
        let whole = format!("{}: \"{text}", name[tail..].replace('\n', " "));
        let start = whole.len() - text.len();
        let guard = &self.guard;
        let found = catch_unwind(AssertUnwindSafe(|| {
            let mut findings = named_value(name, &whole, start, &guard.0.criteria);
            // An allowed finding must not keep the rest from being scanned.
            settled(guard, &mut findings);
            if !findings.is_empty() {
                guard.0.known.find(whole.as_bytes(), (start, whole.len()), &mut findings);
                settled(guard, &mut findings);
            }
            findings
        }));
        match found {
            Ok(findings) if findings.is_empty() => {
                self.drain(&whole, start, true, numbering, &mut out);
            }
            Ok(findings) => {
                self.plain = false;
                self.emit(&whole, (start, whole.len()), &findings, numbering, &mut out);
            }
            Err(_) => self.fail(&mut out),
        }
        out
    }

    /// Guards a whole text at once.
    pub(super) fn whole(&mut self, text: &str, numbering: &mut Numbering) -> String {
        self.report.bytes_in += text.len() as u64;
        let mut out = String::with_capacity(text.len() + text.len() / 64);
        self.drain(text, 0, true, numbering, &mut out);
        self.release(out).into_inner()
    }

    fn release(&mut self, out: String) -> Sanitized<String> {
        let out = if self.report.blocked { BLOCKED.to_owned() } else { out };
        self.report.bytes_out += out.len() as u64;
        Sanitized::vouch(out)
    }

    /// Lets out the part of `text[start..]` that is ready; returns where the rest begins.
    fn drain(
        &mut self,
        text: &str,
        start: usize,
        last: bool,
        numbering: &mut Numbering,
        out: &mut String,
    ) -> usize {
        if self.report.mode == Mode::Off {
            out.push_str(&text[start..]);
            return text.len();
        }
        let mut start = start;
        loop {
            if self.swallowing {
                let run = text.as_bytes()[start..].iter().take_while(|byte| is_run(**byte)).count();
                start += run;
                self.swallowing = start == text.len() && !last;
            }
            let Some(step) = next_step(text, start, last) else { break };
            // The name of a `Series` comes after its values.
            let step = match step {
                Step::Lines(end) if !last && text[..end].ends_with('\n') => {
                    let end = table::may_be_series(text, start, end).unwrap_or(end);
                    if end == start {
                        break;
                    }
                    Step::Lines(end)
                }
                step => step,
            };
            let (long, key) = (matches!(step, Step::LongLine(_)), matches!(step, Step::Key(_)));
            self.scratch.judged.iter_mut().for_each(Vec::clear);
            let (end, findings) = self.decided(text, start, step);
            self.plain = !key && self.scratch.plain;
            let inside = |judged: &Judged| (start..end).contains(&judged.finding.start);
            self.judged.extend(self.scratch.judged.iter_mut().flat_map(std::mem::take).filter(inside));
            match findings {
                Some(findings) => {
                    self.replaced_to = 0;
                    self.emit(text, (start, end), &findings, numbering, out);
                    self.swallowing = long
                        && self.report.mode == Mode::Enforce
                        && self.replaced_to == end
                        && is_run(text.as_bytes()[end - 1]);
                    self.scratch.findings = findings;
                }
                None => self.fail(out),
            }
            self.goes_on = long;
            self.behind_key = key && !text[..end].ends_with('\n');
            start = end;
        }
        start
    }

    /// The end of a step, and the settled findings in it; `None` when the guard itself failed.
    fn decided(&mut self, text: &str, start: usize, step: Step) -> (usize, Option<Vec<Finding>>) {
        match step {
            Step::Key(end) => {
                let mut findings = vec![pem::finding(start, end)];
                self.guard.0.known.find(text.as_bytes(), (start, end), &mut findings);
                settled(&self.guard, &mut findings);
                (end, Some(findings))
            }
            Step::Lines(end) => (end, self.find(text, start, end, true)),
            Step::LongLine(end) => match self.find(text, start, end, false) {
                Some(mut findings) => {
                    let cut = safe_cut(text, start, end, &findings);
                    let cut = self.find_in_tables(text, (start, cut), &mut findings);
                    findings.retain(|finding| finding.end <= cut);
                    (cut, Some(findings))
                }
                None => (end, None),
            },
        }
    }

    /// The guard failed on a piece: it does not go out.
    fn fail(&mut self, out: &mut String) {
        self.report.errors += 1;
        out.push_str(FAULT);
    }

    /// Reads the part of a longer line up to `cut` as part of a table: adds findings; returns a better place to cut.
    fn find_in_tables(
        &mut self,
        text: &str,
        (start, cut): (usize, usize),
        findings: &mut Vec<Finding>,
    ) -> usize {
        let goes_on = (self.goes_on || self.behind_key).then_some(self.strings);
        let Scratch { blocks, classified: (from, to), .. } = &mut self.scratch;
        let known = *from <= start && cut <= *to;
        if known {
            classes::cut(&text.as_bytes()[*from..cut], blocks);
        }
        let known = known.then_some((*from, &blocks[..]));
        let whole = self.tables.look(text, (start, cut), goes_on, &self.guard, known, findings);
        settled(&self.guard, findings);
        let crosses = |finding: &Finding| finding.start < whole && finding.end > whole;
        if whole > start && !findings.iter().any(crosses) { whole } else { cut }
    }

    /// The settled findings between `start` and `end`; `None` when the guard itself failed. Tables follow the text only the
    /// `first` time; text that is scanned again does not count as another row.
    fn find(&mut self, text: &str, start: usize, end: usize, first: bool) -> Option<Vec<Finding>> {
        let (scratch, guard, goes_on) = (&mut self.scratch, &self.guard, self.goes_on);
        let in_line = (goes_on || self.behind_key).then_some(self.strings);
        let tables = &mut self.tables;
        let done = catch_unwind(AssertUnwindSafe(|| {
            let watch = Watch { known: &guard.0.known, criteria: &guard.0.criteria };
            scan(text.as_bytes(), start, end, goes_on, watch, scratch);
            // No allow-list lets a known secret through.
            guard.0.known.find(text.as_bytes(), (start, end), &mut scratch.findings);
            if first {
                tables.look(
                    text,
                    (start, end),
                    in_line,
                    guard,
                    (scratch.classified == (start, end)).then_some((start, &scratch.blocks[..])),
                    &mut scratch.findings,
                );
            }
            settled(guard, &mut scratch.findings);
        }));
        done.ok().map(|()| std::mem::take(&mut self.scratch.findings))
    }

    /// Replaces what was found in a piece and lets it out.
    fn emit(
        &mut self,
        text: &str,
        (start, end): (usize, usize),
        findings: &[Finding],
        numbering: &mut Numbering,
        out: &mut String,
    ) {
        // Line by line, as if the text came so: numbers are issued in the same order.
        let (mut from, mut rest) = (start, findings);
        while from < end {
            // Clean lines at once, where the text before them cannot affect them.
            if self.unchanged >= LEFT {
                let next = rest.first().map_or(end, |finding| finding.start.max(from));
                let feed = memchr::memrchr(b'\n', &text.as_bytes()[from..next]);
                let clean = if next == end { end } else { feed.map_or(from, |feed| from + feed + 1) };
                if clean > from {
                    self.emit_part(text, (from, clean), &[], numbering, out);
                    from = clean;
                    continue;
                }
            }
            let line = memchr::memchr(b'\n', &text.as_bytes()[from..end]).map_or(end, |at| from + at + 1);
            let mut count = rest.iter().take_while(|finding| finding.start < line).count();
            // A key is one finding over many lines.
            let line = rest[..count].last().map_or(line, |last| line.max(last.end));
            count = rest.iter().take_while(|finding| finding.start < line).count();
            self.emit_part(text, (from, line), &rest[..count], numbering, out);
            (from, rest) = (line, &rest[count..]);
        }
    }

    /// Lets out one line, or several clean lines.
    ///
    /// The text is scanned once more after replacing: a value glued to another may become visible only when the
    /// first is gone. So guarding the output again changes nothing.
    fn emit_part(
        &mut self,
        text: &str,
        span: (usize, usize),
        findings: &[Finding],
        numbering: &mut Numbering,
        out: &mut String,
    ) {
        let before = out.len();
        let taken = self.replace(text, span, findings, true, numbering, out);
        if (taken.is_some() || self.unchanged < LEFT) && self.report.mode == Mode::Enforce {
            let settled = (0..ROUNDS).any(|_| !self.look_again(before, numbering, out));
            if !settled {
                let feed = out.ends_with('\n');
                out.truncate(before);
                out.push_str(WITHHELD);
                out.push_str(if feed { "\n" } else { "" });
                self.report.withheld += 1;
            }
        }
        match text.as_bytes()[..span.1].last() {
            Some(b'\n') => self.strings = Strings::default(),
            _ => self.strings.pass(text.as_bytes(), span, span.1),
        }
        let new = &out[before..];
        self.unchanged = if taken.is_none() { self.unchanged.saturating_add(new.len()) } else { 0 };
        self.tail.push_str(&new[new.floor_char_boundary(near(new.as_bytes()).0)..]);
        let keep = self.tail.floor_char_boundary(near(self.tail.as_bytes()).0);
        self.tail.drain(..keep);
        self.replaced_to = taken.unwrap_or(self.replaced_to);
    }

    /// Scans the end of `out` from `before` on and replaces its findings; whether there were any.
    fn look_again(&mut self, before: usize, numbering: &mut Numbering, out: &mut String) -> bool {
        let mut whole = std::mem::take(&mut self.again);
        whole.clear();
        whole.push_str(&self.tail);
        let from = whole.len();
        whole.push_str(&out[before..]);
        let more = self.find(&whole, from, whole.len(), false);
        if more.as_ref().is_none_or(|more| !more.is_empty()) {
            out.truncate(before);
        }
        let replaced = match more {
            Some(more) if more.is_empty() => None,
            Some(more) => self.replace(&whole, (from, whole.len()), &more, false, numbering, out),
            None => {
                self.fail(out);
                None
            }
        };
        self.again = whole;
        replaced.is_some()
    }

    fn replace(
        &mut self,
        text: &str,
        span: (usize, usize),
        findings: &[Finding],
        first: bool,
        numbering: &mut Numbering,
        out: &mut String,
    ) -> Option<usize> {
        let tools = Tools {
            guard: &self.guard,
            numbered: self.numbered,
            numbering,
            report: &mut self.report,
            // Later findings have other offsets in the original text.
            places: self.places.as_mut().filter(|_| first),
            plain: first && self.plain,
            strings: self.strings,
        };
        redact(tools, text, span, findings, out)
    }
}

/// Settles what was found in a piece.
fn settled(guard: &Guard, findings: &mut Vec<Finding>) {
    // An allowed finding must not widen one that is not.
    findings.retain(|finding| guard.action(finding.kind) != Action::Allow);
    settle(findings);
}

/// The next step that can be decided now, without the text still to come.
fn next_step(text: &str, start: usize, last: bool) -> Option<Step> {
    let bytes = text.as_bytes();
    let waiting = &bytes[start..];
    let window = &waiting[..waiting.len().min(WINDOW)];
    let (end, long) = match memchr::memrchr(b'\n', window) {
        Some(at) => (start + at + 1, false),
        None if waiting.len() >= WINDOW => (start + text[start..].floor_char_boundary(WINDOW), true),
        None if last && !waiting.is_empty() => (text.len(), false),
        None => return None,
    };
    for begin in pem::begins(&bytes[start..end]).map(|at| start + at) {
        // A backslash before it goes with it: left alone it would begin another escape.
        let slashes = bytes[start..begin].iter().rev().take_while(|byte| **byte == b'\\').count();
        let lead = begin - slashes % 2;
        match pem::extent(&bytes[begin..], last) {
            // The text before a key is a piece of its own.
            Extent::Ends(_) if lead > start => return Some(Step::Lines(lead)),
            Extent::Ends(len) => return Some(Step::Key(begin + len)),
            // Undecided: only whole lines before it may go out.
            Extent::Open => {
                let line = memchr::memrchr(b'\n', &bytes[start..begin])?;
                return Some(Step::Lines(start + line + 1));
            }
            Extent::NoKey => {}
        }
    }
    Some(if long { Step::LongLine(end) } else { Step::Lines(end) })
}

/// Where to cut a window of a longer line, so that the rest of the line cannot affect the part that goes out.
fn safe_cut(text: &str, start: usize, end: usize, findings: &[Finding]) -> usize {
    let half = start + (end - start) / 2;
    let mut cut = end - OVERLAP;
    // A place between words; a run of more than half a window without one is cut anywhere.
    static BETWEEN: [bool; 256] = only(b" \t\n\x0c\r,;\"'<>");
    if let Some(at) = text.as_bytes()[half..cut].iter().rposition(|byte| BETWEEN[usize::from(*byte)]) {
        cut = half + at + 1;
    } else {
        // A run is read from its beginning, wherever on the line that is: its decoded text depends on its alignment.
        let run = text.as_bytes()[start..cut].iter().rev().take_while(|byte| is_run(**byte)).count();
        if run >= RUN && cut - run > start {
            cut -= run;
        }
    }
    if let Some(finding) = findings.iter().find(|finding| finding.start < cut && finding.end > cut) {
        // Not through the middle of a finding, unless it fills the window.
        cut = if finding.start > half { finding.start } else { finding.end };
    }
    if let Some((_, placeholder_end)) = placeholder_around(text.as_bytes(), cut) {
        cut = placeholder_end.min(end);
    }
    text.floor_char_boundary(cut)
}

enum Step {
    /// Text up to a line feed, or to the end of the stream.
    Lines(usize),
    /// A private key up to its end.
    Key(usize),
    /// The first window of a longer line.
    LongLine(usize),
}

/// This many bytes without a separator are taken for one run.
const RUN: usize = 64;
