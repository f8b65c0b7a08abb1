//! The pool, pauses, deaths, and what is left behind: nothing.

use std::io::BufRead as _;
use std::path::Path;
use std::time::{Duration, Instant};

use chrono::{TimeZone, Utc};
use http::Method;
use pathbox::domain::Clock;
use serde_json::{Value, json};

use super::{TestHost, TestSandbox, answer, client, exit_code, written};

async fn state(host: &TestHost, sandbox: &TestSandbox) -> Value {
    host.api(Method::GET, &format!("/sandboxes/{}", sandbox.id), Value::Null).await.1["state"].clone()
}

/// Waits for something that takes a moment.
async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    let until = Instant::now() + Duration::from_secs(15);
    while !is_so().await {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Process numbers of all programs on this machine whose command line holds a text.
fn processes_with(mark: &str) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(mark))
    })
    .collect()
}

#[tokio::test]
async fn a_ready_sandbox_is_given_away_once_and_replaced() {
    let host = TestHost::with(|options| options.ready = 1).await;
    // When the shell of the sandbox started, in seconds since the machine did; its first interpreter is older.
    let age = "awk '{print $1}' /proc/uptime; cut -d')' -f2 /proc/[0-9]*/stat | awk '{print $20 / 100}' | sort -n | head -1";
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let sandbox = host.create().await;
        let numbers = written(&host.run(&sandbox, age).await, "stdout");
        let numbers: Vec<f64> = numbers.lines().map(|line| line.parse().unwrap()).collect();
        let [now, oldest] = numbers[..] else { panic!("{numbers:?}") };
        assert!(now - oldest > 0.5, "its interpreter was started {} s ago, for this create", now - oldest);
        host.run(&sandbox, "touch /tmp/mine").await;
    }
    let third = host.create().await;
    assert_ne!(exit_code(&host.run(&third, "test -e /tmp/mine").await), 0);
}

#[tokio::test]
async fn a_paused_sandbox_stands_still_and_goes_on_where_it_stood() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let start = json!({"process": {"cmd": "/bin/bash", "args": ["-c",
        "setsid bash -c 'while true; do date +%s%N >> ticks; sleep 0.02; done' & sleep 0.5"]}, "stdin": false});
    host.stream(&sandbox, "/process.Process/Start", start, &[]).await;
    let path = format!("/sandboxes/{}", sandbox.id);
    assert_eq!(host.api(Method::POST, &format!("{path}/pause"), json!({})).await, (204, Value::Null));
    assert_eq!(host.api(Method::POST, &format!("{path}/pause"), json!({})).await.0, 409);
    assert_eq!(state(&host, &sandbox).await, "paused");
    assert_eq!(answer(host.to(&sandbox, 49983, Method::GET, "/health")).await.0, 502);
    assert_eq!(
        host.api(Method::GET, "/v2/sandboxes?state=paused", Value::Null).await.1[0]["sandboxID"],
        sandbox.id
    );
    assert_eq!(host.api(Method::GET, "/sandboxes", Value::Null).await.1, json!([]));
    assert_eq!(host.api(Method::POST, &format!("{path}/timeout"), json!({"timeout": 9})).await.0, 404);
    tokio::time::sleep(Duration::from_secs(1)).await;

    assert_eq!(host.api(Method::POST, &format!("/v2{path}/connect"), json!({})).await.0, 201);
    assert_eq!(host.api(Method::POST, &format!("/v2{path}/connect"), json!({})).await.0, 200);
    assert_eq!(host.api(Method::POST, &format!("{path}/resume"), json!({})).await.0, 409);
    let events = host.run(&sandbox, "sleep 0.3; cat ticks").await;
    let ticks: Vec<i64> = written(&events, "stdout").lines().filter_map(|line| line.parse().ok()).collect();
    let longest = ticks.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(longest > 900_000_000, "it ran on while it was paused: {longest} ns");
    assert!(ticks.last().unwrap() - ticks.first().unwrap() > longest, "it went on after the pause");
}

#[tokio::test]
async fn an_end_can_be_a_pause_and_traffic_can_wake() {
    let clock = Clock::manual(Utc.with_ymd_and_hms(2026, 1, 1, 0, 0, 0).unwrap());
    let host = TestHost::with(|options| options.clock = clock.clone()).await;
    let sleeper = host.create_as(json!({"timeout": 60, "autoPause": true})).await;
    let waker =
        host.create_as(json!({"timeout": 60, "autoPause": true, "autoResume": {"enabled": true}})).await;
    host.run(&waker, "echo kept > note").await;
    clock.advance(Duration::from_secs(61));
    assert_eq!(answer(host.to(&sleeper, 49983, Method::GET, "/health")).await.0, 502);
    eventually("it pauses at its end", async || state(&host, &sleeper).await == "paused").await;
    assert_eq!(written(&host.run(&waker, "cat note").await, "stdout"), "kept\n");
    assert_eq!(state(&host, &waker).await, "running");
    clock.advance(Duration::from_secs(25 * 3600));
    eventually("a pause does not last for ever", async || state(&host, &sleeper).await == Value::Null).await;
}

#[tokio::test]
async fn a_killed_sandbox_leaves_no_process() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let mark = format!("31536{}", std::process::id());
    let daemon = format!("setsid nohup sleep {mark} >/dev/null 2>&1 & disown; sleep 0.2");
    host.run(&sandbox, &daemon).await;
    assert!(!processes_with(&mark).is_empty(), "the daemon runs");
    let path = format!("/sandboxes/{}", sandbox.id);
    assert_eq!(host.api(Method::DELETE, &path, Value::Null).await.0, 204);
    assert_eq!(processes_with(&mark), [0; 0], "when the answer is there, they are gone");
}

#[tokio::test]
async fn a_host_that_ends_takes_every_sandbox_along() {
    let host = TestHost::with(|options| options.ready = 1).await;
    let mark = format!("31537{}", std::process::id());
    for _ in 0..2 {
        let sandbox = host.create().await;
        host.run(&sandbox, &format!("setsid nohup sleep {mark} >/dev/null 2>&1 & disown; sleep 0.2")).await;
    }
    assert!(processes_with(&mark).len() >= 2);
    host.end().await;
    assert_eq!(processes_with(&mark), [0; 0]);
}

/// No word to anybody before its death: what holds its sandboxes must see it by itself.
#[tokio::test]
async fn a_host_that_is_killed_takes_every_sandbox_along() {
    let mut host = std::process::Command::new(env!("CARGO_BIN_EXE_pathbox"))
        .args(["host", "--listen", "127.0.0.1:0"])
        .env("E2B_API_KEY", "e2b_0123456789012345678901234567890123456789")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufReader::new(host.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = line.split("E2B_API_URL=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().to_owned();
    let client = client();
    let key = "e2b_0123456789012345678901234567890123456789";
    let create = client.post(format!("{url}/v2/sandboxes")).header("x-api-key", key);
    let (status, sandbox) = answer(create.json(&json!({"templateID": "base"}))).await;
    assert_eq!(status, 201);
    let mark = format!("31538{}", std::process::id());
    let code = format!(
        "import subprocess; subprocess.Popen(['setsid', 'sleep', '{mark}'])\nimport time; time.sleep(1000)"
    );
    let execute = client
        .post(format!("{url}/execute"))
        .header("e2b-sandbox-id", sandbox["sandboxID"].as_str().unwrap())
        .header("e2b-sandbox-port", "49999");
    let _running = execute.json(&json!({"code": code})).send().await.unwrap();
    eventually("the program runs", async || !processes_with(&mark).is_empty()).await;
    host.kill().unwrap();
    host.wait().unwrap();
    eventually("nothing is left", async || processes_with(&mark).is_empty()).await;
}

/// What this process holds, and the control groups of its spawner.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    descriptors: usize,
    processes: usize,
    mounts: usize,
    cgroups: usize,
}

fn traces() -> Traces {
    let children = children_of(std::process::id());
    let grandchildren = children.iter().flat_map(|pid| children_of(*pid)).count();
    Traces {
        descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        processes: children.len() + grandchildren,
        mounts: std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(),
        cgroups: children
            .iter()
            .map(|pid| cgroups(Path::new("/sys/fs/cgroup"), &format!("pathbox-{pid}-"), 4))
            .sum(),
    }
}

fn children_of(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Control groups at and below `dir` whose name begins so.
fn cgroups(dir: &Path, beginning: &str, depth: u32) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.map(|entry| {
        let below = if depth > 0 { cgroups(&entry.path(), beginning, depth - 1) } else { 0 };
        below + usize::from(entry.file_name().to_string_lossy().starts_with(beginning))
    })
    .sum()
}

/// Runs itself in a process of its own, since other tests would change what is counted.
#[test]
fn a_thousand_sandboxes_come_and_go_and_leave_nothing() {
    let name = "host::life::a_thousand_sandboxes_come_and_go_and_leave_nothing";
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == name)
        && arguments.iter().any(|argument| argument == "--exact")
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(come_and_go(1000));
    }
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .output()
        .unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && said.contains("1 passed"), "{said}");
}

async fn come_and_go(times: usize) {
    let host = TestHost::start().await;
    let once = async || {
        let sandbox = host.create_as(json!({"timeout": 30})).await;
        let path = format!("/sandboxes/{}", sandbox.id);
        assert_eq!(host.api(Method::DELETE, &path, Value::Null).await.0, 204);
    };
    for _ in 0..5 {
        once().await;
    }
    let sandbox = host.create().await;
    let with_one = traces();
    host.api(Method::DELETE, &format!("/sandboxes/{}", sandbox.id), Value::Null).await;
    let before = traces();
    assert!(with_one.processes > before.processes, "a sandbox can be seen: {with_one:?} {before:?}");
    for _ in 0..times {
        once().await;
    }
    eventually("everything is as it was", async || {
        let now = traces();
        now.descriptors <= before.descriptors
            && now.processes <= before.processes
            && now.mounts <= before.mounts
            && now.cgroups <= before.cgroups
    })
    .await;
}
