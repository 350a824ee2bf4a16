//! The addresses of a cluster, by its index: in 198.18.0.0/15 (RFC 2544), which no network routes, and for a dual-stack
//! cluster also in fd6d:6f6f:6e63::/48, a unique local prefix (RFC 4193).

use std::net::Ipv6Addr;

/// One of the address blocks for clusters on one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Block(u8);

/// The IPv6 addresses of a dual-stack cluster. Each cluster has 256 networks of /64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ipv6Block(u8);

impl Block {
    /// Clusters on one machine at the same time.
    pub const MAX_CLUSTERS: u8 = 16;
    /// Nodes of a cluster, each with a /24 for its pods.
    pub const NODES: u8 = 8;

    /// None for an index of [`Block::MAX_CLUSTERS`] or more.
    pub fn new(index: u8) -> Option<Self> {
        (index < Self::MAX_CLUSTERS).then_some(Self(index))
    }

    pub fn index(self) -> u8 {
        self.0
    }

    /// The IPv6 addresses of the same index.
    pub(super) fn ipv6(self) -> Ipv6Block {
        Ipv6Block(self.0)
    }

    /// Addresses of nodes, control plane and this machine.
    fn host(self, number: u8) -> String {
        format!("198.18.{}.{number}", self.0)
    }

    pub fn api_server(self) -> String {
        self.host(1)
    }

    pub fn api_url(self) -> String {
        format!("https://{}:6443", self.api_server())
    }

    /// This machine's address in the cluster's network.
    pub fn gateway(self) -> String {
        self.host(254)
    }

    /// Nodes are counted from 1.
    pub fn node(self, node: u8) -> String {
        self.host(10 + node)
    }

    pub fn services(self) -> String {
        format!("198.19.{}.0/21", self.0 * 8)
    }

    /// The service `kubernetes.default`.
    pub fn first_service(self) -> String {
        format!("198.19.{}.1", self.0 * 8)
    }

    pub fn dns(self) -> String {
        format!("198.19.{}.10", self.0 * 8)
    }

    pub fn pods(self) -> String {
        format!("198.19.{}.0/21", 128 + self.0 * 8)
    }

    pub fn pods_of(self, node: u8) -> String {
        format!("198.19.{}.0/24", 127 + self.0 * 8 + node)
    }
}

impl Ipv6Block {
    /// Network of nodes, control plane and this machine.
    const HOSTS: u8 = 0;
    const SERVICES: u8 = 0x10;
    /// First of the 16 networks for pods, of which node 1 has the second.
    const PODS: u8 = 0x20;

    fn address(self, network: u8, number: u16) -> Ipv6Addr {
        let subnet = u16::from_be_bytes([self.0, network]);
        Ipv6Addr::new(0xfd6d, 0x6f6f, 0x6e63, subnet, 0, 0, 0, number)
    }

    pub(super) fn api_server(self) -> String {
        self.address(Self::HOSTS, 1).to_string()
    }

    /// This machine's address in the cluster's network.
    pub(super) fn gateway(self) -> String {
        self.address(Self::HOSTS, 254).to_string()
    }

    /// Nodes are counted from 1.
    pub(super) fn node(self, node: u8) -> String {
        self.address(Self::HOSTS, 10 + u16::from(node)).to_string()
    }

    /// A /112: the API server accepts ranges of at most 20 bits.
    pub(super) fn services(self) -> String {
        format!("{}/112", self.address(Self::SERVICES, 0))
    }

    pub(super) fn pods(self) -> String {
        format!("{}/60", self.address(Self::PODS, 0))
    }

    pub(super) fn pods_of(self, node: u8) -> String {
        format!("{}/64", self.address(Self::PODS + node, 0))
    }
}

/// A list of the values of both families, IPv4 first, as the parts of Kubernetes read it.
pub(super) fn list(ipv4: String, ipv6: Option<String>) -> String {
    match ipv6 {
        Some(ipv6) => format!("{ipv4},{ipv6}"),
        None => ipv4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ipv6_networks_of_neighbours_are_disjoint() {
        let (first, second) = (Block::new(0).unwrap().ipv6(), Block::new(1).unwrap().ipv6());
        assert_eq!(first.node(1), "fd6d:6f6f:6e63::b");
        assert_eq!(first.services(), "fd6d:6f6f:6e63:10::/112");
        assert_eq!(first.pods(), "fd6d:6f6f:6e63:20::/60");
        assert_eq!(first.pods_of(Block::NODES), "fd6d:6f6f:6e63:28::/64");
        assert_eq!(second.gateway(), "fd6d:6f6f:6e63:100::fe");
        assert_eq!(second.pods(), "fd6d:6f6f:6e63:120::/60");
    }

    #[test]
    fn the_last_node_of_the_last_cluster_has_addresses() {
        let block = Block::new(Block::MAX_CLUSTERS - 1).unwrap();
        assert_eq!(block.pods_of(Block::NODES), "198.19.255.0/24");
        assert_eq!(block.services(), "198.19.120.0/21");
        assert_eq!(Block::new(Block::MAX_CLUSTERS), None);
    }

    #[test]
    fn neighbours_share_no_pod_range() {
        let (first, second) = (Block::new(0).unwrap(), Block::new(1).unwrap());
        assert_eq!(first.pods_of(Block::NODES), "198.19.135.0/24");
        assert_eq!(second.pods_of(1), "198.19.136.0/24");
    }
}
