//! What the tests of languages share: one sandbox with its code contexts, and executions read to their end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use pathbox::host::jail::{self, Jailed, SandboxSpec, Spawner};
use pathbox::host::kernel::{EventStream, Interpreters, Kernels, Options, Search};
use pathbox::wire::interpreter::{Event, ExecuteRequest, ExecutionError, ExecutionResult};

use crate::jail::support::chain;

/// A sandbox with code contexts.
pub(crate) struct Bench {
    pub(crate) kernels: Kernels,
    pub(crate) jailed: Jailed,
    pub(crate) _spawner: Spawner,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(Search::default(), jail::SandboxLimits::default(), |options| options).await
    }

    /// With a Python that has packages.
    pub(crate) async fn with_python(python: PathBuf) -> Self {
        let search = Search { python: Some(python), ..Search::default() };
        Self::with(search, jail::SandboxLimits::default(), |options| options).await
    }

    pub(crate) async fn with(
        search: Search,
        limits: jail::SandboxLimits,
        change: impl FnOnce(Options) -> Options,
    ) -> Self {
        let interpreters = Interpreters::find(&search).await;
        let options =
            jail::Options { read_only: interpreters.dirs(), limits, ..crate::jail::support::options() };
        let spawner = Spawner::start(&options).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
        let spawned = spawner.spawn(&SandboxSpec::default()).await;
        let jailed = spawned.unwrap_or_else(|error| panic!("{}", chain(&error)));
        let options = change(Options { interpreters, ..Options::default() });
        let kernels = Kernels::new(jailed.agent.clone(), Arc::new(options));
        Self { kernels, jailed, _spawner: spawner }
    }

    /// Runs Python.
    pub(crate) async fn python(&self, code: &str) -> Told {
        self.run(code, "python").await
    }

    pub(crate) async fn run(&self, code: &str, language: &str) -> Told {
        self.execute(ExecuteRequest::in_language(code, language)).await
    }

    pub(crate) async fn run_with_env(&self, code: &str, language: &str, env: &[(&str, &str)]) -> Told {
        let env: BTreeMap<_, _> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let request = ExecuteRequest::in_language(code, language);
        self.execute(ExecuteRequest { env_vars: Some(env), ..request }).await
    }

    pub(crate) async fn execute(&self, request: ExecuteRequest) -> Told {
        let stream = self.kernels.execute(request).unwrap_or_else(|error| panic!("{error}"));
        Told::of(stream).await
    }
}

/// What one execution said.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) results: Vec<ExecutionResult>,
    pub(crate) errors: Vec<ExecutionError>,
    pub(crate) stops: Vec<(String, u64)>,
    /// What became of variables when an interpreter ended.
    pub(crate) states: Vec<String>,
    pub(crate) count: u64,
    pub(crate) keepalives: usize,
    pub(crate) complete: bool,
    /// The kinds of its events in order, outputs that follow each other as one, without keepalives.
    pub(crate) kinds: Vec<&'static str>,
}

impl Told {
    pub(crate) async fn of(mut stream: EventStream) -> Self {
        let read = async {
            let mut told = Self::default();
            while let Some(event) = stream.next().await {
                told.add(event);
            }
            told
        };
        tokio::time::timeout(Duration::from_secs(120), read).await.expect("the execution ends")
    }

    pub(crate) fn add(&mut self, event: Event) {
        let kind = match event {
            Event::NumberOfExecutions { execution_count } => {
                self.count = execution_count;
                "count"
            }
            Event::Stdout(output) => {
                assert!(output.timestamp.is_some());
                self.stdout += &output.text;
                "stdout"
            }
            Event::Stderr(output) => {
                self.stderr += &output.text;
                "stderr"
            }
            Event::Result(result) => {
                self.results.push(*result);
                "result"
            }
            Event::Error(error) => {
                self.errors.push(error);
                "error"
            }
            // They come with time and not with the program: a slow machine has more of them.
            Event::Keepalive => {
                self.keepalives += 1;
                return;
            }
            Event::PathboxStop { reason, dropped_bytes } => {
                self.stops.push((reason, dropped_bytes));
                "stop"
            }
            Event::PathboxState { state, .. } => {
                self.states.push(state);
                "state"
            }
            Event::EndOfExecution => {
                self.complete = true;
                "end"
            }
            other => panic!("{other:?}"),
        };
        if self.kinds.last() != Some(&kind) || !kind.starts_with("std") {
            self.kinds.push(kind);
        }
    }

    /// The value of the last expression as text, and nothing else to say.
    #[track_caller]
    pub(crate) fn value(&self) -> &str {
        let [result] = &self.results[..] else { panic!("one result: {self:#?}") };
        assert!(result.is_main_result && self.errors.is_empty() && self.complete, "{self:#?}");
        result.text.as_deref().expect("the result has a text")
    }

    /// The only error.
    #[track_caller]
    pub(crate) fn error(&self) -> &ExecutionError {
        let [error] = &self.errors[..] else { panic!("one error: {self:#?}") };
        assert!(self.complete, "{self:#?}");
        error
    }

    /// The output of a run that did nothing but print.
    #[track_caller]
    pub(crate) fn output(&self) -> &str {
        assert!(self.errors.is_empty() && self.results.is_empty() && self.complete, "{self:#?}");
        &self.stdout
    }
}
