//! API keys of HTTP callers.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;

use super::rows::Cells;
use super::{SqliteStore, failure, time};
use crate::domain::{ApiKey, Entropy, from_kept, to_kept};
use crate::store::{Keys, StoreError, measure::measure};

/// The file, in the data directory.
const FILE: &str = "keys.changed";

/// A file whose text is another one after each time that API keys were revoked or erased: the command that does so is another
/// process than the servers that believe them. Reading it costs a hundredth of a statement. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct KeysGone(PathBuf);

impl KeysGone {
    pub(super) fn new(dir: &Path) -> Self {
        let gone = Self(dir.join(FILE));
        // Without it keys are looked up each time, as on a disk that is full or read-only.
        if gone.read().is_none() {
            drop(gone.write());
        }
        gone
    }

    fn read(&self) -> Option<u64> {
        u64::from_str_radix(&fs::read_to_string(&self.0).ok()?, 16).ok()
    }

    /// In place, so that a full disk has room for it.
    fn write(&self) -> io::Result<()> {
        let mut open = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut open, 0o600);
        let mut file = open.create(true).truncate(false).write(true).open(&self.0)?;
        file.write_all(Entropy::system().hex::<8>().as_bytes())
    }

    /// Keys are gone, as the database says by now.
    pub(super) fn change(&self) {
        if let Err(error) = self.write().or_else(|_| fs::remove_file(&self.0)) {
            tracing::warn!(error = %error, "servers on this data directory may believe the keys for some seconds");
        }
    }
}

#[async_trait]
impl Keys for SqliteStore {
    async fn add_api_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        let mut transaction = self.write(measure!("add_api_key")).await?;
        sqlx::query("INSERT INTO api_keys (id, hash, key, created_at) VALUES (?, ?, ?, ?)")
            .bind(&key.id)
            .bind(key.hash.as_slice())
            .bind(to_kept(key).to_string())
            .bind(self.now_ms())
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit().await
    }

    async fn api_key(&self, id: &str) -> Result<Option<ApiKey>, StoreError> {
        Ok(self.select_api_keys(Some(id)).await?.pop())
    }

    async fn api_keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.select_api_keys(None).await
    }

    async fn revoke_api_key(&self, id: &str) -> Result<bool, StoreError> {
        let mut transaction = self.write(measure!("revoke_api_key")).await?;
        let done = sqlx::query("UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?")
            .bind(self.now_ms())
            .bind(id)
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit().await?;
        self.keys_gone.change();
        Ok(done.rows_affected() > 0)
    }

    fn keys_gone(&self) -> Option<u64> {
        self.keys_gone.read()
    }
}

impl SqliteStore {
    /// `None`: all of them, newest first.
    async fn select_api_keys(&self, id: Option<&str>) -> Result<Vec<ApiKey>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, hash, key, revoked_at FROM api_keys WHERE ?1 IS NULL OR id = ?1 ORDER BY created_at DESC, id",
        )
        .bind(id)
        .fetch_all(&mut *self.read(measure!("api_keys")).await?)
        .await
        .map_err(failure)?;
        rows.iter().map(api_key).collect()
    }
}

fn api_key(row: &SqliteRow) -> Result<ApiKey, StoreError> {
    let cells = Cells::new(row, "api_keys", "id");
    let kept = cells.json("key")?.unwrap_or_default();
    let mut key: ApiKey = from_kept(kept).map_err(|error| cells.corrupt(error))?;
    key.hash = cells.get::<&[u8]>("hash")?.try_into().map_err(|error| cells.corrupt(error))?;
    key.revoked_at = cells.get::<Option<i64>>("revoked_at")?.map(time);
    Ok(key)
}
