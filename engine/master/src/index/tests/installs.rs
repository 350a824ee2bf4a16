//! Ledgers that are installed in steps, and what happens between two of them.

use proto::store::ledger::{Entry, Stored, Version};

use super::evacuation::owner;
use super::*;
use crate::index::{Arrangement, Wait};

const MIB: u64 = 1 << 20;
/// Records of a step, and of the ledgers here.
const STEP: u64 = 10;
const RECORDS: u64 = 5 * STEP;
/// The first offset of notes.
const NOTES: u64 = 1 << 63;

fn version(number: u64) -> Version {
    Version { epoch: 1, number }
}

fn entry(key: &str, offset: u64, length: u64, number: u64, group: Option<&str>) -> Entry {
    Entry {
        offset,
        version: version(number),
        stored: Some(Stored {
            key: key.into(),
            length,
            client: CLIENT,
            group: group.map(Into::into),
            checksum: None,
            soft_pin_ms: 0,
            hard_pin: false,
        }),
    }
}

fn key(number: u64) -> String {
    format!("k{number}")
}

/// Records of keys by age, the newest first.
fn records() -> Vec<Entry> {
    let record = |number| entry(&key(number), number * 100, 100, 1000 - number, None);
    (0..RECORDS).map(record).collect()
}

/// The next run of the master.
fn new_run() -> Index {
    Index::new(long_lived(), 7)
        .in_epoch(2)
        .with_installed_in_step(usize::try_from(STEP).unwrap())
}

fn mount(index: &mut Index, number: u64, epoch: u64) -> Uuid {
    let mut segment = segment(number, MIB);
    segment.id.first += epoch;
    let id = segment.id;
    let mounted = index.mount_ledger(owner(number), segment, 1, at(0));
    assert_eq!(mounted, Ok(false));
    id
}

fn load(index: &mut Index, number: u64, id: Uuid, entries: Vec<Entry>) {
    let loaded = index.load_ledger(owner(number), id, 0, entries, true, at(0));
    assert_eq!(loaded, Ok(()));
}

fn arrangement(index: &mut Index) -> Arrangement {
    assert!(!index.step(at(0)), "no step arranges a large ledger");
    index.next_arrangement(at(0)).unwrap()
}

fn finish(index: &mut Index) {
    while index.step(at(0)) {}
    if let Some(arrangement) = index.next_arrangement(at(0)) {
        index.install(arrangement.arrange());
        finish(index);
    }
}

/// A run that knows its owners, and has installed these steps of a ledger.
fn installed_in_part(entries: Vec<Entry>, steps: usize) -> (Index, Uuid) {
    let mut index = new_run();
    let id = mount(&mut index, 0, 0);
    for look in 0..30 {
        index.tick(Moment(at(0).0 - 3_000_000 + look * 100_000));
    }
    load(&mut index, 0, id, entries);
    let arrangement = arrangement(&mut index);
    index.install(arrangement.arrange());
    for _ in 0..steps {
        assert!(index.step(at(0)));
    }
    index.take_signals();
    (index, id)
}

fn found(index: &mut Index) -> Vec<u64> {
    let found = (0..RECORDS).filter(|number| index.peek(&key(*number)).is_ok());
    found.collect()
}

fn is_answered(index: &mut Index, mut waits: Vec<Wait>) -> bool {
    assert!(!waits.is_empty());
    index.have_happened(&mut waits)
}

#[test]
fn a_large_ledger_is_installed_in_steps_and_its_segment_opens_after_the_last_one() {
    let (mut index, _) = installed_in_part(records(), 0);
    let mut keys = 0;
    let mut more = true;
    while more {
        assert_eq!(index.ledger_totals().loading, 1);
        let closed = put(&mut index, "new", 100, at(0));
        assert_eq!(closed, Err(ErrorCode::NoAvailableHandle));
        more = index.step(at(0));
        keys += STEP;
        assert_eq!(found(&mut index), (0..keys).collect::<Vec<_>>());
    }
    assert_eq!((keys, index.ledger_totals().loaded), (RECORDS, 1));
    // In no range of a record.
    let new = address(&put(&mut index, "new", 100, at(0)).unwrap());
    assert_eq!(new - segment(0, MIB).base, RECORDS * 100);
}

#[test]
fn what_is_removed_between_two_steps_does_not_come_back() {
    let last = RECORDS - 1;
    for number in [0, last] {
        let (mut index, id) = installed_in_part(records(), 2);
        let removed = index.remove(&key(number), true, at(0));
        let expected = if number == 0 {
            Ok(())
        } else {
            Err(ErrorCode::ObjectNotFound)
        };
        assert_eq!(removed, expected);
        let waits = index.take_signals().waits;
        assert!(!is_answered(&mut index, waits));
        finish(&mut index);
        let left: Vec<_> = (0..RECORDS).filter(|of| *of != number).collect();
        assert_eq!(found(&mut index), left);
        // Nor with its owner, which has not acknowledged that.
        index.expire_segment(id);
        let again = mount(&mut index, 0, 1);
        load(&mut index, 0, again, records());
        finish(&mut index);
        assert_eq!(found(&mut index), left);
    }
}

#[test]
fn a_removal_of_many_keys_between_two_steps_concerns_all_records() {
    for pattern in [false, true] {
        let (mut index, _) = installed_in_part(records(), 2);
        let removed = if pattern {
            let scope = Scope::default();
            index.remove_by_regex("^k[0-9]*[02468]$", &scope, true, at(0))
        } else {
            Ok(index.remove_all("", true, at(0)))
        };
        let each = if pattern { 2 } else { 1 };
        assert_eq!(removed, Ok(i64::try_from(2 * STEP / each).unwrap()));
        // The former value of this key was removed.
        let config = ReplicateConfig::default();
        let closed = index.put_start(CLIENT, "k2", 100, &config, at(0));
        assert_eq!(closed, Err(ErrorCode::NoAvailableHandle));
        finish(&mut index);
        let left = (0..RECORDS).filter(|number| pattern && number % 2 == 1);
        assert_eq!(found(&mut index), left.collect::<Vec<_>>());
    }
}

#[test]
fn what_is_put_between_two_steps_replaces_the_records_of_its_key() {
    let (mut index, _) = installed_in_part(records(), 0);
    // The ledger of another owner is empty.
    let other = mount(&mut index, 1, 0);
    load(&mut index, 1, other, Vec::new());
    assert!(index.step(at(0)));
    let config = ReplicateConfig::default();
    let last = RECORDS - 1;
    let begun = index.put_start(CLIENT, &key(last - 1), 200, &config, at(0));
    assert!(begun.is_ok());
    for (number, size) in [(0, 200), (last, 300)] {
        let name = key(number);
        let started = index.upsert_start(CLIENT, &name, size, &config, at(0));
        assert!(started.is_ok());
        let ended = index.put_end(CLIENT, &meta(&name), ReplicaType::All, at(0));
        assert_eq!(ended, Ok(()));
    }
    finish(&mut index);
    let ended = index.put_end(CLIENT, &meta(&key(last - 1)), ReplicaType::All, at(0));
    assert_eq!(ended, Ok(()));
    let size = |index: &mut Index, number| {
        let found = index.peek(&key(number)).unwrap();
        let sizes = found.replicas().map(|replica| replica.size);
        sizes.collect::<Vec<_>>()
    };
    let sizes = [0, 1, last - 1, last].map(|number| size(&mut index, number));
    assert_eq!(sizes, [[200], [100], [200], [300]]);
}

#[test]
fn an_older_value_of_the_same_ledger_is_never_found() {
    // A run ended between the record of the new value and the removal of the former one, which is at a lower offset.
    let mut entries = records();
    entries.push(entry("twice", 100 * RECORDS, 50, 1, None));
    entries.push(entry("twice", 100 * RECORDS + 100, 100, 2000, None));
    let (mut index, _) = installed_in_part(entries, 0);
    while index.step(at(0)) {
        let found = index.peek("twice").unwrap();
        assert_eq!(found.replicas().next().map(|of| of.size), Some(100));
    }
    assert_eq!(found(&mut index).len() as u64, RECORDS);
}

#[test]
fn an_older_value_of_the_same_ledger_does_not_replace_one_that_is_evicted_between_two_steps() {
    let mut entries = records();
    entries.push(entry("twice", 100 * RECORDS, 50, 1, None));
    entries.push(entry("twice", 100 * RECORDS + 100, 100, 2000, None));
    let (mut index, _) = installed_in_part(entries, 1);
    let id = index.objects.find("twice").unwrap();
    index.erase_evicted(id, Moment::default());
    finish(&mut index);
    assert!(!index.contains("twice"));
    assert_eq!(found(&mut index).len() as u64, RECORDS);
}

#[test]
fn nothing_is_evicted_while_a_part_of_a_ledger_is_installed() {
    for begun in [false, true] {
        let mut index = new_run();
        let id = mount(&mut index, 0, 0);
        load(&mut index, 0, id, records());
        let ledger = arrangement(&mut index);
        let mounted = index.mount_segment(segment(1, MIB), OWNER, at(0));
        assert_eq!(mounted, Ok(()));
        put(&mut index, "other", 1000, at(0)).unwrap();
        index.settings.high_watermark = 0.000_1;
        if begun {
            index.tick(at(20));
        }
        index.install(ledger.arrange());
        while index.ledger_totals().loading > 0 {
            index.tick(at(20));
            assert_eq!(index.counters().evictions, u64::from(begun));
            assert_eq!(index.counters().evicted_objects, 0);
            assert!(index.step(at(20)) || index.ledger_totals().loading == 0);
        }
        for _ in 0..3 {
            work(&mut index, at(20));
        }
        // The oldest ones left.
        let left = found(&mut index);
        assert!((1..RECORDS).contains(&(left.len() as u64)));
        assert_eq!(left, (0..left.len() as u64).collect::<Vec<_>>());
    }
}

#[test]
fn a_tombstone_that_comes_between_two_steps_concerns_all_records() {
    let (mut index, _) = installed_in_part(records(), 2);
    let other = mount(&mut index, 1, 0);
    let dead = [0, RECORDS - 1];
    let note = |number| entry(&key(number), NOTES + 1 + number, 0, 5000, Some("removed"));
    load(&mut index, 1, other, dead.map(note).into());
    finish(&mut index);
    assert_eq!(found(&mut index), (1..RECORDS - 1).collect::<Vec<_>>());
}

#[test]
fn a_segment_that_is_unmounted_between_two_steps_leaves_nothing_and_is_loaded_again() {
    for (steps, installs) in [(0, false), (0, true), (2, true)] {
        let mut index = new_run();
        let id = mount(&mut index, 0, 0);
        load(&mut index, 0, id, records());
        let first = arrangement(&mut index);
        let first = if installs {
            index.install(first.arrange());
            None
        } else {
            Some(first)
        };
        for _ in 0..steps {
            assert!(index.step(at(0)));
        }
        // The engine process is replaced, or the owner was silent.
        let again = mount(&mut index, 0, 1);
        assert!(found(&mut index).is_empty());
        if let Some(first) = first {
            index.install(first.arrange());
        }
        finish(&mut index);
        assert_eq!((index.objects.len(), index.segments.used()), (0, 0));
        load(&mut index, 0, again, records());
        finish(&mut index);
        assert_eq!(found(&mut index), (0..RECORDS).collect::<Vec<_>>());
        assert_eq!(index.segments.used(), u128::from(RECORDS * 100));
        assert_eq!(index.ledger_totals().loaded, 1);
    }
}

#[test]
fn the_ledger_of_another_owner_is_arranged_while_one_is_installed() {
    let mut index = new_run();
    let ids = [0, 1, 2].map(|number| mount(&mut index, number, 0));
    for (number, id) in (0..).zip(ids) {
        load(&mut index, number, id, records());
    }
    let first = arrangement(&mut index);
    assert!(index.next_arrangement(at(0)).is_none(), "one at a time");
    index.install(first.arrange());
    let second = index.next_arrangement(at(0)).unwrap();
    index.install(second.arrange());
    assert!(index.next_arrangement(at(0)).is_none(), "two wait already");
    finish(&mut index);
    assert_eq!(index.ledger_totals().loaded, 3);
    assert_eq!(index.peek("k0").unwrap().replicas().count(), 3);
}

#[test]
fn a_load_that_begins_again_is_freed_in_steps() {
    let mut index = new_run();
    let id = mount(&mut index, 0, 0);
    for _ in 0..2 {
        let part = index.load_ledger(owner(0), id, 0, records(), false, at(0));
        assert_eq!(part, Ok(()));
    }
    let mut steps = 1;
    while index.step(at(0)) {
        steps += 1;
    }
    assert_eq!(steps, RECORDS / STEP);
    let missing = index.load_ledger(owner(0), id, 1, records(), true, at(0));
    assert_eq!(missing, Err(ErrorCode::InvalidParams));
    load(&mut index, 0, id, records());
    finish(&mut index);
    assert_eq!(found(&mut index).len() as u64, RECORDS);
}

/// The own name of a ledger means that it names all others: it counts when these are read.
#[test]
fn the_notes_of_a_ledger_are_taken_in_steps_before_it_counts_as_read() {
    let mut index = new_run();
    let ids = [0, 1].map(|number| mount(&mut index, number, 0));
    load(&mut index, 1, ids[1], Vec::new());
    let mut notes = Vec::new();
    for (number, of) in (0..).zip([0, 1, 9]) {
        let name = format!("s{of}");
        let mut note = entry(&name, NOTES + 1 + number, 0, 0, Some("member"));
        note.stored.as_mut().unwrap().client = owner(of);
        notes.push(note);
        let key = |of| format!("removed-{}", STEP * number + of);
        let offset = |of| NOTES + 100 + STEP * number + of;
        let removed = |of| entry(&key(of), offset(of), 0, 5000, Some("removed"));
        notes.extend((0..STEP).map(removed));
    }
    let (all, record) = (notes.len(), entry("removed-29", 0, 100, 1, None));
    notes.push(record);
    load(&mut index, 0, ids[0], notes);
    let mut steps = 1;
    while index.installs.is_noting() {
        index.tick(Moment(at(0).0 + steps * 100_000));
        assert!(!is_signed(&mut index, ids[1]), "it does not name s9 yet");
        index.step(at(0));
        steps += 1;
    }
    assert_eq!(steps, (all as u64).div_ceil(STEP));
    assert_eq!(index.ledger_totals().tombstones, 3 * STEP);
    assert_eq!(index.ledger_details().1, ["s9"]);
    // It waits for that owner, and its removed value does not come back.
    for look in 0..60 {
        work(&mut index, Moment(at(1).0 + look * 100_000));
    }
    // A single record is installed without further steps.
    assert_eq!(index.ledger_totals().loaded, 2);
    assert!(!index.contains("removed-29"));
}

/// Returns whether the changes of a segment contain its own name.
#[test]
fn no_ledger_is_installed_before_the_notes_of_all_that_have_arrived_are_taken() {
    let mut index = new_run();
    let ids = [0, 1, 2].map(|number| mount(&mut index, number, 0));
    load(&mut index, 0, ids[0], vec![entry("dead", 0, 100, 1, None)]);
    let removed = |key: &str, number| entry(key, NOTES + 1 + number, 0, 5000, Some("removed"));
    let others = (0..3 * STEP).map(|number| removed(&key(number), number));
    load(&mut index, 1, ids[1], others.collect());
    // Behind them.
    load(&mut index, 2, ids[2], vec![removed("dead", 0)]);
    // So long that a ledger of which no part comes is not awaited any more.
    for look in 0..100 {
        index.tick(Moment(at(0).0 + look * 100_000));
    }
    while index.step(at(10)) {
        assert!(index.peek("dead").is_err());
    }
    assert!(index.peek("dead").is_err());
}

fn is_signed(index: &mut Index, segment: Uuid) -> bool {
    let position = proto::store::ledger::Position {
        segment,
        applied: 0,
        unrecorded: 0,
    };
    let changes = index.poll_ledger(owner(1), &[position], at(0)).unwrap();
    let mut names = changes[0]
        .entries
        .iter()
        .filter_map(|of| of.stored.as_ref());
    names.any(|of| of.key == "s1")
}
