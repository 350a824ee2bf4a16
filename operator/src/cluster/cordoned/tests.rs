//! Which cordoned nodes are drained, wait or are held.

use super::*;

const GIB: u64 = 1 << 30;

fn names(nodes: &[&str]) -> BTreeSet<String> {
    nodes.iter().map(|node| (*node).to_owned()).collect()
}

fn serving(node: &str) -> Stored {
    Stored {
        node: node.to_owned(),
        bytes: 10 * GIB,
        serves: true,
        ends: false,
    }
}

fn ending(node: &str) -> Stored {
    Stored {
        serves: false,
        ends: true,
        ..serving(node)
    }
}

/// The decision with one pool pod of 10 GiB at a time, `used` GiB in use.
fn decided(cordoned: &[&str], before: &[&str], pods: &[Stored], used: Option<u64>) -> Decision {
    limited(cordoned, before, pods, used, 1)
}

fn limited(
    cordoned: &[&str],
    before: &[&str],
    pods: &[Stored],
    used: Option<u64>,
    limit: usize,
) -> Decision {
    decide(&Facts {
        cordoned: &names(cordoned),
        before: &names(before),
        pods,
        limit,
        replaced: &BTreeSet::new(),
        used: used.map(|used| used * GIB),
        watermark: 90,
    })
}

#[test]
fn a_drain_fills_other_pool_pods_up_to_the_watermark_of_the_master_and_to_90_percent_at_most() {
    let pods = ["n1", "n2", "n3"].map(serving);
    let (cordoned, none) = (names(&["n1"]), BTreeSet::new());
    for (watermark, fits) in [(60, 12), (90, 18), (100, 18)] {
        let held = |used| {
            let facts = Facts {
                cordoned: &cordoned,
                before: &none,
                pods: &pods,
                limit: 1,
                replaced: &none,
                used: Some(used * GIB),
                watermark,
            };
            decide(&facts).excess.map(|excess| excess / GIB)
        };
        assert_eq!(
            [held(fits - 1), held(fits + 2)],
            [None, Some(2)],
            "{watermark}"
        );
    }
}

#[test]
fn a_cordoned_node_is_drained_until_it_is_uncordoned() {
    let all = ["n1", "n2", "n3"].map(serving);
    let calm = decided(&[], &[], &all, Some(9));
    assert_eq!(calm.excluded, names(&[]));
    assert_eq!(calm.guarded, names(&["n1", "n2", "n3"]));
    assert!(!calm.is_open());

    let begun = decided(&["n2"], &[], &all, Some(9));
    assert_eq!(begun.excluded, names(&["n2"]));
    assert_eq!(begun.guarded, names(&["n1", "n2", "n3"]));
    assert!(begun.is_open());

    let moving = [serving("n1"), ending("n2"), serving("n3")];
    // The keys grow meanwhile: a drain that has begun goes on.
    let moving = decided(&["n2"], &["n2"], &moving, Some(19));
    assert_eq!(moving.excluded, names(&["n2"]));
    assert!(moving.held.is_empty());

    let rest = ["n1", "n3"].map(serving);
    let drained = decided(&["n2"], &["n2"], &rest, Some(9));
    assert_eq!(drained.excluded, names(&["n2"]));
    assert_eq!(drained.guarded, names(&["n1", "n3"]));
    assert!(!drained.is_open());
    assert_eq!(decided(&[], &["n2"], &rest, Some(9)).excluded, names(&[]));
}

#[test]
fn keys_without_room_elsewhere_hold_the_drain() {
    let two = ["n1", "n2"].map(serving);
    let fits = decided(&["n1"], &[], &two, Some(8));
    assert_eq!(fits.excluded, names(&["n1"]));
    let full = decided(&["n1"], &[], &two, Some(10));
    assert_eq!(
        (full.excluded, full.held),
        (names(&[]), vec!["n1".to_owned()])
    );
    let message = decided(&["n1"], &[], &two, Some(10))
        .held_message()
        .unwrap();
    assert!(
        message.starts_with("pool pods stay on cordoned nodes n1: 1025Mi of keys do not fit")
            && message.contains("kubectl mooncake drain n1 --lose-keys"),
        "{message}"
    );
    // The last node that stores, and a use that is not known yet.
    let one = [serving("n1")];
    assert_eq!(decided(&["n1"], &[], &one, Some(1)).excess, Some(GIB));
    let unknown = decided(&["n1"], &[], &two, None);
    assert_eq!((unknown.excluded.len(), unknown.excess), (0, None));
    assert!(unknown.held_message().unwrap().contains("not known yet"));
    // Nothing to keep.
    assert_eq!(
        decided(&["n1"], &[], &one, Some(0)).excluded,
        names(&["n1"])
    );
}

#[test]
fn a_drain_with_room_comes_before_one_without() {
    let mut pods = vec![serving("n1"), serving("n2"), serving("n3")];
    pods[0].bytes = 100 * GIB;
    let decision = decided(&["n1", "n2"], &[], &pods, Some(50));
    assert_eq!(decision.excluded, names(&["n2"]));
    assert_eq!(decision.held, ["n1"]);
}

#[test]
fn many_cordoned_nodes_are_drained_within_max_unavailable() {
    let pods: Vec<Stored> = (1..=6).map(|n| serving(&format!("n{n}"))).collect();
    let cordoned = ["n1", "n2", "n3"];
    let one = decided(&cordoned, &[], &pods, Some(1));
    assert_eq!(one.excluded, names(&["n1"]));
    assert_eq!(one.waiting, ["n2", "n3"]);
    assert!(one.waiting_message().unwrap().ends_with(": n2, n3"));
    let two = limited(&cordoned, &[], &pods, Some(1), 2);
    assert_eq!(two.excluded, names(&["n1", "n2"]));
    // A drained node makes room for the next one.
    let next = decided(&cordoned, &["n1"], &pods[1..], Some(1));
    assert_eq!(next.excluded, names(&["n1", "n2"]));
    // A node with more pool pods than that is drained alone.
    let both = [serving("n1"), serving("n1"), serving("n2"), serving("n3")];
    let both = decided(&["n1", "n2"], &[], &both, Some(1));
    assert_eq!(
        (both.excluded, both.waiting),
        (names(&["n1"]), vec!["n2".to_owned()])
    );
}

#[test]
fn a_rollout_and_a_drain_share_max_unavailable() {
    let pods = ["n1", "n2", "n3"].map(serving);
    let cordoned = names(&["n1"]);
    let replaced = names(&["n4"]);
    let (before, used) = (BTreeSet::new(), Some(0));
    let facts = Facts {
        cordoned: &cordoned,
        before: &before,
        pods: &pods,
        limit: 1,
        replaced: &replaced,
        used,
        watermark: 90,
    };
    let decision = decide(&facts);
    assert_eq!(decision.waiting, ["n1"]);
    // The guard stays for the successor.
    assert!(decision.guarded.contains("n4"));
    // The successor exists, but does not serve.
    let successor = Stored {
        serves: false,
        ..serving("n4")
    };
    let pods = ["n1", "n2", "n3"].map(serving);
    let pods = [&pods[..], &[successor]].concat();
    let decision = decide(&Facts {
        pods: &pods,
        ..facts
    });
    assert_eq!(decision.waiting, ["n1"]);
    // It does not wait for itself.
    let decision = decide(&Facts {
        pods: &pods,
        cordoned: &replaced,
        ..facts
    });
    assert_eq!(decision.excluded, names(&["n4"]));
    // A pod that a rollout replaces on a cordoned node gets no successor there.
    let pods = [ending("n1"), serving("n2")];
    let decision = decide(&Facts {
        pods: &pods,
        ..facts
    });
    assert_eq!(decision.excluded, names(&["n1"]));
}

#[test]
fn a_cordoned_node_without_a_pool_pod_gets_none() {
    let pods = ["n1", "n2"].map(serving);
    let decision = decided(&["n3"], &[], &pods, None);
    assert_eq!(decision.excluded, names(&["n3"]));
    assert_eq!(decision.guarded, names(&["n1", "n2"]));
    assert!(!decision.is_open());
}

#[test]
fn no_more_nodes_are_excluded_than_a_template_can_hold() {
    let nodes: Vec<String> = (0..MOST_EXCLUDED + 5).map(|n| format!("n{n:04}")).collect();
    let cordoned: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let pods: Vec<Stored> = cordoned.iter().map(|node| serving(node)).collect();
    let decision = limited(&cordoned, &[], &pods, Some(0), usize::MAX);
    assert_eq!(decision.excluded.len(), MOST_EXCLUDED);
    assert_eq!(decision.waiting.len(), 5);
    let free = limited(&cordoned, &[], &[], Some(0), 1);
    assert_eq!(free.excluded.len(), MOST_EXCLUDED);
}

#[test]
fn a_pod_that_the_kubelet_does_not_end_is_not_waited_for() {
    let status = PoolPodStatus {
        pod: "p".to_owned(),
        node: "n1".to_owned(),
        service: PoolService::NotServing {
            reason: crds::Reason::Draining,
            message: String::new(),
        },
        metadata_failure: None,
    };
    let pod: Pod = serde_yaml_ng::from_str(
        "{metadata: {name: p, deletionTimestamp: '2026-01-01T00:10:00Z'}, spec: {nodeName: n1, containers: []}}",
    )
    .unwrap();
    let at = |time: &str| stored(&pod, &status, 7, time.parse().unwrap());
    let moving = at("2026-01-01T00:10:59Z").unwrap();
    assert_eq!((moving.bytes, moving.serves, moving.ends), (7, false, true));
    assert_eq!(at("2026-01-01T00:11:01Z"), None);
    let former = |time: &str| former(&pod, 7, time.parse().unwrap());
    assert_eq!(former("2026-01-01T00:10:59Z"), Some(moving));
    assert_eq!(former("2026-01-01T00:11:01Z"), None);
    let mut pending = pod.clone();
    pending.spec.as_mut().unwrap().node_name = None;
    assert_eq!(
        stored(
            &pending,
            &status,
            7,
            "2026-01-01T00:00:00Z".parse().unwrap()
        ),
        None
    );
}

#[test]
fn the_use_counts_when_the_master_has_mounted_the_pool_pods() {
    let pods = ["n1", "n2"].map(serving);
    let bytes = |allocated, capacity| Bytes {
        allocated,
        capacity,
    };
    assert_eq!(used(bytes(3, 20 * GIB), &pods), Some(3));
    assert_eq!(used(bytes(0, 10 * GIB), &pods), None);
}

#[test]
fn a_decision_outlasts_the_lag_of_the_cache() {
    let (recent, now) = (Recent::default(), Instant::now());
    recent.note("c1", &names(&["n1"]), now);
    assert_eq!(recent.of("c1", now), names(&["n1"]));
    assert_eq!(recent.of("c2", now), names(&[]));
    assert_eq!(recent.of("c1", now + CACHE_LAG), names(&[]));
}

#[test]
fn a_replaced_pool_pod_that_its_kubelet_does_not_end_holds_no_other_drain() {
    let rollout: RolloutStatus = serde_yaml_ng::from_str(
        "{revision: a, replaced: [{pool: default, node: n1, uid: u1, since: '2026-01-01T00:00:00Z'}]}",
    )
    .unwrap();
    let ends = "[{metadata: {name: a, uid: u1, deletionTimestamp: '2026-01-01T00:10:00Z'}}]";
    let ends: Vec<Pod> = serde_yaml_ng::from_str(ends).unwrap();
    let ends: Vec<_> = ends.into_iter().map(Arc::new).collect();
    let decided = |pods: &[Arc<Pod>], now: &str| {
        let replaced = replaced(Some(&rollout), pods, now.parse().unwrap());
        let facts = Facts {
            cordoned: &names(&["n2"]),
            before: &BTreeSet::new(),
            pods: &["n2", "n3"].map(serving),
            limit: 1,
            replaced: &replaced,
            used: Some(0),
            watermark: 90,
        };
        decide(&facts).waiting
    };
    assert_eq!(decided(&ends, "2026-01-01T00:11:00Z"), ["n2"]);
    assert_eq!(decided(&ends, "2026-01-01T00:11:01Z"), [""; 0]);
    // Its successor is still to come.
    assert_eq!(decided(&[], "2026-01-01T00:11:01Z"), ["n2"]);
}
