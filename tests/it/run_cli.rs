//! `pathbox run`, `demo`, `config` and friends, as a person types them.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::server::command;

fn run(data: &std::path::Path, args: &[&str]) -> (i32, String, String) {
    let output = command(data).arg("run").args(args).stdin(Stdio::null()).output().unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn the_exit_code_is_the_codes_and_output_goes_where_it_belongs() {
    let data = tempfile::tempdir().unwrap();
    assert_eq!(run(data.path(), &["print('out')"]), (0, "out\n".into(), String::new()));
    let (code, out, err) = run(data.path(), &["import sys; print('e', file=sys.stderr); sys.exit(3)"]);
    assert_eq!((code, out.as_str()), (3, ""));
    assert_eq!(err, "e\n");
    assert_eq!(run(data.path(), &["raise SystemExit(0)"]), (0, String::new(), String::new()));
    let (code, _, err) = run(data.path(), &["1/0"]);
    assert_eq!(code, 1);
    assert!(err.contains("ZeroDivisionError"), "{err}");
    let (code, _, err) = run(data.path(), &["--timeout-ms", "1000", "while True: pass"]);
    assert_eq!(code, 124);
    assert!(err.contains("timeout"), "{err}");
}

/// Evidence, settings and results go into files: what is cut off by a full disk must not pass for whole.
#[test]
#[cfg(target_os = "linux")]
fn output_that_cannot_be_written_is_an_error_and_a_closed_pipe_is_none() {
    let data = tempfile::tempdir().unwrap();
    for args in [&["run", "print(1)"][..], &["audit", "export"], &["config"], &["keys", "ls", "--json"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command(data.path()).args(args).stdin(Stdio::null()).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("the output is not complete: No space left on device"), "{args:?}: {said}");
        let (reader, pipe) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(data.path()).args(args).stdin(Stdio::null()).stdout(pipe).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {output:?}");
    }
    // The exit code of a program is its own, also where its complaint has no place.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut complains = command(data.path());
    complains.args(["run", "import sys; print('e', file=sys.stderr); sys.exit(3)"]).stdin(Stdio::null());
    assert_eq!(complains.stderr(full.try_clone().unwrap()).status().unwrap().code(), Some(3));
    assert_eq!(command(data.path()).args(["--set", "x"]).stderr(full).status().unwrap().code(), Some(2));
}

/// Names come from models, from programs and from other people.
#[test]
fn names_do_not_steer_the_terminal_or_break_a_table() {
    let data = tempfile::tempdir().unwrap();
    let named = |name: &str| {
        let add = ["keys", "add", "--name", name, "--tenant", "t"];
        assert!(command(data.path()).args(add).status().unwrap().success());
    };
    named("\x1b]0;title\x07\x1b[2J\nstate  \u{202e}good");
    let listed =
        String::from_utf8(command(data.path()).args(["keys", "ls"]).output().unwrap().stdout).unwrap();
    assert_eq!(listed.lines().count(), 2, "{listed:?}");
    assert!(listed.contains(r"\u001b]0;title\u0007\u001b[2J\nstate  \u202egood"), "{listed:?}");
    let refused = command(data.path()).args(["run", "--template", "\x1b[2J", "1"]).output().unwrap();
    assert!(!refused.status.success() && !refused.stderr.contains(&0x1b), "{refused:?}");
}

/// Programs begin with the usual signals, whatever a shell or a service manager has set aside for the host.
#[test]
#[cfg(target_os = "linux")]
fn programs_do_not_inherit_ignored_signals() {
    let data = tempfile::tempdir().unwrap();
    let plain = command(data.path());
    let code = "import signal; print([s.name for s in signal.valid_signals() if s in signal.Signals._value2member_map_ and signal.getsignal(s) == signal.SIG_IGN])";
    let mut host = Command::new("sh");
    host.args(["-c", "trap '' QUIT USR1 ALRM TSTP; exec \"$0\" \"$@\""]).arg(plain.get_program());
    let output = host.args(["run", code]).env("PATHBOX_DATA_DIR", data.path()).output().unwrap();
    // Python's own.
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "['SIGPIPE', 'SIGXFSZ']\n", "{output:?}");
}

/// A bucket that fails is not waited for once for each output of a run.
#[test]
fn a_bucket_that_is_away_is_tried_for_one_output_of_a_run() {
    let bucket = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("objects.endpoint=http://{}", bucket.local_addr().unwrap());
    let (asked, keys) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in bucket.incoming().flatten() {
            let mut line = String::new();
            let _ = BufReader::new(&stream).read_line(&mut line);
            let key = line.strip_prefix("PUT ").and_then(|rest| rest.split(['?', ' ']).next());
            key.map(|key| asked.send(key.to_owned()));
        }
    });
    let data = tempfile::tempdir().unwrap();
    let code = "from IPython.display import SVG, display\n\
                for n in range(4):\n    display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1%d\" height=\"1\"/>' % n))\n\
                print('x' * 200_000)";
    let mut run = command(data.path());
    run.args(["--set", &endpoint, "--set", "objects.url=s3://bucket", "--set", "objects.access_key_id=a"]);
    run.args(["--set", "objects.secret_access_key=not-a-real-secret", "run", "--json", code]);
    let output = run.stdin(Stdio::null()).output().unwrap();
    let result: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert!(result["success"] == true && result["artifacts"].is_null(), "{result:#}");
    let keys: std::collections::BTreeSet<String> = keys.try_iter().collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
}

/// A shell puts the name of its directory into the environment, whatever bytes it has.
#[test]
#[cfg(unix)]
fn a_variable_that_is_not_utf_8_stops_nothing_unless_it_is_a_setting() {
    let data = tempfile::tempdir().unwrap();
    let bytes = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"/caf\xe9");
    let with = |name: &str| command(data.path()).args(["contexts", "ls"]).env(name, bytes).output().unwrap();
    assert!(with("PWD").status.success(), "{:?}", with("PWD"));
    let said = String::from_utf8(with("E2B_DOMAIN").stderr).unwrap();
    assert!(said.contains("`e2b.domain` (environment E2B_DOMAIN): it is not UTF-8"), "{said}");
    for first in [&["--data-dir"][..], &[]] {
        let output = command(data.path()).args(first).arg(bytes).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && !said.contains("panicked"), "{first:?}: {said}");
    }
}

/// What ends an interpreter has a status, as it has for a shell.
#[test]
#[cfg(target_os = "linux")]
fn the_status_of_an_interpreter_that_ended_is_the_codes() {
    let data = tempfile::tempdir().unwrap();
    for (language, code, status, why) in [
        ("python", "import os; os._exit(7)", 7, "exit code 7"),
        ("python", "import os; os._exit(0)", 0, "exit code 0"),
        ("python", "import os; os.kill(os.getpid(), 9)", 137, "SIGKILL"),
        ("python", "import ctypes; ctypes.string_at(0)", 139, "SIGSEGV"),
        ("javascript", "process.kill(process.pid, 'SIGTERM'); await new Promise(() => {})", 143, "SIGTERM"),
        ("bash", "kill -9 $$", 137, "SIGKILL"),
    ] {
        let (found, _, err) = run(data.path(), &["--language", language, code]);
        assert_eq!(found, status, "{code}: {err}");
        assert!(err.contains(why), "{code}: {err}");
        let (_, out, _) = run(data.path(), &["--json", "--language", language, code]);
        let said: Value = serde_json::from_str(&out).unwrap();
        let error = &said["error"];
        assert_eq!((&said["exitCode"], &said["success"]), (&json!(status), &json!(false)), "{said}");
        assert_eq!((&error["name"], &error["message"]), (&json!("ExitStatus"), &json!(status.to_string())));
    }
}

#[test]
fn a_sandbox_that_ended_with_its_process_is_reported_as_gone() {
    let data = tempfile::tempdir().unwrap();
    let conversation = |code| run(data.path(), &["--conversation", "c", code]);
    assert_eq!(conversation("x = 1"), (0, String::new(), String::new()));
    let (code, _, err) = conversation("x");
    assert!(code == 1 && err.contains("NameError") && err.contains("[note] state reset: "), "{err}");
}

#[test]
fn code_may_come_from_a_file_or_from_standard_input() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("code.py");
    std::fs::write(&file, "print(6 * 7)").unwrap();
    assert_eq!(run(data.path(), &["--file", file.to_str().unwrap()]).1, "42\n");
    let mut child =
        command(data.path()).arg("run").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"print(6 * 9)").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"54\n");
    assert_eq!(run(data.path(), &["--language", "js", "[1].length + 1"]).1, "2\n", "by its usual name");
}

#[test]
fn an_address_to_serve_at_that_is_none_is_refused_with_an_example() {
    let data = tempfile::tempdir().unwrap();
    for address in ["localhost:8080", "8080", "127.0.0.1:99999"] {
        let output = command(data.path()).args(["serve", "--http", address]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("`http.listen`") && said.contains("e.g. 127.0.0.1:8080"), "{said}");
    }
}

#[test]
fn a_tenants_own_limit_holds_from_the_next_call_on_and_can_be_taken_back() {
    let data = tempfile::tempdir().unwrap();
    let limit = |args: &[&str]| -> Value {
        let output = command(data.path()).args(["contexts", "limit", "--json"]).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(
        limit(&["--per-tenant", "0"]),
        serde_json::json!({"tenant": "local", "perTenant": 0, "perConversation": 5})
    );
    let (code, out, err) = run(data.path(), &["print('ran')"]);
    assert!(code != 0 && out.is_empty() && err.contains("limit of 0 live contexts"), "{code} {out} {err}");
    assert_eq!(run(data.path(), &["--tenant", "other", "print('ran')"]).1, "ran\n");
    let looked = command(data.path()).args(["contexts", "limit"]).output().unwrap();
    assert!(!looked.status.success(), "a look takes nothing back: {looked:?}");
    assert_eq!(limit(&["--reset"])["perTenant"], 10);
    assert_eq!(run(data.path(), &["print('ran')"]).1, "ran\n");
}

#[test]
fn runs_are_audited_counted_and_can_be_erased() {
    let data = tempfile::tempdir().unwrap();
    let json = |args: &[&str]| -> (i32, Value) {
        let output = command(data.path()).args(args).output().unwrap();
        let value = serde_json::from_slice(&output.stdout);
        (output.status.code().unwrap(), value.unwrap_or_else(|_| panic!("{output:?}")))
    };
    let lines = |args: &[&str]| {
        let output = command(data.path()).args(args).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(run(data.path(), &["print('ran')"]).0, 0);
    let (code, found) = json(&["audit", "verify", "--json"]);
    assert_eq!((code, &found["sound"], &found["chains"][0]["entries"]), (0, &true.into(), &1.into()));
    let (_, line) = json(&["audit", "export"]);
    assert_eq!((&line["tenant"], &line["lane"], &line["n"]), (&"local".into(), &0.into(), &1.into()));
    let (_, rest) = lines(&["audit", "export", "--tenant", "local", "--after", "0:1"]);
    assert_eq!(rest, "", "a later export goes on where an earlier one ended");
    assert!(line["body"].as_str().unwrap().contains("\"status\":\"completed\""), "{line}");

    let price = ["--set", "usage.price_execution=0.5"];
    let (_, usage) = json(&["usage", "--json", "--by", "path", price[0], price[1]]);
    let line = &usage["lines"][0];
    assert_eq!(
        (&line["path"], &line["executions"], &line["cost"]),
        (&"main".into(), &1.into(), &"0.5".into())
    );
    assert!(line["sandboxMs"].as_u64().unwrap() > 0, "{line}");

    let (_, quota) = json(&["usage", "quota", "--executions", "1", "--period", "day", "--json"]);
    assert_eq!((&quota["executions"], &quota["period"]), (&1.into(), &"day".into()));
    assert_eq!(json(&["usage", "quota", "--json"]).1, quota, "a look takes nothing back");
    let (code, _, err) = run(data.path(), &["print('ran')"]);
    assert!(
        code != 0 && err.contains("quota of runs is used up: 1 used and 1 reserved of 1 in this day"),
        "{err}"
    );

    let refused = command(data.path()).args(["tenants", "erase", "--tenant", "local"]).output().unwrap();
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("--yes"),
        "{refused:?}"
    );
    let (_, gone) = json(&["tenants", "erase", "--tenant", "local", "--yes", "--json"]);
    assert_eq!(gone["erased"]["executions"], 1, "{gone}");
    let (code, found) = json(&["audit", "verify", "--json"]);
    assert_eq!((code, &found["chains"][0]["erased"]), (0, &1.into()), "{found}");
}

#[test]
fn a_run_can_be_explained() {
    let data = tempfile::tempdir().unwrap();
    run(data.path(), &["--timeout-ms", "1000", "while True: pass"]);
    run(data.path(), &["import sys; sys.exit(3)"]);
    let json = |args: &[&str]| -> Value {
        let output = command(data.path()).args(args).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let runs = json(&["executions", "ls", "--json"]);
    let explain =
        |n: usize| json(&["executions", "show", runs[n]["id"].as_str().unwrap(), "--explain", "--json"]);
    let failed = explain(0);
    assert!(failed["why"].as_str().unwrap().contains("exit code 3"), "{failed}");
    let late = explain(1);
    assert_eq!(
        (&late["status"], &late["mostOfIt"]),
        (&"timed_out".into(), &"running in the sandbox".into()),
        "{late}"
    );
    assert!(late["why"].as_str().unwrap().contains("reached its deadline"), "{late}");
    assert!(
        late["makingSandboxMs"].as_i64().unwrap() > 0 && late["ranMs"].as_i64().unwrap() >= 1000,
        "{late}"
    );
    assert!(late["contextNow"].as_str().is_some(), "{late}");
}

#[test]
fn bad_input_says_what_is_allowed() {
    let data = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (vec![" "], "1 to 102400 bytes"),
        (vec!["--timeout-ms", "5", "1"], "1000 to 600000"),
        (vec!["--language", "cobol", "1"], "python, javascript, typescript, bash"),
        (vec!["--file", "/no/such/file"], "/no/such/file"),
        (vec!["--tenant", "a b", "1"], "identity.tenant"),
        (vec!["--idempotency-key", "", "1"], "it has 0 characters"),
    ] {
        let (code, out, err) = run(data.path(), &args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}");
        assert!(err.contains(expected), "{args:?}: {err}");
    }
}

#[test]
fn an_idempotency_key_runs_once_and_refuses_other_arguments() {
    let data = tempfile::tempdir().unwrap();
    let args = |code: &'static str| ["--conversation", "c", "--idempotency-key", "k", "--json", code];
    let (_, first, _) = run(data.path(), &args("import random; random.random()"));
    let (_, second, _) = run(data.path(), &args("import random; random.random()"));
    let (first, second): (Value, Value) =
        (serde_json::from_str(&first).unwrap(), serde_json::from_str(&second).unwrap());
    assert_eq!(first["results"], second["results"]);
    assert_eq!(first["executionId"], second["executionId"]);
    let (code, _, err) = run(data.path(), &args("2"));
    assert_eq!(code, 2);
    assert!(err.contains("other arguments"), "{err}");
}

#[test]
fn the_demo_tells_its_story_and_writes_a_picture_that_opens() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("plot.png");
    let mut demo = command(dir.path());
    demo.env_remove("PATHBOX_DATA_DIR");
    let output = demo.args(["demo", "--out"]).arg(&out).output().unwrap();
    let story = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{story}\n{}", String::from_utf8_lossy(&output.stderr));
    let parts =
        ["6 rows, 6330 EUR", "[EMAIL_1]", "NameError", "8,400.00", "1000 commits", "completed: 20 + 22 = 42"];
    for part in ["1. ", "2. ", "3. ", "4. ", "5. ", "6. ", "7. ", "8. "].into_iter().chain(parts) {
        assert!(story.contains(part), "{part}: {story}");
    }
    assert!(story.lines().count() <= 30, "{story}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let picture = image::load_from_memory(&std::fs::read(&out).unwrap()).unwrap();
    assert!(picture.width() > 100);
}

#[test]
fn settings_are_shown_with_their_sources_and_without_secrets() {
    let data = tempfile::tempdir().unwrap();
    let output = command(data.path())
        .env("E2B_API_KEY", "e2b_supersecret")
        .args(["--set", "host.pool=0", "config", "--json"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("supersecret"));
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    let row = |key: &str| rows.iter().find(|row| row["key"] == key).unwrap();
    assert_eq!(row("host.pool")["source"], "flag");
    assert_eq!(row("e2b.api_key")["source"], "environment E2B_API_KEY");
    assert_eq!(row("data_dir")["source"], "environment PATHBOX_DATA_DIR");
}

#[test]
fn settings_that_are_not_set_show_their_effective_value() {
    let home = tempfile::tempdir().unwrap();
    let shown = |arguments: &[&str], xdg: Option<&str>| {
        let mut command = command(home.path());
        command.env_remove("PATHBOX_DATA_DIR").env_remove("XDG_DATA_HOME").env("HOME", home.path());
        if let Some(dir) = xdg {
            command.env("XDG_DATA_HOME", dir);
        }
        String::from_utf8(command.arg("config").args(arguments).output().unwrap().stdout).unwrap()
    };
    let place = home.path().join(".local/share/pathbox").display().to_string();
    let rows: Vec<Value> = serde_json::from_str(&shown(&["--json"], None)).unwrap();
    let row = |key: &str| rows.iter().find(|row| row["key"] == key).unwrap();
    assert_eq!(*row("data_dir"), json!({"key": "data_dir", "value": place, "source": "default, below HOME"}));
    for (key, effective) in [
        ("database_url", format!("SQLite, {place}/pathbox.db")),
        ("secret_keys", format!("{place}/secret.key")),
        ("objects.url", format!("{place}/outputs")),
        ("e2b.api_key", "sandboxes of this machine".to_owned()),
    ] {
        assert_eq!(row(key)["effective"], effective, "{key}");
        assert!(row(key)["value"].is_null() && row(key)["source"] == "default", "{}", row(key));
    }
    assert!(row("cron_secret").get("effective").is_none(), "{}", row("cron_secret"));

    let table = shown(&[], Some("/srv/data"));
    let line = |key: &str| table.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    let [place, source] = ["/srv/data/pathbox ", " default, below XDG_DATA_HOME"];
    assert!(line("data_dir").contains(place) && line("data_dir").ends_with(source), "{}", line("data_dir"));
    assert!(
        line("database_url").contains("(SQLite, /srv/data/pathbox/pathbox.db)"),
        "{}",
        line("database_url")
    );
    assert!(line("cron_secret").contains(" – "), "{}", line("cron_secret"));
}

#[test]
fn an_unknown_setting_stops_the_start_with_its_name() {
    let data = tempfile::tempdir().unwrap();
    for (variable, value) in [("PATHBOX_POOOL", "1"), ("PATHBOX_HOST_POOL", "many")] {
        let output = command(data.path()).env(variable, value).arg("config").output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(err.contains(variable), "{err}");
    }
}

/// `| head -1`: the reader is gone before the rest is written.
#[test]
fn a_closed_pipe_is_not_a_failure() {
    let data = tempfile::tempdir().unwrap();
    for args in [&["config"][..], &["config", "--json"], &["manifest"], &["contexts", "ls"]] {
        let mut child =
            command(data.path()).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
