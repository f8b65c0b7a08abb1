//! The system calls that the standard library does not wrap: the only unsafe code of the package.
//!
//! Every function is safe to call with any argument. Descriptors that a call returns are owned by the result.
#![expect(unsafe_code, reason = "the one file that may; each block says why it is sound")]

use std::ffi::{CStr, CString, c_int, c_uint, c_ulong};
use std::io::{Error, Result};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;

use tokio::io::unix::AsyncFd;

fn check(result: impl Into<i64>) -> Result<i64> {
    let result = result.into();
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::from_raw_os_error(libc::EINVAL))
}

fn own(fd: i64) -> OwnedFd {
    // SAFETY: called only with a descriptor that the kernel has just made for us.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

// ---------------------------------------------------------------- processes

/// The namespaces that a sandbox is born in. The seventh, of control groups, comes with [`new_cgroup_namespace`]
/// once it is in its group.
pub(crate) const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS) as u64;

/// Which side of a fork this is.
#[derive(Debug)]
pub(crate) enum Forked {
    /// The new process.
    Child,
    /// The old one.
    Parent {
        /// The new process's number.
        pid: i32,
        /// A descriptor for it.
        pidfd: OwnedFd,
        /// Whether it was born in the control group.
        in_group: bool,
    },
}

/// Forks into new namespaces and, with version 2 control groups, straight into one.
///
/// Refuses (`EDEADLK`) when this process has more than one thread: the child would own locks that no one releases.
pub(crate) fn fork(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Forked> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(Error::from_raw_os_error(libc::EDEADLK));
    }
    let mut pidfd: c_int = -1;
    // SAFETY: all-zero is a valid `clone_args`.
    let mut args: libc::clone_args = unsafe { zeroed() };
    args.flags = namespaces | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without a stack it is a fork: the child goes on with a copy of this stack. One thread only,
    // checked above, so no lock can be held by a thread that the child does not have.
    let cloned =
        check(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) });
    let (pid, in_group) = match cloned {
        // What Docker's own filter answers: the older call, whose flags it can read, may be allowed.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
            let flags = namespaces | libc::CLONE_PIDFD as u64 | libc::SIGCHLD as u64;
            // SAFETY: as above; the third argument is where the descriptor goes, on every architecture that we know.
            let pid = check(unsafe {
                libc::syscall(
                    libc::SYS_clone,
                    flags as c_ulong,
                    0 as c_ulong,
                    &raw mut pidfd,
                    0 as c_ulong,
                    0 as c_ulong,
                )
            })?;
            (pid, false)
        }
        cloned => (cloned?, cgroup.is_some()),
    };
    if pid == 0 {
        return Ok(Forked::Child);
    }
    Ok(Forked::Parent { pid: pid as i32, pidfd: own(pidfd.into()), in_group })
}

/// Has this process and its descendants run on these processors only.
pub(crate) fn pin_to(processors: &[usize]) -> Result<()> {
    // SAFETY: an all-zero set is an empty one; `CPU_SET` stays within it; the set outlives the call.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        for processor in processors.iter().filter(|number| **number < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(*processor, &mut set);
        }
        check(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)).map(drop)
    }
}

/// The processors that this process may run on.
pub(crate) fn processors() -> Result<Vec<usize>> {
    // SAFETY: an all-zero set is an empty one that outlives the call; `CPU_ISSET` stays within it.
    unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        check(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set))?;
        Ok((0..libc::CPU_SETSIZE as usize).filter(|number| libc::CPU_ISSET(*number, &set)).collect())
    }
}

// ---------------------------------------------------------------- Landlock, where the crate of that name does not reach

/// The version of Landlock's interface; 0 when the kernel has none.
pub(crate) fn landlock_version() -> u32 {
    const VERSION: c_uint = 1;
    // SAFETY: with this flag nothing is read.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<()>(), 0_usize, VERSION) };
    u32::try_from(version).unwrap_or(0)
}

/// A rule set that does nothing but keep signals within what is bound by it.
pub(crate) fn signal_scope() -> Result<OwnedFd> {
    const SCOPE_SIGNAL: u64 = 2;
    let attributes: [u64; 3] = [0, 0, SCOPE_SIGNAL];
    // SAFETY: the size of what is read goes with it.
    check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, attributes.as_ptr(), size_of_val(&attributes), 0)
    })
    .map(own)
}

/// Makes the group that this process is in the root of what it sees.
pub(crate) fn new_cgroup_namespace() -> Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }).map(drop)
}

/// Ends this process at once, running nothing.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: always sound; it does not return.
    unsafe { libc::_exit(code) }
}

/// Reaps a child (`-1`: any): its number and wait status. `None` when none has ended.
pub(crate) fn reap(pid: i32, wait: bool) -> Result<Option<(i32, i32)>> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let reaped = check(unsafe { libc::waitpid(pid, &raw mut status, if wait { 0 } else { libc::WNOHANG }) })?;
    Ok((reaped != 0).then_some((reaped as i32, status)))
}

/// Whether a process is a child of this one and has not ended.
pub(crate) fn is_living_child(pid: i32) -> bool {
    // SAFETY: `info` may be all zeros, and outlives the call.
    unsafe {
        let mut info: libc::siginfo_t = zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        check(libc::waitid(libc::P_PID, pid as libc::id_t, &raw mut info, options)).is_ok()
            && info.si_pid() == 0
    }
}

/// Sends a signal; a negative number means a process group.
pub(crate) fn kill(pid: i32, signal: i32) -> Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// A descriptor for a process; readable when it has ended.
pub(crate) fn pidfd_open(pid: i32) -> Result<OwnedFd> {
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }).map(own)
}

/// Sends a signal to the process behind a descriptor, never to another that got its number.
pub(crate) fn pidfd_kill(pidfd: BorrowedFd<'_>, signal: i32) -> Result<()> {
    // SAFETY: plain numbers and no information block.
    check(unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, ptr::null::<()>(), 0)
    })
    .map(drop)
}

/// The parent's number; 0 when it is outside our process namespace.
pub(crate) fn parent_pid() -> i32 {
    // SAFETY: cannot fail.
    unsafe { libc::getppid() }
}

/// The real user and group.
pub(crate) fn ids() -> (u32, u32) {
    // SAFETY: cannot fail.
    unsafe { (libc::getuid(), libc::getgid()) }
}

/// Becomes another user and group for good.
pub(crate) fn become_user(uid: u32, gid: u32) -> Result<()> {
    // SAFETY: plain numbers; the raw calls, since there is one thread.
    unsafe {
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

/// Gives up all supplementary groups.
pub(crate) fn drop_groups() -> Result<()> {
    // SAFETY: an empty list needs no memory.
    check(unsafe { libc::setgroups(0, ptr::null()) }).map(drop)
}

/// Starts a session of its own; does nothing when this process leads a group already.
pub(crate) fn new_session() {
    // SAFETY: no arguments.
    unsafe { libc::setsid() };
}

fn prctl(option: c_int, argument: c_ulong) -> Result<()> {
    // SAFETY: used only with options that take numbers.
    check(unsafe { libc::prctl(option, argument, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong) }).map(drop)
}

/// Has the kernel kill this process when its parent's thread ends. Forgotten when the user changes.
pub(crate) fn die_with_parent() -> Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as c_ulong)
}

/// Whether other processes of this user may look into this one by `/proc` or `ptrace`.
pub(crate) fn set_dumpable(yes: bool) -> Result<()> {
    prctl(libc::PR_SET_DUMPABLE, yes.into())
}

/// Makes this process the parent of its orphaned descendants.
pub(crate) fn adopt_orphans() -> Result<()> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1)
}

/// From here on no program that is executed gains rights.
pub(crate) fn no_new_privileges() -> Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
}

/// Gives up every capability, now and after any `execve`.
pub(crate) fn drop_capabilities() -> Result<()> {
    for capability in 0..64 {
        // Numbers that this kernel does not know are refused; there is nothing to drop then.
        let _ = prctl(libc::PR_CAPBSET_DROP, capability);
    }
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    const VERSION_3: u32 = 0x2008_0522;
    let header = [VERSION_3, 0];
    let none = [0_u32; 6];
    // SAFETY: version 3 reads a header of two and data of six 32-bit words.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) }).map(drop)
}

/// Lowers a resource limit, soft and hard. It never raises one: what is lower already stays.
pub(crate) fn limit(resource: Resource, value: u64) -> Result<()> {
    let resource = match resource {
        Resource::Processes => libc::RLIMIT_NPROC,
        Resource::FileBytes => libc::RLIMIT_FSIZE,
        Resource::CoreBytes => libc::RLIMIT_CORE,
        Resource::OpenFiles => libc::RLIMIT_NOFILE,
        Resource::LockedBytes => libc::RLIMIT_MEMLOCK,
        Resource::QueueBytes => libc::RLIMIT_MSGQUEUE,
        Resource::PendingSignals => libc::RLIMIT_SIGPENDING,
        Resource::DataBytes => libc::RLIMIT_DATA,
    };
    // SAFETY: `limit` outlives both calls.
    unsafe {
        let mut limit: libc::rlimit = zeroed();
        check(libc::getrlimit(resource, &raw mut limit))?;
        let value = value.min(limit.rlim_max);
        limit = libc::rlimit { rlim_cur: value, rlim_max: value };
        check(libc::setrlimit(resource, &raw const limit)).map(drop)
    }
}

/// Raises this process's limit of open descriptors as far as it may, and tells it. The kernel also compares it with what all
/// processes of this user have in flight over sockets before it lets one more message with descriptors go.
pub(crate) fn raise_open_files() -> Result<u64> {
    // SAFETY: `limit` outlives both calls.
    unsafe {
        let mut limit: libc::rlimit = zeroed();
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))?;
        Ok(limit.rlim_max)
    }
}

/// What [`limit`] limits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Resource {
    /// Processes and threads of this user (in this user namespace).
    Processes,
    /// One file.
    FileBytes,
    /// Memory images of crashed programs.
    CoreBytes,
    /// Descriptors of one process.
    OpenFiles,
    /// Memory kept from being swapped.
    LockedBytes,
    /// POSIX message queues.
    QueueBytes,
    /// Queued signals.
    PendingSignals,
    /// Private memory of one process.
    DataBytes,
}

/// What a new process does to itself between fork and execution.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BeforeExec {
    /// Becomes descriptor 3.
    pub(crate) control: Option<RawFd>,
    /// Descriptor 0 is a terminal to be controlled by.
    pub(crate) terminal: bool,
    /// Added to the priority value.
    pub(crate) nice: i32,
    /// A [`signal_scope`] to enter.
    pub(crate) scope: Option<RawFd>,
}

/// A function of this program that runs instead of a file.
pub(crate) type Builtin = fn(&[String]) -> i32;

/// Runs a function in the process that `command` starts, instead of executing its file. Must come after [`before_exec`].
///
/// The process is a copy of this one, which must have one thread only; what it inherited beyond its standard
/// streams is closed first, so that it can reach nothing that an executed program could not.
pub(crate) fn run_instead(command: &mut Command, run: Builtin, argv: Vec<String>) {
    let run = move || {
        close_range(3, u32::MAX)?;
        exit_now(run(&argv))
    };
    // SAFETY: the forked child of a process with one thread: no lock can be held by a thread that it lacks, so it
    // may allocate. It never returns into the code between fork and execution.
    unsafe { command.pre_exec(run) };
}

/// Runs `plan` in the process that `command` starts: a session of its own and default signal actions.
pub(crate) fn before_exec(command: &mut Command, plan: BeforeExec) {
    let run = move || {
        // SAFETY: async-signal-safe calls on numbers and constants only, as a forked child must.
        unsafe {
            check(libc::setsid())?;
            if plan.terminal {
                check(libc::ioctl(0, libc::TIOCSCTTY, 0))?;
            }
            // Those too that what started the host had ignored. The numbers that cannot be set are skipped by the kernel.
            for signal in 1..=64 {
                libc::signal(signal, libc::SIG_DFL);
            }
            if plan.nice > 0 {
                libc::setpriority(libc::PRIO_PROCESS, 0, plan.nice);
            }
            if let Some(scope) = plan.scope {
                check(libc::syscall(libc::SYS_landlock_restrict_self, scope, 0))?;
            }
            if let Some(control) = plan.control {
                check(libc::dup2(control, 3))?;
            }
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(run) };
}

// ---------------------------------------------------------------- signals and waiting

/// Ignores a signal, also in programs that are executed unless they reset it.
pub(crate) fn ignore(signal: i32) {
    // SAFETY: no handler runs.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// A descriptor that is readable when a child has ended. Blocks the signal itself.
pub(crate) fn child_events() -> Result<OwnedFd> {
    // SAFETY: the set is initialised by `sigemptyset` and outlives the calls.
    unsafe {
        let mut set: libc::sigset_t = zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()))?;
        check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)).map(own)
    }
}

/// Something to wait for.
pub(crate) type PollFd = libc::pollfd;

/// An entry for [`poll`].
pub(crate) fn poll_fd(fd: &impl AsRawFd, read: bool, write: bool) -> PollFd {
    let events = if read { libc::POLLIN } else { 0 } | if write { libc::POLLOUT } else { 0 };
    PollFd { fd: fd.as_raw_fd(), events, revents: 0 }
}

/// Waits until an entry is ready or `timeout_ms` (-1: none) has passed.
pub(crate) fn poll(fds: &mut [PollFd], timeout_ms: i32) -> Result<usize> {
    // SAFETY: pointer and length of one slice.
    match check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) }) {
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(0),
        other => other.map(|ready| ready as usize),
    }
}

// ---------------------------------------------------------------- descriptors

/// Moves a descriptor to a fixed number, closed on execution.
pub(crate) fn move_to(fd: OwnedFd, number: RawFd) -> Result<OwnedFd> {
    if fd.as_raw_fd() == number {
        return Ok(fd);
    }
    // SAFETY: the caller's table has nothing it cares for at `number`: only a fresh child calls this.
    check(unsafe { libc::dup3(fd.as_raw_fd(), number, libc::O_CLOEXEC) }).map(own)
}

/// A copy of descriptor 0 with a number above those that have a meaning, closed on execution.
pub(crate) fn copy_of_stdin() -> Result<OwnedFd> {
    const FIRST: c_int = 10;
    // SAFETY: plain numbers; the kernel picks a free number.
    check(unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, FIRST) }).map(own)
}

/// Makes descriptors 0, 1 and 2 copies of `fd`, kept on execution.
pub(crate) fn replace_stdio(fd: BorrowedFd<'_>) -> Result<()> {
    for number in 0..3 {
        // SAFETY: the standard streams are never owned by an `OwnedFd`.
        check(unsafe { libc::dup2(fd.as_raw_fd(), number) })?;
    }
    Ok(())
}

/// Closes every descriptor above the standard ones that is not in `keep`.
pub(crate) fn close_all_but(keep: &[BorrowedFd<'_>]) -> Result<()> {
    let mut keep: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd() as u32).filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    let mut first = 3;
    for fd in keep {
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = fd + 1;
    }
    close_range(first, u32::MAX)
}

fn close_range(first: u32, last: u32) -> Result<()> {
    // SAFETY: only a fresh child calls this, and it never returns to the owners of what is closed.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Whether reads and writes wait.
pub(crate) fn set_nonblocking(fd: &impl AsRawFd, yes: bool) -> Result<()> {
    let mut value: c_int = yes.into();
    // SAFETY: `FIONBIO` reads one int.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONBIO, &raw mut value) }).map(drop)
}

/// How many bytes can be read at once.
pub(crate) fn readable_bytes(fd: &impl AsRawFd) -> usize {
    let mut value: c_int = 0;
    // SAFETY: `FIONREAD` writes one int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut value) };
    if result < 0 { 0 } else { value.max(0) as usize }
}

/// Whether something can be read at once. Of a terminal this is sure where [`readable_bytes`] is not: what was written
/// on the other side may still be on its way, which only `poll` and `read` wait for.
pub(crate) fn is_readable(fd: &impl AsRawFd) -> bool {
    let mut fds = [poll_fd(fd, true, false)];
    poll(&mut fds, 0).is_ok() && fds[0].revents & libc::POLLIN != 0
}

/// A copy of `program` in memory that no one can change.
pub(crate) fn sealed_copy(program: &Path) -> Result<OwnedFd> {
    const MFD_EXEC: c_uint = 0x10;
    let create = |flags| {
        // SAFETY: a constant string and numbers.
        check(unsafe { libc::memfd_create(c"pathbox".as_ptr(), flags) }).map(own)
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Before Linux 6.3 the explicit flag is unknown and executing always allowed.
    let copy = create(flags | MFD_EXEC).or_else(|_| create(flags))?;
    let mut file = std::fs::File::from(copy);
    std::io::copy(&mut std::fs::File::open(program)?, &mut file)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    for attempt in 0.. {
        // SAFETY: plain numbers.
        match check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }) {
            // A busy machine still holds pages that it has just copied.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && attempt < 100 => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            sealed => {
                sealed?;
                break;
            }
        }
    }
    Ok(file.into())
}

/// A pair of connected sockets that keep message boundaries.
pub(crate) fn packet_pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut pair = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two descriptors.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) })?;
    Ok((own(pair[0].into()), own(pair[1].into())))
}

/// Largest number of descriptors in one message.
pub(crate) const MAX_FDS: usize = 4;

// `cmsghdr` wants its alignment.
#[repr(align(8))]
struct ControlBuffer([u8; 64]);

/// Sends one message, with descriptors.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    assert!(fds.len() <= MAX_FDS, "at most {MAX_FDS} descriptors fit");
    let mut control = ControlBuffer([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: every pointer in the header outlives the call; the control buffer has room for `MAX_FDS`
    // descriptors (16 + 16 bytes) and its length is set to what is filled.
    let sent = unsafe {
        let mut header: libc::msghdr = zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if !fds.is_empty() {
            let length = size_of_val(fds) as c_uint;
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(length) as _;
            let entry = libc::CMSG_FIRSTHDR(&raw const header);
            (*entry).cmsg_level = libc::SOL_SOCKET;
            (*entry).cmsg_type = libc::SCM_RIGHTS;
            (*entry).cmsg_len = libc::CMSG_LEN(length) as _;
            let slots = libc::CMSG_DATA(entry).cast::<RawFd>();
            for (index, fd) in fds.iter().enumerate() {
                slots.add(index).write_unaligned(fd.as_raw_fd());
            }
        }
        libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL)
    };
    check(sent as i64).map(drop)
}

/// Receives one message into `buffer`: its length (0: the other side is gone) and descriptors.
///
/// A message that does not fit is an error (`EMSGSIZE`), not a cut one.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let received = receive_in_part(socket, buffer)?;
    match received.is_cut {
        true => Err(Error::from_raw_os_error(libc::EMSGSIZE)),
        false => Ok((received.length, received.fds)),
    }
}

/// One message, or as much of it as fits.
#[derive(Debug)]
pub(crate) struct Received {
    /// Bytes; 0 when the other side is gone.
    pub(crate) length: usize,
    /// Those that this process had room for.
    pub(crate) fds: Vec<OwnedFd>,
    /// Descriptors are missing: this process has as many as it may.
    pub(crate) is_cut: bool,
}

/// Receives one message into `buffer`. Bytes that do not fit are an error (`EMSGSIZE`), descriptors are not.
pub(crate) fn receive_in_part(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received> {
    let mut control = ControlBuffer([0; 64]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut fds = Vec::new();
    // SAFETY: every pointer in the header outlives the call. The kernel writes well-formed control messages,
    // and each descriptor in them is new and ours.
    let (length, flags) = unsafe {
        let mut header: libc::msghdr = zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.0.as_mut_ptr().cast();
        header.msg_controllen = control.0.len() as _;
        let length =
            check(libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) as i64)?;
        let mut entry = libc::CMSG_FIRSTHDR(&raw const header);
        while !entry.is_null() {
            if (*entry).cmsg_level == libc::SOL_SOCKET && (*entry).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*entry).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let slots = libc::CMSG_DATA(entry).cast::<RawFd>();
                for index in 0..count {
                    fds.push(own(slots.add(index).read_unaligned().into()));
                }
            }
            entry = libc::CMSG_NXTHDR(&raw const header, entry);
        }
        (length as usize, header.msg_flags)
    };
    if flags & libc::MSG_TRUNC != 0 {
        return Err(Error::from_raw_os_error(libc::EMSGSIZE));
    }
    Ok(Received { length, fds, is_cut: flags & libc::MSG_CTRUNC != 0 })
}

/// A descriptor that the runtime waits on. Call it inside a runtime.
pub(crate) fn register(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>> {
    set_nonblocking(&fd, true)?;
    // SAFETY: an `OwnedFd` gives the same descriptor every time and keeps it open until it is dropped.
    unsafe { AsyncFd::register(fd) }.map_err(|error| error.into_parts().1)
}

/// Ends a socket in both directions, no matter who else holds it.
pub(crate) fn hang_up(socket: &impl AsRawFd) {
    // SAFETY: plain numbers.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

// ---------------------------------------------------------------- terminals

/// A new terminal: the controlling side and the program's side.
pub(crate) fn open_terminal(cols: u16, rows: u16) -> Result<(OwnedFd, OwnedFd)> {
    // SAFETY: a constant path; the ioctls take a pointer to an int or numbers.
    let (main, peer) = unsafe {
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        let main = own(check(libc::open(c"/dev/ptmx".as_ptr(), flags))?);
        let mut locked: c_int = 0;
        check(libc::ioctl(main.as_raw_fd(), libc::TIOCSPTLCK, &raw mut locked))?;
        let peer = own(check(libc::ioctl(main.as_raw_fd(), libc::TIOCGPTPEER, flags))?);
        (main, peer)
    };
    resize_terminal(&main, cols, rows)?;
    Ok((main, peer))
}

/// Tells a terminal its size.
pub(crate) fn resize_terminal(main: &impl AsRawFd, cols: u16, rows: u16) -> Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `TIOCSWINSZ` reads one `winsize`.
    check(unsafe { libc::ioctl(main.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }).map(drop)
}

// ---------------------------------------------------------------- file systems

/// Attributes of a mount.
pub(crate) mod attr {
    /// Nothing can be written.
    pub(crate) const READ_ONLY: u64 = 0x1;
    /// Set-user-id bits do nothing.
    pub(crate) const NO_SUID: u64 = 0x2;
    /// Device files do nothing.
    pub(crate) const NO_DEV: u64 = 0x4;
    /// Nothing can be executed.
    pub(crate) const NO_EXEC: u64 = 0x8;
}

const AT_RECURSIVE: c_uint = 0x8000;

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

fn mount_setattr(at: RawFd, path: &CStr, flags: c_uint, set: u64, propagation: u64) -> Result<()> {
    let attr = MountAttr { set, clear: 0, propagation, user_namespace: 0 };
    // SAFETY: the structure's size goes with it.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            at,
            path.as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Cuts every mount that this mount namespace has from the one it was copied from.
pub(crate) fn make_mounts_private() -> Result<()> {
    mount_setattr(libc::AT_FDCWD, c"/", AT_RECURSIVE, 0, libc::MS_PRIVATE)
}

/// Adds attributes to the mount at `path`, not to those below it.
pub(crate) fn add_mount_attributes(path: &Path, set: u64) -> Result<()> {
    mount_setattr(libc::AT_FDCWD, &c_path(path)?, 0, set, 0)
}

/// Where something is, without opening it.
pub(crate) fn locate(path: &Path) -> Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: a terminated path that outlives the call.
    check(unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) }).map(own)
}

/// A copy of the mounts at and below `source`, attached nowhere yet, with attributes added to all of them.
pub(crate) fn clone_mount(source: BorrowedFd<'_>, set: u64) -> Result<OwnedFd> {
    const OPEN_TREE_CLONE: c_uint = 1;
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as c_uint | libc::AT_EMPTY_PATH as c_uint | AT_RECURSIVE;
    // SAFETY: a constant string and numbers.
    let tree = check(unsafe { libc::syscall(libc::SYS_open_tree, source.as_raw_fd(), c"".as_ptr(), flags) })
        .map(own)?;
    mount_setattr(tree.as_raw_fd(), c"", AT_RECURSIVE | libc::AT_EMPTY_PATH as c_uint, set, 0)?;
    Ok(tree)
}

/// A new file system, attached nowhere yet.
pub(crate) fn new_filesystem(kind: &CStr, options: &[(&CStr, &str)], attributes: u64) -> Result<OwnedFd> {
    const CLOEXEC: c_uint = 1;
    const SET_STRING: c_uint = 1;
    const CREATE: c_uint = 6;
    // SAFETY: terminated strings that outlive the calls, and numbers.
    unsafe {
        let context = own(check(libc::syscall(libc::SYS_fsopen, kind.as_ptr(), CLOEXEC))?);
        for (key, value) in options {
            let value = CString::new(*value).map_err(|_| Error::from_raw_os_error(libc::EINVAL))?;
            check(libc::syscall(
                libc::SYS_fsconfig,
                context.as_raw_fd(),
                SET_STRING,
                key.as_ptr(),
                value.as_ptr(),
                0,
            ))?;
        }
        let nothing = ptr::null::<u8>();
        check(libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, nothing, nothing, 0))?;
        check(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), CLOEXEC, attributes as c_uint)).map(own)
    }
}

/// Attaches a mount to the file system.
pub(crate) fn attach_mount(mount: BorrowedFd<'_>, path: &Path) -> Result<()> {
    const FROM_EMPTY_PATH: c_uint = 4;
    let path = c_path(path)?;
    // SAFETY: terminated strings and numbers.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            path.as_ptr(),
            FROM_EMPTY_PATH,
        )
    })
    .map(drop)
}

/// Makes the mount at the working directory the root, and lets go of the old one.
pub(crate) fn enter_root() -> Result<()> {
    // SAFETY: constant strings.
    unsafe {
        check(libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()))?;
        check(libc::umount2(c".".as_ptr(), libc::MNT_DETACH)).map(drop)
    }
}

/// Names this machine, as its UTS namespace sees it.
pub(crate) fn set_host_name(name: &str) -> Result<()> {
    // SAFETY: pointer and length of one slice.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// Brings the loopback device of this network namespace up.
pub(crate) fn loopback_up() -> Result<()> {
    // SAFETY: an all-zero `ifreq` is valid, and the call reads it only.
    unsafe {
        let socket = own(check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?);
        let mut request: libc::ifreq = zeroed();
        request.ifr_name[0] = b'l' as _;
        request.ifr_name[1] = b'o' as _;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as _;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request)).map(drop)
    }
}

/// Bytes in use in the file system at `path`.
pub(crate) fn used_bytes(path: &Path) -> Result<u64> {
    let path = c_path(path)?;
    // SAFETY: a terminated path and a structure that outlive the call.
    unsafe {
        let mut stat: libc::statfs = zeroed();
        check(libc::statfs(path.as_ptr(), &raw mut stat))?;
        Ok((stat.f_blocks - stat.f_bfree) * stat.f_bsize as u64)
    }
}

/// Whether a descriptor is in a `/proc`, whose files are doors to processes.
pub(crate) fn is_on_proc(fd: &impl AsRawFd) -> Result<bool> {
    // SAFETY: the structure outlives the call.
    unsafe {
        let mut stat: libc::statfs = zeroed();
        check(libc::fstatfs(fd.as_raw_fd(), &raw mut stat))?;
        // Another C library has other types.
        Ok(stat.f_type as u64 == libc::PROC_SUPER_MAGIC as u64)
    }
}

// ---------------------------------------------------------------- watching files

/// A descriptor that reports changes of files.
pub(crate) fn inotify() -> Result<OwnedFd> {
    // SAFETY: plain numbers.
    check(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) }).map(own)
}

/// Watches one directory; gives the number that its events carry.
pub(crate) fn inotify_add(inotify: &impl AsRawFd, path: &Path, events: u32) -> Result<i32> {
    let path = c_path(path)?;
    // SAFETY: a terminated path that outlives the call.
    check(unsafe { libc::inotify_add_watch(inotify.as_raw_fd(), path.as_ptr(), events) }).map(|wd| wd as i32)
}

/// Ends a watch by its number.
pub(crate) fn inotify_remove(inotify: &impl AsRawFd, number: i32) -> Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::inotify_rm_watch(inotify.as_raw_fd(), number) }).map(drop)
}
