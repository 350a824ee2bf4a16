//! Probes the path to one agent periodically.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::names::{PROBE_BASE, PROBE_SLOT};
use crds::node::{PROBES_LIMIT, Probe};
use engine::{Op, Transfer};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::path::{PathState, PeerPath};
use super::{LocalEnd, PeerPaths};

/// Limit for one probe: connect, write, read back.
const DEADLINE: Duration = Duration::from_secs(2);

/// Task that probes one path.
#[derive(Debug)]
pub(super) struct Prober {
    probe: Probe,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Prober {
    /// Starts the task. With the default period it reports a fault within ten seconds, after two failures.
    pub(super) fn start(
        local: &Arc<LocalEnd>,
        probe: Probe,
        mut period: watch::Receiver<Duration>,
        paths: &Arc<watch::Sender<PeerPaths>>,
    ) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let (local, paths, of) = (Arc::clone(local), Arc::clone(paths), probe.clone());
        let task = tokio::spawn(async move {
            let mut path = PeerPath::new(of.clone());
            // Spreads the probes of an agent over the period.
            let share = |period: Duration| period * u32::from(of.slot) / 4;
            let mut wait = share(*period.borrow_and_update());
            for round in 0.. {
                loop {
                    tokio::select! {
                        () = tokio::time::sleep(wait) => break,
                        Ok(()) = period.changed() => wait = share(*period.borrow_and_update()),
                        _ = &mut stopped => return,
                    }
                }
                wait = *period.borrow_and_update();
                let changed = path.record(probe_once(&local, &of, round).await);
                if changed {
                    log_change(&path);
                }
                paths.send_if_modified(|paths| {
                    paths.insert(of.node.clone(), path.clone());
                    changed
                });
            }
        });
        Self { probe, stop, task }
    }

    pub(super) fn probe(&self) -> &Probe {
        &self.probe
    }

    /// Stops the task and waits, at most for one probe, until nothing uses its memory.
    pub(super) async fn end(self) {
        // The task may have ended.
        self.stop.send(()).ok();
        if let Err(error) = self.task.await {
            tracing::error!(%error, node = self.probe.node, "a peer prober panicked");
        }
    }
}

fn log_change(path: &PeerPath) {
    let Probe { node, address, .. } = &path.probe;
    match &path.state {
        PathState::Unknown => {}
        PathState::Works if path.slow => {
            let reason = crds::Reason::TransportDegraded;
            tracing::warn!(node, address, %reason, took = ?path.took, "the path to the agent is slow");
        }
        PathState::Works => tracing::info!(node, address, "the path to the agent works"),
        PathState::Broken(why) => {
            let reason = crds::Reason::PeerUnreachable;
            tracing::warn!(node, address, %reason, why, "the path to the agent is broken");
        }
    }
}

/// Returns bytes that differ by round and by offset.
fn pattern(round: u64) -> Vec<u8> {
    let words =
        (0..PROBE_SLOT / 8).map(|word| (round << 32 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Probes once; returns the duration.
async fn probe_once(local: &LocalEnd, probe: &Probe, round: u64) -> Result<Duration, String> {
    let began = Instant::now();
    let deadline = began + DEADLINE;
    let slot = u64::from(probe.slot);
    let (from, into) = (
        (PROBES_LIMIT as u64 + 2 * slot) * PROBE_SLOT,
        (PROBES_LIMIT as u64 + 2 * slot + 1) * PROBE_SLOT,
    );
    let written = pattern(round);
    local
        .region
        .copy_in(from, &written)
        .map_err(|error| error.to_string())?;
    for (op, local_offset) in [(Op::Write, from), (Op::Read, into)] {
        let transfer = Transfer {
            op,
            peer: probe.address.clone(),
            remote: PROBE_BASE + slot * PROBE_SLOT,
            local: local.id,
            local_offset,
            length: PROBE_SLOT,
        };
        let mut batch = local
            .endpoint
            .submit(std::slice::from_ref(&transfer), deadline);
        let moved = batch.outcome().await;
        batch.released().await;
        moved.map_err(|error| error.to_string())?;
    }
    let took = began.elapsed();
    let mut read = vec![0; written.len()];
    local
        .region
        .copy_out(into, &mut read)
        .map_err(|error| error.to_string())?;
    if read == written {
        Ok(took)
    } else {
        Err(format!(
            "the bytes read back from {} differ from the bytes written",
            probe.address
        ))
    }
}
