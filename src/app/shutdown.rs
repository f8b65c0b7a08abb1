//! When to end: a signal asks, a second one insists.

use tokio::signal::unix::{SignalKind, signal};

/// Waits for SIGTERM or SIGINT, then makes a second one end the process at once (exit code 130).
///
/// # Errors
/// When the system does not let signals be watched.
pub async fn asked() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("asked to end");
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        std::process::exit(130);
    });
    Ok(())
}
