//! What a result says when a limit ends something, for every language and every limit, through the tool that clients call.

use serde_json::{Value, json};

use crate::support::server::{Server, command};

/// A run that meets a limit, and how its result reports it.
struct Row {
    what: &'static str,
    /// For Python, for JavaScript and TypeScript, and for Bash.
    code: [&'static str; 3],
    /// What `stoppedBy` names, if the limit is the sandbox's.
    stopped_by: &'static str,
    /// The error's text, in any of its members. Empty: there is none.
    says: [&'static str; 3],
    /// What must not be lost by it.
    state: [&'static str; 3],
}

const TIMEOUT_MS: u64 = 60_000;
const KEPT: [&str; 3] = ["kept"; 3];
const DEAD: [&str; 3] = ["rolled_back", "reset", "reset"];

const ROWS: &[Row] = &[
    Row {
        what: "output truncated",
        code: [
            "for i in range(300000): print('0123456789')",
            "for (let i = 0; i < 300000; i++) console.log('0123456789')",
            "yes 0123456789 | head -n 300000",
        ],
        stopped_by: "output_truncated",
        says: [""; 3],
        state: KEPT,
    },
    Row {
        what: "timed out",
        code: ["while True: pass", "while (true) {}", "while :; do :; done"],
        stopped_by: "",
        says: ["did not end within 2000 ms"; 3],
        state: KEPT,
    },
    Row {
        what: "memory is full",
        code: [
            "k = []\nwhile True: k.append(bytearray(b'x') * (16 << 20))",
            "{ const k = []; for (;;) k.push(Buffer.alloc(16 << 20, 1)) }",
            "python3 -c \"k = []\nwhile True: k.append(bytearray(b'x') * (16 << 20))\"",
        ],
        stopped_by: "oom",
        says: ["MemoryError", "allocation failed", "1"],
        state: KEPT,
    },
    Row {
        what: "somebody is killed because memory is full",
        code: [
            "import mmap\nk = []\nwhile True:\n    m = mmap.mmap(-1, 16 << 20); m.write(b'x' * (16 << 20)); k.append(m)",
            "{ const k = []; for (;;) k.push(new Array(1e6).fill('x' + k.length)) }",
            "for i in 1 2 3; do python3 -c \"x = b'x' * (120 << 20); import time; time.sleep(600)\" & done; \
             wait -n; s=$?; kill $(jobs -p); wait; (exit $s)",
        ],
        stopped_by: "oom",
        says: ["the sandbox's memory was full", "the sandbox's memory was full", "137"],
        state: ["rolled_back", "reset", "kept"],
    },
    Row {
        what: "the interpreter ended itself",
        code: ["import os; os._exit(7)", "process.exit(7)", "exit 7"],
        stopped_by: "",
        says: ["exit code 7", "\"message\":\"7\"", "\"message\":\"7\""],
        state: ["rolled_back", "kept", "kept"],
    },
    Row {
        what: "the interpreter crashed",
        code: [
            "import ctypes; ctypes.string_at(0)",
            "process.kill(process.pid, 'SIGSEGV'); await new Promise(() => {})",
            "kill -SEGV $$",
        ],
        stopped_by: "",
        says: ["SIGSEGV, a crash in native code"; 3],
        state: DEAD,
    },
    Row {
        what: "the interpreter was killed",
        code: [
            "import os; os.kill(os.getpid(), 9)",
            "process.kill(process.pid, 'SIGKILL'); await new Promise(() => {})",
            "kill -9 $$",
        ],
        stopped_by: "",
        says: ["SIGKILL"; 3],
        state: DEAD,
    },
    Row {
        what: "the disk is full",
        code: [
            "open('big', 'wb').write(b'x' * (16 << 20))",
            "require('fs').writeFileSync('big', Buffer.alloc(16 << 20))",
            "head -c 16000000 /dev/zero > big",
        ],
        stopped_by: "disk_full",
        says: ["No space left on device", "ENOSPC", "1"],
        state: KEPT,
    },
    Row {
        what: "the disk is full for a program that was started",
        code: [
            "import subprocess; subprocess.run('head -c 16000000 /dev/zero > big', shell=True, check=True)",
            "require('child_process').execSync('head -c 16000000 /dev/zero > big')",
            "x=$(head -c 900000 /dev/zero | tr '\\0' x); for i in $(seq 20); do echo $x >> big; done",
        ],
        stopped_by: "disk_full",
        says: ["non-zero exit status", "Command failed", "1"],
        state: KEPT,
    },
    Row {
        what: "a file is too large",
        code: [
            "open('/tmp/big', 'wb').write(b'x' * (16 << 20))",
            "require('fs').writeFileSync('/tmp/big', Buffer.alloc(16 << 20))",
            "head -c 16000000 /dev/zero > /tmp/big",
        ],
        stopped_by: "disk_full",
        says: ["File too large", "EFBIG", "153"],
        state: KEPT,
    },
    Row {
        what: "a file is too large for a program that was started",
        code: [
            "import subprocess; subprocess.run(['head', '-c', '16000000', '/dev/zero'], stdout=open('/tmp/big', 'wb'), check=True)",
            "require('child_process').execSync('exec head -c 16000000 /dev/zero > /tmp/big')",
            "sh -c 'head -c 16000000 /dev/zero > /tmp/big; exit $?'",
        ],
        stopped_by: "disk_full",
        says: ["SIGXFSZ", "Command failed", "153"],
        state: KEPT,
    },
    Row {
        what: "too many processes",
        code: [
            "import subprocess\nk = []\nwhile True: k.append(subprocess.Popen(['sleep', '600']))",
            "for (;;) { const p = require('child_process').spawn('sleep', ['600']); if (p.pid === undefined) await new Promise((_, no) => p.on('error', no)) }",
            "sh -c 'for i in $(seq 200); do sleep 600 & done'",
        ],
        stopped_by: "too_many_processes",
        says: ["Resource temporarily unavailable", "EAGAIN", "2"],
        state: KEPT,
    },
];

fn run(server: &mut Server, language: &str, code: &str, timeout_ms: u64) -> Value {
    let arguments = json!({"code": code, "language": language, "timeout_ms": timeout_ms});
    server.call(arguments, json!({"dev.pathbox/patienceMs": 300_000}))["structuredContent"].take()
}

/// Meets every limit in one language, each in the sandbox in which the last was met.
fn meet_all(language: &str, cgroups: bool) {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(
        command(data.path())
            .envs([
                ("PATHBOX_HOST_MEMORY_MB", "256"),
                ("PATHBOX_HOST_PROCESSES", "40"),
                ("PATHBOX_HOST_HOME_MB", "8"),
                ("PATHBOX_HOST_FILE_MB", "12"),
                ("PATHBOX_HOST_OUTPUT_MB", "1"),
                ("PATHBOX_HOST_POOL", "0"),
                ("PATHBOX_HOST_CGROUPS", if cgroups { "true" } else { "false" }),
            ])
            .arg("serve"),
    );
    // Nothing is left of what the last row took.
    let (column, clean) = match language {
        "python" => (0, "k = None"),
        "bash" => (2, "rm -f big"),
        _ => (1, "1"),
    };
    let mut wrong = Vec::new();
    for row in ROWS {
        run(&mut server, language, clean, TIMEOUT_MS);
        let timeout_ms = if row.what == "timed out" { 2000 } else { TIMEOUT_MS };
        let told = run(&mut server, language, row.code[column], timeout_ms);
        let stopped_by: Vec<&str> = told["stoppedBy"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|reason| reason.as_str().unwrap())
            .collect();
        let expected: Vec<&str> =
            Some(row.stopped_by).into_iter().filter(|reason| !reason.is_empty()).collect();
        let says = row.says[column];
        let is_said =
            if says.is_empty() { told["error"].is_null() } else { told["error"].to_string().contains(says) };
        if stopped_by != expected
            || !is_said
            || told["state"] != row.state[column]
            || told["success"] != says.is_empty()
        {
            wrong.push(format!("{language}, {}: {told}", row.what));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn python_names_each_limit() {
    meet_all("python", true);
}

#[test]
#[ignore = "needs node: scripts/test installs it"]
fn javascript_names_each_limit() {
    meet_all("javascript", true);
}

#[test]
#[ignore = "needs node: scripts/test installs it"]
fn typescript_names_each_limit() {
    meet_all("typescript", true);
}

#[test]
fn bash_names_each_limit() {
    meet_all("bash", true);
}

#[test]
fn bash_names_each_limit_where_memory_is_only_watched() {
    meet_all("bash", false);
}
