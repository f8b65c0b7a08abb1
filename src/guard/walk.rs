//! The guard over a JSON value: keys and values, with the name of a value as a hint. The result is always JSON.
//!
//! A name reaches its value across nesting: `{"password": {"value": "x"}}`, `{"name": "password", "value": "x"}`,
//! a table's column, the numbered rows that pandas writes under a column's name.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::excluded::Excluded;
use super::nested::{COLUMNS, ROWS};
use super::picture::{self, Content, Inspector};
use super::policy::Mode;
use super::scan::{holds_placeholder, names_a_kind};
use super::stream::WITHHELD;
use super::{Guard, Numbering, Report, embedded, heads};

/// The deepest nesting of a value.
const MAX_DEPTH: usize = 128;
/// The replacement of anything nested deeper.
pub(super) const TOO_DEEP: &str = "[TOO_DEEP]";

/// Fields that hold the name of the field `value` beside them.
const NAMES: [&str; 6] = ["key", "name", "id", "variable", "field", "header"];
/// Fields that hold the value that their object names.
const VALUES: [&str; 9] = ["value", "values", "val", "current", "previous", "old", "new", "plaintext", "raw"];

fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// The state of a walk.
pub(super) struct Walk<'a> {
    pub(super) guard: &'a Guard,
    pub(super) numbering: &'a mut Numbering,
    pub(super) report: &'a mut Report,
    /// How many bytes PDFs may still inflate to.
    pub(super) left: &'a mut u64,
}

impl Walk<'_> {
    /// Guards a value and everything below it; `name` is a media type or empty.
    pub(super) fn value(&mut self, name: &str, value: Value) -> Value {
        self.under(name, value, 0)
    }

    /// Guards a value under a name.
    fn under(&mut self, name: &str, value: Value, depth: usize) -> Value {
        if depth > MAX_DEPTH {
            self.report.withheld += 1;
            return Value::String(TOO_DEEP.to_owned());
        }
        match value {
            Value::Null | Value::Bool(_) => value,
            Value::String(text) => Value::String(self.text(name, &text)),
            Value::Number(number) => {
                let text = number.to_string();
                let guarded = self.guard.run_named(name, &text, self.numbering, self.report);
                if guarded == text {
                    return Value::Number(number);
                }
                self.report.type_changed += 1;
                Value::String(guarded)
            }
            Value::Array(items) => Value::Array(self.items(name, items, depth)),
            Value::Object(fields) => Value::Object(self.fields(name, fields, depth)),
        }
    }

    /// A text, under a name or `""`, with the pictures and the drawn parts in it.
    pub(super) fn text(&mut self, name: &str, text: &str) -> String {
        if let Some(aside) = Excluded::of(text) {
            let rest = self.plain_text(name, &aside.text);
            if let Some(whole) = aside.put_back(&rest, self.guard, self.numbering, self.report) {
                return if self.report.mode == Mode::Enforce { whole } else { text.to_owned() };
            }
        }
        self.plain_text(name, text)
    }

    fn plain_text(&mut self, name: &str, text: &str) -> String {
        let enforced = self.report.mode == Mode::Enforce;
        let as_it_is = |clean: String| if enforced { clean } else { text.to_owned() };
        let inspector = &mut Inspector { guard: self.guard, left: self.left, report: self.report };
        // A picture or document under the name of its media type, as notebooks keep them.
        let is_text = !is_media_type(name);
        match if is_text { Content::Text } else { picture::content(inspector, name, text) } {
            Content::Clean(clean) => return as_it_is(clean),
            Content::Opaque => {
                self.report.withheld += 1;
                return as_it_is(WITHHELD.to_owned());
            }
            Content::Text => {}
        }
        let embedded = embedded::clean(inspector, text);
        let clean = embedded.as_deref().unwrap_or(text);
        as_it_is(self.guard.run_named(name, clean, self.numbering, self.report))
    }

    fn items(&mut self, name: &str, mut items: Vec<Value>, depth: usize) -> Vec<Value> {
        // A text that names others is guarded first. Once replaced it names nothing, as a second pass sees it.
        let names = |label: &Value| label.as_str().is_some_and(names_a_kind);
        if let [label, value @ (Value::String(_) | Value::Number(_))] = &mut items[..]
            && names(label)
            && !names_a_kind(name)
        {
            let label = self.under(name, label.take(), depth + 1);
            let named = label.as_str().filter(|_| names(&label)).unwrap_or(name);
            let value = self.under(named, value.take(), depth + 1);
            return vec![label, value];
        }
        let items = match self.lines(&items) {
            Some(lines) if self.report.mode == Mode::Enforce => lines,
            Some(lines) => return lines,
            None => items,
        };
        let head = items.first().and_then(columns).filter(|_| items.len() > 1);
        let mut rows = items.into_iter();
        let first = head.and_then(|head| Some(self.row(&head, name, rows.next()?, depth)));
        match first.as_ref().and_then(columns) {
            Some(head) => {
                first.into_iter().chain(rows.map(|row| self.row(&head, name, row, depth))).collect()
            }
            None => first.into_iter().chain(rows).map(|item| self.under(name, item, depth + 1)).collect(),
        }
    }

    /// A list of strings and numbers that may be the lines of a table, guarded as one text.
    fn lines(&mut self, items: &[Value]) -> Option<Vec<Value>> {
        let first = items.first()?.as_str()?;
        let head =
            first.contains([',', ';', '|', '\t']) && !holds_placeholder(first) && heads::may_be_head(first);
        if items.len() < 2 || !head {
            return None;
        }
        let line = |item: &Value| match item {
            Value::String(line) => Some(line.clone()).filter(|line| !line.contains(['\n', '\r'])),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let lines: Vec<String> = items.iter().map(line).collect::<Option<_>>()?;
        let clean = self.guard.run(&lines.join("\n"), self.numbering, self.report);
        let clean: Vec<&str> = clean.split('\n').collect();
        if clean.len() != items.len() {
            return None;
        }
        let line = |(item, (clean, line)): (&Value, (&str, &String))| match item {
            Value::Number(_) if clean == line => item.clone(),
            _ => Value::from(clean),
        };
        let out: Vec<Value> = items.iter().zip(clean.into_iter().zip(&lines)).map(line).collect();
        self.report.type_changed +=
            out.iter().zip(items).filter(|(new, old)| new.is_string() != old.is_string()).count() as u64;
        Some(out)
    }

    /// A row of a table, each value under its column's name.
    fn row(&mut self, columns: &[String], name: &str, row: Value, depth: usize) -> Value {
        match row {
            Value::Array(cells) if depth < MAX_DEPTH => {
                let cells = cells.into_iter().enumerate().map(|(at, cell)| {
                    // The head itself is a row too.
                    let column =
                        columns.get(at).filter(|name| !name.is_empty() && cell.as_str() != Some(name));
                    self.under(column.map_or(name, String::as_str), cell, depth + 2)
                });
                Value::Array(cells.collect())
            }
            other => self.under(name, other, depth + 1),
        }
    }

    fn fields(&mut self, name: &str, fields: Map<String, Value>, depth: usize) -> Map<String, Value> {
        let named = fields.iter().find_map(|(field, label)| {
            let label = label.as_str().filter(|_| is_one_of(field, &NAMES))?;
            (names_a_kind(label) && self.stays(field, label)).then(|| label.to_owned())
        });
        let head = fields.iter().find_map(|(field, head)| {
            let names = is_one_of(field, &COLUMNS).then(|| columns(head))??;
            names.iter().all(|name| self.stays(field, name)).then_some(names)
        });
        let mut out = Map::new();
        let mut same = HashMap::new();
        for (field, value) in fields {
            let key = self.guard.run(&field, self.numbering, self.report);
            // The guarded key labels its value, so that a second pass gives the same result.
            let field = key.clone();
            let key = apart(key, &out, &mut same);
            let index = !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit());
            let inherits = index || is_one_of(&field, &VALUES);
            let value = match (value, &head, &named) {
                (Value::Array(rows), Some(head), _) if is_one_of(&field, &ROWS) => {
                    Value::Array(rows.into_iter().map(|row| self.row(head, &field, row, depth + 1)).collect())
                }
                (value, _, Some(label)) if inherits => self.under(label, value, depth + 1),
                (value, ..) if inherits && names_a_kind(name) => self.under(name, value, depth + 1),
                // The values under a column's name belong to it, by whatever names their rows have.
                (value, ..) if speaks_below(name) && !names_a_kind(&field) => {
                    self.under(name, value, depth + 1)
                }
                // A picture or document in an object of its own.
                (value, ..) if is_media_type(name) && (inherits || field.eq_ignore_ascii_case("data")) => {
                    self.under(name, value, depth + 1)
                }
                (value, ..) => self.under(&field, value, depth + 1),
            };
            out.insert(key, value);
        }
        out
    }

    /// Whether a text under a name goes out as it is.
    fn stays(&self, name: &str, text: &str) -> bool {
        self.guard.run_named(name, text, &mut Numbering::alone(), &mut self.guard.report()) == text
    }
}

/// Two keys that became equal must not swallow a value: the second gets a number. `same` counts them.
fn apart(key: String, taken: &Map<String, Value>, same: &mut HashMap<String, usize>) -> String {
    if !taken.contains_key(&key) {
        return key;
    }
    let count = same.entry(key.clone()).or_insert(1);
    loop {
        *count += 1;
        let other = format!("{key}_{count}");
        if !taken.contains_key(&other) {
            return other;
        }
    }
}

/// Whether a name applies to everything below it. A secret's name does not: a token has a type and a date too.
fn speaks_below(name: &str) -> bool {
    let meant = heads::meaning(name);
    !meant.is_empty() && !heads::only_secret(meant)
}

/// The names of a table's columns, if these are names and one of them has a meaning.
fn columns(head: &Value) -> Option<Vec<String>> {
    let head = head.as_array()?;
    let names: Vec<String> =
        head.iter().enumerate().map(|(at, head)| column(at, head)).collect::<Option<_>>()?;
    if head.iter().filter(|head| !head.is_number()).count() < names.len().min(2)
        // A replaced name is not a name; otherwise a second pass would treat the row differently.
        || names.iter().any(|name| holds_placeholder(name))
        || !names.iter().any(|name| names_a_kind(name))
    {
        return None;
    }
    Some(names)
}

/// The name of a column: itself, or the name in an object that describes it. A number is one where it counts the columns
/// or is a year; any other number belongs to a row.
fn column(at: usize, head: &Value) -> Option<String> {
    match head {
        Value::String(name) => Some(name.clone()),
        Value::Number(number) => number
            .as_u64()
            .filter(|number| *number == at as u64 || (1900..=2100).contains(number))
            .map(|number| number.to_string()),
        Value::Object(fields) => fields
            .iter()
            .find_map(|(field, name)| name.as_str().filter(|_| is_one_of(field, &NAMES)))
            .map(str::to_owned),
        _ => None,
    }
}

/// Whether a name is a media type (RFC 6838; the top-level types that IANA registers).
fn is_media_type(name: &str) -> bool {
    const TOP: &str = "application audio font haptics image message model multipart text video";
    let is_subtype = |rest: &str| !rest.split(';').next().unwrap_or_default().contains('/');
    name.trim_start().split_once('/').is_some_and(|(top, rest)| {
        is_subtype(rest) && TOP.split(' ').any(|known| top.eq_ignore_ascii_case(known))
    })
}
