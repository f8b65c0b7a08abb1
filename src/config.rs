//! Every setting, gathered: one field for each component's own `Options`. Only [`load`] reads the environment;
//! components never do.

pub mod container;
pub mod host;
pub mod http;
pub mod load;
mod objects;
mod otel;
pub mod reference;
pub mod settings;
mod table;
mod tenants;
mod tools;
mod usage;

use std::path::PathBuf;
use std::time::Duration;

use crate::mcp::InlineImages;
use crate::store::Secret;

pub use load::{ConfigError, Source, Sources, Values};

/// Where contexts are kept.
#[derive(Debug, Clone)]
pub enum Database {
    /// SQLite in the data directory.
    Sqlite,
    /// Postgres at this URL (it may hold a password).
    Postgres(Secret),
}

/// Where sandboxes come from.
#[derive(Debug, Clone)]
pub enum Provider {
    /// E2B's cloud or a self-hosted E2B.
    E2b {
        /// The team's key.
        api_key: Secret,
        /// The provider's domain.
        domain: String,
        /// Control plane, when it is not `https://api.<domain>`.
        api_url: Option<String>,
        /// Data plane, when it is not derived from the domain.
        sandbox_url: Option<String>,
    },
    /// The sandbox host inside this process.
    Local,
}

/// Everything that can be set.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where files of ours live.
    pub data_dir: PathBuf,
    /// Which store.
    pub database: Database,
    /// How Postgres is used, when it is.
    pub postgres: crate::store::PgOptions,
    /// Where whole outputs, pictures and files are kept.
    pub objects: crate::objects::Options,
    /// How SQLite is used otherwise.
    pub sqlite: crate::store::SqliteOptions,
    /// Which sandboxes.
    pub provider: Provider,
    /// The host in a container that is the provider, if one is.
    pub container: Option<container::ContainerHost>,
    /// The provider's template.
    pub template: String,
    /// Who may enter contexts, for each tenant.
    pub sharing: crate::domain::SharingRules,
    /// What sandboxes are made with, for each tenant.
    pub recipes: crate::execution::Recipes,
    /// Other MCP servers, whose tools programs may call.
    pub bridge: crate::bridge::Options,
    /// The provider's own life time for a new sandbox.
    pub sandbox_timeout: Duration,
    /// Limits and life of contexts.
    pub limits: crate::store::ContextLimits,
    /// How long after its time-out a run counts as cut off.
    pub run_margin: Duration,
    /// Between two clean-up passes.
    pub cleanup_interval: Duration,
    /// How long ended rows are kept.
    pub retention: Duration,
    /// How long entries of the audit chain are kept.
    pub audit_retention: Duration,
    /// Whether the execution tools exist.
    pub code_execution: bool,
    /// Whether workflows are offered and driven.
    pub workflows: bool,
    /// Bytes of a tenant's kept results of hermetic tasks.
    pub cache_bytes: u64,
    /// How long such a result is used.
    pub cache_age: Duration,
    /// Characters of output in a result.
    pub output_chars: usize,
    /// How long a client waits for a result when it does not say.
    pub patience: Duration,
    /// When pictures are inlined.
    pub inline_images: InlineImages,
    /// The guard's base mode, when it is set; else the policy file's.
    pub guard_mode: Option<crate::guard::Mode>,
    /// A policy file for the guard.
    pub guard_policy: Option<PathBuf>,
    /// The process's environment, for a guard policy that names secrets by their variables.
    pub variables: std::collections::BTreeMap<String, Secret>,
    /// Master keys for tokens at rest and handles: `id:base64[,id:base64]`, the first is current.
    pub secret_keys: Option<Secret>,
    /// Bearer secret of the clean-up endpoint.
    pub cron_secret: Option<Secret>,
    /// Tenant of stdio callers.
    pub tenant: crate::domain::TenantId,
    /// Conversation of stdio callers that name none; `None`: one per process start.
    pub conversation: Option<crate::domain::ConversationId>,
    /// Path of callers that name none.
    pub path: crate::domain::PathId,
    /// The local sandbox host.
    pub host: host::HostSettings,
    /// The HTTP doors.
    pub http: http::HttpSettings,
    /// Logs, and where spans and metrics go.
    pub telemetry: crate::telemetry::Options,
    /// Where a build with debug assertions dies, for tests.
    pub crash_at: Option<String>,
    /// How long running calls may finish at shutdown.
    pub shutdown_grace: Duration,
}
