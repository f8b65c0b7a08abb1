//! The store for more than one machine: Postgres 15 or later.
//!
//! Each operation calls one function of the schema `pathbox`: one statement, one transaction, one round trip, so it
//! holds no lock while Rust thinks. Of a crowd, several acquires or records share one (`together`). Behind a pooler in transaction mode the setting `database.pooler` must say so. The SQL, with the why, is in `migrations/postgres`.
//! The results of the functions are decoded here and in the files next to this one.
//!
//! The surprise: row-level security holds although the server may connect as a superuser. The functions run as their
//! owner, a role that cannot bypass it.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};

use super::availability::Availability;
use super::measure::{Measured, measure};
use super::migrations::{self, Applied, Migration};
use super::signals::Listener;
use super::state::Class;
use super::{ContextStore, Keyring, MigrationStatus, Secret, Signals, StoreError};

mod address;
mod audit;
mod connections;
mod contexts;
mod keys;
mod leases;
mod ledger;
mod listen;
mod outbox;
mod paths;
mod reach;
mod rows;
mod sessions;
mod together;
mod tools;
mod workflows;

use reach::{Reach, Session};

/// The migrations, oldest first. A new file is added here.
pub(super) const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 20_261_128_000_100,
        name: "tables",
        sql: include_str!("../../migrations/postgres/20261128000100_tables.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_128_000_200,
        name: "functions",
        sql: include_str!("../../migrations/postgres/20261128000200_functions.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_128_000_300,
        name: "api_keys",
        sql: include_str!("../../migrations/postgres/20261128000300_api_keys.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_128_000_400,
        name: "reveals",
        sql: include_str!("../../migrations/postgres/20261128000400_reveals.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_129_000_100,
        name: "principals_and_leases",
        sql: include_str!("../../migrations/postgres/20261129000100_principals_and_leases.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_129_000_400,
        name: "sessions",
        sql: include_str!("../../migrations/postgres/20261129000400_sessions.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_130_000_100,
        name: "places",
        sql: include_str!("../../migrations/postgres/20261130000100_places.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_130_000_101,
        name: "artifacts",
        sql: include_str!("../../migrations/postgres/20261130000101_artifacts.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_130_000_400,
        name: "workflows",
        sql: include_str!("../../migrations/postgres/20261130000400_workflows.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_130_000_500,
        name: "audit_and_usage",
        sql: include_str!("../../migrations/postgres/20261130000500_audit_and_usage.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_130_000_700,
        name: "tool_memory",
        sql: include_str!("../../migrations/postgres/20261130000700_tool_memory.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_201_000_100,
        name: "placeholder_values",
        sql: include_str!("../../migrations/postgres/20261201000100_placeholder_values.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_201_000_200,
        name: "shared_transactions",
        sql: include_str!("../../migrations/postgres/20261201000200_shared_transactions.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_202_000_100,
        name: "warm_calls",
        sql: include_str!("../../migrations/postgres/20261202000100_warm_calls.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_202_000_200,
        name: "refresh_tokens",
        sql: include_str!("../../migrations/postgres/20261202000200_refresh_tokens.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_203_000_100,
        name: "steady_plans",
        sql: include_str!("../../migrations/postgres/20261203000100_steady_plans.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_203_000_200,
        name: "steady_joins",
        sql: include_str!("../../migrations/postgres/20261203000200_steady_joins.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_204_000_100,
        name: "one_entry",
        sql: include_str!("../../migrations/postgres/20261204000100_one_entry.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_205_000_100,
        name: "one_path",
        sql: include_str!("../../migrations/postgres/20261205000100_one_path.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_205_000_200,
        name: "revoked_keys",
        sql: include_str!("../../migrations/postgres/20261205000200_revoked_keys.sql"),
        serves_from: "0.1.0",
    },
    Migration {
        version: 20_261_206_000_100,
        name: "sandbox_time",
        sql: include_str!("../../migrations/postgres/20261206000100_sandbox_time.sql"),
        serves_from: "0.1.0",
    },
];

/// Who migrates holds this lock of the database; a number no one else would pick.
const MIGRATION_LOCK: i64 = 0x7061_7468_626f_7831;

/// How to reach the database.
#[derive(Debug, Clone)]
pub struct PgOptions {
    /// Connections at most (10).
    pub max_connections: u32,
    /// How long a call waits for one of them before the database is probed (5 s).
    pub acquire_timeout: Duration,
    /// How long a new connection may take (5 s).
    pub connect_timeout: Duration,
    /// How long one operation may take, its retries included (15 s).
    pub statement_timeout: Duration,
    /// How long one try waits for a lock. A call that waits holds a connection, so this is short (2 s).
    pub lock_timeout: Duration,
    /// Apply missing migrations at start (yes).
    pub auto_migrate: bool,
    /// Another URL to migrate with: as another login, or around a transaction pooler.
    pub migration_url: Option<Secret>,
    /// Whether there is a pooler in transaction mode on the way (no): each operation is then a transaction with one
    /// statement that is not prepared by name.
    pub pooled: bool,
}

impl Default for PgOptions {
    fn default() -> Self {
        Self {
            max_connections: 10,
            acquire_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(15),
            lock_timeout: Duration::from_secs(2),
            auto_migrate: true,
            migration_url: None,
            pooled: false,
        }
    }
}

impl PgOptions {
    /// How each transaction begins behind a pooler, where a session's own settings would be someone else's next.
    fn begin(&self) -> String {
        let (statement, lock) = (self.statement_timeout.as_millis(), self.lock_timeout.as_millis());
        format!("begin; set local statement_timeout = {statement}; set local lock_timeout = {lock}")
    }
}

/// The store on Postgres. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PgStore {
    reach: Arc<Reach>,
    keyring: Keyring,
    availability: Availability,
    signals: Signals,
    listener: Arc<OnceLock<Listener>>,
    acquires: leases::Acquires,
    records: leases::Records,
}

impl PgStore {
    /// Connects, and migrates or checks the schema.
    ///
    /// # Errors
    /// Within the connect time-out: [`StoreError::Url`], [`StoreError::Address`], [`StoreError::Login`] or
    /// [`StoreError::State`] say what is wrong with the address, [`StoreError::NotMigrated`], [`StoreError::TooNew`] or
    /// [`StoreError::Migrate`] what is wrong with the schema.
    pub async fn connect(url: &Secret, options: &PgOptions, keyring: Keyring) -> Result<Self, StoreError> {
        let hosts = address::parse(url, options)?;
        let (mut connection, host) = reach::open(&hosts, options).await?;
        let missing = missing(&mut connection).await?;
        let _ = connection.close().await;
        if !missing.is_empty() {
            if !options.auto_migrate {
                return Err(StoreError::NotMigrated(missing.len()));
            }
            Self::migrate(url, options).await?;
        }
        let reach = Arc::new(Reach::new(hosts, host, options));
        let probed = reach.clone();
        let availability = Availability::new(move || {
            let reach = probed.clone();
            async move { reach.probe().await }
        });
        let signals = Signals::new(listen::UNHEARD);
        let (listener, acquires, records) = Default::default();
        Ok(Self { reach, keyring, availability, signals, listener, acquires, records })
    }

    /// Applies the missing migrations, all or none, and says what the database has then.
    ///
    /// # Errors
    /// As [`PgStore::connect`].
    pub async fn migrate(url: &Secret, options: &PgOptions) -> Result<Vec<MigrationStatus>, StoreError> {
        let url = options.migration_url.as_ref().unwrap_or(url);
        let (mut connection, _) = reach::open(&address::parse(url, options)?, options).await?;
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
        let (mut connection, _) = reach::open(&address::parse(url, options)?, options).await?;
        let missing = missing(&mut connection).await?;
        let _ = connection.close().await;
        Ok(migrations::status(MIGRATIONS, &missing))
    }

    /// Closes all connections once they are idle.
    pub async fn close(&self) {
        self.reach.close().await;
    }

    /// Listens for what concerns this process, from the first time that it says its name on.
    fn listen_as(&self, replica: &str) {
        self.listener.get_or_init(|| {
            let listening = listen::listen(self.reach.clone(), self.signals.clone(), replica.to_owned());
            Listener(tokio::spawn(listening))
        });
    }

    fn pool(&self) -> Session {
        self.reach.session()
    }

    /// Runs one operation once; see [`Reach::once`].
    async fn once<T>(
        &self,
        measured: Measured,
        operation: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, StoreError> {
        measured.wait(self.reach.once(&self.availability, operation)).await
    }

    /// Runs one operation, which is safe to run twice; see [`Reach::call`].
    async fn call<T, F>(&self, measured: Measured, operation: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, sqlx::Error>>,
    {
        measured.wait(self.reach.call(&self.availability, operation)).await
    }
}

/// Without prepared statements, so that it works behind any pooler.
async fn missing(connection: &mut PgConnection) -> Result<Vec<&'static Migration>, StoreError> {
    let exists: bool = sqlx::raw_sql("select to_regclass('pathbox.migrations') is not null")
        .fetch_one(&mut *connection)
        .await
        .and_then(|row| row.try_get(0))
        .map_err(failure)?;
    if !exists {
        return migrations::pending(MIGRATIONS, &[]);
    }
    // Before the first migration of 29 November the table had no such column.
    let rows = sqlx::raw_sql(
        "select m.version, m.checksum, to_jsonb(m)->>'serves_from' from pathbox.migrations m order by m.version",
    )
    .fetch_all(connection)
    .await
    .map_err(failure)?;
    let read = |row: &PgRow| {
        Ok(Applied { version: row.try_get(0)?, checksum: row.try_get(1)?, serves_from: row.try_get(2)? })
    };
    let applied: Vec<Applied> = rows.iter().map(read).collect::<Result<_, _>>().map_err(failure)?;
    migrations::pending(MIGRATIONS, &applied)
}

async fn apply(connection: &mut PgConnection) -> Result<(), StoreError> {
    let mut transaction = connection.begin().await.map_err(failure)?;
    sqlx::query("select pg_advisory_xact_lock($1)")
        .bind(MIGRATION_LOCK)
        .persistent(false)
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
             applied_at timestamptz not null default clock_timestamp());
         alter table pathbox.migrations add column if not exists serves_from text",
    )
    .execute(&mut *transaction)
    .await
    .map_err(failure)?;
    for migration in missing {
        let failed = |source| StoreError::Migrate { version: migration.version, source };
        sqlx::raw_sql(migration.sql).execute(&mut *transaction).await.map_err(failed)?;
        sqlx::query(
            "insert into pathbox.migrations (version, name, checksum, serves_from) values ($1, $2, $3, $4)",
        )
        .bind(migration.version)
        .bind(migration.name)
        .bind(migration.checksum())
        .bind(migration.serves_from)
        .persistent(false)
        .execute(&mut *transaction)
        .await
        .map_err(failed)?;
        tracing::info!(version = migration.version, "applied migration {}", migration.name);
    }
    transaction.commit().await.map_err(failure)
}

/// What a database error means to the caller, when nothing more is tried.
fn failure(error: sqlx::Error) -> StoreError {
    Class::of_postgres(&error).into_error(error)
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

    async fn examine(&self) -> Result<(), StoreError> {
        self.availability.probe().await
    }

    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        self.call(measure!("now"), || async {
            sqlx::query_scalar("select clock_timestamp()").fetch_one(&self.pool()).await
        })
        .await
    }
}
