//! Who gets in: dispatch, tokens, odd and hostile requests.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{TestHost, answer, exit_code, written};

#[tokio::test]
async fn envd_asks_for_the_sandboxs_own_token_and_health_does_not() {
    let host = TestHost::start().await;
    let (mut one, two) = (host.create().await, host.create().await);
    let right = one.token.clone();
    for token in [None, two.token.clone(), Some(String::new()), Some(host.host.api_key().expose().to_owned())]
    {
        one.token = token;
        for (method, path) in [
            (Method::GET, "/metrics"),
            (Method::GET, "/envs"),
            (Method::GET, "/files?path=/etc/passwd"),
            (Method::POST, "/files?path=x"),
            (Method::POST, "/process.Process/List"),
            (Method::POST, "/filesystem.Filesystem/Stat"),
            (Method::GET, "/no/such/route"),
        ] {
            let (status, body) = answer(host.to(&one, 49983, method, path)).await;
            assert_eq!((status, &body["code"]), (401, &json!(401)), "{path}");
        }
        assert_eq!(answer(host.to(&one, 49983, Method::GET, "/health")).await.0, 204);
    }
    one.token = right;
    assert_eq!(host.rpc(&one, "/process.Process/List", json!({})).await, (200, json!({"processes": []})));
    let open = host.api(Method::POST, "/sandboxes", json!({"templateID": "base", "timeout": 60})).await.1;
    one.id = open["sandboxID"].as_str().unwrap().to_owned();
    one.token = None;
    assert_eq!(host.rpc(&one, "/process.Process/List", json!({})).await.0, 200);
}

#[tokio::test]
async fn a_sandbox_reports_its_environment_and_its_usage() {
    let host = TestHost::start().await;
    let sandbox = host.create_as(json!({"envVars": {"A": "é"}})).await;
    assert_eq!(answer(host.to(&sandbox, 49983, Method::GET, "/envs")).await, (200, json!({"A": "é"})));
    let (status, told) = answer(host.to(&sandbox, 49983, Method::GET, "/metrics")).await;
    assert_eq!(status, 200);
    for member in ["ts", "cpu_count", "mem_total", "mem_used", "mem_total_mib", "disk_total"] {
        assert!(told[member].as_u64().is_some_and(|number| number > 0), "{member}: {told}");
    }
    for member in ["cpu_used_pct", "mem_cache", "mem_used_mib", "disk_used"] {
        assert!(told[member].is_number(), "{member}: {told}");
    }
}

#[tokio::test]
async fn a_port_that_nothing_serves_is_reported_in_the_words_that_clients_look_for() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let (status, body) = answer(host.to(&sandbox, 8000, Method::GET, "/")).await;
    assert_eq!(status, 502);
    let message = "The sandbox is running but port is not open";
    assert_eq!(body, json!({"sandboxId": sandbox.id, "message": message, "port": 8000, "code": 502}));
}

#[tokio::test]
async fn a_sandbox_is_also_found_by_the_first_label_of_the_host() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let ask = |name: String, path: &str| {
        answer(host.client.get(format!("{}{path}", host.host.url())).header("host", name))
    };
    assert_eq!(ask(format!("49983-{}.localhost:1234", sandbox.id), "/health").await.0, 204);
    assert_eq!(ask("49983-inosuchsandbox.localhost".into(), "/health").await.0, 502);
    assert_eq!(ask("49983-NO.localhost".into(), "/health").await.0, 400);
    assert_eq!(ask("localhost".into(), "/sandboxes").await.0, 401);
}

#[tokio::test]
async fn a_private_sandbox_asks_for_the_traffic_token_everywhere_but_at_envd() {
    let host = TestHost::start().await;
    let sandbox = host.create_as(json!({"network": {"allowPublicTraffic": false}})).await;
    let token = sandbox.told["trafficAccessToken"].as_str().unwrap();
    for port in [49999, 8000] {
        let (status, body) = answer(host.to(&sandbox, port, Method::GET, "/health")).await;
        assert_eq!(status, 403);
        assert!(body["message"].as_str().unwrap().contains("is missing"), "{body}");
        let wrong = host.to(&sandbox, port, Method::GET, "/health").header("e2b-traffic-access-token", "x");
        assert_eq!(answer(wrong).await.0, 403);
    }
    let right = host.to(&sandbox, 49999, Method::GET, "/health").header("E2B-Traffic-Access-Token", token);
    assert_eq!(answer(right).await, (200, json!("OK")));
    assert_eq!(answer(host.to(&sandbox, 49983, Method::GET, "/health")).await.0, 204);
}

#[tokio::test]
async fn the_interpreter_takes_no_token_or_the_right_one_but_never_a_wrong_one() {
    let host = TestHost::start().await;
    let (mut one, two) = (host.create().await, host.create().await);
    assert_eq!(answer(host.to(&one, 49999, Method::GET, "/health")).await, (200, json!("OK")));
    one.token = None;
    assert_eq!(answer(host.to(&one, 49999, Method::GET, "/health")).await.0, 200);
    one.token = two.token.clone();
    assert_eq!(answer(host.to(&one, 49999, Method::GET, "/health")).await.0, 401);
    let execute = host.to(&one, 49999, Method::POST, "/execute").json(&json!({"code": "1"}));
    assert_eq!(answer(execute).await.0, 401);
}

#[tokio::test]
async fn bodies_may_be_chunked_and_of_any_declared_type_but_not_too_large() {
    let host = TestHost::start().await;
    let url = format!("{}/v2/sandboxes", host.host.url());
    let post = || host.client.post(&url).header("x-api-key", host.host.api_key().expose());
    let pieces: Vec<Result<&str, std::io::Error>> = vec![Ok("{\"template"), Ok("ID\":\"base\"}")];
    let chunked = reqwest::Body::wrap_stream(futures::stream::iter(pieces));
    assert_eq!(answer(post().body(chunked)).await.0, 201);
    let huge = format!("{{\"templateID\":\"base\",\"x\":\"{}\"}}", "x".repeat(2 << 20));
    let (status, body) = answer(post().body(huge)).await;
    assert_eq!((status, body["message"].as_str()), (400, Some("the body is larger than 1048576 bytes")));
    for garbage in ["{", "[]", "null", "\u{0}", "{\"templateID\":"] {
        assert_eq!(answer(post().body(garbage)).await.0, 400, "{garbage:?}");
    }
}

/// Bytes that are no HTTP, in any order, end the connection and nothing else.
#[tokio::test]
async fn garbage_on_the_socket_does_no_harm() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http:// HTTP/1.1\r\n\r\n",
        b"POST /v2/sandboxes HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\nzzz\r\n",
        b"POST /v2/sandboxes HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        &[b'a'; 300_000],
        &[0; 1000],
    ] {
        let mut stream = TcpStream::connect(host.host.addr()).await.unwrap();
        // The host may close before all is sent.
        let _ = stream.write_all(garbage).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer));
        let _ = read.await.expect("the host closes");
        let text = String::from_utf8_lossy(&answer);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    assert_eq!(answer(host.to(&sandbox, 49983, Method::GET, "/health")).await.0, 204);
}

#[tokio::test]
async fn a_listen_address_beyond_loopback_must_be_allowed() {
    use pathbox::host::{HostError, Options, serve};
    let options = Options { listen: ([0, 0, 0, 0], 0).into(), ..Options::default() };
    let refused = serve(options, Default::default()).await.err();
    assert!(matches!(refused, Some(HostError::NotLoopback(_))), "{refused:?}");
}

#[tokio::test]
async fn a_taken_port_is_named() {
    use pathbox::host::{HostError, Options, serve};
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = Options { listen: taken.local_addr().unwrap(), ..Options::default() };
    let refused = serve(options, Default::default()).await.err();
    assert!(matches!(refused, Some(HostError::Listen { .. })), "{refused:?}");
}

#[tokio::test]
async fn unknown_routes_of_a_sandbox_are_404_and_never_the_control_planes() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    for port in [49983, 49999] {
        let path = format!("/sandboxes/{}", sandbox.id);
        let request =
            host.to(&sandbox, port, Method::DELETE, &path).header("x-api-key", host.host.api_key().expose());
        assert_eq!(answer(request).await.0, 404);
    }
    assert_eq!(host.api(Method::GET, &format!("/sandboxes/{}", sandbox.id), Value::Null).await.0, 200);
}

/// The official Python client sends the last bytes of a body after it has the answer, and then its next request.
#[tokio::test]
async fn a_refusal_that_comes_before_the_body_does_not_break_the_connection() {
    let host = TestHost::start().await;
    let sandbox = host.create().await;
    let mut stream = TcpStream::connect(host.host.addr()).await.unwrap();
    for path in ["/files?path=x", "/process.Process/Start", "/no/such/route", "/filesystem.Filesystem/Stat"] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\ne2b-sandbox-id: {}\r\ne2b-sandbox-port: 49983\r\n\
             transfer-encoding: chunked\r\n\r\n",
            sandbox.id
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let count = stream.read(&mut answer).await.unwrap();
        assert!(answer[..count].starts_with(b"HTTP/1.1 401"), "{}", String::from_utf8_lossy(&answer));
        tokio::time::sleep(Duration::from_millis(50)).await;
        stream.write_all(b"5\r\nhello\r\n0\r\n\r\n").await.unwrap();
    }
}

/// A client that trickles its request, or sends nothing at all, holds its connection for a bounded time.
#[tokio::test]
async fn a_slow_or_silent_client_is_disconnected() {
    let host = TestHost::with(|options| options.head_timeout = Duration::from_millis(400)).await;
    for beginning in ["", "GET /health HTTP/1.1\r\nx: ", "GET /health HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut stream = TcpStream::connect(host.host.addr()).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        let trickle = async {
            while stream.write_all(if beginning.ends_with(": ") { b"a" } else { b"" }).await.is_ok() {
                let mut answer = [0; 1024];
                let read = tokio::time::timeout(Duration::from_millis(50), stream.read(&mut answer)).await;
                if let Ok(Ok(0) | Err(_)) = read {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), trickle).await.expect("the host closes");
    }
}

#[tokio::test]
async fn silent_connections_make_room_and_those_that_wait_for_an_answer_stay() {
    let host = TestHost::with(|options| options.max_connections = 8).await;
    let sandbox = host.create().await;
    host.run(&sandbox, "mkfifo gate").await;
    let (answer, silent) = tokio::join!(host.run(&sandbox, "echo begun > begun; cat gate"), async {
        while exit_code(&host.run(&sandbox, "test -e begun").await) != 0 {}
        let mut silent = Vec::new();
        for _ in 0..300 {
            silent.push(TcpStream::connect(host.host.addr()).await.unwrap());
        }
        // Half a head is no more than none.
        for connection in &mut silent[280..] {
            connection.write_all(b"GET /health HTTP/1.1\r\nhost").await.unwrap();
        }
        // A client that comes now is served, and its command lets the first one end.
        let late = super::client();
        let health = late.get(format!("{}/health", host.host.url())).send().await.unwrap();
        assert_eq!(health.status(), 200);
        assert_eq!(exit_code(&host.run(&sandbox, "echo on > gate").await), 0);
        silent
    });
    assert_eq!(written(&answer, "stdout"), "on\n");
    let mut closed = 0;
    for mut connection in silent {
        let mut byte = [0];
        let read = tokio::time::timeout(Duration::from_millis(1), connection.read(&mut byte)).await;
        closed += usize::from(read.is_ok());
    }
    assert!(closed >= 280, "only {closed} of 300 were closed");
}
