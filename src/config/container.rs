//! The sandbox host in a container that `pathbox container up` has started, as the data directory remembers it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::load::{ConfigError, Source, Values};
use crate::domain::Secret;

/// The file's name in the data directory.
const FILE: &str = "container.json";

/// Where the host is, what opens it, and what starts it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerHost {
    /// The program that runs containers.
    pub runtime: PathBuf,
    /// The container's name.
    pub name: String,
    /// Control plane and data plane.
    pub url: String,
    /// The host's key.
    #[serde(with = "key")]
    pub key: Secret,
}

/// A key in a file that only its owner reads.
mod key {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::domain::Secret;

    pub(super) fn serialize<S: Serializer>(key: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(key.expose())
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Secret, D::Error> {
        String::deserialize(deserializer).map(Secret::new)
    }
}

impl ContainerHost {
    /// The file in which a data directory remembers it.
    pub fn file(data_dir: &Path) -> PathBuf {
        data_dir.join(FILE)
    }

    /// The one that a data directory remembers.
    ///
    /// # Errors
    /// [`ConfigError::File`] for a file that does not say what it should.
    pub fn read(data_dir: &Path) -> Result<Option<Self>, ConfigError> {
        let path = Self::file(data_dir);
        let problem = |problem: String| ConfigError::File { path: path.clone(), problem };
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| problem(format!("{error}; remove it and run `pathbox container up`"))),
            // Where the data directory cannot be used, its own check says so.
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(problem(error.to_string())),
        }
    }
}

impl Values {
    /// A host in a container takes the place of `E2B_API_KEY` and the addresses, unless one of these settings is there.
    pub(super) fn with_container(mut self, data_dir: &Path) -> Result<Self, ConfigError> {
        let named = ["e2b.api_key", "e2b.api_url", "e2b.sandbox_url", "e2b.domain"];
        if named.into_iter().any(|key| self.source(key) != Source::Default) {
            return Ok(self);
        }
        if let Some(host) = ContainerHost::read(data_dir)? {
            let from = Source::File(ContainerHost::file(data_dir));
            for (key, value) in [
                ("e2b.api_key", host.key.expose()),
                ("e2b.api_url", &host.url),
                ("e2b.sandbox_url", &host.url),
            ] {
                self.settings.insert(key, (value.to_owned(), from.clone()));
            }
            self.container = Some(host);
        }
        Ok(self)
    }
}
