//! Groups of many objects: what they cost, and that they leave whole.

use super::*;

const MEMBERS: u64 = 65_536;

fn of(group: &str) -> ReplicateConfig {
    ReplicateConfig {
        group_ids: Some(vec![group.into()]),
        ..ReplicateConfig::default()
    }
}

/// An index in which everything is to be evicted, with one group.
fn with_group(members: u64) -> Index {
    let settings = Settings {
        high_watermark: 0.0,
        eviction_ratio: 1.0,
        ..long_lived()
    };
    let mut index = with_segments(settings, &[4 * MEMBERS]);
    for number in 0..members {
        put_with(&mut index, &format!("k{number}"), 1, &of("g"), at(0)).unwrap();
    }
    index
}

/// Ends the present eviction. Returns the most objects that one step has evicted, and the checks of members.
fn evict(index: &mut Index, now: Moment) -> (u64, usize) {
    let (mut most, before) = (0, index.order.checks.get());
    index.tick(now);
    loop {
        let keys = index.totals().keys;
        let more = index.step(now);
        most = most.max(keys - index.totals().keys);
        if !more {
            return (most, index.order.checks.get() - before);
        }
    }
}

#[test]
fn a_large_group_is_leased_at_once_and_leaves_in_steps() {
    let mut index = with_group(MEMBERS);
    for number in 0..MEMBERS {
        assert!(index.exist_key(&format!("k{number}"), at(1)));
    }
    // Nothing is checked under the lease.
    assert_eq!(evict(&mut index, at(10)), (0, 0));
    assert_eq!(index.totals().keys, MEMBERS);
    let (most, checks) = evict(&mut index, at(11));
    assert_eq!(index.totals().keys, 0);
    assert!(most <= 256, "{most} objects in one step");
    assert_eq!(checks as u64, MEMBERS);
    assert_eq!(index.totals().used, 0);
}

#[test]
fn a_large_group_that_stays_is_checked_once_not_for_each_member() {
    for last in [
        ReplicateConfig {
            with_hard_pin: true,
            ..of("g")
        },
        ReplicateConfig {
            soft_pin_action: SoftPinAction::Enable,
            soft_pin_ttl_ms: Some(3_600_000),
            ..of("g")
        },
    ] {
        let mut index = with_group(MEMBERS);
        index.settings.evict_soft_pinned = false;
        put_with(&mut index, "last", 1, &last, at(0)).unwrap();
        let (_, checks) = evict(&mut index, at(1));
        assert_eq!(index.totals().keys, MEMBERS + 1);
        assert_eq!(checks as u64, MEMBERS + 1);
        // The next look is after the time of a lease.
        assert_eq!(evict(&mut index, at(10)).1, 0);
        assert_eq!(evict(&mut index, at(11)).1 as u64, MEMBERS + 1);
    }
}

#[test]
fn a_group_that_is_read_or_changed_while_it_is_checked_stays() {
    type Change = fn(&mut Index);
    let changes: [Change; 3] = [
        |index| assert!(index.exist_key("k0", at(1))),
        |index| drop(put_with(index, "more", 1, &of("g"), at(1)).unwrap()),
        |index| index.remove("k5", true, at(1)).unwrap(),
    ];
    for change in changes {
        let mut index = with_group(10_000);
        index.tick(at(1));
        assert!(index.step(at(1)));
        assert!(index.order.checks.get() > 0);
        change(&mut index);
        let keys = index.totals().keys;
        while index.step(at(1)) {}
        assert_eq!(index.totals().keys, keys);
        evict(&mut index, at(11));
        assert_eq!(index.totals().keys, 0);
    }
}

#[test]
fn the_rest_of_a_group_that_leaves_follows_and_ranges_of_readers_rest() {
    let mut index = with_group(1000);
    index.tick(at(1));
    while index.totals().keys == 1000 {
        assert!(index.step(at(1)));
    }
    // The last members leave first.
    assert!(index.exist_key("k0", at(1)));
    let config = of("g");
    index.upsert_start(CLIENT, "k1", 1, &config, at(1)).unwrap();
    put_with(&mut index, "new", 1, &of("g"), at(1)).unwrap();
    assert!(index.exist_key("new", at(2)));
    while index.step(at(2)) {}
    assert_eq!(left(&mut index), ["k1", "new"]);
    // Of those that followed after the lookup, and of the one that the upsert has replaced.
    assert!(index.totals().resting > 1);
    for _ in 0..1000 / 256 + 1 {
        work(&mut index, at(11));
    }
    assert_eq!((index.totals().used, index.totals().resting), (2, 0));
}

#[test]
fn small_groups_leave_at_once() {
    let mut index = with_group(0);
    for number in 0..2000 {
        let config = of(&format!("g{}", number / 100));
        put_with(&mut index, &format!("k{number}"), 1, &config, at(0)).unwrap();
    }
    index.tick(at(1));
    let mut more = true;
    while more {
        more = index.step(at(1));
        assert_eq!(index.totals().keys % 100, 0);
    }
    assert_eq!(index.totals().keys, 0);
}

#[test]
fn a_lease_of_a_group_is_for_those_that_were_in_it() {
    let mut index = with_segments(long_lived(), &[1000]);
    for key in ["a", "b"] {
        put_with(&mut index, key, 1, &of("g"), at(0)).unwrap();
    }
    assert!(index.exist_key("a", at(1)));
    put_with(&mut index, "c", 1, &of("g"), at(2)).unwrap();
    let leased = Err(ErrorCode::ObjectHasLease);
    for (key, removed) in [("a", leased), ("b", leased), ("c", Ok(()))] {
        assert_eq!(index.remove(key, false, at(3)), removed, "{key}");
    }
    // An upsert of the same size keeps the lease, another one does not.
    let config = of("g");
    for (key, size, removed) in [("a", 1, leased), ("b", 2, Ok(()))] {
        index
            .upsert_start(CLIENT, key, size, &config, at(3))
            .unwrap();
        index
            .put_end(CLIENT, &meta(key), ReplicaType::All, at(3))
            .unwrap();
        assert_eq!(index.remove(key, false, at(3)), removed, "{key}");
    }
    assert_eq!(index.remove("a", false, at(11)), Ok(()));
}

#[test]
fn the_group_of_an_object_that_is_replaced_stays_for_its_quota() {
    let mut index = with_segments(long_lived(), &[1000]);
    index.set_quotas(&BTreeMap::from([("default".into(), 100)]));
    for key in ["a", "b"] {
        put_with(&mut index, key, 40, &of("g"), at(0)).unwrap();
    }
    put(&mut index, "c", 20, at(1)).unwrap();
    let config = of("g");
    index.upsert_start(CLIENT, "a", 60, &config, at(2)).unwrap();
    assert_eq!(left(&mut index), ["a", "b"]);
    let refused = index.upsert_start(CLIENT, "b", 60, &config, at(2));
    assert_eq!(refused.err(), Some(ErrorCode::TenantQuotaExceeded));
    assert_eq!(left(&mut index), ["a", "b"]);
}
