//! Files in and out of a sandbox through the tool `files`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::server::{Server, command};

fn call(server: &mut Server, name: &str, arguments: Value, meta: Value) -> Value {
    let mut answer =
        server.request("tools/call", json!({"name": name, "arguments": arguments, "_meta": meta}));
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].take()
}

fn files(server: &mut Server, arguments: Value) -> Value {
    let mut result = call(server, "files", arguments, json!({}));
    assert!(result.get("isError").is_none(), "{result}");
    result["structuredContent"].take()
}

fn refused(server: &mut Server, arguments: Value) -> (String, String) {
    let result = call(server, "files", arguments, json!({}));
    assert_eq!(result["isError"], true, "{result}");
    let text = result["content"][0]["text"].as_str().unwrap().to_owned();
    (result["_meta"]["dev.pathbox/error"]["code"].as_str().unwrap().to_owned(), text)
}

#[test]
fn a_file_goes_in_is_used_by_code_and_comes_out_as_a_link() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let put = files(&mut server, json!({"action": "put", "path": "in/data.csv", "text": "a,b\n1,2\n3,4\n"}));
    assert_eq!((&put["state"], &put["replaced"]), (&json!("fresh"), &Value::Null), "{put}");
    let code = "import csv; rows = list(csv.reader(open('in/data.csv'))); open('sum.txt', 'w').write(str(sum(int(r[0]) for r in rows[1:])))\nrows";
    assert_eq!(server.python(code)["structuredContent"]["state"], "kept");
    let listed = files(&mut server, json!({"action": "list"}));
    let names: Vec<&str> =
        listed["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"in") && names.contains(&"sum.txt"), "{listed}");
    let result = call(&mut server, "files", json!({"action": "get", "path": "sum.txt"}), json!({}));
    let link = result["content"].as_array().unwrap().iter().find(|block| block["type"] == "resource_link");
    let uri = link.unwrap_or_else(|| panic!("{result}"))["uri"].clone();
    assert_eq!(result["structuredContent"]["text"], "4");
    let read = server.request("resources/read", json!({"uri": uri}));
    assert_eq!(read["result"]["contents"][0]["text"], "4", "{read}");
    // What was linked can go in again, also into another path, by reference.
    let arguments = json!({"action": "put", "path": "again.txt", "from": uri});
    let other = call(&mut server, "files", arguments, json!({"dev.pathbox/pathId": "other"}));
    assert_eq!(other["structuredContent"]["state"], "fresh", "{other}");
    let bytes: Vec<u8> = (0..=255).collect();
    files(&mut server, json!({"action": "put", "path": "b.bin", "base64": STANDARD.encode(&bytes)}));
    let result = server.python("open('b.bin', 'rb').read() == bytes(range(256))");
    assert_eq!(result["structuredContent"]["output"], "True", "{result}");
}

#[test]
fn versions_keep_two_files_of_one_name_apart_and_what_is_deleted_stays_deleted() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let put = |server: &mut Server, text: &str, more: Value| {
        let mut arguments = json!({"action": "put", "path": "n.txt", "text": text});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        call(server, "files", arguments, json!({}))
    };
    let one = put(&mut server, "one", json!({"if_version": "none"}))["structuredContent"].take();
    let first = files(&mut server, json!({"action": "get", "path": "n.txt"}));
    let two = put(&mut server, "two", json!({"if_version": one["version"]}))["structuredContent"].take();
    assert_eq!(two["replaced"], one["version"], "{two}");
    let second = files(&mut server, json!({"action": "get", "path": "n.txt"}));
    assert_ne!(first["artifact"]["uri"], second["artifact"]["uri"]);
    assert_eq!(first["artifact"]["name"], "n.txt", "a file keeps its name");
    for (got, text) in [(&first, "one"), (&second, "two")] {
        let read = server.request("resources/read", json!({"uri": got["artifact"]["uri"]}));
        assert_eq!(read["result"]["contents"][0]["text"], text, "a version stays what it was: {read}");
    }
    // Nothing is overwritten unseen.
    for stale in ["none", one["version"].as_str().unwrap()] {
        let result = put(&mut server, "three", json!({"if_version": stale}));
        assert_eq!(result["isError"], true, "{result}");
        assert!(result.to_string().contains(two["version"].as_str().unwrap()), "{result}");
    }
    assert_eq!(put(&mut server, "one", json!({}))["structuredContent"]["version"], one["version"]);

    server.python("import os; os.remove('n.txt')");
    assert_eq!(refused(&mut server, json!({"action": "get", "path": "n.txt"})).0, "not_found");
    server.python("1");
    assert_eq!(refused(&mut server, json!({"action": "get", "path": "n.txt"})).0, "not_found");
}

#[test]
fn a_file_that_goes_out_has_been_through_the_guard() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let text = "name,mail\nMary,mary.murphy@example.ie\ncard,4111 1111 1111 1111\n";
    files(&mut server, json!({"action": "put", "path": "mary.murphy@example.ie.csv", "text": text}));
    let got =
        call(&mut server, "files", json!({"action": "get", "path": "mary.murphy@example.ie.csv"}), json!({}));
    let uri = got["structuredContent"]["artifact"]["uri"].clone();
    let read = server.request("resources/read", json!({"uri": uri}));
    let listed = call(&mut server, "files", json!({"action": "list"}), json!({}));
    let alone = call(&mut server, "get_artifact", json!({"uri": uri}), json!({}));
    let stdout = server.python("print(open('mary.murphy@example.ie.csv').read())");
    for (what, said) in [
        ("artifact", &got["structuredContent"]["artifact"]),
        ("read", &read),
        ("list", &listed),
        ("alone", &alone),
    ] {
        let said = said.to_string();
        assert!(!said.contains("mary.murphy") && !said.contains("4111"), "{what}: {said}");
    }
    // The same value is the same placeholder as in output.
    assert_eq!(got["structuredContent"]["guard"]["findings"]["EMAIL"], 1, "{got}");
    let text = got["structuredContent"]["text"].as_str().unwrap();
    assert_eq!(stdout["structuredContent"]["stdout"].as_str().unwrap().trim(), text.trim(), "{text}");
    assert!(text.contains("[EMAIL_1]"), "{text}");

    // Text is looked at as text, whatever it claims to be.
    let text = "%PDF-1.7\nmary.murphy@example.ie\n";
    files(&mut server, json!({"action": "put", "path": "claim.pdf", "text": text}));
    let got = call(&mut server, "files", json!({"action": "get", "path": "claim.pdf"}), json!({}));
    let read = server
        .request("resources/read", json!({"uri": got["structuredContent"]["artifact"]["uri"]}))
        .to_string();
    assert!(read.contains("[EMAIL_1]") && !read.contains("murphy"), "{read}");

    // An archive is looked into, and nothing in it can be replaced; a picture may carry text.
    server.python("import zipfile; zipfile.ZipFile('a.zip', 'w').writestr('x', 'mary.murphy@example.ie')");
    let (code, why) = refused(&mut server, json!({"action": "get", "path": "a.zip"}));
    assert!(code == "blocked" && why.contains("holds personal data"), "{why}");
    let code = "import struct, zlib\n\
        c = lambda k, d: struct.pack('>I', len(d)) + k + d + struct.pack('>I', zlib.crc32(k + d))\n\
        open('p.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + c(b'IHDR', struct.pack('>IIBBBBB', 1, 1, 8, 2, 0, 0, 0)) + \
        c(b'tEXt', b'Author\\0mary.murphy@example.ie') + c(b'IDAT', zlib.compress(b'\\0abc')) + c(b'IEND', b''))";
    server.python(code);
    let got = files(&mut server, json!({"action": "get", "path": "p.png"}));
    assert_eq!(got["artifact"]["mimeType"], "image/png", "{got}");
    let read = server.request("resources/read", json!({"uri": got["artifact"]["uri"]}));
    let bytes = STANDARD.decode(read["result"]["contents"][0]["blob"].as_str().unwrap()).unwrap();
    assert!(!String::from_utf8_lossy(&bytes).contains("murphy"), "text in a picture stays in");
}

#[test]
fn invalid_requests_are_named_and_nothing_outside_the_sandbox_is_reached() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("planted"), "planted on the host").unwrap();
    let mut server = Server::start(data.path());
    for (arguments, word) in [
        (json!({"action": "get"}), "`path`"),
        (json!({"action": "get", "path": "a\u{0}b"}), "`path`"),
        (json!({"action": "put", "path": "x"}), "exactly one"),
        (json!({"action": "put", "path": "x", "text": "a", "base64": "YQ=="}), "exactly one"),
        (json!({"action": "put", "path": "x", "base64": "?"}), "`base64`"),
        (json!({"action": "put", "path": "x", "text": "x".repeat(256 * 1024 + 1)}), "262144"),
        (json!({"action": "steal", "path": "x"}), "`action`"),
    ] {
        let (code, text) = refused(&mut server, arguments.clone());
        assert_eq!(code, "invalid_argument", "{arguments}");
        assert!(text.contains(word), "{text}");
    }
    for from in ["file:///etc/passwd", "http://127.0.0.1/", "pathbox://executions/x/../../../etc/passwd"] {
        assert_eq!(refused(&mut server, json!({"action": "put", "path": "x", "from": from})).0, "not_found");
    }
    server.python("open('big', 'wb').write(b'\\0x' * (17 << 20)); import os; os.mkdir('dir')");
    assert!(refused(&mut server, json!({"action": "get", "path": "big"})).1.contains("33554432"));
    assert_eq!(refused(&mut server, json!({"action": "get", "path": "dir"})).0, "invalid_argument");
    assert_ne!(
        call(&mut server, "files", json!({"action": "list", "path": "nowhere"}), json!({})).get("isError"),
        None
    );
    let planted = data.path().join("planted");
    let link = format!("import os; os.symlink({:?}, 'link')", planted.display().to_string());
    server.python(&link);
    let up = format!("{}{}", "../".repeat(12), planted.display());
    for path in [planted.to_str().unwrap(), &up, "link"] {
        let result = call(&mut server, "files", json!({"action": "get", "path": path}), json!({}));
        assert!(!result.to_string().contains("planted on the host"), "{path}: {result}");
        call(&mut server, "files", json!({"action": "put", "path": path, "text": "overwritten"}), json!({}));
    }
    assert_eq!(std::fs::read_to_string(&planted).unwrap(), "planted on the host");

    let mut off = Server::start_with(command(data.path()).env("PATHBOX_CODE_EXECUTION", "false"));
    assert_eq!(off.request("tools/list", json!({}))["result"]["tools"], json!([]));
    let answer = off.request("tools/call", json!({"name": "files", "arguments": {"action": "list"}}));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
}

#[test]
fn a_forbidden_path_is_a_callers_error_and_is_not_logged() {
    use crate::support::http::HttpServer;
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let ask = |arguments: Value| {
        let meta = json!({"dev.pathbox/conversationId": "c"});
        server.stateless(&[], "files", arguments, meta).answer()["result"].take()
    };
    for (arguments, code) in [
        (json!({"action": "put", "path": "/etc/mary-murphy", "text": "x"}), "invalid_argument"),
        (json!({"action": "put", "path": "/usr/mary-murphy", "text": "x"}), "invalid_argument"),
        (json!({"action": "get", "path": "/etc/mary-murphy"}), "not_found"),
        (json!({"action": "list", "path": "/root/mary-murphy"}), "not_found"),
    ] {
        let result = ask(arguments.clone());
        assert_eq!(result["isError"], true, "{arguments}: {result}");
        assert_eq!(result["_meta"]["dev.pathbox/error"]["code"], code, "{arguments}: {result}");
    }
    // A provider that fails in its own words is reported by the kind of its failure.
    assert!(!server.log().contains("mary-murphy"), "{}", server.log());
}

#[test]
fn a_file_of_any_usual_kind_comes_out_with_its_name_and_as_it_was() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let code = r#"
import sqlite3, struct, zipfile
with zipfile.ZipFile('book.xlsx', 'w', zipfile.ZIP_DEFLATED) as book:
    book.writestr('[Content_Types].xml', '<Types/>')
    book.writestr('xl/worksheets/sheet1.xml', '<worksheet><c><v>42</v></c></worksheet>')
base = sqlite3.connect('base.sqlite'); base.execute('create table t (a text)'); base.execute("insert into t values ('plain')")
base.commit(); base.close()
open('numbers.npy', 'wb').write(b"\x93NUMPY\x01\0v\0" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\n" + struct.pack('<2d', 1.5, -2))
open('one.gif', 'wb').write(bytes.fromhex('47494638396101000100800000000000ffffff21f90401000000002c0000000001000100000201440 03b'.replace(' ', '')))
open('latin.csv', 'wb').write('Zoë;2\n'.encode('latin-1'))
open('wide.csv', 'wb').write('Zoë;2\n'.encode('utf-16'))
open('报告 é.txt', 'w').write('hi')
open('table.parquet', 'wb').write(b'PAR1' + bytes(range(256)))
open('line\nfeed', 'w').write('x')
"#;
    let ran = server.python(code);
    assert_eq!(ran["structuredContent"]["success"], true, "{ran}");
    for (name, mime_type) in [
        ("book.xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
        ("base.sqlite", "application/vnd.sqlite3"),
        ("numbers.npy", "application/octet-stream"),
        ("one.gif", "image/gif"),
        ("latin.csv", "text/csv"),
        ("wide.csv", "text/csv"),
        ("报告 é.txt", "text/plain"),
    ] {
        let got = files(&mut server, json!({"action": "get", "path": name}));
        assert_eq!(
            (&got["artifact"]["name"], &got["artifact"]["mimeType"]),
            (&json!(name), &json!(mime_type))
        );
        // Back in by reference, it is what it was.
        files(&mut server, json!({"action": "put", "path": "back", "from": got["artifact"]["uri"]}));
        let same = server.python(&format!("open('back', 'rb').read() == open({name:?}, 'rb').read()"));
        assert_eq!(same["structuredContent"]["output"], "True", "{name}: {same}");
    }
    let (code, why) = refused(&mut server, json!({"action": "get", "path": "table.parquet"}));
    assert!(code == "blocked" && why.contains("opaque_files"), "{why}");
    let listed = call(&mut server, "files", json!({"action": "list"}), json!({}));
    let text = listed["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("\nline\\nfeed  1") && text.contains("\n报告 é.txt  2"), "{text}");

    // What is found in another encoding is replaced in that encoding.
    server.python("open('mail.csv', 'wb').write('Zoë;zoe@example.com\\n'.encode('utf-16'))");
    let got = files(&mut server, json!({"action": "get", "path": "mail.csv"}));
    files(&mut server, json!({"action": "put", "path": "back", "from": got["artifact"]["uri"]}));
    let read = server.python("open('back', encoding='utf-16').read()");
    assert!(read["structuredContent"]["output"].as_str().unwrap().starts_with("Zoë;[EMAIL_1]"), "{read}");

    // An operator may let out what cannot be looked into.
    let policy = data.path().join("policy.toml");
    std::fs::write(&policy, "opaque_files = \"let_out\"\n").unwrap();
    let other = tempfile::tempdir().unwrap();
    let mut server =
        Server::start_with(command(other.path()).arg("serve").env("PATHBOX_GUARD_POLICY", &policy));
    server.python("open('table.parquet', 'wb').write(b'PAR1' + bytes(range(256)))");
    let got = files(&mut server, json!({"action": "get", "path": "table.parquet"}));
    assert_eq!(got["artifact"]["bytes"], 260, "{got}");
}
