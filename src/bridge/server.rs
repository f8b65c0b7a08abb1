//! One server as the settings describe it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{OAuth, Pattern};
use crate::domain::TenantId;
use crate::wire::Secret;

/// Another MCP server.
#[derive(Debug, Clone)]
pub struct Server {
    /// What it is called in programs and results.
    pub name: String,
    /// How it is reached.
    pub transport: Transport,
    /// Tenants that have it; all when empty.
    pub tenants: Vec<TenantId>,
    /// Tools that may be called; all when empty.
    pub allow: Vec<Pattern>,
    /// Tools that may not, whatever `allow` says.
    pub deny: Vec<Pattern>,
    /// Tools that a person is asked about.
    pub confirm: Vec<Pattern>,
    /// How long one call may take.
    pub timeout: Duration,
    /// How long a start, and a listing, may take.
    pub start_timeout: Duration,
    /// Calls at a time.
    pub concurrency: usize,
    /// Whether arguments go there as they are, past the guard.
    pub trusted: bool,
    /// Whether a tool that changed, or is new, has to be accepted first.
    pub pinned: bool,
    /// Which protocol it speaks.
    pub era: Era,
}

impl Server {
    /// One of a name, for tests.
    #[cfg(test)]
    pub(super) fn any(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            transport: Transport::Http { url: String::new(), headers: BTreeMap::new(), oauth: None },
            tenants: Vec::new(),
            allow: Vec::new(),
            deny: Vec::new(),
            confirm: Vec::new(),
            timeout: Duration::from_secs(1),
            start_timeout: Duration::from_secs(1),
            concurrency: 1,
            trusted: false,
            pinned: false,
            era: Era::Auto,
        }
    }

    /// Whether a tenant has it.
    pub fn serves(&self, tenant: &TenantId) -> bool {
        self.tenants.is_empty() || self.tenants.contains(tenant)
    }

    /// Whether its tool of this name may be called.
    pub fn allows(&self, tool: &str) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(&self.name, tool));
        (self.allow.is_empty() || any(&self.allow)) && !any(&self.deny)
    }

    /// Whether a person has to be asked about its tool of this name, whatever the tool declares.
    pub fn confirms(&self, tool: &str) -> bool {
        self.confirm.iter().any(|pattern| pattern.matches(&self.name, tool))
    }

    /// The values that must not appear in anything that is shown.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        let (given, oauth) = match &self.transport {
            Transport::Stdio { env, .. } => (env.values(), None),
            Transport::Http { headers, oauth, .. } => (headers.values(), oauth.as_ref()),
        };
        given.chain(oauth.into_iter().flat_map(OAuth::secrets))
    }
}

/// How a server is reached.
#[derive(Debug, Clone)]
pub enum Transport {
    /// A child process that speaks over its standard streams.
    Stdio {
        /// The program.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Added to its environment.
        env: BTreeMap<String, Secret>,
        /// Its working directory.
        cwd: Option<std::path::PathBuf>,
    },
    /// Streamable HTTP.
    Http {
        /// Its address.
        url: String,
        /// Sent with each request.
        headers: BTreeMap<String, Secret>,
        /// How its access tokens are got, where it wants some.
        oauth: Option<OAuth>,
    },
}

/// Which protocol a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Era {
    /// What it turns out to speak: the handshake of 2025-11-25 and before is tried first, then 2026-07-28. The other order
    /// costs ten seconds at a server that does not answer what it does not know.
    #[default]
    Auto,
    /// `initialize`, up to 2025-11-25.
    Handshake,
    /// `server/discover`, since 2026-07-28.
    Stateless,
}
