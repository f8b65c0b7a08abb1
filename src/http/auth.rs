//! Who is calling: an API key, an OAuth access token, or nobody where that is allowed.
//!
//! A key that was found good is believed for some seconds without asking the database again; revoking one takes as
//! long to be felt on every replica. While the database is away it is believed longer: nobody can look it up, and the
//! contexts that this replica holds go on. An expired one is believed no longer in any case.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::domain::principal::MissingScope;
use crate::domain::{ApiKey, Clock, ErrorCode, Principal, Scope};
use crate::execution::{Credentials, Starting};
use crate::telemetry::metrics;

use super::connections::Holding;
use super::oauth::{TokenError, Tokens};
use super::{Rates, Shares, problem};

/// How long a good key is believed.
const BELIEVED: Duration = Duration::from_secs(15);
/// How long it is believed while the database is away.
const BELIEVED_WHILE_AWAY: Duration = Duration::from_secs(10 * 60);
/// Keys that are believed at a time.
const MAX_BELIEVED: usize = 10_000;
/// How often the credential of an open stream is checked.
const RECHECK: Duration = Duration::from_secs(5);
/// Bytes of a refused request's body that are read, and for how long.
const MAX_UNREAD: usize = 256 * 1024;
const UNREAD_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a request waits for a server that is still starting.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// What happens to a request without a credential.
#[derive(Debug, Clone)]
pub enum Unauthenticated {
    /// It is refused.
    Refused,
    /// It is this machine's own user's.
    Local(Principal),
}

/// Checks credentials. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Authenticator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    unauthenticated: Unauthenticated,
    tokens: Option<Tokens>,
    credentials: Starting<Credentials>,
    clock: Clock,
    rates: Rates,
    shares: Shares,
    believed: Mutex<HashMap<[u8; 32], Believed>>,
}

/// A key that was found good.
#[derive(Debug, Clone)]
struct Believed {
    principal: Principal,
    found: Instant,
    expires_at: Option<DateTime<Utc>>,
}

/// Why a caller is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error("a credential is needed: send `Authorization: Bearer <API key or access token>`")]
    Missing,
    #[error("the credential is not valid: unknown, expired, revoked or for another server")]
    Invalid,
    #[error("the credential has none of the scopes that this server knows: run, read, paths, admin")]
    Scope,
    #[error("the credential cannot be checked now; try again in a moment")]
    Unavailable,
}

impl From<TokenError> for Refused {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Invalid => Self::Invalid,
            TokenError::Scope => Self::Scope,
            TokenError::Unavailable => Self::Unavailable,
        }
    }
}

impl Authenticator {
    /// Checks keys against the service's store, and access tokens if there is an issuer that is trusted.
    pub fn new(
        unauthenticated: Unauthenticated,
        tokens: Option<Tokens>,
        credentials: Starting<Credentials>,
        clock: Clock,
        rates: Rates,
        shares: Shares,
    ) -> Self {
        let believed = Mutex::default();
        Self(Arc::new(Inner { unauthenticated, tokens, credentials, clock, rates, shares, believed }))
    }

    async fn principal(&self, headers: &HeaderMap) -> Result<Principal, Refused> {
        let Some(presented) = credential(headers)? else {
            return match &self.0.unauthenticated {
                Unauthenticated::Refused => Err(Refused::Missing),
                Unauthenticated::Local(principal) => Ok(principal.clone()),
            };
        };
        match (ApiKey::id_of(presented), &self.0.tokens) {
            (Some(id), _) => self.key(id, presented).await,
            (None, Some(tokens)) => Ok(tokens.principal(presented).await?),
            (None, None) => Err(Refused::Invalid),
        }
    }

    async fn key(&self, id: &str, presented: &str) -> Result<Principal, Refused> {
        let digest: [u8; 32] = Sha256::digest(presented.as_bytes()).into();
        let lock = || self.0.believed.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |within: Duration| {
            let now = self.0.clock.now();
            lock()
                .get(&digest)
                .filter(|key| key.found.elapsed() < within && key.expires_at.is_none_or(|at| now < at))
                .map(|key| key.principal.clone())
        };
        if let Some(principal) = known(BELIEVED) {
            return Ok(principal);
        }
        let known_keys =
            self.0.credentials.service(START_PATIENCE).await.map_err(|_| Refused::Unavailable)?;
        let key = match known_keys.api_key(id).await {
            Ok(key) => key,
            Err(error) => {
                tracing::warn!(error = %error, "an API key could not be looked up");
                let known = known(BELIEVED_WHILE_AWAY).filter(|_| error.is_retryable());
                return known.ok_or(Refused::Unavailable);
            }
        };
        let expires_at = key.as_ref().and_then(|key| key.expires_at);
        let opened = key.and_then(|key| key.opens(presented, self.0.clock.now()));
        let mut believed = lock();
        let Some(principal) = opened else {
            // What is known to be revoked or expired is not believed either when the database goes away.
            believed.remove(&digest);
            return Err(Refused::Invalid);
        };
        if believed.len() >= MAX_BELIEVED {
            believed.retain(|_, key| key.found.elapsed() < BELIEVED);
        }
        let found = Instant::now();
        believed.insert(digest, Believed { principal: principal.clone(), found, expires_at });
        Ok(principal)
    }
}

/// The credential of a request. Never out of the URL: those are logged.
fn credential(headers: &HeaderMap) -> Result<Option<&str>, Refused> {
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (sent.next(), sent.next()) else {
        return if headers.contains_key(header::AUTHORIZATION) { Err(Refused::Invalid) } else { Ok(None) };
    };
    let (scheme, token) =
        value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or(Refused::Invalid)?;
    if !scheme.eq_ignore_ascii_case("bearer") || token.trim().is_empty() {
        return Err(Refused::Invalid);
    }
    Ok(Some(token.trim()))
}

/// Lets known callers through, with their [`Principal`] in the request, and not too often. A stream that they opened ends
/// soon after their credential does.
pub async fn check_caller(State(auth): State<Authenticator>, mut request: Request, next: Next) -> Response {
    let principal = match auth.principal(request.headers()).await {
        Ok(principal) => principal,
        Err(refused) => return after_body(request, auth.refuse(refused)).await,
    };
    if let Err(wait) = auth.0.rates.take(&principal.name) {
        metrics::HTTP_REFUSED.add(&["rate"], 1);
        let text = "too many requests of this caller; see Retry-After";
        let mut response = problem(StatusCode::TOO_MANY_REQUESTS, ErrorCode::LimitReached, text);
        let seconds = wait.as_secs().max(1);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        return after_body(request, response).await;
    }
    let Some(share) = auth.0.shares.take(&principal.name) else {
        metrics::HTTP_REFUSED.add(&["principal"], 1);
        let text = "this caller has too many open requests (`http.max_requests_per_principal`): end some of its streams";
        let response = problem(StatusCode::TOO_MANY_REQUESTS, ErrorCode::LimitReached, text);
        let response = ([(header::RETRY_AFTER, "5")], response).into_response();
        return after_body(request, response).await;
    };
    // From here on nothing reads the credential, and so nothing can pass it on.
    let credential = request.headers_mut().remove(header::AUTHORIZATION);
    let scopes = principal.scopes.clone();
    request.extensions_mut().insert(principal);
    let mut response = next.run(request).await.map(|body| Holding::body(body, share));
    if let Some(MissingScope(scope)) = response.extensions_mut().remove::<MissingScope>() {
        auth.challenge_for(&mut response, &scopes, scope);
    }
    match credential {
        Some(credential) if is_event_stream(&response) => auth.watch(credential, response),
        _ => response,
    }
}

fn is_event_stream(response: &Response) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"))
}

/// A refusal once the request's body has been read, if it is short: what is left of it would cost the client its
/// connection.
async fn after_body(request: Request, refusal: Response) -> Response {
    let mut body = request.into_body().into_data_stream();
    let reading = async {
        let mut read = 0;
        while let Some(Ok(bytes)) = body.next().await {
            read += bytes.len();
            if read > MAX_UNREAD {
                return;
            }
        }
    };
    drop(tokio::time::timeout(UNREAD_TIMEOUT, reading).await);
    refusal
}

impl Authenticator {
    /// Ends a stream when its credential does.
    fn watch(&self, credential: HeaderValue, stream: Response) -> Response {
        let auth = self.clone();
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, credential)]);
        let ended = async move {
            loop {
                tokio::time::sleep(RECHECK).await;
                if matches!(auth.principal(&headers).await, Err(Refused::Invalid | Refused::Scope)) {
                    tracing::info!("a stream ends with the credential that it was opened with");
                    return;
                }
            }
        };
        stream.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(ended))))
    }

    /// Says which scopes a token needs that may do what this one may, and this too.
    fn challenge_for(&self, response: &mut Response, has: &BTreeSet<Scope>, needed: Scope) {
        let scopes: Vec<&str> =
            Scope::ALL.iter().filter(|s| has.contains(s) || **s == needed).map(|s| s.as_str()).collect();
        let metadata =
            self.0.tokens.as_ref().map(|tokens| format!(" resource_metadata=\"{}\",", tokens.metadata_url()));
        let challenge = format!(
            "Bearer realm=\"pathbox\",{} error=\"insufficient_scope\", error_description=\"the scope {needed} is missing\", \
             scope=\"{}\"",
            metadata.unwrap_or_default(),
            scopes.join(" ")
        );
        if let Ok(challenge) = HeaderValue::from_str(&challenge) {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
    }

    fn refuse(&self, refused: Refused) -> Response {
        let (status, code) = match refused {
            Refused::Missing | Refused::Invalid => (StatusCode::UNAUTHORIZED, ErrorCode::Forbidden),
            Refused::Scope => (StatusCode::FORBIDDEN, ErrorCode::Forbidden),
            Refused::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::StoreUnavailable),
        };
        let mut response = problem(status, code, refused.to_string());
        if refused != Refused::Unavailable
            && let Ok(challenge) = HeaderValue::from_str(&self.challenge(refused))
        {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }

    fn challenge(&self, refused: Refused) -> String {
        let error = match refused {
            Refused::Invalid => Some(TokenError::Invalid),
            Refused::Scope => Some(TokenError::Scope),
            Refused::Missing | Refused::Unavailable => None,
        };
        match (&self.0.tokens, error) {
            (Some(tokens), error) => tokens.challenge(error),
            (None, None) => "Bearer realm=\"pathbox\"".to_owned(),
            (None, Some(_)) => "Bearer realm=\"pathbox\", error=\"invalid_token\"".to_owned(),
        }
    }
}
