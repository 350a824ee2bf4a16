//! Selects which agents probe each other: all nodes are on a ring, and each agent probes the next ones. A
//! node that is added or removed affects only its neighbours. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crds::node::{PROBES_LIMIT, Probe, Prober};
use sha2::{Digest, Sha256};

/// An agent on the ring: its node and probe address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub node: String,
    pub address: SocketAddr,
}

/// The agents around one node, in both directions, the nearest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    next: Vec<Member>,
    previous: Vec<Member>,
}

/// Position of a node: a hash, so that it is stable and nodes of similar names are far apart.
fn place(node: &str) -> u64 {
    let digest = Sha256::digest(node.as_bytes());
    digest
        .iter()
        .take(8)
        .fold(0, |place, byte| place << 8 | u64::from(*byte))
}

/// Adds a member if it is among the nearest; of two entries for one node the first counts.
fn offer(near: &mut Vec<(u64, Member)>, distance: u64, node: &str, address: SocketAddr) {
    let full = near.len() == PROBES_LIMIT;
    let too_far = full && near.last().is_some_and(|(last, _)| *last <= distance);
    if too_far || near.iter().any(|(_, member)| member.node == node) {
        return;
    }
    let at = near.partition_point(|(before, _)| *before < distance);
    let node = node.to_owned();
    near.insert(at, (distance, Member { node, address }));
    near.truncate(PROBES_LIMIT);
}

/// All agents in ring order.
#[derive(Clone, Debug, Default)]
pub struct ProbeRing {
    members: BTreeMap<(u64, String), SocketAddr>,
}

impl ProbeRing {
    /// Adds, moves or removes a node's agent.
    pub fn place(&mut self, node: &str, address: Option<SocketAddr>) {
        let key = (place(node), node.to_owned());
        match address {
            Some(address) => self.members.insert(key, address),
            None => self.members.remove(&key),
        };
    }

    /// A node's neighbours, whether it is on the ring or not. Of several addresses of one node that of the
    /// ring counts, then the first of `also`.
    pub fn around<'a>(
        &self,
        node: &str,
        also: impl IntoIterator<Item = (&'a str, SocketAddr)>,
    ) -> Neighbours {
        let here = (place(node), node.to_owned());
        let before = self.members.range(..&here);
        let after = self.members.range(&here..);
        let other = |(key, _): &(&(u64, String), &SocketAddr)| key.1 != node;
        let next = after.clone().chain(before.clone()).filter(other);
        let previous = before.rev().chain(after.rev()).filter(other);
        let near = next.take(PROBES_LIMIT).chain(previous.take(PROBES_LIMIT));
        let mut near: Vec<(&str, SocketAddr)> = near
            .map(|((_, other), address)| (other.as_str(), *address))
            .collect();
        for member in also {
            near.push(member);
        }
        Neighbours::of(node, near)
    }
}

impl Neighbours {
    fn of<'a>(node: &str, members: impl IntoIterator<Item = (&'a str, SocketAddr)>) -> Self {
        let here = place(node);
        let (mut next, mut previous) = (Vec::new(), Vec::new());
        for (other, address) in members {
            if other != node {
                let there = place(other);
                offer(&mut next, there.wrapping_sub(here), other, address);
                offer(&mut previous, here.wrapping_sub(there), other, address);
            }
        }
        let [next, previous] =
            [next, previous].map(|near| near.into_iter().map(|(_, member)| member).collect());
        Self { next, previous }
    }

    /// The agents that this one probes. Each has its own slot there, because on a ring this node is as far
    /// before the other as the other is behind this one.
    pub fn probes(&self) -> Vec<Probe> {
        let next = self.next.iter().zip(0..);
        next.map(|(other, slot)| Probe {
            node: other.node.clone(),
            address: other.address.to_string(),
            slot,
        })
        .collect()
    }

    /// The agents that probe this one.
    pub fn probers(&self) -> Vec<Prober> {
        let previous = self.previous.iter();
        previous
            .map(|other| Prober {
                node: other.node.clone(),
                address: other.address.ip().to_string(),
            })
            .collect()
    }

    /// Names of the nodes whose probes change when this agent changes.
    pub fn affected(&self) -> impl Iterator<Item = &str> {
        let all = self.next.iter().chain(&self.previous);
        all.map(|member| member.node.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    type Members = BTreeMap<String, SocketAddr>;

    fn members(count: u16) -> Members {
        (0..count)
            .map(|n| {
                let ip = [10, 0, n.to_be_bytes()[0], n.to_be_bytes()[1]];
                (format!("node-{n}"), (ip, 9465).into())
            })
            .collect()
    }

    fn of(node: &str, members: &Members) -> Neighbours {
        let mut ring = ProbeRing::default();
        for (node, address) in members {
            ring.place(node, Some(*address));
        }
        ring.around(node, [])
    }

    #[test]
    fn around_a_node_lie_the_nearest_of_all() {
        for count in [0, 1, 3, 4, 8, 9, 60] {
            let members = members(count);
            for node in ["node-0", "node-7", "elsewhere"] {
                let all = members
                    .iter()
                    .map(|(node, address)| (node.as_str(), *address));
                assert_eq!(of(node, &members), Neighbours::of(node, all));
            }
        }
    }

    #[test]
    fn a_removed_agent_is_no_neighbour() {
        let mut ring = ProbeRing::default();
        ring.place("n2", Some(([192, 0, 2, 1], 9465).into()));
        assert_eq!(ring.around("n1", []).probes().len(), 1);
        ring.place("n2", None);
        assert_eq!(ring.around("n1", []), Neighbours::default());
    }

    #[test]
    fn a_probed_agent_has_the_prober_in_the_same_slot() {
        for count in [1, 2, 3, 5, 40] {
            let members = members(count);
            let mut taken = BTreeMap::new();
            for node in members.keys() {
                let probes = of(node, &members).probes();
                assert_eq!(probes.len(), PROBES_LIMIT.min(usize::from(count) - 1));
                for probe in probes {
                    let there = of(&probe.node, &members).probers();
                    assert_eq!(there[usize::from(probe.slot)].node, *node);
                    let before = taken.insert((probe.node, probe.slot), node.clone());
                    assert_eq!(before, None, "one slot for two");
                }
            }
        }
    }

    #[test]
    fn a_removed_node_affects_only_its_neighbours() {
        let all = members(200);
        let mut fewer = all.clone();
        fewer.remove("node-77");
        let here = of("node-77", &all);
        let affected: BTreeSet<&str> = here.affected().collect();
        assert_eq!(affected.len(), 2 * PROBES_LIMIT);
        for node in fewer.keys() {
            let same = of(node, &all) == of(node, &fewer);
            assert_ne!(same, affected.contains(node.as_str()), "{node}");
        }
    }

    #[test]
    fn of_two_addresses_of_one_node_the_first_counts() {
        let [first, second] = [1, 2].map(|host| ([192, 0, 2, host], 9465).into());
        let mut ring = ProbeRing::default();
        ring.place("n2", Some(first));
        let also = [("n3", second), ("n2", second), ("n3", first)];
        let probes = ring.around("n1", also).probes();
        assert_eq!(probes.len(), 2);
        let n2 = probes.iter().find(|probe| probe.node == "n2").unwrap();
        assert_eq!(n2.address, "192.0.2.1:9465");
    }

    #[test]
    fn a_single_node_probes_nothing() {
        assert_eq!(of("node-0", &members(1)), Neighbours::default());
    }
}
