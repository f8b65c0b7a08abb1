//! The default store: one SQLite file in the data directory, for one machine and its user.
//!
//! Several processes may share the directory (desktop hosts start one a window). Everything that changes rows runs in
//! `BEGIN IMMEDIATE`: the file's one write lock stands where Postgres needs row and advisory locks, so the
//! protocol reads here as a plain list of steps. Commits are durable, by syncs that they share (`wal`).
//!
//! The surprise: inside a process all writes go through one connection, in order of arrival. Between processes SQLite
//! only polls its lock, and a crowd of callers polling it would starve each other.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::{DateTime, TimeZone, Utc};
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Sqlite};

use super::availability::{Availability, Finding};
use super::measure::{Measured, measure};
use super::migrations::{self, Applied, Migration};
use super::signals::Listener;
use super::state::{Class, sqlite_code};
use super::{ContextStore, Keyring, MigrationStatus, Signals, StoreError};
use crate::domain::Clock;

mod acquire;
mod audit;
mod contexts;
mod ended;
mod file;
mod keys;
mod leases;
mod ledger;
mod outbox;
mod paths;
mod processes;
mod rows;
mod sessions;
mod tools;
mod wal;
mod workflows;
mod writer;

use acquire::Waiting;
use file::{OpenFile, check_file_system};
use keys::KeysGone;
use processes::Processes;
use wal::Wal;
use writer::Writer;

/// The migrations, oldest first. A new file is added here.
pub(super) const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 20_261_128_000_100,
        name: "tables",
        sql: include_str!("../../migrations/sqlite/20261128000100_tables.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_128_000_300,
        name: "api_keys",
        sql: include_str!("../../migrations/sqlite/20261128000300_api_keys.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_128_000_400,
        name: "reveals",
        sql: include_str!("../../migrations/sqlite/20261128000400_reveals.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_129_000_100,
        name: "principals_and_leases",
        sql: include_str!("../../migrations/sqlite/20261129000100_principals_and_leases.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_129_000_400,
        name: "sessions",
        sql: include_str!("../../migrations/sqlite/20261129000400_sessions.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_130_000_400,
        name: "workflows",
        sql: include_str!("../../migrations/sqlite/20261130000400_workflows.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_130_000_500,
        name: "audit_and_usage",
        sql: include_str!("../../migrations/sqlite/20261130000500_audit_and_usage.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_130_000_700,
        name: "tool_memory",
        sql: include_str!("../../migrations/sqlite/20261130000700_tool_memory.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_201_000_100,
        name: "placeholder_values",
        sql: include_str!("../../migrations/sqlite/20261201000100_placeholder_values.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_202_000_200,
        name: "refresh_tokens",
        sql: include_str!("../../migrations/sqlite/20261202000200_refresh_tokens.sql"),
        serves_from: "0.1.0",
    },
];

/// How long to wait for a signal: other processes send none.
const PACE: Duration = Duration::from_millis(50);

/// Between two looks at whether another process wants a context of this one.
const LOOK: Duration = Duration::from_millis(100);

/// The file in the data directory.
pub const DATABASE_FILE: &str = "pathbox.db";

/// How to use the file.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// Apply missing migrations at start (yes).
    pub auto_migrate: bool,
    /// How long to wait while another process writes (10 s).
    pub busy_timeout: Duration,
    /// Connections that read while one writes (4).
    pub readers: u32,
    /// Whether the directory may be on a file system of another machine (no).
    pub allow_network_file_system: bool,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            auto_migrate: true,
            busy_timeout: Duration::from_secs(10),
            readers: 4,
            allow_network_file_system: false,
        }
    }
}

/// The store on SQLite. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    writer: Writer,
    readers: SqlitePool,
    keyring: Keyring,
    clock: Clock,
    availability: Availability,
    file: OpenFile,
    wal: Wal,
    signals: Signals,
    listener: Arc<OnceLock<Listener>>,
    processes: Processes,
    waiting: Waiting,
    keys_gone: KeysGone,
}

impl SqliteStore {
    /// Opens the database in `dir`, making both when they are not there, and migrates or checks the schema.
    ///
    /// # Errors
    /// [`StoreError::DataDir`] names a directory or file that cannot be used; [`StoreError::NotMigrated`],
    /// [`StoreError::TooNew`] or [`StoreError::Migrate`] say what is wrong with the schema.
    pub async fn open(
        dir: &Path,
        options: &SqliteOptions,
        keyring: Keyring,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let connect = connect_options(dir, options)?;
        let mut connection = first_touch(&connect, dir, options).await?;
        let missing = missing(&mut connection).await?;
        if !missing.is_empty() {
            if !options.auto_migrate {
                return Err(StoreError::NotMigrated(missing.len()));
            }
            apply(&mut connection, &clock).await?;
        }
        let patience = options.busy_timeout + Duration::from_secs(5);
        let readers = SqlitePoolOptions::new()
            .max_connections(options.readers)
            .acquire_timeout(patience)
            .test_before_acquire(false)
            .connect_lazy_with(connect.clone());
        let writer = Writer::new(connect.clone(), patience, connection);
        let availability = Availability::new(move || can_write(connect.clone()));
        let path = dir.join(DATABASE_FILE);
        let (wal, file) = (Wal::of(&path), OpenFile::at(path));
        wal.sync().await?;
        wal.start_checkpoints(readers.clone());
        let (signals, listener) = (Signals::new(PACE), Arc::default());
        let (processes, waiting) = (Processes::new(dir), Waiting::default());
        Ok(Self {
            writer,
            readers,
            keyring,
            clock,
            availability,
            file,
            wal,
            signals,
            listener,
            processes,
            waiting,
            keys_gone: KeysGone::new(dir),
        })
    }

    /// Applies the missing migrations, all or none, and says what the database has then.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    pub async fn migrate(
        dir: &Path,
        options: &SqliteOptions,
        clock: &Clock,
    ) -> Result<Vec<MigrationStatus>, StoreError> {
        let mut connection = first_touch(&connect_options(dir, options)?, dir, options).await?;
        apply(&mut connection, clock).await?;
        let missing = missing(&mut connection).await?;
        connection.close().await.map_err(failure)?;
        Ok(migrations::status(MIGRATIONS, &missing))
    }

    /// What the database has and lacks; changes nothing, and makes no file.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    pub async fn migration_status(
        dir: &Path,
        options: &SqliteOptions,
    ) -> Result<Vec<MigrationStatus>, StoreError> {
        if !dir.join(DATABASE_FILE).exists() {
            let all: Vec<&Migration> = MIGRATIONS.iter().collect();
            return Ok(migrations::status(MIGRATIONS, &all));
        }
        let mut connection = first_touch(&connect_options(dir, options)?, dir, options).await?;
        let missing = missing(&mut connection).await?;
        connection.close().await.map_err(failure)?;
        Ok(migrations::status(MIGRATIONS, &missing))
    }

    /// Closes all connections once they are idle.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    /// A connection that only reads.
    async fn read(&self, measured: Measured) -> Result<Read, StoreError> {
        let connection = measured.wait(self.readers.acquire()).await.map_err(failure)?;
        Ok(Read { connection, _measured: measured })
    }

    /// Listens for what concerns this process, from the first time that it says its name on.
    fn listen_as(&self, process: &str) {
        self.listener.get_or_init(|| {
            let looking = look_for_wishes(self.readers.clone(), self.signals.clone(), process.to_owned());
            Listener(tokio::spawn(looking))
        });
    }

    /// The machine's time, which is the database's: whole milliseconds.
    fn now_ms(&self) -> i64 {
        self.clock.now().timestamp_millis()
    }
}

/// A connection that only reads.
struct Read {
    connection: PoolConnection<Sqlite>,
    _measured: Measured,
}

impl Deref for Read {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.connection
    }
}

impl DerefMut for Read {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }
}

/// Looks whether another process wants a context of this one, which no notification says here.
async fn look_for_wishes(readers: SqlitePool, signals: Signals, process: String) {
    loop {
        tokio::time::sleep(LOOK).await;
        let wanted: Result<i64, sqlx::Error> = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM execution_contexts WHERE lease_owner = ? AND lease_wanted_at IS NOT NULL)",
        )
        .bind(&process)
        .fetch_one(&readers)
        .await;
        if wanted.is_ok_and(|wanted| wanted > 0) {
            signals.want();
        }
    }
}

fn connect_options(dir: &Path, options: &SqliteOptions) -> Result<SqliteConnectOptions, StoreError> {
    super::make_private_dir(dir)?;
    if !options.allow_network_file_system {
        check_file_system(dir)?;
    }
    let path = dir.join(DATABASE_FILE);
    make_private_file(&path)?;
    Ok(SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .pragma("wal_autocheckpoint", "0")
        .busy_timeout(options.busy_timeout)
        .foreign_keys(true)
        .disable_statement_logging())
}

/// The file is for its owner; what SQLite puts beside it gets the same mode.
fn make_private_file(path: &Path) -> Result<(), StoreError> {
    let mut open = std::fs::OpenOptions::new();
    open.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut open, 0o600);
    let opened = open.open(path);
    opened
        .map(drop)
        .map_err(|source| StoreError::DataDir { problem: format!("cannot write {}", path.display()), source })
}

/// The first connection to the file. Of processes that open a new file at once only one can switch it to its
/// write-ahead log, and SQLite tells the others at once that it is locked, however patient they are: they try again.
async fn first_touch(
    connect: &SqliteConnectOptions,
    dir: &Path,
    options: &SqliteOptions,
) -> Result<SqliteConnection, StoreError> {
    let deadline = Instant::now() + options.busy_timeout;
    loop {
        match connect.connect().await {
            Err(error) if result_code(&error) == Some(BUSY) && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            connected => return connected.map_err(|error| unusable(dir, error)),
        }
    }
}

/// Whether the write lock can be had.
async fn can_write(connect: SqliteConnectOptions) -> Option<Finding> {
    let took = async {
        let mut connection = connect.busy_timeout(Duration::from_millis(200)).connect().await?;
        sqlx::raw_sql("BEGIN IMMEDIATE; ROLLBACK").execute(&mut connection).await?;
        connection.close().await
    };
    let error = took.await.err()?;
    match Class::of_sqlite(&error) {
        Class::State(state) => Some(Finding::new(state, error)),
        _ => None,
    }
}

async fn missing(connection: &mut SqliteConnection) -> Result<Vec<&'static Migration>, StoreError> {
    let exists: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = 'migrations'")
        .fetch_one(&mut *connection)
        .await
        .map_err(failure)?;
    if exists == 0 {
        return migrations::pending(MIGRATIONS, &[]);
    }
    // Before the first migration of 29 November the table had no such column.
    let sql = match has_serves_from(connection).await? {
        true => "SELECT version, checksum, serves_from FROM migrations ORDER BY version",
        false => "SELECT version, checksum, NULL FROM migrations ORDER BY version",
    };
    let rows: Vec<(i64, Vec<u8>, Option<String>)> =
        sqlx::query_as(sql).fetch_all(connection).await.map_err(failure)?;
    let applied: Vec<Applied> = rows
        .into_iter()
        .map(|(version, checksum, serves_from)| Applied { version, checksum, serves_from })
        .collect();
    migrations::pending(MIGRATIONS, &applied)
}

async fn has_serves_from(connection: &mut SqliteConnection) -> Result<bool, StoreError> {
    let columns: i64 =
        sqlx::query_scalar("SELECT count(*) FROM pragma_table_info('migrations') WHERE name = 'serves_from'")
            .fetch_one(connection)
            .await
            .map_err(failure)?;
    Ok(columns > 0)
}

async fn apply(connection: &mut SqliteConnection, clock: &Clock) -> Result<(), StoreError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(failure)?;
    let missing = missing(&mut transaction).await?;
    if missing.is_empty() {
        return Ok(());
    }
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS migrations (
             version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum BLOB NOT NULL, applied_at INTEGER NOT NULL
         ) STRICT",
    )
    .execute(&mut *transaction)
    .await
    .map_err(failure)?;
    if !has_serves_from(&mut transaction).await? {
        sqlx::raw_sql("ALTER TABLE migrations ADD COLUMN serves_from TEXT")
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
    }
    for migration in missing {
        let failed = |source| StoreError::Migrate { version: migration.version, source };
        sqlx::raw_sql(migration.sql).execute(&mut *transaction).await.map_err(failed)?;
        sqlx::query("INSERT INTO migrations (version, name, checksum, applied_at, serves_from) VALUES (?, ?, ?, ?, ?)")
            .bind(migration.version)
            .bind(migration.name)
            .bind(migration.checksum())
            .bind(clock.now().timestamp_millis())
            .bind(migration.serves_from)
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
        tracing::info!(version = migration.version, "applied migration {}", migration.name);
    }
    transaction.commit().await.map_err(failure)
}

/// Another connection holds the lock.
const BUSY: i32 = 5;

/// SQLite's primary result code: extended codes carry it in their low byte.
fn result_code(error: &sqlx::Error) -> Option<i32> {
    sqlite_code(error).map(|code| code & 0xff)
}

/// What a database error means to the caller.
fn failure(error: sqlx::Error) -> StoreError {
    Class::of_sqlite(&error).into_error(error)
}

/// The same at the first touch of the file, where the file itself is the likely cause.
fn unusable(dir: &Path, error: sqlx::Error) -> StoreError {
    const READ_ONLY: i32 = 8;
    const CANNOT_OPEN: i32 = 14;
    const NOT_A_DATABASE: i32 = 26;
    let path: PathBuf = dir.join(DATABASE_FILE);
    let what = match result_code(&error) {
        Some(READ_ONLY) => "cannot write",
        Some(CANNOT_OPEN) => "cannot open",
        Some(NOT_A_DATABASE) => "this is not a database:",
        _ => return failure(error),
    };
    StoreError::DataDir {
        problem: format!("{what} {}", path.display()),
        source: std::io::Error::other(error),
    }
}

/// Milliseconds since 1970 as a time; what is out of range is the nearest end.
fn time(millis: i64) -> DateTime<Utc> {
    Utc.timestamp_millis_opt(millis).single().unwrap_or(DateTime::<Utc>::MAX_UTC)
}

#[async_trait]
impl ContextStore for SqliteStore {
    fn kind(&self) -> &'static str {
        "sqlite"
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.availability.check()?;
        let mut reader = self.read(measure!("ping")).await?;
        sqlx::query("SELECT 1").execute(&mut *reader).await.map(drop).map_err(failure)
    }

    async fn examine(&self) -> Result<(), StoreError> {
        self.availability.probe().await
    }

    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        self.ping().await.map(|()| time(self.now_ms()))
    }
}
