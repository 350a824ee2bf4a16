//! The fix of hugepages on recorded machines.

use std::collections::BTreeMap;

use crds::node::Headroom;
use crds::policy::{FixRule, PolicyInForce};

use super::*;
use crate::fixes::plan::tests::change;
use crate::fixes::plan::{self, plan};
use host::{Host, Snapshot};

const GIB: u64 = 1 << 30;
const SMALL: u64 = 2 << 20;

/// Two NUMA nodes of 504 GiB, of which 378 are free, and no hugepages.
fn two() -> Facts {
    let text = include_str!("../../../../host/machines/roce-bond.txt");
    Host::parse(text).unwrap().snapshot().facts
}

/// One NUMA node of 24 GiB, of which 8 are free and some hold files.
fn one() -> Facts {
    let text = include_str!("../../../../host/machines/vm-without-devices.txt");
    Host::parse(text).unwrap().snapshot().facts
}

/// Sets the small pages of each NUMA node: all of them, and the free ones.
fn set_pages(facts: &mut Facts, counts: &[(u64, u64)]) {
    let small = |all: &mut Vec<Hugepages>, total: u64, free: u64| {
        let pages = all.iter_mut().find(|pages| pages.page_size == SMALL);
        let pages = pages.unwrap();
        (pages.total, pages.free) = (Some(total), Some(free));
    };
    for (node, (total, free)) in facts.numa_nodes.iter_mut().zip(counts) {
        small(&mut node.hugepages, *total, *free);
    }
    let sum = |of: fn(&(u64, u64)) -> u64| counts.iter().map(of).sum();
    let (total, free) = (sum(|(total, _)| *total), sum(|(_, free)| *free));
    small(&mut facts.hugepages, total, free);
}

fn policy(mode: FixMode, hugepages: &str) -> PolicyInForce {
    PolicyInForce {
        name: "p".to_owned(),
        fixes: vec![FixRule { id: ID, mode }],
        hugepages: serde_json::from_str(hugepages).unwrap(),
        ..PolicyInForce::default()
    }
}

const FOUR: &str = r#"[{"pageSize": "2Mi", "perNumaNode": "4Gi"}]"#;
const BOTH: &str = r#"[{"pageSize": "1Gi", "perNumaNode": "2Gi"},
                       {"pageSize": "2Mi", "perNumaNode": "4Gi"}]"#;

/// GiB that the pods leave, and small pages that the kubelet counts.
fn room(gibibytes: u64, pages: u64) -> Headroom {
    let hugepages = [(SMALL, pages), (GIB, 0)].map(|(size, pages)| crds::inventory::Hugepages {
        page_size: ByteSize(size),
        pages,
    });
    Headroom {
        memory: Some(ByteSize(gibibytes * GIB)),
        hugepages: hugepages.into(),
    }
}

fn next_step(
    facts: &Facts,
    policy: Option<&PolicyInForce>,
    room: Option<&Headroom>,
    done: Option<&Change>,
) -> Option<Step> {
    let request = FixRequest {
        node: "n1",
        policy,
        room,
    };
    let done: BTreeMap<FixId, Change> = done
        .into_iter()
        .map(|done| (done.id, done.clone()))
        .collect();
    let snapshot = Snapshot {
        facts: facts.clone(),
        ..Snapshot::default()
    };
    let steps = plan(&snapshot, &request, &done);
    assert!(steps.len() < 2, "{steps:?}");
    steps.into_iter().next()
}

fn reported(step: Option<Step>) -> (Reason, String) {
    match step {
        Some(Step::Report {
            reason, message, ..
        }) => (reason, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_dry_run_proposes_what_apply_changes_and_surplus_pages_stay() {
    let mut facts = two();
    let enough = room(20, 0);
    let of = |facts: &Facts, mode, amounts| {
        let policy = policy(mode, amounts);
        next_step(facts, Some(&policy), Some(&enough), None)
    };
    let both = change(
        ID,
        "2Mi: node0 0, node1 0; 1Gi: node0 0, node1 0",
        "2Mi: node0 2048, node1 2048; 1Gi: node0 2, node1 2",
    );
    assert_eq!(
        of(&facts, FixMode::DryRun, BOTH),
        Some(Step::Propose(both.clone()))
    );
    assert_eq!(of(&facts, FixMode::Apply, BOTH), Some(Step::Apply(both)));
    assert_eq!(next_step(&facts, None, Some(&enough), None), None);

    set_pages(&mut facts, &[(4096, 4096), (7, 7)]);
    let more = change(
        ID,
        "2Mi: node0 4096, node1 7",
        "2Mi: node0 4096, node1 2048",
    );
    assert_eq!(of(&facts, FixMode::Apply, FOUR), Some(Step::Apply(more)));
    facts.numa_nodes[1].processors = false;
    assert_eq!(
        of(&facts, FixMode::DryRun, FOUR),
        None,
        "a GPU's memory is not used"
    );
    facts.numa_nodes.clear();
    set_pages(&mut facts, &[(7, 7)]);
    let plain = change(ID, "2Mi: 7", "2Mi: 2048");
    assert_eq!(of(&facts, FixMode::Apply, FOUR), Some(Step::Apply(plain)));
}

#[test]
fn nothing_is_reserved_before_pod_requests_are_known_and_never_a_part() {
    let facts = two();
    let apply = policy(FixMode::Apply, FOUR);
    let report = |room: Option<&Headroom>| reported(next_step(&facts, Some(&apply), room, None));
    let (reason, message) = report(None);
    assert_eq!(reason, Reason::PodRequestsUnknown, "{message}");
    let (reason, message) = report(Some(&room(4, 0)));
    assert_eq!(reason, Reason::FixRefused);
    assert_eq!(
        message,
        "its pods leave 4Gi of memory, of which 512Mi stay free: node0 1792Mi of 4Gi, node1 1792Mi of 4Gi"
    );
    assert!(matches!(
        next_step(&facts, Some(&apply), Some(&room(9, 0)), None),
        Some(Step::Apply(_))
    ));
    // The kubelet still counts pages that were reserved since it started as memory for pods.
    let mut taken = facts.clone();
    set_pages(&mut taken, &[(1024, 0), (0, 0)]);
    let (reason, message) = reported(next_step(&taken, Some(&apply), Some(&room(8, 0)), None));
    assert_eq!(reason, Reason::FixRefused);
    assert!(message.starts_with("its pods leave 6Gi"), "{message}");
    assert!(matches!(
        next_step(&taken, Some(&apply), Some(&room(8, 1024)), None),
        Some(Step::Apply(_))
    ));
}

#[test]
fn a_numa_node_keeps_spare_memory_and_the_message_names_what_is_available() {
    let mut facts = one();
    let apply = |amount: &str| {
        let amounts = format!(r#"[{{"pageSize": "2Mi", "perNumaNode": "{amount}"}}]"#);
        policy(FixMode::Apply, &amounts)
    };
    let plenty = room(900, 0);
    facts.numa_nodes[0].available = Some(8 * GIB);
    let eight = apply("8Gi");
    let (reason, message) = reported(next_step(&facts, Some(&eight), Some(&plenty), None));
    assert_eq!(reason, Reason::FixRefused);
    assert!(
        message.contains("node0 ") && message.ends_with(" of 8Gi"),
        "{message}"
    );
    facts.numa_nodes[0].available = Some(8 * GIB - 4096);
    let (_, next) = reported(next_step(&facts, Some(&eight), Some(&plenty), None));
    assert_eq!(message, next, "the message does not change");
    let seven = apply("7Gi");
    let step = next_step(&facts, Some(&seven), Some(&plenty), None);
    assert!(matches!(step, Some(Step::Apply(_))), "{step:?}");
}

#[test]
fn an_unsupported_page_size_is_refused_and_unreadable_counts_are_not_changed() {
    let mut facts = two();
    let apply = policy(FixMode::Apply, BOTH);
    facts.numa_nodes[1]
        .hugepages
        .retain(|pages| pages.page_size == SMALL);
    let (reason, message) = reported(next_step(&facts, Some(&apply), Some(&room(90, 0)), None));
    assert_eq!(reason, Reason::FixRefused);
    assert!(
        message.starts_with("node1 has no hugepages of 1Gi"),
        "{message}"
    );
    facts.numa_nodes[0].hugepages[0].total = None;
    assert_eq!(
        next_step(&facts, Some(&apply), Some(&room(90, 0)), None),
        None
    );
}

#[test]
fn an_applied_change_takes_effect_once_the_kubelet_counts_the_pages() {
    let mut facts = two();
    set_pages(&mut facts, &[(2048, 2048), (2048, 2048)]);
    let apply = policy(FixMode::Apply, FOUR);
    let ours = change(ID, "2Mi: node0 0, node1 0", "2Mi: node0 2048, node1 2048");
    let at = |pages: u64| next_step(&facts, Some(&apply), Some(&room(1, pages)), Some(&ours));
    let (reason, message) = reported(at(0));
    assert_eq!(reason, Reason::KubeletRestartRequired);
    assert_eq!(
        message,
        "the pages are reserved, but the kubelet counts 0 of 4096 of 2Mi: run systemctl restart kubelet on n1"
    );
    assert_eq!(at(4096), Some(Step::Applied(ours.clone())));
    let request = FixRequest {
        node: "n1",
        policy: Some(&apply),
        room: Some(&room(1, 0)),
    };
    let (reason, _) = reported(Some(plan::after_apply(ours.clone(), &request)));
    assert_eq!(
        reason,
        Reason::KubeletRestartRequired,
        "right after the change"
    );
    // Pages that somebody else reserved need a kubelet that counts them too.
    let (reason, _) = reported(next_step(&facts, Some(&apply), Some(&room(1, 0)), None));
    assert_eq!(reason, Reason::KubeletRestartRequired);
    assert_eq!(
        next_step(&facts, Some(&apply), Some(&room(1, 4096)), None),
        None
    );
    set_pages(&mut facts, &[(2049, 0), (2048, 0)]);
    assert_eq!(
        next_step(&facts, Some(&apply), Some(&room(1, 0)), Some(&ours)),
        Some(Step::Forget(ID)),
        "somebody raised it"
    );
}

#[test]
fn a_revert_releases_free_pages_only_and_none_of_others() {
    let ours = change(ID, "2Mi: node0 100, node1 0", "2Mi: node0 2048, node1 2048");
    let mut facts = two();
    let mut at = |counts: &[(u64, u64)], reserved: u64| {
        set_pages(&mut facts, counts);
        facts.hugepages[0].reserved = Some(reserved);
        next_step(&facts, None, None, Some(&ours))
    };
    let undo = |to: &str| Some(Step::Revert(change(ID, &ours.after, to)));
    assert_eq!(at(&[(2048, 2048), (2048, 2048)], 0), undo(&ours.before));
    assert_eq!(
        at(&[(2048, 48), (2048, 2000)], 0),
        undo("2Mi: node0 2000, node1 48")
    );
    assert_eq!(
        at(&[(2048, 48), (2048, 2000)], 1999),
        undo("2Mi: node0 2000, node1 2047"),
        "reserved pages are in use"
    );
    let (reason, message) = reported(at(&[(2048, 0), (2048, 0)], 0));
    assert_eq!(reason, Reason::HugepagesInUse, "{message}");
    let node1 = change(ID, "2Mi: node1 2048", "2Mi: node1 0");
    assert_eq!(
        at(&[(3000, 3000), (2048, 2048)], 0),
        Some(Step::Revert(node1))
    );
    assert_eq!(at(&[(3000, 3000), (0, 0)], 0), Some(Step::Forget(ID)));
    let dry = policy(FixMode::DryRun, FOUR);
    let step = next_step(&facts, Some(&dry), None, Some(&ours));
    assert_eq!(step, Some(Step::Forget(ID)));
}

#[test]
fn the_rest_of_a_partial_revert_stays_in_the_journal_and_is_reverted_later() {
    let ours = change(ID, "2Mi: node0 100, node1 0", "2Mi: node0 2048, node1 2048");
    let half = change(ID, &ours.after, "2Mi: node0 100, node1 48");
    let (rest, step) = plan::remaining(&ours, &half).unwrap();
    assert_eq!(rest, change(ID, "2Mi: node1 0", "2Mi: node1 48"));
    assert_eq!(reported(Some(step)).0, Reason::HugepagesInUse);
    let whole = change(ID, &ours.after, &ours.before);
    assert_eq!(plan::remaining(&ours, &whole), None);
    let mut facts = two();
    set_pages(&mut facts, &[(100, 0), (48, 48)]);
    assert_eq!(
        next_step(&facts, None, None, Some(&rest)),
        Some(Step::Revert(change(ID, "2Mi: node1 48", "2Mi: node1 0")))
    );
}

#[test]
fn the_journal_keeps_the_count_from_before_the_first_change_of_each_place() {
    let first = change(ID, "2Mi: node0 100, node1 0", "2Mi: node0 2048, node1 2048");
    let kept =
        |before: &str, after: &str| plan::journal_entry(Some(&first), &change(ID, before, after));
    let more = "2Mi: node0 4096, node1 4096";
    assert_eq!(
        kept("2Mi: node0 2048, node1 1000", more),
        change(ID, "2Mi: node0 100, node1 0", more),
        "the change of node1 was interrupted"
    );
    assert_eq!(
        kept("2Mi: node0 3000, node1 0", more),
        change(ID, "2Mi: node0 3000, node1 0", more),
        "node0 was raised by somebody else"
    );
    assert_eq!(
        kept("1Gi: node0 0", "1Gi: node0 2"),
        change(
            ID,
            "2Mi: node0 100, node1 0; 1Gi: node0 0",
            "2Mi: node0 2048, node1 2048; 1Gi: node0 2"
        ),
        "the small pages are still the agent's"
    );
}
