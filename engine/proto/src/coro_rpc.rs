//! coro_rpc, the framing of the stock store RPC: a fixed header, a struct_pack body, and an attachment that
//! the store never uses. Numbers are little-endian.

use alloc::string::String;

use crate::struct_pack::{self, DecodeError};

const MAGIC: u8 = 0x15;
const VERSION: u8 = 0;
const STRUCT_PACK: u8 = 0;
const MESSAGE_TYPE: u8 = 0;

/// The C++ namespace of the master's RPCs.
const MASTER_SERVICE: &str = "mooncake::WrappedMasterService::";

/// Returns the ID of a master RPC: the first four bytes of the MD5 of its qualified C++ name, big-endian.
#[must_use]
pub fn master_function_id(method: &str) -> u32 {
    let mut name = String::from(MASTER_SERVICE);
    name.push_str(method);
    struct_pack::md5_head(name.as_bytes())
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// Chosen by the client and returned in the response.
    pub sequence: u32,
    pub function_id: u32,
    /// Bytes of the body.
    pub length: u32,
}

impl RequestHeader {
    pub const BYTES: usize = 20;

    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&[MAGIC, VERSION, STRUCT_PACK, MESSAGE_TYPE]);
        bytes[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.function_id.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// # Errors
    /// [`HeaderError`] if the bytes are not a header of this protocol.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Result<Self, HeaderError> {
        let [magic, version, encoding, ..] = bytes;
        check(magic, version, number(&bytes, 16))?;
        if encoding != STRUCT_PACK {
            return Err(HeaderError::Encoding(encoding));
        }
        Ok(Self {
            sequence: number(&bytes, 4),
            function_id: number(&bytes, 8),
            length: number(&bytes, 12),
        })
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Checks what requests and responses have in common.
fn check(magic: u8, version: u8, attachment: u32) -> Result<(), HeaderError> {
    if magic != MAGIC {
        return Err(HeaderError::Magic(magic));
    }
    if version != VERSION {
        return Err(HeaderError::Version(version));
    }
    if attachment != 0 {
        return Err(HeaderError::Attachment(attachment));
    }
    Ok(())
}

/// The header of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHeader {
    /// 0 if the body is the result; otherwise it is a [`Failure`].
    pub code: u8,
    pub sequence: u32,
    /// Bytes of the body.
    pub length: u32,
}

/// Why bytes are not a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error(
        "the message starts with {0:#04x}, not with {MAGIC:#04x}: the peer does not use coro_rpc"
    )]
    Magic(u8),
    #[error("the message has frame version {0}, expected {VERSION}")]
    Version(u8),
    #[error("the message has an attachment of {0} bytes, which no store RPC uses")]
    Attachment(u32),
    #[error("the message has encoding {0}, expected {STRUCT_PACK} (struct_pack)")]
    Encoding(u8),
}

impl ResponseHeader {
    pub const BYTES: usize = 16;

    /// # Errors
    /// [`HeaderError`] if the bytes are not a header of this protocol.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Result<Self, HeaderError> {
        let [magic, version, code, ..] = bytes;
        check(magic, version, number(&bytes, 12))?;
        Ok(Self {
            code,
            sequence: number(&bytes, 4),
            length: number(&bytes, 8),
        })
    }

    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&[MAGIC, VERSION, self.code, MESSAGE_TYPE]);
        bytes[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }
}

/// The server's function has other argument types.
pub const INVALID_ARGUMENTS: u16 = 4;
/// The server has no function with this ID.
pub const NOT_REGISTERED: u16 = 11;
/// The server accepts no message of this size.
pub const MESSAGE_TOO_LARGE: u16 = 14;
/// A header code which means that the body contains the code.
const CODE_IN_BODY: u8 = 255;

/// Longest text of a peer that is kept, in bytes. It goes into logs and states.
pub const TEXT_LIMIT: usize = 1024;

/// Cuts a longer text after [`TEXT_LIMIT`] bytes, at the boundary of a character.
#[must_use]
pub fn clip(mut text: String) -> String {
    if text.len() > TEXT_LIMIT {
        text.truncate(text.floor_char_boundary(TEXT_LIMIT));
        text.shrink_to_fit();
        text.push('…');
    }
    text
}

/// An error of the RPC layer, as opposed to one of the function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: u16,
    /// See [`clip`].
    pub message: String,
}

impl Failure {
    /// Decodes the body of a response whose header code is not 0.
    ///
    /// # Errors
    /// [`DecodeError`] if the body does not contain a message.
    pub fn decode(header_code: u8, body: &[u8]) -> Result<Self, DecodeError> {
        if header_code == CODE_IN_BODY {
            let (code, message) = struct_pack::decode(body)?;
            let message = clip(message);
            return Ok(Self { code, message });
        }
        Ok(Self {
            code: u16::from(header_code),
            message: clip(struct_pack::decode(body)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_header_is_the_captured_one() {
        let header = RequestHeader {
            sequence: 2,
            function_id: 0x3e7e_c4bb,
            length: 0x75,
        };
        let captured = "15000000 02000000 bbc47e3e 75000000 00000000";
        assert_eq!(
            struct_pack::literal_text(&header.encode()),
            captured.replace(' ', "")
        );
        assert_eq!(RequestHeader::decode(header.encode()), Ok(header));
        for (at, expected) in [
            (0, HeaderError::Magic(9)),
            (1, HeaderError::Version(9)),
            (2, HeaderError::Encoding(9)),
            (16, HeaderError::Attachment(9)),
        ] {
            let mut other = header.encode();
            other[at] = 9;
            assert_eq!(RequestHeader::decode(other), Err(expected));
        }
    }

    #[test]
    fn a_response_header_is_read_and_foreign_ones_are_refused() {
        let mut bytes = [0x15, 0, 4, 0, 7, 0, 0, 0, 9, 1, 0, 0, 0, 0, 0, 0];
        let header = ResponseHeader {
            code: 4,
            sequence: 7,
            length: 0x109,
        };
        assert_eq!(ResponseHeader::decode(bytes), Ok(header));
        assert_eq!(header.encode(), bytes);
        bytes[12] = 1;
        assert_eq!(
            ResponseHeader::decode(bytes),
            Err(HeaderError::Attachment(1))
        );
        bytes[1] = 1;
        assert_eq!(ResponseHeader::decode(bytes), Err(HeaderError::Version(1)));
        bytes[0] = b'H';
        assert_eq!(ResponseHeader::decode(bytes), Err(HeaderError::Magic(b'H')));
    }

    #[test]
    fn a_failure_is_read_from_both_places_of_its_code() {
        let message = String::from("invalid rpc arg");
        let short = Failure::decode(4, &struct_pack::encode(&message)).unwrap();
        assert_eq!(
            short,
            Failure {
                code: INVALID_ARGUMENTS,
                message: message.clone()
            }
        );
        let long = Failure::decode(255, &struct_pack::encode(&(1000_u16, message))).unwrap();
        assert_eq!(long.code, 1000);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let text = "aé".repeat(50_000);
        let failure = Failure::decode(9, &struct_pack::encode(&text)).unwrap();
        // 341 times 3 bytes, and the first byte of the next 3.
        assert_eq!(failure.message, "aé".repeat(341) + "a…");
        let long = Failure::decode(255, &struct_pack::encode(&(9_u16, text))).unwrap();
        assert_eq!(long.message, failure.message);
        let whole = "a".repeat(TEXT_LIMIT);
        assert_eq!(clip(whole.clone()), whole);
    }
}
