//! The interface between a data thread and a transport.

#[cfg(test)]
mod conformance;
#[cfg(feature = "test-transports")]
pub mod fault;
#[cfg(feature = "test-transports")]
pub mod memory;
#[cfg(feature = "rdma")]
pub mod rdma;
#[cfg(feature = "rdma")]
pub(crate) mod rdma_and_tcp;
pub mod reactor;
pub mod tcp;

use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use proto::frame::Version;
use proto::scheduler::{Failure, LinkKey, PieceKey, Slice};
use sys::mem::Region;
use tokio::sync::mpsc;

use crate::admission::{Admission, ConnectionPermit};
use crate::connect::Dialer;
use crate::stats::Counters;

use reactor::{Attention, Ready};

/// Identifies an endpoint; unique within the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(pub(crate) u64);

/// Identifies a region; unique within the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub(crate) u64);

/// Identifies a link; unique within a data thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    /// The endpoint of the link.
    pub endpoint: EndpointId,
    /// The key in the endpoint's scheduler.
    pub link: LinkKey,
}

/// How to reach a peer, from its descriptor.
#[derive(Debug, Clone)]
pub enum PeerAddress {
    /// By its data listener.
    Tcp(TcpPeer),
    /// By a device.
    #[cfg(feature = "rdma")]
    Rdma(Arc<rdma::RdmaPeer>),
}

/// The data listener of a peer.
#[derive(Debug, Clone)]
pub struct TcpPeer {
    /// Server name.
    pub name: Arc<str>,
    /// Addresses of its data listener, tried in order.
    pub data: Vec<SocketAddr>,
    /// Protocol version to use.
    pub version: Version,
    /// Most requests ahead of their answers that it announces; 0 if it announces none.
    pub pipeline_depth: u32,
    /// Opens the connections.
    pub(crate) dialer: Arc<Dialer>,
}

/// Why a link failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LinkError {
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The system's error.
        #[source]
        source: Arc<io::Error>,
    },
    /// The peer's name or descriptor leads to an address that may not connect to the endpoint either.
    #[error("{address} is not admitted, so nothing is sent to it")]
    NotAdmitted {
        /// The address.
        address: IpAddr,
    },
    /// The peer did not answer in time.
    #[error("{what}: no answer in time")]
    TimedOut {
        /// The step that failed.
        what: &'static str,
    },
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer does not serve that range.
    #[error("the peer does not serve that address range")]
    Rejected,
    /// The metadata service does not lead to the peer.
    #[error("{0}")]
    Metadata(#[source] metadata::Error),
    /// The peer violated the protocol.
    #[error("the peer violated the protocol: {0}")]
    Protocol(String),
    /// A device or its peer refuses a connection, or has failed a request.
    #[cfg(feature = "rdma")]
    #[error("{0}")]
    Device(String),
    /// Injected by a test.
    #[cfg(feature = "test-transports")]
    #[error("injected by a test")]
    Injected,
}

impl LinkError {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            what,
            source: Arc::new(source),
        }
    }
}

/// A served connection between two requests. Another engine can serve it on, also in another process.
#[derive(Debug)]
pub struct IdleConnection {
    /// Non-blocking.
    pub socket: OwnedFd,
    /// Address of the peer.
    pub peer: IpAddr,
    /// What is known of it.
    pub before: Before,
}

/// What an engine knows of a connection between two requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Before {
    /// Bytes that were received and belong to requests that have not begun.
    pub unread: Vec<u8>,
    /// A request has begun on it: it is not closed for being idle.
    pub proven: bool,
}

/// A socket that the control side has created.
#[derive(Debug)]
pub enum NewSocket {
    /// Accepted on an endpoint's data listener, from an admitted peer.
    Accepted {
        /// The endpoint of the listener.
        endpoint: EndpointId,
        /// Non-blocking.
        socket: OwnedFd,
        /// Returned to the limiter when the connection closes.
        permit: ConnectionPermit,
        /// What another engine knows of it, if that served it before.
        before: Option<Before>,
    },
    /// The result of a connect that [`Transport::open`] started.
    Connected {
        /// The link.
        link: LinkId,
        /// Non-blocking and connected, or the error.
        socket: Result<OwnedFd, LinkError>,
        /// Protocol version of the link.
        version: Version,
        /// As in [`TcpPeer`].
        pipeline_depth: u32,
    },
}

/// An event that a transport reports.
#[derive(Debug)]
pub enum Event {
    /// A link can carry so many requests at a time, at least one.
    Up(LinkId, usize),
    /// A request on a link that has failed: it had no effect, neither at the peer nor here, and will have none. The
    /// link's `Down` follows.
    Returned(LinkId, PieceKey),
    /// A link failed, and with it each of its requests that was not returned; its release follows.
    Down(LinkId, Failure<LinkError>),
    /// Nothing of a link can access memory any more.
    Released(LinkId),
    /// A request on a link has completed. Requests complete in any order.
    Done(LinkId, PieceKey),
    /// No request of a peer can access this region any more.
    Withdrawn(EndpointId, RegionId),
}

/// A request for a link.
#[derive(Debug, Clone, Copy)]
pub struct Post {
    /// Names the request in [`Event::Done`].
    pub piece: PieceKey,
    /// The bytes to move.
    pub slice: Slice<RegionId>,
}

/// A transport. Each data thread owns one instance and is its only caller. No method blocks.
pub trait Transport: Debug + Send {
    /// Adds an endpoint.
    fn add_endpoint(&mut self, endpoint: EndpointId, admission: Admission, counters: Arc<Counters>);
    /// Removes an endpoint and closes its connections. They are released on return or by later events.
    fn remove_endpoint(&mut self, endpoint: EndpointId);
    /// Returns whether something of a removed endpoint can still access memory.
    fn is_removing(&self, endpoint: EndpointId) -> bool;
    /// Replaces the admission; closes connections of peers that are no longer admitted.
    fn set_admission(&mut self, endpoint: EndpointId, admission: Admission);
    /// Adds memory that links may use, and serves it to peers at a wire base.
    fn add_region(
        &mut self,
        endpoint: EndpointId,
        region: RegionId,
        memory: &Arc<Region>,
        wire_base: u64,
    );
    /// As [`Self::add_region`], before RDMA devices have registered the memory.
    #[cfg(feature = "rdma")]
    fn add_unregistered(
        &mut self,
        endpoint: EndpointId,
        region: RegionId,
        memory: &Arc<Region>,
        wire_base: u64,
    ) {
        self.add_region(endpoint, region, memory, wire_base);
    }
    /// RDMA devices have registered memory of [`Self::add_unregistered`].
    #[cfg(feature = "rdma")]
    fn registered(&mut self, _: EndpointId, _: RegionId, _: &Arc<Region>, _: u64) {}
    /// Rejects this region's addresses from now on and cuts peers' requests in it. Answered by
    /// [`Event::Withdrawn`], for one region in the order of the calls. `forget` also drops the memory.
    fn withdraw(&mut self, endpoint: EndpointId, region: RegionId, forget: bool);
    /// Opens a link. Answered by [`Event::Up`] or [`Event::Down`].
    fn open(&mut self, link: LinkId, to: &PeerAddress);
    /// Takes over a socket from the control side.
    fn add_socket(&mut self, socket: NewSocket, now: Instant);
    /// Takes requests for a link, up to its window, and returns how many of the first it has accepted. A link
    /// without requests accepts at least one. Each accepted request is answered by [`Event::Done`], by
    /// [`Event::Returned`] or by the [`Event::Down`] of its link, within a bound of the transport's own. They may wait for [`Self::flush`].
    fn post(&mut self, link: LinkId, requests: &[Post]) -> usize;
    /// Begins no more requests of peers and passes each served connection on when none is in progress on it. Drops the
    /// sender when no connection is left that can be passed on.
    fn pass_on(&mut self, endpoint: EndpointId, to: mpsc::UnboundedSender<IdleConnection>);
    /// Starts all accepted requests. Called once after the posts of a turn.
    fn flush(&mut self);
    /// Closes a link and cancels its requests. Answered by [`Event::Released`], its last event.
    fn close(&mut self, link: LinkId);
    /// Does the work of the descriptors that one wait has reported: a bounded part of it, so that none waits long for
    /// another. Some may belong to what was removed since the wait.
    fn ready(&mut self, ready: &[Ready], now: Instant);
    /// Returns whether the thread must call [`Self::progress`] without a signal.
    fn attention(&self) -> Attention;
    /// Does the work that no descriptor signals, and reports all events since the last call.
    fn progress(&mut self, now: Instant, events: &mut Vec<Event>);
    /// The time at which [`Self::progress`] has work that no descriptor signals.
    fn next_deadline(&self) -> Option<Instant>;
}
