//! Tests of outgoing transfers, to this engine and to misbehaving peers: every transfer ends by its deadline
//! with an exact error.
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
use mooncake_engine::{
    Admission, Bound, Cause, Engine, Limits, Op, Settings, Stage, Transfer, TransferError,
};
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

/// A peer that publishes the given data port, and passes each data connection to `serve`.
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
        tcp_pipeline_depth: 0,
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
async fn bytes_are_written_and_read_back_with_several_threads() {
    let settings = Settings {
        data_threads: 3,
        ..quick()
    };
    let (ours, theirs) = (Rig::new(settings), Rig::new(settings));
    let bytes = pattern(8, 1 << 20);
    ours.region.copy_in(0, &bytes).unwrap();
    let transfer: Vec<_> = (0..64)
        .map(|part| transfer(Op::Write, &ours, &theirs.name, part << 14, 1 << 14))
        .collect();
    bounded(ours.endpoint.submit(&transfer, soon()).outcome())
        .await
        .unwrap();
    let mut there = vec![0; bytes.len()];
    theirs.region.copy_out(0, &mut there).unwrap();
    assert!(there == bytes);
    bounded(theirs.endpoint.remove_region(theirs.id))
        .await
        .unwrap();
    assert_eq!(Arc::strong_count(&theirs.region), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_written_and_read_back_in_slices_over_several_connections() {
    let settings = Settings {
        slice_bytes: 1 << 20,
        ..quick()
    };
    let (ours, theirs) = (Rig::new(settings), Rig::new(settings));
    let bytes = pattern(3, 9 << 20);
    ours.region.copy_in(4097, &bytes).unwrap();
    let length = bytes.len() as u64;
    let write = transfer(Op::Write, &ours, &theirs.name, 4097, length);
    bounded(ours.endpoint.transfer(write.clone(), soon()))
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
    bounded(ours.endpoint.transfer(read, soon())).await.unwrap();
    ours.region.copy_out(4097, &mut there).unwrap();
    assert!(there == bytes);
    // The peer counts a read after its last byte is sent.
    rig::until("18 requests are counted", || {
        theirs.endpoint.stats().requests == 18
    })
    .await;
    assert!((2..=4).contains(&theirs.endpoint.stats().connections));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_address_is_an_error_and_nothing_is_written() {
    let (ours, theirs) = (Rig::new(quick()), Rig::new(quick()));
    let mut write = transfer(Op::Write, &ours, &theirs.name, 0, 8 << 20);
    write.remote = 77;
    let error = bounded(ours.endpoint.transfer(write, soon()))
        .await
        .unwrap_err();
    let TransferError::Failed {
        peer, stage, cause, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((peer, *stage), (&theirs.name, Stage::Transfer));
    // The status should be read before the reset that the unread payload causes.
    assert!(
        matches!(cause, Cause::Transport(LinkError::Rejected)),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_names_an_absent_peer_and_the_stage() {
    let ours = Rig::new(quick());
    let gone = TcpListener::bind((localhost(), 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let read = transfer(Op::Read, &ours, &gone, 0, 8);
    let error = bounded(ours.endpoint.transfer(read, soon()))
        .await
        .unwrap_err();
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
async fn nothing_is_sent_to_an_address_that_is_not_admitted() {
    let ours = Rig::new(quick());
    let (accepted, connections) = std::sync::mpsc::channel();
    let (close, closed) = std::sync::mpsc::channel();
    let theirs = peer(2, move |count, mut stream| {
        accepted.send(count).unwrap();
        // Ends the link after one transfer, so that the next one needs a new connection.
        let mut request = [0; 24 + 8];
        stream.read_exact(&mut request).unwrap();
        stream.write_all(&Status::Ok.encode()).unwrap();
        drop(stream);
        close.send(()).unwrap();
    });
    let write = transfer(Op::Write, &ours, &theirs.name, 0, 8);
    let refused = |error: TransferError| {
        let TransferError::Failed { cause, .. } = error else {
            panic!("{error}");
        };
        let Cause::Transport(LinkError::NotAdmitted { address }) = cause else {
            panic!("{cause:?}");
        };
        assert_eq!(address, localhost());
    };
    let nobody = || ours.endpoint.admit(Admission::only([])).unwrap();
    nobody();
    let never = bounded(ours.endpoint.transfer(write.clone(), soon())).await;
    refused(never.unwrap_err());
    assert!(connections.try_recv().is_err());

    ours.endpoint.admit(Admission::only([localhost()])).unwrap();
    bounded(ours.endpoint.transfer(write.clone(), soon()))
        .await
        .unwrap();
    assert!(connections.try_recv().is_ok());
    closed.recv_timeout(rig::TIMEOUT).unwrap();

    // The address that the engine remembers may belong to another pod now.
    nobody();
    let later = bounded(ours.endpoint.transfer(write, soon())).await;
    refused(later.unwrap_err());
    assert!(connections.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_with_an_unresponsive_peer_ends_at_its_deadline() {
    let ours = Rig::new(quick());
    let (keep, kept) = std::sync::mpsc::channel();
    let silent = peer(2, move |_, stream| keep.send(stream).unwrap());
    for op in [Op::Read, Op::Write] {
        let begun = Instant::now();
        let deadline = begun + Duration::from_secs(2);
        let transfer = transfer(op, &ours, &silent.name, 0, 1000);
        let mut batch = ours.endpoint.submit(&[transfer], deadline);
        let error = bounded(batch.outcome()).await.unwrap_err();
        assert!(Instant::now() >= deadline, "{:?}", begun.elapsed());
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
async fn a_transfer_that_ends_before_its_first_byte_leaves_the_link_to_others() {
    let passed = Instant::now();
    let settings = Settings {
        lanes_per_peer: 1,
        ..quick()
    };
    let ours = Rig::new(settings);
    let (count, requests) = std::sync::mpsc::channel();
    let honest = peer(2, move |connection, mut stream| {
        let mut request = [0; 24 + 8];
        while stream.read_exact(&mut request).is_ok() {
            count.send((connection, request[24])).unwrap();
            stream.write_all(&Status::Ok.encode()).unwrap();
        }
    });
    let write = |number: u8| {
        let offset = u64::from(number) << 3;
        ours.region.copy_in(offset, &[number; 8]).unwrap();
        Transfer {
            local_offset: offset,
            ..transfer(Op::Write, &ours, &honest.name, 0, 8)
        }
    };
    for number in 1..=20 {
        let write_in_time = ours.endpoint.transfer(write(number), soon());
        bounded(write_in_time).await.unwrap();
        let mut late = ours.endpoint.submit(&[write(0)], passed);
        let error = bounded(late.outcome()).await.unwrap_err();
        let TransferError::Failed {
            stage: Stage::Queue,
            cause: Cause::Deadline,
            ..
        } = error
        else {
            panic!("{error}")
        };
        bounded(late.released()).await;
    }
    let expected: Vec<_> = (1..=20).map(|number| (1, number)).collect();
    assert_eq!(requests.try_iter().collect::<Vec<_>>(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_connection_is_replaced_once_without_an_error() {
    let ours = Rig::new(quick());
    // Serves one read per connection, and closes it at the next request.
    let fickle = peer(2, |_, mut stream| {
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
        stream.write_all(&Status::Ok.encode()).unwrap();
        stream.write_all(b"12345678").unwrap();
        std::thread::spawn(move || stream.read_exact(&mut header));
    });
    for _ in 0..5 {
        let read = transfer(Op::Read, &ours, &fickle.name, 0, 8);
        bounded(ours.endpoint.transfer(read, soon())).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_payload_was_sent_is_not_sent_again() {
    let ours = Rig::new(quick());
    let (count, requests) = std::sync::mpsc::channel();
    // Answers the first write of each connection, and breaks in the middle of the second one.
    let broken = peer(2, move |_, mut stream| {
        let mut request = [0; 24 + 8];
        stream.read_exact(&mut request).unwrap();
        count.send(()).unwrap();
        stream.write_all(&Status::Ok.encode()).unwrap();
        stream.read_exact(&mut request).unwrap();
        count.send(()).unwrap();
    });
    let write = transfer(Op::Write, &ours, &broken.name, 0, 8);
    bounded(ours.endpoint.transfer(write.clone(), soon()))
        .await
        .unwrap();
    let error = bounded(ours.endpoint.transfer(write, soon()))
        .await
        .unwrap_err();
    assert!(
        matches!(error, TransferError::Indeterminate { .. }),
        "{error}"
    );
    assert_eq!(requests.try_iter().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_the_peer_closed_costs_no_failed_write() {
    // The end of the link then arrives together with the status before it.
    let policy = Policy {
        pause: Duration::from_millis(20),
        ..Policy::default()
    };
    let settings = Settings {
        lanes_per_peer: 1,
        ..quick()
    };
    let engine = Engine::start_with(settings, |tcp| Box::new(Faulty::new(tcp, policy))).unwrap();
    let ours = Rig::with(engine, localhost(), BASE);
    let fickle = peer(2, |_, mut stream| {
        let mut request = [0; 24 + 8];
        stream.read_exact(&mut request).unwrap();
        stream.write_all(&Status::Ok.encode()).unwrap();
    });
    let writes = vec![transfer(Op::Write, &ours, &fickle.name, 0, 8); 10];
    bounded(ours.endpoint.submit(&writes, soon()).outcome())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_cut_ends_its_connection_with_a_reset() {
    let ours = Rig::new(quick());
    let (report, reported) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let slow = peer(2, move |_, mut stream| {
        let mut start = [0; 24 + 100];
        stream.read_exact(&mut start).unwrap();
        let mut rest = Vec::new();
        // What the cut transfer left in the kernels is readable before the reset.
        ended.recv().unwrap();
        report
            .send(stream.read_to_end(&mut rest).map_err(|error| error.kind()))
            .unwrap();
    });
    let write = transfer(Op::Write, &ours, &slow.name, 0, 16 << 20);
    let deadline = Instant::now() + Duration::from_secs(2);
    let error = bounded(ours.endpoint.transfer(write, deadline))
        .await
        .unwrap_err();
    assert!(
        matches!(error, TransferError::Indeterminate { .. }),
        "{error}"
    );
    end.send(()).unwrap();
    let end = reported.recv_timeout(rig::TIMEOUT).unwrap();
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_connection_that_breaks_is_an_error_at_once() {
    let ours = Rig::new(quick());
    let broken = peer(2, |_, mut stream| {
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
    });
    let begun = Instant::now();
    let read = transfer(Op::Read, &ours, &broken.name, 0, 8);
    let error = bounded(ours.endpoint.transfer(read, soon()))
        .await
        .unwrap_err();
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
    let error = bounded(ours.endpoint.transfer(write, soon()))
        .await
        .unwrap_err();
    assert!(
        matches!(error, TransferError::Indeterminate { .. }),
        "{error}"
    );
    // Not at their deadlines.
    assert!(begun.elapsed() < rig::TIMEOUT);
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
    bounded(ours.endpoint.transfer(read, soon())).await.unwrap();
    let mut got = [0; 8];
    ours.region.copy_out(16, &mut got).unwrap();
    assert_eq!(&got, b"12345678");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_status_is_an_error() {
    let ours = Rig::new(quick());
    let liar = peer(2, |_, mut stream| {
        let mut header = [0; 24];
        stream.read_exact(&mut header).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    });
    let read = transfer(Op::Read, &ours, &liar.name, 0, 8);
    let error = bounded(ours.endpoint.transfer(read, soon()))
        .await
        .unwrap_err();
    let TransferError::Failed {
        cause: Cause::Transport(LinkError::Protocol(_)),
        ..
    } = error
    else {
        panic!("{error}")
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_the_local_region_ends_its_transfers_and_releases_it() {
    let ours = Rig::new(quick());
    let silent = peer(2, |_, stream| std::mem::forget(stream));
    let mut batch = ours
        .endpoint
        .submit(&[transfer(Op::Read, &ours, &silent.name, 0, 1000)], soon());
    rig::until("the request is under way", || {
        Arc::strong_count(&ours.region) > 3
    })
    .await;
    bounded(ours.endpoint.remove_region(ours.id)).await.unwrap();
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
async fn rebasing_the_local_region_ends_its_transfers_and_waits_for_their_release() {
    let release_delay = Duration::from_millis(300);
    let policy = Policy {
        release_delay,
        ..Policy::default()
    };
    let engine = Engine::start_with(quick(), |tcp| Box::new(Faulty::new(tcp, policy))).unwrap();
    let ours = Rig::with(engine, localhost(), BASE);
    let silent = peer(2, |_, stream| std::mem::forget(stream));
    let baseline = Arc::strong_count(&ours.region);
    let write = transfer(Op::Write, &ours, &silent.name, 0, 1000);
    let mut batch = ours.endpoint.submit(std::slice::from_ref(&write), soon());
    rig::until("the request is under way", || {
        Arc::strong_count(&ours.region) > baseline
    })
    .await;
    let begun = Instant::now();
    bounded(ours.endpoint.rebase_region(ours.id, 2 * BASE))
        .await
        .unwrap();
    assert!(begun.elapsed() >= release_delay);
    let error = bounded(batch.outcome()).await.unwrap_err();
    assert!(
        matches!(
            error,
            TransferError::Indeterminate {
                cause: Cause::Withdrawn,
                ..
            }
        ),
        "{error}"
    );
    // A transfer of the new epoch is not cut.
    let theirs = Rig::new(quick());
    let write = Transfer {
        peer: theirs.name.clone(),
        ..write
    };
    bounded(ours.endpoint.transfer(write, soon()))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_the_endpoint_ends_its_transfers() {
    let ours = Rig::new(quick());
    let silent = peer(2, |_, stream| std::mem::forget(stream));
    let mut batch = ours
        .endpoint
        .submit(&[transfer(Op::Write, &ours, &silent.name, 0, 1000)], soon());
    bounded(ours.endpoint.close()).await.unwrap();
    let error = bounded(batch.outcome()).await.unwrap_err();
    assert!(matches!(error, TransferError::Closed { .. }), "{error}");
    bounded(batch.released()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_outside_the_local_region_are_rejected() {
    let ours = Rig::new(quick());
    for (offset, length) in [(rig::LENGTH, 1), (1, rig::LENGTH), (u64::MAX, 2)] {
        let mut transfer = transfer(Op::Read, &ours, &ours.name, 0, length);
        transfer.local_offset = offset;
        let error = bounded(ours.endpoint.transfer(transfer, soon()))
            .await
            .unwrap_err();
        assert!(matches!(error, TransferError::LocalRange { .. }), "{error}");
    }
    let nothing = transfer(Op::Write, &ours, "absent.invalid:1", 0, 0);
    bounded(ours.endpoint.transfer(nothing, soon()))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_peer_is_not_tried_without_a_pause() {
    let ours = Rig::new(quick());
    // Closes each handshake without an answer.
    let gone = TcpListener::bind((localhost(), 0)).unwrap();
    let name = gone.local_addr().unwrap().to_string();
    let (count, connections) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = gone.accept() {
            if count.send(()).is_err() {
                return;
            }
            drop(stream);
        }
    });
    let begun = Instant::now();
    let mut attempts = 0;
    while attempts < 5 {
        let read = transfer(Op::Read, &ours, &name, 0, 8);
        bounded(ours.endpoint.transfer(read, soon()))
            .await
            .unwrap_err();
        attempts += connections.try_iter().count();
        assert!(begun.elapsed() < rig::TIMEOUT, "{attempts} attempts");
    }
    // At the earliest at 0, 50, 150, 350 and 750 ms.
    assert_eq!(attempts, 5);
    assert!(begun.elapsed() >= Duration::from_millis(750));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_above_a_limit_starts_no_transfer() {
    let settings = Settings {
        data_threads: 2,
        transfers_per_peer: Limits {
            transfers: 10,
            bytes: 1 << 20,
        },
        ..quick()
    };
    let ours = Rig::new(settings);
    let theirs = [Rig::new(quick()), Rig::new(quick()), Rig::new(quick())];
    let mut batch: Vec<_> = theirs
        .iter()
        .map(|peer| transfer(Op::Write, &ours, &peer.name, 0, 8))
        .collect();
    batch.extend(vec![transfer(Op::Write, &ours, &theirs[2].name, 0, 8); 10]);
    let wrong = [
        transfer(Op::Write, &ours, &theirs[0].name, 0, 8),
        transfer(Op::Write, &ours, &theirs[0].name, rig::LENGTH, 8),
    ];
    for _ in 0..20 {
        let error = bounded(ours.endpoint.submit(&batch, soon()).outcome()).await;
        let error = error.unwrap_err();
        let TransferError::Busy { peer, bound } = &error else {
            panic!("{error}")
        };
        assert_eq!(
            (peer, *bound),
            (&theirs[2].name, Bound::TransfersOfPeer(10))
        );
        let error = bounded(ours.endpoint.submit(&wrong, soon()).outcome()).await;
        assert!(matches!(error, Err(TransferError::LocalRange { .. })));
    }
    batch.pop();
    for round in 1..=3 {
        let mut started = ours.endpoint.submit(&batch, soon());
        bounded(started.outcome()).await.unwrap();
        bounded(started.released()).await;
        let requests = theirs.each_ref().map(|peer| peer.endpoint.stats().requests);
        assert_eq!(requests, [round, round, 10 * round]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_batch_is_cancelled_and_releases_its_memory() {
    let ours = Rig::new(quick());
    let silent = peer(2, |_, stream| std::mem::forget(stream));
    let baseline = Arc::strong_count(&ours.region);
    let batch = vec![transfer(Op::Read, &ours, &silent.name, 0, 8); 10];
    let mut batch = ours
        .endpoint
        .submit(&batch, Instant::now() + 10 * rig::TIMEOUT);
    rig::until("requests are under way", || {
        Arc::strong_count(&ours.region) > baseline
    })
    .await;
    let early = tokio::time::timeout(Duration::from_millis(10), batch.outcome()).await;
    assert!(early.is_err());
    drop(batch);
    rig::until("the memory is released", || {
        Arc::strong_count(&ours.region) == baseline
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transfer_ends_and_is_released_despite_injected_failures() {
    let policy = Policy {
        fail_every: Some(7),
        stale_every: Some(5),
        release_delay: Duration::from_millis(20),
        ..Policy::default()
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
        let transfer: Vec<_> = (0..4)
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
        let mut batch = ours.endpoint.submit(&transfer, soon());
        failed += u64::from(bounded(batch.outcome()).await.is_err());
        bounded(batch.released()).await;
    }
    assert!(failed > 0 && failed < 40, "{failed} of 40 batches failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_received_and_limited() {
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
    let messages = ours.endpoint.notifies();
    assert_eq!(
        (messages.len(), messages[0].notify_msg.as_str()),
        (2, "hello")
    );
    assert!(send("again").contains("success"));
}
