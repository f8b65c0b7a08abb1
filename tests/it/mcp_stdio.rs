//! MCP over standard input and output, in raw messages: what a client must be able to count on.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::server::{Server, alive, command, processes_of};

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

#[test]
fn a_variable_is_kept_in_its_path_and_unknown_in_another() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let first = server.python("x = 20\nprint('hello')\nx + 1");
    let content = &first["structuredContent"];
    assert_eq!(content["stdout"], "hello\n", "{first}");
    assert_eq!(
        (&content["output"], &content["state"], &content["exitCode"]),
        (&json!("21"), &json!("fresh"), &json!(0))
    );
    assert!(first.get("isError").is_none());
    assert_eq!(first["_meta"]["dev.pathbox/pathId"], "main");

    let second = server.python("x + 2");
    assert_eq!(second["structuredContent"]["output"], "22");
    assert_eq!(second["structuredContent"]["state"], "kept");

    let branch =
        server.call(json!({"code": "x", "language": "python"}), json!({"dev.pathbox/pathId": "what-if"}));
    let content = &branch["structuredContent"];
    assert_eq!(content["error"]["name"], "NameError", "{branch}");
    assert!(content["error"]["traceback"].as_str().unwrap().contains("NameError"));
    assert_eq!((&content["success"], &content["exitCode"]), (&json!(false), &json!(1)));
    assert!(branch.get("isError").is_none(), "a program that fails is a normal result");

    // The handle of a result leads back to its context, also from another conversation.
    let handle = first["structuredContent"]["context"].as_str().unwrap();
    let arguments = json!({"code": "x", "language": "python", "context": handle});
    assert_eq!(server.call(arguments, json!({}))["structuredContent"]["output"], "20");
}

#[test]
fn two_chats_on_one_process_do_not_see_each_other() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let code = |code: &str| json!({"code": code, "language": "python"});
    for chat in ["a", "b"] {
        server.call(code(&format!("me = '{chat}'")), json!({"conversationId": chat}));
    }
    for chat in ["a", "b"] {
        let result = server.call(code("me"), json!({"conversationId": chat}));
        assert_eq!(result["structuredContent"]["output"], chat);
    }
}

#[test]
fn bad_arguments_are_tool_errors_that_name_the_argument() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let big = "x".repeat(100 * 1024 + 1);
    for (arguments, meta, expected) in [
        (json!({"code": "", "language": "python"}), json!({}), "code is empty"),
        (json!({"code": " \n", "language": "python"}), json!({}), "code is empty"),
        (json!({"code": big, "language": "python"}), json!({}), "code is 102401 bytes"),
        (json!({"code": "1", "language": "cobol"}), json!({}), "argument `language`"),
        (json!({"code": "1"}), json!({}), "argument `language` is missing"),
        (json!({"code": "1", "language": "python", "timeout_ms": 1}), json!({}), "1000 to 600000"),
        (json!({"code": "1", "language": "python", "timeout_ms": "x"}), json!({}), "argument `timeout_ms`"),
        (
            json!({"code": "1", "language": "python", "context": "ctx_forged"}),
            json!({}),
            "nknown context handle",
        ),
        (
            json!({"code": "1", "language": "python"}),
            json!({"conversationId": 7}),
            "`conversationId`: is not a string",
        ),
        (
            json!({"code": "1", "language": "python"}),
            json!({"dev.pathbox/pathId": "a/b"}),
            "`dev.pathbox/pathId`",
        ),
        (json!({"code": "1", "language": "python"}), json!({"tenantId": "acme"}), "another tenant"),
    ] {
        let result = server.call(arguments, meta);
        assert_eq!(result["isError"], true, "{expected}: {result}");
        assert!(text(&result).contains(expected), "{expected}: {}", text(&result));
        assert!(result.get("structuredContent").is_none(), "clients hold errors against the output schema");
        assert!(result["_meta"]["dev.pathbox/error"]["code"].is_string());
    }
    assert_eq!(server.python("1")["structuredContent"]["output"], "1", "the server goes on");
}

#[test]
fn broken_messages_are_answered_as_json_rpc_says_and_the_server_goes_on() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::raw(command(data.path()).arg("serve"));
    // A notification before the first request must not end the process.
    server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    server.send_line("this is not json");
    assert_eq!(server.next(Duration::from_secs(20)).unwrap()["error"]["code"], -32700);
    server.send_line("[]");
    assert_eq!(server.next(Duration::from_secs(20)).unwrap()["error"]["code"], -32600);
    // JavaScript writes the half of a cut emoji so. Its sender waits for an answer to this id.
    server.send_line(r#"{"jsonrpc":"2.0","method":"ping","params":{"x":["\ud83d"]},"id":"half"}"#);
    let refused = server.next(Duration::from_secs(20)).unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("half"), &json!(-32600)), "{refused}");
    server.send_line(&format!("{{\"x\": \"{}\"}}", "y".repeat(17 * 1024 * 1024)));
    assert_eq!(server.next(Duration::from_secs(20)).unwrap()["error"]["code"], -32600);
    server.send_line("");
    server.send(&json!({"jsonrpc": "2.0", "method": "notifications/no-such-thing", "params": {"a": 1}}));
    server.send(&json!({"jsonrpc": "2.0", "id": 900, "method": "tools/call", "params": {"name": 5}}));
    let answer = server.next(Duration::from_secs(20)).unwrap();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(900), &json!(-32602)), "{answer}");
    drop(server);

    let mut server = Server::start(data.path());
    let answer = server.request("tools/call", json!({"name": "no_such_tool", "arguments": {}}));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("run_code"));
    assert_eq!(server.python("1")["structuredContent"]["output"], "1");
}

#[test]
fn an_id_that_is_still_in_flight_is_refused_and_the_first_call_is_answered() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let call = json!({"jsonrpc": "2.0", "id": "same", "method": "tools/call", "params":
        {"name": "run_code", "arguments": {"code": "import time; time.sleep(1); 'done'", "language": "python"}}});
    server.send(&call);
    server.send(&call);
    let refused = server.next(Duration::from_secs(20)).unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("same"), &json!(-32600)), "{refused}");
    let answered = server.next(Duration::from_secs(30)).unwrap();
    assert_eq!(answered["result"]["structuredContent"]["output"], "done", "{answered}");
}

#[test]
fn cancelling_interrupts_an_endless_loop_and_keeps_the_state() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    server.python("kept = 1");
    let params = json!({"name": "run_code", "arguments": {"code": "while True: pass", "language": "python"},
        "_meta": {"progressToken": "p"}});
    let id = server.begin("tools/call", params);
    // Progress says when it runs.
    let first = server.next(Duration::from_secs(20)).unwrap();
    assert_eq!(first["method"], "notifications/progress", "{first}");
    assert_eq!(first["params"]["progressToken"], "p");
    std::thread::sleep(Duration::from_millis(700));
    server.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    let after = server.python("kept + 1");
    assert_eq!(after["structuredContent"]["output"], "2", "{after}");
    assert!(server.seen.iter().all(|message| message["id"] != id), "a cancelled request is not answered");
}

#[test]
fn a_run_that_takes_too_long_is_interrupted_and_says_so() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    server.python("kept = 1");
    let code = "print('before', flush=True)\nwhile True: pass";
    let result = server.call(json!({"code": code, "language": "python", "timeout_ms": 1000}), json!({}));
    let content = &result["structuredContent"];
    assert_eq!(
        (&content["exitCode"], &content["error"]["name"]),
        (&json!(124), &json!("timeout")),
        "{result}"
    );
    assert_eq!(content["stdout"], "before\n");
    let after = server.python("kept");
    assert_eq!(after["structuredContent"]["output"], "1", "{after}");
}

#[test]
fn personal_data_is_redacted_in_output_results_and_tracebacks() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let code = "import sys\nprint('mail a.b@example.com')\nprint('card 4111111111111111', file=sys.stderr)\n\
        who = 'IE29AIBK93115212345678'\nraise ValueError('about a.b@example.com and ' + who)";
    let result = server.python(code);
    let whole = result.to_string();
    for secret in ["a.b@example.com", "4111111111111111", "IE29AIBK93115212345678"] {
        assert!(!whole.contains(secret), "{secret} came through: {whole}");
    }
    let content = &result["structuredContent"];
    assert_eq!(content["stdout"], "mail [EMAIL_1]\n");
    assert!(
        content["error"]["message"].as_str().unwrap().contains("[EMAIL_1]"),
        "the same value, the same number"
    );
    assert!(content["guard"]["findings"]["EMAIL"].as_u64().unwrap() >= 2, "{content}");
    let value = server.python("{'a.b@example.com': 4111111111111111, 'n': 12.50}");
    let output: Value = serde_json::from_str(value["structuredContent"]["output"].as_str().unwrap()).unwrap();
    assert_eq!(output["n"], 12.50);
    assert!(!value.to_string().contains("4111111111111111"), "{value}");
}

#[test]
fn a_flood_of_output_is_bounded_and_counted() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let code = "line = 'x' * 99 + '\\n'\nfor _ in range(310_000): print(line, end='')";
    let result = server.python(code);
    let content = &result["structuredContent"];
    assert_eq!(
        (&content["success"], &content["truncated"]),
        (&json!(true), &json!(true)),
        "{}",
        content["error"]
    );
    let stdout = content["stdout"].as_str().unwrap();
    assert!(stdout.chars().count() < 51_000);
    assert!(stdout.contains("of 31000000 characters left out"), "exact counts");
    assert!(result.to_string().len() < 1_000_000, "hosts refuse more");
    let artifact = &content["artifacts"][0];
    assert_eq!((&artifact["name"], &artifact["bytes"]), (&json!("stdout"), &json!(31_000_000)));
}

#[test]
fn the_server_ends_soon_after_its_input_and_leaves_no_process() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    server.python("import subprocess; p = subprocess.Popen(['sleep', '1000'])");
    server.begin(
        "tools/call",
        json!({"name": "run_code",
        "arguments": {"code": "while True: pass", "language": "python"}}),
    );
    std::thread::sleep(Duration::from_millis(300));
    let children = processes_of(server.child.id());
    assert!(!children.is_empty(), "there is something to clean up");
    server.close_stdin();
    let status = server.wait(Duration::from_secs(10)).expect("it ends");
    assert!(status.success());
    std::thread::sleep(Duration::from_millis(200));
    let left: Vec<u32> = children.into_iter().filter(|pid| alive(*pid)).collect();
    assert!(left.is_empty(), "{left:?} are left");
}

#[test]
fn a_run_that_kills_its_interpreter_is_distinguished_from_one_that_lost_the_variables() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    server.python("x = 1");
    let result = server.python("x = 2\nimport os; os._exit(3)");
    let content = &result["structuredContent"];
    assert_eq!(content["state"], "rolled_back", "{result}");
    let told = result["content"][0]["text"].as_str().unwrap();
    assert!(told.contains("files are as it left them") && !told.contains("gone"), "{told}");
    assert!(content["stateReason"].as_str().unwrap().contains("variables are those from before"), "{result}");
    assert_eq!(content["success"], false);
    let result = server.python("x");
    assert_eq!(
        (&result["structuredContent"]["state"], &result["structuredContent"]["output"]),
        (&json!("kept"), &json!("1")),
        "{result}"
    );

    let mut server = Server::start_with(
        command(data.path())
            .args(["serve", "--conversation", "other"])
            .env("PATHBOX_HOST_CHECKPOINT_MB", "0"),
    );
    server.python("x = 1");
    let result = server.python("import os; os._exit(3)");
    assert_eq!(result["structuredContent"]["state"], "reset", "{result}");
    assert_eq!(server.python("x")["structuredContent"]["error"]["name"], "NameError");
}

#[test]
fn a_run_that_ignores_interrupts_is_killed_at_its_timeout_and_earlier_variables_remain() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    server.python("x = 1");
    let result = server.call(
        json!({"code": "x = 2; sum(range(10**12))", "language": "python", "timeout_ms": 1500}),
        json!({}),
    );
    let content = &result["structuredContent"];
    assert_eq!(
        (&content["state"], &content["error"]["name"]),
        (&json!("rolled_back"), &json!("timeout")),
        "{result}"
    );
    assert_eq!(server.python("x")["structuredContent"]["output"], "1");
}

#[test]
fn a_killed_server_leaves_no_process_and_its_successor_starts_afresh() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(command(data.path()).args(["serve", "--conversation", "c"]));
    server.python("x = 1");
    let children = processes_of(server.child.id());
    assert!(!children.is_empty());
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let left: Vec<u32> = children.into_iter().filter(|pid| alive(*pid)).collect();
    assert!(left.is_empty(), "{left:?} are left");

    let mut server = Server::start_with(command(data.path()).args(["serve", "--conversation", "c"]));
    let result = server.python("x");
    let content = &result["structuredContent"];
    assert_eq!(
        (&content["state"], &content["error"]["name"]),
        (&json!("reset"), &json!("NameError")),
        "{result}"
    );
    assert!(content["stateReason"].is_string());
}

#[test]
fn code_execution_can_be_switched_off() {
    let data = tempfile::tempdir().unwrap();
    let mut server =
        Server::start_with(command(data.path()).env("PATHBOX_CODE_EXECUTION", "false").arg("serve"));
    assert_eq!(server.request("tools/list", json!({}))["result"]["tools"], json!([]));
}

#[test]
fn a_data_directory_that_cannot_be_used_is_named_and_the_server_still_answers() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut server = Server::start_with(command(&file.join("below")).arg("serve"));
    assert_eq!(server.request("tools/list", json!({}))["result"]["tools"][0]["name"], "run_code");
    let result = server.python("1");
    assert_eq!(result["isError"], true);
    assert!(text(&result).contains("data directory"), "{}", text(&result));
}

#[test]
fn a_database_that_does_not_answer_is_a_clear_retryable_error() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(
        command(data.path()).env("DATABASE_URL", "postgres://u:hunter2secret@127.0.0.1:9/x").arg("serve"),
    );
    let result = server.python("1");
    assert_eq!(result["isError"], true, "{result}");
    assert_eq!(result["_meta"]["dev.pathbox/error"], json!({"code": "store_unavailable", "retryable": true}));
    assert!(!result.to_string().contains("hunter2secret"));
}

#[test]
fn logs_hold_neither_code_nor_output_nor_keys() {
    let data = tempfile::tempdir().unwrap();
    let log = data.path().join("log");
    let mut server = Server::start_with(
        command(data.path())
            .env("PATHBOX_LOG", "trace")
            .arg("serve")
            .stderr(std::process::Stdio::from(std::fs::File::create(&log).unwrap())),
    );
    let result =
        server.python("planted = 'canary-' + str(7 * 191)\nprint(planted)\nraise ValueError(planted)");
    assert!(result["structuredContent"]["stdout"].as_str().unwrap().contains("canary-1337"));
    server.close_stdin();
    server.wait(Duration::from_secs(10));
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("execution_context"), "there are spans in the log");
    for secret in ["canary-1337", "planted = "] {
        assert!(!log.contains(secret), "`{secret}` is in the log");
    }
}

#[test]
fn a_batch_is_answered_in_the_one_revision_that_has_them() {
    let data = tempfile::tempdir().unwrap();
    let batch = json!([
        {"jsonrpc": "2.0", "id": "a", "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "b", "method": "tools/list"},
        7
    ]);
    for (version, takes) in [("2025-03-26", true), ("2025-06-18", false)] {
        let mut server = Server::raw(command(data.path()).arg("serve"));
        let hello = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
        assert_eq!(server.request("initialize", hello)["result"]["protocolVersion"], version);
        server.send(&batch);
        let mut answers: Vec<Value> = (0..if takes { 3 } else { 1 })
            .map(|_| server.next(Duration::from_secs(60)).expect("an answer"))
            .collect();
        answers.sort_by_key(|answer| answer["id"].to_string());
        let seen: Vec<_> = answers.iter().map(|a| (&a["id"], a["error"]["code"].as_i64())).collect();
        match takes {
            true => assert_eq!(
                seen,
                [(&json!("a"), None), (&json!("b"), None), (&Value::Null, Some(-32600))],
                "{answers:?}"
            ),
            false => assert_eq!(seen, [(&Value::Null, Some(-32600))], "{answers:?}"),
        }
        if takes {
            server.send_line("[]");
            let empty = server.next(Duration::from_secs(60)).expect("an answer");
            assert_eq!(empty["error"]["code"], -32600, "{empty}");
        }
    }
}

#[test]
fn unknown_prompts_and_cursors_cannot_be_completed_or_paged() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let mut complete = |reference: Value, name: &str| {
        let params = json!({"ref": reference, "argument": {"name": name, "value": "p"}});
        server.request("completion/complete", params)
    };
    let run_code = json!({"type": "ref/prompt", "name": "run_code"});
    let known = complete(run_code.clone(), "language");
    assert_eq!(known["result"]["completion"]["values"], json!(["python"]), "{known}");
    let template = json!({"type": "ref/resource", "uri": "pathbox://executions/{id}/{name}"});
    assert_eq!(complete(template.clone(), "id")["result"]["completion"]["values"], json!([]));
    for (reference, name) in [
        (json!({"type": "ref/prompt", "name": "no_such_prompt"}), "language"),
        (run_code, "no_such_argument"),
        (json!({"type": "ref/resource", "uri": "pathbox://nothing"}), "name"),
        (template, "no_such_variable"),
    ] {
        let answer = complete(reference.clone(), name);
        assert_eq!(answer["error"]["code"], -32602, "{reference} {name}: {answer}");
    }
    for method in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
        let answer = server.request(method, json!({"cursor": "bogus"}));
        assert_eq!(answer["error"]["code"], -32602, "{method}: {answer}");
        assert!(server.request(method, json!({})).get("result").is_some(), "{method}");
    }
}

#[test]
fn a_run_that_is_under_way_may_finish_when_the_server_is_asked_to_end() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    server.python("1");
    let arguments = json!({"code": "import time; time.sleep(3); 'finished'", "language": "python"});
    let params = json!({"name": "run_code", "arguments": arguments, "_meta": {"progressToken": "t"}});
    let id = server.begin("tools/call", params);
    let progress = server.next(Duration::from_secs(60)).expect("it runs");
    assert_eq!(progress["method"], "notifications/progress", "{progress}");
    let pid = server.child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let answer = server.answer(id);
    assert_eq!(answer["result"]["structuredContent"]["output"], "finished", "{answer}");
    assert!(server.wait(Duration::from_secs(30)).expect("it ends").success());
}
