//! `/v1` and its OpenAPI document agree: a fuzzer that reads the document sends what it allows and what it does not.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::http::HttpServer;
use crate::support::server::command;

#[test]
#[ignore = "needs the PyPI package schemathesis: scripts/test installs it"]
fn a_fuzzer_that_reads_the_document_finds_no_difference() {
    let data = tempfile::tempdir().unwrap();
    let add = ["keys", "add", "--json", "--name", "fuzzer", "--tenant", "fuzz", "--any-tenant"];
    let scopes = ["--scopes", "run,read,paths,admin,reveal"];
    let output = command(data.path()).args(add).args(scopes).output().unwrap();
    let made: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let server = HttpServer::start_with(
        command(data.path())
            .env("PATHBOX_HTTP_AUTH", "required")
            .env("PATHBOX_HTTP_REQUESTS_PER_MINUTE", "0")
            .env("PATHBOX_WORKFLOWS_ENABLED", "true")
            .env("CRON_SECRET", "a-secret-for-the-scheduler"),
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // By its interpreter: the script's first line names the folder that it was installed in.
    let bin = root.join("target/test-env/schemathesis/bin");
    let output = Command::new(bin.join("python"))
        .arg(bin.join("schemathesis"))
        .arg("--config-file")
        .arg(root.join("tests/clients/schemathesis.toml"))
        .args(["run", &format!("http://{}/v1/openapi.json", server.address)])
        .args(["--header", &format!("Authorization: Bearer {}", made["key"].as_str().unwrap())])
        .current_dir(data.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}\n{}", String::from_utf8_lossy(&output.stderr), server.log());
    assert!(said.contains("generated"), "it did something: {said}");
}
