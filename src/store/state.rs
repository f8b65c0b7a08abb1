//! States of a database, each with one meaning, and the driver errors that indicate each.
//!
//! The surprise: no error says by itself that the database is away. A pool that timed out says so of a database that
//! refuses connections, of one that is full of them, and of ten callers that wait for one row. So an error only gives a
//! [`Class`], and where that leaves it open, a connection of its own asks what the database can do
//! ([`Availability`](super::availability::Availability)).

use std::sync::Arc;
use std::time::Duration;

use crate::domain::context::text_enum;

use super::StoreError;

text_enum! {
    /// Why a database does not do what it is asked.
    DatabaseState {
        /// It cannot be reached. The only state in which a replica goes on without it, under an unexpired lease.
        Away = "away",
        /// It answers, but connections, locks or colliding transactions were in the way for the whole time.
        Busy = "busy",
        /// It answers, but not in the time that a call has.
        Slow = "slow",
        /// It takes no writes: a standby, or a primary that was demoted.
        ReadOnly = "read_only",
        /// The disk under it is full.
        Full = "full",
    }
}

impl DatabaseState {
    /// The state as a fragment of a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::Away => "the database does not answer",
            Self::Busy => "the database is busy",
            Self::Slow => "the database is too slow",
            Self::ReadOnly => "the database takes no writes: it is a standby or read-only",
            Self::Full => "the disk under the server's database is full",
        }
    }

    /// Whether the same call is worth repeating within its own time.
    pub fn passes_soon(self) -> bool {
        matches!(self, Self::Busy | Self::Slow)
    }

    /// Whether it holds for every call until the database has changed, so that no call has to find out by itself.
    pub(super) fn is_lasting(self) -> bool {
        matches!(self, Self::Away | Self::ReadOnly)
    }
}

/// How it is known.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Cause {
    /// The driver said so.
    #[error(transparent)]
    Driver(Arc<sqlx::Error>),
    /// There was no answer for this long.
    #[error("no answer within {} ms", .0.as_millis())]
    NoAnswer(Duration),
    /// An earlier call or a probe found it so, and it has not changed since.
    #[error("an earlier attempt found the same")]
    Known,
    /// Other callers were in the way each time.
    #[error("lost the race against other callers {0} times")]
    Overtaken(u32),
    /// What the database said of itself.
    #[error("{0}")]
    Said(&'static str),
}

impl From<sqlx::Error> for Cause {
    fn from(error: sqlx::Error) -> Self {
        Self::Driver(Arc::new(error))
    }
}

/// What an error of a driver means, as far as the error alone can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// The database is in this state.
    State(DatabaseState),
    /// No connection was available. Only a probe can tell why.
    NoConnection,
    /// The connection broke. When a probe finds the database there, the call goes again on a new one.
    BrokenConnection,
    /// Two transactions collided. The call goes again at once.
    Conflicting,
    /// A prepared statement is unknown, or another caller's; or a session's parameter is refused.
    Pooler,
    /// User, password or database are wrong.
    Login,
    /// The address is malformed.
    Address,
    /// The statement is not taken. Trying again changes nothing.
    Refused,
}

impl Class {
    /// By an error of Postgres; see appendix A of its manual for the codes.
    pub(super) fn of_postgres(error: &sqlx::Error) -> Self {
        use DatabaseState as State;
        match error {
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => Self::NoConnection,
            sqlx::Error::Io(_) | sqlx::Error::Protocol(_) => Self::BrokenConnection,
            sqlx::Error::Configuration(_) => Self::Address,
            // PgBouncer says so before it says anything else.
            sqlx::Error::Database(said) if said.message().contains("unsupported startup parameter") => {
                Self::Pooler
            }
            sqlx::Error::Database(said) => match said.code().as_deref().unwrap_or_default() {
                "25006" => Self::State(State::ReadOnly),
                "53100" => Self::State(State::Full),
                // out of memory, too many connections, a configured limit; lock not available
                "53200" | "53300" | "53400" | "55P03" => Self::State(State::Busy),
                "57014" => Self::State(State::Slow),
                "40001" | "40P01" => Self::Conflicting,
                "26000" | "42P05" => Self::Pooler,
                "3D000" => Self::Login,
                // idle in transaction too long
                "25P03" => Self::BrokenConnection,
                code if code.starts_with("28") => Self::Login,
                // shutting down, crashed, starting; connection exceptions, a pooler's too
                code if code.starts_with("57P") || code.starts_with("08") => Self::BrokenConnection,
                _ => Self::Refused,
            },
            _ => Self::Refused,
        }
    }

    /// By an error of SQLite; see <https://sqlite.org/rescode.html> for the codes.
    pub(super) fn of_sqlite(error: &sqlx::Error) -> Self {
        use DatabaseState as State;
        const IO_SHARED_MEMORY_SIZE: i32 = 4874;
        match error {
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => Self::State(State::Busy),
            sqlx::Error::WorkerCrashed => Self::BrokenConnection,
            sqlx::Error::Database(_) => match sqlite_code(error) {
                // The file beside the log could not grow.
                Some(IO_SHARED_MEMORY_SIZE) => Self::State(State::Full),
                // Extended codes carry the primary one in their low byte.
                Some(code) => match code & 0xff {
                    // busy, locked, out of memory, protocol of the lock
                    5 | 6 | 7 | 15 => Self::State(State::Busy),
                    8 => Self::State(State::ReadOnly),
                    13 => Self::State(State::Full),
                    _ => Self::Refused,
                },
                None => Self::Refused,
            },
            _ => Self::Refused,
        }
    }

    /// The error for a caller, when nothing more is tried.
    pub(super) fn into_error(self, error: sqlx::Error) -> StoreError {
        match self {
            Self::State(state) => StoreError::State(state, error.into()),
            Self::NoConnection | Self::Conflicting | Self::BrokenConnection => {
                StoreError::State(DatabaseState::Busy, error.into())
            }
            Self::Pooler => StoreError::Pooler(error),
            Self::Login => StoreError::Login(error),
            Self::Address => StoreError::Url(error),
            Self::Refused => StoreError::Refused(error),
        }
    }
}

/// SQLite's extended result code.
pub(super) fn sqlite_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::error::Error;

    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// What a database says, reduced to its code.
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str);

    impl DatabaseError for Said {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    fn said(code: &'static str) -> sqlx::Error {
        sqlx::Error::Database(Box::new(Said(code)))
    }

    #[test]
    fn each_code_of_postgres_has_its_class() {
        use Class::{BrokenConnection, Conflicting, Login, Pooler, Refused, State};
        use DatabaseState::{Busy, Full, ReadOnly, Slow};
        for (codes, class) in [
            (&["25006"][..], State(ReadOnly)),
            (&["53100"], State(Full)),
            (&["53200", "53300", "53400", "55P03"], State(Busy)),
            (&["57014"], State(Slow)),
            (&["40001", "40P01"], Conflicting),
            (&["57P01", "57P02", "57P03", "57P05", "25P03", "08000", "08006", "08P01"], BrokenConnection),
            (&["26000", "42P05"], Pooler),
            (&["28000", "28P01", "3D000"], Login),
            (&["42501", "42P01", "42883", "22021", "23505", "XX000", "25P02"], Refused),
        ] {
            for code in codes {
                assert_eq!(Class::of_postgres(&said(code)), class, "{code}");
            }
        }
    }

    #[test]
    fn each_code_of_sqlite_has_its_class() {
        use Class::{Refused, State};
        use DatabaseState::{Busy, Full, ReadOnly};
        for (codes, class) in [
            // and their extended codes: busy recovery and snapshot; read-only directory; cannot lock shared memory
            (&["5", "261", "517", "6", "262", "7", "15"][..], State(Busy)),
            (&["8", "1544", "264"], State(ReadOnly)),
            (&["13", "4874"], State(Full)),
            (&["1", "11", "14", "26", "10", "778", "19", "1555"], Refused),
        ] {
            for code in codes {
                assert_eq!(Class::of_sqlite(&said(code)), class, "{code}");
            }
        }
    }

    #[test]
    fn no_error_of_a_pool_or_a_connection_alone_means_that_the_database_is_away() {
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let errors = [
            sqlx::Error::PoolTimedOut,
            sqlx::Error::PoolClosed,
            sqlx::Error::Io(broken),
            sqlx::Error::Protocol("?".into()),
            said("57P01"),
            said("08006"),
            said("53300"),
            said("40001"),
            said("55P03"),
            said("57014"),
        ];
        for error in errors {
            let class = Class::of_postgres(&error);
            assert_ne!(class, Class::State(DatabaseState::Away), "{error:?}");
            assert_ne!(class.into_error(error).state(), Some(DatabaseState::Away));
        }
    }
}
