//! Transfers through a proxy that delays, resets, truncates and stops connections, to a peer that is replaced again
//! and again: no byte is wrong, no outcome is late, no transfer is lost, and nothing is left behind. The only test
//! of its process, because it counts descriptors, threads and memory. `FAULTY_TRANSFERS` sets the number of transfers.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/proxy.rs"]
mod proxy;
#[path = "fixture/rig.rs"]
mod rig;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mooncake_engine::{
    Admission, Cause, Endpoint, EndpointSpec, Engine, Op, Region, RegionId, Settings, Targets,
    Transfer, TransferError,
};
use proxy::Proxy;
use rig::{BASE, TIMEOUT, bounded, pattern, quick, region, until};

/// Concurrent callers. Each has its own part of both regions.
const CALLERS: u64 = 16;
const PART: u64 = rig::LENGTH / CALLERS;
/// Slots of a part: one for large transfers, then small ones.
const LARGE: u64 = 512 << 10;
const SMALL: u64 = 16 << 10;
const SLOTS: u64 = 1 + (PART - LARGE) / SMALL;
/// Transfers of one caller in a round. After a round nothing is in flight, and all of the memory is compared.
const ROUND: u64 = 250;
/// Most transfers of one peer. Rounds mostly wait for deadlines, so further transfers have peers of their own at the same time.
const SHARE: u64 = 100_000;
/// Time for each transfer.
const DEADLINE: Duration = Duration::from_secs(1);
/// Memory that the allocator may take in the second half of the transfers.
const MEMORY: u64 = 64 << 20;

/// A generator of pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// What was observed.
#[derive(Debug, Default)]
struct Seen {
    outcomes: BTreeMap<String, u64>,
    transfers: u64,
    corrupt: u64,
    /// Without an outcome or a release long after the deadline.
    lost: u64,
    /// Outcomes later than the deadline by more than a tenth of its time.
    late: u64,
    latest: Duration,
}

impl Seen {
    fn add(&mut self, other: Self) {
        for (outcome, count) in other.outcomes {
            *self.outcomes.entry(outcome).or_default() += count;
        }
        self.transfers += other.transfers;
        self.corrupt += other.corrupt;
        self.lost += other.lost;
        self.late += other.late;
        self.latest = self.latest.max(other.latest);
    }

    fn outcome(&mut self, outcome: &Result<(), TransferError>, deadline: Instant) {
        let late = Instant::now().saturating_duration_since(deadline);
        self.transfers += 1;
        self.late += u64::from(late > DEADLINE / 10);
        self.latest = self.latest.max(late);
        let cause = |cause: &Cause<_>| match cause {
            Cause::Transport(_) => "transport".to_owned(),
            other => format!("{other:?}"),
        };
        let name = match outcome {
            Ok(()) => "done".to_owned(),
            Err(TransferError::Failed {
                stage, cause: why, ..
            }) => {
                format!("failed, {stage:?}, {}", cause(why))
            }
            Err(TransferError::Indeterminate {
                stage, cause: why, ..
            }) => {
                format!("indeterminate, {stage:?}, {}", cause(why))
            }
            Err(other) => other.to_string(),
        };
        *self.outcomes.entry(name).or_default() += 1;
    }
}

fn listen() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

/// Opens an endpoint that publishes `published` as its data port.
fn open(engine: &Engine, listeners: [TcpListener; 2], published: u16) -> Endpoint {
    let [handshake, data] = listeners;
    let spec = EndpointSpec {
        name: handshake.local_addr().unwrap().to_string(),
        data_port: published,
        data_host: Ipv4Addr::LOCALHOST.to_string(),
        handshake,
        data,
        network: None,
        admission: Admission::Anyone,
        targets: Targets::Admitted,
        metadata: None,
    };
    engine.endpoint(spec).unwrap()
}

/// The peer: memory and listeners outlive its engine, as in a pool pod.
struct Target {
    listeners: [TcpListener; 2],
    published: u16,
    memory: Arc<Region>,
    engine: Option<(Engine, Endpoint)>,
}

impl Target {
    fn start(&mut self) {
        let engine = Engine::start(quick()).unwrap();
        let listeners = self.listeners.each_ref();
        let listeners = listeners.map(|listener| listener.try_clone().unwrap());
        let endpoint = open(&engine, listeners, self.published);
        endpoint.add_region(Arc::clone(&self.memory), BASE).unwrap();
        self.engine = Some((engine, endpoint));
    }

    async fn end(&mut self) {
        if let Some((_engine, endpoint)) = self.engine.take() {
            bounded(endpoint.close()).await.unwrap();
        }
    }

    fn endpoint(&self) -> &Endpoint {
        &self.engine.as_ref().unwrap().1
    }
}

/// One caller in one round. Returns what it saw, and its generator.
async fn call(
    ours: Arc<Endpoint>,
    own: (RegionId, Arc<Region>),
    theirs: (String, Arc<Region>),
    caller: u64,
    mut random: Random,
) -> (Seen, Random) {
    let mut seen = Seen::default();
    let part = caller * PART;
    let content = || {
        let mut bytes = vec![0; usize::try_from(PART).unwrap()];
        theirs.1.copy_out(part, &mut bytes).unwrap();
        bytes
    };
    let mut expected = content();
    // Slots whose content is unknown until the end of the round.
    let mut unknown = std::collections::BTreeSet::new();
    for _ in 0..ROUND {
        let large = random.below(20) == 0;
        let slot = if large {
            0
        } else {
            1 + random.below(SLOTS - 1)
        };
        if unknown.contains(&slot) {
            continue;
        }
        let (start, most) = match slot {
            0 => (0, LARGE),
            slot => (LARGE + (slot - 1) * SMALL, SMALL),
        };
        let length = 1 + random.below(most);
        let op = [Op::Read, Op::Write][usize::try_from(random.below(2)).unwrap()];
        let range = usize::try_from(start).unwrap()..usize::try_from(start + length).unwrap();
        let bytes = pattern(random.below(u64::MAX), range.len());
        own.1.copy_in(part + start, &bytes).unwrap();
        let transfer = Transfer {
            op,
            peer: theirs.0.clone(),
            remote: BASE + part + start,
            local: own.0,
            local_offset: part + start,
            length,
        };
        let deadline = Instant::now() + DEADLINE;
        let mut batch = ours.submit(&[transfer], deadline);
        if random.below(100) == 0 {
            drop(batch);
            unknown.insert(slot);
            continue;
        }
        let Ok(outcome) = tokio::time::timeout(TIMEOUT, batch.outcome()).await else {
            seen.lost += 1;
            continue;
        };
        seen.outcome(&outcome, deadline);
        if tokio::time::timeout(TIMEOUT, batch.released())
            .await
            .is_err()
        {
            seen.lost += 1;
        }
        let mut there = vec![0; range.len()];
        match (op, outcome) {
            (Op::Read, Ok(())) => {
                own.1.copy_out(part + start, &mut there).unwrap();
                seen.corrupt += u64::from(there != expected[range]);
            }
            (Op::Read, Err(_)) => {}
            (Op::Write, Err(TransferError::Indeterminate { .. })) => {
                unknown.insert(slot);
            }
            (Op::Write, outcome) => {
                if outcome.is_ok() {
                    expected[range.clone()].copy_from_slice(&bytes);
                }
                // The peer has received all or nothing.
                theirs.1.copy_out(part + start, &mut there).unwrap();
                seen.corrupt += u64::from(there != expected[range]);
            }
        }
    }
    // No late byte has reached a slot whose content is known.
    let there = content();
    for slot in (0..SLOTS).filter(|slot| !unknown.contains(slot)) {
        let (start, most) = match slot {
            0 => (0, LARGE),
            slot => (LARGE + (slot - 1) * SMALL, SMALL),
        };
        let range = usize::try_from(start).unwrap()..usize::try_from(start + most).unwrap();
        seen.corrupt += u64::from(there[range.clone()] != expected[range]);
    }
    (seen, random)
}

/// Makes at least so many transfers with one peer. The generators of different peers differ.
async fn run(transfers: u64, peer: u64) -> (Seen, [u64; 4]) {
    let proxy = Proxy::new().await;
    let mut target = Target {
        listeners: [listen(), listen()],
        published: proxy.address.port(),
        memory: region(rig::LENGTH),
        engine: None,
    };
    target.start();
    let [handshake, data] = target.listeners.each_ref();
    let [name, data] = [handshake, data].map(|listener| listener.local_addr().unwrap());
    let name = name.to_string();
    proxy.forward_to(data);
    let engine = Engine::start(Settings {
        data_threads: 2,
        connect_timeout: DEADLINE,
        ..quick()
    })
    .unwrap();
    let listeners = [listen(), listen()];
    let unused = listeners[1].local_addr().unwrap().port();
    let ours = Arc::new(open(&engine, listeners, unused));
    let own = region(rig::LENGTH);
    let id = ours.add_region(Arc::clone(&own), BASE).unwrap();

    let mut seen = Seen::default();
    let mut randoms: Vec<_> = (1..=CALLERS)
        .map(|seed| Random(seed << 32 | peer << 16 | seed))
        .collect();
    let mut memory = None;
    let begun = Instant::now();
    while seen.transfers < transfers {
        let callers: Vec<_> = (0..)
            .zip(randoms.drain(..))
            .map(|(caller, random)| {
                let own = (id, Arc::clone(&own));
                let theirs = (name.clone(), Arc::clone(&target.memory));
                tokio::spawn(call(Arc::clone(&ours), own, theirs, caller, random))
            })
            .collect();
        // In the middle of the round the peer ends and another one takes its place.
        let served = target.endpoint().stats().requests;
        let half = ROUND * CALLERS / 4;
        while target.endpoint().stats().requests < served + half
            && callers.iter().any(|caller| !caller.is_finished())
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        target.end().await;
        target.start();
        for caller in callers {
            let (one, random) = caller.await.unwrap();
            seen.add(one);
            randoms.push(random);
        }
        proxy.end_all().await;
        until("the peer has no connections", || {
            target.endpoint().stats().connections == 0
        })
        .await;
        if seen.transfers >= transfers / 2 {
            memory.get_or_insert_with(anonymous);
        }
    }
    let growth = anonymous().saturating_sub(memory.unwrap_or_default());
    println!(
        "peer {peer}: {} transfers in {:.1?}: {} corrupt, {} lost, {} later than the deadline + 10 %, the latest by {:.1?}; \
         {} KiB more memory; faults {:?}",
        seen.transfers,
        begun.elapsed(),
        seen.corrupt,
        seen.lost,
        seen.late,
        seen.latest,
        growth >> 10,
        proxy.faults(),
    );
    for (outcome, count) in &seen.outcomes {
        println!("{count:>9} {outcome}");
    }
    assert!(growth < MEMORY, "{} MiB more memory", growth >> 20);
    let ours = Arc::into_inner(ours).expect("no caller has it any more");
    bounded(ours.close()).await.unwrap();
    target.end().await;
    assert_eq!(Arc::strong_count(&own), 1, "references to our region");
    (seen, proxy.faults())
}

/// Returns the anonymous memory of this process in bytes.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let line = lines
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

/// Returns the number of descriptors and of threads of this process.
fn counts() -> [usize; 2] {
    ["/proc/self/fd", "/proc/self/task"].map(|folder| std::fs::read_dir(folder).unwrap().count())
}

#[test]
fn random_faults_lose_and_corrupt_nothing() {
    let transfers = std::env::var("FAULTY_TRANSFERS");
    let transfers = transfers.map_or(5_000_u64, |text| text.parse().unwrap());
    // The first runtime of a process opens descriptors that stay.
    drop(tokio::runtime::Runtime::new().unwrap());
    let before = counts();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let peers = transfers.div_ceil(SHARE);
    let (seen, faults) = runtime.block_on(async {
        let runs: Vec<_> = (0..peers)
            .map(|peer| tokio::spawn(run(transfers.div_ceil(peers), peer)))
            .collect();
        let (mut seen, mut faults) = (Seen::default(), [0; 4]);
        for run in runs {
            let (one, had) = run.await.unwrap();
            seen.add(one);
            faults = std::array::from_fn(|index| faults[index] + had[index]);
        }
        (seen, faults)
    });
    runtime.shutdown_timeout(TIMEOUT);
    assert_eq!((seen.corrupt, seen.lost), (0, 0));
    // A busy machine may wake the caller late.
    assert!(seen.latest < 10 * DEADLINE, "{:?}", seen.latest);
    assert!(faults.iter().all(|count| *count > 0), "{faults:?}");
    assert!(seen.outcomes["done"] > seen.transfers / 4);
    let end = Instant::now() + TIMEOUT;
    while counts() != before {
        assert!(Instant::now() < end, "{:?} are not {before:?}", counts());
        std::thread::yield_now();
    }
}
