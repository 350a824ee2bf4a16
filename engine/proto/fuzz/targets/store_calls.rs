//! Fuzzes what a client sends to a master on one connection: frames in pieces of any length, and the arguments of every
//! function, also of those for ledgers. Most inputs are edits of captured connections of a stock client.
#![no_main]

#[path = "../captured/edits.rs"]
mod edits;

use edits::edited;
use libfuzzer_sys::fuzz_target;
use mooncake_proto::coro_rpc::RequestHeader;
use mooncake_proto::store::ledger::{LedgerEvacuate, LedgerLoad, LedgerMount, LedgerPoll};
use mooncake_proto::store::release_0_3_13::{Visitor, visit_functions};
use mooncake_proto::store::{BareRpc, Rpc};
use mooncake_proto::struct_pack::{Packed, decode, encode};
use std::collections::HashMap;
use std::sync::LazyLock;

type Check = fn(&[u8]);

/// What a client of the wheel 0.3.13.post1 has sent: set-up, puts, gets, batches, an upsert, removals, the end.
const CAPTURED: [&[u8]; 3] = [
    include_bytes!("../captured/store_calls/connection-0"),
    include_bytes!("../captured/store_calls/connection-1"),
    include_bytes!("../captured/store_calls/connection-2"),
];

static FUNCTIONS: LazyLock<HashMap<u32, Check>> = LazyLock::new(|| {
    let mut functions = Functions::default();
    visit_functions(&mut functions);
    functions.rpc::<LedgerMount>();
    functions.rpc::<LedgerLoad>();
    functions.rpc::<LedgerPoll>();
    functions.rpc::<LedgerEvacuate>();
    functions.0
});

#[derive(Default)]
struct Functions(HashMap<u32, Check>);

impl Visitor for Functions {
    fn rpc<R: Rpc>(&mut self) {
        self.0.insert(R::function_id(), survives::<R::Arguments>);
    }

    fn bare<R: BareRpc>(&mut self) {
        self.0.insert(R::function_id(), survives::<R::Arguments>);
    }
}

/// Checks that decoded arguments are decoded again from their encoding.
fn survives<T: Packed>(body: &[u8]) {
    if let Ok(read) = decode::<T>(body) {
        let written = encode(&read);
        let again: T = decode(&written).expect("what we write can be read");
        assert_eq!(encode(&again), written);
    }
}

fuzz_target!(|input: &[u8]| {
    let [which, step, rest @ ..] = input else {
        return;
    };
    let captured = CAPTURED.get(usize::from(which % 4));
    let stream = captured.map_or(rest.to_vec(), |captured| edited(captured, rest));
    let mut received: Vec<u8> = Vec::new();
    for piece in stream.chunks(usize::from(*step).max(1)) {
        received.extend(piece);
        while let Some((header, rest)) = received.split_first_chunk() {
            let Ok(header) = RequestHeader::decode(*header) else {
                return;
            };
            let read = RequestHeader::decode(header.encode());
            assert_eq!(read, Ok(header));
            let Some(body) = rest.get(..header.length as usize) else {
                break;
            };
            if let Some(check) = FUNCTIONS.get(&header.function_id) {
                check(body);
            }
            received.drain(..RequestHeader::BYTES + body.len());
        }
    }
    // A request whose end is missing.
    if let Some((header, rest)) = received.split_first_chunk()
        && let Ok(header) = RequestHeader::decode(*header)
        && let Some(check) = FUNCTIONS.get(&header.function_id)
    {
        check(rest);
    }
});
