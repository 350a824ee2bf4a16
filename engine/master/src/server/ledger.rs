//! The ledger's side of the server: owners fetch changes, and calls wait until owners have acknowledged theirs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::store::ledger::{Evacuation, LedgerEvacuate, LedgerLoad, LedgerMount, LedgerPoll};
use proto::store::{ErrorCode, Rpc, Uuid};
use proto::struct_pack;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Master;
use super::connection::Ended;
use super::functions::Function;
use crate::admission::Peer;
use crate::index::{Due, EvacuationTotals, Index, Moment, Signals, Wait};

/// How long a poll waits for the first change.
const POLL: Duration = Duration::from_secs(1);
/// How long it waits for more changes after the first one, if no call waits for them.
const GATHER: Duration = Duration::from_millis(1);

/// Wakes polls and waiting calls.
#[derive(Debug, Default)]
pub(super) struct Bells {
    owners: Mutex<HashMap<Uuid, Arc<Notify>>>,
    progress: Notify,
}

impl Bells {
    /// Wakes the owners and calls that a change concerns.
    pub(super) fn ring(&self, signals: &Signals) {
        if !signals.owners.is_empty() {
            let owners = self.owners.lock();
            for bell in signals.owners.iter().filter_map(|owner| owners.get(owner)) {
                bell.notify_one();
            }
        }
        if signals.progress {
            self.progress.notify_waiters();
        }
    }

    fn owner(&self, owner: Uuid) -> Arc<Notify> {
        Arc::clone(self.owners.lock().entry(owner).or_default())
    }

    /// Forgets an owner without a poll.
    fn forget(&self, owner: Uuid, bell: Arc<Notify>) {
        let mut owners = self.owners.lock();
        drop(bell);
        if let Some(left) = owners.get(&owner)
            && Arc::strong_count(left) == 1
        {
            owners.remove(&owner);
        }
    }
}

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::of_segments::<LedgerMount>(
            |(client, ..)| Some(*client),
            |index, (client, segment, _)| {
                let mut segments = index.earlier_segments(*client, segment);
                segments.push(segment.id);
                segments
            },
            |index, (client, segment, highest), now| {
                if !index.is_plausible_epoch(highest) {
                    tracing::warn!(%client, segment = segment.name, epoch = highest, "a ledger has versions of no master: its values count as earlier than those of this run");
                }
                index.mount_ledger(client, segment, highest, now)
            },
        ),
        Function::of_segments::<LedgerLoad>(
            |_| None,
            |_, (_, segment, ..)| vec![*segment],
            |index, (client, segment, sent, entries, last), now| {
                index.load_ledger(client, segment, sent, entries, last, now)
            },
        ),
        Function::of_segments::<LedgerPoll>(
            |_| None,
            |_, (_, positions)| positions.iter().map(|position| position.segment).collect(),
            |index, (client, positions), now| index.poll_ledger(client, &positions, now),
        ),
        Function::of_segments::<LedgerEvacuate>(
            |_| None,
            |index, (client, ..)| index.ledgered_segments(*client),
            evacuate,
        ),
    ]
}

/// Continues the evacuation of an owner. When its objects have been counted, it logs whether they fit elsewhere.
fn evacuate(
    index: &mut Index,
    (client, attempt, ended): <LedgerEvacuate as Rpc>::Arguments,
    now: Moment,
) -> Result<Evacuation, ErrorCode> {
    let before = index.evacuation_totals().counted_owners;
    let answer = index.evacuate(client, attempt, &ended, now)?;
    let EvacuationTotals {
        counted_owners,
        left_objects,
        left_bytes,
        excess_bytes,
        ..
    } = index.evacuation_totals();
    if counted_owners > before && excess_bytes > 0 {
        tracing::warn!(
            %client,
            left_objects,
            left_bytes,
            excess_bytes,
            "a pool pod ends, and its objects do not fit into the free space of the others: the least recently used ones are evicted"
        );
    } else if counted_owners > before {
        tracing::info!(%client, left_objects, left_bytes, "a pool pod ends: its objects move to other pool pods");
    }
    Ok(answer)
}

pub(super) fn is_poll(function_id: u32) -> bool {
    function_id == LedgerPoll::function_id()
}

/// Waits until a poll has changes to return, at most for [`POLL`]. The poll itself is then answered like any call.
pub(super) async fn wait_for_changes(master: &Master, peer: Peer, body: &[u8]) {
    type Arguments = <LedgerPoll as Rpc>::Arguments;
    // Malformed arguments are refused by the call itself.
    let Ok((client, positions)) = struct_pack::decode::<Arguments>(body) else {
        return;
    };
    let bell = master.bells.owner(client);
    let mut end = Instant::now() + POLL;
    let mut gathers = false;
    loop {
        let polled = master.with_index(|index, now| {
            let owners = master.owners.lock();
            // Refused by the call itself.
            for position in &positions {
                owners.check(position.segment, peer)?;
            }
            index.has_changes(client, &positions, now)
        });
        match polled {
            Ok(Due::Never) => {}
            Ok(Due::Soon) if gathers => {}
            Ok(Due::Soon) => (gathers, end) = (true, end.min(Instant::now() + GATHER)),
            Ok(Due::Now) | Err(_) => break,
        }
        if timeout_at(end, bell.notified()).await.is_err() {
            break;
        }
    }
    master.bells.forget(client, bell);
}

/// Waits until the owners have acknowledged the changes of calls.
///
/// # Errors
/// [`Ended::Unacknowledged`] after the deadline: the connection ends without an answer, because each answer could be wrong
/// after a restart.
pub(super) async fn acknowledged(master: &Master, mut waits: Vec<Wait>) -> Result<(), Ended> {
    if waits.is_empty() {
        return Ok(());
    }
    let deadline = master.limits.ledger_deadline;
    let end = Instant::now() + deadline;
    loop {
        let mut progress = std::pin::pin!(master.bells.progress.notified());
        progress.as_mut().enable();
        if master.with_index(|index, _| index.have_happened(&mut waits)) {
            return Ok(());
        }
        if timeout_at(end, progress).await.is_err() {
            tracing::warn!(
                changes = waits.len(),
                ?deadline,
                "owners do not acknowledge changes of keys: a client gets no answer"
            );
            return Err(Ended::Unacknowledged(deadline));
        }
    }
}
