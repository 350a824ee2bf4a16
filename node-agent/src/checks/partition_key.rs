//! `PartitionKey`: limited members of an InfiniBand partition reach its full members only, and two
//! nodes that are both limited do not reach each other.

use crds::inventory::LinkLayer;
use crds::{CheckId, Reason};

use super::rails;
use super::steady::Patience;
use super::{Check, Said, World};

/// Set in the key of a full member.
const FULL: u16 = 0x8000;

pub(super) const CHECK: Check = Check {
    id: CheckId::PartitionKey,
    reasons: &[Reason::PartitionLimited],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let ports = rails::ports(world.facts).filter(|(_, port)| {
        port.link_layer == Some(LinkLayer::InfiniBand) && !port.partition_keys.is_empty()
    });
    let say = |(hca, port): (_, &crate::host::hca::Port)| {
        let subject = rails::name(hca, port);
        if port.partition_keys.iter().any(|key| key & FULL != 0) {
            return Said::pass(subject);
        }
        let keys = port.partition_keys.iter().take(4);
        let keys: Vec<String> = keys.map(|key| format!("{key:#06x}")).collect();
        let words = format!("its keys are {}: none of a full member", keys.join(", "));
        Said::warn(subject, Reason::PartitionLimited, words)
    };
    ports.map(say).collect()
}
