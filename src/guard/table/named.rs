//! A value after its name in a line: `ssn  219-09-9998`, `ssn=219-09-9998`, `<ssn>219-09-9998</ssn>`.

use super::fields::{segments, span_of, split, strip_ignoring_case, words};
use super::head::is_name;
use super::{BARS, Found, LONGEST_NAME, Span};
use crate::guard::classes::only;
use crate::guard::heads::{self, LONGEST_VALUE, Meaning, Place};
use crate::guard::nested::quoted;
use crate::guard::scan::placeholder_len;

/// The name of the only variable that a command line prints: `printenv NAME`, `echo $NAME`, `$env:NAME`.
pub(super) fn printed(line: &str) -> Option<&str> {
    let (before, name) = line.rsplit_once(' ').unwrap_or(("", line));
    let prompt = line.starts_with(['$', '#', '>', '%']);
    if !prompt && !name.contains('$') && !before.ends_with("printenv") {
        return None;
    }
    let command = before.rsplit(' ').next().unwrap_or_default();
    let name = name.trim_matches('"');
    let variable = name
        .strip_prefix("$env:")
        .or_else(|| name.strip_prefix('$'))
        .filter(|_| command == "echo" || name.starts_with("$env:"));
    // A prompt, and a command that prints the value of a name.
    const PRINTS: [&str; 7] = ["cat", "output", "-raw", "show", "get", "read", "--secret-id"];
    let kept = || name.rsplit(['/', '.']).find(|part| !part.is_empty());
    let prints = prompt && PRINTS.contains(&command);
    let name = variable
        .or_else(|| Some(name).filter(|_| command == "printenv"))
        .or_else(|| kept().filter(|_| prints))?;
    let name = name.trim_matches(['{', '}']);
    (!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
        .then_some(name)
}

/// A line with the name and the type of what follows, as in R, or with the marks of AsciiDoc before both:
/// `$ ssn : chr "219-09-9998" "219-09-9997"`, `<l|ssn <l|219-09-9998`.
pub(super) fn marked_row(line: &str, found: &mut Found<'_>) -> bool {
    let text = line.trim();
    if let Some(cells) = text.strip_prefix("<l|") {
        let joint = ["<l|", ">l|"].iter().filter_map(|mark| cells.find(*mark)).min();
        let Some(joint) = joint else { return false };
        let meant = heads::meaning(cells[..joint].trim());
        return found.cell(meant, line, span_of(&cells[joint + 3..], line), Place::Wide);
    }
    let Some(rest) = text.strip_prefix("$ ") else { return false };
    let Some(joint) = rest.find([':', '<']).filter(|joint| *joint <= LONGEST_NAME) else { return false };
    let values = rest[joint + 1..].trim_start();
    let typed = ["chr", "int", "num", "dbl", "fct", "Factor", "str", "i64", "i32", "f64", "u64", "cat"]
        .iter()
        .any(|name| values.starts_with(name));
    let meant = heads::meaning(rest[..joint].trim());
    if !typed || meant.is_empty() {
        return false;
    }
    let (start, _) = span_of(values, line);
    let quote = if values.contains('"') { b'"' } else { b'\'' };
    let quotes: Vec<usize> = memchr::memchr_iter(quote, values.as_bytes()).map(|at| start + at).collect();
    for pair in quotes.chunks_exact(2) {
        found.cell(meant, line, (pair[0] + 1, pair[1]), Place::Wide);
    }
    if quotes.is_empty() {
        for (from, to) in words(values) {
            let to = from + values[from..to].trim_end_matches(',').len();
            found.cell(meant, line, (start + from, start + to), Place::Wide);
        }
    }
    true
}

/// The longest word that qualifies a name.
const LONGEST_QUALIFIER: usize = 12;
/// The longest gap between a name and the mark after it, including quotes and markup.
const LONGEST_GAP: usize = 24;

/// Values after `name=`, `name:` and `name =>`, anywhere in a line; each of a list. Places are after words that a
/// name may end in.
pub(super) fn assigned(line: &str, base: usize, places: &[usize], found: &mut Found<'_>) {
    let mut done = 0;
    for end in places.iter().map(|place| place - base) {
        if end < done || !line.is_char_boundary(end) {
            continue;
        }
        // `ssn_1"`
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let word_end =
            end + clipped(&line[end..], 4 * LONGEST_NAME).find(|c| !word(c)).unwrap_or(line.len() - end);
        let to = qualified(line, word_end);
        let between = |c: char| matches!(c, '"' | '\'' | '`' | '*' | ']' | ' ' | '.' | '°' | 'º');
        let (gap, rest) = line[to..].split_at(line[to..].find(|c| !between(c)).unwrap_or(0));
        let member = member(rest);
        let signs = rest.trim_start_matches("=>").trim_start_matches([':', '=']);
        let sign = member.max(rest.len() - signs.len());
        let list = rest.starts_with(',') && rest[1..].trim_start().starts_with('[');
        let pair = paired(line, to, gap, rest);
        let path = gap.is_empty() && rest.starts_with('/');
        if path || sign == 0 && !list && pair.is_none() {
            let last = if path { in_path(line, to, found) } else { in_sentence(line, to, gap, found) };
            done = last.unwrap_or(done);
            continue;
        }
        if gap.len() > LONGEST_GAP || gap.contains("  ") && sign == 0 {
            continue;
        }
        let mut from = to
            - line[..to]
                .chars()
                .rev()
                .take(LONGEST_NAME)
                .take_while(|c| word(*c) || " .-/°".contains(*c))
                .map(char::len_utf8)
                .sum::<usize>();
        from += line[from..to].rfind("  ").map_or(0, |blank| blank + 2);
        // A replaced text names nothing.
        let replaced = line[..from].ends_with('[') && placeholder_len(&line.as_bytes()[from - 1..]).is_some();
        let meant = if replaced { &[] } else { heads::meaning(line[from..to].trim()) };
        if let Some((start, stop)) = pair.filter(|_| !meant.is_empty()) {
            found.cell(meant, line, (start, stop), Place::Wide);
            done = stop;
            continue;
        }
        let at = line.len() - rest.len() + sign.max(1);
        let opens = line.get(at..).and_then(|rest| rest.trim_start().chars().next());
        let opens = opens.filter(|sign| matches!(sign, '[' | '(' | '{'));
        if meant.is_empty() || sign == 0 && !list || member > 0 && heads::only_secret(meant) {
            continue;
        }
        if heads::only_secret(meant) && opens.is_none() {
            // `mot de passe provisoire : x`: a value named by its last word is found elsewhere.
            let unknown = line[word_end..to].starts_with(' ') || heads::only_pin(meant);
            if unknown && line[at..].starts_with(' ') {
                let start = at + 1;
                let stop = line[start..].find([' ', '"', '\r']).map_or(line.len(), |len| start + len);
                found.cell(meant, line, (start, stop), Place::Wide);
            }
            continue;
        }
        done = values(line, at, (meant, opens), found).unwrap_or(done);
    }
}

/// The length of SQL's `IN` or `NOT IN` before the bracket of its list.
fn member(rest: &str) -> usize {
    let behind = strip_ignoring_case(rest, "NOT ").unwrap_or(rest);
    let list = strip_ignoring_case(behind, "IN ").or_else(|| strip_ignoring_case(behind, "IN"));
    list.filter(|list| list.starts_with('(')).map_or(0, |list| rest.len() - list.len())
}

/// The value at a place, or each value of the list that a bracket opens there; returns where the last one ends.
fn values(
    line: &str,
    mut at: usize,
    (meant, opens): (Meaning, Option<char>),
    found: &mut Found<'_>,
) -> Option<usize> {
    let mut done = None;
    loop {
        at += line[at..].find(|c| !matches!(c, ' ' | '[' | '*' | '(' | '{')).unwrap_or(0);
        let Some((start, stop, quoted)) = one_value(line, at) else { break };
        let place = if quoted || opens == Some('[') { Place::Wide } else { Place::Line };
        if quoted || !heads::only_secret(meant) {
            let whole = found.cell(meant, line, (start, stop), place);
            // Arrays have spaces between.
            let apart = !whole && !quoted && opens.is_some();
            let parts = if apart { words(&line[start..stop]) } else { Vec::new() };
            for (from, to) in parts {
                found.cell(meant, line, (start + from, start + to), place);
            }
        }
        at = stop + usize::from(quoted);
        done = Some(at);
        let more = line[at..].trim_start_matches(',');
        if opens.is_none() || more.starts_with(']') || more.is_empty() {
            break;
        }
        at = line.len() - more.len();
    }
    done
}

/// What may be between a name and its value in a sentence, in the languages of the heads.
const VERBS: &str = "is,ist,lautet,est,es,es:,jest,to,è,é,är,er,on,je,este,is:,είναι";
/// The most words of a value in a sentence, and of the name before it.
const MOST_WORDS: usize = 7;
const NAME_WORDS: usize = 4;
/// The most words between both.
const MOST_BETWEEN: usize = 3;

/// The identifier after its name with nothing or a verb between: `passport no. C1ZT6502P`, `mein Pass ist C1ZT6502P`.
/// Returns where it ends; the name ends at `to`, and `gap` follows.
fn in_sentence(line: &str, to: usize, gap: &str, found: &mut Found<'_>) -> Option<usize> {
    if gap.is_empty() || gap.len() > 4 || !gap.ends_with(' ') {
        return None;
    }
    let at = to + gap.len();
    let first = line[at..].split_inclusive(' ').next().and_then(|word| word.strip_suffix(' '));
    let is_verb = |word: &str| VERBS.split(',').any(|verb| verb == word);
    let verb = first.filter(|word| is_verb(word)).map_or(0, |verb| verb.len() + 1);
    let first = at + verb;
    let mut at = first;
    // `SV-Nummer des Mitarbeiters 65170839J003`, `pwd for the wifi: x7Qm-2Wd9p`
    let (mut between, mut last) = (0, "");
    let word = |text: &str| text.find(' ').filter(|len| text[..*len].chars().all(char::is_alphabetic));
    let mark = |text: &str| text.find(": ").filter(|len| text[..*len].chars().all(char::is_alphabetic));
    while between < MOST_BETWEEN
        && let Some(len) = word(&line[at..]).filter(|len| *len <= LONGEST_QUALIFIER)
    {
        last = &line[at..at + len];
        at += len + 1;
        between += 1;
    }
    if let Some(len) = mark(clipped(&line[at..], LONGEST_QUALIFIER + 2)) {
        (at, between, last) = (at + len + 2, between + 1, ":");
    }
    let value = clipped(&line[at..], LONGEST_IN_SENTENCE);
    let value =
        &value[..value.find([',', ';', '(', ')', '"', '<', '|', ':', '=', '\t']).unwrap_or(value.len())];
    let words: Vec<Span> = words(value).into_iter().take(MOST_WORDS).collect();
    if !words.first().is_some_and(|(from, to)| value[*from..*to].bytes().any(|byte| byte.is_ascii_digit())) {
        return None;
    }
    let before = &line[..to];
    let name = before
        .rmatch_indices([' ', ',', ';', ':', '(', '|', '\t', '"'])
        .nth(NAME_WORDS - 1)
        .map_or(0, |(at, _)| at + 1);
    let name = before[name..].rsplit([',', ';', ':', '(', '|', '\t', '"']).next().unwrap_or_default();
    let meant = heads::meaning(name.trim_matches([' ', '.']));
    if meant.is_empty() {
        return None;
    }
    let place = match between {
        0 => Place::Sentence,
        _ if last == ":" || is_verb(last) => Place::Introduced,
        _ => Place::Apart,
    };
    // A secret needs a verb or a colon right before it, or capitals, unless its name means nothing else.
    let introduced = || match place {
        Place::Sentence => {
            verb > 0 || heads::needs_no_verb(meant) || line[..to].ends_with(|c: char| c.is_ascii_uppercase())
        }
        place => place == Place::Introduced,
    };
    if heads::only_secret(meant) && !introduced() {
        return None;
    }
    // The first parts of an identifier may be letters.
    let starts = [(at + words[0].0, place), (first, Place::Sentence)];
    let spans = (0..words.len()).rev().map(|last| at + value[..words[last].1].trim_end_matches('.').len());
    let mut spans = spans
        .flat_map(|end| starts.iter().take(1 + between).map(move |(start, place)| (*start, end, *place)));
    spans.find(|(start, end, place)| found.cell(meant, line, (*start, *end), *place)).map(|(_, end, _)| end)
}

/// The identifier after its name in a path: `/nino/AB123456C/income`. Returns where it ends; the name ends at `to`.
fn in_path(line: &str, to: usize, found: &mut Found<'_>) -> Option<usize> {
    let name = line[..to].rsplit(['/', ' ', '=', '"']).next().unwrap_or_default();
    let value = clipped(&line[to + 1..], LONGEST_IN_SENTENCE);
    let end = to + 1 + value.find(['/', '?', '#', '&', '"', '\'', ' ', '<']).unwrap_or(value.len());
    found.cell(heads::meaning(name), line, (to + 1, end), Place::Apart).then_some(end)
}

/// The longest value in a sentence.
const LONGEST_IN_SENTENCE: usize = 48;

/// The beginning of a text, up to the limit.
fn clipped(text: &str, len: usize) -> &str {
    &text[..text.floor_char_boundary(len)]
}

/// The end of a name that continues with qualifiers: `ID card number`, `SV-Nr.`.
fn qualified(line: &str, mut to: usize) -> usize {
    while let Some(word) = line[to..].strip_prefix([' ', '-', '_']) {
        let word = clipped(word, LONGEST_QUALIFIER + 1);
        let len = word.find(|c: char| !c.is_alphanumeric()).unwrap_or(word.len());
        if !(1..=LONGEST_QUALIFIER).contains(&len) || !heads::is_qualifier(&word[..len]) {
            break;
        }
        to += 1 + len;
    }
    to
}

/// The value next to a name without a mark: `("ssn", "219-09-9998")`, `{ssn, "219-09-9998"}`, `:ssn "219-09-9998"`. The
/// name ends at `to`, `gap` and `rest` follow.
fn paired(line: &str, to: usize, gap: &str, rest: &str) -> Option<Span> {
    let start = |text: &str| span_of(text, line).0;
    let word = |c: char| c.is_alphanumeric() || " _-.".contains(c);
    let near = line.ceil_char_boundary(to.saturating_sub(4 * LONGEST_NAME));
    let before = line[near..to].trim_end_matches(word);
    let name = near + before.len();
    if gap == " \"" && before.ends_with(':') && !line[name..to].contains(' ') {
        return Some((start(rest), start(rest) + rest.find('"')?));
    }
    let bare = before.trim_end_matches(['"', '\'']);
    let value = rest.strip_prefix(',')?.trim_start();
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let end = quoted(value.as_bytes(), 1, quote as u8)?;
    let closed = matches!(gap, "" | "\"" | "'") && value[end..].trim_start().starts_with([')', ']', '}']);
    (closed && bare.ends_with(['(', '[', '{'])).then_some((start(value) + 1, start(value) + end - 1))
}

/// The values of elements that are named by a tag, an attribute or the element before: `<ssn>x</ssn>`,
/// `<field name="ssn">x</field>`, `<dt>ssn</dt><dd>x</dd>`. Returns the meaning that the last one gives to the next line.
pub(super) fn elements(line: &str, mut above: Meaning, found: &mut Found<'_>) -> Meaning {
    let mut at = 0;
    while let Some(open) = line[at..].find('<').map(|open| at + open) {
        let Some(close) = line[open..].find('>').map(|close| open + close) else { break };
        let tag = &line[open + 1..close];
        at = close + 1;
        let Some(len) = line[at..].find('<').filter(|len| *len > 0 && line[at + len..].starts_with("</"))
        else {
            continue;
        };
        if tag.starts_with('/') {
            continue;
        }
        let value = (at, at + len);
        let named = tag.split_once("name=").or_else(|| tag.split_once("key="));
        let name = match named {
            Some((_, name)) => {
                name.trim_start_matches(['"', '\'']).split(['"', '\'']).next().unwrap_or_default()
            }
            None => tag.split(' ').next().unwrap_or_default(),
        };
        let name = name.rsplit(':').next().unwrap_or_default();
        let meant = heads::meaning(name);
        if !meant.is_empty() {
            found.cell(meant, line, value, Place::Wide);
        }
        // An element that holds a name; cells of tables are read as such.
        let names = ["dt", "key", "name", "label"].contains(&name);
        if !names && !above.is_empty() {
            found.cell(above, line, value, Place::Wide);
        }
        above = if names { heads::meaning(line[value.0..value.1].trim().trim_end_matches(':')) } else { &[] };
    }
    above
}

/// A value in quotes, or up to its end or the next name; whether it is quoted.
fn one_value(line: &str, at: usize) -> Option<(usize, usize, bool)> {
    // Longer text is not read as a value.
    let text = clipped(&line[at..], LONGEST_VALUE + 64);
    let text = ["Some(", "pl.Series(", "<<"].iter().find_map(|call| text.strip_prefix(*call)).unwrap_or(text);
    let (at, _) = span_of(text, line);
    if let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'' | '`')) {
        let end = quoted(text.as_bytes(), 1, quote as u8)?;
        return Some((at + 1, at + end - 1, true));
    }
    let ends = [',', ';', ')', '}', ']', '|', '\t', '"', '<', '&', '=', ':'];
    let end = text.find(ends).unwrap_or(text.len());
    let len = match text[..end].find("  ") {
        Some(gap) => gap,
        None if text[end..].starts_with(['=', ':']) => text[..end].rfind(' ')?,
        None => end,
    };
    (len > 0).then_some((at, at + len, false))
}

/// The characters around a name and its value.
pub(super) fn outer(c: char) -> bool {
    matches!(c, ' ' | '\t') || BARS.contains(&c)
}

/// The end of the name that a line may begin with, and the text after the spaces or the mark that follow.
pub(super) fn joint(line: &str) -> Option<(usize, &str)> {
    static SIGNS: [bool; 256] = only(b":=. \t|\xe2");
    // The longest name.
    let near = &line.as_bytes()[..line.len().min(LONGEST_NAME + 4)];
    let may_end = |at: &usize| SIGNS[usize::from(near[*at])];
    let end = (0..near.len()).filter(may_end).find(|at| match near[*at] {
        b'.' => line[*at..].starts_with("..."),
        b' ' => line[*at..].starts_with("  "),
        0x80.. => line[*at..].starts_with(outer),
        _ => true,
    })?;
    let rest = line[end..].trim_start_matches(|c: char| outer(c) || matches!(c, ':' | '=' | '.'));
    let apart = line[end..line.len() - rest.len()].contains(outer);
    (apart && !rest.is_empty()).then_some((end, rest))
}

/// A line that begins with the name of what follows: `ssn  219-09-9998`, `| ssn | 219-09-9998 |`, `ssn: 219-09-9998`.
pub(super) fn named_row(line: &str, found: &mut Found<'_>) -> bool {
    let trimmed = line.trim_start_matches(outer);
    let lead = line.len() - trimmed.len();
    let Some((end, rest)) = joint(trimmed) else { return false };
    let name = trimmed[..end].trim_end();
    let mark = &trimmed[end..trimmed.len() - rest.len()];
    // `name=value` and `a:b` are more often code and options.
    let place = if mark.contains([':', '=']) { Place::Line } else { Place::Wide };
    if name.len() > LONGEST_NAME || !name.starts_with(char::is_alphabetic) {
        return false;
    }
    let meant = heads::meaning(name);
    // `||` is an operator.
    let code = mark.contains([':', '=']) || mark.contains("||");
    if meant.is_empty() || heads::only_secret(meant) && code {
        return false;
    }
    let start = lead + trimmed.len() - rest.len();
    let rest = rest.trim_end_matches(|c: char| outer(c) || c == '\r');
    // A head, or prose.
    let letters = rest.chars().all(|c| c.is_ascii_alphabetic() || c == '_' || outer(c));
    let secret = heads::only_secret(meant);
    if letters && secret {
        return false;
    }
    // `name  Personnummer  Telefon` is a head, though it could also be a name with a person's name after it.
    let part = |(start, end): &Span| &rest[*start..*end];
    let parts: Vec<Span> = segments(&rest.replace(['\t'], " "));
    let cells = || parts.iter().map(part).flat_map(|part| part.split(BARS)).map(str::trim);
    if !secret && cells().all(is_name) && cells().any(|cell| !heads::meaning(cell).is_empty()) {
        return false;
    }
    if !rest.contains(BARS) && found.cell(meant, line, (start, start + rest.len()), place) {
        return true;
    }
    // Each of the cells of a transposed table, except for omitted or missing ones.
    let mut parts = Vec::new();
    for (from, to) in segments(rest) {
        let mut at = from;
        for cell in rest[from..to].split_inclusive(BARS) {
            let inner = cell.trim_end_matches(BARS);
            parts.push((at, at + inner.len()));
            at += cell.len();
        }
    }
    parts.retain(|(from, to)| !is_missing(rest[*from..*to].trim()));
    let fit = |(from, to): &Span| heads::cell(meant, &rest[*from..*to], place).is_some();
    let all = (rest.contains("  ") || rest.contains(BARS)) && !parts.is_empty() && parts.iter().all(fit);
    if all {
        for (from, to) in parts {
            found.cell(meant, line, (start + from, start + to), place);
        }
    }
    all
}

/// Whether the value of a cell is missing.
fn is_missing(cell: &str) -> bool {
    ["", "...", "…", "-", "null", "NULL", "nan", "NaN", "None", "<NA>"].contains(&cell)
}

/// The end of the name that separated values may begin with.
pub(super) fn side_joint(line: &str) -> Option<usize> {
    let joint = memchr::memchr3(b',', b';', b'\t', &line.as_bytes()[..line.len().min(LONGEST_NAME)])?;
    let sign = char::from(line.as_bytes()[joint]);
    (!line[joint + 1..].starts_with([' ', sign])).then_some(joint)
}

/// A line of separated values that begins with their name: `ssn,219-09-9998,219-09-9997`.
pub(super) fn side_row(line: &str, found: &mut Found<'_>) -> bool {
    let Some(joint) = side_joint(line) else { return false };
    let (sign, name) = (char::from(line.as_bytes()[joint]), line[..joint].trim_matches('"'));
    let meant = if is_name(name) { heads::meaning(name) } else { &[] };
    if meant.is_empty() {
        return false;
    }
    let (mut fields, _) = split(line, sign, false);
    fields.remove(0);
    fields.retain(|(start, end)| !is_missing(line[*start..*end].trim()));
    let fit = |(start, end): &Span| heads::cell(meant, &line[*start..*end], Place::Wide).is_some();
    let least = if heads::only_secret(meant) { 2 } else { 1 };
    let all = fields.len() >= least && fields.iter().all(fit);
    if all {
        for span in fields {
            found.cell(meant, line, span, Place::Wide);
        }
    }
    all
}
