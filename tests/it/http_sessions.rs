//! Sessions that no one uses: many of them cost little, and none is lost by being put away.

use std::io::{Read, Write};

use serde_json::json;

use crate::support::http::{HttpServer, initialize};
use crate::support::server::command;

/// How many clients come and stay.
const SESSIONS: usize = 10_000;
/// What the server may grow by for each. Its own state of a session is a tenth of that; the rest is the allocator.
const MAX_BYTES_EACH: u64 = 64 * 1024;

fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Opens this many sessions over one connection and returns the ids. No socket stays open for them.
fn open(server: &HttpServer, count: usize) -> Vec<String> {
    let body = initialize("2025-11-25").to_string();
    let message = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAccept: application/json, \
         text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    );
    let mut stream = server.connect();
    let mut ids = Vec::new();
    for _ in 0..count {
        stream.write_all(message.as_bytes()).unwrap();
        let mut seen = Vec::new();
        let mut chunk = [0; 8192];
        while !seen.ends_with(b"0\r\n\r\n") {
            let n = stream.read(&mut chunk).unwrap();
            assert!(n > 0, "the connection is kept: {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&chunk[..n]);
        }
        let text = String::from_utf8_lossy(&seen);
        let id = text.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        ids.push(id.unwrap_or_else(|| panic!("{text}")).to_owned());
    }
    ids
}

#[test]
fn ten_thousand_idle_sessions_are_bounded_and_each_of_them_still_works() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_REQUESTS_PER_MINUTE", "0"));
    let first = open(&server, 200);
    let before = resident_bytes(server.child.id());
    let mut all: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| open(&server, (SESSIONS - 200) / 4))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let grown = resident_bytes(server.child.id()).saturating_sub(before);
    let each = grown / all.len() as u64;
    assert!(each <= MAX_BYTES_EACH, "{each} bytes for each of {} sessions", all.len());

    // More than fit push the idlest out, and cost next to nothing.
    all.extend(open(&server, 500));
    let more = resident_bytes(server.child.id()).saturating_sub(before);
    assert!(more <= grown + 500 * MAX_BYTES_EACH, "{more} after {grown}");
    for id in [&first[0], &first[199], &all[0], &all[all.len() - 1]] {
        let headers = [("Mcp-Session-Id", id.as_str()), ("MCP-Protocol-Version", "2025-11-25")];
        let mut reply = server.post(&headers, &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}));
        reply.expect_ok();
        assert!(reply.answer()["result"]["tools"].is_array());
    }
    assert_eq!(server.send("GET", "/healthz", &[], b"").status, 200);
}
