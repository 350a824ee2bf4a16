//! How long a run of the master takes until it serves the keys of the run before, which eight owners bring. `TAKEOVER_KEYS` sets
//! another number of keys than a million.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proto::store::ledger::{
    Changes, Entry, LedgerLoad, LedgerMount, LedgerPoll, MOST_ENTRIES, Position,
};
use proto::store::release_0_3_13 as wire;
use proto::store::{BareRpc, ErrorCode, Rpc, Uuid};
use wire::{ReplicateConfig, Segment};

use super::namespace::{Host, OURS};
use super::{BATCH, CONNECTIONS, Subject, bare, client_id, decode, exchange, key, put, rpc};

const OWNERS: u64 = 8;
/// Bytes of a value.
const SIZE: u64 = 1 << 20;
const PAUSE: Duration = Duration::from_millis(5);

type Answer<R> = Result<<R as Rpc>::Value, ErrorCode>;

/// A pool pod without bytes.
struct Owner {
    number: u64,
    ledger: BTreeMap<u64, Entry>,
}

impl Owner {
    fn new(number: u64) -> Self {
        Self {
            number,
            ledger: BTreeMap::new(),
        }
    }

    fn client(&self) -> Uuid {
        Uuid {
            first: 100,
            second: self.number,
        }
    }

    fn segment(&self, run: u64, keys: usize) -> Segment {
        let name = format!("10.0.1.{}:1", self.number);
        Segment {
            id: Uuid {
                first: 100 + run,
                second: self.number,
            },
            te_endpoint: name.clone(),
            name,
            base: (run * OWNERS + self.number + 1) << 44,
            // Half of it stays free.
            size: 2 * SIZE * keys as u64 / OWNERS,
            protocol: "tcp".into(),
            host_id: String::new(),
        }
    }

    /// Mounts, sends the ledger, and records changes until `ends`. Returns the time until the ledger was sent.
    fn serve(
        &mut self,
        subject: &Subject<'_>,
        run: u64,
        keys: usize,
        ends: &AtomicBool,
    ) -> Duration {
        let (mut stream, mut body) = (subject.connect(), Vec::new());
        let (client, segment) = (self.client(), self.segment(run, keys));
        let id = segment.id;
        let entries: Vec<Entry> = self.ledger.values().cloned().collect();
        let highest = entries.iter().map(|entry| entry.version.epoch).max();
        let begun = Instant::now();
        let mount = rpc::<LedgerMount>(&(client, segment, highest.unwrap_or_default()));
        exchange(&mut stream, &mount, &mut body);
        assert_eq!(decode::<Answer<LedgerMount>>(&body), Ok(false));
        let mut sent = 0;
        while sent == 0 || sent < entries.len() {
            let end = (sent + MOST_ENTRIES).min(entries.len());
            let last = end == entries.len();
            let part = entries[sent..end].to_vec();
            let load = rpc::<LedgerLoad>(&(client, id, sent as u64, part, last));
            exchange(&mut stream, &load, &mut body);
            assert_eq!(decode::<Answer<LedgerLoad>>(&body), Ok(()));
            if last {
                break;
            }
            sent = end;
        }
        let loaded = begun.elapsed();
        let mut applied = 0;
        while !ends.load(Ordering::Relaxed) {
            let position = Position {
                segment: id,
                applied,
                unrecorded: 0,
            };
            let poll = rpc::<LedgerPoll>(&(client, vec![position]));
            exchange(&mut stream, &poll, &mut body);
            let changes = decode::<Answer<LedgerPoll>>(&body).unwrap();
            for Changes { entries, .. } in changes {
                applied += entries.len() as u64;
                for entry in entries {
                    match entry.stored {
                        Some(_) => self.ledger.insert(entry.offset, entry),
                        None => self.ledger.remove(&entry.offset),
                    };
                }
            }
        }
        loaded
    }
}

/// Repeats a call until it succeeds.
fn until(mut succeeds: impl FnMut() -> bool) {
    while !succeeds() {
        thread::park_timeout(PAUSE);
    }
}

fn is_put(subject: &Subject<'_>, key: &str) -> bool {
    let (mut stream, mut body) = (subject.connect(), Vec::new());
    let config = ReplicateConfig::default();
    let start = rpc::<wire::PutStart>(&(client_id(), key.into(), SIZE, config, "default".into()));
    exchange(&mut stream, &start, &mut body);
    if decode::<Answer<wire::PutStart>>(&body).is_err() {
        return false;
    }
    let meta = wire::ObjectMeta {
        key: key.into(),
        object_checksum: None,
    };
    let end = rpc::<wire::PutEnd>(&(client_id(), meta, wire::ReplicaType::All, "default".into()));
    exchange(&mut stream, &end, &mut body);
    decode::<Answer<wire::PutEnd>>(&body).is_ok()
}

/// Runs `work` beside the owners. Returns its result and how long each took to send its ledger.
fn beside_owners<T: Send>(
    subject: &Subject<'_>,
    owners: &mut [Owner],
    (run, keys): (u64, usize),
    work: impl FnOnce() -> T,
) -> (T, Vec<Duration>) {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let ends = &ends;
        let threads: Vec<_> = owners
            .iter_mut()
            .map(|owner| scope.spawn(move || owner.serve(subject, run, keys, ends)))
            .collect();
        let result = work();
        ends.store(true, Ordering::Relaxed);
        let loaded = threads.into_iter().map(|one| one.join().unwrap());
        (result, loaded.collect())
    })
}

fn fill(subject: &Subject<'_>, keys: usize) {
    until(|| is_put(subject, "first"));
    thread::scope(|scope| {
        for first in 0..CONNECTIONS {
            scope.spawn(move || {
                let mut stream = subject.connect();
                let config = ReplicateConfig::default();
                for batch in (first..keys / BATCH).step_by(CONNECTIONS) {
                    let keys = (batch * BATCH..(batch + 1) * BATCH).map(key).collect();
                    put(&mut stream, keys, SIZE, &config);
                }
            });
        }
    });
}

/// Looks keys up one after the other while `goes_on` is true. Returns when the first one was found, and the longest times.
fn look_up(
    subject: &Subject<'_>,
    keys: usize,
    goes_on: impl Fn() -> bool,
) -> (Option<Instant>, Vec<Duration>) {
    let (mut stream, mut body) = (subject.connect(), Vec::new());
    let (mut found, mut times) = (None, Vec::new());
    let mut number = 0;
    while goes_on() {
        number = (number + 7919) % keys;
        let get = rpc::<wire::GetReplicaList>(&(key(number), "default".into()));
        let before = Instant::now();
        exchange(&mut stream, &get, &mut body);
        times.push(before.elapsed());
        if found.is_none() && decode::<Answer<wire::GetReplicaList>>(&body).is_ok() {
            found = Some(Instant::now());
        }
    }
    times.sort_unstable_by_key(|time| Reverse(*time));
    times.truncate(5);
    (found, times)
}

/// Prints when the first get, the first put and all keys succeed, and the longest lookups meanwhile and after that.
fn take_over(subject: &Subject<'_>, keys: usize, begun: Instant) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            until(|| is_put(subject, "of the new run"));
            println!("first put after {:?}", begun.elapsed());
        });
        let lookups = scope.spawn(|| {
            let meanwhile = look_up(subject, keys, || !done.load(Ordering::Relaxed));
            // What the machine adds, without a takeover.
            let end = Instant::now() + begun.elapsed();
            (meanwhile, look_up(subject, keys, || Instant::now() < end))
        });
        let (mut stream, mut body) = (subject.connect(), Vec::new());
        for batch in 0..keys / BATCH {
            let of_batch = (batch * BATCH..(batch + 1) * BATCH).map(key).collect();
            let exist = bare::<wire::BatchExistKey>(&(of_batch, "default".into()));
            until(|| {
                exchange(&mut stream, &exist, &mut body);
                let answer: <wire::BatchExistKey as BareRpc>::Answer = decode(&body);
                answer.iter().all(|one| *one == Ok(true))
            });
        }
        println!("all {keys} keys after {:?}", begun.elapsed());
        done.store(true, Ordering::Relaxed);
        let ((found, longest), (_, after)) = lookups.join().unwrap();
        let found = found.unwrap().duration_since(begun);
        println!(
            "first get after {found:?}, the longest lookups until all serve {longest:?}, and for as long after that {after:?}"
        );
    });
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, not a test"]
async fn takeover_of_a_million_keys() {
    let wanted = std::env::var("TAKEOVER_KEYS").ok();
    let wanted = wanted.and_then(|text| text.parse().ok());
    let keys = wanted.unwrap_or(1_000_000_usize).next_multiple_of(BATCH);
    let host = Host::new().await;
    let mut owners: Vec<_> = (0..OWNERS).map(Owner::new).collect();
    for run in [0, 1] {
        let mut child = host.ours(&["--client_ttl=3600"]).await;
        let begun = Instant::now();
        let subject = Subject {
            name: "ours",
            host: &host,
            address: OURS,
            pid: child.id().unwrap(),
        };
        let ((), loaded) = tokio::task::block_in_place(|| {
            beside_owners(&subject, &mut owners, (run, keys), || {
                if run == 0 {
                    fill(&subject, keys);
                } else {
                    take_over(&subject, keys, begun);
                }
            })
        });
        let loaded = loaded.into_iter().max().unwrap();
        println!("run {run}: the last ledger was sent after {loaded:?}");
        child.kill().await.unwrap();
    }
}
