//! The process of a guard: it exists, so that `kubectl drain` has a pod to wait for.

use tokio::signal::unix::{SignalKind, signal};

/// Returns on SIGTERM or SIGINT.
///
/// # Errors
/// The signals cannot be received.
pub(crate) async fn until_terminated() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
