//! How much work it is to check arguments against a stranger's schema, counted before it is done.
//!
//! The validator applies a schema as often as references lead to it: two references a level are 2^n applications for arguments
//! of n levels, and each takes stack. Here a schema and a value are looked at together once, however often they meet.

use std::collections::HashMap;

use serde_json::Value;

use super::references::{References, Target, parts};

/// Applications of a schema to a value that a check may take.
const MAX_STEPS: u64 = 1_000_000;
/// Applications within each other.
const MAX_DEPTH: usize = 500;

/// Why a check is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Undone {
    /// It would take too long, or too much stack.
    TooMuch,
    /// The schema applies to a value only after it has been applied to it, or refers to what is not found here.
    Unreadable,
}

/// How often the validator applies a schema, at most.
pub(super) fn effort(schema: &Value, arguments: &Value) -> Result<u64, Undone> {
    Count { references: References::new(schema), met: HashMap::new() }.apply(schema, arguments, 0)
}

/// Whether a part of a schema has a name or a dialect of its own, which changes where references within it lead.
pub(super) fn has_named_parts(schema: &Value) -> bool {
    // Draft 4 calls it `id`, which elsewhere is a name like any other.
    let is_old =
        schema.get("$schema").and_then(Value::as_str).is_some_and(|dialect| dialect.contains("draft-04"));
    let names: &[&str] = if is_old { &["$schema", "$id", "id"] } else { &["$schema", "$id"] };
    parts(schema).any(|part| is_named(part, names))
}

fn is_named(part: &Value, names: &[&str]) -> bool {
    names.iter().any(|name| part.get(name).is_some_and(Value::is_string))
        || parts(part).any(|part| is_named(part, names))
}

struct Count<'a> {
    references: References<'a>,
    /// A schema and a value, by their addresses; `None` while they are counted.
    met: HashMap<(usize, usize), Option<u64>>,
}

impl<'a> Count<'a> {
    fn apply(&mut self, schema: &'a Value, value: &'a Value, depth: usize) -> Result<u64, Undone> {
        let Value::Object(members) = schema else { return Ok(1) };
        if depth == MAX_DEPTH || self.met.len() as u64 == MAX_STEPS {
            return Err(Undone::TooMuch);
        }
        let pair = (std::ptr::from_ref(schema).addr(), std::ptr::from_ref(value).addr());
        if let Some(counted) = self.met.insert(pair, None) {
            self.met.insert(pair, counted);
            return counted.ok_or(Undone::Unreadable);
        }
        let mut steps = 1;
        for (keyword, said) in members {
            self.keyword(keyword, said, value, &mut |count, schema, value| {
                steps += count.apply(schema, value, depth + 1)?;
                if steps > MAX_STEPS { Err(Undone::TooMuch) } else { Ok(()) }
            })?;
        }
        self.met.insert(pair, Some(steps));
        Ok(steps)
    }

    /// Names what one keyword of a schema applies, and to what.
    fn keyword(
        &mut self,
        keyword: &str,
        said: &'a Value,
        value: &'a Value,
        applies: &mut dyn FnMut(&mut Self, &'a Value, &'a Value) -> Result<(), Undone>,
    ) -> Result<(), Undone> {
        match (keyword, said, value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference), _) => {
                match self.references.target(reference) {
                    Target::Part(schema) => applies(self, schema, value),
                    Target::Elsewhere => Ok(()), // not followed
                    Target::Unknown => Err(Undone::Unreadable),
                }
            }
            ("not" | "if" | "then" | "else", _, _) => applies(self, said, value),
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas), _) => {
                schemas.iter().try_for_each(|schema| applies(self, schema, value))
            }
            ("dependentSchemas" | "dependencies", Value::Object(schemas), _) => {
                schemas.values().try_for_each(|schema| applies(self, schema, value))
            }
            ("properties", Value::Object(schemas), Value::Object(values)) => schemas
                .iter()
                .filter_map(|(name, schema)| Some((schema, values.get(name)?)))
                .try_for_each(|(schema, value)| applies(self, schema, value)),
            ("patternProperties", Value::Object(schemas), Value::Object(values)) => values
                .values()
                .flat_map(|value| schemas.values().map(move |schema| (schema, value)))
                .try_for_each(|(schema, value)| applies(self, schema, value)),
            ("additionalProperties" | "unevaluatedProperties", _, Value::Object(values)) => {
                values.values().try_for_each(|value| applies(self, said, value))
            }
            // A name is a text: what applies to it does not lead on.
            ("propertyNames", _, Value::Object(values)) => {
                values.values().try_for_each(|_| applies(self, said, &Value::Null))
            }
            ("items" | "prefixItems", Value::Array(schemas), Value::Array(values)) => {
                schemas.iter().zip(values).try_for_each(|(schema, value)| applies(self, schema, value))
            }
            ("items" | "additionalItems" | "unevaluatedItems" | "contains", _, Value::Array(values)) => {
                values.iter().try_for_each(|value| applies(self, said, value))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!({}), |inner, _| json!({"a": inner}))
    }

    #[test]
    fn what_is_applied_is_counted_and_neither_time_nor_stack_is_spent_on_it() {
        let tree = json!({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "a": {"$ref": "#"}}});
        assert_eq!(effort(&tree, &nested(100)), Ok(201));
        assert_eq!(effort(&json!({"items": {"type": "integer"}}), &json!([1, 2, 3])), Ok(4));
        let twice = json!({"allOf": vec![json!({"properties": {"a": {"$ref": "#"}}}); 2]});
        assert!(effort(&twice, &nested(8)).is_ok_and(|steps| steps > 256));
        assert_eq!(effort(&twice, &nested(100)), Err(Undone::TooMuch));
        // Without a level of the arguments, and without one reference to itself.
        let parts = |to: usize| vec![json!({"$ref": format!("#/$defs/{to}")}); 2];
        let mut chain: serde_json::Map<_, _> =
            (0..50).map(|n| (n.to_string(), json!({"anyOf": parts(n + 1)}))).collect();
        chain.insert("50".to_owned(), json!({}));
        assert_eq!(effort(&json!({"$defs": chain, "$ref": "#/$defs/0"}), &json!(1)), Err(Undone::TooMuch));
        // By the name of a part.
        let named = json!({"$defs": {"twice": {"$anchor": "twice", "allOf": vec![json!({"properties": {"a": {"$ref": "#twice"}}}); 2]}}, "$ref": "#twice"});
        assert!(effort(&named, &nested(8)).is_ok_and(|steps| steps > 256));
        assert_eq!(effort(&named, &nested(100)), Err(Undone::TooMuch));
        // Once a level, but many levels.
        let mut chain: serde_json::Map<_, _> =
            (0..100).map(|n| (n.to_string(), json!({"$ref": format!("#/$defs/{}", n + 1)}))).collect();
        chain.insert("100".to_owned(), json!({"properties": {"a": {"$ref": "#"}}}));
        assert_eq!(effort(&json!({"$defs": chain, "$ref": "#/$defs/0"}), &nested(100)), Err(Undone::TooMuch));
    }

    #[test]
    fn what_is_not_followed_is_not_counted() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"anyOf": [{"not": {"$ref": "#"}}]}),
            json!({"$ref": ""}),
            json!({"$ref": "json-schema:///#"}),
            json!({"$dynamicRef": "#name"}),
            json!({"$id": "https://here.example/x", "$ref": "https://here.example/x"}),
        ] {
            assert_eq!(effort(&schema, &json!({})), Err(Undone::Unreadable), "{schema}");
        }
        assert_eq!(effort(&json!({"$ref": "https://elsewhere.example/x"}), &json!({})), Ok(1));
        assert!(has_named_parts(&json!({"$defs": {"a": {"$id": "b", "$ref": "#"}}})));
        let old = "http://json-schema.org/draft-04/schema#";
        assert!(has_named_parts(&json!({"$schema": old, "items": {"id": "b"}})));
        assert!(has_named_parts(&json!({"items": {"$schema": old, "id": "b"}})));
        assert!(!has_named_parts(&json!({"examples": [{"id": "b"}]})));
        assert!(!has_named_parts(&json!({"$id": "b", "properties": {"$id": {}, "id": {"type": "string"}}})));
    }
}
