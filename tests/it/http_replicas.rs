//! Three replicas behind a proxy that sends each connection to the next one: no call comes twice to the same.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::support::http::HttpServer;

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
    // Another conversation does not see it, whichever replica serves it.
    for _ in 0..3 {
        assert_eq!(run("x", None)["structuredContent"]["error"]["name"], "NameError");
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
