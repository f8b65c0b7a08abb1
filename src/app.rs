//! Puts the parts together: settings in, running tasks out. Only this module knows which store and which sandboxes are in use.
//!
//! A protocol door must answer within milliseconds, so nothing slow happens before it is open: the database and the
//! sandbox provider are reached in the background, and an early call waits for them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::bridge::Bridge;
use crate::config::{Config, Database, Provider};
use crate::domain::{Clock, ConversationId, Entropy, OwnUrl, hex};
use crate::e2b::{E2bClient, Endpoint, Options as E2bOptions};
#[cfg(target_os = "linux")]
use crate::execution::hosts::{HostClaim, HostRefused};
use crate::execution::{
    CrashAt, Execution, HandleKey, Hosts, LocalHost, Options as ExecutionOptions, Outputs, Packs, Parts,
    Policies, Starting, Startup, StoredTools, TokenKey,
};
use crate::guard::{Kind, Known, PolicyFile, never_say};
use crate::mcp::caller::{Defaults, Door};
use crate::mcp::{McpServer, Offered, Options as McpOptions, ToolServers};
use crate::objects::{self, Bucket, Objects};
use crate::store::postgres::PgStore;
use crate::store::secrets::Keyring;
use crate::store::sqlite::SqliteStore;
use crate::store::{DynStore, SandboxPlace, Secret, StoreError};
use crate::telemetry::chain;
use crate::wire;

pub mod container;
pub mod http;
mod policy;
pub mod shutdown;

/// The largest whole output that is kept, in bytes.
const MAX_OUTPUT_BYTES: u64 = 64 * 1024 * 1024;

/// A running Pathbox, without any door yet.
#[derive(Debug)]
pub struct App {
    /// The service, once it has started.
    pub execution: Starting,
    config: Config,
    policies: Policies,
    /// How the policy file looked when it was read.
    policy_stamp: policy::Stamp,
    shutdown: CancellationToken,
    host: CancellationToken,
    tasks: TaskTracker,
}

impl App {
    /// Starts everything in the background and returns at once.
    ///
    /// # Errors
    /// When the guard's policy does not work, or keys that the settings give cannot be used: there is no point in trying
    /// again, and nothing is served without them.
    pub fn start(config: Config) -> anyhow::Result<Self> {
        let policy_stamp = policy::Stamp::of(config.guard_policy.as_deref());
        let policies = policies(&config)?;
        if config.secret_keys.is_some() {
            keyring(&config, &Entropy::system())?;
        }
        let (sender, execution) = Starting::channel();
        let (shutdown, host, tasks) =
            (CancellationToken::new(), CancellationToken::new(), TaskTracker::new());
        let ends = Ends { shutdown: shutdown.clone(), host: host.clone(), tasks: tasks.clone() };
        tasks.spawn(start_service(config.clone(), policies.clone(), sender, ends));
        Ok(Self { execution, config, policies, policy_stamp, shutdown, host, tasks })
    }

    /// From now on a guard policy that changes counts without another start. For programs that serve: others end soon.
    pub fn follow_policy(&self) {
        let (config, policies) = (self.config.clone(), self.policies.clone());
        self.tasks.spawn(policy::follow(config, policies, self.policy_stamp, self.shutdown.clone()));
    }

    /// The MCP handler for callers of this process.
    pub fn mcp(&self) -> McpServer {
        let entropy = Entropy::system();
        let conversation = self.config.conversation.clone().unwrap_or_else(|| new_conversation(&entropy));
        let defaults =
            Defaults { tenant: self.config.tenant.clone(), conversation, path: self.config.path.clone() };
        McpServer::new(
            mcp_options(&self.config, Door::Process(defaults)),
            self.execution.part(crate::mcp::Service::of),
        )
    }

    /// From now on readiness says that this process ends.
    pub fn leave(&self) {
        if let Startup::Ready(service) = self.execution.now() {
            service.leave();
        }
    }

    /// Waits until no run goes on; others are still taken.
    pub async fn drained(&self) {
        if let Startup::Ready(service) = self.execution.now() {
            service.drain().await;
        }
    }

    /// Ends everything: runs may finish within `grace`, the rest is interrupted and recorded; then the sandboxes of
    /// this process's host go.
    pub async fn stop(self, grace: Duration) {
        if let Startup::Ready(service) = self.execution.now() {
            drop(tokio::time::timeout(grace, service.drain()).await);
            self.shutdown.cancel();
            if tokio::time::timeout(RECORDING, service.drain()).await.is_err() {
                tracing::warn!("not every run could be recorded in time");
            }
            let ending = async {
                service.ended().await;
                service.close_tools().await;
                service.cleanup.release_own_host().await;
            };
            drop(tokio::time::timeout(LAST_WORDS, ending).await);
        }
        self.shutdown.cancel();
        self.host.cancel();
        self.tasks.close();
        drop(tokio::time::timeout(LAST_WORDS, self.tasks.wait()).await);
    }
}

/// How long runs may take to be interrupted and recorded. It takes milliseconds while sandbox and database answer.
const RECORDING: Duration = Duration::from_secs(5);
/// How long closing may take after that.
const LAST_WORDS: Duration = Duration::from_millis(400);

/// The conversation of a call that names none.
pub fn new_conversation(entropy: &Entropy) -> ConversationId {
    let name = format!("stdio-{}", entropy.hex::<8>());
    #[expect(clippy::expect_used, reason = "a fixed prefix and hex digits are within the set")]
    ConversationId::parse(name).expect("a valid conversation id")
}

/// Where clients reach the HTTP doors.
pub fn own_url(config: &Config) -> OwnUrl {
    OwnUrl { public: config.http.public_url.clone(), base_path: config.http.base_path.clone() }
}

/// Settings of the MCP component.
pub fn mcp_options(config: &Config, door: Door) -> McpOptions {
    McpOptions {
        code_execution: config.code_execution,
        network: config.recipes.reach_a_network(),
        workflows: config.workflows,
        tool_servers: (!config.bridge.servers.is_empty()).then(|| ToolServers {
            names: config.bridge.public_names(),
            only: config.bridge.tenants().cloned().collect(),
        }),
        patience: config.patience,
        templates: config.recipes.offer_templates().then(|| {
            let named = config.recipes.base.templates.iter();
            named.map(|name| Offered { name: name.clone(), packages: packages(config, name) }).collect()
        }),
        packages: packages(config, &config.template),
        inline_images: config.inline_images,
        packs: Packs::new(config.data_dir.join("packs"), Clock::system()),
        own_url: own_url(config),
        door,
        sharing: config.sharing.clone(),
    }
}

/// What a template brings, where it is this machine's.
#[cfg(target_os = "linux")]
fn packages(config: &Config, template: &str) -> Vec<String> {
    let templates = crate::host::templates::Templates::new(templates_dir(config));
    match config.provider {
        Provider::Local => templates.load(template).map(|template| template.known).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// Templates are of the local host.
#[cfg(not(target_os = "linux"))]
fn packages(_: &Config, _: &str) -> Vec<String> {
    Vec::new()
}

/// How parts end: runs and background tasks by one token, the sandbox host by another, after them.
#[derive(Debug, Clone)]
pub struct Ends {
    /// Ends runs and background tasks.
    pub shutdown: CancellationToken,
    /// Ends the sandbox host.
    pub host: CancellationToken,
    /// What is waited for.
    pub tasks: TaskTracker,
}

async fn start_service(config: Config, policies: Policies, sender: watch::Sender<Startup>, ends: Ends) {
    let mut pause = Duration::from_millis(250);
    loop {
        match service(&config, policies.clone(), &ends).await {
            Ok(service) => {
                service.start();
                if let Some(export) = &config.telemetry.export {
                    let (counting, every) = (service.health.clone(), export.metric_interval);
                    let shutdown = ends.shutdown.clone();
                    ends.tasks.spawn(async move { counting.count_active(every, &shutdown).await });
                }
                sender.send_replace(Startup::Ready(service));
                return;
            }
            Err(error) => {
                let why = why(&error);
                tracing::error!(error = why, "the start failed and is tried again");
                sender.send_replace(Startup::Failed(Arc::from(why)));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(Duration::from_secs(10)),
            () = ends.shutdown.cancelled() => return,
        }
    }
}

/// The execution service over the configured store and provider.
///
/// # Errors
/// When the store cannot be opened. A missing provider is not an error: the service then
/// says on each call why it cannot run anything.
pub async fn service(config: &Config, policies: Policies, ends: &Ends) -> anyhow::Result<Execution> {
    let entropy = Entropy::system();
    data_dir(&config.data_dir)?;
    let keyring = keyring(config, &entropy)?;
    let handles = HandleKey::derive(&keyring.derive("handles"));
    let tokens = token_key(config, &keyring);
    let objects = Objects::open(&config.objects)?;
    let place = place();
    let mut hosts = Hosts::new(&config.data_dir, place.as_str());
    let owner = format!("{}-{}", std::process::id(), entropy.hex::<4>());
    // One after the other: a start that fails is tried again, and would leave a sandbox host behind each time.
    let store = open_store(config, keyring).await?;
    let place = SandboxPlace { is_local: matches!(config.provider, Provider::Local), place };
    let is_only_place = store.join(&owner, &place, config.limits.replica_lease).await?;
    if is_only_place && place.is_local {
        hosts = hosts.only_here();
    }
    let are_outputs_apart = matches!(
        (&config.database, &config.objects),
        (Database::Postgres(_), objects::Options::Directory(_))
    ) && !is_only_place;
    if are_outputs_apart {
        tracing::warn!(
            "another machine or network namespace has a replica on this database: it does not find the outputs and files that \
             lie in this one's data directory, nor this one those of the other; set `objects.url`"
        );
    }
    let (provider, local) = open_provider(config, &hosts, ends).await;
    let parts = Parts {
        options: ExecutionOptions {
            limits: config.limits.clone(),
            recipes: config.recipes.clone(),
            sandbox_timeout: config.sandbox_timeout,
            margin: config.run_margin,
            output_chars: config.output_chars,
            cleanup_interval: config.cleanup_interval,
            retention: config.retention,
            audit_retention: config.audit_retention,
            workflows: config.workflows,
            cache_bytes: config.cache_bytes,
            cache_age: config.cache_age,
            ..ExecutionOptions::default()
        },
        store: Arc::clone(&store),
        provider,
        local,
        hosts,
        policies,
        handles,
        tokens,
        outputs: Outputs::new(objects, config.data_dir.clone(), MAX_OUTPUT_BYTES, Clock::system()),
        are_outputs_apart,
        bridge: Some(bridge(config, store, ends.shutdown.clone())?).filter(|bridge| !bridge.is_empty()),
        crash: CrashAt::named(config.crash_at.as_deref()),
        clock: Clock::system(),
        owner,
        entropy,
    };
    Ok(Execution::new(parts, ends.shutdown.clone()))
}

/// The bridge to the tool servers of the settings, which remembers in the store.
///
/// # Errors
/// When the key that seals its tokens can be neither read nor made.
pub fn bridge(config: &Config, store: DynStore, shutdown: CancellationToken) -> anyhow::Result<Bridge> {
    let sealing = keyring(config, &Entropy::system())?;
    Ok(Bridge::new(config.bridge.clone(), Some(Arc::new(StoredTools::new(store, sealing))), shutdown))
}

/// Where a loopback address means something: this boot of this machine, in this network namespace.
fn place() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let net = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    hex(&Sha256::digest(format!("{} {}", boot.trim(), net.display()).as_bytes())[..8])
}

/// An error with its causes, and what to do where these do not say it.
pub fn why(error: &anyhow::Error) -> String {
    let words = chain(error.as_ref());
    match error.downcast_ref::<StoreError>() {
        Some(failed @ (StoreError::Migrate { .. } | StoreError::TooNew { .. } | StoreError::Edited(_))) => {
            format!("{words}; {}", failed.remedy())
        }
        _ => words,
    }
}

/// Makes the data directory, for its owner only.
///
/// # Errors
/// When it cannot be made or written; the message names it.
pub fn data_dir(dir: &Path) -> anyhow::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    // On Windows it inherits the rights of the user's profile.
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir).with_context(|| {
        format!("the data directory {} cannot be made; set PATHBOX_DATA_DIR", dir.display())
    })?;
    let probe = dir.join(format!(".write-test-{}", std::process::id()));
    std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe)).with_context(|| {
        format!("the data directory {} cannot be written; set PATHBOX_DATA_DIR", dir.display())
    })
}

/// The keys for tokens at rest and for handles.
///
/// # Errors
/// When they cannot be read, or the data directory cannot be written.
pub fn keyring(config: &Config, entropy: &Entropy) -> anyhow::Result<Keyring> {
    match &config.secret_keys {
        Some(keys) => Keyring::parse(keys.expose(), entropy).context(
            "setting `secret_keys` (PATHBOX_SECRET_KEYS): it is `id:base64` of 32 bytes, comma-separated, as in \
             `1:$(openssl rand -base64 32)`",
        ),
        None => Keyring::open(&config.data_dir, entropy).context("the key file in the data directory"),
    }
}

/// The store that the settings name, migrated if that is allowed.
///
/// # Errors
/// The store's own.
pub async fn open_store(config: &Config, keyring: Keyring) -> anyhow::Result<DynStore> {
    Ok(match &config.database {
        Database::Sqlite => {
            Arc::new(SqliteStore::open(&config.data_dir, &config.sqlite, keyring, Clock::system()).await?)
        }
        Database::Postgres(url) => Arc::new(PgStore::connect(url, &config.postgres, keyring).await?),
    })
}

/// The key for the guard's sealed tokens. A token outlives the process that made it and goes to any replica: so a key
/// file of this machine is good enough only for a store of this machine.
pub fn token_key(config: &Config, keyring: &Keyring) -> Option<TokenKey> {
    let shared = config.secret_keys.is_some() || matches!(config.database, Database::Sqlite);
    shared.then(|| TokenKey::new(keyring.derive("tokens")))
}

/// The guards that the settings describe.
///
/// # Errors
/// When the policy's file cannot be read or does not fit (with line and column), or asks for what is sealed and there is
/// no key that all replicas have.
pub fn policies(config: &Config) -> anyhow::Result<Policies> {
    let mut file = match &config.guard_policy {
        None => PolicyFile::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("the guard policy {} cannot be read", path.display()))?;
            PolicyFile::read(&text)
                .with_context(|| format!("the guard policy {} cannot be used", path.display()))?
        }
    };
    if let Some(mode) = config.guard_mode {
        file.mode = mode;
    }
    let mut secrets = held(config);
    secrets.extend(named(&file, |name| config.variables.get(name).cloned())?);
    let known = Known::new(secrets.iter().map(Secret::expose));
    never_say(&known);
    let policies = Policies::new(file, known).context("the guard policy cannot be used")?;
    let kinds: Vec<&str> = policies.tokenized().into_iter().map(Kind::as_str).collect();
    let asks = match (kinds.is_empty(), policies.resolve_any()) {
        (false, _) => Some(format!("sealed tokens ({})", kinds.join(", "))),
        (true, true) => Some("resolving placeholders (`placeholders = \"resolve\"`)".to_owned()),
        (true, false) => None,
    };
    if let Some(asks) = asks
        && config.secret_keys.is_none()
        && !matches!(config.database, Database::Sqlite)
    {
        anyhow::bail!(
            "the guard policy asks for {asks} and the replicas of this database have no common key: set PATHBOX_SECRET_KEYS"
        );
    }
    Ok(policies)
}

/// The secrets that the settings hold. Not among them are keys that are made here and never leave this machine: that of the
/// key file in the data directory and that of the local sandbox host.
fn held(config: &Config) -> Vec<Secret> {
    let mut held: Vec<Secret> = config.cron_secret.iter().cloned().collect();
    if let objects::Options::Bucket(Bucket { credentials: Some((_, secret)), .. }) = &config.objects {
        held.push(secret.clone());
    }
    // A header is often `Bearer` and the key: each also alone.
    let given = config.bridge.secrets().flat_map(|text| std::iter::once(text).chain(text.split_whitespace()));
    held.extend(given.filter(|part| Known::takes(part) && !is_word(part)).map(Secret::new));
    if let Provider::E2b { api_key, .. } = &config.provider {
        held.push(api_key.clone());
    }
    if let Database::Postgres(url) = &config.database {
        for url in std::iter::once(url).chain(&config.postgres.migration_url) {
            held.push(url.clone());
            held.extend(passwords(url.expose()));
        }
        held.extend(
            config.variables.get("PGPASSWORD").filter(|password| !is_word(password.expose())).cloned(),
        );
    }
    if let Some(export) = &config.telemetry.export {
        // `Bearer` and what follows: each also alone.
        let values = export
            .targets()
            .flat_map(|target| target.headers.values())
            .filter_map(|value| value.to_str().ok());
        let parts = values.flat_map(|value| std::iter::once(value).chain(value.split_whitespace()));
        held.extend(parts.filter(|part| !is_word(part)).map(Secret::new));
    }
    if let Some(keys) = &config.secret_keys {
        let keys = keys.expose().split(',').filter_map(|entry| entry.split_once(':'));
        held.extend(keys.map(|(_, key)| Secret::new(key.trim())));
    }
    held
}

/// The passwords in a database's address, as they stand there and as they are: of the user, and of the query.
fn passwords(url: &str) -> Vec<Secret> {
    // A list of hosts is not valid in a URL; which hosts they are does not matter here.
    let one_host = || {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, more) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let user = authority.rfind('@').map_or("", |at| &authority[..=at]);
        Some(format!("{scheme}://{user}host{more}"))
    };
    // No password has been sent to an address that does not parse.
    let Some(Ok(url)) = one_host().map(|url| reqwest::Url::parse(&url)) else { return Vec::new() };
    let user = url
        .password()
        .into_iter()
        .flat_map(|password| [Secret::new(password), Secret::new(wire::control::percent_decode(password))]);
    let asked = url.query_pairs().filter(|(name, _)| name == "password");
    let passwords = user.chain(asked.map(|(_, password)| Secret::new(password)));
    passwords.filter(|password| !is_word(password.expose())).collect()
}

/// Whether a password is like `postgres`, a word of ordinary text too: such a one is not looked for.
fn is_word(password: &str) -> bool {
    password.len() < 16 && password.bytes().all(|byte| byte.is_ascii_alphabetic())
}

/// The values of the variables that a policy names.
///
/// # Errors
/// When one has no line that is long enough to be looked for.
pub fn named(file: &PolicyFile, variable: impl Fn(&str) -> Option<Secret>) -> anyhow::Result<Vec<Secret>> {
    let mut values = Vec::new();
    for name in &file.known.env {
        match variable(name) {
            Some(value) if !Known::takes(value.expose()) => anyhow::bail!(
                "the guard policy names the variable {name}, whose value has no line of at least {} bytes: it would match ordinary text",
                Known::SHORTEST
            ),
            Some(value) => values.push(value),
            None => tracing::warn!(variable = %name, "the guard policy names a variable that is not set"),
        }
    }
    Ok(values)
}

/// The sandbox provider that the settings name. Not there is an answer too: why, in words for a caller.
async fn open_provider(
    config: &Config,
    hosts: &Hosts,
    ends: &Ends,
) -> (Result<E2bClient, String>, Option<LocalHost>) {
    let (endpoint, local) = match &config.provider {
        Provider::E2b { api_key, domain, api_url, sandbox_url } => {
            if let Some(host) = &config.container
                && let Err(error) = container::ensure(host).await
            {
                return (Err(chain(error.as_ref())), None);
            }
            let endpoint = Endpoint {
                domain: domain.clone(),
                api_url: api_url.clone(),
                sandbox_url: sandbox_url.clone(),
                ..Endpoint::cloud(api_key.clone())
            };
            (endpoint, None)
        }
        Provider::Local => match local_host(config, hosts, ends).await {
            Ok(host) => (Endpoint::local(host.url.as_str(), host.key.clone()), Some(host)),
            Err(why) => return (Err(why), None),
        },
    };
    let options = E2bOptions { endpoint, template: config.template.clone(), ..E2bOptions::default() };
    (E2bClient::new(options, Clock::system(), Entropy::system()).map_err(|error| chain(&error)), local)
}

#[cfg(target_os = "linux")]
async fn local_host(config: &Config, hosts: &Hosts, ends: &Ends) -> Result<LocalHost, String> {
    let mut options = config.host.options(templates_dir(config));
    let key = hosts.key(&Entropy::system());
    let claim = claim_host(hosts, &key).await?;
    options.api_key = Some(key);
    let host = crate::host::serve(options, ends.host.clone()).await.map_err(|error| chain(&error))?;
    let local = LocalHost { url: host.url(), key: Secret::new(host.api_key().expose()) };
    ends.tasks.spawn(async move {
        host.ended().await;
        drop(claim);
    });
    Ok(local)
}

/// Claims the data directory for this process's host. The helpers of a host whose process was killed hold its lock for a
/// moment longer, so a refusal is looked at again before it counts.
#[cfg(target_os = "linux")]
async fn claim_host(hosts: &Hosts, key: &Secret) -> Result<HostClaim, String> {
    let mut tries = 20;
    loop {
        match hosts.claim(key) {
            Ok(claim) => return Ok(claim),
            Err(HostRefused::OtherPlace) if tries > 0 => tries -= 1,
            Err(error) => return Err(chain(&error)),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(not(target_os = "linux"))]
async fn local_host(_: &Config, _: &Hosts, _: &Ends) -> Result<LocalHost, String> {
    tracing::warn!("{}", crate::config::host::NEEDS_LINUX);
    Err(crate::config::host::NEEDS_LINUX.to_owned())
}

/// Where the local host's templates are.
pub fn templates_dir(config: &Config) -> std::path::PathBuf {
    config.data_dir.join("templates")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_passwords_of_a_database_are_found_in_its_address() {
        for (url, expected) in [
            ("postgres://app:S3cr3tPass99@db/x?application_name=me@host", &["S3cr3tPass99"][..]),
            ("postgres://app:S3cr3tPass99@db?options=-c%20x@y#z@w", &["S3cr3tPass99"]),
            ("postgres://app:pa%2Fss%40word-1@db:5432/x", &["pa%2Fss%40word-1", "pa/ss@word-1"]),
            ("postgres://db/x?user=app&password=S3cr3t%2BPass99", &["S3cr3t+Pass99"]),
            (
                "postgres:///x?host=/run/pg&password=S3cr3tPass99&password=0ther-Pass",
                &["S3cr3tPass99", "0ther-Pass"],
            ),
            ("postgres://app:S3cr3tPass99@one:5432,two:5433/x", &["S3cr3tPass99"]),
            ("postgres://app@db/x?application_name=a:S3cr3tPass99@host", &[]),
            ("postgres://postgres:postgres@db/x?password=postgres", &[]),
            ("no address", &[]),
        ] {
            let mut found: Vec<_> = passwords(url).iter().map(|it| it.expose().to_owned()).collect();
            found.dedup();
            assert_eq!(found, expected, "{url}");
        }
    }
}
