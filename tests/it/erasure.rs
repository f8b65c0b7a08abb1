//! What `pathbox tenants erase` takes: rows, whole outputs and keys of a tenant or of one person, and nothing of anyone else.

use std::path::Path;

use pathbox::domain::Clock;
use serde_json::{Value, json};
use sqlx::ConnectOptions;

use crate::support::http::HttpServer;
use crate::support::server::{Server, command};
use crate::workflows::{code, on, run};

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
fn an_erasure_takes_keys_and_complete_outputs_too_and_leaves_other_tenants_data() {
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

/// Printed text is in rows, in pages that rows have left, in the log, in whole outputs and in results of workflows.
#[test]
fn nothing_of_what_was_erased_is_left_in_the_data_directory() {
    const TEXT: &str = "the colour of her first bicycle";
    let data = tempfile::tempdir().unwrap();
    let holders = || {
        let mut found = Vec::new();
        let mut open = vec![data.path().to_owned()];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => open.push(entry.path()),
                    false => found.push(entry.path()),
                }
            }
        }
        found.retain(|file| {
            std::fs::read(file).unwrap().windows(TEXT.len()).any(|bytes| bytes == TEXT.as_bytes())
        });
        found
    };
    let mut server = Server::start_with(on(&mut command(data.path())).arg("serve"));
    let print = format!("import json\nprint(json.dumps(['{TEXT}'] * 5000))");
    let shown = run(&mut server, json!({"tasks": [code("many", &print, json!({}))]}));
    assert_eq!(shown["status"], "completed", "{shown:#}");
    server.python(&format!("print('{TEXT}')"));
    drop(server);
    // Parts of two uploads that were not completed; the address of one of them is still valid.
    let part = |upload: &str, age: u64| {
        let dir = data.path().join("outputs").join(upload);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("part-1"), TEXT).unwrap();
        let at = Clock::system().now() - std::time::Duration::from_secs(age);
        let file = std::fs::File::options().write(true).open(dir.join("part-1")).unwrap();
        file.set_modified(at.into()).unwrap();
        dir.join("part-1")
    };
    part("01980000-0000-7000-8000-000000000001", 16 * 60);
    let valid = part("01980000-0000-7000-8000-000000000002", 14 * 60);
    // An output, a result and the database, with its log or without.
    assert!(holders().len() >= 5, "{:?}", holders());
    let said = erase(data.path(), &["--tenant", "local"]);
    assert_eq!(said["expiredUploadParts"], 1, "{said}");
    assert_eq!(holders(), std::slice::from_ref(&valid));
    std::fs::remove_file(valid).unwrap();
    assert_eq!((&said["objects"], &said["erased"]["workflows"]), (&json!(2), &json!(1)), "{said}");
    assert_eq!(holders(), Vec::<std::path::PathBuf>::new());
}

/// A chain without an entry has no fault of its own; the runs that should be in it have.
#[tokio::test]
async fn the_loss_of_a_whole_chain_is_found() {
    let data = tempfile::tempdir().unwrap();
    let verify = || {
        let output = command(data.path()).args(["audit", "verify"]).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    assert!(command(data.path()).args(["run", "1"]).output().unwrap().status.success());
    assert!(verify().0, "{:?}", verify());
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(data.path().join("pathbox.db"));
    let mut database = options.connect().await.unwrap();
    let gone = "DROP TRIGGER guard_audit_delete; DELETE FROM audit_log; DELETE FROM audit_heads";
    sqlx::raw_sql(gone).execute(&mut database).await.unwrap();
    let (is_sound, said) = verify();
    assert!(!is_sound && said.contains("this run has ended and has no entry"), "{said}");
}
