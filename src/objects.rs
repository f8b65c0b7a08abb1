//! Objects: whole outputs, pictures and files of runs, which are too large for a row and are read page by page.
//!
//! They are in the data directory, or in a bucket that speaks S3, where every replica reads them. An object is written
//! in one piece before its name is recorded anywhere, so a name that was recorded can be read. Keys are
//! `<execution id>/<name>`: the ids begin with their time, so the oldest objects of a bucket are listed first and a
//! clean-up never lists what it keeps.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload,
    RetryConfig,
};
use tokio::time::Instant;

use crate::domain::{Secret, lock};
use crate::telemetry::{chain, metrics};

/// The key below which the parts of uploads lie that are not complete.
pub const UPLOADS: &str = "uploads";
/// One request to a bucket.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A write that has failed after this long has been tried again, or was not answered.
const IN_VAIN: Duration = Duration::from_millis(500);
/// How long nothing is written after that.
const AWAY: Duration = Duration::from_secs(10);
/// All tries of a request together.
const PATIENCE: Duration = Duration::from_secs(20);
/// Parts of an upload; S3 wants at least 5 MiB.
const PART: usize = 8 * 1024 * 1024;
/// The longest run: an object may be so much younger than the id in its key.
const LONGEST_RUN: Duration = Duration::from_secs(3600);

/// Where objects are kept.
#[derive(Debug, Clone)]
pub enum Options {
    /// A directory of this machine, made when it is missing.
    Directory(PathBuf),
    /// A bucket.
    Bucket(Bucket),
}

/// A bucket that speaks S3.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// The prefix of each key; may be empty.
    pub prefix: String,
    /// Its region.
    pub region: String,
    /// Where it is served, when that is not Amazon.
    pub endpoint: Option<String>,
    /// The access key and its secret; without them those of the machine's own role are asked for.
    pub credentials: Option<(String, Secret)>,
}

/// Why an object cannot be had or kept.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The settings do not describe a place.
    #[error("the object store cannot be opened")]
    Open(#[source] object_store::Error),
    /// The directory cannot be made.
    #[error("the directory {} cannot be made", .0.display())]
    Directory(PathBuf, #[source] std::io::Error),
    /// There is no such object.
    #[error("there is no such object")]
    Missing,
    /// The store did not do it. Try again later.
    #[error("the object store failed")]
    Failed(#[source] object_store::Error),
    /// It was not tried, since the store has just failed.
    #[error("the object store has not worked for some seconds")]
    Away,
    /// The file that was to be kept cannot be read.
    #[error("the spooled output cannot be read")]
    Spool(#[source] std::io::Error),
}

impl ObjectError {
    /// Whether the same call may succeed a little later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Away)
    }
}

impl From<object_store::Error> for ObjectError {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::Missing,
            error => {
                metrics::OBJECTS_FAILED.add(&[], 1);
                Self::Failed(error)
            }
        }
    }
}

/// Objects. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// Set when they are in a directory.
    directory: Option<PathBuf>,
    /// Until when nothing is written, because a write has waited in vain.
    away_until: Arc<Mutex<Option<Instant>>>,
}

impl Objects {
    /// Opens the place; nothing is sent yet.
    ///
    /// # Errors
    /// [`ObjectError::Open`] and [`ObjectError::Directory`]: correct the settings.
    pub fn open(options: &Options) -> Result<Self, ObjectError> {
        match options {
            Options::Directory(dir) => {
                make_private(dir).map_err(|source| ObjectError::Directory(dir.clone(), source))?;
                let store = LocalFileSystem::new_with_prefix(dir)
                    .map_err(ObjectError::Open)?
                    .with_automatic_cleanup(true);
                Ok(Self {
                    store: Arc::new(store),
                    prefix: Path::default(),
                    directory: Some(dir.clone()),
                    away_until: Arc::default(),
                })
            }
            Options::Bucket(bucket) => {
                let store = open_bucket(bucket).map_err(ObjectError::Open)?;
                let prefix = Path::from(bucket.prefix.as_str());
                Ok(Self { store: Arc::new(store), prefix, directory: None, away_until: Arc::default() })
            }
        }
    }

    fn path(&self, key: &str) -> Path {
        key.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    /// Writes, unless a write has just waited in vain: a run has many outputs, and its caller waits for all of them.
    async fn written(
        &self,
        writing: impl Future<Output = Result<(), ObjectError>>,
    ) -> Result<(), ObjectError> {
        if lock(&self.away_until).is_some_and(|until| Instant::now() < until) {
            return Err(ObjectError::Away);
        }
        let begun = Instant::now();
        let written = writing.await;
        if matches!(written, Err(ObjectError::Failed(_))) && begun.elapsed() > IN_VAIN {
            *lock(&self.away_until) = Some(Instant::now() + AWAY);
        }
        written
    }

    /// Keeps bytes under a key. Anyone who reads meanwhile sees all of them or none.
    ///
    /// # Errors
    /// [`ObjectError::Failed`], [`ObjectError::Away`].
    pub async fn put(&self, key: &str, bytes: Bytes) -> Result<(), ObjectError> {
        self.written(self.put_now(key, bytes)).await
    }

    async fn put_now(&self, key: &str, bytes: Bytes) -> Result<(), ObjectError> {
        self.store.put(&self.path(key), PutPayload::from(bytes)).await?;
        Ok(())
    }

    /// Keeps a whole file under a key, part by part.
    ///
    /// # Errors
    /// [`ObjectError::Spool`], and those of [`Objects::put`]; nothing is kept then.
    pub async fn put_file(&self, key: &str, file: std::fs::File) -> Result<(), ObjectError> {
        self.written(self.put_parts(key, file)).await
    }

    async fn put_parts(&self, key: &str, mut file: std::fs::File) -> Result<(), ObjectError> {
        file.seek(SeekFrom::Start(0)).map_err(ObjectError::Spool)?;
        let first = read_part(&mut file)?;
        if first.len() < PART {
            return self.put_now(key, first).await;
        }
        let mut upload = self.store.put_multipart(&self.path(key)).await?;
        let mut part = first;
        let sent = async {
            while !part.is_empty() {
                upload.put_part(PutPayload::from(part)).await?;
                part = read_part(&mut file)?;
            }
            Ok::<_, ObjectError>(())
        };
        match sent.await {
            Ok(()) => {
                upload.complete().await?;
                Ok(())
            }
            Err(error) => {
                // What was sent is left behind when this fails too; a bucket's own rule for such parts removes it.
                let _ = upload.abort().await;
                Err(error)
            }
        }
    }

    /// At most `limit` bytes of an object from `offset`, and its whole length.
    ///
    /// # Errors
    /// [`ObjectError::Missing`], [`ObjectError::Failed`].
    pub async fn read(&self, key: &str, offset: u64, limit: usize) -> Result<(Bytes, u64), ObjectError> {
        let path = self.path(key);
        let range = offset..offset.saturating_add(limit as u64);
        let asked = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let refused = match self.store.get_opts(&path, asked).await {
            Ok(got) => {
                let total = got.meta.size;
                return Ok((got.bytes().await?, total));
            }
            Err(error @ object_store::Error::NotFound { .. }) => return Err(error.into()),
            Err(error) => error,
        };
        // A range that begins at the end or beyond it is refused; that is an empty page.
        match self.store.head(&path).await?.size {
            total if offset >= total => Ok((Bytes::new(), total)),
            _ => Err(refused.into()),
        }
    }

    /// Removes objects. What cannot be removed now goes with what is old.
    pub async fn remove(&self, keys: impl Iterator<Item = String>) {
        for key in keys {
            if let Err(error) = self.store.delete(&self.path(&key)).await {
                tracing::debug!(%error, "an object could not be removed");
            }
        }
    }

    /// What lies below a key: the key of each, and its size.
    ///
    /// # Errors
    /// [`ObjectError::Failed`].
    pub async fn sizes_below(&self, key: &str) -> Result<Vec<(String, u64)>, ObjectError> {
        let below = self.path(key);
        let named = |found: ObjectMeta| {
            let rest: Vec<_> =
                found.location.prefix_match(&below)?.map(|part| part.as_ref().to_owned()).collect();
            Some((format!("{key}/{}", rest.join("/")), found.size))
        };
        let found: Vec<ObjectMeta> = self.store.list(Some(&below)).try_collect().await?;
        Ok(found.into_iter().filter_map(named).collect())
    }

    /// Removes all objects below a key; says how many.
    ///
    /// # Errors
    /// [`ObjectError::Failed`]: some may be left.
    pub async fn remove_below(&self, key: &str) -> Result<usize, ObjectError> {
        self.remove_all(self.store.list(Some(&self.path(key)))).await
    }

    /// Removes what was written below a key before `cutoff`; says how many.
    ///
    /// # Errors
    /// [`ObjectError::Failed`]: some may be left.
    pub async fn remove_below_before(&self, key: &str, cutoff: DateTime<Utc>) -> Result<usize, ObjectError> {
        let old = self
            .store
            .list(Some(&self.path(key)))
            .try_filter(move |found| std::future::ready(found.last_modified < cutoff));
        self.remove_all(old).await
    }

    /// Removes the parts of uploads (`…/part-<number>`) that were written before `cutoff`; says how many. It lists every
    /// object, since earlier versions kept them beside the outputs.
    ///
    /// # Errors
    /// [`ObjectError::Failed`]: some may be left.
    pub async fn remove_parts_before(&self, cutoff: DateTime<Utc>) -> Result<usize, ObjectError> {
        let is_part = |path: &Path| {
            let number = path.filename().and_then(|name| name.strip_prefix("part-"));
            number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let old = self.store.list(Some(&self.prefix)).try_filter(move |found| {
            std::future::ready(found.last_modified < cutoff && is_part(&found.location))
        });
        self.remove_all(old).await
    }

    /// Removes what a list names; says how many it has removed.
    async fn remove_all(
        &self,
        listed: impl Stream<Item = object_store::Result<ObjectMeta>> + Send + 'static,
    ) -> Result<usize, ObjectError> {
        let mut gone = self.store.delete_stream(listed.map_ok(|found| found.location).boxed());
        let (mut removed, mut failed) = (0, None);
        while let Some(one) = gone.next().await {
            match one.map_err(ObjectError::from) {
                Ok(_) => removed += 1,
                Err(ObjectError::Missing) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(removed), Err)
    }

    /// Removes objects that were last written before `cutoff`. Gives how many runs' objects, or objects of a bucket,
    /// went. What cannot be removed now is removed by the next pass.
    pub async fn remove_before(&self, cutoff: DateTime<Utc>) -> usize {
        if let Some(dir) = self.directory.clone() {
            return tokio::task::spawn_blocking(move || remove_directories(&dir, cutoff)).await.unwrap_or(0);
        }
        let stop = cutoff + LONGEST_RUN;
        let old = self
            .store
            .list(Some(&self.prefix))
            // Keys come in order of their ids, so after the first young one there are only young ones.
            .try_take_while(move |found: &ObjectMeta| std::future::ready(Ok(found.last_modified < stop)))
            .try_filter(move |found| std::future::ready(found.last_modified < cutoff));
        self.remove_all(old).await.unwrap_or_else(|error| {
            tracing::warn!(error = %chain(&error), "not every old object could be removed");
            0
        })
    }
}

fn open_bucket(bucket: &Bucket) -> object_store::Result<impl ObjectStore> {
    // Fails when one is installed already, which serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let is_plain = bucket.endpoint.as_deref().is_some_and(|url| url.starts_with("http://"));
    let retry = RetryConfig {
        backoff: BackoffConfig { init_backoff: Duration::from_millis(200), ..BackoffConfig::default() },
        max_retries: 4,
        retry_timeout: PATIENCE,
    };
    let client = ClientOptions::new()
        .with_timeout(TIMEOUT)
        .with_connect_timeout(Duration::from_secs(5))
        .with_allow_http(is_plain);
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&bucket.name)
        .with_region(&bucket.region)
        .with_client_options(client)
        .with_retry(retry);
    if let Some(endpoint) = &bucket.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some((id, secret)) = &bucket.credentials {
        builder = builder.with_access_key_id(id).with_secret_access_key(secret.expose());
    }
    builder.build()
}

fn read_part(file: &mut std::fs::File) -> Result<Bytes, ObjectError> {
    let mut part = Vec::new();
    file.by_ref().take(PART as u64).read_to_end(&mut part).map_err(ObjectError::Spool)?;
    Ok(Bytes::from(part))
}

fn make_private(dir: &FilePath) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Whole directories of runs: also what a process that died left half written goes with them.
fn remove_directories(dir: &FilePath, cutoff: DateTime<Utc>) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let is_old = |entry: &std::fs::DirEntry| {
        let modified = entry.metadata().and_then(|meta| meta.modified()).ok();
        modified.is_some_and(|at| DateTime::<Utc>::from(at) < cutoff)
    };
    // Uploads have a time of their own.
    let entries = entries.flatten().filter(|entry| entry.file_name() != UPLOADS);
    entries.filter(is_old).filter(|entry| std::fs::remove_dir_all(entry.path()).is_ok()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_object_is_read_in_pages_and_never_beyond_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let objects = Objects::open(&Options::Directory(dir.path().join("o"))).unwrap();
        objects.put("a/stdout", Bytes::from_static(b"0123456789")).await.unwrap();
        for (offset, limit, expected) in [(4, 3, &b"456"[..]), (8, 5, b"89"), (10, 3, b""), (99, 3, b"")] {
            let (page, total) = objects.read("a/stdout", offset, limit).await.unwrap();
            assert_eq!((&page[..], total), (expected, 10), "{offset}");
        }
        objects.put("a/empty", Bytes::new()).await.unwrap();
        assert_eq!(objects.read("a/empty", 0, 5).await.unwrap(), (Bytes::new(), 0));
        assert!(matches!(objects.read("a/nothing", 0, 5).await, Err(ObjectError::Missing)));
    }

    #[tokio::test]
    async fn a_file_longer_than_one_part_is_kept_whole_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let objects = Objects::open(&Options::Directory(dir.path().join("o"))).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..PART * 2 + 5).map(|i| (i % 251) as u8).collect();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        objects.put_file("a/stdout", file).await.unwrap();
        let (whole, total) = objects.read("a/stdout", 0, usize::MAX).await.unwrap();
        assert!(whole == bytes && total == bytes.len() as u64);
        assert_eq!(objects.remove_before(DateTime::UNIX_EPOCH).await, 0);
        assert_eq!(objects.remove_before(DateTime::<Utc>::MAX_UTC).await, 1);
        assert!(matches!(objects.read("a/stdout", 0, 5).await, Err(ObjectError::Missing)));
    }
}
