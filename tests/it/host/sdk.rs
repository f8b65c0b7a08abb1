//! E2B's official clients, unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::TestHost;

/// The suites upload more than that to `/tmp` in one piece.
const TMP_MB: u64 = 32;
const PYTHON: &str = "e2b-python/bin/python";
const PYTHON_SUITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdk/suite.py");
const JAVASCRIPT_SUITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdk/suite.mjs");

/// Runs a suite of `tests/sdk` to its end against a host in this process.
async fn run(program: &str, suite: &str) {
    let host = TestHost::with(|options| {
        options.ready = 2;
        options.max_sandboxes = 20;
        options.jail.limits.tmp_bytes = TMP_MB << 20;
    })
    .await;
    run_against(program, suite, &host.host.url(), host.host.api_key().expose()).await;
}

/// `program` is below `target/test-env`, or on the path.
async fn run_against(program: &str, suite: &str, url: &str, key: &str) {
    let env = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-env");
    std::fs::create_dir_all(env.join("e2b-js")).unwrap();
    let installed = env.join(program);
    let program = if installed.exists() { installed } else { program.into() };
    let output = Command::new(&program)
        .arg(suite)
        .current_dir(env.join("e2b-js"))
        .env("E2B_API_URL", url)
        .env("E2B_SANDBOX_URL", url)
        .env("PATHBOX_TEST_LANGUAGES", "javascript,typescript,bash")
        .env("E2B_API_KEY", key)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap_or_else(|error| panic!("{}: {error}; scripts/test installs it", program.display()));
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let status = output.status;
    assert!(status.success() && said.contains("ok ") && !said.contains("FAILED"), "{status}\n{said}");
    assert_the_page_names(&said);
}

/// The rows below a heading of the page about E2B: their cells without marks; an empty one is none.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let page = include_str!("../../../docs/e2b-compatibility.md");
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).expect("the page has the heading");
    let section = section.split("\n## ").next().unwrap_or_default();
    let cells = |row: &str| {
        row.trim_matches('|').split('|').map(|cell| cell.trim().replace(['`', '–'], "")).collect::<Vec<_>>()
    };
    section.lines().filter(|line| line.starts_with("| `")).map(cells).collect()
}

/// Compares a suite's report on its checks' calls with the page: each call has its row, and the check that the row names
/// has made it.
fn assert_the_page_names(said: &str) {
    let mut made: BTreeMap<(String, usize), BTreeSet<&str>> = BTreeMap::new();
    for line in said.lines() {
        let mut words = line.split('\t');
        let (Some("call"), Some(call)) = (words.next(), words.next()) else { continue };
        let is_javascript = said.contains("ok a sandbox is created");
        let (call, column) = match call.strip_prefix("Async") {
            Some(call) => (call, 2),
            None => (call, if is_javascript { 3 } else { 1 }),
        };
        made.insert((snake_case(call), column), words.collect());
    }
    assert!(made.len() > 60, "{said}");
    let columns: BTreeSet<usize> = made.keys().map(|(_, column)| *column).collect();
    let mut wrong = Vec::new();
    for row in rows("Calls of the official clients") {
        for column in &columns {
            match (made.remove(&(row[0].clone(), *column)), &*row[*column]) {
                (None, "") => {}
                (Some(checks), check) if checks.contains(check) => {}
                (checks, check) => wrong.push(format!("{} by {check:?}: made by {checks:?}", row[0])),
            }
        }
    }
    wrong
        .extend(made.into_iter().map(|((call, _), checks)| format!("{call} has no row; made by {checks:?}")));
    assert!(wrong.is_empty(), "docs/e2b-compatibility.md:\n{}", wrong.join("\n"));
}

/// `Sandbox.getInfo` as Python calls it.
fn snake_case(call: &str) -> String {
    let (class, name) = call.split_once('.').expect("a class and a name");
    let name: String = name
        .chars()
        .flat_map(|c| [c.is_uppercase().then_some('_'), Some(c.to_ascii_lowercase())])
        .flatten()
        .collect();
    format!("{class}.{name}")
}

#[test]
fn routes_that_only_older_clients_call_have_their_test() {
    let tests = [
        include_str!("control.rs"),
        include_str!("files.rs"),
        include_str!("interpreter.rs"),
        include_str!("life.rs"),
        include_str!("processes.rs"),
        include_str!("doors.rs"),
    ];
    let rows = rows("Routes that only older clients call");
    assert!(rows.len() > 5);
    for row in rows {
        let [route, test, ..] = &row[..] else { panic!("{row:?}") };
        let body = tests.iter().find_map(|source| source.split_once(&format!("async fn {test}()")));
        let (_, body) = body.unwrap_or_else(|| panic!("{route}: there is no test {test}"));
        let body = body.split("\n}\n").next().unwrap_or_default();
        let word = route.rsplit('/').next().unwrap_or_default();
        assert!(body.contains(word), "{test} does not call {route}");
    }
}

/// The same against `pathbox host`, which an ordinary user has started: root's become one that owns nothing.
async fn run_as_an_ordinary_user(program: &str, suite: &str) {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    const NOBODY: u32 = 65_534;
    let dir = tempfile::tempdir().unwrap();
    let exe = dir.path().join("pathbox");
    std::fs::copy(env!("CARGO_BIN_EXE_pathbox"), &exe).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(&exe);
    command
        .args(["host", "--listen", "127.0.0.1:0"])
        .env_clear()
        .envs([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("PATHBOX_HOST_MAX_SANDBOXES", "20")])
        .env("PATHBOX_HOST_TMP_MB", TMP_MB.to_string())
        .env("HOME", dir.path())
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    let mut host = command.spawn().unwrap();
    let uid = std::fs::metadata(format!("/proc/{}", host.id().unwrap())).unwrap().uid();
    assert_ne!(uid, 0, "an ordinary user's");
    let mut lines = BufReader::new(host.stdout.take().unwrap()).lines();
    let mut value = async |name: &str| loop {
        let line = lines.next_line().await.unwrap().expect("the host starts");
        if let Some((_, value)) = line.split_once(name) {
            return value.split(' ').next().unwrap().to_owned();
        }
    };
    let url = value("E2B_API_URL=").await;
    let key = value("E2B_API_KEY=").await;
    run_against(program, suite, &url, &key).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs e2b-python: scripts/test installs it"]
async fn the_python_clients_cannot_tell_the_difference() {
    run(PYTHON, PYTHON_SUITE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs e2b-js and node: scripts/test installs it"]
async fn the_javascript_clients_cannot_tell_the_difference() {
    run("node", JAVASCRIPT_SUITE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs e2b-python: scripts/test installs it"]
async fn the_python_clients_cannot_tell_an_ordinary_user_s_host_either() {
    run_as_an_ordinary_user(PYTHON, PYTHON_SUITE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs e2b-js and node: scripts/test installs it"]
async fn the_javascript_clients_cannot_tell_an_ordinary_user_s_host_either() {
    run_as_an_ordinary_user("node", JAVASCRIPT_SUITE).await;
}
