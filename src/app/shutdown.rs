//! Shutdown: the first signal starts it, a second one ends the process at once.

#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
#[cfg(windows)]
use tokio::signal::windows::{ctrl_break, ctrl_c};

/// Waits for SIGTERM or SIGINT (Ctrl-Break or Ctrl-C on Windows), then makes a second one end the process at once (exit
/// code 130).
///
/// # Errors
/// When the system does not let signals be watched.
pub async fn asked() -> std::io::Result<()> {
    #[cfg(unix)]
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    #[cfg(windows)]
    let (mut terminate, mut interrupt) = (ctrl_break()?, ctrl_c()?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("shutdown requested");
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        std::process::exit(130);
    });
    Ok(())
}
