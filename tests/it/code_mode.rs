//! Programs in the sandbox call tools of other MCP servers: through the real binary, the local host, and a server of ours that
//! does what servers should not.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::memory;
use crate::support::server::{Server, command};

/// The test server.
pub(crate) fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/server.py")
}

/// A data directory with settings for tool servers.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// `extra`: more lines of the settings of the server `kit`; `more`: more of the file.
    pub(crate) fn new(args: &str, extra: &str, more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = Self { dir };
        let args: Vec<String> = std::iter::once(script().display().to_string())
            .chain(args.split_whitespace().map(str::to_owned))
            .collect();
        let log = place.path("log");
        std::fs::write(
            place.path("pathbox.toml"),
            format!(
                "[[tools.server]]\nname = \"kit\"\ncommand = \"python3\"\nargs = {args:?}\nenv = {{ LOG = {log:?}, KEY = \"planted-key-7\" }}\n{extra}\n{more}\n"
            ),
        )
        .unwrap();
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn command(&self) -> std::process::Command {
        let mut command = command(&self.path("data"));
        command.env("PATHBOX_CONFIG", self.path("pathbox.toml"));
        command
    }

    pub(crate) fn serve(&self) -> Server {
        Server::start_with(self.command().arg("serve"))
    }

    /// What the test server noted.
    pub(crate) fn log(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn calls(&self, tool: &str) -> Vec<Value> {
        self.log().into_iter().filter(|entry| entry["call"] == tool).collect()
    }
}

fn output(result: &Value) -> &Value {
    &result["structuredContent"]
}

pub(crate) fn stdout(result: &Value) -> String {
    let out = output(result);
    assert_eq!(out["success"], true, "{result:#}");
    out["stdout"].as_str().unwrap().to_owned()
}

pub(crate) fn run(server: &mut Server, language: &str, code: &str) -> Value {
    server.call(json!({"code": code, "language": language, "timeout_ms": 60_000}), json!({}))
}

#[test]
fn each_language_calls_a_tool_and_its_result_is_a_value() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    for (language, code) in [
        ("python", "from tools import kit\nprint(kit.add(a=2, b=3)['sum'])"),
        ("javascript", "import { kit } from 'tools';\nconsole.log((await kit.add({a: 2, b: 3})).sum)"),
        (
            "typescript",
            "import { kit } from 'tools';\nconst sum: number = (await kit.add({a: 2, b: 3}) as any).sum;\nconsole.log(sum)",
        ),
        ("bash", "tools call kit.add '{\"a\": 2, \"b\": 3}' | jq .sum"),
    ] {
        let result = run(&mut server, language, code);
        assert_eq!(stdout(&result).trim(), "5", "{language}: {result:#}");
        let calls = output(&result)["toolCalls"].as_array().unwrap();
        assert_eq!(
            (calls.len(), &calls[0]["name"], &calls[0]["outcome"]),
            (1, &json!("kit.add"), &json!("ok")),
            "{language}"
        );
        assert!(calls[0]["bytes"].as_u64().unwrap() > 10);
    }
    assert_eq!(place.calls("add").len(), 4);
    let keys: std::collections::BTreeSet<String> = place
        .calls("add")
        .iter()
        .map(|call| call["meta"]["dev.pathbox/idempotencyKey"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(keys.len(), 4, "each call has a key of its own");
}

#[test]
fn a_failed_call_is_an_exception_that_the_program_can_catch_with_the_servers_message() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    let python = "import tools\nfrom tools import kit\nfor call in (lambda: kit.fail(message='no luck today'), lambda: kit.refuse()):\n    \
                  try:\n        call()\n    except tools.ToolError as error:\n        print(error.kind, error.tool, error)\nprint('goes on')";
    assert_eq!(
        stdout(&run(&mut server, "python", python)),
        "tool kit.fail no luck today\ntool kit.refuse refused, with a reason\ngoes on\n"
    );
    let javascript = "import { kit, ToolError } from 'tools';\ntry { await kit.fail({message: 'no luck today'}) } catch (error) { \
                      console.log(error instanceof ToolError, error.tool, error.message) }";
    assert_eq!(stdout(&run(&mut server, "javascript", javascript)), "true kit.fail no luck today\n");
    let result = run(&mut server, "bash", "tools call kit.fail '{\"message\": \"no luck today\"}'");
    assert_eq!(
        (&output(&result)["success"], &output(&result)["exitCode"]),
        (&json!(false), &json!(1)),
        "{result:#}"
    );
    assert!(result.to_string().contains("no luck today"), "{result:#}");
    assert_eq!(output(&result)["toolCalls"][0]["outcome"], "error");
    let uncaught =
        run(&mut server, "python", "from tools import kit\nkit.fail(message='seen in the traceback')");
    assert_eq!(output(&uncaught)["error"]["name"], "ToolError", "{uncaught:#}");
    assert_eq!(output(&uncaught)["error"]["message"], "seen in the traceback");
}

/// 10^40 has the digits of a float, and 2^100 is beyond what most readers hold.
#[test]
fn an_integer_of_any_size_is_the_same_wherever_json_passes() {
    let place = Place::new("", "", "");
    let mut server =
        Server::start_with(place.command().env("PATHBOX_WORKFLOWS_ENABLED", "true").arg("serve"));
    let wide = "[10000000000000000000000000000000000000000,1267650600228229401496703205376,-10000000000000000000000000000000000000000]";
    let value: Value = serde_json::from_str(wide).unwrap();
    let python = wide.replace(',', ", ");
    let given = json!({"code": "print(data)\ndata", "language": "python", "data": value});
    let result = server.call(given, json!({}));
    assert_eq!((stdout(&result).trim(), output(&result)["output"].as_str()), (python.as_str(), Some(wide)));
    let called = format!("from tools import kit\nprint(kit.echo(value={wide})['value'])");
    assert_eq!(stdout(&run(&mut server, "python", &called)).trim(), python);
    assert_eq!(place.calls("echo")[0]["arguments"]["value"], value);
    let analysis = json!({"analysis_type": "custom", "parameters": {"code": "str(params['n'])", "params": {"n": value}}});
    let result = crate::workflows::call(&mut server, "run_analysis", analysis);
    assert_eq!(output(&result)["output"]["result"], python.as_str(), "{result:#}");
    let tasks = json!([
        {"id": "tool", "type": "mcp_tool", "tool": "kit.echo", "arguments": {"value": value}, "effects": "none"},
        {"id": "code", "type": "code_execution", "code": "print(data['given'] == data['called']['value'])\nprint(data['given'])",
            "inputs": {"given": {"value": value}, "called": {"from": "tool"}}},
    ]);
    let shown = crate::workflows::run(&mut server, json!({"tasks": tasks}));
    assert_eq!(shown["results"], json!({"tool": {"value": value}, "code": value}), "{shown:#}");
}

#[test]
fn calls_run_side_by_side_and_large_values_pass_both_ways() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    let python = "import asyncio\nfrom tools import kit\nprint(await asyncio.gather(*[kit.slow.async_(ms=200) for _ in range(12)]))\n\
                  text = kit.big(bytes=5_000_000)\nprint(len(text), len(kit.echo(value='é' * 1_000_000)['value']))";
    let result = run(&mut server, "python", python);
    assert_eq!(stdout(&result), format!("{:?}\n5000000 1000000\n", ["done"; 12]).replace('"', "'"));
    let javascript = "import { kit } from 'tools';\nconst all = await Promise.all(Array.from({length: 12}, () => kit.slow({ms: 100})));\n\
                      console.log(all.length, (await kit.big({bytes: 5e6})).length)";
    assert_eq!(stdout(&run(&mut server, "javascript", javascript)), "12 5000000\n");
    assert_eq!(
        stdout(&run(&mut server, "bash", "tools call kit.big '{\"bytes\": 5000000}' | wc -c")).trim(),
        "5000001"
    );
}

#[test]
fn a_run_that_times_out_or_is_cancelled_stops_its_calls_at_the_server() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    let code = "from tools import kit\nkit.slow(ms=600000)";
    let result = server.call(json!({"code": code, "language": "python", "timeout_ms": 1500}), json!({}));
    let error = &output(&result)["error"];
    assert!(error["name"] == "timeout" || error["name"] == "ToolError", "{result:#}");
    assert_eq!(output(&result)["toolCalls"][0]["name"], "kit.slow");
    until(|| place.log().iter().filter(|entry| entry["stopped"] == "slow").count() == 1);

    let id = server
        .begin("tools/call", json!({"name": "run_code", "arguments": {"code": code, "language": "python"}}));
    until(|| place.calls("slow").len() == 2);
    server.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}));
    until(|| place.log().iter().filter(|entry| entry["stopped"] == "slow").count() == 2);
    let inside = "import asyncio\nfrom tools import kit\ntry:\n    await asyncio.wait_for(kit.slow.async_(ms=600000), 0.3)\nexcept asyncio.TimeoutError:\n    print('gave up')";
    assert_eq!(stdout(&run(&mut server, "python", inside)), "gave up\n");
    until(|| place.log().iter().filter(|entry| entry["stopped"] == "slow").count() == 3);
}

#[test]
fn a_call_has_the_servers_own_time_out_too() {
    let place = Place::new("", "timeout_ms = 300", "");
    let mut server = place.serve();
    let code = "import tools\nfrom tools import kit\ntry:\n    kit.slow(ms=600000)\nexcept tools.ToolError as error:\n    print(error.kind, error)";
    let out = stdout(&run(&mut server, "python", code));
    assert!(out.starts_with("timeout kit did not answer within"), "{out}");
    until(|| place.log().iter().any(|entry| entry["stopped"] == "slow"));
}

#[test]
fn arguments_that_do_not_fit_are_refused_with_their_path_and_the_signature_and_go_nowhere() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    let code = "import tools\nfrom tools import kit\nfor call in (lambda: kit.nested(filter={'since': {'year': 'soon'}}), lambda: kit.add(a=1)):\n    \
                try:\n        call()\n    except tools.ToolError as error:\n        print(error.kind, error)";
    let result = run(&mut server, "python", code);
    let out = stdout(&result);
    assert!(out.contains("/filter/since/year") && out.contains("kit.nested(*, filter: dict = ...)"), "{out}");
    assert!(out.contains("\"b\"") && out.contains("kit.add(*, a: int, b: int) -> dict"), "{out}");
    assert_eq!(output(&result)["toolCalls"][1]["outcome"], "arguments");
    assert!(place.calls("nested").is_empty() && place.calls("add").is_empty());
}

/// The one would take the server's stack, the other its time.
#[test]
fn a_schema_that_applies_itself_again_and_again_refuses_the_call_and_holds_up_nothing() {
    let place = Place::new("--multiplies", "", "");
    let mut server = place.serve();
    let code = "import tools\nfrom tools import kit\ndeep = {}\nfor _ in range(100):\n    deep = {'a': deep}\n\
                for call in (kit.row, kit.twice):\n    try:\n        call(**deep)\n    except tools.ToolError as error:\n        \
                print(error.kind, 'pass less' in str(error))";
    assert_eq!(stdout(&run(&mut server, "python", code)), "arguments True\narguments True\n");
    assert!(place.calls("row").is_empty() && place.calls("twice").is_empty());
}

#[test]
fn hostile_names_and_values_are_called_and_read_as_what_they_are() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    let python = "import tools\nfrom tools import kit\nprint(len(dir(kit)), len(set(dir(kit))))\n\
                  for name in ['__proto__', 'constructor', 'then', 'class', '日本', 'list-things']:\n    print(kit[name](), kit[name].__name__.isidentifier())\n\
                  print(kit.list_things(from_='a', **{'a-b': 1}))\nprint(list(kit.prototype()))\nhelp(kit.class_)";
    let result = run(&mut server, "python", python);
    let out = stdout(&result);
    let first = out.lines().next().unwrap();
    let (all, different) = first.split_once(' ').unwrap();
    assert_eq!(all, different, "{out}");
    for name in ["__proto__", "constructor", "then", "class", "日本", "list-things"] {
        assert!(out.contains(&format!("called {name} with {{}} True")), "{name}: {out}");
    }
    assert!(out.contains("called list-things with {\"a-b\": 1, \"from\": \"a\"}"), "{out}");
    assert!(out.contains("['__proto__', 'b', 'a']"), "the order of members stays: {out}");
    let javascript = "import tools, { kit } from 'tools';\nconst value = await kit.prototype();\n\
                      console.log(({}).polluted, Object.keys(value).join(), await kit['__proto__'](), await kit.then_(), typeof kit.constructor_)";
    assert_eq!(
        stdout(&run(&mut server, "javascript", javascript)),
        "undefined __proto__,b,a called __proto__ with {} called then with {} function\n"
    );
}

#[test]
fn malformed_tools_of_a_list_are_left_out_and_named() {
    let place = Place::new("--bad --endless", "allow = [\"echo\", \"nothing_like_it\"]", "");
    let checked = place.command().args(["tools", "check", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let text = report["problems"].to_string();
    assert!(text.contains("repeats a page"), "{text}");
    assert!(text.contains("the allow pattern \\\"nothing_like_it\\\" matches none"), "{text}");
    let place = Place::new("--bad", "", "");
    let checked = place.command().args(["tools", "check", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
    let text = report["problems"].to_string();
    for said in
        ["no_schema", "not an object", "without a name", "whose name is empty", "listed twice", "larger than"]
    {
        assert!(text.contains(said), "{said}: {text}");
    }
    assert!(report["servers"][0]["tools"].as_u64().unwrap() >= 22, "the good ones are there: {report}");
    assert!(checked.status.success());
}

#[test]
fn a_server_that_dies_hangs_or_floods_is_an_error_of_its_call_and_works_again() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    let code = "import tools\nfrom tools import kit\nfor call in (kit.die, kit.long_line):\n    try:\n        call()\n    except tools.ToolError as error:\n        \
                print(error.kind, error)\n    print(kit.add(a=1, b=1))";
    let out = stdout(&run(&mut server, "python", code));
    assert!(out.contains("dying as asked") && out.contains("may have had effects"), "{out}");
    assert!(out.contains("a line of more than 16777216 bytes"), "{out}");
    assert_eq!(out.matches("{'sum': 2}").count(), 2, "started again: {out}");

    let dead = Place::new("--dies", "", "");
    let said = dead.command().args(["tools", "check"]).output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(text.contains("the key [secret] is not valid") && !text.contains("planted"), "{text}");
    assert_eq!(said.status.code(), Some(1));
    let silent = Place::new("--silent", "start_timeout_ms = 1000", "");
    let said = silent.command().args(["tools", "check"]).output().unwrap();
    assert!(String::from_utf8_lossy(&said.stdout).contains("did not answer"), "{said:?}");
}

/// A second server that never answers, and whose start lasts longer than any test.
fn silent_beside() -> String {
    format!(
        "[[tools.server]]\nname = \"silent\"\ncommand = \"python3\"\nargs = [{:?}, \"--silent\"]\nstart_timeout_ms = 600000\n",
        script().display()
    )
}

#[test]
fn what_is_wrong_with_a_server_is_said_in_plain_words_and_by_each_door() {
    let more = "[[tools.server]]\nname = \"far\"\nurl = \"http://127.0.0.1:1/mcp\"\n";
    let place = Place::new("", "", more);
    let mut server = place.serve();
    let code = "import tools\ntry:\n    tools.call('far.echo', {})\nexcept tools.ToolError as error:\n    print(error.kind, error)";
    let result =
        server.call(json!({"code": code, "language": "python", "tools": ["kit.add", "kit.add"]}), json!({}));
    let (out, text) = (stdout(&result), result.to_string());
    assert!(out.starts_with("unavailable the tool server far is not available: "), "{out}");
    assert!(out.contains("refused") && !text.contains("::") && !text.contains("127.0.0.1:1"), "{text}");
    assert_eq!(text.matches("kit.add(*, a").count(), 2, "once in the text, once as data: {text}");
    for name in ["far.echo", "kit.nothing_like_it"] {
        let said = place.command().args(["tools", "call", name]).output().unwrap();
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        let is_down = said.contains("the tool server far is not available");
        assert_eq!(
            (is_down, said.contains("there is no tool")),
            (name == "far.echo", name != "far.echo"),
            "{said}"
        );
    }
}

#[test]
fn a_run_waits_for_the_servers_that_it_names_and_no_other() {
    let place = Place::new("", "", &silent_beside());
    let mut server = place.serve();
    for (language, code) in [
        ("python", "from tools import kit\nprint(kit.add(a=2, b=3)['sum'])"),
        ("javascript", "import { kit } from 'tools';\nconsole.log((await kit.add({a: 2, b: 3})).sum)"),
        ("bash", "tools call kit.add '{\"a\": 2, \"b\": 3}' | jq .sum"),
    ] {
        let result = run(&mut server, language, code);
        assert_eq!(stdout(&result).trim(), "5", "{language}: {result:#}");
    }
    let code = "import tools\ntry:\n    tools.call('sil' + 'ent.echo', {'value': 1})\nexcept tools.ToolError as error:\n    print(error.kind, error)\nprint(kit.add(a=1, b=1))";
    let result = server.call(json!({"code": code, "language": "python", "tools": ["kit"]}), json!({}));
    let out = stdout(&result);
    assert!(
        out.starts_with("unavailable the tool server silent is not available: it is not started"),
        "{out}"
    );
    assert!(out.ends_with("{'sum': 2}\n"), "{out}");
    let command = |args: &[&str]| place.command().arg("tools").args(args).output().unwrap();
    let called = command(&["call", "kit.add", "{\"a\": 1, \"b\": 1}"]);
    assert!(String::from_utf8_lossy(&called.stdout).contains("sum"), "{called:?}");
    assert!(command(&["ls", "kit"]).status.success() && command(&["accept", "kit"]).status.success());
}

#[test]
fn a_server_gets_a_clean_environment_and_ends_with_pathbox() {
    let place = Place::new("", "", "");
    let mut server = Server::start_with(place.command().arg("serve").env("A_SECRET_OF_OURS", "x"));
    let names = stdout(&run(&mut server, "python", "from tools import kit\nprint(' '.join(kit.env()))"));
    assert!(names.contains("PATH") && names.contains("KEY"), "{names}");
    assert!(!names.contains("A_SECRET_OF_OURS") && !names.contains("PATHBOX"), "{names}");
    let pid = place.log().iter().find_map(|entry| entry["started"].as_u64()).unwrap();
    drop(server);
    until(|| !crate::support::server::alive(u32::try_from(pid).unwrap()));
}

#[test]
fn a_changed_list_is_seen_in_the_next_run() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    run(&mut server, "python", "from tools import kit\nkit.change()");
    assert_eq!(
        stdout(&run(&mut server, "python", "print(kit.added_later())")),
        "called added_later with {}\n"
    );
}

#[test]
fn a_destructive_tool_is_refused_for_a_client_that_cannot_ask_and_the_refusal_says_how_to_allow_it() {
    let place = Place::new("", "confirm = [\"send_*\"]", "");
    let mut server = place.serve();
    let code = "import tools\nfrom tools import kit\nfor call in (lambda: kit.delete_everything(repo='a/b'), lambda: kit.send_mail(to='somebody')):\n    \
                try:\n        call()\n    except tools.ToolError as error:\n        print(error.kind, error)";
    let out = stdout(&run(&mut server, "python", code));
    assert_eq!(out.matches("not_confirmed").count(), 2, "{out}");
    for how in [
        "this client cannot ask",
        "remove it from `confirm` of [[tools.server]] \"kit\"",
        "kit declares itself destructive",
    ] {
        assert!(out.contains(how), "{how}: {out}");
    }
    assert!(place.calls("delete_everything").is_empty() && place.calls("send_mail").is_empty());
    let refused = place
        .command()
        .args(["tools", "call", "kit.delete_everything", "{\"repo\": \"a\"}"])
        .output()
        .unwrap();
    assert!(!refused.status.success(), "the command line has the same point of decision");
}

/// A server whose client can ask its person, over the older protocol.
fn asking(place: &Place) -> Server {
    asking_with(place.command().arg("serve"))
}

fn asking_with(command: &mut std::process::Command) -> Server {
    let mut server = Server::raw(command);
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": {"name": "test", "version": "0"}});
    server.request("initialize", hello);
    server.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    server
}

/// Runs code, and answers each question with the next of `says`. Gives the result, and what was asked.
fn run_answering(server: &mut Server, code: &str, says: &[Value]) -> (Value, Vec<Value>) {
    call_answering(server, "run_code", json!({"code": code, "language": "python"}), says)
}

fn call_answering(server: &mut Server, tool: &str, arguments: Value, says: &[Value]) -> (Value, Vec<Value>) {
    let id = server.begin("tools/call", json!({"name": tool, "arguments": arguments}));
    let mut asked = Vec::new();
    loop {
        let message = server.next(std::time::Duration::from_secs(300)).expect("an answer");
        if message["method"] == "elicitation/create" {
            let said = says[asked.len()].clone();
            server.send(&json!({"jsonrpc": "2.0", "id": message["id"], "result": said}));
            asked.push(message["params"].clone());
        } else if message["id"] == id {
            return (message["result"].clone(), asked);
        }
    }
}

#[test]
fn a_person_is_asked_and_a_yes_holds_as_long_as_they_say() {
    let place = Place::new("", "", "");
    let mut server = asking(&place);
    let yes = |remember: &str| json!({"action": "accept", "content": {"allow": true, "remember": remember}});
    let twice = "import tools\nfrom tools import kit\nfor n in range(2):\n    try:\n        print(kit.delete_everything(repo='a/b'))\n    except tools.ToolError as error:\n        print(error.kind)";
    let (result, asked) =
        run_answering(&mut server, twice, &[json!({"action": "decline"}), yes("this call")]);
    assert_eq!((stdout(&result).as_str(), asked.len()), ("not_confirmed\ndeleted a/b\n", 2));
    let text = asked[0]["message"].as_str().unwrap();
    assert!(text.contains("delete_everything") && text.contains("kit") && text.contains("a/b"), "{text}");
    let (result, asked) = run_answering(&mut server, twice, &[yes("this run")]);
    assert_eq!((stdout(&result).as_str(), asked.len()), ("deleted a/b\ndeleted a/b\n", 1));
    let (_, asked) = run_answering(&mut server, twice, &[yes("this conversation")]);
    assert_eq!(asked.len(), 1, "the yes for the run before is over");
    let (result, asked) = run_answering(&mut server, twice, &[]);
    assert_eq!((stdout(&result).as_str(), asked.len()), ("deleted a/b\ndeleted a/b\n", 0));
}

#[test]
fn in_the_newer_protocol_the_result_asks_and_the_run_waits_for_the_next_call() {
    let place = Place::new("", "", "");
    let mut server = Server::raw(place.command().arg("serve"));
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}});
    let code = "import tools\nfrom tools import kit\nbefore = 41\ntry:\n    print(kit.delete_everything(repo='a/b'), before + 1)\nexcept tools.ToolError as error:\n    print(error.kind)";
    let arguments = json!({"code": code, "language": "python"});
    let mut ask = |more: Value| {
        let mut params = json!({"name": "run_code", "arguments": arguments, "_meta": meta});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.request("tools/call", params)["result"].clone()
    };
    let first = ask(json!({}));
    assert_eq!(first["resultType"], "input_required", "{first:#}");
    assert!(
        first["inputRequests"]["confirm"]["params"]["message"]
            .as_str()
            .unwrap()
            .contains("delete_everything"),
        "{first:#}"
    );
    let yes = json!({"confirm": {"action": "accept", "content": {"allow": true}}});
    let forged = ask(json!({"requestState": "0".repeat(32), "inputResponses": yes}));
    assert_eq!(forged["isError"], true, "{forged:#}");
    let second = ask(json!({"requestState": first["requestState"], "inputResponses": yes}));
    assert_eq!(stdout(&second), "deleted a/b 42\n");
    let again = ask(json!({"requestState": first["requestState"], "inputResponses": yes}));
    assert_eq!(again["isError"], true, "an answer counts once: {again:#}");
    assert_eq!(place.calls("delete_everything").len(), 1);
}

#[test]
fn a_call_that_another_one_answers_for_is_cancelled_and_one_that_is_refused_begins_no_run() {
    let place = Place::new("", "", "");
    let mut server = Server::raw(place.command().arg("serve"));
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}});
    let mut ask = |tool: &str, arguments: &Value, more: Value, patience: Value| {
        let mut params = json!({"name": tool, "arguments": arguments, "_meta": meta});
        params["_meta"]["dev.pathbox/patienceMs"] = patience;
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.request("tools/call", params)["result"].clone()
    };
    let arguments =
        json!({"code": "from tools import kit\nkit.delete_everything(repo='a/b')", "language": "python"});
    let refused = ask("run_code", &arguments, json!({}), json!("soon"));
    assert!(refused["content"][0]["text"].as_str().unwrap().contains("patienceMs"), "{refused:#}");
    let yes = json!({"confirm": {"action": "accept", "content": {"allow": true}}});
    let asked = ask("run_code", &arguments, json!({}), Value::Null);
    let answer = json!({"requestState": asked["requestState"], "inputResponses": yes});
    // A call that is refused before it is read leaves the other as it is; one with other arguments ends it.
    let refused = ask("run_code", &arguments, answer.clone(), json!("soon"));
    assert!(refused["content"][0]["text"].as_str().unwrap().contains("patienceMs"), "{refused:#}");
    let other = ask("run_code", &json!({"code": "1", "language": "python"}), answer.clone(), Value::Null);
    assert!(other["content"][0]["text"].as_str().unwrap().contains("that call was cancelled"), "{other:#}");
    let late = ask("run_code", &arguments, answer, Value::Null);
    assert_eq!(late["_meta"]["dev.pathbox/error"]["code"], "not_found", "{late:#}");
    let statuses = || {
        let listed = place.command().args(["executions", "ls", "--json"]).output().unwrap();
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap_or_else(|_| panic!("{listed:?}"));
        let rows = listed.as_array().unwrap().iter();
        rows.map(|row| row["status"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    until(|| statuses() == ["cancelled"]);
    assert!(place.calls("delete_everything").is_empty());
}

/// A workflow with a task that calls a tool that asks, waiting for its approval.
fn asking_workflow(server: &mut Server) -> Value {
    let tasks = json!([
        {"id": "name", "type": "code_execution", "code": "print('b')"},
        {"id": "wipe", "type": "mcp_tool", "tool": "kit.delete_everything", "inputs": {"repo": {"from": "name"}}},
    ]);
    let shown = crate::workflows::run(server, json!({"tasks": tasks}));
    assert_eq!(shown["status"], "waiting", "{shown:#}");
    let reason = &crate::workflows::state(&shown, "wipe")["reason"];
    assert_eq!(reason, "kit.delete_everything needs a person's confirmation: approve this task");
    shown["workflowId"].clone()
}

#[test]
fn a_task_whose_tool_asks_waits_for_approval_and_its_approval_asks_the_person() {
    let place = Place::new("", "", "");
    let on = |place: &Place| {
        let mut command = place.command();
        command.env("PATHBOX_WORKFLOWS_ENABLED", "true").arg("serve");
        command
    };
    let mut server = asking_with(&mut on(&place));
    let id = asking_workflow(&mut server);
    let approve = json!({"workflow_id": id, "action": "approve", "task": "wipe"});
    let yes = json!({"action": "accept", "content": {"allow": true}});
    let (refused, asked) =
        call_answering(&mut server, "control_workflow", approve.clone(), &[json!({"action": "decline"})]);
    assert_eq!(refused["_meta"]["dev.pathbox/error"]["code"], "forbidden", "{refused:#}");
    let text = asked[0]["message"].as_str().unwrap();
    assert!(text.starts_with("A task of a workflow wants to call the tool delete_everything"), "{text}");
    assert!(text.contains(r#"{"repo":"b"}"#), "what earlier tasks gave is shown: {text}");
    assert!(place.calls("delete_everything").is_empty());
    let (approved, asked) =
        call_answering(&mut server, "control_workflow", approve, std::slice::from_ref(&yes));
    assert_eq!((asked.len(), &approved["isError"]), (1, &Value::Null), "{approved:#}");
    let shown = crate::workflows::settle(&mut server, id.as_str().unwrap());
    assert_eq!(shown["results"]["wipe"], "deleted b", "{shown:#}");
    drop(server);

    // A client that cannot ask approves nothing that asks.
    let mut server = Server::start_with(&mut on(&place));
    let id = asking_workflow(&mut server);
    let approve = json!({"workflow_id": id, "action": "approve", "task": "wipe"});
    let refused = crate::workflows::call(&mut server, "control_workflow", approve.clone());
    let text = refused["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("this client cannot ask") && text.contains("/v1/workflows/{id}/control"), "{text}");
    drop(server);

    // In the newer protocol the result asks.
    let mut server = Server::raw(&mut on(&place));
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}});
    let mut ask = |tool: &str, arguments: &Value, more: Value| {
        let mut params = json!({"name": tool, "arguments": arguments, "_meta": meta});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.request("tools/call", params)["result"].clone()
    };
    let first = ask("control_workflow", &approve, json!({}));
    assert_eq!(first["resultType"], "input_required", "{first:#}");
    let answer = json!({"requestState": first["requestState"], "inputResponses": {"confirm": yes}});
    // The tool is part of a call, as its arguments are.
    let stolen = ask("run_code", &approve, answer.clone());
    let text = stolen["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("another call (control_workflow") && text.contains("cancelled"), "{stolen:#}");
    let first = ask("control_workflow", &approve, json!({}));
    let answer = json!({"requestState": first["requestState"], "inputResponses": {"confirm": yes}});
    let second = ask("control_workflow", &approve, answer);
    assert_eq!(second["isError"], Value::Null, "{second:#}");
    let wait = json!({"workflow_id": id, "wait_ms": 50_000});
    assert_eq!(ask("get_workflow", &wait, json!({}))["structuredContent"]["results"]["wipe"], "deleted b");
    assert_eq!(place.calls("delete_everything").len(), 2);
}

#[test]
fn another_secret_and_an_earlier_runs_leftovers_are_refused() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    let first = "import os, threading, tools\nfrom tools import kit\nkept = os.environ['PATHBOX_TOOLS']\nseen, stop, started = [], threading.Event(), threading.Event()\n\
                 def later():\n    kit.echo(value='mine')\n    started.set()\n    stop.wait()\n    try:\n        seen.append(kit.echo(value='from an earlier run'))\n    \
                 except tools.ToolError as error:\n        seen.append(str(error))\n\
                 worker = threading.Thread(target=later)\nworker.start()\nok = started.wait()";
    stdout(&run(&mut server, "python", first));
    let second = "import tools\nstop.set()\nworker.join()\nprint(seen)\nlink = tools._link(os.environ['PATHBOX_TOOLS'].split('|')[0])\n\
                  for secret in ('0' * 32, kept.split('|')[1]):\n    try:\n        tools._value(link.wait(link.begin(secret, {'tool': 'kit.echo', 'arguments': {'value': 'forged'}})), 'kit.echo')\n    \
                  except tools.ToolError as error:\n        print(error)\nprint(kit.echo(value='mine')['value'])";
    let out = stdout(&run(&mut server, "python", second));
    assert_eq!(out.matches("has ended").count(), 3, "{out}");
    assert!(out.ends_with("mine\n"), "{out}");
    let values: Vec<Value> =
        place.calls("echo").iter().map(|call| call["arguments"]["value"].clone()).collect();
    assert_eq!(values, [json!("mine"), json!("mine")]);
}

#[test]
fn lines_forged_into_the_relays_pipe_reach_no_tool_and_the_relay_goes_on() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    let code = "import os\nfrom tools import kit\nkit.echo(value=1)\nhome = os.environ['PATHBOX_TOOLS'].split('|')[0]\npipe = os.open(home + '/calls', os.O_WRONLY)\n\
                for line in (b'! taken p 1 99999999999\\n', b'! gone p\\n', b'! ready {}\\n', b'a b c d\\n', b'\\xff\\xfe\\n', b'x' * 3000 + b'\\n', b' \\n',\n             \
                b'0' * 32 + b' ../../x 1 .{\"tool\":\"kit.echo\",\"arguments\":{\"value\":\"forged\"}}\\n'):\n    os.write(pipe, line)\nprint(kit.echo(value=2)['value'])";
    assert_eq!(stdout(&run(&mut server, "python", code)), "2\n");
    assert_eq!(place.calls("echo").len(), 2);
}

#[test]
fn a_program_that_reports_more_taken_than_was_sent_gets_its_answer_all_the_same() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    let code = "import os, select, tools\nfrom tools import kit\nhome, secret, _ = os.environ['PATHBOX_TOOLS'].split('|')\nlink = tools._link(home)\n\
                call = link.begin(secret, {'tool': 'kit.big', 'arguments': {'bytes': 3000000}})\nready = select.select([link.into], [], [])\n\
                sent = os.write(link.out, b'! taken %s %d 18446744073709551615\\n' % (link.name.encode(), call))\n\
                print(len(tools._value(link.wait(call), 'kit.big')))";
    assert_eq!(stdout(&run(&mut server, "python", code)), "3000000\n");
}

#[test]
fn calls_that_are_begun_and_never_ended_are_bounded_and_end_with_their_run() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    let code = "import os, tools\nfrom tools import kit\nhome, secret, _ = os.environ['PATHBOX_TOOLS'].split('|')\nlink = tools._link(home)\n\
                for call in range(1100):\n    link.write(('%s open %d +[\\n' % (secret, call)).encode())\n\
                try:\n    kit.echo(value=1)\nexcept tools.ToolError as error:\n    print(error.kind, error)";
    let out = stdout(&run(&mut server, "python", code));
    assert!(out.starts_with("refused too many calls at once"), "{out}");
    assert_eq!(stdout(&run(&mut server, "python", "print(kit.echo(value=2)['value'])")), "2\n");
}

#[test]
fn a_flood_of_calls_without_a_run_takes_no_memory_of_the_server() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    assert_eq!(
        stdout(&run(&mut server, "python", "from tools import kit\nprint(kit.echo(value=1)['value'])")),
        "1\n"
    );
    let pid = server.child.id();
    let before = memory(pid, "VmHWM");
    let code = "import os\npipe = os.open(os.environ['PATHBOX_TOOLS'].split('|')[0] + '/calls', os.O_WRONLY)\n\
                for _ in range(200):\n    sent = os.write(pipe, b'x p 1 .\\n' * 500)\nprint(kit.echo(value=2)['value'])";
    assert_eq!(stdout(&run(&mut server, "python", code)), "2\n");
    let more = memory(pid, "VmHWM") - before;
    assert!(more < 8 << 20, "{more} bytes more");
}

#[test]
fn a_server_of_another_tenant_is_not_there() {
    let more = format!(
        "[[tools.server]]\nname = \"theirs\"\ncommand = \"python3\"\nargs = [{:?}]\ntenants = [\"acme\"]\n",
        script().display().to_string()
    );
    let place = Place::new("", "deny = [\"add\"]", &more);
    let mut server = place.serve();
    let code = "import tools\nprint(dir(tools))\nfor name in ('theirs.echo', 'kit.add'):\n    try:\n        tools.call(name, {'value': 1})\n    except tools.ToolError as error:\n        print(error.kind)";
    assert_eq!(
        stdout(&run(&mut server, "python", code)),
        "['ToolError', 'call', 'kit', 'search']\nrefused\nrefused\n"
    );
    let listed = server.request("tools/list", json!({})).to_string();
    assert!(listed.contains("search_tools") && !listed.contains("theirs"), "{listed}");
    let found = server.request("tools/call", json!({"name": "search_tools", "arguments": {"query": "echo"}}));
    assert!(!found.to_string().contains("theirs."), "{found}");
}

#[test]
fn arguments_with_findings_of_the_guard_go_only_to_a_trusted_server() {
    let code = "import tools\nfrom tools import kit\ntry:\n    print(kit.send_mail(to='x', text='card 4111 1111 1111 1111, ' + kit.echo(value='ok')['value']))\n\
                except tools.ToolError as error:\n    print(error.kind, error)";
    let place = Place::new("", "", "");
    let out = stdout(&run(&mut place.serve(), "python", code));
    assert!(out.starts_with("refused") && out.contains("`trusted`"), "{out}");
    assert!(place.calls("send_mail").is_empty());
    let trusted = Place::new("", "trusted = true", "");
    assert_eq!(stdout(&run(&mut trusted.serve(), "python", code)), "sent\n");
    assert!(trusted.calls("send_mail")[0].to_string().contains("4111"));
}

#[test]
fn results_go_in_as_they_are_and_come_out_guarded() {
    let place = Place::new("", "trusted = true", "");
    let mut server = place.serve();
    let code = "from tools import kit\nmail = kit.echo(value='write to ada@lovelace.example')['value']\nprint('@' in mail, mail)";
    let result = run(&mut server, "python", code);
    let out = stdout(&result);
    assert!(
        out.starts_with("True write to [EMAIL_") && !result.to_string().contains("lovelace"),
        "{result:#}"
    );
}

#[test]
fn a_pinned_server_whose_tools_change_has_to_be_accepted() {
    let place = Place::new("", "pinned = true", "");
    let ask = |args: &[&str]| {
        let done = place.command().args(args).output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    assert!(ask(&["tools", "check"]).0, "the first list is taken");
    let settings = std::fs::read_to_string(place.path("pathbox.toml")).unwrap();
    std::fs::write(place.path("pathbox.toml"), settings.replace("server.py\"", "server.py\", \"--changed\""))
        .unwrap();
    let (is_well, text) = ask(&["tools", "check"]);
    assert!(
        !is_well
            && text.contains("kit.echo is changed, blocked")
            && text.contains("kit.newcomer is new, blocked"),
        "{text}"
    );
    let code =
        "import tools\nprint(len([1 for name in ('echo', 'newcomer', 'add') if name in dir(tools.kit)]))";
    assert_eq!(stdout(&run(&mut place.serve(), "python", code)), "1\n");
    assert!(ask(&["tools", "accept", "kit"]).0 && ask(&["tools", "check"]).0);
    assert_eq!(stdout(&run(&mut place.serve(), "python", code)), "3\n");
}

/// Two processes over one data directory are two replicas.
#[test]
fn accepted_tools_are_accepted_on_every_replica_without_a_restart() {
    let marks = tempfile::tempdir().unwrap();
    let changes = marks.path().join("changed");
    let place = Place::new(&format!("--changed-if {}", changes.display()), "pinned = true", "");
    let see = "import tools\nprint([name for name in ('echo', 'newcomer', 'add') if name in dir(tools.kit)])";
    let (all, left) = ("['echo', 'newcomer', 'add']\n", "['add']\n");
    let mut first = place.serve();
    assert_eq!(stdout(&run(&mut first, "python", see)), "['echo', 'add']\n", "the first list is taken");
    std::fs::write(&changes, "").unwrap();
    let mut second = place.serve();
    assert_eq!(stdout(&run(&mut second, "python", see)), left, "the other replica's first list is the same");
    let accepted = place.command().args(["tools", "accept", "kit"]).output().unwrap();
    assert!(accepted.status.success(), "{accepted:?}");
    assert_eq!(stdout(&run(&mut second, "python", see)), all, "from the next run on");
    assert_eq!(
        stdout(&run(&mut first, "python", see)),
        left,
        "which still has the old list: not what was accepted"
    );
}

#[test]
fn a_yes_for_the_conversation_holds_on_the_other_replica_and_after_a_restart() {
    let place = Place::new("", "", "");
    let start = || asking_with(place.command().args(["serve", "--conversation", "shared"]));
    let code = "import tools\nfrom tools import kit\nprint(kit.delete_everything(repo='a/b'))";
    let yes = json!({"action": "accept", "content": {"allow": true, "remember": "this conversation"}});
    let (mut first, mut second) = (start(), start());
    let (result, asked) = run_answering(&mut first, code, &[yes]);
    assert_eq!((stdout(&result).as_str(), asked.len()), ("deleted a/b\n", 1));
    let (result, asked) = run_answering(&mut second, code, &[]);
    assert_eq!((stdout(&result).as_str(), asked.len()), ("deleted a/b\n", 0), "on the other replica");
    drop((first, second));
    let (result, asked) = run_answering(&mut start(), code, &[]);
    assert_eq!((stdout(&result).as_str(), asked.len()), ("deleted a/b\n", 0), "after a restart");
    let mut elsewhere = asking_with(place.command().args(["serve", "--conversation", "another"]));
    let (_, asked) = run_answering(&mut elsewhere, code, &[json!({"action": "decline"})]);
    assert_eq!(asked.len(), 1, "in another conversation it is asked");
}

#[test]
fn a_server_that_ends_after_a_tool_call_warns_of_nothing() {
    let place = Place::new("", "", "");
    let log = place.path("stderr");
    let mut command = place.command();
    command.arg("serve").stderr(std::fs::File::create(&log).unwrap());
    let mut server = Server::start_with(&mut command);
    let code = "from tools import kit\nprint(kit.add(a=2, b=3)['sum'])";
    assert_eq!(stdout(&run(&mut server, "python", code)), "5\n");
    server.close_stdin();
    assert!(server.wait(std::time::Duration::from_secs(120)).is_some_and(|status| status.success()));
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(!said.contains("WARN") && !said.contains("ERROR"), "{said}");
}

#[test]
fn a_run_may_call_two_hundred_times() {
    let place = Place::new("", "", "");
    let code = "import tools\nfrom tools import kit\nfor n in range(205):\n    try:\n        kit.add(a=n, b=1)\n    except tools.ToolError as error:\n        print(n, error)\n        break";
    let result = run(&mut place.serve(), "python", code);
    assert!(stdout(&result).starts_with("200 a run may call tools 200 times"), "{result:#}");
}

#[test]
fn ten_thousand_tools_are_searched_and_called() {
    let place = Place::new("--many 10000", "", "");
    let mut server = place.serve();
    let found = server.request(
        "tools/call",
        json!({"name": "search_tools", "arguments": {"query": "thing number 7777 of many", "limit": 3}}),
    );
    assert_eq!(found["result"]["structuredContent"]["tools"][0]["tool"], "kit.made_7777_tool", "{found}");
    let code = "import tools\nfrom tools import kit\nprint(len(dir(kit)), kit.made_42_tool(x42='a'), tools.search('commits of a repository')[0]['tool'])";
    let result = server.call(
        json!({"code": code, "language": "python", "tools": {"intent": "commits of a repository", "limit": 2}}), json!({}),
    );
    assert_eq!(stdout(&result), "10022 called made_42_tool with {\"x42\": \"a\"} kit.commits\n");
    let signature = output(&result)["tools"][0].as_str().unwrap();
    assert!(signature.starts_with("kit.commits(*, repo: str, count: int = ...) -> Any"), "{signature}");
}

#[test]
fn data_is_a_value_in_every_language() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path());
    let nasty = json!({"text": "'''\"\"\" ${HOME} `id` \\ \n é 😀 \u{2028}", "n": 12345678901234567890_u64, "list": [1, null, true], "__proto__": {"a": 1}});
    for (language, code, expected) in [
        (
            "python",
            "print(data['n'], data['list'], len(data['text']), list(data))",
            "12345678901234567890 [1, None, True] 29 ['text', 'n', 'list', '__proto__']\n",
        ),
        (
            "javascript",
            "console.log(JSON.stringify(data.list), data.text.length, Object.keys(data).join())",
            "[1,null,true] 30 text,n,list,__proto__\n",
        ),
        (
            "typescript",
            "const found: number[] = data.list; console.log(JSON.stringify(found), data.text.length)",
            "[1,null,true] 30\n",
        ),
        ("bash", "jq -c .list <<< \"$data\"; jq -r '.text | length' <<< \"$data\"", "[1,null,true]\n29\n"),
    ] {
        for _ in 0..2 {
            let result = server.call(json!({"code": code, "language": language, "data": nasty}), json!({}));
            assert_eq!(stdout(&result), expected, "{language}");
        }
    }
    let large = json!("x".repeat(5_000_000));
    let result =
        server.call(json!({"code": "print(len(data))", "language": "python", "data": large}), json!({}));
    assert_eq!(stdout(&result), "5000000\n");
    let larger = json!("x".repeat(6_000_000));
    let refused = server.request(
        "tools/call",
        json!({"name": "run_code", "arguments": {"code": "1", "language": "python", "data": larger}}),
    );
    assert_eq!(refused["result"]["isError"], true, "{refused}");
}

/// What code mode is for: a thousand commits go into the sandbox, and a few lines come out.
#[test]
fn a_thousand_commits_go_in_and_a_few_hundred_bytes_come_out() {
    let place = Place::new("", "", "");
    let mut server = place.serve();
    let code = "from collections import Counter\nfrom tools import kit\ncommits = kit.commits(repo='octo/machine', count=1000)\n\
                fixes = [c for c in commits if c['message'].startswith('Fix')]\nprint(len(commits), len(fixes), Counter(c['author'] for c in fixes).most_common(2))";
    let result = run(&mut server, "python", code);
    assert_eq!(stdout(&result), "1000 100 [('ada', 50), ('edsger', 50)]\n");
    let in_bytes = output(&result)["toolCalls"][0]["bytes"].as_u64().unwrap();
    let out_bytes = result["content"][1]["text"].as_str().unwrap_or_default().len();
    println!("bytes into the sandbox: {in_bytes}, bytes of output to the model: {out_bytes}");
    assert!(in_bytes > 1_000_000 && out_bytes < 500, "{in_bytes} {out_bytes}");
}

#[test]
fn the_same_in_the_tier_without_namespaces() {
    let place = Place::new("", "", "[host]\nisolation = \"landlock\"\n");
    let mut server = place.serve();
    for (language, code) in [
        ("python", "from tools import kit\nprint(kit.add(a=2, b=3)['sum'])"),
        ("javascript", "import { kit } from 'tools';\nconsole.log((await kit.add({a: 2, b: 3})).sum)"),
        ("bash", "tools call kit.add '{\"a\": 2, \"b\": 3}' | jq .sum"),
    ] {
        assert_eq!(stdout(&run(&mut server, language, code)).trim(), "5", "{language}");
    }
}

/// A sandbox host in another process.
pub(crate) struct Host {
    pub(crate) url: String,
    child: std::process::Child,
    _data: tempfile::TempDir,
}

impl Host {
    pub(crate) fn start() -> Self {
        use std::io::BufRead;
        let data = tempfile::tempdir().unwrap();
        let mut child = command(data.path())
            .args(["host", "--listen", "127.0.0.1:0", "--api-key", "e2b_0123456789"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().rsplit_once("E2B_SANDBOX_URL=").unwrap().1.to_owned();
        Self { url, child, _data: data }
    }

    /// Settings of a server that reaches it at this address, as E2B is reached.
    pub(crate) fn settings(&self, url: &str) -> String {
        format!("[e2b]\napi_key = \"e2b_0123456789\"\napi_url = {url:?}\nsandbox_url = {url:?}\n")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A sandbox host in another process, reached as E2B is.
#[test]
fn the_same_through_a_provider_of_e2bs_protocol() {
    let host = Host::start();
    let place = Place::new("", "", &host.settings(&host.url));
    let mut server = place.serve();
    let code = "from tools import kit\nprint(kit.add(a=2, b=data['b'])['sum'])";
    let result = server.call(json!({"code": code, "language": "python", "data": {"b": 3}}), json!({}));
    assert_eq!(stdout(&result), "5\n");
}

/// An OpenAI-compatible endpoint for which a text about history is near to one about commits. Gives its base URL.
fn embeddings() -> String {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut read = Vec::new();
                let mut piece = [0; 4096];
                loop {
                    let text = String::from_utf8_lossy(&read).into_owned();
                    let body = text
                        .split_once("\r\n\r\n")
                        .map(|(head, body)| (head.to_lowercase(), body.to_owned()));
                    let whole = body.filter(|(head, body)| {
                        let length = head
                            .split("content-length: ")
                            .nth(1)
                            .and_then(|rest| rest.lines().next()?.parse::<usize>().ok());
                        length.is_some_and(|length| body.len() >= length)
                    });
                    if let Some((head, body)) = whole {
                        assert!(
                            head.starts_with("post /v1/embeddings")
                                && head.contains("authorization: bearer k-123456"),
                            "{head}"
                        );
                        let asked: Value = serde_json::from_str(&body).unwrap();
                        let rows: Vec<Value> = asked["input"].as_array().unwrap().iter().enumerate().map(|(index, text)| {
                            let text = text.as_str().unwrap();
                            let is_near = text.contains("Commits of a repository") || text.contains("chronicle");
                            json!({"index": index, "embedding": if is_near { [2.0, 0.0] } else { [0.0, 3.0] }})
                        }).collect();
                        let answer = json!({"data": rows}).to_string();
                        let head = format!(
                            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                            answer.len()
                        );
                        let _ = stream.write_all((head + &answer).as_bytes());
                        return;
                    }
                    match stream.read(&mut piece) {
                        Ok(0) | Err(_) => return,
                        Ok(n) => read.extend_from_slice(&piece[..n]),
                    }
                }
            });
        }
    });
    url
}

#[test]
fn vectors_of_an_endpoint_are_fused_with_words_and_its_failure_leaves_words_alone() {
    let more = |url: &str| format!("[tools]\nembeddings_url = {url:?}\nembeddings_key = \"k-123456\"\n");
    let first = |server: &mut Server| {
        let found = server.request(
            "tools/call",
            json!({"name": "search_tools", "arguments": {"query": "chronicle", "limit": 1}}),
        );
        found["result"]["structuredContent"]["tools"][0]["tool"].clone()
    };
    let dir = Place::new("", "", "");
    let settings = std::fs::read_to_string(dir.path("pathbox.toml")).unwrap();
    let write =
        |url: &str| std::fs::write(dir.path("pathbox.toml"), format!("{}{settings}", more(url))).unwrap();
    write(&embeddings());
    let mut server = dir.serve();
    until(|| first(&mut server) == "kit.commits");
    write("http://127.0.0.1:9/v1");
    let mut server = dir.serve();
    let found = server.request(
        "tools/call",
        json!({"name": "search_tools", "arguments": {"query": "commits of a repository", "limit": 1}}),
    );
    assert_eq!(found["result"]["structuredContent"]["tools"][0]["tool"], "kit.commits", "{found}");
}

/// Servers of others, as their registries have them. `scripts/test` installs them.
#[test]
#[ignore = "needs what scripts/test installs"]
fn third_party_servers_are_listed_and_called_from_one_program() {
    let env = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-env");
    let js = env.join("tool-servers-js/node_modules/@modelcontextprotocol");
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("files");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("notes.txt"), "from a file").unwrap();
    let more = format!(
        "[[tools.server]]\nname = \"everything\"\ncommand = \"node\"\nargs = [{:?}, \"stdio\"]\n\
         [[tools.server]]\nname = \"files\"\ncommand = \"node\"\nargs = [{:?}, {:?}]\n\
         [[tools.server]]\nname = \"time\"\ncommand = {:?}\n",
        js.join("server-everything/dist/index.js").display().to_string(),
        js.join("server-filesystem/dist/index.js").display().to_string(),
        files.display().to_string(),
        env.join("tool-servers-py/bin/mcp-server-time").display().to_string(),
    );
    let place = Place::new("", "", &more);
    let checked = place.command().args(["tools", "check"]).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let mut server = place.serve();
    let python = "import tools\nfrom tools import everything, files, time\nprint(everything.echo(message='hello'))\nprint(everything.get_sum(a=2, b=3))\n\
                  print(files.read_text_file(path='FILE'))\nprint(sorted(time.get_current_time(timezone='UTC'))[:2])\n\
                  try:\n    files.read_text_file(path='/etc/passwd')\nexcept tools.ToolError as error:\n    print(error.kind)\nprint('PATHBOX' in str(everything.get_env()))";
    let python = python.replace("FILE", &files.join("notes.txt").display().to_string());
    let out = stdout(&run(&mut server, "python", &python));
    assert!(out.contains("Echo: hello") && out.contains('5') && out.contains("from a file"), "{out}");
    assert!(out.ends_with("tool\nFalse\n"), "{out}");
}

/// Waits for something that another process does.
pub(crate) fn until(mut happened: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while !happened() {
        assert!(std::time::Instant::now() < end, "it did not happen");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
