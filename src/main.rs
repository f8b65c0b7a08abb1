//! Starts the runtime, calls the command line, turns its result into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything starts a thread: this process may be the sandbox spawner.
    #[cfg(target_os = "linux")]
    if let Some(code) = pathbox::host::jail::spawner_main() {
        return code.into();
    }
    pathbox::cli::main()
}
