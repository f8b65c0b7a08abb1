//! Tool servers over Streamable HTTP: both eras of the protocol, a key in a header, and what is said of an address that does
//! not work. The server is a `pathbox serve --http` of its own.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use base64::Engine;
use serde_json::{Value, json};

use crate::code_mode::Place;
use crate::http_oauth::Issuer;
use crate::support::http::HttpServer;
use crate::support::server::{Server, command};

fn key(data: &std::path::Path) -> String {
    let arguments = ["keys", "add", "--json", "--tenant", "acme", "--name", "tools"];
    let output = command(data).args(arguments).output().unwrap();
    let key: Value = serde_json::from_slice(&output.stdout).unwrap();
    key["key"].as_str().unwrap().to_owned()
}

/// Settings of a server whose `Authorization` comes from the environment.
fn entry(name: &str, url: &str, protocol: &str) -> String {
    format!(
        "[[tools.server]]\nname = {name:?}\nurl = {url:?}\nprotocol = {protocol:?}\nheaders = {{ Authorization = {{ env = \"TOOL_KEY\" }} }}\n"
    )
}

fn upstream(data: &std::path::Path) -> HttpServer {
    HttpServer::start_with(command(data).env("PATHBOX_HTTP_AUTH", "required"))
}

#[test]
fn a_server_over_streamable_http_is_called_in_both_eras_with_its_key() {
    let data = tempfile::tempdir().unwrap();
    let key = key(data.path());
    let upstream = upstream(data.path());
    let url = format!("http://{}/mcp", upstream.address);
    let more = entry("older", &url, "2025-11-25")
        + &entry("newer", &url, "2026-07-28")
        + &entry("either", &url, "auto");
    let place = Place::new("", "", &more);
    let mut server =
        Server::start_with(place.command().env("TOOL_KEY", format!("Bearer {key}")).arg("serve"));
    let code = "import tools\nfrom tools import older, newer, either\nfor server in (older, newer, either):\n    \
        print(server.get_analysis_help(analysis_type='custom').startswith('custom: '))\ntry:\n    older.get_artifact(uri='pathbox://nothing')\n\
        except tools.ToolError as error:\n    print(error.kind)";
    let ran = server.call(json!({"code": code, "language": "python", "timeout_ms": 60_000}), json!({}));
    assert_eq!(ran["structuredContent"]["stdout"], "True\nTrue\nTrue\ntool\n", "{ran:#}");
    assert_eq!(ran["structuredContent"]["toolCalls"].as_array().unwrap().len(), 4, "{ran:#}");
}

/// A service asks what there is before it names a tenant.
#[test]
fn the_search_is_listed_where_the_tenant_has_tool_servers() {
    let data = tempfile::tempdir().unwrap();
    let settings = data.path().join("pathbox.toml");
    let servers = "[[tools.server]]\nname = \"theirs\"\ncommand = \"python3\"\ntenants = [\"acme\"]\n";
    std::fs::write(&settings, servers).unwrap();
    let key = |of: &[&str]| {
        let mut add = command(data.path());
        let output = add.args(["keys", "add", "--json", "--name", "k"]).args(of).output().unwrap();
        let key: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        format!("Bearer {}", key["key"].as_str().unwrap())
    };
    let [acme, other, service] =
        [&["--tenant", "acme"][..], &["--tenant", "other"], &["--any-tenant"]].map(key);
    let mut serve = command(data.path());
    let server =
        HttpServer::start_with(serve.env("PATHBOX_CONFIG", &settings).env("PATHBOX_HTTP_AUTH", "required"));
    let searches = |headers: &[(&str, &str)]| {
        let answer = server.modern(headers, "tools/list", None, json!({})).answer();
        let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}")).clone();
        let run_code = tools.iter().find(|tool| tool["name"] == "run_code").unwrap();
        let takes_tools = run_code["inputSchema"]["properties"].get("tools").is_some();
        assert_eq!(takes_tools, tools.iter().any(|tool| tool["name"] == "search_tools"));
        takes_tools
    };
    assert!(searches(&[("Authorization", &acme)]));
    assert!(!searches(&[("Authorization", &other)]));
    assert!(searches(&[("Authorization", &service)]));
    assert!(!searches(&[("Authorization", &service), ("X-Tenant-Id", "other")]));
    let opened =
        server.post(&[("Authorization", &other)], &crate::support::http::initialize("2025-06-18")).answer();
    let taught = opened["result"]["instructions"].as_str().unwrap();
    assert!(!taught.contains("these servers"), "{taught}");
}

#[test]
fn a_wrong_key_and_an_address_of_the_old_transport_are_named_and_no_secret_is_shown() {
    let data = tempfile::tempdir().unwrap();
    let upstream = upstream(data.path());
    let address = |path: &str| format!("http://{}/{path}", upstream.address);
    let more = entry("closed", &address("mcp"), "auto") + &entry("old", &address("sse"), "auto");
    let place = Place::new("", "", &more);
    let checked = place
        .command()
        .env("TOOL_KEY", "Bearer not-the-right-key")
        .args(["tools", "check"])
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    assert!(!checked.status.success(), "{said}");
    assert!(
        said.contains("closed") && said.contains("the old HTTP+SSE transport, which is not supported here"),
        "{said}"
    );
    assert!(!said.contains("not-the-right-key"), "{said}");
}

/// The token endpoint of an authorization server: what each request asked for, and the answers in their order; the last one
/// stays.
struct TokenEndpoint {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl TokenEndpoint {
    fn start(answers: Vec<(u16, Value)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/token", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (mut text, mut piece) = (String::new(), [0; 4096]);
                loop {
                    let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
                        let length = head.to_lowercase();
                        let length =
                            length.split("content-length: ").nth(1).and_then(|rest| rest.lines().next());
                        body.len() >= length.and_then(|length| length.parse().ok()).unwrap_or(0)
                    });
                    match if whole { Ok(0) } else { stream.read(&mut piece) } {
                        Ok(0) | Err(_) => break,
                        Ok(n) => text.push_str(&String::from_utf8_lossy(&piece[..n])),
                    }
                }
                let mut seen = seen.lock().unwrap();
                let (status, answer) = &answers[seen.len().min(answers.len() - 1)];
                seen.push(text);
                let body = answer.to_string();
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Settings of a server that gets its tokens here.
    fn entry(&self, url: &str, more: &str) -> String {
        format!(
            "[[tools.server]]\nname = \"closed\"\nurl = {url:?}\noauth = {{ token_url = {:?}, client_id = \"box 1\", {more} }}\n",
            self.url
        )
    }
}

const SECRET: &str = "client_secret = { env = \"CLIENT_SECRET\" }";

#[test]
fn tokens_of_client_credentials_are_renewed_when_they_run_out_or_are_refused() {
    let data = tempfile::tempdir().unwrap();
    let issuer = Issuer::start();
    let upstream = issuer.server(data.path());
    let granted = |token: String, life: u64| {
        (200, json!({"access_token": token, "token_type": "Bearer", "expires_in": life}))
    };
    let answers = vec![
        granted(issuer.token(|claims| claims["aud"] = json!("https://elsewhere.example")), 600),
        granted(issuer.token(|_| {}), 0),
        granted(issuer.token(|_| {}), 0),
        granted(issuer.token(|_| {}), u64::MAX),
    ];
    let tokens = TokenEndpoint::start(answers);
    let url = format!("http://{}/mcp", upstream.address);
    let place = Place::new("", "", &tokens.entry(&url, &format!("scope = \"run read\", {SECRET}")));
    let mut server = Server::start_with(place.command().env("CLIENT_SECRET", "s3cret%&planted").arg("serve"));
    let code = "from tools import closed\nfor n in range(3):\n    print(closed.get_analysis_help(analysis_type='custom').startswith('custom: '))";
    let ran = server.call(json!({"code": code, "language": "python", "timeout_ms": 60_000}), json!({}));
    assert_eq!(ran["structuredContent"]["stdout"], "True\nTrue\nTrue\n", "{ran:#}");
    let asked = tokens.asked();
    assert_eq!(asked.len(), 4, "one that was refused, two that had run out, and one that lasts: {asked:#?}");
    let resource: String = url.replace(':', "%3A").replace('/', "%2F");
    let basic = base64::engine::general_purpose::STANDARD.encode("box+1:s3cret%25%26planted");
    for request in &asked {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /token ") && head.contains(&format!("Basic {basic}")), "{head}");
        assert_eq!(body, format!("resource={resource}&grant_type=client_credentials&scope=run+read"));
    }
    drop(server);
    assert!(!upstream.log().contains("planted"));
}

#[test]
fn a_refresh_token_is_exchanged_and_the_one_that_replaces_it_is_used_next_and_after_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let issuer = Issuer::start();
    let upstream = issuer.server(data.path());
    let granted = |refresh: &str, life: u64| {
        (
            200,
            json!({"access_token": issuer.token(|_| {}), "token_type": "Bearer", "expires_in": life, "refresh_token": refresh}),
        )
    };
    let tokens =
        TokenEndpoint::start(vec![granted("second", 0), granted("third", 600), granted("fourth", 600)]);
    let more = "refresh_token = { env = \"REFRESH\" }";
    let place = Place::new("", "", &tokens.entry(&format!("http://{}/mcp", upstream.address), more));
    let listed = |first: &str| {
        let output = place.command().env("REFRESH", first).args(["tools", "ls", "closed"]).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("closed.get_analysis_help"), "{output:?}");
    };
    listed("first");
    listed("first");
    // Another one in the settings takes the place of what was kept.
    listed("another");
    let asked = tokens.asked();
    let refreshes: Vec<&str> = asked
        .iter()
        .map(|request| {
            let (_, field) = request.split_once("grant_type=refresh_token&refresh_token=").unwrap();
            field.split_once("&client_id=box+1").unwrap().0
        })
        .collect();
    assert_eq!(refreshes, ["first", "second", "third", "another"], "{asked:#?}");
    // What lies in the data directory is sealed.
    for entry in std::fs::read_dir(place.path("data")).unwrap().map(|entry| entry.unwrap().path()) {
        let bytes = std::fs::read(&entry).unwrap_or_default();
        assert!(
            !["third", "fourth"]
                .iter()
                .any(|token| bytes.windows(token.len()).any(|at| at == token.as_bytes())),
            "{entry:?}"
        );
    }
}

#[test]
fn an_authorization_server_that_refuses_is_named_with_its_message_and_without_secrets() {
    let data = tempfile::tempdir().unwrap();
    let upstream = upstream(data.path());
    let refusal =
        json!({"error": "invalid_client", "error_description": "the secret s3cret-planted is not known"});
    let tokens = TokenEndpoint::start(vec![(401, refusal)]);
    let place = Place::new("", "", &tokens.entry(&format!("http://{}/mcp", upstream.address), SECRET));
    let checked =
        place.command().env("CLIENT_SECRET", "s3cret-planted").args(["tools", "check"]).output().unwrap();
    let said =
        String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    assert!(
        !checked.status.success() && said.contains("invalid_client") && said.contains("/token"),
        "{said}"
    );
    assert!(!said.contains("planted"), "{said}");
}
