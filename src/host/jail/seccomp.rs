//! The system calls that a sandbox may use: an allow list, each entry with its reason.
//!
//! Several filters are loaded. The first answers `ENOSYS` to everything that is not on the list, so that a C
//! library takes its fall-back path (`clone3`, `io_uring`, whatever comes next year). The second answers
//! `EINVAL`, as kernels do that do not know an argument, the third success to what programs may ask for and no one
//! needs, the last `EPERM` to calls that are known to be dangerous or that are dangerous with certain arguments; where
//! several have an answer the kernel takes the one that was loaded last. Calls of another architecture
//! (32-bit ones) kill the process, x32 ones are unknown numbers.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// What varies between hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Variant {
    /// For tiers without namespaces, where the machine's network, queues and processes are in reach: no socket of any
    /// family (socket pairs stay), no System V or POSIX queues, no limits or priorities of other processes.
    pub(crate) no_namespaces: bool,
    /// Nothing that belongs to no process (`memfd`, shared anonymous maps, what System V has): where no
    /// control group counts it, no one else can. Processors are what they were given, since nothing else bounds their time.
    pub(crate) no_groups: bool,
    /// No watching of files: where the files are those of others, or nothing bounds how many watches there are.
    pub(crate) no_watches: bool,
    /// Where other files of the machine belong to the sandbox's user: times, owners and permissions stay as they are
    /// (Landlock does not know them), and so does what older kernels let be changed around it.
    pub(crate) own_files: bool,
    /// Where Landlock keeps no signals in: none to everyone.
    pub(crate) no_broadcast: bool,
}

/// The filters, in the order in which they are loaded.
#[derive(Debug, Clone)]
pub(crate) struct Filters(Vec<BpfProgram>);

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

impl Filters {
    /// Builds the programs. Done once; loading them costs about half a millisecond.
    ///
    /// # Errors
    /// On an architecture without a table.
    pub(crate) fn build(variant: Variant) -> Result<Self, seccompiler::BackendError> {
        let arch = std::env::consts::ARCH.try_into()?;
        let mut allowed: Rules =
            ALLOWED.iter().flat_map(|(_, calls)| calls.iter()).map(|call| (*call, vec![])).collect();
        if variant.no_namespaces {
            // Programs enter a domain of their own before they are executed; it can only take away.
            allowed.insert(libc::SYS_landlock_restrict_self, vec![]);
        }
        let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
        let mut filters = vec![SeccompFilter::new(allowed, unknown, SeccompAction::Allow, arch)?.try_into()?];
        for (calls, errno) in [
            (unknown_arguments()?, libc::EINVAL),
            (ignored_calls(variant)?, 0),
            (refused_calls(variant)?, libc::EPERM),
        ] {
            let answer = SeccompAction::Errno(errno as u32);
            filters.push(SeccompFilter::new(calls, SeccompAction::Allow, answer, arch)?.try_into()?);
        }
        Ok(Self(filters))
    }

    /// Binds this process and all its descendants for good. Needs `no_new_privileges`.
    pub(crate) fn load(&self) -> Result<(), seccompiler::Error> {
        self.0.iter().try_for_each(|program| seccompiler::apply_filter(program))
    }
}

/// Arguments that are answered as if they did not exist.
fn unknown_arguments() -> Result<Rules, seccompiler::BackendError> {
    const RWF_NOWAIT: u64 = 8;
    let fcntl = vec![none_of(1, FCNTL)?];
    let prctl = vec![none_of(0, PRCTL)?];
    // Tells whether someone else has read a file a moment ago.
    let preadv2 = vec![rule(vec![when(5, Op::MaskedEq(RWF_NOWAIT), RWF_NOWAIT)?])?];
    // A table of descriptors that no look at the process shows.
    let close_range = vec![rule(vec![when(2, Op::MaskedEq(2), 2)?])?];
    // Of the internet families only TCP and UDP: each other protocol is a parser of its own, and some a module that the kernel
    // loads for anyone who asks.
    let mut socket = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let of = |mut conditions: Vec<SeccompCondition>| {
            conditions.push(when(0, Op::Eq, family as u64)?);
            rule(conditions)
        };
        let protocols = [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP];
        socket.push(of(protocols
            .iter()
            .map(|known| when(2, Op::Ne, *known as u64))
            .collect::<Result<_, _>>()?)?);
        for kind in [4, 8] {
            socket.push(of(vec![when(1, Op::MaskedEq(kind), kind)?])?);
        }
    }
    Ok(BTreeMap::from([
        (libc::SYS_fcntl, fcntl),
        (libc::SYS_prctl, prctl),
        (libc::SYS_socket, socket),
        (libc::SYS_preadv2, preadv2),
        (libc::SYS_close_range, close_range),
    ]))
}

/// Calls that succeed and do nothing.
fn ignored_calls(variant: Variant) -> Result<Rules, seccompiler::BackendError> {
    // A socket's buffer is counted by no limit but a control group's; its default serves everyone.
    let buffers = [libc::SO_SNDBUF, libc::SO_RCVBUF]
        .iter()
        .map(|option| rule(vec![when(1, Op::Eq, libc::SOL_SOCKET as u64)?, when(2, Op::Eq, *option as u64)?]))
        .collect::<Result<_, _>>()?;
    // Both throw out of memory what others have just read.
    let drop_cache = vec![rule(vec![when(3, Op::Eq, libc::POSIX_FADV_DONTNEED as u64)?])?];
    let page_out = vec![rule(vec![when(2, Op::Eq, libc::MADV_PAGEOUT as u64)?])?];
    let mut calls = BTreeMap::from([
        (libc::SYS_setsockopt, buffers),
        (libc::SYS_fadvise64, drop_cache),
        (libc::SYS_madvise, page_out),
        // The disks of the whole machine, while nothing that a sandbox writes is to last.
        (libc::SYS_sync, vec![]),
        (libc::SYS_syncfs, vec![]),
        (libc::SYS_sync_file_range, vec![]),
    ]);
    if variant.no_groups {
        // The processors of a sandbox are what bounds its time.
        calls.insert(libc::SYS_sched_setaffinity, vec![]);
    }
    if variant.own_files {
        // Refusing them ends `shutil.copy`, `tar` and package installers half way.
        calls.extend(METADATA.iter().map(|call| (*call, vec![])));
    }
    Ok(calls)
}

/// Calls that are refused with `EPERM`, with the arguments that make them so (none: always).
fn refused_calls(variant: Variant) -> Result<Rules, seccompiler::BackendError> {
    let mut calls: Rules =
        REFUSED.iter().flat_map(|(_, calls)| calls.iter()).map(|call| (*call, vec![])).collect();
    calls.insert(libc::SYS_clone, refused_clones()?);
    calls.insert(libc::SYS_socket, refused_sockets(variant)?);
    // A pair of another family fails only after its sockets have been made.
    calls.insert(libc::SYS_socketpair, vec![rule(vec![when(0, Op::Ne, libc::AF_UNIX as u64)?])?]);

    // Both push characters into a terminal as if someone had typed them.
    let ioctl = [libc::TIOCSTI, libc::TIOCLINUX]
        .iter()
        .map(|command| rule(vec![when(1, Op::Eq, *command as u32 as u64)?]))
        .collect::<Result<_, _>>()?;
    calls.insert(libc::SYS_ioctl, ioctl);

    // Programs of the kernel's packet filter, whose memory the whole machine shares, and pages that a socket holds.
    let options =
        [SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF, SO_ZEROCOPY]
            .iter()
            .map(|option| rule(vec![when(1, Op::Eq, libc::SOL_SOCKET as u64)?, when(2, Op::Eq, *option)?]))
            .collect::<Result<_, _>>()?;
    let mut options: Vec<SeccompRule> = options;
    // There are 4,096 labels on the machine; the other puts a parser of its own (TLS and others) on a connection.
    for (level, option) in [(libc::IPPROTO_IPV6, IPV6_FLOWLABEL_MGR), (libc::IPPROTO_TCP, TCP_ULP)] {
        options.push(rule(vec![when(1, Op::Eq, level as u64)?, when(2, Op::Eq, option)?])?);
    }
    calls.insert(libc::SYS_setsockopt, options);
    // Further filters of its own are such programs as well.
    calls.insert(libc::SYS_seccomp, vec![]);
    // Huge pages come out of a pool of the machine's.
    calls.insert(libc::SYS_mmap, vec![masked(3, libc::MAP_HUGETLB as u64)?]);
    calls.insert(libc::SYS_shmget, vec![masked(2, SHM_HUGETLB)?]);
    calls.insert(libc::SYS_memfd_create, vec![masked(1, MFD_HUGETLB)?]);

    if variant.no_watches {
        calls.extend(WATCHES.iter().map(|call| (*call, vec![])));
    }
    if variant.own_files {
        // What is left of metadata, and of what Landlock learned only with its third version.
        calls.extend(OWN_FILES.iter().map(|call| (*call, vec![])));
    }
    if variant.no_broadcast {
        calls.insert(libc::SYS_kill, vec![rule(vec![when(0, Op::Eq, u64::from(u32::MAX))?])?]);
    }
    if variant.no_namespaces {
        calls.extend(IPC.iter().map(|call| (*call, vec![])));
    }
    calls.extend(refused_to_others(variant)?);
    if variant.no_groups {
        for call in [libc::SYS_memfd_create, libc::SYS_shmget, libc::SYS_semget, libc::SYS_msgget] {
            calls.insert(call, vec![]);
        }
        let shared_anonymous = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as u64;
        calls.entry(libc::SYS_mmap).or_default().push(masked(3, shared_anonymous)?);
    }
    Ok(calls)
}

/// Kinds of processes and threads that are not to be.
fn refused_clones() -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    // A namespace of one's own gives capabilities and with them most of the kernel's attack surface.
    let mut clones = [
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWCGROUP,
    ]
    .iter()
    .map(|flag| masked(0, *flag as u64))
    .collect::<Result<Vec<_>, _>>()?;
    // A thread with a table of descriptors of its own: they would be counted nowhere. No C library makes one.
    let (thread, files) = (libc::CLONE_THREAD as u64, libc::CLONE_FILES as u64);
    clones.push(rule(vec![when(0, Op::MaskedEq(thread | files), thread)?])?);
    Ok(clones)
}

/// `AF_VSOCK` reaches the hypervisor, `AF_ALG` and netfilter netlink large parsers, `AF_PACKET` raw frames. Only
/// Unix, IPv4, IPv6 and route netlink (`getifaddrs`) stay, and these end at the sandbox's own loopback.
fn refused_sockets(variant: Variant) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    if variant.no_namespaces {
        return Ok(vec![]);
    }
    let families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    let other = families.iter().map(|family| when(0, Op::Ne, *family as u64)).collect::<Result<_, _>>()?;
    let netlink = when(0, Op::Eq, libc::AF_NETLINK as u64)?;
    let not_route = when(2, Op::Ne, libc::NETLINK_ROUTE as u64)?;
    Ok(vec![rule(other)?, rule(vec![netlink, not_route])?])
}

/// With another process's number these change that process, when it is of the same user. Zero means the caller.
///
/// With namespaces the agent alone is not the sandbox's own: without descriptors or processor time it counts no memory.
/// Without them the host is in reach: a CPU limit of zero ends it as surely as a signal.
fn refused_to_others(variant: Variant) -> Result<Rules, seccompiler::BackendError> {
    const AGENT: u64 = 1;
    let other = |argument| match variant.no_namespaces {
        true => when(argument, Op::Ne, 0),
        false => when(argument, Op::Eq, AGENT),
    };
    let mut calls = Rules::new();
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setattr,
    ] {
        calls.insert(call, vec![rule(vec![other(0)?])?]);
    }
    // Groups and users hold other processes.
    for (call, kind) in [(libc::SYS_setpriority, libc::PRIO_PROCESS as u64), (libc::SYS_ioprio_set, 1)] {
        calls.insert(call, vec![rule(vec![when(0, Op::Ne, kind)?])?, rule(vec![other(1)?])?]);
    }
    Ok(calls)
}

fn masked(argument: u8, bits: u64) -> Result<SeccompRule, seccompiler::BackendError> {
    rule(vec![when(argument, Op::MaskedEq(bits), bits)?])
}

/// Matches an argument that is not on the list, such as one that a newer kernel brings.
fn none_of(argument: u8, known: &[i32]) -> Result<SeccompRule, seccompiler::BackendError> {
    rule(known.iter().map(|known| when(argument, Op::Ne, *known as u64)).collect::<Result<_, _>>()?)
}

/// Commands on descriptors. Not among them: locks of open files, which are counted nowhere and listed for the whole machine;
/// leases, which hold up anyone else who opens the file; notifications, which are watches.
const FCNTL: &[i32] = &[
    libc::F_DUPFD,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GETLK,
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_SETOWN,
    libc::F_GETOWN,
    F_SETSIG,
    F_GETSIG,
    F_SETOWN_EX,
    F_GETOWN_EX,
    libc::F_GETLEASE,
    F_DUPFD_QUERY,
    libc::F_DUPFD_CLOEXEC,
    libc::F_SETPIPE_SZ,
    libc::F_GETPIPE_SZ,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// Options of a process that change that process alone. Not among them: filters of its own; a group of its own for the
/// scheduler, which keeps all others off the other half of a processor's core; a table of its own for futexes, up to 2 GiB
/// that no process is seen to have; names of maps, which are counted nowhere.
const PRCTL: &[i32] = &[
    libc::PR_SET_PDEATHSIG,
    libc::PR_GET_PDEATHSIG,
    libc::PR_SET_DUMPABLE,
    libc::PR_GET_DUMPABLE,
    libc::PR_SET_KEEPCAPS,
    libc::PR_GET_KEEPCAPS,
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_GET_SECCOMP,
    libc::PR_CAPBSET_READ,
    libc::PR_CAPBSET_DROP,
    libc::PR_GET_TSC,
    libc::PR_GET_SECUREBITS,
    libc::PR_SET_TIMERSLACK,
    libc::PR_GET_TIMERSLACK,
    libc::PR_SET_CHILD_SUBREAPER,
    libc::PR_GET_CHILD_SUBREAPER,
    libc::PR_SET_NO_NEW_PRIVS,
    libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_SET_THP_DISABLE,
    libc::PR_GET_THP_DISABLE,
    libc::PR_CAP_AMBIENT,
    libc::PR_GET_SPECULATION_CTRL,
    libc::PR_SET_SPECULATION_CTRL,
    // Of arm64: lengths of vectors, keys of signed pointers, tagged addresses.
    50,
    51,
    54,
    55,
    56,
    63,
    64,
    // Maps that can no longer be made executable.
    65,
    66,
];

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
const F_DUPFD_QUERY: i32 = 1027;
const TCP_ULP: u64 = 31;
const SO_ATTACH_FILTER: u64 = 26;
const SO_ATTACH_BPF: u64 = 50;
const SO_ATTACH_REUSEPORT_CBPF: u64 = 51;
const SO_ATTACH_REUSEPORT_EBPF: u64 = 52;
const SO_ZEROCOPY: u64 = 60;
const IPV6_FLOWLABEL_MGR: u64 = 32;
const SHM_HUGETLB: u64 = 0o4000;
const MFD_HUGETLB: u64 = 4;

/// Creates a watch; adding to an existing one stays allowed, because the agent has one.
#[cfg(target_arch = "x86_64")]
const WATCHES: &[i64] = &[libc::SYS_inotify_init, libc::SYS_inotify_init1];
#[cfg(not(target_arch = "x86_64"))]
const WATCHES: &[i64] = &[libc::SYS_inotify_init1];

/// Permissions, times and owners.
const METADATA: &[i64] = &[
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];

/// What else changes a file that was not opened for writing, or tells about one.
const OWN_FILES: &[i64] = &[
    libc::SYS_truncate,
    libc::SYS_mincore,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
];

fn when(argument: u8, op: Op, value: u64) -> Result<SeccompCondition, seccompiler::BackendError> {
    // The kernel reads these arguments as 32-bit numbers, so the filter must not look at the upper half.
    SeccompCondition::new(argument, Len::Dword, op, value)
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, seccompiler::BackendError> {
    SeccompRule::new(conditions)
}

type Group = (&'static str, &'static [i64]);

/// What makes or names a queue or a segment. Where there is no IPC namespace, they are the machine's.
const IPC: &[i64] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Reason and calls.
const ALLOWED: &[Group] = &[
    (
        "read and write what is open; the mounts and descriptors decide what can be",
        &[
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_readv,
            libc::SYS_writev,
            libc::SYS_pread64,
            libc::SYS_pwrite64,
            libc::SYS_preadv,
            libc::SYS_pwritev,
            libc::SYS_preadv2,
            libc::SYS_pwritev2,
            libc::SYS_lseek,
            libc::SYS_sendfile,
            libc::SYS_splice,
            libc::SYS_tee,
            libc::SYS_copy_file_range,
            libc::SYS_readahead,
            libc::SYS_fadvise64,
            libc::SYS_close,
            libc::SYS_close_range,
            libc::SYS_dup,
            libc::SYS_dup3,
            libc::SYS_fcntl,
            libc::SYS_ioctl,
            libc::SYS_flock,
            libc::SYS_fsync,
            libc::SYS_fdatasync,
            libc::SYS_sync_file_range,
            libc::SYS_sync,
            libc::SYS_syncfs,
            libc::SYS_pipe2,
        ],
    ),
    (
        "open and look at files, inside the sandbox's own root",
        &[
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_newfstatat,
            libc::SYS_fstat,
            libc::SYS_statx,
            libc::SYS_statfs,
            libc::SYS_fstatfs,
            libc::SYS_faccessat,
            libc::SYS_faccessat2,
            libc::SYS_readlinkat,
            libc::SYS_getdents64,
            libc::SYS_getcwd,
            libc::SYS_chdir,
            libc::SYS_fchdir,
            libc::SYS_umask,
            libc::SYS_inotify_init1,
            libc::SYS_inotify_add_watch,
            libc::SYS_inotify_rm_watch,
        ],
    ),
    (
        "change files; quotas and read-only mounts bound it",
        &[
            libc::SYS_mkdirat,
            libc::SYS_mknodat,
            libc::SYS_unlinkat,
            libc::SYS_renameat,
            libc::SYS_renameat2,
            libc::SYS_linkat,
            libc::SYS_symlinkat,
            libc::SYS_truncate,
            libc::SYS_ftruncate,
            libc::SYS_fallocate,
            libc::SYS_fchmod,
            libc::SYS_fchmodat,
            libc::SYS_fchown,
            libc::SYS_fchownat,
            libc::SYS_utimensat,
            libc::SYS_getxattr,
            libc::SYS_lgetxattr,
            libc::SYS_fgetxattr,
            libc::SYS_listxattr,
            libc::SYS_llistxattr,
            libc::SYS_flistxattr,
            libc::SYS_setxattr,
            libc::SYS_lsetxattr,
            libc::SYS_fsetxattr,
            libc::SYS_removexattr,
            libc::SYS_lremovexattr,
            libc::SYS_fremovexattr,
        ],
    ),
    (
        "memory of one's own",
        &[
            libc::SYS_brk,
            libc::SYS_mmap,
            libc::SYS_munmap,
            libc::SYS_mremap,
            libc::SYS_mprotect,
            libc::SYS_madvise,
            libc::SYS_mincore,
            libc::SYS_msync,
            libc::SYS_mlock,
            libc::SYS_mlock2,
            libc::SYS_munlock,
            libc::SYS_mlockall,
            libc::SYS_munlockall,
            libc::SYS_membarrier,
            libc::SYS_pkey_alloc,
            libc::SYS_pkey_free,
            libc::SYS_pkey_mprotect,
            libc::SYS_get_mempolicy, // OpenBLAS and numactl ask
            libc::SYS_memfd_create,
        ],
    ),
    (
        "processes and threads; flags of `clone` that make namespaces are refused below",
        &[
            libc::SYS_clone,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_exit,
            libc::SYS_exit_group,
            libc::SYS_wait4,
            libc::SYS_waitid,
            libc::SYS_getpid,
            libc::SYS_getppid,
            libc::SYS_gettid,
            libc::SYS_getpgid,
            libc::SYS_setpgid,
            libc::SYS_getsid,
            libc::SYS_setsid,
            libc::SYS_set_tid_address,
            libc::SYS_set_robust_list,
            libc::SYS_get_robust_list,
            libc::SYS_rseq,
            libc::SYS_futex,
            libc::SYS_futex_waitv,
            libc::SYS_pidfd_open,
            libc::SYS_pidfd_send_signal,
            libc::SYS_prctl,
            libc::SYS_seccomp, // until the last filter is loaded, which refuses it
            libc::SYS_restart_syscall,
        ],
    ),
    (
        "users and limits as they are; nothing can be gained without capabilities",
        &[
            libc::SYS_getuid,
            libc::SYS_geteuid,
            libc::SYS_getgid,
            libc::SYS_getegid,
            libc::SYS_getresuid,
            libc::SYS_getresgid,
            libc::SYS_getgroups,
            libc::SYS_setuid,
            libc::SYS_setgid,
            libc::SYS_setreuid,
            libc::SYS_setregid,
            libc::SYS_setresuid,
            libc::SYS_setresgid,
            libc::SYS_setgroups,
            libc::SYS_setfsuid,
            libc::SYS_setfsgid,
            libc::SYS_capget,
            libc::SYS_capset,
            libc::SYS_getrlimit,
            libc::SYS_setrlimit,
            libc::SYS_prlimit64,
            libc::SYS_getrusage,
            libc::SYS_getpriority,
            libc::SYS_setpriority,
            libc::SYS_ioprio_get,
            libc::SYS_ioprio_set,
        ],
    ),
    (
        "scheduling of one's own threads; real-time classes need a capability",
        &[
            libc::SYS_sched_yield,
            libc::SYS_sched_getaffinity,
            libc::SYS_sched_setaffinity,
            libc::SYS_sched_getparam,
            libc::SYS_sched_setparam,
            libc::SYS_sched_getscheduler,
            libc::SYS_sched_setscheduler,
            libc::SYS_sched_getattr,
            libc::SYS_sched_setattr,
            libc::SYS_sched_get_priority_max,
            libc::SYS_sched_get_priority_min,
            libc::SYS_sched_rr_get_interval,
            libc::SYS_getcpu,
        ],
    ),
    (
        "signals, which end at the process namespace",
        &[
            libc::SYS_kill,
            libc::SYS_tkill,
            libc::SYS_tgkill,
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigreturn,
            libc::SYS_rt_sigpending,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_rt_sigqueueinfo,
            libc::SYS_rt_tgsigqueueinfo,
            libc::SYS_rt_sigsuspend,
            libc::SYS_sigaltstack,
            libc::SYS_signalfd4,
        ],
    ),
    (
        "time and timers; setting clocks is refused below",
        &[
            libc::SYS_clock_gettime,
            libc::SYS_clock_getres,
            libc::SYS_clock_nanosleep,
            libc::SYS_nanosleep,
            libc::SYS_gettimeofday,
            libc::SYS_times,
            libc::SYS_getitimer,
            libc::SYS_setitimer,
            libc::SYS_timer_create,
            libc::SYS_timer_settime,
            libc::SYS_timer_gettime,
            libc::SYS_timer_getoverrun,
            libc::SYS_timer_delete,
            libc::SYS_timerfd_create,
            libc::SYS_timerfd_settime,
            libc::SYS_timerfd_gettime,
        ],
    ),
    (
        "waiting for descriptors: every event loop",
        &[
            libc::SYS_ppoll,
            libc::SYS_pselect6,
            libc::SYS_epoll_create1,
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_eventfd2,
        ],
    ),
    (
        "sockets; families are filtered below and the network namespace has loopback only",
        &[
            libc::SYS_socket,
            libc::SYS_socketpair,
            libc::SYS_bind,
            libc::SYS_listen,
            libc::SYS_accept,
            libc::SYS_accept4,
            libc::SYS_connect,
            libc::SYS_getsockname,
            libc::SYS_getpeername,
            libc::SYS_sendto,
            libc::SYS_recvfrom,
            libc::SYS_sendmsg,
            libc::SYS_recvmsg,
            libc::SYS_sendmmsg,
            libc::SYS_recvmmsg,
            libc::SYS_shutdown,
            libc::SYS_setsockopt,
            libc::SYS_getsockopt,
        ],
    ),
    ("System V and POSIX IPC, which end at the IPC namespace", IPC),
    (
        "queues and segments that are there",
        &[
            libc::SYS_shmdt,
            libc::SYS_mq_timedsend,
            libc::SYS_mq_timedreceive,
            libc::SYS_mq_notify,
            libc::SYS_mq_getsetattr,
        ],
    ),
    ("what kind of machine this is", &[libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_getrandom]),
    ("the same as above under their older names", OLDER_NAMES),
];

#[cfg(target_arch = "x86_64")]
const OLDER_NAMES: &[i64] = &[
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_getdents,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_mknod,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_signalfd,
    libc::SYS_inotify_init,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_getpgrp,
    libc::SYS_pause,
    libc::SYS_alarm,
    libc::SYS_time,
    libc::SYS_arch_prctl, // thread-local storage
];

#[cfg(not(target_arch = "x86_64"))]
const OLDER_NAMES: &[i64] = &[];

/// `libc` has it for some C libraries only.
const KEXEC_FILE_LOAD: i64 = if cfg!(target_arch = "aarch64") { 294 } else { 320 };

/// Reason and calls.
const REFUSED: &[Group] = &[
    (
        "change what the sandbox sees",
        &[
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_chroot,
            libc::SYS_open_tree,
            libc::SYS_move_mount,
            libc::SYS_fsopen,
            libc::SYS_fsconfig,
            libc::SYS_fsmount,
            libc::SYS_fspick,
            libc::SYS_mount_setattr,
            libc::SYS_unshare,
            libc::SYS_setns,
        ],
    ),
    (
        "look into or change other processes",
        &[
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_process_madvise,
            libc::SYS_pidfd_getfd,
            libc::SYS_kcmp,
        ],
    ),
    (
        "a second way to make system calls that no filter sees",
        &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register],
    ),
    ("keyrings have no namespace", &[libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key]),
    (
        "kernel attack surface that programs do not need",
        &[
            libc::SYS_userfaultfd,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_personality,
            libc::SYS_fanotify_init,
            libc::SYS_fanotify_mark,
            libc::SYS_lookup_dcookie,
            libc::SYS_remap_file_pages,
            libc::SYS_mbind,
            libc::SYS_set_mempolicy,
            libc::SYS_migrate_pages,
            libc::SYS_move_pages,
            libc::SYS_vhangup,
        ],
    ),
    ("open files by number, around the mounts", &[libc::SYS_open_by_handle_at, libc::SYS_name_to_handle_at]),
    (
        "administer the machine",
        &[
            libc::SYS_kexec_load,
            KEXEC_FILE_LOAD,
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_delete_module,
            libc::SYS_reboot,
            libc::SYS_swapon,
            libc::SYS_swapoff,
            libc::SYS_acct,
            libc::SYS_quotactl,
            libc::SYS_settimeofday,
            libc::SYS_clock_settime,
            libc::SYS_clock_adjtime,
            libc::SYS_adjtimex,
            libc::SYS_syslog,
            libc::SYS_sethostname,
            libc::SYS_setdomainname,
        ],
    ),
    ("the same on this architecture only", REFUSED_HERE),
];

#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
];

#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_both_allowed_and_always_refused() {
        let always: Vec<i64> = REFUSED.iter().flat_map(|(_, calls)| calls.iter().copied()).collect();
        for (reason, calls) in ALLOWED {
            for call in *calls {
                assert!(!always.contains(call), "{call} ({reason})");
            }
        }
    }

    #[test]
    fn every_variant_builds() {
        for bits in 0..32 {
            let bit = |n| bits & (1 << n) != 0;
            let variant = Variant {
                no_namespaces: bit(0),
                no_groups: bit(1),
                no_watches: bit(2),
                own_files: bit(3),
                no_broadcast: bit(4),
            };
            Filters::build(variant).expect("builds");
        }
    }

    /// arm64 has the kernel's generic numbers. Calls without a number there must be distinguished, and no others.
    #[test]
    fn calls_not_marked_as_older_have_a_number_on_every_architecture() {
        let Ok(generic) = std::fs::read_to_string("/usr/include/asm-generic/unistd.h") else { return };
        let numbered: Vec<&str> = generic
            .lines()
            .filter_map(|line| line.strip_prefix("#define __NR_")?.split_whitespace().next())
            .collect();
        assert!(numbered.len() > 250, "{} calls", numbered.len());
        let (code, _) = include_str!("seccomp.rs").split_once("#[cfg(test)]").expect("tests");
        let (mut marked, mut counts) = (None, [0, 0]);
        for line in code.lines().map(str::trim) {
            if line == "#[cfg(target_arch = \"x86_64\")]" {
                marked = Some("");
                continue;
            }
            let names = line.split("libc::SYS_").skip(1).map(|rest| {
                rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()
            });
            for name in names {
                // One list covers everything in it, together with some calls that are everywhere.
                let is_generic = numbered.contains(&name);
                assert!(is_generic || marked.is_some(), "{name} exists on one architecture only");
                counts[usize::from(is_generic)] += 1;
            }
            marked = match marked {
                Some("") if line.starts_with("const ") && !line.ends_with("];") => Some("];"),
                Some("];") if line != "];" => Some("];"),
                _ => None,
            };
        }
        assert!(counts[0] > 30 && counts[1] > 200, "{counts:?}");
    }
}
