//! Ledgers that come after calls which concern their keys.

use proto::store::ledger::{Entry, Position, Stored, Version};

use super::evacuation::owner;
use super::*;
use crate::index::{Idle, Wait};

const MIB: u64 = 1 << 20;

fn version(epoch: u64, number: u64) -> Version {
    Version { epoch, number }
}

fn record(key: &str, offset: u64, version: Version) -> Entry {
    Entry {
        offset,
        version,
        stored: Some(Stored {
            key: key.into(),
            length: 100,
            client: CLIENT,
            group: None,
            checksum: None,
            soft_pin_ms: 0,
            hard_pin: false,
        }),
    }
}

fn mount_in(index: &mut Index, number: u64, epoch: u64, highest: u64, now: Moment) -> Uuid {
    let mut segment = segment(number, MIB);
    segment.id.first += epoch;
    let id = segment.id;
    let mounted = index.mount_ledger(owner(number), segment, highest, now);
    assert_eq!(mounted, Ok(false));
    id
}

fn mount(index: &mut Index, number: u64, highest: u64, now: Moment) -> Uuid {
    mount_in(index, number, 0, highest, now)
}

fn load(index: &mut Index, number: u64, id: Uuid, entries: Vec<Entry>, now: Moment) {
    let loaded = index.load_ledger(owner(number), id, 0, entries, true, now);
    assert_eq!(loaded, Ok(()));
    while index.step(now) {}
}

/// The segments of owners are mounted, and the ledger of the first one, which is empty, is loaded. The others do not come.
fn awaiting(count: u64) -> (Index, Vec<Uuid>) {
    let mut index = Index::new(long_lived(), 7).in_epoch(2);
    let mounts = (0..count).map(|number| mount(&mut index, number, 1, at(0)));
    let ids: Vec<_> = mounts.collect();
    load(&mut index, 0, ids[0], Vec::new(), at(0));
    (index, ids)
}

fn find(index: &mut Index, key: &str, now: Moment) -> bool {
    index.get_replica_list(key, now).is_ok()
}

fn waits(index: &mut Index) -> Vec<Wait> {
    index.take_signals().waits
}

/// Returns the removals that the owner of a segment gets.
fn removals(index: &mut Index, number: u64, segment: Uuid) -> usize {
    let position = Position {
        segment,
        applied: 0,
        unrecorded: 0,
    };
    let changes = index.poll_ledger(owner(number), &[position], at(9));
    let changes = changes.unwrap();
    let entries = changes[0].entries.iter();
    entries.filter(|entry| entry.stored.is_none()).count()
}

#[test]
fn an_object_of_a_ledger_has_no_idle_time_before_it_is_used() {
    let mut index = Index::new(long_lived(), 7).in_epoch(2);
    let id = mount(&mut index, 0, 1, at(0));
    let entries = vec![
        record("old", 0, version(1, 1)),
        record("read", 100, version(1, 2)),
    ];
    load(&mut index, 0, id, entries, at(0));
    let evict = |index: &mut Index, now: Moment| {
        assert!(put(index, "large", MIB, now).is_err());
        work(index, now);
        (
            index.counters().evicted_objects,
            index.counters().evicted_idle,
        )
    };
    let mut expected = Idle::default();
    assert_eq!(evict(&mut index, at(500)), (1, expected));
    // Its lease ends at 610 s.
    assert!(find(&mut index, "read", at(600)));
    (expected.objects[3], expected.time) = (1, Duration::from_secs(90));
    assert_eq!(evict(&mut index, at(700)), (2, expected));
}

#[test]
fn a_removal_of_all_keys_concerns_a_ledger_that_is_loaded_later() {
    let mut index = Index::new(long_lived(), 7).in_epoch(2);
    let id = mount(&mut index, 0, 1, at(0));
    assert_eq!(index.remove_all("", false, at(0)), 0);
    load(
        &mut index,
        0,
        id,
        vec![record("k", 0, version(1, 1))],
        at(1),
    );
    assert!(!find(&mut index, "k", at(1)));
    assert_eq!(removals(&mut index, 0, id), 1, "the record leaves");
    // Once it is read, it is removed from like any other one.
    put(&mut index, "k", 100, at(1)).unwrap();
    assert!(find(&mut index, "k", at(1)));
}

#[test]
fn a_pattern_concerns_the_matching_keys_of_ledgers_that_come_later() {
    let (mut index, ids) = awaiting(3);
    let removed = index.remove_by_regex("^a", &Scope::default(), false, at(0));
    assert_eq!(removed, Ok(0));
    let keys = ["a1", "b1", "\0tenant\0a1"];
    let records = (0..).zip(keys);
    let records = records.map(|(at, key)| record(key, at * 100, version(1, at)));
    load(&mut index, 1, ids[1], records.collect(), at(1));
    let late = vec![
        record("a2", 0, version(1, 9)),
        record("b2", 100, version(1, 10)),
    ];
    load(&mut index, 2, ids[2], late, at(1));
    let found = ["a1", "a2", "b1", "b2", "\0tenant\0a1"].map(|key| find(&mut index, key, at(1)));
    assert_eq!(found, [false, false, true, true, true]);
}

#[test]
fn what_a_removal_left_and_what_was_put_after_it_stays_when_its_owner_comes_back() {
    let (mut index, ids) = awaiting(2);
    put(&mut index, "leased", 100, at(0)).unwrap();
    put(&mut index, "removed", 100, at(0)).unwrap();
    assert!(find(&mut index, "leased", at(0)));
    assert_eq!(index.remove_all("", false, at(1)), 1);
    put(&mut index, "new", 100, at(1)).unwrap();
    // The present owner comes back with all of them, its removals being lost.
    index.expire_segment(ids[0]);
    let again = mount_in(&mut index, 0, 1, 2, at(2));
    let keys = ["leased", "removed", "new"];
    let records = (1..).zip(keys);
    let records = records.map(|(at, key)| record(key, at * 100, version(2, at)));
    load(&mut index, 0, again, records.collect(), at(2));
    load(
        &mut index,
        1,
        ids[1],
        vec![record("old", 0, version(1, 1))],
        at(2),
    );
    let found = ["leased", "removed", "new", "old"].map(|key| find(&mut index, key, at(2)));
    assert_eq!(found, [true, false, true, false]);
}

#[test]
fn another_replica_of_an_object_that_a_removal_left_is_kept() {
    let (mut index, ids) = awaiting(3);
    let both = version(1, 5);
    load(&mut index, 1, ids[1], vec![record("k", 0, both)], at(0));
    for look in 0..60 {
        index.tick(Moment(at(0).0 + look * 100_000));
        while index.step(at(6)) {}
    }
    assert!(find(&mut index, "k", at(6)));
    assert_eq!(index.remove_all("", false, at(7)), 0, "it is leased");
    load(&mut index, 2, ids[2], vec![record("k", 0, both)], at(7));
    let found = index.get_replica_list("k", at(7)).unwrap();
    assert_eq!(found.replicas().count(), 2);
}

#[test]
fn a_removal_that_cannot_be_kept_is_answered_after_all_ledgers_are_read() {
    let (mut index, ids) = awaiting(2);
    let scope = Scope::default();
    waits(&mut index);
    for number in 0..16 {
        let removed = index.remove_by_regex(&format!("^{number}$"), &scope, false, at(0));
        assert_eq!((removed, waits(&mut index)), (Ok(0), Vec::new()));
    }
    for pattern in ["^16$", r"\w{100}"] {
        let removed = index.remove_by_regex(pattern, &scope, false, at(0));
        assert_eq!(removed, Ok(0));
    }
    let mut unkept = waits(&mut index);
    assert_eq!(unkept.len(), 2);
    assert!(!index.have_happened(&mut unkept));
    // One of all keys replaces them.
    index.remove_all("", false, at(0));
    assert_eq!(waits(&mut index), []);
    load(
        &mut index,
        1,
        ids[1],
        vec![record("16", 0, version(1, 1))],
        at(1),
    );
    for look in 0..30 {
        index.tick(Moment(at(1).0 + look * 100_000));
    }
    assert!(index.take_signals().progress);
    assert!(index.have_happened(&mut unkept));
    assert!(!find(&mut index, "16", at(4)));
}

#[test]
fn all_ledgers_are_installed_also_beyond_the_known_members() {
    let mut index = Index::new(long_lived(), 7).in_epoch(2);
    let count = 257;
    let mounts = (0..count).map(|number| mount(&mut index, number, 1, at(0)));
    let ids: Vec<_> = mounts.collect();
    for (number, id) in (0..).zip(ids) {
        let records = vec![record(&format!("k{number}"), 0, version(1, number))];
        load(&mut index, number, id, records, at(0));
    }
    for look in 0..700 {
        let now = Moment(at(0).0 + look * 100_000);
        index.tick(now);
        while index.step(now) {}
    }
    let missing = (0..count).find(|number| !find(&mut index, &format!("k{number}"), at(70)));
    assert_eq!(missing, None);
    let totals = index.ledger_totals();
    assert_eq!((totals.loaded, totals.loading, totals.away), (count, 0, 0));
}

/// The clock went back: this run has a lower epoch than the one before.
#[test]
fn a_value_of_this_run_is_later_than_one_of_a_run_with_a_higher_epoch() {
    let mut index = Index::new(long_lived(), 7).in_epoch(5);
    let id = mount(&mut index, 0, 0, at(0));
    load(&mut index, 0, id, Vec::new(), at(0));
    put(&mut index, "k", 200, at(0)).unwrap();
    put(&mut index, "removed", 200, at(0)).unwrap();
    index.remove("removed", true, at(0)).unwrap();
    let nothing = index.remove("unknown", true, at(0));
    assert_eq!(nothing, Err(ErrorCode::ObjectNotFound));
    let config = ReplicateConfig::default();
    let begun = index.put_start(CLIENT, "begun", 200, &config, at(0));
    assert!(begun.is_ok());
    let late = mount(&mut index, 1, 9, at(1));
    let keys = ["k", "removed", "unknown", "begun", "other"];
    let records = (0..).zip(keys);
    let records = records.map(|(at, key)| record(key, at * 100, version(9, at + 1)));
    load(&mut index, 1, late, records.collect(), at(1));
    let ended = index.put_end(CLIENT, &meta("begun"), ReplicaType::All, at(1));
    assert_eq!(ended, Ok(()));
    for key in ["k", "begun"] {
        let found = index.get_replica_list(key, at(1)).unwrap();
        let sizes: Vec<_> = found.replicas().map(|replica| replica.size).collect();
        assert_eq!(sizes, [200], "{key}");
    }
    let found = ["removed", "unknown", "other"].map(|key| find(&mut index, key, at(1)));
    assert_eq!(found, [false, false, true]);
    // The next run finds that in the versions: new ones exceed those of both runs.
    let replicas = put(&mut index, "new", 200, at(1)).unwrap();
    assert_eq!(replicas.len(), 1);
    assert!(index.latest().epoch > 9);
    // A tombstone of the other run is no later than this run.
    let tombstone = Entry {
        offset: (1 << 63) + 1,
        version: version(9, 100),
        stored: Some(Stored {
            length: 0,
            group: Some("removed".into()),
            ..record("k", 0, version(9, 100)).stored.unwrap()
        }),
    };
    let third = mount(&mut index, 2, 9, at(1));
    load(&mut index, 2, third, vec![tombstone], at(1));
    assert!(find(&mut index, "k", at(1)));
    // Also when the owner of that value comes back.
    index.expire_segment(id);
    let again = mount_in(&mut index, 0, 1, 5, at(2));
    load(
        &mut index,
        0,
        again,
        vec![record("k", 0, version(5, 1))],
        at(2),
    );
    assert!(find(&mut index, "k", at(2)));
}

#[test]
fn an_epoch_that_no_master_has_does_not_raise_that_of_the_run() {
    let mut index = Index::new(long_lived(), 7).in_epoch(5);
    assert!(index.is_plausible_epoch(9) && !index.is_plausible_epoch(u64::MAX));
    let id = mount(&mut index, 0, u64::MAX, at(0));
    assert_eq!(index.latest().epoch, 5);
    let records = vec![
        record("k", 0, version(u64::MAX, 1)),
        record("l", 100, version(u64::MAX, 2)),
    ];
    load(&mut index, 0, id, records, at(0));
    assert!(find(&mut index, "k", at(0)));
    // A removal and a put of this run are later in spite of it.
    index.remove("k", true, at(0)).unwrap();
    index.remove("l", true, at(0)).unwrap();
    put(&mut index, "l", 200, at(0)).unwrap();
    index.expire_segment(id);
    let again = mount_in(&mut index, 0, 1, u64::MAX, at(1));
    let records = vec![
        record("k", 0, version(u64::MAX, 1)),
        record("l", 100, version(5, 1)),
    ];
    load(&mut index, 0, again, records, at(1));
    assert!(!find(&mut index, "k", at(1)) && find(&mut index, "l", at(1)));
}

#[test]
fn a_removal_in_steps_removes_also_what_an_owner_brings_back_meanwhile() {
    let (mut index, _) = awaiting(1);
    for look in 0..30 {
        index.tick(Moment(at(0).0 + look * 100_000));
    }
    let mut removal = crate::index::Removal::begin("k", Scope::default(), true).unwrap();
    assert!(index.remove_next(&mut removal, at(4)));
    assert!(removal.compare(|| true));
    // All places were visited. Now the engine process of the owner is replaced.
    let id = mount_in(&mut index, 0, 1, 1, at(4));
    load(
        &mut index,
        0,
        id,
        vec![record("k", 0, version(1, 1))],
        at(4),
    );
    assert!(find(&mut index, "k", at(4)));
    while index.remove_next(&mut removal, at(4)) {
        assert!(removal.compare(|| true));
    }
    assert_eq!(removal.removed(), 1);
    assert!(!find(&mut index, "k", at(4)));
}

#[test]
fn after_a_takeover_the_oldest_objects_of_all_ledgers_are_evicted_first() {
    let mut index = Index::new(long_lived(), 7).in_epoch(2);
    let mounts = (0..2).map(|number| mount(&mut index, number, 1, at(0)));
    let ids: Vec<_> = mounts.collect();
    for (number, id) in (0..).zip(ids) {
        // The higher the offset, the older.
        let records = (0..10).map(|age| {
            let version = version(1, 100 - 2 * age - number);
            record(&format!("{number}-{age}"), age * 100, version)
        });
        load(&mut index, number, id, records.collect(), at(0));
    }
    for look in 0..60 {
        index.tick(Moment(at(0).0 + look * 100_000));
        while index.step(at(6)) {}
    }
    // What was read in this run leaves last.
    get(&mut index, "0-9", at(7)).unwrap();
    index.settings.high_watermark = 0.0001;
    for _ in 0..12 {
        index.begin_eviction(at(20));
        while index.step(at(20)) {}
        assert!(index.contains("0-9"));
        let youngest = [8, 9].map(|oldest| {
            let number = oldest - 8;
            let is_gone = |age: &u64| !index.contains(&format!("{number}-{age}"));
            // Of those that are gone none is younger than one that is left.
            let gone: Vec<_> = (0..=oldest).filter(is_gone).collect();
            let first = gone.first().copied().unwrap_or(oldest + 1);
            assert_eq!(gone, (first..=oldest).collect::<Vec<_>>());
            first
        });
        assert!(youngest[0].abs_diff(youngest[1]) <= 1, "{youngest:?}");
    }
    assert!(index.counters().evicted_objects >= 12);
}
