//! The first process of the agent's container: runs the worker as a child and starts it again when
//! it dies, so that a crash costs a tenth of a second and no container restart.

use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

/// Wait after a worker that had run well.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// Longest wait between two starts.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// A worker that ran this long had run well.
const RAN_WELL: Duration = Duration::from_secs(10);

/// How long a worker may take to end after SIGTERM.
const END_DEADLINE: Duration = Duration::from_secs(5);

/// How long to wait before the next start.
fn wait_before_start(ran: Duration, last: Duration) -> Duration {
    if ran >= RAN_WELL {
        FIRST_WAIT
    } else {
        (last * 2).clamp(FIRST_WAIT, LONGEST_WAIT)
    }
}

/// Runs `agent worker` with these arguments until SIGTERM or SIGINT.
///
/// # Errors
/// If no worker can be started at all.
pub async fn supervise(arguments: Vec<OsString>) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // The container's shim, which runs in the node's own network namespace and may end before us.
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
            .context("starting the worker")?;
        tracing::info!(pid = worker.id(), "worker started");
        let status = tokio::select! {
            status = worker.wait() => status.context("waiting for the worker")?,
            _ = terminate.recv() => return end(worker).await,
            _ = interrupt.recv() => return end(worker).await,
        };
        wait = wait_before_start(started.elapsed(), wait);
        tracing::warn!(%status, wait_ms = wait.as_millis(), "worker died: starting another");
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
}

/// Passes the end on. Nothing is unmounted: a successor takes over.
async fn end(mut worker: Child) -> anyhow::Result<()> {
    let pid = worker.id().and_then(|pid| i32::try_from(pid).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        rustix::process::kill_process(pid, Signal::TERM).context("telling the worker to end")?;
    }
    let status: ExitStatus = match tokio::time::timeout(END_DEADLINE, worker.wait()).await {
        Ok(status) => status?,
        Err(_) => {
            worker.kill().await.context("killing the worker")?;
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
    fn a_worker_that_ran_well_comes_back_at_once_and_one_that_does_not_ever_later() {
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
