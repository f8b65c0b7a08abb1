//! No metric is registered that nothing moves: each moves in the flow here, or a test elsewhere names it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::code_mode::{Place, until};
use crate::http_metrics::read;
use crate::support::http::HttpServer;

/// Metrics that no test moves, and why. The list only gets shorter.
const UNMOVED: &[(&str, &str)] = &[
    ("auth_key_fetches", "the tests of OAuth count at the issuer how often it is asked"),
    ("execution_results_dropped", "needs more results than fit while the database is away"),
    ("objects_failures", "needs a bucket that fails after all tries, for seconds"),
    ("host_network_bytes", "needs a network that a sandbox may reach"),
    ("host_sandbox_limits_met", "which limits there are is the machine's matter"),
    ("sandbox_reconnect_duration_ms", "no provider at hand pauses a sandbox by itself"),
];

fn registered(server: &HttpServer) -> Vec<String> {
    let mut reply = server.send("GET", "/metrics", &[], b"");
    let text = reply.text();
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    names.map(str::to_owned).collect()
}

fn moved(seen: &BTreeMap<String, f64>, name: &str) -> bool {
    // A gauge may stand at nought; a counter that does has not moved.
    let is_counter = name.ends_with("_total");
    let of = |sample: &str| {
        let bare = sample.split('{').next().unwrap_or_default();
        bare == name || bare.strip_suffix("_count").is_some_and(|bare| bare == name)
    };
    seen.iter().any(|(sample, value)| of(sample) && (!is_counter || *value > 0.0))
}

#[test]
fn every_registered_metric_moves_here_or_in_a_test_that_names_it() {
    let place = Place::new("", "", "[workflows]\nenabled = true\n");
    let server = HttpServer::start_with(&mut place.command());
    let call = |tool: &str, arguments: Value| {
        let meta = json!({"dev.pathbox/conversationId": "c"});
        server.stateless(&[], tool, arguments, meta).answer()["result"].take()
    };
    let code = "from tools import kit\nprint(kit.add(a=2, b=3)['sum'], 'mary.murphy@example.ie')";
    let ran = call("run_code", json!({"language": "python", "code": code, "timeout_ms": 60_000}));
    assert_eq!(ran["structuredContent"]["success"], true, "{ran:#}");
    let tasks = json!([{"id": "a", "type": "code_execution", "code": "print(1)", "hermetic": true}]);
    let begun = call("run_workflow", json!({"tasks": tasks}));
    let id = begun["structuredContent"]["workflowId"].clone();
    until(|| {
        let seen = call("get_workflow", json!({"workflow_id": id, "wait_ms": 10_000}));
        seen["structuredContent"]["status"] == "completed"
    });
    call("manage_context", json!({"action": "end"}));

    let tests = sources();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let still = loop {
        let (names, seen) = (registered(&server), read(&server));
        assert!(names.len() > 40, "{names:?}");
        let still: Vec<String> = names
            .into_iter()
            .filter(|name| !moved(&seen, name))
            .map(|name| name.trim_end_matches("_total").to_owned())
            .filter(|name| !tests.contains(name.as_str()))
            .collect();
        let new: Vec<&String> =
            still.iter().filter(|name| !UNMOVED.iter().any(|(known, _)| known == name)).collect();
        if new.is_empty() {
            break still;
        }
        assert!(std::time::Instant::now() < end, "no test moves {new:?}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    for (name, _) in UNMOVED {
        assert!(still.contains(&(*name).to_owned()), "{name} is moved now: take it from the list");
    }
}

/// The tests besides this one.
fn sources() -> String {
    let mut left = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it")];
    let mut text = String::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("metrics_moved.rs") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
    text
}
