//! Each way out of the program, tried with a value that must not leave: through a process on standard input and output,
//! through HTTP, through the command line.
//!
//! Every row is run twice. With the guard switched off the value must come out, or the row proves nothing; with the
//! guard on it must not, while its placeholder shows that it was on its way. Rows that no policy can switch off say so.

use std::path::Path;
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::fault_server::{API_KEY, FaultServer, Reply as Fault};
use crate::support::http::HttpServer;
use crate::support::server::{Server, command};

/// The value that must not leave. Programs assemble it, so that their text does not contain it.
const CANARY: &str = "canary.bird@example.com";
/// The same, for the head of a Python program.
const MADE: &str = "c = 'canary.bird' + chr(64) + 'example.com'\n";

/// The required output of a way out when the guard is on.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shows {
    /// The placeholder. Off, the value itself.
    Placeholder,
    /// The placeholder in both cases: these are the program's own messages, which never contain values.
    Always,
    /// Nothing: the part that contained it is removed or withheld. Off, the value itself.
    Nothing,
    /// Nothing in either case: values cannot get there.
    Closed,
}

/// Whether the canary is in a text, or in base64 in it.
fn holds(text: &str) -> bool {
    let decoded = |run: &str| STANDARD.decode(run).is_ok_and(|bytes| holds(&String::from_utf8_lossy(&bytes)));
    let run = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '='));
    text.contains(CANARY) || text.split(run).filter(|run| run.len() >= 24).any(decoded)
}

fn judge(way: &str, shows: Shows, off: &str, on: &str) {
    assert!(!holds(on), "{way}: {on}");
    let placeholder = on.contains("[EMAIL") || on.contains("-EMAIL");
    match shows {
        Shows::Placeholder => {
            assert!(holds(off), "{way}: is no way out, so the row proves nothing: {off}");
            assert!(placeholder, "{way}: {on}");
        }
        Shows::Always => {
            assert!(!holds(off), "{way}: {off}");
            assert!(placeholder, "{way}: {on}");
        }
        Shows::Nothing => assert!(holds(off), "{way}: is no way out, so the row proves nothing: {off}"),
        Shows::Closed => assert!(!holds(off), "{way}: {off}"),
    }
}

fn tool(server: &mut Server, name: &str, arguments: Value) -> Value {
    server.request("tools/call", json!({"name": name, "arguments": arguments}))
}

fn python(server: &mut Server, code: &str) -> Value {
    tool(server, "run_code", json!({"code": format!("{MADE}{code}"), "language": "python"}))
}

/// The URI of the last artifact that a result links.
fn link(answer: &Value) -> Value {
    let blocks = answer["result"]["content"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let last = blocks.iter().rfind(|block| block["type"] == "resource_link");
    last.unwrap_or_else(|| panic!("{answer}"))["uri"].clone()
}

/// A PNG of one chunk of text, as a Python expression.
const PNG: &str = "(lambda z, k: b'\\x89PNG\\r\\n\\x1a\\n' + k(b'IHDR', (1).to_bytes(4, 'big') * 2 + bytes([8, 0, 0, 0, 0])) \
                   + k(b'tEXt', b'Author\\0' + c.encode()) + k(b'IDAT', z.compress(bytes(2))) + k(b'IEND', b''))\
                   (__import__('zlib'), lambda n, d: len(d).to_bytes(4, 'big') + n + d + __import__('zlib').crc32(n + d).to_bytes(4, 'big'))";
/// A JPEG with a comment.
const JPEG: &str = "(b'\\xff\\xd8\\xff\\xfe' + (2 + len(c)).to_bytes(2, 'big') + c.encode() + b'\\xff\\xda\\x00\\x02\\x00\\xff\\xd9')";
/// A PDF with the value in plain bytes.
const PDF: &str = "(b'%PDF-1.4\\n%\\xb5\\xb5\\n1 0 obj (' + c.encode() + b') endobj\\n%%EOF')";

type Push = fn(&mut Server) -> String;

/// Ways out of a process on standard input and output: everything that is sent out is returned as the text of the answer.
const STDIO: &[(&str, Shows, Push)] = &[
    ("standard output", Shows::Placeholder, |s| python(s, "print(c)").to_string()),
    ("standard error", Shows::Placeholder, |s| {
        python(s, "import sys; print(c, file=sys.stderr)").to_string()
    }),
    ("value of the last expression", Shows::Placeholder, |s| python(s, "c").to_string()),
    ("value in JSON", Shows::Placeholder, |s| python(s, "{'a': [c]}").to_string()),
    ("key in JSON", Shows::Placeholder, |s| python(s, "{c: 1}").to_string()),
    ("name of an error", Shows::Placeholder, |s| python(s, "raise type(c, (Exception,), {})").to_string()),
    ("message of an error", Shows::Placeholder, |s| python(s, "raise ValueError(c)").to_string()),
    ("note of an error", Shows::Placeholder, |s| {
        python(s, "e = ValueError('x'); e.add_note(c)\nraise e").to_string()
    }),
    ("exit message", Shows::Placeholder, |s| python(s, "raise SystemExit(c)").to_string()),
    ("code quoted in a traceback", Shows::Placeholder, |s| {
        let code = format!("1 / 0  # {CANARY}");
        tool(s, "run_code", json!({"code": code, "language": "python"})).to_string()
    }),
    ("output of a shell", Shows::Placeholder, |s| {
        let code = "printf 'canary.bird\\100example.com\\n'";
        tool(s, "run_code", json!({"code": code, "language": "bash"})).to_string()
    }),
    ("output of JavaScript", Shows::Placeholder, |s| {
        let code = "console.log('canary.bird' + String.fromCharCode(64) + 'example.com')";
        tool(s, "run_code", json!({"code": code, "language": "javascript"})).to_string()
    }),
    ("progress", Shows::Placeholder, |s| {
        s.seen.clear();
        let code = format!("{MADE}import time\nprint(c, flush=True)\ntime.sleep(2)");
        let meta = json!({"progressToken": "p"});
        s.call(json!({"code": code, "language": "python"}), meta);
        let news = s.seen.iter().filter(|message| message["method"] == "notifications/progress");
        news.map(Value::to_string).collect()
    }),
    ("log messages to the client", Shows::Closed, |s| {
        s.request("logging/setLevel", json!({"level": "debug"}));
        s.seen.clear();
        python(s, "import logging; logging.warning(c)");
        s.seen.iter().map(Value::to_string).collect()
    }),
    ("long output in a file, by its pages", Shows::Placeholder, |s| {
        let long = python(s, "print((c + ' ' + 'x' * 100 + '\\n') * 1000)");
        let id = &long["result"]["structuredContent"]["executionId"];
        tool(s, "get_execution", json!({"execution_id": id, "stream": "stdout", "limit": 1000})).to_string()
    }),
    ("long output in a file, as a resource", Shows::Placeholder, |s| {
        let long = python(s, "print((c + ' ' + 'x' * 100 + '\\n') * 1000)");
        s.request("resources/read", json!({"uri": link(&long)})).to_string()
    }),
    ("result of an earlier run", Shows::Placeholder, |s| {
        let ran = python(s, "print(c)");
        let id = &ran["result"]["structuredContent"]["executionId"];
        tool(s, "get_execution", json!({"execution_id": id})).to_string()
    }),
    ("result under an idempotency key", Shows::Placeholder, |s| {
        let arguments =
            json!({"code": format!("{MADE}print(c)"), "language": "python", "idempotency_key": "k"});
        tool(s, "run_code", arguments.clone());
        tool(s, "run_code", arguments).to_string()
    }),
    ("picture in a result", Shows::Nothing, |s| {
        python(s, &format!("class P:\n    def _repr_png_(self): return {PNG}\nP()")).to_string()
    }),
    ("picture as an artifact", Shows::Nothing, |s| {
        let drawn = python(s, &format!("class P:\n    def _repr_png_(self): return {PNG}\nP()"));
        s.request("resources/read", json!({"uri": link(&drawn)})).to_string()
    }),
    ("drawing as an artifact", Shows::Placeholder, |s| {
        let svg = "class P:\n    def _repr_svg_(self): return '<svg><text>' + c + '</text></svg>'\nP()";
        let drawn = python(s, svg);
        tool(s, "get_artifact", json!({"uri": link(&drawn)})).to_string()
    }),
    ("content of a text file", Shows::Placeholder, |s| {
        python(s, "open('f.txt', 'w').write(c)");
        tool(s, "files", json!({"action": "get", "path": "f.txt"})).to_string()
    }),
    ("content of a picture's file", Shows::Nothing, |s| {
        python(s, &format!("open('f.png', 'wb').write({PNG})"));
        let got = tool(s, "files", json!({"action": "get", "path": "f.png"}));
        s.request("resources/read", json!({"uri": link(&got)})).to_string()
    }),
    ("picture in a page's file", Shows::Nothing, |s| {
        let page = format!(
            "import base64\nopen('f.html', 'w').write('<img src=\"data:image/png;base64, ' + \
             base64.b64encode({PNG}).decode() + '\">')"
        );
        python(s, &page);
        tool(s, "files", json!({"action": "get", "path": "f.html"})).to_string()
    }),
    ("picture in a URL within a JSON value", Shows::Nothing, |s| {
        let code = format!(
            "import base64\n{{'src': ['data:image/png;base64,' + base64.b64encode({PNG}).decode()]}}"
        );
        python(s, &code).to_string()
    }),
    ("content of a document's file", Shows::Nothing, |s| {
        python(s, &format!("open('f.pdf', 'wb').write({PDF})"));
        let got = tool(s, "files", json!({"action": "get", "path": "f.pdf"}));
        match got["result"]["isError"] == true {
            true => got.to_string(),
            false => s.request("resources/read", json!({"uri": link(&got)})).to_string(),
        }
    }),
    ("content of a binary file", Shows::Nothing, |s| {
        python(s, "open('f.bin', 'wb').write(bytes(99) + c.encode())");
        let got = tool(s, "files", json!({"action": "get", "path": "f.bin"}));
        match got["result"]["isError"] == true {
            true => got.to_string(),
            false => s.request("resources/read", json!({"uri": link(&got)})).to_string(),
        }
    }),
    ("names in a directory", Shows::Placeholder, |s| {
        python(s, "open(c + '.txt', 'w').close()");
        tool(s, "files", json!({"action": "list"})).to_string()
    }),
    ("path of a file that is put", Shows::Placeholder, |s| {
        tool(s, "files", json!({"action": "put", "path": CANARY, "text": "x"})).to_string()
    }),
    ("path and kept name of a file that is taken out", Shows::Placeholder, |s| {
        python(s, "open(c, 'w').write('x')");
        let got = tool(s, "files", json!({"action": "get", "path": CANARY}));
        format!("{got} {}", s.request("resources/list", json!({})))
    }),
    ("figures of an analysis", Shows::Placeholder, |s| {
        let code = "params['a'] + chr(64) + params['b']";
        let parameters = json!({"code": code, "params": {"a": "canary.bird", "b": "example.com"}});
        tool(s, "run_analysis", json!({"analysis_type": "custom", "parameters": parameters})).to_string()
    }),
    ("what an analysis prints", Shows::Placeholder, |s| {
        let code = format!("{MADE}print(c)\n1");
        let parameters = json!({"code": code, "params": {}});
        tool(s, "run_analysis", json!({"analysis_type": "custom", "parameters": parameters})).to_string()
    }),
    ("prompt", Shows::Placeholder, |s| {
        let arguments = json!({"task": format!("write to {CANARY}")});
        s.request("prompts/get", json!({"name": "run_code", "arguments": arguments})).to_string()
    }),
    ("argument quoted in an error", Shows::Always, |s| {
        tool(s, "run_code", json!({"code": "1", "language": CANARY})).to_string()
    }),
    ("parameter quoted in an error", Shows::Always, |s| {
        tool(s, "run_analysis", json!({"analysis_type": "timeline", "parameters": {CANARY: 1}})).to_string()
    }),
    ("resource quoted in an error", Shows::Always, |s| {
        s.request("resources/read", json!({"uri": format!("pathbox://{CANARY}")})).to_string()
    }),
    ("prompt quoted in an error", Shows::Always, |s| {
        s.request("prompts/get", json!({"name": CANARY})).to_string()
    }),
];

fn off(data: &Path) -> std::process::Command {
    let mut command = command(data);
    command.env("PATHBOX_GUARD_MODE", "off");
    command
}

#[test]
fn no_way_out_of_a_process_on_standard_io_shows_the_value() {
    let (off_data, on_data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut off = Server::start_with(off(off_data.path()).arg("serve"));
    let mut on = Server::start_with(command(on_data.path()).arg("serve"));
    for (way, shows, push) in STDIO {
        judge(way, *shows, &push(&mut off), &push(&mut on));
    }
    // Data that is kept for audit and replay has passed the guard too: the database and the kept outputs on disk.
    drop((off, on));
    let kept = |data: &Path| {
        let mut found = false;
        for entry in std::fs::read_dir(data).unwrap().flatten().filter(|entry| entry.path().is_file()) {
            found |= holds(&String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()));
        }
        for dir in std::fs::read_dir(data.join("outputs")).unwrap().flatten() {
            for file in std::fs::read_dir(dir.path()).unwrap().flatten() {
                found |= holds(&String::from_utf8_lossy(&std::fs::read(file.path()).unwrap()));
            }
        }
        found
    };
    assert_eq!((kept(off_data.path()), kept(on_data.path())), (true, false), "what is kept");
}

/// Formats of a result, by the method or media type that shows the value.
const FORMS: &[(&str, Shows, &str)] = &[
    ("text/plain", Shows::Placeholder, "c"),
    ("text/html", Shows::Placeholder, "'<td title=\"' + c + '\">'"),
    ("text/html", Shows::Nothing, "'<img src=\"data:image/png;base64,' + b64(PNG) + '\">'"),
    (
        "text/html",
        Shows::Nothing,
        "'<a href=\"data:application/octet-stream;base64,' + b64(bytes([255]) * 40 + c.encode()) + '\">'",
    ),
    ("text/markdown", Shows::Placeholder, "'*' + c + '*'"),
    ("text/latex", Shows::Placeholder, "'$' + c + '$'"),
    ("image/svg+xml", Shows::Placeholder, "'<svg><desc>' + c + '</desc></svg>'"),
    (
        "image/svg+xml",
        Shows::Nothing,
        "'<svg><image href=\"data:image/jpeg;base64,' + b64(JPEG) + '\"/></svg>'",
    ),
    ("application/javascript", Shows::Placeholder, "'f(\"' + c + '\")'"),
    ("application/json", Shows::Placeholder, "{c: [c]}"),
    ("image/png", Shows::Nothing, "b64(PNG)"),
    ("image/jpeg", Shows::Nothing, "b64(JPEG)"),
    ("image/png", Shows::Nothing, "b64(b'no picture, ' + c.encode())"),
    ("image/png", Shows::Nothing, "c"),
    ("application/pdf", Shows::Nothing, "b64(PDF)"),
    ("application/pdf", Shows::Nothing, "b64(b'%PDF-' + c.encode())"),
    (
        "application/pdf",
        Shows::Nothing,
        "b64(b'%PDF-1.4\\n1 0 obj <</Filter/FlateDecode>> stream\\n' + zlib.compress(c.encode(), 0) + b'\\nendstream')",
    ),
    ("e2b/chart", Shows::Placeholder, "{'type': 'line', 'title': c}"),
    ("e2b/data", Shows::Placeholder, "{c: [1]}"),
    ("application/vnd.plotly.v1+json", Shows::Placeholder, "{'layout': {'title': c}}"),
    ("application/x-ipynb+json", Shows::Nothing, "{'outputs': [{'data': {'image/png': b64(PNG)}}]}"),
    ("application/x-ipynb+json", Shows::Placeholder, "'{\"source\": [\"' + c + '\"]}'"),
    ("application/octet-stream", Shows::Nothing, "b64(bytes([255]) * 40 + c.encode())"),
    ("image/webp", Shows::Nothing, "b64(b'RIFF' + bytes([255]) * 40 + c.encode())"),
    (
        "application/x-own",
        Shows::Nothing,
        "b64(b'some words around it, ' + c.encode() + b', and more of them after')",
    ),
];

#[test]
fn no_form_of_a_result_shows_the_value() {
    let mut code = format!(
        "import base64, zlib\n{MADE}PNG = {PNG}\nJPEG = {JPEG}\nPDF = {PDF}\n\
         b64 = lambda raw: base64.b64encode(raw).decode()\n\
         class Shown:\n    def __init__(self, form, content): self.forms = {{'text/plain': 'shown', form: content}}\n    \
         def _repr_mimebundle_(self, include=None, exclude=None): return self.forms\n"
    );
    for (form, _, content) in FORMS {
        code.push_str(&format!("display(Shown({form:?}, {content}))\n"));
    }
    let run = |mut command: std::process::Command| -> Vec<Value> {
        let output = command.args(["run", "--json", &code]).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let answer: Value = serde_json::from_str(&text)
            .unwrap_or_else(|_| panic!("{text} {}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(answer["exitCode"], 0, "{answer}");
        answer["results"].as_array().unwrap().clone()
    };
    let data = tempfile::tempdir().unwrap();
    let (off, on) = (run(off(data.path())), run(command(data.path())));
    assert_eq!((off.len(), on.len()), (FORMS.len(), FORMS.len()));
    for (at, (form, shows, content)) in FORMS.iter().enumerate() {
        let way = format!("{form} {content}");
        judge(&way, *shows, &off[at].to_string(), &on[at].to_string());
        if *form == "image/png" && content.contains("PNG") {
            assert!(on[at].to_string().contains("iVBOR"), "the picture itself stays: {}", on[at]);
        }
    }
}

#[test]
fn no_way_out_over_http_shows_the_value() {
    let play = |mut command: std::process::Command| -> Vec<String> {
        let server = HttpServer::start_with(command.env("PATHBOX_LOG", "trace"));
        let code = json!({"code": format!("{MADE}import time\nprint(c, flush=True)\ntime.sleep(2)"), "language": "python"});
        let mut session = server.session(&[]);
        let params = json!({"name": "run_code", "arguments": code, "_meta": {"progressToken": "p"}});
        let (_, mut reply) = session.begin("tools/call", params);
        reply.expect_ok();
        let (mut progress, mut answer) = (String::new(), String::new());
        while let Some(event) = reply.message() {
            let message = event.json();
            match message.get("method") {
                Some(_) => progress.push_str(&message.to_string()),
                None => answer = message.to_string(),
            }
        }
        let stateless = server.stateless(&[], "run_code", code, json!({})).answer().to_string();
        let body = json!({"path": "main", CANARY: 1}).to_string();
        let kind = [("Content-Type", "application/json")];
        let refused = server.send("POST", "/v1/conversations/c/paths", &kind, body.as_bytes()).text();
        let metrics = server.send("GET", "/metrics", &[], b"").text();
        vec![answer, progress, stateless, refused, metrics, server.log()]
    };
    let data = tempfile::tempdir().unwrap();
    let ways = [
        ("answer in a session", Shows::Placeholder),
        ("progress in a session", Shows::Placeholder),
        ("answer without a session", Shows::Placeholder),
        ("field quoted in an error of /v1", Shows::Always),
        ("labels of /metrics", Shows::Closed),
        ("logs and spans", Shows::Closed),
    ];
    let (off, on) = (play(off(data.path())), play(command(data.path())));
    for (at, (way, shows)) in ways.iter().enumerate() {
        judge(way, *shows, &off[at], &on[at]);
    }
}

/// The output of `pathbox run`, and what it keeps about a run.
#[test]
fn no_way_out_of_the_command_line_shows_the_value() {
    let play = |command: &dyn Fn() -> std::process::Command| -> Vec<String> {
        let ask = |args: &[&str]| {
            let output = command().args(args).stdin(Stdio::null()).output().unwrap();
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
        };
        let code = format!("{MADE}import sys; print(c); print(c, file=sys.stderr)\nraise ValueError(c)");
        let [out, err] = ask(&["run", &code]);
        let [json, _] = ask(&["run", "--json", &code]);
        let id = serde_json::from_str::<Value>(&json).unwrap()["executionId"].as_str().unwrap().to_owned();
        let [kept, _] = ask(&["executions", "show", &id, "--json"]);
        vec![out, err, json, kept]
    };
    let data = tempfile::tempdir().unwrap();
    let ways = [
        ("standard output of run", Shows::Placeholder),
        ("standard error of run", Shows::Placeholder),
        ("run --json", Shows::Placeholder),
        ("the record of a run", Shows::Closed),
    ];
    let (off, on) = (play(&|| off(data.path())), play(&|| command(data.path())));
    for (at, (way, shows)) in ways.iter().enumerate() {
        judge(way, *shows, &off[at], &on[at]);
    }
}

/// The purpose of a call is kept for the audit, guarded.
#[test]
fn the_purpose_of_a_run_is_kept_guarded() {
    let play = |mut command: std::process::Command, data: &Path| {
        let mut server = Server::start_with(command.arg("serve"));
        let arguments = json!({"code": "1", "language": "python", "purpose": format!("for {CANARY}")});
        let answer = tool(&mut server, "run_code", arguments);
        let id = answer["result"]["structuredContent"]["executionId"].as_str().unwrap().to_owned();
        drop(server);
        let shown = self::command(data).args(["executions", "show", &id, "--json"]).output().unwrap();
        String::from_utf8(shown.stdout).unwrap()
    };
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (off, on) = (play(off(one.path()), one.path()), play(command(two.path()), two.path()));
    judge("purpose", Shows::Placeholder, &off, &on);
}

/// A provider's message may quote a sandbox: it goes to the log, to the command line and into records.
#[test]
fn a_providers_messages_are_guarded_in_logs_errors_and_records() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let fault = Fault::error(400, &format!("no sandbox for {CANARY}"));
    let provider = runtime.block_on(FaultServer::always(fault));
    let url = format!("http://{}", provider.addr);
    for mode in ["off", "enforce"] {
        let data = tempfile::tempdir().unwrap();
        let at_provider = || {
            let mut command = command(data.path());
            command.env("E2B_API_KEY", API_KEY).env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url);
            command.env("PATHBOX_GUARD_MODE", mode);
            command
        };
        let output = at_provider().args(["run", "1"]).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("no sandbox for [EMAIL]"), "it was on its way: {said}");
        judge("error of the command line", Shows::Always, &said, &said);
        let log = data.path().join("log");
        let mut serve = at_provider();
        let file = std::fs::File::create(&log).unwrap();
        let mut server = Server::start_with(serve.arg("serve").stderr(Stdio::from(file)));
        let answer = python(&mut server, "1");
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        drop(server);
        judge("answer to a client", Shows::Closed, &answer.to_string(), &answer.to_string());
        let log = std::fs::read_to_string(&log).unwrap();
        assert!(log.contains("no sandbox for [EMAIL]"), "it was on its way: {log}");
        judge("log", Shows::Always, &log, &log);
        let listed = at_provider().args(["contexts", "ls", "--all", "--json"]).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert!(listed.contains("lastError"), "{listed}");
        judge("record of a context", Shows::Closed, &listed, &listed);
    }
}
