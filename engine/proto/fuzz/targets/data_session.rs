//! Fuzzes a peer's session with the target of the data protocol: requests of versions 1 and 2, whole, edited or random, arrive in
//! pieces over a socket while the target gets turns, passes the connection on, and ends it.
//!
//! Memory, answers and the number of requests are those of a model that carries out the same bytes one after the other. A
//! session that was cut short has carried out a prefix of them.
#![no_main]

#[path = "../captured/edits.rs"]
mod edits;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use edits::edited;
use libfuzzer_sys::fuzz_target;
use mooncake_engine::transport::tcp::target::{PATIENCE, Target};
use mooncake_engine::{Before, Ended, IdleConnection, PageSize, Region};
use mooncake_proto::frame::{HEADER_LENGTH, Header, Op, Status, Version};
use mooncake_sys::mem::memfd;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const BASE: u64 = 1 << 58;
/// Above the least size of a payload that is received in portions.
const LENGTH: u64 = 160 << 10;
/// Most bytes of a session.
const MOST: usize = 512 << 10;
/// What an engine of the wheel 0.3.13.post1 has sent to a target of [`LENGTH`] bytes at [`BASE`] that announces version 1, or 2:
/// four writes and three reads of 1 to 720 bytes, then four writes at once.
const CAPTURED: [&[u8]; 2] = [
    include_bytes!("../captured/data_session/version-1"),
    include_bytes!("../captured/data_session/version-2"),
];
/// Most bytes that an engine takes over with a connection: 16 headers.
const MOST_UNREAD: usize = 16 * HEADER_LENGTH;

static MEMORY: LazyLock<Arc<Region>> = LazyLock::new(|| {
    let fd = memfd::create("fuzz", LENGTH, PageSize::Base).expect("a machine with memory");
    Arc::new(Region::map(fd, LENGTH, PageSize::Base).expect("a machine with memory"))
});

/// The bytes of the region before a session.
static BEFORE: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..LENGTH).map(|at| (at * 31 % 251) as u8).collect());

/// What the peer's bytes do, in their order.
struct Model<'a> {
    stream: &'a [u8],
    /// The place of the next request.
    at: usize,
    memory: Vec<u8>,
    answers: Vec<u8>,
    requests: u64,
    rejected: bool,
}

impl<'a> Model<'a> {
    fn new(stream: &'a [u8]) -> Self {
        Self {
            stream,
            at: 0,
            memory: BEFORE.clone(),
            answers: Vec::new(),
            requests: 0,
            rejected: false,
        }
    }

    /// Returns the next request, with its range if that is served.
    fn next(&self) -> Option<(Header, Option<Range<usize>>)> {
        let header = Header::decode(*self.stream[self.at..].first_chunk()?);
        let begin = header.address.checked_sub(BASE);
        let end = begin.and_then(|begin| begin.checked_add(header.size));
        let range = begin
            .zip(end)
            .filter(|(begin, end)| begin < end && *end <= LENGTH);
        let range = range.map(|(begin, end)| begin as usize..end as usize);
        Some((header, range))
    }

    /// Carries out the next request as far as its bytes are there. Returns whether another one may follow.
    fn step(&mut self) -> bool {
        let Some((header, range)) = self.next().filter(|_| !self.rejected) else {
            return false;
        };
        self.at += HEADER_LENGTH;
        let with_status = header.version == Version::V2;
        let Some(range) = range else {
            self.rejected = true;
            if with_status {
                self.answers.extend(Status::AddressRejected.encode());
            }
            return false;
        };
        let size = range.len();
        if header.op == Op::Read {
            if with_status {
                self.answers.extend(Status::Ok.encode());
            }
            self.answers.extend(&self.memory[range]);
            self.requests += 1;
            return true;
        }
        let there = size.min(self.stream.len() - self.at);
        let payload = &self.stream[self.at..self.at + there];
        self.memory[range.start..range.start + there].copy_from_slice(payload);
        self.at += there;
        if there < size {
            return false;
        }
        if with_status {
            self.answers.extend(Status::Ok.encode());
        }
        self.requests += 1;
        true
    }

    /// Returns whether these bytes are in the region after some prefix of the stream.
    fn has_been(mut self, found: &[u8]) -> bool {
        loop {
            let before = self.memory.clone();
            let range = self.next().and_then(|(header, range)| {
                range.filter(|_| header.op == Op::Write && !self.rejected)
            });
            let more = self.step();
            let matches = match range {
                None => found == before,
                Some(range) => {
                    let written = range
                        .clone()
                        .take_while(|at| found[*at] == self.memory[*at]);
                    let until = range.start + written.count();
                    found[..range.start] == before[..range.start]
                        && found[until..] == before[until..]
                }
            };
            if matches || !more {
                return matches || found == self.memory;
            }
        }
    }
}

/// A connection between a peer and one of two targets.
struct Session {
    targets: [Target; 2],
    serving: usize,
    peer: Option<TcpStream>,
    passed: Option<UnboundedReceiver<IdleConnection>>,
    sent: usize,
    received: Vec<u8>,
    /// The peer has received the end of the connection.
    closed: bool,
    /// Bytes of the stream may not be carried out.
    cut: bool,
    now: Instant,
}

impl Session {
    fn deliver(&mut self, stream: &[u8], most: usize) {
        let Some(peer) = &mut self.peer else { return };
        let piece = &stream[self.sent..stream.len().min(self.sent.saturating_add(most))];
        match peer.write(piece) {
            Ok(count) => self.sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The target has closed.
            Err(_) => self.sent = stream.len(),
        }
    }

    fn receive(&mut self) {
        let Some(peer) = &mut self.peer else { return };
        let mut bytes = [0; 16 << 10];
        while !self.closed {
            match peer.read(&mut bytes) {
                Ok(0) => self.closed = true,
                Ok(count) => self.received.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.closed = true,
            }
        }
    }

    fn turn(&mut self, longest: Duration) {
        let target = &mut self.targets[self.serving];
        let ready = target.ready(longest);
        target.work(&ready, self.now);
        let one = self
            .passed
            .as_mut()
            .and_then(|passed| passed.try_recv().ok());
        if let Some(one) = one {
            self.passed = None;
            self.serving ^= 1;
            self.targets[self.serving].take_over(one);
        }
    }

    fn pass_on(&mut self) {
        if self.passed.is_none() {
            let (to, passed) = unbounded_channel();
            self.passed = Some(passed);
            self.targets[self.serving].pass_on(to);
            self.turn(Duration::ZERO);
        }
    }

    /// Ends the peer's side, by a reset or after what it has sent.
    fn end(&mut self, reset: bool) {
        self.cut = true;
        self.sent = usize::MAX;
        let Some(peer) = &self.peer else { return };
        if reset {
            self.reset();
        } else {
            // Fails if the target has closed.
            let _closed = peer.shutdown(Shutdown::Write);
        }
    }

    /// No local port waits for a peer that has ended.
    fn reset(&mut self) {
        if let Some(peer) = self.peer.take() {
            let linger = rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO));
            linger.expect("a socket");
        }
    }

    fn requests(&self) -> u64 {
        self.targets.iter().map(|one| one.stats().requests).sum()
    }

    fn connections(&self) -> u64 {
        self.targets.iter().map(|one| one.stats().connections).sum()
    }

    /// Gives turns until a condition holds.
    fn until(&mut self, what: &str, done: impl Fn(&mut Self) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
            self.turn(Duration::from_millis(1));
            self.receive();
        }
    }
}

fn memory() -> Vec<u8> {
    let mut bytes = vec![0; LENGTH as usize];
    MEMORY
        .copy_out(0, &mut bytes)
        .expect("the region is mapped");
    bytes
}

/// Returns requests of six bytes each: kind, address, size, and a byte of the payload.
fn requests(input: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    for one in input.chunks_exact(6) {
        let number = |at: usize| u64::from(u16::from_le_bytes([one[at], one[at + 1]]));
        let is = |bit: u8| one[0] & 1 << bit != 0;
        let mut size = number(3);
        if is(2) {
            size %= 32;
        }
        if is(3) {
            size += LENGTH - 32 - (64 << 10);
        }
        if is(4) && is(5) {
            size = u64::MAX - size;
        }
        // A few bytes before the region to a few bytes after it.
        let offset = (number(1) * 3 % (LENGTH + 64)).wrapping_sub(if is(6) { 32 } else { 0 });
        let header = Header {
            size,
            address: BASE.wrapping_add(offset),
            op: if is(0) { Op::Write } else { Op::Read },
            version: if is(1) { Version::V2 } else { Version::V1 },
        };
        stream.extend(header.encode());
        // A payload that is too short goes on with the next header.
        let payload = size.min(LENGTH) as usize - usize::from(is(7)).min(size as usize);
        if is(0) && stream.len() + payload <= MOST {
            stream.extend((0..payload).map(|at| one[5].wrapping_add(at as u8)));
        }
    }
    stream
}

/// Returns how many bytes of the stream a former engine has received, at most `wanted`, and whether its successor serves the
/// connection.
fn unread(stream: &[u8], wanted: usize) -> (usize, bool) {
    let count = wanted.min(stream.len());
    let headers = stream[..count].chunks(HEADER_LENGTH).rev().skip(1);
    let mut headers = headers.filter_map(|one| one.first_chunk().copied().map(Header::decode));
    let served = count <= MOST_UNREAD && headers.all(|header| header.op == Op::Read);
    (count, served)
}

fuzz_target!(|input: &[u8]| {
    let [flags, ahead, steps, rest @ ..] = input else {
        return;
    };
    let (steps, body) = rest.split_at(usize::from(steps % 64).min(rest.len()));
    let stream = match flags & 3 {
        0 => body.to_vec(),
        1 => edited(CAPTURED[usize::from(flags >> 7)], body),
        _ => requests(body),
    };
    let ahead = if flags & 4 == 0 {
        0
    } else {
        usize::from(*ahead) * 2
    };
    let (ahead, served) = unread(&stream, ahead);

    MEMORY.copy_in(0, &BEFORE).expect("the region is mapped");
    let mut targets = [(); 2].map(|()| Target::new(Arc::clone(&MEMORY), BASE));
    let (peer, mut one) = targets[0].accepted();
    peer.set_nonblocking(true).expect("a socket");
    one.before = Before {
        unread: stream[..ahead].to_vec(),
        proven: flags & 8 != 0,
    };
    targets[0].take_over(one);
    let mut session = Session {
        targets,
        serving: 0,
        peer: Some(peer),
        passed: None,
        sent: ahead,
        received: Vec::new(),
        closed: false,
        cut: false,
        now: Instant::now(),
    };
    let mut withdrawn = None;
    for step in steps {
        match (step % 8, step / 8) {
            (0, more) => session.deliver(&stream, 1 + usize::from(more)),
            (1, more) => session.deliver(&stream, HEADER_LENGTH * (1 + usize::from(more))),
            (2, more) => session.deliver(&stream, 3000 * (1 + usize::from(more))),
            (3 | 4, _) => session.turn(Duration::ZERO),
            (5, _) => session.receive(),
            (6, _) => session.pass_on(),
            (_, 0) => session.end(false),
            (_, 1) => session.end(true),
            (_, 2) => {
                session.now += 2 * PATIENCE;
                session.cut = true;
                session.turn(Duration::ZERO);
            }
            (_, 3) => {
                session.targets.iter_mut().for_each(Target::withdraw);
                session.cut = true;
                withdrawn.get_or_insert_with(memory);
            }
            (_, _) => session.deliver(&stream, usize::MAX),
        }
        if session.sent == usize::MAX {
            break;
        }
    }
    session.until("the peer's bytes are sent", |session| {
        session.deliver_all(&stream);
        session.sent >= stream.len() || session.closed
    });

    let mut model = Model::new(if served { &stream } else { &[] });
    while model.step() {}
    if !session.cut {
        session.until("the answers of whole requests", |session| {
            let answered = session.received.len() == model.answers.len() || session.closed;
            answered && session.requests() == model.requests && memory() == model.memory
        });
        assert_eq!(session.requests(), model.requests);
        assert!(
            memory() == model.memory,
            "other bytes than those of the peer"
        );
        if model.rejected || !served {
            session.until("the end of the session", |session| {
                session.connections() == 0
            });
            let ended = session
                .targets
                .iter()
                .map(|one| one.stats().ended[Ended::BadAddress]);
            assert_eq!(ended.sum::<u64>(), u64::from(model.rejected));
        } else {
            assert!(!session.closed && session.connections() == 1);
            assert_eq!(session.received.len(), model.answers.len());
        }
    }
    session.reset();
    session.until("the end of the connection", |session| {
        session.connections() == 0
    });
    let found = memory();
    if let Some(before) = withdrawn {
        assert!(
            found == before,
            "bytes were written after the region was withdrawn"
        );
    } else {
        let answers = &model.answers;
        assert!(answers.starts_with(&session.received), "wrong answers");
    }
    if session.cut {
        let prefix = Model::new(model.stream).has_been(&found);
        assert!(prefix, "the memory is that of no prefix of the stream");
    } else {
        assert!(
            found == model.memory,
            "bytes were written after the last answer"
        );
    }
});

impl Session {
    fn deliver_all(&mut self, stream: &[u8]) {
        if self.sent < stream.len() {
            self.deliver(stream, usize::MAX);
        }
    }
}
