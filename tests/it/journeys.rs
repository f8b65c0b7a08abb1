//! What a new user does, from an empty home: each package installed and started, each example run. The journeys themselves
//! are in tests/journeys, to be run by hand as well.

use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_pathbox");

fn ok(command: &mut Command) -> String {
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    out
}

#[test]
#[ignore = "needs node, npm, uv and the npm package @anthropic-ai/mcpb: scripts/test installs them"]
fn each_package_installs_and_starts() {
    let dir = tempfile::tempdir().unwrap();
    let (stripped, out) = (dir.path().join("pathbox"), dir.path().join("packages"));
    ok(Command::new("strip").arg("-o").arg(&stripped).arg(PROGRAM));
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let package = ["scripts/package", "--fast", "--target", &host, "--binary"];
    ok(Command::new("python3").args(package).arg(&stripped).arg("--out").arg(&out));
    let said = ok(Command::new("python3").arg("tests/journeys/packages.py").arg(&stripped).arg(&out));
    for kind in ["archive", "wheel", "npm", "mcpb", "deb", "sbom", "checksums"] {
        assert!(said.contains(&format!("{kind}: ok")), "{said}");
    }
    // The check can fail: a package that was changed is not what its checksum says.
    std::fs::write(out.join("server.json"), "{}").unwrap();
    let mut again = Command::new("python3");
    again.arg("tests/journeys/packages.py").arg(&stripped).arg(&out).arg("checksums");
    assert!(!again.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap().status.success());
}

#[test]
#[ignore = "needs the agent frameworks: scripts/test installs them"]
fn each_example_runs_unchanged() {
    let said = ok(Command::new("python3").args(["tests/journeys/examples.py", PROGRAM]));
    let examples = ["langchain", "openai", "pydantic_ai", "llama_index", "ai-sdk", "curl", "router"];
    for name in examples {
        assert!(said.lines().any(|line| line.starts_with(name) && line.contains(": ok")), "{name}: {said}");
    }
}

#[test]
#[ignore = "needs PostgreSQL: scripts/test installs it"]
fn an_operator_serves_from_two_replicas() {
    let said = ok(Command::new("python3").args(["tests/journeys/server.py", PROGRAM]));
    assert!(said.contains("server: ok"), "{said}");
}

#[test]
#[ignore = "needs wheels of pandas, matplotlib and openpyxl: scripts/test fetches them"]
fn a_data_scientist_makes_a_template_and_gets_a_chart_and_a_spreadsheet() {
    let wheels = "target/test-env/wheels";
    let said = ok(Command::new("python3").args(["tests/journeys/data_scientist.py", PROGRAM, wheels]));
    assert!(said.contains("data scientist: ok"), "{said}");
}
