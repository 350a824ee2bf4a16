//! Outgoing sockets: created in the endpoint's network namespace, connected within a deadline and, where others
//! choose the peers, to admitted addresses only. Sockets are configured so that the kernel detects a dead peer: soon if they
//! are own ones, and late if they are served.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};
use sys::net::Namespace;
use tokio::net::{TcpSocket, TcpStream};

use crate::admission::{PeerFilter, Targets};
use crate::settings::Settings;
use crate::transport::{LinkError, TcpPeer};

/// Connects to a peer's data listener. Tries its addresses in order, all within the connect timeout.
pub(crate) async fn data(to: &TcpPeer, settings: Settings) -> Result<OwnedFd, LinkError> {
    const WHAT: &str = "connecting to the data port";
    let mut last = LinkError::io(WHAT)(io::ErrorKind::AddrNotAvailable.into());
    let tries = async {
        for address in &to.data {
            match to.dialer.stream(*address, WHAT).await {
                Ok(stream) => return Some(stream),
                Err(error) => last = error,
            }
        }
        None
    };
    let connected = match tokio::time::timeout(settings.connect_timeout, tries).await {
        Err(_) => return Err(LinkError::TimedOut { what: WHAT }),
        Ok(None) => return Err(last),
        Ok(Some(stream)) => stream,
    };
    let socket: OwnedFd = connected.into_std().map_err(LinkError::io(WHAT))?.into();
    detect_dead_peer(&socket, settings.user_timeout).map_err(LinkError::io(WHAT))?;
    Ok(socket)
}

/// Looks up hosts and opens connections for one endpoint.
#[derive(Debug)]
pub(crate) struct Dialer {
    /// Network namespace of the sockets. `None`: that of this process.
    pub(crate) network: Option<Arc<Namespace>>,
    pub(crate) filter: Arc<PeerFilter>,
    pub(crate) targets: Targets,
}

impl Dialer {
    /// Connects to one address, without a deadline of its own. Checks the admission at each connection: since the
    /// last one another pod may have got the address.
    pub(crate) async fn stream(
        &self,
        address: SocketAddr,
        what: &'static str,
    ) -> Result<TcpStream, LinkError> {
        if self.targets == Targets::Admitted && !self.filter.allows(address.ip()) {
            return Err(LinkError::NotAdmitted {
                address: address.ip(),
            });
        }
        let domain = Domain::for_address(address);
        let create = move || {
            let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(true)?;
            Ok(socket)
        };
        let socket = self.run(create).await.map_err(LinkError::io(what))?;
        TcpSocket::from_std_stream(socket.into())
            .connect(address)
            .await
            .map_err(LinkError::io(what))
    }

    /// Returns the addresses of a host. A name is looked up from inside the network namespace, with the resolver
    /// configuration of this process.
    pub(crate) async fn lookup(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, LinkError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let name = (host.to_owned(), port);
        let look_up = move || name.to_socket_addrs().map(Iterator::collect);
        self.run(look_up)
            .await
            .map_err(LinkError::io("looking up the peer's host"))
    }

    /// Runs a blocking call inside the network namespace.
    async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let network = self.network.clone();
        let inside = move || match network {
            None => call(),
            Some(network) => network.run(call),
        };
        tokio::task::spawn_blocking(inside)
            .await
            .map_err(io::Error::other)?
    }
}

/// Pause before the first probe of an idle served connection, pause between the next ones, and their number.
/// Firewalls forget a connection without packets, some after 350 s.
const SERVED_IDLE: Duration = Duration::from_secs(60);
const SERVED_INTERVAL: Duration = Duration::from_secs(60);
const SERVED_PROBES: u32 = 14;

/// Configures the kernel to end a served connection when its peer has been silent for a quarter of an hour. A network may fail
/// for minutes (a switch restarts, a virtual machine moves): a stock peer does not notice it, and its next request on a
/// connection that was ended meanwhile fails, hours later. A timer finds a peer without progress within a request, or one that
/// does not acknowledge its answers.
pub(crate) fn outlast_gaps(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SERVED_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, SERVED_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, SERVED_PROBES)?;
    // None: it would also end the connection at the second probe without an answer. An engine of an earlier release has set one
    // on the sockets that it passed on.
    Ok(sockopt::set_tcp_user_timeout(socket, 0)?)
}

/// Configures the kernel to report a dead peer of an own link within `bound`, with or without bytes in flight.
fn detect_dead_peer(socket: impl AsFd, bound: Duration) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    // First probe after a third of the bound, then every sixth: the last one is due at five sixths,
    // where the user timeout ends the connection.
    let second = Duration::from_secs(1);
    let interval = (bound / 6).max(second);
    sockopt::set_tcp_keepidle(socket, (bound / 3).max(second))?;
    sockopt::set_tcp_keepintvl(socket, interval)?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    let end = bound.saturating_sub(interval).max(second);
    let end = u32::try_from(end.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(socket, end)?)
}
