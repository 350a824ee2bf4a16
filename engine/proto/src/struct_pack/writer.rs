//! Writes payload bytes with the one length width of the message.

use alloc::vec::Vec;

/// Width of every container and string length in one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LengthWidth {
    One,
    Two,
    Four,
    Eight,
}

impl LengthWidth {
    /// The narrowest width that holds the longest length of the message.
    #[must_use]
    pub fn for_longest(longest: usize) -> Self {
        match longest {
            0..=0xff => Self::One,
            0x100..=0xffff => Self::Two,
            0x1_0000..=0xffff_ffff => Self::Four,
            _ => Self::Eight,
        }
    }

    /// From metainfo bits 3 and 4, shifted down; higher bits are not looked at.
    #[must_use]
    pub fn from_code(code: u8) -> Self {
        match code & 0b11 {
            0 => Self::One,
            1 => Self::Two,
            2 => Self::Four,
            _ => Self::Eight,
        }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Self::One => 0,
            Self::Two => 1,
            Self::Four => 2,
            Self::Eight => 3,
        }
    }

    pub(super) fn bytes(self) -> usize {
        1 << self.code()
    }
}

/// Collects the bytes of one message.
pub struct Writer {
    bytes: Vec<u8>,
    width: LengthWidth,
}

impl Writer {
    #[must_use]
    pub fn new(width: LengthWidth) -> Self {
        Self {
            bytes: Vec::new(),
            width,
        }
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// A container's or string's length; the width was chosen to hold the longest one.
    pub fn length(&mut self, length: usize) {
        let wide = (length as u64).to_le_bytes();
        self.bytes.extend_from_slice(&wide[..self.width.bytes()]);
    }

    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
