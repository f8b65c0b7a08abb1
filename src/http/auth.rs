//! Who is calling: an API key, an OAuth access token, or nobody where that is allowed.
//!
//! A key that was found good is believed for some seconds without asking the database again; revoking one takes as
//! long to be felt on every replica. While the database is away it is believed longer: nobody can look it up, and the
//! contexts that this replica holds go on. An expired one is believed no longer in any case.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::domain::{ApiKey, Clock, Principal};
use crate::execution::{Credentials, Starting};

use super::Rates;
use super::oauth::{TokenError, Tokens};

/// How long a good key is believed.
const BELIEVED: Duration = Duration::from_secs(15);
/// How long it is believed while the database is away.
const BELIEVED_WHILE_AWAY: Duration = Duration::from_secs(10 * 60);
/// Keys that are believed at a time.
const MAX_BELIEVED: usize = 10_000;
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
    ) -> Self {
        let believed = Mutex::default();
        Self(Arc::new(Inner { unauthenticated, tokens, credentials, clock, rates, believed }))
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

/// Lets known callers through, with their [`Principal`] in the request, and not too often.
pub async fn check_caller(State(auth): State<Authenticator>, mut request: Request, next: Next) -> Response {
    let principal = match auth.principal(request.headers()).await {
        Ok(principal) => principal,
        Err(refused) => return auth.refuse(refused),
    };
    if let Err(wait) = auth.0.rates.take(&principal.name) {
        let mut response =
            (StatusCode::TOO_MANY_REQUESTS, "too many requests of this caller; see Retry-After")
                .into_response();
        let seconds = wait.as_secs().max(1);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        return response;
    }
    // From here on nothing reads the credential, and so nothing can pass it on.
    request.headers_mut().remove(header::AUTHORIZATION);
    request.extensions_mut().insert(principal);
    next.run(request).await
}

impl Authenticator {
    fn refuse(&self, refused: Refused) -> Response {
        let status = match refused {
            Refused::Missing | Refused::Invalid => StatusCode::UNAUTHORIZED,
            Refused::Scope => StatusCode::FORBIDDEN,
            Refused::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        let mut response = (status, refused.to_string()).into_response();
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
