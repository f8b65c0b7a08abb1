//! The rule packs of this installation: those that come with the program, and those added under the data directory.
//!
//! A pack is read when a call names it, so one that was just added serves at once. Packs belong to the operator; every
//! tenant may name them.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::analysis::pack::{self, MAX_PACK_BYTES, PackError};
use crate::analysis::{AnalysisError, Checked, Kind, Pack};
use crate::domain::Clock;

/// The document in a pack's directory.
const DOCUMENT: &str = "pack.json";

/// Where packs are found. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Packs {
    dir: PathBuf,
    clock: Clock,
}

/// A pack could not be added, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum PacksError {
    /// The document is not a pack; its author corrects it.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// A file cannot be read or written.
    #[error("{} cannot be used", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is already another pack of that name. A pack that changes gets a new version.
    #[error("there is already a pack {0} with other rules; give the changed one a new version")]
    Exists(String),
    /// There is no pack of that name that could be removed.
    #[error("there is no added pack {0}; `pathbox packs ls` lists them")]
    Unknown(String),
}

impl Packs {
    /// Packs under `dir`, which need not exist. The clock decides whether a pack's rules still apply.
    pub fn new(dir: PathBuf, clock: Clock) -> Self {
        Self { dir, clock }
    }

    /// The parameters of a call that names a pack.
    ///
    /// # Errors
    /// [`AnalysisError`]: there is no such pack, it is for another analysis, or the parameters have the wrong form.
    pub fn complete(
        &self,
        name: &str,
        kind: Kind,
        given: &Map<String, Value>,
    ) -> Result<Checked, AnalysisError> {
        self.find(name)?.complete(kind, given, self.clock.now().date_naive())
    }

    /// All packs by name; what cannot be read is named with the reason.
    pub fn list(&self) -> Vec<(String, Result<Pack, PacksError>)> {
        let mut all: Vec<_> = built_in().map(|pack| (pack.name(), Ok(pack))).collect();
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if pack::is_pack_name(&name) {
                let pack = read(&entry.path());
                all.push((name, pack));
            }
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// A line for each pack that is for this analysis: its name and title.
    pub fn of(&self, kind: Kind) -> Vec<String> {
        let readable = self.list().into_iter().filter_map(|(name, pack)| Some((name, pack.ok()?)));
        readable
            .filter(|(_, pack)| pack.kind() == kind)
            .map(|(name, pack)| format!("{name}: {}", pack.info().title))
            .collect()
    }

    /// The pack that a call names.
    ///
    /// # Errors
    /// [`AnalysisError::Refused`] with the names that exist, or with what is wrong with the pack's document.
    pub fn find(&self, name: &str) -> Result<Pack, AnalysisError> {
        let refused = |message| AnalysisError::Refused { path: "pack".to_owned(), message };
        if let Some(pack) = built_in().find(|pack| pack.name() == name) {
            return Ok(pack);
        }
        let dir = self.dir.join(name);
        if !pack::is_pack_name(name) || !dir.is_dir() {
            let names: Vec<_> = self.list().into_iter().map(|(name, _)| name).collect();
            let message = format!("there is no rule pack {name:?}; there are: {}", names.join(", "));
            return Err(refused(message));
        }
        let pack = read(&dir).map_err(|error| refused(format!("{name}: {error}")))?;
        if pack.name() != name {
            return Err(refused(format!("the directory {name} holds the pack {}", pack.name())));
        }
        Ok(pack)
    }

    /// Reads a document, from a file or from the directory that holds it, without adding it.
    ///
    /// # Errors
    /// [`PacksError`]: the author corrects the document.
    pub fn read(path: &Path) -> Result<Pack, PacksError> {
        read(path)
    }

    /// Adds a pack that was read; adding it again changes nothing.
    ///
    /// # Errors
    /// [`PacksError`].
    pub fn add(&self, pack: &Pack) -> Result<(), PacksError> {
        let name = pack.name();
        if let Some(known) = self.list().into_iter().find_map(|(known, pack)| (known == name).then_some(pack))
        {
            return if known.is_ok_and(|known| known == *pack) {
                Ok(())
            } else {
                Err(PacksError::Exists(name))
            };
        }
        let dir = self.dir.join(&name);
        let half = self.dir.join(format!(".{name}.new"));
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| PacksError::Io { path, source }
        };
        std::fs::create_dir_all(&half).map_err(io(&half))?;
        std::fs::write(half.join(DOCUMENT), pack.bytes()).map_err(io(&half))?;
        std::fs::rename(&half, &dir).map_err(io(&dir))
    }

    /// Removes an added pack.
    ///
    /// # Errors
    /// [`PacksError::Unknown`], or what the file system says.
    pub fn remove(&self, name: &str) -> Result<(), PacksError> {
        let dir = self.dir.join(name);
        if !pack::is_pack_name(name) || !dir.is_dir() {
            return Err(PacksError::Unknown(name.to_owned()));
        }
        std::fs::remove_dir_all(&dir).map_err(|source| PacksError::Io { path: dir, source })
    }
}

fn built_in() -> impl Iterator<Item = Pack> {
    pack::built_in().iter().filter_map(|text| Pack::parse(text.as_bytes()).ok())
}

fn read(path: &Path) -> Result<Pack, PacksError> {
    use std::io::Read as _;
    let path = if path.is_dir() { path.join(DOCUMENT) } else { path.to_owned() };
    let mut bytes = Vec::new();
    std::fs::File::open(&path)
        .and_then(|file| file.take(MAX_PACK_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(|source| PacksError::Io { path, source })?;
    Ok(Pack::parse(&bytes)?)
}
