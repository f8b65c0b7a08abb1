//! The life of conversation paths over `/v1`, with real sandboxes behind it: a branch starts empty, an edit keeps, a merge
//! ends the source and leaves the target, and what is closed runs no more.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::http::{HttpServer, Reply};
use crate::support::server::command;

struct Tree {
    server: HttpServer,
    _data: tempfile::TempDir,
}

impl Tree {
    fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let server =
            HttpServer::start_with(command(data.path()).env("CRON_SECRET", "a-secret-for-the-scheduler"));
        Self { server, _data: data }
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let mut all = vec![("Content-Type", "application/json")];
        all.extend(headers);
        self.server.send(method, &format!("/v1/conversations/c/{path}"), &all, body.to_string().as_bytes())
    }

    /// A change that must succeed.
    fn change(&self, method: &str, path: &str, body: Value) -> Value {
        let mut reply = self.ask(method, path, &[], &body);
        let answer = reply.answer();
        assert!(reply.status < 300, "{method} {path}: {} {answer}", reply.status);
        answer
    }

    /// Runs code on a path; the whole result.
    fn run(&self, path: &str, code: &str) -> Value {
        let meta = json!({"dev.pathbox/conversationId": "c", "dev.pathbox/pathId": path});
        let mut reply =
            self.server.stateless(&[], "run_code", json!({"code": code, "language": "python"}), meta);
        reply.answer()["result"].take()
    }

    fn output(&self, path: &str, code: &str) -> Value {
        self.run(path, code)["structuredContent"]["output"].take()
    }
}

#[test]
fn a_branch_starts_empty_and_an_edit_keeps_what_there_is() {
    let tree = Tree::start();
    tree.change("POST", "paths", json!({"path": "main"}));
    tree.run("main", "x = 1");
    let branch = tree.change("POST", "paths/main/branch", json!({"path": "b", "branchedAtMessage": "m-7"}));
    assert_eq!((&branch["parent"], &branch["branchedAtMessage"]), (&json!("main"), &json!("m-7")));
    let seen = tree.run("b", "x");
    assert_eq!(seen["structuredContent"]["error"]["name"], "NameError", "{seen}");
    assert_eq!(seen["structuredContent"]["state"], "fresh");

    let edited = tree.change("POST", "paths/main/edit", json!({"message": "m-3"}));
    assert_eq!(edited["version"], 2);
    assert_eq!(tree.output("main", "x"), "1");

    let mut listed = tree.ask("GET", "tree", &[], &json!({}));
    let listed = listed.answer();
    assert_eq!(listed["tree"][0]["path"], "main", "{listed}");
    assert_eq!(listed["tree"][0]["children"][0]["path"], "b", "{listed}");
}

#[test]
fn a_tree_of_any_depth_is_shown_in_levels_that_a_reader_can_take() {
    use sqlx::Connection;
    const DEEP: usize = 20_000;
    let tree = Tree::start();
    tree.change("POST", "paths", json!({"path": "p0"}));
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let file = sqlx::sqlite::SqliteConnectOptions::new().filename(tree._data.path().join("pathbox.db"));
        let mut connection = sqlx::SqliteConnection::connect_with(&file).await.unwrap();
        sqlx::query(
            "INSERT INTO conversation_paths (tenant_id, owner_principal, conversation_id, path_id, parent_id, created_at, updated_at)
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
             SELECT p.tenant_id, p.owner_principal, p.conversation_id, 'p' || n.i, 'p' || (n.i - 1), 1, 1
               FROM n, conversation_paths p WHERE p.path_id = 'p0'",
        )
        .bind(DEEP as i64)
        .execute(&mut connection)
        .await
        .unwrap();
    });
    // A body that no one reads does not cost the client the end of its answer.
    let mut shown = Value::Null;
    for _ in 0..8 {
        shown = tree.ask("GET", "tree", &[], &json!({})).answer();
    }
    let tops = shown["tree"].as_array().unwrap();
    let mut seen = 0;
    for top in tops {
        let mut node = top;
        loop {
            assert_eq!(node["path"], format!("p{seen}"), "each once, in order");
            seen += 1;
            let Some(child) = node["children"].get(0) else { break };
            node = child;
        }
    }
    assert_eq!((seen, tops.len()), (DEEP + 1, (DEEP + 1).div_ceil(50)));
    assert_eq!((&tops[1]["path"], &tops[1]["parent"]), (&json!("p50"), &json!("p49")));
}

#[test]
fn a_body_that_is_no_object_and_a_query_that_does_not_fit_are_refused_in_plain_words() {
    let tree = Tree::start();
    let refused = |method: &str, path: &str, body: &str| {
        let mut reply =
            tree.server.send(method, path, &[("Content-Type", "application/json")], body.as_bytes());
        let answer = reply.answer();
        assert_eq!((reply.status, &answer["error"]["code"]), (400, &json!("invalid_argument")), "{answer}");
        answer["error"]["message"].as_str().unwrap().to_owned()
    };
    // A list is not the fields in their order.
    for body in ["[\"b\"]", "null", "7", "nonsense"] {
        assert_eq!(refused("POST", "/v1/conversations/c/paths", body), "body: it has to be a JSON object");
    }
    assert!(refused("POST", "/v1/conversations/c/paths", "{").starts_with("body: EOF"));
    assert!(
        refused("POST", "/v1/conversations/c/paths", "{\"path\": \"b\"} {}").starts_with("body: trailing")
    );
    assert!(refused("GET", "/v1/usage?by=colour", "").starts_with("query, by: unknown variant `colour`"));
    let days = refused("GET", "/v1/usage?from=2026-02-01&to=2026-01-01", "");
    assert_eq!(days, "query, from: 2026-02-01 is after `to`, 2026-01-01");
    let mut listed = tree.ask("GET", "paths", &[], &json!({}));
    assert_eq!(listed.answer()["paths"], json!([]), "nothing was registered");
}

#[test]
fn a_merge_ends_the_source_and_leaves_the_target() {
    let tree = Tree::start();
    tree.change("POST", "paths", json!({"path": "main"}));
    tree.change("POST", "paths/main/branch", json!({"path": "b"}));
    tree.run("main", "x = 'of main'");
    tree.run("b", "x = 'of b'");
    let merged = tree.change("POST", "paths/b/merge", json!({"target": "main"}));
    assert_eq!((&merged["status"], &merged["mergedInto"]), (&json!("merged"), &json!("main")));
    // Once more is the same.
    assert_eq!(tree.change("POST", "paths/b/merge", json!({"target": "main"}))["version"], merged["version"]);
    assert_eq!(tree.output("main", "x"), "of main");
    let refused = tree.run("b", "x");
    assert_eq!(refused["isError"], true, "{refused}");
    assert_eq!(refused["_meta"]["dev.pathbox/error"]["code"], "path_closed");
}

#[test]
fn a_merged_path_says_what_it_was_merged_into_and_where_to_go_on() {
    let tree = Tree::start();
    tree.change("POST", "paths", json!({"path": "main"}));
    for path in ["b", "c", "away"] {
        tree.change("POST", "paths/main/branch", json!({"path": path}));
    }
    tree.run("main", "x = 'of main'");
    let manage = |path: &str, arguments: Value| {
        let meta = json!({"dev.pathbox/conversationId": "c", "dev.pathbox/pathId": path});
        tree.server.stateless(&[], "manage_context", arguments, meta).answer()["result"].take()
    };
    let shown = |path: &str| manage(path, json!({"action": "show"}))["structuredContent"].take();
    assert_eq!(shown("b")["status"], "none");
    tree.change("POST", "paths/c/merge", json!({"target": "b"}));
    tree.change("POST", "paths/b/merge", json!({"target": "main"}));
    tree.change("POST", "paths/away/archive", json!({}));
    for (path, into) in [("b", "main"), ("c", "b")] {
        for action in ["show", "end", "reset"] {
            let shown = manage(path, json!({"action": action}))["structuredContent"].take();
            let place = (&shown["status"], &shown["mergedInto"], &shown["goesOn"]["path"]);
            assert_eq!(place, (&json!("merged"), &json!(into), &json!("main")), "{action} {shown}");
            let next = format!(
                "The path is merged into {into}; runs on it are refused. Run on the path main of the conversation."
            );
            assert_eq!(shown["next"], json!(next));
            let there = json!({"action": "show", "context": shown["goesOn"]["context"]});
            let there = tree.server.stateless(&[], "manage_context", there, json!({})).answer();
            assert_eq!(there["result"]["structuredContent"]["runs"], 1, "the handle leads to main: {there}");
        }
        let refused = tree.run(path, "x")["content"][0]["text"].take();
        let said = format!(
            "The path is merged into {into}. Run on the path main of the conversation. (code: path_closed)"
        );
        assert_eq!(refused, json!(said), "a run says the same");
    }
    tree.change("DELETE", "paths/c", json!({}));
    let refused = tree.run("c", "x")["content"][0]["text"].take();
    assert_eq!(refused, "The path is deleted. Run on another path of the conversation. (code: path_closed)");
    assert_eq!((&shown("away")["status"], &shown("away")["goesOn"]), (&json!("archived"), &Value::Null));
    let onto = manage("main", json!({"action": "branch", "path": "away"}));
    assert_eq!(onto["_meta"]["dev.pathbox/error"]["code"], "path_closed", "{onto}");
}

#[test]
fn archived_and_deleted_paths_run_no_more_and_their_neighbours_do() {
    let tree = Tree::start();
    for path in ["a", "d", "other"] {
        tree.change("POST", "paths", json!({"path": path}));
        tree.run(path, "x = 1");
    }
    assert_eq!(tree.change("POST", "paths/a/archive", json!({}))["status"], "archived");
    assert_eq!(tree.change("DELETE", "paths/d", json!({}))["status"], "deleted");
    for path in ["a", "d"] {
        assert_eq!(tree.run(path, "x")["_meta"]["dev.pathbox/error"]["code"], "path_closed", "{path}");
    }
    assert_eq!(tree.output("other", "x"), "1");
    assert_eq!(tree.output("never-registered", "2"), "2");
    let shown = |query: &str| -> Vec<Value> {
        let mut reply = tree.ask("GET", &format!("paths{query}"), &[], &json!({}));
        reply.answer()["paths"].as_array().unwrap().clone()
    };
    assert_eq!(shown("").len(), 2);
    assert_eq!(shown("?deleted=true").len(), 3);
}

#[test]
fn a_change_is_refused_when_the_path_has_changed_since_it_was_read() {
    let tree = Tree::start();
    let mut made = tree.ask("POST", "paths", &[], &json!({"path": "p"}));
    assert_eq!(made.status, 201);
    let tag = made.header("etag").unwrap().to_owned();
    assert_eq!(made.answer()["version"], 1);
    assert_eq!(tree.ask("POST", "paths/p/edit", &[("If-Match", &tag)], &json!({})).status, 200);
    let mut stale = tree.ask("POST", "paths/p/edit", &[("If-Match", &tag)], &json!({}));
    let text = stale.text();
    assert_eq!(stale.status, 412, "{text}");
}

#[test]
fn invalid_requests_are_named() {
    let tree = Tree::start();
    tree.change("POST", "paths", json!({"path": "p"}));
    for (method, path, body, status, word) in [
        ("POST", "paths", json!({}), 400, "`path`: missing"),
        ("POST", "paths", json!({"path": "a/b"}), 400, "path id"),
        ("POST", "paths", json!({"path": "q", "parrent": "p"}), 400, "parrent"),
        ("POST", "paths", json!({"path": "q", "parent": "nowhere"}), 404, "nowhere"),
        ("POST", "paths", json!({"path": "p", "parent": "p"}), 409, "ancestor"),
        ("POST", "paths/p/merge", json!({}), 400, "target"),
        ("POST", "paths/nowhere/archive", json!({}), 404, "nowhere"),
        ("GET", "paths/nowhere", json!({}), 404, "nowhere"),
        ("POST", "paths/a%2Fb/edit", json!({}), 400, "path id"),
    ] {
        let mut reply = tree.ask(method, path, &[], &body);
        let text = reply.text();
        assert_eq!(reply.status, status, "{method} {path} {body}: {text}");
        assert!(text.contains(word), "{method} {path} {body}: {text}");
    }
    let foreign = tree.ask("GET", "paths", &[("X-Tenant-Id", "acme")], &json!({}));
    assert_eq!(foreign.status, 403);
}

#[test]
fn an_exhausted_quota_is_not_a_server_error() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_USAGE_QUOTA_EXECUTIONS", "0"));
    let mut refused = server.send("GET", "/v1/conversations/c/paths/main/files", &[], b"");
    let answer = refused.answer();
    assert_eq!((refused.status, &answer["error"]["code"]), (429, &json!("quota_reached")), "{answer}");
}

#[test]
fn clean_up_wants_the_schedulers_secret() {
    let tree = Tree::start();
    let cleanup = |headers: &[(&str, &str)]| tree.server.send("POST", "/v1/cleanup", headers, b"");
    assert_eq!(cleanup(&[]).status, 401);
    assert_eq!(cleanup(&[("Authorization", "Bearer a-secret-for-the-schedules")]).status, 401);
    let mut done = cleanup(&[("Authorization", "Bearer a-secret-for-the-scheduler")]);
    let answer = done.answer();
    assert_eq!((done.status, &answer), (200, &json!({"cleaned": 0, "errors": 0})));
}

#[test]
fn the_openapi_document_names_every_route_and_every_route_answers() {
    let tree = Tree::start();
    let document = tree.server.send("GET", "/v1/openapi.json", &[], b"").answer();
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            if method == "parameters" {
                continue;
            }
            assert!(
                ids.insert(operation["operationId"].as_str().unwrap().to_owned()),
                "{path} repeats an id"
            );
            let concrete = path
                .replace("{conversation}", "c")
                .replace("{path}", "p")
                .replace("{principal}", "key:0123456789ab");
            let headers = [("Content-Type", "application/json")];
            let reply = tree.server.send(&method.to_uppercase(), &concrete, &headers, b"{}");
            let known = operation["responses"].as_object().unwrap();
            assert!(
                known.contains_key(&reply.status.to_string()),
                "{method} {path} answered {}",
                reply.status
            );
            assert_ne!(reply.status, 405, "{method} {path}");
        }
    }
    assert_eq!(ids.len(), 24);
}
