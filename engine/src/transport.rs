//! What a way of moving bytes must offer to a data thread.

pub mod fault;
pub mod tcp;

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::frame::Version;
use proto::scheduler::{Failure, LinkKey, Slice};
use sys::mem::Region;
use sys::net::Namespace;

use crate::admission::{Admission, Ticket};
use crate::stats::Counters;

/// Names a host for the life of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub(crate) u64);

/// Names a region for the life of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub(crate) u64);

/// Names a link within a data thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    /// Whose link.
    pub host: HostId,
    /// Its name at that host's scheduler.
    pub link: LinkKey,
}

/// How to reach a peer, as read from its descriptor.
#[derive(Debug, Clone)]
pub struct PeerCard {
    /// Server name.
    pub name: Arc<str>,
    /// Addresses of its data listener, to be tried in order.
    pub data: Vec<SocketAddr>,
    /// Protocol version to use.
    pub version: Version,
    /// Network namespace in which sockets to it are made; our own if there is none.
    pub network: Option<Arc<Namespace>>,
}

/// Why a link does not work.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LinkError {
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the kernel said.
        #[source]
        source: Arc<io::Error>,
    },
    /// An answer did not come within the bound of that step.
    #[error("{what}: no answer in time")]
    Silent {
        /// What was being done.
        what: &'static str,
    },
    /// The peer ended the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer does not serve that range.
    #[error("the peer does not serve that address range")]
    Rejected,
    /// The peer said something that the protocol does not have.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// A test asked for this failure.
    #[error("failed on purpose")]
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

/// A socket that somebody else made.
#[derive(Debug)]
pub enum Incoming {
    /// A peer connected to a host's data listener and was admitted.
    Accepted {
        /// Whose listener.
        host: HostId,
        /// Non-blocking.
        socket: OwnedFd,
        /// Its place within the bounds.
        ticket: Ticket,
    },
    /// The end of a connect that [`Transport::open`] asked for.
    Connected {
        /// Whose.
        link: LinkId,
        /// Non-blocking and connected, or why not.
        socket: Result<OwnedFd, LinkError>,
        /// Protocol version to use on it.
        version: Version,
    },
}

/// What a transport reports.
#[derive(Debug)]
pub enum Event {
    /// A link can carry requests.
    Up(LinkId),
    /// A link failed; its release follows.
    Down(LinkId, Failure<LinkError>),
    /// Nothing of a link can touch memory any more.
    Released(LinkId),
    /// The request on a link is done.
    Done(LinkId),
    /// Nothing that peers asked for can touch this region any more.
    Withdrawn(HostId, RegionId),
}

/// One instance per data thread; only that thread calls it.
pub trait Transport: Debug + Send {
    /// A host begins: who may connect, and where to count.
    fn host(&mut self, host: HostId, admission: Admission, counters: Arc<Counters>);
    /// A host ends: everything of it is closed, and released before this returns or by Events.
    fn forget(&mut self, host: HostId);
    /// Who may connect has changed; connections of others are closed.
    fn admit(&mut self, host: HostId, admission: Admission);
    /// Memory that links may use from now on, served to peers at a wire base.
    fn export(&mut self, host: HostId, region: RegionId, memory: &Arc<Region>, wire_base: u64);
    /// Peers are refused this region's addresses, and what they have under way in it is cut.
    /// Answered by [`Event::Withdrawn`]. With `forget` the memory itself is let go of.
    fn withdraw(&mut self, host: HostId, region: RegionId, forget: bool);
    /// Makes a link; Up or Down is an Event.
    fn open(&mut self, link: LinkId, to: &PeerCard);
    /// Takes a socket that somebody else made.
    fn adopt(&mut self, incoming: Incoming, now: Instant);
    /// Carries out one request on a link that is up and has none; Done or Down is an Event.
    fn post(&mut self, link: LinkId, slice: &Slice<RegionId>);
    /// Gives a link up; Released is an Event, and nothing else comes of the link.
    fn close(&mut self, link: LinkId);
    /// From now on [`Self::wait`] also ends when this rings.
    ///
    /// # Errors
    /// What the kernel says about watching it.
    fn answer_to(&mut self, bell: BorrowedFd<'_>) -> io::Result<()>;
    /// Sleeps until there is work, the bell rings, or for so long; the one call that may block. Says
    /// whether the bell rang.
    ///
    /// # Errors
    /// If it cannot be waited.
    fn wait(&mut self, longest: Option<Duration>) -> io::Result<bool>;
    /// Does what [`Self::wait`] found to be done and reports what happened.
    fn progress(&mut self, now: Instant, events: &mut Vec<Event>);
    /// When [`Self::progress`] has work that no descriptor announces.
    fn next_deadline(&self) -> Option<Instant>;
}
