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
        "2 pool pods serve; no DaemonSet, which is created after the pause: pool second"
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

/// For example by a quota. Nothing is tried during the pause, so nothing is refused.
#[test]
fn a_pause_hides_no_pool_whose_daemon_set_was_refused_before() {
    let mut cluster = TestCluster::whole();
    cluster.spec = "{pools: [{name: default, size: 1Gi}, {name: second, size: 1Gi}]}";
    cluster.sets.push(None);
    cluster.refused = Some((Reason::ApiFailed, "quota".to_owned()));
    let mut old = cluster.fresh();
    for condition in &mut old.conditions {
        condition.observed_generation = Some(0);
    }
    cluster.spec = "{paused: true, pools: [{name: default, size: 1Gi}, {name: second, size: 1Gi}]}";
    (cluster.refused, cluster.withheld) = (None, Some(1));
    for second in 2..4 {
        old = cluster.status(&old, second);
        let (ready, message) = condition(&old, ConditionType::Ready);
        assert_eq!(ready, "False/Progressing");
        assert_eq!(message, "pool second: its DaemonSet is not processed yet");
    }
}

#[test]
fn a_daemon_set_that_is_deleted_during_a_pause_is_missed_and_that_of_an_added_pool_is_not() {
    let mut cluster = TestCluster::whole();
    cluster.spec = "{paused: true, pools: [{name: default, size: 1Gi}, {name: second, size: 1Gi}]}";
    cluster.withheld = Some(0);
    cluster.sets.push(Some(set(2, 2)));
    let state = |status: &MooncakeClusterStatus, kind| condition(status, kind).0;
    let before = cluster.fresh();
    assert_eq!(state(&before, ConditionType::Ready), "True/AsExpected");
    cluster.sets[1] = None;
    cluster.withheld = Some(1);
    let after = cluster.status(&before, 2);
    assert_eq!(state(&after, ConditionType::Ready), "False/Progressing");

    // An added one is known also after another cause.
    let added = cluster.fresh();
    assert_eq!(state(&added, ConditionType::Ready), "True/AsExpected");
    cluster.sets[0] = Some(set(0, 0));
    let unmatched = cluster.status(&added, 2);
    let pools = state(&unmatched, ConditionType::PoolsReady);
    assert_eq!(pools, "False/NoNodeMatches");
    cluster.sets[0] = Some(set(2, 2));
    let again = cluster.status(&unmatched, 3);
    // Nor is it forgotten beside a long one.
    let long = format!(
        "state: Waiting, reason: MemoryUnavailable, message: '{}'",
        "m".repeat(900)
    );
    let served = cluster.pools.clone();
    for (number, pool) in cluster.pools.iter_mut().enumerate() {
        pool.1 = Some(mooncake_node(&format!("n{}", number + 1), ALIVE, &long));
    }
    let waits = cluster.status(&again, 4);
    let pools = state(&waits, ConditionType::PoolsReady);
    assert_eq!(pools, "False/MemoryUnavailable");
    cluster.pools = served;
    let again = cluster.status(&waits, 5);
    assert_eq!(state(&again, ConditionType::Ready), "True/AsExpected");
}

#[test]
fn the_replacement_of_the_only_pool_during_a_pause_hides_no_other_cause() {
    let mut cluster = TestCluster::whole();
    cluster.spec = "{paused: true, pools: [{name: second, size: 1Gi}]}";
    cluster.removed = std::mem::take(&mut cluster.sets)
        .into_iter()
        .flatten()
        .collect();
    cluster.sets = vec![None];
    cluster.withheld = Some(2);
    let ready = |cluster: &TestCluster| condition(&cluster.fresh(), ConditionType::Ready).0;
    assert_eq!(ready(&cluster), "True/AsExpected");
    cluster.masters.clear();
    assert_eq!(ready(&cluster), "False/MasterNotReady");
    let pools = |cluster: &TestCluster| condition(&cluster.fresh(), ConditionType::PoolsReady).0;
    assert_eq!(pools(&cluster), "True/AsExpected");
    // Without a pool pod of the former one nothing serves.
    cluster.pools.clear();
    assert_eq!(pools(&cluster), "False/Progressing");
}
