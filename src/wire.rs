//! wire (see ARCHITECTURE.md).
