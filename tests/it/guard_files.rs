//! `pathbox guard check` on real files: huge, binary, broken, missing; and invalid policies.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::server::command;

/// Runs `guard` over bytes on standard input.
fn guard(args: &[&str], input: &[u8]) -> (i32, String, String) {
    let data = tempfile::tempdir().unwrap();
    let mut child = start(command(data.path()).args(args));
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn bytes_that_are_not_text_are_checked_and_keep_their_places() {
    let input = b"\xff\xfe\n\x00\x80 bob@example.com \xc3\n";
    let (code, json, _) = guard(&["guard", "check", "-", "--json"], input);
    let found: Value = serde_json::from_str(&json).unwrap();
    let (first, binary) = (&found["findings"][0], &found["binary"]);
    assert_eq!((code, binary), (1, &Value::Bool(true)), "{json}");
    let place = ["line", "column", "start", "end"].map(|name| first[name].as_u64().unwrap());
    assert_eq!(place, [2, 4, 6, 21], "{json}");
    let (_, table, _) = guard(&["guard", "check", "-"], input);
    assert!(table.starts_with("not UTF-8 text") && !table.contains("bob"), "{table}");
    let (_, text, _) = guard(&["guard", "check", "-", "--text"], input);
    assert_eq!(text, "??\n\0? [EMAIL_1] ?\n");
}

#[test]
fn the_result_for_a_picture_or_a_document_is_reported() {
    for (input, said) in [
        (&b"\x89PNG\r\n\x1a\n\0"[..], "an image: "),
        (b"\xff\xd8\xff\xe0", "an image: "),
        (b"%PDF-1.4\n%\xe2\xe3\n", "a PDF: "),
        (b"%PDF-1.4\n1 0 obj <<>> endobj\n", "a PDF: "),
        (b"GIF89a\xff", "not UTF-8 text: "),
        (b"%PDF-1.4 begins a document\n", "policy "),
    ] {
        let (code, table, _) = guard(&["guard", "check", "-"], input);
        assert!(code == 0 && table.starts_with(said), "{input:?}: {table}");
    }
}

#[test]
fn withheld_text_is_not_shown_piece_by_piece_either() {
    let data = tempfile::tempdir().unwrap();
    let policy = data.path().join("policy.toml");
    std::fs::write(&policy, "[kinds]\nEMAIL = \"block\"\n").unwrap();
    let args = ["guard", "check", "-", "--text", "--policy", policy.to_str().unwrap()];
    let long = "harmless\n".repeat(100_000);
    assert_eq!(guard(&args, long.as_bytes()).1, long);
    let (code, out, _) = guard(&args, format!("{long}bob@example.com\n").as_bytes());
    assert_eq!((code, out.as_str()), (1, ""));
}

#[test]
fn unreadable_input_is_exit_code_2_and_a_message() {
    let data = tempfile::tempdir().unwrap();
    let dir = data.path().to_str().unwrap();
    for (file, said) in [("/no/such/file", "No such file"), (dir, "directory")] {
        let (code, out, err) = guard(&["guard", "check", file], b"");
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(file) && err.contains(said), "{err}");
    }
    let write = |text: &str| {
        let path = data.path().join("policy.toml");
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for (policy, said) in [
        ("version = \"1\"\nmode = \"sometimes\"\n", "line 2, column 8"),
        ("[kinds]\nEMIAL = \"redact\"\n", "line 2, column 1"),
        ("[kinds]\nEMAIL = \"delete\"\n", "line 2, column 9"),
        ("[allow]\npatterns = [\"a\",\n  \"(\"]\n", "line 2, column 12"),
        ("[allow]\nnetworks = [\"10.0.0.0/33\"]\n", "\"10.0.0.0/33\" is not a network"),
        ("[kinds\n", "line 1, column 7"),
    ] {
        for command in [&["guard", "check", "-"][..], &["guard", "rules"]] {
            let file = write(policy);
            let (code, out, err) = guard(&[command, &["--policy", &file]].concat(), b"bob@example.com");
            assert_eq!((code, out.as_str()), (2, ""), "{err}");
            assert!(err.contains("policy.toml is not a policy") && err.contains(said), "{policy}: {err}");
        }
    }
    let (code, _, err) = guard(&["guard", "check", "-", "--policy", "/no/such/policy"], b"");
    assert!(code == 2 && err.contains("/no/such/policy"), "{err}");
}

#[test]
fn rules_are_listed_for_programs_too() {
    let (code, json, _) = guard(&["guard", "rules", "--json"], b"");
    let rules: Vec<Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(code, 0);
    for rule in &rules {
        assert!(rule["id"].is_string() && rule["kind"].is_string() && rule["what"].is_string(), "{rule}");
    }
}

/// A stream of any length needs the memory of a few pieces: the peak does not grow with the length.
#[test]
fn a_long_stream_is_checked_in_bounded_memory() {
    let data = tempfile::tempdir().unwrap();
    let mut child = start(command(data.path()).args(["guard", "check", "-", "--json"]));
    let pid = child.id();
    let highest = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let mut stdin = child.stdin.take().unwrap();
    // Lines, an endless line, and more findings than are kept.
    let piece = format!("{}{}", "an ordinary line of output, 12.50\n".repeat(800), "x y, ".repeat(6_000));
    let found = "bob@example.com\n".repeat(11_000);
    let mut sent = 0;
    let mut send = |bytes: &str| {
        stdin.write_all(bytes.as_bytes()).unwrap();
        sent += bytes.len();
    };
    send(&found);
    (0..100).for_each(|_| send(&piece));
    let first = highest();
    (0..500).for_each(|_| send(&piece));
    let then = highest();
    assert!(then < first + 4_096, "{first} kB grew to {then} kB");
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["report"]["bytesIn"].as_u64(), Some(sent as u64));
    assert_eq!(report["findings"].as_array().unwrap().len(), 10_000);
    assert_eq!(
        (&report["leftOut"], &report["report"]["findings"]["EMAIL"]["count"]),
        (&1_000.into(), &11_000.into())
    );
}
