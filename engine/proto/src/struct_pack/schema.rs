//! The hash and literal of one message type, computed once for many messages.

use alloc::vec::Vec;

use super::{
    DecodeError, KNOWN_METAINFO, LITERAL_FOLLOWS, LengthWidth, METAINFO_FOLLOWS, Node, Packed,
    Reader, TypeHash, Writer,
};

/// Longest part of a foreign literal that is kept. Literals of the store have up to a few hundred bytes.
const LITERAL_LIMIT: usize = 1024;

/// Opens and begins bodies of one type. A server keeps one for each of its messages: the hash is an MD5.
#[derive(Debug, Clone)]
pub struct Schema {
    hash: TypeHash,
    literal: Vec<u8>,
    /// The type has no body at all.
    void: bool,
}

impl Schema {
    #[must_use]
    pub fn of<T: Packed>() -> Self {
        Self {
            hash: T::NODE.hash(),
            literal: T::NODE.literal(),
            void: *T::NODE == Node::Void,
        }
    }

    /// Checks the prefix of a body in either form and returns its payload.
    ///
    /// # Errors
    /// [`DecodeError::Schema`] if the sender's type differs; the other variants if the prefix is malformed.
    pub fn open<'a>(&self, body: &'a [u8]) -> Result<Reader<'a>, DecodeError> {
        if self.void {
            return Ok(Reader::new(body, LengthWidth::ONE));
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
        let got = TypeHash(sent & !METAINFO_FOLLOWS);
        if got != self.hash || literal.is_some_and(|sent| sent != self.literal) {
            return Err(DecodeError::Schema {
                expected: self.hash,
                got,
                literal: literal.map(|sent| sent[..sent.len().min(LITERAL_LIMIT)].into()),
            });
        }
        Ok(Reader::new(prefix.rest(), width))
    }

    /// Appends the prefix of a body in the compact form to `bytes`, and returns the writer of its payload.
    /// `longest` is the longest container or string length in the payload.
    #[must_use]
    pub fn begin(&self, bytes: Vec<u8>, longest: usize) -> Writer {
        let width = LengthWidth::for_longest(longest);
        let mut writer = Writer::after(bytes, width);
        if self.void {
            return writer;
        }
        if width == LengthWidth::ONE {
            writer.bytes(&self.hash.0.to_le_bytes());
        } else {
            writer.bytes(&(self.hash.0 | METAINFO_FOLLOWS).to_le_bytes());
            writer.bytes(&[width.code() << 3]);
        }
        writer
    }
}
