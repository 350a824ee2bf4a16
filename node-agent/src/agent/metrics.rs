//! Metrics of the node: per cluster, transport and cause, and how the node was judged. Their number
//! follows the pools on the node and what is wrong there, never the peers, of which only the worst are
//! shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicU64;

use crds::FixReport;
use crds::node::DeviceHealth;
use engine::{Ended, PeerFailures};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::proof::Ways;
use super::report::Shown;
use crate::checks::steady::Health;

mod fixed;
mod judged;
mod tried;

pub(crate) use tried::{Took, took};

/// What a scraper is told that it gets.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Most clusters that have series of their own; the others are added up under one name.
const CLUSTERS: usize = 12;

/// Most sets of state and reason that have a series of their own.
const STATES: usize = 48;

/// Most peers of a cluster that have a series of their own, each cause counted by itself.
pub(crate) const PEERS: usize = 10;

/// Most peers of all clusters together.
const PEERS_OF_ALL: usize = 48;

/// Stands for the clusters, states and reasons beyond.
const OTHERS: &str = "(others)";

/// What carries the bytes today.
const TRANSPORT: &str = "tcp";

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfCluster {
    namespace: String,
    cluster: String,
    transport: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByDirection {
    namespace: String,
    cluster: String,
    transport: &'static str,
    direction: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByCause {
    namespace: String,
    cluster: String,
    transport: &'static str,
    cause: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByPeer {
    namespace: String,
    cluster: String,
    transport: &'static str,
    peer: String,
    cause: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByNode {
    node: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByOutcome {
    node: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct ByReason {
    namespace: String,
    cluster: String,
    state: String,
    reason: String,
}

/// What the agent says of its node.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Word<'a> {
    /// How long the RDMA devices took for what they were asked to do.
    pub(crate) took: &'a [Took],
    /// Absent before the first look.
    pub(crate) health: Option<&'a Health>,
    /// Absent before the first look.
    pub(crate) devices: Option<&'a DeviceHealth>,
    pub(crate) fixes: &'a [FixReport],
}

/// The text that a scraper gets.
///
/// # Errors
/// Only if a label cannot be written.
pub(crate) fn render(shown: &[Shown], ways: &Ways, word: &Word<'_>) -> Result<String, fmt::Error> {
    let pods = Family::<ByReason, Gauge>::default();
    let mounted = Family::<OfCluster, Gauge>::default();
    let connections = Family::<OfCluster, Gauge>::default();
    let bytes = Family::<ByDirection, Counter>::default();
    let requests = Family::<OfCluster, Counter>::default();
    let handshakes = Family::<OfCluster, Counter>::default();
    let ended = Family::<ByCause, Counter>::default();
    let mut names: BTreeSet<(String, String)> = BTreeSet::new();
    let mut states = BTreeSet::new();
    let mut worst: BTreeMap<(String, String), Vec<PeerFailures>> = BTreeMap::new();
    for pod in shown {
        let own = (pod.namespace.clone(), pod.cluster.clone());
        if names.len() < CLUSTERS {
            names.insert(own.clone());
        }
        let (namespace, cluster) = if names.contains(&own) {
            own
        } else {
            (OTHERS.to_owned(), OTHERS.to_owned())
        };
        let of = OfCluster {
            namespace: namespace.clone(),
            cluster: cluster.clone(),
            transport: TRANSPORT,
        };
        let mut labels = ByReason {
            namespace: namespace.clone(),
            cluster: cluster.clone(),
            state: format!("{:?}", pod.state),
            reason: pod.reason.to_string(),
        };
        if states.len() < STATES {
            states.insert(labels.clone());
        } else if !states.contains(&labels) {
            labels = ByReason::beyond();
        }
        pods.get_or_create(&labels).inc();
        mounted
            .get_or_create(&of)
            .inc_by(i64::try_from(pod.mounted).unwrap_or(i64::MAX));
        let Some(stats) = pod.stats else { continue };
        connections
            .get_or_create(&of)
            .inc_by(i64::try_from(stats.connections).unwrap_or(i64::MAX));
        requests.get_or_create(&of).inc_by(stats.requests);
        handshakes.get_or_create(&of).inc_by(stats.handshakes);
        for (direction, count) in [("read", stats.bytes_read), ("written", stats.bytes_written)] {
            let labels = ByDirection {
                namespace: namespace.clone(),
                cluster: cluster.clone(),
                transport: TRANSPORT,
                direction,
            };
            bytes.get_or_create(&labels).inc_by(count);
        }
        for cause in Ended::ALL {
            let labels = ByCause {
                namespace: namespace.clone(),
                cluster: cluster.clone(),
                transport: TRANSPORT,
                cause: cause.name(),
            };
            ended.get_or_create(&labels).inc_by(stats.ended[cause]);
        }
        let of = worst.entry((namespace, cluster)).or_default();
        of.extend(pod.worst.iter().copied());
    }
    let by_peer = by_peer(worst);
    let mut registry = Registry::with_prefix("mooncake_agent");
    registry.register(
        "pool_pods",
        "Pool pods of this node by state and reason",
        pods,
    );
    registry.register_with_unit("mounted", "Memory mounted and served", Unit::Bytes, mounted);
    registry.register("connections", "Data connections served now", connections);
    registry.register(
        "bytes",
        "Bytes sent to peers (read) and received from them (written)",
        bytes,
    );
    registry.register("requests", "Requests of peers carried out", requests);
    registry.register("handshakes", "Handshake requests answered", handshakes);
    registry.register(
        "connections_ended",
        "Connections refused or cut, by cause",
        ended,
    );
    registry.register(
        "peer_connections_ended",
        "Connections refused or cut, by cause, of the peers with the most of them",
        by_peer,
    );
    of_ways(&mut registry, ways);
    judged::register(&mut registry, word.health, word.devices);
    fixed::register(&mut registry, word.fixes);
    tried::register(&mut registry, word.took);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// What was measured on the ways to other agents.
fn of_ways(registry: &mut Registry, ways: &Ways) {
    let proofs = Family::<ByOutcome, Counter>::default();
    let took = Family::<ByNode, Gauge<f64, AtomicU64>>::default();
    for (node, way) in ways {
        for (outcome, count) in [("proved", way.succeeded), ("failed", way.failed)] {
            let labels = ByOutcome {
                node: node.clone(),
                outcome,
            };
            proofs.get_or_create(&labels).inc_by(count);
        }
        if let Some(last) = way.took {
            let labels = ByNode { node: node.clone() };
            took.get_or_create(&labels).set(last.as_secs_f64());
        }
    }
    registry.register(
        "proofs",
        "Proofs of the way to the agent of another node, by outcome",
        proofs,
    );
    registry.register_with_unit(
        "proof_duration",
        "Time of the last proof that succeeded: write, read back, compare",
        Unit::Seconds,
        took,
    );
}

impl ByReason {
    /// For the states and reasons beyond [`STATES`].
    fn beyond() -> Self {
        let [namespace, cluster, state, reason] = [OTHERS; 4].map(str::to_owned);
        Self {
            namespace,
            cluster,
            state,
            reason,
        }
    }
}

/// The worst peers of each cluster; fewer of each where there are many clusters. What the pools of
/// one cluster say about a peer is added up.
fn by_peer(worst: BTreeMap<(String, String), Vec<PeerFailures>>) -> Family<ByPeer, Counter> {
    let family = Family::<ByPeer, Counter>::default();
    let most = PEERS.min(PEERS_OF_ALL / worst.len().max(1));
    for ((namespace, cluster), said) in worst {
        let mut sums = BTreeMap::<_, u64>::new();
        for PeerFailures { peer, cause, count } in said {
            *sums.entry((peer, cause)).or_default() += count;
        }
        let sums = sums.into_iter();
        let sums = sums.map(|((peer, cause), count)| PeerFailures { peer, cause, count });
        for PeerFailures { peer, cause, count } in PeerFailures::worst(sums.collect(), most) {
            let labels = ByPeer {
                namespace: namespace.clone(),
                cluster: cluster.clone(),
                transport: TRANSPORT,
                peer: peer.to_string(),
                cause: cause.name(),
            };
            family.get_or_create(&labels).inc_by(count);
        }
    }
    family
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::agent::proof::way::Way;
    use crds::node::{PoolState, Probe};
    use crds::reason::Reason;
    use engine::HostStats;

    fn pod(cluster: usize) -> Shown {
        Shown {
            namespace: "ns".to_owned(),
            cluster: format!("c{cluster}"),
            state: PoolState::Serving,
            reason: Reason::AsExpected,
            mounted: 1 << 30,
            stats: Some(HostStats {
                bytes_read: 7,
                ..HostStats::default()
            }),
            worst: Vec::new(),
        }
    }

    /// As many ways as there can be.
    fn ways() -> Ways {
        let ways = (0..4).map(|slot| {
            let node = format!("n{slot}");
            let mut way = Way::new(Probe {
                node: node.clone(),
                address: "192.0.2.1:9465".to_owned(),
                slot,
            });
            way.note(Ok(std::time::Duration::from_millis(2)));
            (node, way)
        });
        ways.collect()
    }

    fn address(n: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + n).to_be_bytes())
    }

    /// Every one of 2,000 peers has failed by every cause.
    fn failures() -> Vec<PeerFailures> {
        let peers = (0..2_000).flat_map(|n| {
            Ended::ALL.map(|cause| PeerFailures {
                peer: address(n),
                cause,
                count: u64::from(n) + 1,
            })
        });
        peers.collect()
    }

    fn series(text: &str) -> usize {
        text.lines().filter(|line| !line.starts_with('#')).count()
    }

    #[test]
    fn a_node_has_at_most_300_series_however_many_clusters_states_and_peers() {
        let states = [
            PoolState::Waiting,
            PoolState::Preparing,
            PoolState::Mounting,
            PoolState::Serving,
            PoolState::Draining,
        ];
        for clusters in [1, 4, 5, 12, 64] {
            let shown = (0..64 * states.len()).map(|n| Shown {
                state: states[n % states.len()],
                worst: if n < clusters { failures() } else { Vec::new() },
                ..pod(n % clusters)
            });
            let text = render(&shown.collect::<Vec<_>>(), &ways(), &Word::default()).unwrap();
            let series = series(&text);
            assert!(series <= 300, "{clusters} clusters: {series}");
            assert!(clusters <= CLUSTERS || text.contains(OTHERS), "{text}");
        }
    }

    #[test]
    fn the_worst_of_2000_peers_are_shown_and_no_others() {
        let one = Shown {
            worst: failures(),
            ..pod(1)
        };
        let text = render(&[one.clone(), one], &ways(), &Word::default()).unwrap();
        let shown: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("mooncake_agent_peer_connections_ended_total{"))
            .collect();
        assert_eq!(shown.len(), PEERS);
        for line in shown {
            let worst = [address(1_999), address(1_998)].map(|peer| format!("peer=\"{peer}\""));
            assert!(worst.iter().any(|peer| line.contains(peer)), "{line}");
        }
        let worst = "cluster=\"c1\",transport=\"tcp\",peer=\"10.0.7.207\",cause=\"stalled\"} 4000";
        assert!(text.contains(worst), "{text}");
    }

    #[test]
    fn pools_of_one_cluster_are_added_up() {
        let text = render(&[pod(1), pod(1)], &ways(), &Word::default()).unwrap();
        let line = "mooncake_agent_bytes_total{namespace=\"ns\",cluster=\"c1\",\
                    transport=\"tcp\",direction=\"read\"} 14";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn proofs_are_counted_by_node_and_timed() {
        let text = render(&[], &ways(), &Word::default()).unwrap();
        for line in [
            "mooncake_agent_proofs_total{node=\"n3\",outcome=\"proved\"} 1",
            "mooncake_agent_proof_duration_seconds{node=\"n0\"} 0.002",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
