//! Session ids that any replica can read: a sealed ticket with who opened the session and how.
//!
//! A client's session must survive a restart, an idle hour and a round-robin over replicas. So the id itself
//! carries what is needed to open the session again, sealed with the installation's key; nothing is looked up.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use chrono::{DateTime, TimeDelta, Utc};
use rmcp::model::{ClientCapabilities, InitializeRequestParams};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::domain::{Clock, Entropy};

const NONCE: usize = 24;
/// How long a ticket opens a session. Clients open a new one when theirs is not known any more.
const LIFE: TimeDelta = TimeDelta::hours(24);
/// The longest id; header blocks are bounded at clients and proxies.
const MAX_LEN: usize = 4096;

/// What a session id says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ticket {
    /// The principal's name.
    #[serde(rename = "p")]
    pub(super) owner: String,
    /// When it was written, seconds since 1970.
    #[serde(rename = "t")]
    written: i64,
    /// How the client introduced itself.
    #[serde(rename = "i")]
    pub(super) initialize: InitializeRequestParams,
}

/// Seals and opens tickets.
#[derive(Clone)]
pub(super) struct Tickets {
    key: Zeroizing<[u8; 32]>,
    clock: Clock,
    entropy: Entropy,
}

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tickets(…)")
    }
}

impl Tickets {
    pub(super) fn new(key: [u8; 32], clock: Clock, entropy: Entropy) -> Self {
        Self { key: Zeroizing::new(key), clock, entropy }
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.key).into())
    }

    /// A name for a stream that no other stream has, here or at another replica.
    pub(super) fn stream_name(&self) -> String {
        self.entropy.hex::<8>()
    }

    /// A new session id for this caller. A client that says a great deal about itself has its capabilities left out.
    pub(super) fn write(&self, owner: &str, initialize: &InitializeRequestParams) -> String {
        let mut initialize = initialize.clone();
        initialize.meta = None;
        let mut ticket =
            Ticket { owner: owner.to_owned(), written: self.clock.now().timestamp(), initialize };
        let id = self.seal(&ticket);
        if id.len() <= MAX_LEN {
            return id;
        }
        ticket.initialize.capabilities = ClientCapabilities::default();
        ticket.initialize.client_info = rmcp::model::Implementation::new("client", "0");
        self.seal(&ticket)
    }

    fn seal(&self, ticket: &Ticket) -> String {
        let nonce: [u8; NONCE] = self.entropy.bytes();
        let plain = serde_json::to_vec(ticket).unwrap_or_default();
        let sealed = self.cipher().encrypt(&XNonce::from(nonce), plain.as_slice()).unwrap_or_default();
        let mut bytes = nonce.to_vec();
        bytes.extend(sealed);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// What an id says, if it was written here and is not too old.
    pub(super) fn read(&self, id: &str) -> Option<Ticket> {
        if id.len() > 2 * MAX_LEN {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(id).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE)?;
        let nonce: [u8; NONCE] = nonce.try_into().ok()?;
        let plain = self.cipher().decrypt(&XNonce::from(nonce), sealed).ok()?;
        let ticket: Ticket = serde_json::from_slice(&plain).ok()?;
        let written = DateTime::<Utc>::from_timestamp(ticket.written, 0)?;
        (self.clock.now() < written + LIFE).then_some(ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmcp::model::Implementation;

    fn tickets(key: u8, clock: &Clock) -> Tickets {
        Tickets::new([key; 32], clock.clone(), Entropy::seeded(1))
    }

    #[test]
    fn a_ticket_is_read_by_every_replica_with_the_key_until_it_is_old() {
        let clock = Clock::manual(DateTime::from_timestamp(1_800_000_000, 0).unwrap());
        let hello =
            InitializeRequestParams::new(ClientCapabilities::default(), Implementation::new("c", "1"));
        let id = tickets(1, &clock).write("key:a", &hello);
        assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
        assert!(!id.contains("key:a"));
        let other = tickets(1, &clock);
        assert_eq!(other.read(&id).unwrap().owner, "key:a");
        assert_eq!(other.read(&id).unwrap().initialize.client_info.name, "c");
        assert!(tickets(2, &clock).read(&id).is_none(), "another installation's");
        for at in [0, 10, id.len() - 1] {
            let mut forged = id.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            assert!(other.read(std::str::from_utf8(&forged).unwrap()).is_none(), "byte {at}");
        }
        clock.advance(std::time::Duration::from_secs(24 * 3600));
        assert!(other.read(&id).is_none(), "old");
    }

    #[test]
    fn a_client_that_says_too_much_still_gets_an_id_of_bounded_length() {
        let clock = Clock::system();
        let hello = InitializeRequestParams::new(
            ClientCapabilities::default(),
            Implementation::new("x".repeat(100_000), "1"),
        );
        let id = tickets(1, &clock).write("key:a", &hello);
        assert!(id.len() <= MAX_LEN);
        assert!(tickets(1, &clock).read(&id).is_some());
    }
}
