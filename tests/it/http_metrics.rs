//! What is counted, read through `/metrics` as Prometheus reads it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::http::HttpServer;
use crate::support::server::command;

/// Sample names with labels, and their values. Fails on a line that is not of the format.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    let mut told: Option<String> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            assert!(rest.split_once(' ').is_some_and(|(_, help)| !help.is_empty()), "{line}");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            told = Some(name.to_owned());
            continue;
        }
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        assert!(name.starts_with(told.as_deref().unwrap()), "{line} stands under another name");
        let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(found.insert(name.to_owned(), value).is_none(), "{line} is there twice");
    }
    found
}

pub(crate) fn read(server: &HttpServer) -> BTreeMap<String, f64> {
    let mut reply = server.send("GET", "/metrics", &[], b"");
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    reply.expect_ok();
    samples(&reply.text())
}

#[test]
fn runs_contexts_findings_and_latencies_are_counted_and_no_identifier_is_a_label() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let meta = json!({"dev.pathbox/conversationId": "chat-4711", "dev.pathbox/pathId": "path-0815"});
    let run_for = |code: &str, language: &str, timeout_ms: u32| {
        let arguments = json!({"code": code, "language": language, "timeout_ms": timeout_ms});
        server.stateless(&[], "run_code", arguments, meta.clone()).answer()["result"].take()
    };
    let run = |code: &str, language: &str| run_for(code, language, 60_000);
    run("print('mary.murphy@example.ie')", "python");
    run("1 / 0", "python");
    run("exit 3", "bash");
    run_for("while True: pass", "python", 1_000);
    let end = json!({"action": "end"});
    server.stateless(&[], "manage_context", end, meta.clone()).answer();
    run("1", "python");
    let unknown = json!({"code": "1", "language": "python", "context": "ctx_none"});
    server.stateless(&[], "run_code", unknown, json!({})).answer();

    let began = Instant::now();
    let seen = loop {
        let seen = read(&server);
        // The ended context's sandbox is killed in the background.
        if seen.contains_key("execution_context_terminated_total{reason=\"manual\"}") {
            break seen;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{seen:#?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    // A bucket of the latency leads to a run in it, for a collector that reads OpenMetrics.
    let accept = [("Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")];
    let mut open = server.send("GET", "/metrics", &accept, b"");
    assert!(open.header("content-type").unwrap().starts_with("application/openmetrics-text; version=1.0.0"));
    let open = open.text();
    let led = |line: &&str| {
        line.starts_with("code_execution_duration_ms_bucket") && line.contains(" # {trace_id=\"")
    };
    assert!(open.lines().any(|line| led(&line)) && open.ends_with("\n# EOF\n"), "{open}");
    for (name, least, most) in [
        ("execution_context_created_total", 2.0, 2.0),
        ("execution_context_terminated_total{reason=\"manual\"}", 1.0, 1.0),
        ("execution_context_active", 1.0, 1.0),
        ("code_execution_total{language=\"python\",outcome=\"completed\"}", 2.0, 2.0),
        ("code_execution_total{language=\"python\",outcome=\"failed\"}", 1.0, 1.0),
        ("code_execution_total{language=\"bash\",outcome=\"failed\"}", 1.0, 1.0),
        ("code_execution_total{language=\"python\",outcome=\"timed_out\"}", 1.0, 1.0),
        ("code_execution_duration_ms_count{language=\"python\"}", 4.0, 4.0),
        ("code_execution_duration_ms_sum{language=\"python\"}", 1_000.0, 60_000.0),
        ("code_execution_queue_wait_ms_count", 5.0, 5.0),
        ("sandbox_create_duration_ms_count{outcome=\"ok\"}", 2.0, 2.0),
        ("guard_findings_total{kind=\"EMAIL\"}", 1.0, 1.0),
        ("guard_bytes_total", 10.0, 100_000.0),
        ("db_client_duration_ms_count{operation=\"acquire\"}", 5.0, 1e6),
        ("db_client_duration_ms_count{operation=\"record\"}", 5.0, 5.0),
        ("e2b_client_duration_ms_count{operation=\"control\"}", 2.0, 1e6),
        ("sandbox_leaked_total", 0.0, 0.0),
        ("execution_context_lost_total", 0.0, 0.0),
        ("sandbox_kill_failures_total", 0.0, 0.0),
        ("sandbox_pool_size", 0.0, 100.0),
    ] {
        let value = seen.get(name).unwrap_or_else(|| panic!("{name} is missing: {seen:#?}"));
        assert!((least..=most).contains(value), "{name} is {value}");
    }
    for name in seen.keys() {
        for secret in ["chat-4711", "path-0815", "local", "ctx_", "murphy"] {
            assert!(!name.contains(secret), "{name}");
        }
    }
}

#[test]
fn a_run_that_cannot_be_done_is_counted_by_its_error_code() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_CONTEXTS_PER_TENANT", "1"));
    for conversation in ["a", "b"] {
        let arguments = json!({"code": "1", "language": "python"});
        let meta = json!({"dev.pathbox/conversationId": conversation});
        server.stateless(&[], "run_code", arguments, meta).answer();
    }
    let seen = read(&server);
    assert_eq!(seen.get("code_execution_errors_total{kind=\"limit_reached\"}"), Some(&1.0), "{seen:#?}");
    assert_eq!(seen.get("code_execution_total{language=\"python\",outcome=\"refused\"}"), Some(&1.0));
}

#[test]
fn metrics_need_the_scope_admin() {
    let data = tempfile::tempdir().unwrap();
    let key = |scopes: &str| {
        let arguments = ["keys", "add", "--json", "--name", "k", "--tenant", "acme", "--scopes", scopes];
        let output = command(data.path()).args(arguments).output().unwrap();
        let made: Value = serde_json::from_slice(&output.stdout).unwrap();
        format!("Bearer {}", made["key"].as_str().unwrap())
    };
    let (user, admin) = (key("run,read"), key("admin"));
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_AUTH", "required"));
    assert_eq!(server.send("GET", "/metrics", &[], b"").status, 401);
    assert_eq!(server.send("GET", "/metrics", &[("Authorization", &user)], b"").status, 403);
    assert_eq!(server.send("GET", "/metrics", &[("Authorization", &admin)], b"").status, 200);
}
