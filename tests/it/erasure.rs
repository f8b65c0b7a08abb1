//! What `pathbox tenants erase` takes: rows, whole outputs and keys of a tenant or of one person, and nothing of anybody else.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::http::HttpServer;
use crate::support::server::command;

/// A key: its text, and the principal that it is.
fn key(data: &Path, tenant: &str) -> (String, String) {
    let add = ["keys", "add", "--json", "--name", "k", "--tenant", tenant, "--scopes", "run,read"];
    let output = command(data).args(add).output().unwrap();
    let made: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    (format!("Bearer {}", made["key"].as_str().unwrap()), format!("key:{}", made["id"].as_str().unwrap()))
}

fn erase(data: &Path, args: &[&str]) -> Value {
    let mut erase = command(data);
    erase.args(["tenants", "erase", "--yes", "--json"]).args(args);
    let output = erase.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[test]
fn an_erasure_takes_keys_and_whole_outputs_too_and_leaves_what_is_others() {
    let data = tempfile::tempdir().unwrap();
    let [(ada, ada_id), (grace, _), (other, _)] =
        ["acme", "acme", "umbrella"].map(|tenant| key(data.path(), tenant));
    let server = HttpServer::start_with(command(data.path()).args(["--set", "http.auth=required"]));
    let run = |key: &str| {
        let code = json!({"language": "python", "code": "print('x' * 300_000)"});
        let headers = [("Authorization", key)];
        let answer =
            server.stateless(&headers, "run_code", code, json!({"dev.pathbox/conversationId": "c"})).answer();
        let uri = answer["result"]["structuredContent"]["artifacts"][0]["uri"]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"));
        uri.to_owned()
    };
    let uris = [&ada, &grace, &other].map(|key| run(key));
    let is_there = |key: &str, uri: &str| {
        let read = json!({"uri": uri});
        let mut answer = server.stateless(&[("Authorization", key)], "get_artifact", read, json!({}));
        answer.status == 200 && answer.answer()["result"]["isError"] != true
    };
    assert!(is_there(&ada, &uris[0]) && is_there(&grace, &uris[1]) && is_there(&other, &uris[2]));
    let objects = || {
        let dirs = std::fs::read_dir(data.path().join("outputs")).unwrap().flatten();
        dirs.filter(|dir| std::fs::read_dir(dir.path()).is_ok_and(|mut files| files.next().is_some())).count()
    };
    assert_eq!(objects(), 3);

    let said = erase(data.path(), &["--tenant", "acme", "--principal", &ada_id]);
    assert_eq!((&said["objects"], &said["erased"]["keys"]), (&json!(1), &json!(1)), "{said}");
    assert_eq!(objects(), 2);
    assert!(!is_there(&ada, &uris[0]) && is_there(&grace, &uris[1]) && is_there(&other, &uris[2]));
    let said = erase(data.path(), &["--tenant", "acme"]);
    assert_eq!((&said["objects"], &said["erased"]["keys"]), (&json!(1), &json!(1)), "{said}");
    assert!(!is_there(&grace, &uris[1]) && is_there(&other, &uris[2]));
    assert_eq!(objects(), 1);
    assert!(command(data.path()).args(["audit", "verify"]).output().unwrap().status.success());
}
