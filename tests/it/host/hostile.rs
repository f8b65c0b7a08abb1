//! What a tenant's programs leave for the host to trip over: output, names, links and trees that no honest program makes.

use http::Method;
use serde_json::{Value, json};

use super::life::HostProcess;
use super::{TestHost, TestSandbox, answer, exit_code, written};

async fn list(host: &TestHost, sandbox: &TestSandbox, path: &str, depth: u32) -> Vec<Value> {
    let message = json!({"path": path, "depth": depth});
    let (status, listed) = host.rpc(sandbox, "/filesystem.Filesystem/ListDir", message).await;
    assert_eq!(status, 200, "{path}: {listed}");
    listed["entries"].as_array().cloned().unwrap_or_default()
}

async fn python(host: &TestHost, sandbox: &TestSandbox, code: &str) -> String {
    let events = host.run(sandbox, &format!("python3 - <<'END'\n{code}\nEND")).await;
    assert_eq!(exit_code(&events), 0, "{}", written(&events, "stderr"));
    written(&events, "stdout")
}

/// What is kept until a result comes that never does: a byte of text between marks, and one before a message full of them.
#[tokio::test]
async fn marks_between_pieces_of_text_do_not_grow_the_host() {
    let host = HostProcess::start(&["--set", "host.pool=0"]);
    let (status, sandbox) = host.create().await;
    assert_eq!(status, 201, "{sandbox}");
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", host.process.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
    };
    let execute = async |code: &str| {
        let request = host.client.post(format!("{}/execute", host.url));
        let request = request.header("e2b-sandbox-id", sandbox["sandboxID"].as_str().unwrap());
        let request = request.header("e2b-sandbox-port", "49999").json(&json!({"code": code}));
        request.timeout(std::time::Duration::from_secs(600)).send().await.unwrap()
    };
    assert!(execute("1 + 1").await.text().await.unwrap().contains("end_of_execution"));
    let before = memory();
    for message in ["mark * 1500 + b'x'", "(mark + b'x') * 1500"] {
        let code = format!(
            "import os\n\
             S = next(c for c in object.__subclasses__() if c.__name__ == 'State' and hasattr(c, 'frame_max'))\n\
             mark = b'\\x1e%s:fffffffe\\x1e' % S.id.encode()\n\
             message = {message}\n\
             for _ in range(800): os.write(1, message)\n\
             print('written')"
        );
        let said = execute(&code).await.text().await.unwrap();
        assert!(said.contains("written"), "{said:.500}");
        let grown = memory().saturating_sub(before);
        assert!(grown < 32 << 20, "{message}: {} MiB", grown >> 20);
    }
    // Frames of the cell's own: errors that name a limit of 3 MB each, and one of too many members, which ends the interpreter.
    let frames = "import json, sys\n\
        d = sys.modules['pathbox_driver']\n\
        def frame(n, **members):\n\
        \x20   data = json.dumps({'t': 'error', 'id': d.State.id, 'k': d.State.frame + n, 'name': 'E', **members}).encode()\n\
        \x20   d.write_all(d.CONTROL, len(data).to_bytes(4, 'little') + data)\n\
        for n in range(16): frame(n, stop=str(n) + 'x' * 3_000_000)\n\
        frame(16, data={str(n): 0 for n in range(200_000)})\n\
        import time; time.sleep(600)";
    let before = memory();
    let said = execute(frames).await.text().await.unwrap();
    assert!(said.contains("ContextRestarting"), "{said:.500}");
    let grown = memory().saturating_sub(before);
    assert!(grown < 40 << 20, "frames: {} MiB", grown >> 20);
    assert!(execute("1 + 1").await.text().await.unwrap().contains("end_of_execution"));
}

#[tokio::test]
async fn names_times_and_sizes_that_no_honest_program_makes_are_listed_and_read() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let code = r"
import os
os.mkdir('odd'); os.chdir('odd')
names = [b'two\nlines', b'\x1b]0;title\x07', b'\xff\xfe\x80', b'x' * 255, ' \u202e '.encode(), b'-rf', b'a\\b', b'\x7f', b'a\r', b'{\'}']
for name in names: open(name, 'wb').write(b'of ' + name)
for name, seconds in [('last', 2**63 - 1), ('first', -2**63), ('far', 10**17), ('before', -1)]:
    open(name, 'w').close(); os.utime(name, (seconds, seconds))
with open('hole', 'wb') as file: file.truncate(60 << 20)
try: os.setxattr('hole', 'user.x', b'x' * 60000)
except OSError: pass
os.mkdir('closed'); os.chmod('closed', 0)
os.symlink('x' * 4000, 'long'); os.symlink('/proc/self/fd', 'fds'); os.symlink('\xff\n', 'broken')
";
    python(&host, &sandbox, code).await;
    let entries = list(&host, &sandbox, "odd", 3).await;
    assert_eq!(entries.len(), 10 + 4 + 1 + 1 + 3, "{entries:?}");
    for entry in &entries {
        let (status, told) =
            host.rpc(&sandbox, "/filesystem.Filesystem/Stat", json!({"path": entry["path"]})).await;
        // What is not text has another name here, by which nothing is found.
        let is_text = !entry["name"].as_str().unwrap().contains('\u{fffd}');
        assert!(status == 200 && told["entry"]["name"] == entry["name"] || !is_text, "{entry}: {told}");
        if entry["type"] != "FILE_TYPE_FILE" || entry["name"] == "hole" || !is_text {
            continue;
        }
        let path = pathbox::wire::control::percent_encode(entry["path"].as_str().unwrap());
        let read =
            host.to(&sandbox, 49983, Method::GET, &format!("/files?path={path}")).send().await.unwrap();
        assert_eq!(read.status(), 200, "{entry}");
        let body = read.text().await.unwrap();
        assert!(
            body.is_empty() || body == format!("of {}", entry["name"].as_str().unwrap()),
            "{entry}: {body}"
        );
    }
    let hole =
        host.to(&sandbox, 49983, Method::GET, "/files?path=odd/hole").header("range", "bytes=62914559-");
    let hole = hole.send().await.unwrap();
    assert_eq!((hole.status().as_u16(), hole.bytes().await.unwrap().to_vec()), (206, vec![0]));
    let (status, _) = host.rpc(&sandbox, "/filesystem.Filesystem/Remove", json!({"path": "odd"})).await;
    assert!(status == 200 || status >= 400, "{status}");
    assert_eq!(exit_code(&host.run(&sandbox, "true").await), 0, "the sandbox lives");
}

/// Each step along a link is a question to the sandbox.
#[tokio::test]
async fn chains_of_links_are_followed_only_so_far() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let code = r"
import os
os.mkdir('chains'); os.chdir('chains')
open('end', 'w').close()
for chain in range(50):
    for link in range(39): os.symlink(f'{chain:03}-{link + 1:02}', f'{chain:03}-{link:02}')
    os.symlink('end', f'{chain:03}-39')
";
    python(&host, &sandbox, code).await;
    let entries = list(&host, &sandbox, "chains", 1).await;
    assert_eq!(entries.len(), 50 * 40 + 1);
    // One that is described by what it leads to is a file.
    let followed = entries.iter().filter(|entry| entry["type"] == "FILE_TYPE_FILE").count();
    assert!((30..500).contains(&followed), "{followed} of {}", entries.len());
    assert!(entries.iter().all(|entry| entry["symlinkTarget"].is_string() || entry["name"] == "end"));
    // Few of them are all followed.
    assert_eq!(exit_code(&host.run(&sandbox, "cd chains; rm 0[1-9]* 00[1-9]*").await), 0);
    let entries = list(&host, &sandbox, "chains", 1).await;
    assert_eq!(entries.len(), 41);
    assert!(entries.iter().all(|entry| entry["type"] == "FILE_TYPE_FILE"), "{entries:?}");
}

/// A path that is a file, a pipe, a link to a device, a directory or nothing by turns, while it is asked for.
#[tokio::test]
async fn a_file_that_changes_during_a_request_is_answered_at_once() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let code = "cat > swap.py <<'END'\n\
        import os, itertools\n\
        def clear():\n\
        \x20   try: os.unlink('it')\n\
        \x20   except IsADirectoryError:\n\
        \x20       os.system('rm -rf it')\n\
        \x20   except OSError: pass\n\
        makers = [lambda: open('it', 'w').write('file'), lambda: os.mkfifo('it'), lambda: os.symlink('/dev/zero', 'it'),\n\
        \x20   lambda: os.makedirs('it/it/it'), lambda: os.symlink('/proc/self/environ', 'it'), lambda: os.symlink('it', 'it')]\n\
        open('begun', 'w').close()\n\
        for make in itertools.cycle(makers):\n\
        \x20   clear()\n\
        \x20   try: make()\n\
        \x20   except OSError: pass\n\
        END\n\
        setsid python3 swap.py >/dev/null 2>&1 & while ! test -e begun; do sleep .05; done";
    assert_eq!(exit_code(&host.run(&sandbox, code).await), 0);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..60 {
        let read = host.to(&sandbox, 49983, Method::GET, "/files?path=it").send().await.unwrap();
        seen.insert(read.status().as_u16());
        // A file that is another one meanwhile breaks off; it never goes on for ever.
        let body = read.bytes().await.map_or(0, |body| body.len());
        assert!(body < 1000, "{body} bytes");
        let write = host.to(&sandbox, 49983, Method::POST, "/files?path=it").body("of the client");
        let write = write.header("content-type", "application/octet-stream");
        seen.insert(answer(write).await.0);
        for (method, message) in [
            ("Stat", json!({"path": "it"})),
            ("ListDir", json!({"path": "it", "depth": 9})),
            ("Move", json!({"source": "it", "destination": "it2"})),
            ("Remove", json!({"path": "it2"})),
            ("MakeDir", json!({"path": "it/it"})),
        ] {
            seen.insert(host.rpc(&sandbox, &format!("/filesystem.Filesystem/{method}"), message).await.0);
        }
    }
    assert!(seen.contains(&200) && seen.iter().all(|status| *status < 500), "{seen:?}");
    assert_eq!(exit_code(&host.run(&sandbox, "true").await), 0, "the sandbox lives");
}

/// A tree deeper than any path, directories closed to everyone, and as many files as there may be.
#[tokio::test]
async fn trees_that_are_hard_to_walk_are_listed_watched_and_removed() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let code = r"
import os
os.makedirs('trees/many'); os.makedirs('trees/closed/in')
for n in range(10500): os.close(os.open(f'trees/many/{n}', os.O_CREAT))
os.chmod('trees/closed/in', 0); os.chmod('trees/closed', 0)
os.mkdir('trees/deep'); os.chdir('trees/deep')
for n in range(1500): os.mkdir('d'); os.chdir('d')
";
    python(&host, &sandbox, code).await;
    let entries = list(&host, &sandbox, "trees", u32::MAX).await;
    assert_eq!(entries.len(), 10_000, "as many as an answer has");
    let watch = json!({"path": "trees", "recursive": true});
    let (status, watcher) = host.rpc(&sandbox, "/filesystem.Filesystem/CreateWatcher", watch).await;
    assert!(status == 200 || (400..500).contains(&status), "{watcher}");
    // As far as the sandbox's user may.
    let (status, told) =
        host.rpc(&sandbox, "/filesystem.Filesystem/Remove", json!({"path": "trees/many"})).await;
    assert_eq!(status, 200, "{told}");
    let (status, told) =
        host.rpc(&sandbox, "/filesystem.Filesystem/Remove", json!({"path": "trees/deep"})).await;
    assert_eq!(status, 200, "however deep: {told}");
    let (status, told) = host.rpc(&sandbox, "/filesystem.Filesystem/Remove", json!({"path": "trees"})).await;
    assert!((400..500).contains(&status), "closed to everybody: {told}");
    assert_eq!(
        exit_code(&host.run(&sandbox, "chmod -R u+rwx trees; rm -rf trees; ! test -e trees").await),
        0
    );
    let path = format!("/sandboxes/{}", sandbox.id);
    assert_eq!(host.api(Method::DELETE, &path, Value::Null).await.0, 204);
}
