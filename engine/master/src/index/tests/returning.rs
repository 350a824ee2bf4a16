//! Owners that come back in a run: they keep their keys, and nothing that was removed or replaced meanwhile returns.

use super::evacuation::{Pools, owner};
use super::*;
use crate::index::Removal;

const MIB: u64 = 1 << 20;
/// More than the index remembers of removed keys.
const MANY: usize = (1 << 18) + 1000;
const ROUND: usize = 250;

/// Looks at clients and segments; the owners in `polling` poll before.
fn look(pools: &mut Pools, polling: &[usize], now: Moment) {
    for &number in polling {
        pools.follow(number, now);
    }
    pools.index.tick(now);
    while pools.index.step(now) {}
}

fn looks(pools: &mut Pools, polling: &[usize], from: u64, seconds: u64) {
    for tenth in 0..seconds * 10 {
        look(pools, polling, Moment(at(from).0 + tenth * 100_000));
    }
}

/// Owners whose ledgers name each other.
fn acquainted(count: usize) -> Pools {
    let mut pools = Pools::new(&vec![16 * MIB; count]);
    let all: Vec<_> = (0..count).collect();
    looks(&mut pools, &all, 0, 3);
    pools
}

fn expire(pools: &mut Pools, number: u64) {
    pools.index.expire_segment(segment(number, MIB).id);
}

/// An owner comes back with all that is in its ledger.
fn come_back(pools: &mut Pools, number: usize, now: Moment) {
    let entries = pools.ledgers[number].values().cloned().collect();
    let mut fresh = segment(number as u64, 16 * MIB);
    fresh.id.first += 1;
    let id = fresh.id;
    let client = owner(number as u64);
    let mounted = pools.index.mount_ledger(client, fresh, 1, now);
    assert_eq!(mounted, Ok(false));
    let loaded = pools.index.load_ledger(client, id, 0, entries, true, now);
    assert_eq!(loaded, Ok(()));
    while pools.index.step(now) {}
}

/// Puts a key below the segment of an owner. No owner polls.
fn put_at(pools: &mut Pools, key: &str, size: u64, number: u64, now: Moment) {
    let config = ReplicateConfig {
        preferred_segment: format!("s{number}"),
        ..ReplicateConfig::default()
    };
    put_with(&mut pools.index, key, size, &config, now).unwrap();
}

fn evict(pools: &mut Pools, key: &str) {
    let id = pools.index.objects.find(key).unwrap();
    pools.index.erase_evicted(id, Moment::default());
}

fn has(pools: &mut Pools, key: &str, now: Moment) -> bool {
    pools.index.get_replica_list(key, now).is_ok()
}

/// Puts and removes, or evicts, many keys in the segment of owner 0.
fn turn_over(pools: &mut Pools, polling: &[usize], evicts: bool, now: Moment) {
    for round in 0..MANY.div_ceil(ROUND) {
        let keys = (0..ROUND).map(|number| format!("{evicts}{round}-{number}"));
        let keys: Vec<_> = keys.collect();
        for key in &keys {
            put_at(pools, key, 1, 0, now);
        }
        for key in &keys {
            if evicts {
                evict(pools, key);
            } else {
                pools.index.remove(key, true, now).unwrap();
            }
        }
        pools.index.take_signals();
        let now = Moment(now.0 + round as u64 * 25_000);
        look(pools, polling, now);
    }
}

#[test]
fn an_owner_keeps_its_keys_after_many_removals_and_evictions() {
    for evicts in [true, false] {
        let mut pools = acquainted(3);
        for number in 0..100 {
            put_at(&mut pools, &format!("k{number}"), 10, 2, at(4));
        }
        pools.index.remove("k0", true, at(5)).unwrap();
        looks(&mut pools, &[0, 1, 2], 5, 1);
        turn_over(&mut pools, &[0, 1, 2], evicts, at(6));
        // Its owner does not know of this removal.
        pools.index.remove("k1", true, at(60)).unwrap();
        expire(&mut pools, 2);
        looks(&mut pools, &[0, 1], 60, 1);
        // While it is away too.
        let _absent = pools.index.remove("k2", true, at(61));
        for number in 0..1000 {
            put_at(&mut pools, &number.to_string(), 1, 0, at(61));
            evict(&mut pools, &number.to_string());
        }
        come_back(&mut pools, 2, at(120));
        let kept = (0..100).filter(|number| has(&mut pools, &format!("k{number}"), at(120)));
        assert_eq!(kept.collect::<Vec<_>>(), (3..100).collect::<Vec<_>>());
        assert_eq!(pools.index.counters().discarded_records, 0);
    }
}

/// A run does not remember all of them. What it does not know any more is discarded, and counted.
#[test]
fn after_too_many_removals_while_an_owner_is_away_none_of_them_returns() {
    let mut pools = acquainted(3);
    for number in 0..100 {
        put_at(&mut pools, &format!("k{number}"), 10, 2, at(4));
    }
    pools.follow(2, at(4));
    expire(&mut pools, 2);
    let _absent = pools.index.remove("k0", true, at(5));
    turn_over(&mut pools, &[0, 1], false, at(6));
    come_back(&mut pools, 2, at(60));
    assert!(!has(&mut pools, "k0", at(60)));
    let kept = (1..100).filter(|number| has(&mut pools, &format!("k{number}"), at(60)));
    assert_eq!(kept.count(), 0);
    assert_eq!(pools.index.counters().discarded_records, 99);
}

/// Owner 1 has a key that was evicted, and has not acknowledged that.
fn with_evicted() -> Pools {
    let mut pools = acquainted(3);
    put_at(&mut pools, "k", 100, 1, at(4));
    pools.follow(1, at(4));
    evict(&mut pools, "k");
    assert!(!has(&mut pools, "k", at(4)));
    pools.index.take_signals();
    pools
}

#[test]
fn an_evicted_value_may_return_with_its_owner() {
    let mut pools = with_evicted();
    expire(&mut pools, 1);
    come_back(&mut pools, 1, at(5));
    assert!(has(&mut pools, "k", at(5)));
}

#[test]
fn what_is_removed_after_its_eviction_does_not_return() {
    for removal in 0..3 {
        let mut pools = with_evicted();
        match removal {
            0 => {
                let absent = pools.index.remove("k", true, at(4));
                assert_eq!(absent, Err(ErrorCode::ObjectNotFound));
            }
            1 => assert_eq!(pools.index.remove_all("", true, at(4)), 0),
            _ => {
                let scope = Scope::default();
                let removed = pools.index.remove_by_regex("^k", &scope, true, at(4));
                assert_eq!(removed, Ok(0));
            }
        }
        // In order: the removal is answered.
        pools.index.unmount_segment(segment(1, MIB).id);
        let mut waits = pools.index.take_signals().waits;
        assert!(pools.index.have_happened(&mut waits));
        come_back(&mut pools, 1, at(5));
        assert!(!has(&mut pools, "k", at(5)), "{removal}");
    }
}

/// The owner goes away after the only step that looks at objects.
#[test]
fn a_removal_in_steps_concerns_the_evicted_values_of_an_owner_that_goes_away_meanwhile() {
    for pattern in [false, true] {
        let mut pools = with_evicted();
        let mut removal = if pattern {
            Removal::begin("^k", Scope::default(), true).unwrap()
        } else {
            pools.index.removal_of_all("", true).unwrap()
        };
        assert!(pools.index.remove_next(&mut removal, at(4)));
        assert!(removal.compare(|| true));
        expire(&mut pools, 1);
        while pools.index.remove_next(&mut removal, at(4)) {
            assert!(removal.compare(|| true));
        }
        come_back(&mut pools, 1, at(5));
        assert!(!has(&mut pools, "k", at(5)), "{pattern}");
    }
}

#[test]
fn a_removal_in_steps_is_not_answered_if_an_owner_falls_silent_before_its_ranges_have_left() {
    for silent in [false, true] {
        let mut pools = acquainted(3);
        put_at(&mut pools, "k", 100, 1, at(4));
        pools.follow(1, at(4));
        pools.index.take_signals();
        let mut removal = pools.index.removal_of_all("", true).unwrap();
        for _ in 0..2 {
            assert!(pools.index.remove_next(&mut removal, at(4)));
            assert!(removal.compare(|| true));
        }
        assert_eq!(removal.removed(), 1);
        if silent {
            expire(&mut pools, 1);
        }
        while pools.index.remove_next(&mut removal, at(4)) {
            assert!(removal.compare(|| true));
        }
        let mut waits = pools.index.take_signals().waits;
        assert!(!pools.index.have_happened(&mut waits));
        for number in 0..3 {
            if number != 1 || !silent {
                pools.follow(number, at(4));
            }
        }
        assert_eq!(pools.index.have_happened(&mut waits), !silent);
    }
}

#[test]
fn a_removal_of_other_keys_leaves_an_evicted_value() {
    let mut pools = with_evicted();
    let scope = Scope::default();
    let removed = pools.index.remove_by_regex("^other", &scope, true, at(4));
    assert_eq!(removed, Ok(0));
    expire(&mut pools, 1);
    come_back(&mut pools, 1, at(5));
    assert!(has(&mut pools, "k", at(5)));
}

#[test]
fn a_value_that_was_replaced_after_its_eviction_does_not_return() {
    let mut pools = with_evicted();
    put_at(&mut pools, "k", 200, 0, at(4));
    evict(&mut pools, "k");
    pools.follow(0, at(4));
    expire(&mut pools, 1);
    come_back(&mut pools, 1, at(5));
    assert!(!has(&mut pools, "k", at(5)));
}

/// Also beyond the tombstones of puts.
#[test]
fn a_value_that_was_replaced_while_its_owner_was_away_does_not_return_when_the_new_one_is_evicted()
{
    let mut pools = acquainted(3);
    for key in ["k", "other"] {
        put_at(&mut pools, key, 100, 1, at(4));
    }
    pools.follow(1, at(4));
    expire(&mut pools, 1);
    for number in 0..(1 << 16) {
        put(&mut pools.index, &number.to_string(), 1, at(5)).unwrap();
        pools.index.take_signals();
        if number % 1000 == 0 {
            for number in [0, 2] {
                pools.follow(number, at(5));
            }
        }
    }
    let tombstones = |pools: &Pools| pools.index.ledger_totals().tombstones;
    assert_eq!(tombstones(&pools), 1 << 16);
    put_at(&mut pools, "k", 200, 0, at(6));
    assert_eq!(tombstones(&pools), 1 << 16);
    evict(&mut pools, "k");
    for number in [0, 2] {
        pools.follow(number, at(6));
    }
    come_back(&mut pools, 1, at(7));
    let found = ["k", "other"].map(|key| has(&mut pools, key, at(7)));
    assert_eq!(found, [false, true]);
}

#[test]
fn an_owner_that_this_run_did_not_know_brings_no_value_that_may_be_dead() {
    let mut pools = acquainted(3);
    expire(&mut pools, 1);
    put_at(&mut pools, "k", 100, 0, at(4));
    let early = pools.ledgers[0].clone();
    pools.follow(0, at(4));
    let old = std::mem::replace(&mut pools.ledgers[0], early);
    pools.index = Index::new(long_lived(), 7).in_epoch(9);
    pools.applied.fill(0);
    pools.ledgers.truncate(2);
    pools.ledgers[1].clear();
    pools.mount(1, MIB, at(5));
    looks(&mut pools, &[1], 5, 3);
    put_at(&mut pools, "k", 200, 1, at(8));
    evict(&mut pools, "k");
    pools.follow(1, at(8));
    pools.ledgers[0] = old;
    pools.ledgers[0].retain(|at, _| *at < 1 << 63);
    come_back(&mut pools, 0, at(9));
    assert!(!has(&mut pools, "k", at(9)));
    assert_eq!(pools.index.counters().discarded_records, 1);
}

/// The ledgers of a run before: those that come first are full, and evict before the last one comes.
#[test]
fn a_known_owner_that_comes_late_after_a_takeover_keeps_its_keys() {
    let mut pools = acquainted(3);
    put_at(&mut pools, "first", 100, 0, at(4));
    put_at(&mut pools, "late", 100, 2, at(4));
    for number in [0, 1, 2] {
        pools.follow(number, at(4));
    }
    pools.index = Index::new(long_lived(), 7).in_epoch(2);
    pools.applied.fill(0);
    for number in [0, 1] {
        pools.mount(number, 16 * MIB, at(5));
    }
    looks(&mut pools, &[0, 1], 5, 7);
    assert!(has(&mut pools, "first", at(12)));
    evict(&mut pools, "first");
    for number in [0, 1] {
        pools.follow(number, at(12));
    }
    come_back(&mut pools, 2, at(13));
    assert!(has(&mut pools, "late", at(13)));
    assert_eq!(pools.index.counters().discarded_records, 0);
}

#[test]
fn clients_keep_the_time_in_which_the_master_did_not_run() {
    let settings = Settings {
        client_ttl: Duration::from_secs(10),
        ..Settings::default()
    };
    let mut index = with_segments(settings, &[1000]);
    work(&mut index, at(5));
    index.extend_clients(Duration::from_secs(100));
    work(&mut index, at(105));
    assert_eq!(index.counters().expired_clients, 0);
    work(&mut index, at(109));
    assert_eq!(index.totals().capacity, 1000);
    work(&mut index, at(111));
    assert_eq!(index.counters().expired_clients, 1);
}
