//! Fuzzes response headers, and message bodies with the right hash, also arguments and answers of the calls for ledgers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mooncake_proto::coro_rpc::{Failure, ResponseHeader};
use mooncake_proto::store::Rpc;
use mooncake_proto::store::ledger::{LedgerEvacuate, LedgerLoad, LedgerMount, LedgerPoll};
use mooncake_proto::store::release_0_3_13::{
    GetReplicaListResponse, PingResponse, Segment, TaskAssignment, TaskPayload,
};
use mooncake_proto::struct_pack::{Packed, decode, encode, type_hash};
use std::fmt::Debug;

fuzz_target!(|input: &[u8]| {
    if let Some((header, body)) = input.split_first_chunk() {
        if let Ok(header) = ResponseHeader::decode(*header) {
            let _ = Failure::decode(header.code, body);
        }
    }
    let Some((&choice, rest)) = input.split_first() else {
        return;
    };
    match choice % 10 {
        0 => survives::<GetReplicaListResponse>(rest),
        1 => survives::<PingResponse>(rest),
        2 => survives::<Segment>(rest),
        3 => survives::<Vec<String>>(rest),
        4 => survives::<(u16, String)>(rest),
        5 => call::<LedgerMount>(rest),
        6 => call::<LedgerLoad>(rest),
        7 => call::<LedgerPoll>(rest),
        8 => call::<LedgerEvacuate>(rest),
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
