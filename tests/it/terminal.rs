//! What a person meets in a terminal: help, completions, manual pages, and flags that messages recommend.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use regex::Regex;

use crate::support::server::command;

fn answer(args: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_pathbox")).args(args).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Every subcommand, as the words that lead to it, with its long flags. They come from the help that a person reads.
fn commands() -> BTreeMap<Vec<String>, BTreeSet<String>> {
    let flag = Regex::new(r"(?m)^\s+(?:-\w, )?(--[a-z][a-z0-9-]*)").unwrap();
    let (mut found, mut pending) = (BTreeMap::new(), vec![Vec::<String>::new()]);
    while let Some(words) = pending.pop() {
        let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
        args.push("--help");
        let help = answer(&args);
        let listed = help.split("Commands:\n").nth(1).unwrap_or_default();
        for line in listed.lines().take_while(|line| !line.is_empty()) {
            let name = line.split_whitespace().next().unwrap();
            if line.starts_with("  ") && !line.starts_with("   ") && name != "help" {
                pending.push(words.iter().cloned().chain([name.to_owned()]).collect());
            }
        }
        let flags = flag.captures_iter(&help).map(|found| found[1].to_owned()).collect();
        found.insert(words, flags);
    }
    found
}

/// The source, the pages and the files that are installed.
fn texts() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pending: Vec<PathBuf> =
        ["src", "docs", "examples", "deploy", "packaging", "README.md", "CONTRIBUTING.md"]
            .iter()
            .map(|name| root.join(name))
            .collect();
    let mut found = Vec::new();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
            pending.extend(entries.filter(|path| !path.ends_with("docs/adr")));
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            found.push((path, text));
        }
    }
    found
}

#[test]
fn flags_that_messages_and_pages_recommend_exist() {
    let commands = commands();
    let every: BTreeSet<&String> = commands.values().flatten().collect();
    assert!(commands.len() > 20 && every.len() > 30, "{commands:?}");
    let span = Regex::new(r"`([^`\n]*)`").unwrap();
    let flag = Regex::new(r"(?:^|[\s`])(--[a-z][a-z0-9-]*)").unwrap();
    let setting = Regex::new(r"--set[ =]'?([a-z_.0-9]+)=").unwrap();
    let settings = answer(&["config", "--reference"]);
    // Flags of other programs that are quoted alone.
    let foreign = ["--security-opt", "--userns", "--token", "--omit"];
    let mut wrong = Vec::new();
    for (path, text) in texts() {
        for quoted in span.captures_iter(&text).map(|found| found[1].to_owned()) {
            for set in setting.captures_iter(&quoted) {
                if !settings.contains(&format!("`{}`", &set[1])) && !set[1].eq("key") {
                    wrong.push(format!(
                        "{}: `{quoted}` sets {}, which does not exist",
                        path.display(),
                        &set[1]
                    ));
                }
            }
            let words: Vec<String> = quoted.split_whitespace().map(str::to_owned).collect();
            // The guard's pages and rules quote flags of other programs.
            let may_be_foreign = path
                .components()
                .any(|part| Path::new(part.as_os_str()).file_stem().is_some_and(|stem| stem == "guard"));
            let ours = words
                .first()
                .is_some_and(|word| word == "pathbox" || (word.starts_with("--") && !may_be_foreign));
            if !ours {
                continue;
            }
            // The longest subcommand that the words begin with.
            let named = (0..words.len())
                .rev()
                .find_map(|end| (words[0] == "pathbox").then(|| commands.get(words.get(1..=end)?)).flatten());
            for name in flag.captures_iter(&quoted).map(|found| found[1].to_owned()) {
                let known = named.map_or_else(|| every.contains(&name), |flags| flags.contains(&name));
                if !known && !foreign.contains(&name.as_str()) {
                    wrong.push(format!("{}: `{quoted}` names {name}, which does not exist", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn completions_complete_in_a_shell_and_parse_in_each() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pathbox");
    std::fs::write(&file, answer(&["completions", "bash"])).unwrap();
    let script = "source \"$0\"; COMP_WORDS=(pathbox ser); COMP_CWORD=1; _pathbox pathbox ser pathbox; \
                  echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["--norc", "-c", script]).arg(&file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "serve", "{output:?}");
    assert!(answer(&["completions", "zsh"]).starts_with("#compdef pathbox"));
    assert!(answer(&["completions", "fish"]).contains("complete -c pathbox"));
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let dir = tempfile::tempdir().unwrap();
    let first = answer(&["man", dir.path().join("man1").to_str().unwrap()]);
    assert!(first.trim().ends_with("man1/pathbox.1"), "{first}");
    for words in commands().keys() {
        let name = [&["pathbox".to_owned()], words.as_slice()].concat().join("-");
        let page = std::fs::read_to_string(dir.path().join(format!("man1/{name}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains("SYNOPSIS"), "{name}: {page}");
    }
}

/// Runs it on a pseudo-terminal that Python makes, and returns what it showed once Ctrl-D has ended it.
#[test]
fn serve_in_a_terminal_says_that_it_waits_for_a_client_and_how_to_configure_one() {
    let script = "import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen = b''
while b'pathbox demo' not in seen:
    seen += os.read(fd, 4096)
os.write(fd, b'\\x04')
while True:
    try:
        more = os.read(fd, 4096)
    except OSError:
        break
    if not more:
        break
    seen += more
_, status = os.waitpid(pid, 0)
print(seen.decode())
sys.exit(os.waitstatus_to_exitcode(status))";
    let data = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut python = Command::new("python3");
        python.args(["-c", script, env!("CARGO_BIN_EXE_pathbox")]).args(args);
        let prepared = command(data.path());
        python.env_clear().envs(prepared.get_envs().filter_map(|(name, value)| Some((name, value?))));
        python.output().unwrap()
    };
    let output = run(&["serve", "--set", "host.pool=0"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("waiting for an MCP client") && text.contains(r#""mcpServers""#), "{text}");
    assert!(text.contains(env!("CARGO_BIN_EXE_pathbox")), "{text}");
    assert!(!text.contains('\u{1b}'), "no colours in words for a log: {text:?}");
}

#[test]
fn help_shows_examples_without_colour_when_output_is_not_a_terminal() {
    for args in [&["--help"][..], &["serve", "--help"], &["run", "--help"], &["host", "--help"]] {
        let help = answer(args);
        assert!(help.contains("Example") && !help.contains('\u{1b}'), "{args:?}: {help}");
    }
}

/// Members that are not camelCase, with where they are. Below `findings` and the like the names are other people's.
fn odd_members(place: &str, value: &serde_json::Value, odd: &mut Vec<String>) {
    match value {
        serde_json::Value::Array(items) => items.iter().for_each(|item| odd_members(place, item, odd)),
        serde_json::Value::Object(object) => {
            for (name, inner) in object {
                let place = format!("{place}.{name}");
                if !name.chars().all(|letter| letter.is_ascii_alphanumeric())
                    || name.starts_with(|letter: char| letter.is_ascii_uppercase())
                {
                    odd.push(place.clone());
                }
                let of_others =
                    ["findings", "rules", "formats", "actions", "allowed", "wouldRedact", "parameters"];
                if !(of_others.contains(&name.as_str()) && inner.is_object()) {
                    odd_members(&place, inner, odd);
                }
            }
        }
        _ => {}
    }
}

#[test]
fn json_has_one_shape_in_every_command() {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("letter.txt");
    std::fs::write(&file, "write to ann@example.com\n").unwrap();
    let file = file.display().to_string();
    let code = "import json\nprint('bob@example.com')\n{'snake_case': 1}";
    let mut odd = Vec::new();
    for arguments in [
        &["keys", "add", "--name", "ci", "--tenant", "acme", "--json"][..],
        &["keys", "ls", "--json"],
        &["run", "--conversation", "c", "--json", code],
        &["contexts", "ls", "--all", "--json"],
        &["executions", "ls", "--json"],
        &["usage", "--json"],
        &["audit", "verify", "--json"],
        &["workflows", "ls", "--json"],
        &["guard", "rules", "--json"],
        &["guard", "check", "--json", &file],
        &["packs", "ls", "--json"],
        &["config", "--json"],
        &["container", "down", "--json"],
    ] {
        let output = command(data.path()).args(arguments).stdin(Stdio::null()).output().unwrap();
        // 1: the guard has found something.
        assert!(
            matches!(output.status.code(), Some(0 | 1)),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{arguments:?}: {error}: {}", String::from_utf8_lossy(&output.stdout))
        });
        assert!(value.is_object() || value.is_array(), "{arguments:?}: {value}");
        odd_members(&arguments.join(" "), &value, &mut odd);
    }
    assert!(odd.is_empty(), "{odd:#?}");
}

#[test]
fn listing_tool_servers_without_any_is_not_an_error() {
    let data = tempfile::tempdir().unwrap();
    let ask =
        |args: &[&str]| command(data.path()).arg("tools").args(args).stdin(Stdio::null()).output().unwrap();
    for args in [["ls"].as_slice(), &["check"], &["search", "issues"]] {
        let output = ask(args);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("[[tools.server]]"), "{args:?}: {output:?}");
    }
    let listed: serde_json::Value = serde_json::from_slice(&ask(&["ls", "--json"]).stdout).unwrap();
    assert_eq!(listed, serde_json::json!([]));
    let called = ask(&["call", "github.search", "{}"]);
    assert!(String::from_utf8_lossy(&called.stderr).contains("[[tools.server]]"), "{called:?}");
    assert!(!called.status.success(), "what cannot be done is one");
}
