//! Tables as text: a head gives a column its meaning, however many rows follow.
//!
//! One line-based state machine reads the layouts with one row per line: separated values, fixed width, boxes, Markdown, records
//! with a name before each value, a pandas `Series` (whose head comes after it). [`super::nested`] reads what is nested:
//! JSON, printed Python and JavaScript values, HTML. Only the head of a table is kept, so a table may be of any length
//! and come in any pieces.

mod fields;
mod fixed;
mod head;
mod named;
mod prefilter;
mod series;

use std::sync::Arc;

use super::classes::{Block, alphanumeric_or};
use super::heads::{self, Meaning, Place};
use super::nested::{Nested, Role, SHORT, last_part, role};
use super::policy::Action;
use super::reading::{Becomes, Mark, Marks, Reading, line_end, without_end};
use super::redact::{Strings, settle};
use super::rule::{RULES, RuleId};
use super::scan::{Finding, Scratch, Watch, holds_placeholder, placeholder_around, scan};
use super::{Guard, view};
use fields::{
    doubled, find_ignoring_case, names_of_sql, segments, span_of, split, strip_ignoring_case, tuples,
    unquoted, words,
};
use fixed::frame_row;
use head::{find_head, is_name, without_lead};
use named::{assigned, elements, marked_row, named_row, printed, side_row};
pub(super) use series::may_be_series;

/// The longest line that is a head or a row of fixed width.
const LONGEST_LINE: usize = 8000;
/// The most columns of a head without separators.
const MAX_WORDS: usize = 256;
/// The most words of a head with one space between them.
const LONGEST_PROSE: usize = 24;
/// The most columns of any head.
const MAX_FIELDS: usize = 1024;
/// The most columns whose names are listed one below the other.
const MAX_CELLS: usize = 256;
/// The number of successive lines that do not fit after which a table ends: with separated fields, and of fixed
/// width.
const MISFITS: [u8; 2] = [4, 9];
/// The longest name before a value on its line, and of a column.
const LONGEST_NAME: usize = 41;
/// How deep strings in strings are read.
const MAX_STRINGS: u8 = 2;
/// How often a line is read again after something was found in it.
const ROUNDS: usize = 4;

/// The tables that are open in a text.
///
/// Their state depends only on each line with its findings replaced: so the text that went out is read the same way as
/// the text that came in.
#[derive(Debug, Default)]
pub(super) struct Tables {
    state: State,
    /// The state before the line.
    before: State,
    words: heads::Words,
    series: Vec<(Span, Meaning)>,
    /// The words of one rewritten line.
    again: heads::Words,
    reading: Reading,
    read: Read,
    scratch: Scratch,
    /// The reader of the strings in a line.
    inner: Option<Box<Inner>>,
    /// How many strings are around the text.
    depth: u8,
}

#[derive(Debug, Default)]
struct Inner {
    tables: Tables,
    reading: Reading,
    found: Vec<Finding>,
    /// Where the last part of a long line ended, and where this one does.
    before: Option<Rest>,
    after: Option<Rest>,
}

/// The state at the end of a part of a long line, for the next part.
#[derive(Debug)]
struct Rest {
    state: State,
    /// The quote of the string that it ends in.
    open: Option<u8>,
}

#[derive(Debug, Default, Clone)]
struct State {
    head: Option<Arc<Head>>,
    misfits: u8,
    /// Whether the head has no row yet.
    fresh: bool,
    /// Whether the head is a string in a list, as its rows must then be.
    listed: bool,
    /// Whether a quoted field continues past the end of the line.
    quoted: bool,
    /// The meaning that the line above gives to the values below it, and their layout.
    list: Option<(Meaning, Below)>,
    /// The names of columns that are listed one below the other, so far.
    listing: Option<(Layout, Vec<Column>)>,
    /// How many cells of a row have come where each has its own line.
    cells: usize,
    nested: Nested,
}

/// How a line announces the value below it.
#[derive(Debug, Clone, Copy)]
enum Below {
    /// It is a YAML key with this indentation, and items follow.
    Items(usize),
    /// It is a key of `var_dump`, and `string(11) "x"` follows.
    Dump,
    /// It prints a variable's name, and the value follows.
    Output,
    /// It is an element that holds a name, and one with the value follows.
    Element,
    /// It opens `Some(` of Rust, and the value follows.
    Some,
    /// It is a YAML entry with this indentation that names the content of its neighbour: `type: passport`.
    Entry(usize),
    /// It names an array, whose values follow in brackets.
    Array,
}

#[derive(Debug)]
struct Head {
    layout: Layout,
    columns: Vec<Column>,
    /// Whether blank lines may be between its rows.
    spaced: bool,
    /// The first field that belongs to the table, after a prefix on its line, and so on its rows. In a table of fixed
    /// width, the length of the prefix in characters.
    lead: Option<usize>,
    /// Its width, if it may name the index of a frame, whose columns have their names above.
    index: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Fields with a separator.
    Separated(char),
    /// Aligned columns; whether the head has two spaces anywhere.
    Fixed(bool),
    /// One space between the words of the head, and of each row.
    Words,
    /// Values in brackets: SQL.
    Tuples,
    /// A line for each cell: AsciiDoc.
    Cells,
}

#[derive(Debug, Clone, Copy)]
struct Column {
    meant: Meaning,
    /// The start of the head, in characters.
    start: usize,
    end: usize,
}

/// The bars between the cells of a box.
const BARS: [char; 7] = ['|', '│', '┃', '║', '┆', '┇', '┊'];

/// Whether a character separates the cells of a table whose head has `sign` there: a box may have other bars in its
/// rows.
fn separates(sign: char, other: char) -> bool {
    sign == other || sign > '|' && other > '|' && BARS.contains(&other)
}

/// A part of a line, in bytes.
type Span = (usize, usize);

/// Where findings go.
struct Found<'a> {
    out: &'a mut Vec<Finding>,
    line: usize,
    /// Whether a nearby label decided the kind of a number.
    labelled: bool,
}

/// Whether any column has a meaning.
fn speak(columns: &[Column]) -> bool {
    columns.iter().any(|column| !column.meant.is_empty())
}

impl Found<'_> {
    fn cell(&mut self, meant: Meaning, line: &str, (start, end): Span, place: Place) -> bool {
        if meant.is_empty() {
            return false;
        }
        let found = heads::cell(meant, &line[start..end], place);
        if let Some(((from, to), rule)) = found {
            self.out.push(finding(self.line + start + from, self.line + start + to, rule));
        }
        found.is_some()
    }

    fn cells(&mut self, columns: &[Column], line: &str, cells: &[Span], place: Place) {
        for (span, column) in cells.iter().zip(columns) {
            self.cell(column.meant, line, *span, place);
        }
    }
}

/// A finding at a place, by its head.
pub(super) fn finding(start: usize, end: usize, rule: RuleId) -> Finding {
    Finding { start, end, kind: RULES.list[usize::from(rule)].kind, rule, decoded: false }
}

/// A line of a text.
#[derive(Clone, Copy)]
struct Line<'a> {
    text: &'a str,
    /// Its range.
    span: Span,
    /// The places after words that a head may end in.
    places: &'a [usize],
    /// The strings that it begins in, if it continues a line that was read before.
    goes_on: Option<Strings>,
    /// The meaning of the name of the `Series` that it belongs to; none if that is a record, whose labels are names.
    series: Option<Meaning>,
    /// Whether a nearby label decided the kind of a number in the piece.
    labelled: bool,
    /// Whether it may hold an HTML tag, or begin names of columns one below the other.
    has_markup: bool,
}

impl Tables {
    /// Reads `text[start..end]`, which follows the text read before; with a line that `goes_on`, perhaps in these strings.
    /// If it ends within an incomplete value, returns where the next piece should begin. Adds its findings to the other
    /// findings in `out`.
    ///
    /// A line is parsed only if it contains a word of a head, or if a table is open. `blocks` are those of that text or of more
    /// before it, if known, and where they begin.
    pub(super) fn look(
        &mut self,
        text: &str,
        (start, end): Span,
        goes_on: Option<Strings>,
        guard: &Guard,
        blocks: Option<(usize, &[Block])>,
        out: &mut Vec<Finding>,
    ) -> usize {
        let bytes = text.as_bytes();
        let mut words = std::mem::take(&mut self.words);
        words.fill(bytes, (start, end), guard.0.wants_all, blocks);
        let mut all_series = std::mem::take(&mut self.series);
        series::find(text, (start, end), &words.named, &mut all_series);
        let (mut words_left, mut openers) = (&words.places[..], &words.openers[..]);
        let (mut tags, mut series) = (&words.tags[..], &all_series[..]);
        out.sort_unstable_by_key(|found| found.start);
        let labelled = out.iter().any(|found| found.rule == RULES.detectors.phone_labelled);
        let known = std::mem::take(out);
        let mut found =
            Findings { guard, text, known, passed: 0, ours: Vec::new(), of_line: 0, line: (0, 0) };
        let (mut at, mut whole) = (start, end);
        while at < end {
            skip(&mut series, |((_, end), _)| *end <= at);
            // Lines without a word of a head where nothing is open, as nearly all are.
            let continues = at == start && self.continues(goes_on);
            if self.state.sleeps() && !continues {
                skip(&mut openers, |line| *line < at);
                let wakes = [words_left.first().map(|place| place - 1), openers.first().copied()];
                let signs = [tags.first().copied(), series.first().map(|((from, _), _)| *from)];
                let next = wakes.into_iter().chain(signs).flatten().min();
                let stop = next.map_or(end, |next| next.clamp(at, end));
                at = memchr::memrchr(b'\n', &bytes[at..stop]).map_or(at, |feed| at + feed + 1);
                // A part of a line that ends here, except for a short one, which may only open a bracket.
                let known = || found.known.iter().any(|known| known.end > at);
                if at == end || stop == end && end - at > SHORT && !known() {
                    break;
                }
            }
            let next = memchr::memchr(b'\n', &bytes[at..end]).map_or(end, |feed| at + feed + 1);
            let places = skip(&mut words_left, |place| *place <= next);
            let has_markup = !skip(&mut tags, |place| *place < next).is_empty();
            let meant = series.first().filter(|((from, _), _)| *from <= at).map(|(_, meant)| *meant);
            let (span, goes_on) = ((at, next), (at == start).then_some(goes_on).flatten());
            let line = Line { text, span, places, goes_on, series: meant, labelled, has_markup };
            if let Some(done) = self.line(line, &mut found).filter(|_| bytes[next - 1] != b'\n') {
                whole = done;
            }
            if let Some(inner) = &mut self.inner {
                inner.before = inner.after.take().filter(|_| bytes[next - 1] != b'\n');
            }
            at = next;
        }
        (self.words, self.series) = (words, all_series);
        found.known.retain(|known| known.start < known.end);
        *out = found.known;
        out.append(&mut found.ours);
        whole
    }

    /// Whether a text that `goes_on` continues strings that were read.
    fn continues(&self, goes_on: Option<Strings>) -> bool {
        goes_on.is_some() && self.inner.as_ref().is_some_and(|inner| inner.before.is_some())
    }

    /// Reads a line as it is, then with its findings replaced, until nothing more is found: the final state is that of
    /// the line that goes out. Returns how far whole values go.
    fn line(&mut self, line: Line<'_>, found: &mut Findings<'_>) -> Option<usize> {
        let known = found.begin(line.span);
        let (start, end) = line.span;
        let rests = !known && !line.has_markup && line.series.is_none() && line.goes_on.is_none();
        if rests && self.state.sleeps() && !line.places.is_empty() {
            let places = line.places.iter().map(|place| place - start);
            if !prefilter::may_speak(&line.text[start..end], places) {
                return None;
            }
        }
        let as_it_is = view::reads_as_it_is(&line.text.as_bytes()[start..end]);
        if as_it_is && !known && self.state.finds_nothing(line) && !self.continues(line.goes_on) {
            return self.state.read(line, &mut Vec::new(), &mut Vec::new());
        }
        let mut read = std::mem::take(&mut self.read);
        self.state.copy(&mut self.before);
        if as_it_is {
            self.read(line, found.guard, &mut read);
        } else {
            let mut reading = std::mem::take(&mut self.reading);
            reading.fill(line.text, line.span, Strings::default(), &[]);
            reading.show();
            self.read_as(line, &reading, found.guard, &mut read);
            self.reading = reading;
        }
        let done = read.done.map(|done| line.span.0 + done);
        if !known && read.new.is_empty() {
            self.read = read;
            return done;
        }
        let mut reading = std::mem::take(&mut self.reading);
        let mut hidden = found.hidden(&read.counts);
        // Other findings do not change what tables find, unless they are part of a longer word.
        let bytes = &line.text.as_bytes()[line.span.0..line.span.1];
        let cut = hidden.iter().any(|finding| joins(bytes, finding));
        let mut walls = found.add(&read.new, &mut hidden) || cut;
        for _ in 0..ROUNDS {
            if hidden.is_empty() {
                break;
            }
            let same = as_it_is && self.says_the_same(line, &hidden);
            if same && !walls {
                break;
            }
            reading.fill(line.text, line.span, line.goes_on.unwrap_or_default(), &hidden);
            self.seen_again(&reading, found.guard);
            if !(same && self.scratch.findings.is_empty()) {
                self.before.copy(&mut self.state);
                reading.show();
                self.read_as(line, &reading, found.guard, &mut read);
                read.new.splice(0..0, self.scratch.findings.drain(..));
                walls = found.add(&read.new, &mut hidden);
            } else {
                walls = false;
            }
            if !walls {
                break;
            }
        }
        (self.read, self.reading) = (read, reading);
        done
    }

    /// Whether a line that has been read gives the same state with its findings replaced: only rows of fields may
    /// be open, and each finding must be by itself in one of them.
    fn says_the_same(&self, line: Line<'_>, hidden: &[Finding]) -> bool {
        let (start, end) = line.span;
        let quiet = line.places.is_empty() && line.series.is_none() && line.goes_on.is_none();
        let none = |state: &State| {
            state.list.is_none() && state.listing.is_none() && state.nested.is_blank() && !state.quoted
        };
        let (before, after) = (&self.before, &self.state);
        if !quiet || line.has_markup || !none(before) || !none(after) || before.cells != after.cells {
            return false;
        }
        let sign = match (&self.before.head, &self.state.head) {
            (None, None) => None,
            (Some(before), Some(head)) if Arc::ptr_eq(before, head) && self.state.misfits == 0 => {
                let Layout::Separated(sign) = head.layout else { return false };
                Some(sign)
            }
            _ => return false,
        };
        let bytes = &line.text.as_bytes()[start..end];
        let alone = |finding: &Finding| {
            let inside = &line.text[start..end][finding.start..finding.end];
            let parts = sign.is_some_and(|sign| inside.contains(|c| c == '"' || separates(sign, c)));
            !parts && !joins(bytes, finding)
        };
        hidden.iter().all(alone) && line_end(line.text, start, end) == end
    }

    /// Findings that become visible in a line only when something was replaced in it.
    fn seen_again(&mut self, reading: &Reading, guard: &Guard) {
        let watch = Watch { known: &guard.0.known, criteria: &guard.0.criteria };
        let bytes = reading.text.as_bytes();
        scan(bytes, 0, bytes.len(), false, watch, &mut self.scratch);
        self.scratch.findings.iter_mut().for_each(|finding| reading.back(finding));
    }

    /// Reads a line as it is.
    fn read(&mut self, line: Line<'_>, guard: &Guard, read: &mut Read) {
        let (start, end) = line.span;
        read.clear();
        let done = self.state.read(line, &mut read.new, &mut read.counts);
        let places = read.new.iter_mut().map(|new| (&mut new.start, &mut new.end));
        for (from, to) in places.chain(read.counts.iter_mut().map(|(from, to)| (from, to))) {
            (*from, *to) = (*from - start, *to - start);
        }
        let inner = (&mut self.inner, self.depth);
        let whole = strings(inner, &line.text[start..end], (line, start), guard, &mut read.new);
        read.done = whole.or_else(|| Some(done? - start));
    }

    /// Reads a line in a rewritten form.
    fn read_as(&mut self, line: Line<'_>, reading: &Reading, guard: &Guard, read: &mut Read) {
        read.clear();
        let span = (0, reading.text.len());
        self.again.fill(reading.text.as_bytes(), span, guard.0.wants_all, None);
        let has_markup = line.has_markup || reading.decoded;
        let line = Line { text: &reading.text, span, places: &self.again.places, has_markup, ..line };
        let done = self.state.read(line, &mut read.new, &mut read.counts);
        let inner = (&mut self.inner, self.depth);
        let whole = strings(inner, &reading.text, (line, 0), guard, &mut read.new);
        read.new.iter_mut().for_each(|new| reading.back(new));
        for (from, to) in &mut read.counts {
            (*from, *to) = (reading.place(*from), reading.place(*to));
        }
        read.done = whole.or(done).map(|done| reading.place(done));
    }
}

/// Whether a finding in a line is part of a longer word.
fn joins(line: &[u8], found: &Finding) -> bool {
    static JOINS: [bool; 256] = alphanumeric_or(b"_-.~+/=");
    let joins = |byte: Option<&u8>| byte.is_some_and(|byte| *byte >= 0x80 || JOINS[usize::from(*byte)]);
    joins(line[..found.start].last()) || joins(line.get(found.end))
}

/// The result of reading a line, by places in it.
#[derive(Debug, Default)]
struct Read {
    new: Vec<Finding>,
    /// Numbers that are counts or amounts.
    counts: Vec<Span>,
    /// Where the last whole value ends.
    done: Option<usize>,
}

impl Read {
    fn clear(&mut self) {
        self.new.clear();
        self.counts.clear();
        self.done = None;
    }
}

/// Looks for tables in the strings of a text that is a line or a part of one, which begins at `base` for the places of its words.
/// `depth` strings are around the line. Returns the end of the last whole row, if its rest may continue.
fn strings(
    (inner, depth): (&mut Option<Box<Inner>>, u8),
    text: &str,
    (line, base): (Line<'_>, usize),
    guard: &Guard,
    out: &mut Vec<Finding>,
) -> Option<usize> {
    let before = inner.as_ref().and_then(|inner| inner.before.as_ref()).filter(|_| line.goes_on.is_some());
    let (continues, begun) = (before.is_some(), line.goes_on.is_some_and(Strings::is_open).then_some(b'"'));
    let open = before.map_or(begun, |rest| rest.open);
    let holds =
        || !line.places.is_empty() && may_hold_table(text, open, (line.places, base), guard.0.wants_all);
    if depth == MAX_STRINGS || !continues && !holds() {
        return None;
    }
    let tables = || Tables { depth: depth + 1, ..Tables::default() };
    let inner = inner.get_or_insert_with(|| Box::new(Inner { tables: tables(), ..Inner::default() }));
    let Inner { tables, reading, found, before, after } = &mut **inner;
    match before {
        Some(rest) if continues => rest.state.copy(&mut tables.state),
        _ => tables.state = State::default(),
    }
    tables.inner.iter_mut().for_each(|inner| inner.before = None);
    let open = reading.fill_strings(text, continues, open);
    let rows = reading.text.rfind('\n').map_or(0, |feed| feed + 1);
    found.clear();
    tables.look(&reading.text, (0, rows), None, guard, None, found);
    *after = Some(Rest { state: tables.state.clone(), open });
    tables.look(&reading.text, (rows, reading.text.len()), None, guard, None, found);
    found.iter_mut().for_each(|finding| reading.back(finding));
    out.append(found);
    (rows > 0 && open.is_some()).then(|| reading.place(rows))
}

/// The fewest digits of a value that has digits, and the fewest bytes of a string with a value that has none.
const FEWEST_DIGITS: usize = 4;
const LEAST: usize = 8;

/// Whether a string of a line, which may begin in an `open` one, holds a word of a head and a line end, and that string or a
/// later one a possible value: except for secrets, values have digits, unless names and addresses count.
fn may_hold_table(line: &str, open: Option<u8>, (mut places, base): (&[usize], usize), all: bool) -> bool {
    let bytes = line.as_bytes();
    // An object of JSON in a field of CSV.
    if memchr::memchr(b'{', bytes).is_some() && memchr::memmem::find(bytes, b"{\"\"").is_some() {
        return true;
    }
    let secret = |place: &usize| {
        let letters = bytes[..place - base].iter().rev().take(LONGEST_NAME);
        let len = letters.take_while(|byte| byte.is_ascii_alphanumeric()).count();
        line.get(place - base - len..place - base).is_none_or(|word| heads::only_secret(heads::meaning(word)))
    };
    // A row may be a string of its own in a list of them.
    let row = |string: &[u8], rest: &[u8]| {
        let cells = || memchr::memmem::find(string, b"  ").is_some();
        rest.first() == Some(&b',') && (string.iter().any(|byte| b",;|".contains(byte)) || cells())
    };
    let (mut from, mut ends, mut headed, mut words) = (0, false, false, false);
    for Mark { start, end, byte, becomes, .. } in Marks::of(bytes, open).chain([Marks::last(bytes)]) {
        if becomes != Becomes::Border {
            ends |= matches!(byte, b'n' | b'r');
            continue;
        }
        if matches!(bytes.get(end), Some(b'{' | b'[')) && begins_json(&bytes[start..]) {
            return true;
        }
        let (here, rest) = places.split_at(places.partition_point(|place| *place - base <= start));
        let named = |place: &usize| bytes[place - base..start].trim_ascii_start().starts_with(b": ");
        ends |= !here.is_empty() && row(&bytes[from..start], &bytes[end..]);
        // The name of a `Series` is behind its values.
        if !here.is_empty() && memchr::memmem::find(&bytes[from..start], b"Name: ").is_some() {
            return true;
        }
        let head = ends && !here.is_empty();
        let named = here.iter().any(named);
        headed |= head || named;
        let behind = here.first().filter(|_| head || named);
        let value = &bytes[behind.map_or(from, |place| place - base)..start];
        let digits = || value.iter().filter(|byte| byte.is_ascii_digit()).count();
        // Text after a name and a colon is not in a string.
        if headed && bytes.get(from) != Some(&b':') && digits() >= FEWEST_DIGITS {
            return true;
        }
        words |= head && value.len() >= LEAST && (all || here.iter().any(secret));
        if words && ends && value.len() >= LEAST {
            return true;
        }
        (places, from, ends) = (rest, end, false);
    }
    false
}

/// Whether JSON begins after a quote, as in Python's repr of it.
fn begins_json(string: &[u8]) -> bool {
    let text = &string[1..];
    let opens = text.iter().take_while(|byte| b"[{ ".contains(byte)).count();
    text[opens..].starts_with(if string[0] == b'"' { b"\\\"" } else { b"\"" })
}

/// The findings in the lines of a piece.
struct Findings<'a> {
    guard: &'a Guard,
    text: &'a str,
    /// Findings without tables, in order; an empty one is withdrawn.
    known: Vec<Finding>,
    /// How many of those end before the line.
    passed: usize,
    /// Findings of tables, and how many of them are before the line.
    ours: Vec<Finding>,
    of_line: usize,
    line: Span,
}

impl Findings<'_> {
    /// Begins a line; whether it has findings.
    fn begin(&mut self, line: Span) -> bool {
        (self.line, self.of_line) = (line, self.ours.len());
        self.passed += self.known[self.passed..].iter().take_while(|known| known.end <= line.0).count();
        self.known.get(self.passed).is_some_and(|known| known.start < line.1)
    }

    /// What is replaced in the line without tables. A label's decision about a number is wrong where a head says that it
    /// is a count or an amount.
    fn hidden(&mut self, counts: &[Span]) -> Vec<Finding> {
        let (start, end) = self.line;
        let mut hidden = Vec::new();
        for at in self.passed..self.known.len() {
            let known = self.known[at];
            if known.start >= end {
                break;
            }
            let cut = Finding {
                start: known.start.max(start) - start,
                end: known.end.min(end).max(start) - start,
                ..known
            };
            let labelled = known.rule == RULES.detectors.phone_labelled;
            if labelled && counts.iter().any(|(from, to)| cut.start < *to && cut.end > *from) {
                self.known[at].end = known.start;
            } else if cut.start < cut.end && self.hides(&known) {
                hidden.push(cut);
            }
        }
        settle(&mut hidden);
        hidden
    }

    /// Whether a finding is replaced.
    fn hides(&self, finding: &Finding) -> bool {
        let value = self.text.get(finding.start..finding.end).unwrap_or_default();
        self.guard.action(finding.kind) != Action::Allow && !self.guard.lets_through(finding.kind, value)
    }

    /// Adds the findings of one reading of the line; whether any of it is hidden from here on. A value that was found whole
    /// needs no reason.
    fn add(&mut self, new: &[Finding], hidden: &mut Vec<Finding>) -> bool {
        let before = hidden.len();
        for found in new {
            let at = hidden[..before].partition_point(|known| known.start <= found.start);
            if at > 0 && hidden[at - 1].end >= found.end {
                continue;
            }
            let base = self.line.0;
            let here = Finding { start: base + found.start, end: base + found.end, ..*found };
            if self.hides(&here) {
                hidden.push(*found);
                self.ours.push(here);
            } else if !self.ours[self.of_line..].contains(&here) {
                self.ours.push(here);
            }
        }
        let more = hidden.len() > before;
        settle(hidden);
        more
    }
}

impl State {
    /// Whether nothing is open.
    fn sleeps(&self) -> bool {
        self.rests() && self.nested.sleeps()
    }

    /// Whether a line cannot contain a finding, though it may open and close nested brackets.
    fn finds_nothing(&self, line: Line<'_>) -> bool {
        let quiet = line.places.is_empty() && line.series.is_none();
        quiet && self.rests() && self.nested.finds_nothing(line.text, line.span, line.has_markup)
    }

    /// Whether no layout with one row per line is open.
    fn rests(&self) -> bool {
        self.head.is_none() && self.list.is_none() && self.listing.is_none()
    }

    /// Copies the state.
    fn copy(&self, to: &mut Self) {
        if self.head.as_ref().map(Arc::as_ptr) != to.head.as_ref().map(Arc::as_ptr) {
            to.head.clone_from(&self.head);
        }
        (to.misfits, to.quoted, to.list, to.cells) = (self.misfits, self.quoted, self.list, self.cells);
        (to.fresh, to.listed) = (self.fresh, self.listed);
        to.listing.clone_from(&self.listing);
        self.nested.copy(&mut to.nested);
    }

    /// Reads a line, which may be several lines of a table.
    fn read(&mut self, line: Line<'_>, out: &mut Vec<Finding>, counts: &mut Vec<Span>) -> Option<usize> {
        let Line { text, span: (start, end), mut places, goes_on, series, labelled, has_markup } = line;
        self.nested.begins(goes_on.map(Strings::is_open));
        let (mut at, mut done) = (start, None);
        while at < end {
            let next = line_end(text, at, end);
            let (here, rest) = places.split_at(places.partition_point(|place| *place <= next));
            places = rest;
            self.nested.tags(text, (at, next), has_markup, out);
            done = self.nested.line(text, (at, next), here, out);
            if !here.is_empty() {
                let found = &mut Found { out, line: at, labelled };
                assigned(without_end(&text[at..next]), at, here, found);
            }
            let series = series.filter(|_| (at, next) == (start, end));
            let quiet =
                here.is_empty() && series.is_none() && self.rests() && !begins_listing(&text[at..next]);
            // The spaces with which a progress bar was erased.
            let erased = text[at..next].ends_with('\r') && text[at..next].trim().is_empty();
            if (goes_on.is_none() || at > start) && !quiet && !erased {
                let line = without_end(&text[at..next]);
                let string = string_of_list(line);
                // After the arguments that a decorator names, code follows.
                if string.is_none() && self.listed {
                    self.head = None;
                }
                let known = self.head.is_some();
                let (from, to) = string.unwrap_or((0, line.len()));
                let found = &mut Found { out, line: at + from, labelled };
                self.layout(&line[from..to], !here.is_empty(), series, found, counts);
                if !known || self.head.is_none() {
                    self.listed = string.is_some() && self.head.is_some();
                }
            }
            at = next;
        }
        counts.append(&mut self.nested.counts);
        done
    }

    /// A line of a layout with one row per line.
    fn layout(
        &mut self,
        line: &str,
        headed: bool,
        series: Option<Meaning>,
        found: &mut Found<'_>,
        counts: &mut Vec<Span>,
    ) {
        if let Some(named) = series
            && let Some(span) = series::value(line).filter(|span| series::needs_its_name(line, *span))
        {
            let meant = if named.is_empty() { series::secret_label(line, span) } else { named };
            series::row(meant, line, span, found);
            // A row of the frame above may look like one.
            if self.head.is_none() && !meant.is_empty() {
                return;
            }
        }
        let text = line.trim_start_matches(' ');
        if text.is_empty() || text.starts_with('\r') {
            // A frame that is too wide prints its head again for the columns that follow. SAS puts a blank line below a head,
            // and on Windows separated values may have one below each row.
            let fresh = std::mem::take(&mut self.fresh);
            self.head = self.head.take().filter(|head| match head.layout {
                _ if head.spaced => true,
                Layout::Separated(_) => {
                    self.misfits += 1;
                    self.misfits < MISFITS[0]
                }
                layout => fresh && layout == Layout::Fixed(true),
            });
            if matches!(self.listing, Some((Layout::Cells, _))) {
                self.listed_names();
            }
            self.cells = 0;
            return;
        }
        self.listing(line, headed);
        if headed && marked_row(line, found) {
            return;
        }
        if self.head.is_some() && (is_rule(line) || self.row(line, found, counts)) {
            self.list = None;
            return;
        }
        if (headed || self.list.is_some()) && self.listed(line, found) {
            return;
        }
        if !headed || line.len() > LONGEST_LINE || !may_begin_head(text) {
            return;
        }
        if named_row(line, found) || side_row(line, found) {
            return;
        }
        // Under a pandas head a separate line names the index.
        let above = self.head.as_ref().filter(|head| matches!(head.layout, Layout::Fixed(_)));
        if let Some(mut head) = find_head(line).filter(|head| above.is_none() || head.columns.len() > 1) {
            let one = head.columns.last().map(|column| column.end) == head.index;
            let width = |above: &&Arc<Head>| above.columns.last().map(|column| column.end);
            if let Some(above) =
                above.filter(|above| head.index.is_some() && (one || width(above) == head.index))
            {
                head.columns.truncate(head.columns.len() - usize::from(one));
                let end = head.columns.last().map_or(0, |column| column.end);
                head.columns.extend(above.columns.iter().filter(|column| column.start >= end));
            }
            self.begins(head);
        }
    }

    /// Begins a table.
    fn begins(&mut self, head: Head) {
        (self.head, self.misfits, self.quoted, self.fresh) = (Some(Arc::new(head)), 0, false, true);
    }

    /// Reads names of columns that are listed one below the other, or in an SQL statement.
    fn listing(&mut self, line: &str, headed: bool) {
        let text = line.trim();
        if let Some((layout, columns)) = &mut self.listing {
            match layout {
                Layout::Cells => match text.strip_prefix(['|', '!']).or_else(|| item(text)) {
                    Some(_) if text == "|-" && columns.is_empty() => return,
                    Some(name)
                        if !name.contains(['|', '=', '!']) && name != "-" && columns.len() < MAX_CELLS =>
                    {
                        if text.starts_with("* - ") && !columns.is_empty() {
                            return self.listed_names();
                        }
                        columns.push(Column::new(name, 0, 0));
                        return;
                    }
                    _ if text.starts_with("|-") => return self.listed_names(),
                    _ if text.starts_with(':') || text.starts_with("|+") => return,
                    _ => self.listing = None,
                },
                _ => {
                    let ends = text.starts_with(')') || text.ends_with(';') || columns.len() >= MAX_CELLS;
                    if !text.starts_with(')') {
                        names_of_sql(text, columns);
                    }
                    if ends {
                        self.listed_names();
                    }
                    return;
                }
            }
        }
        if CELLS.iter().any(|sign| text.starts_with(sign)) {
            // The same sign ends a table of AsciiDoc.
            let ends = |head: &Arc<Head>| text.starts_with(CELLS[0]) && head.layout == Layout::Cells;
            let ended = self.head.take_if(|head| ends(head)).is_some();
            self.listing = (!ended).then(|| (Layout::Cells, Vec::new()));
            return;
        }
        let created = || Some((strip_ignoring_case(text, CREATE)?.split_once('(')?.1, text.ends_with(';')));
        let filled = || {
            let (table, names) = insertion(text, headed)?.split_once('(')?;
            let (names, _) = names.split_once(')')?;
            find_ignoring_case(table, "values").is_none().then_some((names, true))
        };
        if let Some((names, whole)) = created().or_else(filled) {
            let mut columns = Vec::new();
            names_of_sql(names, &mut columns);
            self.listing = Some((Layout::Tuples, columns));
            if whole {
                self.listed_names();
            }
        }
    }

    /// Makes a head of the names so far.
    fn listed_names(&mut self) {
        let Some((layout, columns)) = self.listing.take_if(|(_, columns)| !columns.is_empty()) else {
            return;
        };
        if speak(&columns) {
            self.begins(Head { spaced: true, ..Head::new(layout, columns) });
        } else if layout == Layout::Tuples {
            // The rows that follow do not belong to the table before.
            self.head = self.head.take().filter(|head| head.layout != Layout::Tuples);
        }
        self.cells = 0;
    }

    /// Whether a line is a value under the line above, or announces one below it.
    fn listed(&mut self, line: &str, found: &mut Found<'_>) -> bool {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if text.starts_with('<') && text.contains("</") {
            let above = self.list.filter(|(_, below)| matches!(below, Below::Element));
            let meant = elements(line, above.map_or(&[], |(meant, _)| meant), found);
            self.list = (!meant.is_empty()).then_some((meant, Below::Element));
            return false;
        }
        if let Some((meant, Below::Array)) = self.list {
            let (any, closes) = array_row(meant, line, found);
            self.list = self.list.filter(|_| any && !closes);
            return any;
        }
        let value = match self.list {
            Some((meant, Below::Items(above))) if indent >= above => {
                text.strip_prefix("- ").map(|item| (meant, item))
            }
            Some((meant, Below::Dump)) => {
                let (kind, value) = text.split_once('(').unwrap_or_default();
                let value = value.split_once(if kind == "string" { ") " } else { ")" });
                value.map(|(number, string)| (meant, if kind == "string" { string } else { number }))
            }
            Some((meant, Below::Output)) => (!text.contains(' ')).then_some((meant, text)),
            Some((meant, Below::Some)) => Some((meant, text.trim_end().trim_end_matches(','))),
            Some((meant, Below::Entry(above))) if indent == above => {
                let (key, value) = text.split_once(": ").unwrap_or_default();
                (role(key) == Role::Value).then_some((meant, value))
            }
            _ => None,
        };
        if let Some((meant, value)) = value {
            found.cell(meant, line, span_of(value, line), Place::Wide);
            if !matches!(self.list, Some((_, Below::Items(_)))) {
                self.list = None;
            }
            return true;
        }
        let text = text.trim_end();
        // A call, such as `def f(key):`, is not a key.
        let key = text.strip_suffix(':').filter(|key| is_name(key) && !key.ends_with(')'));
        let key = key.map(|key| (key.trim_matches(['"', '\'']), Below::Items(indent)));
        let dumped =
            || Some((text.strip_prefix("[\"")?.strip_suffix("]=>")?.split('"').next()?, Below::Dump));
        let array = || Some((array_named(text)?, Below::Array));
        let output = || Some((printed(text)?, Below::Output));
        let option = || Some((text.strip_suffix(": Some(")?, Below::Some));
        let entry = || entry_name(text).map(|(item, name)| (name, Below::Entry(indent + item)));
        let key = key.or_else(array).or_else(dumped).or_else(output).or_else(option).or_else(entry);
        self.list =
            key.map(|(key, below)| (heads::meaning(key), below)).filter(|(meant, _)| !meant.is_empty());
        self.list.is_some()
    }

    /// Whether a line is a row of the open table.
    #[expect(clippy::too_many_lines, reason = "an arm for each layout")]
    fn row(&mut self, line: &str, found: &mut Found<'_>, counts: &mut Vec<Span>) -> bool {
        let (Some(head), labelled) = (self.head.clone(), found.labelled) else { return false };
        // A replaced value is a value of its column, with another width.
        let replaced = holds_placeholder(line);
        let fits = match head.layout {
            Layout::Separated(sign) => match self.separated(&head, line, sign, found) {
                Some(fits) => fits,
                None => return true,
            },
            Layout::Tuples => {
                let mut tuples = tuples(line);
                tuples.retain(|tuple| tuple.len() == head.columns.len());
                tuples.iter().for_each(|tuple| found.cells(&head.columns, line, tuple, Place::Wide));
                !tuples.is_empty()
            }
            Layout::Cells => {
                let begins = ["|-", "* - "].map(|row| line.trim_start().starts_with(row));
                self.cells = if begins.contains(&true) { 0 } else { self.cells };
                let cells = match item(line) {
                    _ if begins[0] => Vec::new(),
                    Some(cell) => vec![(line.len() - cell.len(), line.len())],
                    None => unquoted(line, '|').split_off(1),
                };
                for span in &cells {
                    let column = head.columns[self.cells % head.columns.len()];
                    found.cell(column.meant, line, *span, Place::Wide);
                    self.cells += 1;
                }
                begins[0] || !cells.is_empty()
            }
            Layout::Words => {
                let words = words(line);
                if words.len() != head.columns.len() {
                    self.head = None;
                    return false;
                }
                let before = found.out.len();
                found.cells(&head.columns, line, &words, Place::Alone);
                replaced || found.out.len() > before
            }
            Layout::Fixed(gaps) if replaced || !line.is_ascii() => {
                let parts = segments(line);
                // The index of a frame has no head.
                let index = parts.len().checked_sub(head.columns.len());
                if let Some(index) =
                    index.filter(|index| gaps && (*index == 0 || *index == 1 && head.columns[0].start > 0))
                {
                    found.cells(&head.columns, line, &parts[index..], Place::Wide);
                }
                replaced || frame_row(&head, gaps, line, found)
            }
            Layout::Fixed(gaps) => frame_row(&head, gaps, line, found),
        };
        if fits {
            (self.misfits, self.fresh) = (0, false);
            if labelled && head.columns.len() > 1 {
                let cells = bare_numbers(line, head.layout);
                counts.extend(cells.iter().map(|(start, end)| (found.line + start, found.line + end)));
            }
            return true;
        }
        self.misfits += 1;
        let limit = MISFITS[usize::from(!matches!(head.layout, Layout::Separated(_)))];
        if self.misfits >= limit {
            self.head = None;
        }
        false
    }

    /// Whether the fields of a line are those of a row; `None` if a quoted field continues past its end, in which case its
    /// other fields are read as usual.
    fn separated(&mut self, head: &Head, line: &str, sign: char, found: &mut Found<'_>) -> Option<bool> {
        let columns = &head.columns[..];
        let place = if columns.len() > 1 { Place::Wide } else { Place::Alone };
        let count = columns.len();
        let before = std::mem::take(&mut self.quoted);
        let (mut fields, open) = match doubled(line, sign).filter(|wiki| wiki.len() == count) {
            Some(fields) => (fields, before),
            None => split(line, sign, before),
        };
        if let Some(lead) = head.lead.filter(|lead| *lead < fields.len().min(count) && !before) {
            fields[lead] = without_lead(line, fields[lead], &columns[lead]);
        }
        if before && open && !line.contains('"') {
            // The field continues on the next line, unless its quote never ends: that must not hide the rows after it.
            let fields = unquoted(line, sign);
            self.quoted = fields.len() != count;
            if !self.quoted {
                found.cells(columns, line, &fields, place);
            }
            return None;
        }
        self.quoted = open;
        if fields.len() == count && !before {
            found.cells(columns, line, &fields, place);
            return (!open).then_some(true);
        }
        if before && fields.len() <= count {
            // The field that ends here, and those after it.
            found.cells(&columns[count - fields.len()..], line, &fields, place);
        } else if open {
            // A stray quote, or a field that continues on the next line.
            let plain = unquoted(line, sign);
            let whole = &fields[..fields.len() - 1];
            found.cells(columns, line, if plain.len() == count { &plain } else { whole }, place);
        }
        (!open && !before).then_some(false)
    }
}

/// Removes the first places, as long as they are `before` another.
fn skip<'a, T>(places: &mut &'a [T], before: impl Fn(&T) -> bool) -> &'a [T] {
    let (passed, rest) = places.split_at(places.iter().take_while(|place| before(place)).count());
    *places = rest;
    passed
}

/// The name that a YAML entry gives its neighbour, `- type: passport`, and the length of the item's mark before it.
fn entry_name(text: &str) -> Option<(usize, &str)> {
    let (item, entry) = text.strip_prefix("- ").map_or((0, text), |entry| (2, entry));
    let (key, name) = entry.split_once(':')?;
    let name = name.strip_prefix(' ').filter(|_| role(key) == Role::Label)?;
    Some((item, last_part(name.trim_matches(['"', '\'']))))
}

/// The name of an array whose values follow: of polars, xarray, pandas.
fn array_named(text: &str) -> Option<&str> {
    match text.strip_prefix("Series: '").or_else(|| text.strip_prefix("<xarray.DataArray '")) {
        Some(rest) => rest.split('\'').next(),
        None => Some(text.strip_suffix("Array>")?.split_once(": <")?.0),
    }
}

/// The values of an array in a line; whether there may be any, and whether the array ends there.
fn array_row(meant: Meaning, line: &str, found: &mut Found<'_>) -> (bool, bool) {
    let (text, inner) = (line.trim(), line.trim_start());
    let inner = inner.strip_prefix("array(").unwrap_or(inner).trim_start_matches('[');
    let (mut at, mut any) = (line.len() - inner.len(), inner.trim().is_empty() || holds_placeholder(text));
    for cell in inner.split_inclusive([',', '\t']) {
        let whole = cell.trim_end().trim_end_matches([',', ']', ')']);
        any |= found.cell(meant, line, (at, at + whole.len()), Place::Wide);
        at += cell.len();
    }
    // The bracket after a placeholder is its own.
    let closes = text.ends_with([']', ')']) && placeholder_around(text.as_bytes(), text.len() - 1).is_none();
    (any, closes)
}

/// The text after the words of an SQL statement that adds rows: at the beginning of a line, or after the prefix of a log line,
/// which begins with its time or its level.
fn insertion(text: &str, headed: bool) -> Option<&str> {
    let logs = |c: char| c.is_ascii_digit() || c.is_ascii_uppercase() || matches!(c, '[' | '(');
    let statement = |begin| strip_ignoring_case(text, begin);
    statement("INSERT INTO ").or_else(|| statement("REPLACE INTO ")).or_else(|| {
        let logged = headed && text.starts_with(logs);
        Some(logged.then(|| text.split_once(" INSERT INTO "))??.1)
    })
}

/// A string with a row in it, alone on its line of a list, as `pprint` and JSON print one.
fn string_of_list(line: &str) -> Option<Span> {
    let text = line.trim_start_matches(['[', '(', ' ']);
    let quote = text.chars().next().filter(|sign| matches!(sign, '"' | '\''))?;
    let text = text[1..].trim_end_matches([',', ']', ')', ' ', '\r']).strip_suffix(quote)?;
    let text = text.strip_suffix("\\n").unwrap_or(text);
    let row = !text.contains(quote) && text.contains([',', ';', '\t', '|']);
    row.then_some(span_of(text, line))
}

/// The beginnings of tables with a line for each cell: AsciiDoc, MediaWiki, reStructuredText.
const CELLS: [&str; 3] = ["|===", "{|", ".. list-table::"];
/// The beginning of an SQL statement that names the columns of a table.
const CREATE: &str = "CREATE TABLE ";

/// A cell of a reStructuredText table that is written as a list.
fn item(line: &str) -> Option<&str> {
    let text = line.trim_start();
    text.strip_prefix("* - ").or_else(|| text.strip_prefix("- "))
}

/// Whether a line may begin names of columns that are listed one below the other.
fn begins_listing(line: &str) -> bool {
    let begin = line.trim_start();
    CELLS.iter().any(|sign| begin.starts_with(sign)) || strip_ignoring_case(begin, CREATE).is_some()
}

/// The bare numbers of a row, each a cell: no label in the line above applies to them.
fn bare_numbers(line: &str, layout: Layout) -> Vec<Span> {
    let cells = match layout {
        Layout::Separated(sign) => split(line, sign, false).0,
        _ => segments(line),
    };
    let bare = |(start, end): &Span| {
        let cell = line[*start..*end].trim();
        !cell.is_empty() && cell.bytes().all(|byte| byte.is_ascii_digit())
    };
    cells.into_iter().filter(bare).collect()
}

/// A line of punctuation alone, between a head and its rows.
fn is_rule(line: &str) -> bool {
    line.chars()
        .all(|c| matches!(c, ' ' | '-' | '+' | '=' | '|' | ':' | '*' | '\r' | '\u{2500}'..='\u{257f}'))
}

/// Whether a line with this beginning may be the head of a table, also after a prefix.
fn may_begin_head(line: &str) -> bool {
    let comment = line.starts_with("//") || line.starts_with("/*");
    let sign = |first: u8| b"|\"'#_(,;.\t[!\\&:>+*=-/".contains(&first);
    line.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric() || first >= 0x80 || sign(first))
        && !comment
}
