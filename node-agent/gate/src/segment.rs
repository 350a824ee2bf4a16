//! The master's list of segments, and the selection that the gate probes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

/// The response of `/get_segments_detail`.
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

/// Least similarity (Jaro-Winkler) of a name that is reported; 1 is equal.
const SIMILARITY: f64 = 0.85;
/// Most names that are reported.
const SIMILAR_LIMIT: usize = 3;

impl Listing<'_> {
    /// Names similar to those of the cluster's segments on this node, with their status, the most similar first.
    pub(super) fn similar(&self, cluster: &str, node: &str) -> Vec<String> {
        let expected = crds::names::segment(cluster, DEFAULT_POOL, node, 0);
        let mut similar: Vec<_> = self
            .segments
            .iter()
            .map(|segment| {
                (
                    strsim::jaro_winkler(&segment.segment_name, &expected),
                    segment,
                )
            })
            .filter(|(similarity, _)| *similarity >= SIMILARITY)
            .collect();
        similar.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        similar.truncate(SIMILAR_LIMIT);
        similar
            .into_iter()
            .map(|(_, segment)| format!("{} ({})", segment.segment_name, segment.status))
            .collect()
    }
}

/// The pool of a cluster that names none.
const DEFAULT_POOL: &str = "default";
/// The master's status of a segment in use.
const IN_USE: &str = "OK";

/// A pool pod, which serves segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub node: String,
    /// Server name: host and handshake port.
    pub endpoint: String,
    /// Wire addresses, one of each segment.
    pub bases: Vec<u64>,
}

/// Peers to probe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// All peers on the pod's node.
    pub own: Vec<Peer>,
    /// A sample of the peers on other nodes.
    pub others: Vec<Peer>,
}

/// Selects the peers to probe. `random` returns a number below its argument, which is not 0.
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

/// The node in the segment name `<cluster>.<pool>.<node>.<extent>`; node names contain dots.
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
    fn all_segments_of_the_node_and_a_sample_of_others_are_probed() {
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
    fn segments_of_other_clusters_or_not_in_use_are_not_probed() {
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
    fn similar_names_are_reported_with_their_status() {
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
        assert_eq!(listing.similar("kv", "node-1"), wanted);
    }

    #[test]
    fn a_sample_is_at_most_all_peers() {
        let text = listing(&[("kv.default.node-2.0", "10.0.0.2:12001", "OK")]);
        let listing: Listing<'_> = serde_json::from_str(&text).unwrap();
        let plan = plan(&listing, "kv", "node-1", 3, |_| 0);
        assert_eq!((plan.own.len(), plan.others.len()), (0, 1));
    }
}
