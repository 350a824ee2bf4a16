//! The TCP data plane's frames: the 24-byte request header and the 8-byte status, byte for byte
//! as stock engines send them.

/// Bytes of a request header.
pub const HEADER_LENGTH: usize = 24;
/// Bytes of a status frame.
pub const STATUS_LENGTH: usize = 8;

/// High half of a status frame.
const STATUS_MAGIC: u32 = 0x4D43_5456;
/// Bit of the opcode that asks for protocol version 2.
const VERSION_BIT: u8 = 0x80;

/// What is done with the target's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The target sends its bytes.
    Read,
    /// The target takes bytes.
    Write,
}

/// The form of the exchange: version 2 adds status frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// No status frames: a write has no answer at all.
    V1,
    /// A status before a read's payload and after a write's.
    V2,
}

/// One request. Every 24 bytes decode to some header: stock targets take unknown operations as
/// reads, and so do we.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Payload bytes.
    pub size: u64,
    /// Wire address at the target.
    pub address: u64,
    /// Direction.
    pub op: Op,
    /// Form of the exchange.
    pub version: Version,
}

impl Header {
    /// The bytes on the wire; padding is zero.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_LENGTH] {
        let mut bytes = [0; HEADER_LENGTH];
        bytes[..8].copy_from_slice(&self.size.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        let op = match self.op {
            Op::Read => 0,
            Op::Write => 1,
        };
        let version = match self.version {
            Version::V1 => 0,
            Version::V2 => VERSION_BIT,
        };
        bytes[16] = op | version;
        bytes
    }

    /// Reads a header; the 7 bytes of padding mean nothing.
    #[must_use]
    pub fn decode(bytes: [u8; HEADER_LENGTH]) -> Self {
        let mut size = [0; 8];
        size.copy_from_slice(&bytes[..8]);
        let mut address = [0; 8];
        address.copy_from_slice(&bytes[8..16]);
        let code = bytes[16];
        Self {
            size: u64::from_le_bytes(size),
            address: u64::from_le_bytes(address),
            op: if code & !VERSION_BIT == 1 {
                Op::Write
            } else {
                Op::Read
            },
            version: if code & VERSION_BIT == 0 {
                Version::V1
            } else {
                Version::V2
            },
        }
    }
}

/// A version-2 answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The address is good (read), or the last byte is in the target's memory (write).
    Ok,
    /// The range is not inside one registered buffer; the target closes after this.
    AddressRejected,
}

/// Why 8 bytes are no status frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// The high half is not the magic: the peer speaks something else.
    #[error("the status frame starts with {0:#010x}, not with the protocol's magic")]
    Magic(u32),
    /// A status that this protocol version does not have.
    #[error("the status frame carries unknown status {0}")]
    Unknown(u32),
}

impl Status {
    /// The bytes on the wire.
    #[must_use]
    pub fn encode(self) -> [u8; STATUS_LENGTH] {
        let code = match self {
            Self::Ok => 0,
            Self::AddressRejected => 1,
        };
        (u64::from(STATUS_MAGIC) << 32 | code).to_le_bytes()
    }

    /// Reads a status frame.
    ///
    /// # Errors
    /// A wrong magic or an unknown status.
    pub fn decode(bytes: [u8; STATUS_LENGTH]) -> Result<Self, StatusError> {
        let [a, b, c, d, e, f, g, h] = bytes;
        let magic = u32::from_le_bytes([e, f, g, h]);
        if magic != STATUS_MAGIC {
            return Err(StatusError::Magic(magic));
        }
        match u32::from_le_bytes([a, b, c, d]) {
            0 => Ok(Self::Ok),
            1 => Ok(Self::AddressRejected),
            other => Err(StatusError::Unknown(other)),
        }
    }
}

/// Collects the `N` bytes of a frame however they arrive.
#[derive(Debug, Clone, Copy)]
pub struct Partial<const N: usize> {
    bytes: [u8; N],
    have: usize,
}

impl<const N: usize> Default for Partial<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            have: 0,
        }
    }
}

impl<const N: usize> Partial<N> {
    /// Where the next bytes go; never empty before the frame is whole.
    pub fn spare(&mut self) -> &mut [u8] {
        &mut self.bytes[self.have..]
    }

    /// Says that `count` bytes were written to [`Self::spare`]; gives the frame once it is whole
    /// and starts over.
    pub fn advance(&mut self, count: usize) -> Option<[u8; N]> {
        self.have = (self.have + count).min(N);
        if self.have < N {
            return None;
        }
        self.have = 0;
        Some(self.bytes)
    }

    /// Whether nothing of a frame has come yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.have == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_have_the_bytes_of_stock_engines() {
        let header = Header {
            size: 5,
            address: 1 << 58,
            op: Op::Write,
            version: Version::V2,
        };
        let mut expected = [0; 24];
        expected[0] = 5;
        expected[15] = 4;
        expected[16] = 0x81;
        assert_eq!(header.encode(), expected);
    }

    #[test]
    fn unknown_operations_read_as_stock_targets_read_them() {
        let mut bytes = [0xff; 24];
        for (code, op, version) in [
            (0x00, Op::Read, Version::V1),
            (0x01, Op::Write, Version::V1),
            (0x02, Op::Read, Version::V1),
            (0x80, Op::Read, Version::V2),
            (0x81, Op::Write, Version::V2),
            (0x82, Op::Read, Version::V2),
        ] {
            bytes[16] = code;
            let header = Header::decode(bytes);
            assert_eq!((header.op, header.version), (op, version), "{code:#x}");
        }
    }

    #[test]
    fn status_frames_have_the_bytes_of_stock_engines() {
        assert_eq!(Status::Ok.encode(), *b"\0\0\0\0VTCM");
        assert_eq!(Status::AddressRejected.encode(), *b"\x01\0\0\0VTCM");
        assert_eq!(
            Status::decode(*b"\x02\0\0\0VTCM"),
            Err(StatusError::Unknown(2))
        );
        assert_eq!(
            Status::decode(*b"HTTP/1.1"),
            Err(StatusError::Magic(0x312e_312f))
        );
    }

    proptest! {
        #[test]
        fn every_header_survives_the_wire(bytes: [u8; 24], cuts in prop::collection::vec(1usize..9, 24)) {
            let header = Header::decode(bytes);
            prop_assert_eq!(Header::decode(header.encode()), header);
            let mut partial = Partial::<24>::default();
            let mut sent = 0;
            for cut in cuts {
                let spare = partial.spare();
                let count = cut.min(spare.len()).min(24 - sent);
                if count == 0 { break; }
                spare[..count].copy_from_slice(&bytes[sent..sent + count]);
                sent += count;
                let whole = partial.advance(count);
                prop_assert_eq!(whole.is_some(), sent == 24);
                if let Some(whole) = whole { prop_assert_eq!(whole, bytes); break; }
            }
        }
    }
}
