//! Rules of an operator, and a policy that changes while the server runs: through HTTP with two tenants, and as the author of
//! a policy tests it.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::http::HttpServer;
use crate::support::server::command;

const EMPLOYEE: &str = r#"
[[rule]]
id = "employee"
kind = "NATIONAL_ID"
pattern = '\bEMP-\d{6}\b'
examples = ["ask EMP-123456"]
counter_examples = ["ask EMP-12345"]
"#;

const OF_TENANTS: &str = r#"
[[tenants.acme.rule]]
id = "customer"
kind = "SECRET"
words = ["customer"]
pattern = '\b\d{8}\b'
examples = ["customer 48213377"]
[[tenants.beta.rule]]
id = "ticket"
kind = "SECRET"
pattern = 'TCK-[A-Z]{4}\d{4}'
examples = ["see TCK-ABCD1234"]
"#;

/// A text that comes in pieces, cut within each value.
const PIECES: &str = "import sys
for piece in ['ask EMP-12', '3456 of cust', 'omer 4821', '3377, TCK-AB', 'CD1234\\n']:
    sys.stdout.write(piece)
    sys.stdout.flush()";

fn key(data: &Path, tenant: &str) -> String {
    let add = ["keys", "add", "--json", "--name", "k", "--tenant", tenant, "--scopes", "run,read,admin"];
    let output = command(data).args(add).output().unwrap();
    let made: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    format!("Bearer {}", made["key"].as_str().unwrap())
}

fn run(server: &HttpServer, key: &str, code: &str) -> Value {
    let arguments = json!({ "code": code, "language": "python" });
    let mut answer = server.stateless(&[("Authorization", key)], "run_code", arguments, json!({})).answer();
    assert!(answer["result"]["structuredContent"].is_object(), "{answer}");
    answer["result"]["structuredContent"].take()
}

/// The policy's state in `/readyz`.
fn policy_check(server: &HttpServer) -> Value {
    let body: Value = serde_json::from_str(&server.send("GET", "/readyz", &[], b"").text()).unwrap();
    assert_eq!(body["ready"], true, "{body}");
    let checks = body["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == "policy").unwrap_or_else(|| panic!("{body}")).clone()
}

/// The metrics of policies.
fn counted(server: &HttpServer, key: &str) -> Vec<String> {
    let text = server.send("GET", "/metrics", &[("Authorization", key)], b"").text();
    text.lines().filter(|line| line.starts_with("guard_policy_")).map(str::to_owned).collect()
}

/// Polls until an answer matches.
fn until(ask: impl Fn() -> Value, wished: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let answer = ask();
        if wished(&answer) {
            return answer;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{answer}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn tenants_have_rules_of_their_own_and_a_changed_policy_takes_effect_without_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("policy.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write(&format!("version = \"one\"\n{EMPLOYEE}{OF_TENANTS}"));
    let (acme, beta) = (key(data.path(), "acme"), key(data.path(), "beta"));
    let mut command = command(data.path());
    let server = HttpServer::start_with(
        command.env("PATHBOX_GUARD_POLICY", &file).env("PATHBOX_HTTP_AUTH", "required"),
    );
    let shown = run(&server, &acme, PIECES);
    assert_eq!(shown["stdout"], "ask [NATIONAL_ID_1] of customer [SECRET_1], TCK-ABCD1234\n", "{shown}");
    assert_eq!(shown["guard"]["findings"], json!({"NATIONAL_ID": 1, "SECRET": 1}));
    let shown = run(&server, &beta, PIECES);
    assert_eq!(shown["stdout"], "ask [NATIONAL_ID_1] of customer 48213377, [SECRET_1]\n", "{shown}");
    assert_eq!(policy_check(&server), json!({"name": "policy", "ok": true, "state": "loaded"}));

    // A run that is in progress when the policy changes keeps the policy that it began with.
    let code = "import time\nfor _ in range(80): print('EMP-123456', flush=True); time.sleep(0.05)";
    let meta = json!({"progressToken": 1, "dev.pathbox/conversationId": "long"});
    let arguments = json!({"code": code, "language": "python"});
    let mut long = server.stateless(&[("Authorization", &acme)], "run_code", arguments, meta);
    let progress = long.message().expect("a run that takes seconds says that it goes on");
    assert_eq!(progress.json()["method"], "notifications/progress");
    write(&format!("version = \"two\"\n{OF_TENANTS}"));
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    let of = |version: &'static str| move |shown: &Value| shown["guard"]["policy"] == version;
    let shown = until(|| run(&server, &acme, PIECES), of("two"));
    assert_eq!(shown["stdout"], "ask EMP-123456 of customer [SECRET_1], TCK-ABCD1234\n", "{shown}");
    let ended = long.answer();
    let ended = &ended["result"]["structuredContent"];
    assert_eq!(
        (&ended["guard"]["policy"], &ended["guard"]["findings"]),
        (&json!("one"), &json!({"NATIONAL_ID": 80}))
    );
    assert!(!ended.to_string().contains("EMP-1"), "{ended}");

    // An invalid policy changes nothing, and is reported.
    write(
        "version = \"three\"\n[[rule]]\nid = \"wide\"\nkind = \"SECRET\"\npattern = 'ACME.*'\nexamples = [\"ACME\"]\n",
    );
    let said = until(|| policy_check(&server), |check| check["ok"] == false);
    assert_eq!(said["state"], "the changed file is invalid; the previous one is still in use");
    assert_eq!(run(&server, &beta, PIECES)["guard"]["policy"], "two");
    let lines = counted(&server, &acme);
    assert!(lines.contains(&"guard_policy_current 0".to_owned()), "{lines:?}");
    assert!(lines.contains(&"guard_policy_reloads_total{outcome=\"refused\"} 1".to_owned()), "{lines:?}");
    let log = server.log();
    assert!(log.contains("the rule `wide` has a pattern that begins or ends with any signs"), "{log}");

    // A valid one takes effect; without a version it is named by its hash.
    write(&format!("{EMPLOYEE}{OF_TENANTS}"));
    until(|| policy_check(&server), |check| check["ok"] == true);
    let shown = run(&server, &beta, PIECES);
    assert!(shown["guard"]["policy"].as_str().unwrap().starts_with("unnamed-"), "{shown}");
    assert_eq!(shown["stdout"], "ask [NATIONAL_ID_1] of customer 48213377, [SECRET_1]\n", "{shown}");
    let lines = counted(&server, &acme);
    assert!(lines.contains(&"guard_policy_current 1".to_owned()), "{lines:?}");
}

/// `pathbox guard`, with a text on its standard input.
fn guard(data: &Path, args: &[&str], input: &str) -> (i32, String, String) {
    let mut child = command(data);
    child.arg("guard").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    // A command that does not read its input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn own_rules_are_tried_listed_and_refused_at_the_command_line() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("policy.toml");
    let policy = file.to_str().unwrap();
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write(&format!("{EMPLOYEE}{OF_TENANTS}"));
    let text = "customer 48213377\nask EMP-123456\n";
    let check =
        |more: &[&str]| guard(data.path(), &[&["check", "-", "--policy", policy], more].concat(), text);
    let (code, table, _) = check(&[]);
    assert_eq!(code, 1);
    assert!(table.contains("employee: a rule of the policy") && !table.contains("customer:"), "{table}");
    assert!(!table.contains("EMP-1"), "{table}");
    let (_, table, _) = check(&["--policy-tenant", "acme"]);
    assert!(table.contains("employee:") && table.contains("customer:"), "{table}");
    let (_, found, _) = check(&["--json", "--policy-tenant", "acme"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(
        (&found["findings"][0]["rule"], &found["findings"][0]["line"]),
        (&json!("customer"), &json!(1))
    );
    let cases = "{\"text\": \"ask EMP-123456\", \"finds\": [\"NATIONAL_ID\"], \"becomes\": \"ask [NATIONAL_ID_1]\"}\n";
    let (code, said, _) = guard(data.path(), &["test", policy, "-"], cases);
    assert_eq!((code, said.as_str()), (0, "1 of 1 cases pass\n"));
    let (_, rules, _) = guard(data.path(), &["rules", "--policy", policy, "--policy-tenant", "beta"], "");
    assert!(
        rules.contains("ticket ") && rules.contains("employee ") && !rules.contains("customer "),
        "{rules}"
    );

    for (wrong, said) in [
        (EMPLOYEE.replace("ask EMP-12345\"", "ask EMP-123456\""), "counter-example 1"),
        (EMPLOYEE.replace("EMP-", ""), "no literal of 3 bytes"),
        (EMPLOYEE.replace("NATIONAL_ID", "STAFF"), "line 4, column 8"),
        (EMPLOYEE.replace("id = \"employee\"", "id = \"email\""), "built-in rule"),
        (
            EMPLOYEE.replace("NATIONAL_ID", "PHONE").replace("ask EMP-123456", "bob@EMP-123456.com"),
            "`email` finds it first",
        ),
        (format!("{EMPLOYEE}{EMPLOYEE}"), "is there twice"),
    ] {
        write(&wrong);
        let (code, out, error) = check(&[]);
        assert_eq!((code, out.as_str()), (2, ""), "{wrong}");
        assert!(error.contains(said), "{said}: {error}");
    }
}
