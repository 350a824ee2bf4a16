//! Figures: keys per second of processor and latency of the stock master and of ours, alternately in one run, beside a
//! raw echo. `cargo test --release --package mooncake-master --test load -- --ignored --nocapture`. Requires root.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

#[path = "fixture/client.rs"]
mod client;
#[path = "load/million.rs"]
mod million;
#[path = "fixture/namespace.rs"]
mod namespace;
#[path = "load/pauses.rs"]
mod pauses;
#[path = "load/takeover.rs"]
mod takeover;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use namespace::{Host, OURS, STOCK};
use proto::coro_rpc::{RequestHeader, ResponseHeader};
use proto::store::release_0_3_13 as wire;
use proto::store::{BareRpc, Rpc, Uuid};
use proto::struct_pack::{self, Packed};
use wire::{ObjectMeta, ReplicaType, ReplicateConfig, Segment};

const KEYS: usize = 128 * 800;
const BATCH: usize = 128;
/// Connections, each with one request at a time.
const CONNECTIONS: usize = 4;
const MEASURED: Duration = Duration::from_secs(3);
const ROUNDS: usize = 3;
/// Ticks of processor time per second in /proc/PID/stat.
const TICKS: f64 = 100.0;

fn key(number: usize) -> String {
    format!(
        "model-0123456789abcdef/layer-{:03}/block-{number:020}",
        number % 61
    )
}

fn client_id() -> Uuid {
    Uuid {
        first: 1,
        second: 1,
    }
}

fn request(function_id: u32, body: &[u8]) -> Vec<u8> {
    let header = RequestHeader {
        sequence: 1,
        function_id,
        length: u32::try_from(body.len()).unwrap(),
    };
    [&header.encode(), body].concat()
}

fn bare<R: BareRpc>(arguments: &R::Arguments) -> Vec<u8> {
    request(R::function_id(), &struct_pack::encode(arguments))
}

fn rpc<R: Rpc>(arguments: &R::Arguments) -> Vec<u8> {
    request(R::function_id(), &struct_pack::encode(arguments))
}

/// One request and its reply, of which the body is returned.
fn exchange(stream: &mut TcpStream, request: &[u8], body: &mut Vec<u8>) {
    stream.write_all(request).unwrap();
    let mut header = [0; ResponseHeader::BYTES];
    stream.read_exact(&mut header).unwrap();
    let header = ResponseHeader::decode(header).unwrap();
    assert_eq!(header.code, 0);
    body.resize(header.length as usize, 0);
    stream.read_exact(body).unwrap();
}

fn decode<T: Packed>(body: &[u8]) -> T {
    struct_pack::decode(body).unwrap()
}

/// Seconds of processor time of a process.
fn processor(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / TICKS
}

fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib: u64 = line
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    kib << 10
}

struct Subject<'a> {
    name: &'static str,
    host: &'a Host,
    address: SocketAddr,
    pid: u32,
}

impl Subject<'_> {
    fn connect(&self) -> TcpStream {
        let stream = self
            .host
            .namespace
            .run(|| TcpStream::connect(self.address))
            .unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends these requests of `BATCH` keys in turn for the measured time.
    fn batches(&self, what: &str, requests: &[Vec<u8>], check: fn(&[u8])) -> f64 {
        let (before, own, begun) = (
            processor(self.pid),
            processor(std::process::id()),
            Instant::now(),
        );
        let count: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..CONNECTIONS)
                .map(|first| {
                    let mut stream = self.connect();
                    scope.spawn(move || {
                        let mut body = Vec::new();
                        let mut count = 0;
                        let mut turn = first * 7;
                        while begun.elapsed() < MEASURED {
                            exchange(&mut stream, &requests[turn % requests.len()], &mut body);
                            turn += 1;
                            count += BATCH;
                        }
                        check(&body);
                        count
                    })
                })
                .collect();
            threads.into_iter().map(|one| one.join().unwrap()).sum()
        });
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let keys = count as f64;
        let (used, own) = (
            processor(self.pid) - before,
            processor(std::process::id()) - own,
        );
        let rate = keys / used;
        println!(
            "{:>6} {what:<24} {:>8.0} keys/s  {rate:>9.0} keys per second of processor (the generator: {:>9.0})",
            self.name,
            keys / begun.elapsed().as_secs_f64(),
            keys / own
        );
        rate
    }

    /// Returns the median latency of one request.
    fn median(&self, what: &str, request: &[u8]) -> Duration {
        let mut stream = self.connect();
        let mut body = Vec::new();
        let median = median(|| exchange(&mut stream, request, &mut body));
        println!("{:>6} {what:<24} p50 {median:?}", self.name);
        median
    }

    fn mount(&self, client: Uuid, segment: Segment) {
        let mount = rpc::<wire::MountSegment>(&(segment, client));
        exchange(&mut self.connect(), &mount, &mut Vec::new());
    }

    fn fill(&self) -> f64 {
        let mut stream = self.connect();
        self.mount(client_id(), segment(1, 1 << 40));
        let before = processor(self.pid);
        for batch in 0..KEYS / BATCH {
            let keys = (batch * BATCH..(batch + 1) * BATCH).map(key).collect();
            put(&mut stream, keys, 1 << 20, &ReplicateConfig::default());
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = KEYS as f64 / (processor(self.pid) - before);
        println!(
            "{:>6} put start and end of {KEYS} keys in batches: {rate:>9.0} keys per second of processor",
            self.name
        );
        rate
    }
}

/// The segment of the client with this number.
fn segment(number: u64, size: u64) -> Segment {
    let name = format!("10.0.0.{number}:1");
    Segment {
        id: Uuid {
            first: number,
            second: 1,
        },
        te_endpoint: name.clone(),
        name,
        base: number << 58,
        size,
        protocol: "tcp".into(),
        host_id: String::new(),
    }
}

/// Puts one batch, without bytes.
fn put(stream: &mut TcpStream, keys: Vec<String>, size: u64, config: &ReplicateConfig) {
    let mut body = Vec::new();
    let start = bare::<wire::BatchPutStart>(&(
        client_id(),
        keys.clone(),
        vec![size; keys.len()],
        config.clone(),
        "default".into(),
    ));
    exchange(stream, &start, &mut body);
    let metas = keys.into_iter().map(|key| ObjectMeta {
        key,
        object_checksum: None,
    });
    let end = bare::<wire::BatchPutEnd>(&(
        client_id(),
        metas.collect(),
        ReplicaType::All,
        "default".into(),
    ));
    exchange(stream, &end, &mut body);
    let ended: Vec<Result<(), proto::store::ErrorCode>> = decode(&body);
    assert!(ended.iter().all(Result::is_ok));
}

fn median(mut once: impl FnMut()) -> Duration {
    let begun = Instant::now();
    let mut times = Vec::new();
    while begun.elapsed() < MEASURED {
        let start = Instant::now();
        once();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2]
}

/// Median time for a server that only sends bytes back.
fn echo(request: usize, reply: usize) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let (mut received, answer) = (vec![0; request], vec![0; reply]);
        while stream.read_exact(&mut received).is_ok() && stream.write_all(&answer).is_ok() {}
    });
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let (asking, mut answer) = (vec![0; request], vec![0; reply]);
    let median = median(|| {
        stream.write_all(&asking).unwrap();
        stream.read_exact(&mut answer).unwrap();
    });
    drop(stream);
    server.join().unwrap();
    median
}

fn ratio(ours: &mut [f64], stock: &mut [f64]) -> f64 {
    ours.sort_by(f64::total_cmp);
    stock.sort_by(f64::total_cmp);
    ours[ours.len() / 2] / stock[stock.len() / 2]
}

#[tokio::test]
#[ignore = "a measurement, not a test; its figures are in docs/master.md"]
async fn lookups_and_puts_beside_the_stock_master() {
    let host = Host::new().await;
    let flags = ["--default_kv_lease_ttl=1h", "--client_ttl=3600"];
    let stock = host.stock(&flags).await;
    let ours = host.ours(&flags).await;
    let subjects =
        [("stock", STOCK, &stock), ("ours", OURS, &ours)].map(|(name, address, child)| Subject {
            name,
            host: &host,
            address,
            pid: child.id().unwrap(),
        });
    let before: Vec<_> = subjects.iter().map(|one| resident(one.pid)).collect();
    let put = subjects.each_ref().map(Subject::fill);
    for (subject, before) in subjects.iter().zip(before) {
        let bytes = (resident(subject.pid) - before) / KEYS as u64;
        println!(
            "{:>6} {bytes} bytes of memory a key of {} bytes",
            subject.name,
            key(0).len()
        );
    }
    let batches: Vec<Vec<String>> = (0..KEYS / BATCH)
        .map(|batch| (batch * BATCH..(batch + 1) * BATCH).map(key).collect())
        .collect();
    let tenant = || String::from("default");
    let exist: Vec<_> = batches
        .iter()
        .map(|keys| bare::<wire::BatchExistKey>(&(keys.clone(), tenant())))
        .collect();
    let lists: Vec<_> = batches
        .iter()
        .map(|keys| bare::<wire::BatchGetReplicaList>(&(keys.clone(), tenant())))
        .collect();
    let single = rpc::<wire::ExistKey>(&(key(5), tenant()));
    let one_list = rpc::<wire::GetReplicaList>(&(key(5), tenant()));
    let all_exist = |body: &[u8]| {
        let answer: <wire::BatchExistKey as BareRpc>::Answer = decode(body);
        assert!(answer.iter().all(|one| *one == Ok(true)));
    };
    let all_found = |body: &[u8]| {
        let answer: <wire::BatchGetReplicaList as BareRpc>::Answer = decode(body);
        assert!(answer.iter().all(Result::is_ok));
    };
    let mut figures: [[Vec<f64>; 4]; 2] = Default::default();
    for _ in 0..ROUNDS {
        for (subject, figures) in subjects.iter().zip(&mut figures) {
            figures[0].push(subject.batches("exist, batch 128", &exist, all_exist));
            figures[1].push(subject.batches("replica lists, batch 128", &lists, all_found));
            figures[2].push(subject.median("exist, single", &single).as_secs_f64());
            figures[3].push(
                subject
                    .median("replica list, single", &one_list)
                    .as_secs_f64(),
            );
        }
        println!(
            "  echo exist, single            p50 {:?}",
            echo(single.len(), 22)
        );
    }
    let [mut stock, mut ours] = figures;
    println!("medians of {ROUNDS} rounds, ours/stock:");
    println!(
        "  put start and end, keys per second of processor: {:.2}",
        put[1] / put[0]
    );
    for (what, (ours, stock)) in [
        "exist, batch 128, keys per second of processor",
        "replica lists, batch 128, keys per second of processor",
        "exist, single, p50",
        "replica list, single, p50",
    ]
    .iter()
    .zip(ours.iter_mut().zip(&mut stock))
    {
        println!("  {what}: {:.2}", ratio(ours, stock));
    }
}
