//! Connections to other MCP servers, whose tools programs in a sandbox may call.
//!
//! A server is named in the settings and nowhere else. It is started when its tools are first asked for, its credentials stay
//! in this process, and whatever it does (hang, flood, die, lie about its tools) is limited here. What a tool is called in
//! a program, what it takes and how it is found is the [`catalog`](Catalog)'s matter.
//!
//! Note: rmcp waits forever when a server does not answer, so each start, list and call has our own deadline; and
//! its own listing gives up a whole server for one tool without a schema, so lists are read here, tool by tool.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Map, Value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::domain::{TenantId, lock};

mod catalog;
mod child;
mod effort;
mod names;
mod oauth;
mod pattern;
mod pins;
mod references;
pub mod search;
mod server;
pub mod types;
mod upstream;
mod vectors;

use catalog::Listed;
pub use catalog::{Catalog, Problem, Tool};
pub use oauth::OAuth;
pub use pattern::Pattern;
pub use pins::{Change, ToolStore};
pub use server::{Era, Server, Transport};
pub use upstream::{Answer, Content};
pub use vectors::Embeddings;

/// What the bridge works with.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The servers. One name may stand several times, for different tenants.
    pub servers: Vec<Server>,
    /// The environment that child processes get: `PATH`, `HOME` and the like, and nothing that is secret.
    pub environment: BTreeMap<String, String>,
    /// Where the search gets vectors; it goes by words alone when left out.
    pub embeddings: Option<Embeddings>,
}

impl Options {
    /// Names of the servers that every tenant has, each once.
    pub fn public_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .servers
            .iter()
            .filter(|server| server.tenants.is_empty())
            .map(|server| server.name.clone())
            .collect();
        names.dedup();
        names
    }

    /// The tenants that servers of their own are for.
    pub fn tenants(&self) -> impl Iterator<Item = &TenantId> {
        self.servers.iter().flat_map(|server| &server.tenants)
    }

    /// The values of headers and environments that the servers are given.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let key = self.embeddings.iter().filter_map(|from| from.key.as_ref());
        self.servers.iter().flat_map(|server| server.secrets()).chain(key).map(|secret| secret.expose())
    }
}

/// Why a tool was not called, or has no result.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// The tenant has no server of that name.
    #[error("there is no tool server {0:?}")]
    NoServer(String),
    /// The server could not be started, or is not tried again yet.
    #[error("the tool server {server} could not be started: {why}")]
    Start {
        /// Which.
        server: String,
        /// In its words, without secrets.
        why: String,
        /// When it is tried again.
        retry_in: Duration,
    },
    /// It did not answer in time. The call was cancelled there.
    #[error("{server} did not answer within {} ms; the call was cancelled and may have had effects", after.as_millis())]
    TimedOut {
        /// Which.
        server: String,
        /// The time that it had.
        after: Duration,
    },
    /// It ended, or its connection broke, while the call was in progress.
    #[error("{server} ended during the call ({why}); the call may have had effects")]
    Broken {
        /// Which.
        server: String,
        /// What is known of it.
        why: String,
    },
    /// It refused the call.
    #[error("{message}")]
    Refused {
        /// Its own words.
        message: String,
    },
    /// It asks for something that a program cannot give.
    #[error("{server} asks for {what}, which a call from a program cannot give")]
    Asks {
        /// Which.
        server: String,
        /// What.
        what: &'static str,
    },
}

/// What a caller wants of a tool server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Its tools: it is waited for.
    Named,
    /// Its tools among those of others: it is waited for unless it has failed.
    Any,
    /// Nothing: it is not waited for, and not started.
    Nothing,
}

/// Whether a name is that of a server, or of a tool of it. `module`: the server's name in a program.
pub fn is_of(name: &str, server: &str, module: &str) -> bool {
    [server, module]
        .iter()
        .any(|of| name.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// How long a caller waits for a server that has changed its tools when it needs none of them.
const MOMENT: Duration = Duration::from_secs(1);

/// How long a caller waits for servers that are starting.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How many of each ranking are fused.
const FUSED: usize = 50;

/// The other MCP servers. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Bridge(Arc<Inner>);

/// The tenant, where a server is not everyone's, and the servers.
type CatalogKey = (Option<TenantId>, Vec<usize>);

#[derive(Debug)]
struct Inner {
    upstreams: Vec<Arc<upstream::Upstream>>,
    pins: pins::Pins,
    vectors: Option<vectors::Vectors>,
    catalogs: Mutex<BTreeMap<CatalogKey, Arc<Catalog>>>,
    shutdown: CancellationToken,
}

impl Bridge {
    /// A bridge to these servers. Starts none. They end when `shutdown` is cancelled, or with the process. What
    /// was accepted of their tools is in `store`; without, it is known to this process only.
    pub fn new(options: Options, store: Option<Arc<dyn ToolStore>>, shutdown: CancellationToken) -> Self {
        let environment = Arc::new(options.environment);
        let start =
            |server| Arc::new(upstream::Upstream::new(server, Arc::clone(&environment), store.clone()));
        let upstreams: Vec<_> = options.servers.into_iter().map(start).collect();
        Self(Arc::new(Inner {
            upstreams,
            pins: pins::Pins::new(store),
            vectors: options.embeddings.and_then(vectors::Vectors::new),
            catalogs: Mutex::default(),
            shutdown,
        }))
    }

    /// Whether any server is configured.
    pub fn is_empty(&self) -> bool {
        self.0.upstreams.is_empty()
    }

    /// Whether a tenant has any server.
    pub fn serves(&self, tenant: &TenantId) -> bool {
        self.0.upstreams.iter().any(|upstream| upstream.server.serves(tenant))
    }

    /// Names of all servers, in the order of the settings, each once.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for upstream in &self.0.upstreams {
            if !names.contains(&upstream.server.name.as_str()) {
                names.push(&upstream.server.name);
            }
        }
        names
    }

    /// The settings of a tenant's server.
    pub fn server(&self, tenant: &TenantId, name: &str) -> Option<&Server> {
        self.upstream(tenant, name).ok().map(|upstream| &upstream.server)
    }

    /// The tools of a tenant, once each of its servers has listed them or failed. Servers that are not running are started, side
    /// by side; one that cannot be is named in [`Catalog::problems`], and the tools of the others are there.
    pub async fn catalog(&self, tenant: &TenantId) -> Arc<Catalog> {
        self.catalog_for(tenant, None, |_, _| Need::Named).await
    }

    /// As [`Self::catalog`], for a caller that waits for the servers that it needs, and no longer than `patience`. `need` is asked
    /// with each server's name and its name in a program. A server that is not needed delays no caller; it goes on starting.
    pub async fn catalog_for(
        &self,
        tenant: &TenantId,
        patience: Option<Duration>,
        need: impl Fn(&str, &str) -> Need,
    ) -> Arc<Catalog> {
        let mine = self.serving(tenant);
        let until = patience.map(|patience| Instant::now() + patience);
        let listed = join_all(mine.iter().map(|(upstream, module)| {
            let need = need(&upstream.server.name, module);
            async move {
                let server = &upstream.server;
                let listing = self.listing(upstream, need, until).await;
                Listed { server, module, listing, pinned: self.0.pins.of(server, tenant).await }
            }
        }))
        .await;
        let key = self.key(tenant);
        if let Some(known) = lock(&self.0.catalogs).get(&key).filter(|known| known.is_of(&listed)) {
            return Arc::clone(known);
        }
        let catalog = Arc::new(Catalog::of(listed, tenant, &self.0.pins).await);
        lock(&self.0.catalogs).insert(key, Arc::clone(&catalog));
        catalog
    }

    /// The tools of one server. When a caller stops waiting, the server goes on starting.
    async fn listing(
        &self,
        upstream: &Arc<upstream::Upstream>,
        need: Need,
        until: Option<Instant>,
    ) -> Result<Arc<upstream::Listing>, BridgeError> {
        if let Some(listing) = upstream.at_hand() {
            return Ok(listing);
        }
        let so_far = upstream.so_far();
        let until = match need {
            Need::Named => until,
            Need::Any if !upstream.has_failed() => until,
            // One that runs is asked again what it has: that takes a moment.
            _ if so_far.is_ok() => Some(Instant::now() + MOMENT),
            Need::Any => Some(Instant::now()),
            Need::Nothing => return so_far,
        };
        let (starting, shutdown) = (Arc::clone(upstream), self.0.shutdown.clone());
        let listing = tokio::spawn(async move { starting.listing(&shutdown).await });
        let listed = match until {
            None => Some(listing.await),
            Some(until) => tokio::time::timeout_at(until, listing).await.ok(),
        };
        match listed {
            Some(Ok(listed)) => listed,
            Some(Err(_)) | None => upstream.so_far(),
        }
    }

    /// Whether the server of a tool, by `server.tool`, answers without being started or asked first. The names of no server do.
    pub fn is_at_hand(&self, tenant: &TenantId, tool: &str) -> bool {
        let mine = self.serving(tenant);
        let mut of = mine.iter().filter(|(upstream, module)| is_of(tool, &upstream.server.name, module));
        of.all(|(upstream, _)| upstream.at_hand().is_some())
    }

    /// The names of a tenant's servers, each with its name in a program.
    pub fn modules(&self, tenant: &TenantId) -> Vec<(String, String)> {
        let mine = self.serving(tenant).into_iter();
        mine.map(|(upstream, module)| (upstream.server.name.clone(), module)).collect()
    }

    /// The servers of a tenant, each with its name in a program.
    fn serving(&self, tenant: &TenantId) -> Vec<(&Arc<upstream::Upstream>, String)> {
        let mine: Vec<_> = self.0.upstreams.iter().filter(|up| up.server.serves(tenant)).collect();
        let modules = names::identifiers(mine.iter().map(|up| up.server.name.as_str()), names::LIBRARY);
        mine.into_iter().zip(modules).collect()
    }

    fn key(&self, tenant: &TenantId) -> CatalogKey {
        let mine = || self.0.upstreams.iter().enumerate().filter(|(_, up)| up.server.serves(tenant));
        let own = mine().any(|(_, upstream)| !upstream.server.tenants.is_empty()).then(|| tenant.clone());
        (own, mine().map(|(at, _)| at).collect())
    }

    /// The tools of a catalog that fit a sentence best: by words, and by vectors where there is an endpoint for them. The
    /// vectors of new tools are asked for in the background; until they are there, words decide.
    pub async fn search<'a>(&self, catalog: &'a Arc<Catalog>, query: &str, limit: usize) -> Vec<&'a Tool> {
        if self.0.vectors.is_none() {
            return catalog.search(query, limit);
        }
        let (inner, filled) = (Arc::clone(&self.0), Arc::clone(catalog));
        tokio::spawn(async move {
            if let Some(vectors) = &inner.vectors {
                vectors.fill(&filled).await;
            }
        });
        let depth = limit.max(FUSED);
        let near = match &self.0.vectors {
            Some(vectors) => vectors.rank(catalog, query, depth).await,
            None => None,
        };
        match near {
            Some(near) => {
                let fused = search::fuse(&[catalog.ranking(query, depth), near], limit);
                fused.iter().map(|hit| &catalog.tools[hit.at]).collect()
            }
            None => catalog.search(query, limit),
        }
    }

    /// Calls a tool. The caller has authorised the call.
    ///
    /// # Errors
    /// [`BridgeError`]. A tool that says `isError` is an [`Answer`] that says so.
    pub async fn call(
        &self,
        tenant: &TenantId,
        tool: &Tool,
        arguments: Map<String, Value>,
        meta: Map<String, Value>,
        deadline: Instant,
    ) -> Result<Answer, BridgeError> {
        let upstream = self.upstream(tenant, &tool.server)?;
        upstream.call(&tool.name, arguments, meta, deadline, &self.0.shutdown).await
    }

    /// What of a tenant's tools is not as it was accepted, as far as their servers have listed them. Starts none.
    pub fn known_changes(&self, tenant: &TenantId) -> Vec<Change> {
        lock(&self.0.catalogs).get(&self.key(tenant)).map_or_else(Vec::new, |known| known.changes().to_vec())
    }

    /// What of a tenant's tools is not as it was accepted.
    pub async fn changes(&self, tenant: &TenantId) -> Vec<Change> {
        self.catalog(tenant).await.changes().to_vec()
    }

    /// Accepts the tools of a server as they are now.
    ///
    /// # Errors
    /// When that cannot be written.
    pub async fn accept(&self, tenant: &TenantId, server: &str) -> Result<usize, String> {
        let settings = &self.upstream(tenant, server).map_err(|error| error.to_string())?.server;
        let need = |name: &str, _: &str| if name == server { Need::Named } else { Need::Nothing };
        let hashes = self.catalog_for(tenant, None, need).await.hashes(server);
        self.0.pins.pin(settings, tenant, &hashes, true).await?;
        Ok(hashes.len())
    }

    /// Ends all servers and waits until their processes are gone.
    pub async fn close(&self) {
        join_all(self.0.upstreams.iter().map(|upstream| upstream.close())).await;
    }

    fn upstream(&self, tenant: &TenantId, name: &str) -> Result<&Arc<upstream::Upstream>, BridgeError> {
        let mut mine = self.0.upstreams.iter().filter(|upstream| upstream.server.serves(tenant));
        mine.find(|upstream| upstream.server.name == name)
            .ok_or_else(|| BridgeError::NoServer(name.to_owned()))
    }
}
