//! The small programs that the client itself runs in a kernel: set variables, take them back, do nothing.
//!
//! Values go in as base64 of JSON, so nothing in them can end a literal, break a line or be code.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::{E2bError, Setup};
use crate::wire::Secret;

/// A kind of kernel, as far as our cells differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    Python,
    Javascript,
    Bash,
    Other,
}

impl Kernel {
    pub(super) fn of(language: &str) -> Self {
        match language.trim().to_ascii_lowercase().as_str() {
            "" | "python" | "python3" => Self::Python,
            "javascript" | "js" | "typescript" | "ts" => Self::Javascript,
            "bash" => Self::Bash,
            _ => Self::Other,
        }
    }

    /// A cell without effect or output.
    pub(super) fn nothing(self) -> &'static str {
        match self {
            Self::Python => "pass",
            Self::Javascript => "void 0",
            Self::Bash => ":",
            Self::Other => "",
        }
    }

    /// A cell that sets variables and remembers what was there before.
    pub(super) fn set_envs(self, envs: &BTreeMap<String, Secret>) -> Result<String, E2bError> {
        let data = literal(envs)?;
        match self {
            Self::Python => Ok(python(PYTHON_SET, &data)),
            Self::Javascript => Ok(JAVASCRIPT_SET.replace("DATA", &data)),
            Self::Bash | Self::Other => Err(unsupported()),
        }
    }

    /// A cell that takes back what [`Kernel::set_envs`] set. Does nothing when nothing is set.
    pub(super) fn unset_envs(self) -> &'static str {
        match self {
            Self::Python => PYTHON_UNSET,
            Self::Javascript => JAVASCRIPT_UNSET,
            Self::Bash | Self::Other => self.nothing(),
        }
    }

    /// A cell that changes the directory and sets lasting variables; `None` when there is nothing to do.
    pub(super) fn set_up(self, setup: &Setup) -> Result<Option<String>, E2bError> {
        if *setup == Setup::default() {
            return Ok(None);
        }
        let cwd = BASE64_STANDARD.encode(setup.cwd.as_deref().unwrap_or("."));
        let data = literal(&setup.envs)?;
        match self {
            Self::Python => Ok(Some(python(PYTHON_SET_UP, &data).replace("CWD", &cwd))),
            Self::Javascript => Ok(Some(JAVASCRIPT_SET_UP.replace("DATA", &data).replace("CWD", &cwd))),
            Self::Bash | Self::Other => Err(unsupported()),
        }
    }
}

fn unsupported() -> E2bError {
    let problem =
        "can be set in Python, JavaScript and TypeScript contexts, and for shell commands".to_owned();
    E2bError::Setting { what: "environment variables", problem }
}

/// Names and values as base64 of a JSON object.
fn literal(envs: &BTreeMap<String, Secret>) -> Result<String, E2bError> {
    let refuse =
        |problem: &str| E2bError::Setting { what: "environment variable", problem: problem.to_owned() };
    for (name, value) in envs {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(refuse("has a name that is empty or holds `=` or a zero byte"));
        }
        if value.expose().contains('\0') {
            return Err(refuse("has a value with a zero byte"));
        }
    }
    let json = serde_json::to_vec(envs).map_err(|error| E2bError::protocol("a request", error))?;
    Ok(BASE64_STANDARD.encode(json))
}

fn python(template: &str, data: &str) -> String {
    template.replace("DATA", data)
}

/// Runs in a namespace of its own, leaves no name behind, and takes its own source out of IPython's history.
const PYTHON_SET: &str = r#"exec("""
import base64, json, os
new = json.loads(base64.b64decode("DATA"))
os.environ.__dict__.setdefault("_pathbox_before", []).append({name: os.environ.get(name) for name in new})
os.environ.update(new)
try:
    history = get_ipython().history_manager
    for kept in (history.input_hist_raw, history.input_hist_parsed):
        kept[-1] = ""
    history._i00 = ""
    with history.db_input_cache_lock:
        del history.db_input_cache[-1:]
except Exception:
    pass
""", {"get_ipython": globals().get("get_ipython")})
"#;

const PYTHON_UNSET: &str = r#"exec("""
import os
for before in reversed(os.environ.__dict__.pop("_pathbox_before", [])):
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
""", {})
"#;

const PYTHON_SET_UP: &str = r#"exec("""
import base64, json, os
os.environ.update(json.loads(base64.b64decode("DATA")))
os.chdir(base64.b64decode("CWD"))
try:
    history = get_ipython().history_manager
    for kept in (history.input_hist_raw, history.input_hist_parsed):
        kept[-1] = ""
    history._i00 = ""
    with history.db_input_cache_lock:
        del history.db_input_cache[-1:]
except Exception:
    pass
""", {"get_ipython": globals().get("get_ipython")})
"#;

const JAVASCRIPT_SET: &str = r#"void ((names) => {
  const kept = Symbol.for("pathbox.before");
  const before = Object.fromEntries(Object.keys(names).map((name) => [name, process.env[name]]));
  (globalThis[kept] ??= []).push(before);
  Object.assign(process.env, names);
})(JSON.parse(Buffer.from("DATA", "base64").toString()))"#;

const JAVASCRIPT_UNSET: &str = r#"void (() => {
  const kept = Symbol.for("pathbox.before");
  for (const before of (globalThis[kept] ?? []).reverse())
    for (const [name, value] of Object.entries(before))
      if (value === undefined) delete process.env[name]; else process.env[name] = value;
  delete globalThis[kept];
})()"#;

const JAVASCRIPT_SET_UP: &str = r#"void ((names, cwd) => {
  Object.assign(process.env, names);
  process.chdir(cwd);
})(JSON.parse(Buffer.from("DATA", "base64").toString()), Buffer.from("CWD", "base64").toString())"#;

/// What is said in their place: they come when text could not be encoded, which is then lost.
pub(super) const OUTPUT_LOST: &str = "note: the provider could not send a part of the output, and lost it. It cannot send \
    half of a surrogate pair, such as '\\ud800'; print(ascii(text)) shows one\n";

/// Tracebacks of the hosted server's own libraries, which it sends as the program's standard error.
pub(super) fn is_noise(stderr: &str) -> bool {
    stderr.contains("zmqstream.py") && stderr.contains("Traceback (most recent call last)")
        || stderr.starts_with("Exception in callback functools.partial(<bound method ZMQStream")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Values that break naive quoting in one language or another.
    const NASTY: [(&str, &str); 6] = [
        ("QUOTE", "it's \"quoted\" `x` $HOME ${Y}"),
        ("BACKSLASH", r"C:\new\table"),
        ("LINES", "a\nb\r\n\tc"),
        ("UNICODE", "é€😀\u{2028}"),
        ("CODE", "'; import os; os._exit(3) #\"\"\")"),
        ("EMPTY", ""),
    ];

    fn envs() -> BTreeMap<String, Secret> {
        NASTY.iter().map(|(name, value)| ((*name).to_owned(), Secret::new(*value))).collect()
    }

    fn python(cells: &[&str]) -> String {
        let output =
            Command::new("python3").env("QUOTE", "before").args(["-c", &cells.join("\n")]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn python_gets_every_value_as_it_is_and_gives_all_back() {
        let kernel = Kernel::of("Python");
        let show = r#"import os, json; print(json.dumps({k: os.environ.get(k) for k in "QUOTE BACKSLASH LINES UNICODE CODE EMPTY".split()}))"#;
        let set = kernel.set_envs(&envs()).unwrap();
        let shown = python(&[&set, show, &set, kernel.unset_envs(), show, kernel.unset_envs(), show]);
        let shown: Vec<BTreeMap<String, Option<String>>> =
            shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for (name, value) in NASTY {
            assert_eq!(shown[0][name].as_deref(), Some(value), "{name}");
            let before = (name == "QUOTE").then_some("before");
            assert_eq!(shown[1][name].as_deref(), before, "{name}");
            assert_eq!(shown[2][name].as_deref(), before, "{name}");
        }
    }

    #[test]
    fn a_setup_changes_the_directory() {
        let setup = Setup { cwd: Some("/tmp".to_owned()), envs: envs() };
        let cell = Kernel::Python.set_up(&setup).unwrap().unwrap();
        assert_eq!(
            python(&[&cell, "import os; print(os.getcwd(), os.environ['LINES'] == 'a\\nb\\r\\n\\tc')"]),
            "/tmp True\n"
        );
        assert_eq!(Kernel::Python.set_up(&Setup::default()).unwrap(), None);
    }

    #[test]
    fn a_name_that_no_process_can_have_is_refused_and_no_value_is_repeated() {
        for (name, value) in [("", "secret"), ("A=B", "secret"), ("A\0", "secret"), ("A", "sec\0ret")] {
            let envs = BTreeMap::from([(name.to_owned(), Secret::new(value))]);
            let error = Kernel::Python.set_envs(&envs).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("sec"), "{error:?}");
        }
    }
}
