//! `demo`: the whole pipeline on this machine, step by step.
//!
//! It uses the public interface: each step is a JSON-RPC message to the MCP handler, as a language model's host would
//! send it, and the demonstration prints the response.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use rmcp::ServiceExt;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio_util::sync::CancellationToken;

use super::load;
use crate::app::App;
use crate::config::{Sources, Values};
use crate::domain::Entropy;
use crate::mcp::McpServer;
use crate::mcp::transport::stdio::Lines;

mod repository;

#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// Where the plot is written [default: pathbox-demo.png here, or in the temporary directory].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Run as the tool server of step 7.
    #[arg(long, hide = true)]
    repository: bool,
}

/// A data set, as a user would paste it.
const SALES: &str = "month,region,eur\nJan,north,1210\nJan,south,640\nFeb,north,1480\nFeb,south,700\nMar,north,1390\nMar,south,910\n";

const LOAD: &str = r#"
import csv, io
sales = [{**row, "eur": int(row["eur"])} for row in csv.DictReader(io.StringIO(data))]
print(len(sales), "rows,", sum(row["eur"] for row in sales), "EUR")
"#;

const TOTALS: &str = r#"
totals = {}
for row in sales:
    totals[row["month"]] = totals.get(row["month"], 0) + row["eur"]
totals
"#;

/// A bar chart, even if the sandbox's Python has no matplotlib.
const PLOT: &str = r#"
try:
    import matplotlib.pyplot as plt
    plt.figure(figsize=(4, 3))
    plt.bar(totals.keys(), totals.values())
    plt.title("Sales, EUR")
    plt.show()
except ImportError:
    import struct, zlib
    class Plot:
        """Bars as a PNG, drawn with the standard library."""
        def _repr_png_(self):
            width, height, most = 320, 240, max(totals.values())
            rows = [bytearray(b"\xff" * width * 3) for _ in range(height)]
            for n, total in enumerate(totals.values()):
                left = 20 + n * 100
                for y in range(height - 1 - int(total / most * (height - 20)), height):
                    rows[y][3 * left:3 * (left + 80)] = b"\x1f\x77\xb4" * 80
            def chunk(kind, data):
                body = kind + data
                return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
            return (b"\x89PNG\r\n\x1a\n"
                    + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
                    + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + bytes(row) for row in rows)))
                    + chunk(b"IEND", b""))
    display(Plot())
"#;

const PRIVATE: &str = r#"
print("Contact: maeve.byrne@example.com, card 4111 1111 1111 1111, IBAN IE29 AIBK 9311 5212 3456 78")
print("20% 8,400.00, 40% 7,200.00; S.I. No. 123/2024, Directive 2006/112/EC, version 1.2.3.4")
"#;

const COMMIT_CALLS: &str = r#"from collections import Counter
from tools import repository
commits = repository.list_commits(limit=1000)
fixes = [commit for commit in commits if commit["message"].startswith("Fix")]
print(len(commits), "commits,", len(fixes), "fixes, most by", Counter(commit["author"] for commit in fixes).most_common(1)[0])
"#;

pub(super) async fn demo(args: DemoArgs, mut sources: Sources) -> anyhow::Result<ExitCode> {
    if args.repository {
        repository::serve()?;
        return Ok(ExitCode::SUCCESS);
    }
    use_container(&mut sources).await?;
    let scratch = std::env::temp_dir().join(format!("pathbox-demo-{}", Entropy::system().hex::<6>()));
    if !sources.flags.contains_key("data_dir") {
        sources.flags.insert("data_dir".into(), scratch.display().to_string());
    }
    let (mut config, _) = load(&sources)?;
    config.bridge.servers.push(repository::server()?);
    config.workflows = true;
    let app = App::start(config)?;
    let story = tell(app.mcp(), args.out.as_deref()).await;
    app.stop(Duration::from_secs(3)).await;
    drop(std::fs::remove_dir_all(&scratch));
    story?;
    Ok(ExitCode::SUCCESS)
}

/// A host in a container is found by the data directory, which the demonstration does not use.
async fn use_container(sources: &mut Sources) -> anyhow::Result<()> {
    let settings = Values::read(sources)?.config(&sources.environment)?;
    if let Some(host) = settings.container {
        crate::app::container::ensure(&host).await?;
        for (key, value) in
            [("e2b.api_key", host.key.expose()), ("e2b.api_url", &host.url), ("e2b.sandbox_url", &host.url)]
        {
            sources.flags.insert(key.into(), value.to_owned());
        }
    }
    Ok(())
}

/// Writes the picture where it was asked for; else here, or in the temporary directory where nothing can be written here.
fn keep(picture: &[u8], out: Option<&Path>) -> anyhow::Result<PathBuf> {
    const NAME: &str = "pathbox-demo.png";
    let write = |path: PathBuf| {
        std::fs::write(&path, picture).with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(path)
    };
    match out {
        Some(path) => write(path.to_owned()),
        None => write(NAME.into()).or_else(|_: anyhow::Error| write(std::env::temp_dir().join(NAME))),
    }
}

/// The demonstration.
#[expect(clippy::too_many_lines, reason = "a story, in the order in which it is read")]
async fn tell(server: McpServer, out: Option<&Path>) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut client = Client::connect(server).await?;

    say!("1. A model sends code and a data set. A sandbox is made for this path of the conversation.");
    let first = client.with_data(LOAD, SALES).await?;
    show(&first);
    ensure!(
        first["state"] == "fresh" && first["stdout"] == "6 rows, 6330 EUR\n",
        "the first call went wrong: {first}"
    );

    say!("2. The next call on the path finds the variables.");
    let second = client.run_code(TOTALS, "main").await?;
    show(&second);
    ensure!(second["state"] == "kept", "state was not kept: {second}");

    say!("3. Another path, a branch, has a sandbox of its own and does not see them.");
    let branch = client.run_code("print(sales)", "what-if").await?;
    show(&branch);
    ensure!(branch["error"]["name"] == "NameError", "the branch saw the variable: {branch}");

    let (picture, _) = client.picture(PLOT).await?;
    let out = keep(&picture, out)?;
    say!("4. A chart comes back as a picture: {} bytes of PNG in {}.", picture.len(), out.display());

    say!("5. Personal data does not leave; figures that only look like it do.");
    let private = client.run_code(PRIVATE, "main").await?;
    show(&private);
    let text = private["stdout"].as_str().unwrap_or_default();
    for secret in ["maeve.byrne", "4111", "AIBK"] {
        ensure!(!text.contains(secret), "{secret} was not redacted: {text}");
    }
    for figure in ["8,400.00", "7,200.00", "123/2024", "2006/112/EC", "1.2.3.4"] {
        ensure!(text.contains(figure), "{figure} did not survive: {text}");
    }

    say!(
        "6. run_analysis computes exactly, from rules that come with the call; the first of eight kinds says:"
    );
    let mut kinds = Vec::new();
    for (kind, parameters) in analyses() {
        let report = client.run_analysis(kind, parameters).await?;
        let text = report["text"].as_str().unwrap_or_default();
        ensure!(report["success"] == true && !text.is_empty(), "{kind} went wrong: {report}");
        if kinds.is_empty() {
            say!("   | {}", text.lines().next().unwrap_or_default());
        }
        kinds.push(kind);
    }
    say!("   done as well: {}", kinds[1..].join(", "));

    say!(
        "7. A program calls a tool of another server: a thousand commits go into the sandbox, one line comes out."
    );
    let result = client.run_code(COMMIT_CALLS, "main").await?;
    show(&result);
    let into = result["toolCalls"][0]["bytes"].as_u64().unwrap_or_default();
    let out_of = result["stdout"].as_str().unwrap_or_default().len();
    ensure!(result["success"] == true && into > 1_000_000 && out_of < 500, "code mode went wrong: {result}");
    say!("   {into} bytes into the sandbox, {out_of} bytes to the model");

    say!("8. A workflow: two tasks side by side, a third takes both results; each result is a checkpoint.");
    let (text, result) = client.workflow().await?;
    ensure!(text == "completed" && result == 42, "the workflow went wrong: {text}, {result}");
    say!("   {text}: 20 + 22 = {result}\n");

    say!(
        "Done in {:.1} s. Put `pathbox serve` into your client's configuration; see README.md.",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// A small call of each analysis.
fn analyses() -> Vec<(&'static str, Value)> {
    let levy = |rate: &str| json!([{ "id": "income tax", "bands": [{ "up_to": "42000", "rate": "20%" }, { "rate": rate }] }]);
    let size = json!({ "fact": "staff", "op": "ge", "value": 20 });
    vec![
        (
            "tax_calculation",
            json!({ "currency": "EUR", "income": "60000", "levies": levy("40%"), "thresholds": false }),
        ),
        (
            "compliance_check",
            json!({ "facts": { "staff": 12 }, "rules": [{ "id": "officer", "requires": size }] }),
        ),
        (
            "eligibility",
            json!({ "facts": { "staff": 25 }, "schemes": [{ "id": "grant", "criteria": [{ "id": "size", "requires": size }] }] }),
        ),
        (
            "timeline",
            json!({ "events": [{ "id": "notice", "date": "2024-01-31" }, { "id": "reply", "date": "2024-03-01" }],
            "constraints": [{ "id": "in time", "type": "max_gap", "from": "notice", "to": "reply", "amount": 1, "unit": "months" }] }),
        ),
        (
            "comparison",
            json!({ "analysis": "tax_calculation", "common": { "income": "60000" }, "rule_sets": [
            { "id": "now", "parameters": { "levies": levy("40%") } }, { "id": "proposed", "parameters": { "levies": levy("35%") } }] }),
        ),
        (
            "scenario",
            json!({ "analysis": "tax_calculation", "base": { "income": "60000", "levies": levy("40%") },
            "scenarios": [{ "id": "raise", "set": [{ "path": "income", "value": "66000" }] }],
            "break_even": { "path": "income", "low": "0", "high": "90000", "measure": "net", "target": "45000" } }),
        ),
        (
            "data_analysis",
            json!({ "csv": "month,sales\n1,10.10\n2,20.20\n3,31.20\n", "operations": [{ "do": "trend", "x": "month", "y": "sales" }] }),
        ),
        ("custom", json!({ "code": "sum(params['n'])", "params": { "n": [1, 2, 3] } })),
    ]
}

/// The response, line by line.
fn show(result: &Value) {
    let head = format!("{}, {} ms", result["state"].as_str().unwrap_or("?"), result["executionTimeMs"]);
    let text = [&result["stdout"], &result["output"]].map(|value| value.as_str().unwrap_or_default());
    let shown = if text[0].is_empty() { text[1] } else { text[0] };
    let error = result["error"]["name"]
        .as_str()
        .map(|name| format!("{name}: {}", result["error"]["message"].as_str().unwrap_or_default()));
    say!("   {head}");
    for line in shown.lines().map(str::to_owned).chain(error) {
        say!("   | {line}");
    }
}

/// A client of the MCP handler in this process, over the same lines that `serve` speaks.
struct Client {
    lines: tokio::io::Lines<BufReader<tokio::io::ReadHalf<DuplexStream>>>,
    writer: tokio::io::WriteHalf<DuplexStream>,
    next_id: u64,
}

impl Client {
    async fn connect(server: McpServer) -> anyhow::Result<Self> {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (reader, writer) = tokio::io::split(theirs);
        let token = CancellationToken::new();
        tokio::spawn(async move {
            if let Ok(running) = server.serve_with_ct(Lines::new(reader, writer, token.clone()), token).await
            {
                drop(running.waiting().await);
            }
        });
        let (reader, writer) = tokio::io::split(ours);
        let mut client = Self { lines: BufReader::new(reader).lines(), writer, next_id: 0 };
        let hello = json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": { "name": "pathbox-demo", "version": env!("CARGO_PKG_VERSION") },
        });
        client.request("initialize", hello).await?;
        client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await?;
        Ok(client)
    }

    async fn send(&mut self, message: &Value) -> anyhow::Result<()> {
        self.writer.write_all(format!("{message}\n").as_bytes()).await?;
        Ok(())
    }

    async fn request(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        self.next_id += 1;
        let id = self.next_id;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await?;
        while let Some(line) = self.lines.next_line().await? {
            let mut message: Value = serde_json::from_str(&line)?;
            if message["id"] == id {
                match message.get("error") {
                    Some(error) => bail!("{method}: {error}"),
                    None => return Ok(message["result"].take()),
                }
            }
        }
        bail!("the server closed the connection")
    }

    /// Code together with a data set.
    async fn with_data(&mut self, code: &str, data: &str) -> anyhow::Result<Value> {
        let arguments = json!({ "code": code, "language": "python", "data": data });
        Ok(self.tool("run_code", arguments, "main").await?["structuredContent"].take())
    }

    /// A small workflow: its status, and the result of its last task.
    async fn workflow(&mut self) -> anyhow::Result<(String, Value)> {
        let code = |id: &str, code: &str| json!({ "id": id, "type": "code_execution", "path": "fresh", "code": code });
        let mut sum = code("sum", "data['left'] + data['right']");
        sum["inputs"] = json!({ "left": { "from": "left" }, "right": { "from": "right" } });
        let tasks = json!([code("left", "4 * 5"), code("right", "2 * 11"), sum]);
        let begun = self.tool("run_workflow", json!({ "tasks": tasks, "wait_ms": 50_000 }), "main").await?;
        let begun = &begun["structuredContent"];
        let wanted = json!({ "workflow_id": begun["workflowId"], "task": "sum" });
        let result = self.tool("get_workflow", wanted, "main").await?["structuredContent"]["result"].take();
        Ok((begun["status"].as_str().unwrap_or_default().to_owned(), result))
    }

    async fn call(&mut self, code: &str, path: &str) -> anyhow::Result<Value> {
        self.tool("run_code", json!({ "code": code, "language": "python" }), path).await
    }

    async fn run_analysis(&mut self, kind: &str, parameters: Value) -> anyhow::Result<Value> {
        let arguments =
            json!({ "analysis_type": kind, "parameters": parameters, "output_format": "summary" });
        Ok(self.tool("run_analysis", arguments, "main").await?["structuredContent"].take())
    }

    async fn tool(&mut self, name: &str, arguments: Value, path: &str) -> anyhow::Result<Value> {
        let params = json!({
            "name": name,
            "arguments": arguments,
            "_meta": { "dev.pathbox/conversationId": "demo", "dev.pathbox/pathId": path },
        });
        let result = self.request("tools/call", params).await?;
        if result["isError"] == true {
            bail!("{}", result["content"][0]["text"].as_str().unwrap_or("the call failed"));
        }
        Ok(result)
    }

    async fn run_code(&mut self, code: &str, path: &str) -> anyhow::Result<Value> {
        Ok(self.call(code, path).await?["structuredContent"].take())
    }

    async fn picture(&mut self, code: &str) -> anyhow::Result<(Vec<u8>, Value)> {
        let mut result = self.call(code, "main").await?;
        let blocks = result["content"].as_array().cloned().unwrap_or_default();
        let Some(image) = blocks.iter().find(|block| block["type"] == "image") else {
            bail!("no picture came back: {}", result["content"]);
        };
        let bytes = STANDARD.decode(image["data"].as_str().unwrap_or_default())?;
        ensure!(bytes.starts_with(b"\x89PNG\r\n\x1a\n"), "the picture is not a PNG");
        Ok((bytes, result["structuredContent"].take()))
    }
}
