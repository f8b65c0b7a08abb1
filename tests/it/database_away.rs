//! The database goes away in the middle of load, frozen or stopped: contexts that the server holds go on, what they ran
//! is recorded when it is back, in order and once, and every other call is refused as retryable.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::Row;

use crate::support::database::{Cluster, Database, TEST_KEY, cluster};
use crate::support::http::HttpServer;
use crate::support::server::command;
use crate::support::wire::Wire;

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

fn database_serves(server: &HttpServer) -> bool {
    readiness(server).1.contains(r#""database":"serves""#)
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
            .env("PATHBOX_CONTEXTS_MAX_EXECUTIONS", "1000000")
            // A database that is away for seconds on a busy machine is away for longer than the default.
            .env("PATHBOX_CONTEXTS_REPLICA_LEASE_SECONDS", "120"),
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
        wait_until("/readyz says it, and stays ready", &stop, || {
            let (status, text) = readiness(&server);
            assert_eq!(status, 200, "the replica serves what it holds: {text}");
            text.contains(r#""database":"away""#)
        });
        let before = made();
        wait_until("held contexts go on while the database is away", &stop, || all_made(5, &before));
        std::thread::sleep(AWAY.saturating_sub(left.elapsed()));
        let before = made();
        wait_until("and go on", &stop, || all_made(2, &before));

        come_back(cluster);
        wait_until("/readyz says that it is back", &stop, || database_serves(&server));
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

/// A server on a database, with nothing to spare in its leases.
fn replica(data: &tempfile::TempDir, url: &str) -> HttpServer {
    let mut command = command(data.path());
    command
        .env("DATABASE_URL", url)
        .env("PATHBOX_SECRET_KEYS", TEST_KEY)
        .env("PATHBOX_CONTEXTS_RUN_MARGIN_SECONDS", "1");
    HttpServer::start_with(&mut command)
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    wait_until(what, &AtomicBool::new(false), done);
}

fn wait_until_away(server: &HttpServer) {
    wait_for("the server finds its database away", || readiness(server).1.contains(r#""database":"away""#));
}

fn wait_until_back(server: &HttpServer) {
    wait_for("the server finds its database back", || database_serves(server));
}

/// The first column of the first row, if there is one.
fn number(runtime: &tokio::runtime::Runtime, database: &Database, sql: &str) -> Option<i64> {
    runtime.block_on(async {
        let mut connection = database.connect().await;
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_optional(&mut connection).await.unwrap().flatten()
    })
}

/// A run that goes on until its stream is closed. Returns when it has begun.
fn begin_endless(server: &HttpServer, path: &str, purpose: &str) -> crate::support::http::Reply {
    let meta = json!({"dev.pathbox/conversationId": "c", "dev.pathbox/pathId": path, "progressToken": 1});
    let code = "import time\nprint('here', flush=True)\nwhile True: time.sleep(0.01)";
    let arguments = json!({"code": code, "language": "python", "purpose": purpose, "timeout_ms": 600_000});
    let mut reply = server.stateless(&[], "run_code", arguments, meta);
    while !reply.message().unwrap().data.contains("running") {}
    reply
}

#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn no_run_is_on_a_context_that_another_replica_could_take_once_the_database_is_back() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(async { cluster().await.database().await });
    let wire = Wire::to(&database);
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let here = replica(&directories[0], wire.url());
    let there = replica(&directories[1], database.url().expose());
    run(&here, "p", "kept = 1", "makes it");

    // Two runs that the database knows nothing of: one goes on when it is back, the other still waits then.
    wire.hold();
    wait_until_away(&here);
    let endless = begin_endless(&here, "p", "endless");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let code = "import time\nbegan = time.time()\ntime.sleep(3)\n(kept, began)";
            run(&here, "p", code, "waits")
        });
        // It is in the queue of this replica; nothing outside tells, and a little later changes nothing.
        std::thread::sleep(Duration::from_millis(500));
        wire.release();
        wait_until_back(&here);
        let sql = |purpose: &str, what: &str| {
            format!(
                "select {what} from pathbox.executions where purpose = '{purpose}' and status = 'running'"
            )
        };
        wait_for("the run that goes on is made known", || {
            number(&runtime, &database, &sql("endless", "1::bigint")).is_some()
        });
        let meta = json!({"dev.pathbox/conversationId": "c", "dev.pathbox/pathId": "p"});
        let arguments = json!({"code": "1", "language": "python", "timeout_ms": 1_000});
        let refused = there.stateless(&[], "run_code", arguments, meta).answer()["result"].take();
        assert_eq!(refused["_meta"]["dev.pathbox/error"]["code"], "queue_timeout", "{refused}");

        drop(endless);
        let lease = sql("waits", "extract(epoch from lease_expires_at)::bigint");
        let mut until = 0;
        while !waiting.is_finished() {
            until = until.max(number(&runtime, &database, &lease).unwrap_or(0));
            std::thread::sleep(Duration::from_millis(20));
        }
        let result = waiting.join().unwrap();
        let output = result["structuredContent"]["output"].as_str().unwrap_or_else(|| panic!("{result}"));
        let began: f64 = output.trim_matches(['(', ')']).split(", ").nth(1).unwrap().parse().unwrap();
        // `timeout_ms` has its default of a minute.
        assert!(until as f64 >= began + 59.0, "began at {began}, its context is its own until {until}");
    });
    let ended = number(
        &runtime,
        &database,
        "select count(*) from pathbox.executions where purpose = 'endless' and status = 'cancelled'",
    );
    assert_eq!(ended, Some(1), "what was cut off has its record");
}

#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn a_caller_learns_that_its_context_was_replaced() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(async { cluster().await.database().await });
    let wire = Wire::to(&database);
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let here = replica(&directories[0], wire.url());
    let there = replica(&directories[1], database.url().expose());
    run(&here, "p", "kept = 1", "makes it");

    wire.hold();
    wait_until_away(&here);
    let cut_off = run(&here, "p", "kept", "goes on");
    assert_eq!(cut_off["structuredContent"]["output"], "1", "{cut_off}");
    // No one can tell the database of that use, and the context's time is up.
    runtime.block_on(async {
        let mut connection = database.connect().await;
        let sql =
            "update pathbox.execution_contexts set expires_at = clock_timestamp() where status = 'ready'";
        sqlx::query(sql).execute(&mut connection).await.unwrap();
    });
    let elsewhere = run(&there, "p", "other = 2", "replaces it");
    assert_eq!(elsewhere["structuredContent"]["state"], "reset", "{elsewhere}");

    wire.release();
    wait_until_back(&here);
    let told = run(&here, "p", "other", "finds another");
    let content = &told["structuredContent"];
    assert_eq!((&content["output"], &content["state"]), (&json!("2"), &json!("reset")), "{told}");
    assert!(content["stateReason"].as_str().unwrap().contains("expired"), "{told}");
    let told = run(&here, "p", "other", "once is enough");
    assert_eq!(told["structuredContent"]["state"], "kept", "{told}");
}

#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn a_replica_that_alone_is_cut_off_stops_before_another_takes_its_context() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(async { cluster().await.database().await });
    let wire = Wire::to(&database);
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let here = replica(&directories[0], wire.url());
    let there = replica(&directories[1], database.url().expose());
    run(&here, "p", "kept = 1", "makes it");

    wire.hold();
    wait_until_away(&here);
    std::thread::scope(|scope| {
        let cut_off = scope.spawn(|| {
            let meta = json!({"dev.pathbox/conversationId": "c", "dev.pathbox/pathId": "p"});
            let code = "while true; do date +%N > /home/user/beat; sleep 0.05; done";
            let arguments = json!({"code": code, "language": "bash", "timeout_ms": 600_000});
            here.stateless(&[], "run_code", arguments, meta).answer()["result"].take()
        });
        // Waits for as long as the other's lease lasts, and finds what that left.
        let code = "import time\nfrom pathlib import Path\nbeat = lambda: Path('/home/user/beat').read_text()\n\
                    before = beat()\ntime.sleep(1)\n(kept, before == beat())";
        let took_over = run(&there, "p", code, "takes over");
        let content = &took_over["structuredContent"];
        assert_eq!(content["output"], "(1, True)", "the other goes on beside it: {took_over}");
        let stopped = cut_off.join().unwrap();
        assert_eq!(stopped["structuredContent"]["error"]["name"], "interrupted", "{stopped}");
    });
    assert!(here.log().contains("a run begins under the lease on its context"), "{}", here.log());
    wire.release();
    wait_until_back(&here);
}
