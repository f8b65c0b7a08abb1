//! Sealed tokens from the output that contains them to the callers who may open them, and everyone else.

use std::path::Path;
use std::process::Stdio;

use pathbox::guard::{Action, Guard, Kind, Numbering, Policy, Sealer};
use serde_json::{Value, json};

use crate::support::http::{HttpServer, Reply};
use crate::support::server::{Server, command};

const VALUE: &str = "alice.smith@example.com";
const MADE: &str = "a = 'alice.smith' + chr(64) + 'example.com'\n";

/// A data directory with a policy that seals addresses, and a command that uses it.
fn sealing(data: &Path) -> std::process::Command {
    let policy = data.join("policy.toml");
    std::fs::write(&policy, "version = \"sealed-1\"\n[kinds]\nEMAIL = \"tokenize\"\n").unwrap();
    let mut command = command(data);
    command.env("PATHBOX_GUARD_POLICY", policy);
    command
}

fn key(data: &Path, tenant: &str, scopes: &str) -> String {
    let add = ["keys", "add", "--json", "--name", "test", "--tenant", tenant, "--scopes", scopes];
    let output = command(data).args(add).output().unwrap();
    let made: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    format!("Bearer {}", made["key"].as_str().unwrap())
}

fn print(server: &HttpServer, key: &str, conversation: &str, code: &str) -> String {
    let meta = json!({"dev.pathbox/conversationId": conversation});
    let arguments = json!({"code": format!("{MADE}{code}"), "language": "python"});
    let mut answer = server.stateless(&[("Authorization", key)], "run_code", arguments, meta).answer();
    assert!(!answer.to_string().contains(VALUE), "{answer}");
    let stdout = answer["result"]["structuredContent"]["stdout"].take();
    stdout.as_str().unwrap_or_else(|| panic!("{answer}")).trim_end().to_owned()
}

fn reveal(server: &HttpServer, key: Option<&str>, conversation: &str, token: &str) -> Reply {
    let mut headers = vec![("Content-Type", "application/json")];
    headers.extend(key.map(|key| ("Authorization", key)));
    let body = json!({"token": token, "conversation": conversation}).to_string();
    server.send("POST", "/v1/reveal", &headers, body.as_bytes())
}

#[test]
fn a_token_is_opened_only_for_a_caller_with_the_scope_and_each_request_is_recorded() {
    let data = tempfile::tempdir().unwrap();
    let runs = key(data.path(), "acme", "run,read,paths,admin");
    let opens = key(data.path(), "acme", "run,reveal");
    let stranger = key(data.path(), "other", "run,reveal");
    let server = HttpServer::start_with(&mut sealing(data.path()));

    let twice = print(&server, &runs, "c", "print(a); print(a)");
    let (token, again) = twice.split_once('\n').unwrap();
    assert!(token.starts_with("[EMAIL~") && token == again, "{twice}");
    assert_eq!(print(&server, &opens, "c", "print(a)"), token, "the same in the next run");
    let elsewhere = print(&server, &runs, "d", "print(a)");
    assert_ne!(elsewhere, token, "each context has its own");

    let mut opened = reveal(&server, Some(&opens), "c", token);
    assert_eq!((opened.status, opened.header("cache-control")), (200, Some("no-store")));
    assert_eq!(opened.answer(), json!({"kind": "EMAIL", "value": VALUE}));
    let last = if token.ends_with("a]") { "b]" } else { "a]" };
    let altered = format!("{}{last}", &token[..token.len() - 2]);
    for (who, conversation, asked, status) in [
        (Some(&runs), "c", token, 403),     // without the scope
        (None, "c", token, 403),            // this machine's user has it no more than others
        (Some(&stranger), "c", token, 404), // with the scope, for another tenant
        (Some(&opens), "d", token, 404),    // for another context
        (Some(&opens), "c", &elsewhere, 404),
        (Some(&opens), "c", &altered, 404),
        (Some(&opens), "c", "[EMAIL_1]", 404),
        (Some(&opens), "c d", token, 400),
    ] {
        let mut refused = reveal(&server, who.map(String::as_str), conversation, asked);
        assert_eq!(refused.status, status, "{who:?} {conversation} {asked}");
        assert!(!refused.text().contains("alice"));
    }

    // After a restart it is the same token, and can still be opened.
    drop(server);
    let server = HttpServer::start_with(&mut sealing(data.path()));
    assert_eq!(print(&server, &runs, "c", "print(a)"), token);
    assert_eq!(reveal(&server, Some(&opens), "c", token).answer()["value"], VALUE);
    drop(server);

    let listed = command(data.path()).args(["guard", "reveals", "--json"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(!listed.contains("alice") && !listed.contains('~'), "{listed}");
    let rows: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let told = |row: &Value| (row["tenant"].clone(), row["conversation"].clone(), row["kind"].clone());
    let rows: Vec<_> = rows
        .iter()
        .rev()
        .map(|row| {
            assert!(row["principal"].as_str().unwrap().starts_with("key:") && row["at"].is_string(), "{row}");
            assert_eq!(row["opened"], !row["kind"].is_null());
            told(row)
        })
        .collect();
    let row = |tenant: &str, conversation: &str, kind: Value| (json!(tenant), json!(conversation), kind);
    let refused = row("acme", "c", Value::Null);
    let opened = row("acme", "c", json!("EMAIL"));
    assert_eq!(
        rows,
        [
            opened.clone(),
            row("other", "c", Value::Null),
            row("acme", "d", Value::Null),
            refused.clone(),
            refused.clone(),
            refused,
            opened,
        ]
    );
}

#[test]
fn forged_and_foreign_tokens_do_not_open() {
    let data = tempfile::tempdir().unwrap();
    let (ours, theirs) = (key(data.path(), "acme", "run,reveal"), key(data.path(), "other", "run,reveal"));
    let server = HttpServer::start_with(&mut sealing(data.path()));
    let own = print(&server, &ours, "c", "print(a)");
    let foreign = print(&server, &theirs, "c", "print(a)");
    let beside = print(&server, &ours, "d", "print(a)");
    let made_up = format!("[EMAIL~{}]", "ab".repeat(60));
    for pasted in [&foreign, &beside, &made_up] {
        let out = print(&server, &ours, "c", &format!("print({pasted:?})"));
        assert_eq!(out, format!("{}\u{200b}]", &pasted[..pasted.len() - 1]), "it is marked as none");
    }
    // Its own token is unchanged: it represents the same value.
    assert_eq!(print(&server, &ours, "c", &format!("print({own:?})")), own);
    // Text after the prefix of a token is scanned all the same.
    for hidden in ["[EMAIL~' + a + ']", "[EMAIL~"] {
        let out = print(&server, &ours, "c", &format!("print('{hidden}', a)"));
        assert!(out.contains(&own), "{out}");
    }
}

#[test]
fn a_recorded_result_keeps_its_tokens() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(sealing(data.path()).arg("serve"));
    let code = format!("{MADE}print(a)\n{{'who': a}}");
    let first = server.python(&code)["structuredContent"].take();
    let ask = json!({"name": "get_execution", "arguments": {"execution_id": first["executionId"]}});
    let again = server.request("tools/call", ask)["result"]["structuredContent"].take();
    assert!(first["stdout"].as_str().unwrap().starts_with("[EMAIL~"), "{first}");
    assert_eq!((&again["stdout"], &again["output"]), (&first["stdout"], &first["output"]));
    assert_eq!(first["guard"], json!({"mode": "enforce", "policy": "sealed-1", "findings": {"EMAIL": 3}}));
}

#[test]
fn a_token_is_opened_on_the_command_line_with_the_key() {
    let data = tempfile::tempdir().unwrap();
    let output = sealing(data.path())
        .args(["run", "--conversation", "c", &format!("{MADE}print(a)")])
        .output()
        .unwrap();
    let token = String::from_utf8(output.stdout).unwrap().trim_end().to_owned();
    let open = |data: &Path, args: &[&str]| {
        let output =
            command(data).args(["guard", "reveal"]).args(args).stdin(Stdio::null()).output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(open(data.path(), &["--conversation", "c", &token]), (0, format!("{VALUE}\n"), String::new()));
    let (code, out, err) = open(data.path(), &["--conversation", "other", &token]);
    assert!(code == 2 && out.is_empty() && err.contains("not a token of this context"), "{code} {err}");
    let (code, _, err) = open(data.path(), &[&token]);
    assert!(code == 2 && err.contains("--conversation"), "{err}");
    // Another installation has another key.
    let other = tempfile::tempdir().unwrap();
    assert_eq!(open(other.path(), &["--conversation", "c", &token]).0, 2);
    let table = command(data.path()).args(["guard", "reveals"]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 3 && lines[1].ends_with("refused") && lines[2].ends_with("EMAIL"), "{table}");
}

#[test]
fn a_server_whose_policy_asks_for_tokens_that_other_replicas_could_not_open_does_not_start() {
    let data = tempfile::tempdir().unwrap();
    for subcommand in [&["serve"][..], &["run", "1"]] {
        let output = sealing(data.path())
            .env("DATABASE_URL", "postgres://u:p@127.0.0.1:9/x")
            .args(subcommand)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("sealed tokens (EMAIL)") && said.contains("PATHBOX_SECRET_KEYS"), "{said}");
    }
}

#[test]
fn guarding_is_idempotent_with_tokens_and_however_the_text_is_cut() {
    let mut policy = Policy::default();
    for kind in [Kind::Email, Kind::CreditCard, Kind::Iban, Kind::Phone] {
        policy.actions.insert(kind, Action::Tokenize);
    }
    let guard = Guard::new(policy).unwrap();
    let numbering = || Numbering::new([7; 32], []).sealing(Some(Sealer::new(&[8; 32], "acme/c/main")));
    let long = "pay DE89 3704 0044 0532 0130 00, ".repeat(700);
    for text in [
        "ask alice@example.com or bob@example.com, card 4111 1111 1111 1111",
        "{\"card\": 4111111111111111, \"mail\": \"alice@example.com\"}",
        "password: alice@example.com\nTel +353 1 234 5678\n",
        "alice@example.com".repeat(3).as_str(),
        long.as_str(),
    ] {
        let mut once = numbering();
        let (out, report) = guard.text(text, &mut once);
        assert!(report.total() > 0 && out.contains('~'), "{out}");
        let (twice, report) = guard.text(&out, &mut once);
        assert_eq!((twice.as_str(), report.total(), report.forged), (out.as_str(), 0, 0), "{text}");
        for step in [1, 7, 333] {
            let (mut stream, mut cut) = (guard.stream(), numbering());
            let mut pieces = String::new();
            for piece in text.as_bytes().chunks(step) {
                pieces.push_str(&stream.push(std::str::from_utf8(piece).unwrap(), &mut cut));
            }
            pieces.push_str(&stream.finish(&mut cut).0);
            assert_eq!(pieces, *out, "cut by {step}");
        }
        if text.starts_with('{') {
            assert!(serde_json::from_str::<Value>(&out).is_ok(), "{out}");
        }
    }
}
