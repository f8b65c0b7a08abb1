//! e2b (see ARCHITECTURE.md).
