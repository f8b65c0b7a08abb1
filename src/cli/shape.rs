//! The shape of `--json`: members are camelCase, as in MCP's results, whatever their names in the stored form.

use serde::Serialize;
use serde_json::Value;

/// Members whose own members are names of the caller's or the operator's: kinds, rules, formats, arguments.
const NAMES: [&str; 9] =
    ["findings", "wouldRedact", "allowed", "rules", "actions", "formats", "parameters", "metadata", "env"];

/// A value as `--json` shows it.
pub(super) fn shape(value: &impl Serialize) -> anyhow::Result<Value> {
    Ok(members(serde_json::to_value(value)?))
}

/// The same for a value that is JSON already.
pub(super) fn members(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(members).collect(),
        Value::Object(object) => {
            let member = |(name, value): (String, Value)| {
                let name = camel(&name);
                let value =
                    if NAMES.contains(&name.as_str()) && value.is_object() { value } else { members(value) };
                (name, value)
            };
            Value::Object(object.into_iter().map(member).collect())
        }
        other => other,
    }
}

fn camel(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut upper = false;
    for letter in name.chars() {
        match letter {
            '_' => upper = true,
            _ if std::mem::take(&mut upper) => out.extend(letter.to_uppercase()),
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_renamed_and_names_of_others_are_not() {
        let stored = json!([{"valid_from": 1, "a_bc_d": [{"is_main": true}], "findings": {"staff_number": {"count": 1}},
            "would_redact": {"staff_number": 2}, "findings_left": {"in_here": 1}}]);
        let shown = json!([{"validFrom": 1, "aBcD": [{"isMain": true}], "findings": {"staff_number": {"count": 1}},
            "wouldRedact": {"staff_number": 2}, "findingsLeft": {"inHere": 1}}]);
        assert_eq!(shape(&stored).expect("a value"), shown);
    }
}
