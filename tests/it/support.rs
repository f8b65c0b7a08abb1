//! What the tests share.

pub(crate) mod database;
pub mod fault_server;
pub(crate) mod runs;
pub mod server;
