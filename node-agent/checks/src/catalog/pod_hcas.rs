//! `PodHcas`: a container that may use RDMA has an RDMA device. Without one a stock engine uses TCP or NVLink, and
//! reports no error.

use crds::cluster::TransportPolicy;
use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation, pod, rails};
use host::Facts;
use host::container::Container;

/// Most devices in the message.
const LISTED: usize = 3;

pub(crate) const CHECK: Check = Check::new(CheckId::PodHcas, &[Reason::HcaNotInPod], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let facts = &input.snapshot.facts;
    let usable = rails::devices(facts).any(|hca| hca.ports.iter().any(|port| port.is_usable()));
    if !usable {
        return Vec::new();
    }
    // A container without an engine needs no device, nor one of a cluster on TCP, nor one that the user, or the webhook
    // of release 0.1.0, keeps on TCP by MC_FORCE_TCP.
    let engines = pod::containers(input).filter(|(of, container)| {
        of.rdma != TransportPolicy::Forbid && container.wheel.is_some() && !container.tcp_only
    });
    engines.map(|(of, container)| {
        let subject = pod::subject(of, container);
        if count(facts, container) > 0 {
            return Observation::pass(subject);
        }
        let message = format!(
            "its /dev/infiniband has none of the node's RDMA devices ({}); rdma of MooncakeCluster {}/{} is {:?}",
            named(facts),
            of.cluster_namespace,
            of.cluster,
            of.rdma
        );
        Observation::warn(subject, Reason::HcaNotInPod, message)
    })
    .collect()
}

/// Number of the node's devices that a container can open.
pub(crate) fn count(facts: &Facts, container: &Container) -> usize {
    let devices = rails::devices(facts);
    devices.filter(|hca| pod::can_open(container, hca)).count()
}

fn named(facts: &Facts) -> String {
    pod::first_names_or_none(rails::devices(facts).map(|hca| &hca.name), LISTED)
}
