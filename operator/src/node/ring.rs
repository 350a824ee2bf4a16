//! Who proves the way to whom: all nodes lie on a ring, and each looks at the next ones. Where a node
//! comes or goes only its neighbours change. Pure.

use std::collections::BTreeMap;

use crds::node::{PROBES_LIMIT, Probe, Prober};
use sha2::{Digest, Sha256};

/// The agents on the ring: by the name of the node, where each is asked for its descriptor.
pub type Members = BTreeMap<String, std::net::SocketAddr>;

/// Where a node lies: always there, whoever computes it, and far from nodes of similar names.
fn place(node: &str) -> u64 {
    let digest = Sha256::digest(node.as_bytes());
    digest
        .iter()
        .take(8)
        .fold(0, |place, byte| place << 8 | u64::from(*byte))
}

/// The nearest others in one direction, the nearest first.
fn nearest<'a>(
    others: impl Iterator<Item = &'a String>,
    distance: impl Fn(&str) -> u64,
) -> Vec<&'a String> {
    let mut near: Vec<(u64, &String)> = Vec::with_capacity(PROBES_LIMIT + 1);
    for other in others {
        near.push((distance(other), other));
        near.sort_unstable();
        near.truncate(PROBES_LIMIT);
    }
    near.into_iter().map(|(_, other)| other).collect()
}

fn next<'a>(node: &str, members: &'a Members) -> Vec<&'a String> {
    let here = place(node);
    let others = members.keys().filter(|other| *other != node);
    nearest(others, |other| place(other).wrapping_sub(here))
}

fn previous<'a>(node: &str, members: &'a Members) -> Vec<&'a String> {
    let here = place(node);
    let others = members.keys().filter(|other| *other != node);
    nearest(others, |other| here.wrapping_sub(place(other)))
}

/// The agents that the one on `node` proves its way to. Each has a slot of its own for it, because on a
/// ring this node is as far before the other as the other is behind this one.
pub fn probes(node: &str, members: &Members) -> Vec<Probe> {
    let next = next(node, members).into_iter().zip(0..);
    next.map(|(other, slot)| Probe {
        node: other.clone(),
        address: members[other].to_string(),
        slot,
    })
    .collect()
}

/// The agents that prove their way to the one on `node`.
pub fn probers(node: &str, members: &Members) -> Vec<Prober> {
    let previous = previous(node, members).into_iter();
    previous
        .map(|other| Prober {
            node: other.clone(),
            address: members[other].ip().to_string(),
        })
        .collect()
}

/// Every node for which something changes when `node` comes, goes or moves: itself and its neighbours.
pub fn concerned(node: &str, members: &Members) -> Vec<String> {
    let all = next(node, members)
        .into_iter()
        .chain(previous(node, members));
    let mut all: Vec<String> = all.cloned().collect();
    all.push(node.to_owned());
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: u16) -> Members {
        (0..count)
            .map(|n| {
                let ip = [10, 0, n.to_be_bytes()[0], n.to_be_bytes()[1]];
                (format!("node-{n}"), (ip, 9465).into())
            })
            .collect()
    }

    #[test]
    fn whom_one_proves_its_way_to_is_proved_by_that_one_in_the_same_slot() {
        for count in [1, 2, 3, 5, 40] {
            let members = members(count);
            let mut taken = BTreeMap::new();
            for node in members.keys() {
                let probes = probes(node, &members);
                assert_eq!(probes.len(), PROBES_LIMIT.min(usize::from(count) - 1));
                for probe in probes {
                    let there = probers(&probe.node, &members);
                    assert_eq!(there[usize::from(probe.slot)].node, *node);
                    let before = taken.insert((probe.node, probe.slot), node.clone());
                    assert_eq!(before, None, "one slot for two");
                }
            }
        }
    }

    #[test]
    fn a_node_that_goes_changes_its_neighbours_alone() {
        let all = members(200);
        let mut fewer = all.clone();
        fewer.remove("node-77");
        let concerned = concerned("node-77", &all);
        assert_eq!(concerned.len(), 2 * PROBES_LIMIT + 1);
        for node in fewer.keys().filter(|node| !concerned.contains(node)) {
            assert_eq!(probes(node, &all), probes(node, &fewer));
            assert_eq!(probers(node, &all), probers(node, &fewer));
        }
    }

    #[test]
    fn a_node_alone_proves_nothing() {
        assert!(probes("node-0", &members(1)).is_empty());
        assert!(probers("node-0", &members(1)).is_empty());
    }
}
