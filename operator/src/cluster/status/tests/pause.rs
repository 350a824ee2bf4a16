//! The status of a cluster that is paused.

use super::*;

#[test]
fn a_pause_is_reported_and_keeps_waits_going_while_changes_wait() {
    let mut cluster = TestCluster::whole();
    cluster.spec = "{paused: true}";
    cluster.withheld = Some(0);
    assert_eq!(abnormal(&cluster.fresh()), ["Paused=True/Paused"]);
    cluster.withheld = Some(3);
    let status = cluster.fresh();
    let expected = ["Reconciling=True/Paused", "Paused=True/Paused"];
    assert_eq!(abnormal(&status), expected);
    let (_, message) = condition(&status, ConditionType::Paused);
    assert!(message.starts_with("spec.paused is true: "), "{message}");
}

/// By its reason the alert MooncakeClusterNotReady of the chart leaves such a cluster out.
#[test]
fn a_cluster_that_was_paused_before_its_pools_were_created_is_distinguished() {
    let mut cluster = TestCluster::of_nodes(0, 0);
    cluster.spec = "{paused: true}";
    cluster.masters = Vec::new();
    cluster.sets = vec![None];
    cluster.withheld = Some(9);
    let status = cluster.fresh();
    let state = |kind| condition(&status, kind).0;
    assert_eq!(state(ConditionType::Ready), "False/MasterNotReady");
    assert_eq!(state(ConditionType::Paused), "True/Paused");
    let (pools, message) = condition(&status, ConditionType::PoolsReady);
    assert_eq!(pools, "False/Paused");
    assert_eq!(
        message,
        "pool default: its DaemonSet is created after the pause"
    );
}

/// That alert leaves it out only where it is the only cause.
#[test]
fn a_pool_that_is_added_during_a_pause_hides_no_other_cause() {
    let mut cluster = TestCluster::whole();
    cluster.spec = "{paused: true, pools: [{name: second, size: 1Gi}, {name: default, size: 1Gi}]}";
    cluster.sets.insert(0, None);
    cluster.withheld = Some(1);
    let state = |cluster: &TestCluster, kind| condition(&cluster.fresh(), kind).0;
    let (ready, message) = condition(&cluster.fresh(), ConditionType::Ready);
    assert_eq!(ready, "False/Progressing");
    assert_eq!(message, "pool second: its DaemonSet is not processed yet");
    let masters = std::mem::take(&mut cluster.masters);
    assert_eq!(
        state(&cluster, ConditionType::Ready),
        "False/MasterNotReady"
    );
    cluster.masters = masters;
    cluster.sets[1] = Some(set(0, 0));
    assert_eq!(state(&cluster, ConditionType::Ready), "False/NoNodeMatches");
    cluster.sets[1] = Some(set(2, 2));
    let waits = "state: Waiting, reason: MemoryUnavailable, message: 'no memory'";
    for (number, pool) in cluster.pools.iter_mut().enumerate() {
        pool.1 = Some(mooncake_node(&format!("n{}", number + 1), ALIVE, waits));
    }
    assert_eq!(
        state(&cluster, ConditionType::PoolsReady),
        "False/MemoryUnavailable"
    );
    assert_eq!(
        state(&cluster, ConditionType::Ready),
        "False/MemoryUnavailable"
    );
}

#[test]
fn a_pool_that_is_added_beside_tolerated_nodes_is_the_cause() {
    let mut cluster = TestCluster::of_nodes(10, 9);
    cluster.spec = "{paused: true, pools: [{name: default, size: 1Gi}, {name: second, size: 1Gi}]}";
    cluster.sets.push(None);
    cluster.withheld = Some(1);
    let status = cluster.fresh();
    let (ready, message) = condition(&status, ConditionType::Ready);
    assert_eq!(ready, "False/Progressing");
    assert_eq!(message, "pool second: its DaemonSet is not processed yet");
    let expected = [
        "Reconciling=True/Progressing",
        "Degraded=True/MemoryUnavailable",
        "Paused=True/Paused",
    ];
    assert_eq!(abnormal(&status), expected);
}
