//! Jails: a sandbox is a process tree that sees nothing of the machine but what this module binds into it.
//!
//! A *spawner* (this same binary, started again from a sealed copy in memory, one thread, no environment)
//! clones each sandbox. The first process of a sandbox never executes another program: it turns into the
//! [agent](super::agent) after it has locked itself in. So nothing of the host's files is needed inside,
//! and the one door between the host and a sandbox is a socket whose every byte the host distrusts.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

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
pub struct Spawner;

impl Spawner {
    /// Starts the spawner and tries one sandbox, so that a machine that cannot isolate is found here.
    ///
    /// # Errors
    /// [`JailError::Refused`] with what to do when the machine lacks something.
    pub async fn start(_options: &Options) -> Result<Self, JailError> {
        unimplemented!("lands next")
    }

    /// Makes one sandbox, ready for [`AgentHandle::start`].
    ///
    /// # Errors
    /// [`JailError::Setup`] when this one could not be made; trying again may help.
    pub async fn spawn(&self, _spec: &SandboxSpec) -> Result<Jailed, JailError> {
        unimplemented!("lands next")
    }
}

/// One sandbox. Dropping it kills every process in it.
#[derive(Debug)]
pub struct Jailed {
    /// The way to its processes and files.
    pub agent: AgentHandle,
}

impl Jailed {
    /// Kills every process and waits until none is left.
    pub async fn kill(self) {
        unimplemented!("lands next")
    }

    /// Waits for the end. May be called by several tasks and after the end.
    pub async fn ended(&self) -> EndCause {
        unimplemented!("lands next")
    }

    /// What it uses now; zeros after the end.
    pub fn usage(&self) -> Usage {
        unimplemented!("lands next")
    }
}

/// When this process was started as a spawner: runs it and gives the exit code. Call it first in `main`,
/// before any thread exists.
pub fn spawner_main() -> Option<u8> {
    None
}
