//! `pathbox guard`, as a compliance officer uses it: findings are shown without their text.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::support::server::command;

const TEXT: &str = "name,amount\nalice@example.com,12.50\npassword: hunter2-x9\n";

fn guard(args: &[&str], input: &str) -> (i32, String, String) {
    let data = tempfile::tempdir().unwrap();
    let mut child = command(data.path())
        .arg("guard")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn write(data: &Path, name: &str, text: &str) -> String {
    let path = data.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_policy_is_tried_on_cases() {
    let data = tempfile::tempdir().unwrap();
    let policy = write(
        data.path(),
        "policy.toml",
        "version = \"ours-1\"\n[kinds]\nEMAIL = \"mask\"\nIP = \"allow\"\n",
    );
    let cases = concat!(
        r#"{"name": "masked", "text": "to alice@example.com", "finds": ["EMAIL"], "becomes": "to ************e.com"}"#,
        "\n\n",
        r#"{"text": "from 8.8.8.8", "finds": []}"#,
        "\n",
    );
    let file = write(data.path(), "cases.jsonl", cases);
    let (code, said, error) = guard(&["test", &policy, &file], "");
    assert_eq!((code, said.as_str()), (0, "2 of 2 cases pass\n"), "{error}");

    let (code, said, _) = guard(&["test", &policy, "-"], &cases.replace("[]", r#"["IP"]"#));
    assert_eq!(code, 1);
    assert_eq!(said, "line 3: finds [], becomes \"from 8.8.8.8\"\n1 of 2 cases pass\n");
    let (code, said, _) = guard(&["test", &policy, "-", "--json"], &cases.replace("*e.com", "*z.com"));
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (code, &report["cases"], &report["failed"][0]["name"]),
        (1, &2.into(), &"masked".into()),
        "{said}"
    );

    for (bad, problem) in [
        (r#"{"text": "x"}"#, "line 1 says neither what it `finds` nor what it `becomes`"),
        (r#"{"text": "x", "find": []}"#, "line 1 is not a case"),
        (r#"{"text": "x", "finds": ["TELEPATHY"]}"#, "line 1 is not a case"),
    ] {
        let (code, _, error) = guard(&["test", &policy, "-"], bad);
        assert!(code != 0 && error.contains(problem), "{code} {error}");
    }
}

#[test]
fn a_check_says_where_what_and_why_but_not_the_text() {
    let data = tempfile::tempdir().unwrap();
    let file = write(data.path(), "out.csv", TEXT);
    let (code, table, _) = guard(&["check", &file], "");
    assert_eq!(code, 1, "{table}");
    for said in ["EMAIL", "PASSWORD", "email:", "policy builtin-1", "mode enforce"] {
        assert!(table.contains(said), "{said}: {table}");
    }
    let (code, json, _) = guard(&["check", "-", "--json"], TEXT);
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(code, 1);
    assert_eq!((&report["findings"][0]["line"], &report["findings"][0]["column"]), (&2.into(), &1.into()));
    assert_eq!(report["report"]["findings"]["EMAIL"]["count"], 1);
    let (code, text, _) = guard(&["check", "-", "--text"], TEXT);
    assert_eq!((code, text.as_str()), (1, "name,amount\n[EMAIL_1],12.50\npassword: [PASSWORD_1]\n"));
    for shown in [table, json, text] {
        assert!(!shown.contains("alice") && !shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn a_check_explains_what_was_found_and_what_was_let_go() {
    let text = "mail bob@example.com\nversion 1.2.3.4\n17 4111111111111111 2209\n";
    let (code, json, error) = guard(&["check", "-", "--json", "--explain"], text);
    assert_eq!(code, 1, "{error}");
    let report: Value = serde_json::from_str(&json).unwrap();
    let said: Vec<_> = report["candidates"].as_array().unwrap().iter().collect();
    let of =
        |rule: &str| said.iter().find(|one| one["rule"] == rule).unwrap_or_else(|| panic!("{rule}: {json}"));
    assert_eq!((&of("email")["outcome"], &of("email")["line"]), (&"found".into(), &1.into()));
    assert_eq!((&of("ipv4")["outcome"], &of("ipv4")["excuse"]), (&"excused".into(), &"version-word".into()));
    let card = of("card");
    assert_eq!(
        (&card["outcome"], &card["evidence"]),
        (&"too_little".into(), &serde_json::json!(["form", "check"]))
    );
    assert!(card["sum"].as_u64() < card["threshold"].as_u64(), "{card}");
    let (_, table, _) = guard(&["check", "-", "--explain"], text);
    for line in ["excuse version-word", "too little", "form + check = 3 of 4"] {
        assert!(table.contains(line), "{line}: {table}");
    }
    assert!(!table.contains("bob@") && !json.contains("4111"), "{table} {json}");
    let (code, listed, _) = guard(&["rules", "--excuses"], "");
    assert!(code == 0 && listed.lines().any(|line| line.starts_with("version-word ")), "{listed}");
}

#[test]
fn a_check_that_finds_nothing_succeeds_and_one_that_cannot_look_says_why() {
    assert_eq!(guard(&["check", "-"], "VAT 23 % of EUR 1,200.50\n").0, 0);
    let (code, out, err) = guard(&["check", "/no/such/file"], "");
    assert!(code > 1 && out.is_empty() && err.contains("/no/such/file"), "{code} {err}");
}

#[test]
fn a_policy_is_tested_before_it_is_used() {
    let data = tempfile::tempdir().unwrap();
    let policy = write(
        data.path(),
        "policy.toml",
        "version = \"trial-7\"\n[kinds]\nPASSWORD = \"block\"\n[allow]\nexact = [\"alice@example.com\"]\n",
    );
    let (code, json, _) = guard(&["check", "-", "--json", "--policy", &policy], TEXT);
    let report = serde_json::from_str::<Value>(&json).unwrap()["report"].clone();
    assert_eq!(code, 1);
    assert_eq!(
        (&report["policy"], &report["blocked"], &report["allowed"]["EMAIL"]),
        (&"trial-7".into(), &true.into(), &1.into())
    );
    let (_, rules, _) = guard(&["rules", "--policy", &policy], "");
    assert!(rules.lines().any(|line| line.starts_with("password ") && line.contains("block")), "{rules}");
    let (code, list, _) = guard(&["rules", "--json"], "");
    assert_eq!(code, 0);
    assert!(serde_json::from_str::<Vec<Value>>(&list).unwrap().len() > 150);
    let bad = write(data.path(), "bad.toml", "[kinds]\nEMIAL = \"redact\"\n");
    let (code, _, err) = guard(&["check", "-", "--policy", &bad], TEXT);
    assert!(code > 1 && err.contains("is not a policy"), "{code} {err}");
}

/// Output, return values and errors of code on the command line go through the guard like anything else.
#[test]
fn each_way_out_of_a_run_on_the_command_line_is_guarded() {
    let canary = "canary.bird@example.com";
    for (way, code) in [
        ("standard output", "print('{}')"),
        ("standard error", "import sys; print('{}', file=sys.stderr)"),
        ("result", "'{}'"),
        ("names in a result", "{'{}': 1}"),
        ("traceback", "raise ValueError('{}')"),
        ("exit message", "raise SystemExit('{}')"),
        ("name of an error", "raise type('{}', (Exception,), {})"),
    ] {
        let data = tempfile::tempdir().unwrap();
        let code = code.replace("'{}'", "('canary.bird' + chr(64) + 'example.com')");
        let output = command(data.path()).args(["run", &code]).stdin(Stdio::null()).output().unwrap();
        let shown =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(!shown.contains(canary), "{way}: {shown}");
        assert!(shown.contains("[EMAIL_"), "{way} did not show it at all: {shown}");
    }
}
