//! Node.js: the driver's file and how an interpreter is started with it.

use super::cells::Refused;
use crate::wire::interpreter::ExecutionError;

/// Reads the driver from the control socket and becomes it.
const BOOT: &str = include_str!("drivers/node_boot.js");
/// The driver.
pub(super) const DRIVER: &str = include_str!("drivers/node.js");

/// Without warnings about what is experimental: they would be the first output of a cell.
pub(super) fn argv(program: String) -> Vec<String> {
    [&program, "--no-warnings", "-e", BOOT].map(str::to_owned).to_vec()
}

/// Source that was refused before it ran, in the look of Node's own errors.
pub(super) fn syntax_error(refused: &Refused, source: &str, number: u64) -> ExecutionError {
    let mut traceback = format!("SyntaxError: {}", refused.message);
    if let Some(line) = refused.line.checked_sub(1).and_then(|before| source.lines().nth(before)) {
        let line: String = line.chars().take(1000).collect();
        let indent = " ".repeat(refused.column.saturating_sub(1).min(line.chars().count()));
        traceback = format!("cell-{number}.ts:{}\n{line}\n{indent}^\n\n{traceback}", refused.line);
    }
    ExecutionError { name: "SyntaxError".to_owned(), value: refused.message.clone(), traceback }
}
