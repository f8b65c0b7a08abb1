//! Access tokens of a server that wants OAuth: by client credentials, or by a refresh token that somebody got once.
//!
//! rmcp can do both too, but renews no token of client credentials: it would send the next request without one. The address
//! of the token endpoint stands in the settings, so nothing that a server says decides where a secret goes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::stream::BoxStream;
use http::{HeaderName, HeaderValue};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse, StreamableHttpResponseLimits,
};
use serde::Deserialize;
use sse_stream::{Error as SseError, Sse};
use tokio::time::Instant;

use crate::domain::lock;
use crate::wire::Secret;

/// How access tokens of a server are got.
#[derive(Debug, Clone)]
pub struct OAuth {
    /// Where.
    pub token_url: String,
    /// As whom.
    pub client_id: String,
    /// Proves it, by HTTP Basic; a public client has none.
    pub client_secret: Option<Secret>,
    /// Is exchanged for access tokens; without, the client's own credentials are.
    pub refresh_token: Option<Secret>,
    /// What is asked for, separated by blanks.
    pub scope: Option<String>,
}

impl OAuth {
    pub(super) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        self.client_secret.iter().chain(&self.refresh_token)
    }
}

/// How long the token endpoint may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of its answer that are read.
const MAX_ANSWER: usize = 64 << 10;
/// A token is renewed so long before it runs out, or at half of its life.
const EARLY: Duration = Duration::from_secs(30);

/// The access token of one server, renewed when it runs out or is refused.
#[derive(Debug)]
pub(super) struct Tokens {
    oauth: OAuth,
    /// The server, as RFC 8707 names it to the authorization server.
    resource: String,
    held: Mutex<Held>,
    /// One at a time asks for a token.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Held {
    access: Option<(Secret, Option<Instant>)>,
    /// Given in place of the one in the settings.
    refresh: Option<Secret>,
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    expires_in: Option<u64>,
    refresh_token: Option<String>,
}

#[derive(Deserialize, Default)]
struct Refused {
    #[serde(default)]
    error: String,
    #[serde(default)]
    error_description: String,
}

impl Tokens {
    pub(super) fn new(oauth: OAuth, resource: String) -> Self {
        Self { oauth, resource, held: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    /// The secrets that came after the settings were read.
    pub(super) fn secrets(&self) -> Vec<Secret> {
        let held = lock(&self.held);
        held.access.iter().map(|(token, _)| token.clone()).chain(held.refresh.clone()).collect()
    }

    /// A token that is good as far as is known here, and not the one that was `refused`.
    async fn get(&self, http: &reqwest::Client, refused: Option<&str>) -> Result<String, String> {
        if let Some(token) = self.good(refused) {
            return Ok(token);
        }
        let _turn = self.asking.lock().await;
        if let Some(token) = self.good(refused) {
            return Ok(token);
        }
        let granted = self.ask(http).await?;
        let until = granted.expires_in.map(Duration::from_secs);
        let until = until.map(|life| Instant::now() + life - EARLY.min(life / 2));
        let mut held = lock(&self.held);
        if let Some(refresh) = granted.refresh_token {
            if held.refresh.is_none() && self.oauth.refresh_token.is_some() {
                tracing::warn!(
                    "the authorization server replaces refresh tokens: the one in the settings may not be good at the next \
                     start. Switch its rotation off, or use client credentials"
                );
            }
            held.refresh = Some(Secret::new(refresh));
        }
        held.access = Some((Secret::new(granted.access_token.as_str()), until));
        Ok(granted.access_token)
    }

    fn good(&self, refused: Option<&str>) -> Option<String> {
        let held = lock(&self.held);
        let (token, until) = held.access.as_ref()?;
        let is_good = until.is_none_or(|until| Instant::now() < until) && refused != Some(token.expose());
        is_good.then(|| token.expose().to_owned())
    }

    async fn ask(&self, http: &reqwest::Client) -> Result<Granted, String> {
        let refresh = lock(&self.held).refresh.clone().or_else(|| self.oauth.refresh_token.clone());
        let mut fields = vec![("resource", self.resource.as_str())];
        match &refresh {
            Some(refresh) if self.oauth.refresh_token.is_some() => {
                fields.extend([("grant_type", "refresh_token"), ("refresh_token", refresh.expose())]);
            }
            _ => fields.push(("grant_type", "client_credentials")),
        }
        fields.extend(self.oauth.scope.as_deref().map(|scope| ("scope", scope)));
        let mut request =
            http.post(&self.oauth.token_url).timeout(PATIENCE).header(ACCEPT, "application/json");
        match &self.oauth.client_secret {
            Some(secret) => {
                let encoded = |text: &str| form(&[("", text)]).split_off(1);
                let pair = format!("{}:{}", encoded(&self.oauth.client_id), encoded(secret.expose()));
                let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(pair)))
                    .map_err(|error| error.to_string())?;
                value.set_sensitive(true);
                request = request.header(AUTHORIZATION, value);
            }
            None => fields.push(("client_id", &self.oauth.client_id)),
        }
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form(&fields));
        let problem = |what: String| format!("no access token from {}: {what}", self.oauth.token_url);
        let mut answer = request.send().await.map_err(|error| problem(error.without_url().to_string()))?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(piece) =
            answer.chunk().await.map_err(|error| problem(error.without_url().to_string()))?
        {
            body.extend_from_slice(&piece);
            if body.len() > MAX_ANSWER {
                return Err(problem(format!("its answer is larger than {MAX_ANSWER} bytes")));
            }
        }
        if !status.is_success() {
            let refused: Refused = serde_json::from_slice(&body).unwrap_or_default();
            let mut said = format!("it answers {status} {} {}", refused.error, refused.error_description);
            // rmcp writes it into the log as it is.
            for secret in self.oauth.secrets().chain(&refresh) {
                said = said.replace(secret.expose(), "[secret]");
            }
            return Err(problem(super::catalog::clean(&said, 300)));
        }
        serde_json::from_slice(&body).map_err(|_| problem("its answer holds no access_token".to_owned()))
    }
}

/// Fields as a form sends them.
fn form(fields: &[(&str, &str)]) -> String {
    #[expect(clippy::expect_used, reason = "a fixed address")]
    let mut url = reqwest::Url::parse("http://form/").expect("a URL");
    url.query_pairs_mut().extend_pairs(fields);
    url.query().unwrap_or_default().to_owned()
}

/// rmcp's client, with a token of its own where the server wants one.
#[derive(Debug, Clone)]
pub(super) struct Authorized {
    pub(super) http: reqwest::Client,
    pub(super) tokens: Option<Arc<Tokens>>,
}

type Failed = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

impl Authorized {
    /// Does a request with a token; once more with a new one when it is refused before anything was done.
    async fn with_token<T, F>(
        &self,
        given: Option<String>,
        request: impl Fn(Option<String>) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        let Some(tokens) = &self.tokens else { return request(given).await };
        let failed = |why: String| Failed::UnexpectedServerResponse(why.into());
        let token = tokens.get(&self.http, None).await.map_err(failed)?;
        match request(Some(token.clone())).await {
            Err(Failed::AuthRequired(_)) => {
                let new = tokens.get(&self.http, Some(&token)).await.map_err(failed)?;
                request(Some(new)).await
            }
            done => done,
        }
    }
}

impl StreamableHttpClient for Authorized {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session, token, headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        self.with_token(token, |token| {
            let (uri, message) = (Arc::clone(&uri), message.clone());
            let (session, headers) = (session.clone(), headers.clone());
            self.http.post_message_with_response_limits(uri, message, session, token, headers, limits)
        })
        .await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<(), Failed> {
        self.with_token(token, |token| {
            self.http.delete_session(Arc::clone(&uri), Arc::clone(&session), token, headers.clone())
        })
        .await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        self.with_token(token, |token| {
            self.http.get_stream(Arc::clone(&uri), session.clone(), last.clone(), token, headers.clone())
        })
        .await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        token: Option<String>,
        headers: Headers,
        max: usize,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        self.with_token(token, |token| {
            let (uri, session) = (Arc::clone(&uri), session.clone());
            self.http.get_stream_with_max_sse_event_size(
                uri,
                session,
                last.clone(),
                token,
                headers.clone(),
                max,
            )
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_a_form_has_them() {
        assert_eq!(
            form(&[("scope", "a b"), ("resource", "https://x/y?z=1&ä")]),
            "scope=a+b&resource=https%3A%2F%2Fx%2Fy%3Fz%3D1%26%C3%A4"
        );
    }

    #[test]
    fn a_token_is_good_until_it_nears_its_end_or_is_refused() {
        let oauth = OAuth {
            token_url: "http://127.0.0.1:9/".to_owned(),
            client_id: "c".to_owned(),
            client_secret: None,
            refresh_token: None,
            scope: None,
        };
        let tokens = Tokens::new(oauth, "https://mcp.example/mcp".to_owned());
        let hold = |seconds: Option<u64>| {
            let until = seconds.map(|n| Instant::now() + Duration::from_secs(n));
            lock(&tokens.held).access = Some((Secret::new("t1"), until));
        };
        assert_eq!(tokens.good(None), None);
        hold(None);
        assert_eq!(tokens.good(None).as_deref(), Some("t1"), "one without an end");
        assert_eq!(tokens.good(Some("t1")), None);
        assert_eq!(tokens.good(Some("t0")).as_deref(), Some("t1"), "somebody renewed it meanwhile");
        hold(Some(3600));
        assert_eq!(tokens.good(None).as_deref(), Some("t1"));
        hold(Some(0));
        assert_eq!(tokens.good(None), None);
        assert!(!format!("{tokens:?}").contains("t1"));
    }
}
