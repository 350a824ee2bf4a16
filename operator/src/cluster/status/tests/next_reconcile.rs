//! When a cluster is reconciled without an event.

use super::*;

#[test]
fn a_cluster_is_reconciled_without_an_event_only_while_something_is_open() {
    let cluster = TestCluster::whole();
    let ready = cluster.fresh();
    let next = |conditions: &[Condition], open: bool| {
        cluster.with_facts(&ready, |facts| next_reconcile(facts, conditions, open))
    };
    let whole = &ready.conditions;
    assert_eq!(next(whole, false), None);
    assert_eq!(next(whole, true), Some(PERIOD));
    let broken = TestCluster::of_nodes(2, 1).fresh();
    assert_eq!(next(&broken.conditions, false), Some(PERIOD));
    let held = Decision {
        held: vec!["n1".to_owned()],
        ..Decision::default()
    };
    cluster.with_facts(&ready, |facts| {
        let facts = Facts {
            cordons: &held,
            ..*facts
        };
        assert_eq!(next_reconcile(&facts, whole, false), Some(PERIOD));
    });
    let rolling = rollout::Decision {
        step: rollout::Step::Done,
        record: None,
        recheck: Some(Duration::from_secs(7)),
    };
    cluster.with_facts(&ready, |facts| {
        let facts = Facts {
            rollout: &rolling,
            ..*facts
        };
        assert_eq!(next_reconcile(&facts, whole, false), rolling.recheck);
        assert_eq!(next_reconcile(&facts, whole, true), rolling.recheck);
    });
    let domain = |reason| DomainStatus {
        finding: NewCondition::new(ConditionType::MnnvlReady, false, reason, ""),
        status: crds::cluster::MnnvlStatus::default(),
    };
    let waits = domain(Reason::ComputeDomainNotReady);
    let rests = domain(Reason::AsExpected);
    cluster.with_facts(&ready, |facts| {
        let next = |domain| {
            let facts = Facts {
                mnnvl: Some(domain),
                ..*facts
            };
            next_reconcile(&facts, whole, false)
        };
        assert_eq!(next(&waits), Some(RECHECK_PERIOD));
        assert_eq!(next(&rests), None);
    });
}

/// The alert MooncakeClusterNotReady leaves a drain out, so one that does not end is none.
#[test]
fn a_pool_pod_that_its_kubelet_does_not_end_is_reported_a_minute_after_its_grace_period() {
    let mut cluster = TestCluster::whole();
    let ends = pod(
        "{metadata: {name: kv-pool-default-n2, uid: u-n2, deletionTimestamp: '1970-01-01T00:01:00Z'}, spec: {nodeName: n2, \
         containers: []}}",
    );
    cluster.pools[1].0 = ends;
    let old = cluster.fresh();
    let seen = |cluster: &TestCluster, second| {
        let now = Timestamp::from_second(second).unwrap();
        let next = cluster.with_facts_at(now, &old, |facts| {
            next_reconcile(facts, &TestCluster::whole().fresh().conditions, false)
        });
        let status = cluster.status(&old, second);
        let (state, message) = condition(&status, ConditionType::PoolsReady);
        (state, message, next.map(|next| next.as_secs()))
    };
    let (state, _, next) = seen(&cluster, 110);
    assert_eq!((&*state, next), ("False/Draining", Some(11)));
    let (state, message, next) = seen(&cluster, 121);
    assert_eq!((&*state, next), ("False/PoolPodNotReady", None));
    assert!(
        message.contains(
            "it was to end by 1970-01-01T00:01:00Z, and its kubelet has not ended it. Read the log"
        ),
        "{message}"
    );
    let ends = cluster.pools[1].0.clone();
    let mut over = (*ends).clone();
    over.status = serde_yaml_ng::from_str("{phase: Failed}").unwrap();
    cluster.pools[1].0 = Arc::new(over);
    let (state, message, _) = seen(&cluster, 121);
    assert_eq!(state, "False/PoolPodNotReady");
    assert!(
        message.contains("its object is still there; see its metadata.finalizers. Read the log"),
        "{message}"
    );
    cluster.pools[1].0 = ends;
    cluster.pools[1].1 = Some(mooncake_node("n2", ("False", "NodeNotReady"), SERVES));
    let (state, message, _) = seen(&cluster, 121);
    assert_eq!(state, "False/NodeNotReady");
    assert!(
        message.contains("not ended it: node n2 is cut off. If the node does not come back, delete its Node: kubectl delete node n2"),
        "{message}"
    );
}
