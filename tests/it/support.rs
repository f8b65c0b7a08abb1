//! What the tests share.

pub(crate) mod database;
pub(crate) mod fault_server;
pub mod http;
pub(crate) mod runs;
pub mod server;
