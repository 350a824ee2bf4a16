//! The flags that a MooncakeCluster sets, down to what the index does.

use clap::Parser;

use super::*;
use crate::args::Args;

/// An index with one segment of 1000 bytes and these flags.
fn with(flags: &[&str]) -> Index {
    let args = Args::parse_from([&["mooncake-master", "--client_ttl=1000000"], flags].concat());
    with_segments(args.settings(None).unwrap(), &[1000])
}

#[test]
fn the_flag_of_the_lease_decides_how_long_a_read_prevents_removal() {
    for (flags, seconds) in [(&[][..], 10), (&["--default_kv_lease_ttl=30s"], 30)] {
        let mut index = with(flags);
        put(&mut index, "k", 100, at(0)).unwrap();
        get(&mut index, "k", at(0)).unwrap();
        let before = index.remove("k", false, at(seconds - 1));
        assert_eq!(before, Err(ErrorCode::ObjectHasLease));
        assert_eq!(index.remove("k", false, at(seconds)), Ok(()));
    }
}

#[test]
fn the_flags_of_eviction_decide_when_it_begins_and_how_many_objects_leave() {
    let ratio = "--eviction_ratio=0.20";
    for (flags, keys) in [
        (&[ratio][..], 10),
        (&["--eviction_high_watermark_ratio=0.55", ratio], 7),
        (&["--eviction_high_watermark_ratio=0.55"], 9),
        (&["--eviction_high_watermark_ratio=1.00", ratio], 10),
    ] {
        let mut index = with(flags);
        for number in 0..10 {
            put(&mut index, &format!("k{number}"), 56, at(0)).unwrap();
        }
        // Once: another look would begin the next eviction.
        index.tick(at(100));
        while index.step(at(100)) {}
        assert_eq!(index.totals().keys, keys, "{flags:?}");
    }
}

#[test]
fn the_flag_of_soft_pins_decides_how_long_one_without_a_time_keeps_an_object() {
    for (flags, seconds) in [(&[][..], 1800), (&["--default_kv_soft_pin_ttl=60s"], 60)] {
        // What was read last leaves last, unless the other one is pinned.
        for (read, now, evicted) in [
            (0, seconds - 1, "plain"),
            (seconds - 5, seconds + 11, "pinned"),
        ] {
            let mut index = with(flags);
            let config = ReplicateConfig {
                soft_pin_action: SoftPinAction::Enable,
                ..ReplicateConfig::default()
            };
            put_with(&mut index, "pinned", 500, &config, at(0)).unwrap();
            put(&mut index, "plain", 450, at(0)).unwrap();
            get(&mut index, "plain", at(read)).unwrap();
            work(&mut index, at(now));
            assert!(!index.exist_key(evicted, at(now)), "{flags:?} {now}");
            assert_eq!(index.totals().keys, 1);
        }
    }
}
