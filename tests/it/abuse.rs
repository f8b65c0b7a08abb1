//! Hostile code through the front door: each program has a clear answer, and the server and the next call are well.

use serde_json::{Value, json};

use crate::support::server::{Server, command};

fn content(result: &Value) -> &Value {
    &result["structuredContent"]
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_gigabyte_of_output_fills_nothing_and_stalls_no_one() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    server.call(json!({"code": "1", "language": "python"}), json!({"pathId": "other"}));
    let before = resident_kib(server.child.id());
    let flood = "import os\nblock = b'0123456789abcde\\n' * 65536\nfor _ in range(1024): os.write(1, block)";
    let id = server.begin(
        "tools/call",
        json!({"name": "run_code", "arguments": {"code": flood, "language": "python", "timeout_ms": 280_000},
            "_meta": {"dev.pathbox/patienceMs": 300_000}}),
    );
    // Another path is served meanwhile.
    let other = server.call(json!({"code": "6 * 7", "language": "python"}), json!({"pathId": "other"}));
    assert_eq!(content(&other)["output"], "42");
    let answer = server.answer(id);
    let result = &answer["result"];
    assert_eq!(content(result)["exitCode"], 0, "{}", content(result)["error"]);
    assert_eq!(content(result)["truncated"], true);
    assert!(
        content(result)["stoppedBy"].to_string().contains("output_truncated"),
        "{}",
        content(result)["stoppedBy"]
    );
    assert!(content(result)["stdout"].as_str().unwrap().len() < 60_000);
    let grown = resident_kib(server.child.id()).saturating_sub(before);
    assert!(grown < 200 * 1024, "the server grew by {grown} KiB");
    // What is kept of it is bounded too.
    let kept: u64 =
        content(result)["artifacts"].as_array().unwrap().iter().map(|a| a["bytes"].as_u64().unwrap()).sum();
    assert!(kept <= 64 << 20, "{kept} bytes were kept");
}

#[test]
fn a_fork_bomb_ends_inside_its_sandbox() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let bomb = "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0:\n            time.sleep(600)\n            os._exit(0)\n        n += 1\nexcept OSError as error:\n    print(type(error).__name__, n)";
    let result = server.python(bomb);
    let stdout = content(&result)["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("BlockingIOError "), "{result}");
    assert!(stdout.split_whitespace().nth(1).unwrap().parse::<u32>().unwrap() < 200, "{stdout}");
    let other = server.call(json!({"code": "6 * 7", "language": "python"}), json!({"pathId": "other"}));
    assert_eq!(content(&other)["output"], "42");
}

#[test]
fn a_memory_hog_dies_alone_and_its_result_says_why() {
    let data = tempfile::tempdir().unwrap();
    let mut server =
        Server::start_with(command(data.path()).env("PATHBOX_HOST_MEMORY_MB", "256").arg("serve"));
    let before = resident_kib(server.child.id());
    // Shared anonymous memory is not part of RLIMIT_DATA, so it shows that more than that holds.
    let hog = "import mmap\nkeep = []\nwhile True:\n    m = mmap.mmap(-1, 16 << 20)\n    m.write(b'x' * (16 << 20))\n    keep.append(m)";
    let result = server.python(hog);
    assert_eq!(content(&result)["success"], false, "{result}");
    let whole = content(&result).to_string();
    assert!(whole.contains("oom") || whole.contains("MemoryError"), "{whole}");
    assert!(
        resident_kib(server.child.id()).saturating_sub(before) < 100 * 1024,
        "the server is not the one that pays"
    );
    let after = server.python("1");
    assert_eq!(content(&after)["output"], "1", "{after}");
}

#[test]
fn the_machine_is_not_there() {
    let data = tempfile::tempdir().unwrap();
    let secret = data.path().join("host-secret");
    std::fs::write(&secret, "the host's secret").unwrap();
    let mut server = Server::start_with(
        command(data.path())
            .env("PATHBOX_SECRET_KEYS", "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
            .arg("serve"),
    );
    let code = format!(
        "import os, socket, json\nout = {{}}\n\
         out['environment'] = sorted(k for k in os.environ if 'PATHBOX' in k or 'KEY' in k)\n\
         out['file'] = os.path.exists({:?})\n\
         out['shadow'] = os.path.exists('/etc/shadow')\n\
         out['processes'] = len([p for p in os.listdir('/proc') if p.isdigit()])\n\
         try:\n    socket.create_connection(('1.1.1.1', 53), timeout=2)\n    out['network'] = 'open'\n\
         except OSError as error:\n    out['network'] = type(error).__name__\n\
         out['uid'] = os.getuid()\nout",
        secret.display().to_string()
    );
    let result = server.python(&code);
    let seen: Value = serde_json::from_str(content(&result)["output"].as_str().unwrap()).unwrap();
    assert_eq!(seen["environment"], json!([]), "{seen}");
    assert_eq!((&seen["file"], &seen["shadow"]), (&json!(false), &json!(false)), "{seen}");
    assert!(seen["processes"].as_u64().unwrap() < 10, "{seen}");
    assert_eq!(seen["network"], "OSError", "{seen}");
    assert_ne!(seen["uid"], 0);
}
