//! Tests of served connections, with hand-written peers.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "fixture/rig.rs"]
mod rig;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use mooncake_engine::{Admission, Ended, PeerFailures, Settings};
use proto::frame::{Op, Status, Version};
use proto::handshake::{self, Kind};
use rig::{
    BASE, LENGTH, Rig, connect, connect_from, get, hasty, header, is_closed, pattern, put, quick,
    status, until,
};
use rustix::net::sockopt;
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test(flavor = "multi_thread")]
async fn version_two_writes_are_answered_after_the_last_byte_and_read_back() {
    let rig = Rig::new(quick());
    let mut stream = rig.connect();
    let bytes = pattern(1, 5 << 20);
    assert_eq!(put(&mut stream, BASE + 4095, &bytes), Status::Ok);
    let mut there = vec![0; bytes.len()];
    rig.region.copy_out(4095, &mut there).unwrap();
    assert!(there == bytes);
    assert!(get(&mut stream, BASE + 4095, bytes.len()) == bytes);
    // A read is counted after its last byte is sent.
    until("both requests are counted", || {
        rig.endpoint.stats().requests == 2
    })
    .await;
    let stats = rig.endpoint.stats();
    assert_eq!(stats.connections, 1);
    assert_eq!((stats.bytes_written, stats.bytes_read), (5 << 20, 5 << 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn version_one_has_no_answers_and_pipelined_headers_are_served_in_order() {
    let rig = Rig::new(quick());
    let mut stream = rig.connect();
    let mut wire = Vec::new();
    wire.extend(header(Op::Write, Version::V1, BASE, 3));
    wire.extend(b"abc");
    wire.extend(header(Op::Read, Version::V1, BASE + 1, 2));
    wire.extend(header(Op::Read, Version::V2, BASE, 1));
    stream.write_all(&wire).unwrap();
    let mut back = [0; 2 + 8 + 1];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"bc\0\0\0\0VTCMa");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_addresses_are_rejected_and_the_connection_is_closed() {
    let rig = Rig::new(quick());
    let ranges = [
        (BASE - 1, 1),
        (BASE + LENGTH, 1),
        (BASE + LENGTH - 1, 2),
        (BASE, 0),
        (u64::MAX, 2),
        (BASE, u64::MAX),
        (0, 8),
    ];
    for (address, size) in ranges {
        for op in [Op::Read, Op::Write] {
            let mut stream = rig.connect();
            stream
                .write_all(&header(op, Version::V2, address, size))
                .unwrap();
            assert_eq!(status(&mut stream), Status::AddressRejected);
            assert!(is_closed(&mut stream));
            let mut stream = rig.connect();
            stream
                .write_all(&header(op, Version::V1, address, size))
                .unwrap();
            let mut byte = [0];
            assert!(!stream.read(&mut byte).is_ok_and(|count| count > 0));
        }
    }
    assert_eq!(
        rig.endpoint.stats().ended[Ended::BadAddress],
        4 * ranges.len() as u64
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_first_header_stays_incomplete_is_closed_in_time() {
    let rig = Rig::new(hasty());
    let mut silent = rig.connect();
    let mut half = rig.connect();
    half.write_all(&[0; 23]).unwrap();
    let mut honest = rig.connect();
    assert_eq!(put(&mut honest, BASE, b"x"), Status::Ok);
    assert!(is_closed(&mut half));
    // A stock peer may use one later that it opened together with others.
    assert_eq!(put(&mut silent, BASE, b"x"), Status::Ok);
    let mut late = rig.connect();
    let opened = Instant::now();
    silent
        .set_read_timeout(Some(hasty().header_deadline * 3 / 2))
        .unwrap();
    assert!(!is_closed(&mut silent));
    // Its time begins with its first byte.
    late.write_all(&[0]).unwrap();
    assert!(is_closed(&mut late));
    assert!(opened.elapsed() >= hasty().header_deadline * 5 / 2);
    assert_eq!(rig.endpoint.stats().ended[Ended::HeaderDeadline], 2);
    // A connection that has transferred stays open, also within a later header.
    honest
        .write_all(&header(Op::Read, Version::V2, BASE, 1)[..10])
        .unwrap();
    honest
        .set_read_timeout(Some(hasty().header_deadline * 3 / 2))
        .unwrap();
    assert!(!is_closed(&mut honest));
    honest
        .write_all(&header(Op::Read, Version::V2, BASE, 1)[10..])
        .unwrap();
    assert_eq!(status(&mut honest), Status::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_payload_ends_its_connection() {
    let settings = Settings {
        user_timeout: Duration::from_secs(1),
        ..quick()
    };
    let rig = Rig::new(settings);
    let mut stream = rig.connect();
    stream
        .write_all(&header(Op::Write, Version::V2, BASE, 100))
        .unwrap();
    stream.write_all(&[1; 50]).unwrap();
    assert!(is_closed(&mut stream));
    assert_eq!(rig.endpoint.stats().ended[Ended::Stalled], 1);
}

/// Bytes of a write in the next two tests, which the target receives in one portion.
const PORTION: usize = 256 << 10;
/// Attempts to have bytes in the socket buffer of a target that waits.
const ATTEMPTS: usize = 20;

/// Starts a write whose bytes stay in the target's socket buffer, because they are less than a portion, and
/// then completes another write to the same range. Returns the first connection and the second payload.
async fn overwritten_while_queued(rig: &Rig) -> (TcpStream, Vec<u8>) {
    let second = pattern(2, PORTION);
    for _ in 0..ATTEMPTS {
        let before = rig.endpoint.stats().bytes_written;
        let mut first = rig.connect();
        let mut begin = header(Op::Write, Version::V2, BASE, PORTION as u64).to_vec();
        begin.push(0);
        first.write_all(&begin).unwrap();
        until("the target has the first byte", || {
            rig.endpoint.stats().bytes_written == before + 1
        })
        .await;
        // On loopback it is in the target's socket buffer when this returns.
        first.write_all(&pattern(1, 100 << 10)).unwrap();
        assert_eq!(put(&mut rig.connect(), BASE, &second), Status::Ok);
        if rig.endpoint.stats().bytes_written == before + 1 + PORTION as u64 {
            return (first, second);
        }
        // The target had not begun to wait for a portion, and has received these bytes.
        drop(first);
        no_connections(rig).await;
    }
    panic!("the target never waited for a portion");
}

async fn no_connections(rig: &Rig) {
    until("all connections have ended", || {
        rig.endpoint.stats().connections == 0
    })
    .await;
}

/// Checks that ending a connection has written nothing of what it left in the socket buffer.
async fn nothing_more_is_written(rig: &Rig, second: &[u8], broken: u64) {
    no_connections(rig).await;
    let mut there = vec![0; second.len()];
    rig.region.copy_out(0, &mut there).unwrap();
    assert!(there == second, "bytes of the first write landed");
    assert_eq!(rig.endpoint.stats().ended[Ended::Broken], broken + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_bytes_of_a_reset_connection_are_not_written() {
    let rig = Rig::new(quick());
    let (first, second) = overwritten_while_queued(&rig).await;
    let broken = rig.endpoint.stats().ended[Ended::Broken];
    SockRef::from(&first)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(first);
    nothing_more_is_written(&rig, &second, broken).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_bytes_of_a_sender_that_has_closed_are_not_written() {
    let rig = Rig::new(quick());
    let (first, second) = overwritten_while_queued(&rig).await;
    let broken = rig.endpoint.stats().ended[Ended::Broken];
    drop(first);
    nothing_more_is_written(&rig, &second, broken).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_closes_its_direction_after_a_request_gets_its_answer() {
    let rig = Rig::new(quick());
    let end = |stream: &TcpStream| stream.shutdown(Shutdown::Write).unwrap();
    for size in [1, 4096, 300 << 10, 9 << 20] {
        let bytes = pattern(size as u64, size);
        let mut writer = rig.connect();
        let head = header(Op::Write, Version::V2, BASE, size as u64);
        // One send call carries what fits: header, payload and end arrive together if they are small.
        writer.write_all(&[&head, &bytes[..]].concat()).unwrap();
        end(&writer);
        assert_eq!(status(&mut writer), Status::Ok, "{size} bytes");
        assert!(is_closed(&mut writer));
        for version in [Version::V1, Version::V2] {
            let mut reader = rig.connect();
            reader
                .write_all(&header(Op::Read, version, BASE, size as u64))
                .unwrap();
            end(&reader);
            if version == Version::V2 {
                assert_eq!(status(&mut reader), Status::Ok);
            }
            let mut there = Vec::new();
            reader.read_to_end(&mut there).unwrap();
            assert!(there == bytes, "{size} bytes");
        }
    }
    let mut rejected = rig.connect();
    rejected
        .write_all(&header(Op::Read, Version::V2, 7, 1))
        .unwrap();
    end(&rejected);
    assert_eq!(status(&mut rejected), Status::AddressRejected);
    assert_eq!(rig.endpoint.stats().ended[Ended::Broken], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_write_of_a_peer_that_closes_its_direction_is_not_answered() {
    let rig = Rig::new(quick());
    let mut writer = rig.connect();
    let head = header(Op::Write, Version::V2, BASE, 100);
    writer.write_all(&[&head[..], &[1; 99]].concat()).unwrap();
    writer.shutdown(Shutdown::Write).unwrap();
    let mut answer = [0];
    assert!(!writer.read(&mut answer).is_ok_and(|count| count > 0));
    assert_eq!(rig.endpoint.stats().ended[Ended::Broken], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_one_sender_may_close_after_its_last_byte() {
    let rig = Rig::new(quick());
    let bytes = pattern(4, 3 << 20);
    let mut sender = rig.connect();
    let head = header(Op::Write, Version::V1, BASE, bytes.len() as u64);
    sender.write_all(&head).unwrap();
    sender.write_all(&bytes).unwrap();
    drop(sender);
    until("the write is complete", || {
        rig.endpoint.stats().requests == 1
    })
    .await;
    let mut there = vec![0; bytes.len()];
    rig.region.copy_out(0, &mut there).unwrap();
    assert!(there == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_in_parts_complete_and_the_next_request_is_served() {
    let rig = Rig::new(quick());
    let mut stream = rig.connect();
    let mut before = 0;
    for size in [
        128 << 10,
        (256 << 10) + 1,
        (1 << 20) - 1,
        1 << 20,
        (1 << 20) + 1,
    ] {
        let bytes = pattern(3, size);
        let head = header(Op::Write, Version::V2, BASE, size as u64);
        stream.write_all(&head).unwrap();
        stream.write_all(&bytes[..size - 1]).unwrap();
        // Bytes that are certainly received before the last part.
        let sure = before + (size as u64).saturating_sub(256 << 10);
        until("the beginning is taken", || {
            rig.endpoint.stats().bytes_written >= sure
        })
        .await;
        stream.write_all(&bytes[size - 1..]).unwrap();
        assert_eq!(status(&mut stream), Status::Ok);
        assert_eq!(put(&mut stream, BASE + (16 << 20), b"x"), Status::Ok);
        assert!(get(&mut stream, BASE, size) == bytes);
        before = rig.endpoint.stats().bytes_written;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_is_received_byte_by_byte() {
    // Each byte is taken after about this time.
    let settings = Settings {
        user_timeout: Duration::from_secs(4),
        ..quick()
    };
    let rig = Rig::new(settings);
    let mut stream = rig.connect();
    let size = 512 << 10;
    let head = header(Op::Write, Version::V2, BASE, size);
    stream.write_all(&head).unwrap();
    for taken in 1..=2 {
        stream.write_all(&[1]).unwrap();
        until("the byte is taken", || {
            rig.endpoint.stats().bytes_written == taken
        })
        .await;
    }
    stream.write_all(&vec![1; 512 << 10][2..]).unwrap();
    assert_eq!(status(&mut stream), Status::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_over_the_limits_are_refused_and_open_ones_stay() {
    let rig = Rig::new(Settings {
        max_connections_per_address: 3,
        ..quick()
    });
    let mut served: Vec<_> = (0..3).map(|_| rig.connect()).collect();
    for stream in &mut served {
        assert_eq!(put(stream, BASE, b"in"), Status::Ok);
    }
    for _ in 0..20 {
        assert!(is_closed(&mut rig.connect()));
    }
    for stream in &mut served {
        assert_eq!(put(stream, BASE, b"still in"), Status::Ok);
    }
    assert_eq!(rig.endpoint.stats().ended[Ended::OverLimit], 20);
    drop(served.pop());
    until("the place is free again", || {
        rig.endpoint.stats().connections == 2
    })
    .await;
    assert_eq!(put(&mut rig.connect(), BASE, b"new"), Status::Ok);
}

/// Sends a probe, as a peer that closes soon after its answer.
async fn probe(from: IpAddr, to: SocketAddr) -> std::io::Result<Vec<u8>> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    let mut stream = socket.connect(to).await?;
    let request = handshake::encode(Some(Kind::Probe), b"{}");
    stream.write_all(&request).await?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await?;
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(reply)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_handshakes_is_answered() {
    let rig = Rig::new(quick());
    rig::allow_descriptors();
    let others = (0..75).flat_map(|_| 2..10);
    let all = (0..64).map(|_| 1).chain(others);
    let mut peers = tokio::task::JoinSet::new();
    for last in all {
        peers.spawn(probe(IpAddr::from([127, 0, 0, last]), rig.handshake));
    }
    for reply in rig::bounded(peers.join_all()).await {
        assert_eq!(reply.unwrap(), handshake::probe_reply());
    }
    assert_eq!(rig.endpoint.stats().handshakes, 664);
    assert_eq!(rig.endpoint.worst_peers(10), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn admission_is_by_address_and_its_removal_closes_connections() {
    let rig = Rig::new(quick());
    let mut stream = rig.connect();
    assert_eq!(put(&mut stream, BASE, b"x"), Status::Ok);
    rig.endpoint
        .admit(Admission::only(["127.0.0.2".parse().unwrap()]))
        .unwrap();
    assert!(is_closed(&mut stream));
    assert!(is_closed(&mut rig.connect()));
    assert!(is_closed(&mut connect(rig.handshake)));
    assert_eq!(rig.endpoint.stats().ended[Ended::NotAdmitted], 3);
    rig.endpoint
        .admit(Admission::only(["127.0.0.1".parse().unwrap()]))
        .unwrap();
    assert_eq!(put(&mut rig.connect(), BASE, b"y"), Status::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_connections_are_counted_by_address_and_cause() {
    let rig = Rig::new(hasty());
    let [honest, lost, silent] = [1, 2, 3].map(|last| IpAddr::from([127, 0, 0, last]));
    assert_eq!(
        put(&mut connect_from(honest, rig.data), BASE, b"x"),
        Status::Ok
    );
    for _ in 0..3 {
        let mut stream = connect_from(lost, rig.data);
        assert_eq!(put(&mut stream, 7, b"x"), Status::AddressRejected);
    }
    let mut half = connect_from(silent, rig.data);
    half.write_all(&[0]).unwrap();
    assert!(is_closed(&mut half));
    rig.endpoint.admit(Admission::only([honest])).unwrap();
    for _ in 0..2 {
        assert!(is_closed(&mut connect_from(silent, rig.handshake)));
    }
    let failures = |peer, cause, count| PeerFailures { peer, cause, count };
    let wanted = [
        failures(lost, Ended::BadAddress, 3),
        failures(silent, Ended::NotAdmitted, 2),
        failures(silent, Ended::HeaderDeadline, 1),
    ];
    assert_eq!(rig.endpoint.worst_peers(10), wanted);
    assert_eq!(rig.endpoint.worst_peers(1), wanted[..1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ipv6_and_wire_bases_beyond_2_to_the_58_are_served() {
    let base = (1 << 61) + (5 << 30);
    let rig = Rig::on(quick(), IpAddr::V6(Ipv6Addr::LOCALHOST), base);
    assert!(rig.name.starts_with("[::1]:"));
    let mut stream = rig.connect();
    let bytes = pattern(2, 100_000);
    assert_eq!(put(&mut stream, base + 7, &bytes), Status::Ok);
    assert!(get(&mut stream, base + 7, bytes.len()) == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_region_is_released_and_its_addresses_rejected() {
    let rig = Rig::new(quick());
    let mut idle = rig.connect();
    assert_eq!(put(&mut idle, BASE, b"x"), Status::Ok);
    let mut midway = rig.connect();
    // One segment: few bytes that follow a header alone wait below the receive low-water mark.
    let begun = [
        &header(Op::Write, Version::V2, BASE, 1 << 20)[..],
        &[7; 1000],
    ];
    midway.write_all(&begun.concat()).unwrap();
    until("the write is under way", || {
        rig.endpoint.stats().bytes_written >= 1001
    })
    .await;
    let region = rig.region.clone();
    rig::bounded(rig.endpoint.remove_region(rig.id))
        .await
        .unwrap();
    drop(rig.region);
    assert_eq!(Arc::strong_count(&region), 1);
    let _may_fail = midway.write_all(&[7; 100_000]);
    assert!(is_closed(&mut midway));
    let mut byte = [0];
    region.copy_out(1000, &mut byte).unwrap();
    assert_eq!(byte, [0]);
    assert_eq!(put(&mut idle, BASE, b"x"), Status::AddressRejected);
    assert_eq!(rig.endpoint.stats().ended[Ended::Withdrawn], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_write_never_lands_after_a_rebase() {
    let rig = Rig::new(quick());
    for round in 0..100 {
        let old = BASE + (round << 40);
        let new = BASE + ((round + 1) << 40);
        let mut late = rig.connect();
        late.write_all(&header(Op::Write, Version::V2, old, LENGTH))
            .unwrap();
        late.write_all(&vec![0xEE; 300_000]).unwrap();
        rig::bounded(rig.endpoint.rebase_region(rig.id, new))
            .await
            .unwrap();
        // The bytes of the new epoch, over those of the old one.
        rig.region.copy_in(0, &vec![0x11; 1 << 20]).unwrap();
        let _may_fail = late.write_all(&vec![0xEE; 300_000]);
        assert!(is_closed(&mut late));
        let mut there = vec![0; 1 << 20];
        rig.region.copy_out(0, &mut there).unwrap();
        assert!(there.iter().all(|byte| *byte == 0x11), "round {round}");
        let mut fresh = rig.connect();
        assert_eq!(put(&mut fresh, new, b"new"), Status::Ok);
        assert_eq!(put(&mut fresh, old, b"old"), Status::AddressRejected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_an_endpoint_closes_connections_and_releases_memory() {
    let rig = Rig::new(quick());
    let mut stream = rig.connect();
    assert_eq!(put(&mut stream, BASE, b"x"), Status::Ok);
    rig::bounded(rig.endpoint.close()).await.unwrap();
    assert!(is_closed(&mut stream));
    assert_eq!(Arc::strong_count(&rig.region), 1);
    assert!(TcpStream::connect(rig.data).is_err());
    assert!(TcpStream::connect(rig.handshake).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_an_earlier_release_passes_on_outlasts_minutes_without_packets() {
    let former = Rig::new(quick());
    let mut stream = former.connect();
    assert_eq!(put(&mut stream, BASE, b"before"), Status::Ok);
    let passed = rig::bounded(former.endpoint.pass_on(rig::TIMEOUT));
    let passed = passed.await.unwrap();
    let socket = passed[0].socket.try_clone().unwrap();
    sockopt::set_tcp_user_timeout(&socket, 25_000).unwrap();
    let rig = Rig::new(quick());
    assert_eq!(rig.endpoint.take_over(passed).unwrap(), 1);
    assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 0);
    assert_eq!(put(&mut stream, BASE, b"after"), Status::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_connection_does_not_block_others() {
    let rig = Rig::new(quick());
    let data = rig.data;
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = stop.clone();
    let busy = std::thread::spawn(move || {
        let mut stream = connect(data);
        let bytes = vec![1; 16 << 20];
        while !flag.load(std::sync::atomic::Ordering::Relaxed) {
            assert_eq!(put(&mut stream, BASE, &bytes), Status::Ok);
        }
    });
    let mut small = rig.connect();
    let mut worst = Duration::ZERO;
    for _ in 0..200 {
        let begun = Instant::now();
        assert_eq!(put(&mut small, BASE + LENGTH - 8, b"12345678"), Status::Ok);
        worst = worst.max(begun.elapsed());
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    busy.join().unwrap();
    println!("the slowest of 200 small writes: {worst:?}");
    assert!(worst < Duration::from_secs(10), "{worst:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_of_a_region_take_effect_in_one_order() {
    let settings = Settings {
        data_threads: 3,
        ..quick()
    };
    let rig = Rig::new(settings);
    let runtime = tokio::runtime::Handle::current();
    // Carries out changes of the region at the same time, each on a thread of its own.
    let at_once = |id, changes: &[Option<u64>]| {
        let start = Barrier::new(changes.len());
        let (rig, start, runtime) = (&rig, &start, &runtime);
        tokio::task::block_in_place(|| {
            std::thread::scope(|scope| {
                for change in changes {
                    scope.spawn(move || {
                        start.wait();
                        // A removed region cannot be changed.
                        let _unknown = match *change {
                            Some(base) => runtime.block_on(rig.endpoint.rebase_region(id, base)),
                            None => runtime.block_on(rig.endpoint.remove_region(id)),
                        };
                    });
                }
            });
        });
    };
    for round in 1..100 {
        let memory = rig::region(1 << 20);
        let bases = [0, 1, 2].map(|n| BASE + (round << 32) + (n << 30));
        let id = rig
            .endpoint
            .add_region(Arc::clone(&memory), bases[0])
            .unwrap();
        at_once(id, &[Some(bases[1]), Some(bases[2])]);
        let served = bases.map(|base| {
            // Accepted connections go to the data threads in turn.
            [(); 3].map(|()| put(&mut rig.connect(), base, b"x") == Status::Ok)
        });
        assert_eq!(served[0], [false; 3], "round {round}");
        assert!(
            [[false; 3], [true; 3]] == [served[1], served[2]]
                || [[true; 3], [false; 3]] == [served[1], served[2]],
            "round {round}: {served:?}"
        );
        at_once(id, &[Some(bases[0]), None]);
        assert_eq!(Arc::strong_count(&memory), 1, "round {round}");
    }
}
