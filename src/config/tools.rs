//! `[[tools.server]]` of the settings file: other MCP servers, whose tools programs may call.
//!
//! A server's settings are in the file only. Keys are not written there: a value of `env` or `headers` says where the key is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::load::{ConfigError, Source, Values};
use crate::bridge::{Embeddings, Era, OAuth, Options, Pattern, Server, Transport};
use crate::domain::TenantId;
use crate::wire::Secret;

/// A key of `[[tools.server]]`: its name, what is allowed, what it does.
pub(super) const SERVER_SETTINGS: &[[&str; 3]] = &[
    [
        "name",
        "a small letter, then small letters, digits, `_` and `-`, at most 32",
        "The name that programs use. Several servers may share a name if they have different `tenants`.",
    ],
    [
        "command",
        "a program",
        "Starts the server as a child process of Pathbox, outside of any sandbox, with the rights of Pathbox.",
    ],
    ["args", "a list of texts", "Its arguments. They are seen by every user of the machine: no keys here."],
    [
        "env",
        "a table of texts, `{ env = \"…\" }` or `{ file = \"…\" }`",
        "Its environment, besides PATH, HOME, LANG and the like. Nothing else of Pathbox's environment is passed on.",
    ],
    ["cwd", "a directory", "Where it runs."],
    ["url", "an http or https URL", "Instead of `command`: a server that speaks Streamable HTTP."],
    ["headers", "as `env`", "Sent with each request, for example `Authorization`."],
    [
        "oauth",
        "a table: `token_url`, `client_id`, `client_secret` and `refresh_token` (each as in `env`), `scope`",
        "How access tokens are obtained: with the refresh token if there is one, else with client credentials. They are renewed before they expire, and when one is refused.",
    ],
    ["tenants", "a list of tenants", "Tenants that may use the server; all when not set."],
    ["allow", "a list of patterns with `*`", "Tools that may be called; all when not set."],
    ["deny", "a list of patterns with `*`", "Tools that may not be called, whatever `allow` says."],
    [
        "confirm",
        "a list of patterns with `*`",
        "Tools that need a person's confirmation. Tools that declare themselves destructive always need it.",
    ],
    ["timeout_ms", "100 to 600000; 60000 when not set", "How long one call may take."],
    [
        "start_timeout_ms",
        "1000 to 600000; 30000 when not set",
        "How long starting the server, and listing its tools, may take.",
    ],
    ["concurrency", "1 to 256; 16 when not set", "Concurrent calls."],
    [
        "trusted",
        "true or false; false when not set",
        "Whether arguments are sent unchecked. Otherwise the guard checks them first.",
    ],
    [
        "pinned",
        "true or false; false when not set",
        "Whether a tool that is new, or whose definition has changed, is blocked until `pathbox tools accept`.",
    ],
    ["protocol", "auto, 2025-11-25 or 2026-07-28; auto when not set", "The server's protocol version."],
];

/// What a child process gets of our environment.
const ENVIRONMENT: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "TEMP",
    "TMP",
    "SystemRoot",
    "USERPROFILE",
    "APPDATA",
    "LOCALAPPDATA",
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, Given>,
    cwd: Option<PathBuf>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, Given>,
    oauth: Option<OAuthEntry>,
    #[serde(default)]
    tenants: Vec<String>,
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    deny: Vec<String>,
    #[serde(default)]
    confirm: Vec<String>,
    timeout_ms: Option<u64>,
    start_timeout_ms: Option<u64>,
    concurrency: Option<usize>,
    #[serde(default)]
    trusted: bool,
    #[serde(default)]
    pinned: bool,
    protocol: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OAuthEntry {
    token_url: String,
    client_id: String,
    client_secret: Option<Given>,
    refresh_token: Option<Given>,
    scope: Option<String>,
}

impl OAuthEntry {
    fn read(self, environment: &BTreeMap<String, String>) -> Result<OAuth, String> {
        let url = reqwest::Url::parse(&self.token_url).map_err(|error| format!("token_url: {error}"))?;
        let is_here = url.host_str().is_some_and(|host| ["127.0.0.1", "[::1]", "localhost"].contains(&host));
        if url.scheme() != "https" && !(url.scheme() == "http" && is_here) {
            return Err("token_url has to be https, except on this machine".to_owned());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("token_url holds a name and password (use `client_secret`)".to_owned());
        }
        if self.client_secret.is_none() && self.refresh_token.is_none() {
            return Err("`client_secret` or `refresh_token` has to be there".to_owned());
        }
        let read = |given: Option<Given>| given.map(|given| given.read(environment)).transpose();
        Ok(OAuth {
            token_url: self.token_url,
            client_id: self.client_id,
            client_secret: read(self.client_secret)?,
            refresh_token: read(self.refresh_token)?,
            scope: self.scope,
        })
    }
}

/// A value, or where it is.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, `{ env = \"…\" }` or `{ file = \"…\" }`")]
enum Given {
    Text(String),
    Env { env: String },
    File { file: PathBuf },
}

impl std::fmt::Debug for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Given(…)")
    }
}

impl Given {
    fn read(&self, environment: &BTreeMap<String, String>) -> Result<Secret, String> {
        match self {
            Self::Text(text) => Ok(Secret::new(text.as_str())),
            Self::Env { env } => match environment.get(env).filter(|text| !text.is_empty()) {
                Some(text) => Ok(Secret::new(text.as_str())),
                None => Err(format!("the environment has no {env}")),
            },
            Self::File { file } => match std::fs::read_to_string(file) {
                Ok(text) => Ok(Secret::new(text.trim_end_matches(['\r', '\n']))),
                Err(error) => Err(format!("the file {} cannot be read ({error})", file.display())),
            },
        }
    }
}

impl Values {
    /// The tool servers, and what the bridge needs besides.
    pub(super) fn bridge(&self, environment: &BTreeMap<String, String>) -> Result<Options, ConfigError> {
        let mut servers: Vec<Server> = Vec::new();
        if let Some((file, entries)) = &self.tool_servers {
            for entry in entries {
                let name = entry.get("name").and_then(toml::Value::as_str).unwrap_or("(no name)").to_owned();
                let server = server(entry.clone(), environment).and_then(|server| fits(server, &servers));
                let server = server.map_err(|(key, problem)| ConfigError::Invalid {
                    key: format!("tools.server.{name:?}.{key}"),
                    origin: Source::File(file.clone()),
                    problem,
                    allowed: SERVER_SETTINGS
                        .iter()
                        .find(|row| row[0] == key)
                        .map_or("see docs/configuration.md", |row| row[1])
                        .to_owned(),
                })?;
                servers.push(server);
            }
        }
        let kept =
            ENVIRONMENT.iter().filter_map(|name| Some(((*name).to_owned(), environment.get(*name)?.clone())));
        let embeddings = self.url("tools.embeddings_url")?.map(|url| Embeddings {
            url,
            model: self.get("tools.embeddings_model").to_owned(),
            key: self.text("tools.embeddings_key").map(Secret::new),
        });
        Ok(Options { servers, environment: kept.collect(), embeddings })
    }

    /// Key, value and source of each tool server's settings, without what may be secret.
    pub(super) fn tool_rows(&self) -> Vec<[String; 3]> {
        let mut rows = Vec::new();
        for (file, entry) in
            self.tool_servers.iter().flat_map(|(file, all)| all.iter().map(move |entry| (file, entry)))
        {
            let name = entry.get("name").and_then(toml::Value::as_str).unwrap_or_default();
            for (key, value) in entry.as_table().into_iter().flatten().filter(|(key, _)| *key != "name") {
                let shown = match value {
                    toml::Value::Table(values) => values.keys().cloned().collect::<Vec<_>>().join(", "),
                    toml::Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                rows.push([
                    format!("tools.server.{name:?}.{key}"),
                    shown,
                    Source::File(file.clone()).to_string(),
                ]);
            }
        }
        rows
    }
}

type Wrong = (&'static str, String);

impl Entry {
    /// How the server is reached: a child process, or a URL.
    fn transport(&mut self, environment: &BTreeMap<String, String>) -> Result<Transport, Wrong> {
        let read = |key: &'static str, given: &BTreeMap<String, Given>| {
            let read = given.iter().map(|(name, value)| Ok((name.clone(), value.read(environment)?)));
            read.collect::<Result<BTreeMap<_, _>, String>>().map_err(|problem| (key, problem))
        };
        match (self.command.take(), self.url.take()) {
            (Some(command), None) if !command.trim().is_empty() => {
                if !self.headers.is_empty() {
                    return Err(("headers", "a server with `command` has none".to_owned()));
                }
                if self.oauth.is_some() {
                    return Err(("oauth", "a server with `command` has none".to_owned()));
                }
                Ok(Transport::Stdio {
                    command,
                    args: std::mem::take(&mut self.args),
                    env: read("env", &self.env)?,
                    cwd: self.cwd.take(),
                })
            }
            (None, Some(url)) => {
                let is_http = reqwest::Url::parse(&url).is_ok_and(|url| {
                    ["http", "https"].contains(&url.scheme())
                        && url.username().is_empty()
                        && url.password().is_none()
                });
                if !is_http {
                    return Err((
                        "url",
                        "it is not an http or https URL, or holds a name and password (use `headers`)"
                            .to_owned(),
                    ));
                }
                if !self.env.is_empty() || !self.args.is_empty() || self.cwd.is_some() {
                    return Err(("url", "a server with `url` has no `args`, `env` or `cwd`".to_owned()));
                }
                if self.oauth.is_some()
                    && self.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"))
                {
                    return Err(("oauth", "`headers` has an Authorization already".to_owned()));
                }
                let oauth = self.oauth.take().map(|oauth| oauth.read(environment)).transpose();
                Ok(Transport::Http {
                    url,
                    headers: read("headers", &self.headers)?,
                    oauth: oauth.map_err(|problem| ("oauth", problem))?,
                })
            }
            _ => Err(("command", "exactly one of `command` and `url` has to be there".to_owned())),
        }
    }
}

fn server(entry: toml::Value, environment: &BTreeMap<String, String>) -> Result<Server, Wrong> {
    let mut entry: Entry =
        entry.try_into().map_err(|error: toml::de::Error| ("*", error.message().to_owned()))?;
    let mut letters = entry.name.chars();
    let is_name = letters.next().is_some_and(|c| c.is_ascii_lowercase())
        && letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_')
        && entry.name.len() <= 32;
    if !is_name {
        return Err(("name", format!("{:?} does not fit", entry.name)));
    }
    let transport = entry.transport(environment)?;
    let millis =
        |key: &'static str, given: Option<u64>, default: u64, low: u64| match given.unwrap_or(default) {
            n if (low..=600_000).contains(&n) => Ok(Duration::from_millis(n)),
            n => Err((key, format!("{n} is out of range"))),
        };
    let concurrency = entry.concurrency.unwrap_or(16);
    if !(1..=256).contains(&concurrency) {
        return Err(("concurrency", format!("{concurrency} is out of range")));
    }
    let patterns = |texts: Vec<String>| texts.into_iter().map(Pattern::new).collect();
    let tenants = entry.tenants.iter().map(|name| TenantId::parse(name.as_str()));
    Ok(Server {
        transport,
        tenants: tenants.collect::<Result<_, _>>().map_err(|error| ("tenants", error.to_string()))?,
        allow: patterns(entry.allow),
        deny: patterns(entry.deny),
        confirm: patterns(entry.confirm),
        timeout: millis("timeout_ms", entry.timeout_ms, 60_000, 100)?,
        start_timeout: millis("start_timeout_ms", entry.start_timeout_ms, 30_000, 1_000)?,
        concurrency,
        trusted: entry.trusted,
        pinned: entry.pinned,
        era: match entry.protocol.as_deref() {
            None | Some("auto") => Era::Auto,
            Some("2025-11-25") => Era::Handshake,
            Some("2026-07-28") => Era::Stateless,
            Some(other) => return Err(("protocol", format!("{other:?} is not known"))),
        },
        name: entry.name,
    })
}

/// Two servers of one name must be for different tenants: a name has to mean one thing to anyone who calls it.
fn fits(server: Server, before: &[Server]) -> Result<Server, Wrong> {
    let clash = before.iter().filter(|other| other.name == server.name).any(|other| {
        other.tenants.is_empty()
            || server.tenants.is_empty()
            || other.tenants.iter().any(|tenant| server.tenants.contains(tenant))
    });
    if clash {
        Err(("name", "another server has this name, for the same tenants".to_owned()))
    } else {
        Ok(server)
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
        let mut environment: BTreeMap<String, String> =
            BTreeMap::from([("HOME".into(), "/h".into()), ("PATH".into(), "/bin".into())]);
        environment.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let sources = Sources { environment, file: Some(path), ..Sources::default() };
        Values::read(&sources)?.config(&sources.environment)
    }

    #[test]
    fn a_server_is_read_with_its_keys_from_elsewhere_and_they_are_never_printed() {
        let file = r#"
            [[tools.server]]
            name = "github"
            command = "npx"
            args = ["-y", "server-github"]
            env = { TOKEN = { env = "GH_TOKEN" } }
            confirm = ["delete_*"]
            [[tools.server]]
            name = "search"
            url = "https://mcp.example/mcp"
            headers = { Authorization = { env = "SEARCH_AUTH" } }
            tenants = ["acme"]
        "#;
        let env = [("GH_TOKEN", "ghp-planted"), ("SEARCH_AUTH", "Bearer planted"), ("SECRET", "planted")];
        let bridge = load(file, &env).unwrap().bridge;
        assert_eq!(bridge.servers.len(), 2);
        assert_eq!(bridge.environment.keys().collect::<Vec<_>>(), ["HOME", "PATH"]);
        let Transport::Stdio { env, .. } = &bridge.servers[0].transport else { panic!() };
        assert_eq!(env["TOKEN"].expose(), "ghp-planted");
        assert!(!format!("{bridge:?}").contains("planted"));
        assert!(load(file, &[]).unwrap_err().to_string().contains("the environment has no GH_TOKEN"));
    }

    #[test]
    fn invalid_entries_of_a_server_are_named() {
        for (body, said) in [
            ("name = \"x\"", "exactly one of `command` and `url`"),
            ("name = \"x\"\ncommand = \"a\"\nurl = \"http://b/\"", "exactly one"),
            ("name = \"X\"\ncommand = \"a\"", "\"X\" does not fit"),
            ("name = \"x\"\nurl = \"ftp://b/\"", "not an http or https URL"),
            ("name = \"x\"\nurl = \"http://u:planted@b/\"", "not an http or https URL"),
            (
                "name = \"x\"\nurl = \"http://b/\"\noauth = { token_url = \"http://c/\", client_id = \"i\", client_secret = \"planted\" }",
                "token_url has to be https",
            ),
            (
                "name = \"x\"\nurl = \"http://b/\"\noauth = { token_url = \"https://c/\", client_id = \"i\" }",
                "`client_secret` or `refresh_token` has to be there",
            ),
            (
                "name = \"x\"\ncommand = \"a\"\noauth = { token_url = \"https://c/\", client_id = \"i\", client_secret = \"planted\" }",
                "a server with `command` has none",
            ),
            ("name = \"x\"\ncommand = \"a\"\ntimeout_ms = 1", "1 is out of range; allowed: 100 to 600000"),
            ("name = \"x\"\ncommand = \"a\"\nconcurrency = 0", "0 is out of range"),
            ("name = \"x\"\ncommand = \"a\"\nprotocol = \"1999\"", "\"1999\" is not known"),
            ("name = \"x\"\ncommand = \"a\"\nalow = []", "unknown field `alow`"),
            ("name = \"x\"\ncommand = \"a\"\ntenants = [\"a b\"]", "tenant id holds"),
            (
                "name = \"x\"\ncommand = \"a\"\n[[tools.server]]\nname = \"x\"\ncommand = \"b\"",
                "another server has this name",
            ),
        ] {
            let error = load(&format!("[[tools.server]]\n{body}\n"), &[]).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("planted"), "{body} -> {error}");
        }
        let both = "[[tools.server]]\nname=\"x\"\ncommand=\"a\"\ntenants=[\"a\"]\n[[tools.server]]\nname=\"x\"\ncommand=\"b\"\ntenants=[\"b\"]\n";
        assert!(load(both, &[]).is_ok(), "one name, a set of credentials for each tenant");
    }
}
