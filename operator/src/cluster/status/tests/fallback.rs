//! The status of a cluster that falls back from RDMA to TCP, and returns.

use super::*;
use crate::cluster::transport::{Rdma, StoringNode};

#[test]
fn a_fallback_is_stored_until_the_cluster_returns_to_rdma_at_the_time_that_it_states() {
    let cluster = TestCluster::whole();
    let whole = cluster.fresh();
    assert!(find(&whole.conditions, ConditionType::RdmaUsable).is_none());
    let step = |old: &MooncakeClusterStatus, rdma: Rdma, second: i64| {
        let now = Timestamp::from_second(second).unwrap();
        cluster.with_facts_at(now, old, |facts| {
            let mut transport = facts.transport.clone();
            transport.complete = true;
            transport.nodes = vec![StoringNode {
                name: "n1".to_owned(),
                rdma,
                mtus: BTreeSet::new(),
            }];
            let facts = Facts {
                transport: &transport,
                ..*facts
            };
            let next = next_reconcile(&facts, &whole.conditions, false);
            (compute(&facts, old, now), next.map(|next| next.as_secs()))
        })
    };
    let seen = |status: &MooncakeClusterStatus| {
        let usable = find(&status.conditions, ConditionType::RdmaUsable);
        let usable = usable.map(|usable| {
            let since = usable.last_transition_time.0.as_second();
            (usable.status.clone(), since)
        });
        (status.transport.and_then(|word| word.known()), usable)
    };
    let unusable = |since| (Some(Transport::Tcp), Some(("False".to_owned(), since)));
    let usable = |since| (Some(Transport::Tcp), Some(("True".to_owned(), since)));
    let over_rdma = MooncakeClusterStatus {
        transport: Some(Transport::Rdma.into()),
        ..MooncakeClusterStatus::default()
    };
    let lost = || Rdma::Unproved("rxe0 port 1: PortNotActive".to_owned());
    let (tcp, next) = step(&over_rdma, lost(), 10);
    assert_eq!((seen(&tcp), next), (unusable(10), None));
    let (waits, next) = step(&tcp, Rdma::Proved, 20);
    assert_eq!((seen(&waits), next), (usable(20), Some(300)));
    let (same, next) = step(&waits, Rdma::Proved, 100);
    assert_eq!((&same, next), (&waits, Some(220)));
    let refused = Reason::ApiForbidden;
    let failed = failed(&waits, 1, refused, "m", false, Timestamp::UNIX_EPOCH);
    assert_eq!(seen(&failed), usable(20));
    let (lost_again, next) = step(&failed, lost(), 150);
    assert_eq!((seen(&lost_again), next), (unusable(150), None));
    let (waits, _) = step(&lost_again, Rdma::Proved, 160);
    let (waits, next) = step(&waits, Rdma::Proved, 459);
    assert_eq!((seen(&waits), next), (usable(160), Some(1)));
    let silent = || Rdma::Unknown("AgentMissing: no report for 40 s".to_owned());
    let (unknown, next) = step(&waits, silent(), 460);
    let not_known = (Some(Transport::Tcp), Some(("Unknown".to_owned(), 460)));
    assert_eq!((seen(&unknown), next), (not_known, None));
    let (_, message) = condition(&unknown, ConditionType::RdmaUsable);
    assert!(
        message.contains("not known to be usable on n1 (AgentMissing: no report for 40 s)"),
        "{message}"
    );
    let (again, next) = step(&unknown, Rdma::Proved, 500);
    assert_eq!((seen(&again), next), (usable(500), Some(300)));
    let (back, next) = step(&waits, Rdma::Proved, 460);
    assert_eq!((seen(&back), next), ((Some(Transport::Rdma), None), None));
}
