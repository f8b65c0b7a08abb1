//! Writes out the cases of a comparison or a scenario: each becomes complete parameters of the inner analysis,
//! checked like a call of its own, so that a program never meets an unchecked form.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::shape::{self, Shape};
use super::{AnalysisError, catalog, too_large};

/// `{analysis, common, rule_sets, ..}` with each rule set's parameters joined and checked.
///
/// # Errors
/// What the inner analysis's check says, with the rule set's place in front.
pub(super) fn comparison(mut parameters: Value, notes: &mut Vec<String>) -> Result<Value, AnalysisError> {
    let shape = inner_shape(&parameters)?;
    let common = parameters.get_mut("common").map_or_else(|| json!({}), Value::take);
    let mut bytes = 0;
    for (index, rule_set) in list_mut(&mut parameters, "rule_sets").iter_mut().enumerate() {
        let mut joined = common.clone();
        join(&mut joined, rule_set["parameters"].take());
        bytes += joined.to_string().len();
        too_large(bytes)?;
        let here = format!("rule_sets[{index}].parameters");
        rule_set["parameters"] = shape::check_with_notes(shape, &joined, &here, notes)?;
    }
    if let Some(fields) = parameters.as_object_mut() {
        fields.remove("common");
    }
    Ok(parameters)
}

/// Objects field by field, everything else replaced.
fn join(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                join(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// `{analysis, base, scenarios, ..}` with each scenario's parameters written out and every path resolved.
///
/// # Errors
/// A path that leads nowhere, scenarios that are based on each other, and what the inner analysis's check says.
pub(super) fn scenario(mut parameters: Value, notes: &mut Vec<String>) -> Result<Value, AnalysisError> {
    let shape = inner_shape(&parameters)?;
    let base = parameters["base"].take();
    parameters["base"] = shape::check_with_notes(shape, &base, "base", notes)?;

    let mut scenarios = parameters.get_mut("scenarios").map_or_else(|| json!([]), Value::take);
    let scenarios = scenarios.as_array_mut().map(std::mem::take).unwrap_or_default();
    let order = in_order(&scenarios)?;
    let mut raw: BTreeMap<&str, Value> = BTreeMap::from([("base", base.clone())]);
    let mut written = vec![Value::Null; scenarios.len()];
    let mut bytes = 0;
    for index in order {
        let scenario = &scenarios[index];
        let mut case = raw[text(scenario, "based_on").unwrap_or("base")].clone();
        for (at, change) in list(scenario, "set").iter().enumerate() {
            let path = text(change, "path").unwrap_or_default();
            let here = format!("scenarios[{index}].set[{at}].path");
            let steps = steps(&case, path, true, &here)?;
            set(&mut case, &steps, change["value"].clone());
        }
        bytes += case.to_string().len();
        too_large(bytes)?;
        let checked = shape::check_with_notes(shape, &case, &format!("scenarios[{index}]"), notes)?;
        written[index] = json!({
            "id": scenario["id"], "title": scenario.get("title"), "source": scenario.get("source"),
            "based_on": scenario.get("based_on"), "set": scenario["set"], "parameters": checked,
        });
        raw.insert(text(scenario, "id").unwrap_or_default(), case);
    }
    parameters["scenarios"] = json!(written);

    let base = parameters["base"].clone(); // with every number in its canonical form
    let moving = Moving { shape, base: &base };
    if let Some(search) = parameters.get("break_even").cloned() {
        parameters["break_even"]["number"] = moving.number(&search, "break_even", &["low", "high"])?;
    }
    if let Some(grid) = parameters.get("grid").cloned() {
        for axis in ["rows", "columns"] {
            let here = format!("grid.{axis}");
            parameters["grid"][axis]["number"] = moving.number(&grid[axis], &here, &["values"])?;
        }
    }
    Ok(parameters)
}

/// The scenarios so that each comes after the one it is based on.
fn in_order(scenarios: &[Value]) -> Result<Vec<usize>, AnalysisError> {
    let mut index_of = BTreeMap::from([("base", usize::MAX)]);
    for (index, scenario) in scenarios.iter().enumerate() {
        if index_of.insert(text(scenario, "id").unwrap_or_default(), index).is_some() {
            return Err(refused(format!("scenarios[{index}].id"), "the id occurs twice, or is `base`"));
        }
    }
    let mut order: Vec<usize> = Vec::with_capacity(scenarios.len());
    for start in 0..scenarios.len() {
        let mut chain = Vec::new();
        let mut at = start;
        while at != usize::MAX && !order.contains(&at) {
            let here = || format!("scenarios[{at}].based_on");
            if chain.contains(&at) {
                return Err(refused(here(), "scenarios are based on each other in a cycle"));
            }
            chain.push(at);
            let parent = text(&scenarios[at], "based_on").unwrap_or("base");
            at = *index_of.get(parent).ok_or_else(|| refused(here(), "there is no scenario of that id"))?;
        }
        order.extend(chain.into_iter().rev());
    }
    Ok(order)
}

/// A number of the base that a search or a grid changes.
struct Moving<'a> {
    shape: &'static Shape,
    base: &'a Value,
}

impl Moving<'_> {
    /// Where the number stands and whether it is whole, after every value that it will take at the edges was checked.
    fn number(&self, at: &Value, here: &str, fields: &[&str]) -> Result<Value, AnalysisError> {
        let steps = steps(self.base, text(at, "path").unwrap_or_default(), false, &format!("{here}.path"))?;
        let stands = steps.iter().fold(self.base, |value, step| step.of(value).unwrap_or(&Value::Null));
        let unit = shape::unit_of(stands);
        if unit.is_none() && shape::check(&Shape::Amount, stands, "").is_err() {
            return Err(refused(format!("{here}.path"), "its value is not a number"));
        }
        let fits = |number: &str| {
            let mut case = self.base.clone();
            set(&mut case, &steps, like(stands, number));
            shape::check(self.shape, &case, here)
        };
        for field in fields {
            let numbers = at[field].as_array().cloned().unwrap_or_else(|| vec![at[field].clone()]);
            for number in numbers.iter().filter_map(Value::as_str) {
                fits(number)?;
            }
        }
        let whole = fits("0.5").is_err() && fits("1").is_ok();
        let steps: Vec<Value> = steps.into_iter().map(Step::into_value).collect();
        let as_text = !whole && !stands.is_number();
        Ok(json!({"steps": steps, "whole": whole && unit.is_none(), "as_text": as_text, "unit": unit}))
    }
}

/// The number in the form in which its predecessor stood.
fn like(stands: &Value, number: &str) -> Value {
    if let Some(unit) = shape::unit_of(stands) {
        return json!(format!("{number} {unit}"));
    }
    let parsed = if stands.is_number() { serde_json::from_str(number).ok() } else { None };
    parsed.unwrap_or_else(|| json!(number))
}

enum Step {
    Name(String),
    Index(usize),
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        match self {
            Self::Name(name) => value.get(name),
            Self::Index(index) => value.get(index),
        }
    }

    fn into_value(self) -> Value {
        match self {
            Self::Name(name) => json!(name),
            Self::Index(index) => json!(index),
        }
    }
}

/// The steps of a path like `levies[0].bands[1].rate`; of two names that fit, the longer one, since a name may hold a
/// dot. With `may_add` the last step may be a field that is not there yet.
fn steps(within: &Value, path: &str, may_add: bool, here: &str) -> Result<Vec<Step>, AnalysisError> {
    let mut steps = Vec::new();
    let (mut value, mut rest) = (within, path);
    while !rest.is_empty() {
        let (step, after) = match value {
            Value::Object(fields) => named(fields, rest),
            Value::Array(_) => indexed(rest),
            _ => None,
        }
        .ok_or_else(|| refused(here.to_owned(), "the path leads nowhere"))?;
        let next = step.of(value);
        steps.push(step);
        rest = after;
        match next {
            Some(next) => value = next,
            None if may_add && rest.is_empty() && value.is_object() => {}
            None => return Err(refused(here.to_owned(), "the path leads nowhere")),
        }
    }
    if steps.is_empty() {
        return Err(refused(here.to_owned(), "the path is empty"));
    }
    Ok(steps)
}

fn named<'a>(fields: &Map<String, Value>, rest: &'a str) -> Option<(Step, &'a str)> {
    let rest = rest.strip_prefix('.').unwrap_or(rest);
    let ends_well = |name: &str| {
        rest.strip_prefix(name).is_some_and(|after| after.is_empty() || after.starts_with(['.', '[']))
    };
    let known =
        fields.keys().filter(|name| !name.is_empty() && ends_well(name)).max_by_key(|name| name.len());
    let name = match known {
        Some(name) => name.as_str(),
        None if !rest.is_empty() && !rest.contains(['.', '[']) => rest,
        None => return None,
    };
    Some((Step::Name(name.to_owned()), &rest[name.len()..]))
}

fn indexed(rest: &str) -> Option<(Step, &str)> {
    let (digits, after) = rest.strip_prefix('[')?.split_once(']')?;
    let index = (digits.len() <= 6 && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(digits)?;
    Some((Step::Index(index.parse().ok()?), after))
}

fn set(value: &mut Value, steps: &[Step], new: Value) {
    match steps {
        [] => *value = new,
        [Step::Name(name), rest @ ..] => {
            if let Some(fields) = value.as_object_mut() {
                set(fields.entry(name).or_insert(Value::Null), rest, new);
            }
        }
        [Step::Index(index), rest @ ..] => {
            if let Some(item) = value.get_mut(index) {
                set(item, rest, new);
            }
        }
    }
}

fn inner_shape(parameters: &Value) -> Result<&'static Shape, AnalysisError> {
    text(parameters, "analysis")
        .and_then(catalog::inner_parameters)
        .ok_or_else(|| refused("analysis".to_owned(), "this analysis cannot be compared"))
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn list_mut<'a>(value: &'a mut Value, field: &str) -> &'a mut [Value] {
    value.get_mut(field).and_then(Value::as_array_mut).map(Vec::as_mut_slice).unwrap_or_default()
}

fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field).and_then(Value::as_str)
}

fn refused(path: String, message: &str) -> AnalysisError {
    AnalysisError::Refused { path, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(within: &Value, path: &str) -> Option<Value> {
        let steps = steps(within, path, false, "path").ok()?;
        Some(steps.iter().fold(within, |value, step| step.of(value).unwrap_or(&Value::Null)).clone())
    }

    #[test]
    fn a_path_finds_names_with_dots_and_items_of_lists() {
        let value = json!({"a": {"b.c": [1, {"d": 2}], "b": {"c": [3]}}, "x[0]": 4});
        assert_eq!(at(&value, "a.b.c[1].d"), Some(json!(2)));
        assert_eq!(at(&value, "x[0]"), Some(json!(4)));
        for nowhere in
            ["", "a.z", "a.b.c[2]", "a.b.c[-1]", "a.b.c[1", "a[0]", "a..b", "a.b.c[1].d.e", "a.b.c[99999999]"]
        {
            assert_eq!(at(&value, nowhere), None, "{nowhere}");
        }
    }

    #[test]
    fn joining_replaces_lists_and_goes_into_objects() {
        let mut into = json!({"a": {"x": 1, "y": 2}, "l": [1, 2]});
        join(&mut into, json!({"a": {"y": 3}, "l": [9], "n": null}));
        assert_eq!(into, json!({"a": {"x": 1, "y": 3}, "l": [9], "n": null}));
    }
}
