//! Real MCP clients and agent frameworks against the real server, each in its own process with nothing of ours in it.
//!
//! Their steps are in `tests/clients`. All of a transport run at once, each with a server of its own. The transports
//! take turns, because interpreters that start by the dozen make each other's time-outs expire.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::support::http::HttpServer;
use crate::support::server::command;

/// Which script runs in which test environment.
const CLIENTS: [(&str, &str); 7] = [
    ("mcp_v1.py", "mcp-1"),
    ("mcp_v2.py", "mcp-2"),
    ("mcp_v1.mjs", "mcp-js"),
    ("mcp_v2.mjs", "mcp-js"),
    ("inspector.mjs", "mcp-js"),
    ("langchain_agent.py", "langchain"),
    ("openai_agent.py", "openai-agents"),
];

/// Runs a script to its end; what it said when that was not `ok`.
pub(crate) fn fault(
    script: &str,
    environment: &str,
    transport: &str,
    target: &str,
    data: &Path,
) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let environment = root.join("target/test-env").join(environment);
    let program = match script.ends_with(".py") {
        true => environment.join("bin/python"),
        false => environment.join("node_modules/node/bin/node"),
    };
    let output = Command::new(&program)
        .arg(root.join("tests/clients").join(script))
        .args([transport, target])
        .arg(data)
        .current_dir(&environment)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let is_ok = output.status.success() && out.trim() == "ok";
    (!is_ok).then(|| format!("{script} over {transport} failed:\n{out}\n{err}"))
}

/// Runs every client over one transport.
fn all_over(transport: &str) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let faults: Vec<String> = std::thread::scope(|scope| {
        let running = CLIENTS.map(|(script, environment)| {
            scope.spawn(move || {
                // Each is a caller of its own: those that name no conversation would else share one.
                let data = tempfile::tempdir().unwrap();
                if transport == "stdio" {
                    return fault(script, environment, transport, env!("CARGO_BIN_EXE_pathbox"), data.path());
                }
                let server = HttpServer::start(data.path());
                let base = format!("http://{}", server.address);
                let fault = fault(script, environment, transport, &base, Path::new(""));
                fault.map(|fault| format!("{fault}\nthe server's log:\n{}", server.log()))
            })
        });
        running.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
#[ignore = "needs MCP clients in Python and JavaScript: scripts/test installs them"]
fn every_client_and_framework_works_over_stdio() {
    all_over("stdio");
}

#[test]
#[ignore = "needs MCP clients in Python and JavaScript: scripts/test installs them"]
fn every_client_and_framework_works_over_streamable_http() {
    all_over("http");
}

#[test]
#[ignore = "needs MCP clients in Python and JavaScript: scripts/test installs them"]
fn every_client_and_framework_works_over_http_and_sse() {
    all_over("sse");
}

#[test]
#[ignore = "needs the PyPI package mcp 1.30: scripts/test installs it"]
fn chats_of_one_process_are_separated_by_conversation_id_or_handle() {
    let data = tempfile::tempdir().unwrap();
    let fault = fault("two_chats.py", "mcp-1", "stdio", env!("CARGO_BIN_EXE_pathbox"), data.path());
    assert_eq!(fault, None);
}

/// Frameworks that have no session, or one for each call, and name no conversation.
#[test]
#[ignore = "needs agent frameworks in Python: scripts/test installs them"]
fn frameworks_keep_their_state_as_their_documentation_writes_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let talk = |framework: &str, door: &str| {
        let data = tempfile::tempdir().unwrap();
        let server = HttpServer::start(data.path());
        let python = root.join(format!("target/test-env/fw-{framework}/bin/python"));
        let output = Command::new(&python)
            .arg(root.join("tests/clients/frameworks/run.py"))
            .args([framework, door, &format!("http://{}", server.address)])
            .arg(data.path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap_or_else(|error| panic!("{}: {error}", python.display()));
        let said = String::from_utf8_lossy(&output.stdout);
        let seen: Value =
            said.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        let is_whole = seen["state"] == true && seen["error"] == true && seen["problem"].is_null();
        (!is_whole).then(|| {
            let err = String::from_utf8_lossy(&output.stderr);
            format!("{framework} over {door}: {seen}\n{said}\n{err}\n{}", server.log())
        })
    };
    let faults: Vec<String> = std::thread::scope(|scope| {
        let running = ["pydantic-ai", "fastmcp", "llama-index"].map(|framework| {
            scope.spawn(move || {
                ["http", "sse"].into_iter().filter_map(|door| talk(framework, door)).collect::<Vec<_>>()
            })
        });
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
#[ignore = "needs MCP clients in JavaScript: scripts/test installs them"]
fn quick_calls_and_replays_have_no_progress_beside_their_results() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_REQUESTS_PER_MINUTE", "0"));
    let base = format!("http://{}", server.address);
    let own = tempfile::tempdir().unwrap();
    let own = own.path();
    let faults: Vec<String> = std::thread::scope(|scope| {
        let doors = [("stdio", env!("CARGO_BIN_EXE_pathbox")), ("http", &base), ("sse", &base)];
        let running = doors
            .map(|(door, target)| scope.spawn(move || fault("quick_calls.mjs", "mcp-js", door, target, own)));
        running.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(faults.is_empty(), "{}\nthe server's log:\n{}", faults.join("\n"), server.log());
}
