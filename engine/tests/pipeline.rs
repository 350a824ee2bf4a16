//! Requests that are sent ahead of the answers to earlier ones, to hand-written peers.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use mooncake_engine::transport::LinkError;
use mooncake_engine::{Batch, Cause, Op, Settings, Transfer, TransferError};
use proto::descriptor::Descriptor;
use proto::frame::{HEADER_LENGTH, Header, Status};
use proto::handshake::{self, Kind};
use rig::{BASE, Rig, TIMEOUT, bounded, pattern, quick, soon};

/// Payload bytes of each request.
const LENGTH: u64 = 8;
const REQUESTS: u64 = 4;

/// Starts a peer that announces a depth and passes each data connection with its number to `serve`; returns its name.
fn peer(depth: u32, serve: impl Fn(usize, TcpStream) + Send + 'static) -> String {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (handshake, data) = (listen(), listen());
    let name = handshake.local_addr().unwrap().to_string();
    let descriptor = Descriptor {
        buffers: Vec::new(),
        name: name.clone(),
        protocol: "tcp".to_owned(),
        rdma_server_name: String::new(),
        tcp_data_host: String::new(),
        tcp_data_port: data.local_addr().unwrap().port(),
        tcp_pipeline_depth: depth,
        tcp_proto_version: 2,
        timestamp: String::new(),
    };
    let reply = handshake::encode(Some(Kind::Metadata), &descriptor.encode());
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = handshake.accept() {
            let mut prefix = [0; 8];
            stream.read_exact(&mut prefix).unwrap();
            let mut rest = vec![0; handshake::length(prefix).unwrap()];
            stream.read_exact(&mut rest).unwrap();
            stream.write_all(&reply).unwrap();
        }
    });
    std::thread::spawn(move || {
        for number in 0.. {
            let Ok((stream, _)) = data.accept() else {
                return;
            };
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            serve(number, stream);
        }
    });
    name
}

/// Reads a write with its payload; returns which of the transfers it belongs to.
fn read_write(stream: &mut TcpStream) -> u64 {
    let mut header = [0; HEADER_LENGTH];
    stream.read_exact(&mut header).unwrap();
    let header = Header::decode(header);
    assert_eq!((header.op, header.size), (Op::Write, LENGTH));
    stream.read_exact(&mut [0; 8]).unwrap();
    (header.address - BASE) / LENGTH
}

fn answer(stream: &mut TcpStream, status: Status) {
    stream.write_all(&status.encode()).unwrap();
}

/// Submits writes that end independently of each other.
fn submit(ours: &Rig, peer: &str) -> Vec<Batch> {
    let write = |at| Transfer {
        op: Op::Write,
        peer: peer.to_owned(),
        remote: BASE + at * LENGTH,
        local: ours.id,
        local_offset: at * LENGTH,
        length: LENGTH,
    };
    let submit = |at| ours.endpoint.submit(&[write(at)], soon());
    (0..REQUESTS).map(submit).collect()
}

/// One connection at a time.
fn ours() -> Rig {
    Rig::new(Settings {
        lanes_per_peer: 1,
        ..quick()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_sent_ahead_of_answers_to_a_peer_that_announces_a_pipeline() {
    let ours = ours();
    let theirs = peer(16, |_, mut stream| {
        let order: Vec<_> = (0..REQUESTS).map(|_| read_write(&mut stream)).collect();
        assert_eq!(order, [0, 1, 2, 3]);
        for _ in 0..REQUESTS {
            answer(&mut stream, Status::Ok);
        }
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
    for mut batch in submit(&ours, &theirs) {
        bounded(batch.outcome()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_announces_no_pipeline_gets_one_request_at_a_time() {
    let ours = ours();
    let theirs = peer(0, |_, mut stream| {
        for _ in 0..REQUESTS {
            read_write(&mut stream);
            stream
                .set_read_timeout(Some(Duration::from_millis(50)))
                .unwrap();
            let more = stream.read(&mut [0]).unwrap_err();
            assert_eq!(more.kind(), ErrorKind::WouldBlock);
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            answer(&mut stream, Status::Ok);
        }
    });
    for mut batch in submit(&ours, &theirs) {
        bounded(batch.outcome()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_behind_a_rejected_one_are_sent_again_and_succeed() {
    let ours = ours();
    let theirs = peer(16, |number, mut stream| {
        let first = if number == 0 { 0 } else { 1 };
        for at in first..REQUESTS {
            assert_eq!(read_write(&mut stream), at);
        }
        if number == 0 {
            // As every target, it reads nothing after that.
            answer(&mut stream, Status::AddressRejected);
            return;
        }
        for _ in first..REQUESTS {
            answer(&mut stream, Status::Ok);
        }
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
    let mut batches = submit(&ours, &theirs).into_iter();
    let rejected = bounded(batches.next().unwrap().outcome()).await;
    assert!(
        matches!(
            rejected,
            Err(TransferError::Failed {
                cause: Cause::Transport(LinkError::Rejected),
                ..
            })
        ),
        "{rejected:?}"
    );
    for mut batch in batches {
        bounded(batch.outcome()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_complete_when_its_status_arrives_with_the_rejection_of_the_next_one() {
    let ours = ours();
    let theirs = peer(16, |number, mut stream| {
        let first = if number == 0 { 0 } else { 2 };
        for at in first..REQUESTS {
            assert_eq!(read_write(&mut stream), at);
        }
        if number == 0 {
            let statuses = [Status::Ok, Status::AddressRejected].map(Status::encode);
            stream.write_all(&statuses.concat()).unwrap();
            return;
        }
        for _ in first..REQUESTS {
            answer(&mut stream, Status::Ok);
        }
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
    for (at, mut batch) in submit(&ours, &theirs).into_iter().enumerate() {
        let outcome = bounded(batch.outcome()).await;
        let rejected = matches!(
            outcome,
            Err(TransferError::Failed {
                cause: Cause::Transport(LinkError::Rejected),
                ..
            })
        );
        assert!(rejected == (at == 1), "{at}: {outcome:?}");
        assert!(rejected || outcome.is_ok(), "{at}: {outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_without_an_answer_are_indeterminate_when_the_connection_ends() {
    let ours = ours();
    let theirs = peer(16, |_, mut stream| {
        for _ in 0..REQUESTS {
            read_write(&mut stream);
        }
        answer(&mut stream, Status::Ok);
    });
    let mut batches = submit(&ours, &theirs).into_iter();
    bounded(batches.next().unwrap().outcome()).await.unwrap();
    for mut batch in batches {
        let outcome = bounded(batch.outcome()).await;
        assert!(
            matches!(outcome, Err(TransferError::Indeterminate { .. })),
            "{outcome:?}"
        );
        bounded(batch.released()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_engines_move_batches_of_small_and_large_requests() {
    let (ours, theirs) = (Rig::new(quick()), Rig::new(quick()));
    let mut at = 0;
    let lengths = [1, 4096, 300_000, 4096, 24, 2 << 20, 65_536, 7].repeat(8);
    let transfers = |op| {
        let lengths = lengths.iter().copied();
        at = 0;
        let transfers = lengths.map(|length| {
            at += length;
            Transfer {
                op,
                peer: theirs.name.clone(),
                remote: BASE + at - length,
                local: ours.id,
                local_offset: at - length,
                length,
            }
        });
        transfers.collect::<Vec<_>>()
    };
    let [writes, reads] = [Op::Write, Op::Read].map(transfers);
    let total = usize::try_from(lengths.iter().sum::<u64>()).unwrap();
    let mut found = vec![0; total];
    for (batch, from, to, seed) in [(writes, &ours, &theirs, 1), (reads, &theirs, &ours, 2)] {
        let bytes = pattern(seed, total);
        from.region.copy_in(0, &bytes).unwrap();
        bounded(ours.endpoint.submit(&batch, soon()).outcome())
            .await
            .unwrap();
        to.region.copy_out(0, &mut found).unwrap();
        assert!(found == bytes);
    }
    assert!(theirs.endpoint.stats().connections <= 4);
}
