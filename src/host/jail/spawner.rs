//! The spawner process: one thread, no environment, a loop that clones sandboxes and reaps them.
//!
//! It is its own program in memory, so nothing that leads to `/proc/<pid>/exe` leads to a file on disk. It never
//! waits for a sandbox: a new one reports over its own socket. When the host is gone, however it went,
//! every sandbox is killed and cleaned up before this process ends.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};

use super::cgroup::{Cgroups, Group};
use super::child::{self, Plan};
use super::namespaces::Users;
use super::seccomp::{Filters, Variant};
use super::sys::{self, Forked};
use super::{Control, Isolation, SandboxLimits, cause, claim, landlock, mounts, namespaces, passes, probe};

/// Longest message either way.
pub(crate) const MAX_MESSAGE: usize = 64 * 1024;

/// Host to spawner.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// First message.
    SetUp {
        /// The host's process number.
        host: i32,
        /// The isolation of sandboxes from the machine.
        isolation: Isolation,
        /// Interpreters' directories.
        read_only: Vec<PathBuf>,
        /// Whether to look for control groups.
        cgroups: bool,
        /// How many sandboxes may live at a time: what only all together may have is shared out.
        sandboxes: u32,
    },
    /// Make a sandbox.
    Spawn {
        /// The host's number for it.
        id: u32,
        /// Its limits.
        limits: SandboxLimits,
        /// Directories that it sees besides those of all.
        read_only: Vec<PathBuf>,
    },
}

/// Spawner to host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Ready to spawn.
    Up {
        /// The control groups that sandboxes get.
        cgroups: Control,
        /// Features of the tier that this machine lacks.
        gaps: Vec<String>,
    },
    /// Not ready, forever.
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
        /// How it was.
        end: End,
    },
}

/// The record of a sandbox that has ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    /// Whether the kernel ended processes because of the memory limit.
    pub(crate) oom: bool,
    /// The peak of its memory in use, in bytes; 0 when unknown.
    pub(crate) peak_bytes: u64,
    /// CPU time in total, in microseconds; 0 when unknown.
    pub(crate) cpu_micros: u64,
}

struct Spawner {
    host: OwnedFd,
    this: OwnedFd,
    isolation: Isolation,
    read_only: Vec<PathBuf>,
    cgroups: Cgroups,
    filters: Option<Filters>,
    users: Users,
    /// Features that this machine lacks; reported once.
    gaps: Vec<String>,
    /// Whether shared trees are shown through overlays.
    overlay: bool,
    /// Inotify instances of a sandbox.
    watches: u32,
    /// Processors that sandboxes may run on, where no control group bounds their time.
    processors: Vec<usize>,
    /// The most descriptors that a process of a sandbox may have.
    most_files: u32,
    sandboxes: BTreeMap<u32, Sandbox>,
    /// Of sandboxes that have ended, or were left by a killed host: files that are being removed, and the report that waits
    /// for it.
    removals: Vec<(Option<Reply>, Removal)>,
    /// What the names of groups and directories begin with.
    prefix: String,
    made: u32,
    /// What could not be reported yet for lack of memory.
    outbox: VecDeque<Reply>,
}

struct Sandbox {
    pid: i32,
    pidfd: OwnedFd,
    index: u32,
    /// Both with what holds them.
    group: Option<(Group, File)>,
    scratch: Option<(PathBuf, File)>,
}

/// A step that failed.
type Failed = (&'static str, io::Error);

/// Runs until the host, to which descriptor 0 is the socket, goes away.
pub(crate) fn run() -> io::Result<()> {
    sys::new_session();
    sys::close_all_but(&[])?;
    let open_files = sys::raise_open_files()?;
    // Descriptor 3 is where a sandbox's socket goes; nothing else may be there.
    let _reserved = sys::move_to(std::fs::File::open("/dev/null")?.into(), child::SOCKET)?;
    let host = sys::copy_of_stdin()?;
    let mut buffer = vec![0; MAX_MESSAGE];
    let (length, _) = sys::receive(host.as_fd(), &mut buffer)?;
    let Ok(Request::SetUp { host: host_pid, isolation, read_only, cgroups, sandboxes }) =
        serde_json::from_slice(&buffer[..length])
    else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let parent = sys::pidfd_open(sys::parent_pid())?;
    if sys::parent_pid() != host_pid {
        return Ok(()); // it died while we were being born
    }
    let set_up = SetUp { isolation, read_only, cgroups, sandboxes, open_files };
    let again = host.try_clone()?;
    let mut spawner = match Spawner::new(host, set_up) {
        Ok(spawner) => spawner,
        Err((step, error)) => {
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            return reply(&again, &Reply::CannotStart { step: step.to_owned(), errno }, &[]);
        }
    };
    drop(again);
    let up = reply(
        &spawner.host,
        &Reply::Up { cgroups: spawner.cgroups.control(), gaps: std::mem::take(&mut spawner.gaps) },
        &[],
    );
    let outcome = up.and_then(|()| spawner.serve(&parent, &mut buffer));
    spawner.end_all();
    outcome
}

/// What a spawner is given and finds at its start.
struct SetUp {
    isolation: Isolation,
    read_only: Vec<PathBuf>,
    cgroups: bool,
    sandboxes: u32,
    open_files: u64,
}

/// What this machine lets a sandbox have: how its system calls are filtered, whether shared trees are shown through overlays,
/// and what is missing.
fn try_out(isolation: Isolation, users: &Users, no_groups: bool) -> (Variant, bool, Vec<String>) {
    let namespaces = isolation == Isolation::Namespaces;
    // Both fail in containers that hide parts of `/proc`; then there is no watching.
    let can = |attempt: fn() -> io::Result<()>| {
        namespaces && probe::in_namespaces(sys::NAMESPACES, users, attempt).is_ok()
    };
    let overlay = can(mounts::try_overlay);
    let bounded = can(|| namespaces::limit_watches(1));
    let landlock = isolation == Isolation::Landlock;
    let own_files = landlock && users.is_own();
    let mut gaps = Vec::new();
    if namespaces && !overlay {
        gaps.push("overlays cannot be mounted here (`modprobe overlay`): programs cannot watch files");
    } else if namespaces && !bounded {
        gaps.push("limits of a user namespace cannot be set here: programs cannot watch files");
    }
    if landlock {
        gaps.extend(landlock::missing(sys::landlock_version(), own_files));
    }
    let variant = Variant {
        no_namespaces: landlock,
        no_groups,
        no_watches: !(overlay && bounded),
        own_files,
        no_broadcast: own_files && sys::landlock_version() < landlock::SCOPES,
    };
    (variant, overlay, gaps.into_iter().map(str::to_owned).collect())
}

fn reply(host: &OwnedFd, reply: &Reply, fds: &[std::os::fd::BorrowedFd<'_>]) -> io::Result<()> {
    sys::send(host.as_fd(), &serde_json::to_vec(reply)?, fds)
}

impl Spawner {
    fn new(host: OwnedFd, set_up: SetUp) -> Result<Self, Failed> {
        let SetUp { isolation, read_only, cgroups, sandboxes, open_files } = set_up;
        if sys::ids().0 == 0 {
            sys::drop_groups().map_err(|error| ("dropping supplementary groups", error))?;
        }
        let namespaces = isolation == Isolation::Namespaces;
        if !namespaces {
            sys::adopt_orphans().map_err(|error| ("adopting orphans", error))?;
        }
        let this = sys::pidfd_open(std::process::id() as i32)
            .map_err(|error| ("opening a process descriptor", error))?;
        let users = Users::claim().map_err(|error| ("choosing user ids", namespaces::no_users(error)))?;
        let cgroups = if cgroups { Cgroups::find() } else { Cgroups::None };
        let (variant, overlay, gaps) = try_out(isolation, &users, cgroups == Cgroups::None);
        let filters = match isolation {
            Isolation::None => None,
            _ => Some(
                Filters::build(variant).map_err(|error| ("building the system call filter", cause(error)))?,
            ),
        };
        let mut processors = sys::processors().unwrap_or_default();
        if processors.len() > 1 {
            processors.remove(0); // for all other processes
        }
        Ok(Self {
            host,
            this,
            isolation,
            read_only,
            cgroups,
            filters,
            users,
            gaps,
            overlay,
            watches: namespaces::watch_share(sandboxes),
            processors,
            // Processes of one user may have as many in flight as one of them may have open, and one message more.
            most_files: u32::try_from(open_files / 2).unwrap_or(u32::MAX).saturating_sub(300).max(64),
            sandboxes: BTreeMap::new(),
            removals: sweep_scratch().into_iter().map(|removal| (None, removal)).collect(),
            prefix: claim::prefix().map_err(|error| ("choosing names", error))?,
            made: 0,
            outbox: VecDeque::new(),
        })
    }

    fn serve(&mut self, parent: &OwnedFd, buffer: &mut [u8]) -> io::Result<()> {
        const A_MOMENT_MS: i32 = 20;
        loop {
            let mut fds = vec![sys::poll_fd(&self.host, true, false), sys::poll_fd(parent, true, false)];
            fds.extend(self.sandboxes.values().map(|sandbox| sys::poll_fd(&sandbox.pidfd, true, false)));
            fds.extend(self.removals.iter().map(|(_, removal)| sys::poll_fd(&removal.pidfd, true, false)));
            let patience = if self.outbox.is_empty() { -1 } else { A_MOMENT_MS };
            if sys::poll(&mut fds, patience).is_err() {
                // For lack of memory. What is ready shows the next time.
                std::thread::sleep(std::time::Duration::from_millis(A_MOMENT_MS.unsigned_abs().into()));
                continue;
            }
            if fds[1].revents != 0 {
                return Ok(());
            }
            let ids: Vec<u32> = self.sandboxes.keys().copied().collect();
            let (sandboxes, removals) = fds[2..].split_at(ids.len());
            let mut removed = removals.iter().map(|fd| fd.revents != 0);
            for (report, removal) in self.removals.extract_if(.., |_| removed.next() == Some(true)) {
                removal.wait();
                self.outbox.extend(report);
            }
            for (id, _) in ids.iter().zip(sandboxes).filter(|(_, fd)| fd.revents != 0) {
                self.finish(*id);
            }
            if fds[0].revents != 0 {
                match sys::receive(self.host.as_fd(), buffer) {
                    Ok((0, _)) => return Ok(()),
                    // Anything else is not for this process; anyone who sent it waits in vain, and no one else.
                    Ok((length, _)) => {
                        if let Ok(Request::Spawn { id, limits, read_only }) =
                            serde_json::from_slice(&buffer[..length])
                        {
                            self.spawn(id, &limits, read_only);
                        }
                    }
                    Err(error) if passes(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            self.send_queued()?;
        }
    }

    fn spawn(&mut self, id: u32, limits: &SandboxLimits, read_only: Vec<PathBuf>) {
        let mut all = self.read_only.clone();
        all.extend(read_only);
        let failed = match self.make(limits, &all) {
            Ok((sandbox, socket)) => {
                let spawned =
                    Reply::Spawned { id, group: sandbox.group.as_ref().map(|(group, _)| group.clone()) };
                let sent = reply(&self.host, &spawned, &[socket.as_fd(), sandbox.pidfd.as_fd()]);
                match sent {
                    Ok(()) => {
                        self.sandboxes.insert(id, sandbox);
                        return;
                    }
                    Err(error) => {
                        self.destroy(sandbox);
                        ("handing the sandbox over", error)
                    }
                }
            }
            Err(failed) => failed,
        };
        let (step, error) = failed;
        let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
        self.outbox.push_back(Reply::NotSpawned { id, step: step.to_owned(), errno });
    }

    /// Reports to the host what can be sent now. An error ends the connection.
    fn send_queued(&mut self) -> io::Result<()> {
        while let Some(next) = self.outbox.front() {
            match reply(&self.host, next, &[]) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(error) if passes(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn make(&mut self, limits: &SandboxLimits, read_only: &[PathBuf]) -> Result<(Sandbox, OwnedFd), Failed> {
        let at = |step| move |error| (step, error);
        let index = self.free_index();
        let name = format!("{}-{}", self.prefix, self.made);
        self.made += 1;
        let user = self.users.of(index);
        let (ours, theirs) = sys::packet_pair().map_err(at("making a socket"))?;
        let (go, set_go) = io::pipe().map_err(at("making a pipe"))?;
        let scratch = if self.isolation == Isolation::Namespaces {
            None
        } else {
            Some(make_scratch(&name, user).map_err(at("making the scratch directory"))?)
        };
        let group = match &self.cgroups {
            Cgroups::None => None,
            cgroups => Some(cgroups.create(&name, limits).map_err(|error| {
                remove_scratch(path_of(&scratch), user);
                ("making a control group", error)
            })?),
        };
        let fork_into =
            group.as_ref().filter(|(group, _)| group.can_be_forked_into()).map(|(_, held)| held.as_fd());
        let namespaces = if self.isolation == Isolation::Namespaces { sys::NAMESPACES } else { 0 };
        let (pid, pidfd, in_group) = match sys::fork(namespaces, fork_into) {
            Ok(Forked::Parent { pid, pidfd, in_group }) => (pid, pidfd, in_group),
            Ok(Forked::Child) => {
                drop(set_go);
                let plan = Plan {
                    isolation: self.isolation,
                    limits,
                    read_only,
                    filters: self.filters.as_ref(),
                    go,
                    spawner: &self.this,
                    scratch: scratch.as_ref().map(|(path, _)| path.as_path()),
                    user,
                    has_group: group.is_some(),
                    overlay: self.overlay,
                    watches: self.watches,
                    processors: group.is_none().then(|| self.processors_of(index, limits)),
                    most_files: self.most_files,
                };
                child::run(plan, theirs)
            }
            Err(error) => {
                if let Some((group, _)) = group {
                    let _ = group.remove();
                }
                remove_scratch(path_of(&scratch), user);
                return Err(("making namespaces", error));
            }
        };
        let sandbox = Sandbox { pid, pidfd, index, group, scratch };
        if let Err(failed) = self.set_going(&sandbox, in_group, user, &set_go) {
            self.destroy(sandbox);
            return Err(failed);
        }
        Ok((sandbox, ours))
    }

    /// What is done to a new sandbox from outside; then its first process goes on.
    fn set_going(
        &self,
        sandbox: &Sandbox,
        in_group: bool,
        user: (u32, u32),
        mut go: &io::PipeWriter,
    ) -> Result<(), Failed> {
        let at = |step| move |error| (step, error);
        if let Some((group, _)) = sandbox.group.as_ref().filter(|_| !in_group) {
            group.enter(sandbox.pid).map_err(at("entering the control group"))?;
        }
        if self.isolation == Isolation::Namespaces {
            namespaces::map_ids(sandbox.pid, user).map_err(at("mapping users"))?;
        }
        io::Write::write_all(&mut go, &[1]).map_err(at("starting the sandbox"))
    }

    /// A number that no live sandbox has.
    fn free_index(&self) -> u32 {
        let count = self.users.count();
        let taken = |index| self.sandboxes.values().any(|sandbox| sandbox.index == index % count);
        let last = self.made + count;
        (self.made..last).find(|index| !taken(*index)).unwrap_or(self.made) % count
    }

    /// As many processors as its share of time fills, by turns.
    fn processors_of(&self, index: u32, limits: &SandboxLimits) -> Vec<usize> {
        let count = limits.cpu_percent.div_ceil(100).max(1) as usize;
        let all = self.processors.iter().copied().cycle();
        all.skip(index as usize % self.processors.len().max(1))
            .take(count.min(self.processors.len()))
            .collect()
    }

    /// Reaps a sandbox's first process, which has ended and with it the whole sandbox, and tells the host once its files are
    /// gone. Programs decide how long that takes, so nothing else waits for it.
    fn finish(&mut self, id: u32) {
        let Some(sandbox) = self.sandboxes.remove(&id) else { return };
        let report = Reply::Ended { id, end: self.reap(&sandbox) };
        match Removal::begin(path_of(&sandbox.scratch), self.users.of(sandbox.index)) {
            Some(removal) => self.removals.push((Some(report), removal)),
            None => self.outbox.push_back(report),
        }
    }

    fn end_all(&mut self) {
        for sandbox in self.sandboxes.values() {
            sandbox.strike();
        }
        for (_, sandbox) in std::mem::take(&mut self.sandboxes) {
            self.destroy(sandbox);
        }
        for (_, removal) in self.removals.drain(..) {
            removal.wait();
        }
    }

    /// Removes everything of a sandbox that never ran a program, or of one whose host is gone.
    fn destroy(&self, sandbox: Sandbox) {
        self.reap(&sandbox);
        remove_scratch(path_of(&sandbox.scratch), self.users.of(sandbox.index));
    }

    /// Ends every process of a sandbox; returns how it ended.
    fn reap(&self, sandbox: &Sandbox) -> End {
        sandbox.strike();
        let _ = sys::reap(sandbox.pid, true);
        if self.isolation != Isolation::Namespaces {
            self.kill_orphans();
        }
        let mut end = End::default();
        if let Some((group, _)) = &sandbox.group {
            end = End {
                oom: group.oom_kills() > 0,
                peak_bytes: group.peak_bytes(),
                cpu_micros: group.usage().cpu_micros,
            };
            let _ = group.remove();
        }
        end
    }

    /// Without a process namespace, a dead sandbox's processes become our children: kill all that are not agents and remove
    /// no files, until no more come.
    fn kill_orphans(&self) {
        loop {
            let path = format!("/proc/self/task/{}/children", std::process::id());
            let children = std::fs::read_to_string(path).unwrap_or_default();
            let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
            let is_ours = |pid: &i32| {
                self.sandboxes.values().any(|sandbox| sandbox.pid == *pid)
                    || self.removals.iter().any(|(_, removal)| removal.child.id() as i32 == *pid)
            };
            let orphans: Vec<i32> = children.filter(|pid| !is_ours(pid)).collect();
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

impl Sandbox {
    /// Kills it. Frozen processes in a control group must be thawed to be killed.
    fn strike(&self) {
        let _ = sys::pidfd_kill(self.pidfd.as_fd(), libc::SIGKILL);
        if let Some((group, _)) = &self.group {
            let _ = group.freeze(false);
        }
    }
}

/// A directory on disk for a sandbox without mounts of its own.
fn make_scratch(name: &str, (uid, gid): (u32, u32)) -> io::Result<(PathBuf, File)> {
    use std::os::unix::fs::{DirBuilderExt, chown};
    let scratch = Path::new("/tmp").join(name);
    let make = |path: &Path| {
        std::fs::DirBuilder::new().mode(0o700).create(path)?; // refuses what is there already
        chown(path, Some(uid), Some(gid))
    };
    make(&scratch)?;
    let inside = make(&scratch.join("home")).and_then(|()| make(&scratch.join("tmp")));
    match inside.and_then(|()| claim::hold(&scratch)) {
        Ok(held) => Ok((scratch, held)),
        Err(error) => {
            remove_scratch(Some(scratch), (uid, gid));
            Err(error)
        }
    }
}

fn path_of(scratch: &Option<(PathBuf, File)>) -> Option<PathBuf> {
    scratch.as_ref().map(|(path, _)| path.clone())
}

/// A scratch directory that is being removed, as its owner and by another process: a hostile tree can exhaust the process that
/// walks it, and it can be so deep that no path leads to its end. Directories that were closed to their owner are opened first.
struct Removal {
    scratch: PathBuf,
    child: Child,
    pidfd: OwnedFd,
}

impl Removal {
    /// `None`: there is nothing to remove, or no process to be had for it.
    fn begin(scratch: Option<PathBuf>, (uid, gid): (u32, u32)) -> Option<Self> {
        use std::os::unix::process::CommandExt;
        const SCRIPT: &str = "chmod -R u+rwx -- \"$@\"; rm -rf -- \"$@\"";
        let scratch = scratch?;
        let mut command = Command::new("/bin/sh");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.args(["-c", SCRIPT, "sh"]).args([scratch.join("home"), scratch.join("tmp")]);
        if sys::ids().0 == 0 {
            command.uid(uid).gid(gid);
        }
        let mut child = command.spawn().ok()?;
        match sys::pidfd_open(child.id() as i32) {
            Ok(pidfd) => Some(Self { scratch, child, pidfd }),
            Err(_) => {
                let _ = child.wait();
                let _ = std::fs::remove_dir(scratch);
                None
            }
        }
    }

    fn wait(mut self) {
        let _ = self.child.wait();
        let _ = std::fs::remove_dir(self.scratch);
    }
}

fn remove_scratch(scratch: Option<PathBuf>, user: (u32, u32)) {
    if let Some(removal) = Removal::begin(scratch, user) {
        removal.wait();
    }
}

/// Begins to remove what a killed host left behind. Any user of the machine may give a directory such a name, so an ordinary
/// user removes its own only.
fn sweep_scratch() -> Vec<Removal> {
    use std::os::unix::fs::MetadataExt;
    let own = sys::ids().0;
    let entries = std::fs::read_dir("/tmp").into_iter().flatten().flatten();
    let left = entries.filter(|entry| claim::is_name(&entry.file_name())).filter_map(|entry| {
        let metadata = entry.path().symlink_metadata().ok()?;
        let is_ours = metadata.is_dir() && (own == 0 || metadata.uid() == own);
        let is_left = is_ours && claim::hold(&entry.path()).is_ok();
        Removal::begin(is_left.then(|| entry.path()), (metadata.uid(), metadata.gid()))
    });
    left.collect()
}
