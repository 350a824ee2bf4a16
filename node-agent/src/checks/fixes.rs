//! `Fixes`: a policy lets the agent set something right, and the node refuses it, or somebody sets it
//! back, or it is of no use before the kubelet has seen it.

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::Fixes,
    reasons: &[
        Reason::FixRefused,
        Reason::FixSetBack,
        Reason::KubeletRestartRequired,
    ],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let say = |fix: &crds::FixReport| match fix.reason {
        reason @ (Reason::FixRefused | Reason::FixSetBack | Reason::KubeletRestartRequired) => {
            let words = format!("from {} to {}: {}", fix.before, fix.after, fix.message);
            Said::warn(fix.id.as_str(), reason, words)
        }
        _ => Said::pass(fix.id.as_str()),
    };
    world.fixes.iter().map(say).collect()
}
