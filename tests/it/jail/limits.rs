//! Programs that take too much: memory, processes, disk, output, CPU time. Each is tried with control groups, where
//! the machine gives some, and without.

use std::time::{Duration, Instant};

use pathbox::host::agent::ProcessEvent;
use pathbox::host::jail::{EndCause, Jailed, Options, SandboxLimits, SandboxSpec, Spawner};

use super::support::{descendants, launch, options, put, python, run, run_python, start};

const MIB: u64 = 1 << 20;

/// A small sandbox in every way that limits are held here.
async fn small(limits: SandboxLimits) -> Vec<(Spawner, Jailed)> {
    let mut all = Vec::new();
    for cgroups in [true, false] {
        let spawner = start(&Options { cgroups, ..options() }).await;
        if cgroups && !spawner.has_cgroups() {
            continue;
        }
        let spec = SandboxSpec { limits: Some(limits.clone()), ..SandboxSpec::default() };
        let jailed = spawner.spawn(&spec).await.expect("spawns");
        all.push((spawner, jailed));
    }
    all
}

fn little_memory() -> SandboxLimits {
    SandboxLimits {
        memory_bytes: 128 * MIB,
        home_bytes: 64 * MIB,
        tmp_bytes: 64 * MIB,
        shm_bytes: 64 * MIB,
        ..SandboxLimits::default()
    }
}

/// What this process and all below it use.
fn used_by(pid: u32) -> u64 {
    let of = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let kib = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        1024 * (kib("RssAnon:") + kib("RssShmem:"))
    };
    descendants(pid).into_iter().map(of).sum()
}

/// Group 17. `got` is printed by a hog that was not stopped.
const HOGS: &[(&str, &str)] = &[
    ("one heap", "b = []\nwhile len(b) < 512: b.append(bytearray(1 << 20))"),
    (
        "many heaps",
        "import os\nfor _ in range(12): os.fork() == 0 and (globals().update(b=bytearray(40 << 20)), __import__('time').sleep(3), os._exit(0))\nprint([os.wait()[1] for _ in range(12)].count(0) < 12 and 'stopped' or 'got', flush=True); os._exit(0)",
    ),
    // What is shared is looked up map by map, and there are 40,000 in each.
    (
        "many heaps behind many maps",
        "import os, ctypes\nl = ctypes.CDLL(None); l.mmap.restype = ctypes.c_void_p\na = l.mmap(None, ctypes.c_size_t(160 << 20), 0, 0x22, -1, 0)\nfor i in range(0, 160 << 20, 8192):\n if l.mprotect(ctypes.c_void_p(a + i), 4096, 1): raise SystemExit('too few maps, got nowhere')\nfor _ in range(12): os.fork() == 0 and (globals().update(b=bytearray(40 << 20)), __import__('time').sleep(3), os._exit(0))\nprint([os.wait()[1] for _ in range(12)].count(0) < 12 and 'stopped' or 'got', flush=True); os._exit(0)",
    ),
    (
        "shared anonymous memory",
        "import mmap\nm = mmap.mmap(-1, 512 << 20)\nfor i in range(0, 512 << 20, 4096): m[i] = 1",
    ),
    (
        "shared memory that is let go",
        "import mmap\nm = mmap.mmap(-1, 512 << 20)\nfor i in range(0, 512 << 20, 1 << 20):\n m[i:i+(1<<20)] = b'x' * (1 << 20); m.madvise(mmap.MADV_DONTNEED, i, 1 << 20)",
    ),
    (
        "files in memory",
        "import os\nf = os.memfd_create('x')\nfor _ in range(512): os.write(f, bytes(1 << 20))",
    ),
    (
        "System V memory",
        "import ctypes\nl = ctypes.CDLL(None); l.shmat.restype = ctypes.c_void_p\ni = l.shmget(0, 512 << 20, 0o1600)\nif i < 0: raise OSError('refused')\nctypes.memset(l.shmat(i, None, 0), 1, 512 << 20)",
    ),
    (
        "temporary files",
        "import os\nfor d in ['/tmp', '/home/user', '/dev/shm']:\n f = open(d + '/x', 'wb')\n for _ in range(60): f.write(bytes(1 << 20)); f.flush()",
    ),
];

#[tokio::test]
async fn no_kind_of_memory_goes_past_the_limit() {
    for (name, hog) in HOGS {
        for (spawner, jailed) in small(little_memory()).await {
            // A scan needs a moment to see what was taken at once.
            let code = format!("{hog}\n__import__('time').sleep(1)\nprint('got')");
            let hog = launch(&jailed.agent, &[&python().path, "-I", "-c", &code]).await;
            let ran = super::support::Ran::of(hog).await;
            let stopped = !ran.stdout.contains("got");
            assert!(stopped, "{name}, cgroups {}: {ran:?}", spawner.has_cgroups());
            let refused = ran.stderr.contains("Error") || ran.stdout.contains("stopped");
            assert!(ran.oom || refused, "{name}, cgroups {}: {ran:?}", spawner.has_cgroups());
            run(&jailed.agent, &["sh", "-c", "rm -f /tmp/x /home/user/x /dev/shm/x"]).await;
            assert_eq!(run(&jailed.agent, &["echo", "on"]).await.stdout, "on\n", "{name}: the sandbox lives");
        }
    }
}

#[tokio::test]
async fn kernel_buffers_of_sockets_are_bounded() {
    let code = r"
import os, socket, resource, time
kept, n = [], 0
for child in range(40):
    if os.fork() == 0:
        try:
            while True:
                a, b = socket.socketpair(); kept.append((a, b)); a.setblocking(False)
                try:
                    while True: a.send(bytes(60000))
                except BlockingIOError: pass
        except OSError: pass
        time.sleep(60)
time.sleep(60)
";
    for (spawner, jailed) in small(little_memory()).await {
        let ran = run_python(&jailed.agent, code).await;
        // No process owns such memory, so the kernel can come to the first one when the others do not suffice.
        let ended = tokio::time::timeout(Duration::from_secs(30), jailed.ended()).await;
        assert!(ran.oom || ended == Ok(EndCause::Oom), "cgroups {}: {ran:?}", spawner.has_cgroups());
        let next = spawner.spawn(&SandboxSpec::default()).await.expect("spawns");
        assert_eq!(run(&next.agent, &["echo", "on"]).await.stdout, "on\n");
    }
}

/// Group 18.
#[tokio::test]
async fn floods_of_processes_are_stopped_and_leave_nothing() {
    let bombs = [
        (
            "processes",
            "import os, time\nn = 0\ntry:\n while True:\n  if os.fork() == 0: time.sleep(60); os._exit(0)\n  n += 1\nexcept BlockingIOError: print('stopped', n < 100, flush=True)\nos._exit(0)",
        ),
        (
            "threads",
            "import threading, time\nn = 0\ntry:\n while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1\nexcept RuntimeError: print('stopped', n < 100, flush=True)\n__import__('os')._exit(0)",
        ),
        (
            "zombies",
            "import os\nn = 0\ntry:\n while True:\n  if os.fork() == 0: os._exit(0)\n  n += 1\nexcept BlockingIOError: print('stopped', n < 100, flush=True)\nos._exit(0)",
        ),
        (
            "daemons",
            "import os, signal, time\nn = 0\ntry:\n while True:\n  if os.fork() == 0:\n   os.setsid(); [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 3, 15)]\n   os.fork() and os._exit(0)\n   time.sleep(60); os._exit(0)\n  n += 1\nexcept BlockingIOError: print('stopped', n < 100, flush=True)\nos._exit(0)",
        ),
    ];
    for (name, bomb) in bombs {
        for (_spawner, jailed) in small(SandboxLimits { processes: 100, ..SandboxLimits::default() }).await {
            let ran = run_python(&jailed.agent, bomb).await;
            // A daemon's own child can be the one that is refused, hence more than once.
            assert!(ran.stdout.starts_with("stopped True\n"), "{name}: {}", ran.stderr);
            assert!(!ran.stdout.contains("False"), "{name}: {}", ran.stdout);
            jailed.kill().await;
            let left = descendants(std::process::id()).into_iter().filter(|pid| {
                std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(bomb))
            });
            assert_eq!(left.count(), 0, "{name}");
        }
    }
}

/// Group 19.
#[tokio::test]
async fn a_full_disk_is_the_sandbox_s_own() {
    let limits = SandboxLimits {
        file_bytes: 8 * MIB,
        home_bytes: 16 * MIB,
        tmp_bytes: 16 * MIB,
        files: 500,
        ..SandboxLimits::default()
    };
    let code = r"
import os, errno, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def fill(what):
    try: what()
    except OSError as e: return errno.errorcode[e.errno]
    return 'open'
def one_file():
    with open('big', 'wb') as f:
        for _ in range(64): f.write(bytes(1 << 20)); f.flush()
def several():
    for n in range(64):
        with open(f'part{n}', 'wb') as f: f.write(bytes(1 << 20))
def many():
    for n in range(2000): os.close(os.open(f'/tmp/{n:0250}', os.O_CREAT))
def deep():
    os.chdir('/tmp')
    for n in range(2000): os.mkdir('d'); os.chdir('d')
def sparse():
    with open('sparse', 'wb') as f: f.truncate(1 << 40)
def held():
    f = open('held', 'wb'); os.unlink('held')
    for _ in range(64): f.write(bytes(1 << 20)); f.flush()
for f in [sparse, one_file, several, many, deep, held]: print(f.__name__, fill(f))
";
    for (_spawner, jailed) in small(limits).await {
        let ran = run_python(&jailed.agent, code).await;
        let expected =
            "sparse EFBIG\none_file EFBIG\nseveral ENOSPC\nmany ENOSPC\ndeep ENOSPC\nheld ENOSPC\n";
        assert_eq!(ran.stdout, expected, "{}", ran.stderr);
        let full =
            jailed.agent.write_file("more", 0, true, vec![1; 1 << 20].into()).await.expect_err("is full");
        let source = std::error::Error::source(&full).expect("a cause").to_string();
        assert!(source.contains("No space left"), "{source}");
        assert_eq!(
            run(&jailed.agent, &["sh", "-c", "rm -rf part* sparse && echo on > x && cat x"]).await.stdout,
            "on\n"
        );
    }
}

/// Group 20.
#[tokio::test]
async fn endless_output_does_not_grow_the_host() {
    let own = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("status");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("line");
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("number") * 1024
    };
    for (_spawner, jailed) in small(SandboxLimits::default()).await {
        let script =
            "head -c 300M /dev/zero; head -c 100M /dev/urandom >&2; printf '\\033]0;x\\007\\377\\000'";
        let mut process = launch(&jailed.agent, &["sh", "-c", script]).await;
        let (before, mut most, mut bytes) = (own(), 0, 0);
        while let Some(event) = process.events.recv().await {
            match event {
                ProcessEvent::Stdout(piece) | ProcessEvent::Stderr(piece) => {
                    assert!(piece.len() <= 65_536);
                    bytes += piece.len();
                }
                ProcessEvent::Exited { code, .. } => assert_eq!(code, Some(0)),
                other => panic!("{other:?}"),
            }
            most = most.max(own());
        }
        assert_eq!(bytes, 400 * MIB as usize + 8);
        assert!(most < before + 64 * MIB, "grew from {before} to {most}");
    }
}

/// Group 21.
#[tokio::test]
async fn a_program_that_ignores_signals_can_still_be_ended() {
    let deaf = [
        "while True: pass",
        "sum(range(10**12))",
        "import signal, time\nfor s in range(1, 32):\n  if s not in (9, 19): signal.signal(s, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "import os, time\nos.kill(os.getpid(), 19)",
        "import signal, time\nsignal.signal(14, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\nwhile True: time.sleep(1)",
    ];
    for (_spawner, jailed) in small(SandboxLimits::default()).await {
        for code in deaf {
            let process = launch(&jailed.agent, &[&python().path, "-I", "-c", code]).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            process.handle.signal(libc::SIGINT, true).await.expect("asks");
            process.handle.signal(libc::SIGKILL, true).await.expect("ends");
            let ran = super::support::Ran::of(process).await;
            assert!(ran.signal.is_some() && !ran.oom, "{ran:?}");
        }
        let escaped =
            "import os, time\nif os.fork() == 0: os.setsid(); print('up', flush=True); time.sleep(100)";
        run_python(&jailed.agent, escaped).await;
        jailed.kill().await;
    }
}

/// Group 22.
#[tokio::test]
async fn spinning_everywhere_leaves_room_for_others() {
    for (spawner, jailed) in small(SandboxLimits { cpu_percent: 50, ..SandboxLimits::default() }).await {
        let spin = "for i in $(seq 60); do while :; do :; done & done; wait";
        let spinning = launch(&jailed.agent, &["bash", "-c", spin]).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let (before, since) = (jailed.usage().cpu_micros, Instant::now());
        let neighbour = spawner.spawn(&SandboxSpec::default()).await.expect("spawns");
        assert_eq!(run(&neighbour.agent, &["echo", "here"]).await.stdout, "here\n");
        tokio::time::sleep(Duration::from_secs(1)).await;
        if spawner.has_cgroups() {
            let used = Duration::from_micros(jailed.usage().cpu_micros - before).as_secs_f64();
            let share = used / since.elapsed().as_secs_f64();
            assert!(share < 0.8, "half a core was given, {share} taken");
        }
        let nice = run(&jailed.agent, &["sh", "-c", "ps -o ni= -p $$"]).await;
        assert_eq!(nice.stdout.trim(), "5");
        drop(spinning);
        jailed.kill().await;
    }
}

/// A whole sandbox that has ended its limit by its first process.
#[tokio::test]
async fn usage_is_reported() {
    for (spawner, jailed) in small(SandboxLimits::default()).await {
        put(&jailed.agent, "x", "y").await;
        let hold = "b = bytearray(50 << 20); print('up', flush=True); __import__('time').sleep(60)";
        let mut process = launch(&jailed.agent, &[&python().path, "-I", "-c", hold]).await;
        process.events.recv().await.expect("up");
        let deadline = Instant::now() + Duration::from_secs(10);
        while jailed.usage().memory_bytes < 50 * MIB && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let usage = jailed.usage();
        assert!(usage.memory_bytes >= 50 * MIB, "cgroups {}: {usage:?}", spawner.has_cgroups());
        assert!(usage.cpu_micros > 0 && usage.processes >= 2, "{usage:?}");
        assert!(used_by(std::process::id()) >= 50 * MIB);
        assert!(
            tokio::time::timeout(Duration::from_millis(50), jailed.ended()).await.is_err(),
            "still alive"
        );
        let ended = jailed.ended();
        drop(spawner);
        assert_eq!(ended.await, EndCause::Spawner);
    }
}
