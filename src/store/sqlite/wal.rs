//! Durable commits that share a sync, and checkpoints that no commit waits for.
//!
//! A commit is a sync of the write-ahead log, and a sync is all that it costs: milliseconds, against microseconds for the
//! SQL. So transactions commit without one (`synchronous = NORMAL`), one after the other on the one connection that
//! writes, and who needs durability then waits for a sync of the log that began after its commit: many commits share one.
//! After it the log holds what it would hold under FULL. A checkpoint in between syncs the log itself, before it moves
//! anything.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::SqlitePool;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::store::StoreError;
use crate::store::state::{Cause, DatabaseState};

/// A log beyond this is moved into the database's file.
const CHECKPOINT_BYTES: u64 = 2 * 1024 * 1024;
/// Between looks at the log's size.
const LOOK: Duration = Duration::from_secs(1);

/// The write-ahead log of a database. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Wal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// When the last sync that went well began.
    synced: Mutex<Option<Instant>>,
}

impl Wal {
    pub(super) fn of(database: &Path) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        Self(Arc::new(Inner { path: path.into(), synced: Mutex::default() }))
    }

    /// Waits until everything that was committed before this was called is on the disk.
    ///
    /// # Errors
    /// The disk's; then it is not known what of that a loss of power would leave.
    pub(super) async fn sync(&self) -> Result<(), StoreError> {
        let committed = Instant::now();
        let mut synced = self.0.synced.lock().await;
        if synced.is_some_and(|began| began >= committed) {
            return Ok(());
        }
        let (began, path) = (Instant::now(), self.0.path.clone());
        // This opens and closes the log alone: closing would drop this process's locks on a file, and SQLite has none on it.
        // Windows flushes only what is open for writing.
        let open = move || std::fs::OpenOptions::new().read(true).write(true).open(path);
        let done = tokio::task::spawn_blocking(move || match open() {
            Ok(log) => log.sync_data(),
            // The last connection of another process has moved all of it into the database, and synced that.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        });
        match done.await {
            Ok(Ok(())) => {
                *synced = Some(began);
                Ok(())
            }
            Ok(Err(error)) => {
                let state = match error.kind() {
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DatabaseState::Full,
                    _ => DatabaseState::Slow,
                };
                Err(StoreError::State(state, Cause::from(sqlx::Error::Io(error))))
            }
            Err(_) => Err(StoreError::State(DatabaseState::Slow, Cause::Known)),
        }
    }

    /// Moves the log into the database now and then, on a connection of its own, until the pool is closed.
    pub(super) fn start_checkpoints(&self, readers: SqlitePool) {
        let path = self.0.path.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => {}
                    () = readers.close_event() => return,
                }
                let size = std::fs::metadata(&path).map_or(0, |log| log.len());
                if size < CHECKPOINT_BYTES {
                    continue;
                }
                if let Err(error) = sqlx::raw_sql("PRAGMA wal_checkpoint(PASSIVE)").execute(&readers).await {
                    tracing::debug!(error = %error, "the write-ahead log could not be moved yet");
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callers_that_arrive_during_a_sync_share_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let wal = Wal::of(&dir.path().join("db"));
        wal.sync().await.unwrap(); // there is no log yet
        std::fs::write(dir.path().join("db-wal"), "x").unwrap();
        let first = wal.0.synced.lock().await;
        let waiting: Vec<_> = (0..20)
            .map(|_| {
                let wal = wal.clone();
                tokio::spawn(async move {
                    wal.sync().await.unwrap();
                    *wal.0.synced.lock().await
                })
            })
            .collect();
        tokio::task::yield_now().await;
        drop(first);
        let mut began: Vec<_> = Vec::new();
        for sync in waiting {
            began.push(sync.await.unwrap());
        }
        began.dedup();
        assert_eq!(began.len(), 1, "one sync for twenty commits");
    }
}
