//! The way out of a sandbox: an allow list through the proxy that its agent opens. Everything inside is the attacker;
//! the servers it wants to reach are on this machine's loopback, and names are looked up by a function.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use http::Method;
use pathbox::host::jail::Isolation;
use pathbox::host::network::Resolver;
use serde_json::{Value, json};

use super::{TestHost, TestSandbox, exit_code, written};

/// What a server was sent.
type Heard = Arc<Mutex<Vec<Vec<u8>>>>;

/// A server on the loopback that notes what comes and answers every first piece with `answer`.
fn server(address: [u8; 4], answer: &'static [u8]) -> (u16, Heard) {
    let listener = TcpListener::bind((Ipv4Addr::from(address), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = Heard::default();
    let notes = Arc::clone(&heard);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, notes) = (stream.unwrap(), Arc::clone(&notes));
            std::thread::spawn(move || {
                let place = {
                    let mut notes = notes.lock().unwrap();
                    notes.push(Vec::new());
                    notes.len() - 1
                };
                let mut buffer = [0; 4096];
                let mut first = true;
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    notes.lock().unwrap()[place].extend_from_slice(&buffer[..count]);
                    if std::mem::take(&mut first) && stream.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (port, heard)
}

const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nSet-Cookie: a=b\r\n\r\nhello";

fn web() -> (u16, Heard) {
    server([127, 0, 0, 1], HELLO)
}

fn text(heard: &Heard) -> String {
    heard.lock().unwrap().iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
}

/// Names that were looked up.
type Asked = Arc<Mutex<Vec<String>>>;

/// Looks every name up as the next of these answers, the last one for ever.
fn resolver(answers: &[&[&str]]) -> (Resolver, Asked) {
    let asked = Asked::default();
    let notes = Arc::clone(&asked);
    let answers: VecDeque<Vec<IpAddr>> =
        answers.iter().map(|answer| answer.iter().map(|ip| ip.parse().unwrap()).collect()).collect();
    let answers = Mutex::new(answers);
    let function = move |name: &str| {
        notes.lock().unwrap().push(name.to_owned());
        let mut answers = answers.lock().unwrap();
        let answer = if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0].clone() };
        futures::future::ready(Ok(answer)).boxed()
    };
    (Resolver::Function(Arc::new(function)), asked)
}

/// A host on which every name is this machine.
async fn host() -> (TestHost, Asked) {
    let (resolver, asked) = resolver(&[&["127.0.0.1"]]);
    (TestHost::with(|options| options.network.resolver = resolver).await, asked)
}

fn network(allow: &[&str]) -> Value {
    json!({"network": {"allowOut": allow, "denyOut": ["0.0.0.0/0"]}})
}

/// Runs Python inside; what it printed.
async fn python(host: &TestHost, sandbox: &TestSandbox, code: &str) -> String {
    let events = host.run(sandbox, &format!("python3 - <<'EOF'\n{code}\nEOF")).await;
    assert_eq!(exit_code(&events), 0, "{}", written(&events, "stderr"));
    written(&events, "stdout")
}

/// Talks to the proxy with exactly these bytes; the first line of each answer, or `closed`.
async fn say(host: &TestHost, sandbox: &TestSandbox, requests: &[&str]) -> Vec<String> {
    let code = format!(
        r#"
import os, socket, urllib.parse
proxy = urllib.parse.urlsplit(os.environ['HTTP_PROXY'])
for request in {}:
    s = socket.create_connection((proxy.hostname, proxy.port), 20)
    s.sendall(request.encode())
    answer = s.makefile('rb').readline().decode().strip()
    print(answer or 'closed')
    s.close()
"#,
        json!(requests)
    );
    python(host, sandbox, &code).await.lines().map(str::to_owned).collect()
}

/// A `GET` through the proxy as the standard library makes it: status or error, and body.
fn get(url: &str) -> String {
    format!(
        r#"
import urllib.request, urllib.error
try:
    answer = urllib.request.urlopen({url:?}, timeout=20)
    print(answer.status, answer.read().decode())
except urllib.error.HTTPError as e: print(e.code, e.reason, e.read().decode())
except OSError as e: print('error', e)
"#
    )
}

/// Group 8: a sandbox that asks for nothing has no way out, and no sign of one.
#[tokio::test]
async fn there_is_no_network_unless_it_is_requested() {
    let (port, heard) = web();
    let (host, asked) = host().await;
    // Older clients ask for the internet by default; that alone opens nothing.
    let sandbox = host.create_as(json!({"allow_internet_access": true})).await;
    assert_eq!(
        python(&host, &sandbox, "import os; print([n for n in os.environ if 'prox' in n.lower()])").await,
        "[]\n"
    );
    let answer = python(&host, &sandbox, &get(&format!("http://127.0.0.1:{port}/"))).await;
    assert!(answer.starts_with("error"), "{answer}");
    assert_eq!((text(&heard).as_str(), asked.lock().unwrap().len()), ("", 0));
    let (_, detail) = host.api(Method::GET, &format!("/sandboxes/{}", sandbox.id), Value::Null).await;
    assert_eq!(detail["allowInternetAccess"], false);
}

#[tokio::test]
async fn listed_hosts_are_reached_by_common_programs_and_in_every_language() {
    let (port, heard) = web();
    let (host, _) = host().await;
    let sandbox = host.create_as(network(&["api.test", "127.0.0.1"])).await;
    let url = format!("http://api.test:{port}/path?x=1");
    assert_eq!(python(&host, &sandbox, &get(&url)).await, "200 hello\n");
    let seen = text(&heard);
    assert!(seen.starts_with("GET /path?x=1 HTTP/1.1\r\n"), "{seen}");
    assert!(seen.to_lowercase().contains(&format!("host: api.test:{port}\r\n")), "{seen}");
    // The interpreter that stood ready before there was a policy takes the same way.
    let cell = format!("import urllib.request\nurllib.request.urlopen({url:?}).read().decode()");
    assert_eq!(super::interpreter::text_of(&host, &sandbox, &cell).await, "hello");
    // Its own loopback is not asked of the proxy.
    let own = "import threading, http.server, urllib.request\ns = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\nthreading.Thread(target=s.serve_forever, daemon=True).start()\nprint(urllib.request.urlopen(f'http://localhost:{s.server_port}/').status)";
    assert_eq!(python(&host, &sandbox, own).await, "200\n");
    let (_, detail) = host.api(Method::GET, &format!("/sandboxes/{}", sandbox.id), Value::Null).await;
    assert_eq!(detail["network"]["allowOut"], json!(["api.test", "127.0.0.1"]));
}

#[tokio::test]
async fn unlisted_hosts_are_refused_and_not_even_looked_up() {
    let (port, heard) = web();
    let (host, asked) = host().await;
    let sandbox = host.create_as(network(&["*.good.test", "127.0.0.1"])).await;
    let answer = python(&host, &sandbox, &get(&format!("http://secret.evil.test:{port}/"))).await;
    assert!(
        answer.starts_with("403 Not in this sandbox's allow list pathbox: secret.evil.test is not in"),
        "{answer}"
    );
    let refused = "HTTP/1.1 403 Not in this sandbox's allow list";
    for name in ["good.test", "evil-good.test", "x.good.test.evil.test", "127.1", "2130706433", "0x7f.1"] {
        let answers = say(&host, &sandbox, &[&format!("CONNECT {name}:{port} HTTP/1.1\r\n\r\n")]).await;
        assert!(answers[0] == refused || answers[0].starts_with("HTTP/1.1 400"), "{name}: {answers:?}");
    }
    assert_eq!((text(&heard).as_str(), asked.lock().unwrap().len()), ("", 0));
    // The positive control: the same, with a name that is in the list.
    let answers = say(&host, &sandbox, &[&format!("CONNECT x.good.test:{port} HTTP/1.1\r\n\r\n")]).await;
    assert_eq!(answers, ["HTTP/1.1 200 OK"]);
    assert_eq!(asked.lock().unwrap()[..], ["x.good.test"]);
}

/// The address decides, however it was found, and in whatever clothes it comes.
#[tokio::test]
async fn a_permitted_name_does_not_lead_into_the_machine_s_networks() {
    let (port, heard) = web();
    for address in [
        "127.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "169.254.169.254",
        "10.0.0.1",
        "fd00::1",
        "0.0.0.0",
        "64:ff9b::7f00:1",
    ] {
        let (resolver, _) = resolver(&[&[address]]);
        let host = TestHost::with(|options| options.network.resolver = resolver).await;
        let sandbox = host.create_as(network(&["api.test", "0.0.0.0/0", "::/0"])).await;
        let literal = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
        let answers = say(
            &host,
            &sandbox,
            &[
                &format!("CONNECT api.test:{port} HTTP/1.1\r\n\r\n"),
                &format!("GET http://api.test:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n"),
                &format!("CONNECT {literal}:{port} HTTP/1.1\r\n\r\n"),
            ],
        )
        .await;
        assert_eq!(
            answers[..2],
            ["HTTP/1.1 403 Private address", "HTTP/1.1 403 Private address"],
            "{address}"
        );
        assert_eq!(answers[2], "HTTP/1.1 403 Not in this sandbox's allow list", "{address}");
    }
    assert_eq!(text(&heard), "");
}

/// The machine's own public addresses look like any others, so no range covers them, whatever the rule and the name.
#[tokio::test]
async fn the_machine_s_own_addresses_are_reached_only_when_named_one_by_one() {
    // The address that this machine would use to reach others, where it has one. Nothing is sent.
    let outward = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let outward = outward.connect("192.0.2.1:9").and_then(|()| outward.local_addr()).map(|own| own.ip());
    for address in [Some("127.0.0.1".parse().unwrap()), outward.ok()].into_iter().flatten() {
        let (port, heard) = server([0, 0, 0, 0], HELLO);
        let literal = address.to_string();
        let (resolver, _) = resolver(&[&[&literal]]);
        let host = TestHost::with(|options| options.network.resolver = resolver).await;
        let range = format!("{literal}/24");
        let sandbox = host.create_as(network(&["api.test", "0.0.0.0/0", "::/0", &range])).await;
        let requests = [
            &format!("CONNECT api.test:{port} HTTP/1.1\r\n\r\n")[..],
            &format!("GET http://api.test:{port}/ HTTP/1.1\r\nHost: x\r\n\r\n"),
            &format!("CONNECT {literal}:{port} HTTP/1.1\r\n\r\n"),
            &format!("CONNECT [::ffff:{literal}]:{port} HTTP/1.1\r\n\r\n"),
        ];
        let answers = say(&host, &sandbox, &requests).await;
        let refused = "HTTP/1.1 403 Not in this sandbox's allow list";
        let private = "HTTP/1.1 403 Private address";
        assert_eq!(answers, [private, private, refused, refused], "{literal}");
        assert_eq!(text(&heard), "");
        let sandbox = host.create_as(network(&["api.test", &literal])).await;
        let answers = say(&host, &sandbox, &requests).await;
        assert!(answers.iter().all(|answer| answer == "HTTP/1.1 200 OK"), "{literal}: {answers:?}");
    }
}

/// DNS rebinding: what was judged is what is connected to, and no one asks twice.
#[tokio::test]
async fn a_name_that_resolves_differently_later_leads_nowhere_else() {
    let (port, _) = web();
    // Another address of this machine at the same port, which the list does not name.
    let trap = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), port)).unwrap();
    trap.set_nonblocking(true).unwrap();
    let (resolver, asked) = resolver(&[&["127.0.0.2", "127.0.0.1"], &["127.0.0.2"]]);
    let host = TestHost::with(|options| options.network.resolver = resolver).await;
    let sandbox = host.create_as(network(&["api.test", "127.0.0.1"])).await;
    let url = format!("http://api.test:{port}/");
    assert_eq!(python(&host, &sandbox, &get(&url)).await, "200 hello\n");
    assert_eq!(asked.lock().unwrap().len(), 1);
    let answer = python(&host, &sandbox, &get(&url)).await;
    assert!(answer.starts_with("403 Private address"), "{answer}");
    assert!(trap.accept().is_err(), "nobody knocked");
}

#[tokio::test]
async fn the_tls_greeting_has_to_name_the_host_that_was_asked_for() {
    let (port, heard) = server([127, 0, 0, 1], b"not TLS");
    let (host, _) = host().await;
    let body = json!({"network": {"allowOut": ["api.test", "127.0.0.1"], "denyOut": ["0.0.0.0/0"], "httpsPorts": [port]}});
    let sandbox = host.create_as(body).await;
    let attempt = |first: &str| {
        format!(
            r#"
import os, socket, ssl, urllib.parse
proxy = urllib.parse.urlsplit(os.environ['HTTP_PROXY'])
s = socket.create_connection((proxy.hostname, proxy.port), 20)
s.sendall(b'CONNECT api.test:{port} HTTP/1.1\r\nHost: whatever\r\n\r\n')
head = b''
while not head.endswith(b'\r\n\r\n'): head += s.recv(1)
print(head.split()[1].decode())
def greeting(name):
    out = ssl.MemoryBIO()
    tls = ssl._create_unverified_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    try: tls.do_handshake()
    except ssl.SSLWantReadError: return out.read()
vector = lambda size, body: len(body).to_bytes(size, 'big') + body
def hello(*extensions):
    body = b'\3\3' + bytes(32) + vector(1, b'') + vector(2, b'\x13\1') + vector(1, b'\0') + vector(2, b''.join(extensions))
    return b'\1' + vector(3, body)
named = lambda name: b'\0\0' + vector(2, vector(2, b'\0' + vector(2, name)))
encrypted = b'\xfe\x0d' + vector(2, bytes(120))
padding = lambda size: b'\0\x15' + vector(2, bytes(size))
records = lambda message, size=9999: b''.join(b'\x16\3\1' + vector(2, message[at:at + size]) for at in range(0, len(message), size))
first = {first}
try:
    for at in range(0, len(first), 700): s.sendall(first[at:at + 700])
    print(s.recv(100))
except OSError: print(b'')
"#
        )
    };
    for (first, answer) in [
        ("greeting('api.test')", "200\nb'not TLS'\n"),
        ("greeting('API.test')", "200\nb'not TLS'\n"),
        ("greeting('other.test')", "200\nb''\n"),
        ("greeting(None)", "200\nb''\n"),
        ("b'GET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n'", "200\nb''\n"),
        // Written by hand, to show that it is not the hand that is refused below.
        ("records(hello(padding(3000), named(b'api.test')))", "200\nb'not TLS'\n"),
        ("records(hello(named(b'api.test')), 1)", "200\nb'not TLS'\n"),
        ("records(hello(named(b'api.test'), encrypted))", "200\nb''\n"),
        ("records(hello(encrypted, named(b'api.test')))", "200\nb''\n"),
        ("records(hello(named(b'api.test'), named(b'other.test')))", "200\nb''\n"),
        ("records(hello(named(b'api.test')) + hello(named(b'other.test')))", "200\nb''\n"),
        ("records(hello(padding(40000), named(b'api.test')))", "200\nb''\n"),
    ] {
        let heard_before = heard.lock().unwrap().concat().len();
        assert_eq!(python(&host, &sandbox, &attempt(first)).await, answer, "{first}");
        let passed = heard.lock().unwrap().concat().len() > heard_before;
        assert_eq!(passed, answer.contains("not TLS"), "{first}");
    }
}

#[tokio::test]
async fn by_name_alone_only_the_web_s_ports_are_reached() {
    let (resolver, _) = resolver(&[&["93.184.216.34"]]);
    let host = TestHost::with(|options| {
        options.network.resolver = resolver;
        options.network.dial = Duration::from_secs(1);
    })
    .await;
    let sandbox = host.create_as(network(&["api.test"])).await;
    let answers = say(
        &host,
        &sandbox,
        &[
            "CONNECT api.test:22 HTTP/1.1\r\n\r\n",
            "CONNECT api.test:80 HTTP/1.1\r\n\r\n",
            "GET http://api.test:25/ HTTP/1.1\r\nHost: x\r\n\r\n",
        ],
    )
    .await;
    assert!(answers.iter().all(|answer| answer == "HTTP/1.1 403 Port not allowed"), "{answers:?}");
}

/// Two requests in one, two hosts in one, addresses in disguise: the server sees one request, for the permitted host.
#[tokio::test]
async fn malformed_and_smuggled_requests_reach_no_other_server() {
    let (port, heard) = web();
    let (host, _) = host().await;
    let sandbox = host.create_as(network(&["api.test", "127.0.0.1"])).await;
    let answers = say(
        &host,
        &sandbox,
        &[
            &format!("GET http://api.test:{port}/one HTTP/1.1\r\nHost: evil.test\r\nProxy-Authorization: secret\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n"),
            &format!("GET http://evil.test@api.test:{port}/two HTTP/1.1\r\nHost: x\r\n\r\n"),
            &format!("POST http://api.test:{port}/three HTTP/1.1\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://evil.test/ HTTP/1.1\r\n\r\n"),
            "GET /relative HTTP/1.1\r\nHost: api.test\r\n\r\n",
            "GET https://api.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET ftp://api.test/ HTTP/1.1\r\nHost: x\r\n\r\n",
            "CONNECT api.test HTTP/1.1\r\n\r\n",
            "CONNECT api.test:0 HTTP/1.1\r\n\r\n",
            "CONNECT api.test:99999 HTTP/1.1\r\n\r\n",
            "\u{0}\u{1}\u{2}\r\n\r\n",
            &format!("GET http://api.test:{port}/{} HTTP/1.1\r\n\r\n", "x".repeat(100_000)),
        ],
    )
    .await;
    assert_eq!(answers[..2], ["HTTP/1.1 200 OK", "HTTP/1.1 200 OK"], "{answers:?}");
    assert!(answers[2].starts_with("HTTP/1.1 200") || answers[2].starts_with("HTTP/1.1 400"), "{answers:?}");
    for answer in &answers[3..] {
        assert!(answer.starts_with("HTTP/1.1 4") || answer == "closed", "{answers:?}");
    }
    let seen = text(&heard);
    for absent in ["evil", "secret", "X-Hop", "x-hop"] {
        assert!(!seen.contains(absent), "{absent}: {seen}");
    }
    // One connection, two requests: each is judged.
    let code = format!(
        r#"
import os, http.client, urllib.parse
proxy = urllib.parse.urlsplit(os.environ['HTTP_PROXY'])
c = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=20)
for host in ['api.test', 'evil.test']:
    c.request('GET', f'http://{{host}}:{port}/')
    answer = c.getresponse(); print(answer.status); answer.read()
"#
    );
    assert_eq!(python(&host, &sandbox, &code).await, "200\n403\n");
}

#[tokio::test]
async fn a_new_policy_replaces_the_old_one_and_breaks_off_what_is_open() {
    let (port, _) = server([127, 0, 0, 1], b"x");
    let (host, _) = host().await;
    let sandbox = host.create().await;
    let path = format!("/sandboxes/{}/network", sandbox.id);
    let rules = |allow: Value| json!({"allowOut": allow, "denyOut": ["0.0.0.0/0"]});
    assert_eq!(host.api(Method::PUT, &path, rules(json!(["127.0.0.1"]))).await.0, 204);
    let code = format!(
        r#"
import os, socket, urllib.parse
proxy = urllib.parse.urlsplit(os.environ['HTTP_PROXY'])
s = socket.create_connection((proxy.hostname, proxy.port), 20)
s.sendall(b'CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n')
head = b''
while not head.endswith(b'\r\n\r\n'): head += s.recv(1)
s.sendall(b'?'); print(s.recv(1), flush=True)
open('/tmp/open', 'w')
print(s.recv(1))
"#
    );
    let watching = async {
        let stat = json!({"path": "/tmp/open"});
        while host.rpc(&sandbox, "/filesystem.Filesystem/Stat", stat.clone()).await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(host.api(Method::PUT, &path, json!({"allow_internet_access": false})).await.0, 204);
    };
    let (said, ()) = tokio::join!(python(&host, &sandbox, &code), watching);
    assert_eq!(said, "b'x'\nb''\n");
    let answers = say(&host, &sandbox, &[&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n")]).await;
    assert_eq!(answers, ["HTTP/1.1 403 Not in this sandbox's allow list"]);
    assert_eq!(host.api(Method::PUT, "/sandboxes/inobody/network", json!({})).await.0, 404);
}

#[tokio::test]
async fn bytes_connections_and_quiet_are_bounded() {
    let (port, _) = server([127, 0, 0, 1], &[b'x'; 3000]);
    let (resolver, _) = resolver(&[&["127.0.0.1"]]);
    let host = TestHost::with(|options| {
        options.network.resolver = resolver;
        options.network.max_bytes = 5000;
        options.network.connections = 2;
        options.network.idle = Duration::from_millis(1500);
    })
    .await;
    let sandbox = host.create_as(network(&["127.0.0.1"])).await;
    let code = format!(
        r#"
import os, socket, urllib.parse
proxy = urllib.parse.urlsplit(os.environ['HTTP_PROXY'])
def tunnel():
    s = socket.create_connection((proxy.hostname, proxy.port), 20)
    s.sendall(b'CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n')
    return s
def head(s):
    head = b''
    while not head.endswith(b'\r\n\r\n') and (byte := s.recv(1)): head += byte
    return head.split(b'\r\n')[0]
one, two, three = tunnel(), tunnel(), tunnel()
print(head(one)[:12], head(two)[:12])
three.settimeout(0.3)
try: print(three.recv(1))
except TimeoutError: print('waits')
three.settimeout(20)
print(one.recv(1), 'quiet for too long')
print(head(three)[:12], 'has its place')
def all(s):
    got = 0
    try:
        while piece := s.recv(9999): got += len(piece)
    except OSError: pass
    return got
three.sendall(b'?'); print(all(three))
four = tunnel(); print(head(four)[:12]); four.sendall(b'?'); print(all(four) < 3000)
print(head(tunnel()))
"#
    );
    let said = python(&host, &sandbox, &code).await;
    assert_eq!(
        said,
        "b'HTTP/1.1 200' b'HTTP/1.1 200'\nwaits\nb'' quiet for too long\nb'HTTP/1.1 200' has its place\n3000\nb'HTTP/1.1 200'\nTrue\nb'HTTP/1.1 403 Byte limit met'\n"
    );
}

#[tokio::test]
async fn each_request_is_logged_by_host_and_bytes_and_nothing_of_what_it_carried() {
    // For the whole process: one for this thread alone is not heard of by what other threads were first to reach.
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).expect("no other test listens");
    let (port, _) = web();
    let (host, _) = host().await;
    let sandbox = host.create_as(network(&["api.test", "127.0.0.1"])).await;
    python(&host, &sandbox, &get(&format!("http://api.test:{port}/secret-path?token=secret"))).await;
    python(&host, &sandbox, &get("http://evil.test/")).await;
    let whole_log = log.clone();
    let log = log.text();
    let own = format!("sandbox.id={}", sandbox.id);
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("a sandbox asked for") && line.contains(&own)).collect();
    assert_eq!(lines.len(), 2, "{log}");
    for part in [
        &format!("a sandbox asked for api.test:{port}: done"),
        "kind=\"HTTP\"",
        &format!("sandbox.id={}", sandbox.id),
    ] {
        assert!(lines[0].contains(part), "{part}: {}", lines[0]);
    }
    let number =
        |name: &str| lines[0].split(name).nth(1).unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(number("bytes.sent=") > 50 && number("bytes.received=") as usize == HELLO.len(), "{}", lines[0]);
    assert!(lines[1].contains("a sandbox asked for evil.test:80: was refused"), "{}", lines[1]);
    assert!(!log.lines().any(|line| line.contains(&own) && line.contains("secret")), "{log}");

    // Whoever asks in vain without end gets no line for each, but is counted. The one above is the first.
    let ask = r#"
import os, socket, urllib.parse
proxy = urllib.parse.urlsplit(os.environ['HTTP_PROXY'])
for n in range(1050):
    s = socket.create_connection((proxy.hostname, proxy.port), 20)
    s.sendall(b'GET http://evil.test/ HTTP/1.1\r\n\r\n')
    assert b' 403 ' in s.recv(100)
    s.close()
"#;
    python(&host, &sandbox, ask).await;
    host.api(Method::DELETE, &format!("/sandboxes/{}", sandbox.id), Value::Null).await;
    let counted =
        || whole_log.text().lines().find(|line| line.contains(&own) && line.contains("51 more")).is_some();
    for _ in 0..200 {
        if counted() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(counted());
    let log = whole_log.text();
    let refused = log.lines().filter(|line| line.contains(&own) && line.contains("was refused")).count();
    assert_eq!(refused, 1000);
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn unsupported_network_settings_are_refused_with_a_message() {
    let (host, _) = host().await;
    let refused = async |network: Value| {
        let body = json!({"templateID": "base", "network": network});
        let (status, told) = host.api(Method::POST, "/v2/sandboxes", body).await;
        assert_eq!(status, 400, "{told}");
        told["message"].as_str().unwrap().to_owned()
    };
    for (network, part) in [
        (json!({"allowOut": ["api.test"]}), "you must include '0.0.0.0/0' in deny out"),
        (json!({"allowOut": ["http://api.test"], "denyOut": ["0.0.0.0/0"]}), "neither an address"),
        (json!({"denyOut": ["api.test"]}), "names can only be allowed"),
        (json!({"rules": {"api.test": []}}), "network.rules"),
        (json!({"egressProxy": {"address": "x"}}), "network.egressProxy"),
        (json!({"dnsServers": ["1.1.1.1"]}), "network.dnsServers"),
    ] {
        let said = refused(network).await;
        assert!(said.contains(part), "{said}");
    }
    let host = TestHost::with(|options| options.jail.isolation = Isolation::Landlock).await;
    let mut body = network(&["1.1.1.1"]);
    body["templateID"] = "base".into();
    let (status, told) = host.api(Method::POST, "/v2/sandboxes", body).await;
    assert_eq!(status, 400);
    assert!(told["message"].as_str().unwrap().contains("without network namespaces"), "{told}");
}

/// As at E2B: `https://<port>-<id>.<domain>` leads to whatever listens in the sandbox.
#[tokio::test]
async fn a_server_in_a_sandbox_is_reached_by_its_port() {
    let (host, _) = host().await;
    let sandbox = host.create_as(network(&["127.0.0.1"])).await;
    let server = r#"
import base64, hashlib, http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        if self.headers.get('Upgrade') == 'echo':
            self.send_response(101); self.send_header('Upgrade', 'echo'); self.send_header('Connection', 'upgrade'); self.end_headers()
            self.wfile.write(self.rfile.read(5)[::-1]); self.close_connection = True
            return
        self.answer(b'')
    def do_POST(self): self.answer(self.rfile.read(int(self.headers['Content-Length'])))
    def answer(self, body):
        names = ','.join(sorted(name.lower() for name in self.headers))
        text = f'{self.command} {self.path} {self.headers["Host"]} {names} {len(body)}'.encode()
        self.send_response(200); self.send_header('Content-Length', str(len(text))); self.end_headers(); self.wfile.write(text)
http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Handler).serve_forever()
"#;
    host.run(
        &sandbox,
        &format!("cat > s.py <<'EOF'\n{server}\nEOF\nsetsid python3 s.py >log 2>&1 </dev/null &"),
    )
    .await;
    let get = |port: u16, path: &str| host.to(&sandbox, port, Method::GET, path).send();
    let mut answer = get(8000, "/a?b=1").await.unwrap();
    for _ in 0..400 {
        if answer.status() == 200 {
            break;
        }
        let body: Value = answer.json().await.unwrap();
        assert_eq!((body["code"].as_u64(), body["port"].as_u64()), (Some(502), Some(8000)), "{body}");
        assert_eq!(body["message"], "The sandbox is running but port is not open");
        tokio::time::sleep(Duration::from_millis(50)).await;
        answer = get(8000, "/a?b=1").await.unwrap();
    }
    let said = answer.text().await.unwrap();
    assert!(said.starts_with(&format!("GET /a?b=1 {} accept,host", host.host.addr())), "{said}");
    assert!(!said.contains("e2b-sandbox"), "{said}");
    let posted = host.to(&sandbox, 8000, Method::POST, "/").body(vec![b'x'; 300_000]).send().await.unwrap();
    assert!(posted.text().await.unwrap().ends_with(" 300000"));

    // By the first label of the host, with a protocol of its own.
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(host.host.addr()).await.unwrap();
    let head = format!(
        "GET / HTTP/1.1\r\nHost: 8000-{}.e2b.test\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n12345",
        sandbox.id
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    assert!(said.starts_with("HTTP/1.1 101") && said.ends_with("54321"), "{said}");

    // The proxy of the sandbox is not one of its servers: no one outside can use its rights.
    let port: u16 = python(&host, &sandbox, "import os; print(os.environ['HTTP_PROXY'].split(':')[-1])")
        .await
        .trim()
        .parse()
        .unwrap();
    assert_eq!(get(port, "/").await.unwrap().status(), 502);
}

#[tokio::test]
async fn servers_see_the_host_that_was_asked_for_and_only_those_with_the_token_reach_them() {
    let (host, _) = host().await;
    let body = json!({"network": {"allowPublicTraffic": false, "maskRequestHost": "localhost:${PORT}"}});
    let sandbox = host.create_as(body).await;
    let token = sandbox.told["trafficAccessToken"].as_str().unwrap();
    host.run(&sandbox, "cat > s.py <<'EOF'\nimport http.server\nclass H(http.server.BaseHTTPRequestHandler):\n def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(self.headers['Host'].encode())\nimport socket\nclass S(http.server.HTTPServer): address_family = socket.AF_INET6\nS(('::1', 8001), H).serve_forever()\nEOF\nsetsid python3 s.py >log 2>&1 </dev/null &").await;
    let get = || host.to(&sandbox, 8001, Method::GET, "/");
    let mut status = 502;
    for _ in 0..400 {
        let answer = get().header("e2b-traffic-access-token", token).send().await.unwrap();
        status = answer.status().as_u16();
        if status == 200 {
            assert_eq!(answer.text().await.unwrap(), "localhost:8001");
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(status, 200);
    assert_eq!(get().send().await.unwrap().status(), 403);
}
