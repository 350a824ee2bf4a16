//! Fuzzes a connection between a client and a master: requests and replies in pieces of any length, with the arguments and
//! the answer of every function, also of those for ledgers. A reply belongs to a request by its number, as in `mooncake-store`.
//! Most inputs are edits of captured connections between a stock client and a stock master.
#![no_main]

#[path = "../captured/edits.rs"]
mod edits;
#[path = "../captured/store.rs"]
mod store;

use std::collections::HashMap;
use std::sync::LazyLock;

use edits::edited;
use libfuzzer_sys::fuzz_target;
use mooncake_proto::coro_rpc::{Failure, RequestHeader, ResponseHeader};
use store::{CAPTURED, FUNCTIONS};

/// The requests of each captured connection.
static WAITING: LazyLock<[HashMap<u32, u32>; 2]> = LazyLock::new(|| {
    CAPTURED.map(|[requests, _]| {
        let mut session = Session::default();
        deliver(requests, 1, |received| session.request(received));
        session.waiting
    })
});

/// What both ends of a connection know.
#[derive(Default)]
struct Session {
    /// The function of each request without a reply, by the request's number.
    waiting: HashMap<u32, u32>,
    /// Bodies that could not be decoded, and replies without a request.
    faults: usize,
}

impl Session {
    /// Reads the first request. Returns its length; `None` if it is not complete, or ends the connection.
    fn request(&mut self, received: &[u8]) -> Option<usize> {
        let (header, rest) = received.split_first_chunk()?;
        let header = RequestHeader::decode(*header).ok()?;
        assert_eq!(RequestHeader::decode(header.encode()), Ok(header));
        let body = rest.get(..header.length as usize)?;
        if let Some(function) = FUNCTIONS.get(&header.function_id) {
            self.faults += usize::from(!(function.arguments)(body));
        }
        self.waiting.insert(header.sequence, header.function_id);
        Some(RequestHeader::BYTES + body.len())
    }

    /// The same of a reply.
    fn reply(&mut self, received: &[u8]) -> Option<usize> {
        let (header, rest) = received.split_first_chunk()?;
        let header = ResponseHeader::decode(*header).ok()?;
        assert_eq!(ResponseHeader::decode(header.encode()), Ok(header));
        let body = rest.get(..header.length as usize)?;
        let Some(function) = self.waiting.remove(&header.sequence) else {
            self.faults += 1;
            return None;
        };
        let decoded = match (header.code, FUNCTIONS.get(&function)) {
            (0, Some(function)) => (function.answer)(body),
            (0, None) => false,
            (code, _) => Failure::decode(code, body).is_ok(),
        };
        self.faults += usize::from(!decoded);
        Some(ResponseHeader::BYTES + body.len())
    }
}

/// Delivers a stream in pieces. Returns what is left at its end.
fn deliver(stream: &[u8], step: usize, mut next: impl FnMut(&[u8]) -> Option<usize>) -> Vec<u8> {
    let mut received = Vec::new();
    for piece in stream.chunks(step) {
        received.extend(piece);
        while let Some(length) = next(&received) {
            received.drain(..length);
        }
    }
    received
}

fn check_captured() {
    for [requests, replies] in CAPTURED {
        let mut session = Session::default();
        let cut = deliver(requests, 1, |received| session.request(received));
        let late = deliver(replies, 1, |received| session.reply(received));
        let whole = cut.is_empty() && late.is_empty() && session.waiting.is_empty();
        assert!(whole && session.faults == 0, "a captured connection");
    }
}

fuzz_target!(init: check_captured(), |input: &[u8]| {
    let [which, step, split, rest @ ..] = input else {
        return;
    };
    let (first, second) = rest.split_at(usize::from(*split).min(rest.len()));
    let number = usize::from(which >> 7);
    let [requests, replies] = CAPTURED[number];
    let mut session = Session::default();
    let [requests, replies] = match which % 4 {
        0 => [edited(requests, rest), Vec::new()],
        1 => {
            session.waiting.clone_from(&WAITING[number]);
            [Vec::new(), edited(replies, rest)]
        }
        2 => [edited(requests, first), edited(replies, second)],
        _ => [first.to_vec(), second.to_vec()],
    };
    let step = usize::from(*step).max(1);
    let cut = deliver(&requests, step, |received| session.request(received));
    let _late = deliver(&replies, step, |received| session.reply(received));
    // A request whose end is missing.
    if let Some((header, rest)) = cut.split_first_chunk()
        && let Ok(header) = RequestHeader::decode(*header)
        && let Some(function) = FUNCTIONS.get(&header.function_id)
    {
        (function.arguments)(rest);
    }
});
