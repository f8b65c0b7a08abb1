//! Facts about MCP sessions.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;

use super::rows::Cells;
use super::{SqliteStore, failure};
use crate::domain::SessionFact;
use crate::store::measure::measure;
use crate::store::{Sessions, StoreError, millis};

/// Milliseconds that a fact is kept.
const KEPT_MS: i64 = 25 * 3_600_000;

#[async_trait]
impl Sessions for SqliteStore {
    async fn note_session(&self, fact: &SessionFact) -> Result<String, StoreError> {
        let now = self.now_ms();
        let mut transaction = self.write(measure!("note_session")).await?;
        sqlx::query("DELETE FROM session_facts WHERE at < ?")
            .bind(now - KEPT_MS)
            .execute(&mut *transaction)
            .await
            .map_err(failure)?;
        sqlx::query(
            "INSERT INTO session_facts (session, fact, value, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        )
        .bind(fact.session.as_slice())
        .bind(&fact.fact)
        .bind(&fact.value)
        .bind(now)
        .execute(&mut *transaction)
        .await
        .map_err(failure)?;
        let value = sqlx::query_scalar("SELECT value FROM session_facts WHERE session = ? AND fact = ?")
            .bind(fact.session.as_slice())
            .bind(&fact.fact)
            .fetch_one(&mut *transaction)
            .await
            .map_err(failure)?;
        transaction.commit().await?;
        Ok(value)
    }

    async fn session_facts(&self, session: &[u8; 32]) -> Result<Vec<SessionFact>, StoreError> {
        let rows = sqlx::query("SELECT session, fact, value FROM session_facts WHERE session = ?")
            .bind(session.as_slice())
            .fetch_all(&mut *self.read(measure!("session_facts")).await?)
            .await
            .map_err(failure)?;
        rows.iter().map(fact).collect()
    }

    async fn recent_session_facts(&self, age: Duration) -> Result<Vec<SessionFact>, StoreError> {
        let rows =
            sqlx::query("SELECT session, fact, value FROM session_facts WHERE at > ? AND fact <> 'chat'")
                .bind(self.now_ms() - millis(age))
                .fetch_all(&mut *self.read(measure!("recent_session_facts")).await?)
                .await
                .map_err(failure)?;
        rows.iter().map(fact).collect()
    }
}

fn fact(row: &SqliteRow) -> Result<SessionFact, StoreError> {
    let cells = Cells::new(row, "session_facts", "session");
    Ok(SessionFact {
        session: cells.get::<&[u8]>("session")?.try_into().map_err(|error| cells.corrupt(error))?,
        fact: cells.get::<&str>("fact")?.to_owned(),
        value: cells.get::<&str>("value")?.to_owned(),
    })
}
