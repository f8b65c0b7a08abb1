//! `docs/e2b-faults.md` states an outcome for each fault, and each outcome is held by a test that is there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Faults that may never lose their row.
const DEMANDED: [&str; 12] = [
    "rate-limit-with-time",
    "rate-limit-without-time",
    "half-a-stream",
    "empty-200",
    "gateway-page",
    "sandbox-vanished",
    "no-interpreter",
    "keepalives-only",
    "ten-megabyte-line",
    "cut-character",
    "line-separators",
    "never-ending-body",
];

struct Row {
    fault: String,
    outcome: String,
    tests: Vec<String>,
}

fn rows(page: &str) -> Vec<Row> {
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    page.lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<String> = cells(line);
            let [fault, _, outcome, tests] = &cells[..] else { panic!("four cells: {line}") };
            Row {
                fault: fault.trim_matches('`').to_owned(),
                outcome: outcome.clone(),
                tests: tests.split(", ").map(|test| test.trim_matches('`').to_owned()).collect(),
            }
        })
        .collect()
}

/// What the rows lack.
fn faults_of(page: &str, sources: &str) -> Vec<String> {
    let rows = rows(page);
    let mut lacks = Vec::new();
    let named: BTreeSet<&str> = rows.iter().map(|row| row.fault.as_str()).collect();
    lacks.extend(
        DEMANDED.iter().filter(|fault| !named.contains(**fault)).map(|fault| format!("no row for {fault}")),
    );
    for row in &rows {
        if row.outcome.is_empty() || row.tests.iter().all(String::is_empty) {
            lacks.push(format!("{} has no outcome or no test", row.fault));
        }
        for test in row.tests.iter().filter(|test| !test.is_empty()) {
            // A test, or a case of the contract suite, which is run against both servers.
            let attribute = |name: &str| {
                sources.contains(&format!("#[{name}]\n    async fn {test}("))
                    || sources.contains(&format!("#[{name}]\nasync fn {test}("))
                    || sources.contains(&format!("#[{name}]\nfn {test}("))
                    || sources.contains(&format!("#[{name}]\n    fn {test}("))
                    || sources.contains(&format!("#[{name}]\n#[cfg(target_os = \"linux\")]\nfn {test}("))
            };
            if !attribute("test")
                && !attribute("tokio::test")
                && !sources.contains(&format!("\n    {test},\n"))
            {
                lacks.push(format!("{}: there is no test {test}", row.fault));
            }
        }
    }
    lacks
}

fn sources() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<PathBuf> = Vec::new();
    for (dir, prefix) in [("tests/it", "e2b_"), ("src/e2b", "")] {
        let found = std::fs::read_dir(root.join(dir)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(found.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix)));
    }
    files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

#[test]
fn every_fault_has_one_stated_outcome_and_a_test_that_is_there() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/e2b-faults.md")).unwrap();
    let sources = sources();
    assert_eq!(faults_of(&page, &sources), Vec::<String>::new());
    assert!(rows(&page).len() > 40);
    // The check can say no.
    let without_row = page.replace("| `empty-200`", "| `another`");
    assert_eq!(faults_of(&without_row, &sources), ["no row for empty-200"]);
    let without_test = sources.replace("a_redirect_is_not_followed_with_the_key", "renamed");
    let lacks = faults_of(&page, &without_test);
    assert_eq!(lacks, ["redirect: there is no test a_redirect_is_not_followed_with_the_key"]);
}
