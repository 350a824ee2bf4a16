//! The page of transfer errors: each row is caused between two network namespaces, and its text is what the engine
//! reports. `UPDATE=1` writes the page. Requires root and `ip`; without them it prints a message and passes. The only
//! test of its process, because it takes all descriptors of the process.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;
#[path = "fixture/wire.rs"]
mod wire;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use mooncake_engine::{
    Admission, Batch, Endpoint, Engine, Namespace, Op, RegionId, Settings, Transfer, TransferError,
};
use proto::descriptor::Descriptor;
use proto::frame::Status;
use proto::handshake::{self, Kind};
use rig::{BASE, Rig, bounded, quick, region, soon};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::SockRef;
use wire::Wire;

const PAGE: &str = "../docs/transfer-errors.md";
const PEER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// Time after which an unresponsive peer is detected, where a row waits for it.
const USER_TIMEOUT: Duration = Duration::from_secs(6);

const BEGIN: &str = "\
# Errors of transfers

What a transfer of this engine reports, by fault. `PEER` is the peer's server name. The test `engine/tests/transfer_errors.rs` causes each fault between two
network namespaces and writes the column *error*. Errors of stock engines are in [troubleshooting](troubleshooting.md).

* `Failed`: the peer has received nothing of a write. The transfer can be repeated, also elsewhere.
* `Indeterminate`: the peer may have received some or all bytes of a write, and may still get them. Write the same range again or read it back; do not
  count on its old content ([decision](decisions/outcome-and-release.md)).
* The error names the step: *requesting its descriptor*, *connecting*, *waiting for a free connection* or *moving bytes*. Each step also ends at the
  deadline of the transfer, with *the deadline has passed*.
* Over RDMA a write that the peer's device rejects is `Failed` if it fits in one packet (the path MTU), and `Indeterminate` otherwise: its first packets may
  have arrived before the peer ended the key.

";

/// A line of the page.
struct Row {
    fault: &'static str,
    error: TransferError,
    remedy: &'static str,
}

/// What the handshake port of a peer does.
enum Handshake {
    /// It publishes a data port that serves.
    Serves,
    /// It publishes a data port where nothing listens.
    Refused,
    /// It answers nothing.
    Silent,
    /// It does not use the protocol.
    Other,
}

/// A hand-written peer in the second namespace.
struct Peer {
    name: String,
    /// Data connections with one answered write.
    connections: Receiver<TcpStream>,
}

fn listen(namespace: &Namespace) -> TcpListener {
    namespace.run(|| TcpListener::bind((PEER, 0))).unwrap()
}

fn answer(listener: TcpListener, reply: Option<Vec<u8>>) {
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let mut prefix = [0; 8];
            // The engine may have given up.
            if stream.read_exact(&mut prefix).is_err() {
                continue;
            }
            let mut rest = vec![0; handshake::length(prefix).unwrap()];
            if stream.read_exact(&mut rest).is_err() {
                continue;
            }
            match &reply {
                Some(reply) => stream.write_all(reply).unwrap(),
                None => kept.push(stream),
            }
        }
    });
}

/// Answers one write of 8 bytes on each connection, and passes the connection on.
fn serve(listener: TcpListener, connections: Sender<TcpStream>) {
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            stream.read_exact(&mut [0; 24 + 8]).unwrap();
            stream.write_all(&Status::Ok.encode()).unwrap();
            if connections.send(stream).is_err() {
                return;
            }
        }
    });
}

fn peer(namespace: &Namespace, how: &Handshake) -> Peer {
    let [handshake, data] = [listen(namespace), listen(namespace)];
    let name = handshake.local_addr().unwrap().to_string();
    let descriptor = Descriptor {
        buffers: Vec::new(),
        name: name.clone(),
        protocol: "tcp".to_owned(),
        rdma_server_name: String::new(),
        tcp_data_host: String::new(),
        tcp_data_port: data.local_addr().unwrap().port(),
        tcp_pipeline_depth: 0,
        tcp_proto_version: 2,
        timestamp: String::new(),
    };
    let (sender, connections) = channel();
    match how {
        Handshake::Refused => drop(data),
        _ => serve(data, sender),
    }
    answer(
        handshake,
        match how {
            Handshake::Serves | Handshake::Refused => Some(handshake::encode(
                Some(Kind::Metadata),
                &descriptor.encode(),
            )),
            Handshake::Silent => None,
            Handshake::Other => Some(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        },
    );
    Peer { name, connections }
}

/// Our end.
struct Ours {
    endpoint: Endpoint,
    local: RegionId,
    _engine: Engine,
}

impl Ours {
    fn new(namespace: &Arc<Namespace>, settings: Settings) -> Self {
        let engine = Engine::start(settings).unwrap();
        let address = Ipv4Addr::new(10, 99, 0, 1).into();
        let rig = Rig::inside(Some(Arc::clone(namespace)), engine, address, BASE);
        Self {
            endpoint: rig.endpoint,
            local: rig.id,
            _engine: rig.engine,
        }
    }

    fn submit(&self, op: Op, peer: &str, deadline: Instant) -> Batch {
        let transfer = Transfer {
            op,
            peer: peer.to_owned(),
            remote: BASE,
            local: self.local,
            local_offset: 0,
            length: 8,
        };
        self.endpoint.submit(&[transfer], deadline)
    }

    async fn error(&self, op: Op, peer: &str) -> TransferError {
        error(self.submit(op, peer, soon())).await
    }

    /// Opens a link, which then carries nothing. Returns its other end.
    async fn linked(&self, peer: &Peer) -> TcpStream {
        let mut first = self.submit(Op::Write, &peer.name, soon());
        bounded(first.outcome()).await.unwrap();
        peer.connections.recv_timeout(rig::TIMEOUT).unwrap()
    }
}

async fn error(mut batch: Batch) -> TransferError {
    let error = bounded(batch.outcome()).await.unwrap_err();
    bounded(batch.released()).await;
    error
}

/// Reads the next request, of which a write has 8 bytes.
fn request(op: Op, stream: &mut TcpStream) {
    let payload = match op {
        Op::Write => 8,
        Op::Read => 0,
    };
    stream.set_read_timeout(Some(rig::TIMEOUT)).unwrap();
    stream.read_exact(&mut vec![0; 24 + payload]).unwrap();
}

/// Accepts a read, without its payload. Without any answer it is sent again.
fn answer_read(op: Op, stream: &mut TcpStream) {
    if op == Op::Read {
        stream.write_all(&Status::Ok.encode()).unwrap();
    }
}

/// Ends a connection with a reset.
fn reset(stream: TcpStream) {
    SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(stream);
}

/// Faults before any byte of the transfer is sent.
async fn before_the_first_byte(wire: &Wire, ours: &Ours, rows: &mut Vec<Row>) {
    let [own, there] = [wire.namespace(0), wire.namespace(1)];
    let mut add = |fault, error, remedy| {
        rows.push(Row {
            fault,
            error,
            remedy,
        })
    };

    let gone = listen(&there).local_addr().unwrap().to_string();
    add(
        "No process listens at the peer's handshake port.",
        ours.error(Op::Read, &gone).await,
        "Check that the peer's process runs, and that its name is current: a restarted peer has another port.",
    );
    let silent = peer(&there, &Handshake::Silent);
    add(
        "The peer is stopped or overloaded: its kernel accepts, and its process answers nothing.",
        ours.error(Op::Read, &silent.name).await,
        "Check the peer's process and its CPU limit.",
    );
    let other = peer(&there, &Handshake::Other);
    add(
        "Another program listens at the peer's handshake port.",
        ours.error(Op::Read, &other.name).await,
        "Find the program with that port in the peer's network namespace (`ss -ltnp`).",
    );
    let refused = peer(&there, &Handshake::Refused);
    add(
        "The peer answers handshakes, and no process listens at its data port.",
        ours.error(Op::Read, &refused.name).await,
        "Restart the peer: its data threads have ended.",
    );
    let serves = peer(&there, &Handshake::Serves);
    ours.endpoint.admit(Admission::only([])).unwrap();
    let denied = ours.error(Op::Write, &serves.name).await;
    ours.endpoint.admit(Admission::Anyone).unwrap();
    add(
        "The peer's address does not belong to an admitted pod.",
        denied,
        "Check that the peer is a pod of the same MooncakeCluster, and that it has started.",
    );
    wire.die();
    let dead = ours.error(Op::Write, &serves.name).await;
    wire.revive();
    add(
        "Packets to the peer are lost: a broken link, a NetworkPolicy or a firewall that drops.",
        dead,
        "Check the path to the peer (`kubectl mooncake node NODE`) and the NetworkPolicies of both pods.",
    );
    let limit = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        ..limit
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let exhausted = ours.error(Op::Write, &serves.name).await;
    setrlimit(Resource::Nofile, limit).unwrap();
    add(
        "This process has no descriptor left (EMFILE).",
        exhausted,
        "Raise LimitNOFILE of the container runtime, or lower the number of peers.",
    );
    let range = "/proc/sys/net/ipv4/ip_local_port_range";
    let before = own.run(|| std::fs::read_to_string(range)).unwrap();
    let taken = own.run(|| {
        std::fs::write(range, "50000 50000")?;
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, 50_000))
    });
    let no_port = ours.error(Op::Write, &serves.name).await;
    drop(taken.unwrap());
    own.run(|| std::fs::write(range, &before)).unwrap();
    add(
        "No local port is left for the connection.",
        no_port,
        "Widen net.ipv4.ip_local_port_range ([`EphemeralPortsLow`](reasons.md#ephemeralportslow), \
         [`EphemeralPortsBusy`](reasons.md#ephemeralportsbusy)).",
    );
}

/// Faults after the request was sent.
async fn after_the_first_byte(wire: &Wire, ours: &Ours, hasty: &Ours, rows: &mut Vec<Row>) {
    let there = wire.namespace(1);
    let mut add = |fault, error, remedy| {
        rows.push(Row {
            fault,
            error,
            remedy,
        })
    };
    let again = "Repeat it. If it happens again, read the log of the peer.";
    let write_again =
        "Write the range again or read it back. If it happens again, read the log of the peer.";

    for (op, fault, remedy) in [
        (
            Op::Read,
            "The peer's process ends during a read: its kernel sends a reset.",
            again,
        ),
        (
            Op::Write,
            "The peer's process ends during a write: its kernel sends a reset.",
            write_again,
        ),
    ] {
        let peer = peer(&there, &Handshake::Serves);
        let mut link = ours.linked(&peer).await;
        let batch = ours.submit(op, &peer.name, soon());
        request(op, &mut link);
        answer_read(op, &mut link);
        reset(link);
        add(fault, error(batch).await, remedy);
    }
    for (op, fault, remedy) in [
        (
            Op::Read,
            "The peer closes the connection during a read.",
            again,
        ),
        (
            Op::Write,
            "The peer closes the connection during a write, without a status.",
            write_again,
        ),
    ] {
        let peer = peer(&there, &Handshake::Serves);
        let mut link = ours.linked(&peer).await;
        let batch = ours.submit(op, &peer.name, soon());
        request(op, &mut link);
        answer_read(op, &mut link);
        drop(link);
        add(fault, error(batch).await, remedy);
    }
    let serves = peer(&there, &Handshake::Serves);
    let mut link = ours.linked(&serves).await;
    let batch = ours.submit(Op::Write, &serves.name, soon());
    request(Op::Write, &mut link);
    link.write_all(&Status::AddressRejected.encode()).unwrap();
    add(
        "The peer does not serve the address: its pool was replaced, or its memory was unmounted.",
        error(batch).await,
        "Look the key up again: the segment has other addresses now.",
    );
    let serves = peer(&there, &Handshake::Serves);
    let mut link = ours.linked(&serves).await;
    let batch = ours.submit(Op::Read, &serves.name, soon());
    request(Op::Read, &mut link);
    link.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    add(
        "What answers at the peer's data port is not a transfer engine.",
        error(batch).await,
        "Find the program with that port in the peer's network namespace (`ss -ltnp`).",
    );
    for (op, fault, remedy) in [
        (
            Op::Read,
            "The peer is stopped during a read.",
            "Check the peer's process and its CPU limit. Then repeat it.",
        ),
        (
            Op::Write,
            "The peer is stopped during a write.",
            "Check the peer's process and its CPU limit. Then write the range again or read it back.",
        ),
    ] {
        let peer = peer(&there, &Handshake::Serves);
        let mut link = ours.linked(&peer).await;
        let batch = ours.submit(op, &peer.name, Instant::now() + Duration::from_secs(5));
        request(op, &mut link);
        add(fault, error(batch).await, remedy);
    }
    let serves = peer(&there, &Handshake::Serves);
    let mut link = ours.linked(&serves).await;
    let local = ours.endpoint.add_region(region(4096), 2 * BASE).unwrap();
    let transfer = Transfer {
        op: Op::Read,
        peer: serves.name.clone(),
        remote: BASE,
        local,
        local_offset: 0,
        length: 8,
    };
    let batch = ours.endpoint.submit(&[transfer], soon());
    request(Op::Read, &mut link);
    bounded(ours.endpoint.remove_region(local)).await.unwrap();
    add(
        "The local memory is unmounted during the transfer.",
        error(batch).await,
        "None: the pool is drained or gets a new epoch.",
    );
    let serves = peer(&there, &Handshake::Serves);
    let link = ours.linked(&serves).await;
    wire.die();
    reset(link);
    wire.revive();
    add(
        "The connection is half-open: the peer's node was restarted, and no reset has arrived.",
        ours.error(Op::Write, &serves.name).await,
        "Write the range again or read it back.",
    );
    for (op, fault, remedy) in [
        (
            Op::Read,
            "All packets are lost during a read, longer than `user_timeout` (30 s).",
            "Check the path to the peer (`kubectl mooncake node NODE`). Then repeat it.",
        ),
        (
            Op::Write,
            "All packets are lost during a write, longer than `user_timeout` (30 s).",
            "Check the path to the peer (`kubectl mooncake node NODE`). Then write the range again or read it back.",
        ),
    ] {
        let peer = peer(&there, &Handshake::Serves);
        let _link = hasty.linked(&peer).await;
        wire.die();
        let end = Instant::now() + 10 * USER_TIMEOUT;
        let mut batch = hasty.submit(op, &peer.name, end);
        let lost = tokio::time::timeout(20 * USER_TIMEOUT, batch.outcome()).await;
        wire.revive();
        add(fault, lost.unwrap().unwrap_err(), remedy);
    }
}

fn page(rows: &[Row]) -> String {
    let mut page = BEGIN.to_owned();
    page.push_str("| fault | outcome | error | what to do |\n|---|---|---|---|\n");
    for Row {
        fault,
        error,
        remedy,
    } in rows
    {
        let (outcome, peer) = match error {
            TransferError::Failed { peer, .. } => ("`Failed`", peer),
            TransferError::Indeterminate { peer, .. } => ("`Indeterminate`", peer),
            other => panic!("{other}"),
        };
        let error = error.to_string().replace(peer, "PEER");
        page.push_str(&format!("| {fault} | {outcome} | {error} | {remedy} |\n"));
    }
    page
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fault_is_reported_as_the_page_describes() {
    let Some(wire) = Wire::new("e") else {
        eprintln!("not checked: network namespaces need root and `ip`");
        return;
    };
    let settings = Settings {
        connect_timeout: Duration::from_secs(3),
        ..quick()
    };
    let ours = Ours::new(&wire.namespace(0), settings);
    let hasty = Settings {
        user_timeout: USER_TIMEOUT,
        ..settings
    };
    let hasty = Ours::new(&wire.namespace(0), hasty);
    let mut rows = Vec::new();
    before_the_first_byte(&wire, &ours, &mut rows).await;
    after_the_first_byte(&wire, &ours, &hasty, &mut rows).await;
    let page = page(&rows);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == page,
        "docs/transfer-errors.md differs; UPDATE=1 writes\n{page}"
    );
}
