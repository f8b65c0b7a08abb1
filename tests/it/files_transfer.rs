//! Files by one-time addresses, in parts, through `/v1` and through `pathbox files`; long ones, which no one holds in memory.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Output, Stdio};

use pathbox::domain::Clock;
use serde_json::{Value, json};

use crate::support::database::{Disk, cluster, fill};
use crate::support::http::{HttpServer, Reply};
use crate::support::server::{Server, command};

const META: &str = "dev.pathbox/conversationId";

fn ask(server: &HttpServer, tool: &str, arguments: Value) -> Value {
    let result = server.stateless(&[], tool, arguments, json!({META: "c"})).answer()["result"].take();
    assert!(result.get("isError").is_none(), "{result}");
    result["structuredContent"].clone()
}

fn python(server: &HttpServer, code: &str) -> Value {
    ask(server, "run_code", json!({"code": code, "language": "python"}))
}

/// An address of the tool's, without the host.
fn address(server: &HttpServer, action: &str, path: &str) -> String {
    let answer = ask(server, "files", json!({"action": action, "path": path}));
    let url = answer["url"].as_str().unwrap_or_else(|| panic!("{answer}"));
    let at = url.find("/files/").unwrap();
    assert_eq!(url[..at], format!("http://{}", server.address), "{answer}");
    url[at..].to_owned()
}

fn json_of(mut reply: Reply) -> (u16, Value) {
    let text = reply.text();
    (reply.status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{} {text}", reply.status)))
}

fn send(server: &HttpServer, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
    json_of(server.send(method, path, &[], body))
}

#[test]
fn an_address_takes_or_gives_one_file_once() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let up = address(&server, "upload", "in/报告 é.txt");
    // Whoever holds it needs no credential, but the way must be right; asking wrongly uses nothing up.
    assert_eq!(send(&server, "GET", &up, b"").0, 405);
    assert_eq!(send(&server, "PUT", &format!("{up}?part=0"), b"x").0, 400);
    let (status, put) = send(&server, "PUT", &up, "Zoë: zoe@example.com\n".as_bytes());
    assert_eq!((status, &put["bytes"]), (201, &json!(22)), "{put}");
    let (status, other) = send(&server, "PUT", &up, b"other");
    assert_eq!(status, 409, "{other}");
    assert!(other.to_string().contains("has taken another file. Request a new address"), "{other}");
    assert_eq!(send(&server, "PUT", &format!("{up}?part=1"), b"other").0, 404);
    assert_eq!(send(&server, "POST", &format!("{up}?parts=1"), b"").0, 409);
    let same = send(&server, "PUT", &up, "Zoë: zoe@example.com\n".as_bytes());
    assert_eq!(same, (201, put), "its answer may have been lost");
    let read = python(&server, "len(open('in/报告 é.txt').read())");
    assert_eq!((&read["output"], &read["state"]), (&json!("21"), &json!("kept")), "{read}");

    let down = address(&server, "download", "in/报告 é.txt");
    let mut head = server.send("HEAD", &down, &[], b"");
    assert_eq!((head.status, head.text().as_str()), (200, ""), "a look uses nothing up");
    let mut got = server.send("GET", &down, &[], b"");
    let name = got.header("content-disposition").unwrap().to_owned();
    assert!(name.starts_with("attachment;") && name.contains("%E6%8A%A5%E5%91%8A%20%C3%A9.txt"), "{name}");
    assert!(got.header("content-security-policy").unwrap().contains("sandbox"));
    assert_eq!(got.header("cache-control"), Some("no-store"));
    assert_eq!(got.text(), "Zoë: [EMAIL_1]\n", "it has been through the guard");
    assert_eq!(send(&server, "GET", &down, b"").0, 404);

    // A token that was altered, and one that never was.
    let mut altered = address(&server, "upload", "x").into_bytes();
    let last = altered.last_mut().unwrap();
    *last = if *last == b'A' { b'B' } else { b'A' };
    for path in
        [String::from_utf8(altered).unwrap(), "/files/x".to_owned(), format!("/files/{}", "A".repeat(5000))]
    {
        assert_eq!(send(&server, "PUT", &path, b"x").0, 404, "{path}");
    }
    // Two at once: one of them.
    let up = address(&server, "upload", "race.txt");
    let both = std::thread::scope(|scope| {
        let one = scope.spawn(|| send(&server, "PUT", &up, b"one").0);
        let two = scope.spawn(|| send(&server, "PUT", &up, b"two").0);
        let mut both = [one.join().unwrap(), two.join().unwrap()];
        both.sort_unstable();
        both
    });
    assert_eq!(both, [201, 409]);
    assert!(!server.log().contains("/files/"), "no address is logged: {}", server.log());
}

/// The sender cannot know that the file has come, and sends it again.
#[test]
fn an_upload_whose_answer_was_lost_is_answered_again_and_stored_once() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    python(&server, "open('a.txt', 'w').write('old')");
    let up = address(&server, "upload", "a.txt");
    let mut lost = server.connect();
    let head = format!("PUT {up} HTTP/1.1\r\nHost: {}\r\nContent-Length: 4\r\n\r\nsent", server.address);
    lost.write_all(head.as_bytes()).unwrap();
    assert_eq!(lost.read(&mut [0; 1]).unwrap(), 1, "it has been stored");
    drop(lost);
    python(&server, "assert open('a.txt').read() == 'sent'; open('a.txt', 'w').write('changed')");
    let (status, first) = send(&server, "PUT", &up, b"sent");
    assert_eq!((status, &first["bytes"], &first["path"]), (201, &json!(4), &json!("a.txt")), "{first}");
    assert!(first["version"].is_string() && first["replaced"].is_string(), "{first}");
    assert_eq!(send(&server, "PUT", &up, b"sent"), (201, first));
    assert_eq!(python(&server, "print(open('a.txt').read())")["stdout"], "changed\n", "it was not put again");
}

/// A sender that never completes fills the server's disk only so far, and not for long.
#[test]
fn uploads_that_are_not_complete_are_bounded_and_go() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let (one, two) = (address(&server, "upload", "one.bin"), address(&server, "upload", "two.bin"));
    let put = |address: &str, part: usize| send(&server, "PUT", &format!("{address}?part={part}"), b"1234");
    assert_eq!(put(&one, 1).0, 200);
    let uploads = data.path().join("outputs/uploads");
    let upload = std::fs::read_dir(uploads.join("local")).unwrap().next().unwrap().unwrap().path();
    let sparse = |path: std::path::PathBuf, bytes: u64| {
        let file = std::fs::File::create(path).unwrap();
        file.set_len(bytes).unwrap();
        file
    };
    sparse(upload.join("part-2"), (1 << 30) - 7);
    let (status, refused) = put(&one, 3);
    assert!(status == 413 && refused.to_string().contains("larger than"), "{refused}");
    assert_eq!(put(&one, 2).0, 200, "it takes the place of the long one");
    // Another upload of the tenant holds all that there is.
    let left = uploads.join("local/left");
    std::fs::create_dir(&left).unwrap();
    let old = sparse(left.join("part-1"), (4 << 30) - 8);
    let (status, refused) = put(&two, 1);
    assert!(status == 429 && refused.to_string().contains("?parts=N"), "{refused}");
    assert_eq!(put(&one, 2).0, 200, "it takes no more than it has");
    let sent_at = Clock::system().now() - std::time::Duration::from_secs(31 * 60);
    old.set_modified(sent_at.into()).unwrap();
    assert!(command(data.path()).arg("cleanup").status().unwrap().success());
    assert!(!left.exists());
    assert_eq!(put(&two, 1).0, 200);
    for (address, parts) in [(&one, 2), (&two, 1)] {
        let (status, done) = send(&server, "POST", &format!("{address}?parts={parts}"), b"");
        assert_eq!((status, &done["bytes"]), (201, &json!(4 * parts)), "{done}");
    }
    assert!(!uploads.exists(), "not even a directory");
}

#[test]
fn an_interrupted_or_multipart_upload_is_complete_in_the_end() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    let up = address(&server, "upload", "parts.bin");
    // Broken off: the address is as good as before, and nothing is in the sandbox.
    let mut broken = server.connect();
    let head = format!("PUT {up} HTTP/1.1\r\nHost: {}\r\nContent-Length: 100\r\n\r\nhalf", server.address);
    broken.write_all(head.as_bytes()).unwrap();
    broken.shutdown(std::net::Shutdown::Both).unwrap();
    // In any order, and once more.
    for (number, text) in [(2, "wrong"), (3, "CC"), (1, "AAAA"), (2, "BBB")] {
        let (status, part) = send(&server, "PUT", &format!("{up}?part={number}"), text.as_bytes());
        assert_eq!((status, &part["part"]), (200, &json!(number)), "{part}");
    }
    let (status, missing) = send(&server, "POST", &format!("{up}?parts=4"), b"");
    assert!(status == 409 && missing.to_string().contains("part 4 is missing"), "{missing}");
    let exists = python(&server, "import os; os.path.exists('parts.bin')");
    assert_eq!(exists["output"], "False", "{exists}");
    let (status, done) = send(&server, "POST", &format!("{up}?parts=3"), b"");
    assert_eq!((status, &done["bytes"]), (201, &json!(9)), "{done}");
    assert_eq!(python(&server, "print(open('parts.bin').read())")["stdout"], "AAAABBBCC\n");
    assert_eq!(send(&server, "PUT", &format!("{up}?part=1"), b"late").0, 404);
    assert_eq!(send(&server, "POST", &format!("{up}?parts=3"), b""), (201, done), "its answer was lost");
    assert_eq!(send(&server, "POST", &format!("{up}?parts=2"), b"").0, 409);
    assert_eq!(send(&server, "PUT", &up, b"AAAABBBCC").0, 201, "the same file, whole");
    // Nothing of it is left, and nothing leads to a part as if it were an artifact.
    let left = walk(data.path()).into_iter().filter(|path| path.contains("part-")).count();
    assert_eq!(left, 0);
}

#[test]
fn a_full_disk_refuses_an_upload_and_the_address_is_good_once_there_is_room() {
    let Ok(disk) = Disk::mounted(48) else {
        eprintln!("this account may not mount: nothing is tried");
        return;
    };
    let server = HttpServer::start(&disk.0.join("data"));
    let up = address(&server, "upload", "late.txt");
    let filler = disk.0.join("filler");
    fill(&filler);
    for path in [up.clone(), format!("{up}?part=1")] {
        let (status, refused) = send(&server, "PUT", &path, &[b'x'; 30_000]);
        assert_eq!(
            (status, &refused["error"]["code"]),
            (507, &json!("store_unavailable")),
            "{path}: {refused}"
        );
    }
    std::fs::remove_file(&filler).unwrap();
    let (status, put) = send(&server, "PUT", &up, b"there is room");
    assert_eq!((status, &put["bytes"]), (201, &json!(13)), "{put}");
    assert_eq!(python(&server, "print(open('late.txt').read())")["stdout"], "there is room\n");
}

fn walk(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(walk(&entry.path())),
            _ => found.push(entry.path().display().to_string()),
        }
    }
    found
}

/// The most memory that the process ever had, in KiB.
fn peak(server: &HttpServer) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_hundred_megabytes_go_in_and_out_without_being_held_in_memory() {
    const MEGA: usize = 1_000_000;
    let data = tempfile::tempdir().unwrap();
    let policy = data.path().join("policy.toml");
    std::fs::write(&policy, "opaque_files = \"let_out\"\n").unwrap();
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_GUARD_POLICY", &policy));
    // Whatever a first use costs is not counted.
    let up = address(&server, "upload", "small");
    assert_eq!(send(&server, "PUT", &up, b"x").0, 201);
    let before = peak(&server);

    let up = address(&server, "upload", "big.bin");
    let mut stream = server.connect();
    let length = 100 * MEGA;
    write!(
        stream,
        "PUT {up} HTTP/1.1\r\nHost: {}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n",
        server.address
    )
    .unwrap();
    // No text and no format: a megabyte that differs from the next in its first bytes.
    let mut piece: Vec<u8> = (0..MEGA).map(|at| (at * 31 % 256) as u8).collect();
    for number in 0..100_u32 {
        piece[..4].copy_from_slice(&number.to_le_bytes());
        stream.write_all(&piece).unwrap();
    }
    let (status, put) = json_of(Reply::read(stream));
    assert_eq!((status, &put["bytes"]), (201, &json!(length)), "{put}");

    let down = address(&server, "download", "big.bin");
    let mut stream = server.connect();
    write!(stream, "GET {down} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address).unwrap();
    let mut stream = std::io::BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        std::io::BufRead::read_line(&mut stream, &mut head).unwrap();
    }
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let mut got = vec![0; MEGA];
    for number in 0..100_u32 {
        stream.read_exact(&mut got).unwrap();
        piece[..4].copy_from_slice(&number.to_le_bytes());
        assert!(got == piece, "megabyte {number} differs");
    }
    assert_eq!(stream.read(&mut got).unwrap(), 0);

    // Text of more than what is looked at whole: line by line, in pieces.
    let code = "f = open('long.csv', 'w')\nfor n in range(340_000): f.write(f'{n},' + 'word ' * 20 + '\\n')\n\
        f.write('last,zoe@example.com\\n'); f.close()\nimport os; os.path.getsize('long.csv')";
    let made = python(&server, code);
    let size: u64 = made["output"].as_str().unwrap().parse().unwrap();
    assert!(size > 32 * 1024 * 1024, "{made}");
    let got = ask(&server, "files", json!({"action": "get", "path": "long.csv"}));
    assert_eq!(got["guard"]["findings"]["EMAIL"], 1, "{got}");
    let grown = peak(&server) - before;
    assert!(grown < 60 * 1024, "{grown} KiB more than before, of files of {length} and {size} bytes");
}

#[tokio::test]
async fn an_address_is_good_at_every_replica_and_used_up_at_all() {
    let database = cluster().await.empty_database();
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = |dir: &Path| {
        let key = "1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        HttpServer::start_with(
            command(dir).env("DATABASE_URL", database.url().expose()).env("PATHBOX_SECRET_KEYS", key),
        )
    };
    let first = start(one.path());
    let second = start(two.path());
    let up = address(&first, "upload", "shared.txt");
    let (status, put) = send(&second, "PUT", &up, b"by the other");
    assert_eq!(status, 201, "{put}");
    for server in [&first, &second] {
        assert_eq!(send(server, "PUT", &up, b"again").0, 409);
        assert_eq!(send(server, "PUT", &up, b"by the other"), (201, put.clone()));
        assert_eq!(python(server, "print(open('shared.txt').read())")["stdout"], "by the other\n");
    }
}

fn cli(data: &Path, arguments: &[&str]) -> Output {
    command(data).arg("files").args(arguments).current_dir(data).output().unwrap()
}

fn said(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    out.into_owned()
}

#[test]
fn a_person_moves_files_beside_a_server_on_standard_input() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let mut call = |arguments: Value| {
        let answer = server.request("tools/call", json!({"name": "files", "arguments": arguments}));
        assert!(answer["result"].get("isError").is_none(), "{answer}");
        answer["result"]["structuredContent"].clone()
    };
    let told = call(json!({"action": "upload", "path": "in/it's.csv"}));
    assert!(
        told["command"]
            .as_str()
            .unwrap()
            .starts_with("pathbox files put FILE 'in/it'\\''s.csv' --context ctx_"),
        "{told}"
    );
    let handle = told["context"].as_str().unwrap();
    std::fs::write(data.path().join("own.csv"), "a,b\n1,zoe@example.com\n").unwrap();
    let put = said(&cli(data.path(), &["put", "own.csv", "in/it's.csv", "--context", handle, "--json"]));
    let put: Value = serde_json::from_str(&put).unwrap();
    assert_eq!((&put["path"], &put["bytes"]), (&json!("in/it's.csv"), &json!(22)), "{put}");
    let seen = call(json!({"action": "get", "path": "in/it's.csv"}));
    assert_eq!((&seen["state"], &seen["version"]), (&json!("kept"), &put["version"]), "{seen}");
    assert!(said(&cli(data.path(), &["ls", "in", "--context", handle])).contains("it's.csv  22"));
    let got = said(&cli(data.path(), &["get", "in/it's.csv", "--context", handle]));
    assert_eq!(got, "it's.csv: 16 bytes, 1 values hidden\n");
    assert_eq!(std::fs::read_to_string(data.path().join("it's.csv")).unwrap(), "a,b\n1,[EMAIL_1]\n");
    assert_eq!(
        said(&cli(data.path(), &["get", "in/it's.csv", "-", "--context", handle])),
        "a,b\n1,[EMAIL_1]\n"
    );
    // What is there and no regular file is written to, not replaced; nor is a link.
    let [pipe, link] = ["pipe", "link"].map(|name| data.path().join(name));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read_to_string(pipe).unwrap()
    });
    said(&cli(data.path(), &["get", "in/it's.csv", "pipe", "--context", handle]));
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&pipe.metadata().unwrap().file_type()), "{pipe:?}");
    assert_eq!(reader.join().unwrap(), "a,b\n1,[EMAIL_1]\n");
    std::os::unix::fs::symlink("own.csv", &link).unwrap();
    said(&cli(data.path(), &["get", "in/it's.csv", "link", "--context", handle]));
    assert!(link.is_symlink(), "{link:?}");
    assert_eq!(std::fs::read_to_string(data.path().join("own.csv")).unwrap(), "a,b\n1,[EMAIL_1]\n");
    let wrong = cli(data.path(), &["get", "nowhere", "--context", handle]);
    let error = String::from_utf8_lossy(&wrong.stderr);
    assert!(!wrong.status.success() && error.contains("no file of this name"), "{error}");
    let unnamed = cli(data.path(), &["ls"]);
    assert!(String::from_utf8_lossy(&unnamed.stderr).contains("--context HANDLE"));
}

#[test]
fn a_person_moves_files_through_a_server_with_a_key() {
    let data = tempfile::tempdir().unwrap();
    let key = |name: &str| {
        let add = ["keys", "add", "--json", "--name", name, "--tenant", "acme", "--scopes", "run,read"];
        let output = command(data.path()).args(add).output().unwrap();
        let made: Value = serde_json::from_slice(&output.stdout).unwrap();
        made["key"].as_str().unwrap().to_owned()
    };
    let (ann, bob) = (key("ann"), key("bob"));
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_AUTH", "required"));
    let away = tempfile::tempdir().unwrap();
    let by = |who: &str, arguments: &[&str]| {
        let url = format!("http://{}", server.address);
        let more = ["--server", &url, "--conversation", "c"];
        let mut command = command(away.path());
        command.env("PATHBOX_API_KEY", who).arg("files").args(arguments).args(more);
        command.current_dir(away.path()).output().unwrap()
    };
    let bytes: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).map(|byte| byte % 64 + 32).collect();
    std::fs::write(away.path().join("own.txt"), &bytes).unwrap();
    assert!(said(&by(&ann, &["put", "own.txt"])).starts_with("own.txt: 1200000 bytes, version "));
    assert!(said(&by(&ann, &["ls"])).contains("own.txt  1200000"));
    said(&by(&ann, &["get", "own.txt", "back.txt"]));
    assert_eq!(std::fs::read(away.path().join("back.txt")).unwrap().len(), bytes.len());
    // Another principal of the tenant has a conversation of the same name, and nothing is in it.
    let theirs = by(&bob, &["get", "own.txt", "theirs.txt"]);
    assert!(
        !theirs.status.success() && String::from_utf8_lossy(&theirs.stderr).contains("no file of this name")
    );
    assert!(!away.path().join("theirs.txt").exists());
    let nobody = by("pbx_wrong", &["ls"]);
    assert!(!nobody.status.success(), "a key is needed");
}

/// Takes one request, with its body, and gives the connection for the answer.
fn taken(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    let mut lines = BufReader::new(&stream);
    let (mut line, mut length) = (String::new(), 0);
    while lines.read_line(&mut line).unwrap() > 2 {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    std::io::copy(&mut lines.by_ref().take(length), &mut std::io::sink()).unwrap();
    stream
}

#[test]
fn a_slow_transfer_reports_its_progress() {
    const HALF: usize = 1_000_000;
    let away = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut get = command(away.path());
    get.args(["files", "get", "f.bin", "--conversation", "c", "--server", &url]).current_dir(away.path());
    let mut get = get.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let address = json!({"url": format!("{url}/files/t"), "name": "f.bin", "bytes": 2 * HALF}).to_string();
    let head =
        |length: usize| format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    taken(&listener).write_all((head(address.len()) + &address).as_bytes()).unwrap();
    let mut body = taken(&listener);
    body.write_all(head(2 * HALF).as_bytes()).unwrap();
    body.write_all(&[b'x'; HALF]).unwrap();
    // The other half is sent once it has said that half is there.
    let mut said = BufReader::new(get.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line == "get f.bin: 1.0 of 2.0 MB"));
    body.write_all(&[b'x'; HALF]).unwrap();
    drop(body);
    let done = get.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "f.bin: 2000000 bytes\n", "{done:?}");
    assert_eq!(std::fs::metadata(away.path().join("f.bin")).unwrap().len(), 2 * HALF as u64);
}
