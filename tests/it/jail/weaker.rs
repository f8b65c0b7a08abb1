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

#[tokio::test]
async fn event_loops_work_in_the_landlock_tier() {
    let (_spawner, jailed) = landlocked().await;
    let code = "import asyncio, multiprocessing as m\nasync def main(): return await asyncio.get_running_loop().run_in_executor(None, lambda: 'woken')\nprint(asyncio.run(main()))\nq = m.get_context('fork').Pipe(); q[1].send(1); print(q[0].recv())";
    let ran = python(&jailed, code).await;
    assert_eq!(ran.stdout, "woken\n1\n", "{}", ran.stderr);
}
