//! Spans and metrics as a collector gets them. The collector is a fake, because a real one is neither away nor slow on
//! demand; what it gets is decoded with the messages of OpenTelemetry itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};

use crate::code_mode::Place;
use crate::e2b_door::Provider;
use crate::http_metrics::read;
use crate::support::fault_server::{FaultServer, Reply, Request, Step};
use crate::support::http::HttpServer;
use crate::support::server::{Server, command};
use crate::workflows::on;

/// How long a test waits for what must come. Generous: it bounds a hang, it measures nothing.
const PATIENCE: Duration = Duration::from_secs(60);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

struct Collector {
    server: FaultServer,
    _runtime: tokio::runtime::Runtime,
}

impl Collector {
    fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(FaultServer::start(answer));
        Self { server, _runtime: runtime }
    }

    fn sound() -> Self {
        Self::start(|_| Reply::new(200))
    }

    fn url(&self) -> String {
        format!("http://{}", self.server.addr)
    }

    /// Makes a command export here, its metrics twice a second.
    fn to<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", self.url()).env("OTEL_METRIC_EXPORT_INTERVAL", "500")
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.server.requests();
        let bodies = requests.iter().filter(|request| request.path == "/v1/traces").map(body);
        let messages = bodies.map(|body| ExportTraceServiceRequest::decode(body.as_slice()).unwrap());
        let resources = messages.flat_map(|message| message.resource_spans);
        resources.flat_map(|it| it.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    /// Waits for the spans of a trace, until these are among them.
    fn spans_of(&self, trace: &str, names: &[&str]) -> Vec<Span> {
        self.spans_when(trace, |spans| {
            names.iter().all(|name| spans.iter().any(|span| span.name == *name)).then(|| spans.to_vec())
        })
    }

    /// What is made of a trace's spans, once something can be.
    fn spans_when<T>(&self, trace: &str, make: impl Fn(&[Span]) -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut spans = self.spans();
            spans.retain(|span| hex(&span.trace_id) == trace);
            if let Some(made) = make(&spans) {
                return made;
            }
            assert!(Instant::now() < until, "no spans of {trace}: {:?}", self.server.lines());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for a report of the metrics that was made after this moment.
    fn next_metrics(&self) -> Vec<Metric> {
        let reports = || -> Vec<Request> {
            let requests = self.server.requests().into_iter();
            requests.filter(|request| request.path == "/v1/metrics").collect()
        };
        // One may be on its way.
        let wanted = reports().len() + 2;
        let until = Instant::now() + PATIENCE;
        loop {
            let seen = reports();
            if seen.len() >= wanted {
                let report = ExportMetricsServiceRequest::decode(seen[wanted - 1].body.as_slice()).unwrap();
                let scopes = report.resource_metrics.into_iter().flat_map(|it| it.scope_metrics);
                return scopes.flat_map(|scope| scope.metrics).collect();
            }
            assert!(Instant::now() < until, "no metrics: {:?}", self.server.lines());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What a request holds, unpacked.
fn body(request: &Request) -> Vec<u8> {
    match request.header("content-encoding") {
        Some("gzip") => {
            let mut out = Vec::new();
            flate2::read::GzDecoder::new(request.body.as_slice()).read_to_end(&mut out).unwrap();
            out
        }
        other => {
            assert_eq!(other, None);
            request.body.clone()
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(attribute: &KeyValue) -> String {
    match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => panic!("{}: {other:?}", attribute.key),
    }
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    span.attributes.iter().find(|attribute| attribute.key == key).map(text)
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn python(code: &str) -> Value {
    json!({"code": code, "language": "python"})
}

/// What `/metrics` calls these numbers.
fn as_samples(metrics: &[Metric]) -> BTreeMap<String, f64> {
    let labels = |attributes: &[KeyValue], bound: Option<String>| {
        let pairs = attributes.iter().map(|pair| (pair.key.as_str(), text(pair)));
        let pairs = pairs.chain(bound.map(|bound| ("le", bound)));
        let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}=\"{value}\"")).collect();
        if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
    };
    let int = |value: &Option<number_data_point::Value>| match value {
        Some(number_data_point::Value::AsInt(value)) => *value as f64,
        other => panic!("{other:?}"),
    };
    let mut samples = BTreeMap::new();
    for metric in metrics {
        let mut name = metric.name.replace('.', "_");
        match metric.data.as_ref().unwrap() {
            metric::Data::Sum(sum) => {
                assert!(sum.is_monotonic && sum.aggregation_temporality == 2, "{name}");
                if !name.ends_with("_total") {
                    name.push_str("_total");
                }
                for point in &sum.data_points {
                    assert!(point.start_time_unix_nano > 0);
                    samples.insert(format!("{name}{}", labels(&point.attributes, None)), int(&point.value));
                }
            }
            metric::Data::Gauge(gauge) => {
                for point in &gauge.data_points {
                    samples.insert(format!("{name}{}", labels(&point.attributes, None)), int(&point.value));
                }
            }
            metric::Data::Histogram(histogram) => {
                assert_eq!(histogram.aggregation_temporality, 2, "{name}");
                for point in &histogram.data_points {
                    let mut below = 0;
                    for (at, count) in point.bucket_counts.iter().enumerate() {
                        below += count;
                        let bound = point.explicit_bounds.get(at).map_or("+Inf".into(), f64::to_string);
                        let labels = labels(&point.attributes, Some(bound));
                        samples.insert(format!("{name}_bucket{labels}"), below as f64);
                    }
                    let labels = labels(&point.attributes, None);
                    samples.insert(format!("{name}_sum{labels}"), point.sum.unwrap());
                    samples.insert(format!("{name}_count{labels}"), point.count as f64);
                }
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    samples
}

#[test]
fn a_call_is_a_trace_of_its_caller_and_neither_code_nor_output_nor_secret_goes_out() {
    let (data, collector) = (tempfile::tempdir().unwrap(), Collector::sound());
    let headers = data.path().join("headers");
    std::fs::write(&headers, "api-key=planted%20header%201\n").unwrap();
    let mut command = command(data.path());
    collector
        .to(&mut command)
        .env("OTEL_EXPORTER_OTLP_HEADERS_FILE", &headers)
        .env("OTEL_SERVICE_NAME", "box-of-tests");
    let server = HttpServer::start_with(&mut command);
    let run = |trace: &str, flags: &str, code: &str| {
        let meta = json!({"dev.pathbox/conversationId": "chat-4711", "dev.pathbox/pathId": "path-0815"});
        let parent = format!("00-{trace}-{CALLER}-{flags}");
        server.stateless(&[("traceparent", &parent)], "run_code", python(code), meta).answer()
    };
    let unwatched = "0af7651916cd43dd8448eb211c80319c";
    run(unwatched, "00", "print('planted ' + 'output')");
    let answer =
        run(TRACE, "01", "print('planted ' + 'mary.murphy@example.ie')\nraise ValueError('planted error')");
    assert_eq!(answer["result"]["structuredContent"]["success"], false, "{answer}");
    let tree = [
        ("execution_context.get_or_create", "execution.call"),
        ("execution_context.execute_code", "execution.call"),
        ("sandbox.run", "execution_context.execute_code"),
        ("guard.sanitize", "execution_context.execute_code"),
        ("db.acquire", "execution_context.get_or_create"),
        ("db.record", "execution.call"),
    ];
    let names: Vec<&str> = tree.iter().flat_map(|(child, parent)| [*child, *parent]).collect();
    let spans = collector.spans_of(TRACE, &names);

    let only = |name: &str| {
        let found: Vec<&Span> = spans.iter().filter(|span| span.name == name).collect();
        let [span] = found[..] else { panic!("{} spans {name}", found.len()) };
        span
    };
    for (child, parent) in tree {
        assert_eq!(only(child).parent_span_id, only(parent).span_id, "{child} is not in {parent}");
        assert!(only(child).start_time_unix_nano >= only(parent).start_time_unix_nano, "{child}");
        // The database's own thread may leave a span a moment after the answer.
        let is_within = only(child).end_time_unix_nano <= only(parent).end_time_unix_nano;
        assert!(is_within || child.starts_with("db."), "{child}");
    }
    // The embedded host takes part: what it was asked for is below what asked it.
    let asked = collector.spans_when(TRACE, |spans| {
        let is_run = |span: &&Span| attribute(span, "host.door").as_deref() == Some("interpreter");
        spans.iter().find(is_run).cloned()
    });
    assert_eq!((asked.name.as_str(), &asked.parent_span_id), ("host.request", &only("sandbox.run").span_id));
    let call = only("execution.call");
    assert_eq!((hex(&call.parent_span_id).as_str(), call.kind), (CALLER, 2), "a server's span");
    assert_eq!(call.status.as_ref().unwrap().code, 0, "a program that fails is no error of the call");
    for name in ["execution.call", "execution_context.get_or_create", "execution_context.execute_code"] {
        let value = |key| attribute(only(name), key).unwrap_or_else(|| panic!("{name} lacks {key}"));
        assert_eq!(value("app.tenant.id"), "local");
        assert_eq!(value("app.conversation.id"), "chat-4711");
        assert_eq!(value("app.path.id"), "path-0815");
        assert!(!value("execution.id").is_empty());
    }
    assert_eq!(attribute(only("execution_context.execute_code"), "code.language").unwrap(), "python");
    assert_eq!(attribute(only("db.acquire"), "app.tenant.id").unwrap(), "local");
    assert_ne!(attribute(only("guard.sanitize"), "guard.findings").unwrap(), "0");

    // Whatever a span may say is on this list.
    let allowed: BTreeSet<&str> = [
        "app.tenant.id",
        "app.conversation.id",
        "app.path.id",
        "code.language",
        "context.id",
        "epoch",
        "error.type",
        "execution.id",
        "guard.bytes",
        "guard.findings",
        "host.door",
        "sandbox.id",
        "tool.name",
    ]
    .into();
    for span in collector.spans() {
        assert_ne!(hex(&span.trace_id), unwatched, "its caller does not record this trace");
        assert!(span.events.is_empty(), "{} repeats log lines", span.name);
        for pair in &span.attributes {
            assert!(allowed.contains(pair.key.as_str()), "{} says {}", span.name, pair.key);
        }
    }
    for request in collector.server.requests() {
        assert_eq!(request.header("content-type"), Some("application/x-protobuf"));
        assert_eq!(request.header("api-key"), Some("planted header 1"));
        assert!(has(&request.body, "service.name") && has(&request.body, "box-of-tests"), "who reports");
        for secret in ["planted", "mary.murphy", "print", "ValueError"] {
            assert!(!has(&request.body, secret), "{secret} goes out by {}", request.path);
        }
    }
    assert!(!server.log().contains("planted"), "{}", server.log());
}

#[test]
fn the_tasks_of_a_workflow_are_in_the_trace_of_its_starter() {
    let (place, collector) = (Place::new("", "", ""), Collector::sound());
    let mut served = place.command();
    let server = HttpServer::start_with(collector.to(on(&mut served)));
    let tasks = json!([
        {"id": "ask", "type": "mcp_tool", "tool": "kit.echo", "arguments": {"value": "planted"}, "effects": "none"},
        {"id": "work", "type": "code_execution", "code": "print(len(data['x']))", "inputs": {"x": {"from": "ask"}}},
        {"id": "bad", "type": "code_execution", "code": "raise ValueError('planted')", "path": "fresh",
            "on_error": "continue", "retry": {"max_attempts": 2, "backoff_ms": 0}},
    ]);
    let parent = format!("00-{TRACE}-{CALLER}-01");
    let meta = json!({"dev.pathbox/conversationId": "chat-4711"});
    let asked = json!({"tasks": tasks});
    let begun = server.stateless(&[("traceparent", &parent)], "run_workflow", asked, meta).answer();
    let id = begun["result"]["structuredContent"]["workflowId"].as_str().unwrap_or_else(|| panic!("{begun}"));
    let until = Instant::now() + PATIENCE;
    let spans = loop {
        let spans = collector.spans_of(TRACE, &["workflow.begin"]);
        let count = |name: &str| spans.iter().filter(|span| span.name == name).count();
        if (count("workflow.task"), count("execution.call"), count("tools.call")) == (4, 3, 1) {
            break spans;
        }
        assert!(Instant::now() < until, "{:?}", spans.iter().map(|span| &span.name).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_millis(50));
    };
    let begin = spans.iter().find(|span| span.name == "workflow.begin").unwrap();
    assert_eq!(hex(&begin.parent_span_id), CALLER);
    let mut tasks = BTreeMap::new();
    for task in spans.iter().filter(|span| span.name == "workflow.task") {
        assert_eq!(task.parent_span_id, begin.span_id, "{task:?}");
        assert_eq!(attribute(task, "workflow.id").as_deref(), Some(id));
        let say = |key: &str| attribute(task, key).unwrap();
        let name =
            format!("{} {}: {}", say("workflow.task"), say("workflow.attempt"), say("workflow.outcome"));
        tasks.insert(task.span_id.clone(), name);
    }
    let called = spans.iter().filter(|span| ["execution.call", "tools.call"].contains(&span.name.as_str()));
    let mut below: Vec<String> =
        called.map(|span| format!("{} in {}", span.name, tasks[&span.parent_span_id])).collect();
    below.sort();
    assert_eq!(
        below,
        [
            "execution.call in bad 1: failed",
            "execution.call in bad 2: failed",
            "execution.call in work 1: completed",
            "tools.call in ask 1: completed"
        ]
    );
    for request in collector.server.requests() {
        assert!(!has(&request.body, "planted"), "a value goes out by {}", request.path);
    }
    // The log names what happens as it always did, and the numbers agree.
    for (event, times) in
        [("code_execution_started", 4), ("code_execution_completed", 2), ("code_execution_failed", 2)]
    {
        assert_eq!(server.log().matches(event).count(), times, "{event}: {}", server.log());
    }
    let over = "workflows_total{status=\"completed\"}";
    while !read(&server).contains_key(over) || read(&server)["workflows_driven"] != 0.0 {
        assert!(Instant::now() < until, "{:#?}", read(&server));
        std::thread::sleep(Duration::from_millis(50));
    }
    let numbers = read(&server);
    for (name, value) in [
        ("workflow_tasks_total{outcome=\"completed\"}", 2.0),
        ("workflow_tasks_total{outcome=\"failed\"}", 2.0),
        ("workflow_task_duration_ms_count{type=\"code_execution\"}", 3.0),
        ("workflow_task_duration_ms_count{type=\"mcp_tool\"}", 1.0),
        ("workflow_duration_ms_count{status=\"completed\"}", 1.0),
    ] {
        assert_eq!(numbers.get(name), Some(&value), "{name}: {numbers:#?}");
    }
}

#[test]
fn the_collector_gets_the_numbers_that_metrics_shows() {
    let (data, collector) = (tempfile::tempdir().unwrap(), Collector::sound());
    let server = HttpServer::start_with(collector.to(&mut command(data.path())));
    for code in ["print('mary.murphy@example.ie')", "1 / 0"] {
        let meta = json!({"dev.pathbox/conversationId": "chat-4711"});
        server.stateless(&[], "run_code", python(code), meta).answer();
    }
    // The server goes on in the background: what is exported lies between two looks, and is equal where nothing moved.
    let before = read(&server);
    let exported = as_samples(&collector.next_metrics());
    let after = read(&server);
    let mut equal = 0;
    for (name, value) in &before {
        let (Some(exported), Some(later)) = (exported.get(name), after.get(name)) else {
            panic!("{name} is not exported: {exported:#?}")
        };
        // A look is itself a connection; what the machine has open is not this server's alone.
        if name == "http_connections" || name.starts_with("host_machine_") {
            continue;
        }
        if value == later {
            assert_eq!(exported, value, "{name}");
            equal += 1;
        } else if !name.starts_with("sandbox_pool") {
            assert!(exported >= value && exported <= later, "{name}: {value}, {exported}, {later}");
        }
    }
    assert!(equal > 30, "hardly anything stood still: {before:#?}");
    for name in exported.keys() {
        assert!(after.contains_key(name), "{name} is not in /metrics");
        assert!(!name.contains("chat-4711") && !name.contains("local"), "{name}");
    }
    assert_eq!(exported["code_execution_total{language=\"python\",outcome=\"failed\"}"], 1.0);
    assert_eq!(exported["guard_findings_total{kind=\"EMAIL\"}"], 1.0);
}

#[test]
fn a_call_that_cannot_be_done_is_an_error_by_its_code() {
    let (data, collector) = (tempfile::tempdir().unwrap(), Collector::sound());
    let mut command = command(data.path());
    let mut server =
        Server::start_with(collector.to(&mut command).env("PATHBOX_CONTEXTS_PER_TENANT", "1").arg("serve"));
    for (conversation, trace) in [("a", "1".repeat(32)), ("b", "2".repeat(32))] {
        let parent = format!("00-{trace}-{CALLER}-01");
        server.call(python("1"), json!({"dev.pathbox/conversationId": conversation, "traceparent": parent}));
    }
    let spans = collector.spans_of(&"2".repeat(32), &["execution.call"]);
    let call = spans.iter().find(|span| span.name == "execution.call").unwrap();
    assert_eq!(attribute(call, "error.type").unwrap(), "limit_reached");
    assert_eq!(call.status.as_ref().unwrap().code, 2, "{call:?}");
}

#[test]
fn spans_and_metrics_go_each_to_its_own_place_packed_and_with_its_own_key() {
    let (data, spans, metrics) = (tempfile::tempdir().unwrap(), Collector::sound(), Collector::sound());
    let mut command = command(data.path());
    command
        .env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("{}/v1/traces", spans.url()))
        .env("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", format!("{}/own/metrics?tenant=1", metrics.url()))
        .env("OTEL_EXPORTER_OTLP_HEADERS", "key=planted-all")
        .env("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "key=planted-traces")
        .env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "500");
    let mut server = Server::start_with(command.arg("serve"));
    server.call(python("1"), json!({"traceparent": format!("00-{TRACE}-{CALLER}-01")}));
    spans.spans_of(TRACE, &["execution.call"]);
    let until = Instant::now() + PATIENCE;
    while metrics.server.lines().is_empty() {
        assert!(Instant::now() < until, "no metrics came");
        std::thread::sleep(Duration::from_millis(20));
    }
    let of = |collector: &Collector, path: &str, key: &str| {
        for request in collector.server.requests() {
            let said = (request.path.as_str(), request.header("key"), request.header("content-encoding"));
            assert_eq!(said, (path, Some(key), Some("gzip")));
        }
    };
    of(&spans, "/v1/traces", "planted-traces");
    of(&metrics, "/own/metrics?tenant=1", "planted-all");
    let request = &metrics.server.requests()[0];
    let report = ExportMetricsServiceRequest::decode(body(request).as_slice()).unwrap();
    assert!(!report.resource_metrics.is_empty());
}

#[test]
fn the_provider_gets_the_exported_span_as_traceparent() {
    let (provider, collector) = (Provider::start(|_| None), Collector::sound());
    let mut server = Server::start_with(collector.to(&mut provider.command()).arg("serve"));
    let meta =
        json!({"traceparent": format!("00-{TRACE}-{CALLER}-01"), "tracestate": "congo=t61rcWkgMzE,rojo=1"});
    server.call(python("1"), meta);
    server.python("2");
    let spans = collector.spans_of(TRACE, &["e2b.create", "sandbox.run"]);
    let requests = provider.faults.requests();
    for (line, name) in [("POST /v2/sandboxes", "e2b.create"), ("POST /execute", "sandbox.run")] {
        let request = requests.iter().find(|request| request.line() == line).unwrap();
        let span = spans.iter().find(|span| span.name == name).unwrap();
        let expected = format!("00-{TRACE}-{}-01", hex(&span.span_id));
        assert_eq!(request.header("traceparent"), Some(expected.as_str()), "{line}");
        assert_eq!(request.header("tracestate"), Some("congo=t61rcWkgMzE,rojo=1"), "{line}");
        assert_eq!(span.trace_state, "congo=t61rcWkgMzE,rojo=1", "{name}");
    }
    // A call without a trace begins one: the same for the provider, the record and the collector.
    let begun = requests.iter().rfind(|request| request.path == "/execute").unwrap();
    let begun = begun.header("traceparent").unwrap().split('-').nth(1).unwrap();
    assert_ne!(begun, TRACE);
    let spans = collector.spans_of(begun, &["execution.call"]);
    let call = spans.iter().find(|span| span.name == "execution.call").unwrap();
    assert!(call.parent_span_id.is_empty(), "{call:?}");
    drop(server);
    let listed = provider.command().args(["executions", "ls", "--json"]).output().unwrap();
    assert!(String::from_utf8(listed.stdout).unwrap().contains(begun), "the record names it");
}

#[test]
fn a_collector_that_is_away_or_fails_or_never_answers_costs_no_call_and_no_exit() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let partly = ExportTraceServiceResponse {
        partial_success: Some(ExportTracePartialSuccess {
            rejected_spans: 1,
            error_message: "planted words of a collector".into(),
        }),
    };
    let never = || Reply::new(200).step(Step::Hang);
    let collectors = [
        ("away", None),
        ("takes a part", Some(Collector::start(move |_| Reply::new(200).send(partly.encode_to_vec())))),
        ("fails", Some(Collector::start(|_| Reply::new(500).send("planted words of a collector")))),
        ("is silent", Some(Collector::start(|_| Reply::silence()))),
        ("never ends its answer", Some(Collector::start(move |_| never()))),
    ];
    for (what, collector) in collectors {
        let data = tempfile::tempdir().unwrap();
        let url = collector.as_ref().map_or(format!("http://{gone}"), Collector::url);
        let mut command = command(data.path());
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", url).env("OTEL_METRIC_EXPORT_INTERVAL", "100");
        command.env("OTEL_EXPORTER_OTLP_TIMEOUT", "600000");
        let mut server = HttpServer::start_with(&mut command);
        let run = || {
            let meta = json!({"dev.pathbox/conversationId": "c"});
            let answer = server.stateless(&[], "run_code", python("print(6 * 7)"), meta).answer();
            assert_eq!(answer["result"]["structuredContent"]["success"], true, "{what}: {answer}");
        };
        run();
        // An immediate failure is reported; the answers of the others may still come.
        let until = Instant::now() + PATIENCE;
        let is_told = ["away", "takes a part", "fails"].contains(&what);
        while is_told && !server.log().contains("the collector does not accept spans and metrics") {
            assert!(Instant::now() < until, "{what}: {}", server.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        run();
        while is_told && !read(&server).contains_key("otlp_spans_dropped_total{reason=\"not_taken\"}") {
            assert!(Instant::now() < until, "{what}: the dropped spans are not counted");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!server.log().contains("planted"), "{what}: {}", server.log());
        server.terminate();
        // A request may take ten minutes here; the end does not wait for it.
        let ended = server.wait(PATIENCE).unwrap_or_else(|| panic!("{what}: the server does not end"));
        assert!(ended.success(), "{what}: {ended}");
        let told = server.log().matches("does not accept spans").count();
        assert!(told <= 1, "{what}: told {told} times");
    }
}

#[test]
fn spans_that_a_busy_collector_puts_off_come_later_and_once() {
    let data = tempfile::tempdir().unwrap();
    let first = std::sync::atomic::AtomicBool::new(true);
    let collector = Collector::start(move |request| {
        let is_first = request.path == "/v1/traces" && first.swap(false, std::sync::atomic::Ordering::SeqCst);
        Reply::new(if is_first { 503 } else { 200 })
    });
    let mut server = Server::start_with(collector.to(&mut command(data.path())).arg("serve"));
    server.call(python("1"), json!({"traceparent": format!("00-{TRACE}-{CALLER}-01")}));
    let until = Instant::now() + PATIENCE;
    while collector.server.lines().iter().filter(|line| *line == "POST /v1/traces").count() < 2 {
        assert!(Instant::now() < until, "{:?}", collector.server.lines());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(server);
    let requests = collector.server.requests();
    let bodies: Vec<&[u8]> =
        requests.iter().filter(|request| request.path == "/v1/traces").map(|it| it.body.as_slice()).collect();
    assert_eq!(bodies[0], bodies[1], "what was put off comes again");
    let mut rest: Vec<_> = bodies[1..].to_vec();
    rest.dedup();
    assert_eq!(rest.len(), bodies.len() - 1, "what was taken comes once");
}

#[test]
fn the_end_of_the_process_sends_what_is_left() {
    let (data, collector) = (tempfile::tempdir().unwrap(), Collector::sound());
    // The end is given a second; a machine that is busy elsewhere may need more for once.
    let is_sent = (0..10).any(|_| {
        let run = collector.to(&mut command(data.path())).args(["run", "1"]).status().unwrap();
        assert!(run.success());
        collector.spans().iter().any(|span| span.name == "execution.call")
            && collector.server.lines().contains(&"POST /v1/metrics".to_owned())
    });
    assert!(is_sent, "{:?}", collector.server.lines());
}

#[test]
fn nothing_goes_out_when_export_is_switched_off() {
    let (data, collector) = (tempfile::tempdir().unwrap(), Collector::sound());
    let mut command = command(data.path());
    let mut server =
        Server::start_with(collector.to(&mut command).env("OTEL_SDK_DISABLED", "true").arg("serve"));
    server.python("1");
    server.close_stdin();
    assert!(server.wait(PATIENCE).is_some_and(|status| status.success()));
    assert_eq!(collector.server.connections(), 0);
}

#[test]
fn a_bad_collector_stops_the_start_and_config_and_doctor_show_a_good_one() {
    let data = tempfile::tempdir().unwrap();
    let output = command(data.path())
        .arg("serve")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in [
        "`otel.endpoint`",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "scheme `collector`",
        "allowed: an http or https URL",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }

    let collector =
        Collector::start(|request| Reply::new(if request.path == "/v1/metrics" { 404 } else { 200 }));
    let mut shown = command(data.path());
    let shown = collector.to(&mut shown).env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=planted-header-1");
    let shown = String::from_utf8(shown.arg("config").output().unwrap().stdout).unwrap();
    assert!(shown.contains(&collector.url()) && shown.contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{shown}");
    assert!(shown.contains("otel.headers") && !shown.contains("planted"), "{shown}");

    for (collector, is_ok, detail) in [
        (&Collector::sound(), true, "/v1/metrics answers, in "),
        (&collector, false, "/v1/metrics: it answers 404"),
    ] {
        let doctor = collector.to(&mut command(data.path())).args(["doctor", "--json"]).output().unwrap();
        let checks: Vec<Value> = serde_json::from_slice(&doctor.stdout).unwrap();
        let check = checks.iter().find(|check| check["name"] == "collector").unwrap();
        assert_eq!(check["ok"], is_ok, "{check}");
        assert!(check["detail"].as_str().unwrap().contains(detail), "{check}");
    }
}

#[test]
fn a_tool_call_is_a_span_of_its_run_and_its_server_learns_which() {
    let (place, collector) = (Place::new("", "", ""), Collector::sound());
    let mut server = Server::start_with(collector.to(&mut place.command()).arg("serve"));
    let code = "from tools import kit\nprint(kit.add(a=2, b=3)['sum'], kit.echo(value='planted')['value'])";
    let ran = server.call(python(code), json!({"traceparent": format!("00-{TRACE}-{CALLER}-01")}));
    assert_eq!(ran["structuredContent"]["stdout"], "5 planted\n", "{ran:#}");
    let until = Instant::now() + PATIENCE;
    let spans = loop {
        let spans = collector.spans_of(TRACE, &["tools.call", "execution.call"]);
        if spans.iter().filter(|span| span.name == "tools.call").count() == 2 {
            break spans;
        }
        assert!(Instant::now() < until, "{spans:#?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let call = spans.iter().find(|span| span.name == "execution.call").unwrap();
    for name in ["kit.add", "kit.echo"] {
        let is_it = |span: &&Span| attribute(span, "tool.name").as_deref() == Some(name);
        let tool = spans.iter().find(is_it).unwrap();
        assert_eq!((tool.name.as_str(), tool.kind), ("tools.call", 3), "a client's span");
        assert_eq!(attribute(tool, "tool.outcome").as_deref(), Some("ok"));
        let mut above = tool;
        while let Some(parent) = spans.iter().find(|span| span.span_id == above.parent_span_id) {
            above = parent;
        }
        assert_eq!(above.span_id, call.span_id, "{name} is within the call: {spans:#?}");
        let told = place.calls(name.trim_start_matches("kit."));
        assert_eq!(told[0]["meta"]["traceparent"], format!("00-{TRACE}-{}-01", hex(&tool.span_id)));
    }
    assert!(spans.iter().all(|span| span.attributes.iter().all(|pair| !text(pair).contains("planted"))));
}
