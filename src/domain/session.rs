//! What replicas tell each other of protocol sessions.

/// Something that is known of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFact {
    /// SHA-256 of the session's id.
    pub session: [u8; 32],
    /// What it is about.
    pub fact: String,
    /// What is known.
    pub value: String,
}
