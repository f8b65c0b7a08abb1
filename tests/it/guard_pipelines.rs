//! A table of personal data in every layout in which pandas, tabulate, sqlite3, Python and Node print one: nothing of it
//! is left, and what stands beside it is.
//!
//! `tests/fixtures/guard/layouts.py` and `layouts.mjs` make the texts, in one process each.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pathbox::guard::{Guard, Numbering};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Layouts {
    values: BTreeMap<String, Vec<String>>,
    rows: Value,
    texts: BTreeMap<String, String>,
}

/// Columns of kinds that are let through unless a policy says otherwise.
const LET_THROUGH: [&str; 3] = ["name", "address", "birth_date"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn output(command: &mut Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/test installs what it needs"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{command:?}");
    String::from_utf8(out.stdout).unwrap()
}

fn layouts() -> Layouts {
    let env = root().join("target/test-env");
    let fixtures = root().join("tests/fixtures/guard");
    // Beside pandas, which has its own environment.
    let beside = |dir: &Path| {
        let lib =
            std::fs::read_dir(dir.join("lib")).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let python = lib.flatten().map(|entry| entry.path()).find(|path| path.join("site-packages").exists());
        python.unwrap().join("site-packages")
    };
    let mut python = Command::new(env.join("documents/bin/python"));
    python.arg(fixtures.join("layouts.py")).env("PYTHONPATH", beside(&env.join("tabulate")));
    python.env("PYTHONIOENCODING", "utf-8");
    let mut made: Layouts = serde_json::from_str(&output(&mut python, "")).unwrap();
    let mut node = Command::new("node");
    let rows = made.rows.to_string();
    let more = output(node.arg(fixtures.join("layouts.mjs")), &rows);
    made.texts.extend(serde_json::from_str::<BTreeMap<String, String>>(&more).unwrap());
    made
}

#[test]
fn nothing_personal_is_left_of_a_table_in_any_layout() {
    let layouts = layouts();
    let guard = Guard::default();
    assert!(layouts.texts.len() > 200 && layouts.values.len() == 17);
    let (mut seen, mut left) = (BTreeMap::<&str, usize>::new(), Vec::new());
    for (layout, text) in &layouts.texts {
        let (out, report) = guard.text(text, &mut Numbering::alone());
        assert_eq!(report.errors, 0, "{layout}");
        for (column, values) in
            layouts.values.iter().filter(|(column, _)| !LET_THROUGH.contains(&column.as_str()))
        {
            let here = values.iter().filter(|value| text.contains(value.as_str())).count();
            let count = values.iter().filter(|value| out.contains(value.as_str())).count();
            *seen.entry(column).or_default() += here;
            if count > 0 {
                left.push(format!("{layout}: {count} of {here} in {column}"));
            }
        }
    }
    assert!(left.is_empty(), "{left:#?}");
    // Each column was there to be found.
    assert!(seen.len() == 14 && seen.values().all(|count| *count > 600), "{seen:?}");
}
