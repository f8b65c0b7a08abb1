//! One sandbox that takes all it can get, beside another one, the host and a process outside: those three go on. Each abuse
//! says how far it came, so that none passes because it did nothing, and is tried with control groups, where the machine
//! gives some, and without. The table of resources in `docs/threat-model.md` names these abuses; `resources.rs` reads it.

use std::process::Command;

use pathbox::host::agent::ProcessEvent;
use pathbox::host::jail::{Options, SandboxLimits, SandboxSpec};

use super::support::{Ran, is_root, launch, options, put, python, run, run_python, spawn, start};

/// An abuse, and what it may come to: it prints a word and how many it got, and then holds them.
pub(crate) struct Abuse {
    /// Its name in the threat model.
    pub(crate) name: &'static str,
    code: &'static str,
    /// Words that mean that it was bounded, each with the most that it may have got.
    ends: &'static [(&'static str, u64)],
}

/// What every abuse begins with.
const PRELUDE: &str = r"
import ctypes, errno, fcntl, mmap, os, resource, select, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == 'x86_64'
held = []
def fill(take, most=1 << 20):
    n = 0
    while n < most:
        try:
            got = take(n)
            if isinstance(got, int) and got < 0: raise OSError(ctypes.get_errno(), '')
            held.append(got); n += 1
        except OSError as error:
            return done(errno.errorcode.get(error.errno, error.errno), n)
    done('all', n)
def done(word, n): print(word, n, flush=True)
";

/// Holds what it has until someone has looked at the others.
const CODA: &str = "\ntry: time.sleep(600)\nexcept KeyboardInterrupt: pass\n";

pub(crate) const ABUSES: &[Abuse] = &[
    Abuse {
        name: "descriptors in flight",
        code: r"
def send(n):
    a, b = socket.socketpair(); a.setblocking(False); socket.send_fds(a, [b'x'], [0] * 253); return (a, b)
fill(send, 400)
",
        ends: &[("ETOOMANYREFS", 400), ("EMFILE", 512)],
    },
    Abuse {
        name: "inotify instances",
        code: "fill(lambda n: libc.inotify_init1(0), 2000)",
        ends: &[("EMFILE", 16), ("EPERM", 0)],
    },
    Abuse {
        name: "inotify watches",
        code: r"
i = libc.inotify_init1(0)
def watch(n):
    os.mkdir(f'/tmp/{n}'); return libc.inotify_add_watch(i, f'/tmp/{n}'.encode(), 2)
fill(watch, 15000) if i >= 0 else done('EPERM', 0)
",
        ends: &[("ENOSPC", 8192), ("EPERM", 0)],
    },
    Abuse {
        name: "asynchronous input and output",
        code: r"
c = ctypes.c_ulong(0)
fill(lambda n: libc.syscall(206 if x86 else 0, 4096, ctypes.byref(c)), 16)
",
        ends: &[("ENOSYS", 0)],
    },
    Abuse {
        name: "terminals",
        code: "import pty\nfill(lambda n: pty.openpty(), 400)",
        ends: &[("ENOSPC", 16), ("None", 16)], // Python's words have no number
    },
    Abuse {
        name: "System V semaphores",
        code: "fill(lambda n: libc.semget(0, 250, 0o1600), 40000)",
        ends: &[("ENOSPC", 64), ("EPERM", 0)],
    },
    Abuse {
        name: "System V queues",
        code: "fill(lambda n: libc.msgget(0, 0o1600), 40000)",
        ends: &[("ENOSPC", 16), ("EPERM", 0)],
    },
    Abuse {
        name: "System V segments",
        code: "fill(lambda n: libc.shmget(0, 1 << 20, 0o1600), 4000)",
        ends: &[("ENOSPC", 64), ("EPERM", 0)],
    },
    Abuse {
        name: "POSIX message queues",
        code: "libc.mq_open.restype = ctypes.c_int\nfill(lambda n: libc.mq_open(f'/q{n}'.encode(), os.O_CREAT | os.O_RDWR, 0o600, None), 300)",
        ends: &[("EMFILE", 0), ("ENOSPC", 0), ("EPERM", 0), ("ENOSYS", 0)],
    },
    Abuse {
        name: "shared maps of /dev/zero",
        code: r"
f = os.open('/dev/zero', os.O_RDWR)
assert os.read(f, 4) == bytes(4)
fill(lambda n: mmap.mmap(f, 1 << 26), 16)
",
        ends: &[("ENODEV", 0)],
    },
    Abuse {
        name: "huge pages",
        code: "fill(lambda n: mmap.mmap(-1, 2 << 20, flags=0x40022), 16)",
        ends: &[("EPERM", 0)],
    },
    Abuse {
        name: "locks of open files",
        code: "f = open('l', 'w')\nfill(lambda n: (fcntl.fcntl(f, 37, struct.pack('hhqqi4x', 1, 0, 2 * n, 1, 0)), n)[1], 100000)",
        ends: &[("EINVAL", 0)],
    },
    Abuse {
        name: "leases and notifications",
        code: "f = os.open(os.__file__, os.O_RDONLY)\nd = os.open('/usr', os.O_RDONLY)\nfill(lambda n: fcntl.fcntl(*[(f, 1024, 0), (d, 1026, 2)][n % 2]), 2)",
        ends: &[("EINVAL", 0)],
    },
    Abuse {
        name: "descriptors in a hidden table",
        code: r"
call = 56 if x86 else 220
fill(lambda n: libc.syscall(call, 0x10000 | 0x800 | 0x100, 0, 0, 0, 0), 1)
",
        ends: &[("EPERM", 0)],
    },
    Abuse {
        name: "a table of one's own after the fact",
        code: "fill(lambda n: libc.syscall(436, 3, 4, 2), 1)",
        ends: &[("EINVAL", 0)],
    },
    Abuse {
        name: "packet filters",
        code: r"
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
code = (ctypes.c_char * 8)(*struct.pack('HBBI', 6, 0, 0, 0xffff)); p = struct.pack('HL', 1, ctypes.addressof(code))
fill(lambda n: s.setsockopt(socket.SOL_SOCKET, 26, p) or 0, 3)
",
        ends: &[("EPERM", 0)],
    },
    Abuse {
        name: "system call filters",
        code: "fill(lambda n: libc.prctl(22, 2, 0, 0, 0), 3)",
        ends: &[("EINVAL", 0)],
    },
    Abuse {
        name: "tables of futexes",
        code: "fill(lambda n: libc.prctl(78, 1, 1 << 20, 0, 0), 1)",
        ends: &[("EINVAL", 0)],
    },
    Abuse {
        name: "names of maps",
        code: r"
page = mmap.mmap(-1, 4096, flags=0x22)
where = ctypes.c_ulong(ctypes.addressof(ctypes.c_char.from_buffer(page)))
fill(lambda n: libc.prctl(0x53564d41, 0, where, ctypes.c_ulong(4096), b'name'), 1)
",
        ends: &[("EINVAL", 0)],
    },
    Abuse {
        name: "pinned pages",
        code: "r, w = os.pipe()\nb = ctypes.create_string_buffer(4096)\nv = (ctypes.c_ulong * 2)(ctypes.addressof(b), 4096)\nfill(lambda n: libc.syscall(278 if x86 else 75, w, ctypes.byref(v), 1, 0), 16)",
        ends: &[("ENOSYS", 0)],
    },
    Abuse {
        name: "socket buffers",
        code: r"
def pair(n):
    a, b = socket.socketpair(); a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
    if a.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 1 << 20: raise OSError(errno.EOVERFLOW, '')
    return (a, b)
fill(pair, 20)
",
        ends: &[("all", 20)],
    },
    Abuse {
        name: "TCP buffers",
        // What is sent and taken by no one, in MiB.
        code: r"
listener = socket.create_server(('127.0.0.1', 0), backlog=200)
queued = 0
try:
    for n in range(100):
        sender = socket.create_connection(listener.getsockname(), 5); sender.setblocking(False)
        held.append((sender, listener.accept()[0]))
        try:
            while True: queued += sender.send(bytes(1 << 16))
        except BlockingIOError: pass
except OSError: pass
done('all', queued >> 20)
",
        ends: &[("all", 64)],
    },
    Abuse {
        name: "pipes",
        code: "def pipe(n):\n    held.append(os.pipe()); return os.write(held[-1][1], bytes(4096))\nfill(pipe, 4000)",
        ends: &[("EMFILE", 1024)],
    },
    Abuse {
        name: "timers",
        code: "t = ctypes.c_void_p()\nfill(lambda n: libc.timer_create(1, None, ctypes.byref(t)), 5000)",
        ends: &[("EAGAIN", 256)],
    },
    Abuse {
        name: "keys",
        code: "fill(lambda n: libc.syscall(248 if x86 else 217, b'user', f'k{n}'.encode(), b'x', 1, -2), 300)",
        ends: &[("EPERM", 0)],
    },
    Abuse {
        name: "fanotify",
        code: "fill(lambda n: libc.syscall(300 if x86 else 262, 0, 0), 300)",
        ends: &[("EPERM", 0)],
    },
    Abuse {
        name: "processes",
        code: "def fork(n):\n    pid = os.fork()\n    if pid == 0: time.sleep(600); os._exit(0)\n    return pid\nfill(fork, 4000)",
        ends: &[("EAGAIN", 128)],
    },
    Abuse {
        name: "page cache of others",
        code: "f = os.open(os.__file__, os.O_RDONLY)\nfill(lambda n: os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED) or 0, 4)",
        ends: &[("all", 4)],
    },
    Abuse {
        name: "what others have read",
        code: "f = os.open(os.__file__, os.O_RDONLY)\nfill(lambda n: os.preadv(f, [bytearray(16)], 0, os.RWF_NOWAIT), 4)",
        ends: &[("EINVAL", 0), ("EOPNOTSUPP", 0)],
    },
    Abuse {
        name: "halves of a processor's core",
        code: "fill(lambda n: libc.prctl(62, 1, 0, 0, 0), 1)",
        ends: &[("EINVAL", 0)],
    },
    Abuse {
        name: "flow labels",
        code: r"
def label(n):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    # An address, a label of the kernel's choice (0), get it, exclusive, create.
    s.setsockopt(41, 32, socket.inet_pton(socket.AF_INET6, '::1') + struct.pack('IBBHHHI', 0, 0, 1, 1, 6, 0, 0))
    return s
fill(label, 1)
",
        ends: &[("EPERM", 0), ("EAFNOSUPPORT", 0)],
    },
    Abuse {
        name: "the machine's disks",
        // Of no descriptor: an error, were it not that it does nothing.
        code: "fill(lambda n: libc.syncfs(-1) or libc.sync_file_range(-1, 0, 0, 7), 4)",
        ends: &[("all", 4)],
    },
    Abuse {
        name: "priorities",
        code: "fill(lambda n: libc.setpriority(0, 0, -5) or libc.sched_setscheduler(0, 1, ctypes.byref(ctypes.c_int(5))), 2)",
        ends: &[("EACCES", 0), ("EPERM", 0)],
    },
];

/// What holds with control groups is what this machine gives; without them another part of the code does it.
#[tokio::test]
async fn an_abuser_takes_nothing_that_others_need() {
    for cgroups in [true, false] {
        let spawner = start(&Options { cgroups, ..options() }).await;
        if cgroups && !spawner.has_cgroups() {
            continue;
        }
        let victim = spawn(&spawner).await;
        let before = outside();
        for abuse in ABUSES {
            let abuser = spawn(&spawner).await;
            let code = format!("{PRELUDE}{}{CODA}", abuse.code);
            put(&abuser.agent, "abuse.py", &code).await;
            let mut process = launch(&abuser.agent, &[&python().path, "-I", "abuse.py"]).await;
            let mut said = String::new();
            while !said.ends_with('\n')
                && let Some(event) = process.events.recv().await
            {
                match event {
                    ProcessEvent::Stdout(bytes) | ProcessEvent::Stderr(bytes) => {
                        said.push_str(&String::from_utf8_lossy(&bytes));
                    }
                    other => panic!("{}, control groups {cgroups}: {other:?} {said}", abuse.name),
                }
            }
            let (word, count) = said.trim().rsplit_once(' ').unwrap_or((&said, "none"));
            let bounded = abuse
                .ends
                .iter()
                .any(|(end, most)| *end == word && count.parse::<u64>().is_ok_and(|count| count <= *most));
            // An ordinary user may not set the limits of its IPC namespace on older kernels. Its group counts what they hold.
            let by_memory = abuse.name.starts_with("System V")
                && cgroups
                && !is_root()
                && ["ENOSPC", "all"].contains(&word);
            assert!(bounded || by_memory, "{}, control groups {cgroups}: {said}", abuse.name);

            // Held all the while: the neighbour, the host and the outside.
            assert_eq!(
                run(&victim.agent, &["sh", "-c", "echo $((1 + 1))"]).await.stdout,
                "2\n",
                "{}",
                abuse.name
            );
            let next = spawn(&spawner).await;
            assert_eq!(run(&next.agent, &["echo", "on"]).await.stdout, "on\n", "{}", abuse.name);
            next.kill().await;
            assert_eq!(outside(), before, "{}, control groups {cgroups}", abuse.name);
            abuser.kill().await;
        }
        // What a sandbox has of each, the neighbour can still have after all that.
        let own = run_python(&victim.agent, "import os, pty, socket; pty.openpty(); a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0]); print(len(socket.recv_fds(b, 1, 1)[1]))").await;
        assert_eq!(own.stdout, "1\n", "{}", own.stderr);
    }
}

/// What an ordinary process of this user cannot do: what it could not do before is the machine's matter.
fn outside() -> Vec<String> {
    let script = include_str!("neighbours.py");
    let ran = Ran::outside(Command::new(&python().path).args(["-I", "-c", script]));
    let lines: Vec<String> = ran.stdout.lines().map(str::to_owned).collect();
    assert_eq!(lines.last().map(String::as_str), Some("asked"), "{ran:?}");
    lines
}

/// No control group counts these, so they are counted by inspection; and a process that prevents inspection gains nothing.
#[tokio::test]
async fn half_a_million_locks_end_the_process_that_holds_them() {
    let locks = r"
import fcntl, os, struct, time
# Each lock is compared with all others of its file.
files = [open(f'/tmp/{n}', 'w') for n in range(900)]
for n in range(1500):
    for f in files: fcntl.fcntl(f, fcntl.F_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 2 * n, 1, 0))
time.sleep(30)
print('kept')
";
    let hidden = format!("import ctypes\nassert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0\n{locks}");
    let unreadable = format!(
        "import os, shutil, sys\nshutil.copy(os.path.realpath(sys.executable), 'p'); os.chmod('p', 0o111)\n\
         open('locks.py', 'w').write({locks:?}.replace('time.sleep(30)', 'time.sleep(60)'))\n\
         os.execve('./p', ['p', 'locks.py'], {{'PYTHONHOME': sys.base_prefix}})"
    );
    for (cgroups, code) in [(true, locks), (false, &hidden), (false, &unreadable)] {
        let spawner = start(&Options { cgroups, ..options() }).await;
        if cgroups && !spawner.has_cgroups() {
            continue;
        }
        let (abuser, victim) = (spawn(&spawner).await, spawn(&spawner).await);
        let few = "import fcntl, struct\nf = open('l', 'w')\nfor n in range(5000): fcntl.fcntl(f, fcntl.F_SETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 2 * n, 1, 0))\nprint('few')";
        assert_eq!(run_python(&victim.agent, few).await.stdout, "few\n");
        let ran = run_python(&abuser.agent, code).await;
        assert_eq!(ran.signal, Some(9), "control groups {cgroups}: {ran:?}");
        assert_eq!(run(&abuser.agent, &["echo", "on"]).await.stdout, "on\n", "the sandbox lives");
        assert_eq!(run(&victim.agent, &["echo", "on"]).await.stdout, "on\n");
    }
}

/// What the kernel keeps of maps is many times what is mapped, and copied with every process.
#[tokio::test]
async fn maps_that_hold_nothing_are_counted_where_no_control_group_counts_them() {
    let spawner = start(&Options { cgroups: false, ..options() }).await;
    let jailed = spawn(&spawner).await;
    let code = r"
import ctypes, os, time
libc = ctypes.CDLL(None); libc.mmap.restype = ctypes.c_void_p
# Every second page is another map, by its rights.
a = libc.mmap(None, ctypes.c_size_t(60_000 * 8192), 0, 0x22, -1, 0)
for i in range(0, 60_000 * 8192, 8192):
    if libc.mprotect(ctypes.c_void_p(a + i), 4096, 1): break
for _ in range(40):
    if os.fork() == 0: time.sleep(600)
print('ended', os.wait()[1], flush=True)
time.sleep(600)
";
    let mut process = launch(&jailed.agent, &[&python().path, "-I", "-c", code]).await;
    // The first to go may be the one that would say so.
    match process.events.recv().await.expect("one of them is ended") {
        ProcessEvent::Stdout(said) => assert_eq!(said, "ended 9\n"),
        ProcessEvent::Exited { signal, .. } => assert_eq!(signal, Some(9)),
        other => panic!("{other:?}"),
    }
    assert_eq!(run(&jailed.agent, &["echo", "on"]).await.stdout, "on\n", "the sandbox lives");
}

/// Many processes with many files each, where no control group counts what the files hold.
#[tokio::test]
async fn open_files_of_all_processes_together_are_bounded() {
    let spawner = start(&Options { cgroups: false, ..options() }).await;
    let jailed = spawn(&spawner).await;
    let code = r"
import os, time
for _ in range(20):
    if os.fork() == 0:
        held = [os.pipe() for _ in range(480)]
        time.sleep(600)
print('ended', os.wait()[1], flush=True)
time.sleep(600)
";
    let mut process = launch(&jailed.agent, &[&python().path, "-I", "-c", code]).await;
    let first = process.events.recv().await.expect("one of them is ended");
    assert_eq!(first, ProcessEvent::Stdout("ended 9\n".into()));
    // Those with the most are ended; their siblings do not notice.
    let count = r"
import os
def files(pid):
    try: return len(os.listdir(f'/proc/{pid}/fd'))
    except OSError: return 0
print(sum(files(pid) for pid in os.listdir('/proc') if pid.isdigit() and pid != '1'))
";
    let mut last = String::new();
    for _ in 0..600 {
        last = run_python(&jailed.agent, count).await.stdout;
        let alive = last.trim().parse::<u64>().unwrap_or(u64::MAX);
        if (1..=4200).contains(&alive) {
            drop(process);
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("{last} files are open");
}

/// A sandbox sees what it does itself, and nothing of what others do with the same files.
#[tokio::test]
async fn files_that_others_open_cannot_be_watched() {
    let spawner = start(&options()).await;
    let (watcher, other) = (spawn(&spawner).await, spawn(&spawner).await);
    let code = r"
import ctypes, os, select, sys
libc = ctypes.CDLL(None, use_errno=True)
i = libc.inotify_init1(0)
dirs = ['/usr/bin', '/usr/lib', os.path.dirname(os.__file__)]
if i < 0: print('refused', flush=True); sys.exit()
for d in dirs: assert libc.inotify_add_watch(i, d.encode(), 0x20 | 0x1) > 0
print('watching', flush=True)
sys.stdin.readline()
print('seen' if select.select([i], [], [], 0)[0] else 'nothing', flush=True)
open('/usr/bin/env').close()
print('own' if select.select([i], [], [], 10)[0] else 'nothing', flush=True)
";
    let spec = pathbox::host::agent::ProcessSpec {
        argv: [&python().path, "-I", "-c", code].map(str::to_owned).to_vec(),
        stdin: pathbox::host::agent::Stdin::Pipe,
        ..Default::default()
    };
    let mut process = watcher.agent.start(spec).await.expect("starts");
    let mut said = String::new();
    let mut outside_done = false;
    while let Some(event) = process.events.recv().await {
        if let ProcessEvent::Stdout(bytes) = event {
            said.push_str(&String::from_utf8_lossy(&bytes));
        }
        if said.starts_with("watching") && !outside_done {
            outside_done = true;
            let listing = run_python(
                &other.agent,
                "import this, os; os.listdir('/usr/bin'); open('/usr/bin/env').close()",
            )
            .await;
            assert_eq!(listing.code, Some(0), "{listing:?}");
            std::fs::read("/usr/bin/env").expect("readable");
            process.handle.stdin("\n".into()).await.expect("goes on");
        }
    }
    assert!(said == "refused\n" || said == "watching\nnothing\nown\n", "{said}");
}

/// A program that let the machine start a helper outside for each crash would run code there as root.
#[tokio::test]
async fn settings_of_the_kernel_s_objects_are_those_of_the_sandbox() {
    let spawner = start(&options()).await;
    let jailed = spawn(&spawner).await;
    let code = r"
import resource
print(*resource.getrlimit(resource.RLIMIT_CORE))
def read(name):
    try: return open('/proc/sys/' + name).read().split()
    except OSError as error: return [type(error).__name__]
for kind in ['user', 'mnt', 'pid', 'net', 'ipc', 'uts', 'cgroup']: print(kind, *read(f'user/max_{kind}_namespaces'))
print('locks', repr(open('/proc/locks').read()))
for name in ['/proc/self/comm', '/proc/self/autogroup']:
    try: open(name, 'w'); print('open', name)
    except OSError: pass
";
    let ran = run_python(&jailed.agent, code).await;
    let expected = "1 1\nuser 0\nmnt 0\npid 0\nnet 0\nipc 0\nuts 0\ncgroup 0\nlocks ''\n";
    assert_eq!(ran.stdout, expected, "{}", ran.stderr);
}

/// Where no control group shares time out, a sandbox has fewer processors than the machine.
#[tokio::test]
async fn without_control_groups_a_processor_is_left_for_others() {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let spawner = start(&Options { cgroups: false, ..options() }).await;
    let spec = SandboxSpec {
        limits: Some(SandboxLimits { cpu_percent: 6400, ..SandboxLimits::default() }),
        ..Default::default()
    };
    let jailed = spawner.spawn(&spec).await.expect("spawns");
    let code = format!(
        "import os\nos.sched_setaffinity(0, range({all}))\nprint(len(os.sched_getaffinity(0)), 0 in os.sched_getaffinity(0))"
    );
    let ran = run_python(&jailed.agent, &code).await;
    let expected = if all == 1 { "1 True\n".to_owned() } else { format!("{} False\n", all - 1) };
    assert_eq!(ran.stdout, expected, "{}", ran.stderr);
}

/// Programs write where they are used to.
#[tokio::test]
async fn the_usual_work_directories_can_be_written_and_count_as_the_home_directory() {
    let spawner = start(&options()).await;
    let limits = SandboxLimits { home_bytes: 8 << 20, ..SandboxLimits::default() };
    let spec = SandboxSpec { limits: Some(limits), ..SandboxSpec::default() };
    let jailed = spawner.spawn(&spec).await.expect("spawns");
    let script = "for d in /app /workspace /data /code /mnt/data ~; do ls -A $d; echo x > $d/f && cat $d/f; done; \
                  head -c 6M /dev/zero > /app/big; head -c 6M /dev/zero > /data/big || echo full; ls -A ~";
    let ran = run(&jailed.agent, &["sh", "-c", script]).await;
    assert_eq!(ran.stdout, "x\nx\nx\nx\nx\nx\nfull\nf\n", "{}", ran.stderr);
}
