//! Whether a Node is cordoned, or about to be removed.

use k8s_openapi::api::core::v1::Node;

/// Taints by which an autoscaler announces that it removes the node: Karpenter, former Karpenter, cluster-autoscaler.
const REMOVAL_TAINTS: [&str; 3] = [
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "ToBeDeletedByClusterAutoscaler",
];

/// True if the node is cordoned, also by the operator itself, or an autoscaler is about to remove it.
pub fn is_cordoned(node: &Node) -> bool {
    let Some(spec) = &node.spec else { return false };
    let mut taints = spec.taints.iter().flatten();
    spec.unschedulable == Some(true)
        || taints.any(|taint| REMOVAL_TAINTS.contains(&taint.key.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cordon_and_the_taints_of_autoscalers_count_and_others_do_not() {
        let cordoned = |spec: &str| {
            let spec = serde_yaml_ng::from_str(spec).unwrap();
            is_cordoned(&Node {
                spec: Some(spec),
                ..Node::default()
            })
        };
        assert!(cordoned("{unschedulable: true}"));
        for key in REMOVAL_TAINTS {
            assert!(cordoned(&format!(
                "{{taints: [{{key: a, effect: NoSchedule}}, {{key: {key}, effect: NoSchedule}}]}}"
            )));
        }
        for spec in [
            "{}",
            "{unschedulable: false}",
            "{taints: [{key: DeletionCandidateOfClusterAutoscaler, effect: PreferNoSchedule}]}",
            "{taints: [{key: node.kubernetes.io/unreachable, effect: NoExecute}]}",
        ] {
            assert!(!cordoned(spec), "{spec}");
        }
        assert!(!is_cordoned(&Node::default()));
    }
}
