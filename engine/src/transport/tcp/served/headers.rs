//! Headers of requests that have not begun. No byte of payload is ever among them: the kernel copies payload between
//! sockets and regions only.

use std::io;
use std::os::fd::BorrowedFd;

use proto::frame::{HEADER_LENGTH, Header, Op};
use rustix::net::RecvFlags;

/// Most bytes: as many headers as an own peer sends ahead.
const MOST: usize = super::super::PIPELINE_DEPTH as usize * HEADER_LENGTH;

#[derive(Debug)]
pub(super) struct Headers {
    bytes: Box<[u8; MOST]>,
    start: usize,
    end: usize,
}

impl Default for Headers {
    fn default() -> Self {
        Self {
            bytes: Box::new([0; MOST]),
            start: 0,
            end: 0,
        }
    }
}

impl Headers {
    /// Headers that another engine has received; `None` if they do not fit, or bytes of payload are among them: no engine of
    /// this project receives those here.
    pub(super) fn of(unread: &[u8]) -> Option<Self> {
        let (headers, begun) = unread.as_chunks::<HEADER_LENGTH>();
        let followed = if begun.is_empty() {
            headers.split_last().map_or(headers, |(_, before)| before)
        } else {
            headers
        };
        let is_write = |header: &[u8; HEADER_LENGTH]| Header::decode(*header).op == Op::Write;
        if followed.iter().any(is_write) {
            return None;
        }
        let mut bytes = Box::new([0; MOST]);
        bytes.get_mut(..unread.len())?.copy_from_slice(unread);
        Some(Self {
            bytes,
            start: 0,
            end: unread.len(),
        })
    }

    /// Returns the bytes.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Returns the first header, if it is complete.
    pub(super) fn first(&self) -> Option<Header> {
        let (header, _) = self.bytes[self.start..self.end].split_first_chunk()?;
        Some(Header::decode(*header))
    }

    /// Removes the first header.
    pub(super) fn advance(&mut self) {
        self.start = (self.start + HEADER_LENGTH).min(self.end);
    }

    /// Returns whether no byte is there.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the space for the rest of the next header. Called while no header is complete.
    pub(super) fn spare(&mut self) -> &mut [u8] {
        self.make_space();
        &mut self.bytes[self.end..HEADER_LENGTH]
    }

    /// Records bytes that were received into [`Self::spare`].
    pub(super) fn received(&mut self, count: usize) {
        self.end = (self.end + count).min(MOST);
    }

    /// Receives the headers at the front of the socket's buffer: up to the first one of a write, because payload
    /// follows that one. Returns the number of bytes. Called while no header is complete.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.make_space();
        let peek = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let (seen, _) = rustix::net::recv(socket, &mut self.bytes[self.end..], peek)?;
        let mut last = 0;
        let chunks = self.bytes[..self.end + seen].chunks_exact(HEADER_LENGTH);
        for (number, chunk) in (1..).zip(chunks) {
            last = number * HEADER_LENGTH;
            let header = chunk.first_chunk().copied().map(Header::decode);
            if header.is_none_or(|header| header.op == Op::Write) {
                break;
            }
        }
        // Without a complete header, all of it is the beginning of one.
        let until = if last == 0 { self.end + seen } else { last };
        let wanted = &mut self.bytes[self.end..until];
        let (count, _) = rustix::net::recv(socket, wanted, RecvFlags::DONTWAIT)?;
        self.received(count);
        Ok(count)
    }

    fn make_space(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use proto::frame::Version;

    use super::*;

    fn header(op: Op, address: u64) -> Header {
        Header {
            size: 7,
            address,
            op,
            version: Version::V2,
        }
    }

    #[test]
    fn headers_are_received_up_to_the_first_write_and_its_payload_stays_in_the_socket() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let requests = [(Op::Read, 1), (Op::Read, 2), (Op::Write, 3)];
        let requests = requests.map(|(op, address)| header(op, address));
        let [first, rest @ ..] = requests.map(Header::encode);
        theirs.write_all(&first[..5]).unwrap();
        let mut headers = Headers::default();
        assert_eq!(headers.receive(ours.as_fd()).unwrap(), 5);
        assert!(headers.first().is_none() && !headers.is_empty());
        theirs.write_all(&first[5..]).unwrap();
        theirs.write_all(&rest.concat()).unwrap();
        theirs.write_all(b"payload").unwrap();
        assert_eq!(headers.receive(ours.as_fd()).unwrap(), 72 - 5);
        for request in requests {
            assert_eq!(headers.first(), Some(request));
            headers.advance();
        }
        assert!(headers.is_empty());
        let mut payload = [0; 7];
        ours.read_exact(&mut payload).unwrap();
        assert_eq!(&payload, b"payload");
    }

    #[test]
    fn bytes_behind_the_header_of_a_write_are_no_headers() {
        let [read, write] = [Op::Read, Op::Write].map(|op| header(op, 1).encode());
        assert!(Headers::of(&[read, write].concat()).is_some());
        assert!(Headers::of(&[&write[..], b"p"].concat()).is_none());
        assert!(Headers::of(&[read, write, read].concat()).is_none());
    }

    #[test]
    fn more_bytes_than_fit_are_not_cut_off() {
        let mut full = Headers::of(&[7; MOST]).unwrap();
        full.advance();
        assert_eq!(full.unread(), [7; MOST - HEADER_LENGTH]);
        assert!(Headers::of(&[7; MOST + 1]).is_none());
    }

    #[test]
    fn at_most_a_full_buffer_of_headers_is_received() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut headers = Headers::default();
        theirs
            .write_all(&header(Op::Read, 1).encode().repeat(40))
            .unwrap();
        assert_eq!(headers.receive(ours.as_fd()).unwrap(), MOST);
        for _ in 0..MOST / HEADER_LENGTH {
            assert_eq!(headers.first(), Some(header(Op::Read, 1)));
            headers.advance();
        }
        assert!(headers.first().is_none());
        assert_eq!(headers.receive(ours.as_fd()).unwrap(), MOST);
    }
}
