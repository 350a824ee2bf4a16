//! A search for keys.

use super::*;
use crate::index::Search;

const MIB: u64 = 1 << 20;

fn run(index: &Index, prefix: &str, pattern: Option<&str>, limit: usize) -> (Search, usize) {
    let mut search = index
        .begin_search(&Scope::default(), prefix, pattern, limit)
        .unwrap();
    let steps = std::iter::repeat_with(|| index.search(&mut search));
    let steps = steps.take_while(|more| *more).count();
    (search, steps)
}

fn keys(search: Search) -> Vec<String> {
    let first = search.into_first().into_iter();
    first.map(|found| found.key.into()).collect()
}

#[test]
fn all_matching_objects_are_counted_and_the_first_ones_listed() {
    let mut index = with_segments(long_lived(), &[MIB, MIB]);
    for number in 0..1000 {
        put(&mut index, &format!("a{number:04}"), 100, at(0)).unwrap();
        put(&mut index, &format!("b{number:04}"), 10, at(0)).unwrap();
    }
    let (search, steps) = run(&index, "a", None, 3);
    assert_eq!(search.found(), (1000, 100_000));
    // Requests go on between the steps.
    assert!(steps >= 2000 / 256, "{steps}");
    let places: (u64, u64) = search
        .segments()
        .iter()
        .fold((0, 0), |sum, one| (sum.0 + one.objects, sum.1 + one.bytes));
    assert_eq!(places, (1000, 100_000));
    assert_eq!(keys(search), ["a0000", "a0001", "a0002"]);

    let (search, _) = run(&index, "", Some("[ab]0+7$"), 10);
    assert_eq!(search.found(), (2, 110));
    assert_eq!(keys(search), ["a0007", "b0007"]);
    let (search, _) = run(&index, "b", Some("7$"), 0);
    assert_eq!((search.found(), keys(search).len()), ((100, 1000), 0));
    let malformed = index
        .begin_search(&Scope::default(), "", Some("("), 1)
        .map(|_| ());
    assert_eq!(malformed, Err(ErrorCode::InvalidParams));
}

#[test]
fn an_object_with_several_replicas_is_one_object_in_several_segments() {
    let mut index = with_segments(long_lived(), &[MIB, MIB, MIB]);
    let config = ReplicateConfig {
        replica_num: 2,
        ..ReplicateConfig::default()
    };
    put_with(&mut index, "twice", 1000, &config, at(0)).unwrap();
    let (search, _) = run(&index, "", None, 10);
    assert_eq!(search.found(), (1, 1000));
    let segments = search.segments().to_vec();
    let used = segments.iter().filter(|one| one.objects == 1);
    assert_eq!(used.map(|one| one.bytes).collect::<Vec<_>>(), [1000, 1000]);
    let first = search.into_first();
    let places: Vec<_> = first[0].segments.iter().map(|at| &segments[*at]).collect();
    assert!(places.len() == 2 && places.iter().all(|one| one.objects == 1));
}

#[test]
fn former_ranges_and_unfinished_puts_are_no_objects() {
    let mut index = with_segments(long_lived(), &[MIB]);
    put(&mut index, "k", 1000, at(0)).unwrap();
    // A reader holds the former range, which rests.
    get(&mut index, "k", at(0)).unwrap();
    let config = ReplicateConfig::default();
    index
        .upsert_start(CLIENT, "k", 500, &config, at(0))
        .unwrap();
    index
        .put_end(CLIENT, &meta("k"), ReplicaType::All, at(0))
        .unwrap();
    index
        .put_start(CLIENT, "begun", 10, &config, at(0))
        .unwrap();
    assert_eq!(index.totals().used, 1510);
    let (search, _) = run(&index, "", None, 10);
    assert_eq!(search.found(), (1, 500));
    assert_eq!(search.segments()[0].bytes, 500);
    assert_eq!(keys(search), ["k"]);
}

#[test]
fn a_segment_that_is_unmounted_meanwhile_ends_no_search() {
    let mut index = with_segments(long_lived(), &[MIB, MIB]);
    for number in 0..100 {
        put(&mut index, &format!("k{number}"), 100, at(0)).unwrap();
    }
    let mut search = index.begin_search(&Scope::default(), "", None, 1).unwrap();
    let (kept, gone) = (segment(1, MIB), segment(0, MIB));
    index.unmount_segment(gone.id);
    while index.search(&mut search) {}
    let of = |name: &str| {
        let mut segments = search.segments().iter();
        segments.find(|one| one.name == name).unwrap().objects
    };
    assert_eq!(of(&gone.name), 0);
    assert_eq!(
        (search.found().0, of(&kept.name) > 0),
        (of(&kept.name), true)
    );
}
