//! The whole server in front of a provider that misbehaves: what its callers see, and what it sends.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::e2b_faults::{created, detail, out, stream};
use crate::support::fault_server::{
    API_KEY, COUNT, END, ENVD_TOKEN, FaultServer, Reply, Request, SANDBOX_ID, TRAFFIC_TOKEN,
};
use crate::support::http::HttpServer;
use crate::support::server::{Server, command};

/// A provider, and a data directory for the servers in front of it.
pub(crate) struct Provider {
    pub(crate) faults: FaultServer,
    data: TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Provider {
    /// One that answers a request as scripted, and any other as a sound one does.
    pub(crate) fn start(told: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let answer = move |request: &Request| told(request).unwrap_or_else(|| sound(request));
        let faults = runtime.block_on(FaultServer::start(answer));
        Self { faults, data: tempfile::tempdir().unwrap(), _runtime: runtime }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = command(self.data.path());
        let url = format!("http://{}", self.faults.addr);
        command.env("E2B_API_KEY", API_KEY).env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url);
        command
    }

    /// A command with a settings file.
    fn command_with(&self, settings: &str) -> Command {
        let file = self.data.path().join("settings.toml");
        std::fs::write(&file, settings).unwrap();
        let mut command = self.command();
        command.env("PATHBOX_CONFIG", file);
        command
    }

    fn serve(&self) -> Server {
        Server::start_with(self.command().arg("serve"))
    }

    /// The bodies of the creates so far.
    fn creates(&self) -> Vec<Value> {
        let requests = self.faults.requests();
        requests.iter().filter(|request| request.line() == "POST /v2/sandboxes").map(Request::json).collect()
    }

    /// The code of all executions so far.
    fn codes(&self) -> Vec<String> {
        let requests = self.faults.requests();
        let executions = requests.iter().filter(|request| request.path == "/execute");
        executions.map(|request| request.json()["code"].as_str().unwrap().to_owned()).collect()
    }
}

/// What a sound provider answers.
fn sound(request: &Request) -> Reply {
    let sandbox = format!("/sandboxes/{SANDBOX_ID}");
    match (request.port(), request.method.as_str(), request.path.as_str()) {
        (Some(49999), "POST", "/execute") => ran("hi"),
        (Some(49999), ..) => Reply::json(200, json!("OK")),
        (Some(49983), "POST", "/process.Process/Start") => {
            stream(&[r#"{"event": {"start": {"pid": 7}}}"#, r#"{"event": {"end": {"exited": true}}}"#], "{}")
        }
        (Some(_), ..) => Reply::new(204),
        (None, "POST", "/v2/sandboxes") => created(),
        (None, "GET", path) if path == sandbox => detail("running"),
        (None, "GET", _) => Reply::json(200, json!([])),
        (None, ..) => Reply::new(204),
    }
}

/// An execution that is not a kernel's first.
fn ran(text: &str) -> Reply {
    Reply::events(&[r#"{"type": "number_of_executions", "execution_count": 2}"#, &out(text), END])
}

fn python(code: &str) -> Value {
    json!({"code": code, "language": "python"})
}

/// A reply for a number of executions of the code, then what a sound provider says.
fn first_executions(
    code: &'static str,
    replies: Vec<Reply>,
) -> impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static {
    let next = AtomicUsize::new(0);
    move |request| {
        if request.path != "/execute" || request.json()["code"] != code {
            return None;
        }
        replies.get(next.fetch_add(1, Ordering::SeqCst)).cloned()
    }
}

/// All bytes of all files below a directory.
fn everything_in(dir: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        // A database's own lock files come and go.
        match path.is_dir() {
            true => bytes.extend(everything_in(&path)),
            false => bytes.extend(std::fs::read(&path).unwrap_or_default()),
        }
    }
    bytes
}

fn holds(haystack: &[u8], needle: &str) -> bool {
    memchr::memmem::find(haystack, needle.as_bytes()).is_some()
}

// --- what a tenant's sandboxes are made with ---------------------------------------------------------------------------

#[test]
fn a_tenant_without_settings_gets_a_sandbox_that_is_closed_in_both_directions() {
    let provider = Provider::start(|_| None);
    let mut server = provider.serve();
    assert_eq!(server.python("1")["structuredContent"]["stdout"], "hi");
    let create = &provider.creates()[0];
    assert_eq!(create["templateID"], "code-interpreter-v1");
    assert_eq!(create["allow_internet_access"], false);
    assert_eq!(create["network"], json!({"allowPublicTraffic": false, "denyOut": ["0.0.0.0/0"]}));
    assert!(create.get("autoPause").is_none() && create.get("mcp").is_none(), "{create}");
    assert_eq!(create["envVars"], json!({}));
}

#[test]
fn a_tenants_settings_make_its_sandbox_and_its_gateways_token_is_kept_encrypted() {
    let provider = Provider::start(|_| None);
    let settings = r#"
        [tenants."acme.eu"]
        allow_out = ["pypi.org", "*.exa.ai"]
        on_timeout = "pause"
        mcp.exa.apiKey = "exa-planted"
    "#;
    let mut command = provider.command_with(settings);
    let mut server = Server::start_with(command.args(["serve", "--tenant", "acme.eu"]));
    let result = server.python("1");
    assert_eq!(result["structuredContent"]["stdout"], "hi", "{result}");
    drop(server);

    let create = &provider.creates()[0];
    assert_eq!(create["templateID"], "mcp-gateway");
    assert_eq!(
        (&create["autoPause"], &create["mcp"]),
        (&json!(true), &json!({"exa": {"apiKey": "exa-planted"}}))
    );
    let network =
        json!({"allowPublicTraffic": false, "allowOut": ["pypi.org", "*.exa.ai"], "denyOut": ["0.0.0.0/0"]});
    assert_eq!(create["network"], network);
    assert!(create.get("allow_internet_access").is_none());

    let requests = provider.faults.requests();
    let start = requests.iter().find(|request| request.path == "/process.Process/Start").unwrap();
    assert_eq!(start.header("authorization"), Some("Basic cm9vdDo="), "as root");
    let message: Value = serde_json::from_slice(&start.body[5..]).unwrap();
    assert_eq!(message["process"]["args"][2], r#"mcp-gateway --config '{"exa":{"apiKey":"exa-planted"}}'"#);
    let token = message["process"]["envs"]["GATEWAY_ACCESS_TOKEN"].as_str().unwrap().to_owned();

    let shown = result.to_string();
    std::fs::remove_file(provider.data.path().join("settings.toml")).unwrap();
    let kept = everything_in(provider.data.path());
    assert!(holds(&kept, &format!("http://{}/mcp", provider.faults.addr)), "where the gateway is");
    for secret in [token.as_str(), "planted", "/mcp"] {
        assert!(!shown.contains(secret), "{secret} in {shown}");
        assert!(secret == "/mcp" || !holds(&kept, secret), "{secret} is kept in the clear");
    }
    assert!(!shown.contains(SANDBOX_ID), "{shown}");
}

#[test]
fn a_gateway_that_does_not_start_ends_its_sandbox_and_the_error_has_no_secret() {
    let provider = Provider::start(|request| {
        // "bad key exa-planted"
        let said = r#"{"event": {"data": {"stderr": "YmFkIGtleSBleGEtcGxhbnRlZA=="}}}"#;
        let failed = [r#"{"event": {"start": {"pid": 7}}}"#, said, r#"{"event": {"end": {"exitCode": 1}}}"#];
        match request.path.as_str() {
            "/process.Process/Start" => Some(stream(&failed, "{}")),
            _ => None,
        }
    });
    let settings = "[tenants.local.mcp.exa]\napiKey = \"exa-planted\"\n";
    let mut server = Server::start_with(provider.command_with(settings).arg("serve"));
    let result = server.python("1");
    assert_eq!(result["isError"], true, "{result}");
    assert_eq!(result["_meta"]["dev.pathbox/error"]["code"], "sandbox_unavailable");
    assert!(!result.to_string().contains("planted"), "{result}");
    assert_eq!(provider.codes(), Vec::<String>::new());
    let killed = format!("DELETE /sandboxes/{SANDBOX_ID}");
    assert!(provider.faults.lines().contains(&killed), "{:?}", provider.faults.lines());
}

// --- what is sent ------------------------------------------------------------------------------------------------------

#[test]
fn a_warm_run_asks_the_provider_for_the_execution_and_nothing_else() {
    let provider = Provider::start(|_| None);
    let mut server = provider.serve();
    let trace = |n: usize| format!("{n:032x}");
    let traceparent = |n: usize| json!({"traceparent": format!("00-{}-00f067aa0ba902b7-01", trace(n))});
    for n in 1..=6 {
        let result = server.call(python("1"), traceparent(n));
        assert_eq!(result["structuredContent"]["success"], true, "{result}");
    }
    drop(server);
    // Background work belongs to no call; what belongs to one carries its trace.
    let requests = provider.faults.requests();
    let of = |n: usize| {
        let id = trace(n);
        let mine =
            |request: &&Request| request.header("traceparent").is_some_and(|parent| parent.contains(&id));
        requests.iter().filter(mine).map(Request::line).collect::<Vec<_>>()
    };
    assert_eq!(of(1), ["POST /v2/sandboxes", "POST /execute"]);
    for n in 2..=6 {
        assert_eq!(of(n), ["POST /execute"], "run {n}");
    }
    for request in requests.iter().filter(|request| request.header("traceparent").is_none()) {
        assert!(request.line().starts_with("GET /v2/sandboxes?"), "{} belongs to no call", request.line());
    }
    let mut spans: Vec<_> = requests.iter().filter_map(|request| request.header("traceparent")).collect();
    spans.sort_unstable();
    spans.dedup();
    assert_eq!(spans.len(), 7, "each request is a span of its own");
}

#[test]
fn a_call_without_a_trace_begins_one() {
    let provider = Provider::start(|_| None);
    let mut server = provider.serve();
    server.python("1");
    let requests = provider.faults.requests();
    let sent = requests.iter().find(|request| request.path == "/execute").unwrap();
    let parent = sent.header("traceparent").unwrap().to_owned();
    let id = parent.split('-').nth(1).unwrap();
    assert!(parent.len() == 55 && id.len() == 32 && id.bytes().any(|digit| digit != b'0'), "{parent}");
    drop(server);
    let listed = provider.command().args(["executions", "ls", "--json"]).output().unwrap();
    assert!(String::from_utf8(listed.stdout).unwrap().contains(id), "the record names it");
}

// --- a run that is cut off ----------------------------------------------------------------------------------------------

#[test]
fn an_interpreter_that_the_platform_lost_is_reported_and_its_sandbox_is_kept() {
    let error =
        |name: &str| json!({"type": "error", "name": name, "value": "lost", "traceback": ""}).to_string();
    let lost = Reply::events(&[
        COUNT,
        &out("half"),
        &error("WebSocketError"),
        &error("UnexpectedEndOfExecution"),
        END,
    ]);
    let empty = Reply::new(200);
    let provider = Provider::start(first_executions("work()", vec![lost, empty]));
    let mut server = provider.serve();
    server.python("1");
    for stdout in ["half", ""] {
        let content = &server.python("work()")["structuredContent"];
        assert_eq!((&content["success"], &content["stdout"]), (&json!(false), &json!(stdout)), "{content}");
        assert_eq!(content["error"]["name"], "interpreter_died", "{content}");
        let message = content["error"]["message"].as_str().unwrap();
        assert!(message.contains("may have had effects and is not retried"), "{message}");
        assert_eq!(content["state"], "kept", "the probe found it alive: {content}");
    }
    let after = server.python("2");
    assert_eq!(after["structuredContent"]["state"], "kept", "{after}");
    assert_eq!(provider.creates().len(), 1, "the sandbox lives");
    assert_eq!(provider.codes(), ["1", "work()", "pass", "work()", "pass", "2"]);
}

#[test]
fn a_programs_own_exception_of_a_platforms_name_is_the_programs() {
    let own =
        json!({"type": "error", "name": "WebSocketError", "value": "mine", "traceback": "Traceback: mine"});
    let provider =
        Provider::start(first_executions("work()", vec![Reply::events(&[COUNT, &own.to_string(), END])]));
    let mut server = provider.serve();
    let content = &server.python("work()")["structuredContent"];
    assert_eq!(content["error"]["name"], "WebSocketError", "{content}");
    assert_eq!(provider.codes(), ["work()"], "nothing had to be settled");
}

#[test]
fn code_whose_answer_never_began_is_not_run_again_under_its_key() {
    for fault in [
        Reply::new(502).send("<html><h1>502 Bad Gateway</h1></html>"),
        Reply::nothing(),
        Reply::error(500, "x"),
    ] {
        let provider = Provider::start(first_executions("pay()", vec![fault]));
        let mut server = provider.serve();
        let pay = || json!({"code": "pay()", "language": "python", "idempotency_key": "once"});
        for replayed in [false, true] {
            let result = server.call(pay(), json!({}));
            let content = &result["structuredContent"];
            assert_eq!(content["error"]["name"], "connection_lost", "{result}");
            assert_eq!(content["replayed"] == true, replayed);
        }
        let codes = provider.codes();
        assert_eq!(codes.iter().filter(|code| *code == "pay()").count(), 1, "{codes:?}");
    }
}

#[test]
fn a_template_without_an_interpreter_is_named_as_the_cause() {
    let provider =
        Provider::start(|request| (request.path == "/execute").then(|| Reply::port_not_open(49999)));
    let mut server = provider.serve();
    let result = server.python("1");
    assert_eq!(result["isError"], true);
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("without a code interpreter") && text.contains("`e2b.template`"), "{text}");
}

// --- a sandbox that its data plane does not know --------------------------------------------------------------------------

/// A provider whose data plane loses the sandbox once it ran something; `control` answers `GET /sandboxes/{id}`.
fn losing(control: Reply) -> (Provider, Arc<Mutex<bool>>) {
    let away = Arc::new(Mutex::new(false));
    let shared = Arc::clone(&away);
    let provider = Provider::start(move |request| {
        let mut away = shared.lock().unwrap();
        match (request.port(), request.path.as_str()) {
            (Some(_), _) if *away => Some(Reply::sandbox_not_found()),
            (None, path) if request.method == "GET" && path.ends_with(SANDBOX_ID) => Some(control.clone()),
            (None, path) if path.ends_with("/connect") => {
                *away = false;
                Some(Reply { status: 201, ..created() })
            }
            (None, "/v2/sandboxes") if *away => {
                *away = false;
                let another = json!({"templateID": "t1", "sandboxID": "iother", "clientID": "c", "envdVersion": "0.6.13"});
                Some(Reply::json(201, another))
            }
            _ => None,
        }
    });
    (provider, away)
}

#[test]
fn a_paused_sandbox_is_resumed_and_its_state_is_kept() {
    let (provider, away) = losing(detail("paused"));
    let mut server = provider.serve();
    server.python("1");
    *away.lock().unwrap() = true;
    let content = &server.python("2")["structuredContent"];
    assert_eq!((&content["success"], &content["state"]), (&json!(true), &json!("kept")), "{content}");
    assert_eq!(provider.creates().len(), 1);
    let requests = provider.faults.requests();
    let connect = requests.iter().find(|request| request.path.ends_with("/connect")).unwrap();
    assert!(
        connect.json()["timeout"].as_u64().unwrap() >= 3600,
        "the life that was wanted, not five minutes"
    );
}

#[test]
fn a_sandbox_that_is_gone_is_replaced_and_the_loss_is_reported() {
    let (provider, away) = losing(Reply::error(404, "Sandbox doesn't exist or you don't have access to it"));
    let mut server = provider.serve();
    server.python("1");
    *away.lock().unwrap() = true;
    let result = server.python("2");
    let content = &result["structuredContent"];
    assert_eq!((&content["success"], &content["state"]), (&json!(true), &json!("reset")), "{content}");
    assert_eq!(content["stateReason"], "the sandbox was lost; earlier variables and files are gone");
    let said = result["content"][0]["text"].as_str().unwrap();
    assert!(said.contains("(the sandbox was lost; earlier variables and files are gone)"), "{said}");
    assert_eq!(provider.creates().len(), 2);
}

#[test]
fn a_sandbox_that_is_out_of_sight_for_a_moment_is_waited_for() {
    // Its data plane does not know it four times, and the control plane says that it runs.
    let (ran_once, misses) = (AtomicUsize::new(0), AtomicUsize::new(4));
    let provider = Provider::start(move |request| {
        request.port()?;
        let second = request.path != "/execute" || ran_once.fetch_add(1, Ordering::SeqCst) > 0;
        let misses =
            || misses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        (second && misses()).then(Reply::sandbox_not_found)
    });
    let mut server = provider.serve();
    server.python("1");
    let content = &server.python("2")["structuredContent"];
    assert_eq!((&content["success"], &content["state"]), (&json!(true), &json!("kept")), "{content}");
    assert_eq!(provider.creates().len(), 1);
}

#[test]
fn a_sandbox_that_cannot_be_resumed_is_replaced() {
    let away = Arc::new(Mutex::new(false));
    let shared = Arc::clone(&away);
    let provider = Provider::start(move |request| {
        let mut away = shared.lock().unwrap();
        match (request.port(), request.path.as_str()) {
            (Some(_), _) if *away => Some(Reply::sandbox_not_found()),
            (None, path) if request.method == "GET" && path.ends_with(SANDBOX_ID) => Some(detail("paused")),
            (None, path) if path.ends_with("/connect") => Some(Reply::error(404, "Sandbox can't be resumed")),
            (None, "/v2/sandboxes") if *away => {
                *away = false;
                let another = json!({"templateID": "t1", "sandboxID": "iother", "clientID": "c", "envdVersion": "0.6.13"});
                Some(Reply::json(201, another))
            }
            _ => None,
        }
    });
    let mut server = provider.serve();
    server.python("1");
    *away.lock().unwrap() = true;
    let content = &server.python("2")["structuredContent"];
    assert_eq!((&content["success"], &content["state"]), (&json!(true), &json!("reset")), "{content}");
}

#[test]
fn bash_of_a_hosted_provider_runs_as_a_process_with_both_outputs_and_its_status() {
    let provider = Provider::start(|request| {
        let events = [
            r#"{"event": {"start": {"pid": 7}}}"#,
            r#"{"event": {"data": {"stdout": "b3V0Cg=="}}}"#,
            r#"{"event": {"data": {"stderr": "ZXJyCg=="}}}"#,
            r#"{"event": {"end": {"exitCode": 3, "exited": true}}}"#,
        ];
        (request.path == "/process.Process/Start").then(|| stream(&events, "{}"))
    });
    let mut command = provider.command();
    // Two names for one server: not the one address of a local host.
    command.env("E2B_SANDBOX_URL", format!("http://localhost:{}", provider.faults.addr.port()));
    let mut server = Server::start_with(command.arg("serve"));
    let result = server.call(json!({"code": "work", "language": "bash"}), json!({}));
    let content = &result["structuredContent"];
    assert_eq!((&content["stdout"], &content["stderr"]), (&json!("out\n"), &json!("err\n")), "{result}");
    assert_eq!((&content["exitCode"], &content["state"]), (&json!(3), &json!("fresh")), "{content}");
    assert_eq!(provider.codes(), Vec::<String>::new(), "the kernel was not asked");
}

#[test]
fn a_provider_that_cannot_say_what_became_of_a_sandbox_costs_no_state() {
    let (provider, away) = losing(Reply::error(401, "unknown API key"));
    let mut server = provider.serve();
    server.python("1");
    *away.lock().unwrap() = true;
    let result = server.python("2");
    assert_eq!(result["_meta"]["dev.pathbox/error"]["code"], "sandbox_failed", "{result}");
    *away.lock().unwrap() = false;
    let content = &server.python("3")["structuredContent"];
    assert_eq!((&content["success"], &content["state"]), (&json!(true), &json!("kept")), "{content}");
    assert_eq!(provider.creates().len(), 1);
}

// --- a provider that breaks off, or is none -----------------------------------------------------------------------------------

/// Nothing ran, so there are no effects to check.
#[test]
fn a_create_without_a_usable_answer_says_what_to_check() {
    let provider = Provider::start(|request| {
        let is_create = request.method == "POST" && request.path == "/v2/sandboxes";
        is_create.then(|| Reply::new(201).send("<html>sign in</html>"))
    });
    let mut server = Server::start_with(provider.command().arg("serve"));
    let result = server.python("1");
    let said = result["content"][0]["text"].as_str().unwrap();
    assert!(said.contains("Nothing was run. Try again; if it persists, check E2B_DOMAIN"), "{said}");
    assert!(!said.contains("effects"), "{said}");
}

// --- a provider that is down -----------------------------------------------------------------------------------------------

#[test]
fn readyz_and_doctor_report_a_dead_provider() {
    let provider = Provider::start(|request| request.port().is_none().then(|| Reply::new(503).send("down")));
    let server = HttpServer::start_with(&mut provider.command());
    let mut session = server.session(&[]);
    let begun = Instant::now();
    loop {
        let result = session.python("1");
        assert_eq!(result["_meta"]["dev.pathbox/error"]["code"], "sandbox_unavailable", "{result}");
        let mut ready = server.send("GET", "/readyz", &[], b"");
        // It is reported, and takes no replica out.
        assert_eq!(ready.status, 200);
        if ready.text().contains(r#""provider":"away""#) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    let doctor = provider.command().args(["doctor", "--json"]).output().unwrap();
    assert!(!doctor.status.success());
    let checks: Vec<Value> = serde_json::from_slice(&doctor.stdout).unwrap();
    let check = checks.iter().find(|check| check["name"] == "sandbox provider").unwrap();
    assert_eq!(check["ok"], false);
    assert!(check["detail"].as_str().unwrap().contains("503"), "{check}");
    assert!(!String::from_utf8_lossy(&doctor.stdout).contains("planted"));
}

// --- secrets -----------------------------------------------------------------------------------------------------------------

#[test]
fn no_log_at_any_level_and_no_result_holds_a_secret() {
    // A provider that fails in turn in every way, and repeats all that it received.
    let turn = AtomicUsize::new(0);
    let provider = Provider::start(move |request| {
        let told = ["x-api-key", "x-access-token", "e2b-traffic-access-token"];
        let told: Vec<_> = told.iter().filter_map(|name| request.header(name)).collect();
        let echo = format!("{} {SANDBOX_ID}", told.join(" "));
        if request.port().is_none() && request.method == "GET" {
            return Some(Reply::error(503, &echo));
        }
        if request.path != "/execute" || request.json()["code"] == "pass" {
            return None;
        }
        match turn.fetch_add(1, Ordering::SeqCst) {
            0 => None,
            n @ 1..=6 => Some(Reply::error([400, 401, 403, 429, 500, 502][n - 1], &echo)),
            7 => Some(Reply::new(200).send(&*echo)),
            _ => Some(Reply::events(&[COUNT])),
        }
    });
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = provider.command();
    command.args(["serve", "--set", "log.filter=trace", "--set", "guard.mode=off"]);
    command.env("CRON_SECRET", "cron-secret-planted").stderr(Stdio::from(log.reopen().unwrap()));
    let mut server = Server::start_with(&mut command);
    let mut shown = String::new();
    for n in 0..9 {
        let mut arguments = python("print('code-planted')");
        arguments["purpose"] = json!(format!("run {n}"));
        shown.push_str(&server.call(arguments, json!({"traceparent": "nonsense"})).to_string());
    }
    drop(server);
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(log.contains("DEBUG") && log.contains("a run was cut off"), "the log is at its finest: {log}");
    for (what, text) in [("the log", &log), ("a result", &shown)] {
        for secret in [API_KEY, ENVD_TOKEN, TRAFFIC_TOKEN, "planted", SANDBOX_ID] {
            assert!(!text.contains(secret), "{secret} in {what}: {text}");
        }
    }
}

/// A sandbox host in a process of its own that ends with the test.
#[cfg(target_os = "linux")]
struct Host(std::process::Child, String);

#[cfg(target_os = "linux")]
impl Host {
    fn start(data: &Path) -> Self {
        use std::io::BufRead;
        let mut child = command(data)
            .args(["host", "--listen", "127.0.0.1:0", "--api-key", API_KEY])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.split("E2B_API_URL=").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
        Self(child, url)
    }
}

#[cfg(target_os = "linux")]
impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_dead_interpreter_of_the_local_host_is_reported_and_its_sandbox_is_kept() {
    let data = tempfile::tempdir().unwrap();
    let mut server =
        Server::start_with(command(data.path()).arg("serve").env("PATHBOX_HOST_CHECKPOINT_MB", "0"));
    server.python("open('/tmp/kept', 'w').write('x'); kept = 1");
    let result = server.python("import os; os._exit(3)");
    let content = &result["structuredContent"];
    assert_eq!((&content["success"], &content["state"]), (&json!(false), &json!("reset")), "{content}");
    let reason = "the interpreter died and was restarted; earlier variables are gone, files are kept";
    assert_eq!(content["stateReason"], reason);
    let said = result["content"][0]["text"].as_str().unwrap();
    assert!(said.contains(&format!("({reason})")), "{said}");
    let content =
        &server.python("import os; 'kept' in globals(), os.path.exists('/tmp/kept')")["structuredContent"];
    assert_eq!(content["output"], "(False, True)", "{content}");
}

/// A web server on the loopback that answers everything with 200.
#[cfg(target_os = "linux")]
fn web() -> u16 {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
    });
    port
}

#[test]
#[cfg(target_os = "linux")]
fn a_tenants_allow_list_opens_its_own_sandboxes_and_no_others() {
    let data = tempfile::tempdir().unwrap();
    let settings = data.path().join("settings.toml");
    std::fs::write(&settings, "[tenants.acme]\nallow_out = [\"127.0.0.1\"]\n").unwrap();
    let (listed, code) = (
        web(),
        r#"
import os, socket, urllib.parse
proxy = urllib.parse.urlsplit(os.environ.get("HTTP_PROXY", ""))
def ask(host):
    if not proxy.hostname: return "no proxy"
    s = socket.create_connection((proxy.hostname, proxy.port), 20)
    s.sendall(f"GET http://{host}:PORT/ HTTP/1.1\r\nHost: {host}:PORT\r\nConnection: close\r\n\r\n".encode())
    return s.makefile("rb").readline().decode().split(" ")[1]
try: direct = socket.create_connection(("127.0.0.1", PORT), 5) and "open"
except OSError: direct = "closed"
print(ask("127.0.0.1"), ask("127.0.0.2"), direct)
"#,
    );
    for (tenant, said) in [("acme", "200 403 closed\n"), ("other", "no proxy no proxy closed\n")] {
        let mut serve = command(data.path());
        let mut server =
            Server::start_with(serve.env("PATHBOX_CONFIG", &settings).args(["serve", "--tenant", tenant]));
        let result = server.python(&code.replace("PORT", &listed.to_string()));
        assert_eq!(result["structuredContent"]["stdout"], said, "{tenant}: {result}");
        assert!(world_is_open(&mut server));
    }
    assert!(!world_is_open(&mut Server::start(tempfile::tempdir().unwrap().path())));
}

/// What the list of tools says about `run_code`.
#[cfg(target_os = "linux")]
fn world_is_open(server: &mut Server) -> bool {
    let listed = server.request("tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    let run_code = tools.iter().find(|tool| tool["name"] == "run_code").unwrap();
    run_code["annotations"]["openWorldHint"].as_bool().unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn mcp_servers_are_refused_where_no_gateway_is() {
    let data = tempfile::tempdir().unwrap();
    let settings = data.path().join("settings.toml");
    std::fs::write(&settings, "[tenants.local.mcp.exa]\napiKey = \"exa-planted\"\n").unwrap();
    let mut serve = command(data.path());
    let mut server = Server::start_with(serve.env("PATHBOX_CONFIG", &settings).arg("serve"));
    let result = server.python("1");
    assert_eq!(result["_meta"]["dev.pathbox/error"]["code"], "sandbox_unavailable", "{result}");
    assert!(!result.to_string().contains("planted"), "{result}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_sandbox_holds_no_secret_of_the_server_in_any_process_or_file() {
    let (data, host_data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let host = Host::start(host_data.path());
    let mut serve = command(data.path());
    serve.env("E2B_API_KEY", API_KEY).env("E2B_API_URL", &host.1).env("E2B_SANDBOX_URL", &host.1);
    serve.env("CRON_SECRET", "cron-secret-planted").env("PATHBOX_GUARD_MODE", "off").arg("serve");
    let mut server = Server::start_with(&mut serve);
    // Looks for it in pieces, so that it does not find itself; says how much it has looked at.
    let code = r#"
import glob, os
needle, seen, hits = b"plan" + b"ted", 0, []
for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try: text = open(path, "rb").read()
    except OSError: continue
    seen += 1
    if needle in text: hits.append(path)
for top in ("/home", "/tmp", "/etc", "/run", "/var"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.isfile(path) or os.path.getsize(path) > 1 << 20: continue
            try: text = open(path, "rb").read()
            except OSError: continue
            seen += 1
            if needle in text: hits.append(path)
print(seen > 3, hits, needle in repr(dict(os.environ)).encode())
"#;
    let result = server.call(json!({"code": code, "language": "python", "timeout_ms": 60_000}), json!({}));
    assert_eq!(result["structuredContent"]["stdout"], "True [] False\n", "{result}");
    let shell = json!({"code": "env; cat /proc/*/environ | tr '\\0' '\\n'", "language": "bash"});
    let result = server.call(shell, json!({}));
    assert!(result["structuredContent"]["stdout"].as_str().unwrap().contains("PATH="), "{result}");
    assert!(!result.to_string().contains("planted"), "{result}");
}
