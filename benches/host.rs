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
        Self::with(ready, |_| {}).await
    }

    async fn with(ready: usize, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options { ready, max_sandboxes: 100, ..Options::default() };
        options.jail.exe = env!("CARGO_BIN_EXE_pathbox").into();
        change(&mut options);
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
        let text = self.execute(id, "1+1").await;
        assert!(text.contains("\"text\": \"2\""), "{text}");
    }

    /// Runs Python to the end of its answer.
    async fn execute(&self, id: &str, code: &str) -> String {
        let answer = self
            .client
            .post(format!("{}/execute", self.host.url()))
            .header("e2b-sandbox-id", id)
            .header("e2b-sandbox-port", "49999")
            .json(&json!({"code": code}))
            .send()
            .await
            .expect("an answer");
        let text = answer.text().await.expect("a whole stream");
        assert!(text.ends_with("{\"type\": \"end_of_execution\"}\n"), "{text}");
        text
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

/// The first cell that uses pandas and matplotlib, in a ready sandbox that has imported them and in one that has not.
async fn preloaded(row: &dyn Fn(&str, f64)) {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-env/science/bin/python");
    if !python.exists() {
        return println!("pandas and matplotlib: not here");
    }
    const CELL: &str = "import numpy, pandas, matplotlib.pyplot\n1+1";
    for (name, modules) in [
        ("create and first pandas cell, preloaded", &["numpy", "pandas", "matplotlib.pyplot"][..]),
        ("create and first pandas cell, pool hit only", &[]),
    ] {
        let bench = Bench::with(1, |options| {
            options.search.python = Some(python.clone());
            options.kernel.preload = modules.iter().map(|module| (*module).to_owned()).collect();
        })
        .await;
        let first = async || {
            tokio::time::sleep(Duration::from_secs(6)).await; // the pool is refilled
            let began = Instant::now();
            let id = bench.create().await;
            let text = bench.execute(&id, CELL).await;
            assert!(text.contains("\"text\": \"2\""), "{text}");
            let took = millis(began);
            bench.kill(&id).await;
            took
        };
        row(name, measure(5, first).await);
        tokio::time::sleep(Duration::from_secs(6)).await;
        let before = memory_below(std::process::id());
        let id = bench.create().await;
        bench.execute(&id, CELL).await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        let more = memory_below(std::process::id()).saturating_sub(before);
        println!(
            "{:52} {:9.1} MiB",
            "  memory of one more with its checkpoint (PSS)",
            more as f64 / (1 << 20) as f64
        );
        bench.end().await;
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    // What `python3` names may be a script that looks for the interpreter; the host asks it once, and so does this.
    let asked = Command::new("python3").args(["-I", "-c", "import sys; print(sys.executable)"]).output();
    let python = String::from_utf8(asked.expect("python3").stdout).expect("a path");
    let python = python.trim();
    let bare = process(40, python, &["-I", "-c", "print(2)"]).expect("python3");
    let row = |name: &str, ms: f64| println!("{name:52} {ms:9.3} ms  {:8.3} x bare python3", ms / bare);
    row("python3 -c 'print(2)', a process", bare);
    let bwrap = ["--ro-bind", "/", "/", "--unshare-all", "--dev", "/dev", python, "-I", "-c", "print(2)"];
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
    row("warm 1+1, one after the other", measure(1000, &warm).await);
    let rested = async || {
        tokio::time::sleep(Duration::from_millis(30)).await;
        warm().await
    };
    row("warm 1+1, after a pause", measure(100, rested).await);
    let roll_back = async || {
        let began = Instant::now();
        let text = bench.execute(&id, "import os; os._exit(1)").await;
        assert!(text.contains("rolled_back"), "{text}");
        let took = millis(began);
        tokio::time::sleep(Duration::from_millis(30)).await;
        took
    };
    row("a cell that dies, state rolled back", measure(30, roll_back).await);
    bench.end().await;

    let unsaved = Bench::with(0, |options| options.kernel.checkpoint_bytes = 0).await;
    let id = unsaved.create().await;
    unsaved.run(&id).await;
    let warm = async || {
        let began = Instant::now();
        unsaved.run(&id).await;
        millis(began)
    };
    row("the same without checkpoints, one after the other", measure(1000, warm).await);
    unsaved.end().await;
    preloaded(&row).await;

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
    tokio::time::sleep(Duration::from_secs(1)).await; // checkpoints are made after the answer
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
