//! The state of MCP sessions that every replica needs. The rest of a session's state is in its id.

use std::time::Duration;

use async_trait::async_trait;

use super::StoreError;
use crate::domain::SessionFact;

/// Facts about MCP sessions, kept a little longer than a session's id is good for (24 hours).
#[async_trait]
pub trait Sessions: Send + Sync {
    /// Notes a fact of a session, unless it is known already. Gives what is known then.
    async fn note_session(&self, fact: &SessionFact) -> Result<String, StoreError>;

    /// All that is known of a session.
    async fn session_facts(&self, session: &[u8; 32]) -> Result<Vec<SessionFact>, StoreError>;

    /// The notes on all sessions within the last `age`, except those of `chat`.
    async fn recent_session_facts(&self, age: Duration) -> Result<Vec<SessionFact>, StoreError>;
}
