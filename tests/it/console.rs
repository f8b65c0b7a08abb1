//! The console for operators: who sees what, and a real browser that clicks through it.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::http::HttpServer;
use crate::support::server::command;

fn key(data: &Path, tenant: &str, scopes: &str) -> String {
    let add = ["keys", "add", "--json", "--name", "k", "--tenant", tenant, "--scopes", scopes];
    let output = command(data).args(add).output().unwrap();
    let made: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    format!("Bearer {}", made["key"].as_str().unwrap())
}

fn server(data: &Path) -> HttpServer {
    let mut command = command(data);
    command.args([
        "--set",
        "http.console=true",
        "--set",
        "http.auth=required",
        "--set",
        "workflows.enabled=true",
    ]);
    HttpServer::start_with(&mut command)
}

#[test]
fn there_is_no_console_unless_it_is_switched_on() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    for path in ["/console", "/console/script.js", "/console/state"] {
        assert_eq!(server.send("GET", path, &[], b"").status, 404, "{path}");
    }
}

#[test]
fn an_operator_sees_and_ends_what_its_credential_allows_and_others_nothing() {
    let data = tempfile::tempdir().unwrap();
    let (acme, other) = (key(data.path(), "acme", "admin,run,read"), key(data.path(), "other", "admin"));
    let reader = key(data.path(), "acme", "run,read,paths");
    let server = server(data.path());
    let mut page = server.send("GET", "/console", &[], b"");
    page.expect_ok();
    let policy = page.header("content-security-policy").unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    for needed in ["script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"] {
        assert!(policy.contains(needed), "{needed}: {policy}");
    }
    let text = page.text();
    assert!(!text.contains("<script>") && !text.contains("style=") && !text.contains("onclick"), "{text}");

    let meta = json!({"dev.pathbox/conversationId": "chat", "dev.pathbox/pathId": "main"});
    let code = json!({"language": "python", "code": "print('mary.murphy@example.ie')", "purpose": "a look"});
    server.stateless(&[("Authorization", &acme)], "run_code", code, meta).answer();
    let state = |credential: &str| -> Value {
        let mut reply = server.send("GET", "/console/state", &[("Authorization", credential)], b"");
        reply.expect_ok();
        assert_eq!(reply.header("cache-control"), Some("no-store"));
        serde_json::from_str(&reply.text()).unwrap()
    };
    let seen = state(&acme);
    assert_eq!(seen["contexts"][0]["conversation"], "chat", "{seen}");
    assert_eq!(
        (&seen["runs"][0]["status"], &seen["runs"][0]["purpose"]),
        (&"completed".into(), &"a look".into())
    );
    assert_eq!(seen["cost"]["lines"][0]["executions"], 1, "{seen}");
    assert!(!seen["findings"].as_object().unwrap().is_empty(), "{seen}");
    assert!(!seen.to_string().contains("mary.murphy"), "{seen}");
    let checks = seen["checks"].as_array().unwrap();
    assert!(checks.iter().all(|check| check["ok"] == true), "{seen}");
    // Another tenant's operator sees none of it, and cannot end it.
    let theirs = state(&other);
    assert_eq!((&theirs["contexts"], &theirs["runs"]), (&json!([]), &json!([])));
    let place = json!({"tenant": "acme", "owner": seen["contexts"][0]["owner"], "conversation": "chat", "path": "main"});
    let end = |credential: &str| {
        let headers = [("Authorization", credential), ("Content-Type", "application/json")];
        server.send("POST", "/console/end", &headers, place.to_string().as_bytes()).status
    };
    assert_eq!(end(&other), 403);
    assert_eq!(end(&reader), 403);
    for path in ["/console/state", "/console/live"] {
        assert_eq!(server.send("GET", path, &[], b"").status, 401, "{path}");
        assert_eq!(server.send("GET", path, &[("Authorization", &reader)], b"").status, 403, "{path}");
    }
    assert_eq!(state(&acme)["contexts"].as_array().unwrap().len(), 1);
    assert_eq!(end(&acme), 200);
    assert_eq!(state(&acme)["contexts"], json!([]));
}

#[test]
fn an_operator_sees_what_became_of_a_closed_path() {
    let data = tempfile::tempdir().unwrap();
    let acme = key(data.path(), "acme", "admin,run,read,paths");
    let server = server(data.path());
    let by = [("Authorization", acme.as_str()), ("Content-Type", "application/json")];
    let paths = "/v1/conversations/chat/paths";
    for path in ["main", "side", "gone"] {
        let made = server.send("POST", paths, &by, json!({"path": path}).to_string().as_bytes());
        assert!(made.status < 300, "{path}");
    }
    let code = json!({"language": "python", "code": "1"});
    server.stateless(&by[..1], "run_code", code, json!({"dev.pathbox/conversationId": "chat"})).answer();
    for (path, action, body) in [("side", "merge", json!({"target": "main"})), ("gone", "archive", json!({}))]
    {
        let at = format!("{paths}/{path}/{action}");
        assert!(server.send("POST", &at, &by, body.to_string().as_bytes()).status < 300, "{at}");
    }
    let mut reply = server.send("GET", "/console/state", &by[..1], b"");
    let seen: Value = serde_json::from_str(&reply.text()).unwrap();
    let path = |name: &str| {
        let found = seen["paths"].as_array().unwrap().iter().find(|path| path["path"] == name);
        found.map(|path| (path["status"].clone(), path["mergedInto"].clone()))
    };
    assert_eq!(path("side"), Some((json!("merged"), json!("main"))), "{seen}");
    assert_eq!(path("gone"), Some((json!("archived"), Value::Null)), "{seen}");
    assert_eq!(path("main"), Some((json!("active"), Value::Null)), "{seen}");
}

#[test]
fn a_tool_server_that_does_not_answer_holds_up_no_operator() {
    let place = crate::code_mode::Place::new("--silent", "start_timeout_ms = 600000", "");
    let mut command = place.command();
    command.args(["--set", "http.console=true"]);
    let server = HttpServer::start_with(&mut command);
    server.stateless(&[], "run_code", json!({"language": "python", "code": "1"}), json!({})).answer();
    let mut reply = server.send("GET", "/console/state", &[], b"");
    assert_eq!(reply.status, 200);
    let seen: Value = serde_json::from_str(&reply.text()).unwrap();
    assert_eq!((seen["contexts"].as_array().unwrap().len(), &seen["tools"]), (1, &json!([])), "{seen}");
    assert!(place.log().is_empty(), "looking starts no tool server");
}

#[test]
fn an_operator_steers_workflows_of_its_tenants_and_the_record_names_it() {
    let data = tempfile::tempdir().unwrap();
    let (acme, other) = (key(data.path(), "acme", "admin,run,read"), key(data.path(), "other", "admin"));
    let server = server(data.path());
    let by = [("Authorization", acme.as_str())];
    let plan = json!({"tasks": [{"id": "a", "type": "code_execution", "code": "print(1)", "approve": true}]});
    let begun =
        server.stateless(&by, "run_workflow", plan, json!({"dev.pathbox/conversationId": "c"})).answer();
    let id = begun["result"]["structuredContent"]["workflowId"]
        .as_str()
        .unwrap_or_else(|| panic!("{begun}"))
        .to_owned();
    let steer = |credential: &str, action: &str| {
        let headers = [("Authorization", credential), ("Content-Type", "application/json")];
        let body = json!({"tenant": "acme", "workflow": id, "action": action}).to_string();
        let mut reply = server.send("POST", "/console/workflow", &headers, body.as_bytes());
        (reply.status, serde_json::from_str::<Value>(&reply.text()).unwrap_or_default())
    };
    assert_eq!(steer(&other, "abort").0, 403, "another tenant's operator");
    assert_eq!(steer(&acme, "burn").0, 422, "no such action");
    let (status, paused) = steer(&acme, "pause");
    assert_eq!((status, &paused["status"]), (200, &json!("paused")), "{paused}");
    let (status, twice) = steer(&acme, "pause");
    assert_eq!((status, &twice["error"]["code"]), (409, &json!("workflow_state")), "{twice}");
    assert_eq!(steer(&acme, "resume").0, 200);
    assert_eq!(steer(&acme, "abort").0, 200);
    assert_eq!(steer(&acme, "resume").0, 409, "it is over");
}

#[test]
#[ignore = "needs Chromium, Playwright and axe: scripts/test installs them"]
fn an_operator_clicks_through_the_console() {
    let data = tempfile::tempdir().unwrap();
    let admin = key(data.path(), "acme", "admin,run,read,paths");
    let reader = key(data.path(), "acme", "run,read");
    let server = server(data.path());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("console");
    std::fs::create_dir_all(&pictures).unwrap();
    let bare = |key: &str| key.trim_start_matches("Bearer ").to_owned();
    let output = Command::new("node")
        .arg(root.join("tests/clients/console.mjs"))
        .args([format!("http://{}", server.address), bare(&admin), bare(&reader)])
        .arg(&pictures)
        .current_dir(root.join("target/test-env/console-js"))
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(out.trim() == "ok", "{out}\n{err}\nthe server's log:\n{}", server.log());
    for picture in ["sign-in", "board-light", "board-workflow", "board-dark", "board-phone"] {
        assert!(pictures.join(format!("{picture}.png")).is_file(), "{picture}");
    }
}
