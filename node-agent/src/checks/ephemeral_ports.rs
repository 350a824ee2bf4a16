//! `EphemeralPorts`: `connect: Cannot assign requested address` where the range is small.

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, NODE, Said, World};

/// What IANA sets aside for this; less is somebody's choice.
pub(crate) const ENOUGH: u32 = 16_384;

/// Below this a few peers are enough to use them up.
const FEW: u32 = 1_000;

pub(super) const CHECK: Check = Check {
    id: CheckId::EphemeralPorts,
    reasons: &[Reason::EphemeralPortsLow],
    patience: Patience::SHORT,
    look,
};

/// How many ports the node's network namespace has to connect from.
pub(crate) fn count((first, last): (u16, u16)) -> u32 {
    (u32::from(last) + 1).saturating_sub(u32::from(first))
}

fn look(world: &World<'_>) -> Vec<Said> {
    let Some(range) = world.facts.kernel.local_ports else {
        return Vec::new();
    };
    vec![match few(range) {
        None => Said::pass(NODE),
        Some(words) if count(range) >= FEW => Said::warn(NODE, Reason::EphemeralPortsLow, words),
        Some(words) => Said::fail(NODE, Reason::EphemeralPortsLow, words),
    }]
}

/// What to say where a range is small.
pub(super) fn few(range: (u16, u16)) -> Option<String> {
    let have = count(range);
    let (first, last) = range;
    (have < ENOUGH).then(|| {
        format!("the range {first} to {last} has {have} ports, and should have {ENOUGH} or more")
    })
}
