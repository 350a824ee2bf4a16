//! One hand-over connection: JSON packets with descriptors; each wait has a deadline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sys::net::seqpacket::{self, Peer};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::{Error, PACKET_LIMIT};

/// A connected socket, registered with the runtime it was made in.
#[derive(Debug)]
pub struct Connection {
    /// A stream by type alone: the runtime only watches it, packets go by [`seqpacket`].
    socket: UnixStream,
}

impl Connection {
    /// Takes a non-blocking, connected `SOCK_SEQPACKET` socket.
    ///
    /// # Errors
    /// [`Error::Socket`] if the runtime cannot watch it.
    pub fn new(socket: OwnedFd) -> Result<Self, Error> {
        let socket = UnixStream::from_std(net::UnixStream::from(socket));
        socket.map(Self::from).map_err(at("registering"))
    }

    /// Kernel credentials of the other side.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn peer(&self) -> Result<Peer, Error> {
        seqpacket::peer(&self.socket).map_err(at("reading peer credentials"))
    }

    /// Sends one message.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if the other side does not make room in time; [`Error::InvalidMessage`] if the
    /// message exceeds a packet.
    pub async fn send(
        &self,
        message: &(impl Serialize + Sync),
        descriptors: &[BorrowedFd<'_>],
        deadline: Duration,
    ) -> Result<(), Error> {
        let stage = "sending";
        let bytes = serde_json::to_vec(message).map_err(malformed)?;
        if bytes.len() > PACKET_LIMIT {
            let cause = format!("{} bytes exceed the limit of {PACKET_LIMIT}", bytes.len());
            return Err(Error::InvalidMessage { cause });
        }
        let send = self.socket.async_io(Interest::WRITABLE, || {
            seqpacket::send(self.socket.as_fd(), &bytes, descriptors)
        });
        match tokio::time::timeout(deadline, send).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(source)) if source.kind() == io::ErrorKind::BrokenPipe => {
                Err(Error::Closed { stage })
            }
            Ok(Err(source)) => Err(Error::Socket { stage, source }),
            Err(_) => Err(Error::TimedOut { stage, deadline }),
        }
    }

    /// Receives one message, without a deadline; cancel-safe.
    ///
    /// # Errors
    /// [`Error::Closed`], or [`Error::InvalidMessage`] for a malformed message.
    pub async fn receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), Error> {
        let stage = "receiving";
        let mut buffer = vec![0; PACKET_LIMIT];
        let packet = self
            .socket
            .async_io(Interest::READABLE, || {
                seqpacket::receive(self.socket.as_fd(), &mut buffer)
            })
            .await
            .map_err(|source| match source.kind() {
                io::ErrorKind::InvalidData => malformed(source),
                io::ErrorKind::ConnectionReset => Error::Closed { stage },
                _ => Error::Socket { stage, source },
            })?;
        if packet.length == 0 {
            return Err(Error::Closed { stage });
        }
        let message = serde_json::from_slice(&buffer[..packet.length]).map_err(malformed)?;
        Ok((message, packet.descriptors))
    }
}

impl From<UnixStream> for Connection {
    fn from(socket: UnixStream) -> Self {
        Self { socket }
    }
}

fn at(stage: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Socket { stage, source }
}

fn malformed(cause: impl ToString) -> Error {
    Error::InvalidMessage {
        cause: cause.to_string(),
    }
}
