//! `SOCK_SEQPACKET` Unix sockets on abstract addresses: whole packets, descriptors beside them,
//! and the kernel's word about who is at the other end.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Most descriptors in one packet; the kernel's own bound is 253.
pub const MAX_DESCRIPTORS: usize = 64;

/// Who is at the other end, as of when it connected (or listened), in our own namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id as this process's pid namespace sees it; `None` where it does not see it.
    pub pid: Option<u32>,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// One received packet.
#[derive(Debug)]
pub struct Packet {
    /// Bytes written to the start of the buffer; 0 means that the peer closed.
    pub length: usize,
    /// Descriptors that came along, close-on-exec, in the sender's order.
    pub descriptors: Vec<OwnedFd>,
}

/// Listens on abstract address `name` in the calling thread's network namespace. The socket and
/// what it accepts block only where the caller says so: it is made non-blocking.
///
/// # Errors
/// What the kernel says, `AddrInUse` if somebody listens there.
pub fn listen(name: &str, backlog: i32) -> io::Result<OwnedFd> {
    let socket = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::bind(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Accepts one connection, non-blocking.
///
/// # Errors
/// `WouldBlock` if nobody waits.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::accept_with(listener, flags)?)
}

/// Connects to abstract address `name` in the calling thread's network namespace (use
/// [`super::Namespace::run`] for another one). Never waits: a full backlog is `WouldBlock`. The
/// socket is non-blocking.
///
/// # Errors
/// `ConnectionRefused` if nobody listens there.
pub fn connect(name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::connect(
        &socket,
        &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
    )?;
    Ok(socket)
}

/// Sends one packet with descriptors beside it. The bytes must not be empty: an empty packet
/// reads as the end.
///
/// # Errors
/// `WouldBlock` if the peer's queue is full, `InvalidInput` for an empty packet or more than
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

/// Receives one packet. A packet larger than `buffer`, or with more than [`MAX_DESCRIPTORS`], is
/// an error; descriptors of such a packet are closed.
///
/// # Errors
/// `WouldBlock` if nothing is there, `InvalidData` for a packet that does not fit.
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
            "a packet larger than agreed",
        ));
    }
    Ok(Packet {
        length: got.bytes,
        descriptors,
    })
}

/// The kernel's word about the peer of a connected Unix socket (`SO_PEERCRED`).
///
/// # Errors
/// What the kernel says, e.g. if this is no Unix socket.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("12 bytes fit");
    // Not by rustix: a peer outside our pid namespace has pid 0, which its type cannot hold.
    // SAFETY: the kernel writes at most `length` bytes, the size of the structure it points at.
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

fn new_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}
