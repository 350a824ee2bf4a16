//! Decides the next step for a pool pod from its facts. Pure.

use std::time::Duration;

use crds::node::PoolState;
use crds::reason::Reason;

use crate::control::message::Listed;

/// How long an earlier pod may keep its memory before the Reason names it.
const RELEASE_PATIENCE: Duration = Duration::from_secs(60);

/// All input of the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// Whether the node's spec assigns the pod.
    pub(super) listed: Listed,
    /// The pool process runs.
    pub(super) running: bool,
    /// The pool process requested a drain.
    pub(super) draining: bool,
    /// The move of the pod's objects to other pods.
    pub(super) evacuation: EvacuationFact,
    /// This agent is attached to the pool process.
    pub(super) attached: bool,
    /// What the pool process stores for the agent.
    pub(super) record: RecordFact,
    /// The pod's address is in its network namespace.
    pub(super) address_verified: bool,
    /// The pool process has allocated its extents.
    pub(super) granted: bool,
    /// How long an earlier pod has kept memory.
    pub(super) predecessor: Option<Duration>,
    /// The agent has mapped the extents.
    pub(super) mapped: bool,
    /// The first extent with untouched pages.
    pub(super) untouched: Option<usize>,
    /// The pool process touches pages.
    pub(super) touching: bool,
    /// The service to peers.
    pub(super) peers: PeersFact,
    /// The descriptor in the cluster's metadata service.
    pub(super) metadata: MetadataFact,
    /// The master in the spec, compared with the record.
    pub(super) master: MasterFact,
    /// The session with the master.
    pub(super) session: SessionFact,
    /// The master may have segments of this pod.
    pub(super) maybe_mounted: bool,
    /// The pool process was notified that the drain has ended.
    pub(super) drained_reported: bool,
    /// The last notification of the pool process about serving.
    pub(super) reported_serving: Option<bool>,
}

/// The service to peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeersFact {
    None,
    /// The memory is being registered, for the first time or after a failure.
    Registering {
        again: bool,
    },
    /// Over TCP alone: the devices have not registered all memory, and do not try.
    Unregistered,
    Served,
}

/// What the pool process stores for the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordFact {
    Unread,
    /// No record.
    None,
    Ours,
}

/// The descriptor in the cluster's metadata service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetadataFact {
    /// The cluster has no metadata service.
    NotUsed,
    /// Not published, or not checked again since it changed.
    Unpublished,
    /// It was published, whatever the state of the service now.
    Published,
}

/// The master in the spec, compared with the one in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MasterFact {
    /// Neither the spec nor the record names a master.
    None,
    /// The spec names a master; this epoch was never mounted.
    Fresh,
    /// The master in which this epoch was mounted, at the same address. It may be unmounted since.
    Same,
    /// Another pod serves at the same address, did not know the client, and has a new epoch mounted.
    Adoptable,
    /// Another instance.
    Other,
}

/// State of the session with the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionFact {
    None,
    Connecting,
    /// All segments are mounted.
    Mounted,
    /// The master rejected some segments.
    Refused,
    /// The master has lost the epoch.
    Lost,
    /// The master rejected all segments.
    LostByRefusal,
    Skew,
    Unreachable,
}

/// The move of the objects of a pod that drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvacuationFact {
    /// The pod does not drain, nothing of it is mounted, or its master moves nothing: the segments stay readable for the
    /// drain period.
    Unsupported,
    /// It is to begin.
    Due,
    Running,
    /// Nothing more moves.
    Over,
}

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Attach,
    ReadRecord,
    VerifyAddress,
    Grant,
    Map,
    Touch(usize),
    /// Draw client id and first epoch, and record them.
    CreateRecord,
    /// Serve peers, or register the memory again.
    ServePeers,
    StartSession,
    /// Mount new ids and wire bases in the same session.
    RenewEpoch,
    /// End the session and begin a new epoch for another master, or for the same one after an unmount.
    ChangeMaster,
    /// Record that another pod serves as the master.
    AdoptMaster,
    ReportServing(bool),
    /// Begin to move the objects to other pods.
    Evacuate,
    /// Unmount the segments: after the drain period, or at once.
    Unmount {
        graceful: bool,
    },
    /// Stop serving and unmap.
    Release,
    ReportDrained,
    /// Stop: nothing remains to do for this pod.
    Finish,
}

/// The next action, with state and Reason of the pod until it succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) action: Option<Action>,
    pub(super) state: PoolState,
    pub(super) reason: Reason,
}

/// Decides the next step. The conditions are in the order in which a pod meets them; its end comes first.
pub(super) fn step(facts: &Facts) -> Step {
    let moves = matches!(
        facts.evacuation,
        EvacuationFact::Due | EvacuationFact::Running
    );
    if facts.running && facts.draining && moves {
        return evacuate(facts);
    }
    if !facts.running || facts.draining || facts.listed == Listed::No {
        return end(facts);
    }
    begin(facts)
}

/// Steps of a pod that serves or will serve.
fn begin(facts: &Facts) -> Step {
    let waiting = |action| with(Some(action), PoolState::Waiting, Reason::WaitingForGrant);
    if !facts.attached {
        return waiting(Action::Attach);
    }
    if facts.record == RecordFact::Unread {
        return waiting(Action::ReadRecord);
    }
    if !facts.address_verified {
        return waiting(Action::VerifyAddress);
    }
    prepare(facts).unwrap_or_else(|| serve(facts))
}

/// Steps until the memory is ready to be served.
fn prepare(facts: &Facts) -> Option<Step> {
    let preparing = |action| with(action, PoolState::Preparing, Reason::TouchingMemory);
    if !facts.granted {
        let action = (facts.listed == Listed::Yes).then_some(Action::Grant);
        let reason = match facts.predecessor {
            Some(held) if held > RELEASE_PATIENCE => Reason::PreviousPoolNotReleased,
            _ => Reason::WaitingForGrant,
        };
        return Some(with(action, PoolState::Waiting, reason));
    }
    if !facts.mapped {
        return Some(preparing(Some(Action::Map)));
    }
    if facts.touching {
        return Some(preparing(None));
    }
    if let Some(index) = facts.untouched {
        return Some(preparing(Some(Action::Touch(index))));
    }
    if facts.record == RecordFact::None {
        return Some(preparing(Some(Action::CreateRecord)));
    }
    match facts.peers {
        PeersFact::None | PeersFact::Unregistered => Some(preparing(Some(Action::ServePeers))),
        PeersFact::Registering { again } => {
            // The master drops the keys of a client that does not ping. After a failure it may: peers get the keys from
            // other pools, and this one may never serve.
            let is_known = facts.master == MasterFact::Same && facts.maybe_mounted;
            let starts = !again && is_known && facts.session == SessionFact::None;
            Some(preparing(starts.then_some(Action::StartSession)))
        }
        PeersFact::Served => None,
    }
}

/// Steps in the master, once the memory is served.
fn serve(facts: &Facts) -> Step {
    let mounting = |action, reason| with(action, PoolState::Mounting, reason);
    let report = |serving| {
        let changed = facts.reported_serving != Some(serving);
        changed.then_some(Action::ReportServing(serving))
    };
    match facts.master {
        // Unmounted while the spec did not list the pod. The master confirms the client until its TTL ends, also
        // without segments, so a session that takes over would mount nothing.
        MasterFact::Same | MasterFact::Adoptable if !facts.maybe_mounted => {
            return mounting(Some(Action::ChangeMaster), Reason::Mounting);
        }
        MasterFact::Other => return mounting(Some(Action::ChangeMaster), Reason::Mounting),
        MasterFact::None => return mounting(None, Reason::MasterNotReady),
        MasterFact::Adoptable => return mounting(Some(Action::AdoptMaster), Reason::Mounting),
        MasterFact::Fresh | MasterFact::Same => {}
    }
    // Clients that get a segment from the master must find its descriptor. What is mounted already stays mounted.
    let fresh = facts.master == MasterFact::Fresh && facts.session == SessionFact::None;
    if fresh && facts.metadata == MetadataFact::Unpublished {
        return mounting(None, Reason::Mounting);
    }
    match facts.session {
        SessionFact::None => mounting(Some(Action::StartSession), Reason::Mounting),
        SessionFact::Lost => mounting(Some(Action::RenewEpoch), Reason::MasterLostIndex),
        SessionFact::LostByRefusal => {
            let action = report(false).unwrap_or(Action::RenewEpoch);
            mounting(Some(action), Reason::MountRefused)
        }
        SessionFact::Connecting => mounting(None, Reason::Mounting),
        // Mounted segments are still served; the pod stays Ready until the master has lost them.
        SessionFact::Unreachable => mounting(None, Reason::MasterUnreachable),
        SessionFact::Skew => mounting(report(false), Reason::EngineVersionSkew),
        SessionFact::Refused => mounting(report(false), Reason::MountRefused),
        SessionFact::Mounted => with(report(true), PoolState::Serving, Reason::AsExpected),
    }
}

/// Steps of a pod whose objects move to others. It serves meanwhile, also a master that comes back or another one.
fn evacuate(facts: &Facts) -> Step {
    let due = facts.evacuation == EvacuationFact::Due
        && facts.session != SessionFact::None
        && facts.peers == PeersFact::Served;
    let action = match begin(facts).action {
        None | Some(Action::ReportServing(_)) if due => Some(Action::Evacuate),
        action => action,
    };
    with(action, PoolState::Draining, Reason::Draining)
}

/// Steps of a pod that drains, has ended, or is no longer assigned.
fn end(facts: &Facts) -> Step {
    let graceful = facts.running && facts.draining;
    let (state, reason) = if graceful {
        (PoolState::Draining, Reason::Draining)
    } else {
        (PoolState::Released, Reason::PoolPodGone)
    };
    let action = if facts.running && facts.record == RecordFact::Unread {
        // An earlier agent may have mounted it; the record has the segments.
        Some(if facts.attached {
            Action::ReadRecord
        } else {
            Action::Attach
        })
    } else if facts.maybe_mounted {
        let graceful = graceful && facts.evacuation != EvacuationFact::Over;
        Some(Action::Unmount { graceful })
    } else if facts.mapped || facts.peers != PeersFact::None {
        Some(Action::Release)
    } else if !facts.running {
        Some(Action::Finish)
    } else if !facts.draining || facts.drained_reported {
        None
    } else if facts.attached {
        Some(Action::ReportDrained)
    } else {
        Some(Action::Attach)
    };
    with(action, state, reason)
}

fn with(action: Option<Action>, state: PoolState, reason: Reason) -> Step {
    Step {
        action,
        state,
        reason,
    }
}

#[cfg(test)]
mod tests;
