//! The program `engine` serves a pool over two RDMA devices, in its sandbox: on an invented libibverbs, and to a stock engine on
//! Soft-RoCE in a virtual machine (`cargo test -p mooncake-e2e --test soft_roce`).
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "rdma/registration.rs"]
mod registration;
#[path = "../../tests/fixture/stock.rs"]
mod stock;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use clap::Parser;
use crds::node::PoolState;
use crds::reason::Reason;
use engine::{Ended, Namespace};
use engine_process::control::message::{
    Answer, Call, FromEngine, Listed, PROTOCOL, Passed, PassedConnection, PodAssignment, RdmaPort,
    ToEngine,
};
use engine_process::pidfd::Pidfd;
use engine_process::start;
use mooncake_stock::{MOONCAKE, Space};
use pool::args;
use pool::handover::{ADDRESS, Connection};
use proto::frame::{Header, Op, STATUS_LENGTH, Status, Version};
use proto::handshake::{self, Kind};
use serde_json::{Value, json};
use stock::Stock;
use sys::net::seqpacket;
use tokio::net::TcpSocket;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// As in the tests of the engine: `real` in the virtual machine.
const DEVICE: &str = "MOONCAKE_TEST_VERBS";
/// Address of the pool pod; in the virtual machine that of the device.
const HOST: &str = "10.9.0.1";
const HANDSHAKE: u16 = 12_001;
const DATA: u16 = 12_002;
/// Address of a peer over TCP.
const PEER: &str = "10.9.0.2";
const UID: u32 = 70_001;
const POOL: u64 = 16 << 20;
/// Of each wait, in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long each registration takes on the invented library, in milliseconds.
const DELAY: &str = "MOONCAKE_TEST_DELAY";

fn is_real() -> bool {
    std::env::var(DEVICE).is_ok_and(|device| device == "real")
}

/// Runs a test on a thread in a network namespace where the ports of a pool pod are free. In the virtual machine they are.
fn isolated(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        let runtime = runtime();
        let _space = (!is_real()).then(|| {
            let space = runtime.block_on(Space::new()).unwrap();
            for one in [HOST, PEER] {
                let mut address = space.command("ip");
                address.args(["addr", "add", one, "dev", "lo"]);
                let added = runtime.block_on(async move { address.status().await });
                assert!(added.unwrap().success());
            }
            Namespace::of_process(space.pid()).unwrap().enter().unwrap();
            space
        });
        test();
    });
    thread.join().unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap()
}

fn ports() -> [RdmaPort; 2] {
    let devices = if is_real() {
        ["rxe0", "rxe1"]
    } else {
        ["invented_0", "invented_1"]
    };
    // What the agent knows of a port is returned to it.
    let known = "trafficClass=106,serviceLevel=3,address=fd00::7,pathMtu=1024";
    devices.map(|device| format!("{device}:1:1,{known}").parse().unwrap())
}

/// Fills a folder with libibverbs, its drivers and nothing else.
fn libraries(folder: &Path) {
    for empty in ["sys", "dev"] {
        fs::create_dir(folder.join(empty)).unwrap();
    }
    let system = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let there = folder.join(&system);
    fs::create_dir_all(&there).unwrap();
    symlink("usr/lib", folder.join("lib")).unwrap();
    symlink(&system, folder.join("lib64")).unwrap();
    if is_real() {
        let copy = |from: &Path, name: &str| {
            fs::copy(
                from.join(name),
                folder.join(from.strip_prefix("/").unwrap()).join(name),
            )
            .unwrap();
        };
        let system = Path::new("/").join(system);
        for name in ["libibverbs.so.1", "libnl-3.so.200", "libnl-route-3.so.200"] {
            copy(&system, name);
        }
        for (from, start) in [
            (system.join("libibverbs"), "librxe-"),
            ("/etc/libibverbs.d".into(), "rxe"),
        ] {
            fs::create_dir_all(folder.join(from.strip_prefix("/").unwrap())).unwrap();
            for entry in fs::read_dir(&from).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if name.starts_with(start) {
                    copy(&from, &name);
                }
            }
        }
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sys/tests/verbs/library.c");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
        .arg(there.join("libibverbs.so.1"))
        .arg(source)
        .status();
    assert!(made.unwrap().success());
}

/// Starts the program as the agent does. Returns when it has closed its standard error. The invented library reads this
/// environment.
fn launch(folder: &Path, ports: &[RdmaPort], environment: &[(&str, &str)]) -> Output {
    launch_beside(std::process::id(), folder, ports, environment)
}

/// The same, for the memory of this pool process.
fn launch_beside(
    pool: u32,
    folder: &Path,
    ports: &[RdmaPort],
    environment: &[(&str, &str)],
) -> Output {
    let root = folder.join("libraries");
    fs::create_dir(&root).unwrap();
    libraries(&root);
    let own = std::process::id();
    Command::new(env!("CARGO_BIN_EXE_engine"))
        .args([
            "serve",
            "--node-name=n1",
            "--pod-uid=pod-1",
            "--network=/proc/thread-self/ns/net",
        ])
        .args(["--oom-score-adj=0", "--data-threads=1", "--log=info"])
        .arg(format!("--pool-pid={pool}"))
        .arg(format!("--uid={UID}"))
        .args(
            ports
                .iter()
                .map(|port| format!("--rdma={}", port.argument())),
        )
        .arg(format!("--host-network=/proc/{own}/ns/net"))
        .arg("--host-root=/")
        .arg("--libraries")
        .arg(root)
        .arg("--control")
        .arg(folder.join("control"))
        .arg("--panic-file")
        .arg(folder.join("panic"))
        .env_clear()
        .envs(environment.iter().copied())
        .current_dir("/")
        .output()
        .unwrap()
}

/// Owns the memory of a pool pod in this process.
fn own_memory() {
    std::thread::spawn(own_memory_until_drained);
}

fn own_memory_until_drained() {
    let arguments = [
        "pool",
        "serve",
        "--cluster=c",
        "--pool=default",
        "--pod-uid=pod-1",
        "--pod-name=p",
        "--pod-namespace=ns",
        "--node-name=n1",
    ];
    let more = [format!("--bytes={POOL}"), format!("--pod-ip={HOST}")];
    let arguments = arguments.map(str::to_owned).into_iter().chain(more);
    let args::Command::Serve(settings) = args::Args::parse_from(arguments).command else {
        panic!("`serve` is another command");
    };
    runtime().block_on(pool::serve::serve(*settings)).unwrap();
}

/// With the address of a master, if there is one.
fn assignment(master: Option<&str>) -> ToEngine {
    assignment_that_is(Listed::Yes, master)
}

fn assignment_that_is(listed: Listed, master: Option<&str>) -> ToEngine {
    let master =
        master.map(|address| json!({"address": address, "podUid": "m", "version": "0.3.13"}));
    let pool = json!({
        "podUid": "pod-1", "podName": "p", "namespace": "ns", "cluster": "c", "clusterUid": "cu", "pool": "default",
        "size": POOL, "pageSize": "4Ki", "numaPolicy": "Spread", "drainSeconds": 1, "addresses": [HOST],
        "master": master,
    });
    let assignment = PodAssignment {
        listed,
        pool: serde_json::from_value(pool).unwrap(),
    };
    ToEngine::Assign {
        assignment: Box::new(assignment),
    }
}

/// What the agent of a test sends, with a descriptor.
type Sent = (ToEngine, Option<OwnedFd>);

/// Does what an agent does for an engine process, sends what the test wants, and passes on its messages.
async fn agent(
    connection: Connection,
    mut wanted: UnboundedReceiver<Sent>,
    messages: Sender<FromEngine>,
) {
    loop {
        let received = tokio::select! {
            biased;
            Some((message, descriptor)) = wanted.recv() => {
                let descriptor = descriptor.as_ref().map(AsFd::as_fd);
                let sent = connection.send(&message, descriptor.as_slice(), PATIENCE).await;
                sent.unwrap();
                continue;
            }
            received = connection.receive::<FromEngine>() => received,
        };
        let Ok((message, _)) = received else { return };
        if let FromEngine::Call { id, call } = &message {
            let mut socket = None;
            let answer = match call {
                Call::Connect => match seqpacket::connect(ADDRESS) {
                    Ok(connected) => {
                        socket = Some(connected);
                        Answer::Done
                    }
                    Err(error) => Answer::Failed {
                        reason: Reason::PoolPodNotReady,
                        message: error.to_string(),
                    },
                },
                Call::Seal { text } | Call::Open { sealed: text } => {
                    Answer::Text { text: text.clone() }
                }
                _ => Answer::Done,
            };
            let answer = ToEngine::Answer { id: *id, answer };
            let socket = socket.as_ref().map(AsFd::as_fd);
            connection
                .send(&answer, socket.as_slice(), PATIENCE)
                .await
                .unwrap();
        }
        // The test may have ended.
        let _ = messages.send(message);
    }
}

/// A child that ends with its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A started engine process with an agent.
struct Served {
    pid: u32,
    process: Pidfd,
    to: UnboundedSender<Sent>,
    messages: Receiver<FromEngine>,
    seen: Vec<FromEngine>,
}

impl Served {
    fn connect(folder: &Path, master: Option<&str>) -> Self {
        Self::connect_after(folder, master, Vec::new())
    }

    /// Sends these messages before the assignment.
    fn connect_after(folder: &Path, master: Option<&str>, before: Vec<Sent>) -> Self {
        let socket = seqpacket::connect_path(&folder.join("control"));
        let socket = socket.unwrap_or_else(|error| {
            let ended = fs::read_to_string(folder.join("panic")).unwrap();
            panic!("{error}: it has ended: {ended}");
        });
        let pid = seqpacket::peer(&socket).unwrap().pid.unwrap();
        let (sender, messages) = channel();
        let (to, wanted) = unbounded_channel();
        for message in before.into_iter().chain([(assignment(master), None)]) {
            to.send(message).unwrap();
        }
        std::thread::spawn(move || {
            let connection = async { Connection::new(socket).unwrap() };
            runtime().block_on(async { agent(connection.await, wanted, sender).await });
        });
        let process = Pidfd::open(pid).unwrap();
        Self {
            pid,
            process,
            to,
            messages,
            seen: Vec::new(),
        }
    }

    fn wait_for(&mut self, what: &str, is_it: impl Fn(&FromEngine) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let next = self.messages.recv_timeout(left);
            let next =
                next.unwrap_or_else(|error| panic!("{what}: {error} after {:#?}", self.seen));
            let found = is_it(&next);
            self.seen.push(next);
            if found {
                return;
            }
        }
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.pid)).unwrap()
    }

    /// Whether a line begins so, whatever is between its words.
    fn has(&self, file: &str, line: &str) -> bool {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.file(file)
            .lines()
            .any(|found| words(found).starts_with(line))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
    }
}

/// Whether it reports this state, with this text.
fn of(message: &FromEngine, state: PoolState, text: &str) -> bool {
    matches!(message, FromEngine::Report(report)
        if report.pool.state == state && report.pool.message.contains(text))
}

/// Asks for the descriptor as a stock peer does.
fn descriptor() -> Value {
    descriptor_for(HOST, b"{}").unwrap()
}

/// Requests it from an address, with this request body.
fn descriptor_for(from: &str, request: &[u8]) -> std::io::Result<Value> {
    let mut stream = connect_from(from, HANDSHAKE);
    stream.write_all(&handshake::encode(Some(Kind::Metadata), request))?;
    let mut prefix = [0; handshake::PREFIX_LENGTH];
    stream.read_exact(&mut prefix)?;
    let mut reply = vec![0; handshake::length(prefix).unwrap()];
    stream.read_exact(&mut reply)?;
    let body = handshake::reply_body(Kind::Metadata, &reply).unwrap();
    Ok(serde_json::from_slice(body).unwrap())
}

/// Connects to the pool from an address.
fn connect_from(from: &str, port: u16) -> TcpStream {
    let connected = runtime().block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        let from: IpAddr = from.parse().unwrap();
        socket.bind(SocketAddr::new(from, 0)).unwrap();
        let to = SocketAddr::new(HOST.parse().unwrap(), port);
        socket.connect(to).await.unwrap().into_std().unwrap()
    });
    connected.set_nonblocking(false).unwrap();
    connected.set_read_timeout(Some(PATIENCE)).unwrap();
    connected
}

/// Reads a page of the pool over TCP.
fn read_page(stream: &mut TcpStream, address: u64) -> std::io::Result<Status> {
    let request = Header {
        size: 4096,
        address,
        op: Op::Read,
        version: Version::V2,
    };
    stream.write_all(&request.encode())?;
    let mut status = [0; STATUS_LENGTH];
    stream.read_exact(&mut status)?;
    let status = Status::decode(status).unwrap();
    if status == Status::Ok {
        stream.read_exact(&mut [0; 4096])?;
    }
    Ok(status)
}

/// Waits for the end of a connection.
fn ends(stream: &mut TcpStream) {
    let ended = stream.read(&mut [0]);
    let reset = matches!(&ended, Err(error) if error.kind() == ErrorKind::ConnectionReset);
    assert!(reset || matches!(ended, Ok(0)), "{ended:?}");
}

/// The addresses that may connect, beside the pool's own.
fn admit(addresses: &[&str]) -> Sent {
    let addresses = addresses.iter().map(|one| one.parse().unwrap()).collect();
    let last = true;
    (ToEngine::Admit { addresses, last }, None)
}

/// A connection that a former process has passed on: the end of its peer, and the message with the socket for it.
fn inherited() -> (TcpStream, Sent) {
    let listener = TcpListener::bind((HOST, 0)).unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let (accepted, from) = listener.accept().unwrap();
    accepted.set_nonblocking(true).unwrap();
    let (ours, theirs) = seqpacket::pair().unwrap();
    let passed = Passed {
        connections: vec![PassedConnection {
            peer: from.ip(),
            unread: Vec::new(),
            proven: false,
        }],
    };
    runtime().block_on(async {
        let ours = Connection::new(ours).unwrap();
        let sent = ours.send(&passed, &[accepted.as_fd()], PATIENCE).await;
        sent.unwrap();
    });
    (peer, (ToEngine::TakeOver, Some(theirs)))
}

/// Writes the pool from a stock engine over one of its devices, and reads it back.
fn exchange_with_a_stock_engine(base: u64, device: &str) {
    const LENGTHS: [u64; 3] = [1, 65_537, 4 << 20];
    let mut stock = Stock::start_rdma(HOST, device);
    let pool = format!("{HOST}:{HANDSHAKE}");
    let local = stock.allocate(4 << 20);
    for (round, length) in LENGTHS.into_iter().enumerate() {
        let seed = round as u64 * 17 + 1;
        let remote = base + 4096 * round as u64 + 13;
        stock.fill(local, length, seed);
        assert_eq!(stock.transfer("write", &pool, local, remote, length), 0);
        stock.fill(local, length, 0);
        assert!(!stock.check(local, length, seed));
        assert_eq!(stock.transfer("read", &pool, local, remote, length), 0);
        assert!(stock.check(local, length, seed), "{length} bytes differ");
    }
}

#[test]
fn a_pool_is_served_over_rdma_by_a_process_without_rights() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        own_memory();
        // One of them cannot be opened.
        let mut given = ports().to_vec();
        given.insert(1, "none_0:1:1".parse().unwrap());
        let started = launch(folder.path(), &given, &[]);
        let written = String::from_utf8_lossy(&started.stderr);
        assert!(
            started.status.success() && start::failure(&written).is_empty(),
            "{started:?}"
        );
        let opened: String = given
            .iter()
            .map(|port| start::opening(&port.device))
            .collect();
        assert_eq!(written, opened, "each is named before");
        let mut served = Served::connect(folder.path(), None);
        served.wait_for("the greeting", |message| {
            *message
                == FromEngine::Hello {
                    protocol: PROTOCOL,
                    rdma: given.clone(),
                }
        });
        served.wait_for("the device that is left out", |message| {
            matches!(message, FromEngine::Log { level, line } if level == "ERROR" && line.contains("no RDMA device none_0"))
        });
        served.wait_for("peers are served", |message| {
            matches!(message, FromEngine::Report(report) if report.pool.reason == Reason::MasterNotReady)
        });
        for line in [
            format!("Uid: {UID} {UID} {UID} {UID}"),
            "CapEff: 0000000000000000".to_owned(),
            "CapPrm: 0000000000000000".to_owned(),
            "NoNewPrivs: 1".to_owned(),
            "Seccomp: 2".to_owned(),
        ] {
            assert!(
                served.has("status", &line),
                "{line}: {}",
                served.file("status")
            );
        }
        if is_real() {
            // The virtual machine gives the right to remove it.
            assert!(served.has("limits", "Max locked memory unlimited unlimited"));
        }

        let descriptor = descriptor();
        assert_eq!(descriptor["protocol"], "rdma");
        let [first, second] = ports().map(|port| port.device);
        for (at, device) in [&first, &second].into_iter().enumerate() {
            assert_eq!(descriptor["devices"][at]["name"], **device);
        }
        let preferred = &descriptor["priority_matrix"]["cpu:0"];
        assert_eq!(*preferred, json!([[first, second], []]));
        let buffer = &descriptor["buffers"][0];
        assert_eq!(buffer["length"], POOL);
        for keys in ["lkey", "rkey"] {
            let keys = buffer[keys].as_array().unwrap();
            assert!(keys.len() == 2 && keys[0] != keys[1], "{descriptor}");
        }
        if is_real() {
            for device in [first, second] {
                exchange_with_a_stock_engine(buffer["addr"].as_u64().unwrap(), &device);
            }
        }
        assert!(served.process.runs());
        assert_eq!(fs::read_to_string(folder.path().join("panic")).unwrap(), "");
    });
}

#[test]
fn a_successor_connects_to_the_master_while_devices_register_the_pool() {
    if is_real() {
        return;
    }
    isolated(|| {
        const TAKES: Duration = Duration::from_secs(5);
        own_memory();
        let listener = TcpListener::bind((HOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, connected) = channel();
        std::thread::spawn(move || {
            // Held: a master that answers nothing yet.
            let _held: Vec<_> = listener
                .incoming()
                .inspect(|_| sender.send(()).unwrap_or_default())
                .collect();
        });
        let start = |registration: Duration| {
            let folder = tempfile::tempdir().unwrap();
            let takes = registration.as_millis().to_string();
            let started = launch(folder.path(), &ports(), &[(DELAY, &takes)]);
            assert!(started.status.success(), "{started:?}");
            let served = Served::connect(folder.path(), Some(&address));
            (folder, served)
        };
        let (_folder, mut first) = start(Duration::ZERO);
        first.wait_for("it mounts", |message| of(message, PoolState::Mounting, ""));
        connected.recv_timeout(PATIENCE).unwrap();
        let process = Pidfd::open(first.pid).unwrap();
        drop(first);
        while process.runs() {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        while connected.try_recv().is_ok() {}

        let (_folder, mut second) = start(TAKES);
        second.wait_for("it registers", |message| {
            of(
                message,
                PoolState::Preparing,
                "0 % of the memory is registered",
            )
        });
        connected.recv_timeout(PATIENCE).unwrap();
        second.seen.extend(second.messages.try_iter());
        let early = |message: &FromEngine| !of(message, PoolState::Mounting, "");
        assert!(second.seen.iter().all(early), "{:#?}", second.seen);
        second.wait_for("it mounts", |message| {
            matches!(message, FromEngine::Report(report) if report.registration_seconds >= Some(4))
                && of(message, PoolState::Mounting, "")
        });
        let rate = |message: &FromEngine| matches!(message, FromEngine::Log { line, .. } if line.contains("seconds_per_100_gib"));
        if !second.seen.iter().any(rate) {
            second.wait_for("the rate", rate);
        }
        assert_eq!(descriptor()["buffers"][0]["length"], POOL);
    });
}

#[test]
fn a_device_that_may_use_former_addresses_ends_the_process_before_another_master_gets_the_pool() {
    if is_real() {
        return;
    }
    isolated(|| {
        own_memory();
        let listen = || {
            let listener = TcpListener::bind((HOST, 0)).unwrap();
            let address = listener.local_addr().unwrap().to_string();
            listener.set_nonblocking(true).unwrap();
            (listener, address)
        };
        let ((_former, first), (other, second)) = (listen(), listen());
        let folder = tempfile::tempdir().unwrap();
        let refused = ("MOONCAKE_TEST_REFUSED", "ibv_dereg_mr-invented_1");
        let started = launch(folder.path(), &ports(), &[refused, (DELAY, "3000")]);
        assert!(started.status.success(), "{started:?}");
        let before = vec![admit(&[PEER])];
        let mut served = Served::connect_after(folder.path(), Some(&first), before);
        served.wait_for("it mounts", |message| of(message, PoolState::Mounting, ""));
        let base = descriptor()["buffers"][0]["addr"].clone();
        let mut peer = connect_from(PEER, DATA);
        let read = read_page(&mut peer, base.as_u64().unwrap());
        assert_eq!(read.unwrap(), Status::Ok);
        served.to.send((assignment(Some(&second)), None)).unwrap();
        served.to.send(admit(&[])).unwrap();
        // While the devices register the memory under its next address.
        ends(&mut peer);
        assert_eq!(descriptor()["buffers"][0]["addr"], base);
        let begun = Instant::now();
        while served.process.runs() {
            assert!(other.accept().is_err(), "the other master gets the pool");
            assert!(begun.elapsed() < PATIENCE, "{:#?}", served.seen);
            std::thread::park_timeout(Duration::from_millis(5));
        }
        assert!(other.accept().is_err(), "the other master gets the pool");
        let cause = fs::read_to_string(folder.path().join("panic")).unwrap();
        for part in [
            "serving extent 0 of 1 in data epoch 2: RDMA device invented_1 may still access memory that is no longer served: deregistering memory: ",
            "its successor serves the recorded data epoch",
        ] {
            assert!(cause.contains(part), "{cause}");
        }

        let folder = tempfile::tempdir().unwrap();
        let started = launch(folder.path(), &ports(), &[]);
        assert!(started.status.success(), "{started:?}");
        let mut served = Served::connect(folder.path(), Some(&second));
        served.wait_for("it mounts", |message| of(message, PoolState::Mounting, ""));
        assert_ne!(descriptor()["buffers"][0]["addr"], base);
    });
}

#[test]
fn a_master_that_has_lost_its_index_gets_the_pool_when_no_device_may_use_former_addresses() {
    if is_real() {
        return;
    }
    isolated(|| {
        own_memory();
        let program = MOONCAKE.site().unwrap().join("mooncake/mooncake_master");
        let master = || {
            let mut command = Command::new(&program);
            command.args([&format!("--rpc_address={HOST}"), "--rpc_port=50051"]);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            Killed(command.spawn().unwrap())
        };
        let serves = |message: &FromEngine| of(message, PoolState::Serving, "");
        let start = |environment: &[(&str, &str)]| {
            let folder = tempfile::tempdir().unwrap();
            let started = launch(folder.path(), &ports(), environment);
            assert!(started.status.success(), "{started:?}");
            let mut served = Served::connect(folder.path(), Some(&format!("{HOST}:50051")));
            served.wait_for("it serves", serves);
            (folder, served)
        };
        let former = master();
        let refused = ("MOONCAKE_TEST_REFUSED", "ibv_dereg_mr-invented_0");
        let (folder, served) = start(&[refused]);
        drop(former);
        let _master = master();
        let begun = Instant::now();
        while served.process.runs() {
            assert!(begun.elapsed() < PATIENCE, "it goes on");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let cause = fs::read_to_string(folder.path().join("panic")).unwrap();
        assert!(cause.contains("in data epoch 2: "), "{cause}");
        let (_folder, mut served) = start(&[]);
        let logged = |message: &FromEngine| matches!(message, FromEngine::Log { line, .. } if line.contains("session started"));
        if !served.seen.iter().any(logged) {
            served.wait_for("the session", logged);
        }
        let session = format!("{:?}", served.seen.iter().find(|one| logged(one)));
        assert!(session.contains("epoch=2 taken_over=false"), "{session}");
    });
}

#[test]
fn a_device_that_the_node_does_not_have_is_an_error_with_its_name() {
    isolated(|| {
        let folder = tempfile::tempdir().unwrap();
        let started = launch(folder.path(), &["none_0:1:1".parse().unwrap()], &[]);
        // The parent of the process has ended by then; what is written to standard error is the failure.
        let written = String::from_utf8(started.stderr).unwrap();
        let message = start::failure(&written);
        assert!(
            message.contains("there is no RDMA device none_0"),
            "{message}"
        );
    });
}
