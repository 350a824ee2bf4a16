//! Which ports of a node are looked at as what carries data between nodes.

use crds::inventory::LinkLayer;

use crate::host::Facts;
use crate::host::hca::{Hca, Port};

/// True where Mooncake's RDMA can use a port at all. AWS EFA, of which the kernel tells an unknown link layer,
/// has no reliable connections, which Mooncake's RDMA makes; Mooncake has a transport of its own for it, which
/// stock wheels are built without (`tests/node/efa.rs`). So it is nothing that a container could lack.
pub(super) fn speaks_rdma(port: &Port) -> bool {
    matches!(
        port.link_layer,
        Some(LinkLayer::InfiniBand | LinkLayer::Ethernet)
    )
}

/// True where a port of the device can be used by Mooncake's RDMA.
pub(super) fn is_rdma(hca: &Hca) -> bool {
    hca.ports.iter().any(speaks_rdma)
}

/// Devices that Mooncake's RDMA can use.
pub(super) fn devices(facts: &Facts) -> impl Iterator<Item = &Hca> {
    facts.hcas.iter().filter(|hca| is_rdma(hca))
}

/// All ports.
pub(super) fn ports(facts: &Facts) -> impl Iterator<Item = (&Hca, &Port)> {
    let of = |hca| std::iter::repeat(hca);
    facts
        .hcas
        .iter()
        .flat_map(move |hca| of(hca).zip(&hca.ports))
}

/// What one port is called.
pub(super) fn name(hca: &Hca, port: &Port) -> String {
    format!("{} port {}", hca.name, port.number)
}

/// True for a port that the node itself is reached by, and that is slow beside the others: the
/// management card, of which nobody wants that it carries data. Where it is as fast as the others it
/// is one of them.
pub(super) fn is_aside(facts: &Facts, port: &Port) -> bool {
    let fastest = ports(facts).filter_map(|(_, port)| port.rate).max();
    let slow = port
        .rate
        .zip(fastest)
        .is_some_and(|(rate, fastest)| rate < fastest / 2);
    slow && port
        .interfaces
        .iter()
        .any(|interface| interface.default_route)
}
