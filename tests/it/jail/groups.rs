//! The table of `docs/threat-model.md` names a test for every group of attacks, in both tiers, and each of them exists.

use std::collections::BTreeSet;
use std::process::Command;

use super::neighbours::ABUSES;

const GROUPS: usize = 25;

/// Names in backquotes that look like tests.
fn named(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).filter(|name| name.contains("::")).collect()
}

/// Every test of this suite.
fn all_tests() -> BTreeSet<String> {
    let suite = std::env::current_exe().expect("this program");
    let listed = Command::new(suite).arg("--list").output().expect("lists its tests").stdout;
    let listed = String::from_utf8(listed).expect("text");
    let tests: BTreeSet<String> =
        listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
    assert!(tests.len() > 300, "{} tests", tests.len());
    tests
}

/// Whether this suite has a test or a group of this name.
fn exists(tests: &BTreeSet<String>, name: &str) -> bool {
    // Those beside the code are in another binary.
    let beside = name.strip_prefix("host::agent::tests::").is_some_and(|name| {
        include_str!("../../../src/host/agent.rs").contains(&format!("async fn {name}("))
    });
    let is_it = |test: &String| {
        *test == format!("jail::{name}") || test == name || test.starts_with(&format!("{name}::"))
    };
    beside || tests.iter().any(is_it)
}

#[test]
fn every_resource_is_shown_to_be_bounded() {
    let tests = all_tests();
    let page = include_str!("../../../docs/threat-model.md");
    let section = page.split("### Resources, one by one").nth(1).expect("the section");
    let section = section.split("\n### ").next().expect("its end");
    let mut unnamed: BTreeSet<&str> = ABUSES.iter().map(|abuse| abuse.name).collect();
    let mut rows = 0;
    for line in section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---")).skip(1) {
        rows += 1;
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, what, bound, shown, _] = cells[..] else { panic!("not four cells: {line}") };
        assert!(["refused", "counted", "accepted"].contains(&what), "{line}");
        assert!(what == "refused" || bound != "-", "without a bound: {line}");
        let mut ways = 0;
        for (before, name) in shown.split('`').collect::<Vec<_>>().chunks(2).filter_map(|pair| match pair {
            [before, name] => Some((before.trim_start_matches(", "), *name)),
            _ => None,
        }) {
            ways += 1;
            if before.trim() == "abuse" {
                assert!(ABUSES.iter().any(|abuse| abuse.name == name), "no abuse is called {name}: {line}");
                unnamed.remove(name);
            } else {
                assert!(exists(&tests, name), "there is no test {name}: {line}");
            }
        }
        assert!(ways > 0, "nothing shows it: {line}");
    }
    assert!(rows > 30, "{rows} rows");
    assert!(unnamed.is_empty(), "abuses without a row: {unnamed:?}");
}

#[test]
fn every_group_of_attacks_has_a_test_that_exists() {
    let tests = all_tests();
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
                assert!(exists(&tests, name), "group {number} names {name}, which does not exist");
            }
        }
    }
    assert_eq!(found, GROUPS);
}

/// Whether the last part of a setting's name is a bound or a count.
fn is_bound(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    let within = ["max", "limit", "nr_", "_nr", "-nr", "pages", "instances", "watches"];
    within.iter().any(|part| last.contains(part))
        || ["msg", "shm", "sem"].iter().any(|start| last.starts_with(start))
}

/// All files below a directory of settings, by their names below `/proc/sys`.
fn settings(dir: &std::path::Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => settings(&entry.path(), found),
            _ => found
                .extend(entry.path().strip_prefix("/proc/sys").ok().map(|name| name.display().to_string())),
        }
    }
}

/// Counters of a kernel that is newer than the table, or of a distribution, are left to those who run it.
#[test]
fn every_bound_of_the_kernel_has_a_line() {
    let page = include_str!("../../../docs/threat-model.md");
    let section = page.split("### The kernel's own settings").nth(1).expect("the section");
    let section = section.split("\n### ").next().expect("its end");
    let names: BTreeSet<&str> =
        section.split('`').skip(1).step_by(2).filter(|name| name.contains('/')).collect();
    assert!(names.len() > 150, "{} settings", names.len());
    let is_named = |setting: &str| {
        names.iter().any(|name| match name.strip_suffix('*') {
            Some(beginning) => setting.starts_with(beginning),
            None => *name == setting,
        })
    };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let mut found = Vec::new();
    for dir in ["user", "fs", "kernel"] {
        settings(&std::path::Path::new("/proc/sys").join(dir), &mut found);
    }
    let unnamed: Vec<&String> =
        found.iter().filter(|setting| is_bound(setting) && !is_named(setting)).collect();
    assert!(version > (6, 18) || unnamed.is_empty(), "without a line in docs/threat-model.md: {unnamed:?}");
}
