//! What a run may do in each state of its database: locked, read-only, full, gone over to a standby, behind a pooler. Real
//! servers, real databases, real signals.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::support::database::{Cluster, Database, Disk, TEST_KEY, cluster, unprivileged_account};
use crate::support::http::HttpServer;
use crate::support::server::{Server, command};

/// How long a state is waited for. Generous: it bounds a hang, it measures nothing.
const PATIENCE: Duration = Duration::from_secs(120);

fn replica(data: &Path, url: &str, settings: &[(&str, &str)]) -> HttpServer {
    let mut command = command(data);
    command
        .env("DATABASE_URL", url)
        .env("PATHBOX_SECRET_KEYS", TEST_KEY)
        .env("PATHBOX_CONTEXTS_MAX_EXECUTIONS", "1000000");
    command.envs(settings.iter().copied());
    HttpServer::start_with(&mut command)
}

/// A run on a path of the conversation `c`; the whole result.
fn run(server: &HttpServer, path: &str, code: &str, more: Value) -> Value {
    let meta = json!({"dev.pathbox/conversationId": "c", "dev.pathbox/pathId": path});
    let mut arguments = json!({"code": code, "language": "python"});
    for (name, value) in more.as_object().unwrap() {
        arguments[name] = value.clone();
    }
    server.stateless(&[], "run_code", arguments, meta).answer()["result"].take()
}

/// Waits until a number of runs is recorded as completed, each once.
async fn all_recorded(database: &Database, runs: i64) {
    let mut admin = PgConnection::connect(database.url().expose()).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let sql = "select count(*) from pathbox.executions where status = 'completed'";
        let recorded: i64 = sqlx::query_scalar(sql).fetch_one(&mut admin).await.unwrap();
        if recorded == runs {
            return;
        }
        assert!(Instant::now() < deadline, "{recorded} of {runs} recorded");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn error_code(result: &Value) -> &str {
    result["_meta"]["dev.pathbox/error"]["code"].as_str().unwrap_or_default()
}

fn readiness(server: &HttpServer) -> (u16, String) {
    let mut reply = server.send("GET", "/readyz", &[], b"");
    (reply.status, reply.text())
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a counter or gauge of `/metrics` says.
fn metric(server: &HttpServer, name: &str) -> f64 {
    let text = server.send("GET", "/metrics", &[], b"").text();
    let values =
        text.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
    values.filter_map(|value| value.parse::<f64>().ok()).sum()
}

/// While a session holds a lock that every acquire needs, a replica's pool is used up by calls that wait for it. The
/// database is busy, not away: nothing runs, and afterwards everything does.
fn nothing_runs_while_a_lock_is_held(lock: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(async { cluster().await.database().await });
    let data = tempfile::tempdir().unwrap();
    let server = replica(data.path(), database.url().expose(), &[]);
    let made = run(&server, "p", "runs = 1\nruns", json!({}));
    assert_eq!(made["structuredContent"]["output"], "1", "{made}");

    let mut holder = runtime.block_on(database.connect());
    runtime.block_on(async {
        let sql = format!("begin; {lock}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut holder).await.unwrap();
    });
    // More than the pool has connections, and long enough that a pool gives up.
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..14)
            .map(|_| scope.spawn(|| run(&server, "p", "runs += 1\nruns", json!({"timeout_ms": 8000}))))
            .collect();
        for call in calls {
            let result = call.join().unwrap();
            assert_eq!(error_code(&result), "store_busy", "{result}");
            let text = result["content"][0]["text"].as_str().unwrap();
            assert!(text.contains("database is") && text.contains("Nothing was run"), "{text}");
        }
    });
    assert_eq!(readiness(&server).0, 200);
    assert!(metric(&server, "store_not_done_total") >= 14.0);
    assert!(metric(&server, "execution_offline_total").abs() < 0.5);
    runtime.block_on(async { sqlx::raw_sql("rollback").execute(&mut holder).await.unwrap() });

    wait_for("the context serves again", || {
        let result = run(&server, "p", "runs", json!({}));
        let content = &result["structuredContent"];
        content["output"] == "1" && content["state"] == "kept"
    });
    let completed = runtime.block_on(async {
        let mut connection = database.connect().await;
        count(&mut connection, "select count(*) from pathbox.executions where status = 'completed'").await
    });
    assert!(completed >= 2, "{completed}");
}

async fn count(connection: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(connection).await.unwrap()
}

#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn a_pool_used_up_by_a_locked_row_is_a_busy_database() {
    nothing_runs_while_a_lock_is_held("select 1 from pathbox.execution_contexts for update");
}

#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn a_locked_table_is_a_busy_database() {
    nothing_runs_while_a_lock_is_held("lock table pathbox.execution_contexts in access exclusive mode");
}

#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn a_database_that_takes_no_writes_says_so_and_runs_nothing() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster: &'static Cluster =
        Box::leak(Box::new(Cluster::start(&["-c", "fsync=off", "-c", "synchronous_commit=off"])));
    let database = cluster.empty_database();
    let data = tempfile::tempdir().unwrap();
    let server = replica(data.path(), database.url().expose(), &[]);
    run(&server, "held", "runs = 1", json!({}));

    runtime.block_on(set_read_only(cluster, true));
    for path in ["held", "new"] {
        let refused = run(&server, path, "runs += 1", json!({}));
        assert_eq!(error_code(&refused), "store_read_only", "{refused}");
        let text = refused["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("takes no writes") && text.contains("Nothing was run"), "{text}");
    }
    let (status, text) = readiness(&server);
    assert_eq!((status, text.contains(r#""database":"read_only""#)), (200, true), "{text}");
    assert!(metric(&server, "store_up").abs() < 0.5);
    assert!(server.log().contains("takes no writes"), "{}", server.log());

    let checked = command(data.path())
        .args(["doctor", "--json"])
        .env("DATABASE_URL", database.url().expose())
        .output()
        .unwrap();
    let checks: Vec<Value> = serde_json::from_slice(&checked.stdout).unwrap();
    let check = checks.iter().find(|check| check["name"] == "database").unwrap();
    assert!(check["ok"] == false && check["detail"].as_str().unwrap().contains("takes no writes"), "{check}");
    assert!(check["remedy"].as_str().unwrap().contains("primary"), "{check}");

    runtime.block_on(set_read_only(cluster, false));
    wait_for("both paths serve again", || {
        ["held", "new"].iter().all(|path| run(&server, path, "1", json!({}))["isError"].is_null())
    });
    let kept = run(&server, "held", "runs", json!({}));
    assert_eq!(kept["structuredContent"]["output"], "1", "{kept}");
    assert!((metric(&server, "store_up") - 1.0).abs() < 0.5);
}

/// As an operator does before a switch-over.
async fn set_read_only(cluster: &Cluster, read_only: bool) {
    let mut connection = PgConnection::connect(&cluster.url("postgres", "postgres")).await.unwrap();
    let value = if read_only { "on" } else { "off" };
    for sql in [
        "set default_transaction_read_only = off".to_owned(),
        format!("alter system set default_transaction_read_only = {value}"),
        "select pg_reload_conf()".to_owned(),
    ] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }
    loop {
        let mut fresh = PgConnection::connect(&cluster.url("postgres", "postgres")).await.unwrap();
        let now: String =
            sqlx::query_scalar("show default_transaction_read_only").fetch_one(&mut fresh).await.unwrap();
        if now == value {
            return;
        }
    }
}

/// One caller on a path of its own. The program counts its runs itself, so a run that no one knows of would show.
struct Caller {
    path: String,
    succeeded: AtomicU32,
}

impl Caller {
    fn call_until(&self, server: &HttpServer, stop: &AtomicBool, refused: &AtomicU32) {
        while !stop.load(Ordering::SeqCst) {
            let number = self.succeeded.load(Ordering::SeqCst) + 1;
            let code = "runs = globals().get('runs', 0) + 1\nruns";
            let result = run(server, &self.path, code, json!({"purpose": format!("call {number}")}));
            if result["isError"] == true {
                assert!(error_code(&result).starts_with("store_"), "{result}");
                assert_eq!(result["_meta"]["dev.pathbox/error"]["retryable"], true, "{result}");
                refused.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            let content = &result["structuredContent"];
            assert_eq!(content["output"], number.to_string().as_str(), "{} {number}: {result}", self.path);
            self.succeeded.store(number, Ordering::SeqCst);
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

#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn a_failover_in_mid_load_loses_no_record_and_runs_nothing_twice() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let primary: &'static Cluster = Box::leak(Box::new(Cluster::start(&["-c", "fsync=off"])));
    let database = primary.empty_database();
    let standby: &'static Cluster = Box::leak(Box::new(primary.standby()));
    // What is committed is on both, as where no record may be lost.
    runtime.block_on(async {
        let mut connection = PgConnection::connect(&primary.url("postgres", "postgres")).await.unwrap();
        for sql in ["alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"] {
            sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
        }
    });
    let url = primary.url_with(standby, &database);
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let servers = [replica(directories[0].path(), &url, &[]), replica(directories[1].path(), &url, &[])];
    let callers: Vec<Caller> =
        (0..4).map(|n| Caller { path: format!("p{n}"), succeeded: AtomicU32::new(0) }).collect();
    let (stop, refused) = (AtomicBool::new(false), AtomicU32::new(0));
    let succeeded = || callers.iter().map(|it| it.succeeded.load(Ordering::SeqCst)).collect::<Vec<_>>();
    let more = |than: &[u32], by: u32| succeeded().iter().zip(than).all(|(now, before)| *now >= before + by);
    let failed = || stop.load(Ordering::SeqCst);

    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        for (n, caller) in callers.iter().enumerate() {
            let (server, stop, refused) = (&servers[n % 2], &stop, &refused);
            scope.spawn(move || {
                let _stop = Stop(stop);
                caller.call_until(server, stop, refused);
            });
        }
        wait_for("the load runs", || failed() || more(&[0; 4], 5));
        runtime.block_on(set_read_only(primary, true));
        let before = refused.load(Ordering::SeqCst);
        wait_for("a read-only primary is noticed", || failed() || refused.load(Ordering::SeqCst) > before);
        let promoted = Instant::now();
        standby.promote();
        let before = succeeded();
        wait_for("every path serves again", || failed() || more(&before, 1));
        println!("calls succeed again {} ms after the promotion", promoted.elapsed().as_millis());
        primary.stop();
        let before = succeeded();
        wait_for("and goes on without the old primary", || failed() || more(&before, 5));
        for server in &servers {
            assert_eq!(readiness(server).0, 200);
        }
        assert!(!failed(), "a caller met something else");
    });

    let expected: BTreeMap<String, i64> =
        callers.iter().map(|it| (it.path.clone(), i64::from(it.succeeded.load(Ordering::SeqCst)))).collect();
    println!(
        "{} runs, {} refused and tried again",
        expected.values().sum::<i64>(),
        refused.load(Ordering::SeqCst)
    );
    runtime.block_on(async {
        let mut connection = PgConnection::connect(&standby.url(database.name(), "postgres")).await.unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let recorded: Vec<(String, i64)> = sqlx::query_as(
                "select path_id, count(*) from pathbox.executions where status = 'completed' group by 1 order by 1",
            )
            .fetch_all(&mut connection)
            .await
            .unwrap();
            let recorded: BTreeMap<String, i64> = recorded.into_iter().collect();
            if recorded == expected {
                break;
            }
            assert!(Instant::now() < deadline, "recorded {recorded:?}, run {expected:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// PgBouncer in transaction mode over a database, with two server connections; ends with the value.
struct Pooler {
    child: Child,
    dir: tempfile::TempDir,
    name: String,
}

impl Pooler {
    fn to(cluster: &Cluster, database: &Database) -> Self {
        let dir = tempfile::Builder::new().prefix("pathbox-pooler-").tempdir_in("/tmp").unwrap();
        let account = unprivileged_account();
        let (here, there) = (dir.path().display(), cluster.socket().parent().unwrap().display().to_string());
        let name = database.name().to_owned();
        let settings = format!(
            "[databases]\n{name} = host={there} dbname={name} user=postgres\n\
             [pgbouncer]\nlisten_port = 5432\nlisten_addr =\nunix_socket_dir = {here}\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\nlogfile = {here}/log\n\
             pidfile = {here}/pid\nignore_startup_parameters = extra_float_digits,options\n"
        );
        std::fs::File::create(dir.path().join("ini")).unwrap().write_all(settings.as_bytes()).unwrap();
        if let Some((uid, gid)) = account {
            std::os::unix::fs::chown(dir.path(), Some(uid), Some(gid)).unwrap();
            std::os::unix::fs::chown(dir.path().join("ini"), Some(uid), Some(gid)).unwrap();
        }
        let mut command = Command::new("pgbouncer");
        command
            .arg("-q")
            .arg(dir.path().join("ini"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = crate::support::database::run_as(&mut command, account).spawn();
        let child = child.expect("no pgbouncer: scripts/test installs it");
        let pooler = Self { child, dir, name };
        let socket = pooler.dir.path().join(".s.PGSQL.5432");
        wait_for("the pooler listens", || socket.exists());
        pooler
    }

    fn url(&self) -> String {
        format!("postgres://postgres@localhost/{}?host={}", self.name, self.dir.path().display())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs on six paths at once, a few times. What was refused.
fn six_at_once(server: &HttpServer) -> Vec<Value> {
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..5)
            .map(|n| {
                scope.spawn(move || {
                    let path = format!("p{n}");
                    (0..8).map(|_| run(server, &path, "1", json!({}))).collect::<Vec<_>>()
                })
            })
            .collect();
        let results = callers.into_iter().flat_map(|caller| caller.join().unwrap());
        results.filter(|result| result["structuredContent"]["output"] != "1").collect()
    })
}

#[test]
#[ignore = "needs PostgreSQL and PgBouncer: scripts/test installs them"]
fn a_pooler_in_transaction_mode_works_when_it_is_named_and_is_named_when_it_does_not() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster: &'static Cluster = runtime.block_on(cluster());
    let database = cluster.empty_database();
    let pooler = Pooler::to(cluster, &database);
    let data = tempfile::tempdir().unwrap();
    // Migrations go through it too.
    let server = replica(data.path(), &pooler.url(), &[("PATHBOX_DATABASE_POOLER", "transaction")]);
    assert_eq!(six_at_once(&server), [Value::Null; 0]);
    drop(server);

    let data = tempfile::tempdir().unwrap();
    let server = replica(data.path(), &pooler.url(), &[]);
    assert!(!six_at_once(&server).is_empty(), "named statements through a pooler in transaction mode");
    let log = server.log();
    assert!(
        log.contains(r#"database.pooler = \"transaction\""#)
            || log.contains(r#"database.pooler = "transaction""#),
        "{log}"
    );
}

/// A full disk under the data directory is said at once, as what it is, and is over when there is room.
#[test]
#[ignore = "needs the right to mount a small disk: scripts/test as root"]
fn a_full_disk_under_the_data_directory_is_reported_at_once() {
    let disk = Disk::new(6);
    let mut server = Server::start(&disk.0);
    let made = server.python("kept = 1");
    assert_eq!(made["structuredContent"]["success"], true, "{made}");
    let filler = disk.0.join("filler");
    crate::support::database::fill(&filler);
    // What is left in the log's last page may still take a call or two.
    let refused = (0..200).map(|_| server.python("kept")).find(|result| result["isError"] == true);
    let refused = refused.expect("the disk never filled");
    assert_eq!(error_code(&refused), "store_full", "{refused}");
    let text = refused["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("server's disk") && text.contains("keep the context"), "{text}");
    assert!(!text.contains("reset"), "{text}");
    // And the next one too: what could not be written down does not make it wait.
    let refused = server.python("kept");
    assert_eq!(error_code(&refused), "store_full", "{refused}");

    std::fs::remove_file(filler).unwrap();
    let kept = server.python("kept");
    assert_eq!(kept["structuredContent"]["output"], "1", "{kept}");
    assert_eq!(kept["structuredContent"]["state"], "kept", "{kept}");
}

/// A readiness probe does not write: it says what the last writes found, and that it is over.
#[test]
#[ignore = "needs the right to mount a small disk: scripts/test as root"]
fn readyz_says_that_the_disk_is_full_and_what_is_refused_until_there_is_room() {
    let disk = Disk::new(6);
    let server = HttpServer::start(&disk.0);
    let database = || {
        let (status, body) = readiness(&server);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str::<Value>(&body).unwrap()
    };
    let count = || run(&server, "held", "1", json!({}));
    count();
    assert_eq!(database()["database"], "serves");
    let filler = disk.0.join("filler");
    crate::support::database::fill(&filler);
    let refused = (0..200).map(|_| count()).find(|result| result["isError"] == true);
    assert_eq!(error_code(&refused.expect("the disk never filled")), "store_full");
    let said = database();
    assert_eq!(said["database"], "full", "{said}");
    let check = said["checks"].as_array().unwrap().iter().find(|check| check["name"] == "database").unwrap();
    assert!(check["ok"] == false && check["effect"].as_str().unwrap().contains("store_full"), "{said}");
    let at = |said: &Value| {
        let checks = said["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == "database").unwrap();
        check["at"].as_str().map(|at| at.parse::<chrono::DateTime<chrono::Utc>>().unwrap())
    };
    let refused_at = at(&said).expect("the time of the write that found no room");
    std::fs::remove_file(filler).unwrap();
    // Nothing has tried since: it is known as of then, and says so.
    let said = database();
    assert_eq!((&said["database"], at(&said)), (&json!("full"), Some(refused_at)), "{said}");
    assert_eq!(count()["structuredContent"]["output"], "1");
    let said = database();
    assert_eq!((&said["database"], at(&said)), (&json!("serves"), None), "{said}");
}

/// The same under a Postgres: nothing is taken for a database that is away, nothing runs twice, and records follow.
#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn a_full_disk_under_postgres_is_reported_as_such_and_loses_nothing() {
    let disk = match Disk::mounted(32) {
        Ok(disk) => disk,
        Err(why) => return eprintln!("left out: a small disk cannot be mounted here: {why}"),
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(&["-c", "fsync=off"])));
    let database = runtime.block_on(cluster.database_on(&disk));
    let data = tempfile::tempdir().unwrap();
    let server = replica(data.path(), database.url().expose(), &[]);
    let count = || run(&server, "held", "runs = globals().get('runs', 0) + 1\nruns", json!({}));
    let mut runs = 0_i64;
    let mut counts = |result: &Value| {
        runs += 1;
        assert_eq!(result["structuredContent"]["output"], runs.to_string().as_str(), "{result}");
    };
    counts(&count());

    let filler = disk.0.join("filler");
    crate::support::database::fill(&filler);
    // The pages that are there take some calls yet.
    let refused = loop {
        let result = count();
        if result["isError"] == true {
            break result;
        }
        counts(&result);
    };
    assert_eq!(error_code(&refused), "store_full", "{refused}");
    let text = refused["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("server's disk") && text.contains("keep the context"), "{text}");
    assert!(!text.contains("reset"), "{text}");
    assert_eq!(error_code(&count()), "store_full");
    let (status, body) = readiness(&server);
    assert!(status == 200 && body.contains(r#""database":"full""#), "{body}");
    let offline = metric(&server, "execution_offline_total");
    assert!(offline.abs() < 0.5, "a full disk is no reason to run without the lease");

    std::fs::remove_file(filler).unwrap();
    let served = loop {
        let result = count();
        if result["isError"] != true {
            break result;
        }
        assert_eq!(error_code(&result), "store_full", "{result}");
        std::thread::sleep(Duration::from_millis(50));
    };
    counts(&served);
    runtime.block_on(all_recorded(&database, runs));
}

/// A full disk under the write-ahead log ends the server of the database, which cannot start again before there is room.
/// Meanwhile that is a database that is away: runs go on under their lease, then are refused, and each is recorded once.
#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn a_full_disk_under_the_write_ahead_log_loses_and_doubles_nothing() {
    let disk = match Disk::mounted(96) {
        Ok(disk) => disk,
        Err(why) => return eprintln!("left out: a small disk cannot be mounted here: {why}"),
    };
    let settings = ["-c", "fsync=off", "-c", "max_wal_size=32MB", "-c", "min_wal_size=32MB"];
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(&settings)));
    cluster.stop();
    cluster.log_on(&disk);
    cluster.serve();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = cluster.empty_database();
    let data = tempfile::tempdir().unwrap();
    let server =
        replica(data.path(), database.url().expose(), &[("PATHBOX_CONTEXTS_REPLICA_LEASE_SECONDS", "4")]);
    let count = || run(&server, "held", "runs = globals().get('runs', 0) + 1\nruns", json!({}));
    let mut runs = 0_i64;
    let mut counts = |result: &Value| {
        runs += 1;
        assert_eq!(result["structuredContent"]["output"], runs.to_string().as_str(), "{result}");
    };
    counts(&count());

    let filler = disk.0.join("filler");
    crate::support::database::fill(&filler);
    // What of the log is there already is written to the end, until the server gives up.
    let given_up = runtime.block_on(async {
        let mut other = PgConnection::connect(database.url().expose()).await.unwrap();
        let writes = "create table if not exists filler (t text); insert into filler
                      select repeat(md5(n::text), 20) from generate_series(1, 20000) n";
        for _ in 0..100 {
            if sqlx::raw_sql(writes).execute(&mut other).await.is_err() {
                return true;
            }
        }
        false
    });
    assert!(given_up, "the log grew on a full disk");
    let deadline = Instant::now() + PATIENCE;
    let refused = loop {
        let result = count();
        if result["isError"] == true {
            break result;
        }
        counts(&result);
        assert!(Instant::now() < deadline, "never refused");
    };
    assert_eq!(error_code(&refused), "store_unavailable", "{refused}");
    let text = refused["content"][0]["text"].as_str().unwrap();
    assert!(!text.contains("reset"), "{text}");

    std::fs::remove_file(filler).unwrap();
    cluster.serve_again();
    let served = loop {
        let result = count();
        if result["isError"] != true {
            break result;
        }
        assert_eq!(error_code(&result), "store_unavailable", "{result}");
        assert!(Instant::now() < deadline, "never served again");
        std::thread::sleep(Duration::from_millis(50));
    };
    counts(&served);
    runtime.block_on(all_recorded(&database, runs));
}

/// A run that the end of the server cuts off was not cancelled by anyone: its key does not replay it.
#[test]
fn a_server_that_ends_records_its_runs_as_interrupted() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_SHUTDOWN_GRACE_SECONDS", "0"));
    let meta = json!({"dev.pathbox/conversationId": "c", "progressToken": 1});
    let arguments = json!({
        "code": "import time\nprint('here', flush=True)\nwhile True: time.sleep(0.01)",
        "language": "python", "timeout_ms": 600_000, "idempotency_key": "once"
    });
    let mut reply = server.stateless(&[], "run_code", arguments.clone(), meta);
    while !reply.message().unwrap().data.contains("running") {}
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    wait_for("the server ends", || !crate::support::server::alive(server.child.id()));
    drop(reply);
    assert!(!server.log().contains("not every run could be recorded"), "{}", server.log());
    drop(server);

    let server = HttpServer::start(data.path());
    let meta = json!({"dev.pathbox/conversationId": "c"});
    let again = server.stateless(&[], "run_code", arguments, meta).answer()["result"].take();
    assert_eq!(error_code(&again), "interrupted", "{again}");
}

/// A database file that is deleted or replaced underneath takes no more commits that no one would ever see.
#[test]
fn a_database_file_that_was_replaced_is_noticed() {
    for replace in [false, true] {
        let data = tempfile::tempdir().unwrap();
        let mut server = Server::start(data.path());
        let made = server.python("1");
        assert_eq!(made["structuredContent"]["output"], "1", "{made}");
        let file = data.path().join("pathbox.db");
        std::fs::rename(&file, data.path().join("elsewhere")).unwrap();
        if replace {
            std::fs::copy(data.path().join("elsewhere"), &file).unwrap();
        }
        let refused = server.python("1");
        assert_eq!(error_code(&refused), "internal", "{refused}");
        std::fs::rename(data.path().join("elsewhere"), &file).unwrap();
        let serves = server.python("2");
        assert_eq!(serves["structuredContent"]["output"], "2", "back in its place: {serves}");
    }
}
