//! `EphemeralPorts`: enough ports for outgoing connections. With too few, `connect` fails with EADDRNOTAVAIL.

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, NODE, Observation};

/// Size of IANA's range for ephemeral ports.
pub const ENOUGH: u32 = 16_384;

/// Below this number a few peers use up all ports.
const FEW: u32 = 1_000;

pub(crate) const CHECK: Check =
    Check::new(CheckId::EphemeralPorts, &[Reason::EphemeralPortsLow], run);

/// Number of ports in a range.
pub fn count((first, last): (u16, u16)) -> u32 {
    (u32::from(last) + 1).saturating_sub(u32::from(first))
}

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let Some(range) = input.snapshot.facts.kernel.local_ports else {
        return Vec::new();
    };
    vec![match too_few(range) {
        None => Observation::pass(NODE),
        Some(message) if count(range) >= FEW => {
            Observation::warn(NODE, Reason::EphemeralPortsLow, message)
        }
        Some(message) => Observation::fail(NODE, Reason::EphemeralPortsLow, message),
    }]
}

/// Message for a range that is too small.
pub(crate) fn too_few(range: (u16, u16)) -> Option<String> {
    let have = count(range);
    let (first, last) = range;
    (have < ENOUGH).then(|| {
        format!("the range of ephemeral ports {first} to {last} has {have} ports; at least {ENOUGH} are required")
    })
}
