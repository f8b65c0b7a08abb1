//! The visible file system of a sandbox, as plain data.
//!
//! Nothing of `/etc` that names this machine, its users or its secrets; what programs want from there is made up.

/// Inner user and group.
pub(crate) const USER: u32 = 1000;
/// Home directory inside.
pub(crate) const HOME: &str = "/home/user";
/// The machine's name inside.
pub(crate) const HOST_NAME: &str = "sandbox";

/// Directories that hold programs and libraries; a link stays a link.
pub(crate) const SYSTEM_DIRS: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32"];

/// Files and directories that programs need from `/etc`, none of them secret. Missing ones are skipped.
pub(crate) const ETC: &[&str] = &[
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/ca-certificates",
    "/etc/fonts",
    "/etc/mime.types",
];

/// Files of `/etc` that are made up: path and content.
pub(crate) const MADE_UP: &[(&str, &str)] = &[
    ("/etc/passwd", "root:x:0:0:root:/:/bin/false\nuser:x:1000:1000:user:/home/user:/bin/bash\n"),
    ("/etc/group", "root:x:0:\nuser:x:1000:\n"),
    ("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("/etc/hostname", "sandbox\n"),
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
];

/// Device files: the name inside, and what is bound there. `/dev/full` reads as `/dev/zero` does, but cannot be mapped:
/// a shared map of `/dev/zero` is memory that belongs to no process.
pub(crate) const DEVICES: &[(&str, &str)] = &[
    ("/dev/null", "/dev/null"),
    ("/dev/zero", "/dev/full"),
    ("/dev/full", "/dev/full"),
    ("/dev/random", "/dev/random"),
    ("/dev/urandom", "/dev/urandom"),
];

/// Terminals of a sandbox.
pub(crate) const TERMINALS: &str = "16";

/// Directories that a sandbox may watch, over all its inotify instances.
pub(crate) const WATCHES: u32 = 8192;

/// Settings of the IPC namespace: semaphore sets, queues and segments, as far as programs use them.
pub(crate) const QUEUE_LIMITS: &[(&str, &str)] = &[
    ("kernel/sem", "250 16000 32 64"),
    ("kernel/msgmni", "16"),
    ("kernel/msgmnb", "16384"),
    ("kernel/shmall", "4096"),
    ("kernel/shmmni", "64"),
    ("kernel/shm_rmid_forced", "1"),
    ("fs/mqueue/queues_max", "0"),
];

/// Settings of the network namespace: what one connection keeps in the kernel.
pub(crate) const SOCKET_LIMITS: &[(&str, &str)] =
    &[("net/ipv4/tcp_rmem", "4096 16384 262144"), ("net/ipv4/tcp_wmem", "4096 16384 262144")];

/// Directories that programs expect to be able to write to, besides the home directory and `/tmp`: kept in the home
/// directory's file system, and so in its quota.
pub(crate) const WORK_DIRS: &[&str] = &["/app", "/workspace", "/data", "/code", "/mnt/data"];

/// Links in `/dev`: name and target.
pub(crate) const DEVICE_LINKS: &[(&str, &str)] = &[
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/ptmx", "pts/ptmx"),
];

/// Parts of `/proc` that concern the whole machine and can be written: made read-only.
pub(crate) const PROC_READ_ONLY: &[&str] = &["/proc/sys", "/proc/irq", "/proc/fs"];

/// Files of `/proc` that reveal the whole machine: emptied.
pub(crate) const PROC_EMPTY: &[&str] = &[
    "/proc/sysrq-trigger",
    "/proc/kcore",
    "/proc/kallsyms",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kmsg",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/latency_stats",
    "/proc/config.gz",
    "/proc/cmdline",
    "/proc/partitions",
    "/proc/diskstats",
    "/proc/modules",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/vmallocinfo",
    "/proc/slabinfo",
    "/proc/locks",
    "/proc/interrupts",
    "/proc/softirqs",
];

/// Directories of `/proc` about the machine's hardware: emptied.
pub(crate) const PROC_EMPTY_DIRS: &[&str] =
    &["/proc/acpi", "/proc/scsi", "/proc/asound", "/proc/driver", "/proc/bus", "/proc/pressure"];

/// Search path of programs, after the interpreters' own directories.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Directories of an interpreter that must not be bound because they contain far too much else.
pub(crate) const TOO_WIDE: &[&str] = &[
    "/", "/home", "/root", "/etc", "/var", "/tmp", "/dev", "/proc", "/sys", "/run", "/mnt", "/media", "/srv",
];
