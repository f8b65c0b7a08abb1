//! Nested data as text: JSON in any layout, printed Python and JavaScript values, HTML tables.
//!
//! A key applies to everything below it, except where another does; the names in `columns` apply to the rows beside them, and
//! the first row of a list of rows to the others. One lenient walker reads all of them. It is idle until a name of interest
//! is in quotes or before a colon, and while active it keeps only the names that are open.

use std::sync::Arc;

use memchr::{memchr_iter, memchr3};

use super::heads::{self, Meaning, Place};
use super::scan::{Finding, holds_placeholder, placeholder_len};
use super::table::finding;

/// Deeper nesting and wider rows are not followed.
const MAX_DEPTH: usize = 64;
const MAX_CELLS: usize = 256;
/// The longest line that may open brackets and hold nothing else.
pub(super) const SHORT: usize = 4;
/// The longest string that is read as one.
const LONGEST: usize = 1024;

/// Fields that hold the names of a table's columns, and those that hold its rows.
pub(super) const COLUMNS: [&str; 6] = ["columns", "cols", "fields", "headers", "header", "column_names"];
pub(super) const ROWS: [&str; 4] = ["data", "rows", "values", "records"];

/// The state of the walker: everything that is open.
#[derive(Debug, Default, Clone)]
pub(super) struct Nested {
    open: Vec<Frame>,
    /// A list by itself, which may be the head of the lists after it.
    loose: Option<Arc<[Meaning]>>,
    /// Numbers under a name with another meaning too, which do not have the form that the name requires.
    pub(super) counts: Vec<(usize, usize)>,
    /// A string outside of all brackets, which may be a key.
    first: Option<Key>,
    /// The meaning that a name without quotes gives to the list that begins after it.
    listed: Meaning,
    /// The quote that ends the string in which the last part of a long line ended.
    inside: Option<u8>,
    /// Whether anything that is open gives a meaning to its content.
    awake: bool,
    html: Html,
}

#[derive(Debug, Default, Clone)]
struct Frame {
    bracket: u8,
    /// The meaning from the keys above.
    meant: Meaning,
    /// The meaning of the key whose value comes next.
    key: Option<Key>,
    /// A string that may be a key.
    last: Option<Key>,
    at: usize,
    /// The columns of the rows that this list holds, or of this row.
    columns: Option<Arc<[Meaning]>>,
    /// Whether it holds a value with no comma after.
    filled: bool,
    /// The names in this list so far, as a row of names.
    names: Vec<Meaning>,
    /// Whether it holds anything else.
    mixed: bool,
    /// Whether this list is the value of `columns`.
    is_columns: bool,
    /// Whether this is in such a list: an object that describes a column.
    in_columns: bool,
    /// The meaning that the name in this object gives to the value beside it.
    named: Meaning,
}

#[derive(Debug, Clone, Copy)]
struct Key {
    meant: Meaning,
    role: Role,
}

impl Key {
    const NONE: Self = Self { meant: &[], role: Role::None };
}

/// What a field's name says about the fields beside it, whatever it means itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Nothing.
    None,
    /// It holds the names of a table's columns.
    Columns,
    /// It holds the rows of the table.
    Rows,
    /// Its value is the name of the column that the object describes, or of the value beside it.
    Name,
    /// Its value names the value beside it, and not a column: `"type": "passport"`,
    /// `"system": "http://hl7.org/fhir/sid/us-ssn"`.
    Label,
    /// Its value is that value.
    Value,
}

/// The name in an address: `http://hl7.org/fhir/sid/us-ssn`.
pub(super) fn last_part(name: &str) -> &str {
    name.rsplit(['/', ':', '#']).next().unwrap_or(name)
}

impl Frame {
    /// The meaning of the column that comes next in this row.
    fn column(&self) -> Option<Meaning> {
        self.columns.as_ref()?.get(self.at).copied()
    }

    /// Whether a value is in a row of known columns with no comma after, as arrays of numpy have them.
    fn is_array(&self) -> bool {
        self.filled && self.bracket == b'[' && self.columns.is_some()
    }
}

fn key(name: &str) -> Key {
    let meant: Meaning =
        if name.contains("\\u") { heads::meaning(&unescaped(name)) } else { heads::meaning(name) };
    Key { meant, role: role(name) }
}

/// The role of a field with this name.
pub(super) fn role(name: &str) -> Role {
    let mut small = [0; 16];
    let Some(word) = small.get_mut(..name.len()) else { return Role::None };
    word.copy_from_slice(name.as_bytes());
    word.make_ascii_lowercase();
    let is = |names: &[&str]| names.iter().any(|known| known.as_bytes() == word);
    match &*word {
        b"name" | b"field" | b"label" | b"title" | b"key" => Role::Name,
        b"type" | b"kind" | b"system" | b"scheme" | b"idtype" | b"id_type" | b"doctype" | b"doc_type"
        | b"documenttype" | b"document_type" | b"identifiertype" | b"identifier_type" => Role::Label,
        b"value" | b"val" | b"number" | b"idnumber" | b"id_number" | b"docnumber" | b"doc_number"
        | b"documentnumber" | b"document_number" | b"identifier" | b"extension" => Role::Value,
        _ if is(&COLUMNS) => Role::Columns,
        _ if is(&ROWS) => Role::Rows,
        _ => Role::None,
    }
}

/// A name with its `\u00e9` decoded.
fn unescaped(name: &str) -> String {
    serde_json::from_str(&format!("\"{name}\"")).unwrap_or_else(|_| name.to_owned())
}

impl Nested {
    /// A line begins, or continues, perhaps in a string of JSON.
    pub(super) fn begins(&mut self, goes_on: Option<bool>) {
        self.inside = match goes_on {
            Some(true) => Some(b'"'),
            Some(false) => self.inside.filter(|quote| *quote != b'"'),
            None => None,
        };
    }

    /// Reads HTML tables in a line; `has_markup` if it may hold a table tag.
    pub(super) fn tags(
        &mut self,
        text: &str,
        (start, end): (usize, usize),
        has_markup: bool,
        out: &mut Vec<Finding>,
    ) {
        if self.html.open || has_markup && may_hold_tag(&text.as_bytes()[start..end]) {
            self.html.look(text, start, end, out);
        }
    }

    /// Whether no state is kept.
    pub(super) fn is_blank(&self) -> bool {
        let html = &self.html;
        let tags = html.open || html.columns.is_some() || html.cell.is_some() || html.tag || html.hit;
        let open = !self.open.is_empty() || self.loose.is_some() || self.first.is_some() || self.awake;
        let kept = html.names.is_empty() && html.name.is_empty() && self.counts.is_empty();
        kept && !tags && !open && self.inside.is_none()
    }

    /// Copies the state.
    pub(super) fn copy(&self, to: &mut Self) {
        if self.is_blank() && to.is_blank() {
            return;
        }
        to.clone_from(self);
    }

    /// Whether nothing is open.
    pub(super) fn sleeps(&self) -> bool {
        !self.awake && self.open.is_empty() && !self.html.is_within()
    }

    /// Whether a line without a word of a head cannot give any value a meaning.
    pub(super) fn finds_nothing(&self, text: &str, (start, end): (usize, usize), has_markup: bool) -> bool {
        let tags = || has_markup && may_hold_tag(&text.as_bytes()[start..end]);
        !self.awake && !self.html.is_within() && !tags()
    }

    /// Reads a line, which holds the ends of words of a head at `places`. Returns where the next piece should begin if this one
    /// ends here, if the line is read at all.
    pub(super) fn line(
        &mut self,
        text: &str,
        (start, end): (usize, usize),
        places: &[usize],
        out: &mut Vec<Finding>,
    ) -> Option<usize> {
        let marked = !places.is_empty();
        if !marked && end - start > SHORT && !self.awake && self.open.is_empty() {
            return None;
        }
        let line = &text[start..end];
        let bytes = line.as_bytes();
        if self.open.is_empty() {
            let goes_on = self.loose.is_some() && line.starts_with(['[', '(']);
            if !goes_on
                && !(if marked {
                    wakes(bytes, places.iter().map(|place| place - start))
                } else {
                    opens_only(bytes)
                })
            {
                if !line.trim().is_empty() {
                    (self.loose, self.awake) = (None, false);
                }
                return None;
            }
        } else if !marked && !self.awake && !self.lists_several(bytes) {
            self.pass(bytes);
            return None;
        }
        let done = self.read(line, start, out);
        let speaks = |frame: &Frame| {
            !frame.meant.is_empty()
                || frame.is_columns
                || !frame.named.is_empty()
                || frame.columns.is_some()
                || frame.key.is_some_and(|key| key.role == Role::Columns || !key.meant.is_empty())
                || frame.names.iter().any(|name| !name.is_empty())
        };
        self.awake = self.loose.is_some() || self.open.iter().any(speaks);
        Some(start + done)
    }

    /// Whether a line holds several strings of a list, as Node prints them side by side.
    fn lists_several(&self, line: &[u8]) -> bool {
        self.open.last().is_some_and(|top| top.bracket != b'{')
            && line.trim_ascii_start().first().is_some_and(|first| b"\"'".contains(first))
            && memchr_iter(b',', line).nth(1).is_some()
    }

    /// Skips a line, apart from its brackets, because nothing that is open has a meaning.
    fn pass(&mut self, line: &[u8]) {
        let line = line.trim_ascii();
        let (Some(first), Some(last)) = (line.first(), line.last()) else { return };
        let closers = line.iter().take_while(|byte| b"]})".contains(byte)).count();
        (0..closers).for_each(|_| self.closes());
        let openers = line[closers..].iter().rev().take_while(|byte| b"[{(".contains(byte)).count();
        let (between, openers) = line[closers..].split_at(line.len() - closers - openers);
        if memchr3(b'[', b'{', b'(', between).is_some() || memchr3(b']', b'}', b')', between).is_some() {
            self.pass_brackets(between);
        }
        openers.iter().for_each(|bracket| self.opens(*bracket, false));
        if !openers.is_empty() {
            return;
        }
        if !matches!(last, b',' | b'"' | b'\'' | b']' | b'}' | b')') && !last.is_ascii_alphanumeric() {
            self.open.clear();
        }
        let Some(top) = self.open.last_mut() else { return };
        if *last == b',' {
            top.at += 1;
            (top.key, top.last) = (None, None);
        }
        if b"\"'".contains(first) && top.names.len() < MAX_CELLS {
            top.names.push(&[]);
        } else {
            top.mixed = true;
        }
    }

    /// Opens and closes the brackets of a part of a line, outside its strings.
    fn pass_brackets(&mut self, part: &[u8]) {
        let mut at = 0;
        while let Some(byte) = part.get(at) {
            match byte {
                b'[' | b'{' | b'(' => self.opens(*byte, false),
                b']' | b'}' | b')' => self.closes(),
                b'"' | b'\'' => at += quoted(&part[at..], 1, *byte).map_or(0, |len| len - 1),
                _ => {}
            }
            at += 1;
        }
    }

    /// Reads a line; returns how far whole tokens go. A line with two values side by side and nothing between them is not
    /// data, and neither is what is open around it: prose.
    fn read(&mut self, line: &str, base: usize, out: &mut Vec<Finding>) -> usize {
        let before = (out.len(), self.counts.len());
        let done = self.tokens(line, base, out);
        self.first = None;
        done.unwrap_or_else(|| {
            out.truncate(before.0);
            self.counts.truncate(before.1);
            self.open.clear();
            (self.loose, self.inside) = (None, None);
            line.len()
        })
    }

    /// Reads the tokens of a line; returns where the last whole value ends.
    #[expect(clippy::too_many_lines, reason = "an arm for each sort of token")]
    fn tokens(&mut self, line: &str, base: usize, out: &mut Vec<Finding>) -> Option<usize> {
        let bytes = line.as_bytes();
        // Whether a value or a word comes right before; whether one, or a closing bracket, is the last of the line.
        // A replaced value is a value, whatever quotes are around it, and may be part of one.
        let (mut at, mut beside, mut full, mut replaced) = (0, false, false, 0);
        if self.open.is_empty()
            && let Some((list, name)) = list_under_name(line)
        {
            (at, self.listed) = (list, heads::meaning(name));
        }
        if let Some(quote) = self.inside.take() {
            at = match quoted(bytes, 0, quote) {
                Some(len) => len,
                None if bytes.ends_with(b"\n") => return None,
                None => bytes.len(),
            };
            self.inside = (at == bytes.len() && bytes[at - 1] != quote).then_some(quote);
            self.replaced();
            beside = true;
        }
        while at < bytes.len() {
            let byte = bytes[at];
            full = if b" \t\r\n".contains(&byte) { full } else { !b"[{(,:".contains(&byte) };
            let apart = at == 0 || bytes[at - 1].is_ascii_whitespace();
            if apart && !b" \t\r\n,]})".contains(&byte) && self.open.last().is_some_and(Frame::is_array) {
                self.comma();
                beside = false;
            }
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {
                    at += 1;
                    continue;
                }
                b'[' | b'{' | b'(' => {
                    if let Some(len) = placeholder_len(&bytes[at..]).filter(|_| byte == b'[') {
                        if beside && bytes[at - 1].is_ascii_whitespace() {
                            return None;
                        }
                        self.replaced();
                        (at, beside, full, replaced) = (at + len, true, true, at + len);
                        continue;
                    }
                    // A call: `Decimal('12.50')` is one value.
                    self.opens(byte, byte == b'(' && beside);
                }
                b']' | b'}' | b')' => self.closes(),
                b',' => self.comma(),
                b':' => self.colon(),
                b'"' | b'\'' => {
                    // `b'..'`, `u'..'`, `dtype='..'`
                    if beside && !bytes[at - 1].is_ascii_alphabetic() && bytes[at - 1] != b'=' {
                        return None;
                    }
                    let Some(len) = quoted(&bytes[at..], 1, byte) else {
                        if bytes.ends_with(b"\n") {
                            return None;
                        }
                        if bytes.len() - at < LONGEST {
                            return Some(at);
                        }
                        // Longer strings are not values of interest.
                        self.replaced();
                        self.inside = Some(byte);
                        return Some(bytes.len());
                    };
                    self.value(&line[at + 1..at + len - 1], base + at + 1, true, out);
                    (at, beside) = (at + len, true);
                    continue;
                }
                _ if beside && at != replaced => return None,
                _ => {
                    let len =
                        bytes[at..].iter().take_while(|byte| !b" \t\r\n[]{}(),:\"'".contains(byte)).count();
                    let word = &line[at..at + len];
                    let number =
                        word.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit());
                    self.word(word, base + at, number, out);
                    (at, beside) = (at + len, true);
                    continue;
                }
            }
            (at, beside) = (at + 1, false);
        }
        // A name has its value on one line.
        if let Some(top) = self.open.last_mut().filter(|_| full && bytes.ends_with(b"\n")) {
            (top.key, top.last) = (None, None);
        }
        Some(bytes.len())
    }

    /// A value that was replaced.
    fn replaced(&mut self) {
        self.first = None;
        let Some(top) = self.open.last_mut() else { return };
        top.filled = true;
        match top.bracket {
            b'{' if top.key.is_none() => top.last = Some(Key::NONE),
            _ => top.mixed = true,
        }
    }

    fn comma(&mut self) {
        self.first = None;
        if let Some(top) = self.open.last_mut() {
            top.at += 1;
            (top.key, top.last, top.filled) = (None, None, false);
        }
    }

    fn colon(&mut self) {
        // A line inside brackets whose opening was not seen.
        if let Some(key) = self.first.take().filter(|_| self.open.is_empty()) {
            self.open.push(Frame { bracket: b'{', last: Some(key), ..Frame::default() });
        }
        if let Some(top) = self.open.last_mut().filter(|top| top.bracket == b'{' && top.key.is_none()) {
            top.key = top.last.take();
        }
    }

    fn word(&mut self, word: &str, at: usize, number: bool, out: &mut Vec<Finding>) {
        if number {
            return self.value(word, at, false, out);
        }
        self.first = None;
        if let Some(top) = self.open.last_mut() {
            top.filled = true;
            if top.bracket == b'{' && top.key.is_none() {
                top.last = Some(key(word));
            } else {
                top.mixed = true;
            }
        }
    }

    fn opens(&mut self, bracket: u8, call: bool) {
        if self.open.len() >= MAX_DEPTH {
            self.open.clear();
        }
        let mut frame = Frame { bracket, ..Frame::default() };
        match self.open.last_mut() {
            Some(top) if top.bracket == b'{' => {
                let key = top.key.unwrap_or(Key::NONE);
                frame.meant = if key.meant.is_empty() { top.meant } else { key.meant };
                frame.is_columns = key.role == Role::Columns;
                if key.role == Role::Rows {
                    frame.columns.clone_from(&top.columns);
                }
            }
            Some(top) => {
                frame.meant = top.meant;
                frame.columns.clone_from(&top.columns);
                frame.in_columns = top.is_columns && bracket == b'{';
                if call {
                    // The list's name applies to the value inside.
                    frame.meant = top.column().unwrap_or(top.meant);
                    frame.columns = None;
                }
                top.mixed |= !call && top.names.len() > 1;
            }
            None => {
                frame.columns.clone_from(&self.loose);
                frame.meant = std::mem::take(&mut self.listed);
            }
        }
        self.open.push(frame);
    }

    fn closes(&mut self) {
        let Some(frame) = self.open.pop() else { return };
        let head = |names: Vec<Meaning>| -> Option<Arc<[Meaning]>> {
            names.iter().any(|name| !name.is_empty()).then(|| names.into())
        };
        let row = frame.bracket != b'{' && !frame.mixed && frame.names.len() == frame.at + 1;
        match self.open.last_mut() {
            Some(top)
                if frame.is_columns
                    || top.bracket != b'{'
                        && row
                        && top.at == 0
                        && top.columns.is_none()
                        && frame.names.len() > 1 =>
            {
                top.columns = head(frame.names);
            }
            Some(_) => {}
            // `Index(['id', 'ssn'], dtype='object')`
            None if frame.bracket == b'(' && frame.columns.is_some() => self.loose = frame.columns,
            None if row && frame.names.len() > 1 && frame.columns.is_none() => self.loose = head(frame.names),
            None => {}
        }
    }

    /// A string or a number.
    fn value(&mut self, value: &str, at: usize, string: bool, out: &mut Vec<Finding>) {
        if holds_placeholder(value) {
            return self.replaced();
        }
        let Some(top) = self.open.last_mut() else {
            self.first = string.then(|| key(value));
            return;
        };
        top.filled = true;
        if top.bracket == b'{' && top.key.is_none() {
            top.last = Some(if string { key(value) } else { Key::NONE });
            return;
        }
        let role = top.key.map_or(Role::None, |key| key.role);
        if string && top.in_columns && role == Role::Name {
            if let [.., list, _] = &mut self.open[..]
                && list.at < MAX_CELLS
            {
                list.names.resize(list.at, &[]);
                list.names.push(heads::meaning(value));
            }
            return;
        }
        if string && role == Role::Name {
            top.named = heads::meaning(value);
        } else if string && role == Role::Label {
            let meant = heads::meaning(last_part(value));
            top.named = if meant.is_empty() { top.named } else { meant };
        }
        let meant = match top.bracket {
            b'{' if role == Role::Value && !top.named.is_empty() => top.named,
            b'{' => top.key.map(|key| key.meant).filter(|meant| !meant.is_empty()).unwrap_or(top.meant),
            _ => top.column().unwrap_or(top.meant),
        };
        if top.bracket != b'{' {
            if string && top.names.len() < MAX_CELLS && top.names.len() == top.at {
                top.names.push(heads::meaning(value));
            } else {
                top.mixed = true;
            }
        }
        if let Some(((from, to), rule)) = heads::cell(meant, value, Place::Wide) {
            out.push(finding(at + from, at + to, rule));
        } else if !string && !meant.is_empty() {
            self.counts.push((at, at + value.len()));
        }
    }
}

/// The longest name of a list.
const LONGEST_LISTED: usize = 40;

/// The start of the list that a name at the beginning of a line gives a meaning, `ssns = [`, `"NHS number" = [`, and that
/// name.
fn list_under_name(line: &str) -> Option<(usize, &str)> {
    let list = line.find(['[', '{', '(']).filter(|at| line[*at..].starts_with('['))?;
    let before = line[..list].trim_end();
    let (named, quoted) = (before.strip_suffix([':', '='])?.trim_end(), before.ends_with('='));
    let name = match named.strip_suffix(['"', '\'']).filter(|_| quoted) {
        Some(named) => named.rsplit(['"', '\'']).next()?,
        None => named.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next()?,
    };
    let is_list = placeholder_len(&line.as_bytes()[list..]).is_none();
    (is_list && !name.is_empty() && name.len() <= LONGEST_LISTED).then_some((list, name))
}

/// The end of the string that continues at a place, up to and including its `quote`, if it ends on the line.
pub(super) fn quoted(bytes: &[u8], from: usize, quote: u8) -> Option<usize> {
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'\n' => return None,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

/// Whether a line opens a bracket and holds nothing else.
pub(super) fn opens_only(line: &[u8]) -> bool {
    line.iter().any(|byte| b"[{(".contains(byte)) && line.iter().all(|byte| b"[{( \n\r,".contains(byte))
}

/// Whether one of the words that end at `places` belongs to a name of interest, in quotes or before a colon.
fn wakes(line: &[u8], places: impl Iterator<Item = usize>) -> bool {
    let mut places = places;
    places.any(|place| {
        let between = |byte: &&u8| byte.is_ascii_alphanumeric() || b"_- .".contains(byte) || **byte >= 0x80;
        let at = place + line[place..].iter().take(24).take_while(between).count();
        let list = |rest: &[u8]| rest.trim_ascii_start().first() == Some(&b'[');
        line.get(at).is_some_and(|byte| b"\"':".contains(byte) || *byte == b'=' && list(&line[at + 1..])) && {
            let from = line[..at].iter().rposition(|byte| b"\"'{,[(".contains(byte)).map_or(0, |at| at + 1);
            let from = from.max(at.saturating_sub(48));
            std::str::from_utf8(&line[from..at]).is_ok_and(|name| {
                let key = key(name.trim());
                key.role == Role::Columns || !key.meant.is_empty()
            })
        }
    })
}

/// Whether a line may hold a tag of an HTML table.
fn may_hold_tag(line: &[u8]) -> bool {
    memchr_iter(b'<', line).any(|at| is_tag(line, at))
}

/// Whether a `<` may begin a tag of an HTML table, or end one.
pub(super) fn is_tag(text: &[u8], at: usize) -> bool {
    matches!(text[at + 1..], [b't' | b'T', ..] | [b'/', b't' | b'T', ..])
}

/// The HTML table that is open.
#[derive(Debug, Default, Clone)]
struct Html {
    open: bool,
    columns: Option<Arc<[Meaning]>>,
    /// The meanings of the first row's cells, as heads.
    names: Vec<Meaning>,
    /// Whether one of them is a data cell.
    data: bool,
    at: usize,
    /// The meaning of the row's first cell, where there is no head: a transposed table.
    row: Meaning,
    /// Whether a cell is open, and whether it is a data cell.
    cell: Option<bool>,
    /// Whether a tag continues past the end of the line.
    tag: bool,
    /// The cell's text so far, if it may be a head, and whether a value does.
    name: String,
    hit: bool,
}

impl Html {
    /// Whether a cell or a tag continues past the end of the line, so that the next line matters without a tag of its own.
    fn is_within(&self) -> bool {
        self.cell.is_some() || self.tag
    }

    /// Looks at a line.
    fn look(&mut self, text: &str, start: usize, end: usize, out: &mut Vec<Finding>) {
        let bytes = &text.as_bytes()[..end];
        let mut from = start;
        if self.tag {
            let Some(inside) = memchr::memchr(b'>', &bytes[start..]) else { return };
            (self.tag, from) = (false, start + inside + 1);
        }
        for open in memchr_iter(b'<', &bytes[from..]).map(|at| from + at).collect::<Vec<_>>() {
            let closing = bytes.get(open + 1) == Some(&b'/');
            let name = &bytes[open + 1 + usize::from(closing)..];
            let len = name.iter().take(8).take_while(|byte| byte.is_ascii_alphabetic()).count();
            if len == 0 && !closing || open < from {
                continue;
            }
            self.part(text, (from, open), out);
            let tag = name[..len].to_ascii_lowercase();
            if matches!(&tag[..], b"table" | b"tr" | b"th" | b"td") {
                self.ends();
            }
            match (&tag[..], closing) {
                (b"table", closing) => *self = Self { open: !closing, ..Self::default() },
                // The end of a row may be implied.
                (b"tr", closing) => {
                    let names = std::mem::take(&mut self.names);
                    if self.columns.is_none() && !self.data && names.iter().any(|name| !name.is_empty()) {
                        self.columns = Some(names.into());
                    }
                    self.open |= !closing;
                    (self.at, self.data, self.row) = (0, false, &[]);
                }
                (b"th" | b"td", false) => (self.open, self.cell) = (true, Some(tag[1] == b'd')),
                _ => {}
            }
            match memchr::memchr(b'>', &bytes[open..]) {
                Some(inside) => from = open + inside + 1,
                None => {
                    self.tag = self.open;
                    return;
                }
            }
        }
        self.part(text, (from, end), out);
    }

    /// A part of a cell: a line of it, or the text between two tags in it.
    fn part(&mut self, text: &str, (from, to): (usize, usize), out: &mut Vec<Finding>) {
        let Some(data) = self.cell.filter(|_| from < to) else { return };
        let part = text[from..to].trim();
        if part.is_empty() {
            return;
        }
        let meant = match &self.columns {
            Some(columns) => columns.get(self.at).copied().unwrap_or_default(),
            None if data => self.row,
            None => &[],
        };
        if let Some(((start, end), rule)) = heads::cell(meant, &text[from..to], Place::Wide) {
            out.push(finding(from + start, from + end, rule));
            self.hit = true;
        } else if holds_placeholder(part) {
            self.hit = true;
        } else if self.columns.is_none() && self.name.len() + part.len() < LONGEST {
            self.name.extend([" ", part].iter().take(2).skip(usize::from(self.name.is_empty())).copied());
        }
    }

    /// Ends the cell that is open.
    fn ends(&mut self) {
        let Some(data) = self.cell.take() else { return };
        let name = std::mem::take(&mut self.name);
        if std::mem::take(&mut self.hit) {
            self.data = true;
        } else if self.columns.is_none() && self.names.len() < MAX_CELLS {
            let meant = heads::meaning(&name);
            if self.at == 0 && !(data && heads::only_secret(meant)) {
                self.row = meant;
            }
            self.names.push(meant);
            self.data |= data && name.starts_with(|c: char| c.is_ascii_digit());
        }
        self.at += 1;
    }
}
