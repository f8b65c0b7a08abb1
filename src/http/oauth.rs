//! OAuth 2.1 access tokens, as an MCP resource server checks them: a signed JWT (RFC 9068) of the one issuer that is
//! trusted, made for this server and no other (RFC 8707), by a key of the issuer's published set.
//!
//! The key set is kept and asked for again when it is old or a token names a key that is not in it, but never more often
//! than twice a minute: a stranger can name keys all day. Which algorithm a key is for is said by the key, not by the
//! token.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::routing::get;
use axum::{Json, Router};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header, get_current_timestamp};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::domain::{Principal, PrincipalKind, Scope, TenantId, Tenants, hex};

/// How long a key set is good.
const FRESH: Duration = Duration::from_secs(600);
/// How long an old one serves while the issuer does not answer.
const STALE: Duration = Duration::from_secs(24 * 3600);
/// The least time between two requests for it.
const PAUSE: Duration = Duration::from_secs(30);
/// For one request to the issuer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The largest key set or metadata document, in bytes.
const MAX_DOCUMENT: usize = 256 * 1024;
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
    Invalid,
    /// It is good and carries none of this server's scopes.
    #[error("the access token has none of the scopes run, read, paths, admin, reveal")]
    Scope,
    /// The issuer's keys cannot be had.
    #[error("the authorization server does not answer")]
    Unavailable,
}

/// Checks access tokens. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokens(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: Options,
    client: reqwest::Client,
    keys: Mutex<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    set: Option<(JwkSet, Instant)>,
    asked: Option<Instant>,
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
        // Fails when one is installed already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self(Arc::new(Inner { options, client, keys: Mutex::default() })))
    }

    /// Whose token it is.
    ///
    /// # Errors
    /// [`TokenError`]; the caller gets a challenge that says which.
    pub async fn principal(&self, token: &str) -> Result<Principal, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::Invalid);
        }
        let header = decode_header(token).map_err(|_| TokenError::Invalid)?;
        // RFC 9068 section 4; some issuers say plain JWT. Anything else is not meant as an access token.
        let typed = header.typ.as_deref().map(str::to_ascii_lowercase);
        if !matches!(typed.as_deref(), None | Some("jwt" | "at+jwt" | "application/at+jwt")) {
            return Err(TokenError::Invalid);
        }
        let key = self.key(header.kid.as_deref()).await?;
        let allowed = algorithms(&key);
        if !allowed.contains(&header.alg) {
            return Err(TokenError::Invalid);
        }
        let mut validation = Validation::new(header.alg);
        validation.algorithms = allowed;
        validation.set_issuer(&[&self.0.options.issuer]);
        validation.set_audience(&[&self.0.options.resource]);
        validation.set_required_spec_claims(&["iss", "aud", "sub"]);
        // Times may have a fraction (RFC 7519 section 2), which the crate does not read; so they are looked at here.
        validation.validate_exp = false;
        let key = DecodingKey::from_jwk(&key).map_err(|_| TokenError::Invalid)?;
        let claims = decode::<Claims>(token, &key, &validation).map_err(|_| TokenError::Invalid)?.claims;
        if !is_in_time(&claims.more, get_current_timestamp()) {
            return Err(TokenError::Invalid);
        }
        principal(&claims, &self.0.options.tenant_claim)
    }

    /// The issuer's key of this name; the only key when the token names none.
    async fn key(&self, kid: Option<&str>) -> Result<Jwk, TokenError> {
        let find = |set: &JwkSet| match kid {
            Some(kid) => set.find(kid).cloned(),
            None if set.keys.len() == 1 => set.keys.first().cloned(),
            None => None,
        };
        // Held while asking, so that a thousand callers ask once.
        let mut keys = self.0.keys.lock().await;
        if let Some((set, at)) = &keys.set
            && at.elapsed() < FRESH
            && let Some(key) = find(set)
        {
            return Ok(key);
        }
        if keys.asked.is_none_or(|asked| asked.elapsed() >= PAUSE) {
            keys.asked = Some(Instant::now());
            match self.ask().await {
                Some(set) => keys.set = Some((set, Instant::now())),
                None => tracing::warn!("the authorization server's keys could not be had"),
            }
        }
        match &keys.set {
            Some((set, at)) if at.elapsed() < STALE => find(set).ok_or(TokenError::Invalid),
            _ => Err(TokenError::Unavailable),
        }
    }

    async fn ask(&self) -> Option<JwkSet> {
        let options = &self.0.options;
        if let Some(url) = &options.jwks_url {
            return serde_json::from_value(self.document(url).await?).ok();
        }
        // RFC 8414 puts the well-known part before the issuer's own path; OpenID Connect after it.
        let issuer = options.issuer.trim_end_matches('/');
        let (origin, path) = match issuer.match_indices('/').nth(2) {
            Some((at, _)) => issuer.split_at(at),
            None => (issuer, ""),
        };
        for url in [
            format!("{origin}/.well-known/oauth-authorization-server{path}"),
            format!("{issuer}/.well-known/openid-configuration"),
        ] {
            let Some(metadata) = self.document(&url).await else { continue };
            // A document of another issuer must not lend us its keys (RFC 8414 section 3.3).
            if metadata["issuer"].as_str() != Some(&options.issuer) {
                continue;
            }
            if let Some(url) = metadata["jwks_uri"].as_str() {
                return serde_json::from_value(self.document(url).await?).ok();
            }
        }
        None
    }

    async fn document(&self, url: &str) -> Option<Value> {
        let parsed = reqwest::Url::parse(url).ok()?;
        let here = matches!(parsed.host_str(), Some("127.0.0.1" | "localhost" | "[::1]"));
        if parsed.scheme() != "https" && !here {
            return None;
        }
        let mut response = self.0.client.get(parsed).send().await.ok()?.error_for_status().ok()?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.ok()? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_DOCUMENT {
                return None;
            }
        }
        serde_json::from_slice(&body).ok()
    }

    /// What a client is told when it has no token or a bad one: where to read who gives tokens.
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

/// What a key may be used for. Never a shared secret: a public key taken for one would let anybody sign.
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
fn is_in_time(claims: &Map<String, Value>, now: u64) -> bool {
    let at = |name: &str| claims.get(name).map(|at| at.as_f64().unwrap_or(f64::NAN));
    let (now, leeway) = (now as f64, LEEWAY as f64);
    at("exp").is_some_and(|end| now - leeway < end) && at("nbf").is_none_or(|begin| begin <= now + leeway)
}

fn principal(claims: &Claims, tenant_claim: &str) -> Result<Principal, TokenError> {
    let tenant = match claims.more.get(tenant_claim) {
        Some(Value::String(name)) => TenantId::parse(name.as_str()).map_err(|_| TokenError::Invalid)?,
        Some(_) => return Err(TokenError::Invalid),
        None => {
            let digest = Sha256::digest(format!("{}|{}", claims.iss, claims.sub).as_bytes());
            let hex = hex(&digest[..16]);
            TenantId::parse(format!("oauth-{hex}")).map_err(|_| TokenError::Invalid)?
        }
    };
    let scopes = scopes(&claims.more);
    if scopes.is_empty() {
        return Err(TokenError::Scope);
    }
    Ok(Principal {
        name: format!("oauth:{}|{}", claims.iss, claims.sub),
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
            assert_eq!(is_in_time(&serde_json::from_str(claims).unwrap(), 1000), fits, "{claims}");
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
        assert_eq!(bad.unwrap_err(), TokenError::Invalid);
    }
}
