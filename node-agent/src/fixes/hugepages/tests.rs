//! Hugepages on recorded machines.

use std::collections::BTreeMap;

use crds::node::Room;
use crds::policy::{FixRule, PolicyInForce};

use super::*;
use crate::fixes::plan::tests::change;
use crate::fixes::plan::{self, plan};
use crate::host::Host;
use crate::host::recording::Recording;

const GIB: u64 = 1 << 30;
const SMALL: u64 = 2 << 20;

/// Two NUMA nodes of 504 GiB, of which 378 are free, and no hugepages.
fn two() -> Facts {
    let text = include_str!("../../../tests/machines/roce-bond.txt");
    Host::recorded(Recording::parse(text).unwrap()).facts()
}

/// One NUMA node of 24 GiB, of which 8 are free and some hold files.
fn one() -> Facts {
    let text = include_str!("../../../tests/machines/vm-without-devices.txt");
    Host::recorded(Recording::parse(text).unwrap()).facts()
}

/// Small pages that stand on a NUMA node, and those of them that nobody uses.
fn stand(facts: &mut Facts, counts: &[(u64, u64)]) {
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

/// So many GiB are left by pods, and so many small pages are counted by the kubelet.
fn room(gibibytes: u64, pages: u64) -> Room {
    let hugepages = [(SMALL, pages), (GIB, 0)].map(|(size, pages)| crds::inventory::Hugepages {
        page_size: ByteSize(size),
        pages,
    });
    Room {
        memory: Some(ByteSize(gibibytes * GIB)),
        hugepages: hugepages.into(),
    }
}

fn look(
    facts: &Facts,
    policy: Option<&PolicyInForce>,
    room: Option<&Room>,
    done: Option<&Change>,
) -> Option<Step> {
    let asked = Asked {
        node: "n1",
        policy,
        room,
    };
    let done: BTreeMap<FixId, Change> = done
        .into_iter()
        .map(|done| (done.id, done.clone()))
        .collect();
    let steps = plan(facts, &asked, &done);
    assert!(steps.len() < 2, "{steps:?}");
    steps.into_iter().next()
}

fn said(step: Option<Step>) -> (Reason, String) {
    match step {
        Some(Step::Say { reason, words, .. }) => (reason, words),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_shown_is_what_is_done_and_more_than_is_asked_for_stays() {
    let mut facts = two();
    let enough = room(20, 0);
    let of = |facts: &Facts, mode, amounts| {
        let policy = policy(mode, amounts);
        look(facts, Some(&policy), Some(&enough), None)
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
    assert_eq!(of(&facts, FixMode::Apply, BOTH), Some(Step::Do(both)));
    assert_eq!(look(&facts, None, Some(&enough), None), None);

    stand(&mut facts, &[(4096, 4096), (7, 7)]);
    let more = change(
        ID,
        "2Mi: node0 4096, node1 7",
        "2Mi: node0 4096, node1 2048",
    );
    assert_eq!(of(&facts, FixMode::Apply, FOUR), Some(Step::Do(more)));
    facts.numa_nodes[1].processors = false;
    assert_eq!(
        of(&facts, FixMode::DryRun, FOUR),
        None,
        "a GPU's memory is let be"
    );
    facts.numa_nodes.clear();
    stand(&mut facts, &[(7, 7)]);
    let plain = change(ID, "2Mi: 7", "2Mi: 2048");
    assert_eq!(of(&facts, FixMode::Apply, FOUR), Some(Step::Do(plain)));
}

#[test]
fn nothing_is_taken_before_it_is_known_what_pods_leave_and_never_by_half() {
    let facts = two();
    let apply = policy(FixMode::Apply, FOUR);
    let told = |room: Option<&Room>| said(look(&facts, Some(&apply), room, None));
    let (reason, words) = told(None);
    assert_eq!(reason, Reason::PodRequestsUnknown, "{words}");
    let (reason, words) = told(Some(&room(4, 0)));
    assert_eq!(reason, Reason::FixRefused);
    assert_eq!(
        words,
        "its pods leave 4Gi of its memory, 512Mi of it stay free: node0 1792Mi of 4Gi, node1 1792Mi of 4Gi"
    );
    assert!(matches!(
        look(&facts, Some(&apply), Some(&room(9, 0)), None),
        Some(Step::Do(_))
    ));
    // The kubelet still offers to pods what was set aside since it started.
    let mut taken = facts.clone();
    stand(&mut taken, &[(1024, 0), (0, 0)]);
    let (reason, words) = said(look(&taken, Some(&apply), Some(&room(8, 0)), None));
    assert_eq!(reason, Reason::FixRefused);
    assert!(words.starts_with("its pods leave 6Gi"), "{words}");
    assert!(matches!(
        look(&taken, Some(&apply), Some(&room(8, 1024)), None),
        Some(Step::Do(_))
    ));
}

#[test]
fn a_numa_node_keeps_a_part_and_says_what_it_has() {
    let mut facts = one();
    let apply = |amount: &str| {
        let amounts = format!(r#"[{{"pageSize": "2Mi", "perNumaNode": "{amount}"}}]"#);
        policy(FixMode::Apply, &amounts)
    };
    let plenty = room(900, 0);
    facts.numa_nodes[0].available = Some(8 * GIB);
    let eight = apply("8Gi");
    let (reason, words) = said(look(&facts, Some(&eight), Some(&plenty), None));
    assert_eq!(reason, Reason::FixRefused);
    assert!(
        words.contains("node0 ") && words.ends_with(" of 8Gi"),
        "{words}"
    );
    facts.numa_nodes[0].available = Some(8 * GIB - 4096);
    let (_, next) = said(look(&facts, Some(&eight), Some(&plenty), None));
    assert_eq!(words, next, "words hold still");
    let seven = apply("7Gi");
    let step = look(&facts, Some(&seven), Some(&plenty), None);
    assert!(matches!(step, Some(Step::Do(_))), "{step:?}");
}

#[test]
fn s26_what_the_kernel_has_no_pages_of_is_refused_and_what_cannot_be_read_is_left_alone() {
    let mut facts = two();
    let apply = policy(FixMode::Apply, BOTH);
    facts.numa_nodes[1]
        .hugepages
        .retain(|pages| pages.page_size == SMALL);
    let (reason, words) = said(look(&facts, Some(&apply), Some(&room(90, 0)), None));
    assert_eq!(reason, Reason::FixRefused);
    assert!(
        words.starts_with("node1 has no hugepages of 1Gi"),
        "{words}"
    );
    facts.numa_nodes[0].hugepages[0].total = None;
    assert_eq!(look(&facts, Some(&apply), Some(&room(90, 0)), None), None);
}

#[test]
fn s26_what_was_done_is_in_order_when_the_kubelet_counts_it() {
    let mut facts = two();
    stand(&mut facts, &[(2048, 2048), (2048, 2048)]);
    let apply = policy(FixMode::Apply, FOUR);
    let ours = change(ID, "2Mi: node0 0, node1 0", "2Mi: node0 2048, node1 2048");
    let at = |pages: u64| look(&facts, Some(&apply), Some(&room(1, pages)), Some(&ours));
    let (reason, words) = said(at(0));
    assert_eq!(reason, Reason::KubeletRestartRequired);
    assert_eq!(
        words,
        "they stand, and the kubelet counts 0 of 4096 of 2Mi: systemctl restart kubelet on n1"
    );
    assert_eq!(at(4096), Some(Step::Stands(ours.clone())));
    let asked = Asked {
        node: "n1",
        policy: Some(&apply),
        room: Some(&room(1, 0)),
    };
    let (reason, _) = said(Some(plan::standing(ours.clone(), &asked)));
    assert_eq!(
        reason,
        Reason::KubeletRestartRequired,
        "as soon as it is done"
    );
    // Another's pages are no less in want of a kubelet that counts them.
    let (reason, _) = said(look(&facts, Some(&apply), Some(&room(1, 0)), None));
    assert_eq!(reason, Reason::KubeletRestartRequired);
    assert_eq!(look(&facts, Some(&apply), Some(&room(1, 4096)), None), None);
    stand(&mut facts, &[(2049, 0), (2048, 0)]);
    assert_eq!(
        look(&facts, Some(&apply), Some(&room(1, 0)), Some(&ours)),
        Some(Step::Forget(ID)),
        "somebody has raised it"
    );
}

#[test]
fn undoing_takes_pages_that_are_free_alone_and_nothing_that_is_not_ours() {
    let ours = change(ID, "2Mi: node0 100, node1 0", "2Mi: node0 2048, node1 2048");
    let mut facts = two();
    let mut at = |counts: &[(u64, u64)], reserved: u64| {
        stand(&mut facts, counts);
        facts.hugepages[0].reserved = Some(reserved);
        look(&facts, None, None, Some(&ours))
    };
    let undo = |to: &str| Some(Step::Undo(change(ID, &ours.after, to)));
    assert_eq!(at(&[(2048, 2048), (2048, 2048)], 0), undo(&ours.before));
    assert_eq!(
        at(&[(2048, 48), (2048, 2000)], 0),
        undo("2Mi: node0 2000, node1 48")
    );
    assert_eq!(
        at(&[(2048, 48), (2048, 2000)], 1999),
        undo("2Mi: node0 2000, node1 2047"),
        "promised pages are in use"
    );
    let (reason, words) = said(at(&[(2048, 0), (2048, 0)], 0));
    assert_eq!(reason, Reason::HugepagesInUse, "{words}");
    let node1 = change(ID, "2Mi: node1 2048", "2Mi: node1 0");
    assert_eq!(
        at(&[(3000, 3000), (2048, 2048)], 0),
        Some(Step::Undo(node1))
    );
    assert_eq!(at(&[(3000, 3000), (0, 0)], 0), Some(Step::Forget(ID)));
    let dry = policy(FixMode::DryRun, FOUR);
    let step = look(&facts, Some(&dry), None, Some(&ours));
    assert_eq!(step, Some(Step::Forget(ID)));
}

#[test]
fn what_is_left_of_an_undoing_is_kept_and_undone_later() {
    let ours = change(ID, "2Mi: node0 100, node1 0", "2Mi: node0 2048, node1 2048");
    let half = change(ID, &ours.after, "2Mi: node0 100, node1 48");
    let (rest, step) = plan::rest(&ours, &half).unwrap();
    assert_eq!(rest, change(ID, "2Mi: node1 0", "2Mi: node1 48"));
    assert_eq!(said(Some(step)).0, Reason::HugepagesInUse);
    let whole = change(ID, &ours.after, &ours.before);
    assert_eq!(plan::rest(&ours, &whole), None);
    let mut facts = two();
    stand(&mut facts, &[(100, 0), (48, 48)]);
    assert_eq!(
        look(&facts, None, None, Some(&rest)),
        Some(Step::Undo(change(ID, "2Mi: node1 48", "2Mi: node1 0")))
    );
}

#[test]
fn what_stood_before_the_first_change_is_kept_for_each_place() {
    let first = change(ID, "2Mi: node0 100, node1 0", "2Mi: node0 2048, node1 2048");
    let kept = |before: &str, after: &str| plan::kept(Some(&first), &change(ID, before, after));
    let more = "2Mi: node0 4096, node1 4096";
    assert_eq!(
        kept("2Mi: node0 2048, node1 1000", more),
        change(ID, "2Mi: node0 100, node1 0", more),
        "node1 was cut off"
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
        "small pages are still ours"
    );
}
