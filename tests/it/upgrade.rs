//! What earlier releases stored, read by this program; and a rolling upgrade from the release before, when its binary is
//! at hand (`scripts/upgrade` builds it).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

use crate::store_migrations::migrations;
use crate::support::database::{Cluster, TEST_KEY, cluster};
use crate::support::http::{HttpServer, modern_meta};
use crate::support::server::command;

/// Releases whose rows are kept in `tests/fixtures/stored`; `scripts/stored` writes them.
fn releases() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/stored");
    let found: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!found.is_empty());
    found
}

fn read(release: &Path, name: &str) -> String {
    std::fs::read_to_string(release.join(name)).unwrap()
}

/// What the release's program was asked and what it answered.
fn facts(release: &Path, kind: &str) -> Value {
    serde_json::from_str(&read(release, &format!("{kind}.json"))).unwrap()
}

fn server(data: &Path, more: &[(&str, &str)]) -> HttpServer {
    let mut command = command(data);
    HttpServer::start_with(command.env("PATHBOX_SECRET_KEYS", TEST_KEY).envs(more.iter().copied()))
}

fn call(server: &HttpServer, facts: &Value, tool: &str, arguments: &Value) -> Value {
    let bearer = format!("Bearer {}", facts["key"].as_str().unwrap());
    let meta = match arguments.get("context") {
        Some(_) => json!({}),
        None => json!({"conversationId": "kept"}),
    };
    server.stateless(&[("Authorization", &bearer)], tool, arguments.clone(), meta).answer()["result"].take()
}

fn error_code(result: &Value) -> &str {
    result["_meta"]["dev.pathbox/error"]["code"].as_str().unwrap_or_default()
}

/// Everything that the release's program stored opens: its key, its handle, its results, its numbering.
fn everything_opens(server: &HttpServer, facts: &Value) {
    for (name, then) in facts["answers"].as_object().unwrap() {
        let now = call(server, facts, "get_execution", &json!({"execution_id": then["executionId"]}));
        let again = call(server, facts, "run_code", &facts["calls"][name]);
        assert_eq!(
            again["structuredContent"]["executionId"], then["executionId"],
            "{name} ran twice: {again}"
        );
        for now in [&now["structuredContent"], &again["structuredContent"]] {
            let same = |now: &Value, then: &Value| {
                *now == *then || (now.is_null() && (*then == json!("") || *then == json!(0)))
            };
            // An error's words stand under `error` alone now.
            let members: &[&str] = match then["error"] {
                Value::Null => &["stdout", "stderr", "exitCode", "output"],
                _ => &["stdout", "stderr", "exitCode"],
            };
            for member in members {
                assert!(same(&now[member], &then[member]), "{name}, {member}: {now} for {then}");
            }
            for member in ["name", "message"] {
                // An exit status had no name before.
                let then = match (member, &then["error"][member]) {
                    ("name", then) if *then == json!("") => &json!("ExitStatus"),
                    (_, then) => then,
                };
                assert_eq!(now["error"][member], *then, "{name}: {now}");
            }
            assert_eq!(now["guard"]["findings"], then["guard"]["findings"], "{name}: {now}");
        }
    }
    // A key is good for its arguments alone, and what was cut off is not run again.
    let mut other = facts["calls"]["value"].clone();
    other["code"] = json!("2");
    assert_eq!(error_code(&call(server, facts, "run_code", &other)), "idempotency_conflict");
    let cut = call(server, facts, "run_code", &facts["calls"]["cut"]);
    assert_eq!(error_code(&cut), "interrupted", "{cut}");

    // The handle leads to the context, whose sandbox is gone, and whose numbers go on.
    let print = json!({
        "context": facts["handle"], "language": "python",
        "code": "print('carl@corp.example.org', 'bob@corp.example.org', 'ann@corp.example.org')"
    });
    let run = call(server, facts, "run_code", &print);
    let content = &run["structuredContent"];
    assert_eq!(
        (&content["stdout"], &content["state"]),
        (&json!("[EMAIL_3] [EMAIL_2] [EMAIL_1]\n"), &json!("reset")),
        "{run}"
    );
}

/// A record that a newer program wrote is named as such, and not shown as if nothing had been kept.
fn a_newer_form_is_named(server: &HttpServer, facts: &Value) {
    let id = &facts["answers"]["value"]["executionId"];
    for (tool, arguments) in
        [("get_execution", json!({"execution_id": id})), ("run_code", facts["calls"]["value"].clone())]
    {
        let refused = call(server, facts, tool, &arguments);
        assert_eq!((&refused["isError"], error_code(&refused)), (&json!(true), "internal"), "{refused}");
        let text = refused["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("form 9, written by a newer version of Pathbox"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_each_release_stored_in_sqlite_is_read() {
    for release in releases() {
        let (data, facts) = (tempfile::tempdir().unwrap(), facts(&release, "sqlite"));
        let file = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(data.path().join("pathbox.db"))
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
        let mut database = SqliteConnection::connect_with(&file).await.unwrap();
        // As if it had been written just now: keys of runs are kept for a day, records for a month. The replica is gone.
        let young = "UPDATE executions SET created_at = unixepoch() * 1000, finished_at = unixepoch() * 1000
                      WHERE finished_at IS NOT NULL;
                     UPDATE executions SET created_at = unixepoch() * 1000, lease_expires_at = 1 WHERE status = 'running';";
        let sql = read(&release, "sqlite.sql") + young;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut database).await.unwrap();
        let server = server(data.path(), &[]);
        everything_opens(&server, &facts);
        // What has ended is frozen; here a newer program has written it.
        let newer = "DROP TRIGGER guard_ended_execution; UPDATE executions SET result = json_set(result, '$.format', 9) WHERE result IS NOT NULL";
        sqlx::raw_sql(newer).execute(&mut database).await.unwrap();
        a_newer_form_is_named(&server, &facts);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
async fn data_that_each_release_stored_in_postgres_is_read() {
    for release in releases() {
        let (data, facts) = (tempfile::tempdir().unwrap(), facts(&release, "postgres"));
        let database = cluster().await.empty_database();
        let mut admin = database.connect().await;
        let rows = read(&release, "postgres.sql");
        let mut sql = String::from(
            "create schema pathbox;
             create table pathbox.migrations (version bigint primary key, name text not null, checksum bytea not null,
                 applied_at timestamptz not null default clock_timestamp());",
        );
        // The release's own migrations; the rows say which those are.
        let own = migrations("postgres").into_iter();
        let own =
            own.filter(|(version, ..)| rows.contains(&format!("pathbox.migrations VALUES ({version},")));
        own.for_each(|(_, _, text)| sql.push_str(&text));
        sql.push_str(&rows);
        sql.push_str(
            "update pathbox.executions set created_at = clock_timestamp(), finished_at = clock_timestamp()
              where finished_at is not null;
             update pathbox.executions set created_at = clock_timestamp(), lease_expires_at = 'epoch'
              where status = 'running'",
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
        let server = server(data.path(), &[("DATABASE_URL", database.url().expose())]);
        everything_opens(&server, &facts);
        // What has ended is frozen; here a newer program has written it.
        let newer = "set session_replication_role = replica;
                     update pathbox.executions set result = (result::jsonb || '{\"format\": 9}')::json
                      where result is not null";
        sqlx::raw_sql(newer).execute(&mut admin).await.unwrap();
        a_newer_form_is_named(&server, &facts);
    }
}

/// The binary of the release before, when someone has built it.
fn previous() -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "scripts/upgrade says where its binary is")]
    let binary = std::env::var("PATHBOX_PREVIOUS_BINARY").ok();
    if binary.is_none() {
        eprintln!("left out: scripts/upgrade builds the binary of the release before");
    }
    binary
}

/// The same command with another binary.
fn of(binary: &str, like: &Command) -> Command {
    let mut command = Command::new(binary);
    command.env_clear();
    for (name, value) in like.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    command
}

/// Callers that go on while replicas come and go. Each counts in its own sandbox, under a new key for each call.
struct Load {
    addresses: Mutex<Vec<String>>,
    stop: AtomicBool,
    calls: Vec<AtomicU32>,
    tried_again: AtomicU32,
}

impl Load {
    async fn run(self: Arc<Self>, n: usize) {
        let client = crate::host::client();
        while !self.stop.load(Ordering::SeqCst) {
            let number = self.calls[n].load(Ordering::SeqCst) + 1;
            let params = json!({
                "name": "run_code", "_meta": modern_meta(json!({"conversationId": format!("c{n}")})),
                "arguments": {
                    "language": "python", "idempotency_key": format!("{n}-{number}"),
                    "code": format!("runs = globals().get('runs', 0) + 1\n(runs, {number})")
                }
            });
            let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
            let mut turn = n;
            let answer = loop {
                let address = {
                    let all = self.addresses.lock().unwrap();
                    all[turn % all.len()].clone()
                };
                if let Some(answer) = ask(&client, &address, &message).await {
                    break answer;
                }
                self.tried_again.fetch_add(1, Ordering::SeqCst);
                turn += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            };
            let content = &answer["structuredContent"];
            let expected = format!("({number}, {number})");
            assert_eq!(content["output"], expected.as_str(), "c{n}: run twice, or lost: {answer}");
            self.calls[n].store(number, Ordering::SeqCst);
        }
    }
}

/// An answer of a tool, unless the replica is gone, going, or not there yet.
async fn ask(client: &reqwest::Client, address: &str, message: &Value) -> Option<Value> {
    let sent = client
        .post(format!("http://{address}/mcp"))
        .header("Accept", "application/json, text/event-stream")
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", "tools/call")
        .header("Mcp-Name", "run_code")
        .json(message)
        .send();
    let text = sent.await.ok()?.text().await.ok()?;
    let last = text.lines().filter_map(|line| line.strip_prefix("data:")).next_back().unwrap_or(&text);
    let mut answer: Value = serde_json::from_str(last).ok()?;
    let result = answer.get_mut("result")?.take();
    let code = error_code(&result).to_owned();
    if result["isError"] == true {
        let passes =
            ["store_unavailable", "store_busy", "queue_timeout", "shutting_down", "sandbox_unavailable"];
        assert!(passes.contains(&code.as_str()), "{result}");
        return None;
    }
    Some(result)
}

/// Two replicas of the release before are replaced by two of this program, one after the other, under load.
#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn two_replicas_of_the_release_before_are_replaced_under_load() {
    let Some(previous) = previous() else { return };
    let cluster: &'static Cluster = Box::leak(Box::new(Cluster::start(&["-c", "fsync=off"])));
    let database = cluster.empty_database();
    let dirs: Vec<_> = (0..5).map(|_| tempfile::tempdir().unwrap()).collect();
    let (_host, url) = crate::topologies::host(dirs[4].path());
    let like = |n: usize| {
        let mut like = command(dirs[n].path());
        like.env("DATABASE_URL", database.url().expose()).env("PATHBOX_SECRET_KEYS", TEST_KEY);
        like.env("E2B_API_KEY", crate::topologies::API_KEY)
            .env("E2B_API_URL", &url)
            .env("E2B_SANDBOX_URL", &url);
        like.env("PATHBOX_CONTEXTS_MAX_EXECUTIONS", "1000000");
        like
    };
    let old = |n: usize| HttpServer::start_with(&mut of(&previous, &like(n)));
    let new = |n: usize| HttpServer::start_with(&mut like(n));
    let (first, second) = (old(0), old(1));
    let load = Arc::new(Load {
        addresses: Mutex::new(vec![first.address.clone(), second.address.clone()]),
        stop: AtomicBool::new(false),
        calls: (0..4).map(|_| AtomicU32::new(0)).collect(),
        tried_again: AtomicU32::new(0),
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let callers: Vec<_> = (0..4).map(|n| runtime.spawn(Arc::clone(&load).run(n))).collect();
    let counts = || load.calls.iter().map(|calls| calls.load(Ordering::SeqCst)).collect::<Vec<_>>();
    let goes_on = |what: &str| {
        let before = counts();
        while !counts().iter().zip(&before).all(|(now, before)| *now >= before + 5) {
            assert!(!callers.iter().any(tokio::task::JoinHandle::is_finished), "a caller failed: {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
        println!("{what}: calls {:?}, tried again {}", counts(), load.tried_again.load(Ordering::SeqCst));
    };
    let replace = |at: usize, with: &HttpServer| load.addresses.lock().unwrap()[at].clone_from(&with.address);

    goes_on("two of the release before");
    let third = new(2);
    replace(0, &third);
    goes_on("one of each, on the migrated schema");
    drop(first);
    goes_on("the first has gone");
    let fourth = new(3);
    replace(1, &fourth);
    drop(second);
    goes_on("two of this program");
    load.stop.store(true, Ordering::SeqCst);
    for caller in callers {
        runtime.block_on(caller).unwrap();
    }
    let total: u32 = counts().iter().sum();
    let recorded = runtime.block_on(async {
        let mut admin = PgConnection::connect(&cluster.url(database.name(), "postgres")).await.unwrap();
        let sql = "select count(*) from pathbox.executions where status = 'completed'";
        sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut admin).await.unwrap()
    });
    assert_eq!(recorded, i64::from(total), "a record for each call");

    // Back again: does the release before start on this schema?
    drop(third);
    let data = tempfile::tempdir().unwrap();
    let back = of(&previous, &like(0)).env("PATHBOX_DATA_DIR", data.path()).arg("doctor").output().unwrap();
    let said = String::from_utf8_lossy(&back.stdout);
    println!(
        "the release before, started anew: {}",
        said.lines().find(|line| line.contains("database")).unwrap_or(&said)
    );
}
