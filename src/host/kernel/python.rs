//! Python: the driver's files and how an interpreter is started with them.

use std::collections::BTreeMap;

/// Reads the driver from the control socket and becomes it.
const BOOT: &str = include_str!("drivers/python_boot.py");
/// The driver.
pub(super) const DRIVER: &str = include_str!("drivers/python.py");

/// Its parts that are compiled when they are first needed.
pub(super) fn parts() -> BTreeMap<&'static str, &'static str> {
    BTreeMap::from([
        ("show", include_str!("drivers/python_show.py")),
        ("trace", include_str!("drivers/python_trace.py")),
        ("magic", include_str!("drivers/python_magic.py")),
        ("figures", include_str!("drivers/python_figures.py")),
        ("checkpoint", include_str!("drivers/python_checkpoint.py")),
        ("hooks", include_str!("drivers/python_hooks.py")),
        ("charts", include_str!("drivers/python_charts.py")),
    ])
}

/// Isolated (no `PYTHON*` variables, no user's site), without `site` (the driver runs it later, when no cell waits),
/// UTF-8 whatever the locale.
pub(super) fn argv(program: String) -> Vec<String> {
    [&program, "-I", "-S", "-X", "utf8", "-c", BOOT].map(str::to_owned).to_vec()
}
