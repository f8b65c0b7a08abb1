//! Runs that take longer than their client waits: handed over, followed, paged, stopped, as ids and as tasks.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::http::{HttpServer, Reply};
use crate::support::server::{Server, command};

const PATIENCE: &str = "dev.pathbox/patienceMs";
const CONVERSATION: &str = "dev.pathbox/conversationId";

fn python(code: &str) -> Value {
    json!({"code": code, "language": "python", "timeout_ms": 60_000})
}

fn call(server: &mut Server, name: &str, arguments: Value, meta: Value) -> Value {
    let mut answer =
        server.request("tools/call", json!({"name": name, "arguments": arguments, "_meta": meta}));
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].take()
}

/// A client that knows tasks.
fn with_tasks(mut meta: Value) -> Value {
    meta["io.modelcontextprotocol/clientCapabilities"] =
        json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    meta
}

fn task(server: &HttpServer, headers: &[(&str, &str)], method: &str, id: &str) -> Reply {
    server.modern(headers, method, Some(id), json!({"taskId": id, "_meta": with_tasks(json!({}))}))
}

/// Follows a task to its end.
fn end_of(server: &HttpServer, id: &str) -> Value {
    let began = Instant::now();
    loop {
        let mut answer = task(server, &[], "tasks/get", id).answer();
        assert!(answer.get("error").is_none(), "{answer}");
        if answer["result"]["status"] != "working" {
            return answer["result"].take();
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{answer}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn ten_minutes_are_survived_under_each_patience_that_is_known() {
    // A hundredth of ten minutes, and of the 5, 60 and 300 seconds after which clients give up.
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let code = "import time\nprint('begun', flush=True)\ntime.sleep(6)\nprint('done')\nkept = 7";
    std::thread::scope(|scope| {
        for patience in [50, 600, 3_000] {
            let server = &server;
            scope.spawn(move || {
                let meta = json!({PATIENCE: patience, CONVERSATION: format!("c{patience}")});
                let ask = |tool: &str, arguments: Value| {
                    // Each call is a connection of its own: the run belongs to none of them.
                    let mut answer = server.stateless(&[], tool, arguments, meta.clone()).answer();
                    answer["result"]["structuredContent"].take()
                };
                let first = ask("run_code", python(code));
                assert_eq!(first["status"], "running", "{patience}: {first}");
                let mut asked = 0;
                let end = loop {
                    let wait = json!({"execution_id": first["executionId"], "wait_ms": patience / 2});
                    let seen = ask("get_execution", wait);
                    if seen["status"] == "finished" {
                        break seen;
                    }
                    assert!(["queued", "running"].contains(&seen["status"].as_str().unwrap()), "{seen}");
                    asked += 1;
                    assert!(asked < 2_000, "{seen}");
                };
                assert_eq!((&end["stdout"], asked > 0), (&json!("begun\ndone\n"), true), "{end}");
                // Asked with all the time in the world, for this one is to be answered at once.
                let here = json!({CONVERSATION: format!("c{patience}")});
                let after = server.stateless(&[], "run_code", python("kept"), here).answer();
                assert_eq!(
                    after["result"]["structuredContent"]["output"], "7",
                    "the state is there: {after}"
                );
            });
        }
    });
}

#[test]
fn a_patience_out_of_range_is_named() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    for bad in [json!(1), json!("x"), json!(-5), json!(99_999_999_999_u64)] {
        let result = call(&mut server, "run_code", python("1"), json!({PATIENCE: bad}));
        assert_eq!(result["isError"], true, "{bad}");
        assert!(result["content"][0]["text"].as_str().unwrap().contains(PATIENCE), "{result}");
    }
}

#[test]
fn a_run_that_was_handed_over_outlives_its_connection() {
    let data = tempfile::tempdir().unwrap();
    let mut server = HttpServer::start(data.path());
    let meta = json!({PATIENCE: 1_000, CONVERSATION: "c"});
    let arguments = python("import time; time.sleep(3); 'after all'");
    let result = server.stateless(&[], "run_code", arguments, meta).answer()["result"].take();
    assert_eq!(result["structuredContent"]["status"], "running", "{result}");
    let ask = json!({"execution_id": result["structuredContent"]["executionId"], "wait_ms": 30_000});
    let end = server.stateless(&[], "get_execution", ask.clone(), json!({})).answer();
    assert_eq!(end["result"]["structuredContent"]["output"], "after all", "{end}");
    // Its result outlives the process.
    server.terminate();
    server.wait(Duration::from_secs(20)).expect("it ends");
    let server = HttpServer::start(data.path());
    let end = server.stateless(&[], "get_execution", ask, json!({})).answer();
    assert_eq!(end["result"]["structuredContent"]["output"], "after all", "{end}");
}

#[test]
fn an_analysis_is_handed_over_and_comes_back_as_an_analysis() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let code = "import time; time.sleep(params['seconds']); result = {'slept': params['seconds']}";
    let arguments =
        json!({"analysis_type": "custom", "parameters": {"code": code, "params": {"seconds": 3}}});
    let first = call(&mut server, "run_analysis", arguments, json!({PATIENCE: 500}));
    let content = &first["structuredContent"];
    assert_eq!(content["run"]["status"], "running", "{first}");
    assert_eq!(content["analysisType"], "custom");
    let wait = json!({"execution_id": content["run"]["executionId"], "wait_ms": 30_000});
    let end = call(&mut server, "get_execution", wait, json!({}));
    let content = &end["structuredContent"];
    assert_eq!((&content["success"], &content["analysisType"]), (&json!(true), &json!("custom")), "{end}");
    assert!(content["output"].to_string().contains("slept"), "{end}");
    assert!(content["disclaimer"].as_str().unwrap().contains("advice"), "{end}");
}

#[test]
fn a_run_can_be_stopped_by_its_id_and_keeps_its_state() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    server.python("kept = 1");
    let result = call(&mut server, "run_code", python("while True: pass"), json!({PATIENCE: 1_000}));
    let id = result["structuredContent"]["executionId"].clone();
    let stopped = call(&mut server, "get_execution", json!({"execution_id": id, "cancel": true}), json!({}));
    assert_eq!(stopped["structuredContent"]["exitCode"], 130, "{stopped}");
    assert_eq!(server.python("kept + 1")["structuredContent"]["output"], "2");
}

#[test]
fn a_client_that_knows_tasks_gets_one_and_another_never_does() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let meta = |more: Value| {
        let mut meta = json!({CONVERSATION: "c"});
        meta.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        meta
    };
    server.stateless(&[], "run_code", python("'the sandbox is there'"), meta(json!({}))).answer();
    let quick = server.stateless(&[], "run_code", python("6 * 7"), with_tasks(meta(json!({})))).answer();
    assert_eq!(quick["result"]["structuredContent"]["output"], "42", "what is over is not put off: {quick}");

    let slow = python("import time; print('slow'); time.sleep(2); 'slept'");
    let begun = server.stateless(&[], "run_code", slow, with_tasks(meta(json!({PATIENCE: 500})))).answer();
    let begun = &begun["result"];
    assert_eq!((&begun["resultType"], &begun["status"]), (&json!("task"), &json!("working")), "{begun}");
    let id = begun["taskId"].as_str().unwrap();
    let end = end_of(&server, id);
    assert_eq!((&end["status"], &end["taskId"]), (&json!("completed"), &begun["taskId"]), "{end}");
    assert_eq!(end["result"]["structuredContent"]["output"], "slept", "{end}");
    assert!(end["ttlMs"].is_u64() && end["createdAt"].is_string(), "{end}");
    // A task is a run: it can be looked at as one.
    let run = server.stateless(&[], "get_execution", json!({"execution_id": id}), json!({})).answer();
    assert_eq!(run["result"]["structuredContent"]["stdout"], "slow\n", "{run}");

    let endless = python("kept = 5\nwhile True: pass");
    let begun = server.stateless(&[], "run_code", endless, with_tasks(meta(json!({PATIENCE: 500})))).answer();
    let id = begun["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{begun}")).to_owned();
    let stopped = task(&server, &[], "tasks/cancel", &id).answer();
    assert_eq!(stopped["result"]["resultType"], "complete", "{stopped}");
    assert_eq!(end_of(&server, &id)["status"], "cancelled");
    let after = server.stateless(&[], "run_code", python("kept"), meta(json!({}))).answer();
    assert_eq!(after["result"]["structuredContent"]["output"], "5", "{after}");

    for method in ["tasks/get", "tasks/cancel"] {
        for unknown in ["x", "00000000-0000-7000-8000-000000000000"] {
            let answer = task(&server, &[], method, unknown).answer();
            assert_eq!(answer["error"]["code"], -32602, "{method}: {answer}");
        }
        let silent = server.modern(&[], method, Some(&id), json!({"taskId": id, "_meta": {}})).answer();
        assert_eq!(silent["error"]["code"], -32021, "the client did not say that it knows tasks: {silent}");
    }
}

#[test]
fn a_place_in_an_output_asks_for_its_page_and_what_a_page_cannot_do_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let ran = server.python("print('a' * 60_000 + 'end')");
    let id = ran["structuredContent"]["executionId"].clone();
    let mut ask = |more: Value| {
        let mut arguments = json!({"execution_id": id});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let result = call(&mut server, "get_execution", arguments, json!({}));
        (result["isError"] == true, result["content"][0]["text"].as_str().unwrap().to_owned())
    };
    let (failed, page) = ask(json!({"offset": 60_000}));
    assert!(!failed && page.contains("end") && !page.contains("aa"), "{page}");
    assert_eq!(ask(json!({"offset": 60_000, "stream": "stdout"})).1, page);
    assert!(ask(json!({"offset": 0, "limit": 20_000})).1.starts_with("python finished"), "all defaults");
    let (failed, text) = ask(json!({"stream": "stdout", "cancel": true}));
    assert!(failed && text.contains("`cancel`"), "{text}");
    let (failed, text) = ask(json!({"stream": "stdout", "limit": 1_000_000}));
    assert!(failed && text.contains("`limit`"), "{text}");
}

#[test]
fn a_session_of_an_older_revision_gets_no_task_whatever_its_client_declares() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::raw(command(data.path()).arg("serve"));
    let hello = json!({
        "protocolVersion": "2025-11-25", "clientInfo": {"name": "test", "version": "0"},
        "capabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    });
    let call = json!({"name": "run_code", "arguments": python("while True: pass"), "_meta": {PATIENCE: 500}});
    for message in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}),
    ] {
        assert!(server.try_send(&message));
    }
    let mut answers = std::iter::from_fn(|| server.next(Duration::from_secs(60)));
    let answer = answers.find(|message| message["id"] == 2).expect("an answer");
    assert!(answer["result"]["structuredContent"]["executionId"].is_string(), "{answer}");
}

fn key(data: &Path, name: &str) -> String {
    let output = command(data).args(["keys", "add", "--json", "--name", name, "--tenant", "acme"]).output();
    let made: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    format!("Bearer {}", made["key"].as_str().unwrap())
}

#[test]
fn a_handed_over_run_does_not_exist_for_another_caller_of_the_tenant() {
    let data = tempfile::tempdir().unwrap();
    let (one, two) = (key(data.path(), "one"), key(data.path(), "two"));
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_AUTH", "required"));
    let (one, two) = ([("Authorization", one.as_str())], [("Authorization", two.as_str())]);
    let not_found = |answer: Value| {
        assert_eq!(answer["result"]["_meta"]["dev.pathbox/error"]["code"], "not_found", "{answer}");
    };
    let print = python("print('x' * 60_000)\n'mine'");
    let done = server.stateless(&one, "run_code", print, json!({})).answer();
    let done = &done["result"]["structuredContent"];
    assert_eq!(done["output"], "mine", "{done}");
    let (id, uri) = (&done["executionId"], done["artifacts"][0]["uri"].as_str().unwrap());

    let stolen = json!({"code": "1", "language": "python", "context": done["context"]});
    not_found(server.stateless(&two, "run_code", stolen.clone(), json!({})).answer());
    let mine = server.stateless(&one, "run_code", stolen, json!({})).answer();
    assert_eq!(mine["result"]["structuredContent"]["state"], "kept", "{mine}");
    for (tool, arguments) in [
        ("get_execution", json!({"execution_id": id})),
        ("get_execution", json!({"execution_id": id, "cancel": true})),
        ("get_execution", json!({"execution_id": id, "stream": "stdout"})),
        ("get_artifact", json!({"uri": uri})),
        ("manage_context", json!({"action": "show", "context": done["context"]})),
    ] {
        not_found(server.stateless(&two, tool, arguments.clone(), json!({})).answer());
        let mine = server.stateless(&one, tool, arguments, json!({})).answer();
        assert!(mine["result"].get("isError").is_none(), "{mine}");
    }
    for (headers, found) in [(&one, true), (&two, false)] {
        let read =
            server.modern(headers, "resources/read", Some(uri), json!({"uri": uri, "_meta": {}})).answer();
        assert_eq!(read.get("result").is_some(), found, "{read}");
        let get = task(&server, headers, "tasks/get", id.as_str().unwrap()).answer();
        assert_eq!(get.get("result").is_some(), found, "{get}");
    }

    // Nor can a run be stopped that another began, even with its id.
    let slow = python("import time; time.sleep(3); 'undisturbed'");
    let begun = server.stateless(&one, "run_code", slow, json!({PATIENCE: 500})).answer();
    let id = begun["result"]["structuredContent"]["executionId"].clone();
    not_found(
        server
            .stateless(&two, "get_execution", json!({"execution_id": id, "cancel": true}), json!({}))
            .answer(),
    );
    let stop = task(&server, &two, "tasks/cancel", id.as_str().unwrap()).answer();
    assert_eq!(stop["error"]["code"], -32602, "{stop}");
    let wait = json!({"execution_id": id, "wait_ms": 30_000});
    let end = server.stateless(&one, "get_execution", wait, json!({})).answer();
    assert_eq!(end["result"]["structuredContent"]["output"], "undisturbed", "{end}");
}

/// A call that only waits is not said to run.
#[test]
fn a_call_that_waits_for_its_context_is_handed_over_as_queued() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let endless = json!({"code": "while True: pass", "language": "python", "timeout_ms": 600_000});
    let impatient = json!({"dev.pathbox/patienceMs": 2_000});
    let first = server.call(endless, impatient.clone());
    assert_eq!(first["_meta"]["dev.pathbox/status"], "running", "{first}");
    let second = server.call(json!({"code": "1", "language": "python"}), impatient);
    assert_eq!(second["_meta"]["dev.pathbox/status"], "queued", "{second}");
    let text = second["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("has not begun: it waits for its context"), "{text}");
}

/// The second caller under a key has the first one's run to follow, on whatever replica and however long that lasts.
#[test]
fn a_repeated_call_gets_the_run_that_is_still_in_progress() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let endless = json!({
        "code": "while True: pass", "language": "python", "timeout_ms": 600_000, "idempotency_key": "k"
    });
    let first = server.call(endless.clone(), json!({PATIENCE: 2_000}));
    let second = server.call(endless, json!({PATIENCE: 500}));
    for handed in [&first, &second] {
        assert_eq!(handed["_meta"]["dev.pathbox/status"], "running", "{handed}");
    }
    let id = &first["structuredContent"]["executionId"];
    assert_eq!(*id, second["structuredContent"]["executionId"], "{second}");
    let stop = json!({"execution_id": id, "cancel": true, "wait_ms": 30_000});
    let stopped = call(&mut server, "get_execution", stop, json!({}));
    assert_eq!(stopped["structuredContent"]["error"]["name"], "cancelled", "{stopped}");
}

/// A conversation that was made up for a call, a session or a process is not an argument: the call again is the same call.
#[test]
fn a_call_that_names_no_conversation_is_run_once_under_its_key_wherever_it_is_repeated() {
    let data = tempfile::tempdir().unwrap();
    let keyed = |key: &str, code: &str| json!({"code": code, "language": "python", "idempotency_key": key});
    let random = "import random; print(random.random())";
    let same = |first: &Value, again: &Value| {
        let (first, again) = (&first["structuredContent"], &again["structuredContent"]);
        assert_eq!(again["replayed"], true, "{again}");
        for member in ["executionId", "stdout", "context"] {
            assert_eq!(first[member], again[member], "{member}");
        }
    };
    let first = Server::start(data.path()).call(keyed("k", random), json!({}));
    let mut server = Server::start(data.path());
    same(&first, &server.call(keyed("k", random), json!({})));
    for (other, meta) in
        [(keyed("k", "2"), json!({})), (keyed("k", random), json!({CONVERSATION: "another"}))]
    {
        let refused = server.call(other, meta);
        assert_eq!(refused["_meta"]["dev.pathbox/error"]["code"], "idempotency_conflict", "{refused}");
    }
    drop(server);

    let add = ["keys", "add", "--json", "--name", "router", "--tenants", "acme"];
    let made = command(data.path()).args(add).output().unwrap().stdout;
    let made: Value = serde_json::from_slice(&made).unwrap();
    let bearer = format!("Bearer {}", made["key"].as_str().unwrap());
    let service = [("Authorization", bearer.as_str()), ("X-Tenant-Id", "acme")];
    let user = key(data.path(), "user");
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_AUTH", "required"));
    let once = || server.stateless(&service, "run_code", keyed("s", random), json!({})).answer();
    same(&once()["result"], &once()["result"]);
    let session = || {
        let mut session = server.session(&[("Authorization", user.as_str())]);
        session.call("run_code", keyed("u", random), json!({}))
    };
    same(&session(), &session());
}
