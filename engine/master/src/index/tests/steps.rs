//! Work in steps: calls by pattern, searches, and lists that a slow client makes long.

use std::collections::BTreeSet;

use super::*;
use crate::index::{Listing, Removal, Search};

/// Whole calls, as a server without other requests makes them.
impl Index {
    pub(super) fn get_replica_list_by_regex(
        &mut self,
        pattern: &str,
        scope: &Scope,
        now: Moment,
    ) -> Result<BTreeMap<String, Vec<ReplicaDescriptor>>, ErrorCode> {
        let mut listing = Listing::begin(pattern, scope.clone())?;
        while self.list(&mut listing, now)? {
            assert!(listing.compare(|| true));
        }
        Ok(listing.into_found())
    }

    pub(super) fn remove_by_regex(
        &mut self,
        pattern: &str,
        scope: &Scope,
        force: bool,
        now: Moment,
    ) -> Result<i64, ErrorCode> {
        let mut removal = Removal::begin(pattern, scope.clone(), force)?;
        while self.remove_next(&mut removal, now) {
            assert!(removal.compare(|| true));
        }
        Ok(removal.removed())
    }

    /// All keys of the default tenant, in their order.
    pub(super) fn keys(&self) -> Vec<String> {
        let (mut text, mut next) = (String::new(), Some(0));
        while let Some(from) = next {
            next = self.list_keys(from, &mut text);
        }
        let mut keys: Vec<_> = text.lines().map(Into::into).collect();
        keys.sort();
        keys
    }

    pub(super) fn remove_all(&mut self, tenant: &str, force: bool, now: Moment) -> i64 {
        let Some(mut removal) = self.removal_of_all(tenant, force) else {
            return 0;
        };
        while self.remove_next(&mut removal, now) {
            assert!(removal.compare(|| true));
        }
        removal.removed()
    }

    pub(super) fn begin_search(
        &self,
        scope: &Scope,
        prefix: &str,
        pattern: Option<&str>,
        limit: usize,
    ) -> Result<Search, ErrorCode> {
        let mut search = Search::begin(scope.clone(), prefix, pattern, limit)?;
        self.enter_search(&mut search);
        Ok(search)
    }

    pub(super) fn search(&self, search: &mut Search) -> bool {
        let more = self.continue_search(search);
        assert!(search.compare(|| true));
        more
    }
}

/// Puts this many objects.
fn fill(index: &mut Index, count: usize, now: Moment) {
    for number in 0..count {
        put(index, &format!("k{number}"), 1, now).unwrap();
    }
}

#[test]
fn puts_that_ended_behind_a_slow_one_are_forgotten_in_steps() {
    let mut index = with_segments(long_lived(), &[1 << 30]);
    let config = ReplicateConfig::default();
    index.put_start(CLIENT, "slow", 1, &config, at(0)).unwrap();
    fill(&mut index, 10_000, at(0));
    assert!(!index.step(at(30)));
    let (mut left, mut steps) = (index.puts.len(), 0);
    assert_eq!(left, 10_001);
    let mut more = true;
    while more {
        more = index.step(at(31));
        assert!(
            left - index.puts.len() <= 256,
            "one step forgets {}",
            left - index.puts.len()
        );
        (left, steps) = (index.puts.len(), steps + 1);
    }
    assert_eq!((left, index.overdue.len()), (0, 1));
    assert!(steps >= 10_001 / 256, "{steps}");
}

#[test]
fn a_call_by_pattern_looks_at_some_objects_in_each_step() {
    let pattern = |_: &Index| Removal::begin("[05]$", Scope::default(), true).unwrap();
    let all = |index: &Index| index.removal_of_all("", true).unwrap();
    let removals = [pattern as fn(&Index) -> Removal, all];
    for (removal, expected) in removals.into_iter().zip([200, 1000]) {
        let mut index = with_segments(long_lived(), &[1 << 30]);
        fill(&mut index, 1000, at(0));
        let mut removal = removal(&index);
        let mut keys = index.objects.len();
        let mut steps = 0;
        while index.remove_next(&mut removal, at(1)) {
            assert!(removal.compare(|| true));
            assert!(keys - index.objects.len() <= 256);
            (keys, steps) = (index.objects.len(), steps + 1);
        }
        assert!(steps >= 1000 / 256, "{steps}");
        assert_eq!(removal.removed(), i64::try_from(expected).unwrap());
        assert_eq!(index.objects.len(), 1000 - expected);
    }
    let mut index = with_segments(long_lived(), &[1 << 30]);
    fill(&mut index, 800, at(0));
    let (mut text, mut next, mut steps) = (String::new(), Some(0), 0);
    while let Some(from) = next {
        let before = text.lines().count();
        next = index.list_keys(from, &mut text);
        assert!(text.lines().count() - before <= 256);
        steps += 1;
    }
    assert!(steps >= 800 / 256, "{steps}");
    assert_eq!(text.lines().collect::<BTreeSet<_>>().len(), 800);
    let mut listing = Listing::begin("", Scope::default()).unwrap();
    let mut steps = 0;
    while index.list(&mut listing, at(1)).unwrap() {
        assert!(listing.compare(|| true));
        steps += 1;
    }
    // It looks at them, and then describes them.
    assert!(steps >= 2 * 800 / 256, "{steps}");
    assert_eq!(listing.into_found().len(), 800);
}

#[test]
fn a_comparison_that_is_given_up_is_reported() {
    let mut index = with_segments(long_lived(), &[1 << 30]);
    fill(&mut index, 3, at(0));
    let scope = Scope::default();
    let mut listing = Listing::begin("", scope.clone()).unwrap();
    assert!(index.list(&mut listing, at(1)).unwrap());
    let mut search = index.begin_search(&scope, "", Some(""), 9).unwrap();
    index.continue_search(&mut search);
    let mut removal = Removal::begin("", scope, true).unwrap();
    assert!(index.remove_next(&mut removal, at(1)));
    let left = std::cell::Cell::new(2);
    let twice = || left.replace(left.get() - 1) > 0;
    assert!(!listing.compare(twice));
    left.set(2);
    assert!(!search.compare(twice));
    left.set(2);
    assert!(!removal.compare(twice));
}

#[test]
fn a_removal_in_steps_spares_what_gets_a_lease_or_another_value_meanwhile() {
    let mut index = with_segments(long_lived(), &[1 << 30]);
    fill(&mut index, 3, at(0));
    let mut removal = Removal::begin("", Scope::default(), false).unwrap();
    assert!(index.remove_next(&mut removal, at(1)));
    assert!(removal.compare(|| true));
    get(&mut index, "k0", at(1)).unwrap();
    let config = ReplicateConfig::default();
    index.upsert_start(CLIENT, "k1", 2, &config, at(1)).unwrap();
    put(&mut index, "later", 1, at(1)).unwrap();
    while index.remove_next(&mut removal, at(1)) {
        assert!(removal.compare(|| true));
    }
    assert_eq!(
        (removal.removed(), index.keys()),
        (1, ["k0", "k1", "later"].map(Into::into).to_vec())
    );
}

#[test]
fn a_pattern_whose_program_is_too_large_is_refused() {
    for pattern in ["(", r"\w{1000}"] {
        let refused = Removal::begin(pattern, Scope::default(), true).map(|_| ());
        assert_eq!(refused, Err(ErrorCode::InvalidParams));
        let refused = Search::begin(Scope::default(), "", Some(pattern), 1).map(|_| ());
        assert_eq!(refused, Err(ErrorCode::InvalidParams));
    }
    assert!(Removal::begin(r"\w{100}", Scope::default(), true).is_ok());
}

#[test]
fn ledgers_are_looked_at_only_for_a_put_that_exceeds_the_quota() {
    let mut index = with_segments(long_lived(), &[1000]);
    index.set_quotas(&BTreeMap::from([("default".into(), 100)]));
    put(&mut index, "k", 100, at(0)).unwrap();
    assert_eq!(index.segments.loading_looks.get(), 0);
    put(&mut index, "l", 100, at(1)).unwrap();
    assert_eq!(index.segments.loading_looks.get(), 1);
}

#[test]
fn a_put_near_its_writer_goes_to_segments_of_its_host_in_turn() {
    let settings = Settings {
        placement: crate::index::Placement::LocalFirst,
        ..long_lived()
    };
    let mut index = Index::new(settings, 7);
    for number in 0..20 {
        let of = segment(number, 100);
        let host_id = format!("host{}", number % 5);
        let mounted = index.mount_segment(Segment { host_id, ..of }, OWNER, at(0));
        assert_eq!(mounted, Ok(()));
    }
    index.unmount_segment(segment(3, 100).id);
    let config = ReplicateConfig {
        host_id: "host3".into(),
        ..ReplicateConfig::default()
    };
    let mut bases: Vec<_> = (0..4)
        .map(|key| address(&put_with(&mut index, &key.to_string(), 100, &config, at(0)).unwrap()))
        .collect();
    // Three are left there; then the next host by name has space.
    let other = bases.pop().unwrap();
    bases.sort_unstable();
    assert_eq!(bases, [8, 13, 18].map(|number| segment(number, 100).base));
    let of_next = [4, 9, 14, 19].map(|number| segment(number, 100).base);
    assert!(of_next.contains(&other));
}

#[test]
fn a_put_goes_to_the_segments_with_the_largest_free_part() {
    let settings = Settings {
        placement: crate::index::Placement::FreeRatioFirst,
        ..long_lived()
    };
    let sizes = [1000, 2000, 4000];
    let mut index = with_segments(settings, &sizes);
    let mut used = [0; 3];
    // Up to the last byte.
    for key in 0..280 {
        let parts = [0, 1, 2].map(|at| (sizes[at] - used[at]) * 4000 / sizes[at]);
        let replicas = put(&mut index, &key.to_string(), 25, at(0)).unwrap();
        let chosen = usize::try_from(address(&replicas) >> 40).unwrap() - 1;
        assert_eq!(Some(&parts[chosen]), parts.iter().max(), "{key}: {parts:?}");
        used[chosen] += 25;
    }
    for key in 0..12 {
        index.remove(&key.to_string(), true, at(0)).unwrap();
    }
    let config = ReplicateConfig {
        replica_num: 2,
        ..ReplicateConfig::default()
    };
    let two = put_with(&mut index, "two", 10, &config, at(0)).unwrap();
    assert_ne!(address(&two[..1]) >> 40, address(&two[1..]) >> 40);
}

#[test]
fn keys_take_bounded_memory_whatever_the_size_of_their_values() {
    let bytes = 100 * 1024;
    let settings = Settings {
        index_bytes: bytes,
        ..long_lived()
    };
    let mut index = with_segments(settings, &[1 << 40]);
    let mut refused = 0;
    // Without upkeep puts are refused.
    for number in 0..1000 {
        let key = format!("{number:0>1000}");
        match put(&mut index, &key, 1, at(0)) {
            Ok(_) => {}
            Err(code) => {
                assert_eq!(code, ErrorCode::NoAvailableHandle);
                refused += 1;
            }
        }
        assert!(index.totals().index_bytes <= bytes);
    }
    assert_eq!(index.counters().unindexed_puts, refused);
    assert!(refused > 800 && refused < 1000, "{refused}");
    // What was used longest ago makes room.
    work(&mut index, at(1));
    put(&mut index, "new", 1, at(1)).unwrap();
    assert!(index.counters().evicted_objects > 0);
    // From the watermark on this needs no refused put.
    for number in 0..1000 {
        let key = format!("again{number:0>1000}");
        put(&mut index, &key, 1, at(number)).unwrap();
        work(&mut index, at(number));
    }
    assert_eq!(index.counters().unindexed_puts, refused);
}
