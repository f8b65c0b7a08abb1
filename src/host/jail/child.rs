//! The first process of a sandbox: locks itself in, step by step, then becomes the agent.
//!
//! The order matters. Places are located while it is still the host's user; the user changes before anything is
//! made; the filter comes last, because it would refuse the steps before it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::limits::Scan;
use super::seccomp::Filters;
use super::{Isolation, Limits, landlock, limits, mounts, namespaces, policy, sys};
use crate::host::agent::init::{self, Place};
use crate::host::agent::protocol::{Failure, FromAgent};

/// The agent's end of its socket: descriptor 3, so that a program's own descriptor 3 can only replace it.
pub(crate) const SOCKET: i32 = 3;

/// Everything that a sandbox's first process needs, made before the fork.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// What separates it from the machine.
    pub(crate) isolation: Isolation,
    /// What it may use.
    pub(crate) limits: &'a Limits,
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
    /// Whether memory must be watched by scanning.
    pub(crate) scan: bool,
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
            Ok((place, scan, oom_score)) => init::run(socket, place, nice, scan, oom_score),
            Err(Failed(step, error)) => {
                let message = FromAgent::SetupFailed(Failure::new(step, &error)).encode(0);
                let _ = sys::send(socket.as_fd(), &message, &[]);
            }
        }
    }));
    sys::exit_now(if guarded.is_ok() { 0 } else { 101 })
}

fn lock_in(plan: Plan<'_>, socket: &OwnedFd) -> Result<(Place, Option<Scan>, File), Failed> {
    wait_for_go(plan.go).at("waiting for the spawner")?;
    sys::new_session();
    let (place, scan, oom_score) = match plan.isolation {
        Isolation::Namespaces => {
            let sources = mounts::locate(plan.read_only).at("finding the interpreters")?;
            sys::become_user(policy::USER, policy::USER).at("becoming the sandbox's user")?;
            stay_with(plan.spawner)?;
            namespaces::furnish().at("furnishing the namespaces")?;
            let proc = mounts::enter(&sources, plan.limits).at("building the root file system")?;
            drop(sources);
            let proc = plan.scan.then_some(proc);
            leave_the_outside(socket, proc.as_ref())?;
            let oom_score = own_oom_score().at("opening its memory score")?;
            limits::apply(plan.limits, 0).at("setting limits")?;
            sys::no_new_privileges().at("giving up new privileges")?;
            landlock::second_lock()
                .map_err(|error| Failed("restricting files with Landlock", io::Error::other(error)))?;
            // Stays open, and with it the mount, as long as this process lives.
            let scan = proc.map(|proc| {
                let proc = format!("/proc/self/fd/{}", proc.into_raw_fd());
                Scan::new(proc.into(), plan.limits.memory_bytes)
            });
            (Place::inside(), scan, oom_score)
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
            leave_the_outside(socket, None)?;
            let oom_score = own_oom_score().at("opening its memory score")?;
            limits::apply(plan.limits, others).at("setting limits")?;
            sys::no_new_privileges().at("giving up new privileges")?;
            if plan.isolation == Isolation::Landlock {
                landlock::restrict(plan.read_only, &[&place.home, &place.tmp])
                    .map_err(|error| Failed("restricting files with Landlock", io::Error::other(error)))?;
            }
            (place, None, oom_score)
        }
    };
    sys::drop_capabilities().at("dropping capabilities")?;
    sys::no_new_privileges().at("giving up new privileges")?;
    sys::set_dumpable(false).at("hiding from other processes")?;
    if let Some(filters) = plan.filters {
        filters.load().map_err(io::Error::other).at("loading the system call filter")?;
    }
    Ok((place, scan, oom_score))
}

/// Replaces the standard streams and closes everything else but the agent's own.
fn leave_the_outside(socket: &OwnedFd, proc: Option<&OwnedFd>) -> Result<(), Failed> {
    let null = File::options().read(true).write(true).open("/dev/null").at("opening /dev/null")?;
    sys::replace_stdio(null.as_fd()).at("replacing the standard streams")?;
    drop(null);
    let keep: Vec<BorrowedFd<'_>> = [Some(socket), proc].into_iter().flatten().map(AsFd::as_fd).collect();
    sys::close_all_but(&keep).at("closing descriptors")
}

/// The file that says how soon this process is ended when memory runs out. It cannot be opened any more when this
/// process hides, and a process that has changed its user hides by itself.
fn own_oom_score() -> io::Result<File> {
    sys::set_dumpable(true)?;
    let score = File::options().write(true).open("/proc/self/oom_score_adj")?;
    sys::set_dumpable(false)?;
    Ok(score)
}

fn wait_for_go(mut go: io::PipeReader) -> io::Result<()> {
    io::Read::read_exact(&mut go, &mut [0])
}

/// Dies with the spawner, also when it died a moment ago.
fn stay_with(spawner: &OwnedFd) -> Result<(), Failed> {
    sys::die_with_parent().at("tying its life to the spawner")?;
    let gone = sys::poll(&mut [sys::poll_fd(spawner, true, false)], 0).at("looking at the spawner")?;
    if gone == 0 {
        Ok(())
    } else {
        Err(Failed("tying its life to the spawner", io::ErrorKind::NotConnected.into()))
    }
}
