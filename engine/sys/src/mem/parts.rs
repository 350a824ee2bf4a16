//! Sends and receives several ranges of memory with one system call, without blocking.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Region;
use super::region::invalid;

/// Most ranges of one call.
const MOST: usize = 34;

/// The ranges of a call, in the order of their bytes in the stream.
#[derive(Debug)]
struct Parts {
    vectors: [libc::iovec; MOST],
    count: usize,
    bytes: usize,
}

impl Parts {
    const fn new() -> Self {
        let empty = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Self {
            vectors: [empty; MOST],
            count: 0,
            bytes: 0,
        }
    }

    fn space(&self) -> usize {
        MOST - self.count
    }

    /// Adds a range, unless it is empty.
    fn push(&mut self, base: *mut u8, length: usize) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        let Some(vector) = self.vectors.get_mut(self.count) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        *vector = libc::iovec {
            iov_base: base.cast(),
            iov_len: length,
        };
        self.count += 1;
        self.bytes += length;
        Ok(())
    }

    fn header(&mut self) -> libc::msghdr {
        // SAFETY: all-zero is a valid `msghdr`: no name, no parts, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.vectors.as_mut_ptr();
        message.msg_iovlen = self.count as _;
        message
    }
}

/// Ranges to send, borrowed for `'a`.
#[derive(Debug)]
pub struct Outward<'a> {
    parts: Parts,
    borrowed: PhantomData<&'a [u8]>,
}

/// Ranges to receive into, borrowed for `'a`.
#[derive(Debug)]
pub struct Inward<'a> {
    parts: Parts,
    borrowed: PhantomData<&'a mut [u8]>,
}

impl Default for Outward<'_> {
    fn default() -> Self {
        Self {
            parts: Parts::new(),
            borrowed: PhantomData,
        }
    }
}

impl Default for Inward<'_> {
    fn default() -> Self {
        Self {
            parts: Parts::new(),
            borrowed: PhantomData,
        }
    }
}

impl<'a> Outward<'a> {
    /// Returns how many ranges can be added.
    #[must_use]
    pub fn space(&self) -> usize {
        self.parts.space()
    }

    /// Returns the number of bytes of all ranges.
    #[must_use]
    pub fn length(&self) -> usize {
        self.parts.bytes
    }

    /// Adds own bytes.
    ///
    /// # Errors
    /// `InvalidInput` if there is no space.
    pub fn bytes(&mut self, bytes: &'a [u8]) -> io::Result<()> {
        self.parts.push(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// Adds a range of a region.
    ///
    /// # Errors
    /// `InvalidInput` if there is no space, or if the range is not inside the region.
    pub fn range(&mut self, region: &'a Region, offset: u64, length: u64) -> io::Result<()> {
        let (start, bytes) = region.checked(offset, length).map_err(invalid)?;
        self.parts.push(start.as_ptr(), bytes)
    }

    /// Sends the ranges over a socket. Returns the number of bytes sent.
    ///
    /// # Errors
    /// `WouldBlock` if the send buffer is full; others of `sendmsg(2)`.
    pub fn send(mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let message = self.parts.header();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: each part is borrowed for longer than the call: bytes, or a checked range of a mapping. The kernel
        // only reads them.
        let count = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

impl<'a> Inward<'a> {
    /// Returns how many ranges can be added.
    #[must_use]
    pub fn space(&self) -> usize {
        self.parts.space()
    }

    /// Returns the number of bytes of all ranges.
    #[must_use]
    pub fn length(&self) -> usize {
        self.parts.bytes
    }

    /// Adds own bytes.
    ///
    /// # Errors
    /// `InvalidInput` if there is no space.
    pub fn bytes(&mut self, bytes: &'a mut [u8]) -> io::Result<()> {
        self.parts.push(bytes.as_mut_ptr(), bytes.len())
    }

    /// Adds a range of a region.
    ///
    /// # Errors
    /// `InvalidInput` if there is no space, or if the range is not inside the region.
    pub fn range(&mut self, region: &'a Region, offset: u64, length: u64) -> io::Result<()> {
        let (start, bytes) = region.checked(offset, length).map_err(invalid)?;
        self.parts.push(start.as_ptr(), bytes)
    }

    /// Receives from a socket what has arrived, at most the bytes of the ranges. Returns the number of bytes; 0 means
    /// that the peer has closed its side.
    ///
    /// # Errors
    /// `WouldBlock` if no byte is available; others of `recvmsg(2)`.
    pub fn receive(mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let mut message = self.parts.header();
        // SAFETY: each part is borrowed for longer than the call: bytes for writing, or a checked range of a mapping,
        // of which no reference exists.
        let count =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// As [`Self::receive`], and returns what is left in the socket's receive buffer, if the socket reports it
    /// (`net::socket::report_queued`).
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn receive_counted(mut self, socket: BorrowedFd<'_>) -> io::Result<Received> {
        let mut control = Control([0; CONTROL]);
        let mut message = self.parts.header();
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL as _;
        // SAFETY: each part is borrowed for longer than the call, as in `receive`; the control buffer has the stated
        // length.
        let count =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let left = if message.msg_controllen == 0 {
            None
        } else {
            queued(&message)
        };
        Ok(Received { count, left })
    }
}

/// The result of [`Inward::receive_counted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Received bytes; 0 means that the peer has closed its side.
    pub count: usize,
    /// Bytes that are left in the receive buffer, at least 1 after the end of the stream. `None` if the socket does not
    /// report it.
    pub left: Option<usize>,
}

/// Space for one control message with an int.
const CONTROL: usize = 32;

/// A control buffer, aligned as control messages are.
#[repr(align(8))]
struct Control([u8; CONTROL]);

/// Returns the count in the first control message of a message that the kernel has filled in.
fn queued(message: &libc::msghdr) -> Option<usize> {
    // SAFETY: the control buffer of the message has the length that the kernel has stored, and is aligned.
    let first = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: it is null, or a header inside the control buffer.
    let header = unsafe { first.as_ref() }?;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_TCP, libc::TCP_CM_INQ) {
        return None;
    }
    // SAFETY: the header is followed by its data.
    let data = unsafe { libc::CMSG_DATA(first) };
    // SAFETY: the data of this type is one int; it may be unaligned.
    let count = unsafe { data.cast::<libc::c_int>().read_unaligned() };
    usize::try_from(count).ok()
}
