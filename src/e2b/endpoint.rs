//! Where a provider is, and which URL reaches what: one logic for the cloud, a self-hosted one and a local host.
//!
//! The rules are those of the official SDKs, so that the same settings mean the same thing.

use reqwest::Url;

use super::E2bError;
use crate::domain::SandboxId;
use crate::wire::Secret;

/// The domain of E2B's cloud.
pub const CLOUD_DOMAIN: &str = "e2b.app";

/// Domains whose sandboxes are all reached through the host `sandbox.<domain>`, by headers.
const HOSTED_DOMAINS: [&str; 7] = [
    "e2b.app",
    "e2b.dev",
    "e2b.pro",
    "e2b-staging.dev",
    "e2b-tango.dev",
    "e2b-juliett.dev",
    "foxtrot-2.e2b.dev",
];

/// One provider and the key for it.
///
/// | what | set |
/// | --- | --- |
/// | E2B's cloud | `api_key` |
/// | self-hosted | `api_key`, `domain` |
/// | a host without wildcard DNS, for instance a local one | `api_key`, `api_url`, `sandbox_url` |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Sent as `X-API-KEY`, to the control plane only.
    pub api_key: Secret,
    /// `E2B_DOMAIN`.
    pub domain: String,
    /// `E2B_API_URL`: the control plane, instead of `https://api.<domain>`.
    pub api_url: Option<String>,
    /// `E2B_SANDBOX_URL`: all traffic to sandboxes, whatever the port, instead of a host for each.
    pub sandbox_url: Option<String>,
}

impl Default for Endpoint {
    fn default() -> Self {
        Self { api_key: Secret::new(""), domain: CLOUD_DOMAIN.to_owned(), api_url: None, sandbox_url: None }
    }
}

impl Endpoint {
    /// E2B's cloud.
    pub fn cloud(api_key: Secret) -> Self {
        Self { api_key, ..Self::default() }
    }

    /// A host that serves everything at one address, as `pathbox host` does.
    pub fn local(url: impl Into<String>, api_key: Secret) -> Self {
        let url = url.into();
        Self { api_key, api_url: Some(url.clone()), sandbox_url: Some(url), ..Self::default() }
    }

    /// Whether this is a provider of its own rather than E2B's cloud.
    pub fn is_custom(&self) -> bool {
        self.api_url.is_some() || self.domain != CLOUD_DOMAIN
    }

    /// Whether one address serves everything, as a local host's does and no hosted provider's.
    pub fn is_one_address(&self) -> bool {
        self.api_url.is_some() && self.api_url == self.sandbox_url
    }

    /// What distinguishes this provider from others: its addresses, without the key.
    pub(super) fn name(&self) -> String {
        format!(
            "{}|{}|{}",
            self.domain,
            self.api_url.as_deref().unwrap_or(""),
            self.sandbox_url.as_deref().unwrap_or("")
        )
    }

    /// Checks every part that a request will be made of.
    pub(super) fn check(&self) -> Result<(), E2bError> {
        check_domain("domain", &self.domain)?;
        for (what, url) in [("api_url", &self.api_url), ("sandbox_url", &self.sandbox_url)] {
            let Some(url) = url else { continue };
            let problem = match Url::parse(url) {
                Err(error) => format!("is not a URL ({error})"),
                Ok(url) if !matches!(url.scheme(), "http" | "https") => {
                    "must start with http:// or https://".to_owned()
                }
                Ok(url) if !url.username().is_empty() || url.password().is_some() => {
                    "must not hold a user name or password".to_owned()
                }
                Ok(url) if url.path() != "/" || url.query().is_some() || url.fragment().is_some() => {
                    "must have no path: file URLs would drop it".to_owned()
                }
                Ok(_) => continue,
            };
            return Err(E2bError::Setting { what, problem });
        }
        let key = self.api_key.expose();
        if key.is_empty() {
            let problem = "is empty; set E2B_API_KEY or E2B_API_KEY_FILE".to_owned();
            return Err(E2bError::Setting { what: "api_key", problem });
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem = "holds a space, a line break or a character outside ASCII".to_owned();
            return Err(E2bError::Setting { what: "api_key", problem });
        }
        Ok(())
    }

    /// The control plane's base, without a slash at the end.
    pub fn api_base(&self) -> String {
        match &self.api_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("https://api.{}", self.domain),
        }
    }

    /// The base for requests to a port of a sandbox. `domain` is the one that the sandbox was created with.
    pub fn sandbox_base(&self, id: &SandboxId, domain: Option<&str>, port: u16) -> String {
        let domain = domain.unwrap_or(&self.domain);
        match &self.sandbox_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None if HOSTED_DOMAINS.contains(&domain) => format!("https://sandbox.{domain}"),
            None => self.direct_base(id, Some(domain), port),
        }
    }

    /// The base of a URL that works without headers, for a person or another program.
    pub fn direct_base(&self, id: &SandboxId, domain: Option<&str>, port: u16) -> String {
        match &self.sandbox_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("https://{port}-{id}.{}", domain.unwrap_or(&self.domain)),
        }
    }
}

/// A sandbox id goes into a path and into a host name, so it may hold nothing that means something there.
pub(super) fn check_id(id: &SandboxId) -> Result<&str, E2bError> {
    let text = id.as_str();
    if text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Ok(text);
    }
    let problem = "is not a valid one: letters, digits and `-` only".to_owned();
    Err(E2bError::Setting { what: "sandbox id", problem })
}

/// Whether a text may be the domain of a provider; it may have a port.
pub fn is_domain(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte);
    !text.is_empty() && text.len() <= 253 && text.bytes().all(fits)
}

pub(super) fn check_domain(what: &'static str, domain: &str) -> Result<(), E2bError> {
    if is_domain(domain) {
        return Ok(());
    }
    Err(E2bError::Setting { what, problem: "is not a domain name".to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(domain: &str, api: Option<&str>, sandbox: Option<&str>) -> Endpoint {
        Endpoint {
            api_key: Secret::new("e2b_key"),
            domain: domain.to_owned(),
            api_url: api.map(str::to_owned),
            sandbox_url: sandbox.map(str::to_owned),
        }
    }

    #[test]
    fn urls_come_about_as_in_the_official_sdks() {
        let id = SandboxId::parse("i1").unwrap();
        let cloud = endpoint("e2b.app", None, None);
        assert_eq!(cloud.api_base(), "https://api.e2b.app");
        assert_eq!(cloud.sandbox_base(&id, None, 49999), "https://sandbox.e2b.app");
        assert_eq!(cloud.direct_base(&id, None, 49999), "https://49999-i1.e2b.app");
        assert_eq!(cloud.sandbox_base(&id, Some("eu.example"), 49983), "https://49983-i1.eu.example");
        let own = endpoint("my.test", None, None);
        assert_eq!(own.api_base(), "https://api.my.test");
        assert_eq!(own.sandbox_base(&id, None, 49983), "https://49983-i1.my.test");
        let local = endpoint("e2b.app", Some("http://127.0.0.1:3900/"), Some("http://127.0.0.1:3900"));
        assert_eq!(local.api_base(), "http://127.0.0.1:3900");
        for base in [local.sandbox_base(&id, Some("e2b.app"), 1), local.direct_base(&id, None, 2)] {
            assert_eq!(base, "http://127.0.0.1:3900");
        }
    }

    #[test]
    fn a_bad_setting_is_named_and_a_key_is_never_repeated() {
        for (endpoint, what) in [
            (endpoint("a b", None, None), "domain"),
            (endpoint("e2b.app/evil", None, None), "domain"),
            (endpoint("e2b.app", Some("ftp://x"), None), "api_url"),
            (endpoint("e2b.app", Some("nonsense"), None), "api_url"),
            (endpoint("e2b.app", None, Some("http://h/path")), "sandbox_url"),
            (endpoint("e2b.app", None, Some("http://user:pw@h")), "sandbox_url"),
            (Endpoint::default(), "api_key"),
            (Endpoint::cloud(Secret::new("key\nX-Evil: 1")), "api_key"),
        ] {
            let error = endpoint.check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{what}` ")), "{error}");
            assert!(!error.contains("pw") && !error.contains("X-Evil"), "{error}");
        }
        assert!(endpoint("e2b.app", Some("http://127.0.0.1:1"), None).check().is_ok());
    }

    #[test]
    fn an_id_that_would_change_a_path_or_a_host_is_refused() {
        for bad in ["..", "a.b", "a:1", "a@b", "a_b"] {
            assert!(check_id(&SandboxId::parse(bad).unwrap()).is_err(), "{bad}");
        }
        assert!(check_id(&SandboxId::parse("i7c0-6532622b").unwrap()).is_ok());
    }
}
