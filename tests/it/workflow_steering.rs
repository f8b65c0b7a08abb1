//! Time limits, paths, pauses and credentials of workflows, through the public doors.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::code_mode::Place;
use crate::support::http::HttpServer;
use crate::support::server::{Server, command};
use crate::workflows::{call, code, on, run, settle, state, states};

/// How long a test waits for what must come. It bounds a hang and measures nothing.
const PATIENCE: Duration = Duration::from_secs(60);

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn endless(id: &str, more: Value) -> Value {
    let mut task = code(id, "import time\ntime.sleep(600)", json!({"timeout_ms": 600_000}));
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task
}

fn begin(server: &mut Server, arguments: Value) -> String {
    let begun = call(server, "run_workflow", arguments);
    begun["structuredContent"]["workflowId"].as_str().unwrap_or_else(|| panic!("{begun}")).to_owned()
}

fn steer(server: &mut Server, id: &str, action: &str) -> Value {
    call(server, "control_workflow", json!({"workflow_id": id, "action": action}))
}

fn events(server: &mut Server, id: &str) -> Vec<Value> {
    let seen = call(server, "get_workflow", json!({"workflow_id": id, "events_after": 0}));
    seen["structuredContent"]["events"].as_array().unwrap_or_else(|| panic!("{seen}")).clone()
}

fn wait_for(server: &mut Server, id: &str, task: &str, wanted: &str) {
    until(&format!("{task} is not {wanted}"), || {
        let seen = call(server, "get_workflow", json!({"workflow_id": id}));
        (state(&seen["structuredContent"], task)["state"] == wanted).then_some(())
    });
}

#[test]
fn a_task_says_that_its_sandbox_had_lost_what_an_earlier_one_left_there() {
    let data = tempfile::tempdir().unwrap();
    let serve = || Server::start_with(on(&mut command(data.path())).arg("serve"));
    let mut server = serve();
    let tasks = json!([
        code("first", "x = 1\nprint(x)", json!({})),
        code("second", "print('x' in globals())", json!({"depends_on": ["first"], "approve": true})),
        code("third", "print(2)", json!({"depends_on": ["second"]})),
        code("last", "print(x)", json!({"depends_on": ["third"], "approve": true})),
    ]);
    let mut id = begin(&mut server, json!({"tasks": tasks}));
    for task in ["second", "last"] {
        assert_eq!(settle(&mut server, &id)["status"], "waiting");
        // A sandbox of the local host ends with its process.
        drop(server);
        server = serve();
        let approve = json!({"workflow_id": id, "action": "approve", "task": task});
        id = call(&mut server, "control_workflow", approve)["structuredContent"]["workflowId"]
            .as_str()
            .unwrap()
            .to_owned();
    }
    let shown = settle(&mut server, &id);
    let reason = |task: &str| state(&shown, task)["reason"].as_str().unwrap_or_default();
    assert_eq!(shown["results"]["second"], "False", "{shown:#}");
    assert!(reason("second").starts_with("state reset: "), "{shown:#}");
    assert_eq!((reason("first"), reason("third")), ("", ""), "{shown:#}");
    assert!(reason("last").contains("NameError") && reason("last").contains("state reset: "), "{shown:#}");
    let said = events(&mut server, &id);
    let said = said.iter().find(|event| event["task"] == "second" && event["event"] == "completed").unwrap();
    assert_eq!(said["reason"], reason("second"));
}

#[test]
fn a_task_whose_tool_server_does_not_answer_says_so_and_no_other_task_waits_for_it() {
    let silent = Place::new("--silent", "start_timeout_ms = 600000", "");
    let mut server = Server::start_with(on(&mut silent.command()).arg("serve"));
    let tool = |id: &str| json!({"id": id, "type": "mcp_tool", "tool": "kit.echo", "arguments": {"value": 1}, "effects": "none"});
    // One place, and the tool's task is the first in line for it.
    let tasks = json!([
        tool("held"),
        code("a", "print(1)", json!({})),
        code("b", "print(2)", json!({"depends_on": ["a"]}))
    ]);
    let id = begin(&mut server, json!({"tasks": tasks, "width": 1}));
    wait_for(&mut server, &id, "b", "succeeded");
    let seen = call(&mut server, "get_workflow", json!({"workflow_id": id}));
    let held = state(&seen["structuredContent"], "held");
    let reason = "waits for the tool server kit, which is starting";
    assert_eq!((&held["state"], &held["reason"]), (&json!("pending"), &json!(reason)), "{seen}");
    assert!(seen["content"][0]["text"].as_str().unwrap().contains(reason), "{seen}");
    let said = events(&mut server, &id);
    assert!(said.iter().any(|event| event["event"] == "delayed" && event["task"] == "held"), "{said:?}");
    // It can be steered meanwhile.
    let replan = json!({"workflow_id": id, "action": "replan", "drop": ["held"]});
    call(&mut server, "control_workflow", replan);
    let shown = settle(&mut server, &id);
    assert_eq!(
        (&shown["status"], &shown["results"]),
        (&json!("completed"), &json!({"a": 1, "b": 2})),
        "{shown}"
    );
}

#[test]
fn results_stand_in_the_order_of_the_plan_and_one_that_is_not_shown_is_named() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(on(&mut command(data.path())).arg("serve"));
    let tasks = json!([
        code("z", "print(1)", json!({})),
        code("large", "print('\"' + 'x' * 200_000 + '\"')", json!({})),
        code("a", "print(2)", json!({})),
    ]);
    let id = begin(&mut server, json!({"tasks": tasks}));
    settle(&mut server, &id);
    let seen = call(&mut server, "get_workflow", json!({"workflow_id": id}));
    let results = seen["structuredContent"]["results"].as_object().unwrap();
    assert_eq!(results.keys().collect::<Vec<_>>(), ["z", "a"], "{results:?}");
    let text = seen["content"][0]["text"].as_str().unwrap();
    let end = "z = 1\nlarge has a result of 200002 bytes, which is not shown: get_workflow with `task` gives it\na = 2\n";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn a_workflow_of_a_closed_path_is_refused_and_one_under_way_is_aborted() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(on(&mut command(data.path())));
    let v1 = |path: &str, body: Value| {
        let mut reply =
            server.send("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes());
        (reply.status, reply.answer())
    };
    let paths = "/v1/conversations/c/paths";
    for path in ["main", "side", "busy"] {
        assert!(v1(paths, json!({"path": path})).0 < 300);
    }
    let plan = |path: &str, key: &str| {
        json!({"tasks": [code("a", "print(1)", json!({})), code("b", "print(2)", json!({"approve": true}))],
            "conversation": "c", "path": path, "idempotency_key": key})
    };
    let (status, begun) = v1("/v1/workflows", plan("side", "k"));
    assert_eq!(status, 201, "{begun}");
    let steered = v1("/v1/workflows", plan("busy", "k2")).1["workflowId"].as_str().unwrap().to_owned();
    let shown = |wanted: &str| {
        until(wanted, || {
            let seen = server.send("GET", &format!("/v1/workflows/{steered}"), &[], b"").answer();
            (seen["status"] == wanted).then_some(())
        });
    };
    shown("waiting");
    for path in ["side", "busy"] {
        assert!(v1(&format!("{paths}/{path}/merge"), json!({"target": "main"})).0 < 300);
    }
    let (status, refused) = v1("/v1/workflows", plan("side", "another"));
    assert_eq!((status, &refused["error"]["code"]), (409, &json!("path_closed")), "{refused}");
    let meta = json!({"conversationId": "c", "pathId": "side"});
    let tasks = json!({"tasks": [code("a", "print(1)", json!({}))]});
    let refused = server.stateless(&[], "run_workflow", tasks, meta).answer();
    assert_eq!(refused["result"]["_meta"]["dev.pathbox/error"]["code"], "path_closed", "{refused}");
    // What was begun before is found under its key.
    let again = v1("/v1/workflows", plan("side", "k")).1;
    assert_eq!(again["workflowId"], begun["workflowId"], "{again}");
    let approve = json!({"action": "approve", "task": "b"});
    assert!(v1(&format!("/v1/workflows/{steered}/control"), approve).0 < 300);
    shown("aborted");
    let events = server.send("GET", &format!("/v1/workflows/{steered}/events"), &[], b"").text();
    assert!(events.contains("path busy is merged"), "{events}");
}

#[test]
fn a_task_that_a_quota_refuses_waits_for_what_others_have_reserved_and_for_nothing_else() {
    let data = tempfile::tempdir().unwrap();
    let serve = |name: &str, value: &str| {
        let mut command = command(data.path());
        command.env("PATHBOX_CONTEXTS_TTL_MINUTES", "1").env(name, value);
        HttpServer::start_with(on(&mut command))
    };
    let call = |server: &HttpServer, tool: &str, arguments: Value| {
        let meta = json!({"conversationId": "c", "pathId": "main"});
        server.stateless(&[], tool, arguments, meta).answer()["result"].take()
    };
    let held = json!({"code": "1", "language": "python"});
    let plan =
        json!({"tasks": [code("a", "print(1)", json!({"retry": {"max_attempts": 3, "backoff_ms": 0}}))]});
    let look = |server: &HttpServer, id: &Value| {
        call(server, "get_workflow", json!({"workflow_id": id, "wait_ms": 50_000}))["structuredContent"]
            .take()
    };

    // A context that lives holds a minute, and a task needs two and a half.
    let server = serve("PATHBOX_USAGE_QUOTA_SANDBOX_SECONDS", "180");
    call(&server, "run_code", held.clone());
    let begun = call(&server, "run_workflow", plan.clone())["structuredContent"]["workflowId"].take();
    until("the task does not wait", || {
        server.log().contains("a task waits for what is reserved").then_some(())
    });
    call(&server, "manage_context", json!({"action": "end"}));
    let shown = look(&server, &begun);
    assert_eq!((&shown["results"]["a"], &state(&shown, "a")["attempt"]), (&json!(1), &json!(1)), "{shown:#}");
    drop(server);

    let server = serve("PATHBOX_USAGE_QUOTA_EXECUTIONS", "1");
    let refused = call(&server, "run_code", held)["content"][0]["text"].take();
    let refused = refused.as_str().unwrap();
    assert!(refused.ends_with("(code: quota_reached)") && !refused.contains("Reservations"), "{refused}");
    let begun = call(&server, "run_workflow", plan)["structuredContent"]["workflowId"].take();
    let shown = look(&server, &begun);
    let reason = state(&shown, "a")["reason"].as_str().unwrap();
    assert!(reason.contains("quota of runs") && reason.ends_with("(code: quota_reached)"), "{shown:#}");
    assert_eq!(state(&shown, "a")["attempt"], 1, "the same call is refused again: {shown:#}");
}

#[test]
fn an_idempotency_key_has_the_length_that_it_has_everywhere() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(on(&mut command(data.path())));
    for (length, status) in [(255, 201), (256, 422)] {
        let body = json!({"tasks": [code("a", "print(1)", json!({}))], "conversation": "c", "idempotency_key": "é".repeat(length)});
        let headers = [("Content-Type", "application/json")];
        let mut reply = server.send("POST", "/v1/workflows", &headers, body.to_string().as_bytes());
        let answer = reply.answer();
        assert_eq!(reply.status, status, "{length}: {answer}");
    }
}

#[test]
fn a_task_and_a_workflow_that_take_too_long_are_ended_and_say_so() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(on(&mut command(data.path())).arg("serve"));
    let shown = run(
        &mut server,
        json!({"tasks": [
            endless("slow", json!({"timeout_ms": 1_000, "path": "fresh", "on_error": "continue"})),
            code("end", "print(data['slow'])", json!({"inputs": {"slow": {"from": "slow", "default": "none"}}})),
        ]}),
    );
    assert_eq!(
        (&shown["status"], &shown["results"]["end"]),
        (&json!("completed"), &json!("none")),
        "{shown:#}"
    );
    assert_eq!(state(&shown, "slow")["reason"], "it did not end within 1000 ms");
    let shown = run(
        &mut server,
        json!({"timeout_ms": 3_000, "tasks": [endless("slow", json!({})), code("end", "print(1)", json!({"depends_on": ["slow"]}))]}),
    );
    assert_eq!(shown["status"], "aborted", "{shown:#}");
    // On a busy machine its time may be over before its first task has begun.
    assert_eq!(states(&shown), [("slow".into(), "aborted".into()), ("end".into(), "aborted".into())]);
    let events = events(&mut server, shown["workflowId"].as_str().unwrap());
    let aborting = events.iter().find(|event| event["event"] == "aborting").unwrap();
    assert_eq!(aborting["by"], "the time limit of the workflow");
}

#[test]
fn a_named_path_is_the_conversations_own_before_and_after() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(on(&mut command(data.path())).arg("serve"));
    let at = |path: &str| json!({"dev.pathbox/pathId": path});
    server.call(json!({"code": "before = 20", "language": "python"}), at("work"));
    let shown = run(
        &mut server,
        json!({"tasks": [
            code("use", "after = before + 1\nprint(after)", json!({"path": "work"})),
            code("again", "after = after * 2\nprint(after)", json!({"path": "work"})),
            code("elsewhere", "print('after' in globals())", json!({"depends_on": ["again"]})),
        ]}),
    );
    assert_eq!(shown["results"], json!({"use": 21, "again": 42, "elsewhere": "False"}), "{shown:#}");
    let left = server.call(json!({"code": "after", "language": "python"}), at("work"));
    assert_eq!(left["structuredContent"]["output"], "42", "{left}");
}

#[test]
fn the_sandbox_of_a_workflow_ends_with_it_and_holds_no_place() {
    let data = tempfile::tempdir().unwrap();
    let one = [("PATHBOX_CONTEXTS_PER_CONVERSATION", "1")];
    let mut server = Server::start_with(on(&mut command(data.path())).envs(one).arg("serve"));
    for (program, end) in [("print(1)", "completed"), ("1/0", "failed"), ("print(2)", "completed")] {
        let shown = run(&mut server, json!({"tasks": [code("a", program, json!({}))]}));
        assert_eq!(shown["status"], end, "{shown:#}");
    }
    let free = server.python("print('free')");
    assert_eq!(free["structuredContent"]["stdout"], "free\n", "{free}");
}

/// A service's other calls make room among what no caller has claimed; a workflow's sandbox is the workflow's while it lasts.
#[test]
fn the_sandbox_of_a_services_workflow_is_not_unclaimed() {
    let data = tempfile::tempdir().unwrap();
    let add = ["keys", "add", "--json", "--name", "router", "--tenants", "acme"];
    let made = command(data.path()).args(add).output().unwrap().stdout;
    let made: Value = serde_json::from_slice(&made).unwrap();
    let bearer = format!("Bearer {}", made["key"].as_str().unwrap());
    let headers = [("Authorization", bearer.as_str()), ("X-Tenant-Id", "acme")];
    let mut starting = command(data.path());
    on(&mut starting).env("PATHBOX_HTTP_AUTH", "required").env("PATHBOX_CONTEXTS_PER_TENANT", "2");
    let server = HttpServer::start_with(&mut starting);
    let call = |tool: &str, arguments: Value| {
        server.stateless(&headers, tool, arguments, json!({})).answer()["result"]["structuredContent"].take()
    };
    let tasks = json!([
        code("a", "kept = 7\nprint(kept)", json!({})),
        code("b", "print(kept)", json!({"depends_on": ["a"], "approve": true})),
    ]);
    let waiting = call("run_workflow", json!({"tasks": tasks, "wait_ms": 50_000}));
    assert_eq!(waiting["status"], "waiting", "{waiting:#}");
    for n in 0..3 {
        let ran = call("run_code", json!({"code": format!("print({n})"), "language": "python"}));
        assert_eq!(ran["stdout"], format!("{n}\n"), "{ran}");
    }
    let id = &waiting["workflowId"];
    call("control_workflow", json!({"workflow_id": id, "action": "approve", "task": "b"}));
    let shown = call("get_workflow", json!({"workflow_id": id, "wait_ms": 50_000}));
    assert_eq!(shown["results"]["b"], 7, "{shown:#}");
}

#[test]
fn a_paused_workflow_begins_nothing_until_it_is_resumed() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(on(&mut command(data.path())).arg("serve"));
    // Paused before anything ran: what is approved meanwhile waits.
    let id = begin(
        &mut server,
        json!({"tasks": [code("a", "print(1)", json!({"approve": true})), code("b", "print(data['a'] + 1)", json!({"inputs": {"a": {"from": "a"}}}))]}),
    );
    wait_for(&mut server, &id, "a", "approval");
    assert_eq!(steer(&mut server, &id, "pause")["structuredContent"]["status"], "paused");
    let approved =
        call(&mut server, "control_workflow", json!({"workflow_id": id, "action": "approve", "task": "a"}));
    assert_eq!(approved["structuredContent"]["status"], "paused", "{approved}");
    assert_eq!(state(&approved["structuredContent"], "a")["state"], "pending");
    let twice = steer(&mut server, &id, "pause");
    assert_eq!(twice["_meta"]["dev.pathbox/error"]["code"], "workflow_state", "{twice}");
    let seen: Vec<Value> = events(&mut server, &id).iter().map(|event| event["event"].clone()).collect();
    assert_eq!(seen, ["planned", "waiting", "paused", "approved"]);
    steer(&mut server, &id, "resume");
    let shown = settle(&mut server, &id);
    assert_eq!(shown["results"], json!({"a": 1, "b": 2}), "{shown:#}");

    // Paused while a task runs: that one goes on, the next does not begin.
    let id = begin(
        &mut server,
        json!({"width": 1, "tasks": [endless("long", json!({})), code("next", "print(1)", json!({"path": "fresh"}))]}),
    );
    wait_for(&mut server, &id, "long", "running");
    assert_eq!(steer(&mut server, &id, "pause")["structuredContent"]["status"], "pausing");
    assert_eq!(steer(&mut server, &id, "resume")["structuredContent"]["status"], "running");
    assert_eq!(steer(&mut server, &id, "pause")["structuredContent"]["status"], "pausing");
    steer(&mut server, &id, "abort");
    let shown = settle(&mut server, &id);
    assert_eq!(shown["status"], "aborted", "{shown:#}");
    let started = events(&mut server, &id).iter().filter(|event| event["event"] == "started").count();
    assert_eq!(started, 1, "the next one began in a pause");
}

#[test]
fn a_revoked_key_ends_the_workflows_that_it_began() {
    let place = Place::new("", "", "");
    let data = place.path("data");
    let key = |arguments: &[&str]| {
        let made = command(&data).args(["keys", "add", "--json"]).args(arguments).output().unwrap();
        let made: Value = serde_json::from_slice(&made.stdout).unwrap();
        (made["id"].as_str().unwrap().to_owned(), format!("Bearer {}", made["key"].as_str().unwrap()))
    };
    let (ann_id, ann) = key(&["--name", "ann", "--tenant", "acme"]);
    let (_, service) = key(&["--name", "router", "--tenants", "acme"]);
    let mut served = place.command();
    on(&mut served).env("PATHBOX_HTTP_AUTH", "required");
    let server = HttpServer::start_with(&mut served);
    let send = |who: &str, method: &str, path: &str, body: Value| {
        let headers = [("Authorization", who), ("X-Tenant-Id", "acme"), ("Content-Type", "application/json")];
        let mut reply = server.send(method, path, &headers, body.to_string().as_bytes());
        (reply.status, serde_json::from_str::<Value>(&reply.text()).unwrap())
    };
    let begin = |tasks: Value| {
        let (status, begun) =
            send(&ann, "POST", "/v1/workflows", json!({"conversation": "c", "tasks": tasks}));
        assert_eq!(status, 201, "{begun}");
        format!("/v1/workflows/{}", begun["workflowId"].as_str().unwrap())
    };
    let show = |at: &str| send(&service, "GET", at, json!({})).1;
    let running = begin(json!([
        endless("long", json!({"path": "fresh"})),
        {"id": "call", "type": "mcp_tool", "tool": "kit.echo", "arguments": {"value": 1}, "depends_on": ["long"]},
    ]));
    let waiting = begin(json!([
        {"id": "call", "type": "mcp_tool", "tool": "kit.echo", "arguments": {"value": 1}, "approve": true},
    ]));
    until("its first task does not run", || {
        (state(&show(&running), "long")["state"] == "running").then_some(())
    });
    until("it does not wait", || (show(&waiting)["status"] == "waiting").then_some(()));
    assert!(command(&data).args(["keys", "revoke", &ann_id]).status().unwrap().success());
    until("what runs is not stopped", || (show(&running)["status"] == "aborted").then_some(()));
    let (status, said) =
        send(&service, "POST", &format!("{waiting}/control"), json!({"action": "approve", "task": "call"}));
    assert_eq!(status, 200, "{said}");
    until("what was approved goes on", || (show(&waiting)["status"] == "aborted").then_some(()));
    assert_eq!(place.calls("echo").len(), 0, "a revoked key called a tool");
    let mut reply = server.send(
        "GET",
        &format!("{waiting}/events"),
        &[("Authorization", &service), ("X-Tenant-Id", "acme")],
        b"",
    );
    assert!(reply.text().contains(&format!("API key {ann_id} is revoked or expired")));
}

#[test]
fn a_waiting_caller_gets_progress() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(on(&mut command(data.path())).arg("serve"));
    let tasks =
        json!([code("quick", "print(1)", json!({})), endless("long", json!({"depends_on": ["quick"]}))]);
    let params = json!({"name": "run_workflow", "arguments": {"tasks": tasks, "wait_ms": 55_000}, "_meta": {"progressToken": "p"}});
    let asked = server.begin("tools/call", params);
    let end = Instant::now() + PATIENCE;
    let mut heard = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let message = server.next(left).unwrap_or_else(|| panic!("no progress: {heard:?}"));
        assert_ne!(message["id"], asked, "it was answered before: {heard:?}");
        assert_eq!(message["params"]["progressToken"], "p", "{message}");
        let said = message["params"]["message"].as_str().unwrap().to_owned();
        let arrived = said.starts_with("1 of 2 tasks have ended; running: long (");
        heard.push(said);
        if arrived {
            break;
        }
    }
}

/// Calls that were written from the tools' descriptions alone.
#[test]
fn workflows_that_were_written_from_the_description_alone_do_what_they_should() {
    let place = Place::new("", "", "");
    let mut server = Server::start_with(on(&mut place.command()).arg("serve"));
    for line in include_str!("../fixtures/workflow-calls.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let name = &case["name"];
        let mut shown = run(&mut server, case["arguments"].clone());
        for steering in case["steer"].as_array().unwrap() {
            let mut steering = steering.clone();
            steering["workflow_id"] = shown["workflowId"].clone();
            let steered = call(&mut server, "control_workflow", steering);
            assert!(steered["_meta"]["dev.pathbox/error"].is_null(), "{name}: {steered}");
            shown = settle(&mut server, shown["workflowId"].as_str().unwrap());
        }
        assert_eq!(shown["status"], case["status"], "{name}: {shown:#}");
        for (task, result) in case["results"].as_object().unwrap() {
            assert_eq!(shown["results"][task], *result, "{name}: {task}: {shown:#}");
        }
    }
}

/// Two tenants, and a person of one of them: each computes for itself what another has computed already.
#[test]
fn a_hermetic_task_runs_once_for_each_tenant_and_principal_and_says_so() {
    let data = tempfile::tempdir().unwrap();
    let key = |name: &str, tenant: &str| {
        let made = command(data.path())
            .args(["keys", "add", "--json", "--name", name, "--tenant", tenant])
            .output()
            .unwrap();
        let made: Value = serde_json::from_slice(&made.stdout).unwrap();
        format!("Bearer {}", made["key"].as_str().unwrap())
    };
    let (ann, bob, eve) = (key("ann", "acme"), key("bob", "acme"), key("eve", "evil"));
    let mut served = command(data.path());
    on(&mut served).env("PATHBOX_HTTP_AUTH", "required");
    let server = HttpServer::start_with(&mut served);
    let call = |who: &str, tool: &str, arguments: Value| {
        let meta = json!({"dev.pathbox/conversationId": "c"});
        let answer = server.stateless(&[("Authorization", who)], tool, arguments, meta).answer();
        let result = &answer["result"]["structuredContent"];
        assert!(result["workflowId"].is_string(), "{answer}");
        result.clone()
    };
    let random = |more: Value| {
        // What it gives shows whether it ran.
        let mut task = code(
            "a",
            "import uuid\nprint(data['n'], uuid.uuid4())",
            json!({"hermetic": true, "inputs": {"n": {"value": 1}}}),
        );
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"tasks": [task]})
    };
    let of = |who: &str, arguments: Value| {
        let mut shown = call(who, "run_workflow", arguments);
        until("it does not end", || {
            shown = call(who, "get_workflow", json!({"workflow_id": shown["workflowId"], "wait_ms": 5_000}));
            (shown["status"] == "completed").then_some(())
        });
        let cached = state(&shown, "a")["cached"] == true;
        (
            shown["results"]["a"].as_str().unwrap().to_owned(),
            cached,
            state(&shown, "a")["executionId"].clone(),
        )
    };
    let first = of(&ann, random(json!({})));
    assert!(!first.1, "{first:?}");
    assert_eq!(
        of(&ann, random(json!({}))),
        (first.0.clone(), true, first.2.clone()),
        "an equal one runs again"
    );
    let mut seen = vec![first.0];
    for (who, more) in [
        (&bob, json!({})),
        (&eve, json!({})),
        (&ann, json!({"inputs": {"n": {"value": 2}}})),
        (&ann, json!({"code": "import uuid\nprint(data['n'], uuid.uuid4() )"})),
        (&ann, json!({"hermetic": false, "path": "fresh"})),
    ] {
        let (result, cached, _) = of(who, random(more.clone()));
        assert!(!cached && !seen.contains(&result), "{more}: {result}");
        seen.push(result);
    }
    // In what the guard has changed are numbers of one path: it is not kept.
    let person = "print('ann.example@example.com')";
    for _ in 0..2 {
        assert!(!of(&ann, random(json!({"code": person}))).1, "a placeholder is kept");
    }
    let cache = |arguments: &[&str]| {
        let output = command(data.path()).arg("cache").args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let listed: Value = serde_json::from_str(&cache(&["ls", "--json", "--tenant", "acme"])).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 4, "{listed:#}");
    let hits: u64 = listed.as_array().unwrap().iter().map(|entry| entry["hits"].as_u64().unwrap()).sum();
    assert_eq!(hits, 1, "{listed:#}");
    let table = cache(&["ls", "--tenant", "evil"]);
    assert!(table.contains("hits") && table.contains("python"), "{table}");
    assert_eq!(cache(&["clear", "--tenant", "acme", "--json"]).replace([' ', '\n'], ""), "{\"dropped\":4}");
    assert!(!of(&ann, random(json!({}))).1, "it was dropped");
    let kept: Value = serde_json::from_str(&cache(&["ls", "--json", "--tenant", "evil"])).unwrap();
    assert_eq!(kept.as_array().unwrap().len(), 1, "another tenant's stay");
}

#[test]
fn a_file_of_one_task_is_there_for_another_in_a_sandbox_of_its_own() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(on(&mut command(data.path())).arg("serve"));
    let write = "open('rows.csv', 'w').write('n\\n1\\n2\\n')\nprint('written')";
    let tasks = json!([
        code("write", write, json!({"path": "fresh", "files": ["rows.csv"]})),
        code(
            "read",
            "print(len(open(data['rows']).read().split()), data['rows'])",
            json!({"path": "fresh", "inputs": {"rows": {"from": "write", "artifact": "rows.csv"}}})
        ),
        code(
            "none",
            "print(1)",
            json!({"on_error": "continue", "inputs": {"x": {"from": "write", "artifact": "other.csv"}}})
        ),
        code(
            "either",
            "print(data['x'])",
            json!({"inputs": {"x": {"from": "write", "artifact": "other.csv", "default": "none"}}})
        ),
        code("lost", "print(1)", json!({"path": "fresh", "files": ["missing.csv"], "on_error": "continue"})),
    ]);
    let shown = run(&mut server, json!({"tasks": tasks}));
    assert_eq!(shown["status"], "completed", "{shown:#}");
    assert_eq!(shown["results"]["read"], "3 /tmp/inputs/write/rows.csv", "{shown:#}");
    assert_eq!(shown["results"]["either"], "none");
    let uri = state(&shown, "write")["artifacts"]["rows.csv"].as_str().unwrap();
    assert!(uri.starts_with("pathbox://executions/"), "{uri}");
    assert_eq!(
        state(&shown, "none")["reason"],
        "input `x`: `write` left no file \"other.csv\"; it left rows.csv"
    );
    assert_eq!(state(&shown, "lost")["state"], "failed");
    let read = server.request("resources/read", json!({"uri": uri}));
    assert!(read["result"]["contents"][0].to_string().contains("n\\n1\\n2"), "{read}");
    for (task, said) in [
        (code("a", "1", json!({"files": ["a/.x"]})), "`files`: a path ends in a name"),
        (code("a", "1", json!({"files": ["a/x", "b/x"]})), "two are called x"),
        (
            code("a", "1", json!({"hermetic": true, "path": "own"})),
            "`hermetic` is for code in a fresh sandbox",
        ),
        (code("a", "1", json!({"inputs": {"x": {"value": 1, "artifact": "x"}}})), "need `from`"),
    ] {
        let refused = call(&mut server, "run_workflow", json!({"tasks": [task]}));
        assert!(refused.to_string().contains(said), "{refused}");
    }
}
