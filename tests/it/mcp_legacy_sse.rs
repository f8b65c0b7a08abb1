//! MCP over HTTP+SSE (2024-11-05) in raw messages.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http::{HttpServer, Reply, initialize};
use crate::support::server::command;

struct Client<'s> {
    server: &'s HttpServer,
    stream: Reply,
    endpoint: String,
    next: u64,
}

impl<'s> Client<'s> {
    fn open(server: &'s HttpServer, path: &str) -> Self {
        let mut stream = server.send("GET", path, &[("Accept", "text/event-stream")], b"");
        let first = stream.event().unwrap();
        assert_eq!(first.event.as_deref(), Some("endpoint"), "{first:?}");
        let mut client = Self { server, stream, endpoint: first.data, next: 1 };
        client.say(&initialize("2024-11-05").to_string());
        assert_eq!(client.hear()["result"]["protocolVersion"], "2024-11-05");
        client.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string());
        client
    }

    fn say(&self, text: &str) -> Reply {
        self.server.send("POST", &self.endpoint, &[("Content-Type", "application/json")], text.as_bytes())
    }

    fn hear(&mut self) -> Value {
        let event = self.stream.message().expect("the stream goes on");
        assert_eq!(event.event.as_deref(), Some("message"));
        event.json()
    }

    fn python(&mut self, code: &str) -> Value {
        let (id, arguments) = (self.next, json!({"code": code, "language": "python"}));
        self.next += 1;
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": "run_code", "arguments": arguments}});
        assert_eq!(self.say(&message.to_string()).status, 202);
        let mut answer = self.hear();
        assert_eq!(answer["id"], id);
        answer["result"]["structuredContent"].take()
    }
}

#[test]
fn a_client_of_2024_keeps_state_on_its_stream_and_not_on_another() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let mut one = Client::open(&server, "/sse");
    let mut two = Client::open(&server, "/sse");
    one.python("x = 20");
    assert_eq!(one.python("x + 2")["output"], "22");
    assert_eq!(two.python("x")["error"]["name"], "NameError");
}

#[test]
fn broken_messages_and_unknown_sessions_are_answered() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let mut client = Client::open(&server, "/sse");
    let mut reply = client.say("not json");
    assert_eq!((reply.status, &reply.answer()["error"]["code"]), (400, &json!(-32700)));
    assert_eq!(client.say("[]").answer()["error"]["code"], -32600);
    let call = json!({"jsonrpc": "2.0", "id": "same", "method": "tools/call", "params": {"name": "run_code",
        "arguments": {"code": "import time; time.sleep(1)", "language": "python"}}});
    client.say(&call.to_string());
    client.say(&call.to_string());
    let refused = client.hear();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("same"), &json!(-32600)), "{refused}");
    assert!(client.hear()["result"].is_object());
    for path in ["/messages?session_id=00", "/messages?session_id=", "/messages?sessionId=abc"] {
        assert_eq!(
            server.send("POST", path, &[("Content-Type", "application/json")], b"{}").status,
            404,
            "{path}"
        );
    }
    assert_eq!(server.send("POST", "/messages", &[], b"{}").status, 400);
}

#[test]
fn a_notification_before_the_first_request_is_survived() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let mut stream = server.send("GET", "/sse", &[], b"");
    let endpoint = stream.event().unwrap().data;
    let early = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    let headers = [("Content-Type", "application/json")];
    assert_eq!(server.send("POST", &endpoint, &headers, early.as_bytes()).status, 202);
    let hello = initialize("2024-11-05").to_string();
    assert_eq!(server.send("POST", &endpoint, &headers, hello.as_bytes()).status, 202);
    assert!(stream.message().unwrap().json()["result"].is_object());
}

#[test]
fn closing_the_stream_ends_the_session_and_cancels_its_calls() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let mut client = Client::open(&server, "/sse");
    client.python("1");
    let call = json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "run_code",
        "arguments": {"code": "import time\nfor n in range(50): time.sleep(0.1)\ndone = 1", "language": "python"},
        "_meta": {"dev.pathbox/conversationId": "c", "progressToken": 1}}});
    client.say(&call.to_string());
    while !client.stream.message().unwrap().data.contains("running") {}
    let endpoint = client.endpoint.clone();
    drop(client);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(server.send("POST", &endpoint, &[], b"{}").status, 404);
    let here = json!({"dev.pathbox/conversationId": "c"});
    let ask = json!({"code": "'done' in globals()", "language": "python"});
    let after = server.stateless(&[], "run_code", ask, here).answer();
    assert_eq!(after["result"]["structuredContent"]["output"], "False", "{after}");
}

#[test]
fn under_a_base_path_the_endpoint_has_it_and_the_transport_can_be_disabled() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_BASE_PATH", "/box"));
    let mut client = Client::open(&server, "/box/sse");
    assert!(client.endpoint.starts_with("/box/messages?session_id="), "{}", client.endpoint);
    assert_eq!(client.python("1 + 1")["output"], "2");
    assert_eq!(server.send("GET", "/sse", &[], b"").status, 404);
    drop(client);
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_LEGACY_SSE", "false"));
    assert_eq!(server.send("GET", "/sse", &[], b"").status, 404);
}

#[test]
fn a_run_that_is_under_way_may_finish_when_the_server_is_asked_to_end() {
    let data = tempfile::tempdir().unwrap();
    let mut server = HttpServer::start(data.path());
    let mut client = Client::open(&server, "/sse");
    client.python("1");
    let arguments = json!({"code": "import time; time.sleep(3); 'finished'", "language": "python"});
    let call = json!({"jsonrpc": "2.0", "id": "last", "method": "tools/call",
        "params": {"name": "run_code", "arguments": arguments, "_meta": {"progressToken": "t"}}});
    assert_eq!(client.say(&call.to_string()).status, 202);
    assert_eq!(client.hear()["method"], "notifications/progress");
    server.terminate();
    let answer = loop {
        let heard = client.hear();
        if heard["id"] == "last" {
            break heard;
        }
    };
    assert_eq!(answer["result"]["structuredContent"]["output"], "finished", "{answer}");
    drop(client);
    assert!(server.wait(Duration::from_secs(60)).expect("it ends").success());
}

/// No message can reach a server that has closed its listener: a client learns it by the end of its stream, and opens another.
#[test]
fn at_the_end_of_a_server_a_stream_ends_with_its_last_answer() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(command(data.path()).args(["--set", "shutdown_grace_seconds=600"]));
    let (mut idle, mut short, mut endless) =
        (Client::open(&server, "/sse"), Client::open(&server, "/sse"), Client::open(&server, "/sse"));
    for (client, conversation, code) in [
        (&mut endless, "endless", "import time\nwhile True: time.sleep(1)"),
        (&mut short, "short", "import time; time.sleep(2); 'ended'"),
    ] {
        let call = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "run_code",
            "arguments": {"code": code, "language": "python", "timeout_ms": 600_000},
            "_meta": {"dev.pathbox/conversationId": conversation, "progressToken": 1}}});
        assert_eq!(client.say(&call.to_string()).status, 202);
        while !client.hear()["params"]["message"].to_string().contains("running") {}
    }
    server.terminate();
    assert!(idle.stream.message().is_none(), "without a call it ends at once");
    let last = std::iter::from_fn(|| short.stream.message()).last().expect("an answer").json();
    assert_eq!((&last["id"], &last["result"]["structuredContent"]["output"]), (&json!(7), &json!("ended")));
    // Meanwhile a run goes on; a second signal ends it.
    server.terminate();
    while endless.stream.message().is_some() {}
}
