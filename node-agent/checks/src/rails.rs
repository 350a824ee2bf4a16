//! Rails: the RDMA ports of a node that carry data between nodes.

use crds::inventory::LinkLayer;

use host::Facts;
use host::hca::{Hca, Port};

/// True where Mooncake's RDMA transport can use a port: InfiniBand and RoCE. It needs reliable connections, which
/// AWS EFA (an unknown link layer to the kernel) does not have; stock wheels are built without Mooncake's transport
/// for EFA (`tests/node/efa.rs`).
pub(super) fn supports_rdma(port: &Port) -> bool {
    matches!(
        port.link_layer,
        Some(LinkLayer::InfiniBand | LinkLayer::Ethernet)
    )
}

/// Devices with a port that supports Mooncake's RDMA transport.
pub(super) fn devices(facts: &Facts) -> impl Iterator<Item = &Hca> {
    let hcas = facts.hcas.iter();
    hcas.filter(|hca| hca.ports.iter().any(supports_rdma))
}

/// All ports.
pub(super) fn ports(facts: &Facts) -> impl Iterator<Item = (&Hca, &Port)> {
    let hcas = facts.hcas.iter();
    hcas.flat_map(|hca| hca.ports.iter().map(move |port| (hca, port)))
}

/// Subject of a finding about a port, e.g. `mlx5_3 port 1`.
pub(super) fn port_name(hca: &Hca, port: &Port) -> String {
    format!("{} port {}", hca.name, port.number)
}

/// True for a port of the management card: it has the node's default route and less than half the rate of the
/// fastest port.
pub(super) fn is_management(facts: &Facts, port: &Port) -> bool {
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
