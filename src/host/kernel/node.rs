//! Node.js: the driver's file and how an interpreter is started with it.

/// Reads the driver from the control socket and becomes it.
const BOOT: &str = include_str!("drivers/node_boot.js");
/// The driver.
pub(super) const DRIVER: &str = include_str!("drivers/node.js");

/// Without warnings about what is experimental: they would be the first output of a cell.
pub(super) fn argv(program: String) -> Vec<String> {
    [&program, "--no-warnings", "-e", BOOT].map(str::to_owned).to_vec()
}
