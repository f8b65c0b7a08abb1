//! A policy end to end: what it lets through, what it only counts, who may loosen it, and that a
//! placeholder is the same across restarts and replicas.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::server::{Server, command};

fn with_policy(data: &Path, policy: &str) -> std::process::Command {
    let file = data.join("policy.toml");
    std::fs::write(&file, policy).unwrap();
    let mut command = command(data);
    command.env("PATHBOX_GUARD_POLICY", file);
    command
}

fn serve(data: &Path, policy: &str) -> Server {
    Server::start_with(with_policy(data, policy).arg("serve"))
}

fn call(server: &mut Server, name: &str, arguments: Value) -> Value {
    server.request("tools/call", json!({ "name": name, "arguments": arguments }))["result"].take()
}

/// Prints a text, whose `@` the program inserts itself; returns the structured result.
fn print(server: &mut Server, text: &str) -> Value {
    let code = format!("print({:?}.replace('(at)', chr(64)))", text);
    server.python(&code)["structuredContent"].take()
}

#[test]
fn allow_listed_values_go_out_and_similar_ones_do_not() {
    let data = tempfile::tempdir().unwrap();
    let mut server = serve(
        data.path(),
        "version = \"2026-11\"\n[allow]\nexact = [\"info@revenue.ie\"]\npatterns = [\"test-[0-9]+@example[.]org\"]\n\
         domains = [\"example.com\"]\nnetworks = [\"5.9.11.0/24\"]\n",
    );
    for (said, shown) in [
        ("info(at)revenue.ie", "info@revenue.ie"),
        ("xinfo(at)revenue.ie", "[EMAIL_1]"),
        ("test-12(at)example.org", "test-12@example.org"),
        ("test-12(at)example.org.evil.net", "[EMAIL_2]"),
        ("bob(at)mail.example.com", "bob@mail.example.com"),
        ("bob(at)notexample.com", "[EMAIL_3]"),
        ("host 5.9.11.7", "host 5.9.11.7"),
        ("host 185.12.44.7", "host [IP_1]"),
    ] {
        let result = print(&mut server, said);
        assert_eq!(result["stdout"], format!("{shown}\n"), "{said}");
        assert_eq!(
            (&result["guard"]["mode"], &result["guard"]["policy"]),
            (&json!("enforce"), &json!("2026-11"))
        );
    }
}

#[test]
fn report_only_counts_what_it_would_have_done_and_changes_nothing() {
    let text = "ask bob(at)example.org, card 4111 1111 1111 1111, [EMAIL_7]";
    let (on, off) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut enforcing = serve(on.path(), "");
    let mut reporting = serve(off.path(), "mode = \"report_only\"");
    let (enforced, reported) = (print(&mut enforcing, text), print(&mut reporting, text));
    assert_eq!(reported["stdout"], "ask bob@example.org, card 4111 1111 1111 1111, [EMAIL_7]\n");
    assert_eq!(enforced["stdout"], "ask [EMAIL_1], card [CREDIT_CARD_1], [EMAIL_7\u{200b}]\n");
    assert_eq!(reported["guard"]["mode"], "report_only");
    assert_eq!(reported["guard"]["findings"], enforced["guard"]["findings"]);
}

#[test]
fn each_kind_gets_the_policys_action() {
    let data = tempfile::tempdir().unwrap();
    let mut server = serve(
        data.path(),
        "mask_keep = 4\n[kinds]\nEMAIL = \"hash\"\nCREDIT_CARD = \"mask\"\nIBAN = \"redact\"\nIP = \"allow\"\nMAC = \"redact\"\nPRIVATE_KEY = \"block\"\n",
    );
    let result = print(
        &mut server,
        "bob(at)example.org bob(at)example.org 4111 1111 1111 1111 DE89 3704 0044 0532 0130 00 185.12.44.7 00:1B:44:11:3A:B7",
    );
    let stdout = result["stdout"].as_str().unwrap();
    let words: Vec<&str> = stdout.split_whitespace().collect();
    assert!(words[0].starts_with("[EMAIL:") && words[0] == words[1], "{stdout}");
    assert!(
        stdout.contains("**** **** **** 1111") && stdout.contains("[IBAN_1] 185.12.44.7 [MAC_1]"),
        "{stdout}"
    );
    // A blocking finding leaves nothing of the result, wherever in it the finding was.
    let key = "-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\\n-----END PRIVATE KEY-----";
    let code = format!("import sys; print('harmless'); print('{key}', file=sys.stderr)\n'shown'");
    let blocked = server.python(&code);
    let content = &blocked["structuredContent"];
    assert_eq!(
        (&content["stdout"], &content["stderr"], &content["output"]),
        (&json!(""), &json!(""), &json!(""))
    );
    assert_eq!(content["guard"]["findings"]["PRIVATE_KEY"], 1, "{blocked}");
    let policy = content["guard"]["policy"].as_str().unwrap();
    assert!(policy.starts_with("unnamed-") && policy.len() == 20, "{policy}");
    let said = content["notes"].to_string();
    assert!(said.contains("nothing of this result is shown") && said.contains("PRIVATE_KEY"), "{said}");
    assert!(!blocked.to_string().contains("harmless") && !blocked.to_string().contains("MIIE"), "{blocked}");
}

/// Inline, in a kept output, in a kept file; and the report on it.
#[test]
fn an_earlier_run_is_read_under_the_current_policy() {
    let data = tempfile::tempdir().unwrap();
    let mut server = serve(data.path(), "version = \"1\"\n[kinds]\nIP = \"allow\"\n");
    let short = print(&mut server, "bob(at)example.org from 185.12.44.9");
    assert_eq!(short["stdout"], "[EMAIL_1] from 185.12.44.9\n");
    let long = server.python("print('from 185.12.44.9, as was said\\n' * 4_000)")["structuredContent"].take();
    let uri = long["artifacts"][0]["uri"].as_str().unwrap().to_owned();
    print(&mut server, "held");
    server.python("open('f.txt', 'w').write('from 185.12.44.9')");
    let got = call(&mut server, "files", json!({ "action": "get", "path": "f.txt" }));
    let file = got["structuredContent"]["artifact"]["uri"].as_str().unwrap().to_owned();
    let read = |server: &mut Server| {
        let id = |run: &Value| run["executionId"].clone();
        let whole = call(server, "get_execution", json!({ "execution_id": id(&short) }));
        let page = json!({ "execution_id": id(&long), "stream": "stdout", "offset": 1_000, "limit": 90 });
        let page = call(server, "get_execution", page);
        let resource =
            |server: &mut Server, uri: &str| server.request("resources/read", json!({ "uri": uri }));
        let (output, file) = (resource(server, &uri), resource(server, &file));
        [whole, page, output, file]
    };
    for shown in read(&mut server) {
        assert!(shown.to_string().contains("from 185.12.44.9"), "{shown}");
    }
    drop(server);

    let mut server = serve(data.path(), "version = \"2\"\n");
    let shown = read(&mut server);
    for shown in &shown {
        assert!(!shown.to_string().contains("185.12") && shown.to_string().contains("from [IP]"), "{shown}");
    }
    let whole = &shown[0]["structuredContent"];
    assert_eq!(whole["guard"]["policy"], "2");
    assert_eq!(whole["guard"]["findings"], json!({ "EMAIL": 1, "IP": 1 }));
    drop(server);

    let mut server = serve(data.path(), "[kinds]\nIP = \"block\"\n");
    for shown in read(&mut server) {
        assert!(!shown.to_string().contains("from ") && !shown.to_string().contains("EMAIL_1"), "{shown}");
    }
}

/// Whose result shows which values, by the levels of one file.
#[test]
fn a_tenant_relaxes_only_what_the_base_allows() {
    let tenants = "[tenants.loose]\nmode = \"off\"\n[tenants.loose.kinds]\nPHONE = \"allow\"\n\
                   [tenants.strict]\n[tenants.strict.kinds]\nMAC = \"redact\"\n";
    let text = "bob(at)example.org 00:1B:44:11:3A:B7";
    for (base, tenant, shown, mode) in [
        ("", "loose", "[EMAIL_1] 00:1B:44:11:3A:B7\n", "enforce"),
        ("allow_off = true\n", "loose", "bob@example.org 00:1B:44:11:3A:B7\n", "off"),
        ("", "strict", "[EMAIL_1] [MAC_1]\n", "enforce"),
        ("mode = \"report_only\"\n", "strict", "bob@example.org 00:1B:44:11:3A:B7\n", "report_only"),
        ("", "unnamed", "[EMAIL_1] 00:1B:44:11:3A:B7\n", "enforce"),
    ] {
        let data = tempfile::tempdir().unwrap();
        let policy = format!("{base}{tenants}");
        let mut server =
            Server::start_with(with_policy(data.path(), &policy).args(["serve", "--tenant", tenant]));
        let result = print(&mut server, text);
        assert_eq!(
            (&result["stdout"], &result["guard"]["mode"]),
            (&json!(shown), &json!(mode)),
            "{base:?} {tenant}"
        );
    }
}

/// The requests of a call in its `_meta`, and the file's settings for its conversation.
#[test]
fn a_conversation_and_a_call_relax_only_what_the_level_above_allows_and_may_always_tighten() {
    let text = "bob(at)example.org 00:1B:44:11:3A:B7";
    let (plain, guarded) = ("bob@example.org 00:1B:44:11:3A:B7\n", "[EMAIL_1] 00:1B:44:11:3A:B7\n");
    let off = json!({"mode": "off"});
    let open = "allow_off = true\n[tenants.local]\nallow_off = true\n[conversations.\"local/c\"]\n";
    for (policy, call, shown, mode) in [
        // A call that a model wrote cannot switch anything off.
        (String::new(), off.clone(), guarded, "enforce"),
        (String::new(), json!({"mode": "off", "allow_off": true}), guarded, "enforce"),
        (String::new(), json!({"kinds": {"EMAIL": "allow"}}), guarded, "enforce"),
        (String::new(), json!({"allow": {"domains": ["example.org"]}}), guarded, "enforce"),
        ("allow_off = true\n".to_owned(), off.clone(), guarded, "enforce"),
        // A conversation loosens when base and tenant allow it, a call when its conversation does too.
        (format!("{open}mode = \"report_only\"\n"), json!({}), plain, "report_only"),
        (open.to_owned(), off.clone(), guarded, "enforce"),
        (format!("{open}allow_off = true\n"), off.clone(), plain, "off"),
        ("[conversations.\"local/c\"]\nmode = \"off\"\n".to_owned(), json!({}), guarded, "enforce"),
        (
            "[conversations.\"local/other\"]\nkinds = { MAC = \"redact\" }\n".to_owned(),
            json!({}),
            guarded,
            "enforce",
        ),
        // Tightening needs no permission.
        (
            "[conversations.\"local/c\"]\nkinds = { MAC = \"redact\" }\n".to_owned(),
            json!({}),
            "[EMAIL_1] [MAC_1]\n",
            "enforce",
        ),
        ("mode = \"report_only\"\n".to_owned(), json!({"mode": "enforce"}), guarded, "enforce"),
        (String::new(), json!({"kinds": {"MAC": "redact"}}), "[EMAIL_1] [MAC_1]\n", "enforce"),
    ] {
        let data = tempfile::tempdir().unwrap();
        let mut server =
            Server::start_with(with_policy(data.path(), &policy).args(["serve", "--conversation", "c"]));
        let arguments =
            json!({"code": format!("print({text:?}.replace('(at)', chr(64)))"), "language": "python"});
        let result = server.call(arguments, json!({"dev.pathbox/guard": call}))["structuredContent"].take();
        assert_eq!(
            (&result["stdout"], &result["guard"]["mode"]),
            (&json!(shown), &json!(mode)),
            "{policy:?} {call}"
        );
    }
    // An allow-list is read only where it may apply.
    let bad_pattern = json!({"allow": {"patterns": ["("]}});
    let data = tempfile::tempdir().unwrap();
    let mut server = serve(data.path(), "");
    let arguments = json!({"code": "print('a' + chr(64) + 'b.ie')", "language": "python"});
    let answer = server.call(arguments, json!({"dev.pathbox/guard": bad_pattern}));
    assert_eq!(answer["structuredContent"]["stdout"], "[EMAIL_1]\n", "{answer}");
    // Refused requests are reported.
    assert!(answer["structuredContent"]["notes"].to_string().contains("allow-list (call)"), "{answer}");
    let data = tempfile::tempdir().unwrap();
    let policy = format!("{open}allow_off = true\n");
    let mut server =
        Server::start_with(with_policy(data.path(), &policy).args(["serve", "--conversation", "c"]));
    for wrong in [json!({"mod": "off"}), json!("off"), bad_pattern] {
        let answer =
            server.call(json!({"code": "1", "language": "python"}), json!({"dev.pathbox/guard": wrong}));
        assert_eq!(answer["_meta"]["dev.pathbox/error"]["code"], "invalid_argument", "{answer}");
        assert!(answer["content"][0]["text"].as_str().unwrap().contains("dev.pathbox/guard"), "{answer}");
    }
}

#[test]
fn a_placeholder_is_the_same_across_restarts_and_replicas_on_one_store() {
    let data = tempfile::tempdir().unwrap();
    let start = || Server::start_with(command(data.path()).args(["serve", "--conversation", "c"]));
    let mut one = start();
    assert_eq!(print(&mut one, "a(at)example.org b(at)example.org")["stdout"], "[EMAIL_1] [EMAIL_2]\n");
    let mut two = start();
    assert_eq!(print(&mut two, "c(at)example.org b(at)example.org")["stdout"], "[EMAIL_3] [EMAIL_2]\n");
    assert_eq!(print(&mut one, "d(at)example.org c(at)example.org")["stdout"], "[EMAIL_4] [EMAIL_3]\n");
    drop((one, two));
    let mut three = start();
    let result = print(&mut three, "d(at)example.org a(at)example.org e(at)example.org");
    assert_eq!(result["stdout"], "[EMAIL_4] [EMAIL_1] [EMAIL_5]\n", "{result}");
}

#[test]
fn a_server_with_an_invalid_policy_does_not_start_and_names_the_place() {
    let data = tempfile::tempdir().unwrap();
    for (policy, said) in [
        ("mode = \"enforce\"\n[kinds]\nEMIAL = \"redact\"\n", "line 3, column 1"),
        ("[allow]\npatterns = [\"ok\", \"(\"]\n", "line 2, column 12"),
        ("[tenants.a.allow]\nnetworks = [\"10.0.0.0/33\"]\n", "line 2, column 12"),
    ] {
        let output = with_policy(data.path(), policy).arg("serve").stdin(Stdio::null()).output().unwrap();
        let said_in_fact = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said_in_fact}");
        assert!(said_in_fact.contains("policy.toml"), "{said_in_fact}");
        assert!(said_in_fact.contains(said), "{policy}: {said_in_fact}");
    }
}
