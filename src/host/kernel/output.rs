//! From what an interpreter writes to the events of one execution: order, text, pace and size.
//!
//! Text goes out as it comes, but not more often than every 20 ms and in pieces of at most 64 KiB. What an execution may
//! say altogether is bounded; the rest is dropped and counted.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::complaints::Complaints;
use super::protocol::{Frame, FrameKind, Marks, Piece};
use crate::domain::Clock;
use crate::host::credit::{Credit, Held};
use crate::wire::interpreter::{AFTER_INTERRUPT, Event, ExecutionError, ExecutionResult, Output};

/// The longest text of one event, in bytes.
const CHUNK_MAX: usize = 64 << 10;
/// Text waits this long for more.
const PACE: Duration = Duration::from_millis(20);
/// Output that waits for a frame, as it costs to keep, of one stream. With more, a driver is not keeping the protocol
/// and order is given up.
const BLOCKED_MAX: usize = 256 << 10;
/// Events, and bytes of their text, that may wait for the reader before the interpreter waits too.
const READY_MAX: usize = 16;
const READY_TEXT_MAX: usize = 256 << 10;
/// What an event costs besides its text, so that a million empty ones are bounded too.
const EVENT_COST: u64 = 64;
/// What is kept of output between executions, in bytes.
const LATE_MAX: usize = 2000;
/// The longest line that is looked at, in characters.
const LINE_MAX: usize = 500;
/// A shell's message about a program that SIGXFSZ has ended.
const FILE_TOO_LARGE: &str = "153";

/// Which of the two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Stdout,
    Stderr,
}

/// The answer to one execution as it comes to be.
#[derive(Debug)]
pub(super) struct Answer {
    stdout: Incoming,
    stderr: Incoming,
    /// The frame that is released next.
    next_frame: u32,
    /// Text that is due at `text_due`.
    text: String,
    text_lane: Lane,
    text_due: Option<Instant>,
    last_text: Option<Instant>,
    ready: VecDeque<Held<Event>>,
    /// Text in `ready`, for which there is no credit.
    ready_text: usize,
    left_bytes: u64,
    /// It has no reader any more.
    silent: bool,
    dropped_bytes: u64,
    stops: Vec<String>,
    /// Read in standard error, where programs complain.
    complaints: Complaints,
    last_line: LastLine,
    /// Removes an interactive shell's messages about its terminal.
    sieve: Option<Sieve>,
    /// What was printed between executions: since the last, until this one begins; then, since this one ended.
    late: Late,
    /// Whether there was an execution before.
    reports_late: bool,
    /// Whether an error was reported.
    failed: bool,
    clock: Clock,
}

/// One output, up to the frame that its text waits for.
#[derive(Debug)]
struct Incoming {
    marks: Marks,
    waiting: VecDeque<Piece>,
    /// The cost of the waiting pieces.
    waiting_cost: usize,
    /// The beginning of a character.
    partial: Vec<u8>,
    /// Whether the cell has begun.
    open: bool,
}

impl Incoming {
    fn new(id: &str) -> Self {
        Self {
            marks: Marks::new(id),
            waiting: VecDeque::new(),
            waiting_cost: 0,
            partial: Vec::new(),
            open: false,
        }
    }

    fn push(&mut self, bytes: Bytes) {
        for piece in self.marks.push(bytes) {
            self.waiting_cost += piece.cost();
            self.waiting.push_back(piece);
        }
    }

    /// What was written after frame `number` is not the cell's.
    fn close_at(&mut self, number: u32) -> VecDeque<Piece> {
        let Some(at) = self.waiting.iter().position(|piece| *piece == Piece::Mark(number)) else {
            return VecDeque::new();
        };
        let mut after = self.waiting.split_off(at);
        self.waiting_cost = self.waiting.iter().map(Piece::cost).sum();
        after.push_back(Piece::Text(self.marks.finish()));
        after
    }

    /// The next text that was written before frame `next_frame`, and whether it is the cell's.
    fn take(&mut self, next_frame: u32) -> Option<(Bytes, bool)> {
        let give_up = self.waiting_cost > BLOCKED_MAX;
        loop {
            match self.waiting.front()? {
                Piece::Mark(number) if *number >= next_frame && !give_up => return None,
                _ => {}
            }
            let piece = self.waiting.pop_front()?;
            self.waiting_cost = self.waiting_cost.saturating_sub(piece.cost());
            if let Piece::Text(text) = piece {
                return Some((text, self.open));
            }
        }
    }
}

impl Answer {
    /// For the cell with this id. It may print `max_bytes` in total.
    pub(super) fn new(id: &str, max_bytes: u64, is_shell: bool, clock: Clock) -> Self {
        Self {
            stdout: Incoming::new(id),
            stderr: Incoming::new(id),
            next_frame: 0,
            text: String::new(),
            text_lane: Lane::Stdout,
            text_due: None,
            last_text: None,
            ready: VecDeque::new(),
            ready_text: 0,
            left_bytes: max_bytes,
            silent: false,
            dropped_bytes: 0,
            stops: Vec::new(),
            complaints: Complaints::default(),
            last_line: LastLine::default(),
            sieve: is_shell.then(Sieve::default),
            late: Late::default(),
            reports_late: false,
            failed: false,
            clock,
        }
    }

    /// What was printed since the last execution. It is reported when this one begins.
    pub(super) fn since_last(&mut self, late: Late) {
        (self.late, self.reports_late) = (late, true);
    }

    /// What was printed since this execution ended.
    pub(super) fn take_late(&mut self) -> Late {
        std::mem::take(&mut self.late)
    }

    /// Adds output.
    pub(super) fn output(&mut self, lane: Lane, bytes: Bytes) {
        self.incoming(lane).push(bytes);
        self.release(lane);
    }

    /// Adds a frame; returns whether it is the cell's last. All output that was written before it must be here.
    pub(super) fn frame(&mut self, frame: Held<Frame>) -> bool {
        let (frame, credit) = frame.into_parts();
        if frame.k < self.next_frame {
            return false;
        }
        // A mark that is missing will not come: the cell closed the descriptor.
        for lane in [Lane::Stdout, Lane::Stderr] {
            self.next_frame = frame.k;
            self.release(lane);
        }
        self.next_frame = frame.k + 1;
        match frame.t {
            FrameKind::Ready | FrameKind::Rest | FrameKind::Source => {}
            FrameKind::Begin => {
                (self.stdout.open, self.stderr.open) = (true, true);
                let late = std::mem::take(&mut self.late);
                self.late.interrupted = self.silent;
                if let Some(note) = late.note().filter(|_| self.reports_late) {
                    self.add_text(Lane::Stderr, &note);
                    self.last_line = LastLine::default();
                }
            }
            FrameKind::Result => self.event(Event::Result(Box::new(result(frame))), credit),
            FrameKind::Error => {
                if let Some(reason) = frame.stop {
                    self.stop(&reason);
                }
                self.failed = true;
                let (name, value, traceback) = (frame.name, frame.value, frame.traceback);
                self.event(Event::Error(ExecutionError { name, value, traceback }), credit);
            }
            FrameKind::Done => {
                for lane in [Lane::Stdout, Lane::Stderr] {
                    for piece in self.incoming(lane).close_at(frame.k) {
                        if let Piece::Text(text) = piece {
                            self.late.add(&text);
                        }
                    }
                }
                self.dropped_bytes += frame.dropped.saturating_mul(EVENT_COST);
                // The program's exit status; an exception has had its own frame.
                let status = frame.value.trim();
                if !status.is_empty() && status != "0" {
                    if status == FILE_TOO_LARGE {
                        self.stop("disk_full");
                    }
                    self.finish_text();
                    let words = self.words(status);
                    self.error("", status, &words);
                }
                return true;
            }
        }
        self.release(Lane::Stdout);
        self.release(Lane::Stderr);
        false
    }

    /// Why a program ended with this status, as far as it has said.
    pub(super) fn words(&self, status: &str) -> String {
        let signal = status.parse().ok().and_then(|status: i32| status.checked_sub(128)).filter(|n| *n > 0);
        match signal {
            _ if !self.last_line.get().is_empty() => self.last_line.get().to_owned(),
            Some(number) => signal_name(number).map_or(String::new(), |name| format!("ended by {name}")),
            None => String::new(),
        }
    }

    /// Adds an error.
    pub(super) fn error(&mut self, name: &str, value: &str, traceback: &str) {
        self.failed = true;
        let error = Event::Error(ExecutionError {
            name: name.to_owned(),
            value: value.to_owned(),
            traceback: traceback.to_owned(),
        });
        self.event(error, None);
    }

    /// Notes that a limit of the sandbox was met.
    pub(super) fn stop(&mut self, reason: &str) {
        if !self.stops.iter().any(|known| known == reason) {
            self.stops.push(reason.to_owned());
        }
    }

    /// It has lost its reader and is interrupted: its output from now on goes to the next execution.
    pub(super) fn silence(&mut self) {
        self.silent = true;
        self.late.interrupted = true;
    }

    /// Whether an error was reported.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// The interpreter has ended; returns whether its last lines were that memory is full.
    pub(super) fn died_of_memory(&mut self) -> bool {
        self.finish_text();
        self.complaints.found().contains(&"oom")
    }

    /// Adds an event that costs nothing: the host's own words.
    pub(super) fn say(&mut self, event: Event) {
        self.flush();
        self.ready.push_back(Held::new(event, None));
    }

    /// The cell or the interpreter has ended: everything that is here goes out, then the end.
    pub(super) fn end(&mut self) {
        self.finish_text();
        if self.failed {
            for reason in self.complaints.found().to_vec() {
                self.stop(reason);
            }
        }
        if self.dropped_bytes > 0 {
            self.stop("output_truncated");
        }
        for reason in std::mem::take(&mut self.stops) {
            let dropped_bytes = if reason == "output_truncated" { self.dropped_bytes } else { 0 };
            self.ready.push_back(Held::new(Event::PathboxStop { reason, dropped_bytes }, None));
        }
        self.ready.push_back(Held::new(Event::EndOfExecution, None));
    }

    /// When [`Answer::flush`] should be called.
    pub(super) fn due(&self) -> Option<Instant> {
        self.text_due
    }

    /// Text that waited goes out.
    pub(super) fn flush(&mut self) {
        self.text_due = None;
        if self.text.is_empty() {
            return;
        }
        self.last_text = Some(Instant::now());
        self.ready_text += self.text.len();
        let output = Output {
            text: std::mem::take(&mut self.text),
            timestamp: Some(self.clock.now().to_rfc3339_opts(chrono::SecondsFormat::Micros, false)),
        };
        let event = match self.text_lane {
            Lane::Stdout => Event::Stdout(output),
            Lane::Stderr => Event::Stderr(output),
        };
        self.ready.push_back(Held::new(event, None));
    }

    /// Whether an event is ready.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether as much is ready as may wait for the reader.
    pub(super) fn is_full(&self) -> bool {
        self.ready.len() >= READY_MAX || self.ready_text >= READY_TEXT_MAX
    }

    /// Takes the next ready event.
    pub(super) fn take(&mut self) -> Option<Held<Event>> {
        let event = self.ready.pop_front()?;
        if let Event::Stdout(output) | Event::Stderr(output) = &*event {
            self.ready_text -= output.text.len();
        }
        Some(event)
    }

    fn incoming(&mut self, lane: Lane) -> &mut Incoming {
        match lane {
            Lane::Stdout => &mut self.stdout,
            Lane::Stderr => &mut self.stderr,
        }
    }

    /// Text of a lane that no frame holds back goes on.
    fn release(&mut self, lane: Lane) {
        let next_frame = self.next_frame;
        while let Some((bytes, is_cells)) = self.incoming(lane).take(next_frame) {
            if !is_cells {
                self.late.add(&bytes);
                continue;
            }
            let partial = std::mem::take(&mut self.incoming(lane).partial);
            let (text, partial) = decode(partial, &bytes);
            self.incoming(lane).partial = partial;
            self.add_text(lane, &text);
        }
    }

    /// Everything that is held back goes on: nothing more will come.
    fn finish_text(&mut self) {
        self.next_frame = u32::MAX;
        for lane in [Lane::Stdout, Lane::Stderr] {
            let rest = self.incoming(lane).marks.finish();
            if self.incoming(lane).open && !rest.is_empty() {
                self.incoming(lane).waiting.push_back(Piece::Text(rest));
            }
            self.release(lane);
            let partial = std::mem::take(&mut self.incoming(lane).partial);
            if !partial.is_empty() {
                self.add_text(lane, "\u{fffd}");
            }
        }
        if let Some(sieve) = &mut self.sieve {
            let held = sieve.finish();
            self.add_sieved(Lane::Stderr, &held);
        }
        self.flush();
    }

    fn add_text(&mut self, lane: Lane, text: &str) {
        match &mut self.sieve {
            Some(sieve) if lane == Lane::Stderr => {
                let text = sieve.pass(text);
                self.add_sieved(lane, &text);
            }
            _ => self.add_sieved(lane, text),
        }
    }

    fn add_sieved(&mut self, lane: Lane, text: &str) {
        if self.silent {
            return self.late.add(text.as_bytes());
        }
        let text = self.within_budget(text);
        if text.is_empty() {
            return;
        }
        if lane == Lane::Stderr {
            self.complaints.read(text);
            self.last_line.read(text);
        }
        if self.text_lane != lane {
            self.flush();
            self.text_lane = lane;
        }
        let mut rest = text;
        while self.text.len() + rest.len() >= CHUNK_MAX {
            let at = rest.floor_char_boundary(CHUNK_MAX.saturating_sub(self.text.len()));
            self.text.push_str(&rest[..at]);
            rest = &rest[at..];
            self.flush();
        }
        if rest.is_empty() {
            return;
        }
        self.text.push_str(rest);
        let due = self.last_text.map_or_else(Instant::now, |last| last + PACE);
        if due <= Instant::now() {
            self.flush();
        } else {
            self.text_due = Some(due);
        }
    }

    fn within_budget<'a>(&mut self, text: &'a str) -> &'a str {
        let fits = usize::try_from(self.left_bytes).unwrap_or(usize::MAX);
        let kept = &text[..text.floor_char_boundary(fits)];
        self.left_bytes -= kept.len() as u64;
        self.dropped_bytes += (text.len() - kept.len()) as u64;
        if kept.len() < text.len() {
            self.left_bytes = 0; // what comes later does not fill the hole
        }
        kept
    }

    fn event(&mut self, event: Event, credit: Option<Credit>) {
        let bytes = EVENT_COST + size(&event);
        self.flush();
        if self.silent {
            if let Event::Error(error) = event
                && !error.name.is_empty()
            {
                self.late.place = error.traceback;
            }
            return;
        }
        // An error is small and gives the cell's failure; it always fits.
        if bytes > self.left_bytes && !matches!(event, Event::Error(_)) {
            self.dropped_bytes += bytes;
            return;
        }
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        self.ready.push_back(Held::new(event, credit));
    }
}

/// The last line of standard error that is not empty, or its beginning.
#[derive(Debug, Default)]
struct LastLine {
    line: String,
    ended: bool,
}

impl LastLine {
    fn read(&mut self, text: &str) {
        for piece in text.split_inclusive('\n') {
            if piece.trim().is_empty() {
                self.ended |= piece.ends_with('\n');
                continue;
            }
            if std::mem::replace(&mut self.ended, piece.ends_with('\n')) {
                self.line.clear();
            }
            let room = LINE_MAX.saturating_sub(self.line.len());
            self.line.push_str(&piece[..piece.floor_char_boundary(room)]);
        }
    }

    fn get(&self) -> &str {
        self.line.trim()
    }
}

/// What was printed while no execution was in progress: its beginning, and how much it was.
#[derive(Debug, Default)]
pub(super) struct Late {
    text: Vec<u8>,
    bytes: u64,
    /// Whether it was said by an execution that was interrupted.
    interrupted: bool,
    /// Where that one was interrupted, according to its traceback.
    place: String,
}

impl Late {
    /// Adds output.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let room = LATE_MAX.saturating_sub(self.text.len());
        self.text.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// A note for the next execution, if there is something to report.
    fn note(self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.text);
        // The marks of the execution before are not output.
        let is_mark = |piece: &str| {
            piece.rsplit_once(':').is_some_and(|(id, number)| {
                number.len() == 8 && [id, number].concat().bytes().all(|byte| byte.is_ascii_alphanumeric())
            })
        };
        let said: String = text.split('\u{1e}').filter(|piece| !is_mark(piece)).collect();
        let mut said = said.trim().to_owned();
        if self.bytes > LATE_MAX as u64 && !said.is_empty() {
            said.push_str(&format!("\n[{} bytes in all]", self.bytes));
        }
        let place = &self.place[..self.place.floor_char_boundary(LATE_MAX)];
        let said = [said.as_str(), place]
            .map(str::trim)
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("\n");
        let head = match self.interrupted {
            true => AFTER_INTERRUPT,
            false => "note: printed since the last run, by what it left running:",
        };
        (!said.is_empty()).then(|| format!("{head}\n{said}\n"))
    }
}

/// Takes the lines out in which a shell without a terminal complains that it has none.
#[derive(Debug, Default)]
struct Sieve {
    /// The beginning of a line that may be one.
    held: String,
    /// Whether the last line has not ended.
    inside: bool,
}

impl Sieve {
    const HEAD: &str = "bash: [";
    const TAIL: &str = "] tcsetattr: ";

    /// The part of `text` that is not the shell's.
    fn pass(&mut self, text: &str) -> String {
        let all = std::mem::take(&mut self.held) + text;
        let mut out = String::with_capacity(all.len());
        for line in all.split_inclusive('\n') {
            let ends = line.ends_with('\n');
            let may_be = line.starts_with(Self::HEAD) || !ends && Self::HEAD.starts_with(line);
            if self.inside || !may_be {
                out.push_str(line);
                self.inside = !ends;
            } else if !ends && line.len() <= LINE_MAX {
                self.held = line.to_owned();
            } else if !line.contains(Self::TAIL) {
                out.push_str(line);
                self.inside = !ends;
            }
        }
        out
    }

    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// A signal's name.
fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV, a crash in native code",
        libc::SIGPIPE => "SIGPIPE: the program it wrote to had ended",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXFSZ => "SIGXFSZ: a file became too large",
        _ => return None,
    })
}

/// `bytes` after `partial` as text, and the beginning of a character at the end. What is not UTF-8 becomes U+FFFD.
fn decode(mut partial: Vec<u8>, bytes: &[u8]) -> (String, Vec<u8>) {
    let all = if partial.is_empty() {
        bytes
    } else {
        partial.extend_from_slice(bytes);
        &partial
    };
    let mut text = String::with_capacity(all.len());
    let mut chunks = all.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let could_go_on = std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
        if chunks.peek().is_none() && could_go_on {
            return (text, invalid.to_vec());
        }
        text.push('\u{fffd}');
    }
    (text, Vec::new())
}

/// A result frame in E2B's format.
fn result(frame: Frame) -> ExecutionResult {
    let mut result = ExecutionResult { is_main_result: frame.main, ..ExecutionResult::default() };
    for (mime, raw) in frame.data.0 {
        match mime.as_str() {
            "text/plain" => result.text = Some(without_quotes(text(&raw))),
            "text/html" => result.html = Some(text(&raw)),
            "text/markdown" => result.markdown = Some(text(&raw)),
            "text/latex" => result.latex = Some(text(&raw)),
            "image/svg+xml" => result.svg = Some(text(&raw)),
            "image/png" => result.png = Some(text(&raw)),
            "image/jpeg" => result.jpeg = Some(text(&raw)),
            "application/pdf" => result.pdf = Some(text(&raw)),
            "application/javascript" => result.javascript = Some(text(&raw)),
            "application/json" => result.json = Some(value(&raw)),
            "e2b/data" => result.data = Some(value(&raw)),
            "e2b/chart" => result.chart = Some(value(&raw)),
            _ => {
                result.extra.insert(mime, value(&raw));
            }
        }
    }
    result
}

fn value(raw: &RawValue) -> Value {
    // Deeper than 128 levels is not walked by anyone; its text will do.
    serde_json::from_str(raw.get()).unwrap_or_else(|_| Value::String(raw.get().to_owned()))
}

fn text(raw: &RawValue) -> String {
    match value(raw) {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

/// E2B cuts one pair of outer quotes off, so that a string's repr reads like the string.
fn without_quotes(text: String) -> String {
    for quote in ['\'', '"'] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner.to_owned();
        }
    }
    text
}

fn size(event: &Event) -> u64 {
    let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let of_value = |value: &Option<Value>| value.as_ref().map_or(0, |value| value.to_string().len());
    let bytes = match event {
        Event::Result(r) => {
            [&r.text, &r.html, &r.markdown, &r.svg, &r.png, &r.jpeg, &r.pdf, &r.latex, &r.javascript]
                .map(len)
                .iter()
                .sum::<usize>()
                + [&r.json, &r.data, &r.chart].map(of_value).iter().sum::<usize>()
                + r.extra.iter().map(|(mime, value)| mime.len() + value.to_string().len()).sum::<usize>()
        }
        Event::Error(e) => e.name.len() + e.value.len() + e.traceback.len(),
        _ => 0,
    };
    bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::credit::THING;
    use crate::host::kernel::protocol::{Frames, framed};

    fn answer(max: u64) -> Answer {
        let mut answer = Answer::new("id", max, false, Clock::system());
        answer.output(Lane::Stdout, mark(0));
        answer.output(Lane::Stderr, mark(0));
        answer.frame(frame(r#"{"t":"begin","id":"id","k":0}"#));
        answer
    }

    fn mark(number: u32) -> Bytes {
        format!("\x1eid:{number:08x}\x1e").into()
    }

    fn frame(json: &str) -> Held<Frame> {
        let mut frames = Frames::default();
        frames.push(&framed(json.as_bytes()));
        Held::new(frames.next().unwrap().unwrap(), None)
    }

    fn events_of(mut answer: Answer) -> Vec<String> {
        answer.end();
        let mut events: Vec<(String, String)> = Vec::new();
        while let Some(event) = answer.take() {
            let (kind, text) = match event.into_inner() {
                Event::Stdout(output) => ("out", output.text),
                Event::Stderr(output) => ("err", output.text),
                Event::Result(result) => ("result", result.text.unwrap_or_default()),
                Event::PathboxStop { reason, dropped_bytes } => ("stop", format!("{reason} {dropped_bytes}")),
                Event::EndOfExecution => ("end", String::new()),
                other => panic!("{other:?}"),
            };
            match events.last_mut() {
                Some((last, before)) if last == kind && kind.len() == 3 && kind != "end" => {
                    before.push_str(&text)
                }
                _ => events.push((kind.to_owned(), text)),
            }
        }
        events.into_iter().map(|(kind, text)| format!("{kind} {text}")).collect()
    }

    #[tokio::test]
    async fn results_keep_their_place_in_the_output() {
        let mut answer = answer(1000);
        // All of the output is read before the first frame is.
        let output = [&b"a"[..], &mark(1), b"b", &mark(2), b"c"].concat();
        answer.output(Lane::Stdout, output.into());
        answer.output(Lane::Stderr, [mark(1), mark(2)].concat().into());
        answer.frame(frame(r#"{"t":"result","id":"id","k":1,"data":{"text/plain":"'one'"}}"#));
        answer.frame(frame(r#"{"t":"result","id":"id","k":2,"data":{"text/plain":"two"}}"#));
        assert_eq!(events_of(answer), ["out a", "result one", "out b", "result two", "out c", "end "]);
    }

    #[tokio::test]
    async fn output_from_before_the_cell_is_not_its() {
        let mut answer = Answer::new("id", 1000, false, Clock::system());
        answer.output(Lane::Stdout, [&b"late"[..], &mark(0), b"mine"].concat().into());
        answer.output(Lane::Stderr, Bytes::from_static(b"late too"));
        answer.frame(frame(r#"{"t":"begin","id":"id","k":0}"#));
        assert_eq!(
            events_of(answer),
            ["out mine", "end "],
            "before the first cell the driver itself may print"
        );
        let mut answer = Answer::new("id", 1000, false, Clock::system());
        let mut late = Late::default();
        late.add(&mark(7));
        late.add(b"earlier\n");
        answer.since_last(late);
        answer.output(Lane::Stdout, [&b"late"[..], &mark(0), b"mine"].concat().into());
        answer.output(Lane::Stderr, mark(0));
        answer.frame(frame(r#"{"t":"begin","id":"id","k":0}"#));
        let note = "err note: printed since the last run, by what it left running:\nearlier\nlate\n";
        assert_eq!(events_of(answer), [note, "out mine", "end "]);
    }

    #[tokio::test]
    async fn a_descriptor_that_was_closed_holds_nothing_up() {
        let mut answer = answer(1000);
        answer.output(Lane::Stdout, Bytes::from_static(b"x"));
        answer.frame(frame(r#"{"t":"result","id":"id","k":1,"data":{"text/plain":"r"}}"#));
        answer.output(Lane::Stdout, Bytes::from_static(b"y"));
        assert_eq!(events_of(answer), ["out x", "result r", "out y", "end "]);
    }

    #[tokio::test]
    async fn a_forged_mark_delays_output_but_loses_none() {
        let mut answer = answer(1 << 30);
        answer.output(Lane::Stdout, [&mark(900)[..], b"held"].concat().into());
        assert!(!answer.is_ready());
        answer.output(Lane::Stdout, vec![b'x'; BLOCKED_MAX + 1].into());
        assert!(answer.is_ready());
        answer.output(Lane::Stdout, [&mark(901)[..], b"more", &mark(5), b"late"].concat().into());
        assert!(answer.frame(frame(r#"{"t":"done","id":"id","k":5}"#)));
        let events = events_of(answer);
        assert!(events[0].starts_with("out heldxxx") && events[0].ends_with("xmore"), "{:.40}", events[0]);
    }

    /// A byte between marks, and a byte before a message full of them: neither keeps more than it costs.
    #[tokio::test]
    async fn scraps_of_text_between_marks_are_kept_at_what_they_cost() {
        let forged = mark(u32::MAX);
        let scraps = [&b"x"[..], &forged].concat().repeat(1000);
        let scrap = [&b"x"[..], &forged.repeat(1000)].concat();
        for message in [scraps, scrap] {
            let mut answer = answer(1 << 30);
            for _ in 0..5000 {
                answer.output(Lane::Stdout, message.clone().into());
                let kept = answer.stdout.waiting.iter().map(Piece::cost).sum::<usize>();
                assert!(kept <= BLOCKED_MAX, "{kept}");
                while answer.take().is_some() {}
            }
            assert!(answer.stdout.waiting.len() <= BLOCKED_MAX / THING);
        }
    }

    #[tokio::test]
    async fn characters_may_be_cut_and_broken_ones_are_replaced() {
        for every in 1..12 {
            let mut answer = answer(1000);
            for part in "é🎉".as_bytes().chunks(every) {
                answer.output(Lane::Stdout, Bytes::copy_from_slice(part));
            }
            answer.output(Lane::Stdout, Bytes::from_static(b"\xff\xf0\x9f"));
            assert_eq!(events_of(answer), ["out é🎉\u{fffd}\u{fffd}", "end "]);
        }
    }

    #[tokio::test]
    async fn excess_output_is_dropped_and_counted() {
        let mut answer = answer(10);
        answer.output(Lane::Stdout, Bytes::from_static("12345678é".as_bytes()));
        answer.output(Lane::Stdout, Bytes::from_static(b"more"));
        answer.frame(frame(r#"{"t":"result","id":"id","k":1,"data":{"text/plain":"r"}}"#));
        assert_eq!(events_of(answer), ["out 12345678é", "stop output_truncated 69", "end "]);
    }

    #[tokio::test]
    async fn complaints_about_limits_count_when_the_cell_failed() {
        for (kind, stops) in [("result", 0), ("error", 1)] {
            let mut answer = answer(1000);
            answer.output(Lane::Stdout, Bytes::from_static(b"x: Cannot fork\n"));
            answer.output(Lane::Stderr, Bytes::from_static(b"x: No space left on device\n"));
            answer.frame(frame(&format!(r#"{{"t":"{kind}","id":"id","k":1,"name":"E"}}"#)));
            answer.end();
            let events = std::iter::from_fn(|| answer.take());
            let events: Vec<_> = events
                .filter(
                    |event| matches!(&**event, Event::PathboxStop { reason, .. } if reason == "disk_full"),
                )
                .collect();
            assert_eq!(events.len(), stops, "{kind}");
        }
    }

    #[tokio::test]
    async fn no_event_is_longer_than_its_maximum() {
        let mut answer = answer(1 << 30);
        answer.output(Lane::Stdout, "é".repeat(200_000).into());
        answer.end();
        let mut total = 0;
        while let Some(event) = answer.take() {
            if let Event::Stdout(output) = event.into_inner() {
                assert!(output.text.len() <= CHUNK_MAX);
                total += output.text.len();
            }
        }
        assert_eq!(total, 400_000);
    }
}
