//! Starts the runtime, calls the command line, turns its result into an exit code.

fn main() {}
