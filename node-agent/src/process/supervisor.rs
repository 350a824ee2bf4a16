//! First process of the agent's container. Runs the worker as a child and restarts it, so that a crash costs
//! 100 ms and no container restart.

use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

/// Wait after a worker that ran for [`STABLE`] or longer.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// Longest wait between two starts.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// A worker that ran this long resets the wait.
const STABLE: Duration = Duration::from_secs(10);

/// Time that a worker has to end after SIGTERM.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// Returns the wait before the next start.
fn wait_before_start(ran: Duration, last: Duration) -> Duration {
    if ran >= STABLE {
        FIRST_WAIT
    } else {
        (last * 2).clamp(FIRST_WAIT, LONGEST_WAIT)
    }
}

/// Runs `agent worker` with these arguments until SIGTERM or SIGINT.
///
/// # Errors
/// The worker cannot be started or waited for.
pub(crate) async fn supervise(arguments: Vec<OsString>) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // The container's shim. It runs in the node's network namespace and may end first.
    let starter = std::os::unix::process::parent_id();
    let mut wait = Duration::ZERO;
    loop {
        let started = Instant::now();
        let mut worker = Command::new(&program)
            .args(&arguments)
            .arg(format!("--host-network=/proc/{starter}/ns/net"))
            .arg("worker")
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the worker")?;
        tracing::info!(pid = worker.id(), "worker started");
        let status = tokio::select! {
            status = worker.wait() => status.context("cannot wait for the worker")?,
            _ = terminate.recv() => return end(worker).await,
            _ = interrupt.recv() => return end(worker).await,
        };
        wait = wait_before_start(started.elapsed(), wait);
        tracing::warn!(%status, wait_ms = wait.as_millis(), "worker died: restarting");
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
}

/// Ends the worker. Nothing is unmounted: a successor takes over.
async fn end(mut worker: Child) -> anyhow::Result<()> {
    let pid = worker.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        rustix::process::kill_process(pid, Signal::TERM).context("cannot terminate the worker")?;
    }
    let status: ExitStatus = match tokio::time::timeout(END_DEADLINE, worker.wait()).await {
        Ok(status) => status?,
        Err(_) => {
            worker.kill().await.context("cannot kill the worker")?;
            worker.wait().await?
        }
    };
    tracing::info!(%status, "worker ended");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stable_worker_restarts_at_once_and_a_crashing_one_later_each_time() {
        let minute = Duration::from_secs(60);
        assert!(wait_before_start(minute, LONGEST_WAIT) < Duration::from_millis(100));
        let mut wait = Duration::ZERO;
        let mut waits = Vec::new();
        for _ in 0..12 {
            wait = wait_before_start(Duration::from_millis(1), wait);
            waits.push(wait);
        }
        assert_eq!(waits[0], FIRST_WAIT);
        assert!(waits.is_sorted());
        assert_eq!(waits.last(), Some(&LONGEST_WAIT));
    }
}
