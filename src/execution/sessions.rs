//! What the replicas tell each other of MCP sessions, for the doors that have them.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use crate::domain::SessionFact;
use crate::store::StoreError;

/// Facts about sessions that every replica knows. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SessionFacts(pub(super) Arc<Core>);

impl SessionFacts {
    /// Notes a fact of a session, unless it is known already. Gives what is known then.
    ///
    /// # Errors
    /// The store's.
    pub async fn note(&self, fact: &SessionFact) -> Result<String, StoreError> {
        self.0.store().note_session(fact).await
    }

    /// All that is known of a session.
    ///
    /// # Errors
    /// The store's.
    pub async fn of(&self, session: &[u8; 32]) -> Result<Vec<SessionFact>, StoreError> {
        self.0.store().session_facts(session).await
    }

    /// The notes on all sessions within the last `age`, except what sessions are to their clients.
    ///
    /// # Errors
    /// The store's.
    pub async fn recent(&self, age: Duration) -> Result<Vec<SessionFact>, StoreError> {
        self.0.store().recent_session_facts(age).await
    }
}
