//! The condition TransportsReady of a cluster that prefers RDMA.

use jiff::Timestamp;

use super::*;
use crate::cluster::transport::SETTLING;
use Transport::{Rdma as RDMA, Tcp as TCP};

fn proved(names: &[&str]) -> Vec<StoringNode> {
    let node = |name: &&str| StoringNode {
        name: (*name).to_owned(),
        rdma: Rdma::Proved,
        mtus: [4096].into(),
    };
    names.iter().map(node).collect()
}

fn named_pods(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Two nodes that have proved RDMA, and no injected pod.
fn facts(before: Transport) -> Facts {
    Facts {
        required: None,
        before: Some(before),
        nodes: proved(&["n1", "n2"]),
        complete: true,
        serves: true,
        over_rdma: Vec::new(),
        obstacle: None,
        paused: false,
        fallback: None,
        settling: SETTLING,
        now: Timestamp::UNIX_EPOCH,
    }
}

fn pool_pod(node: &str, service: PoolService) -> PoolPodStatus {
    PoolPodStatus {
        pod: format!("kv-pool-default-{node}"),
        node: node.to_owned(),
        service,
        metadata_failure: None,
    }
}

fn served(transport: Transport) -> Vec<PoolPodStatus> {
    let serving = |node| {
        pool_pod(
            node,
            PoolService::Serving {
                bytes: 1,
                transport,
            },
        )
    };
    ["n1", "n2"].map(serving).to_vec()
}

/// The transport, `Status/Reason`, and the message.
fn seen(facts: &Facts, pods: &[PoolPodStatus]) -> (Option<Transport>, String, String) {
    let (transport, condition) = evaluate(facts, pods, &Claimable::Yes);
    let state = format!("{}/{}", condition.state.as_str(), condition.reason);
    (transport, state, condition.message)
}

#[test]
fn tcp_names_the_nodes_that_are_its_cause_and_is_expected_where_no_node_has_a_device() {
    let mut facts = facts(TCP);
    facts.nodes[1].rdma = Rdma::Unproved("rxe0 port 1: PortNotActive".to_owned());
    facts.nodes.extend(proved(&["n3"]));
    facts.nodes[2].rdma = Rdma::NoDevice;
    let (transport, state, message) = seen(&facts, &served(TCP));
    assert_eq!(transport, Some(TCP));
    assert_eq!(state, "True/TransportDegraded");
    assert_eq!(
        message,
        "stock pods use TCP: RDMA is not proved on n2 (rxe0 port 1: PortNotActive); n3 (no RDMA device)"
    );
    for node in &mut facts.nodes {
        node.rdma = Rdma::NoDevice;
    }
    let (_, state, message) = seen(&facts, &served(TCP));
    assert_eq!(state, "True/AsExpected");
    assert!(message.contains("no storing node has"), "{message}");
    facts.nodes[0].rdma = Rdma::Unknown("AgentNotReady".to_owned());
    assert_eq!(seen(&facts, &served(TCP)).2, message);
}

#[test]
fn tcp_has_the_cause_that_is_not_a_node() {
    let with = |obstacle| {
        let mut facts = facts(TCP);
        facts.obstacle = Some(obstacle);
        let (transport, state, message) = seen(&facts, &served(TCP));
        assert_eq!(transport, Some(TCP));
        (state, message)
    };
    let (state, message) = with(Obstacle::Spec("of spec.access"));
    assert_eq!(
        (&*state, &*message),
        ("True/AsExpected", "stock pods use TCP: of spec.access")
    );
    let (state, message) = with(Obstacle::NoClaims("there is no class".to_owned()));
    assert_eq!(state, "True/TransportDegraded");
    assert!(message.contains("no RDMA device: there is no class"));
    let (state, message) = with(Obstacle::Unknown);
    assert_eq!(state, "True/TransportDegraded");
    assert!(message.contains("not known yet"), "{message}");
    let mut incomplete = facts(TCP);
    incomplete.complete = false;
    let (_, state, message) = seen(&incomplete, &served(TCP));
    assert_eq!(state, "True/AsExpected");
    assert!(message.contains("not every pool pod exists"), "{message}");
}

#[test]
fn a_pause_holds_a_change_to_rdma() {
    let mut facts = facts(TCP);
    facts.paused = true;
    let (transport, state, message) = seen(&facts, &served(TCP));
    assert_eq!(transport, Some(TCP));
    assert_eq!(state, "True/TransportDegraded");
    assert_eq!(
        message,
        "stock pods use TCP, although every storing node has proved RDMA. This changes to RDMA after the pause"
    );
}

#[test]
fn a_cluster_that_has_fallen_back_states_for_what_it_waits_and_until_when() {
    let usable = |facts: &Facts| {
        let condition = rdma_usable(facts)?;
        Some((condition.state, condition.reason, condition.message))
    };
    let mut facts = facts(TCP);
    assert_eq!(usable(&facts), None);
    facts.fallback = Some(Fallback::Unusable);
    let since = "every storing node has proved RDMA again, and the cluster returns to it at 1970-01-01T00:05:00Z if it stays so";
    let (state, reason, message) = usable(&facts).unwrap();
    assert_eq!(
        (state, reason),
        (ConditionStatus::True, Reason::Progressing)
    );
    assert_eq!(message, since);
    // What it waits for besides.
    let waits = |change: fn(&mut Facts)| {
        let mut facts = facts.clone();
        facts.fallback = Some(Fallback::UsableSince(facts.now));
        change(&mut facts);
        usable(&facts).unwrap().2
    };
    let lead = "every storing node has proved RDMA again, and the cluster returns to it";
    let at = "and not before 1970-01-01T00:05:00Z";
    assert_eq!(
        waits(|facts| facts.paused = true),
        format!("{lead} after the pause, {at}")
    );
    assert_eq!(
        waits(|facts| facts.complete = false),
        format!("{lead} when every pool pod exists, {at}")
    );
    assert_eq!(
        waits(|facts| facts.obstacle = Some(Obstacle::Unknown)),
        format!("{lead} when pods are known to claim RDMA devices, {at}")
    );
    let (transport, state, message) = seen(&facts, &served(TCP));
    assert_eq!((transport, &*state), (Some(TCP), "True/TransportDegraded"));
    assert_eq!(
        message,
        "stock pods use TCP, although every storing node has proved RDMA. This changes to RDMA at 1970-01-01T00:05:00Z \
         if every proof is kept until then: after a change to TCP, RDMA has to be usable for 300 s"
    );
    facts.nodes[0].rdma = Rdma::Unproved("rxe0 port 1: PortNotActive".to_owned());
    let (state, reason, message) = usable(&facts).unwrap();
    assert_eq!(
        (state, reason),
        (ConditionStatus::False, Reason::TransportDegraded)
    );
    assert!(message.contains("usable for 300 s"), "{message}");
    let (_, _, message) = seen(&facts, &served(TCP));
    assert_eq!(
        message,
        "stock pods use TCP: RDMA is not proved on n1 (rxe0 port 1: PortNotActive)"
    );
}

#[test]
fn a_node_that_loses_its_proof_while_pods_use_rdma_is_named_and_changes_nothing() {
    let mut facts = facts(RDMA);
    let (transport, state, message) = seen(&facts, &served(RDMA));
    assert_eq!((transport, &*state), (Some(RDMA), "True/AsExpected"));
    assert_eq!(
        message,
        "stock pods use RDMA, over which 2 pool pods are served"
    );
    facts.over_rdma = named_pods(&["team/a"]);
    facts.nodes[1].rdma = Rdma::Unproved("rxe0 port 1: PortNotActive".to_owned());
    let mut pods = served(RDMA);
    let unproved = PoolService::NotServing {
        reason: Reason::NoUsableTransport,
        message: "it is served over rxe0:1:1".to_owned(),
    };
    pods[1] = pool_pod("n2", unproved.clone());
    let (transport, state, message) = seen(&facts, &pods);
    assert_eq!(transport, Some(RDMA));
    assert_eq!(state, "True/TransportDegraded");
    assert_eq!(
        message,
        "stock pods use RDMA, over which 1 pool pods are served, and it is no longer proved on n2 (rxe0 port 1: \
         PortNotActive). This changes to TCP when the last of 1 injected pods with RDMA has ended: team/a"
    );
    pods[0] = pool_pod("n1", unproved);
    let (transport, state, message) = seen(&facts, &pods);
    assert_eq!(transport, Some(RDMA));
    assert_eq!(state, "False/NoUsableTransport");
    assert!(message.contains("n1: pool pod"), "{message}");
    assert!(message.contains("has ended: team/a"), "{message}");
}

#[test]
fn nodes_with_another_path_mtu_are_named_where_pools_are_served_over_rdma() {
    let mut facts = facts(RDMA);
    facts.nodes.extend(proved(&["n3"]));
    facts.nodes[1].mtus = [1024].into();
    let words = "stock pods use RDMA, over which 2 pool pods are served. The path MTU of the RDMA ports differs between \
                 nodes (1024 on n2, 4096 on n1; n3), and transfers between stock engines and pool pods with another one \
                 fail. Set one MTU on every node";
    let (transport, state, message) = seen(&facts, &served(RDMA));
    assert_eq!((transport, &*state), (Some(RDMA), "True/MtuMismatch"));
    assert_eq!(message, words);
    facts.required = Some(RDMA);
    let (transport, state, message) = seen(&facts, &served(RDMA));
    assert_eq!((transport, &*state), (Some(RDMA), "True/MtuMismatch"));
    assert_eq!(message, words);
    facts.required = Some(TCP);
    assert_eq!(seen(&facts, &served(TCP)).1, "True/AsExpected");

    // What keeps pool pods from being served comes first.
    facts.required = None;
    facts.nodes[0].rdma = Rdma::NoDevice;
    facts.over_rdma = named_pods(&["team/a"]);
    let (_, state, message) = seen(&facts, &served(RDMA));
    assert_eq!(state, "True/TransportDegraded");
    assert!(message.contains("no longer proved on n1"), "{message}");
    assert!(message.ends_with("Set one MTU on every node"), "{message}");
}

#[test]
fn a_cluster_is_not_ready_while_its_pool_pods_are_served_over_the_other_transport() {
    let (transport, state, message) = seen(&facts(TCP), &served(TCP));
    assert_eq!((transport, &*state), (Some(RDMA), "False/Progressing"));
    assert!(message.contains("kv-pool-default-n2 on n2"), "{message}");
    let mut tcp = facts(RDMA);
    tcp.nodes[0].rdma = Rdma::NoDevice;
    let (transport, state, message) = seen(&tcp, &served(RDMA));
    assert_eq!((transport, &*state), (Some(TCP), "False/Progressing"));
    assert!(message.contains("kv-pool-default-n1 on n1"), "{message}");
    tcp.required = Some(TCP);
    assert_eq!(seen(&tcp, &served(TCP)).2, "stock pods use TCP");
}

#[test]
fn injected_pods_with_rdma_are_named_where_a_pause_keeps_tcp() {
    let mut facts = facts(TCP);
    facts.paused = true;
    facts.over_rdma = named_pods(&["a/1", "a/2", "a/3", "a/4", "a/5"]);
    let (transport, _, message) = seen(&facts, &served(TCP));
    assert_eq!(transport, Some(TCP));
    let words = "These injected pods have RDMA, and fail until they are created again: a/1; a/2; a/3; a/4; and 1 more";
    assert!(message.ends_with(words), "{message}");
}

#[test]
fn an_undecided_transport_is_progress() {
    let mut undecided = facts(TCP);
    undecided.before = None;
    undecided.complete = false;
    undecided.serves = false;
    let (transport, state, _) = seen(&undecided, &[]);
    assert_eq!((transport, &*state), (None, "False/Progressing"));
}
