//! The spawner process: one thread, no environment, a loop that clones sandboxes and buries them.
//!
//! It is its own program in memory, so nothing that leads to `/proc/<pid>/exe` leads to a file on disk. It never
//! waits for a sandbox: a new one speaks for itself over its own socket. When the host is gone, however it went,
//! every sandbox is killed and cleaned up before this process ends.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use super::cgroup::{Cgroups, Group};
use super::child::{self, Plan};
use super::seccomp::{Filters, Variant};
use super::sys::{self, Forked};
use super::{Isolation, Limits, namespaces};

/// Longest message either way.
pub(crate) const MAX_MESSAGE: usize = 64 * 1024;

/// Host to spawner.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// First message.
    SetUp {
        /// The host's process number.
        host: i32,
        /// What separates sandboxes from the machine.
        isolation: Isolation,
        /// Interpreters' directories.
        read_only: Vec<PathBuf>,
        /// Whether to look for control groups.
        cgroups: bool,
    },
    /// Make a sandbox.
    Spawn {
        /// The host's number for it.
        id: u32,
        /// What it may use.
        limits: Limits,
    },
}

/// Spawner to host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Ready to spawn.
    Up {
        /// Whether sandboxes get control groups.
        cgroups: bool,
    },
    /// Not ready, for ever.
    CannotStart {
        /// Which step failed.
        step: String,
        /// The kernel's number for why.
        errno: i32,
    },
    /// A sandbox's first process runs. Comes with its socket and its process descriptor.
    Spawned {
        /// The host's number for it.
        id: u32,
        /// Its control group.
        group: Option<Group>,
    },
    /// A sandbox could not be made.
    NotSpawned {
        /// The host's number for it.
        id: u32,
        /// Which step failed.
        step: String,
        /// The kernel's number for why.
        errno: i32,
    },
    /// A sandbox has ended, and nothing is left of it.
    Ended {
        /// The host's number for it.
        id: u32,
        /// Whether the kernel ended processes because of the memory limit.
        oom: bool,
    },
}

struct Spawner {
    host: OwnedFd,
    this: OwnedFd,
    isolation: Isolation,
    read_only: Vec<PathBuf>,
    cgroups: Cgroups,
    filters: Option<Filters>,
    sandboxes: BTreeMap<u32, Sandbox>,
    made: u32,
}

struct Sandbox {
    pid: i32,
    pidfd: OwnedFd,
    index: u32,
    group: Option<Group>,
    scratch: Option<PathBuf>,
}

/// Runs until the host, to which descriptor 0 is the socket, goes away.
pub(crate) fn run() -> io::Result<()> {
    sys::new_session();
    sys::close_all_but(&[])?;
    // Descriptor 3 is where a sandbox's socket goes; nothing else may be there.
    let _reserved = sys::move_to(std::fs::File::open("/dev/null")?.into(), child::SOCKET)?;
    let host = sys::copy_of_stdin()?;
    let mut buffer = vec![0; MAX_MESSAGE];
    let (length, _) = sys::receive(host.as_fd(), &mut buffer)?;
    let Ok(Request::SetUp { host: host_pid, isolation, read_only, cgroups }) =
        serde_json::from_slice(&buffer[..length])
    else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let parent = sys::pidfd_open(sys::parent_pid())?;
    if sys::parent_pid() != host_pid {
        return Ok(()); // it died while we were being born
    }
    let mut spawner = match Spawner::new(host, isolation, read_only, cgroups) {
        Ok(spawner) => spawner,
        Err((host, step, error)) => {
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            return reply(&host, &Reply::CannotStart { step: step.to_owned(), errno }, &[]);
        }
    };
    let up = reply(&spawner.host, &Reply::Up { cgroups: spawner.cgroups != Cgroups::None }, &[]);
    let outcome = up.and_then(|()| spawner.serve(&parent, &mut buffer));
    spawner.bury_all();
    outcome
}

fn reply(host: &OwnedFd, reply: &Reply, fds: &[std::os::fd::BorrowedFd<'_>]) -> io::Result<()> {
    sys::send(host.as_fd(), &serde_json::to_vec(reply)?, fds)
}

impl Spawner {
    fn new(
        host: OwnedFd,
        isolation: Isolation,
        read_only: Vec<PathBuf>,
        cgroups: bool,
    ) -> Result<Self, (OwnedFd, &'static str, io::Error)> {
        if sys::ids().0 == 0
            && let Err(error) = sys::drop_groups()
        {
            return Err((host, "dropping supplementary groups", error));
        }
        if isolation != Isolation::Namespaces
            && let Err(error) = sys::adopt_orphans()
        {
            return Err((host, "adopting orphans", error));
        }
        let this = match sys::pidfd_open(std::process::id() as i32) {
            Ok(this) => this,
            Err(error) => return Err((host, "opening a process descriptor", error)),
        };
        let cgroups = if cgroups { Cgroups::find() } else { Cgroups::None };
        let variant = Variant {
            no_namespaces: isolation == Isolation::Landlock,
            no_ownerless_memory: cgroups == Cgroups::None,
        };
        let filters = match (isolation, Filters::build(variant)) {
            (Isolation::None, _) => None,
            (_, Ok(filters)) => Some(filters),
            (_, Err(error)) => {
                return Err((host, "building the system call filter", io::Error::other(error)));
            }
        };
        Ok(Self { host, this, isolation, read_only, cgroups, filters, sandboxes: BTreeMap::new(), made: 0 })
    }

    fn serve(&mut self, parent: &OwnedFd, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            let mut fds = vec![sys::poll_fd(&self.host, true, false), sys::poll_fd(parent, true, false)];
            fds.extend(self.sandboxes.values().map(|sandbox| sys::poll_fd(&sandbox.pidfd, true, false)));
            sys::poll(&mut fds, -1)?;
            if fds[1].revents != 0 {
                return Ok(());
            }
            let ids: Vec<u32> = self.sandboxes.keys().copied().collect();
            for (id, _) in ids.iter().zip(&fds[2..]).filter(|(_, fd)| fd.revents != 0) {
                self.bury(*id)?;
            }
            if fds[0].revents != 0 {
                let (length, _) = sys::receive(self.host.as_fd(), buffer)?;
                if length == 0 {
                    return Ok(());
                }
                let Ok(Request::Spawn { id, limits }) = serde_json::from_slice(&buffer[..length]) else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                self.spawn(id, &limits)?;
            }
        }
    }

    fn spawn(&mut self, id: u32, limits: &Limits) -> io::Result<()> {
        match self.make(limits) {
            Ok((sandbox, socket)) => {
                let spawned = Reply::Spawned { id, group: sandbox.group.clone() };
                let sent = reply(&self.host, &spawned, &[socket.as_fd(), sandbox.pidfd.as_fd()]);
                self.sandboxes.insert(id, sandbox);
                sent
            }
            Err((step, error)) => {
                let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
                reply(&self.host, &Reply::NotSpawned { id, step: step.to_owned(), errno }, &[])
            }
        }
    }

    fn make(&mut self, limits: &Limits) -> Result<(Sandbox, OwnedFd), (&'static str, io::Error)> {
        let at = |step| move |error| (step, error);
        let index = self.free_index();
        let name = format!("pathbox-{}-{}", std::process::id(), self.made);
        let user = namespaces::outer_ids(std::process::id(), index);
        let (ours, theirs) = sys::packet_pair().map_err(at("making a socket"))?;
        let (go, set_go) = io::pipe().map_err(at("making a pipe"))?;
        let scratch = if self.isolation == Isolation::Namespaces {
            None
        } else {
            Some(make_scratch(&name, user).map_err(at("making the scratch directory"))?)
        };
        let group = match &self.cgroups {
            Cgroups::None => None,
            cgroups => Some(cgroups.create(&name, limits).map_err(at("making a control group"))?),
        };
        let fork_into = group.as_ref().and_then(Group::to_fork_into);
        let namespaces = if self.isolation == Isolation::Namespaces { sys::NAMESPACES } else { 0 };
        let (pid, pidfd) = match sys::fork(namespaces, fork_into.as_ref().map(AsFd::as_fd)) {
            Ok(Forked::Parent(pid, pidfd)) => (pid, pidfd),
            Ok(Forked::Child) => {
                drop(set_go);
                let plan = Plan {
                    isolation: self.isolation,
                    limits,
                    read_only: &self.read_only,
                    filters: self.filters.as_ref(),
                    go,
                    spawner: &self.this,
                    scratch: scratch.as_deref(),
                    user,
                    scan: group.is_none(),
                };
                child::run(plan, theirs)
            }
            Err(error) => {
                if let Some(group) = group {
                    let _ = group.remove();
                }
                remove_scratch(scratch.as_deref(), user);
                return Err(("making namespaces", error));
            }
        };
        let sandbox = Sandbox { pid, pidfd, index, group, scratch };
        let prepared = || {
            if let Some(group) = &sandbox.group {
                group.enter(pid).map_err(at("entering the control group"))?;
            }
            if self.isolation == Isolation::Namespaces {
                namespaces::map_ids(pid, user).map_err(at("mapping users"))?;
            }
            io::Write::write_all(&mut &set_go, &[1]).map_err(at("starting the sandbox"))
        };
        if let Err(failed) = prepared() {
            self.destroy(sandbox);
            return Err(failed);
        }
        self.made += 1;
        Ok((sandbox, ours))
    }

    /// A number that no live sandbox has.
    fn free_index(&self) -> u32 {
        let taken = |index| self.sandboxes.values().any(|sandbox| sandbox.index == index % 1000);
        (self.made..).find(|index| !taken(*index)).unwrap_or(self.made) % 1000
    }

    /// Reaps a sandbox's first process, which has ended and with it the whole sandbox, and tells the host.
    fn bury(&mut self, id: u32) -> io::Result<()> {
        let Some(sandbox) = self.sandboxes.remove(&id) else { return Ok(()) };
        let oom = self.destroy(sandbox);
        reply(&self.host, &Reply::Ended { id, oom }, &[])
    }

    fn bury_all(&mut self) {
        for sandbox in self.sandboxes.values() {
            let _ = sys::pidfd_kill(sandbox.pidfd.as_fd(), libc::SIGKILL);
        }
        for (_, sandbox) in std::mem::take(&mut self.sandboxes) {
            self.destroy(sandbox);
        }
    }

    /// Leaves nothing of a sandbox; says whether memory was its end.
    fn destroy(&self, sandbox: Sandbox) -> bool {
        let _ = sys::pidfd_kill(sandbox.pidfd.as_fd(), libc::SIGKILL);
        let _ = sys::reap(sandbox.pid, true);
        if self.isolation != Isolation::Namespaces {
            self.kill_orphans();
        }
        let oom = sandbox.group.as_ref().is_some_and(|group| group.oom_kills() > 0);
        if let Some(group) = &sandbox.group {
            let _ = group.remove();
        }
        let user = namespaces::outer_ids(std::process::id(), sandbox.index);
        remove_scratch(sandbox.scratch.as_deref(), user);
        oom
    }

    /// Without a process namespace, a dead sandbox's processes become our children: kill all that are not agents,
    /// until no more come.
    fn kill_orphans(&self) {
        loop {
            let path = format!("/proc/self/task/{}/children", std::process::id());
            let children = std::fs::read_to_string(path).unwrap_or_default();
            let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
            let agent = |pid: &i32| self.sandboxes.values().any(|sandbox| sandbox.pid == *pid);
            let orphans: Vec<i32> = children.filter(|pid| !agent(pid)).collect();
            if orphans.is_empty() {
                return;
            }
            for pid in &orphans {
                let _ = sys::kill(*pid, libc::SIGKILL);
            }
            for pid in orphans {
                let _ = sys::reap(pid, true);
            }
        }
    }
}

/// A directory on disk for a sandbox without mounts of its own.
fn make_scratch(name: &str, (uid, gid): (u32, u32)) -> io::Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, chown};
    let scratch = Path::new("/tmp").join(name);
    let make = |path: &Path| {
        std::fs::DirBuilder::new().mode(0o700).create(path)?; // refuses what is there already
        chown(path, Some(uid), Some(gid))
    };
    make(&scratch)?;
    make(&scratch.join("home"))?;
    make(&scratch.join("tmp"))?;
    Ok(scratch)
}

/// Removes it as its owner, by another process: a hostile tree can exhaust whoever walks it.
fn remove_scratch(scratch: Option<&Path>, (uid, gid): (u32, u32)) {
    use std::os::unix::process::CommandExt;
    let Some(scratch) = scratch else { return };
    let mut command = Command::new("/bin/rm");
    command.stdin(Stdio::null()).arg("-rf").arg("--").args([scratch.join("home"), scratch.join("tmp")]);
    if sys::ids().0 == 0 {
        command.uid(uid).gid(gid);
    }
    let _ = command.status();
    let _ = std::fs::remove_dir(scratch);
}
