//! Two principals of one tenant, each trying every tool, every resource and every route on the other's things.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::http::HttpServer;
use crate::support::server::command;

/// A text in everything that is Ann's. No one else may read it anywhere.
const SECRET: &str = "ann7291secret";

/// An API key of a tenant: its id and the header that sends it.
fn key(data: &Path, arguments: &[&str]) -> (String, String) {
    let output = command(data).args(["keys", "add", "--json"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made: Value = serde_json::from_slice(&output.stdout).unwrap();
    (made["id"].as_str().unwrap().to_owned(), format!("Bearer {}", made["key"].as_str().unwrap()))
}

struct World {
    server: HttpServer,
    ann: String,
    bob: String,
    bob_id: String,
    service: String,
    data: tempfile::TempDir,
}

/// A server on a data directory, which others may serve too.
fn replica(data: &Path, settings: &[(&str, &str)]) -> HttpServer {
    let mut command = command(data);
    command.env("PATHBOX_HTTP_AUTH", "required").env("CRON_SECRET", "a-secret-for-the-scheduler");
    command.envs(settings.iter().copied());
    HttpServer::start_with(&mut command)
}

impl World {
    fn start(settings: &[(&str, &str)]) -> Self {
        let data = tempfile::tempdir().unwrap();
        let user = ["--tenant", "acme", "--scopes", "run,read,paths,reveal"];
        let (_, ann) = key(data.path(), &[&["--name", "ann"], &user[..]].concat());
        let (bob_id, bob) = key(data.path(), &[&["--name", "bob"], &user[..]].concat());
        let (_, service) = key(data.path(), &["--name", "router", "--tenants", "acme"]);
        let server = replica(data.path(), settings);
        Self { server, ann, bob, bob_id, service, data }
    }

    fn call(&self, who: &str, tool: &str, arguments: Value, meta: Value) -> Value {
        let headers = [("Authorization", who), ("X-Tenant-Id", "acme")];
        let mut reply = self.server.stateless(&headers, tool, arguments, meta);
        assert_eq!(reply.status, 200, "{tool}");
        reply.answer()
    }

    fn python(&self, who: &str, code: &str, meta: Value) -> Value {
        self.call(who, "run_code", json!({"code": code, "language": "python"}), meta)["result"]
            ["structuredContent"]
            .take()
    }

    fn route(&self, who: &str, method: &str, path: &str, body: &Value) -> (u16, String) {
        let headers = [("Authorization", who), ("Content-Type", "application/json")];
        let mut reply = self.server.send(method, path, &headers, body.to_string().as_bytes());
        let said = reply.text();
        (reply.status, said)
    }

    fn rpc(&self, who: &str, method: &str, params: Value) -> Value {
        let mut session = self.server.session(&[("Authorization", who)]);
        session.request(method, params)
    }
}

fn chat() -> Value {
    json!({"dev.pathbox/conversationId": "c"})
}

/// Names of what Ann has.
struct Hers {
    handle: String,
    execution: String,
    artifact: String,
    workflow: String,
}

fn hers(world: &World) -> Hers {
    let code = format!("x = '{SECRET}'\nprint('{SECRET} ' * 9000)\nx");
    let mut meta = chat();
    meta["dev.pathbox/idempotencyKey"] = json!("once");
    let ran = world.python(&world.ann, &code, meta);
    let file = json!({"action": "put", "path": format!("{SECRET}.txt"), "text": SECRET});
    let put = world.call(&world.ann, "files", file, chat());
    assert_ne!(put["result"]["isError"], true, "{put}");
    let at = "/v1/conversations/c/paths";
    let (status, said) = world.route(&world.ann, "POST", at, &json!({"path": SECRET}));
    assert_eq!(status, 201, "{said}");
    // A run on that path, so that what was used names it.
    let there = json!({"dev.pathbox/conversationId": "c", "dev.pathbox/pathId": SECRET});
    world.python(&world.ann, "1", there);
    let (status, said) = world.route(&world.ann, "GET", "/v1/usage?by=path", &json!({}));
    assert!(status == 200 && said.contains(SECRET), "{said}");
    let tasks = json!([{"id": "a", "type": "code_execution", "code": format!("print('{SECRET}')")}, drawn(),
        {"id": "b", "type": "code_execution", "code": "print(1)", "approve": true}]);
    let asked = json!({"tasks": tasks, "purpose": SECRET, "idempotency_key": "hers", "wait_ms": 50_000});
    let begun = world.call(&world.ann, "run_workflow", asked, chat());
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{ran}")).to_owned();
    Hers {
        handle: text(&ran["context"]),
        execution: text(&ran["executionId"]),
        artifact: text(&ran["artifacts"][0]["uri"]),
        workflow: text(&begun["result"]["structuredContent"]["workflowId"]),
    }
}

/// A task that says another value each time that it runs, and whose result is kept.
fn drawn() -> Value {
    let code = "import uuid\nprint('drawn', uuid.uuid4())";
    json!({"id": "drawn", "type": "code_execution", "language": "python", "code": code, "hermetic": true})
}

/// Each tool, with ways to name what is Ann's. A new tool without a row fails.
fn attempts(hers: &Hers) -> Vec<(&'static str, Vec<Value>)> {
    let (handle, execution, artifact) = (&hers.handle, &hers.execution, &hers.artifact);
    let analysis = |context: Option<&String>| {
        let mut arguments =
            json!({"analysis_type": "custom", "parameters": {"code": "result = globals().get('x')"}});
        if let Some(context) = context {
            arguments["context"] = json!(context);
        }
        arguments
    };
    let python = |code: &str| json!({"code": code, "language": "python"});
    let of = |mut arguments: Value| {
        arguments["context"] = json!(handle);
        arguments
    };
    vec![
        (
            "run_code",
            vec![
                python("print(globals().get('x'))\nimport os\nprint(os.listdir('.'))"),
                of(python("print(x)")),
                {
                    let mut same = python("1");
                    same["idempotency_key"] = json!("once");
                    same
                },
            ],
        ),
        ("run_analysis", vec![analysis(None), analysis(Some(handle))]),
        ("get_analysis_help", vec![json!({"analysis_type": "custom"})]),
        (
            "manage_context",
            ["show", "list", "reset", "end", "branch"]
                .into_iter()
                .flat_map(|action| [json!({"action": action}), json!({"action": action, "context": handle})])
                .collect(),
        ),
        (
            "get_execution",
            vec![
                json!({"execution_id": execution}),
                json!({"execution_id": execution, "stream": "stdout"}),
                json!({"execution_id": execution, "cancel": true}),
            ],
        ),
        (
            "files",
            vec![
                json!({"action": "list"}),
                json!({"action": "get", "path": format!("{}.txt", SECRET)}),
                json!({"action": "list", "context": handle}),
                json!({"action": "put", "path": "stolen", "from": artifact}),
            ],
        ),
        ("get_artifact", vec![json!({"uri": artifact})]),
        (
            "search_tools",
            vec![json!({"query": "hers"}), json!({"query": "add two numbers", "detail": "full"})],
        ),
        (
            "run_workflow",
            vec![
                json!({"tasks": [{"id": "a", "type": "code_execution", "code": "print(globals().get('x'))"}], "wait_ms": 50_000}),
                json!({"tasks": [{"id": "a", "type": "code_execution", "code": "print(1)"}], "idempotency_key": "hers", "wait_ms": 50_000}),
            ],
        ),
        (
            "get_workflow",
            vec![
                json!({}),
                json!({"workflow_id": hers.workflow, "events_after": 0}),
                json!({"workflow_id": hers.workflow, "task": "a"}),
            ],
        ),
        (
            "control_workflow",
            ["abort", "pause", "approve"]
                .map(|action| json!({"workflow_id": hers.workflow, "action": action, "task": "b"}))
                .into(),
        ),
    ]
}

/// The routes in the sources of `/v1`.
fn routes() -> BTreeSet<String> {
    let sources = [include_str!("../../src/http/v1.rs"), include_str!("../../src/http/v1/workflows.rs")];
    let of_line = |line: &str| {
        let path = line.split_once(".route(")?.1.split('"').nth(1)?;
        let path = path.replace("{{", "{").replace("}}", "}");
        Some(path.replace("{at}", "/v1/conversations/{conversation}"))
    };
    sources.into_iter().flat_map(str::lines).filter_map(of_line).collect()
}

#[test]
fn another_principal_of_the_tenant_reaches_nothing_by_any_tool_resource_or_route() {
    // With a tool server, for there are tools that only such a server brings.
    let kit = crate::code_mode::Place::new("", "", "");
    let config = kit.path("pathbox.toml");
    let world =
        World::start(&[("PATHBOX_WORKFLOWS_ENABLED", "true"), ("PATHBOX_CONFIG", config.to_str().unwrap())]);
    let hers = hers(&world);

    let tools = world.rpc(&world.bob, "tools/list", json!({}));
    let offered: BTreeSet<String> = tools["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect();
    let rows = attempts(&hers);
    let tried: BTreeSet<String> = rows.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(offered, tried, "each tool needs a row here");
    let without_echo = |answer: &Value, arguments: &Value| {
        // An error may repeat what the caller itself sent.
        let sent = arguments["path"].as_str().unwrap_or("nothing-sent").to_owned();
        answer.to_string().replace(&sent, "")
    };
    for (tool, calls) in &rows {
        for arguments in calls {
            let answer = world.call(&world.bob, tool, arguments.clone(), chat());
            let said = without_echo(&answer, arguments);
            assert!(!said.contains(SECRET), "{tool} {arguments}: {answer}");
        }
    }
    for (method, params) in [
        ("resources/list", json!({"_meta": chat()})),
        ("resources/read", json!({"uri": hers.artifact})),
        ("resources/read", json!({"uri": format!("pathbox://executions/{}/stdout", hers.execution)})),
    ] {
        let answer = world.rpc(&world.bob, method, params);
        assert!(!answer.to_string().contains(SECRET), "{method}: {answer}");
    }

    // What is kept of a task of hers is not the result of his.
    let his = json!({"tasks": [drawn()], "wait_ms": 50_000});
    let his = world.call(&world.bob, "run_workflow", his, chat())["result"]["structuredContent"]["results"]
        ["drawn"]
        .to_string();
    assert!(his.contains("drawn"), "{his}");
    let of_hers = json!({"workflow_id": hers.workflow});
    let shown = world.call(&world.ann, "get_workflow", of_hers, chat());
    let drawn = shown["result"]["structuredContent"]["results"]["drawn"].to_string();
    assert!(drawn.contains("drawn") && drawn != his, "{shown}");

    // Every route that the document names, which are all that there are: a new one is tried by itself.
    let (_, document) = world.route(&world.bob, "GET", "/v1/openapi.json", &json!({}));
    let document: Value = serde_json::from_str(&document).unwrap();
    let named: BTreeSet<String> = document["paths"].as_object().unwrap().keys().cloned().collect();
    let mut routes = routes();
    routes.remove("/v1/openapi.json");
    assert_eq!(named, routes, "the document has each route of src/http/v1 but itself");
    for by in ["path", "conversation", "day", "tenant"] {
        let (_, said) = world.route(&world.bob, "GET", &format!("/v1/usage?by={by}"), &json!({}));
        assert!(!said.contains(SECRET), "{said}");
    }
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in ["get", "put", "post", "delete"] {
            if operations.get(method).is_none() {
                continue;
            }
            let concrete = path
                .replace("{conversation}", "c")
                .replace("{workflow}", &hers.workflow)
                .replace("{path}", SECRET)
                .replace("{principal}", &format!("key:{}", world.bob_id));
            let body = match path.as_str() {
                path if path.ends_with("/branch") => json!({"path": "b"}),
                path if path.ends_with("/merge") => json!({"target": "main"}),
                path if path.ends_with("/paths") => json!({"path": "mine"}),
                path if path.ends_with("/files") => json!({"action": "download", "file": "hers.txt"}),
                "/v1/workflows" => json!({"conversation": "c", "tasks": []}),
                path if path.ends_with("/control") => json!({"action": "abort"}),
                "/v1/reveal" => json!({"token": "[EMAIL~aa]", "conversation": "c"}),
                _ => json!({}),
            };
            let (status, said) = world.route(&world.bob, &method.to_uppercase(), &concrete, &body);
            let said = said.replace(&format!("path {SECRET} is not registered"), "");
            assert!(!said.contains(SECRET), "{method} {path}: {status} {said}");
            // A path of that name is bob's own, as any path that he names, and nothing is in it.
            if method == "get" && path.ends_with("/files") {
                assert!(status == 200 && said.contains("\"entries\":[]"), "{said}");
            } else if concrete.contains(SECRET) || concrete.contains(&hers.workflow) {
                assert_eq!(status, 404, "{method} {path}: {said}");
            }
        }
    }

    // Nothing of hers has changed, and to her all of it is there.
    let mine = world.python(&world.ann, "x", chat());
    assert_eq!((&mine["output"], &mine["state"]), (&json!(SECRET), &json!("kept")), "{mine}");
    let run = world.call(&world.ann, "get_execution", json!({"execution_id": hers.execution}), chat());
    assert!(run.to_string().contains(SECRET), "{run}");
    let shown = world.call(&world.ann, "get_workflow", json!({"workflow_id": hers.workflow}), chat());
    let shown = &shown["result"]["structuredContent"];
    assert_eq!((&shown["status"], &shown["results"]["a"]), (&json!("waiting"), &json!(SECRET)), "{shown}");
    let page = world.rpc(&world.ann, "resources/read", json!({"uri": hers.artifact}));
    assert!(page.to_string().contains(SECRET), "{page}");
    let (status, said) =
        world.route(&world.ann, "GET", &format!("/v1/conversations/c/paths/{SECRET}"), &json!({}));
    assert_eq!(status, 200, "{said}");
    assert!(said.contains("\"active\""), "{said}");
}

/// The specimen: the refusal of a limit named the other's conversation, and naming it led into its sandbox.
#[test]
fn a_limit_names_only_the_callers_own_contexts_and_gives_no_access_to_others() {
    let world =
        World::start(&[("PATHBOX_CONTEXTS_PER_TENANT", "2"), ("PATHBOX_CONTEXTS_PER_CONVERSATION", "2")]);
    let at = |conversation: &str| json!({"dev.pathbox/conversationId": conversation});
    world.python(&world.ann, &format!("x = '{SECRET}'"), at("hers-one"));
    world.python(&world.bob, "1", at("his"));
    let answer =
        world.call(&world.bob, "run_code", json!({"code": "1", "language": "python"}), at("another"));
    let said = answer["result"].to_string();
    assert_eq!(answer["result"]["isError"], true, "{said}");
    assert!(said.contains("conversation his") && said.contains("1 of other callers"), "{said}");
    assert!(!said.contains("hers-one"), "{said}");
    let entered = world.python(&world.bob, "globals().get('x')", at("hers-one"));
    assert!(!entered.to_string().contains(SECRET), "{entered}");
}

#[test]
fn a_shared_conversation_is_entered_by_its_handle_for_as_long_as_it_is_shared() {
    let world = World::start(&[]);
    world.python(&world.ann, &format!("x = '{SECRET}'"), chat());
    let share = format!("/v1/conversations/c/shares/key:{}", world.bob_id);
    assert_eq!(world.route(&world.bob, "GET", "/v1/shared", &json!({})).1, r#"{"conversations":[]}"#);
    let (status, said) = world.route(&world.ann, "PUT", &share, &json!({}));
    assert_eq!((status, said), (200, format!("{{\"principals\":[\"key:{}\"]}}", world.bob_id)));

    let (_, shared) = world.route(&world.bob, "GET", "/v1/shared", &json!({}));
    let shared: Value = serde_json::from_str(&shared).unwrap();
    let handle =
        shared["conversations"][0]["context"].as_str().unwrap_or_else(|| panic!("{shared}")).to_owned();
    let enter = |code: &str| {
        let arguments = json!({"code": code, "language": "python", "context": handle});
        world.call(&world.bob, "run_code", arguments, json!({}))["result"].take()
    };
    assert_eq!(enter("x")["structuredContent"]["output"], SECRET);
    // The name alone is his own conversation still.
    assert_ne!(world.python(&world.bob, "globals().get('x')", chat())["output"], SECRET);
    // What he leaves is hers too: she reads his run, and he does.
    let run = enter("x + '!'");
    let id = json!({"execution_id": run["structuredContent"]["executionId"]});
    for who in [&world.ann, &world.bob] {
        assert!(world.call(who, "get_execution", id.clone(), json!({})).to_string().contains(SECRET));
    }
    let (status, _) = world.route(&world.ann, "DELETE", &share, &json!({}));
    assert_eq!(status, 200);
    assert_eq!(enter("x")["isError"], true);
}

#[test]
fn a_service_lists_the_contexts_of_its_tenant_and_enters_them_by_handle() {
    let world = World::start(&[]);
    world.python(&world.ann, &format!("x = '{SECRET}'"), chat());
    // By name it means what belongs to the tenant.
    assert_ne!(world.python(&world.service, "globals().get('x')", chat())["output"], SECRET);
    let listed = world.call(&world.service, "manage_context", json!({"action": "list"}), chat());
    let contexts = listed["result"]["structuredContent"]["contexts"].as_array().unwrap().clone();
    assert_eq!(contexts.len(), 2, "{listed}");
    let outputs: BTreeSet<String> = contexts
        .iter()
        .map(|context| {
            let arguments =
                json!({"code": "globals().get('x')", "language": "python", "context": context["context"]});
            let ran = world.call(&world.service, "run_code", arguments, json!({}));
            ran["result"]["structuredContent"]["output"].to_string()
        })
        .collect();
    assert!(outputs.contains(&json!(SECRET).to_string()), "{outputs:?}");
}

#[test]
fn a_tenant_that_shares_everything_has_one_set_of_conversations() {
    let world = World::start(&[("PATHBOX_CONTEXTS_SHARING", "tenant")]);
    world.python(&world.ann, &format!("x = '{SECRET}'"), chat());
    assert_eq!(world.python(&world.bob, "x", chat())["output"], SECRET);
    assert_eq!(world.python(&world.service, "x", chat())["output"], SECRET);
}

/// Two replicas on one data directory. Ann's is killed, and starts again.
#[test]
fn another_principal_reaches_nothing_by_a_second_replica_while_the_first_dies_and_comes_back() {
    let settings = [("PATHBOX_WORKFLOWS_ENABLED", "true")];
    let mut world = World::start(&settings);
    let hers = hers(&world);
    let second = replica(world.data.path(), &settings);
    let mut first = std::mem::replace(&mut world.server, second);
    let ids = [&hers.handle, &hers.execution, &hers.workflow];
    let tries = |world: &World, when: &str| {
        for (tool, calls) in attempts(&hers) {
            for arguments in calls {
                let named = arguments.to_string();
                let names_hers = ids.iter().any(|id| named.contains(id.as_str()));
                if !names_hers && tool != "run_code" {
                    continue;
                }
                let answer = world.call(&world.bob, tool, arguments, chat());
                assert!(!answer.to_string().contains(SECRET), "{when}: {tool} {named}: {answer}");
                assert!(
                    !names_hers || answer["result"]["isError"] == true,
                    "{when}: {tool} {named}: {answer}"
                );
            }
        }
    };
    tries(&world, "while the first lives");
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    tries(&world, "when it was killed");
    let first = replica(world.data.path(), &settings);
    tries(&world, "when it is back");

    // Her sandbox died with its host. Neither replica gives her another's state, and her record is there.
    let back = std::mem::replace(&mut world.server, first);
    let run = world.call(&world.ann, "get_execution", json!({"execution_id": hers.execution}), chat());
    assert!(run.to_string().contains(SECRET), "{run}");
    let mine = world.python(&world.ann, "globals().get('x')", chat());
    assert_eq!((&mine["state"], &mine["output"]), (&json!("reset"), &json!("")), "{mine}");
    drop(back);
}
