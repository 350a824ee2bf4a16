//! Frames of the TCP data plane: the 24-byte request header and the 8-byte status, byte-compatible with
//! stock engines.

/// Bytes of a request header.
pub const HEADER_LENGTH: usize = 24;
/// Bytes of a status frame.
pub const STATUS_LENGTH: usize = 8;

/// Upper half of a status frame.
const STATUS_MAGIC: u32 = 0x4D43_5456;
/// Bit of the opcode that requests protocol version 2.
const VERSION_BIT: u8 = 0x80;

/// The operation on the target's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The target sends bytes.
    Read,
    /// The target receives bytes.
    Write,
}

/// The protocol version; version 2 adds status frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// No status frames: a write has no answer.
    V1,
    /// A status precedes a read's payload and follows a write's payload.
    V2,
}

/// A request header. Any 24 bytes decode to a header: unknown operations are reads, as in stock targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Payload bytes.
    pub size: u64,
    /// Wire address at the target.
    pub address: u64,
    /// Operation.
    pub op: Op,
    /// Protocol version.
    pub version: Version,
}

impl Header {
    /// Encodes the header; padding is zero.
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

    /// Decodes a header; the 7 bytes of padding are ignored.
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

/// The status of a version 2 request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The address is valid (read), or the last byte is in the target's memory (write).
    Ok,
    /// The range is not inside one registered buffer. The target then closes the connection.
    AddressRejected,
}

/// Why 8 bytes are not a status frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StatusError {
    /// The upper half is not the magic number: the peer uses another protocol.
    #[error("the status frame starts with {0:#010x}, not with the protocol's magic number")]
    Magic(u32),
    /// The protocol has no such status.
    #[error("the status frame has unknown status {0}")]
    Unknown(u32),
}

impl Status {
    /// Encodes the status.
    #[must_use]
    pub fn encode(self) -> [u8; STATUS_LENGTH] {
        let code = match self {
            Self::Ok => 0,
            Self::AddressRejected => 1,
        };
        (u64::from(STATUS_MAGIC) << 32 | code).to_le_bytes()
    }

    /// Decodes a status frame.
    ///
    /// # Errors
    /// [`StatusError::Magic`] or [`StatusError::Unknown`].
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

/// Assembles the `N` bytes of a frame from partial reads.
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
    /// Returns the space for the next bytes; never empty.
    pub fn spare(&mut self) -> &mut [u8] {
        &mut self.bytes[self.have..]
    }

    /// Records that `count` bytes were written to [`Self::spare`]. Returns the frame when it is complete,
    /// and starts the next one.
    pub fn advance(&mut self, count: usize) -> Option<[u8; N]> {
        self.have = (self.have + count).min(N);
        if self.have < N {
            return None;
        }
        self.have = 0;
        Some(self.bytes)
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
        for (status, bytes) in [
            (Status::Ok, *b"\0\0\0\0VTCM"),
            (Status::AddressRejected, *b"\x01\0\0\0VTCM"),
        ] {
            assert_eq!(status.encode(), bytes);
            assert_eq!(Status::decode(bytes), Ok(status));
        }
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
