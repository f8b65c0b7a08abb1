//! Jails: a sandbox is a process tree that sees nothing of the machine but what this module binds into it.
//!
//! A *spawner* (this same binary, started again from a sealed copy in memory, one thread, no environment)
//! clones each sandbox. The first process of a sandbox never executes another program: it turns into the
//! [agent](super::agent) after it has locked itself in. So nothing of the host's files is needed inside,
//! and the one door between the host and a sandbox is a socket whose every byte the host distrusts.

pub(crate) mod cgroup;
mod child;
mod landlock;
pub(crate) mod limits;
mod mounts;
mod namespaces;
pub(crate) mod policy;
mod probe;
mod seccomp;
mod spawner;
pub(crate) mod sys;

use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

use self::cgroup::Group;
pub use self::probe::{Check, probe};
use self::spawner::{Reply, Request};
use super::agent::AgentHandle;

/// How a host makes its sandboxes.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that contains [`spawner_main`]; it is copied into memory and started from there.
    pub exe: PathBuf,
    /// What separates a sandbox from the machine.
    pub isolation: Isolation,
    /// What a sandbox may use, unless its [`SandboxSpec`] says otherwise.
    pub limits: Limits,
    /// Directories that every sandbox sees read-only at the same path, usually the `sys.prefix` and
    /// `sys.base_prefix` of interpreters. Their parents appear as empty directories. What the system
    /// directories (`/usr`) already hold need not be listed.
    pub read_only: Vec<PathBuf>,
    /// Whether control groups are used when the machine gives us some. Without them a scan in the sandbox
    /// watches memory instead, and the CPU share is only a priority.
    pub cgroups: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            exe: PathBuf::from("/proc/self/exe"),
            isolation: Isolation::default(),
            limits: Limits::default(),
            read_only: Vec::new(),
            cgroups: true,
        }
    }
}

/// What separates a sandbox from the machine. There is no silent way from one to a weaker one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// Own user, mount, process, network, IPC, host name and control group namespaces, a root file system
    /// of its own, a system call allow list. Where the machine refuses, [`Spawner::start`] refuses.
    #[default]
    Namespaces,
    /// Landlock and a system call allow list only. Does *not* hide which files exist (`stat` works
    /// everywhere), the machine's processes or its name; disk use is limited per file only; no
    /// program gets a network socket of any kind.
    Landlock,
    /// Nothing but resource limits. Programs can do what the host's user can do.
    None,
}

impl Isolation {
    /// What a tier does *not* stop; to be said at each start. `None` for the full one.
    pub fn warning(self) -> Option<&'static str> {
        match self {
            Self::Namespaces => None,
            Self::Landlock => Some(
                "isolation is Landlock only: programs can see file names, sizes and owners everywhere and the \
                 machine's name and uptime; memory is limited per process unless control groups work, disk use per \
                 file; terminals and sockets do not work",
            ),
            Self::None => Some(
                "there is no isolation: programs can do everything that this user can, with every file, process and \
                 network address in reach",
            ),
        }
    }
}

/// What one sandbox may use. All are upper bounds; sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of all processes and temporary files together.
    pub memory_bytes: u64,
    /// Processes and threads, the agent included.
    pub processes: u32,
    /// CPU time per wall time in percent of one core; 100 is one core. Needs control groups.
    pub cpu_percent: u32,
    /// One file.
    pub file_bytes: u64,
    /// The home directory.
    pub home_bytes: u64,
    /// `/tmp`.
    pub tmp_bytes: u64,
    /// `/dev/shm`.
    pub shm_bytes: u64,
    /// Files and directories in the home directory, and as many again in `/tmp`.
    pub files: u32,
    /// Open descriptors of one process.
    pub open_files: u32,
    /// Added to the priority value (`nice`) of everything but the agent, 0 to 19.
    pub nice: i32,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: u64 = 1 << 20;
        Self {
            memory_bytes: 1024 * MIB,
            processes: 128,
            cpu_percent: 100,
            file_bytes: 256 * MIB,
            home_bytes: 512 * MIB,
            tmp_bytes: 256 * MIB,
            shm_bytes: 64 * MIB,
            files: 20_000,
            open_files: 1024,
            nice: 5,
        }
    }
}

/// What is particular to one sandbox.
#[derive(Debug, Clone, Default)]
pub struct SandboxSpec {
    /// Added to the small environment that every program in the sandbox starts with.
    pub env: Vec<(String, String)>,
    /// Instead of [`Options::limits`].
    pub limits: Option<Limits>,
}

/// A sandbox could not be made.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// The machine does not allow what the isolation tier needs. `remedy` is a sentence for its owner.
    #[error("this machine refuses {what}: {remedy}")]
    Refused {
        /// Which primitive.
        what: String,
        /// What to do about it.
        remedy: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// A step of setting one sandbox up failed.
    #[error("sandbox set-up failed at {step}")]
    Setup {
        /// Which step.
        step: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The spawner is gone; every sandbox is gone with it. Start a new one.
    #[error("the sandbox spawner has ended")]
    SpawnerGone,
    /// The spawner could not be started.
    #[error("the sandbox spawner could not be started: {doing}")]
    Start {
        /// What was being attempted.
        doing: &'static str,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
}

/// Why a sandbox is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// Its memory limit was met and its first process was chosen.
    Oom,
    /// The host ended it.
    Killed,
    /// Its first process ended by itself, or broke the protocol.
    Died,
}

/// What a sandbox uses now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Memory in use.
    pub memory_bytes: u64,
    /// CPU time so far, in microseconds.
    pub cpu_micros: u64,
    /// Processes now.
    pub processes: u32,
}

/// Makes sandboxes. Dropping it ends every one of them.
#[derive(Debug)]
pub struct Spawner {
    shared: Arc<Shared>,
    limits: Limits,
    path: String,
    pid: u32,
    /// Ends when the process has been reaped.
    reaped: tokio::task::JoinHandle<()>,
    cgroups: bool,
}

#[derive(Debug)]
struct Shared {
    socket: AsyncFd<OwnedFd>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    gone: bool,
    last_id: u32,
    /// Who waits for a sandbox to come to life.
    births: HashMap<u32, oneshot::Sender<Result<Born, JailError>>>,
    /// Where the end of a sandbox is told: whether memory was the reason.
    ends: HashMap<u32, watch::Sender<Option<bool>>>,
}

#[derive(Debug)]
struct Born {
    socket: OwnedFd,
    pidfd: OwnedFd,
    group: Option<Group>,
    end: watch::Receiver<Option<bool>>,
}

impl Spawner {
    /// Starts the spawner and tries one sandbox, so that a machine that cannot isolate is found here.
    ///
    /// # Errors
    /// [`JailError::Refused`] with what to do when the machine lacks something.
    pub async fn start(options: &Options) -> Result<Self, JailError> {
        let start = |doing| move |source| JailError::Start { doing, source };
        check_read_only(&options.read_only)?;
        let (ours, theirs) = sys::packet_pair().map_err(start("making a socket"))?;
        let mut process = launch(&options.exe, "serve", Stdio::from(theirs), Stdio::null()).await?;

        let set_up = Request::SetUp {
            host: std::process::id() as i32,
            isolation: options.isolation,
            read_only: options.read_only.clone(),
            cgroups: options.cgroups,
        };
        let socket = sys::register(ours).map_err(start("watching the socket"))?;
        let shared = Arc::new(Shared { socket, state: Mutex::default() });
        shared.send(&set_up).await?;
        let first = tokio::time::timeout(PATIENCE, shared.receive()).await;
        let cgroups = match first {
            Ok(Ok((Reply::Up { cgroups }, _))) => cgroups,
            Ok(Ok((Reply::CannotStart { step, errno }, _))) => return Err(probe::explain(step, errno)),
            _ => return Err(JailError::SpawnerGone),
        };
        let pid = process.id().ok_or(JailError::SpawnerGone)?;
        let reaped = tokio::spawn(async move { drop(process.wait().await) });
        tokio::spawn(listen(Arc::clone(&shared)));
        let spawner = Self {
            shared,
            limits: options.limits.clone(),
            path: search_path(&options.read_only),
            pid,
            reaped,
            cgroups,
        };
        match spawner.spawn(&SandboxSpec::default()).await {
            Ok(trial) => trial.kill().await,
            Err(JailError::Setup { step, source }) => {
                return Err(probe::explain(step, source.raw_os_error().unwrap_or(libc::EINVAL)));
            }
            Err(other) => return Err(other),
        }
        Ok(spawner)
    }

    /// The spawner's process number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether control groups hold the limits. If not, memory is watched by scanning and CPU time is not limited.
    pub fn has_cgroups(&self) -> bool {
        self.cgroups
    }

    /// Makes one sandbox, ready for [`AgentHandle::start`].
    ///
    /// # Errors
    /// [`JailError::Setup`] when this one could not be made; trying again may help.
    pub async fn spawn(&self, spec: &SandboxSpec) -> Result<Jailed, JailError> {
        let (sender, born) = oneshot::channel();
        let id = {
            let mut state = self.shared.state();
            if state.gone {
                return Err(JailError::SpawnerGone);
            }
            state.last_id += 1;
            let id = state.last_id;
            state.births.insert(id, sender);
            id
        };
        let limits = spec.limits.clone().unwrap_or_else(|| self.limits.clone());
        self.shared.send(&Request::Spawn { id, limits }).await?;
        let born = born.await.map_err(|_| JailError::SpawnerGone)??;
        let counter = born.group.clone();
        let mut env = vec![("PATH".to_owned(), self.path.clone())];
        env.extend(spec.env.iter().cloned());
        let connected =
            AgentHandle::connect(born.socket, env, move || counter.as_ref().map_or(0, Group::oom_kills));
        match tokio::time::timeout(PATIENCE, connected).await {
            Ok(Ok(agent)) => Ok(Jailed {
                agent,
                pidfd: born.pidfd,
                group: born.group,
                end: born.end,
                killed: AtomicBool::new(false),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(JailError::Setup {
                step: "waiting for the agent".into(),
                source: ErrorKind::TimedOut.into(),
            }),
        }
    }

    /// Ends every sandbox and waits until nothing is left of any.
    pub async fn shutdown(mut self) {
        self.shared.hang_up();
        let _ = (&mut self.reaped).await;
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.shared.hang_up();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, request: &Request) -> Result<(), JailError> {
        let bytes = serde_json::to_vec(request).map_err(|_| JailError::SpawnerGone)?;
        let send = self.socket.async_io(Interest::WRITABLE, |socket| sys::send(socket.as_fd(), &bytes, &[]));
        send.await.map_err(|_| JailError::SpawnerGone)
    }

    async fn receive(&self) -> std::io::Result<(Reply, Vec<OwnedFd>)> {
        let mut buffer = vec![0; spawner::MAX_MESSAGE];
        let receive =
            self.socket.async_io(Interest::READABLE, |socket| sys::receive(socket.as_fd(), &mut buffer));
        let (length, fds) = receive.await?;
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok((serde_json::from_slice(&buffer[..length])?, fds))
    }

    fn hang_up(&self) {
        self.state().gone = true;
        sys::hang_up(self.socket.get_ref());
    }
}

/// Hands the spawner's news to whoever waits for them.
async fn listen(shared: Arc<Shared>) {
    while let Ok((reply, fds)) = shared.receive().await {
        match reply {
            Reply::Spawned { id, group } => {
                let Ok([socket, pidfd]) = <[OwnedFd; 2]>::try_from(fds) else { break };
                let mut state = shared.state();
                let Some(waiting) = state.births.remove(&id) else { continue };
                let (end_sender, end) = watch::channel(None);
                state.ends.insert(id, end_sender);
                // When nobody waits any more, the socket closes here and the sandbox ends by itself.
                let _ = waiting.send(Ok(Born { socket, pidfd, group, end }));
            }
            Reply::NotSpawned { id, step, errno } => {
                if let Some(waiting) = shared.state().births.remove(&id) {
                    let source = std::io::Error::from_raw_os_error(errno);
                    let _ = waiting.send(Err(JailError::Setup { step, source }));
                }
            }
            Reply::Ended { id, oom } => {
                if let Some(end) = shared.state().ends.remove(&id) {
                    let _ = end.send(Some(oom));
                }
            }
            Reply::Up { .. } | Reply::CannotStart { .. } => break,
        }
    }
    let mut state = shared.state();
    state.gone = true;
    state.births.clear();
    state.ends.clear();
}

/// Starts this program again, from a copy in memory, without environment.
async fn launch(
    exe: &Path,
    mode: &str,
    stdin: Stdio,
    stdout: Stdio,
) -> Result<tokio::process::Child, JailError> {
    let copy = {
        let exe = exe.to_owned();
        let copied = tokio::task::spawn_blocking(move || sys::sealed_copy(&exe)).await;
        copied.map_err(std::io::Error::other).and_then(|copy| copy)
    };
    let copy =
        copy.map_err(|source| JailError::Start { doing: "copying the program into memory", source })?;
    tokio::process::Command::new(format!("/proc/self/fd/{}", copy.as_raw_fd()))
        .arg0("pathbox-spawner")
        .args([SPAWNER_COMMAND, mode])
        .env_clear()
        .current_dir("/")
        .stdin(stdin)
        .stdout(stdout)
        .spawn()
        .map_err(|source| JailError::Start { doing: "running the copy in memory", source })
}

/// Refuses directories that would show far more than an interpreter.
fn check_read_only(paths: &[PathBuf]) -> Result<(), JailError> {
    let too_wide = |path: &&PathBuf| {
        !path.is_absolute() || policy::TOO_WIDE.iter().any(|wide| Path::new(wide) == path.as_path())
    };
    match paths.iter().find(too_wide) {
        None => Ok(()),
        Some(path) => Err(JailError::Refused {
            what: format!("to show {} to sandboxes", path.display()),
            remedy: "name the interpreter's own directory, by its absolute path".into(),
            source: ErrorKind::InvalidInput.into(),
        }),
    }
}

fn search_path(read_only: &[PathBuf]) -> String {
    let bins = read_only.iter().map(|dir| dir.join("bin")).filter(|bin| bin.is_dir());
    bins.map(|bin| bin.display().to_string()).chain([policy::PATH.to_owned()]).collect::<Vec<_>>().join(":")
}

/// One sandbox. Dropping it kills every process in it.
#[derive(Debug)]
pub struct Jailed {
    /// The way to its processes and files.
    pub agent: AgentHandle,
    pidfd: OwnedFd,
    group: Option<Group>,
    end: watch::Receiver<Option<bool>>,
    killed: AtomicBool,
}

impl Jailed {
    /// Kills every process and waits until none is left.
    pub async fn kill(self) {
        self.strike();
        self.ended().await;
    }

    /// Waits for the end. May be called by several tasks and after the end.
    pub async fn ended(&self) -> EndCause {
        let mut end = self.end.clone();
        let oom = end.wait_for(Option::is_some).await.is_ok_and(|end| *end == Some(true));
        match (self.killed.load(Ordering::Relaxed), oom) {
            (true, _) => EndCause::Killed,
            (false, true) => EndCause::Oom,
            (false, false) => EndCause::Died,
        }
    }

    /// What it uses now; zeros after the end.
    pub fn usage(&self) -> Usage {
        self.group.as_ref().map_or_else(|| self.agent.usage(), Group::usage)
    }

    fn strike(&self) {
        self.killed.store(true, Ordering::Relaxed);
        let _ = sys::pidfd_kill(self.pidfd.as_fd(), libc::SIGKILL);
    }
}

impl Drop for Jailed {
    fn drop(&mut self) {
        self.strike();
    }
}

/// When this process was started as a spawner: runs it and gives the exit code. Call it first in `main`,
/// before any thread exists.
pub fn spawner_main() -> Option<u8> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(SPAWNER_COMMAND) {
        return None;
    }
    let outcome = match arguments.next().as_deref() {
        Some("serve") => spawner::run(),
        Some("probe") => probe::run(),
        _ => Err(ErrorKind::InvalidInput.into()),
    };
    Some(u8::from(outcome.is_err()))
}

/// The hidden subcommand that [`spawner_main`] answers to.
const SPAWNER_COMMAND: &str = "host-spawner";
/// How long a local process may take to come to life on a machine that is very busy.
const PATIENCE: Duration = Duration::from_secs(20);
