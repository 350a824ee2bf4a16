//! Want of space while ranges cannot be used again yet.

use super::evacuation::Pools;
use super::*;
use crate::index::Scope;

const MIB: u64 = 1 << 20;
const BYTES: u64 = MIB / 1000;

/// A segment with a ledger that is used to this many thousandths.
fn filled(objects: u64) -> Pools {
    let mut pools = Pools::new(&[MIB]);
    for number in 0..objects {
        pools.put(&format!("k{number}"), BYTES, 0, at(0));
    }
    pools
}

/// Ticks of 10 ms in a second, each after `before`.
fn second(index: &mut Index, begin: u64, mut before: impl FnMut(&mut Index, Moment)) {
    for tick in 0..100 {
        let now = Moment(at(begin).0 + tick * 10_000);
        before(index, now);
        work(index, now);
    }
}

#[test]
fn what_leaves_a_ledger_is_evicted_once_while_its_owner_is_silent() {
    let mut pools = filled(910);
    second(&mut pools.index, 20, |_, _| {});
    // The excess and a twentieth.
    let left = pools.index.totals().keys;
    assert!((850..=865).contains(&left), "{left} of 910");
    pools.follow_all(at(21));
    second(&mut pools.index, 21, |_, _| {});
    assert_eq!(pools.index.totals().keys, left);
}

#[test]
fn puts_without_space_evict_once_while_the_owner_is_silent() {
    let mut pools = filled(900);
    let config = ReplicateConfig::default();
    // Larger than any free range.
    let start = |index: &mut Index, now| {
        let started = index.put_start(CLIENT, "large", MIB / 4, &config, now);
        assert_eq!(started.err(), Some(ErrorCode::NoAvailableHandle));
    };
    // The owner is open for a second after its last acknowledgement.
    second(&mut pools.index, 20, start);
    let left = pools.index.totals().keys;
    assert!((800..=860).contains(&left), "{left} of 900");
    // It acknowledges: the next ones evict until there is space.
    let started = (0..100).find(|tick| {
        let now = Moment(at(22).0 + tick * 10_000);
        pools.follow_all(now);
        let started = pools
            .index
            .put_start(CLIENT, "large", MIB / 4, &config, now);
        work(&mut pools.index, now);
        started.is_ok()
    });
    assert!(started.is_some());
}

#[test]
fn an_owner_that_acknowledges_nothing_does_not_keep_others_from_space() {
    let mut pools = Pools::new(&[MIB, MIB]);
    for number in 0..1700 {
        pools.put(&format!("k{number}"), BYTES, number % 2, at(number));
    }
    let config = ReplicateConfig {
        preferred_segment: "s1".into(),
        ..ReplicateConfig::default()
    };
    let mut started = false;
    for tick in 0..3000 {
        let now = Moment(at(2000).0 + tick * 10_000);
        pools.follow(1, now);
        let put = pools
            .index
            .put_start(CLIENT, "large", 200 * BYTES, &config, now);
        started |= put.is_ok();
        work(&mut pools.index, now);
    }
    assert!(started);
}

#[test]
fn a_revoked_put_rests_because_its_writer_may_still_send() {
    let mut index = with_segments(long_lived(), &[1000]);
    let config = ReplicateConfig::default();
    let started = index.put_start(CLIENT, "a", 1000, &config, at(0));
    assert!(started.is_ok());
    let revoked = index.put_revoke(CLIENT, "a", ReplicaType::All, at(1));
    assert_eq!(revoked, Ok(()));
    assert_eq!(get(&mut index, "a", at(1)), Err(ErrorCode::ObjectNotFound));
    let totals = index.totals();
    assert_eq!((totals.keys, totals.used, totals.resting), (0, 1000, 1000));
    for second in [1, 600] {
        work(&mut index, at(second));
        let refused = put(&mut index, "b", 1000, at(second));
        assert_eq!(refused, Err(ErrorCode::NoAvailableHandle));
    }
    work(&mut index, at(601));
    assert!(put(&mut index, "b", 1000, at(601)).is_ok());
    assert_eq!(index.totals().resting, 0);
}

#[test]
fn ranges_that_rest_evict_nothing_as_long_as_the_others_have_space() {
    let mut index = with_segments(evicting(), &[1000, 1000]);
    let of = |number: u64| ReplicateConfig {
        preferred_segment: format!("s{number}"),
        ..ReplicateConfig::default()
    };
    index
        .put_start(CLIENT, "revoked", 1000, &of(0), at(0))
        .unwrap();
    index
        .put_revoke(CLIENT, "revoked", ReplicaType::All, at(0))
        .unwrap();
    for key in ["a", "b", "c", "d"] {
        put_with(&mut index, key, 100, &of(1), at(0)).unwrap();
    }
    for second in 1..20 {
        work(&mut index, at(second));
    }
    assert_eq!(left(&mut index), ["a", "b", "c", "d"]);
    // What can be used is the other segment, of which half may be used.
    for key in ["e", "f"] {
        put_with(&mut index, key, 100, &of(1), at(20)).unwrap();
    }
    work(&mut index, at(21));
    assert_eq!(left(&mut index).len(), 4);
    // The segment goes while its ranges rest.
    index.unmount_segment(segment(0, 0).id);
    assert_eq!(index.segments.resting(), 0);
    work(&mut index, at(700));
    assert_eq!((index.totals().used, index.totals().resting), (400, 0));
}

#[test]
fn texts_of_a_put_are_limited_and_a_refused_one_leaves_nothing() {
    let mut index = with_segments(long_lived(), &[1000]);
    index.ping(CLIENT, at(0));
    let config = |group: usize, host: usize| ReplicateConfig {
        group_ids: Some(vec!["g".repeat(group)]),
        host_id: "h".repeat(host),
        ..ReplicateConfig::default()
    };
    let (most, more) = (64 << 10, (64 << 10) + 1);
    let longest = "k".repeat(most);
    for (key, config) in [
        ("k".repeat(more), config(1, 1)),
        ("k".into(), config(more, 1)),
        ("k".into(), config(1, 1025)),
    ] {
        let refused = put_with(&mut index, &key, 1, &config, at(0));
        assert_eq!(refused.err(), Some(ErrorCode::InvalidParams));
    }
    let refused = put_with(&mut index, "k", 1001, &config(1, 5), at(0));
    assert_eq!(refused.err(), Some(ErrorCode::NoAvailableHandle));
    assert_eq!(index.clients.host(CLIENT), "");
    put_with(&mut index, &longest, 1, &config(most, 1024), at(0)).unwrap();
    assert_eq!(index.clients.host(CLIENT).len(), 1024);
    for tenant in ["default", "a"] {
        let mut scope = Scope::of(tenant);
        assert!(scope.key(&longest).is_ok());
        let refused = scope.key(&"k".repeat(more)).map(str::len);
        assert_eq!(refused, Err(ErrorCode::InvalidParams));
    }
}
