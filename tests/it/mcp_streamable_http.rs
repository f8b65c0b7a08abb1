//! MCP over Streamable HTTP in raw messages, of both protocol eras: what a client must be able to count on.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http::{HttpServer, initialize, modern_meta};
use crate::support::server::command;

fn output(result: &Value) -> &Value {
    &result["structuredContent"]["output"]
}

#[test]
fn a_session_keeps_its_state_and_another_session_does_not_see_it() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let mut one = server.session(&[]);
    let mut two = server.session(&[]);
    let first = one.python("x = 20\nx + 1");
    assert_eq!(
        (output(&first), &first["structuredContent"]["state"]),
        (&json!("21"), &json!("fresh")),
        "{first}"
    );
    assert_eq!(output(&one.python("x + 2")), "22");
    assert_eq!(two.python("x")["structuredContent"]["error"]["name"], "NameError");
    // The handle leads back, from another session of the same caller too.
    let handle = first["structuredContent"]["context"].as_str().unwrap();
    let there =
        two.call("run_code", json!({"code": "x", "language": "python", "context": handle}), json!({}));
    assert_eq!(output(&there), "20");
}

#[test]
fn stateless_calls_share_the_callers_conversation_and_a_handle_leads_to_another() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let run = |arguments: Value, meta: Value| {
        let mut reply = server.stateless(&[], "run_code", arguments, meta);
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("mcp-session-id"), None, "there are no sessions any more");
        reply.answer()["result"].take()
    };
    let first = run(json!({"code": "x = 1\nx", "language": "python"}), json!({}));
    assert_eq!(first["resultType"], "complete", "{first}");
    let handle = first["_meta"]["dev.pathbox/context"].as_str().unwrap();
    let second = run(json!({"code": "x + 1", "language": "python"}), json!({}));
    assert_eq!(
        (output(&second), &second["_meta"]["dev.pathbox/context"]),
        (&json!("2"), &json!(handle)),
        "{second}"
    );
    // Another chat branches, and names its branch in each call.
    let mut reply = server.stateless(&[], "manage_context", json!({"action": "branch"}), json!({}));
    let branch = reply.answer()["result"]["structuredContent"]["context"].take();
    let there = |code: &str| run(json!({"code": code, "language": "python", "context": branch}), json!({}));
    assert_eq!(there("x = 7\nx")["structuredContent"]["state"], "fresh");
    assert_eq!(output(&there("x")), "7");
    assert_eq!(output(&run(json!({"code": "x", "language": "python"}), json!({}))), "1");
    // Conversation and path may be named as well.
    let named = json!({"dev.pathbox/conversationId": "chat-1", "dev.pathbox/pathId": "main"});
    run(json!({"code": "y = 5", "language": "python"}), named.clone());
    assert_eq!(output(&run(json!({"code": "y", "language": "python"}), named)), "5");
}

/// A client that opens a session for each call does not list the tools in it.
fn one_call_session(server: &HttpServer, code: &str, end: bool) -> (String, Value) {
    let reply = server.post(&[], &initialize("2025-11-25"));
    let id = reply.header("mcp-session-id").unwrap().to_owned();
    let headers = [("Mcp-Session-Id", id.as_str()), ("MCP-Protocol-Version", "2025-11-25")];
    server.post(&headers, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let params = json!({"name": "run_code", "arguments": {"code": code, "language": "python"}});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let result = server.post(&headers, &call).answer()["result"].take();
    if end {
        server.send("DELETE", "/mcp", &headers, b"");
    }
    (id, result)
}

#[test]
fn a_client_that_opens_a_session_for_each_call_keeps_its_state() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    one_call_session(&server, "x = 40", true);
    assert_eq!(output(&one_call_session(&server, "x + 2", true).1), "42");
    // It is the conversation of stateless calls as well, and not that of a client that keeps its session.
    let mut reply = server.stateless(&[], "run_code", json!({"code": "x", "language": "python"}), json!({}));
    assert_eq!(output(&reply.answer()["result"]), "40");
    let mut kept = server.session(&[]);
    assert_eq!(kept.python("x")["structuredContent"]["error"]["name"], "NameError");
    // Two that stay open side by side are two conversations.
    let (_open, first) = one_call_session(&server, "x = 1", false);
    assert_eq!(first["structuredContent"]["state"], "kept");
    assert_eq!(one_call_session(&server, "x", false).1["structuredContent"]["error"]["name"], "NameError");
}

#[test]
fn headers_name_conversation_and_path() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let run = |conversation: &str, path: &str, code: &str| {
        let headers = [("X-Conversation-Id", conversation), ("X-Path-Id", path)];
        let arguments = json!({"code": code, "language": "python"});
        server.stateless(&headers, "run_code", arguments, json!({})).answer()["result"].take()
    };
    run("c", "main", "x = 'main'");
    run("c", "branch", "x = 'branch'");
    assert_eq!(output(&run("c", "main", "x")), "main");
    assert_eq!(output(&run("c", "branch", "x")), "branch");
    let bad = run("c", "a/b", "x");
    assert_eq!(bad["isError"], true);
    assert!(bad["content"][0]["text"].as_str().unwrap().contains("x-path-id"), "{bad}");
}

#[test]
fn broken_messages_are_answered_as_json_rpc_says() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    for (text, code) in [
        ("{", -32700),
        ("not json", -32700),
        ("", -32700),
        ("[]", -32600),
        ("{\"x\":1}", -32600),
        ("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", -32600),
    ] {
        let mut reply = server.post_text(&[], text);
        let answer = reply.answer();
        assert_eq!((reply.status, &answer["error"]["code"]), (400, &json!(code)), "{text}: {answer}");
    }
    let half = r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":{"x":"\udc00"}}"#;
    let mut reply = server.post_text(&[], half);
    let answer = reply.answer();
    assert_eq!(
        (reply.status, &answer["id"], &answer["error"]["code"]),
        (400, &json!(7), &json!(-32600)),
        "{answer}"
    );
    let mut session = server.session(&[]);
    for params in [json!({"name": 5}), json!({"name": "run_code", "arguments": 5}), json!({})] {
        let answer = session.request("tools/call", params.clone());
        assert_eq!(answer["error"]["code"], -32602, "{params}: {answer}");
    }
    assert_eq!(session.request("no/such/method", json!({}))["error"]["code"], -32601);
    let answer = session.request("tools/call", json!({"name": "no_such_tool", "arguments": {}}));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    // Anything but JSON is the wrong type, and any Accept that takes everything takes our answers.
    let reply = server.send("POST", "/mcp", &[("Content-Type", "text/plain"), ("Accept", "*/*")], b"{}");
    assert_eq!(reply.status, 415);
    let hello = initialize("2025-11-25").to_string();
    for accept in [vec![("Accept", "*/*")], vec![]] {
        let mut headers = vec![("Content-Type", "application/json")];
        headers.extend(accept);
        assert_eq!(server.send("POST", "/mcp", &headers, hello.as_bytes()).status, 200);
    }
}

#[test]
fn an_id_that_is_still_in_flight_is_refused_and_the_first_call_is_answered() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let mut session = server.session(&[]);
    let call = json!({"jsonrpc": "2.0", "id": "same", "method": "tools/call", "params": {"name": "run_code",
        "arguments": {"code": "import time; time.sleep(1); 'done'", "language": "python"}}});
    let mut first = session.post(&call);
    let refused = session.post(&call).answer();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("same"), &json!(-32600)), "{refused}");
    assert_eq!(output(&first.answer()["result"]), "done");
}

#[test]
fn a_cancelled_call_ends_its_stream_and_keeps_the_state() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let mut session = server.session(&[]);
    session.python("kept = 1");
    let params = json!({"name": "run_code", "arguments": {"code": "while True: pass", "language": "python"},
        "_meta": {"progressToken": "p"}});
    let (id, mut reply) = session.begin("tools/call", params);
    let progress = reply.message().unwrap().json();
    assert_eq!(progress["params"]["progressToken"], "p", "{progress}");
    std::thread::sleep(Duration::from_millis(500));
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    assert_eq!(session.post(&cancelled).status, 202);
    while let Some(event) = reply.message() {
        assert!(event.json().get("id").is_none(), "a cancelled request is not answered");
    }
    assert_eq!(output(&session.python("kept + 1")), "2");
}

#[test]
fn closing_the_stream_cancels_a_stateless_call_and_not_a_sessions() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let context = json!({"dev.pathbox/conversationId": "c", "progressToken": 1});
    let arguments = json!({"code": "import time\ntime.sleep(2)\ndone = True", "language": "python"});
    let mut reply = server.stateless(&[], "run_code", arguments.clone(), context);
    while !reply.message().unwrap().data.contains("running") {}
    drop(reply);
    let here = json!({"dev.pathbox/conversationId": "c"});
    let ask = json!({"code": "'done' in globals()", "language": "python"});
    let after = server.stateless(&[], "run_code", ask.clone(), here).answer();
    assert_eq!(output(&after["result"]), "False", "{after}");

    let mut session = server.session(&[]);
    session.python("1");
    let params = json!({"name": "run_code", "arguments": arguments, "_meta": {"progressToken": 1}});
    let (_, mut reply) = session.begin("tools/call", params);
    while !reply.message().unwrap().data.contains("running") {}
    drop(reply);
    assert_eq!(output(&session.call("run_code", ask, json!({}))), "True");
}

#[test]
fn a_result_that_was_ready_while_the_client_was_away_is_there_on_resume() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let mut session = server.session(&[]);
    session.python("1");
    let code = "import time; time.sleep(1); 'the result'";
    let params = json!({"name": "run_code", "arguments": {"code": code, "language": "python"}});
    let (id, mut reply) = session.begin("tools/call", params);
    let first = reply.event().unwrap();
    let event = first.id.expect("the first event can be resumed after");
    assert!(first.retry.is_some() && first.data.is_empty(), "it says when to come back");
    drop(reply);
    std::thread::sleep(Duration::from_millis(2500));
    let mut resumed = session.listen(Some(&event));
    let message = resumed.message().expect("the result");
    assert_eq!(
        (&message.json()["id"], output(&message.json()["result"])),
        (&json!(id), &json!("the result"))
    );
    assert!(resumed.event().is_none(), "a finished stream ends");
    // Strictly after: nothing comes again.
    assert!(session.listen(message.id.as_deref()).message().is_none());
    // No one else's events, and no made-up ones.
    let stream = event.split_once('-').unwrap().0;
    let beyond = [99, u64::MAX].map(|number| format!("{stream}-{number}"));
    for unknown in ["1-0", "0", "", "x-y", "0-18446744073709551615", &beyond[0], &beyond[1]] {
        assert_eq!(session.listen(Some(unknown)).status, 404, "{unknown:?}");
    }
    let other = server.session(&[]);
    assert_eq!(other.listen(Some(&event)).status, 404, "an event id is good in its own session only");
}

#[test]
fn older_clients_are_spared_events_without_data() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    for version in ["2025-03-26", "2025-06-18"] {
        let mut reply = server.post(&[], &initialize(version));
        let id = reply.header("mcp-session-id").unwrap().to_owned();
        assert_eq!(reply.answer()["result"]["protocolVersion"], version);
        let headers = [("Mcp-Session-Id", id.as_str()), ("MCP-Protocol-Version", version)];
        server.post(&headers, &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        let mut reply = server.post(&headers, &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}));
        let first = reply.event().unwrap();
        assert!(!first.data.is_empty(), "{first:?}");
    }
}

#[test]
fn a_session_that_ended_is_gone_and_one_that_was_put_away_comes_back() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_MAX_SESSIONS", "2"));
    let mut first = server.session(&[]);
    first.python("x = 1");
    // Two more push it out of memory; it is opened again from its own id, and its context is the same.
    let _second = server.session(&[]);
    let third = server.session(&[]);
    assert_eq!(output(&first.python("x + 1")), "2");
    let reply = server.send("DELETE", "/mcp", &third.headers(), b"");
    assert_eq!(reply.status, 204);
    let reply = server.post(&third.headers(), &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}));
    assert_eq!(reply.status, 404, "an ended session is gone for good");
    let mut forged = first.id.clone().into_bytes();
    forged[20] ^= 1;
    let forged = String::from_utf8(forged).unwrap();
    for unknown in [forged.as_str(), "x", "00000000-0000-0000-0000-000000000000"] {
        let headers = [("Mcp-Session-Id", unknown), ("MCP-Protocol-Version", "2025-11-25")];
        let reply = server.post(&headers, &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}));
        assert_eq!(reply.status, 404, "{unknown}");
    }
}

#[test]
fn a_session_goes_on_after_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let id = {
        let server = HttpServer::start(data.path());
        let mut session = server.session(&[]);
        session.python("1");
        session.id
    };
    let server = HttpServer::start(data.path());
    let headers = [("Mcp-Session-Id", id.as_str()), ("MCP-Protocol-Version", "2025-11-25")];
    let params = json!({"name": "run_code", "arguments": {"code": "40 + 2", "language": "python"}});
    let message = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params});
    let answer = server.post(&headers, &message).answer();
    assert_eq!(output(&answer["result"]), "42", "{answer}");
}

#[test]
fn a_stateless_call_shows_a_sign_of_life_before_its_first_message() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let arguments = json!({"code": "import time; time.sleep(5); 'late'", "language": "python"});
    let mut reply = server.stateless(&[], "run_code", arguments, json!({}));
    let headers = std::time::Instant::now();
    let first = reply.event().unwrap();
    assert!(first.comment, "headers and a comment come first, the answer later: {first:?}");
    assert_eq!(output(&reply.answer()["result"]), "late");
    assert!(headers.elapsed() >= Duration::from_secs(1), "they came while the code ran");
    // Errors that have an HTTP status of their own keep it.
    let meta = modern_meta(json!({}));
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "no/such", "params": {"_meta": meta}});
    let headers = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "no/such")];
    let mut reply = server.post(&headers, &message);
    assert_eq!((reply.status, &reply.answer()["error"]["code"]), (404, &json!(-32601)));
}

#[test]
fn running_calls_finish_at_shutdown_and_their_results_arrive() {
    let data = tempfile::tempdir().unwrap();
    let mut server = HttpServer::start(data.path());
    let mut session = server.session(&[]);
    session.python("1");
    let listening = session.listen(None);
    let code = "import time; time.sleep(1.5); 'finished'";
    let params = json!({"name": "run_code", "arguments": {"code": code, "language": "python"}});
    let (_, mut reply) = session.begin("tools/call", params);
    reply.event();
    std::thread::sleep(Duration::from_millis(300));
    server.terminate();
    assert_eq!(output(&reply.answer()["result"]), "finished");
    drop(listening);
    assert!(server.wait(Duration::from_secs(10)).expect("it ends").success());
}

#[test]
fn a_slow_reader_blocks_no_other_request_of_its_session() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let mut session = server.session(&[]);
    let code = "for n in range(200_000): print('x' * 100)";
    let params = json!({"name": "run_code", "arguments": {"code": code, "language": "python"},
        "_meta": {"progressToken": 1}});
    // No one reads this one.
    let (_, mut slow) = session.begin("tools/call", params);
    assert_eq!(session.request("ping", json!({}))["result"], json!({}));
    assert!(session.request("tools/list", json!({}))["result"]["tools"].is_array());
    assert_eq!(
        slow.answer()["result"]["structuredContent"]["success"],
        true,
        "and it gets its result in the end"
    );
}

#[test]
fn an_event_of_another_replica_or_from_before_a_restart_resumes_nothing() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keys = "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let start = |data: &tempfile::TempDir| {
        HttpServer::start_with(command(data.path()).env("PATHBOX_SECRET_KEYS", keys))
    };
    let (first, second) = (start(&one), start(&two));
    let mut session = first.session(&[]);
    let last_event = |session: &mut crate::support::http::Session<'_>, code: &str| {
        let params = json!({"name": "run_code", "arguments": {"code": code, "language": "python"}});
        let (_, mut reply) = session.begin("tools/call", params);
        let event = reply.event().unwrap().id.unwrap();
        reply.answer();
        event
    };
    let event = last_event(&mut session, "'of the first'");
    assert!(session.listen(Some(&event)).message().unwrap().data.contains("of the first"));
    // The same session at another replica, and at one that has the same number of streams.
    let mut there = second.session(&[]);
    there.id.clone_from(&session.id);
    last_event(&mut there, "'of the second'");
    let mut refused = there.listen(Some(&event));
    assert_eq!(refused.status, 404);
    assert!(refused.text().contains("get_execution"), "it says what to do");
    let id = session.id.clone();
    drop(first);
    let restarted = start(&one);
    let mut after = restarted.session(&[]);
    after.id.clone_from(&id);
    last_event(&mut after, "'of the restarted'");
    assert_eq!(after.listen(Some(&event)).status, 404);
}

#[test]
fn a_batch_is_answered_on_one_stream_in_the_one_revision_that_has_them() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    for (version, takes) in [("2025-03-26", true), ("2025-11-25", false)] {
        let reply = server.post(&[], &initialize(version));
        let id = reply.header("mcp-session-id").unwrap().to_owned();
        let headers = [("Mcp-Session-Id", id.as_str()), ("MCP-Protocol-Version", version)];
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let alone = server.post(&headers, &json!([initialized.clone()]));
        assert_eq!(alone.status, if takes { 202 } else { 400 });
        let arguments = json!({"code": "6 * 7", "language": "python"});
        let batch = json!([
            initialized,
            {"jsonrpc": "2.0", "id": 1, "method": "ping"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "run_code", "arguments": arguments}},
            {"jsonrpc": "2.0", "id": 3, "method": 7}
        ]);
        let mut reply = server.post(&headers, &batch);
        if !takes {
            assert_eq!((reply.status, &reply.answer()["error"]["code"]), (400, &json!(-32600)));
            continue;
        }
        let mut answers: Vec<Value> =
            std::iter::from_fn(|| reply.message()).map(|event| event.json()).collect();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        assert_eq!(answers.iter().map(|a| &a["id"]).collect::<Vec<_>>(), [1, 2, 3], "{answers:?}");
        assert_eq!(output(&answers[1]["result"]), "42");
        assert_eq!(answers[2]["error"]["code"], -32600);
    }
}
