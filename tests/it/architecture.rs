//! The floors of ARCHITECTURE.md: a module names only modules that its row allows. A new arrow is a visible line here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Module, and what of ours it may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("domain", &[]),
    ("telemetry", &[]),
    ("wire", &["domain"]),
    ("guard", &["domain"]),
    ("analysis", &["domain"]),
    ("workflow", &["domain"]),
    ("store", &["domain", "telemetry"]),
    ("e2b", &["domain", "telemetry", "wire"]),
    ("objects", &["domain", "telemetry"]),
    ("bridge", &["domain", "telemetry", "wire"]),
    (
        "execution",
        &[
            "domain",
            "telemetry",
            "guard",
            "analysis",
            "workflow",
            "store",
            "objects",
            "e2b",
            "bridge",
            "wire",
        ],
    ),
    ("mcp", &["domain", "telemetry", "guard", "analysis", "workflow", "execution", "bridge"]),
    ("auth", &["domain", "telemetry", "execution"]),
    ("http", &["domain", "telemetry", "guard", "workflow", "execution", "auth", "mcp"]),
    ("console", &["domain", "guard", "execution", "bridge"]),
    ("host", &["domain", "telemetry", "wire"]),
];

/// The floors of the local host, which is a second program: module, and what of `host` it may use.
const HOST_MAY_USE: &[(&str, &[&str])] = &[
    ("host::jail", &[]),
    ("host::agent", &["host::jail"]),
    ("host::kernel", &["host::agent", "host::jail"]),
    ("host::network", &[]),
    ("host::sandbox", &["host::kernel", "host::agent", "host::jail", "host::network"]),
    ("host::registry", &["host::sandbox", "host::kernel", "host::agent", "host::jail", "host::network"]),
];

/// Arrows of the host that go against its floors today. The list only gets shorter.
const HOST_EXCEPTIONS: &[(&str, &str)] =
    &[("host::agent", "host::kernel"), ("host::jail", "host::agent"), ("host::network", "host::agent")];

/// What `execution` passes on of the store's values: rows that a door shows. A door that needs another value gets a type
/// of `execution`.
const HANDED_ON: &[&str] = &[
    "ContextRow",
    "ExecutionRow",
    "ExecutionStatus",
    "PathChange",
    "PathError",
    "PathRow",
    "PathStatus",
    "StoreError",
    "WorkflowRow",
];

/// Wiring may name everything.
const WIRING: &[&str] = &["app", "cli", "config", "main", "lib"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

fn module_of(file: &Path) -> String {
    let relative = file.strip_prefix(source()).unwrap();
    let first = relative.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// Names that follow `crate::`, in code and not in comments; `crate::{a, b}` counts for each.
fn uses(text: &str) -> BTreeSet<String> {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line.split(" // ").next().unwrap_or_default(), "\n"])
        .collect();
    let mut out = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let name = |text: &str| {
            text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>()
        };
        match rest.strip_prefix('{') {
            None => {
                out.insert(name(rest));
            }
            Some(group) => {
                let mut depth = 0;
                let mut start = true;
                for (i, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        c if start && c.is_ascii_alphabetic() => {
                            out.insert(name(&group[i..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    out
}

#[test]
fn a_module_uses_only_floors_below_it() {
    let mut all = Vec::new();
    files(&source(), &mut all);
    let modules: BTreeSet<String> = all.iter().map(|file| module_of(file)).collect();
    let mut wrong = Vec::new();
    for file in &all {
        let module = module_of(file);
        if WIRING.contains(&module.as_str()) {
            continue;
        }
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == module) else {
            wrong.push(format!("module `{module}` has no row in the table of floors"));
            continue;
        };
        for used in uses(&std::fs::read_to_string(file).unwrap()) {
            if used != module && modules.contains(&used) && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{} uses `{used}`, which `{module}` may not", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A door gets values through the parts of `execution`, never the store or the client behind them: so a part has no
/// accessor for one, and the shared state that has them is private.
#[test]
fn no_door_reaches_the_store_or_the_provider_through_execution() {
    let mut all = Vec::new();
    files(&source(), &mut all);
    let mut wrong = Vec::new();
    for file in &all {
        let text = std::fs::read_to_string(file).unwrap();
        let (module, name) = (module_of(file), file.strip_prefix(source()).unwrap().display().to_string());
        if ["mcp", "http", "auth"].contains(&module.as_str()) {
            for accessor in [".store()", ".provider()", "DynStore", "E2bClient"] {
                if text.contains(accessor) {
                    wrong.push(format!("{name} has `{accessor}`"));
                }
            }
        }
        if module != "execution" {
            continue;
        }
        for line in text.lines().map(str::trim_start) {
            let gives = ["DynStore", "E2bClient", "Arc<Core>", "&Core"]
                .iter()
                .any(|it| line.split("->").nth(1).is_some_and(|result| result.contains(it)));
            if line.starts_with("pub fn") && gives {
                wrong.push(format!("{name} gives away what its parts share: {line}"));
            }
            let handed = line.strip_prefix("pub use crate::store::");
            let names = handed.unwrap_or_default().split(|c: char| !c.is_ascii_alphanumeric());
            for handed in names.filter(|it| !it.is_empty() && !HANDED_ON.contains(it)) {
                wrong.push(format!("{name} hands on the store's `{handed}`"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_module_of_the_host_uses_only_its_floors() {
    let mut all = Vec::new();
    files(&source().join("host"), &mut all);
    let mut found = BTreeSet::new();
    for file in &all {
        let relative = file.strip_prefix(source().join("host")).unwrap();
        let first = relative.components().next().unwrap().as_os_str().to_str().unwrap();
        let module = format!("host::{}", first.trim_end_matches(".rs"));
        let Some((_, allowed)) = HOST_MAY_USE.iter().find(|(name, _)| *name == module) else { continue };
        for used in host_uses(&std::fs::read_to_string(file).unwrap(), relative.components().count()) {
            let used = format!("host::{used}");
            let has_floor = HOST_MAY_USE.iter().any(|(name, _)| *name == used);
            if has_floor && used != module && !allowed.contains(&used.as_str()) {
                found.insert((module.clone(), used));
            }
        }
    }
    let known: BTreeSet<(String, String)> =
        HOST_EXCEPTIONS.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "arrows against the host's floors: {new:#?}");
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "exceptions that are no longer needed: {gone:#?}");
}

/// Modules of `host` that a file at this depth below it names: `crate::host::x`, and `super::x` counted up to `host`.
fn host_uses(text: &str, depth: usize) -> BTreeSet<String> {
    let up = "super::".repeat(depth);
    let mut out = BTreeSet::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for prefix in ["crate::host::", up.as_str()] {
            for (at, _) in line.match_indices(prefix) {
                if prefix == up && line[..at].ends_with("super::") {
                    continue;
                }
                let rest = line[at + prefix.len()..].trim_start_matches('{');
                out.insert(rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect());
            }
        }
    }
    out
}

#[test]
fn the_reader_of_uses_finds_each_form() {
    let text = "use crate::{a::{b, c}, d};\n// crate::e\nlet x = crate::f::g(); // crate::h\nuse crate::i;";
    let found: Vec<String> = uses(text).into_iter().collect();
    assert_eq!(found, ["a", "d", "f", "i"]);
}

#[test]
fn unsafe_code_is_allowed_in_named_files_only() {
    let mut all = Vec::new();
    files(&source(), &mut all);
    let exempt: Vec<String> = all
        .iter()
        .filter(|file| {
            std::fs::read_to_string(file).unwrap().lines().any(|line| {
                let line = line.trim_start();
                !line.starts_with("//") && line.contains("unsafe_code") && line.contains("expect")
            })
        })
        .map(|file| file.strip_prefix(source()).unwrap().display().to_string())
        .collect();
    for file in exempt {
        assert!(["host/jail/sys.rs", "guard/simd.rs"].contains(&file.as_str()), "{file} allows unsafe code");
    }
}
