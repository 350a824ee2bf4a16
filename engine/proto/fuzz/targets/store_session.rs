//! Fuzzes our master: two connections of clients send it requests in pieces, which change the same index. Most inputs are edits of
//! captured connections of a stock client, in any interleaving.
//!
//! Each whole request has one reply, in order, which the client can decode. What is no request ends its connection only.
#![no_main]

#[path = "../captured/edits.rs"]
mod edits;
#[path = "../captured/store.rs"]
mod store;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use edits::edited;
use libfuzzer_sys::fuzz_target;
use mooncake_master::admission::Admission;
use mooncake_master::index::{Index, Moment, Settings};
use mooncake_master::leadership::Leadership;
use mooncake_master::server::{Limits, Master, listen};
use mooncake_proto::coro_rpc::{Failure, RequestHeader, ResponseHeader};
use store::{CAPTURED, FUNCTIONS};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// Limit of each wait. Above that of a master that waits for the owner of a ledger.
const PATIENCE: Duration = Duration::from_secs(30);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .event_interval(1)
        .build();
    runtime.expect("a machine with descriptors")
});

/// One port for all sessions.
static LISTENER: LazyLock<(std::net::TcpListener, SocketAddr)> = LazyLock::new(|| {
    let _guard = RUNTIME.enter();
    let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    (listener.into_std().expect("a socket"), address)
});

/// A client's end of a connection.
struct Client {
    stream: TcpStream,
    requests: Vec<u8>,
    sent: usize,
    received: Vec<u8>,
    closed: bool,
}

impl Client {
    async fn connect(requests: Vec<u8>) -> Self {
        let stream = TcpStream::connect(LISTENER.1).await.expect("it listens");
        // No local port waits for a connection that has ended.
        let linger = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
        linger.expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Self {
            stream,
            requests,
            sent: 0,
            received: Vec::new(),
            closed: false,
        }
    }

    async fn send(&mut self, most: usize) {
        let end = self.requests.len().min(self.sent.saturating_add(most));
        let piece = &self.requests[self.sent..end];
        // Fails if the master has closed the connection.
        let _closed = timeout(PATIENCE, self.stream.write_all(piece)).await;
        self.sent = end;
    }

    /// Receives what is there.
    fn receive(&mut self) {
        let mut bytes = [0; 16 << 10];
        while !self.closed {
            match self.stream.try_read(&mut bytes) {
                Ok(0) => self.closed = true,
                Ok(count) => self.received.extend(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.closed = true,
            }
        }
    }

    /// Receives until each request that was sent has its reply, or the end. Returns how many have the code of success.
    async fn finish(&mut self) -> usize {
        let (expected, ends) = requests(&self.requests);
        loop {
            let (answered, successes) = replies(&self.received, &expected);
            let all = answered == expected.len();
            if self.closed || (all && !ends) {
                assert!(
                    self.closed == ends,
                    "the end of a connection without a cause"
                );
                return successes;
            }
            let mut bytes = [0; 4096];
            let read = timeout(PATIENCE, self.stream.read(&mut bytes)).await;
            match read.expect("a reply, or the end of the connection") {
                Ok(count) if count > 0 => self.received.extend(&bytes[..count]),
                _ => self.closed = true,
            }
        }
    }
}

/// A whole request.
struct Expected {
    sequence: u32,
    function: u32,
    /// The function has arguments of another type.
    is_refused: bool,
}

/// Returns the whole requests, and whether a header is none after them.
fn requests(mut stream: &[u8]) -> (Vec<Expected>, bool) {
    let mut expected = Vec::new();
    while let Some((header, rest)) = stream.split_first_chunk() {
        let Ok(header) = RequestHeader::decode(*header) else {
            return (expected, true);
        };
        if header.length > Limits::default().frame_bytes {
            return (expected, true);
        }
        let Some((body, others)) = rest.split_at_checked(header.length as usize) else {
            break;
        };
        let function = FUNCTIONS.get(&header.function_id);
        expected.push(Expected {
            sequence: header.sequence,
            function: header.function_id,
            is_refused: function.is_none_or(|function| !(function.arguments)(body)),
        });
        stream = others;
    }
    (expected, false)
}

/// Checks the replies to these requests. Returns their number, and that of those with the code of success.
fn replies(mut stream: &[u8], expected: &[Expected]) -> (usize, usize) {
    let (mut answered, mut successes) = (0, 0);
    while let Some((header, rest)) = stream.split_first_chunk() {
        let header = ResponseHeader::decode(*header).expect("a header");
        let Some((body, others)) = rest.split_at_checked(header.length as usize) else {
            break;
        };
        let request = expected.get(answered).expect("a request for each reply");
        assert_eq!(header.sequence, request.sequence);
        if header.code == 0 {
            assert!(!request.is_refused, "arguments of another type");
            let function = &FUNCTIONS[&request.function];
            assert!((function.answer)(body), "an answer of another type");
            successes += 1;
        } else {
            Failure::decode(header.code, body).expect("a failure");
        }
        answered += 1;
        stream = others;
    }
    (answered, successes)
}

fn turn(index: &mut Index, now: Moment) {
    index.tick(now);
    while index.step(now) {}
}

/// One session. Returns how many requests of each connection were not refused.
async fn session(requests: [Vec<u8>; 2], steps: &[u8]) -> [usize; 2] {
    let mut index = Index::new(Settings::default(), 1);
    // A young master keeps removals back for as long as ledgers may come.
    for tenth in 0..100 {
        index.tick(Moment::default().after(Duration::from_millis(100) * tenth));
    }
    let limits = Limits::default();
    let master = Master::new(index, limits, Admission::Anyone, Leadership::alone());
    let master = Arc::new(master);
    let listener = LISTENER.0.try_clone().expect("a machine with descriptors");
    let listener = TcpListener::from_std(listener).expect("a socket");
    let accepting = tokio::spawn(Arc::clone(&master).accept(listener));
    // Instead of the upkeep, which rests between its turns.
    let index = Arc::clone(&master);
    let turns = tokio::spawn(async move {
        loop {
            index.with_index(turn);
            tokio::task::yield_now().await;
        }
    });
    let [first, second] = requests;
    let mut clients = [Client::connect(first).await, Client::connect(second).await];
    for step in steps {
        let client = &mut clients[usize::from(step % 2)];
        match (step / 2) % 4 {
            0 => client.receive(),
            1 => client.send(1 + usize::from(step / 8)).await,
            2 => client.send(64 * (1 + usize::from(step / 8))).await,
            _ => tokio::task::yield_now().await,
        }
    }
    let mut successes = [0; 2];
    for (client, successes) in clients.iter_mut().zip(&mut successes) {
        client.send(usize::MAX).await;
        *successes = client.finish().await;
    }
    // Others are served.
    let ready = CAPTURED[0][0][..RequestHeader::BYTES].to_vec();
    assert_eq!(Client::connect(ready).await.finish_one().await, 1);
    drop(clients);
    accepting.abort();
    turns.abort();
    let ended = async {
        while Arc::strong_count(&master) > 1 {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, ended)
        .await
        .expect("the end of each connection");
    successes
}

impl Client {
    async fn finish_one(mut self) -> usize {
        self.send(usize::MAX).await;
        self.finish().await
    }
}

fn check_captured() {
    let all = CAPTURED.map(|[requests, _]| requests.to_vec());
    let counts = all.each_ref().map(|one| requests(one).0.len());
    // The segment is mounted before the first put.
    let successes = RUNTIME.block_on(session(all, &[4 + 8 * 8, 4 + 8 * 8]));
    assert_eq!(successes, counts);
}

fuzz_target!(init: check_captured(), |input: &[u8]| {
    let [flags, split, count, rest @ ..] = input else {
        return;
    };
    let (steps, rest) = rest.split_at(usize::from(count % 32).min(rest.len()));
    let (first, second) = rest.split_at(usize::from(*split).min(rest.len()));
    let stream = |captured: usize, bytes: &[u8], is_raw: bool| {
        if is_raw {
            bytes.to_vec()
        } else {
            edited(CAPTURED[captured][0], bytes)
        }
    };
    let requests = [
        stream(0, first, flags & 7 == 0),
        stream(1, second, flags & 0x38 == 0),
    ];
    RUNTIME.block_on(session(requests, steps));
});
