//! The ways in which several processes serve together: one data directory, or replicas with a database, a sandbox host
//! and a bucket that they share.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::database::{Database, cluster};
use crate::support::http::HttpServer;
use crate::support::server::{Server, command};

pub(crate) const API_KEY: &str = "e2b_0123456789012345678901234567890123456789";
/// Replicas have one key for tokens and handles, and data directories of their own.
const KEYS: &str = "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A process that ends with the test.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A sandbox host in a process of its own, and its URL.
pub(crate) fn host(data: &Path) -> (Process, String) {
    let mut child = command(data)
        .args(["host", "--listen", "127.0.0.1:0", "--api-key", API_KEY])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = line.split("E2B_API_URL=").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    (Process(child), url)
}

/// An S3 server with one bucket, `box`.
struct Bucket {
    _server: Process,
    address: String,
}

impl Bucket {
    fn start() -> Self {
        let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-env/moto/bin/moto_server");
        let mut child = Command::new(server)
            .args(["-H", "127.0.0.1", "-p", "0"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("scripts/test installs moto");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = lines
            .find_map(|line| Some(line.split_once("Running on http://")?.1.trim().to_owned()))
            .expect("moto says where it listens");
        std::thread::spawn(move || lines.for_each(drop));
        let bucket = Self { _server: Process(child), address };
        bucket.request("PUT", "/box");
        bucket
    }

    /// The keys in the bucket.
    fn keys(&self) -> Vec<String> {
        let listed = self.request("GET", "/box?list-type=2");
        let keys = listed.split("<Key>").skip(1);
        keys.map(|rest| rest.split("</Key>").next().unwrap().to_owned()).collect()
    }

    fn request(&self, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.split(' ').nth(1).is_some_and(|status| status.starts_with('2')), "{answer}");
        answer
    }
}

/// What several replicas share.
struct Shared {
    database: Database,
    host: (Process, String),
    bucket: Bucket,
    directories: Vec<tempfile::TempDir>,
}

impl Shared {
    fn start() -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let database = runtime.block_on(async { cluster().await.database().await });
        let directories: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let host = host(directories[2].path());
        Self { database, host, bucket: Bucket::start(), directories }
    }

    fn replica(&self, n: usize) -> HttpServer {
        HttpServer::start_with(
            command(self.directories[n].path())
                .env("DATABASE_URL", self.database.url().expose())
                .env("PATHBOX_SECRET_KEYS", KEYS)
                .env("E2B_API_KEY", API_KEY)
                .env("E2B_API_URL", &self.host.1)
                .env("E2B_SANDBOX_URL", &self.host.1)
                .env("PATHBOX_OBJECTS_URL", "s3://box/of/pathbox")
                .env("PATHBOX_OBJECTS_ENDPOINT", format!("http://{}", self.bucket.address))
                .env("PATHBOX_OBJECTS_ACCESS_KEY_ID", "id")
                .env("PATHBOX_OBJECTS_SECRET_ACCESS_KEY", "secret"),
        )
    }
}

fn call(server: &HttpServer, tool: &str, arguments: Value) -> Value {
    let mut reply = server.stateless(&[], tool, arguments, json!({"conversationId": "shared"}));
    let mut answer = reply.answer();
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].take()
}

fn python(server: &HttpServer, code: &str) -> Value {
    call(server, "run_code", json!({"code": code, "language": "python"}))
}

/// The whole of a run's output, page by page.
fn pages(server: &HttpServer, id: &Value) -> String {
    let (mut whole, mut offset) = (String::new(), json!(0));
    loop {
        let ask = json!({"execution_id": id, "stream": "stdout", "offset": offset, "limit": 60_000});
        let result = call(server, "get_execution", ask);
        let page = &result["structuredContent"];
        whole.push_str(page["text"].as_str().unwrap_or_else(|| panic!("{result}")));
        match page.get("nextOffset") {
            Some(next) => offset = next.clone(),
            None => return whole,
        }
    }
}

#[test]
#[ignore = "needs PostgreSQL server binaries and moto: scripts/test installs them"]
fn replicas_share_a_database_a_sandbox_host_and_a_bucket() {
    let shared = Shared::start();
    let (first, second) = (shared.replica(0), shared.replica(1));

    // State made through one replica is there through the other.
    assert_eq!(python(&first, "x = 41\nx")["structuredContent"]["output"], "41");
    let kept = python(&second, "x += 1\nx");
    assert_eq!(
        (&kept["structuredContent"]["output"], &kept["structuredContent"]["state"]),
        (&json!("42"), &json!("kept"))
    );

    // What one replica printed, the other pages whole; it lies in the bucket and on no replica's disk.
    let long = python(&first, "for n in range(30_000): print(f'line {n:05}')");
    let id = &long["structuredContent"]["executionId"];
    assert_eq!(long["structuredContent"]["truncated"], true, "{long}");
    let expected: String = (0..30_000).map(|n| format!("line {n:05}\n")).collect();
    assert!(pages(&second, id) == expected, "the other replica pages the whole output");
    let key = format!("of/pathbox/{}/stdout", id.as_str().unwrap());
    assert_eq!(shared.bucket.keys(), [key.as_str()]);
    for directory in &shared.directories[..2] {
        assert!(!contains(directory.path(), "stdout"), "{directory:?}");
    }

    // The host of both is asked for what it has; neither replica ends the other's sandboxes.
    drop(first);
    assert_eq!(python(&second, "x")["structuredContent"]["output"], "42");

    // What is not kept any more is not shown as if the cut text were all of it.
    shared.bucket.request("POST", "/moto-api/reset");
    let ask = json!({"execution_id": id, "stream": "stdout"});
    let page = call(&second, "get_execution", ask);
    assert_eq!(page["isError"], true, "{page}");
    assert!(page["content"][0]["text"].as_str().unwrap().contains("is not available here"), "{page}");
}

fn contains(dir: &Path, name: &str) -> bool {
    let entries: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).collect();
    entries.iter().any(|path| path.ends_with(name) || (path.is_dir() && contains(path, name)))
}

#[test]
#[ignore = "needs PostgreSQL server binaries and moto: scripts/test installs them"]
fn a_bucket_that_does_not_answer_costs_the_whole_output_and_no_run() {
    let mut shared = Shared::start();
    let server = shared.replica(0);
    assert_eq!(python(&server, "x = 1\nx")["structuredContent"]["output"], "1");
    shared.bucket._server.0.kill().unwrap();
    shared.bucket._server.0.wait().unwrap();
    let long = python(&server, "x += 1\nfor n in range(30_000): print(f'line {n:05}')");
    let content = &long["structuredContent"];
    assert_eq!((&content["success"], &content["truncated"]), (&json!(true), &json!(true)), "{long}");
    let links = content["artifacts"].as_array().map_or(0, Vec::len);
    assert_eq!(links, 0, "nothing is linked that is not there: {long}");
    assert!(server.log().contains("an output could not be kept"), "{}", server.log());
    let page =
        call(&server, "get_execution", json!({"execution_id": content["executionId"], "stream": "stdout"}));
    assert_eq!(page["isError"], true, "{page}");
    assert_eq!(python(&server, "x")["structuredContent"]["output"], "2");
}

#[test]
#[ignore = "needs PostgreSQL server binaries and moto: scripts/test installs them"]
fn an_upload_in_parts_goes_on_where_its_replica_was_killed() {
    let shared = Shared::start();
    let (mut first, second) = (shared.replica(0), shared.replica(1));
    let told = call(&first, "files", json!({"action": "upload", "path": "parts.txt"}));
    let url = told["structuredContent"]["url"].as_str().unwrap_or_else(|| panic!("{told}"));
    let up = url[url.find("/files/").unwrap()..].to_owned();
    assert_eq!(first.send("PUT", &format!("{up}?part=1"), &[], b"AAAA").status, 200);
    // The second part is half sent when its replica is gone.
    let mut half = first.connect();
    let head = format!("PUT {up}?part=2 HTTP/1.1\r\nHost: {}\r\nContent-Length: 4\r\n\r\nBB", first.address);
    half.write_all(head.as_bytes()).unwrap();
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let missing = second.send("POST", &format!("{up}?parts=2"), &[], b"");
    assert_eq!(missing.status, 409);
    assert_eq!(second.send("PUT", &format!("{up}?part=2"), &[], b"BBBB").status, 200);
    let done = second.send("POST", &format!("{up}?parts=2"), &[], b"");
    assert_eq!(done.status, 201);
    let read = python(&second, "print(open('parts.txt').read())");
    assert_eq!(read["structuredContent"]["stdout"], "AAAABBBB\n", "{read}");
}

/// A server on a data directory in a network namespace of its own, as in a container.
fn apart(data: &Path, arguments: &str) -> Command {
    let binary = env!("CARGO_BIN_EXE_pathbox");
    let script = format!("ip link set lo up && exec {binary} {arguments}");
    let mut apart = Command::new("unshare");
    apart.env_clear().args(["--net", "--", "sh", "-c", &script]);
    for (name, value) in command(data).get_envs() {
        if let Some(value) = value {
            apart.env(name, value);
        }
    }
    apart
}

fn can_make_namespaces() -> bool {
    let made = Command::new("unshare").args(["--net", "--", "sh", "-c", "ip link set lo up"]).output();
    made.is_ok_and(|output| output.status.success())
}

#[test]
fn a_process_in_another_network_namespace_leaves_this_ones_sandboxes_alone() {
    if !can_make_namespaces() {
        eprintln!("left out: a network namespace needs root, `unshare` and `ip`");
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let mut here = Server::start_with(command(data.path()).args(["serve", "--conversation", "shared"]));
    assert_eq!(here.python("x = 41\nx")["structuredContent"]["output"], "41");

    // From there nothing of this one's host answers, and it is not taken for dead.
    let cleaned = apart(data.path(), "cleanup").output().unwrap();
    let cleaned = String::from_utf8_lossy(&cleaned.stdout).into_owned();
    assert!(cleaned.contains("\"cleaned\":0"), "{cleaned}");
    let mut there = Server::start_with(&mut apart(data.path(), "serve --conversation shared"));
    let refused = there.python("x");
    assert_eq!(refused["isError"], true, "{refused}");
    let text = refused["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("one network namespace") && text.contains("pathbox host"), "{text}");
    drop(there);
    let kept = here.python("x += 1\nx");
    assert_eq!(kept["structuredContent"]["state"], "kept", "{kept}");
    assert_eq!(kept["structuredContent"]["output"], "42");

    // Once its process has ended, its sandboxes are known to be gone, from there too.
    here.child.kill().unwrap();
    here.child.wait().unwrap();
    let mut there = Server::start_with(&mut apart(data.path(), "serve --conversation shared"));
    let after = there.python("'x' in globals()");
    assert_eq!(after["structuredContent"]["output"], "False", "{after}");
    assert_eq!(after["structuredContent"]["state"], "reset", "{after}");
}

#[test]
#[ignore = "needs PostgreSQL server binaries: scripts/test installs them"]
fn two_places_with_local_hosts_on_one_database_are_refused_and_the_second_serves_once_the_first_has_gone() {
    if !can_make_namespaces() {
        eprintln!("left out: a network namespace needs root, `unshare` and `ip`");
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(async { cluster().await.database().await });
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let with = |mut server: Command| {
        server.env("DATABASE_URL", database.url().expose()).env("PATHBOX_SECRET_KEYS", KEYS);
        server.env("PATHBOX_CONTEXTS_REPLICA_LEASE_SECONDS", "2");
        server
    };
    let serve = "serve --conversation shared";
    let mut here = Server::start_with(with(command(dirs[0].path())).args(serve.split(' ')));
    assert_eq!(here.python("x = 41\nx")["structuredContent"]["output"], "41");
    // A second process here reaches the first one's host, also from another data directory.
    let mut beside = Server::start_with(with(command(dirs[1].path())).args(serve.split(' ')));
    assert_eq!(beside.python("x += 1\nx")["structuredContent"]["output"], "42");
    drop(beside);

    let mut there = Server::start_with(&mut with(apart(dirs[2].path(), serve)));
    let refused = there.python("x");
    assert_eq!(refused["isError"], true, "{refused}");
    let text = refused["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("another machine or in another network namespace"), "{text}");
    assert!(text.contains("E2B_API_URL"), "{text}");
    assert_eq!(here.python("x")["structuredContent"]["output"], "42");

    // It goes on trying, and serves once the first one counts as dead; what was in that one's sandboxes is known to be gone.
    here.child.kill().unwrap();
    here.child.wait().unwrap();
    let served = loop {
        let answer = there.python("'x' in globals()");
        if answer["isError"] != true {
            break answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    let content = &served["structuredContent"];
    assert_eq!((&content["output"], &content["state"]), (&json!("False"), &json!("reset")), "{served}");
}

#[test]
#[ignore = "needs PostgreSQL server binaries: scripts/test installs them"]
fn replicas_of_two_places_without_a_bucket_say_that_outputs_are_apart() {
    if !can_make_namespaces() {
        eprintln!("left out: a network namespace needs root, `unshare` and `ip`");
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(async { cluster().await.database().await });
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let (_host, url) = host(dirs[3].path());
    let with = |mut server: Command| {
        server.env("DATABASE_URL", database.url().expose()).env("PATHBOX_SECRET_KEYS", KEYS);
        server.env("E2B_API_KEY", API_KEY).env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url);
        server
    };
    let outputs = |server: &HttpServer| {
        call(server, "manage_context", json!({"action": "list"})); // it has started then
        let said = server.send("GET", "/readyz", &[], b"").answer();
        assert_eq!(said["ready"], true, "{said}");
        said["checks"].as_array().unwrap().iter().find(|check| check["name"] == "outputs").unwrap().clone()
    };
    let alone = HttpServer::start_with(&mut with(command(dirs[0].path())));
    assert_eq!(outputs(&alone)["ok"], true);
    drop(alone);
    let mut there = Server::start_with(&mut with(apart(dirs[1].path(), "serve")));
    there.request("tools/call", json!({"name": "manage_context", "arguments": {"action": "list"}}));
    let here = HttpServer::start_with(&mut with(command(dirs[2].path())));
    assert_eq!(outputs(&here)["ok"], false);
    assert!(here.log().contains("set `objects.url`"), "{}", here.log());
    let doctor = with(command(dirs[2].path())).args(["doctor", "--json"]).output().unwrap();
    let checks: Vec<Value> = serde_json::from_slice(&doctor.stdout).unwrap();
    let found = checks.iter().find(|check| check["name"] == "outputs").unwrap();
    assert!(found["remedy"].as_str().unwrap().contains("`objects.url`"), "{found}");
    assert!(!doctor.status.success());
}

#[test]
#[ignore = "needs PostgreSQL server binaries: scripts/test installs them"]
fn code_of_a_stalled_replica_is_stopped_by_the_one_that_takes_over_the_context() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(async { cluster().await.database().await });
    let directories: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let (_host, url) = host(directories[2].path());
    let replica = |n: usize| {
        HttpServer::start_with(
            command(directories[n].path())
                .env("DATABASE_URL", database.url().expose())
                .env("PATHBOX_SECRET_KEYS", KEYS)
                .env("E2B_API_KEY", API_KEY)
                .env("E2B_API_URL", &url)
                .env("E2B_SANDBOX_URL", &url)
                .env("PATHBOX_CONTEXTS_REPLICA_LEASE_SECONDS", "2"),
        )
    };
    let (first, second) = (replica(0), replica(1));
    for language in ["python", "bash"] {
        let count = format!("/tmp/count-{language}");
        let code = match language {
            "python" => format!(
                "import time\nprint('under way', flush=True)\nwhile True: open({count:?}, 'a').write('x'); time.sleep(.02)"
            ),
            _ => format!("echo under way; while :; do printf x >> {count}; sleep .02; done"),
        };
        let ask = json!({"code": code, "language": language, "timeout_ms": 120_000});
        let meta = json!({"conversationId": language, "dev.pathbox/patienceMs": 300});
        let begun = first.stateless(&[], "run_code", ask, meta).answer();
        let ask = json!({"execution_id": begun["result"]["structuredContent"]["executionId"]});
        let look = || first.stateless(&[], "get_execution", ask.clone(), json!({})).answer().to_string();
        while !look().contains("under way") {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let frozen = signal_to(first.child.id(), "STOP");
        // Its connection to the host stays open. The other replica waits until it counts as dead, and then has the path.
        let size = format!("os.path.getsize({count:?})");
        let look = format!(
            "import os, time\nbefore = -1\nwhile before != {size}:\n    before = {size}; time.sleep(1)\nbefore > 0"
        );
        let ask = json!({"code": look, "language": "python", "timeout_ms": 120_000});
        let meta = json!({"conversationId": language});
        let after = second.stateless(&[], "run_code", ask, meta).answer();
        signal_to(first.child.id(), "CONT");
        assert!(frozen, "the replica was stopped");
        let content = &after["result"]["structuredContent"];
        assert_eq!((&content["output"], &content["state"]), (&json!("True"), &json!("kept")), "{after}");
        assert!(
            second.log().contains("stopped code that a dead replica had left running"),
            "{}",
            second.log()
        );
    }
}

fn signal_to(pid: u32, signal: &str) -> bool {
    Command::new("kill")
        .args([&format!("-{signal}"), &pid.to_string()])
        .status()
        .is_ok_and(|status| status.success())
}

#[test]
fn unusable_keys_stop_the_start_with_a_message() {
    let data = tempfile::tempdir().unwrap();
    for (keys, problem) in [
        ("1:AAAA", "entry 1 is not 32 bytes long"),
        (&format!("{KEYS},AAAA"), "entry 2 is not `id:base64`"),
        ("one:AAAA", "entry 1 has an id that is not a number"),
    ] {
        for arguments in [&["serve"][..], &["serve", "--http", "127.0.0.1:0"], &["cleanup"]] {
            let server =
                command(data.path()).args(arguments).env("PATHBOX_SECRET_KEYS", keys).output().unwrap();
            let said = String::from_utf8_lossy(&server.stderr).into_owned();
            assert!(!server.status.success(), "{arguments:?}: {said}");
            assert!(said.contains(problem) && said.contains("PATHBOX_SECRET_KEYS"), "{arguments:?}: {said}");
        }
    }
}
