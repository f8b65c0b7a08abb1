//! What the tests share.

pub mod fault_server;
