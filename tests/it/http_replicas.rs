//! Three replicas behind a proxy that sends each connection to the next one: no call comes twice to the same.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::mcp_clients::fault;
use crate::support::database::{Database, cluster};
use crate::support::http::{HttpServer, Session, initialize};
use crate::support::server::command;

/// A proxy for bytes, round robin. It ends with the test process.
struct RoundRobin {
    address: String,
    replicas: Arc<Mutex<Vec<String>>>,
    served: Arc<Mutex<Vec<String>>>,
}

impl RoundRobin {
    fn before(replicas: &[HttpServer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let replicas: Vec<String> = replicas.iter().map(|replica| replica.address.clone()).collect();
        let replicas = Arc::new(Mutex::new(replicas));
        let served = Arc::new(Mutex::new(Vec::new()));
        let (all, log, next) = (Arc::clone(&replicas), Arc::clone(&served), AtomicUsize::new(0));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let target = {
                    let all = all.lock().unwrap();
                    all[next.fetch_add(1, Ordering::Relaxed) % all.len()].clone()
                };
                log.lock().unwrap().push(target.clone());
                std::thread::spawn(move || carry(client, &target));
            }
        });
        Self { address, replicas, served }
    }
}

fn carry(client: TcpStream, target: &str) {
    let Ok(server) = TcpStream::connect(target) else { return };
    let (mut up_from, mut up_to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let up = std::thread::spawn(move || {
        copy(&mut up_from, &mut up_to);
        let _ = up_to.shutdown(Shutdown::Write);
    });
    let (mut from, mut to) = (server, client);
    copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
    let _ = up.join();
}

fn copy(from: &mut TcpStream, to: &mut TcpStream) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(n) = from.read(&mut bytes) {
        if n == 0 || to.write_all(&bytes[..n]).is_err() {
            return;
        }
    }
}

fn output(result: &Value) -> &Value {
    &result["structuredContent"]["output"]
}

#[test]
fn state_follows_the_handle_and_the_session_over_three_replicas_in_turn() {
    let data = tempfile::tempdir().unwrap();
    let mut replicas: Vec<HttpServer> = (0..3).map(|_| HttpServer::start(data.path())).collect();
    let proxy = RoundRobin::before(&replicas);
    let own: Vec<String> = replicas.iter().map(|replica| replica.address.clone()).collect();
    // Whoever speaks through this one speaks to all of them.
    replicas[0].address.clone_from(&proxy.address);
    let front = &replicas[0];

    // 2026-07-28: nothing but a handle.
    let run = |code: &str, handle: Option<&Value>| {
        let mut arguments = json!({"code": code, "language": "python"});
        if let Some(handle) = handle {
            arguments["context"] = handle.clone();
        }
        front.stateless(&[], "run_code", arguments, json!({})).answer()["result"].take()
    };
    let first = run("x = 1\nx", None);
    let handle = first["structuredContent"]["context"].clone();
    for n in 2..=7 {
        let result = run("x += 1\nx", Some(&handle));
        assert_eq!(output(&result), &json!(n.to_string()), "{result}");
        assert_eq!(result["structuredContent"]["state"], "kept");
    }
    // Whoever names nothing is in the same conversation, whichever replica serves it; another conversation is not.
    for _ in 0..3 {
        assert_eq!(output(&run("x", None)), "7");
        let arguments = json!({"code": "x", "language": "python"});
        let other = json!({"dev.pathbox/conversationId": "another"});
        let result = front.stateless(&[], "run_code", arguments, other).answer()["result"].take();
        assert_eq!(result["structuredContent"]["error"]["name"], "NameError");
    }

    // 2025-11-25: a session that one replica opened.
    let mut session = front.session(&[]);
    session.python("y = 1");
    for n in 2..=7 {
        assert_eq!(output(&session.python("y += 1\ny")), &json!(n.to_string()));
    }
    let mut other = front.session(&[]);
    assert_eq!(other.python("y")["structuredContent"]["error"]["name"], "NameError");

    // What one replica was handed over, another follows.
    let slow = json!({"code": "import time; time.sleep(2); 'slow'", "language": "python"});
    let meta = json!({"dev.pathbox/patienceMs": 200});
    let begun = front.stateless(&[], "run_code", slow, meta).answer();
    let wait =
        json!({"execution_id": begun["result"]["structuredContent"]["executionId"], "wait_ms": 30_000});
    let end = front.stateless(&[], "get_execution", wait, json!({})).answer();
    assert_eq!(output(&end["result"]), "slow", "{end}");

    // What one replica runs, or holds in its queue, another can stop.
    let endless = json!({"code": "while True: pass", "language": "python", "context": handle});
    let begin = || {
        let mut begun =
            front.stateless(&[], "run_code", endless.clone(), json!({"dev.pathbox/patienceMs": 200}));
        begun.answer()["result"]["structuredContent"]["executionId"].clone()
    };
    let (running, queued) = (begin(), begin());
    for run in [queued, running] {
        let stop = json!({"execution_id": run, "cancel": true, "wait_ms": 50_000});
        let stopped = front.stateless(&[], "get_execution", stop, json!({})).answer();
        let text = stopped["result"]["content"][0]["text"].as_str().unwrap_or_default();
        let ended = stopped["result"]["structuredContent"]["exitCode"] == 130 || text.contains("cancelled");
        assert!(ended, "{stopped}");
    }
    assert_eq!(output(&run("x", Some(&handle))), "7", "the state is kept");

    let served = proxy.served.lock().unwrap().clone();
    for replica in &own {
        assert!(served.iter().filter(|one| *one == replica).count() >= 6, "{replica}: {served:?}");
    }

    // One dies. Each call of the others keeps its state or says that it is gone, and none fails.
    let mut dead = replicas.remove(1);
    proxy.replicas.lock().unwrap().retain(|address| *address != own[1]);
    dead.child.kill().unwrap();
    dead.child.wait().unwrap();
    let front = &replicas[0];
    for _ in 0..4 {
        let arguments = json!({"code": "x", "language": "python", "context": handle});
        let result = front.stateless(&[], "run_code", arguments, json!({})).answer();
        let content = &result["result"]["structuredContent"];
        let kept = content["state"] == "kept" && content["output"] == "7";
        let told = content["error"]["name"] == "NameError";
        assert!(kept || told, "{result}");
    }
}

/// Replicas on one Postgres, each with a data directory of its own, with one sandbox host for all of them.
struct Fleet {
    replicas: Vec<HttpServer>,
    proxy: RoundRobin,
    database: Database,
    host: Child,
    host_url: String,
    directories: Vec<tempfile::TempDir>,
}

impl Fleet {
    async fn start(count: usize) -> Self {
        let database = cluster().await.database().await;
        let own = tempfile::tempdir().unwrap();
        let mut host = command(own.path())
            .args(["host", "--listen", "127.0.0.1:0", "--api-key", "fleet-key"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let line = BufReader::new(host.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        let host_url = line.split("E2B_API_URL=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        let proxy = RoundRobin::before(&[]);
        let mut fleet =
            Self { replicas: Vec::new(), proxy, database, host, host_url, directories: vec![own] };
        for _ in 0..count {
            fleet.add();
        }
        fleet
    }

    fn add(&mut self) {
        let data = tempfile::tempdir().unwrap();
        let replica = HttpServer::start_with(
            command(data.path())
                .env("DATABASE_URL", self.database.url().expose())
                .env("PATHBOX_SECRET_KEYS", "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
                .env("E2B_API_KEY", "fleet-key")
                .env("E2B_API_URL", &self.host_url)
                .env("E2B_SANDBOX_URL", &self.host_url)
                .env("PATHBOX_CONTEXTS_PER_TENANT", "100"),
        );
        // As a balancer does. A list of tools that comes to a replica which still starts is known to that one alone, and a
        // call of the same session at another one would belong to the default conversation.
        until(|| replica.send("GET", "/readyz", &[], b"").status == 200);
        self.proxy.replicas.lock().unwrap().push(replica.address.clone());
        self.directories.push(data);
        self.replicas.push(replica);
    }

    /// Takes a replica out of the rotation; it still runs.
    fn take_out(&mut self, at: usize) -> HttpServer {
        let replica = self.replicas.remove(at);
        self.proxy.replicas.lock().unwrap().retain(|address| *address != replica.address);
        replica
    }

    /// The same session at another replica.
    fn at<'f>(&'f self, replica: usize, session: &Session<'_>) -> Session<'f> {
        Session::continued(&self.replicas[replica], &session.id)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = self.host.kill();
        let _ = self.host.wait();
    }
}

/// Polls until the answer is as expected: an update of one replica reaches the others within about a second.
fn until(mut ask: impl FnMut() -> bool) {
    for _ in 0..600 {
        if ask() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("it does not come");
}

#[test]
#[ignore = "needs PostgreSQL server binaries: scripts/test installs them"]
fn changes_of_a_session_reach_the_other_replicas() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut fleet = runtime.block_on(Fleet::start(3));

    // A request that one replica runs is cancelled through another.
    let mut session = fleet.replicas[0].session(&[]);
    session.python("x = 40");
    let endless = json!({"name": "run_code", "arguments": {"code": "print(1)\nwhile True: pass", "language": "python"},
        "_meta": {"progressToken": "t"}});
    let (id, mut running) = session.begin("tools/call", endless);
    while !running.message().unwrap().data.contains("notifications/progress") {}
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    assert_eq!(fleet.at(1, &session).post(&cancel).status, 202);
    while running.event().is_some() {}
    assert_eq!(
        output(&fleet.at(2, &session).python("x + 2")),
        "42",
        "the context is free and keeps its state"
    );

    // An event of one replica resumes nothing at another.
    let params = json!({"name": "run_code", "arguments": {"code": "'of the first'", "language": "python"}});
    let (_, mut reply) = session.begin("tools/call", params);
    let event = reply.event().unwrap().id.unwrap();
    reply.answer();
    assert_eq!(fleet.at(1, &session).listen(Some(&event)).status, 404);

    // A session that one replica ended is gone at the others, and after a restart.
    let list = json!({"jsonrpc": "2.0", "id": 99, "method": "tools/list"});
    assert_eq!(fleet.at(1, &session).post(&list).status, 200);
    assert_eq!(fleet.replicas[0].send("DELETE", "/mcp", &session.headers(), b"").status, 204);
    assert_eq!(session.post(&list).status, 404);
    until(|| fleet.at(1, &session).post(&list).status == 404);
    let id = session.id.clone();
    fleet.add();
    let mut later = Session::continued(&fleet.replicas[3], &id);
    assert_eq!(later.post(&list).status, 404, "a replica that never saw it");
    let old = fleet.take_out(0);
    drop(old);

    // A client that opens a session for each call, and each request of it comes to another replica.
    let run = |code: &str, lists: bool| {
        let front = HttpServer::elsewhere(&fleet.proxy.address);
        let reply = front.post(&[], &initialize("2025-11-25"));
        let id = reply.header("mcp-session-id").unwrap().to_owned();
        let mut session = Session::continued(&front, &id);
        session.post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        if lists {
            session.request("tools/list", json!({}));
        }
        let result = session.python(code);
        front.send("DELETE", "/mcp", &session.headers(), b"");
        result
    };
    run("y = 40", false);
    for _ in 0..4 {
        assert_eq!(output(&run("y + 2", false)), "42");
    }
    assert_eq!(run("y", true)["structuredContent"]["error"]["name"], "NameError", "a session that is kept");
}

#[test]
#[ignore = "needs PostgreSQL server binaries: scripts/test installs them"]
fn a_replica_that_is_killed_takes_no_session_and_no_variable_along() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut fleet = runtime.block_on(Fleet::start(3));
    let id = {
        let mut session = fleet.replicas[0].session(&[]);
        assert_eq!(output(&session.python("x = 40; x")), "40");
        // A run of the one that is killed, on a path of its own.
        let endless = json!({"name": "run_code", "arguments": {"code": "print(1)\nwhile True: pass", "language": "python"},
            "_meta": {"progressToken": "t", "dev.pathbox/pathId": "endless"}});
        let (_, mut running) = session.begin("tools/call", endless);
        while !running.message().unwrap().data.contains("notifications/progress") {}
        session.id.clone()
    };
    let mut killed = fleet.take_out(0);
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    fleet.add();
    for (replica, value) in fleet.replicas.iter().zip(["41", "42", "43"]) {
        let result = Session::continued(replica, &id).python("x += 1; x");
        assert_eq!((&result["structuredContent"]["state"], output(&result)), (&json!("kept"), &json!(value)));
    }
    // Its path is free again once its lease has expired.
    let meta = json!({"dev.pathbox/pathId": "endless"});
    let again = json!({"code": "'free'", "language": "python"});
    let result = Session::continued(&fleet.replicas[1], &id).call("run_code", again, meta);
    assert_eq!(output(&result), "free", "{result}");
}

#[test]
#[ignore = "needs PostgreSQL server binaries and MCP clients: scripts/test installs them"]
fn every_client_works_over_replicas_in_turn_while_one_leaves_and_one_comes() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut fleet = runtime.block_on(Fleet::start(3));
    let base = format!("http://{}", fleet.proxy.address);
    // One of them alone is without a session: those share a conversation.
    let clients = [("mcp_v1.py", "mcp-1"), ("mcp_v1.mjs", "mcp-js"), ("mcp_v2.mjs", "mcp-js")];
    let faults: Vec<String> = std::thread::scope(|scope| {
        let base = &base;
        let running = clients.map(|(script, environment)| {
            scope.spawn(move || fault(script, environment, "http", base, std::path::Path::new("")))
        });
        // Once every replica has served: one is asked to end, as in a rolling update, and another comes.
        until(|| {
            let served = fleet.proxy.served.lock().unwrap();
            fleet
                .replicas
                .iter()
                .all(|replica| served.iter().filter(|one| **one == replica.address).count() > 5)
        });
        fleet.add();
        let leaving = fleet.take_out(0);
        drop(leaving);
        running.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    let logs: Vec<String> = fleet.replicas.iter().map(HttpServer::log).collect();
    assert!(faults.is_empty(), "{}\n{}", faults.join("\n"), logs.join("\n---\n"));
}
