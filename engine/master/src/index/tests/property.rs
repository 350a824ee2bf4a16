//! Random calls, with the rules that must hold after each: no two live ranges overlap, nor those that copies write, ranges of readers rest, and all
//! space returns.

use proptest::prelude::*;
use proto::store::release_0_3_13::{ReplicaType, ReplicateConfig};

use super::quota::recount;
use super::{CLIENT, at, long_lived, meta, segment, with_segments, work};
use crate::index::{Index, Moment, Settings};

const SIZE: u64 = 4096;

#[derive(Debug, Clone)]
enum Call {
    Put(u8, u64, u64),
    Start(u8, u64),
    End(u8),
    Revoke(u8),
    Upsert(u8, u64),
    Get(u8),
    Remove(u8, bool),
    RemoveAll(bool),
    Unmount(u8),
    Mount(u8),
    Wait(u64),
    /// Begins a copy, or a move, to this segment.
    Copy(u8, u8, bool),
    /// Ends or revokes what is in progress.
    EndCopy(u8, bool),
    /// Clears the replicas in this segment.
    Clear(u8, u8),
}

fn call() -> impl Strategy<Value = Call> {
    let key = 0..8_u8;
    let size = 1..1500_u64;
    prop_oneof![
        4 => (key.clone(), size.clone(), 1..3_u64).prop_map(|(k, s, n)| Call::Put(k, s, n)),
        2 => (key.clone(), size.clone()).prop_map(|(k, s)| Call::Start(k, s)),
        2 => key.clone().prop_map(Call::End),
        1 => key.clone().prop_map(Call::Revoke),
        3 => (key.clone(), size).prop_map(|(k, s)| Call::Upsert(k, s)),
        4 => key.clone().prop_map(Call::Get),
        2 => (key.clone(), any::<bool>()).prop_map(|(k, f)| Call::Remove(k, f)),
        4 => (key.clone(), 0..2_u8, any::<bool>()).prop_map(|(k, to, moves)| Call::Copy(k, to, moves)),
        4 => (key.clone(), any::<bool>()).prop_map(|(k, revoke)| Call::EndCopy(k, revoke)),
        2 => (key, 0..2_u8).prop_map(|(k, from)| Call::Clear(k, from)),
        1 => any::<bool>().prop_map(Call::RemoveAll),
        1 => (0..2_u8).prop_map(Call::Unmount),
        1 => (0..2_u8).prop_map(Call::Mount),
        2 => (0..40_u64).prop_map(Call::Wait),
    ]
}

/// Ranges that a reader holds a lease for: address, length, end of the lease.
type Held = Vec<(u64, u64, Moment)>;

/// Returns the ranges of all objects, with their keys.
fn ranges(index: &Index) -> Vec<(u64, u64, String)> {
    let mut ranges = Vec::new();
    for (id, object) in index.objects.iter() {
        for replica in object.replicas.iter().chain(index.copies.targets(id)) {
            if let Some(mounted) = index.segments.get(replica.segment) {
                let address = mounted.segment.base + replica.offset;
                ranges.push((address, object.size, object.key.to_string()));
            }
        }
    }
    ranges.sort();
    ranges
}

fn overlap(one: (u64, u64), other: (u64, u64)) -> bool {
    one.0 < other.0 + other.1 && other.0 < one.0 + one.1
}

fn check(index: &Index, held: &mut Held, now: Moment) {
    recount(index);
    let ranges = ranges(index);
    for pair in ranges.windows(2) {
        assert!(
            pair[0].0 + pair[0].1 <= pair[1].0,
            "two objects have one range: {pair:?}"
        );
    }
    held.retain(|(.., end)| now < *end);
    let totals = index.totals();
    assert!(totals.used <= totals.capacity);
    let live: u64 = ranges.iter().map(|(_, size, _)| size).sum();
    assert!(
        live <= totals.used,
        "{live} bytes live, {} used",
        totals.used
    );
}

/// A new range must not overlap one that a reader holds a lease for.
fn new_range(held: &Held, address: u64, size: u64, now: Moment) {
    for (other, length, end) in held {
        assert!(
            now >= *end || !overlap((address, size), (*other, *length)),
            "a range under a lease is used again"
        );
    }
}

proptest! {
    #[test]
    fn live_ranges_never_overlap_and_leased_ones_rest(calls in prop::collection::vec(call(), 1..120)) {
        let settings = Settings { high_watermark: 0.8, eviction_ratio: 0.1, ..long_lived() };
        let mut index = with_segments(settings, &[SIZE, SIZE]);
        let mut held = Held::new();
        let mut seconds = 0;
        let key = |number: u8| format!("k{number}");
        for one in calls {
            let now = at(seconds);
            let config = ReplicateConfig::default();
            let started = match &one {
                Call::Put(number, size, replicas) => {
                    let config = ReplicateConfig { replica_num: *replicas, ..config };
                    let started = index.put_start(CLIENT, &key(*number), *size, &config, now);
                    if started.is_ok() {
                        let ended = index.put_end(CLIENT, &meta(&key(*number)), ReplicaType::All, now);
                        prop_assert_eq!(ended, Ok(()));
                    }
                    started
                }
                Call::Start(number, size) => index.put_start(CLIENT, &key(*number), *size, &config, now),
                Call::Upsert(number, size) => {
                    index.upsert_start(CLIENT, &key(*number), *size, &config, now)
                }
                Call::End(number) => {
                    let _ = index.put_end(CLIENT, &meta(&key(*number)), ReplicaType::All, now);
                    Ok(Vec::new())
                }
                Call::Revoke(number) => {
                    let _ = index.put_revoke(CLIENT, &key(*number), ReplicaType::All, now);
                    Ok(Vec::new())
                }
                Call::Get(number) => {
                    let until = now.after(index.settings().lease_ttl);
                    if let Ok(found) = index.get_replica_list(&key(*number), now) {
                        held.extend(found.replicas().map(|one| (one.address, one.size, until)));
                    }
                    Ok(Vec::new())
                }
                Call::Remove(number, force) => {
                    let _ = index.remove(&key(*number), *force, now);
                    Ok(Vec::new())
                }
                Call::RemoveAll(force) => {
                    index.remove_all("", *force, now);
                    Ok(Vec::new())
                }
                Call::Unmount(number) => {
                    index.unmount_segment(segment((*number).into(), SIZE).id);
                    // Its memory is gone, and readers of it fail.
                    let gone = segment((*number).into(), SIZE).base;
                    held.retain(|(address, ..)| address >> 40 != gone >> 40);
                    Ok(Vec::new())
                }
                Call::Mount(number) => {
                    let _ = index.mount_segment(segment((*number).into(), SIZE), super::OWNER, now);
                    Ok(Vec::new())
                }
                Call::Copy(number, to, moves) => {
                    let (key, [from, to]) = (key(*number), [1 - to, *to].map(|at| format!("s{at}")));
                    if *moves {
                        let started = index.move_start(CLIENT, &key, &from, &to, now);
                        started.map(|of| of.target.into_iter().collect())
                    } else {
                        let started = index.copy_start(CLIENT, &key, &from, &[to], now);
                        started.map(|of| of.targets)
                    }
                }
                Call::EndCopy(number, revoke) => {
                    let key = key(*number);
                    let _ = if *revoke {
                        index.copy_revoke(CLIENT, &key, now).or_else(|_| index.move_revoke(CLIENT, &key, now))
                    } else {
                        index.copy_end(CLIENT, &key, now).or_else(|_| index.move_end(CLIENT, &key, now))
                    };
                    Ok(Vec::new())
                }
                Call::Clear(number, from) => {
                    index.clear_replicas(vec![key(*number)], CLIENT, &format!("s{from}"), now);
                    Ok(Vec::new())
                }
                Call::Wait(time) => {
                    seconds += time;
                    work(&mut index, at(seconds));
                    Ok(Vec::new())
                }
            };
            for replica in started.unwrap_or_default() {
                if let proto::store::release_0_3_13::Location::Memory(memory) = replica.location {
                    new_range(&held, memory.address, memory.size, at(seconds));
                }
            }
            check(&index, &mut held, at(seconds));
        }
        // Unfinished puts are revoked, everything is removed, all times end: no byte is lost.
        for number in 0..8 {
            let _ = index.put_revoke(CLIENT, &key(number), ReplicaType::All, at(seconds));
            let _ = index.copy_revoke(CLIENT, &key(number), at(seconds));
            let _ = index.move_revoke(CLIENT, &key(number), at(seconds));
        }
        index.remove_all("", true, at(seconds));
        work(&mut index, at(seconds + 10_000));
        let totals = index.totals();
        prop_assert_eq!((totals.keys, totals.used, totals.resting), (0, 0, 0));
    }
}
