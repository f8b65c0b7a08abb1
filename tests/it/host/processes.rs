//! `process.Process`: starting, hearing, speaking to and ending programs.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::Method;
use serde_json::{Value, json};

use super::{TestHost, TestSandbox, envelope, envelopes, exit_code, written};

const START: &str = "/process.Process/Start";

fn bash(command: &str) -> Value {
    json!({"cmd": "/bin/bash", "args": ["-l", "-c", command]})
}

/// Starts a program and leaves; gives its process number.
async fn start_and_leave(host: &TestHost, sandbox: &TestSandbox, message: Value) -> u64 {
    let mut response = host
        .to(sandbox, 49983, Method::POST, START)
        .header("content-type", "application/connect+json")
        .body(envelope(&message))
        .send()
        .await
        .unwrap();
    let first = response.chunk().await.unwrap().unwrap();
    let len = u32::from_be_bytes(first[1..5].try_into().unwrap()) as usize;
    let event: Value = serde_json::from_slice(&first[5..5 + len]).unwrap();
    event["event"]["start"]["pid"].as_u64().unwrap_or_else(|| panic!("{event}"))
}

#[tokio::test]
async fn a_command_streams_what_it_writes_and_how_it_ends() {
    let host = TestHost::start().await;
    let sandbox = host.create_as(json!({"envVars": {"GREETING": "hello ü"}})).await;
    let events = host.run(&sandbox, "echo $GREETING; echo oops >&2; exit 3").await;
    assert!(events[0]["event"]["start"]["pid"].as_u64().unwrap() > 1);
    assert_eq!(written(&events, "stdout"), "hello ü\n");
    assert_eq!(written(&events, "stderr"), "oops\n");
    let end = &events[events.len() - 2]["event"]["end"];
    assert_eq!(
        end,
        &json!({"exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"})
    );
    assert_eq!(events.last().unwrap(), &json!({}));

    let start = json!({"process": {"cmd": "/bin/bash", "args": ["-c", "pwd; echo $A $GREETING"],
        "envs": {"A": "1", "GREETING": "own"}, "cwd": "/tmp"}});
    let events = host.stream(&sandbox, START, start, &[]).await;
    assert_eq!(written(&events, "stdout"), "/tmp\n1 own\n");
    let events = host.run(&sandbox, "kill -9 $$").await;
    let end = &events[events.len() - 2]["event"]["end"];
    assert_eq!((&end["exitCode"], &end["status"]), (&json!(-1), &json!("signal: killed")));
}

#[tokio::test]
async fn a_program_that_cannot_start_ends_the_stream_with_the_reason() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let error = async |message: Value, headers: &[(&str, &str)]| {
        let events = host.stream(&sandbox, START, message, headers).await;
        assert_eq!(events.len(), 1, "{events:?}");
        events[0]["error"].clone()
    };
    let no_dir = error(json!({"process": {"cmd": "/bin/bash", "cwd": "/no/such"}}), &[]).await;
    assert_eq!(no_dir, json!({"code": "invalid_argument", "message": "cwd '/no/such' does not exist"}));
    let no_program = error(json!({"process": {"cmd": "/no/such"}}), &[]).await;
    assert_eq!(no_program["code"], "invalid_argument");
    let root = error(json!({"process": bash("id")}), &[("authorization", "Basic cm9vdDo=")]).await;
    assert_eq!(root["code"], "unauthenticated");
    assert_eq!(error(json!({"nonsense": 1}), &[]).await["code"], "invalid_argument");
    let unknown =
        host.stream(&sandbox, "/process.Process/Connect", json!({"process": {"pid": 9999}}), &[]).await;
    assert_eq!(
        unknown[0]["error"],
        json!({"code": "not_found", "message": "process with pid 9999 not found"})
    );
}

#[tokio::test]
async fn invalid_envelopes_end_the_stream_and_nothing_else() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    for garbage in [
        &b""[..],
        b"\0",
        b"\0\0\0\0\x10{}",
        b"\0\xff\xff\xff\xff",
        b"\x01\0\0\0\x02{}",
        b"\x80\0\0\0\x02{}",
        b"\0\0\0\0\x03{\xff}",
        b"\x02\0\0\0\x02{}",
    ] {
        let request = host.to(&sandbox, 49983, Method::POST, START);
        let response = request.body(garbage.to_vec()).send().await.unwrap();
        assert_eq!(response.status(), 200);
        let events = envelopes(&response.bytes().await.unwrap());
        assert_eq!(events[0]["error"]["code"], "invalid_argument", "{garbage:?}");
    }
    assert_eq!(exit_code(&host.run(&sandbox, "true").await), 0);
}

#[tokio::test]
async fn a_background_program_outlives_its_client_and_is_found_by_number_and_tag() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let message =
        json!({"process": bash("while read line; do echo got $line; done; echo bye"), "tag": "loop"});
    let pid = start_and_leave(&host, &sandbox, message).await;

    let (_, list) = host.rpc(&sandbox, "/process.Process/List", json!({})).await;
    assert_eq!(list["processes"][0]["pid"], pid);
    assert_eq!(list["processes"][0]["tag"], "loop");
    assert_eq!(list["processes"][0]["config"]["cmd"], "/bin/bash");

    let listening =
        host.stream(&sandbox, "/process.Process/Connect", json!({"process": {"tag": "loop"}}), &[]);
    let speaking = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let input = json!({"process": {"pid": pid}, "input": {"stdin": BASE64_STANDARD.encode("one\n")}});
        assert_eq!(host.rpc(&sandbox, "/process.Process/SendInput", input).await, (200, json!({})));
        let mut stream = envelope(&json!({"start": {"process": {"pid": pid}}}));
        stream.extend(envelope(&json!({"keepalive": {}})));
        stream.extend(envelope(&json!({"data": {"input": {"stdin": BASE64_STANDARD.encode("two\n")}}})));
        let response = host
            .to(&sandbox, 49983, Method::POST, "/process.Process/StreamInput")
            .body(stream)
            .send()
            .await
            .unwrap();
        assert_eq!(envelopes(&response.bytes().await.unwrap()), [json!({}), json!({})]);
        let close = json!({"process": {"pid": pid}});
        assert_eq!(host.rpc(&sandbox, "/process.Process/CloseStdin", close).await.0, 200);
    };
    let (events, ()) = tokio::join!(listening, speaking);
    assert_eq!(written(&events, "stdout"), "got one\ngot two\nbye\n");
    assert_eq!(exit_code(&events), 0);

    // Its end is reported to a listener that comes a moment later, and it is in no list any more.
    let late = host.stream(&sandbox, "/process.Process/Connect", json!({"process": {"pid": pid}}), &[]).await;
    assert_eq!(exit_code(&late), 0);
    assert_eq!(host.rpc(&sandbox, "/process.Process/List", json!({})).await.1, json!({"processes": []}));
    let gone = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(host.rpc(&sandbox, "/process.Process/SendSignal", gone).await.0, 404);
}

#[tokio::test]
async fn a_signal_ends_a_program_with_all_it_started() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let pid =
        start_and_leave(&host, &sandbox, json!({"process": bash("sleep 1000 & sleep 1000; true")})).await;
    let kill = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(host.rpc(&sandbox, "/process.Process/SendSignal", kill).await, (200, json!({})));
    let events = host.run(&sandbox, "sleep 0.2; pgrep -c sleep; true").await;
    assert_eq!(written(&events, "stdout").trim(), "0");
}

#[tokio::test]
async fn the_deadline_of_a_start_is_the_life_of_the_program() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let start = json!({"process": bash("echo begun; sleep 1000")});
    let events = host.stream(&sandbox, START, start, &[("connect-timeout-ms", "500")]).await;
    assert_eq!(written(&events, "stdout"), "begun\n");
    assert_eq!(events.last().unwrap()["error"]["code"], "deadline_exceeded");
    assert_eq!(host.rpc(&sandbox, "/process.Process/List", json!({})).await.1, json!({"processes": []}));
    assert_eq!(written(&host.run(&sandbox, "pgrep -c sleep; true").await, "stdout").trim(), "0");
}

#[tokio::test]
async fn a_silent_stream_shows_that_it_lives() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let start = json!({"process": bash("sleep 2.5")});
    let events = host.stream(&sandbox, START, start, &[("keepalive-ping-interval", "1")]).await;
    let alive = events.iter().filter(|event| event["event"].get("keepalive").is_some()).count();
    assert!((1..=3).contains(&alive), "{events:?}");
}

#[tokio::test]
async fn a_terminal_echoes_and_has_the_size_it_was_given() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let shell = json!({"process": {"cmd": "/bin/bash", "args": ["-i", "-l"], "envs": {"TERM": "xterm-256color"}},
        "pty": {"size": {"cols": 77, "rows": 11}}, "tag": "pty"});
    let pid = start_and_leave(&host, &sandbox, shell).await;
    let listening = host.stream(&sandbox, "/process.Process/Connect", json!({"process": {"pid": pid}}), &[]);
    let speaking = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let type_in = async |text: &str| {
            let input = json!({"process": {"pid": pid}, "input": {"pty": BASE64_STANDARD.encode(text)}});
            assert_eq!(host.rpc(&sandbox, "/process.Process/SendInput", input).await.0, 200);
        };
        type_in("stty size\n").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let resize = json!({"process": {"pid": pid}, "pty": {"size": {"cols": 99, "rows": 22}}});
        assert_eq!(host.rpc(&sandbox, "/process.Process/Update", resize).await.0, 200);
        type_in("stty size\nexit 5\n").await;
    };
    let (events, ()) = tokio::join!(listening, speaking);
    let screen = written(&events, "pty");
    assert!(screen.contains("11 77") && screen.contains("22 99"), "{screen:?}");
    assert_eq!(exit_code(&events), 5);
}

/// A client that stops reading holds the program, not the host; and a second client is still served.
#[tokio::test]
async fn a_client_that_does_not_read_slows_its_program_only() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let flood = json!({"process": bash("head -c 300000000 /dev/zero; echo done > /tmp/done")});
    let response = host
        .to(&sandbox, 49983, Method::POST, START)
        .header("content-type", "application/connect+json")
        .body(envelope(&flood))
        .send()
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let events = host.run(&sandbox, "test -e /tmp/done; echo $?").await;
    assert_eq!(written(&events, "stdout"), "1\n", "the program waits for its reader");
    drop(response);
}

#[tokio::test]
async fn streams_end_with_unavailable_when_their_sandbox_is_killed() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let listening = host.run(&sandbox, "sleep 1000");
    let killing = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        host.api(Method::DELETE, &format!("/sandboxes/{}", sandbox.id), Value::Null).await
    };
    let (events, killed) = tokio::join!(listening, killing);
    assert_eq!(killed.0, 204);
    let error = &events.last().unwrap()["error"];
    assert_eq!(error, &json!({"code": "unavailable", "message": "The sandbox was not found"}));
}
