//! Socket options without a safe wrapper elsewhere.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets the number of received bytes from which a stream socket is readable (`SO_RCVLOWAT`). It is also
/// readable when its buffer cannot hold that many, and when the peer has closed.
///
/// # Errors
/// From `setsockopt(2)`.
pub fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let length = libc::socklen_t::try_from(size_of_val(&bytes)).expect("the size of an int fits");
    // SAFETY: the value is one int, valid during the call, with its size.
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
