//! Engine processes that outlive their agents, end, hang, and have no rights.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine_process::pidfd::Pidfd;
use pool::handover::message::Request;
use pool::handover::{self, ADDRESS, Connection};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, kill_process};
use sys::net::{Namespace, seqpacket};
use tokio::io::AsyncReadExt as _;
use tokio::time::{sleep, timeout};

use crate::peers::{Client, Master};
use crate::stage::{Node, PATIENCE, eventually, kill};

const SEGMENT: &str = "c.default.n1.0";
const MIB: u64 = 1 << 20;

/// How long a pool process is stopped: its engine process gets no answer to several requests.
const STOPPED: Duration = Duration::from_secs(12);

/// Less than the 20 s after which a pool process that terminates gives up an engine process that sends nothing.
const DRAINED: Duration = Duration::from_secs(18);

fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A pool that serves keys, with its node, peers and agent.
async fn serving(node: &Node) -> (Master, Client, [tokio::process::Child; 2]) {
    let master = Master::start(&node.peers).await;
    let mut client = Client::start(&node.peers).await;
    let children = [node.pool(&node.pod_uid), node.agent()];
    node.assign(&[(&node.pod_uid, Some("m1"))]);
    node.ready().await;
    assert_eq!(client.put("k", 8, MIB).await, (8, 0));
    (master, client, children)
}

async fn serves(node: &Node) {
    eventually("the pool is served", || node.shows("Serving", "AsExpected")).await;
}

/// Waits for another engine process than the former one.
async fn successor(node: &Node, former: u32) -> u32 {
    eventually("another engine process runs", || async {
        node.engine_process().filter(|pid| *pid != former)
    })
    .await
}

#[tokio::test]
async fn agents_that_are_killed_cost_no_operation_and_their_successors_adopt_the_engine_process() {
    let node = Node::new().await;
    let (_master, mut client, [_pool, mut agent]) = serving(&node).await;
    let engine = node.engine_process().unwrap();
    let connections = node.connections();
    assert!(connections > 0);
    node.unassign();
    for _ in 0..3 {
        kill(agent).await;
        assert_eq!(client.verify("k", 8, MIB).await, (8, 0), "without an agent");
        agent = node.agent();
        serves(&node).await;
        assert_eq!(client.verify("k", 8, MIB).await, (8, 0));
        assert_eq!(node.engine_process(), Some(engine));
        assert_eq!(node.connections(), connections, "none was closed");
    }
    assert_eq!(client.segments().await, [SEGMENT]);
}

#[tokio::test]
async fn an_upgrade_of_the_engine_program_under_load_costs_no_operation_and_no_connection() {
    const UPGRADES: u8 = 4;
    let node = Node::new().await;
    let (_master, mut client, [_pool, mut agent]) = serving(&node).await;
    let connections = node.connections();
    assert!(connections > 0);
    let first = node.engine_process().unwrap();
    let done = AtomicBool::new(false);
    let upgrades = async {
        let mut engine = first;
        for number in 1..=UPGRADES {
            kill(agent).await;
            agent = node.agent_of_release(number);
            engine = successor(&node, engine).await;
            serves(&node).await;
        }
        done.store(true, Ordering::Relaxed);
    };
    let load = async {
        let (mut operations, mut longest) = (0, Duration::ZERO);
        while !done.load(Ordering::Relaxed) {
            let begun = Instant::now();
            assert_eq!(client.put("u", 4, MIB).await, (4, 0));
            assert_eq!(client.verify("u", 4, MIB).await, (4, 0));
            assert_eq!(client.verify("k", 8, MIB).await, (8, 0));
            assert_eq!(client.remove("u", 4).await, (4, 0));
            operations += 20;
            longest = longest.max(begun.elapsed());
        }
        (operations, longest)
    };
    let ((), (operations, longest)) = tokio::join!(upgrades, load);
    println!("{operations} operations, 20 took {longest:?} at most");
    assert_eq!(node.connections(), connections, "none was closed");
    assert_eq!(client.segments().await, [SEGMENT]);
}

#[tokio::test]
async fn an_upgrade_whose_first_start_fails_costs_no_connection() {
    let node = Node::new().await;
    let (_master, mut client, [_pool, agent]) = serving(&node).await;
    let connections = node.connections();
    assert!(connections > 0);
    let former = node.engine_process().unwrap();
    kill(agent).await;
    let (_agent, failed) = node.agent_whose_first_start_fails();
    eventually("the former process has ended", || async {
        (!fs::exists(format!("/proc/{former}")).unwrap()).then_some(())
    })
    .await;
    assert_eq!(client.verify("k", 8, MIB).await, (8, 0));
    assert!(failed.exists());
    serves(&node).await;
    assert_eq!(node.connections(), connections, "none was closed");
}

#[tokio::test]
async fn a_pool_for_rdma_waits_for_a_proved_port_and_one_that_is_served_over_tcp_goes_on() {
    let node = Node::new().await;
    let _master = Master::start(&node.peers).await;
    let mut client = Client::start(&node.peers).await;
    let (_pool, agent) = (node.pool(&node.pod_uid), node.agent());
    // This agent does not read devices.
    node.assign_with_transport(&node.pod_uid, "m1", "Rdma");
    eventually("the pool waits", || node.shows("Waiting", "Progressing")).await;
    assert_eq!(node.engine_process(), None);

    node.assign_with_transport(&node.pod_uid, "m1", "Tcp");
    serves(&node).await;
    assert_eq!(client.put("k", 8, MIB).await, (8, 0));
    let engine = node.engine_process().unwrap();
    node.assign_with_transport(&node.pod_uid, "m1", "Rdma");
    // Longer than the period at which the agent reads the file.
    sleep(Duration::from_secs(3)).await;
    assert_eq!(
        node.engine_process(),
        Some(engine),
        "nothing can replace it"
    );
    assert_eq!(client.verify("k", 8, MIB).await, (8, 0));

    kill(agent).await;
    let _agent = node.agent_of_release(1);
    serves(&node).await;
    sleep(Duration::from_secs(3)).await;
    assert_eq!(node.engine_process(), Some(engine), "of another release");
    assert_eq!(client.verify("k", 8, MIB).await, (8, 0));
}

#[tokio::test]
async fn a_killed_engine_process_is_replaced_and_no_key_is_lost() {
    let node = Node::new().await;
    let (_master, mut client, _children) = serving(&node).await;
    let mut failures = 0;
    let mut cut = 0;
    for _ in 0..3 {
        let engine = node.engine_process().unwrap();
        cut += node.connections();
        signal(engine, Signal::KILL);
        successor(&node, engine).await;
        serves(&node).await;
        // A closed pooled connection of the stock client fails its next transfer, and sometimes the one after,
        // before a byte is sent.
        for _ in 0..2 {
            let (right, failed) = client.verify("k", 8, MIB).await;
            assert_eq!(right + failed, 8);
            failures += failed;
        }
        assert!(failures <= 2 * cut, "{failures} failed of {cut} cut");
    }
    assert_eq!(client.verify("k", 8, MIB).await, (8, 0));
    assert_eq!(client.segments().await, [SEGMENT]);
}

#[tokio::test]
async fn a_stopped_engine_process_is_named_and_replaced_while_the_agent_answers() {
    let node = Node::new().await;
    let (_master, mut client, _children) = serving(&node).await;
    let engine = node.engine_process().unwrap();
    signal(engine, Signal::STOP);
    let stopped = Instant::now();
    let mut slowest = Duration::ZERO;
    while node.engine_process().is_none_or(|pid| pid == engine) {
        let requested = Instant::now();
        let ready = node.http("/readyz").await;
        slowest = slowest.max(requested.elapsed());
        assert_eq!(ready.as_deref().map(str::trim), Some("active"));
        assert!(stopped.elapsed() < PATIENCE, "not replaced");
    }
    println!("replaced after {:?}", stopped.elapsed());
    assert!(slowest < Duration::from_secs(10), "{slowest:?}");
    serves(&node).await;
    // The connections of the client were closed.
    for _ in 0..2 {
        client.verify("k", 8, MIB).await;
    }
    assert_eq!(client.verify("k", 8, MIB).await, (8, 0));
}

#[tokio::test]
async fn an_engine_process_that_hangs_while_agents_end_before_it_accepts_them_is_replaced() {
    let node = Node::new().await;
    let (_master, mut client, [_pool, agent]) = serving(&node).await;
    let engine = node.engine_process().unwrap();
    kill(agent).await;
    signal(engine, Signal::STOP);
    // The connections of agents that have ended stay in the queue.
    let control = node.control(&node.pod_uid);
    let queued = std::iter::from_fn(|| seqpacket::connect_path(&control).ok());
    assert!((1..100).contains(&queued.take(100).count()), "no limit");
    let _agent = node.agent();
    successor(&node, engine).await;
    serves(&node).await;
    // The connections of the client were closed.
    for _ in 0..2 {
        client.verify("k", 8, MIB).await;
    }
    assert_eq!(client.verify("k", 8, MIB).await, (8, 0));
}

/// Stops one thread by `ptrace`, and releases it 2 s after it was killed: until then its process has not ended.
const STOP: &str = "import ctypes, os, sys, time\n\
    ptrace = ctypes.CDLL(None).ptrace\n\
    ptrace.argtypes = [ctypes.c_long] * 4\n\
    ptrace.restype = ctypes.c_long\n\
    tid, SEIZE, INTERRUPT, WALL = int(sys.argv[1]), 0x4206, 0x4207, 0x40000000\n\
    assert ptrace(SEIZE, tid, 0, 0) == 0 and ptrace(INTERRUPT, tid, 0, 0) == 0\n\
    os.waitpid(tid, WALL)\n";

/// What ends it: the thread stays stopped.
const STAY: &str = "print(flush=True)\n\
    while os.path.exists(f'/proc/{sys.argv[2]}/exe'): time.sleep(0.1)\n\
    time.sleep(2)\n\
    os.waitpid(tid, WALL)\n";

/// What ends it: the thread runs on, in an endless loop in place of the entry of the program, which runs once.
#[cfg(target_arch = "x86_64")]
const LOOP: &str = "import struct\n\
    GETREGS, SETREGS, POKETEXT, DETACH, AT_ENTRY = 12, 13, 4, 17, 9\n\
    vector = struct.iter_unpack('QQ', open(f'/proc/{sys.argv[2]}/auxv', 'rb').read())\n\
    entry = dict(vector)[AT_ENTRY]\n\
    assert ptrace(POKETEXT, tid, entry, 0xfeeb) == 0\n\
    registers = (ctypes.c_ulong * 27)()\n\
    assert ptrace(GETREGS, tid, 0, ctypes.addressof(registers)) == 0\n\
    registers[15], registers[16] = 2**64 - 1, entry\n\
    assert ptrace(SETREGS, tid, 0, ctypes.addressof(registers)) == 0\n\
    assert ptrace(DETACH, tid, 0, 0) == 0\n\
    print(flush=True)\n";

/// Kills an engine process at the end of a test: one in an endless loop does not end by itself.
struct Killed(Pidfd);

impl Drop for Killed {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.0.kill();
    }
}

/// Runs a script on the data thread of an engine process, and waits until it has changed the thread.
async fn hang(engine: u32, script: String) -> tokio::process::Child {
    let tasks = fs::read_dir(format!("/proc/{engine}/task")).unwrap();
    let data = tasks.flatten().find(|task| {
        let name = fs::read_to_string(task.path().join("comm")).unwrap();
        name.trim() == "data-0"
    });
    let mut child = tokio::process::Command::new("python3")
        .arg("-c")
        .arg(script)
        .arg(data.unwrap().file_name())
        .arg(engine.to_string())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut line = [0];
    let changed = child.stdout.as_mut().unwrap().read_exact(&mut line);
    changed.await.expect("the script has failed");
    child
}

/// Waits until a process whose data thread hangs is replaced, and checks that nothing is lost.
async fn is_replaced(node: &Node, client: &mut Client, engine: u32, within: Duration) {
    let hung = Instant::now();
    while node.engine_process().is_none_or(|pid| pid == engine) {
        let ready = node.http("/readyz").await;
        assert_eq!(ready.as_deref().map(str::trim), Some("active"));
        assert!(hung.elapsed() < within, "not replaced");
    }
    println!("replaced after {:?}", hung.elapsed());
    serves(node).await;
    // The connections of the client were closed.
    for _ in 0..2 {
        client.verify("k", 8, MIB).await;
    }
    assert_eq!(client.verify("k", 8, MIB).await, (8, 0));
    assert_eq!(client.segments().await, [SEGMENT]);
}

#[tokio::test]
async fn a_data_thread_that_stops_is_named_and_its_engine_process_is_replaced() {
    let node = Node::new().await;
    let (_master, mut client, _children) = serving(&node).await;
    let engine = node.engine_process().unwrap();
    let mut stopped = hang(engine, format!("{STOP}{STAY}")).await;
    eventually("the hung thread is reported", || {
        node.shows("Waiting", "EngineHung")
    })
    .await;
    is_replaced(&node, &mut client, engine, Duration::from_secs(10)).await;
    assert!(stopped.wait().await.unwrap().success());
}

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn an_engine_process_whose_data_thread_is_in_an_endless_loop_is_replaced() {
    let node = Node::new().await;
    let (_master, mut client, _children) = serving(&node).await;
    let engine = node.engine_process().unwrap();
    let _killed = Killed(Pidfd::open(engine).unwrap());
    let mut looping = hang(engine, format!("{STOP}{LOOP}")).await;
    assert!(looping.wait().await.unwrap().success());
    is_replaced(&node, &mut client, engine, PATIENCE).await;
}

#[tokio::test]
async fn an_engine_process_has_no_rights_and_no_files() {
    let node = Node::new().await;
    let (_master, _client, [pool, agent]) = serving(&node).await;
    let engine = node.engine_process().unwrap();
    let status = fs::read_to_string(format!("/proc/{engine}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    };
    for name in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(name), "0000000000000000", "{name}");
    }
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("Seccomp:"), "2");
    assert_eq!(field("Groups:"), "");
    let uids: Vec<u32> = field("Uid:")
        .split_whitespace()
        .map(|uid| uid.parse().unwrap())
        .collect();
    assert!(
        uids.iter().all(|uid| *uid == uids[0] && *uid > 65_536),
        "{uids:?}"
    );
    let root = fs::read_dir(format!("/proc/{engine}/root")).unwrap();
    assert_eq!(root.count(), 0, "files in its root");
    let namespace = |pid: u32, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
    let pool = pool.id().unwrap();
    assert_eq!(namespace(engine, "net"), namespace(pool, "net"));
    for kind in ["mnt", "pid_for_children", "ipc", "uts"] {
        assert_ne!(
            namespace(engine, kind),
            namespace(agent.id().unwrap(), kind),
            "{kind}"
        );
    }
    // Nothing of the agent is open in it: its log and its files.
    let open = fs::read_dir(format!("/proc/{engine}/fd")).unwrap();
    for descriptor in open {
        let target = fs::read_link(descriptor.unwrap().path()).unwrap();
        let target = target.display().to_string();
        let known = ["socket:", "pipe:", "anon_inode:", "/memfd:", "/dev/null"];
        let own_file = target.ends_with("/panic");
        assert!(
            own_file || known.iter().any(|kind| target.starts_with(kind)),
            "{target}"
        );
    }
}

#[tokio::test]
async fn segments_are_unmounted_by_the_engine_process_without_an_agent() {
    let node = Node::new().await;
    let (_master, mut client, [pool, agent]) = serving(&node).await;
    let engine = node.engine_process().unwrap();
    kill(agent).await;
    kill(pool).await;
    let since = Instant::now();
    while !client.segments().await.is_empty() {
        assert!(since.elapsed() < PATIENCE, "still mounted");
    }
    eventually("the engine process has ended", || async {
        (!fs::exists(format!("/proc/{engine}")).unwrap()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_engine_process_without_agent_and_processor_time_keeps_pool_and_connections() {
    let node = Node::new().await;
    let (_master, mut client, [_pool, agent]) = serving(&node).await;
    let engine = node.engine_process().unwrap();
    let connections = node.connections();
    assert!(connections > 0);
    kill(agent).await;
    signal(engine, Signal::STOP);
    eventually("the pool is not ready", || async {
        (!node.ready_port()).then_some(())
    })
    .await;
    signal(engine, Signal::CONT);
    // By a request on the connection that it has.
    node.ready().await;
    assert_eq!(client.verify("k", 8, MIB).await, (8, 0), "without an agent");
    let _agent = node.agent();
    serves(&node).await;
    assert_eq!(client.verify("k", 8, MIB).await, (8, 0));
    assert_eq!(node.engine_process(), Some(engine));
    assert_eq!(node.connections(), connections, "none was closed");
}

#[tokio::test]
async fn a_pool_process_without_agent_and_processor_time_is_drained_when_it_ends() {
    let node = Node::new().await;
    let (_master, mut client, [mut pool, agent]) = serving(&node).await;
    let process = pool.id().unwrap();
    kill(agent).await;
    signal(process, Signal::STOP);
    let stopped = Instant::now();
    assert_eq!(client.verify("k", 8, MIB).await, (8, 0), "it is served");
    sleep(STOPPED.saturating_sub(stopped.elapsed())).await;
    signal(process, Signal::CONT);
    signal(process, Signal::TERM);
    let ended = timeout(DRAINED, pool.wait()).await;
    ended.expect("the engine process drains it").unwrap();
    assert!(client.segments().await.is_empty());
}

#[tokio::test]
async fn an_agent_of_release_0_1_0_that_attaches_after_a_rollback_ends_the_engine_process() {
    let node = Node::new().await;
    let (_master, mut client, [_pool, agent]) = serving(&node).await;
    let engine = node.engine_process().unwrap();
    kill(agent).await;
    assert_eq!(client.verify("k", 8, MIB).await, (8, 0));
    // That agent connects to the pool process itself.
    let path = format!("/proc/{}/ns/net", node.pod.pid());
    let inside = Namespace::open(Path::new(&path)).unwrap();
    let socket = inside.run(|| seqpacket::connect(ADDRESS)).unwrap();
    let mut other = handover::Client::new(Connection::new(socket).unwrap());
    other.attach().await.unwrap();
    eventually("the engine process has ended", || async {
        (!fs::exists(format!("/proc/{engine}")).unwrap()).then_some(())
    })
    .await;
    assert_eq!(client.segments().await, [SEGMENT], "it unmounts nothing");
    assert!(other.record().await.unwrap().is_some());
}

/// Connects to the pool process as an agent does, and receives its listeners.
async fn listeners(node: &Node) -> [OwnedFd; 2] {
    let path = format!("/proc/{}/ns/net", node.pod.pid());
    let inside = Namespace::open(Path::new(&path)).unwrap();
    // The engine process attaches again at once, which may close this connection first.
    eventually("the listeners are received", || async {
        let socket = inside.run(|| seqpacket::connect(ADDRESS)).unwrap();
        let mut client = handover::Client::new(Connection::new(socket).unwrap());
        client.attach().await.ok()?;
        client.descriptors::<2>(Request::Listeners).await.ok()
    })
    .await
}

/// Makes a listener blocking and takes its connections, until `stop` is set. Returns how many.
fn steal(listener: &OwnedFd, stop: &AtomicBool) -> u64 {
    let tick = Timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    let mut stolen = 0;
    while !stop.load(Ordering::Relaxed) {
        // The flag belongs to the open file description, which the engine process shares.
        rustix::io::ioctl_fionbio(listener, false).unwrap();
        let mut polled = [PollFd::new(listener, PollFlags::IN)];
        if rustix::event::poll(&mut polled, Some(&tick)) == Ok(1) {
            rustix::io::ioctl_fionbio(listener, true).unwrap();
            stolen += u64::from(rustix::net::accept(listener).is_ok());
        }
    }
    rustix::io::ioctl_fionbio(listener, true).unwrap();
    stolen
}

#[tokio::test]
async fn a_pool_process_that_blocks_and_empties_its_listeners_harms_no_agent_and_is_served_again() {
    let node = Node::new().await;
    let (_master, mut client, _children) = serving(&node).await;
    let stop = Arc::new(AtomicBool::new(false));
    let thieves = listeners(&node).await.map(|listener| {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || steal(&listener, &stop))
    });
    let connections = "import socket, time\n\
        while True:\n    \
            held = [socket.create_connection((\"10.77.0.2\", port)) for port in (12001, 12002)]\n    \
            time.sleep(0.2)";
    let mut connecting = node
        .peers
        .command("python3")
        .args(["-c", connections])
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut slowest = Duration::ZERO;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(15) {
        let requested = Instant::now();
        let ready = node.http("/readyz").await;
        assert_eq!(ready.as_deref().map(str::trim), Some("active"));
        slowest = slowest.max(requested.elapsed());
    }
    stop.store(true, Ordering::Relaxed);
    println!("slowest answer of the agent: {slowest:?}");
    assert!(connecting.try_wait().unwrap().is_none());
    connecting.kill().await.unwrap();
    let stolen: u64 = thieves.into_iter().map(|thief| thief.join().unwrap()).sum();
    println!("{stolen} connections stolen");
    assert!(stolen > 0);
    serves(&node).await;
    for _ in 0..3 {
        client.verify("k", 8, MIB).await;
    }
    assert_eq!(client.verify("k", 8, MIB).await, (8, 0));
}
