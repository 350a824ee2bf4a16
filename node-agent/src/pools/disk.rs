//! Writes to the node's disk with a time limit: a disk may hang.

use std::io;
use std::time::Duration;

use tokio::time::timeout;

/// Limit for the file operations of one call.
const DEADLINE: Duration = Duration::from_secs(2);

/// Runs file operations on a thread of their own, so that a disk that hangs blocks no task.
///
/// # Errors
/// The errors of `work`; `TimedOut` where it goes on after [`DEADLINE`].
pub(super) async fn on_disk(
    work: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    timeout(DEADLINE, tokio::task::spawn_blocking(work)).await??
}
