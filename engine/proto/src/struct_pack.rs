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
mod tuples;
mod writer;

use alloc::vec::Vec;

pub(crate) use declare::{packed_enum, packed_struct};
pub(crate) use literal::md5_head;
pub use literal::{Node, TypeHash, literal_text};
pub use packed::{Blob, Packed};
pub use reader::{DecodeError, Reader};
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
    if *T::NODE == Node::Void {
        return Vec::new();
    }
    let width = LengthWidth::for_longest(value.longest());
    let hash = type_hash::<T>().0;
    let mut writer = Writer::new(width);
    if width == LengthWidth::ONE {
        writer.bytes(&hash.to_le_bytes());
    } else {
        writer.bytes(&(hash | METAINFO_FOLLOWS).to_le_bytes());
        writer.bytes(&[width.code() << 3]);
    }
    value.pack(&mut writer);
    writer.finish()
}

/// Decodes a body in either form. Bytes after the payload are ignored, as by stock peers. Allocations are
/// proportional to `body`, whatever lengths it contains.
///
/// # Errors
/// [`DecodeError::Schema`] if the sender's type differs; the other variants if the bytes are malformed.
pub fn decode<T: Packed>(body: &[u8]) -> Result<T, DecodeError> {
    if *T::NODE == Node::Void {
        return T::unpack(&mut Reader::new(body, LengthWidth::ONE));
    }
    let mut prefix = Reader::new(body, LengthWidth::ONE);
    let sent = u32::from_le_bytes(prefix.array("type hash")?);
    let mut width = LengthWidth::ONE;
    let mut literal = None;
    if sent & METAINFO_FOLLOWS != 0 {
        let [metainfo] = prefix.array("metainfo")?;
        if metainfo & !KNOWN_METAINFO != 0 {
            return Err(DecodeError::Metainfo(metainfo));
        }
        width = LengthWidth::from_code(metainfo >> 3);
        if metainfo & LITERAL_FOLLOWS != 0 {
            literal = Some(prefix.until_nul()?);
        }
    }
    let expected = type_hash::<T>();
    let got = TypeHash(sent & !METAINFO_FOLLOWS);
    let literal_differs = literal.is_some_and(|sent| sent != T::NODE.literal());
    if got != expected || literal_differs {
        return Err(DecodeError::Schema {
            expected,
            got,
            literal: literal.map(Into::into),
        });
    }
    T::unpack(&mut Reader::new(prefix.rest(), width))
}

#[cfg(test)]
mod tests;
