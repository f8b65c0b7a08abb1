//! JSON Schemas that every kind of client takes: no `$ref`, no `format: uint…`, no unions with null.
//!
//! Strict hosts refuse a whole server over one schema that they do not understand, so every schema that is published
//! goes through here.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// The schema of `T`, plain.
pub fn of<T: JsonSchema>() -> Arc<JsonObject> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut value = schema.to_value();
    plain(&mut value);
    if let Value::Object(object) = &mut value {
        object.shift_remove("title");
    }
    Arc::new(match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    })
}

/// The schema of a tool's arguments. What they are as a whole is what the tool is, and is not said twice.
pub fn arguments<T: JsonSchema>() -> Arc<JsonObject> {
    let mut schema = of::<T>();
    Arc::make_mut(&mut schema).shift_remove("description");
    schema
}

/// A tool with the schema of its arguments.
pub fn tool<T: JsonSchema>(name: &'static str, title: &str, description: &'static str) -> Tool {
    Tool::new(name, description, arguments::<T>()).with_title(title)
}

/// The schema of a result, for programs that check it: types without words. What the fields mean is in `docs/results.md`; in a
/// list of tools every word costs each conversation.
pub fn output<T: JsonSchema>() -> Arc<JsonObject> {
    let mut schema = Value::Object(JsonObject::clone(&of::<T>()));
    wordless(&mut schema);
    Arc::new(match schema {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    })
}

/// Takes the words out of a schema, but not a property of that name.
fn wordless(schema: &mut Value) {
    let Value::Object(object) = schema else { return };
    for word in ["description", "default", "minimum"] {
        object.shift_remove(word);
    }
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(wordless);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(schema) = object.get_mut(inner) {
            wordless(schema);
        }
    }
}

fn plain(value: &mut Value) {
    match value {
        Value::Object(object) => {
            let unsigned = matches!(object.get("format"), Some(Value::String(f)) if f.starts_with("uint") || f.starts_with("int") || f == "double" || f == "float");
            if unsigned {
                object.shift_remove("format");
            }
            if let Some(Value::Array(types)) = object.get_mut("type") {
                types.retain(|t| t != "null");
                if let [one] = types.as_slice() {
                    let one = one.clone();
                    object.insert("type".into(), one);
                }
            }
            if let Some(Value::Array(options)) = object.get_mut("enum") {
                options.retain(|option| !option.is_null());
            }
            if let Some(Value::Array(any)) = object.get("anyOf") {
                let real: Vec<&Value> =
                    any.iter().filter(|s| s.get("type") != Some(&Value::from("null"))).collect();
                if let [Value::Object(only)] = real.as_slice() {
                    let only = only.clone();
                    object.shift_remove("anyOf");
                    for (key, value) in only {
                        object.entry(key).or_insert(value);
                    }
                }
            }
            // `oneOf` of constants, as schemars writes documented enums, is an `enum`.
            if let Some(Value::Array(options)) = object.get("oneOf") {
                let constants: Option<Vec<Value>> = options.iter().map(|o| o.get("const").cloned()).collect();
                if let Some(constants) = constants {
                    object.shift_remove("oneOf");
                    object.insert("type".into(), "string".into());
                    object.insert("enum".into(), constants.into());
                }
            }
            if object
                .get("default")
                .is_some_and(|value| value.is_null() || value == "" || value == 0 || value == false)
            {
                object.shift_remove("default");
            }
            object.values_mut().for_each(plain);
        }
        Value::Array(items) => items.iter_mut().for_each(plain),
        _ => {}
    }
}

/// What strict hosts refuse, found in a schema; empty when it is fine. For tests over everything that is listed.
pub fn refused(schema: &Value) -> Vec<String> {
    fn walk(value: &Value, at: &str, out: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                for (key, inner) in object {
                    let here = format!("{at}/{key}");
                    let bad = matches!(key.as_str(), "$ref" | "$defs" | "anyOf" | "oneOf" | "allOf")
                        || (key == "format" && inner.as_str().is_some_and(|f| f.contains("int")))
                        || (key == "type" && inner.is_array());
                    if bad && !at.ends_with("/properties") {
                        out.push(here.clone());
                    }
                    walk(inner, &here, out);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| walk(item, at, out)),
            _ => {}
        }
    }
    let mut out = Vec::new();
    walk(schema, "", &mut out);
    out
}
