//! A mapped extent: bytes that other processes and peers may change at any moment, moved only
//! by bounds-checked calls that let the kernel copy.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::{Error, PageSize, memfd};

/// NUMA nodes that a policy can name: bits of the mask given to `mbind(2)`.
const NODE_LIMIT: u32 = 1024;
const MASK_WORDS: usize = NODE_LIMIT as usize / 64;

/// Where the pages of an extent shall come from. Holds for pages that nobody has touched yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NumaPolicy {
    /// Only these nodes; touching fails where they have none left.
    Bind(Vec<u32>),
    /// In turn over these nodes.
    Interleave(Vec<u32>),
    /// These nodes first, others when they have none left.
    Prefer(u32),
}

/// A shared mapping of a sealed memfd.
///
/// Any process that holds the descriptor may write to it while we look, so no reference to its
/// bytes is ever made. Every transfer is done by the kernel on a checked range: if the owner
/// punched a hole that cannot be filled again, the call fails and our process lives.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    length: usize,
    page: PageSize,
}

// SAFETY: the mapping belongs to the process and not to a thread, and `Region` is the only owner
// of it; moving the owner to another thread changes nothing.
unsafe impl Send for Region {}
// SAFETY: no method makes a reference into the mapping. All access is by system calls on checked
// ranges, which the kernel allows from any number of threads at once.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a sealed memfd, after checking that it is what its owner declared
    /// (see [`memfd::check`]). The descriptor is closed; the mapping keeps the memory.
    ///
    /// Huge pages are not reserved by mapping, so that the process which touches them is the one
    /// that pays.
    ///
    /// # Errors
    /// The property that does not hold, or [`Error::Call`] if there is no room to map.
    pub fn map(fd: OwnedFd, length: u64, page: PageSize) -> Result<Self, Error> {
        memfd::check(fd.as_fd(), length, page)?;
        let mapped = usize::try_from(length).map_err(|_| Error::BadLength {
            length,
            page: page.bytes(),
        })?;
        // SAFETY: a fresh mapping at an address of the kernel's choice cannot overlap memory
        // that Rust knows of; the length is positive.
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
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never returns address 0 unasked");
        Ok(Self {
            base,
            length: mapped,
            page,
        })
    }

    /// Bytes of the extent.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length as u64
    }

    /// The page size that was really obtained: checked against the kernel when it was mapped.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.page
    }

    /// Asks that pages come from certain NUMA nodes. The policy is the memfd's, shared by all who
    /// map it, so it also holds when another process touches the pages. Pages that are already
    /// there stay where they are.
    ///
    /// # Errors
    /// [`Error::BadNode`], or [`Error::Call`] (`mbind` is forbidden by the default seccomp
    /// profile, so ordinary pods cannot do this).
    pub fn set_numa_policy(&self, policy: &NumaPolicy) -> Result<(), Error> {
        let (mode, nodes) = match policy {
            NumaPolicy::Bind(nodes) => (libc::MPOL_BIND, nodes.as_slice()),
            NumaPolicy::Interleave(nodes) => (libc::MPOL_INTERLEAVE, nodes.as_slice()),
            NumaPolicy::Prefer(node) => (libc::MPOL_PREFERRED, std::slice::from_ref(node)),
        };
        let mut mask = [0u64; MASK_WORDS];
        for &node in nodes {
            if node >= NODE_LIMIT {
                return Err(Error::BadNode {
                    node,
                    limit: NODE_LIMIT,
                });
            }
            mask[node as usize / 64] |= 1 << (node % 64);
        }
        // SAFETY: the range is our own mapping, the mask lives across the call and has the
        // stated number of bits plus the one that the kernel subtracts.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.length,
                mode,
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

    /// Makes the pages of a range exist and be mapped, charged to the calling process's cgroup.
    /// Contents do not change. Call it for pieces (64 MiB, say) to show progress.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::NoPages`] if there are none to be had, without a signal.
    pub fn populate(&self, offset: u64, length: u64) -> Result<(), Error> {
        let (start, bytes) = self.checked(offset, length)?;
        // SAFETY: the range was checked to lie in our mapping; populating changes no bytes.
        unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) }
            .map_err(|errno| Error::NoPages {
                offset,
                length,
                source: errno.into(),
            })
    }

    /// Receives from a socket directly into the range, at most `length` bytes, without blocking.
    /// Returns how many came; 0 means that the peer ended its side.
    ///
    /// # Errors
    /// What the kernel says (`WouldBlock` when nothing is there); `InvalidInput` if the range
    /// leaves the extent.
    pub fn recv_into(&self, socket: BorrowedFd<'_>, offset: u64, length: u64) -> io::Result<usize> {
        let (start, bytes) = self.checked(offset, length).map_err(invalid)?;
        // SAFETY: the kernel writes at most `bytes` bytes into a checked range of our own mapping,
        // of which no reference exists.
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

    /// Sends `head` and then the range over a socket in one call, without blocking; either may be
    /// empty. `more` says that further bytes follow at once (`MSG_MORE`). Returns how many bytes
    /// of the two together went.
    ///
    /// # Errors
    /// What the kernel says (`WouldBlock` when its buffer is full); `InvalidInput` if the range
    /// leaves the extent.
    pub fn send_from(
        &self,
        socket: BorrowedFd<'_>,
        head: &[u8],
        offset: u64,
        length: u64,
        more: bool,
    ) -> io::Result<usize> {
        let (start, bytes) = self.checked(offset, length).map_err(invalid)?;
        let mut parts = [
            libc::iovec {
                iov_base: head.as_ptr().cast_mut().cast(),
                iov_len: head.len(),
            },
            libc::iovec {
                iov_base: start.as_ptr().cast(),
                iov_len: bytes,
            },
        ];
        // SAFETY: all-zero is a valid `msghdr`: no name, no parts, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        let more = if more { libc::MSG_MORE } else { 0 };
        // SAFETY: the message points at two parts that live across the call: `head`, and a checked
        // range of our own mapping. The kernel only reads them.
        let count = unsafe {
            libc::sendmsg(
                socket.as_raw_fd(),
                &raw const message,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more,
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Copies ordinary bytes into the extent.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], or [`Error::Call`] if a page cannot be had.
    pub fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let (start, _) = self.checked(offset, bytes.len() as u64)?;
        let from = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let to = libc::iovec {
            iov_base: start.as_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: both parts are memory of this process: `bytes` is only read, the other is a
        // checked range of our own mapping of which no reference exists.
        let count =
            unsafe { libc::process_vm_writev(own_pid(), &raw const from, 1, &raw const to, 1, 0) };
        whole("copying into", count, bytes.len())
    }

    /// Copies bytes out of the extent.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], or [`Error::Call`] if a page cannot be had.
    pub fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let (start, _) = self.checked(offset, bytes.len() as u64)?;
        let to = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let from = libc::iovec {
            iov_base: start.as_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: both parts are memory of this process: `bytes` is borrowed for writing, the
        // other is a checked range of our own mapping, which is only read.
        let count =
            unsafe { libc::process_vm_readv(own_pid(), &raw const to, 1, &raw const from, 1, 0) };
        whole("copying out of", count, bytes.len())
    }

    /// The whole mapping, for a device that is to reach it.
    #[cfg(feature = "verbs")]
    pub(crate) fn extent(&self) -> (NonNull<u8>, usize) {
        (self.base, self.length)
    }

    /// The start of a range that lies in the mapping.
    fn checked(&self, offset: u64, length: u64) -> Result<(NonNull<u8>, usize), Error> {
        let out_of_range = Error::OutOfRange {
            offset,
            length,
            extent: self.length(),
        };
        let end = offset.checked_add(length);
        match (usize::try_from(offset), usize::try_from(length), end) {
            (Ok(offset), Ok(length), Some(end)) if end <= self.length() => {
                // SAFETY: `offset` is at most the mapping's length, so the result stays within
                // it or one past its end.
                Ok((unsafe { self.base.add(offset) }, length))
            }
            _ => Err(out_of_range),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `map` made, and nobody else unmaps it. A failure
        // would leave it mapped, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

fn invalid(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

fn own_pid() -> libc::pid_t {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn whole(call: &'static str, count: isize, wanted: usize) -> Result<(), Error> {
    match usize::try_from(count) {
        Ok(count) if count == wanted => Ok(()),
        // A short copy stops at the first page that cannot be had.
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
