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
    let text = pathbox::telemetry::metrics::render();
    for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(page.contains(&format!("`{name}`")), "docs/doors.md lacks {name}");
    }
}
