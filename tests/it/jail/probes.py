"""Attempts to get out of a jail, one function each.

Run as `probes.py inside NAME...` or `probes.py outside NAME...`: prints `NAME result` for each, where result is `open`
when the attempt worked, else the name of the error. `outside` is the positive control: there each attempt first
makes itself root of a new user namespace, so that only a jail can be what refuses it.
"""
import ctypes
import errno
import mmap
import os
import platform
import signal
import socket
import struct
import sys
import tempfile

libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
#        name               x86_64 aarch64
NUMBERS = {
    "unshare": (272, 97), "clone": (56, 220), "clone3": (435, 435), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "kcmp": (312, 272), "process_madvise": (440, 440),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "keyctl": (250, 219), "request_key": (249, 218),
    "userfaultfd": (323, 282), "bpf": (321, 280), "perf_event_open": (298, 241), "modify_ldt": (154, None),
    "personality": (135, 92), "kexec_load": (246, 104), "finit_module": (313, 273), "init_module": (175, 105),
    "delete_module": (176, 106), "syslog": (103, 116), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "fanotify_init": (300, 262), "reboot": (169, 142), "swapon": (167, 224),
    "quotactl": (179, 60), "acct": (163, 89), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "iopl": (172, None), "ioperm": (173, None), "sethostname": (170, 161), "vhangup": (153, 58),
    "mbind": (237, 235), "move_pages": (279, 239), "getpid": (39, 172), "mknodat": (259, 33),
    "capset": (126, 91),
}
NEWNS, NEWUSER, NEWNET, NEWPID = 0x20000, 0x10000000, 0x40000000, 0x20000000
probes = {}


def probe(function):
    probes[function.__name__] = function
    return function


def call(name, *arguments):
    number = NUMBERS[name][0 if X86 else 1]
    if number is None:
        raise OSError(errno.ENOSYS, "not on this architecture")
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def simple(name, *arguments):
    """A probe that is one system call."""
    probes[name] = lambda: call(name, *arguments)


# 1. namespaces
for flag, label in [(NEWUSER, "user"), (NEWNS, "mount"), (NEWNET, "net"), (NEWPID, "pid"), (0x8000000, "ipc"),
                    (0x4000000, "uts"), (0x2000000, "cgroup")]:
    probes["unshare_" + label] = lambda flag=flag: call("unshare", flag)


def clone(flags):
    pid = call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


probes["clone_user"] = lambda: clone(NEWUSER)
probes["clone_everything"] = lambda: clone(NEWUSER | NEWNS | NEWPID | NEWNET)


@probe
def clone3():
    args = (ctypes.c_uint64 * 11)(NEWUSER, 0, 0, 0, signal.SIGCHLD)
    pid = call("clone3", ctypes.byref(args), 88)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


simple("setns", 0, 0)

# 2. mounts
probes["mount"] = lambda: call("mount", b"none", b"/tmp", b"tmpfs", 0, None)
probes["umount_mask"] = lambda: call("umount2", b"/proc/kallsyms" if INSIDE else mounted(), 0)
probes["remount_root"] = lambda: call("mount", None, b"/", None, 32 | 4096, None)
simple("pivot_root", b"/", b"/")
simple("chroot", b"/")
simple("open_tree", -100, b"/", 1)
simple("move_mount", -1, b"", -100, b"/tmp", 4)
simple("fsopen", b"tmpfs", 0)
simple("fsconfig", -1, 6, None, None, 0)
simple("fsmount", -1, 0, 0)
simple("fspick", -100, b"/", 0)
simple("mount_setattr", -100, b"/", 0, None, 0)


def mounted():
    call("mount", b"none", b"/tmp", b"tmpfs", 0, None)
    return b"/tmp"


# 3. other processes
simple("ptrace", 0, 0, 0, 0)


@probe
def process_vm_readv():
    source, target = ctypes.create_string_buffer(b"x"), ctypes.create_string_buffer(1)
    iov = lambda b: ctypes.byref((ctypes.c_uint64 * 2)(ctypes.addressof(b), 1))
    call("process_vm_readv", os.getpid(), iov(target), 1, iov(source), 1, 0)


simple("process_vm_writev", os.getpid(), None, 0, None, 0, 0)
probes["pidfd_getfd"] = lambda: call("pidfd_getfd", call("pidfd_open", os.getpid(), 0), 0, 0)
probes["kcmp"] = lambda: call("kcmp", os.getpid(), os.getpid(), 0, 0, 0)
simple("process_madvise", -1, None, 0, 0, 0)

# 4. io_uring
probes["io_uring_setup"] = lambda: call("io_uring_setup", 1, ctypes.create_string_buffer(120))
simple("io_uring_enter", -1, 0, 0, 0, 0, 0)
simple("io_uring_register", -1, 0, 0, 0)

# 5. keyrings
simple("add_key", b"user", b"pathbox-probe", b"x", 1, -3)
simple("keyctl", 0, -3, 1)
simple("request_key", b"user", b"pathbox-probe", None, -3)

# 6. attack surface
simple("userfaultfd", 1)
simple("bpf", 9999, None, 0)
simple("perf_event_open", None, 0, 0, 0, 0)
probes["modify_ldt"] = lambda: call("modify_ldt", 0, ctypes.create_string_buffer(16), 16)
simple("personality", 0x0040000)
simple("kexec_load", 0, 0, None, 0)
simple("finit_module", -1, b"", 0)
simple("init_module", None, 0, b"")
simple("delete_module", b"none", 0)
simple("syslog", 10, None, 0)
simple("open_by_handle_at", -100, None, 0)
simple("name_to_handle_at", -100, b"/", None, None, 0)
simple("fanotify_init", 0, 0)
simple("reboot", 0, 0, 0, None)
simple("swapon", b"/nothing", 0)
simple("quotactl", 0, None, 0, None)
simple("acct", b"/nothing")
simple("settimeofday", None, None)
simple("clock_settime", 99, None)
simple("iopl", 0)
simple("ioperm", 0, 0, 0)
probes["sethostname"] = lambda: call("sethostname", b"x", 1)
simple("mbind", 0, 0, 0, None, 0, 0)
simple("move_pages", 0, 0, None, None, None, 0)


# 7. other system call tables
@probe
def x32_getpid():
    if not X86:
        raise OSError(errno.ENOSYS, "not here")
    result = libc.syscall(ctypes.c_long(0x40000000 + 39))
    if result < 0:
        raise OSError(ctypes.get_errno(), "x32")


@probe
def int_0x80_getpid():
    if not X86:
        raise OSError(errno.ENOSYS, "not here")
    code = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    if function() <= 0:
        raise OSError(errno.ENOSYS, "int 0x80")


# 8. socket families
for family, kind, protocol, label in [(40, 1, 0, "vsock"), (17, 3, 0, "packet"), (38, 5, 0, "alg"), (15, 3, 2, "key"),
                                      (44, 3, 0, "xdp"), (16, 3, 12, "netfilter"), (16, 3, 9, "audit"),
                                      (16, 3, 15, "uevent"), (31, 3, 1, "bluetooth"), (2, 1, 262, "mptcp"),
                                      (10, 2, 136, "udplite"), (2, 5, 0, "sctp")]:
    probes["socket_" + label] = lambda f=family, k=kind, p=protocol: socket.socket(f, k, p)
probes["socketpair_netlink"] = lambda: socket.socketpair(16, 3)
probes["socket_raw_inet"] = lambda: socket.socket(2, 3, 1)


# 13., 23. programs and rights
@probe
def mknod():
    directory = tempfile.mkdtemp()
    try:
        os.mknod(directory + "/node", 0o600 | 0o060000, os.makedev(7, 0))
        os.unlink(directory + "/node")
    finally:
        os.rmdir(directory)


@probe
def capset():
    call("capset", (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(1 << 21, 1 << 21))


@probe
def setuid_0():
    os.setuid(0)


@probe
def raise_limits():
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (5000, 5000))


@probe
def negative_nice():
    os.setpriority(os.PRIO_PROCESS, 0, -5)


@probe
def real_time():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def of_the_first_process(change):
    """A change of another process of the same user: inside the sandbox's first one, outside the parent."""
    probes["first_process_" + change.__name__] = lambda: change(1 if INSIDE else os.getppid())


@of_the_first_process
def limits(pid):
    import resource
    resource.prlimit(pid, resource.RLIMIT_NOFILE, resource.prlimit(pid, resource.RLIMIT_NOFILE))


@of_the_first_process
def scheduler(pid):
    os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


@of_the_first_process
def processors(pid):
    os.sched_setaffinity(pid, os.sched_getaffinity(0))


@of_the_first_process
def priority(pid):
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))


@probe
def priority_of_all():
    # Of a user without processes, so that nothing changes where it is not refused.
    os.setpriority(os.PRIO_USER, 2**31 - 7, 0)


@probe
def oom_score():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")


@probe
def dump_core():
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))


@probe
def tiocsti():
    import fcntl
    import pty
    main, peer = pty.openpty()
    fcntl.ioctl(peer, 0x5412, b"x")


@probe
def tioclinux():
    import fcntl
    import pty
    main, peer = pty.openpty()
    fcntl.ioctl(peer, 0x541C, b"\x03")


def write(path):
    def attempt():
        with open(path) as file:
            if os.fstat(file.fileno()).st_rdev == os.makedev(1, 3):
                raise OSError(errno.EPERM, "masked by /dev/null")
            same = file.read()
        with open(path, "w") as file:
            file.write(same or "0")
    return attempt


# 10. /proc, 11. files
for path in ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger",
             "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_forward"]:
    probes["write_" + path.rsplit("/", 1)[1]] = write(path)


def as_root_of_a_namespace():
    """Rights over namespaces of its own, as an attacker has outside a jail."""
    if os.getuid() == 0:
        return
    uid, gid = os.getuid(), os.getgid()
    call("unshare", NEWUSER | NEWNS | NEWNET | 0x4000000)
    for name, text in [("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")]:
        with open("/proc/self/" + name, "w") as file:
            file.write(text)


def attempt(name):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            if not INSIDE:
                if os.getuid() == 0:
                    call("unshare", NEWNS | NEWNET | 0x4000000)
                    call("mount", None, b"/", None, 0x44000, None)
                else:
                    as_root_of_a_namespace()
            probes[name]()
            result = "open"
        except OSError as error:
            result = errno.errorcode.get(error.errno, str(error.errno))
        except ValueError as error:
            result = "EPERM" if "maximum limit" in str(error) or "limit" in str(error) else repr(error)
        except BaseException as error:
            result = repr(error)
        os.write(write, result.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        result = file.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        result = signal.Signals(os.WTERMSIG(status)).name
    return result


INSIDE = sys.argv[1] == "inside"
for name in sys.argv[2:] or probes:
    print(name, attempt(name), flush=True)
