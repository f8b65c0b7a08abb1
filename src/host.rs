//! The embedded sandbox host: a second program in the same binary that speaks E2B's protocol, so that the official
//! clients, and our own, run against this machine as they run against the cloud.
//!
//! Nothing here is reached but over the wire. [`serve`] binds the port; `http` dispatches; `registry` knows which
//! sandboxes live; each is a [`jail`] with an [`agent`] in it.

pub mod agent;
mod auth;
mod credit;
mod http;
pub mod jail;
mod journal;
pub mod kernel;
pub mod network;
mod processes;
mod registry;
mod sandbox;
mod snapshots;
pub mod templates;
mod watchers;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::domain::{Clock, Entropy};
use crate::wire::Secret;

use registry::{Bounds, Registry};
use sandbox::{Maker, Surroundings};
use templates::Templates;

/// How a host serves.
#[derive(Debug, Clone)]
pub struct Options {
    /// How sandboxes are made and what each may use.
    pub jail: jail::Options,
    /// Where interpreters are looked for. What is found is added to what every sandbox sees.
    pub search: kernel::Search,
    /// How code runs; its interpreters, clock, entropy and number of threads are set by [`serve`]. Checkpoints are made
    /// of no more than a quarter of a sandbox's memory; modules are preloaded only in sandboxes that are kept ready.
    pub kernel: kernel::Options,
    /// Where templates are; without it there are none.
    pub templates: Option<std::path::PathBuf>,
    /// Added to the environment of every program: time zone and locale, for instance.
    pub env: Vec<(String, String)>,
    /// How sandboxes reach the network, those that ask for it.
    pub network: network::Options,
    /// Where it listens. Port 0 takes a free one; [`Host::addr`] returns it.
    pub listen: SocketAddr,
    /// Whether `listen` may be reachable from other machines. There is no TLS here: an API key and everything in
    /// the sandboxes would cross the network readable.
    pub allow_remote: bool,
    /// Connections served at a time; more wait in the kernel's backlog.
    pub max_connections: usize,
    /// For the whole head of a request. It also ends a connection that idles between two requests.
    pub head_timeout: Duration,
    /// The control plane's API key; `None` generates one, which [`Host::api_key`] returns.
    pub api_key: Option<Secret>,
    /// Live sandboxes at a time, at least 1. A create beyond it is answered 429.
    pub max_sandboxes: usize,
    /// Sandboxes that are kept ready. Each costs the memory of an idle interpreter; 0 makes every create wait.
    pub ready: usize,
    /// The longest life of a sandbox from start to end.
    pub max_life: Duration,
    /// How long a paused sandbox is kept in memory before it is ended.
    pub max_pause: Duration,
    /// Bytes on disk of all snapshots together, in the directory for temporary files; 0 for none.
    pub snapshot_bytes: u64,
    /// Tells the time.
    pub clock: Clock,
    /// Makes ids and tokens.
    pub entropy: Entropy,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            jail: jail::Options::default(),
            search: kernel::Search::default(),
            kernel: kernel::Options::default(),
            templates: None,
            env: Vec::new(),
            network: network::Options::default(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            allow_remote: false,
            max_connections: 1024,
            head_timeout: Duration::from_secs(75),
            api_key: None,
            max_sandboxes: 20,
            ready: 2,
            max_life: Duration::from_secs(24 * 3600),
            max_pause: Duration::from_secs(24 * 3600),
            snapshot_bytes: 2 << 30,
            clock: Clock::system(),
            entropy: Entropy::system(),
        }
    }
}

/// The host could not start.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The address is reachable from other machines and no one said that this is wanted.
    #[error("{0} is not a loopback address, and the host's protocol is not encrypted; allow it explicitly")]
    NotLoopback(SocketAddr),
    /// This machine cannot isolate sandboxes; the cause says what to do.
    #[error("no sandbox can be made on this machine")]
    Jail(#[from] jail::JailError),
    /// The address is taken, or not this machine's.
    #[error("cannot listen on {addr}")]
    Listen {
        /// The address asked for.
        addr: SocketAddr,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// A running host. It ends when its shutdown token is cancelled; [`Host::ended`] waits for that.
#[derive(Debug)]
pub struct Host {
    addr: SocketAddr,
    api_key: Secret,
    tasks: TaskTracker,
}

impl Host {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The base address for both the API and the sandboxes, as this machine reaches it: `http://127.0.0.1:1234`, without a path.
    pub fn url(&self) -> String {
        let mut addr = self.addr;
        match addr.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => addr.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => addr.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        format!("http://{addr}")
    }

    /// What to send as `X-API-Key`.
    pub fn api_key(&self) -> &Secret {
        &self.api_key
    }

    /// Waits until, after a shutdown, every connection is closed and no sandbox is left.
    pub async fn ended(&self) {
        self.tasks.wait().await;
    }
}

/// Starts a host.
///
/// # Errors
/// [`HostError`]; each says what to change.
pub async fn serve(options: Options, shutdown: CancellationToken) -> Result<Host, HostError> {
    let addr = options.listen;
    if !addr.ip().is_loopback() && !options.allow_remote {
        return Err(HostError::NotLoopback(addr));
    }
    let listener = TcpListener::bind(addr).await.map_err(|source| HostError::Listen { addr, source })?;
    let addr = listener.local_addr().map_err(|source| HostError::Listen { addr, source })?;
    let api_key = options.api_key.unwrap_or_else(|| auth::api_key(&options.entropy));
    let bounds = Bounds {
        max_sandboxes: options.max_sandboxes,
        max_life: options.max_life,
        max_pause: options.max_pause,
        snapshot_bytes: options.snapshot_bytes,
    };

    let interpreters = kernel::Interpreters::find(&options.search).await;
    for problem in interpreters.problems() {
        tracing::warn!("{problem}");
    }
    let mut jail = options.jail;
    jail.read_only.extend(interpreters.dirs());
    jail.sandboxes = u32::try_from(options.max_sandboxes.saturating_add(options.ready)).unwrap_or(u32::MAX);
    let kernel = kernel::Options {
        interpreters,
        clock: options.clock.clone(),
        entropy: options.entropy.clone(),
        // At worst, what a checkpoint holds exists twice.
        checkpoint_bytes: options.kernel.checkpoint_bytes.min(jail.limits.memory_bytes / 4),
        numeric_threads: jail.limits.cpu_percent.div_ceil(100).max(1),
        ..options.kernel
    };
    let max_connections = match jail::sys::raise_open_files() {
        // Half is for sandboxes, files and the rest of this process, whatever clients do.
        Ok(files) => options.max_connections.min(usize::try_from(files / 2).unwrap_or(usize::MAX)).max(16),
        Err(error) => {
            tracing::warn!(%error, "the limit of open descriptors could not be raised");
            options.max_connections
        }
    };
    let surroundings = Surroundings {
        search: options.search,
        templates: options.templates.map(Templates::new),
        env: options.env,
        network: options.network,
    };
    let maker = Maker::start(&jail, kernel, surroundings).await?;
    announce(addr, &jail, &maker, options.max_sandboxes);

    let tasks = TaskTracker::new();
    let registry =
        Registry::start(maker, bounds, options.ready, (options.clock, options.entropy), &tasks, &shutdown);
    let doors = Arc::new(http::Doors::new(registry, api_key.clone()));
    let limits = http::ConnectionLimits { max_connections, head_timeout: options.head_timeout };
    tasks.spawn(http::serve(listener, doors, limits, shutdown));
    tasks.close();
    Ok(Host { addr, api_key, tasks })
}

/// Says what holds the sandboxes, and what does not.
fn announce(addr: SocketAddr, jail: &jail::Options, maker: &Maker, max_sandboxes: usize) {
    let limits = &jail.limits;
    let isolation = jail.isolation.name();
    let control = maker.control();
    tracing::info!(
        %addr,
        isolation,
        control_groups = %control,
        max_sandboxes,
        memory_mb = limits.memory_bytes >> 20,
        cpu_percent = limits.cpu_percent,
        processes = limits.processes,
        disk_mb = (limits.home_bytes + limits.tmp_bytes) >> 20,
        "sandbox host listens on {addr}: isolation {isolation}, control groups {control}; a sandbox has {} MiB of memory, \
         {} % of a processor, {} processes",
        limits.memory_bytes >> 20,
        limits.cpu_percent,
        limits.processes,
    );
    if let Some(warning) = jail.isolation.warning() {
        tracing::warn!("{warning}");
    }
    if control == jail::Control::None && jail.isolation != jail::Isolation::None {
        tracing::warn!(
            "without control groups memory is watched by a scan that a burst can pass, and processor time is bounded only by the number of processors; with systemd: `systemd-run --user --scope -p Delegate=yes pathbox ...`"
        );
    }
    for gap in maker.gaps() {
        tracing::warn!("{gap}");
    }
}
