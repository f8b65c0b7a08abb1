//! Pathbox: an MCP server that runs a language model's code in sandboxes that follow the conversation's path.
//!
//! `ARCHITECTURE.md` has the map. Modules are on floors and use only what is below them; a test
//! (`tests/it/architecture.rs`) holds that.

// A function of more lines than `clippy.toml` says is split, or says why it reads better whole.
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

// floor 0: values, names of measurements, message shapes
pub mod domain;
pub mod telemetry;
pub mod wire;

// floor 1: pure parts
pub mod analysis;
pub mod guard;
pub mod workflow;

// floor 2: reach to the outside
pub mod bridge;
pub mod e2b;
pub mod objects;
pub mod store;

// floor 3: use cases
pub mod execution;

// floor 5: doors
pub mod auth;
pub mod console;
#[cfg(target_os = "linux")]
pub mod host;
pub mod http;
pub mod mcp;

// floor 6: wiring
pub mod app;
pub mod cli;
pub mod config;
