//! The local sandbox host over HTTP, measured against bare processes in one run: `cargo bench --bench host`.
//!
//! Prints medians in milliseconds and ratios to `python3 -c 'print(2)'`. Absolute figures are the machine's; the ratios
//! are what to compare. `bwrap` is compared with when it is installed, ipykernel when `target/test-env/jupyter` has it
//! (`scripts/bench` makes it).
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pathbox::host::{self, Host, Options};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

struct Bench {
    host: Host,
    client: reqwest::Client,
    shutdown: CancellationToken,
}

impl Bench {
    async fn start(ready: usize) -> Self {
        let mut options = Options { ready, max_sandboxes: 100, ..Options::default() };
        options.jail.exe = env!("CARGO_BIN_EXE_pathbox").into();
        let shutdown = CancellationToken::new();
        let host = host::serve(options, shutdown.clone()).await.expect("the host starts");
        let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build().expect("a client");
        Self { host, client, shutdown }
    }

    async fn create(&self) -> String {
        let answer = self
            .client
            .post(format!("{}/v2/sandboxes", self.host.url()))
            .header("x-api-key", self.host.api_key().expose())
            .json(&json!({"templateID": "code-interpreter-v1"}))
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status(), 201);
        let sandbox: Value = answer.json().await.expect("JSON");
        sandbox["sandboxID"].as_str().expect("an id").to_owned()
    }

    async fn run(&self, id: &str) {
        let answer = self
            .client
            .post(format!("{}/execute", self.host.url()))
            .header("e2b-sandbox-id", id)
            .header("e2b-sandbox-port", "49999")
            .json(&json!({"code": "1+1"}))
            .send()
            .await
            .expect("an answer");
        let text = answer.text().await.expect("a whole stream");
        assert!(
            text.contains("\"text\": \"2\"") && text.ends_with("{\"type\": \"end_of_execution\"}\n"),
            "{text}"
        );
    }

    async fn kill(&self, id: &str) {
        let request = self.client.delete(format!("{}/sandboxes/{id}", self.host.url()));
        let answer =
            request.header("x-api-key", self.host.api_key().expose()).send().await.expect("an answer");
        assert_eq!(answer.status(), 204);
    }

    async fn end(self) {
        self.shutdown.cancel();
        self.host.ended().await;
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

async fn measure(times: usize, mut work: impl AsyncFnMut() -> f64) -> f64 {
    let mut samples = Vec::new();
    for _ in 0..times {
        samples.push(work().await);
    }
    median(samples)
}

/// The median time of a program from its start to its end, or `None` when it does not work here.
fn process(times: usize, program: &str, arguments: &[&str]) -> Option<f64> {
    let once = || {
        let began = Instant::now();
        let output = Command::new(program).args(arguments).output().ok()?;
        (output.stdout == b"2\n").then(|| millis(began))
    };
    Some(median((0..times).map(|_| once()).collect::<Option<_>>()?))
}

/// A warm `1+1` of ipykernel over its own protocol, and its start.
fn ipykernel() -> Option<(f64, f64)> {
    const SCRIPT: &str = "
import statistics, time
from jupyter_client.manager import start_new_kernel
def ms(work):
    began = time.perf_counter(); work(); return (time.perf_counter() - began) * 1e3
def start():
    global manager, client
    manager, client = start_new_kernel(); run()
def run():
    client.execute_interactive('1+1', output_hook=lambda message: None)
started = ms(start)
print(started, statistics.median(ms(run) for _ in range(100)))
manager.shutdown_kernel(now=True)
";
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-env/jupyter/bin/python");
    let output =
        Command::new(python).args(["-c", SCRIPT]).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (start, warm) = text.trim().split_once(' ')?;
    Some((start.parse().ok()?, warm.parse().ok()?))
}

/// Memory of everything below this process in bytes, shared pages counted by share.
fn memory_below(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    children
        .into_iter()
        .map(|child| {
            let rollup = std::fs::read_to_string(format!("/proc/{child}/smaps_rollup")).unwrap_or_default();
            let own = rollup
                .lines()
                .find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            own.unwrap_or(0) * 1024 + memory_below(child)
        })
        .sum()
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let bare = process(40, "python3", &["-I", "-c", "print(2)"]).expect("python3");
    let row = |name: &str, ms: f64| println!("{name:52} {ms:9.3} ms  {:8.3} x bare python3", ms / bare);
    row("python3 -c 'print(2)', a process", bare);
    let bwrap = ["--ro-bind", "/", "/", "--unshare-all", "--dev", "/dev", "python3", "-I", "-c", "print(2)"];
    match process(20, "bwrap", &bwrap) {
        Some(ms) => row("bwrap python3 -c 'print(2)', a process", ms),
        None => println!("bwrap: not here"),
    }
    match ipykernel() {
        Some((start, warm)) => {
            row("ipykernel: start to first result", start);
            row("ipykernel: warm 1+1", warm);
        }
        None => println!("ipykernel: not here"),
    }

    let bench = Bench::start(2).await;
    let pause = async || tokio::time::sleep(Duration::from_millis(600)).await;
    pause().await;
    let hit = async |and_run: bool| {
        // The pool is refilled in the background; a hit is what a user meets who opens one after the other.
        pause().await;
        let began = Instant::now();
        let id = bench.create().await;
        if and_run {
            bench.run(&id).await;
        }
        let took = millis(began);
        bench.kill(&id).await;
        took
    };
    row("create, pool hit", measure(20, async || hit(false).await).await);
    row("create and first 1+1, pool hit", measure(20, async || hit(true).await).await);
    let id = bench.create().await;
    bench.run(&id).await;
    let warm = async || {
        let began = Instant::now();
        bench.run(&id).await;
        millis(began)
    };
    row("warm 1+1", measure(1000, warm).await);
    bench.end().await;

    let bench = Bench::start(0).await;
    let miss = async || {
        let began = Instant::now();
        let id = bench.create().await;
        bench.run(&id).await;
        let took = millis(began);
        bench.kill(&id).await;
        took
    };
    row("create and first 1+1, pool miss", measure(20, miss).await);
    let cycle = async || {
        let began = Instant::now();
        let id = bench.create().await;
        bench.kill(&id).await;
        millis(began)
    };
    row("create and kill, pool miss", measure(20, cycle).await);

    const MANY: usize = 16;
    let before = memory_below(std::process::id());
    let began = Instant::now();
    let open = async || {
        let id = bench.create().await;
        bench.run(&id).await;
        id
    };
    let ids = futures::future::join_all((0..MANY).map(|_| open())).await;
    row("16 at once: create and first 1+1, pool miss, all", millis(began));
    let each = (memory_below(std::process::id()) - before) / MANY as u64;
    let together = async || {
        let began = Instant::now();
        futures::future::join_all(ids.iter().map(|id| bench.run(id))).await;
        millis(began)
    };
    row("16 at once: warm 1+1 in each, all", measure(50, together).await);
    println!(
        "{:52} {:9.1} MiB",
        "memory of an idle sandbox with Python (PSS)",
        each as f64 / (1 << 20) as f64
    );
    bench.end().await;
}
