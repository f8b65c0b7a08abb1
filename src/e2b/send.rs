//! Sending: one connection pool, one place that repeats requests, one place that bounds what is read.
//!
//! HTTP/1.1 only. Closing the connection is how an execution is interrupted, and closing one stream of a shared HTTP/2
//! connection may never reach the server.

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout_at};

use super::error::Hide;
use super::{Deadline, E2bClient, E2bError, RetryOptions, SandboxAccess, Subject};
use crate::domain::Entropy;
use crate::telemetry::metrics::E2B_CLIENT;
use crate::telemetry::trace;
use crate::wire::control::percent_encode;
use crate::wire::header;

/// The connection pool. TLS is set up when the first `https` URL is used: a machine that only talks to a local host
/// needs no certificates, and pays nothing for reading them.
#[derive(Debug)]
pub(super) struct Http {
    connect_timeout: Duration,
    plain: OnceLock<Client>,
    tls: OnceLock<Client>,
}

impl Http {
    pub(super) fn new(connect_timeout: Duration) -> Self {
        Self { connect_timeout, plain: OnceLock::new(), tls: OnceLock::new() }
    }

    pub(super) fn client(&self, url: &str) -> Result<&Client, E2bError> {
        let secure = url.starts_with("https:");
        let cell = if secure { &self.tls } else { &self.plain };
        if let Some(client) = cell.get() {
            return Ok(client);
        }
        // Fails when one is installed already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .http1_only()
            .connect_timeout(self.connect_timeout)
            .tcp_nodelay(true)
            .tcp_keepalive(Duration::from_secs(30))
            .pool_idle_timeout(Duration::from_secs(300))
            // A redirect would carry the key to wherever it points.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("pathbox/", env!("CARGO_PKG_VERSION")));
        if !secure {
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| E2bError::Setting {
            what: "certificates",
            problem: format!("cannot be loaded ({error}); install the package ca-certificates"),
        })?;
        Ok(cell.get_or_init(|| client))
    }
}

/// When a request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// After every failure that may pass: doing it twice is doing it once.
    Always,
    /// Only when it certainly was not done.
    IfNotDone,
}

impl Repeat {
    fn allows(self, error: &E2bError) -> bool {
        error.is_retryable() && (self == Self::Always || !error.may_have_run())
    }
}

/// A control-plane request.
pub(super) struct Call<'a> {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) body: Option<Vec<u8>>,
    pub(super) idempotency_key: Option<&'a str>,
    pub(super) repeat: Repeat,
    /// The meaning of a 404.
    pub(super) subject: Subject,
    /// The sandbox's id, so that it is taken out of the provider's texts.
    pub(super) id: Option<&'a str>,
}

impl<'a> Call<'a> {
    pub(super) fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            query: Vec::new(),
            body: None,
            idempotency_key: None,
            repeat: Repeat::Always,
            subject: Subject::Sandbox,
            id: None,
        }
    }

    pub(super) fn json(mut self, body: &impl Serialize) -> Result<Self, E2bError> {
        let body = serde_json::to_vec(body).map_err(|error| E2bError::protocol("a request", error))?;
        self.body = Some(body);
        Ok(self)
    }
}

/// A successful answer, read whole.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    pub(super) fn json<T: DeserializeOwned>(&self, what: &'static str) -> Result<T, E2bError> {
        serde_json::from_slice(&self.body).map_err(|error| E2bError::protocol(what, error))
    }
}

impl E2bClient {
    /// Sends a control-plane request, as often as its kind allows, within the request time-out.
    pub(super) async fn control(&self, call: Call<'_>) -> Result<Answer, E2bError> {
        let _timed = E2B_CLIENT.time(&["control"]);
        let begun = Instant::now();
        let deadline = begun + self.options().request_timeout;
        let mut attempt = 0;
        loop {
            self.state.circuit.enter(Instant::now())?;
            let sent = timeout_at(deadline, self.control_once(&call)).await;
            let result = sent.unwrap_or_else(|_| {
                Err(E2bError::TimedOut {
                    clock: Deadline::Request,
                    after: begun.elapsed(),
                    may_have_run: true,
                })
            });
            let alive = match &result {
                Ok(_) => true,
                Err(error) => answers(error),
            };
            self.state.circuit.record(alive, Instant::now());
            let error = match result {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let pause = self.options().retry.pause(attempt, error.retry_after(), &self.shared.entropy);
            let in_time = Instant::now() + pause < deadline;
            if attempt >= self.options().retry.retries || !in_time || !call.repeat.allows(&error) {
                return Err(error);
            }
            tracing::debug!(
                kind = error.kind(),
                attempt,
                ?pause,
                "repeating a request to the sandbox provider"
            );
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    async fn control_once(&self, call: &Call<'_>) -> Result<Answer, E2bError> {
        let url = format!("{}{}{}", self.endpoint.api_base(), call.path, query(&call.query));
        let client = self.shared.http.client(&url)?;
        let mut request = client
            .request(call.method.clone(), url)
            .header(header::API_KEY, sensitive(self.endpoint.api_key.expose())?);
        for (name, value) in self.trace() {
            request = request.header(name, value);
        }
        if let Some(key) = call.idempotency_key {
            request = request.header(header::IDEMPOTENCY_KEY, key);
        }
        if let Some(body) = &call.body {
            request = request.header(reqwest::header::CONTENT_TYPE, "application/json").body(body.clone());
        }
        let response = request.send().await.map_err(|error| E2bError::transport(error, true))?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let body =
            read_all(response, "an answer of the control plane", self.options().max_answer_bytes).await?;
        if (200..300).contains(&status) {
            return Ok(Answer { status, headers, body });
        }
        let hide = Hide::new(&self.endpoint, None, call.id);
        Err(E2bError::from_control(status, retry_after(&headers), &body, call.subject, &hide))
    }

    /// The headers that tie a request to the trace of the calling task.
    fn trace(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
        let (parent, state) = trace::outgoing(self.shared.entropy.bytes()).unzip();
        [(header::TRACEPARENT, parent), (header::TRACESTATE, state.flatten())].into_iter().filter_map(
            |(name, value)| Some((HeaderName::from_static(name), HeaderValue::try_from(value?).ok()?)),
        )
    }

    /// A request to a port of a sandbox, with the headers that route and authorise it.
    pub(super) fn data(
        &self,
        method: Method,
        access: &SandboxAccess,
        port: u16,
        path: &str,
    ) -> Result<RequestBuilder, E2bError> {
        let id = super::endpoint::check_id(&access.id)?;
        if let Some(domain) = &access.domain {
            super::endpoint::check_domain("the sandbox's domain", domain)?;
        }
        let url = format!("{}{path}", self.endpoint.sandbox_base(&access.id, access.domain.as_deref(), port));
        let client = self.shared.http.client(&url)?;
        let mut headers = HeaderMap::with_capacity(5);
        let name = HeaderName::from_static;
        headers.insert(name(header::SANDBOX_ID), sensitive(id)?);
        headers.insert(name(header::SANDBOX_PORT), HeaderValue::from(port));
        headers.extend(self.trace());
        if let Some(token) = &access.envd_token {
            headers.insert(name(header::ACCESS_TOKEN), sensitive(token.expose())?);
        }
        if let Some(token) = &access.traffic_token {
            headers.insert(name(header::TRAFFIC_TOKEN), sensitive(token.expose())?);
        }
        Ok(client.request(method, url).headers(headers))
    }

    /// Sends a data-plane request once and reads its answer whole, within `within`.
    pub(super) async fn data_once(
        &self,
        request: RequestBuilder,
        access: &SandboxAccess,
        port: u16,
        subject: Subject,
        limit: usize,
        within: Duration,
    ) -> Result<Answer, E2bError> {
        let _timed = E2B_CLIENT.time(&["sandbox"]);
        let work = async {
            let response = request.send().await.map_err(|error| E2bError::transport(error, true))?;
            let response = self.accept(response, access, port, subject).await?;
            let status = response.status().as_u16();
            let headers = response.headers().clone();
            let body = read_all(response, "an answer of the sandbox", limit).await?;
            Ok(Answer { status, headers, body })
        };
        tokio::time::timeout(within, work).await.unwrap_or(Err(E2bError::TimedOut {
            clock: Deadline::Request,
            after: within,
            may_have_run: true,
        }))
    }

    /// Turns an answer of a sandbox that did not succeed into its error.
    pub(super) async fn accept(
        &self,
        response: Response,
        access: &SandboxAccess,
        port: u16,
        subject: Subject,
    ) -> Result<Response, E2bError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = retry_after(response.headers());
        // The words matter less than the status, so a body that breaks or never ends is left alone.
        let body = tokio::time::timeout(Duration::from_secs(5), read_head(response, 64 << 10)).await;
        let body = body.unwrap_or_default();
        let hide = Hide::new(&self.endpoint, Some(access), None);
        Err(E2bError::from_data(status.as_u16(), retry_after, &body, port, subject, &hide))
    }
}

impl RetryOptions {
    /// The pause before the next attempt: as the provider requests, else exponential with half of it random.
    pub(super) fn pause(&self, attempt: u32, asked: Option<Duration>, entropy: &Entropy) -> Duration {
        if let Some(asked) = asked {
            return asked;
        }
        let full = self.base.saturating_mul(2_u32.saturating_pow(attempt)).min(self.max);
        let half = full / 2;
        half + Duration::from_nanos(entropy.below(u64::try_from(half.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// `?name=value&…`, or nothing.
pub(super) fn query<K: AsRef<str>>(pairs: &[(K, String)]) -> String {
    let each = pairs.iter().map(|(name, value)| format!("{}={}", name.as_ref(), percent_encode(value)));
    let joined = each.collect::<Vec<_>>().join("&");
    if joined.is_empty() { joined } else { format!("?{joined}") }
}

/// Whether a failure shows a provider that works. One request that breaks it (500) and a lack of capacity, which has a
/// code, are no reason to stop asking: others must still be able to end their sandboxes.
fn answers(error: &E2bError) -> bool {
    !matches!(
        error,
        E2bError::Unreachable(_)
            | E2bError::Broken { .. }
            | E2bError::TimedOut { .. }
            | E2bError::Busy { error_code: None, .. }
    )
}

/// A header value that the HTTP stack keeps out of its own logs.
pub(super) fn sensitive(text: &str) -> Result<HeaderValue, E2bError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| E2bError::Setting {
        what: "a key or token",
        problem: "holds characters that no header can carry".to_owned(),
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// `Retry-After` in seconds, which is the form that E2B uses. Beyond an hour it is taken as an hour.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let secs: f64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(secs.min(3600.0)).ok()
}

/// Reads a body whole, up to a limit that is held while reading.
pub(super) async fn read_all(
    mut response: Response,
    what: &'static str,
    limit_bytes: usize,
) -> Result<Bytes, E2bError> {
    let mut whole = Vec::new();
    loop {
        let chunk = response.chunk().await.map_err(|error| E2bError::transport(error, true))?;
        let Some(chunk) = chunk else { return Ok(whole.into()) };
        if whole.len() + chunk.len() > limit_bytes {
            return Err(E2bError::TooLarge { what, limit_bytes });
        }
        whole.extend_from_slice(&chunk);
    }
}

/// Reads the beginning of a body and forgives everything.
async fn read_head(mut response: Response, limit: usize) -> Vec<u8> {
    let mut head = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        head.extend_from_slice(&chunk);
        if head.len() >= limit {
            break;
        }
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_with_half_of_each_random_and_the_provider_has_the_last_word() {
        let options =
            RetryOptions { retries: 9, base: Duration::from_millis(100), max: Duration::from_secs(1) };
        let entropy = Entropy::seeded(1);
        for (attempt, full) in [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1000), (60, 1000)] {
            let pause = options.pause(attempt, None, &entropy).as_millis();
            assert!((full / 2..full).contains(&pause), "{attempt}: {pause}");
        }
        let asked = Duration::from_secs(7);
        assert_eq!(options.pause(0, Some(asked), &entropy), asked);
    }

    #[test]
    fn retry_after_is_read_in_seconds_and_bounded() {
        for (text, secs) in [
            ("1", Some(1)),
            (" 30 ", Some(30)),
            ("-1", None),
            ("1e300", Some(3600)),
            ("NaN", Some(3600)),
            ("soon", None),
        ] {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]);
            assert_eq!(retry_after(&headers), secs.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn requests_that_may_have_had_effects_are_retried_only_if_idempotent() {
        let gateway =
            E2bError::Busy { status: 504, error_code: None, retry_after: None, message: Default::default() };
        let full = E2bError::RateLimited { retry_after: None, message: Default::default() };
        let wrong = E2bError::Refused { status: 400, message: Default::default() };
        assert!(Repeat::Always.allows(&gateway) && !Repeat::IfNotDone.allows(&gateway));
        assert!(Repeat::Always.allows(&full) && Repeat::IfNotDone.allows(&full));
        assert!(!Repeat::Always.allows(&wrong));
    }
}
