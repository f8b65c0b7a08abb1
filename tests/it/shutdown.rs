//! The end of the real binary by real signals, with runs in progress: what is longer than the grace period is interrupted and
//! recorded, a second signal does not wait, and nothing stays behind.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http::{HttpServer, Reply};
use crate::support::server::{Server, alive, command, processes_of};

/// Bounds a hang; nothing is measured.
const PATIENCE: Duration = Duration::from_secs(60);
/// Kinds of HTTP/2's frames.
const DATA: u8 = 0;
const GOAWAY: u8 = 7;
const ENDLESS: &str = "print('begun', flush=True)\nwhile True: pass";

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

fn call() -> Value {
    let arguments = json!({"code": ENDLESS, "language": "python", "timeout_ms": 600_000});
    json!({"name": "run_code", "arguments": arguments, "_meta": {"progressToken": "t"}})
}

/// The kernel ends a namespace's processes a moment after their parent is gone.
fn wait_until_gone(children: &[u32]) {
    assert!(!children.is_empty());
    let until = std::time::Instant::now() + PATIENCE;
    while children.iter().any(|pid| alive(*pid)) {
        assert!(std::time::Instant::now() < until, "{children:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn grace(data: &Path, seconds: &str) -> Command {
    let mut command = command(data);
    command.args(["--set", &format!("shutdown_grace_seconds={seconds}")]);
    command
}

/// The last of the two runs that there were, as it is recorded; and the chain about them is sound.
fn recorded(data: &Path) -> Value {
    let json = |args: &[&str]| -> Value {
        let output = command(data).args(args).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let chain = json(&["audit", "verify", "--json"]);
    assert_eq!((&chain["sound"], &chain["chains"][0]["entries"]), (&true.into(), &2.into()), "{chain}");
    json(&["executions", "ls", "--json"])[0].take()
}

#[test]
fn over_standard_input_a_run_beyond_the_grace_period_is_interrupted_and_recorded() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(grace(data.path(), "1").arg("serve"));
    server.python("1");
    let id = server.begin("tools/call", call());
    let progress = server.next(PATIENCE).expect("it runs");
    assert_eq!(progress["method"], "notifications/progress", "{progress}");
    let children = processes_of(server.child.id());
    signal(server.child.id(), "-TERM");
    let answer = server.answer(id);
    assert!(answer.get("result").is_some() || answer.get("error").is_some(), "it is answered: {answer}");
    assert!(server.wait(PATIENCE).expect("it ends").success());
    let run = recorded(data.path());
    assert_eq!((&run["status"], &run["exitCode"]), (&"interrupted".into(), &130.into()), "{run}");
    wait_until_gone(&children);
}

#[test]
fn over_http_a_run_beyond_the_grace_period_is_interrupted_and_recorded() {
    let data = tempfile::tempdir().unwrap();
    let mut server = HttpServer::start_with(&mut grace(data.path(), "1"));
    let mut session = server.session(&[]);
    session.python("1");
    let (_, mut reply) = session.begin("tools/call", call());
    while !reply.message().expect("it runs").data.contains("progress") {}
    let children = processes_of(server.child.id());
    server.terminate();
    // Its client hears of it: an answer, or the end of the stream.
    while reply.message().is_some() {}
    assert!(server.wait(PATIENCE).expect("it ends").success());
    let run = recorded(data.path());
    assert_eq!((&run["status"], &run["exitCode"]), (&"interrupted".into(), &130.into()), "{run}");
    wait_until_gone(&children);
}

/// A provider that takes the request for a sandbox and does not answer.
#[test]
fn a_run_that_waits_for_its_sandbox_is_answered_and_recorded_as_not_begun() {
    let data = tempfile::tempdir().unwrap();
    let provider = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", provider.local_addr().unwrap());
    let mut start = grace(data.path(), "1");
    start.envs([("E2B_API_KEY", "e2b_0"), ("E2B_API_URL", &url), ("E2B_SANDBOX_URL", &url)]);
    let mut server = Server::start_with(start.arg("serve"));
    let id = server.begin("tools/call", call());
    let mut asked = Vec::new();
    let held = loop {
        let (stream, _) = provider.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        let makes = line.starts_with("POST ") && line.contains("/sandboxes ");
        asked.push((stream, line));
        if makes {
            break asked;
        }
    };
    signal(server.child.id(), "-TERM");
    let answer = server.answer(id);
    let error = &answer["result"]["_meta"]["dev.pathbox/error"];
    assert_eq!((&error["code"], &error["retryable"]), (&json!("shutting_down"), &json!(true)), "{answer}");
    assert!(server.wait(PATIENCE).expect("it ends").success());
    drop(held);
    let output = command(data.path()).args(["executions", "ls", "--json"]).output().unwrap();
    let runs: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&runs[0]["status"], &runs[0]["error"]),
        (&json!("cancelled"), &json!("shutting_down")),
        "{runs}"
    );
}

#[test]
fn a_second_signal_does_not_wait_for_the_grace_period() {
    let data = tempfile::tempdir().unwrap();
    let mut server = HttpServer::start_with(&mut grace(data.path(), "600"));
    let mut session = server.session(&[]);
    session.python("1");
    let (_, mut reply) = session.begin("tools/call", call());
    while !reply.message().expect("it runs").data.contains("progress") {}
    let children = processes_of(server.child.id());
    server.terminate();
    // The first has been heard once it says so.
    let until = std::time::Instant::now() + PATIENCE;
    while !server.log().contains("shutdown requested") {
        assert!(std::time::Instant::now() < until, "{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(server.child.try_wait().unwrap().is_none(), "it waits for the run");
    server.terminate();
    assert_eq!(server.wait(PATIENCE).expect("it ends").code(), Some(130));
    wait_until_gone(&children);
}

/// A request on a connection that stays.
fn ask(stream: &mut TcpStream, head: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let text =
        format!("{head} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{headers}\r\n{body}");
    stream.write_all(text.as_bytes()).unwrap();
    Reply::read(stream.try_clone().unwrap())
}

/// Asks until an answer says that the connection closes, as it then does.
fn ask_until_closed(stream: &mut TcpStream, path: &str) -> Reply {
    loop {
        let mut reply = ask(stream, &format!("GET {path}"), &[], "");
        reply.bytes();
        if reply.header("connection") == Some("close") {
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            return reply;
        }
    }
}

/// A request that crosses the close of its connection is lost for a client that does not send it again.
#[test]
fn a_kept_connection_closes_with_an_answer_that_says_so() {
    let data = tempfile::tempdir().unwrap();
    let mut server = HttpServer::start(data.path());
    let (mut one, mut other) = (server.connect(), server.connect());
    let status = |stream: &mut TcpStream, path: &str| {
        let mut reply = ask(stream, &format!("GET {path}"), &[], "");
        reply.bytes();
        reply.status
    };
    while status(&mut one, "/readyz") != 200 {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(status(&mut other, "/healthz"), 200);
    server.terminate();
    assert_eq!(ask_until_closed(&mut one, "/healthz").status, 200);
    assert_eq!(ask_until_closed(&mut other, "/readyz").status, 503, "a balancer sends no more");
    assert!(server.wait(PATIENCE).expect("it ends").success());
}

#[test]
fn a_client_goes_on_after_a_run_that_the_shutdown_waited_for() {
    let data = tempfile::tempdir().unwrap();
    let mut server = HttpServer::start(data.path());
    let mut session = server.session(&[]);
    session.python("x = 41");
    let mut headers = session.headers();
    headers.push(("Content-Type", "application/json"));
    headers.push(("Accept", "application/json, text/event-stream"));
    let run = |stream: &mut TcpStream, code: &str| {
        let arguments = json!({"code": code, "language": "python"});
        let params = json!({"name": "run_code", "arguments": arguments, "_meta": {"progressToken": "t"}});
        let message = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params});
        ask(stream, "POST /mcp", &headers, &message.to_string())
    };
    let mut stream = server.connect();
    let mut reply = run(&mut stream, "import time\nprint('begun', flush=True)\ntime.sleep(1.5)\nx += 1");
    while !reply.message().expect("it runs").data.contains("progress") {}
    server.terminate();
    assert_eq!(reply.answer()["result"]["structuredContent"]["success"], true);
    reply.bytes();
    assert_eq!(reply.header("connection"), None, "its head was sent before");
    let mut next = run(&mut stream, "x");
    assert_eq!((next.status, next.header("connection")), (200, Some("close")));
    let answer = next.answer();
    assert_eq!(answer["result"]["structuredContent"]["output"], "42", "{answer}");
    assert!(server.wait(PATIENCE).expect("it ends").success());
}

/// HTTP/2 says so between requests.
#[test]
fn a_connection_of_http_2_hears_that_no_request_is_taken() {
    let data = tempfile::tempdir().unwrap();
    let mut server = HttpServer::start(data.path());
    let mut stream = server.connect();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    // Stream 1: `:method GET`, `:scheme http`, `:path /healthz`, `:authority localhost`.
    let head = b"\x82\x86\x04\x08/healthz\x01\x09localhost";
    stream.write_all(&[0, 0, head.len() as u8, 1, 5, 0, 0, 0, 1]).unwrap();
    stream.write_all(head).unwrap();
    let mut frame = || {
        let mut head = [0; 9];
        stream.read_exact(&mut head).expect("another frame");
        let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut body).unwrap();
        (head[3], body)
    };
    while frame() != (DATA, b"ok".to_vec()) {}
    server.terminate();
    while frame().0 != GOAWAY {}
    assert!(server.wait(PATIENCE).expect("it ends").success());
}

/// Everything that a server says of a whole flow at its most talkative, in both forms of log line, beside what `/metrics`
/// says: none of the secrets, code and output that went through it.
#[test]
fn no_log_line_and_no_metric_holds_secrets_code_or_output() {
    for format in ["text", "json"] {
        let data = tempfile::tempdir().unwrap();
        let settings = [
            ("http.auth", "required"),
            ("http.console", "true"),
            ("log.format", format),
            ("log.filter", "trace,hyper=info,h2=info,mio=info,polling=info"),
            ("cron_secret", "cron-planted-secret-1"),
        ];
        let add =
            ["keys", "add", "--json", "--name", "k", "--tenant", "acme", "--scopes", "run,read,paths,admin"];
        let made = command(data.path()).args(add).output().unwrap();
        let made: Value = serde_json::from_slice(&made.stdout).unwrap();
        let key = made["key"].as_str().unwrap().to_owned();
        let mut start = command(data.path());
        for (name, value) in settings {
            start.args(["--set", &format!("{name}={value}")]);
        }
        let server = HttpServer::start_with(&mut start);
        let bearer = format!("Bearer {key}");
        let auth = [("Authorization", bearer.as_str())];
        let meta = json!({"dev.pathbox/conversationId": "chat"});
        let run = |code: &str, language: &str| {
            let arguments = json!({"code": code, "language": language, "timeout_ms": 5_000,
                "env": {"PLANTED": "planted-environment-2"}});
            let mut plain = arguments.clone();
            plain.as_object_mut().unwrap().remove("env");
            server.stateless(&auth, "run_code", plain, meta.clone()).answer()
        };
        run("planted_name_3 = 'planted-' + 'output-4'; print(planted_name_3)", "python");
        run("raise ValueError('planted-' + 'message-5')", "python");
        run("echo planted-'bash'-6; echo planted-'stderr'-7 >&2", "bash");
        run("import os; os._exit(3)", "python");
        server
            .stateless(
                &auth,
                "run_code",
                json!({"code": "planted_argument_8", "language": "no"}),
                meta.clone(),
            )
            .answer();
        let cleanup = [("Authorization", "Bearer cron-planted-secret-1")];
        assert_eq!(server.send("POST", "/v1/cleanup", &cleanup, b"").status, 200);
        server.send("GET", "/console/state", &auth, b"");
        server.send("GET", "/console/state", &[("Authorization", "Bearer planted-bad-key-9")], b"");
        let metrics = server.send("GET", "/metrics", &auth, b"").text();
        let all = format!("{}\n{metrics}", server.log());
        assert!(
            all.contains("execution") && metrics.contains("code_execution_total"),
            "it says something: {all}"
        );
        let secret = key.rsplit('_').next().unwrap();
        for planted in [
            "output-4",
            "planted_name_3",
            "message-5",
            "planted-bash-6",
            "planted-stderr-7",
            "planted_argument_8",
            "cron-planted",
            "planted-bad-key-9",
            secret,
        ] {
            let line = all.lines().find(|line| line.contains(planted));
            assert_eq!(line, None, "{planted} in {format}");
        }
    }
}
