//! Metrics of the node: per cluster, transport and cause. Their number follows the pools on the
//! node, never the peers.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::report::Shown;

/// What a scraper is told that it gets.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Most clusters that have series of their own; the others are added up under one name.
const CLUSTERS: usize = 12;

/// Stands for the clusters beyond.
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
struct ByReason {
    namespace: String,
    cluster: String,
    state: String,
    reason: String,
}

/// The text that a scraper gets.
///
/// # Errors
/// Only if a label cannot be written.
pub(crate) fn render(shown: &[Shown]) -> Result<String, fmt::Error> {
    let pods = Family::<ByReason, Gauge>::default();
    let mounted = Family::<OfCluster, Gauge>::default();
    let connections = Family::<OfCluster, Gauge>::default();
    let bytes = Family::<ByDirection, Counter>::default();
    let requests = Family::<OfCluster, Counter>::default();
    let handshakes = Family::<OfCluster, Counter>::default();
    let ended = Family::<ByCause, Counter>::default();
    let mut names: BTreeMap<(String, String), ()> = BTreeMap::new();
    for pod in shown {
        let own = (pod.namespace.clone(), pod.cluster.clone());
        if names.len() < CLUSTERS {
            names.insert(own.clone(), ());
        }
        let (namespace, cluster) = if names.contains_key(&own) {
            own
        } else {
            (OTHERS.to_owned(), OTHERS.to_owned())
        };
        let of = OfCluster {
            namespace: namespace.clone(),
            cluster: cluster.clone(),
            transport: TRANSPORT,
        };
        pods.get_or_create(&ByReason {
            namespace: namespace.clone(),
            cluster: cluster.clone(),
            state: format!("{:?}", pod.state),
            reason: pod.reason.to_string(),
        })
        .inc();
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
        for (cause, count) in [
            ("not_admitted", stats.refused.not_admitted),
            ("over_limit", stats.refused.over_limit),
            ("header_deadline", stats.refused.header_deadline),
            ("bad_header", stats.refused.bad_header),
            ("bad_address", stats.refused.bad_address),
            ("stalled", stats.stalled),
            ("broken", stats.broken),
            ("withdrawn", stats.withdrawn),
        ] {
            let labels = ByCause {
                namespace: namespace.clone(),
                cluster: cluster.clone(),
                transport: TRANSPORT,
                cause,
            };
            ended.get_or_create(&labels).inc_by(count);
        }
    }
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
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crds::node::PoolState;
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
        }
    }

    #[test]
    fn a_node_has_at_most_300_series() {
        let shown: Vec<_> = (0..64).map(pod).collect();
        let text = render(&shown).unwrap();
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert!(series <= 300, "{series}");
        assert!(text.contains("(others)"));
    }

    #[test]
    fn pools_of_one_cluster_are_added_up() {
        let text = render(&[pod(1), pod(1)]).unwrap();
        let line = "mooncake_agent_bytes_total{namespace=\"ns\",cluster=\"c1\",\
                    transport=\"tcp\",direction=\"read\"} 14";
        assert!(text.contains(line), "{text}");
    }
}
