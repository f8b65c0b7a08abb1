//! The official conformance suite against the real HTTP door. What listens is `tests/conformance/server.rs`, the server
//! with the tools, prompts and resources that the suite looks for.

use std::path::Path;
use std::process::Command;

use crate::support::http::HttpServer;

/// Runs what it means to conform to a revision, and what the suite runs besides without counting it.
fn conforms_to(revision: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-env");
    let (data, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = Path::new(env!("CARGO_BIN_EXE_pathbox")).with_file_name("examples/conformance");
    assert!(program.exists(), "`cargo build --example conformance` makes it");
    let mut command = Command::new(program);
    let server = HttpServer::start_with(command.env("PATHBOX_DATA_DIR", data.path()));
    let modules = root.join("mcp-js/node_modules");
    let output = Command::new(modules.join("node/bin/node"))
        .arg(modules.join("@modelcontextprotocol/conformance/dist/index.js"))
        .args([
            "server",
            "--url",
            &format!("http://{}/mcp", server.address),
            "--requirements",
            revision,
            "-o",
        ])
        .arg(results.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let (_, summary) = said
        .split_once("=== SUMMARY ===")
        .unwrap_or_else(|| panic!("{said}\n{}", String::from_utf8_lossy(&output.stderr)));
    let with_mark = |mark: char| -> Vec<&str> {
        let marked = summary.lines().filter_map(|line| line.strip_prefix(mark)?.split_once(':'));
        marked.map(|(name, _)| name.trim()).collect()
    };
    let (passed, failed) = (with_mark('✓'), with_mark('✗'));
    assert!(passed.len() >= 30, "hardly anything was run: {said}");
    assert_eq!(failed, Vec::<&str>::new(), "{said}");
    assert!(output.status.success(), "{said}");
}

#[test]
#[ignore = "needs the npm package @modelcontextprotocol/conformance: scripts/test installs it"]
fn the_server_conforms_to_2025_11_25() {
    conforms_to("2025-11-25");
}

#[test]
#[ignore = "needs the npm package @modelcontextprotocol/conformance: scripts/test installs it"]
fn the_server_conforms_to_2026_07_28() {
    conforms_to("2026-07-28");
}
