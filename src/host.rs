//! The embedded sandbox host: a second program in the same binary that speaks E2B's protocol.

pub mod agent;
pub mod jail;
