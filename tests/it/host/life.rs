//! The pool, pauses, deaths, and the absence of leftovers.

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
async fn the_logs_of_a_sandbox_show_its_lifecycle_and_no_output_of_its_programs() {
    let host = TestHost::start().await;
    let sandbox = host.create_as(json!({"envVars": {"SECRET": "s3cret"}})).await;
    let path = |what: &str| format!("/sandboxes/{}/{what}", sandbox.id);
    host.run(&sandbox, "echo s3cret; cat s3cret").await;
    let cell = json!({"code": "print('s3cret', flush=True); import os; os._exit(3)"});
    host.to(&sandbox, 49999, Method::POST, "/execute")
        .json(&cell)
        .send()
        .await
        .unwrap()
        .bytes()
        .await
        .unwrap();
    host.api(Method::POST, &path("pause"), json!({})).await;
    host.api(Method::POST, &path("connect"), json!({"timeout": 60})).await;
    host.api(Method::PUT, &path("network"), json!({})).await;

    let lines = async |query: &str| {
        let (status, told) =
            host.api(Method::GET, &format!("/v2{}?{query}", path("logs")), Value::Null).await;
        assert_eq!(status, 200, "{told}");
        let lines = told["logs"].as_array().unwrap().clone();
        lines.iter().for_each(|line| assert!(line["fields"].is_object() && line["timestamp"].is_string()));
        lines.into_iter().map(|line| line["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let life = lines("").await;
    let want = [
        "created from template code-interpreter-v1",
        "an interpreter ended",
        "paused",
        "resumed",
        "network policy was replaced",
    ];
    for (line, word) in life.iter().zip(want) {
        assert!(line.contains(word), "{life:?}");
    }
    assert!(life.len() == want.len() && !life.concat().contains("s3cret"), "{life:?}");
    assert_eq!(lines("level=warn").await, [life[1].clone()]);
    assert_eq!(lines("search=resumed&limit=1").await, [life[3].clone()]);
    let (newest, none) =
        (lines("direction=backward&limit=2").await, lines("cursor=1&direction=backward").await);
    assert_eq!((newest, none.len()), (vec![life[4].clone(), life[3].clone()], 0));
    assert_eq!(lines("limit=0").await.len() + lines("cursor=9000000000000").await.len(), 0);
    for query in ["level=loud", "limit=1001", "cursor=x", "direction=up"] {
        assert_eq!(host.api(Method::GET, &format!("{}?{query}", path("logs")), Value::Null).await.0, 400);
    }
    let (_, old) = host.api(Method::GET, &path("logs?start=1"), Value::Null).await;
    assert_eq!(
        (&old["logs"][0]["line"], &old["logEntries"][0]["message"]),
        (&json!(life[0]), &json!(life[0]))
    );

    // It is kept for a while.
    host.api(Method::DELETE, &format!("/sandboxes/{}", sandbox.id), Value::Null).await;
    let last = lines("search=the+sandbox+ended").await;
    assert!(last.len() == 1 && last[0].contains("killed by a request"), "{last:?}");
    assert_eq!(host.api(Method::GET, "/sandboxes/inothing/logs", Value::Null).await.0, 404);
}

#[tokio::test]
async fn a_paused_sandbox_stops_and_continues_where_it_was() {
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

/// No word to anyone before its death: what holds its sandboxes must see it by itself.
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

/// A host in a process of its own.
pub(super) struct HostProcess {
    pub(super) process: std::process::Child,
    pub(super) url: String,
    pub(super) client: reqwest::Client,
}

impl HostProcess {
    const KEY: &str = "e2b_0123456789012345678901234567890123456789";

    pub(super) fn start(arguments: &[&str]) -> Self {
        let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_pathbox"))
            .args(["host", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env("E2B_API_KEY", Self::KEY)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url =
            line.split("E2B_API_URL=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().to_owned();
        Self { process, url, client: client() }
    }

    pub(super) async fn create(&self) -> super::Answer {
        let create = self.client.post(format!("{}/v2/sandboxes", self.url)).header("x-api-key", Self::KEY);
        answer(create.json(&json!({"templateID": "base", "metadata": {"tenant": "acme"}}))).await
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let get = self.client.get(format!("{}{path}", self.url)).header("x-api-key", Self::KEY);
        let response = get.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    fn limit_open_files(&self, limit: &str) {
        let pid = self.process.id().to_string();
        let limited = std::process::Command::new("prlimit")
            .args(["--pid", &pid, &format!("--nofile={limit}:")])
            .status()
            .unwrap();
        assert!(limited.success());
    }

    /// Ends it with SIGTERM: what it wrote to standard error.
    fn end(mut self) -> String {
        let pid = self.process.id().to_string();
        assert!(std::process::Command::new("kill").arg(&pid).status().unwrap().success());
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.process.stderr.take().unwrap(), &mut said).unwrap();
        self.process.wait().unwrap();
        said
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_spawner_that_ends_is_started_again_and_its_sandboxes_are_known_to_be_gone() {
    let host = HostProcess::start(&["--set", "host.pool=1"]);
    let (status, sandbox) = host.create().await;
    assert_eq!(status, 201, "{sandbox}");
    let id = sandbox["sandboxID"].as_str().unwrap();
    let spawner = children_of(host.process.id())[0];
    assert!(
        std::process::Command::new("kill").args(["-9", &spawner.to_string()]).status().unwrap().success()
    );
    eventually("the sandbox is gone", async || host.get(&format!("/sandboxes/{id}")).await.0 == 404).await;
    let (status, next) = host.create().await;
    assert_eq!(status, 201, "{next}");
    let envd = host.client.get(format!("{}/health", host.url));
    let envd = envd.header("e2b-sandbox-id", id).header("e2b-sandbox-port", "49983");
    let (status, gone) = answer(envd).await;
    assert_eq!(status, 502);
    assert_eq!(gone["message"], "The sandbox was not found: its first process ended");
    assert_eq!(host.get("/health").await.0, 200);
    let metrics = host.get("/metrics").await.1;
    for line in [
        "host_spawner_up 1",
        "host_spawner_restarts_total 1",
        "host_sandbox_ends_total{cause=\"spawner\"} 1",
        "host_sandboxes_live 1",
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line}: {metrics}");
    }
    let path = format!("{}/sandboxes/{}", host.url, next["sandboxID"].as_str().unwrap());
    let kill = host.client.delete(path).header("x-api-key", HostProcess::KEY);
    assert_eq!(answer(kill).await.0, 204);
    let said = host.end();
    for words in [
        "sandbox host listens on 127.0.0.1:",
        "isolation namespaces, control groups",
        "the sandbox spawner ended, and every sandbox of this host with it; it is started again",
        "a sandbox ended: spawner",
        "a sandbox ended: killed",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let life = said.lines().find(|line| line.contains("a sandbox ended: killed")).unwrap();
    for field in ["tenant=", "acme", "template=", "base", "peak_memory_mb=", "cpu_ms=", "network_bytes=0"] {
        assert!(life.contains(field), "{field}: {life}");
    }
}

/// The message that brings a sandbox's descriptors is then cut by the kernel.
#[tokio::test]
async fn a_host_without_free_descriptors_fails_one_create_and_goes_on() {
    let host = HostProcess::start(&["--set", "host.pool=0"]);
    let (status, first) = host.create().await;
    assert_eq!(status, 201, "{first}");
    let open = || std::fs::read_dir(format!("/proc/{}/fd", host.process.id())).unwrap().count();
    let mut failed = 0;
    for free in 0..4 {
        host.limit_open_files(&(open() + free).to_string());
        let (status, _) = host.create().await;
        failed += u32::from(status == 500);
        assert!(status == 500 || status == 201, "{status}");
        host.limit_open_files("4096");
    }
    assert!(failed > 0, "no create met the limit");
    assert_eq!(host.create().await.0, 201);
    let id = first["sandboxID"].as_str().unwrap();
    assert_eq!(host.get(&format!("/sandboxes/{id}")).await.0, 200, "the first one lives");
    assert!(host.get("/metrics").await.1.contains("host_spawner_restarts_total 0"));
}

/// What `/proc/PID/stat` says after the name of the program: its state first.
fn stat(pid: u32) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().map(str::to_owned).collect()
}

/// The processor time that a process has used, in hundredths of a second.
fn cpu_ticks(pid: u32) -> u64 {
    stat(pid)[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[tokio::test]
async fn a_paused_program_does_not_run_whatever_timers_it_has_set() {
    for cgroups in [true, false] {
        let host = TestHost::with(|options| options.jail.cgroups = cgroups).await;
        let sandbox = host.create().await;
        let name = format!("ticker-{}.py", sandbox.id);
        // Its timer sends it SIGCONT a hundred times a second.
        let script = "cat > NAME <<'END'\n\
            import signal, time\n\
            signal.signal(signal.SIGCONT, lambda *_: None)\n\
            import ctypes\n\
            libc = ctypes.CDLL(None)\n\
            class Event(ctypes.Structure): _fields_ = [('value', ctypes.c_void_p), ('signo', ctypes.c_int), ('notify', ctypes.c_int), ('pad', ctypes.c_char * 48)]\n\
            t = ctypes.c_void_p()\n\
            assert libc.timer_create(1, ctypes.byref(Event(None, signal.SIGCONT, 0)), ctypes.byref(t)) == 0\n\
            every = (ctypes.c_long * 4)(0, 10_000_000, 0, 10_000_000)\n\
            assert libc.timer_settime(t, 0, every, None) == 0\n\
            n = 0\n\
            while True:\n\
            \x20   n += 1\n\
            \x20   open('ticks', 'w').write(str(n))\n\
            END\n\
            setsid python3 NAME > log 2>&1 & while ! test -s ticks; do sleep .05; done";
        assert_eq!(exit_code(&host.run(&sandbox, &script.replace("NAME", &name)).await), 0);
        let [pid] = processes_with(&name)[..] else { panic!("{:?}", processes_with(&name)) };
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let path = format!("/sandboxes/{}", sandbox.id);
        assert_eq!(host.api(Method::POST, &format!("{path}/pause"), json!({})).await.0, 204);
        let freezers = ["freezer:", "0::"];
        let frozen = groups
            .lines()
            .any(|line| line.contains("/pathbox-") && freezers.iter().any(|freezer| line.contains(freezer)));
        // Only a freezer holds everything at once. Without one a program may run from its timer to the next look.
        if frozen {
            let mut before = 0;
            while before < cpu_ticks(pid) {
                before = cpu_ticks(pid);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            assert!(before > 0, "it ran before the pause");
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert_eq!(cpu_ticks(pid), before, "it ran while its sandbox was paused");
        } else {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                eventually("stopped again", async || stat(pid)[0] == "T").await;
            }
        }
        let metrics = host.api(Method::GET, &format!("{path}/metrics"), Value::Null).await;
        assert_eq!(metrics.0, 200, "one that stands still is measured from outside: {metrics:?}");
        assert_eq!(host.api(Method::POST, &format!("/v2{path}/connect"), json!({})).await.0, 201);
        assert_eq!(exit_code(&host.run(&sandbox, "true").await), 0);
        assert_eq!(host.api(Method::POST, &format!("{path}/pause"), json!({})).await.0, 204);
        assert_eq!(host.api(Method::DELETE, &path, Value::Null).await.0, 204, "a paused one can be ended");
        assert!(processes_with(&name).is_empty());
    }
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
