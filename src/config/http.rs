//! Settings of the HTTP doors.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use super::load::{ConfigError, Values};

/// Whether callers over HTTP need a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// Unless only this machine can be calling.
    Auto,
    /// Always.
    Required,
    /// Never: only this machine's own user can reach the address.
    Off,
}

/// Settings of the HTTP doors.
#[derive(Debug, Clone)]
pub struct HttpSettings {
    /// Where to listen; `None` serves over standard input and output.
    pub listen: Option<SocketAddr>,
    /// Who needs a credential.
    pub auth: Auth,
    /// Names that this server goes by.
    pub allowed_hosts: Vec<String>,
    /// Pages that may talk to it.
    pub allowed_origins: Vec<String>,
    /// The prefix of every path.
    pub base_path: String,
    /// How clients reach it.
    pub public_url: Option<String>,
    /// Whether HTTP+SSE is served.
    pub legacy_sse: bool,
    /// Whether there is a console for operators.
    pub console: bool,
    /// The largest message.
    pub max_body_bytes: usize,
    /// Connections at a time.
    pub max_connections: usize,
    /// Open requests of one caller at a time.
    pub max_requests_per_principal: usize,
    /// Where health is served besides.
    pub health_listen: Option<SocketAddr>,
    /// Sessions in memory.
    pub max_sessions: usize,
    /// How long an unused session stays there.
    pub session_idle: Duration,
    /// Requests a minute and caller; 0 is no limit.
    pub requests_per_minute: u32,
    /// Credentials that are not good, a minute and address; 0 is no limit.
    pub failed_credentials_per_minute: u32,
    /// Proxies that say in `X-Forwarded-For` whom they speak for.
    pub trusted_proxies: Vec<IpNet>,
    /// Whose access tokens are trusted.
    pub oauth: Option<crate::auth::tokens::Options>,
}

impl Values {
    pub(super) fn http(&self) -> Result<HttpSettings, ConfigError> {
        let address = |key: &'static str| match self.text(key) {
            None => Ok(None),
            Some(text) => match text.parse() {
                Ok(address) => Ok(Some(address)),
                Err(_) => Err(self.invalid(key, format!("{text:?} is not an address and port"))),
            },
        };
        let listen = address("http.listen")?;
        let base_path = self.text("http.base_path").unwrap_or_default().trim_end_matches('/').to_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~".contains(c);
        if !base_path.is_empty() && (!base_path.starts_with('/') || !base_path.chars().all(plain)) {
            return Err(self.invalid("http.base_path", format!("{base_path:?} is not such a path")));
        }
        let public_url = self.url("http.public_url")?;
        let mut allowed_hosts = self.list("http.allowed_hosts");
        if let Some(host) = public_url.as_deref().and_then(|url| url.split('/').nth(2)) {
            allowed_hosts.push(host.to_owned());
        }
        let allowed_origins = self.list("http.allowed_origins");
        if let Some(bad) = allowed_origins.iter().find(|origin| !origin.contains("://")) {
            return Err(self.invalid("http.allowed_origins", format!("{bad:?} has no scheme")));
        }
        Ok(HttpSettings {
            listen,
            oauth: self.oauth(public_url.as_deref())?,
            auth: self.one_of(
                "http.auth",
                &[("auto", Auth::Auto), ("required", Auth::Required), ("off", Auth::Off)],
            )?,
            allowed_hosts,
            allowed_origins,
            base_path,
            public_url,
            legacy_sse: self.boolean("http.legacy_sse")?,
            console: self.boolean("http.console")?,
            max_body_bytes: self.number("http.max_body_bytes", 262_144, 67_108_864)?,
            max_connections: self.number("http.max_connections", 1, 1_000_000)?,
            max_requests_per_principal: self.number("http.max_requests_per_principal", 1, 1_000_000)?,
            health_listen: address("http.health_listen")?,
            max_sessions: self.number("http.max_sessions", 1, 1_000_000)?,
            session_idle: self.seconds("http.session_idle_seconds", 1, 86_400)?,
            failed_credentials_per_minute: self.number("http.failed_credentials_per_minute", 0, 1_000_000)?,
            trusted_proxies: self.networks("http.trusted_proxies")?,
            requests_per_minute: self.number("http.requests_per_minute", 0, 1_000_000)?,
        })
    }

    /// Which access tokens are taken, if an issuer is named.
    fn oauth(&self, public_url: Option<&str>) -> Result<Option<crate::auth::tokens::Options>, ConfigError> {
        let Some(issuer) = self.text("oauth.issuer") else { return Ok(None) };
        let own = public_url.map(|url| format!("{url}/mcp"));
        let resource = self.url("oauth.resource")?.or(own).ok_or_else(|| {
            self.invalid("oauth.issuer", "tokens must be for this server, so `http.public_url` is needed too")
        })?;
        let (jwks_url, tenant_claim) =
            (self.url("oauth.jwks_url")?, self.get("oauth.tenant_claim").to_owned());
        Ok(Some(crate::auth::tokens::Options { issuer, resource, jwks_url, tenant_claim }))
    }

    /// Addresses and networks.
    fn networks(&self, key: &'static str) -> Result<Vec<IpNet>, ConfigError> {
        let parse = |text: String| {
            let address = text.parse::<IpAddr>().map(IpNet::from);
            address
                .or_else(|_| text.parse())
                .map_err(|_| self.invalid(key, format!("{text:?} is not a network")))
        };
        self.list(key).into_iter().map(parse).collect()
    }

    pub(super) fn list(&self, key: &'static str) -> Vec<String> {
        items(self.get(key))
    }
}

/// The items of a list with commas.
pub(super) fn items(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

impl HttpSettings {
    /// Whether a request without a credential is refused.
    pub fn needs_credential(&self, listen: SocketAddr) -> bool {
        match self.auth {
            Auth::Required => true,
            Auth::Off => false,
            // Another name means that something in front of us speaks for others.
            Auth::Auto => !listen.ip().is_loopback() || !self.allowed_hosts.is_empty(),
        }
    }
}
