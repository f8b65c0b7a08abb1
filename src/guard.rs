//! guard (see ARCHITECTURE.md).
