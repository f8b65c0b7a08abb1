//! Facts about MCP sessions.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::rows::Cells;
use crate::domain::SessionFact;
use crate::store::measure::measure;
use crate::store::{Sessions, StoreError, millis};

#[async_trait]
impl Sessions for PgStore {
    async fn note_session(&self, fact: &SessionFact) -> Result<String, StoreError> {
        self.call(measure!("note_session"), || async {
            sqlx::query_scalar("select pathbox.note_session_v1($1, $2, $3)")
                .bind(fact.session.as_slice())
                .bind(&fact.fact)
                .bind(&fact.value)
                .fetch_one(&self.pool())
                .await
        })
        .await
    }

    async fn session_facts(&self, session: &[u8; 32]) -> Result<Vec<SessionFact>, StoreError> {
        let rows = self
            .call(measure!("session_facts"), || async {
                sqlx::query("select session, fact, value from pathbox.session_facts_v1($1)")
                    .bind(session.as_slice())
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        rows.iter().map(fact).collect()
    }

    async fn recent_session_facts(&self, age: Duration) -> Result<Vec<SessionFact>, StoreError> {
        let rows = self
            .call(measure!("recent_session_facts"), || async {
                sqlx::query("select session, fact, value from pathbox.recent_session_facts_v1($1)")
                    .bind(millis(age))
                    .fetch_all(&self.pool())
                    .await
            })
            .await?;
        rows.iter().map(fact).collect()
    }
}

fn fact(row: &PgRow) -> Result<SessionFact, StoreError> {
    let cells = Cells::new(row, "session_facts", "session");
    Ok(SessionFact {
        session: cells.get::<&[u8]>("session")?.try_into().map_err(|error| cells.corrupt(error))?,
        fact: cells.get("fact")?,
        value: cells.get("value")?,
    })
}
