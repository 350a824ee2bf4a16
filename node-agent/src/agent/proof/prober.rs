//! Proves the way to one agent again and again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::names::{PROBE_BASE, PROBE_SLOT};
use crds::node::{PROBES_LIMIT, Probe};
use engine::{Op, Transfer};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::way::{Verdict, Way};
use super::{Post, Ways};

/// For one proof: connect, write, read back.
const DEADLINE: Duration = Duration::from_secs(2);

/// A task that proves one way.
#[derive(Debug)]
pub(super) struct Prober {
    probe: Probe,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Prober {
    /// Two proofs that fail in a row are told: with the period that is usual within ten seconds of the fault.
    pub(super) fn start(
        post: &Arc<Post>,
        probe: Probe,
        mut period: watch::Receiver<Duration>,
        ways: &Arc<watch::Sender<Ways>>,
    ) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let (post, ways, of) = (Arc::clone(post), Arc::clone(ways), probe.clone());
        let task = tokio::spawn(async move {
            let mut way = Way::new(of.clone());
            // Not all at once.
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
                let turned = way.note(prove(&post, &of, round).await);
                if turned {
                    tell(&way);
                }
                ways.send_if_modified(|ways| {
                    ways.insert(of.node.clone(), way.clone());
                    turned
                });
            }
        });
        Self { probe, stop, task }
    }

    pub(super) fn probe(&self) -> &Probe {
        &self.probe
    }

    /// Ends it; nothing uses its memory afterwards. Takes no longer than one proof.
    pub(super) async fn end(self) {
        // It may have ended by itself.
        self.stop.send(()).ok();
        if let Err(error) = self.task.await {
            tracing::error!(%error, node = self.probe.node, "proving a way has ended by a bug");
        }
    }
}

fn tell(way: &Way) {
    let Probe { node, address, .. } = &way.probe;
    match &way.verdict {
        Verdict::Unproven => {}
        Verdict::Proven if way.slow => {
            let reason = crds::Reason::TransportDegraded;
            tracing::warn!(node, address, %reason, took = ?way.took, "the way to that agent is slow");
        }
        Verdict::Proven => tracing::info!(node, address, "the way to that agent is proved"),
        Verdict::Broken(why) => {
            let reason = crds::Reason::PeerUnreachable;
            tracing::warn!(node, address, %reason, why, "the way to that agent is broken");
        }
    }
}

/// Bytes that differ from round to round and from place to place.
fn pattern(round: u64) -> Vec<u8> {
    let words =
        (0..PROBE_SLOT / 8).map(|word| (round << 32 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

/// One proof, and how long it took.
async fn prove(post: &Post, probe: &Probe, round: u64) -> Result<Duration, String> {
    let began = Instant::now();
    let deadline = began + DEADLINE;
    let slot = u64::from(probe.slot);
    let (from, into) = (
        (PROBES_LIMIT as u64 + 2 * slot) * PROBE_SLOT,
        (PROBES_LIMIT as u64 + 2 * slot + 1) * PROBE_SLOT,
    );
    let written = pattern(round);
    post.region
        .copy_in(from, &written)
        .map_err(|error| error.to_string())?;
    for (op, local_offset) in [(Op::Write, from), (Op::Read, into)] {
        let transfer = Transfer {
            op,
            peer: probe.address.clone(),
            remote: PROBE_BASE + slot * PROBE_SLOT,
            local: post.id,
            local_offset,
            length: PROBE_SLOT,
        };
        let mut batch = post.host.submit(std::slice::from_ref(&transfer), deadline);
        let moved = batch.outcome().await;
        batch.released().await;
        moved.map_err(|error| error.to_string())?;
    }
    let took = began.elapsed();
    let mut read = vec![0; written.len()];
    post.region
        .copy_out(into, &mut read)
        .map_err(|error| error.to_string())?;
    if read == written {
        Ok(took)
    } else {
        Err(format!(
            "what was read back from {} is not what was written",
            probe.address
        ))
    }
}
