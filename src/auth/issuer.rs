//! The signing keys of the issuer, as its key set publishes them.
//!
//! One task fetches the set, at the start, when it grows old and when a token names a key that is not in it, but then at
//! most four times a minute: a stranger can name keys all day. A key that is at hand is given out at once, also while the set
//! is fetched and when the issuer has been away for hours. Only a token whose key is unknown waits, for one fetch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt;
use jsonwebtoken::jwk::Jwk;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Rates;
use super::tokens::Options;
use crate::domain::lock;
use crate::telemetry::{chain, metrics};

/// How long a key set serves before it is fetched again.
const FRESH: Duration = Duration::from_secs(600);
/// How long an old one serves while the issuer does not answer.
const STALE: Duration = Duration::from_secs(24 * 3600);
/// Fetches a minute that tokens may ask for, and as many at once.
const ASKED_PER_MINUTE: u32 = 4;
/// After a fetch that failed, doubled from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));
/// One request to the issuer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a token waits for a fetch: metadata twice and the set.
const PATIENCE: Duration = Duration::from_secs(16);
/// How long a name that is in no set is remembered, and how many are.
const UNKNOWN: (Duration, usize) = (Duration::from_secs(60), 1024);
/// The largest key set or metadata document, in bytes.
const MAX_DOCUMENT: usize = 256 * 1024;

/// Why the key set could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum IssuerError {
    #[error("{0} is neither https nor on this machine")]
    Plain(String),
    #[error("{url} does not answer")]
    Unreachable { url: String, source: reqwest::Error },
    #[error("{url} answers with status {status}")]
    Status { url: String, status: u16 },
    #[error("{url} answers with more than {MAX_DOCUMENT} bytes")]
    TooLarge { url: String },
    #[error("{url} does not answer with the expected JSON")]
    Form { url: String, source: serde_json::Error },
    #[error(
        "{url} is the metadata of the issuer {found:?}, and `oauth.issuer` is {expected:?}{}",
        slash(.found, .expected)
    )]
    OtherIssuer { url: String, found: String, expected: String },
    #[error("{url} names no key set (`jwks_uri`)")]
    NoKeySet { url: String },
    #[error("{url} has no key that can be used here")]
    NoKeys { url: String },
    #[error("no metadata could be used: {0}")]
    NoMetadata(String),
}

/// A word about two names that differ in the slash at the end.
pub(super) fn slash(one: &str, other: &str) -> &'static str {
    match one != other && one.trim_end_matches('/') == other.trim_end_matches('/') {
        true => ": they differ in the trailing slash, and must be equal",
        false => "",
    }
}

/// Why a token's key is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoKey {
    /// The set does not have it.
    Unknown,
    /// The set cannot be had.
    Unavailable,
}

/// The issuer's keys. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Issuer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: reqwest::Client,
    issuer: String,
    jwks_url: Option<String>,
    state: Mutex<State>,
    /// A token names a key that is not in the set.
    wanted: Notify,
    asks: Rates<()>,
    /// Counts fetches that have ended.
    fetched: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    keys: Vec<Jwk>,
    /// When `keys` was fetched.
    since: Option<Instant>,
    is_fetching: bool,
    /// The last fetch that ended did not end well.
    has_failed: bool,
    /// Names that were in no set, and since when.
    unknown: HashMap<String, Instant>,
}

impl State {
    /// The key of this name; the only key when the token names none.
    fn find(&self, kid: Option<&str>) -> Option<Jwk> {
        self.since.filter(|at| at.elapsed() < STALE)?;
        match kid {
            Some(kid) => self.keys.iter().find(|key| key.common.key_id.as_deref() == Some(kid)).cloned(),
            None => self.keys.first().filter(|_| self.keys.len() == 1).cloned(),
        }
    }

    /// What to say without a fetch; `None`: one may bring the key.
    fn refusal(&self, kid: Option<&str>, asks: &Rates<()>) -> Option<NoKey> {
        if self.is_fetching {
            return None;
        }
        if self.has_failed {
            return Some(NoKey::Unavailable); // it is fetched again in any case
        }
        let is_known_missing =
            kid.is_some_and(|kid| self.unknown.get(kid).is_some_and(|at| at.elapsed() < UNKNOWN.0));
        (is_known_missing || asks.take(&()).is_err()).then_some(NoKey::Unknown)
    }

    fn note_unknown(&mut self, kid: Option<&str>) {
        let Some(kid) = kid else { return };
        if self.unknown.len() >= UNKNOWN.1 {
            self.unknown.retain(|_, at| at.elapsed() < UNKNOWN.0);
        }
        if self.unknown.len() < UNKNOWN.1 {
            self.unknown.insert(kid.to_owned(), Instant::now());
        }
    }
}

impl Issuer {
    pub(super) fn new(options: &Options) -> Result<Self, reqwest::Error> {
        // Fails when one is installed already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self(Arc::new(Inner {
            client,
            issuer: options.issuer.clone(),
            jwks_url: options.jwks_url.clone(),
            // Until the task runs, a token waits for it.
            state: Mutex::new(State { is_fetching: true, ..State::default() }),
            wanted: Notify::new(),
            asks: Rates::new(ASKED_PER_MINUTE),
            fetched: watch::Sender::new(0),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// The key of this name.
    pub(super) async fn key(&self, kid: Option<&str>) -> Result<Jwk, NoKey> {
        let mut fetched = self.0.fetched.subscribe();
        {
            let state = self.state();
            if let Some(key) = state.find(kid) {
                return Ok(key);
            }
            if let Some(refusal) = state.refusal(kid, &self.0.asks) {
                return Err(refusal);
            }
            if !state.is_fetching {
                self.0.wanted.notify_one();
            }
        }
        if tokio::time::timeout(PATIENCE, fetched.changed()).await.is_err() {
            return Err(NoKey::Unavailable);
        }
        let mut state = self.state();
        match state.find(kid) {
            Some(key) => Ok(key),
            None if state.has_failed => Err(NoKey::Unavailable),
            None => {
                state.note_unknown(kid);
                Err(NoKey::Unknown)
            }
        }
    }

    /// Keeps the set fresh until the end.
    pub(super) async fn keep_fresh(&self, shutdown: &CancellationToken) {
        let mut retry = RETRY.0;
        while !shutdown.is_cancelled() {
            {
                let mut state = self.state();
                state.is_fetching = true;
                // Anyone who asked until now is served by this fetch.
                let _ = self.0.wanted.notified().now_or_never();
            }
            let fetched = tokio::select! {
                fetched = self.fetch() => fetched,
                () = shutdown.cancelled() => return,
            };
            metrics::AUTH_KEY_FETCHES.add(&[if fetched.is_ok() { "ok" } else { "error" }], 1);
            let pause = match fetched {
                Ok(keys) => {
                    let mut state = self.state();
                    if state.has_failed {
                        tracing::info!(issuer = %self.0.issuer, "the issuer's keys can be fetched again");
                    }
                    state.unknown.clear();
                    (state.keys, state.since) = (keys, Some(Instant::now()));
                    (state.is_fetching, state.has_failed) = (false, false);
                    retry = RETRY.0;
                    FRESH
                }
                Err(error) => {
                    tracing::warn!(error = %chain(&error), issuer = %self.0.issuer,
                        "the issuer's keys could not be fetched; the known ones stay in use");
                    let mut state = self.state();
                    (state.is_fetching, state.has_failed) = (false, true);
                    let pause = retry;
                    retry = (pause * 2).min(RETRY.1);
                    pause
                }
            };
            self.0.fetched.send_modify(|count| *count += 1);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.0.wanted.notified() => {}
                () = shutdown.cancelled() => return,
            }
        }
    }

    async fn fetch(&self) -> Result<Vec<Jwk>, IssuerError> {
        let url = match &self.0.jwks_url {
            Some(url) => url.clone(),
            None => self.key_set_url().await?,
        };
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let set: Set = self.document(&url).await?;
        // A set may hold keys of kinds that are not known here; they are skipped.
        let keys: Vec<Jwk> =
            set.keys.into_iter().filter_map(|key| serde_json::from_value(key).ok()).collect();
        if keys.is_empty() { Err(IssuerError::NoKeys { url }) } else { Ok(keys) }
    }

    /// RFC 8414 puts the well-known part before the issuer's own path; OpenID Connect after it.
    async fn key_set_url(&self) -> Result<String, IssuerError> {
        let issuer = self.0.issuer.trim_end_matches('/');
        let (origin, path) = match issuer.match_indices('/').nth(2) {
            Some((at, _)) => issuer.split_at(at),
            None => (issuer, ""),
        };
        let mut causes = Vec::new();
        for url in [
            format!("{origin}/.well-known/oauth-authorization-server{path}"),
            format!("{issuer}/.well-known/openid-configuration"),
        ] {
            match self.key_set_of(url).await {
                Ok(url) => return Ok(url),
                Err(error) => causes.push(chain(&error)),
            }
        }
        Err(IssuerError::NoMetadata(causes.join("; ")))
    }

    async fn key_set_of(&self, url: String) -> Result<String, IssuerError> {
        #[derive(Deserialize)]
        struct Metadata {
            issuer: String,
            jwks_uri: Option<String>,
        }
        let metadata: Metadata = self.document(&url).await?;
        // A document of another issuer must not lend us its keys (RFC 8414 section 3.3).
        if metadata.issuer != self.0.issuer {
            let (found, expected) = (metadata.issuer, self.0.issuer.clone());
            return Err(IssuerError::OtherIssuer { url, found, expected });
        }
        metadata.jwks_uri.ok_or(IssuerError::NoKeySet { url })
    }

    async fn document<T: serde::de::DeserializeOwned>(&self, url: &str) -> Result<T, IssuerError> {
        let parsed = reqwest::Url::parse(url).map_err(|_| IssuerError::Plain(url.to_owned()))?;
        let here = matches!(parsed.host_str(), Some("127.0.0.1" | "localhost" | "[::1]"));
        if parsed.scheme() != "https" && !here {
            return Err(IssuerError::Plain(url.to_owned()));
        }
        let unreachable = |source| IssuerError::Unreachable { url: url.to_owned(), source };
        let mut response = self.0.client.get(parsed).send().await.map_err(unreachable)?;
        if !response.status().is_success() {
            return Err(IssuerError::Status { url: url.to_owned(), status: response.status().as_u16() });
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_DOCUMENT {
                return Err(IssuerError::TooLarge { url: url.to_owned() });
            }
        }
        serde_json::from_slice(&body).map_err(|source| IssuerError::Form { url: url.to_owned(), source })
    }
}
