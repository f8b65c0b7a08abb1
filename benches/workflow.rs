//! A workflow of five tasks (tool, code, tool, code, tool) beside the same five called one by one: `cargo bench --bench workflow`.
//!
//! Prints milliseconds. A checkpoint is the time from the moment at which a task's end is written to the one at which the
//! next task's begin is: the result is durable in between. A resume is the time from `resume` to the next task's begin. Both
//! are of the events' own times. What a crash costs is the lease on the workflow beside (`contexts.replica_lease_seconds`).
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod stdio;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};

use stdio::Server;

/// Workflows that are measured.
const RUNS: usize = 30;

fn serve(data: &Path) -> Server {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/server.py");
    let config = format!("[[tools.server]]\nname = \"kit\"\ncommand = \"python3\"\nargs = [{tools:?}]\n");
    std::fs::write(data.join("pathbox.toml"), config).expect("written");
    Server::start(
        Command::new(env!("CARGO_BIN_EXE_pathbox"))
            .args(["serve", "--conversation", "c"])
            .env("PATHBOX_DATA_DIR", data)
            .env("PATHBOX_CONFIG", data.join("pathbox.toml"))
            .env("PATHBOX_LOG", "error")
            .env("PATHBOX_WORKFLOWS_ENABLED", "true")
            .env("PATHBOX_CONTEXTS_PER_TENANT", "1000")
            .env("PATHBOX_CONTEXTS_PER_CONVERSATION", "1000")
            .env("PATHBOX_HOST_MAX_SANDBOXES", "200"),
    )
}

fn call(server: &mut Server, tool: &str, arguments: &Value) -> Value {
    let answer = server.request("tools/call", &json!({"name": tool, "arguments": arguments}));
    let content = answer["result"]["structuredContent"].clone();
    assert!(content.is_object(), "{answer}");
    content
}

fn events(server: &mut Server, id: &Value) -> Vec<(String, f64)> {
    let shown = call(server, "get_workflow", &json!({"workflow_id": id, "events_after": 0}));
    let events = shown["events"].as_array().expect("events");
    let at = |event: &Value| {
        let at = chrono::DateTime::parse_from_rfc3339(event["at"].as_str().expect("a time")).expect("a time");
        at.timestamp_micros() as f64 / 1e3
    };
    events.iter().map(|event| (event["event"].as_str().unwrap_or_default().to_owned(), at(event))).collect()
}

/// The times between each event `from` and the event `to` right behind it.
fn gaps(events: &[(String, f64)], from: &str, to: &str) -> Vec<f64> {
    let pairs = events.windows(2).filter(|pair| pair[0].0 == from && pair[1].0 == to);
    pairs.map(|pair| pair[1].1 - pair[0].1).collect()
}

fn row(name: &str, mut samples: Vec<f64>, promised: &str) {
    samples.sort_by(f64::total_cmp);
    let at = |share: usize| samples[(samples.len() * share / 100).min(samples.len() - 1)];
    println!("{name:44} p50 {:9.3} ms   p95 {:9.3} ms   {promised}", at(50), at(95));
}

fn main() {
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let data = tempfile::tempdir().expect("a directory");
    let mut server = serve(data.path());
    let tasks = json!([
        {"id": "fetch", "type": "mcp_tool", "tool": "kit.echo", "arguments": {"value": [1, 2, 3]}},
        {"id": "count", "type": "code_execution", "code": "print(len(data['rows']))", "inputs": {"rows": {"from": "fetch"}}},
        {"id": "add", "type": "mcp_tool", "tool": "kit.add", "arguments": {"a": 39}, "inputs": {"b": {"from": "count"}}},
        {"id": "check", "type": "code_execution", "code": "print(data['sum'] == 42)", "inputs": {"sum": {"from": "add", "pointer": "/sum"}}},
        {"id": "tell", "type": "mcp_tool", "tool": "kit.echo", "inputs": {"value": {"from": "check"}}},
    ]);
    let (mut whole, mut checkpoints, mut resumes, mut single) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let began = Instant::now();
        let done = call(&mut server, "run_workflow", &json!({"tasks": tasks, "wait_ms": 55_000}));
        whole.push(began.elapsed().as_secs_f64() * 1e3);
        assert_eq!(done["status"], "completed", "{done}");
        checkpoints.extend(gaps(&events(&mut server, &done["workflowId"]), "completed", "started"));
    }
    for _ in 0..RUNS {
        let gate = json!([{"id": "a", "type": "mcp_tool", "tool": "kit.echo", "arguments": {"value": 1}, "approve": true}]);
        let id = call(&mut server, "run_workflow", &json!({"tasks": gate, "wait_ms": 55_000}))["workflowId"]
            .clone();
        for action in ["pause", "approve", "resume"] {
            call(&mut server, "control_workflow", &json!({"workflow_id": id, "action": action, "task": "a"}));
        }
        call(&mut server, "get_workflow", &json!({"workflow_id": id, "wait_ms": 55_000}));
        resumes.extend(gaps(&events(&mut server, &id), "resumed", "started"));
    }
    let steps = [
        ("from tools import kit\nrows = kit.echo(value=[1, 2, 3])\nprint(rows)", true),
        ("print(len(rows))", false),
        ("total = kit.add(a=39, b=3)\nprint(total)", true),
        ("print(total)", false),
        ("print(kit.echo(value=True))", true),
    ];
    for run in 0..RUNS {
        let began = Instant::now();
        for (code, takes_tools) in steps {
            let mut arguments = json!({"code": code, "language": "python"});
            if takes_tools {
                arguments["tools"] = json!(["kit.echo", "kit.add"]);
            }
            let meta = json!({"dev.pathbox/pathId": format!("one-by-one-{run}")});
            let params = json!({"name": "run_code", "arguments": arguments, "_meta": meta});
            let answer = server.request("tools/call", &params);
            assert_eq!(answer["result"]["structuredContent"]["success"], true, "{answer}");
        }
        single.push(began.elapsed().as_secs_f64() * 1e3);
    }
    row("a workflow of five tasks", whole, "promised: p95 3000");
    row("the same five, called one by one", single, "");
    row("checkpoint", checkpoints, "promised: 50");
    row("resume", resumes, "promised: 100");
}
