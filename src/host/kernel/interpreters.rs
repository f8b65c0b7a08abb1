//! Which interpreters this machine has. A missing one is not an error; it is named, with the package that brings it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;

/// A language that the host can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Language {
    /// Python 3.8 or later.
    Python,
    /// JavaScript on Node.js 18 or later.
    JavaScript,
    /// TypeScript: types are taken away, then as JavaScript.
    TypeScript,
    /// Bash.
    Bash,
}

impl Language {
    /// The language for a name of the protocol, trimmed and in any case, with E2B's aliases `js` and `ts`;
    /// and the name that its context then carries.
    ///
    /// ```
    /// use pathbox::host::kernel::Language;
    /// assert_eq!(Language::parse(" Python "), Some((Language::Python, "python")));
    /// assert_eq!(Language::parse("js"), Some((Language::JavaScript, "javascript")));
    /// assert_eq!(Language::parse("py"), None);
    /// ```
    pub fn parse(name: &str) -> Option<(Self, &'static str)> {
        Some(match name.trim().to_lowercase().as_str() {
            "python" => (Self::Python, "python"),
            // The name of Jupyter's kernel; at E2B, too, it is a context of its own.
            "python3" => (Self::Python, "python3"),
            "javascript" | "js" => (Self::JavaScript, "javascript"),
            "typescript" | "ts" => (Self::TypeScript, "typescript"),
            "bash" => (Self::Bash, "bash"),
            _ => return None,
        })
    }
}

/// Where to look for interpreters.
#[derive(Debug, Clone)]
pub struct Search {
    /// A Python to use instead of the `python3` that is found: usually of a virtual environment with the
    /// packages that programs need, or the directory of one. It is bound into every sandbox read-only.
    pub python: Option<PathBuf>,
    /// A Node.js to use instead of the `node` that is found.
    pub node: Option<PathBuf>,
    /// Directories in which `python3`, `node` and `bash` are looked for, the first hit counts.
    pub path: Vec<PathBuf>,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            python: None,
            node: None,
            path: ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from).into(),
        }
    }
}

/// The interpreters that were found.
#[derive(Debug, Clone, Default)]
pub struct Interpreters {
    python: Option<Found>,
    node: Option<Found>,
    bash: Option<Found>,
    /// Why one that was looked for cannot be used.
    problems: Vec<Problem>,
}

#[derive(Debug, Clone)]
struct Found {
    program: PathBuf,
    /// Directories that it needs.
    dirs: Vec<PathBuf>,
    version: String,
    matplotlib: bool,
}

/// An interpreter that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{program} {what}; install Debian's package {package}")]
pub struct Problem {
    /// `python3`, `node` or `bash`.
    pub program: &'static str,
    /// The error in it.
    pub what: String,
    /// The Debian package that brings it.
    pub package: &'static str,
}

/// What Python prints about itself.
const ASK_PYTHON: &str = "import sys,json,importlib.util as u;print(json.dumps(dict(program=sys.executable,\
    version='%d.%d.%d'%sys.version_info[:3],dirs=[sys.prefix,sys.base_prefix],matplotlib=bool(u.find_spec('matplotlib')))))";
const ASK_NODE: &str = "console.log(JSON.stringify({program:process.execPath,version:process.versions.node,\
    dirs:[require('path').dirname(require('path').dirname(process.execPath))]}))";

#[derive(Debug, Deserialize)]
struct About {
    program: PathBuf,
    version: String,
    dirs: Vec<PathBuf>,
    #[serde(default)]
    matplotlib: bool,
}

/// The interpreter of a virtual environment, for its directory; of anything else the path itself.
pub fn python_of(path: PathBuf) -> PathBuf {
    if path.is_dir() { path.join("bin/python3") } else { path }
}

impl Interpreters {
    /// Looks for them, and asks each where it lives. Takes some tens of milliseconds.
    pub async fn find(search: &Search) -> Self {
        let given = search.python.clone().map(python_of);
        let (python, node) = tokio::join!(
            ask(given.or_else(|| look(search, "python3")), &["-I", "-c", ASK_PYTHON], (3, 8)),
            ask(search.node.clone().or_else(|| look(search, "node")), &["-e", ASK_NODE], (18, 0)),
        );
        let bash = look(search, "bash").ok_or_else(|| "was not found".to_owned()).map(|program| Found {
            program,
            dirs: Vec::new(),
            version: String::new(),
            matplotlib: false,
        });
        let mut found = Self::default();
        for (slot, asked, program, package) in [
            (&mut found.python, python, "python3", "python3"),
            (&mut found.node, node, "node", "nodejs"),
            (&mut found.bash, bash, "bash", "bash"),
        ] {
            match asked {
                Ok(about) => *slot = Some(about),
                Err(what) => found.problems.push(Problem { program, what, package }),
            }
        }
        found
    }

    /// Directories that a sandbox must see, read-only and at the same path, so that the interpreters work. What is
    /// below `/usr` and `/bin` every sandbox has.
    pub fn dirs(&self) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = [&self.python, &self.node]
            .into_iter()
            .flatten()
            .flat_map(|found| &found.dirs)
            .filter(|dir| !["/usr", "/bin", "/lib"].iter().any(|system| dir.starts_with(system)))
            .filter(|dir| dir.parent().is_some())
            .cloned()
            .collect();
        dirs.sort();
        dirs.dedup();
        dirs
    }

    /// Directories of the interpreters' own programs, in which other programs are looked for first: `python3` of a shell is
    /// then the one that runs cells.
    pub fn bins(&self) -> Vec<PathBuf> {
        let programs = [&self.python, &self.node].into_iter().flatten().map(|found| &found.program);
        let mut bins: Vec<PathBuf> =
            programs.filter_map(|program| program.parent()).map(PathBuf::from).collect();
        bins.dedup();
        bins.retain(|bin| {
            !["/usr/local/bin", "/usr/bin", "/bin"].iter().any(|system| bin == Path::new(system))
        });
        bins
    }

    /// Those that cannot be used, and why.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Name and version of each that can be used.
    pub fn versions(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [("python3", &self.python), ("node", &self.node), ("bash", &self.bash)]
            .into_iter()
            .filter_map(|(name, found)| found.as_ref().map(|found| (name, found.version.as_str())))
    }

    /// The Python, if it has matplotlib.
    pub(crate) fn matplotlib(&self) -> Option<&Path> {
        self.python.as_ref().filter(|python| python.matplotlib).map(|python| python.program.as_path())
    }

    /// The program that runs a language.
    pub(super) fn program(&self, language: Language) -> Result<&Path, &Problem> {
        let (found, name) = match language {
            Language::Python => (&self.python, "python3"),
            Language::JavaScript | Language::TypeScript => (&self.node, "node"),
            Language::Bash => (&self.bash, "bash"),
        };
        match found {
            Some(found) => Ok(&found.program),
            None => {
                Err(self.problems.iter().find(|problem| problem.program == name).unwrap_or(&NOT_LOOKED_FOR))
            }
        }
    }
}

static NOT_LOOKED_FOR: Problem =
    Problem { program: "the interpreter", what: String::new(), package: "python3, nodejs or bash" };

fn look(search: &Search, name: &str) -> Option<PathBuf> {
    search.path.iter().map(|dir| dir.join(name)).find(|path| path.is_file())
}

async fn ask(program: Option<PathBuf>, arguments: &[&str], at_least: (u32, u32)) -> Result<Found, String> {
    let program = program.ok_or("was not found")?;
    let asked = tokio::process::Command::new(&program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(20), asked)
        .await
        .map_err(|_| format!("at {} does not answer", program.display()))?
        .map_err(|error| format!("at {} does not start: {error}", program.display()))?;
    let about: About = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("at {} does not say what it is", program.display()))?;
    let mut numbers = about.version.split('.').map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < at_least {
        return Err(format!("{} is too old, {}.{} is needed", about.version, at_least.0, at_least.1));
    }
    let About { program, dirs, matplotlib, .. } = about;
    Ok(Found { program, dirs, version: about.version, matplotlib })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_interpreter_is_named_with_its_package() {
        let nowhere = Search { path: vec!["/nowhere".into()], ..Search::default() };
        let found = Interpreters::find(&nowhere).await;
        let said: Vec<String> = found.problems().iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "python3 was not found; install Debian's package python3",
                "node was not found; install Debian's package nodejs",
                "bash was not found; install Debian's package bash"
            ]
        );
        assert!(found.program(Language::TypeScript).is_err_and(|problem| problem.package == "nodejs"));
        assert!(found.dirs().is_empty());
    }

    #[tokio::test]
    async fn python_is_asked_where_it_lives() {
        let found = Interpreters::find(&Search::default()).await;
        assert!(found.program(Language::Python).is_ok(), "this suite needs python3: {:?}", found.problems());
        assert!(found.versions().any(|(name, version)| name == "python3" && version.starts_with("3.")));
    }

    #[tokio::test]
    async fn a_program_that_is_not_an_interpreter_is_not_used() {
        let odd =
            Search { python: Some("/bin/true".into()), node: Some("/bin/cat".into()), ..Search::default() };
        let found = Interpreters::find(&odd).await;
        assert_eq!(found.problems()[0].what, "at /bin/true does not say what it is");
        assert_eq!(found.problems()[1].what, "at /bin/cat does not say what it is");
    }
}
