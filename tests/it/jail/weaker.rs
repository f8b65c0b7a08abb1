//! The weaker tiers: what they stop, and that what they do not stop is as said.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Command;

use bytes::Bytes;
use pathbox::host::jail::{Isolation, Jailed, Options, Spawner};

use super::support::{Ran, options, put, run, spawn, start};

/// With an ordinary directory as its home nothing can be bound, so only the system's Python is in reach of all.
const PYTHON: &str = "/usr/bin/python3";

async fn landlocked() -> (Spawner, Jailed) {
    let spawner = start(&Options { isolation: Isolation::Landlock, ..options() }).await;
    let jailed = spawn(&spawner).await;
    (spawner, jailed)
}

async fn python(jailed: &Jailed, code: &str) -> Ran {
    run(&jailed.agent, &[PYTHON, "-I", "-c", code]).await
}

#[test]
fn only_the_full_tier_has_nothing_to_warn_of() {
    assert_eq!(Isolation::default().warning(), None);
    assert!(Isolation::Landlock.warning().expect("warns").contains("file names"));
    assert!(Isolation::None.warning().expect("warns").contains("everything"));
}

/// Groups 1 to 7, 15 and 23, and the socket families of 8.
#[tokio::test]
async fn landlock_refuses_the_same_calls() {
    let (_spawner, jailed) = landlocked().await;
    put(&jailed.agent, "probes.py", include_str!("probes.py")).await;
    let ran = run(&jailed.agent, &[PYTHON, "-I", "probes.py", "inside"]).await;
    let results: BTreeMap<&str, &str> = ran.stdout.lines().filter_map(|line| line.split_once(' ')).collect();
    assert!(results.len() > 75, "{ran:?}");
    // There is no terminal in this tier, and no /proc.
    for (name, result) in results {
        let refused = ["EPERM", "ENOSYS", "EACCES", "SIGSYS", "ENOENT"].contains(&result);
        let no_terminal = name.starts_with("tioc") && result == "None";
        assert!(refused || no_terminal, "{name}: {result}");
    }
}

/// Groups 8, 9 and 11.
#[tokio::test]
async fn landlock_keeps_the_machine_s_files_and_sockets_away() {
    let dir = tempfile::Builder::new().prefix("pathbox-open-").tempdir_in("/var/tmp").expect("directory");
    let (secret, socket) = (dir.path().join("secret"), dir.path().join("socket"));
    std::fs::write(&secret, "of the machine").expect("writes");
    let _listener = UnixListener::bind(&socket).expect("listens");
    for path in [dir.path(), &secret, &socket] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("open to all");
    }
    let tcp = TcpListener::bind("127.0.0.1:0").expect("listens");
    let code = format!(
        r"
import os, socket
def tried(what):
    try: what(); return 'open'
    except OSError as e: return e.errno
print(tried(lambda: open({secret:?}).read()), tried(lambda: open({secret:?}, 'w')), tried(lambda: os.unlink({secret:?})),
      tried(lambda: socket.create_connection(('127.0.0.1', {port}))), tried(lambda: socket.socket(1).connect({socket:?})),
      tried(lambda: os.kill({pid}, 0)), tried(lambda: open('/etc/passwd').read()), tried(lambda: os.listdir('/tmp')))
print(tried(lambda: os.stat({secret:?})))
",
        port = tcp.local_addr().expect("address").port(),
        pid = std::process::id(),
    );
    let (_spawner, jailed) = landlocked().await;
    let inside = python(&jailed, &code).await;
    assert_eq!(
        inside.stdout, "13 13 13 1 1 1 13 13\nopen\n",
        "the last is what the warning says; {}",
        inside.stderr
    );
    let outside = Ran::outside(Command::new(PYTHON).args(["-I", "-c", &code.replace("os.unlink", "open")]));
    assert!(outside.stdout.starts_with("open open open open open open open open"), "{outside:?}");
}

/// Group 12 and the file requests of every tier.
#[tokio::test]
async fn files_have_their_usual_names_in_every_tier() {
    for isolation in [Isolation::Landlock, Isolation::None] {
        let spawner = start(&Options { isolation, ..options() }).await;
        let jailed = spawn(&spawner).await;
        for path in ["/home/user/a", "/tmp/b", "c"] {
            jailed.agent.write_file(path, 0, true, Bytes::from_static(b"x")).await.expect("writes");
            assert_eq!(jailed.agent.read_file(path, 0, 9).await.expect("reads"), "x");
        }
        let listed =
            run(&jailed.agent, &["sh", "-c", "ls; ls $TMPDIR; test $PWD = $HOME && echo home"]).await;
        assert_eq!(listed.stdout, "a\nc\nb\nhome\n");
        let home = jailed.agent.home().to_owned();
        assert!(std::path::Path::new(&home).exists());
        jailed.kill().await;
        assert!(!std::path::Path::new(&home).exists());
    }
}

#[tokio::test]
async fn landlock_file_requests_do_not_follow_links_out() {
    let (_spawner, jailed) = landlocked().await;
    run(&jailed.agent, &["sh", "-c", "ln -s /etc/passwd p; ln -s / up; ln -s /var/tmp w"]).await;
    assert!(jailed.agent.read_file("p", 0, 9).await.is_err());
    assert!(jailed.agent.read_file("up/etc/passwd", 0, 9).await.is_err());
    assert!(jailed.agent.write_file("w/pathbox-x", 0, true, Bytes::from_static(b"x")).await.is_err());
    assert!(jailed.agent.read_file("/etc/passwd", 0, 9).await.is_err());
}

/// Groups 14 and 18.
#[tokio::test]
async fn two_landlocked_sandboxes_cannot_touch_each_other() {
    let spawner = start(&Options { isolation: Isolation::Landlock, ..options() }).await;
    let (one, two) = (spawn(&spawner).await, spawn(&spawner).await);
    put(&one.agent, "mine", "x").await;
    let sleeping = super::support::launch(&one.agent, &["sh", "-c", "echo $$; exec sleep 60"]).await;
    let mine = format!("{}/mine", one.agent.home());
    let code = format!(
        "import os\nfor what in [lambda: open({mine:?}).read(), lambda: os.kill({}, 9)]:\n try: what(); print('open')\n except OSError as e: print(e.errno)",
        sleeping.handle.pid
    );
    let ran = python(&two, &code).await;
    assert_eq!(ran.stdout, "13\n1\n", "{}", ran.stderr);
}

/// Groups 14 and 22: the machine's processes are in sight of the kernel calls of this tier, those of the same user
/// above all. Outside, the same attempts succeed.
#[tokio::test]
async fn landlocked_programs_change_no_other_process() {
    let sleeping = Command::new("sleep").arg("60").spawn().map(Sleeping).expect("sleeps");
    let code = format!(
        r"
import ctypes, os, resource
libc, pid = ctypes.CDLL(None, use_errno=True), {pid}
def tried(name, call):
    try: result = call()
    except OSError as e: result = e.errno
    print(name, 'EPERM' if result == 1 or result == -1 and ctypes.get_errno() == 1 else 'open')
tried('prlimit', lambda: resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)))
tried('affinity', lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0)))
tried('scheduler', lambda: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0)))
tried('param', lambda: os.sched_setparam(pid, os.sched_param(0)))
tried('priority', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
tried('ioprio', lambda: libc.syscall({ioprio_set}, 1, pid, 3 << 13))
",
        pid = sleeping.0.id(),
        ioprio_set = libc::SYS_ioprio_set,
    );
    let (_spawner, jailed) = landlocked().await;
    let names = ["prlimit", "affinity", "scheduler", "param", "priority", "ioprio"];
    let all = |result: &str| names.iter().map(|name| format!("{name} {result}\n")).collect::<String>();
    let inside = python(&jailed, &code).await;
    assert_eq!(inside.stdout, all("EPERM"), "{}", inside.stderr);
    // The priority of everything that belongs to this user.
    let everybody = "import os\ntry: os.setpriority(os.PRIO_USER, 0, 19); print('open')\nexcept OSError as e: print(e.errno)";
    assert_eq!(python(&jailed, everybody).await.stdout, "1\n");
    let own = "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)); os.nice(1); os.sched_setaffinity(0, os.sched_getaffinity(0)); print('open')";
    assert_eq!(python(&jailed, own).await.stdout, "open\n", "its own can be lowered");
    let outside = Ran::outside(Command::new(PYTHON).args(["-I", "-c", &code]));
    assert_eq!(outside.stdout, all("open"), "{}", outside.stderr);
}

/// Ends with the test.
struct Sleeping(std::process::Child);

impl Drop for Sleeping {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Group 16: without a namespace of their own, queues and segments would be the machine's.
#[tokio::test]
async fn landlocked_programs_share_no_queues_with_others() {
    let code = r"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
mode = 0o1666
for name, call in [('shm', lambda: libc.shmget(KEY, 4096, mode)), ('sem', lambda: libc.semget(KEY, 1, mode)),
                   ('msg', lambda: libc.msgget(KEY, mode)), ('mq', lambda: libc.mq_open(b'/pathbox-KEY', 0o102, 0o666, None))]:
    print(name, 'open' if call() >= 0 else ctypes.get_errno())
"
    .replace("KEY", &(0x7A00_0000 + std::process::id()).to_string());
    let made = Ran::outside(Command::new(PYTHON).args(["-I", "-c", &code]));
    let (_spawner, jailed) = landlocked().await;
    let inside = python(&jailed, &code).await;
    let remove = code.replace("0o102", "2").replace("for name, call", "import sys\nlibc.shmctl(libc.shmget(KEY, 0, 0), 0, None); libc.semctl(libc.semget(KEY, 0, 0), 0, 0); libc.msgctl(libc.msgget(KEY, 0), 0, None); libc.mq_unlink(b'/pathbox-KEY'); sys.exit()\nfor name, call")
        .replace("KEY", &(0x7A00_0000 + std::process::id()).to_string());
    Ran::outside(Command::new(PYTHON).args(["-I", "-c", &remove]));
    assert_eq!(made.stdout, "shm open\nsem open\nmsg open\nmq open\n", "outside: {}", made.stderr);
    assert_eq!(inside.stdout, "shm 1\nsem 1\nmsg 1\nmq 1\n", "{}", inside.stderr);
}

/// Groups 10, 13 and 24: there is no `/proc` to look into.
#[tokio::test]
async fn landlocked_programs_see_no_process_and_no_program_of_the_host() {
    let (_spawner, jailed) = landlocked().await;
    let code = format!(
        "import os\nfor pid in ['1', '{}', str(os.getppid())]:\n for name in ['exe', 'environ', 'mem', 'maps', 'fd/0', 'cmdline']:\n  for mode in [os.O_RDONLY, os.O_WRONLY]:\n   try: os.close(os.open(f'/proc/{{pid}}/{{name}}', mode)); print(pid, name)\n   except OSError: pass\nprint('end')",
        std::process::id()
    );
    assert_eq!(python(&jailed, &code).await.stdout, "end\n");
    let outside = Ran::outside(Command::new(PYTHON).args(["-I", "-c", &code]));
    assert!(outside.stdout.contains(" environ\n"), "{outside:?}");
}

/// Groups 17 to 22: what is limited per process here, and by control groups where there are some.
#[tokio::test]
async fn landlocked_programs_are_limited() {
    use pathbox::host::jail::{SandboxLimits, SandboxSpec};
    let spawner = start(&Options { isolation: Isolation::Landlock, ..options() }).await;
    let limits = SandboxLimits {
        memory_bytes: 128 << 20,
        processes: 40,
        file_bytes: 8 << 20,
        ..SandboxLimits::default()
    };
    let spec = SandboxSpec { limits: Some(limits), ..SandboxSpec::default() };
    let jailed = spawner.spawn(&spec).await.expect("spawns");
    let heap =
        python(&jailed, "b = []\nwhile len(b) < 512: b.append(bytearray(1 << 20))\nprint('got')").await;
    assert!(!heap.stdout.contains("got") && (heap.oom || heap.stderr.contains("MemoryError")), "{heap:?}");
    let bomb = "import os, time\nn = 0\ntry:\n while n < 500:\n  if os.fork() == 0: time.sleep(60); os._exit(0)\n  n += 1\nexcept BlockingIOError: print('stopped', n < 60, flush=True)\nos._exit(0)";
    assert_eq!(python(&jailed, bomb).await.stdout, "stopped True\n");
    drop(jailed);
    let jailed = spawner.spawn(&spec).await.expect("spawns");
    let file = "import signal, errno\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\ntry:\n with open('f', 'wb') as f:\n  for _ in range(64): f.write(bytes(1 << 20)); f.flush()\nexcept OSError as e: print(errno.errorcode[e.errno])";
    assert_eq!(python(&jailed, file).await.stdout, "EFBIG\n");
    let flood = run(&jailed.agent, &["head", "-c", "50M", "/dev/zero"]).await;
    assert_eq!(flood.stdout.len(), 50 << 20);
    let deaf = super::support::launch(&jailed.agent, &[PYTHON, "-I", "-c", "import signal, os, time\nsignal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN)\nprint(1, flush=True)\nwhile True: pass"]).await;
    deaf.handle.signal(libc::SIGKILL, true).await.expect("ends");
    assert_eq!(Ran::of(deaf).await.signal, Some(libc::SIGKILL));
}

#[tokio::test]
async fn event_loops_work_in_the_landlock_tier() {
    let (_spawner, jailed) = landlocked().await;
    let code = "import asyncio, multiprocessing as m\nasync def main(): return await asyncio.get_running_loop().run_in_executor(None, lambda: 'woken')\nprint(asyncio.run(main()))\nq = m.get_context('fork').Pipe(); q[1].send(1); print(q[0].recv())";
    let ran = python(&jailed, code).await;
    assert_eq!(ran.stdout, "woken\n1\n", "{}", ran.stderr);
}

/// What Landlock itself does not know: signals to everyone below its sixth version, and metadata in every one.
#[tokio::test]
async fn landlocked_programs_reach_neither_their_agent_nor_other_processes_of_their_user() {
    let dir = tempfile::Builder::new().prefix("pathbox-own-").tempdir_in("/var/tmp").expect("directory");
    let own = dir.path().join("key");
    std::fs::write(&own, "of the user").expect("writes");
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o600)).expect("closed");
    let before = std::fs::metadata(&own).expect("is there");
    let (_spawner, jailed) = landlocked().await;
    let code = format!(
        "import os, signal\npath = {:?}\n\
         def tried(what):\n try: what()\n except OSError: pass\n\
         tried(lambda: os.chmod(path, 0o666)); tried(lambda: os.utime(path, (1, 1))); tried(lambda: os.chown(path, 1, 1))\n\
         tried(lambda: os.setxattr(path, 'user.x', b'x')); tried(lambda: os.truncate(path, 0))\n\
         import ctypes; assert ctypes.CDLL(None).inotify_init1(0) == -1\n\
         open('mine', 'w').write('x'); os.chmod('mine', 0o755)\n\
         signal.signal(signal.SIGTERM, signal.SIG_IGN); tried(lambda: os.kill(-1, signal.SIGKILL)); print('after')",
        own.display()
    );
    let ran = python(&jailed, &code).await;
    assert!(ran.signal == Some(9) || ran.stdout == "after\n", "{ran:?}");
    assert_eq!(run(&jailed.agent, &["echo", "on"]).await.stdout, "on\n", "the agent lives");
    let after = std::fs::metadata(&own).expect("is there");
    assert_eq!(after.permissions(), before.permissions());
    assert_eq!(
        (after.modified().expect("time"), after.len()),
        (before.modified().expect("time"), before.len())
    );
    assert_eq!(std::fs::read_to_string(&own).expect("readable"), "of the user");
}

/// A directory that a program has closed to everyone, itself included.
#[tokio::test]
async fn a_closed_directory_does_not_outlive_its_landlocked_sandbox() {
    let (_spawner, jailed) = landlocked().await;
    let home = jailed.agent.home().to_owned();
    run(&jailed.agent, &["sh", "-c", "mkdir -p a/b/c; echo x > a/b/c/f; chmod 000 a/b/c a/b a"]).await;
    jailed.kill().await;
    assert!(!std::path::Path::new(&home).exists(), "{home}");
}

/// Each closed directory takes a process to open.
#[tokio::test]
async fn files_that_take_long_to_remove_hold_up_no_other_sandbox() {
    let (spawner, jailed) = landlocked().await;
    let home = std::path::PathBuf::from(jailed.agent.home());
    run(&jailed.agent, &["sh", "-c", "for n in $(seq 200); do mkdir d$n; done; chmod 000 d*"]).await;
    let dead = tokio::spawn(jailed.kill());
    tokio::task::yield_now().await;
    let other = spawn(&spawner).await;
    assert!(home.exists(), "it is not waited for");
    dead.await.expect("it ends");
    assert!(!home.exists(), "nothing is left once it has ended");
    other.kill().await;
}

/// A path can be longer than what the kernel takes in one piece, and its end is closed.
#[tokio::test]
async fn a_deep_directory_does_not_outlive_its_landlocked_sandbox() {
    let (_spawner, jailed) = landlocked().await;
    let home = jailed.agent.home().to_owned();
    let code = "import os\nfor _ in range(30): os.mkdir('d' * 200); os.chdir('d' * 200)\nos.mkdir('x'); open('x/f', 'w').write('x'); os.chmod('x', 0)";
    assert_eq!(python(&jailed, code).await.code, Some(0));
    jailed.kill().await;
    assert!(!std::path::Path::new(&home).exists(), "{home}");
}

/// A host and its spawner that were killed at once leave their sandboxes' directories, some of them closed. Those that
/// someone holds are not left, whatever process numbers say: containers that share a directory have their own.
#[tokio::test]
async fn leftovers_of_a_killed_host_are_removed_at_the_next_start() {
    let mut dead = Command::new("true").spawn().expect("starts");
    dead.wait().expect("ends");
    let [left, held] = [1, 2].map(|n| std::path::PathBuf::from(format!("/tmp/pathbox-{}-0-{n}", dead.id())));
    for dir in [&left, &held] {
        std::fs::create_dir_all(dir.join("home/closed/in")).expect("makes");
    }
    let closed = left.join("home/closed");
    for dir in [closed.join("in"), closed] {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o0)).expect("closes");
    }
    let lock = std::fs::File::open(&held).expect("opens");
    lock.lock().expect("locks");
    let (_spawner, jailed) = landlocked().await;
    while left.exists() {
        tokio::task::yield_now().await;
    }
    assert!(std::path::Path::new(jailed.agent.home()).exists() && held.exists(), "and nothing else");
    std::fs::remove_dir_all(held).expect("removes");
}
