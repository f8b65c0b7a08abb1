//! Attempts to reach what is not one's own over HTTP.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::http::{HttpServer, Reply, initialize};
use crate::support::server::command;

/// Makes an API key and gives its id and text.
fn key(data: &Path, arguments: &[&str]) -> (String, String) {
    let output = command(data).args(["keys", "add", "--json"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made: Value = serde_json::from_slice(&output.stdout).unwrap();
    (made["id"].as_str().unwrap().to_owned(), made["key"].as_str().unwrap().to_owned())
}

fn guarded(data: &Path) -> HttpServer {
    HttpServer::start_with(command(data).env("PATHBOX_HTTP_AUTH", "required"))
}

fn bearer(key: &str) -> String {
    format!("Bearer {key}")
}

fn run(server: &HttpServer, headers: &[(&str, &str)], code: &str, meta: Value) -> Value {
    let mut reply = server.stateless(headers, "run_code", json!({"code": code, "language": "python"}), meta);
    assert_eq!(reply.status, 200, "{}", reply.status);
    reply.answer()["result"].take()
}

fn refused(result: &Value, code: &str) -> bool {
    result["isError"] == true && result["_meta"]["dev.pathbox/error"]["code"] == code
}

const EVERY_ROUTE: [(&str, &str); 7] = [
    ("POST", "/mcp"),
    ("GET", "/mcp"),
    ("DELETE", "/mcp"),
    ("GET", "/sse"),
    ("POST", "/messages?session_id=x"),
    ("GET", "/healthz"),
    ("GET", "/no-such-route"),
];

#[test]
fn a_foreign_host_or_origin_is_refused_on_every_route() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let port = server.address.rsplit(':').next().unwrap();
    for (method, path) in EVERY_ROUTE {
        for host in [
            "evil.example",
            "evil.example:80",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.1.2.3",
        ] {
            let reply = server.send(method, path, &[("Host", host)], b"");
            assert_eq!(reply.status, 403, "{method} {path} with Host {host}");
        }
        for origin in ["http://evil.example", "null", "http://localhost:1", "https://127.0.0.1.evil.example"]
        {
            let reply = server.send(method, path, &[("Origin", origin)], b"");
            assert_eq!(reply.status, 403, "{method} {path} with Origin {origin}");
            assert_eq!(reply.header("access-control-allow-origin"), None);
        }
        let preflight = [("Origin", "http://evil.example"), ("Access-Control-Request-Method", "POST")];
        assert_eq!(server.send("OPTIONS", path, &preflight, b"").status, 403);
    }
    // What is ours is let in: no Origin, and a page that this very server could have sent.
    let own = format!("http://localhost:{port}");
    let host = format!("localhost:{port}");
    for headers in [vec![], vec![("Origin", own.as_str()), ("Host", host.as_str())]] {
        assert_eq!(server.send("GET", "/healthz", &headers, b"").status, 200);
    }
}

#[test]
fn a_listed_origin_is_let_in_with_what_a_browser_needs() {
    let data = tempfile::tempdir().unwrap();
    let origin = "https://app.example.com";
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_ALLOWED_ORIGINS", origin));
    let preflight = [("Origin", origin), ("Access-Control-Request-Method", "POST")];
    let reply = server.send("OPTIONS", "/mcp", &preflight, b"");
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (204, Some(origin)));
    let allowed = reply.header("access-control-allow-headers").unwrap();
    for name in ["authorization", "mcp-protocol-version", "mcp-session-id", "last-event-id"] {
        assert!(allowed.contains(name), "{allowed}");
    }
    let reply = server.post(&[("Origin", origin)], &initialize("2025-11-25"));
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some(origin)));
    assert!(reply.header("access-control-expose-headers").unwrap().contains("mcp-session-id"));
}

#[test]
fn without_a_credential_or_with_a_bad_one_nothing_is_reached() {
    let data = tempfile::tempdir().unwrap();
    let (id, good) = key(data.path(), &["--name", "a", "--tenant", "acme"]);
    let server = guarded(data.path());
    let wrong = format!("pbx_{id}_{}", "0".repeat(64));
    for (method, path) in
        [("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("GET", "/sse"), ("POST", "/messages")]
    {
        let reply = server.send(method, path, &[], b"");
        assert_eq!(reply.status, 401, "{method} {path}");
        assert!(reply.header("www-authenticate").unwrap().starts_with("Bearer"));
        for bad in [
            bearer(&wrong),
            bearer("x"),
            bearer("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0."),
            "Bearer".into(),
            "Basic YTpi".into(),
            format!("Basic {good}"),
            good.clone(),
        ] {
            let reply = server.send(method, path, &[("Authorization", &bad)], b"");
            assert_eq!(reply.status, 401, "{method} {path} {bad}");
            assert!(reply.header("www-authenticate").unwrap().contains("invalid_token"));
        }
        let query = format!("{path}?api_key={good}&access_token={good}");
        assert_eq!(server.send(method, &query, &[], b"").status, 401, "never out of the URL");
    }
    let good_header = bearer(&good);
    let twice = [("Authorization", good_header.as_str()), ("Authorization", "Bearer x")];
    assert_eq!(server.post(&twice, &initialize("2025-11-25")).status, 401);
    assert_eq!(server.send("GET", "/healthz", &[], b"").status, 200);
    assert_eq!(server.post(&[("Authorization", &good_header)], &initialize("2025-11-25")).status, 200);
    assert!(!server.log().contains(&good), "a key is never logged");
}

#[test]
fn a_key_that_expired_or_was_revoked_opens_nothing() {
    let data = tempfile::tempdir().unwrap();
    let (id, text) = key(data.path(), &["--name", "a", "--tenant", "acme"]);
    let listed = command(data.path()).args(["keys", "ls", "--json"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&listed.stdout).contains(&text), "a key is shown once");
    assert!(
        !std::fs::read(data.path().join("pathbox.db"))
            .unwrap()
            .windows(64)
            .any(|w| w == &text.as_bytes()[17..])
    );
    let revoked = command(data.path()).args(["keys", "revoke", &id]).output().unwrap();
    assert!(revoked.status.success());
    let server = guarded(data.path());
    let header = bearer(&text);
    assert_eq!(server.post(&[("Authorization", &header)], &initialize("2025-11-25")).status, 401);
    let unknown = command(data.path()).args(["keys", "revoke", "000000000000"]).output().unwrap();
    assert!(!unknown.status.success());
}

#[test]
fn a_key_opens_nothing_as_soon_as_it_is_revoked_or_erased() {
    let data = tempfile::tempdir().unwrap();
    let add = |tenant: &str| key(data.path(), &["--tenant", tenant, "--name", "a"]);
    let ((revoked_id, revoked), (_, erased), (_, other)) = (add("acme"), add("gone"), add("acme"));
    let server = guarded(data.path());
    let status =
        |key: &str| server.post(&[("Authorization", &bearer(key))], &initialize("2025-11-25")).status;
    assert_eq!([&revoked, &erased, &other].map(|key| status(key)), [200; 3]);
    for arguments in
        [&["keys", "revoke", &revoked_id][..], &["tenants", "erase", "--tenant", "gone", "--yes"]]
    {
        let done = command(data.path()).args(arguments).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    assert_eq!([&revoked, &erased, &other].map(|key| status(key)), [401, 401, 200]);
}

/// Moves the end of a key that is in use.
fn expire(data: &Path, id: &str, at: chrono::DateTime<chrono::Utc>) {
    use sqlx::Connection;
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let file = sqlx::sqlite::SqliteConnectOptions::new().filename(data.join("pathbox.db"));
        let mut connection = sqlx::SqliteConnection::connect_with(&file).await.unwrap();
        sqlx::query("UPDATE api_keys SET key = json_set(key, '$.expires_at', ?) WHERE id = ?")
            .bind(at.to_rfc3339())
            .bind(id)
            .execute(&mut connection)
            .await
            .unwrap();
    });
}

#[test]
fn a_key_that_is_believed_is_not_believed_beyond_its_end() {
    let data = tempfile::tempdir().unwrap();
    let (id, text) = key(data.path(), &["--name", "a", "--tenant", "acme"]);
    let server = guarded(data.path());
    let header = bearer(&text);
    let status = || server.post(&[("Authorization", &header)], &initialize("2025-11-25")).status;
    let clock = pathbox::domain::Clock::system();
    // A machine that is too slow for a short life gets a longer one.
    let end = [3, 6, 12].into_iter().find_map(|seconds| {
        let end = clock.now() + chrono::TimeDelta::seconds(seconds);
        expire(data.path(), &id, end);
        (status() == 200).then_some(end)
    });
    let end = end.expect("the key is good before its end");
    while clock.now() <= end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(status(), 401);
}

#[test]
fn a_user_stays_in_its_tenant_and_a_service_among_those_it_lists() {
    let data = tempfile::tempdir().unwrap();
    let (_, acme) = key(data.path(), &["--name", "a", "--tenant", "acme"]);
    let (_, service) = key(data.path(), &["--name", "router", "--tenants", "acme,umbrella"]);
    let server = guarded(data.path());
    let (acme, service) = (bearer(&acme), bearer(&service));
    let acme = [("Authorization", acme.as_str())];
    let service = [("Authorization", service.as_str())];
    let chat = json!({"dev.pathbox/conversationId": "c"});

    let mine = run(&server, &acme, "x = 'acme secret'\nx", chat.clone());
    assert_eq!(mine["structuredContent"]["output"], "acme secret", "{mine}");
    let handle = mine["structuredContent"]["context"].as_str().unwrap().to_owned();

    // A user who names another tenant, in whichever way, is refused.
    let named = json!({"dev.pathbox/tenantId": "umbrella"});
    assert!(refused(&run(&server, &acme, "1", named.clone()), "forbidden"));
    let with_header = [acme[0], ("X-Tenant-Id", "umbrella")];
    assert!(refused(&run(&server, &with_header, "1", json!({})), "forbidden"));

    // A service names its tenant in each call, and the same conversation of another tenant is another one.
    assert!(refused(&run(&server, &service, "1", json!({})), "forbidden"), "it has none of its own");
    let other = [service[0], ("X-Tenant-Id", "initech")];
    assert!(refused(&run(&server, &other, "1", json!({})), "forbidden"), "not in its list");
    let umbrella = [service[0], ("X-Tenant-Id", "umbrella")];
    let theirs = run(&server, &umbrella, "x", chat.clone());
    assert_eq!(theirs["structuredContent"]["error"]["name"], "NameError", "{theirs}");
    // The user's conversation is the user's: a service that names an equal one means the tenant's own.
    let as_acme = [service[0], ("X-Tenant-Id", "acme")];
    let own = run(&server, &as_acme, "x", chat);
    assert_eq!(own["structuredContent"]["error"]["name"], "NameError", "{own}");

    // A handle of another tenant is not valid.
    let arguments = json!({"code": "x", "language": "python", "context": handle});
    let stolen = server.stateless(&umbrella, "run_code", arguments, json!({})).answer();
    assert!(refused(&stolen["result"], "not_found"), "{stolen}");
}

#[test]
fn a_session_is_its_openers_alone() {
    let data = tempfile::tempdir().unwrap();
    let (_, one) = key(data.path(), &["--name", "a", "--tenant", "acme"]);
    let (_, two) = key(data.path(), &["--name", "b", "--tenant", "acme"]);
    let server = guarded(data.path());
    let (one, two) = (bearer(&one), bearer(&two));
    let session = server.session(&[("Authorization", &one)]);
    let stolen = [
        ("Authorization", two.as_str()),
        ("Mcp-Session-Id", &session.id),
        ("MCP-Protocol-Version", "2025-11-25"),
    ];
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    assert_eq!(server.post(&stolen, &list).status, 404);
    assert_eq!(server.send("GET", "/mcp", &stolen, b"").status, 404);
    assert_eq!(server.send("DELETE", "/mcp", &stolen, b"").status, 404);
    assert_eq!(server.post(&session.headers(), &list).status, 200, "and it goes on for its opener");

    let mut stream = server.send("GET", "/sse", &[("Authorization", &one)], b"");
    let endpoint = stream.event().unwrap().data;
    let hello = initialize("2024-11-05").to_string();
    let reply = server.send("POST", &endpoint, &[("Authorization", &two)], hello.as_bytes());
    assert_eq!(reply.status, 404);
}

#[test]
fn a_credential_sees_and_calls_what_its_scopes_allow_and_a_refusal_names_the_missing_scope() {
    let data = tempfile::tempdir().unwrap();
    let server = guarded(data.path());
    let add = |scopes: &str| {
        bearer(&key(data.path(), &["--name", scopes, "--tenant", "acme", "--scopes", scopes]).1)
    };
    let (reader, runner, keeper) = (add("read"), add("run,read"), add("paths"));
    let listed = |key: &str| {
        let answer = server.modern(&[("Authorization", key)], "tools/list", None, json!({})).answer();
        let tools = answer["result"]["tools"].as_array().unwrap().clone();
        tools.into_iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = listed(&runner);
    assert!(all.contains(&"run_code".to_owned()) && all.contains(&"get_execution".to_owned()));
    let readable = listed(&reader);
    assert!(!readable.contains(&"run_code".to_owned()) && readable.contains(&"get_execution".to_owned()));
    assert!(listed(&keeper).is_empty());
    let tries = [
        ("run_code", json!({"code": "1", "language": "python"}), "run"),
        ("manage_context", json!({"action": "end"}), "run"),
        ("get_execution", json!({"execution_id": "x", "cancel": true}), "run"),
        ("manage_context", json!({"action": "list"}), "read"),
        ("get_artifact", json!({"uri": "pathbox://executions/x/stdout"}), "read"),
    ];
    for (tool, arguments, scope) in tries {
        for (key, has) in [(&reader, "read"), (&keeper, "paths"), (&runner, "run read")] {
            let headers = [("Authorization", key.as_str())];
            let reply = server.stateless(&headers, tool, arguments.clone(), json!({}));
            let lacks = !has.split(' ').any(|one| one == scope);
            assert_eq!(reply.status, if lacks { 403 } else { 200 }, "{tool} {arguments} by {has}");
            let challenge = reply.header("www-authenticate").unwrap_or_default();
            assert_eq!(challenge.contains("error=\"insufficient_scope\""), lacks, "{challenge}");
            if lacks {
                let asked = challenge.split("scope=\"").nth(1).unwrap().split('"').next().unwrap();
                let mut wanted = [has, scope];
                wanted.sort_by_key(|one| ["run", "read", "paths"].iter().position(|known| known == one));
                assert_eq!(asked, wanted.join(" "), "{challenge}");
            }
        }
    }
    // The same in a session, for resources, on the older door, and for the metrics.
    let headers = [("Authorization", keeper.as_str())];
    let mut session = server.session(&headers);
    let (_, reply) = session.begin("resources/read", json!({"uri": "pathbox://executions/x/stdout"}));
    assert_eq!(reply.status, 403);
    let mut stream = server.send("GET", "/sse", &headers, b"");
    let endpoint = stream.event().unwrap().data;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "run_code"}})
        .to_string();
    let reply = server.send("POST", &endpoint, &headers, call.as_bytes());
    assert_eq!(reply.status, 403);
    let reply = server.send("GET", "/metrics", &headers, b"");
    assert!(reply.header("www-authenticate").unwrap().contains("scope=\"paths admin\""));
}

#[test]
fn calls_of_a_service_that_name_no_conversation_make_no_other_call_fail() {
    let data = tempfile::tempdir().unwrap();
    let service = bearer(&key(data.path(), &["--name", "s", "--tenant", "acme", "--tenants", "acme"]).1);
    let user = bearer(&key(data.path(), &["--name", "u", "--tenant", "acme"]).1);
    let server = HttpServer::start_with(
        command(data.path()).env("PATHBOX_HTTP_AUTH", "required").env("PATHBOX_CONTEXTS_PER_TENANT", "3"),
    );
    let (service, user) = ([("Authorization", service.as_str())], [("Authorization", user.as_str())]);
    let state =
        |result: &Value| result["structuredContent"]["state"].as_str().unwrap_or("refused").to_owned();
    assert_eq!(state(&run(&server, &user, "x = 40", json!({}))), "fresh");
    // One call whose handle is used claims its context; the others are of one call each.
    let first = run(&server, &service, "y = 1", json!({}));
    let handle = first["structuredContent"]["context"].as_str().unwrap().to_owned();
    let with_handle = |code: &str| {
        let arguments = json!({"code": code, "language": "python", "context": handle});
        server.stateless(&service, "run_code", arguments, json!({})).answer()["result"].take()
    };
    assert_eq!(with_handle("y + 1")["structuredContent"]["output"], "2");
    for _ in 0..5 {
        assert_eq!(state(&run(&server, &service, "1", json!({}))), "fresh", "room is made");
    }
    assert_eq!(state(&with_handle("y")), "kept", "what was claimed stays");
    assert_eq!(run(&server, &user, "x + 2", json!({}))["structuredContent"]["output"], "42");
    // A conversation that is named takes the place of one that no one claimed, and then the limit holds.
    assert_eq!(state(&run(&server, &user, "1", json!({"conversationId": "third"}))), "fresh");
    assert!(refused(&run(&server, &user, "1", json!({"conversationId": "fourth"})), "limit_reached"));
}

#[test]
fn a_public_address_requires_a_credential_by_default() {
    let data = tempfile::tempdir().unwrap();
    // The name of a proxy in front means others as well.
    let server =
        HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_ALLOWED_HOSTS", "mcp.example.com"));
    assert_eq!(server.post(&[], &initialize("2025-11-25")).status, 401);
    let named = server.post(&[("Host", "mcp.example.com")], &initialize("2025-11-25"));
    assert_eq!(named.status, 401, "the host is known, the caller is not");
}

#[test]
fn a_caller_that_asks_too_often_waits() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_REQUESTS_PER_MINUTE", "5"));
    let statuses: Vec<u16> = (0..8).map(|_| server.post(&[], &initialize("2025-11-25")).status).collect();
    assert_eq!(statuses[..5], [200; 5]);
    assert!(statuses[6..].iter().all(|status| *status == 429), "{statuses:?}");
    let reply = server.post(&[], &initialize("2025-11-25"));
    assert!(reply.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    // The connection is good for the next request.
    let mut stream = server.connect();
    let body = initialize("2025-11-25").to_string();
    let head = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n";
    for _ in 0..3 {
        let length = body.len();
        let request =
            format!("POST /mcp HTTP/1.1\r\nHost: localhost\r\n{head}Content-Length: {length}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        // What the server answered before all of it was there must not end the connection either.
        stream.write_all(body.as_bytes()).unwrap();
        let mut reply = Reply::read(stream.try_clone().unwrap());
        assert_eq!(reply.status, 429);
        assert!(reply.text().contains("too many"));
    }
}

#[test]
fn a_target_of_another_authority_than_the_host_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let own = format!("http://{}/healthz", server.address);
    assert_eq!(server.send("GET", &own, &[], b"").status, 200);
    assert_eq!(server.send("GET", "http://evil.example/healthz", &[], b"").status, 400);
    let named = [("Host", "evil.example")];
    assert_eq!(server.send("GET", "http://evil.example/healthz", &named, b"").status, 403);
    assert_eq!(server.send("GET", &own, &named, b"").status, 400);
}

#[test]
fn a_stream_ends_with_the_key_that_opened_it() {
    let data = tempfile::tempdir().unwrap();
    let server = guarded(data.path());
    let add = |name: &str| key(data.path(), &["--tenant", "acme", "--name", name]);
    let ((id, revoked), (_, other)) = (add("one"), add("two"));
    let streams = [&revoked, &other].map(|key| {
        let bearer = bearer(key);
        let headers = [("Authorization", bearer.as_str())];
        let mcp = server.session(&headers).listen(None);
        let sse = server.send("GET", "/sse", &headers, b"");
        [mcp, sse]
    });
    let output = command(data.path()).args(["keys", "revoke", &id]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let [mut ended, mut open] = streams;
    for stream in &mut ended {
        // Signs of life come until it ends.
        while stream.event().is_some() {}
    }
    for stream in &mut open {
        assert!(stream.event().is_some(), "another key's stream goes on");
    }
}

#[test]
fn invalid_credentials_from_its_address_do_not_keep_a_stream_open() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(
        command(data.path())
            .env("PATHBOX_HTTP_AUTH", "required")
            .env("PATHBOX_HTTP_FAILED_CREDENTIALS_PER_MINUTE", "1"),
    );
    let (id, revoked) = key(data.path(), &["--tenant", "acme", "--name", "one"]);
    let bearer = bearer(&revoked);
    let headers = [("Authorization", bearer.as_str())];
    let mut stream = server.session(&headers).listen(None);
    let output = command(data.path()).args(["keys", "revoke", &id]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                assert_ne!(server.post(&headers, &initialize("2025-11-25")).status, 200);
            }
        });
        // A sign of life comes every ten seconds; the credential is looked at every five.
        let has_ended = (0..4).any(|_| stream.event().is_none());
        ended.store(true, Ordering::Relaxed);
        assert!(has_ended);
    });
}

#[test]
fn an_oversized_body_is_refused_however_it_is_sent() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let huge = "x".repeat(5 * 1024 * 1024);
    // A body that is framed wrongly is not a large one.
    let mut stream = server.connect();
    let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(Reply::read(stream).status, 400);
    assert_eq!(server.post_text(&[], &huge).status, 413);
    let mut stream = server.send("GET", "/sse", &[], b"");
    let endpoint = stream.event().unwrap().data;
    assert_eq!(server.send("POST", &endpoint, &[], huge.as_bytes()).status, 413);
    // Chunked, so that no length is announced.
    let mut chunked = server.connect();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAccept: */*\r\nTransfer-Encoding: \
         chunked\r\n\r\n",
        server.address
    );
    chunked.write_all(head.as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..100 {
        if chunked.write_all(chunk.as_bytes()).is_err() {
            break;
        }
    }
    let mut answer = [0; 64];
    let n = chunked.read(&mut answer).unwrap_or(0);
    assert!(n == 0 || answer.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer[..n]));
}

#[test]
fn heads_that_crawl_or_grow_do_not_keep_others_out() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let mut slow: Vec<_> = (0..200).map(|_| server.connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").unwrap();
    }
    // The same with bodies that never come.
    slow.extend((0..200).map(|_| server.connect()));
    for stream in &mut slow[200..] {
        let head = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";
        stream.write_all(head.as_bytes()).unwrap();
    }
    assert_eq!(server.post(&[], &initialize("2025-11-25")).status, 200);
    assert_eq!(server.send("GET", "/healthz", &[], b"").status, 200);
    let mut greedy = server.connect();
    let line = format!("X-Filler: {}\r\n", "y".repeat(8000));
    greedy.write_all(b"GET /healthz HTTP/1.1\r\n").unwrap();
    let mut sent = 0;
    while sent < 10_000_000 && greedy.write_all(line.as_bytes()).is_ok() {
        sent += line.len();
    }
    assert!(sent < 10_000_000, "a head of any size would be taken");
    assert_eq!(server.send("GET", "/healthz", &[], b"").status, 200);
}

#[test]
fn unknown_keys_cost_a_bounded_number_of_queries_and_lock_no_one_out() {
    let data = tempfile::tempdir().unwrap();
    let made =
        |name: &str| key(data.path(), &["--name", name, "--tenant", "acme", "--scopes", "run,admin"]).1;
    let (known, late) = (made("known"), made("late"));
    let server = HttpServer::start_with(
        command(data.path())
            .env("PATHBOX_HTTP_FAILED_CREDENTIALS_PER_MINUTE", "5")
            .env("PATHBOX_HTTP_TRUSTED_PROXIES", "127.0.0.0/8"),
    );
    let status = |credential: &str, from: &str| {
        let header = format!("Bearer {credential}");
        server.post(&[("Authorization", &header), ("X-Forwarded-For", from)], &initialize("2025-11-25"))
    };
    assert_eq!(status(&known, "192.0.2.7").status, 200);
    let unknown = |n: usize| format!("{}{n:04}", &known[..known.len() - 4]);
    let answers: Vec<u16> = (0..30).map(|n| status(&unknown(n), "198.51.100.1, 192.0.2.7").status).collect();
    assert_eq!(answers[..5], [401; 5], "{answers:?}");
    assert!(answers.iter().filter(|answer| **answer == 429).count() >= 20, "{answers:?}");
    let refused = status(&unknown(99), "192.0.2.7");
    assert!(refused.status == 401 || refused.header("retry-after").is_some());

    // A key that was good before passes from there, any other from another address.
    assert_eq!(status(&known, "192.0.2.7").status, 200);
    assert_eq!(status(&late, "192.0.2.8").status, 200);
    let mut metrics = server.send("GET", "/metrics", &[("Authorization", &format!("Bearer {known}"))], b"");
    let metrics = metrics.text();
    let queries = metrics
        .lines()
        .find_map(|line| line.strip_prefix("db_client_duration_ms_count{operation=\"api_keys\"} "));
    let queries: usize = queries.unwrap_or_else(|| panic!("{metrics}")).parse().unwrap();
    assert!(queries <= 12, "thirty unknown keys, one budget of five: {queries}");
    assert!(metrics.contains("auth_refused_total{reason=\"too_many\"}"), "{metrics}");
}
