//! The stock Mooncake Store protocol: what its messages are made of. One module per schema
//! generation, since every minor release changes messages while calling itself "2.0.0".

mod error_code;
pub mod generation_0_3_13;
mod uuid;

use crate::coro_rpc::master_function_id;
use crate::struct_pack::{Packed, TypeHash, type_hash};

pub use error_code::ErrorCode;
pub use uuid::{ParseUuidError, Uuid};

/// What `ServiceReady` has answered since 0.3.9: a necessary condition, never a sufficient one.
pub const PROTOCOL_VERSION: &str = "2.0.0";

/// One function of the master. Its answer on the wire is a `result<Value, ErrorCode>`.
pub trait Rpc {
    /// The C++ method's name.
    const METHOD: &'static str;
    type Arguments: Packed + Send + Sync + 'static;
    type Value: Packed + Send + 'static;

    #[must_use]
    fn function_id() -> u32 {
        master_function_id(Self::METHOD)
    }

    /// The hash under which the arguments are sent; one that the master does not share is refused.
    #[must_use]
    fn arguments_hash() -> TypeHash {
        type_hash::<Self::Arguments>()
    }

    /// The hash that the answer must carry.
    #[must_use]
    fn answer_hash() -> TypeHash {
        type_hash::<Result<Self::Value, ErrorCode>>()
    }
}
