//! Types and signatures for people and models, from JSON schemas of any shape.
//!
//! A type here is for reading: whatever a schema holds that has no counterpart becomes `Any` or `unknown`, and nothing that a
//! schema holds makes this fail.

use std::cell::Cell;
use std::fmt::Write;

use serde_json::Value;

use super::Tool;
use super::catalog::clean;
use super::names::is_keyword;
use super::references::References;

/// How deep a type is written out.
const MAX_DEPTH: usize = 5;
/// The longest type.
const MAX_TYPE_CHARS: usize = 400;
/// Schemas that are looked at for one type: references multiply them without end, and a type of more is too long anyway.
const MAX_SCHEMAS: usize = 200;
/// Schemas and properties that are looked at for the parameters of one tool.
const MAX_PROPERTIES: usize = 1_000;
/// The longest description of one parameter.
const MAX_PARAMETER_CHARS: usize = 300;

/// A language to write types in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Python's.
    Python,
    /// TypeScript's.
    TypeScript,
}

/// A parameter of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// What is said about it.
    pub description: String,
    /// Whether it has to be given.
    pub required: bool,
    /// What the server takes when it is not given.
    pub default: Option<Value>,
    /// Its type in Python.
    pub python: String,
    /// Its type in TypeScript.
    pub typescript: String,
}

/// The parameters of a schema, required ones first.
pub fn parameters(schema: &Value) -> Vec<Parameter> {
    let (mut out, mut left) = (Vec::new(), MAX_PROPERTIES);
    collect(schema, &References::new(schema), &mut out, 8, &mut left);
    out.sort_by_key(|parameter| !parameter.required);
    out
}

fn collect<'a>(
    schema: &'a Value,
    references: &References<'a>,
    out: &mut Vec<Parameter>,
    depth: usize,
    left: &mut usize,
) {
    if depth == 0 || *left == 0 {
        return;
    }
    *left -= 1;
    let schema = references.follow(schema);
    for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        collect(part, references, out, depth - 1, left);
    }
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for parameter in out.iter_mut().filter(|parameter| required.contains(&parameter.name.as_str())) {
        parameter.required = true;
    }
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    for (name, property) in properties.take(*left) {
        *left -= 1;
        out.retain(|parameter| parameter.name != *name);
        let text = |value: &Value| value.get("description").and_then(Value::as_str).map(str::to_owned);
        out.push(Parameter {
            name: name.clone(),
            description: clean(
                &text(property).or_else(|| text(references.follow(property))).unwrap_or_default(),
                MAX_PARAMETER_CHARS,
            ),
            required: required.contains(&name.as_str()),
            default: property.get("default").cloned(),
            python: written(property, references, Style::Python),
            typescript: written(property, references, Style::TypeScript),
        });
    }
}

/// The type that a schema describes.
pub fn type_of<'a>(schema: &'a Value, root: &'a Value, style: Style) -> String {
    written(schema, &References::new(root), style)
}

fn written<'a>(schema: &'a Value, references: &References<'a>, style: Style) -> String {
    let writer = Writer { references, style, left: Cell::new(MAX_SCHEMAS) };
    let text = writer.write(schema, MAX_DEPTH);
    let is_short = writer.left.get() > 0 && text.chars().count() <= MAX_TYPE_CHARS;
    if is_short { text } else { any(style).to_owned() }
}

fn any(style: Style) -> &'static str {
    match style {
        Style::Python => "Any",
        Style::TypeScript => "unknown",
    }
}

/// Writes types of one schema's parts.
struct Writer<'a, 'r> {
    references: &'r References<'a>,
    style: Style,
    /// Schemas that may still be looked at.
    left: Cell<usize>,
}

impl<'a> Writer<'a, '_> {
    fn write(&self, schema: &'a Value, depth: usize) -> String {
        let style = self.style;
        let python = style == Style::Python;
        let Some(left) = self.left.get().checked_sub(1).filter(|_| depth > 0) else {
            return any(style).to_owned();
        };
        self.left.set(left);
        let schema = self.references.follow(schema);
        let inner = |schema: &'a Value| self.write(schema, depth - 1);
        let literal = |value: &Value| match (value, python) {
            (Value::Null, true) => "None".to_owned(),
            (Value::Bool(true), true) => "True".to_owned(),
            (Value::Bool(false), true) => "False".to_owned(),
            (value, _) => clean(&value.to_string(), 80),
        };
        if let Some(value) = schema.get("const") {
            return if python { format!("Literal[{}]", literal(value)) } else { literal(value) };
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            let values: Vec<String> = values.iter().take(24).map(literal).collect();
            return if python { format!("Literal[{}]", values.join(", ")) } else { values.join(" | ") };
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(options) = schema.get(key).and_then(Value::as_array) {
                return union(options.iter().take(8).map(inner).collect(), style);
            }
        }
        let kinds: Vec<&str> = match schema.get("type") {
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            _ if schema.get("properties").is_some() || schema.get("allOf").is_some() => vec!["object"],
            _ if schema.get("items").is_some() => vec!["array"],
            _ => return any(style).to_owned(),
        };
        let one = |kind: &str| match kind {
            "string" if python => "str".to_owned(),
            "string" => "string".to_owned(),
            "integer" if python => "int".to_owned(),
            "number" if python => "float".to_owned(),
            "integer" | "number" => "number".to_owned(),
            "boolean" if python => "bool".to_owned(),
            "boolean" => "boolean".to_owned(),
            "null" if python => "None".to_owned(),
            "null" => "null".to_owned(),
            "array" => array(schema, style, &inner),
            "object" => self.object(schema, depth),
            _ => any(style).to_owned(),
        };
        union(kinds.into_iter().map(one).collect(), style)
    }

    fn object(&self, schema: &'a Value, depth: usize) -> String {
        if self.style == Style::Python {
            return match schema.get("additionalProperties") {
                Some(values @ Value::Object(_)) if schema.get("properties").is_none() => {
                    format!("dict[str, {}]", self.write(values, depth - 1))
                }
                _ => "dict".to_owned(),
            };
        }
        let mut members = Vec::new();
        let required = schema.get("required").and_then(Value::as_array);
        for (name, property) in
            schema.get("properties").and_then(Value::as_object).into_iter().flatten().take(24)
        {
            let is_required =
                required.is_some_and(|names| names.iter().any(|required| required == name.as_str()));
            let mark = if is_required { "" } else { "?" };
            members.push(format!("{}{mark}: {}", key(name), self.write(property, depth - 1)));
        }
        match schema.get("additionalProperties") {
            Some(values @ Value::Object(_)) => {
                members.push(format!("[name: string]: {}", self.write(values, depth - 1)));
            }
            _ if members.is_empty() => return "Record<string, unknown>".to_owned(),
            _ => {}
        }
        format!("{{ {} }}", members.join("; "))
    }
}

fn union(mut options: Vec<String>, style: Style) -> String {
    let mut seen = Vec::new();
    options.retain(|option| {
        let is_new = !seen.contains(option);
        seen.push(option.clone());
        is_new
    });
    if options.is_empty() || options.iter().any(|option| option == any(style)) {
        return any(style).to_owned();
    }
    options.join(" | ")
}

fn array<'a>(schema: &'a Value, style: Style, inner: &dyn Fn(&'a Value) -> String) -> String {
    let item = match (schema.get("prefixItems").and_then(Value::as_array), schema.get("items")) {
        (Some(items), _) => {
            let items: Vec<String> = items.iter().take(8).map(inner).collect();
            return match style {
                Style::Python => format!("tuple[{}]", items.join(", ")),
                Style::TypeScript => format!("[{}]", items.join(", ")),
            };
        }
        (None, Some(item)) => inner(item),
        (None, None) => any(style).to_owned(),
    };
    match style {
        Style::Python => format!("list[{item}]"),
        Style::TypeScript => format!("Array<{item}>"),
    }
}

/// Whether a word is an identifier in every language.
fn is_identifier(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !is_keyword(name)
}

fn key(name: &str) -> String {
    if is_identifier(name) { name.to_owned() } else { Value::from(clean(name, 80)).to_string() }
}

/// What it takes and gives, on one line, as a program in this language would write it.
pub fn signature(tool: &Tool, style: Style) -> String {
    let result = match (&tool.output, style) {
        (Some(schema), _) => type_of(schema, schema, style),
        (None, _) => any(style).to_owned(),
    };
    match style {
        Style::Python => {
            let (named, others): (Vec<_>, Vec<_>) =
                tool.parameters.iter().partition(|parameter| is_identifier(&parameter.name));
            let mut parts: Vec<String> = named
                .iter()
                .map(|p| match (p.required, &p.default) {
                    (true, _) => format!("{}: {}", p.name, p.python),
                    (false, Some(default)) => {
                        format!("{}: {} = {}", p.name, p.python, python_literal(default))
                    }
                    (false, None) => format!("{}: {} = ...", p.name, p.python),
                })
                .collect();
            if !others.is_empty() {
                let names: Vec<String> = others
                    .iter()
                    .map(|p| format!("{}: {}", Value::from(clean(&p.name, 80)), p.python))
                    .collect();
                parts.push(format!("**{{{}}}", names.join(", ")));
            }
            let star = if parts.is_empty() { "" } else { "*, " };
            format!("{}({star}{}) -> {result}", tool.callable(), parts.join(", "))
        }
        Style::TypeScript => {
            let parts: Vec<String> = tool
                .parameters
                .iter()
                .map(|p| format!("{}{}: {}", key(&p.name), if p.required { "" } else { "?" }, p.typescript))
                .collect();
            let arguments =
                if parts.is_empty() { String::new() } else { format!("{{ {} }}", parts.join("; ")) };
            format!("{}({arguments}): Promise<{result}>", tool.callable())
        }
    }
}

fn python_literal(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        other => clean(&other.to_string(), 60),
    }
}

/// Type declarations of one server's tools, for reading: `tools/<module>.pyi` or `tools/<module>.d.ts`.
pub fn declarations<'a>(tools: impl Iterator<Item = &'a Tool>, style: Style) -> String {
    let mut out = match style {
        Style::Python => "from typing import Any, Literal\n\n".to_owned(),
        Style::TypeScript => String::new(),
    };
    for tool in tools {
        let signature = signature(tool, style);
        let signature = signature.strip_prefix(&format!("{}.", tool.module)).unwrap_or(&signature);
        let doc = documentation(tool);
        match style {
            Style::Python => {
                let doc = doc.replace('\\', "\\\\").replace("\"\"\"", "\\\"\\\"\\\"").replace('\n', "\n    ");
                let signature = match signature.split_once("**{") {
                    // What has no identifier is given as a dictionary; a stub says so in words.
                    Some((head, _)) => {
                        let result = signature.rsplit_once(") -> ").map_or("Any", |(_, result)| result);
                        format!("{head}**others: Any) -> {result}")
                    }
                    None => signature.to_owned(),
                };
                let _ = writeln!(out, "def {signature}:\n    \"\"\"{doc}\"\"\"\n");
            }
            Style::TypeScript => {
                let doc = doc.replace("*/", "*\\/").replace('\n', "\n * ");
                let _ = writeln!(
                    out,
                    "/** {doc} */\nexport function {};\n",
                    signature.replacen("({ ", "(args: { ", 1)
                );
            }
        }
    }
    out
}

/// A tool's description of itself and of its parameters.
pub fn documentation(tool: &Tool) -> String {
    let mut out = tool.description.clone();
    if tool.name != tool.identifier {
        let _ = write!(out, "\n\nThe tool's own name is {:?}.", clean(&tool.name, 80));
    }
    let said: Vec<&Parameter> =
        tool.parameters.iter().filter(|parameter| !parameter.description.is_empty()).collect();
    if !said.is_empty() {
        out.push_str("\n\nParameters:");
        for parameter in said {
            let _ = write!(
                out,
                "\n  {}: {}",
                clean(&parameter.name, 80),
                parameter.description.replace('\n', " ")
            );
        }
    }
    out.trim_start().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Read in full, each of these would take longer than anyone waits.
    #[test]
    fn references_that_multiply_are_not_followed_without_end() {
        let all: serde_json::Map<_, _> = (0..24).map(|n| (format!("p{n}"), json!({"$ref": "#"}))).collect();
        let found = parameters(&json!({"type": "object", "properties": all}));
        assert_eq!((found.len(), found[0].typescript.as_str()), (24, "unknown"));
        let parts = vec![json!({"$ref": "#"}); 100];
        let found = parameters(&json!({"properties": {"a": {"type": "string"}}, "allOf": parts}));
        assert_eq!((found.len(), found[0].python.as_str()), (1, "str"));
        let union = json!({"anyOf": vec![json!({"$ref": "#"}); 8], "title": "x"});
        assert_eq!(type_of(&union, &union, Style::Python), "Any");
    }

    #[test]
    fn a_schema_of_any_shape_has_a_type() {
        let root = json!({"$defs": {"Who": {"$anchor": "who", "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}}});
        for (schema, python, typescript) in [
            (json!({"type": "string"}), "str", "string"),
            (json!({"type": ["integer", "null"]}), "int | None", "number | null"),
            (
                json!({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}),
                "list[str] | None",
                "Array<string> | null",
            ),
            (json!({"enum": ["a", null, true]}), "Literal[\"a\", None, True]", "\"a\" | null | true"),
            (json!({"$ref": "#/$defs/Who"}), "dict", "{ id: number }"),
            (json!({"$ref": "#who"}), "dict", "{ id: number }"),
            (json!({"$ref": "#/nowhere"}), "Any", "unknown"),
            (json!({"$ref": "https://x.example/"}), "Any", "unknown"),
            (json!(true), "Any", "unknown"),
            (json!({}), "Any", "unknown"),
            (
                json!({"type": "object", "additionalProperties": {"type": "number"}}),
                "dict[str, float]",
                "{ [name: string]: number }",
            ),
            (
                json!({"prefixItems": [{"type": "number"}, {"type": "string"}], "type": "array"}),
                "tuple[float, str]",
                "[number, string]",
            ),
            (json!({"type": "quark"}), "Any", "unknown"),
        ] {
            assert_eq!(type_of(&schema, &root, Style::Python), python, "{schema}");
            assert_eq!(type_of(&schema, &root, Style::TypeScript), typescript, "{schema}");
        }
        let circle = json!({"type": "array", "items": {"$ref": "#"}});
        assert_eq!(type_of(&circle, &circle, Style::Python), "list[list[list[list[list[Any]]]]]");
    }

    #[test]
    fn parameters_come_required_ones_first_and_through_all_of() {
        let schema = json!({"allOf": [{"$ref": "#/$defs/Page"}], "required": ["repo"],
            "properties": {"repo": {"type": "string", "description": "owner/name"}, "from": {"type": "string"}},
            "$defs": {"Page": {"properties": {"page": {"type": "integer", "default": 1}}}}});
        let found = parameters(&schema);
        let names: Vec<&str> = found.iter().map(|parameter| parameter.name.as_str()).collect();
        assert_eq!(names[0], "repo");
        assert!(found[0].required && names.contains(&"page") && names.contains(&"from"));
    }
}
