//! `SOCK_SEQPACKET` Unix sockets on abstract addresses and on paths: packets with descriptors, and the credentials of
//! the peer.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Most descriptors in one packet; the kernel's limit is 253.
pub const MAX_DESCRIPTORS: usize = 64;

/// The credentials of a peer when it connected or listened, in this process's namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process ID in this process's PID namespace; `None` if it is not visible there.
    pub pid: Option<u32>,
    /// User ID.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
}

/// One received packet.
#[derive(Debug)]
pub struct Packet {
    /// Bytes at the start of the buffer; 0 if the peer has closed.
    pub length: usize,
    /// Descriptors of the packet, close-on-exec, in the sender's order.
    pub descriptors: Vec<OwnedFd>,
}

/// Listens on abstract address `name` in the calling thread's network namespace. The socket is
/// non-blocking.
///
/// # Errors
/// `AddrInUse` if the address is taken; others of `socket(2)`, `bind(2)` and `listen(2)`.
pub fn listen(name: &str, backlog: i32) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    rustix::net::bind(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Binds a non-blocking socket to a path. It refuses connections until [`start_listening`]: the credentials that a
/// client sees are those of the caller of that.
///
/// # Errors
/// `AddrInUse` if the path exists; others of `socket(2)` and `bind(2)`.
pub fn bind_path(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Listens on a bound socket.
///
/// # Errors
/// From `listen(2)`.
pub fn start_listening(socket: impl AsFd, backlog: i32) -> io::Result<()> {
    Ok(rustix::net::listen(socket, backlog)?)
}

/// Connects to a path. Does not block. The socket is non-blocking.
///
/// # Errors
/// `NotFound` without a socket; `ConnectionRefused` without a listener; `WouldBlock` if its backlog is full.
pub fn connect_path(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Creates two sockets that are connected to each other, both non-blocking.
///
/// # Errors
/// From `socketpair(2)`.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Accepts one connection, non-blocking.
///
/// # Errors
/// `WouldBlock` if there is no connection to accept.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::accept_with(listener, flags)?)
}

/// Connects to abstract address `name` in the calling thread's network namespace (use
/// [`super::Namespace::run`] for another one). Does not block. The socket is non-blocking.
///
/// # Errors
/// `ConnectionRefused` without a listener; `WouldBlock` if its backlog is full.
pub fn connect(name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    rustix::net::connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    Ok(socket)
}

/// Sends one packet with descriptors. The receiver would read an empty packet as the end.
///
/// # Errors
/// `WouldBlock` if the peer's queue is full; `InvalidInput` for an empty packet or more than
/// [`MAX_DESCRIPTORS`].
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.is_empty() || descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Receives one packet.
///
/// # Errors
/// `WouldBlock` if there is none; `InvalidData` if it is larger than `buffer` or has more than
/// [`MAX_DESCRIPTORS`], which are then closed.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Packet> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let mut parts = [IoSliceMut::new(buffer)];
    let got = rustix::net::recvmsg(socket, &mut parts, &mut control, flags)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if got
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the packet is larger than the buffer",
        ));
    }
    Ok(Packet {
        length: got.bytes,
        descriptors,
    })
}

/// Returns the credentials of the peer of a connected Unix socket (`SO_PEERCRED`).
///
/// # Errors
/// From `getsockopt(2)`, for example if this is not a Unix socket.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("12 bytes fit");
    // Not through rustix: its type cannot hold PID 0, that of a peer outside the PID namespace.
    // SAFETY: the kernel writes at most `length` bytes, the size of the structure.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let pid = u32::try_from(credentials.pid).ok().filter(|pid| *pid != 0);
    Ok(Peer {
        pid,
        uid: credentials.uid,
        gid: credentials.gid,
    })
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}
