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

/// By these the alert MooncakeClusterNotReady of the chart leaves such a cluster out.
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
    assert_eq!(state(ConditionType::PoolsReady), "False/Progressing");
}

/// Otherwise that alert would leave it out as well.
#[test]
fn a_pool_that_is_added_during_a_pause_hides_no_other_cause() {
    let mut cluster = TestCluster::whole();
    cluster.spec = "{paused: true, pools: [{name: default, size: 1Gi}, {name: second, size: 1Gi}]}";
    cluster.sets.push(None);
    cluster.withheld = Some(1);
    let status = cluster.fresh();
    let state = |status: &MooncakeClusterStatus, kind| condition(status, kind).0;
    assert_eq!(state(&status, ConditionType::Ready), "True/AsExpected");
    let (pools, message) = condition(&status, ConditionType::PoolsReady);
    assert_eq!(pools, "True/AsExpected");
    assert_eq!(
        message,
        "2 pool pods serve; created after the pause: pool second"
    );
    cluster.masters.clear();
    let status = cluster.fresh();
    assert_eq!(state(&status, ConditionType::Ready), "False/MasterNotReady");
    assert_eq!(state(&status, ConditionType::PoolsReady), "True/AsExpected");
    let waits = "state: Waiting, reason: MemoryUnavailable, message: 'no memory'";
    for (number, pool) in cluster.pools.iter_mut().enumerate() {
        pool.1 = Some(mooncake_node(&format!("n{}", number + 1), ALIVE, waits));
    }
    let pools = state(&cluster.fresh(), ConditionType::PoolsReady);
    assert_eq!(pools, "False/MemoryUnavailable");
    // After the pause it is waited for.
    cluster.withheld = None;
    let pools = state(&cluster.fresh(), ConditionType::PoolsReady);
    assert_eq!(pools, "False/Progressing");
}
