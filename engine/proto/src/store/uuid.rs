//! IDs of clients, segments and tasks.

use core::fmt;
use core::num::ParseIntError;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::struct_pack::{DecodeError, Node, Packed, Reader, Writer};

/// A pair of numbers, formatted as by stock Mooncake: both in decimal, separated by a dash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Uuid {
    pub first: u64,
    pub second: u64,
}

impl Uuid {
    /// Converts sixteen random bytes.
    #[must_use]
    pub fn from_random(bytes: [u8; 16]) -> Self {
        let whole = u128::from_le_bytes(bytes);
        let [first, second] = [whole >> 64, whole & u128::from(u64::MAX)]
            .map(|half| u64::try_from(half).expect("half of 128 bits fits 64"));
        Self { first, second }
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.second)
    }
}

/// Why a text is not an ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseUuidError {
    #[error("an ID is two decimal numbers separated by a dash")]
    NoDash,
    #[error("a half of the ID is not a 64-bit number: {0}")]
    Half(#[from] ParseIntError),
}

impl FromStr for Uuid {
    type Err = ParseUuidError;

    fn from_str(text: &str) -> Result<Self, ParseUuidError> {
        let (first, second) = text.split_once('-').ok_or(ParseUuidError::NoDash)?;
        Ok(Self {
            first: first.parse()?,
            second: second.parse()?,
        })
    }
}

/// Stock Mooncake copies the pair as raw memory, which affects the literal.
impl Packed for Uuid {
    const NODE: &'static Node = &Node::Plain {
        members: &[u64::NODE, u64::NODE],
        alignment: 8,
    };
    const LEAST_BYTES: usize = 16;

    fn longest(&self) -> usize {
        0
    }

    fn pack(&self, out: &mut Writer) {
        self.first.pack(out);
        self.second.pack(out);
    }

    fn unpack(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            first: u64::unpack(from)?,
            second: u64::unpack(from)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn the_text_form_is_parsed_back() {
        let id = Uuid {
            first: 17,
            second: u64::MAX,
        };
        assert_eq!(id.to_string(), "17-18446744073709551615");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("17".parse::<Uuid>(), Err(ParseUuidError::NoDash));
        assert!(matches!(
            "17-x".parse::<Uuid>(),
            Err(ParseUuidError::Half(_))
        ));
    }

    #[test]
    fn all_random_bytes_are_in_an_id() {
        let bytes = core::array::from_fn(|at| u8::try_from(at).unwrap());
        let id = Uuid::from_random(bytes);
        assert_eq!(id.first, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(id.second, 0x0706_0504_0302_0100);
    }
}
