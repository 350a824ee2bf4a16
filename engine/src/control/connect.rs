//! Outgoing sockets: made in the host's network namespace, connected within a bound, and set so
//! that a dead peer is noticed.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use sys::net::Namespace;
use tokio::net::{TcpSocket, TcpStream};

use crate::settings::Settings;
use crate::transport::{LinkError, PeerCard};

/// Connects to a peer's data listener, trying its addresses in order within one bound.
pub(crate) async fn data(card: &PeerCard, settings: Settings) -> Result<OwnedFd, LinkError> {
    const WHAT: &str = "connecting to the data port";
    let mut last = LinkError::io(WHAT)(io::ErrorKind::AddrNotAvailable.into());
    let tries = async {
        for address in &card.data {
            match stream(card.network.as_ref(), *address).await {
                Ok(stream) => return Some(stream),
                Err(error) => last = LinkError::io(WHAT)(error),
            }
        }
        None
    };
    let connected = match tokio::time::timeout(settings.connect_timeout, tries).await {
        Err(_) => return Err(LinkError::Silent { what: WHAT }),
        Ok(None) => return Err(last),
        Ok(Some(stream)) => stream,
    };
    let socket: OwnedFd = connected.into_std().map_err(LinkError::io(WHAT))?.into();
    watch_for_death(&socket, settings.user_timeout).map_err(LinkError::io(WHAT))?;
    Ok(socket)
}

/// Connects to one address; the caller sets the bound.
pub(crate) async fn stream(
    network: Option<&Arc<Namespace>>,
    address: SocketAddr,
) -> io::Result<TcpStream> {
    let domain = Domain::for_address(address);
    let make = move || {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        Ok(socket)
    };
    let socket = match network.cloned() {
        None => make()?,
        Some(network) => tokio::task::spawn_blocking(move || network.run(make))
            .await
            .map_err(io::Error::other)??,
    };
    TcpSocket::from_std_stream(socket.into())
        .connect(address)
        .await
}

/// Has the kernel find a dead peer within `bound`, whether or not bytes are under way.
pub(crate) fn watch_for_death(socket: impl AsFd, bound: Duration) -> io::Result<()> {
    let socket = socket.as_fd();
    rustix::net::sockopt::set_tcp_nodelay(socket, true)?;
    rustix::net::sockopt::set_socket_keepalive(socket, true)?;
    // First probe after a third of the bound, then every sixth: the last one that still fits
    // falls at five sixths, where the user timeout then ends the connection.
    let second = Duration::from_secs(1);
    let interval = (bound / 6).max(second);
    rustix::net::sockopt::set_tcp_keepidle(socket, (bound / 3).max(second))?;
    rustix::net::sockopt::set_tcp_keepintvl(socket, interval)?;
    rustix::net::sockopt::set_tcp_keepcnt(socket, 3)?;
    let end = bound.saturating_sub(interval).max(second);
    let end = u32::try_from(end.as_millis()).unwrap_or(u32::MAX);
    Ok(rustix::net::sockopt::set_tcp_user_timeout(socket, end)?)
}
