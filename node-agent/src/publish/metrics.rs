//! The agent's metrics: per cluster, transport and cause, and the results of checks, fixes and probes. The number of
//! series does not depend on the number of peers: only those with the most failures are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicU64;

use engine::PeerFailures;
use host::Snapshot;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::peers::PeerPaths;
use crate::publish::report::{PEERS_LIMIT, PoolMetrics, Report};
use crate::publish::totals::{Totals, summed};

mod checks;
mod durations;
mod fixes;

/// Content type of the metrics.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Maximum number of clusters with their own series; the others are summed under [`OTHERS`].
const CLUSTERS_LIMIT: usize = 12;

/// Maximum number of combinations of state and reason with their own series.
const STATES_LIMIT: usize = 48;

/// Maximum number of combinations of peer and cause with their own series, of all clusters; per cluster
/// [`PEERS_LIMIT`].
const ALL_PEERS_LIMIT: usize = 48;

/// Label of the clusters, states and reasons above the limits.
const OTHERS: &str = "(others)";

/// Value of the label `transport`.
const TRANSPORT: &str = "tcp";

#[derive(Debug, Clone, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct OfCluster {
    namespace: String,
    cluster: String,
    transport: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByDirection {
    #[prometheus(flatten)]
    of: OfCluster,
    direction: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByCause {
    #[prometheus(flatten)]
    of: OfCluster,
    cause: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByPeer {
    #[prometheus(flatten)]
    of: OfCluster,
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

/// The metrics of pool pods.
#[derive(Default)]
struct PoolFamilies {
    pods: Family<ByReason, Gauge>,
    mounted: Family<OfCluster, Gauge>,
    connections: Family<OfCluster, Gauge>,
    bytes: Family<ByDirection, Counter>,
    requests: Family<OfCluster, Counter>,
    handshakes: Family<OfCluster, Counter>,
    ended: Family<ByCause, Counter>,
    worst_peers: BTreeMap<OfCluster, Vec<PeerFailures>>,
    /// Namespaces and names of the clusters with their own series.
    clusters: BTreeSet<(String, String)>,
    /// Combinations of state and reason with their own series.
    states: BTreeSet<ByReason>,
}

impl PoolFamilies {
    /// The labels of a cluster.
    fn of(&mut self, namespace: &str, cluster: &str) -> OfCluster {
        let own = (namespace.to_owned(), cluster.to_owned());
        if self.clusters.len() < CLUSTERS_LIMIT {
            self.clusters.insert(own.clone());
        }
        let (namespace, cluster) = if self.clusters.contains(&own) {
            own
        } else {
            (OTHERS.to_owned(), OTHERS.to_owned())
        };
        OfCluster {
            namespace,
            cluster,
            transport: TRANSPORT,
        }
    }

    /// Adds the counters of one pod.
    fn note(&mut self, pod: &PoolMetrics) {
        let of = self.of(&pod.namespace, &pod.cluster);
        let mut labels = ByReason {
            namespace: of.namespace.clone(),
            cluster: of.cluster.clone(),
            state: pod.state.to_string(),
            reason: pod.reason.to_string(),
        };
        if self.states.len() < STATES_LIMIT {
            self.states.insert(labels.clone());
        } else if !self.states.contains(&labels) {
            labels = ByReason::others();
        }
        self.pods.get_or_create(&labels).inc();
        self.mounted
            .get_or_create(&of)
            .inc_by(i64::try_from(pod.mounted).unwrap_or(i64::MAX));
        let Some(stats) = pod.stats else { return };
        self.connections
            .get_or_create(&of)
            .inc_by(i64::try_from(stats.connections).unwrap_or(i64::MAX));
        self.count(of, &Totals::of(&stats, &pod.worst_peers));
    }

    /// Adds what endpoints of a cluster have counted.
    fn count(&mut self, of: OfCluster, totals: &Totals) {
        self.requests.get_or_create(&of).inc_by(totals.requests);
        self.handshakes.get_or_create(&of).inc_by(totals.handshakes);
        for (direction, count) in [
            ("read", totals.bytes_read),
            ("written", totals.bytes_written),
        ] {
            let of = of.clone();
            let labels = ByDirection { of, direction };
            self.bytes.get_or_create(&labels).inc_by(count);
        }
        for (cause, count) in totals.ended() {
            let labels = ByCause {
                of: of.clone(),
                cause: cause.name(),
            };
            self.ended.get_or_create(&labels).inc_by(count);
        }
        let peers = self.worst_peers.entry(of).or_default();
        peers.extend(totals.worst_peers.iter().copied());
    }

    fn register(self, registry: &mut Registry) {
        registry.register(
            "pool_pods",
            "Pool pods of this node by state and reason",
            self.pods,
        );
        registry.register_with_unit(
            "mounted",
            "Mounted memory of served pool pods",
            Unit::Bytes,
            self.mounted,
        );
        registry.register("connections", "Open data connections", self.connections);
        registry.register(
            "bytes",
            "Bytes sent to peers (read) and received from them (written)",
            self.bytes,
        );
        registry.register("requests", "Completed requests of peers", self.requests);
        registry.register("handshakes", "Completed handshakes", self.handshakes);
        registry.register(
            "connections_ended",
            "Connections rejected or closed by the agent, by cause",
            self.ended,
        );
        registry.register(
            "peer_connections_ended",
            "Connections rejected or closed by the agent, by cause, for the peers with the most of them",
            by_peer(self.worst_peers),
        );
    }
}

/// Encodes the metrics in the OpenMetrics text format.
///
/// # Errors
/// A label cannot be encoded.
pub(crate) fn render(
    pools: &[PoolMetrics],
    paths: &PeerPaths,
    report: &Report,
    snapshot: Option<&Snapshot>,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("mooncake_agent");
    let mut families = PoolFamilies::default();
    for pod in pools {
        families.note(pod);
    }
    for ((namespace, cluster), totals) in &report.former {
        let of = families.of(namespace, cluster);
        families.count(of, totals);
    }
    families.register(&mut registry);
    register_paths(&mut registry, paths);
    checks::register(
        &mut registry,
        report.health.as_ref(),
        report.devices.as_ref(),
    );
    fixes::register(&mut registry, report.fixes.as_deref().unwrap_or_default());
    durations::register(&mut registry, snapshot);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Registers the metrics of the paths to other agents.
fn register_paths(registry: &mut Registry, paths: &PeerPaths) {
    let probes = Family::<ByOutcome, Counter>::default();
    let took = Family::<ByNode, Gauge<f64, AtomicU64>>::default();
    for (node, path) in paths {
        for (outcome, count) in [("succeeded", path.succeeded), ("failed", path.failed)] {
            let labels = ByOutcome {
                node: node.clone(),
                outcome,
            };
            probes.get_or_create(&labels).inc_by(count);
        }
        if let Some(last) = path.took {
            let labels = ByNode { node: node.clone() };
            took.get_or_create(&labels).set(last.as_secs_f64());
        }
    }
    registry.register(
        "peer_probes",
        "Probes of the path to the agent of another node, by outcome",
        probes,
    );
    registry.register_with_unit(
        "peer_probe_duration",
        "Duration of the last successful probe: write, read back, compare",
        Unit::Seconds,
        took,
    );
}

impl ByReason {
    /// Labels of the states and reasons above [`STATES_LIMIT`].
    fn others() -> Self {
        let [namespace, cluster, state, reason] = [OTHERS; 4].map(str::to_owned);
        Self {
            namespace,
            cluster,
            state,
            reason,
        }
    }
}

/// The peers with the most failures of each cluster, fewer if there are many clusters. The counts of the pools of
/// one cluster are summed.
fn by_peer(worst_peers: BTreeMap<OfCluster, Vec<PeerFailures>>) -> Family<ByPeer, Counter> {
    let family = Family::<ByPeer, Counter>::default();
    let most = PEERS_LIMIT.min(ALL_PEERS_LIMIT / worst_peers.len().max(1));
    for (of, failures) in worst_peers {
        for PeerFailures { peer, cause, count } in PeerFailures::worst(summed(failures), most) {
            let labels = ByPeer {
                of: of.clone(),
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
    use crate::peers::path::PeerPath;
    use crate::publish::report::Reporter;
    use crds::node::{PoolAssignment, PoolReport, PoolState, Probe};
    use crds::reason::Reason;
    use engine::{Ended, EndpointStats};
    use engine_process::control::message::Traffic;

    fn pod(cluster: usize) -> PoolMetrics {
        PoolMetrics {
            namespace: "ns".to_owned(),
            cluster: format!("c{cluster}"),
            state: PoolState::Serving.into(),
            reason: Reason::AsExpected.into(),
            mounted: 1 << 30,
            stats: Some(EndpointStats {
                bytes_read: 7,
                ..EndpointStats::default()
            }),
            worst_peers: Vec::new(),
        }
    }

    /// As many paths as there can be.
    fn paths() -> PeerPaths {
        let paths = (0..4).map(|slot| {
            let node = format!("n{slot}");
            let mut path = PeerPath::new(Probe {
                node: node.clone(),
                address: "192.0.2.1:9465".to_owned(),
                slot,
            });
            path.record(Ok(std::time::Duration::from_millis(2)));
            (node, path)
        });
        paths.collect()
    }

    fn address(n: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + n).to_be_bytes())
    }

    /// 2,000 peers, each with failures by every cause.
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
            let pools = (0..64 * states.len()).map(|n| PoolMetrics {
                state: states[n % states.len()].into(),
                worst_peers: if n < clusters { failures() } else { Vec::new() },
                ..pod(n % clusters)
            });
            let text = render(
                &pools.collect::<Vec<_>>(),
                &paths(),
                &Report::default(),
                None,
            )
            .unwrap();
            let series = series(&text);
            assert!(series <= 300, "{clusters} clusters: {series}");
            assert!(
                clusters <= CLUSTERS_LIMIT || text.contains(OTHERS),
                "{text}"
            );
        }
    }

    #[test]
    fn only_the_peers_with_the_most_failures_are_shown() {
        let one = PoolMetrics {
            worst_peers: failures(),
            ..pod(1)
        };
        let text = render(&[one.clone(), one], &paths(), &Report::default(), None).unwrap();
        let shown: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("mooncake_agent_peer_connections_ended_total{"))
            .collect();
        assert_eq!(shown.len(), PEERS_LIMIT);
        for line in shown {
            let worst = [address(1_999), address(1_998)].map(|peer| format!("peer=\"{peer}\""));
            assert!(worst.iter().any(|peer| line.contains(peer)), "{line}");
        }
        let worst = "cluster=\"c1\",transport=\"tcp\",peer=\"10.0.7.207\",cause=\"stalled\"} 4000";
        assert!(text.contains(worst), "{text}");
    }

    #[test]
    fn pools_of_one_cluster_are_summed() {
        let text = render(&[pod(1), pod(1)], &paths(), &Report::default(), None).unwrap();
        let line = "mooncake_agent_bytes_total{namespace=\"ns\",cluster=\"c1\",\
                    transport=\"tcp\",direction=\"read\"} 14";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn counters_of_a_cluster_do_not_fall_when_one_of_its_engine_processes_ends() {
        let reporter = Reporter::default();
        let assignment = |uid: &str| -> PoolAssignment {
            let of = serde_json::json!({
                "podUid": uid, "podName": "p", "namespace": "ns", "cluster": "c1", "clusterUid": "c", "pool": "a",
                "size": "1Gi", "pageSize": "4Ki", "numaPolicy": "Spread", "drainSeconds": 5,
            });
            serde_json::from_value(of).unwrap()
        };
        let begin = |uid: &str| {
            let of = assignment(uid);
            let report = PoolReport::waiting(&of, Reason::AsExpected, String::new());
            reporter.set_pool(report, &of);
        };
        let counted = |bytes_read, failures| Traffic {
            stats: EndpointStats {
                connections: 3,
                bytes_read,
                ..EndpointStats::default()
            },
            worst_peers: vec![PeerFailures {
                peer: address(1),
                cause: Ended::Stalled,
                count: failures,
            }],
        };
        let shown = |name: &str, label: &str| {
            let report = reporter.subscribe().borrow().clone();
            let pools = report.pool_metrics();
            let text = render(&pools, &PeerPaths::default(), &report, None).unwrap();
            let mut lines = text.lines();
            let line = lines.find(|line| line.starts_with(name) && line.contains(label))?;
            let (_, count) = line.rsplit_once(' ')?;
            count.parse::<u64>().ok()
        };
        let read = || shown("mooncake_agent_bytes_total", "read");
        let failures = || shown("mooncake_agent_peer_connections_ended_total", "stalled");
        begin("u1");
        begin("u2");
        reporter.set_traffic("u1", Some(counted(100, 5)));
        reporter.set_traffic("u2", Some(counted(10, 1)));
        assert_eq!((read(), failures()), (Some(110), Some(6)));
        // Its process ends, and the next one begins at 0.
        reporter.set_traffic("u1", None);
        assert_eq!((read(), failures()), (Some(110), Some(6)));
        assert_eq!(shown("mooncake_agent_connections{", ""), Some(3));
        reporter.set_traffic("u1", Some(counted(7, 1)));
        assert_eq!((read(), failures()), (Some(117), Some(7)));
        // The agent has lost a process for a moment.
        reporter.set_traffic("u1", None);
        reporter.set_traffic("u1", Some(counted(8, 1)));
        assert_eq!(read(), Some(118));
        // A pool pod ends. After the last one nothing is kept.
        reporter.retain_pools(|uid| uid == "u1");
        assert_eq!((read(), failures()), (Some(118), Some(7)));
        reporter.retain_pools(|_| false);
        assert_eq!(read(), None);
        assert!(reporter.subscribe().borrow().former.is_empty());
    }

    #[test]
    fn peer_probes_are_counted_and_timed_by_node() {
        let text = render(&[], &paths(), &Report::default(), None).unwrap();
        for line in [
            "mooncake_agent_peer_probes_total{node=\"n3\",outcome=\"succeeded\"} 1",
            "mooncake_agent_peer_probe_duration_seconds{node=\"n0\"} 0.002",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
