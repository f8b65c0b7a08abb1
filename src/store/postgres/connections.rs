//! The pool's connections, and those that were in use a moment ago.
//!
//! The pool makes a round trip before it takes a connection back, and lends the one that has been idle longest. With eight
//! callers thirty sessions took turns, each with cold plans and memory, and a call cost twice as much. So a connection whose
//! work went well stays here, and the last one to come back is the first to go out.
//!
//! Note: the pool counts a connection that stays here as checked out. So a connection goes back to the pool when someone
//! waits for one, when it has not been needed for a while, and now and then anyway: the pool closes those that are old.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::TryStreamExt;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool, PgStatement, PgTypeInfo, Postgres};
use sqlx::{AssertSqlSafe, Connection, Execute, Executor, SqlStr};
use tokio::time::{Instant, timeout};

use super::reach::{Step, Unnamed};
use crate::domain::lock;

/// A connection that has been idle for longer may be dead.
pub(super) const UNTESTED: Duration = Duration::from_secs(10);
/// How long the test of one may take.
const TEST: Duration = Duration::from_millis(2500);
/// One that has been idle for longer is not needed.
const UNUSED: Duration = Duration::from_secs(30);
/// The pool looks at each one's age so often.
const AGED: Duration = Duration::from_secs(300);

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Connections {
    pool: PgPool,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The last one to come back is the last one here.
    idle: VecDeque<Lent>,
    /// Calls that wait for the pool.
    waiting: usize,
    is_closed: bool,
}

/// A connection of the pool. One that is dropped goes back to it.
#[derive(Debug)]
pub(super) struct Lent {
    connection: PoolConnection<Postgres>,
    /// By the pool.
    since: Instant,
    idle_since: Instant,
}

impl Connections {
    pub(super) fn new(pool: PgPool) -> Self {
        Self { pool, kept: Arc::default() }
    }

    pub(super) async fn prepare(
        &self,
        sql: SqlStr,
        parameters: &[PgTypeInfo],
    ) -> Result<PgStatement, sqlx::Error> {
        let mut lent = self.lend().await?;
        let statement = lent.connection.prepare_with(sql, parameters).await?;
        self.keep(lent);
        Ok(statement)
    }

    /// Executes a statement, in a transaction of its own that begins like this if something is given.
    pub(super) async fn execute<'q, E>(
        &self,
        query: E,
        begin: Option<String>,
    ) -> Result<Vec<Step>, sqlx::Error>
    where
        E: 'q + Execute<'q, Postgres>,
    {
        let mut lent = self.lend().await?;
        let connection: &mut PgConnection = &mut lent.connection;
        let steps = match begin {
            None => connection.fetch_many(query).try_collect().await?,
            Some(begin) => {
                let mut transaction = connection.begin_with(AssertSqlSafe(begin)).await?;
                let steps = transaction.fetch_many(Unnamed(query)).try_collect().await?;
                transaction.commit().await?;
                steps
            }
        };
        self.keep(lent);
        Ok(steps)
    }

    async fn lend(&self) -> Result<Lent, sqlx::Error> {
        if let Some(mut lent) = self.last() {
            let is_fresh = lent.idle_since.elapsed() < UNTESTED;
            if is_fresh || matches!(timeout(TEST, lent.connection.ping()).await, Ok(Ok(()))) {
                return Ok(lent);
            }
            // The others have been idle for longer.
            lent.discard();
            lock(&self.kept).discard();
        }
        let waiting = Waiting::new(&self.kept);
        // Another call may have brought one back before this one was known to wait.
        if let Some(lent) = self.last().filter(|lent| lent.idle_since.elapsed() < UNTESTED) {
            return Ok(lent);
        }
        let connection = self.pool.acquire().await?;
        drop(waiting);
        let now = Instant::now();
        Ok(Lent { connection, since: now, idle_since: now })
    }

    fn last(&self) -> Option<Lent> {
        lock(&self.kept).idle.pop_back()
    }

    fn keep(&self, mut lent: Lent) {
        let now = Instant::now();
        lent.idle_since = now;
        let mut kept = lock(&self.kept);
        if kept.is_closed || kept.waiting > 0 || now - lent.since > AGED {
            return;
        }
        kept.idle.push_back(lent);
        if kept.idle.front().is_some_and(|lent| now - lent.idle_since > UNUSED) {
            kept.idle.pop_front();
        }
    }

    /// Closes the pool, and waits for the calls that are on their way.
    pub(super) async fn close(&self) {
        let idle = {
            let mut kept = lock(&self.kept);
            kept.is_closed = true;
            std::mem::take(&mut kept.idle)
        };
        drop(idle);
        self.pool.close().await;
    }
}

impl Kept {
    fn discard(&mut self) {
        self.idle.drain(..).for_each(Lent::discard);
    }
}

impl Lent {
    /// Closes it without a word to the server, which needs no runtime.
    fn discard(self) {
        drop(self.connection.detach());
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.discard();
    }
}

/// A call that waits for the pool.
struct Waiting<'a>(&'a Mutex<Kept>);

impl<'a> Waiting<'a> {
    fn new(kept: &'a Mutex<Kept>) -> Self {
        lock(kept).waiting += 1;
        Self(kept)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(self.0).waiting -= 1;
    }
}
