//! Several `pathbox` processes on one store, with one key at the same moment: one sandbox, and everyone finds it.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Barrier};

use serde_json::{Value, json};

use crate::support::database::cluster;
use crate::support::server::{Server, command};

/// Starts `processes` servers, lets each call on one key at the same moment, and returns the results.
fn race(processes: usize, prepare: impl Fn() -> Command) -> Vec<Value> {
    let mut servers: Vec<Server> = (0..processes)
        .map(|_| Server::start_with(prepare().args(["serve", "--conversation", "shared"])))
        .collect();
    for server in &mut servers {
        // Everyone is up and has a sandbox ready, so that the race is about the key.
        server.call(
            json!({"code": "1", "language": "python"}),
            json!({"pathId": format!("warm-{}", server.child.id())}),
        );
    }
    let barrier = Arc::new(Barrier::new(processes));
    let threads: Vec<_> = servers
        .into_iter()
        .map(|mut server| {
            let barrier = barrier.clone();
            std::thread::spawn(move || {
                barrier.wait();
                let code = "seen = globals().get('seen', 0) + 1\nseen";
                let result = server.python(code);
                (server, result)
            })
        })
        .collect();
    let (servers, results): (Vec<_>, Vec<_>) =
        threads.into_iter().map(|thread| thread.join().unwrap()).unzip();
    drop(servers);
    results
}

fn assert_one_sandbox(results: &[Value]) {
    let mut seen: Vec<&str> =
        results.iter().map(|result| result["structuredContent"]["output"].as_str().unwrap_or("?")).collect();
    seen.sort_unstable();
    let expected: Vec<String> = (1..=results.len()).map(|n| n.to_string()).collect();
    assert_eq!(seen, expected, "each run saw the variable of the one before: {results:#?}");
    let fresh = results.iter().filter(|result| result["structuredContent"]["state"] == "fresh").count();
    assert_eq!(fresh, 1, "{results:#?}");
}

#[test]
fn processes_on_one_sqlite_directory_with_one_key_make_one_sandbox() {
    let data = tempfile::tempdir().unwrap();
    assert_one_sandbox(&race(2, || command(data.path())));
    let data = tempfile::tempdir().unwrap();
    assert_one_sandbox(&race(3, || command(data.path())));
}

#[test]
#[ignore = "needs PostgreSQL server binaries: scripts/test installs them"]
fn processes_on_one_postgres_with_one_key_make_one_sandbox() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(async { cluster().await.database().await });
    let url = database.url().expose().to_owned();
    let directories: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    // Replicas have one key for tokens and handles, and data directories of their own.
    let keys = "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let next = std::sync::atomic::AtomicUsize::new(0);
    let prepare = || {
        let n = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let mut command = command(Path::new(directories[n % 2].path()));
        command.env("DATABASE_URL", &url).env("PATHBOX_SECRET_KEYS", keys);
        command
    };
    assert_one_sandbox(&race(2, prepare));
}

/// The runs that a data directory knows of, by status.
fn statuses(data: &Path) -> Vec<String> {
    let output = command(data).args(["executions", "ls", "--json"]).output().unwrap();
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    rows.as_array().unwrap().iter().map(|row| row["status"].as_str().unwrap().to_owned()).collect()
}

/// Its run would hold the path for its whole time-out of ten minutes otherwise.
#[test]
fn a_process_killed_in_mid_run_is_noticed_and_its_path_goes_on() {
    let data = tempfile::tempdir().unwrap();
    let start = || {
        let mut command = command(data.path());
        command.env("PATHBOX_CONTEXTS_REPLICA_LEASE_SECONDS", "6");
        Server::start_with(command.args(["serve", "--conversation", "shared"]))
    };
    let (mut first, mut other) = (start(), start());
    other.call(json!({"code": "1", "language": "python"}), json!({"pathId": "elsewhere"}));
    let long = json!({"code": "import time\ntime.sleep(600)", "language": "python", "timeout_ms": 600_000});
    first.begin("tools/call", json!({"name": "run_code", "arguments": long}));
    while !statuses(data.path()).iter().any(|status| status == "running") {
        std::thread::yield_now();
    }
    first.child.kill().unwrap();
    first.child.wait().unwrap();

    let result = other.python("40 + 2");
    assert_eq!(result["structuredContent"]["output"], "42", "{result}");
    assert_eq!(result["structuredContent"]["state"], "reset", "its sandbox died with it: {result}");
    assert!(statuses(data.path()).contains(&"interrupted".to_owned()));
}

/// Idle contexts move from one process to the other and back: the holder lets go of them when it is asked.
#[test]
fn an_idle_context_is_handed_over_to_the_replica_that_asks_and_keeps_its_state() {
    let data = tempfile::tempdir().unwrap();
    let start = || Server::start_with(command(data.path()).args(["serve", "--conversation", "shared"]));
    let (mut one, mut two) = (start(), start());
    assert_eq!(one.python("n = 1\nn")["structuredContent"]["output"], "1");
    for expected in ["2", "3", "4", "5"] {
        let server = if expected.parse::<u32>().unwrap().is_multiple_of(2) { &mut two } else { &mut one };
        let result = server.python("n += 1\nn");
        assert_eq!(result["structuredContent"]["output"], expected, "{result}");
        assert_eq!(result["structuredContent"]["state"], "kept", "{result}");
    }
}
