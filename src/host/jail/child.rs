//! The first process of a sandbox: locks itself in, step by step, then becomes the agent.
//!
//! The order matters. Places are located while it is still the host's user; the user changes before anything is
//! made; the filter comes last, because it would refuse the steps before it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::limits::Scan;
use super::seccomp::Filters;
use super::{Isolation, SandboxLimits, cause, landlock, limits, mounts, namespaces, policy, sys};
use crate::host::agent::init::{self, Place, Tools};
use crate::host::agent::protocol::{Failure, FromAgent};

/// The agent's end of its socket: descriptor 3, so that a program's own descriptor 3 can only replace it.
pub(crate) const SOCKET: i32 = 3;

/// Everything that a sandbox's first process needs, made before the fork.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// Its isolation from the machine.
    pub(crate) isolation: Isolation,
    /// Its limits.
    pub(crate) limits: &'a SandboxLimits,
    /// Interpreters' directories.
    pub(crate) read_only: &'a [PathBuf],
    /// System call filters; none without isolation.
    pub(crate) filters: Option<&'a Filters>,
    /// Readable when the outside has done its part.
    pub(crate) go: io::PipeReader,
    /// Ends with the spawner.
    pub(crate) spawner: &'a OwnedFd,
    /// Its directory on disk, in tiers without mounts.
    pub(crate) scratch: Option<&'a Path>,
    /// The user it becomes, in tiers without a user namespace.
    pub(crate) user: (u32, u32),
    /// Whether control groups hold its limits; if not, a scan does.
    pub(crate) has_group: bool,
    /// Whether shared trees are shown through overlays.
    pub(crate) overlay: bool,
    /// Inotify instances that it may have.
    pub(crate) watches: u32,
    /// The processors that it may run on, where no control group bounds their time.
    pub(crate) processors: Option<Vec<usize>>,
    /// The most descriptors that one of its processes may have, so that what they have in flight never keeps the spawner
    /// from sending.
    pub(crate) most_files: u32,
}

/// A step that failed.
struct Failed(&'static str, io::Error);

trait At<T> {
    fn at(self, step: &'static str) -> Result<T, Failed>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, step: &'static str) -> Result<T, Failed> {
        self.map_err(|error| Failed(step, error))
    }
}

/// Locks in and serves until the host goes away. What the spawner owned is never dropped here.
pub(crate) fn run(plan: Plan<'_>, socket: OwnedFd) -> ! {
    let guarded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let Ok(socket) = sys::move_to(socket, SOCKET) else { return };
        let nice = plan.limits.nice;
        match lock_in(plan, &socket) {
            Ok(tools) => init::run(socket, nice, tools),
            Err(Failed(step, error)) => {
                let message = FromAgent::SetupFailed(Failure::new(step, &error)).encode(0);
                let _ = sys::send(socket.as_fd(), &message, &[]);
            }
        }
    }));
    sys::exit_now(if guarded.is_ok() { 0 } else { 101 })
}

/// In one piece, because the order of the steps is what makes them hold.
fn lock_in(plan: Plan<'_>, socket: &OwnedFd) -> Result<Tools, Failed> {
    wait_for_go(plan.go).at("waiting for the spawner")?;
    sys::new_session();
    if let Some(processors) = &plan.processors {
        sys::pin_to(processors).at("choosing processors")?;
    }
    let (place, scan, oom_score, watcher) = match plan.isolation {
        Isolation::Namespaces => {
            let sources = mounts::locate(plan.read_only, plan.overlay).at("finding the interpreters")?;
            namespaces::limit_queues();
            sys::become_user(policy::USER, policy::USER).at("becoming the sandbox's user")?;
            stay_with(plan.spawner)?;
            namespaces::furnish().at("furnishing the namespaces")?;
            // Where this cannot be set, the filter refuses watches: the spawner has tried.
            let _ = namespaces::limit_watches(plan.watches);
            let namespace_limits = namespaces::open_namespace_limits();
            let proc = mounts::enter(&sources, plan.limits).at("building the root file system")?;
            drop(sources);
            namespaces::forbid_namespaces(namespace_limits).at("forbidding namespaces")?;
            let watcher = sys::inotify().ok();
            leave_the_outside(socket, &[Some(&proc), watcher.as_ref()])?;
            let oom_score = own_oom_score(Some(&proc)).at("opening its memory score")?;
            limits::apply(plan.limits, 0, plan.most_files).at("setting limits")?;
            sys::no_new_privileges().at("setting no-new-privileges")?;
            landlock::second_lock()
                .map_err(|error| Failed("restricting files with Landlock", cause(error)))?;
            // Stays open, and with it the mount, as long as this process lives.
            let proc = format!("/proc/self/fd/{}", proc.into_raw_fd());
            let memory = (!plan.has_group).then_some(plan.limits.memory_bytes);
            (Place::inside(plan.overlay), Some(Scan::new(proc.into(), memory)), oom_score, watcher)
        }
        Isolation::Landlock | Isolation::None => {
            let scratch =
                plan.scratch.ok_or(io::ErrorKind::NotFound.into()).at("finding the scratch directory")?;
            let place = Place::at(scratch);
            let others = limits::tasks_of(plan.user.0);
            sys::become_user(plan.user.0, plan.user.1).at("becoming the sandbox's user")?;
            stay_with(plan.spawner)?;
            sys::adopt_orphans().at("adopting orphans")?;
            std::env::set_current_dir(&place.home).at("entering the home directory")?;
            let watcher = sys::inotify().ok();
            leave_the_outside(socket, &[watcher.as_ref()])?;
            let oom_score = own_oom_score(None).at("opening its memory score")?;
            limits::apply(plan.limits, others, plan.most_files).at("setting limits")?;
            sys::no_new_privileges().at("setting no-new-privileges")?;
            if plan.isolation == Isolation::Landlock {
                landlock::restrict(plan.read_only, &[&place.home, &place.tmp])
                    .map_err(|error| Failed("restricting files with Landlock", cause(error)))?;
            }
            (place, None, oom_score, watcher)
        }
    };
    let scope = (plan.isolation == Isolation::Landlock).then(sys::signal_scope).and_then(Result::ok);
    sys::drop_capabilities().at("dropping capabilities")?;
    sys::no_new_privileges().at("setting no-new-privileges")?;
    sys::set_dumpable(false).at("hiding from other processes")?;
    if let Some(filters) = plan.filters {
        filters.load().map_err(cause).at("loading the system call filter")?;
    }
    Ok(Tools { place, scan, oom_score, watcher, scope })
}

/// Replaces the standard streams and closes everything else but the agent's own.
fn leave_the_outside(socket: &OwnedFd, others: &[Option<&OwnedFd>]) -> Result<(), Failed> {
    let null = File::options().read(true).write(true).open("/dev/null").at("opening /dev/null")?;
    sys::replace_stdio(null.as_fd()).at("replacing the standard streams")?;
    drop(null);
    let others = others.iter().copied().flatten();
    let keep: Vec<BorrowedFd<'_>> = [socket].into_iter().chain(others).map(AsFd::as_fd).collect();
    sys::close_all_but(&keep).at("closing descriptors")
}

/// The file that says how soon this process is ended when memory runs out. It cannot be opened any more when this
/// process hides, and a process that has changed its user hides by itself.
///
/// In the full tier the `/proc` that programs see is read-only; `proc` is another.
fn own_oom_score(proc: Option<&OwnedFd>) -> io::Result<File> {
    let proc = proc.map_or_else(|| "/proc".to_owned(), |proc| format!("/proc/self/fd/{}", proc.as_raw_fd()));
    sys::set_dumpable(true)?;
    let score = File::options().write(true).open(format!("{proc}/self/oom_score_adj"))?;
    sys::set_dumpable(false)?;
    Ok(score)
}

fn wait_for_go(mut go: io::PipeReader) -> io::Result<()> {
    io::Read::read_exact(&mut go, &mut [0])
}

/// Dies with the spawner, also when it died a moment ago.
fn stay_with(spawner: &OwnedFd) -> Result<(), Failed> {
    sys::die_with_parent().at("tying its lifetime to the spawner")?;
    let gone = sys::poll(&mut [sys::poll_fd(spawner, true, false)], 0).at("looking at the spawner")?;
    if gone == 0 {
        Ok(())
    } else {
        Err(Failed("tying its lifetime to the spawner", io::ErrorKind::NotConnected.into()))
    }
}
