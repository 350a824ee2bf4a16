//! Peers whose address is not admitted read and change nothing, and members change no segment of another address.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

#[path = "fixture/client.rs"]
mod client;
#[path = "fixture/served.rs"]
mod served;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use client::Client;
use mooncake_master::admission::{Addresses, Admission};
use mooncake_master::http::{self, Listeners, Open};
use mooncake_master::server::{Limits, listen};
use proto::store::ledger::{LedgerLoad, LedgerMount, LedgerPoll, Position};
use proto::store::release_0_3_13 as wire;
use proto::store::{ErrorCode, Rpc, Uuid};
use served::{Served, start_with};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

const A: [u8; 4] = [127, 0, 0, 2];
const B: [u8; 4] = [127, 0, 0, 3];
const OPERATOR: [u8; 4] = [127, 0, 0, 4];
const STRANGER: [u8; 4] = [127, 0, 0, 5];
/// Time for what happens at once on an idle machine.
const NOTHING: [u8; 0] = [];
const SOON: Duration = Duration::from_secs(60);

type List = watch::Sender<Option<Arc<Addresses>>>;

fn admit(list: &List, text: &str) {
    list.send_replace(Some(Arc::new(text.parse().unwrap())));
}

fn start() -> (Served, List) {
    let (list, receiver) = watch::channel(None);
    let served = start_with(Limits::default(), Admission::Listed(receiver));
    (served, list)
}

const ALL: &str = "member 127.0.0.2\nmember 127.0.0.3\noperator 127.0.0.4\n";

/// Waits until the peer has closed the connection, and returns what it has sent.
async fn closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = timeout(SOON, stream.read_to_end(&mut bytes)).await;
    // A reset if the master has not read what was sent.
    let _end_or_reset = read.expect("the connection ends in time");
    bytes
}

fn id(second: u64) -> Uuid {
    Uuid { first: 1, second }
}

fn segment(number: u64) -> wire::Segment {
    wire::Segment {
        id: id(number),
        name: format!("segment{number}"),
        base: number << 40,
        size: 1 << 20,
        te_endpoint: "127.0.0.2:1".into(),
        protocol: "tcp".into(),
        host_id: String::new(),
    }
}

async fn client(served: &Served, address: [u8; 4]) -> Client {
    Client::new(served.connect_from(address).await)
}

#[tokio::test]
async fn a_stranger_gets_no_byte_and_a_peer_that_is_no_longer_admitted_neither() {
    let (served, list) = start();
    let not_admitted = || {
        served
            .master
            .traffic()
            .not_admitted_connections
            .load(Relaxed)
    };
    // No peer is admitted before the first list.
    assert_eq!(closed(&mut served.connect_from(A).await).await, NOTHING);
    assert_eq!(not_admitted(), 1);
    admit(&list, ALL);
    let mut stranger = served.connect_from(STRANGER).await;
    let request = proto::coro_rpc::RequestHeader {
        sequence: 0,
        function_id: wire::ServiceReady::function_id(),
        length: 0,
    };
    // Fails if the connection is closed already.
    let _sent = stranger.write_all(&request.encode()).await;
    assert_eq!(closed(&mut stranger).await, NOTHING);
    assert_eq!(not_admitted(), 2);

    let (mut a, mut b) = (client(&served, A).await, client(&served, B).await);
    assert!(a.is_served().await && b.is_served().await);
    admit(&list, "member 127.0.0.3\n");
    assert_eq!(closed(&mut a.stream).await, NOTHING);
    assert_eq!(closed(&mut served.connect_from(A).await).await, NOTHING);
    assert!(b.is_served().await);
    admit(&list, ALL);
    assert!(client(&served, A).await.is_served().await);
    assert!(b.is_served().await);
    assert_eq!(served.faulty(), 0);
}

#[tokio::test]
async fn a_member_changes_no_segment_that_another_address_has_mounted() {
    let (served, list) = start();
    admit(&list, ALL);
    let (mut a, mut b) = (client(&served, A).await, client(&served, B).await);
    let mut operator = client(&served, OPERATOR).await;
    let mount = (segment(1), id(9));
    a.call::<wire::MountSegment>(&mount).await.unwrap();
    a.call::<wire::MountSegment>(&(segment(2), id(9)))
        .await
        .unwrap();
    let refused = Err(ErrorCode::IllegalClient);
    let unmount = (id(1), id(9));
    assert_eq!(b.call::<wire::UnmountSegment>(&unmount).await, refused);
    let graceful = (id(1), id(9), 0);
    assert_eq!(
        b.call::<wire::GracefulUnmountSegment>(&graceful).await,
        refused
    );
    assert_eq!(b.call::<wire::MountSegment>(&mount).await, refused);
    let again = (vec![segment(3), segment(1)], id(8));
    assert_eq!(b.call::<wire::ReMountSegment>(&again).await, refused);
    assert_eq!(served.master.traffic().refused_segments.load(Relaxed), 4);
    let is_mounted = |number| {
        let names = served.master.with_index(|index, _| index.segment_names());
        names.contains(&format!("segment{number}"))
    };
    assert!(is_mounted(1) && is_mounted(2) && !is_mounted(3));
    // Its own, from another connection, and an operator's.
    let mut successor = client(&served, A).await;
    successor
        .call::<wire::UnmountSegment>(&unmount)
        .await
        .unwrap();
    operator
        .call::<wire::UnmountSegment>(&(id(2), id(9)))
        .await
        .unwrap();
    assert!(!is_mounted(1) && !is_mounted(2));
    // What is not mounted is anybody's, as an unknown segment is.
    b.call::<wire::UnmountSegment>(&unmount).await.unwrap();
    b.call::<wire::MountSegment>(&mount).await.unwrap();
    assert_eq!(a.call::<wire::UnmountSegment>(&unmount).await, refused);
}

#[tokio::test]
async fn a_member_changes_no_ledger_of_another_address() {
    let (served, list) = start();
    admit(&list, ALL);
    let (mut a, mut b) = (client(&served, A).await, client(&served, B).await);
    let mut operator = client(&served, OPERATOR).await;
    let owner = id(9);
    let load = (owner, id(1), 0, Vec::new(), true);
    let position = Position {
        segment: id(1),
        applied: 0,
        unrecorded: 7,
    };
    let poll = (owner, vec![position]);
    let mount = (owner, segment(1), 0);
    assert_eq!(a.call::<LedgerMount>(&mount).await, Ok(false));
    // The other member knows the client's ID: members can read it.
    let refused = Err(ErrorCode::IllegalClient);
    assert_eq!(b.call::<LedgerMount>(&mount).await, refused);
    // This would unmount the segment, because it has the same memory.
    let successor = wire::Segment {
        id: id(2),
        base: 1 << 50,
        ..segment(1)
    };
    let replace = (owner, successor, 0);
    assert_eq!(b.call::<LedgerMount>(&replace).await, refused);
    let not_loaded = b.call::<LedgerLoad>(&load).await;
    assert_eq!(not_loaded, Err(ErrorCode::IllegalClient));
    assert_eq!(a.call::<LedgerLoad>(&load).await, Ok(()));
    let not_polled = b.call::<LedgerPoll>(&poll).await;
    assert_eq!(not_polled, Err(ErrorCode::IllegalClient));
    let unrecorded = || {
        let totals = served.master.with_index(|index, _| index.ledger_totals());
        totals.unrecorded
    };
    assert_eq!(unrecorded(), 0);
    assert_eq!(served.master.traffic().refused_segments.load(Relaxed), 4);
    assert_eq!(a.call::<LedgerPoll>(&poll).await.unwrap().len(), 1);
    assert_eq!(unrecorded(), 7);
    assert_eq!(operator.call::<LedgerMount>(&mount).await, Ok(true));
    // Its own address replaces it, and it is the owner's again.
    assert_eq!(a.call::<LedgerMount>(&replace).await, Ok(false));
    let unmount = (id(2), owner);
    assert_eq!(
        b.call::<wire::UnmountSegment>(&unmount).await,
        Err(ErrorCode::IllegalClient)
    );
    let names = served.master.with_index(|index, _| index.segment_names());
    assert_eq!(names, ["segment1"]);
}

/// Sends a request for this path, and returns what arrives until the connection ends.
async fn get(port: u16, from: [u8; 4], path: &str) -> String {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut stream = socket.connect(([127, 0, 0, 1], port).into()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let _sent = stream.write_all(request.as_bytes()).await;
    String::from_utf8(closed(&mut stream).await).unwrap()
}

#[tokio::test]
async fn http_shows_strangers_health_and_metrics_only() {
    let (served, list) = start();
    let [admin, open, metadata] = [(); 3].map(|()| listen(([127, 0, 0, 1], 0).into()).unwrap());
    let [admin_port, open_port, metadata_port] =
        [&admin, &open, &metadata].map(|listener| listener.local_addr().unwrap().port());
    let listeners = Listeners {
        admin,
        metadata: Some(metadata),
    };
    tokio::spawn(http::serve(Arc::clone(&served.master), listeners));
    let (_serving, master) = watch::channel(Some(Arc::clone(&served.master)));
    let shown = Open {
        master,
        admission: served.master.admission().clone(),
        elected: false,
    };
    tokio::spawn(http::serve_open(shown, open));
    let waits = get(open_port, STRANGER, "/health").await;
    assert!(waits.starts_with("HTTP/1.1 503 "), "{waits}");
    admit(&list, ALL);
    let health = get(open_port, STRANGER, "/health").await;
    assert!(health.starts_with("HTTP/1.1 200 "), "{health}");
    let metrics = get(open_port, STRANGER, "/metrics").await;
    assert!(
        metrics.contains("master_not_admitted_connections"),
        "{metrics}"
    );
    for path in [
        "/get_all_keys",
        "/find_keys",
        "/get_segments_detail",
        "/ledgers",
        "/query_key?key=a",
    ] {
        let answer = get(open_port, STRANGER, path).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
        assert_eq!(get(admin_port, STRANGER, path).await, "", "{path}");
        let answer = get(admin_port, A, path).await;
        assert!(answer.starts_with("HTTP/1.1 "), "{path}: {answer}");
    }
    for path in ["/health", "/metadata?key=a"] {
        assert_eq!(get(metadata_port, STRANGER, path).await, "", "{path}");
        for admitted in [A, OPERATOR] {
            let answer = get(metadata_port, admitted, path).await;
            assert!(answer.starts_with("HTTP/1.1 "), "{path}: {answer}");
        }
    }
    // A connection that is kept open ends with the admission.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((A, 0).into()).unwrap();
    let mut kept = socket
        .connect(([127, 0, 0, 1], admin_port).into())
        .await
        .unwrap();
    kept.write_all(b"GET /role HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    assert!(timeout(SOON, kept.read_u8()).await.is_ok());
    admit(&list, "member 127.0.0.3\n");
    closed(&mut kept).await;
}
