//! The guard over a JSON value: keys and values, with the key as a hint. What comes out is always JSON.

use serde_json::{Map, Value};

use super::picture::{self, Content, Look};
use super::policy::Mode;
use super::{Guard, Numbering, Report};

/// How deep a value may be nested.
const MAX_DEPTH: usize = 128;
/// What stands in place of what is nested deeper.
const TOO_DEEP: &str = "[TOO_DEEP]";

/// A picture or document under the name of its media type, as notebooks keep them, without its text.
fn binary(guard: &Guard, name: &str, text: &str, report: &mut Report, left: &mut u64) -> Option<String> {
    if report.mode != Mode::Enforce || !name.contains('/') {
        return None;
    }
    match picture::content(&mut Look { guard, left, report }, name, text) {
        Content::Clean(clean) => Some(clean),
        Content::Opaque => {
            report.withheld += 1;
            Some(picture::WITHHELD.to_owned())
        }
        Content::Text => None,
    }
}

/// Guards a value and all below it. `left`: how much PDFs in it may inflate to.
pub(super) fn walk(
    guard: &Guard,
    value: Value,
    numbering: &mut Numbering,
    report: &mut Report,
    left: &mut u64,
) -> Value {
    walk_at(guard, "", value, 0, numbering, report, left)
}

fn walk_at(
    guard: &Guard,
    name: &str,
    value: Value,
    depth: usize,
    numbering: &mut Numbering,
    report: &mut Report,
    left: &mut u64,
) -> Value {
    if depth > MAX_DEPTH {
        report.withheld += 1;
        return Value::String(TOO_DEEP.to_owned());
    }
    match value {
        Value::Null | Value::Bool(_) => value,
        Value::String(text) => Value::String(match binary(guard, name, &text, report, left) {
            Some(clean) => clean,
            None => guard.run_named(name, &text, numbering, report),
        }),
        Value::Number(number) => {
            let text = number.to_string();
            let guarded = guard.run_named(name, &text, numbering, report);
            if guarded == text {
                return Value::Number(number);
            }
            report.type_changed += 1;
            Value::String(guarded)
        }
        Value::Array(items) => Value::Array(
            items
                .into_iter()
                .map(|item| walk_at(guard, name, item, depth + 1, numbering, report, left))
                .collect(),
        ),
        Value::Object(fields) => {
            let mut out = Map::new();
            for (name, value) in fields {
                let mut key = guard.run(&name, numbering, report);
                // Two keys that became one must not swallow a value.
                while out.contains_key(&key) {
                    key.push('_');
                }
                out.insert(key, walk_at(guard, &name, value, depth + 1, numbering, report, left));
            }
            Value::Object(out)
        }
    }
}
