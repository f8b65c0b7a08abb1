//! The store for more than one machine: Postgres 15 or later.
//!
//! Each operation calls one function of the schema `pathbox`: one statement, one transaction, one round trip, so it
//! works behind any pooler and holds no lock while Rust thinks. The SQL, with the why, is in `migrations/postgres`.
//! What the functions return is decoded here and in the files beside this one.
//!
//! The surprise: row-level security holds although the server may connect as a superuser. The functions run as their
//! owner, a role that cannot bypass it.

use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection};
use tokio::time::timeout;

use super::measure::{Measured, measure};
use super::migrations::{self, Migration};
use super::pulse::Pulse;
use super::{ContextStore, Keyring, MigrationStatus, Secret, StoreError};

mod audit;
mod contexts;
mod keys;
mod leases;
mod outbox;
mod paths;
mod rows;

/// The migrations, oldest first. A new file is added here.
pub(super) const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 20_261_128_000_100,
        name: "tables",
        sql: include_str!("../../migrations/postgres/20261128000100_tables.sql"),
    },
    Migration {
        version: 20_261_128_000_200,
        name: "functions",
        sql: include_str!("../../migrations/postgres/20261128000200_functions.sql"),
    },
    Migration {
        version: 20_261_128_000_300,
        name: "api_keys",
        sql: include_str!("../../migrations/postgres/20261128000300_api_keys.sql"),
    },
    Migration {
        version: 20_261_128_000_400,
        name: "reveals",
        sql: include_str!("../../migrations/postgres/20261128000400_reveals.sql"),
    },
];

/// Who migrates holds this lock of the database; a number nobody else would pick.
const MIGRATION_LOCK: i64 = 0x7061_7468_626f_7831;

/// How to reach the database.
#[derive(Debug, Clone)]
pub struct PgOptions {
    /// Connections at most (10).
    pub max_connections: u32,
    /// How long to wait for a connection, at start and later (5 s).
    pub connect_timeout: Duration,
    /// How long one operation may take (15 s).
    pub operation_timeout: Duration,
    /// Apply missing migrations at start (yes).
    pub auto_migrate: bool,
    /// Another URL to migrate with: as another login, or around a transaction pooler.
    pub migration_url: Option<Secret>,
    /// Whether statements may be prepared by name (yes); not behind a pooler in transaction mode.
    pub named_statements: bool,
}

impl Default for PgOptions {
    fn default() -> Self {
        Self {
            max_connections: 10,
            connect_timeout: Duration::from_secs(5),
            operation_timeout: Duration::from_secs(15),
            auto_migrate: true,
            migration_url: None,
            named_statements: true,
        }
    }
}

/// The store on Postgres. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PgStore {
    pool: Arc<RwLock<PgPool>>,
    address: PgConnectOptions,
    options: PgOptions,
    keyring: Keyring,
    pulse: Pulse,
}

impl PgStore {
    /// Connects, and migrates or checks the schema.
    ///
    /// # Errors
    /// Within the connect time-out: [`StoreError::Url`], [`StoreError::Login`] or [`StoreError::Unavailable`] say
    /// what is wrong with the address, [`StoreError::NotMigrated`], [`StoreError::TooNew`] or
    /// [`StoreError::Migrate`] what is wrong with the schema.
    pub async fn connect(url: &Secret, options: &PgOptions, keyring: Keyring) -> Result<Self, StoreError> {
        let parsed = parse(url, options)?;
        let mut probe = open(&parsed, options).await?;
        let missing = missing(&mut probe).await?;
        let _ = probe.close().await;
        if !missing.is_empty() {
            if !options.auto_migrate {
                return Err(StoreError::NotMigrated(missing.len()));
            }
            Self::migrate(url, options).await?;
        }
        let pool = Arc::new(RwLock::new(pool(&parsed, options)));
        let address = parsed.clone();
        let pulse = Pulse::new(move || serves(parsed.clone()));
        Ok(Self { pool, address, options: options.clone(), keyring, pulse })
    }

    /// Applies the missing migrations, all or none, and says what the database has then.
    ///
    /// # Errors
    /// As [`PgStore::connect`].
    pub async fn migrate(url: &Secret, options: &PgOptions) -> Result<Vec<MigrationStatus>, StoreError> {
        let url = options.migration_url.as_ref().unwrap_or(url);
        let mut connection = open(&parse(url, options)?, options).await?;
        apply(&mut connection).await?;
        let status = migrations::status(MIGRATIONS, &missing(&mut connection).await?);
        let _ = connection.close().await;
        Ok(status)
    }

    /// What the database has and lacks; changes nothing.
    ///
    /// # Errors
    /// As [`PgStore::connect`].
    pub async fn migration_status(
        url: &Secret,
        options: &PgOptions,
    ) -> Result<Vec<MigrationStatus>, StoreError> {
        let mut connection = open(&parse(url, options)?, options).await?;
        let missing = missing(&mut connection).await?;
        let _ = connection.close().await;
        Ok(migrations::status(MIGRATIONS, &missing))
    }

    /// Closes all connections once they are idle.
    pub async fn close(&self) {
        self.pool().close().await;
    }

    fn pool(&self) -> PgPool {
        self.pool.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The connections of a database that went away may hang for ever: the next calls get new ones.
    fn renew_pool(&self) {
        let fresh = pool(&self.address, &self.options);
        let stale = std::mem::replace(&mut *self.pool.write().unwrap_or_else(PoisonError::into_inner), fresh);
        tokio::spawn(async move { stale.close().await });
    }

    /// Runs one operation with a deadline, again when a connection broke under it or two transactions collided.
    /// Operations are safe to run twice, so a lost answer is no reason to give up. A database that is away is not
    /// waited for.
    async fn call<T, F>(&self, measured: Measured, operation: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, sqlx::Error>>,
    {
        measured.wait(self.with_retries(operation)).await
    }

    async fn with_retries<T, F>(&self, operation: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, sqlx::Error>>,
    {
        let mut tries = 0;
        loop {
            let operation = self.pulse.while_it_beats(operation());
            let result = match timeout(self.options.operation_timeout, operation).await {
                Ok(Ok(result)) => result,
                Ok(Err(away)) => {
                    if away.just_found {
                        self.renew_pool();
                    }
                    return Err(StoreError::Unavailable(sqlx::Error::PoolTimedOut));
                }
                Err(_) => Err(sqlx::Error::PoolTimedOut),
            };
            match result {
                Err(error) if tries < 3 && is_passing(&error) => {
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(5 << tries)).await;
                }
                result => return result.map_err(failure),
            }
        }
    }
}

fn parse(url: &Secret, options: &PgOptions) -> Result<PgConnectOptions, StoreError> {
    let is_postgres = ["postgres://", "postgresql://"].iter().any(|scheme| url.expose().starts_with(scheme));
    if !is_postgres {
        return Err(StoreError::Url(sqlx::Error::Configuration("another scheme".into())));
    }
    let parsed: PgConnectOptions = url.expose().parse().map_err(StoreError::Url)?;
    let parsed = parsed.application_name("pathbox").disable_statement_logging();
    Ok(if options.named_statements { parsed } else { parsed.statement_cache_capacity(0) })
}

fn pool(address: &PgConnectOptions, options: &PgOptions) -> PgPool {
    PgPoolOptions::new()
        .max_connections(options.max_connections)
        .acquire_timeout(options.connect_timeout)
        // A ping before each use would be a round trip more. One that has been idle may be dead.
        .test_before_acquire(false)
        .before_acquire(|connection, meta| {
            Box::pin(
                async move { Ok(meta.idle_for < Duration::from_secs(10) || connection.ping().await.is_ok()) },
            )
        })
        .connect_lazy_with(address.clone())
}

/// Whether the database serves, asked over a connection of its own. One that is full does; one that starts or shuts
/// down does not.
async fn serves(address: PgConnectOptions) -> bool {
    let answer = async {
        let mut connection = PgConnection::connect_with(&address).await?;
        sqlx::query("select 1").execute(&mut connection).await?;
        connection.close().await
    };
    match answer.await {
        Ok(()) => true,
        Err(sqlx::Error::Database(said)) => !said.code().unwrap_or_default().starts_with("57P"),
        Err(_) => false,
    }
}

/// One connection, or the reason at once: a pool would go on trying until its time is over.
async fn open(parsed: &PgConnectOptions, options: &PgOptions) -> Result<PgConnection, StoreError> {
    match timeout(options.connect_timeout, PgConnection::connect_with(parsed)).await {
        Ok(connection) => connection.map_err(failure),
        Err(_) => Err(StoreError::Unavailable(sqlx::Error::PoolTimedOut)),
    }
}

async fn missing(connection: &mut PgConnection) -> Result<Vec<&'static Migration>, StoreError> {
    let exists: bool = sqlx::query_scalar("select to_regclass('pathbox.migrations') is not null")
        .fetch_one(&mut *connection)
        .await
        .map_err(failure)?;
    let applied: Vec<(i64, Vec<u8>)> = if exists {
        sqlx::query_as("select version, checksum from pathbox.migrations order by version")
            .fetch_all(connection)
            .await
            .map_err(failure)?
    } else {
        Vec::new()
    };
    migrations::pending(MIGRATIONS, &applied)
}

async fn apply(connection: &mut PgConnection) -> Result<(), StoreError> {
    let mut transaction = connection.begin().await.map_err(failure)?;
    sqlx::query("select pg_advisory_xact_lock($1)")
        .bind(MIGRATION_LOCK)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
    let missing = missing(&mut transaction).await?;
    if missing.is_empty() {
        return Ok(());
    }
    sqlx::raw_sql(
        "create schema if not exists pathbox;
         create table if not exists pathbox.migrations (
             version bigint primary key, name text not null, checksum bytea not null,
             applied_at timestamptz not null default clock_timestamp())",
    )
    .execute(&mut *transaction)
    .await
    .map_err(failure)?;
    for migration in missing {
        let failed = |source| StoreError::Migrate { version: migration.version, source };
        sqlx::raw_sql(migration.sql).execute(&mut *transaction).await.map_err(failed)?;
        sqlx::query("insert into pathbox.migrations (version, name, checksum) values ($1, $2, $3)")
            .bind(migration.version)
            .bind(migration.name)
            .bind(migration.checksum())
            .execute(&mut *transaction)
            .await
            .map_err(failed)?;
        tracing::info!(version = migration.version, "applied migration {}", migration.name);
    }
    transaction.commit().await.map_err(failure)
}

/// Whether the same statement is worth another try at once.
fn is_passing(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(io) => io.kind() != std::io::ErrorKind::ConnectionRefused,
        // serialization failure, deadlock, connection closed by an administrator
        sqlx::Error::Database(database) => {
            matches!(database.code().as_deref(), Some("40001" | "40P01" | "57P01"))
        }
        _ => false,
    }
}

/// What a database error means to the caller.
fn failure(error: sqlx::Error) -> StoreError {
    let code =
        error.as_database_error().and_then(|database| database.code()).unwrap_or_default().into_owned();
    match (&error, code.as_str()) {
        (sqlx::Error::Configuration(_), _) => StoreError::Url(error),
        (sqlx::Error::Database(_), "53100") => StoreError::DiskFull(error),
        (sqlx::Error::Database(_), "3D000") => StoreError::Login(error),
        (sqlx::Error::Database(_), code) if code.starts_with("28") => StoreError::Login(error),
        // too many connections, lock time-out, cancelled, read-only standby; shutting down, starting, lost
        (sqlx::Error::Database(_), "53300" | "55P03" | "57014" | "25006" | "40001" | "40P01") => {
            StoreError::Unavailable(error)
        }
        (sqlx::Error::Database(_), code) if code.starts_with("57P") || code.starts_with("08") => {
            StoreError::Unavailable(error)
        }
        (
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed,
            _,
        ) => StoreError::Unavailable(error),
        _ => StoreError::Refused(error),
    }
}

#[async_trait]
impl ContextStore for PgStore {
    fn kind(&self) -> &'static str {
        "postgres"
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.call(measure!("ping"), || async {
            sqlx::query("select 1").execute(&self.pool()).await.map(|_| ())
        })
        .await
    }

    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        self.call(measure!("now"), || async {
            sqlx::query_scalar("select clock_timestamp()").fetch_one(&self.pool()).await
        })
        .await
    }
}
