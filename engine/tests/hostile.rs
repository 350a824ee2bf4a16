//! Malicious bytes on both listeners: no crash, bounded memory, and other peers are served.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use mooncake_engine::{Ended, Settings};
use proto::frame::Status;
use proto::handshake::{self, Kind};
use rig::{
    BASE, LENGTH, Rig, connect, connect_from, get, hasty, is_closed, pattern, put, quick, until,
};

#[tokio::test(flavor = "multi_thread")]
async fn random_headers_write_nothing() {
    let rig = Rig::new(Settings {
        max_connections_per_address: 64,
        ..quick()
    });
    rig.region.copy_in(0, &pattern(5, 1 << 20)).unwrap();
    let mut bytes = pattern(6, 24 * 10_000);
    for (index, header) in bytes.chunks_exact_mut(24).enumerate() {
        // A third of them are almost valid.
        if index.is_multiple_of(3) {
            header[8..16].copy_from_slice(&(BASE + LENGTH - 1).to_le_bytes());
            header[3..8].fill(0);
            // A size of one byte would be a valid read, so the range leaves the region.
            header[0] |= 2;
        }
        let mut stream = connect(rig.data);
        stream.write_all(header).unwrap();
        // All are rejected; only some answers are read.
        if index.is_multiple_of(64) {
            assert!(is_closed(&mut stream));
        }
    }
    let mut stream = connect_when_free(&rig).await;
    assert!(get(&mut stream, BASE, 1 << 20) == pattern(5, 1 << 20));
    assert_eq!(rig.endpoint.stats().bytes_written, 8);
}

/// Retries while the limit is reached by connections that are closing.
async fn connect_when_free(rig: &Rig) -> TcpStream {
    until("connections have ended", || {
        rig.endpoint.stats().connections < 10
    })
    .await;
    let mut stream = rig.connect();
    assert_eq!(put(&mut stream, BASE + LENGTH - 8, b"12345678"), Status::Ok);
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_handshakes_get_no_answer_and_valid_ones_do() {
    let rig = Rig::new(hasty());
    let framed = |payload: &[u8]| handshake::encode(None, payload);
    let hostile: Vec<Vec<u8>> = vec![
        framed(b"\x02[]"),
        framed(b"\x02{\"name\":{}}"),
        framed(b"\x00{\"local_nic_path\":{}}"),
        framed(b"\x01{"),
        framed(b"\x07{}"),
        framed(&[0xfe; 100]),
        framed(&[[1].as_slice(), &vec![b'['; 1_000_000]].concat()),
        vec![0; 8],
        vec![0xff; 8],
        ((1_u64 << 20) + 1).to_le_bytes().to_vec(),
        vec![1, 2, 3],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ];
    for bytes in &hostile {
        let mut stream = connect(rig.handshake);
        stream.write_all(bytes).unwrap();
        let mut reply = Vec::new();
        // Unread bytes turn the close into a reset; there is no answer in both cases.
        let _may_be_reset = stream.read_to_end(&mut reply);
        assert!(reply.is_empty(), "{bytes:?} was answered");
        let mut honest = connect(rig.handshake);
        honest
            .write_all(&handshake::encode(Some(Kind::Probe), b"{}"))
            .unwrap();
        honest.read_to_end(&mut reply).unwrap();
        assert_eq!(reply, handshake::probe_reply());
    }
}

/// Fetches the descriptor with a large request, and returns how long its answer took.
fn fetch(stream: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    let request = [b"null".as_slice(), &[b' '; 20_000]].concat();
    stream
        .write_all(&handshake::encode(Some(Kind::Metadata), &request))
        .unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    let body = handshake::reply_body(Kind::Metadata, &reply[8..]).unwrap();
    let descriptor = proto::descriptor::Descriptor::parse(body).unwrap();
    assert_eq!(
        (descriptor.buffers[0].addr, descriptor.tcp_proto_version),
        (BASE, 2)
    );
    begun.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_handshakes_are_closed_and_delay_their_own_address_only() {
    // Time to open all connections, also on a busy machine.
    let header_deadline = Duration::from_secs(6);
    let rig = Rig::new(Settings {
        header_deadline,
        ..quick()
    });
    let begun = Instant::now();
    let mut idle: Vec<_> = (0..32).map(|_| connect(rig.handshake)).collect();
    // Announced but never sent: memory is proportional to the received bytes.
    for stream in &mut idle {
        stream.write_all(&(1_u64 << 20).to_le_bytes()).unwrap();
    }
    // They have their turn by then.
    tokio::time::sleep(header_deadline / 12).await;
    let mut waits = connect(rig.handshake);
    let mut other = connect_from(IpAddr::from([127, 0, 0, 2]), rig.handshake);
    let took = fetch(&mut other);
    assert!(took < header_deadline / 2, "{took:?}");
    assert_eq!(rig.endpoint.stats().ended[Ended::HeaderDeadline], 0);
    fetch(&mut waits);
    assert!(begun.elapsed() >= header_deadline, "{:?}", begun.elapsed());
    for stream in &mut idle {
        assert!(is_closed(stream));
    }
    assert_eq!(rig.endpoint.stats().ended[Ended::OverLimit], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_stays_after_its_answer_is_closed_and_not_counted() {
    let rig = Rig::new(Settings {
        header_deadline: Duration::from_secs(1),
        ..quick()
    });
    let mut stream = connect(rig.handshake);
    fetch(&mut stream);
    // Bytes that arrive at a closed connection are answered by a reset.
    until("it is closed", || stream.write_all(b"x").is_err()).await;
    until("it is counted as answered", || {
        rig.endpoint.stats().handshakes == 1
    })
    .await;
    assert_eq!(rig.endpoint.worst_peers(10), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_rdma_rendezvous_is_rejected_with_a_reason() {
    let rig = Rig::new(quick());
    for typed in [Some(Kind::Connection), None] {
        let mut stream = connect(rig.handshake);
        let body = br#"{"local_nic_path":"10.0.0.9:1@mlx5_0","qp_num":[1,2],"ready_ack":false}"#;
        stream.write_all(&handshake::encode(typed, body)).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        let body = &reply[8 + usize::from(typed.is_some())..];
        let reply: serde_json::Value = serde_json::from_slice(body).unwrap();
        assert!(reply["reply_msg"].as_str().unwrap().contains("no RDMA"));
        assert_eq!(reply["peer_nic_path"], "10.0.0.9:1@mlx5_0");
    }
}
