//! The status that follows from reports.

use super::*;
use crds::cluster::{NumaPolicy, PageSize};

fn assignment(index: usize) -> PoolAssignment {
    PoolAssignment {
        pod_uid: format!("uid-{index}"),
        pod_name: format!("c-pool-default-{index}"),
        namespace: "ns".to_owned(),
        cluster: "c".to_owned(),
        cluster_uid: "cu".to_owned(),
        pool: "default".to_owned(),
        size: ByteSize(1 << 30),
        page_size: PageSize::Base,
        numa_policy: NumaPolicy::Spread,
        drain_seconds: 5,
        master: None,
        allow_host_network: false,
        addresses: Vec::new(),
    }
}

fn report(index: usize, state: PoolState, reason: Reason) -> PoolReport {
    PoolReport {
        pod_uid: format!("uid-{index}"),
        namespace: "ns".to_owned(),
        pod_name: format!("c-pool-default-{index}"),
        state,
        reason,
        message: "m".repeat(600),
        endpoint: "198.18.0.1:12001".to_owned(),
        master_pod_uid: "master".to_owned(),
        data_epoch: 1,
        segments: vec!["c.default.n1.0".to_owned(); 64],
        mounted: Some(ByteSize(1 << 30)),
        page_size_obtained: Some(ByteSize(4096)),
    }
}

fn spec(count: usize) -> MooncakeNodeSpec {
    MooncakeNodeSpec {
        node_uid: "node".to_owned(),
        boot_id: "boot".to_owned(),
        pools: (0..count).map(assignment).collect(),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn a_status_keeps_its_bound_with_as_many_pods_as_a_spec_may_list() {
    let spec = spec(20);
    let reports: Vec<_> = (0..20)
        .map(|i| report(i, PoolState::Serving, Reason::AsExpected))
        .collect();
    let status = compose(&spec, "boot", &reports, &[], at(1));
    assert!(serde_json::to_vec(&status).unwrap().len() <= STATUS_LIMIT);
    assert_eq!(status.pools.len(), 20);
    assert_eq!(status.capacity, Some(ByteSize(20 << 30)));
}

#[test]
fn nothing_changed_gives_an_equal_status_whatever_the_time() {
    let reports = [report(0, PoolState::Serving, Reason::AsExpected)];
    let first = compose(&spec(1), "boot", &reports, &[], at(1));
    let again = compose(&spec(1), "boot", &reports, &first.conditions, at(99));
    assert_eq!(first, again);
}

#[test]
fn the_condition_names_the_pod_that_is_not_served() {
    let reports = [
        report(0, PoolState::Serving, Reason::AsExpected),
        report(1, PoolState::Refused, Reason::DescriptorNotSealed),
    ];
    let status = compose(&spec(2), "boot", &reports, &[], at(1));
    let serving = condition::find(&status.conditions, ConditionType::PoolsServing).unwrap();
    assert_eq!(serving.status, "False");
    assert_eq!(serving.reason, "DescriptorNotSealed");
    assert!(serving.message.starts_with("ns/c-pool-default-1"));
}

#[test]
fn a_listed_pod_without_a_report_is_not_served() {
    let status = compose(&spec(1), "boot", &[], &[], at(1));
    assert!(!condition::is_true(
        &status.conditions,
        ConditionType::PoolsServing
    ));
    let none = compose(&spec(0), "boot", &[], &[], at(1));
    assert!(condition::is_true(
        &none.conditions,
        ConditionType::PoolsServing
    ));
}
