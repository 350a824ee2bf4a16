//! The mapped memory of a ledger. The kernel copies through a pair of sockets, as for the extents: a hole that cannot be
//! filled is an error and does not end the process, and the sandbox allows no write to a file of this size.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use store::Memory;
use sys::mem::Region;

/// Bytes of one copy. The buffer of a socket may be smaller: then it is filled and emptied several times.
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
        let sockets = RefCell::new(pair()?);
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
            *sockets = pair()?;
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
                let mut done = 0;
                while done < piece.len() {
                    let (at, left) = (from + done as u64, (piece.len() - done) as u64);
                    let sent = some(self.region.send_from(one.as_fd(), &[], at, left)?)?;
                    other.read_exact(&mut piece[done..done + sent])?;
                    done += sent;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        for (piece, to) in bytes.chunks(PIECE).zip((at..).step_by(PIECE)) {
            self.copy(|(one, other)| {
                let (mut sent, mut done) = (0, 0);
                while done < piece.len() {
                    if sent == done {
                        sent += some(one.write(&piece[sent..])?)?;
                    }
                    let (at, left) = (to + done as u64, (sent - done) as u64);
                    done += some(self.region.recv_into(other.as_fd(), at, left)?)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Connected sockets that never block: an empty one takes at least one byte.
fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (one, other) = UnixStream::pair()?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    Ok((one, other))
}

/// Copying nothing would be repeated for ever.
fn some(count: usize) -> io::Result<usize> {
    if count > 0 {
        Ok(count)
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::mem::{PageSize, memfd};

    #[test]
    fn a_socket_with_the_smallest_buffer_copies_every_piece() {
        let length = 1 << 20;
        let fd = memfd::create("test", length, PageSize::Base).unwrap();
        let region = Region::map(fd, length, PageSize::Base).unwrap();
        let memory = LedgerMemory::new(region).unwrap();
        let sockets = memory.sockets.borrow();
        for socket in [&sockets.0, &sockets.1] {
            rustix::net::sockopt::set_socket_send_buffer_size(socket, 1).unwrap();
        }
        drop(sockets);
        let bytes = vec![0x5a; 3 * PIECE];
        memory.write(5, &bytes).unwrap();
        let mut read = vec![0; bytes.len()];
        memory.read(5, &mut read).unwrap();
        assert!(read == bytes);
    }

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
