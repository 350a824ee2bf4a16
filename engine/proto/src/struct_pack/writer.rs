//! Writes payload bytes, with one length width per message.

use alloc::vec::Vec;

/// Width of every container and string length in one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthWidth {
    /// Logarithm of the bytes, to base 2.
    code: u8,
}

impl LengthWidth {
    /// One byte.
    pub const ONE: Self = Self { code: 0 };

    /// Returns the smallest width for the longest length of the message.
    #[must_use]
    pub fn for_longest(longest: usize) -> Self {
        let code = match longest {
            0..=0xff => 0,
            0x100..=0xffff => 1,
            0x1_0000..=0xffff_ffff => 2,
            _ => 3,
        };
        Self { code }
    }

    /// Decodes metainfo bits 3 and 4, shifted down; higher bits are ignored.
    #[must_use]
    pub fn from_code(code: u8) -> Self {
        Self { code: code & 0b11 }
    }

    pub(super) fn code(self) -> u8 {
        self.code
    }

    pub(super) fn bytes(self) -> usize {
        1 << self.code
    }
}

/// Collects the bytes of one message.
pub struct Writer {
    bytes: Vec<u8>,
    width: LengthWidth,
}

impl Writer {
    /// Appends to `bytes`.
    #[must_use]
    pub fn after(bytes: Vec<u8>, width: LengthWidth) -> Self {
        Self { bytes, width }
    }

    /// Returns the number of bytes so far, those that were there before included.
    #[must_use]
    pub fn written(&self) -> usize {
        self.bytes.len()
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes the length of a container or string. The width fits the longest one.
    pub fn length(&mut self, length: usize) {
        let wide = (length as u64).to_le_bytes();
        self.bytes.extend_from_slice(&wide[..self.width.bytes()]);
    }

    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
