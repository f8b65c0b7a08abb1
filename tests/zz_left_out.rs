//! The last word of `cargo test`: which tests were left out because something is not installed, and how to get it.
//! Runs after the other test programs (they run in alphabetical order) and never fails.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::path::Path;

fn main() {
    if std::env::args().any(|arg| arg == "--include-ignored" || arg == "--list") {
        return;
    }
    let mut left_out = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it"), &mut left_out);
    if left_out.is_empty() {
        return;
    }
    left_out.sort();
    println!(
        "\nleft out, because something they need is not assumed to be there; `scripts/test` installs it and runs them:"
    );
    for (test, reason) in left_out {
        println!("  {test}: {reason}");
    }
}

/// Tests with `#[ignore = "needs …"]`, by file and name.
fn collect(dir: &Path, out: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, out);
            continue;
        }
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let module = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut reason = None;
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("#[ignore = \"") {
                reason = Some(rest.trim_end_matches("\"]").to_owned());
            } else if let Some(at) = line.find("fn ")
                && let Some(reason) = reason.take()
            {
                // Tests that another test starts need nothing, and a macro's parameter is no name.
                let name = line[at + 3..].split('(').next().unwrap_or_default().replace('$', "every_");
                if reason.starts_with("needs ") {
                    out.push((format!("{module}::{name}"), reason));
                }
            }
        }
    }
}
