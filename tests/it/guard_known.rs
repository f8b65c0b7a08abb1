//! Known secrets, end to end: a value that a policy names by its variable or that the server itself
//! holds appears in no run, in none of the forms that are looked for, and in no error.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::fault_server::{API_KEY, FaultServer, Reply as Fault};
use crate::support::server::{Server, command};

/// A value that no rule would find.
const TOKEN: &str = "correct horse 77";
/// The same, assembled by a program.
const MADE: &str = "import base64\nt = ' '.join(['correct', 'horse', '77']).encode()\n";
/// The key of the server's key ring: 32 bytes in base64.
const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

fn with_policy(data: &Path, policy: &str) -> Command {
    let file = data.join("policy.toml");
    std::fs::write(&file, policy).unwrap();
    let mut command = command(data);
    command.env("PATHBOX_GUARD_POLICY", file);
    command
}

#[test]
fn secrets_that_a_policy_names_or_the_server_holds_come_out_of_no_run() {
    let forms = [
        "t.decode()",
        "t.decode()[::-1]",
        "t.hex()",
        "t.hex().upper()",
        "base64.b64encode(t).decode()",
        "base64.b64encode(b'\\xf5' + t + b'\\xf5').decode()",
        "base64.urlsafe_b64encode(b'\\xf5\\xf5' + t).decode()",
        "__import__('urllib.parse').parse.quote(t)",
        "base64.b64encode(b'0123456789abcdef' * 2).decode()",
    ];
    let code = format!("{MADE}for form in [{}]: print(form)", forms.join(", "));
    let run = |mode: &str| {
        let data = tempfile::tempdir().unwrap();
        let mut command = with_policy(data.path(), "[known]\nenv = [\"APP_TOKEN\"]\n");
        command.env("APP_TOKEN", TOKEN).env("PATHBOX_SECRET_KEYS", format!("1:{KEY}"));
        let mut server = Server::start_with(command.env("PATHBOX_GUARD_MODE", mode).arg("serve"));
        server.call(json!({"code": code, "language": "python"}), json!({}))["structuredContent"].take()
    };
    let off = run("off");
    let shown = off["stdout"].as_str().unwrap();
    assert!(shown.contains(TOKEN) && shown.contains(KEY), "it is no way out, so this proves nothing: {off}");
    let on = run("enforce");
    let lines: Vec<_> = on["stdout"].as_str().unwrap().lines().collect();
    assert_eq!(lines.len(), forms.len(), "{on}");
    for (line, form) in lines.iter().zip(forms) {
        let rest =
            line.strip_prefix("[KNOWN_SECRET_").or_else(|| line.split_once("[KNOWN_SECRET_").map(|it| it.1));
        assert!(rest.is_some() && line.len() < 24, "{form}: {line}");
    }
    assert_eq!(on["guard"]["findings"]["KNOWN_SECRET"], forms.len(), "{on}");
}

/// `guard check` over a text, with a variable set.
fn check(policy: &str, variable: Option<(&str, &str)>, text: &str) -> (i32, String, String) {
    use std::io::Write as _;
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("trial.toml");
    std::fs::write(&file, policy).unwrap();
    let mut command = command(data.path());
    command.args(["guard", "check", "-", "--policy", file.to_str().unwrap()]).envs(variable);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_policy_that_names_variables_is_tried_with_their_values() {
    let policy = "[known]\nenv = [\"APP_TOKEN\"]\n";
    let text = format!("first\nit is {TOKEN}\n");
    let (code, table, _) = check(policy, Some(("APP_TOKEN", TOKEN)), &text);
    assert_eq!(code, 1, "{table}");
    assert!(table.contains("KNOWN_SECRET") && table.contains("known-secret:"), "{table}");
    assert!(!table.contains("horse"), "{table}");
    // The policy's fingerprint does not depend on the value.
    let head = |table: &str| table.lines().next().unwrap().to_owned();
    let (code, other, _) = check(policy, Some(("APP_TOKEN", "another value")), &text);
    assert_eq!((code, head(&other)), (0, head(&table)));
    assert_eq!(check(policy, None, &text).0, 0, "a variable that is not set has nothing to leak");
    let (code, out, said) = check(policy, Some(("APP_TOKEN", "short!")), &text);
    assert_eq!((code, out.as_str()), (2, ""), "{said}");
    assert!(said.contains("APP_TOKEN") && said.contains("8 bytes") && !said.contains("short!"), "{said}");
    // Each line is looked for by itself, and these are too short.
    let (code, out, said) = check(policy, Some(("APP_TOKEN", "abc1234\ndef5678")), &text);
    assert_eq!((code, out.as_str()), (2, ""), "{said}");
    assert!(said.contains("no line of at least 8 bytes") && !said.contains("def5678"), "{said}");
    assert_eq!(check(policy, Some(("APP_TOKEN", &format!("abc1234\n{TOKEN}"))), &text).0, 1);
    // It cannot be set to be shown either.
    let loose = format!("{policy}[kinds]\nKNOWN_SECRET = \"mask\"\n");
    let (code, _, said) = check(&loose, Some(("APP_TOKEN", TOKEN)), &text);
    assert!(code == 2 && said.contains("line 4") && said.contains("redact, hash or block"), "{said}");
    let (code, _, said) = check("[known]\nvalues = [\"x\"]\n", None, &text);
    assert!(code == 2 && said.contains("line 2, column 1"), "{said}");
}

#[test]
fn an_unset_variable_causes_one_warning() {
    let data = tempfile::tempdir().unwrap();
    let mut command = with_policy(data.path(), "[known]\nenv = [\"APP_TOKEN\"]\n");
    // The server is unreachable; the run fails.
    command.env("E2B_API_KEY", API_KEY).env("E2B_API_URL", "http://127.0.0.1:9");
    let output = command.args(["run", "1"]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.matches("names a variable that is not set").count(), 1, "{said}");
}

/// A provider's message goes into the error; it may quote the key with which it was called, even reversed.
#[test]
fn the_key_of_the_provider_is_in_no_error() {
    let backwards: String = API_KEY.chars().rev().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let fault = Fault::error(400, &format!("no sandbox for <{backwards}>"));
    let provider = runtime.block_on(FaultServer::always(fault));
    let url = format!("http://{}", provider.addr);
    let data = tempfile::tempdir().unwrap();
    let mut command = command(data.path());
    command.env("E2B_API_KEY", API_KEY).env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url);
    let output = command.args(["run", "1"]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no sandbox for <[KNOWN_SECRET]>"), "{said}");
    assert!(!said.contains(&backwards), "{said}");
}
