//! Tests of the index: what the stock master does not do, what time does, and properties over random calls.

mod copies;
mod evacuation;
mod flags;
mod groups;
mod installs;
mod late;
mod ledger;
mod observed;
mod pressure;
mod property;
mod quota;
mod returning;
mod search;
mod steps;
mod tombstones;

use std::collections::BTreeMap;
use std::time::Duration;

use proto::store::release_0_3_13::{
    ClientStatus, Location, ObjectMeta, ReplicaDescriptor, ReplicaType, ReplicateConfig, Segment,
    SegmentStatus, SoftPinAction,
};
use proto::store::{ErrorCode, Uuid};

use super::{Index, Moment, Scope, Settings};

const CLIENT: Uuid = Uuid {
    first: 1,
    second: 1,
};
const OWNER: Uuid = Uuid {
    first: 2,
    second: 2,
};

fn at(seconds: u64) -> Moment {
    // Not the start of time, at which a lease could not have ended.
    Moment((1_000 + seconds) * 1_000_000)
}

fn segment(number: u64, size: u64) -> Segment {
    Segment {
        id: Uuid {
            first: 100,
            second: number,
        },
        name: format!("s{number}"),
        base: (number + 1) << 40,
        size,
        te_endpoint: format!("node{number}:12001"),
        protocol: "tcp".into(),
        host_id: format!("host{number}"),
    }
}

/// An index with segments of these sizes.
fn with_segments(settings: Settings, sizes: &[u64]) -> Index {
    let mut index = Index::new(settings, 7);
    for (number, &size) in (0..).zip(sizes) {
        let mounted = index.mount_segment(segment(number, size), OWNER, at(0));
        assert_eq!(mounted, Ok(()));
    }
    index
}

fn long_lived() -> Settings {
    Settings {
        client_ttl: Duration::from_secs(1 << 30),
        ..Settings::default()
    }
}

fn meta(key: &str) -> ObjectMeta {
    ObjectMeta {
        key: key.into(),
        object_checksum: None,
    }
}

fn put_with(
    index: &mut Index,
    key: &str,
    size: u64,
    config: &ReplicateConfig,
    now: Moment,
) -> Result<Vec<ReplicaDescriptor>, ErrorCode> {
    let replicas = index.put_start(CLIENT, key, size, config, now)?;
    index.put_end(CLIENT, &meta(key), ReplicaType::All, now)?;
    Ok(replicas)
}

fn put(
    index: &mut Index,
    key: &str,
    size: u64,
    now: Moment,
) -> Result<Vec<ReplicaDescriptor>, ErrorCode> {
    put_with(index, key, size, &ReplicateConfig::default(), now)
}

fn get(index: &mut Index, key: &str, now: Moment) -> Result<u64, ErrorCode> {
    let found = index.get_replica_list(key, now)?;
    Ok(found.replicas().next().expect("a replica").address)
}

fn address(replicas: &[ReplicaDescriptor]) -> u64 {
    match &replicas[0].location {
        Location::Memory(memory) => memory.address,
        other => panic!("not in memory: {other:?}"),
    }
}

/// Ticks, and does all the work that waits.
fn work(index: &mut Index, now: Moment) {
    index.tick(now);
    while index.step(now) {}
}

#[test]
fn an_object_as_large_as_its_segment_begins_at_its_base() {
    let mut index = with_segments(long_lived(), &[1000]);
    let base = segment(0, 1000).base;
    assert_eq!(address(&put(&mut index, "k", 1000, at(0)).unwrap()), base);
    assert_eq!(get(&mut index, "k", at(0)), Ok(base));
}

#[test]
fn a_read_lease_prevents_removal_until_it_ends() {
    let mut index = with_segments(long_lived(), &[1000]);
    put(&mut index, "k", 100, at(0)).unwrap();
    get(&mut index, "k", at(1)).unwrap();
    assert_eq!(
        index.remove("k", false, at(10)),
        Err(ErrorCode::ObjectHasLease)
    );
    assert_eq!(index.remove("k", false, at(11)), Ok(()));
    assert_eq!(get(&mut index, "k", at(11)), Err(ErrorCode::ObjectNotFound));
}

#[test]
fn a_forced_removal_hides_at_once_and_its_range_rests_until_the_lease_ends() {
    let mut index = with_segments(long_lived(), &[1000]);
    put(&mut index, "k", 1000, at(0)).unwrap();
    get(&mut index, "k", at(1)).unwrap();
    assert_eq!(index.remove("k", true, at(2)), Ok(()));
    assert!(!index.exist_key("k", at(2)));
    work(&mut index, at(10));
    assert_eq!(
        put(&mut index, "new", 1000, at(10)),
        Err(ErrorCode::NoAvailableHandle)
    );
    work(&mut index, at(11));
    assert!(put(&mut index, "new", 1000, at(11)).is_ok());
}

#[test]
fn an_upsert_never_writes_where_readers_may_read() {
    let mut index = with_segments(long_lived(), &[1000]);
    let old = address(&put(&mut index, "k", 400, at(0)).unwrap());
    get(&mut index, "k", at(1)).unwrap();
    let config = ReplicateConfig::default();
    let new = index
        .upsert_start(CLIENT, "k", 400, &config, at(2))
        .unwrap();
    assert_ne!(address(&new), old);
    assert_eq!(
        get(&mut index, "k", at(2)),
        Err(ErrorCode::ReplicaIsNotReady)
    );
    index
        .put_end(CLIENT, &meta("k"), ReplicaType::All, at(3))
        .unwrap();
    assert_eq!(get(&mut index, "k", at(3)), Ok(address(&new)));
    // The old range rests until the lease of its readers has ended.
    assert_eq!(
        put(&mut index, "other", 400, at(3)),
        Err(ErrorCode::NoAvailableHandle)
    );
    work(&mut index, at(12));
    assert!(put(&mut index, "other", 400, at(12)).is_ok());
}

#[test]
fn an_upsert_without_space_keeps_the_old_value() {
    let mut index = with_segments(long_lived(), &[1000]);
    let old = address(&put(&mut index, "k", 600, at(0)).unwrap());
    let config = ReplicateConfig::default();
    for size in [600, 700, 5000] {
        assert_eq!(
            index.upsert_start(CLIENT, "k", size, &config, at(1)),
            Err(ErrorCode::NoAvailableHandle)
        );
    }
    assert_eq!(get(&mut index, "k", at(2)), Ok(old));
}

#[test]
fn an_unfinished_put_can_be_replaced_after_its_time_and_its_range_rests_longer() {
    let mut index = with_segments(long_lived(), &[1000]);
    let config = ReplicateConfig::default();
    index.put_start(CLIENT, "k", 1000, &config, at(0)).unwrap();
    assert_eq!(
        put(&mut index, "k", 10, at(30)),
        Err(ErrorCode::ObjectAlreadyExists)
    );
    // Taken away, but there is no other space before the first writer's time has ended.
    assert_eq!(
        put(&mut index, "k", 10, at(31)),
        Err(ErrorCode::NoAvailableHandle)
    );
    assert_eq!(
        index.put_end(CLIENT, &meta("k"), ReplicaType::All, at(32)),
        Err(ErrorCode::ObjectNotFound)
    );
    work(&mut index, at(599));
    assert_eq!(
        put(&mut index, "k", 10, at(599)),
        Err(ErrorCode::NoAvailableHandle)
    );
    work(&mut index, at(600));
    assert!(put(&mut index, "k", 10, at(600)).is_ok());
    assert_eq!(index.counters().discarded_puts, 1);
}

#[test]
fn a_client_that_is_silent_expires_with_its_segments_and_their_objects() {
    let mut index = with_segments(Settings::default(), &[1000]);
    assert_eq!(index.ping(OWNER, at(5)), ClientStatus::NeedRemount);
    assert_eq!(
        index.remount_segment(vec![segment(0, 1000)], OWNER, at(6)),
        Ok(())
    );
    assert_eq!(index.ping(OWNER, at(7)), ClientStatus::Ok);
    put(&mut index, "k", 100, at(7)).unwrap();
    work(&mut index, at(16));
    assert!(index.exist_key("k", at(16)));
    work(&mut index, at(17));
    assert!(!index.exist_key("k", at(17)));
    let totals = index.totals();
    assert_eq!((totals.keys, totals.capacity, totals.clients), (0, 0, 0));
    assert_eq!(index.ping(OWNER, at(18)), ClientStatus::NeedRemount);
}

#[test]
fn a_segment_that_unmounts_gracefully_serves_reads_until_its_time() {
    let mut index = with_segments(long_lived(), &[1000]);
    put(&mut index, "k", 100, at(0)).unwrap();
    get(&mut index, "k", at(0)).unwrap();
    let id = segment(0, 0).id;
    assert_eq!(
        index.graceful_unmount_segment(id, OWNER, 5_000, at(1)),
        Ok(())
    );
    assert_eq!(
        index.segment_status_by_id(id),
        Ok(SegmentStatus::GracefullyUnmounting)
    );
    assert_eq!(
        put(&mut index, "new", 100, at(2)),
        Err(ErrorCode::NoAvailableHandle)
    );
    work(&mut index, at(5));
    assert!(index.exist_key("k", at(5)));
    work(&mut index, at(6));
    assert!(!index.exist_key("k", at(6)));
    assert_eq!(
        index.segment_status_by_id(id),
        Err(ErrorCode::SegmentNotFound)
    );
}

#[test]
fn an_object_survives_as_long_as_one_of_its_segments() {
    let mut index = with_segments(long_lived(), &[1000, 1000]);
    let two = ReplicateConfig {
        replica_num: 2,
        ..ReplicateConfig::default()
    };
    put_with(&mut index, "k", 100, &two, at(0)).unwrap();
    index.unmount_segment(segment(0, 0).id);
    let left = index.get_replica_list("k", at(1)).unwrap();
    let endpoints: Vec<_> = left.replicas().map(|one| one.endpoint.to_owned()).collect();
    assert_eq!(endpoints, ["node1:12001"]);
    index.unmount_segment(segment(1, 0).id);
    assert_eq!(get(&mut index, "k", at(1)), Err(ErrorCode::ObjectNotFound));
    assert_eq!(index.remove_all("", true, at(1)), 0);
}

fn evicting() -> Settings {
    Settings {
        high_watermark: 0.5,
        eviction_ratio: 0.2,
        ..long_lived()
    }
}

/// Keys that still exist, without leases for them.
fn left(index: &mut Index) -> Vec<String> {
    let mut keys = index.keys();
    keys.sort();
    keys
}

#[test]
fn the_objects_whose_lease_ended_first_are_evicted_first() {
    let mut index = with_segments(evicting(), &[1000]);
    for (number, key) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        put(&mut index, key, 100, at(number as u64)).unwrap();
    }
    // "a" was put first, and read last.
    get(&mut index, "b", at(10)).unwrap();
    get(&mut index, "a", at(11)).unwrap();
    work(&mut index, at(12));
    assert_eq!(left(&mut index), ["a", "b", "c", "d", "e"]);
    put(&mut index, "f", 100, at(13)).unwrap();
    work(&mut index, at(14));
    // 60 % are used: a fifth and the excess of the watermark, of six objects, are two.
    assert_eq!(left(&mut index), ["a", "b", "e", "f"]);
    assert_eq!(index.counters().evicted_objects, 2);
    for key in ["g", "h"] {
        put(&mut index, key, 100, at(15)).unwrap();
    }
    work(&mut index, at(30));
    assert_eq!(left(&mut index), ["a", "b", "g", "h"]);
    put(&mut index, "i", 200, at(31)).unwrap();
    work(&mut index, at(31));
    // Read leases count like puts: "b" until 20, "a" until 21, the others ended at their put.
    assert_eq!(left(&mut index), ["a", "b", "i"]);
}

#[test]
fn a_put_while_no_segment_is_open_evicts_nothing_later() {
    let mut index = Index::new(evicting(), 7);
    let failed = put(&mut index, "early", 1, at(0));
    assert_eq!(failed, Err(ErrorCode::NoAvailableHandle));
    let mounted = index.mount_segment(segment(0, 1000), OWNER, at(0));
    assert_eq!(mounted, Ok(()));
    for key in ["a", "b", "c"] {
        put(&mut index, key, 1, at(0)).unwrap();
    }
    work(&mut index, at(3600));
    assert_eq!(index.counters().evicted_objects, 0);
}

#[test]
fn leased_and_hard_pinned_and_unfinished_objects_are_never_evicted() {
    let mut index = with_segments(evicting(), &[1000]);
    let pinned = ReplicateConfig {
        with_hard_pin: true,
        ..ReplicateConfig::default()
    };
    put_with(&mut index, "pinned", 300, &pinned, at(0)).unwrap();
    put(&mut index, "leased", 300, at(0)).unwrap();
    let config = ReplicateConfig::default();
    index
        .put_start(CLIENT, "unfinished", 300, &config, at(1))
        .unwrap();
    get(&mut index, "leased", at(1)).unwrap();
    for second in 2..11 {
        work(&mut index, at(second));
    }
    assert_eq!(left(&mut index), ["leased", "pinned", "unfinished"]);
    work(&mut index, at(11));
    assert_eq!(left(&mut index), ["pinned", "unfinished"]);
}

#[test]
fn soft_pinned_objects_are_evicted_last_and_only_if_allowed() {
    for (allowed, expected) in [(true, vec!["soft1"]), (false, vec!["soft0", "soft1"])] {
        let mut index = with_segments(
            Settings {
                evict_soft_pinned: allowed,
                ..evicting()
            },
            &[1000],
        );
        let soft = ReplicateConfig {
            soft_pin_action: SoftPinAction::Enable,
            soft_pin_ttl_ms: Some(60_000),
            ..ReplicateConfig::default()
        };
        put_with(&mut index, "soft0", 300, &soft, at(0)).unwrap();
        put_with(&mut index, "soft1", 300, &soft, at(1)).unwrap();
        put(&mut index, "plain", 300, at(2)).unwrap();
        index.tick(at(3));
        // Two of three.
        while index.step(at(3)) {}
        assert_eq!(left(&mut index), expected);
        // A pin ends.
        put(&mut index, "more", 300, at(62)).unwrap();
        work(&mut index, at(62));
        assert!(!left(&mut index).contains(&"soft0".to_owned()));
    }
}

#[test]
fn a_group_is_evicted_whole_or_not_at_all() {
    let mut index = with_segments(evicting(), &[1000]);
    let grouped = |name: &str| ReplicateConfig {
        group_ids: Some(vec![name.into()]),
        ..ReplicateConfig::default()
    };
    put_with(&mut index, "a0", 200, &grouped("a"), at(0)).unwrap();
    put_with(&mut index, "a1", 200, &grouped("a"), at(1)).unwrap();
    put_with(&mut index, "b0", 200, &grouped("b"), at(2)).unwrap();
    put_with(&mut index, "b1", 200, &grouped("b"), at(3)).unwrap();
    // One member in use protects the others.
    get(&mut index, "a1", at(4)).unwrap();
    assert_eq!(
        index.remove("a0", false, at(5)),
        Err(ErrorCode::ObjectHasLease)
    );
    work(&mut index, at(5));
    assert_eq!(left(&mut index), ["a0", "a1"]);
}

#[test]
fn a_failed_allocation_requests_an_eviction() {
    let mut index = with_segments(
        Settings {
            high_watermark: 1.0,
            ..evicting()
        },
        &[1000],
    );
    put(&mut index, "a", 500, at(0)).unwrap();
    put(&mut index, "b", 500, at(1)).unwrap();
    work(&mut index, at(2));
    assert_eq!(left(&mut index), ["a", "b"]);
    assert_eq!(
        put(&mut index, "c", 500, at(3)),
        Err(ErrorCode::NoAvailableHandle)
    );
    work(&mut index, at(3));
    assert_eq!(left(&mut index), ["b"]);
    assert!(put(&mut index, "c", 500, at(4)).is_ok());
}

#[test]
fn local_objects_go_to_the_segment_of_the_writers_host() {
    let mut index = with_segments(long_lived(), &[1000; 8]);
    for number in 0..8 {
        let local = ReplicateConfig {
            prefer_alloc_in_same_node: true,
            host_id: "host5".into(),
            ..ReplicateConfig::default()
        };
        let replicas = put_with(&mut index, &format!("k{number}"), 100, &local, at(0)).unwrap();
        assert_eq!(address(&replicas) >> 40, 6);
    }
}

#[test]
fn new_objects_are_spread_over_all_segments() {
    let mut index = with_segments(long_lived(), &[100_000; 8]);
    let mut counts = [0; 8];
    for number in 0..800 {
        let replicas = put(&mut index, &format!("k{number}"), 100, at(0)).unwrap();
        counts[usize::try_from(address(&replicas) >> 40).unwrap() - 1] += 1;
    }
    assert!(
        counts.iter().all(|count| (60..140).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn steps_have_limited_work_while_a_large_segment_goes_and_objects_are_evicted() {
    const OBJECTS: u64 = 20_000;
    let mut index = with_segments(
        Settings {
            eviction_ratio: 1.0,
            ..evicting()
        },
        &[OBJECTS * 100, OBJECTS * 100],
    );
    for number in 0..2 * OBJECTS {
        put(&mut index, &format!("k{number}"), 100, at(0)).unwrap();
    }
    let mut most = 0;
    let mut steps = 0;
    index.unmount_segment(segment(0, 0).id);
    index.tick(at(1));
    loop {
        let before = index.totals().keys;
        let more = index.step(at(1));
        most = most.max(before - index.totals().keys);
        steps += 1;
        if !more {
            break;
        }
    }
    assert_eq!(index.totals().keys, 0);
    assert!(steps >= 2 * OBJECTS / 600, "{steps} steps");
    assert!(most <= 600, "{most} objects in one step");
}
