//! telemetry (see ARCHITECTURE.md).
