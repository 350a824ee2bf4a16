//! Calls that wait for the ledger of an owner.

use proto::store::ledger::Position;

use super::*;
use crate::index::{Commit, Due, Wait};

const MIB: u64 = 1 << 20;

/// The segment of an epoch of the owner: the same memory below another ID.
fn segment_of(epoch: u64) -> Segment {
    Segment {
        id: Uuid {
            first: 200,
            second: epoch,
        },
        ..segment(0, MIB)
    }
}

fn mount(index: &mut Index, epoch: u64) {
    let segment = segment_of(epoch);
    let id = segment.id;
    assert_eq!(index.mount_ledger(OWNER, segment, 1, at(0)), Ok(false));
    index
        .load_ledger(OWNER, id, 0, Vec::new(), true, at(0))
        .unwrap();
}

fn poll(index: &mut Index, epoch: u64, applied: u64) {
    let position = Position {
        segment: segment_of(epoch).id,
        applied,
        unrecorded: 0,
    };
    index.poll_ledger(OWNER, &[position], at(1)).unwrap();
}

fn waits(index: &mut Index) -> Vec<Wait> {
    index.take_signals().waits
}

fn begin(index: &mut Index, key: &str) {
    let config = ReplicateConfig {
        replica_num: 1,
        ..ReplicateConfig::default()
    };
    index.put_start(CLIENT, key, 100, &config, at(1)).unwrap();
    waits(index);
    index
        .put_end(CLIENT, &meta(key), ReplicaType::All, at(1))
        .unwrap();
}

/// An index of a run that knows its owners: no other ledger comes. The first change of the ledger was its own name.
fn settled() -> Index {
    settled_with(long_lived())
}

fn settled_with(settings: Settings) -> Index {
    let mut index = Index::new(settings, 7).in_epoch(1);
    mount(&mut index, 1);
    for look in 0..30 {
        index.tick(Moment(at(0).0 + look * 100_000));
        poll(&mut index, 1, u64::from(look > 20));
    }
    index
}

#[test]
fn a_call_is_answered_after_its_change_is_acknowledged() {
    let mut index = settled();
    begin(&mut index, "a");
    let mut put = waits(&mut index);
    assert!(!index.have_happened(&mut put));
    poll(&mut index, 1, 2);
    assert!(index.have_happened(&mut put));
    index.remove("a", true, at(1)).unwrap();
    let mut removal = waits(&mut index);
    assert!(!index.have_happened(&mut removal));
    poll(&mut index, 1, 3);
    assert!(index.have_happened(&mut removal));
}

fn with_early_answers() -> Index {
    settled_with(Settings {
        commit: Commit::Async,
        ..long_lived()
    })
}

/// Ends a put of 100 bytes this many microseconds after the first second.
fn end_put(index: &mut Index, key: &str, microseconds: u64) {
    let now = Moment(at(1).0 + microseconds);
    let config = ReplicateConfig::default();
    index.put_start(CLIENT, key, 100, &config, now).unwrap();
    waits(index);
    let meta = meta(key);
    let ended = index.put_end(CLIENT, &meta, ReplicaType::All, now);
    assert_eq!(ended, Ok(()));
}

#[test]
fn an_early_answer_waits_for_no_record_until_one_is_late() {
    let mut index = with_early_answers();
    end_put(&mut index, "a", 0);
    assert!(waits(&mut index).is_empty());
    end_put(&mut index, "b", 10_000);
    assert!(waits(&mut index).is_empty());
    end_put(&mut index, "c", 10_001);
    let mut late = waits(&mut index);
    poll(&mut index, 1, 2);
    assert!(!index.have_happened(&mut late));
    // The second record has waited for more than 10 ms.
    end_put(&mut index, "d", 20_001);
    assert!(!waits(&mut index).is_empty());
    poll(&mut index, 1, 5);
    assert!(index.have_happened(&mut late));
    end_put(&mut index, "e", 30_000);
    assert!(waits(&mut index).is_empty());
    assert_eq!(index.counters().early_puts, 3);
}

#[test]
fn a_removal_and_a_put_that_replaces_a_value_wait_in_spite_of_early_answers() {
    let mut index = with_early_answers();
    end_put(&mut index, "a", 0);
    waits(&mut index);
    let config = ReplicateConfig::default();
    let now = at(1);
    index.upsert_start(CLIENT, "a", 50, &config, now).unwrap();
    waits(&mut index);
    index
        .put_end(CLIENT, &meta("a"), ReplicaType::All, now)
        .unwrap();
    let mut replaced = waits(&mut index);
    // The record of the first value, then that of the second.
    poll(&mut index, 1, 2);
    assert!(!index.have_happened(&mut replaced));
    index.remove("a", true, now).unwrap();
    let mut removed = waits(&mut index);
    poll(&mut index, 1, 4);
    assert!(index.have_happened(&mut replaced));
    assert!(!index.have_happened(&mut removed));
    poll(&mut index, 1, 5);
    assert!(index.have_happened(&mut removed));
    assert_eq!(index.counters().early_puts, 1);
}

#[test]
fn no_put_is_answered_early_while_an_owner_may_be_away_that_has_a_former_value() {
    let mut index = Index::new(
        Settings {
            commit: Commit::Async,
            ..long_lived()
        },
        7,
    )
    .in_epoch(1);
    mount(&mut index, 1);
    poll(&mut index, 1, 0);
    end_put(&mut index, "a", 0);
    assert_eq!(index.counters().early_puts, 0);
}

#[test]
fn answered_puts_without_a_record_are_counted_when_their_segment_ends() {
    let mut index = with_early_answers();
    for key in ["a", "b", "c"] {
        end_put(&mut index, key, 0);
    }
    poll(&mut index, 1, 2);
    assert_eq!(index.counters().lost_records, 0);
    mount(&mut index, 2);
    assert_eq!(index.counters().lost_records, 2);
    assert!(!index.contains("b"));
}

#[test]
fn a_call_is_never_answered_if_the_owner_mounts_again_without_its_change() {
    let mut index = settled();
    begin(&mut index, "removed");
    waits(&mut index);
    poll(&mut index, 1, 2);
    index.remove("removed", true, at(1)).unwrap();
    let mut removal = waits(&mut index);
    begin(&mut index, "put");
    let mut put = waits(&mut index);
    // A new master would find the removed key in the ledger, and not the one that was put.
    mount(&mut index, 2);
    poll(&mut index, 2, 0);
    assert!(!index.have_happened(&mut removal));
    assert!(!index.have_happened(&mut put));
}

#[test]
fn a_segment_with_many_changes_gets_the_part_of_those_with_few() {
    let mut index = Index::new(long_lived(), 7).in_epoch(1);
    let segments: Vec<_> = (0..64).map(|number| segment(number, MIB)).collect();
    for segment in &segments {
        let mounted = index.mount_ledger(OWNER, segment.clone(), 1, at(0));
        assert_eq!(mounted, Ok(false));
        let loaded = index.load_ledger(OWNER, segment.id, 0, Vec::new(), true, at(0));
        assert_eq!(loaded, Ok(()));
    }
    let position = |of: &Segment| Position {
        segment: of.id,
        applied: 0,
        unrecorded: 0,
    };
    let mut positions: Vec<_> = segments.iter().map(position).collect();
    // They name each other.
    for look in 0..30 {
        index.tick(Moment(at(0).0 + look * 100_000));
        while index.has_changes(OWNER, &positions, at(0)) == Ok(Due::Now) {
            let changes = index.poll_ledger(OWNER, &positions, at(0)).unwrap();
            for (position, changes) in positions.iter_mut().zip(&changes) {
                position.applied += changes.entries.len() as u64;
            }
        }
    }
    let config = ReplicateConfig {
        preferred_segment: "s63".into(),
        ..ReplicateConfig::default()
    };
    for number in 0..1000 {
        put_with(&mut index, &number.to_string(), 1, &config, at(0)).unwrap();
    }
    assert_eq!(index.has_changes(OWNER, &positions, at(0)), Ok(Due::Now));
    let changes = index.poll_ledger(OWNER, &positions, at(0)).unwrap();
    let counts = changes.iter().map(|of| of.entries.len());
    let counts: Vec<_> = counts.collect();
    assert_eq!((counts[..63].iter().sum(), counts[63]), (0, 1000));
    let last = &changes[63].entries[999];
    assert_eq!(last.version, index.latest());
}

#[test]
fn the_lag_of_an_owner_is_the_time_for_which_its_earliest_change_waits() {
    let mut index = settled();
    let mut now = at(3).0;
    let mut look = |index: &mut Index| {
        now += 100_000;
        index.tick(Moment(now));
        index.ledger_totals().lag
    };
    assert_eq!(look(&mut index), Duration::ZERO);
    begin(&mut index, "a");
    assert_eq!(look(&mut index), Duration::ZERO);
    assert_eq!(look(&mut index), Duration::from_millis(100));
    begin(&mut index, "b");
    assert_eq!(look(&mut index), Duration::from_millis(200));
    // Only the later one waits.
    poll(&mut index, 1, 2);
    assert_eq!(look(&mut index), Duration::from_millis(100));
    poll(&mut index, 1, 3);
    assert_eq!(look(&mut index), Duration::ZERO);
}
