//! Errors of a store, named by what a caller can do about them.

use super::state::{Cause, DatabaseState};

/// A store call did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is in a state in which it did not do what was asked. Nothing is wrong with the call: it may be made
    /// again once that has changed.
    #[error("{}", .0.words())]
    State(DatabaseState, #[source] Cause),
    /// A prepared statement is unknown to the database, or another caller's: a pooler in transaction mode is on the way.
    #[error(
        "the database lost a prepared statement or refused a session's parameter: behind a pooler in transaction mode set database.pooler = \"transaction\""
    )]
    Pooler(#[source] sqlx::Error),
    /// The URL is understood, but asks for what cannot be done.
    #[error("DATABASE_URL cannot be used: {0}")]
    Address(String),
    /// The URL cannot be read. Its text is not repeated: it holds a password.
    #[error("DATABASE_URL is not a Postgres URL (postgres://user:password@host:port/database)")]
    Url(#[source] sqlx::Error),
    /// User, password or database name are wrong.
    #[error("the database refused the login: check user, password and database name in DATABASE_URL")]
    Login(#[source] sqlx::Error),
    /// The database refused a statement: a bug here, or a schema that someone changed.
    #[error("the database refused a statement")]
    Refused(#[source] sqlx::Error),
    /// The database was migrated by a newer Pathbox, on whose schema this one does not serve. Use a newer version, or
    /// restore an older database.
    #[error(
        "the database has migration {found} (this program knows {known}); it serves programs from version {needs} on, \
         and this is {}", env!("CARGO_PKG_VERSION")
    )]
    TooNew {
        /// The newest migration in the database.
        found: i64,
        /// The newest one that this program has.
        known: i64,
        /// The first version of the program that serves on it.
        needs: String,
    },
    /// Another replica is of another place, and one of the two has a sandbox host of its own. Start again with a provider
    /// that both reach.
    #[error(
        "replica {replica} on another machine or in another network namespace uses this database, and sandboxes of a \
         local host cannot be reached from there: let all replicas use E2B (E2B_API_KEY) or one `pathbox host` \
         (E2B_API_URL, E2B_SANDBOX_URL, E2B_API_KEY), or give each machine a database of its own"
    )]
    OtherPlace {
        /// The other replica, by its name in its database rows.
        replica: String,
    },
    /// Migrations are missing and may not be applied by themselves. Run `pathbox migrate`.
    #[error("the database lacks {0} migration(s); run `pathbox migrate`")]
    NotMigrated(usize),
    /// A migration failed; the database is as it was before it.
    #[error("migration {version} failed")]
    Migrate {
        /// Which one.
        version: i64,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
    /// A migration in the database is not the one of this program: a file was edited after it was applied.
    #[error("migration {0} in the database differs from this program's")]
    Edited(i64),
    /// A stored value does not decode. Names the table and row.
    #[error("row {id} of `{table}` does not decode: {problem}")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The row's key.
        id: String,
        /// What does not fit.
        problem: String,
    },
    /// A value that the caller gave was changed by someone else since it was read.
    #[error("version {expected} was expected, the row has another")]
    Conflict {
        /// What the caller had read.
        expected: i64,
    },
    /// The row does not exist for this tenant.
    #[error("not found")]
    NotFound,
    /// The data directory or the key file cannot be used.
    #[error("the data directory cannot be used: {problem}")]
    DataDir {
        /// What is wrong and where.
        problem: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The keys for tokens at rest cannot be used: malformed, too short, or the same id twice.
    #[error("the secret keys cannot be used: {0}")]
    Keys(String),
}

impl StoreError {
    /// Whether the same call may succeed a little later.
    pub fn is_retryable(&self) -> bool {
        self.state().is_some()
    }

    /// What anyone who operates the server should do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::State(DatabaseState::Away, _) => "start the database, or correct DATABASE_URL",
            Self::State(DatabaseState::Busy, _) => {
                "find what holds locks or connections (pg_stat_activity), or raise database.pool_size"
            }
            Self::State(DatabaseState::Slow, _) => "check the database's load and disk",
            Self::State(DatabaseState::ReadOnly, _) => {
                "name the primary in DATABASE_URL; it may list several hosts, and the one that takes writes is used"
            }
            Self::State(DatabaseState::Full, _) => "free space on the database's disk",
            Self::Pooler(_) => "set database.pooler = \"transaction\"",
            Self::Address(_) | Self::Url(_) | Self::Login(_) => "correct DATABASE_URL",
            Self::TooNew { .. } => "use a newer Pathbox, or restore the database from before the migration",
            Self::NotMigrated(_) => "run `pathbox migrate`",
            Self::OtherPlace { .. } => "set E2B_API_KEY, or one `pathbox host` for all replicas",
            Self::DataDir { .. } => "choose a directory that this user can write, with --data-dir",
            Self::Keys(_) => "correct PATHBOX_SECRET_KEYS, or the key file in the data directory",
            Self::Migrate { source, .. } if is_denied(source) => {
                "allow the login to create roles (`alter role LOGIN createrole`) and own its database, or name such a login in database.migration_url"
            }
            Self::Refused(_) | Self::Migrate { .. } | Self::Edited(_) | Self::Corrupt { .. } => {
                "see the server's log; the schema may have been changed by hand"
            }
            Self::Conflict { .. } | Self::NotFound => "try again",
        }
    }

    /// The state of the database, if that is the reason.
    pub fn state(&self) -> Option<DatabaseState> {
        match self {
            Self::State(state, _) => Some(*state),
            _ => None,
        }
    }
}

/// Whether the database withholds a right from the login.
fn is_denied(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| code == "42501")
}
