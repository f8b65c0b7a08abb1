//! Every recorded answer of the real code-interpreter server, through the client, byte for byte as it arrived.
//!
//! Each recording's content is listed beside its name: events in order, texts beyond 40 characters as their head and length,
//! results with their formats and `*` for the main one.

use std::path::Path;

use pathbox::e2b::{Deadlines, E2bError, Subject};
use pathbox::wire::interpreter::{CreateContext, Event, ExecuteRequest};
use pathbox::wire::json::to_ascii;

use crate::support::fault_server::{FaultServer, Reply, Step, access};

/// A recording: what was asked, the status, and the body in the pieces in which it came.
struct Recording {
    request: serde_json::Value,
    status: u16,
    pieces: Vec<Vec<u8>>,
}

fn recording(name: &str) -> Recording {
    let file = |suffix: &str| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/e2b-streams");
        std::fs::read(dir.join(format!("{name}.{suffix}"))).unwrap()
    };
    let json = |suffix: &str| serde_json::from_slice::<serde_json::Value>(&file(suffix)).unwrap();
    let (meta, body) = (json("meta.json"), file("ndjson"));
    let mut pieces = Vec::new();
    let mut at = 0;
    for chunk in meta["chunks"].as_array().unwrap() {
        let size = usize::try_from(chunk[1].as_u64().unwrap()).unwrap();
        pieces.push(body[at..at + size].to_vec());
        at += size;
    }
    assert_eq!(at, body.len(), "{name}: the pieces are the body");
    Recording {
        request: json("request.json"),
        status: meta["status"].as_u64().unwrap().try_into().unwrap(),
        pieces,
    }
}

impl Recording {
    async fn serve(&self) -> FaultServer {
        let mut reply = Reply::new(self.status);
        reply.steps = self.pieces.iter().cloned().map(Step::Send).collect();
        FaultServer::always(reply).await
    }

    /// The request that was recorded, where it is one that the client can make.
    fn execute_request(&self) -> ExecuteRequest {
        serde_json::from_value(self.request["body"].clone()).unwrap_or_default()
    }
}

fn short(text: &str) -> String {
    let chars = text.chars().count();
    if chars <= 40 {
        return to_ascii(&text).unwrap();
    }
    let head: String = text.chars().take(40).collect();
    to_ascii(&format!("{head}…{chars}")).unwrap()
}

fn describe(event: Event) -> String {
    match event {
        Event::NumberOfExecutions { execution_count } => format!("#{execution_count}"),
        Event::Stdout(output) => format!("out {}", short(&output.text)),
        Event::Stderr(output) => format!("err {}", short(&output.text)),
        Event::Result(result) => {
            let (main, text) = (result.is_main_result, result.text.clone().unwrap_or_default());
            let mut formats: Vec<_> = result.into_formats().map(|(name, _)| name).collect();
            formats.sort_by_key(|name| (name.contains('/'), name.clone()));
            format!("result{} {} {}", if main { "*" } else { "" }, formats.join(","), short(&text))
        }
        Event::Error(error) => format!("error {}: {}", error.name, short(&error.value)),
        Event::Keepalive => "keepalive".to_owned(),
        Event::EndOfExecution => "end".to_owned(),
        Event::PathboxStop { reason, .. } => format!("stop {reason}"),
        Event::PathboxState { state, .. } => format!("state {state}"),
        Event::Unknown => "unknown".to_owned(),
    }
}

async fn replay(name: &str, expected: &[&str]) {
    let recording = recording(name);
    let server = recording.serve().await;
    let request = recording.execute_request();
    let mut run = server.client().execute(&access(), &request, Deadlines::default()).await.unwrap();
    let mut seen: Vec<(String, usize)> = Vec::new();
    while let Some(event) = run.next().await.unwrap() {
        let event = describe(event);
        match seen.last_mut() {
            Some((last, count)) if *last == event => *count += 1,
            _ => seen.push((event, 1)),
        }
    }
    let seen: Vec<String> =
        seen.into_iter().map(|(event, n)| if n == 1 { event } else { format!("{event} x{n}") }).collect();
    assert_eq!(seen, expected, "{name}");
    // What was recorded is written again byte for byte, so a host may answer through the same type.
    let body = recording.pieces.concat();
    for line in body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let read: serde_json::Value = serde_json::from_slice(line).unwrap();
        let written: serde_json::Value = serde_json::from_str(&Event::read(line).unwrap().write()).unwrap();
        assert_eq!(written, read, "{name}");
    }
}

macro_rules! streams {
    ($($test:ident $name:literal [$($event:literal),* $(,)?];)+) => {
        $(#[tokio::test]
        async fn $test() {
            replay($name, &[$($event),*]).await;
        })+
    };
}

streams! {
s01_print "01_print" [r#"#2"#, r#"out "hello\n""#, "end"];
s02_multiline_stdout "02_multiline_stdout" [r#"#3"#, r#"out "line 0\n""#, r#"out "line 1\n""#, r#"out "line 2\n""#, r#"out "a\nb\nno newline""#, r#"result* text "10""#, "end"];
s03_stderr "03_stderr" [r#"#4"#, r#"err "to stderr\n/tmp/ipykernel_30689/253920664\u2026116""#, r#"out "to stdout\n""#, "end"];
s04_result_int "04_result_int" [r#"#5"#, r#"result* text "42""#, "end"];
s05_result_str "05_result_str" [r#"#6"#, r#"result* text "its a string""#, "end"];
s06_result_str_quotes "06_result_str_quotes" [r#"#7"#, r#"result* text "he said \"hi\" and \\'bye\\'\\nnext""#, "end"];
s07_result_none "07_result_none" [r#"#8"#, "end"];
s08_result_dict "08_result_dict" [r#"#9"#, r#"result* json,text "{'a': 1, 'b': [1, 2, 3], 'n': None}""#, "end"];
s09_result_list "09_result_list" [r#"#10"#, r#"result* json,text "[1, 2, {'k': 'v'}]""#, "end"];
s10_result_semicolon "10_result_semicolon" [r#"#11"#, "end"];
s11_dataframe "11_dataframe" [r#"#12"#, r#"result* data,html,text "   n          t  s\n0  1 2024-01-01  x\n1 \u202656""#, "end"];
s12_matplotlib_show "12_matplotlib_show" [r#"#13"#, r#"err "WARNING:matplotlib.font_manager:findfont\u202684" x28"#, r#"result chart,png,text "<Figure size 200x150 with 1 Axes>""#, "end"];
s13_matplotlib_noshow "13_matplotlib_noshow" [r#"#14"#, r#"result* text "[<matplotlib.lines.Line2D at 0x7f9a35389\u202645""#, r#"err "WARNING:matplotlib.font_manager:findfont\u202684" x26"#, r#"result chart,png,text "<Figure size 200x150 with 1 Axes>""#, "end"];
s14_exception "14_exception" [r#"#15"#, r#"out "before\n""#, r#"error ZeroDivisionError: "division by zero""#, "end"];
s15_syntax_error "15_syntax_error" [r#"#16"#, r#"error SyntaxError: "'(' was never closed (3423076167.py, lin\u202644""#, "end"];
s17_raise_keyboardinterrupt "17_raise_keyboardinterrupt" [r#"#18"#, r#"error KeyboardInterrupt: """#, "end"];
s21_empty "21_empty" [r#"#22"#, "end"];
s22_comment_only "22_comment_only" [r#"#22"#, "end"];
s23_display_many "23_display_many" [r#"#23"#, r#"result html,text "<IPython.core.display.HTML object>""#, r#"result markdown,text "<IPython.core.display.Markdown object>""#, r#"result latex,text "<IPython.core.display.Latex object>""#, r#"result svg,text "<IPython.core.display.SVG object>""#, r#"result json,text "<IPython.core.display.JSON object>""#, r#"result javascript,text "<IPython.core.display.Javascript object>""#, r#"result text,application/x-custom "p""#, r#"out "done\n""#, "end"];
s24_update_display_clear "24_update_display_clear" [r#"#24"#, r#"result text "one""#, r#"out "x\n""#, "end"];
s25_carriage_return "25_carriage_return" [r#"#25"#, r#"out "\r0/3""#, r#"out "\r1/3""#, r#"out "\r2/3""#, "end"];
s26_subprocess "26_subprocess" [r#"#26"#, r#"out "from-subprocess\nfrom-os-system\nfrom-bang\u202642""#, r#"err "err\n""#, "end"];
s27_async_await "27_async_await" [r#"#27"#, r#"out "awaited\n""#, r#"result* text "ok""#, "end"];
s28_magics "28_magics" [r#"#28"#, r#"out "CPU times: user 7 \u03bcs, sys: 1 \u03bcs, total: \u202664""#, r#"result* text "/home/user""#, "end"];
s29_nested_exception "29_nested_exception" [r#"#29"#, r#"error ValueError: "wrapped""#, "end"];
s30_keepalive_sleep12 "30_keepalive_sleep12" [r#"#30"#, "keepalive x2", r#"out "woke\n""#, "end"];
s44_execute_context "44_execute_context" [r#"#1"#, r#"out "/tmp\n""#, "end"];
s51_env_vars "51_env_vars" [r#"#31"#, r#"out "bar true\n""#, "end"];
s52_env_vars_gone "52_env_vars_gone" [r#"#32"#, r#"out "None\n""#, "end"];
s53_env_vars_quote "53_env_vars_quote" [r#"#33"#, r#"error SyntaxError: "unterminated string literal (detected at\u202672""#, "end"];
s54_env_vars_indented "54_env_vars_indented" [r#"#34"#, r#"out "bar\n""#, "end"];
s56_after_restart "56_after_restart" [r#"#1"#, r#"out "/home/user\nFalse\n""#, "end"];
s80_os_exit "80_os_exit" [r#"#50"#, r#"out "bye\n""#, r#"error ContextRestarting: "Context was restarted""#, "end"];
s81_after_os_exit "81_after_os_exit" [r#"#1"#, r#"out "/home/user False None\n""#, "end"];
a0_js_print "a0_js_print" [r#"#2"#, r#"out "hi\n""#, r#"err "err\n""#, r#"result* text "2""#, "end"];
a1_js_exception "a1_js_exception" [r#"#3"#, r#"error Error: "boom""#, "end"];
a2_js_await "a2_js_await" [r#"#4"#, r#"result* text "7""#, "end"];
a3_js_state "a3_js_state" [r#"#5"#, r#"result* text "5""#, "end"];
a4_js_import "a4_js_import" [r#"#6"#, r#"result* text "true""#, "end"];
a5_js_object "a5_js_object" [r#"#7"#, r#"result* text "{ a: 1, b: [ 1, 2 ] }""#, "end"];
a6_js_settimeout "a6_js_settimeout" [r#"#8"#, r#"out "now\n""#, "end"];
a7_js_unicode "a7_js_unicode" [r#"#9"#, r#"result* text "\u65e5\u672c \ud83c\udf89""#, "end"];
a8_js_undefined "a8_js_undefined" [r#"#10"#, "end"];
b0_bash "b0_bash" [r#"#1"#, r#"out "hi\n""#, r#"out "err\n""#, r#"out "/home/user\n""#, "end"];
b1_bash_exitcode "b1_bash_exitcode" [r#"#2"#, r#"error : "1""#, "end"];
b2_bash_exitcode_echo "b2_bash_exitcode_echo" [r#"#3"#, r#"out "ls: cannot access '/nonexistent': No suc\u202660""#, r#"out "rc=2\n""#, "end"];
b3_bash_state "b3_bash_state" [r#"#4"#, r#"out "5\n""#, "end"];
b4_bash_state2 "b4_bash_state2" [r#"#5"#, r#"out "5 /tmp true\n""#, "end"];
b9_bash_unicode "b9_bash_unicode" [r#"#10"#, r#"out "\u043a\u043b\u044e\u0447 \ud83c\udf89\n""#, r#"out "no newline\n""#, "end"];
c0_ts "c0_ts" [r#"#3"#, r#"result* text "1""#, "end"];
c1_python_lang_case "c1_python_lang_case" [r#"#2"#, r#"result* text "1""#, "end"];
c3_python3 "c3_python3" [r#"#1"#, r#"result* text "1""#, "end"];
c4_null_fields "c4_null_fields" [r#"#3"#, r#"result* text "1""#, "end"];
c5_empty_ctx "c5_empty_ctx" [r#"#4"#, r#"result* text "1""#, "end"];
e1_envvars_line_numbers "e1_envvars_line_numbers" [r#"#2"#, r#"error ZeroDivisionError: "division by zero""#, "end"];
e3_cell_magic_no_env "e3_cell_magic_no_env" [r#"#4"#, r#"out "hi\n""#, "end"];}

async fn refusal(name: &str) -> E2bError {
    let recording = recording(name);
    let server = recording.serve().await;
    let client = server.client();
    match recording.request["path"].as_str().unwrap() {
        "/execute" => {
            client.execute(&access(), &recording.execute_request(), Deadlines::default()).await.unwrap_err()
        }
        "/contexts" => client.create_code_context(&access(), &CreateContext::default()).await.unwrap_err(),
        path => {
            let id = path.split('/').nth(2).unwrap();
            client.restart_code_context(&access(), id).await.unwrap_err()
        }
    }
}

#[tokio::test]
async fn s42_context_create_badlang() {
    assert!(matches!(refusal("42_context_create_badlang").await, E2bError::UnknownLanguage(_)));
}

#[tokio::test]
async fn s45_execute_unknown_context() {
    let error = refusal("45_execute_unknown_context").await;
    assert!(matches!(error, E2bError::NotFound { what: Subject::CodeContext, .. }));
    assert!(!error.may_have_run() && !error.is_lost());
}

#[tokio::test]
async fn s46_execute_both() {
    let error = refusal("46_execute_both").await;
    assert_eq!(
        error.to_string(),
        "the sandbox provider refused the request (status 400): Only one of context_id or language can be provided"
    );
}

#[tokio::test]
async fn s47_execute_badlang() {
    assert!(matches!(refusal("47_execute_badlang").await, E2bError::UnknownLanguage(_)));
}

#[tokio::test]
async fn s48_execute_no_code() {
    assert!(matches!(refusal("48_execute_no_code").await, E2bError::Refused { status: 422, .. }));
}

#[tokio::test]
async fn s49_execute_bad_json() {
    assert!(matches!(refusal("49_execute_bad_json").await, E2bError::Refused { status: 422, .. }));
}

#[tokio::test]
async fn s50_execute_get() {
    assert!(matches!(refusal("50_execute_get").await, E2bError::Refused { status: 405, .. }));
}

#[tokio::test]
async fn s61_restart_unknown() {
    let error = refusal("61_restart_unknown").await;
    assert!(matches!(error, E2bError::NotFound { what: Subject::CodeContext, .. }));
}

#[tokio::test]
async fn c2_py_alias() {
    assert!(matches!(refusal("c2_py_alias").await, E2bError::UnknownLanguage(_)));
}

#[tokio::test]
async fn s40_contexts_list() {
    let server = recording("40_contexts_list").serve().await;
    let contexts = server.client().list_code_contexts(&access()).await.unwrap();
    let languages: Vec<_> = contexts.iter().map(|context| context.language.as_str()).collect();
    assert_eq!(languages, ["python", "javascript", "typescript"]);
}

#[tokio::test]
async fn s41_context_create() {
    let server = recording("41_context_create").serve().await;
    let create = CreateContext { language: Some("python".into()), cwd: Some("/tmp".into()) };
    let context = server.client().create_code_context(&access(), &create).await.unwrap();
    assert_eq!((context.language.as_str(), context.cwd.as_str()), ("python", "/tmp"));
    assert_eq!(server.requests()[0].json(), serde_json::json!({"language": "python", "cwd": "/tmp"}));
}

#[tokio::test]
async fn s43_context_create_badcwd() {
    let server = recording("43_context_create_badcwd").serve().await;
    let context = server.client().create_code_context(&access(), &CreateContext::default()).await.unwrap();
    assert_eq!(context.cwd, recording("43_context_create_badcwd").request["body"]["cwd"]);
}

#[tokio::test]
async fn s55_context_restart() {
    let recording = recording("55_context_restart");
    let server = recording.serve().await;
    let path = recording.request["path"].as_str().unwrap();
    server.client().restart_code_context(&access(), path.split('/').nth(2).unwrap()).await.unwrap();
    assert_eq!(server.lines(), [format!("POST {path}")]);
}

#[test]
fn no_recording_is_without_its_test() {
    let source = include_str!("e2b_streams.rs");
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/e2b-streams");
    for file in std::fs::read_dir(dir).unwrap() {
        let file = file.unwrap().file_name().into_string().unwrap();
        if let Some(name) = file.strip_suffix(".ndjson") {
            assert!(source.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}
