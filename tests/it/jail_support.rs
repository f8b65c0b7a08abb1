//! What the jail's tests share: a spawner, a sandbox, and a program run to its end.

use std::path::PathBuf;

use pathbox::host::agent::{AgentHandle, Process, ProcessEvent, ProcessSpec};
use pathbox::host::jail::{Jailed, Options, SandboxSpec, Spawner};

/// Options for the program under test.
pub(crate) fn options() -> Options {
    Options { exe: PathBuf::from(env!("CARGO_BIN_EXE_pathbox")), ..Options::default() }
}

pub(crate) async fn spawner() -> Spawner {
    Spawner::start(&options()).await.unwrap_or_else(|error| panic!("{}", chain(&error)))
}

pub(crate) async fn sandbox() -> (Spawner, Jailed) {
    let spawner = spawner().await;
    let jailed =
        spawner.spawn(&SandboxSpec::default()).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
    (spawner, jailed)
}

/// An error with its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What a program did.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) oom: bool,
}

impl Ran {
    /// Waits for the end.
    pub(crate) async fn of(mut process: Process) -> Self {
        let mut ran = Self::default();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        while let Some(event) = process.events.recv().await {
            match event {
                ProcessEvent::Stdout(bytes) | ProcessEvent::Pty(bytes) => out.extend_from_slice(&bytes),
                ProcessEvent::Stderr(bytes) => err.extend_from_slice(&bytes),
                ProcessEvent::Control(_) => {}
                ProcessEvent::Exited { code, signal, oom } => {
                    (ran.code, ran.signal, ran.oom) = (code, signal, oom);
                }
            }
        }
        ran.stdout = String::from_utf8_lossy(&out).into_owned();
        ran.stderr = String::from_utf8_lossy(&err).into_owned();
        ran
    }
}

/// Runs a program to its end.
pub(crate) async fn run(agent: &AgentHandle, argv: &[&str]) -> Ran {
    let argv = argv.iter().map(ToString::to_string).collect();
    let process = agent.start(ProcessSpec { argv, ..ProcessSpec::default() }).await;
    Ran::of(process.unwrap_or_else(|error| panic!("{}", chain(&error)))).await
}
