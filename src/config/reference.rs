//! Renders settings for people: the reference page, and the values of this process with their sources.

use std::fmt::Write;

use super::load::{Values, settings};
use super::tenants::TENANT_SETTINGS;
use super::tools::SERVER_SETTINGS;

/// `docs/configuration.md`; a test fails when the file differs.
pub fn page() -> String {
    let mut out = String::from(
        "# Settings\n\nGenerated from `src/config`. Flags (`--set key=value`) win over the environment, the \
         environment over the file (`--config`, `PATHBOX_CONFIG`), the file over defaults. Secrets may come from a \
         file named by `<NAME>_FILE`. An unknown name or an impossible value stops the start.\n\n\
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
        "\n## A tenant's own\n\nIn the file only, as a table under the tenant's name: `[tenants.\"acme\"]`. What it does \
         not say is the deployment's. A sandbox is made with the settings of its moment; end a context to give it new \
         ones.\n\n| key | allowed | what it does |\n| --- | --- | --- |\n",
    );
    for s in TENANT_SETTINGS {
        let _ = writeln!(out, "| `{}` | {} | {} |", s.key, s.allowed, s.doc.trim());
    }
    out.push_str(
        "\n## Tool servers\n\nIn the file only, `[[tools.server]]` once for each: other MCP servers whose tools programs may call. \
         `docs/code-mode.md` says how.\n\n| key | allowed | what it does |\n| --- | --- | --- |\n",
    );
    for [key, allowed, doc] in SERVER_SETTINGS {
        let _ = writeln!(out, "| `{key}` | {allowed} | {doc} |");
    }
    out
}

/// One row a setting: key, value (secrets hidden), source.
pub fn rows(values: &Values) -> Vec<[String; 3]> {
    settings()
        .map(|s| {
            let value = match values.get(s.key) {
                "" => "–".to_owned(),
                _ if s.secret => "(set, not shown)".to_owned(),
                text => text.to_owned(),
            };
            [s.key.to_owned(), value, values.source(s.key).to_string()]
        })
        .chain(values.tenant_rows())
        .chain(values.tool_rows())
        .collect()
}
