//! Lets requests in: who is calling is found out by `auth`; here are the headers, the refusals and their challenges, and
//! which address a request comes from.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use ipnet::IpNet;

use crate::auth::{Failures, KeyError, Keys, Rates, Reason, TokenError, Tokens};
use crate::domain::principal::MissingScope;
use crate::domain::{ApiKey, ErrorCode, Principal, Scope};
use crate::telemetry::metrics;

use super::connections::Holding;
use super::{PeerAddress, Shares, discard, problem};

/// How often the credential of an open stream is checked.
const RECHECK: Duration = Duration::from_secs(5);

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
    keys: Keys,
    failures: Failures,
    trusted_proxies: Vec<IpNet>,
    rates: Rates<String>,
    shares: Shares,
}

/// Why a caller is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Refused {
    #[error("a credential is needed: send `Authorization: Bearer <API key or access token>`")]
    Missing,
    #[error("the credential is not valid: unknown, expired, revoked or for another server")]
    Invalid(&'static str),
    #[error("the credential has none of the scopes that this server knows: run, read, paths, admin")]
    Scope,
    #[error("the credential cannot be checked now; try again in a moment")]
    Unavailable,
    #[error("too many invalid credentials from this address; see Retry-After")]
    TooMany(Duration),
}

impl From<TokenError> for Refused {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Invalid(reason) => Self::Invalid(reason.as_str()),
            TokenError::Scope => Self::Scope,
            TokenError::Unavailable => Self::Unavailable,
        }
    }
}

impl From<KeyError> for Refused {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Invalid => Self::Invalid("api_key"),
            KeyError::Unavailable => Self::Unavailable,
            KeyError::TooMany { after } => Self::TooMany(after),
        }
    }
}

impl Refused {
    /// Its name in counters.
    fn reason(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Invalid(reason) => reason,
            Self::Scope => "scope",
            Self::Unavailable => "unavailable",
            Self::TooMany(_) => "too_many",
        }
    }
}

/// Which address a request comes from: the connection's, or what trusted proxies in front of this server say. A proxy adds
/// the address that it sees at the end, so whatever a client wrote there stands further left.
fn address(request: &Request, trusted: &[IpNet]) -> IpAddr {
    let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0.ip().to_canonical());
    let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    if !is_trusted(&peer) {
        return peer;
    }
    let named = request.headers().get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok());
    let named: Vec<IpAddr> =
        named.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
    named.into_iter().rev().find(|address| !is_trusted(address)).unwrap_or(peer)
}

impl Authenticator {
    /// Checks keys against the service's store, and access tokens if there is an issuer that is trusted.
    pub fn new(
        unauthenticated: Unauthenticated,
        tokens: Option<Tokens>,
        keys: Keys,
        failures: Failures,
        trusted_proxies: Vec<IpNet>,
        rates: Rates<String>,
        shares: Shares,
    ) -> Self {
        Self(Arc::new(Inner { unauthenticated, tokens, keys, failures, trusted_proxies, rates, shares }))
    }

    /// Whose credential it is. `from` pays for one that is not good; a credential that was good before costs no one.
    async fn principal(&self, headers: &HeaderMap, from: Option<IpAddr>) -> Result<Principal, Refused> {
        let Some(presented) = credential(headers)? else {
            return match &self.0.unauthenticated {
                Unauthenticated::Refused => Err(Refused::Missing),
                Unauthenticated::Local(principal) => Ok(principal.clone()),
            };
        };
        match (ApiKey::id_of(presented), &self.0.tokens) {
            (Some(id), _) => Ok(self.0.keys.principal(id, presented, from).await?),
            (None, Some(tokens)) => match tokens.principal(presented).await {
                Ok(principal) => Ok(principal),
                // A good token passes whatever else comes from its address; bad ones are counted there.
                Err(TokenError::Invalid(reason)) => {
                    if let Some(from) = from {
                        self.0.failures.begin(from)?;
                    }
                    Err(Refused::Invalid(reason.as_str()))
                }
                Err(error) => Err(error.into()),
            },
            (None, None) => Err(Refused::Invalid("no_issuer")),
        }
    }
}

/// The credential of a request. Never out of the URL: those are logged.
fn credential(headers: &HeaderMap) -> Result<Option<&str>, Refused> {
    let mut sent = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (sent.next(), sent.next()) else {
        return if headers.contains_key(header::AUTHORIZATION) {
            Err(Refused::Invalid("header"))
        } else {
            Ok(None)
        };
    };
    let (scheme, token) =
        value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or(Refused::Invalid("header"))?;
    if !scheme.eq_ignore_ascii_case("bearer") || token.trim().is_empty() {
        return Err(Refused::Invalid("header"));
    }
    Ok(Some(token.trim()))
}

/// Lets known callers through, with their [`Principal`] in the request, and not too often. A stream that they opened ends
/// soon after their credential does.
pub async fn check_caller(State(auth): State<Authenticator>, mut request: Request, next: Next) -> Response {
    let from = address(&request, &auth.0.trusted_proxies);
    let principal = match auth.principal(request.headers(), Some(from)).await {
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

/// A refusal once the request's body has been read.
async fn after_body(request: Request, refusal: Response) -> Response {
    discard(request.into_body()).await;
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
                if matches!(auth.principal(&headers, None).await, Err(Refused::Invalid(_) | Refused::Scope)) {
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
        metrics::AUTH_REFUSED.add(&[refused.reason()], 1);
        let (status, code) = match refused {
            Refused::Missing | Refused::Invalid(_) => (StatusCode::UNAUTHORIZED, ErrorCode::Forbidden),
            Refused::Scope => (StatusCode::FORBIDDEN, ErrorCode::Forbidden),
            Refused::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::StoreUnavailable),
            Refused::TooMany(_) => (StatusCode::TOO_MANY_REQUESTS, ErrorCode::LimitReached),
        };
        let mut response = problem(status, code, refused.to_string());
        if let Refused::TooMany(wait) = refused {
            let seconds = wait.as_secs().max(1);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        } else if refused != Refused::Unavailable
            && let Ok(challenge) = HeaderValue::from_str(&self.challenge(refused))
        {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }

    fn challenge(&self, refused: Refused) -> String {
        let error = match refused {
            Refused::Invalid(_) => Some(TokenError::Invalid(Reason::Malformed)),
            Refused::Scope => Some(TokenError::Scope),
            Refused::Missing | Refused::Unavailable | Refused::TooMany(_) => None,
        };
        match (&self.0.tokens, error) {
            (Some(tokens), error) => tokens.challenge(error),
            (None, None) => "Bearer realm=\"pathbox\"".to_owned(),
            (None, Some(_)) => "Bearer realm=\"pathbox\", error=\"invalid_token\"".to_owned(),
        }
    }
}
