//! The decision of one step: from what is known of a pool pod to the one thing to do next. Pure.

use std::time::Duration;

use crds::node::PoolState;
use crds::reason::Reason;

/// An earlier pod that has not given its memory back for longer than this is worth a reason of its
/// own.
const RELEASE_PATIENCE: Duration = Duration::from_secs(60);

/// Everything that the decision depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// Whether the pod stands in the node's spec.
    pub(super) listed: Listed,
    /// The pool process runs.
    pub(super) runs: bool,
    /// The pool process asked for a drain.
    pub(super) ending: bool,
    /// We are its agent.
    pub(super) attached: bool,
    /// What the pool keeps for us.
    pub(super) record: RecordFact,
    /// The pod's address was seen to be one of its network namespace.
    pub(super) address_proven: bool,
    /// The pool has made its extents.
    pub(super) granted: bool,
    /// An earlier pod still holds memory, for this long.
    pub(super) predecessor: Option<Duration>,
    /// The extents are mapped here.
    pub(super) mapped: bool,
    /// The first extent with pages that do not exist yet.
    pub(super) untouched: Option<usize>,
    /// The pool is touching.
    pub(super) touching: bool,
    /// Peers can connect.
    pub(super) hosted: bool,
    /// The master of the spec, seen from what the record says.
    pub(super) master: MasterFact,
    /// The session with the master.
    pub(super) session: SessionFact,
    /// The master has, or may have, segments of this pod.
    pub(super) in_master: bool,
    /// The pool was told that it may end.
    pub(super) said_drained: bool,
    /// What the pool was told last about serving, if we told it anything.
    pub(super) told_serving: Option<bool>,
}

/// Whether the pod stands in the node's spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listed {
    /// The API was not read yet.
    Unknown,
    Yes,
    /// The spec was read and does not name it (any more).
    No,
}

/// What the pool keeps for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordFact {
    Unread,
    /// It keeps nothing.
    None,
    Ours,
}

/// The master of the spec, compared with the one that the record says we are mounted in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MasterFact {
    /// Neither the spec nor the record names one.
    None,
    /// Named, and this epoch was never mounted anywhere.
    Fresh,
    /// The one that this epoch was mounted in, under the same address.
    Same,
    /// Another pod answers at the same address, and we have mounted a new epoch there already,
    /// because it did not know us.
    Adoptable,
    /// Another instance.
    Other,
}

/// The session with the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionFact {
    None,
    Connecting,
    /// All segments are mounted.
    Mounted,
    /// Some segments were refused.
    Refused,
    /// The master has lost the epoch.
    Lost,
    /// The master refused all segments.
    LostByRefusal,
    Skew,
    Unreachable,
}

/// One thing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Attach,
    ReadRecord,
    ProveAddress,
    Grant,
    Map,
    Touch(usize),
    /// Draw client id and first epoch, and record them.
    Begin,
    Host,
    StartSession,
    /// New ids and wire bases in the same session.
    RenewEpoch,
    /// End the session and begin a new epoch for another master.
    ChangeMaster,
    /// Note that another pod answers as the master.
    AdoptMaster,
    TellServing(bool),
    /// Take the segments out of the master: with the grace of a drain, or at once.
    Unmount {
        graceful: bool,
    },
    /// Serve no more and unmap.
    Release,
    SayDrained,
    /// Nothing is left to do for this pod, ever.
    Finish,
}

/// What to do, and how the pod stands meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) action: Option<Action>,
    pub(super) state: PoolState,
    pub(super) reason: Reason,
}

/// The decision. The order of the questions is the order of a pod's life, its end first.
pub(super) fn step(facts: &Facts) -> Step {
    if !facts.runs || facts.ending || facts.listed == Listed::No {
        return end(facts);
    }
    let waiting = |action| with(Some(action), PoolState::Waiting, Reason::WaitingForGrant);
    if !facts.attached {
        return waiting(Action::Attach);
    }
    if facts.record == RecordFact::Unread {
        return waiting(Action::ReadRecord);
    }
    if !facts.address_proven {
        return waiting(Action::ProveAddress);
    }
    prepare(facts).unwrap_or_else(|| serve(facts))
}

/// Until the memory is here and may be served.
fn prepare(facts: &Facts) -> Option<Step> {
    let preparing = |action| with(action, PoolState::Preparing, Reason::TouchingMemory);
    if !facts.granted {
        let wait = |reason| Some(with(None, PoolState::Waiting, reason));
        if facts.listed != Listed::Yes {
            return wait(Reason::WaitingForGrant);
        }
        return match facts.predecessor {
            Some(since) if since > RELEASE_PATIENCE => Some(with(
                Some(Action::Grant),
                PoolState::Waiting,
                Reason::PreviousPoolNotReleased,
            )),
            _ => Some(with(
                Some(Action::Grant),
                PoolState::Waiting,
                Reason::WaitingForGrant,
            )),
        };
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
        return Some(preparing(Some(Action::Begin)));
    }
    if !facts.hosted {
        return Some(preparing(Some(Action::Host)));
    }
    None
}

/// The memory is served; now the master.
fn serve(facts: &Facts) -> Step {
    let mounting = |action, reason| with(action, PoolState::Mounting, reason);
    let tell = |serving| {
        let news = facts.told_serving != Some(serving);
        news.then_some(Action::TellServing(serving))
    };
    match facts.master {
        MasterFact::Other => return mounting(Some(Action::ChangeMaster), Reason::Mounting),
        MasterFact::None => return mounting(None, Reason::MasterNotReady),
        MasterFact::Adoptable => return mounting(Some(Action::AdoptMaster), Reason::Mounting),
        MasterFact::Fresh | MasterFact::Same => {}
    }
    match facts.session {
        SessionFact::None => mounting(Some(Action::StartSession), Reason::Mounting),
        SessionFact::Lost => mounting(Some(Action::RenewEpoch), Reason::MasterLostIndex),
        SessionFact::LostByRefusal => {
            let action = tell(false).unwrap_or(Action::RenewEpoch);
            mounting(Some(action), Reason::MountRefused)
        }
        SessionFact::Connecting => mounting(None, Reason::Mounting),
        // What is mounted is still served; the pod stays Ready until the master has lost it.
        SessionFact::Unreachable => mounting(None, Reason::MasterUnreachable),
        SessionFact::Skew => mounting(tell(false), Reason::EngineVersionSkew),
        SessionFact::Refused => mounting(tell(false), Reason::MountRefused),
        SessionFact::Mounted => with(tell(true), PoolState::Serving, Reason::AsExpected),
    }
}

/// The pod ends, was ended, or is none of ours any more.
fn end(facts: &Facts) -> Step {
    let graceful = facts.runs && facts.ending;
    let (state, reason) = if graceful {
        (PoolState::Draining, Reason::Draining)
    } else {
        (PoolState::Released, Reason::PoolPodGone)
    };
    let action = if facts.runs && facts.record == RecordFact::Unread {
        // A predecessor may have mounted it: the record knows.
        Some(if facts.attached {
            Action::ReadRecord
        } else {
            Action::Attach
        })
    } else if facts.in_master {
        Some(Action::Unmount { graceful })
    } else if facts.mapped || facts.hosted {
        Some(Action::Release)
    } else if !facts.runs {
        Some(Action::Finish)
    } else if !facts.ending || facts.said_drained {
        None
    } else if facts.attached {
        Some(Action::SayDrained)
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
