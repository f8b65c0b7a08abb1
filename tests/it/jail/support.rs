//! What the jail's tests share: a spawner, a sandbox, and a program run to its end, inside and outside.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use bytes::Bytes;
use pathbox::host::agent::{AgentHandle, Process, ProcessEvent, ProcessSpec};
use pathbox::host::jail::{Jailed, Options, SandboxSpec, Spawner};

/// Where the program under test is when this suite was copied to run as another user.
pub(crate) const EXE: &str = "PATHBOX_TEST_EXE";

/// The program under test.
pub(crate) fn exe() -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "set by the test that starts this suite as another user")]
    std::env::var_os(EXE).map_or_else(|| env!("CARGO_BIN_EXE_pathbox").into(), PathBuf::from)
}

/// A Python that this user may run, and the directories it lives in beyond the system's.
#[derive(Debug)]
pub(crate) struct Python {
    pub(crate) path: String,
    pub(crate) dirs: Vec<PathBuf>,
}

pub(crate) fn python() -> &'static Python {
    static FOUND: OnceLock<Python> = OnceLock::new();
    FOUND.get_or_init(|| {
        let ask = |program: &str| {
            let code = "import sys; print(sys.executable, sys.prefix, sys.base_prefix, sep='\\n')";
            let output = Command::new(program).args(["-c", code]).output().ok()?;
            let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
            let mut lines = text.lines().map(str::to_owned);
            let path = lines.next()?;
            let dirs = lines.map(PathBuf::from).filter(|dir| !dir.starts_with("/usr")).collect();
            Some(Python { path, dirs })
        };
        ["python3", "/usr/bin/python3"].into_iter().find_map(ask).expect("the suite needs a python3")
    })
}

/// Options for the program under test, with Python.
pub(crate) fn options() -> Options {
    Options { exe: exe(), read_only: python().dirs.clone(), ..Options::default() }
}

pub(crate) async fn start(options: &Options) -> Spawner {
    Spawner::start(options).await.unwrap_or_else(|error| panic!("{}", chain(&error)))
}

pub(crate) async fn spawner() -> Spawner {
    start(&options()).await
}

pub(crate) async fn spawn(spawner: &Spawner) -> Jailed {
    spawner.spawn(&SandboxSpec::default()).await.unwrap_or_else(|error| panic!("{}", chain(&error)))
}

pub(crate) async fn sandbox() -> (Spawner, Jailed) {
    let spawner = spawner().await;
    let jailed = spawn(&spawner).await;
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
                ProcessEvent::Control(_) | ProcessEvent::Replaced { .. } => {}
                ProcessEvent::Exited { code, signal, oom } => {
                    (ran.code, ran.signal, ran.oom) = (code, signal, oom);
                }
            }
        }
        ran.stdout = String::from_utf8_lossy(&out).into_owned();
        ran.stderr = String::from_utf8_lossy(&err).into_owned();
        ran
    }

    /// The same, outside.
    pub(crate) fn outside(command: &mut Command) -> Self {
        let output = command.output().expect("runs outside");
        Self {
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            code: output.status.code(),
            ..Self::default()
        }
    }
}

pub(crate) async fn launch(agent: &AgentHandle, argv: &[&str]) -> Process {
    let argv = argv.iter().map(ToString::to_string).collect();
    let process = agent.start(ProcessSpec { argv, ..ProcessSpec::default() }).await;
    process.unwrap_or_else(|error| panic!("{}", chain(&error)))
}

/// Runs a program to its end.
pub(crate) async fn run(agent: &AgentHandle, argv: &[&str]) -> Ran {
    Ran::of(launch(agent, argv).await).await
}

/// Runs Python code to its end.
pub(crate) async fn run_python(agent: &AgentHandle, code: &str) -> Ran {
    run(agent, &[&python().path, "-I", "-c", code]).await
}

/// Puts a file into the sandbox.
pub(crate) async fn put(agent: &AgentHandle, path: &str, content: &str) {
    let content = Bytes::copy_from_slice(content.as_bytes());
    agent.write_file(path, 0, true, content).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
}

/// Whether the suite runs as root.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    Path::new("/proc/self").metadata().expect("this process").uid() == 0
}

/// Numbers of the processes whose parent is `pid`, directly or not.
pub(crate) fn descendants(pid: u32) -> Vec<u32> {
    let parent = |entry: &Path| {
        let stat = std::fs::read_to_string(entry.join("stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let all: Vec<(u32, u32)> = std::fs::read_dir("/proc")
        .expect("processes")
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, parent(&entry.path())?)))
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(all.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}
