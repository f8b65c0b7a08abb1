//! The database goes away in the middle of load, frozen or stopped: contexts that the server holds go on, what they ran
//! is recorded when it is back, in order and once, and everybody else is told to come back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::Row;

use crate::support::database::{Cluster, Database, TEST_KEY};
use crate::support::http::HttpServer;
use crate::support::server::command;

/// How long the database is away.
const AWAY: Duration = Duration::from_secs(10);
/// How long a state is waited for. Generous: it bounds a hang, it measures nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run on a path of the conversation `c`; the whole result.
fn run(server: &HttpServer, path: &str, code: &str, purpose: &str) -> Value {
    let meta = json!({"dev.pathbox/conversationId": "c", "dev.pathbox/pathId": path});
    let arguments = json!({"code": code, "language": "python", "purpose": purpose});
    server.stateless(&[], "run_code", arguments, meta).answer()["result"].take()
}

fn readiness(server: &HttpServer) -> (u16, String) {
    let mut reply = server.send("GET", "/readyz", &[], b"");
    (reply.status, reply.text())
}

/// Waits for a state, as long as `stop` is not set by a caller that failed.
fn wait_until(what: &str, stop: &AtomicBool, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "never: {what}");
        assert!(!stop.load(Ordering::SeqCst), "a call failed before: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// One caller on a path of its own, call after call. Every call succeeds and sees the state of the one before.
struct Caller {
    path: String,
    calls: AtomicU32,
}

impl Caller {
    fn call_until(&self, server: &HttpServer, stop: &AtomicBool) {
        while !stop.load(Ordering::SeqCst) {
            let number = self.calls.load(Ordering::SeqCst) + 1;
            // The guard's numbers are kept too: the first address stays the first, a new one gets the next number.
            let code =
                "seen = globals().get('seen', 0) + 1\nprint('x@example.com', f'{seen}@example.com')\nseen";
            let result = run(server, &self.path, code, &format!("call {number}"));
            let content = &result["structuredContent"];
            assert_eq!(content["output"], number.to_string().as_str(), "{} {number}: {result}", self.path);
            let printed = format!("[EMAIL_1] [EMAIL_{}]\n", number + 1);
            assert_eq!(content["stdout"], printed.as_str(), "{} {number}: {result}", self.path);
            assert_eq!(content["state"], if number == 1 { "fresh" } else { "kept" }, "{result}");
            self.calls.store(number, Ordering::SeqCst);
        }
    }
}

/// When one thread fails, the others end.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn goes_away_and_comes_back(leave: impl Fn(&Cluster), come_back: impl Fn(&Cluster)) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster: &'static Cluster =
        Box::leak(Box::new(Cluster::start(&["-c", "fsync=off", "-c", "synchronous_commit=off"])));
    let database = cluster.empty_database();
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(
        command(data.path())
            .env("DATABASE_URL", database.url().expose())
            .env("PATHBOX_SECRET_KEYS", TEST_KEY)
            // A quick machine runs hundreds of times meanwhile; a rotation would be no loss, but looks like one.
            .env("PATHBOX_CONTEXTS_MAX_EXECUTIONS", "1000000"),
    );
    let callers: Vec<Caller> =
        (0..3).map(|n| Caller { path: format!("p{n}"), calls: AtomicU32::new(0) }).collect();
    let stop = AtomicBool::new(false);
    let all_made = |more: u32, than: &[u32]| {
        callers.iter().zip(than).all(|(caller, before)| caller.calls.load(Ordering::SeqCst) >= before + more)
    };
    let made = || callers.iter().map(|caller| caller.calls.load(Ordering::SeqCst)).collect::<Vec<u32>>();

    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for caller in &callers {
            scope.spawn(|| {
                let _stop = Stop(&stop);
                caller.call_until(&server, &stop);
            });
        }
        wait_until("the load runs", &stop, || all_made(3, &[0, 0, 0]));

        leave(cluster);
        let left = Instant::now();
        let refused = run(&server, "new", "1", "too early");
        let said = &refused["_meta"]["dev.pathbox/error"];
        assert_eq!(refused["isError"], true, "{refused}");
        assert_eq!(
            (&said["code"], &said["retryable"]),
            (&json!("store_unavailable"), &json!(true)),
            "{refused}"
        );
        assert!(
            refused["content"][0]["text"].as_str().unwrap().contains("again"),
            "says what to do: {refused}"
        );
        wait_until("/readyz says it", &stop, || {
            let (status, text) = readiness(&server);
            status == 503 && text.contains("the database does not answer")
        });
        let before = made();
        wait_until("held contexts go on while the database is away", &stop, || all_made(5, &before));
        std::thread::sleep(AWAY.saturating_sub(left.elapsed()));
        let before = made();
        wait_until("and go on", &stop, || all_made(2, &before));

        come_back(cluster);
        wait_until("/readyz recovers", &stop, || readiness(&server).0 == 200);
        let before = made();
        wait_until("the load goes on", &stop, || all_made(3, &before));
        let fresh = run(&server, "new", "1", "in time");
        assert_eq!(fresh["structuredContent"]["output"], "1", "{fresh}");
    });

    let mut expected: BTreeMap<String, u32> =
        callers.iter().map(|caller| (caller.path.clone(), caller.calls.load(Ordering::SeqCst))).collect();
    expected.insert("new".to_owned(), 1);
    runtime.block_on(assert_recorded(&database, &expected));
}

/// Each call has one record, in the order of the calls, each context counted its own, and nothing is left open.
async fn assert_recorded(database: &Database, expected: &BTreeMap<String, u32>) {
    let mut connection = database.connect().await;
    let total: i64 = expected.values().map(|calls| i64::from(*calls)).sum();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let recorded: i64 =
            sqlx::query_scalar("select count(*) from pathbox.executions where status = 'completed'")
                .fetch_one(&mut connection)
                .await
                .unwrap();
        if recorded == total {
            break;
        }
        assert!(Instant::now() < deadline && recorded < total, "{recorded} of {total} runs are recorded");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let rows = sqlx::query(
        "select path_id, purpose from pathbox.executions where status = 'completed' order by created_at, seq",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let mut purposes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in rows {
        purposes.entry(row.get("path_id")).or_default().push(row.get("purpose"));
    }
    for (path, calls) in expected.iter().filter(|(path, _)| *path != "new") {
        let in_order: Vec<String> = (1..=*calls).map(|number| format!("call {number}")).collect();
        assert_eq!(purposes[path], in_order, "{path}");
    }
    let counted: Vec<(String, i64)> = sqlx::query_as(
        "select path_id, execution_count from pathbox.execution_contexts where status = 'ready' order by path_id",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let counted: BTreeMap<String, u32> =
        counted.into_iter().map(|(path, count)| (path, u32::try_from(count).unwrap())).collect();
    assert_eq!(&counted, expected);
    let open: i64 = sqlx::query_scalar(
        "select (select count(*) from pathbox.executions where status not in ('completed', 'failed'))
              + (select count(*) from pathbox.execution_contexts where status = 'creating')",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(open, 0, "no row is stuck");
}

#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn held_contexts_outlive_a_database_that_is_frozen() {
    goes_away_and_comes_back(Cluster::freeze, Cluster::thaw);
}

#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn held_contexts_outlive_a_database_that_is_stopped() {
    goes_away_and_comes_back(Cluster::stop, Cluster::serve);
}
