//! How long a run of the master takes until it serves the ledgers of a large cluster, which name each other.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mooncake_master::index::{Index, Moment, Settings};
use proto::store::Uuid;
use proto::store::ledger::{Entry, Position};
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
