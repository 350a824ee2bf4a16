//! `PodHcas`: without a device in its container a stock engine takes TCP or NVLink, and says nothing.

use crds::cluster::TransportPolicy;
use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, Said, World, pod, rails};
use crate::host::Facts;
use crate::host::container::Container;

/// Devices that are named at most.
const NAMED: usize = 3;

pub(super) const CHECK: Check = Check {
    id: CheckId::PodHcas,
    reasons: &[Reason::HcaNotInPod],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let facts = world.facts;
    let usable = rails::devices(facts).any(|hca| hca.ports.iter().any(|port| port.is_usable()));
    if !usable {
        return Vec::new();
    }
    // Who has no engine, or one that is kept on TCP, asks for no device.
    let may = pod::containers(world).filter(|(of, container)| {
        of.rdma != TransportPolicy::Forbid && container.wheel.is_some() && !container.tcp_only
    });
    may.map(|(of, container)| {
        let subject = pod::subject(of, container);
        if count(facts, container) > 0 {
            return Said::pass(subject);
        }
        let words = format!(
            "its /dev/infiniband has none of the node's RDMA devices ({}), and transport rdma of \
             MooncakeCluster {}/{} is {:?}",
            named(facts),
            of.cluster_namespace,
            of.cluster,
            of.rdma
        );
        Said::warn(subject, Reason::HcaNotInPod, words)
    })
    .collect()
}

/// How many of the node's devices a container has.
pub(super) fn count(facts: &Facts, container: &Container) -> usize {
    let devices = rails::devices(facts);
    devices.filter(|hca| pod::has(container, hca)).count()
}

fn named(facts: &Facts) -> String {
    pod::list(rails::devices(facts).map(|hca| hca.name.clone()), NAMED)
}
