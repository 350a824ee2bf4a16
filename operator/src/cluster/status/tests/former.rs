//! Pool pods whose pool was removed from the spec.

use super::*;

#[test]
fn pool_pods_of_a_removed_pool_drain_and_do_not_change_what_is_ready() {
    let mut cluster = TestCluster::whole();
    cluster.spec = "{master: {type: BuiltIn}}";
    let before = cluster.fresh();
    assert!(find(&before.conditions, ConditionType::Drained).is_none());
    let pod = "{metadata: {name: old, deletionTimestamp: '2026-01-01T00:10:00Z'}, spec: {nodeName: n1, containers: []}}";
    cluster.former = vec![Arc::new(serde_yaml_ng::from_str(pod).unwrap())];
    let at = |time: &str, old: &MooncakeClusterStatus| {
        let now = time.parse::<Timestamp>().unwrap();
        let status = cluster.status(old, now.as_second());
        let found = find(&status.conditions, ConditionType::Drained).cloned();
        (found.unwrap(), status)
    };
    let (drained, during) = at("2026-01-01T00:10:00Z", &before);
    assert_eq!((&*drained.status, &*drained.reason), ("False", "Draining"));
    assert!(drained.message.contains("old (n1)"), "{}", drained.message);
    assert_eq!(
        (&during.nodes, &during.capacity),
        (&before.nodes, &before.capacity)
    );
    let is_ready = |status: &MooncakeClusterStatus| {
        condition::is_true(&status.conditions, ConditionType::Ready)
    };
    assert_eq!(is_ready(&during), is_ready(&before));
    // Its kubelet does not end it.
    let (drained, _) = at("2026-01-01T00:20:00Z", &during);
    assert_eq!(
        (&*drained.status, &*drained.message),
        (
            "True",
            "no pool pod moves keys; not ended in their grace period: old (n1). If a node does not come back, delete it: \
             kubectl delete node"
        )
    );
}
