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
