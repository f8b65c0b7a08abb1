//! What the client adds to the bytes: decoding of events, and a warm execution against plain reqwest.
//!
//! `cargo bench --bench e2b`. Every figure is a median and stands beside a baseline of the same run, because machines differ
//! and ratios do not. The server is the tests' fake on loopback, so that the network costs the same on both sides.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and stops when something is wrong"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pathbox::e2b::{Deadlines, RunRequest, Target};
use pathbox::wire::interpreter::{Event, ExecuteRequest, Output};
use pathbox::wire::text::{Line, Lines};

#[path = "../tests/it/support/fault_server.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod fault_server;

use fault_server::{COUNT, END, ENVD_TOKEN, FaultServer, Reply, SANDBOX_ID, TRAFFIC_TOKEN, access};

/// The time of one call in the middle of many.
fn median(times: usize, mut work: impl FnMut()) -> Duration {
    let mut all: Vec<_> = (0..times)
        .map(|_| {
            let begun = Instant::now();
            work();
            begun.elapsed()
        })
        .collect();
    all.sort_unstable();
    all[times / 2]
}

fn decode(bytes: &Bytes, chunk: usize) -> usize {
    let mut lines = Lines::new(16 << 20);
    let mut events = 0;
    let mut at = 0;
    while at < bytes.len() {
        let end = (at + chunk).min(bytes.len());
        lines.push(bytes.slice(at..end));
        at = end;
        while let Some(line) = lines.next() {
            let Line::Whole(line) = line else { continue };
            black_box(Event::read(&line).unwrap());
            events += 1;
        }
    }
    events
}

fn decoding() {
    let stdout = |text: &str| {
        Event::Stdout(Output {
            text: text.to_owned(),
            timestamp: Some("2026-11-27T22:13:55.992927+00:00".into()),
        })
        .write()
    };
    let png = serde_json::json!({"type": "result", "text": "<Figure>", "png": "iVBORw0KGgo".repeat(100_000), "extra": {}, "is_main_result": false});
    let cases = [
        ("short lines of output (115 B)", stdout("a line of output\n").repeat(40_000)),
        ("lines of 10 KB", stdout(&"a line of output\n".repeat(600)).repeat(500)),
        ("lines of 10 KB, every character escaped", stdout(&"é".repeat(1_700)).repeat(500)),
        ("one line of 5 MB", stdout(&"x".repeat(5_000_000))),
        ("pictures of 1.1 MB", format!("{png}\n").repeat(5)),
    ];
    println!("decoding                                  events    MB/s  serde_json::Value  times");
    for (name, text) in cases {
        let bytes = Bytes::from(text);
        let mb = bytes.len() as f64 / 1e6;
        let mut events = 0;
        let ours = median(15, || events = decode(&bytes, 16 << 10));
        let value = median(15, || {
            for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                black_box(serde_json::from_slice::<serde_json::Value>(line).unwrap());
            }
        });
        println!(
            "{name:<40} {events:>7} {:>7.0} {:>18.0} {:>6.2}",
            mb / ours.as_secs_f64(),
            mb / value.as_secs_f64(),
            value.as_secs_f64() / ours.as_secs_f64()
        );
    }
}

fn warm() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let line = Event::Stdout(Output { text: "x".repeat(2_000), timestamp: None }).write();
    let large: Vec<String> = (0..500).map(|_| line.trim_end().to_owned()).collect();
    let hello = r#"{"type": "stdout", "text": "hello\n", "timestamp": "2026-11-27T22:13:55.992927+00:00"}"#;
    println!("\nwarm execution                     plain reqwest     execute   ratio  Interpreter   ratio");
    for (name, lines, times) in
        [("print('hello')", vec![hello.to_owned()], 3_000), ("1 MB of output in 500 events", large, 300)]
    {
        let mut body = vec![COUNT.to_owned()];
        body.extend(lines);
        body.push(END.to_owned());
        // One chunk an event costs the fake more than it tells about the client, so the body is one piece.
        let reply = Reply::new(200).send(format!("{}\n", body.join("\n")));
        let server = runtime.block_on(FaultServer::always(reply));
        let (client, access) = (server.client(), access());
        let interpreter = client.interpreter(&access, Target::Language("python".into()));
        let http = reqwest::Client::builder().http1_only().tcp_nodelay(true).build().unwrap();
        let url = format!("http://{}/execute", server.addr);
        let request = ExecuteRequest::in_language("print('hello')", "python");
        let json = serde_json::to_vec(&request).unwrap();
        // Interleaved, so that a busy moment of the machine hits all three.
        let (mut plain, mut execute, mut interpret) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..times {
            plain.push(median(1, || {
                runtime.block_on(async {
                    // The same request, header by header.
                    let sent = http
                        .post(&url)
                        .header("content-type", "application/json")
                        .header("e2b-sandbox-id", SANDBOX_ID)
                        .header("e2b-sandbox-port", "49999")
                        .header("x-access-token", ENVD_TOKEN)
                        .header("e2b-traffic-access-token", TRAFFIC_TOKEN)
                        .body(json.clone());
                    black_box(sent.send().await.unwrap().bytes().await.unwrap());
                });
            }));
            execute.push(median(1, || {
                runtime.block_on(async {
                    let mut run = client.execute(&access, &request, Deadlines::default()).await.unwrap();
                    while let Some(event) = run.next().await.unwrap() {
                        black_box(event);
                    }
                });
            }));
            interpret.push(median(1, || {
                runtime.block_on(async {
                    let mut run = interpreter.run(&RunRequest::new("print('hello')")).await.unwrap();
                    while let Some(event) = run.next().await.unwrap() {
                        black_box(event);
                    }
                });
            }));
        }
        let middle = |mut all: Vec<Duration>| {
            all.sort_unstable();
            all[all.len() / 2].as_secs_f64() * 1e6
        };
        let (plain, execute, interpret) = (middle(plain), middle(execute), middle(interpret));
        println!(
            "{name:<30} {plain:>13.0} µs {execute:>8.0} µs {:>7.2} {interpret:>9.0} µs {:>7.2}",
            execute / plain,
            interpret / plain
        );
    }
}

fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    decoding();
    warm();
}
