//! struct_pack, the body encoding of the stock store RPC: a 32-bit type hash, then little-endian fields. The
//! layout is that of the stock wheel 0.3.13.post1.
//!
//! A body is `hash u32 | metainfo u8? | literal, NUL? | payload`. Bit 0 of the hash is set if the
//! metainfo byte follows. Its bit 2 is set if the type literal follows; its bits 3 and 4 are the width of
//! every length in the message. Encoding uses the compact form (no literal); decoding accepts both.

mod containers;
mod declare;
mod literal;
mod packed;
mod reader;
mod schema;
mod tuples;
mod writer;

use alloc::vec::Vec;

pub(crate) use declare::{packed_enum, packed_struct};
pub(crate) use literal::md5_head;
pub use literal::{Node, TypeHash, literal_text};
pub use packed::{Blob, Packed};
pub use reader::{DecodeError, Reader};
pub use schema::Schema;
pub use writer::{LengthWidth, Writer};

/// Bit 0 of the sent hash: a metainfo byte follows.
const METAINFO_FOLLOWS: u32 = 1;
/// Metainfo bit 2: the type literal and a NUL follow.
const LITERAL_FOLLOWS: u8 = 0b100;
/// Metainfo bits that this protocol uses. Bits 0 and 1 announce `compatible<>` members, which no store
/// message has.
const KNOWN_METAINFO: u8 = 0b1_1100;

/// Returns the type hash of `T`, with bit 0 clear. It is the only version check of a message: a change of
/// any nested field changes it.
#[must_use]
pub fn type_hash<T: Packed>() -> TypeHash {
    T::NODE.hash()
}

/// Encodes `value` in the compact form. The unit type has no body at all.
#[must_use]
pub fn encode<T: Packed>(value: &T) -> Vec<u8> {
    let mut writer = Schema::of::<T>().begin(Vec::new(), value.longest());
    value.pack(&mut writer);
    writer.finish()
}

/// Decodes a body in either form. Bytes after the payload are ignored, as by stock peers. Allocations are
/// proportional to `body`, whatever lengths it contains.
///
/// # Errors
/// [`DecodeError::Schema`] if the sender's type differs; the other variants if the bytes are malformed.
pub fn decode<T: Packed>(body: &[u8]) -> Result<T, DecodeError> {
    T::unpack(&mut Schema::of::<T>().open(body)?)
}

#[cfg(test)]
mod tests;
