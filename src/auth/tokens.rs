//! OAuth 2.1 access tokens, as an MCP resource server checks them: a signed JWT (RFC 9068) of the one issuer that is
//! trusted, made for this server and no other (RFC 8707), by a key of the issuer's published set.
//!
//! Which algorithm a key is for is said by the key, not by the token. A token whose header marks an extension as
//! critical is refused: none is understood here (RFC 7515 section 4.1.11).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::routing::get;
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header, get_current_timestamp};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::issuer::{Issuer, NoKey, slash};
use crate::domain::{MAX_PRINCIPAL, Principal, PrincipalKind, Scope, TenantId, Tenants, hex};

/// The longest token that is looked at.
const MAX_TOKEN: usize = 16 * 1024;
/// How far clocks may differ, in seconds.
const LEEWAY: u64 = 30;

/// Whose tokens are trusted, and what for.
#[derive(Debug, Clone)]
pub struct Options {
    /// The authorization server, exactly as in the `iss` claim.
    pub issuer: String,
    /// This server's own identifier: the `aud` claim must hold it.
    pub resource: String,
    /// Where the key set is; found out from the issuer's metadata when not set.
    pub jwks_url: Option<String>,
    /// The claim that names the tenant. A token without it gets a tenant of its own.
    pub tenant_claim: String,
}

/// Why a token is not good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is malformed, not signed by the issuer, too old, or for another server.
    #[error("the access token is not valid here")]
    Invalid(Reason),
    /// It is good and carries none of this server's scopes.
    #[error("the access token has none of the scopes run, read, paths, admin, reveal")]
    Scope,
    /// The issuer's keys cannot be had.
    #[error("the authorization server does not answer")]
    Unavailable,
}

/// What is wrong with a token, for logs and counters. A caller learns only that it is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is not a signed JWT, or longer than any that is looked at.
    Malformed,
    /// It is meant for something else than access (`typ`).
    Type,
    /// Its header marks an extension as critical.
    Critical,
    /// No key of the issuer has its name.
    UnknownKey,
    /// Its algorithm does not fit its key.
    Algorithm,
    /// Its signature does not fit.
    Signature,
    /// It is too old.
    Expired,
    /// It is not yet good.
    Early,
    /// Another issuer made it.
    Issuer,
    /// It is for another server.
    Audience,
    /// A claim is missing or has another form.
    Claims,
}

impl Reason {
    /// Its name in counters.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Type => "type",
            Self::Critical => "critical",
            Self::UnknownKey => "unknown_key",
            Self::Algorithm => "algorithm",
            Self::Signature => "signature",
            Self::Expired => "expired",
            Self::Early => "early",
            Self::Issuer => "issuer",
            Self::Audience => "audience",
            Self::Claims => "claims",
        }
    }

    fn of(kind: &ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidSignature => Self::Signature,
            ErrorKind::ExpiredSignature => Self::Expired,
            ErrorKind::ImmatureSignature => Self::Early,
            ErrorKind::InvalidIssuer => Self::Issuer,
            ErrorKind::InvalidAudience => Self::Audience,
            ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName => Self::Algorithm,
            ErrorKind::MissingRequiredClaim(_) | ErrorKind::InvalidSubject | ErrorKind::Json(_) => {
                Self::Claims
            }
            _ => Self::Malformed,
        }
    }
}

/// Checks access tokens. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokens(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: Options,
    keys: Issuer,
    /// That tokens and settings spell the issuer differently was said.
    has_explained: AtomicBool,
}

#[derive(Debug, Deserialize)]
struct Claims {
    iss: String,
    sub: String,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl Tokens {
    /// Trusts the options' issuer.
    ///
    /// # Errors
    /// When the machine's certificates cannot be loaded.
    pub fn new(options: Options) -> Result<Self, reqwest::Error> {
        let keys = Issuer::new(&options)?;
        Ok(Self(Arc::new(Inner { options, keys, has_explained: AtomicBool::new(false) })))
    }

    /// Keeps the issuer's keys fresh until the end; tokens are good only while this runs.
    pub async fn keep_fresh(&self, shutdown: &CancellationToken) {
        self.0.keys.keep_fresh(shutdown).await;
    }

    /// Whose token it is.
    ///
    /// # Errors
    /// [`TokenError`]; the caller gets a challenge that says which.
    pub async fn principal(&self, token: &str) -> Result<Principal, TokenError> {
        let invalid = |reason| Err(TokenError::Invalid(reason));
        if token.len() > MAX_TOKEN {
            return invalid(Reason::Malformed);
        }
        let Ok(header) = decode_header(token) else { return invalid(Reason::Malformed) };
        if has_critical(token) {
            return invalid(Reason::Critical);
        }
        // RFC 9068 section 4; some issuers say plain JWT. Anything else is not meant as an access token.
        let typed = header.typ.as_deref().map(str::to_ascii_lowercase);
        if !matches!(typed.as_deref(), None | Some("jwt" | "at+jwt" | "application/at+jwt")) {
            return invalid(Reason::Type);
        }
        let key = match self.0.keys.key(header.kid.as_deref()).await {
            Ok(key) => key,
            Err(NoKey::Unknown) => return invalid(Reason::UnknownKey),
            Err(NoKey::Unavailable) => return Err(TokenError::Unavailable),
        };
        let allowed = algorithms(&key);
        if !allowed.contains(&header.alg) {
            return invalid(Reason::Algorithm);
        }
        let mut validation = Validation::new(header.alg);
        validation.algorithms = allowed;
        validation.set_issuer(&[&self.0.options.issuer]);
        validation.set_audience(&[&self.0.options.resource]);
        validation.set_required_spec_claims(&["iss", "aud", "sub"]);
        // Times may have a fraction (RFC 7519 section 2), which the crate does not read; so they are looked at here.
        validation.validate_exp = false;
        let Ok(key) = DecodingKey::from_jwk(&key) else { return invalid(Reason::Algorithm) };
        let claims = match decode::<Claims>(token, &key, &validation) {
            Ok(decoded) => decoded.claims,
            Err(error) => {
                let reason = Reason::of(error.kind());
                if reason == Reason::Issuer {
                    self.explain_issuer(token);
                }
                return invalid(reason);
            }
        };
        in_time(&claims.more, get_current_timestamp()).map_err(TokenError::Invalid)?;
        principal(&claims, &self.0.options.tenant_claim)
    }

    /// A token that the issuer signed names another issuer: once, a word about a slash too many. The issuer's own
    /// tokens are all refused then, and their callers cannot find out why.
    fn explain_issuer(&self, token: &str) {
        let expected = &self.0.options.issuer;
        let claims = segment(token, 1);
        let Some(found) = claims.as_ref().and_then(|claims| claims.get("iss")).and_then(Value::as_str) else {
            return;
        };
        let why = slash(found, expected);
        if !why.is_empty() && !self.0.has_explained.swap(true, Ordering::Relaxed) {
            tracing::warn!("tokens name the issuer {found:?} and `oauth.issuer` is {expected:?}{why}");
        }
    }

    /// What a client reads when it has no token or a bad one: where to read who gives tokens.
    pub fn challenge(&self, error: Option<TokenError>) -> String {
        let base = format!("Bearer realm=\"pathbox\", resource_metadata=\"{}\"", self.metadata_url());
        match error {
            None => format!("{base}, scope=\"run read\""),
            Some(TokenError::Scope) => format!("{base}, error=\"insufficient_scope\", scope=\"run read\""),
            Some(_) => format!("{base}, error=\"invalid_token\", scope=\"run read\""),
        }
    }

    /// Where a client reads who gives tokens.
    pub fn metadata_url(&self) -> String {
        let resource = &self.0.options.resource;
        format!("{}{METADATA}{}", origin(resource), path(resource))
    }

    /// Protected-resource metadata (RFC 9728): at the root, and where the resource's own path puts it.
    pub fn metadata(&self) -> Router {
        let options = &self.0.options;
        let document = json!({
            "resource": options.resource,
            "authorization_servers": [options.issuer],
            "scopes_supported": Scope::ALL.iter().map(|scope| scope.as_str()).collect::<Vec<_>>(),
            "bearer_methods_supported": ["header"],
            "resource_name": "Pathbox",
        });
        let answer = async move || Json(document);
        let router = Router::new().route(METADATA, get(answer.clone()));
        match path(&options.resource) {
            "" | "/" => router,
            path => router.route(&format!("{METADATA}{path}"), get(answer)),
        }
    }
}

const METADATA: &str = "/.well-known/oauth-protected-resource";

fn origin(url: &str) -> &str {
    url.match_indices('/').nth(2).map_or(url, |(at, _)| &url[..at])
}

fn path(url: &str) -> &str {
    &url[origin(url).len()..]
}

/// A part of a token as JSON, unverified.
fn segment(token: &str, which: usize) -> Option<Map<String, Value>> {
    let part = URL_SAFE_NO_PAD.decode(token.split('.').nth(which)?).ok()?;
    serde_json::from_slice(&part).ok()
}

/// Whether a token's header marks an extension as critical. Also an empty list is refused (RFC 7515 section 4.1.11).
fn has_critical(token: &str) -> bool {
    segment(token, 0).is_none_or(|header| header.contains_key("crit"))
}

/// What a key may be used for. Never a shared secret: a public key taken for one would let anyone sign.
fn algorithms(key: &Jwk) -> Vec<Algorithm> {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    if matches!(key.common.public_key_use, Some(PublicKeyUse::Encryption)) {
        return Vec::new();
    }
    let family = match &key.algorithm {
        AlgorithmParameters::RSA(_) => vec![RS256, RS384, RS512, PS256, PS384, PS512],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => vec![ES256],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => vec![ES384],
        AlgorithmParameters::OctetKeyPair(_) => vec![EdDSA],
        _ => Vec::new(),
    };
    match key.common.key_algorithm {
        None => family,
        Some(named) => {
            family.into_iter().filter(|algorithm| format!("{algorithm:?}") == format!("{named:?}")).collect()
        }
    }
}

/// Whether a token has begun and not ended, at `now` in seconds since 1970 (RFC 7519 sections 4.1.4 and 4.1.5).
fn in_time(claims: &Map<String, Value>, now: u64) -> Result<(), Reason> {
    let at = |name: &str| claims.get(name).map(|at| at.as_f64().unwrap_or(f64::NAN));
    let (now, leeway) = (now as f64, LEEWAY as f64);
    match (at("exp"), at("nbf")) {
        (None, _) => Err(Reason::Claims),
        (Some(end), _) if end.is_nan() => Err(Reason::Claims),
        (_, Some(begin)) if begin.is_nan() => Err(Reason::Claims),
        (Some(end), _) if now - leeway >= end => Err(Reason::Expired),
        (_, Some(begin)) if begin > now + leeway => Err(Reason::Early),
        _ => Ok(()),
    }
}

fn principal(claims: &Claims, tenant_claim: &str) -> Result<Principal, TokenError> {
    let tenant = match claims.more.get(tenant_claim) {
        Some(Value::String(name)) => {
            TenantId::parse(name.as_str()).map_err(|_| TokenError::Invalid(Reason::Claims))?
        }
        Some(_) => return Err(TokenError::Invalid(Reason::Claims)),
        None => {
            let digest = Sha256::digest(format!("{}|{}", claims.iss, claims.sub).as_bytes());
            let hex = hex(&digest[..16]);
            TenantId::parse(format!("oauth-{hex}")).map_err(|_| TokenError::Invalid(Reason::Claims))?
        }
    };
    let scopes = scopes(&claims.more);
    if scopes.is_empty() {
        return Err(TokenError::Scope);
    }
    let name = format!("oauth:{}|{}", claims.iss, claims.sub);
    if name.len() > MAX_PRINCIPAL {
        tracing::warn!(
            bytes = name.len(),
            "a token's issuer and subject are longer together than {MAX_PRINCIPAL} bytes"
        );
        return Err(TokenError::Invalid(Reason::Claims));
    }
    Ok(Principal {
        name,
        kind: PrincipalKind::User,
        tenant: Some(tenant),
        tenants: Tenants::Only(BTreeSet::new()),
        scopes,
    })
}

/// Ours among the token's scopes, `run` or `pathbox:run`.
fn scopes(claims: &Map<String, Value>) -> BTreeSet<Scope> {
    let listed: Vec<&str> = match claims.get("scope").or_else(|| claims.get("scp")) {
        Some(Value::String(text)) => text.split_whitespace().collect(),
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    listed.iter().filter_map(|name| name.strip_prefix("pathbox:").unwrap_or(name).parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_metadata_is_follows_from_the_resource() {
        for (url, first, second) in [
            ("https://a.example", "https://a.example", ""),
            ("https://a.example/mcp", "https://a.example", "/mcp"),
            ("http://127.0.0.1:1/x/mcp", "http://127.0.0.1:1", "/x/mcp"),
        ] {
            assert_eq!((origin(url), path(url)), (first, second));
        }
    }

    #[test]
    fn a_token_serves_between_its_two_times_however_they_are_written() {
        for (claims, fits) in [
            (r#"{"exp": 1001}"#, true),
            (r#"{"exp": 970.5}"#, true),
            (r#"{"exp": 1.001e3, "nbf": 1030.0}"#, true),
            (r#"{"exp": 970}"#, false),
            (r#"{"exp": 2000, "nbf": 1030.5}"#, false),
            (r#"{"exp": "2000"}"#, false),
            (r#"{"exp": 2000, "nbf": null}"#, false),
            ("{}", false),
        ] {
            assert_eq!(in_time(&serde_json::from_str(claims).unwrap(), 1000).is_ok(), fits, "{claims}");
        }
    }

    #[test]
    fn a_token_without_a_tenant_gets_one_of_its_own() {
        let claims = |more: Value| Claims {
            iss: "i".into(),
            sub: "s".into(),
            more: more.as_object().unwrap().clone(),
        };
        let own = principal(&claims(json!({"scope": "openid run"})), "tenant").unwrap();
        assert!(own.tenant.unwrap().as_str().starts_with("oauth-"));
        assert_eq!(own.scopes, [Scope::Run].into());
        let named = principal(&claims(json!({"scope": "pathbox:read", "tenant": "acme"})), "tenant").unwrap();
        assert_eq!(named.tenant.unwrap().as_str(), "acme");
        let none = principal(&claims(json!({"scope": "openid"})), "tenant");
        assert_eq!(none.unwrap_err(), TokenError::Scope);
        let bad = principal(&claims(json!({"scope": "run", "tenant": ["a"]})), "tenant");
        assert_eq!(bad.unwrap_err(), TokenError::Invalid(Reason::Claims));
    }
}
