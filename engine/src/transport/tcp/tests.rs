//! Served connections without a data thread: what happens within one turn.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use proto::frame::{Header, Op, STATUS_LENGTH, Status};
use rustix::net::sockopt;
use sys::mem::{PageSize, memfd};
use sys::net::socket::unacknowledged;

use super::target::{ENDPOINT, PATIENCE, Target};
use super::*;
use crate::stats::EndpointStats;

const BASE: u64 = 1 << 58;
const BYTES: usize = 2 << 20;
const LENGTH: u64 = BYTES as u64;
const REGION: RegionId = target::REGION;

impl Target {
    fn serving() -> Self {
        Self::new(region(), BASE)
    }

    /// Waits for descriptors that have work.
    fn wait(&mut self) -> Vec<Ready> {
        let ready = self.ready(PATIENCE);
        assert!(!ready.is_empty(), "nothing has happened");
        ready
    }

    /// Does the work of these descriptors.
    fn serve(&mut self, ready: Vec<Ready>) {
        self.work(&ready, Instant::now());
    }

    /// One turn of a connection that has work.
    fn turn(&mut self) {
        let ready = self.wait();
        self.serve(ready);
    }

    fn turns_until(&mut self, done: impl Fn(EndpointStats) -> bool) {
        while !done(self.stats()) {
            self.turn();
        }
    }

    fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory().copy_out(offset, &mut bytes).unwrap();
        bytes
    }
}

fn region() -> Arc<Region> {
    let fd = memfd::create("tcp", LENGTH, PageSize::Base).unwrap();
    Arc::new(Region::map(fd, LENGTH, PageSize::Base).unwrap())
}

fn header(op: Op, version: Version, address: u64, size: u64) -> Vec<u8> {
    let header = Header {
        size,
        address,
        op,
        version,
    };
    header.encode().to_vec()
}

fn read(at: u64, size: u64) -> Vec<u8> {
    header(Op::Read, Version::V2, BASE + at, size)
}

fn write(at: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(Op::Write, Version::V2, BASE + at, payload.len() as u64);
    bytes.extend(payload);
    bytes
}

/// Receives what has arrived.
fn receive(peer: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let count = peer.read(&mut bytes).unwrap();
    bytes.truncate(count);
    bytes
}

fn exactly(peer: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    peer.read_exact(&mut bytes).unwrap();
    bytes
}

/// Bytes of an answer for which a peer that receives nothing has no space, but the send buffer of the target has.
const ANSWER: usize = 192 << 10;

/// A peer that has requested such an answer, and does not receive it; and the socket of the target.
fn unreceived(target: &mut Target) -> (TcpStream, OwnedFd) {
    let (mut peer, one) = target.accepted();
    let socket = one.socket.try_clone().unwrap();
    sockopt::set_socket_send_buffer_size(&socket, 1 << 20).unwrap();
    target.take_over(one);
    peer.write_all(&read(0, ANSWER as u64)).unwrap();
    target.turns_until(|stats| stats.requests == 1);
    (peer, socket)
}

impl Target {
    /// Lets all timers that are set become due, so many times after `begun`.
    fn expire(&mut self, begun: Instant, times: u32) {
        let after = PATIENCE + Duration::from_secs(1);
        self.work(&[], begun + times * after);
    }
}

const OK: [u8; STATUS_LENGTH] = *b"\0\0\0\0VTCM";

#[test]
fn pipelined_requests_are_served_in_one_turn_and_answered_in_one_send() {
    let mut target = Target::serving();
    target.memory().copy_in(0, b"0123456789abcdef").unwrap();
    let mut peer = target.connect();
    let writes: Vec<_> = (0..16).map(|at| write(100 + at, b"A")).collect();
    peer.write_all(&writes.concat()).unwrap();
    target.turn();
    assert_eq!(target.stats().requests, 16);
    assert_eq!(receive(&mut peer), OK.repeat(16));
    assert_eq!(target.bytes(100, 17), *b"AAAAAAAAAAAAAAAA\0");

    let reads: Vec<_> = (0..16).map(|at| read(at, 1)).collect();
    peer.write_all(&reads.concat()).unwrap();
    target.turn();
    assert_eq!(target.stats().requests, 32);
    let answers = b"0123456789abcdef".map(|byte| [&OK[..], &[byte]].concat());
    assert_eq!(receive(&mut peer), answers.concat());
}

#[test]
fn a_single_request_takes_one_turn_and_none_is_left_over() {
    let mut target = Target::serving();
    let mut peer = target.connect();
    for at in 0..4 {
        peer.write_all(&write(at, b"x")).unwrap();
        target.turn();
        assert_eq!(receive(&mut peer), OK);
        peer.write_all(&read(at, 1)).unwrap();
        target.turn();
        assert_eq!(receive(&mut peer), [&OK[..], b"x"].concat());
        let mut ready = Vec::new();
        target
            .reactor
            .wait(Some(Duration::ZERO), &mut ready)
            .unwrap();
        assert!(ready.is_empty(), "{ready:?}");
    }
}

#[test]
fn reads_and_writes_of_the_same_bytes_take_effect_in_their_order() {
    let mut target = Target::serving();
    let mut peer = target.connect();
    let mut requests = Vec::new();
    let mut wanted = Vec::new();
    for round in b'a'..=b'z' {
        let mut payload = vec![round; 700];
        requests.extend(write(5, &payload));
        // Two reads, so that more headers than one are expected where a write follows.
        requests.extend(read(5, 700).repeat(2));
        payload.splice(..0, OK);
        wanted.extend(OK);
        wanted.extend(payload.repeat(2));
    }
    for one_at_a_time in [false, true] {
        let mut sending = peer.try_clone().unwrap();
        let requests = requests.clone();
        let parts = if one_at_a_time { 997 } else { requests.len() };
        let sender = std::thread::spawn(move || {
            for part in requests.chunks(parts) {
                sending.write_all(part).unwrap();
            }
        });
        let before = target.stats().requests;
        target.turns_until(|stats| stats.requests == before + 3 * 26);
        sender.join().unwrap();
        assert!(exactly(&mut peer, wanted.len()) == wanted);
    }
}

#[test]
fn a_write_behind_a_read_waits_until_the_read_is_sent() {
    let mut target = Target::serving();
    let mut peer = target.connect();
    target.memory().copy_in(0, &[1; BYTES]).unwrap();
    // More than the buffers of both sockets hold together.
    let reads = 8;
    peer.write_all(&read(0, LENGTH).repeat(reads)).unwrap();
    peer.write_all(&write(0, &[2; 1000])).unwrap();
    // The peer reads nothing.
    for _ in 0..100 {
        let mut ready = Vec::new();
        let wait = Some(Duration::from_millis(1));
        target.reactor.wait(wait, &mut ready).unwrap();
        target.serve(ready);
    }
    assert!(target.stats().requests < reads as u64);
    assert_eq!(target.bytes(0, 1000), [1; 1000]);
    let reader = std::thread::spawn(move || {
        let answer = STATUS_LENGTH + BYTES;
        let bytes = exactly(&mut peer, reads * answer);
        let payloads = bytes.chunks(answer).map(|one| &one[STATUS_LENGTH..]);
        let unchanged = payloads.flatten().all(|byte| *byte == 1);
        (unchanged, exactly(&mut peer, STATUS_LENGTH))
    });
    target.turns_until(|stats| stats.requests == reads as u64 + 1);
    assert_eq!(reader.join().unwrap(), (true, OK.to_vec()));
    assert_eq!(target.bytes(0, 1000), [2; 1000]);
}

#[test]
fn a_turn_is_bounded_by_requests_and_by_bytes() {
    let mut target = Target::serving();
    let mut peer = target.connect();
    peer.write_all(&read(0, 1).repeat(1000)).unwrap();
    let mut served = 0;
    while served < 1000 {
        target.turn();
        let now = target.stats().requests;
        assert!(now - served <= 64, "{}", now - served);
        served = now;
    }
    exactly(&mut peer, 1000 * (STATUS_LENGTH + 1));
    let mut sending = peer.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        sending.write_all(&read(0, 65_536).repeat(16)).unwrap();
        exactly(&mut sending, 16 * (STATUS_LENGTH + 65_536));
    });
    let mut moved = target.stats().bytes_read;
    while target.stats().requests < 1016 {
        target.turn();
        let now = target.stats().bytes_read;
        assert!(now - moved <= TURN_BYTES, "{}", now - moved);
        moved = now;
    }
    sender.join().unwrap();
}

#[test]
fn a_small_request_is_served_before_connections_that_had_more_than_their_share() {
    const SIZE: u64 = 64 << 10;
    const READS: u64 = 64;
    let mut target = Target::serving();
    let mut large = target.connect();
    let reader = std::thread::spawn(move || {
        let mut sending = large.try_clone().unwrap();
        sending
            .write_all(&read(0, SIZE).repeat(usize::try_from(READS).unwrap()))
            .unwrap();
        let answer = STATUS_LENGTH + usize::try_from(SIZE).unwrap();
        let firsts = (0..READS).map(|_| exactly(&mut large, answer)[STATUS_LENGTH]);
        firsts.collect::<Vec<_>>()
    });
    let busy = |target: &Target| target.tcp.connections.values().any(|one| one.is_busy);
    while !busy(&target) {
        target.turn();
    }
    let mut small = target.connect();
    small.write_all(&write(0, &[7])).unwrap();
    let mut ready = Vec::new();
    while ready.len() < 2 {
        ready = target.wait();
    }
    // The large one first.
    ready.sort_by_key(|one| !target.tcp.connections[connection_key(one.token.0)].is_busy);
    let before = target.stats().bytes_read;
    target.serve(ready);
    assert!(target.stats().bytes_read - before <= SHARE_BYTES);
    target.turns_until(|stats| stats.requests == READS + 1);
    let firsts = reader.join().unwrap();
    let begun = usize::try_from(before.div_ceil(SIZE)).unwrap();
    assert!(begun > 0 && begun < firsts.len());
    assert!(firsts[..begun].iter().all(|first| *first == 0));
    assert!(
        firsts[begun..].iter().all(|first| *first == 7),
        "{begun} of {firsts:?}"
    );
}

#[test]
fn answers_before_a_rejected_address_are_sent_and_requests_behind_it_are_not_carried_out() {
    for version in [Version::V1, Version::V2] {
        let mut target = Target::serving();
        let mut peer = target.connect();
        let requests = [
            write(0, b"first"),
            read(0, 5),
            header(Op::Read, version, 7, 1),
            write(0, b"later"),
        ];
        peer.write_all(&requests.concat()).unwrap();
        target.turn();
        let mut wanted = [OK, OK].concat();
        wanted.extend(b"first");
        if version == Version::V2 {
            wanted.extend(Status::AddressRejected.encode());
        }
        assert_eq!(exactly(&mut peer, wanted.len()), wanted);
        assert_eq!(target.bytes(0, 5), *b"first");
        assert_eq!(target.stats().ended[Ended::BadAddress], 1);
        assert_eq!(target.limit.count(), 0, "the connection is closed");
    }
}

#[test]
fn requests_that_wait_in_the_target_are_rejected_after_their_region_is_withdrawn() {
    let mut target = Target::serving();
    let other = RegionId(3);
    let (memory, other_base) = (region(), BASE * 2);
    target.tcp.add_region(ENDPOINT, other, &memory, other_base);
    let mut peer = target.connect();
    let reads = 8;
    let other_read = |size| header(Op::Read, Version::V2, other_base, size);
    // The first one shows that there are more, so that all headers are received.
    peer.write_all(&[other_read(1), other_read(LENGTH).repeat(reads)].concat())
        .unwrap();
    // Without payload: closing with unread bytes would discard the answers.
    peer.write_all(&header(Op::Write, Version::V2, BASE, 4))
        .unwrap();
    for _ in 0..100 {
        let mut ready = Vec::new();
        let wait = Some(Duration::from_millis(1));
        target.reactor.wait(wait, &mut ready).unwrap();
        target.serve(ready);
    }
    target.tcp.withdraw(ENDPOINT, REGION, true);
    assert_eq!(target.limit.count(), 1, "no request in it has begun");
    let reader = std::thread::spawn(move || {
        exactly(&mut peer, STATUS_LENGTH + 1);
        exactly(&mut peer, reads * (STATUS_LENGTH + BYTES));
        exactly(&mut peer, STATUS_LENGTH)
    });
    target.turns_until(|stats| stats.ended[Ended::BadAddress] == 1);
    assert_eq!(
        reader.join().unwrap(),
        Status::AddressRejected.encode().to_vec()
    );
}

#[test]
fn queued_answers_of_a_withdrawn_region_are_not_sent() {
    let mut target = Target::serving();
    let mut peer = target.connect();
    peer.write_all(&read(0, LENGTH).repeat(8)).unwrap();
    target.turn();
    assert_eq!(target.limit.count(), 1);
    target.tcp.withdraw(ENDPOINT, REGION, true);
    assert_eq!(target.limit.count(), 0, "the connection is closed");
    assert_eq!(Arc::strong_count(target.memory()), 1);
}

#[test]
fn bytes_of_a_given_up_write_do_not_land_after_a_later_request_of_the_same_turn() {
    let mut target = Target::serving();
    let mut first = target.connect();
    let mut second = target.connect();
    // Half of a write, of which a part is received.
    let old = write(0, &[1; 1000]);
    first.write_all(&old[..100]).unwrap();
    target.turn();
    first.write_all(&old[100..500]).unwrap();
    second.write_all(&write(5000, b"x")).unwrap();
    let mut ready = target.wait();
    while ready.len() < 2 {
        ready = target.wait();
    }
    // The connection of the later write is served first.
    ready.sort_by_key(|one| std::cmp::Reverse(one.token.0));
    // Epoll has reported; only now the first write is given up, and its range written by another request.
    first.shutdown(Shutdown::Both).unwrap();
    drop(first);
    second.write_all(&write(0, &[2; 1000])).unwrap();
    target.serve(ready);
    assert_eq!(exactly(&mut second, 16), OK.repeat(2));
    assert!(target.bytes(0, 1000) == [2; 1000], "late bytes");
    assert_eq!(target.stats().ended[Ended::Broken], 1);
}

#[test]
fn complete_requests_before_a_broken_one_are_answered() {
    let mut target = Target::serving();
    let mut peer = target.connect();
    peer.write_all(&write(0, b"whole")).unwrap();
    peer.write_all(&read(0, 5)).unwrap();
    peer.write_all(&write(0, b"half")[..26]).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    target.turns_until(|stats| stats.ended[Ended::Broken] == 1);
    let mut there = Vec::new();
    // Ends with a reset if the target had not received everything.
    let _reset = peer.read_to_end(&mut there);
    assert_eq!(there, [&OK[..], &OK, b"whole"].concat());
    assert_eq!(target.bytes(0, 5), *b"whole");
}

#[test]
fn a_large_payload_wakes_the_thread_in_portions_and_its_last_bytes_as_they_arrive() {
    let mut target = Target::serving();
    let mut peer = target.connect();
    let size = 256 << 10;
    let request = write(0, &vec![7; size]);
    let (begin, end) = request.split_at(request.len() - 65_536);
    peer.write_all(&begin[..1024]).unwrap();
    target.turns_until(|stats| stats.bytes_written == 1000);
    let low_water = |target: &Target| {
        let mut roles = target.tcp.connections.values().map(|one| &one.role);
        match roles.next() {
            Some(Role::Served(served)) => served.low_water,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(low_water(&target) as usize, size - 1000);
    peer.write_all(&begin[1024..]).unwrap();
    let mut ready = Vec::new();
    target
        .reactor
        .wait(Some(Duration::ZERO), &mut ready)
        .unwrap();
    assert!(ready.is_empty(), "less than the portion");
    // As its timer does.
    let key = target.tcp.connections.keys().next().unwrap();
    target.tcp.turn(key, Cause::Due, Instant::now());
    assert_eq!(low_water(&target), 1);
    peer.write_all(end).unwrap();
    target.turns_until(|stats| stats.requests == 1);
    assert_eq!(exactly(&mut peer, STATUS_LENGTH), OK);
}

#[test]
fn connections_are_passed_on_between_requests_and_served_on_without_a_lost_byte() {
    let mut former = Target::serving();
    let mut silent = former.connect();
    let mut begun = former.connect();
    let begun_read = read(3, 2);
    begun.write_all(&begun_read[..5]).unwrap();
    former.turn();
    let mut writing = former.connect();
    let payload = vec![b'w'; 100];
    let request = [write(50, &payload), read(50, 1), read(51, 1)].concat();
    writing.write_all(&request[..60]).unwrap();
    former.turn();

    let (to, mut passed) = mpsc::unbounded_channel();
    former.tcp.pass_on(ENDPOINT, to);
    former.tcp.progress(Instant::now(), &mut Vec::new());
    let mut connections: Vec<_> = [passed.try_recv(), passed.try_recv()]
        .map(Result::unwrap)
        .into();
    assert_eq!(
        passed.try_recv().unwrap_err(),
        mpsc::error::TryRecvError::Empty,
        "a request is in progress"
    );
    writing.write_all(&request[60..]).unwrap();
    former.turn();
    connections.push(passed.try_recv().unwrap());
    assert_eq!(
        passed.try_recv().unwrap_err(),
        mpsc::error::TryRecvError::Disconnected,
        "none is left"
    );
    assert_eq!(exactly(&mut writing, OK.len()), OK);
    assert_eq!(former.bytes(50, 100), payload);
    assert_eq!(former.stats().requests, 1, "the reads have not begun");
    assert_eq!(former.limit.count(), 0);

    let proven: Vec<_> = connections.iter().map(|one| one.before.proven).collect();
    assert_eq!(proven, [false, false, true]);
    let mut successor = Target::serving();
    successor.memory().copy_in(3, b"ab").unwrap();
    successor.memory().copy_in(50, b"cd").unwrap();
    for one in connections {
        successor.take_over(one);
    }
    drop(former);
    successor.turns_until(|stats| stats.requests == 2);
    let answers = [&OK[..], b"c", &OK[..], b"d"].concat();
    assert_eq!(exactly(&mut writing, answers.len()), answers);
    begun.write_all(&begun_read[5..]).unwrap();
    silent.write_all(&read(4, 1)).unwrap();
    successor.turns_until(|stats| stats.requests == 4);
    let answer = [&OK[..], b"ab"].concat();
    assert_eq!(exactly(&mut begun, answer.len()), answer);
    let answer = [&OK[..], b"b"].concat();
    assert_eq!(exactly(&mut silent, answer.len()), answer);
}

#[test]
fn requests_that_have_not_begun_are_left_to_the_successor() {
    let mut former = Target::serving();
    let mut peer = former.connect();
    let payload = vec![b'x'; 64 << 10];
    let requests: Vec<_> = (0..4).map(|_| write(0, &payload)).collect();
    peer.write_all(&requests.concat()).unwrap();
    let ready = former.wait();
    let (to, mut passed) = mpsc::unbounded_channel();
    former.tcp.pass_on(ENDPOINT, to);
    // Epoll had reported it before.
    former.serve(ready);
    let one = passed.try_recv().unwrap();
    assert_eq!(former.stats().requests, 0);
    let mut successor = Target::serving();
    successor.take_over(one);
    successor.turns_until(|stats| stats.requests == 4);
    assert_eq!(exactly(&mut peer, 4 * OK.len()), OK.repeat(4));
    assert_eq!(former.bytes(0, 1), [0]);
    assert_eq!(successor.bytes(0, 1), [b'x']);
}

#[test]
fn a_peer_that_acknowledges_no_byte_of_its_answer_is_disconnected_with_a_reset() {
    let mut target = Target::serving();
    let (mut peer, _) = unreceived(&mut target);
    let begun = Instant::now();
    target.expire(begun, 1);
    assert_eq!(target.stats().connections, 1);
    target.expire(begun, 2);
    assert_eq!(target.stats().connections, 0);
    assert_eq!(target.stats().ended[Ended::Stalled], 1);
    let end = peer.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn a_peer_that_receives_its_answer_slowly_stays_connected_and_may_then_be_idle() {
    let mut target = Target::serving();
    let (mut peer, socket) = unreceived(&mut target);
    let begun = Instant::now();
    let mut left = ANSWER + OK.len();
    for times in 1..=2 {
        target.expire(begun, times);
        exactly(&mut peer, ANSWER / 2);
        left -= ANSWER / 2;
    }
    exactly(&mut peer, left);
    while unacknowledged(socket.as_fd()).unwrap() > 0 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    target.expire(begun, 3);
    assert_eq!(target.tcp.next_deadline(), None);
    peer.write_all(&read(0, 1)).unwrap();
    target.turns_until(|stats| stats.requests == 2);
    assert_eq!(exactly(&mut peer, OK.len() + 1)[..OK.len()], OK);
    assert_eq!(target.stats().ended[Ended::Stalled], 0);
}

#[test]
fn answers_of_a_former_process_without_acknowledgements_end_the_connection() {
    let mut former = Target::serving();
    let (mut peer, _) = unreceived(&mut former);
    let (to, mut passed) = mpsc::unbounded_channel();
    former.pass_on(to);
    let mut successor = Target::serving();
    successor.take_over(passed.try_recv().unwrap());
    let begun = Instant::now();
    for times in 1..=2 {
        assert_eq!(successor.stats().connections, 1);
        successor.expire(begun, times);
    }
    assert_eq!(successor.stats().ended[Ended::Stalled], 1);
    assert!(peer.read_to_end(&mut Vec::new()).is_err());
}
