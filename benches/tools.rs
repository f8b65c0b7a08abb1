//! What a tool call from inside a sandbox costs, beside the same call by rmcp's own client in one run, and how long a search
//! among 10,000 tools takes: `cargo bench --bench tools`. Figures are the machine's; the ratio is what to compare.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pathbox::bridge::search::{Entry, Index};
use rmcp::ServiceExt;
use rmcp::model::CallToolRequestParams;
use rmcp::transport::async_rw::AsyncRwTransport;
use serde_json::{Value, json};

const CALLS: usize = 500;
const TOOLS: usize = 10_000;

fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    search();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let baseline = runtime.block_on(by_rmcp());
    println!("{:36} {:>9} {:>9} {:>7}", "no-op call", "p50 us", "p99 us", "ratio");
    show("rmcp's client, same server", &baseline, &baseline);
    for tier in ["auto", "landlock"] {
        for (language, code) in [("python", PYTHON), ("javascript", JAVASCRIPT)] {
            show(
                &format!("{language} in the sandbox ({tier})"),
                &from_a_sandbox(tier, language, code),
                &baseline,
            );
        }
    }
}

const PYTHON: &str = "import time\nfrom tools import kit\nkit.add(a=1, b=2)\ntook = []\nfor n in range(CALLS):\n    began = time.perf_counter()\n    \
    kit.add(a=n, b=2)\n    took.append(int((time.perf_counter() - began) * 1e6))\nprint(took)";
const JAVASCRIPT: &str = "import { kit } from 'tools';\nawait kit.add({a: 1, b: 2});\nconst took = [];\nfor (let n = 0; n < CALLS; n++) {\n  \
    const began = performance.now();\n  await kit.add({a: n, b: 2});\n  took.push(Math.round((performance.now() - began) * 1000));\n}\nconsole.log(JSON.stringify(took))";

fn show(name: &str, took: &[u64], baseline: &[u64]) {
    let at = |took: &[u64], share: f64| took[((took.len() - 1) as f64 * share) as usize];
    let (p50, p99) = (at(took, 0.5), at(took, 0.99));
    println!("{name:36} {p50:9} {p99:9} {:7.2}", p50 as f64 / at(baseline, 0.5) as f64);
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/server.py")
}

async fn by_rmcp() -> Vec<u64> {
    let mut child = tokio::process::Command::new("python3")
        .arg(script())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let client = ().serve(AsyncRwTransport::new_client(stdout, stdin)).await.unwrap();
    let mut took = Vec::new();
    for n in 0..CALLS {
        let mut call = CallToolRequestParams::new("add");
        call.arguments = json!({"a": n, "b": 2}).as_object().cloned();
        let began = Instant::now();
        client.peer().call_tool_once(call).await.unwrap();
        took.push(began.elapsed().as_micros() as u64);
    }
    took.sort_unstable();
    took
}

/// The calls of several runs: one run may make 200.
fn from_a_sandbox(tier: &str, language: &str, code: &str) -> Vec<u64> {
    let dir = tempfile::tempdir().unwrap();
    let settings = dir.path().join("pathbox.toml");
    std::fs::write(
        &settings,
        format!("[[tools.server]]\nname = \"kit\"\ncommand = \"python3\"\nargs = [{:?}]\n[host]\nisolation = {tier:?}\n", script().display().to_string()),
    )
    .unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_pathbox"))
        .args(["serve", "--config"])
        .arg(&settings)
        .arg("--data-dir")
        .arg(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) =
        (server.stdin.take().unwrap(), BufReader::new(server.stdout.take().unwrap()));
    let mut ask = |id: usize, method: &str, params: Value| -> Value {
        writeln!(stdin, "{}", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .unwrap();
        loop {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer["id"] == id {
                return answer;
            }
        }
    };
    ask(
        0,
        "initialize",
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "0"}}),
    );
    let mut took = Vec::new();
    for id in 1..=4 {
        let code = code.replace("CALLS", "180");
        let answer = ask(
            id,
            "tools/call",
            json!({"name": "run_code", "arguments": {"code": code, "language": language}}),
        );
        let text =
            answer["result"]["structuredContent"]["stdout"].as_str().unwrap_or_default().trim().to_owned();
        took.extend(serde_json::from_str::<Vec<u64>>(&text).unwrap_or_else(|_| panic!("{answer:#}")));
    }
    drop(stdin);
    let _ = server.wait();
    took.sort_unstable();
    took
}

fn search() {
    let rows = |name: &str| -> Vec<Value> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures/search")
            .join(format!("{name}.jsonl.gz"));
        let mut text = String::new();
        flate2::read::GzDecoder::new(std::fs::File::open(file).unwrap()).read_to_string(&mut text).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (tools, queries) = (rows("tools"), rows("queries"));
    let all: Vec<(String, String)> = (0..TOOLS)
        .map(|n| {
            let tool = &tools[n % tools.len()];
            (
                format!("{}_{}", tool["name"].as_str().unwrap(), n / tools.len()),
                tool["description"].as_str().unwrap_or_default().to_owned(),
            )
        })
        .collect();
    let began = Instant::now();
    let index = Index::of(all.iter().map(|(name, description)| Entry {
        server: "server",
        name,
        description,
        parameters: Vec::new(),
    }));
    println!("index of {TOOLS} tools made in {:?}", began.elapsed());
    let mut took: Vec<Duration> = queries
        .iter()
        .map(|query| {
            let began = Instant::now();
            std::hint::black_box(index.search(query["query"].as_str().unwrap(), 5));
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    println!(
        "search among {TOOLS} tools: p50 {:?}, p99 {:?}, of {} queries",
        took[took.len() / 2],
        took[took.len() * 99 / 100],
        took.len()
    );
}
