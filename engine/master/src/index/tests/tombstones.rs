//! Keys that are removed or replaced while an owner is away.

use std::collections::BTreeMap;

use proto::store::ledger::{Ended, Entry, Position};

use super::evacuation::{Pools, owner};
use super::*;
use crate::index::{LedgerState, Wait};

const MIB: u64 = 1 << 20;
/// Looks in a second.
const LOOKS: u64 = 10;

/// Looks at clients and segments for some seconds; the owners in `polling` poll meanwhile.
fn wait(pools: &mut Pools, from: u64, seconds: u64, polling: &[usize]) {
    for look in 0..seconds * LOOKS {
        let now = Moment(at(from).0 + look * 100_000);
        pools.index.tick(now);
        for &number in polling {
            pools.follow(number, now);
        }
        while pools.index.step(now) {}
    }
}

/// Owners whose ledgers name each other.
fn acquainted(count: usize) -> Pools {
    let mut pools = Pools::new(&vec![MIB; count]);
    pools.follow_all(at(0));
    let all: Vec<_> = (0..count).collect();
    wait(&mut pools, 0, 3, &all);
    pools.index.take_signals();
    pools
}

fn expire(pools: &mut Pools, number: u64) {
    pools.index.expire_segment(segment(number, MIB).id);
    pools.applied[usize::try_from(number).unwrap()] = 0;
}

/// A new run of the master, to which no owner has come yet.
fn restart(pools: &mut Pools) {
    pools.index = Index::new(long_lived(), 7).in_epoch(2);
    pools.applied.fill(0);
}

fn waits(pools: &mut Pools) -> Vec<Wait> {
    pools.index.take_signals().waits
}

/// Returns the notes of a kind in the ledger of an owner.
fn notes(pools: &Pools, number: usize, kind: &str) -> Vec<String> {
    let is_note = |entry: &&Entry| {
        let stored = entry.stored.as_ref();
        entry.offset >= 1 << 63 && stored.is_some_and(|of| of.group.as_deref() == Some(kind))
    };
    let found = pools.ledgers[number].values().filter(is_note);
    let mut found: Vec<_> = found
        .map(|entry| entry.stored.as_ref().unwrap().key.clone())
        .collect();
    found.sort();
    found
}

#[test]
fn every_ledger_names_the_others() {
    let pools = acquainted(3);
    // And its own one after them: it knows all.
    let last = pools.ledgers[0].values().next_back().unwrap();
    assert_eq!(last.stored.as_ref().unwrap().key, "s0");
    for number in 0..3 {
        assert_eq!(notes(&pools, number, "member"), ["s0", "s1", "s2"]);
    }
}

#[test]
fn a_put_waits_until_two_other_ledgers_name_its_segment() {
    let mut pools = acquainted(2);
    pools.ledgers.push(BTreeMap::new());
    pools.applied.push(0);
    pools.mount(2, MIB, at(4));
    let config = ReplicateConfig {
        preferred_segment: "s2".into(),
        ..ReplicateConfig::default()
    };
    put_with(&mut pools.index, "k", 1000, &config, at(4)).unwrap();
    let mut put = waits(&mut pools);
    for number in [2, 0, 1] {
        assert!(!pools.index.have_happened(&mut put));
        pools.follow(number, at(4));
    }
    assert!(pools.index.have_happened(&mut put));
    put_with(&mut pools.index, "other", 1000, &config, at(4)).unwrap();
    assert_eq!(waits(&mut pools).len(), 1, "it is named now");
}

#[test]
fn a_removal_is_answered_after_two_others_have_noted_it() {
    let mut pools = acquainted(4);
    pools.put("k", 1000, 3, at(4));
    expire(&mut pools, 3);
    assert_eq!(pools.size("k", at(4)), Err(ErrorCode::ObjectNotFound));
    waits(&mut pools);
    let removed = pools.index.remove("k", false, at(4));
    assert_eq!(removed, Err(ErrorCode::ObjectNotFound));
    let mut removal = waits(&mut pools);
    let mut noted = 0;
    for number in 0..3 {
        assert!(noted == 2 || !pools.index.have_happened(&mut removal));
        pools.follow(number, at(4));
        noted += notes(&pools, number, "removed").len();
    }
    assert!(noted == 2 && pools.index.have_happened(&mut removal));
    // The owner comes back: its record leaves, then the tombstones.
    let mut fresh = segment(3, MIB);
    fresh.id.second = 9;
    let entries = pools.ledgers[3].values().cloned().collect();
    let index = &mut pools.index;
    assert_eq!(
        index.mount_ledger(owner(3), fresh.clone(), 1, at(5)),
        Ok(false)
    );
    let loaded = index.load_ledger(owner(3), fresh.id, 0, entries, true, at(5));
    assert_eq!(loaded, Ok(()));
    assert_eq!(pools.size("k", at(5)), Err(ErrorCode::ObjectNotFound));
    while pools.index.step(at(5)) {}
    (0..3).for_each(|number| pools.follow(number, at(5)));
    assert_eq!(pools.index.ledger_totals().tombstones, 1, "k is recorded");
    let poll = |applied| Position {
        segment: fresh.id,
        applied,
        unrecorded: 0,
    };
    let changes = pools.index.poll_ledger(owner(3), &[poll(0)], at(5));
    let changes = changes.unwrap()[0].entries.len() as u64;
    let _next = pools.index.poll_ledger(owner(3), &[poll(changes)], at(5));
    while pools.index.step(at(5)) {}
    (0..3).for_each(|number| pools.follow(number, at(5)));
    assert_eq!(pools.index.ledger_totals().tombstones, 0);
    assert!((0..3).all(|number| notes(&pools, number, "removed").is_empty()));
}

#[test]
fn a_removed_replica_of_an_absent_owner_does_not_return_after_a_restart() {
    let mut pools = acquainted(3);
    let config = ReplicateConfig {
        replica_num: 2,
        preferred_segments: vec!["s0".into(), "s2".into()],
        ..ReplicateConfig::default()
    };
    put_with(&mut pools.index, "k", 1000, &config, at(4)).unwrap();
    pools.follow_all(at(4));
    expire(&mut pools, 2);
    waits(&mut pools);
    assert_eq!(pools.index.remove("k", true, at(4)), Ok(()));
    let mut removal = waits(&mut pools);
    pools.follow(0, at(4));
    assert!(!pools.index.have_happened(&mut removal));
    pools.follow(1, at(4));
    assert!(pools.index.have_happened(&mut removal));
    restart(&mut pools);
    (0..3).for_each(|number| pools.mount(number, MIB, at(5)));
    while pools.index.step(at(5)) {}
    assert_eq!(pools.index.ledger_totals().away, 0);
    assert_eq!(pools.size("k", at(5)), Err(ErrorCode::ObjectNotFound));
}

#[test]
fn without_an_absent_owner_no_tombstone_is_written() {
    let mut pools = acquainted(3);
    let before: Vec<_> = pools.applied.clone();
    pools.put("k", 1000, 0, at(4));
    pools.index.remove("k", true, at(4)).unwrap();
    let nothing = pools.index.remove("other", true, at(4));
    assert_eq!(nothing, Err(ErrorCode::ObjectNotFound));
    pools.follow_all(at(4));
    assert_eq!(pools.applied[0], before[0] + 2);
    assert_eq!(pools.applied[1..], before[1..]);
}

/// After a restart the owner is first whose value was removed while it was away.
fn stale_owner_first() -> Pools {
    let mut pools = acquainted(3);
    pools.put("k", 1000, 2, at(4));
    expire(&mut pools, 2);
    let _absent = pools.index.remove("k", false, at(4));
    pools.follow(0, at(4));
    pools.follow(1, at(4));
    restart(&mut pools);
    pools.mount(2, MIB, at(5));
    pools
}

#[test]
fn a_stale_ledger_waits_for_the_tombstones_of_others() {
    let mut pools = stale_owner_first();
    wait(&mut pools, 5, 2, &[2]);
    assert_eq!(pools.size("k", at(7)), Err(ErrorCode::ObjectNotFound));
    // One that does not come is waited for 5 s.
    pools.mount(0, MIB, at(7));
    wait(&mut pools, 7, 6, &[0, 2]);
    assert_eq!(pools.size("k", at(13)), Err(ErrorCode::ObjectNotFound));
    assert_eq!(pools.index.ledger_totals().loaded, 2);
    assert_eq!(pools.index.ledger_totals().away, 1);
}

#[test]
fn a_tombstone_that_comes_late_removes_the_value() {
    let mut pools = stale_owner_first();
    wait(&mut pools, 5, 6, &[2]);
    assert_eq!(pools.size("k", at(11)), Ok(1000), "the others are lost");
    pools.mount(0, MIB, at(11));
    assert_eq!(pools.size("k", at(11)), Err(ErrorCode::ObjectNotFound));
}

#[test]
fn an_owner_that_ends_in_order_is_forgotten_and_a_silent_one_is_not() {
    let mut pools = acquainted(3);
    pools.index.unmount_segment(segment(2, MIB).id);
    assert_eq!(pools.index.ledger_totals().away, 1, "it may come back");
    wait(&mut pools, 4, 6, &[0, 1]);
    assert_eq!(pools.index.ledger_totals().away, 0);
    assert_eq!(notes(&pools, 0, "member"), ["s0", "s1"]);
    // This one has not polled for 2 s.
    wait(&mut pools, 10, 3, &[0]);
    pools.index.unmount_segment(segment(1, MIB).id);
    wait(&mut pools, 13, 10, &[0]);
    assert_eq!(pools.index.ledger_totals().away, 1);
    assert_eq!(notes(&pools, 0, "member"), ["s0", "s1"]);
}

#[test]
fn a_full_ledger_gets_no_tombstone() {
    let mut pools = acquainted(4);
    expire(&mut pools, 3);
    waits(&mut pools);
    let _absent = pools.index.remove("k", false, at(4));
    let mut removal = waits(&mut pools);
    let poll = |pools: &mut Pools, number: usize, more, unrecorded| {
        let position = Position {
            segment: segment(number as u64, MIB).id,
            applied: pools.applied[number] + more,
            unrecorded,
        };
        let client = owner(number as u64);
        let polled = pools.index.poll_ledger(client, &[position], at(4));
        polled.unwrap()[0].entries.len() as u64
    };
    let full = (0..3).find(|number| poll(&mut pools, *number, 0, 0) > 0);
    let full = full.unwrap();
    // It acknowledges the tombstone, and reports one more record that did not fit.
    poll(&mut pools, full, 1, 1);
    for number in (0..3).filter(|number| *number != full) {
        assert!(!pools.index.have_happened(&mut removal));
        pools.follow(number, at(4));
        assert_eq!(notes(&pools, number, "removed"), ["k"]);
    }
    assert!(pools.index.have_happened(&mut removal));
}

#[test]
fn a_run_without_a_ledger_answers_a_removal_that_finds_nothing_after_two_seconds() {
    let mut index = Index::new(long_lived(), 7).in_epoch(1);
    let removed = index.remove("k", false, at(0));
    assert_eq!(removed, Err(ErrorCode::ObjectNotFound));
    let mut removal = index.take_signals().waits;
    assert!(!index.have_happened(&mut removal));
    for look in 0..21 {
        work(&mut index, Moment(at(0).0 + look * 100_000));
    }
    assert!(index.take_signals().progress);
    assert!(index.have_happened(&mut removal));
    let _absent = index.remove("k", false, at(3));
    assert!(index.take_signals().waits.is_empty());
}

#[test]
fn a_replaced_value_does_not_return_when_the_new_one_is_lost() {
    let mut pools = acquainted(3);
    pools.put("k", 1000, 2, at(4));
    expire(&mut pools, 2);
    let config = ReplicateConfig {
        preferred_segment: "s0".into(),
        ..ReplicateConfig::default()
    };
    waits(&mut pools);
    put_with(&mut pools.index, "k", 2000, &config, at(4)).unwrap();
    let mut put = waits(&mut pools);
    pools.follow(0, at(4));
    assert!(!pools.index.have_happened(&mut put), "s1 has not noted it");
    pools.follow(1, at(4));
    assert!(pools.index.have_happened(&mut put));
    pools.ledgers[0].clear();
    restart(&mut pools);
    (0..3).for_each(|number| pools.mount(number, MIB, at(5)));
    while pools.index.step(at(5)) {}
    assert_eq!(pools.index.ledger_totals().away, 0);
    assert_eq!(pools.size("k", at(5)), Err(ErrorCode::ObjectNotFound));
}

#[test]
fn tombstones_of_a_lost_ledger_are_written_to_another_one() {
    let mut pools = acquainted(4);
    expire(&mut pools, 3);
    let _absent = pools.index.remove("k", false, at(4));
    (0..3).for_each(|number| pools.follow(number, at(4)));
    let has = |pools: &Pools, number: usize| !notes(pools, number, "removed").is_empty();
    let lost = (0..3).find(|number| has(&pools, *number)).unwrap();
    pools.index.unmount_segment(segment(lost as u64, MIB).id);
    while pools.index.step(at(4)) {}
    for number in (0..3).filter(|number| *number != lost) {
        pools.follow(number, at(4));
        assert!(has(&pools, number), "{number}");
    }
}

#[test]
fn a_tombstone_of_an_earlier_removal_is_not_enough() {
    let mut pools = acquainted(3);
    expire(&mut pools, 2);
    let _absent = pools.index.remove("k", false, at(4));
    (0..2).for_each(|number| pools.follow(number, at(4)));
    restart(&mut pools);
    let _absent = pools.index.remove("k", false, at(5));
    let mut removal = waits(&mut pools);
    pools.mount(0, MIB, at(5));
    assert!(!pools.index.have_happened(&mut removal));
    while pools.index.step(at(5)) {}
    pools.follow(0, at(5));
    assert!(pools.index.have_happened(&mut removal));
}

#[test]
fn a_run_that_may_not_know_all_owners_keeps_tombstones() {
    let mut pools = Pools::new(&[MIB]);
    let _absent = pools.index.remove("a", false, at(0));
    pools.follow(0, at(0));
    // The ledger has a tombstone, and nothing shows that there were no other owners.
    restart(&mut pools);
    pools.mount(0, MIB, at(1));
    let _absent = pools.index.remove("b", false, at(1));
    pools.follow(0, at(1));
    while pools.index.step(at(1)) {}
    assert_eq!(pools.index.ledger_totals().tombstones, 2);
    wait(&mut pools, 1, 3, &[0]);
    assert_eq!(pools.index.ledger_totals().tombstones, 0);
}

#[test]
fn an_owner_that_ends_still_names_new_ones() {
    let mut pools = acquainted(2);
    let attempt = owner(9);
    let ending = pools
        .index
        .evacuate(owner(1), attempt, &Ended::default(), at(4));
    assert!(ending.is_ok());
    pools.ledgers.push(BTreeMap::new());
    pools.applied.push(0);
    pools.mount(2, MIB, at(4));
    pools.follow(1, at(4));
    assert_eq!(notes(&pools, 1, "member"), ["s0", "s1", "s2"]);
}

#[test]
fn the_ledgers_of_all_segments_are_listed_with_the_names_of_absent_ones() {
    let mut pools = acquainted(3);
    expire(&mut pools, 2);
    // The others get notes of its name. Owner 0 does not acknowledge them.
    pools.ledgers.push(BTreeMap::new());
    pools.applied.push(0);
    pools.mount(3, MIB, at(3));
    wait(&mut pools, 4, 2, &[1, 3]);
    let position = Position {
        segment: segment(1, MIB).id,
        applied: pools.applied[1],
        unrecorded: 5,
    };
    let polled = pools.index.poll_ledger(owner(1), &[position], at(6));
    assert!(polled.is_ok());
    let (loading, client) = (segment(4, MIB), segment(5, MIB));
    let mounted = pools.index.mount_ledger(owner(4), loading, 1, at(6));
    assert_eq!(mounted, Ok(false));
    pools.index.mount_segment(client, CLIENT, at(6)).unwrap();
    let (ledgers, absent) = pools.index.ledger_details();
    let states: Vec<_> = ledgers
        .iter()
        .map(|ledger| (&*ledger.name, ledger.state, ledger.unrecorded))
        .collect();
    let expected = [
        ("s0", LedgerState::Late, 0),
        ("s1", LedgerState::Loaded, 5),
        ("s3", LedgerState::Loaded, 0),
        ("s4", LedgerState::Loading, 0),
        ("s5", LedgerState::None, 0),
    ];
    assert_eq!(states, expected);
    assert_eq!(absent, ["s2"]);
}
