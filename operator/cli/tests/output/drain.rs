//! `drain`: which keys are lost, when it ends, and its output.

use crds::names::{COMPONENT_POOL, LABEL_COMPONENT};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use mooncake_cli::Report;
use mooncake_cli::drain::{Drain, Next, Seen, State};

use crate::fixtures::{HEALTHY, agent_alive, snapshot};
use crate::{check, now, plain};

/// The healthy installation, seen from a drain of n1.
fn seen(master: &str) -> Seen {
    let snapshot = snapshot(&HEALTHY.replace(
        "spec: {pools:",
        &format!("spec: {{master: {{type: {master}}}, pools:"),
    ));
    let is_here = |pod: &k8s_openapi::api::core::v1::Pod| {
        let pool = pod.labels().get(LABEL_COMPONENT);
        let node = pod.spec.as_ref().unwrap().node_name.as_deref();
        pool.is_some_and(|label| label == COMPONENT_POOL) && node == Some("n1")
    };
    let pods = snapshot.pods.iter().map(|pod| pod.as_ref().clone());
    let seen = Seen {
        requested: true,
        pods: pods.filter(is_here).collect(),
        clusters: snapshot.clusters,
        nodes: snapshot.nodes,
    };
    assert_eq!((seen.pods.len(), seen.nodes.len()), (1, 2));
    seen
}

fn after(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

fn delete(seen: &mut Seen) {
    let deleted = serde_json::from_str("\"2026-01-01T01:00:01Z\"").unwrap();
    seen.pods[0].metadata.deletion_timestamp = Some(deleted);
}

#[test]
fn keys_move_only_with_a_built_in_master_and_another_pool_pod() {
    let message = |seen: &Seen| {
        let losses = seen.losses("n1");
        losses.first().map(|loss| loss.message.clone())
    };
    let ours = seen("BuiltIn");
    assert_eq!(message(&ours), None);
    let stock = message(&seen("Stock")).unwrap();
    assert!(stock.contains("team/kv has a stock master"), "{stock}");

    let mut alone = ours.clone();
    alone.nodes.remove(1);
    let only = message(&alone).unwrap();
    assert!(
        only.contains("no pool pod of MooncakeCluster team/kv serves"),
        "{only}"
    );
    let mut broken = ours.clone();
    let status = broken.nodes[1].status.as_mut().unwrap();
    status.pools[0].state = crds::node::PoolState::Mounting.into();
    assert_eq!(message(&broken), Some(only.clone()));

    // Its agent reported last that it serves.
    for status in ["False", "Unknown"] {
        let mut lost = ours.clone();
        agent_alive(&mut lost.nodes[1], status);
        assert_eq!(message(&lost), Some(only.clone()));
    }

    // Without mounted memory there are no keys.
    let mut empty = alone;
    empty.nodes[0].status.as_mut().unwrap().pools[0].mounted = None;
    assert_eq!(message(&empty), None);

    let mut unread = ours;
    unread.clusters.clear();
    assert!(message(&unread).unwrap().contains("could not be read"));
    let report = Report::Drain(Drain::new(
        "n1",
        State::Refused,
        &unread,
        unread.losses("n1"),
    ));
    check("refused.drain.txt", &plain(&report));
    check("refused.drain.json", &report.json().unwrap());
}

#[test]
fn a_drain_ends_when_no_pool_pod_is_left() {
    let mut seen = seen("BuiltIn");
    let next = |seen: &Seen, seconds| seen.next(now(), after(700), after(seconds));
    assert_eq!(next(&seen, 0), Next::Wait);
    assert_eq!(next(&seen, 59), Next::Wait);
    assert_eq!(next(&seen, 60), Next::End(State::NotDeleted));
    delete(&mut seen);
    assert_eq!(next(&seen, 699), Next::Wait);
    assert_eq!(next(&seen, 700), Next::End(State::Draining));
    let report = Report::Drain(Drain::new("n1", State::Draining, &seen, Vec::new()));
    check("late.drain.txt", &plain(&report));
    let mut cancelled = seen.clone();
    cancelled.requested = false;
    assert_eq!(next(&cancelled, 1), Next::End(State::Cancelled));
    seen.pods.clear();
    assert_eq!(next(&seen, 800), Next::End(State::Drained));
    let report = Report::Drain(Drain::new("n1", State::Drained, &seen, Vec::new()));
    check("drained.drain.txt", &plain(&report));
}

#[test]
fn the_longest_grace_period_of_the_pods_is_waited_for() {
    let mut seen = seen("BuiltIn");
    seen.pods.push(seen.pods[0].clone());
    seen.pods[1]
        .spec
        .as_mut()
        .unwrap()
        .termination_grace_period_seconds = Some(630);
    assert_eq!(seen.longest(), 630);
    assert_eq!(Seen::default().longest(), 0);
}
