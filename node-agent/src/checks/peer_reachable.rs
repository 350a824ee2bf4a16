//! `PeerReachable`: the agent proves the ways to a few other nodes. One that is broken says little of this
//! node; where none works it is this node that is cut off.

use std::time::Duration;

use crds::names::PROBE_SLOT;
use crds::{ByteSize, CheckId, Reason, Verdict};

use super::steady::Patience;
use super::{Check, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::PeerReachable,
    reasons: &[Reason::PeerUnreachable, Reason::TransportDegraded],
    // An agent that is replaced is away for as long: a rollout is no news of every node.
    patience: Patience {
        grace: Duration::from_secs(15),
        hold: Duration::from_secs(15),
    },
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let ways = world.ways;
    let none = ways.len() > 1 && ways.iter().all(|way| way.broken.is_some());
    let say = |way: &super::Way| match (&way.broken, way.slow) {
        (Some(why), _) if none => {
            let words = format!("{why}; no way from this node to another works");
            Said::of(&way.node, Verdict::Fail, Reason::PeerUnreachable, words)
        }
        (Some(why), _) => Said::of(&way.node, Verdict::Warn, Reason::PeerUnreachable, why),
        (None, Some(limit)) => {
            let (bytes, limit) = (ByteSize(PROBE_SLOT), limit.as_millis());
            let words = format!(
                "{bytes} there and back take more than {limit} ms, also the fastest of the last half minute"
            );
            Said::of(&way.node, Verdict::Warn, Reason::TransportDegraded, words)
        }
        (None, None) => Said::pass(&way.node),
    };
    ways.iter().map(say).collect()
}
