//! How long a run of the master takes until it serves the ledgers of a large cluster, which name each other.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mooncake_master::index::{Index, Moment, Settings};
use proto::store::Uuid;
use proto::store::ledger::{Entry, MOST_ENTRIES, Position, Stored, Version};
use proto::store::release_0_3_13::Segment;

const SIZE: u64 = 16 << 30;

/// One pool pod with one segment.
struct Owner {
    client: Uuid,
    segment: Segment,
    ledger: BTreeMap<u64, Entry>,
    applied: u64,
}

impl Owner {
    fn new(number: u64) -> Self {
        let id = |first| Uuid {
            first,
            second: number,
        };
        Self {
            client: id(1),
            segment: Segment {
                id: id(2),
                name: format!("pool-{number}.segment"),
                base: (number + 1) << 40,
                size: SIZE,
                te_endpoint: format!("node-{number}:12001"),
                protocol: "tcp".into(),
                host_id: String::new(),
            },
            ledger: BTreeMap::new(),
            applied: 0,
        }
    }

    fn mount(&mut self, index: &mut Index, now: Moment) {
        self.applied = 0;
        let entries = self.ledger.values().cloned().collect();
        index
            .mount_ledger(self.client, self.segment.clone(), 1, now)
            .unwrap();
        index
            .load_ledger(self.client, self.segment.id, 0, entries, true, now)
            .unwrap();
    }

    fn follow(&mut self, index: &mut Index, now: Moment) {
        loop {
            let position = Position {
                segment: self.segment.id,
                applied: self.applied,
                unrecorded: 0,
            };
            let changes = index.poll_ledger(self.client, &[position], now).unwrap();
            let entries = &changes[0].entries;
            if entries.is_empty() {
                return;
            }
            for entry in entries {
                match entry.stored {
                    Some(_) => self.ledger.insert(entry.offset, entry.clone()),
                    None => self.ledger.remove(&entry.offset),
                };
            }
            self.applied += entries.len() as u64;
        }
    }
}

/// Looks for some seconds, and returns the time in calls of the index and the longest of them.
fn run(index: &mut Index, owners: &mut [Owner], from: u64) -> (Duration, Duration) {
    let (mut sum, mut longest) = (Duration::ZERO, Duration::ZERO);
    for look in 0..60 {
        let now = Moment(from + look * 100_000);
        let mut more = true;
        let mut begin = Instant::now();
        index.tick(now);
        while more {
            sum += begin.elapsed();
            longest = longest.max(begin.elapsed());
            begin = Instant::now();
            more = index.step(now);
        }
        index.take_signals();
        owners.iter_mut().for_each(|owner| owner.follow(index, now));
    }
    (sum, longest)
}

#[test]
#[ignore = "measures time; meant for a release build"]
fn takeover_of_many_segments() {
    for count in [256, 1024] {
        let mut owners: Vec<_> = (0..count).map(Owner::new).collect();
        let settings = || Settings {
            client_ttl: Duration::from_secs(1 << 20),
            ..Settings::default()
        };
        let mut mounts = Vec::new();
        for epoch in [1, 2] {
            let mut index = Index::new(settings(), 7).in_epoch(epoch);
            let from = epoch * 1_000_000_000;
            for owner in &mut owners {
                let begin = Instant::now();
                owner.mount(&mut index, Moment(from));
                mounts.push(begin.elapsed());
            }
            let (sum, longest) = run(&mut index, &mut owners, from);
            assert_eq!(index.ledger_totals().loaded, count);
            let mounts: Duration = mounts.drain(..).sum();
            println!(
                "run {epoch}, {count} segments: mounts {mounts:?}, then {sum:?} in 6 s, the longest call {longest:?}"
            );
        }
    }
}

/// Times of calls of the index, each of which holds its lock, in their order.
#[derive(Default)]
struct Holds(Vec<(&'static str, Duration)>);

impl Holds {
    fn hold<T>(&mut self, name: &'static str, call: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = call();
        self.0.push((name, begin.elapsed()));
        result
    }

    /// The same calls again: what is longer was interrupted.
    fn shorten(&mut self, other: &Self) {
        assert_eq!(self.0.len(), other.0.len());
        for (of, other) in self.0.iter_mut().zip(&other.0) {
            of.1 = of.1.min(other.1);
        }
    }
}

/// Owners with a million keys.
fn with_a_million_keys() -> Vec<Owner> {
    const OWNERS: u64 = 8;
    const KEYS: u64 = 1_000_000 / OWNERS;
    let mut owners: Vec<_> = (0..OWNERS).map(Owner::new).collect();
    for (number, owner) in (0..).zip(&mut owners) {
        for at in 0..KEYS {
            let number = at * OWNERS + number;
            let stored = Stored {
                key: super::key(usize::try_from(number).unwrap()),
                length: 4096,
                client: owner.client,
                group: None,
                checksum: Some(number),
                soft_pin_ms: 0,
                hard_pin: false,
            };
            // Ranges are used again, so a higher offset is not newer.
            let offset = (at * 7919 % KEYS) * 8192;
            let entry = Entry {
                offset,
                version: Version { epoch: 1, number },
                stored: Some(stored),
            };
            owner.ledger.insert(offset, entry);
        }
    }
    owners
}

/// Takes over as the server does. Returns the holds, and the time beside the lock.
fn take_over(owners: &[Owner]) -> (Holds, Duration) {
    let settings = Settings {
        client_ttl: Duration::from_secs(1 << 20),
        ..Settings::default()
    };
    let (mut index, now) = (Index::new(settings, 7).in_epoch(2), Moment(2_000_000_000));
    let (mut holds, mut beside) = (Holds::default(), Duration::ZERO);
    for owner in owners {
        let segment = owner.segment.clone();
        let mounted = index.mount_ledger(owner.client, segment, 1, now);
        assert_eq!(mounted, Ok(false));
    }
    for owner in owners {
        let entries: Vec<_> = owner.ledger.values().cloned().collect();
        let parts = entries.len().div_ceil(MOST_ENTRIES);
        for (number, part) in entries.chunks(MOST_ENTRIES).enumerate() {
            let (part, sent) = (part.to_vec(), (number * MOST_ENTRIES) as u64);
            let (client, id, last) = (owner.client, owner.segment.id, number + 1 == parts);
            let load = || index.load_ledger(client, id, sent, part, last, now);
            assert_eq!(holds.hold("load", load), Ok(()));
        }
    }
    while index.ledger_totals().loading > 0 {
        holds.hold("step", || index.step(now));
        if let Some(arrangement) = holds.hold("next", || index.next_arrangement(now)) {
            let begin = Instant::now();
            let arranged = arrangement.arrange();
            beside += begin.elapsed();
            holds.hold("install", || index.install(arranged));
        }
    }
    assert_eq!(index.totals().keys, 1_000_000);
    (holds, beside)
}

#[test]
#[ignore = "measures time; meant for a release build"]
fn holds_while_a_million_keys_are_taken_over() {
    let owners = with_a_million_keys();
    let (mut holds, mut beside) = take_over(&owners);
    for _ in 0..2 {
        let (others, time) = take_over(&owners);
        holds.shorten(&others);
        beside = beside.min(time);
    }
    for name in ["load", "step", "next", "install"] {
        let of = holds.0.iter().filter(|(of, _)| *of == name);
        let mut times: Vec<_> = of.map(|(_, time)| *time).collect();
        times.sort_unstable_by_key(|time| std::cmp::Reverse(*time));
        let sum: Duration = times.iter().sum();
        println!(
            "{name}: {} in {sum:?}, the longest {:?}",
            times.len(),
            &times[..3]
        );
    }
    println!("beside the lock {beside:?}");
}
