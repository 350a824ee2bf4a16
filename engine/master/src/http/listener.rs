//! Listeners of the HTTP services: for admitted peers, each member with a limited share, and for every peer with few and short
//! connections.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::admission::{Peer, Role};
use crate::leadership::Leadership;
use crate::server::Master;

/// Connections at a time of one member to one listener. Stock engines keep one each.
const MEMBER_CONNECTIONS: usize = 128;
/// Values that arrive at a time from one member.
const MEMBER_BODIES: usize = 4;
/// Fewest entries at which the shares of members without connections are removed.
const LEAST_SHARES: usize = 64;
/// Connections at a time on the open port. Further ones are closed at once.
const OPEN_CONNECTIONS: usize = 64;
/// Longest duration of a connection on the open port.
const OPEN_DURATION: Duration = Duration::from_secs(30);
/// Wait after a failed `accept`, for example without free descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// A listener that closes the connections of some peers before a byte is read, and ends others later.
#[derive(Debug)]
pub(super) struct Guarded {
    listener: TcpListener,
    rule: Rule,
}

#[derive(Debug)]
enum Rule {
    Admitted(Arc<Master>, Shares),
    Open(Arc<Semaphore>),
}

/// What one peer may take of one listener. Its connections hold it.
#[derive(Debug)]
struct Share {
    connections: Arc<Semaphore>,
    bodies: Semaphore,
}

impl Share {
    fn new(role: Role) -> Arc<Self> {
        let (connections, bodies) = match role {
            Role::Member => (MEMBER_CONNECTIONS, MEMBER_BODIES),
            Role::Operator => (Semaphore::MAX_PERMITS, Semaphore::MAX_PERMITS),
        };
        Arc::new(Self {
            connections: Arc::new(Semaphore::new(connections)),
            bodies: Semaphore::new(bodies),
        })
    }
}

/// The shares of peers with connections.
#[derive(Debug, Default)]
struct Shares(Mutex<HashMap<IpAddr, (Role, Weak<Share>)>>);

impl Shares {
    fn of(&self, peer: Peer) -> Arc<Share> {
        let mut shares = self.0.lock();
        let address = peer.address.to_canonical();
        let found = shares.get(&address);
        // Connections of a former role end.
        let found = found.filter(|(role, _)| *role == peer.role);
        if let Some(share) = found.and_then(|(_, share)| share.upgrade()) {
            return share;
        }
        if shares.len() >= LEAST_SHARES && shares.len() == shares.capacity() {
            shares.retain(|_, (_, share)| share.strong_count() > 0);
        }
        let share = Share::new(peer.role);
        shares.insert(address, (peer.role, Arc::downgrade(&share)));
        share
    }
}

/// The peer of a connection, for the handlers of its requests.
#[derive(Debug, Clone)]
pub(super) struct Visitor {
    pub(super) address: IpAddr,
    share: Arc<Share>,
}

impl Visitor {
    /// The turns in which values of this peer arrive.
    pub(super) fn bodies(&self) -> &Semaphore {
        &self.share.bodies
    }
}

impl Connected<IncomingStream<'_, Guarded>> for Visitor {
    fn connect_info(stream: IncomingStream<'_, Guarded>) -> Self {
        Self {
            address: stream.remote_addr().ip(),
            share: Arc::clone(&stream.io().bounds.share),
        }
    }
}

impl Guarded {
    /// Accepts admitted peers, until they are no longer admitted.
    pub(super) fn admitted(listener: TcpListener, master: Arc<Master>) -> Self {
        let rule = Rule::Admitted(master, Shares::default());
        Self { listener, rule }
    }

    /// Accepts every peer.
    pub(super) fn open(listener: TcpListener) -> Self {
        let rule = Rule::Open(Arc::new(Semaphore::new(OPEN_CONNECTIONS)));
        Self { listener, rule }
    }
}

impl Rule {
    /// Returns what bounds the connection; `None` if it is refused.
    fn end(&self, address: SocketAddr) -> Option<Bounds> {
        match self {
            Self::Admitted(master, shares) => {
                let peer = master.admit(address)?;
                let share = shares.of(peer);
                let place = Arc::clone(&share.connections).try_acquire_owned();
                let place = place.ok().or_else(|| {
                    master.traffic().connection_refused();
                    None
                })?;
                Some(Bounds {
                    end: Box::pin(Arc::clone(master).no_longer_served(peer)),
                    leadership: Some(master.leadership().clone()),
                    share,
                    _place: place,
                })
            }
            Self::Open(places) => {
                let place = Arc::clone(places).try_acquire_owned().ok()?;
                Some(Bounds {
                    end: Box::pin(sleep(OPEN_DURATION)),
                    leadership: None,
                    share: Share::new(Role::Member),
                    _place: place,
                })
            }
        }
    }
}

/// What bounds a connection.
struct Bounds {
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Nothing is sent after its end, also where the process was stopped meanwhile.
    leadership: Option<Leadership>,
    share: Arc<Share>,
    _place: OwnedSemaphorePermit,
}

impl Listener for Guarded {
    type Io = Limited;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Limited, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    if let Some(bounds) = self.rule.end(address) {
                        let limited = Limited {
                            stream,
                            bounds,
                            ended: false,
                        };
                        return (limited, address);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for HTTP");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails from a certain moment on.
pub(super) struct Limited {
    stream: TcpStream,
    bounds: Bounds,
    ended: bool,
}

impl Limited {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Bounds {
            end,
            leadership,
            share: _,
            _place: _,
        } = &mut self.bounds;
        self.ended = self.ended
            || leadership.as_ref().is_some_and(|leads| !leads.holds())
            || end.as_mut().poll(context).is_ready();
        if self.ended {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl AsyncRead for Limited {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Limited {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
