//! What comes back of a program: a row for each, in `tests/fixtures/results`, asked over MCP of the local host.
//!
//! The rows of one file run in their order in one context. A row has `code` and what its answer holds: the texts `says` in
//! that order (in any order with `any`), never one of `never`, the exit status `exit` (0 unless it says otherwise), the
//! number of pictures `images`, the `state`. `recording` names the recorded answer of E2B's own server to such a program,
//! `provider` says how that differs.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::server::{Server, command};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    row: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    code: String,
    #[serde(default)]
    says: Vec<String>,
    #[serde(default)]
    any: bool,
    #[serde(default)]
    never: Vec<String>,
    #[serde(default)]
    exit: i64,
    images: Option<usize>,
    state: Option<String>,
    recording: Option<String>,
    #[expect(dead_code, reason = "for whoever reads the table")]
    provider: Option<String>,
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn table(name: &str) -> Vec<Row> {
    let text = std::fs::read_to_string(fixture("results").join(format!("{name}.toml"))).unwrap();
    toml::from_str::<Table>(&text).unwrap_or_else(|error| panic!("{name}: {error}")).row
}

impl Row {
    /// What is wrong with an answer.
    fn wrong(&self, answer: &Value) -> Vec<String> {
        let blocks = answer["content"].as_array().cloned().unwrap_or_default();
        let texts = blocks.iter().filter_map(|block| {
            ["text", "name"].into_iter().find_map(|member| block[member].as_str().map(str::to_owned))
        });
        let text = texts.collect::<Vec<_>>().join("\n");
        let mut wrong = Vec::new();
        let mut rest = &*text;
        for said in &self.says {
            match rest.find(said.as_str()) {
                Some(_) if self.any => {}
                Some(at) => rest = &rest[at + said.len()..],
                None => wrong.push(format!("does not say {said:?}")),
            }
        }
        wrong.extend(
            self.never.iter().filter(|never| text.contains(*never)).map(|never| format!("says {never:?}")),
        );
        let data = &answer["structuredContent"];
        if data["exitCode"] != self.exit {
            wrong.push(format!("exit status {}", data["exitCode"]));
        }
        let images = blocks.iter().filter(|block| block["type"] == "image").count();
        if self.images.is_some_and(|wanted| wanted != images) {
            wrong.push(format!("{images} pictures"));
        }
        if self.state.as_ref().is_some_and(|state| data["state"] != **state) {
            wrong.push(format!("state {}", data["state"]));
        }
        if !wrong.is_empty() {
            wrong.push(format!("it says: {text}"));
        }
        wrong
    }
}

/// Asks every row of the files, in one context each, and says what is wrong.
fn ask(python: Option<PathBuf>, files: &[(&str, &str)]) -> Vec<String> {
    let data = tempfile::tempdir().unwrap();
    let mut command = command(data.path());
    command.arg("serve");
    if let Some(python) = python {
        command.env("PATHBOX_HOST_PYTHON", python);
    }
    let mut server = Server::start_with(&mut command);
    let mut wrong = Vec::new();
    for (file, language) in files {
        let meta = json!({"conversationId": format!("table-{file}")});
        for row in table(file) {
            let arguments = json!({"code": row.code, "language": language});
            let answer = server.call(arguments, meta.clone());
            let faults = row.wrong(&answer);
            if !faults.is_empty() {
                wrong.push(format!("{file}: {}\n  {}", row.code, faults.join("\n  ")));
            }
        }
    }
    wrong
}

#[test]
#[ignore = "needs node: scripts/test installs it"]
fn a_result_shows_what_the_program_printed() {
    let files =
        [("python", "python"), ("bash", "bash"), ("javascript", "javascript"), ("typescript", "typescript")];
    let wrong = ask(None, &files);
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
#[ignore = "needs pandas and matplotlib: scripts/test installs them"]
fn tables_and_pictures_come_back() {
    let python = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/test-env/science/bin/python");
    let wrong = ask(Some(python), &[("science", "python")]);
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_table_is_long_and_its_recordings_are_there() {
    let rows: Vec<Row> =
        ["python", "science", "bash", "javascript", "typescript"].into_iter().flat_map(table).collect();
    assert!(rows.len() >= 150, "{} rows", rows.len());
    for name in rows.iter().filter_map(|row| row.recording.as_deref()) {
        assert!(fixture("e2b-streams").join(format!("{name}.ndjson")).is_file(), "{name}");
    }
}
