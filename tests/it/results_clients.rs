//! What a client gets of a run, and what it may send: over standard input and output, in few processes.

use serde_json::{Value, json};

use crate::code_mode::Place;
use crate::support::server::{Server, command};

fn call(server: &mut Server, name: &str, arguments: Value) -> Value {
    let mut answer = server.request("tools/call", json!({"name": name, "arguments": arguments}));
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].take()
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

#[test]
fn one_block_of_text_is_complete_and_repeats_nothing() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let first = server.python("print('printed'); x = {'zebra': 1, 'apple': 10**30}\nx");
    let block = text(&first);
    assert!(block.contains("\nprinted\n{\"zebra\":1,\"apple\":1000000000000000000000000000000}"), "{block}");
    assert_eq!(first["content"].as_array().unwrap().len(), 1, "{first}");
    let handle = first["structuredContent"]["context"].as_str().unwrap();
    assert!(block.contains(handle), "the handle of a new context is in the text: {block}");

    let second = server.python("print('y' * 50_000)");
    let whole = second.to_string();
    assert_eq!(whole.matches(&"y".repeat(50_000)).count(), 0, "50,001 characters are cut");
    let second = server.python("print('y' * 40_000)");
    assert_eq!(second.to_string().matches(&"y".repeat(40_000)).count(), 2, "once to read and once as data");
    assert!(second["structuredContent"].get("context").is_none(), "a handle that is known is not said again");
    assert!(!text(&second).contains(handle), "{second}");
    assert_eq!(second["structuredContent"]["output"], "", "what was printed is in stdout alone");

    let failed = server.python("print('before'); 1/0");
    let block = text(&failed);
    assert!(block.contains("before") && block.contains("ZeroDivisionError"), "{block}");
    assert!(failed.get("isError").is_none() && failed["structuredContent"]["success"] == false, "{failed}");

    // What is cut is named, with how long it was.
    let long = server.python("print('short'); 'x' * 60_000");
    let head = text(&long).lines().next().unwrap();
    assert!(head.contains("; output cut: displays 60000 characters, the whole is linked below"), "{head}");

    let silent = server.python("result = 41 + 1");
    assert!(text(&silent).contains("[note] nothing was printed"), "{silent}");
    assert!(silent["structuredContent"]["notes"].to_string().contains("nothing was printed"), "{silent}");
}

#[test]
fn a_terminal_leaves_the_last_frame_and_the_whole_is_linked() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let code = "for n in range(500): print(f'\\r{n:3}/500', end='')\nprint('\\n\\x1b[32mdone\\x1b[0m\\x07 a\\u202eb')";
    let result = server.python(code);
    let content = &result["structuredContent"];
    assert_eq!(content["stdout"], "499/500\ndone a\\u202eb\n", "{result}");
    assert!(content["notes"].to_string().contains("overwrites itself"), "{result}");
    let whole = server.request("resources/read", json!({"uri": content["artifacts"][0]["uri"]}));
    let whole = whole["result"]["contents"][0]["text"].as_str().unwrap();
    assert!(whole.contains("  0/500\r  1/500") && whole.ends_with("a\u{202e}b\n"), "{whole}");
    // Losing colours is acceptable.
    let coloured = server.python("print('\\x1b[1;31mred\\x1b[0m')");
    assert_eq!(coloured["structuredContent"]["stdout"], "red\n");
    assert!(coloured["structuredContent"].get("notes").is_none(), "{coloured}");
    // What is drawn over itself cannot say what the guard would not let pass.
    let drawn = server.python("print('4111 1111 1111 XXXX\\x1b[4D1111', end='')\nprint()");
    assert!(!drawn.to_string().contains("4111 1111 1111 1111"), "{drawn}");
}

#[test]
fn displays_come_in_order_each_in_a_readable_form() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let code = "
class Html:
    def __init__(self, html): self.html = html
    def _repr_html_(self): return self.html
class Svg:
    def _repr_svg_(self): return '<svg xmlns=\"http://www.w3.org/2000/svg\"><path d=\"M 4111 1111 \\nQ 4111 1111 1111 1111 z\"/></svg>'
class Gif:
    def _repr_mimebundle_(self, include=None, exclude=None):
        import base64
        return {'image/gif': 'R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7'}
display(Html('<table><tr><th>n</th></tr><tr><td>1</td></tr></table>'))
display(Html('<div><script>let drawn = 1</script>a chart</div>'))
display(Svg())
display(Gif())
display(1); display(2)
3";
    let result = server.python(code);
    let content = &result["structuredContent"];
    let output = content["output"].as_str().unwrap();
    let places: Vec<usize> = ["n\n1", "a chart", "\n1\n2\n3"]
        .iter()
        .map(|part| output.find(part).unwrap_or_else(|| panic!("{part}: {result}")))
        .collect();
    assert!(places.is_sorted(), "{output}");
    let named = |name: &str| {
        content["artifacts"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["name"].as_str().unwrap().ends_with(name))
    };
    for (name, mime_type) in [(".html", "text/html"), (".svg", "image/svg+xml"), (".gif", "image/gif")] {
        assert_eq!(named(name).unwrap_or_else(|| panic!("{name}: {result}"))["mimeType"], mime_type);
    }
    let svg = server.request("resources/read", json!({"uri": named(".svg").unwrap()["uri"]}));
    let svg = svg["result"]["contents"][0]["text"].as_str().unwrap();
    assert!(svg.contains("Q 4111 1111 1111 1111 z"), "an outline is no card: {svg}");
}

#[test]
fn strict_clients_send_every_property_and_others_send_what_they_have() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let neutral = json!({"purpose": "", "timeout_ms": 0, "context": "", "idempotency_key": ""});
    let nulls = json!({"purpose": null, "timeout_ms": null, "context": null, "idempotency_key": null});
    for (code, language, more, output) in [
        ("1 + 1", "python", neutral.clone(), "2"),
        ("1 + 1", "python", nulls, "2"),
        ("1 + 1", "Python", json!({"timeout_ms": 60_000.0}), "2"),
        ("1 + 1", "python3", json!({"timeout_ms": "60000"}), "2"),
        ("1 + 1", "py", json!({"context": "  "}), "2"),
        ("```python\n1 + 1\n```", "python", json!({}), "2"),
        ("\u{feff}1\u{a0}+ 1", "python", json!({}), "2"),
        ("1 + 1", "js", json!({}), "2"),
        ("const n: number = 2; n", "ts", json!({}), "2"),
    ] {
        let mut arguments = json!({"code": code, "language": language});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let result = call(&mut server, "run_code", arguments.clone());
        assert_eq!(result["structuredContent"]["output"], output, "{arguments}: {result}");
        let is_noted = result["structuredContent"]["notes"].to_string().contains("code fence");
        assert_eq!(is_noted, code.starts_with('`'), "{result}");
    }
    let handle = server.call(json!({"code": "x = 7", "language": "python"}), json!({"pathId": "p"}));
    let handle = handle["structuredContent"]["context"].as_str().unwrap().to_owned();
    let padded = call(
        &mut server,
        "run_code",
        json!({"code": "x", "language": "python", "context": format!(" {handle}\n")}),
    );
    assert_eq!(padded["structuredContent"]["output"], "7", "{padded}");

    let parameters = json!({"code": "params['x']", "params": {"x": 5}}).to_string();
    let mut arguments = json!({"analysis_type": "Custom", "parameters": parameters, "output_format": ""});
    arguments.as_object_mut().unwrap().extend(neutral.as_object().unwrap().clone());
    let analysed = call(&mut server, "run_analysis", arguments);
    assert_eq!(analysed["structuredContent"]["output"]["result"], 5, "{analysed}");

    for (tool, arguments) in [
        (
            "files",
            json!({"action": "list", "path": "", "text": "", "base64": "", "from": "", "if_version": "", "context": ""}),
        ),
        ("manage_context", json!({"action": "SHOW", "context": "", "path": ""})),
        (
            "get_execution",
            json!({"execution_id": padded["structuredContent"]["executionId"], "wait_ms": "0", "cancel": "false",
                "stream": "", "offset": 0, "limit": 0}),
        ),
    ] {
        let result = call(&mut server, tool, arguments);
        assert!(result.get("isError").is_none(), "{tool}: {result}");
    }
    for (arguments, words) in [
        (
            json!({"code": "1", "language": "python", "timeout_ms": "soon"}),
            "expected an integer from 1000 to 600000",
        ),
        (json!({"code": "1", "language": "python", "timeout_ms": 1}), "1000"),
        (json!({"code": "1", "language": "python", "timeout": 1}), "`timeout_ms` is in milliseconds"),
        (json!({"code": ["1"], "language": "python"}), "argument `code`: expected text, got a list"),
        (json!({"language": "python"}), "argument `code` is missing"),
    ] {
        let result = call(&mut server, "run_code", arguments);
        assert_eq!(result["isError"], true, "{result}");
        assert!(text(&result).contains(words) && !text(&result).contains("u64"), "{result}");
    }
}

#[test]
fn a_placeholder_that_is_used_as_a_value_gets_a_hint() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    assert!(text(&server.python("mail = 'bob@example.com'\nmail")).contains("[EMAIL_1]"));
    let result = server.python("mail == '[EMAIL_1]'");
    assert_eq!(result["structuredContent"]["output"], "False");
    assert!(text(&result).contains("the code holds [EMAIL_1]"), "{result}");
    assert!(server.python("['a'][0]")["structuredContent"].get("notes").is_none());
}

#[test]
fn output_of_a_running_run_can_be_read() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let code = "import os, time\nprint('first line', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\nprint('last')";
    let result = server.call(
        json!({"code": code, "language": "python", "timeout_ms": 600_000}),
        json!({"dev.pathbox/patienceMs": 100}),
    );
    let content = &result["structuredContent"];
    assert_eq!(content["status"], "running", "{result}");
    assert!(content.get("success").is_none() && content.get("exitCode").is_none(), "{result}");
    let id = content["executionId"].clone();
    let seen = loop {
        let seen = call(&mut server, "get_execution", json!({"execution_id": id, "wait_ms": 200}));
        if seen["structuredContent"].get("printedSoFar").is_some() {
            break seen;
        }
        assert_ne!(seen["structuredContent"]["status"], "finished", "{seen}");
    };
    assert_eq!(seen["structuredContent"]["printedSoFar"], "first line\n", "{seen}");
    assert!(text(&seen).contains("first line"), "{seen}");
    let stopped =
        call(&mut server, "get_execution", json!({"execution_id": id, "cancel": true, "wait_ms": 50_000}));
    assert_eq!(stopped["structuredContent"]["exitCode"], 130, "{stopped}");
}

#[test]
fn the_list_of_tools_is_small_and_an_analysis_explains_itself() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(command(data.path()).args(["serve", "--set", "e2b.templates=base"]));
    let listed = server.request("tools/list", json!({}))["result"].take();
    let size = listed.to_string().len();
    assert!(size <= 10 * 1024, "tools/list has {size} bytes");
    for kind in pathbox::analysis::Kind::ALL {
        let help = call(&mut server, "get_analysis_help", json!({"analysis_type": kind.as_str()}));
        let help = text(&help);
        let example: Value = serde_json::from_str(
            help.split("Example of `parameters`:\n").nth(1).unwrap().lines().next().unwrap(),
        )
        .unwrap();
        let result =
            call(&mut server, "run_analysis", json!({"analysis_type": kind.as_str(), "parameters": example}));
        assert_eq!(result["structuredContent"]["success"], true, "{kind}: {result}");
        let uri = format!("pathbox://analysis/{kind}");
        let schema =
            server.request("resources/read", json!({"uri": uri}))["result"]["contents"][0]["text"].take();
        let schema: Value = serde_json::from_str(schema.as_str().unwrap()).unwrap();
        assert_eq!(schema["type"], "object", "{kind}");
    }
    let unknown = server.request("resources/read", json!({"uri": "pathbox://analysis/astrology"}));
    assert_eq!(unknown["error"]["code"], -32002, "{unknown}");
}

/// Every optional argument: one that means the same as none, one of a wrong type, and as text where it is not text itself.
fn optionals() -> Vec<(&'static str, &'static str, Value, Value, Option<&'static str>)> {
    let list = || json!(["x"]);
    let mut rows = vec![
        ("run_code", "timeout_ms", json!(0), list(), Some("60000")),
        ("run_code", "data", json!(null), json!(null), Some("{}")),
        ("run_code", "tools", json!([]), json!(7), Some("kit.echo")),
        ("run_analysis", "timeout_ms", json!(0), list(), Some("60000")),
        ("get_execution", "wait_ms", json!(0), list(), Some("0")),
        ("get_execution", "cancel", json!(false), list(), Some("false")),
        ("get_execution", "offset", json!(0), list(), Some("0")),
        ("get_execution", "limit", json!(0), list(), Some("100")),
        ("search_tools", "limit", json!(0), list(), Some("5")),
    ];
    for (tool, texts) in [
        ("run_code", &["purpose", "context", "idempotency_key", "template"][..]),
        ("run_analysis", &["pack", "output_format", "purpose", "context", "idempotency_key"]),
        ("manage_context", &["context", "path"]),
        ("get_execution", &["stream"]),
        ("files", &["path", "text", "base64", "from", "if_version", "context"]),
        ("search_tools", &["detail", "language"]),
    ] {
        rows.extend(texts.iter().map(|name| (tool, *name, json!(""), list(), None)));
    }
    rows
}

/// What OpenAI's, Anthropic's and Google's strict schemas have in common. `free`: takes any JSON, so hosts that enforce a
/// schema send this tool's arguments without that.
fn obeys(place: &str, schema: &Value, free: bool) {
    let object = schema.as_object().unwrap();
    let known = [
        "type",
        "description",
        "enum",
        "minimum",
        "maximum",
        "items",
        "properties",
        "required",
        "additionalProperties",
    ];
    for key in object.keys() {
        assert!(known.contains(&key.as_str()), "{place}: `{key}` is not understood everywhere");
    }
    if free {
        return;
    }
    let kind = object["type"].as_str().unwrap_or_else(|| panic!("{place}: {schema}"));
    assert!(["string", "integer", "number", "boolean", "array", "object"].contains(&kind), "{place}: {kind}");
    if let Some(options) = object.get("enum") {
        assert!(kind == "string" && options.as_array().unwrap().iter().all(Value::is_string), "{place}");
    }
    if kind == "array" {
        obeys(place, &object["items"], false);
    }
    if kind == "object" {
        assert_eq!(object["additionalProperties"], false, "{place}");
    }
}

#[test]
fn every_schema_obeys_the_strict_hosts_and_every_optional_may_be_filled_in() {
    // With a tool server and a template that may be named, so that what needs one is listed too.
    let place = Place::new("", "", "[e2b]\ntemplates = \"base\"");
    let mut server = place.serve();
    let ran = server.python("1");
    let base = [
        ("run_code", json!({"code": "1", "language": "python"})),
        ("run_analysis", json!({"analysis_type": "custom", "parameters": {"code": "1"}})),
        ("manage_context", json!({"action": "show"})),
        ("get_execution", json!({"execution_id": ran["structuredContent"]["executionId"]})),
        ("files", json!({"action": "list"})),
        ("search_tools", json!({"query": "echo"})),
    ];
    let free = [("run_code", "data"), ("run_code", "tools"), ("run_analysis", "parameters")];
    let word = |name: &str| {
        (1..=64).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let listed = server.request("tools/list", json!({}))["result"]["tools"].take();
    let mut rows = optionals();
    for tool in listed.as_array().unwrap() {
        let (name, schema) = (tool["name"].as_str().unwrap(), &tool["inputSchema"]);
        assert!(word(name), "{name}");
        obeys(name, schema, false);
        let required = schema["required"].as_array().unwrap();
        for (property, inner) in schema["properties"].as_object().unwrap() {
            assert!(word(property), "{name}: {property}");
            obeys(&format!("{name}.{property}"), inner, free.contains(&(name, property)));
            if required.contains(&json!(property)) {
                continue;
            }
            let at = rows.iter().position(|row| (row.0, row.1) == (name, property.as_str()));
            let at = at.unwrap_or_else(|| panic!("{name}.{property}: its row in `optionals` is missing"));
            let (_, _, neutral, wrong, text_form) = rows.swap_remove(at);
            let arguments = base.iter().find(|(tool, _)| *tool == name).unwrap().1.clone();
            let mut send = |value: Value| {
                let mut arguments = arguments.clone();
                arguments[property] = value;
                call(&mut server, name, arguments)
            };
            let forms = [json!(null), neutral].into_iter().chain(text_form.map(|form| json!(form)));
            for form in forms {
                let result = send(form.clone());
                assert!(result.get("isError").is_none(), "{name}.{property} = {form}: {result}");
            }
            if !wrong.is_null() {
                let refused = send(wrong.clone());
                let says = format!("argument `{property}`");
                assert!(
                    refused["isError"] == true && text(&refused).contains(&says),
                    "{says} = {wrong}: {refused}"
                );
            }
        }
    }
    assert!(rows.is_empty(), "rows of no argument: {rows:?}");
}
