//! The decision by a table of cases and by random histories, and the facts from objects.

use crds::node::MooncakeNodeSpec;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::core::DeserializeGuard;
use proptest::prelude::*;

use super::*;
use crate::fixture;

const TCP: Option<Transport> = Some(Transport::Tcp);
const RDMA: Option<Transport> = Some(Transport::Rdma);

fn node(name: &str, rdma: Rdma) -> StoringNode {
    StoringNode {
        name: name.to_owned(),
        rdma,
        mtus: BTreeSet::new(),
    }
}

/// Nodes by a letter each: proved, without a device, not proved, unknown.
fn nodes(letters: &str) -> Vec<StoringNode> {
    let rdma = |letter| match letter {
        'p' => Rdma::Proved,
        'd' => Rdma::NoDevice,
        'n' => Rdma::Unproved("rxe0 port 1: PortNotActive".to_owned()),
        _ => Rdma::Unknown("AgentMissing".to_owned()),
    };
    letters
        .chars()
        .enumerate()
        .map(|(index, letter)| node(&format!("n{index}"), rdma(letter)))
        .collect()
}

fn pods(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("team/{number}")).collect()
}

/// A complete cluster that prefers RDMA, with these nodes and so many pods on RDMA.
fn facts(letters: &str, over_rdma: usize, before: Option<Transport>) -> Facts {
    Facts {
        required: None,
        before,
        nodes: nodes(letters),
        complete: true,
        serves: true,
        over_rdma: pods(over_rdma),
        obstacle: None,
        paused: false,
        fallback: None,
        settling: SETTLING,
        now: at(0),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

const SETTLING_SECONDS: i64 = 300;

#[test]
fn the_transport_follows_the_pods_on_rdma_and_without_them_the_proofs_of_every_node() {
    for (letters, running, before, decided) in [
        // No pod on RDMA: what every node has proved, and what is unknown changes nothing.
        ("pp", 0, None, RDMA),
        ("pp", 0, TCP, RDMA),
        ("pp", 0, RDMA, RDMA),
        ("pn", 0, None, TCP),
        ("pn", 0, TCP, TCP),
        ("pn", 0, RDMA, TCP),
        ("pd", 0, RDMA, TCP),
        ("pu", 0, None, TCP),
        ("pu", 0, TCP, TCP),
        ("pu", 0, RDMA, RDMA),
        ("nu", 0, RDMA, TCP),
        // Pods keep RDMA, also where the last decision was another one.
        ("pn", 1, RDMA, RDMA),
        ("pd", 1, TCP, RDMA),
        ("nn", 1, None, RDMA),
        ("pu", 1, RDMA, RDMA),
    ] {
        let found = facts(letters, running, before).decide();
        assert_eq!(found, decided, "{letters} {running:?} {before:?}");
    }
}

#[test]
fn a_required_transport_is_taken_whatever_runs_and_a_pause_keeps_the_decided_one() {
    for required in [TCP, RDMA] {
        for running in [0, 1] {
            let mut facts = facts("pn", running, TCP);
            facts.required = required;
            facts.paused = true;
            assert_eq!(facts.decide(), required);
        }
    }
    let mut paused = facts("pp", 0, TCP);
    paused.paused = true;
    assert_eq!((paused.decide(), paused.wanted()), (TCP, RDMA));
    paused.before = None;
    assert_eq!(paused.decide(), RDMA);
}

#[test]
fn a_cluster_with_a_missing_pool_pod_changes_to_tcp_only_and_first_decides_when_one_serves() {
    let incomplete = |letters, before, serves| {
        let mut facts = facts(letters, 0, before);
        facts.complete = false;
        facts.serves = serves;
        facts.decide()
    };
    assert_eq!(incomplete("p", None, false), None);
    assert_eq!(incomplete("", None, false), None);
    assert_eq!(incomplete("p", None, true), TCP);
    assert_eq!(incomplete("p", TCP, true), TCP);
    assert_eq!(incomplete("p", RDMA, false), RDMA);
    assert_eq!(incomplete("n", RDMA, false), TCP);
}

#[test]
fn an_obstacle_is_tcp_and_one_that_is_not_known_yet_changes_nothing() {
    let with = |obstacle: Obstacle, before| {
        let mut facts = facts("pp", 0, before);
        facts.obstacle = Some(obstacle);
        facts.decide()
    };
    assert_eq!(with(Obstacle::Spec("no"), RDMA), TCP);
    assert_eq!(with(Obstacle::NoClaims(String::new()), RDMA), TCP);
    assert_eq!(with(Obstacle::Unknown, RDMA), RDMA);
    assert_eq!(with(Obstacle::Unknown, TCP), TCP);
}

#[test]
fn a_cluster_that_has_fallen_back_returns_when_rdma_was_usable_for_the_settling_time() {
    let since = Some(Fallback::UsableSince(at(100)));
    let due = 100 + SETTLING_SECONDS;
    for (letters, second, fallback, decided) in [
        ("pp", 100, Some(Fallback::Unusable), TCP),
        ("pp", due - 1, since, TCP),
        ("pp", due, since, RDMA),
        ("pn", due, since, TCP),
        // What is unknown changes nothing.
        ("pu", due, since, TCP),
        // Stored by an operator whose clock was ahead.
        ("pp", 99, since, RDMA),
        // It has not fallen back: its nodes were checked only now.
        ("pp", 100, None, RDMA),
    ] {
        let mut facts = facts(letters, 0, TCP);
        (facts.fallback, facts.now) = (fallback, at(second));
        assert_eq!(facts.decide(), decided, "{letters} {second} {fallback:?}");
    }
    let mut waits = facts("pp", 0, TCP);
    (waits.fallback, waits.now) = (since, at(due - 1));
    assert_eq!(waits.settles_at(), Some(at(due)));
    // Pods on RDMA do not wait, and without a time to settle nothing does.
    waits.over_rdma = pods(1);
    assert_eq!(waits.decide(), RDMA);
    waits.over_rdma.clear();
    (waits.settling, waits.fallback) = (Duration::ZERO, Some(Fallback::Unusable));
    assert_eq!((waits.decide(), waits.settles_at()), (RDMA, None));
}

#[test]
fn a_fallback_is_stored_until_rdma_is_used_and_its_time_while_no_proof_is_lost() {
    let since = Fallback::UsableSince(at(100));
    let unusable = Fallback::Unusable;
    for (letters, before, stored, next) in [
        ("pn", RDMA, None, Some(unusable)),
        ("pd", RDMA, None, Some(unusable)),
        ("pn", TCP, Some(unusable), Some(unusable)),
        (
            "pp",
            TCP,
            Some(unusable),
            Some(Fallback::UsableSince(at(200))),
        ),
        ("pp", TCP, Some(since), Some(since)),
        // A node that does not report is not counted as proved.
        ("pu", TCP, Some(since), Some(Fallback::Unknown)),
        ("pu", TCP, Some(unusable), Some(Fallback::Unknown)),
        ("nu", TCP, Some(since), Some(unusable)),
        ("pu", RDMA, None, None),
        (
            "pp",
            TCP,
            Some(Fallback::Unknown),
            Some(Fallback::UsableSince(at(200))),
        ),
        ("pn", TCP, Some(since), Some(unusable)),
        // It has not used RDMA.
        ("pn", None, None, None),
        ("pn", TCP, None, None),
        ("pp", RDMA, None, None),
    ] {
        let mut facts = facts(letters, 0, before);
        (facts.fallback, facts.now) = (stored, at(200));
        let found = facts.next_fallback();
        assert_eq!(found, next, "{letters} {before:?} {stored:?}");
    }
    let with = |change: fn(&mut Facts)| {
        let mut facts = facts("pn", 0, TCP);
        facts.fallback = Some(unusable);
        change(&mut facts);
        facts.next_fallback()
    };
    assert_eq!(with(|_| ()), Some(unusable));
    assert_eq!(with(|facts| facts.paused = true), Some(unusable));
    assert_eq!(with(|facts| facts.over_rdma = pods(1)), None);
    for required in [TCP, RDMA] {
        let mut facts = facts("pn", 0, RDMA);
        facts.required = required;
        assert_eq!(facts.next_fallback(), None);
    }
    // Pool pods that are replaced, and an operator that starts, lose no proof.
    for change in [
        (|facts| facts.complete = false) as fn(&mut Facts),
        |facts| facts.obstacle = Some(Obstacle::Unknown),
    ] {
        let mut facts = facts("pp", 0, TCP);
        facts.fallback = Some(since);
        change(&mut facts);
        assert_eq!(facts.next_fallback(), Some(since));
    }
    let by_spec = with(|facts| facts.obstacle = Some(Obstacle::Spec("no")));
    assert_eq!(by_spec, None);
    let by_claims = with(|facts| facts.obstacle = Some(Obstacle::NoClaims(String::new())));
    assert_eq!(by_claims, Some(unusable));
}

fn transport() -> impl Strategy<Value = Option<Transport>> {
    prop::option::of(prop_oneof![Just(Transport::Tcp), Just(Transport::Rdma)])
}

proptest! {
    #[test]
    fn a_decision_is_kept_by_the_same_facts(
        letters in "[pdnu]{0,4}",
        running in 0_usize..3,
        before in transport(),
        complete: bool,
        paused: bool,
    ) {
        let mut facts = facts(&letters, running, before);
        (facts.complete, facts.paused) = (complete, paused);
        let first = facts.decide();
        facts.before = first;
        prop_assert_eq!(facts.decide(), first);
    }

    /// Each step reports other proofs, and perhaps starts or ends a pod. A pod gets the transport of the last decision or,
    /// where the webhook is behind, of the one before.
    #[test]
    fn pods_on_rdma_are_served_over_it_until_the_last_one_has_ended(
        steps in prop::collection::vec(("[pdnu]{1,3}", any::<bool>(), 0_u8..4), 1..60),
    ) {
        let (mut last, mut running) = (None, Vec::new());
        let mut fallback = None;
        for (letters, complete, event) in steps {
            let mut facts = facts(&letters, 0, last);
            (facts.over_rdma, facts.complete) = (running.clone(), complete);
            facts.fallback = fallback;
            fallback = facts.next_fallback();
            let decided = facts.decide();
            if !running.is_empty() {
                prop_assert_eq!(decided, RDMA);
            }
            let previous = last;
            last = decided;
            match event {
                0 if last == RDMA => running.push("team/last".to_owned()),
                1 if previous == RDMA => running.push("team/previous".to_owned()),
                2 => drop(running.pop()),
                _ => {}
            }
        }
    }

    /// Each step reports other proofs some seconds later. Before a change back to RDMA each node has reported its proof for the
    /// settling time.
    #[test]
    fn a_port_that_flaps_does_not_take_its_cluster_back_to_rdma(
        steps in prop::collection::vec(("[pu]{2}|[pn]{2}|pp|pp", 1_i64..200), 1..60),
    ) {
        let (mut last, mut fallback, mut now) = (RDMA, None, 0);
        let mut lost = None;
        for (letters, seconds) in steps {
            now += seconds;
            let mut facts = facts(&letters, 0, last);
            (facts.fallback, facts.now) = (fallback, at(now));
            let decided = facts.decide();
            if letters.contains('n') {
                prop_assert_eq!(decided, TCP);
            }
            if letters != "pp" {
                lost = Some(now);
            }
            if let (TCP, RDMA, Some(lost)) = (last, decided, lost) {
                prop_assert!(now - lost > SETTLING_SECONDS, "{} s", now - lost);
            }
            (last, fallback) = (decided, facts.next_fallback());
        }
    }
}

#[test]
fn the_condition_stores_a_fallback_and_its_transition_the_time() {
    let of =
        |conditions: &str| stored_fallback(&serde_yaml_ng::from_str::<Vec<_>>(conditions).unwrap());
    let usable = |status: &str| {
        of(&format!(
            "[{{type: RdmaUsable, status: '{status}', reason: Progressing, message: m, lastTransitionTime: \
             '1970-01-01T00:01:40Z'}}]"
        ))
    };
    assert_eq!(of("[]"), None);
    assert_eq!(usable("False"), Some(Fallback::Unusable));
    assert_eq!(usable("Unknown"), Some(Fallback::Unknown));
    assert_eq!(usable("True"), Some(Fallback::UsableSince(at(100))));
}

fn mooncake_node(status: &str) -> MooncakeNode {
    let mut mooncake_node = MooncakeNode::new(
        "n1",
        MooncakeNodeSpec {
            node_uid: "node".to_owned(),
            boot_id: "boot".to_owned(),
            ..serde_json::from_str("{}").unwrap()
        },
    );
    mooncake_node.status = serde_yaml_ng::from_str(&format!(
        "{{nodeUid: node, bootId: boot, {status}, conditions: [{{type: AgentAlive, status: 'True', \
         reason: AsExpected, message: '', lastTransitionTime: '2026-01-01T00:00:00Z'}}]}}"
    ))
    .unwrap();
    mooncake_node
}

#[test]
fn a_node_has_proved_rdma_by_one_port_and_is_unknown_until_each_port_is_probed() {
    let of = |ports: &str| rdma(Some(&mooncake_node(&format!("hcas: [{ports}]"))));
    let proved = "{name: a, port: 1, state: Active, gid: 1, proved: true}";
    let failed = "{name: b, port: 1, state: Active, gid: 1, notProved: LoopbackFailed}";
    let down = "{name: c, port: 1, state: Down}";
    let unprobed = "{name: d, port: 1, state: Active, gid: 1}";
    assert_eq!(of(&format!("{failed}, {proved}")), Rdma::Proved);
    assert!(matches!(of(""), Rdma::Unknown(_)), "not checked yet");
    let checked =
        mooncake_node("checks: {passed: 1, warned: 0, failed: 0, unknown: 0, notApplicable: 0}");
    assert_eq!(rdma(Some(&checked)), Rdma::NoDevice);
    let Rdma::Unproved(why) = of(&format!("{failed}, {down}, {down}")) else {
        panic!("{:?}", of(failed))
    };
    assert_eq!(
        why,
        "b port 1: LoopbackFailed, c port 1: not probed yet and 1 more"
    );
    let unknown = of(&format!("{failed}, {unprobed}"));
    assert!(matches!(unknown, Rdma::Unknown(_)), "{unknown:?}");

    // The policy of the node excludes devices.
    let excluded = "{name: a, port: 1, state: Active, gid: 1, proved: true, excluded: true}";
    assert_eq!(of(&format!("{excluded}, {proved}")), Rdma::Proved);
    let why = "a port 1: excluded by rdmaDevices of the MooncakeNodePolicy";
    assert_eq!(of(excluded), Rdma::Unproved(why.to_owned()));
    let never_probed = "{name: a, port: 1, state: Active, gid: 1, excluded: true}";
    assert_eq!(of(never_probed), Rdma::Unproved(why.to_owned()));

    assert!(matches!(rdma(None), Rdma::Unknown(_)));
    let mut rebooted = mooncake_node(&format!("hcas: [{proved}]"));
    rebooted.spec.boot_id = "next".to_owned();
    assert!(matches!(rdma(Some(&rebooted)), Rdma::Unknown(_)));
}

#[test]
fn nodes_are_grouped_by_the_mtus_of_their_ports_where_these_differ() {
    let with = |mtus: &[&[u32]]| {
        let mut facts = facts(&"p".repeat(mtus.len()), 0, None);
        for (node, mtus) in facts.nodes.iter_mut().zip(mtus) {
            node.mtus = mtus.iter().copied().collect();
        }
        facts
    };
    let groups = |mtus: &[&[u32]]| -> Vec<(Vec<u32>, Vec<String>)> {
        let facts = with(mtus);
        let groups = facts.unequal_mtus().into_iter();
        let group = |(mtus, nodes): (&BTreeSet<u32>, _)| (mtus.iter().copied().collect(), nodes);
        groups.map(group).collect()
    };
    assert_eq!(groups(&[&[4096], &[4096], &[]]), []);
    assert_eq!(
        groups(&[&[1024, 4096], &[1024, 4096]]),
        [],
        "PortMtu of each"
    );
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(
        groups(&[&[4096], &[1024], &[4096]]),
        [
            (vec![1024], named(&["n1"])),
            (vec![4096], named(&["n0", "n2"]))
        ]
    );
}

fn pod(text: &str) -> Arc<Pod> {
    Arc::new(serde_yaml_ng::from_str(text).unwrap())
}

fn pool_pod(node: &str) -> Arc<Pod> {
    pod(&format!(
        "{{metadata: {{name: p-{node}, labels: {{mooncake.io/pool: default}}}}, spec: {{nodeName: {node}, containers: []}}}}"
    ))
}

#[test]
fn a_cluster_is_complete_when_each_node_that_the_daemon_set_counts_has_a_pool_pod() {
    let set = |desired: i32| -> Arc<DaemonSet> {
        let text = format!(
            "{{metadata: {{name: kv-pool-default, generation: 2}}, spec: {{selector: {{}}, template: {{}}}}, status: \
             {{observedGeneration: 2, desiredNumberScheduled: {desired}, currentNumberScheduled: {desired}, \
             numberMisscheduled: 0, numberReady: 0}}}}"
        );
        Arc::new(serde_yaml_ng::from_str(&text).unwrap())
    };
    let complete = |desired, nodes: &[&str]| {
        let mut observed = Observed::default();
        observed.existing.daemon_sets = vec![set(desired)];
        observed.pool_pods = nodes.iter().map(|node| pool_pod(node)).collect();
        is_complete(&fixture::valid("{}"), &observed)
    };
    assert!(complete(2, &["n1", "n2"]));
    // A pod that ends and its successor are on one node.
    assert!(!complete(2, &["n1", "n1"]));
    assert!(!complete(0, &[]));
    let unseen = Observed {
        pool_pods: vec![pool_pod("n1")],
        ..Observed::default()
    };
    assert!(!is_complete(&fixture::valid("{}"), &unseen));
}

#[test]
fn injected_pods_whose_gate_has_rdma_count_until_they_end() {
    let injected = |name: &str, gate: &str, phase: &str| {
        let labels = "labels: {mooncake.io/inject: kv, mooncake.io/access: kv}";
        let mut pod: Pod = serde_yaml_ng::from_str(&format!(
            "{{metadata: {{name: {name}, namespace: team, {labels}}}, spec: {{containers: [], initContainers: \
             [{{name: mooncake-gate, args: [hold, {gate}]}}]}}, status: {{phase: {phase}}}}}"
        ))
        .unwrap();
        crate::cache::prune::pod(&mut pod);
        Arc::new(pod)
    };
    let over_rdma = "--transport=rdma";
    let all = [
        injected("b", over_rdma, "Pending"),
        injected("a", over_rdma, "Running"),
        injected("c", "--samples=3", "Running"),
        injected("d", over_rdma, "Succeeded"),
        pod("{metadata: {name: e, namespace: team, labels: {mooncake.io/inject: kv}}}"),
    ];
    let found = injected_over_rdma(&fixture::valid("{}"), &all);
    assert_eq!(found, ["team/a", "team/b"]);
}

#[test]
fn a_metadata_service_excludes_rdma_and_peers_that_get_no_device_do_not() {
    let of = |spec: &str| obstacle(&fixture::valid(spec), &Claimable::Yes);
    let http = of("{metadata: {type: HTTP}}");
    assert!(matches!(http, Some(Obstacle::Spec(_))), "{http:?}");
    for spec in [
        "{}",
        "{access: {allowedNamespaces: [other]}}",
        "{access: {addresses: [10.0.0.7]}}",
    ] {
        assert_eq!(of(spec), None, "{spec}");
    }
    let claims = |claimable| obstacle(&fixture::valid("{}"), &claimable);
    assert_eq!(claims(Claimable::Unknown), Some(Obstacle::Unknown));
    let none = Claimable::No("no class".to_owned());
    assert_eq!(
        claims(none),
        Some(Obstacle::NoClaims("no class".to_owned()))
    );
}

#[test]
fn cached_reports_keep_what_the_decision_reads() {
    let line =
        "{name: a, port: 1, state: Active, gid: 1, rateMbps: 100000, pathMtu: 4096, proved: true}";
    // Pool pods are not served over it.
    let slow =
        "{name: b, port: 1, state: Active, gid: 1, rateMbps: 25000, pathMtu: 1024, proved: true}";
    let mooncake_node = mooncake_node(&format!("hcas: [{line}, {slow}]"));
    let mut cached = DeserializeGuard(Ok(mooncake_node));
    crate::cache::prune::mooncake_node(&mut cached);
    let cached = cached.0.as_ref().ok();
    assert_eq!(rdma(cached), Rdma::Proved);
    assert_eq!(mtus(cached), [4096].into());
}

#[test]
fn the_spec_decides_before_the_status_and_before_there_is_one_it_is_tcp() {
    let of = |spec: &str, status: &str| {
        let mut cluster = fixture::cluster(spec);
        cluster.status = serde_yaml_ng::from_str(status).unwrap();
        of_stock_pods(&cluster)
    };
    let (tcp, rdma) = ("{transport: Tcp}", "{transport: Rdma}");
    for status in ["{}", tcp, rdma] {
        assert_eq!(of("{transports: {rdma: Require}}", status), Transport::Rdma);
        assert_eq!(of("{transports: {tcp: Forbid}}", status), Transport::Rdma);
        assert_eq!(of("{transports: {tcp: Require}}", status), Transport::Tcp);
        assert_eq!(of("{transports: {rdma: Forbid}}", status), Transport::Tcp);
    }
    assert_eq!(of("{}", "{}"), Transport::Tcp);
    assert_eq!(of("{}", tcp), Transport::Tcp);
    assert_eq!(of("{}", rdma), Transport::Rdma);
    assert_eq!(of("{}", "{transport: OfTheNextRelease}"), Transport::Tcp);
}
