//! One suite for everything that speaks the sandbox protocol: the real local host and, where a fake can play along, the
//! fault server in its healthy mode. What passes against both is what the client may rely on.

use std::future::Future;
use std::time::{Duration, Instant};

use pathbox::domain::{Clock, Entropy};
use pathbox::e2b::{
    CreateSandbox, Deadline, Deadlines, E2bClient, E2bError, Endpoint, ListFilter, Options, RunRequest,
    Sandbox, Settled, Subject, Target,
};
use pathbox::wire::Secret;
use pathbox::wire::interpreter::{CreateContext, Event, ExecuteRequest, ExecutionError};

use crate::support::fault_server::FaultServer;

/// A server under test.
pub(crate) struct Server {
    pub(crate) client: E2bClient,
    /// What keeps it alive.
    _host: Option<local::Guard>,
}

impl Server {
    async fn fake() -> Self {
        let server = FaultServer::healthy().await;
        Self { client: server.client(), _host: None }
    }

    pub(crate) async fn create(&self) -> Sandbox {
        self.client.create(&CreateSandbox::default()).await.unwrap()
    }
}

/// A run's events, by kind.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) main: Option<String>,
    pub(crate) error: Option<ExecutionError>,
}

impl Seen {
    pub(crate) fn add(&mut self, event: Event) {
        match event {
            Event::Stdout(output) => self.stdout.push_str(&output.text),
            Event::Stderr(output) => self.stderr.push_str(&output.text),
            Event::Result(result) if result.is_main_result => self.main = result.text,
            Event::Error(error) => self.error = Some(error),
            _ => {}
        }
    }
}

async fn run(server: &Server, sandbox: &Sandbox, code: &str) -> Seen {
    let request = ExecuteRequest::in_language(code, "python");
    let mut run = server.client.execute(&sandbox.access(), &request, Deadlines::default()).await.unwrap();
    let mut seen = Seen::default();
    while let Some(event) = run.next().await.unwrap() {
        seen.add(event);
    }
    seen
}

/// Every case below, against both servers.
macro_rules! contract {
    ($($case:ident,)+) => {
        mod on_the_fault_server {
            $(#[tokio::test]
            async fn $case() {
                super::bounded(super::$case(super::Server::fake().await)).await;
            })+
        }

        #[cfg(target_os = "linux")]
        mod on_the_local_host {
            $(#[tokio::test]
            async fn $case() {
                super::bounded(super::$case(super::local::start().await)).await;
            })+
        }
    };
}

/// A case that hangs is a case that fails.
async fn bounded(case: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(60), case).await.expect("the case ends within a minute");
}

contract! {
    a_sandbox_lives_from_create_to_kill,
    a_list_holds_what_matches,
    a_second_client_connects_knowing_only_the_id,
    output_result_and_end_come_in_order,
    variables_are_kept_between_runs,
    an_exception_has_its_name_message_and_lines,
    unicode_comes_whole,
    a_wrong_key_is_refused,
    a_killed_sandbox_is_lost_on_both_planes,
    an_unknown_language_and_an_unknown_context_are_distinguished,
    a_run_that_times_out_is_interrupted_and_its_variables_are_kept,
    a_code_context_is_made_listed_restarted_and_removed,
    a_dead_interpreter_is_reported_and_works_again,
    variables_of_one_run_are_there_for_it_alone,
    an_interpreter_is_healthy,
}

async fn a_sandbox_lives_from_create_to_kill(server: Server) {
    let client = &server.client;
    let create = CreateSandbox { timeout: Duration::from_secs(120), ..CreateSandbox::default() };
    let sandbox = client.create(&create).await.unwrap();
    assert!(sandbox.envd_token.is_some(), "always secured");
    let before = client.get(&sandbox.id).await.unwrap();
    assert_eq!((before.end_at - before.started_at).num_seconds(), 120);
    client.set_timeout(&sandbox.id, Duration::from_secs(600)).await.unwrap();
    let after = client.get(&sandbox.id).await.unwrap();
    assert!((after.end_at - before.end_at).num_seconds() > 400);
    client.refresh(&sandbox.id, Duration::from_secs(30)).await.unwrap();
    assert!(client.get(&sandbox.id).await.unwrap().end_at >= after.end_at, "a refresh never shortens");
    assert!(client.kill(&sandbox.id).await.unwrap());
    assert!(!client.kill(&sandbox.id).await.unwrap());
}

async fn a_list_holds_what_matches(server: Server) {
    let client = &server.client;
    let with = |value: &str| CreateSandbox {
        metadata: [("a b".to_owned(), value.to_owned()), ("all".to_owned(), "yes".to_owned())].into(),
        ..CreateSandbox::default()
    };
    let first = client.create(&with("c&d=é")).await.unwrap();
    let second = client.create(&with("other")).await.unwrap();
    let list = async |pairs: &[(&str, &str)]| {
        let metadata = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let found = client.list(&ListFilter { metadata, ..ListFilter::default() }).await.unwrap();
        let mut ids: Vec<_> = found.into_iter().map(|sandbox| sandbox.sandbox_id).collect();
        ids.sort();
        ids
    };
    let mut both = vec![first.id.to_string(), second.id.to_string()];
    both.sort();
    assert_eq!(list(&[("a b", "c&d=é"), ("all", "yes")]).await, [first.id.to_string()]);
    assert_eq!(list(&[("all", "yes")]).await, both);
    assert_eq!(list(&[("all", "no")]).await, Vec::<String>::new());
}

async fn a_second_client_connects_knowing_only_the_id(server: Server) {
    let sandbox = server.create().await;
    let connected = server.client.connect(&sandbox.id, Duration::from_secs(300)).await.unwrap();
    assert!(!connected.resumed);
    assert_eq!(connected.access(), sandbox.access());
}

async fn output_result_and_end_come_in_order(server: Server) {
    let sandbox = server.create().await;
    let request = ExecuteRequest::in_language("print('hello'); 1 + 1", "python");
    let mut run = server.client.execute(&sandbox.access(), &request, Deadlines::default()).await.unwrap();
    let mut kinds = Vec::new();
    while let Some(event) = run.next().await.unwrap() {
        kinds.push(match event {
            Event::NumberOfExecutions { .. } => "count",
            Event::Stdout(output) if output.text == "hello\n" => "stdout",
            Event::Result(result) if result.is_main_result && result.text.as_deref() == Some("2") => "result",
            Event::EndOfExecution => "end",
            Event::Keepalive => continue,
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(kinds, ["count", "stdout", "result", "end"]);
}

async fn variables_are_kept_between_runs(server: Server) {
    let sandbox = server.create().await;
    run(&server, &sandbox, "kept = 41").await;
    assert_eq!(run(&server, &sandbox, "kept + 1").await.main.as_deref(), Some("42"));
}

async fn an_exception_has_its_name_message_and_lines(server: Server) {
    let sandbox = server.create().await;
    let interpreter = server.client.interpreter(&sandbox.access(), Target::Language("python".into()));
    let mut run = interpreter.run(&RunRequest::new("x = 1\nx / 0")).await.unwrap();
    let mut seen = Seen::default();
    while let Some(event) = run.next().await.unwrap() {
        seen.add(event);
    }
    let error = seen.error.unwrap();
    assert_eq!((error.name.as_str(), error.value.as_str()), ("ZeroDivisionError", "division by zero"));
    let traceback = error.traceback;
    assert_eq!(traceback.trim_end().lines().last(), Some("ZeroDivisionError: division by zero"));
    assert!(traceback.lines().any(|line| line.contains("x / 0")), "{traceback}");
}

async fn unicode_comes_whole(server: Server) {
    let sandbox = server.create().await;
    let seen = run(&server, &sandbox, r"print('é€😀\u2028\u0085')").await;
    assert_eq!(seen.stdout, "é€😀\u{2028}\u{85}\n");
}

async fn a_wrong_key_is_refused(server: Server) {
    let wrong = Endpoint { api_key: Secret::new("e2b_wrong"), ..server.client.endpoint().clone() };
    let error = server.client.at(&wrong).unwrap().create(&CreateSandbox::default()).await.unwrap_err();
    assert!(matches!(error, E2bError::Unauthenticated(_)), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("e2b_wrong"));
}

async fn a_killed_sandbox_is_lost_on_both_planes(server: Server) {
    let sandbox = server.create().await;
    server.client.kill(&sandbox.id).await.unwrap();
    assert!(server.client.get(&sandbox.id).await.unwrap_err().is_lost());
    assert!(server.client.set_timeout(&sandbox.id, Duration::from_secs(60)).await.unwrap_err().is_lost());
    assert!(server.client.connect(&sandbox.id, Duration::from_secs(60)).await.unwrap_err().is_lost());
    let request = ExecuteRequest::in_language("1", "python");
    let error = server.client.execute(&sandbox.access(), &request, Deadlines::default()).await.unwrap_err();
    assert!(error.is_lost() && !error.may_have_run(), "{error:?}");
    assert!(server.client.files(&sandbox.access()).stat("/tmp").await.unwrap_err().is_lost());
}

async fn an_unknown_language_and_an_unknown_context_are_distinguished(server: Server) {
    let access = server.create().await.access();
    let request = ExecuteRequest::in_language("1", "cobol");
    let error = server.client.execute(&access, &request, Deadlines::default()).await.unwrap_err();
    assert!(matches!(error, E2bError::UnknownLanguage(_)), "{error:?}");
    let request = ExecuteRequest::in_context("1", "no-such-context");
    let error = server.client.execute(&access, &request, Deadlines::default()).await.unwrap_err();
    assert!(matches!(error, E2bError::NotFound { what: Subject::CodeContext, .. }), "{error:?}");
}

async fn a_run_that_times_out_is_interrupted_and_its_variables_are_kept(server: Server) {
    let sandbox = server.create().await;
    let interpreter = server.client.interpreter(&sandbox.access(), Target::Language("python".into()));
    let mut run = interpreter.run(&RunRequest::new("kept = 41")).await.unwrap();
    while run.next().await.unwrap().is_some() {}
    drop(run);
    let deadlines = Deadlines::overall(Duration::from_secs(2));
    let endless = RunRequest { code: "while True: pass".into(), deadlines, ..RunRequest::default() };
    let begun = Instant::now();
    let mut run = interpreter.run(&endless).await.unwrap();
    let error = loop {
        match run.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it cannot end"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.clock(), Some(Deadline::Overall));
    assert_eq!(run.settle().await.unwrap(), Settled::Kept);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let mut run = interpreter.run(&RunRequest::new("kept + 1")).await.unwrap();
    let mut seen = Seen::default();
    while let Some(event) = run.next().await.unwrap() {
        seen.add(event);
    }
    assert_eq!(seen.main.as_deref(), Some("42"));
    assert!(seen.error.is_none());
}

async fn a_code_context_is_made_listed_restarted_and_removed(server: Server) {
    let access = server.create().await.access();
    let client = &server.client;
    let create = CreateContext { language: Some("python".into()), cwd: Some("/tmp".into()) };
    let context = client.create_code_context(&access, &create).await.unwrap();
    assert_eq!((context.language.as_str(), context.cwd.as_str()), ("python", "/tmp"));
    assert!(client.list_code_contexts(&access).await.unwrap().contains(&context));
    let mut run = client
        .execute(&access, &ExecuteRequest::in_context("1 + 1", &context.id), Deadlines::default())
        .await
        .unwrap();
    let mut seen = Seen::default();
    while let Some(event) = run.next().await.unwrap() {
        seen.add(event);
    }
    assert_eq!(seen.main.as_deref(), Some("2"));
    client.restart_code_context(&access, &context.id).await.unwrap();
    assert!(client.remove_code_context(&access, &context.id).await.unwrap());
    assert!(!client.remove_code_context(&access, &context.id).await.unwrap());
    let error = client.restart_code_context(&access, &context.id).await.unwrap_err();
    assert!(matches!(error, E2bError::NotFound { what: Subject::CodeContext, .. }), "{error:?}");
}

async fn a_dead_interpreter_is_reported_and_works_again(server: Server) {
    let sandbox = server.create().await;
    let seen = run(&server, &sandbox, "import os; os._exit(1)").await;
    assert_eq!(seen.error.unwrap().name, "ContextRestarting");
    assert_eq!(run(&server, &sandbox, "1 + 1").await.main.as_deref(), Some("2"));
}

async fn variables_of_one_run_are_there_for_it_alone(server: Server) {
    let sandbox = server.create().await;
    let interpreter = server.client.interpreter(&sandbox.access(), Target::Language("python".into()));
    let show = "import os; print(os.environ.get('SHOWN'))";
    let envs = [("SHOWN".to_owned(), Secret::new("it's \"x\"\n\\n"))].into();
    let mut shown = Vec::new();
    for request in [RunRequest { code: show.into(), envs, ..RunRequest::default() }, RunRequest::new(show)] {
        let mut run = interpreter.run(&request).await.unwrap();
        let mut seen = Seen::default();
        while let Some(event) = run.next().await.unwrap() {
            seen.add(event);
        }
        assert!(seen.error.is_none(), "{seen:?}");
        shown.push(seen.stdout);
    }
    assert_eq!(shown, ["it's \"x\"\n\\n\n", "None\n"]);
}

async fn an_interpreter_is_healthy(server: Server) {
    let sandbox = server.create().await;
    server.client.health(&sandbox.access()).await.unwrap();
    let liveness = server.client.liveness(&sandbox.access()).await.unwrap();
    assert!(matches!(liveness, pathbox::e2b::Liveness::Running { .. }), "{liveness:?}");
}

/// The real host, in this process.
#[cfg(target_os = "linux")]
pub(crate) mod local {
    use std::path::PathBuf;

    use pathbox::host;
    use tokio_util::sync::{CancellationToken, DropGuard};

    use super::*;

    pub(crate) type Guard = DropGuard;

    pub(crate) async fn start() -> Server {
        let shutdown = CancellationToken::new();
        let jail = host::jail::Options {
            exe: PathBuf::from(env!("CARGO_BIN_EXE_pathbox")),
            ..host::jail::Options::default()
        };
        let options = host::Options { jail, ready: 1, ..host::Options::default() };
        let host = host::serve(options, shutdown.clone()).await.unwrap_or_else(|error| panic!("{error:?}"));
        let endpoint = Endpoint::local(host.url(), host.api_key().clone());
        let options = Options { endpoint, ..Options::default() };
        let client = E2bClient::new(options, Clock::system(), Entropy::system()).unwrap();
        Server { client, _host: Some(shutdown.drop_guard()) }
    }
}
