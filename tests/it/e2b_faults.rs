//! Every way in which the provider fails that a client can meet, each with its one stated outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pathbox::domain::{Clock, Entropy, SandboxId};
use pathbox::e2b::{
    CircuitOptions, CircuitState, CreateSandbox, Deadline, Deadlines, E2bClient, E2bError, Endpoint,
    Execution, ListFilter, Liveness, NetworkPolicy, Options, Readiness, RunRequest, SandboxAccess, Settled,
    Setup, Subject, Target,
};
use pathbox::wire::Secret;
use pathbox::wire::interpreter::{Event, ExecuteRequest};
use serde_json::json;

use crate::support::fault_server::{
    API_KEY, COUNT, END, ENVD_TOKEN, FaultServer, KEEPALIVE, Reply, Request, SANDBOX_ID, Step, TRAFFIC_TOKEN,
    access, assert_tells_no_secret,
};

fn id() -> SandboxId {
    SANDBOX_ID.parse().unwrap()
}

pub(crate) fn created() -> Reply {
    Reply::json(
        201,
        json!({"templateID": "t1", "sandboxID": SANDBOX_ID, "clientID": "c", "envdVersion": "0.6.13",
            "envdAccessToken": ENVD_TOKEN, "trafficAccessToken": TRAFFIC_TOKEN, "domain": null}),
    )
}

pub(crate) fn detail(state: &str) -> Reply {
    Reply::json(
        200,
        json!({"templateID": "t1", "sandboxID": SANDBOX_ID, "clientID": "c", "startedAt": "2026-08-20T10:00:00Z",
            "endAt": "2026-08-20T10:05:00Z", "envdVersion": "0.6.13", "cpuCount": 2, "memoryMB": 512,
            "diskSizeMB": 1, "state": state}),
    )
}

fn python(code: &str) -> ExecuteRequest {
    ExecuteRequest::in_language(code, "python")
}

async fn execute(server: &FaultServer, deadlines: Deadlines) -> Result<Execution, E2bError> {
    server.client().execute(&access(), &python("1"), deadlines).await
}

/// All events, and how the stream ended.
async fn drain(mut run: Execution) -> (Vec<Event>, Option<E2bError>) {
    let mut events = Vec::new();
    loop {
        match run.next().await {
            Ok(Some(event)) => events.push(event),
            Ok(None) => return (events, None),
            Err(error) => {
                assert_tells_no_secret(&error);
                return (events, Some(error));
            }
        }
    }
}

async fn ends_with(reply: Reply, deadlines: Deadlines) -> (Vec<Event>, Option<E2bError>) {
    let server = FaultServer::always(reply).await;
    drain(execute(&server, deadlines).await.unwrap()).await
}

fn stdout(events: &[Event]) -> String {
    let text = |event: &Event| match event {
        Event::Stdout(output) => Some(output.text.clone()),
        _ => None,
    };
    events.iter().filter_map(text).collect()
}

pub(crate) fn out(text: &str) -> String {
    json!({"type": "stdout", "text": text}).to_string()
}

// --- the control plane ---------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_429_with_retry_after_is_waited_for_and_repeated() {
    let refusal = Reply::error(429, "Rate limit exceeded").header("retry-after", 1);
    let server = FaultServer::sequence(vec![refusal, created()]).await;
    let begun = Instant::now();
    server.client().create(&CreateSandbox::default()).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn a_429_without_retry_after_is_repeated_with_backoff_and_given_up() {
    let message = "you have reached the maximum number of concurrent E2B sandboxes (20)";
    let server = FaultServer::always(Reply::error(429, message)).await;
    let error = server.client().create(&CreateSandbox::default()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("the sandbox provider's limit is reached: {message}"));
    assert!(error.is_retryable() && !error.may_have_run());
    assert_eq!(server.requests().len(), 4, "once and three repetitions");
}

#[tokio::test]
async fn a_wait_that_would_end_after_the_deadline_is_not_begun() {
    let server = FaultServer::always(Reply::error(429, "slow down").header("retry-after", 30)).await;
    let begun = Instant::now();
    let error = server.client().create(&CreateSandbox::default()).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(30)));
    assert!(begun.elapsed() < Duration::from_secs(29), "it waited");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn requests_that_would_fail_again_are_not_retried() {
    for (status, kind) in [
        (400, "refused"),
        (401, "unauthenticated"),
        (403, "forbidden"),
        (404, "not_found"),
        (409, "conflict"),
        (422, "refused"),
    ] {
        let server = FaultServer::always(Reply::error(status, "no")).await;
        let error = server.client().create(&CreateSandbox::default()).await.unwrap_err();
        assert_eq!((error.kind(), server.requests().len()), (kind, 1), "{status}");
        assert!(!error.may_have_run(), "{status}");
    }
}

#[tokio::test]
async fn a_create_that_may_have_made_a_sandbox_is_not_repeated_where_keys_are_not_kept() {
    for reply in [Reply::error(504, "gateway"), Reply::error(500, "broken"), Reply::nothing()] {
        let server = FaultServer::always(reply).await;
        let error = server.client().create(&CreateSandbox::default()).await.unwrap_err();
        assert!(error.may_have_run(), "{error}");
        assert_eq!(server.requests().len(), 1);
        assert_tells_no_secret(&error);
    }
}

#[tokio::test]
async fn a_read_is_repeated_after_any_failure_that_may_pass() {
    let server = FaultServer::sequence(vec![
        Reply::error(500, "broken"),
        Reply::nothing(),
        Reply::new(502).send("<html>bad gateway</html>"),
        detail("running"),
    ])
    .await;
    server.client().get(&id()).await.unwrap();
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn an_error_body_that_is_not_json_is_classified_by_status() {
    let server = FaultServer::always(Reply::new(503).send("<html><body>nginx</body></html>")).await;
    let error = server.client().get(&id()).await.unwrap_err();
    assert_eq!(error.to_string(), "the sandbox provider is busy (status 503): an HTML page");
}

#[tokio::test]
async fn a_life_time_beyond_the_cap_is_learned_once_and_cut_from_then_on() {
    let server = FaultServer::start(|request| {
        if request.json()["timeout"].as_u64() > Some(3600) {
            Reply::error(400, "Timeout cannot be greater than 1 hours")
        } else {
            created()
        }
    })
    .await;
    let client = server.client();
    let create = CreateSandbox { timeout: Duration::from_secs(86_400), ..Default::default() };
    let sandbox = client.create(&create).await.unwrap();
    assert_eq!(sandbox.timeout, Duration::from_secs(3600));
    assert_eq!(client.learned_timeout_cap(), Some(Duration::from_secs(3600)));
    client.create(&create).await.unwrap();
    assert_eq!(
        client.set_timeout(&id(), Duration::from_secs(7200)).await.unwrap(),
        Duration::from_secs(3600)
    );
    let asked: Vec<_> = server.requests().iter().map(|request| request.json()["timeout"].as_u64()).collect();
    assert_eq!(asked, [Some(86_400), Some(3600), Some(3600), Some(3600)]);
    let keys: Vec<_> =
        server.requests()[..2].iter().map(|r| r.header("idempotency-key").unwrap().to_owned()).collect();
    assert_ne!(keys[0], keys[1], "other arguments, another key");
}

#[tokio::test]
async fn a_provider_that_knows_only_the_first_version_is_asked_in_it() {
    let server = FaultServer::start(|request| match request.line().as_str() {
        "POST /sandboxes" => created(),
        line if line == format!("POST /sandboxes/{SANDBOX_ID}/connect") => created(),
        _ => Reply::new(404).send("404 page not found\n"),
    })
    .await;
    let client = server.client();
    client.create(&CreateSandbox::default()).await.unwrap();
    client.create(&CreateSandbox::default()).await.unwrap();
    assert!(client.connect(&id(), Duration::from_secs(77)).await.unwrap().resumed);
    let connect = format!("POST /sandboxes/{SANDBOX_ID}/connect");
    assert_eq!(server.lines(), ["POST /v2/sandboxes", "POST /sandboxes", "POST /sandboxes", &connect]);
    let requests = server.requests();
    assert_eq!(requests[1].json()["secure"], true);
    assert_eq!(requests[3].json(), json!({"timeout": 77}), "connect always says how long");
}

#[tokio::test]
async fn a_missing_template_is_not_a_missing_route() {
    let server = FaultServer::always(Reply::error(404, "template 'nope' not found")).await;
    let error = server.client().create(&CreateSandbox::default()).await.unwrap_err();
    assert!(matches!(error, E2bError::NotFound { what: Subject::Template, .. }));
    assert!(!error.is_lost());
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_new_sandbox_has_no_network_by_default() {
    let server = FaultServer::always(created()).await;
    let client = server.client();
    client.create(&CreateSandbox::default()).await.unwrap();
    let network = NetworkPolicy::AllowList(vec!["pypi.org".into()]);
    client.create(&CreateSandbox { network: network.clone(), ..Default::default() }).await.unwrap();
    client.set_network(&id(), &network).await.unwrap();
    let bodies: Vec<_> = server.requests().iter().map(Request::json).collect();
    assert_eq!(bodies[0]["allow_internet_access"], false);
    assert_eq!(bodies[0]["network"], json!({"allowPublicTraffic": false, "denyOut": ["0.0.0.0/0"]}));
    let listed = json!({"allowPublicTraffic": false, "allowOut": ["pypi.org"], "denyOut": ["0.0.0.0/0"]});
    assert_eq!(bodies[1]["network"], listed);
    assert_eq!(bodies[2], json!({"allowOut": ["pypi.org"], "denyOut": ["0.0.0.0/0"]}), "the complete policy");
}

#[tokio::test]
async fn a_list_goes_through_all_pages_with_the_filter_encoded_as_the_sdks_do() {
    let entry = |n: usize| {
        json!({"templateID": "t", "sandboxID": format!("i{n}"), "clientID": "c", "startedAt": "2026-08-20T10:00:00Z",
            "endAt": "2026-08-20T10:05:00Z", "envdVersion": "0.6.13", "cpuCount": 2, "memoryMB": 5, "diskSizeMB": 1,
            "state": "running", "metadata": {"a b": "c&d"}})
    };
    let server = FaultServer::sequence(vec![
        Reply::json(200, json!([entry(0), entry(1)])).header("x-next-token", "tok/en=="),
        Reply::json(200, json!([entry(2)])),
    ])
    .await;
    let filter = ListFilter { metadata: [("a b".into(), "c&d".into())].into(), ..Default::default() };
    let found = server.client().list(&filter).await.unwrap();
    assert_eq!(found.iter().map(|s| s.sandbox_id.as_str()).collect::<Vec<_>>(), ["i0", "i1", "i2"]);
    let first = "GET /v2/sandboxes?limit=100&metadata=a%252520b%3Dc%252526d";
    assert_eq!(server.lines(), [first, &format!("{first}&nextToken=tok%2Fen%3D%3D")]);
}

#[tokio::test]
async fn a_list_whose_pages_never_end_ends_with_the_first_empty_one() {
    let server = FaultServer::always(Reply::json(200, json!([])).header("x-next-token", "again")).await;
    assert_eq!(server.client().list(&ListFilter::default()).await.unwrap(), []);
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn killing_a_sandbox_that_is_gone_is_not_an_error() {
    let server =
        FaultServer::sequence(vec![Reply::new(204), Reply::error(404, "Sandbox doesn't exist")]).await;
    let client = server.client();
    assert!(client.kill(&id()).await.unwrap());
    assert!(!client.kill(&id()).await.unwrap());
}

#[tokio::test]
async fn an_answer_that_never_comes_ends_with_the_request_clock() {
    let server = FaultServer::always(Reply::silence()).await;
    let client = server.client_with(|options| options.request_timeout = Duration::from_millis(200));
    let error = client.get(&id()).await.unwrap_err();
    assert_eq!(error.clock(), Some(Deadline::Request));
    assert!(error.to_string().starts_with("the request deadline ended after 0."), "{error}");
}

#[tokio::test]
async fn an_answer_without_end_is_cut_at_the_limit() {
    let server =
        FaultServer::always(Reply::new(200).step(Step::Repeat(vec![b'['; 4096], Duration::ZERO))).await;
    let client = server.client_with(|options| options.max_answer_bytes = 100_000);
    let error = client.get(&id()).await.unwrap_err();
    assert!(matches!(error, E2bError::TooLarge { limit_bytes: 100_000, .. }), "{error:?}");
}

#[tokio::test]
async fn a_redirect_is_not_followed_with_the_key() {
    let target = FaultServer::always(detail("running")).await;
    let url = format!("http://{}/stolen", target.addr);
    let server = FaultServer::always(Reply::new(307).header("location", url)).await;
    assert!(server.client().get(&id()).await.is_err());
    assert_eq!(target.requests().len(), 0);
}

#[tokio::test]
async fn a_dead_provider_is_left_alone_for_a_while_and_tried_by_one() {
    let alive = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&alive);
    let server = FaultServer::start(move |_| {
        if switch.load(Ordering::SeqCst) { detail("running") } else { Reply::error(503, "down") }
    })
    .await;
    let client = server.client_with(|options| {
        options.circuit = CircuitOptions { failures: 4, open_for: Duration::from_millis(900) };
    });
    assert_eq!(client.get(&id()).await.unwrap_err().kind(), "busy");
    assert!(matches!(client.circuit(), CircuitState::Open { .. }));
    let other = client.at(&server.endpoint()).unwrap();
    let error = other.get(&id()).await.unwrap_err();
    assert!(
        error.to_string().starts_with("the sandbox provider is down; the next attempt is in 0."),
        "{error}"
    );
    assert!(error.is_retryable() && error.retry_after().is_some());
    assert_eq!(server.requests().len(), 4, "nothing was sent meanwhile");
    alive.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(950)).await;
    client.get(&id()).await.unwrap();
    assert_eq!(client.circuit(), CircuitState::Closed { failures: 0 });
}

#[tokio::test]
async fn a_lack_of_capacity_does_not_stop_others_from_ending_their_sandboxes() {
    let server = FaultServer::start(|request| match request.method.as_str() {
        "DELETE" => Reply::new(204),
        _ => Reply::json(
            503,
            json!({"code": 503, "message": "no room", "error_code": "sandbox_capacity_unavailable"}),
        ),
    })
    .await;
    let client = server.client_with(|options| {
        options.circuit = CircuitOptions { failures: 1, open_for: Duration::from_secs(60) };
    });
    let error = client.create(&CreateSandbox::default()).await.unwrap_err();
    assert!(error.is_retryable() && !error.may_have_run(), "{error:?}");
    assert!(client.kill(&id()).await.unwrap());
}

#[tokio::test]
async fn two_endpoints_have_two_circuits_and_one_pool() {
    let dead = FaultServer::always(Reply::error(503, "down")).await;
    let alive = FaultServer::always(detail("running")).await;
    let client = dead.client_with(|options| {
        options.circuit = CircuitOptions { failures: 1, open_for: Duration::from_secs(60) };
    });
    client.get(&id()).await.unwrap_err();
    assert!(matches!(client.circuit(), CircuitState::Open { .. }));
    let other = client.at(&Endpoint::local(format!("http://{}", alive.addr), Secret::new("other"))).unwrap();
    other.get(&id()).await.unwrap();
    assert_eq!(alive.requests()[0].header("x-api-key"), Some("other"));
}

#[tokio::test]
async fn a_refused_connection_is_reported_as_unreachable() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = Endpoint::local(format!("http://127.0.0.1:{port}"), Secret::new(API_KEY));
    let client =
        E2bClient::new(Options { endpoint, ..Options::default() }, Clock::system(), Entropy::seeded(1))
            .unwrap();
    let error = client.get(&id()).await.unwrap_err();
    assert!(error.is_unreachable() && error.is_retryable() && !error.may_have_run(), "{error:?}");
    let error = client.execute(&access(), &python("1"), Deadlines::default()).await.unwrap_err();
    assert!(error.is_unreachable() && !error.may_have_run());
    assert_tells_no_secret(&error);
}

// --- what a sandbox is ---------------------------------------------------------------------------------------------

async fn liveness(control: Reply, data: Reply) -> Liveness {
    let server = FaultServer::start(
        move |request| {
            if request.port().is_some() { data.clone() } else { control.clone() }
        },
    )
    .await;
    server.client().liveness(&access()).await.unwrap()
}

#[tokio::test]
async fn five_answers_about_a_sandbox_are_distinguished() {
    let ok = || Reply::json(200, json!("OK"));
    let gone = || Reply::error(404, "Sandbox doesn't exist or you don't have access to it");
    let lost = Reply::sandbox_not_found;
    assert!(matches!(liveness(detail("running"), ok()).await, Liveness::Running { .. }));
    assert_eq!(liveness(detail("paused"), lost()).await, Liveness::Paused);
    assert_eq!(liveness(gone(), lost()).await, Liveness::Gone);
    assert!(matches!(liveness(detail("running"), lost()).await, Liveness::Unreachable { .. }));
    let closed = Reply::port_not_open(49999);
    assert!(matches!(liveness(detail("running"), closed).await, Liveness::NoInterpreter { .. }));
}

#[tokio::test]
async fn a_template_without_an_interpreter_is_diagnosed() {
    let server = FaultServer::start(|request| match request.port() {
        Some(49983) => Reply::new(204),
        port => Reply::port_not_open(port.unwrap()),
    })
    .await;
    let readiness = server.client().ready(&access(), Duration::from_secs(1)).await.unwrap();
    assert_eq!(readiness, Readiness::NoInterpreter);
}

#[tokio::test]
async fn a_sandbox_that_is_still_starting_is_waited_for() {
    let asked = AtomicUsize::new(0);
    let server = FaultServer::start(move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::sandbox_not_found(),
        1 => Reply::port_not_open(49999),
        2 => Reply::new(502).send("<html>nginx</html>"),
        _ => Reply::json(200, json!("OK")),
    })
    .await;
    let readiness = server.client().ready(&access(), Duration::from_secs(5)).await.unwrap();
    assert!(matches!(readiness, Readiness::Ready { .. }));
}

#[tokio::test]
async fn a_sandbox_that_is_gone_is_not_called_a_bad_template() {
    let server = FaultServer::always(Reply::sandbox_not_found()).await;
    assert!(server.client().ready(&access(), Duration::from_secs(1)).await.unwrap_err().is_lost());
}

// --- an execution that does not begin --------------------------------------------------------------------------------

#[tokio::test]
async fn a_lost_sandbox_is_lost_and_nothing_ran() {
    let server = FaultServer::always(Reply::sandbox_not_found()).await;
    let error = execute(&server, Deadlines::default()).await.unwrap_err();
    assert!(error.is_lost() && !error.may_have_run() && !error.is_retryable());
    assert_eq!(error.to_string(), "the sandbox is gone");
    assert_eq!(server.requests().len(), 1);
    assert_tells_no_secret(&error);
}

#[tokio::test]
async fn a_port_that_opens_late_is_waited_for() {
    let server =
        FaultServer::sequence(vec![Reply::port_not_open(49999), Reply::events(&[COUNT, &out("hi"), END])])
            .await;
    let (events, error) = drain(execute(&server, Deadlines::default()).await.unwrap()).await;
    assert!(error.is_none());
    assert_eq!(stdout(&events), "hi");
}

#[tokio::test]
async fn a_port_that_stays_closed_is_reported_within_the_connect_deadline() {
    let server = FaultServer::always(Reply::port_not_open(49999)).await;
    let deadlines = Deadlines { connect: Duration::from_secs(2), ..Deadlines::default() };
    let error = execute(&server, deadlines).await.unwrap_err();
    assert!(matches!(error, E2bError::PortClosed { port: 49999 }));
    assert!(!error.may_have_run());
}

#[tokio::test]
async fn a_gateways_page_is_not_taken_for_a_lost_sandbox_nor_sent_again() {
    let server =
        FaultServer::always(Reply::new(502).send("<html><h1>502 Bad Gateway</h1>nginx</html>")).await;
    let error = execute(&server, Deadlines::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "the sandbox provider is busy (status 502): an HTML page");
    assert!(!error.is_lost() && error.may_have_run());
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn code_whose_request_broke_is_never_sent_again() {
    let server = FaultServer::always(Reply::nothing()).await;
    let error = execute(&server, Deadlines::default()).await.unwrap_err();
    assert!(error.may_have_run(), "{error:?}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn headers_that_never_come_end_with_the_connect_clock() {
    let server = FaultServer::always(Reply::silence()).await;
    let deadlines = Deadlines { connect: Duration::from_millis(150), ..Deadlines::default() };
    let error = execute(&server, deadlines).await.unwrap_err();
    assert_eq!(error.clock(), Some(Deadline::Connect));
    assert!(error.may_have_run());
    server.wait_for_leaving("/execute").await;
}

#[tokio::test]
async fn an_error_body_that_never_ends_does_not_hold_the_error_back() {
    let server = FaultServer::always(Reply::new(500).step(Step::Repeat(b"x".to_vec(), Duration::ZERO))).await;
    let error = execute(&server, Deadlines::default()).await.unwrap_err();
    assert!(matches!(error, E2bError::Failed { status: 500, .. }));
}

// --- a stream that goes wrong ----------------------------------------------------------------------------------------

#[tokio::test]
async fn a_200_with_an_empty_body_is_not_a_success() {
    let (events, error) = ends_with(Reply::new(200), Deadlines::default()).await;
    let error = error.unwrap();
    assert_eq!(events, []);
    assert!(matches!(error, E2bError::Incomplete { events: 0 }) && error.may_have_run());
}

#[tokio::test]
async fn a_stream_that_ends_without_its_end_event_is_not_a_success() {
    let (events, error) = ends_with(Reply::events(&[COUNT, &out("half")]), Deadlines::default()).await;
    assert_eq!(stdout(&events), "half");
    assert!(matches!(error.unwrap(), E2bError::Incomplete { events: 2 }));
}

#[tokio::test]
async fn a_stream_that_breaks_off_half_way_is_reported_as_broken() {
    let reply = Reply::events(&[COUNT]).send(r#"{"type": "stdo"#).step(Step::Cut);
    let (events, error) = ends_with(reply, Deadlines::default()).await;
    assert_eq!(events.len(), 1);
    let error = error.unwrap();
    assert!(matches!(error, E2bError::Broken { may_have_run: true, .. }), "{error:?}");
}

#[tokio::test]
async fn a_stream_that_breaks_because_the_sandbox_went_away_is_lost() {
    let server = FaultServer::start(|request| match request.port() {
        Some(49999) => Reply::events(&[COUNT]).step(Step::Cut),
        _ => Reply::sandbox_not_found(),
    })
    .await;
    let (_, error) = drain(execute(&server, Deadlines::default()).await.unwrap()).await;
    let error = error.unwrap();
    assert!(error.is_lost() && error.may_have_run());
    assert_eq!(error.to_string(), "the sandbox is gone, in the middle of a request");
}

#[tokio::test]
async fn a_last_line_without_line_feed_counts() {
    let reply = Reply::new(200).send(format!("{COUNT}\n{END}"));
    let (events, error) = ends_with(reply, Deadlines::default()).await;
    assert_eq!(events.last(), Some(&Event::EndOfExecution));
    assert!(error.is_none());
}

#[tokio::test]
async fn keepalives_without_a_start_end_with_the_start_clock() {
    let reply =
        Reply::new(200).step(Step::Repeat(format!("{KEEPALIVE}\n").into(), Duration::from_millis(20)));
    let deadlines = Deadlines { start: Duration::from_secs(1), ..Deadlines::default() };
    let server = FaultServer::always(reply).await;
    let (_, error) = drain(execute(&server, deadlines).await.unwrap()).await;
    let error = error.unwrap();
    assert_eq!(error.clock(), Some(Deadline::Start));
    assert!(error.to_string().contains("busy with earlier code"), "{error}");
    assert!(error.may_have_run() && !error.is_retryable(), "it may still run later");
    server.wait_for_leaving("/execute").await;
}

#[tokio::test]
async fn silence_ends_with_the_silence_clock() {
    let server = FaultServer::always(Reply::events(&[COUNT]).step(Step::Hang)).await;
    let deadlines = Deadlines { stall: Duration::from_secs(1), ..Deadlines::default() };
    let (events, error) = drain(execute(&server, deadlines).await.unwrap()).await;
    assert_eq!(events.len(), 1);
    assert_eq!(error.unwrap().clock(), Some(Deadline::Stall));
    server.wait_for_leaving("/execute").await;
}

#[tokio::test]
async fn a_body_that_never_ends_ends_with_the_execution_clock() {
    let line = format!("{}\n", out(&"x".repeat(1000)));
    let reply = Reply::events(&[COUNT]).step(Step::Repeat(line.into(), Duration::ZERO));
    let server = FaultServer::always(reply).await;
    let deadlines = Deadlines::overall(Duration::from_secs(1));
    let (_, error) = drain(execute(&server, deadlines).await.unwrap()).await;
    let error = error.unwrap();
    assert_eq!(error.clock(), Some(Deadline::Overall));
    assert!(error.to_string().ends_with("the code was interrupted"), "{error}");
    server.wait_for_leaving("/execute").await;
}

#[tokio::test]
async fn dropping_an_execution_closes_its_connection() {
    let server = FaultServer::always(Reply::events(&[COUNT]).step(Step::Hang)).await;
    let mut run = execute(&server, Deadlines::default()).await.unwrap();
    run.next().await.unwrap();
    drop(run);
    server.wait_for_leaving("/execute").await;
}

#[tokio::test]
async fn a_single_line_of_10_mb_comes_whole() {
    let text = "x".repeat(10_000_000);
    let (events, error) = ends_with(Reply::events(&[COUNT, &out(&text), END]), Deadlines::default()).await;
    assert!(error.is_none());
    assert_eq!(stdout(&events).len(), text.len());
}

#[tokio::test]
async fn a_line_beyond_the_limit_is_cut_and_counted_and_the_run_goes_on() {
    let line = r#"{"type": "stdout", "text": ""#.to_owned() + &"é".repeat(5000) + r#""}"#;
    let result = json!({"type": "result", "png": "A".repeat(9000), "extra": {}, "is_main_result": true});
    let reply = Reply::events(&[COUNT, &line, &result.to_string(), &out("after"), END]);
    let server = FaultServer::always(reply).await;
    let client = server.client_with(|options| options.max_line_bytes = 4096);
    let run = client.execute(&access(), &python("1"), Deadlines::default()).await.unwrap();
    let (events, error) = drain(run).await;
    assert!(error.is_none());
    let text = stdout(&events);
    assert!(text.starts_with("éé") && text.ends_with("éafter") && text.len() < 4096, "{}", text.len());
    let dropped: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::PathboxStop { reason, dropped_bytes } if reason == "output_truncated" => {
                Some(*dropped_bytes)
            }
            _ => None,
        })
        .collect();
    assert_eq!(dropped, [line.len() as u64 - 4096, result.to_string().len() as u64]);
}

#[tokio::test]
async fn a_character_that_a_chunk_cuts_comes_whole() {
    let line = format!("{}\n", r#"{"type": "stdout", "text": "é€😀\ud83d\ude00"}"#);
    let mut reply = Reply::events(&[COUNT]);
    for byte in line.bytes() {
        reply = reply.send([byte]);
    }
    let (events, error) = ends_with(reply.send(format!("{END}\n")), Deadlines::default()).await;
    assert!(error.is_none());
    assert_eq!(stdout(&events), "é€😀😀");
}

#[tokio::test]
async fn separators_of_unicode_do_not_cut_a_line() {
    let text = "a\u{2028}b\u{2029}c\u{85}d\u{b}e\u{c}f";
    let line = "{\"type\": \"stdout\", \"text\": \"a\u{2028}b\u{2029}c\u{85}d\\u000be\\u000cf\"}".to_owned();
    let (events, error) = ends_with(Reply::events(&[COUNT, &line, END]), Deadlines::default()).await;
    assert!(error.is_none());
    assert_eq!(stdout(&events), text);
}

#[tokio::test]
async fn events_from_the_future_and_blank_lines_are_passed_over() {
    let future = r#"{"type": "telepathy", "waves": [1]}"#;
    let (events, error) = ends_with(Reply::events(&[COUNT, "", future, "", END]), Deadlines::default()).await;
    assert!(error.is_none());
    assert_eq!(events.len(), 2);
}

#[tokio::test]
async fn a_line_that_is_not_an_event_is_a_protocol_error() {
    let server = FaultServer::always(Reply::events(&[COUNT, "Internal Server Error"]).step(Step::Hang)).await;
    let (_, error) = drain(execute(&server, Deadlines::default()).await.unwrap()).await;
    assert_eq!(error.unwrap().kind(), "protocol");
    server.wait_for_leaving("/execute").await;
}

#[tokio::test]
async fn of_two_errors_the_more_specific_one_is_kept() {
    let lost = r#"{"type": "error", "name": "WebSocketError", "value": "The connections was lost, rerun the code to get the results", "traceback": ""}"#;
    let ended = r#"{"type": "error", "name": "UnexpectedEndOfExecution", "value": "Connection to the execution was closed before the execution was finished", "traceback": ""}"#;
    let (events, error) = ends_with(Reply::events(&[COUNT, lost, ended, END]), Deadlines::default()).await;
    assert!(error.is_none());
    let names: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Error(error) => Some(error.name.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(names, ["WebSocketError"]);
}

// --- requests ----------------------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_warm_run_is_one_request_on_one_connection() {
    let server = FaultServer::always(Reply::events(&[COUNT, END])).await;
    let client = server.client();
    let interpreter = client.interpreter(&access(), Target::Language("python".into()));
    for n in 1..=20 {
        let mut run = interpreter.run(&RunRequest::new("1")).await.unwrap();
        while run.next().await.unwrap().is_some() {}
        drop(run);
        assert_eq!(server.lines(), vec!["POST /execute".to_owned(); n]);
    }
    assert_eq!(server.connections(), 1);
    let request = &server.requests()[7];
    assert_eq!(request.json(), json!({"code": "1", "language": "python"}), "and no env_vars");
    assert_eq!(request.header("e2b-sandbox-id"), Some(SANDBOX_ID));
    assert_eq!(request.header("e2b-sandbox-port"), Some("49999"));
    assert_eq!(request.header("x-access-token"), Some(ENVD_TOKEN));
    assert_eq!(request.header("e2b-traffic-access-token"), Some(TRAFFIC_TOKEN));
    assert_eq!(request.header("x-api-key"), None, "the key never goes to a sandbox");
}

#[tokio::test]
async fn no_error_of_any_kind_reveals_a_secret() {
    // A server that repeats everything that it received.
    let echo = |request: &Request| {
        let told = ["x-api-key", "x-access-token", "e2b-traffic-access-token"];
        let told: Vec<_> = told.iter().filter_map(|name| request.header(name)).collect();
        format!("{} https://49999-{SANDBOX_ID}.e2b.app{}", told.join(" "), request.path)
    };
    for status in [400, 401, 403, 404, 405, 409, 418, 422, 429, 500, 502, 503, 504, 507] {
        let server = FaultServer::start(move |request| {
            if request.path.starts_with("/execute") || request.port().is_none() {
                Reply::error(status, &echo(request))
            } else {
                Reply::new(status).send(echo(request))
            }
        })
        .await;
        let client = server.client_with(|options| options.retry.retries = 0);
        let mut errors: Vec<E2bError> = vec![
            client.create(&CreateSandbox::default()).await.unwrap_err(),
            client.get(&id()).await.unwrap_err(),
            client.set_timeout(&id(), Duration::from_secs(1)).await.unwrap_err(),
            client.execute(&access(), &python("1"), Deadlines::default()).await.unwrap_err(),
            client.list_code_contexts(&access()).await.unwrap_err(),
            client.files(&access()).read("/x", 10).await.unwrap_err(),
            client.files(&access()).stat("/x").await.unwrap_err(),
            client.processes(&access()).list().await.unwrap_err(),
        ];
        errors.extend(client.connect(&id(), Duration::from_secs(1)).await.err());
        for error in &errors {
            assert_tells_no_secret(error);
        }
    }
    let client = FaultServer::always(Reply::nothing()).await.client();
    let shown = format!("{client:?} {:?}", access());
    assert!(!shown.contains("planted"), "{shown}");
}

#[tokio::test]
async fn an_id_that_would_change_the_path_is_not_sent() {
    let server = FaultServer::always(Reply::new(204)).await;
    let client = server.client();
    let id: SandboxId = "..".parse().unwrap();
    assert!(matches!(client.kill(&id).await.unwrap_err(), E2bError::Setting { .. }));
    let access = SandboxAccess { id, ..access() };
    assert!(client.execute(&access, &python("1"), Deadlines::default()).await.is_err());
    assert_eq!(server.requests().len(), 0);
}

// --- a context that is brought back ------------------------------------------------------------------------------------

/// A scripted kernel: decides about each `/execute` by its number; contexts and Jupyter answer as configured.
async fn kernel(
    execute: impl Fn(usize, &str) -> Reply + Send + Sync + 'static,
    jupyter: &'static str,
) -> FaultServer {
    let count = AtomicUsize::new(0);
    FaultServer::start(move |request| match (request.port(), request.path.as_str()) {
        (Some(49999), "/execute") => {
            let code = request.json()["code"].as_str().unwrap_or_default().to_owned();
            execute(count.fetch_add(1, Ordering::SeqCst), &code)
        }
        (Some(49999), "/contexts") => Reply::json(
            200,
            json!([{"id": "k-js", "language": "javascript", "cwd": "/"}, {"id": "k-py", "language": "python", "cwd": "/"}]),
        ),
        (Some(49999), "/contexts/k-py/restart") => Reply::json(200, json!(null)),
        (Some(8888), "/api/kernels/k-py/interrupt") => Reply::new(204),
        (Some(8888), _) if jupyter.is_empty() => Reply::port_not_open(8888),
        (Some(8888), _) => Reply::json(200, json!({"id": "k-py", "execution_state": jupyter})),
        _ => Reply::new(404),
    })
    .await
}

const SECOND: &str = r#"{"type": "number_of_executions", "execution_count": 2}"#;

fn done() -> Reply {
    Reply::events(&[SECOND, END])
}

fn hangs() -> Reply {
    Reply::events(&[KEEPALIVE])
        .step(Step::Repeat(format!("{KEEPALIVE}\n").into(), Duration::from_millis(500)))
}

fn runs_long() -> Reply {
    Reply::events(&[COUNT]).step(Step::Hang)
}

fn short_run() -> RunRequest {
    let deadlines = Deadlines::overall(Duration::from_secs(1));
    RunRequest { code: "while True: pass".into(), deadlines, ..RunRequest::default() }
}

#[tokio::test]
async fn after_a_timeout_the_next_run_waits_half_a_second_and_probes_first() {
    let server = kernel(|n, _| if n == 0 { runs_long() } else { done() }, "").await;
    let interpreter = server.client().interpreter(&access(), Target::Language("python".into()));
    let mut run = interpreter.run(&short_run()).await.unwrap();
    while let Ok(Some(_)) = run.next().await {}
    let begun = Instant::now();
    drop(run);
    let mut run = interpreter.run(&RunRequest::new("2")).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
    assert!(!run.state_was_lost());
    while run.next().await.unwrap().is_some() {}
    let codes: Vec<_> = server.requests().iter().map(|request| request.json()["code"].clone()).collect();
    assert_eq!(codes, ["while True: pass", "pass", "2"]);
}

#[tokio::test]
async fn a_run_that_is_dropped_unread_is_settled_too() {
    let server = kernel(|n, _| if n == 0 { runs_long() } else { done() }, "").await;
    let interpreter = server.client().interpreter(&access(), Target::Language("python".into()));
    drop(interpreter.run(&short_run()).await.unwrap());
    let run = interpreter.run(&RunRequest::new("2")).await.unwrap();
    assert_eq!(run.settle().await.unwrap(), Settled::Kept);
    assert_eq!(server.requests()[1].json()["code"], "pass");
}

#[tokio::test]
async fn a_probe_that_hangs_through_the_race_is_sent_again() {
    let server = kernel(
        |n, _| match n {
            0 => runs_long(),
            1 => hangs(),
            _ => done(),
        },
        "idle",
    )
    .await;
    let interpreter = server.client().interpreter(&access(), Target::Language("python".into()));
    let mut run = interpreter.run(&short_run()).await.unwrap();
    while let Ok(Some(_)) = run.next().await {}
    assert_eq!(run.settle().await.unwrap(), Settled::Kept);
    assert!(!server.lines().iter().any(|line| line.contains("restart") || line.contains("interrupt")));
}

#[tokio::test]
async fn code_that_swallows_the_interrupt_is_interrupted_again_and_then_restarted() {
    let restarted = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&restarted);
    let server = kernel(
        move |n, _| match n {
            0 => runs_long(),
            1 | 2 => hangs(),
            _ => {
                seen.store(true, Ordering::SeqCst);
                done()
            }
        },
        "busy",
    )
    .await;
    let interpreter = server.client().interpreter(&access(), Target::Language("python".into()));
    let mut run = interpreter.run(&short_run()).await.unwrap();
    let mut clock = None;
    while clock.is_none() {
        clock = run.next().await.err().and_then(|error| error.clock());
    }
    assert_eq!(clock, Some(Deadline::Overall));
    assert_eq!(run.settle().await.unwrap(), Settled::StateLost);
    let lines = server.lines();
    let at = |line: &str| lines.iter().position(|other| other == line).unwrap();
    assert!(at("POST /api/kernels/k-py/interrupt") < at("POST /contexts/k-py/restart"));
    let codes: Vec<_> = server
        .requests()
        .iter()
        .filter(|request| request.path == "/execute")
        .map(|request| request.json()["code"].clone())
        .collect();
    assert_eq!(codes, ["while True: pass", "pass", "pass", "pass"], "the code itself is never sent again");
    assert!(restarted.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_context_whose_probe_is_its_first_cell_has_lost_its_state() {
    let server = kernel(|n, _| if n == 0 { runs_long() } else { Reply::events(&[COUNT, END]) }, "").await;
    let interpreter = server.client().interpreter(&access(), Target::Language("python".into()));
    let mut run = interpreter.run(&short_run()).await.unwrap();
    while let Ok(Some(_)) = run.next().await {}
    assert_eq!(run.settle().await.unwrap(), Settled::StateLost);
}

#[tokio::test]
async fn a_javascript_context_of_the_cloud_has_lost_its_state_and_one_of_a_local_host_has_not() {
    for (hosted, settled) in [(true, Settled::StateLost), (false, Settled::Kept)] {
        let server = kernel(|n, _| if n == 0 { runs_long() } else { done() }, "").await;
        let mut endpoint = server.endpoint();
        if hosted {
            endpoint.api_url = None;
        }
        let client = server.client().at(&endpoint).unwrap();
        let interpreter = client.interpreter(&access(), Target::Language("javascript".into()));
        let mut run = interpreter.run(&short_run()).await.unwrap();
        while let Ok(Some(_)) = run.next().await {}
        assert_eq!(run.settle().await.unwrap(), settled);
    }
}

#[tokio::test]
async fn one_run_at_a_time_in_order_of_arrival() {
    let server = kernel(
        |_, _| Reply::events(&[COUNT]).step(Step::Wait(Duration::from_millis(30))).send(format!("{END}\n")),
        "",
    )
    .await;
    let interpreter = server.client().interpreter(&access(), Target::Language("python".into()));
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let interpreter = interpreter.clone();
            let task = tokio::spawn(async move {
                let mut run = interpreter.run(&RunRequest::new(format!("{n}"))).await.unwrap();
                while run.next().await.unwrap().is_some() {}
            });
            (n, task)
        })
        .collect();
    for (_, task) in tasks {
        task.await.unwrap();
    }
    let codes: Vec<_> =
        server.requests().iter().map(|r| r.json()["code"].as_str().unwrap().to_owned()).collect();
    assert_eq!(codes, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(server.connections(), 1, "never two at once");
}

#[tokio::test]
async fn variables_of_one_run_are_not_part_of_its_code_and_are_removed_after_it() {
    let server = kernel(|_, _| done(), "").await;
    let interpreter = server.client().interpreter(&access(), Target::Language("python".into()));
    let envs = [("TOKEN".to_owned(), Secret::new("it's \"planted\"\n"))].into();
    let mut run =
        interpreter.run(&RunRequest { code: "%%time\n1".into(), envs, ..Default::default() }).await.unwrap();
    while run.next().await.unwrap().is_some() {}
    drop(run);
    let requests = server.requests();
    let codes: Vec<_> = requests.iter().map(|r| r.json()["code"].as_str().unwrap().to_owned()).collect();
    assert_eq!(codes.len(), 3);
    assert_eq!(codes[1], "%%time\n1", "unchanged, so that its line numbers and magics hold");
    assert!(codes.iter().all(|code| !code.contains("planted")));
    assert!(codes[2].contains("_pathbox_before"));
    assert!(requests.iter().all(|request| request.json().get("env_vars").is_none()));
}

#[tokio::test]
async fn variables_of_a_run_that_timed_out_are_removed_before_anything_else() {
    let server = kernel(|n, _| if n == 1 { runs_long() } else { done() }, "").await;
    let interpreter = server.client().interpreter(&access(), Target::Language("python".into()));
    let envs = [("TOKEN".to_owned(), Secret::new("planted"))].into();
    let mut run = interpreter.run(&RunRequest { envs, ..short_run() }).await.unwrap();
    while let Ok(Some(_)) = run.next().await {}
    drop(run);
    interpreter.run(&RunRequest::new("next")).await.unwrap().settle().await.unwrap();
    let codes: Vec<_> =
        server.requests().iter().map(|r| r.json()["code"].as_str().unwrap().to_owned()).collect();
    assert!(codes[2].contains("_pathbox_before"), "{codes:?}");
    assert_eq!(codes[3], "next");
}

#[tokio::test]
async fn variables_that_cannot_be_set_fail_without_revealing_them() {
    let failure =
        r#"{"type": "error", "name": "NameError", "value": "planted value", "traceback": "planted"}"#;
    let server = kernel(move |_, _| Reply::events(&[COUNT, failure, END]), "").await;
    let interpreter = server.client().interpreter(&access(), Target::Language("python".into()));
    let envs = [("TOKEN".to_owned(), Secret::new("planted"))].into();
    let error = interpreter.run(&RunRequest { envs, ..short_run() }).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "setting environment variables failed in the sandbox with status 1: NameError"
    );
    assert_tells_no_secret(&error);
    assert_eq!(server.requests().len(), 1, "the code was not sent");
}

#[tokio::test]
async fn after_the_kernel_died_the_setup_is_restored_and_the_loss_is_reported() {
    let died = r#"{"type": "error", "name": "ContextRestarting", "value": "Context was restarted", "traceback": ""}"#;
    let server =
        kernel(move |n, _| if n == 1 { Reply::events(&[COUNT, died, END]) } else { done() }, "").await;
    let interpreter = server.client().interpreter(&access(), Target::Language("python".into()));
    interpreter.set_up(Setup { cwd: Some("/data".into()), ..Setup::default() }).await.unwrap();
    let mut run = interpreter.run(&RunRequest::new("import os; os._exit(1)")).await.unwrap();
    let mut names = Vec::new();
    while let Some(event) = run.next().await.unwrap() {
        if let Event::Error(error) = event {
            names.push(error.name);
        }
    }
    assert_eq!(names, ["ContextRestarting"]);
    drop(run);
    let run = interpreter.run(&RunRequest::new("2")).await.unwrap();
    assert!(run.state_was_lost());
    drop(run);
    let codes: Vec<_> =
        server.requests().iter().map(|r| r.json()["code"].as_str().unwrap().to_owned()).collect();
    assert!(codes[0].contains("os.chdir") && codes[2].contains("os.chdir"), "{codes:?}");
    assert_eq!(codes[3], "2");
}

#[tokio::test]
async fn a_kernel_that_the_platform_lost_is_reported_as_interrupted() {
    let lost = r#"{"type": "error", "name": "WebSocketError", "value": "The connections was lost", "traceback": ""}"#;
    let ended =
        r#"{"type": "error", "name": "UnexpectedEndOfExecution", "value": "closed", "traceback": ""}"#;
    let server =
        kernel(move |n, _| if n == 0 { Reply::events(&[COUNT, lost, ended, END]) } else { done() }, "").await;
    let interpreter = server.client().interpreter(&access(), Target::Language("python".into()));
    let mut run = interpreter.run(&RunRequest::new("1")).await.unwrap();
    run.next().await.unwrap();
    let error = run.next().await.unwrap_err();
    assert!(matches!(error, E2bError::Interrupted) && error.may_have_run() && !error.is_retryable());
}

#[tokio::test]
async fn a_traceback_has_its_lines_and_a_note_replaces_the_servers_noise() {
    let error = r#"{"type": "error", "name": "KeyError", "value": "'k'", "traceback": "-----KeyError   Traceback (most recent call last)Cell In[1], line 1\n----> 1 {}['k']\nKeyError: 'k'"}"#;
    let noise = json!({"type": "stderr", "text": "Traceback (most recent call last):\n  File \"/x/zmq/eventloop/zmqstream.py\", line 1\nUnicodeEncodeError: surrogates not allowed\n"});
    let server = kernel(move |_, _| Reply::events(&[COUNT, &noise.to_string(), error, END]), "").await;
    let interpreter = server.client().interpreter(&access(), Target::Language("python".into()));
    let mut run = interpreter.run(&RunRequest::new("1")).await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = run.next().await.unwrap() {
        events.push(event);
    }
    let [_, Event::Stderr(note), Event::Error(error), Event::EndOfExecution] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(note.text.starts_with("note: the provider could not send a part of the output"), "{}", note.text);
    assert!(!note.text.contains("zmqstream"), "{}", note.text);
    assert_eq!(error.traceback.lines().nth(1), Some("KeyError   Traceback (most recent call last)"));
}

// --- files and processes -------------------------------------------------------------------------------------------------

fn envelope(flags: u8, payload: &str) -> Vec<u8> {
    let mut out = vec![flags];
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
    out.extend_from_slice(payload.as_bytes());
    out
}

pub(crate) fn stream(messages: &[&str], end: &str) -> Reply {
    let mut reply = Reply::new(200).header("content-type", "application/connect+json");
    for message in messages {
        reply = reply.send(envelope(0, message));
    }
    reply.send(envelope(2, end))
}

#[tokio::test]
async fn a_background_job_has_no_deadline_and_a_timed_one_has_its_own() {
    let start = r#"{"event": {"start": {"pid": 77}}}"#;
    let server = FaultServer::always(stream(&[start, r#"{"event": {"end": {"exited": true}}}"#], "{}")).await;
    let processes = server.client().processes(&access());
    processes.start(&pathbox::e2b::Command::shell("server &")).await.unwrap();
    let timed =
        pathbox::e2b::Command { life: Some(Duration::from_secs(90)), ..pathbox::e2b::Command::shell("x") };
    let output = processes.run(&timed, 100).await.unwrap();
    assert_eq!(output.exit_code, 0, "a missing exit code is 0");
    let deadlines: Vec<_> =
        server.requests().iter().map(|r| r.header("connect-timeout-ms").map(str::to_owned)).collect();
    assert_eq!(deadlines, [None, Some("90000".to_owned())], "the call's deadline is the process's life");
}

#[tokio::test]
async fn a_process_stream_cut_in_a_character_and_in_an_envelope_comes_whole() {
    let messages = [
        r#"{"event": {"start": {"pid": 77}}}"#,
        r#"{"event": {"keepalive": {}}}"#,
        r#"{"event": {"data": {"stdout": "w6nigg=="}}}"#,
        r#"{"event": {"data": {"stderr": "eA=="}}}"#,
        r#"{"event": {"data": {"stdout": "rPA="}}}"#,
        r#"{"event": {"end": {"exitCode": -1, "status": "signal: killed"}}}"#,
    ];
    let mut bytes: Vec<u8> = messages.iter().flat_map(|message| envelope(0, message)).collect();
    bytes.extend(envelope(2, "{}"));
    let mut reply = Reply::new(200);
    for piece in bytes.chunks(7) {
        reply = reply.send(piece);
    }
    let server = FaultServer::always(reply).await;
    let output =
        server.client().processes(&access()).run(&pathbox::e2b::Command::shell("x"), 100).await.unwrap();
    assert_eq!((output.stdout.as_str(), output.stderr.as_str(), output.exit_code), ("é€\u{fffd}", "x", -1));
}

/// A shell that a signal ends has the status that its parent would see.
#[tokio::test]
async fn the_status_of_a_shell_that_a_signal_ended_names_the_signal() {
    for (said, value) in [
        ("signal: killed", "137"),
        ("signal: segmentation fault (core dumped)", "139"),
        ("signal: signal 34", "162"),
        ("lost", "lost"),
    ] {
        let end = format!(r#"{{"event": {{"end": {{"exitCode": -1, "status": "{said}"}}}}}}"#);
        let mut bytes = envelope(0, r#"{"event": {"start": {"pid": 77}}}"#);
        bytes.extend(envelope(0, &end));
        bytes.extend(envelope(2, "{}"));
        let server = FaultServer::always(Reply::new(200).send(bytes)).await;
        let shell = server.client().shell(&access(), None);
        let mut run = shell.run(&RunRequest::new("kill $$")).await.unwrap();
        let Some(Event::Error(error)) = run.next().await.unwrap() else { panic!("{said}") };
        assert_eq!((error.name.as_str(), error.value.as_str()), ("ExitStatus", value));
        assert_eq!(error.traceback.contains(said), value != "lost", "{error:?}");
    }
}

#[tokio::test]
async fn a_process_stream_without_its_end_is_not_a_success() {
    let start = envelope(0, r#"{"event": {"start": {"pid": 77}}}"#);
    let server = FaultServer::always(Reply::new(200).send(start)).await;
    let processes = server.client().processes(&access());
    let error = processes.run(&pathbox::e2b::Command::shell("x"), 100).await.unwrap_err();
    assert!(matches!(error, E2bError::Incomplete { .. }), "{error:?}");
}

#[tokio::test]
async fn a_process_stream_that_falls_silent_ends_with_the_silence_clock() {
    let start = envelope(0, r#"{"event": {"start": {"pid": 77}}}"#);
    let server = FaultServer::always(Reply::new(200).send(start).step(Step::Hang)).await;
    let client = server.client_with(|options| options.stream_stall = Duration::from_secs(1));
    let processes = client.processes(&access());
    let error = processes.run(&pathbox::e2b::Command::shell("x"), 100).await.unwrap_err();
    assert_eq!(error.clock(), Some(Deadline::Stall));
    assert!(error.may_have_run());
    server.wait_for_leaving("/process.Process/Start").await;
}

#[tokio::test]
async fn errors_of_envd_are_distinguished_in_both_forms() {
    let server = FaultServer::always(stream(
        &[],
        r#"{"error": {"code": "invalid_argument", "message": "cwd 'x' does not exist"}}"#,
    ))
    .await;
    let processes = server.client().processes(&access());
    let error = processes.start(&pathbox::e2b::Command::shell("x")).await.unwrap_err();
    assert_eq!(error.to_string(), "envd refused the call (invalid_argument): cwd 'x' does not exist");
    let server = FaultServer::always(Reply::json(404, json!({"code": "not_found", "message": "nope"}))).await;
    let error = server.client().files(&access()).stat("/x").await.unwrap_err();
    assert!(matches!(error, E2bError::NotFound { what: Subject::File, .. }));
    let server = FaultServer::always(Reply::sandbox_not_found()).await;
    assert!(server.client().files(&access()).stat("/x").await.unwrap_err().is_lost());
    assert!(server.client().files(&access()).read("/x", 1).await.unwrap_err().is_lost());
}

#[tokio::test]
async fn an_old_envd_gets_a_form_and_a_user_and_a_new_one_the_bytes() {
    let written = Reply::json(200, json!([{"path": "/tmp/a.txt", "name": "a.txt", "type": "file"}]));
    let server = FaultServer::always(written).await;
    let client = server.client();
    client.files(&access()).write("/tmp/a b.txt", "new").await.unwrap();
    let old = SandboxAccess { envd_version: pathbox::wire::Version::parse("0.3.9"), ..access() };
    client.files(&old).write("/tmp/a.txt", "old").await.unwrap();
    let requests = server.requests();
    assert_eq!(requests[0].path, "/files?path=%2Ftmp%2Fa%20b.txt");
    assert_eq!((requests[0].body.as_slice(), requests[0].header("authorization")), (b"new".as_slice(), None));
    assert_eq!(requests[1].header("authorization"), Some("Basic dXNlcjo="));
    for request in &requests {
        let routed = (request.header("e2b-sandbox-id"), request.header("e2b-sandbox-port"));
        assert_eq!(routed, (Some(SANDBOX_ID), Some("49983")), "files are routed by headers too");
    }
    let form = String::from_utf8_lossy(&requests[1].body).into_owned();
    assert!(
        form.contains("name=\"file\"; filename=\"/tmp/a.txt\"") && form.contains("\r\n\r\nold\r\n"),
        "{form}"
    );
}

#[tokio::test]
async fn a_download_beyond_the_limit_is_refused_while_reading() {
    let server = FaultServer::always(Reply::new(200).step(Step::Repeat(vec![0; 4096], Duration::ZERO))).await;
    let error = server.client().files(&access()).read("/dev/zero", 50_000).await.unwrap_err();
    assert!(matches!(error, E2bError::TooLarge { limit_bytes: 50_000, .. }));
}

#[tokio::test]
async fn an_mcp_gateway_is_started_as_root_and_its_token_is_kept() {
    let start = r#"{"event": {"start": {"pid": 7}}}"#;
    let server = FaultServer::sequence(vec![
        stream(&[start, r#"{"event": {"end": {"exited": true}}}"#], "{}"),
        // "bad key k-planted"
        stream(
            &[
                start,
                r#"{"event": {"data": {"stderr": "YmFkIGtleSBrLXBsYW50ZWQ="}}}"#,
                r#"{"event": {"end": {"exitCode": 1, "exited": true}}}"#,
            ],
            "{}",
        ),
    ])
    .await;
    let client = server.client();
    let config = json!({"exa": {"apiKey": "k-planted"}});
    let servers = pathbox::e2b::McpServers::new(config.as_object().unwrap().clone());
    let gateway = client.start_mcp_gateway(&access(), &servers).await.unwrap();
    let request = &server.requests()[0];
    assert_eq!(request.header("authorization"), Some("Basic cm9vdDo="));
    let message: serde_json::Value = serde_json::from_slice(&request.body[5..]).unwrap();
    assert_eq!(message["process"]["args"][2], r#"mcp-gateway --config '{"exa":{"apiKey":"k-planted"}}'"#);
    assert_eq!(message["process"]["envs"]["GATEWAY_ACCESS_TOKEN"], gateway.token.expose());
    assert!(gateway.url.expose().ends_with("/mcp"));
    let error = client.start_mcp_gateway(&access(), &servers).await.unwrap_err();
    assert_eq!(error.to_string(), "mcp-gateway failed in the sandbox with status 1: bad key [secret]");
}
