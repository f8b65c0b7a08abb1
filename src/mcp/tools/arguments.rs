//! Arguments as clients send them, made into what a tool's schema says.
//!
//! Models and their clients are lenient: a strict client sends every property and fills the ones that it does not need
//! with null, an empty text or zero; numbers come as text or with `.0`, objects as JSON text, names in camel case. What
//! has one meaning is taken for it. What has none is refused in the words of JSON, with the argument's name.

use serde_json::{Map, Value};

use crate::domain::Language;

/// Texts that a model writes where it means that there is nothing, for arguments that cannot be one of these.
const NOTHING: [&str; 5] = ["", "null", "none", "undefined", "nil"];
/// Arguments whose value is never a word: a handle, a key.
const OPAQUE: [&str; 2] = ["context", "idempotency_key"];
/// Arguments that may be an empty text, which is then their value.
const EMPTY_IS_A_VALUE: [&str; 1] = ["text"];

/// Reads the arguments of one call by the tool's input schema: those of plain types, also in objects of these and in the
/// items of a list.
///
/// # Errors
/// What is wrong, with the name of the argument, in words for anyone who wrote the call.
pub(in crate::mcp) fn understand(
    schema: &Map<String, Value>,
    arguments: Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    understand_at("", schema, arguments)
}

/// The same for what stands at `at`, which is the beginning of its names.
fn understand_at(
    at: &str,
    schema: &Map<String, Value>,
    arguments: Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    let empty = Map::new();
    let known = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let mut out = Map::new();
    for (given, value) in arguments {
        let name = match known.contains_key(&given) {
            true => given,
            false => match snake(&given) {
                name if known.contains_key(&name) && !out.contains_key(&name) => name,
                _ if value.is_null() => continue,
                _ => return Err(unknown(at, &given, known)),
            },
        };
        let property = &known[&name];
        let value = match value {
            Value::Null => None,
            value => one(at, &name, property, value)?,
        };
        if let Some(value) =
            value.filter(|value| required.contains(&&*name) || !is_neutral(&name, property, value))
        {
            out.insert(name, value);
        }
    }
    match required.iter().find(|name| !out.contains_key(**name)) {
        Some(missing) => Err(format!("argument `{at}{missing}` is missing")),
        None => Ok(out),
    }
}

/// One argument as its property says; `None`: it says nothing.
fn one(at: &str, name: &str, property: &Value, value: Value) -> Result<Option<Value>, String> {
    let refuse = |value: &Value| {
        Err(format!("argument `{at}{name}`: expected {}, got {}", expected(property), got(value)))
    };
    let Some(kind) = property.get("type").and_then(Value::as_str) else { return Ok(Some(value)) };
    Ok(Some(match (kind, value) {
        ("string", Value::String(text)) => match property.get("enum").and_then(Value::as_array) {
            Some(choices) => match choice(name, choices, &text) {
                Some(chosen) => chosen,
                None if NOTHING.contains(&&*text.trim().to_ascii_lowercase()) => return Ok(None),
                None => return refuse(&Value::String(text)),
            },
            None if OPAQUE.contains(&name) => Value::String(text.trim().to_owned()),
            None => Value::String(text),
        },
        ("integer", value) => match integer(&value) {
            // No argument is a negative number.
            Some(number) if number.as_i64().is_some_and(i64::is_negative) => return refuse(&value),
            Some(number) => number,
            None if is_blank(&value) => return Ok(None),
            None => return refuse(&value),
        },
        ("boolean", value @ Value::Bool(_)) => value,
        ("boolean", value) => match value.as_str().map(|text| text.trim().to_ascii_lowercase()).as_deref() {
            Some("true") => Value::Bool(true),
            Some("false") => Value::Bool(false),
            _ if is_blank(&value) => return Ok(None),
            _ => return refuse(&value),
        },
        ("object", Value::Object(fields)) => match property.as_object().filter(|_| is_plain(property)) {
            Some(schema) => Value::Object(understand_at(&format!("{at}{name}."), schema, fields)?),
            None => Value::Object(fields),
        },
        ("array", Value::Array(items)) => Value::Array(each(&format!("{at}{name}"), property, items)?),
        ("object" | "array", Value::String(text)) => match serde_json::from_str::<Value>(&text) {
            Ok(value @ Value::Object(_)) if kind == "object" => return one(at, name, property, value),
            Ok(value @ Value::Array(_)) if kind == "array" => return one(at, name, property, value),
            _ if text.trim().is_empty() => return Ok(None),
            _ => return refuse(&Value::String(text)),
        },
        (_, value) => return refuse(&value),
    }))
}

/// The items of a list, where they are objects that the schema describes.
fn each(at: &str, property: &Value, items: Vec<Value>) -> Result<Vec<Value>, String> {
    let Some(schema) = property["items"].as_object().filter(|schema| schema.contains_key("properties"))
    else {
        return Ok(items);
    };
    let read = |(number, item)| match item {
        Value::Object(fields) => {
            understand_at(&format!("{at}[{number}]."), schema, fields).map(Value::Object)
        }
        other => Ok(other),
    };
    items.into_iter().enumerate().map(read).collect()
}

/// Whether an object has members of plain types alone: of another, what is empty may be meant.
fn is_plain(property: &Value) -> bool {
    let members = property["properties"].as_object();
    let is_plain = |member: &Value| {
        member["type"].as_str().is_some_and(|kind| ["string", "integer", "boolean"].contains(&kind))
    };
    members.is_some_and(|members| members.values().all(is_plain))
}

fn is_blank(value: &Value) -> bool {
    value.as_str().is_some_and(|text| NOTHING.contains(&&*text.trim().to_ascii_lowercase()))
}

/// Whether an optional argument says nothing: what a client fills in that has to send every property.
fn is_neutral(name: &str, property: &Value, value: &Value) -> bool {
    match value {
        Value::String(_) if OPAQUE.contains(&name) => is_blank(value),
        Value::String(text) => text.is_empty() && !EMPTY_IS_A_VALUE.contains(&name),
        Value::Number(number) => {
            let least = property.get("minimum").and_then(Value::as_i64).unwrap_or(0);
            least > 0 && number.as_i64() == Some(0)
        }
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty() && property.get("type").is_some(),
        _ => false,
    }
}

/// The choice that is meant, whatever its case and its blanks.
fn choice(name: &str, choices: &[Value], text: &str) -> Option<Value> {
    let plain = text.trim().trim_matches(['"', '\'', '`']).to_ascii_lowercase().replace([' ', '-'], "_");
    let named = Language::named(&plain).filter(|_| name == "language");
    let plain = named.map_or(plain.as_str(), |named| named.as_str());
    choices.iter().find(|choice| choice.as_str() == Some(plain)).cloned()
}

/// A number without a fraction, however it is written.
fn integer(value: &Value) -> Option<Value> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.trim().replace('_', ""),
        _ => return None,
    };
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.into());
    }
    let number: f64 = text.parse().ok()?;
    let exact = number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0;
    exact.then(|| (number as i64).into())
}

fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.trim().chars() {
        if c.is_ascii_uppercase() && !out.is_empty() && !out.ends_with('_') {
            out.push('_');
        }
        out.push(if c == '-' { '_' } else { c.to_ascii_lowercase() });
    }
    // The name that earlier versions had.
    if out == "description" { "purpose".to_owned() } else { out }
}

fn unknown(at: &str, name: &str, known: &Map<String, Value>) -> String {
    let names: Vec<String> = known.keys().map(|name| format!("`{name}`")).collect();
    let hint = match name {
        "timeout" | "timeout_s" | "timeout_seconds" if known.contains_key("timeout_ms") => {
            "; `timeout_ms` is in milliseconds"
        }
        _ => "",
    };
    let name: String = name.chars().take(60).collect();
    let taker = if at.is_empty() { "this tool takes" } else { "there may be" };
    format!("unknown argument `{at}{name}`; {taker} {}{hint}", names.join(", "))
}

/// What may stand there.
fn expected(property: &Value) -> String {
    if let Some(choices) = property.get("enum").and_then(Value::as_array) {
        let names: Vec<String> =
            choices.iter().filter_map(Value::as_str).map(|name| format!("`{name}`")).collect();
        return format!("one of {}", names.join(", "));
    }
    match property.get("type").and_then(Value::as_str) {
        Some("string") => "text".to_owned(),
        Some("integer") => match (property.get("minimum"), property.get("maximum")) {
            (Some(least), Some(most)) => format!("an integer from {least} to {most}"),
            _ => "an integer".to_owned(),
        },
        Some("boolean") => "true or false".to_owned(),
        Some("object") => "an object".to_owned(),
        Some("array") => "a list".to_owned(),
        _ => "another value".to_owned(),
    }
}

/// What stood there: its kind, and of a text its beginning.
fn got(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) if text.is_empty() => "an empty text".to_owned(),
        Value::String(text) => match text.char_indices().nth(40) {
            Some((at, _)) => format!("the text {:?}...", &text[..at]),
            None => format!("the text {text:?}"),
        },
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// Source code as it was meant, and what was done to it that its writer should know.
///
/// A fence around all of the code, a byte order mark, and no-break spaces where code has blanks are marks of the way that
/// it came. Within strings and comments nothing is touched.
pub(in crate::mcp) fn source(code: String, language: &str) -> (String, Vec<&'static str>) {
    let (mut code, mut notes) = (code, Vec::new());
    if let Some(rest) = code.strip_prefix('\u{feff}') {
        code = rest.to_owned();
    }
    if let Some(inner) = unfenced(&code) {
        code = inner.to_owned();
        notes.push("the code fence around the code was taken off");
    }
    // A shell takes the carriage return for a part of the last word.
    if code.contains("\r\n") && !code.replace("\r\n", "").contains(['\r', '\n']) {
        code = code.replace("\r\n", "\n");
    }
    if code.contains('\u{a0}') {
        let plain = plain_blanks(&code, language);
        if plain != code {
            code = plain;
            notes.push("no-break spaces (U+00A0) outside of strings were taken for blanks");
        }
    }
    (code, notes)
}

/// What stands in a code fence that is around the whole text.
fn unfenced(code: &str) -> Option<&str> {
    let text = code.trim();
    let mark = ["```", "~~~"].into_iter().find(|mark| text.starts_with(mark))?;
    let (info, rest) = text.split_once('\n')?;
    let inner = rest.trim_end().strip_suffix(mark)?;
    let is_info =
        info[mark.len()..].trim().chars().all(|c| c.is_ascii_alphanumeric() || "+#.-_ {}=\"".contains(c));
    let is_alone = inner.is_empty() || inner.ends_with('\n');
    let has_more = inner.lines().any(|line| line.trim_start().starts_with(mark));
    (is_info && is_alone && !has_more).then_some(inner)
}

/// Turns no-break spaces into blanks, but for those in strings and comments.
fn plain_blanks(code: &str, language: &str) -> String {
    let (comment, long): (&str, &[&str]) = match language {
        "python" => ("#", &["\"\"\"", "'''"]),
        "bash" => ("#", &[]),
        _ => ("//", &["`"]),
    };
    let mut out = String::with_capacity(code.len());
    let (mut open, mut rest): (Option<&str>, &str) = (None, code);
    while let Some(c) = rest.chars().next() {
        let mut len = c.len_utf8();
        match open {
            Some(_) if c == '\\' => len += rest[len..].chars().next().map_or(0, char::len_utf8),
            Some(end) if rest.starts_with(end) => {
                len = end.len();
                open = None;
            }
            // A string in one line that has no end is an error of its own, and ends there.
            Some(end) if c == '\n' && end.len() == 1 && end != "`" && language != "bash" => open = None,
            Some(_) => {}
            None if rest.starts_with(comment) => {
                open = Some("\n");
                len = comment.len();
            }
            None => {
                let quote = long.iter().copied().chain(["\"", "'"]).find(|quote| rest.starts_with(*quote));
                if let Some(quote) = quote {
                    open = Some(quote);
                    len = quote.len();
                } else if c == '\u{a0}' {
                    out.push(' ');
                    rest = &rest[len..];
                    continue;
                }
            }
        }
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"properties": {
            "code": {"type": "string"},
            "language": {"type": "string", "enum": ["python", "javascript", "typescript", "bash"]},
            "purpose": {"type": "string"},
            "timeout_ms": {"type": "integer", "minimum": 1000, "maximum": 600_000},
            "wait_ms": {"type": "integer", "minimum": 0},
            "context": {"type": "string"},
            "idempotency_key": {"type": "string"},
            "cancel": {"type": "boolean"},
            "stream": {"type": "string", "enum": ["stdout", "stderr"]},
            "parameters": {"type": "object"},
            "names": {"type": "array"},
            "text": {"type": "string"},
            "any": {},
        }, "required": ["code", "language"]})
    }

    fn read(more: Value) -> Result<Value, String> {
        let mut arguments = json!({"code": "1", "language": "python"});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let read = understand(schema().as_object().unwrap(), arguments.as_object().unwrap().clone())?;
        Ok(Value::Object(
            read.into_iter().filter(|(name, _)| !["code", "language"].contains(&&**name)).collect(),
        ))
    }

    #[test]
    fn each_optional_may_be_null_empty_or_neutral() {
        for (name, neutral) in [
            ("purpose", vec![json!("")]),
            ("timeout_ms", vec![json!(""), json!(0), json!("0"), json!(0.0), json!(" null ")]),
            ("wait_ms", vec![json!("")]),
            ("context", vec![json!(""), json!("  "), json!("None"), json!("undefined")]),
            ("idempotency_key", vec![json!(""), json!("null")]),
            ("cancel", vec![json!("")]),
            ("stream", vec![json!(""), json!("none")]),
            ("parameters", vec![json!(""), json!({}), json!("{}")]),
            ("names", vec![json!(""), json!([]), json!("[]")]),
            ("any", vec![]),
            ("from_another_version", vec![]),
        ] {
            for value in neutral.into_iter().chain([Value::Null]) {
                assert_eq!(read(json!({name: value})), Ok(json!({})), "{name}: {value}");
            }
        }
        assert_eq!(read(json!({"text": ""})), Ok(json!({"text": ""})), "an empty file has an empty text");
        // All at once, as strict clients send them.
        let all = json!({"purpose": "", "timeout_ms": 0, "context": null, "idempotency_key": "", "cancel": false,
            "stream": null, "parameters": {}, "names": [], "any": null, "wait_ms": 0});
        assert_eq!(read(all), Ok(json!({"cancel": false, "wait_ms": 0})));
    }

    #[test]
    fn unambiguous_arguments_are_accepted() {
        for (given, meant) in [
            (json!({"timeout_ms": 5000}), json!({"timeout_ms": 5000})),
            (json!({"timeout_ms": 5000.0}), json!({"timeout_ms": 5000})),
            (json!({"timeout_ms": "5000"}), json!({"timeout_ms": 5000})),
            (json!({"timeout_ms": " 5000.0 "}), json!({"timeout_ms": 5000})),
            (json!({"timeout_ms": "60_000"}), json!({"timeout_ms": 60_000})),
            (serde_json::from_str(r#"{"timeout_ms": 5e3}"#).unwrap(), json!({"timeout_ms": 5000})),
            (json!({"timeoutMs": 5000}), json!({"timeout_ms": 5000})),
            (json!({"idempotencyKey": "k"}), json!({"idempotency_key": "k"})),
            (json!({"description": "sum"}), json!({"purpose": "sum"})),
            (json!({"context": " handle \n"}), json!({"context": "handle"})),
            (json!({"cancel": "True"}), json!({"cancel": true})),
            (json!({"stream": "STDOUT"}), json!({"stream": "stdout"})),
            (json!({"parameters": "{\"a\": 1}"}), json!({"parameters": {"a": 1}})),
            (json!({"names": "[\"a\"]"}), json!({"names": ["a"]})),
            (json!({"any": "text"}), json!({"any": "text"})),
        ] {
            assert_eq!(read(given.clone()), Ok(meant), "{given}");
        }
        for (given, meant) in [
            ("Python", "python"),
            ("python3", "python"),
            ("py", "python"),
            (" JS ", "javascript"),
            ("node", "javascript"),
            ("TypeScript", "typescript"),
            ("ts", "typescript"),
            ("sh", "bash"),
            ("shell", "bash"),
            ("`bash`", "bash"),
        ] {
            let arguments = json!({"code": "1", "language": given});
            let read = understand(schema().as_object().unwrap(), arguments.as_object().unwrap().clone());
            assert_eq!(read.unwrap()["language"], meant, "{given}");
        }
    }

    #[test]
    fn invalid_arguments_are_refused_in_json_terms() {
        for (given, words) in [
            (
                json!({"timeout_ms": "soon"}),
                "argument `timeout_ms`: expected an integer from 1000 to 600000, got the text \"soon\"",
            ),
            (
                json!({"timeout_ms": 1000.5}),
                "argument `timeout_ms`: expected an integer from 1000 to 600000, got the number 1000.5",
            ),
            (json!({"timeout_ms": -1}), "expected an integer from 1000 to 600000, got the number -1"),
            (json!({"timeout_ms": [1]}), "got a list"),
            (json!({"timeout_ms": true}), "got true"),
            (json!({"purpose": 5}), "argument `purpose`: expected text, got the number 5"),
            (json!({"context": {}}), "argument `context`: expected text, got an object"),
            (json!({"cancel": 3}), "expected true or false"),
            (json!({"parameters": "x"}), "argument `parameters`: expected an object, got the text \"x\""),
            (json!({"parameters": [1]}), "expected an object, got a list"),
            (
                json!({"language": "cobol"}),
                "expected one of `python`, `javascript`, `typescript`, `bash`, got the text \"cobol\"",
            ),
            (json!({"code": null}), "argument `code` is missing"),
            (json!({"code": 1}), "argument `code`: expected text, got the number 1"),
            (json!({"timeout": 5}), "unknown argument `timeout`; this tool takes `code`, `language`"),
            (json!({"timeout": 5}), "`timeout_ms` is in milliseconds"),
        ] {
            let said = read(given.clone()).unwrap_err();
            assert!(said.contains(words), "{given}: {said}");
        }
    }

    #[test]
    fn code_is_taken_out_of_its_fence() {
        for (given, language, meant) in [
            ("print(1)", "python", "print(1)"),
            ("```python\nprint(1)\n```", "python", "print(1)\n"),
            ("\n```\nprint(1)\n```\n", "python", "print(1)\n"),
            ("~~~js\n1\n~~~", "javascript", "1\n"),
            ("```python\nx = '''\n```\n'''\n```", "python", "```python\nx = '''\n```\n'''\n```"),
            ("x = 1\n```", "python", "x = 1\n```"),
            ("\u{feff}x = 1", "python", "x = 1"),
            (
                "if\u{a0}x:\n\u{a0}\u{a0}y = 'a\u{a0}b' # c\u{a0}d\n\u{a0}z",
                "python",
                "if x:\n  y = 'a\u{a0}b' # c\u{a0}d\n z",
            ),
            (
                "s = \"\"\"it's\u{a0}\n\u{a0}\"\"\"\u{a0}+ 1",
                "python",
                "s = \"\"\"it's\u{a0}\n\u{a0}\"\"\" + 1",
            ),
            (
                "let\u{a0}x = `a\u{a0}\n\u{a0}` // '\u{a0}\n\u{a0}y",
                "javascript",
                "let x = `a\u{a0}\n\u{a0}` // '\u{a0}\n y",
            ),
            ("echo\u{a0}'a\u{a0}b' \"\\\"\u{a0}\"", "bash", "echo 'a\u{a0}b' \"\\\"\u{a0}\""),
            ("a\r\nb\r\n", "bash", "a\nb\n"),
            ("a = 'x\r'\n", "python", "a = 'x\r'\n"),
        ] {
            assert_eq!(source(given.to_owned(), language).0, meant, "{given:?}");
        }
    }
}
