//! `PartitionKey`: each InfiniBand port is a full member of a partition. Limited members reach full members only.

use crds::inventory::LinkLayer;
use crds::{CheckId, Reason};

use crate::rails;

use crate::{Check, CheckInput, Observation};

/// Bit in the key of a full member.
const FULL: u16 = 0x8000;

pub(crate) const CHECK: Check = Check::new(CheckId::PartitionKey, &[Reason::PartitionLimited], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let ports = rails::ports(&input.snapshot.facts).filter(|(_, port)| {
        port.link_layer == Some(LinkLayer::InfiniBand) && !port.partition_keys.is_empty()
    });
    let observe = |(hca, port): (_, &host::hca::Port)| {
        let subject = rails::port_name(hca, port);
        if port.partition_keys.iter().any(|key| key & FULL != 0) {
            return Observation::pass(subject);
        }
        let keys = port.partition_keys.iter().take(4);
        let keys: Vec<String> = keys.map(|key| format!("{key:#06x}")).collect();
        let message = format!(
            "its partition keys are {}: none has full membership",
            keys.join(", ")
        );
        Observation::warn(subject, Reason::PartitionLimited, message)
    };
    ports.map(observe).collect()
}
