//! Servers in a sandbox that mean no good: what they do to the host and to its clients, and what their number does.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::{TestHost, TestSandbox, exit_code};

const PORT: u16 = 8000;
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a server in the sandbox and waits until it listens.
async fn serve(host: &TestHost, sandbox: &TestSandbox, handle: &str) {
    let server = format!(
        r"
import socket, threading, time
listener = socket.create_server(('127.0.0.1', {PORT}), backlog=500)
open('/tmp/listens', 'w')
kept = []
{handle}
while True:
    connection, _ = listener.accept()
    kept.append(connection)
    threading.Thread(target=handle, args=[connection], daemon=True).start()
"
    );
    let start = format!(
        "cat > s.py <<'EOF'\n{server}\nEOF\nsetsid python3 s.py >log 2>&1 </dev/null &\n\
         for _ in $(seq 600); do [ -e /tmp/listens ] && exit 0; sleep 0.05; done; cat log; exit 1"
    );
    let events = host.run(sandbox, &start).await;
    assert_eq!(exit_code(&events), 0, "{events:?}");
}

/// A request to the server, as bytes of a connection of its own.
fn request(sandbox: &TestSandbox, path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {PORT}-{}.test\r\n{more}\r\n", sandbox.id)
}

#[tokio::test]
async fn more_requests_than_have_places_are_refused_and_hold_up_nothing_else() {
    const PLACES: usize = 128;
    const TOO_MANY: usize = 16;
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    // Reads nothing and answers nothing.
    serve(&host, &sandbox, "handle = lambda connection: None").await;
    let (said, mut answers) = mpsc::unbounded_channel();
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..PLACES + TOO_MANY {
        let (addr, request, said) = (host.host.addr(), request(&sandbox, "/", ""), said.clone());
        asking.spawn(async move {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = vec![0; 4096];
            let count = stream.read(&mut answer).await.unwrap();
            said.send(String::from_utf8_lossy(&answer[..count]).into_owned()).unwrap();
        });
    }
    for _ in 0..TOO_MANY {
        let answer = tokio::time::timeout(PATIENCE, answers.recv()).await.expect("is refused").unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("have 128 concurrent requests"), "{answer}");
    }
    assert_eq!(
        host.rpc(&sandbox, "/filesystem.Filesystem/Stat", json!({"path": "/tmp/listens"})).await.0,
        200
    );
    assert!(answers.try_recv().is_err(), "the others wait");

    // Whoever leaves frees a place, though the server goes on saying nothing.
    asking.shutdown().await;
    let status = async || host.to(&sandbox, 1, Method::GET, "/").send().await.unwrap().status().as_u16();
    for _ in 0..600 {
        if status().await != 503 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(status().await, 502, "nobody listens there, and there is a place to find that out");
}

#[tokio::test]
async fn malformed_responses_reach_no_client_and_bytes_after_a_response_are_dropped() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let handle = r"
ok = b'HTTP/1.1 200 OK\r\n'
answers = {
    '/plain': ok + b'Content-Length: 5\r\n\r\nplain',
    '/unasked': b'HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello',
    '/long': ok + b'x: ' + b'y' * 200_000 + b'\r\n\r\n',
    '/endless': ok + b'x: ' + b'y' * 200_000,
    '/many': ok + b'x: y\r\n' * 10_000 + b'\r\n',
    '/two-lengths': ok + b'Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!',
    '/bad-length': ok + b'Content-Length: -1\r\n\r\nhello!',
    '/http2': b'HTTP/2.0 200 OK\r\n\r\n',
    '/garbage': bytes(range(256)) * 10,
    '/nothing': b'',
    '/both': ok + b'Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n' + ok + b'\r\nsmuggled',
    '/more': ok + b'Content-Length: 5\r\n\r\nhello' + ok + b'Content-Length: 8\r\n\r\nsmuggled',
    '/early': b'HTTP/1.1 103 Early Hints\r\n\r\n' * 100 + ok + b'Content-Length: 5\r\n\r\nhello',
    '/mine': ok + b'Connection: close, content-length\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n',
}
def handle(connection):
    head = b''
    while b'\r\n\r\n' not in head: head += connection.recv(4096)
    path = head.split()[1].decode()
    try: connection.sendall(answers[path])
    except OSError: pass
    if path != '/endless': connection.close()
";
    serve(&host, &sandbox, handle).await;
    let get = async |path: &str| {
        let answer = host.to(&sandbox, PORT, Method::GET, path).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap_or_default())
    };
    assert_eq!(get("/plain").await, (200, "plain".into()));
    for path in [
        "/unasked",
        "/long",
        "/endless",
        "/many",
        "/two-lengths",
        "/bad-length",
        "/http2",
        "/garbage",
        "/nothing",
    ] {
        let (status, said) = get(path).await;
        assert_eq!(status, 502, "{path}: {said}");
        assert!(!said.contains("hello"), "{path}: {said}");
    }
    for path in ["/both", "/more", "/early", "/mine"] {
        assert_eq!(get(path).await, (200, "hello".into()), "{path}");
    }
    // On one connection, the answer to the second request is that of the second request.
    for path in ["/more", "/both"] {
        let mut stream = TcpStream::connect(host.host.addr()).await.unwrap();
        let both = request(&sandbox, path, "") + &request(&sandbox, "/plain", "connection: close\r\n");
        stream.write_all(both.as_bytes()).await.unwrap();
        let mut said = String::new();
        tokio::time::timeout(PATIENCE, stream.read_to_string(&mut said)).await.expect("closes").unwrap();
        assert_eq!(said.matches("HTTP/1.1 ").count(), 2, "{said}");
        assert!(said.ends_with("plain") && said.contains("hello") && !said.contains("smuggled"), "{said}");
    }
    let (status, list) = host.api(Method::GET, "/v2/sandboxes", Value::Null).await;
    assert_eq!((status, list.as_array().map(Vec::len)), (200, Some(1)));
}

/// A client that would have the server see more than it asked for, and one that never ends its request.
#[tokio::test]
async fn one_request_reaches_a_server_as_one_however_it_is_framed() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let handle = r"
def handle(connection):
    data = b''
    while True:
        got = connection.recv(4096)
        if not got: break
        data += got
        with open('/tmp/seen', 'ab') as seen: seen.write(got)
        if b'\r\n\r\n' in data: connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok'); break
    connection.close()
";
    serve(&host, &sandbox, handle).await;
    let send = async |bytes: &str| {
        let mut stream = TcpStream::connect(host.host.addr()).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.expect("is answered");
        String::from_utf8_lossy(&answer[..read.unwrap_or(0)]).into_owned()
    };
    let name = format!("{PORT}-{}.test", sandbox.id);
    let smuggled = "POST /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    for framing in [
        format!(
            "content-length: {}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}",
            5 + smuggled.len()
        ),
        format!("content-length: 0\r\ncontent-length: {0}\r\n\r\n{smuggled}", smuggled.len()),
        format!("transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("x: y\r\n content-length: 0\r\ncontent-length: 0\r\n\r\n{smuggled}"),
        format!("content-length: +0\r\n\r\n{smuggled}"),
        format!("x: a\rcontent-length: {0}\r\n\r\n{smuggled}", smuggled.len()),
        format!("upgrade: h2c\r\nconnection: upgrade\r\n\r\n{smuggled}"),
    ] {
        send(&format!("POST /asked HTTP/1.1\r\nhost: {name}\r\n{framing}")).await;
    }
    // Addresses that name another host, another place, or none.
    let elsewhere = format!("http://{}/v2/sandboxes", host.host.addr());
    for (target, hosts) in [
        (elsewhere.as_str(), format!("host: {name}\r\n")),
        ("/%0d%0aGET%20/smuggled", format!("host: {name}\r\n")),
        ("/../../v2/sandboxes", format!("host: {name}\r\n")),
        ("/asked", format!("host: {name}\r\nhost: other.test\r\n")),
        ("*", format!("host: {name}\r\n")),
    ] {
        let said = send(&format!("GET {target} HTTP/1.1\r\n{hosts}connection: close\r\n\r\n")).await;
        assert!(!said.contains("sandboxID"), "{target}: {said}");
    }
    let seen = host.run(&sandbox, "cat /tmp/seen").await;
    let seen = super::written(&seen, "stdout");
    assert!(seen.contains(" /asked HTTP/1.1"), "{seen}");
    // As a body it may arrive; as a request of its own, at the beginning of a line after another's end, it may not.
    assert!(!seen.contains("\r\n\r\nPOST /smuggled") && !seen.starts_with("POST /smuggled"), "{seen}");

    // Half of a body, and then a byte now and then: it holds its own place and nothing else.
    let mut slow = TcpStream::connect(host.host.addr()).await.unwrap();
    let head = format!("POST /slow HTTP/1.1\r\nhost: {name}\r\ncontent-length: 100000\r\n\r\n");
    slow.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..20 {
        let _ = slow.write_all(b"x").await;
        let answer = host.to(&sandbox, PORT, Method::GET, "/asked").send().await.unwrap();
        assert_eq!(answer.text().await.unwrap(), "ok");
    }
}
