//! `segment`: each state with its message and similar names.

use k8s_openapi::api::core::v1::Pod;
use mooncake_cli::Report;
use mooncake_cli::read_error::{Cause, ReadError, Resources};
use mooncake_cli::segment::{Inputs, Segment, State, address, segment};
use serde_json::json;

use crate::fixtures::{DEGRADED, HEALTHY, agent_alive, snapshot};
use crate::{check, now, plain};

fn inputs(objects: &str, name: &str) -> Inputs {
    Inputs {
        name: name.to_owned(),
        nodes: snapshot(objects).nodes,
        holders: Vec::new(),
        read_errors: Vec::new(),
    }
}

fn holder(labels: serde_json::Value) -> Pod {
    let pod = json!({"metadata": {
        "namespace": "web", "name": "shop-0", "labels": labels, "creationTimestamp": "2026-01-01T00:50:00Z",
    }});
    serde_json::from_value(pod).unwrap()
}

fn found(inputs: Inputs) -> Segment {
    segment(inputs, now())
}

#[test]
fn a_served_segment_has_its_pool_pod_by_either_name() {
    let found = found(inputs(HEALTHY, "10.0.1.5:12001"));
    assert_eq!(
        (found.state, found.reason.as_deref()),
        (State::Served, None)
    );
    let report = Report::Segment(Box::new(found));
    check("served.segment.txt", &plain(&report));
    check("served.segment.json", &report.json().unwrap());

    let mut by_segment = inputs(HEALTHY, "kv.default.n2.0");
    let status = by_segment.nodes[1].status.as_mut().unwrap();
    status.pools[0].segments = vec!["kv.default.n2.0".to_owned()];
    let found = segment(by_segment, now());
    let owner = found.owner.unwrap();
    assert_eq!(
        (found.state, owner.pod.as_str()),
        (State::Served, "kv-pool-default-n2")
    );
}

#[test]
fn a_segment_of_a_node_whose_agent_does_not_report_is_not_served() {
    let mut lost = inputs(HEALTHY, "10.0.1.5:12001");
    for node in &mut lost.nodes {
        agent_alive(node, "False");
    }
    let found = found(lost);
    assert_eq!(
        (found.state, found.reason.as_deref()),
        (State::NotServed, Some("AgentMissing"))
    );
    assert!(
        found.message.contains("the agent is gone"),
        "{}",
        found.message
    );
}

#[test]
fn a_segment_whose_pool_pod_does_not_serve_has_its_reason() {
    let mut inputs = inputs(DEGRADED, "10.0.2.9:12001");
    let mut pools = inputs
        .nodes
        .iter_mut()
        .flat_map(|node| &mut node.status.as_mut().unwrap().pools);
    let pool = pools
        .find(|pool| pool.state != crds::node::PoolState::Serving)
        .unwrap();
    pool.endpoint = "10.0.2.9:12001".to_owned();
    let reason = pool.reason.to_string();
    drop(pools);
    let found = found(inputs);
    assert_eq!(
        (found.state, found.reason),
        (State::NotServed, Some(reason))
    );
    assert!(found.remedy.is_some());
}

#[test]
fn an_earlier_port_names_the_present_one() {
    let found = found(inputs(HEALTHY, "10.0.1.5:12777"));
    assert_eq!(found.state, State::OtherPort);
    assert!(
        found.message.contains("serves 10.0.1.5:12001"),
        "{}",
        found.message
    );
    assert_eq!(found.reason.as_deref(), Some("SegmentUnknown"));
}

#[test]
fn an_address_of_another_pod_and_of_no_pod_are_told_apart() {
    let mut reused = inputs(HEALTHY, "10.0.1.9:12001");
    reused.holders = vec![holder(json!({}))];
    let reused = found(reused);
    assert_eq!(reused.state, State::OtherPod);
    let report = Report::Segment(Box::new(reused));
    check("reused.segment.txt", &plain(&report));

    let mut starting = inputs(HEALTHY, "10.9.9.9:1");
    starting.holders = vec![holder(json!({"mooncake.io/component": "pool"}))];
    let starting = found(starting);
    assert!(
        starting.message.contains("has not reported it"),
        "{}",
        starting.message
    );

    let mut completed = inputs(HEALTHY, "10.9.9.9:1");
    let mut pod = holder(json!({}));
    pod.status = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
    completed.holders = vec![pod];
    assert_eq!(found(completed).state, State::NoOwner);

    let gone = found(inputs(HEALTHY, "10.9.9.9:1"));
    assert_eq!(gone.state, State::NoOwner);
    assert!(
        gone.message.contains("no pod has the address 10.9.9.9"),
        "{}",
        gone.message
    );
    assert!(gone.similar.is_empty());
}

#[test]
fn a_mistyped_name_has_similar_ones() {
    let mut inputs = inputs(HEALTHY, "kv.defautl.n2.0");
    for node in &mut inputs.nodes {
        let name = node.metadata.name.clone().unwrap();
        node.status.as_mut().unwrap().pools[0].segments = vec![format!("kv.default.{name}.0")];
    }
    let found = segment(inputs, now());
    let names: Vec<&str> = found.similar.iter().map(|one| one.name.as_str()).collect();
    assert_eq!((found.state, names[0]), (State::NoOwner, "kv.default.n2.0"));
    assert_eq!(names.len(), 2);
}

#[test]
fn nothing_is_concluded_from_objects_that_could_not_be_read() {
    let mut inputs = inputs(HEALTHY, "10.9.9.9:1");
    let error = ReadError::new(
        Resources::PODS,
        "all namespaces",
        Cause::Forbidden,
        "forbidden".to_owned(),
    );
    inputs.read_errors = vec![error];
    let report = Report::Segment(Box::new(found(inputs)));
    assert_eq!(report.exit_code(), 2);
    check("unread.segment.txt", &plain(&report));
}

#[test]
fn only_ip_and_port_are_an_address() {
    assert!(address("10.0.0.1:17000").is_some() && address("[fd00::1]:17000").is_some());
    for other in ["kv.default.n1.0", "host:17000", "10.0.0.1", ""] {
        assert_eq!(address(other), None, "{other}");
    }
}
