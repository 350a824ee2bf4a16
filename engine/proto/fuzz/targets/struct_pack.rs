//! Fuzzes response headers, and message bodies with the right hash, also arguments and answers of the calls for ledgers. Some
//! inputs are edits of what a stock master has answered.
#![no_main]

#[path = "../captured/edits.rs"]
mod edits;

use std::fmt::Debug;

use edits::edited;
use libfuzzer_sys::fuzz_target;
use mooncake_proto::coro_rpc::{Failure, ResponseHeader};
use mooncake_proto::store::ledger::{LedgerEvacuate, LedgerLoad, LedgerMount, LedgerPoll};
use mooncake_proto::store::release_0_3_13::{
    GetReplicaListResponse, PingResponse, Segment, StorageConfig, TaskAssignment, TaskPayload,
};
use mooncake_proto::store::{ErrorCode, Rpc};
use mooncake_proto::struct_pack::{Packed, decode, encode, type_hash};

/// Replies of the master of the wheel 0.3.13.post1.
const REPLIES: &[u8] = include_bytes!("../captured/store_calls/set-up-replies");

/// The body of one of [`REPLIES`].
fn reply(number: u32) -> &'static [u8] {
    let mut rest = REPLIES;
    while let Some((header, bodies)) = rest.split_first_chunk() {
        let header = ResponseHeader::decode(*header).expect("a captured header");
        let (body, others) = bodies.split_at(header.length as usize);
        if header.sequence == number {
            return body;
        }
        rest = others;
    }
    panic!("the replies end before {number}");
}

/// Edits one of them.
fn edit(which: u8, edits: &[u8]) {
    match which % 4 {
        0 => answer::<GetReplicaListResponse>(reply(5), edits),
        1 => answer::<PingResponse>(reply(3), edits),
        2 => answer::<StorageConfig>(reply(1), edits),
        _ => answer::<Vec<TaskAssignment>>(reply(11), edits),
    }
}

fn answer<T: Packed + PartialEq + Debug>(captured: &[u8], edits: &[u8]) {
    let read = decode::<Result<T, ErrorCode>>(&edited(captured, edits));
    assert!(!edits.is_empty() || matches!(read, Ok(Ok(_))));
    if let Ok(read) = read {
        assert_eq!(decode(&encode(&read)).as_ref(), Ok(&read));
    }
}

fn check_captured() {
    (0..4).for_each(|which| edit(which, &[]));
}

fuzz_target!(init: check_captured(), |input: &[u8]| {
    if let Some((header, body)) = input.split_first_chunk() {
        if let Ok(header) = ResponseHeader::decode(*header) {
            let _ = Failure::decode(header.code, body);
        }
    }
    let Some((&choice, rest)) = input.split_first() else {
        return;
    };
    match choice % 11 {
        0 => survives::<GetReplicaListResponse>(rest),
        1 => survives::<PingResponse>(rest),
        2 => survives::<Segment>(rest),
        3 => survives::<Vec<String>>(rest),
        4 => survives::<(u16, String)>(rest),
        5 => call::<LedgerMount>(rest),
        6 => call::<LedgerLoad>(rest),
        7 => call::<LedgerPoll>(rest),
        8 => call::<LedgerEvacuate>(rest),
        9 => {
            if let Some((which, edits)) = rest.split_first() {
                edit(*which, edits);
            }
        }
        _ => {
            survives::<TaskAssignment>(rest);
            if let Ok(task) = with_hash(rest) {
                let _ = TaskPayload::parse(&task);
            }
        }
    }
});

/// Fuzzes arguments and answer of a call.
fn call<R: Rpc>(rest: &[u8])
where
    R::Arguments: PartialEq + Debug,
    R::Value: PartialEq + Debug,
{
    survives::<R::Arguments>(rest);
    survives::<R::Value>(rest);
}

/// Checks that a decoded value is decoded again from its encoding.
fn survives<T: Packed + PartialEq + Debug>(rest: &[u8]) {
    if let Ok(read) = with_hash::<T>(rest) {
        let again: T = decode(&encode(&read)).expect("what we write can be read");
        assert_eq!(again, read);
    }
}

/// Prepends the type's hash, which a fuzzer cannot find. Its first bit is set if a metainfo byte follows.
fn with_hash<T: Packed>(rest: &[u8]) -> Result<T, mooncake_proto::struct_pack::DecodeError> {
    let (flags, payload) = rest
        .split_first()
        .map_or((0, rest), |(flags, rest)| (*flags, rest));
    let hash = type_hash::<T>().0 | u32::from(flags & 1);
    decode(&[&hash.to_le_bytes(), payload].concat())
}
