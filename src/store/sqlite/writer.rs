//! The one connection of a process that writes, and the transactions on it.
//!
//! A statement is a trip to the connection's thread. So this is not a pool of one, which would test the connection by a trip
//! each time that it comes back; and `BEGIN` and `COMMIT` are statements like others, which travel with those between them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{ConnectOptions, Connection, Sqlite};
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};

use super::wal::Wal;
use super::{BUSY, SqliteStore, ended, failure, result_code};
use crate::store::StoreError;
use crate::store::availability::{Availability, Finding};
use crate::store::measure::Measured;
use crate::store::state::DatabaseState;

/// A query with its arguments.
pub(super) type Bound<'q> = sqlx::query::Query<'q, Sqlite, SqliteArguments>;

/// The connection while one has it.
type Turn = OwnedMappedMutexGuard<Option<SqliteConnection>, SqliteConnection>;

/// The connection that writes; who asks for it gets it in order of arrival. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Writer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connect: SqliteConnectOptions,
    /// How long one waits for those before.
    patience: Duration,
    connection: Arc<Mutex<Option<SqliteConnection>>>,
    /// Its last user may have left a transaction open.
    is_left_open: AtomicBool,
    is_closed: AtomicBool,
}

impl Writer {
    pub(super) fn new(
        connect: SqliteConnectOptions,
        patience: Duration,
        connection: SqliteConnection,
    ) -> Self {
        let connection = Arc::new(Mutex::new(Some(connection)));
        let (is_left_open, is_closed) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(Inner { connect, patience, connection, is_left_open, is_closed }))
    }

    async fn turn(&self) -> Result<Turn, sqlx::Error> {
        let mine = tokio::time::timeout(self.0.patience, self.0.connection.clone().lock_owned());
        let mut slot = mine.await.map_err(|_| sqlx::Error::PoolTimedOut)?;
        if self.0.is_closed.load(Ordering::Acquire) {
            return Err(sqlx::Error::PoolClosed);
        }
        if self.0.is_left_open.load(Ordering::Acquire) {
            if let Some(connection) = slot.as_mut()
                && sqlx::query("ROLLBACK").execute(connection).await.is_err()
            {
                // SQLite has ended the transaction by itself, as it does on a full disk, or the connection is of no more use.
                *slot = None;
            }
            self.0.is_left_open.store(false, Ordering::Release);
        }
        if slot.is_none() {
            *slot = Some(self.0.connect.connect().await?);
        }
        OwnedMutexGuard::try_map(slot, Option::as_mut).map_err(|_| sqlx::Error::WorkerCrashed)
    }

    /// Rolls back what was left open: now, or by the next user.
    fn roll_back(&self) {
        self.0.is_left_open.store(true, Ordering::Release);
        let writer = self.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { writer.turn().await.map(drop) });
        }
    }

    /// Closes the connection once it is idle, for good.
    pub(super) async fn close(&self) {
        let mut slot = self.0.connection.lock().await;
        self.0.is_closed.store(true, Ordering::Release);
        if let Some(connection) = slot.take() {
            let _ = connection.close().await;
        }
    }
}

/// A transaction that may write: rolled back unless it is committed.
pub(super) struct Write {
    turn: Turn,
    writer: Writer,
    wal: Wal,
    availability: Availability,
    /// The machine's time when it began.
    pub(super) now: i64,
    is_open: bool,
    measured: Measured,
}

impl SqliteStore {
    /// A transaction that may write: waits its turn, in this process and then among processes. Once one has waited
    /// in vain, none waits any more until the lock is free.
    pub(super) async fn write(&self, measured: Measured) -> Result<Write, StoreError> {
        let mut write = self.turn_to_write(measured).await?;
        write.begin(sqlx::query("BEGIN IMMEDIATE")).await?;
        write.now = self.now_ms();
        Ok(write)
    }

    /// The same before [`Write::begin`].
    pub(super) async fn turn_to_write(&self, measured: Measured) -> Result<Write, StoreError> {
        self.file.check()?;
        let turn = measured.wait(self.availability.until_lost(self.writer.turn())).await?.map_err(failure)?;
        Ok(Write {
            turn,
            writer: self.writer.clone(),
            wal: self.wal.clone(),
            availability: self.availability.clone(),
            now: self.now_ms(),
            is_open: false,
            measured,
        })
    }
}

impl Write {
    /// Begins, by a query whose first statement is `BEGIN IMMEDIATE`, and gives the rows of the others.
    pub(super) async fn begin(&mut self, query: Bound<'_>) -> Result<Vec<SqliteRow>, StoreError> {
        self.is_open = true;
        let began = self.availability.until_lost(query.fetch_all(&mut *self.turn));
        match self.measured.wait(began).await? {
            Err(error) if result_code(&error) == Some(BUSY) => {
                // The first statement alone waits for a lock.
                self.is_open = false;
                let found = Finding::new(DatabaseState::Busy, error);
                self.availability.report(&found);
                Err(StoreError::State(found.state, found.cause))
            }
            rows => rows.map_err(failure),
        }
    }

    /// The same for a query whose last statement is `COMMIT`: a loss of power may take it back.
    pub(super) async fn all_at_once(mut self, query: Bound<'_>) -> Result<Vec<SqliteRow>, StoreError> {
        let rows = self.begin(query).await?;
        self.is_open = false;
        Ok(rows)
    }

    /// Commits for good: neither the end of the process nor a loss of power takes it back.
    pub(super) async fn commit(self) -> Result<(), StoreError> {
        let wal = self.wal.clone();
        self.commit_lightly().await?;
        wal.sync().await
    }

    /// Commits so that the end of the process takes nothing back, though a loss of power may.
    pub(super) async fn commit_lightly(mut self) -> Result<(), StoreError> {
        let ended = ended::find(&mut self.turn).await?;
        self.commit_with(&ended).await.map(drop)
    }

    /// The same where it is known what has ended. Gives the log, whose sync makes it last.
    pub(super) async fn commit_with(mut self, ended: &[SqliteRow]) -> Result<Wal, StoreError> {
        ended::take_up_and_commit(&mut self.turn, ended, self.now).await?;
        self.is_open = false;
        Ok(self.wal.clone())
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        if self.is_open {
            self.writer.roll_back();
        }
    }
}

impl Deref for Write {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.turn
    }
}

impl DerefMut for Write {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.turn
    }
}
