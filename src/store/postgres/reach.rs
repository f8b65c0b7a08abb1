//! The way to the database: which host, the pool, the probe, and what is tried again.
//!
//! The surprise: behind a pooler in transaction mode each statement may meet another server connection, and preparing
//! and executing are two steps. There, each call is BEGIN, one unnamed statement, COMMIT: the pooler keeps a connection
//! for a transaction, and nothing outlives it. This costs two round trips more.

use std::future::Future;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions, PgQueryResult, PgRow, Postgres};
use sqlx::{Connection, Either, Execute, Executor, Row, SqlStr};
use tokio::time::{Instant, timeout};

use super::PgOptions;
use super::connections::{Connections, UNTESTED};
use crate::domain::lock;
use crate::store::StoreError;
use crate::store::availability::{Availability, Finding};
use crate::store::state::{Cause, Class, DatabaseState};
use crate::telemetry::metrics;

/// Transactions that collide are tried so often.
const COLLISIONS: u32 = 3;
/// Connections that break under one call: as many as a pool may hold that the database has closed at once.
const BREAKS: u32 = 3;
/// Between tries while other callers are in the way.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two writes of the probe.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);

/// Where the database is and how to get there.
#[derive(Debug)]
pub(super) struct Reach {
    hosts: Vec<PgConnectOptions>,
    options: PgOptions,
    current: RwLock<Current>,
    wrote: Mutex<Option<Instant>>,
}

/// The host that is used.
#[derive(Debug)]
struct Current {
    host: usize,
    connections: Connections,
    /// Rises with each new pool.
    generation: u64,
    /// The last probe found the database not serving: the pool's connections may hang for ever.
    is_doubtful: bool,
}

impl Reach {
    pub(super) fn new(hosts: Vec<PgConnectOptions>, host: usize, options: &PgOptions) -> Self {
        let connections = Connections::new(pool(&hosts[host], options));
        let current = Current { host, connections, generation: 0, is_doubtful: false };
        Self { hosts, options: options.clone(), current: RwLock::new(current), wrote: Mutex::default() }
    }

    /// What a statement is executed on.
    pub(super) fn session(&self) -> Session {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Session {
            connections: current.connections.clone(),
            begin: self.options.pooled.then(|| self.options.begin()),
        }
    }

    /// The host in use, for a connection beside the pool.
    pub(super) fn host(&self) -> PgConnectOptions {
        self.hosts[self.current.read().unwrap_or_else(PoisonError::into_inner).host].clone()
    }

    /// Whether a pooler in transaction mode is in front of the database.
    pub(super) fn is_pooled(&self) -> bool {
        self.options.pooled
    }

    pub(super) async fn close(&self) {
        self.session().connections.close().await;
    }

    fn generation(&self) -> u64 {
        self.current.read().unwrap_or_else(PoisonError::into_inner).generation
    }

    /// Takes new connections from now on, unless someone has seen to that since `generation`.
    fn renew(&self, generation: u64) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.generation == generation {
            let host = current.host;
            self.move_to(&mut current, host);
        }
    }

    fn move_to(&self, current: &mut Current, host: usize) {
        let fresh = Connections::new(pool(&self.hosts[host], &self.options));
        let stale = std::mem::replace(&mut current.connections, fresh);
        (current.host, current.is_doubtful) = (host, false);
        current.generation += 1;
        tokio::spawn(async move { stale.close().await });
    }

    /// Asks whether the database does what a run needs: the host in use first, then the others, which are asked at once.
    pub(super) async fn probe(&self) -> Option<Finding> {
        let at = self.current.read().unwrap_or_else(PoisonError::into_inner).host;
        let first = self.ask(&self.hosts[at]).await;
        let (host, found) = match first {
            Some(found) if found.state.is_lasting() => self.look_elsewhere(at, found).await,
            found => (at, found),
        };
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        match &found {
            Some(found) if found.state.is_lasting() => current.is_doubtful = true,
            _ if host != current.host || current.is_doubtful => {
                if host != current.host {
                    tracing::info!(host, "another of the database's hosts is used");
                }
                self.move_to(&mut current, host);
            }
            _ => {}
        }
        found
    }

    /// The first other host that serves; else what is known of the one that is least far from it.
    async fn look_elsewhere(&self, at: usize, found: Finding) -> (usize, Option<Finding>) {
        let others: Vec<usize> = (0..self.hosts.len()).filter(|host| *host != at).collect();
        let asked = join_all(others.iter().map(|host| self.ask(&self.hosts[*host]))).await;
        let mut found = found;
        for (host, other) in others.into_iter().zip(asked) {
            match other {
                Some(other) if other.state.is_lasting() => {
                    if other.state == DatabaseState::ReadOnly {
                        found = other;
                    }
                }
                other => return (host, other),
            }
        }
        (at, Some(found))
    }

    async fn ask(&self, host: &PgConnectOptions) -> Option<Finding> {
        let patience = self.options.connect_timeout.min(Duration::from_millis(2500));
        let looked = async {
            let mut connection = PgConnection::connect_with(host).await?;
            let read_only = is_read_only(&mut connection).await?;
            Ok::<_, sqlx::Error>((connection, read_only))
        };
        let (mut connection, read_only) = match timeout(patience, looked).await {
            Err(_) => return Some(Finding::new(DatabaseState::Away, Cause::NoAnswer(patience))),
            Ok(Err(error)) => return unreachable_by(error),
            Ok(Ok(answer)) => answer,
        };
        if read_only {
            let cause = Cause::Said("it is in recovery, or its transactions are read-only");
            return Some(Finding::new(DatabaseState::ReadOnly, cause));
        }
        let found = self.try_to_write(&mut connection, patience).await;
        let _ = timeout(patience, connection.close()).await;
        found
    }

    /// A record in the log that touches no table and that no one decodes. It needs no right to any table.
    async fn try_to_write(&self, connection: &mut PgConnection, patience: Duration) -> Option<Finding> {
        {
            let mut wrote = lock(&self.wrote);
            if wrote.is_some_and(|at| at.elapsed() < BETWEEN_WRITES) {
                return None;
            }
            *wrote = Some(Instant::now());
        }
        let write = sqlx::raw_sql("select pg_logical_emit_message(true, 'pathbox', '')").execute(connection);
        match timeout(patience, write).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => match Class::of_postgres(&error) {
                Class::State(state) => Some(Finding::new(state, error)),
                _ => None,
            },
            Err(_) => Some(Finding::new(DatabaseState::Slow, Cause::NoAnswer(patience))),
        }
    }

    /// Runs one operation once.
    ///
    /// # Errors
    /// Whatever comes in between: the operation is then asked for in another way.
    pub(super) async fn once<T>(
        &self,
        availability: &Availability,
        operation: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, StoreError> {
        let bounded = timeout(self.options.statement_timeout, operation);
        match availability.while_it_serves(bounded).await? {
            Ok(done) => done.map_err(|error| Class::of_postgres(&error).into_error(error)),
            Err(_) => {
                let cause = Cause::NoAnswer(self.options.statement_timeout);
                Err(StoreError::State(DatabaseState::Slow, cause))
            }
        }
    }

    /// Runs one operation until it is done or its time is up. Operations are safe to run twice, so a lost answer is no
    /// reason to give up; a database that is away or read-only is not waited for.
    ///
    /// # Errors
    /// [`StoreError::State`] when the database did not do it in time, else what it said.
    pub(super) async fn call<T, F>(
        &self,
        availability: &Availability,
        operation: impl Fn() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, sqlx::Error>>,
    {
        let began = Instant::now();
        let deadline = began + self.options.statement_timeout;
        // A caller that may wait longer comes again.
        let busy_until = deadline.min(began + self.options.acquire_timeout);
        let (mut collisions, mut breaks) = (0, 0);
        loop {
            let generation = self.generation();
            let bounded = tokio::time::timeout_at(deadline, operation());
            let error = match availability.while_it_serves(bounded).await? {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(error)) => error,
                Err(_) => {
                    let cause = Cause::NoAnswer(self.options.statement_timeout);
                    return Err(counted(StoreError::State(DatabaseState::Slow, cause)));
                }
            };
            let class = Class::of_postgres(&error);
            let pause = match class {
                Class::Conflicting if collisions < COLLISIONS => {
                    collisions += 1;
                    jitter(PAUSE / 10 * collisions)
                }
                Class::BrokenConnection if breaks < BREAKS => {
                    breaks += 1;
                    availability.probe().await?;
                    self.renew(generation);
                    Duration::ZERO
                }
                // The session is read-only. Is the database, or is another host the primary?
                Class::State(DatabaseState::ReadOnly) if breaks < BREAKS => {
                    breaks += 1;
                    self.renew(generation);
                    availability.probe().await?;
                    Duration::ZERO
                }
                Class::NoConnection => match availability.probe().await {
                    Err(error) if error.state().is_some_and(DatabaseState::is_lasting) => {
                        return Err(counted(error));
                    }
                    _ => jitter(PAUSE),
                },
                Class::State(DatabaseState::Busy) => jitter(PAUSE),
                class => return Err(counted(class.into_error(error))),
            };
            let until = if class == Class::Conflicting { deadline } else { busy_until };
            if Instant::now() + pause >= until {
                return Err(counted(class.into_error(error)));
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// Takes note of an error's state.
fn counted(error: StoreError) -> StoreError {
    if let Some(state) = error.state() {
        metrics::STORE_STATES.add(&[state.as_str()], 1);
    }
    error
}

/// Half of a pause and a part of the other half, so that callers that collided do not meet again.
fn jitter(pause: Duration) -> Duration {
    let mut byte = [0_u8];
    let _ = getrandom::fill(&mut byte);
    pause / 2 + pause * u32::from(byte[0]) / 512
}

async fn is_read_only(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let sql = "select pg_is_in_recovery() or current_setting('transaction_read_only') = 'on'";
    sqlx::raw_sql(sql).fetch_one(connection).await?.try_get(0)
}

/// What an error of a new connection means. One that says that there is a database, though not for this login, is left
/// to the call itself.
fn unreachable_by(error: sqlx::Error) -> Option<Finding> {
    match Class::of_postgres(&error) {
        Class::State(state) => Some(Finding::new(state, error)),
        Class::BrokenConnection | Class::NoConnection => Some(Finding::new(DatabaseState::Away, error)),
        _ => None,
    }
}

fn pool(host: &PgConnectOptions, options: &PgOptions) -> PgPool {
    // A pooler refuses parameters of a session, or gives the session to someone else.
    let host = if options.pooled {
        host.clone()
    } else {
        let millis = |duration: Duration| duration.as_millis().to_string();
        host.clone().options([
            ("statement_timeout", millis(options.statement_timeout)),
            ("lock_timeout", millis(options.lock_timeout)),
        ])
    };
    PgPoolOptions::new()
        .max_connections(options.max_connections)
        .acquire_timeout(options.acquire_timeout)
        .after_connect(|connection, _| {
            Box::pin(async move {
                match is_read_only(connection).await? {
                    true => Err(sqlx::Error::Protocol("the database takes no writes".to_owned())),
                    false => Ok(()),
                }
            })
        })
        // A ping before each use would be a round trip more. One that has been idle may be dead.
        .test_before_acquire(false)
        .before_acquire(|connection, meta| {
            Box::pin(async move { Ok(meta.idle_for < UNTESTED || connection.ping().await.is_ok()) })
        })
        .connect_lazy_with(host)
}

/// One connection to the first host that serves, and which that is; or the reason at once: a pool would go on trying
/// until its time is up.
pub(super) async fn open(
    hosts: &[PgConnectOptions],
    options: &PgOptions,
) -> Result<(PgConnection, usize), StoreError> {
    let mut problem = None;
    for (at, host) in hosts.iter().enumerate() {
        let connect = async {
            let mut connection = PgConnection::connect_with(host).await?;
            let read_only = hosts.len() > 1 && is_read_only(&mut connection).await?;
            Ok::<_, sqlx::Error>((connection, read_only))
        };
        let error = match timeout(options.connect_timeout, connect).await {
            Ok(Ok((connection, false))) => return Ok((connection, at)),
            Ok(Ok((_, true))) => StoreError::State(
                DatabaseState::ReadOnly,
                Cause::Said("it is in recovery, or its transactions are read-only"),
            ),
            Ok(Err(error)) => match Class::of_postgres(&error) {
                Class::BrokenConnection => StoreError::State(DatabaseState::Away, error.into()),
                class => class.into_error(error),
            },
            Err(_) => StoreError::State(DatabaseState::Away, Cause::NoAnswer(options.connect_timeout)),
        };
        // A host that answers says more than one that does not.
        if problem.is_none() || error.state() != Some(DatabaseState::Away) {
            problem = Some(error);
        }
    }
    Err(problem.unwrap_or(StoreError::Url(sqlx::Error::PoolClosed)))
}

/// What a statement is executed on: a connection, or a transaction of its own on one.
#[derive(Debug, Clone)]
pub(super) struct Session {
    connections: Connections,
    /// How a transaction begins, behind a pooler.
    begin: Option<String>,
}

pub(super) type Step = Either<PgQueryResult, PgRow>;

impl<'p> Executor<'p> for &'_ Session {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Step, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let Session { connections, begin } = self.clone();
        let steps = async move { connections.execute(query, begin).await };
        stream::once(steps).map_ok(|steps| stream::iter(steps.into_iter().map(Ok))).try_flatten().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let Session { connections, begin } = self.clone();
        Box::pin(
            async move { Ok(connections.execute(query, begin).await?.into_iter().find_map(Either::right)) },
        )
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [<Postgres as sqlx::Database>::TypeInfo],
    ) -> BoxFuture<'e, Result<<Postgres as sqlx::Database>::Statement, sqlx::Error>>
    where
        'p: 'e,
    {
        let connections = self.connections.clone();
        Box::pin(async move { connections.prepare(sql, parameters).await })
    }
}

/// A query that is not prepared by name.
pub(super) struct Unnamed<E>(pub(super) E);

impl<'q, E: Execute<'q, Postgres>> Execute<'q, Postgres> for Unnamed<E> {
    fn sql(self) -> SqlStr {
        self.0.sql()
    }

    fn statement(&self) -> Option<&<Postgres as sqlx::Database>::Statement> {
        None
    }

    fn take_arguments(
        &mut self,
    ) -> Result<Option<<Postgres as sqlx::Database>::Arguments>, sqlx::error::BoxDynError> {
        self.0.take_arguments()
    }

    fn persistent(&self) -> bool {
        false
    }
}
