//! Rows of fixed width.

use super::fields::{segments, words};
use super::{Column, FEWEST_DIGITS, Found, Head, LONGEST_LINE, Span, finding};
use crate::guard::heads::{self, Place};

/// A row of fixed width. Where words come before the head alone, as with `print("found:", frame)`, rows end further left by
/// the width of those words.
pub(super) fn frame_row(head: &Head, gaps: bool, line: &str, found: &mut Found<'_>) -> bool {
    if line.len() > LONGEST_LINE {
        return false;
    }
    let shifted = || {
        let end = head.columns.last()?.end;
        let shift = end.checked_sub(line.trim_end().chars().count()).filter(|shift| *shift > 0)?;
        // A password looks like any word, and lines of code end anywhere.
        let sure = head.lead.is_some_and(|lead| (lead..lead + 2).contains(&shift));
        let mut columns = head.columns.clone();
        for column in &mut columns {
            column.start = column.start.saturating_sub(shift);
            column.end = column.end.saturating_sub(shift);
            if !sure && heads::only_secret(column.meant) {
                column.meant = &[];
            }
        }
        Some(columns)
    };
    fixed_row(&head.columns, gaps, line, found)
        || shifted().is_some_and(|columns| fixed_row(&columns, gaps, line, found))
}

/// Whether the cells of a row are apart, as required for secrets: with a gap between two, or each at the end of its head. Where
/// the only gap of the head is before its first name, an index is below that.
fn stands_apart(columns: &[Column], gaps: bool, line: &str, parts: usize) -> bool {
    if !gaps {
        return false;
    }
    let by_index = columns.windows(2).all(|pair| pair[1].start <= pair[0].end + 1);
    if parts > 1 && !by_index {
        return true;
    }
    let words = words(line);
    let char = |at: usize| line[..at].chars().count();
    let each = || words.iter().zip(columns).all(|(word, column)| char(word.1) == column.end);
    let indexed = words.first().is_some_and(|(from, to)| {
        let number = line[*from..*to].bytes().all(|byte| byte.is_ascii_digit());
        *from < columns[0].start && (*from < 4 || number)
    });
    (parts > 1 || words.len() > 1 && words.len() == columns.len() && each()) && (indexed || !by_index)
}

/// A row under a head of fixed width: the text under each meaningful head is tried whole, then cut where the
/// heads beside it end or begin, because a table may be aligned to either side.
fn fixed_row(columns: &[Column], gaps: bool, line: &str, found: &mut Found<'_>) -> bool {
    let digits = || line.bytes().filter(u8::is_ascii_digit).count();
    let numeric = |column: &Column| heads::needs_digits(column.meant);
    if columns.iter().all(numeric) && digits() < FEWEST_DIGITS {
        return false;
    }
    let ascii = line.is_ascii();
    let places: Vec<usize> = if ascii { Vec::new() } else { line.char_indices().map(|(at, _)| at).collect() };
    // Converts characters to bytes.
    let byte =
        |at: usize| if ascii { at.min(line.len()) } else { places.get(at).copied().unwrap_or(line.len()) };
    let char = |at: usize| if ascii { at } else { places.partition_point(|place| *place < at) };
    let blank = |at: usize| line.as_bytes().get(byte(at)).is_none_or(|byte| *byte == b' ');
    let parts: Vec<Span> = segments(line).iter().map(|(start, end)| (char(*start), char(*end))).collect();
    let place = if stands_apart(columns, gaps, line, parts.len()) { Place::Wide } else { Place::Alone };
    let mut any = false;
    for (at, column) in columns.iter().enumerate().filter(|(_, column)| !column.meant.is_empty()) {
        let under = |part: &&Span| columns.len() == 1 || part.0 < column.end && part.1 > column.start;
        let secret = heads::only_secret(column.meant);
        // A row that is wider than its head has the same order.
        let alike = parts.len() == columns.len() && gaps && !parts.iter().any(|part| under(&part));
        let own_part = |nth: usize, part: &&Span| if alike { nth == at } else { under(part) };
        let those = parts.iter().enumerate().filter(|(nth, part)| own_part(*nth, part));
        let hit = those.map(|(_, part)| part).find_map(|&(x, y)| {
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
            let tries = [(from, to.min(before_next)), (own, before_next), (x, y), (from, y), (own, y)];
            let inner = words(&line[byte(x)..byte(y)]);
            let touching = inner
                .iter()
                .map(|(start, end)| (char(byte(x) + start), char(byte(x) + end)))
                .filter(|word| word.0 < column.end && word.1 > column.start);
            tries.into_iter().chain(touching).filter(|(start, end)| start < end).find_map(|(start, end)| {
                let base = byte(start);
                let ((from, to), rule) = heads::cell(column.meant, &line[base..byte(end)], place)?;
                // pandas puts left-aligned values one space after their head.
                let shift = char(base + from).checked_sub(column.start);
                let end = char(base + to);
                let to_next = columns.get(at + 1).is_some_and(|next| next.start == end + 1);
                let aligned = matches!(shift, Some(0 | 1)) || end == column.end || to_next;
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
