//! Files that are generated and checked in are what the program would generate now.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn checked_in(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn pathbox(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_pathbox")).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_manifest_is_current() {
    let now = pathbox(&["manifest"]);
    assert!(checked_in("mcp-manifest.json") == now, "run: cargo run -- manifest > mcp-manifest.json");
}

#[test]
fn the_registry_entry_is_current_and_within_the_registrys_limits() {
    let now = pathbox(&["manifest", "--registry"]);
    assert!(checked_in("server.json") == now, "run: cargo run -- manifest --registry > server.json");
    let entry: Value = serde_json::from_str(&now).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    assert!(text(&entry["description"]).chars().count() <= 100);
    assert_eq!(text(&entry["name"]).matches('/').count(), 1);
    let manifest: Value = serde_json::from_str(&checked_in("mcp-manifest.json")).unwrap();
    for package in entry["packages"].as_array().unwrap() {
        assert_eq!((&package["version"], &entry["version"]), (&manifest["version"], &manifest["version"]));
    }
}

#[test]
fn the_configuration_page_is_current() {
    let now = pathbox(&["config", "--reference"]);
    let hint = "run: cargo run -- config --reference > docs/configuration.md";
    assert!(checked_in("docs/configuration.md") == now, "{hint}");
}

#[test]
fn every_error_code_has_its_paragraph() {
    let page = checked_in("docs/errors.md");
    for code in pathbox::domain::ErrorCode::ALL {
        assert!(page.contains(&format!("## `{code}`")), "docs/errors.md lacks {code}");
    }
}

#[test]
#[ignore = "needs the npm package @anthropic-ai/mcpb: scripts/test installs it"]
fn the_official_validator_takes_the_manifest() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mcpb = root.join("target/test-env/mcpb/node_modules/.bin/mcpb");
    let output =
        Command::new(mcpb).args(["validate", "mcp-manifest.json"]).current_dir(root).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    // The validator must be able to say no.
    let broken = tempfile::tempdir().unwrap();
    let mut manifest: Value = serde_json::from_str(&checked_in("mcp-manifest.json")).unwrap();
    manifest["manifest_version"] = "0.5".into();
    std::fs::write(broken.path().join("m.json"), manifest.to_string()).unwrap();
    let mcpb = root.join("target/test-env/mcpb/node_modules/.bin/mcpb");
    let output = Command::new(mcpb).args(["validate", "m.json"]).current_dir(broken.path()).output().unwrap();
    assert!(!output.status.success());
}

#[test]
fn every_instrument_has_its_row() {
    let page = checked_in("docs/doors.md");
    let text = pathbox::telemetry::metrics::render(pathbox::telemetry::metrics::Format::Prometheus);
    for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(page.contains(&format!("`{name}`")), "docs/doors.md lacks {name}");
    }
}

/// What the official library makes of the manifest for a user who filled in nothing.
#[test]
#[ignore = "needs the npm package @anthropic-ai/mcpb: scripts/test installs it"]
fn the_manifest_starts_the_server_with_nothing_filled_in_from_any_directory() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let home = tempfile::tempdir().unwrap();
    let bundle = home.path().join("bundle");
    std::fs::create_dir_all(bundle.join("server")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_pathbox"), bundle.join("server/pathbox")).unwrap();
    let script = "
        import { readFileSync } from 'node:fs'
        import { createRequire } from 'node:module'
        const { getMcpConfigForManifest } = await import(createRequire(process.cwd() + '/').resolve('@anthropic-ai/mcpb'))
        const [file, extensionPath, HOME, filled] = process.argv.slice(1)
        const config = await getMcpConfigForManifest({
          manifest: JSON.parse(readFileSync(file)), extensionPath, pathSeparator: '/',
          systemDirs: { HOME, DESKTOP: HOME, DOCUMENTS: HOME, DOWNLOADS: HOME }, userConfig: JSON.parse(filled),
        })
        console.log(JSON.stringify(config))";
    for (filled, data) in [("{}", ".local/share/pathbox"), (r#"{"data_dir": "~/elsewhere"}"#, "elsewhere")] {
        let output = Command::new(root.join("target/test-env/mcp-js/node_modules/node/bin/node"))
            .args(["--input-type=module", "-e", script, "--"])
            .arg(root.join("mcp-manifest.json"))
            .args([&bundle, home.path()])
            .arg(filled)
            .current_dir(root.join("target/test-env/mcpb"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let config: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let mut command = Command::new(text(&config["command"]));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home.path()).current_dir("/");
        command.args(config["args"].as_array().unwrap().iter().map(text));
        command.envs(config["env"].as_object().unwrap().iter().map(|(name, value)| (name, text(value))));
        let mut server = crate::support::server::Server::start_with(&mut command);
        let result = server.python("6 * 7");
        assert_eq!(result["structuredContent"]["output"], "42", "{config}: {result}");
        assert!(home.path().join(data).join("pathbox.db").exists(), "{config}");
    }
    let left: Vec<_> =
        std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains('$')), "{left:?}");
}
