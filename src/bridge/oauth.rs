//! Access tokens of a server that wants OAuth: by client credentials, or by a refresh token that someone got once.
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
use sha2::{Digest, Sha256};
use sse_stream::{Error as SseError, Sse};
use tokio::time::Instant;

use super::pins::ToolStore;
use crate::domain::{hex, lock};
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
    /// The requested scopes, separated by spaces.
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
/// A token is renewed this long before it runs out, or at half of its life.
const EARLY: Duration = Duration::from_secs(30);

/// The access token of one server, renewed when it runs out or is refused.
#[derive(Debug)]
pub(super) struct Tokens {
    oauth: OAuth,
    /// The server, as RFC 8707 names it to the authorization server.
    resource: String,
    held: Mutex<Held>,
    /// Where a refresh token is kept that replaced the one of the settings.
    store: Option<Arc<dyn ToolStore>>,
    /// One at a time asks for a token.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Held {
    access: Option<(Secret, Option<Instant>)>,
    /// Given instead of the one in the settings, here or at another replica.
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
    pub(super) fn new(oauth: OAuth, resource: String, store: Option<Arc<dyn ToolStore>>) -> Self {
        Self { oauth, resource, held: Mutex::default(), store, asking: tokio::sync::Mutex::default() }
    }

    /// Where the store has the refresh token that follows the one of the settings. Another one there is another name.
    fn name(&self) -> String {
        let mut digest = Sha256::new();
        let OAuth { token_url, client_id, refresh_token, .. } = &self.oauth;
        let token = refresh_token.as_ref().map(Secret::expose).unwrap_or_default();
        for part in [token_url, client_id, &self.resource, token] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        hex(&digest.finalize())
    }

    /// The refresh token that is good now: the last one that any replica was given, else that of the settings.
    async fn refresh(&self) -> Option<Secret> {
        let first = self.oauth.refresh_token.clone()?;
        if let Some(store) = &self.store {
            match store.refresh_token(&self.name()).await {
                Ok(Some(kept)) => lock(&self.held).refresh = Some(kept),
                Ok(None) => {}
                Err(error) => tracing::warn!(error, "a kept refresh token cannot be read"),
            }
        }
        Some(lock(&self.held).refresh.clone().unwrap_or(first))
    }

    /// Keeps what the authorization server gave instead of the refresh token that was used.
    async fn keep(&self, refresh: Secret) {
        if let Some(store) = &self.store
            && let Err(error) = store.keep_refresh_token(&self.name(), &refresh).await
        {
            tracing::warn!(
                error,
                "a refresh token could not be kept: the next start may need a new one in the settings"
            );
        }
        lock(&self.held).refresh = Some(refresh);
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
        let refresh = self.refresh().await;
        let granted = match self.ask(http, refresh.as_ref()).await {
            Ok(granted) => granted,
            // Another replica may have used it up in the same moment, and kept the one that follows.
            Err(problem) => match self.refresh().await {
                Some(next) if refresh.as_ref().map(Secret::expose) != Some(next.expose()) => {
                    self.ask(http, Some(&next)).await?
                }
                _ => return Err(problem),
            },
        };
        if let Some(refresh) = granted.refresh_token.filter(|_| self.oauth.refresh_token.is_some()) {
            self.keep(Secret::new(refresh)).await;
        }
        let life = granted.expires_in.map(Duration::from_secs);
        // One that ends beyond all time has no end.
        let until = life.and_then(|life| Instant::now().checked_add(life - EARLY.min(life / 2)));
        lock(&self.held).access = Some((Secret::new(granted.access_token.as_str()), until));
        Ok(granted.access_token)
    }

    fn good(&self, refused: Option<&str>) -> Option<String> {
        let held = lock(&self.held);
        let (token, until) = held.access.as_ref()?;
        let is_good = until.is_none_or(|until| Instant::now() < until) && refused != Some(token.expose());
        is_good.then(|| token.expose().to_owned())
    }

    async fn ask(&self, http: &reqwest::Client, refresh: Option<&Secret>) -> Result<Granted, String> {
        let mut fields = vec![("resource", self.resource.as_str())];
        match refresh {
            Some(refresh) => {
                fields.extend([("grant_type", "refresh_token"), ("refresh_token", refresh.expose())]);
            }
            None => fields.push(("grant_type", "client_credentials")),
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
            for secret in self.oauth.secrets().chain(refresh) {
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
        let tokens = Tokens::new(oauth, "https://mcp.example/mcp".to_owned(), None);
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

    /// A store in which another replica keeps the next token after the first look.
    #[derive(Debug, Default)]
    struct Shared(Mutex<Vec<&'static str>>);

    #[async_trait::async_trait]
    impl ToolStore for Shared {
        async fn pins(
            &self,
            _: &str,
            _: &str,
            _: Option<&str>,
        ) -> Result<Option<(String, Option<String>)>, String> {
            Ok(None)
        }

        async fn pin(&self, _: &str, _: &str, pins: &str, _: bool) -> Result<String, String> {
            Ok(pins.to_owned())
        }

        async fn refresh_token(&self, _: &str) -> Result<Option<Secret>, String> {
            Ok(lock(&self.0).pop().map(Secret::new))
        }

        async fn keep_refresh_token(&self, _: &str, token: &Secret) -> Result<(), String> {
            assert_eq!(token.expose(), "third");
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_refresh_token_that_another_replica_used_up_is_followed_by_the_one_that_it_kept() {
        use axum::routing::post;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let answer = |body: String| async move {
            match body.contains("refresh_token=second") {
                true => (http::StatusCode::OK, r#"{"access_token": "a", "refresh_token": "third"}"#),
                false => (http::StatusCode::BAD_REQUEST, r#"{"error": "invalid_grant"}"#),
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let token_url = format!("http://{}/token", listener.local_addr().unwrap());
        let endpoint = axum::Router::new().route("/token", post(answer));
        tokio::spawn(async move { axum::serve(listener, endpoint).await });
        let oauth = OAuth {
            token_url,
            client_id: "c".to_owned(),
            client_secret: None,
            refresh_token: Some(Secret::new("zeroth")),
            scope: None,
        };
        let shared = Arc::new(Shared(Mutex::new(vec!["second", "first"])));
        let tokens = Tokens::new(oauth, "https://mcp.example/mcp".to_owned(), Some(shared));
        let http = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
        assert_eq!(tokens.get(&http, None).await.as_deref(), Ok("a"));
    }
}
