//! Latency of one request at a time at rest, while a master evicts, and while a client with a million keys expires.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use proto::store::release_0_3_13 as wire;
use proto::store::{BareRpc, ErrorCode, Rpc, Uuid};
use wire::ReplicateConfig;

use super::namespace::{Host, OURS, STOCK};
use super::{BATCH, MEASURED, Subject, bare, client_id, decode, exchange, key, put, rpc, segment};

const KEYS: usize = 7_813 * BATCH;
const SIZE: u64 = 1 << 20;
/// Of the client that stays.
const OTHER: u64 = 2;
/// Between two batches of the writer: 64,000 keys per second.
const PAUSE: Duration = Duration::from_millis(2);
/// Between two pings, and before the expiry of a client is seen.
const PING: Duration = Duration::from_millis(300);

type Answer<R> = Result<<R as Rpc>::Value, ErrorCode>;

/// When a reply came, and after how long.
type Reply = (Instant, Duration);

/// Prints the latencies of the replies in a time.
fn show(name: &str, what: &str, replies: &[Reply], from: Instant, to: Instant) {
    let within = replies.iter().filter(|(at, _)| (from..to).contains(at));
    let mut times: Vec<_> = within.map(|(_, took)| *took).collect();
    times.sort_unstable();
    let [median, p99] = [50, 99].map(|percent| times[times.len() * percent / 100]);
    println!(
        "{name:>6} {what:<40} p50 {median:?}, p99 {p99:?}, longest {:?} of {} replica lists",
        times[times.len() - 1],
        times.len()
    );
}

/// Requests the replicas of a key until `ends`.
fn look_up(subject: &Subject<'_>, key: &str, ends: &AtomicBool) -> Vec<Reply> {
    let request = rpc::<wire::GetReplicaList>(&(key.to_owned(), "default".into()));
    let (mut stream, mut body) = (subject.connect(), Vec::new());
    let mut replies = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let begun = Instant::now();
        exchange(&mut stream, &request, &mut body);
        replies.push((Instant::now(), begun.elapsed()));
    }
    let last: Answer<wire::GetReplicaList> = decode(&body);
    assert!(last.is_ok(), "{last:?}");
    replies
}

/// Pings for clients until `ends`.
fn ping(subject: &Subject<'_>, clients: &[Uuid], ends: &AtomicBool) {
    let (mut stream, mut body) = (subject.connect(), Vec::new());
    while !ends.load(Ordering::Relaxed) {
        for client in clients {
            exchange(&mut stream, &rpc::<wire::Ping>(client), &mut body);
        }
        thread::park_timeout(PING);
    }
}

/// Runs `work` while a lookup of `key` is repeated and clients ping. Returns the latencies of the lookups.
fn beside<T>(
    subject: &Subject<'_>,
    key: &str,
    clients: &[Uuid],
    work: impl FnOnce() -> T,
) -> (T, Vec<Reply>) {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| ping(subject, clients, &ends));
        let lookups = scope.spawn(|| look_up(subject, key, &ends));
        let result = work();
        ends.store(true, Ordering::Relaxed);
        (result, lookups.join().unwrap())
    })
}

fn measure(subject: &Subject<'_>) {
    let Subject { name, .. } = *subject;
    // Eviction begins at 0.95 of this.
    let size = SIZE * (KEYS as u64) * 100 / 93;
    subject.mount(client_id(), segment(1, size));
    let other = segment(OTHER, SIZE);
    let other_client = Uuid {
        first: OTHER,
        second: OTHER,
    };
    let mut stream = subject.connect();
    let config = ReplicateConfig::default();
    let mut next = 0;
    let mut batch = || {
        let keys = (next..next + BATCH).map(key).collect();
        next += BATCH;
        put(&mut stream, keys, SIZE, &config);
    };
    batch();
    let ((), filling) = beside(subject, &key(0), &[client_id()], || {
        for _ in 1..KEYS / BATCH {
            batch();
        }
    });
    let all = |replies: &[Reply]| (replies[0].0, replies[replies.len() - 1].0);
    let (from, to) = all(&filling);
    show(name, "beside a writer without a pause", &filling, from, to);
    let ((), resting) = beside(subject, &key(0), &[client_id()], || {
        thread::park_timeout(MEASURED);
    });
    let (from, to) = all(&resting);
    show(name, "at rest", &resting, from, to);
    let ((), evicting) = beside(subject, &key(0), &[client_id()], || {
        let begun = Instant::now();
        while begun.elapsed() < MEASURED {
            batch();
            thread::park_timeout(PAUSE);
        }
    });
    let (from, to) = all(&evicting);
    show(name, "while keys are evicted", &evicting, from, to);
    let oldest = (1..BATCH * 10).map(key).collect();
    let oldest = bare::<wire::BatchExistKey>(&(oldest, "default".into()));
    let mut body = Vec::new();
    exchange(&mut subject.connect(), &oldest, &mut body);
    let exist: <wire::BatchExistKey as BareRpc>::Answer = decode(&body);
    assert!(exist.contains(&Ok(false)), "nothing was evicted");

    subject.mount(other_client, other.clone());
    let here = ReplicateConfig {
        preferred_segments: vec![other.name],
        ..config
    };
    let mut stream = subject.connect();
    put(&mut stream, vec!["of the other".into()], 4096, &here);
    let last = rpc::<wire::ExistKey>(&(key(next - 1), "default".into()));
    // The first client is silent from now on.
    let (expired, expiring) = beside(subject, "of the other", &[other_client], || {
        let mut body = Vec::new();
        loop {
            exchange(&mut stream, &last, &mut body);
            let exists: Answer<wire::ExistKey> = decode(&body);
            if exists != Ok(true) {
                break;
            }
            thread::park_timeout(PAUSE);
        }
        let expired = Instant::now();
        thread::park_timeout(MEASURED);
        expired
    });
    let (from, to) = (expired - PING, expired + MEASURED);
    show(
        name,
        "while a client with all keys expires",
        &expiring,
        from,
        to,
    );
}

#[tokio::test]
#[ignore = "a measurement, not a test; its figures are in docs/master.md"]
async fn latency_while_keys_are_evicted_and_while_a_client_expires() {
    let host = Host::new().await;
    let flags = ["--client_ttl=5"];
    for (name, address) in [("stock", STOCK), ("ours", OURS)] {
        let mut child = match name {
            "stock" => host.stock(&flags).await,
            _ => host.ours(&flags).await,
        };
        let subject = Subject {
            name,
            host: &host,
            address,
            pid: child.id().unwrap(),
        };
        measure(&subject);
        child.kill().await.unwrap();
    }
}
