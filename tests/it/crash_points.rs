//! A server that dies at any named place leaves nothing behind: after one clean-up pass of another process no sandbox is
//! without an owner, no row is stuck, and nothing ran twice under one idempotency key.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pathbox::execution::crash::POINTS;
use serde_json::{Value, json};

use crate::support::server::{Server, command};

/// A sandbox host in a process of its own: the provider that outlives a server.
struct Provider {
    child: Child,
    url: String,
    key: String,
}

impl Provider {
    fn start(data: &Path) -> Self {
        let key = "e2b_0123456789012345678901234567890123456789".to_owned();
        let mut child = command(data)
            .args(["host", "--listen", "127.0.0.1:0", "--api-key", &key])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        let url = line.split("E2B_API_URL=").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
        Self { child, url, key }
    }

    /// A command that uses this provider, with short leases so that a test does not wait for long ones.
    fn command(&self, data: &Path) -> Command {
        let mut command = command(data);
        command
            .env("E2B_API_URL", &self.url)
            .env("E2B_SANDBOX_URL", &self.url)
            .env("E2B_API_KEY", &self.key)
            .env("PATHBOX_CONTEXTS_CREATE_LEASE_SECONDS", "2")
            .env("PATHBOX_CONTEXTS_CREATE_TIMEOUT_SECONDS", "1")
            .env("PATHBOX_CONTEXTS_RUN_MARGIN_SECONDS", "1");
        command
    }

    /// The tags of an installation's sandboxes, as the provider lists them.
    fn sandboxes(&self, installation: &str) -> Vec<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            use pathbox::domain::{Clock, Entropy};
            use pathbox::e2b::{E2bClient, Endpoint, ListFilter, Options};
            let endpoint = Endpoint::local(self.url.as_str(), pathbox::wire::Secret::new(self.key.as_str()));
            let client = E2bClient::new(
                Options { endpoint, ..Options::default() },
                Clock::system(),
                Entropy::system(),
            )
            .unwrap();
            let metadata = [("pathbox_installation".to_owned(), installation.to_owned())].into();
            let listed = client.list(&ListFilter { metadata, ..ListFilter::default() }).await.unwrap();
            listed.into_iter().map(|sandbox| json!(sandbox.metadata)).collect()
        })
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The name of the installation whose key lies in a data directory.
fn installation(data: &Path) -> String {
    use pathbox::execution::HandleKey;
    use pathbox::store::secrets::Keyring;
    let keyring = Keyring::open(data, &pathbox::domain::Entropy::system()).unwrap();
    HandleKey::derive(&keyring.derive("handles")).installation()
}

fn json_of(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
        panic!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    })
}

/// Counts its own runs, in a file of its sandbox.
const CODE: &str = "import pathlib\np = pathlib.Path('/tmp/runs')\n\
    p.write_text(p.read_text() + 'x' if p.exists() else 'x')\nprint('a@example.com')\np.read_text()";

fn once() -> Value {
    json!({"code": CODE, "language": "python", "idempotency_key": "once", "timeout_ms": 4000})
}

/// A server that dies at `point`, or gets past it, then a clean-up pass that does, then one that looks at what is left.
fn survive(provider: &Provider, point: &str) {
    let data = tempfile::tempdir().unwrap();
    let serve = |command: &mut Command| Server::start_with(command.args(["serve", "--conversation", "c"]));
    {
        let mut server =
            serve(provider.command(data.path()).env("PATHBOX_CRASH_AT", point).stderr(Stdio::null()));
        server.begin("tools/call", json!({"name": "run_code", "arguments": once()}));
        let _ = server.next(Duration::from_secs(60));
    }
    // Places on the way of clean-up are passed by a clean-up pass.
    let _ = provider.command(data.path()).env("PATHBOX_CRASH_AT", point).arg("cleanup").output();
    std::thread::sleep(Duration::from_secs(6));

    let cleaned = json_of(provider.command(data.path()).arg("cleanup"));
    assert_eq!(cleaned["errors"], 0, "{point}: {cleaned}");
    let live = json_of(provider.command(data.path()).args(["contexts", "ls", "--json"]));
    let live: Vec<&str> = live.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    for tag in provider.sandboxes(&installation(data.path())) {
        let owner = tag["pathbox_context"].as_str().unwrap();
        assert!(live.contains(&owner), "{point}: the sandbox of {owner} has no owner; live: {live:?}");
    }

    // The same key again: the record, a first run, or a clear "interrupted". Never a second run.
    let mut server = serve(&mut provider.command(data.path()));
    let again = server.call(once(), json!({}));
    match again["isError"].as_bool() {
        Some(true) => {
            assert_eq!(again["_meta"]["dev.pathbox/error"]["code"], "interrupted", "{point}: {again}")
        }
        _ => assert_eq!(again["structuredContent"]["output"], "x", "{point}: {again}"),
    }
    // The context is usable, whatever happened.
    assert_eq!(server.python("1")["structuredContent"]["output"], "1", "{point}");
    drop(server);
    for id in live {
        let _ = provider.command(data.path()).args(["contexts", "end", id]).output();
    }
    let _ = provider.command(data.path()).arg("cleanup").output();
}

#[test]
fn a_crash_at_any_named_place_leaves_no_orphan_and_nothing_stuck() {
    let data = tempfile::tempdir().unwrap();
    let provider = Provider::start(data.path());
    let next = AtomicUsize::new(0);
    // Several installations on one provider: none may touch another's sandboxes.
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while let Some(point) = POINTS.get(next.fetch_add(1, Ordering::SeqCst)) {
                    survive(&provider, point);
                }
            });
        }
    });
}
