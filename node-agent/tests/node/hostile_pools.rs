//! Pools and peers that do harm while a stock client verifies the pool of another pod on the same node: it loses no
//! operation, and the agent stays active.

use std::fmt::Write as _;
use std::fs;
use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_stock::{MOONCAKE, Space};
use pool::handover::Connection;
use pool::handover::message::{Attached, Call, ExtentState, FromPool, RefusalKind, Reply, Request};
use proto::descriptor::Descriptor;
use proto::frame::{Header, Op, Version};
use proto::handshake::{self, Kind, MAX_LENGTH, PREFIX_LENGTH};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FallocateFlags;
use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::Value;
use sys::mem::{PageSize, memfd};
use sys::net::{Namespace, socket};
use tokio::process::Child;
use tokio::time::{sleep, timeout};

use crate::hostile::{Deviation, POD, impostor, listener};
use crate::peers::{Client, Master};
use crate::stage::{Node, PATIENCE, POOL_IP, SECOND_POOL_IP, eventually, is_in_sandbox};

pub(crate) const NEIGHBOUR: &str = "abab0000-0000-4000-8000-000000000007";
const KEYS: u32 = 8;
const SIZE: u64 = 1 << 20;
pub(crate) const MIB: u64 = 1 << 20;

/// The pool of another pod, with a client that verifies it.
pub(crate) struct Neighbour {
    client: Client,
    /// The 99th percentile of its operations without harm.
    quiet: Duration,
    space: Space,
    pub(crate) engine: u32,
    _master: Master,
    _children: [Child; 2],
}

/// A node with the neighbour only: the keys are in its pool.
pub(crate) async fn neighbour() -> (Node, Neighbour) {
    let node = Node::new().await;
    let space = node.second_pod().await;
    let master = Master::start(&node.peers).await;
    let mut client = Client::start(&node.peers).await;
    let children = [
        node.pool_in(&space, "second", SECOND_POOL_IP, NEIGHBOUR),
        node.agent(),
    ];
    node.assign_pools(&[("second", NEIGHBOUR)], "m1", 1);
    node.ready_in(&space).await;
    assert_eq!(client.put("n", KEYS, SIZE).await, (u64::from(KEYS), 0));
    let done = AtomicBool::new(false);
    let second = async {
        sleep(Duration::from_secs(1)).await;
        done.store(true, Ordering::Relaxed);
    };
    let ((), times) = tokio::join!(second, load(&mut client, &done));
    let neighbour = Neighbour {
        client,
        quiet: percentile_99(times),
        space,
        engine: node.engine_process().unwrap(),
        _master: master,
        _children: children,
    };
    (node, neighbour)
}

/// Gets and verifies keys of the neighbour. Returns the time of each operation.
async fn load(client: &mut Client, done: &AtomicBool) -> Vec<Duration> {
    let mut times = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let begun = Instant::now();
        assert_eq!(
            client.verify("n", 1, SIZE).await,
            (1, 0),
            "of the neighbour"
        );
        times.push(begun.elapsed());
    }
    times
}

fn percentile_99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[(times.len() * 99 / 100).min(times.len() - 1)]
}

/// Adds the hostile pod to the assignments.
pub(crate) fn assign_both(node: &Node) {
    node.assign_pools(&[("second", NEIGHBOUR), ("default", POD)], "m1", 1);
}

/// Waits until both pools are served.
async fn both_serve(node: &Node) {
    eventually("both pools are served", || async {
        let metrics = node.http("/metrics").await?;
        let both = "state=\"Serving\",reason=\"AsExpected\"} 2";
        metrics.contains(both).then_some(())
    })
    .await;
}

/// Runs an attack while the neighbour is verified and the agent is probed.
pub(crate) async fn during<T>(
    node: &Node,
    neighbour: &mut Neighbour,
    attack: impl Future<Output = T>,
) -> T {
    let done = AtomicBool::new(false);
    let attack = async {
        let outcome = attack.await;
        done.store(true, Ordering::Relaxed);
        outcome
    };
    let probes = async {
        while !done.load(Ordering::Relaxed) {
            let ready = node.http("/readyz").await;
            assert_eq!(ready.as_deref().map(str::trim), Some("active"));
            sleep(Duration::from_millis(200)).await;
        }
    };
    let (outcome, times, ()) = tokio::join!(attack, load(&mut neighbour.client, &done), probes);
    println!(
        "neighbour: {} operations, none failed; p99 {:?}, {:?} in a quiet second",
        times.len(),
        percentile_99(times),
        neighbour.quiet
    );
    let keys = u64::from(KEYS);
    let verified = neighbour.client.verify("n", KEYS, SIZE).await;
    assert_eq!(verified, (keys, 0), "of the neighbour");
    assert!(
        node.engine_processes().contains(&neighbour.engine),
        "the engine process of the neighbour was replaced"
    );
    outcome
}

/// The engine process of the hostile pod.
pub(crate) async fn engine_of(node: &Node, neighbour: &Neighbour) -> u32 {
    eventually("the hostile pod has an engine process", || async {
        let engines = node.engine_processes();
        let mut others = engines.into_iter().filter(|pid| *pid != neighbour.engine);
        others.find(|pid| is_in_sandbox(*pid))
    })
    .await
}

/// Waits for another engine process than these.
pub(crate) async fn successor(node: &Node, former: [u32; 2]) {
    eventually("another engine process runs", || async {
        let engines = node.engine_processes();
        engines.into_iter().find(|pid| !former.contains(pid))
    })
    .await;
}

/// The hostile pod with a real pool process.
async fn hostile_pool(node: &Node) -> Child {
    let pool = node.pool(POD);
    assign_both(node);
    node.ready().await;
    pool
}

/// Duplicates descriptors of a pool process: what its container can do with them, this test can.
fn descriptors(pool: &Child, of: impl Fn(&str, &OwnedFd) -> bool) -> Vec<OwnedFd> {
    let pid = pool.id().unwrap();
    let raw = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let process = pidfd_open(raw, PidfdFlags::empty()).unwrap();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let named = open.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_link(entry.path()).ok()?;
        let descriptor = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
        of(name.to_str()?, &descriptor).then_some(descriptor)
    });
    named.collect()
}

/// Handshake and data listener.
fn listeners(pool: &Child) -> Vec<OwnedFd> {
    let found = descriptors(pool, |name, descriptor| {
        let port = || {
            let address = rustix::net::getsockname(descriptor).ok()?;
            Some(SocketAddr::try_from(address).ok()?.port())
        };
        name.starts_with("socket:") && matches!(port(), Some(12001 | 12002))
    });
    assert_eq!(found.len(), 2);
    found
}

fn extents(pool: &Child) -> Vec<OwnedFd> {
    let found = descriptors(pool, |name, _| name.contains("mooncake-extent"));
    assert!(!found.is_empty());
    found
}

/// A thread that repeats something until it is stopped, and counts.
pub(crate) struct Harm {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Harm {
    pub(crate) fn begin(mut work: impl FnMut() -> u64 + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                count += work();
            }
            count
        });
        Self { stop, thread }
    }

    pub(crate) fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Stock peers write and read other keys, of both pools, and compare what they read.
const USE: &str = r#"
import json, os, sys, time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("10.77.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", "10.77.0.1:50051") == 0
count, end, number = dict(right=0, failed=0, wrong=0), time.time() + float(sys.argv[1]), 0
while time.time() < end:
    key, value = f"{os.getpid()}-{number}", os.urandom(512 << 10)
    number += 1
    if store.put(key, value) == 0:
        got = store.get(key)
        count["failed" if len(got) != len(value) else "right" if got == value else "wrong"] += 1
        store.remove(key, True)
    else:
        count["failed"] += 1
print("\n" + json.dumps(count), flush=True)
os._exit(0)
"#;

/// Operations of a stock client.
#[derive(Debug)]
pub(crate) struct Used {
    pub(crate) right: u64,
    pub(crate) failed: u64,
    pub(crate) wrong: u64,
}

/// Uses both pools by a stock client of its own. `None`: it hangs or has ended.
pub(crate) async fn used(node: &Node, seconds: u32) -> Option<Used> {
    let output = node
        .peers
        .command("python3")
        .args(["-c", USE, &seconds.to_string()])
        .env("PYTHONPATH", MOONCAKE.site().unwrap())
        .env("MC_FORCE_TCP", "1")
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(PATIENCE, output).await.ok()?.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let counts = text.lines().find(|line| line.starts_with("{\"right"))?;
    let counts: Value = serde_json::from_str(counts).unwrap();
    Some(Used {
        right: counts["right"].as_u64().unwrap(),
        failed: counts["failed"].as_u64().unwrap(),
        wrong: counts["wrong"].as_u64().unwrap(),
    })
}

/// The pool of the hostile pod serves every operation again.
pub(crate) async fn is_served_again(node: &Node) {
    both_serve(node).await;
    let used = used(node, 1).await.unwrap();
    println!("afterwards: {used:?}");
    assert!(used.right > 0 && used.failed == 0 && used.wrong == 0);
}

#[tokio::test]
async fn single_connections_stolen_from_blocking_listeners_cost_the_neighbour_nothing() {
    const PERIOD: Duration = Duration::from_millis(1500);
    let (node, mut neighbour) = neighbour().await;
    let pool = hostile_pool(&node).await;
    let thieves: Vec<_> = listeners(&pool)
        .into_iter()
        .map(|listener| {
            let mut next = Instant::now();
            Harm::begin(move || {
                let tick = Timespec {
                    tv_sec: 0,
                    tv_nsec: 1_000_000,
                };
                // The flag belongs to the open file description, which the engine process shares.
                rustix::io::ioctl_fionbio(&listener, false).unwrap();
                let mut polled = [PollFd::new(&listener, PollFlags::IN)];
                if rustix::event::poll(&mut polled, Some(&tick)) != Ok(1) || Instant::now() < next {
                    return 0;
                }
                rustix::io::ioctl_fionbio(&listener, true).unwrap();
                let stolen = rustix::net::accept(&listener).is_ok();
                if stolen {
                    next = Instant::now() + PERIOD;
                }
                u64::from(stolen)
            })
        })
        .collect();
    let pod = Namespace::of_process(node.peers.pid()).unwrap();
    let connecting = Harm::begin(move || {
        let connect = || {
            let to = |port| SocketAddr::new(POOL_IP.parse().unwrap(), port);
            let patience = Duration::from_millis(200);
            Ok([12001, 12002].map(|port| TcpStream::connect_timeout(&to(port), patience).is_ok()))
        };
        let connected = pod.run(connect).unwrap();
        std::thread::park_timeout(Duration::from_millis(100));
        connected.iter().map(|made| u64::from(*made)).sum()
    });
    let stolen: u64 = during(&node, &mut neighbour, async {
        sleep(Duration::from_secs(7)).await;
        thieves.into_iter().map(Harm::end).sum()
    })
    .await;
    for listener in listeners(&pool) {
        rustix::io::ioctl_fionbio(listener, true).unwrap();
    }
    // An engine process that waits for a connection gets one more on each port.
    sleep(Duration::from_millis(500)).await;
    let connected = connecting.end();
    println!("{stolen} of {connected} connections stolen");
    assert!(stolen > 1);
    is_served_again(&node).await;
}

#[tokio::test]
async fn options_of_shared_listeners_corrupt_no_operation_and_cost_the_neighbour_nothing() {
    let (node, mut neighbour) = neighbour().await;
    let pool = hostile_pool(&node).await;
    let engine = engine_of(&node, &neighbour).await;
    let shared = listeners(&pool);
    for listener in &shared {
        // Accepted sockets inherit all of them.
        sockopt::set_socket_linger(listener, Some(Duration::from_secs(60))).unwrap();
        socket::set_receive_low_water(listener.as_fd(), 1 << 20).unwrap();
        sockopt::set_socket_recv_buffer_size(listener, 1).unwrap();
        sockopt::set_socket_send_buffer_size(listener, 1).unwrap();
    }
    let used = during(&node, &mut neighbour, used(&node, 5)).await;
    println!("with these options: {used:?}");
    assert!(used.is_none_or(|used| used.wrong == 0));
    for listener in &shared {
        sockopt::set_socket_linger(listener, None).unwrap();
        socket::set_receive_low_water(listener.as_fd(), 1).unwrap();
        sockopt::set_socket_recv_buffer_size(listener, 1 << 20).unwrap();
        sockopt::set_socket_send_buffer_size(listener, 1 << 20).unwrap();
    }
    is_served_again(&node).await;
    assert_eq!(engine_of(&node, &neighbour).await, engine, "replaced");
}

/// Something else than sealed memory is handed over.
async fn is_refused(deviation: Deviation) {
    let (node, mut neighbour) = neighbour().await;
    let attack = async {
        let impostor = impostor(&node, deviation, POD);
        assign_both(&node);
        let reason = "DescriptorNotSealed";
        eventually(reason, || node.shows("Refused", reason)).await;
        // It is tried again meanwhile.
        sleep(Duration::from_secs(2)).await;
        impostor.abort();
    };
    during(&node, &mut neighbour, attack).await;
}

#[tokio::test]
async fn a_socket_as_extent_is_refused_beside_a_neighbour() {
    is_refused(Deviation::Socket).await;
}

#[tokio::test]
async fn a_pipe_as_extent_is_refused_beside_a_neighbour() {
    is_refused(Deviation::Pipe).await;
}

#[tokio::test]
async fn memory_without_seals_as_extent_is_refused_beside_a_neighbour() {
    is_refused(Deviation::Unsealed).await;
}

/// Punches holes into all parts of extents.
fn punch(extents: Vec<OwnedFd>) -> Harm {
    const PART: u64 = 128 << 10;
    let mut next = 0;
    Harm::begin(move || {
        for extent in &extents {
            let length = u64::try_from(rustix::fs::fstat(extent).unwrap().st_size).unwrap();
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(extent, hole, next % length, PART).unwrap();
        }
        // Coprime to the number of parts, so that each is reached.
        next += 37 * PART;
        std::thread::park_timeout(Duration::from_micros(200));
        extents.len() as u64
    })
}

#[tokio::test]
async fn holes_in_extents_under_load_change_no_byte_of_the_neighbour() {
    let (node, mut neighbour) = neighbour().await;
    let pool = hostile_pool(&node).await;
    let engine = engine_of(&node, &neighbour).await;
    let holes = punch(extents(&pool));
    let used = during(&node, &mut neighbour, used(&node, 5)).await;
    println!("{} holes: {used:?}", holes.end());
    let used = used.unwrap();
    assert!(used.wrong > 0, "no hole was read");
    assert_eq!(used.failed, 0, "the engine process fills them");
    is_served_again(&node).await;
    assert_eq!(engine_of(&node, &neighbour).await, engine, "replaced");
}

/// A pool process in this test that never touches its pages, but reports it.
struct Untouched {
    extents: Vec<OwnedFd>,
    listeners: [TcpListener; 2],
    record: Option<String>,
}

impl Untouched {
    fn begin(node: &Node) -> tokio::task::JoinHandle<()> {
        let handover = listener(node, POD);
        let inside = Namespace::of_process(node.pod.pid()).unwrap();
        let listeners = [12001, 12002].map(|port| {
            let bound = inside.run(|| TcpListener::bind(("0.0.0.0", port))).unwrap();
            bound.set_nonblocking(true).unwrap();
            bound
        });
        let mut pool = Self {
            extents: Vec::new(),
            listeners,
            record: None,
        };
        tokio::spawn(async move {
            loop {
                let (socket, _) = handover.accept().await.unwrap();
                let connection = Connection::from(socket);
                while let Ok((call, _)) = connection.receive::<Call>().await {
                    if pool.answer(&connection, call).await.is_err() {
                        break;
                    }
                }
            }
        })
    }

    fn length(&self, index: usize) -> u64 {
        let stat = rustix::fs::fstat(&self.extents[index]).unwrap();
        u64::try_from(stat.st_size).unwrap()
    }

    fn attached(&self) -> Attached {
        let whole = |index| {
            let length = self.length(index);
            ExtentState {
                length,
                touched: length,
            }
        };
        Attached {
            pod_uid: POD.to_owned(),
            pod_ip: POOL_IP.to_owned(),
            handshake_port: 12001,
            data_port: 12002,
            extents: (0..self.extents.len()).map(whole).collect(),
            ending: false,
            ledger: None,
        }
    }

    async fn answer(
        &mut self,
        connection: &Connection,
        Call { id, request }: Call,
    ) -> Result<(), pool::handover::Error> {
        const DEADLINE: Duration = Duration::from_secs(1);
        let mut touched = None;
        let reply = match &request {
            Request::Attach { .. } => Reply::Attached(self.attached()),
            Request::GetRecord => Reply::Record {
                record: self.record.clone(),
            },
            Request::PutRecord { record } => {
                self.record = Some(record.clone());
                Reply::Done
            }
            Request::Grant { extents, .. } => {
                let make = |length: &u64| memfd::create("untouched", *length, PageSize::Base);
                self.extents = extents.iter().map(|length| make(length).unwrap()).collect();
                Reply::Done
            }
            Request::Touch { index } => {
                touched = Some(*index);
                Reply::Done
            }
            Request::Secret => Reply::Refused {
                kind: RefusalKind::OutOfOrder,
                message: String::new(),
            },
            _ => Reply::Done,
        };
        let handed = match &request {
            Request::Extent { index } => vec![self.extents[*index].as_fd()],
            Request::Listeners => self.listeners.iter().map(AsFd::as_fd).collect(),
            _ => Vec::new(),
        };
        let answer = FromPool::Answer { id, reply };
        connection.send(&answer, &handed, DEADLINE).await?;
        if let Some(index) = touched {
            let bytes = self.length(index);
            let message = FromPool::Touched {
                index,
                bytes,
                failure: None,
            };
            connection.send(&message, &[], DEADLINE).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_pool_that_never_touched_its_pages_is_served_and_costs_the_neighbour_nothing() {
    let (node, mut neighbour) = neighbour().await;
    let pool = Untouched::begin(&node);
    assign_both(&node);
    both_serve(&node).await;
    let used = during(&node, &mut neighbour, used(&node, 3)).await.unwrap();
    println!("{used:?}");
    assert!(used.right > 0 && used.failed == 0 && used.wrong == 0);
    pool.abort();
}

/// A cgroup with a memory limit for an engine process. Removed when it is empty.
struct Limited(PathBuf);

impl Limited {
    /// `None`: this machine has no memory hierarchy of version 1 that the test may change.
    fn enter(engine: u32, bytes: u64) -> Option<Self> {
        let folder = format!("/sys/fs/cgroup/memory/mooncake-test-{engine}");
        fs::create_dir(&folder).ok()?;
        let limited = Self(folder.into());
        fs::write(limited.0.join("memory.limit_in_bytes"), bytes.to_string()).ok()?;
        fs::write(limited.0.join("cgroup.procs"), engine.to_string()).ok()?;
        Some(limited)
    }

    fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("memory.oom_control")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.unwrap().parse().unwrap()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Fails while a process is in it.
        let _ = fs::remove_dir(&self.0);
    }
}

#[tokio::test]
async fn an_engine_process_that_is_killed_for_memory_is_replaced_and_the_neighbour_goes_on() {
    let (node, mut neighbour) = neighbour().await;
    // What the engine process touches first is charged to it, so this pool lets it exceed its limit.
    let pool = Untouched::begin(&node);
    assign_both(&node);
    both_serve(&node).await;
    let engine = engine_of(&node, &neighbour).await;
    let Some(cgroup) = Limited::enter(engine, 4 * MIB) else {
        return println!("not run: no memory hierarchy of version 1");
    };
    let (space, other) = (&node.peers, neighbour.engine);
    let writes = async {
        let mut client = Client::start(space).await;
        while cgroup.kills() == 0 {
            client.put("oom", 24, SIZE).await;
            client.remove("oom", 24).await;
        }
    };
    during(&node, &mut neighbour, async {
        timeout(PATIENCE, writes).await.expect("it is killed");
        successor(&node, [engine, other]).await;
    })
    .await;
    is_served_again(&node).await;
    pool.abort();
}

/// The descriptor of the hostile pod's pool, as a peer fetches it.
fn descriptor(peer: &Namespace) -> Descriptor {
    let fetch = || {
        let mut stream = TcpStream::connect((POOL_IP, 12001))?;
        stream.write_all(&handshake::encode(Some(Kind::Metadata), b"{}"))?;
        let mut prefix = [0; PREFIX_LENGTH];
        stream.read_exact(&mut prefix)?;
        let mut payload = vec![0; handshake::length(prefix).unwrap()];
        stream.read_exact(&mut payload)?;
        Ok(payload)
    };
    let payload = peer.run(fetch).unwrap();
    let body = handshake::reply_body(Kind::Metadata, &payload).unwrap();
    Descriptor::parse(body).unwrap()
}

/// Memory of a process in bytes, by its name in `/proc/PID/status`.
pub(crate) fn memory(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mut lines = status.lines().map(|line| line.split_once(':').unwrap());
    let (_, amount) = lines.find(|(found, _)| *found == name).unwrap();
    let kib = amount.trim().trim_end_matches(" kB").parse::<u64>();
    kib.unwrap() << 10
}

#[tokio::test]
async fn handshakes_of_one_mebibyte_in_a_loop_cost_other_peers_nothing() {
    const THREADS: usize = 40;
    const MOMENT: Duration = Duration::from_secs(1);
    let to = SocketAddr::new(POOL_IP.parse().unwrap(), 12001);
    let (node, mut neighbour) = neighbour().await;
    let _pool = hostile_pool(&node).await;
    let engine = engine_of(&node, &neighbour).await;
    let before = memory(engine, "RssAnon");
    let mut body = String::from("{\"segments\":[0");
    while body.len() < MAX_LENGTH - 16 {
        write!(body, ",{}", body.len() % 10).unwrap();
    }
    body.push_str("]}");
    let frame: Arc<[u8]> = handshake::encode(Some(Kind::Metadata), body.as_bytes()).into();
    let answered = Arc::new(AtomicU64::new(0));
    // Another admitted address than that of the clients.
    let peer = Arc::new(Namespace::of_process(neighbour.space.pid()).unwrap());
    let floods: Vec<_> = (0..THREADS)
        .map(|_| {
            let (frame, answered) = (Arc::clone(&frame), Arc::clone(&answered));
            let peer = Arc::clone(&peer);
            Harm::begin(move || {
                let request = || {
                    let mut stream = TcpStream::connect_timeout(&to, MOMENT)?;
                    stream.set_write_timeout(Some(MOMENT))?;
                    stream.set_read_timeout(Some(MOMENT))?;
                    stream.write_all(&frame)?;
                    stream.read_exact(&mut [0; PREFIX_LENGTH])
                };
                // Those above the limit of an address are closed.
                if peer.run(request).is_ok() {
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                1
            })
        })
        .collect();
    let used = during(&node, &mut neighbour, used(&node, 4)).await.unwrap();
    let most = memory(engine, "RssAnon");
    let sent: u64 = floods.into_iter().map(Harm::end).sum();
    println!(
        "{sent} handshakes, {} answered; the engine process has {} KiB, {} before; others: {used:?}",
        answered.load(Ordering::Relaxed),
        most >> 10,
        before >> 10
    );
    assert!(answered.load(Ordering::Relaxed) > 0);
    assert!(used.right > 0 && used.failed == 0 && used.wrong == 0);
    assert!(most < before + 32 * MIB);
    assert_eq!(engine_of(&node, &neighbour).await, engine, "replaced");
}

#[tokio::test]
async fn peers_that_read_eight_mebibytes_and_stop_cost_other_peers_nothing() {
    const READERS: usize = 64;
    let (node, mut neighbour) = neighbour().await;
    let _pool = hostile_pool(&node).await;
    let engine = engine_of(&node, &neighbour).await;
    let before = memory(engine, "RssAnon");
    let peer = Namespace::of_process(neighbour.space.pid()).unwrap();
    let address = descriptor(&peer).buffers[0].addr;
    let header = Header {
        size: 8 * MIB,
        address,
        op: Op::Read,
        version: Version::V1,
    };
    let read = || {
        let mut stream = TcpStream::connect((POOL_IP, 12002))?;
        stream.write_all(&header.encode())?;
        // It is served; the rest is never received.
        stream.read_exact(&mut [0; 4096])?;
        Ok(stream)
    };
    let stopped: Vec<_> = (0..READERS).map(|_| peer.run(read).unwrap()).collect();
    let used = during(&node, &mut neighbour, used(&node, 4)).await.unwrap();
    let most = memory(engine, "RssAnon");
    println!(
        "{} readers; the engine process has {} KiB, {} before; others: {used:?}",
        stopped.len(),
        most >> 10,
        before >> 10
    );
    assert!(used.right > 0 && used.failed == 0 && used.wrong == 0);
    assert!(most < before + 32 * MIB);
    assert_eq!(engine_of(&node, &neighbour).await, engine, "replaced");
}

/// Lets one thread of a program panic: its next instruction is the function that Rust calls for a panic without arguments.
#[cfg(target_arch = "x86_64")]
const PANIC: &str = r#"
import ctypes, os, struct, sys
SEIZE, INTERRUPT, GETREGS, SETREGS, DETACH, WALL, AT_ENTRY = 0x4206, 0x4207, 12, 13, 17, 0x40000000, 9
pid, tid = int(sys.argv[1]), int(sys.argv[2])
elf = open(f"/proc/{pid}/exe", "rb").read()
entry, sections = struct.unpack_from("<QxxxxxxxxQ", elf, 24)
size, count = struct.unpack_from("<HH", elf, 58)
headers = [struct.unpack_from("<IIQQQQIIQQ", elf, sections + size * n) for n in range(count)]
symbols = next(header for header in headers if header[1] == 2)
names = headers[symbols[6]]
names = elf[names[4]:names[4] + names[5]]
for name, _, _, _, value, _ in struct.iter_unpack("<IBBHQQ", elf[symbols[4]:symbols[4] + symbols[5]]):
    if b"panicking19panic_cannot_unwind" in names[name:names.index(b"\0", name)]:
        break
else:
    sys.exit("no such function")
vector = dict(struct.iter_unpack("QQ", open(f"/proc/{pid}/auxv", "rb").read()))
ptrace = ctypes.CDLL(None).ptrace
ptrace.argtypes = [ctypes.c_long] * 4
ptrace.restype = ctypes.c_long
assert ptrace(SEIZE, tid, 0, 0) == 0 and ptrace(INTERRUPT, tid, 0, 0) == 0
os.waitpid(tid, WALL)
registers = (ctypes.c_ulong * 27)()
assert ptrace(GETREGS, tid, 0, ctypes.addressof(registers)) == 0
# No system call is begun again. The stack is aligned as after a call, below what the thread uses.
registers[15], registers[16] = 2**64 - 1, vector[AT_ENTRY] - entry + value
registers[19] = (registers[19] - 4096) // 16 * 16 - 8
assert ptrace(SETREGS, tid, 0, ctypes.addressof(registers)) == 0
assert ptrace(DETACH, tid, 0, 0) == 0
"#;

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn a_data_thread_that_panics_ends_its_own_engine_process_only() {
    let (node, mut neighbour) = neighbour().await;
    let _pool = hostile_pool(&node).await;
    let engine = engine_of(&node, &neighbour).await;
    let other = neighbour.engine;
    let tasks = fs::read_dir(format!("/proc/{engine}/task")).unwrap();
    let data = tasks.flatten().find(|task| {
        let name = fs::read_to_string(task.path().join("comm")).unwrap();
        name.trim() == "data-0"
    });
    let data = data.unwrap().file_name();
    let begun = Instant::now();
    during(&node, &mut neighbour, async {
        let panic = tokio::process::Command::new("python3")
            .args(["-c", PANIC, &engine.to_string()])
            .arg(data)
            .status();
        assert!(panic.await.unwrap().success());
        successor(&node, [engine, other]).await;
        println!("replaced after {:?}", begun.elapsed());
    })
    .await;
    is_served_again(&node).await;
}
