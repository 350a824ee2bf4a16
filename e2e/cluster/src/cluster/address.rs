//! The addresses of a cluster, by its index, in 198.18.0.0/15 (RFC 2544), which no network routes.

/// One of the address blocks for clusters on one machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Block(u8);

impl Block {
    pub const COUNT: u8 = 16;
    /// Nodes of a cluster, each with a /24 for its pods.
    pub const NODES: u8 = 8;

    /// None for an index of [`Block::COUNT`] or more.
    pub fn new(index: u8) -> Option<Self> {
        (index < Self::COUNT).then_some(Self(index))
    }

    pub fn index(self) -> u8 {
        self.0
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_node_of_the_last_cluster_has_addresses() {
        let block = Block::new(Block::COUNT - 1).unwrap();
        assert_eq!(block.pods_of(Block::NODES), "198.19.255.0/24");
        assert_eq!(block.services(), "198.19.120.0/21");
        assert_eq!(Block::new(Block::COUNT), None);
    }

    #[test]
    fn neighbours_share_no_pod_range() {
        let (first, second) = (Block::new(0).unwrap(), Block::new(1).unwrap());
        assert_eq!(first.pods_of(Block::NODES), "198.19.135.0/24");
        assert_eq!(second.pods_of(1), "198.19.136.0/24");
    }
}
