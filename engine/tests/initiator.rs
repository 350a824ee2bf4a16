//! Our initiator against our target and against peers that misbehave: every transfer ends by its
//! deadline, and says how.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mooncake_engine::transport::LinkError;
use mooncake_engine::transport::fault::{Faulty, Policy};
use mooncake_engine::{Cause, Engine, Op, Settings, Stage, Transfer, TransferError};
use proto::descriptor::Descriptor;
use proto::frame::Status;
use proto::handshake::{self, Kind};
use rig::{BASE, Rig, bounded, connect, pattern, quick, soon};

fn transfer(op: Op, rig: &Rig, peer: &str, offset: u64, length: u64) -> Transfer {
    let (remote, local, peer) = (BASE + offset, rig.id, peer.to_owned());
    Transfer {
        op,
        peer,
        remote,
        local,
        local_offset: offset,
        length,
    }
}

fn localhost() -> IpAddr {
    IpAddr::V4(Ipv4Addr::LOCALHOST)
}

/// A peer that publishes a data port of our choice and lets `serve` have each data connection.
struct Peer {
    name: String,
    _threads: [JoinHandle<()>; 2],
}

fn peer(version: u32, serve: impl Fn(usize, TcpStream) + Send + 'static) -> Peer {
    let handshake = TcpListener::bind((localhost(), 0)).unwrap();
    let data = TcpListener::bind((localhost(), 0)).unwrap();
    let name = handshake.local_addr().unwrap().to_string();
    let descriptor = Descriptor {
        buffers: Vec::new(),
        name: name.clone(),
        protocol: "tcp".to_owned(),
        rdma_server_name: String::new(),
        tcp_data_host: String::new(),
        tcp_data_port: data.local_addr().unwrap().port(),
        tcp_proto_version: version,
        timestamp: String::new(),
    };
    let reply = handshake::encode(Some(Kind::Metadata), &descriptor.encode());
    let answering = std::thread::spawn(move || {
        while let Ok((mut stream, _)) = handshake.accept() {
            let mut prefix = [0; 8];
            stream.read_exact(&mut prefix).unwrap();
            let mut rest = vec![0; handshake::length(prefix).unwrap()];
            stream.read_exact(&mut rest).unwrap();
            stream.write_all(&reply).unwrap();
        }
    });
    let serving = std::thread::spawn(move || {
        let mut count = 0;
        while let Ok((stream, _)) = data.accept() {
            count += 1;
            serve(count, stream);
        }
    });
    Peer {
        name,
        _threads: [answering, serving],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_go_out_and_come_back_between_engines_of_several_threads() {
    let settings = Settings {
        data_threads: 3,
        ..quick()
    };
    let (ours, theirs) = (Rig::new(settings), Rig::new(settings));
    let bytes = pattern(8, 1 << 20);
    ours.region.copy_in(0, &bytes).unwrap();
    let asked: Vec<_> = (0..64)
        .map(|part| transfer(Op::Write, &ours, &theirs.name, part << 14, 1 << 14))
        .collect();
    bounded(ours.host.submit(&asked, soon()).outcome())
        .await
        .unwrap();
    let mut there = vec![0; bytes.len()];
    theirs.region.copy_out(0, &mut there).unwrap();
    assert!(there == bytes);
    bounded(theirs.host.remove_region(theirs.id)).await.unwrap();
    assert_eq!(Arc::strong_count(&theirs.region), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_go_out_and_come_back_in_slices_over_several_connections() {
    let settings = Settings {
        slice_bytes: 1 << 20,
        ..quick()
    };
    let (ours, theirs) = (Rig::new(settings), Rig::new(settings));
    let bytes = pattern(3, 9 << 20);
    ours.region.copy_in(4097, &bytes).unwrap();
    let length = bytes.len() as u64;
    let write = transfer(Op::Write, &ours, &theirs.name, 4097, length);
    bounded(ours.host.transfer(write.clone(), soon()))
        .await
        .unwrap();
    let mut there = vec![0; bytes.len()];
    theirs.region.copy_out(4097, &mut there).unwrap();
    assert!(there == bytes);
    ours.region.copy_in(4097, &vec![0; bytes.len()]).unwrap();
    let read = Transfer {
        op: Op::Read,
        ..write
    };
    bounded(ours.host.transfer(read, soon())).await.unwrap();
    ours.region.copy_out(4097, &mut there).unwrap();
    assert!(there == bytes);
    assert_eq!(theirs.host.stats().requests, 18);
    assert!((2..=4).contains(&theirs.host.stats().connections));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_address_is_named_and_nothing_was_written() {
    let (ours, theirs) = (Rig::new(quick()), Rig::new(quick()));
    let mut write = transfer(Op::Write, &ours, &theirs.name, 0, 8 << 20);
    write.remote = 77;
    let error = bounded(ours.host.transfer(write, soon()))
        .await
        .unwrap_err();
    let TransferError::Failed {
        peer, stage, cause, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((peer, *stage), (&theirs.name, Stage::Transfer));
    // Whether the answer outruns the reset of the unread payload is the kernel's to say, but with
    // the answer listened for all the time it should.
    assert!(
        matches!(cause, Cause::Transport(LinkError::Rejected)),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_peer_is_named_with_the_stage() {
    let ours = Rig::new(quick());
    let gone = TcpListener::bind((localhost(), 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let read = transfer(Op::Read, &ours, &gone, 0, 8);
    let error = bounded(ours.host.transfer(read, soon())).await.unwrap_err();
    assert!(
        matches!(
            error,
            TransferError::Failed {
                stage: Stage::Resolve,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains(&gone), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_peer_costs_the_deadline_and_a_write_is_indeterminate() {
    let ours = Rig::new(quick());
    let (keep, kept) = std::sync::mpsc::channel();
    let silent = peer(2, move |_, stream| keep.send(stream).unwrap());
    for op in [Op::Read, Op::Write] {
        let begun = Instant::now();
        let deadline = begun + Duration::from_millis(200);
        let asked = transfer(op, &ours, &silent.name, 0, 1000);
        let mut batch = ours.host.submit(&[asked], deadline);
        let error = bounded(batch.outcome()).await.unwrap_err();
        let late = begun.elapsed();
        assert!((200..2000).contains(&late.as_millis()), "{late:?}");
        bounded(batch.released()).await;
        match (op, &error) {
            (Op::Read, TransferError::Failed { stage, cause, .. })
            | (Op::Write, TransferError::Indeterminate { stage, cause, .. }) => {
                assert_eq!(*stage, Stage::Transfer);
                assert!(matches!(cause, Cause::Deadline));
            }
            _ => panic!("{error}"),
        }
    }
    drop(kept);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_pooled_connection_is_replaced_once_without_a_word() {
    let ours = Rig::new(quick());
    // Serves one good read per connection and then breaks off when the next is asked for.
    let fickle = peer(2, |_, mut stream| {
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
        stream.write_all(&Status::Ok.encode()).unwrap();
        stream.write_all(b"12345678").unwrap();
        std::thread::spawn(move || stream.read_exact(&mut header));
    });
    for _ in 0..5 {
        let read = transfer(Op::Read, &ours, &fickle.name, 0, 8);
        bounded(ours.host.transfer(read, soon())).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_connection_that_breaks_is_an_error_at_once() {
    let ours = Rig::new(quick());
    let broken = peer(2, |_, mut stream| {
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
    });
    let begun = Instant::now();
    let read = transfer(Op::Read, &ours, &broken.name, 0, 8);
    let error = bounded(ours.host.transfer(read, soon())).await.unwrap_err();
    assert!(
        matches!(
            error,
            TransferError::Failed {
                stage: Stage::Transfer,
                ..
            }
        ),
        "{error}"
    );
    let write = transfer(Op::Write, &ours, &broken.name, 0, 8);
    let error = bounded(ours.host.transfer(write, soon()))
        .await
        .unwrap_err();
    assert!(
        matches!(error, TransferError::Indeterminate { .. }),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_of_version_one_are_served_in_version_one() {
    let ours = Rig::new(quick());
    let old = peer(1, |_, mut stream| {
        std::thread::spawn(move || {
            let mut header = [0; 24];
            stream.read_exact(&mut header).unwrap();
            assert_eq!(header[16], 0);
            stream.write_all(b"12345678").unwrap();
            stream.read_exact(&mut header)
        });
    });
    let read = transfer(Op::Read, &ours, &old.name, 16, 8);
    bounded(ours.host.transfer(read, soon())).await.unwrap();
    let mut got = [0; 8];
    ours.region.copy_out(16, &mut got).unwrap();
    assert_eq!(&got, b"12345678");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_lies_in_its_answer_is_an_error() {
    let ours = Rig::new(quick());
    let liar = peer(2, |_, mut stream| {
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    });
    let read = transfer(Op::Read, &ours, &liar.name, 0, 8);
    let error = bounded(ours.host.transfer(read, soon())).await.unwrap_err();
    let TransferError::Failed {
        cause: Cause::Transport(LinkError::Protocol(_)),
        ..
    } = error
    else {
        panic!("{error}")
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_the_local_region_ends_its_transfers_and_frees_it() {
    let ours = Rig::new(quick());
    let silent = peer(2, |_, stream| std::mem::forget(stream));
    let mut batch = ours
        .host
        .submit(&[transfer(Op::Read, &ours, &silent.name, 0, 1000)], soon());
    rig::until("the request is under way", || {
        Arc::strong_count(&ours.region) > 3
    })
    .await;
    bounded(ours.host.remove_region(ours.id)).await.unwrap();
    assert_eq!(Arc::strong_count(&ours.region), 1);
    let error = bounded(batch.outcome()).await.unwrap_err();
    assert!(
        matches!(
            error,
            TransferError::Failed {
                cause: Cause::Withdrawn,
                ..
            }
        ),
        "{error}"
    );
    bounded(batch.released()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_the_host_ends_its_transfers() {
    let ours = Rig::new(quick());
    let silent = peer(2, |_, stream| std::mem::forget(stream));
    let mut batch = ours
        .host
        .submit(&[transfer(Op::Write, &ours, &silent.name, 0, 1000)], soon());
    bounded(ours.host.close()).await.unwrap();
    let error = bounded(batch.outcome()).await.unwrap_err();
    assert!(matches!(error, TransferError::Closed { .. }), "{error}");
    bounded(batch.released()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_outside_the_local_region_are_not_tried() {
    let ours = Rig::new(quick());
    for (offset, length) in [(rig::LENGTH, 1), (1, rig::LENGTH), (u64::MAX, 2)] {
        let mut asked = transfer(Op::Read, &ours, &ours.name, 0, length);
        asked.local_offset = offset;
        let error = bounded(ours.host.transfer(asked, soon()))
            .await
            .unwrap_err();
        assert!(matches!(error, TransferError::LocalRange { .. }), "{error}");
    }
    let nothing = transfer(Op::Write, &ours, "nobody.invalid:1", 0, 0);
    bounded(ours.host.transfer(nothing, soon())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn with_failures_on_purpose_every_transfer_still_ends_and_is_released() {
    let policy = Policy {
        fail_every: Some(7),
        stale_every: Some(5),
        release_delay: Duration::from_millis(20),
    };
    let settings = Settings {
        slice_bytes: 64 << 10,
        ..quick()
    };
    let engine = Engine::start_with(settings, |tcp| Box::new(Faulty::new(tcp, policy))).unwrap();
    let ours = Rig::with(engine, localhost(), BASE);
    let theirs = Rig::new(quick());
    let mut failed = 0;
    for round in 0..40 {
        let asked: Vec<_> = (0..4)
            .map(|part| {
                transfer(
                    Op::Write,
                    &ours,
                    &theirs.name,
                    part << 20,
                    (round + 1) << 10,
                )
            })
            .collect();
        let begun = Instant::now();
        let mut batch = ours.host.submit(&asked, begun + Duration::from_secs(2));
        failed += u64::from(bounded(batch.outcome()).await.is_err());
        assert!(begun.elapsed() < Duration::from_secs(5));
        bounded(batch.released()).await;
    }
    assert!(failed > 0 && failed < 40, "{failed} of 40 batches failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_left_fetched_and_bounded() {
    let ours = Rig::new(quick());
    let send = |text: &str| {
        let mut stream = connect(ours.handshake);
        let body = format!("{{\"name\":\"n\",\"notify_msg\":\"{text}\"}}");
        stream
            .write_all(&handshake::encode(Some(Kind::Notify), body.as_bytes()))
            .unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        String::from_utf8(reply[9..].to_vec()).unwrap()
    };
    assert!(send("hello").contains("success"));
    let large = "x".repeat(1_000_000);
    assert!(send(&large).contains("success"));
    assert!(!send(&large).contains("success"));
    let messages = ours.host.notifies();
    assert_eq!(
        (messages.len(), messages[0].notify_msg.as_str()),
        (2, "hello")
    );
    assert!(send("again").contains("success"));
}
