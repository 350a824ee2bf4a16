//! The master's list of segments, and which of them the gate tries.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

/// The answer of `/get_segments_detail`.
#[derive(Debug, Deserialize)]
pub(super) struct Listing<'a> {
    #[serde(borrow, default)]
    segments: Vec<Segment<'a>>,
}

#[derive(Debug, Deserialize)]
struct Segment<'a> {
    #[serde(borrow)]
    segment_name: Cow<'a, str>,
    /// Hexadecimal, with `0x`.
    #[serde(borrow)]
    base_address: Cow<'a, str>,
    #[serde(borrow)]
    te_endpoint: Cow<'a, str>,
    #[serde(borrow, default)]
    status: Cow<'a, str>,
}

/// Of names less alike than this nobody thinks that they were meant; 1 is the same.
const LIKENESS: f64 = 0.85;
/// As many as a line can hold.
const NEAR_MOST: usize = 3;

impl Listing<'_> {
    /// Names like those of the cluster's segments on this node, each with the master's word for its
    /// status, the most alike first.
    pub(super) fn near(&self, cluster: &str, node: &str) -> Vec<String> {
        let meant = crds::names::segment(cluster, DEFAULT_POOL, node, 0);
        let mut near: Vec<_> = self
            .segments
            .iter()
            .map(|segment| (strsim::jaro_winkler(&segment.segment_name, &meant), segment))
            .filter(|(likeness, _)| *likeness >= LIKENESS)
            .collect();
        near.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        near.truncate(NEAR_MOST);
        near.into_iter()
            .map(|(_, segment)| format!("{} ({})", segment.segment_name, segment.status))
            .collect()
    }
}

/// The pool of a cluster that names none.
const DEFAULT_POOL: &str = "default";
/// The word of the master for a segment that is in use.
const IN_USE: &str = "OK";

/// One identity that serves segments: a pool pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub node: String,
    /// Server name: host and handshake port.
    pub endpoint: String,
    /// Wire addresses, one of each segment.
    pub bases: Vec<u64>,
}

/// Whom to try.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// On the pod's own node, all of them.
    pub own: Vec<Peer>,
    /// On other nodes, a sample.
    pub others: Vec<Peer>,
}

/// Picks from the list. `random` gives a number below its argument, which is not 0.
pub(super) fn plan(
    listing: &Listing<'_>,
    cluster: &str,
    node: &str,
    samples: usize,
    mut random: impl FnMut(usize) -> usize,
) -> Plan {
    let mut peers: BTreeMap<&str, Peer> = BTreeMap::new();
    for segment in &listing.segments {
        let Some(owner) = owner(&segment.segment_name, cluster) else {
            continue;
        };
        let base = segment.base_address.strip_prefix("0x");
        let base = base.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let (IN_USE, Some(base)) = (&*segment.status, base) else {
            continue;
        };
        peers
            .entry(&segment.te_endpoint)
            .or_insert_with(|| Peer {
                node: owner.to_owned(),
                endpoint: segment.te_endpoint.clone().into_owned(),
                bases: Vec::new(),
            })
            .bases
            .push(base);
    }
    let (own, mut left): (Vec<Peer>, Vec<Peer>) =
        peers.into_values().partition(|peer| peer.node == node);
    let mut others = Vec::new();
    while others.len() < samples && !left.is_empty() {
        let index = random(left.len());
        others.push(left.swap_remove(index));
    }
    Plan { own, others }
}

/// The node in a segment's name `<cluster>.<pool>.<node>.<extent>`; names of nodes have dots.
fn owner<'a>(name: &'a str, cluster: &str) -> Option<&'a str> {
    let rest = name.strip_prefix(cluster)?.strip_prefix('.')?;
    let (_pool, rest) = rest.split_once('.')?;
    let (node, extent) = rest.rsplit_once('.')?;
    extent.parse::<u32>().ok()?;
    (!node.is_empty()).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(rows: &[(&str, &str, &str)]) -> String {
        let segments: Vec<_> = rows
            .iter()
            .enumerate()
            .map(|(index, (name, endpoint, status))| {
                serde_json::json!({
                    "segment_name": name, "segment_id": "1-2", "client_id": "3-4",
                    "base_address": format!("{:#x}", (1_u64 << 58) + index as u64),
                    "size_bytes": 1, "te_endpoint": endpoint, "protocol": "tcp", "status": status,
                })
            })
            .collect();
        serde_json::json!({"total_segments": rows.len(), "segments": segments}).to_string()
    }

    fn nodes(peers: &[Peer]) -> Vec<&str> {
        peers.iter().map(|peer| peer.node.as_str()).collect()
    }

    #[test]
    fn own_segments_are_all_tried_and_others_by_sample() {
        let text = listing(&[
            ("kv.default.node-1.example.0", "10.0.0.1:12001", "OK"),
            ("kv.default.node-1.example.1", "10.0.0.1:12001", "OK"),
            ("kv.default.node-2.0", "10.0.0.2:12001", "OK"),
            ("kv.fast.node-3.0", "10.0.0.3:12001", "OK"),
            ("kv.default.node-4.0", "10.0.0.4:12001", "OK"),
            ("kv.default.node-5.0", "10.0.0.5:12001", "OK"),
        ]);
        let listing: Listing<'_> = serde_json::from_str(&text).unwrap();
        let plan = plan(&listing, "kv", "node-1.example", 3, |count| count - 1);
        assert_eq!(nodes(&plan.own), ["node-1.example"]);
        assert_eq!(plan.own[0].bases, [1 << 58, (1 << 58) + 1]);
        assert_eq!(nodes(&plan.others), ["node-5", "node-4", "node-3"]);
    }

    #[test]
    fn what_is_not_of_the_cluster_or_not_in_use_is_not_tried() {
        let text = listing(&[
            ("10.0.0.9:13750", "10.0.0.9:15000", "OK"),
            ("kv2.default.node-1.0", "10.0.0.1:12001", "OK"),
            ("kv.default.0", "10.0.0.1:12001", "OK"),
            ("kv.default.node-1.x", "10.0.0.1:12001", "OK"),
            ("kv.default.node-2.0", "10.0.0.2:12001", "DRAINING"),
        ]);
        let listing: Listing<'_> = serde_json::from_str(&text).unwrap();
        assert_eq!(plan(&listing, "kv", "node-1", 3, |_| 0), Plan::default());
    }

    #[test]
    fn near_names_are_those_that_may_have_been_meant() {
        let text = listing(&[
            ("10.0.0.9:13750", "10.0.0.9:15000", "OK"),
            ("kv2.default.node-1.0", "10.0.0.1:12001", "OK"),
            ("kv.default.node-1.0", "10.0.0.1:12001", "DRAINING"),
            ("training.large.gpu-7.3", "10.0.0.3:12001", "OK"),
        ]);
        let listing: Listing<'_> = serde_json::from_str(&text).unwrap();
        let wanted = [
            "kv.default.node-1.0 (DRAINING)",
            "kv2.default.node-1.0 (OK)",
        ];
        assert_eq!(listing.near("kv", "node-1"), wanted);
    }

    #[test]
    fn a_sample_is_never_larger_than_what_is_there() {
        let text = listing(&[("kv.default.node-2.0", "10.0.0.2:12001", "OK")]);
        let listing: Listing<'_> = serde_json::from_str(&text).unwrap();
        let plan = plan(&listing, "kv", "node-1", 3, |_| 0);
        assert_eq!((plan.own.len(), plan.others.len()), (0, 1));
    }
}
