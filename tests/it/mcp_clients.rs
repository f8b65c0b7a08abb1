//! The official MCP clients against `pathbox serve`, each in its own process with nothing of ours in it.

use std::path::Path;
use std::process::Command;

/// Runs a client script with the Python of a test environment.
fn client(environment: &str, script: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let data = tempfile::tempdir().unwrap();
    let python = root.join("target/test-env").join(environment).join("bin/python");
    let output = Command::new(&python)
        .arg(root.join("tests/clients").join(script))
        .arg(env!("CARGO_BIN_EXE_pathbox"))
        .arg(data.path())
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", python.display()));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script} failed:\n{out}\n{err}");
    out.into_owned()
}

#[test]
#[ignore = "needs the PyPI package mcp 1.30: scripts/test installs it"]
fn the_python_client_of_version_1_runs_code_reads_a_picture_and_cancels() {
    assert_eq!(client("mcp-1", "mcp_v1.py").trim(), "ok");
}

#[test]
#[ignore = "needs the PyPI package mcp 2.3: scripts/test installs it"]
fn the_python_client_of_version_2_does_so_in_both_protocol_eras() {
    assert_eq!(
        client("mcp-2", "mcp_v2.py").split_whitespace().collect::<Vec<_>>(),
        ["ok", "legacy", "ok", "auto"]
    );
}
