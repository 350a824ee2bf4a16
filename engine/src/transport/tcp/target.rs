//! Served connections without a data thread, for tests and for the fuzz target of sessions: the caller decides when there is a
//! turn, and what time it is.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use sys::mem::Region;
use tokio::sync::mpsc;

use super::{Bounds, Connector, Tcp};
use crate::admission::{Admission, ConnectionLimit, PeerFilter};
use crate::stats::{Counters, EndpointStats};
use crate::transport::reactor::{Reactor, Ready};
use crate::transport::{
    Before, EndpointId, IdleConnection, LinkId, NewSocket, RegionId, TcpPeer, Transport as _,
};

/// Limit of each wait, and the deadlines of the transport.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub(super) const ENDPOINT: EndpointId = EndpointId(1);
pub(super) const REGION: RegionId = RegionId(2);

#[derive(Debug)]
struct NoConnector;

impl Connector for NoConnector {
    fn connect(&self, _: LinkId, _: &TcpPeer) {}
}

/// A transport that serves one region.
#[derive(Debug)]
pub struct Target {
    pub(super) tcp: Tcp,
    pub(super) reactor: Reactor,
    listener: TcpListener,
    filter: PeerFilter,
    pub(super) limit: Arc<ConnectionLimit>,
    memory: Arc<Region>,
    counters: Arc<Counters>,
}

impl Target {
    /// Serves the memory at a wire base.
    ///
    /// # Panics
    /// If the machine has no descriptors or ports left; so do all methods.
    #[must_use]
    pub fn new(memory: Arc<Region>, base: u64) -> Self {
        let reactor = Reactor::new().expect("an epoll set");
        let bounds = Bounds {
            header: PATIENCE,
            stall: PATIENCE,
        };
        let mut tcp = Tcp::new(bounds, Box::new(NoConnector), reactor.watcher());
        let counters = Arc::new(Counters::default());
        tcp.add_endpoint(ENDPOINT, Admission::Anyone, Arc::clone(&counters));
        tcp.add_region(ENDPOINT, REGION, &memory, base);
        Self {
            tcp,
            reactor,
            listener: TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"),
            filter: PeerFilter::new(Admission::Anyone, Arc::clone(&counters)),
            limit: ConnectionLimit::new(100, 100, Arc::new(AtomicUsize::new(0))),
            memory,
            counters,
        }
    }

    /// Adds a connection; returns the peer's end.
    pub fn connect(&mut self) -> TcpStream {
        let (peer, one) = self.accepted();
        self.add(one, None);
        peer
    }

    /// Returns a connection that is not served yet, with the peer's end.
    pub fn accepted(&self) -> (TcpStream, IdleConnection) {
        let address = self.listener.local_addr().expect("it is bound");
        let peer = TcpStream::connect(address).expect("it listens");
        peer.set_nodelay(true).expect("a socket");
        peer.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let (stream, from) = self.listener.accept().expect("it has connected");
        stream.set_nonblocking(true).expect("a socket");
        let one = IdleConnection {
            socket: OwnedFd::from(stream),
            peer: from.ip(),
            before: Before {
                unread: Vec::new(),
                proven: false,
            },
        };
        (peer, one)
    }

    /// Serves a connection on that another target has passed on.
    pub fn take_over(&mut self, one: IdleConnection) {
        let before = one.before.clone();
        self.add(one, Some(before));
    }

    fn add(&mut self, one: IdleConnection, before: Option<Before>) {
        let permit = self.filter.check(one.peer, &self.limit);
        let accepted = NewSocket::Accepted {
            endpoint: ENDPOINT,
            socket: one.socket,
            permit: permit.expect("few connections"),
            before,
        };
        self.tcp.add_socket(accepted, Instant::now());
    }

    /// Passes on its connections, each when no request is in progress on it.
    pub fn pass_on(&mut self, to: mpsc::UnboundedSender<IdleConnection>) {
        self.tcp.pass_on(ENDPOINT, to);
    }

    /// Stops to serve the region.
    pub fn withdraw(&mut self) {
        self.tcp.withdraw(ENDPOINT, REGION, true);
    }

    /// Waits for descriptors that have work.
    pub fn ready(&mut self, longest: Duration) -> Vec<Ready> {
        let mut ready = Vec::new();
        self.reactor
            .wait(Some(longest), &mut ready)
            .expect("an epoll set");
        ready
    }

    /// Does the work of these descriptors.
    pub fn work(&mut self, ready: &[Ready], now: Instant) {
        self.tcp.ready(ready, now);
        self.tcp.progress(now, &mut Vec::new());
    }

    /// Returns the memory that it serves.
    #[must_use]
    pub fn memory(&self) -> &Arc<Region> {
        &self.memory
    }

    /// Returns its counts.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        self.counters.read(self.limit.count())
    }
}
