//! Options of sockets that no safe crate sets.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// From how many received bytes on a stream socket counts as readable. The kernel makes it readable
/// earlier when it has no room for so many, and when the peer has ended.
///
/// # Errors
/// What the kernel says.
pub fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let length = libc::socklen_t::try_from(size_of_val(&bytes)).expect("the size of an int fits");
    // SAFETY: the option's value is one int, which lives across the call and whose size is given.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            length,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
