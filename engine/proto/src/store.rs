//! Messages of the stock Mooncake Store protocol. One module per release: every minor release changes
//! messages, while the protocol version stays "2.0.0".

mod error_code;
pub mod ledger;
pub mod release_0_3_13;
mod uuid;

use crate::coro_rpc::master_function_id;
use crate::struct_pack::{Packed, TypeHash, type_hash};

pub use error_code::ErrorCode;
pub use uuid::{ParseUuidError, Uuid};

/// The answer of `ServiceReady` since 0.3.9; not sufficient to identify a release.
pub const PROTOCOL_VERSION: &str = "2.0.0";

/// A function of the master. Its answer on the wire is a `result<Value, ErrorCode>`.
pub trait Rpc {
    /// The name of the C++ method.
    const METHOD: &'static str;
    type Arguments: Packed + Send + Sync + 'static;
    type Value: Packed + Send + 'static;

    #[must_use]
    fn function_id() -> u32 {
        master_function_id(Self::METHOD)
    }

    /// Returns the type hash of the arguments; the master rejects an unknown one.
    #[must_use]
    fn arguments_hash() -> TypeHash {
        type_hash::<Self::Arguments>()
    }

    /// Returns the expected type hash of the answer.
    #[must_use]
    fn answer_hash() -> TypeHash {
        type_hash::<Result<Self::Value, ErrorCode>>()
    }
}

/// A function whose answer is not one `result`: a list with a result for each key, or a number.
pub trait BareRpc {
    /// The name of the C++ method.
    const METHOD: &'static str;
    type Arguments: Packed + Send + Sync + 'static;
    type Answer: Packed + Send + 'static;

    #[must_use]
    fn function_id() -> u32 {
        master_function_id(Self::METHOD)
    }

    /// Returns the type hash of the arguments.
    #[must_use]
    fn arguments_hash() -> TypeHash {
        type_hash::<Self::Arguments>()
    }

    /// Returns the type hash of the answer.
    #[must_use]
    fn answer_hash() -> TypeHash {
        type_hash::<Self::Answer>()
    }
}
