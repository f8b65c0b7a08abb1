//! `pathbox container`: a sandbox host in a container is started by one command, found and used by all others, and started
//! again when it was stopped. The runtimes are a fake: a script that records what it is asked, answers as their documented
//! commands do, and runs the host as a process. `tests/journeys/container.py` does the same with the real podman and the
//! real Docker; Apple's `container` runs on macOS alone.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::server::command;

/// What the commands ask of a container runtime.
const RUNTIME: &str = r#"#!/bin/sh
name=$(basename "$0")
cd "$(dirname "$0")" || exit 1
echo "$@" >>asked
unset PATHBOX_HOST_PYTHON
begin() {
  PATHBOX_DATA_DIR="$PWD/data" E2B_API_KEY="$(cat key)" "$PROGRAM" $(cat arguments) </dev/null >>log 2>&1 &
  echo $! >pid
}
case "$1" in
  --version) echo "$name version 0" ;;
  load | image) echo "Loaded image: localhost/pathbox:latest" ;;
  run)
    echo "$@" >run
    while [ "$1" != host ]; do shift; done
    echo "$E2B_API_KEY" >key; echo "$@" >arguments; begin ;;
  start) [ -f arguments ] || { echo "no such container" >&2; exit 125; }; begin ;;
  rm)
    if [ "$name" = container ] && [ ! -f pid ]; then
      echo 'Error: notFound: "failed to delete one or more containers: ["'"$3"'"]"' >&2; exit 1
    fi
    kill "$(cat pid)" 2>/dev/null; rm -f arguments pid ;;
  logs) cat log ;;
esac
"#;

struct Machine {
    bin: tempfile::TempDir,
    data: tempfile::TempDir,
    port: u16,
}

impl Machine {
    fn new() -> Self {
        Self::with("podman")
    }

    /// One on which this runtime is installed.
    fn with(runtime: &str) -> Self {
        let (bin, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let runtime = bin.path().join(runtime);
        std::fs::write(&runtime, RUNTIME).unwrap();
        std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o755)).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { bin, data, port }
    }

    /// A command where a local host cannot work.
    fn command(&self) -> Command {
        let mut command = command(self.data.path());
        #[expect(clippy::disallowed_methods, reason = "a test hands its own environment on")]
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.bin.path().display()));
        command.env("PROGRAM", env!("CARGO_BIN_EXE_pathbox")).env("PATHBOX_HOST_PYTHON", "/nowhere/python3");
        command
    }

    fn pathbox(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    fn up(&self) -> Output {
        self.pathbox(&["container", "up", "--json", "--port", &self.port.to_string()])
    }

    /// The container's log, once it says this.
    fn log_of(&self, said: &str) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let log = std::fs::read_to_string(self.bin.path().join("log")).unwrap();
            if log.contains(said) || Instant::now() > until {
                return log;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the host without notice.
    fn stop(&self) {
        let Ok(pid) = std::fs::read_to_string(self.bin.path().join("pid")) else { return };
        let _ = Command::new("kill").arg(pid.trim()).status();
        let until = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", self.port)).is_ok() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stop();
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(output)))
}

/// Whether there is a key in the file, and no rights for others.
fn kept_for_its_owner(file: &Path) -> String {
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    let kept: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    kept["key"].as_str().unwrap().to_owned()
}

#[test]
fn one_command_starts_a_host_that_every_other_command_finds() {
    let machine = Machine::new();
    let none = machine.pathbox(&["run", "print(6 * 7)"]);
    assert!(!none.status.success(), "there is no host yet: {}", text(&none));
    assert!(text(&machine.pathbox(&["container", "down"])).contains("`pathbox container up` starts one"));

    let started = json(&machine.up());
    let url = format!("http://127.0.0.1:{}", machine.port);
    assert_eq!((&started["state"], &started["url"]), (&"started".into(), &url.as_str().into()), "{started}");
    let key = kept_for_its_owner(&machine.data.path().join("container.json"));
    let asked = std::fs::read_to_string(machine.bin.path().join("run")).unwrap();
    assert!(
        !asked.contains(&key) && !started.to_string().contains(&key),
        "the key is on no command line: {asked}"
    );
    assert!(asked.contains(&format!("-p 127.0.0.1:{}:", machine.port)), "for this machine alone: {asked}");

    let ran = machine.pathbox(&["run", "print(6 * 7)"]);
    assert!(ran.status.success() && ran.stdout == b"42\n", "{}", text(&ran));
    assert_eq!(json(&machine.up())["state"], "running");
    let settings = json(&machine.pathbox(&["config", "--json"]));
    let setting = |settings: &Value, key: &str| {
        settings.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap_or(&Value::Null).clone()
    };
    let api = setting(&settings, "e2b.api_url");
    assert_eq!(api["value"], url, "{settings}");
    assert!(api["source"].as_str().unwrap().ends_with("container.json"), "{api}");
    assert!(!settings.to_string().contains(&key));

    let out = machine.data.path().join("chart.png").display().to_string();
    let story = machine.pathbox(&["demo", "--out", &out]);
    assert!(text(&story).contains("completed: 20 + 22 = 42"), "{}", text(&story));

    // As after a restart of the machine.
    machine.stop();
    let again = machine.pathbox(&["run", "print(6 * 7)"]);
    assert!(again.status.success() && again.stdout == b"42\n", "{}", text(&again));

    let mut other = machine.command();
    let settings =
        json(&other.args(["config", "--json"]).env("E2B_API_KEY", "e2b_another").output().unwrap());
    assert_eq!(
        setting(&settings, "e2b.api_url")["source"],
        "default",
        "whoever names a provider has that one"
    );

    assert_eq!(json(&machine.pathbox(&["container", "down", "--json"]))["state"], "ended");
    assert!(!machine.data.path().join("container.json").exists());
    assert!(!machine.pathbox(&["run", "1"]).status.success());
}

/// Apple's runtime has no policy of restarting and takes images by another command; Docker's filter withholds namespaces.
#[test]
fn each_runtime_is_called_with_its_own_options() {
    for (runtime, load, options) in [
        ("podman", "load --input ", "--restart=unless-stopped --security-opt unmask=ALL --pull=never "),
        (
            "docker",
            "load --input ",
            "--restart=unless-stopped -e PATHBOX_HOST_ISOLATION=landlock --pull=never ",
        ),
        ("container", "image load --input ", ""),
    ] {
        let machine = Machine::with(runtime);
        let (program, port) = (machine.bin.path().join(runtime), machine.port);
        let (program, archive) = (program.display(), machine.bin.path().join("pathbox.oci.tar"));
        std::fs::write(&archive, "an archive").unwrap();
        let archive = archive.display();
        let up = ["container", "up", "--json", "--runtime", &program.to_string(), "--image"];
        let mut command = machine.command();
        command.args(up).arg(archive.to_string()).args(["--port", &port.to_string()]);
        let started = json(&command.output().unwrap());
        assert_eq!(started["state"], "started", "{runtime}: {started}");
        assert_eq!(
            std::fs::read_to_string(machine.bin.path().join("asked")).unwrap(),
            format!(
                "{load}{archive}\nrun -d --name pathbox-host -p 127.0.0.1:{port}:{port} -e E2B_API_KEY {options}\
                 localhost/pathbox:latest host --listen 0.0.0.0:{port} --allow-remote\n"
            ),
            "{runtime}"
        );
        let key = kept_for_its_owner(&machine.data.path().join("container.json"));
        let log = machine.log_of("# E2B_API_KEY");
        assert!(log.contains(&format!("http://127.0.0.1:{port}")) && !log.contains(&key), "{runtime}: {log}");

        // Someone removed the container.
        machine.stop();
        std::fs::remove_file(machine.bin.path().join("pid")).unwrap();
        assert_eq!(json(&machine.pathbox(&["container", "down", "--json"]))["state"], "ended", "{runtime}");
        assert!(!machine.data.path().join("container.json").exists(), "{runtime}");
    }
}

#[test]
fn a_port_of_another_program_is_refused_and_nothing_stays() {
    let mut machine = Machine::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    machine.port = taken.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in taken.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ =
                stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let refused = machine.up();
    assert!(!refused.status.success());
    assert!(text(&refused).contains("give another --port"), "{}", text(&refused));
    assert!(!machine.data.path().join("container.json").exists());
    std::fs::write(machine.data.path().join("container.json"), "{}").unwrap();
    let broken = machine.pathbox(&["run", "1"]);
    assert!(text(&broken).contains("remove it and run `pathbox container up`"), "{}", text(&broken));
    std::fs::remove_file(machine.bin.path().join("pid")).ok();
}
