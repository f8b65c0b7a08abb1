//! What the replicas know of each other's sessions: that one has ended, that a request was cancelled, and what a session is
//! to its client. Written to the store by the replica that learns it, read by the others once a second, and when a session
//! comes to a replica for the first time.

use std::time::Duration;

use rmcp::model::RequestId;
use sha2::{Digest, Sha256};

use crate::domain::SessionFact;
use crate::execution::{SessionFacts, Starting, Startup};
use crate::mcp::transport::chats::{Chat, Sign};
use crate::mcp::{START_PATIENCE, Service};
use crate::telemetry::chain;

/// How often a replica with sessions reads what others recorded.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// How far back it looks: a look may come late or fail.
const BACK: Duration = Duration::from_secs(10);

const ENDED: &str = "ended";
const CHAT: &str = "chat";
const CANCELLED: &str = "cancelled:";

/// The key under which a session is known to other replicas.
pub(super) type Key = [u8; 32];

pub(super) fn key(id: &str) -> Key {
    Sha256::digest(id.as_bytes()).into()
}

/// Something that another replica recorded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SessionEvent {
    Ended,
    Cancelled(RequestId),
}

/// What is known of a session that is new to this replica.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Known {
    pub(super) has_ended: bool,
    pub(super) chat: Option<Chat>,
}

/// The view of the store.
#[derive(Debug, Clone)]
pub(super) struct Shared(pub(super) Starting<Service>);

impl Shared {
    fn facts(&self) -> Option<SessionFacts> {
        match self.0.now() {
            Startup::Ready(service) => Some(service.sessions),
            Startup::Starting | Startup::Failed(_) => None,
        }
    }

    async fn note(&self, id: &str, fact: String, value: &str) -> Option<String> {
        let fact = SessionFact { session: key(id), fact, value: value.to_owned() };
        match self.facts()?.note(&fact).await {
            Ok(value) => Some(value),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "an event of a session could not be shared with other replicas");
                None
            }
        }
    }

    /// The client has ended the session.
    pub(super) async fn end(&self, id: &str) {
        self.note(id, ENDED.into(), "").await;
    }

    /// The client has cancelled a request that another replica has.
    pub(super) async fn cancel(&self, id: &str, request: &RequestId) {
        let fact = format!("{CANCELLED}{}", serde_json::to_string(request).unwrap_or_default());
        if fact.chars().count() <= 300 {
            self.note(id, fact, "").await;
        }
    }

    /// What a session is to its client: what another replica has found, else `found`. A call waits for the service in any
    /// case; a list does not wait for one that is still starting, and is noted once it has.
    pub(super) async fn decide(&self, id: &str, sign: Sign, found: Chat) -> Chat {
        let is_ready = matches!(self.0.now(), Startup::Ready(_));
        if !is_ready && sign == Sign::Lists {
            let (later, id) = (self.clone(), id.to_owned());
            tokio::spawn(async move {
                drop(later.0.service(START_PATIENCE).await);
                later.note(&id, CHAT.into(), found.as_str()).await;
            });
            return found;
        }
        if !is_ready {
            drop(self.0.service(START_PATIENCE).await);
        }
        let known = self.note(id, CHAT.into(), found.as_str()).await;
        known.and_then(|value| Chat::read(&value)).unwrap_or(found)
    }

    /// What other replicas know of a session.
    pub(super) async fn of(&self, id: &str) -> Known {
        let Some(facts) = self.facts() else { return Known::default() };
        match facts.of(&key(id)).await {
            Ok(facts) => Known {
                has_ended: facts.iter().any(|fact| fact.fact == ENDED),
                chat: facts.iter().find(|fact| fact.fact == CHAT).and_then(|fact| Chat::read(&fact.value)),
            },
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the state of a session at other replicas could not be read");
                Known::default()
            }
        }
    }

    /// What other replicas recorded since the last look.
    pub(super) async fn recent_events(&self) -> Vec<(Key, SessionEvent)> {
        let Some(facts) = self.facts() else { return Vec::new() };
        let recent = facts.recent(BACK).await.unwrap_or_else(|error| {
            tracing::debug!(error = %chain(&error), "session events of other replicas could not be read");
            Vec::new()
        });
        let events = recent.into_iter().filter_map(|fact| {
            let event = match fact.fact.strip_prefix(CANCELLED) {
                Some(request) => SessionEvent::Cancelled(serde_json::from_str(request).ok()?),
                None if fact.fact == ENDED => SessionEvent::Ended,
                None => return None,
            };
            Some((fact.session, event))
        });
        events.collect()
    }
}
