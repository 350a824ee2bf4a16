//! Rollouts over nodes of which some are broken before, during and by the rollout.

use crds::update::MaxUnavailable;

use super::*;

const SERVES: Option<bool> = Some(true);
const BROKEN: Option<bool> = Some(false);
const UNKNOWN: Option<bool> = None;
const DEADLINE: u32 = 100;
const DRAIN: u32 = 5;

fn place(node: &str) -> PoolPlace {
    PoolPlace {
        pool: "default".to_owned(),
        node: node.to_owned(),
    }
}

/// A DaemonSet controller and its nodes: a deleted pod is gone at once and comes back current.
struct Fleet {
    pods: Vec<Pod>,
    desired: usize,
    missing: Option<usize>,
    update: Update,
    revision: &'static str,
    second: i64,
    /// Places on nodes that are gone.
    given_up: BTreeSet<PoolPlace>,
    record: Option<RolloutStatus>,
}

impl Fleet {
    /// One outdated pod on each node `n0`, `n1`, …
    fn outdated(serving: &[Option<bool>]) -> Self {
        let pods = serving.iter().enumerate();
        let pods = pods.map(|(number, serving)| Pod {
            name: format!("p{number}"),
            uid: format!("old-{number}"),
            place: place(&format!("n{number}")),
            outdated: true,
            leaving: false,
            serving: *serving,
        });
        Self {
            pods: pods.collect(),
            desired: serving.len(),
            missing: Some(0),
            update: Update {
                max_unavailable: MaxUnavailable::default(),
                progress_deadline_seconds: DEADLINE,
                ..Update::default()
            },
            revision: "second",
            second: 0,
            given_up: BTreeSet::new(),
            record: None,
        }
    }

    fn at_most(mut self, limit: MaxUnavailable) -> Self {
        self.update.max_unavailable = limit;
        self
    }

    /// Decides, and keeps the record as the API server does.
    fn step(&mut self) -> Step {
        let drain_seconds = BTreeMap::from([("default".to_owned(), DRAIN)]);
        let facts = Facts {
            revision: self.revision,
            pods: &self.pods,
            desired: self.desired,
            missing: self.missing,
            update: &self.update,
            drain_seconds: &drain_seconds,
            given_up: &self.given_up,
            now: Timestamp::from_second(self.second).unwrap(),
        };
        let decision = next(&facts, self.record.as_ref());
        self.record = decision.record;
        decision.step
    }

    /// The nodes whose pods are deleted now; they are gone afterwards.
    fn replaced(&mut self) -> Vec<String> {
        let Step::Replace { pods, .. } = self.step() else {
            return Vec::new();
        };
        self.pods.retain(|pod| !pods.contains(pod));
        self.missing = self.missing.map(|missing| missing + pods.len());
        pods.into_iter().map(|pod| pod.place.node).collect()
    }

    /// The successor of the pod of that node.
    fn comes_back(&mut self, node: &str, serving: Option<bool>) {
        self.missing = self.missing.map(|missing| missing.saturating_sub(1));
        self.pods.push(Pod {
            name: format!("new-{node}"),
            uid: format!("new-{node}"),
            place: place(node),
            outdated: false,
            leaving: false,
            serving,
        });
    }

    fn set(&mut self, node: &str, serving: Option<bool>) {
        let mut pods = self.pods.iter_mut();
        pods.find(|pod| pod.place.node == node).unwrap().serving = serving;
    }

    /// The node, with its pod if it has one, is removed from the Kubernetes cluster.
    fn loses(&mut self, node: &str) {
        let count = self.pods.len();
        self.pods.retain(|pod| pod.place.node != node);
        if self.pods.len() == count {
            self.missing = self.missing.map(|missing| missing.saturating_sub(1));
        }
        self.desired -= 1;
        self.given_up.insert(place(node));
    }

    /// Replaces until nothing happens; every successor serves. The nodes of each round.
    fn rolls(&mut self) -> Vec<Vec<String>> {
        let mut rounds = Vec::new();
        loop {
            let nodes = self.replaced();
            if nodes.is_empty() {
                return rounds;
            }
            for node in &nodes {
                self.comes_back(node, SERVES);
            }
            rounds.push(nodes);
        }
    }
}

#[test]
fn pods_are_replaced_one_by_one_in_the_order_of_their_nodes() {
    let mut fleet = Fleet::outdated(&[SERVES; 3]);
    assert_eq!(fleet.rolls(), [["n0"], ["n1"], ["n2"]]);
    assert_eq!((fleet.step(), fleet.record), (Step::Done, None));
}

#[test]
fn as_many_as_allowed_are_replaced_at_a_time() {
    for (limit, count, first) in [
        (MaxUnavailable::Number(2), 5, 2),
        (MaxUnavailable::Percent(50), 5, 2),
        (MaxUnavailable::Percent(10), 5, 1),
        (MaxUnavailable::Percent(100), 5, 5),
        (MaxUnavailable::Number(9), 5, 5),
    ] {
        let mut fleet = Fleet::outdated(&vec![SERVES; count]).at_most(limit);
        assert_eq!(fleet.replaced().len(), first, "{limit:?}");
        assert!(fleet.replaced().is_empty(), "{limit:?}: none is back");
    }
}

#[test]
fn the_next_waits_until_the_last_one_serves_even_if_counts_lag() {
    let mut fleet = Fleet::outdated(&[SERVES; 2]);
    assert_eq!(fleet.replaced(), ["n0"]);
    // The DaemonSet's status does not show the deletion yet.
    fleet.missing = Some(0);
    assert!(fleet.replaced().is_empty(), "its successor does not exist");
    fleet.comes_back("n0", BROKEN);
    assert!(fleet.replaced().is_empty(), "its successor does not serve");
    fleet.set("n0", SERVES);
    assert_eq!(fleet.replaced(), ["n1"]);
}

#[test]
fn what_was_broken_before_stops_no_rollout() {
    let mut fleet = Fleet::outdated(&[UNKNOWN, SERVES, BROKEN, SERVES]);
    assert_eq!(fleet.replaced(), ["n2"], "it holds no readable data");
    fleet.comes_back("n2", BROKEN);
    assert_eq!(fleet.replaced(), ["n1"]);
    fleet.comes_back("n1", SERVES);
    assert_eq!(fleet.replaced(), ["n3"]);
    fleet.comes_back("n3", SERVES);
    let step = fleet.step();
    assert!(
        matches!(&step, Step::Left { outdated: 1, on } if on == "n0"),
        "{step:?}"
    );
    fleet.set("n0", SERVES);
    assert_eq!(fleet.replaced(), ["n0"]);
}

#[test]
fn a_tolerated_pod_that_served_once_counts_again() {
    let mut fleet = Fleet::outdated(&[UNKNOWN, SERVES, SERVES]);
    assert_eq!(fleet.replaced(), ["n1"]);
    fleet.set("n0", SERVES);
    fleet.step();
    fleet.set("n0", UNKNOWN);
    fleet.comes_back("n1", SERVES);
    assert!(fleet.replaced().is_empty());
}

#[test]
fn pods_that_never_existed_stop_no_rollout() {
    let mut fleet = Fleet::outdated(&[SERVES; 2]);
    (fleet.desired, fleet.missing) = (3, Some(1));
    assert_eq!(fleet.rolls(), [["n0"], ["n1"]]);
    let mut fleet = Fleet::outdated(&[SERVES; 2]);
    assert_eq!(fleet.replaced(), ["n0"]);
    fleet.comes_back("n0", SERVES);
    fleet.missing = Some(1);
    assert!(fleet.replaced().is_empty(), "missing since the rollout");
}

#[test]
fn a_restarted_operator_does_not_tolerate_the_victims_of_its_rollout() {
    let mut fleet = Fleet::outdated(&[SERVES; 3]);
    assert_eq!(fleet.replaced(), ["n0"]);
    fleet.comes_back("n0", BROKEN);
    // All that the next operator has is the record.
    assert!(fleet.replaced().is_empty());
    assert_eq!(fleet.record.as_ref().unwrap().tolerated, []);
    // Without it, it would go on.
    fleet.record = None;
    assert_eq!(fleet.replaced(), ["n1"]);
}

#[test]
fn a_deletion_that_was_recorded_but_not_made_is_made_up_for() {
    let mut fleet = Fleet::outdated(&[SERVES; 3]);
    fleet.step();
    assert_eq!(fleet.replaced(), ["n0"]);
    assert_eq!(fleet.record.as_ref().unwrap().replaced.len(), 1);
}

#[test]
fn a_rollout_stops_when_a_replaced_pod_does_not_serve_in_time() {
    let mut fleet = Fleet::outdated(&[SERVES; 3]).at_most(MaxUnavailable::Number(2));
    assert_eq!(fleet.replaced(), ["n0", "n1"]);
    fleet.comes_back("n0", SERVES);
    fleet.comes_back("n1", BROKEN);
    assert_eq!(fleet.replaced(), ["n2"]);
    fleet.second = i64::from(DEADLINE + DRAIN);
    assert!(fleet.step().is_rolling(), "just in time");
    fleet.second += 1;
    let step = fleet.step();
    assert!(
        matches!(&step, Step::Stopped { place, .. } if place.node == "n1"),
        "{step:?}"
    );
    fleet.comes_back("n2", SERVES);
    fleet.set("n1", SERVES);
    assert_eq!(fleet.step(), Step::Done, "it served after all");
}

#[test]
fn another_spec_continues_after_a_stop_but_does_not_tolerate_pods_in_progress() {
    let stopped = |second| {
        let mut fleet = Fleet::outdated(&[SERVES; 3]);
        assert_eq!(fleet.replaced(), ["n0"]);
        fleet.comes_back("n0", BROKEN);
        fleet.second = second;
        for pod in &mut fleet.pods {
            pod.outdated = true;
        }
        fleet.revision = "third";
        fleet
    };
    let mut early = stopped(1);
    assert_eq!(early.replaced(), ["n0"], "it may serve with the new spec");
    early.comes_back("n0", BROKEN);
    assert!(early.replaced().is_empty(), "n0 still has its time");
    assert_eq!(early.record.as_ref().unwrap().tolerated, []);
    let mut late = stopped(i64::from(DEADLINE + DRAIN) + 1);
    assert_eq!(late.replaced(), ["n0"]);
    late.comes_back("n0", BROKEN);
    assert_eq!(late.replaced(), ["n1"]);
}

#[test]
fn a_removed_node_is_not_waited_for() {
    let mut fleet = Fleet::outdated(&[SERVES; 2]);
    assert_eq!(fleet.replaced(), ["n0"]);
    (fleet.desired, fleet.missing) = (1, Some(0));
    assert!(fleet.replaced().is_empty(), "the counts may lag");
    fleet.second = 66;
    assert_eq!(fleet.replaced(), ["n1"]);
}

#[test]
fn a_broken_node_that_goes_away_stops_no_rollout() {
    let begun = || {
        let mut fleet = Fleet::outdated(&[UNKNOWN, SERVES, SERVES]);
        assert_eq!(fleet.replaced(), ["n1"]);
        fleet.comes_back("n1", SERVES);
        fleet
    };
    let mut removed = begun();
    removed.loses("n0");
    assert_eq!(removed.rolls(), [["n2"]]);
    // By a taint: only the counts show that the DaemonSet wants no pod there.
    let mut tainted = begun();
    tainted.loses("n0");
    tainted.given_up.clear();
    assert_eq!(tainted.rolls(), [["n2"]]);
    // Drained, while its kubelet does not respond.
    let mut drained = begun();
    drained.pods[0].leaving = true;
    drained.given_up.insert(place("n0"));
    assert_eq!(drained.rolls(), [["n2"]]);
    // It comes back as broken as before.
    let mut back = begun();
    back.loses("n0");
    back.step();
    back.given_up.clear();
    back.desired += 1;
    back.comes_back("n0", BROKEN);
    assert_eq!(back.replaced(), ["n2"]);
}

#[test]
fn a_removed_node_is_not_late_while_a_pod_is_missing_elsewhere() {
    let mut fleet = Fleet::outdated(&[SERVES; 3]);
    (fleet.desired, fleet.missing) = (4, Some(1));
    assert_eq!(fleet.replaced(), ["n0"]);
    fleet.loses("n0");
    assert_eq!(fleet.missing, Some(1), "by a quota");
    assert_eq!(fleet.replaced(), ["n1"]);
    fleet.comes_back("n1", SERVES);
    fleet.second = i64::from(DEADLINE + DRAIN) + 1;
    assert_eq!(fleet.replaced(), ["n2"]);
}

#[test]
fn idle_pods_are_not_all_replaced_at_once() {
    let mut fleet = Fleet::outdated(&[BROKEN; 4]).at_most(MaxUnavailable::Number(2));
    assert_eq!(fleet.replaced().len(), 2);
    assert!(fleet.replaced().is_empty());
}

#[test]
fn nothing_is_replaced_before_the_daemon_set_knows_the_spec() {
    let mut fleet = Fleet::outdated(&[SERVES; 2]);
    fleet.missing = None;
    assert!(fleet.step().is_rolling() && fleet.replaced().is_empty());
    assert!(fleet.record.unwrap().replaced.is_empty());
}
