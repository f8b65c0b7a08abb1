//! The fields of a line, by separators or spaces.

use super::{Column, MAX_CELLS, Span, separates};

/// The names of columns in a part of an SQL statement, each the first word between two commas.
pub(super) fn names_of_sql(text: &str, columns: &mut Vec<Column>) {
    const OTHERS: [&str; 8] = ["primary", "key", "unique", "constraint", "foreign", "check", "index", "--"];
    let (mut depth, mut start) = (0, 0);
    let mut name = |text: &str| {
        let text = text.trim();
        let first = text.chars().next().unwrap_or(' ');
        let close = match first {
            '[' => ']',
            '"' | '`' => first,
            _ => ' ',
        };
        let inner = if close == ' ' { text } else { &text[1..] };
        let name = inner.split(close).next().unwrap_or_default();
        // A column may be called `key`.
        let more = close == ' ' && name.len() < text.len();
        let other = more && OTHERS.iter().any(|other| name.eq_ignore_ascii_case(other));
        if !name.is_empty() && !other && columns.len() < MAX_CELLS {
            columns.push(Column::new(name, 0, 0));
        }
    };
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 0 => return name(&text[start..at]),
            b')' => depth -= 1,
            b',' if depth == 0 => {
                name(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    name(&text[start..]);
}

/// The place of a lowercase word in a text of any case.
pub(super) fn find_ignoring_case(text: &str, word: &str) -> Option<usize> {
    text.as_bytes().windows(word.len()).position(|here| here.eq_ignore_ascii_case(word.as_bytes()))
}

/// The text after a prefix, in any case.
pub(super) fn strip_ignoring_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (begin, rest) = text.split_at_checked(prefix.len())?;
    begin.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// The values in brackets in a line of SQL.
pub(super) fn tuples(line: &str) -> Vec<Vec<Span>> {
    let insert =
        ["insert", "replace"].iter().any(|word| strip_ignoring_case(line.trim_start(), word).is_some())
            || line.contains("INSERT INTO ");
    // A log's prefix before the parameters of a statement: `[generated in 0.0003s] [(1, 'x'), (2, 'y')]`.
    let logged = || line.find("] [(").or_else(|| line.find("] (")).map(|at| at + 2);
    let from = match find_ignoring_case(line, "values") {
        Some(at) if insert => at,
        None if insert => return Vec::new(),
        _ if line.trim_start().starts_with('(') => 0,
        _ => match logged() {
            Some(at) => at,
            None => return Vec::new(),
        },
    };
    let (mut tuples, mut fields): (Vec<Vec<Span>>, Vec<Span>) = (Vec::new(), Vec::new());
    let (mut depth, mut start, mut string, mut escaped) = (0usize, 0, false, false);
    for (at, byte) in line.bytes().enumerate().skip(from) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if string => escaped = true,
            b'\'' => string = !string,
            _ if string => {}
            b'(' => {
                depth += 1;
                if depth == 1 {
                    start = at + 1;
                }
            }
            b',' if depth == 1 => {
                fields.push((start, at));
                start = at + 1;
            }
            b')' => {
                if depth == 1 {
                    fields.push((start, at));
                    tuples.push(std::mem::take(&mut fields));
                }
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
    }
    tuples
}

/// The place of a part of a line.
pub(super) fn span_of(part: impl AsRef<[u8]>, line: &str) -> Span {
    let part = part.as_ref();
    let start = part.as_ptr() as usize - line.as_ptr() as usize;
    (start, start + part.len())
}

/// Fields with a doubled bar (or the `!!` of a head) between, and the outer ones of a row with single bars: Jira and other
/// wikis.
pub(super) fn doubled(line: &str, sign: char) -> Option<Vec<Span>> {
    let joint = match sign {
        '|' if line.contains("||") => "||",
        '!' if line.contains("!!") => "!!",
        '!' => "||",
        _ => return None,
    };
    let text = line.trim();
    let ends = ["||", "|", "!"];
    let text = ends.iter().find_map(|sign| text.strip_prefix(*sign)).unwrap_or(text);
    let inner = ends.iter().find_map(|sign| text.strip_suffix(*sign)).unwrap_or(text);
    let inner = inner.split(joint).map(|field| span_of(field, line));
    Some([(0, 0)].into_iter().chain(inner).chain([(line.len(), line.len())]).collect())
}

/// Fields with a separator, where a quoted one may hold the separator and may have begun above; whether a quote stays open.
pub(super) fn split(line: &str, sign: char, quoted: bool) -> (Vec<Span>, bool) {
    // A row of LaTeX.
    let line =
        if sign == '&' { line.trim_end().trim_end_matches(" \\hline").trim_end_matches('\\') } else { line };
    let escaped = |at: usize| sign == '&' && line[..at].ends_with('\\');
    let bytes = line.as_bytes();
    let (mut fields, mut start, mut quoted) = (Vec::with_capacity(16), 0, quoted);
    let one = u8::try_from(sign).ok().filter(u8::is_ascii);
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        if byte == b'"' {
            if quoted || line[start..at].trim().is_empty() {
                quoted = !quoted;
            }
            // A doubled quote opens again at once.
            quoted |= bytes.get(at + 1) == Some(&b'"');
        } else if one.map_or(byte >= 0x80, |one| byte == one) && !quoted && !escaped(at) {
            // Few other separators have several bytes.
            let len = if one.is_some() { 1 } else { line[at..].chars().next().map_or(1, char::len_utf8) };
            if one.is_some() || line[at..].starts_with(|c| separates(sign, c)) {
                fields.push((start, at));
                start = at + len;
            }
            at += len;
            continue;
        }
        at += 1;
    }
    fields.push((start, line.len()));
    (fields, quoted)
}

/// The same, ignoring quotes.
pub(super) fn unquoted(line: &str, sign: char) -> Vec<Span> {
    let ends =
        line.char_indices().filter(|(_, c)| separates(sign, *c)).map(|(at, c)| (at, at + c.len_utf8()));
    let mut start = 0;
    ends.chain([(line.len(), 0)]).map(|(end, next)| (std::mem::replace(&mut start, next), end)).collect()
}

/// Parts of a line with two or more spaces between.
pub(super) fn segments(line: &str) -> Vec<Span> {
    let mut parts: Vec<Span> = Vec::new();
    for (start, end) in words(line) {
        match parts.last_mut() {
            Some(last) if start - last.1 == 1 && line.as_bytes()[last.1] == b' ' => last.1 = end,
            _ => parts.push((start, end)),
        }
    }
    parts
}

/// The words of a line.
pub(super) fn words(line: &str) -> Vec<Span> {
    let words = line.as_bytes().split(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
    words.filter(|word| !word.is_empty()).map(|word| span_of(word, line)).collect()
}
