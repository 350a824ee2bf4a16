//! A mapped extent. Other processes and peers may change its bytes at any time, so the kernel copies them,
//! through bounds-checked calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::parts::Outward;
use super::{Error, PageSize, memfd};

/// Bits of the node mask passed to `mbind(2)`.
const NODE_LIMIT: u32 = 1024;
const MASK_WORDS: usize = NODE_LIMIT as usize / 64;

/// A shared mapping of a sealed memfd.
///
/// Any process with the descriptor may write to it at any time, so no reference to its bytes is ever
/// created. The kernel does every transfer, on a checked range: if the owner punched a hole that cannot
/// be filled again, the call fails and the process survives.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    length: usize,
    page: PageSize,
}

// SAFETY: the mapping belongs to the process and not to a thread, and `Region` is its only owner.
unsafe impl Send for Region {}
// SAFETY: no method creates a reference into the mapping. All access is by system calls on checked
// ranges, which any number of threads may make concurrently.
unsafe impl Sync for Region {}

impl Region {
    /// Checks a sealed memfd (see [`memfd::check`]) and maps it. The descriptor is closed; the mapping
    /// keeps the memory. Huge pages are not reserved: the process that first accesses a page is charged.
    ///
    /// # Errors
    /// As [`memfd::check`]; [`Error::Call`] if `mmap` fails.
    pub fn map(fd: OwnedFd, length: u64, page: PageSize) -> Result<Self, Error> {
        memfd::check(fd.as_fd(), length, page)?;
        let mapped = usize::try_from(length).map_err(|_| Error::BadLength {
            length,
            page: page.bytes(),
        })?;
        // SAFETY: a new mapping at an address chosen by the kernel cannot overlap memory that Rust
        // knows of; the length is positive.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &fd,
                0,
            )
        }
        .map_err(Error::call("mmap"))?;
        let base = NonNull::new(base.cast::<u8>())
            .expect("mmap returns address 0 only if it is requested");
        Ok(Self {
            base,
            length: mapped,
            page,
        })
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length as u64
    }

    /// Returns the page size, which was checked against the kernel when it was mapped.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.page
    }

    /// Prefers a NUMA node for pages that no process has touched yet; other nodes serve when it has
    /// none left. The policy belongs to the memfd, so it also applies when another process touches
    /// the pages.
    ///
    /// # Errors
    /// [`Error::BadNode`] for a node that does not fit the mask; [`Error::Call`] if `mbind` fails, for
    /// example because the default seccomp profile of pods forbids it.
    pub fn prefer_numa_node(&self, node: u32) -> Result<(), Error> {
        let mut mask = [0u64; MASK_WORDS];
        let word = mask.get_mut(node as usize / 64).ok_or(Error::BadNode {
            node,
            limit: NODE_LIMIT,
        })?;
        *word = 1 << (node % 64);
        // SAFETY: the range is this mapping; the mask is valid during the call and has the stated
        // number of bits, of which the kernel subtracts one.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.length,
                libc::MPOL_PREFERRED,
                mask.as_ptr(),
                libc::c_ulong::from(NODE_LIMIT),
                0,
            )
        };
        if done == 0 {
            Ok(())
        } else {
            Err(Error::Call {
                call: "mbind",
                source: io::Error::last_os_error(),
            })
        }
    }

    /// Allocates and maps the pages of a range, charged to the calling process's cgroup. Contents do
    /// not change.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::NoPages`] if the kernel cannot allocate pages.
    pub fn populate(&self, offset: u64, length: u64) -> Result<(), Error> {
        let (start, bytes) = self.checked(offset, length)?;
        // SAFETY: the range is inside this mapping; populating changes no bytes.
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) }
            .map_err(|errno| Error::NoPages {
                offset,
                length,
                source: errno.into(),
            })
    }

    /// Receives at most `length` bytes from a socket directly into the range, without blocking.
    /// Returns the number of bytes; 0 means that the peer has closed its side.
    ///
    /// # Errors
    /// `WouldBlock` if no byte is available; others of `recv(2)`; `InvalidInput` if the range is not
    /// inside the extent.
    pub fn recv_into(&self, socket: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<usize> {
        let (start, bytes) = self.checked(offset, length).map_err(invalid)?;
        // SAFETY: the kernel writes at most `bytes` bytes into a checked range of this mapping, of
        // which no reference exists.
        let count = unsafe {
            libc::recv(
                socket.as_raw_fd(),
                start.as_ptr().cast(),
                bytes,
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Sends `head` and then the range over a socket in one call, without blocking. Either may be
    /// empty. Returns the number of bytes sent, head included.
    ///
    /// # Errors
    /// `WouldBlock` if the send buffer is full; others of `sendmsg(2)`; `InvalidInput` if the range is
    /// not inside the extent.
    pub fn send_from(
        &self,
        socket: BorrowedFd<'_>,
        head: &[u8],
        offset: u64,
        length: u64,
    ) -> io::Result<usize> {
        let mut parts = Outward::default();
        parts.bytes(head)?;
        parts.range(self, offset, length)?;
        parts.send(socket)
    }

    /// Copies bytes into the extent.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Call`] if a page cannot be allocated.
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let (start, _) = self.checked(offset, bytes.len() as u64)?;
        let from = part(bytes.as_ptr().cast_mut(), bytes.len());
        let to = part(start.as_ptr(), bytes.len());
        // SAFETY: both parts are memory of this process: `bytes` is only read, the other is a checked
        // range of this mapping, of which no reference exists.
        let count =
            unsafe { libc::process_vm_writev(own_pid(), &raw const from, 1, &raw const to, 1, 0) };
        whole("copying into", count, bytes.len())
    }

    /// Copies bytes out of the extent.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Call`] if a page cannot be allocated.
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let (start, _) = self.checked(offset, bytes.len() as u64)?;
        let to = part(bytes.as_mut_ptr(), bytes.len());
        let from = part(start.as_ptr(), bytes.len());
        // SAFETY: both parts are memory of this process: `bytes` is borrowed for writing, the other is
        // a checked range of this mapping, which is only read.
        let count =
            unsafe { libc::process_vm_readv(own_pid(), &raw const to, 1, &raw const from, 1, 0) };
        whole("copying out of", count, bytes.len())
    }

    /// Returns the whole mapping, for registration with a device.
    #[cfg(feature = "verbs")]
    pub(crate) fn extent(&self) -> (NonNull<u8>, usize) {
        (self.base, self.length)
    }

    /// Checks that a range is inside the mapping, and returns its start.
    pub(super) fn checked(&self, offset: u64, length: u64) -> Result<(NonNull<u8>, usize), Error> {
        let out_of_range = Error::OutOfRange {
            offset,
            length,
            extent: self.length(),
        };
        let end = offset.checked_add(length);
        match (usize::try_from(offset), usize::try_from(length), end) {
            (Ok(offset), Ok(length), Some(end)) if end <= self.length() => {
                // SAFETY: `offset` is at most the mapping's length, so the result is inside it or
                // one past its end.
                Ok((unsafe { self.base.add(offset) }, length))
            }
            _ => Err(out_of_range),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is the one that `map` created, and it is unmapped only here. A failure
        // leaves it mapped, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

fn part(base: *mut u8, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast(),
        iov_len: length,
    }
}

pub(super) fn invalid(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

fn own_pid() -> libc::pid_t {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn whole(call: &'static str, count: isize, wanted: usize) -> Result<(), Error> {
    match usize::try_from(count) {
        Ok(count) if count == wanted => Ok(()),
        // A short copy stops at the first page that cannot be allocated.
        Ok(_) => Err(Error::Call {
            call,
            source: io::Error::from_raw_os_error(libc::EFAULT),
        }),
        Err(_) => Err(Error::Call {
            call,
            source: io::Error::last_os_error(),
        }),
    }
}
