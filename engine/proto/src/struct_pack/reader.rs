//! Reads payload bytes. Every length is checked against the remaining bytes before an allocation.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;

use super::{LengthWidth, TypeHash, literal_text};

/// Why a body cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the body ends inside its {part}: {wanted} bytes needed, {left} left")]
    Truncated {
        part: &'static str,
        wanted: u64,
        left: usize,
    },
    #[error(
        "the received type has hash {got}, expected {expected}{}",
        literal.as_deref().map(sent_type).unwrap_or_default()
    )]
    Schema {
        expected: TypeHash,
        got: TypeHash,
        /// The first 1024 bytes of the type literal of the sender, if it has sent one.
        literal: Option<Box<[u8]>>,
    },
    #[error("metainfo byte {0:#04x} announces members that no store message has")]
    Metainfo(u8),
    #[error("the type literal is not terminated")]
    EndlessLiteral,
    #[error("{value} is not a value of {part}")]
    OutOfRange { part: &'static str, value: u8 },
    #[error("a string is not UTF-8")]
    NotUtf8,
    #[error(
        "its {part} has {length} elements, more than the {left} that its message may still have"
    )]
    TooManyElements {
        part: &'static str,
        length: usize,
        left: usize,
    },
}

fn sent_type(literal: &[u8]) -> String {
    format!(" (received type: {})", literal_text(literal))
}

/// A cursor in one payload.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    width: LengthWidth,
    /// Elements of containers that the message may still have.
    elements: usize,
}

impl<'a> Reader<'a> {
    #[must_use]
    pub fn new(bytes: &'a [u8], width: LengthWidth) -> Self {
        Self {
            bytes,
            width,
            elements: usize::MAX,
        }
    }

    /// Limits the elements in all containers of the message together. Without a limit an element may take more
    /// memory than it has bytes.
    #[must_use]
    pub fn with_most_elements(self, elements: usize) -> Self {
        Self { elements, ..self }
    }

    /// Returns the unread bytes.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// Reads `N` bytes; `part` names them in the error.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn array<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N], DecodeError> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<N>() else {
            return Err(self.truncated(part, N as u64));
        };
        self.bytes = rest;
        Ok(*head)
    }

    /// Reads length-prefixed bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn run(&mut self, part: &'static str) -> Result<&'a [u8], DecodeError> {
        let length = self.bounded(part, 1)?;
        let (head, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        Ok(head)
    }

    /// Reads a number of elements, each at least `element_bytes` long. A number that the rest of the body
    /// cannot contain is an error, so the result is safe for an allocation.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`]; [`DecodeError::TooManyElements`].
    pub fn length(
        &mut self,
        part: &'static str,
        element_bytes: usize,
    ) -> Result<usize, DecodeError> {
        let length = self.bounded(part, element_bytes)?;
        let left = self.elements;
        self.elements = left
            .checked_sub(length)
            .ok_or(DecodeError::TooManyElements { part, length, left })?;
        Ok(length)
    }

    fn bounded(&mut self, part: &'static str, element_bytes: usize) -> Result<usize, DecodeError> {
        let mut wide = [0_u8; 8];
        let count = self.width.bytes();
        let Some((head, rest)) = self.bytes.split_at_checked(count) else {
            return Err(self.truncated(part, count as u64));
        };
        wide[..count].copy_from_slice(head);
        self.bytes = rest;
        let length = u64::from_le_bytes(wide);
        let wanted = length.saturating_mul(element_bytes as u64);
        match usize::try_from(wanted) {
            Ok(needed) if needed <= rest.len() => Ok(needed / element_bytes.max(1)),
            _ => Err(self.truncated(part, wanted)),
        }
    }

    pub(super) fn until_nul(&mut self) -> Result<&'a [u8], DecodeError> {
        let end = self.bytes.iter().position(|&byte| byte == 0);
        let (head, rest) = end
            .and_then(|end| self.bytes.split_at_checked(end))
            .ok_or(DecodeError::EndlessLiteral)?;
        self.bytes = &rest[1..];
        Ok(head)
    }

    fn truncated(&self, part: &'static str, wanted: u64) -> DecodeError {
        DecodeError::Truncated {
            part,
            wanted,
            left: self.bytes.len(),
        }
    }
}
