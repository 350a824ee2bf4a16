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
    set(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// Makes `Inward::receive_counted` report how many bytes are left in the receive buffer of a TCP socket
/// (`TCP_INQ`).
///
/// # Errors
/// From `setsockopt(2)`: the socket is not a TCP socket, or the kernel lacks the option.
pub fn report_queued(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_INQ, 1)
}

/// Returns how many bytes a TCP socket holds that its peer has not acknowledged, sent or not (`SIOCOUTQ`).
///
/// # Errors
/// From `ioctl(2)`: the socket is a listener.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one int, which is valid during the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Sets an option whose value is an int.
fn set(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(&value)).expect("the size of an int fits");
    // SAFETY: the value is one int, valid during the call, with its size.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            length,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
