//! What the tests share.

pub(crate) mod database;
pub(crate) mod fault_server;
pub(crate) mod http;
pub(crate) mod runs;
pub(crate) mod server;
pub(crate) mod wire;
