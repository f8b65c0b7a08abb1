//! Several `pathbox` processes on one store, with one key at the same moment: one sandbox, and everybody finds it.

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
        // Everybody is up and has a sandbox ready, so that the race is about the key.
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
