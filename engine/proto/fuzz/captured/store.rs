//! Captured connections of a store client, and the functions that clients call.

use std::collections::HashMap;
use std::sync::LazyLock;

use mooncake_proto::store::ledger::{LedgerEvacuate, LedgerLoad, LedgerMount, LedgerPoll};
use mooncake_proto::store::release_0_3_13::{Visitor, visit_functions};
use mooncake_proto::store::{BareRpc, ErrorCode, Rpc};
use mooncake_proto::struct_pack::{Packed, Schema};

/// What a client of the wheel 0.3.13.post1 has sent over two connections at the same time, and what the master of that wheel
/// has answered: set-up, puts, gets, batches, an upsert, tasks, removals, the end.
pub const CAPTURED: [[&[u8]; 2]; 2] = [
    [
        include_bytes!("store_calls/set-up-requests"),
        include_bytes!("store_calls/set-up-replies"),
    ],
    [
        include_bytes!("store_calls/objects-requests"),
        include_bytes!("store_calls/objects-replies"),
    ],
];

/// Every function, also those for ledgers, by its number.
pub static FUNCTIONS: LazyLock<HashMap<u32, Function>> = LazyLock::new(|| {
    let mut functions = Functions::default();
    visit_functions(&mut functions);
    functions.rpc::<LedgerMount>();
    functions.rpc::<LedgerLoad>();
    functions.rpc::<LedgerPoll>();
    functions.rpc::<LedgerEvacuate>();
    functions.0
});

/// Checks a body. Returns whether it can be decoded.
type Check = Box<dyn Fn(&[u8]) -> bool + Send + Sync>;

pub struct Function {
    pub arguments: Check,
    pub answer: Check,
}

#[derive(Default)]
struct Functions(HashMap<u32, Function>);

impl Visitor for Functions {
    fn rpc<R: Rpc>(&mut self) {
        let function = Function {
            arguments: survives::<R::Arguments>(),
            answer: survives::<Result<R::Value, ErrorCode>>(),
        };
        self.0.insert(R::function_id(), function);
    }

    fn bare<R: BareRpc>(&mut self) {
        let function = Function {
            arguments: survives::<R::Arguments>(),
            answer: survives::<R::Answer>(),
        };
        self.0.insert(R::function_id(), function);
    }
}

/// Checks that a decoded value is decoded again from its encoding.
fn survives<T: Packed>() -> Check {
    // Once: it takes as long as some bodies.
    let schema = Schema::of::<T>();
    Box::new(move |body| {
        let read = |body: &[u8]| T::unpack(&mut schema.open(body)?);
        let write = |value: &T| {
            let mut writer = schema.begin(Vec::new(), value.longest());
            value.pack(&mut writer);
            writer.finish()
        };
        let Ok(value) = read(body) else {
            return false;
        };
        let written = write(&value);
        let again = read(&written).expect("what we write can be read");
        assert_eq!(write(&again), written);
        true
    })
}
