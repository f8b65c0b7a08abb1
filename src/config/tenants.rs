//! The settings of sandboxes: the deployment's, and `[tenants."name"]` of the settings file.
//!
//! A tenant's settings are in the file only, as a table under its name: a name may hold dots and colons, which dotted
//! keys and environment names cannot.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::http::items;
use super::load::{ConfigError, Source, Values, nearest};
use crate::domain::{Sharing, SharingRules, TenantId};
use crate::e2b::{McpServers, NetworkPolicy};
use crate::execution::{Recipe, Recipes};

/// One setting of a tenant's table.
#[derive(Debug)]
pub(super) struct TenantSetting {
    /// Its name in the table.
    pub(super) key: &'static str,
    /// What is allowed, for people.
    pub(super) allowed: &'static str,
    /// What it does, one sentence.
    pub(super) doc: &'static str,
}

const ALLOW_OUT: TenantSetting = TenantSetting {
    key: "allow_out",
    allowed: "a list of domains (`*.` may lead), IP addresses and ranges",
    doc: "What the tenant's sandboxes may reach, instead of `sandbox.allow_out`; nothing if the list is empty.",
};
const ON_TIMEOUT: TenantSetting =
    TenantSetting { key: "on_timeout", allowed: "kill or pause", doc: "Instead of `sandbox.on_timeout`." };
const TEMPLATE: TenantSetting = TenantSetting {
    key: "template",
    allowed: "a template id or name",
    doc: "Instead of `e2b.template`. With `mcp`, `mcp-gateway` when not set; it must hold the code interpreter too.",
};
const TEMPLATES: TenantSetting = TenantSetting {
    key: "templates",
    allowed: "a list of template ids or names",
    doc: "Instead of `e2b.templates`; an empty list allows only the tenant's own `template`.",
};
const MCP: TenantSetting = TenantSetting {
    key: "mcp",
    allowed: "a table for each server; a value may be `{ file = \"…\" }` or `{ env = \"…\" }`",
    doc: "MCP servers whose gateway is started in the tenant's sandboxes; what they talk to must be in `allow_out`.",
};

const SHARING: TenantSetting =
    TenantSetting { key: "sharing", allowed: "principal or tenant", doc: "Instead of `contexts.sharing`." };

/// Every setting that a tenant may have, in the order of the reference page.
pub(super) const TENANT_SETTINGS: &[TenantSetting] =
    &[ALLOW_OUT, ON_TIMEOUT, TEMPLATE, TEMPLATES, MCP, SHARING];

/// Where a setting stands, for errors.
struct Place<'a> {
    tenant: &'a str,
    file: &'a Path,
}

impl Place<'_> {
    fn key(&self, key: &str) -> String {
        format!("tenants.{:?}.{key}", self.tenant)
    }

    fn invalid(&self, setting: &TenantSetting, problem: impl Into<String>) -> ConfigError {
        ConfigError::Invalid {
            key: self.key(setting.key),
            origin: Source::File(self.file.to_owned()),
            problem: problem.into(),
            allowed: setting.allowed.to_owned(),
        }
    }
}

impl Values {
    /// What sandboxes are made with.
    pub(super) fn recipes(&self, environment: &BTreeMap<String, String>) -> Result<Recipes, ConfigError> {
        let base = Recipe {
            template: None,
            templates: templates(self.list("e2b.templates"))
                .map_err(|problem| self.invalid("e2b.templates", problem))?,
            network: network(self.list("sandbox.allow_out"))
                .map_err(|problem| self.invalid("sandbox.allow_out", problem))?,
            pause_on_timeout: self.one_of("sandbox.on_timeout", &[("kill", false), ("pause", true)])?,
            mcp: None,
        };
        let mut tenants = BTreeMap::new();
        if let Some((file, table)) = &self.tenants {
            for (name, settings) in table {
                let place = Place { tenant: name, file };
                let (tenant, recipe) = tenant(&place, settings, &base, environment)?;
                tenants.insert(tenant, recipe);
            }
        }
        Ok(Recipes { default_template: self.get("e2b.template").to_owned(), base, tenants })
    }

    /// Who may enter contexts.
    pub(super) fn sharing(&self) -> Result<SharingRules, ConfigError> {
        let base = self
            .one_of("contexts.sharing", &[("principal", Sharing::Principal), ("tenant", Sharing::Tenant)])?;
        let mut tenants = BTreeMap::new();
        if let Some((file, table)) = &self.tenants {
            for (name, settings) in table {
                // What does not fit otherwise has been refused with the recipes.
                if let (Ok(tenant), Some(value)) = (TenantId::parse(name), settings.get(SHARING.key)) {
                    tenants.insert(tenant, sharing(&Place { tenant: name, file }, value)?);
                }
            }
        }
        Ok(SharingRules { base, tenants })
    }

    /// Key, value and source of each tenant's settings, without what may be secret.
    pub(super) fn tenant_rows(&self) -> Vec<[String; 3]> {
        let mut rows = Vec::new();
        for (file, name, settings) in self.tenants.iter().flat_map(|(file, table)| {
            table.iter().filter_map(move |(name, value)| Some((file, name, value.as_table()?)))
        }) {
            let place = Place { tenant: name, file };
            for (key, value) in settings {
                let shown = match value {
                    Value::Table(servers) => servers.keys().cloned().collect::<Vec<_>>().join(", "),
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                rows.push([place.key(key), shown, Source::File(file.clone()).to_string()]);
            }
        }
        rows
    }
}

fn tenant(
    place: &Place<'_>,
    settings: &Value,
    base: &Recipe,
    environment: &BTreeMap<String, String>,
) -> Result<(TenantId, Recipe), ConfigError> {
    let whole = |problem: String| ConfigError::File { path: place.file.to_owned(), problem };
    let tenant = TenantId::parse(place.tenant).map_err(|error| whole(format!("[tenants]: {error}")))?;
    let Some(settings) = settings.as_table() else {
        return Err(whole(format!("`tenants.{tenant}` is a {}, not a table", settings.type_str())));
    };
    let mut recipe = base.clone();
    for (key, value) in settings {
        match key.as_str() {
            "allow_out" => {
                let entries = texts(value).map_err(|problem| place.invalid(&ALLOW_OUT, problem))?;
                recipe.network = network(entries).map_err(|problem| place.invalid(&ALLOW_OUT, problem))?;
            }
            "on_timeout" => {
                recipe.pause_on_timeout = match value.as_str() {
                    Some("kill") => false,
                    Some("pause") => true,
                    _ => return Err(place.invalid(&ON_TIMEOUT, format!("{value} is not known"))),
                };
            }
            "template" => match value.as_str().map(str::trim) {
                Some(name) if !name.is_empty() => recipe.template = Some(name.to_owned()),
                _ => return Err(place.invalid(&TEMPLATE, "it is not a name")),
            },
            "templates" => {
                let names = texts(value).map_err(|problem| place.invalid(&TEMPLATES, problem))?;
                recipe.templates = templates(names).map_err(|problem| place.invalid(&TEMPLATES, problem))?;
            }
            "sharing" => drop(sharing(place, value)?),
            "mcp" => recipe.mcp = servers(place, value, environment)?,
            other => {
                return Err(ConfigError::Unknown {
                    key: place.key(other),
                    source_name: format!("in {}", place.file.display()),
                    hint: nearest(other, TENANT_SETTINGS.iter().map(|setting| setting.key)),
                });
            }
        }
    }
    Ok((tenant, recipe))
}

fn sharing(place: &Place<'_>, value: &Value) -> Result<Sharing, ConfigError> {
    let known = value.as_str().and_then(|text| text.parse().ok());
    known.ok_or_else(|| place.invalid(&SHARING, format!("{value} is not known")))
}

/// A list of texts, or one text with commas as the environment has it.
fn texts(value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::String(text) => Ok(items(text)),
        Value::Array(entries) => entries
            .iter()
            .map(|entry| entry.as_str().map(str::to_owned).ok_or_else(|| format!("{entry} is not a string")))
            .collect(),
        other => Err(format!("expected a list, found {}", other.type_str())),
    }
}

/// Names of templates, as they are stored with a context.
fn templates(names: Vec<String>) -> Result<Vec<String>, String> {
    match names.iter().find(|name| name.trim().is_empty() || name.chars().count() > 256) {
        Some(name) => Err(format!("{name:?} is not a name of 1 to 256 characters")),
        None => Ok(names),
    }
}

/// The policy that lets these through and nothing else.
fn network(entries: Vec<String>) -> Result<NetworkPolicy, String> {
    if entries.is_empty() {
        return Ok(NetworkPolicy::Closed);
    }
    match entries.iter().find(|entry| !is_address(entry) && !is_domain(entry)) {
        Some(entry) => Err(format!("{entry:?} is neither a domain nor an address nor a range")),
        None => Ok(NetworkPolicy::AllowList(entries)),
    }
}

/// An IP address, or a range in CIDR form.
fn is_address(entry: &str) -> bool {
    let (address, bits) = entry.split_once('/').unwrap_or((entry, "0"));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

/// A host name of letters, digits and hyphens, at most 253 characters (RFC 1035), with `*.` in front or without.
fn is_domain(entry: &str) -> bool {
    let name = entry.strip_prefix("*.").unwrap_or(entry);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // A name that ends in a number is an address that was mistyped.
    let last = name.rsplit('.').next().unwrap_or_default();
    name.len() <= 253 && name.split('.').all(label) && !last.bytes().all(|byte| byte.is_ascii_digit())
}

fn servers(
    place: &Place<'_>,
    value: &Value,
    environment: &BTreeMap<String, String>,
) -> Result<Option<McpServers>, ConfigError> {
    let Some(table) = value.as_table() else {
        return Err(place.invalid(&MCP, format!("expected a table, found {}", value.type_str())));
    };
    let mut servers = serde_json::Map::new();
    for (name, settings) in table {
        if !settings.is_table() {
            return Err(place.invalid(&MCP, format!("`{name}` is not a table")));
        }
        let settings = json(settings, environment).map_err(|problem| place.invalid(&MCP, problem))?;
        servers.insert(name.clone(), settings);
    }
    Ok((!servers.is_empty()).then(|| McpServers::new(servers)))
}

/// A value as JSON. `{ file = "…" }` and `{ env = "…" }` denote what the file or the variable holds. No error repeats
/// a value: it may be a key.
fn json(value: &Value, environment: &BTreeMap<String, String>) -> Result<serde_json::Value, String> {
    Ok(match value {
        Value::Table(table) => match from_elsewhere(table) {
            Some(("file", path)) => {
                let text = std::fs::read_to_string(PathBuf::from(path))
                    .map_err(|error| format!("the file {path} cannot be read ({error})"))?;
                text.trim_end_matches(['\r', '\n']).into()
            }
            Some((_, name)) => match environment.get(name).filter(|text| !text.is_empty()) {
                Some(text) => text.as_str().into(),
                None => return Err(format!("the environment has no {name}")),
            },
            None => {
                let members = table.iter().map(|(name, value)| Ok((name.clone(), json(value, environment)?)));
                serde_json::Value::Object(members.collect::<Result<_, String>>()?)
            }
        },
        Value::Array(items) => {
            let items = items.iter().map(|item| json(item, environment));
            serde_json::Value::Array(items.collect::<Result<_, String>>()?)
        }
        Value::String(text) => text.as_str().into(),
        Value::Integer(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Boolean(truth) => (*truth).into(),
        Value::Datetime(time) => time.to_string().into(),
    })
}

fn from_elsewhere(table: &Table) -> Option<(&str, &str)> {
    let mut members = table.iter();
    match (members.next()?, members.next()) {
        ((key, Value::String(from)), None) if key == "file" || key == "env" => Some((key, from)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Sources};
    use super::*;

    fn load(file: &str, env: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pathbox.toml");
        std::fs::write(&path, file).unwrap();
        let mut environment: BTreeMap<String, String> = BTreeMap::from([("HOME".into(), "/h".into())]);
        environment.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let sources = Sources { environment, file: Some(path), ..Sources::default() };
        Values::read(&sources)?.config(&sources.environment)
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::parse(name).unwrap()
    }

    #[test]
    fn a_tenant_without_settings_has_the_deployments_and_that_is_closed() {
        let recipes = load("", &[]).unwrap().recipes;
        assert_eq!(*recipes.of(&tenant("anybody")), Recipe::default());
        assert_eq!(recipes.base.network, NetworkPolicy::Closed);
        let env =
            [("PATHBOX_SANDBOX_ALLOW_OUT", "pypi.org, 10.0.0.0/8"), ("PATHBOX_SANDBOX_ON_TIMEOUT", "pause")];
        let base = load("", &env).unwrap().recipes.base;
        assert_eq!(base.network, NetworkPolicy::AllowList(vec!["pypi.org".into(), "10.0.0.0/8".into()]));
        assert!(base.pause_on_timeout);
    }

    #[test]
    fn a_tenants_table_overrides_the_deployments_settings() {
        let file = r#"
            [sandbox]
            allow_out = "pypi.org"
            [e2b]
            templates = "science"
            [tenants."acme.eu:1"]
            allow_out = ["*.acme.example", "2001:db8::/32"]
            on_timeout = "pause"
            template = "acme-python"
            templates = ["node-22"]
            [tenants.shut]
            allow_out = []
        "#;
        let recipes = load(file, &[]).unwrap().recipes;
        let acme = recipes.of(&tenant("acme.eu:1"));
        assert_eq!(
            acme.network,
            NetworkPolicy::AllowList(vec!["*.acme.example".into(), "2001:db8::/32".into()])
        );
        assert_eq!((acme.pause_on_timeout, acme.template.as_deref()), (true, Some("acme-python")));
        assert_eq!(
            (&acme.templates[..], &recipes.base.templates[..]),
            (&["node-22".into()][..], &["science".into()][..])
        );
        assert!(recipes.offer_templates());
        assert_eq!(recipes.of(&tenant("shut")).network, NetworkPolicy::Closed);
        assert_eq!(recipes.of(&tenant("other")).network, NetworkPolicy::AllowList(vec!["pypi.org".into()]));
    }

    #[test]
    fn keys_of_mcp_servers_come_from_elsewhere_and_are_never_printed() {
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(key.path(), "from-file-planted\n").unwrap();
        let file = format!(
            "[tenants.acme.mcp.exa]\napiKey = {{ file = {:?} }}\nlimit = 3\n\
             [tenants.acme.mcp.\"github/o/r\".envs]\nTOKEN = {{ env = \"EXA_KEY\" }}\nPLAIN = \"in-file-planted\"\n",
            key.path()
        );
        let config = load(&file, &[("EXA_KEY", "from-env-planted")]).unwrap();
        let servers = config.recipes.of(&tenant("acme")).mcp.clone().unwrap();
        assert_eq!(
            serde_json::to_value(&servers).unwrap(),
            serde_json::json!({"exa": {"apiKey": "from-file-planted", "limit": 3},
                "github/o/r": {"envs": {"TOKEN": "from-env-planted", "PLAIN": "in-file-planted"}}})
        );
        let shown = format!("{config:?}");
        assert!(shown.contains("exa") && !shown.contains("planted"), "{shown}");
        assert!(load(&file, &[]).unwrap_err().to_string().contains("the environment has no EXA_KEY"));
    }

    #[test]
    fn invalid_entries_of_a_table_are_named() {
        for (file, said) in [
            ("[tenants.acme]\nallow_ot = []\n", r#"unknown setting `tenants."acme".allow_ot`"#),
            ("[tenants.acme]\nallow_ot = []\n", "did you mean `allow_out`?"),
            ("[tenants.acme]\nallow_out = [1]\n", "1 is not a string"),
            ("[tenants.acme]\nallow_out = true\n", "expected a list, found boolean"),
            ("[tenants.acme]\nallow_out = [\"http://x/\"]\n", "neither a domain nor an address nor a range"),
            ("[tenants.acme]\nallow_out = [\"10.0.0.0/33\"]\n", "neither a domain"),
            ("[tenants.acme]\nallow_out = [\"1.2.3.400\"]\n", "neither a domain"),
            ("[tenants.acme]\nallow_out = [\"a.*.b\"]\n", "neither a domain"),
            ("[tenants.acme]\nallow_out = [\"\"]\n", "neither a domain"),
            ("[sandbox]\nallow_out = \"*\"\n", "setting `sandbox.allow_out`"),
            ("[tenants.acme]\non_timeout = \"sleep\"\n", "allowed: kill or pause"),
            ("[tenants.acme]\ntemplate = \"\"\n", "it is not a name"),
            ("[tenants.acme]\ntemplates = [\"\"]\n", "is not a name of 1 to 256 characters"),
            ("[tenants.acme]\nmcp = 1\n", "expected a table, found integer"),
            ("[tenants.acme.mcp]\nexa = \"secret\"\n", "`exa` is not a table"),
            ("[tenants]\nacme = 1\n", "`tenants.acme` is a integer, not a table"),
            ("[tenants.\"a b\"]\n", "tenant id holds ' '"),
            ("tenants = 1\n", "`tenants` is a integer, not a table"),
        ] {
            let error = load(file, &[]).unwrap_err().to_string();
            assert!(error.contains(said), "{file} -> {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
