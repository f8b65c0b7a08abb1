//! Whether a line is the head of a table, and what its columns mean.

use std::borrow::Cow;

use super::fields::{doubled, segments, split, words};
use super::{BARS, Column, Head, LONGEST_NAME, LONGEST_PROSE, Layout, MAX_FIELDS, MAX_WORDS, Span, speak};
use crate::guard::classes::{alphanumeric_or, only};
use crate::guard::heads::{self, Place};
use crate::guard::scan::next_placeholder;

fn is_sign_of_name(c: char) -> bool {
    static SIGNS: [bool; 256] = alphanumeric_or(b" _.#/()%'*-");
    if c.is_ascii() { SIGNS[c as usize] } else { c.is_alphanumeric() || matches!(c, '°' | '’') }
}

/// Whether a text may be the head of a column: a name of a few words.
pub(super) fn is_name(text: &str) -> bool {
    let text = text.trim_matches(['"', '\'', '`', ' ']);
    if !heads::is_unmasked(text) || text.contains("  ") {
        return false;
    }
    let (marked, text) = (text, text.trim_matches('*'));
    // The result of a mask is not a name.
    marked.is_empty()
        || text == "(index)"
        || text.chars().count() <= LONGEST_NAME
            && text.starts_with(|c: char| c.is_alphabetic() || matches!(c, '#' | '_'))
            && text.chars().all(is_sign_of_name)
            && text.split(' ').count() <= 5
            && text.matches('(').count() == text.matches(')').count()
}

/// The head of a table, if a line is one.
pub(super) fn find_head(line: &str) -> Option<Head> {
    // A line that names the index of a frame is as wide as the frame.
    let padded = line.ends_with("  ").then_some(line.len());
    // A replaced name has no meaning, and its original width is unknown.
    let line = line.trim_end();
    let mut named = Cow::Borrowed(line);
    let mut at = 0;
    while let Some((start, end)) = next_placeholder(line.as_bytes(), at) {
        named.to_mut().replace_range(start..end, &"x".repeat(end - start));
        at = end;
    }
    // A rule of LaTeX below the head.
    let named = named.trim_end_matches(" \\hline").trim_end_matches(" \\midrule");
    let replaced = at > 0;
    if let Some(columns) = named.strip_prefix("COPY ").and_then(|copy| copy.strip_suffix(" FROM stdin;")) {
        let (_, columns) = columns.strip_suffix(')')?.split_once('(')?;
        return Some(Head::new(Layout::Separated('\t'), Column::all(columns.split(','))));
    }
    // The head of a reStructuredText table that is written as separated values.
    if let Some(names) = named.trim_start().strip_prefix(":header:") {
        let (fields, _) = split(names, ',', false);
        let columns = Column::all(fields.iter().map(|(start, end)| &names[*start..*end]));
        return speak(&columns)
            .then_some(Head { spaced: true, ..Head::new(Layout::Separated(','), columns) });
    }
    if named.starts_with(['!', '\\']) || named.ends_with("\\\\") {
        return marked_head(named);
    }
    // An import of Python.
    if named.trim_start().starts_with("from ") && named.contains(" import ") {
        return None;
    }
    // A frame that continues below.
    let line = named.trim_end_matches(" \\");
    if line.bytes().any(|byte| OTHER[usize::from(byte)]) && !may_be_led(line) {
        return None;
    }
    separated_head(line, replaced).or_else(|| fixed_head(line, padded).filter(|_| !replaced))
}

/// Characters that are neither in names nor between them.
pub(super) const OTHER: [bool; 256] = only(b":={}[]<>!&$@+?\\");
/// Characters that may be between or around fields; of a multi-byte one the first byte.
pub(super) const SEPARATORS: [bool; 256] = only(b"\t;,^\x1f|\"\xe2");

/// The longest prefix of a table's lines.
const LONGEST_LEAD: usize = 160;

/// Whether a head may come after a prefix that is on each line of its table: a quotation or diff mark, a line
/// number, a file name, a log's prefix. Code has other characters; but a log begins with its time or something in brackets,
/// and names that are `apart` may come after a label: `df.head(2):`, `shape=(5, 3)`, `** customers **`.
fn may_be_lead(lead: &str, apart: bool) -> bool {
    static CODE: [bool; 256] = only(b",;={}<&$@?\\()\"'");
    let code = |byte: u8| CODE[usize::from(byte)] && !(apart && b",=()".contains(&byte));
    let logged = lead.starts_with(|c: char| c.is_ascii_digit() || c == '[');
    lead.len() <= LONGEST_LEAD && (logged || !lead.bytes().any(code))
}

/// The same for a line with characters that are in no head: after the last of them there are aligned names.
pub(super) fn may_be_led(line: &str) -> bool {
    let sign = line.bytes().rposition(|byte| OTHER[usize::from(byte)]).map_or(0, |sign| sign + 1);
    let behind = &line.as_bytes()[sign..];
    let apart = memchr::memmem::find(behind, b"  ").is_some();
    let separated = || behind.iter().any(|byte| SEPARATORS[usize::from(*byte)]);
    (apart || separated()) && may_be_lead(&line[..sign], apart)
}

/// The length of a line's prefix before the words that are names or the numbers of columns.
fn fixed_lead(line: &str) -> usize {
    let other = words(line).into_iter().rfind(|(from, to)| {
        let word = &line[*from..*to];
        !is_numbered(word) && !is_word(word)
    });
    other.map_or(0, |(from, to)| {
        let (start, end) = behind_lead(&line[from..to]);
        if start < end { from + start } else { to }
    })
}

/// Whether a head is only the number of its column, or an ellipsis.
fn is_numbered(name: &str) -> bool {
    matches!(name, ".." | "...") || name.len() <= 3 && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether a word may be part of a head.
fn is_word(word: &str) -> bool {
    is_name(word) && word.contains(char::is_alphanumeric)
}

/// The text after the last character and the last word that are in no name.
fn behind_lead(text: &str) -> Span {
    let end = text.trim_end().len();
    let sign = text.bytes().rposition(|byte| OTHER[usize::from(byte)] || byte == b'|').map_or(0, |at| at + 1);
    let gap = text[..end].rfind("  ").map_or(0, |at| at + 2);
    let sign = sign.max(gap).min(end);
    let other =
        words(&text[sign..end]).into_iter().rfind(|(from, to)| !is_word(&text[sign + from..sign + to]));
    let start = other.map_or(sign, |(from, to)| {
        // The mark of a diff.
        let changed =
            text[sign + from..].strip_prefix('-').is_some_and(|_| is_name(&text[sign + from + 1..sign + to]));
        sign + if changed { from + 1 } else { to }
    });
    (start, end.max(start))
}

/// The first field of a row after the table's prefix: all of it that fits its column.
pub(super) fn without_lead(line: &str, (start, end): Span, column: &Column) -> Span {
    let behind = |c: char| matches!(c, ' ' | '\t' | ':' | '>' | ']' | '|' | '+' | '-');
    let starts = line[start..end].char_indices().filter(|(_, c)| behind(*c)).map(|(at, _)| start + at + 1);
    let fits = |from: &usize| heads::cell(column.meant, &line[*from..end], Place::Wide).is_some();
    ([start].into_iter().chain(starts).find(fits).unwrap_or(start), end)
}

impl Head {
    pub(super) fn new(layout: Layout, columns: Vec<Column>) -> Self {
        Self { layout, columns, spaced: false, lead: None, index: None }
    }
}

impl Column {
    pub(super) fn new(name: &str, start: usize, end: usize) -> Self {
        let name = name.trim_matches(['"', '\'', '`', ' ']);
        Self { meant: heads::meaning(name), start, end }
    }

    /// Columns without places.
    pub(super) fn all<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<Self> {
        names.into_iter().map(|name| Self::new(name, 0, 0)).collect()
    }
}

/// The head of a LaTeX, troff or MediaWiki table, whose names have markup around them.
fn marked_head(line: &str) -> Option<Head> {
    static MARKS: [&str; 9] =
        ["\\textbf{", "\\textit{", "\\multicolumn{1}{c}{", "\\fI", "\\fB", "\\fP", "\\fR", "{", "}"];
    let (sign, fields) = match doubled(line, line.chars().next()?) {
        Some(fields) => ('|', fields),
        None => {
            let sign = if line.contains('&') { '&' } else { '\t' };
            (sign, split(line, sign, false).0)
        }
    };
    let name = |(start, end): &Span| {
        let bare = |name: String, mark: &&str| name.replace(*mark, "");
        MARKS.iter().fold(line[*start..*end].trim().to_owned(), bare).replace("\\_", "_")
    };
    let names: Vec<String> = fields.iter().map(name).collect();
    let fits = (2..=MAX_FIELDS).contains(&names.len()) && names.iter().all(|name| is_name(name));
    let columns = Column::all(names.iter().map(String::as_str));
    (fits && speak(&columns)).then_some(Head::new(Layout::Separated(sign), columns))
}

/// Beside a column of users, a column `pass` is one of passwords.
fn with_users(names: &[&str], columns: &mut [Column]) {
    const USERS: [&str; 8] =
        ["user", "username", "user_name", "user name", "login", "userid", "user_id", "benutzer"];
    let is = |known: &[&str], name: &str| {
        let name = name.trim_matches(['"', '\'', '`', ' ', '*']);
        known.iter().any(|known| name.eq_ignore_ascii_case(known))
    };
    if names.iter().any(|name| is(&USERS, name)) {
        let named = names.iter().zip(columns).filter(|(name, _)| is(&["pass", "pw"], name));
        for (_, column) in named {
            column.meant = heads::meaning("password");
        }
    }
}

fn separated_head(line: &str, replaced: bool) -> Option<Head> {
    if !line.bytes().any(|byte| SEPARATORS[usize::from(byte)]) {
        return None;
    }
    let mut best: Option<Head> = None;
    // Quoted names with spaces between, as in Tcl lists.
    let tcl = line.starts_with('"').then_some(' ');
    for sign in ['\t', ';', ',', '^', '\u{1f}'].into_iter().chain(BARS).chain(tcl) {
        if !line.contains(sign) || matches!(sign, ',' | ';') && line.trim_end().ends_with([',', ';']) {
            continue;
        }
        let fields = doubled(line, sign).unwrap_or_else(|| split(line, sign, false).0);
        let mut names: Vec<&str> = fields.iter().map(|(start, end)| line[*start..*end].trim()).collect();
        // The prefix of the table, with the fields in it.
        let comment = || names[0].starts_with("# ").then_some(0);
        let lead = names.iter().rposition(|name| !is_name(name)).or_else(comment);
        let mut before = "";
        if let Some(lead) = lead {
            let (from, to) = fields[lead];
            let (start, end) = behind_lead(&line[from..to]);
            let name = &line[from + start..from + end];
            before = &line[..from + start];
            if !may_be_lead(before, false) || name.trim().is_empty() && lead > 0 && !BARS.contains(&sign) {
                continue;
            }
            names[..lead].fill("");
            names[lead] = name.trim();
        }
        let names = names;
        let edges = names.len() > 2
            && BARS.contains(&sign)
            && names[0].is_empty()
            && names[names.len() - 1].is_empty();
        let inner = if edges { &names[1..names.len() - 1] } else { &names[lead.unwrap_or(0)..] };
        // A row with a name before its value has one field left.
        let given = |name: &&&str| !name.trim_matches(['"', '\'']).bytes().all(|byte| byte == b'x');
        let named = inner.iter().filter(given).count();
        let numbered = before.trim_start().starts_with(|c: char| c.is_alphanumeric() || "|[".contains(c));
        let indented = matches!(sign, ',' | ';') && line.starts_with([' ', '\t']) && !numbered;
        let fits = inner.len() <= MAX_FIELDS
            && (!replaced && lead.is_none() || named > 1)
            && inner.iter().all(|name| is_name(name))
            && inner.iter().filter(|name| name.is_empty()).count() <= 1 + usize::from(BARS.contains(&sign))
            && (inner.len() >= 2 + usize::from(indented) || edges);
        if !fits || best.as_ref().is_some_and(|best| best.columns.len() >= fields.len()) {
            continue;
        }
        let mut columns = Column::all(names.iter().copied());
        with_users(&names, &mut columns);
        // `user, passwd` further in is more often code or a comment in it.
        for column in columns.iter_mut().filter(|column| indented && heads::only_secret(column.meant)) {
            column.meant = &[];
        }
        if speak(&columns) {
            best = Some(Head { lead, ..Head::new(Layout::Separated(sign), columns) });
        }
    }
    best
}

/// A line of fixed width with its prefix replaced by spaces, and the length of the prefix in characters.
fn led(line: &str) -> Option<(Cow<'_, str>, Option<usize>)> {
    let first = line.split_whitespace().next().unwrap_or_default();
    let named = line.starts_with(' ') || is_word(first) || is_numbered(first);
    if named && !line.bytes().any(|byte| OTHER[usize::from(byte)] || byte == b'|') {
        return Some((line.into(), None));
    }
    let (before, names) = line.split_at(fixed_lead(line));
    let width = before.chars().count();
    (names.contains("  ") && may_be_lead(before, true))
        .then(|| ((" ".repeat(width) + names).into(), Some(width)))
}

fn fixed_head(line: &str, padded: Option<usize>) -> Option<Head> {
    let boxed = line.trim_start().starts_with(BARS).then(|| line.replace(BARS, " "));
    let line = boxed.as_deref().unwrap_or(line);
    let (line, lead) = led(line)?;
    let line = &*line;
    if !line.chars().all(|c| is_sign_of_name(c) || matches!(c, '\t' | '"' | '`')) {
        return None;
    }
    let parts = segments(line);
    // Spaces before the first name are over an index, and are a gap as well.
    let gaps = parts.len() > 1 || line.starts_with("  ");
    let cells = cells_of_head(line, &parts, gaps)?;
    if cells.is_empty()
        || cells.len() > MAX_WORDS
        || !cells.iter().all(|(start, end)| is_name(&line[*start..*end]) || is_numbered(&line[*start..*end]))
        || parts.len() < 2 && !line.starts_with(' ') && cells.len() > 8
    {
        return None;
    }
    let place = |at: usize| if line.is_ascii() { at } else { line[..at].chars().count() };
    let mut columns: Vec<Column> = cells
        .iter()
        .map(|(start, end)| Column::new(&line[*start..*end], place(*start), place(*end)))
        .collect();
    let names: Vec<&str> = cells.iter().map(|(start, end)| &line[*start..*end]).collect();
    with_users(&names, &mut columns);
    // The output of `dtypes`.
    if let [_, kind] = &names[..]
        && TYPES.contains(kind)
    {
        return None;
    }
    let index = padded.filter(|_| cells.len() <= 4 && !line.starts_with(' ') && line.is_ascii());
    if let Some(end) = index.filter(|_| parts.len() == 1 && speak(&columns)) {
        columns.push(Column { meant: &[], start: end - 1, end });
        return Some(Head { index, lead, ..Head::new(Layout::Fixed(true), columns) });
    }
    let layout = if parts.len() == 1 && cells.len() > 1 && !line.starts_with(' ') {
        Layout::Words
    } else {
        Layout::Fixed(gaps)
    };
    // Words with one space between do not suffice as evidence of a password.
    let speaks = |column: &Column| match parts.len() {
        2.. => !column.meant.is_empty(),
        _ => heads::speaks_alone(column.meant) || gaps && heads::is_sure(column.meant),
    };
    columns.iter().any(speaks).then(|| Head { index, lead, ..Head::new(layout, columns) })
}

/// Types of columns, which are not used as names.
const TYPES: [&str; 8] = ["str", "object", "int64", "float64", "bool", "string", "category", "Int64"];

/// The heads in the parts of a line; `None` for prose.
fn cells_of_head(line: &str, parts: &[Span], gaps: bool) -> Option<Vec<Span>> {
    let mut cells = Vec::new();
    for &(start, end) in parts {
        let part = &line[start..end];
        if !part.contains(' ') || heads::is_whole(part) {
            cells.push((start, end));
            continue;
        }
        // The longest known heads of several words, else each word: pandas puts one space between columns.
        let inner = words(part);
        if parts.len() < 2 && inner.len() > LONGEST_PROSE {
            return None;
        }
        let word = |(from, to): &Span| &part[*from..*to];
        let meaningful: Vec<bool> = inner.iter().map(|span| heads::may_be_head(word(span))).collect();
        // Prose about keys and tokens: without a gap it is not a head.
        let secret = |span: &Span| {
            let meant = heads::meaning(word(span));
            !meant.is_empty() && heads::only_secret(meant)
        };
        if !gaps && inner.iter().zip(&meaningful).all(|(word, meaningful)| !meaningful || secret(word)) {
            return None;
        }
        let mut at = 0;
        while at < inner.len() {
            let known = |to: &usize| {
                meaningful[at..=*to].contains(&true) && heads::is_whole(&part[inner[at].0..inner[*to].1])
            };
            let to = (at + 1..inner.len().min(at + 6)).rev().find(known).unwrap_or(at);
            // Text in brackets belongs to the name before it.
            let bracketed = |(from, _): &&Span| part[*from..].starts_with('(');
            let to = to + inner[to + 1..].iter().take_while(bracketed).count();
            cells.push((start + inner[at].0, start + inner[to].1));
            at = to + 1;
        }
    }
    Some(cells)
}
