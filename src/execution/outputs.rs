//! Whole outputs and pictures of runs, kept as files so that a result can be short and a resource complete.
//!
//! Only guarded text and the pictures that the guard let pass come in here. Files lie under
//! `<data>/outputs/<execution id>/`; who may read them is asked of the store first. A full disk costs the file,
//! never the run.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::domain::{ExecutionId, OutputChunk};
use crate::guard::Sanitized;

/// Something that can be read as a resource after the result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// `pathbox://executions/{id}/{name}`.
    pub uri: String,
    /// `stdout`, `stderr`, `result-1.png`, ...
    pub name: String,
    /// Its media type.
    pub mime_type: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Where outputs are kept.
#[derive(Debug, Clone)]
pub struct Outputs {
    dir: PathBuf,
    max_bytes: u64,
}

impl Outputs {
    /// Keeps outputs under `dir`, each at most `max_bytes` long.
    pub fn new(dir: PathBuf, max_bytes: u64) -> Self {
        Self { dir, max_bytes }
    }

    fn path(&self, execution: ExecutionId, name: &str) -> Option<PathBuf> {
        let safe = !name.is_empty()
            && name.len() <= 64
            && !name.starts_with('.')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-');
        safe.then(|| self.dir.join(execution.to_string()).join(name))
    }

    /// The resource name of an output.
    pub fn uri(execution: ExecutionId, name: &str) -> String {
        format!("pathbox://executions/{execution}/{name}")
    }

    /// Takes a resource name apart.
    pub fn parse_uri(uri: &str) -> Option<(ExecutionId, &str)> {
        let (id, name) = uri.strip_prefix("pathbox://executions/")?.split_once('/')?;
        Some((id.parse().ok()?, name))
    }

    /// A growing output.
    pub fn spool(&self, execution: ExecutionId, name: &'static str, keep_in_memory: usize) -> Spool {
        Spool {
            outputs: self.clone(),
            execution,
            name,
            memory: Vec::new(),
            keep_in_memory,
            file: None,
            bytes: 0,
            failed: false,
        }
    }

    /// Writes one whole output.
    ///
    /// # Errors
    /// The file system's.
    pub fn put(
        &self,
        execution: ExecutionId,
        name: &str,
        mime_type: &str,
        bytes: &Sanitized<Vec<u8>>,
    ) -> io::Result<Artifact> {
        let path = self.path(execution, name).ok_or(io::ErrorKind::InvalidInput)?;
        self.open(&path)?.write_all(bytes)?;
        Ok(Artifact {
            uri: Self::uri(execution, name),
            name: name.to_owned(),
            mime_type: mime_type.to_owned(),
            bytes: bytes.len() as u64,
        })
    }

    fn open(&self, path: &std::path::Path) -> io::Result<std::fs::File> {
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
        if let Some(dir) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
    }

    /// At most `limit` bytes of an output from `offset`, and its whole length.
    ///
    /// # Errors
    /// `NotFound` when there is no such output, else the file system's.
    pub fn read(
        &self,
        execution: ExecutionId,
        name: &str,
        offset: u64,
        limit: usize,
    ) -> io::Result<(Vec<u8>, u64)> {
        let path = self.path(execution, name).ok_or(io::ErrorKind::NotFound)?;
        let mut file = std::fs::File::open(path)?;
        let total = file.metadata()?.len();
        file.seek(SeekFrom::Start(offset.min(total)))?;
        let mut bytes = Vec::new();
        file.take(limit as u64).read_to_end(&mut bytes)?;
        Ok((bytes, total))
    }

    /// Removes outputs that were last written more than `age` ago. Returns how many runs' outputs went.
    pub fn remove_older_than(&self, age: Duration) -> usize {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return 0 };
        let old = |entry: &std::fs::DirEntry| {
            let modified = entry.metadata().and_then(|meta| meta.modified()).ok();
            modified.and_then(|at| at.elapsed().ok()).is_some_and(|elapsed| elapsed > age)
        };
        entries.flatten().filter(old).filter(|entry| std::fs::remove_dir_all(entry.path()).is_ok()).count()
    }
}

/// An output that grows while a run streams: in memory first, in a file once it is too long for the result.
#[derive(Debug)]
pub struct Spool {
    outputs: Outputs,
    execution: ExecutionId,
    name: &'static str,
    memory: Vec<u8>,
    keep_in_memory: usize,
    file: Option<std::fs::File>,
    bytes: u64,
    failed: bool,
}

impl Spool {
    /// Adds guarded output text.
    pub fn push(&mut self, chunk: &Sanitized<OutputChunk>) {
        let (OutputChunk::Stdout(text) | OutputChunk::Stderr(text)) = &**chunk else { return };
        let text = text.as_bytes();
        if self.file.is_none() && self.memory.len() + text.len() <= self.keep_in_memory {
            self.memory.extend_from_slice(text);
            return;
        }
        if self.failed || self.bytes >= self.outputs.max_bytes {
            return;
        }
        if let Err(error) = self.write(text) {
            tracing::warn!(error = %error, execution.id = %self.execution, "an output could not be kept whole");
            self.failed = true;
        }
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                let path = self.outputs.path(self.execution, self.name).ok_or(io::ErrorKind::InvalidInput)?;
                let mut file = self.outputs.open(&path)?;
                file.write_all(&self.memory)?;
                self.bytes = self.memory.len() as u64;
                self.memory = Vec::new();
                file
            }
        };
        let room = usize::try_from(self.outputs.max_bytes - self.bytes).unwrap_or(usize::MAX);
        let part = &text[..text.len().min(room)];
        file.write_all(part)?;
        self.bytes += part.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    /// The artifact, when the output went into a file.
    pub fn finish(self) -> Option<Artifact> {
        self.file.map(|_| Artifact {
            uri: Outputs::uri(self.execution, self.name),
            name: self.name.to_owned(),
            mime_type: "text/plain".to_owned(),
            bytes: self.bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> ExecutionId {
        "0198f3c0-1111-7000-8000-000000000001".parse().unwrap()
    }

    fn bytes(text: &'static str) -> Sanitized<Vec<u8>> {
        Sanitized::fixed(text).map(String::into_bytes)
    }

    #[test]
    fn names_that_lead_elsewhere_are_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = Outputs::new(dir.path().to_owned(), 100);
        for name in ["", ".", "..", "../x", "a/b", "a\0b", ".hidden", &"x".repeat(65)] {
            assert!(outputs.put(id(), name, "text/plain", &bytes("x")).is_err(), "{name:?}");
            assert!(outputs.read(id(), name, 0, 10).is_err(), "{name:?}");
        }
    }

    #[test]
    fn an_output_is_read_in_pages_and_never_beyond_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = Outputs::new(dir.path().to_owned(), 100);
        outputs.put(id(), "stdout", "text/plain", &bytes("0123456789")).unwrap();
        assert_eq!(outputs.read(id(), "stdout", 4, 3).unwrap(), (b"456".to_vec(), 10));
        assert_eq!(outputs.read(id(), "stdout", 99, 3).unwrap(), (vec![], 10));
        assert_eq!(Outputs::parse_uri(&Outputs::uri(id(), "stdout")), Some((id(), "stdout")));
        assert_eq!(Outputs::parse_uri("pathbox://executions/nope/stdout"), None);
    }
}
