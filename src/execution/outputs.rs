//! Whole outputs, pictures and files of runs as objects, so that a result can be short and a resource complete.
//!
//! Only guarded text and the pictures that the guard let pass come in here. An object's key is
//! `<execution id>/<name>`; who may read it is asked of the store first. A place that cannot be written costs the
//! object and its link, never the run, and nothing that was cut counts as whole.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::{Clock, ExecutionId, OutputChunk, TenantId, lock};
use crate::guard::Sanitized;
use crate::objects::{ObjectError, Objects, UPLOADS};
use crate::telemetry::chain;

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
    /// Whether there was more than is kept: the end is missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// An upload in parts, which are numbered from 1.
#[derive(Debug, Clone, Copy)]
pub struct Upload<'a> {
    /// Whose.
    pub tenant: &'a TenantId,
    /// Which of the tenant's.
    pub id: ExecutionId,
}

impl Upload<'_> {
    fn key(&self) -> String {
        format!("{UPLOADS}/{}/{}", self.tenant, self.id)
    }

    fn part(&self, number: usize) -> String {
        format!("{}/part-{number}", self.key())
    }
}

/// Bytes that are read in one go.
const PAGE: usize = 1024 * 1024;

/// Where outputs are kept.
#[derive(Debug, Clone)]
pub struct Outputs {
    objects: Objects,
    /// Where an output lies while it grows.
    scratch: PathBuf,
    max_bytes: u64,
    clock: Clock,
    /// When the last one was lost, if it was.
    lost: Arc<Mutex<Option<DateTime<Utc>>>>,
}

impl Outputs {
    /// Keeps outputs as objects, each at most `max_bytes` long; they grow in files without names under `scratch`.
    pub fn new(objects: Objects, scratch: PathBuf, max_bytes: u64, clock: Clock) -> Self {
        Self { objects, scratch, max_bytes, clock, lost: Arc::default() }
    }

    /// When the last output that was to be kept was lost, if it was.
    pub(super) fn lost_at(&self) -> Option<DateTime<Utc>> {
        *lock(&self.lost)
    }

    /// Notes whether an object was kept.
    fn noted(&self, kept: Result<(), ObjectError>) -> Result<(), ObjectError> {
        self.note(kept.is_err());
        kept
    }

    fn note(&self, is_lost: bool) {
        *lock(&self.lost) = is_lost.then(|| self.clock.now());
    }

    /// The key of an output; none for a name that leads elsewhere.
    fn key(execution: ExecutionId, name: &str) -> Option<String> {
        let safe = !name.is_empty()
            && name.len() <= 64
            && !name.starts_with('.')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-');
        safe.then(|| format!("{execution}/{name}"))
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
            cut: false,
            failed: false,
        }
    }

    /// Keeps one whole output.
    ///
    /// # Errors
    /// [`ObjectError`]; nothing is kept then.
    pub async fn put(
        &self,
        execution: ExecutionId,
        name: &str,
        mime_type: &str,
        bytes: &Sanitized<Vec<u8>>,
    ) -> Result<Artifact, ObjectError> {
        let key = Self::key(execution, name).ok_or(ObjectError::Missing)?;
        self.noted(self.objects.put(&key, Bytes::copy_from_slice(bytes)).await)?;
        Ok(Artifact {
            uri: Self::uri(execution, name),
            name: name.to_owned(),
            mime_type: mime_type.to_owned(),
            bytes: bytes.len() as u64,
            cut: false,
        })
    }

    /// Keeps a long file that the guard has seen.
    ///
    /// # Errors
    /// [`ObjectError`]; nothing is kept then.
    pub async fn put_file(
        &self,
        execution: ExecutionId,
        name: &str,
        mime_type: &str,
        file: Sanitized<File>,
    ) -> Result<Artifact, ObjectError> {
        let key = Self::key(execution, name).ok_or(ObjectError::Missing)?;
        let bytes = file.metadata().map_err(ObjectError::Spool)?.len();
        self.noted(self.objects.put_file(&key, file.into_inner()).await)?;
        Ok(Artifact {
            uri: Self::uri(execution, name),
            name: name.to_owned(),
            mime_type: mime_type.to_owned(),
            bytes,
            cut: false,
        })
    }

    /// A file without a name for what is on its way.
    ///
    /// # Errors
    /// That the data directory cannot be written.
    pub fn scratch(&self) -> std::io::Result<File> {
        tempfile::tempfile_in(&self.scratch)
    }

    /// Keeps a part of an upload. It belongs to no run, so nothing leads to it but the upload.
    ///
    /// # Errors
    /// [`ObjectError`]; nothing is kept then.
    pub async fn put_part(&self, upload: Upload<'_>, number: usize, file: File) -> Result<(), ObjectError> {
        self.noted(self.objects.put_file(&upload.part(number), file).await)
    }

    /// Bytes of other parts that are kept: of the same upload, and of all uploads of the tenant.
    ///
    /// # Errors
    /// The object store's.
    pub async fn kept_beside(&self, upload: Upload<'_>, number: usize) -> Result<(u64, u64), ObjectError> {
        let (part, same) = (upload.part(number), format!("{}/", upload.key()));
        let (mut of_upload, mut of_tenant) = (0, 0);
        for (key, bytes) in self.objects.sizes_below(&format!("{UPLOADS}/{}", upload.tenant)).await? {
            let counted = if key == part { 0 } else { bytes };
            of_tenant += counted;
            of_upload += if key.starts_with(&same) { counted } else { 0 };
        }
        Ok((of_upload, of_tenant))
    }

    /// Adds a part of an upload to a file. Gives its length.
    ///
    /// # Errors
    /// [`ObjectError::Missing`] when it has not come, else the object store's.
    pub async fn take_part(
        &self,
        upload: Upload<'_>,
        number: usize,
        to: &mut File,
    ) -> Result<u64, ObjectError> {
        let key = upload.part(number);
        let mut at = 0;
        loop {
            let (piece, total) = self.objects.read(&key, at, PAGE).await?;
            to.write_all(&piece).map_err(ObjectError::Spool)?;
            at += piece.len() as u64;
            if at >= total || piece.is_empty() {
                return Ok(total);
            }
        }
    }

    /// Removes the parts of an upload that has ended.
    pub async fn remove_parts(&self, upload: Upload<'_>) {
        if let Err(error) = self.objects.remove_below(&upload.key()).await {
            tracing::debug!(error = %chain(&error), "parts of an upload could not be removed");
        }
    }

    /// Removes the parts that were sent before `cutoff`.
    pub async fn remove_parts_before(&self, cutoff: DateTime<Utc>) {
        if let Err(error) = self.objects.remove_below_before(UPLOADS, cutoff).await {
            tracing::warn!(error = %chain(&error), "parts of expired uploads could not be removed");
        }
    }

    /// At most `limit` bytes of an output from `offset`, and its whole length.
    ///
    /// # Errors
    /// [`ObjectError::Missing`] when there is no such output, else the object store's.
    pub async fn read(
        &self,
        execution: ExecutionId,
        name: &str,
        offset: u64,
        limit: usize,
    ) -> Result<(Bytes, u64), ObjectError> {
        let key = Self::key(execution, name).ok_or(ObjectError::Missing)?;
        self.objects.read(&key, offset, limit).await
    }

    /// Removes outputs that were written before `cutoff`.
    pub async fn remove_before(&self, cutoff: DateTime<Utc>) -> usize {
        self.objects.remove_before(cutoff).await
    }
}

/// An output that grows while a run streams: in memory first, in a file without a name once it is too long for the
/// result, an object at the end.
#[derive(Debug)]
pub struct Spool {
    outputs: Outputs,
    execution: ExecutionId,
    name: &'static str,
    memory: Vec<u8>,
    keep_in_memory: usize,
    file: Option<File>,
    bytes: u64,
    cut: bool,
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
        if self.failed {
            return;
        }
        if let Err(error) = self.write(text) {
            tracing::warn!(error = %error, execution.id = %self.execution, "an output could not be kept completely");
            self.failed = true;
        }
    }

    fn write(&mut self, text: &[u8]) -> std::io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                let mut file = tempfile::tempfile_in(&self.outputs.scratch)?;
                file.write_all(&self.memory)?;
                self.bytes = self.memory.len() as u64;
                self.memory = Vec::new();
                file
            }
        };
        let room = usize::try_from(self.outputs.max_bytes.saturating_sub(self.bytes)).unwrap_or(usize::MAX);
        let part = &text[..text.len().min(room)];
        self.cut |= part.len() < text.len();
        file.write_all(part)?;
        self.bytes += part.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    /// Puts what is in memory into the file too: the result does not show the whole of it.
    pub fn keep(&mut self) {
        if self.file.is_none()
            && !self.failed
            && !self.memory.is_empty()
            && let Err(error) = self.write(&[])
        {
            tracing::warn!(error = %error, execution.id = %self.execution, "an output could not be kept completely");
            self.failed = true;
        }
    }

    /// The artifact, when the output was too long for the result and is kept now. One that could not be written whole
    /// is not kept at all.
    pub async fn finish(self) -> Option<Artifact> {
        if self.failed {
            self.outputs.note(true);
            return None;
        }
        let (file, key) = (self.file?, Outputs::key(self.execution, self.name)?);
        if let Err(error) = self.outputs.noted(self.outputs.objects.put_file(&key, file).await) {
            tracing::warn!(error = %chain(&error), execution.id = %self.execution, "an output could not be kept");
            return None;
        }
        Some(Artifact {
            uri: Outputs::uri(self.execution, self.name),
            name: self.name.to_owned(),
            mime_type: "text/plain".to_owned(),
            bytes: self.bytes,
            cut: self.cut,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::Options;

    fn id() -> ExecutionId {
        "0198f3c0-1111-7000-8000-000000000001".parse().unwrap()
    }

    fn outputs(dir: &tempfile::TempDir) -> Outputs {
        let objects = Objects::open(&Options::Directory(dir.path().to_owned())).unwrap();
        Outputs::new(objects, dir.path().to_owned(), 100, Clock::system())
    }

    #[tokio::test]
    async fn names_that_lead_elsewhere_are_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = outputs(&dir);
        let bytes = Sanitized::fixed("x").map(String::into_bytes);
        for name in ["", ".", "..", "../x", "a/b", "a\0b", ".hidden", &"x".repeat(65)] {
            assert!(outputs.put(id(), name, "text/plain", &bytes).await.is_err(), "{name:?}");
            assert!(outputs.read(id(), name, 0, 10).await.is_err(), "{name:?}");
        }
        assert_eq!(Outputs::parse_uri(&Outputs::uri(id(), "stdout")), Some((id(), "stdout")));
        assert_eq!(Outputs::parse_uri("pathbox://executions/nope/stdout"), None);
    }

    #[tokio::test]
    async fn an_output_that_is_too_long_to_keep_says_that_its_end_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let outputs = outputs(&dir);
        const LONG: &str = match std::str::from_utf8(&[b'x'; 101]) {
            Ok(text) => text,
            Err(_) => "",
        };
        for (length, cut) in [(100, false), (101, true)] {
            let mut spool = outputs.spool(id(), "stdout", 10);
            let text = Sanitized::fixed(&LONG[..length]).map(OutputChunk::Stdout);
            spool.push(&text);
            let artifact = spool.finish().await.unwrap();
            assert_eq!((artifact.bytes, artifact.cut), (100, cut));
            assert_eq!(outputs.read(id(), "stdout", 0, 1000).await.unwrap().0.len(), 100);
        }
    }
}
