//! A made-up repository as an MCP server over standard input and output: something for the demonstration's program to call.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bridge::{Era, Server, Transport};

/// Commits of the repository.
pub(super) const COMMITS: usize = 1_000;

/// The server as settings would name it: this program.
pub(super) fn server() -> std::io::Result<Server> {
    let command = std::env::current_exe()?.display().to_string();
    let args = ["demo", "--repository"].map(str::to_owned).to_vec();
    Ok(Server {
        name: "repository".to_owned(),
        transport: Transport::Stdio { command, args, env: BTreeMap::new(), cwd: None },
        tenants: Vec::new(),
        allow: Vec::new(),
        deny: Vec::new(),
        confirm: Vec::new(),
        timeout: Duration::from_secs(30),
        start_timeout: Duration::from_secs(30),
        concurrency: 4,
        trusted: false,
        pinned: false,
        era: Era::Handshake,
    })
}

/// Serves until standard input ends.
pub(super) fn serve() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else { continue };
        let result = match message["method"].as_str() {
            Some("initialize") => json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "made-up repository", "version": "1"}}),
            Some("tools/list") => {
                json!({"tools": [{"name": "list_commits", "description": "Commits of the repository, newest first",
                "inputSchema": {"type": "object", "properties": {"limit": {"type": "integer"}}}, "annotations": {"readOnlyHint": true}}]})
            }
            Some("tools/call") => {
                let limit = message["params"]["arguments"]["limit"].as_u64().unwrap_or(100);
                let commits: Vec<Value> = (0..limit.min(COMMITS as u64)).map(commit).collect();
                json!({"content": [{"type": "text", "text": Value::from(commits).to_string()}]})
            }
            _ => continue,
        };
        writeln!(out, "{}", json!({"jsonrpc": "2.0", "id": message["id"], "result": result}))?;
        out.flush()?;
    }
    Ok(())
}

fn commit(n: u64) -> Value {
    let author = ["ada", "grace", "edsger", "barbara"][(n % 4) as usize];
    let verb = if n.is_multiple_of(10) { "Fix" } else { "Change" };
    json!({"sha": format!("{:040x}", n * 7919), "author": author, "date": format!("2026-{:02}-{:02}", n % 12 + 1, n % 28 + 1),
        "message": format!("{verb} part {n}\n\n{}", "It was not as it should be, for reasons told at length. ".repeat(18))})
}
