//! Templates: environments that sandboxes are made from, each made once and kept in a directory of its own.
//!
//! A template is what `pathbox templates add` installed, or points at an environment that is there already. Sandboxes see it
//! read-only at its own path, and its programs come first wherever programs are looked for, so that cells, Bash and child
//! processes run the same interpreter. Its description is written last: without one, a directory is not a template.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::kernel::python_of;
use crate::domain::Clock;

/// The description of a template, in its directory.
const DESCRIPTION: &str = "template.json";

/// A template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Its name: what `templateID` and a tenant's `template` name.
    pub name: String,
    /// Its Python; `None` uses the host's.
    pub python: Option<PathBuf>,
    /// Directory of its npm packages, found by `require` through `NODE_PATH`.
    pub node_modules: Option<PathBuf>,
    /// Modules that its Python interpreters import before their first cell, in sandboxes that are kept ready.
    pub preload: Vec<String>,
    /// The request, unchanged.
    pub packages: Vec<String>,
    /// Those that models know, with their versions, as its Python found them when it was made.
    #[serde(default)]
    pub known: Vec<String>,
    /// When it was made.
    pub created: DateTime<Utc>,
}

/// The contents of a new template.
#[derive(Debug, Clone, Default)]
pub struct NewTemplate {
    /// 1 to 64 of `a-z 0-9 . _ -`, beginning with a letter or digit.
    pub name: String,
    /// Python packages, as pip takes them.
    pub pip: Vec<String>,
    /// A requirements file of pip's.
    pub requirements: Option<PathBuf>,
    /// npm packages.
    pub npm: Vec<String>,
    /// The Python to make the environment with; or, without packages, an environment's Python to use as it is.
    pub python: Option<PathBuf>,
    /// See [`Template::preload`].
    pub preload: Vec<String>,
}

/// Something about a template did not work.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The name does not fit.
    #[error(
        "{0:?} is not 1 to 64 of a-z 0-9 . _ - beginning with a letter or digit, or is one of the host's own names"
    )]
    Name(String),
    /// There is one of this name.
    #[error("the template {0} is there already; remove it first with `pathbox templates rm {0}`")]
    Exists(String),
    /// Someone else works on it.
    #[error("another process makes or removes the template {0}; try again when it is done")]
    Busy(String),
    /// There is no template of this name.
    #[error("there is no template {0}; `pathbox templates ls` shows those that are there")]
    NotFound(String),
    /// Nothing was requested.
    #[error("a template needs --pip, --npm, --requirements or --python")]
    Empty,
    /// A program that installs did not do it.
    #[error("{program} failed with {status}; what it wrote says why")]
    Install {
        /// Which program.
        program: String,
        /// How it ended.
        status: String,
    },
    /// A file or directory could not be used.
    #[error("{doing}")]
    Io {
        /// The attempted operation.
        doing: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Names that mean the sandbox without a template.
pub(crate) const OWN_NAMES: [&str; 3] = ["code-interpreter-v1", "code-interpreter", "base"];

/// The templates of one data directory.
#[derive(Debug, Clone)]
pub struct Templates(PathBuf);

impl Templates {
    /// Those in a directory, which need not exist.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    /// All of them, by name.
    pub fn list(&self) -> Vec<Template> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut found: Vec<Template> =
            entries.filter_map(|entry| self.load(entry.file_name().to_str()?).ok()).collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// One of them.
    ///
    /// # Errors
    /// [`TemplateError::NotFound`], also for one whose making broke off.
    pub fn load(&self, name: &str) -> Result<Template, TemplateError> {
        let missing = || TemplateError::NotFound(name.to_owned());
        check_name(name).map_err(|_| missing())?;
        let text = fs::read(self.0.join(name).join(DESCRIPTION)).map_err(|_| missing())?;
        serde_json::from_slice(&text).map_err(|error| TemplateError::Io {
            doing: format!("reading the description of template {name}"),
            source: io::Error::other(error),
        })
    }

    /// Bytes on disk of what was installed for it.
    pub fn disk_bytes(&self, name: &str) -> u64 {
        let mut bytes = 0;
        let mut todo = vec![self.0.join(name)];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => todo.push(entry.path()),
                    Ok(metadata) => bytes += metadata.len(),
                    Err(_) => {}
                }
            }
        }
        bytes
    }

    /// Makes one. Programs that install write to standard error.
    ///
    /// # Errors
    /// [`TemplateError`]; nothing of it is left then.
    pub async fn add(&self, mut new: NewTemplate, clock: &Clock) -> Result<Template, TemplateError> {
        check_name(&new.name)?;
        new.python = new.python.map(python_of);
        let installs = !new.pip.is_empty() || new.requirements.is_some();
        if !installs && new.npm.is_empty() && new.python.is_none() {
            return Err(TemplateError::Empty);
        }
        let _lock = self.lock(&new.name)?;
        if self.load(&new.name).is_ok() {
            return Err(TemplateError::Exists(new.name));
        }
        let dir = self.0.join(&new.name);
        remove_dir(&dir)?; // one whose making broke off
        let made = self.make(&dir, new, installs, clock).await;
        if made.is_err() {
            remove_dir(&dir)?;
        }
        made
    }

    /// Holds a template's name: a second process would take its directory for one whose making broke off. The system lets
    /// go when this process ends.
    fn lock(&self, name: &str) -> Result<fs::File, TemplateError> {
        let at = |source| TemplateError::Io { doing: format!("locking template {name}"), source };
        make_readable(&self.0).map_err(at)?;
        let file = fs::File::create(self.0.join(format!(".{name}.lock"))).map_err(at)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => Err(TemplateError::Busy(name.to_owned())),
            Err(fs::TryLockError::Error(source)) => Err(at(source)),
        }
    }

    async fn make(
        &self,
        dir: &Path,
        new: NewTemplate,
        installs: bool,
        clock: &Clock,
    ) -> Result<Template, TemplateError> {
        let at = |doing: String| move |source| TemplateError::Io { doing, source };
        make_readable(dir).map_err(at(format!("making {}", dir.display())))?;
        let dir = dir.canonicalize().map_err(at(format!("finding {}", dir.display())))?;
        let mut packages = new.pip.clone();
        let python = match installs {
            false => new.python.clone(),
            true => {
                packages.extend(new.requirements.iter().map(|file| format!("-r {}", file.display())));
                Some(install_python(&dir, &new).await?)
            }
        };
        let node_modules = match new.npm.is_empty() {
            true => None,
            false => {
                packages.extend(new.npm.iter().map(|name| format!("npm:{name}")));
                Some(install_node(&dir, &new.npm).await?)
            }
        };
        let python = python.map(std::path::absolute).transpose().map_err(at("finding Python".into()))?;
        let known = match &python {
            Some(python) => {
                known_packages(python).await.map_err(at(format!("starting {}", python.display())))?
            }
            None => Vec::new(),
        };
        let template = Template {
            name: new.name,
            known,
            python,
            node_modules,
            preload: new.preload,
            packages,
            created: clock.now(),
        };
        describe(&dir, template)
    }

    /// Removes one. Sandboxes that were made from it may fail from then on.
    ///
    /// # Errors
    /// [`TemplateError::NotFound`], [`TemplateError::Busy`], or what the system said.
    pub fn remove(&self, name: &str) -> Result<(), TemplateError> {
        self.load(name)?;
        let _lock = self.lock(name)?;
        let dir = self.0.join(name);
        // First what makes it a template.
        fs::remove_file(dir.join(DESCRIPTION))
            .map_err(|source| TemplateError::Io { doing: format!("removing template {name}"), source })?;
        remove_dir(&dir)
    }
}

fn describe(dir: &Path, template: Template) -> Result<Template, TemplateError> {
    let at = |source| TemplateError::Io { doing: format!("describing template {}", template.name), source };
    let text = serde_json::to_vec_pretty(&template).map_err(|error| at(io::Error::other(error)))?;
    let (new, path) = (dir.join("template.new"), dir.join(DESCRIPTION));
    fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(at)?;
    Ok(template)
}

fn check_name(name: &str) -> Result<(), TemplateError> {
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_name = (1..=64).contains(&name.len())
        && name.bytes().next().is_some_and(fits)
        && name.bytes().all(|c| fits(c) || b"._-".contains(&c));
    match is_name && !OWN_NAMES.contains(&name) {
        true => Ok(()),
        false => Err(TemplateError::Name(name.to_owned())),
    }
}

fn make_readable(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir_all(dir)?;
    // Sandboxes of a privileged host run as other users; what is in there is read by all of them.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
}

fn remove_dir(dir: &Path) -> Result<(), TemplateError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(TemplateError::Io { doing: format!("removing {}", dir.display()), source: error })
        }
        _ => Ok(()),
    }
}

async fn run(program: &Path, arguments: &[&std::ffi::OsStr], cwd: &Path) -> Result<(), TemplateError> {
    let shown = program.display().to_string();
    let status = tokio::process::Command::new(program)
        .args(arguments)
        .current_dir(cwd)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .map_err(|source| TemplateError::Io { doing: format!("starting {shown}"), source })?;
    match status.success() {
        true => Ok(()),
        false => Err(TemplateError::Install { program: shown, status: status.to_string() }),
    }
}

/// Names and versions of the packages that a Python finds, as far as models reach for them.
///
/// # Errors
/// When it does not start.
pub async fn known_packages(python: &Path) -> io::Result<Vec<String>> {
    const ASK: &str = "import importlib.metadata as m\n\
        for name in 'numpy pandas matplotlib scipy scikit-learn seaborn plotly pillow requests openpyxl sympy statsmodels \
        duckdb polars pyarrow beautifulsoup4 lxml python-docx pypdf'.split():\n\
        \x20try: print(name, m.version(name))\n\
        \x20except m.PackageNotFoundError: pass\n";
    let output = tokio::process::Command::new(python)
        .args(["-I", "-c", ASK])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// An environment of its own with the packages that were asked for: its interpreter.
async fn install_python(dir: &Path, new: &NewTemplate) -> Result<PathBuf, TemplateError> {
    let program = new.python.as_deref().unwrap_or(Path::new("python3"));
    let environment = dir.join("python");
    run(program, &["-m".as_ref(), "venv".as_ref(), environment.as_os_str()], dir).await?;
    let python = environment.join("bin/python3");
    let mut arguments: Vec<&std::ffi::OsStr> =
        ["-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
            .iter()
            .map(AsRef::as_ref)
            .collect();
    if let Some(file) = &new.requirements {
        arguments.extend(["-r".as_ref(), file.as_os_str()]);
    }
    arguments.extend(new.pip.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
    // Relative to the caller's working directory, so that relative paths of packages work.
    run(&python, &arguments, Path::new(".")).await?;
    Ok(python)
}

/// Packages of npm's: the directory that `require` looks into.
async fn install_node(dir: &Path, packages: &[String]) -> Result<PathBuf, TemplateError> {
    let place = dir.join("node");
    let doing = format!("making {}", place.display());
    make_readable(&place).map_err(|source| TemplateError::Io { doing, source })?;
    // A link to a package outside of the template would lead nowhere in a sandbox.
    let mut arguments: Vec<&std::ffi::OsStr> =
        ["install", "--install-links", "--no-audit", "--no-fund", "--silent", "--prefix"]
            .iter()
            .map(AsRef::as_ref)
            .collect();
    arguments.push(place.as_os_str());
    arguments.extend(packages.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
    run(Path::new("npm"), &arguments, Path::new(".")).await?;
    Ok(place.join("node_modules"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_path_component_and_not_the_hosts_own() {
        for name in ["data-science", "a", "py3.12_x"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "../x", "a/b", "A", "-a", "base", "code-interpreter-v1", &"a".repeat(65)]
        {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[tokio::test]
    async fn a_complete_environment_can_be_a_template_and_an_incomplete_one_cannot() {
        let dir = tempfile::tempdir().unwrap();
        let templates = Templates::new(dir.path().join("templates"));
        let clock = Clock::system();
        assert!(matches!(templates.load("x"), Err(TemplateError::NotFound(_))));
        let new = NewTemplate { name: "x".into(), ..NewTemplate::default() };
        assert!(matches!(templates.add(new.clone(), &clock).await, Err(TemplateError::Empty)));
        fs::create_dir_all(dir.path().join("templates/x/python")).unwrap();
        assert!(templates.list().is_empty());
        let new = NewTemplate { python: Some("/usr/bin/python3".into()), ..new };
        let made = templates.add(new.clone(), &clock).await.unwrap();
        assert_eq!(made.python.as_deref(), Some(Path::new("/usr/bin/python3")));
        assert_eq!(templates.list(), [made]);
        assert!(matches!(templates.add(new.clone(), &clock).await, Err(TemplateError::Exists(_))));
        templates.remove("x").unwrap();
        let broken = NewTemplate {
            name: "x".into(),
            pip: vec!["/nowhere/a.whl".into()],
            python: Some("/bin/false".into()),
            ..NewTemplate::default()
        };
        assert!(matches!(templates.add(broken, &clock).await, Err(TemplateError::Install { .. })));
        assert!(!dir.path().join("templates/x").exists());
    }
}
