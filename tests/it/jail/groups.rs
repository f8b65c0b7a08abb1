//! The table of `docs/threat-model.md` names a test for every group of attacks, in both tiers, and each of them exists.

use std::collections::BTreeSet;
use std::process::Command;

const GROUPS: usize = 25;

/// Names in backquotes that look like tests.
fn named(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).filter(|name| name.contains("::")).collect()
}

#[test]
fn every_group_of_attacks_has_a_test_that_exists() {
    let suite = std::env::current_exe().expect("this program");
    let listed = Command::new(suite).arg("--list").output().expect("lists its tests").stdout;
    let listed = String::from_utf8(listed).expect("text");
    let tests: BTreeSet<&str> = listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    assert!(tests.len() > 300, "{} tests", tests.len());
    let exists = |name: &str| {
        // Those beside the code are in another binary.
        let beside = name.strip_prefix("host::agent::tests::").is_some_and(|name| {
            include_str!("../../../src/host/agent.rs").contains(&format!("async fn {name}("))
        });
        beside
            || tests
                .iter()
                .any(|test| *test == format!("jail::{name}") || test.starts_with(&format!("{name}::")))
    };

    let page = include_str!("../../../docs/threat-model.md");
    let mut found = 0;
    let mut before = [Vec::new(), Vec::new()];
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Some(Ok(number)) = cells.get(1).map(|cell| cell.parse::<usize>()) else { continue };
        found += 1;
        assert_eq!(number, found, "groups are in order");
        for (tier, before) in before.iter_mut().enumerate() {
            let cell = cells[4 + tier];
            match cell {
                "the same" => assert!(!before.is_empty(), "{line}"),
                "the same code" => {}
                _ => *before = named(cell),
            }
            assert!(!before.is_empty(), "group {number} has no test: {line}");
            for name in before {
                assert!(exists(name), "group {number} names {name}, which does not exist");
            }
        }
    }
    assert_eq!(found, GROUPS);
}
