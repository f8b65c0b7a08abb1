//! A shell whose state lasts, through envd's processes.
//!
//! The hosted interpreter has a bash kernel that sends standard error as standard output and an exit status as a nameless
//! error. So each command is a process of its own here, with both outputs and its status, and what a shell keeps
//! (directory, variables, functions, options) is written to a file at its end and read by the next one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout_at};

use super::processes::{Command, Process, ProcessUpdate, Processes, SHELL_TAG};
use super::{Deadline, E2bClient, E2bError, RunRequest, SandboxAccess};
use crate::domain::EXIT_STATUS;
use crate::wire::envd::signal_in;
use crate::wire::interpreter::{Event, ExecutionError, Output};

/// How much longer than our own deadline envd lets the process live, so that ours is the one that ends.
const LIFE_MARGIN: Duration = Duration::from_secs(10);

/// Loads what the shell before left, runs `$1`, keeps what it leaves. The rest of the arguments name variables of this
/// run only: they win over what was kept, and are not kept themselves.
const WRAPPER: &str = r#"
__pathbox_state=${HOME:-/tmp}/.pathbox-shell
__pathbox_code=$1; shift
__pathbox_names="$* PATHBOX_RUN"
set --
if [ -r "$__pathbox_state" ]; then . "$__pathbox_state" 2>/dev/null; fi
while IFS= read -r -d '' __pathbox_pair; do
  case " $__pathbox_names " in *" ${__pathbox_pair%%=*} "*) export "$__pathbox_pair" ;; esac
done < /proc/$$/environ
__pathbox_keep() {
  unset $__pathbox_names __pathbox_names __pathbox_state __pathbox_code __pathbox_pair BASH_EXECUTION_STRING OLDPWD
  {
    printf 'cd -- %q\numask %s\n' "$PWD" "$(umask)"
    declare -p; declare -f; alias -p; shopt -p; set +o
  } > "$1.new" 2>/dev/null && mv -f "$1.new" "$1" 2>/dev/null
}
trap '__pathbox_status=$?; trap - EXIT; set +eu; __pathbox_keep "${HOME:-/tmp}/.pathbox-shell"; exit $__pathbox_status' EXIT
eval "$__pathbox_code"
"#;

/// One shell of a sandbox: one command at a time. Clones share its queue.
#[derive(Debug, Clone)]
pub struct Shell {
    client: E2bClient,
    access: SandboxAccess,
    cwd: Option<String>,
    turn: Arc<Mutex<()>>,
}

impl E2bClient {
    /// The shell of a sandbox. It starts in `cwd`, or at home; later commands start where the last one ended.
    pub fn shell(&self, access: &SandboxAccess, cwd: Option<&str>) -> Shell {
        let cwd = cwd.map(str::to_owned);
        Shell { client: self.clone(), access: access.clone(), cwd, turn: Arc::default() }
    }
}

impl Shell {
    /// Takes the turn and runs a command. The same events come as from an interpreter.
    ///
    /// # Errors
    /// Those of [`Processes::start`]; a status other than 0 is an error *event* named [`EXIT_STATUS`].
    pub async fn run(&self, request: &RunRequest) -> Result<ShellRun, E2bError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let mut args = vec!["-l".to_owned(), "-c".to_owned(), WRAPPER.to_owned(), "bash".to_owned()];
        args.push(request.code.clone());
        args.extend(request.envs.keys().cloned());
        let plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if let Some(name) = request.envs.keys().find(|name| name.is_empty() || !plain(name)) {
            let problem = format!("has a name of {} characters that no shell variable can have", name.len());
            return Err(E2bError::Setting { what: "environment variable", problem });
        }
        let command = Command {
            program: "/bin/bash".to_owned(),
            args,
            envs: request.envs.clone(),
            cwd: self.cwd.clone(),
            life: Some(request.deadlines.overall + LIFE_MARGIN),
            tag: Some(SHELL_TAG.to_owned()),
            ..Command::default()
        };
        let processes = self.client.processes(&self.access);
        let begun = Instant::now();
        let process = processes.start(&command).await?;
        let overall = request.deadlines.overall;
        Ok(ShellRun {
            processes,
            process: Some(process),
            begun,
            overall,
            pending: None,
            over: false,
            _turn: turn,
        })
    }
}

/// A command in progress. Dropping it kills the command and what it started, as soon as the runtime gets to it.
#[derive(Debug)]
pub struct ShellRun {
    processes: Processes,
    /// `None` once it has ended or was killed.
    process: Option<Process>,
    begun: Instant,
    overall: Duration,
    pending: Option<Event>,
    over: bool,
    _turn: OwnedMutexGuard<()>,
}

impl ShellRun {
    /// The next event; `None` at the end. At its deadline the command and all that it started are killed.
    ///
    /// # Errors
    /// As [`Execution::next`](super::Execution::next).
    pub async fn next(&mut self) -> Result<Option<Event>, E2bError> {
        if let Some(event) = self.pending.take() {
            return Ok(Some(event));
        }
        let Some(process) = &mut self.process else {
            let end = (!std::mem::replace(&mut self.over, true)).then_some(Event::EndOfExecution);
            return Ok(end);
        };
        let output = |text| Output { text, timestamp: None };
        let update = match timeout_at(self.begun + self.overall, process.next()).await {
            Ok(Ok(update)) => update,
            Ok(Err(error)) => {
                self.stop().await;
                return Err(error);
            }
            Err(_) => {
                self.stop().await;
                let after = self.begun.elapsed();
                return Err(E2bError::TimedOut { clock: Deadline::Overall, after, may_have_run: true });
            }
        };
        match update {
            Some(ProcessUpdate::Stdout(text)) => Ok(Some(Event::Stdout(output(text)))),
            Some(ProcessUpdate::Stderr(text)) => Ok(Some(Event::Stderr(output(text)))),
            Some(ProcessUpdate::Ended { exit_code: 0, .. }) | None => {
                self.process = None;
                self.over = true;
                Ok(Some(Event::EndOfExecution))
            }
            Some(ProcessUpdate::Ended { exit_code, status }) => {
                self.process = None;
                let (value, traceback) = match signal_in(&status).filter(|_| exit_code < 0) {
                    Some(signal) => ((128 + signal).to_string(), format!("The shell ended: {status}.")),
                    None if exit_code < 0 => (status, String::new()),
                    None => (exit_code.to_string(), String::new()),
                };
                let error = ExecutionError { name: EXIT_STATUS.to_owned(), value, traceback };
                Ok(Some(Event::Error(error)))
            }
        }
    }

    /// Kills the command and everything that it started, if it has not ended. What the shell kept stays as it was before.
    pub async fn stop(&mut self) {
        if let Some(process) = &self.process {
            if let Err(error) = self.processes.kill_all(process).await {
                tracing::warn!(kind = error.kind(), "a command in a sandbox could not be killed");
            }
            self.process = None;
            self.over = true;
        }
    }
}

impl Drop for ShellRun {
    fn drop(&mut self) {
        if let Some(process) = self.process.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let processes = self.processes.clone();
            runtime.spawn(async move {
                let _ = processes.kill_all(&process).await;
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command as Program;

    use super::*;

    struct Home(tempfile::TempDir);

    impl Home {
        fn run_with(&self, code: &str, envs: &[(&str, &str)]) -> (String, i32) {
            let output = Program::new("/bin/bash")
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .env("HOME", self.0.path())
                .env("PATHBOX_RUN", "mark")
                .envs(envs.iter().copied())
                .current_dir("/")
                .args(["-c", WRAPPER, "bash", code])
                .args(envs.iter().map(|(name, _)| *name))
                .output()
                .unwrap();
            let said = [output.stdout, output.stderr].concat();
            (String::from_utf8(said).unwrap(), output.status.code().unwrap())
        }

        fn run(&self, code: &str) -> (String, i32) {
            self.run_with(code, &[])
        }
    }

    #[test]
    fn directory_variables_functions_and_options_last() {
        let home = Home(tempfile::tempdir().unwrap());
        let first = "cd /usr; x=$'a\\nb \\'q\\''; export Y='é $HOME'; a=(1 'two 2'); f() { echo \"f $1\"; }; set -f; umask 027";
        assert_eq!(home.run(first), (String::new(), 0));
        let (said, status) =
            home.run("pwd; echo \"$x\"; f 1; echo ${a[1]} ${#a[@]}; echo *; umask; env | grep ^Y=");
        assert_eq!(said, "/usr\na\nb 'q'\nf 1\ntwo 2 2\n*\n0027\nY=é $HOME\n");
        assert_eq!(status, 0);
    }

    #[test]
    fn the_status_is_the_codes_also_after_exit_and_errexit() {
        let home = Home(tempfile::tempdir().unwrap());
        for (code, status) in [("false", 1), ("exit 3", 3), ("true", 0), ("nosuchprogram 2>/dev/null", 127)] {
            assert_eq!(home.run(code).1, status, "{code}");
        }
        assert_eq!(home.run("z=kept; set -e; false; echo never"), (String::new(), 1));
        assert_eq!(home.run("set +e; echo $z; (exit 4)"), ("kept\n".to_owned(), 4));
    }

    #[test]
    fn variables_of_one_run_win_and_are_not_kept() {
        let home = Home(tempfile::tempdir().unwrap());
        home.run("export TOKEN=lasting");
        assert_eq!(home.run_with("echo $TOKEN $1.", &[("TOKEN", "it's\nmine")]).0, "it's mine .\n");
        let (said, _) =
            home.run("echo [$TOKEN]; set | grep -c mine; cat ~/.pathbox-shell | grep -c -e mine -e mark");
        assert_eq!(said, "[]\n1\n0\n", "the one line is the code itself");
    }

    #[test]
    fn a_state_that_is_broken_does_not_stop_the_next_command() {
        let home = Home(tempfile::tempdir().unwrap());
        std::fs::write(home.0.path().join(".pathbox-shell"), "if then ((((\n").unwrap();
        assert_eq!(home.run("echo on"), ("on\n".to_owned(), 0));
    }
}
