//! The pages hold: links lead somewhere, snippets parse, settings and policies load, what is said of the build is so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use regex::Regex;
use serde_json::Value;

use crate::support::server::command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page, without the records of decisions.
fn pages() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for dir in ["", "docs", "benches", "examples", "tests/clients"] {
        let entries = std::fs::read_dir(root().join(dir)).unwrap().map(|entry| entry.unwrap().path());
        let pages = entries.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
        found.extend(pages.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())));
    }
    assert!(found.len() > 15, "{found:?}");
    found
}

/// The fenced blocks of a page: (the words after the fence, text).
fn blocks(page: &str) -> Vec<(String, String)> {
    let (mut found, mut open) = (Vec::new(), None::<(String, String)>);
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(words), None) => open = Some((words.trim().to_owned(), String::new())),
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some((_, text))) => text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    found
}

/// A heading as the part of a link after `#`.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

#[test]
fn links_lead_to_files_and_headings_that_are_there() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let mut wrong = Vec::new();
    for (path, text) in pages() {
        for found in link.captures_iter(&text).map(|found| found[1].to_owned()) {
            if found.contains("://") || found.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = found.split_once('#').unwrap_or((&found, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            let there = if heading.is_empty() {
                target.exists()
            } else {
                std::fs::read_to_string(&target).is_ok_and(|text| {
                    text.lines()
                        .any(|line| line.starts_with('#') && anchor(line.trim_start_matches('#')) == heading)
                })
            };
            if !there {
                wrong.push(format!("{}: {found}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn snippets_parse_in_their_language() {
    let mut kinds = BTreeSet::new();
    for (path, text) in pages() {
        for (words, block) in blocks(&text) {
            let kind = words.split(' ').next().unwrap_or_default().to_owned();
            let said = match kind.as_str() {
                "json" => serde_json::from_str::<Value>(&block).map(drop).map_err(|error| error.to_string()),
                "toml" => toml::from_str::<toml::Table>(&block).map(drop).map_err(|error| error.to_string()),
                "sh" => parses("bash", &["--norc", "-n", "-c", &block]),
                "python" => parses("python3", &["-c", "import ast, sys; ast.parse(sys.argv[1])", &block]),
                _ => Ok(()),
            };
            assert!(said.is_ok(), "{}: {said:?}\n{block}", path.display());
            kinds.insert(kind);
        }
    }
    for kind in ["json", "toml", "sh"] {
        assert!(kinds.contains(kind), "{kinds:?}");
    }
    assert!(parses("bash", &["--norc", "-n", "-c", "if"]).is_err(), "the check can fail");
}

fn parses(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Whether `pathbox` takes a file of settings (`config`) or a policy (`guard`).
fn loads(text: &str, policy: bool) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file.toml");
    std::fs::write(&file, text).unwrap();
    let mut pathbox = command(dir.path());
    pathbox
        .env("TRACKER_TOKEN", "a-token-of-the-tracker")
        .env("APP_TOKEN", "a-token-of-the-app")
        .stdin(Stdio::null());
    match policy {
        true => pathbox.args(["guard", "check", "-", "--policy"]).arg(&file),
        false => pathbox.arg("--config").arg(&file).arg("config"),
    };
    let output = pathbox.output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn settings_and_policies_of_the_pages_load() {
    let page = std::fs::read_to_string(root().join("docs/policies.md")).unwrap();
    let recipes = blocks(&page);
    assert!(recipes.iter().filter(|(words, _)| words == "toml guard").count() > 3, "{recipes:?}");
    for (words, block) in recipes.iter().filter(|(words, _)| words.starts_with("toml")) {
        let said = loads(block, words.ends_with("guard"));
        assert!(said.is_ok(), "{said:?}\n{block}");
    }
    let service = std::fs::read_to_string(root().join("packaging/debian/pathbox.toml")).unwrap();
    assert_eq!(loads(&service, false), Ok(()));
    assert!(loads("[sandbox]\nallow_outt = \"x\"", false).is_err(), "the check can fail");
    assert!(loads("mode = \"maybe\"", true).is_err(), "the check can fail");
}

/// Each file of a client names a command line that this program understands.
#[test]
fn the_clients_configurations_start_the_server() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("examples/clients")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let config: Value = match path.extension().unwrap().to_str().unwrap() {
            "toml" => serde_json::to_value(toml::from_str::<toml::Table>(&text).unwrap()).unwrap(),
            _ => serde_json::from_str(&text).unwrap(),
        };
        let servers = ["mcpServers", "servers", "mcp_servers"].iter().find_map(|name| config.get(*name));
        let entry = &servers.unwrap_or_else(|| panic!("{path:?}: {config}"))["pathbox"];
        assert_eq!(entry["command"], "pathbox", "{path:?}");
        let args: Vec<String> = serde_json::from_value(entry["args"].clone()).unwrap();
        let data = tempfile::tempdir().unwrap();
        let mut server = crate::support::server::Server::start_with(command(data.path()).args(&args));
        assert!(
            server.request("tools/list", serde_json::json!({}))["result"]["tools"].is_array(),
            "{path:?}"
        );
        seen += 1;
    }
    assert_eq!(seen, 6);
}

#[test]
fn the_first_command_and_the_scripts_that_the_pages_name_exist() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let profile = Regex::new(r"--profile ([a-z]+)").unwrap();
    let script = Regex::new(r"\b(scripts/[a-z_.-]*[a-z])").unwrap();
    let mut profiles = BTreeSet::new();
    for (path, text) in pages() {
        for found in profile.captures_iter(&text) {
            assert!(
                manifest.contains(&format!("[profile.{}]", &found[1])),
                "{path:?} names profile {}",
                &found[1]
            );
            profiles.insert(found[1].to_owned());
        }
        for found in script.captures_iter(&text) {
            assert!(root().join(&found[1]).exists(), "{path:?} names {}", &found[1]);
        }
    }
    assert!(profiles.contains("demo"), "{profiles:?}");
}
