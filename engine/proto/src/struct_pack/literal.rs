//! Type literals: the bytes that describe a type, and their hash.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use md5::{Digest, Md5};

/// A node of a type description, with its children.
#[derive(Debug, PartialEq, Eq)]
pub enum Node {
    I32,
    U32,
    I64,
    U64,
    U8,
    U16,
    Bool,
    String,
    Void,
    Vector(&'static Self),
    Map(&'static Self, &'static Self),
    Optional(&'static Self),
    Expected(&'static Self, &'static Self),
    Variant(&'static [&'static Self]),
    /// A reflected struct or a tuple: members in order.
    Struct(&'static [&'static Self]),
    /// A struct that stock Mooncake copies as raw memory; its literal also contains packing and alignment,
    /// in bytes (below 127: one digit).
    Plain {
        members: &'static [&'static Self],
        alignment: u8,
    },
}

const END: u8 = 0xff;
/// The last digit of a number in a literal is biased so that it can never be NUL.
const LAST_DIGIT_BIAS: u8 = 129;

impl Node {
    /// Returns the literal without the final NUL.
    #[must_use]
    pub fn literal(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(&mut bytes);
        bytes
    }

    /// Returns the first four bytes of the literal's MD5, big-endian, with bit 0 cleared.
    #[must_use]
    pub fn hash(&self) -> TypeHash {
        TypeHash(md5_head(&self.literal()) & !1)
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::I32 => out.push(0x01),
            Self::U32 => out.push(0x02),
            Self::I64 => out.push(0x03),
            Self::U64 => out.push(0x04),
            Self::U8 => out.push(0x06),
            Self::U16 => out.push(0x08),
            Self::Bool => out.push(0x0b),
            Self::String => out.extend([0x80, 0x0c]),
            Self::Void => out.push(0xfa),
            Self::Vector(element) => append(out, 0x84, &[element]),
            Self::Map(key, value) => append(out, 0x82, &[key, value]),
            Self::Optional(inner) => append(out, 0x85, &[inner]),
            Self::Expected(value, error) => append(out, 0x87, &[value, error]),
            Self::Variant(alternatives) => {
                append(out, 0x86, alternatives);
                out.push(END);
            }
            Self::Struct(members) => {
                append(out, 0xfd, members);
                out.push(END);
            }
            Self::Plain { members, alignment } => {
                append(out, 0xfd, members);
                let digit = alignment.saturating_add(LAST_DIGIT_BIAS);
                out.extend([digit, digit, END]);
            }
        }
    }
}

fn append(out: &mut Vec<u8>, tag: u8, children: &[&Node]) {
    out.push(tag);
    for child in children {
        child.append_to(out);
    }
}

/// Returns the first four bytes of an MD5, big-endian, as used in type hashes and function IDs.
pub(crate) fn md5_head(bytes: &[u8]) -> u32 {
    let digest = Md5::digest(bytes);
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

/// The hash of a type literal, with bit 0 clear. Displayed as eight hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TypeHash(pub u32);

impl fmt::Display for TypeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl fmt::Debug for TypeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Formats a literal as hexadecimal text.
#[must_use]
pub fn literal_text(literal: &[u8]) -> String {
    use fmt::Write as _;
    let mut text = String::with_capacity(literal.len() * 2);
    for byte in literal {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
    }
    text
}
