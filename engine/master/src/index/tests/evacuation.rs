//! An owner that ends: its objects move to other owners.

use proto::store::ledger::{Changes, Ended, Entry, Evacuation, Position, Version};

use super::*;
use crate::index::EvacuationTotals;

const MIB: u64 = 1 << 20;

pub(super) fn owner(number: u64) -> Uuid {
    Uuid {
        first: 50,
        second: number,
    }
}

const ATTEMPT: Uuid = Uuid {
    first: 60,
    second: 1,
};

/// Owners with one segment and a ledger each.
pub(super) struct Pools {
    pub(super) index: Index,
    pub(super) ledgers: Vec<BTreeMap<u64, Entry>>,
    pub(super) applied: Vec<u64>,
}

impl Pools {
    pub(super) fn new(sizes: &[u64]) -> Self {
        let mut pools = Self {
            index: Index::new(long_lived(), 7).in_epoch(1),
            ledgers: Vec::new(),
            applied: Vec::new(),
        };
        for (number, &size) in (0..).zip(sizes) {
            pools.ledgers.push(BTreeMap::new());
            pools.applied.push(0);
            pools.mount(number, size, at(0));
        }
        pools
    }

    /// Mounts the segment of an owner with its ledger.
    pub(super) fn mount(&mut self, number: u64, size: u64, now: Moment) {
        let ledger = &self.ledgers[usize::try_from(number).unwrap()];
        let entries = ledger.values().cloned().collect();
        let (client, segment) = (owner(number), segment(number, size));
        let id = segment.id;
        assert_eq!(self.index.mount_ledger(client, segment, 1, now), Ok(false));
        self.index
            .load_ledger(client, id, 0, entries, true, now)
            .unwrap();
    }

    /// The owner applies and acknowledges all its changes.
    pub(super) fn follow(&mut self, number: usize, now: Moment) {
        let client = owner(number as u64);
        let segment = segment(number as u64, 1).id;
        loop {
            let position = Position {
                segment,
                applied: self.applied[number],
                unrecorded: 0,
            };
            let changes = self.index.poll_ledger(client, &[position], now).unwrap();
            let [Changes { first, entries, .. }] = &changes[..] else {
                panic!("{changes:?}");
            };
            if entries.is_empty() {
                return;
            }
            for entry in entries {
                let ledger = &mut self.ledgers[number];
                match &entry.stored {
                    Some(_) => drop(ledger.insert(entry.offset, entry.clone())),
                    None => ledger
                        .retain(|at, known| (*at, known.version) != (entry.offset, entry.version)),
                }
            }
            self.applied[number] = first + entries.len() as u64 - 1;
        }
    }

    pub(super) fn follow_all(&mut self, now: Moment) {
        // A range leaves after the record of what replaces it.
        for _ in 0..2 {
            for number in 0..self.ledgers.len() {
                self.follow(number, now);
            }
        }
    }

    /// Puts an object into the segment of an owner.
    pub(super) fn put(&mut self, key: &str, size: u64, number: u64, now: Moment) {
        let config = ReplicateConfig {
            preferred_segment: format!("s{number}"),
            ..ReplicateConfig::default()
        };
        let replicas = put_with(&mut self.index, key, size, &config, now).unwrap();
        assert_eq!(place(&replicas[0]), format!("node{number}:12001"));
        self.follow_all(now);
    }

    pub(super) fn call(&mut self, number: u64, ended: &Ended, now: Moment) -> Evacuation {
        let answer = self.index.evacuate(owner(number), ATTEMPT, ended, now);
        answer.unwrap()
    }

    /// Copies everything until nothing happens any more. Returns the last answer and the keys in the order of their moves.
    pub(super) fn run(&mut self, number: u64, now: Moment) -> Evacuation {
        let mut ended = Ended::default();
        for _ in 0..1000 {
            let answer = self.call(number, &ended, now);
            self.follow_all(now);
            ended.written = ids(&answer);
            if answer.finished || (answer.relocations.is_empty() && !answer.more) {
                return self.call(number, &Ended::default(), now);
            }
        }
        panic!("no end");
    }

    pub(super) fn size(&mut self, key: &str, now: Moment) -> Result<u64, ErrorCode> {
        let found = self.index.get_replica_list(key, now)?;
        let first = found.replicas().next();
        first
            .map(|view| view.size)
            .ok_or(ErrorCode::ReplicaIsNotReady)
    }

    fn endpoint(&mut self, key: &str, now: Moment) -> Result<String, ErrorCode> {
        let found = self.index.get_replica_list(key, now)?;
        let endpoints: Vec<_> = found.replicas().map(|view| view.endpoint).collect();
        Ok(endpoints.join(" "))
    }

    /// Returns the keys in the ledger of an owner, whose other records have no bytes.
    pub(super) fn recorded(&self, number: usize) -> Vec<String> {
        let entries = self.ledgers[number].values();
        let entries = entries.filter(|entry| entry.offset < MIB);
        let stored = entries.filter_map(|entry| entry.stored.as_ref());
        stored.map(|stored| stored.key.clone()).collect()
    }
}

fn place(replica: &ReplicaDescriptor) -> String {
    match &replica.location {
        Location::Memory(memory) => memory.endpoint.clone(),
        other => panic!("{other:?}"),
    }
}

fn ids(answer: &Evacuation) -> Vec<Version> {
    answer.relocations.iter().map(|of| of.id).collect()
}

pub(super) fn written(answer: &Evacuation) -> Ended {
    Ended {
        written: ids(answer),
        ..Ended::default()
    }
}

#[test]
fn all_objects_move_and_stay_readable_and_recorded() {
    let mut pools = Pools::new(&[MIB, MIB, MIB]);
    for number in 0..500 {
        pools.put(&format!("k{number}"), 1000, 0, at(0));
    }
    let last = pools.run(0, at(20));
    assert!(
        last.finished && last.left == 0 && last.unmovable == 0,
        "{last:?}"
    );
    assert!(pools.recorded(0).is_empty());
    assert_eq!(pools.recorded(1).len() + pools.recorded(2).len(), 500);
    pools.index.unmount_segment(segment(0, MIB).id);
    for number in 0..500 {
        let endpoint = pools.endpoint(&format!("k{number}"), at(20)).unwrap();
        assert!(
            endpoint.starts_with("node1") || endpoint.starts_with("node2"),
            "{endpoint}"
        );
    }
    let counters = pools.index.counters();
    assert_eq!(
        (counters.moved_replicas, counters.moved_bytes),
        (500, 500_000)
    );
    assert_eq!((counters.failed_moves, counters.unmoved_objects), (0, 0));
    // All former ranges are free, no target is left over.
    assert_eq!(pools.index.totals().used, 500_000);
}

#[test]
fn nothing_new_is_placed_in_a_segment_whose_owner_ends() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.call(0, &Ended::default(), at(20));
    let config = ReplicateConfig {
        preferred_segment: "s0".into(),
        ..ReplicateConfig::default()
    };
    for number in 0..20 {
        let replicas = put_with(
            &mut pools.index,
            &format!("k{number}"),
            1000,
            &config,
            at(20),
        );
        assert_eq!(place(&replicas.unwrap()[0]), "node1:12001");
    }
    let status = pools.index.segment_status_by_id(segment(0, MIB).id);
    assert_eq!(status, Ok(SegmentStatus::GracefullyUnmounting));
}

#[test]
fn objects_used_last_move_first_and_a_limited_number_at_a_time() {
    let mut pools = Pools::new(&[MIB, MIB]);
    for number in 0..200 {
        pools.put(&format!("k{number}"), 1000, 0, at(0));
    }
    // Neither the first ones nor the last ones.
    let used = 70..134;
    for number in used.clone() {
        pools.endpoint(&format!("k{number}"), at(1)).unwrap();
    }
    let first = pools.call(0, &Ended::default(), at(20));
    assert_eq!(first.relocations.len(), 64);
    pools.call(0, &written(&first), at(20));
    for number in 0..200 {
        let endpoint = pools.endpoint(&format!("k{number}"), at(20)).unwrap();
        assert_eq!(
            endpoint == "node1:12001",
            used.contains(&number),
            "k{number} {endpoint}"
        );
    }
}

#[test]
fn an_object_that_was_replaced_or_removed_during_its_copy_stays_so() {
    let mut pools = Pools::new(&[MIB, MIB]);
    for key in ["replaced", "removed", "put again"] {
        pools.put(key, 1000, 0, at(0));
    }
    let answer = pools.call(0, &Ended::default(), at(20));
    assert_eq!(answer.relocations.len(), 3);
    let config = ReplicateConfig::default();
    let index = &mut pools.index;
    index
        .upsert_start(CLIENT, "replaced", 2000, &config, at(20))
        .unwrap();
    index
        .put_end(CLIENT, &meta("replaced"), ReplicaType::All, at(20))
        .unwrap();
    for key in ["removed", "put again"] {
        index.remove(key, true, at(20)).unwrap();
    }
    put(index, "put again", 3000, at(20)).unwrap();
    let used = index.totals().used;
    pools.call(0, &written(&answer), at(20));
    pools.follow_all(at(20));
    // The targets of the copies are free again, and the former ranges.
    assert_eq!(pools.index.totals().used, used - 6000);
    assert_eq!(pools.size("replaced", at(20)), Ok(2000));
    assert_eq!(pools.size("put again", at(20)), Ok(3000));
    assert_eq!(
        pools.size("removed", at(20)),
        Err(ErrorCode::ObjectNotFound)
    );
    assert!(pools.run(0, at(20)).finished);
}

#[test]
fn a_former_range_leaves_its_ledger_only_after_the_new_one_is_recorded() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let answer = pools.call(0, &Ended::default(), at(20));
    let next = pools.call(0, &written(&answer), at(20));
    assert_eq!(next.left, 0);
    // The new owner has not recorded it.
    pools.follow(0, at(20));
    assert_eq!(pools.recorded(0), ["k"]);
    assert!(!pools.call(0, &Ended::default(), at(20)).finished);
    pools.follow(1, at(20));
    assert_eq!(pools.recorded(1), ["k"]);
    assert!(!pools.call(0, &Ended::default(), at(20)).finished);
    pools.follow(0, at(20));
    assert!(pools.recorded(0).is_empty());
    assert!(pools.call(0, &Ended::default(), at(20)).finished);
}

#[test]
fn a_removal_after_a_move_waits_for_both_ranges() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let answer = pools.call(0, &Ended::default(), at(20));
    pools.call(0, &written(&answer), at(20));
    pools.index.take_signals();
    pools.index.remove("k", false, at(20)).unwrap();
    let mut waits = pools.index.take_signals().waits;
    pools.follow(1, at(20));
    assert!(
        !pools.index.have_happened(&mut waits),
        "the former range is recorded"
    );
    pools.follow(0, at(20));
    assert!(pools.index.have_happened(&mut waits));
    assert!(pools.recorded(0).is_empty() && pools.recorded(1).is_empty());
}

#[test]
fn a_new_owner_that_comes_back_brings_the_moved_object() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    assert!(pools.run(0, at(20)).finished);
    // Its engine process comes back with another segment of the same memory.
    let mut fresh = segment(1, MIB);
    fresh.id.second = 9;
    let (client, id) = (owner(1), fresh.id);
    let mounted = pools.index.mount_ledger(client, fresh, 1, at(21));
    assert_eq!(mounted, Ok(false));
    let entries = pools.ledgers[1].values().cloned().collect();
    let loaded = pools
        .index
        .load_ledger(client, id, 0, entries, true, at(21));
    assert_eq!(loaded, Ok(()));
    assert_eq!(pools.size("k", at(21)), Ok(1000));
}

#[test]
fn the_owner_stays_until_the_readers_of_former_ranges_have_finished() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    assert_eq!(pools.endpoint("k", at(20)).unwrap(), "node0:12001");
    let answer = pools.run(0, at(21));
    assert!(answer.left == 0 && !answer.finished, "{answer:?}");
    assert_eq!(pools.endpoint("k", at(22)).unwrap(), "node1:12001");
    // The former range, which rests, is no object there.
    let mut search = pools
        .index
        .begin_search(&Scope::default(), "", None, 1)
        .unwrap();
    while pools.index.search(&mut search) {}
    let found = search
        .segments()
        .iter()
        .map(|one| (one.leaves, one.objects));
    assert_eq!(found.collect::<Vec<_>>(), [(true, 0), (false, 1)]);
    assert_eq!(search.found(), (1, 1000));
    assert!(!pools.call(0, &Ended::default(), at(29)).finished);
    assert!(pools.call(0, &Ended::default(), at(31)).finished);
}

#[test]
fn without_another_owner_it_ends_at_once_except_after_the_start_of_the_master() {
    let mut pools = Pools::new(&[MIB]);
    pools.put("k", 1000, 0, at(0));
    let answer = pools.call(0, &Ended::default(), at(20));
    assert!(answer.finished && answer.unmovable == 1, "{answer:?}");
    pools.index.unmount_segment(segment(0, MIB).id);
    assert_eq!(pools.index.counters().unmoved_objects, 1);

    let mut pools = Pools::new(&[MIB]);
    pools.put("k", 1000, 0, at(0));
    let early = at(9);
    let answer = pools.call(0, &Ended::default(), early);
    assert!(!answer.finished && answer.left == 1, "{answer:?}");
    pools.ledgers.push(BTreeMap::new());
    pools.applied.push(0);
    pools.mount(1, MIB, early);
    let answer = pools.call(0, &Ended::default(), early);
    assert_eq!(answer.relocations.len(), 1);
}

#[test]
fn owners_that_end_together_move_nothing_to_each_other() {
    let mut pools = Pools::new(&[MIB, MIB]);
    for number in 0..2 {
        pools.put(&format!("k{number}"), 1000, number, at(0));
    }
    pools.call(0, &Ended::default(), at(20));
    let answer = pools.call(1, &Ended::default(), at(20));
    assert!(answer.finished && answer.unmovable == 1, "{answer:?}");
}

#[test]
fn an_owner_that_ends_waits_for_the_one_in_place_of_another_that_has_ended() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    assert!(pools.call(1, &Ended::default(), at(20)).finished);
    pools.index.unmount_segment(segment(1, MIB).id);
    let answer = pools.call(0, &Ended::default(), at(79));
    assert_eq!((answer.left, answer.finished), (1, false), "{answer:?}");
    pools.ledgers[1].clear();
    pools.applied[1] = 0;
    pools.mount(1, MIB, at(79));
    let answer = pools.run(0, at(79));
    assert!(answer.finished && answer.unmovable == 0, "{answer:?}");
    assert_eq!(pools.size("k", at(79)), Ok(1000));

    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    assert!(pools.call(1, &Ended::default(), at(20)).finished);
    pools.index.unmount_segment(segment(1, MIB).id);
    let answer = pools.call(0, &Ended::default(), at(81));
    assert!(answer.finished && answer.unmovable == 1, "{answer:?}");
}

#[test]
fn of_owners_that_end_together_that_with_the_fewest_bytes_goes_first() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("few", 1000, 0, at(0));
    pools.put("many", 2000, 1, at(0));
    let copied = Ended {
        written: ids(&pools.call(0, &Ended::default(), at(20))),
        ..Ended::default()
    };
    let answer = pools.call(1, &Ended::default(), at(20));
    assert_eq!((answer.left, answer.finished), (1, false), "{answer:?}");
    // The other one may have been counted before the end of this copy.
    assert_eq!(copied.written.len(), 1);
    let answer = pools.call(0, &copied, at(20));
    assert_eq!((answer.left, answer.finished), (1, false), "{answer:?}");
    assert_eq!(pools.endpoint("few", at(20)).unwrap(), "node0:12001");
    let answer = pools.call(0, &Ended::default(), at(21));
    assert_eq!((answer.left, answer.unmovable), (0, 1), "{answer:?}");
    pools.index.unmount_segment(segment(0, MIB).id);
    pools.ledgers[0].clear();
    pools.applied[0] = 0;
    pools.mount(0, MIB, at(40));
    let answer = pools.run(1, at(40));
    assert!(answer.finished && answer.unmovable == 0, "{answer:?}");
    assert_eq!(pools.size("many", at(40)), Ok(2000));
}

#[test]
fn what_was_used_longest_ago_elsewhere_makes_room() {
    let mut pools = Pools::new(&[10_000, 10_000]);
    for number in 0..10 {
        pools.put(&format!("old{number}"), 1000, 1, at(0));
    }
    for number in 0..5 {
        pools.put(&format!("new{number}"), 1000, 0, at(100));
    }
    let mut ended = Ended::default();
    let mut now = at(100);
    for _ in 0..100 {
        let answer = pools.call(0, &ended, now);
        ended = written(&answer);
        pools.follow_all(now);
        pools.index.tick(now);
        while pools.index.step(now) {}
        pools.follow_all(now);
        if answer.finished {
            break;
        }
        now = now.after(Duration::from_millis(100));
    }
    for number in 0..5 {
        let endpoint = pools.endpoint(&format!("new{number}"), now);
        assert_eq!(endpoint.as_deref(), Ok("node1:12001"), "new{number}");
    }
    let olds = (0..10).filter(|number| pools.endpoint(&format!("old{number}"), now).is_ok());
    assert_eq!(olds.count(), 5);
    assert_eq!(pools.index.counters().evicted_objects, 5);
}

#[test]
fn the_bytes_that_do_not_fit_elsewhere_are_reported_before_the_first_copy() {
    let mut pools = Pools::new(&[8 * MIB, 4 * MIB, 2 * MIB]);
    for number in 0..7 {
        pools.put(&format!("k{number}"), MIB, 0, at(1));
    }
    pools.put("other", MIB, 1, at(1));
    assert_eq!(pools.index.evacuation_totals(), EvacuationTotals::default());

    let answer = pools.call(0, &Ended::default(), at(30_000));
    let totals = pools.index.evacuation_totals();
    assert_eq!((totals.owners, totals.counted_owners), (1, 1));
    assert_eq!((totals.left_objects, totals.left_bytes), (7, 7 * MIB));
    // 3 MiB were free in one segment and 2 MiB in the other one; the first copies use them already.
    assert_eq!(answer.relocations.len(), 5);
    assert_eq!(totals.excess_bytes, 2 * MIB);

    // What has moved is no longer left, although readers may still use the former ranges.
    let after = pools.call(0, &written(&answer), at(30_001));
    let totals = pools.index.evacuation_totals();
    assert_eq!((totals.left_objects, totals.left_bytes), (2, 2 * MIB));
    assert_eq!((after.left, totals.excess_bytes), (2, 2 * MIB));

    pools.index.unmount_segment(segment(0, 1).id);
    assert_eq!(pools.index.evacuation_totals(), EvacuationTotals::default());
}

#[test]
fn a_failed_copy_is_repeated_a_bounded_number_of_times_and_an_open_one_keeps_its_range() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let mut now = at(20);
    let mut copies = 0;
    for _ in 0..1000 {
        let answer = pools.call(0, &Ended::default(), now);
        let failed = Ended {
            failed: ids(&answer),
            ..Ended::default()
        };
        copies += failed.failed.len();
        let answer = pools.call(0, &failed, now);
        assert_eq!(pools.index.totals().used, 1000, "the target is free again");
        if answer.finished {
            break;
        }
        now = now.after(Duration::from_millis(100));
    }
    assert_eq!(copies, 8);
    assert_eq!(pools.index.counters().failed_moves, 8);
    assert_eq!(pools.size("k", now), Ok(1000));

    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let answer = pools.call(0, &Ended::default(), at(20));
    let unknown = Ended {
        unknown: ids(&answer),
        ..Ended::default()
    };
    pools.call(0, &unknown, at(20));
    while pools.index.step(at(600)) {}
    assert_eq!(pools.index.totals().used, 2000, "the target rests");
    while pools.index.step(at(621)) {}
    assert_eq!(pools.index.totals().used, 1000);
}

#[test]
fn the_copies_of_a_process_that_died_are_made_again_elsewhere() {
    let mut pools = Pools::new(&[MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let first = pools.call(0, &Ended::default(), at(20));
    assert_eq!(ids(&pools.call(0, &Ended::default(), at(20))), ids(&first));
    let another = Uuid {
        first: 60,
        second: 2,
    };
    let again = pools
        .index
        .evacuate(owner(0), another, &Ended::default(), at(21))
        .unwrap();
    let [one] = &again.relocations[..] else {
        panic!("{again:?}");
    };
    assert_ne!(one.id, first.relocations[0].id);
    assert_ne!(
        one.target, first.relocations[0].target,
        "the former target rests"
    );
    // The results of the former process have no effect.
    let late = pools
        .index
        .evacuate(owner(0), another, &written(&first), at(21))
        .unwrap();
    assert_eq!(late.relocations, again.relocations);
    while pools.index.step(at(622)) {}
    assert_eq!(pools.index.totals().used, 2000);
}

#[test]
fn a_put_that_began_before_moves_when_it_has_ended() {
    let mut pools = Pools::new(&[MIB, MIB]);
    let config = ReplicateConfig {
        preferred_segment: "s0".into(),
        ..ReplicateConfig::default()
    };
    let index = &mut pools.index;
    for key in ["k", "given up"] {
        index.put_start(CLIENT, key, 1000, &config, at(20)).unwrap();
    }
    let answer = pools.call(0, &Ended::default(), at(20));
    assert!(!answer.finished && answer.left == 0);
    pools
        .index
        .put_end(CLIENT, &meta("k"), ReplicaType::All, at(21))
        .unwrap();
    pools.follow_all(at(21));
    assert!(!pools.run(0, at(22)).finished);
    assert!(!pools.run(0, at(23)).finished);
    assert_eq!(pools.endpoint("k", at(23)).unwrap(), "node1:12001");
    // The writer of the other one does not end it.
    pools.run(0, at(26));
    assert!(pools.run(0, at(40)).finished);
}

#[test]
fn a_target_that_is_unmounted_during_the_copy_is_replaced_by_another() {
    let mut pools = Pools::new(&[MIB, MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let answer = pools.call(0, &Ended::default(), at(20));
    let number = u64::from(answer.relocations[0].endpoint == "node2:12001") + 1;
    pools.index.unmount_segment(segment(number, MIB).id);
    let answer = pools.call(0, &written(&answer), at(20));
    assert_eq!(answer.left, 1);
    assert_eq!(pools.endpoint("k", at(20)).unwrap(), "node0:12001");
    let answer = pools.call(0, &Ended::default(), at(21));
    let other = format!("node{}:12001", 3 - number);
    assert_eq!(answer.relocations[0].endpoint, other);
}

#[test]
fn replicas_of_one_object_stay_below_different_names() {
    let mut pools = Pools::new(&[MIB, MIB]);
    let config = ReplicateConfig {
        replica_num: 2,
        ..ReplicateConfig::default()
    };
    let replicas = put_with(&mut pools.index, "k", 1000, &config, at(0)).unwrap();
    assert_eq!(replicas.len(), 2);
    pools.follow_all(at(0));
    let answer = pools.call(0, &Ended::default(), at(20));
    assert!(answer.finished && answer.unmovable == 0, "{answer:?}");
    pools.index.unmount_segment(segment(0, MIB).id);
    assert_eq!(pools.endpoint("k", at(20)).unwrap(), "node1:12001");
}

#[test]
fn a_replica_that_was_cleared_during_its_copy_replaces_no_other() {
    let mut pools = Pools::new(&[MIB, MIB, MIB]);
    let config = ReplicateConfig {
        replica_num: 2,
        preferred_segments: vec!["s0".into(), "s1".into()],
        ..ReplicateConfig::default()
    };
    put_with(&mut pools.index, "k", 1000, &config, at(0)).unwrap();
    pools.follow_all(at(0));
    let answer = pools.call(0, &Ended::default(), at(20));
    assert_eq!(answer.relocations.len(), 1);
    let keys = vec!["k".to_owned()];
    let cleared = pools.index.clear_replicas(keys, CLIENT, "s0", at(20));
    assert_eq!(cleared, ["k"]);
    pools.call(0, &written(&answer), at(20));
    pools.follow_all(at(20));
    assert_eq!(pools.endpoint("k", at(20)).unwrap(), "node1:12001");
    assert_eq!(pools.index.totals().used, 1000);
}

#[test]
fn only_the_owner_of_a_loaded_ledger_can_end() {
    let mut pools = Pools::new(&[MIB]);
    let mut call = |client| {
        let ended = Ended::default();
        pools.index.evacuate(client, ATTEMPT, &ended, at(20))
    };
    assert_eq!(call(CLIENT), Err(ErrorCode::SegmentNotFound));
    assert!(call(owner(0)).is_ok());
    let mounted = pools
        .index
        .mount_ledger(owner(7), segment(7, MIB), 1, at(20));
    assert_eq!(mounted, Ok(false));
    let answer = pools
        .index
        .evacuate(owner(7), ATTEMPT, &Ended::default(), at(20));
    assert_eq!(answer, Err(ErrorCode::UnavailableInCurrentStatus));
}

/// An object has moved from owner 0, and its new owner has not recorded it.
fn unrecorded() -> (Pools, u64) {
    let mut pools = Pools::new(&[MIB, MIB, MIB]);
    pools.put("k", 1000, 0, at(0));
    let answer = pools.call(0, &Ended::default(), at(20));
    let target = u64::from(answer.relocations[0].endpoint == "node2:12001") + 1;
    pools.call(0, &written(&answer), at(20));
    let moved = format!("node{target}:12001");
    assert_eq!(pools.endpoint("k", at(20)), Ok(moved));
    (pools, target)
}

#[test]
fn a_former_range_is_used_again_if_the_new_one_is_lost_before_it_is_recorded() {
    for silent in [false, true] {
        let (mut pools, target) = unrecorded();
        let lost = segment(target, MIB).id;
        if silent {
            pools.index.expire_segment(lost);
        } else {
            pools.index.unmount_segment(lost);
        }
        while pools.index.step(at(20)) {}
        pools.follow(0, at(20));
        assert_eq!(pools.recorded(0), ["k"]);
        assert_eq!(pools.endpoint("k", at(20)).unwrap(), "node0:12001");
        assert_eq!(pools.index.totals().used, 1000);
        // It moves again, to the other owner.
        let answer = pools.call(0, &Ended::default(), at(31));
        assert_eq!((answer.left, answer.relocations.len()), (1, 1));
        let other = 3 - target;
        pools.call(0, &written(&answer), at(31));
        for number in [other, 0] {
            pools.follow(usize::try_from(number).unwrap(), at(31));
        }
        assert!(pools.recorded(0).is_empty());
        let endpoint = format!("node{other}:12001");
        assert_eq!(pools.endpoint("k", at(31)), Ok(endpoint));
        assert!(pools.call(0, &Ended::default(), at(42)).finished);
    }
}

#[test]
fn a_former_range_waits_for_the_record_of_the_last_of_several_moves() {
    let (mut pools, target) = unrecorded();
    let other = 3 - target;
    let answer = pools.call(target, &Ended::default(), at(20));
    let endpoint = format!("node{other}:12001");
    assert_eq!(answer.relocations[0].endpoint, endpoint);
    pools.call(target, &written(&answer), at(20));
    pools.index.unmount_segment(segment(target, MIB).id);
    pools.follow(0, at(20));
    assert_eq!(pools.recorded(0), ["k"]);
    pools.follow(usize::try_from(other).unwrap(), at(20));
    pools.follow(0, at(20));
    assert!(pools.recorded(0).is_empty());
    assert_eq!(pools.endpoint("k", at(20)), Ok(endpoint));
}

#[test]
fn a_chain_of_moves_without_a_record_ends_at_the_first_owner() {
    for last_first in [false, true] {
        let (mut pools, target) = unrecorded();
        let other = 3 - target;
        let answer = pools.call(target, &Ended::default(), at(20));
        pools.call(target, &written(&answer), at(20));
        let lost = if last_first {
            [other, target]
        } else {
            [target, other]
        };
        for number in lost {
            pools.index.unmount_segment(segment(number, MIB).id);
            while pools.index.step(at(20)) {}
        }
        pools.follow(0, at(20));
        assert_eq!(pools.recorded(0), ["k"]);
        assert_eq!(pools.endpoint("k", at(20)).unwrap(), "node0:12001");
    }
}

#[test]
fn a_former_range_leaves_with_an_object_that_was_removed_or_replaced() {
    let (mut pools, target) = unrecorded();
    pools.index.take_signals();
    pools.index.remove("k", true, at(20)).unwrap();
    let mut removal = pools.index.take_signals().waits;
    pools.index.unmount_segment(segment(target, MIB).id);
    while pools.index.step(at(20)) {}
    assert!(!pools.index.have_happened(&mut removal));
    for number in [3 - target, 0] {
        pools.follow(usize::try_from(number).unwrap(), at(20));
    }
    assert!(pools.recorded(0).is_empty() && pools.index.have_happened(&mut removal));

    let (mut pools, target) = unrecorded();
    let config = ReplicateConfig {
        preferred_segment: format!("s{}", 3 - target),
        ..ReplicateConfig::default()
    };
    let index = &mut pools.index;
    let begun = index.upsert_start(CLIENT, "k", 2000, &config, at(20));
    assert!(begun.is_ok());
    index.unmount_segment(segment(target, MIB).id);
    pools.follow(0, at(20));
    assert_eq!(pools.recorded(0), ["k"], "a restart finds the old value");
    let index = &mut pools.index;
    let ended = index.put_end(CLIENT, &meta("k"), ReplicaType::All, at(20));
    assert_eq!(ended, Ok(()));
    pools.follow(usize::try_from(3 - target).unwrap(), at(20));
    pools.follow(0, at(20));
    assert!(pools.recorded(0).is_empty());
    assert_eq!(pools.size("k", at(20)), Ok(2000));
}

#[test]
fn a_replica_stays_that_its_owner_brings_again_after_another_one_was_cleared() {
    let mut pools = Pools::new(&[MIB, MIB]);
    let config = ReplicateConfig {
        replica_num: 2,
        ..ReplicateConfig::default()
    };
    put_with(&mut pools.index, "k", 1000, &config, at(0)).unwrap();
    pools.follow_all(at(0));
    let keys = vec!["k".to_owned()];
    let cleared = pools.index.clear_replicas(keys, CLIENT, "s0", at(20));
    assert_eq!(cleared, ["k"]);
    pools.follow_all(at(20));
    assert!(pools.recorded(0).is_empty());
    pools.index.expire_segment(segment(1, MIB).id);
    pools.applied[1] = 0;
    pools.mount(1, MIB, at(21));
    assert_eq!(pools.endpoint("k", at(21)).unwrap(), "node1:12001");
}
