//! What metrics show of evictions, failed puts and ledgers.

use super::*;
use crate::index::{Cause, Idle, Shortage};

fn count(index: &Index, cause: Cause) -> u64 {
    let evicted = index.counters().evicted_for;
    let others: u64 = evicted.iter().sum();
    assert_eq!(others, index.counters().evicted_objects);
    evicted[cause as usize]
}

fn fill(index: &mut Index, tenant: &str, objects: u64) {
    for number in 0..objects {
        let key = Scope::of(tenant)
            .key(&format!("k{number}"))
            .unwrap()
            .to_owned();
        put(index, &key, 100, at(0)).unwrap();
    }
}

#[test]
fn evicted_objects_are_counted_by_cause() {
    let mut index = with_segments(long_lived(), &[1000]);
    fill(&mut index, "default", 10);
    work(&mut index, at(1));
    assert!(count(&index, Cause::Watermark) > 0);

    let settings = Settings {
        high_watermark: 1.0,
        ..long_lived()
    };
    let mut index = with_segments(settings, &[1000]);
    fill(&mut index, "default", 10);
    work(&mut index, at(1));
    assert_eq!(index.counters().evicted_objects, 0);
    assert!(put(&mut index, "more", 100, at(1)).is_err());
    work(&mut index, at(1));
    assert_eq!(count(&index, Cause::FailedPut), 1);

    let settings = Settings {
        index_bytes: 2600,
        ..long_lived()
    };
    let mut index = with_segments(settings, &[1 << 30]);
    fill(&mut index, "default", 10);
    work(&mut index, at(1));
    assert!(count(&index, Cause::IndexMemory) > 0);

    let mut index = with_segments(long_lived(), &[1000]);
    let quotas = BTreeMap::from([("a".into(), 300)]);
    index.set_quotas(&quotas);
    fill(&mut index, "a", 4);
    assert_eq!(count(&index, Cause::Quota), 1);
    // What evicts next has its own cause.
    assert_eq!(index.order.cause, Cause::Watermark);
}

#[test]
fn a_put_that_is_larger_than_each_segment_evicts_nothing() {
    let mut index = with_segments(long_lived(), &[1 << 20, 1 << 19]);
    for key in ["a", "b", "c", "d"] {
        put(&mut index, key, 100 << 10, at(0)).unwrap();
    }
    for second in 1..4 {
        let failed = put(&mut index, "large", 2 << 20, at(second));
        assert_eq!(failed.unwrap_err(), ErrorCode::NoAvailableHandle);
        work(&mut index, at(second));
    }
    let counters = index.counters();
    assert_eq!(counters.shortages[Shortage::TooLarge as usize], 3);
    assert_eq!((counters.evictions, counters.evicted_objects), (0, 0));
    assert_eq!(index.totals().keys, 4);
}

#[test]
fn evicted_objects_are_counted_by_the_time_since_their_last_lease() {
    let mut index = with_segments(long_lived(), &[1000]);
    put(&mut index, "read", 500, at(0)).unwrap();
    put(&mut index, "written", 450, at(0)).unwrap();
    get(&mut index, "read", at(5)).unwrap();
    work(&mut index, at(60));
    let mut expected = Idle::default();
    // It was never read: its put ended 60 s ago.
    (expected.objects[2], expected.time) = (1, Duration::from_secs(60));
    assert_eq!(index.counters().evicted_idle, expected);
    put(&mut index, "new", 500, at(100)).unwrap();
    let later = at(100).after(Duration::from_millis(900));
    work(&mut index, later);
    // Its lease ended at 15 s.
    (expected.objects[3], expected.time) = (1, Duration::from_millis(60_000 + 85_900));
    assert_eq!(index.counters().evicted_idle, expected);
}

#[test]
fn failed_puts_are_counted_by_what_is_missing() {
    let mut index = Index::new(long_lived(), 7);
    let mut expected = [0; 5];
    let mut fails = |index: &mut Index, size, shortage: Shortage| {
        let failed = put(index, "no", size, at(0));
        assert_eq!(failed.unwrap_err(), ErrorCode::NoAvailableHandle);
        expected[shortage as usize] += 1;
        assert_eq!(index.counters().shortages, expected);
        let all: u64 = expected.iter().sum();
        assert_eq!(index.counters().failed_allocations, all);
    };
    fails(&mut index, 1, Shortage::NoSegment);
    index
        .mount_ledger(OWNER, segment(1, 5000), 1, at(0))
        .unwrap();
    fails(&mut index, 1, Shortage::Closed);
    index.mount_segment(segment(0, 1000), OWNER, at(0)).unwrap();
    fails(&mut index, 1001, Shortage::TooLarge);
    for (key, size) in [("first", 400), ("middle", 200), ("last", 400)] {
        put(&mut index, key, size, at(0)).unwrap();
    }
    fails(&mut index, 100, Shortage::Full);
    for key in ["first", "last"] {
        index.remove(key, true, at(0)).unwrap();
    }
    fails(&mut index, 500, Shortage::Fragmented);
}

#[test]
fn names_of_causes_are_in_the_order_of_the_causes() {
    assert_eq!(Cause::NAMES[Cause::Watermark as usize], "watermark");
    assert_eq!(Cause::NAMES[Cause::Quota as usize], "quota");
    assert_eq!(Shortage::NAMES[Shortage::NoSegment as usize], "no_segment");
    assert_eq!(Shortage::NAMES[Shortage::Full as usize], "full");
}
