//! Jails: a sandbox is a process tree that sees nothing of the machine but what this module binds into it.
//!
//! A *spawner* (this same binary, started again from a sealed copy in memory, one thread, no environment)
//! clones each sandbox. The first process of a sandbox never executes another program: it turns into the
//! [agent](super::agent) after it has locked itself in. So nothing of the host's files is needed inside,
//! and the one door between the host and a sandbox is a socket whose every byte the host distrusts.

pub(crate) mod cgroup;
mod child;
mod claim;
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
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::Child;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use self::cgroup::Control;
use self::cgroup::Group;
pub use self::probe::{Check, probe};
pub(crate) use self::spawner::End;
use self::spawner::{Reply, Request};
use super::agent::AgentHandle;
use crate::domain::lock;
use crate::telemetry::metrics;

/// How a host makes its sandboxes.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that contains [`spawner_main`]; it is copied into memory and started from there.
    pub exe: PathBuf,
    /// The isolation of a sandbox from the machine.
    pub isolation: Isolation,
    /// What a sandbox may use, unless its [`SandboxSpec`] overrides it.
    pub limits: SandboxLimits,
    /// Directories that every sandbox sees read-only at the same path, usually the `sys.prefix` and
    /// `sys.base_prefix` of interpreters. Their parents appear as empty directories. What the system
    /// directories (`/usr`) already hold need not be listed.
    pub read_only: Vec<PathBuf>,
    /// Whether control groups are used when the machine gives us some. Without them a scan in the sandbox
    /// watches memory instead, and a sandbox runs on as many processors as its share of time fills.
    pub cgroups: bool,
    /// How many sandboxes may live at a time, including those kept ready. What the kernel counts for all of them
    /// together is shared out by this.
    pub sandboxes: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            exe: PathBuf::from("/proc/self/exe"),
            isolation: Isolation::default(),
            limits: SandboxLimits::default(),
            read_only: Vec::new(),
            cgroups: true,
            sandboxes: 24,
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
    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Namespaces => "namespaces",
            Self::Landlock => "landlock",
            Self::None => "unsafe-none",
        }
    }

    /// What a tier does *not* stop; to be said at each start. `None` for the full one.
    pub fn warning(self) -> Option<&'static str> {
        match self {
            Self::Namespaces => None,
            Self::Landlock => Some(
                "isolation is Landlock only: programs can see file names, sizes and owners everywhere and the \
                 machine's name and uptime; memory is limited per process unless control groups work, disk use per \
                 file; terminals and sockets do not work; where the host is an ordinary user, permissions, owners and \
                 times of files stay what they are",
            ),
            Self::None => Some(
                "there is no isolation: programs can do everything that this user can, with all files, processes and network addresses",
            ),
        }
    }
}

/// What one sandbox may use. All are upper bounds; sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLimits {
    /// Memory of all processes and temporary files together.
    pub memory_bytes: u64,
    /// Processes and threads, the agent included.
    pub processes: u32,
    /// CPU time per wall time in percent of one core; 100 is one core. Without control groups: on how many processors it
    /// may run, rounded up.
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

impl Default for SandboxLimits {
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
    pub limits: Option<SandboxLimits>,
    /// Directories that this sandbox sees besides [`Options::read_only`].
    pub read_only: Vec<PathBuf>,
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
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
    /// A step of setting one sandbox up failed.
    #[error("sandbox set-up failed at {step}")]
    Setup {
        /// Which step.
        step: String,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
    /// The spawner is gone, every sandbox with it, and has not been started again in time. Try again.
    #[error("the sandbox spawner has ended and does not start again; the log says why")]
    SpawnerGone,
    /// The spawner could not be started.
    #[error("the sandbox spawner could not be started: {doing}")]
    Start {
        /// The attempted operation.
        doing: &'static str,
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
}

/// Why a sandbox has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// Its memory limit was met and its first process was chosen.
    Oom,
    /// The host ended it.
    Killed,
    /// Its first process ended by itself, or broke the protocol.
    Died,
    /// The process that makes sandboxes ended, and every sandbox with it.
    Spawner,
}

/// A sandbox's current usage.
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
///
/// The process that does it is started again when it ends; its sandboxes end with it.
#[derive(Debug)]
pub struct Spawner {
    limits: SandboxLimits,
    path: String,
    /// The process that serves now; `None` while it is being started again.
    current: watch::Receiver<Option<Arc<Connection>>>,
    closing: CancellationToken,
    /// Ends when nothing is left.
    supervisor: tokio::task::JoinHandle<()>,
}

/// One spawner process, as the host sees it.
#[derive(Debug)]
struct Connection {
    socket: AsyncFd<OwnedFd>,
    state: Mutex<State>,
    pid: u32,
    cgroups: Control,
    gaps: Vec<String>,
}

#[derive(Debug, Default)]
struct State {
    gone: bool,
    last_id: u32,
    /// The callers that wait for a sandbox to start.
    births: HashMap<u32, oneshot::Sender<Result<Born, JailError>>>,
    /// Where the end of a sandbox is announced.
    ends: HashMap<u32, watch::Sender<Option<End>>>,
}

#[derive(Debug)]
struct Born {
    socket: OwnedFd,
    pidfd: OwnedFd,
    group: Option<Group>,
    end: watch::Receiver<Option<End>>,
}

impl Spawner {
    /// Starts the spawner and tries one sandbox, so that a machine that cannot isolate is found here.
    ///
    /// # Errors
    /// [`JailError::Refused`] with what to do when the machine lacks something.
    pub async fn start(options: &Options) -> Result<Self, JailError> {
        check_read_only(&options.read_only)?;
        let (process, connection) = Connection::start(options).await?;
        let (sender, current) = watch::channel(Some(Arc::clone(&connection)));
        let closing = CancellationToken::new();
        let supervise = supervise(options.clone(), process, connection, sender, closing.clone());
        let spawner = Self {
            limits: options.limits.clone(),
            path: search_path(&bins_of(&options.read_only)),
            current,
            closing,
            supervisor: tokio::spawn(supervise),
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

    /// The spawner's process number; 0 while it is being started again.
    pub fn pid(&self) -> u32 {
        self.current.borrow().as_ref().map_or(0, |connection| connection.pid)
    }

    /// Whether control groups hold the limits. If not, memory is watched by scanning and CPU time is bounded only by
    /// the processors that a sandbox may run on.
    pub fn has_cgroups(&self) -> bool {
        self.control() != Control::None
    }

    /// Which control groups hold the limits.
    pub fn control(&self) -> Control {
        self.current.borrow().as_ref().map_or(Control::None, |connection| connection.cgroups)
    }

    /// Features of the tier that this machine lacks.
    pub fn gaps(&self) -> Vec<String> {
        self.current.borrow().as_ref().map_or_else(Vec::new, |connection| connection.gaps.clone())
    }

    /// Whether sandboxes can be made now.
    pub fn is_up(&self) -> bool {
        self.current.borrow().is_some()
    }

    /// Notified when the process has ended and when it has been started again.
    pub(crate) fn changes(&self) -> SpawnerChanges {
        SpawnerChanges(self.current.clone())
    }

    /// Makes one sandbox, ready for [`AgentHandle::start`].
    ///
    /// # Errors
    /// [`JailError::Setup`] when this one could not be made; trying again may help.
    pub async fn spawn(&self, spec: &SandboxSpec) -> Result<Jailed, JailError> {
        let mut current = self.current.clone();
        let up = tokio::time::timeout(PATIENCE, current.wait_for(Option::is_some)).await;
        let connection =
            up.ok().and_then(Result::ok).and_then(|up| up.clone()).ok_or(JailError::SpawnerGone)?;
        let limits = spec.limits.clone().unwrap_or_else(|| self.limits.clone());
        let born = connection.birth(limits, spec.read_only.clone()).await?;
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
        self.closing.cancel();
        let _ = (&mut self.supervisor).await;
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// See [`Spawner::changes`].
#[derive(Debug)]
pub(crate) struct SpawnerChanges(watch::Receiver<Option<Arc<Connection>>>);

impl SpawnerChanges {
    /// Waits for the next change.
    pub(crate) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Keeps a spawner process running until `closing`.
async fn supervise(
    options: Options,
    mut process: Child,
    mut connection: Arc<Connection>,
    current: watch::Sender<Option<Arc<Connection>>>,
    closing: CancellationToken,
) {
    loop {
        tokio::select! {
            () = listen(&connection) => {}
            () = closing.cancelled() => {}
        }
        connection.close();
        let status = process.wait().await;
        // Waiters for one of its sandboxes are woken only now, when nothing is left of it.
        connection.forget_all();
        if closing.is_cancelled() {
            return;
        }
        current.send_replace(None);
        metrics::HOST_SPAWNER_UP.set(0);
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        tracing::error!(
            status,
            "the sandbox spawner ended, and every sandbox of this host with it; it is started again"
        );
        (process, connection) = tokio::select! {
            again = start_again(&options) => again,
            () = closing.cancelled() => return,
        };
        metrics::HOST_SPAWNER_RESTARTS.add(&[], 1);
        tracing::warn!(pid = connection.pid, "the sandbox spawner runs again");
        current.send_replace(Some(Arc::clone(&connection)));
    }
}

async fn start_again(options: &Options) -> (Child, Arc<Connection>) {
    const LONGEST_PAUSE: Duration = Duration::from_secs(10);
    let mut pause = Duration::from_millis(50);
    loop {
        match Connection::start(options).await {
            Ok(started) => return started,
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the sandbox spawner does not start; it is tried again"
                );
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

impl Connection {
    /// Starts a spawner process and waits until it reports that it can make sandboxes.
    async fn start(options: &Options) -> Result<(Child, Arc<Self>), JailError> {
        let start = |doing| move |source| JailError::Start { doing, source };
        let (ours, theirs) = sys::packet_pair().map_err(start("making a socket"))?;
        let process = launch(&options.exe, "serve", Stdio::from(theirs), Stdio::null()).await?;
        let set_up = Request::SetUp {
            host: std::process::id() as i32,
            isolation: options.isolation,
            read_only: options.read_only.clone(),
            cgroups: options.cgroups,
            sandboxes: options.sandboxes,
        };
        let socket = sys::register(ours).map_err(start("watching the socket"))?;
        let pid = process.id().ok_or(JailError::SpawnerGone)?;
        let mut connection =
            Self { socket, state: Mutex::default(), pid, cgroups: Control::None, gaps: Vec::new() };
        connection.send(&set_up).await?;
        match tokio::time::timeout(PATIENCE, connection.receive()).await {
            Ok(Ok(Heard::Reply(Reply::Up { cgroups, gaps }, _))) => {
                (connection.cgroups, connection.gaps) = (cgroups, gaps);
            }
            Ok(Ok(Heard::Reply(Reply::CannotStart { step, errno }, _))) => {
                return Err(probe::explain(step, errno));
            }
            _ => return Err(JailError::SpawnerGone),
        }
        metrics::HOST_SPAWNER_UP.set(1);
        Ok((process, Arc::new(connection)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Requests a sandbox and waits for it. An error concerns this start alone.
    async fn birth(&self, limits: SandboxLimits, read_only: Vec<PathBuf>) -> Result<Born, JailError> {
        let (sender, born) = oneshot::channel();
        let id = {
            let mut state = self.state();
            if state.gone {
                return Err(JailError::SpawnerGone);
            }
            state.last_id += 1;
            let id = state.last_id;
            state.births.insert(id, sender);
            id
        };
        // Also when the caller goes away meanwhile.
        let _forget = Forget { connection: self, id };
        self.send(&Request::Spawn { id, limits, read_only }).await?;
        match tokio::time::timeout(PATIENCE, born).await {
            Ok(born) => born.map_err(|_| JailError::SpawnerGone)?,
            Err(_) => Err(JailError::Setup {
                step: "waiting for the spawner".into(),
                source: ErrorKind::TimedOut.into(),
            }),
        }
    }

    async fn send(&self, request: &Request) -> Result<(), JailError> {
        let bytes = serde_json::to_vec(request).map_err(|_| JailError::SpawnerGone)?;
        let send = self.socket.async_io(Interest::WRITABLE, |socket| sys::send(socket.as_fd(), &bytes, &[]));
        send.await.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::NotConnected => {
                JailError::SpawnerGone
            }
            _ => JailError::Setup { step: "asking the spawner".into(), source: error },
        })
    }

    /// The next message. An error is the end of the conversation.
    async fn receive(&self) -> std::io::Result<Heard> {
        let mut buffer = vec![0; spawner::MAX_MESSAGE];
        loop {
            let receive = self
                .socket
                .async_io(Interest::READABLE, |socket| sys::receive_in_part(socket.as_fd(), &mut buffer));
            let received = match receive.await {
                Ok(received) => received,
                Err(error) if passes(&error) => {
                    tracing::warn!(%error, "a message of the sandbox spawner could not be received yet");
                    tokio::time::sleep(A_MOMENT).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if received.length == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            match serde_json::from_slice(&buffer[..received.length]) {
                Ok(Reply::Spawned { id, .. }) if received.is_cut => return Ok(Heard::Cut { id }),
                Ok(reply) => return Ok(Heard::Reply(reply, received.fds)),
                Err(error) => tracing::error!(%error, "a message of the sandbox spawner does not parse"),
            }
        }
    }

    /// Ends the conversation, which ends the process and all its sandboxes.
    fn close(&self) {
        self.state().gone = true;
        sys::hang_up(self.socket.get_ref());
    }

    /// Tells everyone who waits that nothing comes.
    fn forget_all(&self) {
        let mut state = self.state();
        state.births.clear();
        state.ends.clear();
    }
}

/// A message from a spawner.
enum Heard {
    Reply(Reply, Vec<OwnedFd>),
    /// A sandbox whose descriptors did not fit into this process's table.
    Cut {
        id: u32,
    },
}

/// Forgets a start when no one waits for it any more.
struct Forget<'a> {
    connection: &'a Connection,
    id: u32,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.connection.state().births.remove(&self.id);
    }
}

/// Hands the spawner's messages to anyone who waits for them, until it is gone.
async fn listen(connection: &Connection) {
    loop {
        let heard = match connection.receive().await {
            Ok(heard) => heard,
            Err(error) => {
                tracing::debug!(%error, "the sandbox spawner hung up");
                return;
            }
        };
        match heard {
            Heard::Reply(Reply::Spawned { id, group }, fds) => {
                let mut state = connection.state();
                // When no one waits any more, the socket closes here and the sandbox ends by itself.
                let Some(waiting) = state.births.remove(&id) else { continue };
                let Ok([socket, pidfd]) = <[OwnedFd; 2]>::try_from(fds) else {
                    let _ = waiting.send(Err(no_descriptors()));
                    continue;
                };
                let (end_sender, end) = watch::channel(None);
                state.ends.insert(id, end_sender);
                let _ = waiting.send(Ok(Born { socket, pidfd, group, end }));
            }
            Heard::Cut { id } => {
                // What arrived of its descriptors is closed by now, so it ends by itself.
                if let Some(waiting) = connection.state().births.remove(&id) {
                    let _ = waiting.send(Err(no_descriptors()));
                }
            }
            Heard::Reply(Reply::NotSpawned { id, step, errno }, _) => {
                if let Some(waiting) = connection.state().births.remove(&id) {
                    let source = std::io::Error::from_raw_os_error(errno);
                    let _ = waiting.send(Err(JailError::Setup { step, source }));
                }
            }
            Heard::Reply(Reply::Ended { id, end }, _) => {
                if let Some(waiting) = connection.state().ends.remove(&id) {
                    let _ = waiting.send(Some(end));
                }
            }
            Heard::Reply(Reply::Up { .. } | Reply::CannotStart { .. }, _) => {
                tracing::error!("the sandbox spawner reported twice that it is ready");
            }
        }
    }
}

fn no_descriptors() -> JailError {
    JailError::Setup {
        step: "receiving its descriptors".into(),
        source: std::io::Error::from_raw_os_error(libc::EMFILE),
    }
}

/// Whether an error of a socket is temporary: for lack of memory, descriptors or room.
pub(crate) fn passes(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().unwrap_or(0);
    [
        libc::ENOMEM,
        libc::ENOBUFS,
        libc::EMFILE,
        libc::ENFILE,
        libc::ETOOMANYREFS,
        libc::EMSGSIZE,
        libc::EINTR,
        libc::EAGAIN,
    ]
    .contains(&errno)
}

/// The kernel's error that an error of a library comes from, whose number says what to do.
fn cause(error: impl std::error::Error + Send + Sync + 'static) -> std::io::Error {
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    let number = causes.filter_map(|error| error.downcast_ref::<std::io::Error>()?.raw_os_error()).next();
    number.map_or_else(|| std::io::Error::other(error), std::io::Error::from_raw_os_error)
}

/// Until something that failed for lack of resources is tried again.
const A_MOMENT: Duration = Duration::from_millis(20);

/// Starts this program again, from a copy in memory, without environment.
async fn launch(exe: &Path, mode: &str, stdin: Stdio, stdout: Stdio) -> Result<Child, JailError> {
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

/// The search path of programs: these directories, then the system's.
pub(crate) fn search_path(bins: &[PathBuf]) -> String {
    bins.iter()
        .map(|bin| bin.display().to_string())
        .chain([policy::PATH.to_owned()])
        .collect::<Vec<_>>()
        .join(":")
}

fn bins_of(dirs: &[PathBuf]) -> Vec<PathBuf> {
    dirs.iter().map(|dir| dir.join("bin")).filter(|bin| bin.is_dir()).collect()
}

/// One sandbox. Dropping it kills every process in it.
#[derive(Debug)]
pub struct Jailed {
    /// The way to its processes and files.
    pub agent: AgentHandle,
    pidfd: OwnedFd,
    group: Option<Group>,
    end: watch::Receiver<Option<End>>,
    killed: AtomicBool,
}

impl Jailed {
    /// Kills every process and waits until none is left.
    pub async fn kill(self) {
        self.kill_as().await;
    }

    /// The same, and how it was.
    pub(crate) async fn kill_as(&self) -> (EndCause, End) {
        self.strike();
        self.ended_as().await
    }

    /// Waits for the end. May be called by several tasks and after the end.
    pub async fn ended(&self) -> EndCause {
        self.ended_as().await.0
    }

    /// The same, and how it was.
    pub(crate) async fn ended_as(&self) -> (EndCause, End) {
        let mut end = self.end.clone();
        // The sender goes away when the spawner has ended.
        let end = end.wait_for(Option::is_some).await.ok().and_then(|end| *end);
        let cause = match (self.killed.load(Ordering::Relaxed), end) {
            (true, _) => EndCause::Killed,
            (false, None) => EndCause::Spawner,
            (false, Some(End { oom: true, .. })) => EndCause::Oom,
            (false, Some(_)) => EndCause::Died,
        };
        let mut end = end.unwrap_or_default();
        let (peak_bytes, cpu_micros) = self.agent.account();
        end.peak_bytes = end.peak_bytes.max(peak_bytes);
        end.cpu_micros = end.cpu_micros.max(cpu_micros);
        (cause, end)
    }

    /// Its current usage; zeros after the end.
    pub fn usage(&self) -> Usage {
        self.group.as_ref().map_or_else(|| self.agent.usage(), Group::usage)
    }

    /// Freezes every process, or thaws it. `false` when the machine cannot.
    pub(crate) fn freeze(&self, yes: bool) -> bool {
        match self.group.as_ref().map(|group| group.freeze(yes)) {
            None => false,
            Some(Ok(done)) => done,
            Some(Err(error)) => {
                tracing::warn!(%error, "a control group could not be frozen or thawed");
                false
            }
        }
    }

    fn strike(&self) {
        self.killed.store(true, Ordering::Relaxed);
        let _ = sys::pidfd_kill(self.pidfd.as_fd(), libc::SIGKILL);
        // In version 1 a frozen process cannot be ended.
        self.freeze(false);
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
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|command| command != SPAWNER_COMMAND) {
        return None;
    }
    let outcome = match arguments.next().as_deref().and_then(std::ffi::OsStr::to_str) {
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
