//! The trait of message values, and its implementations for scalars and strings.

use alloc::string::String;
use alloc::vec::Vec;

use super::{DecodeError, Node, Reader, Writer};

/// A value that can be part of a struct_pack message.
pub trait Packed: Sized {
    /// The type description, from which literal and hash are derived.
    const NODE: &'static Node;
    /// Fewest bytes of a value, which limits the allocation for a received count.
    const LEAST_BYTES: usize;

    /// Returns the longest container or string length inside the value.
    fn longest(&self) -> usize;
    fn pack(&self, out: &mut Writer);
    /// # Errors
    /// [`DecodeError`] if the bytes are not a value of this type.
    fn unpack(from: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

macro_rules! numbers {
    ($($rust:ty => $node:ident, $bytes:literal;)*) => {$(
        impl Packed for $rust {
            const NODE: &'static Node = &Node::$node;
            const LEAST_BYTES: usize = $bytes;

            fn longest(&self) -> usize {
                0
            }

            fn pack(&self, out: &mut Writer) {
                out.bytes(&self.to_le_bytes());
            }

            fn unpack(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                from.array(stringify!($rust)).map(Self::from_le_bytes)
            }
        }
    )*};
}

numbers! {
    i32 => I32, 4;
    u32 => U32, 4;
    i64 => I64, 8;
    u64 => U64, 8;
    u16 => U16, 2;
    u8 => U8, 1;
}

impl Packed for bool {
    const NODE: &'static Node = &Node::Bool;
    const LEAST_BYTES: usize = 1;

    fn longest(&self) -> usize {
        0
    }

    fn pack(&self, out: &mut Writer) {
        out.bytes(&[u8::from(*self)]);
    }

    fn unpack(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        flag(from, "bool")
    }
}

/// Reads a byte that must be 0 or 1.
pub(super) fn flag(from: &mut Reader<'_>, part: &'static str) -> Result<bool, DecodeError> {
    match from.array(part)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [value] => Err(DecodeError::OutOfRange { part, value }),
    }
}

/// `void`: an RPC without arguments, or the value of a `result<()>`.
impl Packed for () {
    const NODE: &'static Node = &Node::Void;
    const LEAST_BYTES: usize = 0;

    fn longest(&self) -> usize {
        0
    }

    fn pack(&self, _out: &mut Writer) {}

    fn unpack(_from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl Packed for String {
    const NODE: &'static Node = &Node::String;
    const LEAST_BYTES: usize = 1;

    fn longest(&self) -> usize {
        self.len()
    }

    fn pack(&self, out: &mut Writer) {
        out.length(self.len());
        out.bytes(self.as_bytes());
    }

    fn unpack(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = from.run("string")?;
        core::str::from_utf8(bytes)
            .map(Self::from)
            .map_err(|_| DecodeError::NotUtf8)
    }
}

/// A C++ string, which may not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Blob(pub Vec<u8>);

impl Packed for Blob {
    const NODE: &'static Node = &Node::String;
    const LEAST_BYTES: usize = 1;

    fn longest(&self) -> usize {
        self.0.len()
    }

    fn pack(&self, out: &mut Writer) {
        out.length(self.0.len());
        out.bytes(&self.0);
    }

    fn unpack(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        from.run("bytes").map(|bytes| Self(bytes.to_vec()))
    }
}
