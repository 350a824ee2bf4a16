//! The conditions of MooncakeClusters as metrics. They are read from the cache for each answer, so nothing is left of a
//! cluster that was deleted, and another operator that leads starts with what the objects have.

use std::sync::Arc;

use crds::{ConditionType, MooncakeCluster, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The MooncakeClusters that the cache has.
pub type Clusters = [Arc<DeserializeGuard<MooncakeCluster>>];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterCondition {
    namespace: String,
    cluster: String,
    r#type: String,
    status: String,
    reason: String,
}

/// The registry of one answer.
pub(super) fn registry(clusters: &Clusters) -> Registry {
    let mut registry = Registry::with_prefix(super::PREFIX);
    let conditions = Family::<ClusterCondition, Gauge>::default();
    for cluster in clusters {
        for [kind, status, reason] in conditions_of(cluster) {
            let labels = ClusterCondition {
                namespace: cluster.namespace().unwrap_or_default(),
                cluster: cluster.name_any(),
                r#type: kind,
                status,
                reason,
            };
            conditions.get_or_create(&labels).set(1);
        }
    }
    registry.register(
        "cluster_condition",
        "1 for each condition of a MooncakeCluster, with its status and reason",
        conditions,
    );
    registry
}

/// Type, status and reason of each condition.
fn conditions_of(cluster: &DeserializeGuard<MooncakeCluster>) -> Vec<[String; 3]> {
    let Ok(cluster) = &cluster.0 else {
        // The cache has no status of it. These are written: cluster/undecodable.rs.
        let reason = Reason::InvalidSpec.as_str();
        return [
            (ConditionType::Ready, "False"),
            (ConditionType::Stalled, "True"),
        ]
        .map(|(kind, status)| [kind.as_str(), status, reason].map(str::to_owned))
        .into();
    };
    let written = cluster.status.iter().flat_map(|status| &status.conditions);
    written
        .map(|condition| {
            let Condition {
                type_,
                status,
                reason,
                ..
            } = condition;
            [type_, status, reason].map(Clone::clone)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Metrics;
    use super::*;

    fn cluster(name: &str, spec: serde_json::Value) -> Arc<DeserializeGuard<MooncakeCluster>> {
        let object = json!({
            "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeCluster",
            "metadata": {"name": name, "namespace": "team"}, "spec": spec,
            "status": {"conditions": [{
                "type": "Stalled", "status": "True", "reason": "RolloutStopped", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        });
        Arc::new(serde_json::from_value(object).unwrap())
    }

    /// The lines of the conditions.
    fn shown(metrics: &Metrics, clusters: &Clusters) -> Vec<String> {
        let text = metrics.render(clusters).unwrap();
        assert!(text.ends_with("# EOF\n"), "{text}");
        let lines = text.lines();
        let conditions = lines.filter(|line| line.starts_with("mooncake_operator_cluster_cond"));
        conditions.map(str::to_owned).collect()
    }

    #[test]
    fn the_leader_shows_the_conditions_of_each_cluster_until_it_is_deleted() {
        let metrics = Metrics::new();
        let clusters = [
            cluster("kv", json!({})),
            cluster("later", json!({"pools": 7})),
        ];
        assert_eq!(shown(&metrics, &clusters), Vec::<String>::new());
        metrics.set_leader(true);
        let line =
            |of: &str| format!("mooncake_operator_cluster_condition{{namespace=\"team\",{of}}} 1");
        let mut found = shown(&metrics, &clusters);
        found.sort();
        let wanted = [
            r#"cluster="kv",type="Stalled",status="True",reason="RolloutStopped""#,
            r#"cluster="later",type="Ready",status="False",reason="InvalidSpec""#,
            r#"cluster="later",type="Stalled",status="True",reason="InvalidSpec""#,
        ];
        assert_eq!(found, wanted.map(line));
        assert_eq!(shown(&metrics, &[]), Vec::<String>::new());
    }
}
