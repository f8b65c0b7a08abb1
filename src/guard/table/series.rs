//! A pandas `Series`: a label and a value on each line, and their name in the line after them.

use super::fields::{span_of, words};
use super::{Found, Span};
use crate::guard::heads::{self, Meaning, Place};
use crate::guard::stream::WINDOW;

/// The most lines of a `Series` that come before its name; pandas prints 60.
const SERIES: usize = 64;
/// The most bytes between a value and the end of its name: less than a stream waits for.
const LONGEST_SERIES: usize = 12 * 1024;

/// Whether the end of `text[start..end]` may belong to a `Series` whose name is still to come; returns where that begins.
pub(in super::super) fn may_be_series(text: &str, start: usize, end: usize) -> Option<usize> {
    let (mut at, mut first) = (end, None);
    for line in tail(&text[start..end]) {
        at -= line.len();
        if text.len() - at >= WINDOW {
            break;
        }
        if value(line).is_some_and(|span| needs_its_name(line, span)) {
            first = Some(at);
        }
    }
    first
}

/// Whether a value in a line of a `Series` may be one that only its name makes personal or secret: it has digits or punctuation
/// of passwords, or is a word after a number or the name of a secret. Text waits for the name of no other, so the name applies to
/// no other.
pub(super) fn needs_its_name(line: &str, (from, to): Span) -> bool {
    let value = &line[from..to];
    let decimal = value.contains('.') && value.replace(',', "").parse::<f64>().is_ok();
    let sign = |byte: u8| byte.is_ascii_digit() || b"!#$%&*?@^~".contains(&byte);
    let numbered = || line[..from].trim().bytes().all(|byte| byte.is_ascii_digit());
    let labelled = || numbered() || !secret_label(line, (from, to)).is_empty();
    !decimal
        && value.bytes().filter(u8::is_ascii_alphanumeric).count() >= 6
        && (value.bytes().any(sign) || !value.contains(' ') && labelled())
}

/// The meaning that the label of a line of a `Series` gives the value after it, if that is a secret.
pub(super) fn secret_label(line: &str, (from, _): Span) -> Meaning {
    let meant = heads::meaning(line[..from].trim());
    if heads::only_secret(meant) { meant } else { &[] }
}

fn is_dots(line: &str) -> bool {
    matches!(line.trim(), ".." | "...")
}

/// The value in a line of a `Series`: after the last gap of two or more spaces. The labels before it are not checked,
/// so the line is read the same whether they are hidden or not.
pub(super) fn value(line: &str) -> Option<Span> {
    let line = line.trim_end();
    let gap = line.rfind("  ")?;
    (!line[..gap].trim_start().is_empty()).then_some((gap + 2, line.len()))
}

/// The meaning that the line after a `Series` gives its values: `Name: ssn, dtype: object`.
fn name(line: &str) -> Option<Meaning> {
    let (name, rest) = line.strip_prefix("Name: ")?.split_once(", ")?;
    (rest.starts_with("dtype: ") || rest.starts_with("Length: ")).then(|| heads::meaning(name))
}

/// How the line after a `Series` begins that names it.
const NAME: &[u8] = b"\nName: ";

/// The values of each `Series` in a piece whose name has a meaning, and that meaning.
pub(super) fn find(text: &str, (start, end): Span, named: &[usize], out: &mut Vec<(Span, Meaning)>) {
    out.clear();
    let bytes = text.as_bytes();
    // The name comes after the values, perhaps in the next piece.
    let further = if tail(&text[start..end]).next().is_some() { LONGEST_SERIES } else { NAME.len() };
    let edge = start.max(end.saturating_sub(NAME.len()));
    let here = named.iter().copied().filter(|feed| *feed < edge && bytes[*feed..].starts_with(NAME));
    let ahead = memchr::memmem::find_iter(&bytes[edge..text.len().min(end + further)], NAME);
    for feed in here.chain(ahead.map(|feed| edge + feed)) {
        let at = feed + 1;
        let line = text[at..].split_inclusive('\n').next().unwrap_or_default();
        if let Some(meant) = name(line.trim_end()) {
            let values: usize = tail(&text[start..at]).map(str::len).sum();
            out.push(((at - values, at), meant));
        }
    }
}

/// The possible lines of a `Series` at the end of a text, the last first.
fn tail(text: &str) -> impl Iterator<Item = &str> {
    let (mut end, floor) = (text.len(), text.len().saturating_sub(LONGEST_SERIES));
    let lines = std::iter::from_fn(move || {
        let before = text.as_bytes().get(floor.saturating_sub(1)..end.checked_sub(1)?)?;
        let feed = memchr::memrchr(b'\n', before);
        let line = feed.map_or((floor == 0).then_some(0), |feed| Some(floor.saturating_sub(1) + feed + 1))?;
        Some(&text[line..std::mem::replace(&mut end, line)])
    });
    lines.take(SERIES - 1).take_while(|line| value(line).is_some() || is_dots(line))
}

/// The value of a row of a `Series`, or each of a list of them, as groups have it.
pub(super) fn row(meant: Meaning, line: &str, (start, end): Span, found: &mut Found<'_>) {
    let value = &line[start..end];
    let items = if value.starts_with('[') { words(value) } else { vec![(0, value.len())] };
    for (from, to) in items {
        let item = value[from..to].trim_start_matches('[').trim_end_matches([',', ']']);
        found.cell(meant, line, span_of(item, line), Place::Wide);
    }
}
