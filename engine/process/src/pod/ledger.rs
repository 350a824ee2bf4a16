//! The mapped memory of a ledger. The kernel copies through a pair of sockets, as for the extents: a hole that cannot be
//! filled is an error and does not end the process, and the sandbox allows no write to a file of this size.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use store::Memory;
use sys::mem::Region;

/// Bytes of one copy: fewer than the buffer of a socket.
const PIECE: usize = 32 << 10;

/// The memory of a pool pod's ledger.
pub(super) struct LedgerMemory {
    region: Region,
    sockets: RefCell<(UnixStream, UnixStream)>,
}

impl LedgerMemory {
    /// # Errors
    /// Those of `socketpair`.
    pub(super) fn new(region: Region) -> io::Result<Self> {
        let sockets = RefCell::new(UnixStream::pair()?);
        Ok(Self { region, sockets })
    }

    /// Copies one piece. After an error the sockets may contain a part of it, so they are replaced.
    fn copy(
        &self,
        piece: impl FnOnce(&mut (UnixStream, UnixStream)) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut sockets = self.sockets.borrow_mut();
        let copied = piece(&mut sockets);
        if copied.is_err() {
            *sockets = UnixStream::pair()?;
        }
        copied
    }
}

impl Memory for LedgerMemory {
    fn length(&self) -> io::Result<u64> {
        Ok(self.region.length())
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        for (piece, from) in bytes.chunks_mut(PIECE).zip((at..).step_by(PIECE)) {
            self.copy(|(one, other)| {
                let length = piece.len() as u64;
                let sent = self.region.send_from(one.as_fd(), &[], from, length)?;
                other.read_exact(&mut piece[..sent])?;
                whole(sent, piece.len())
            })?;
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        for (piece, to) in bytes.chunks(PIECE).zip((at..).step_by(PIECE)) {
            self.copy(|(one, other)| {
                one.write_all(piece)?;
                let length = piece.len() as u64;
                let received = self.region.recv_into(other.as_fd(), to, length)?;
                whole(received, piece.len())
            })?;
        }
        Ok(())
    }
}

fn whole(count: usize, wanted: usize) -> io::Result<()> {
    if count == wanted {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "{count} of {wanted} bytes were copied"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::mem::{PageSize, memfd};

    #[test]
    fn bytes_are_read_as_they_were_written_and_a_range_outside_is_an_error() {
        let length = 1 << 20;
        let fd = memfd::create("test", length, PageSize::Base).unwrap();
        let region = Region::map(fd, length, PageSize::Base).unwrap();
        let memory = LedgerMemory::new(region).unwrap();
        assert_eq!(memory.length().unwrap(), length);
        let bytes: Vec<u8> = (0..100_000_u32)
            .map(|n| n.to_le_bytes()[0] ^ 0x5a)
            .collect();
        memory.write(77, &bytes).unwrap();
        let mut read = vec![0; bytes.len()];
        memory.read(77, &mut read).unwrap();
        assert!(read == bytes);
        assert!(memory.write(length - 10, &bytes[..20]).is_err());
        assert!(memory.read(length - 10, &mut read[..20]).is_err());
        // The sockets contain no rest.
        memory.write(0, b"after").unwrap();
        memory.read(0, &mut read[..5]).unwrap();
        assert_eq!(&read[..5], b"after");
    }
}
