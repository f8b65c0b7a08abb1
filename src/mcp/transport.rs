//! The ways in. Each feeds the same [`super::McpServer`].

pub mod stdio;
