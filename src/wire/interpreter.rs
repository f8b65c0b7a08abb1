//! The code interpreter on port 49999: one request, and a line of JSON for each thing that happens.
//!
//! A line is one [`Event`]; `end_of_execution` is always the last. Types that this version does not know are kept as
//! [`Event::Unknown`], so that a newer server does not break an older client.

use std::collections::BTreeMap;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{json, output};

/// `POST /execute`. Neither context nor language means the default Python context; both is an error (400).
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExecuteRequest {
    /// The source.
    pub code: String,
    /// Which code context; an empty text counts as none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_id: Option<String>,
    /// The default context of which language; an empty text counts as none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Environment for this execution only. The hosted server pastes the values into the source unescaped, so a client
    /// that cares leaves this out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
}

impl ExecuteRequest {
    /// Code for the default context of a language.
    pub fn in_language(code: impl Into<String>, language: impl Into<String>) -> Self {
        Self { code: code.into(), language: Some(language.into()), ..Self::default() }
    }

    /// Code for one code context.
    pub fn in_context(code: impl Into<String>, context_id: impl Into<String>) -> Self {
        Self { code: code.into(), context_id: Some(context_id.into()), ..Self::default() }
    }
}

/// Code and environment may hold anything, so the debug form says only how much.
impl std::fmt::Debug for ExecuteRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecuteRequest")
            .field("code_bytes", &self.code.len())
            .field("context_id", &self.context_id)
            .field("language", &self.language)
            .field("env_vars", &self.env_vars.as_ref().map(BTreeMap::len))
            .finish()
    }
}

/// `POST /contexts`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CreateContext {
    /// Python when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Working directory, `/home/user` when left out. One that does not exist is not an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A code context: one kernel with its variables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeContext {
    /// Its id; also the id of the Jupyter kernel behind it.
    pub id: String,
    /// Its language.
    pub language: String,
    /// The working directory it started in.
    pub cwd: String,
}

/// One line of the answer to `/execute`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// The kernel took the code. Normally the first event; missing when the kernel dies very early.
    NumberOfExecutions {
        /// The cell's number.
        execution_count: u64,
    },
    /// Standard output, cut anywhere.
    Stdout(Output),
    /// Standard error, cut anywhere.
    Stderr(Output),
    /// A value or a display.
    Result(Box<ExecutionResult>),
    /// An exception, or the platform's word for an interpreter that died. The stream goes on to its end.
    Error(ExecutionError),
    /// Sent after every 5 s of silence while the execution runs.
    Keepalive,
    /// The last line of every complete stream.
    EndOfExecution,
    /// Ours, ignored by the official SDKs: a limit of the sandbox was met.
    PathboxStop {
        /// `oom`, `too_many_processes`, `disk_full`, `output_truncated`.
        reason: String,
        /// Bytes of output that were dropped.
        dropped_bytes: u64,
    },
    /// Ours, ignored by the official SDKs: the interpreter ended, in this execution (just before the [`Event::Error`]
    /// that says so) or, reported first, since the one before.
    PathboxState {
        /// What became of the variables: `rolled_back` to what they were before the execution that ended it, or `lost`.
        state: String,
        /// The status that the interpreter ended with in this execution: its own, or 128 and the number of a signal.
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<i32>,
    },
    /// A type that this version does not know.
    Unknown,
}

/// A piece of standard output or standard error.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Output {
    /// The text.
    pub text: String,
    /// When the kernel sent it: ISO 8601 with microseconds and `+00:00`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
}

/// Why a program failed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExecutionError {
    /// The exception's class; empty for a shell's exit status; see also [`platform_error`].
    pub name: String,
    /// The message, or the exit status.
    pub value: String,
    /// The traceback; the hosted server leaves the line breaks between its parts out.
    pub traceback: String,
}

/// [`ExecutionError::name`]s that the server makes up, not the program.
pub mod platform_error {
    /// The kernel process died and was restarted: state is gone.
    pub const CONTEXT_RESTARTING: &str = "ContextRestarting";
    /// The message that goes with it.
    pub const CONTEXT_RESTARTING_VALUE: &str = "Context was restarted";
    /// The server lost its connection to the kernel; side effects unknown.
    pub const WEB_SOCKET: &str = "WebSocketError";
    /// Follows [`WEB_SOCKET`] and says less.
    pub const UNEXPECTED_END: &str = "UnexpectedEndOfExecution";
    /// The kernel refused the cell because an earlier one was interrupted.
    const ABORTED: &str = "ExecutionAborted";
    /// All of them.
    pub const ALL: [&str; 4] = [CONTEXT_RESTARTING, WEB_SOCKET, UNEXPECTED_END, ABORTED];
}

impl ExecutionError {
    /// Whether the server itself says so. A program's own exception may have the same name, and has a traceback; of the
    /// platform's own errors only a restart may have one, which says how the interpreter ended.
    pub fn is_platforms(&self, name: &str) -> bool {
        let restarted = name == platform_error::CONTEXT_RESTARTING
            && self.value == platform_error::CONTEXT_RESTARTING_VALUE;
        self.name == name && (self.traceback.is_empty() || restarted)
    }
}

/// The first line of a note on standard error, by a host of our kind: what the execution before said once it was
/// interrupted, and where that was.
pub const AFTER_INTERRUPT: &str = "note: after the interrupt:";

/// What [`Event::PathboxState`] tells.
pub mod kernel_state {
    /// Variables are what they were before the execution that ended the interpreter; files are as it left them.
    pub const ROLLED_BACK: &str = "rolled_back";
    /// A new interpreter without variables; files are as they were left.
    pub const LOST: &str = "lost";
}

/// A value in the forms that the interpreter offers.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ExecutionResult {
    /// Plain text; of a Python string it is the repr without its outer quotes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// HTML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    /// Markdown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub markdown: Option<String>,
    /// SVG text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub svg: Option<String>,
    /// PNG, base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub png: Option<String>,
    /// JPEG, base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jpeg: Option<String>,
    /// PDF, base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pdf: Option<String>,
    /// LaTeX.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latex: Option<String>,
    /// The value itself, where JSON holds it exactly: members in order, numbers as they were written. Of a text it is
    /// there where [`text`](Self::text), which is a repr, differs from the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<Value>,
    /// JavaScript source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub javascript: Option<String>,
    /// A data frame by columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// A chart taken out of a plot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chart: Option<Value>,
    /// Other MIME types.
    pub extra: Map<String, Value>,
    /// Whether it is the value of the last expression.
    pub is_main_result: bool,
}

impl ExecutionResult {
    /// All forms by name, the well-known ones first in the order above, then [`extra`](Self::extra).
    pub fn into_formats(self) -> impl Iterator<Item = (String, Value)> {
        let text = |name: &str, form: Option<String>| form.map(|form| (name.to_owned(), Value::String(form)));
        let value = |name: &str, form: Option<Value>| form.map(|form| (name.to_owned(), form));
        [
            text("text", self.text),
            text("html", self.html),
            text("markdown", self.markdown),
            text("svg", self.svg),
            text("png", self.png),
            text("jpeg", self.jpeg),
            text("pdf", self.pdf),
            text("latex", self.latex),
            value("json", self.json),
            text("javascript", self.javascript),
            value("data", self.data),
            value("chart", self.chart),
        ]
        .into_iter()
        .flatten()
        .chain(self.extra)
    }
}

impl Event {
    /// Reads one line, without its line feed. What Python writes beyond JSON (half surrogate pairs, bare `NaN`) is mended. A
    /// value with infinities, and one but a data frame or chart with `NaN`, is left out: its text says what it is.
    ///
    /// ```
    /// use pathbox::wire::interpreter::Event;
    /// let event = Event::read(br#"{"type": "number_of_executions", "execution_count": 2}"#).unwrap();
    /// assert_eq!(event, Event::NumberOfExecutions { execution_count: 2 });
    /// assert_eq!(Event::read(br#"{"type": "from the future", "x": 1}"#).unwrap(), Event::Unknown);
    /// ```
    ///
    /// # Errors
    /// When the line is not a JSON object with a `type`, or a known type lacks a member it must have.
    pub fn read(line: &[u8]) -> Result<Self, serde_json::Error> {
        if let Some(event) = output::read(line) {
            return Ok(event);
        }
        serde_json::from_slice(line).or_else(|error| match json::mend(line) {
            Some(mended) => serde_json::from_str(&mended),
            None => Err(error),
        })
    }

    /// Reads what can be read of a line that was cut because it was too long: the beginning of a text.
    pub fn salvage(head: &[u8]) -> Option<Self> {
        let stdout = br#"{"type": "stdout", "text": ""#;
        let stderr = br#"{"type": "stderr", "text": ""#;
        if !head.starts_with(stdout) && !head.starts_with(stderr) {
            return None;
        }
        // The cut may be inside an escape of up to 12 bytes (a surrogate pair) or a character of up to 4.
        for len in (stdout.len()..=head.len()).rev().take(16) {
            let closed = [&head[..len], b"\"}"].concat();
            if let Ok(event) = serde_json::from_slice(&closed) {
                return Some(event);
            }
        }
        None
    }

    /// Writes the event as one line of ASCII with its line feed, the way the hosted server does.
    ///
    /// ```
    /// use pathbox::wire::interpreter::{Event, Output};
    /// let event = Event::Stdout(Output { text: "é\n".into(), timestamp: None });
    /// assert_eq!(event.write(), "{\"type\": \"stdout\", \"text\": \"\\u00e9\\n\"}\n");
    /// ```
    pub fn write(&self) -> String {
        // Maps here have text keys, so writing cannot fail.
        let mut line = json::to_ascii(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let line = AnyEvent::deserialize(from)?;
        line.into_event().map_err(serde::de::Error::missing_field)
    }
}

/// All members of all events: read in one pass, where a tagged enum would copy everything twice.
#[derive(Deserialize)]
struct AnyEvent {
    r#type: String,
    execution_count: Option<u64>,
    #[serde(default, deserialize_with = "lenient_text")]
    text: Option<String>,
    timestamp: Option<String>,
    #[serde(default, deserialize_with = "lenient_text")]
    html: Option<String>,
    #[serde(default, deserialize_with = "lenient_text")]
    markdown: Option<String>,
    #[serde(default, deserialize_with = "lenient_text")]
    svg: Option<String>,
    #[serde(default, deserialize_with = "lenient_text")]
    png: Option<String>,
    #[serde(default, deserialize_with = "lenient_text")]
    jpeg: Option<String>,
    #[serde(default, deserialize_with = "lenient_text")]
    pdf: Option<String>,
    #[serde(default, deserialize_with = "lenient_text")]
    latex: Option<String>,
    json: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "lenient_text")]
    javascript: Option<String>,
    data: Option<Box<RawValue>>,
    chart: Option<Box<RawValue>>,
    extra: Option<Box<RawValue>>,
    is_main_result: Option<bool>,
    name: Option<String>,
    value: Option<String>,
    traceback: Option<String>,
    reason: Option<String>,
    dropped_bytes: Option<u64>,
    state: Option<String>,
    status: Option<i32>,
}

impl AnyEvent {
    fn into_event(self) -> Result<Event, &'static str> {
        Ok(match self.r#type.as_str() {
            "number_of_executions" => {
                Event::NumberOfExecutions { execution_count: self.execution_count.ok_or("execution_count")? }
            }
            "stdout" => Event::Stdout(Output { text: self.text.ok_or("text")?, timestamp: self.timestamp }),
            "stderr" => Event::Stderr(Output { text: self.text.ok_or("text")?, timestamp: self.timestamp }),
            "result" => Event::Result(Box::new(ExecutionResult {
                text: self.text,
                html: self.html,
                markdown: self.markdown,
                svg: self.svg,
                png: self.png,
                jpeg: self.jpeg,
                pdf: self.pdf,
                latex: self.latex,
                json: self.json.as_deref().and_then(exact),
                javascript: self.javascript,
                data: self.data.as_deref().and_then(with_gaps),
                chart: self.chart.as_deref().and_then(with_gaps),
                extra: self
                    .extra
                    .and_then(|extra| serde_json::from_str::<Option<Members>>(extra.get()).ok().flatten())
                    .map(|Members(members)| {
                        members.into_iter().filter_map(|(mime, raw)| Some((mime, exact(&raw)?))).collect()
                    })
                    .unwrap_or_default(),
                is_main_result: self.is_main_result.unwrap_or(false),
            })),
            "error" => Event::Error(ExecutionError {
                name: self.name.ok_or("name")?,
                value: self.value.ok_or("value")?,
                traceback: self.traceback.ok_or("traceback")?,
            }),
            "keepalive" => Event::Keepalive,
            "end_of_execution" => Event::EndOfExecution,
            "pathbox_stop" => Event::PathboxStop {
                reason: self.reason.ok_or("reason")?,
                dropped_bytes: self.dropped_bytes.unwrap_or(0),
            },
            "pathbox_state" => Event::PathboxState { state: self.state.ok_or("state")?, status: self.status },
            _ => Event::Unknown,
        })
    }
}

/// A value as it is; one that is nested too deep to be walked (128 levels) as its text.
fn any_depth(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap_or_else(|_| Value::String(raw.get().to_owned()))
}

/// The value, unless it had a number that JSON does not have.
fn exact(raw: &RawValue) -> Option<Value> {
    let is_marked = raw.get().contains("\\u0000not a number") || raw.get().contains("\\u0000infinite");
    (!is_marked).then(|| any_depth(raw))
}

/// The same for data in which what is missing is not-a-number: null, as JSON has it.
fn with_gaps(raw: &RawValue) -> Option<Value> {
    fn fill(value: &mut Value) -> bool {
        match value {
            Value::String(text) if text == json::NOT_A_NUMBER => *value = Value::Null,
            Value::String(text) => return text != json::INFINITE,
            Value::Array(items) => return items.iter_mut().all(fill),
            Value::Object(members) => return members.values_mut().all(fill),
            _ => {}
        }
        true
    }
    let mut value = any_depth(raw);
    fill(&mut value).then_some(value)
}

/// An object's members in order, each as it was written.
#[derive(Debug, Default)]
pub struct Members(pub Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Members;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        from.deserialize_map(Read)
    }
}

/// A text; any other value as its JSON, so that an odd display does not end the execution.
fn lenient_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(match Option::<Value>::deserialize(from)? {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text),
        Some(other) => Some(other.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_written_as_the_hosted_server_writes_them() {
        for line in [
            r#"{"type": "number_of_executions", "execution_count": 2}"#,
            r#"{"type": "stdout", "text": "hello\n", "timestamp": "2026-11-27T22:13:55.992927+00:00"}"#,
            r#"{"type": "result", "text": "[1, 2, {'k': 'v'}]", "json": [1, 2, {"k": "v"}], "extra": {}, "is_main_result": true}"#,
            r#"{"type": "result", "text": "p", "extra": {"application/x-custom": "v"}, "is_main_result": false}"#,
            r#"{"type": "error", "name": "E", "value": "\u00e9", "traceback": ""}"#,
            r#"{"type": "keepalive"}"#,
            r#"{"type": "pathbox_stop", "reason": "oom", "dropped_bytes": 0}"#,
            r#"{"type": "pathbox_state", "state": "rolled_back"}"#,
            r#"{"type": "pathbox_state", "state": "lost", "status": 139}"#,
            r#"{"type": "end_of_execution"}"#,
        ] {
            let event = Event::read(line.as_bytes()).unwrap();
            assert_eq!(event.write(), format!("{line}\n"));
        }
    }

    #[test]
    fn json_extensions_that_python_writes_are_read() {
        let line = br#"{"type": "result", "text": "{'a': nan} \ud83d", "json": {"a": NaN}, "extra": {}, "is_main_result": true}"#;
        let Event::Result(result) = Event::read(line).unwrap() else { panic!() };
        assert_eq!(result.text.unwrap(), "{'a': nan} \u{fffd}");
        assert_eq!(result.json, None, "null would say something else");
        let line = br#"{"type": "result", "text": "", "data": {"a": [NaN, 1]}, "extra": {"x/b": 2, "x/a": -Infinity}}"#;
        let Event::Result(result) = Event::read(line).unwrap() else { panic!() };
        assert_eq!(result.data.unwrap(), serde_json::json!({"a": [null, 1]}));
        assert_eq!(result.extra.keys().collect::<Vec<_>>(), ["x/b"]);
    }

    #[test]
    fn a_value_keeps_its_order_and_its_digits() {
        let value =
            r#"{"z": 1, "a": [100000000000000000000000000001, 1.10, 1e+400, -0.0], "m": {"2": 1, "1": 2}}"#;
        let line = format!(
            r#"{{"type": "result", "json": {value}, "extra": {{"z": {value}, "a": 1}}, "is_main_result": true}}"#
        );
        let event = Event::read(line.as_bytes()).unwrap();
        assert_eq!(event.write(), format!("{line}\n"));
    }

    #[test]
    fn a_value_nested_a_thousand_deep_does_not_end_the_stream() {
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let line = format!(
            r#"{{"type": "result", "json": {deep}, "extra": {{"x": {deep}}}, "is_main_result": true}}"#
        );
        let Event::Result(result) = Event::read(line.as_bytes()).unwrap() else { panic!() };
        assert_eq!(result.json.unwrap(), Value::String(deep));
    }

    #[test]
    fn an_odd_display_is_kept_as_its_json() {
        let line = br#"{"type": "result", "html": ["<b>", 1], "future": true, "is_main_result": false}"#;
        let Event::Result(result) = Event::read(line).unwrap() else { panic!() };
        assert_eq!(result.html.unwrap(), r#"["<b>",1]"#);
    }

    #[test]
    fn a_line_that_is_not_an_event_is_an_error() {
        for bad in [
            "",
            "{}",
            "[]",
            "null",
            r#"{"type": "stdout"}"#,
            r#"{"type": "error", "name": "x"}"#,
            "{\"type\": \"std",
        ] {
            assert!(Event::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_cut_line_gives_the_text_it_holds_wherever_it_is_cut() {
        let text = "aé😀\"\\\n".repeat(3);
        let line = Event::Stdout(Output { text: text.clone(), timestamp: None }).write();
        let raw = format!("{{\"type\": \"stdout\", \"text\": {}}}", serde_json::to_string(&text).unwrap());
        for line in [line, raw] {
            for cut in 28..line.len() - 2 {
                let Some(Event::Stdout(output)) = Event::salvage(&line.as_bytes()[..cut]) else {
                    panic!("{cut}")
                };
                assert!(text.starts_with(&output.text));
            }
        }
        assert_eq!(Event::salvage(br#"{"type": "result", "text": "abc"#), None);
    }
}
