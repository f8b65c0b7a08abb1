//! Every setting of the host does something: one program is run under the defaults and under other values, by the real
//! binary, and says what it finds.

use std::collections::BTreeMap;
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use super::{answer, client};
use crate::support::server::command;

const KEY: &str = "e2b_0123456789012345678901234567890123456789";

/// A setting, another value for it, and what the program finds by default and then.
const TABLE: &[(&str, &str, &str, &str)] = &[
    ("host.memory_mb", "300", "1024", "300"),
    ("host.processes", "40", "128", "40"),
    ("host.cpu_percent", "250", "1", "3"),
    ("host.file_mb", "9", "256", "9"),
    ("host.home_mb", "11", "512", "11"),
    ("host.tmp_mb", "12", "256", "12"),
    ("host.shm_mb", "13", "64", "13"),
    ("host.files", "700", "20000", "700"),
    ("host.open_files", "222", "1024", "222"),
    ("host.output_mb", "1", "3", "1"),
    ("host.max_sandboxes", "1", "201", "429"),
    ("host.snapshots_mb", "0", "201", "501"),
    ("host.max_life_hours", "1", "201", "400"),
    ("host.network_connections", "1", "one more is carried", "one more waits"),
    ("host.network_idle_seconds", "1", "quiet is kept", "quiet is closed"),
    ("host.network_mb", "1", "two MiB pass", "two MiB break off"),
    ("host.timezone", "Asia/Tokyo", "", "Asia/Tokyo JST"),
    ("host.locale", "C", "C.UTF-8", "C"),
    ("host.internet", "true", "no way out", "a way out"),
    ("host.cgroups", "false", "", "no shared memory that nobody counts"),
];

/// The reason why a setting is not in the table, and the test that shows it instead.
const ELSEWHERE: &[(&str, &str)] = &[
    ("host.isolation", "jail::weaker"),
    ("host.pool", "host::life::a_ready_sandbox_is_given_away_once_and_replaced"),
    (
        "host.preload",
        "host::interpreter::a_ready_sandbox_has_its_imports_and_a_new_one_does_not_wait_for_them",
    ),
    ("host.python", "kernel_python"),
    ("host.checkpoint_mb", "kernel_checkpoint"),
];

const PROGRAM: &str = r"
import json, mmap, os, resource, time
limit = lambda name: resource.getrlimit(getattr(resource, 'RLIMIT_' + name))[0]
disk = lambda path: os.statvfs(path).f_blocks * os.statvfs(path).f_frsize >> 20
def shared():
    try: mmap.mmap(-1, 4096)
    except OSError: return 'no shared memory that nobody counts'
print(json.dumps({
    'memory_mb': limit('DATA') >> 20,
    'processes': limit('NPROC'),
    'cpu_percent': os.environ['OMP_NUM_THREADS'],
    'file_mb': limit('FSIZE') >> 20,
    'home_mb': disk('/home/user'),
    'tmp_mb': disk('/tmp'),
    'shm_mb': disk('/dev/shm'),
    'files': os.statvfs('/tmp').f_files,
    'open_files': limit('NOFILE'),
    'timezone': os.environ['TZ'] + ' ' + time.tzname[0] if 'TZ' in os.environ else '',
    'locale': os.environ['LANG'],
    'internet': 'a way out' if 'HTTP_PROXY' in os.environ else 'no way out',
    'cgroups': shared() or '',
}))
";

/// Two connections to `PORT` of the machine: whether the second waits for the first's end, whether that is closed for being
/// quiet, and whether all comes that the server sends.
const CONNECTIONS: &str = r"
import json, os, select, socket, urllib.parse
proxy = urllib.parse.urlsplit(os.environ['HTTP_PROXY'])
def tunnel():
    s = socket.create_connection((proxy.hostname, proxy.port), 60)
    s.sendall(b'CONNECT 127.0.0.1:PORT HTTP/1.1\r\n\r\n')
    return s
def head(s):
    head = b''
    while not head.endswith(b'\r\n\r\n'): head += s.recv(1)
one = tunnel(); head(one); two = tunnel()
first = select.select([one, two], [], [], 60)[0]
head(two)
quiet = bool(select.select([one], [], [], 3)[0])
two.sendall(b'?')
got = 0
try:
    while got < 2 << 20 and (piece := two.recv(65536)): got += len(piece)
except OSError: pass
print(json.dumps({
    'network_connections': 'one more waits' if one in first else 'one more is carried',
    'network_idle_seconds': 'quiet is closed' if quiet else 'quiet is kept',
    'network_mb': 'two MiB pass' if got == 2 << 20 else 'two MiB break off',
}))
";

/// A `pathbox host` with these settings.
struct Binary {
    child: Child,
    url: String,
    client: reqwest::Client,
}

impl Drop for Binary {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Binary {
    fn start(data: &std::path::Path, settings: &[(&str, &str)]) -> Self {
        let mut command = command(data);
        command.args(["host", "--listen", "127.0.0.1:0"]).env("E2B_API_KEY", KEY);
        for (name, value) in settings {
            command.env(format!("PATHBOX_{}", name.replace('.', "_").to_uppercase()), value);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.split("E2B_API_URL=").nth(1).and_then(|rest| rest.split(' ').next());
        let url = url.unwrap_or_else(|| panic!("{line:?}")).to_owned();
        Self { child, url, client: client() }
    }

    async fn create(&self, mut body: Value) -> (u16, Value) {
        body["templateID"] = "base".into();
        let create = self.client.post(format!("{}/v2/sandboxes", self.url)).header("x-api-key", KEY);
        answer(create.json(&body)).await
    }

    async fn delete(&self, id: &str) {
        let delete = self.client.delete(format!("{}/sandboxes/{id}", self.url)).header("x-api-key", KEY);
        assert_eq!(answer(delete).await.0, 204);
    }

    /// What code prints.
    async fn run(&self, id: &str, code: &str) -> String {
        let execute = self.client.post(format!("{}/execute", self.url));
        let execute = execute.header("e2b-sandbox-id", id).header("e2b-sandbox-port", "49999");
        let said = execute.json(&json!({"code": code})).send().await.unwrap().text().await.unwrap();
        let events = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut out = String::new();
        for event in events {
            assert_ne!(event["type"], "error", "{event}");
            if event["type"] == "stdout" {
                out += event["text"].as_str().unwrap();
            }
        }
        out
    }

    /// What there is to find, by the last part of a setting's name.
    async fn look(&self, port: u16) -> BTreeMap<String, Value> {
        let (status, first) = self.create(json!({})).await;
        assert_eq!(status, 201, "{first}");
        let id = first["sandboxID"].as_str().unwrap();
        let mut found: BTreeMap<String, Value> = serde_json::from_str(&self.run(id, PROGRAM).await).unwrap();
        let output = self.run(id, "print('x' * (3 << 20))").await;
        found.insert("output_mb".into(), json!(output.len() >> 20));
        found.insert("max_sandboxes".into(), json!(self.create(json!({})).await.0));
        let snapshot = self.client.post(format!("{}/sandboxes/{id}/snapshots", self.url));
        let (status, _) = answer(snapshot.header("x-api-key", KEY).json(&json!({}))).await;
        found.insert("snapshots_mb".into(), json!(status));
        self.delete(id).await;
        let body = json!({"timeout": 7200, "network": {"allowOut": ["127.0.0.1"], "denyOut": ["0.0.0.0/0"]}});
        let (status, mut other) = self.create(body.clone()).await;
        found.insert("max_life_hours".into(), json!(status));
        if status != 201 {
            let mut shorter = body;
            shorter["timeout"] = json!(600);
            other = self.create(shorter).await.1;
        }
        let code = CONNECTIONS.replace("PORT", &port.to_string());
        let said = self.run(other["sandboxID"].as_str().unwrap(), &code).await;
        found.extend(serde_json::from_str::<BTreeMap<String, Value>>(&said).unwrap());
        found
    }
}

/// Answers every client that sends something with 2 MiB.
fn generous_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut stream = stream;
                if let Ok(1..) = stream.read(&mut [0; 10]) {
                    let _ = stream.write_all(&vec![0; 2 << 20]);
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn each_setting_of_the_host_takes_effect() {
    let data = tempfile::tempdir().unwrap();
    let port = generous_server();
    let (mut by_default, mut then) = (vec![("host.pool", "0")], vec![("host.pool", "0")]);
    then.extend(TABLE.iter().map(|(name, other, _, _)| (*name, *other)));
    // Of both, so that the first program is not asked for more than the second gets.
    by_default.push(("host.checkpoint_mb", "0"));
    then.push(("host.checkpoint_mb", "0"));
    let found = [by_default, then].map(|settings| {
        let host = Binary::start(data.path(), &settings);
        async move { host.look(port).await }
    });
    let [by_default, then] = found;
    let (by_default, then) = (by_default.await, then.await);
    for (name, _, expected, expected_then) in TABLE {
        let part = name.strip_prefix("host.").unwrap();
        let shown = |found: &BTreeMap<String, Value>| found[part].to_string().trim_matches('"').to_owned();
        // Not every machine gives control groups.
        if *name != "host.cgroups" {
            assert_eq!(shown(&by_default), *expected, "{name} by default");
        }
        assert_eq!(shown(&then), *expected_then, "{name}");
    }

    let output = command(data.path()).args(["config", "--json"]).output().unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let known: Vec<&str> = TABLE.iter().map(|row| row.0).chain(ELSEWHERE.iter().map(|row| row.0)).collect();
    for key in rows.iter().map(|row| row["key"].as_str().unwrap()).filter(|key| key.starts_with("host.")) {
        assert!(known.contains(&key), "nothing shows that {key} takes effect");
    }
}
