//! Tables as text: a head speaks for its column, however many rows follow.
//!
//! One line machine reads the layouts that have a row in a line: separated values, fixed width, boxes, Markdown, records
//! with a name before each value, a pandas `Series` (whose head stands behind it). [`super::nested`] reads what is nested:
//! JSON, what Python and JavaScript print of their values, HTML. What is kept of a table is its head, so it may be as long as it
//! likes and come in any pieces.

use super::classes::{Block, alphanumeric_or, only};
use super::heads::{self, Meaning, Place};
use super::nested::Nested;
use super::rule::{RULES, RuleId};
use super::scan::{Finding, holds_placeholder};

/// No longer line is a head or a row of fixed width.
const LONGEST_LINE: usize = 4000;
/// The most columns of a head that is not separated by signs.
const MAX_WORDS: usize = 64;
/// The most words of a head with one blank between them.
const LONGEST_PROSE: usize = 24;
/// The most columns of any.
const MAX_FIELDS: usize = 256;
/// The number of successive lines that do not fit after which a head is over: with fields that a sign separates, and of fixed width.
const MISFITS: [u8; 2] = [4, 9];
/// The most lines of a `Series` that stand before its name; pandas prints 60.
const SERIES: usize = 64;
/// No line of one is longer.
const LONGEST_SERIES: usize = 201;
/// The longest name before a value on its line, and of a column.
const LONGEST_NAME: usize = 41;

/// What is known of the tables that a text is in the middle of.
#[derive(Debug, Default)]
pub(super) struct Tables {
    head: Option<Head>,
    misfits: u8,
    /// Whether a quoted field goes over the end of the line.
    quoted: bool,
    /// What the name behind a `Series` means, and how many of its lines are still to come.
    series: (Meaning, usize),
    /// What the key above a list of YAML says, and how far that is indented.
    list: Option<(Meaning, usize)>,
    /// The number of lines to come that are known to belong to no `Series`.
    plain: usize,
    nested: Nested,
    words: heads::Words,
}

#[derive(Debug)]
struct Head {
    layout: Layout,
    columns: Vec<Column>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Fields with a sign between.
    Separated(char),
    /// Columns under each other; whether the head has two blanks anywhere.
    Fixed(bool),
    /// One blank between the words of the head, and of each row.
    Words,
}

#[derive(Debug, Clone, Copy)]
struct Column {
    meant: Meaning,
    /// Where the head stands, in characters.
    start: usize,
    end: usize,
}

/// Whether what stands at the end of `text[start..]` may belong to a `Series` whose name is still to come; where that begins.
pub(super) fn may_be_series(text: &str, start: usize, end: usize) -> Option<usize> {
    let lines: Vec<&str> = text[start..end].split_inclusive('\n').rev().take(SERIES).collect();
    let count = lines.iter().take_while(|line| series_value(line).is_some() || is_dots(line)).count();
    let worth =
        lines[..count].iter().any(|line| series_value(line).is_some_and(|(at, to)| telling(&line[at..to])));
    (worth && count < SERIES).then(|| end - lines[..count].iter().map(|line| line.len()).sum::<usize>())
}

/// Whether a value may be one that only its head makes telling.
fn telling(value: &str) -> bool {
    let decimal = value.contains('.') && value.replace(',', "").parse::<f64>().is_ok();
    !decimal
        && value.bytes().filter(u8::is_ascii_digit).count() >= 2
        && value.bytes().filter(u8::is_ascii_alphanumeric).count() >= 8
}

fn is_dots(line: &str) -> bool {
    matches!(line.trim(), ".." | "...")
}

/// Where in a line of a `Series` its value stands: a label, two or more blanks, and no such gap again.
fn series_value(line: &str) -> Option<(usize, usize)> {
    let line = line.trim_end();
    let gap = line.find("  ").filter(|at| *at > 0)?;
    let value = gap + line[gap..].find(|c| c != ' ')?;
    // What was replaced in a label has another length.
    (line.len() < LONGEST_SERIES && !line[value..].contains("  ") && !holds_placeholder(&line[..gap]))
        .then_some((value, line.len()))
}

/// What the line behind a `Series` says its values are: `Name: ssn, dtype: object`.
fn series_name(line: &str) -> Option<Meaning> {
    let (name, rest) = line.strip_prefix("Name: ")?.split_once(", ")?;
    (rest.starts_with("dtype: ") || rest.starts_with("Length: ")).then(|| heads::meaning(name))
}

/// What stands between the cells of a box.
const BARS: [char; 4] = ['|', '│', '┃', '║'];

/// A part of a line, in bytes.
type Span = (usize, usize);

/// Where findings go.
struct Found<'a> {
    out: &'a mut Vec<Finding>,
    line: usize,
}

impl Found<'_> {
    fn cell(&mut self, meant: Meaning, line: &str, (start, end): Span, place: Place) -> bool {
        let found = heads::cell(meant, &line[start..end], place);
        if let Some(((from, to), rule)) = found {
            self.out.push(finding(self.line + start + from, self.line + start + to, rule));
        }
        found.is_some()
    }
}

/// What a head makes of a place.
pub(super) fn finding(start: usize, end: usize, rule: RuleId) -> Finding {
    Finding { start, end, kind: RULES.list[usize::from(rule)].kind, rule, decoded: false }
}

impl Tables {
    /// Looks at `text[start..end]`, which follows what was looked at before; `goes_on` with a line. Where it ends within a value
    /// that is not whole yet, that is where the next piece should begin. `all` kinds count, or those that are hidden unless a
    /// policy says otherwise.
    ///
    /// A line is parsed only where it holds a word of a head, or where one is open. `blocks` are those of that text, where somebody
    /// has them.
    pub(super) fn look(
        &mut self,
        text: &str,
        (start, end): Span,
        goes_on: bool,
        all: bool,
        blocks: Option<&[Block]>,
        out: &mut Vec<Finding>,
    ) -> usize {
        let bytes = text.as_bytes();
        let before = out.len();
        let mut words = std::mem::take(&mut self.words);
        words.fill(bytes, (start, end), all, blocks);
        let (mut words_left, mut openers) = (&words.places[..], &words.openers[..]);
        let ahead = &bytes[start..bytes.len().min(end + SERIES * LONGEST_SERIES)];
        let series = self.series.1 > 0 || memchr::memmem::find(ahead, b"\nName: ").is_some();
        if !series {
            self.plain = 0;
        }
        let labelled = out.iter().any(|found| found.rule == RULES.detectors.phone_labelled);
        self.nested.tags(text, (start, end), out);
        let (mut at, mut whole, mut counts) = (start, end, Vec::new());
        while at < end {
            // Lines with nothing to say where nothing is open, as nearly all are.
            if !series && self.head.is_none() && self.list.is_none() && self.nested.sleeps() {
                let passed = openers.iter().take_while(|line| **line < at).count();
                openers = &openers[passed..];
                let stop = words_left.first().map_or(end, |place| place - 1);
                let stop = openers.first().map_or(stop, |line| stop.min(*line));
                at = memchr::memrchr(b'\n', &bytes[at..stop]).map_or(at, |feed| at + feed + 1);
                if at == end {
                    break;
                }
            }
            let next = memchr::memchr(b'\n', &bytes[at..end]).map_or(end, |feed| at + feed + 1);
            let passed = words_left.iter().take_while(|place| **place <= next).count();
            let (places, rest) = words_left.split_at(passed);
            words_left = rest;
            if let Some(done) = self.nested.line(text, (at, next), places, out) {
                whole = if bytes[next - 1] == b'\n' { whole } else { done };
            }
            let telling = passed > 0;
            if (at > start || !goes_on) && (telling || series || self.head.is_some() || self.list.is_some()) {
                let line = text[at..next].trim_end_matches('\n');
                self.line(text, at, line, (telling, series), out, labelled.then_some(&mut counts));
            }
            at = next;
        }
        self.words = words;
        counts.append(&mut self.nested.counts);
        if out.len() > before || labelled && !counts.is_empty() {
            only_once(before, &counts, out);
        }
        whole
    }

    fn line(
        &mut self,
        text: &str,
        at: usize,
        line: &str,
        (telling, series): (bool, bool),
        out: &mut Vec<Finding>,
        counts: Option<&mut Vec<Span>>,
    ) {
        let found = &mut Found { out, line: at };
        if series && self.in_series(text, at, line, found) {
            return;
        }
        let first = line.bytes().find(|byte| *byte != b' ');
        let Some(first) = first.filter(|byte| *byte != b'\r') else {
            // A frame that is too wide prints its head again for the columns that follow.
            self.head = None;
            return;
        };
        if self.head.is_some() && (is_rule(line) || self.row(line, found, counts)) {
            self.list = None;
            return;
        }
        if (telling || self.list.is_some()) && self.listed(line, found) {
            return;
        }
        let begins = first.is_ascii_alphabetic()
            || matches!(first, b'|' | b'"' | b'#' | b'_' | b'(' | b',' | b';' | b'.' | b'\t')
            || first >= 0x80;
        if !telling || line.len() > LONGEST_LINE || !begins || self.named_row(line, found) {
            return;
        }
        // Under a head of pandas a line of its own names the index.
        let fixed = self.head.as_ref().is_some_and(|head| matches!(head.layout, Layout::Fixed(_)));
        if let Some(head) = find_head(line).filter(|head| !fixed || head.columns.len() > 1) {
            (self.head, self.misfits, self.quoted) = (Some(head), 0, false);
        }
    }

    /// Whether a line belongs to a `Series`; the name behind it is looked for once.
    fn in_series(&mut self, text: &str, at: usize, line: &str, found: &mut Found<'_>) -> bool {
        if self.plain > 0 {
            self.plain -= 1;
            return false;
        }
        if self.series.1 == 0 {
            if series_value(line).is_none() {
                return false;
            }
            let (mut count, mut name, mut sure) = (0, None, false);
            for next in text[at..].split_inclusive('\n').take(SERIES) {
                // The name on a line of its own is that of the values above it.
                name = (count > 0).then(|| series_name(next.trim_end())).flatten();
                if name.is_some() || series_value(next).is_none() && !is_dots(next) {
                    sure = next.ends_with('\n');
                    break;
                }
                count += 1;
            }
            match name {
                Some(meant) if !meant.is_empty() => self.series = (meant, count),
                _ => {
                    if sure || count == SERIES {
                        self.plain = count.saturating_sub(1);
                    }
                    return false;
                }
            }
        }
        self.series.1 -= 1;
        series_value(line).is_some_and(|span| found.cell(self.series.0, line, span, Place::Wide))
    }

    /// Whether a line is an item of a list under a key, or that key: YAML.
    fn listed(&mut self, line: &str, found: &mut Found<'_>) -> bool {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if let (Some((meant, above)), Some(item)) = (self.list, text.strip_prefix("- "))
            && indent >= above
        {
            found.cell(meant, line, (line.len() - item.len(), line.len()), Place::Wide);
            return true;
        }
        // A call, as `def f(key):` has it, is none.
        let key = text.trim_end().strip_suffix(':').filter(|key| is_name(key) && !key.ends_with(')'));
        let meant = key.map_or(&[][..], |key| heads::meaning(key.trim_matches(['"', '\''])));
        self.list = (!meant.is_empty()).then_some((meant, indent));
        self.list.is_some()
    }

    /// Whether a line is a row of the table that is open.
    fn row(&mut self, line: &str, found: &mut Found<'_>, counts: Option<&mut Vec<Span>>) -> bool {
        let Some(head) = &self.head else { return false };
        let before = found.out.len();
        let fits = match head.layout {
            Layout::Separated(sign) => {
                let (fields, open) = split(line, sign);
                if self.quoted || open {
                    self.quoted ^= line.bytes().filter(|byte| *byte == b'"').count() % 2 == 1;
                    return true;
                }
                let fits = fields.len() == head.columns.len();
                if fits {
                    for (span, column) in fields.iter().zip(&head.columns) {
                        found.cell(
                            column.meant,
                            line,
                            *span,
                            if fields.len() > 1 { Place::Wide } else { Place::Alone },
                        );
                    }
                }
                fits
            }
            Layout::Words => {
                let words = words(line);
                if words.len() != head.columns.len() {
                    self.head = None;
                    return false;
                }
                for (span, column) in words.iter().zip(&head.columns) {
                    found.cell(column.meant, line, *span, Place::Alone);
                }
                found.out.len() > before
            }
            // What was replaced has another width: the columns stand elsewhere.
            Layout::Fixed(_) if holds_placeholder(line) => true,
            Layout::Fixed(gaps) => line.len() <= LONGEST_LINE && fixed_row(&head.columns, gaps, line, found),
        };
        if fits {
            self.misfits = 0;
            if let Some(counts) = counts.filter(|_| head.columns.len() > 1) {
                let cells = bare_numbers(line, head.layout);
                counts.extend(cells.iter().map(|(start, end)| (found.line + start, found.line + end)));
            }
            return true;
        }
        self.misfits += 1;
        let limit = MISFITS[usize::from(matches!(head.layout, Layout::Fixed(_)))];
        if self.misfits >= limit {
            self.head = None;
        }
        false
    }

    /// A line that begins with the name of what follows: `ssn  219-09-9998`, `| ssn | 219-09-9998 |`, `ssn: 219-09-9998`.
    fn named_row(&self, line: &str, found: &mut Found<'_>) -> bool {
        let outer = |c: char| c == ' ' || BARS.contains(&c);
        let trimmed = line.trim_start_matches(outer);
        let lead = line.len() - trimmed.len();
        // As far as a name is long.
        let joint = trimmed.char_indices().take(LONGEST_NAME + 4).find(|(at, sign)| {
            matches!(sign, ':' | '=') || outer(*sign) && (*sign != ' ' || trimmed[*at..].starts_with("  "))
        });
        let Some((end, _)) = joint else { return false };
        let name = trimmed[..end].trim_end();
        let rest = trimmed[end..].trim_start_matches(|c: char| outer(c) || matches!(c, ':' | '='));
        let mark = &trimmed[end..trimmed.len() - rest.len()];
        // `name=value` and `a:b` are code and options more often.
        let place = if mark.contains([':', '=']) { Place::Line } else { Place::Wide };
        let apart = mark.contains(outer);
        if name.len() > LONGEST_NAME || !apart || rest.is_empty() || !name.starts_with(char::is_alphabetic) {
            return false;
        }
        let meant = heads::meaning(name);
        if meant.is_empty() || heads::only_secret(meant) && mark.contains([':', '=']) {
            return false;
        }
        let start = lead + trimmed.len() - rest.len();
        let rest = rest.trim_end_matches(|c: char| outer(c) || c == '\r');
        let wordy = rest.bytes().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b' '));
        if wordy && heads::only_secret(meant) {
            return false;
        }
        if found.cell(meant, line, (start, start + rest.len()), place) {
            return true;
        }
        let mut parts = segments(rest);
        // What pandas leaves out.
        parts.retain(|(from, to)| &rest[*from..*to] != "...");
        let fit = |(from, to): &Span| heads::cell(meant, &rest[*from..*to], place).is_some();
        let all = rest.contains("  ") && !parts.is_empty() && parts.iter().all(fit);
        if all {
            for (from, to) in parts {
                found.cell(meant, line, (start + from, start + to), place);
            }
        }
        all
    }
}

/// What a label near it makes of a number is wrong where a head says that it is a count or an amount; and what has been found
/// whole needs no second reason: of what stands in `out` from `before` on, that is left which adds something.
fn only_once(before: usize, counts: &[Span], out: &mut Vec<Finding>) {
    let ours = out.split_off(before);
    out.retain(|found| {
        let labelled = found.rule == RULES.detectors.phone_labelled;
        !labelled || !counts.iter().any(|(start, end)| found.start < *end && found.end > *start)
    });
    let mut known: Vec<Span> = out.iter().map(|found| (found.start, found.end)).collect();
    known.sort_unstable();
    out.extend(ours.into_iter().filter(|found| {
        let behind = known.partition_point(|(start, _)| *start <= found.start);
        !known[..behind].iter().rev().take(2).any(|(_, end)| *end >= found.end)
    }));
}

/// The bare numbers of a row, each a cell: no label in the line above speaks of them.
fn bare_numbers(line: &str, layout: Layout) -> Vec<Span> {
    let cells = match layout {
        Layout::Separated(sign) => split(line, sign).0,
        _ => segments(line),
    };
    let bare = |(start, end): &Span| {
        let cell = line[*start..*end].trim();
        !cell.is_empty() && cell.bytes().all(|byte| byte.is_ascii_digit())
    };
    cells.into_iter().filter(bare).collect()
}

/// A line of signs alone, between a head and its rows.
fn is_rule(line: &str) -> bool {
    line.chars()
        .all(|c| matches!(c, ' ' | '-' | '+' | '=' | '|' | ':' | '*' | '\r' | '\u{2500}'..='\u{257f}'))
}

/// Fields with a sign between, where a quoted one may hold the sign; whether a quote stays open.
fn split(line: &str, sign: char) -> (Vec<Span>, bool) {
    let (mut fields, mut start, mut quoted) = (Vec::new(), 0, false);
    for (at, c) in line.char_indices() {
        if c == '"' && (quoted || line[start..at].trim().is_empty()) {
            quoted = !quoted;
        } else if c == sign && !quoted {
            fields.push((start, at));
            start = at + c.len_utf8();
        }
        // A doubled quote opens again at once.
        if c == '"' && !quoted && line[at + 1..].starts_with('"') {
            quoted = true;
        }
    }
    fields.push((start, line.len()));
    (fields, quoted)
}

fn is_sign_of_name(c: char) -> bool {
    static SIGNS: [bool; 256] = alphanumeric_or(b" _.#/()%'*-");
    if c.is_ascii() { SIGNS[c as usize] } else { c.is_alphanumeric() || matches!(c, '°' | '’') }
}

/// Whether a text may be the head of a column: a name of a few words.
fn is_name(text: &str) -> bool {
    let text = text.trim_matches(['"', '\'', '`']);
    if !heads::is_unmasked(text) {
        return false;
    }
    let text = text.trim_matches('*');
    text.is_empty()
        || text == "(index)"
        || text.chars().count() <= LONGEST_NAME
            && text.starts_with(|c: char| c.is_alphabetic() || matches!(c, '#' | '_'))
            && text.chars().all(is_sign_of_name)
            && text.split(' ').count() <= 5
}

/// The head of a table, if a line is one.
fn find_head(line: &str) -> Option<Head> {
    // A frame that goes on below.
    let line = line.trim_end().trim_end_matches(" \\");
    // What stands in no name and between none.
    static OTHER: [bool; 256] = only(b":={}[]<>!&$@+?~^\\");
    if line.bytes().any(|byte| OTHER[usize::from(byte)]) {
        return None;
    }
    separated_head(line).or_else(|| fixed_head(line))
}

fn separated_head(line: &str) -> Option<Head> {
    let mut best: Option<Head> = None;
    for sign in ['\t', ';', ','].into_iter().chain(BARS) {
        if !line.contains(sign)
            || matches!(sign, ',' | ';')
                && (line.starts_with([' ', '\t']) || line.trim_end().ends_with([',', ';']))
        {
            continue;
        }
        let (fields, _) = split(line, sign);
        let names: Vec<&str> = fields.iter().map(|(start, end)| line[*start..*end].trim()).collect();
        let edges = names.len() > 2
            && BARS.contains(&sign)
            && names[0].is_empty()
            && names[names.len() - 1].is_empty();
        let inner = if edges { &names[1..names.len() - 1] } else { &names[..] };
        let fits = inner.len() <= MAX_FIELDS
            && inner.iter().all(|name| is_name(name))
            && inner.iter().filter(|name| name.is_empty()).count() <= 1
            && (inner.len() >= 2 || edges);
        if !fits || best.as_ref().is_some_and(|best| best.columns.len() >= fields.len()) {
            continue;
        }
        let columns: Vec<Column> =
            names.iter().map(|name| Column { meant: heads::meaning(name), start: 0, end: 0 }).collect();
        if columns.iter().any(|column| !column.meant.is_empty()) {
            best = Some(Head { layout: Layout::Separated(sign), columns });
        }
    }
    best
}

fn fixed_head(line: &str) -> Option<Head> {
    if !line.chars().all(|c| is_sign_of_name(c) || matches!(c, '\t' | '"' | '`')) {
        return None;
    }
    let parts = segments(line);
    let cells = cells_of_head(line, &parts)?;
    let numbered = |name: &str| {
        matches!(name, ".." | "...") || name.len() <= 3 && name.bytes().all(|byte| byte.is_ascii_digit())
    };
    if cells.is_empty()
        || cells.len() > MAX_WORDS
        || !cells.iter().all(|(start, end)| is_name(&line[*start..*end]) || numbered(&line[*start..*end]))
        || parts.len() < 2 && !line.starts_with(' ') && cells.len() > 8
    {
        return None;
    }
    let place = |at: usize| if line.is_ascii() { at } else { line[..at].chars().count() };
    let columns: Vec<Column> = cells
        .iter()
        .map(|(start, end)| Column {
            meant: heads::meaning(&line[*start..*end]),
            start: place(*start),
            end: place(*end),
        })
        .collect();
    let layout = if parts.len() == 1 && cells.len() > 1 && !line.starts_with(' ') {
        Layout::Words
    } else {
        Layout::Fixed(parts.len() > 1)
    };
    // A column alone says nothing of a secret, and neither do words with one blank between.
    let alone = columns.len() == 1 || layout != Layout::Fixed(true);
    let speaks = |column: &Column| !(column.meant.is_empty() || alone && heads::only_secret(column.meant));
    columns.iter().any(speaks).then_some(Head { layout, columns })
}

/// The heads in the parts of a line; nothing for prose.
fn cells_of_head(line: &str, parts: &[Span]) -> Option<Vec<Span>> {
    let mut cells = Vec::new();
    for &(start, end) in parts {
        let part = &line[start..end];
        if !part.contains(' ') || heads::is_whole(part) {
            cells.push((start, end));
            continue;
        }
        // The longest known heads of several words, else each word: pandas puts one blank between columns.
        let inner = words(part);
        if parts.len() < 2 && inner.len() > LONGEST_PROSE {
            return None;
        }
        let telling: Vec<bool> =
            inner.iter().map(|(from, to)| heads::may_be_head(&part[*from..*to])).collect();
        // Prose that speaks of keys and tokens: without a gap that is no head of them.
        let secret = |(from, to): &Span| {
            let meant = heads::meaning(&part[*from..*to]);
            !meant.is_empty() && heads::only_secret(meant)
        };
        if parts.len() < 2 && inner.iter().zip(&telling).all(|(word, telling)| !telling || secret(word)) {
            return None;
        }
        let mut at = 0;
        while at < inner.len() {
            let known = |to: &usize| {
                telling[at..=*to].contains(&true) && heads::is_whole(&part[inner[at].0..inner[*to].1])
            };
            let to = (at + 1..inner.len().min(at + 6)).rev().find(known).unwrap_or(at);
            cells.push((start + inner[at].0, start + inner[to].1));
            at = to + 1;
        }
    }
    Some(cells)
}

/// Parts of a line with two or more blanks between.
fn segments(line: &str) -> Vec<Span> {
    let mut parts: Vec<Span> = Vec::new();
    for (start, end) in words(line) {
        match parts.last_mut() {
            Some(last) if start - last.1 == 1 && line.as_bytes()[last.1] == b' ' => last.1 = end,
            _ => parts.push((start, end)),
        }
    }
    parts
}

fn words(line: &str) -> Vec<Span> {
    let (mut words, mut start) = (Vec::new(), None);
    for (at, byte) in line.bytes().enumerate() {
        let blank = matches!(byte, b' ' | b'\t' | b'\r');
        match start {
            Some(from) if blank => {
                words.push((from, at));
                start = None;
            }
            None if !blank => start = Some(at),
            _ => {}
        }
    }
    words.extend(start.map(|from| (from, line.len())));
    words
}

/// A row under a head of fixed width: what stands under each head that means something is tried whole, then cut where the
/// heads beside it end or begin, for a table may be aligned to either side.
fn fixed_row(columns: &[Column], gaps: bool, line: &str, found: &mut Found<'_>) -> bool {
    let ascii = line.is_ascii();
    let places: Vec<usize> = if ascii { Vec::new() } else { line.char_indices().map(|(at, _)| at).collect() };
    // Between bytes and characters.
    let byte =
        |at: usize| if ascii { at.min(line.len()) } else { places.get(at).copied().unwrap_or(line.len()) };
    let char = |at: usize| if ascii { at } else { places.partition_point(|place| *place < at) };
    let blank = |at: usize| line.as_bytes().get(byte(at)).is_none_or(|byte| *byte == b' ');
    let parts: Vec<Span> = segments(line).iter().map(|(start, end)| (char(*start), char(*end))).collect();
    let mut any = false;
    for (at, column) in columns.iter().enumerate().filter(|(_, column)| !column.meant.is_empty()) {
        let under = |part: &&Span| columns.len() == 1 || part.0 < column.end && part.1 > column.start;
        let secret = heads::only_secret(column.meant);
        let wide = columns.len() > 1 && parts.len() > 1 && gaps;
        let place = if wide { Place::Wide } else { Place::Alone };
        let hit = parts.iter().filter(under).find_map(|&(x, y)| {
            let left = columns[..at]
                .iter()
                .map(|other| other.end)
                .filter(|end| (x..y).contains(end) && blank(*end))
                .max();
            let from = left.map_or(x, |end| end + 1);
            let next = columns[at + 1..]
                .iter()
                .map(|other| other.start)
                .find(|start| x < *start && *start <= y && blank(*start - 1));
            let own = if column.start >= x && (column.start == 0 || blank(column.start - 1)) {
                column.start
            } else {
                from
            };
            let to = if column.end < y && blank(column.end) { column.end } else { y };
            let before_next = next.map_or(y, |start| start - 1);
            let tries = [(x, y), (from, to), (from, y), (own, before_next), (own, y)];
            let inner = words(&line[byte(x)..byte(y)]);
            let touching = inner
                .iter()
                .map(|(start, end)| (char(byte(x) + start), char(byte(x) + end)))
                .filter(|word| word.0 < column.end && word.1 > column.start);
            tries.into_iter().chain(touching).filter(|(start, end)| start < end).find_map(|(start, end)| {
                let base = byte(start);
                let ((from, to), rule) = heads::cell(column.meant, &line[base..byte(end)], place)?;
                // To the left pandas sets values one blank behind their head.
                let shift = char(base + from).checked_sub(column.start);
                let aligned = matches!(shift, Some(0 | 1)) || char(base + to) == column.end;
                (!secret || aligned).then_some((base + from, base + to, rule))
            })
        });
        if let Some((from, to, rule)) = hit {
            found.out.push(finding(found.line + from, found.line + to, rule));
            any = true;
        }
    }
    any
}
