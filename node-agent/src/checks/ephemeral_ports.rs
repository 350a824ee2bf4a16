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
    let have = count(range);
    let words = format!(
        "the range {} to {} has {have} ports, and should have {ENOUGH} or more",
        range.0, range.1
    );
    vec![match have {
        ENOUGH.. => Said::pass(NODE),
        FEW.. => Said::warn(NODE, Reason::EphemeralPortsLow, words),
        _ => Said::fail(NODE, Reason::EphemeralPortsLow, words),
    }]
}
