#!/usr/bin/env node
// Starts the program of this platform's package and is invisible otherwise: streams, signals and exit code are its own.
const { spawn } = require("node:child_process");
const { isatty } = require("node:tty");

const name = `@pathbox/${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/pathbox${process.platform === "win32" ? ".exe" : ""}`);
} catch {
  console.error(
    `pathbox: the package ${name} is not installed. Install again without --omit=optional; when your platform has no ` +
      "package, build from source: cargo install --path .",
  );
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit", windowsHide: true });
// A terminal sends Ctrl-C to both processes, and a second signal ends the program at once.
const onTerminal = [0, 1, 2].some((fd) => isatty(fd));
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
  process.on(signal, () => signal === "SIGINT" && onTerminal || child.kill(signal));
}
child.on("error", (error) => {
  console.error(`pathbox: ${program} cannot be started: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal === null) process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
