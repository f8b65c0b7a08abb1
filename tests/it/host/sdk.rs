//! E2B's official clients, unchanged.

use std::path::Path;
use std::process::Stdio;

use super::TestHost;

/// Runs a suite of `tests/sdk` to its end. `program` is below `target/test-env`, or on the path.
async fn run(program: &str, arguments: &[&str]) {
    let host = TestHost::with(|options| {
        options.ready = 2;
        options.max_sandboxes = 20;
    })
    .await;
    let env = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-env");
    std::fs::create_dir_all(env.join("e2b-js")).unwrap();
    let installed = env.join(program);
    let program = if installed.exists() { installed } else { program.into() };
    let output = tokio::process::Command::new(&program)
        .args(arguments)
        .current_dir(env.join("e2b-js"))
        .env("E2B_API_URL", host.host.url())
        .env("E2B_SANDBOX_URL", host.host.url())
        .env("PATHBOX_TEST_LANGUAGES", "javascript,typescript,bash")
        .env("E2B_API_KEY", host.host.api_key().expose())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap_or_else(|error| panic!("{}: {error}; scripts/test installs it", program.display()));
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let status = output.status;
    assert!(status.success() && said.contains("ok ") && !said.contains("FAILED"), "{status}\n{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs e2b-python: scripts/test installs it"]
async fn the_python_clients_cannot_tell_the_difference() {
    run("e2b-python/bin/python", &[concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdk/suite.py")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs e2b-js and node: scripts/test installs it"]
async fn the_javascript_clients_cannot_tell_the_difference() {
    run("node", &[concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdk/suite.mjs")]).await;
}
