//! Beginnings and ends: nothing is left of a sandbox or of a host, however it went.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pathbox::host::jail::{EndCause, JailError, Options, Spawner};

use super::support::{EXE, chain, descendants, exe, launch, options, run, sandbox, spawn, spawner, start};

/// Everything on the machine that a sandbox could leave behind and that is this process's fault.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    processes: Vec<u32>,
    mounts: usize,
    groups: BTreeSet<PathBuf>,
    files: BTreeSet<PathBuf>,
}

fn traces(of: u32) -> Traces {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts").lines().count();
    let named = |dir: &Path, spawners: &[u32]| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let ours = |name: &str| spawners.iter().any(|pid| name.starts_with(&format!("pathbox-{pid}-")));
        entries
            .filter(|entry| entry.file_name().to_str().is_some_and(ours))
            .map(|entry| entry.path())
            .collect()
    };
    let processes = descendants(of);
    let mut groups = BTreeSet::new();
    let mut todo = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = todo.pop() {
        groups.extend(named(&dir, &processes));
        let below = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        todo.extend(
            below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
    }
    Traces { files: named(Path::new("/tmp"), &processes).into_iter().collect(), processes, mounts, groups }
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Group 25.
#[tokio::test]
async fn hundreds_of_sandboxes_leave_nothing() {
    // In a process of its own, so that other tests' sandboxes do not count.
    let mut helper = helper("cycles");
    let text = finish(&mut helper);
    assert!(text.contains("nothing left after 300"), "{text}");
}

#[tokio::test]
#[ignore = "started by another test"]
async fn helper_cycles() {
    if !is_helper("cycles") {
        return;
    }
    let spawner = spawner().await;
    let own = std::process::id();
    spawn(&spawner).await.kill().await;
    let spawner_pid = descendants(own)[0];
    let before = (traces(own), descriptors(own), descriptors(spawner_pid));
    for turn in 0..300 {
        let jailed = spawn(&spawner).await;
        if turn % 10 == 0 {
            assert_eq!(run(&jailed.agent, &["sh", "-c", "echo x > f; sleep 9 & cat f"]).await.stdout, "x\n");
        }
        jailed.kill().await;
    }
    let settled = Instant::now() + Duration::from_secs(5);
    while descriptors(own) > before.1 && Instant::now() < settled {
        tokio::time::sleep(Duration::from_millis(20)).await; // tasks that are still letting go
    }
    assert_eq!((traces(own), descriptors(own), descriptors(spawner_pid)), before);
    eprintln!("nothing left after 300");
}

/// Group 25.
#[test]
fn a_host_that_is_killed_takes_everything_with_it() {
    for isolation in ["namespaces", "landlock", "none"] {
        let mut helper = helper(&format!("wait {isolation}"));
        let mut lines = BufReader::new(helper.stderr.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "up"), "{isolation}");
        let before = traces(helper.id());
        assert!(before.processes.len() >= 5, "{isolation}: {before:?}");
        helper.kill().expect("kills with SIGKILL");
        helper.wait().expect("reaps");
        let gone = |pid: &u32| !Path::new("/proc").join(pid.to_string()).exists();
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let left = before.processes.iter().filter(|pid| !gone(pid)).count()
                + before.groups.iter().chain(&before.files).filter(|path| path.exists()).count();
            if left == 0 {
                break;
            }
            assert!(Instant::now() < deadline, "{isolation}: {left} left of {before:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(traces(std::process::id()).mounts, before.mounts);
    }
}

#[tokio::test]
#[ignore = "started by another test"]
async fn helper_wait() {
    use pathbox::host::jail::Isolation;
    let Some(isolation) = [
        ("wait namespaces", Isolation::Namespaces),
        ("wait landlock", Isolation::Landlock),
        ("wait none", Isolation::None),
    ]
    .into_iter()
    .find_map(|(name, isolation)| is_helper(name).then_some(isolation)) else {
        return;
    };
    let spawner = start(&Options { isolation, ..options() }).await;
    let (one, two) = (spawn(&spawner).await, spawn(&spawner).await);
    let daemon =
        "setsid sh -c 'trap \"\" HUP INT TERM; (trap \"\" HUP INT TERM; echo up; sleep 600) &' & wait";
    let mut first = launch(&one.agent, &["sh", "-c", daemon]).await;
    first.events.recv().await.expect("daemon is up");
    let _second = launch(&two.agent, &["sleep", "600"]).await;
    eprintln!("up");
    std::future::pending::<()>().await;
}

/// Group 25: whatever happens to the spawner.
#[tokio::test]
async fn a_spawner_that_is_killed_takes_its_sandboxes_with_it() {
    let mut helper = helper("orphan");
    let text = finish(&mut helper);
    assert!(text.contains("all gone"), "{text}");
}

#[tokio::test]
#[ignore = "started by another test"]
async fn helper_orphan() {
    if !is_helper("orphan") {
        return;
    }
    let spawner = spawner().await;
    let jailed = spawn(&spawner).await;
    let mut process = launch(&jailed.agent, &["sh", "-c", "sleep 600 & sleep 600"]).await;
    let children = descendants(std::process::id());
    kill(children[0]);
    assert_eq!(process.events.recv().await, None);
    assert_eq!(jailed.ended().await, EndCause::Spawner);
    // It is started again, and a caller that asks meanwhile waits for that.
    let next = spawn(&spawner).await;
    assert_eq!(run(&next.agent, &["echo", "on"]).await.stdout, "on\n");
    assert_ne!(spawner.pid(), children[0]);
    spawner.shutdown().await;
    drop(next);
    let deadline = Instant::now() + Duration::from_secs(5);
    while children.iter().any(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok()) {
        assert!(Instant::now() < deadline, "{:?}", descendants(std::process::id()));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // What the spawner could not clean up any more, the next one does.
    start(&options()).await.shutdown().await;
    let left = traces(std::process::id());
    assert!(left.groups.is_empty() && left.files.is_empty(), "{left:?}");
    eprintln!("all gone");
}

/// Group 25: a first process that dies by itself.
#[tokio::test]
async fn an_agent_that_dies_is_the_end_of_its_sandbox_only() {
    let (spawner, jailed) = sandbox().await;
    let neighbour = spawn(&spawner).await;
    let mut process = launch(&jailed.agent, &["sleep", "600"]).await;
    let agent = descendants(std::process::id()).into_iter().find(|pid| {
        let below = descendants(*pid);
        below.len() == 1
            && std::fs::read_to_string(format!("/proc/{}/comm", below[0])).is_ok_and(|comm| comm == "sleep\n")
            && is_ours(&spawner, *pid)
    });
    kill(agent.expect("the agent of the sleeping program"));
    assert_eq!(process.events.recv().await, None);
    assert_eq!(jailed.ended().await, EndCause::Died);
    assert_eq!(run(&neighbour.agent, &["echo", "here"]).await.stdout, "here\n");
}

fn is_ours(spawner: &Spawner, agent: u32) -> bool {
    descendants(spawner.pid()).contains(&agent)
}

fn kill(pid: u32) {
    let killed = Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill runs");
    assert!(killed.success());
}

/// Where namespaces are missing: a host inside a sandbox, which is as good as a container that forbids them.
#[tokio::test]
async fn a_machine_without_namespaces_is_refused_with_advice() {
    let dir = tempfile::Builder::new().prefix("pathbox-suite-").tempdir_in("/var/tmp").expect("directory");
    let suite = dir.path().join("suite");
    std::fs::copy(std::env::current_exe().expect("this program"), &suite).expect("copies");
    let program = dir.path().join("pathbox");
    std::fs::copy(exe(), &program).expect("copies");
    for path in [dir.path(), &suite, &program] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("readable");
    }
    let mut options = options();
    options.read_only.push(dir.path().to_owned());
    // The copy is a file of the sandbox, and a debug build has a few hundred megabytes.
    options.limits.file_bytes *= 8;
    options.limits.memory_bytes *= 4;
    let spawner = start(&options).await;
    let jailed = spawn(&spawner).await;
    let script = format!(
        "{EXE}={} {HELPER}=refused {} --ignored --exact jail::life::helper_refused --nocapture",
        program.display(),
        suite.display()
    );
    let ran = run(&jailed.agent, &["sh", "-c", &script]).await;
    if spawner.has_cgroups() {
        let refused = "this machine refuses making namespaces: user namespaces are switched off";
        assert!(ran.stderr.contains(refused), "{ran:?}");
        assert!(ran.stderr.contains("--isolation=landlock"), "{ran:?}");
    } else {
        // Then a sandbox does not even let a program copy itself into memory.
        assert!(ran.stderr.contains("copying the program into memory: Operation not permitted"), "{ran:?}");
    }
}

/// Where namespaces are switched off.
#[test]
fn namespaces_that_are_switched_off_are_named() {
    let suite = std::env::current_exe().expect("this program");
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" --ignored --exact jail::life::helper_refused --nocapture";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script])
        .arg(&suite)
        .env(HELPER, "refused")
        .stdin(Stdio::null())
        .output()
        .expect("unshare runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("sysctl user.max_user_namespaces=10000"), "{text}");
}

#[tokio::test]
#[ignore = "started by another test"]
async fn helper_refused() {
    if !is_helper("refused") {
        return;
    }
    match Spawner::start(&options()).await {
        Ok(_) => eprintln!("started"),
        Err(error) => eprintln!("{}", chain(&error)),
    }
}

#[tokio::test]
async fn every_step_of_the_isolation_is_probed_for_real() {
    let checks = pathbox::host::jail::probe(&options()).await.expect("probes");
    assert!(checks.len() >= 9, "{checks:?}");
    for check in &checks {
        assert!(check.works || !check.needed, "{check:?}");
        assert_eq!(check.works, check.remedy.is_empty(), "{check:?}");
    }
}

#[tokio::test]
async fn directories_that_show_too_much_are_refused() {
    for dir in ["/", "/home", "/root", "/etc", "relative"] {
        let options = Options { read_only: vec![dir.into()], ..options() };
        assert!(matches!(Spawner::start(&options).await, Err(JailError::Refused { .. })), "{dir}");
    }
    let options = Options { read_only: vec!["/var/tmp/not-there".into()], ..options() };
    let error = Spawner::start(&options).await.expect_err("is not there");
    assert!(error.to_string().contains("interpreter"), "{error}");
}

const HELPER: &str = "PATHBOX_TEST_HELPER";

/// Starts this suite again as a helper.
fn helper(what: &str) -> Child {
    let name = what.split(' ').next().expect("a name");
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", &format!("jail::life::helper_{name}"), "--nocapture"])
        .env(HELPER, what)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts")
}

fn is_helper(what: &str) -> bool {
    #[expect(clippy::disallowed_methods, reason = "set by the test that starts this helper")]
    std::env::var(HELPER).is_ok_and(|asked| asked == what)
}

fn finish(helper: &mut Child) -> String {
    let mut text = String::new();
    helper.stderr.take().expect("piped").read_to_string(&mut text).expect("reads");
    helper.wait().expect("ends");
    text
}
