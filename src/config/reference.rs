//! Renders settings for people: the reference page, and the values of this process with their sources.

use std::fmt::Write;

use super::load::Values;
use super::table::settings;
use super::tenants::TENANT_SETTINGS;
use super::tools::SERVER_SETTINGS;

/// `docs/configuration.md`; a test fails when the file differs.
pub fn page() -> String {
    let mut out = String::from(
        "# Settings\n\nGenerated from `src/config`. Flags (`--set key=value`) win over the environment, the \
         environment over the file (`--config`, `PATHBOX_CONFIG`), the file over defaults. Secrets may come from a \
         file named by `<NAME>_FILE`. The server does not start with an unknown name or an invalid value.\n\n\
         | key | environment | default | allowed | what it does |\n| --- | --- | --- | --- | --- |\n",
    );
    for s in settings() {
        let env = s.env.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let default = if s.default.is_empty() { "–".to_owned() } else { format!("`{}`", s.default) };
        let secret = if s.secret { " (secret)" } else { "" };
        let _ =
            writeln!(out, "| `{}`{secret} | {env} | {default} | {} | {} |", s.key, s.allowed, s.doc.trim());
    }
    out.push_str(
        "\n## Settings of a tenant\n\nIn the file only, as a table under the tenant's name: `[tenants.\"acme\"]`. Other values \
         come from the deployment. A sandbox keeps the settings that it was made with; end a context to apply new \
         ones.\n\n| key | allowed | what it does |\n| --- | --- | --- |\n",
    );
    for s in TENANT_SETTINGS {
        let _ = writeln!(out, "| `{}` | {} | {} |", s.key, s.allowed, s.doc.trim());
    }
    out.push_str(
        "\n## Tool servers\n\nIn the file only, one `[[tools.server]]` for each: other MCP servers whose tools programs may call, see \
         `docs/code-mode.md`.\n\n| key | allowed | what it does |\n| --- | --- | --- |\n",
    );
    for [key, allowed, doc] in SERVER_SETTINGS {
        let _ = writeln!(out, "| `{key}` | {allowed} | {doc} |");
    }
    out
}

/// A setting with its value in this process.
#[derive(Debug, serde::Serialize)]
pub struct Row {
    /// Its name.
    pub key: String,
    /// Its value; nothing when it is not set, words instead of a secret.
    pub value: Option<String>,
    /// What is used instead of a value that is not set, where something is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effective: Option<String>,
    /// Where the value came from.
    pub source: String,
}

/// Every setting with its value and its source.
pub fn rows(values: &Values) -> Vec<Row> {
    let own = settings().map(|s| {
        let value = match values.get(s.key) {
            "" => None,
            _ if s.secret => Some("(set, not shown)".to_owned()),
            text => Some(text.to_owned()),
        };
        let effective = value.is_none().then(|| effective(s.key, values)).flatten();
        Row { key: s.key.to_owned(), value, effective, source: values.source(s.key).to_string() }
    });
    let tables = values.tenant_rows().into_iter().chain(values.tool_rows());
    own.chain(tables.map(|[key, value, source]| Row { key, value: Some(value), effective: None, source }))
        .collect()
}

/// What happens without a value of these settings.
fn effective(key: &str, values: &Values) -> Option<String> {
    let below = |name: &str| Some(values.data_dir().ok()?.join(name).display().to_string());
    match key {
        "database_url" => Some(format!("SQLite, {}", below(crate::store::DATABASE_FILE)?)),
        "secret_keys" => below(crate::store::KEY_FILE),
        "objects.url" => below("outputs"),
        "e2b.api_key" if cfg!(target_os = "linux") => Some("sandboxes of this machine".to_owned()),
        "e2b.api_url" if !values.get("e2b.api_key").is_empty() => {
            Some(format!("https://api.{}", values.get("e2b.domain")))
        }
        "identity.conversation" => Some("one for each process".to_owned()),
        "log.filter" => Some("warn; servers: warn,pathbox=info".to_owned()),
        "host.python" => Some("python3 of PATH".to_owned()),
        _ => None,
    }
}
