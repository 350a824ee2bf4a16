//! The TCP transport: compatible with stock engines as target and as initiator. The kernel copies payload
//! directly into and out of regions.

mod outgoing;
mod served;
#[cfg(any(test, feature = "test-transports"))]
pub mod target;
mod timer;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::extent::ExtentMap;
use proto::frame::Version;
use proto::scheduler::{Effect, Failure};
use rustix::event::{PollFd, PollFlags, Timespec};
use slotmap::{Key as _, KeyData, SlotMap, new_key_type};
use sys::mem::Region;
use sys::net::socket::report_queued;
use tokio::sync::mpsc;

use super::reactor::{Attention, EventFlags, Ready, Token, Watcher};
use super::{
    EndpointId, Event, IdleConnection, LinkError, LinkId, NewSocket, PeerAddress, Post, RegionId,
    TcpPeer, Transport,
};
use crate::admission::Admission;
use crate::ended::Ended;
use crate::stats::Counters;

use outgoing::Outgoing;
use served::{Served, Visit};
use timer::Timers;

/// Most bytes that one connection moves before the others are served, if no other has work at the same time.
const TURN_BYTES: u64 = 256 << 10;
/// Most bytes if others have, apart from what a connection receives in portions of [`TURN_BYTES`]. Less costs large
/// requests more than it gives small ones (`mooncake-bench fair`).
const SHARE_BYTES: u64 = TURN_BYTES / 2;
/// Most bytes per send call: a peer on the same machine then reads them while they are in the cache.
const SEND_BYTES: u64 = 64 << 10;
/// The epoll events of a connection that waits for bytes.
const READABLE: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);
/// Most requests that an own peer may send ahead of their answers on a connection. Stock initiators send one at a time.
pub(crate) const PIPELINE_DEPTH: u32 = 16;

new_key_type! {
    struct ConnectionKey;
}

/// Converts the number that a token or a timer carries.
fn connection_key(number: u64) -> ConnectionKey {
    KeyData::from_ffi(number).into()
}

fn token(key: ConnectionKey) -> Token {
    Token(key.data().as_ffi())
}

/// Whether a token can be one of [`token`]: those have the version of the key, which is not zero, in their upper half.
#[cfg(feature = "rdma")]
pub(super) fn is_token(token: Token) -> bool {
    token.0 > u64::from(u32::MAX)
}

/// Connects on the control side, in the network namespace of the endpoint. The result arrives as
/// [`NewSocket::Connected`].
pub trait Connector: std::fmt::Debug + Send {
    /// Starts to connect.
    fn connect(&self, link: LinkId, to: &TcpPeer);
}

/// Deadlines of served connections.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// For the first valid header, from its first byte on.
    pub header: Duration,
    /// For a payload without progress.
    pub stall: Duration,
}

/// The TCP transport of one data thread.
#[derive(Debug)]
pub struct Tcp {
    watcher: Watcher,
    connections: SlotMap<ConnectionKey, Connection>,
    links: HashMap<LinkId, ConnectionKey>,
    endpoints: HashMap<EndpointId, ServedEndpoint>,
    regions: HashMap<RegionId, Arc<Region>>,
    timers: Timers,
    bounds: Bounds,
    connector: Box<dyn Connector>,
    events: Vec<Event>,
    /// Links with accepted requests, of which [`Transport::flush`] sends the first bytes.
    accepted: Vec<ConnectionKey>,
    /// A peer was served more than the request that epoll had reported. Until the next wait, what epoll reported of the
    /// other connections may be older than a request that was carried out.
    ahead_of_epoll: bool,
    /// Most bytes that each connection moves in this turn.
    share: u64,
    /// Work of one turn that waits for that of other connections.
    later: Vec<Ready>,
}

/// The state that an endpoint's served connections share.
#[derive(Debug)]
struct ServedEndpoint {
    extents: ExtentMap<RegionId>,
    admission: Admission,
    counters: Arc<Counters>,
    /// Its served connections are passed on: no more requests are begun.
    passed: Option<mpsc::UnboundedSender<IdleConnection>>,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    /// The events that epoll watches.
    interest: EventFlags,
    /// It serves a peer, and has used its share in its latest turn.
    is_busy: bool,
    role: Role,
}

#[derive(Debug)]
enum Role {
    Served(Served),
    Outgoing(Outgoing),
}

/// What epoll reported about the peer's end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerEnd {
    Open,
    /// The peer sends nothing more. Bytes before the end may be queued here.
    Finished,
    /// The connection was reset or has failed. Bytes from before may be queued here.
    Reset,
}

impl PeerEnd {
    fn of(flags: EventFlags) -> Self {
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            Self::Reset
        } else if flags.contains(EventFlags::RDHUP) {
            Self::Finished
        } else {
            Self::Open
        }
    }

    /// Reads it from the kernel.
    fn poll(socket: BorrowedFd<'_>) -> Self {
        let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
        let at_once = Timespec::default();
        // Fails only if the kernel has no memory; then the peer counts as gone.
        if rustix::event::poll(&mut polled, Some(&at_once)).is_err() {
            return Self::Reset;
        }
        let flags = polled[0].revents();
        if flags.intersects(PollFlags::HUP | PollFlags::ERR) {
            Self::Reset
        } else if flags.contains(PollFlags::RDHUP) {
            Self::Finished
        } else {
            Self::Open
        }
    }
}

/// Why a connection gets a turn.
#[derive(Debug, Clone, Copy)]
enum Cause {
    /// Requests were posted on it.
    Posted,
    /// Epoll has reported this of it.
    Ready(EventFlags),
    /// Its timer is due.
    Due,
}

impl Cause {
    /// Returns what is known about the peer's end.
    fn peer(self) -> PeerEnd {
        match self {
            Self::Ready(flags) => PeerEnd::of(flags),
            Self::Posted | Self::Due => PeerEnd::Open,
        }
    }

    /// Returns whether the socket may have space.
    fn may_send(self) -> bool {
        match self {
            Self::Ready(flags) => {
                flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR)
            }
            Self::Posted | Self::Due => true,
        }
    }

    /// Returns whether the socket may have bytes, or the end of the stream. If requests were posted, epoll reports
    /// what arrives.
    fn may_receive(self) -> bool {
        match self {
            Self::Posted => false,
            Self::Ready(flags) => flags.intersects(READABLE | EventFlags::HUP | EventFlags::ERR),
            // Below the low-water mark, bytes do not wake the thread.
            Self::Due => true,
        }
    }
}

/// What a connection waits for after a turn.
#[derive(Debug)]
enum Turn {
    /// Bytes from the peer.
    Readable,
    /// Space in the send buffer.
    Writable,
    /// Either.
    Both,
    /// Its next share: requests are left that it has received already.
    Share,
    /// Nothing: it is finished.
    Over,
}

impl Tcp {
    /// Creates a transport without endpoints.
    #[must_use]
    pub fn new(bounds: Bounds, connector: Box<dyn Connector>, watcher: Watcher) -> Self {
        Self {
            watcher,
            connections: SlotMap::with_key(),
            links: HashMap::new(),
            endpoints: HashMap::new(),
            regions: HashMap::new(),
            timers: Timers::default(),
            bounds,
            connector,
            events: Vec::new(),
            accepted: Vec::new(),
            ahead_of_epoll: false,
            share: TURN_BYTES,
            later: Vec::new(),
        }
    }

    /// Adds a connection and watches it.
    fn add(&mut self, socket: OwnedFd, role: Role) -> io::Result<ConnectionKey> {
        let interest = READABLE;
        let key = self.connections.insert(Connection {
            socket,
            interest,
            is_busy: false,
            role,
        });
        let Some(connection) = self.connections.get(key) else {
            return Ok(key);
        };
        let watched = self.watcher.add(&connection.socket, token(key), interest);
        if watched.is_err() {
            self.connections.remove(key);
        }
        watched.map(|()| key)
    }

    /// Moves bytes of one connection, up to its share.
    fn turn(&mut self, key: ConnectionKey, cause: Cause, now: Instant) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let socket = connection.socket.as_fd();
        let next = match &mut connection.role {
            Role::Served(served) => {
                let Some(endpoint) = self.endpoints.get(&served.endpoint) else {
                    return;
                };
                let peer = if self.ahead_of_epoll {
                    PeerEnd::poll(socket)
                } else {
                    cause.peer()
                };
                let mut visit =
                    Visit::new((socket, peer), endpoint, &self.regions, self.share, now);
                let turn = served.turn(&mut visit);
                connection.is_busy = visit.is_over();
                self.ahead_of_epoll |= visit.requests() > 1;
                match turn {
                    Ok(_) if endpoint.passed.is_some() && served.is_idle() => {
                        self.pass(key);
                        return;
                    }
                    Ok(turn) => {
                        if let Some(due) = served.arm_timer(self.bounds) {
                            self.timers.push(due, key.data().as_ffi());
                        }
                        turn
                    }
                    Err(ended) => {
                        endpoint.counters.ended(served.permit.peer(), ended);
                        Turn::Over
                    }
                }
            }
            Role::Outgoing(link) => {
                match link.turn(socket, cause, (self.share, now), &mut self.events) {
                    Ok(turn) => {
                        if let Some(due) = link.arm_timer(self.bounds.stall) {
                            self.timers.push(due, key.data().as_ffi());
                        }
                        turn
                    }
                    Err(failure) => {
                        let id = link.link;
                        self.fail(id, failure);
                        return;
                    }
                }
            }
        };
        self.watch(key, &next);
    }

    /// Updates the events that epoll watches for a connection.
    fn watch(&mut self, key: ConnectionKey, next: &Turn) {
        let interest = match next {
            Turn::Readable => READABLE,
            Turn::Writable => EventFlags::OUT,
            Turn::Both => EventFlags::IN | EventFlags::OUT,
            // Reported at once, and with the peer's end.
            Turn::Share => READABLE.union(EventFlags::OUT),
            Turn::Over => {
                self.drop_connection(key);
                return;
            }
        };
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if connection.interest == interest {
            return;
        }
        connection.interest = interest;
        let changed = self
            .watcher
            .change(&connection.socket, token(key), interest);
        let Err(error) = changed else { return };
        // An unwatched connection would never make progress.
        match &connection.role {
            Role::Served(_) => self.drop_connection(key),
            Role::Outgoing(out) => {
                let link = out.link;
                let failure = Failure {
                    cause: LinkError::io("watching a connection")(error),
                    effect: Effect::Unknown,
                    reply_seen: true,
                };
                self.fail(link, failure);
            }
        }
    }

    /// Closes a connection, without an event if it was a link.
    fn drop_connection(&mut self, key: ConnectionKey) {
        let Some(connection) = self.connections.remove(key) else {
            return;
        };
        if let Role::Outgoing(link) = &connection.role {
            self.links.remove(&link.link);
            if link.is_writing() {
                abort_on_close(&connection.socket);
            }
        }
        self.watcher.remove(&connection.socket);
    }

    /// Passes on an idle connection.
    fn pass(&mut self, key: ConnectionKey) {
        let Some(connection) = self.connections.remove(key) else {
            return;
        };
        self.watcher.remove(&connection.socket);
        let Role::Served(served) = connection.role else {
            return;
        };
        let endpoint = self.endpoints.get(&served.endpoint);
        if let Some(to) = endpoint.and_then(|endpoint| endpoint.passed.as_ref()) {
            let passed = IdleConnection {
                socket: connection.socket,
                peer: served.permit.peer().address(),
                before: served.before(),
            };
            // Fails if the caller no longer waits: the connection is closed.
            let _not_waiting = to.send(passed);
        }
    }

    /// Ends the passing of connections where none is left.
    fn finish_passing(&mut self) {
        for (id, endpoint) in &mut self.endpoints {
            let is_left = |connection: &Connection| match &connection.role {
                Role::Served(served) => served.endpoint == *id,
                Role::Outgoing(_) => false,
            };
            if endpoint.passed.is_some() && !self.connections.values().any(is_left) {
                endpoint.passed = None;
            }
        }
    }

    /// Closes a failed link and reports it as down and released.
    fn fail(&mut self, link: LinkId, failure: Failure<LinkError>) {
        if let Some(key) = self.links.get(&link).copied() {
            self.drop_connection(key);
        }
        self.events.push(Event::Down(link, failure));
        self.events.push(Event::Released(link));
    }

    fn select(&self, which: impl Fn(&Role) -> bool) -> Vec<ConnectionKey> {
        let selected = self.connections.iter().filter(|(_, one)| which(&one.role));
        selected.map(|(key, _)| key).collect()
    }

    /// Closes the served connections of an endpoint that `which` selects, and counts the reason.
    fn close_served(&mut self, endpoint: EndpointId, why: Ended, which: impl Fn(&Served) -> bool) {
        let closing = self.select(|role| match role {
            Role::Served(served) => served.endpoint == endpoint && which(served),
            Role::Outgoing(_) => false,
        });
        for key in closing {
            if let (Some(side), Some(connection)) =
                (self.endpoints.get(&endpoint), self.connections.get(key))
                && let Role::Served(served) = &connection.role
            {
                side.counters.ended(served.permit.peer(), why);
            }
            self.drop_connection(key);
        }
    }

    /// Handles due timers.
    fn expire(&mut self, now: Instant) {
        while let Some(bits) = self.timers.due(now) {
            let key = connection_key(bits);
            self.turn(key, Cause::Due, now);
            let Some(connection) = self.connections.get_mut(key) else {
                continue;
            };
            let socket = connection.socket.as_fd();
            let served = match &mut connection.role {
                Role::Served(served) => served,
                Role::Outgoing(link) => {
                    let id = link.link;
                    match link.expire(now, self.bounds.stall, &mut self.events) {
                        Ok(None) => {}
                        Ok(Some(later)) => self.timers.push(later, bits),
                        Err(failure) => self.fail(id, failure),
                    }
                    continue;
                }
            };
            match served.expire(now, self.bounds, socket) {
                Ok(None) => {}
                Ok(Some(later)) => self.timers.push(later, bits),
                Err(ended) => {
                    if let Some(endpoint) = self.endpoints.get(&served.endpoint) {
                        endpoint.counters.ended(served.permit.peer(), ended);
                    }
                    if ended == Ended::Stalled {
                        abort_on_close(&connection.socket);
                    }
                    self.drop_connection(key);
                }
            }
        }
    }
}

impl Transport for Tcp {
    fn add_endpoint(
        &mut self,
        endpoint: EndpointId,
        admission: Admission,
        counters: Arc<Counters>,
    ) {
        let side = ServedEndpoint {
            extents: ExtentMap::default(),
            admission,
            counters,
            passed: None,
        };
        self.endpoints.insert(endpoint, side);
    }

    fn remove_endpoint(&mut self, endpoint: EndpointId) {
        let closing = self.select(|role| match role {
            Role::Served(served) => served.endpoint == endpoint,
            Role::Outgoing(link) => link.link.endpoint == endpoint,
        });
        for key in closing {
            self.drop_connection(key);
        }
        if let Some(side) = self.endpoints.remove(&endpoint) {
            for (_, _, region) in side.extents.iter() {
                self.regions.remove(&region);
            }
        }
    }

    // Its connections are dropped with it.
    fn is_removing(&self, _: EndpointId) -> bool {
        false
    }

    fn set_admission(&mut self, endpoint: EndpointId, admission: Admission) {
        self.close_served(endpoint, Ended::NotAdmitted, |served| {
            !admission.allows(served.permit.peer().address())
        });
        if let Some(side) = self.endpoints.get_mut(&endpoint) {
            side.admission = admission;
        }
    }

    fn add_region(
        &mut self,
        endpoint: EndpointId,
        region: RegionId,
        memory: &Arc<Region>,
        wire_base: u64,
    ) {
        let Some(side) = self.endpoints.get_mut(&endpoint) else {
            return;
        };
        match side.extents.insert(wire_base, memory.length(), region) {
            Ok(()) => {
                self.regions.insert(region, Arc::clone(memory));
            }
            // A bug: the endpoint checks the same map first.
            Err(error) => tracing::error!(?region, %error, "region not served"),
        }
    }

    fn withdraw(&mut self, endpoint: EndpointId, region: RegionId, forget: bool) {
        if let Some(side) = self.endpoints.get_mut(&endpoint) {
            side.extents.remove(region);
        }
        self.close_served(endpoint, Ended::Withdrawn, |served| served.uses(region));
        if forget {
            self.regions.remove(&region);
        }
        self.events.push(Event::Withdrawn(endpoint, region));
    }

    fn open(&mut self, link: LinkId, to: &PeerAddress) {
        match to {
            PeerAddress::Tcp(to) => self.connector.connect(link, to),
            #[cfg(feature = "rdma")]
            PeerAddress::Rdma(_) => {
                let cause = LinkError::Protocol("the peer is not reached over TCP".to_owned());
                self.fail(link, Failure::unsent(cause));
            }
        }
    }

    fn add_socket(&mut self, socket: NewSocket, now: Instant) {
        match socket {
            NewSocket::Accepted {
                endpoint,
                socket,
                permit,
                before,
            } => {
                let Some(side) = self.endpoints.get(&endpoint) else {
                    return;
                };
                // The admission may have changed since the accept.
                if !side.admission.allows(permit.peer().address()) {
                    side.counters.ended(permit.peer(), Ended::NotAdmitted);
                    return;
                }
                // Without it, one request is served in a turn.
                let _not_reported = report_queued(socket.as_fd());
                let mut served = Served::new(endpoint, permit, now);
                if before.is_some_and(|before| !served.resume(&before)) {
                    tracing::warn!(
                        ?endpoint,
                        "a connection of the former process cannot be served on"
                    );
                    return;
                }
                let begun = served.has_bytes();
                // The former process may have sent answers.
                let due = served.arm_timer(self.bounds);
                match self.add(socket, Role::Served(served)) {
                    Ok(key) => {
                        if let Some(due) = due {
                            self.timers.push(due, key.data().as_ffi());
                        }
                        // Epoll does not know these bytes.
                        if begun {
                            self.watch(key, &Turn::Share);
                        }
                    }
                    Err(error) => tracing::warn!(?endpoint, %error, "connection not watched"),
                }
            }
            NewSocket::Connected {
                link,
                socket,
                version,
                pipeline_depth,
            } => {
                if !self.endpoints.contains_key(&link.endpoint) {
                    return;
                }
                let out = Outgoing::new(link, version, pipeline_depth, now);
                let window = out.window();
                let added = socket.and_then(|socket| {
                    if version == Version::V2 {
                        // Also when this process is killed. Version 1 has no status, so there bytes of a
                        // completed write may still be in the kernel.
                        abort_on_close(&socket);
                    }
                    self.add(socket, Role::Outgoing(out))
                        .map_err(LinkError::io("watching a connection"))
                });
                match added {
                    Ok(key) => {
                        self.links.insert(link, key);
                        self.events.push(Event::Up(link, window));
                    }
                    Err(cause) => self.fail(link, Failure::unsent(cause)),
                }
            }
        }
    }

    fn pass_on(&mut self, endpoint: EndpointId, to: mpsc::UnboundedSender<IdleConnection>) {
        let Some(side) = self.endpoints.get_mut(&endpoint) else {
            return;
        };
        side.passed = Some(to);
        let idle = self.select(|role| match role {
            Role::Served(served) => served.endpoint == endpoint && served.is_idle(),
            Role::Outgoing(_) => false,
        });
        for key in idle {
            self.pass(key);
        }
    }

    fn post(&mut self, link: LinkId, requests: &[Post]) -> usize {
        let key = self.links.get(&link).copied();
        let found = key.and_then(|key| Some((key, self.connections.get_mut(key)?)));
        let Some((
            key,
            Connection {
                socket,
                role: Role::Outgoing(out),
                ..
            },
        )) = found
        else {
            // Closed, and the event has not reached the scheduler yet.
            self.fail(link, Failure::unsent(LinkError::Closed));
            return requests.len();
        };
        if let Err(failure) = out.check(socket.as_fd()) {
            self.fail(link, failure);
            return requests.len();
        }
        let now = Instant::now();
        let mut accepted = 0;
        for request in requests {
            if !out.has_space(request.slice.length) {
                break;
            }
            let Some(region) = self.regions.get(&request.slice.memory) else {
                // A bug: the scheduler ends the transfers of memory before it is removed.
                tracing::error!(?link, memory = ?request.slice.memory, "unknown memory of a request");
                self.fail(link, Failure::unsent(LinkError::Closed));
                return requests.len();
            };
            out.begin(request, Arc::clone(region), now);
            accepted += 1;
        }
        if accepted > 0 {
            self.accepted.push(key);
        }
        accepted
    }

    fn flush(&mut self) {
        let now = Instant::now();
        let mut accepted = std::mem::take(&mut self.accepted);
        for key in accepted.drain(..) {
            self.turn(key, Cause::Posted, now);
        }
        // Keeps the capacity.
        self.accepted = accepted;
    }

    fn close(&mut self, link: LinkId) {
        if let Some(key) = self.links.get(&link).copied() {
            self.drop_connection(key);
        }
        self.events.push(Event::Released(link));
    }

    fn ready(&mut self, ready: &[Ready], now: Instant) {
        self.share = if ready.len() > 1 {
            SHARE_BYTES
        } else {
            TURN_BYTES
        };
        // A connection with more work than its share is served after those that had less.
        let mut later = std::mem::take(&mut self.later);
        for one in ready {
            let connection = self.connections.get(connection_key(one.token.0));
            if connection.is_some_and(|connection| connection.is_busy) {
                later.push(*one);
            } else {
                self.turn(connection_key(one.token.0), Cause::Ready(one.flags), now);
            }
        }
        for one in later.drain(..) {
            self.turn(connection_key(one.token.0), Cause::Ready(one.flags), now);
        }
        // Keeps the capacity.
        self.later = later;
    }

    fn attention(&self) -> Attention {
        Attention::Signalled
    }

    fn progress(&mut self, now: Instant, events: &mut Vec<Event>) {
        self.expire(now);
        self.finish_passing();
        self.ahead_of_epoll = false;
        events.append(&mut self.events);
    }

    fn next_deadline(&self) -> Option<Instant> {
        // Events from outside `progress` wait for it.
        if self.events.is_empty() {
            self.timers.next()
        } else {
            Some(Instant::now())
        }
    }
}

/// Makes closing this socket a reset that discards what was not sent. After a graceful close the kernel would go on sending
/// bytes of a write whose transfer has ended, or would keep answers for a peer that takes none.
fn abort_on_close(socket: &OwnedFd) {
    if let Err(error) = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)) {
        tracing::error!(%error, "a connection cannot be set to end with a reset");
    }
}

#[cfg(test)]
mod tests;
