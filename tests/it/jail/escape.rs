//! Attempts to get out, one after the other. Each is also tried outside, where it has to get further: a check that
//! passes because something is missing would show there.

use std::collections::BTreeMap;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Command;

use bytes::Bytes;
use pathbox::host::agent::{AgentError, AgentHandle};

use super::support::{Ran, is_root, put, python, run, run_python, sandbox, spawn, spawner};

const PROBES: &str = include_str!("probes.py");

/// What is answered inside when it is not `EPERM`.
const OTHERWISE: &[(&str, &str)] = &[
    ("clone3", "ENOSYS"), // so that a C library takes `clone`, whose flags can be looked at
    ("x32_getpid", "ENOSYS"),
    ("int_0x80_getpid", "SIGSYS"),
    ("socket_raw_inet", "EINVAL"),
    ("socket_mptcp", "EINVAL"),
    ("socket_udplite", "EINVAL"),
    ("socket_sctp", "EINVAL"),
    ("setuid_0", "EINVAL"), // there is no such user inside
    ("negative_nice", "EACCES"),
    ("oom_score", "EROFS"),
    ("write_core_pattern", "EROFS"),
    ("write_overcommit_memory", "EROFS"),
    ("write_hostname", "EROFS"),
    ("write_ip_forward", "EROFS"),
];

/// Calls of one processor.
const ON_X86: &[&str] = &["int_0x80_getpid", "ioperm", "iopl", "modify_ldt"];

/// Attempts that a kernel can lack, or that this machine does not give even to root.
const MAY_BE_MISSING: &[&str] = &[
    "kexec_load",
    "finit_module",
    "init_module",
    "delete_module",
    "iopl",
    "ioperm",
    "modify_ldt",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "socket_alg",
    "socket_key",
    "socket_bluetooth",
    "socket_xdp",
    "socket_vsock",
    "socket_mptcp",
    "socket_udplite",
    "socket_sctp",
    "x32_getpid",
    "int_0x80_getpid",
    "write_sysrq-trigger",
    "tioclinux",
    "tiocsti",
    "oom_score",
    "quotactl",
    "userfaultfd",
    "kcmp",
];

/// Attempts that an ordinary user cannot make outside either, not even as root of a namespace.
const NEED_ROOT: &[&str] = &[
    "syslog",
    "fanotify_init",
    "reboot",
    "swapon",
    "acct",
    "settimeofday",
    "negative_nice",
    "real_time",
    "write_core_pattern",
    "write_overcommit_memory",
    "write_hostname",
    "perf_event_open",
    "bpf",
    "mknod",
    "open_by_handle_at",
];

fn results(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once(' ')).collect()
}

/// Groups 1 to 7, 15 and 23, and the socket families of 8.
#[tokio::test]
async fn no_call_that_leads_out_is_answered() {
    let (_spawner, jailed) = sandbox().await;
    put(&jailed.agent, "probes.py", PROBES).await;
    let inside = run(&jailed.agent, &[&python().path, "-I", "probes.py", "inside"]).await;
    let inside = results(&inside.stdout);
    let outside = Ran::outside(Command::new(&python().path).args(["-I", "-c", PROBES, "outside"]));
    let outside = results(&outside.stdout);

    assert!(inside.len() > 75, "{inside:?}");
    let mut wrong = Vec::new();
    for (name, result) in &inside {
        let expected = match OTHERWISE.iter().find(|(other, _)| other == name) {
            _ if !cfg!(target_arch = "x86_64") && ON_X86.contains(name) => "ENOSYS",
            Some((_, result)) => *result,
            None => "EPERM",
        };
        let missing_here = name.starts_with("write_") && *result == "ENOENT" && outside[name] == "ENOENT";
        if *result != expected && !missing_here {
            wrong.push(format!("{name}: {result}, not {expected}"));
        }
    }
    for (name, result) in &outside {
        let refused =
            ["EPERM", "EACCES", "ENOSYS", "EAFNOSUPPORT", "ENOENT", "ESOCKTNOSUPPORT"].contains(result);
        let excused = MAY_BE_MISSING.contains(name) || NEED_ROOT.contains(name) && !is_root();
        if refused && !excused && !(*name == "swapon" || *name == "acct") {
            wrong.push(format!("{name} does not work outside either: {result}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Group 8: the network.
#[tokio::test]
async fn nothing_but_its_own_loopback_is_reachable() {
    let (_spawner, jailed) = sandbox().await;
    let listener = TcpListener::bind("0.0.0.0:0").expect("listens");
    let port = listener.local_addr().expect("address").port();
    // No packet is sent; the kernel only says which of our addresses would be used.
    let routed = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    let own = routed.map_or_else(|_| "127.0.0.1".to_owned(), |address| address.ip().to_string());
    let attempt = |host: &str, port: u16| {
        format!(
            "import socket\ntry: socket.create_connection(({host:?}, {port}), 3); print('open')\nexcept OSError as e: print(e.errno)"
        )
    };
    for host in ["127.0.0.1", &own] {
        let outside = Ran::outside(Command::new(&python().path).args(["-I", "-c", &attempt(host, port)]));
        assert_eq!(outside.stdout, "open\n", "outside, {host}");
        let inside = run_python(&jailed.agent, &attempt(host, port)).await;
        assert!(
            [libc::ECONNREFUSED, libc::ENETUNREACH].iter().any(|errno| inside.stdout == format!("{errno}\n")),
            "{inside:?}"
        );
    }
    for host in ["1.1.1.1", "169.254.169.254", "10.0.0.1", "2606:4700::1111"] {
        let inside = run_python(&jailed.agent, &attempt(host, 80)).await;
        assert_eq!(inside.stdout, format!("{}\n", libc::ENETUNREACH), "{host}");
    }
    let interfaces = run_python(&jailed.agent, "import socket; print(socket.if_nameindex())").await;
    assert_eq!(interfaces.stdout, "[(1, 'lo')]\n");
}

/// Group 8: what must go on working.
#[tokio::test]
async fn servers_and_event_loops_work_inside() {
    let (_spawner, jailed) = sandbox().await;
    let code = r"
import asyncio, threading, http.server, urllib.request, concurrent.futures, socket
server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen(f'http://localhost:{server.server_port}/').status)
async def main():
    loop = asyncio.get_running_loop()
    print(await loop.run_in_executor(None, lambda: 'woken'))
    done = asyncio.Event()
    threading.Timer(0.01, lambda: loop.call_soon_threadsafe(done.set)).start()
    await done.wait()
    process = await asyncio.create_subprocess_exec('echo', 'child', stdout=-1)
    print((await process.communicate())[0])
asyncio.run(main())
with concurrent.futures.ProcessPoolExecutor(2) as pool: print(list(pool.map(abs, [-1, -2])))
";
    let ran = run_python(&jailed.agent, code).await;
    assert_eq!(ran.stdout, "200\nwoken\nb'child\\n'\n[1, 2]\n", "{}", ran.stderr);
}

/// Group 9.
#[tokio::test]
async fn unix_sockets_of_the_machine_are_out_of_reach() {
    let (_spawner, jailed) = sandbox().await;
    let dir = tempfile::Builder::new().prefix("pathbox-open-").tempdir_in("/var/tmp").expect("directory");
    let path = dir.path().join("socket");
    let _listener = UnixListener::bind(&path).expect("listens");
    for (path, mode) in [(dir.path(), 0o777), (path.as_path(), 0o777)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("opens");
    }
    let name = format!("pathbox-test-{}", std::process::id());
    let _abstract =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).expect("name")).expect("listens");
    let attempt = |address: &str| {
        format!(
            "import socket\ns = socket.socket(socket.AF_UNIX)\ntry: s.connect({address}); print('open')\nexcept OSError as e: print(e.errno)"
        )
    };
    for (address, refused) in [
        (format!("{:?}", path.to_string_lossy()), libc::ENOENT),
        (format!("'\\0{name}'"), libc::ECONNREFUSED),
    ] {
        let outside = Ran::outside(Command::new(&python().path).args(["-I", "-c", &attempt(&address)]));
        assert_eq!(outside.stdout, "open\n", "outside, {address}: {}", outside.stderr);
        let inside = run_python(&jailed.agent, &attempt(&address)).await;
        assert_eq!(inside.stdout, format!("{refused}\n"), "{address}: {}", inside.stderr);
    }
    let usual = "for f in /var/run/docker.sock /run/docker.sock /run/dbus/system_bus_socket /run/systemd; do test -e $f && echo $f; done";
    assert_eq!(run(&jailed.agent, &["sh", "-c", usual]).await.stdout, "");
}

/// Group 10.
#[tokio::test]
async fn proc_shows_the_sandbox_and_nothing_of_the_machine() {
    let (_spawner, jailed) = sandbox().await;
    let code = r"
import os
others = [p for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()]
print('others', others)
for name in ['exe', 'environ', 'maps', 'mem', 'fd', 'root', 'cwd', 'stat', 'ns/net']:
    try:
        path = '/proc/1/' + name
        os.listdir(path) if name == 'fd' else os.stat(path) and open(path, 'rb').read(1)
        print(name, 'open')
    except OSError: pass
for name in ['kcore', 'kallsyms', 'keys', 'cmdline', 'config.gz', 'timer_list', 'modules', 'diskstats', 'partitions']:
    try:
        if open('/proc/' + name, 'rb').read(10): print(name, 'tells')
    except OSError: pass
for name in ['/sys/kernel', '/sys/fs/cgroup', '/proc/acpi/x']:
    if os.path.exists(name): print(name)
print(open('/proc/self/status').read().count('CapEff:\t0000000000000000'), open('/proc/self/cgroup').read().count('pathbox'))
";
    let ran = run_python(&jailed.agent, code).await;
    assert_eq!(ran.stdout, "others []\n1 0\n", "{}", ran.stderr);
    let outside = Ran::outside(Command::new(&python().path).args(["-I", "-c", code]));
    assert!(
        outside.stdout.contains("cmdline tells") && outside.stdout.contains("/sys/kernel"),
        "{}",
        outside.stdout
    );
}

/// Group 11.
#[tokio::test]
async fn secrets_of_the_machine_are_absent() {
    let canary = tempfile::NamedTempFile::new_in("/tmp").expect("file");
    std::fs::set_permissions(canary.path(), std::fs::Permissions::from_mode(0o644)).expect("readable");
    let (_spawner, jailed) = sandbox().await;
    let environment = run(&jailed.agent, &["env"]).await.stdout;
    let names: Vec<&str> =
        environment.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    assert_eq!(names, ["HOME", "LANG", "LOGNAME", "PATH", "USER"]);
    let code = format!(
        "import os\nfor p in [{:?}, '/etc/shadow', '/etc/machine-id', '/etc/resolv.conf', '/root/.bashrc', '/home/user/.bashrc', '/var/log', '/var/lib', '/srv', '/mnt/data/x', '/boot', '/etc/ssl/private']:\n if os.path.exists(p): print(p)\nfds = sorted(os.listdir('/proc/self/fd')); print(fds)\nprint(sorted(os.listdir('/etc')))",
        canary.path()
    );
    let ran = run_python(&jailed.agent, &code).await;
    let mut lines = ran.stdout.lines();
    assert_eq!(lines.next(), Some("['0', '1', '2', '3']"), "3 is the listing itself: {ran:?}");
    let etc = lines.next().expect("listing");
    for secret in ["shadow", "hostname'", "ssh", "sudoers", "cron"] {
        let made_up = secret == "hostname'";
        assert_eq!(etc.contains(secret), made_up, "{etc}");
    }
    let outside = Ran::outside(Command::new(&python().path).args(["-I", "-c", &code]));
    assert!(outside.stdout.contains(&*canary.path().to_string_lossy()), "{}", outside.stdout);
    assert!(outside.stdout.contains("/etc/shadow"), "{}", outside.stdout);
}

fn errno(error: &AgentError) -> Option<i32> {
    match error {
        AgentError::Refused { source, .. } => source.raw_os_error(),
        _ => None,
    }
}

async fn read_errno(agent: &AgentHandle, path: &str) -> Option<i32> {
    match agent.read_file(path, 0, 1000).await {
        Ok(bytes) => panic!("{path} was read: {bytes:?}"),
        Err(error) => errno(&error),
    }
}

/// Group 12: file requests over what a program has put in their way.
#[tokio::test]
async fn file_requests_do_not_follow_links_out_or_hang() {
    let canary = tempfile::NamedTempFile::new_in("/tmp").expect("file");
    std::fs::write(canary.path(), "of the machine").expect("writes");
    let (_spawner, jailed) = sandbox().await;
    let agent = &jailed.agent;
    let script = format!(
        "ln -s /etc/shadow shadow; ln -s {0} canary; ln -s / up; ln -s /proc/self/environ environ; ln -s /proc/1/mem mem; \
         ln -s /dev/zero zero; mkfifo pipe; ln -s loop loop; ln -s /proc/self/fd/3 fd; mkdir -p a/b; echo mine > a/f; ln a/f hard",
        canary.path().display()
    );
    assert_eq!(run(agent, &["sh", "-c", &script]).await.code, Some(0));
    assert_eq!(read_errno(agent, "shadow").await, Some(libc::ENOENT));
    assert_eq!(read_errno(agent, "canary").await, Some(libc::ENOENT));
    assert_eq!(read_errno(agent, "up/../../../../../etc/shadow").await, Some(libc::ENOENT));
    assert_eq!(read_errno(agent, "environ").await, Some(libc::EACCES));
    assert_eq!(read_errno(agent, "mem").await, Some(libc::EACCES));
    assert_eq!(read_errno(agent, "zero").await, Some(libc::EACCES));
    assert_eq!(read_errno(agent, "pipe").await, Some(libc::EACCES));
    assert_eq!(read_errno(agent, "loop").await, Some(libc::ELOOP));
    assert_eq!(read_errno(agent, "a").await, Some(libc::EISDIR));
    assert!(agent.read_file("fd", 0, 10).await.is_err());
    assert_eq!(agent.read_file("/etc/hostname", 0, 100).await.expect("made up"), "sandbox\n");

    // Writing over a link to a name that exists on the machine makes a file of the sandbox's own.
    agent.write_file("canary", 0, true, Bytes::from_static(b"of the sandbox")).await.expect("inside");
    assert_eq!(std::fs::read_to_string(canary.path()).expect("still there"), "of the machine");
    for path in ["pipe", "mem", "zero", "/usr/bin/x", "/etc/passwd", "/proc/sys/kernel/core_pattern"] {
        assert!(agent.write_file(path, 0, true, Bytes::from_static(b"x")).await.is_err(), "{path}");
    }
    let listed = agent.list_dir("up", 1).await.expect("lists");
    assert!(listed.iter().all(|info| info.name != "root" || info.path == "/home/user/up/root"), "{listed:?}");
    agent.remove("up").await.expect("removes the link");
    assert!(agent.stat("/home/user/a").await.is_ok() && agent.stat("/usr").await.is_ok());
}

/// Group 12: a directory that becomes a link again and again while it is written through.
#[tokio::test]
async fn a_directory_that_is_swapped_for_a_link_leads_nowhere() {
    let outside = tempfile::tempdir_in("/tmp").expect("directory");
    std::fs::set_permissions(outside.path(), std::fs::Permissions::from_mode(0o777)).expect("open to all");
    let (_spawner, jailed) = sandbox().await;
    let script = format!(
        "mkdir real; while :; do ln -sfn real d; ln -sfn {0} d; rm -f d; mkdir -p d; rmdir d; done 2>/dev/null",
        outside.path().display()
    );
    let swapping = super::support::launch(&jailed.agent, &["sh", "-c", &script]).await;
    for turn in 0..300 {
        let _ = jailed.agent.write_file(&format!("d/f{turn}"), 0, true, Bytes::from_static(b"x")).await;
    }
    swapping.handle.signal(libc::SIGKILL, true).await.expect("stops");
    assert_eq!(std::fs::read_dir(outside.path()).expect("lists").count(), 0);
}

/// Group 13.
#[tokio::test]
async fn no_process_gives_access_to_the_host_s_program() {
    let (_spawner, jailed) = sandbox().await;
    let code = r"
import os
found = []
for pid in ['self', '1', str(os.getppid())] + [str(p) for p in range(2, 50)]:
    for mode in [os.O_WRONLY, os.O_RDWR | os.O_TRUNC]:
        try: os.close(os.open(f'/proc/{pid}/exe', mode)); found.append(pid)
        except OSError: pass
try: found.append(os.readlink('/proc/1/exe'))
except OSError as e: print(e.errno)
print(found)
";
    let ran = run_python(&jailed.agent, code).await;
    assert!(ran.stdout.ends_with("\n[]\n"), "{ran:?}");
}

/// Group 14.
#[tokio::test]
async fn signals_end_at_the_sandbox_and_its_first_process_survives() {
    let (spawner, jailed) = sandbox().await;
    let neighbour = spawn(&spawner).await;
    let sleeping = super::support::launch(&neighbour.agent, &["sleep", "60"]).await;
    let code = format!(
        "import os, signal\nfor pid in [{}, 1]:\n for s in [19, 9, 15, 11, 6, 2]:\n  try: os.kill(pid, s)\n  except OSError as e: print(pid, e.errno)\nprint('all', flush=True)\nos.kill(-1, 9)",
        std::process::id()
    );
    let ran = run_python(&jailed.agent, &code).await;
    assert!(ran.stdout.contains(&format!("{} {}", std::process::id(), libc::ESRCH)), "{ran:?}");
    assert!(ran.stdout.contains("all"), "{ran:?}");
    assert_eq!(run(&jailed.agent, &["echo", "alive"]).await.stdout, "alive\n");
    sleeping.handle.signal(0, false).await.expect("the neighbour lives");
    assert_eq!(run(&neighbour.agent, &["pgrep", "-c", "sleep"]).await.stdout, "1\n");
}

/// Group 16, and the keyrings of 5.
#[tokio::test]
async fn two_sandboxes_share_nothing() {
    let spawner = spawner().await;
    let (one, two) = (spawn(&spawner).await, spawn(&spawner).await);
    let make = r"
import ctypes, os, socket, time
libc = ctypes.CDLL(None, use_errno=True)
made = [libc.semget(4711, 1, 0o1666) >= 0, libc.msgget(4711, 0o1666) >= 0]
open('/dev/shm/pathbox', 'w').write('x'); open('/tmp/pathbox', 'w').write('x'); open('/home/user/pathbox', 'w').write('x')
s = socket.socket(socket.AF_UNIX); s.bind('\0pathbox'); s.listen()
t = socket.socket(); t.bind(('127.0.0.1', 4711)); t.listen()
print(made, flush=True); time.sleep(60)
";
    let look = r"
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
print(libc.semget(4711, 1, 0o666) >= 0, libc.msgget(4711, 0o666) >= 0,
      [os.path.exists(p) for p in ['/dev/shm/pathbox', '/tmp/pathbox', '/home/user/pathbox']],
      socket.socket(socket.AF_UNIX).connect_ex('\0pathbox') == 0, socket.socket().connect_ex(('127.0.0.1', 4711)) == 0)
";
    let mut making = super::support::launch(&one.agent, &[&python().path, "-I", "-c", make]).await;
    let first = making.events.recv().await.expect("event");
    // Without control groups nothing counts what System V has, so it is refused.
    let system_v = if spawner.has_cgroups() { "True" } else { "False" };
    assert_eq!(format!("{first:?}"), format!("Stdout(b\"[{system_v}, {system_v}]\\n\")"));
    let same = run_python(&one.agent, look).await;
    let expected = format!("{system_v} {system_v} [True, True, True] True True\n");
    assert_eq!(same.stdout, expected, "{}", same.stderr);
    let other = run_python(&two.agent, look).await;
    assert_eq!(other.stdout, "False False [False, False, False] False False\n", "{}", other.stderr);
}

/// Group 23: programs with a set-user-id bit.
#[tokio::test]
async fn set_user_id_programs_run_as_the_caller() {
    let (_spawner, jailed) = sandbox().await;
    let code = "import os, subprocess\nfound = [p for p in ['/usr/bin/su', '/usr/bin/mount', '/usr/bin/passwd', '/usr/bin/newgrp'] if os.path.exists(p) and os.stat(p).st_mode & 0o4000]\nprint(len(found) > 0)\ntry: print(subprocess.run(['su', '-c', 'id -u'], stdin=-3, capture_output=True).stdout)\nexcept OSError as e: print(e)";
    let ran = run_python(&jailed.agent, code).await;
    assert_eq!(ran.stdout, "True\nb''\n", "{}", ran.stderr);
    let status = run(&jailed.agent, &["grep", "-E", "NoNewPrivs|Seccomp:|CapBnd", "/proc/self/status"]).await;
    assert_eq!(status.stdout, "CapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n");
}

/// Groups 1 to 7: what no list names does not exist, what a later kernel brings included. Numbers from 424 on are the same for all
/// processors.
#[tokio::test]
async fn calls_that_are_newer_than_the_list_do_not_exist() {
    let (_spawner, jailed) = sandbox().await;
    let code = r"
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
answers = {}
for number in range(424, 640):
    result = libc.syscall(number, -1, 0, 0, 0, 0, 0)
    answers[number] = errno.errorcode.get(ctypes.get_errno()) if result == -1 else 'open'
print(*[number for number, answer in answers.items() if answer not in ('ENOSYS', 'EPERM')])
print(*[number for number, answer in answers.items() if answer == 'EPERM'])
";
    let ran = run_python(&jailed.agent, code).await;
    let mut lines = ran.stdout.lines();
    // Process descriptors, closing of ranges, three newer forms of opening, asking and waiting, and futexes, as far as the kernel
    // has them.
    let open = ["424", "434", "436", "437", "439", "441", "449"];
    let answered: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    assert!(answered.len() >= 4 && answered.iter().all(|number| open.contains(number)), "{ran:?}");
    // io_uring, mounts, other processes.
    assert_eq!(lines.next(), Some("425 426 427 428 429 430 431 432 433 438 440 442"), "{ran:?}");
}
