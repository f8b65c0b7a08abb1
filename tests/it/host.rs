//! The sandbox host through its one door, HTTP, with real sandboxes behind it.

mod control;
mod doors;
mod files;
mod hostile;
mod interpreter;
mod life;
mod network;
mod ports;
mod processes;
pub(crate) mod recordings;
mod sdk;
mod settings;
mod snapshots;
mod templates;

use std::sync::Once;
use std::time::Duration;

use http::Method;
use pathbox::host::{self, Host, Options};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// A host of its own for one test.
pub(crate) struct TestHost {
    pub(crate) host: Host,
    pub(crate) client: reqwest::Client,
    shutdown: CancellationToken,
}

/// A sandbox as the control plane described it.
pub(crate) struct TestSandbox {
    pub(crate) id: String,
    pub(crate) token: Option<String>,
    pub(crate) told: Value,
}

/// A status and a body; null when there is none.
pub(crate) type Answer = (u16, Value);

impl TestHost {
    /// Starts one with no ready sandboxes, so that a test makes no more than it needs.
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options { ready: 0, ..Options::default() };
        options.jail.exe = env!("CARGO_BIN_EXE_pathbox").into();
        change(&mut options);
        let shutdown = CancellationToken::new();
        let host = host::serve(options, shutdown.clone()).await.expect("the host starts");
        Self { host, client: client(), shutdown }
    }

    /// A call of the control plane.
    pub(crate) async fn api(&self, method: Method, path: &str, body: Value) -> Answer {
        let request = self
            .client
            .request(method, format!("{}{path}", self.host.url()))
            .header("x-api-key", self.host.api_key().expose());
        answer(if body.is_null() { request } else { request.json(&body) }).await
    }

    pub(crate) async fn create(&self) -> TestSandbox {
        self.create_as(json!({})).await
    }

    /// Creates with these members besides the template.
    pub(crate) async fn create_as(&self, mut body: Value) -> TestSandbox {
        body["templateID"] = "code-interpreter-v1".into();
        let (status, told) = self.api(Method::POST, "/v2/sandboxes", body).await;
        assert_eq!(status, 201, "{told}");
        TestSandbox {
            id: told["sandboxID"].as_str().unwrap().to_owned(),
            token: told["envdAccessToken"].as_str().map(str::to_owned),
            told,
        }
    }

    /// A request to a port of a sandbox, with its access token.
    pub(crate) fn to(
        &self,
        sandbox: &TestSandbox,
        port: u16,
        method: Method,
        path: &str,
    ) -> reqwest::RequestBuilder {
        let request = self
            .client
            .request(method, format!("{}{path}", self.host.url()))
            .header("e2b-sandbox-id", &sandbox.id)
            .header("e2b-sandbox-port", port);
        match &sandbox.token {
            Some(token) => request.header("x-access-token", token),
            None => request,
        }
    }

    /// A unary call of envd.
    pub(crate) async fn rpc(&self, sandbox: &TestSandbox, path: &str, message: Value) -> Answer {
        let request = self.to(sandbox, 49983, Method::POST, path).header("connect-protocol-version", "1");
        answer(request.json(&message)).await
    }

    /// Runs a command to its end: the events of its stream.
    pub(crate) async fn run(&self, sandbox: &TestSandbox, command: &str) -> Vec<Value> {
        let start = json!({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", command]}, "stdin": false});
        self.stream(sandbox, "/process.Process/Start", start, &[]).await
    }

    /// A server stream of envd to its end; the last element is the end envelope.
    pub(crate) async fn stream(
        &self,
        sandbox: &TestSandbox,
        path: &str,
        message: Value,
        headers: &[(&str, &str)],
    ) -> Vec<Value> {
        let mut request = self
            .to(sandbox, 49983, Method::POST, path)
            .header("content-type", "application/connect+json")
            .body(envelope(&message));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/connect+json");
        envelopes(&response.bytes().await.unwrap())
    }

    /// Ends the host and waits for it.
    pub(crate) async fn end(self) {
        self.shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(10), self.host.ended()).await.expect("the host ends");
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

pub(crate) fn client() -> reqwest::Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    reqwest::Client::builder().timeout(Duration::from_secs(60)).no_proxy().build().unwrap()
}

pub(crate) async fn answer(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let bytes = response.bytes().await.unwrap();
    let body =
        if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap_or(Value::Null) };
    (status, body)
}

pub(crate) fn envelope(message: &Value) -> Vec<u8> {
    let payload = message.to_string();
    let mut bytes = vec![0];
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    bytes.extend_from_slice(payload.as_bytes());
    bytes
}

pub(crate) fn envelopes(mut bytes: &[u8]) -> Vec<Value> {
    let mut out = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<5>() {
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        out.push(serde_json::from_slice(&rest[..len]).unwrap());
        assert_eq!(head[0] == 2, rest.len() == len, "the end envelope is the last one");
        bytes = &rest[len..];
    }
    out
}

/// What a command of [`TestHost::run`] wrote on one stream.
pub(crate) fn written(events: &[Value], stream: &str) -> String {
    use base64::Engine;
    let pieces = events.iter().filter_map(|event| event["event"]["data"][stream].as_str());
    let bytes = pieces.flat_map(|piece| base64::prelude::BASE64_STANDARD.decode(piece).unwrap()).collect();
    String::from_utf8(bytes).unwrap()
}

/// How a command of [`TestHost::run`] ended.
pub(crate) fn exit_code(events: &[Value]) -> i64 {
    let end =
        events.iter().find_map(|event| event["event"].get("end")).unwrap_or_else(|| panic!("{events:?}"));
    end.get("exitCode").and_then(Value::as_i64).unwrap_or(0)
}
