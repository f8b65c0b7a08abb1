//! The main job, measured against starting a bare Python, in one run: `cargo bench --bench main_job`.
//!
//! Prints medians in milliseconds and ratios to `python3 -c 'print(2)'`. Absolute figures are the machine's; the ratios
//! are what to compare.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod stdio;

use std::process::Command;
use std::time::Instant;

use serde_json::json;

use stdio::Server;

fn serve(data: &std::path::Path, pool: &str) -> Server {
    Server::start(
        Command::new(env!("CARGO_BIN_EXE_pathbox"))
            .arg("serve")
            .env("PATHBOX_DATA_DIR", data)
            .env("PATHBOX_HOST_POOL", pool)
            .env("PATHBOX_LOG", "error")
            .env("PATHBOX_CONTEXTS_PER_TENANT", "1000")
            .env("PATHBOX_CONTEXTS_PER_CONVERSATION", "1000")
            .env("PATHBOX_CONTEXTS_MAX_EXECUTIONS", "1000000")
            .env("PATHBOX_HOST_MAX_SANDBOXES", "200"),
    )
}

fn run(server: &mut Server, path: &str) {
    let answer = server.request(
        "tools/call",
        &json!({"name": "run_code", "arguments": {"code": "1+1", "language": "python"}, "_meta": {"pathId": path}}),
    );
    assert_eq!(answer["result"]["structuredContent"]["output"], "2", "{answer}");
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn measure(n: usize, mut work: impl FnMut(usize)) -> f64 {
    let samples = (0..n)
        .map(|i| {
            let began = Instant::now();
            work(i);
            began.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    median(samples)
}

fn main() {
    if std::env::args().any(|arg| arg == "--list") {
        return;
    }
    let bare = measure(40, |_| {
        let output = Command::new("python3").args(["-c", "print(2)"]).output().expect("python3");
        assert_eq!(output.stdout, b"2\n");
    });
    let row = |name: &str, ms: f64| println!("{name:44} {ms:9.3} ms   {:7.3} x bare python3", ms / bare);
    row("python3 -c 'print(2)', a process", bare);

    let data = tempfile::tempdir().expect("a directory");
    // The clock stops before the server is ended: closing its input starts its shutdown, which has a grace of its own.
    let start = |first: &dyn Fn(&mut Server)| {
        let samples = (0..20)
            .map(|_| {
                let began = Instant::now();
                let mut server = serve(data.path(), "0");
                first(&mut server);
                began.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        median(samples)
    };
    row("exec to first tools/list", start(&|server| drop(server.request("tools/list", &json!({})))));
    row("exec to first result of 1+1", start(&|server| run(server, "first-call")));
    {
        let mut server = serve(data.path(), "2");
        run(&mut server, "warm");
        std::thread::sleep(std::time::Duration::from_millis(800));
        row("warm 1+1 over stdio", measure(300, |_| run(&mut server, "warm")));
        let samples = (0..20)
            .map(|i| {
                // The pool is refilled in the background; a hit is what a user meets who opens paths one by one.
                std::thread::sleep(std::time::Duration::from_millis(400));
                let began = Instant::now();
                run(&mut server, &format!("pool-{i}"));
                began.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        row("cold context to first result, pool hit", median(samples));
    }
    {
        let mut server = serve(data.path(), "0");
        run(&mut server, "first");
        row(
            "cold context to first result, pool miss",
            measure(20, |i| run(&mut server, &format!("miss-{i}"))),
        );
    }
}
