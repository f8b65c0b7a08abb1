//! More connections than there is room for: who gets in, how the others are refused, and HTTP/2.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use crate::http_metrics::read;
use crate::support::http::{HttpServer, Reply, initialize};
use crate::support::server::command;

/// A connection from another address of this machine.
async fn connect_from(from: [u8; 4], to: &str) -> std::io::Result<TcpStream> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(Ipv4Addr::from(from).into(), 0))?;
    let stream = socket.connect(to.parse().unwrap()).await?.into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

fn get(stream: &mut TcpStream, path: &str) -> Reply {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    Reply::read(stream.try_clone().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_heads_from_one_address_do_not_lock_out_others() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    // One that works, and keeps its connection.
    let mut kept = server.connect();
    assert_eq!(get(&mut kept, "/healthz").text(), "ok");
    let mut flood = Vec::new();
    for _ in 0..4_100 {
        let mut stream = connect_from([127, 0, 0, 2], &server.address).await.unwrap();
        stream.write_all(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").unwrap();
        flood.push(stream);
    }
    // Another address opens new connections, and its old one is still there.
    assert_eq!(server.post(&[], &initialize("2025-11-25")).status, 200);
    let mut session = server.session(&[]);
    assert_eq!(session.python("6 * 7")["structuredContent"]["output"], "42");
    assert_eq!(get(&mut kept, "/healthz").text(), "ok");
    let counted = read(&server);
    assert_eq!(counted["http_connections_limit"], 4096.0);
    assert!(counted["http_connections"] <= 4096.0, "{counted:?}");
    assert!(counted["http_connections_closed_total{reason=\"crowded\"}"] >= 1.0, "{counted:?}");
    // The first of the flood made room.
    let mut byte = [0];
    assert_eq!(flood[0].read(&mut byte).unwrap_or(0), 0);
}

#[test]
fn when_every_connection_is_in_use_the_answer_is_503_and_health_is_answered() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_MAX_CONNECTIONS", "3"));
    let mut session = server.session(&[]);
    session.python("1");
    let streams: Vec<Reply> = (0..3).map(|_| session.listen(None)).collect();
    let mut refused = server.post(&[], &initialize("2025-11-25"));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("2")));
    assert!(refused.text().contains("http.max_connections"));
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/mcp", 503)] {
        assert_eq!(server.send("GET", path, &[], b"").status, status, "{path}");
    }
    drop(streams);
    // The server sees the end of the streams when it next writes to them.
    while server.post(&[], &initialize("2025-11-25")).status == 503 {
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(read(&server)["http_requests_refused_total{limit=\"connections\"}"] >= 2.0);
}

#[test]
fn a_callers_limit_of_open_requests_does_not_affect_others() {
    let data = tempfile::tempdir().unwrap();
    let add = |name: &str| {
        let output = command(data.path())
            .args(["keys", "add", "--json", "--tenant", "acme", "--name", name])
            .output()
            .unwrap();
        let made: Value = serde_json::from_slice(&output.stdout).unwrap();
        format!("Bearer {}", made["key"].as_str().unwrap())
    };
    let (greedy, other) = (add("greedy"), add("other"));
    let server = HttpServer::start_with(
        command(data.path())
            .env("PATHBOX_HTTP_AUTH", "required")
            .env("PATHBOX_HTTP_MAX_REQUESTS_PER_PRINCIPAL", "2"),
    );
    // A credential is checked once the database is there.
    while server.send("GET", "/readyz", &[], b"").status != 200 {
        std::thread::sleep(Duration::from_millis(100));
    }
    let headers = [("Authorization", greedy.as_str())];
    let streams = [(); 2].map(|()| server.send("GET", "/sse", &headers, b""));
    assert!(streams.iter().all(|stream| stream.status == 200));
    let mut refused = server.post(&headers, &initialize("2025-11-25"));
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("5")));
    assert!(refused.text().contains("http.max_requests_per_principal"));
    assert_eq!(server.post(&[("Authorization", &other)], &initialize("2025-11-25")).status, 200);
}

#[test]
fn health_has_an_address_of_its_own_where_one_is_set() {
    let data = tempfile::tempdir().unwrap();
    let server =
        HttpServer::start_with(command(data.path()).env("PATHBOX_HTTP_HEALTH_LISTEN", "127.0.0.1:0"));
    let log = server.log();
    let address =
        log.split("serving health at http://").nth(1).and_then(|rest| rest.split_whitespace().next());
    let mut stream = TcpStream::connect(address.unwrap_or_else(|| panic!("{log}"))).unwrap();
    assert_eq!(get(&mut stream, "/healthz").text(), "ok");
    assert_eq!(get(&mut stream, "/mcp").status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_http_2_is_served_on_the_same_port() {
    let data = tempfile::tempdir().unwrap();
    let server = HttpServer::start(data.path());
    drop(rustls::crypto::ring::default_provider().install_default());
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let url = format!("http://{}/mcp", server.address);
    let accept = "application/json, text/event-stream";
    let hello =
        client.post(&url).header("Accept", accept).json(&initialize("2025-11-25")).send().await.unwrap();
    assert_eq!((hello.version(), hello.status().as_u16()), (reqwest::Version::HTTP_2, 200));
    let session = hello.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    let send = async |message: Value| {
        let request = client.post(&url).header("Accept", accept).header("Mcp-Session-Id", &session);
        request.json(&message).send().await.unwrap().text().await.unwrap()
    };
    send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    let call = |id: u64, code: &str| {
        let arguments = json!({"code": code, "language": "python"});
        let params = json!({"name": "run_code", "arguments": arguments});
        send(json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}))
    };
    call(1, "x = 40").await;
    let (one, two) = tokio::join!(call(2, "x + 1"), call(3, "x + 2"));
    assert!(one.contains("41") && two.contains("42"), "{one}\n{two}");
    // A foreign authority is refused as a foreign Host is.
    let foreign = client.get(url.replace("/mcp", "/healthz")).header("Host", "evil.example").send().await;
    assert!(foreign.map_or(true, |answer| answer.status().is_client_error()));
}
