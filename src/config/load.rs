//! Reads settings: defaults < file < environment < flags.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::domain::{ConversationId, PathId, TenantId};
use crate::mcp::InlineImages;
use crate::store::{ContextLimits, PgOptions, Secret, SqliteOptions};
use crate::telemetry::{LogFormat, Options as TelemetryOptions};

use super::container::ContainerHost;
use super::host::HostSettings;
use super::settings::{Allowed, Setting};
use super::table::settings;
use super::{Config, Database, Provider};

const GUARD_MODES: [(&str, crate::guard::Mode); 3] = [
    ("enforce", crate::guard::Mode::Enforce),
    ("report_only", crate::guard::Mode::ReportOnly),
    ("off", crate::guard::Mode::Off),
];

/// Names of ours that are not settings: the file to read, the key with which `pathbox files` calls a server, and where a
/// debug build dies for a test.
const ALSO_OURS: [&str; 3] = ["PATHBOX_CONFIG", "PATHBOX_API_KEY", "PATHBOX_CRASH_AT"];

/// Whether Kubernetes made this variable: in each container of a namespace with a service whose name begins with `pathbox`
/// it puts that service's address into `PATHBOX_SERVICE_HOST`, `PATHBOX_PORT_80_TCP` and the like.
fn is_service_link(environment: &BTreeMap<String, String>, name: &str, value: &str) -> bool {
    let is_address = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let is_port = || {
        let (_, port) = name.split_once("_PORT_")?;
        let (number, protocol) = port.split_once('_')?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        Some(is_number && ["TCP", "UDP", "SCTP"].iter().any(|one| protocol.starts_with(one)))
    };
    environment.contains_key("KUBERNETES_SERVICE_HOST")
        && (name.ends_with("_SERVICE_HOST")
            || name.contains("_SERVICE_PORT")
            || name.ends_with("_PORT") && is_address
            || is_port() == Some(true))
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Not set.
    Default,
    /// Not set; it follows from this variable of the environment.
    Platform(&'static str),
    /// The settings file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// The command line.
    Flag,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Platform(name) => write!(f, "default, below {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// A setting that cannot be used. Says its name, what is wrong and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No setting has this name.
    #[error("unknown setting `{key}` ({source_name}){hint}")]
    Unknown {
        /// The name.
        key: String,
        /// Where it stands.
        source_name: String,
        /// ", did you mean …?" or nothing.
        hint: String,
    },
    /// The value does not fit.
    #[error("setting `{key}` ({origin}): {problem}; allowed: {allowed}")]
    Invalid {
        /// The setting.
        key: String,
        /// Where the value came from.
        origin: Source,
        /// What is wrong with it.
        problem: String,
        /// What would be right.
        allowed: String,
    },
    /// The settings file cannot be read.
    #[error("settings file {path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// What the outside says, before any of it is looked at.
#[derive(Debug, Default, Clone)]
pub struct Sources {
    /// The environment.
    pub environment: BTreeMap<String, String>,
    /// The settings file, if one was named or found.
    pub file: Option<PathBuf>,
    /// `key = value` from flags.
    pub flags: BTreeMap<String, String>,
}

impl Sources {
    /// The process's environment and nothing else.
    pub fn from_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        };
        Self { environment: std::env::vars_os().filter_map(text).collect(), ..Self::default() }
    }
}

/// Every setting's text and where it came from.
#[derive(Debug, Clone)]
pub struct Values {
    pub(super) settings: BTreeMap<&'static str, (String, Source)>,
    /// The sandbox host in a container, where the settings name no other provider.
    pub(super) container: Option<ContainerHost>,
    /// `[tenants]` of the settings file.
    pub(super) tenants: Option<(PathBuf, toml::Table)>,
    /// `[[tools.server]]` of the settings file.
    pub(super) tool_servers: Option<(PathBuf, Vec<toml::Value>)>,
    /// The home directory.
    home: Option<String>,
}

impl Values {
    /// Lays the sources over each other.
    ///
    /// # Errors
    /// [`ConfigError`] for a name that no setting has, or a file that cannot be read.
    pub fn read(sources: &Sources) -> Result<Self, ConfigError> {
        let mut values: BTreeMap<_, _> =
            settings().map(|s| (s.key, (s.default.to_owned(), Source::Default))).collect();
        let (mut tenants, mut tool_servers) = (None, None);
        if let Some(path) = &sources.file {
            let (flat, table, servers) = flatten(path)?;
            tenants = table.map(|table| (path.clone(), table));
            tool_servers = Some((path.clone(), servers));
            for (key, value) in flat {
                let setting = find(&key, &format!("in {}", path.display()))?;
                values.insert(setting.key, (value, Source::File(path.clone())));
            }
        }
        let ours = sources.environment.iter().filter(|(name, _)| name.starts_with("PATHBOX_"));
        for (name, _) in ours.filter(|(name, value)| !is_service_link(&sources.environment, name, value)) {
            let base = name.strip_suffix("_FILE").unwrap_or(name);
            let known = |n: &str| ALSO_OURS.contains(&n) || settings().any(|s| s.env.contains(&n));
            if !known(name) && !known(base) {
                let near = nearest(name, settings().flat_map(|s| s.env.iter().copied()));
                return Err(ConfigError::Unknown {
                    key: name.clone(),
                    source_name: "environment".into(),
                    hint: near,
                });
            }
        }
        for setting in settings() {
            if let Some((name, value)) = from_environment(setting, &sources.environment)? {
                values.insert(setting.key, (value, Source::Environment(name)));
            }
        }
        for (key, value) in &sources.flags {
            let setting = find(key, "on the command line")?;
            values.insert(setting.key, (value.clone(), Source::Flag));
        }
        let name = if cfg!(windows) { "USERPROFILE" } else { "HOME" };
        let home = sources.environment.get(name).filter(|home| !home.is_empty()).cloned();
        let mut values = Self { settings: values, container: None, tenants, tool_servers, home };
        if values.text("data_dir").is_none()
            && let Some((place, variable)) = platform_dir(&sources.environment)
        {
            values.settings.insert("data_dir", (place.display().to_string(), Source::Platform(variable)));
        }
        match values.data_dir() {
            Ok(dir) => values.with_container(&dir),
            Err(_) => Ok(values),
        }
    }

    /// A setting's text; empty when not set.
    pub fn get(&self, key: &str) -> &str {
        self.settings.get(key).map_or("", |(value, _)| value)
    }

    /// Where a setting's value came from.
    pub fn source(&self, key: &str) -> Source {
        self.settings.get(key).map_or(Source::Default, |(_, source)| source.clone())
    }

    pub(super) fn invalid(&self, key: &'static str, problem: impl Into<String>) -> ConfigError {
        let allowed = settings().find(|s| s.key == key).map(|s| s.allowed.to_string()).unwrap_or_default();
        ConfigError::Invalid {
            key: key.to_owned(),
            origin: self.source(key),
            problem: problem.into(),
            allowed,
        }
    }

    pub(super) fn number<T: FromStr + PartialOrd + Copy>(
        &self,
        key: &'static str,
        low: T,
        high: T,
    ) -> Result<T, ConfigError> {
        let text = self.get(key);
        match text.trim().parse::<T>() {
            Ok(n) if n >= low && n <= high => Ok(n),
            Ok(_) => Err(self.invalid(key, format!("{text} is out of range"))),
            Err(_) => Err(self.invalid(key, format!("{text:?} is not a number"))),
        }
    }

    /// A text without anything that an environment or a path could take for more than a name.
    pub(super) fn word(&self, key: &'static str) -> Result<Option<String>, ConfigError> {
        let text = self.text(key);
        let fits = |text: &String| {
            !text.starts_with('/')
                && !text.contains("..")
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "/_+-.@".contains(c))
        };
        match text.filter(|text| !fits(text)) {
            Some(other) => Err(self.invalid(key, format!("{other:?} is not a name"))),
            None => Ok(self.text(key)),
        }
    }

    /// A number in the range that its setting allows.
    pub(super) fn ranged<T: TryFrom<u64>>(&self, key: &'static str) -> Result<T, ConfigError> {
        let Some(Allowed::Range(low, high, _)) = settings().find(|s| s.key == key).map(|s| s.allowed) else {
            return Err(self.invalid(key, "it has no range"));
        };
        let number = self.number(key, low, high)?;
        T::try_from(number).map_err(|_| self.invalid(key, format!("{number} is too large")))
    }

    pub(super) fn boolean(&self, key: &'static str) -> Result<bool, ConfigError> {
        match self.get(key).trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            other => Err(self.invalid(key, format!("{other:?} is neither true nor false"))),
        }
    }

    pub(super) fn one_of<T: Copy>(&self, key: &'static str, table: &[(&str, T)]) -> Result<T, ConfigError> {
        let text = self.get(key).trim().to_ascii_lowercase();
        let found = table.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        found.ok_or_else(|| self.invalid(key, format!("{text:?} is not known")))
    }

    fn parsed<T: FromStr<Err: std::fmt::Display>>(&self, key: &'static str) -> Result<T, ConfigError> {
        self.get(key).parse().map_err(|error: T::Err| self.invalid(key, error.to_string()))
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        Some(self.get(key).trim()).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    pub(super) fn url(&self, key: &'static str) -> Result<Option<String>, ConfigError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        match reqwest::Url::parse(&text) {
            Ok(url) if ["http", "https"].contains(&url.scheme()) => {
                Ok(Some(text.trim_end_matches('/').to_owned()))
            }
            Ok(url) => Err(self.invalid(key, format!("scheme `{}` cannot be used", url.scheme()))),
            Err(error) => Err(self.invalid(key, error.to_string())),
        }
    }

    /// The typed settings.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for the first value that does not fit.
    #[expect(clippy::too_many_lines, reason = "a table: a line for each setting")]
    pub fn config(&self, environment: &BTreeMap<String, String>) -> Result<Config, ConfigError> {
        let data_dir = self.data_dir()?;
        Ok(Config {
            objects: self.objects(&data_dir)?,
            data_dir,
            database: self.database()?,
            postgres: self.postgres()?,
            sqlite: SqliteOptions {
                auto_migrate: self.boolean("auto_migrate")?,
                allow_network_file_system: self.boolean("database.allow_network_file_system")?,
                ..SqliteOptions::default()
            },
            provider: self.provider()?,
            container: self.container.clone(),
            template: self.get("e2b.template").to_owned(),
            recipes: self.recipes(environment)?,
            bridge: self.bridge(environment)?,
            sharing: self.sharing()?,
            sandbox_timeout: self.millis("e2b.sandbox_timeout_ms", 60_000, 86_400_000)?,
            limits: self.limits()?,
            run_margin: self.seconds("contexts.run_margin_seconds", 1, 300)?,
            cleanup_interval: self.minutes("contexts.cleanup_interval_minutes", 1, 1440)?,
            retention: Duration::from_secs(86_400 * self.number("contexts.retention_days", 1, 3650)?),
            audit_retention: self.audit_retention()?,
            code_execution: self.boolean("code_execution")?,
            workflows: self.boolean("workflows.enabled")?,
            cache_bytes: self.number::<u64>("workflows.cache_mib", 0, 1_000_000)? << 20,
            cache_age: Duration::from_secs(86_400 * self.number("workflows.cache_days", 1, 365)?),
            output_chars: self.number("output.max_chars", 1_000, 1_000_000)?,
            patience: self.millis("output.patience_ms", 1_000, 3_600_000)?,
            inline_images: self.one_of(
                "output.inline_images",
                &[
                    ("auto", InlineImages::Auto),
                    ("always", InlineImages::Always),
                    ("never", InlineImages::Never),
                ],
            )?,
            guard_mode: match self.source("guard.mode") {
                Source::Default => None,
                _ => Some(self.one_of("guard.mode", &GUARD_MODES)?),
            },
            guard_policy: self.path("guard.policy")?,
            variables: environment.iter().map(|(name, value)| (name.clone(), Secret::new(value))).collect(),
            secret_keys: self.text("secret_keys").map(Secret::new),
            cron_secret: self.cron_secret()?,
            tenant: self.parsed::<TenantId>("identity.tenant")?,
            conversation: match self.text("identity.conversation") {
                Some(_) => Some(self.parsed::<ConversationId>("identity.conversation")?),
                None => None,
            },
            path: self.parsed::<PathId>("identity.path")?,
            host: HostSettings::read(self)?,
            http: self.http()?,
            telemetry: TelemetryOptions {
                format: self.one_of("log.format", &[("text", LogFormat::Text), ("json", LogFormat::Json)])?,
                filter: match crate::telemetry::is_filter(self.get("log.filter")) {
                    true => self.get("log.filter").to_owned(),
                    false => return Err(self.invalid("log.filter", "it is not a filter")),
                },
                export: self.export()?,
            },
            crash_at: environment.get("PATHBOX_CRASH_AT").cloned(),
            shutdown_grace: self.seconds("shutdown_grace_seconds", 0, 600)?,
        })
    }

    pub(super) fn millis(&self, key: &'static str, low: u64, high: u64) -> Result<Duration, ConfigError> {
        Ok(Duration::from_millis(self.number(key, low, high)?))
    }

    pub(super) fn seconds(&self, key: &'static str, low: u64, high: u64) -> Result<Duration, ConfigError> {
        Ok(Duration::from_secs(self.number(key, low, high)?))
    }

    fn minutes(&self, key: &'static str, low: u64, high: u64) -> Result<Duration, ConfigError> {
        Ok(60 * self.seconds(key, low, high)?)
    }

    fn database(&self) -> Result<Database, ConfigError> {
        match self.text("database_url") {
            None => Ok(Database::Sqlite),
            Some(url) if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Ok(Database::Postgres(Secret::new(url)))
            }
            Some(_) => Err(self.invalid("database_url", "the scheme is not postgres")),
        }
    }

    fn provider(&self) -> Result<Provider, ConfigError> {
        let (api_url, sandbox_url) = (self.url("e2b.api_url")?, self.url("e2b.sandbox_url")?);
        Ok(match self.text("e2b.api_key") {
            None => Provider::Local,
            Some(key) => {
                Provider::E2b { api_key: Secret::new(key), domain: self.domain()?, api_url, sandbox_url }
            }
        })
    }

    /// What goes into host names.
    fn domain(&self) -> Result<String, ConfigError> {
        let domain = self.text("e2b.domain").unwrap_or_else(|| "e2b.app".to_owned());
        match crate::e2b::is_domain(&domain) {
            true => Ok(domain),
            false => Err(self.invalid("e2b.domain", format!("{domain:?} is not a host name"))),
        }
    }

    fn limits(&self) -> Result<ContextLimits, ConfigError> {
        Ok(ContextLimits {
            per_tenant: self.number("contexts.per_tenant", 1, 100_000)?,
            per_conversation: self.number("contexts.per_conversation", 1, 100_000)?,
            max_executions: self.number("contexts.max_executions", 1, 1_000_000)?,
            ttl: self.minutes("contexts.ttl_minutes", 1, 1440)?,
            create_lease: self.seconds("contexts.create_lease_seconds", 2, 600)?,
            create_timeout: self.create_timeout()?,
            replica_lease: self.seconds("contexts.replica_lease_seconds", 2, 600)?,
            quota: self.quota()?,
            prices: self.prices()?,
            ..ContextLimits::default()
        })
    }

    fn cron_secret(&self) -> Result<Option<Secret>, ConfigError> {
        let secret = self.text("cron_secret").map(Secret::new);
        if secret.as_ref().is_some_and(|secret| secret.expose().len() < 16) {
            return Err(self.invalid("cron_secret", "it is too short; use at least 16 bytes"));
        }
        Ok(secret)
    }

    fn postgres(&self) -> Result<PgOptions, ConfigError> {
        Ok(PgOptions {
            max_connections: self.number("database.pool_size", 1, 1000)?,
            acquire_timeout: self.millis("database.acquire_timeout_ms", 100, 60_000)?,
            connect_timeout: self.millis("database.connect_timeout_ms", 100, 60_000)?,
            statement_timeout: self.millis("database.statement_timeout_ms", 500, 600_000)?,
            lock_timeout: self.millis("database.lock_timeout_ms", 50, 600_000)?,
            auto_migrate: self.boolean("auto_migrate")?,
            migration_url: self.text("database.migration_url").map(Secret::new),
            pooled: self.one_of("database.pooler", &[("none", false), ("transaction", true)])?,
        })
    }

    fn create_timeout(&self) -> Result<Duration, ConfigError> {
        let (lease, timeout): (u64, u64) = (
            self.number("contexts.create_lease_seconds", 2, 600)?,
            self.number("contexts.create_timeout_seconds", 1, 300)?,
        );
        match timeout < lease {
            true => Ok(Duration::from_secs(timeout)),
            false => Err(self.invalid("contexts.create_timeout_seconds", "it must be less than the lease")),
        }
    }

    /// A path. `~` and `$HOME` at its beginning are the home directory: hosts and settings files pass them on as they are.
    pub(super) fn path(&self, key: &'static str) -> Result<Option<PathBuf>, ConfigError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        let below_home = ["~", "$HOME", "${HOME}"]
            .iter()
            .find_map(|home| text.strip_prefix(home).filter(|rest| rest.is_empty() || rest.starts_with('/')));
        let path = match below_home {
            None => PathBuf::from(&text),
            Some(rest) => match &self.home {
                Some(home) => PathBuf::from(home).join(rest.trim_start_matches('/')),
                None => return Err(self.invalid(key, format!("{text:?} needs HOME, which is not set"))),
            },
        };
        match path.to_str().is_some_and(|path| path.starts_with('~') || path.contains("${")) {
            true => Err(self.invalid(
                key,
                format!("{text:?} holds a variable that nothing has replaced: write the path out"),
            )),
            false => Ok(Some(path)),
        }
    }

    /// The directory of everything that this process keeps.
    pub(super) fn data_dir(&self) -> Result<PathBuf, ConfigError> {
        let home = if cfg!(windows) { "LOCALAPPDATA" } else { "HOME" };
        self.path("data_dir")?
            .ok_or_else(|| self.invalid("data_dir", format!("neither it nor {home} is set")))
    }
}

/// The platform's own place for a program's data, and the variable that says where it is.
fn platform_dir(environment: &BTreeMap<String, String>) -> Option<(PathBuf, &'static str)> {
    let below = |name: &'static str, rest: &str| {
        let dir = environment.get(name).filter(|dir| !dir.is_empty())?;
        Some((Path::new(dir).join(rest), name))
    };
    if cfg!(target_os = "macos") {
        below("HOME", "Library/Application Support/pathbox")
    } else if cfg!(windows) {
        below("LOCALAPPDATA", "pathbox")
    } else {
        below("XDG_DATA_HOME", "pathbox")
            .filter(|(dir, _)| dir.is_absolute())
            .or_else(|| below("HOME", ".local/share/pathbox"))
    }
}

fn find(key: &str, place: &str) -> Result<&'static Setting, ConfigError> {
    settings().find(|setting| setting.key == key).ok_or_else(|| ConfigError::Unknown {
        key: key.to_owned(),
        source_name: place.to_owned(),
        hint: nearest(key, settings().map(|s| s.key)),
    })
}

fn from_environment(
    setting: &Setting,
    environment: &BTreeMap<String, String>,
) -> Result<Option<(String, String)>, ConfigError> {
    // What a desktop host leaves of a setting that its user did not fill in.
    let is_set = |value: &&String| !value.is_empty() && !value.starts_with("${user_config.");
    for name in setting.env {
        if let Some(value) = environment.get(*name).filter(is_set) {
            if value.contains(char::REPLACEMENT_CHARACTER) {
                return Err(ConfigError::Invalid {
                    key: setting.key.to_owned(),
                    origin: Source::Environment((*name).to_owned()),
                    problem: "it is not UTF-8".to_owned(),
                    allowed: setting.allowed.to_string(),
                });
            }
            return Ok(Some(((*name).to_owned(), value.clone())));
        }
        if !setting.secret {
            continue;
        }
        let file = format!("{name}_FILE");
        if let Some(path) = environment.get(&file).filter(is_set) {
            let invalid = |problem: String| ConfigError::Invalid {
                key: setting.key.to_owned(),
                origin: Source::Environment(file.clone()),
                problem: format!("the file {path} {problem}"),
                allowed: setting.allowed.to_string(),
            };
            let text =
                std::fs::read_to_string(path).map_err(|error| invalid(format!("cannot be read: {error}")))?;
            let text = text.trim_end_matches(['\r', '\n']).to_owned();
            // Without it another database or provider would serve, without a word.
            if text.trim().is_empty() {
                return Err(invalid("is empty".to_owned()));
            }
            return Ok(Some((file, text)));
        }
    }
    Ok(None)
}

/// The settings of a file: texts by `section.key`, the table of tenants, and the tool servers.
type FileSettings = (Vec<(String, String)>, Option<toml::Table>, Vec<toml::Value>);

/// `[section] key = value` of a TOML file as `section.key` texts, and `[tenants]` and `[[tools.server]]` as they are.
fn flatten(path: &Path) -> Result<FileSettings, ConfigError> {
    let file_error = |problem: String| ConfigError::File { path: path.to_owned(), problem };
    let text = std::fs::read_to_string(path).map_err(|error| file_error(error.to_string()))?;
    // The parser's own text repeats the line, which may hold a key.
    let mut table: toml::Table = toml::from_str(&text).map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        file_error(format!("line {}: {}", before.matches('\n').count() + 1, error.message()))
    })?;
    let tenants = match table.remove("tenants") {
        None => None,
        Some(toml::Value::Table(tenants)) => Some(tenants),
        Some(other) => {
            return Err(file_error(format!("`tenants` is a {}, not a table", other.type_str())));
        }
    };
    let servers = match table
        .get_mut("tools")
        .and_then(toml::Value::as_table_mut)
        .and_then(|tools| tools.remove("server"))
    {
        None => Vec::new(),
        Some(toml::Value::Array(servers)) if servers.iter().all(toml::Value::is_table) => servers,
        Some(_) => {
            return Err(file_error(
                "`tools.server` is written as `[[tools.server]]`, once for each server".to_owned(),
            ));
        }
    };
    let mut out = Vec::new();
    let mut stack: Vec<(String, toml::Value)> = table.into_iter().collect();
    while let Some((key, value)) = stack.pop() {
        match value {
            toml::Value::Table(inner) => {
                stack.extend(inner.into_iter().map(|(name, value)| (format!("{key}.{name}"), value)));
            }
            toml::Value::String(text) => out.push((key, text)),
            toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => {
                out.push((key, value.to_string()));
            }
            other => {
                let kind = other.type_str();
                return Err(file_error(format!(
                    "`{key}`: a setting is a single value; this is of type {kind}"
                )));
            }
        }
    }
    Ok((out, tenants, servers))
}

pub(super) fn nearest<'a>(name: &str, all: impl Iterator<Item = &'a str>) -> String {
    let best = all.map(|candidate| (distance(name, candidate), candidate)).min();
    match best {
        Some((d, candidate)) if d <= name.len() / 3 => format!("; did you mean `{candidate}`?"),
        _ => String::new(),
    }
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut previous = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let cost = previous + usize::from(ca != *cb);
            previous = row[j + 1];
            row[j + 1] = cost.min(previous + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(env: &[(&str, &str)]) -> Sources {
        let mut environment: BTreeMap<String, String> = BTreeMap::from([("HOME".into(), "/h".into())]);
        environment.extend(env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        Sources { environment, ..Sources::default() }
    }

    fn load(sources: &Sources) -> Result<Config, ConfigError> {
        Values::read(sources)?.config(&sources.environment)
    }

    #[test]
    fn a_newcomer_with_nothing_set_gets_sqlite_and_the_local_host() {
        let config = load(&sources(&[])).unwrap();
        assert!(matches!(config.database, Database::Sqlite));
        assert!(matches!(config.provider, Provider::Local));
        assert_eq!(config.data_dir, PathBuf::from("/h/.local/share/pathbox"));
        assert_eq!(config.limits, ContextLimits::default());
    }

    #[test]
    fn a_path_below_the_home_directory_is_found_and_other_variables_are_refused() {
        for (text, path) in [
            ("~/box", "/h/box"),
            ("${HOME}/.local/share/pathbox", "/h/.local/share/pathbox"),
            ("$HOME", "/h"),
            ("/srv/~box", "/srv/~box"),
            ("${user_config.data_dir}", "/h/.local/share/pathbox"),
        ] {
            let config = load(&sources(&[("PATHBOX_DATA_DIR", text)])).unwrap();
            assert_eq!(config.data_dir, PathBuf::from(path), "{text}");
        }
        for text in ["${XDG_DATA_HOME}/pathbox", "~other/box", "/srv/${NAME}"] {
            let error = load(&sources(&[("PATHBOX_DATA_DIR", text)])).unwrap_err().to_string();
            assert!(error.contains("nothing has replaced"), "{error}");
        }
        let mut homeless = sources(&[("PATHBOX_DATA_DIR", "~/box")]);
        homeless.environment.remove("HOME");
        assert!(load(&homeless).unwrap_err().to_string().contains("HOME"), "it says what is missing");
    }

    #[test]
    fn flags_win_over_environment_and_environment_over_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pathbox.toml");
        std::fs::write(&file, "[contexts]\nper_tenant = 3\nper_conversation = 3\nttl_minutes = 3\n").unwrap();
        let mut s =
            sources(&[("PATHBOX_CONTEXTS_PER_TENANT", "4"), ("PATHBOX_CONTEXTS_PER_CONVERSATION", "4")]);
        s.file = Some(file);
        s.flags.insert("contexts.per_tenant".into(), "5".into());
        let limits = load(&s).unwrap().limits;
        assert_eq!((limits.per_tenant, limits.per_conversation, limits.ttl.as_secs()), (5, 4, 180));
    }

    #[test]
    fn an_impossible_value_names_the_setting_the_problem_and_the_range() {
        let error = load(&sources(&[("E2B_DEFAULT_TTL_MINUTES", "0")])).unwrap_err().to_string();
        assert_eq!(
            error,
            "setting `contexts.ttl_minutes` (environment E2B_DEFAULT_TTL_MINUTES): 0 is out of range; \
             allowed: 1 to 1440 (minutes)"
        );
        for (name, value) in [
            ("DATABASE_URL", "mysql://x"),
            ("E2B_API_URL", "ftp://x"),
            ("PATHBOX_TENANT", "a b"),
            ("CRON_SECRET", "short"),
            ("PATHBOX_GUARD_MODE", "maybe"),
            ("FEATURE_CODE_EXECUTION", "2"),
            ("PATHBOX_LOG", "=?="),
        ] {
            assert!(load(&sources(&[(name, value)])).is_err(), "{name}={value}");
        }
    }

    #[test]
    fn a_secret_of_a_file_that_is_missing_or_empty_is_refused_by_name_and_not_taken_for_unset() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        for (text, problem) in [(None, "cannot be read"), (Some(""), "is empty"), (Some(" \n"), "is empty")] {
            if let Some(text) = text {
                std::fs::write(&file, text).unwrap();
            }
            for (name, key) in [("E2B_API_KEY_FILE", "e2b.api_key"), ("DATABASE_URL_FILE", "database_url")] {
                let error = load(&sources(&[(name, file.to_str().unwrap())])).unwrap_err().to_string();
                assert!(error.contains(name) && error.contains(key) && error.contains(problem), "{error}");
            }
        }
    }

    #[test]
    fn the_domain_of_a_provider_is_a_host_name() {
        let load = |domain: &str| load(&sources(&[("E2B_API_KEY", "e2b_x"), ("E2B_DOMAIN", domain)]));
        let error = load("https://e2b.example/").unwrap_err().to_string();
        assert!(error.contains("`e2b.domain` (environment E2B_DOMAIN)"), "{error}");
        assert!(load("e2b.example:3000").is_ok());
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_nearest_one() {
        let error = load(&sources(&[("PATHBOX_DATA_DIRR", "/x")])).unwrap_err().to_string();
        assert!(error.contains("did you mean `PATHBOX_DATA_DIR`?"), "{error}");
    }

    #[test]
    fn a_server_starts_beside_variables_of_others() {
        assert!(load(&sources(&[("PATHBOX_API_KEY", "pbx_x")])).is_ok());
        let links = [
            ("PATHBOX_SERVICE_HOST", "10.0.0.7"),
            ("PATHBOX_SERVICE_PORT", "80"),
            ("PATHBOX_SERVICE_PORT_HTTP", "80"),
            ("PATHBOX_PORT", "tcp://10.0.0.7:80"),
            ("PATHBOX_PORT_80_TCP", "tcp://10.0.0.7:80"),
            ("PATHBOX_PORT_80_TCP_ADDR", "10.0.0.7"),
            ("PATHBOX_EU_PORT_53_UDP_PROTO", "udp"),
        ];
        let kubernetes = ("KUBERNETES_SERVICE_HOST", "10.0.0.1");
        for link in links {
            assert!(load(&sources(&[kubernetes, link])).is_ok(), "{link:?}");
            assert!(load(&sources(&[link])).is_err(), "{link:?} without Kubernetes");
        }
        for (name, value) in
            [("PATHBOX_HTTP_PORT", "8080"), ("PATHBOX_PORT_80", "x"), ("PATHBOX_SERVICE", "x")]
        {
            assert!(load(&sources(&[kubernetes, (name, value)])).is_err(), "{name}");
        }
    }

    #[test]
    fn a_secret_may_come_from_a_file_and_is_not_printed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, "e2b_0123456789abcdef\n").unwrap();
        let config = load(&sources(&[("E2B_API_KEY_FILE", file.to_str().unwrap())])).unwrap();
        let Provider::E2b { api_key, .. } = &config.provider else { panic!("local") };
        assert_eq!(api_key.expose(), "e2b_0123456789abcdef");
        assert!(!format!("{config:?}").contains("0123456789abcdef"));
    }
}
