//! `PeerReachable`: the agent proves the ways to a few other nodes. One that is broken says little of this
//! node; where none works it is this node that is cut off.

use std::time::Duration;

use crds::{CheckId, Reason, Verdict};

use super::steady::Patience;
use super::{Check, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::PeerReachable,
    reasons: &[Reason::PeerUnreachable],
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
    let say = |way: &super::Way| match &way.broken {
        None => Said::pass(&way.node),
        Some(why) if none => {
            let words = format!("{why}; no way from this node to another works");
            Said::of(&way.node, Verdict::Fail, Reason::PeerUnreachable, words)
        }
        Some(why) => Said::of(&way.node, Verdict::Warn, Reason::PeerUnreachable, why),
    };
    ways.iter().map(say).collect()
}
